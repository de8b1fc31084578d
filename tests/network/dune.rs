//! DUNE-MASt3R: the encoder and the heads equal their definitions, and files that lack something are refused.

use mast3r_slam::inference::cpu::CpuBackend;
use mast3r_slam::inference::{Backend, InferenceError, PairOutput, self_test};
use mast3r_slam::network::onnx::{
    AttentionForm, Branches, EmitOptions, Maps, Precision, Upsampling, Views,
};
use mast3r_slam::network::{
    self, Architecture, Checkpoint, CheckpointError, Hints, Network, Tensor, dune,
};
use std::io::Write;
use std::path::Path;
use testkit::networks::dune::{self as tiny, NaiveEncoder, PATCH, WIDTH};
use testkit::networks::naive::assert_heads_are_their_definition;
use testkit::networks::{backend, noise_image, relative_error, run, set};

#[test]
fn the_encoder_is_its_definition() {
    let checkpoint = tiny::checkpoint();
    let network = tiny::network(checkpoint.clone());
    // The grid that positions were learnt for; larger, smaller and not square; portrait.
    for (rows, columns) in [(4, 4), (6, 9), (2, 3), (5, 3)] {
        let image = noise_image(9, columns * PATCH, rows * PATCH);
        let mut backend = backend(&network, image.width, image.height);
        assert_eq!(backend.shape().tokens, rows * columns);
        assert_eq!(backend.shape().patch(), PATCH);
        let mut found = vec![0.0; rows * columns * WIDTH];
        backend.encode(&image, &mut found).expect("encoded");
        let expected = NaiveEncoder(&checkpoint).run(&image);
        let error = relative_error(&found, &expected, WIDTH, 1e-2);
        // Binary32 through two blocks; a wrong position or token is off by its own size.
        assert!(error < 1e-4, "{rows}x{columns}: {error:e}");
    }
}

#[test]
fn the_heads_are_their_definition_in_patches_of_14() {
    assert_heads_are_their_definition(tiny::checkpoint(), "mast3r.", (3, 5), tiny::network);
}

#[test]
fn descriptors_land_on_their_pixels() {
    let mut checkpoint = tiny::checkpoint();
    let pixels = PATCH * PATCH;
    for head in 1..=2 {
        let fc2 = format!("mast3r.downstream_head{head}.head_local_features.fc2");
        set(&mut checkpoint, &format!("{fc2}.weight"), |_| 0.0);
        set(&mut checkpoint, &format!("{fc2}.bias"), |n| {
            match n / pixels {
                24 => (n % pixels) as f32 / 256.0,
                c => 1.0 + c as f32,
            }
        });
    }
    let (width, height) = (3 * PATCH, 2 * PATCH);
    let network = tiny::network(checkpoint);
    let image = noise_image(3, width, height);
    let out = run(&mut backend(&network, width, height), &image, &image);
    for (n, found) in out.view1.descriptor_confidence.iter().enumerate() {
        let (u, v) = (n % width, n / width);
        let expected = ((v % PATCH * PATCH + u % PATCH) as f32 / 256.0).exp();
        assert!((found - expected).abs() < 1e-5 * expected, "({u}, {v})");
    }
}

/// Dimensions of the published models: parameters as they follow from the architecture's description, counted by
/// hand.
#[test]
fn the_published_encoders_have_their_parameters() {
    for (width, expected) in [(384, 22_060_000), (768, 86_580_000)] {
        let architecture = Architecture::dune(width);
        let shapes = architecture.expected_shapes();
        let of_encoder = |name: &str| {
            let own = [
                "enc_blocks",
                "patch_embed",
                "cls_token",
                "pos_embed",
                "register_tokens",
            ];
            own.iter().any(|start| name.starts_with(start))
        };
        let found: usize = shapes
            .iter()
            .filter(|(name, _)| of_encoder(name))
            .map(|(_, shape)| shape.iter().product::<usize>())
            .sum();
        // DINOv2's ViT-S/14 and ViT-B/14 with registers have 22.06 and 86.58 million, their positions being of a
        // grid of 37² in place of 32², their last norm counted.
        let as_dino = found + (37 * 37 - 32 * 32) * width + 2 * width;
        let error = (as_dino as f64 / f64::from(expected) - 1.0).abs();
        assert!(error < 5e-4, "{width}: {as_dino}");
        assert_eq!(shapes["enc_blocks.11.ls2.gamma"], [width]);
        assert_eq!(shapes["patch_embed.proj.weight"], [width, 3, 14, 14]);
        let local = "downstream_head2.head_local_features";
        assert_eq!(shapes[&format!("{local}.fc2.weight")][0], 25 * 14 * 14);
        // 4:3 in whole patches at 518: the decoder is the official one's at as many tokens.
        assert!(architecture.input_size(1, 518, 392).is_some());
        assert!(architecture.input_size(1, 512, 384).is_none());
    }
}

#[test]
fn a_whole_network_passes_its_self_test() {
    let network = tiny::network(tiny::checkpoint());
    let mut backend = CpuBackend::new(&network, 4 * PATCH, 3 * PATCH, 2).expect("a network");
    self_test(&mut backend).expect("plausible outputs");
    let refused = CpuBackend::new(&network, 64, 48, 2);
    match refused {
        Err(InferenceError::Shape { expected, .. }) => {
            assert!(expected.contains("14"), "{expected}")
        }
        _ => panic!("64x48 is not in patches of 14"),
    }
}

/// Every form that a runtime may ask for is emitted for patches of 14 as well, and has the same operations.
#[test]
fn every_form_is_emitted() {
    let network = tiny::network(tiny::checkpoint());
    let size = network
        .architecture
        .input_size(2, 5 * PATCH, 3 * PATCH)
        .expect("a size");
    for precision in Precision::ALL {
        for maps in [Maps::Nchw, Maps::NchwInside, Maps::Nhwc, Maps::NhwcOperator] {
            let options = EmitOptions {
                precision,
                attention: AttentionForm::Fused,
                branches: Branches::Together,
                upsampling: Upsampling::Products,
                maps,
            };
            let encoder = network.encoder_as(size, options);
            let tensors = encoder.tensors();
            assert_eq!(tensors[0].1, [2, 3, 3 * PATCH, 5 * PATCH]);
            assert_eq!(tensors[1].1, [2, 15, WIDTH]);
            let decoder = network.decoder_as(size, Views::Both, options);
            let points = decoder
                .tensors()
                .into_iter()
                .find(|(name, _)| *name == "pts3d1");
            assert_eq!(points.expect("points").1, [2, 3 * PATCH, 5 * PATCH, 3]);
            assert!(network.decoder_both_ways(size, options).is_some());
        }
    }
}

fn refused(edit: impl FnOnce(&mut Checkpoint)) -> String {
    let mut checkpoint = tiny::checkpoint();
    edit(&mut checkpoint);
    match Network::new(Path::new("dune.pth"), checkpoint, &tiny::hints()) {
        Err(error @ CheckpointError::Tensors { .. }) => error.to_string(),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was taken"),
    }
}

#[test]
fn what_is_missing_superfluous_or_of_the_wrong_shape_is_told_by_its_name_in_the_file() {
    let tensor = |shape: &[usize]| {
        let values = vec![0.0; shape.iter().product()];
        Tensor::from_f32(shape.to_vec(), &values).expect("a tensor")
    };
    for name in [
        "dune_backbone.blocks.0.1.ls1.gamma",
        "dune_backbone.pos_embed",
        "dune_backbone.cls_token",
        "norm.bias",
        "mast3r.dec_blocks2.0.norm_y.weight",
    ] {
        let message = refused(|checkpoint| {
            checkpoint.tensors.remove(name).expect("it is there");
        });
        assert!(
            message.contains("missing") && message.contains(name),
            "{message}"
        );
    }
    // A model without registers is another one, not half of one.
    let mut without = tiny::checkpoint();
    without.tensors.remove("dune_backbone.register_tokens");
    let network = Network::new(Path::new("dune.pth"), without, &tiny::hints()).expect("complete");
    assert_eq!(
        network.architecture.dune.as_ref().map(dune::Dune::prefix),
        Some(1)
    );

    for (name, shape) in [
        ("dune_backbone.pos_embed", &[1, 16, WIDTH][..]),
        ("dune_backbone.pos_embed", &[17, WIDTH]),
        ("dune_backbone.cls_token", &[1, 2, WIDTH]),
        ("dune_backbone.blocks.0.0.ls2.gamma", &[WIDTH + 1]),
        ("dune_backbone.patch_embed.proj.weight", &[WIDTH, 3, 16, 16]),
        ("mast3r.decoder_embed.weight", &[8, WIDTH, 1]),
    ] {
        let message = refused(|checkpoint| {
            checkpoint.tensors.insert(name.into(), tensor(shape));
        });
        let told = message.contains("wrong shape") && message.contains(name);
        assert!(told, "{name} {shape:?}: {message}");
    }
    for name in ["dune_backbone.blocks.0.0.attn.q_norm.weight", "surprise"] {
        let message = refused(|checkpoint| {
            checkpoint.tensors.insert(name.into(), tensor(&[1]));
        });
        assert!(
            message.contains("not part of it") && message.contains(name),
            "{message}"
        );
    }
    // MASt3R's own encoder may be left in the file.
    let mut with_rest = tiny::checkpoint();
    let rest = "mast3r.patch_embed.proj.weight";
    with_rest
        .tensors
        .insert(rest.into(), tensor(&[4, 3, 16, 16]));
    Network::new(Path::new("dune.pth"), with_rest, &tiny::hints()).expect("complete");
}

/// Pickles a state dict as `torch.save` does, protocol 2, and zips it with its storages.
fn write_pth(path: &Path, texts: &[(&str, &str)], tensors: impl Iterator<Item = (String, Tensor)>) {
    let text = |out: &mut Vec<u8>, s: &str| {
        out.push(b'X');
        out.extend((s.len() as u32).to_le_bytes());
        out.extend(s.as_bytes());
    };
    let number = |out: &mut Vec<u8>, n: usize| {
        out.push(b'J');
        out.extend((n as i32).to_le_bytes());
    };
    let mut storages = Vec::new();
    let mut pickle = b"\x80\x02}(".to_vec();
    for (key, value) in texts {
        text(&mut pickle, key);
        text(&mut pickle, value);
    }
    text(&mut pickle, "model");
    pickle.extend(b"}(");
    for (name, tensor) in tensors {
        text(&mut pickle, &name);
        pickle.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((");
        text(&mut pickle, "storage");
        pickle.extend(b"ctorch\nFloatStorage\n");
        text(&mut pickle, &storages.len().to_string());
        text(&mut pickle, "cpu");
        number(&mut pickle, tensor.len());
        pickle.extend(b"tQ");
        number(&mut pickle, 0);
        pickle.push(b'(');
        tensor.shape.iter().for_each(|&n| number(&mut pickle, n));
        pickle.extend(b"t(");
        for axis in 0..tensor.shape.len() {
            number(&mut pickle, tensor.shape[axis + 1..].iter().product());
        }
        pickle.extend(b"t\x89ccollections\nOrderedDict\n)RtR");
        storages.push(tensor.bytes().to_vec());
    }
    pickle.extend(b"uu.");
    let file = std::fs::File::create(path).expect("a file");
    let mut zip = zip::ZipWriter::new(file);
    let stored =
        zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    zip.start_file("archive/data.pkl", stored)
        .expect("an entry");
    zip.write_all(&pickle).expect("written");
    for (key, bytes) in storages.iter().enumerate() {
        let name = format!("archive/data/{key}");
        zip.start_file(name, stored).expect("an entry");
        zip.write_all(bytes).expect("written");
    }
    zip.finish().expect("written");
}

/// As naver publishes it: the decoder names its encoder, which lies beside it under its own names, among
/// projections to its teachers.
#[test]
fn decoder_and_encoder_in_two_files_are_one_network() {
    let folder = tempfile::tempdir().expect("a folder");
    let weights = folder.path().join("decoder.pth");
    let model = "AsymmetricMASt3R(enc_num_heads=16, pos_embed='RoPE100', dec_num_heads=1)";
    let texts = [
        ("dune_backbone_name", "dune_vitsmall_14_448_paper_encoder"),
        ("mast3r_model_str", model),
    ];
    write_pth(&weights, &texts, tiny::decoder().tensors.into_iter());
    let heads = Hints {
        enc_num_heads: Some(tiny::HEADS),
        ..Hints::default()
    };
    let json = format!("{{\"enc_num_heads\": {}}}", tiny::HEADS);
    std::fs::write(folder.path().join("decoder.json"), json).expect("a file");

    let message = network::load_network(&weights)
        .map(|_| ())
        .expect_err("half")
        .to_string();
    assert!(
        message.contains("dune_vitsmall14_448_paper.pth"),
        "{message}"
    );
    assert!(network::hash(&weights).is_err());
    assert_eq!(
        network::patch_size(&weights).expect("told by the decoder"),
        14
    );

    let beside = folder.path().join("dune_vitsmall14_448_paper.pth");
    let teachers = [("projectors.x.linear.bias".to_owned(), tiny_tensor())];
    let encoder = tiny::encoder("module._orig_mod.encoder.").chain(teachers);
    write_pth(&beside, &[], encoder);
    let joined = network::load_network(&weights).expect("both files");
    let whole = tiny::network(tiny::checkpoint());
    assert_eq!(
        joined.architecture.encoder.heads,
        heads.enc_num_heads.expect("above")
    );
    assert_eq!(joined.architecture.dune, whole.architecture.dune);
    let image = noise_image(4, 3 * PATCH, 2 * PATCH);
    let encode = |network: &Network| {
        let mut backend = backend(network, image.width, image.height);
        let mut features = vec![0.0; backend.shape().tokens * WIDTH];
        backend.encode(&image, &mut features).expect("encoded");
        let mut out = PairOutput::zeros(backend.shape());
        backend
            .decode(&features, &features, &mut out)
            .expect("decoded");
        (features, out)
    };
    assert_eq!(encode(&joined).0, encode(&whole).0);
    assert!(encode(&joined).1 == encode(&whole).1);
    // Windows does not let a mapped file be overwritten.
    drop(joined);

    // The hash that engines are bound to changes with either file.
    let before = network::hash(&weights).expect("a hash");
    let changed = tiny::encoder("encoder.").map(|(name, tensor)| match &name[..] {
        "encoder.cls_token" => (
            name,
            Tensor::from_f32(vec![1, 1, WIDTH], &[0.5; WIDTH]).expect("a tensor"),
        ),
        _ => (name, tensor),
    });
    write_pth(&beside, &[], changed);
    assert_ne!(network::hash(&weights).expect("a hash"), before);
    assert_eq!(network::files(&weights).expect("two").len(), 2);
}

fn tiny_tensor() -> Tensor {
    Tensor::from_f32(vec![1], &[0.0]).expect("a tensor")
}
