//! The global solve on the device: [`crate::compute::global`] with matches summed by kernels, and
//! the same control flow and sparse solve on the host.
//!
//! An iteration uploads the poses to the device (64 B per keyframe), which writes 296 B per edge to
//! pinned memory. Sums are f32 within a thread and f64 beyond, in a fixed order: the same input
//! gives the same bits, which differ from the CPU's by rounding.

mod memory;
mod run;

pub use memory::{GlobalBuffers, GlobalCapacity};

use crate::compute::cancel::CancelToken;
use crate::compute::global::descent::{self, Graph, Lineariser, Wanted};
use crate::compute::global::{
    EdgeEquations, GlobalReport, GlobalResidual, PoseFactor, Priors, SolveError,
};
use crate::config::GlobalOptConfig;
use crate::geometry::{Sim3, Tangent};
use crate::gpu::{Context, CudaError, DevicePointer, DeviceSlice, Kernel, Stream};
use half::f16;
use memory::Equations;
use run::{Run, full};
pub(super) use run::{rounding, whitened_error};

/// Error from a solve on the device.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum GlobalError {
    /// An error that also occurs on the CPU.
    #[error(transparent)]
    Solve(#[from] SolveError),
    /// The device failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// The problem exceeds the planned capacity.
    #[error("{what}: {found}, of at most {max}")]
    Capacity {
        what: &'static str,
        found: usize,
        max: usize,
    },
}

/// Input of the solve for one keyframe; N = `width·height`.
#[derive(Debug, Clone, Copy)]
pub struct DeviceKeyframe<'a> {
    /// N×3, the pointmap in the keyframe's own camera frame. For [`GlobalResidual::Calibrated`]
    /// only its depths are used.
    pub points: DeviceSlice<'a, f32>,
    /// N average confidences, used as a gate, not as a weight.
    pub confidence: DeviceSlice<'a, f16>,
    /// Initial pose.
    pub world_from_camera: Sim3,
}

/// Matches of one keyframe's pixels with those of another. Quality 0 means no match: whatever reads matches wants a
/// quality above a limit that is not negative.
#[derive(Debug, Clone, Copy)]
pub struct DeviceMatches<'a> {
    /// N: for each pixel, the matched pixel of the other keyframe.
    pub index: DeviceSlice<'a, u32>,
    /// N: quality of the match, rounded to binary16; 0 where nothing matches.
    pub quality: DeviceSlice<'a, f16>,
}

/// Two matched keyframes. `i` and `j` index the slice of keyframes, in any order.
#[derive(Debug, Clone, Copy)]
pub struct DeviceEdge<'a> {
    /// One keyframe.
    pub i: usize,
    /// The other.
    pub j: usize,
    /// For each pixel of `j`, the matched pixel of `i`.
    pub i_from_j: DeviceMatches<'a>,
    /// For each pixel of `i`, the matched pixel of `j`.
    pub j_from_i: DeviceMatches<'a>,
}

/// Input of a solve.
#[derive(Debug, Clone, Copy)]
pub struct DeviceProblem<'a> {
    /// All keyframes; the first `pin` are fixed.
    pub keyframes: &'a [DeviceKeyframe<'a>],
    /// Their matches.
    pub edges: &'a [DeviceEdge<'a>],
    /// As on the CPU.
    pub factors: &'a [PoseFactor],
    /// As on the CPU.
    pub priors: Priors<'a>,
    /// The residual to minimise.
    pub residual: GlobalResidual,
    /// Columns of the keyframes' images.
    pub width: usize,
    /// Rows of the keyframes' images.
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

/// One kernel per model.
struct SumKernels {
    rays: Kernel,
    pixels: Kernel,
    points: Kernel,
}

/// Solves for keyframe poses within the memory of a [`GlobalCapacity`].
pub struct DeviceGlobalSolver {
    buffers: GlobalBuffers,
    kernels: Kernels,
    equations_on_device: DevicePointer<Equations>,
    cancel: CancelToken,
}

impl DeviceGlobalSolver {
    /// For problems up to the capacity of `buffers`.
    ///
    /// # Errors
    /// [`GlobalError::Capacity`] for more than the kernels can count.
    pub fn new(context: &Context, buffers: GlobalBuffers) -> Result<Self, GlobalError> {
        buffers.capacity.validate()?;
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
            equations_on_device: buffers.pinned.equations.on_device()?,
            buffers,
            cancel: CancelToken::default(),
        })
    }

    /// See [`crate::compute::global::GlobalSolver::set_cancel`].
    pub fn set_cancel(&mut self, cancel: &CancelToken) {
        self.cancel = cancel.clone();
    }

    /// The maximum problem size.
    pub fn capacity(&self) -> GlobalCapacity {
        self.buffers.capacity
    }

    /// See [`crate::compute::global::GlobalSolver::solve`]. Synchronises `stream` once per
    /// iteration; the contents of the problem's slices must come from earlier work on that stream.
    ///
    /// # Errors
    /// Errors of the CPU solver, [`GlobalError::Capacity`] or [`GlobalError::Cuda`]. `poses` is
    /// then unchanged.
    pub fn solve(
        &mut self,
        stream: &Stream,
        problem: &DeviceProblem<'_>,
        params: &GlobalOptConfig,
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
            factors: problem.factors,
            priors: problem.priors,
        };
        let cancel = self.cancel.clone();
        let mut run = Run::new(self, stream, problem, params, &graph)?;
        let report =
            run.finish_after(|run| descent::descend(run, &graph, params, &cancel, &mut current))?;
        poses.copy_from_slice(&current);
        Ok(report)
    }

    /// The equations of every edge at the keyframes' poses, for comparison with the CPU's; all zero
    /// except cost and match count if only the cost is `wanted`.
    pub fn equations(
        &mut self,
        stream: &Stream,
        problem: &DeviceProblem<'_>,
        params: &GlobalOptConfig,
        wanted: Wanted,
    ) -> Result<Vec<EdgeEquations>, GlobalError> {
        let links = links(problem);
        let graph = Graph {
            links: &links,
            factors: problem.factors,
            priors: problem.priors,
        };
        let mut run = Run::new(self, stream, problem, params, &graph)?;
        run.finish_after(|run| {
            run.select()?;
            run.enqueue_linearise(&start(problem), &vec![true; links.len()], wanted)?;
            run.wait()?;
            let out = run.solver.buffers.pinned.equations.iter();
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
