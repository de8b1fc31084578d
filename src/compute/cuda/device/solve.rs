//! Global solve over keyframes and edges that may not fit the GPU simultaneously.
//!
//! A graph whose keyframes and edges all have slots is solved in place. A larger one is processed
//! in parts: each linearisation streams the edges, as many as there are slots for, through the GPU,
//! together with the keyframes they connect. The equations of an edge depend only on the edge
//! itself, so both ways give the same bits.

use super::edges::CudaEdges;
use super::errors::failed;
use crate::compute::cancel::CancelToken;
use crate::compute::cuda::global::{
    DeviceEdge, DeviceGlobalSolver, DeviceKeyframe, DeviceProblem, GlobalError, rounding,
    whitened_error,
};
use crate::compute::cuda::slots::CudaKeyframes;
use crate::compute::device::{DeviceError, GraphEdge, PoseGraph};
use crate::compute::global::descent::{self, Graph, Lineariser, Wanted};
use crate::compute::global::terms::{Linearised, Term, factor_terms};
use crate::compute::global::{
    EdgeEquations, GlobalReport, GlobalResidual, Matrix7, Priors, SolveError,
};
use crate::compute::store::{Access, Lane, Lease, SlotDevice, Touch};
use crate::config::{DeviceConfig, GlobalOptConfig};
use crate::geometry::{Sim3, Tangent};
use crate::gpu::{CudaError, Floats, Stream};
use crate::time::millis;
use std::time::Instant;

/// Slots that the tracking thread may need while a solve holds the others.
const OTHERS: usize = 4;

/// A warning if even windowed solves would be processed in parts, so that mapping would fall behind
/// a moving camera.
pub(super) fn crowded(config: &DeviceConfig) -> Option<String> {
    let (window, memory) = (&config.local_opt, &config.memory);
    let keyframes = memory.keyframe_slots.saturating_sub(OTHERS);
    let within = |size: usize, room: usize| (1..=room).contains(&size);
    let fits = within(window.window, keyframes)
        && within(window.window_keyframes, keyframes)
        && within(window.window_edges, memory.edges);
    (!fits).then(|| {
        format!(
            "windowed solves may exceed the GPU's slots and become slow in a large map: local_opt.window and window_keyframes are {} and {}, window_edges is {} (0: no limit); with memory.keyframe_slots {} and memory.edges {}, set them to at most {keyframes} and {}, or raise the slots",
            window.window,
            window.window_keyframes,
            window.window_edges,
            memory.keyframe_slots,
            memory.edges,
            memory.edges,
        )
    })
}

/// Solves graphs of any size.
pub(super) struct GraphSolver {
    pub(super) solver: DeviceGlobalSolver,
    pub(super) residual: GlobalResidual,
    pub(super) width: usize,
    pub(super) height: usize,
    /// Cancellation token of the solve.
    pub(super) cancel: CancelToken,
}

/// Both stores.
type Stores<'a> = (&'a CudaKeyframes, &'a CudaEdges);

/// Reasons for a solve to fail.
enum Failure {
    Solve(SolveError),
    Device(DeviceError),
}

impl From<SolveError> for Failure {
    fn from(error: SolveError) -> Self {
        Self::Solve(error)
    }
}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Self {
        Self::Device(error)
    }
}

impl From<CudaError> for Failure {
    fn from(error: CudaError) -> Self {
        Self::Device(error.into())
    }
}

impl From<GlobalError> for Failure {
    fn from(error: GlobalError) -> Self {
        match error {
            GlobalError::Solve(error) => Self::Solve(error),
            error => Self::Device(error.into()),
        }
    }
}

impl GraphSolver {
    pub(super) fn set_cancel(&mut self, cancel: &CancelToken) {
        self.solver.set_cancel(cancel);
        self.cancel = cancel.clone();
    }

    /// Optimises `poses`; `keys` are the store keys of the graph's keyframes.
    pub(super) fn solve(
        &mut self,
        stream: &Stream,
        stores: Stores<'_>,
        keys: &[u32],
        graph: &PoseGraph<'_>,
        poses: &mut [Sim3],
    ) -> Result<Result<GlobalReport, SolveError>, DeviceError> {
        let capacity = self.capacity(stores);
        let (start, before) = (
            Instant::now(),
            [stores.0.counts(), stores.1.counts()].map(|c| c.evicted),
        );
        let fits = keys.len() <= capacity.keyframes && graph.edges.len() <= capacity.edges;
        let solved = if fits {
            self.in_place(stream, stores, keys, graph, poses)
        } else {
            self.in_parts(stream, stores, keys, graph, poses, capacity)
        };
        match solved {
            Ok(report) => {
                tracing::debug!(
                    "{} keyframes and {} edges solved {} in {:.1} ms: {} iterations, {} steps rejected, {} keyframes and {} edges moved out",
                    keys.len(),
                    graph.edges.len(),
                    if fits { "in place" } else { "in parts" },
                    millis(start),
                    report.iterations,
                    report.rejected_steps,
                    stores.0.counts().evicted - before[0],
                    stores.1.counts().evicted - before[1],
                );
                Ok(Ok(report))
            }
            Err(Failure::Solve(error)) => Ok(Err(error)),
            Err(Failure::Device(error)) => Err(error),
        }
    }

    /// Replaces `dst` by the normal equations of every edge at the graph's initial poses; `keys` as
    /// in [`GraphSolver::solve`].
    pub(super) fn equations(
        &mut self,
        stream: &Stream,
        stores: Stores<'_>,
        keys: &[u32],
        graph: &PoseGraph<'_>,
        dst: &mut Vec<EdgeEquations>,
    ) -> Result<Result<(), SolveError>, DeviceError> {
        match self.all_equations(stream, stores, keys, graph) {
            Ok(found) => {
                *dst = found;
                Ok(Ok(()))
            }
            Err(Failure::Solve(error)) => Ok(Err(error)),
            Err(Failure::Device(error)) => Err(error),
        }
    }

    fn all_equations(
        &mut self,
        stream: &Stream,
        stores: Stores<'_>,
        keys: &[u32],
        graph: &PoseGraph<'_>,
    ) -> Result<Vec<EdgeEquations>, Failure> {
        let links: Vec<(usize, usize)> = graph.edges.iter().map(|e| (e.i, e.j)).collect();
        let described = Graph {
            links: &links,
            factors: &[],
            priors: Priors::default(),
        };
        described.validate(graph.start.iter().copied())?;
        let parts = split(graph.edges, self.capacity(stores))?;
        let mut equations = Vec::with_capacity(graph.edges.len());
        for part in &parts {
            let wanted = Wanted::Equations;
            let (params, start) = (graph.params, graph.start);
            equations.extend(self.part(stream, stores, keys, part, start, params, wanted)?);
        }
        Ok(equations)
    }

    /// The equations of a part of a graph whose keyframes are at `poses`.
    #[allow(clippy::too_many_arguments)]
    fn part(
        &mut self,
        stream: &Stream,
        stores: Stores<'_>,
        keys: &[u32],
        part: &Part,
        poses: &[Sim3],
        params: &GlobalOptConfig,
        wanted: Wanted,
    ) -> Result<Vec<EdgeEquations>, Failure> {
        let leases = Leases::new(stores, keys, part, Touch::Pass)?;
        let (keyframes, edges) = leases.views(stores, part, poses)?;
        let problem = DeviceProblem {
            keyframes: &keyframes,
            edges: &edges,
            factors: &[],
            priors: Priors::default(),
            residual: self.residual,
            width: self.width,
            height: self.height,
        };
        Ok(self.solver.equations(stream, &problem, params, wanted)?)
    }

    /// The largest problem that fits the solver and the slots.
    fn capacity(&self, (keyframes, edges): Stores<'_>) -> Capacity {
        let capacity = self.solver.capacity();
        Capacity {
            keyframes: capacity.keyframes.min(free(keyframes)),
            edges: capacity.edges.min(edges.device().device_slots()),
        }
    }

    fn in_place(
        &mut self,
        stream: &Stream,
        stores: Stores<'_>,
        keys: &[u32],
        graph: &PoseGraph<'_>,
        poses: &mut [Sim3],
    ) -> Result<GlobalReport, Failure> {
        let part = Part {
            keyframes: (0..keys.len()).collect(),
            edges: graph.edges.to_vec(),
        };
        let leases = Leases::new(stores, keys, &part, Touch::Use)?;
        let (keyframes, edges) = leases.views(stores, &part, graph.start)?;
        let problem = DeviceProblem {
            keyframes: &keyframes,
            edges: &edges,
            factors: graph.factors,
            priors: graph.priors,
            residual: self.residual,
            width: self.width,
            height: self.height,
        };
        Ok(self.solver.solve(stream, &problem, graph.params, poses)?)
    }

    fn in_parts(
        &mut self,
        stream: &Stream,
        stores: Stores<'_>,
        keys: &[u32],
        graph: &PoseGraph<'_>,
        poses: &mut [Sim3],
        capacity: Capacity,
    ) -> Result<GlobalReport, Failure> {
        let links: Vec<(usize, usize)> = graph.edges.iter().map(|e| (e.i, e.j)).collect();
        let described = Graph {
            links: &links,
            factors: graph.factors,
            priors: graph.priors,
        };
        described.validate(graph.start.iter().copied())?;
        let mut current = graph.start.to_vec();
        let cancel = self.cancel.clone();
        let mut parts = Parts {
            parts: split(graph.edges, capacity)?,
            solver: self,
            stream,
            stores,
            keys,
            graph,
            factors: Vec::new(),
        };
        let report = descent::descend(&mut parts, &described, graph.params, &cancel, &mut current)?;
        if poses.len() != current.len() {
            return Err(Failure::Solve(SolveError::Shape {
                what: "poses",
                expected: current.len(),
                found: poses.len(),
            }));
        }
        poses.copy_from_slice(&current);
        Ok(report)
    }
}

/// Number of slots that a solve may hold.
fn free(keyframes: &CudaKeyframes) -> usize {
    keyframes.device().device_slots().saturating_sub(OTHERS)
}

/// Maximum number of keyframes and edges on the GPU at once.
#[derive(Debug, Clone, Copy)]
struct Capacity {
    keyframes: usize,
    edges: usize,
}

/// Some edges and the keyframes they connect.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Part {
    /// Indices in the graph's keyframes.
    keyframes: Vec<usize>,
    /// Edges, with `i` and `j` as indices in `keyframes`.
    edges: Vec<GraphEdge>,
}

/// Splits the edges, in order, into as few parts as the order allows.
fn split(edges: &[GraphEdge], capacity: Capacity) -> Result<Vec<Part>, DeviceError> {
    if capacity.keyframes < 2 || capacity.edges < 1 {
        return Err(failed(TooFewSlots { capacity }));
    }
    let mut parts: Vec<Part> = Vec::new();
    for edge in edges {
        let fits = parts.last().is_some_and(|part| {
            let new = [edge.i, edge.j]
                .iter()
                .filter(|k| !part.keyframes.contains(k))
                .count();
            part.keyframes.len() + new <= capacity.keyframes && part.edges.len() < capacity.edges
        });
        if !fits {
            parts.push(Part {
                keyframes: Vec::new(),
                edges: Vec::new(),
            });
        }
        // Exists, because one was added above if there was none.
        let Some(part) = parts.last_mut() else { break };
        let mut place = |k: usize| {
            let found = part.keyframes.iter().position(|&known| known == k);
            found.unwrap_or_else(|| {
                part.keyframes.push(k);
                part.keyframes.len() - 1
            })
        };
        let (i, j) = (place(edge.i), place(edge.j));
        part.edges.push(GraphEdge { i, j, ..*edge });
    }
    Ok(parts)
}

#[derive(Debug, thiserror::Error)]
#[error(
    "a solve needs slots for at least two keyframes and one edge, found {} and {}: raise memory.keyframe_slots and memory.edges",
    capacity.keyframes, capacity.edges
)]
struct TooFewSlots {
    capacity: Capacity,
}

/// Leases on everything that a part needs.
struct Leases<'a> {
    keyframes: Vec<Lease<'a, crate::compute::cuda::slots::CudaSlots>>,
    edges: Vec<Lease<'a, super::edges::EdgeSlots>>,
}

impl<'a> Leases<'a> {
    fn new(
        stores: Stores<'a>,
        keys: &[u32],
        part: &Part,
        touch: Touch,
    ) -> Result<Self, DeviceError> {
        let (lane, access) = (Lane::Mapping, Access::Read);
        let key = |&k: &usize| {
            let key = keys.get(k).copied();
            key.ok_or(super::errors::unknown("keyframe of a graph", k as u32))
        };
        let keyframes = part.keyframes.iter().map(key);
        let keyframes = keyframes.collect::<Result<Vec<u32>, DeviceError>>()?;
        let edges: Vec<u32> = part.edges.iter().map(|edge| edge.id.0).collect();
        Ok(Self {
            keyframes: stores.0.lease_all(lane, &keyframes, access, touch)?,
            edges: stores.1.lease_all(lane, &edges, access, touch)?,
        })
    }

    /// Views of the leased data, with the initial poses of the keyframes.
    fn views(
        &self,
        stores: Stores<'a>,
        part: &Part,
        poses: &[Sim3],
    ) -> Result<(Vec<DeviceKeyframe<'a>>, Vec<DeviceEdge<'a>>), DeviceError> {
        let keyframe = |(lease, &k): (&Lease<'_, _>, &usize)| {
            let slot = stores.0.device().slot(lease.slot())?;
            let Floats::F16(confidence) = slot.confidence else {
                return Err(failed(WideConfidence));
            };
            let pose = poses.get(k).copied();
            Ok(DeviceKeyframe {
                points: slot.points,
                confidence,
                world_from_camera: pose
                    .ok_or(super::errors::unknown("pose of keyframe", k as u32))?,
            })
        };
        let edge = |(lease, edge): (&Lease<'_, _>, &GraphEdge)| {
            let slot = stores.1.device().slot(lease.slot())?;
            Ok(DeviceEdge {
                i: edge.i,
                j: edge.j,
                i_from_j: slot.i_from_j,
                j_from_i: slot.j_from_i,
            })
        };
        let keyframes = self.keyframes.iter().zip(&part.keyframes).map(keyframe);
        let edges = self.edges.iter().zip(&part.edges).map(edge);
        Ok((
            keyframes.collect::<Result<_, DeviceError>>()?,
            edges.collect::<Result<_, DeviceError>>()?,
        ))
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the solve requires keyframe confidences in f16")]
struct WideConfidence;

/// A graph solved in chunks because it exceeds the device slots.
struct Parts<'a> {
    parts: Vec<Part>,
    solver: &'a mut GraphSolver,
    stream: &'a Stream,
    stores: Stores<'a>,
    keys: &'a [u32],
    graph: &'a PoseGraph<'a>,
    factors: Vec<Term>,
}

impl Lineariser for Parts<'_> {
    type Error = Failure;

    /// Each part selects its own matches every time.
    fn select(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    fn linearise(
        &mut self,
        poses: &[Sim3],
        active: &[bool],
        wanted: Wanted,
        out: &mut Linearised,
    ) -> Result<(), Failure> {
        out.clear();
        let mut edge = 0;
        for part in &self.parts {
            let (keys, params) = (self.keys, self.graph.params);
            let equations =
                self.solver
                    .part(self.stream, self.stores, keys, part, poses, params, wanted)?;
            for e in equations {
                let (i, j) = match self.graph.edges.get(edge) {
                    Some(edge) => (edge.i, edge.j),
                    None => break,
                };
                let counts = active.get(edge).is_some_and(|active| *active);
                let nothing = (Matrix7::zeros(), Tangent::zeros(), 0.0, 0);
                let (hessian, gradient, robust, matches) = match counts {
                    true => (e.hessian, e.gradient, e.robust, e.matches),
                    false => nothing,
                };
                let term = Term {
                    i,
                    j,
                    hessian,
                    gradient,
                };
                out.push_edge(term, robust, matches);
                edge += 1;
            }
        }
        self.factors.clear();
        let cost = factor_terms(self.graph.factors, poses, &mut self.factors);
        out.push_factors(&self.factors, cost);
        Ok(())
    }

    fn rounding(&self, robust: f64, used: u64) -> f64 {
        let GraphSolver {
            residual,
            width,
            height,
            ..
        } = &*self.solver;
        let error = whitened_error(*residual, (*width, *height), self.graph.params);
        rounding(error, robust, used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compute::device::EdgeId;
    use proptest::prelude::*;

    /// The built-in configurations have room for their windows, and lowering the memory produces a
    /// warning.
    #[test]
    fn windows_that_find_no_room_are_told() {
        use crate::config::{Base, builtin_names, load_with};
        for name in builtin_names() {
            let config = DeviceConfig::from(&load_with(Base::Builtin(name), &[]).unwrap());
            assert_eq!(crowded(&config), None, "{name}");
        }
        type Change = fn(&mut DeviceConfig);
        let changes: [Change; 6] = [
            |c| c.memory.keyframe_slots = 123,
            |c| c.memory.edges = 511,
            |c| c.local_opt.window = 125,
            |c| c.local_opt.window = 0,
            |c| c.local_opt.window_keyframes = 0,
            |c| c.local_opt.window_edges = 0,
        ];
        for change in changes {
            let mut config = DeviceConfig::default();
            change(&mut config);
            let said = crowded(&config).unwrap();
            assert!(said.contains("at most"), "{said}");
        }
    }

    proptest! {
        #[test]
        fn parts_hold_every_edge_once_and_fit(
            ends in proptest::collection::vec((0_usize..20, 0_usize..20), 0..60),
            keyframes in 2_usize..9,
            edges in 1_usize..9,
        ) {
            let all: Vec<GraphEdge> = ends
                .iter()
                .enumerate()
                .filter(|(_, (i, j))| i != j)
                .map(|(n, &(i, j))| GraphEdge { id: EdgeId(n as u32), i, j })
                .collect();
            let capacity = Capacity { keyframes, edges };
            let parts = split(&all, capacity).expect("enough for any edge");
            let mut back = Vec::new();
            for part in &parts {
                prop_assert!(part.keyframes.len() <= keyframes && part.edges.len() <= edges);
                for e in &part.edges {
                    let (i, j) = (part.keyframes[e.i], part.keyframes[e.j]);
                    back.push(GraphEdge { i, j, ..*e });
                }
            }
            prop_assert_eq!(back, all);
        }
    }

    #[test]
    fn too_few_slots_are_refused() {
        for (keyframes, edges) in [(1, 5), (0, 0), (5, 0)] {
            let error = split(&[], Capacity { keyframes, edges }).expect_err("too few");
            assert!(
                error.to_string().contains("memory.keyframe_slots"),
                "{error}"
            );
        }
    }
}
