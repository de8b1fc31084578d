//! Kernels: found by name, launched with arguments whose sizes are checked.

use super::error::{During, status};
use super::{Context, CudaError, Stream};
use cudarc::driver::sys::{self, CUfunction_attribute, CUresult};
use cudarc::driver::{CudaContext, DriverError, result};
use half::f16;
use std::ffi::{CString, c_void};
use std::sync::Arc;

/// One loaded fat binary.
pub(super) struct Module {
    handle: sys::CUmodule,
    driver: Arc<CudaContext>,
}

// SAFETY: a module is a handle; the driver's functions on it may be called from any thread.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    pub(super) fn load(
        driver: &Arc<CudaContext>,
        name: &'static str,
        image: &'static [u8],
    ) -> Result<Self, CudaError> {
        driver
            .bind_to_thread()
            .during("making the context current")?;
        tracing::debug!("loading kernels/{name}.cu, {} bytes", image.len());
        // SAFETY: the image is a whole fat binary, embedded by the build, with 16-byte alignment.
        let handle = unsafe { result::module::load_data(image.as_ptr().cast()) }
            .during("loading the kernels")?;
        Ok(Self {
            handle,
            driver: driver.clone(),
        })
    }

    /// The function of this name, if the module has it.
    pub(super) fn function(&self, name: &str) -> Result<Option<sys::CUfunction>, CudaError> {
        let no_kernel = |_| CudaError::NoKernel { name: name.into() };
        let c_name = CString::new(name).map_err(no_kernel)?;
        self.driver
            .bind_to_thread()
            .during("making the context current")?;
        // SAFETY: the module is loaded, and the name ends in a zero byte.
        match unsafe { result::module::get_function(self.handle, c_name) } {
            Err(DriverError(CUresult::CUDA_ERROR_NOT_FOUND)) => Ok(None),
            other => other.during("looking up a kernel").map(Some),
        }
    }

    /// Whether the driver took machine code of one of the `targets` rather than compile PTX.
    pub(super) fn is_machine_code(&self, targets: &[&str]) -> Result<bool, CudaError> {
        let mut count = 0;
        // SAFETY: the module is loaded, and the call writes one integer.
        unsafe { sys::cuModuleGetFunctionCount(&mut count, self.handle) }
            .result()
            .during("counting kernels")?;
        if count == 0 {
            return Ok(true);
        }
        let mut function = std::ptr::null_mut();
        // SAFETY: the module has at least the one function that is written here.
        unsafe { sys::cuModuleEnumerateFunctions(&mut function, 1, self.handle) }
            .result()
            .during("listing kernels")?;
        // SAFETY: the function belongs to a module of this context.
        unsafe { sys::cuFuncLoad(function) }
            .result()
            .during("loading a kernel")?;
        let version = attribute(
            function,
            CUfunction_attribute::CU_FUNC_ATTRIBUTE_BINARY_VERSION,
        )?;
        Ok(targets.contains(&format!("sm_{version}").as_str()))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // Nobody is left to be told of a failure, and the memory goes with the context.
        let _ = self.driver.bind_to_thread();
        // SAFETY: kernels hold the context, and with it the module, so none is left.
        let _ = unsafe { result::module::unload(self.handle) };
    }
}

/// How many threads a kernel runs with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// Blocks in x, y, z.
    pub blocks: (u32, u32, u32),
    /// Threads of a block in x, y, z.
    pub threads: (u32, u32, u32),
    /// Dynamic shared memory of a block, bytes. Above 48 KiB see [`Kernel::allow_shared_bytes`].
    pub shared_bytes: u32,
}

impl Grid {
    /// At least one thread for each of `n` elements, `threads` a block. At least one block: a launch
    /// of nothing is an error to the driver.
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

    /// With this much dynamic shared memory a block.
    pub fn shared(self, bytes: u32) -> Self {
        Self {
            shared_bytes: bytes,
            ..self
        }
    }
}

/// A value that can be handed to a kernel.
///
/// # Safety
/// The type has the layout of the kernel's parameter: a scalar, or `#[repr(C)]` as the struct in
/// the `.cu` file.
pub unsafe trait KernelArgument: Copy {}

macro_rules! arguments {
    ($($scalar:ty)*) => {$(
        // SAFETY: a scalar of the same size and representation on both sides.
        unsafe impl KernelArgument for $scalar {}
    )*};
}
arguments!(u8 u16 u32 u64 i8 i16 i32 i64 f32 f64 f16 bool);

// SAFETY: elements follow each other without padding on both sides.
unsafe impl<T: KernelArgument, const N: usize> KernelArgument for [T; N] {}

/// The arguments of a launch: a tuple.
pub trait Arguments {
    /// Bytes of each.
    const SIZES: &'static [usize];
    /// Calls `f` with a pointer to each value.
    fn with_pointers<R>(self, f: impl FnOnce(&mut [*mut c_void]) -> R) -> R;
}

macro_rules! tuples {
    ($($name:ident)*) => {
        impl<$($name: KernelArgument),*> Arguments for ($($name,)*) {
            const SIZES: &'static [usize] = &[$(size_of::<$name>()),*];
            #[allow(non_snake_case)]
            fn with_pointers<Out>(self, f: impl FnOnce(&mut [*mut c_void]) -> Out) -> Out {
                let ($($name,)*) = self;
                f(&mut [$((&raw const $name).cast_mut().cast()),*])
            }
        }
    };
}
tuples!(A);
tuples!(A B);
tuples!(A B C);
tuples!(A B C D);
tuples!(A B C D E);
tuples!(A B C D E F);
tuples!(A B C D E F G);
tuples!(A B C D E F G H);
tuples!(A B C D E F G H I);
tuples!(A B C D E F G H I J);
tuples!(A B C D E F G H I J K);
tuples!(A B C D E F G H I J K L);
tuples!(A B C D E F G H I J K L M);
tuples!(A B C D E F G H I J K L M N);
tuples!(A B C D E F G H I J K L M N O);
tuples!(A B C D E F G H I J K L M N O P);
tuples!(A B C D E F G H I J K L M N O P Q);
tuples!(A B C D E F G H I J K L M N O P Q R);
tuples!(A B C D E F G H I J K L M N O P Q R S);
tuples!(A B C D E F G H I J K L M N O P Q R S T);

/// Either kind of launch: function, blocks, threads, shared bytes, stream, arguments.
type Call = unsafe fn(
    sys::CUfunction,
    (u32, u32, u32),
    (u32, u32, u32),
    u32,
    sys::CUstream,
    &mut [*mut c_void],
) -> Result<(), DriverError>;

/// A kernel on the GPU.
#[derive(Debug, Clone)]
pub struct Kernel {
    name: &'static str,
    function: sys::CUfunction,
    /// Bytes of each parameter.
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
        // Loaded lazily, the first launch would allocate, which a graph's capture does not allow.
        // SAFETY: the function belongs to a module of this context.
        unsafe { sys::cuFuncLoad(function) }
            .result()
            .during("loading a kernel")?;
        let mut parameters = Vec::new();
        loop {
            let (mut offset, mut bytes) = (0, 0);
            // SAFETY: the function is loaded; the call writes two integers, and beyond the last
            // parameter it says that the value is invalid.
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

    /// Lets a block have this much dynamic shared memory; 48 KiB need no asking.
    pub fn allow_shared_bytes(&self, bytes: u32) -> Result<(), CudaError> {
        let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
        let which = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        self.context.bind()?;
        // SAFETY: the function is loaded.
        unsafe { result::function::set_function_attribute(self.function, which, bytes) }
            .during("asking for shared memory")
    }

    /// Registers of a thread.
    pub fn registers(&self) -> Result<i32, CudaError> {
        attribute(
            self.function,
            CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS,
        )
    }

    /// Blocks of this shape that the whole GPU holds at the same time: the largest grid of a
    /// cooperative launch.
    pub fn resident_blocks(&self, threads: u32, shared_bytes: u32) -> Result<u32, CudaError> {
        self.context.bind()?;
        let threads = i32::try_from(threads).unwrap_or(i32::MAX);
        // SAFETY: the function is loaded.
        let each = unsafe {
            result::occupancy::max_active_block_per_multiprocessor(
                self.function,
                threads,
                shared_bytes as usize,
            )
        }
        .during("asking how many blocks fit")?;
        Ok(u32::try_from(each).unwrap_or(0) * self.context.info().multiprocessors)
    }

    /// Launches on `stream`, and checks that the launch was accepted.
    ///
    /// # Safety
    /// The arguments are what the kernel expects: pointers to at least as many elements, of those
    /// types, as it touches, which stay allocated until it has run, and which no other stream
    /// touches at the same time.
    pub unsafe fn launch<A: Arguments>(
        &self,
        stream: &Stream,
        grid: Grid,
        arguments: A,
    ) -> Result<(), CudaError> {
        // SAFETY: the caller's promise.
        unsafe { self.start(stream, grid, arguments, result::launch_kernel) }
    }

    /// As [`Kernel::launch`], with all blocks on the GPU at the same time, so that they can wait for
    /// each other (`cooperative_groups::grid_group::sync`).
    ///
    /// # Safety
    /// As for [`Kernel::launch`].
    pub unsafe fn launch_cooperative<A: Arguments>(
        &self,
        stream: &Stream,
        grid: Grid,
        arguments: A,
    ) -> Result<(), CudaError> {
        // SAFETY: the caller's promise.
        unsafe { self.start(stream, grid, arguments, result::launch_cooperative_kernel) }
    }

    unsafe fn start<A: Arguments>(
        &self,
        stream: &Stream,
        grid: Grid,
        arguments: A,
        call: Call,
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
                // SAFETY: function and stream are alive, there is a pointer to a value of the right
                // size for each parameter, and what the values point to is the caller's promise.
                unsafe {
                    call(
                        self.function,
                        grid.blocks,
                        grid.threads,
                        grid.shared_bytes,
                        stream.handle(),
                        pointers,
                    )
                }
            })
            .map_err(|error| CudaError::Launch {
                kernel: self.name,
                code: error.0 as u32,
                status: status(error),
            })
    }
}

fn attribute(function: sys::CUfunction, which: CUfunction_attribute) -> Result<i32, CudaError> {
    // SAFETY: the function belongs to a loaded module.
    unsafe { result::function::get_function_attribute(function, which) }
        .during("asking about a kernel")
}
