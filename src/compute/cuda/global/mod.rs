//! The global solve on the device: [`crate::compute::global`] with the matches of every edge added up
//! by kernels, and the same control flow and sparse solve on the host.
//!
//! An iteration sends the poses to the device (64 B a keyframe), which writes 296 B an edge to pinned memory. Sums are
//! f32 in a thread and f64 beyond, in a fixed order: the same input gives the same bits, and differs
//! from the CPU's by rounding.

mod memory;
mod run;
mod times;

pub use memory::GlobalCapacity;
pub use times::StageTimes;

use super::{Context, CudaError, DeviceArena, DeviceSlice, Kernel, PinnedArena, Stream};
use crate::compute::global::descent::{self, Graph, Lineariser, Wanted};
use crate::compute::global::{EdgeEquations, GlobalReport, GlobalResidual, PosePrior, SolveError};
use crate::compute::stop::Stop;
use crate::config::LocalOptConfig;
use crate::geometry::{Sim3, Tangent};
use half::f16;
use memory::{DeviceMemory, PinnedMemory};
use run::{Run, full};
pub(super) use run::{rounding, whitened_error};

/// Why a solve on the device failed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum GlobalError {
    /// As on the CPU.
    #[error(transparent)]
    Solve(#[from] SolveError),
    /// The device.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// A problem that is larger than what was planned for.
    #[error("{what}: {found}, of at most {most}")]
    Capacity {
        /// What there is too much of.
        what: &'static str,
        /// How much there is.
        found: usize,
        /// How much there may be.
        most: usize,
    },
}

/// A keyframe as the solve sees it; N = `width·height` of the call.
#[derive(Debug, Clone, Copy)]
pub struct DeviceKeyframe<'a> {
    /// N×3, the pointmap in the keyframe's own camera. For [`GlobalResidual::Calibrated`] only its
    /// depths are read.
    pub points: DeviceSlice<'a, f32>,
    /// N average confidences; a gate, not a weight.
    pub confidence: DeviceSlice<'a, f16>,
    /// Where the solve starts from.
    pub world_from_camera: Sim3,
}

/// The pixels of one keyframe matched with those of another.
#[derive(Debug, Clone, Copy)]
pub struct DeviceMatches<'a> {
    /// N: for each pixel its pixel of the other keyframe.
    pub index: DeviceSlice<'a, u32>,
    /// N: not 0 where that match holds.
    pub valid: DeviceSlice<'a, u8>,
    /// N: its quality.
    pub quality: DeviceSlice<'a, f32>,
}

/// Two matched keyframes. `i` and `j` count in the slice of keyframes; their order means nothing.
#[derive(Debug, Clone, Copy)]
pub struct DeviceEdge<'a> {
    /// One keyframe.
    pub i: usize,
    /// The other.
    pub j: usize,
    /// For each pixel of `j` its pixel of `i`.
    pub i_from_j: DeviceMatches<'a>,
    /// For each pixel of `i` its pixel of `j`.
    pub j_from_i: DeviceMatches<'a>,
}

/// What is solved.
#[derive(Debug, Clone, Copy)]
pub struct DeviceProblem<'a> {
    /// All keyframes; the first `pin` stay.
    pub keyframes: &'a [DeviceKeyframe<'a>],
    /// Their matches.
    pub edges: &'a [DeviceEdge<'a>],
    /// As on the CPU.
    pub priors: &'a [PosePrior],
    /// What is compared.
    pub residual: GlobalResidual,
    /// Of the keyframes' images.
    pub width: usize,
    /// Of the keyframes' images.
    pub height: usize,
}

struct Kernels {
    mask: Kernel,
    gate: Kernel,
    relate: Kernel,
    sums: SumKernels,
    costs: SumKernels,
    reduce: Kernel,
}

/// One for each model.
struct SumKernels {
    rays: Kernel,
    pixels: Kernel,
    points: Kernel,
}

/// Solves for keyframe poses with the memory of a [`GlobalCapacity`].
pub struct DeviceGlobalSolver {
    capacity: GlobalCapacity,
    kernels: Kernels,
    device: DeviceMemory,
    pinned: PinnedMemory,
    stop: Stop,
}

impl DeviceGlobalSolver {
    /// Takes [`GlobalCapacity::device_buffers`] and [`GlobalCapacity::pinned_buffers`] from the arenas.
    pub fn new(
        context: &Context,
        device: &mut DeviceArena,
        pinned: &mut PinnedArena,
        capacity: GlobalCapacity,
    ) -> Result<Self, GlobalError> {
        let capacity = capacity.validate()?;
        Ok(Self {
            kernels: Kernels {
                mask: context.kernel("ms_global_mask")?,
                gate: context.kernel("ms_global_gate")?,
                relate: context.kernel("ms_global_relate")?,
                sums: SumKernels {
                    rays: context.kernel("ms_global_rays")?,
                    pixels: context.kernel("ms_global_pixels")?,
                    points: context.kernel("ms_global_points")?,
                },
                costs: SumKernels {
                    rays: context.kernel("ms_global_rays_cost")?,
                    pixels: context.kernel("ms_global_pixels_cost")?,
                    points: context.kernel("ms_global_points_cost")?,
                },
                reduce: context.kernel("ms_global_reduce")?,
            },
            device: DeviceMemory::new(device, &capacity)?,
            pinned: PinnedMemory::new(pinned, &capacity)?,
            capacity,
            stop: Stop::default(),
        })
    }

    /// As [`crate::compute::global::GlobalSolver::heed`].
    pub fn heed(&mut self, stop: &Stop) {
        self.stop = stop.clone();
    }

    /// The largest problem.
    pub fn capacity(&self) -> GlobalCapacity {
        self.capacity
    }

    /// As [`crate::compute::global::GlobalSolver::solve`]. Waits for `stream` once an iteration; what
    /// the problem's slices hold must have been put there by earlier work on it.
    ///
    /// # Errors
    /// As on the CPU, and [`GlobalError::Capacity`] or [`GlobalError::Cuda`]. `poses` is then left as it
    /// was.
    pub fn solve(
        &mut self,
        stream: &Stream,
        problem: &DeviceProblem<'_>,
        params: &LocalOptConfig,
        poses: &mut [Sim3],
    ) -> Result<GlobalReport, GlobalError> {
        let mut current = start(problem);
        if poses.len() != current.len() {
            return Err(GlobalError::Solve(SolveError::Shape {
                what: "poses",
                expected: current.len(),
                found: poses.len(),
            }));
        }
        let links = links(problem);
        let graph = Graph {
            links: &links,
            priors: problem.priors,
        };
        let stop = self.stop.clone();
        let mut run = Run::new(self, stream, problem, params, &graph)?;
        let report =
            run.finish_after(|run| descent::descend(run, &graph, params, &stop, &mut current))?;
        poses.copy_from_slice(&current);
        Ok(report)
    }

    /// The equations of every edge at the keyframes' poses, to be compared with the CPU's; all zero but cost
    /// and matches where only the cost is `wanted`.
    pub fn equations(
        &mut self,
        stream: &Stream,
        problem: &DeviceProblem<'_>,
        params: &LocalOptConfig,
        wanted: Wanted,
    ) -> Result<Vec<EdgeEquations>, GlobalError> {
        let links = links(problem);
        let graph = Graph {
            links: &links,
            priors: problem.priors,
        };
        let mut run = Run::new(self, stream, problem, params, &graph)?;
        run.finish_after(|run| {
            run.select()?;
            run.enqueue_linearise(&start(problem), &vec![true; links.len()], wanted)?;
            run.wait()?;
            let out = run.solver.pinned.equations.iter();
            Ok(out
                .take(links.len())
                .map(|e| EdgeEquations {
                    hessian: full(&e.hessian),
                    gradient: Tangent::from_column_slice(&e.gradient),
                    robust: e.robust,
                    matches: e.matches,
                })
                .collect())
        })
    }
}

fn start(problem: &DeviceProblem<'_>) -> Vec<Sim3> {
    let poses = problem.keyframes.iter().map(|k| k.world_from_camera);
    poses.collect()
}

fn links(problem: &DeviceProblem<'_>) -> Vec<(usize, usize)> {
    problem.edges.iter().map(|e| (e.i, e.j)).collect()
}
