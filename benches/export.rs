//! Export: the cloud of 20 keyframes at 256×192 (983 040 points), plain and voxel-filtered.

use criterion::{Criterion, criterion_group, criterion_main};
use mast3r_slam::map::{CloudOptions, cloud};
use std::hint::black_box;

fn export(c: &mut Criterion) {
    let map = testkit::map_room::room(20, 1, 256, 192);
    let mut group = c.benchmark_group("export");
    group.sample_size(10);
    for (name, voxel_size) in [
        ("cloud", 0.0),
        ("cloud, 2 cm voxels", 0.02),
        ("cloud, 5 mm voxels", 0.005),
    ] {
        let options = CloudOptions {
            min_confidence: 0.0,
            voxel_size,
        };
        group.bench_function(name, |b| {
            b.iter(|| cloud::collect(black_box(&map), 0, &options))
        });
    }
    group.finish();
}

criterion_group!(benches, export);
criterion_main!(benches);
