//! Result of a solve on the device.

use crate::compute::cuda::matching::MatchCounts;
use crate::compute::pose_solver::{Solution, SolveError, least_eigenvalue};
use crate::compute::residual::Matrix7;
use crate::geometry::Sim3;
use crate::gpu::Element;

/// Result status, in the order of `Status` in `tracking.cuh`, which counts from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// A pose was found.
    Solved,
    /// Fewer matches than required by `min_match_frac`.
    FewMatches,
    /// The initial pose was not finite.
    BadPose,
    /// Matches point outside the image.
    Outside,
    /// No usable match.
    NoCorrespondences,
    /// The normal equations were not finite.
    NotFinite,
    /// The matches leave some motion undetermined.
    Singular,
    /// Fewer matches fit the pose than required by `min_fit_frac`.
    Unfit,
}

/// Result of a solve on the device: `Outcome` in `tracking.cuh`.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct Outcome {
    /// `keyframe_from_frame` as by [`Sim3::to_array`]; if the solve failed, the initial pose.
    pub pose: [f64; 8],
    /// Re-weighted cost `½ Σ ρ w²` at this pose.
    pub cost: f64,
    /// Sum of the Huber function over the whitened residuals at this pose.
    pub robust: f64,
    /// Normal matrix at this pose, upper triangle row by row.
    pub hessian: [f64; 28],
    /// The pose for f32 points: scaled rotation row by row, translation.
    pub transform: [f32; 12],
    /// See [`Outcome::status`].
    pub status: u32,
    /// Number of steps taken.
    pub iterations: u32,
    /// 1 if a stopping criterion was met before `max_iters`.
    pub converged: u32,
    /// Number of correspondences that passed every gate at this pose.
    pub used: u32,
    /// Number of matches that point outside the image.
    pub outside: u32,
    /// Number of evaluations of the normal equations.
    pub evaluations: u32,
    /// Match counts; zeros if the task had none.
    pub counts: MatchCounts,
    /// Fraction of keyframe pixels matched and past every gate.
    pub used_fraction: f32,
    /// Fraction of distinct frame pixels matched.
    pub unique_fraction: f32,
    /// Number of used matches that fit the pose.
    pub fitting: u32,
    pub padding: u32,
}

// SAFETY: scalars and arrays of scalars, for which any bit pattern is valid; the size shows that
// there is no padding.
unsafe impl Element for Outcome {}
const _: () = assert!(size_of::<Outcome>() == 38 * 8 + 30 * 4);

/// Reasons for a failed solve.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Unsolved {
    /// Not enough overlap with the keyframe.
    #[error("only {used:.3} of the keyframe's pixels are matched with sufficient quality")]
    FewMatches { used: f32 },
    /// An error that also occurs on the CPU.
    #[error(transparent)]
    Solver(#[from] SolveError),
}

impl Outcome {
    /// The status; `None` if no solve has written the outcome.
    pub fn status(&self) -> Option<Status> {
        const ALL: [Status; 8] = [
            Status::Solved,
            Status::FewMatches,
            Status::BadPose,
            Status::Outside,
            Status::NoCorrespondences,
            Status::NotFinite,
            Status::Singular,
            Status::Unfit,
        ];
        let place = (self.status as usize).checked_sub(1)?;
        ALL.get(place).copied()
    }

    pub fn hessian_matrix(&self) -> Matrix7 {
        let mut k = 0;
        let mut out = Matrix7::zeros();
        for r in 0..7 {
            for c in r..7 {
                out[(r, c)] = self.hessian[k];
                out[(c, r)] = self.hessian[k];
                k += 1;
            }
        }
        out
    }

    /// The pose of a solve over `pixels` pixels, or the reason for its failure.
    pub fn solution(&self, pixels: usize) -> Result<Solution, Unsolved> {
        let error = match self.status() {
            Some(Status::Solved) => {
                return Ok(Solution {
                    keyframe_from_frame: Sim3::from_array(self.pose),
                    iterations: self.iterations,
                    cost: self.cost,
                    converged: self.converged != 0,
                    used: self.used as usize,
                    fitting: self.fitting as usize,
                    hessian: self.hessian_matrix(),
                });
            }
            Some(Status::FewMatches) => {
                let used = self.used_fraction;
                return Err(Unsolved::FewMatches { used });
            }
            Some(Status::BadPose) => SolveError::NotFinite {
                what: "the initial pose",
            },
            Some(Status::Outside) => SolveError::Index {
                count: u64::from(self.outside),
                pixels,
            },
            Some(Status::NoCorrespondences) => SolveError::NoCorrespondences { given: pixels },
            Some(Status::NotFinite) => SolveError::NotFinite {
                what: "the normal matrix",
            },
            Some(Status::Singular) => SolveError::Singular {
                used: u64::from(self.used),
                smallest: least_eigenvalue(&self.hessian_matrix()),
            },
            Some(Status::Unfit) => SolveError::Unfit {
                used: u64::from(self.used),
                fitting: u64::from(self.fitting),
            },
            None => SolveError::NotFinite {
                what: "the outcome of a solve that did not run",
            },
        };
        Err(error.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_is_told() {
        let mut outcome = Outcome {
            pose: Sim3::identity().to_array(),
            cost: 0.0,
            robust: 0.0,
            hessian: [0.0; 28],
            transform: [0.0; 12],
            status: 1,
            iterations: 0,
            converged: 0,
            used: 3,
            outside: 2,
            evaluations: 0,
            counts: MatchCounts::default(),
            used_fraction: 0.01,
            unique_fraction: 0.0,
            fitting: 1,
            padding: 0,
        };
        assert!(outcome.solution(9).is_ok());
        let told: Vec<String> = [2, 3, 4, 5, 6, 7, 8, 0, 9]
            .into_iter()
            .map(|status| {
                outcome.status = status;
                outcome.solution(9).unwrap_err().to_string()
            })
            .collect();
        let begins = [
            "only 0.010 of",
            "the initial pose",
            "2 matches point outside the image of 9",
            "none of 9 pixels",
            "the normal matrix",
            "3 matches do not determine the pose",
            "only 1 of 3 matches agree with the pose that fits them best",
            "the outcome of a solve that did not run",
            "the outcome of a solve that did not run",
        ];
        assert_eq!(told.len(), begins.len());
        for (told, begin) in told.iter().zip(begins) {
            assert!(told.starts_with(begin), "{told}");
        }
    }
}
