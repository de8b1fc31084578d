//! Training of a Gaussian map over views, on any device.

use super::SplatError;
use super::block::{BlockContent, RowBlock};
use super::camera::{Camera, Pointmap, Rendering, View};
use super::device::{AnchorMove, Counters, Loss, Relocated, Seeded, SplatDevice};
use super::loss::{psnr, quality};
use super::pose::{self, PoseCorrection};
use super::rng::{Purpose, below, words};
use super::schedule::{Mode, Schedule};

/// Rows that are read from the device or given to it in one piece.
pub const BLOCK_ROWS: usize = 1 << 16;
/// Rate of the alignment of held-out views at its start, as a multiple of `splat.lr_pose`: it has fewer steps than the
/// training.
const ALIGN_RATE: f64 = 5.0;
/// Newest views that half of the live steps train on.
const RECENT: usize = 8;

/// A view whose data is in memory.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadedView {
    pub id: u32,
    pub camera: Camera,
    /// `height × width × 3`, 8-bit R, G, B.
    pub image: Vec<u8>,
    /// `height × width` depths in world metres; empty if there are none.
    pub depth: Vec<f32>,
    /// How the pose that is trained with differs from the camera's.
    pub correction: PoseCorrection,
}

impl LoadedView {
    /// The view for a device, at its corrected pose.
    pub fn view(&self) -> View<'_> {
        View {
            camera: self.correction.apply(&self.camera),
            image: &self.image,
            depth: (!self.depth.is_empty()).then_some(&self.depth[..]),
        }
    }
}

/// Where views come from.
pub trait ViewSource {
    /// Number of views.
    fn len(&self) -> usize;

    /// Whether there are no views.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Calls `with` with a view; `index` is below [`ViewSource::len`].
    ///
    /// # Errors
    /// [`SplatError::View`] if it cannot be loaded, and those of `with`.
    fn with(
        &mut self,
        index: usize,
        with: &mut dyn FnMut(&mut LoadedView) -> Result<(), SplatError>,
    ) -> Result<(), SplatError>;
}

impl ViewSource for Vec<LoadedView> {
    fn len(&self) -> usize {
        Vec::len(self)
    }

    fn with(
        &mut self,
        index: usize,
        with: &mut dyn FnMut(&mut LoadedView) -> Result<(), SplatError>,
    ) -> Result<(), SplatError> {
        match self.get_mut(index) {
            Some(view) => with(view),
            None => Err(SplatError::View {
                id: index as u32,
                cause: "there is no such view".into(),
            }),
        }
    }
}

/// What a training step did.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StepReport {
    /// Number of the step, from 1.
    pub step: u64,
    /// Index of the view.
    pub view: usize,
    pub loss: Loss,
    pub refined: Option<Counters>,
    pub relocated: Option<Relocated>,
    pub reset: bool,
}

/// Which views are compared with the map, and where they were taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compared {
    /// Held-out views at the poses that they were given.
    HeldOut,
    /// Held-out views at corrected poses, which [`Trainer::align`] sets.
    HeldOutCorrected,
    /// Views that are trained on, at the poses that they are trained with.
    Trained,
    /// All views at the poses that they were given.
    All,
}

/// How well views are rendered.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Quality {
    /// Views that were compared.
    pub views: usize,
    /// Mean of the views' peak signal-to-noise ratios, decibels.
    pub psnr: f64,
    /// Mean SSIM.
    pub ssim: f64,
    /// Mean silhouette: the part of the images that the map covers.
    pub covered: f64,
}

/// A device, a schedule, and the number of steps so far. Views are passed in, so that they can be added meanwhile.
pub struct Trainer {
    device: Box<dyn SplatDevice>,
    schedule: Schedule,
    step: u64,
    rendering: Rendering,
    /// Order of the training views of an epoch, and what it was made for: epoch and number of views.
    order: Vec<u32>,
    order_of: Option<(u64, usize)>,
}

impl Trainer {
    /// A trainer at step 0.
    pub fn new(device: Box<dyn SplatDevice>, schedule: Schedule) -> Self {
        Self {
            device,
            schedule,
            step: 0,
            rendering: Rendering::default(),
            order: Vec::new(),
            order_of: None,
        }
    }

    /// Number of steps so far.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// The settings.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// Plans an offline run anew: it ends after this many iterations.
    pub fn plan(&mut self, iterations: u64) {
        self.schedule.set_iterations(iterations);
    }

    /// The device with the rows.
    pub fn device(&mut self) -> &mut dyn SplatDevice {
        self.device.as_mut()
    }

    /// Adds rows for a keyframe.
    pub fn seed(&mut self, pointmap: &Pointmap<'_>) -> Result<Seeded, SplatError> {
        self.device.seed(pointmap, &self.schedule.seed())
    }

    /// Moves rows with their keyframes.
    pub fn move_anchors(&mut self, moves: &[AnchorMove]) -> Result<(), SplatError> {
        self.device.move_anchors(moves)
    }

    /// Whether a view measures quality instead of being trained on. Too few views are all trained on.
    pub fn is_held_out(&self, index: usize, views: usize) -> bool {
        let every = self.schedule.config().holdout;
        every > 1 && views >= every && index % every == every - 1
    }

    /// Index of the view of the next step; `None` without views. It depends on settings, step and number of views only.
    fn pick(&mut self, views: usize) -> Option<usize> {
        let held = (0..views).filter(|i| self.is_held_out(*i, views)).count();
        let count = views - held;
        if count == 0 {
            return None;
        }
        let seed = self.schedule.config().seed as u64;
        let chosen = match self.schedule.mode() {
            Mode::Live => {
                let window = match self.step.is_multiple_of(2) {
                    true => count.min(RECENT),
                    false => count,
                };
                let draw = words(seed, self.step as u32, 0, 0, Purpose::Order);
                count - 1 - below(draw, window as u64) as usize
            }
            Mode::Offline { .. } => {
                let epoch = self.step / count as u64;
                if self.order_of != Some((epoch, views)) {
                    self.order.clear();
                    self.order.extend(0..count as u32);
                    for i in (1..count).rev() {
                        let draw = words(seed, i as u32, epoch as u32, 1, Purpose::Order);
                        self.order.swap(i, below(draw, i as u64 + 1) as usize);
                    }
                    self.order_of = Some((epoch, views));
                }
                self.order[(self.step % count as u64) as usize] as usize
            }
        };
        (0..views)
            .filter(|i| !self.is_held_out(*i, views))
            .nth(chosen)
    }

    /// Trains on one view. `None` without views to train on, or without rows.
    pub fn train(&mut self, views: &mut dyn ViewSource) -> Result<Option<StepReport>, SplatError> {
        if self.device.counts().rows == 0 {
            return Ok(None);
        }
        let Some(index) = self.pick(views.len()) else {
            return Ok(None);
        };
        let step = self.step + 1;
        let mut report = StepReport {
            step,
            view: index,
            ..StepReport::default()
        };
        let (device, schedule) = (&mut self.device, &self.schedule);
        views.with(index, &mut |loaded| {
            let mut view = loaded.view();
            view.camera.degree = schedule.degree(step);
            report.loss = device.gradients(&view, &schedule.loss(step))?;
            // The first view keeps its pose: it holds the map in its place.
            let rate = schedule.pose_rate(step);
            if rate > 0.0 && index > 0 {
                let extent = f64::from(schedule.config().extent);
                loaded.correction.step(&report.loss.pose, rate, extent);
            }
            Ok(())
        })?;
        device.step(&schedule.adam(step))?;
        let actions = schedule.actions(step);
        if actions.refine {
            report.refined = Some(device.refine(&schedule.refine(step))?);
        }
        if actions.relocate {
            report.relocated = Some(device.relocate(&schedule.relocate(step))?);
        }
        if actions.reset {
            device.reset_opacity(schedule.reset_logit())?;
            report.reset = true;
        }
        self.step = step;
        Ok(Some(report))
    }

    /// Indices of at most `max` of the views that are compared, spread evenly.
    fn chosen(&self, count: usize, compared: Compared, max: usize) -> Vec<usize> {
        let all = Vec::from_iter((0..count).filter(|index| match compared {
            Compared::All => true,
            Compared::HeldOut | Compared::HeldOutCorrected => self.is_held_out(*index, count),
            Compared::Trained => !self.is_held_out(*index, count),
        }));
        let stride = all.len().div_ceil(max.max(1)).max(1);
        all.into_iter().step_by(stride).collect()
    }

    /// Renders views, at most `max` of them, and compares them with their images.
    pub fn evaluate(
        &mut self,
        views: &mut dyn ViewSource,
        compared: Compared,
        max: usize,
    ) -> Result<Quality, SplatError> {
        let mut sum = Quality::default();
        let corrected = matches!(compared, Compared::HeldOutCorrected | Compared::Trained);
        let degree = self.schedule.degree(self.step.max(1));
        for index in self.chosen(views.len(), compared, max) {
            let (device, rendering) = (&mut self.device, &mut self.rendering);
            views.with(index, &mut |loaded| {
                let mut camera = match corrected {
                    true => loaded.correction.apply(&loaded.camera),
                    false => loaded.camera,
                };
                camera.degree = degree;
                device.render(&camera, rendering)?;
                let (mse, ssim) = quality(rendering, &loaded.image)?;
                sum.views += 1;
                sum.psnr += psnr(mse);
                sum.ssim += ssim;
                let covered: f64 = rendering.silhouette.iter().copied().map(f64::from).sum();
                sum.covered += covered / camera.pixels() as f64;
                Ok(())
            })?;
        }
        let n = sum.views.max(1) as f64;
        sum.psnr /= n;
        sum.ssim /= n;
        sum.covered /= n;
        Ok(sum)
    }

    /// Aligns the poses of held-out views, at most `max` of them, with the map, with `steps` steps each from the present
    /// correction on. Without refined poses (`splat.lr_pose` is 0) it does nothing.
    ///
    /// # Errors
    /// If the device fails.
    pub fn align(
        &mut self,
        views: &mut dyn ViewSource,
        steps: usize,
        max: usize,
    ) -> Result<(), SplatError> {
        let config = self.schedule.config();
        let (rate, extent) = (f64::from(config.lr_pose), f64::from(config.extent));
        if rate <= 0.0 || steps == 0 {
            return Ok(());
        }
        let weights = self.schedule.loss(self.step.max(1));
        let degree = self.schedule.degree(self.step.max(1));
        for index in self.chosen(views.len(), Compared::HeldOut, max) {
            let device = self.device.as_mut();
            views.with(index, &mut |loaded| {
                let settings = (steps, ALIGN_RATE * rate, extent);
                let mut correction = loaded.correction;
                let mut given = loaded.view();
                given.camera = loaded.camera;
                given.camera.degree = degree;
                pose::align(device, &given, &mut correction, &weights, settings)?;
                loaded.correction = correction;
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Passes all rows with their training state to `sink`, block by block. With [`Trainer::step`] they are the whole
    /// state of training.
    pub fn save(
        &mut self,
        sink: &mut dyn FnMut(&RowBlock) -> Result<(), SplatError>,
    ) -> Result<(), SplatError> {
        let rows = self.device.counts().rows;
        let degree = self.device.layout().degree();
        let mut block = RowBlock::new(0, degree, BlockContent::State);
        let mut start = 0;
        while start < rows {
            block.resize((rows - start).min(BLOCK_ROWS as u64) as usize);
            self.device.read(start, &mut block)?;
            sink(&block)?;
            start += block.rows() as u64;
        }
        Ok(())
    }

    /// Continues a saved training: the rows must have been appended to the device.
    pub fn resume(&mut self, step: u64) {
        self.step = step;
        self.order_of = None;
    }
}
