//! A network that computes in the memory of the GPU which SLAM uses.

use super::InferenceError;
use std::ffi::c_void;

/// Bytes of device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceSpan {
    /// The first byte's address on the device, a multiple of 256.
    pub address: u64,
    /// How many.
    pub bytes: usize,
}

impl DeviceSpan {
    /// One of its `of` equal parts.
    pub(super) fn part(self, which: usize, of: usize) -> Self {
        let bytes = self.bytes / of.max(1);
        Self {
            address: self.address + (which * bytes) as u64,
            bytes,
        }
    }
}

/// Where one view's dense outputs go, f32 each; see [`super::ViewOutput`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceViewOutput {
    /// `N × 3`.
    pub points: DeviceSpan,
    /// `N`.
    pub confidence: DeviceSpan,
    /// `N × D`.
    pub descriptors: DeviceSpan,
    /// `N`.
    pub descriptor_confidence: DeviceSpan,
}

impl DeviceViewOutput {
    /// All of it, in the order of the fields, which is that of a decoder's outputs.
    pub fn spans(self) -> [DeviceSpan; 4] {
        [
            self.points,
            self.confidence,
            self.descriptors,
            self.descriptor_confidence,
        ]
    }

    /// One of `of` equal parts of everything.
    pub(super) fn part(self, which: usize, of: usize) -> Self {
        Self {
            points: self.points.part(which, of),
            confidence: self.confidence.part(which, of),
            descriptors: self.descriptors.part(which, of),
            descriptor_confidence: self.descriptor_confidence.part(which, of),
        }
    }
}

/// A loaded network whose inputs and outputs stay on the GPU. It works in the primary context of that GPU
/// (device ordinal as given when it was loaded) and leaves it current.
///
/// # Safety
/// What is enqueued reads and writes only the spans of the call, and is complete when the stream's
/// work so far is.
pub unsafe trait DeviceBackend: Send {
    /// Bytes of device memory that runs need besides their spans and that the caller is to give, once, by
    /// [`DeviceBackend::use_workspace`], for a handle that decodes up to `edges` edges at once; 0 edges: for one
    /// that encodes and decodes single pairs. 0 bytes: none, the backend has its own.
    fn workspace_bytes(&mut self, edges: usize) -> Result<usize, InferenceError> {
        let _ = edges;
        Ok(0)
    }

    /// Gives the memory that runs of this handle use from now on.
    ///
    /// # Safety
    /// It is device memory of the context, stays allocated as long as the handle runs anything, and nobody
    /// else uses it meanwhile.
    unsafe fn use_workspace(&mut self, span: DeviceSpan) -> Result<(), InferenceError> {
        let _ = span;
        Ok(())
    }

    /// Bytes of device memory that it will take by itself in the first runs, about, if up to `edges` edges are
    /// decoded at once: what others must leave free. What it holds already does not count.
    fn still_takes(&self, edges: usize) -> u64 {
        let _ = edges;
        0
    }

    /// Makes at once what the first runs would make one after the other: those of a handle that encodes and
    /// decodes single pairs on streams of the highest priority, and of one that decodes up to `edges` edges at
    /// once on streams of the lowest. It saves time.
    fn prepare(&mut self, edges: usize) -> Result<(), InferenceError> {
        let _ = edges;
        Ok(())
    }

    /// Enqueues encoding an image. `planes`: `3 × H × W` f32, `byte / 127.5 − 1`; `features`: `T × C` f32.
    ///
    /// # Safety
    /// `stream` is a live stream of the context. Both spans are device memory of that size, which
    /// stays allocated and which nobody else uses until the work has run.
    unsafe fn enqueue_encode(
        &mut self,
        stream: *mut c_void,
        planes: DeviceSpan,
        features: DeviceSpan,
    ) -> Result<(), InferenceError>;

    /// Enqueues decoding a pair of encoded images, both `T × C` f32 (they may be the same).
    ///
    /// # Safety
    /// As for [`DeviceBackend::enqueue_encode`].
    unsafe fn enqueue_decode(
        &mut self,
        stream: *mut c_void,
        features: [DeviceSpan; 2],
        views: [DeviceViewOutput; 2],
    ) -> Result<(), InferenceError>;

    /// As [`DeviceBackend::enqueue_decode`], but only what is written of view 1 is looked at; of view 2
    /// anything may be written, or nothing.
    ///
    /// # Safety
    /// As for [`DeviceBackend::enqueue_encode`].
    unsafe fn enqueue_decode_view1(
        &mut self,
        stream: *mut c_void,
        features: [DeviceSpan; 2],
        views: [DeviceViewOutput; 2],
    ) -> Result<(), InferenceError> {
        // SAFETY: the caller's promise.
        unsafe { self.enqueue_decode(stream, features, views) }
    }

    /// Enqueues decoding `edges` pairs both ways. `features`: `2·edges × T × C` f32, each two images a pair;
    /// each part of `views` has room for as many: part `n` is of image `n` as view 1, its partner as view 2.
    /// The first call with some `edges` may take long.
    ///
    /// # Safety
    /// As for [`DeviceBackend::enqueue_encode`].
    unsafe fn enqueue_decode_edges(
        &mut self,
        stream: *mut c_void,
        edges: usize,
        features: DeviceSpan,
        views: [DeviceViewOutput; 2],
    ) -> Result<(), InferenceError> {
        let images = 2 * edges;
        for image in 0..images {
            let order = [image, image ^ 1].map(|k| features.part(k, images));
            let views = views.map(|view| view.part(image, images));
            // SAFETY: the caller's promise; these are parts of its spans.
            unsafe { self.enqueue_decode(stream, order, views)? };
        }
        Ok(())
    }
}
