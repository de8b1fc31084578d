//! What a GPU and a TensorRT can do for each other.

use super::error::TensorRtError;
use super::target::{Flavour, Target};
use crate::network::onnx::Precision;

impl Target {
    /// The first architecture with tensor cores for this precision: Turing, Ampere, Ada.
    pub fn first_with(precision: Precision) -> Self {
        match precision {
            Precision::F32 | Precision::F16 => Self::new(7, 5),
            Precision::Bf16 => Self::new(8, 0),
            Precision::Fp8 => Self::new(8, 9),
        }
    }

    /// Rejects a precision that the GPU does not support.
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

impl Flavour {
    /// Rejects targets that cannot be built for; `here` is this machine's GPU, if any.
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

#[cfg(test)]
mod tests {
    use super::*;

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
