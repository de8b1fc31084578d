//! Versions of TensorRT.

use serde::{Deserialize, Serialize};
use std::fmt;
use trtx::trtx_sys;

/// A version of TensorRT.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "[u32; 3]", from = "[u32; 3]")]
pub struct Version {
    pub major: u32,
    pub minor: u32,
    pub patch: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl From<[u32; 3]> for Version {
    fn from([major, minor, patch]: [u32; 3]) -> Self {
        Self {
            major,
            minor,
            patch,
        }
    }
}

impl From<Version> for [u32; 3] {
    fn from(version: Version) -> Self {
        [version.major, version.minor, version.patch]
    }
}

impl Version {
    /// Version of the interface that this program was built for.
    pub fn of_interface() -> Self {
        // SAFETY: these functions return constants from the headers.
        unsafe {
            Self {
                major: trtx_sys::get_tensorrt_major_version(),
                minor: trtx_sys::get_tensorrt_minor_version(),
                patch: trtx_sys::get_tensorrt_patch_version(),
            }
        }
    }

    /// Whether a library of this version provides everything that a program built for `interface`
    /// calls: within a major version, functions are only added.
    pub(super) fn serves(self, interface: Self) -> bool {
        self.major == interface.major && self.minor >= interface.minor
    }
}
