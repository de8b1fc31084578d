//! The interface of a device that holds a Gaussian map, renders it and trains it.
//!
//! Every call blocks until its result is there. A device runs on a stream of its own and owns all memory from its
//! creation on: no call allocates on the device. The CPU implementation, [`CpuSplat`](super::CpuSplat), defines what is
//! correct.

use super::SplatError;
use super::block::RowBlock;
use super::camera::{Camera, Pointmap, Rendering, View};
use super::layout::{FIELDS, Layout};
use crate::geometry::Sim3;

/// Weights of the training loss and what else a gradient step does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossWeights {
    /// λ of (1 − λ) L1 + λ (1 − SSIM).
    pub ssim: f32,
    /// Weight of the mean of |D − S d| over all pixels, with the rendered depth sum D, the silhouette S and the
    /// measured depth d; pixels without a measurement count as 0. Metres.
    pub depth: f32,
    /// Whether the view enters the statistics of refinement.
    pub statistics: bool,
}

impl LossWeights {
    /// The loss of the method's paper (Kerbl et al., 3D Gaussian splatting, 2023, equation 7), of colours alone, with
    /// statistics.
    pub const COLOR_ONLY: Self = Self {
        ssim: 0.2,
        depth: 0.0,
        statistics: true,
    };
}

/// The loss of a view, its parts before their weights, and the gradient by the camera.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Loss {
    /// The weighted sum.
    pub total: f64,
    /// Mean of the absolute differences over all pixels and channels.
    pub l1: f64,
    /// Mean SSIM over all pixels and channels.
    pub ssim: f64,
    /// See [`LossWeights::depth`].
    pub depth: f64,
    /// Sum of the squared differences over the number of values, for PSNR = −10 log₁₀.
    pub mse: f64,
    /// Rows that reach a pixel of the view: those whose gradients are kept.
    pub visible: u64,
    /// Gradient of `total` by ξ = (ρ, φ) at 0 in exp(ξ)·camera_from_world.
    pub pose: [f64; 6],
}

/// Gradients by the parameters of the visible rows, for tests and tools.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RowGradients {
    /// Indices of the rows, ascending.
    pub rows: Vec<u32>,
    /// `rows.len() × floats` values, a row's fields in the order of [`Field::ALL`](super::layout::Field::ALL).
    pub values: Vec<f32>,
}

/// Parameters of an Adam step over the rows whose gradients were computed last. Rows that the view did not show keep
/// their parameters and moments.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamStep {
    /// Learning rate of each field, in the order of [`Field::ALL`](super::layout::Field::ALL).
    pub rates: [f32; FIELDS],
    /// 1 − β₁ᵗ of the step.
    pub bias1: f32,
    /// 1 − β₂ᵗ of the step.
    pub bias2: f32,
    /// Weight of the mean opacity in the loss, divided by the number of rows.
    pub opacity_weight: f32,
    /// Weight of the mean standard deviation in the loss, divided by the number of rows and axes.
    pub scale_weight: f32,
    /// Factor of the noise that is added to means after the step, already times the learning rate of means; 0: none.
    pub noise: f32,
    /// Key of the noise.
    pub seed: u64,
    /// Counter of the noise.
    pub step: u32,
}

/// Thresholds of refinement, on the values as they are stored, so that devices decide alike.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct RefineRules {
    /// Key of the split's random offsets.
    pub seed: u64,
    /// Counter of the split's random offsets.
    pub step: u32,
    /// A mean gradient above this makes a row hot.
    pub hot: f32,
    /// A hot row is split if its largest log scale is above this, else duplicated.
    pub ln_small: f32,
    /// A row whose largest log scale is above this is pruned; infinity: never.
    pub ln_prune: f32,
    /// A row whose opacity logit is below this is pruned.
    pub logit_prune: f32,
    /// Subtracted from the log scales of split rows.
    pub ln_shrink: f32,
    /// 1: both children of a split get the opacity 1 − √(1 − o); 0: o.
    pub revised_opacity: u32,
    pub reserved: u32,
}

/// Counts of a refinement. A device's kernels write it and the host reads it, as one type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Counters {
    /// [`Counters::VERSION`].
    pub version: u32,
    /// [`Counters::CANARY`].
    pub canary: u32,
    /// Rows before.
    pub rows: u64,
    /// Rows that are pruned.
    pub holes: u64,
    /// Rows that are to become two.
    pub extras: u64,
    /// Extras that do become two: `min(extras, capacity − rows + holes)`.
    pub granted: u64,
    /// Rows after: `rows − holes + granted`.
    pub after: u64,
    /// Rows become two from this key on, see [`growth_key`]; 0 grants all.
    pub cutoff: u64,
    /// Number of refinements, appends and relocations since the map was created.
    pub epoch: u64,
}

impl Counters {
    /// Version of this struct.
    pub const VERSION: u32 = 1;
    /// A word that shows that a kernel wrote the struct.
    pub const CANARY: u32 = 0x5A17_C0DE;
}

/// Order in which rows may grow if not all fit: the larger mean gradient first, then the lower row. The gradient must
/// not be negative.
pub fn growth_key(gradient: f32, row: u32) -> u64 {
    u64::from(gradient.to_bits()) << 32 | u64::from(u32::MAX - row)
}

/// Whether a refinement did everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefineStatus {
    /// Every row that was to grow did.
    Complete,
    /// The capacity was reached; this number of rows did not grow.
    Limited { refused: u64 },
}

impl Counters {
    /// Whether every row that was to grow did.
    pub fn status(&self) -> RefineStatus {
        match self.extras - self.granted {
            0 => RefineStatus::Complete,
            refused => RefineStatus::Limited { refused },
        }
    }
}

/// Parameters of a relocation (MCMC): dead rows move onto live ones, then rows are added.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RelocateRules {
    /// Key of the draws.
    pub seed: u64,
    /// Counter of the draws.
    pub step: u32,
    /// A row whose opacity logit is at most this is dead.
    pub logit_dead: f32,
    /// The map grows to at most this times its rows.
    pub growth: f32,
}

/// What a relocation did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Relocated {
    /// Dead rows that were moved.
    pub moved: u64,
    /// Rows that were added.
    pub added: u64,
    /// Rows afterwards.
    pub rows: u64,
}

/// Which pixels of a pointmap become rows, and what rows they become.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SeedRules {
    /// Every n-th pixel of every n-th image row.
    pub stride: u32,
    /// Pixels need a higher confidence.
    pub min_confidence: f32,
    /// Pixels need a smaller silhouette of the map as it is, or a depth that the map does not have.
    pub max_silhouette: f32,
    /// The measured depth is new if it is smaller than the rendered one by more than this fraction of it.
    pub depth_margin: f32,
    /// Opacity logit of new rows.
    pub logit: f32,
    /// Standard deviations of new rows, in spacings of the used pixels.
    pub spread: f32,
}

/// What seeding did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Seeded {
    /// Pixels that were to become rows.
    pub wanted: u64,
    /// Rows that were added; fewer than wanted if the capacity was reached, spread evenly over those wanted.
    pub added: u64,
}

/// A keyframe's rows and the transform from their old to their new world coordinates.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AnchorMove {
    pub anchor: u32,
    /// new = s R old + t.
    pub new_from_old: Sim3,
}

/// Number of rows of a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    pub rows: u64,
    pub capacity: u64,
    /// See [`Counters::epoch`].
    pub epoch: u64,
}

/// Memory of a device, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SplatMemory {
    /// The pool of rows.
    pub pool: u64,
    /// Buffers of one view: visible rows, intersections, images, gradients. On the CPU they grow with the view.
    pub view: u64,
    /// Pinned host memory.
    pub pinned: u64,
    /// Scratch of refinement beside the pool.
    pub refine: u64,
}

/// A device that holds a Gaussian map.
pub trait SplatDevice: Send {
    /// Name for messages: "the CPU" or the GPU's.
    fn name(&self) -> &str;

    /// Layout of the rows.
    fn layout(&self) -> &Layout;

    /// Rows, capacity and epoch.
    fn counts(&self) -> Counts;

    /// Memory that the device has allocated.
    fn memory(&self) -> SplatMemory;

    /// Appends a block of rows and returns the index of its first one.
    ///
    /// # Errors
    /// [`SplatError::Full`] if it does not fit, and then nothing is appended; errors of [`RowBlock::check`].
    fn append(&mut self, src: &RowBlock) -> Result<u64, SplatError>;

    /// Copies `dst.rows()` rows from `start` on.
    ///
    /// # Errors
    /// [`SplatError::Rows`] if the map has fewer rows; errors of [`RowBlock::check`].
    fn read(&mut self, start: u64, dst: &mut RowBlock) -> Result<(), SplatError>;

    /// Removes all rows.
    fn clear(&mut self) -> Result<(), SplatError>;

    /// Renders a camera.
    fn render(&mut self, camera: &Camera, dst: &mut Rendering) -> Result<(), SplatError>;

    /// Renders a view, computes its loss and the gradients by the visible rows and the camera. The gradients stay on
    /// the device for the next [`SplatDevice::step`]; every other call that changes rows drops them.
    ///
    /// Statistics (if asked for): of each visible row whose projection has an extent, the norm of dL/du·(W/2, H/2) is
    /// added to its gradient sum (a value that is not finite counts as 0), and `seen` and `observed` increase by one.
    fn gradients(&mut self, view: &View<'_>, weights: &LossWeights) -> Result<Loss, SplatError>;

    /// Copies the gradients that [`SplatDevice::gradients`] left.
    ///
    /// # Errors
    /// [`SplatError::NoGradients`] if there are none.
    fn read_gradients(&mut self, dst: &mut RowGradients) -> Result<(), SplatError>;

    /// Changes the visible rows by their gradients, which are used up. A gradient that is not finite counts as 0.
    ///
    /// # Errors
    /// [`SplatError::NoGradients`] if there are none.
    fn step(&mut self, step: &AdamStep) -> Result<(), SplatError>;

    /// Duplicates, splits and prunes rows in place, and sets all statistics to 0 (docs/algorithm.md, Gaussian map).
    fn refine(&mut self, rules: &RefineRules) -> Result<Counters, SplatError>;

    /// Moves dead rows onto live ones and adds rows (docs/algorithm.md, Gaussian map).
    fn relocate(&mut self, rules: &RelocateRules) -> Result<Relocated, SplatError>;

    /// Limits every opacity logit to `logit` and sets the opacities' moments to 0.
    fn reset_opacity(&mut self, logit: f32) -> Result<(), SplatError>;

    /// Adds rows for the pixels of a keyframe that the map does not show yet.
    fn seed(&mut self, pointmap: &Pointmap<'_>, rules: &SeedRules) -> Result<Seeded, SplatError>;

    /// Moves the rows of each keyframe. Moments stay as they are. Keyframes that are not listed keep their rows.
    fn move_anchors(&mut self, moves: &[AnchorMove]) -> Result<(), SplatError>;

    /// Checks the canaries of all planes.
    ///
    /// # Errors
    /// [`SplatError::Corrupt`] with the number of bytes that changed.
    fn verify(&mut self) -> Result<(), SplatError>;
}
