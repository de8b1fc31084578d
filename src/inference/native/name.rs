//! Names of kernels that there are for each kind of 16-bit numbers.

use crate::gpu::Half;

/// A kernel's name for each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Name {
    pub(super) f16: &'static str,
    pub(super) bf16: &'static str,
}

impl Name {
    /// The kernel for numbers of this kind.
    pub const fn of(self, half: Half) -> &'static str {
        match half {
            Half::F16 => self.f16,
            Half::Bf16 => self.bf16,
        }
    }
}

/// The names that begin with this, as the `.cu` files make them.
macro_rules! name {
    ($stem:literal) => {
        $crate::inference::native::name::Name {
            f16: concat!($stem, "_f16"),
            bf16: concat!($stem, "_bf16"),
        }
    };
}
pub(super) use name;
