//! Kernels: looked up by name and launched with size-checked arguments.

use super::argument::Arguments;
use super::error::{During, status};
use super::module::attribute;
use super::{Context, CudaError, Stream};
use cudarc::driver::sys::{self, CUfunction_attribute, CUresult};
use cudarc::driver::{DriverError, result};
use std::ffi::c_void;
use std::sync::Arc;

/// Launch configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// Blocks in x, y, z.
    pub blocks: (u32, u32, u32),
    /// Threads of a block in x, y, z.
    pub threads: (u32, u32, u32),
    /// Dynamic shared memory per block in bytes. For more than 48 KiB see
    /// [`Kernel::allow_shared_bytes`].
    pub shared_bytes: u32,
}

impl Grid {
    /// At least one thread for each of `n` elements, with `threads` per block, and at least one
    /// block: the driver rejects an empty launch.
    pub fn over(n: usize, threads: u32) -> Self {
        let blocks = n.div_ceil(threads.max(1) as usize).max(1);
        Self::blocks(u32::try_from(blocks).unwrap_or(u32::MAX), threads)
    }

    /// `blocks` blocks of `threads` threads.
    pub fn blocks(blocks: u32, threads: u32) -> Self {
        Self {
            blocks: (blocks, 1, 1),
            threads: (threads, 1, 1),
            shared_bytes: 0,
        }
    }

    /// Sets the dynamic shared memory per block.
    pub fn shared(self, bytes: u32) -> Self {
        Self {
            shared_bytes: bytes,
            ..self
        }
    }
}

/// What a launch has beside its [`Grid`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extras {
    /// Blocks of a cluster in x, y, z; compute capability 9.0 and newer.
    pub cluster: (u32, u32, u32),
    /// The kernel may start before the launch ahead of it in the stream is done: it waits itself
    /// (`griddepcontrol.wait`) before it touches what other launches write or read.
    pub early: bool,
}

impl Extras {
    /// No clusters; the launch waits for the one ahead of it.
    pub const NONE: Self = Self {
        cluster: (1, 1, 1),
        early: false,
    };
}

impl Extras {
    /// The driver's attributes, of which the first so many count.
    fn attributes(self) -> ([sys::CUlaunchAttribute; 2], u32) {
        let attribute = |id, value| sys::CUlaunchAttribute {
            id,
            pad: [0; 4],
            value,
        };
        let (x, y, z) = self.cluster;
        let mut value = sys::CUlaunchAttributeValue { pad: [0; 64] };
        value.clusterDim = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x, y, z };
        let cluster = attribute(
            sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
            value,
        );
        let mut value = sys::CUlaunchAttributeValue { pad: [0; 64] };
        value.programmaticStreamSerializationAllowed = 1;
        let early = attribute(
            sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            value,
        );
        match (self.cluster != (1, 1, 1), self.early) {
            (true, true) => ([cluster, early], 2),
            (true, false) => ([cluster, early], 1),
            (false, early_too) => ([early, cluster], u32::from(early_too)),
        }
    }
}

/// A kernel loaded on the GPU.
#[derive(Debug, Clone)]
pub struct Kernel {
    name: &'static str,
    function: sys::CUfunction,
    /// Size of each parameter in bytes.
    parameters: Arc<[usize]>,
    /// Keeps the module loaded.
    context: Context,
}

// SAFETY: a function is a handle; the driver's functions on it may be called from any thread.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

impl Kernel {
    pub(super) fn new(
        context: &Context,
        name: &'static str,
        function: sys::CUfunction,
    ) -> Result<Self, CudaError> {
        context.bind()?;
        // With lazy loading, the first launch would allocate memory, which graph capture does not
        // allow.
        // SAFETY: the function belongs to a module of this context.
        unsafe { sys::cuFuncLoad(function) }
            .result()
            .during("loading a kernel")?;
        let mut parameters = Vec::new();
        loop {
            let (mut offset, mut bytes) = (0, 0);
            // SAFETY: the function is loaded; the call writes two integers, and returns an
            // invalid-value error beyond the last parameter.
            let found = unsafe {
                sys::cuFuncGetParamInfo(function, parameters.len(), &mut offset, &mut bytes)
            };
            match found.result() {
                Err(DriverError(CUresult::CUDA_ERROR_INVALID_VALUE)) => break,
                other => other.during("asking a kernel's parameters")?,
            }
            parameters.push(bytes);
        }
        Ok(Self {
            name,
            function,
            parameters: parameters.into(),
            context: context.clone(),
        })
    }

    /// Its name in the `.cu` file.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Allows this much dynamic shared memory per block; not needed up to 48 KiB.
    pub fn allow_shared_bytes(&self, bytes: u32) -> Result<(), CudaError> {
        let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
        let which = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        self.context.bind()?;
        // SAFETY: the function is loaded.
        unsafe { result::function::set_function_attribute(self.function, which, bytes) }
            .during("asking for shared memory")
    }

    /// Asks for as much of a multiprocessor's memory as shared memory as there is, whatever ran there before:
    /// for kernels whose blocks wait for each other, so that all of them find room.
    pub fn prefer_shared_memory(&self) -> Result<(), CudaError> {
        let which = CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
        self.context.bind()?;
        // SAFETY: the function is loaded; 100 is the highest percentage.
        unsafe { result::function::set_function_attribute(self.function, which, 100) }
            .during("preferring shared memory")
    }

    /// Registers per thread.
    pub fn registers(&self) -> Result<i32, CudaError> {
        attribute(
            self.function,
            CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS,
        )
    }

    /// Launches on `stream` and checks that the launch was accepted.
    ///
    /// # Safety
    /// The arguments must be what the kernel expects: pointers to at least as many elements of the
    /// right types as it accesses, which stay allocated until it has run and which no other stream
    /// accesses meanwhile.
    pub unsafe fn launch<A: Arguments>(
        &self,
        stream: &Stream,
        grid: Grid,
        arguments: A,
    ) -> Result<(), CudaError> {
        let call = |function, blocks, threads, shared, stream, pointers: &mut [*mut c_void]| {
            // SAFETY: see `start`.
            unsafe { result::launch_kernel(function, blocks, threads, shared, stream, pointers) }
        };
        // SAFETY: guaranteed by the caller.
        unsafe { self.start(stream, grid, arguments, call) }
    }

    /// Like [`Kernel::launch`], with all blocks resident simultaneously, so that they can
    /// synchronise with each other (`cooperative_groups::grid_group::sync`).
    ///
    /// # Safety
    /// See [`Kernel::launch`].
    pub unsafe fn launch_cooperative<A: Arguments>(
        &self,
        stream: &Stream,
        grid: Grid,
        arguments: A,
    ) -> Result<(), CudaError> {
        let call = |function, blocks, threads, shared, stream, pointers: &mut [*mut c_void]| {
            // SAFETY: see `start`.
            unsafe {
                result::launch_cooperative_kernel(
                    function, blocks, threads, shared, stream, pointers,
                )
            }
        };
        // SAFETY: the caller's promise.
        unsafe { self.start(stream, grid, arguments, call) }
    }

    /// Like [`Kernel::launch`], with `extras`.
    ///
    /// # Safety
    /// See [`Kernel::launch`]; a kernel that starts early waits as [`Extras::early`] says.
    pub unsafe fn launch_with<A: Arguments>(
        &self,
        stream: &Stream,
        grid: Grid,
        extras: Extras,
        arguments: A,
    ) -> Result<(), CudaError> {
        let call = |function,
                    blocks: (u32, u32, u32),
                    threads: (u32, u32, u32),
                    shared_bytes,
                    stream,
                    pointers: &mut [*mut c_void]| {
            let (mut attributes, count) = extras.attributes();
            let config = sys::CUlaunchConfig {
                gridDimX: blocks.0,
                gridDimY: blocks.1,
                gridDimZ: blocks.2,
                blockDimX: threads.0,
                blockDimY: threads.1,
                blockDimZ: threads.2,
                sharedMemBytes: shared_bytes,
                hStream: stream,
                attrs: attributes.as_mut_ptr(),
                numAttrs: count,
            };
            // SAFETY: the configuration and its `count` attributes live until the call returns; for the rest see
            // `start`.
            unsafe {
                sys::cuLaunchKernelEx(
                    &config,
                    function,
                    pointers.as_mut_ptr(),
                    std::ptr::null_mut(),
                )
            }
            .result()
        };
        // SAFETY: the caller's promise.
        unsafe { self.start(stream, grid, arguments, call) }
    }

    unsafe fn start<A: Arguments>(
        &self,
        stream: &Stream,
        grid: Grid,
        arguments: A,
        call: impl FnOnce(
            sys::CUfunction,
            (u32, u32, u32),
            (u32, u32, u32),
            u32,
            sys::CUstream,
            &mut [*mut c_void],
        ) -> Result<(), DriverError>,
    ) -> Result<(), CudaError> {
        if *self.parameters != *A::SIZES {
            return Err(CudaError::Arguments {
                kernel: self.name,
                expected: self.parameters.to_vec(),
                found: A::SIZES.to_vec(),
            });
        }
        self.context.bind()?;
        arguments
            .with_pointers(|pointers| {
                // Function and stream are alive, each parameter has a pointer to a value of the right size, and the
                // caller guarantees what the values point to.
                call(
                    self.function,
                    grid.blocks,
                    grid.threads,
                    grid.shared_bytes,
                    stream.handle(),
                    pointers,
                )
            })
            .map_err(|error| CudaError::Launch {
                kernel: self.name,
                code: error.0 as u32,
                status: status(error),
            })
    }
}

impl Context {
    /// Looks up a kernel by name. Call at start-up: the kernel is loaded onto the GPU.
    pub fn kernel(&self, name: &'static str) -> Result<Kernel, CudaError> {
        Kernel::new(self, name, self.function(name)?)
    }
}
