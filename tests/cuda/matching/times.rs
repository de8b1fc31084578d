//! How long matching takes.

use super::full_size;
use super::rig::Device;
use crate::cuda;
use mast3r_slam::compute::cuda::matching::Start;
use mast3r_slam::compute::cuda::sanitise::{Sanitiser, SanitiserBuffers};
use mast3r_slam::compute::matching::Refinement;
use mast3r_slam::config::MatchingConfig;
use mast3r_slam::gpu::{Context, CudaError, Priority, Stream};

/// Median of the time of one call, in microseconds: as many calls in a graph as take about a
/// millisecond, the graph launched often. Printed, not judged: another GPU is as right.
pub fn microseconds(
    stream: &Stream,
    calls: usize,
    enqueue: impl Fn() -> Result<(), CudaError>,
) -> f32 {
    let graph = stream
        .capture(|| (0..calls).try_for_each(|_| enqueue()))
        .unwrap();
    let context = stream.context();
    let (start, end) = (context.event(true).unwrap(), context.event(true).unwrap());
    let mut times: Vec<f32> = (0..31)
        .map(|_| {
            stream.record(&start).unwrap();
            // SAFETY: all buffers are alive, and this stream alone uses them.
            unsafe { graph.launch(stream) }.unwrap();
            stream.record(&end).unwrap();
            start.milliseconds_until(&end).unwrap() * 1e3 / calls as f32
        })
        .collect();
    times.sort_by(f32::total_cmp);
    times[times.len() / 2]
}

#[test]
fn the_time_of_matching() {
    let Some(gpu) = cuda() else { return };
    let context: &Context = &gpu;
    let stream = context.stream(Priority::High).unwrap();
    for (name, input) in full_size() {
        let n = input.pixels();
        let device = Device::new(context, &stream, &input, Refinement::SingleAll);
        let params = MatchingConfig::default();
        let search = MatchingConfig {
            radius: 0,
            ..params.clone()
        };
        let rays = MatchingConfig {
            max_iter: 0,
            ..search.clone()
        };
        let task = device.task(Start::Identity, (1.5, 0.0));
        device.matcher.enqueue(&stream, &params, &task).unwrap();
        stream
            .copy(device.index.all(), device.earlier.all())
            .unwrap();
        let warm = device.task(
            Start::Map {
                map: device.earlier.all(),
                used: None,
            },
            (1.5, 0.0),
        );
        for (what, params, task) in [
            ("rays, one look, gates", &rays, &task),
            ("rays, search, gates", &search, &task),
            ("all, from the identity", &params, &task),
            ("all, from the last map", &params, &warm),
        ] {
            let time = microseconds(&stream, 5, || device.matcher.enqueue(&stream, params, task));
            println!("time: matching, {name}, {what}: {time:.1} us");
        }
        let scratch = crate::carve(context, SanitiserBuffers::carve);
        let sanitiser = Sanitiser::new(context, &stream, scratch, n, input.dim).unwrap();
        let counts = crate::buffer::<u32>(context, 2);
        let time = microseconds(&stream, 20, || {
            let [a, b] = &device.views;
            sanitiser.enqueue(&stream, a.view(), Some(b.view()), counts.all())
        });
        println!("time: sanitising two views, {name}: {time:.1} us");
    }
}
