//! Place recognition on the device against the CPU's.

mod ask;
mod describe;
mod rig;

use crate::cuda;
use mast3r_slam::compute::cuda::retrieval::{RetrievalBuffers, RetrievalPlan};
use mast3r_slam::gpu::plan::Group;
use mast3r_slam::gpu::{Carving, Context, CudaError, Floats};
use rig::{Bench, Model};

#[test]
fn models_and_sizes_that_do_not_fit_are_refused() {
    let Some(gpu) = cuda() else { return };
    let context: &Context = &gpu;
    let model = Model::exact(6, 10, 1);
    let mut bench = Bench::new(context, &model, 5, 2);
    let other = Model::exact(6, 11, 1);
    let third = Model::exact(7, 10, 1);
    for wrong in [&other, &third] {
        let refused = bench.retrieval.load(
            &bench.stream,
            &wrong.mean,
            &wrong.projection,
            &wrong.codebook,
        );
        assert!(matches!(refused, Err(CudaError::Length { .. })));
    }
    let short = Floats::F32(bench.single.slice(0..29).unwrap());
    assert!(bench.retrieval.describe(&bench.stream, short).is_err());
    for (tokens, dim, words, keyframes) in [
        (0, 1, 1, 1),
        (1, 0, 1, 1),
        (1, 1, 0, 1),
        (1, 1, 1, 0),
        (1, 1 << 15, 1, 1),
        (1, 1, 1 << 23, 1),
    ] {
        let plan = RetrievalPlan {
            tokens,
            dim,
            words,
            keyframes,
        };
        let mut carving = Carving::on_paper();
        let refused = RetrievalBuffers::carve(&mut carving.part(Group::Retrieval, "places"), plan);
        assert!(refused.is_err(), "{plan:?}");
    }
}
