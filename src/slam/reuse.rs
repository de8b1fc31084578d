//! Reuse of keyframes: before a frame becomes a keyframe, it is located relative to those that show the same place
//! (docs/algorithm.md, Map economy).

use super::consistency::{StepSigma, parts};
use super::counts::Unused;
use super::edges::{self, agree_both_ways};
use super::graph::{Graph, KeyframeInfo};
use super::nearness::Nearness;
use super::pose_table::Anchor;
use crate::compute::device::{DeviceError, Handle, MappingDevice, TwoWay};
use crate::compute::retrieval::Hit;
use crate::config::Config;
use crate::map::EdgeKind;

/// Maximum number of edges between the active keyframe and one that is near by its pose: beyond that, the pose says
/// less than appearance does.
const NEAR: usize = 3;

/// Maximum number of candidates that are near by their poses. Two keyframes lie on either side of a camera that
/// follows a known path.
const NEAREST: usize = 2;

/// Maximum number of candidates, each of which costs a decoding in both directions: fewer than a keyframe's edges.
const CANDIDATES: usize = 3;

/// Maximum number of edges between the active keyframe and a reused one. Beyond that the map does not know their
/// relative pose well: the frame becomes a keyframe, whose edges close the loop.
const KNOWN: usize = 10;

/// Maximum angle between the relative poses from both directions: for true pairs of the bundled network it stays
/// below 3°, for views that share nothing it is 17 to 58°.
const TWO_WAY_DEGREES: f64 = 5.0;

/// Maximum number of edges of a keyframe that reuse adds to: edges must not grow with time either.
const MAX_EDGES: usize = 8;

/// 99.9 % quantile of χ² with seven degrees of freedom.
const MAX_CHI_SQUARED: f64 = 24.3;

/// A request to locate a frame relative to existing keyframes.
pub struct ProbeRequest {
    /// The keyframe that the frame would become.
    pub info: KeyframeInfo,
    /// Image, features and pointmap of the frame.
    pub handle: Handle,
    /// The frame's place relative to the active keyframe.
    pub from: Anchor,
    /// The keyframe that tracking has just left, which is not a candidate.
    pub left: Option<u32>,
    /// Minimum fraction of matched pixels, both ways, of the keyframe that is taken.
    pub min_match_fraction: f32,
}

/// Rules for reusing keyframes.
pub struct Reuse {
    two_way_degrees: f64,
    /// Number of keyframes that must have been made since a keyframe for it to be reused.
    after: u32,
}

impl Reuse {
    /// The rules of `config`.
    pub fn new(config: &Config) -> Self {
        let degrees = config.local_opt.two_way_degrees;
        Self {
            two_way_degrees: if degrees > 0.0 {
                degrees.min(TWO_WAY_DEGREES)
            } else {
                TWO_WAY_DEGREES
            },
            after: u32::try_from(config.economy.reuse_after).unwrap_or(u32::MAX),
        }
    }

    /// Keyframes that may show the same as a frame at `from`, which would become keyframe `id`: those nearest by their
    /// poses, if they are nearer than the active one, then those with similar appearance that are not far away in the
    /// graph. None if the most similar keyframe is far away: the frame should become a keyframe, whose edges may close
    /// a loop.
    ///
    /// # Errors
    /// The reason why there is none.
    pub fn candidates(
        &self,
        graph: &Graph,
        from: &Anchor,
        (id, left): (u32, Option<u32>),
        hits: &[Hit],
    ) -> Result<Vec<u32>, Unused> {
        let active = from.keyframe;
        let old = |other: u32| other.saturating_add(self.after) <= id;
        let other = |id: u32| id != active && Some(id) != left && old(id);
        let known = |id: u32| graph.are_near(active, id, KNOWN);
        if hits.first().is_some_and(|best| !known(best.id)) {
            return Err(Unused::FarAway);
        }
        let mut candidates = nearest(graph, from, other);
        for hit in hits.iter().filter(|hit| other(hit.id)) {
            if !candidates.contains(&hit.id) && known(hit.id) {
                candidates.push(hit.id);
            }
        }
        candidates.truncate(CANDIDATES);
        match candidates.is_empty() {
            true => Err(Unused::NoCandidate),
            false => Ok(candidates),
        }
    }

    /// Whether keyframes `i` and `j`, which one frame shows, get an edge: it holds their poses together.
    pub fn should_join(&self, graph: &Graph, i: u32, j: u32) -> bool {
        let joined = |(a, b): (u32, u32)| (a, b) == (i, j) || (b, a) == (i, j);
        let few = |id: u32| graph.edges_of(id).count() < MAX_EDGES;
        i != j && few(i) && few(j) && !graph.joined().any(joined)
    }

    /// The place relative to keyframe `candidate` of the frame of `request`, which the device holds as a keyframe, and
    /// which tracking found at `from`; or the reason for not taking that keyframe.
    pub fn locate(
        &self,
        device: &mut dyn MappingDevice,
        graph: &Graph,
        request: &ProbeRequest,
        from: &Anchor,
        candidate: u32,
    ) -> Result<Result<Anchor, Unused>, DeviceError> {
        let wanted = [(request.info.id, candidate, EdgeKind::Relocalisation)];
        let Some(mut edge) = edges::make(device, &wanted)?.into_iter().next() else {
            return Ok(Err(Unused::NoCandidate));
        };
        let enough = edge.match_fraction >= request.min_match_fraction;
        let agrees = match enough {
            true => agree_both_ways(device, &mut edge, self.two_way_degrees),
            false => Ok(false),
        };
        device.drop_edge(edge.id);
        let poses = edge.poses.filter(|_| matches!(agrees, Ok(true)));
        agrees?;
        let found = poses.and_then(|poses| {
            let keyframe_from_camera = poses.j_from_i?;
            let anchor = Anchor {
                keyframe: candidate,
                keyframe_from_camera,
            };
            Some((anchor, disagreement(graph, from, &anchor, &poses)))
        });
        tracing::debug!(
            candidate,
            active = from.keyframe,
            fraction = edge.match_fraction,
            needed = request.min_match_fraction,
            chi_squared = found.map(|(_, chi_squared)| chi_squared),
            "keyframe tried for reuse"
        );
        Ok(match found {
            _ if !enough => Err(Unused::Matches),
            None => Err(Unused::Directions),
            Some((_, chi_squared)) if chi_squared > MAX_CHI_SQUARED => Err(Unused::Map),
            Some((anchor, _)) => Ok(anchor),
        })
    }
}

/// The keyframes nearest to a camera at `from` among those within [`NEAR`] edges of its keyframe, if they are nearer
/// than that one.
fn nearest(graph: &Graph, from: &Anchor, wanted: impl Fn(u32) -> bool) -> Vec<u32> {
    let active = graph.pose_of(from.keyframe);
    let camera = active * from.keyframe_from_camera;
    let nearness = Nearness::new(camera, &active, graph.neighbour_poses(from.keyframe));
    let limit = nearness.cost(&active);
    let within = graph
        .within(from.keyframe, NEAR)
        .into_iter()
        .filter(|id| wanted(*id));
    let with_poses = within.map(|id| (id, graph.pose_of(id)));
    let near = nearness.sorted(with_poses).into_iter();
    let near = near.take_while(|(_, cost)| *cost < limit).take(NEAREST);
    near.map(|(id, _)| id).collect()
}

/// χ² of the difference between a camera's place by tracking, `from`, and by matching, `found`. Its variance is that
/// of the steps on the path between both keyframes, and that of the match: of one more step, or what the difference of
/// its two directions `poses` says if that is more. Infinite if no path is known.
fn disagreement(graph: &Graph, from: &Anchor, found: &Anchor, poses: &TwoWay) -> f64 {
    let world_from = |a: &Anchor| graph.pose_of(a.keyframe) * a.keyframe_from_camera;
    let expected = world_from(from);
    let path = graph.path(from.keyframe, found.keyframe, KNOWN);
    let (Some(path), Some(i_from_j), Some(j_from_i)) = (path, poses.i_from_j, poses.j_from_i)
    else {
        return f64::INFINITY;
    };
    let sigma = StepSigma::of(graph);
    let step = |length: f64| {
        let length = sigma.length * length;
        [length, sigma.turn, sigma.log_scale].map(|s| s.powi(2))
    };
    let both_ways = parts(&(j_from_i * i_from_j));
    // Three numbers each for translation and rotation, one for scale.
    let both_ways = [
        both_ways[0] / 3_f64.sqrt(),
        both_ways[1] / 3_f64.sqrt(),
        both_ways[2],
    ];
    let match_length = found.keyframe_from_camera.inverse().translation.norm();
    let mut variance = step(match_length);
    for (variance, both_ways) in variance.iter_mut().zip(both_ways) {
        *variance = variance.max(both_ways.powi(2));
    }
    for pair in path.windows(2) {
        let [a, b] = [pair[0], pair[1]].map(|id| graph.pose_of(id).translation);
        let of_step = step((a - b).norm() / expected.scale);
        for (variance, of_step) in variance.iter_mut().zip(of_step) {
            *variance += of_step;
        }
    }
    let difference = parts(&(expected.inverse() * world_from(found)));
    let terms = difference.iter().zip(variance);
    let chi_squared: f64 = terms
        .map(|(d, v)| d.powi(2) / v.max(f64::MIN_POSITIVE))
        .sum();
    // A comparison with NaN must refuse.
    if chi_squared.is_nan() {
        f64::INFINITY
    } else {
        chi_squared
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{self, at};
    use super::*;
    use crate::geometry::Sim3;
    use nalgebra::UnitQuaternion;

    fn anchor(keyframe: u32, x: f64) -> Anchor {
        Anchor {
            keyframe,
            keyframe_from_camera: at(x),
        }
    }

    /// Keyframes at these places, each with an edge to the one before.
    fn chain(places: &[f64]) -> Graph {
        fixtures::chain(places.iter().map(|&x| at(x)), |_| 0.5)
    }

    fn reuse() -> Reuse {
        let mut config = Config::default();
        config.economy.reuse_after = 0;
        Reuse::new(&config)
    }

    #[test]
    fn candidates_are_near_by_pose_or_by_appearance_and_few() {
        // The camera turns round at 4 m; 9 is 5 m behind.
        let graph = chain(&[0.0, 1.0, 2.0, 3.0, 4.0, 3.1, 2.1, 1.1, 0.1, -1.0]);
        let candidates = |from: &Anchor, left, hits: &[u32]| {
            let hit = |&id: &u32| Hit { id, score: 1.0 };
            let hits: Vec<Hit> = hits.iter().map(hit).collect();
            reuse().candidates(&graph, from, (10, left), &hits)
        };
        // At 2.2 m, tracked against 5: 6 is nearest, then 2 within three edges.
        let from = anchor(5, -0.9);
        assert_eq!(candidates(&from, None, &[]), Ok(vec![6, 2]));
        // 3 is nearer than the active one, too.
        assert_eq!(candidates(&from, Some(6), &[]), Ok(vec![2, 3]));
        assert_eq!(candidates(&from, None, &[5, 2, 1, 0]), Ok(vec![6, 2, 1]));
        // At the active keyframe itself none is nearer.
        let none = candidates(&anchor(5, 0.0), None, &[]);
        assert_eq!(none, Err(Unused::NoCandidate));
    }

    #[test]
    fn what_is_far_away_in_the_graph_or_unknown_is_no_candidate() {
        let places: Vec<f64> = (0..13).map(f64::from).collect();
        let graph = chain(&places);
        let hit = |id| Hit { id, score: 1.0 };
        // 0 is twelve edges away.
        let hits = [hit(2), hit(0), hit(77)];
        let candidates = |hits| reuse().candidates(&graph, &anchor(12, -0.6), (13, None), hits);
        assert_eq!(candidates(&hits), Ok(vec![11, 2]));
        assert_eq!(candidates(&hits[1..]), Err(Unused::FarAway));
        assert_eq!(candidates(&[]), Ok(vec![11]));
    }

    #[test]
    fn a_place_must_agree_with_the_map_as_well_as_the_way_there_is_known() {
        let graph = chain(&[0.0, 1.0, 2.0]);
        let exact = TwoWay {
            i_from_j: Some(at(-0.5)),
            j_from_i: Some(at(0.5)),
        };
        let chi =
            |x: f64, poses: &TwoWay| disagreement(&graph, &anchor(2, 0.5), &anchor(0, x), poses);
        assert!(chi(2.5, &exact) < 1e-9);
        // Two steps of a metre, each known to 2 cm, and a match over 2.8 m: 6.3 cm, and the limit is 4.9 times that.
        assert!(chi(2.80, &exact) <= MAX_CHI_SQUARED && chi(2.82, &exact) > MAX_CHI_SQUARED);
        // A match whose directions differ by 30 cm says less.
        let loose = TwoWay {
            j_from_i: Some(at(0.8)),
            ..exact
        };
        assert!(chi(2.9, &loose) < MAX_CHI_SQUARED);
        let turned = |degrees: f64| Anchor {
            keyframe: 0,
            keyframe_from_camera: Sim3 {
                rotation: UnitQuaternion::from_euler_angles(0.0, degrees.to_radians(), 0.0),
                ..at(2.5)
            },
        };
        let rotation = |degrees| disagreement(&graph, &anchor(2, 0.5), &turned(degrees), &exact);
        assert!(rotation(4.2) <= MAX_CHI_SQUARED && rotation(4.4) > MAX_CHI_SQUARED);
        assert_eq!(
            disagreement(&graph, &anchor(2, 0.5), &anchor(9, 2.5), &exact),
            f64::INFINITY
        );
        assert_eq!(chi(2.5, &TwoWay::default()), f64::INFINITY);
        assert_eq!(chi(f64::NAN, &exact), f64::INFINITY);
    }
}
