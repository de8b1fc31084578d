//! Weights that cannot be used, and networks that do not work: each is told in plain words.

use std::path::Path;

use mast3r_slam::image::RgbImage;
use mast3r_slam::inference::cpu::CpuBackend;
use mast3r_slam::inference::{
    Backend, InferenceError, MAX_CONFIDENCE, NetworkShape, PairOutput, ViewOutput, sanitise,
    self_test,
};
use mast3r_slam::network::{
    Checkpoint, CheckpointError, Dtype, Hints, Network, Tensor, load, load_network,
};
use testkit::networks::{
    backend, noise, set, tiny_checkpoint, tiny_hints, tiny_network, tiny_weights,
};
use testkit::repository;

fn refused(checkpoint: Checkpoint) -> (Vec<String>, Vec<String>, Vec<String>, String) {
    let error = Network::new(Path::new("w.pth"), checkpoint, &tiny_hints()).unwrap_err();
    let message = error.to_string();
    match error {
        CheckpointError::Tensors {
            missing,
            extra,
            misshapen,
        } => (missing, extra, misshapen, message),
        other => panic!("{other}"),
    }
}

#[test]
fn missing_tensors_are_named() {
    let mut checkpoint = tiny_checkpoint();
    for name in ["enc_blocks.1.mlp.fc2.bias", "dec_blocks2.9.norm_y.weight"] {
        checkpoint.tensors.remove(name).unwrap();
    }
    let (missing, extra, misshapen, message) = refused(checkpoint);
    assert_eq!(
        missing,
        ["dec_blocks2.9.norm_y.weight", "enc_blocks.1.mlp.fc2.bias"]
    );
    assert!(extra.is_empty() && misshapen.is_empty());
    assert!(message.contains("2 missing: dec_blocks2.9.norm_y.weight, enc_blocks.1"));
}

#[test]
fn a_whole_missing_block_is_named() {
    let mut checkpoint = tiny_checkpoint();
    checkpoint
        .tensors
        .retain(|name, _| !name.starts_with("dec_blocks2.9."));
    let (missing, ..) = refused(checkpoint);
    assert_eq!(missing.len(), 4 * 2 + 4 * 2 + 4 * 2);
    assert!(
        missing
            .iter()
            .all(|name| name.starts_with("dec_blocks2.9."))
    );
}

#[test]
fn another_network_is_refused_by_name() {
    let mut checkpoint = Checkpoint::default();
    let tensor = Tensor::from_f32(vec![2], &[1.0, 2.0]).unwrap();
    checkpoint.tensors.insert("backbone.stem".into(), tensor);
    let (missing, _, _, message) = refused(checkpoint);
    assert!(missing.contains(&"patch_embed.proj.weight".to_owned()));
    assert!(message.contains("not a MASt3R network"), "{message}");
}

#[test]
fn superfluous_tensors_are_named() {
    let mut checkpoint = tiny_checkpoint();
    let tensor = checkpoint.tensors["enc_norm.bias"].clone();
    for name in [
        "prediction_head.bias",
        "enc_blocks.99999999999.norm1.bias",
        "dec_blocks.3.cross_attn.projx.bias",
    ] {
        checkpoint.tensors.insert(name.into(), tensor.clone());
    }
    let (missing, extra, misshapen, _) = refused(checkpoint);
    assert_eq!(
        extra,
        [
            "dec_blocks.3.cross_attn.projx.bias",
            "enc_blocks.99999999999.norm1.bias",
            "prediction_head.bias"
        ]
    );
    assert!(missing.is_empty() && misshapen.is_empty());
}

#[test]
fn misshapen_tensors_are_named_with_both_shapes() {
    let mut checkpoint = tiny_checkpoint();
    let name = "downstream_head2.dpt.head.0.bias";
    let tensor = Tensor::from_f32(vec![3], &[0.0; 3]).unwrap();
    checkpoint.tensors.insert(name.into(), tensor);
    let (missing, extra, misshapen, message) = refused(checkpoint);
    assert_eq!(misshapen, [format!("{name} (expected [4], found [3])")]);
    assert!(missing.is_empty() && extra.is_empty());
    assert!(message.contains("wrong shape"), "{message}");
}

#[test]
fn misshapen_tensors_that_dimensions_are_read_from_are_named() {
    for shape in [vec![], vec![0, 3, 16, 16], vec![48, 768]] {
        let mut checkpoint = tiny_checkpoint();
        let values = vec![0.0; shape.iter().product()];
        let tensor = Tensor::from_f32(shape, &values).unwrap();
        let name = "patch_embed.proj.weight";
        checkpoint.tensors.insert(name.into(), tensor);
        let (_, _, misshapen, _) = refused(checkpoint);
        assert!(misshapen[0].starts_with(name), "{misshapen:?}");
    }
}

#[test]
fn either_alias_will_do_and_two_must_agree() {
    let twin = |layer: usize| {
        let scratch = "downstream_head1.dpt.scratch";
        (
            format!("{scratch}.layer{}_rn.weight", layer + 1),
            format!("{scratch}.layer_rn.{layer}.weight"),
        )
    };
    let whole = tiny_checkpoint();
    for layer in 0..4 {
        let (name, alias) = twin(layer);
        for gone in [&name, &alias] {
            let mut checkpoint = whole.clone();
            checkpoint.tensors.remove(gone).unwrap();
            tiny_network(checkpoint);
        }
        let mut neither = whole.clone();
        neither.tensors.remove(&name);
        neither.tensors.remove(&alias);
        assert_eq!(refused(neither).0, std::slice::from_ref(&name));
        let mut differing = whole.clone();
        set(&mut differing, &alias, |_| 7.0);
        assert!(refused(differing).2[0].starts_with(&alias));
    }
}

#[test]
fn unused_tensors_may_be_absent() {
    let mut checkpoint = tiny_checkpoint();
    let before = checkpoint.tensors.len();
    checkpoint
        .tensors
        .retain(|name, _| name != "mask_token" && !name.contains("refinenet4.resConfUnit1"));
    assert_eq!(before - checkpoint.tensors.len(), 1 + 2 * 4);
    tiny_network(checkpoint);
}

#[test]
fn heads_that_cannot_be_are_refused() {
    let hints = |heads| Hints {
        enc_num_heads: heads,
        ..tiny_hints()
    };
    for (heads, found) in [
        (Some(5), "enc_num_heads = 5"),
        (Some(0), "enc_num_heads = 0"),
        (None, "none, and the default head of 64"),
    ] {
        let error = Network::new(Path::new("w.pth"), tiny_checkpoint(), &hints(heads)).unwrap_err();
        let message = error.to_string();
        assert!(message.contains(found), "{message}");
        assert!(message.contains("48 channels"), "{message}");
    }
}

#[test]
fn hints_are_read_from_the_constructor_string() {
    let args = "AsymmetricMASt3R(pos_embed='RoPE100', patch_embed_cls='PatchEmbedDust3R', \
                my_enc_num_heads=7, img_size=(512, 512), enc_embed_dim=1024, enc_num_heads=16, \
                dec_num_heads = 12, two_confs=True)";
    assert_eq!(
        Hints::from_model_args(args),
        Hints {
            enc_num_heads: Some(16),
            dec_num_heads: Some(12),
            rope_freq: Some(100.0),
        }
    );
    assert_eq!(Hints::from_model_args("enc_num_heads"), Hints::default());
    assert_eq!(Hints::from_model_args(""), Hints::default());
}

#[test]
fn the_tiny_pth_names_its_own_heads() {
    let folder = tempfile::tempdir().unwrap();
    let alone = folder.path().join("weights.bin");
    std::fs::copy(tiny_weights(), &alone).unwrap();
    let network = load_network(&alone).unwrap();
    assert_eq!(network.architecture.encoder.heads, 3);
    assert_eq!(network.architecture.decoder.heads, 1);
}

/// Every length a download can stop at must be an error that says so, never a panic.
#[test]
fn checkpoints_cut_short_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for source in [
        tiny_weights(),
        repository("engines/mast3r-mini/model.safetensors"),
    ] {
        let whole = std::fs::read(&source).unwrap();
        let path = folder.path().join("download");
        for keep in [1, 4, 8, 9, 100, 5000, whole.len() / 2, whole.len() - 1] {
            std::fs::write(&path, &whole[..keep]).unwrap();
            let message = load(&path).unwrap_err().to_string();
            assert!(
                ["truncated", "cut", "short", "empty"]
                    .iter()
                    .any(|word| message.contains(word)),
                "{keep}: {message}"
            );
            assert!(message.contains("expected"), "{message}");
        }
    }
}

#[test]
fn files_that_are_no_weights_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let message = load(&path).unwrap_err().to_string();
    assert!(message.contains("cannot read") && message.contains("model.safetensors"));
    for (content, found) in [
        (&b""[..], "an empty file"),
        (
            &b"version https://git-lfs.github.com/spec/v1"[..],
            "neither header",
        ),
        (&[0xFF; 64][..], "neither header"),
        (&b"PK\x03\x04 and no more than that"[..], "zip"),
    ] {
        std::fs::write(&path, content).unwrap();
        let message = load(&path).unwrap_err().to_string();
        assert!(message.contains(found), "{message}");
    }
    assert!(load(folder.path()).is_err());
}

#[test]
fn a_safetensors_file_of_integers_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("integers");
    let header = br#"{"enc_norm.bias":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}}"#;
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header);
    file.extend_from_slice(&[0; 8]);
    std::fs::write(&path, &file).unwrap();
    let message = load(&path).unwrap_err().to_string();
    assert!(
        message.contains("enc_norm.bias") && message.contains("I64"),
        "{message}"
    );
}

#[test]
fn bytes_that_do_not_fit_a_shape_make_no_tensor() {
    assert!(Tensor::from_bytes(vec![3], Dtype::F16, vec![0; 5]).is_none());
    assert!(Tensor::from_bytes(vec![usize::MAX, 2], Dtype::F64, vec![]).is_none());
    assert!(Tensor::from_f32(vec![2, 2], &[0.0; 3]).is_none());
    let halves = Tensor::from_bytes(vec![2], Dtype::F16, vec![0x00, 0x3C, 0x00, 0xC0]).unwrap();
    assert_eq!(halves.to_f32(), [1.0, -2.0]);
    let brain = Tensor::from_bytes(vec![2], Dtype::BF16, vec![0x80, 0x3F, 0x00, 0xC0]).unwrap();
    assert_eq!(brain.to_f32(), [1.0, -2.0]);
    let double = Tensor::from_bytes(vec![], Dtype::F64, 0.1f64.to_le_bytes().to_vec()).unwrap();
    assert_eq!(double.to_f32(), [0.1]);
}

#[test]
fn impossible_input_sizes_are_refused() {
    let network = tiny_network(tiny_checkpoint());
    for (width, height, threads) in [(100, 96, 1), (0, 96, 1), (96, 8, 1), (96, 96, 0)] {
        let error = CpuBackend::new(&network, width, height, threads)
            .err()
            .unwrap();
        assert!(matches!(error, InferenceError::Shape { .. }), "{error}");
    }
}

#[test]
fn wrong_buffers_are_refused_and_leave_the_backend_usable() {
    let network = tiny_network(tiny_checkpoint());
    let mut backend = backend(&network, 32, 32);
    let shape = backend.shape().clone();
    let n = shape.tokens * shape.feature_dim;
    let mut features = vec![0.0; n];
    assert!(
        backend
            .encode(&RgbImage::new(32, 16), &mut features)
            .is_err()
    );
    assert!(
        backend
            .encode(&RgbImage::new(32, 32), &mut features[1..])
            .is_err()
    );
    let cut = RgbImage {
        data: vec![0; 7],
        ..RgbImage::new(32, 32)
    };
    let message = backend.encode(&cut, &mut features).unwrap_err().to_string();
    assert!(
        message.contains("expected 32x32") && message.contains("7 bytes"),
        "{message}"
    );
    let mut out = PairOutput::zeros(&shape);
    assert!(backend.decode(&features, &features[1..], &mut out).is_err());
    out.view2.descriptors.pop();
    let message = backend
        .decode(&features, &features, &mut out)
        .unwrap_err()
        .to_string();
    assert!(message.contains("descriptors"), "{message}");
    backend
        .decode_view1(&features, &features, &mut out)
        .unwrap();
}

fn self_test_message(backend: &mut dyn Backend) -> String {
    match self_test(backend).unwrap_err() {
        InferenceError::SelfTest(message) => message,
        other => panic!("{other}"),
    }
}

#[test]
fn zero_weights_are_caught() {
    let mut checkpoint = tiny_checkpoint();
    let names: Vec<String> = checkpoint.tensors.keys().cloned().collect();
    for name in names {
        set(&mut checkpoint, &name, |_| 0.0);
    }
    let mut backend = backend(&tiny_network(checkpoint), 64, 48);
    let message = self_test_message(&mut backend);
    assert!(message.contains("all weights are zero"), "{message}");
}

#[test]
fn damaged_weights_are_caught() {
    for (name, value, wanted) in [
        ("enc_blocks.1.mlp.fc1.bias", f32::NAN, "not finite"),
        (
            "downstream_head2.dpt.head.4.bias",
            f32::INFINITY,
            "of view 2 are not finite",
        ),
        ("patch_embed.proj.weight", 0.0, "does not read its input"),
    ] {
        let mut checkpoint = tiny_checkpoint();
        set(&mut checkpoint, name, |_| value);
        let message = self_test_message(&mut backend(&tiny_network(checkpoint), 64, 48));
        assert!(message.contains(wanted), "{name}: {message}");
    }
}

/// Gives fixed outputs.
struct Canned {
    shape: NetworkShape,
    view: ViewOutput,
}

impl Canned {
    fn new(edit: impl Fn(&mut ViewOutput)) -> Self {
        let shape = NetworkShape {
            width: 16,
            height: 16,
            tokens: 1,
            feature_dim: 4,
            descriptor_dim: 1,
        };
        let mut view = ViewOutput {
            points: noise(1, 256 * 3),
            confidence: vec![1.5; 256],
            descriptors: vec![1.0; 256],
            descriptor_confidence: vec![0.5; 256],
        };
        edit(&mut view);
        Self { shape, view }
    }
}

impl Backend for Canned {
    fn shape(&self) -> &NetworkShape {
        &self.shape
    }

    fn name(&self) -> String {
        "canned".into()
    }

    fn share(&self) -> Box<dyn Backend> {
        Box::new(Self {
            shape: self.shape.clone(),
            view: self.view.clone(),
        })
    }

    fn encode(&mut self, image: &RgbImage, features: &mut [f32]) -> Result<(), InferenceError> {
        features.fill(image.data.iter().map(|&b| f32::from(b)).sum());
        Ok(())
    }

    fn decode(&mut self, _: &[f32], _: &[f32], out: &mut PairOutput) -> Result<(), InferenceError> {
        out.view1 = self.view.clone();
        out.view2 = self.view.clone();
        Ok(())
    }
}

#[test]
fn the_self_test_tells_what_it_saw() {
    self_test(&mut Canned::new(|_| ())).unwrap();
    type Edit = fn(&mut ViewOutput);
    let cases: [(Edit, &str); 6] = [
        (
            |v| {
                v.points.fill(0.0);
                v.confidence.fill(0.0);
                v.descriptors.fill(0.0);
            },
            "never written",
        ),
        (
            |v| {
                v.points.fill(0.0);
                v.confidence.fill(2.0);
                v.descriptors.fill(f32::NAN);
                v.descriptor_confidence.fill(1.0);
            },
            "all weights are zero",
        ),
        (|v| v.points.fill(0.0), "exactly zero"),
        (|v| v.points[7] = f32::NAN, "1 of 768 points of view 1"),
        (|v| v.confidence[3] = 0.5, "is at least 1"),
        (
            |v| v.descriptors[9] = 0.9,
            "1 descriptors of view 1 are not of unit length",
        ),
    ];
    for (edit, wanted) in cases {
        let message = self_test_message(&mut Canned::new(edit));
        assert!(message.contains(wanted), "{message}");
    }
}

#[test]
fn sanitising_changes_what_is_broken_and_nothing_else() {
    let good = || ViewOutput {
        points: vec![0.1, 0.2, 3.0],
        confidence: vec![1.5],
        descriptors: vec![0.6, 0.8],
        descriptor_confidence: vec![0.25],
    };
    let mut view = good();
    assert_eq!(sanitise(&mut view), 0);
    assert_eq!(view, good());

    type Edit = fn(&mut ViewOutput);
    let broken: [Edit; 11] = [
        |v| v.points[1] = f32::NAN,
        |v| v.points[2] = f32::INFINITY,
        |v| v.points[0] = f32::NEG_INFINITY,
        |v| v.points[0] = 1e30,
        |v| v.points.fill(0.0),
        |v| v.confidence[0] = f32::NAN,
        |v| v.confidence[0] = -1.0,
        |v| v.descriptors[1] = f32::NAN,
        |v| v.descriptors[0] = f32::NEG_INFINITY,
        |v| v.descriptor_confidence[0] = f32::NAN,
        |v| v.descriptor_confidence[0] = -0.5,
    ];
    for (case, edit) in broken.into_iter().enumerate() {
        let mut view = good();
        edit(&mut view);
        assert_eq!(sanitise(&mut view), 1, "case {case}");
        assert_eq!(
            view,
            ViewOutput {
                points: vec![0.0; 3],
                confidence: vec![0.0],
                descriptors: vec![0.0; 2],
                descriptor_confidence: vec![0.0],
            },
            "case {case}"
        );
        // Still unusable: all-zero outputs are recognised too.
        assert_eq!(sanitise(&mut view), 1, "case {case}");
    }

    let mut view = good();
    view.confidence[0] = f32::INFINITY;
    view.descriptor_confidence[0] = 1e30;
    // Clamped, but usable.
    assert_eq!(sanitise(&mut view), 0);
    assert_eq!(view.confidence, [MAX_CONFIDENCE]);
    assert_eq!(view.descriptor_confidence, [MAX_CONFIDENCE]);
    assert_eq!(view.points, good().points);
    assert_eq!(sanitise(&mut ViewOutput::default()), 0);
}
