//! For a program without bags.

use super::Beside;
use crate::ros::middleware::{Middleware, MiddlewareError};
use crate::ros::node::incident_requests::IncidentRequests;
use crate::ros::node::settings::Settings;
use std::path::PathBuf;
use std::sync::Arc;

const MISSING: &str = "this program was built without the feature `bags`";

/// Fails if a folder for incidents is set.
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
    Err(MiddlewareError::Create {
        what: "folder for incidents",
        name: settings.incident_folder.clone(),
        cause: format!("{MISSING}; leave incident_folder empty"),
    })
}

/// Writes nothing.
pub fn report(_: &Settings, _: &str, _: &str) -> Result<Option<PathBuf>, String> {
    Ok(None)
}
