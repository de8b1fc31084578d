//! The scale of a pointmap by depth that a sensor measured (docs/algorithm.md, Metric scale).

pub(crate) mod around;
pub mod field;
pub mod moved;
pub mod pixels;
pub mod pointmap;
pub(crate) mod ratio;
pub mod smooth;

use ratio::{Histogram, STEPS};

/// Minimum fraction of the image's pixels with both a point and a depth: what a lidar of 16 beams measures.
pub(crate) const MIN_FRACTION: f64 = 0.01;
/// Maximum median absolute deviation of the log ratios: where they scatter more, the depth belongs to
/// another image, or the network fails.
pub(crate) const MAX_MAD: f64 = 0.2;

/// The same for a sensor that is trusted: there the network fails.
pub(crate) const MAX_TRUSTED_MAD: f64 = 1.0;

/// Number of pointmaps that a sensor agrees with, less those that it does not, from which it is trusted.
pub(crate) const TRUSTED: u32 = 10;

/// Maximum of that number: depth that has come late since may be used for no longer.
pub(crate) const MAX_AGREED: u32 = 100;
/// Maximum log ratio, of either sign, that a metric network leaves; beyond it the depth has another unit.
pub(crate) const MAX_LOG_SCALE: f64 = 3.4;
/// Ratios count up to so many standard deviations from their median, of at least the sensor's own.
pub(crate) const INLIERS: f64 = 3.0;
/// Standard deviation of the log-depth of a match of which a sensor measured both ends.
pub(crate) const MEASURED_SIGMA: f64 = 0.1;
/// Pixels of a network err together within patches of this side.
pub(crate) const PATCH: usize = 16;
/// Number of measured pixels with which a patch counts as a whole measurement.
pub(crate) const FULL_PATCH: f64 = 32.0;
/// Standard deviation of a normal distribution over its median absolute deviation.
pub(crate) const SIGMA_OVER_MAD: f64 = 1.4826;
/// Standard deviation of log scale that no number of pixels lowers: that of the sensor itself.
pub(crate) const MIN_SIGMA: f64 = 0.003;

/// Scale of a pointmap by depth: metres per unit of the pointmap.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DepthScale {
    /// Natural logarithm of the scale.
    pub log_scale: f64,
    /// Its standard deviation.
    pub sigma: f64,
}

/// Reasons why depth gives no scale.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum NoScale {
    /// Too few pixels have both a point and a depth.
    #[error(
        "depth covers {:.1} % of the image, expected at least {:.0} %: the sensor is covered, or too near or far",
        100.0 * found, 100.0 * MIN_FRACTION
    )]
    Few { found: f64 },
    /// The ratios of depth and pointmap contradict each other.
    #[error(
        "depth and pointmap disagree: log ratios scatter by {mad:.2}, expected at most {max:.1}: check that the depth is \
         registered to the camera and of the same time"
    )]
    Scattered { mad: f64, max: f64 },
    /// The ratio is not that of metres to metres.
    #[error(
        "depth is {factor:.3e} times what the network sees, expected metres: check the unit (16-bit depth is mostly in \
         millimetres)"
    )]
    Unit { factor: f64 },
}

/// How often a sensor's depth has agreed with the network's pointmaps. Where they disagree, the depth of an untrusted
/// sensor is taken for that of another place or time. If a trusted sensor disagrees, the network has failed, as it does
/// on views unlike those that it has learnt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Trust {
    agreed: u32,
}

impl Trust {
    /// The trust with this number, at most [`MAX_AGREED`]: see [`Trust::agreed`].
    pub fn after(agreed: u32) -> Self {
        Self {
            agreed: agreed.min(MAX_AGREED),
        }
    }

    /// Number of pointmaps with which the sensor agreed, less those with which it did not.
    pub fn agreed(&self) -> u32 {
        self.agreed
    }

    /// Maximum median absolute deviation of the log ratios.
    pub fn max_mad(&self) -> f64 {
        match self.agreed >= TRUSTED {
            true => MAX_TRUSTED_MAD,
            false => MAX_MAD,
        }
    }

    /// Notes the median absolute deviation of a pointmap's log ratios.
    fn note(&mut self, mad: f64) {
        self.agreed = match mad <= MAX_MAD {
            true => (self.agreed + 1).min(MAX_AGREED),
            false => self.agreed.saturating_sub(1),
        };
    }
}

/// What the log ratios of depths and points show.
#[derive(Debug, Clone, Copy)]
pub struct Ratios {
    /// Pixels of the image.
    pub pixels: usize,
    /// Pixels with both a point and a depth.
    pub count: usize,
    /// Median of the log ratios.
    pub median: f64,
    /// Median absolute deviation from it.
    pub mad: f64,
    /// Sum of the inliers' deviations.
    pub sum: f64,
    /// Number of inliers.
    pub inliers: usize,
    /// Independent measurements that the pixels count as.
    pub patches: f64,
    /// Maximum median absolute deviation that counts.
    pub max_mad: f64,
}

impl Ratios {
    /// The scale, with the formulas of [`DepthMeter::measure`].
    ///
    /// # Errors
    /// If too few pixels have both, the ratios scatter too much, or the scale is that of another unit.
    pub fn scale(&self) -> Result<DepthScale, NoScale> {
        let found = self.count as f64 / self.pixels.max(1) as f64;
        if found < MIN_FRACTION || self.count == 0 {
            return Err(NoScale::Few { found });
        }
        // The median itself is an inlier.
        let log_scale = self.median + self.sum / f64::max(self.inliers as f64, 1.0);
        if log_scale.abs() > MAX_LOG_SCALE {
            let factor = log_scale.exp();
            return Err(NoScale::Unit { factor });
        }
        let (mad, max) = (self.mad, self.max_mad);
        if mad > max {
            return Err(NoScale::Scattered { mad, max });
        }
        let spread = SIGMA_OVER_MAD * mad;
        let patches = self.patches.max(f64::MIN_POSITIVE);
        let variance = spread * spread / patches + MIN_SIGMA * MIN_SIGMA;
        Ok(DepthScale {
            log_scale,
            sigma: variance.sqrt(),
        })
    }
}

/// Memory for [`DepthMeter::measure`].
#[derive(Debug)]
pub struct DepthMeter {
    /// Log ratios of all pixels.
    keys: Vec<u16>,
    histogram: Histogram,
    mad: f64,
}

impl DepthMeter {
    /// For images of `pixels` pixels, of which it allocates no more later.
    pub fn new(pixels: usize) -> Self {
        Self {
            keys: Vec::with_capacity(pixels),
            histogram: Histogram::new(),
            mad: 0.0,
        }
    }

    /// Median absolute deviation of the log ratios of the newest measurement.
    pub fn mad(&self) -> f64 {
        self.mad
    }

    /// Log ratios of the newest measurement's pixels in steps of 1/4096, by 32,767 higher so that they are positive;
    /// 65,535 for a pixel without.
    pub fn keys(&self) -> &[u16] {
        &self.keys
    }

    /// Measures the scale of a pointmap of `width` columns: `points` is N×3 in the camera's frame, `confidence`
    /// N (a point counts if it is positive), `metres` N depths along z (0: not measured). `trust` is the trust in their
    /// sensor; the measurement updates it.
    ///
    /// With the ratios `r = metres / z` of the pixels that have both, `log r` rounded to 1/4096, and their median `m`,
    ///
    /// ```text
    /// log s = mean log r over |log r − log m| ≤ 3·max(1.4826·MAD(log r), 0.003)
    /// σ² = (1.4826·MAD(log r))² / patches + 0.003²
    /// ```
    ///
    /// (Pow3R-SLAM takes the mean of all `r`, clipped to a tenth and ten times the median, which one pixel in twenty
    /// that is wrong moves by a per cent.)
    ///
    /// Each patch of 16 × 16 pixels counts as one measurement, or as a part of one below 32 pixels.
    ///
    /// # Errors
    /// If too few pixels have both, the ratios scatter too much, or the scale is that of another unit.
    pub fn measure(
        &mut self,
        points: &[f32],
        confidence: &[f32],
        metres: &[f32],
        width: usize,
        trust: &mut Trust,
    ) -> Result<DepthScale, NoScale> {
        let pixels = metres.len();
        let width = width.max(1);
        self.keys.clear();
        let mut patches = 0.0;
        let points = points.chunks_exact(3);
        let mut row = points.zip(confidence).zip(metres).enumerate().peekable();
        // Row by row of patches; the counts of a row's patches fit a few cache lines.
        let mut counts = [0_u32; MAX_COLUMNS];
        while row.peek().is_some() {
            counts.fill(0);
            for (n, ((p, c), z)) in row.by_ref().take(PATCH * width) {
                let key = ratio::key(log_ratio(p, *c, *z));
                self.keys.push(key);
                if key != ratio::NOTHING {
                    let column = (n % width) / PATCH;
                    counts[column.min(MAX_COLUMNS - 1)] += 1;
                }
            }
            let parts = counts.iter().map(|c| (f64::from(*c) / FULL_PATCH).min(1.0));
            patches += parts.sum::<f64>();
        }
        let keys = || self.keys.iter().filter(|key| **key != ratio::NOTHING);
        let count = keys().count();
        let median = self.histogram.median(keys().copied());
        let distances = keys().map(|key| key.abs_diff(median));
        let in_logs = |steps: i64| steps as f64 / f64::from(STEPS);
        self.mad = in_logs(i64::from(self.histogram.median(distances)));
        let limit = INLIERS * (SIGMA_OVER_MAD * self.mad).max(MIN_SIGMA);
        let offsets = keys().map(|key| i64::from(*key) - i64::from(median));
        let inliers = offsets.filter(|off| in_logs(off.abs()) <= limit);
        let (sum, inliers) = inliers.fold((0, 0), |(sum, n), off| (sum + off, n + 1));
        let median = match count {
            0 => 0,
            _ => i64::from(ratio::steps(median)),
        };
        let ratios = Ratios {
            pixels,
            count,
            median: in_logs(median),
            mad: self.mad,
            sum: in_logs(sum),
            inliers,
            patches,
            max_mad: trust.max_mad(),
        };
        let scale = ratios.scale();
        if !matches!(scale, Err(NoScale::Few { .. })) {
            trust.note(self.mad);
        }
        scale
    }
}

/// The log ratio of a pixel's depth and point in steps, if both count.
pub(crate) fn log_ratio(point: &[f32], confidence: f32, metres: f32) -> Option<i16> {
    let depth = point.get(2).copied().unwrap_or(0.0);
    ratio::of(metres, depth).filter(|_| confidence > 0.0)
}

/// Columns of patches that are counted apart: those of an image of 4096 pixels; the rest count as one.
pub(crate) const MAX_COLUMNS: usize = 256;

/// Multiplies every point of a pointmap.
pub fn rescale(points: &mut [f32], factor: f32) {
    for p in points {
        *p *= factor;
    }
}

#[cfg(test)]
mod tests;
