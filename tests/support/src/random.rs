//! Random numbers for tests and benches: small, repeatable, without a dependency.
/// A linear congruential generator of 64 bits, of which the upper ones are used.
pub struct Random(pub u64);

impl Random {
    /// The next state. Its lower bits are not random.
    fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        self.0
    }

    /// 32 bits (PCG's output function).
    pub fn bits(&mut self) -> u32 {
        let state = self.next();
        let x = ((state >> 18) ^ state) >> 27;
        (x as u32).rotate_right((state >> 59) as u32)
    }

    /// Uniform in [0, 1).
    pub fn uniform(&mut self) -> f64 {
        f64::from(self.bits()) / 4294967296.0
    }

    /// Standard normal.
    pub fn normal(&mut self) -> f64 {
        let r = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        r * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// Integers from -8 to 7: sums and products of a few thousand of them are exact in f32 and f64, so
    /// that two evaluations in different order must agree exactly.
    pub fn integers(&mut self, count: usize) -> Vec<f32> {
        (0..count)
            .map(|_| ((self.next() >> 60) as i32 - 8) as f32)
            .collect()
    }

    /// Uniform in [-0.5, 0.5), multiples of 2⁻²⁴.
    pub fn noise(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.centred()).collect()
    }

    /// One of [`Random::noise`].
    pub fn centred(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    }
}

/// Integers of their own for each seed.
pub fn integers(count: usize, seed: u64) -> Vec<f32> {
    Random(seed.wrapping_mul(2).wrapping_add(1)).integers(count)
}
