//! Loop closure: selection of older keyframes to connect a new keyframe with, and validation of the
//! resulting edges (docs/algorithm.md, Factor graph and loop closure).

use super::belief::{doubted, edge_covariance};
use super::consistency::StepSigma;
use super::counts::Refusal;
use super::edges::{agree_both_ways, relative_poses};
use super::factors::{Measured, indexed};
use super::graph::{Edge, Graph, Merged};
use super::loop_search::LoopSearch;
use super::pose_table::Anchor;
use super::skeleton;
use super::trial;
use super::witnesses::{LOCAL_HOPS, Loop, Verdict, Witnesses};
use crate::compute::device::{DeviceError, MappingDevice};
use crate::compute::retrieval::Hit;
use crate::compute::spread::Spread;
use crate::config::{Config, GlobalOptConfig, Loops};
use crate::geometry::Sim3;
use crate::map::EdgeKind;

/// Limit of the two-way test for loops that are judged. True loops of the mini model stay below 3 degrees where their
/// views share much, but reach 9 where they share a sixth; false ones are at 17 and more. How far the directions differ
/// counts as doubt about the loop.
const JUDGED_DEGREES: f64 = 10.0;
/// Limit for other edges while loops are judged, if the configuration has none.
const TWO_WAY_DEGREES: f64 = 5.0;
/// Number of similar keyframes among which a far place is sought, and number of far places that are candidates beside
/// the most similar keyframes: the best one is a loop about as often as each further one.
const LOOKED_THROUGH: usize = 32;
const FAR: usize = 1;
/// Minimum number of an image's cells with matches, and the fraction of a cell's pixels that count as matches there.
const MIN_CELLS: usize = 6;
const CELL_FRACTION: f64 = 0.01;
/// Number of keyframes for which a place is no candidate after a loop to it failed its trial.
const REST: u32 = 10;
/// Maximum number of places that rest: more than the candidates of that many keyframes.
const MAX_RESTING: usize = 32;

/// How an edge enters the graph.
pub enum Entry {
    /// The edge enters.
    Enters,
    /// The edge enters together with earlier loops, which confirm it; the graph has the poses that
    /// they make.
    Confirmed(Vec<Loop>),
    /// The loop waits for others; its edge does not enter.
    Waits,
}

/// Rules for candidates and their edges.
pub struct LoopClosure {
    /// Number of preceding keyframes that are candidates.
    neighbours: u32,
    /// Whether keyframes that show the same place are candidates.
    loops: bool,
    /// Number of the most similar keyframes that are candidates.
    places: usize,
    min_match_fraction: f32,
    two_way_degrees: f64,
    /// Whether loops are judged by the map and by each other.
    judges: bool,
    witnesses: Witnesses,
    search: LoopSearch,
    /// Places that are no candidates, each up to this keyframe.
    resting: Vec<(u32, u32)>,
    params: GlobalOptConfig,
}

impl LoopClosure {
    /// The rules of `config`.
    pub fn new(config: &Config) -> Self {
        let limits = &config.local_opt;
        let judges = limits.judge_loops;
        Self {
            neighbours: u32::try_from(limits.neighbours).unwrap_or(u32::MAX),
            loops: config.loops == Loops::On,
            places: config.retrieval.k,
            min_match_fraction: limits.min_match_frac,
            two_way_degrees: match judges && limits.two_way_degrees == 0.0 {
                true => TWO_WAY_DEGREES,
                false => limits.two_way_degrees,
            },
            judges,
            witnesses: Witnesses::default(),
            search: LoopSearch::default(),
            resting: Vec::new(),
            params: limits.clone(),
        }
    }

    /// Forgets loops of an earlier map.
    pub fn reset(&mut self) {
        self.witnesses = Witnesses::default();
        self.search = LoopSearch::default();
        self.resting.clear();
    }

    /// Forgets loops that have waited long enough when keyframe `newest` arrives; returns the
    /// number of those that nothing confirmed.
    pub fn expire(&mut self, newest: u32) -> usize {
        self.resting.retain(|(_, until)| *until >= newest);
        self.search.expire(newest);
        self.witnesses.expire(newest)
    }

    /// Number of similar keyframes among which [`LoopClosure::candidates`] finds a far place.
    pub fn places_queried(&self) -> usize {
        self.places.max(LOOKED_THROUGH)
    }

    /// Keyframes to connect with new keyframe `id` of `submap`, each once: the one it was tracked
    /// against, those shortly before it in its submap, those with similar appearance, and places of loops that wait
    /// for witnesses or a second look. `pose` is the keyframe's by tracking.
    pub fn candidates(
        &mut self,
        graph: &Graph,
        (id, submap, pose): (u32, u32, &Sim3),
        anchor: Option<Anchor>,
        hits: &[Hit],
    ) -> Vec<(u32, EdgeKind)> {
        let chain = anchor.map(|a| (a.keyframe, EdgeKind::Consecutive));
        let neighbours = (2..=self.neighbours.min(id))
            .map(|back| id - back)
            .filter(|&c| graph.submap_of(c) == Some(submap))
            .map(|c| (c, EdgeKind::Neighbour));
        let waiting = self.witnesses.waiting();
        let sought = self.search.sought(graph, waiting, id, pose).into_iter();
        let sought = sought.filter(|&place| graph.submap_of(place).is_some());
        let (alike, others) = hits.split_at_checked(self.places).unwrap_or((hits, &[]));
        // The newest keyframes nearly always look most alike, and leave no room for an old place.
        let mut near = Vec::new();
        if let (Some(anchor), false) = (anchor, others.is_empty()) {
            near = graph.within(anchor.keyframe, LOCAL_HOPS);
            near.push(anchor.keyframe);
        }
        let others = others.iter().map(|hit| hit.id);
        let others = others.filter(|place| !near.contains(place) && !self.rests(*place));
        let alike = alike.iter().map(|hit| hit.id);
        let alike = alike.chain(others.take(FAR)).chain(sought);
        let alike = alike.map(|place| (place, EdgeKind::Loop));
        let alike = alike.filter(|(place, _)| self.loops && !self.rests(*place));
        let mut candidates: Vec<(u32, EdgeKind)> = Vec::new();
        for (candidate, kind) in chain.into_iter().chain(neighbours).chain(alike) {
            if candidate != id && candidates.iter().all(|(c, _)| *c != candidate) {
                candidates.push((candidate, kind));
            }
        }
        candidates
    }

    /// Further pairs of keyframe `id`, which was matched with `tried`: beside places to which its loops wait or were
    /// refused.
    pub fn further(
        &self,
        graph: &Graph,
        id: u32,
        tried: &[(u32, u32, EdgeKind)],
    ) -> Vec<(u32, u32, EdgeKind)> {
        let tried: Vec<u32> = tried.iter().map(|&(place, ..)| place).collect();
        let waiting = self.witnesses.waiting();
        let places = self.search.further(graph, waiting, id, &tried).into_iter();
        let places = places.filter(|place| *place != id && !self.rests(*place));
        places.map(|place| (place, id, EdgeKind::Loop)).collect()
    }

    fn rests(&self, place: u32) -> bool {
        self.resting.iter().any(|(known, _)| *known == place)
    }

    /// Whether and how an edge may enter the graph. The edge to the keyframe used for tracking always
    /// enters; for the others, the matches are the only evidence, and for loops that are judged, the
    /// map and other loops.
    pub fn admit(
        &mut self,
        device: &mut dyn MappingDevice,
        graph: &mut Graph,
        edge: &mut Edge,
    ) -> Result<Result<Entry, Refusal>, DeviceError> {
        if edge.kind == EdgeKind::Consecutive {
            return Ok(Ok(Entry::Enters));
        }
        if edge.match_fraction < self.min_match_fraction {
            return Ok(Err(Refusal::Matches));
        }
        if !self.judges || edge.kind != EdgeKind::Loop {
            return Ok(match agree_both_ways(device, edge, self.two_way_degrees)? {
                true => Ok(Entry::Enters),
                false => Err(Refusal::Directions),
            });
        }
        let new = match self.measure(device, edge)? {
            Ok(measured) => measured,
            Err(refusal) => {
                let pair = (edge.i, edge.j);
                self.search
                    .note_refused(graph, self.witnesses.waiting(), pair);
                return Ok(Err(refusal));
            }
        };
        let witnesses = match self.witnesses.judge(graph, new) {
            Verdict::Agrees => return Ok(Ok(Entry::Enters)),
            Verdict::Waits => return Ok(Ok(Entry::Waits)),
            Verdict::Contradicts => return Ok(Err(Refusal::Odometry)),
            Verdict::Confirmed(witnesses) => witnesses,
        };
        if graph.submap_of(edge.i) == graph.submap_of(edge.j)
            && !self.bends(device, graph, &new, &witnesses)?
        {
            if witnesses.len() + 1 < trial::MAX_LOOPS {
                self.witnesses.wait(new);
                return Ok(Err(Refusal::Trial));
            }
            self.witnesses.take(&witnesses);
            if self.resting.len() == MAX_RESTING {
                self.resting.remove(0);
            }
            self.resting.push((edge.i, edge.j.saturating_add(REST)));
            return Ok(Err(Refusal::Trial));
        }
        self.witnesses.take(&witnesses);
        Ok(Ok(Entry::Confirmed(witnesses)))
    }

    /// Measures a loop that is judged, from the matches of its edge, or returns why it is refused.
    fn measure(
        &self,
        device: &mut dyn MappingDevice,
        edge: &mut Edge,
    ) -> Result<Result<Loop, Refusal>, DeviceError> {
        if !agree_both_ways(device, edge, JUDGED_DEGREES)? {
            return Ok(Err(Refusal::Directions));
        }
        if cells(device, edge, self.params.q_conf)? < MIN_CELLS {
            return Ok(Err(Refusal::Spread));
        }
        let Some(measured) = skeleton::rest(device, edge, &self.params)? else {
            return Ok(Err(Refusal::Undetermined));
        };
        let Measured {
            mut factor,
            variance,
        } = measured;
        let patch = device.shape().pixels_per_patch();
        let ways = relative_poses(device, edge)?;
        if let (Some(i_from_j), Some(j_from_i)) = (ways.i_from_j, ways.j_from_i) {
            let around = (i_from_j * j_from_i).log();
            factor.information = doubted(&factor.information, variance * patch, &around);
        }
        Ok(Ok(Loop {
            place: edge.i,
            query: edge.j,
            factor,
            covariance: edge_covariance(&factor.information, variance, patch),
            variance,
        }))
    }

    /// Tries a solve with the new loop and its witnesses; if the trial succeeds, the graph gets its
    /// poses.
    fn bends(
        &self,
        device: &mut dyn MappingDevice,
        graph: &mut Graph,
        new: &Loop,
        witnesses: &[Loop],
    ) -> Result<bool, DeviceError> {
        skeleton::condense_missing(device, graph, &self.params)?;
        let map = skeleton::all_factors(graph, &self.params);
        let index = skeleton::index_of(graph);
        let loops = witnesses.iter().chain([new]).filter_map(|of| {
            let factor = indexed(&of.factor, |id| index.get(&id).copied())?;
            let variance = of.variance;
            Some(Measured { factor, variance })
        });
        let loops: Vec<Measured> = loops.collect();
        let (sigma, patch) = (StepSigma::of(graph), device.shape().pixels_per_patch());
        let scales = graph.scale_priors(1.0);
        let (params, poses) = (&self.params, graph.poses());
        let solved = trial::attempt(&map, &loops, &scales, params, &sigma, patch, poses);
        let bears = solved.is_some();
        if let Some(poses) = solved {
            graph.set_poses(poses);
        }
        Ok(bears)
    }

    /// Merges the submaps of an accepted edge's keyframes, if they differ. They stay separate if
    /// the edge has no relative pose.
    pub fn join_submaps(
        &self,
        device: &mut dyn MappingDevice,
        graph: &mut Graph,
        edge: &mut Edge,
    ) -> Result<Option<Merged>, DeviceError> {
        let submaps = (graph.submap_of(edge.i), graph.submap_of(edge.j));
        if edge.kind == EdgeKind::Consecutive || submaps.0 == submaps.1 {
            return Ok(None);
        }
        let (i, j) = (edge.i, edge.j);
        let poses = relative_poses(device, edge)?;
        let merged = poses
            .i_from_j
            .and_then(|i_from_j| graph.merge_submaps(i, j, &i_from_j));
        if let Some(Merged { kept, moved }) = merged {
            tracing::info!("submap {moved} joined submap {kept} through keyframes {i} and {j}");
        }
        Ok(merged)
    }
}

/// Number of cells of an image with matches, the smaller of both images.
fn cells(device: &mut dyn MappingDevice, edge: &Edge, q_conf: f32) -> Result<usize, DeviceError> {
    let pixels = device.shape().pixels();
    let [i, j] = device.spread(edge.id, q_conf)?;
    Ok(covered(&i, pixels).min(covered(&j, pixels)))
}

/// Number of cells with matches in an image of so many pixels.
fn covered(spread: &Spread, pixels: usize) -> usize {
    let enough = CELL_FRACTION * pixels as f64 / spread.len() as f64;
    let filled = spread.iter().filter(|&&n| f64::from(n) >= enough.max(1.0));
    filled.count()
}

#[cfg(test)]
mod tests {
    use super::super::fixtures;
    use super::super::graph::KeyframeInfo;
    use super::*;
    use crate::config::GlobalOptConfig;
    use EdgeKind::{Consecutive, Loop, Neighbour};

    fn rules(neighbours: usize, loops: Loops) -> LoopClosure {
        LoopClosure::new(&Config {
            loops,
            local_opt: GlobalOptConfig {
                neighbours,
                ..Config::default().local_opt
            },
            ..Config::default()
        })
    }

    fn graph(submaps: &[u32]) -> Graph {
        let mut graph = Graph::default();
        for (id, &submap) in (0..).zip(submaps) {
            let info = KeyframeInfo {
                id,
                frame_index: 0,
                stamp: Default::default(),
            };
            graph.insert(info, Sim3::identity(), submap, None);
        }
        graph
    }

    fn hit(id: u32) -> Hit {
        Hit { id, score: 1.0 }
    }

    #[test]
    fn each_candidate_is_proposed_once_by_its_strongest_reason() {
        let graph = graph(&[0, 0, 0, 0, 0]);
        let anchor = Some(Anchor::at(4));
        let hits = [hit(4), hit(3), hit(0), hit(5), hit(0)];
        let candidates =
            rules(3, Loops::On).candidates(&graph, (5, 0, &Sim3::identity()), anchor, &hits);
        assert_eq!(
            candidates,
            [(4, Consecutive), (3, Neighbour), (2, Neighbour), (0, Loop)]
        );
        let candidates =
            rules(1, Loops::Off).candidates(&graph, (5, 0, &Sim3::identity()), anchor, &hits);
        assert_eq!(candidates, [(4, Consecutive)]);
    }

    #[test]
    fn keyframes_that_are_near_leave_room_for_a_far_place() {
        let graph = fixtures::chain((0..30).map(|k| fixtures::at(f64::from(k))), |_| 0.5);
        let mut rules = rules(1, Loops::On);
        let places = Config::default().retrieval.k;
        // The newest keyframes look most like keyframe 30, then the places of two loops.
        let hits: Vec<Hit> = (0..6)
            .map(|back| hit(29 - back))
            .chain([hit(3), hit(4)])
            .collect();
        assert!(hits.len() <= rules.places_queried());
        let anchor = Some(Anchor::at(29));
        let found = rules.candidates(&graph, (30, 0, &Sim3::identity()), anchor, &hits);
        let alike = (1..places as u32).map(|back| (29 - back, Loop));
        let expected: Vec<_> = [(29, Consecutive)]
            .into_iter()
            .chain(alike)
            .chain([(3, Loop)])
            .collect();
        assert_eq!(found, expected);
        // A place that rests leaves room for the next.
        rules.resting.push((3, 40));
        let found = rules.candidates(&graph, (30, 0, &Sim3::identity()), anchor, &hits);
        assert_eq!(found.last(), Some(&(4, Loop)));
        // All places are far from the first keyframe of a submap.
        let found = rules.candidates(&graph, (30, 1, &Sim3::identity()), None, &hits);
        assert_eq!(found.len(), places + FAR);
    }

    #[test]
    fn neighbours_are_of_one_submap_and_exist() {
        let graph = graph(&[0, 1, 1]);
        let neighbours = |count| {
            rules(count, Loops::Off).candidates(&graph, (3, 1, &Sim3::identity()), None, &[])
        };
        assert_eq!(neighbours(9), [(1, Neighbour)]);
        assert_eq!(neighbours(usize::MAX), [(1, Neighbour)]);
        assert!(neighbours(0).is_empty());
    }

    #[test]
    fn cells_with_few_matches_are_not_covered() {
        let mut spread = Spread::default();
        assert_eq!(covered(&spread, 1600), 0);
        spread[0] = 1;
        spread[3] = 100;
        // A cell has 100 pixels.
        assert_eq!(covered(&spread, 1600), 2);
        assert_eq!(covered(&spread, 1601), 1);
        assert_eq!(covered(&[1; 16], 16), 16);
        assert_eq!(covered(&[0; 16], 0), 0);
    }
}
