//! Weights on the GPU once, however many sessions read them.

use super::failure;
use super::gpu::driver;
use crate::inference::InferenceError;
use crate::network::onnx::{OnnxModel, Weight};
use cudarc::driver::{CudaContext, result, sys};
use ort::AsPointer;
use ort::memory::{AllocationDevice, AllocatorType, MemoryInfo, MemoryType};
use ort::session::builder::SessionBuilder;
use rustc_hash::{FxHashMap, FxHasher};
use std::ffi::{CString, c_void};
use std::hash::Hasher;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

const DOING: &str = "placing the weights on the GPU";

/// Weights start at multiples of this.
const ALIGNMENT: usize = 256;

/// The weights of all sessions.
pub(super) struct SharedWeights {
    context: Arc<CudaContext>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    blocks: Vec<sys::CUdeviceptr>,
    bytes: u64,
    places: FxHashMap<Key, u64>,
}

/// A weight: its name, what it is, and its values' hash. (Tables of positions have one name for several
/// batch sizes.)
#[derive(PartialEq, Eq, Hash)]
struct Key {
    name: String,
    shape: Vec<usize>,
    half: bool,
    hash: u64,
}

impl Key {
    fn of(weight: &Weight<'_>) -> Self {
        let mut hasher = FxHasher::default();
        hasher.write(weight.bytes);
        Self {
            name: weight.name.to_owned(),
            shape: weight.shape.to_vec(),
            half: weight.half,
            hash: hasher.finish(),
        }
    }
}

/// What a session reads of the shared weights; outlives the session.
pub(super) struct Borrowed {
    values: Vec<Value>,
    _weights: Arc<SharedWeights>,
}

impl SharedWeights {
    pub(super) fn new(context: Arc<CudaContext>) -> Self {
        Self {
            context,
            state: Mutex::default(),
        }
    }

    /// Bytes of all of them.
    pub(super) fn bytes(&self) -> u64 {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.bytes
    }

    /// Makes the session that `builder` makes of `model` use these weights. What the library makes of
    /// others, it holds itself.
    pub(super) fn lend(
        self: &Arc<Self>,
        model: &OnnxModel,
        builder: &mut SessionBuilder,
    ) -> Result<Borrowed, InferenceError> {
        let fail = |e| failure(DOING, e);
        let mut values = Vec::new();
        for (weight, address) in self.place(model)? {
            let value = Value::new(&weight, address).map_err(fail)?;
            let name = CString::new(weight.name).map_err(|e| failure(DOING, e))?;
            // SAFETY: all three are alive; the value stays so for as long as the session.
            unsafe {
                let add = ort::api().AddInitializer;
                let status = add(builder.ptr_mut(), name.as_ptr(), value.0.as_ptr());
                ort::Error::result_from_status(status).map_err(fail)?;
            }
            values.push(value);
        }
        Ok(Borrowed {
            values,
            _weights: Arc::clone(self),
        })
    }

    /// Where each weight of `model` lies; what is not there yet is sent.
    fn place<'a>(&self, model: &'a OnnxModel) -> Result<Vec<(Weight<'a>, u64)>, InferenceError> {
        let fail = |e| driver(DOING, e);
        self.context.bind_to_thread().map_err(fail)?;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut missing = Vec::new();
        let mut placed = Vec::new();
        let mut bytes = 0;
        for weight in model.weights() {
            let key = Key::of(&weight);
            match state.places.get(&key) {
                Some(&address) => placed.push((weight, address)),
                None => {
                    missing.push((key, weight, bytes));
                    bytes += weight.bytes.len().next_multiple_of(ALIGNMENT);
                }
            }
        }
        if bytes > 0 {
            // SAFETY: the context is current; freed when all sessions are gone.
            let block = unsafe { result::malloc_sync(bytes) }.map_err(fail)?;
            state.blocks.push(block);
            state.bytes += bytes as u64;
            for (key, weight, offset) in missing {
                let address = block + offset as u64;
                // SAFETY: the block has room for these bytes there, and nobody reads them yet.
                unsafe { result::memcpy_htod_sync(address, weight.bytes) }.map_err(fail)?;
                state.places.insert(key, address);
                placed.push((weight, address));
            }
        }
        Ok(placed)
    }
}

impl Drop for SharedWeights {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_err() {
            return;
        }
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        for block in state.blocks.drain(..) {
            // SAFETY: allocated above, freed once; no session is left. A failure leaves it to the process.
            let _ = unsafe { result::free_sync(block) };
        }
    }
}

/// A weight as ONNX Runtime has it.
struct Value(NonNull<ort::sys::OrtValue>);

// SAFETY: nobody changes what it says, and ONNX Runtime lets it be released on any thread.
unsafe impl Send for Value {}

impl Value {
    fn new(weight: &Weight<'_>, address: u64) -> ort::Result<Self> {
        use ort::sys::ONNXTensorElementDataType as Type;
        let (device, kind) = (AllocationDevice::CUDA, AllocatorType::Device);
        let info = MemoryInfo::new(device, 0, kind, MemoryType::Default)?;
        let shape: Vec<i64> = weight.shape.iter().map(|&n| n as i64).collect();
        let kind = match weight.half {
            true => Type::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16,
            false => Type::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT,
        };
        let mut value = std::ptr::null_mut();
        // SAFETY: so many bytes lie at the address on the device, for as long as this is alive.
        unsafe {
            let status = (ort::api().CreateTensorWithDataAsOrtValue)(
                info.ptr(),
                address as *mut c_void,
                weight.bytes.len(),
                shape.as_ptr(),
                shape.len(),
                kind,
                &mut value,
            );
            ort::Error::result_from_status(status)?;
        }
        let value = NonNull::new(value).ok_or_else(|| ort::Error::new("no tensor was made"))?;
        Ok(Self(value))
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        // SAFETY: made above, released once.
        unsafe { (ort::api().ReleaseValue)(self.0.as_ptr()) };
    }
}

impl std::fmt::Debug for Borrowed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} weights", self.values.len())
    }
}
