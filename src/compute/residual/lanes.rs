//! Eight f64 side by side. Written so that the compiler turns each operation into vector
//! instructions of whatever width the machine has; every operation is exactly rounded and nothing
//! is contracted or reordered, so the result is the same on every machine.

use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub};

/// Values in a [`Lanes`].
pub(crate) const LANES: usize = 8;

/// Eight values.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
pub(crate) struct Lanes(pub(crate) [f64; LANES]);

/// Eight yes-or-no answers, each all ones or all zeros.
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
                    self.0[l] = self.0[l] $op rhs.0[l];
                }
                self
            }
        }
        impl $name<f64> for Lanes {
            type Output = Lanes;
            #[inline(always)]
            fn $method(mut self, rhs: f64) -> Lanes {
                for l in 0..LANES {
                    self.0[l] = self.0[l] $op rhs;
                }
                self
            }
        }
    };
}
binary!(Add, add, +);
binary!(Sub, sub, -);
binary!(Mul, mul, *);
binary!(Div, div, /);

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

    /// The first eight of `src`, which has at least that many.
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

    /// The larger; `limit` where a value is NaN.
    #[inline(always)]
    pub(crate) fn at_least(mut self, limit: f64) -> Self {
        for v in &mut self.0 {
            *v = if *v > limit { *v } else { limit };
        }
        self
    }

    /// The smaller; `limit` where a value is NaN.
    #[inline(always)]
    pub(crate) fn at_most(mut self, limit: f64) -> Self {
        for v in &mut self.0 {
            *v = if *v < limit { *v } else { limit };
        }
        self
    }

    /// `limits.0 < value < limits.1`; never for NaN.
    #[inline(always)]
    pub(crate) fn between(self, limits: (f64, f64)) -> Mask {
        let mut out = Mask([0; LANES]);
        for l in 0..LANES {
            let inside = self.0[l] > limits.0 && self.0[l] < limits.1;
            out.0[l] = if inside { u64::MAX } else { 0 };
        }
        out
    }

    /// Natural logarithm of positive, normal values.
    #[inline(always)]
    pub(crate) fn ln(mut self) -> Self {
        for v in &mut self.0 {
            *v = v.ln();
        }
        self
    }

    /// In a fixed order.
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

    /// `yes` where set, `no` elsewhere, whatever is in the other.
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
