//! The live page in a real Chromium.

use crate::client::Stream;
use crate::endpoints::Running;
use crate::walk::Walk;
use mast3r_slam::view::MAX_PAGES;
use serde_json::json;
use std::time::Duration;
use testkit::browser::Browser;

/// A page that shows everything which comes with a map. Until the first image is decoded, its canvas has 4×3 pixels.
const SHOWN: &str = "live.connected && document.getElementById('image').width > 4 && live.scene.pointCount > 1000 \
                     && live.scene.trail.count > 3 && live.state.state === 'tracking'";

#[test]
fn a_page_draws_the_map_and_follows_a_run_to_its_end() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let running = Running::start(16);
    let tab = browser.open(&format!("http://{}/", running.address));
    browser.wait(&tab, "the map", SHOWN);
    // The camera's image, with yellow lines and places over it.
    let image = browser.canvas(&tab, "image");
    assert_eq!((image.width, image.height), (256, 192));
    assert!(image.colors() > 300, "{} colours", image.colors());
    browser.wait(
        &tab,
        "matches",
        "Number.parseInt(document.getElementById('matched').textContent) > 20",
    );
    assert!(browser.canvas(&tab, "image").drawn() > 256 * 192 / 2);
    let pixels = "document.getElementById('times').children.length";
    assert!(
        browser.eval(&tab, pixels).as_u64() >= Some(5),
        "times of the stages"
    );
    let map = browser.canvas(&tab, "map");
    assert!(map.width >= 600 && map.height >= 400);
    assert!(
        map.drawn() > 3_000 && map.colors() > 200,
        "{} pixels, {} colours",
        map.drawn(),
        map.colors()
    );
    // To its end, with the whole map.
    let said = running.finish();
    browser.wait(&tab, "the end", "live.ended");
    let frames = browser.eval(&tab, "live.state.frames");
    assert_eq!(frames, json!(16), "{said}");
    let counts = browser.eval(
        &tab,
        "[live.scene.graph.keyframes.size, live.scene.clouds.size, live.state.keyframes]",
    );
    assert!(
        counts[0] == counts[1] && counts[1] == counts[2],
        "every keyframe has its points: {counts}"
    );
    let text = browser.eval(&tab, "document.getElementById('notice').innerText");
    assert!(
        text.as_str()
            .is_some_and(|t| t.contains("The run has ended")),
        "{text}"
    );
    assert!(browser.canvas(&tab, "map").drawn() > 3_000);
}

#[test]
fn a_page_survives_the_end_and_the_return_of_its_server() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let walk = Walk::start(Duration::from_millis(30));
    let port = walk.address.port();
    let tab = browser.open(&walk.page());
    browser.wait(&tab, "the map", SHOWN);
    let before = browser.eval(&tab, "live.connections");
    // Gone without a word, as by a crash or a network that fails.
    drop(walk);
    browser.wait(
        &tab,
        "the loss",
        "!live.connected && !document.getElementById('notice').hidden",
    );
    assert!(browser.canvas(&tab, "map").drawn() > 1_000, "the map stays");
    let walk = Walk::on(port, Duration::from_millis(30));
    browser.wait(&tab, "the next connection", "live.connected");
    browser.wait(&tab, "the map again", SHOWN);
    let after = browser.eval(&tab, "live.connections");
    assert!(after.as_u64() > before.as_u64());
    assert_eq!(
        browser.eval(&tab, "document.getElementById('notice').hidden"),
        json!(true)
    );
    walk.end();
    browser.wait(&tab, "the end", "live.ended");
}

#[test]
fn the_ninth_page_says_why_it_is_empty() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let walk = Walk::start(Duration::from_millis(30));
    walk.pass(3);
    let mut others: Vec<_> = (0..MAX_PAGES)
        .map(|_| Stream::open(walk.address, "/stream"))
        .collect();
    let tab = browser.open(&walk.page());
    let says = "document.getElementById('notice').innerText.includes('8 pages are open already')";
    browser.wait(&tab, "the reason", says);
    others.pop();
    browser.wait(&tab, "a place", "live.connected");
}

#[test]
fn mouse_and_fingers_turn_move_and_zoom() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let walk = Walk::start(Duration::from_millis(30));
    let tab = browser.open(&walk.page());
    browser.wait(&tab, "the map", SHOWN);
    let look = |browser: &mut Browser| {
        let look = browser.eval(&tab, "(({yaw, pitch, distance, target}) => [yaw, pitch, distance, ...target])(live.scene.look)");
        let values = look.as_array().expect("a look").iter();
        values
            .map(|v| v.as_f64().expect("a number"))
            .collect::<Vec<_>>()
    };
    let drag = |browser: &mut Browser, button: &str, buttons: u32| {
        let more = json!({"button": button, "buttons": buttons, "clickCount": 1});
        browser.mouse(&tab, "mousePressed", (400.0, 500.0), more.clone());
        browser.mouse(&tab, "mouseMoved", (430.0, 520.0), more.clone());
        browser.mouse(&tab, "mouseMoved", (460.0, 540.0), more.clone());
        browser.mouse(&tab, "mouseReleased", (460.0, 540.0), more);
    };
    // Turned once, the view stays as it is, so that only the events change it.
    drag(&mut browser, "left", 1);
    let first = look(&mut browser);
    drag(&mut browser, "left", 1);
    let turned = look(&mut browser);
    assert!(
        (turned[0] - first[0] - 0.36).abs() < 0.05,
        "{first:?} {turned:?}"
    );
    assert_eq!((turned[2], turned[3]), (first[2], first[3]));
    drag(&mut browser, "right", 2);
    let moved = look(&mut browser);
    assert_eq!(moved[..3], turned[..3]);
    assert!(moved[3..] != turned[3..]);
    browser.mouse(
        &tab,
        "mouseWheel",
        (400.0, 500.0),
        json!({"deltaX": 0, "deltaY": 200}),
    );
    browser.wait(
        &tab,
        "the zoom",
        &format!("live.scene.look.distance > {}", moved[2] * 1.2),
    );
    // A phone.
    browser.phone(&tab);
    browser.wait(
        &tab,
        "the phone",
        "innerWidth === 390 && document.documentElement.scrollWidth <= 390",
    );
    let before = look(&mut browser);
    browser.touch(&tab, "touchStart", &[(150.0, 250.0)]);
    browser.touch(&tab, "touchMove", &[(180.0, 250.0)]);
    browser.touch(&tab, "touchMove", &[(210.0, 250.0)]);
    browser.touch(&tab, "touchEnd", &[]);
    let after = look(&mut browser);
    assert!(
        (after[0] - before[0] - 0.36).abs() < 0.1,
        "{before:?} {after:?}"
    );
    // Fingers that part bring it nearer.
    browser.touch(&tab, "touchStart", &[(150.0, 250.0), (200.0, 250.0)]);
    browser.touch(&tab, "touchMove", &[(130.0, 250.0), (220.0, 250.0)]);
    browser.touch(&tab, "touchMove", &[(100.0, 250.0), (250.0, 250.0)]);
    browser.touch(&tab, "touchEnd", &[]);
    let near = look(&mut browser);
    assert!(near[2] < 0.6 * after[2], "{after:?} {near:?}");
    let drawn = browser.canvas(&tab, "map");
    assert!(
        drawn.width < drawn.height && drawn.drawn() > 500,
        "{}",
        drawn.drawn()
    );
}

/// A proxy serves the page below a path, and passes only that on.
#[test]
fn a_page_works_below_a_path_of_a_proxy() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let walk = Walk::start(Duration::from_millis(30));
    let proxy = proxy(walk.address, "/robots/seven");
    for path in ["/robots/seven/", "/robots/seven"] {
        let tab = browser.open(&format!("http://{proxy}{path}"));
        browser.wait(&tab, "the map", SHOWN);
        browser.close(&tab);
    }
}

/// Passes requests below `prefix` on to `to`, without it; others are refused.
fn proxy(to: std::net::SocketAddr, prefix: &'static str) -> std::net::SocketAddr {
    use std::io::{BufRead, BufReader, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut from = BufReader::new(client.try_clone().expect("a socket"));
                let mut line = String::new();
                from.read_line(&mut line).expect("a request");
                let path = line.split(' ').nth(1).unwrap_or_default();
                let Some(rest) = path.strip_prefix(prefix) else {
                    let _ = client.write_all(
                        b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
                    );
                    return;
                };
                let rest = if rest.is_empty() { "/" } else { rest };
                let mut server = std::net::TcpStream::connect(to).expect("the server");
                let request =
                    format!("GET {rest} HTTP/1.1\r\nhost: robots\r\nconnection: close\r\n\r\n");
                server.write_all(request.as_bytes()).expect("a request");
                let _ = std::io::copy(&mut server, &mut client);
            });
        }
    });
    address
}
