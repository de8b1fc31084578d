//! A seeded mutator: inputs that differ from good ones in a few places.

use testkit::random::Random;

/// Values at which readers tend to err.
const EDGES: [u64; 14] = [
    0,
    1,
    2,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    u64::MAX,
];
/// Longest input: readers of large files are as careful with small ones.
const LONGEST: usize = 1 << 18;

/// Makes inputs.
pub struct Mutator {
    random: Random,
    seeds: Vec<Vec<u8>>,
}

impl Mutator {
    /// The inputs for these seeds; a seed of the generator repeats them.
    pub fn new(seed: u64, seeds: Vec<Vec<u8>>) -> Self {
        Self {
            random: Random(seed.wrapping_mul(2).wrapping_add(1)),
            seeds,
        }
    }

    /// The next input.
    pub fn next(&mut self) -> Vec<u8> {
        let mut data = self.pick();
        for _ in 0..1 + self.below(6) {
            self.change(&mut data);
        }
        data.truncate(LONGEST);
        data
    }

    fn below(&mut self, limit: usize) -> usize {
        self.random.bits() as usize % limit.max(1)
    }

    fn pick(&mut self) -> Vec<u8> {
        let index = self.below(self.seeds.len());
        self.seeds[index].clone()
    }

    /// A place in `data`, which is not empty; headers are at the ends of files.
    fn place(&mut self, data: &[u8]) -> usize {
        let near = data.len().min(256);
        match self.below(3) {
            0 => self.below(near),
            1 => data.len() - 1 - self.below(near),
            _ => self.below(data.len()),
        }
    }

    fn change(&mut self, data: &mut Vec<u8>) {
        if data.is_empty() {
            data.push(self.random.bits() as u8);
            return;
        }
        let at = self.place(data);
        match self.below(9) {
            0 => data[at] ^= 1 << self.below(8),
            1 => data[at] = self.random.bits() as u8,
            2 => {
                let value = EDGES[self.below(EDGES.len())].to_le_bytes();
                let bytes = 1 << self.below(4);
                let big = self.below(2) == 1;
                for k in 0..bytes {
                    let from = if big { bytes - 1 - k } else { k };
                    if let Some(dst) = data.get_mut(at + k) {
                        *dst = value[from];
                    }
                }
            }
            3 => data.truncate(at),
            4 => {
                let end = (at + 1 + self.below(64)).min(data.len());
                data.drain(at..end);
            }
            5 => {
                let end = (at + 1 + self.below(64)).min(data.len());
                let copy = data[at..end].to_vec();
                let to = self.below(data.len());
                data.splice(to..to, copy);
            }
            6 => {
                let count = 1 + self.below(16);
                let byte = self.random.bits() as u8;
                data.splice(at..at, vec![byte; count]);
            }
            7 => {
                // A little more or less than it was, as a number of a text or of bytes.
                let step = if self.below(2) == 1 { 1 } else { u8::MAX };
                data[at] = data[at].wrapping_add(step);
            }
            _ => {
                let other = self.pick();
                if !other.is_empty() {
                    let from = self.below(other.len());
                    data.truncate(at);
                    data.extend_from_slice(&other[from..]);
                }
            }
        }
    }
}
