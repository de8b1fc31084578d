//! Timing of stages on the device.

use crate::gpu::plan::Group;
use crate::gpu::{Carving, Context, CudaError, DeviceBuffer, Event, Graph, Priority, Stream};
use serde::Serialize;
use std::time::Instant;

/// Lower bound of a stage's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Work {
    /// Bytes that have to come from or go to memory if inputs are read and outputs written once.
    pub bytes: u64,
    /// Additions, multiplications, divisions and roots, one each.
    pub operations: u64,
}

/// Something that is enqueued as a whole and timed.
pub trait Stage {
    /// The name used in output.
    fn name(&self) -> String;
    /// Lower bound of the work.
    fn work(&self) -> Work;
    /// Target in milliseconds at 512×384 on an H200, if there is one.
    fn target(&self) -> Option<f64> {
        None
    }
    /// Puts back what a run changes; not timed.
    fn prepare(&mut self, _stream: &Stream) -> Result<(), CudaError> {
        Ok(())
    }
    /// Whether the host takes part, so that it cannot be captured in a graph and is timed by the host's
    /// clock, waiting included.
    fn host_driven(&self) -> bool {
        false
    }
    /// Enqueues the work.
    fn enqueue(&mut self, stream: &Stream) -> Result<(), CudaError>;
    /// Summary of the result, which shows whether the work was meaningful. Call it after [`Stage::enqueue`].
    fn outcome(&mut self, _stream: &Stream) -> Result<String, CudaError> {
        Ok(String::new())
    }
}

/// Peak throughput of the device.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Limits {
    /// Bytes per second of a copy within the device, read and written together, measured.
    pub bandwidth: f64,
    /// Additions or multiplications of f32 per second: multiprocessors × 128 lanes × clock.
    pub operations: f64,
}

/// Lanes of f32 arithmetic of a multiprocessor, on all architectures that the kernels are built for.
const LANES: f64 = 128.0;

impl Limits {
    /// Measures the bandwidth with `samples` copies of half of a buffer to its other half.
    fn measure(bench: &Bench, samples: usize) -> Result<Self, CudaError> {
        let n = bench.flush.len() / 2;
        let (src, dst) = (bench.flush.slice(0..n)?, bench.flush.slice(n..2 * n)?);
        let mut best = f32::INFINITY;
        for _ in 0..samples.max(1) {
            bench.stream.copy(dst, src)?;
            bench.stream.record(&bench.events[0])?;
            bench.stream.copy(src, dst)?;
            bench.stream.record(&bench.events[1])?;
            best = best.min(bench.events[0].milliseconds_until(&bench.events[1])?);
        }
        let info = bench.context.info();
        Ok(Self {
            bandwidth: 2.0 * n as f64 / (f64::from(best) * 1e-3),
            operations: f64::from(info.multiprocessors) * LANES * f64::from(info.clock_khz) * 1e3,
        })
    }

    /// Lower bound of the duration of `work` in milliseconds, and whether it is memory-bound.
    pub fn least(&self, work: Work) -> (f64, bool) {
        let memory = work.bytes as f64 / self.bandwidth * 1e3;
        let arithmetic = work.operations as f64 / self.operations * 1e3;
        (memory.max(arithmetic), memory >= arithmetic)
    }
}

/// Result row of a stage.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Name of the stage.
    pub stage: String,
    /// Median with nothing of the stage in the caches, milliseconds.
    pub median: f64,
    /// 99th percentile of the same.
    pub p99: f64,
    /// Median right after the same stage has run.
    pub warm: f64,
    /// Lower bound of the work.
    #[serde(flatten)]
    pub work: Work,
    /// Lower bound of the duration in milliseconds.
    pub limit: f64,
    /// `memory` or `arithmetic`: which of the two that is.
    pub bound: &'static str,
    /// `limit / median`.
    pub fraction: f64,
    /// Time budget in milliseconds.
    pub target: Option<f64>,
    /// Number of kernels, copies and fills; `None` if the host decides it.
    pub launches: Option<usize>,
    /// Summary of the result.
    pub outcome: String,
}

/// Times stages, one after the other.
pub struct Bench {
    context: Context,
    /// Problem sizes of the stages.
    pub stream: Stream,
    events: [Event; 4],
    /// Larger than the caches: writing it empties them.
    flush: DeviceBuffer<u8>,
    /// Peak throughput of the device.
    pub limits: Limits,
    samples: usize,
}

/// Runs before the first sample.
const WARM_UP: usize = 10;

impl Bench {
    /// On `context`, `samples` runs a stage.
    pub fn new(context: &Context, samples: usize) -> Result<Self, CudaError> {
        // At least 512 MB, so that the launch overhead of a copy is negligible.
        let bytes = (4 * context.info().l2_bytes).max(512 << 20);
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let mut carving = Carving::separate(context);
        let mut part = carving.part(Group::Tracking, "bench");
        let event = || context.event(true);
        let mut bench = Self {
            context: context.clone(),
            stream: context.stream(Priority::High)?,
            events: [event()?, event()?, event()?, event()?],
            flush: part.device("flush", &[bytes])?,
            limits: Limits {
                bandwidth: 1.0,
                operations: 1.0,
            },
            samples: samples.max(1),
        };
        bench.stream.fill(bench.flush.all(), 0)?;
        bench.limits = Limits::measure(&bench, 10)?;
        Ok(bench)
    }

    /// Times a stage, captured in a graph.
    pub fn time(&self, stage: &mut dyn Stage) -> Result<Row, CudaError> {
        // The first run outside a graph: what goes wrong is said by the stage itself.
        stage.prepare(&self.stream)?;
        stage.enqueue(&self.stream)?;
        self.stream.synchronize()?;
        let graph = match stage.host_driven() {
            true => None,
            false => Some(self.stream.capture(|| stage.enqueue(&self.stream))?),
        };
        for _ in 0..WARM_UP {
            self.sample(stage, graph.as_ref())?;
        }
        let (mut cold, mut warm) = (Vec::new(), Vec::new());
        for _ in 0..self.samples {
            let (a, b) = self.sample(stage, graph.as_ref())?;
            cold.push(a);
            warm.push(b);
        }
        let outcome = stage.outcome(&self.stream)?;
        let median = percentile(&mut cold, 0.5);
        let (limit, memory) = self.limits.least(stage.work());
        Ok(Row {
            stage: stage.name(),
            median,
            p99: percentile(&mut cold, 0.99),
            warm: percentile(&mut warm, 0.5),
            work: stage.work(),
            limit,
            bound: if memory { "memory" } else { "arithmetic" },
            fraction: limit / median,
            target: stage.target(),
            launches: graph.map(|graph| graph.nodes()),
            outcome,
        })
    }

    /// Milliseconds of one run with empty caches and of one right after.
    fn sample(
        &self,
        stage: &mut dyn Stage,
        graph: Option<&Graph>,
    ) -> Result<(f64, f64), CudaError> {
        stage.prepare(&self.stream)?;
        self.stream.fill(self.flush.all(), 1)?;
        match graph {
            Some(graph) => self.sample_graph(stage, graph),
            None => {
                let cold = self.sample_host(stage)?;
                stage.prepare(&self.stream)?;
                Ok((cold, self.sample_host(stage)?))
            }
        }
    }

    /// The device is still writing the flush buffer while the host enqueues, so no launch waits for the
    /// host.
    fn sample_graph(&self, stage: &mut dyn Stage, graph: &Graph) -> Result<(f64, f64), CudaError> {
        let stream = &self.stream;
        let [a, b, c, d] = &self.events;
        for (start, end, again) in [(a, b, true), (c, d, false)] {
            stream.record(start)?;
            // SAFETY: the stage owns its buffers and is alive, and one stream runs everything in order.
            unsafe { graph.launch(stream) }?;
            stream.record(end)?;
            if again {
                stage.prepare(stream)?;
            }
        }
        let time = |start: &Event, end| Ok(f64::from(start.milliseconds_until(end)?));
        Ok((time(a, b)?, time(c, d)?))
    }

    fn sample_host(&self, stage: &mut dyn Stage) -> Result<f64, CudaError> {
        self.stream.synchronize()?;
        let start = Instant::now();
        stage.enqueue(&self.stream)?;
        self.stream.synchronize()?;
        Ok(start.elapsed().as_secs_f64() * 1e3)
    }
}

/// The value below which a fraction of all lie, by nearest rank.
pub fn percentile(values: &mut [f64], fraction: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let rank = (fraction * values.len() as f64).ceil() as usize;
    values.get(rank.max(1) - 1).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let mut values: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        assert_eq!(percentile(&mut values, 0.5), 100.0);
        assert_eq!(percentile(&mut values, 0.99), 198.0);
        assert_eq!(percentile(&mut values, 1.0), 200.0);
        assert_eq!(percentile(&mut [3.0], 0.99), 3.0);
        assert!(percentile(&mut [], 0.5).is_nan());
    }

    #[test]
    fn the_larger_of_memory_and_arithmetic_binds() {
        let limits = Limits {
            bandwidth: 1e12,
            operations: 1e13,
        };
        let work = |bytes, operations| limits.least(Work { bytes, operations });
        assert_eq!(work(2_000_000_000, 1), (2.0, true));
        assert_eq!(work(1, 30_000_000_000), (3.0, false));
    }
}
