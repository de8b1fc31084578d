//! The motions between keyframes of a graph that a sensor has measured.

use super::motion::CameraMotion;
use crate::compute::global::MetricPrior;

/// A measured motion from keyframe `i` to keyframe `j`, named by id.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MeasuredMotion {
    pub i: u32,
    pub j: u32,
    pub motion: CameraMotion,
}

/// The measured motions of a graph. There is at most one from a keyframe and at most one to it.
#[derive(Debug, Default)]
pub struct Motions(Vec<MeasuredMotion>);

impl Motions {
    /// Adds a motion; ignored if it connects a keyframe with itself.
    pub fn add(&mut self, motion: MeasuredMotion) {
        if motion.i != motion.j {
            self.0.retain(|m| m.i != motion.i && m.j != motion.j);
            self.0.push(motion);
        }
    }

    /// Removes keyframe `id`: the motion to it and the motion from it become one.
    pub fn remove(&mut self, id: u32) {
        let find =
            |found: fn(&MeasuredMotion, u32) -> bool| self.0.iter().position(|m| found(m, id));
        let (to, from) = (find(|m, id| m.j == id), find(|m, id| m.i == id));
        let get = |at: Option<usize>| at.and_then(|at| self.0.get(at)).copied();
        let joined = get(to).zip(get(from)).map(|(to, from)| MeasuredMotion {
            i: to.i,
            j: from.j,
            motion: to.motion.then(&from.motion),
        });
        self.0.retain(|m| m.i != id && m.j != id);
        if let Some(joined) = joined {
            self.add(joined);
        }
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
        self.0.iter().filter_map(prior).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nalgebra::{Isometry3, Matrix6, Vector3};

    fn motion(i: u32, j: u32, x: f64, variance: f64) -> MeasuredMotion {
        MeasuredMotion {
            i,
            j,
            motion: CameraMotion {
                i_from_j: Isometry3::new(Vector3::new(x, 0.0, 0.0), Vector3::zeros()),
                covariance: Matrix6::identity() * variance,
                driven: x,
                seconds: 1.0,
            },
        }
    }

    #[test]
    fn a_removed_keyframe_leaves_the_motion_past_it() {
        let mut motions = Motions::default();
        for (i, x) in [(0, 1.0), (1, 2.0), (2, 4.0)] {
            motions.add(motion(i, i + 1, x, 0.5));
        }
        motions.add(motion(3, 3, 1.0, 1.0));
        motions.remove(2);
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
        motions.remove(3);
        motions.remove(0);
        assert!(motions.0.is_empty());
    }
}
