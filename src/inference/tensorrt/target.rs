//! Target GPUs of engines.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A GPU architecture by its compute capability, written `sm_120`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Target {
    pub major: u32,
    pub minor: u32,
}

impl Target {
    /// From a compute capability as returned by the driver.
    pub const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }

    /// The number in the name, for example 120 for `sm_120`.
    pub const fn number(self) -> u32 {
        self.major * 10 + self.minor
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}", self.number())
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = text.strip_prefix("sm_").unwrap_or(text);
        match number.parse::<u32>() {
            // No supported GPU is outside this range.
            Ok(n @ 50..=999) if number.bytes().all(|b| b.is_ascii_digit()) => {
                Ok(Self::new(n / 10, n % 10))
            }
            _ => Err(format!(
                "{text:?} is not a GPU architecture; expected a name such as sm_120"
            )),
        }
    }
}

impl TryFrom<String> for Target {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Target> for String {
    fn from(target: Target) -> Self {
        target.to_string()
    }
}

/// The two TensorRT libraries, whose engines are incompatible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Flavour {
    /// TensorRT for RTX: GeForce and RTX GPUs. Builds without a GPU; kernels are compiled when an
    /// engine first runs.
    Rtx,
    /// TensorRT: Jetson and data-centre GPUs. Builds on the target GPU by timing kernels.
    Enterprise,
}

impl Flavour {
    /// The library that this program was built for.
    pub const HERE: Self = if cfg!(feature = "tensorrt-enterprise") {
        Self::Enterprise
    } else {
        Self::Rtx
    };

    /// The name used in manifests and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rtx => "TensorRT-RTX",
            Self::Enterprise => "TensorRT",
        }
    }

    /// A short name for file names.
    pub fn tag(self) -> &'static str {
        match self {
            Self::Rtx => "rtx",
            Self::Enterprise => "trt",
        }
    }

    /// Possible targets. Empty: only the GPU of the building machine.
    pub fn targets(self) -> &'static [Target] {
        /// `ComputeCapability` of TensorRT-RTX 1.7.
        const RTX: [Target; 6] = [
            Target::new(7, 5),
            Target::new(8, 0),
            Target::new(8, 6),
            Target::new(8, 9),
            Target::new(12, 0),
            Target::new(12, 1),
        ];
        match self {
            Self::Rtx => &RTX,
            Self::Enterprise => &[],
        }
    }
}

/// Formats a list for messages: `sm_75, sm_80`.
pub fn list(targets: &[Target]) -> String {
    let names: Vec<String> = targets.iter().map(Target::to_string).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_as_nvcc_writes_them() {
        assert_eq!("sm_120".parse(), Ok(Target::new(12, 0)));
        assert_eq!("sm_87".parse(), Ok(Target::new(8, 7)));
        assert_eq!("110".parse(), Ok(Target::new(11, 0)));
        assert_eq!(Target::new(12, 1).to_string(), "sm_121");
        for text in ["", "sm_", "sm_12x", "sm_7", "sm_1200", "sm_+120", "turing"] {
            assert!(text.parse::<Target>().is_err(), "{text}");
        }
    }
}
