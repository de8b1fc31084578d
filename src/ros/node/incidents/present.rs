//! In a program with bags.

use super::Beside;
use super::ring::{Contents, Kept, KeptTopic, Limits, Ring};
use super::shelf::Shelf;
use super::watch;
use crate::image::RgbImage;
use crate::ros::middleware::{Middleware, MiddlewareError};
use crate::ros::node::incident_requests::IncidentRequests;
use crate::ros::node::settings::Settings;
use crate::ros::node::shared::Shared;
use crate::ros::node::supervisor::Flow;
use crate::ros::tap::Tap;
use crate::time::Stamp;
use crate::wire::Qos;
use crate::wire::messages::Header;
use crate::wire::messages::Message;
use crate::wire::messages::diagnostic::{DiagnosticArray, DiagnosticStatus, ERROR};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Interval at which the end of the node is noticed.
const TICK: Duration = Duration::from_millis(100);

/// One megabyte in the parameters.
const MEGABYTE: usize = 1_000_000;

/// Listens to `client` if the settings name a folder.
///
/// # Errors
/// A folder that cannot be created.
pub fn beside(
    client: &Arc<dyn Middleware>,
    settings: &Settings,
) -> Result<Beside, MiddlewareError> {
    if settings.incident_folder.is_empty() {
        return Ok(Beside {
            requests: IncidentRequests::refused(),
            client: Arc::clone(client),
            threads: Vec::new(),
        });
    }
    let shelf = shelf(settings).map_err(|cause| MiddlewareError::Create {
        what: "folder for incidents",
        name: settings.incident_folder.clone(),
        cause,
    })?;
    let rate = settings.incident_image_rate;
    let ring = Arc::new(Ring::new(Limits {
        seconds: settings.incident_seconds,
        bytes: settings.incident_memory_mb.saturating_mul(MEGABYTE),
        image_period: if rate > 0.0 { (1e9 / rate) as i64 } else { 0 },
    }));
    let tap = Tap::beside(Arc::clone(client), Arc::clone(&ring));
    let (requests, receiver) = IncidentRequests::queue();
    let (written, compressed) = (Arc::clone(&ring), Arc::clone(&ring));
    Ok(Beside {
        requests,
        client: Arc::new(tap),
        threads: vec![
            (
                "incidents",
                Box::new(move |shared| watch::run(&shared, &written, &shelf, &receiver)),
            ),
            (
                "incident-images",
                Box::new(move |shared| compress(&shared, &compressed)),
            ),
        ],
    })
}

/// Compresses images until the node closes.
fn compress(shared: &Shared, ring: &Ring) {
    let mut scratch = RgbImage::new(0, 0);
    shared.supervisor.run("incident images", || {
        if shared.closing.load(Ordering::Acquire) {
            return Flow::Stop;
        }
        match ring.compress(&mut scratch, TICK) {
            true => Flow::Continue,
            false => Flow::Idle,
        }
    });
}

/// Writes an incident for a node that does not start, with the report alone, if the settings name a folder. Returns its
/// path.
pub fn report(settings: &Settings, cause: &str, words: &str) -> Result<Option<PathBuf>, String> {
    if settings.incident_folder.is_empty() {
        return Ok(None);
    }
    let shelf = shelf(settings)?;
    if shelf.recent(cause).is_some() {
        return Ok(None);
    }
    let time = Stamp::now();
    let message = DiagnosticArray {
        header: Header::new(time, ""),
        status: vec![DiagnosticStatus {
            level: ERROR,
            name: cause.to_owned(),
            message: words.to_owned(),
            ..Default::default()
        }],
    };
    let payload = message.encode().map_err(|e| e.to_string())?.into();
    let contents = Contents {
        topics: vec![KeptTopic {
            name: "/diagnostics".into(),
            kind: DiagnosticArray::TYPE,
            qos: Qos::reliable(1),
        }],
        messages: vec![Kept {
            time,
            topic: 0,
            payload,
        }],
    };
    let put = shelf.put(cause, &contents);
    put.map(Some).map_err(|e| e.to_string())
}

fn shelf(settings: &Settings) -> Result<Shelf, String> {
    let quota = (settings.incident_quota_mb as u64).saturating_mul(MEGABYTE as u64);
    Shelf::open(Path::new(&settings.incident_folder), quota).map_err(|e| e.to_string())
}
