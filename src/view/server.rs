//! The HTTP server: a thread with a runtime of its own.

use super::board::Board;
use super::composer::{Composer, End};
use super::listener::BoundedListener;
use super::scrape::Scraped;
use super::stream::{self, MAX_PAGES, Seat, TURN};
use crate::page;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::registry::Registry;
use std::sync::{Arc, Mutex};
use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, interval};

/// Turns between two looks at the positions that passed while no page is open.
const IDLE_TURNS: u64 = 20;
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The page's content security policy: it may load from and connect to nothing but this server.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; \
                      img-src blob: data:; connect-src 'self'; base-uri 'none'; form-action 'none'";

/// What the handlers share.
pub struct Site {
    pub scraped: Arc<Scraped>,
    pub registry: Registry,
    pub board: Arc<Mutex<Board>>,
    pub page: Bytes,
    /// Held while splats are read: one page at a time, as they take megabytes.
    pub reading_splats: Arc<tokio::sync::Mutex<()>>,
}

/// Where the end of the program is left for the server.
pub type EndSlot = Arc<Mutex<Option<End>>>;

/// Serves until `stop` is dropped.
pub async fn run(
    listener: tokio::net::TcpListener,
    site: Arc<Site>,
    end: EndSlot,
    stop: oneshot::Receiver<()>,
) {
    let listener = BoundedListener::new(listener);
    let composer = Composer::new(Arc::clone(&site.scraped), Arc::clone(&site.board));
    let composing = tokio::spawn(compose(composer, Arc::clone(&site.scraped), end));
    let composer_ends = composing.abort_handle();
    tokio::spawn(async move {
        if composing.await.is_err_and(|error| error.is_panic()) {
            tracing::error!("the live page no longer changes: its composer panicked");
        }
    });
    let router = Router::new()
        .route("/", get(live))
        .route("/stream", get(stream))
        .route("/splats", get(splats))
        .route("/splats/viewer.js", get(splat_viewer))
        .route("/splats/data", get(splat_data))
        .route("/status", get(status))
        .route("/healthz", get(health))
        .route("/metrics", get(metrics))
        .with_state(site);
    let serving = tokio::spawn(async move { axum::serve(listener, router).await });
    // Dropped or sent: either ends it.
    let _ = stop.await;
    serving.abort();
    composer_ends.abort();
}

async fn compose(mut composer: Composer, scraped: Arc<Scraped>, end: EndSlot) {
    let mut turns = interval(TURN);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut turn = 0_u64;
    loop {
        turns.tick().await;
        turn += 1;
        if let Some(end) = end.lock().ok().and_then(|mut slot| slot.take()) {
            return composer.end(&end);
        }
        if scraped.feed.watched() {
            composer.compose();
        } else if turn.is_multiple_of(IDLE_TURNS) {
            composer.follow();
        }
    }
}

/// The policy of the page of splats: its viewer is a module of this server and sorts in a worker of its own, in
/// WebAssembly.
const SPLAT_POLICY: &str = "default-src 'none'; script-src 'self' 'unsafe-inline' 'wasm-unsafe-eval'; \
                            worker-src blob:; style-src 'unsafe-inline'; img-src blob: data:; connect-src 'self'; \
                            base-uri 'none'; form-action 'none'";

fn answer(kind: &'static str, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        // A proxy that collects an answer would hold the stream back.
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

const TEXT: &str = "text/plain; charset=utf-8";

async fn live(State(site): State<Arc<Site>>) -> Response {
    answer("text/html; charset=utf-8", site.page.clone())
}

async fn stream(State(site): State<Arc<Site>>) -> Response {
    match Seat::take(&site.scraped) {
        Some(seat) => {
            let stream = stream::start(seat, Arc::clone(&site.board));
            answer("application/octet-stream", Body::new(stream))
        }
        None => {
            let why = format!(
                "{MAX_PAGES} pages are open already, which is the limit: close one of them.\n"
            );
            (StatusCode::SERVICE_UNAVAILABLE, answer(TEXT, why)).into_response()
        }
    }
}

async fn splats() -> Response {
    let mut response = answer("text/html; charset=utf-8", page::splats());
    let policy = HeaderValue::from_static(SPLAT_POLICY);
    response
        .headers_mut()
        .insert(header::CONTENT_SECURITY_POLICY, policy);
    response
}

async fn splat_viewer() -> Response {
    answer("text/javascript; charset=utf-8", page::SPLAT_VIEWER)
}

async fn splat_data(State(site): State<Arc<Site>>) -> Response {
    let refuse =
        |status: StatusCode, why: &'static str| (status, answer(TEXT, why)).into_response();
    let Some(read) = site.scraped.feed.splats() else {
        return refuse(
            StatusCode::NOT_FOUND,
            "there are no splats: start with --splat, or splat:=true\n",
        );
    };
    // Dropped with the answer of the thread that reads, even if the page is closed meanwhile.
    let Ok(reading) = Arc::clone(&site.reading_splats).try_lock_owned() else {
        return refuse(
            StatusCode::SERVICE_UNAVAILABLE,
            "another page is reading the splats; try again\n",
        );
    };
    let data = tokio::task::spawn_blocking(move || {
        let _reading = reading;
        read.read()
    });
    match data.await {
        Ok(Some(data)) => answer("application/octet-stream", data),
        _ => refuse(
            StatusCode::NOT_FOUND,
            "the splats cannot be read now; try again\n",
        ),
    }
}

async fn status(State(site): State<Arc<Site>>) -> Response {
    let text = format!("{:#}\n", site.scraped.status());
    answer("application/json", text)
}

async fn health(State(site): State<Arc<Site>>) -> Response {
    match site.scraped.failure() {
        None => answer(TEXT, "ok\n"),
        Some(why) => {
            let response = answer(TEXT, format!("{why}\n"));
            (StatusCode::SERVICE_UNAVAILABLE, response).into_response()
        }
    }
}

async fn metrics(State(site): State<Arc<Site>>) -> Response {
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, &site.registry) {
        Ok(()) => answer(OPEN_METRICS, text),
        Err(error) => {
            let response = answer(TEXT, format!("the metrics cannot be written: {error}\n"));
            (StatusCode::INTERNAL_SERVER_ERROR, response).into_response()
        }
    }
}

/// The page as it is served.
pub fn page() -> Bytes {
    page::live().into()
}
