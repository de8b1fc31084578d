//! Random numbers by counter: Philox4x32-10 (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, 2011). A number
//! depends on key and counter only, so results do not depend on the order of work, and no noise is stored.

/// What a number is for, the last word of the counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Purpose {
    /// Offsets of a split's children: counter (row, step, child).
    Split = 0,
    /// Draws for dead rows: counter (index among the dead, step, 0).
    Move = 1,
    /// Draws for added rows: counter (index among the added, step, 0).
    Add = 2,
    /// Noise of positions: counter (row, step, 0).
    Noise = 3,
    /// The order of training views: counter (index, epoch, 0).
    Order = 4,
}

/// Four words of Philox4x32-10.
pub fn philox(key: [u32; 2], counter: [u32; 4]) -> [u32; 4] {
    let multiply = |a: u32, b: u32| {
        let product = u64::from(a) * u64::from(b);
        ((product >> 32) as u32, product as u32)
    };
    let (mut c, mut k) = (counter, key);
    for round in 0..10 {
        if round > 0 {
            k = [
                k[0].wrapping_add(0x9E37_79B9),
                k[1].wrapping_add(0xBB67_AE85),
            ];
        }
        let (high0, low0) = multiply(0xD251_1F53, c[0]);
        let (high1, low1) = multiply(0xCD9E_8D57, c[2]);
        c = [high1 ^ c[1] ^ k[0], low1, high0 ^ c[3] ^ k[1], low0];
    }
    c
}

/// Four words for a purpose.
pub fn words(seed: u64, index: u32, step: u32, child: u32, purpose: Purpose) -> [u32; 4] {
    philox(
        [seed as u32, (seed >> 32) as u32],
        [index, step, child, purpose as u32],
    )
}

/// A number from 0 up to and without `total`, which must not be 0.
pub fn below(words: [u32; 4], total: u64) -> u64 {
    let word = u64::from(words[0]) << 32 | u64::from(words[1]);
    ((u128::from(word) * u128::from(total)) >> 64) as u64
}

/// Three normal deviates by Box and Muller; none is beyond 6.67.
pub fn normals(words: [u32; 4]) -> [f32; 3] {
    const UNIT: f32 = 1.0 / 4_294_967_296.0;
    let polar = |a: u32, b: u32| {
        let radius = (-2.0 * ((a as f32 + 1.0) * UNIT).ln()).max(0.0).sqrt();
        (radius, std::f32::consts::TAU * (b as f32 * UNIT))
    };
    let ((r0, a0), (r1, a1)) = (polar(words[0], words[1]), polar(words[2], words[3]));
    [r0 * a0.cos(), r0 * a0.sin(), r1 * a1.cos()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_those_of_the_published_test_vectors() {
        // Random123's kat_vectors, philox4x32 10.
        let cases: [([u32; 4], [u32; 2], [u32; 4]); 3] = [
            (
                [0; 4],
                [0; 2],
                [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8],
            ),
            (
                [u32::MAX; 4],
                [u32::MAX; 2],
                [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd],
            ),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, expected) in cases {
            assert_eq!(philox(key, counter), expected);
        }
    }

    #[test]
    #[allow(
        clippy::needless_range_loop,
        reason = "several arrays are read at one axis"
    )]
    fn normals_have_mean_zero_variance_one_and_no_correlation() {
        let n = 200_000;
        let (mut sum, mut square, mut product) = ([0.0; 3], [0.0; 3], [0.0; 3]);
        for i in 0..n {
            let z = normals(words(7, i, 3, 0, Purpose::Split)).map(f64::from);
            for k in 0..3 {
                sum[k] += z[k];
                square[k] += z[k] * z[k];
                product[k] += z[k] * z[(k + 1) % 3];
            }
        }
        let n = f64::from(n);
        for k in 0..3 {
            assert!((sum[k] / n).abs() < 5.0 / n.sqrt());
            assert!((square[k] / n - 1.0).abs() < 0.02);
            assert!((product[k] / n).abs() < 5.0 / n.sqrt());
        }
        for word in [0, u32::MAX] {
            assert!(normals([word; 4]).iter().all(|z| z.abs() < 6.67));
        }
    }

    #[test]
    fn draws_stay_below_the_total() {
        assert_eq!(below([u32::MAX; 4], 10), 9);
        assert_eq!(below([0; 4], 10), 0);
        assert_eq!(below([1 << 31, 0, 0, 0], u64::MAX), u64::MAX / 2);
    }
}
