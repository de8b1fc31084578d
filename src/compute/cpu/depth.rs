//! Depth of the current frame and of the active keyframe (docs/algorithm.md, Metric scale).

use super::NAME;
use crate::compute::depth::field::DepthField;
use crate::compute::depth::moved::{Next, NextDepth, move_depth};
use crate::compute::depth::{DepthMeter, DepthScale, NoScale, Trust, rescale};
use crate::compute::device::DeviceError;
use crate::compute::fusion::FusedPointmap;
use crate::compute::pose_solver::MeasuredDepths;
use crate::geometry::Intrinsics;
use crate::inference::{NetworkShape, ViewOutput};
use std::sync::Arc;

/// Depth images, one N-array of metres each, and the scale that they give.
pub struct Depth {
    width: usize,
    height: usize,
    meter: DepthMeter,
    /// What the network's newest pass with depth got wrong beside its scale; `None` without a calibration.
    field: Option<DepthField>,
    /// The newest measurement.
    newest: Vec<f32>,
    next: Next,
    /// Memory of [`move_depth`].
    ranks: Vec<u64>,
    /// Depth of the current frame, if `has_frame`.
    frame: Vec<f32>,
    has_frame: bool,
    /// Whether that is the newest measurement, and not moved.
    is_newest: bool,
    /// Whether the depth at a match has corrected a point of the active keyframe.
    corrected: Vec<bool>,
    /// Depth of the active keyframe; empty without.
    keyframe: Arc<Vec<f32>>,
    /// Scale of the network's newest pass with depth: that of the passes until the next one.
    factor: f32,
    /// By the passes of frames.
    trust: Trust,
    /// By the fused pointmaps of keyframes.
    trust_of_keyframes: Trust,
    /// What the current frame's depth says about its pass.
    found: Option<Result<DepthScale, NoScale>>,
}

impl Depth {
    /// For images of this shape; with intrinsics, passes are corrected by a field, and points that agree with their depth
    /// get at least this confidence.
    pub fn new(shape: &NetworkShape, camera: Option<Intrinsics>, confidence: f32) -> Self {
        let (width, pixels) = (shape.width, shape.pixels());
        let size = (width, shape.height);
        Self {
            width,
            height: shape.height,
            meter: DepthMeter::new(pixels),
            field: camera.map(|camera| DepthField::new(size, camera, confidence)),
            newest: vec![0.0; pixels],
            next: Next::None,
            ranks: vec![0; pixels],
            frame: vec![0.0; pixels],
            has_frame: false,
            is_newest: false,
            corrected: vec![false; pixels],
            keyframe: Arc::default(),
            factor: 1.0,
            trust: Trust::default(),
            trust_of_keyframes: Trust::default(),
            found: None,
        }
    }

    /// Sets the depth of the next frame.
    pub fn set_next(&mut self, depth: Option<NextDepth<'_>>) -> Result<(), DeviceError> {
        self.next = Next::None;
        self.next = match depth {
            None => return Ok(()),
            Some(NextDepth::Carried(motion)) => Next::Carried(motion),
            Some(NextDepth::Measured { metres, motion }) => {
                if metres.len() != self.newest.len() {
                    return Err(DeviceError::Content {
                        device: NAME,
                        what: "depth",
                        expected: self.newest.len(),
                        found: metres.len(),
                    });
                }
                self.newest.copy_from_slice(metres);
                Next::Measured(motion)
            }
        };
        Ok(())
    }

    /// The next frame becomes the current one.
    pub fn advance(&mut self) {
        let next = std::mem::take(&mut self.next);
        // An average is carried further than the noise of single pixels.
        if self.is_newest && self.is_usable() && matches!(next, Next::Carried(_)) {
            self.newest.copy_from_slice(&self.frame);
        }
        match next {
            Next::None => {}
            Next::Measured(None) => self.frame.copy_from_slice(&self.newest),
            Next::Measured(Some(motion)) | Next::Carried(motion) => {
                let size = (self.width, self.height);
                let (ranks, frame) = (&mut self.ranks, &mut self.frame);
                move_depth(self.newest.iter().copied(), &motion, size, ranks, frame);
            }
        }
        self.has_frame = !matches!(next, Next::None);
        self.is_newest = matches!(next, Next::Measured(None));
        self.found = None;
    }

    /// Measures the scale and the field of a pass, whose first view is that of the current frame, and applies them to
    /// all views. Without depth that can be used, the newest ones before are taken.
    pub fn scale(&mut self, frame: &mut ViewOutput, other: Option<&mut ViewOutput>) {
        if self.has_frame {
            let (points, confidence) = (&frame.points, &frame.confidence);
            let (metres, trust) = (&self.frame, &mut self.trust);
            let found = self
                .meter
                .measure(points, confidence, metres, self.width, trust);
            if let Ok(scale) = &found {
                self.factor = scale.log_scale.exp() as f32;
                if let Some(field) = &mut self.field {
                    let scale = (scale.log_scale, self.meter.mad());
                    field.fit(points, self.meter.keys(), scale, &mut self.frame);
                }
            }
            self.found = Some(found);
        }
        if let Some(field) = &self.field {
            field.apply(&mut frame.points, self.factor);
            if let Some(other) = other {
                field.apply_to_other(&mut other.points, self.factor);
            }
            return;
        }
        for view in std::iter::once(frame).chain(other) {
            rescale(&mut view.points, self.factor);
        }
    }

    /// Brings the points of the current frame's own view, after [`Depth::scale`], nearer to its depth.
    pub fn correct(&self, view: &mut ViewOutput) {
        if let (Some(field), true) = (&self.field, self.is_usable()) {
            let of_pixels = field.of_pixels().of_sensor(self.trust);
            let (points, confidence) = (&mut view.points, &mut view.confidence);
            of_pixels.approach(points, confidence, &self.frame, self.width);
        }
    }

    /// Brings the active keyframe's points in the current frame's camera nearer to the depth at their matches.
    pub fn correct_matches(&mut self, points: &mut [f32], index: &[u32], valid: &[u8]) {
        self.corrected.fill(false);
        if let (Some(field), true) = (&self.field, self.is_usable()) {
            let (of_pixels, corrected) = (field.of_pixels(), &mut self.corrected);
            of_pixels.approach_matches(points, &self.frame, index, valid, corrected);
        }
    }

    /// Then, in the keyframe's camera, nearer to the keyframe's own depth.
    pub fn correct_keyframe(&self, points: &mut [f32], confidence: &mut [f32]) {
        if let Some(field) = &self.field {
            let of_pixels = field.of_pixels().of_sensor(self.trust);
            of_pixels.approach_keyframe(
                points,
                confidence,
                &self.keyframe,
                self.width,
                &self.corrected,
            );
        }
    }

    /// See [`TrackingDevice::depth_found`](crate::compute::device::TrackingDevice::depth_found).
    pub fn found(&self) -> Option<Result<DepthScale, NoScale>> {
        self.found
    }

    /// The depths of the current frame and of the active keyframe, if both have some that can be used.
    pub fn of_both(&self) -> Option<MeasuredDepths<'_>> {
        (self.is_usable() && !self.keyframe.is_empty()).then_some(MeasuredDepths {
            frame: &self.frame,
            keyframe: &self.keyframe,
        })
    }

    /// Whether the current frame has a depth that gives its pass a scale.
    fn is_usable(&self) -> bool {
        self.has_frame && matches!(self.found, Some(Ok(_)))
    }

    /// The current frame's depth, as that of a keyframe; empty if it has none that can be used.
    pub fn of_frame(&self) -> Arc<Vec<f32>> {
        match self.is_usable() {
            true => Arc::new(self.frame.clone()),
            false => Arc::default(),
        }
    }

    /// Makes `depth` that of the active keyframe.
    pub fn restart(&mut self, depth: Arc<Vec<f32>>) {
        self.keyframe = depth;
    }

    /// The scale of the active keyframe's pointmap.
    pub fn of_keyframe(&mut self, map: &FusedPointmap) -> Option<DepthScale> {
        let trust = &mut self.trust_of_keyframes;
        let (points, confidence) = (&map.points, &map.confidence);
        let found = self
            .meter
            .measure(points, confidence, &self.keyframe, self.width, trust);
        found.ok()
    }
}
