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
    /// Its first (0) or second half.
    fn half(self, which: u64) -> Self {
        let bytes = self.bytes / 2;
        Self {
            address: self.address + which * bytes as u64,
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

/// A loaded network whose inputs and outputs stay on the GPU. It works in the primary context of that GPU
/// (device ordinal as given when it was loaded) and leaves it current.
///
/// # Safety
/// What is enqueued reads and writes only the spans of the call, and is complete when the stream's
/// work so far is.
pub unsafe trait DeviceBackend: Send {
    /// Bytes of device memory that runs need besides their spans and that the caller is to give, once, by
    /// [`DeviceBackend::use_workspace`]. 0: none, the backend has its own.
    fn workspace_bytes(&mut self) -> Result<usize, InferenceError> {
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

    /// Bytes of device memory that it will take by itself in the first runs, about: what others must leave
    /// free. What it holds already does not count.
    fn still_takes(&self) -> u64 {
        0
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

    /// Enqueues decoding a pair both ways. `features`: `2 × T × C` f32, of both images; each part of `views`
    /// has twice the room: first for the first image as view 1, then for the second.
    ///
    /// # Safety
    /// As for [`DeviceBackend::enqueue_encode`].
    unsafe fn enqueue_decode_both_ways(
        &mut self,
        stream: *mut c_void,
        features: DeviceSpan,
        views: [DeviceViewOutput; 2],
    ) -> Result<(), InferenceError> {
        let images = [features.half(0), features.half(1)];
        for (way, order) in [(0, images), (1, [images[1], images[0]])] {
            let views = views.map(|view| DeviceViewOutput {
                points: view.points.half(way),
                confidence: view.confidence.half(way),
                descriptors: view.descriptors.half(way),
                descriptor_confidence: view.descriptor_confidence.half(way),
            });
            // SAFETY: the caller's promise; these are parts of its spans.
            unsafe { self.enqueue_decode(stream, order, views)? };
        }
        Ok(())
    }
}
