//! Execution of one solve in a solver's memory.

use super::memory::{
    DirectionArgument, Equations, GlobalBuffers, KeyframeArgument, MASK_PIXELS, ProblemArgument,
    division,
};
use super::{DeviceGlobalSolver, DeviceProblem, GlobalCapacity, GlobalError};
use crate::compute::global::descent::{Graph, Lineariser, Wanted};
use crate::compute::global::terms::{Linearised, Term, factor_terms};
use crate::compute::global::{GlobalResidual, Matrix7, SolveError, model};
use crate::compute::residual::Model;
use crate::config::GlobalOptConfig;
use crate::geometry::{Sim3, Tangent};
use crate::gpu::{CudaError, Grid, Stream};

/// Threads per block for testing pixels, for summing matches, and for adding up the sums.
const TEST_THREADS: u32 = 256;
const SUM_THREADS: u32 = 128;
const REDUCE_THREADS: u32 = 192;

/// Expands an upper triangle, stored row by row, to a full matrix.
pub(super) fn full(upper: &[f64; 28]) -> Matrix7 {
    let mut m = Matrix7::zeros();
    let mut k = 0;
    for r in 0..7 {
        for c in r..7 {
            m[(r, c)] = upper[k];
            m[(c, r)] = upper[k];
            k += 1;
        }
    }
    m
}

/// One solve.
pub(super) struct Run<'a> {
    pub(super) solver: &'a mut DeviceGlobalSolver,
    stream: &'a Stream,
    problem: &'a DeviceProblem<'a>,
    argument: ProblemArgument,
    model: Model,
    /// Error of a whitened residual, about one standard deviation.
    error: f64,
    /// Terms of the factors, computed while the device works.
    factors: Vec<Term>,
    /// Whether the number of matches outside the image has been checked.
    checked: bool,
}

impl<'a> Run<'a> {
    pub(super) fn new(
        solver: &'a mut DeviceGlobalSolver,
        stream: &'a Stream,
        problem: &'a DeviceProblem<'a>,
        params: &GlobalOptConfig,
        graph: &Graph<'_>,
    ) -> Result<Self, GlobalError> {
        let pixels = problem.width * problem.height;
        let capacity = solver.buffers.capacity;
        let counts = [
            ("pixels of a keyframe", pixels, capacity.pixels),
            (
                "keyframes of a solve",
                problem.keyframes.len(),
                capacity.keyframes,
            ),
            ("edges of a solve", problem.edges.len(), capacity.edges),
        ];
        if let Some((what, found, max)) = counts.into_iter().find(|(_, n, max)| n > max) {
            return Err(GlobalError::Capacity { what, found, max });
        }
        let one_column =
            problem.width == 1 && matches!(problem.residual, GlobalResidual::Calibrated(_));
        if one_column && problem.height > 1 {
            return Err(GlobalError::Capacity {
                what: "rows of an image of one column",
                found: problem.height,
                max: 1,
            });
        }
        for keyframe in problem.keyframes {
            keyframe.points.at_least("keyframe points", 3 * pixels)?;
            keyframe
                .confidence
                .at_least("keyframe confidences", pixels)?;
        }
        for m in problem.edges.iter().flat_map(|e| [e.i_from_j, e.j_from_i]) {
            m.index.at_least("an edge's matches", pixels)?;
            m.quality.at_least("an edge's match qualities", pixels)?;
        }
        graph.validate(problem.keyframes.iter().map(|k| k.world_from_camera))?;
        let (model, _) = model(problem.residual, problem.width, problem.height, params);
        let argument = argument(solver, problem, params);
        Ok(Self {
            error: whitened_error(problem.residual, (problem.width, problem.height), params),
            solver,
            stream,
            problem,
            argument,
            model,
            factors: Vec::with_capacity(problem.factors.len()),
            checked: false,
        })
    }

    /// Runs `work` and, whatever its result, leaves no work on the stream that uses the pinned
    /// memory.
    pub(super) fn finish_after<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, GlobalError>,
    ) -> Result<T, GlobalError> {
        let done = work(self);
        let waited = self.stream.synchronize();
        let done = done?;
        waited?;
        Ok(done)
    }

    /// The capacity for images of this size.
    fn image(&self) -> GlobalCapacity {
        GlobalCapacity {
            pixels: self.argument.pixels as usize,
            ..self.solver.buffers.capacity
        }
    }

    /// Whether there is nothing to sum.
    pub(super) fn is_empty(&self) -> bool {
        self.problem.edges.is_empty() || self.argument.pixels == 0
    }

    fn directions(&self) -> usize {
        2 * self.problem.edges.len()
    }

    /// Uploads what is the same for all linearisations.
    fn upload(&mut self) -> Result<(), CudaError> {
        let GlobalBuffers { pinned, device, .. } = &mut self.solver.buffers;
        let keyframes = self.problem.keyframes;
        for (to, k) in pinned.keyframes.iter_mut().zip(keyframes) {
            *to = KeyframeArgument {
                points: k.points.pointer(),
                confidence: k.confidence.pointer(),
            };
        }
        let directed = self
            .problem
            .edges
            .iter()
            .flat_map(|e| [(e.i, e.j, e.i_from_j), (e.j, e.i, e.j_from_i)]);
        for (to, (i, j, m)) in pinned.directions.iter_mut().zip(directed) {
            *to = DirectionArgument {
                index: m.index.pointer(),
                quality: m.quality.pointer(),
                // Smaller than the capacity, which is below 2^16.
                i: i as u32,
                j: j as u32,
            };
        }
        let edges = self.problem.edges.len();
        pinned.active[..edges].fill(1);
        let (k, d) = (keyframes.len(), 2 * edges);
        // SAFETY: pinned memory is written only while no work on the stream uses it: here, after
        // the last solve was synchronised, and in `enqueue_linearise`, after the last linearisation
        // was.
        unsafe {
            self.stream
                .upload(&pinned.keyframes[..k], device.keyframes.slice(0..k)?)?;
            self.stream
                .upload(&pinned.directions[..d], device.directions.slice(0..d)?)?;
            self.stream
                .upload(&pinned.active[..edges], device.active.slice(0..edges)?)?;
        }
        Ok(())
    }

    pub(super) fn enqueue_mask(&self) -> Result<(), CudaError> {
        let (kernels, device) = (&self.solver.kernels, &self.solver.buffers.device);
        let keyframes = self.problem.keyframes.len();
        let threads = (self.argument.pixels as usize).div_ceil(MASK_PIXELS);
        let mut grid = Grid::over(threads, TEST_THREADS);
        grid.blocks.1 = keyframes as u32;
        let arguments = (self.argument, device.masks.pointer());
        // SAFETY: the keyframes' arrays have `pixels` entries (checked), and the masks have room
        // for the capacity, which includes these keyframes; only this stream uses them.
        unsafe { kernels.mask.launch(self.stream, grid, arguments) }
    }

    pub(super) fn enqueue_gate(&self) -> Result<(), CudaError> {
        let (kernels, device) = (&self.solver.kernels, &self.solver.buffers.device);
        self.stream.fill(device.outside.all(), 0)?;
        let blocks = self.image().test_blocks();
        let grid = Grid::blocks((blocks * self.directions()) as u32, TEST_THREADS);
        let arguments = (
            self.argument,
            device.masks.pointer(),
            blocks as u32,
            device.gates.pointer(),
            device.outside.pointer(),
        );
        // SAFETY: as above for the directions' arrays and the gates; their keyframes are among
        // those with masks (validated).
        unsafe { kernels.gate.launch(self.stream, grid, arguments) }
    }

    pub(super) fn enqueue_relate(&self) -> Result<(), CudaError> {
        let (kernels, device) = (&self.solver.kernels, &self.solver.buffers.device);
        let grid = Grid::over(self.directions(), TEST_THREADS);
        let arguments = (
            self.argument,
            device.poses.pointer(),
            self.directions() as u32,
            device.relative.pointer(),
        );
        // SAFETY: there is a pose for each keyframe, and room for the capacity's directions.
        unsafe { kernels.relate.launch(self.stream, grid, arguments) }
    }

    pub(super) fn enqueue_sums(&self, wanted: Wanted) -> Result<(), CudaError> {
        let device = &self.solver.buffers.device;
        let kernels = match wanted {
            Wanted::Equations => &self.solver.kernels.sums,
            Wanted::Cost => &self.solver.kernels.costs,
        };
        let kernel = match self.model {
            Model::Rays => &kernels.rays,
            Model::Calibrated(_) => &kernels.pixels,
            Model::Points => &kernels.points,
        };
        let blocks = self.argument.chunks as usize * self.directions();
        let arguments = (
            self.argument,
            device.gates.pointer(),
            device.relative.pointer(),
            device.active.pointer(),
            device.sums.pointer(),
            device.used.pointer(),
        );
        // SAFETY: as above; a gate is set only if the match's index is inside the image, and there
        // are sums and counts for each block of the capacity.
        unsafe {
            kernel.launch(
                self.stream,
                Grid::blocks(blocks as u32, SUM_THREADS),
                arguments,
            )
        }
    }

    pub(super) fn enqueue_reduce(&self) -> Result<(), CudaError> {
        let (kernels, device) = (&self.solver.kernels, &self.solver.buffers.device);
        let grid = Grid::blocks(self.problem.edges.len() as u32, REDUCE_THREADS);
        let arguments = (
            self.argument,
            device.poses.pointer(),
            device.active.pointer(),
            device.sums.pointer(),
            device.used.pointer(),
            match self.model {
                Model::Rays => 0_u32,
                Model::Calibrated(_) => 1,
                Model::Points => 2,
            },
            self.solver.equations_on_device,
        );
        // SAFETY: the sums of every active edge's blocks have just been computed; capacity as
        // above. The equations, in pinned memory, are not read before `wait`.
        unsafe { kernels.reduce.launch(self.stream, grid, arguments) }
    }

    /// Everything in a linearisation except waiting for it.
    pub(super) fn enqueue_linearise(
        &mut self,
        poses: &[Sim3],
        active: &[bool],
        wanted: Wanted,
    ) -> Result<(), CudaError> {
        let edges = self.problem.edges.len();
        let GlobalBuffers { pinned, device, .. } = &mut self.solver.buffers;
        for (to, pose) in pinned.poses.chunks_exact_mut(8).zip(poses) {
            to.copy_from_slice(&pose.to_array());
        }
        let same = |(old, new): (&u8, &bool)| (*old != 0) == *new;
        let changed = !pinned.active.iter().zip(active).all(same);
        if changed {
            for (to, active) in pinned.active.iter_mut().zip(active) {
                *to = u8::from(*active);
            }
        }
        let numbers = 8 * poses.len();
        // SAFETY: as in `upload`.
        unsafe {
            self.stream
                .upload(&pinned.poses[..numbers], device.poses.slice(0..numbers)?)?;
            if changed {
                self.stream
                    .upload(&pinned.active[..edges], device.active.slice(0..edges)?)?;
            }
        }
        if self.is_empty() {
            self.solver.buffers.pinned.equations[..edges].fill(Equations::ZERO);
            return Ok(());
        }
        self.enqueue_relate()?;
        self.enqueue_sums(wanted)?;
        self.enqueue_reduce()?;
        if !self.checked {
            let GlobalBuffers { pinned, device, .. } = &mut self.solver.buffers;
            // SAFETY: the pinned memory is not read before `wait`.
            unsafe {
                self.stream
                    .download(device.outside.all(), &mut pinned.outside)?;
            }
        }
        Ok(())
    }

    /// Waits for the linearisation; the first time, checks for matches outside the image.
    pub(super) fn wait(&mut self) -> Result<(), GlobalError> {
        self.stream.synchronize()?;
        if !std::mem::replace(&mut self.checked, true) && !self.is_empty() {
            let count = self
                .solver
                .buffers
                .pinned
                .outside
                .first()
                .copied()
                .unwrap_or(0);
            if count > 0 {
                let pixels = self.argument.pixels as usize;
                return Err(SolveError::Index { count, pixels }.into());
            }
        }
        Ok(())
    }
}

impl Lineariser for Run<'_> {
    type Error = GlobalError;

    fn select(&mut self) -> Result<(), GlobalError> {
        self.upload()?;
        if !self.is_empty() {
            self.enqueue_mask()?;
            self.enqueue_gate()?;
        }
        Ok(())
    }

    fn linearise(
        &mut self,
        poses: &[Sim3],
        active: &[bool],
        wanted: Wanted,
        out: &mut Linearised,
    ) -> Result<(), GlobalError> {
        self.enqueue_linearise(poses, active, wanted)?;
        self.factors.clear();
        let cost = factor_terms(self.problem.factors, poses, &mut self.factors);
        self.wait()?;
        out.clear();
        let equations = self.solver.buffers.pinned.equations.iter();
        for (edge, e) in self.problem.edges.iter().zip(equations) {
            let term = Term {
                i: edge.i,
                j: edge.j,
                hessian: full(&e.hessian),
                gradient: Tangent::from_column_slice(&e.gradient),
            };
            out.push_edge(term, e.robust, e.matches);
        }
        out.push_factors(&self.factors, cost);
        Ok(())
    }

    fn rounding(&self, robust: f64, used: u64) -> f64 {
        rounding(self.error, robust, used)
    }
}

/// Relative difference of two costs near `robust`, over `used` matches, that is within rounding.
/// Residuals are f32: each whitened one has an error of `error`, which differs between poses that
/// differ by a step. In the cost `½Σw²` this amounts to a random `Σw·error`, of which four standard
/// deviations are taken here, and `error²` for each match with residuals no larger than that.
pub(in crate::compute::cuda) fn rounding(error: f64, robust: f64, used: u64) -> f64 {
    let noise = 4.0 * error * (2.0 * robust).sqrt() + 2.0 * used as f64 * error * error;
    if robust > 0.0 { noise / robust } else { 0.0 }
}

/// Error of a whitened residual: 2⁻²² (four roundings) of the quantities whose difference it is,
/// divided by its σ, for a match of quality 9.
pub(in crate::compute::cuda) fn whitened_error(
    residual: GlobalResidual,
    (width, height): (usize, usize),
    params: &GlobalOptConfig,
) -> f64 {
    let (size, sigma) = match residual {
        GlobalResidual::Rays => (1.0, params.sigma_ray),
        // At ten metres.
        GlobalResidual::Points => (10.0, params.sigma_point),
        GlobalResidual::Calibrated(_) => (width.max(height) as f64, params.sigma_pixel),
    };
    3.0 * size / sigma / f64::from(1 << 22)
}

fn argument(
    solver: &DeviceGlobalSolver,
    problem: &DeviceProblem<'_>,
    params: &GlobalOptConfig,
) -> ProblemArgument {
    let (model, noise) = model(problem.residual, problem.width, problem.height, params);
    let here = GlobalCapacity {
        pixels: problem.width * problem.height,
        ..solver.buffers.capacity
    };
    // All are below 2^31: the capacity was validated.
    let (magic, shift) = division(problem.width as u32);
    let mut argument = ProblemArgument {
        keyframes: solver.buffers.device.keyframes.pointer(),
        directions: solver.buffers.device.directions.pointer(),
        pixels: here.pixels as u32,
        words: here.words() as u32,
        chunks: here.chunks() as u32,
        width: problem.width as u32,
        magic,
        shift,
        calibrated: 0,
        quality: params.q_conf,
        confidence: params.c_conf,
        depth: f32::NEG_INFINITY,
        noise: [
            (1.0 / noise.sigma.0) as f32,
            (1.0 / noise.sigma.1) as f32,
            noise.huber as f32,
        ],
        view: [0.0; 9],
        inverse_focal: [0.0; 2],
    };
    if let Model::Calibrated(view) = model {
        let k = view.intrinsics;
        let middle = |size: usize| 0.5 * (size as f64 - 1.0);
        let (mx, my) = (middle(view.width), middle(view.height));
        argument.calibrated = 1;
        argument.depth = at_most(view.depth_eps);
        argument.view = [
            k.fx as f32,
            k.fy as f32,
            k.cx as f32,
            k.cy as f32,
            mx as f32,
            my as f32,
            (mx - view.border) as f32,
            (my - view.border) as f32,
            at_most(view.depth_eps.max(0.0)),
        ];
        argument.inverse_focal = [(1.0 / k.fx) as f32, (1.0 / k.fy) as f32];
    }
    argument
}

/// The largest f32 not above `limit`: an f32 exceeds it exactly if it exceeds `limit`.
fn at_most(limit: f64) -> f32 {
    let near = limit as f32;
    if f64::from(near) > limit {
        near.next_down()
    } else {
        near
    }
}
