//! Torch zip archives: names, shapes, types, strides, and what is said of files that are no good.

use std::io::{Cursor, Read};
use std::path::{Path, PathBuf};

use mast3r_slam::network::{CheckpointError, Dtype, pth};
use proptest::prelude::*;
use testkit::networks::tiny_weights;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data/pth")
        .join(name)
}

/// The message for a file with these bytes.
fn message(bytes: &[u8]) -> String {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    let error = pth::read(file.path()).unwrap_err();
    assert!(
        matches!(&error, CheckpointError::Format { path, .. } if path == file.path()),
        "{error}"
    );
    error.to_string()
}

#[test]
fn the_random_model_reads_as_python_reads_it() {
    let checkpoint = pth::read(&tiny_weights()).unwrap();
    // All expected numbers were computed with NumPy from the same file.
    assert_eq!(checkpoint.tensors.len(), 657);
    let args = checkpoint.model_args.as_deref().unwrap();
    assert!(
        args.starts_with("AsymmetricMASt3R(pos_embed='RoPE100'"),
        "{args}"
    );
    assert!(args.ends_with("desc_conf_mode=('exp', 0, inf))"), "{args}");
    let (mut elements, mut sum, mut squares) = (0, 0f64, 0f64);
    for tensor in checkpoint.tensors.values() {
        assert_eq!(tensor.dtype, Dtype::F32);
        elements += tensor.len();
        for v in tensor.to_f32() {
            sum += f64::from(v);
            squares += f64::from(v) * f64::from(v);
        }
    }
    assert_eq!(elements, 454_656);
    // f64 sums of half a million terms below 1: rounding below 1e-16 * 5e5 * 1e4.
    assert!((sum - 2856.725160970624).abs() < 1e-6, "{sum}");
    assert!((squares - 9325.632752140282).abs() < 1e-6, "{squares}");
    for (name, shape, first, last) in [
        (
            "patch_embed.proj.weight",
            &[48, 3, 16, 16][..],
            0.044020187,
            0.01310027,
        ),
        (
            "enc_blocks.1.attn.qkv.weight",
            &[144, 48],
            0.058335327,
            -0.053554207,
        ),
        ("dec_norm.bias", &[32], -0.06627528, 0.029667119),
        (
            "downstream_head2.dpt.scratch.layer3_rn.weight",
            &[8, 8, 3, 3],
            0.037575405,
            -0.077192605,
        ),
    ] {
        let tensor = &checkpoint.tensors[name];
        assert_eq!(tensor.shape, shape, "{name}");
        let values = tensor.to_f32();
        assert_eq!(
            (values[0], values[values.len() - 1]),
            (first, last),
            "{name}"
        );
    }
}

#[test]
fn stored_bytes_are_those_that_the_archive_holds() {
    let path = tiny_weights();
    let checkpoint = pth::read(&path).unwrap();
    let file = std::fs::read(&path).unwrap();
    let mut archive = zip::ZipArchive::new(Cursor::new(&file)).unwrap();
    // The first tensor of the state dict is storage 0; reading to the end checks the CRC.
    let mut bytes = Vec::new();
    archive
        .by_name("tiny-random/data/0")
        .unwrap()
        .read_to_end(&mut bytes)
        .unwrap();
    assert_eq!(checkpoint.tensors["mask_token"].bytes(), bytes);
}

#[test]
fn strides_offsets_types_and_compression() {
    for name in ["bare_stored.pth", "bare_deflated.pth"] {
        let checkpoint = pth::read(&data(name)).unwrap();
        assert_eq!(checkpoint.model_args, None);
        let get = |tensor: &str| {
            let t = &checkpoint.tensors[tensor];
            (t.shape.clone(), t.dtype, t.to_f32())
        };
        let ramp = |indices: &[u8]| indices.iter().map(|&i| f32::from(i)).collect::<Vec<_>>();
        let all: Vec<u8> = (0..24).collect();
        assert_eq!(get("dense"), (vec![4, 6], Dtype::F32, ramp(&all)));
        // Element (i, j) of the transposed view is 6 j + i.
        let transposed: Vec<u8> = (0..6)
            .flat_map(|i| (0..4).map(move |j| 6 * j + i))
            .collect();
        assert_eq!(
            get("transposed"),
            (vec![6, 4], Dtype::F32, ramp(&transposed))
        );
        assert_eq!(
            get("window"),
            (vec![2, 3], Dtype::F32, ramp(&[7, 8, 9, 13, 14, 15]))
        );
        assert_eq!(
            get("row"),
            (vec![1, 6], Dtype::F32, ramp(&[6, 7, 8, 9, 10, 11]))
        );
        assert_eq!(get("scalar"), (vec![], Dtype::F32, ramp(&[5])));
        assert_eq!(get("empty"), (vec![0, 3], Dtype::F32, vec![]));
        assert_eq!(get("parameter"), (vec![12], Dtype::F32, ramp(&all[12..])));
        assert_eq!(get("half"), (vec![2], Dtype::F16, vec![1.5, -0.25]));
        assert_eq!(get("bfloat"), (vec![3], Dtype::BF16, vec![1.0, -2.0, 0.5]));
        assert_eq!(
            get("double"),
            (vec![1], Dtype::F64, vec![(1.0f64 / 3.0) as f32])
        );
        assert_eq!(checkpoint.tensors.len(), 10);
    }
}

#[test]
fn files_that_are_no_checkpoint_are_named_as_what_they_are() {
    for (name, words) in [
        ("big_endian.pth", "byte order \"big\""),
        ("long_tensor.pth", "torch.LongStorage (tensor steps)"),
        ("outside.pth", "(tensor w)"),
        ("repeated.pth", "(tensor w)"),
        ("not_a_dict.pth", "a list of 2"),
    ] {
        let message = pth::read(&data(name)).unwrap_err().to_string();
        assert!(message.contains(words), "{message:?} lacks {words:?}");
        assert!(message.contains(name), "{message:?} lacks the path");
    }
    assert!(message(b"").contains("an empty file"));
    assert!(message(b"some text").contains("9 bytes of another format"));
    assert!(message(b"\x80\x02\x8a\x0al\xfc\x9c\x46\xf9").contains("PyTorch before 1.6"));
    let error = pth::read(Path::new("/nowhere/x.pth")).unwrap_err();
    assert!(matches!(error, CheckpointError::Io { .. }), "{error}");
    assert!(error.to_string().contains("/nowhere/x.pth"));
}

#[test]
fn a_checkpoint_that_would_run_code_is_refused() {
    use std::io::Write;
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default();
    zip.start_file("evil/data.pkl", options).unwrap();
    zip.write_all(b"\x80\x02}X\x05\x00\x00\x00modelcposix\nsystem\nX\x02\x00\x00\x00ls\x85Rs.")
        .unwrap();
    let bytes = zip.finish().unwrap().into_inner();
    assert!(message(&bytes).contains("posix.system"));
}

#[test]
fn truncated_files_are_errors_that_say_so() {
    let bytes = std::fs::read(data("bare_stored.pth")).unwrap();
    for length in (1..bytes.len())
        .step_by(11)
        .chain(bytes.len() - 30..bytes.len())
    {
        let message = message(&bytes[..length]);
        assert!(
            message.contains("expected a complete torch zip archive"),
            "{length}: {message}"
        );
        if length >= 4 {
            assert!(
                message.contains("truncated or damaged"),
                "{length}: {message}"
            );
        }
    }
}

#[test]
fn a_flipped_bit_in_a_weight_is_found() {
    let bytes = std::fs::read(data("bare_stored.pth")).unwrap();
    let twelve = 12f32.to_le_bytes();
    let at = bytes.windows(4).position(|w| w == twelve).unwrap();
    let mut damaged = bytes.clone();
    damaged[at] ^= 1;
    let message = message(&damaged);
    assert!(message.contains("bare_stored/data/0"), "{message}");
}

proptest! {
    #[test]
    fn damaged_files_never_panic(at in 0usize..4000, byte in any::<u8>(), deflated in any::<bool>()) {
        let name = if deflated { "bare_deflated.pth" } else { "bare_stored.pth" };
        let mut bytes = std::fs::read(data(name)).unwrap();
        let at = at % bytes.len();
        bytes[at] = byte;
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &bytes).unwrap();
        let _ = pth::read(file.path());
    }
}
