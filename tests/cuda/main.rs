//! The GPU against the CPU, and the GPU's memory, streams and graphs.
//!
//! One program for all subjects, so that it can be carried to a machine with a GPU and run there.
//! Without a GPU every test is skipped and listed, unless `MAST3R_REQUIRE_CUDA=1`.

mod convert;
mod coverage;
mod depth;
mod depth_moved;
mod depth_pointmap;
mod fusion;
mod global;
mod global_support;
mod mask;
mod matching;
mod native;
mod plan;
mod platform;
mod preprocess;
mod retrieval;
mod saved;
mod slam;
mod slots;
mod splat;
mod spread;
mod tracking;

use mast3r_slam::compute::cuda::KERNELS;
use mast3r_slam::gpu::plan::Group;
use mast3r_slam::gpu::{Carver, Carving, Context, CudaError, DeviceBuffer, Element};
use mast3r_slam::inference::NetworkShape;
use std::ops::Deref;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use testkit::counting::Counting;
use testkit::skip::{Need, skip};

/// The GPU, for one test at a time: a test counts and times only its own work, and no test synchronises
/// the whole GPU while another records a graph.
struct Gpu(
    &'static Context,
    #[allow(dead_code)] MutexGuard<'static, ()>,
);

impl Deref for Gpu {
    type Target = Context;
    fn deref(&self) -> &Context {
        self.0
    }
}

/// The GPU; without one, says why.
fn cuda() -> Option<Gpu> {
    static OPENED: OnceLock<Result<Context, CudaError>> = OnceLock::new();
    static TURN: Mutex<()> = Mutex::new(());
    match OPENED.get_or_init(|| Context::open(0, &KERNELS)) {
        Ok(context) => {
            // A test that failed leaves nothing behind that the next one would meet.
            let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
            Some(Gpu(context, turn))
        }
        Err(error) => {
            skip(Need::Cuda, error);
            None
        }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The result of `carve` on memory of its own.
fn carve<B>(
    context: &Context,
    carve: impl FnOnce(&mut Carver<'_, '_>) -> Result<B, CudaError>,
) -> B {
    carve(&mut Carving::separate(context).part(Group::Tracking, "test")).expect("memory")
}

/// A buffer of `len` elements.
fn buffer<T: Element>(context: &Context, len: usize) -> DeviceBuffer<T> {
    carve(context, |c| c.device("buffer", &[len]))
}

/// A network whose views alone matter.
fn view_shape(width: usize, height: usize, descriptor_dim: usize) -> NetworkShape {
    NetworkShape {
        width,
        height,
        tokens: 1,
        feature_dim: 1,
        descriptor_dim,
    }
}

/// Fails with the first differences and their count.
fn assert_same<T: PartialEq + std::fmt::Debug>(what: &str, found: &[T], expected: &[T]) {
    assert_eq!(found.len(), expected.len(), "{what}: length");
    let differ: Vec<usize> = (0..found.len())
        .filter(|&i| found[i] != expected[i])
        .collect();
    let shown: Vec<String> = differ
        .iter()
        .take(8)
        .map(|&i| format!("[{i}] {:?} instead of {:?}", found[i], expected[i]))
        .collect();
    assert!(
        differ.is_empty(),
        "{what}: {} of {} differ: {}",
        differ.len(),
        found.len(),
        shown.join(", ")
    );
}

/// As [`assert_same`], of bits: NaN equals the same NaN, and 0 differs from −0.
fn assert_same_bits(what: &str, found: &[f32], expected: &[f32]) {
    let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    if bits(found) != bits(expected) {
        let show = |values: &[f32]| {
            values
                .iter()
                .map(|v| format!("{v:e} ({:08x})", v.to_bits()))
                .collect::<Vec<_>>()
        };
        assert_same(what, &show(found), &show(expected));
    }
}
