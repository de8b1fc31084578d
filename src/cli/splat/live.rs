//! `run --splat`: a Gaussian map beside a run.

use crate::cli::{CliError, say};
use crate::config::Config;
use crate::map::MapSnapshot;
use crate::map::splat;
use crate::slam::Slam;
#[cfg(feature = "view")]
use crate::slam_builder::splat::Asker;
use crate::slam_builder::splat::{
    DeviceRows, HandOver, HandedOver, Live, LiveSplat, make_device, packed,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The Gaussian map of a run.
pub struct RunSplat {
    hand_over: Arc<HandOver>,
    thread: LiveSplat,
    path: PathBuf,
}

/// Rejects a file of another format, before any work.
pub fn check(path: Option<&Path>) -> Result<(), CliError> {
    path.map_or(Ok(()), |path| super::format_of(path).map(|_| ()))
}

impl RunSplat {
    /// Starts the thread; `None`, with a warning, if the map does not fit or no thread can be started.
    pub fn start(config: &Config, slam: &Slam, path: PathBuf) -> Option<Self> {
        let left_out = |why: &dyn std::fmt::Display| {
            tracing::warn!("the Gaussian map is left out: {why}");
        };
        let (size, _) = slam.network_image();
        let mut notes = Vec::new();
        let device = make_device(config.device, &config.splat, size, &mut notes);
        crate::cli::tell(&notes);
        let device = device.inspect_err(|error| left_out(error)).ok()?;
        let counts = device.counts();
        let name = device.name().to_owned();
        let live = Live::new(device, &config.splat, config.output.c_conf);
        let hand_over = HandOver::new(slam);
        let source = Box::new(HandedOver(Arc::clone(&hand_over)));
        let thread = LiveSplat::start(live, source);
        let thread = thread.inspect_err(|error| left_out(error)).ok()?;
        say(&format!(
            "splats: at most {}, on {name}, in {} ms of each second",
            counts.capacity, config.splat.ms_per_second
        ));
        Some(Self {
            hand_over,
            thread,
            path,
        })
    }

    /// The way to ask the thread, for the live page.
    #[cfg(feature = "view")]
    pub fn asker(&self) -> Asker {
        self.thread.asker()
    }

    /// A frame was processed. Does not wait.
    pub fn frame(&self, slam: &mut Slam) {
        self.hand_over.serve(slam);
    }

    /// SLAM has ended with this map: brings the splats up to date and writes them. Returns those that the report shows.
    pub fn finish(self, map: &MapSnapshot) -> Result<Vec<u8>, CliError> {
        self.hand_over.end();
        let format = super::format_of(&self.path)?;
        let mut live = self.thread.end()?;
        live.complete(map)?;
        let (steps, busy) = live.effort();
        let quality = live.quality()?;
        let device = live.trainer().device();
        let rows = device.counts().rows;
        let bytes = splat::write(&self.path, format, &mut DeviceRows::new(device))?;
        let shown = packed(device).map_err(|error| {
            tracing::warn!("the report is written without splats: {error}");
        });
        say(&format!(
            "splats: {rows} after {steps} iterations in {:.1} s, {}; {:.1} MB in {}",
            busy.as_secs_f64(),
            super::told(&quality),
            bytes as f64 / 1e6,
            self.path.display()
        ));
        Ok(shown.unwrap_or_default())
    }
}
