//! GPU memory plan of a run, computed from the configuration.

use super::buffers::Buffers;
use super::inputs::PlanInputs;
use crate::compute::cuda::preprocess::PreprocessError;
use crate::config::{DeviceConfig, Loops};
use crate::gpu::Carving;
use crate::gpu::plan::{DoesNotFit, Knob, MemoryPlan, Saving, savings};

impl PlanInputs<'_> {
    /// The memory plan of a run.
    ///
    /// # Errors
    /// If the encoding does not fit the camera's images, or sizes of place recognition are invalid.
    pub fn plan(&self) -> Result<MemoryPlan, PreprocessError> {
        let mut carving = Carving::on_paper();
        Buffers::carve(&mut carving, self)?;
        Ok(carving.into_plan())
    }

    /// The plan, if its device memory is at most `available`; otherwise an error with the parameters to lower.
    ///
    /// # Errors
    /// See [`PlanInputs::plan`]; [`DoesNotFit`] if the memory is insufficient.
    pub fn fitting(
        &self,
        available: u64,
    ) -> Result<Result<MemoryPlan, DoesNotFit>, PreprocessError> {
        let plan = self.plan()?;
        let needed = plan.device_bytes();
        if needed <= available {
            return Ok(Ok(plan));
        }
        let bytes = |config: &DeviceConfig| {
            let edge_batch = self.edge_batch.min(config.memory.edge_batch);
            let other = PlanInputs {
                config,
                edge_batch,
                ..*self
            };
            other.plan().map_or(u64::MAX, |plan| plan.device_bytes())
        };
        Ok(Err(DoesNotFit {
            needed,
            available,
            savings: lower(self.config, bytes),
        }))
    }
}

/// Parameters that can be lowered and the bytes that each saves; `bytes` returns the size of the plan of
/// a configuration.
pub fn lower(config: &DeviceConfig, bytes: impl Fn(&DeviceConfig) -> u64) -> Vec<Saving> {
    savings(config, KNOBS, bytes)
}

/// Parameters of the configuration that determine the size of the plan.
const KNOBS: &[Knob<DeviceConfig>] = &[
    Knob {
        parameter: "memory.keyframe_slots",
        value: |c| c.memory.keyframe_slots.to_string(),
        lower: |c| halve(&mut c.memory.keyframe_slots, 8),
    },
    Knob {
        parameter: "memory.edges",
        value: |c| c.memory.edges.to_string(),
        lower: |c| halve(&mut c.memory.edges, 16),
    },
    Knob {
        parameter: "memory.edge_batch",
        value: |c| c.memory.edge_batch.to_string(),
        lower: |c| halve(&mut c.memory.edge_batch, 1),
    },
    Knob {
        parameter: "memory.places",
        value: |c| c.memory.places.to_string(),
        lower: |c| halve(&mut c.memory.places, 64),
    },
    Knob {
        parameter: "network.size",
        value: |c| c.network_size.to_string(),
        lower: |c| halve(&mut c.network_size, 128),
    },
    Knob {
        parameter: "loops",
        value: |c| match c.loops {
            Loops::On => "on".into(),
            Loops::Off => "off".into(),
        },
        lower: |c| std::mem::replace(&mut c.loops, Loops::Off) == Loops::On,
    },
];

/// Halves `value` unless it would drop below `min`; returns whether it did.
fn halve(value: &mut usize, min: usize) -> bool {
    let half = *value / 2;
    let enough = half >= min;
    if enough {
        *value = half;
    }
    enough
}
