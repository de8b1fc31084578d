//! The tracker's pose solve on the device: [`crate::compute::pose_solver`] in a single launch. Its
//! result stays on the device until the frame is done.

mod outcome;
mod rays;

pub use outcome::{Outcome, Status, Unsolved};
pub(super) use rays::RaysArgument;
pub use rays::{CameraRays, CameraRaysBuffers};

use super::matching::MatchCounts;
use super::small;
use crate::compute::cuda::depth::Found;
use crate::compute::depth::MEASURED_SIGMA;
use crate::compute::pose_solver::{Solution, SolveError};
use crate::compute::residual::{FITTING_RAY, fitting_pixel};
use crate::config::TrackingConfig;
use crate::gpu::{
    Carver, Context, CudaError, DeviceBuffer, DeviceInfo, DevicePointer, DeviceSlice, Floats, Grid,
    Kernel, KernelArgument, Stream,
};
use half::f16;

/// Threads per block, and matches gathered per warp and round.
const THREADS: usize = 256;
const LANES: usize = 32;
/// Values that a block passes to the others.
const STRIDE: usize = 40;
/// Bytes of a round's matches in a block's shared memory.
const ROUND_BYTES: usize = THREADS * 32;
/// Shared memory of a block not available for matches: the kernel's own 10,832 bytes, and the
/// driver's reservation.
const OTHER_SHARED_BYTES: usize = 11 * 1024 + 1024;

/// The residual to minimise.
#[derive(Clone, Copy)]
pub enum Compared<'a> {
    /// Directions and distances of points.
    Rays,
    /// Pixels and log-depths. Only the depths of both pointmaps are read: points are put on their pixels'
    /// rays.
    Pixels(&'a CameraRays),
}

/// A solve; `N` keyframe pixels.
#[derive(Clone, Copy)]
pub struct SolveTask<'a> {
    /// `N × 3`, in the frame's camera frame.
    pub frame_points: DeviceSlice<'a, f32>,
    /// `N × 3`, in the keyframe's camera frame.
    pub keyframe_points: DeviceSlice<'a, f32>,
    /// `N` frame pixels.
    pub index: DeviceSlice<'a, u32>,
    /// `N` qualities; only those above 0 and `min_quality` are used.
    pub quality: Floats<'a>,
    /// See `quality`.
    pub min_quality: f32,
    /// A single set of counts. If given, too few matches end the solve.
    pub counts: Option<DeviceSlice<'a, MatchCounts>>,
    /// The residual to minimise.
    pub compared: Compared<'a>,
    /// The initial pose as by [`Sim3::to_array`], replaced by a solved pose. `None`: the identity.
    pub pose: Option<DeviceSlice<'a, f64>>,
    /// A single outcome; always written.
    pub outcome: DeviceSlice<'a, Outcome>,
    /// Depths of a sensor; used with [`Compared::Pixels`].
    pub measured: Option<MeasuredDepths<'a>>,
    /// Minimum fraction of the used matches that must fit the pose.
    pub min_fit: f32,
}

/// Depths of a frame and of its keyframe in metres along z, `N` each; 0: not measured.
#[derive(Clone, Copy)]
pub struct MeasuredDepths<'a> {
    pub frame: DeviceSlice<'a, f32>,
    pub keyframe: DeviceSlice<'a, f32>,
    /// The frame's measurement: its depth counts if that was accepted.
    pub of_frame: DeviceSlice<'a, Found>,
    /// A single number: 0 if the keyframe has no depth.
    pub of_keyframe: DeviceSlice<'a, u32>,
}

/// `MeasuredDepths` of `depth.cuh`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct MeasuredDepthsArgument {
    frame: DevicePointer<f32>,
    keyframe: DevicePointer<f32>,
    of_frame: DevicePointer<Found>,
    of_keyframe: DevicePointer<u32>,
}

impl MeasuredDepthsArgument {
    /// There are no depths.
    pub(super) const NONE: Self = Self {
        frame: DevicePointer::NULL,
        keyframe: DevicePointer::NULL,
        of_frame: DevicePointer::NULL,
        of_keyframe: DevicePointer::NULL,
    };
}

impl MeasuredDepths<'_> {
    /// The pointers, of arrays for `n` pixels.
    pub(super) fn argument(&self, n: usize) -> Result<MeasuredDepthsArgument, CudaError> {
        Ok(MeasuredDepthsArgument {
            frame: self.frame.at_least("depths of a frame", n)?.pointer(),
            keyframe: self.keyframe.at_least("depths of a keyframe", n)?.pointer(),
            of_frame: self.of_frame.at_least("scale by depth", 1)?.pointer(),
            of_keyframe: self.of_keyframe.at_least("use of depth", 1)?.pointer(),
        })
    }
}

/// `Problem` in `tracking.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Problem {
    frame_points: DevicePointer<f32>,
    keyframe_points: DevicePointer<f32>,
    index: DevicePointer<u32>,
    half_quality: DevicePointer<f16>,
    quality: DevicePointer<f32>,
    counts: DevicePointer<MatchCounts>,
    pose: DevicePointer<f64>,
    outcome: DevicePointer<Outcome>,
    batch: DevicePointer<[f32; 4]>,
    partials: DevicePointer<f32>,
    arrived: DevicePointer<u32>,
    rays: RaysArgument,
    pixels: u64,
    rel_error: f64,
    delta_norm: f64,
    rounding: f64,
    rounds: u32,
    shared_rounds: u32,
    max_iters: u32,
    least_fraction: f32,
    min_fit: f32,
    fits: f32,
    noise: [f32; 3],
    gate: [f32; 2],
    view: [f32; 9],
    measured: MeasuredDepthsArgument,
    inverse_measured_sigma: f32,
}
const _: () = assert!(size_of::<Problem>() == 256);

// SAFETY: the layout of the struct in `tracking.cu`.
unsafe impl KernelArgument for Problem {}

/// Launch configuration of the solve on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Layout {
    blocks: usize,
    /// Pixels gathered per thread.
    rounds: usize,
    /// Number of rounds whose matches fit in shared memory.
    shared_rounds: usize,
}

impl Layout {
    /// One block per multiprocessor, or fewer if there is not enough work. A block uses at most
    /// half of the shared memory, see `tracking.cu`.
    fn new(info: &DeviceInfo, pixels: usize) -> Self {
        let groups = pixels.div_ceil(LANES);
        let warps = THREADS / LANES;
        let blocks = groups.div_ceil(warps);
        let blocks = blocks.clamp(1, (info.multiprocessors as usize).max(1));
        let rounds = groups.div_ceil(blocks * warps);
        let half = (info.shared_bytes as usize + 1024) / 2;
        let fit = half.saturating_sub(OTHER_SHARED_BYTES) / ROUND_BYTES;
        Self {
            blocks,
            rounds,
            shared_rounds: rounds.min(fit),
        }
    }

    /// Number of 16-byte halves of matches that do not fit in shared memory.
    fn batch_len(&self) -> usize {
        (self.rounds - self.shared_rounds) * self.blocks * THREADS * 2
    }

    fn partials_len(&self) -> usize {
        2 * self.blocks * STRIDE
    }

    /// Dynamic shared memory of a block.
    fn shared_bytes(&self) -> u32 {
        // At most half of a multiprocessor's shared memory.
        (self.shared_rounds * ROUND_BYTES) as u32
    }
}

/// Memory of a [`PoseSolver`].
pub struct PoseSolverBuffers {
    /// Matches that do not fit in shared memory.
    batch: DeviceBuffer<[f32; 4]>,
    partials: DeviceBuffer<f32>,
    arrived: DeviceBuffer<u32>,
}

impl PoseSolverBuffers {
    /// Buffers for images of `pixels` pixels on a GPU with these properties.
    pub fn carve(
        c: &mut Carver<'_, '_>,
        info: &DeviceInfo,
        pixels: usize,
    ) -> Result<Self, CudaError> {
        let layout = Layout::new(info, pixels);
        Ok(Self {
            batch: c.device("matches", &[layout.batch_len()])?,
            partials: c.device("sums", &[layout.partials_len()])?,
            arrived: c.device("barrier", &[1])?,
        })
    }
}

/// Solves for poses on the device. Owns the kernels and all scratch memory, which serves one stream
/// at a time.
pub struct PoseSolver {
    rays: Kernel,
    pixels: Kernel,
    buffers: PoseSolverBuffers,
    layout: Layout,
    count: usize,
}

impl PoseSolver {
    /// For images of `pixels` pixels. Waits until the scratch memory is cleared.
    pub fn new(
        context: &Context,
        stream: &Stream,
        buffers: PoseSolverBuffers,
        pixels: usize,
    ) -> Result<Self, CudaError> {
        small("pixels of an image", pixels)?;
        let layout = Layout::new(context.info(), pixels);
        let batch = buffers.batch.all();
        batch.at_least("matches of the solver", layout.batch_len())?;
        let partials = buffers.partials.all();
        partials.at_least("sums of the solver", layout.partials_len())?;
        let solver = Self {
            rays: context.kernel("ms_tracking_solve_rays")?,
            pixels: context.kernel("ms_tracking_solve_pixels")?,
            buffers,
            layout,
            count: pixels,
        };
        for kernel in [&solver.rays, &solver.pixels] {
            kernel.allow_shared_bytes(solver.layout.shared_bytes())?;
            kernel.prefer_shared_memory()?;
        }
        stream.fill(solver.buffers.arrived.all(), 0)?;
        stream.synchronize()?;
        Ok(solver)
    }

    /// Enqueues a solve as a single launch.
    pub fn enqueue(
        &self,
        stream: &Stream,
        task: &SolveTask<'_>,
        params: &TrackingConfig,
    ) -> Result<(), CudaError> {
        let n = self.count;
        let kernel = match task.compared {
            Compared::Rays => &self.rays,
            Compared::Pixels(_) => &self.pixels,
        };
        let counts = task.counts.map(|c| c.at_least("match counts", 1));
        let pose = task.pose.map(|p| p.at_least("numbers of a pose", 8));
        let null_counts = DevicePointer::NULL;
        let (rays, (noise, fits), view, depth) = compared(task.compared, n, params)?;
        let measured = task.measured.map(|measured| measured.argument(n));
        let (half_quality, quality) = task.quality.at_least("match qualities", n)?.pointers();
        let problem = Problem {
            frame_points: task.frame_points.at_least("frame points", 3 * n)?.pointer(),
            keyframe_points: task
                .keyframe_points
                .at_least("keyframe points", 3 * n)?
                .pointer(),
            index: task.index.at_least("matches", n)?.pointer(),
            half_quality,
            quality,
            counts: counts.transpose()?.map_or(null_counts, |c| c.pointer()),
            pose: pose
                .transpose()?
                .map_or(DevicePointer::NULL, |p| p.pointer()),
            outcome: task.outcome.at_least("outcome", 1)?.pointer(),
            batch: self.buffers.batch.pointer(),
            partials: self.buffers.partials.pointer(),
            arrived: self.buffers.arrived.pointer(),
            rays,
            pixels: n as u64,
            rel_error: params.rel_error,
            delta_norm: params.delta_norm,
            rounding: rounding(self.layout.rounds),
            // All are below the number of pixels.
            rounds: self.layout.rounds as u32,
            shared_rounds: self.layout.shared_rounds as u32,
            max_iters: u32::try_from(params.max_iters).unwrap_or(u32::MAX),
            least_fraction: params.min_match_frac,
            min_fit: task.min_fit,
            fits,
            noise,
            gate: [task.min_quality, depth],
            view,
            measured: measured
                .transpose()?
                .unwrap_or(MeasuredDepthsArgument::NONE),
            inverse_measured_sigma: (1.0 / MEASURED_SIGMA) as f32,
        };
        let grid = Grid::blocks(self.layout.blocks as u32, THREADS as u32)
            .shared(self.layout.shared_bytes());
        // SAFETY: the lengths were checked above or follow from `layout`; the grid is resident: at
        // most one block per multiprocessor, which the kernel's launch bounds and shared memory
        // allow.
        unsafe { kernel.launch_cooperative(stream, grid, (problem,)) }
    }

    /// Like [`PoseSolver::enqueue`], and waits for the outcome.
    pub fn solve(
        &self,
        stream: &Stream,
        task: &SolveTask<'_>,
        params: &TrackingConfig,
    ) -> Result<Result<Solution, Unsolved>, CudaError> {
        self.enqueue(stream, task, params)?;
        let outcome = stream.read_vec(task.outcome.slice(0..1)?)?;
        Ok(match outcome.first() {
            Some(outcome) => outcome.solution(self.count),
            None => Err(SolveError::NoCorrespondences { given: 0 }.into()),
        })
    }
}

/// Relative error of a sum over matches: one rounding of 2⁻²⁴ for each of a thread's matches, for
/// the five levels of a warp and for the block's sum, and about ten within a match's own term.
fn rounding(rounds: usize) -> f64 {
    (rounds + 16) as f64 * 2f64.powi(-24)
}

/// Rays, noise with the limit of what fits, view and minimum depth of a target, in the form used by the kernels.
#[allow(clippy::type_complexity)]
fn compared(
    compared: Compared<'_>,
    pixels: usize,
    p: &TrackingConfig,
) -> Result<(RaysArgument, ([f32; 3], f32), [f32; 9], f32), CudaError> {
    let noise = |a: f64, b: f64| [(1.0 / a) as f32, (1.0 / b) as f32, p.huber as f32];
    let rays = match compared {
        Compared::Rays => {
            let noise = (noise(p.sigma_ray, p.sigma_dist), FITTING_RAY as f32);
            return Ok((RaysArgument::NONE, noise, [0.0; 9], f32::NEG_INFINITY));
        }
        Compared::Pixels(rays) => rays,
    };
    if rays.pixels() != pixels {
        return Err(CudaError::Length {
            what: "rays of the camera",
            expected: pixels,
            found: rays.pixels(),
        });
    }
    let k = &rays.intrinsics;
    let middle = [rays.width, rays.height].map(|size| 0.5 * (size as f64 - 1.0));
    let view = [
        k.fx,
        k.fy,
        k.cx,
        k.cy,
        middle[0],
        middle[1],
        middle[0] - p.pixel_border,
        middle[1] - p.pixel_border,
        p.depth_eps.max(0.0),
    ];
    Ok((
        rays.argument(),
        (noise(p.sigma_pixel, p.sigma_depth), fitting_pixel(k) as f32),
        view.map(|v| v as f32),
        rounded_down(p.depth_eps),
    ))
}

/// The largest f32 not above `x`: an f32 exceeds it if and only if it exceeds `x`.
fn rounded_down(x: f64) -> f32 {
    let near = x as f32;
    if f64::from(near) > x {
        near.next_down()
    } else {
        near
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(multiprocessors: u32, shared_kib: u32) -> DeviceInfo {
        DeviceInfo {
            ordinal: 0,
            name: String::new(),
            capability: (9, 0),
            multiprocessors,
            clock_khz: 0,
            l2_bytes: 0,
            memory_bytes: 0,
            shared_bytes: shared_kib * 1024,
            driver: (13, 0),
        }
    }

    /// Every pixel is gathered, by blocks small enough for two solves to share a multiprocessor.
    #[test]
    fn every_pixel_has_a_place() {
        for (sms, kib) in [(132, 227), (16, 163), (20, 227), (170, 99), (1, 48), (0, 0)] {
            for pixels in [0, 1, 31, 256, 257, 7575, 196_608, 1 << 24] {
                let info = info(sms, kib);
                let layout = Layout::new(&info, pixels);
                assert!(layout.blocks * layout.rounds * THREADS >= pixels);
                assert!(layout.blocks >= 1 && layout.blocks <= (sms as usize).max(1));
                assert!(layout.shared_rounds <= layout.rounds);
                let taken = layout.shared_rounds * ROUND_BYTES + OTHER_SHARED_BYTES;
                assert!(layout.shared_rounds == 0 || 2 * taken <= (kib as usize + 1) * 1024);
            }
        }
        // An H200 holds all matches of a 512×384 image in shared memory, an Orin does not.
        assert_eq!(Layout::new(&info(132, 227), 196_608).batch_len(), 0);
        assert!(Layout::new(&info(16, 163), 196_608).batch_len() > 0);
    }

    /// `.ci/kernels.py` checks by that list that every kernel fits on each kind of GPU.
    #[test]
    fn the_list_of_dynamic_shared_memory_is_that_of_the_launches() {
        let list = include_str!(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/kernels/shared_memory.txt"
        ));
        let gpus = [
            ("sm_87", 16, 163),
            ("sm_90", 132, 227),
            ("sm_110", 20, 227),
            ("sm_120", 170, 99),
        ];
        for (architecture, sms, kib) in gpus {
            let layout = Layout::new(&info(sms, kib), 1 << 24);
            for kernel in ["ms_tracking_solve_rays", "ms_tracking_solve_pixels"] {
                let row = format!("{kernel} {architecture} {}", layout.shared_bytes());
                assert!(
                    list.lines().any(|line| line == row),
                    "kernels/shared_memory.txt lacks {row:?}"
                );
            }
        }
    }

    #[test]
    fn a_threshold_in_f64_decides_as_in_f32() {
        for x in [1e-6, 0.1, 0.0, -1e-6, 1e-50, -1e-50, 3.0, f64::NEG_INFINITY] {
            let limit = rounded_down(x);
            assert!(f64::from(limit) <= x, "{x}");
            assert!(f64::from(limit.next_up()) > x, "{x}");
        }
    }
}
