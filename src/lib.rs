//! Monocular dense SLAM based on the two-view network MASt3R: images in; poses with metric scale, keyframes and a dense
//! coloured point cloud out, in real time and with memory allocated once at the start.
//!
//! ```no_run
//! use mast3r_slam::{Config, Slam, source};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut frames = source::open("walk.mp4".as_ref(), Default::default())?;
//! // The bundled weights come with a codebook, which enables loop closure.
//! let slam = Slam::builder().config(Config::builtin("mini")?).source(frames.as_mut());
//! let mut slam = slam.build()?;
//! for frame in frames {
//!     let tracked = slam.process(&(&frame?).into())?;
//!     println!("{} {} {:?}", tracked.stamp, tracked.state, tracked.world_from_camera);
//! }
//! let map = slam.finish()?;
//! println!("{} loops closed", map.snapshot().loop_edges().count());
//! map.write("logs/walk")?;
//! # Ok(())
//! # }
//! ```
//!
//! The four main types:
//! * [`Slam`], created by [`Slam::builder`] from weights, codebook, backend, device and calibration. Its [`About`]
//!   lists what was selected, and why faster options were unavailable.
//! * [`Frame`], a camera image with its time stamp, in any common camera [`Encoding`].
//! * [`TrackedFrame`], the result for a frame: state, pose, covariance, motion since the previous frame, timings.
//! * [`Map`], returned by [`Slam::finish`]: write output files, save it to continue later, evaluate it.
//!
//! Features: `dds` and `r2r` (the ROS 2 node of the program), `bags` (ROS 2 bags as sources), `cuda` (the GPU),
//! `onnxruntime` and `tensorrt` (runtimes of the network), `view` (the program's live page). Poses are `world_from_camera`; the camera looks along z
//! with x to the right and y down. Lengths are in metres and durations in milliseconds unless stated otherwise.
//!
//! How it works is in `ARCHITECTURE.md` and `docs/algorithm.md` of the repository; every setting in
//! `docs/configuration.md`; the node in `docs/ros2.md`.
#![cfg_attr(not(feature = "internals"), deny(missing_docs))]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]
#![cfg_attr(
    not(feature = "internals"),
    allow(
        dead_code,
        unused_imports,
        reason = "tests, benches and tools reach parts that the program does not"
    )
)]
#![cfg_attr(
    feature = "internals",
    allow(missing_docs, reason = "what only this package's tests reach")
)]

pub mod config;
pub mod geometry;
pub mod source;

mod newest;

#[cfg(all(feature = "internals", feature = "bags"))]
#[doc(hidden)]
pub mod bag;
#[cfg(all(not(feature = "internals"), feature = "bags"))]
mod bag;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod cli;
#[cfg(not(feature = "internals"))]
mod cli;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod compute;
#[cfg(not(feature = "internals"))]
mod compute;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod eval;
#[cfg(not(feature = "internals"))]
mod eval;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod files;
#[cfg(not(feature = "internals"))]
mod files;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod gpu;
#[cfg(not(feature = "internals"))]
mod gpu;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod image;
#[cfg(not(feature = "internals"))]
mod image;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod inference;
#[cfg(not(feature = "internals"))]
mod inference;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod map;
#[cfg(not(feature = "internals"))]
mod map;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod network;
#[cfg(not(feature = "internals"))]
mod network;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod page;
#[cfg(not(feature = "internals"))]
mod page;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod report;
#[cfg(not(feature = "internals"))]
mod report;
#[cfg(all(feature = "internals", feature = "ros"))]
#[doc(hidden)]
pub mod ros;
#[cfg(all(not(feature = "internals"), feature = "ros"))]
mod ros;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod selftest;
#[cfg(not(feature = "internals"))]
mod selftest;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod slam;
#[cfg(not(feature = "internals"))]
mod slam;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod slam_builder;
#[cfg(not(feature = "internals"))]
mod slam_builder;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod time;
#[cfg(not(feature = "internals"))]
mod time;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod trajectory;
#[cfg(not(feature = "internals"))]
mod trajectory;
#[cfg(all(feature = "internals", feature = "view"))]
#[doc(hidden)]
pub mod view;
#[cfg(all(not(feature = "internals"), feature = "view"))]
mod view;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod weights;
#[cfg(not(feature = "internals"))]
mod weights;
#[cfg(all(feature = "internals", feature = "wire"))]
#[doc(hidden)]
pub mod wire;
#[cfg(all(not(feature = "internals"), feature = "wire"))]
mod wire;

pub use compute::device::DeviceError;
pub use compute::retrieval::RetrievalError;
pub use config::{BackendChoice, Config, DeviceChoice};
pub use eval::{EvalError, Evaluation};
pub use files::export::ExportError;
pub use image::depth::{
    DepthCamera, DepthDecoder, DepthEncoding, DepthError, DepthImage, DepthLimits, DepthReader,
    NetworkDepth, OwnCamera, RawDepth,
};
pub use image::encoding::{Encoding, ImageFormat, RawImage};
pub use image::{ImageError, NetworkView, RgbImage};
pub use inference::InferenceError;
pub use map::TrackingState;
pub use map::{EdgeKind, FrameRecord, KeyframeRecord, KeyframeView, MapEdge, MapSnapshot};
pub use slam::{
    About, Covariance6, Frame, MapMode, MappingCounts, Note, Pace, PoseTable, SavedMap,
    SavedMapError, Slam, SlamError, TrackedFrame,
};
pub use slam_builder::{FinishError, Map, OpenError, SlamBuilder, Written};
pub use time::{StageTimes, Stamp};

/// The program `mast3r-slam`.
#[doc(hidden)]
pub fn program() -> std::process::ExitCode {
    cli::program()
}
