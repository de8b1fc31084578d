//! `--view`: the live page of a run.

use super::{CliError, say};
use crate::slam::Slam;
use crate::view::{DEFAULT_PORT, Door, Feed, Host, HostReport, View};
use clap::Args;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

/// How long the end of a run waits for open pages to receive the rest.
const LAST_WAIT: Duration = Duration::from_secs(10);

/// What is served while a run lasts.
#[derive(Debug, Clone, Args)]
pub struct ViewArgs {
    /// Serve a live page and metrics at http://localhost:8090, or on another port; 0 is any that is free.
    #[arg(long, value_name = "PORT", num_args = 0..=1, default_missing_value = DEFAULT_PORT)]
    pub view: Option<u16>,
    /// The address of this machine to serve them on. They show what the camera sees to anyone who reaches it.
    #[arg(long, value_name = "ADDRESS", requires = "view", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    pub view_address: IpAddr,
}

impl Default for ViewArgs {
    fn default() -> Self {
        Self {
            view: None,
            view_address: Ipv4Addr::LOCALHOST.into(),
        }
    }
}

/// The host of the page in a run, which has nothing to add to its frames.
struct Run;

impl Host for Run {
    fn report(&self) -> HostReport {
        HostReport::default()
    }
}

/// The server of a run, if one was asked for.
pub struct RunView(Option<View>);

impl ViewArgs {
    /// Starts the server.
    pub fn open(&self) -> Result<RunView, CliError> {
        let Some(port) = self.view else {
            return Ok(RunView(None));
        };
        let door = Door::bind(self.view_address, port, "--view PORT")?;
        let view = door.serve(Arc::new(Run))?;
        say(&format!("live page: {view}"));
        Ok(RunView(Some(view)))
    }
}

impl RunView {
    /// What tracking fills, for the frames of `slam`.
    pub fn start(&self, slam: &Slam) -> Option<Arc<Feed>> {
        let feed = self.0.as_ref().map(View::feed)?;
        feed.start(slam);
        Some(Arc::clone(feed))
    }

    /// Shows the finished map on open pages and ends the server.
    pub fn end(self, map: &crate::map::MapSnapshot, failed: bool) {
        let text = match failed {
            false => "The run has ended.",
            true => "The run has ended with an error; its messages say which.",
        };
        if let Some(view) = self.0 {
            view.end(Some(map), text, LAST_WAIT);
        }
    }
}
