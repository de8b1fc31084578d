//! The half of a device that follows the camera.

use super::{DeviceError, Ticket};
use crate::compute::residual::{Matrix7, SolveError};
use crate::compute::tracking::Solution;
use crate::geometry::Sim3;
use crate::image::encoding::RawImage;
use crate::inference::NetworkShape;

/// The tracking half. It holds two things: the current frame, and the active keyframe, which frames
/// are tracked against. After an error there is no current frame until the next is encoded; the active
/// keyframe is as it was, as far as the device still lives.
pub trait TrackingDevice: Send {
    /// Device and network runtime, for the user.
    fn describe(&self) -> String;

    /// What the network takes and gives.
    fn shape(&self) -> &NetworkShape;

    /// Makes a camera's image the current frame.
    fn encode(&mut self, image: &RawImage<'_>) -> Result<(), DeviceError>;

    /// Looks at the current frame alone (spec 2, mono); gives the number of pixels with a usable
    /// point.
    fn mono(&mut self) -> Result<usize, DeviceError>;

    /// Tracks the current frame against the active keyframe and, where a pose is found, fuses what
    /// the frame sees of the keyframe into the keyframe's pointmap (spec 5.1).
    fn track(&mut self) -> Result<Outcome, DeviceError>;

    /// Makes the current frame, as [`TrackingDevice::mono`] or [`TrackingDevice::track`] saw it last,
    /// the active keyframe. The ticket stands for its image, features and first pointmap.
    fn start_keyframe(&mut self) -> Result<Ticket, DeviceError>;

    /// Puts the current frame, as it was seen last, down for a relocalisation. There is no active
    /// keyframe after it.
    fn put_down_frame(&mut self) -> Result<Ticket, DeviceError>;

    /// Makes the frame of `ticket`, which [`TrackingDevice::put_down_frame`] gave, the active
    /// keyframe: it was found. The current frame stays what it is.
    fn resume_keyframe(&mut self, ticket: &Ticket) -> Result<(), DeviceError>;

    /// Puts the active keyframe's pointmap down as it now is: points with average confidences. The
    /// keyframe stays active until another one takes its place.
    fn put_down_pointmap(&mut self) -> Result<Ticket, DeviceError>;

    /// Replaces `dst` by the current frame's pointmap, as [`TrackingDevice::mono`] or
    /// [`TrackingDevice::track`] saw it last.
    fn read_frame(&mut self, dst: &mut FramePoints) -> Result<(), DeviceError>;

    /// Tests the network with images of its own. The current frame stays what it is.
    fn self_test(&mut self) -> Result<(), DeviceError>;

    /// What was spent on the current frame since it was encoded.
    fn times(&self) -> FrameTimes;
}

/// Milliseconds that a frame took, by stage.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct FrameTimes {
    /// Resize, crop, undistort.
    pub preprocess: f64,
    /// Encoder.
    pub encode: f64,
    /// Decoder and heads.
    pub decode: f64,
    /// Projective search and descriptor refinement.
    pub matching: f64,
    /// Gates and relative pose.
    pub tracking: f64,
    /// Pointmap fusion.
    pub fusion: f64,
}

/// Of a keyframe's pixels.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Fractions {
    /// Matched, whatever the confidences.
    pub geometric: f32,
    /// Matched and past every gate: those that took part in the pose.
    pub used: f32,
    /// Matched with enough quality.
    pub good: f32,
    /// Distinct frame pixels that were matched.
    pub unique: f32,
}

/// A tracked frame.
#[derive(Debug, Clone, Copy)]
pub struct Tracked {
    /// Camera to the active keyframe's camera.
    pub keyframe_from_frame: Sim3,
    /// How much was matched.
    pub fractions: Fractions,
    /// Iterations of the solver.
    pub iterations: u32,
    /// How well the pose is determined.
    pub fit: Fit,
}

/// The normal equations at a solved pose.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fit {
    /// Normal matrix, of a perturbation `[τ, φ, σ]` from the left (in the keyframe's camera), in units of the
    /// residuals' σs.
    pub hessian: Matrix7,
    /// Re-weighted cost `½ Σ ρ w²`.
    pub cost: f64,
    /// Correspondences that passed every gate.
    pub used: usize,
}

impl From<&Solution> for Fit {
    fn from(solution: &Solution) -> Self {
        Self {
            hessian: solution.hessian,
            cost: solution.cost,
            used: solution.used,
        }
    }
}

/// The current frame as the network saw it; `N = width · height` of the network's image.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FramePoints {
    /// `N × 3` points in the frame's camera, before scale; zero where there is none.
    pub points: Vec<f32>,
    /// `N` confidences.
    pub confidence: Vec<f32>,
}

/// A frame's outcome.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "there is one at a time, and the tracking path does not allocate"
)]
pub enum Outcome {
    /// Its pose was found.
    Tracked(Tracked),
    /// It was not.
    Lost {
        /// Why.
        reason: LostReason,
        /// Matched fraction, as far as it was known.
        match_fraction: f32,
    },
}

/// Why a frame has no pose. Each is counted and named; none ends the run.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LostReason {
    /// Too little in common with the keyframe.
    #[error(
        "only {found:.3} of the keyframe's pixels are matched well enough, at least {needed:.3} are needed; \
         {geometric:.3} match by geometry alone, and where that is high the descriptor confidences are low \
         (wrong features of the keyframe, or Q_conf too high)"
    )]
    FewMatches {
        /// Fraction found.
        found: f32,
        /// `tracking.min_match_frac`
        needed: f32,
        /// Fraction matched whatever the confidences (spec 9.3, third row).
        geometric: f32,
    },
    /// The normal equations could not be solved.
    #[error("the pose could not be solved: {0}")]
    Solver(#[from] SolveError),
    /// The network's output holds no usable point.
    #[error("the network's output is unusable: every one of {0} pixels is zero or not finite")]
    UnusableOutput(usize),
}
