//! The times of the steps by themselves.

use super::{Backend, NativeBackend, PRECISIONS, Precision, tiny_checkpoint, tiny_network};
use crate::cuda;

/// Every step is listed once, with a time, and what it computes adds up to a part's products.
#[test]
fn the_steps_of_both_parts_are_timed() {
    let Some(_gpu) = cuda() else { return };
    for precision in PRECISIONS {
        steps_are_timed(precision);
    }
}

fn steps_are_timed(precision: Precision) {
    let network = tiny_network(tiny_checkpoint());
    let (width, height) = (80, 48);
    let mut backend =
        NativeBackend::new(&network, width, height, Some(precision)).expect("the GPU");
    let device = backend.device().expect("on the GPU");
    let rows = device
        .time_layers()
        .expect("timed")
        .expect("native has steps");
    for part in ["encoder", "pair"] {
        assert!(rows.iter().any(|row| row.part == part), "{part}");
    }
    for row in &rows {
        assert!(row.count > 0 && row.bytes > 0, "{row:?}");
        assert!(row.milliseconds > 0.0 && row.milliseconds < 10.0, "{row:?}");
    }
    let of_bytes = rows.iter().any(|row| row.kernel.ends_with("_e4m3"));
    assert_eq!(of_bytes, precision == Precision::Fp8);
    let depth = network.architecture.encoder.depth;
    let attention = rows
        .iter()
        .find(|row| row.layer.starts_with("self-attention"));
    assert_eq!(attention.map(|row| row.count), Some(depth));
    let size = network
        .architecture
        .input_size(1, width, height)
        .expect("a size");
    let operations = |part: &str| -> u64 {
        let of_part = rows.iter().filter(|row| row.part == part);
        of_part.map(|row| row.count as u64 * row.operations).sum()
    };
    // Heads and channels that are filled up count as well.
    let expected = network.encoder(size).operations();
    let found = operations("encoder");
    assert!(
        found >= expected && found < 3 * expected,
        "{found} {expected}"
    );
}
