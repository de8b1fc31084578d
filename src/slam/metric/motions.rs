//! The motions between keyframes of a graph that a sensor has measured.

use super::depth_ends::DepthEnds;
use super::depth_offset::DepthOffset;
use super::doubt::{self, Length};
use super::motion::{CameraMotion, visual_motion};
use super::robust::{Mean, mean};
use super::scale::{ESTIMATED, ScaleEstimate, ScaleSource};
use super::wheels::WHEEL_SCALE;
use crate::compute::global::MetricPrior;
use crate::geometry::Sim3;
use nalgebra::{Cholesky, Matrix3, Vector3};
use rustc_hash::FxHashMap;

/// Shorter ways, in metres, do not tell the scale.
const MIN_WAY: f64 = 0.5;
/// Lengths that are known no better than this, in metres, are not judged.
const MEASURED: f64 = 1.0;
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
    /// Covariance of the position that is added because its length contradicts the map, in m².
    doubt: Option<Matrix3<f64>>,
}

impl From<MeasuredMotion> for Kept {
    fn from(measured: MeasuredMotion) -> Self {
        Self {
            measured,
            longer: None,
            doubt: None,
        }
    }
}

impl Kept {
    /// The motion with the covariance that it counts with.
    fn counted(&self) -> CameraMotion {
        let mut motion = self.measured.motion;
        if let Some(doubt) = &self.doubt {
            let mut position = motion.covariance.fixed_view_mut::<3, 3>(0, 0);
            position += doubt;
        }
        motion
    }
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
            self.kept.push(Kept::from(motion));
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
        for Kept {
            measured, longer, ..
        } in &mut self.kept
        {
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
        let to = self.kept.iter().find(|kept| kept.measured.j == id);
        let to = to.map(|to| (to.measured.i, to.measured.motion, to.doubt));
        let to = to.or(otherwise.map(|(i, motion)| (i, motion, None)));
        self.kept.retain_mut(|kept| {
            let m = &mut kept.measured;
            if let Some((i, motion, doubt)) = to.filter(|_| m.i == id) {
                let turn = motion.i_from_j.rotation.to_rotation_matrix().into_inner();
                let of_rest = kept.doubt.map(|doubt| turn * doubt * turn.transpose());
                kept.doubt = match (doubt, of_rest) {
                    (Some(doubt), Some(of_rest)) => Some(doubt + of_rest),
                    (doubt, of_rest) => doubt.or(of_rest),
                };
                m.motion = motion.then(&m.motion);
                (m.i, m.ends) = (i, None);
            }
            m.i != id && m.j != id && m.i != m.j
        });
    }

    /// Priors between the keyframes that `index` knows, with their information multiplied by `units`
    /// ([`crate::compute::global::solver_units`]).
    pub fn priors(&self, units: f64, index: impl Fn(u32) -> Option<usize>) -> Vec<MetricPrior> {
        let prior = |kept: &Kept| {
            let motion = kept.counted();
            let information = motion.information()? * units;
            Some(MetricPrior {
                i: index(kept.measured.i)?,
                j: index(kept.measured.j)?,
                i_from_j: motion.i_from_j,
                information: (information + information.transpose()) * 0.5,
            })
        };
        self.kept.iter().filter_map(prior).collect()
    }

    /// Compares the lengths of the newest motions, those of wheels, with these poses of a solved map. Motions whose lengths
    /// contradict the map's ([`doubt::excesses`]) are known no better than they are off: they hardly count from now on,
    /// until they fit.
    pub fn judge(&mut self, index: impl Fn(u32) -> Option<usize>, poses: &[Sim3]) {
        let start = self.kept.len().saturating_sub(ESTIMATED);
        let place = |id: u32| poses.get(index(id)?);
        let judged = self.kept.iter_mut().skip(start).filter_map(|kept| {
            let m = &kept.measured;
            let map = visual_motion(place(m.i)?, place(m.j)?).translation.vector;
            let length = length(&m.motion, &map)?;
            Some((kept, map, length))
        });
        let judged: Vec<_> = judged.collect();
        let lengths: Vec<Length> = judged.iter().map(|(_, _, length)| *length).collect();
        for ((kept, map, _), excess) in judged.into_iter().zip(doubt::excesses(&lengths)) {
            kept.doubt = excess.map(|excess| map * map.transpose() * (excess * excess));
            if let Some(excess) = excess {
                let MeasuredMotion { i, j, .. } = kept.measured;
                tracing::debug!(i, j, excess, "the length of a motion contradicts the map");
            }
        }
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
        let lengths = |kept: &Kept| {
            let m = &kept.measured;
            let by_wheels = m.motion.i_from_j.translation.vector;
            let along = by_wheels.try_normalize(1e-9)?;
            let map = (place(m.j)? - place(m.i)?).norm();
            Some((by_wheels.norm(), map, own_variance(&m.motion, &along)))
        };
        let fits = || self.kept.iter().filter(|kept| kept.doubt.is_none());
        let known = || fits().filter_map(lengths);
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

/// Variance of a motion's length by wheels in this direction, less that of the wheels' radius, which is common to all
/// motions.
fn own_variance(motion: &CameraMotion, along: &Vector3<f64>) -> f64 {
    let of_position = motion.covariance.fixed_view::<3, 3>(0, 0);
    let common = (WHEEL_SCALE * motion.i_from_j.translation.vector.norm()).powi(2);
    (along.dot(&(of_position * along)) - common).max(0.0)
}

/// The length of a motion by wheels beside that of `map`, the motion between the poses of the map; `None` if it was not
/// measured.
fn length(motion: &CameraMotion, map: &Vector3<f64>) -> Option<Length> {
    let (measured, of_map) = (motion.i_from_j.translation.vector.norm(), map.norm());
    let sigma = own_variance(motion, &map.try_normalize(1e-9)?).sqrt();
    (sigma <= MEASURED).then_some(Length {
        measured,
        sigma,
        of_map,
    })
}

#[cfg(test)]
mod tests;
