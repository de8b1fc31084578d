//! Depth of the current frame and of the active keyframe (docs/algorithm.md, Metric scale).

use super::NAME;
use crate::compute::depth::field::DepthField;
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
    meter: DepthMeter,
    /// What the network's newest pass with depth got wrong beside its scale; `None` without a calibration.
    field: Option<DepthField>,
    /// Depth of the next frame, if `has_next`.
    next: Vec<f32>,
    has_next: bool,
    /// Depth of the current frame, if `has_frame`.
    frame: Vec<f32>,
    has_frame: bool,
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
    /// For images of this shape; with intrinsics, passes are corrected by a field.
    pub fn new(shape: &NetworkShape, camera: Option<Intrinsics>) -> Self {
        let (width, pixels) = (shape.width, shape.pixels());
        Self {
            width,
            meter: DepthMeter::new(pixels),
            field: camera.map(|camera| DepthField::new(width, shape.height, camera)),
            next: vec![0.0; pixels],
            has_next: false,
            frame: vec![0.0; pixels],
            has_frame: false,
            keyframe: Arc::default(),
            factor: 1.0,
            trust: Trust::default(),
            trust_of_keyframes: Trust::default(),
            found: None,
        }
    }

    /// Sets the depth of the next frame.
    pub fn set_next(&mut self, metres: Option<&[f32]>) -> Result<(), DeviceError> {
        self.has_next = false;
        let Some(metres) = metres else {
            return Ok(());
        };
        if metres.len() != self.next.len() {
            return Err(DeviceError::Content {
                device: NAME,
                what: "depth",
                expected: self.next.len(),
                found: metres.len(),
            });
        }
        self.next.copy_from_slice(metres);
        self.has_next = true;
        Ok(())
    }

    /// The next frame becomes the current one.
    pub fn advance(&mut self) {
        std::mem::swap(&mut self.next, &mut self.frame);
        self.has_frame = std::mem::take(&mut self.has_next);
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
                    let mad = self.meter.mad();
                    field.fit(points, confidence, &self.frame, self.factor, mad);
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
