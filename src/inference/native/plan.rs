//! A static plan of a run: every launch fixed, every buffer an offset in one workspace.
//!
//! Buffers whose lifetimes do not overlap share memory. A lifetime reaches from the first step that touches a
//! buffer to the last one.
//!
//! Some steps may run aside: beside those that follow them in the list, up to the next one that joins. Steps in the
//! order of the list are always right, too.

use super::launch::Kernels;
use super::operand::{Addresses, Operand};
use super::step::Step;
use crate::gpu::{Context, CudaError, Event, Priority, Stream};
use crate::inference::InferenceError;
use std::ops::Range;

/// Where each buffer begins.
const ALIGNMENT: usize = 256;

/// The steps of a plan that is being made.
#[derive(Default)]
pub(super) struct Draft {
    steps: Vec<Step>,
    /// Where each step runs.
    lanes: Vec<Lane>,
    /// Where the next one runs.
    next: Lane,
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
        self.lanes.push(self.next);
        if self.next == Lane::Joining {
            self.next = Lane::Main;
        }
    }

    /// Whether the steps from here on run aside: none of the others, up to the one that joins, reads what they write or
    /// writes what they read.
    pub(super) fn set_aside(&mut self, aside: bool) {
        self.next = match aside {
            true => Lane::Aside,
            false => Lane::Main,
        };
    }

    /// The next step waits for those aside.
    pub(super) fn join(&mut self) {
        self.next = Lane::Joining;
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
            let end = end_of(&self.lanes, at);
            step.for_operands(|operand| {
                if let Operand::Buffer(buffer, _) = *operand {
                    let life = lives[buffer].get_or_insert(at..end);
                    life.end = life.end.max(end);
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
            lanes: self.lanes,
            bytes: bytes.unwrap_or(0).next_multiple_of(ALIGNMENT),
        })
    }
}

/// The first step that runs for certain only when step `at` is over.
fn end_of(lanes: &[Lane], at: usize) -> usize {
    let after = lanes.get(at..).unwrap_or_default();
    match after.first() {
        Some(Lane::Aside) => {
            let joins = after.iter().position(|lane| *lane == Lane::Joining);
            at + joins.unwrap_or(after.len())
        }
        _ => at + 1,
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

/// Where a step runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Lane {
    /// After the step before it that does not run aside.
    #[default]
    Main,
    /// After all steps before it, beside those behind it.
    Aside,
    /// As [`Lane::Main`], and after all steps aside that are before it.
    Joining,
}

/// What records steps beside others.
pub(super) struct Side {
    stream: Stream,
    /// Recorded before steps aside, and behind them.
    parted: Event,
    joined: Event,
}

impl Side {
    pub(super) fn new(context: &Context, priority: Priority) -> Result<Self, CudaError> {
        Ok(Self {
            stream: context.stream(priority)?,
            parted: context.event(false)?,
            joined: context.event(false)?,
        })
    }

    pub(super) fn priority(&self) -> Priority {
        self.stream.priority()
    }
}

/// What a run does.
pub(super) struct Plan {
    steps: Vec<Step>,
    lanes: Vec<Lane>,
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

    /// Enqueues the run; with a side, which nothing else uses meanwhile, steps run beside each other.
    ///
    /// # Safety
    /// What the addresses stand for is device memory of the sizes that the plan was made for, which stays
    /// allocated, and which other streams do not touch, until the run is over.
    pub(super) unsafe fn enqueue(
        &self,
        kernels: &Kernels,
        stream: &Stream,
        addresses: &Addresses,
        side: Option<&Side>,
    ) -> Result<(), CudaError> {
        let Some(side) = side else {
            for (at, step) in self.steps.iter().enumerate() {
                // SAFETY: the caller's promise.
                unsafe { kernels.launch(stream, step, addresses, at > 0) }?;
            }
            return Ok(());
        };
        // The last step's lane; whether the stream has a step; whether steps aside are not joined yet.
        let mut before = None;
        let (mut begun, mut parted) = (false, false);
        for (step, &lane) in self.steps.iter().zip(&self.lanes) {
            // Whether the last launch in the step's stream is all that it waits for.
            let follows = match lane {
                Lane::Main => begun,
                Lane::Aside => before == Some(Lane::Aside),
                Lane::Joining => false,
            };
            if lane == Lane::Aside && !follows {
                stream.record(&side.parted)?;
                side.stream.wait(&side.parted)?;
                parted = true;
            }
            if lane == Lane::Joining && parted {
                stream_after(stream, side)?;
                parted = false;
            }
            let on = match lane {
                Lane::Aside => &side.stream,
                Lane::Main | Lane::Joining => stream,
            };
            // SAFETY: the caller's promise; steps beside each other do not touch each other's memory.
            unsafe { kernels.launch(on, step, addresses, follows) }?;
            begun |= lane != Lane::Aside;
            before = Some(lane);
        }
        if parted {
            stream_after(stream, side)?;
        }
        Ok(())
    }
}

/// Lets the stream wait for the steps aside.
fn stream_after(stream: &Stream, side: &Side) -> Result<(), CudaError> {
    side.stream.record(&side.joined)?;
    stream.wait(&side.joined)
}

#[cfg(test)]
mod tests {
    use super::{Lane, end_of, place};
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
    fn memory_of_steps_aside_is_kept_until_they_are_joined() {
        use Lane::{Aside, Joining, Main};
        let lanes = [Main, Aside, Aside, Main, Joining, Main, Aside, Main];
        let ends: Vec<usize> = (0..lanes.len()).map(|at| end_of(&lanes, at)).collect();
        assert_eq!(ends, [1, 4, 4, 4, 5, 6, 8, 8]);
    }

    #[test]
    fn memory_is_shared_where_lives_do_not_overlap() {
        let places = place(&[1000, 1000, 10], &[Some(0..2), Some(2..4), Some(1..3)]);
        assert_eq!(places, [0, 0, 1024]);
    }
}
