//! What the machine can do at best, on one thread and on all: the limits that the table in
//! docs/performance.md divides by. Arrays of 64 MiB lie outside every cache.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use rayon::prelude::*;
use std::hint::black_box;
use std::time::Duration;

/// f32 values in an array.
const LEN: usize = 1 << 24;
/// Vectors in flight: enough to hide the latency of an operation on every pipe.
const VECTORS: usize = 12;
/// Operations on each of them in a call.
const STEPS: usize = 1 << 16;

#[cfg(target_arch = "x86_64")]
mod peak {
    use super::{STEPS, VECTORS};
    use std::arch::x86_64::*;
    use std::hint::black_box;

    /// f32 multiply-adds, eight to a vector.
    #[target_feature(enable = "avx2,fma")]
    pub fn fused() {
        let factor = _mm256_set1_ps(black_box(0.999));
        let mut sums = [_mm256_set1_ps(black_box(1.0)); VECTORS];
        for _ in 0..STEPS {
            for sum in &mut sums {
                *sum = _mm256_fmadd_ps(*sum, factor, factor);
            }
        }
        black_box(sums);
    }

    /// f64 multiplications and additions that are rounded one by one, as the solvers' are, so that
    /// every machine gets the same bits.
    #[target_feature(enable = "avx2")]
    pub fn separate() {
        let factor = _mm256_set1_pd(black_box(0.999));
        let mut sums = [_mm256_set1_pd(black_box(1.0)); VECTORS];
        for _ in 0..STEPS {
            for sum in &mut sums {
                *sum = _mm256_add_pd(_mm256_mul_pd(*sum, factor), factor);
            }
        }
        black_box(sums);
    }

    /// f64 divisions.
    #[target_feature(enable = "avx2")]
    pub fn divisions() {
        let divisor = _mm256_set1_pd(black_box(1.000_001));
        let mut values = [_mm256_set1_pd(black_box(1.0)); VECTORS];
        for _ in 0..STEPS / 4 {
            for value in &mut values {
                *value = _mm256_div_pd(*value, divisor);
            }
        }
        black_box(values);
    }
}

fn memory(c: &mut Criterion, threads: usize) {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    let pool = pool.expect("threads");
    let src: Vec<f32> = (0..LEN).map(|k| k as f32).collect();
    let mut dst = vec![1.0f32; LEN];
    let part = LEN / threads;
    let mut group = c.benchmark_group(format!("limits/memory, {threads} threads"));
    group
        .sample_size(20)
        .measurement_time(Duration::from_secs(1));
    group.throughput(Throughput::Bytes(4 * LEN as u64));
    group.bench_function("read", |b| {
        b.iter(|| {
            pool.install(|| {
                src.par_chunks(part).for_each(|src| {
                    let mut sums = [0u32; 64];
                    for chunk in src.as_chunks::<64>().0 {
                        for (sum, v) in sums.iter_mut().zip(chunk) {
                            *sum ^= v.to_bits();
                        }
                    }
                    black_box(sums);
                });
            })
        });
    });
    // Bytes read and bytes written.
    group.throughput(Throughput::Bytes(8 * LEN as u64));
    group.bench_function("copy", |b| {
        b.iter(|| {
            pool.install(|| {
                let chunks = dst.par_chunks_mut(part).zip(src.par_chunks(part));
                chunks.for_each(|(dst, src)| dst.copy_from_slice(black_box(src)));
            })
        });
    });
    group.finish();
}

#[cfg(target_arch = "x86_64")]
fn arithmetic(c: &mut Criterion, threads: usize) {
    if !(is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")) {
        return;
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    let pool = pool.expect("threads");
    let mut group = c.benchmark_group(format!("limits/arithmetic, {threads} threads"));
    group
        .sample_size(20)
        .measurement_time(Duration::from_secs(1));
    let calls = threads * VECTORS * STEPS;
    let kernels: [(&str, usize, fn()); 3] = [
        ("f32 multiply-add", calls * 8 * 2, || {
            // SAFETY: AVX2 and FMA were just found.
            unsafe { peak::fused() }
        }),
        ("f64 multiply, add", calls * 4 * 2, || {
            // SAFETY: as above.
            unsafe { peak::separate() }
        }),
        ("f64 divide", calls, || {
            // SAFETY: as above.
            unsafe { peak::divisions() }
        }),
    ];
    for (name, operations, kernel) in kernels {
        group.throughput(Throughput::Elements(operations as u64));
        group.bench_function(name, |b| {
            b.iter(|| pool.broadcast(|_| kernel()));
        });
    }
    group.finish();
}

fn limits(c: &mut Criterion) {
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    for threads in [1, all] {
        memory(c, threads);
        #[cfg(target_arch = "x86_64")]
        arithmetic(c, threads);
    }
}

criterion_group!(benches, limits);
criterion_main!(benches);
