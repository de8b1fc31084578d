//! Eight f64 lanes. Written so that the compiler vectorises each operation at the machine's width;
//! every operation is correctly rounded and none is contracted or reordered, so the result is the
//! same on every machine.

use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub};

/// Number of lanes in a [`Lanes`].
pub(crate) const LANES: usize = 8;

#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
pub(crate) struct Lanes(pub(crate) [f64; LANES]);

/// Eight lane masks, each all ones or all zeros.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
pub(crate) struct Mask(pub(crate) [u64; LANES]);

macro_rules! binary {
    ($name:ident, $method:ident, $op:tt) => {
        impl $name for Lanes {
            type Output = Lanes;
            #[inline(always)]
            fn $method(mut self, rhs: Lanes) -> Lanes {
                for l in 0..LANES {
                    self.0[l] $op rhs.0[l];
                }
                self
            }
        }
        impl $name<f64> for Lanes {
            type Output = Lanes;
            #[inline(always)]
            fn $method(mut self, rhs: f64) -> Lanes {
                for l in 0..LANES {
                    self.0[l] $op rhs;
                }
                self
            }
        }
    };
}
binary!(Add, add, +=);
binary!(Sub, sub, -=);
binary!(Mul, mul, *=);
binary!(Div, div, /=);

impl Neg for Lanes {
    type Output = Lanes;
    #[inline(always)]
    fn neg(mut self) -> Lanes {
        for l in 0..LANES {
            self.0[l] = -self.0[l];
        }
        self
    }
}

impl AddAssign for Lanes {
    #[inline(always)]
    fn add_assign(&mut self, rhs: Lanes) {
        *self = *self + rhs;
    }
}

impl Lanes {
    pub(crate) const ZERO: Lanes = Lanes([0.0; LANES]);
    pub(crate) const ONE: Lanes = Lanes([1.0; LANES]);

    #[inline(always)]
    pub(crate) fn splat(v: f64) -> Self {
        Lanes([v; LANES])
    }

    /// Loads the first eight values of `src`, which must have at least that many.
    #[inline(always)]
    pub(crate) fn load(src: &[f32]) -> Self {
        let mut out = Self::ZERO;
        for (o, &v) in out.0.iter_mut().zip(&src[..LANES]) {
            *o = f64::from(v);
        }
        out
    }

    #[inline(always)]
    pub(crate) fn sqrt(mut self) -> Self {
        for v in &mut self.0 {
            *v = v.sqrt();
        }
        self
    }

    #[inline(always)]
    pub(crate) fn abs(mut self) -> Self {
        for v in &mut self.0 {
            *v = v.abs();
        }
        self
    }

    /// Lane-wise maximum with `limit`; NaN becomes `limit`.
    #[inline(always)]
    pub(crate) fn at_least(mut self, limit: f64) -> Self {
        for v in &mut self.0 {
            *v = if *v > limit { *v } else { limit };
        }
        self
    }

    /// Lane-wise minimum with `limit`; NaN becomes `limit`.
    #[inline(always)]
    pub(crate) fn at_most(mut self, limit: f64) -> Self {
        for v in &mut self.0 {
            *v = if *v < limit { *v } else { limit };
        }
        self
    }

    /// Lane-wise minimum; `rhs` where either is NaN.
    #[inline(always)]
    pub(crate) fn min(mut self, rhs: Lanes) -> Self {
        for l in 0..LANES {
            self.0[l] = if self.0[l] < rhs.0[l] {
                self.0[l]
            } else {
                rhs.0[l]
            };
        }
        self
    }

    /// `limits.0 < value < limits.1`; false for NaN.
    #[inline(always)]
    pub(crate) fn between(self, limits: (f64, f64)) -> Mask {
        let mut out = Mask([0; LANES]);
        for l in 0..LANES {
            let inside = (self.0[l] > limits.0) & (self.0[l] < limits.1);
            out.0[l] = if inside { u64::MAX } else { 0 };
        }
        out
    }

    /// Forces the value through memory. The compiler searches for vectorisation only a limited way
    /// up an expression and restarts at a store; without one, a third of the logarithm stays
    /// scalar.
    #[inline(always)]
    fn settled(self) -> Self {
        std::hint::black_box(self)
    }

    /// Natural logarithm of positive, normal values, accurate to about 2⁻⁵². The platform's
    /// function is neither identical everywhere nor vectorised.
    #[inline(always)]
    pub(crate) fn ln(self) -> Self {
        // v = m·2^k with m in [√½, √2): adding the difference between 1 and √½ aligns the start of
        // m's range with an exponent boundary.
        const SQRT_HALF: u64 = 0x3fe6_a09e_667f_3bcd;
        const ONE: u64 = 0x3ff0_0000_0000_0000;
        // The low bits of 2^52 hold an integer below 2^52: together they encode 2^52 plus that
        // integer.
        const TWO_52: u64 = 0x4330_0000_0000_0000;
        let shifted = self
            .settled()
            .0
            .map(|v| v.to_bits().wrapping_add(ONE - SQRT_HALF));
        let k = Lanes(shifted.map(|b| f64::from_bits(TWO_52 | (b >> 52)))).settled();
        let m = shifted.map(|b| (b & 0x000f_ffff_ffff_ffff).wrapping_add(SQRT_HALF));
        let m = Lanes(m.map(f64::from_bits)).settled();
        let k = k - (f64::from_bits(TWO_52) + 1023.0);
        // ln m = 2 artanh s, s = (m − 1)/(m + 1): |s| < 0.172, so s²²/23 < 1e-18.
        let f = m - 1.0;
        let s = f / (f + 2.0);
        let z = s * s;
        let mut series = Self::splat(1.0 / 21.0);
        for n in (1..10).rev() {
            series = series * z + 1.0 / f64::from(2 * n + 1);
        }
        k * std::f64::consts::LN_2 + (s + s * (z * series)) * 2.0
    }

    /// Sum of all lanes in a fixed order.
    pub(crate) fn sum(self) -> f64 {
        let v = self.0;
        ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]))
    }
}

impl Mask {
    #[inline(always)]
    pub(crate) fn and(mut self, rhs: Mask) -> Mask {
        for l in 0..LANES {
            self.0[l] &= rhs.0[l];
        }
        self
    }

    /// `yes` where set, `no` elsewhere, regardless of the other value.
    #[inline(always)]
    pub(crate) fn select(self, yes: Lanes, no: Lanes) -> Lanes {
        let mut out = Lanes::ZERO;
        for l in 0..LANES {
            let bits = (yes.0[l].to_bits() & self.0[l]) | (no.0[l].to_bits() & !self.0[l]);
            out.0[l] = f64::from_bits(bits);
        }
        out
    }
}
