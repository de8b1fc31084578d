//! Jacobian rows are compared with finite differences, sums with a plain scalar implementation of
//! the same formulas.

use super::kernel::{Block, Pose, Sink};
use super::lanes::{Lanes, Mask};
use super::*;
use nalgebra::Vector3;
use proptest::prelude::*;

type Row = [f64; 7];

/// Keeps the first lane of every row.
#[derive(Default)]
struct Recorder {
    rows: Vec<(Row, f64, f64)>,
    passed: bool,
}

impl Sink for Recorder {
    fn row<const K: usize>(&mut self, columns: [usize; K], row: [Lanes; K], e: Lanes, s: Lanes) {
        let mut dense = [0.0; 7];
        for (c, v) in columns.into_iter().zip(row) {
            dense[c] = v.0[0];
        }
        self.rows.push((dense, e.0[0], s.0[0]));
    }

    fn gate(&mut self, passed: Mask, _: Lanes) {
        self.passed = passed.0[0] != 0;
    }
}

const NOISE: Noise = Noise {
    sigma: (0.5, 2.0),
    measured: 0.1,
    huber: 1.345,
    fits: 1.0,
};

fn view() -> View {
    View {
        intrinsics: Intrinsics {
            fx: 200.0,
            fy: 210.0,
            cx: 130.0,
            cy: 90.0,
        },
        width: 256,
        height: 192,
        border: -10.0,
        depth_eps: 1e-6,
    }
}

fn models() -> [Model; 3] {
    [Model::Rays, Model::Calibrated(view()), Model::Points]
}

fn record(model: &Model, pose: &Sim3, moving: [f64; 3], target: [f64; 3], q: f64) -> Recorder {
    let block = Block {
        moving: moving.map(Lanes::splat),
        target: target.map(Lanes::splat),
        quality: Lanes::splat(q),
    };
    let pose = Pose::new(pose);
    let mut out = Recorder::default();
    match model {
        Model::Rays => kernel::rays(&pose, &NOISE, &block, &mut out),
        Model::Calibrated(v) => kernel::calibrated(&pose, v, &NOISE, &block, &mut out),
        Model::Points => kernel::points(&pose, &NOISE, &block, &mut out),
    }
    out
}

/// The residuals as defined in docs/algorithm.md (Tracking, Global optimisation).
fn residuals(model: &Model, pose: &Sim3, moving: [f64; 3], target: [f64; 3]) -> Vec<f64> {
    let p = pose.transform(&Vector3::from(moving));
    let x = Vector3::from(target);
    match model {
        Model::Rays => {
            let e = p / p.norm() - x / x.norm();
            vec![e.x, e.y, e.z, p.norm() - x.norm()]
        }
        Model::Calibrated(v) => {
            let uv = v.intrinsics.project(&p);
            vec![uv.x - x.x, uv.y - x.y, p.z.ln() - x.z.ln()]
        }
        Model::Points => (p - x).iter().copied().collect(),
    }
}

/// Target near the transformed point: a point, or a pixel and a depth.
fn target_of(model: &Model, near: &Vector3<f64>) -> [f64; 3] {
    match model {
        Model::Calibrated(v) => {
            let uv = v.intrinsics.project(near);
            [uv.x, uv.y, near.z]
        }
        Model::Rays | Model::Points => (*near).into(),
    }
}

fn points_in_front() -> impl Strategy<Value = [f64; 3]> {
    (-0.4..0.4, -0.3..0.3, 1.0..6.0f64).prop_map(|(x, y, z): (f64, f64, f64)| [x * z, y * z, z])
}

fn tangent(limit: f64) -> impl Strategy<Value = Tangent> {
    proptest::collection::vec(-limit..limit, 7).prop_map(|v| Tangent::from_column_slice(&v))
}

fn unit(k: usize, length: f64) -> Tangent {
    let mut xi = Tangent::zeros();
    xi[k] = length;
    xi
}

/// Central differences with a step of 1e-5: the third derivatives of these residuals are below 1e5
/// (pixels at 1 m), so the truncation error is below 1e-5²·1e5/6 < 2e-6, and rounding adds
/// 1e-13·200/1e-5.
const STEP: f64 = 1e-5;
const CLOSE: f64 = 1e-5;

proptest! {
    #[test]
    fn every_row_is_the_derivative_of_its_residual(
        pose in tangent(0.1), moving in points_in_front(), shift in tangent(0.05)
    ) {
        let pose = Sim3::exp(&pose);
        for model in models() {
            let near = pose.retract(&shift).transform(&Vector3::from(moving));
            let target = target_of(&model, &near);
            let got = record(&model, &pose, moving, target, 1.0);
            prop_assume!(got.passed);
            let e = residuals(&model, &pose, moving, target);
            prop_assert_eq!(got.rows.len(), e.len());
            for k in 0..7 {
                let plus = residuals(&model, &pose.retract(&unit(k, STEP)), moving, target);
                let minus = residuals(&model, &pose.retract(&unit(k, -STEP)), moving, target);
                for (r, (row, residual, _)) in got.rows.iter().enumerate() {
                    let numeric = (plus[r] - minus[r]) / (2.0 * STEP);
                    prop_assert!((row[k] - numeric).abs() < CLOSE, "{model:?} {r} {k}: {} {numeric}", row[k]);
                    prop_assert!((residual - e[r]).abs() < 1e-11, "{model:?} {r}: {residual} {}", e[r]);
                }
            }
        }
    }

    /// `J_j = row·Ad(T_i⁻¹)` and `J_i = −J_j`, and its closed form (docs/algorithm.md, Global
    /// optimisation).
    #[test]
    fn rows_are_carried_to_absolute_poses_by_the_adjoint(
        ti in tangent(0.8), tij in tangent(0.1), moving in points_in_front(), shift in tangent(0.05)
    ) {
        let ti = Sim3::exp(&ti);
        let tij = Sim3::exp(&tij);
        let tj = ti * tij;
        for model in models() {
            let target = target_of(&model, &tij.retract(&shift).transform(&Vector3::from(moving)));
            let got = record(&model, &tij, moving, target, 1.0);
            prop_assume!(got.passed);
            let transport = ti.inverse().adjoint();
            let at = |ti: &Sim3, tj: &Sim3| residuals(&model, &(ti.inverse() * *tj), moving, target);
            for (r, (row, _, _)) in got.rows.iter().enumerate() {
                let row = nalgebra::RowSVector::<f64, 7>::from_row_slice(row);
                let jj = row * transport;
                let (a, b, c) = (row.fixed_columns::<3>(0), row.fixed_columns::<3>(3), row[6]);
                let rot = ti.rotation.to_rotation_matrix();
                let ra = rot * a.transpose() / ti.scale;
                let rb = rot * b.transpose() + ti.translation.cross(&ra);
                let closed = [ra.x, ra.y, ra.z, rb.x, rb.y, rb.z, c + ti.translation.dot(&ra)];
                for k in 0..7 {
                    prop_assert!((jj[k] - closed[k]).abs() < 1e-9 * (1.0 + jj[k].abs()));
                    let (p, m) = (unit(k, STEP), unit(k, -STEP));
                    let of_j = (at(&ti, &tj.retract(&p))[r] - at(&ti, &tj.retract(&m))[r]) / (2.0 * STEP);
                    let of_i = (at(&ti.retract(&p), &tj)[r] - at(&ti.retract(&m), &tj)[r]) / (2.0 * STEP);
                    // Scales and lever arms of the outer pose multiply the error by up to ten.
                    prop_assert!((jj[k] - of_j).abs() < 10.0 * CLOSE, "{model:?} {r} {k}");
                    prop_assert!((jj[k] + of_i).abs() < 10.0 * CLOSE, "{model:?} {r} {k}");
                }
            }
        }
    }

    #[test]
    fn the_logarithm_is_right_to_rounding(v in prop_oneof![1e-300..1e300f64, 0.5..2.0f64, 0.999..1.001f64]) {
        let (got, want) = (Lanes::splat(v).ln().0[3], v.ln());
        prop_assert!((got - want).abs() <= 4.0 * f64::EPSILON * want.abs(), "ln {v}: {got} {want}");
    }

    /// Compares the sums of any number of random correspondences with the plain formulas.
    #[test]
    fn sums_are_those_of_the_formulas(
        pose in tangent(0.2), seed in proptest::collection::vec((points_in_front(), tangent(0.1), 0.1..4.0f64), 0..40)
    ) {
        let pose = Sim3::exp(&pose);
        for model in models() {
            let cases: Vec<_> = seed.iter().map(|(moving, shift, q)| {
                let moving = moving.map(|v| f64::from(v as f32));
                let near = pose.retract(shift).transform(&Vector3::from(moving));
                let target = target_of(&model, &near).map(|v| f64::from(v as f32));
                (moving, target, f64::from(*q as f32))
            }).collect();
            let got = sum(&model, &pose, &cases);
            let (mut h, mut g) = (Matrix7::zeros(), Tangent::zeros());
            let (mut cost, mut robust, mut used) = (0.0, 0.0, 0);
            for (moving, target, q) in cases {
                let one = record(&model, &pose, moving, target, q);
                used += u64::from(one.passed);
                let of = residuals(&model, &pose, moving, target);
                for (n, ((row, _, _), e)) in one.rows.iter().zip(of).enumerate() {
                    let last = n + 1 == one.rows.len() && !matches!(model, Model::Points);
                    let sigma = if last { NOISE.sigma.1 } else { NOISE.sigma.0 };
                    let info = if one.passed { q / (sigma * sigma) } else { 0.0 };
                    let w = (info.sqrt() * e).abs();
                    let rho = if w < NOISE.huber { 1.0 } else { NOISE.huber / w };
                    let row = Tangent::from_column_slice(row);
                    h += row * row.transpose() * (info * rho);
                    g += row * (info * rho * e);
                    cost += 0.5 * rho * w * w;
                    let k = NOISE.huber;
                    robust += if w < k { 0.5 * w * w } else { k * (w - 0.5 * k) };
                }
            }
            let close = |a: f64, b: f64| (a - b).abs() <= 1e-9 * (1.0 + b.abs());
            prop_assert_eq!(got.used, used);
            prop_assert!(close(got.cost, cost) && close(got.robust, robust));
            prop_assert!((got.hessian_matrix() - h).norm() <= 1e-11 * (1.0 + h.norm()));
            prop_assert!((got.gradient_vector() - g).norm() <= 1e-9 * (1.0 + g.norm()));
        }
    }

    /// A correspondence with a non-finite value has no effect.
    #[test]
    fn what_is_not_finite_changes_no_bit(
        pose in tangent(0.2), place in 0..9usize, field in 0..7usize, kind in 0..5usize
    ) {
        let bad = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 3e38, 0.0][kind];
        let pose = Sim3::exp(&pose);
        let good = |k: usize| {
            let k = k as f32;
            ([0.1 * k, -0.05 * k, 2.0 + 0.1 * k], [0.1 * k, 0.02 * k, 2.2], 1.0 + k)
        };
        for model in models() {
            let sums = |poison: bool| {
                let mut data = [0.0; COLUMNS * 16];
                let mut batch = Batch::new(&mut data);
                for k in 0..9 {
                    let (m, t, q) = good(k);
                    batch.push(&model, m, t, 300 + k, q, false);
                    if poison && k == place {
                        let (mut m, mut t, mut q) = good(k);
                        match (kind, field) {
                            // A zero is invalid as a whole point and as a quality.
                            (4, 0..3) => m = [0.0; 3],
                            (4, 3..6) => t = [0.0; 3],
                            (_, 0..3) => m[field] = bad,
                            (_, 3..6) => t[field - 3] = bad,
                            // 3e38 is a valid quality.
                            _ => q = if kind == 3 { f32::NAN } else { bad },
                        }
                        batch.push(&model, m, t, 300 + k, q, false);
                    }
                }
                batch.finish();
                let mut sums = Sums::new(&NOISE);
                accumulate(&model, &NOISE, &pose, batch.columns(), &mut sums);
                sums.total()
            };
            let (clean, poisoned) = (sums(false), sums(true));
            prop_assert!(clean.is_finite());
            prop_assert_eq!(format!("{clean:?}"), format!("{poisoned:?}"));
        }
    }
}

fn sum(model: &Model, pose: &Sim3, cases: &[([f64; 3], [f64; 3], f64)]) -> Normal {
    let mut data = [0.0; COLUMNS * 64];
    let mut batch = Batch::new(&mut data);
    for (m, t, q) in cases {
        batch.put([m[0], m[1], m[2], t[0], t[1], t[2], *q].map(|v| v as f32));
    }
    batch.finish();
    let mut sums = Sums::new(&NOISE);
    accumulate(model, &NOISE, pose, batch.columns(), &mut sums);
    sums.total()
}

/// Points that only the pose makes unusable: moved to the camera centre, behind the camera, out of
/// the image, or to infinity.
#[test]
fn points_that_a_pose_makes_unusable_do_not_count() {
    let to_zero = Sim3 {
        translation: Vector3::new(0.0, 0.0, -2.0),
        ..Sim3::identity()
    };
    let far = Sim3 {
        scale: 1e200,
        ..Sim3::identity()
    };
    let aside = Sim3 {
        translation: Vector3::new(9.0, 0.0, 0.0),
        ..Sim3::identity()
    };
    let behind = Sim3 {
        translation: Vector3::new(0.0, 0.0, -5.0),
        ..Sim3::identity()
    };
    let case = [([0.0, 0.0, 2.0], [0.1, 0.1, 2.0], 1.0)];
    for model in models() {
        let calibrated = matches!(model, Model::Calibrated(_));
        for (name, pose, counts) in [
            ("zero", to_zero, false),
            ("far", far, false),
            ("aside", aside, !calibrated),
            ("behind", behind, !calibrated),
        ] {
            let got = sum(&model, &pose, &case);
            assert!(got.is_finite(), "{name} {model:?}");
            assert_eq!(got.used, u64::from(counts), "{name} {model:?}");
            if !counts {
                assert_eq!(got.hessian, [0.0; 28], "{name} {model:?}");
                assert_eq!(got.robust, 0.0, "{name} {model:?}");
            }
        }
    }
}

/// `pixel_border`: a projection counts strictly inside `(border, w − 1 − border)`.
#[test]
fn the_border_is_where_the_specification_puts_it() {
    let v = view();
    for (u, inside) in [
        (-9.999, true),
        (-10.001, false),
        (264.999, true),
        (265.001, false),
    ] {
        let moving = v.intrinsics.ray(u, 90.0) * 2.0;
        let got = record(
            &Model::Calibrated(v),
            &Sim3::identity(),
            moving.into(),
            [0.0, 0.0, 2.0],
            1.0,
        );
        assert_eq!(got.passed, inside, "{u}");
    }
    for (row, inside) in [
        (-9.999, true),
        (-10.001, false),
        (200.999, true),
        (201.001, false),
    ] {
        let moving = v.intrinsics.ray(100.0, row) * 2.0;
        let got = record(
            &Model::Calibrated(v),
            &Sim3::identity(),
            moving.into(),
            [0.0, 0.0, 2.0],
            1.0,
        );
        assert_eq!(got.passed, inside, "{row}");
    }
}

/// The vectorised version for this machine and the plain one are bit-identical.
#[test]
fn vector_width_changes_no_bit() {
    let pose = Sim3::exp(&Tangent::from_column_slice(&[
        0.1, -0.2, 0.05, 0.03, 0.02, -0.07, 0.04,
    ]));
    let mut data = [0.0; COLUMNS * 64];
    for model in models() {
        let mut batch = Batch::new(&mut data);
        for k in 0..61 {
            let t = k as f32 * 0.1;
            let m = [t.sin(), t.cos() * 0.7, 2.0 + (t * 3.1).sin()];
            let x = [t.sin() * 1.1, t.cos() * 0.8, 2.1 + (t * 3.0).sin()];
            batch.push(&model, m, x, 90 * 256 + k, 0.5 + t, false);
        }
        batch.finish();
        let columns = batch.columns();
        let mut dispatched = Sums::new(&NOISE);
        accumulate(&model, &NOISE, &pose, columns, &mut dispatched);
        let mut plain = Sums::new(&NOISE);
        let at_pose = Pose::new(&pose);
        for at in (0..columns.len()).step_by(LANES) {
            let block = Block::load(&columns, at);
            match &model {
                Model::Rays => kernel::rays(&at_pose, &NOISE, &block, &mut plain),
                Model::Calibrated(v) => {
                    kernel::calibrated(&at_pose, v, &NOISE, &block, &mut plain);
                }
                Model::Points => kernel::points(&at_pose, &NOISE, &block, &mut plain),
            }
        }
        let (a, b) = (dispatched.total(), plain.total());
        assert!(a.used > 40, "{model:?} {}", a.used);
        assert_eq!(a.hessian.map(f64::to_bits), b.hessian.map(f64::to_bits));
        assert_eq!(a.gradient.map(f64::to_bits), b.gradient.map(f64::to_bits));
        assert_eq!(a.robust.to_bits(), b.robust.to_bits());
    }
}

#[test]
fn losing_expensive_matches_is_no_progress_by_itself() {
    // The same mean cost with fewer matches is accepted, but not once half of the matches are gone.
    assert!(is_progress((100.0, 100), (90.0, 90)));
    assert!(!is_progress((100.0, 100), (91.0, 90)));
    assert!(!is_progress((100.0, 100), (1.0, 49)));
    // Matches that come into view may cost up to five times the mean.
    assert!(is_progress((100.0, 100), (150.0, 110)));
    assert!(!is_progress((100.0, 100), (160.0, 110)));
    // A rise is no progress, differences within rounding are ignored, and NaN is no progress.
    assert!(!is_progress((100.0, 100), (100.0 + 1e-9, 100)));
    assert!(is_progress((100.0, 100), (100.0 + 1e-11, 100)));
    assert!(!is_progress((100.0, 100), (f64::NAN, 100)));
}

#[test]
fn constrained_points_are_on_their_rays_at_their_depth() {
    let k = view().intrinsics;
    let points: Vec<f32> = (0..3 * 5 * 4).map(|v| 1.0 + v as f32 * 0.1).collect();
    let mut out = vec![0.0; points.len()];
    constrain_to_rays(&points, k, 5, 4, &mut out).unwrap();
    for (n, (p, o)) in points.chunks(3).zip(out.chunks(3)).enumerate() {
        assert_eq!(p[2], o[2]);
        let uv = k.project(&Vector3::new(o[0], o[1], o[2]).map(f64::from));
        // Points in f32: a relative error of 6e-8 at up to 130 pixels from the principal point.
        assert!((uv.x - (n % 5) as f64).abs() < 2e-5, "{uv}");
        assert!((uv.y - (n / 5) as f64).abs() < 2e-5, "{uv}");
    }
    let error = constrain_to_rays(&points[3..], k, 5, 4, &mut out).unwrap_err();
    assert_eq!(
        error.to_string(),
        "points: expected 60 entries, found 57: give arrays of one image size"
    );
    constrain_to_rays(&[], k, 0, 4, &mut []).unwrap();
}

#[test]
fn a_pixels_place_is_its_quotient_and_remainder() {
    let intrinsics = Intrinsics {
        fx: 1.0,
        fy: 1.0,
        cx: 0.0,
        cy: 0.0,
    };
    for width in [1, 2, 3, 7, 49, 255, 256, 288, 511, 512, 65_537] {
        let view = View {
            intrinsics,
            width,
            height: 1 << 31,
            border: 0.0,
            depth_eps: 0.0,
        };
        // Rounding would show at the ends of rows, both near zero and far from it.
        for row in [0, 1, 2, 1000, u32::MAX as usize / width] {
            for pixel in [row * width, row * width + width / 2, (row + 1) * width - 1] {
                assert_eq!(view.place(pixel), (pixel % width, pixel / width), "{width}");
            }
        }
    }
}
