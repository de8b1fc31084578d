//! The motions between keyframes of a graph that a sensor has measured.

use super::depth_ends::DepthEnds;
use super::depth_offset::DepthOffset;
use super::motion::{CameraMotion, visual_motion};
use super::robust::{Mean, mean};
use super::scale::{ESTIMATED, ScaleEstimate, ScaleSource};
use super::wheels::WHEEL_SCALE;
use crate::compute::global::MetricPrior;
use crate::geometry::Sim3;
use nalgebra::{Cholesky, Matrix3};
use rustc_hash::FxHashMap;

/// Shorter ways, in metres, do not tell the scale.
const MIN_WAY: f64 = 0.5;
/// Changes of depth's offset, in seconds, and of its standard deviation, as a factor, that change no motion.
const SAME_OFFSET: f64 = 5e-4;
const SAME_SIGMA: f64 = 1.1;
/// Standard deviation of what matches get wrong about the length of one motion, as a part of it.
const EACH: f64 = 0.005;

/// A measured motion from keyframe `i` to keyframe `j`, named by id.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MeasuredMotion {
    pub i: u32,
    pub j: u32,
    pub motion: CameraMotion,
    /// What `motion` was computed from, if depth has measured it and its ends are still where it was measured.
    pub ends: Option<DepthEnds>,
}

impl MeasuredMotion {
    /// A motion that depth with this offset has measured.
    pub fn by_depth(ends: DepthEnds, offset: &DepthOffset) -> Self {
        Self {
            i: ends.i.id,
            j: ends.j.id,
            motion: ends.motion(offset),
            ends: Some(ends),
        }
    }
}

/// A motion of a graph.
#[derive(Debug)]
struct Kept {
    measured: MeasuredMotion,
    /// [`Scales::longer`](super::scale::Scales::longer) of the last solve that moved one of its keyframes.
    longer: Option<f64>,
}

/// The measured motions of a graph. There is at most one to a keyframe.
#[derive(Debug, Default)]
pub struct Motions {
    kept: Vec<Kept>,
    /// The offset of depth by which motions were computed last.
    offset: Option<DepthOffset>,
}

impl Motions {
    /// The motions.
    pub(super) fn measured(&self) -> impl Iterator<Item = &MeasuredMotion> {
        self.kept.iter().map(|kept| &kept.measured)
    }

    /// Adds a motion; ignored if it connects a keyframe with itself.
    pub fn add(&mut self, motion: MeasuredMotion) {
        if motion.i != motion.j {
            self.kept.retain(|kept| kept.measured.j != motion.j);
            self.kept.push(Kept {
                measured: motion,
                longer: None,
            });
        }
    }

    /// Computes the motions that depth has measured again if its offset, which is this one now, has changed.
    pub fn set_offset(&mut self, offset: &DepthOffset) {
        let is_same = |before: &DepthOffset| {
            let ratio = before.sigma / offset.sigma;
            (before.seconds - offset.seconds).abs() < SAME_OFFSET
                && (1.0 / SAME_SIGMA..SAME_SIGMA).contains(&ratio)
        };
        if self.offset.as_ref().is_some_and(is_same) {
            return;
        }
        self.offset = Some(*offset);
        for Kept { measured, longer } in &mut self.kept {
            if let Some(ends) = &measured.ends {
                measured.motion = ends.motion(offset);
                // The map was solved with another one.
                *longer = None;
            }
        }
    }

    /// Removes keyframe `id`: motions from it start where the motion to it does, or else at another keyframe, from which
    /// that to `id` is known as `otherwise`. Without either, they end.
    pub fn remove(&mut self, id: u32, otherwise: Option<(u32, CameraMotion)>) {
        let to = self.measured().find(|m| m.j == id);
        let to = to.map(|to| (to.i, to.motion)).or(otherwise);
        self.kept.retain_mut(|Kept { measured: m, .. }| {
            if let Some((i, motion)) = to.filter(|_| m.i == id) {
                m.motion = motion.then(&m.motion);
                (m.i, m.ends) = (i, None);
            }
            m.i != id && m.j != id && m.i != m.j
        });
    }

    /// Priors between the keyframes that `index` knows, with their information multiplied by `units`
    /// ([`crate::compute::global::solver_units`]).
    pub fn priors(&self, units: f64, index: impl Fn(u32) -> Option<usize>) -> Vec<MetricPrior> {
        let prior = |m: &MeasuredMotion| {
            let information = m.motion.information()? * units;
            Some(MetricPrior {
                i: index(m.i)?,
                j: index(m.j)?,
                i_from_j: m.motion.i_from_j,
                information: (information + information.transpose()) * 0.5,
            })
        };
        self.measured().filter_map(prior).collect()
    }

    /// A solve with scales that are longer by this part moved the keyframes for which `moved` holds.
    pub fn note_solved(&mut self, moved: impl Fn(u32) -> bool, longer: f64) {
        for kept in &mut self.kept {
            if moved(kept.measured.i) || moved(kept.measured.j) {
                kept.longer = Some(longer);
            }
        }
    }

    /// By which part the measured motions `p` are longer than those `q` between these poses, before scales were longer:
    /// the mean of `qᵀ C⁻¹ (p − q) / qᵀ C⁻¹ q`, with the covariances `C`, over the motions that were solved. Motions from
    /// one keyframe share the errors of its image, and count as correlated by half. A map follows a motion that is measured
    /// precisely, whatever its matches say, so that none counts more than [`EACH`] admits. `None` without a motion.
    pub fn excess(&self, index: impl Fn(u32) -> Option<usize>, poses: &[Sim3]) -> Option<Mean> {
        let mut from = FxHashMap::default();
        for motion in self.measured() {
            *from.entry(motion.i).or_insert(0.0) += 1.0;
        }
        let excess = |kept: &Kept| {
            let (m, longer) = (&kept.measured, kept.longer?);
            let place = |id: u32| poses.get(index(id)?);
            let map = visual_motion(place(m.i)?, place(m.j)?).translation.vector;
            let of_position: Matrix3<f64> = m.motion.covariance.fixed_view::<3, 3>(0, 0).into();
            let along = Cholesky::new(of_position)?.solve(&map);
            let information = along.dot(&map);
            let off = along.dot(&(m.motion.i_from_j.translation.vector - map));
            let alike = (1.0 + from.get(&m.i)?) / 2.0;
            let variance = alike / information + EACH * EACH;
            (information > 0.0).then_some((longer + off / information, 1.0 / variance))
        };
        let known: Vec<(f64, f64)> = self.kept.iter().filter_map(excess).collect();
        mean(|| known.iter().copied())
    }

    /// The scale of the map: the ratio `Σ‖p‖ / Σ‖q‖` of the lengths by wheels and at these poses, over the motions
    /// between the newest of `ids`, ascending. Its standard deviation is that of the wheels' radius, and of the sum of
    /// the lengths by the motions' covariances, or by the scatter of the lengths if that is more. `None` if less than
    /// half a metre was measured.
    pub fn scale(&self, ids: &[u32], poses: &[Sim3]) -> Option<ScaleEstimate> {
        if self.kept.is_empty() {
            return None;
        }
        let start = ids.len().saturating_sub(ESTIMATED);
        let (ids, poses) = (ids.get(start..)?, poses.get(start..)?);
        let place = |id: u32| {
            poses
                .get(ids.binary_search(&id).ok()?)
                .map(|p| p.translation)
        };
        let lengths = |m: &MeasuredMotion| {
            let by_wheels = m.motion.i_from_j.translation.vector;
            let along = by_wheels.try_normalize(1e-9)?;
            let of_position = m.motion.covariance.fixed_view::<3, 3>(0, 0);
            let (length, map) = (by_wheels.norm(), (place(m.j)? - place(m.i)?).norm());
            let common = (WHEEL_SCALE * length).powi(2);
            let variance = along.dot(&(of_position * along)) - common;
            Some((length, map, variance.max(0.0)))
        };
        let known = || self.measured().filter_map(lengths);
        let (mut way, mut map, mut variance) = (0.0, 0.0, 0.0);
        for (length, of_map, of_length) in known() {
            (way, map, variance) = (way + length, map + of_map, variance + of_length);
        }
        let factor = way / map;
        if way < MIN_WAY || !factor.is_finite() {
            return None;
        }
        let scatter: f64 = known().map(|(w, m, _)| (w - factor * m).powi(2)).sum();
        Some(ScaleEstimate {
            factor,
            sigma: (WHEEL_SCALE.powi(2) + variance.max(scatter) / (way * way)).sqrt(),
            source: ScaleSource::Wheels,
            keyframes: known().count(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::depth_moment::{DepthMoment, MeasuredKeyframe, Passage, Velocity};
    use super::*;
    use crate::time::Stamp;
    use nalgebra::{Isometry3, Matrix6, Vector3, Vector6};

    fn motion(i: u32, j: u32, x: f64, variance: f64) -> MeasuredMotion {
        MeasuredMotion {
            i,
            j,
            ends: None,
            motion: CameraMotion {
                i_from_j: Isometry3::new(Vector3::new(x, 0.0, 0.0), Vector3::zeros()),
                covariance: Matrix6::identity() * variance,
                driven: x,
                seconds: 1.0,
            },
        }
    }

    #[test]
    fn the_scale_is_the_ratio_of_the_ways() {
        let pose = |x: f64| Sim3 {
            translation: Vector3::new(x, 0.0, 0.0),
            ..Sim3::identity()
        };
        let mut motions = Motions::default();
        let (ids, poses) = ([1, 4, 5, 9], [0.0, 0.5, 1.0, 2.0].map(pose));
        assert_eq!(motions.scale(&ids, &poses), None);
        motions.add(motion(1, 4, 0.4, 0.01));
        assert_eq!(motions.scale(&ids, &poses), None, "too short a way");
        motions.add(motion(4, 5, 0.4, 0.01));
        motions.add(motion(5, 9, 0.8, 0.01));
        motions.add(motion(9, 12, 7.0, 0.01));
        let found = motions.scale(&ids, &poses).expect("a scale");
        assert!((found.factor - 0.8).abs() < 1e-12, "{found:?}");
        // Three lengths with a variance of 0.01 less the wheels' common part, over 1.6 m.
        let common = 0.02_f64.powi(2);
        let random = 0.03 - common * (0.16 + 0.16 + 0.64);
        let sigma = (common + random / 2.56).sqrt();
        assert!((found.sigma - sigma).abs() < 1e-12, "{found:?}");
        assert_eq!((found.source, found.keyframes), (ScaleSource::Wheels, 3));
        // Ways that contradict each other say less.
        motions.add(motion(5, 9, 1.6, 0.01));
        let apart = motions.scale(&ids, &poses).expect("a scale");
        assert!((apart.factor - 1.2).abs() < 1e-12, "{apart:?}");
        let scatter = 0.2_f64.powi(2) + 0.2_f64.powi(2) + 0.4_f64.powi(2);
        let sigma = (common + scatter / 5.76).sqrt();
        assert!((apart.sigma - sigma).abs() < 1e-12, "{apart:?}");
        // A place that stands still tells nothing.
        assert_eq!(motions.scale(&ids, &[0.0; 4].map(pose)), None);
    }

    /// Poses along x.
    fn along(places: &[f64]) -> Vec<Sim3> {
        let pose = |x: &f64| Sim3 {
            translation: Vector3::new(*x, 0.0, 0.0),
            ..Sim3::identity()
        };
        places.iter().map(pose).collect()
    }

    #[test]
    fn measured_motions_are_longer_than_a_map_that_is_too_short() {
        let place = |id: u32| Some(id as usize);
        let mut motions = Motions::default();
        for (j, x) in [(1, 0.4), (2, 0.9), (3, 1.3)] {
            motions.add(motion(0, j, x, 1e-4));
        }
        let short = along(&[0.0, 0.4 / 1.01, 0.9 / 1.01, 1.3 / 1.01]);
        assert_eq!(motions.excess(place, &short), None, "nothing was solved");
        motions.note_solved(|id| id == 1, 0.0);
        let one = motions.excess(place, &short).expect("one motion");
        assert!((one.value - 0.01).abs() < 1e-12, "{one:?}");
        // Three motions share the noise of keyframe 0, so that each says half.
        let information = (0.4 / 1.01_f64).powi(2) / 1e-4 / 2.0;
        assert!(
            (one.sigma - information.powf(-0.5).hypot(EACH)).abs() < 1e-12,
            "{one:?}"
        );
        // The map has become longer where it was solved again; the others were solved before.
        motions.note_solved(|id| id == 0, 0.0);
        let longer = along(&[0.0, 0.4 / 1.01, 0.9 / 1.01, 1.3 / 1.004]);
        motions.note_solved(|id| id == 3, 0.006);
        let all = motions.excess(place, &longer).expect("three motions");
        assert!((all.value - 0.01).abs() < 1e-12, "{all:?}");
        assert!(all.sigma < one.sigma, "{all:?}");
        // A motion that is measured again was not solved yet.
        motions.add(motion(0, 3, 9.0, 1e-4));
        let rest = motions.excess(place, &longer).expect("two motions");
        assert!((rest.value - 0.01).abs() < 1e-12, "{rest:?}");
        // Keyframes at one place say nothing.
        assert_eq!(motions.excess(place, &along(&[0.0; 4])), None);
    }

    #[test]
    fn a_precise_motion_that_the_map_follows_counts_no_more_than_others() {
        let place = |id: u32| Some(id as usize);
        let mut motions = Motions::default();
        for (j, x, variance) in [(1, 0.5, 1e-8), (2, 0.5, 1e-6), (3, 0.5, 1e-6)] {
            motions.add(motion(j - 1, j, x, variance));
        }
        // The map is too short by 1 % but for the first motion.
        let (first, short) = (0.5, 0.5 / 1.01);
        let poses = along(&[0.0, first, first + short, first + 2.0 * short]);
        motions.note_solved(|_| true, 0.0);
        let found = motions.excess(place, &poses).expect("three motions");
        assert!((0.006..0.009).contains(&found.value), "{found:?}");
    }

    #[test]
    fn a_motion_that_another_offset_has_changed_counts_once_it_is_solved_again() {
        let place = |id: u32| Some(id as usize);
        let keyframe = |id: u32, x: f64, speed: f64| {
            let (stamp, path_from_camera) = (
                Stamp::from_seconds(f64::from(id)),
                Isometry3::translation(x, 0.0, 0.0),
            );
            let before = Some(Velocity {
                twist: Vector6::x() * speed,
                seconds: 0.033,
            });
            let depth = DepthMoment {
                stamp,
                path_from_camera,
                passage: Passage {
                    before,
                    after: None,
                },
                shift: 0.0,
            };
            MeasuredKeyframe {
                id,
                stamp,
                path_from_camera,
                depth,
            }
        };
        let offset = |seconds: f64| DepthOffset {
            seconds,
            sigma: 0.01,
        };
        let ends = DepthEnds {
            i: keyframe(0, 0.0, 0.2),
            j: keyframe(1, 0.5, 0.6),
            between: motion(0, 1, 0.5, 1e-6).motion,
        };
        let mut motions = Motions::default();
        motions.set_offset(&offset(0.0));
        motions.add(MeasuredMotion::by_depth(ends, &offset(0.0)));
        let poses = along(&[0.0, 0.5]);
        motions.note_solved(|_| true, 0.0);
        assert!(motions.excess(place, &poses).is_some());
        motions.set_offset(&offset(0.0));
        assert!(
            motions.excess(place, &poses).is_some(),
            "it is the same motion"
        );
        motions.set_offset(&offset(-0.03));
        assert_eq!(motions.excess(place, &poses), None);
        motions.note_solved(|_| true, 0.0);
        let found = motions.excess(place, &poses).expect("it was solved");
        assert!(found.value.abs() > 0.01, "{found:?}");
    }

    #[test]
    fn a_removed_keyframe_leaves_the_motion_past_it() {
        let mut motions = Motions::default();
        for (i, x) in [(0, 1.0), (1, 2.0), (2, 4.0)] {
            motions.add(motion(i, i + 1, x, 0.5));
        }
        motions.add(motion(3, 3, 1.0, 1.0));
        motions.remove(2, None);
        let all = motions.priors(1.0, |id| Some(id as usize));
        let pairs: Vec<_> = all.iter().map(|p| (p.i, p.j)).collect();
        assert_eq!(pairs, [(0, 1), (1, 3)]);
        let index = |id: u32| (id > 0).then_some(id as usize - 1);
        let priors = motions.priors(3.0, index);
        assert_eq!(priors.len(), 1, "keyframe 0 is not in the window");
        assert_eq!(
            (priors[0].i, priors[0].j, priors[0].i_from_j.translation.x),
            (0, 2, 6.0)
        );
        // Variances along the way add up.
        assert!(
            (priors[0].information[(0, 0)] - 3.0).abs() < 1e-12,
            "{}",
            priors[0].information
        );
        motions.remove(3, None);
        motions.remove(0, None);
        assert!(motions.kept.is_empty());
    }

    #[test]
    fn motions_from_a_removed_keyframe_start_elsewhere() {
        let start = |id: u32| -> Motions {
            let mut motions = Motions::default();
            motions.add(motion(0, id, 1.0, 0.5));
            for (j, x) in [(4, 2.0), (5, 3.0), (6, 4.0)] {
                motions.add(motion(3, j, x, 0.25));
            }
            motions
        };
        let pairs = |motions: &Motions| -> Vec<_> {
            let all = motions.priors(1.0, |id| Some(id as usize));
            let all = all.iter().map(|p| (p.i, p.j, p.i_from_j.translation.x));
            all.collect()
        };
        let mut with = start(3);
        with.remove(3, None);
        assert_eq!(pairs(&with), [(0, 4, 3.0), (0, 5, 4.0), (0, 6, 5.0)]);
        // Nothing leads to it: the map says where it is.
        let mut without = start(9);
        let by_map = motion(5, 3, -3.0, 0.01).motion;
        without.remove(3, Some((5, by_map)));
        assert_eq!(pairs(&without), [(0, 9, 1.0), (5, 4, -1.0), (5, 6, 1.0)]);
        without.remove(5, None);
        assert_eq!(pairs(&without), [(0, 9, 1.0)]);
    }
}
