//! How long each kernel of a solve takes, for the benchmark.

use super::{DeviceGlobalSolver, DeviceProblem, GlobalError, Run, links, start};
use crate::compute::cuda::{CudaError, Stream};
use crate::compute::global::descent::{Graph, Lineariser, Wanted};
use crate::config::LocalOptConfig;

/// Milliseconds of one launch of each kernel.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StageTimes {
    /// Gates of the keyframes' pixels, once a solve.
    pub mask_ms: f32,
    /// Gates of the matches, once a solve.
    pub gate_ms: f32,
    /// Relative poses, once a linearisation.
    pub relate_ms: f32,
    /// Sums over the matches, once a linearisation.
    pub sums_ms: f32,
    /// Sums of the cost alone, at a solve's last poses.
    pub costs_ms: f32,
    /// Sums of the sums, once a linearisation.
    pub reduce_ms: f32,
    /// A whole linearisation: poses there, equations back, and the wait for them.
    pub round_trip_ms: f32,
    /// Matches that the sums went through.
    pub matches: u64,
}

impl DeviceGlobalSolver {
    /// Launches each kernel `repeats` times in a row, at the keyframes' poses.
    pub fn time_stages(
        &mut self,
        stream: &Stream,
        problem: &DeviceProblem<'_>,
        params: &LocalOptConfig,
        repeats: u32,
    ) -> Result<StageTimes, GlobalError> {
        let links = links(problem);
        let graph = Graph {
            links: &links,
            priors: problem.priors,
        };
        let (poses, active) = (start(problem), vec![true; links.len()]);
        let context = stream.context();
        let (begin, end) = (context.event(true)?, context.event(true)?);
        let repeats = repeats.max(1);
        let mut run = Run::new(self, stream, problem, params, &graph)?;
        run.finish_after(|run| {
            run.select()?;
            run.enqueue_linearise(&poses, &active, Wanted::Equations)?;
            run.wait()?;
            let equations = run.solver.pinned.equations.iter().take(links.len());
            let matches = equations.map(|e| e.matches).sum();
            let mut times = StageTimes {
                matches,
                ..StageTimes::default()
            };
            if run.is_empty() {
                return Ok(times);
            }
            type Stage<'a> = fn(&Run<'a>) -> Result<(), CudaError>;
            let stages: [(&mut f32, Stage<'_>); 6] = [
                (&mut times.mask_ms, Run::enqueue_mask),
                (&mut times.gate_ms, Run::enqueue_gate),
                (&mut times.relate_ms, Run::enqueue_relate),
                (&mut times.sums_ms, |run| {
                    run.enqueue_sums(Wanted::Equations)
                }),
                (&mut times.costs_ms, |run| run.enqueue_sums(Wanted::Cost)),
                (&mut times.reduce_ms, Run::enqueue_reduce),
            ];
            for (time, stage) in stages {
                stream.record(&begin)?;
                for _ in 0..repeats {
                    stage(run)?;
                }
                stream.record(&end)?;
                *time = begin.milliseconds_until(&end)? / repeats as f32;
            }
            let started = std::time::Instant::now();
            for _ in 0..repeats {
                run.enqueue_linearise(&poses, &active, Wanted::Equations)?;
                run.wait()?;
            }
            times.round_trip_ms = started.elapsed().as_secs_f32() * 1e3 / repeats as f32;
            Ok(times)
        })
    }
}
