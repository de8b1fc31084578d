//! A static plan of a run: every launch fixed, every buffer an offset in one workspace.
//!
//! Buffers whose lifetimes do not overlap share memory. A lifetime reaches from the first step that touches a
//! buffer to the last one.

use super::launch::Kernels;
use super::operand::{Addresses, Operand};
use super::step::Step;
use crate::gpu::{CudaError, Stream};
use crate::inference::InferenceError;
use std::ops::Range;

/// Where each buffer begins.
const ALIGNMENT: usize = 256;

/// The steps of a plan that is being made.
#[derive(Default)]
pub(super) struct Draft {
    steps: Vec<Step>,
    /// Bytes of each buffer.
    buffers: Vec<usize>,
}

impl Draft {
    /// A new buffer of `bytes`.
    pub(super) fn buffer(&mut self, bytes: usize) -> Operand {
        self.buffers.push(bytes);
        Operand::Buffer(self.buffers.len() - 1, 0)
    }

    pub(super) fn push(&mut self, step: Step) {
        self.steps.push(step);
    }

    /// Places the buffers: the largest first, each at the lowest offset at which no buffer lies that lives at
    /// the same time.
    pub(super) fn finish(mut self) -> Result<Plan, InferenceError> {
        // Kernels count a buffer's elements, at least two bytes each, in 32 bits.
        const LIMIT: usize = 1 << 32;
        if let Some(&bytes) = self.buffers.iter().find(|&&bytes| bytes >= LIMIT) {
            return Err(InferenceError::Shape {
                what: "an activation of the network",
                expected: format!("less than {LIMIT} bytes"),
                found: format!("{bytes} bytes; choose a smaller network.size"),
            });
        }
        let mut lives: Vec<Option<Range<usize>>> = vec![None; self.buffers.len()];
        for (at, step) in self.steps.iter_mut().enumerate() {
            step.for_operands(|operand| {
                if let Operand::Buffer(buffer, _) = *operand {
                    let life = lives[buffer].get_or_insert(at..at + 1);
                    life.end = at + 1;
                }
            });
        }
        let places = place(&self.buffers, &lives);
        let ends = places.iter().zip(&self.buffers).zip(&lives);
        let bytes = ends
            .filter(|(_, life)| life.is_some())
            .map(|((place, bytes), _)| place + bytes)
            .max();
        for step in &mut self.steps {
            step.for_operands(|operand| {
                if let Operand::Buffer(buffer, at) = *operand {
                    *operand = Operand::Workspace(places[buffer] + at);
                }
            });
        }
        Ok(Plan {
            steps: self.steps,
            bytes: bytes.unwrap_or(0).next_multiple_of(ALIGNMENT),
        })
    }
}

fn place(buffers: &[usize], lives: &[Option<Range<usize>>]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..buffers.len()).collect();
    order.sort_by_key(|&buffer| std::cmp::Reverse(buffers[buffer]));
    let mut places = vec![0; buffers.len()];
    let mut placed: Vec<usize> = Vec::new();
    for buffer in order {
        let Some(life) = &lives[buffer] else { continue };
        let mut taken: Vec<Range<usize>> = placed
            .iter()
            .filter(|&&other| {
                let other = lives[other].as_ref();
                other.is_some_and(|other| other.start < life.end && life.start < other.end)
            })
            .map(|&other| places[other]..places[other] + buffers[other])
            .collect();
        taken.sort_by_key(|range| range.start);
        let mut at = 0;
        for range in taken {
            if at + buffers[buffer] <= range.start {
                break;
            }
            at = at.max(range.end.next_multiple_of(ALIGNMENT));
        }
        places[buffer] = at;
        placed.push(buffer);
    }
    places
}

/// What a run does.
pub(super) struct Plan {
    steps: Vec<Step>,
    bytes: usize,
}

impl Plan {
    /// Bytes of the workspace.
    pub(super) fn workspace_bytes(&self) -> usize {
        self.bytes
    }

    /// Its launches, in order.
    pub(super) fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Enqueues the run.
    ///
    /// # Safety
    /// What the addresses stand for is device memory of the sizes that the plan was made for, which stays
    /// allocated, and which other streams do not touch, until the run is over.
    pub(super) unsafe fn enqueue(
        &self,
        kernels: &Kernels,
        stream: &Stream,
        addresses: &Addresses,
    ) -> Result<(), CudaError> {
        for (at, step) in self.steps.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { kernels.launch(stream, step, addresses, at > 0) }?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::place;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn buffers_that_live_at_the_same_time_do_not_overlap(
            buffers in prop::collection::vec((1usize..5000, 0usize..20, 1usize..8), 1..30)
        ) {
            let sizes: Vec<usize> = buffers.iter().map(|b| b.0).collect();
            let lives: Vec<_> = buffers.iter().map(|b| Some(b.1..b.1 + b.2)).collect();
            let places = place(&sizes, &lives);
            for i in 0..sizes.len() {
                prop_assert_eq!(places[i] % super::ALIGNMENT, 0);
                for j in 0..i {
                    let (a, b) = (lives[i].as_ref().unwrap(), lives[j].as_ref().unwrap());
                    if a.start < b.end && b.start < a.end {
                        let apart = places[i] + sizes[i] <= places[j]
                            || places[j] + sizes[j] <= places[i];
                        prop_assert!(apart, "{i} {j}");
                    }
                }
            }
        }
    }

    #[test]
    fn memory_is_shared_where_lives_do_not_overlap() {
        let places = place(&[1000, 1000, 10], &[Some(0..2), Some(2..4), Some(1..3)]);
        assert_eq!(places, [0, 0, 1024]);
    }
}
