//! A device for the keyframe store that runs nothing before it must: each lane's work waits in a queue, and
//! what runs next is a matter of chance, within the order that streams and marks ask for. Work that
//! the store forgot to order shows as wrong bytes.

use mast3r_slam::compute::store::{Lane, Mark, SlotDevice};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};

/// Bytes of a record.
pub const BYTES: usize = 24;

/// Contents that no other value has.
pub fn bulk(value: u64) -> Vec<u8> {
    let mut bytes = value.to_le_bytes().to_vec();
    bytes.extend(value.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    bytes.extend((!value).to_le_bytes());
    bytes
}

#[derive(Debug, Clone, thiserror::Error)]
#[error("the device was told to fail")]
pub struct SimError;

enum Work {
    Record(Mark, u64),
    Wait(Mark, u64),
    Write(u32, Vec<u8>),
    Check(u32, Vec<u8>),
    Save(u32, u32),
    Load(u32, u32),
}

struct State {
    /// Two lanes' compute streams, then their copy streams.
    queues: [VecDeque<Work>; 4],
    /// How often each mark was recorded, and which recording has been reached.
    recorded: Vec<u64>,
    reached: Vec<u64>,
    slots: Vec<Vec<u8>>,
    hosts: Vec<Vec<u8>>,
    chance: u64,
    failing: bool,
}

pub struct Sim {
    state: Mutex<State>,
    device_slots: usize,
    host_slots: usize,
}

impl Sim {
    pub fn new(device_slots: usize, host_slots: usize, seed: u64) -> Self {
        let marks = device_slots * Mark::PER_SLOT;
        Self {
            state: Mutex::new(State {
                queues: Default::default(),
                recorded: vec![0; marks],
                reached: vec![0; marks],
                slots: vec![vec![0xaa; BYTES]; device_slots],
                hosts: vec![vec![0xbb; BYTES]; host_slots],
                chance: seed.wrapping_mul(2).wrapping_add(1),
                failing: false,
            }),
            device_slots,
            host_slots,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Enqueues writing a slot.
    pub fn enqueue_write(&self, lane: Lane, slot: u32, bytes: Vec<u8>) {
        self.state().queues[lane.index()].push_back(Work::Write(slot, bytes));
    }

    /// Enqueues reading a slot, which must then hold `expected`.
    pub fn enqueue_check(&self, lane: Lane, slot: u32, expected: Vec<u8>) {
        self.state().queues[lane.index()].push_back(Work::Check(slot, expected));
    }

    /// Runs up to `steps` pieces of work.
    pub fn run(&self, steps: usize) {
        let mut state = self.state();
        for _ in 0..steps {
            if !state.step() {
                return;
            }
        }
    }

    /// Whether copies fail from now on.
    pub fn fail(&self, failing: bool) {
        self.state().failing = failing;
    }

    fn copy(&self, lane: Lane, after: &[Mark], work: Work) -> Result<(), SimError> {
        let mut state = self.state();
        if state.failing {
            return Err(SimError);
        }
        let queue = 2 + lane.index();
        for &mark in after {
            let number = state.recorded[mark.index()];
            state.queues[queue].push_back(Work::Wait(mark, number));
        }
        state.queues[queue].push_back(work);
        while !state.queues[queue].is_empty() {
            assert!(state.step(), "a copy that waits for ever");
        }
        Ok(())
    }
}

impl State {
    /// Runs one piece of work of a stream that need not wait; `false` if there is none.
    fn step(&mut self) -> bool {
        self.chance = self
            .chance
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        let first = (self.chance >> 33) as usize;
        for i in 0..4 {
            let queue = (first + i) % 4;
            match self.queues[queue].front() {
                None => continue,
                Some(Work::Wait(mark, number)) if self.reached[mark.index()] < *number => continue,
                Some(_) => {}
            }
            match self.queues[queue].pop_front().unwrap() {
                Work::Wait(..) => {}
                Work::Record(mark, number) => self.reached[mark.index()] = number,
                Work::Write(slot, bytes) => self.slots[slot as usize] = bytes,
                Work::Check(slot, expected) => assert_eq!(
                    self.slots[slot as usize], expected,
                    "slot {slot}, read on queue {queue}"
                ),
                Work::Save(slot, host) => {
                    self.hosts[host as usize] = self.slots[slot as usize].clone();
                }
                Work::Load(host, slot) => {
                    self.slots[slot as usize] = self.hosts[host as usize].clone();
                }
            }
            return true;
        }
        false
    }
}

impl SlotDevice for Sim {
    type Error = SimError;

    fn device_slots(&self) -> usize {
        self.device_slots
    }

    fn host_slots(&self) -> usize {
        self.host_slots
    }

    fn record_bytes(&self) -> usize {
        BYTES
    }

    fn record(&self, lane: Lane, mark: Mark) -> Result<(), SimError> {
        let mut state = self.state();
        state.recorded[mark.index()] += 1;
        let number = state.recorded[mark.index()];
        state.queues[lane.index()].push_back(Work::Record(mark, number));
        Ok(())
    }

    fn wait(&self, lane: Lane, mark: Mark) -> Result<(), SimError> {
        let mut state = self.state();
        let number = state.recorded[mark.index()];
        state.queues[lane.index()].push_back(Work::Wait(mark, number));
        Ok(())
    }

    fn save(&self, lane: Lane, after: &[Mark], slot: u32, host: u32) -> Result<(), SimError> {
        self.copy(lane, after, Work::Save(slot, host))
    }

    fn load(&self, lane: Lane, after: &[Mark], host: u32, slot: u32) -> Result<(), SimError> {
        self.copy(lane, after, Work::Load(host, slot))
    }

    fn with_host(&self, host: u32, with: &mut dyn FnMut(&mut [u8])) {
        with(&mut self.state().hosts[host as usize]);
    }
}
