//! The global solve at the three sizes of the target.

use super::measure::{Stage, Work};
use super::scene::Random;
use super::{Scene, Setup, WHAT, planned, room, send};
use crate::cli::CliError;
use crate::compute::cuda::global::{
    DeviceEdge, DeviceGlobalSolver, DeviceKeyframe, DeviceMatches, DeviceProblem, GlobalCapacity,
    GlobalError,
};
use crate::compute::cuda::{CudaError, DeviceArena, DeviceBuffer, PinnedArena, Stream};
use crate::compute::global::{GlobalReport, GlobalResidual};
use crate::config::LocalOptConfig;
use crate::geometry::{Sim3, Tangent};
use half::f16;

/// Iterations of the target.
const ITERATIONS: usize = 10;
/// Radians between neighbouring keyframes on their way around the room.
const STEP: f64 = 0.1;

struct Matches {
    index: DeviceBuffer<u32>,
    valid: DeviceBuffer<u8>,
    quality: DeviceBuffer<f32>,
}

impl Matches {
    fn all(&self) -> DeviceMatches<'_> {
        DeviceMatches {
            index: self.index.all(),
            valid: self.valid.all(),
            quality: self.quality.all(),
        }
    }
}

struct Edge {
    i: usize,
    j: usize,
    i_from_j: Matches,
    j_from_i: Matches,
}

struct GlobalStage {
    solver: DeviceGlobalSolver,
    params: LocalOptConfig,
    points: Vec<DeviceBuffer<f32>>,
    confidence: Vec<DeviceBuffer<f16>>,
    edges: Vec<Edge>,
    start: Vec<Sim3>,
    found: Vec<Sim3>,
    report: Option<GlobalReport>,
    size: (usize, usize),
    matches: u64,
    target: f64,
}

pub fn small(setup: &Setup<'_>) -> Result<Box<dyn Stage>, CliError> {
    global(setup, 10, 10, 1.0)
}

pub fn medium(setup: &Setup<'_>) -> Result<Box<dyn Stage>, CliError> {
    global(setup, 50, 75, 3.5)
}

pub fn large(setup: &Setup<'_>) -> Result<Box<dyn Stage>, CliError> {
    global(setup, 200, 300, 14.0)
}

/// Pairs of keyframes: each with the next, then with the one after that and so on, then around the room.
fn pairs(keyframes: usize, edges: usize) -> Vec<(usize, usize)> {
    let apart = (1..keyframes).flat_map(|gap| (gap..keyframes).map(move |j| (j - gap, j)));
    apart.take(edges).collect()
}

fn global(
    setup: &Setup<'_>,
    keyframes: usize,
    edges: usize,
    target: f64,
) -> Result<Box<dyn Stage>, CliError> {
    let scene = &setup.scene;
    let n = scene.pixels();
    let capacity = GlobalCapacity {
        pixels: n,
        keyframes,
        edges,
    };
    let (n64, keys, ways) = (n as u64, keyframes as u64, 2 * edges as u64);
    let bytes = planned(&capacity.device_buffers())
        + keys * room(&[12 * n64, 2 * n64])
        + ways * room(&[4 * n64, n64, 4 * n64]);
    let mut arena = DeviceArena::new(setup.context, WHAT, bytes)?;
    let mut pinned = PinnedArena::new(setup.context, planned(&capacity.pinned_buffers()))?;

    let truth = Scene::walk(keyframes, STEP);
    let mut random = Random(6);
    let (mut points, mut confidence) = (Vec::new(), Vec::new());
    for (k, pose) in truth.iter().enumerate() {
        let view = scene.output(pose, pose, 0.003, 100 + k as u64);
        let narrow: Vec<f16> = view.confidence.iter().map(|&c| f16::from_f32(c)).collect();
        points.push(send(setup, &mut arena, "points", &view.points)?);
        confidence.push(send(setup, &mut arena, "confidence", &narrow)?);
    }
    let mut matches = 0;
    let mut made = Vec::with_capacity(edges);
    for (i, j) in pairs(keyframes, edges) {
        let (a, b) = (scene.points(&truth[i]), scene.points(&truth[j]));
        let mut way = |from: (&Sim3, &[_]), to: (&Sim3, &[_])| {
            let found = scene.matches(from, to);
            let index: Vec<u32> = found.iter().map(|m| m.unwrap_or(0)).collect();
            let valid: Vec<u8> = found.iter().map(|m| u8::from(m.is_some())).collect();
            let quality: Vec<f32> = found.iter().map(|m| m.map_or(0.0, |_| 3.0)).collect();
            matches += valid.iter().map(|&v| u64::from(v)).sum::<u64>();
            Ok::<_, CudaError>(Matches {
                index: send(setup, &mut arena, "index", &index)?,
                valid: send(setup, &mut arena, "valid", &valid)?,
                quality: send(setup, &mut arena, "quality", &quality)?,
            })
        };
        made.push(Edge {
            i_from_j: way((&truth[j], &b), (&truth[i], &a))?,
            j_from_i: way((&truth[i], &a), (&truth[j], &b))?,
            i,
            j,
        });
    }
    // Poses as tracking leaves them: each a little off.
    let start = truth
        .iter()
        .map(|pose| Sim3::exp(&Tangent::from_fn(|_, _| 0.01 * random.normal())) * *pose)
        .collect();
    Ok(Box::new(GlobalStage {
        solver: DeviceGlobalSolver::new(setup.context, &mut arena, &mut pinned, capacity)
            .map_err(cuda)?,
        params: LocalOptConfig {
            max_iters: ITERATIONS,
            rel_error: 0.0,
            delta_norm: 0.0,
            ..LocalOptConfig::default()
        },
        points,
        confidence,
        edges: made,
        found: truth,
        start,
        report: None,
        size: (scene.width, scene.height),
        matches,
        target,
    }))
}

/// What a solve on sound data can fail of.
fn cuda(error: GlobalError) -> CudaError {
    match error {
        GlobalError::Cuda(error) => error,
        other => CudaError::Failed {
            doing: "solving for keyframe poses",
            code: 0,
            status: other.to_string(),
        },
    }
}

impl Stage for GlobalStage {
    fn name(&self) -> String {
        let (keyframes, directed) = (self.start.len(), 2 * self.edges.len());
        format!("global, rays, {ITERATIONS} it., {keyframes}/{directed}")
    }

    fn host_driven(&self) -> bool {
        true
    }

    /// Each linearisation reads every match, 8 bytes, and every point once; one more of them than
    /// iterations, 180 operations a valid match. The gates once: 13 bytes a match, 14 a pixel.
    fn work(&self) -> Work {
        let n = (self.size.0 * self.size.1) as u64;
        let (keyframes, directed) = (self.start.len() as u64, 2 * self.edges.len() as u64);
        let rounds = ITERATIONS as u64 + 1;
        Work {
            bytes: n * (directed * (8 * rounds + 13) + keyframes * (12 * rounds + 14)),
            operations: self.matches * 180 * rounds,
        }
    }

    fn target(&self) -> Option<f64> {
        Some(self.target)
    }

    fn enqueue(&mut self, stream: &Stream) -> Result<(), CudaError> {
        let keyframes: Vec<DeviceKeyframe<'_>> = (self.points.iter())
            .zip(&self.confidence)
            .zip(&self.start)
            .map(|((points, confidence), pose)| DeviceKeyframe {
                points: points.all(),
                confidence: confidence.all(),
                world_from_camera: *pose,
            })
            .collect();
        let edges: Vec<DeviceEdge<'_>> = (self.edges.iter())
            .map(|edge| DeviceEdge {
                i: edge.i,
                j: edge.j,
                i_from_j: edge.i_from_j.all(),
                j_from_i: edge.j_from_i.all(),
            })
            .collect();
        let problem = DeviceProblem {
            keyframes: &keyframes,
            edges: &edges,
            priors: &[],
            residual: GlobalResidual::Rays,
            width: self.size.0,
            height: self.size.1,
        };
        let solved = self
            .solver
            .solve(stream, &problem, &self.params, &mut self.found);
        self.report = Some(solved.map_err(cuda)?);
        Ok(())
    }

    fn outcome(&mut self, _stream: &Stream) -> Result<String, CudaError> {
        Ok(self.report.as_ref().map_or(String::new(), |report| {
            format!(
                "{} iterations, {} of {} matches",
                report.iterations,
                self.matches,
                2 * self.edges.len() * self.size.0 * self.size.1
            )
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_connect_neighbours_first_and_all_keyframes() {
        assert_eq!(pairs(3, 10), [(0, 1), (1, 2), (0, 2)]);
        for (keyframes, edges) in [(10, 10), (50, 75), (200, 300)] {
            let pairs = pairs(keyframes, edges);
            assert_eq!(pairs.len(), edges);
            assert!((1..keyframes).all(|j| pairs.contains(&(j - 1, j))));
        }
    }
}
