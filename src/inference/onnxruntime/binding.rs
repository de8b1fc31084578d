//! Binds a session's inputs and outputs to buffers on the GPU.

use crate::gpu::DeviceSlice;
use ort::AsPointer;
use ort::memory::{AllocationDevice, AllocatorType, MemoryInfo, MemoryType};
use ort::session::{RunOptions, Session};
use ort::value::{Shape, TensorRefMut};
use std::ffi::{CString, c_void};
use std::ptr::NonNull;

/// An input or output of a session, in device memory.
pub(super) struct Tensor<'a> {
    pub(super) name: &'static str,
    pub(super) input: bool,
    /// Has as many values as the shape.
    pub(super) slice: DeviceSlice<'a, f32>,
    pub(super) shape: Shape,
}

/// The buffers of a session's inputs and outputs.
pub(super) struct Binding(NonNull<ort::sys::OrtIoBinding>);

// SAFETY: ONNX Runtime allows a binding to be used from any thread, one at a time; the type is not
// `Sync`.
unsafe impl Send for Binding {}

impl Binding {
    /// Records the addresses of the tensors; nothing is accessed before a run.
    pub(super) fn new(session: &mut Session, tensors: &[Tensor<'_>]) -> ort::Result<Self> {
        let api = ort::api();
        let mut made = std::ptr::null_mut();
        // SAFETY: the session is alive, and a non-null status holds an error.
        unsafe {
            let status = (api.CreateIoBinding)(session.ptr().cast_mut(), &mut made);
            ort::Error::result_from_status(status)?;
        }
        let made = NonNull::new(made).ok_or_else(|| ort::Error::new("no binding was made"))?;
        let binding = Self(made);
        let (device, kind) = (AllocationDevice::CUDA, AllocatorType::Device);
        for tensor in tensors {
            let name = CString::new(tensor.name).map_err(ort::Error::wrap)?;
            let info = MemoryInfo::new(device.clone(), 0, kind, MemoryType::Default)?;
            let data = tensor.slice.address() as *mut c_void;
            // SAFETY: the slice has as many values as the shape; it is only used in runs, whose
            // caller guarantees that it is still allocated.
            let value = unsafe { TensorRefMut::<f32>::from_raw(info, data, tensor.shape.clone()) }?;
            // SAFETY: binding, name and value are alive; the binding keeps the parts of the value
            // it needs.
            unsafe {
                let bind = match tensor.input {
                    true => api.BindInput,
                    false => api.BindOutput,
                };
                let status = bind(binding.0.as_ptr(), name.as_ptr(), value.ptr());
                ort::Error::result_from_status(status)?;
            }
        }
        Ok(binding)
    }

    /// Runs `session`, for which the binding was made.
    ///
    /// # Safety
    /// The tensors' device memory must stay allocated until the run is over.
    pub(super) unsafe fn run(
        &self,
        session: &mut Session,
        options: &RunOptions,
    ) -> ort::Result<()> {
        let options = options.ptr();
        // SAFETY: all three are alive, and the session is borrowed exclusively; the caller
        // guarantees the memory.
        unsafe {
            let run = ort::api().RunWithBinding;
            let status = run(session.ptr().cast_mut(), options, self.0.as_ptr());
            ort::Error::result_from_status(status)
        }
    }
}

impl Drop for Binding {
    fn drop(&mut self) {
        // SAFETY: created in `new` and released once.
        unsafe { (ort::api().ReleaseIoBinding)(self.0.as_ptr()) };
    }
}
