//! Shares weights on the GPU between sessions.

use super::error::failure;
use crate::gpu::plan::Group;
use crate::gpu::{Carving, Context, CudaError, DeviceBuffer, Priority, Stream};
use crate::inference::InferenceError;
use crate::network::onnx::{OnnxModel, Weight};
use ort::AsPointer;
use ort::memory::{AllocationDevice, AllocatorType, MemoryInfo, MemoryType};
use ort::session::builder::SessionBuilder;
use rustc_hash::{FxHashMap, FxHasher};
use std::ffi::{CString, c_void};
use std::hash::Hasher;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

const DOING: &str = "placing the weights on the GPU";

/// Weights used by all sessions.
pub(super) struct SharedWeights {
    /// Stream for uploads.
    stream: Stream,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    bytes: u64,
    places: FxHashMap<Key, DeviceBuffer<u8>>,
}

/// Identifies a weight by name, type and hash of its values. (Position tables have the same name
/// for several batch sizes.)
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

/// The shared weights used by a session; must outlive it.
pub(super) struct Borrowed {
    values: Vec<Value>,
    _weights: Arc<SharedWeights>,
}

impl SharedWeights {
    pub(super) fn new(context: &Context) -> Result<Self, InferenceError> {
        Ok(Self {
            stream: context.stream(Priority::Low)?,
            state: Mutex::default(),
        })
    }

    /// Total size in bytes.
    pub(super) fn bytes(&self) -> u64 {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.bytes
    }

    /// Makes the session built by `builder` for `model` use these weights. Weights that the library
    /// transforms are stored by the library itself.
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
            // SAFETY: all three are alive; the value lives as long as the session.
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

    /// Addresses of the weights of `model`; missing ones are uploaded.
    fn place<'a>(&self, model: &'a OnnxModel) -> Result<Vec<(Weight<'a>, u64)>, InferenceError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut placed = Vec::new();
        let mut missing = Vec::new();
        for weight in model.weights() {
            let key = Key::of(&weight);
            match state.places.get(&key) {
                Some(buffer) => placed.push((weight, buffer.all().address())),
                None => missing.push((key, weight)),
            }
        }
        let carve = |carving: &mut Carving<'_>| {
            let mut part = carving.part(Group::Network, "weights");
            let weights = missing.iter();
            let buffers = weights.map(|(_, weight)| part.device("weight", &[weight.bytes.len()]));
            buffers.collect::<Result<Vec<DeviceBuffer<u8>>, CudaError>>()
        };
        let mut paper = Carving::on_paper();
        carve(&mut paper)?;
        let plan = paper.into_plan();
        if plan.device_bytes() > 0 {
            let buffers = carve(&mut Carving::planned(self.stream.context(), &plan)?)?;
            state.bytes += plan.device_bytes();
            for ((key, weight), buffer) in missing.into_iter().zip(buffers) {
                self.stream.write(weight.bytes, buffer.all())?;
                placed.push((weight, buffer.all().address()));
                state.places.insert(key, buffer);
            }
        }
        Ok(placed)
    }
}

/// A weight as an ONNX Runtime value.
struct Value(NonNull<ort::sys::OrtValue>);

// SAFETY: it is immutable, and ONNX Runtime allows it to be released on any thread.
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
        // SAFETY: the address refers to this many bytes on the device for as long as this value
        // lives.
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
        // SAFETY: created above and released once.
        unsafe { (ort::api().ReleaseValue)(self.0.as_ptr()) };
    }
}

impl std::fmt::Debug for Borrowed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} weights", self.values.len())
    }
}
