//! The pose solve on the GPU against the CPU's.

mod agreement;
mod failures;
mod streams;

use half::f16;
use mast3r_slam::compute::cuda::depth::Found;
use mast3r_slam::compute::cuda::matching::MatchCounts;
use mast3r_slam::compute::cuda::tracking::{
    CameraRays, CameraRaysBuffers, Compared, MeasuredDepths, Outcome, PoseSolver,
    PoseSolverBuffers, SolveTask, Status, Unsolved,
};
use mast3r_slam::compute::pose_solver::{
    Correspondences, PoseSolver as CpuSolver, Residual, Solution, SolveError, constrain_to_rays,
};
use mast3r_slam::config::TrackingConfig;
use mast3r_slam::geometry::{Sim3, Tangent};
use mast3r_slam::gpu::{Context, DeviceBuffer, Floats, Priority, Stream};
use nalgebra::SMatrix;
use testkit::solver_scene::{Pair, Random, intrinsics};

/// Half the distance of 1 to the next f32.
const EPSILON: f64 = 1.0 / (1 << 24) as f64;

/// Device memory for problems of one image size.
struct Rig {
    stream: Stream,
    solver: PoseSolver,
    rays: CameraRays,
    frame_points: DeviceBuffer<f32>,
    keyframe_points: DeviceBuffer<f32>,
    index: DeviceBuffer<u32>,
    quality: DeviceBuffer<f32>,
    half_quality: DeviceBuffer<f16>,
    counts: DeviceBuffer<MatchCounts>,
    pose: DeviceBuffer<f64>,
    outcome: DeviceBuffer<Outcome>,
    depths: [DeviceBuffer<f32>; 2],
    of_frame: DeviceBuffer<Found>,
    of_keyframe: DeviceBuffer<u32>,
    size: (usize, usize),
}

impl Rig {
    fn new(context: &Context, width: usize, height: usize) -> Self {
        let n = width * height;
        let stream = context.stream(Priority::High).unwrap();
        let k = intrinsics(width, height);
        let rig = crate::carve(context, |c| {
            let scratch = PoseSolverBuffers::carve(c, context.info(), n)?;
            let rays = CameraRaysBuffers::carve(c, width, height)?;
            Ok(Self {
                solver: PoseSolver::new(context, &stream, scratch, n)?,
                rays: CameraRays::new(&stream, rays, k, width, height)?,
                frame_points: c.device("frame points", &[n, 3])?,
                keyframe_points: c.device("keyframe points", &[n, 3])?,
                index: c.device("index", &[n])?,
                quality: c.device("quality", &[n])?,
                half_quality: c.device("half quality", &[n])?,
                counts: c.device("counts", &[1])?,
                pose: c.device("pose", &[8])?,
                outcome: c.device("outcome", &[1])?,
                depths: [c.device("depths", &[n])?, c.device("depths", &[n])?],
                of_frame: c.device("of frame", &[1])?,
                of_keyframe: c.device("of keyframe", &[1])?,
                size: (width, height),
                stream,
            })
        });
        rig.stream.fill(rig.outcome.all(), 0).unwrap();
        rig
    }

    fn task(&self, residual: Residual) -> SolveTask<'_> {
        SolveTask {
            frame_points: self.frame_points.all(),
            keyframe_points: self.keyframe_points.all(),
            index: self.index.all(),
            quality: Floats::F32(self.quality.all()),
            min_quality: 0.0,
            counts: None,
            compared: match residual {
                Residual::Rays => Compared::Rays,
                Residual::Calibrated(_) => Compared::Pixels(&self.rays),
            },
            pose: Some(self.pose.all()),
            outcome: self.outcome.all(),
            measured: Some(MeasuredDepths {
                frame: self.depths[0].all(),
                keyframe: self.depths[1].all(),
                of_frame: self.of_frame.all(),
                of_keyframe: self.of_keyframe.all(),
            }),
            min_fit: 0.0,
        }
    }

    fn load(&self, pair: &Pair, start: &Sim3) {
        assert_eq!(self.size, (pair.width, pair.height));
        let s = &self.stream;
        s.write(&pair.frame_points, self.frame_points.all())
            .unwrap();
        s.write(&pair.keyframe_points, self.keyframe_points.all())
            .unwrap();
        s.write(&pair.index, self.index.all()).unwrap();
        s.write(&pair.quality, self.quality.all()).unwrap();
        s.write(&start.to_array(), self.pose.all()).unwrap();
        // Without depth the memory holds what it held.
        let found = match &pair.measured {
            Some(depths) => {
                for (depths, dst) in depths.iter().zip(&self.depths) {
                    s.write(depths, dst.all()).unwrap();
                }
                Found::scaled(1.0)
            }
            None => Found::unscaled(),
        };
        s.write(&[found], self.of_frame.all()).unwrap();
        let has = [u32::from(pair.measured.is_some())];
        s.write(&has, self.of_keyframe.all()).unwrap();
    }

    fn outcome(&self) -> Outcome {
        self.stream.read_vec(self.outcome.all()).unwrap()[0]
    }

    fn pose(&self) -> Vec<f64> {
        self.stream.read_vec(self.pose.all()).unwrap()
    }

    /// Solves, and checks what holds of every outcome.
    fn solve(
        &self,
        pair: &Pair,
        residual: Residual,
        start: &Sim3,
        params: &TrackingConfig,
    ) -> Outcome {
        self.load(pair, start);
        self.solver
            .enqueue(&self.stream, &self.task(residual), params)
            .unwrap();
        let outcome = self.outcome();
        let (found, kept) = (self.pose(), start.to_array());
        if outcome.status() == Some(Status::Solved) {
            assert_eq!(found, outcome.pose, "the pose goes where the next begins");
        } else {
            assert_eq!((&found[..], outcome.pose), (&kept[..], kept), "kept");
        }
        if Sim3::from_array(outcome.pose).is_finite() {
            let pose = Sim3 {
                // As the device has it: not normalised again.
                rotation: nalgebra::Unit::new_unchecked(nalgebra::Quaternion::new(
                    outcome.pose[6],
                    outcome.pose[3],
                    outcome.pose[4],
                    outcome.pose[5],
                )),
                ..Sim3::from_array(outcome.pose)
            };
            let (m, t) = (pose.scaled_rotation(), pose.translation);
            let expected: Vec<f32> = m.transpose().iter().chain(&t).map(|&v| v as f32).collect();
            crate::assert_same_bits("transform", &outcome.transform, &expected);
        }
        outcome
    }
}

fn residuals(pair: &Pair) -> [Residual; 2] {
    let k = intrinsics(pair.width, pair.height);
    [Residual::Rays, Residual::Calibrated(k)]
}

/// The room as two calibrated cameras see it: each keyframe pixel's point in the nearest frame pixel, at
/// its depth there. Matches are up to half a pixel off, and those outside the frame have no quality.
fn projected(width: usize, height: usize, truth: Sim3) -> Pair {
    let k = intrinsics(width, height);
    let mut pair = Pair::exact(width, height, truth);
    let inverse = truth.inverse();
    pair.frame_points.fill(0.0);
    for n in 0..width * height {
        let p = [0, 1, 2].map(|c| f64::from(pair.keyframe_points[3 * n + c]));
        let moved = inverse.transform(&p.into());
        let at = k.project(&moved).map(f64::round);
        let inside = at.x >= 0.0 && at.y >= 0.0 && at.x < width as f64 && at.y < height as f64;
        pair.index[n] = 0;
        if inside && moved.z > 0.1 {
            let m = at.y as usize * width + at.x as usize;
            let point = k.ray(at.x, at.y) * moved.z;
            let point = [point.x, point.y, point.z].map(|v| v as f32);
            pair.frame_points[3 * m..3 * m + 3].copy_from_slice(&point);
            pair.index[n] = m as u32;
        } else {
            pair.quality[n] = 0.0;
        }
    }
    pair
}

/// A problem for each residual, with noise and wrong matches.
fn problems(width: usize, height: usize, truth: Sim3) -> [(&'static str, Residual, Pair); 3] {
    let rays = Pair::exact(width, height, truth);
    let pixels = projected(width, height, truth);
    let [a, b] = residuals(&rays);
    let spoil = |pair: Pair| pair.noisy(0.005).with_outliers(0.1);
    let pixels = spoil(pixels);
    let measured = pixels.clone().with_depth();
    [
        ("rays", a, spoil(rays)),
        ("pixels", b, pixels),
        ("depths", b, measured),
    ]
}

/// The CPU's, which wants calibrated pointmaps on their rays.
fn on_cpu(
    pair: &Pair,
    residual: Residual,
    start: &Sim3,
    params: &TrackingConfig,
) -> Result<Solution, SolveError> {
    let (mut frame, mut key) = (pair.frame_points.clone(), pair.keyframe_points.clone());
    if let Residual::Calibrated(k) = residual {
        let (w, h) = (pair.width, pair.height);
        constrain_to_rays(&pair.frame_points, k, w, h, &mut frame)?;
        constrain_to_rays(&pair.keyframe_points, k, w, h, &mut key)?;
    }
    let problem = Correspondences {
        frame_points: &frame,
        keyframe_points: &key,
        ..pair.correspondences()
    };
    CpuSolver::new(pair.index.len()).solve(&problem, residual, start, params)
}

/// Stops only when a step is tiny: a hundredth of what the sigmas of these problems resolve.
fn exhaustive() -> TrackingConfig {
    TrackingConfig {
        rel_error: 0.0,
        delta_norm: 1e-6,
        ..TrackingConfig::default()
    }
}

/// Length of a tangent in units of the pose's standard deviations.
fn length(hessian: &SMatrix<f64, 7, 7>, xi: &Tangent) -> f64 {
    xi.dot(&(hessian * xi)).max(0.0).sqrt()
}

/// How far a residual of the GPU can be from the CPU's, in whitened units.
///
/// A ray has 16 roundings of 2⁻²⁴: four of the transform, of sums up to twice as long as their result, two
/// of the ray, three of the target's, the pose's own; a pixel 16 of coordinates up to the image's width. The other residuals of these problems are off by far less.
fn residual_error(pair: &Pair, residual: Residual, params: &TrackingConfig) -> f64 {
    let quality = pair.quality.iter().fold(0.0_f32, |a, &b| a.max(b));
    let coordinate = match residual {
        Residual::Rays => 1.0 / params.sigma_ray,
        Residual::Calibrated(_) => pair.width as f64 / params.sigma_pixel,
    };
    16.0 * EPSILON * coordinate * f64::from(quality).sqrt()
}

/// How far that can move the minimum, in the norm of the Hessian: least squares whose residuals change
/// by a vector move by at most its length in this norm, for they project it; Huber's, whose second
/// derivative is the Hessian's but for the rows with a weight below one, by at most twice that while
/// those carry less than half of it.
fn shift(pair: &Pair, residual: Residual, used: usize, params: &TrackingConfig) -> f64 {
    2.0 * residual_error(pair, residual, params) * ((3 * used) as f64).sqrt()
}

/// Least eigenvalue of the Hessian scaled to a unit diagonal.
fn least_eigenvalue(h: &SMatrix<f64, 7, 7>) -> f64 {
    SMatrix::<f64, 7, 7>::from_fn(|r, c| h[(r, c)] / (h[(r, r)] * h[(c, c)]).sqrt())
        .symmetric_eigenvalues()
        .min()
}

/// As the solver has it, on a GPU of 16 multiprocessors or more.
fn rounding(pixels: usize) -> f64 {
    (pixels.div_ceil(16 * 256).max(1) + 16) as f64 * EPSILON
}

/// Compares a solve with the CPU's; what differed, if too much.
fn compare(
    what: &str,
    pair: &Pair,
    residual: Residual,
    start: &Sim3,
    params: &TrackingConfig,
    found: &Outcome,
) -> Result<(), String> {
    let expected =
        on_cpu(pair, residual, start, params).map_err(|e| format!("{what}: CPU: {e}"))?;
    let found_pose = Sim3::from_array(found.pose);
    let off = (found_pose * expected.keyframe_from_frame.inverse()).log();
    let h = &expected.hessian;
    let (moved, smallest) = (length(h, &off), least_eigenvalue(h));
    let way = (expected.keyframe_from_frame * start.inverse()).log();
    // Both stop within a step of `delta_norm` of the minimum; or by the configuration's rule after the
    // same steps, each of which is off by what rounding does to the Hessian.
    let stop = if params.rel_error == 0.0 {
        2.0 * params.delta_norm * h.diagonal().max().sqrt()
    } else {
        7.0 * rounding(pair.index.len()) / smallest * length(h, &way)
    };
    let limit = shift(pair, residual, expected.used, params) + stop;
    let line = format!(
        "{what}: off by {moved:.2e} of {limit:.2e} sigmas ({:.1e} in all), iterations {} instead of {}, \
         evaluations {}, converged {} instead of {}, used {} instead of {}, cost {:.9} instead of {:.9}, \
         least eigenvalue {smallest:.1e}",
        off.norm(),
        found.iterations,
        expected.iterations,
        found.evaluations,
        found.converged,
        u32::from(expected.converged),
        found.used,
        expected.used,
        found.cost,
        expected.cost
    );
    println!("{line}");
    let mut wrong = Vec::new();
    if found.status() != Some(Status::Solved) {
        return Err(format!("{line}: status {:?}", found.status()));
    }
    if moved.is_nan() || moved > limit {
        wrong.push("pose");
    }
    // With the stop rules of the configuration the same steps are taken.
    if params.rel_error > 0.0
        && (found.iterations, found.converged != 0) != (expected.iterations, expected.converged)
    {
        wrong.push("iterations");
    }
    // A projection within rounding of the view's border may count here and not there: as many as there
    // are pixels within 16 roundings of a coordinate on either side of it.
    let border = match residual {
        Residual::Rays => 0,
        Residual::Calibrated(_) => {
            let (w, h) = (pair.width as f64, pair.height as f64);
            (2.0 * 16.0 * EPSILON * w * 2.0 * (w + h)).ceil() as usize
        }
    };
    if (found.used as usize).abs_diff(expected.used) > border {
        wrong.push("used");
    }
    // Matches whose error is within rounding of the limit may fit here and not there.
    if (found.fitting as usize).abs_diff(expected.fitting) > border + pair.index.len() / 1000 {
        wrong.push("fitting");
    }
    // Whitened residuals change by a vector of this length at most; the cost by that times its own root.
    let change = shift(pair, residual, expected.used, params) + moved;
    let cost = (2.0 * expected.cost).sqrt() * change + 0.5 * change * change;
    let cost = cost + rounding(pair.index.len()) * expected.cost;
    if found.used as usize == expected.used && (found.cost - expected.cost).abs() > cost {
        wrong.push("cost");
    }
    // An entry, relative to the diagonal, changes by rounding, by the rows' change with the pose, and by
    // that of Huber's weights k/|w|, which is that of w over k; and no row's w changes by more than
    // the pose in the Hessian's norm.
    let of = found.hessian_matrix();
    let spread = SMatrix::<f64, 7, 7>::from_fn(|r, c| {
        (of[(r, c)] - h[(r, c)]).abs() / (h[(r, r)] * h[(c, c)]).sqrt()
    });
    let weights = (residual_error(pair, residual, params) + moved) / params.huber;
    let entry = rounding(pair.index.len()) + 4.0 * off.norm() + weights;
    if found.used as usize == expected.used && (spread.max().is_nan() || spread.max() > entry) {
        wrong.push("hessian");
    }
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(format!("{line}: wrong: {}", wrong.join(", "))),
    }
}

fn report(failures: Vec<String>) {
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
