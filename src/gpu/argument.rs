//! Values that kernels take.

use half::f16;
use std::ffi::c_void;

/// A value that can be passed to a kernel.
///
/// # Safety
/// The type must have the layout of the kernel's parameter: a scalar, or `#[repr(C)]` matching the
/// struct in the `.cu` file.
pub unsafe trait KernelArgument: Copy {}

macro_rules! arguments {
    ($($scalar:ty)*) => {$(
        // SAFETY: a scalar of the same size and representation on both sides.
        unsafe impl KernelArgument for $scalar {}
    )*};
}
arguments!(u8 u16 u32 u64 i8 i16 i32 i64 f32 f64 f16 bool);

// SAFETY: elements are contiguous without padding on both sides.
unsafe impl<T: KernelArgument, const N: usize> KernelArgument for [T; N] {}

/// The arguments of a launch, as a tuple.
pub trait Arguments {
    /// Size of each argument in bytes.
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
