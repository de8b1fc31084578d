//! The half of a device that tracks the camera.

use super::{DeviceError, Handle};
use crate::compute::depth::moved::NextDepth;
use crate::compute::depth::{DepthScale, NoScale};
use crate::compute::pose_solver::Solution;
use crate::compute::residual::{Matrix7, SolveError};
use crate::geometry::Sim3;
use crate::image::encoding::RawImage;
use crate::inference::NetworkShape;
use crate::time::StageTimes;

/// The tracking half. It holds two items: the current frame, and the active keyframe, against which
/// frames are tracked. After an error there is no current frame until the next one is encoded; the
/// active keyframe is unchanged unless the device is lost.
pub trait TrackingDevice: Send {
    /// User-readable description of device and network runtime.
    fn describe(&self) -> String;

    /// Input and output sizes of the network.
    fn shape(&self) -> &NetworkShape;

    /// Makes a camera image the current frame.
    fn encode(&mut self, image: &RawImage<'_>) -> Result<(), DeviceError>;

    /// Tells the device, once the current frame is encoded and before it is tracked, the image that is encoded next: a
    /// device that can encodes it while the current frame is tracked. Until then its memory must stay as it is. Results
    /// are the same as without.
    fn expect(&mut self, image: &RawImage<'_>) -> Result<(), DeviceError> {
        let _ = image;
        Ok(())
    }

    /// Hides pixels of this and the following frames: `used` has a 0 for each of the network image's pixels that is
    /// hidden. Hidden pixels match nothing, and a keyframe has no points there (docs/algorithm.md, Masks).
    ///
    /// # Errors
    /// [`DeviceError::NoMasks`] without `tracking.masks`; if the length is not the number of pixels.
    fn set_mask(&mut self, used: &[u8]) -> Result<(), DeviceError>;

    /// Gives the frame that is encoded next its depth; it has none otherwise. With depth, the pointmaps of each pass with
    /// the frame are multiplied by the scale that they need to be metric; without, by that of the newest pass with depth.
    ///
    /// # Errors
    /// [`DeviceError::NoDepth`] without `depth.use`; if the length is not the number of pixels. The next frame then has
    /// no depth.
    fn set_depth(&mut self, next: Option<NextDepth<'_>>) -> Result<(), DeviceError>;

    /// The scale by which the current frame's last pass was multiplied, or why its depth gives none; `None` for a frame
    /// without depth or without a pass.
    fn depth_found(&self) -> Option<Result<DepthScale, NoScale>>;

    /// The scale that the active keyframe's pointmap has by the keyframe's own depth; `None` without such depth, or if
    /// it gives no scale.
    fn keyframe_scale(&mut self) -> Result<Option<DepthScale>, DeviceError>;

    /// Decodes the current frame paired with itself; returns the number of pixels with a usable
    /// point.
    fn decode_single(&mut self) -> Result<usize, DeviceError>;

    /// Sets the pose at which the next [`TrackingDevice::track`] starts its solve: where a sensor expects the frame
    /// relative to the active keyframe. Otherwise that is the pose of the frame before.
    fn start_at(&mut self, keyframe_from_frame: &Sim3) -> Result<(), DeviceError>;

    /// Tracks the current frame against the active keyframe and, if a pose is found, fuses the
    /// frame's view of the keyframe into the keyframe's pointmap (docs/algorithm.md, Tracking and
    /// Pointmap fusion).
    fn track(&mut self) -> Result<Outcome, DeviceError>;

    /// Makes the current frame the active keyframe, with its pointmap from the last
    /// [`TrackingDevice::decode_single`] or [`TrackingDevice::track`]. The handle refers to its
    /// image, features and first pointmap.
    fn start_keyframe(&mut self) -> Result<Handle, DeviceError>;

    /// Hands a copy of the current frame off, with its pointmap from the last [`TrackingDevice::decode_single`] or
    /// [`TrackingDevice::track`], to be located in the map. The active keyframe is unchanged.
    fn stash_frame(&mut self) -> Result<Handle, DeviceError>;

    /// Makes the frame of `handle`, which [`TrackingDevice::stash_frame`] returned, the active
    /// keyframe after a successful relocalisation. The current frame is unchanged.
    fn track_against(&mut self, handle: &Handle) -> Result<(), DeviceError>;

    /// Hands off the current pointmap of the active keyframe: points with average confidences. The
    /// keyframe stays active until another one replaces it.
    fn stash_pointmap(&mut self) -> Result<Handle, DeviceError>;

    /// Replaces `dst` by the current frame's pointmap from the last
    /// [`TrackingDevice::decode_single`] or [`TrackingDevice::track`].
    fn read_frame(&mut self, dst: &mut FramePoints) -> Result<(), DeviceError>;

    /// Replaces `dst` by the current frame's image and, after a [`TrackingDevice::track`] that found matches, those.
    fn read_seen(&mut self, dst: &mut SeenFrame) -> Result<(), DeviceError>;

    /// What the device's memory is used for; empty for a device whose buffers are not planned.
    fn memory(&self) -> Vec<MemoryPool> {
        Vec::new()
    }

    /// Runs the network on test images. The current frame is unchanged.
    fn self_test(&mut self) -> Result<(), DeviceError>;

    /// Time spent on the current frame since it was encoded; the caller fills in `mapping` and
    /// `total`.
    fn times(&self) -> StageTimes;
}

/// Fractions of a keyframe's pixels.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Fractions {
    /// Matched geometrically, regardless of confidence.
    pub geometric: f32,
    /// Matched and past every gate: used in the pose.
    pub used: f32,
    /// Matched with sufficient quality.
    pub good: f32,
    /// Distinct frame pixels among the matches.
    pub unique: f32,
}

/// A tracked frame.
#[derive(Debug, Clone, Copy)]
pub struct Tracked {
    /// Maps the camera frame to the active keyframe's camera frame.
    pub keyframe_from_frame: Sim3,
    pub fractions: Fractions,
    pub iterations: u32,
    /// Normal equations at the pose.
    pub fit: Fit,
}

/// The normal equations at a solved pose.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fit {
    /// Normal matrix for a left perturbation `[τ, φ, σ]` (in the keyframe's camera frame), in units
    /// of the residual σs.
    pub hessian: Matrix7,
    /// Re-weighted cost `½ Σ ρ w²`.
    pub cost: f64,
    /// Number of correspondences that passed every gate.
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

/// The pointmap of the current frame; `N = width · height` of the network image.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FramePoints {
    /// `N × 3` points in the frame's camera frame, before scale; zero where there is no point.
    pub points: Vec<f32>,
    /// `N` confidences.
    pub confidence: Vec<f32>,
}

/// What the camera saw last, for people; `N = width · height` of the network image.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SeenFrame {
    /// RGB, `N × 3`.
    pub image: Vec<u8>,
    /// For each pixel of the active keyframe, the frame's pixel that it was matched with.
    pub index: Vec<u32>,
    /// Quality of each match; 0 for a match that the pose does not use.
    pub quality: Vec<f32>,
}

/// Memory of a device by use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryPool {
    /// Part of the program: `tracking`, `keyframes`.
    pub name: &'static str,
    /// Kind of memory: `device`, `pinned` or `elsewhere`.
    pub place: &'static str,
    pub bytes: u64,
}

/// Outcome of tracking a frame.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "there is one at a time, and the tracking path does not allocate"
)]
pub enum Outcome {
    /// The pose was found.
    Tracked(Tracked),
    /// The pose was not found.
    Lost {
        reason: LostReason,
        /// Matched fraction, if it was determined.
        match_fraction: f32,
    },
}

/// Reasons for losing a frame. Each is counted and reported; none ends the run.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LostReason {
    /// Not enough overlap with the keyframe.
    #[error(
        "only {found:.3} of the keyframe's pixels are matched with sufficient quality, expected at least {needed:.3}; \
         {geometric:.3} match by geometry alone, and where that is high the descriptor confidences are low \
         (wrong features of the keyframe, or Q_conf too high)"
    )]
    FewMatches {
        found: f32,
        needed: f32,
        /// Fraction of pixels with a valid match of any quality. If it is high while few matches
        /// are usable, the second view was decoded wrongly rather than sharing nothing with the
        /// keyframe.
        geometric: f32,
    },
    /// Too little overlap with the keyframe for a pose to rely on, while mapping is too far behind for a nearer keyframe.
    #[error(
        "only {found:.3} of the keyframe's pixels are matched, expected at least {needed:.3}, and no nearer keyframe can \
         be made, because mapping is behind: lower the rate of images, or use a faster computer or a smaller network"
    )]
    MappingBehind { found: f32, needed: f32 },
    /// The image shows nothing, and may be tracked against a keyframe that shows little.
    #[error("the image is {0}: the lens is covered, or there is no light or too much")]
    Unexposed(&'static str),
    /// The normal equations could not be solved.
    #[error("the pose could not be solved: {0}")]
    Solver(#[from] SolveError),
    /// The network's output has no usable point.
    #[error("the network's output is unusable: every one of {0} pixels is zero or not finite")]
    UnusableOutput(usize),
}
