//! Which GPUs an engine is for.

use super::TensorRtError;
use crate::network::onnx::Precision;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A GPU architecture by its compute capability, written `sm_120`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Target {
    /// 12 of 12.0.
    pub major: u32,
    /// 0 of 12.0.
    pub minor: u32,
}

impl Target {
    /// Of a compute capability as the driver gives it.
    pub const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }

    /// 120 of `sm_120`.
    pub const fn number(self) -> u32 {
        self.major * 10 + self.minor
    }

    /// The first GPUs whose tensor cores multiply such numbers: Turing, Ampere, Ada.
    pub fn first_with(precision: Precision) -> Self {
        match precision {
            Precision::F32 | Precision::F16 => Self::new(7, 5),
            Precision::Bf16 => Self::new(8, 0),
            Precision::Fp8 => Self::new(8, 9),
        }
    }

    /// Refuses numbers that the GPU has not.
    pub fn check(self, precision: Precision) -> Result<(), TensorRtError> {
        let since = Self::first_with(precision);
        if self >= since {
            return Ok(());
        }
        Err(TensorRtError::Numbers {
            target: self,
            precision,
            since,
        })
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
            // No GPU that this program runs on lies outside.
            Ok(n @ 50..=999) if number.bytes().all(|b| b.is_ascii_digit()) => {
                Ok(Self::new(n / 10, n % 10))
            }
            _ => Err(format!("{text:?} is no GPU architecture; write sm_120")),
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

/// The two TensorRTs: another library, other engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Flavour {
    /// TensorRT for RTX: GeForce and RTX GPUs. Builds without a GPU; kernels are compiled when an engine is
    /// first run.
    Rtx,
    /// TensorRT: Jetson and data-centre GPUs. Builds on the GPU that the engine is for, by timing.
    Enterprise,
}

impl Flavour {
    /// The one that this program was built for.
    pub const HERE: Self = if cfg!(feature = "tensorrt-enterprise") {
        Self::Enterprise
    } else {
        Self::Rtx
    };

    /// As it is written in manifests and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rtx => "TensorRT-RTX",
            Self::Enterprise => "TensorRT",
        }
    }

    /// Short, for file names.
    pub fn tag(self) -> &'static str {
        match self {
            Self::Rtx => "rtx",
            Self::Enterprise => "trt",
        }
    }

    /// What engines can be built for. Empty: only for the GPU of the machine that builds.
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

    /// Refuses targets that it cannot build for; `here` is the GPU of this machine, if there is one.
    pub fn check_targets(
        self,
        targets: &[Target],
        here: Option<Target>,
    ) -> Result<(), TensorRtError> {
        for &target in targets {
            let builds = match self.targets() {
                [] => here == Some(target),
                list => list.contains(&target),
            };
            if !builds {
                return Err(TensorRtError::Target {
                    flavour: self,
                    asked: target,
                    here,
                });
            }
        }
        Ok(())
    }
}

/// A list for messages: `sm_75, sm_80`.
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

    #[test]
    fn numbers_that_a_gpu_has_not_are_refused() {
        let (turing, orin, ada, thor) = (
            Target::new(7, 5),
            Target::new(8, 7),
            Target::new(8, 9),
            Target::new(11, 0),
        );
        for (target, fp16, bf16, fp8) in [
            (turing, true, false, false),
            (orin, true, true, false),
            (ada, true, true, true),
            (thor, true, true, true),
        ] {
            let found = [Precision::F16, Precision::Bf16, Precision::Fp8];
            let found = found.map(|precision| target.check(precision).is_ok());
            assert_eq!(found, [fp16, bf16, fp8], "{target}");
        }
        let message = orin.check(Precision::Fp8).unwrap_err().to_string();
        for part in ["sm_87", "fp8", "sm_89", "--precision fp16"] {
            assert!(message.contains(part), "{part:?} is not in {message}");
        }
    }

    #[test]
    fn a_target_that_cannot_be_built_is_refused_with_the_list() {
        let rtx = Flavour::Rtx;
        assert!(rtx.check_targets(&[Target::new(12, 0)], None).is_ok());
        let both = [Target::new(12, 0), Target::new(8, 7)];
        let message = rtx.check_targets(&both, None).unwrap_err().to_string();
        for part in ["sm_87", "sm_75, sm_80", "sm_121", "tensorrt-enterprise"] {
            assert!(message.contains(part), "{part:?} is not in {message}");
        }

        let jetson = Flavour::Enterprise;
        let orin = Target::new(8, 7);
        assert!(jetson.check_targets(&[orin], Some(orin)).is_ok());
        for here in [None, Some(Target::new(11, 0))] {
            let message = jetson.check_targets(&[orin], here).unwrap_err().to_string();
            assert!(message.contains("sm_87"), "{message}");
            assert_eq!(message.contains("sm_110"), here.is_some(), "{message}");
        }
    }
}
