//! The emitted ONNX itself: another runtime takes it, in one piece and with its weights apart.

use std::collections::HashSet;

use mast3r_slam::inference::{Backend, PairOutput};
use mast3r_slam::network::InputSize;
use mast3r_slam::network::onnx::{
    AttentionForm, Branches, EmitOptions, Maps, OnnxModel, Precision, Upsampling, Views,
};
use testkit::networks::{
    backend, noise, noise_image, relative_error, tiny_checkpoint, tiny_network,
};
use tract_onnx::pb::{self, attribute_proto::AttributeType};
use tract_onnx::prelude::*;

fn run(model: TypedModel, inputs: &[(&[usize], &[f32])]) -> Vec<Vec<f32>> {
    let inputs: TVec<TValue> = inputs
        .iter()
        .map(|(shape, values)| Tensor::from_shape(shape, values).unwrap().into_tvalue())
        .collect();
    let outputs = model.into_runnable().unwrap().run(inputs).unwrap();
    outputs
        .iter()
        .map(|o| {
            o.to_plain_array_view::<f32>()
                .unwrap()
                .iter()
                .copied()
                .collect()
        })
        .collect()
}

fn in_tract(model: &OnnxModel) -> TypedModel {
    let bytes = model.to_bytes().unwrap();
    let model = tract_onnx::onnx().model_for_read(&mut &bytes[..]).unwrap();
    model.into_optimized().unwrap()
}

/// Two binary32 implementations of some thirty layers; goldens agree to 1e-5 as well.
const TOLERANCE: f64 = 1e-4;

#[test]
fn tract_computes_the_same() {
    let network = tiny_network(tiny_checkpoint());
    // Portrait, and odd in both directions.
    let (width, height) = (48, 80);
    let size = InputSize::new(1, width, height).unwrap();
    let mut backend = backend(&network, width, height);
    let shape = backend.shape().clone();
    let images = [noise_image(1, width, height), noise_image(2, width, height)];

    let encoder = in_tract(&network.encoder(size));
    let mut features = [0, 1].map(|_| vec![0.0; shape.tokens * shape.feature_dim]);
    for (image, features) in images.iter().zip(&mut features) {
        backend.encode(image, features).unwrap();
        let plane = width * height;
        let mut input = vec![0.0; 3 * plane];
        for (n, value) in input.iter_mut().enumerate() {
            *value = f32::from(image.data[n % plane * 3 + n / plane]) / 127.5 - 1.0;
        }
        let found = run(encoder.clone(), &[(&[1, 3, height, width], &input)]);
        assert!(relative_error(&found[0], features, shape.feature_dim, 0.0) < TOLERANCE);
    }

    let mut expected = PairOutput::zeros(&shape);
    backend
        .decode(&features[0], &features[1], &mut expected)
        .unwrap();
    let extents = [1, shape.tokens, shape.feature_dim];
    let inputs = [
        (&extents[..], &features[0][..]),
        (&extents[..], &features[1][..]),
    ];
    let both = run(in_tract(&network.decoder(size, Views::Both)), &inputs);
    let first = run(in_tract(&network.decoder(size, Views::First)), &inputs);
    assert_eq!((both.len(), first.len()), (8, 4));
    let views = [&expected.view1, &expected.view2, &expected.view1];
    for (found, view) in both.chunks(4).chain(first.chunks(4)).zip(views) {
        for (found, (expected, tuple)) in found.iter().zip([
            (&view.points, 3),
            (&view.confidence, 1),
            (&view.descriptors, shape.descriptor_dim),
            (&view.descriptor_confidence, 1),
        ]) {
            assert!(relative_error(found, expected, tuple, 1e-3) < TOLERANCE);
        }
    }
}

#[test]
fn a_batch_of_two_pairs_is_two_pairs() {
    let network = tiny_network(tiny_checkpoint());
    let (width, height) = (48, 32);
    let tokens = InputSize::new(1, width, height).unwrap().tokens();
    let channels = network.architecture.encoder.width;
    let (a, b) = (
        noise(1, 2 * tokens * channels),
        noise(2, 2 * tokens * channels),
    );
    let size = InputSize::new(2, width, height).unwrap();
    let decoder = in_tract(&network.decoder(size, Views::Both));
    let extents = [2, tokens, channels];
    let found = run(decoder, &[(&extents, &a), (&extents, &b)]);

    let mut backend = backend(&network, width, height);
    let mut out = PairOutput::zeros(backend.shape());
    for pair in 0..2 {
        let part = pair * tokens * channels..(pair + 1) * tokens * channels;
        backend
            .decode(&a[part.clone()], &b[part], &mut out)
            .unwrap();
        for (found, expected) in found.iter().zip([
            &out.view1.points,
            &out.view1.confidence,
            &out.view1.descriptors,
            &out.view1.descriptor_confidence,
            &out.view2.points,
            &out.view2.confidence,
        ]) {
            let found = &found[pair * expected.len()..(pair + 1) * expected.len()];
            assert!(relative_error(found, expected, 1, 1e-2) < TOLERANCE);
        }
    }

    let image = noise(3, 2 * 3 * width * height);
    let encoder = in_tract(&network.encoder(size));
    let both = run(encoder, &[(&[2, 3, height, width], &image)]);
    let one = in_tract(&network.encoder(size.with_batch(1).unwrap()));
    let second = run(
        one,
        &[(&[1, 3, height, width], &image[3 * width * height..])],
    );
    let half = both[0].len() / 2;
    assert!(relative_error(&both[0][half..], &second[0], channels, 0.0) < TOLERANCE);
}

#[test]
fn weights_beside_the_model_are_the_same_model() {
    let network = tiny_network(tiny_checkpoint());
    let size = InputSize::new(1, 48, 32).unwrap();
    let model = network.encoder(size);
    let folder = tempfile::tempdir().unwrap();
    let (inside, beside) = (folder.path().join("a.onnx"), folder.path().join("b.onnx"));
    model.save(&inside, false).unwrap();
    model.save(&beside, true).unwrap();
    let bytes = |path: &std::path::Path| std::fs::metadata(path).unwrap().len() as usize;
    assert_eq!(
        bytes(&folder.path().join("b.onnx.data")),
        model.weight_bytes()
    );
    assert!(!folder.path().join("a.onnx.data").exists());
    assert!(bytes(&inside) > model.weight_bytes());

    let image = noise(1, 3 * 48 * 32);
    let outputs = [inside, beside].map(|path| {
        let model = tract_onnx::onnx().model_for_path(path).unwrap();
        run(
            model.into_optimized().unwrap(),
            &[(&[1, 3, 32, 48], &image)],
        )
    });
    assert!(outputs[0] == outputs[1]);

    let nowhere = folder.path().join("missing").join("c.onnx");
    assert!(model.save(&nowhere, false).is_err());
}

#[test]
fn a_model_of_pairs_both_ways_decodes_both_ways() {
    let network = tiny_network(tiny_checkpoint());
    let (width, height) = (48, 32);
    let odd = InputSize::new(3, width, height).unwrap();
    assert!(
        network
            .decoder_both_ways(odd, EmitOptions::default())
            .is_none()
    );

    // Two pairs: images 0 and 1, images 2 and 3.
    let size = InputSize::new(4, width, height).unwrap();
    let model = network
        .decoder_both_ways(size, EmitOptions::default())
        .unwrap();
    let channels = network.architecture.encoder.width;
    let one = size.tokens() * channels;
    let features = noise(1, 4 * one);
    let found = run(
        in_tract(&model),
        &[(&[4, size.tokens(), channels], &features)],
    );
    let mut backend = backend(&network, width, height);
    let dim = network.architecture.descriptor_dim;
    let mut out = PairOutput::zeros(backend.shape());
    for (item, partner) in [(0, 1), (1, 0), (2, 3), (3, 2)] {
        let of = |image: usize| &features[image * one..(image + 1) * one];
        backend.decode(of(item), of(partner), &mut out).unwrap();
        for (found, (expected, tuple)) in found.iter().zip([
            (&out.view1.points, 3),
            (&out.view1.confidence, 1),
            (&out.view1.descriptors, dim),
            (&out.view1.descriptor_confidence, 1),
            (&out.view2.points, 3),
            (&out.view2.confidence, 1),
            (&out.view2.descriptors, dim),
            (&out.view2.descriptor_confidence, 1),
        ]) {
            let found = &found[item * expected.len()..(item + 1) * expected.len()];
            assert!(relative_error(found, expected, tuple, 1e-2) < TOLERANCE);
        }
    }
}

/// TensorRT's parser refuses a name that is used twice, and expects graphs in order.
#[test]
fn names_are_unique_and_defined_before_use() {
    let network = tiny_network(tiny_checkpoint());
    let size = InputSize::new(2, 80, 48).unwrap();
    let operators = EmitOptions {
        precision: Precision::F16,
        attention: AttentionForm::Fused,
        branches: Branches::Together,
        upsampling: Upsampling::Products,
        maps: Maps::Nhwc,
    };
    let contrib = EmitOptions {
        maps: Maps::NhwcOperator,
        ..operators
    };
    let models = [
        (network.encoder(size), 20),
        (network.decoder(size, Views::Both), 20),
        (network.encoder_as(size, operators), 23),
        (network.decoder_as(size, Views::First, operators), 23),
        (network.decoder_both_ways(size, operators).unwrap(), 23),
        (network.decoder_as(size, Views::Both, contrib), 23),
    ];
    for (model, opset) in models {
        let bytes = model.to_bytes().unwrap();
        let proto = tract_onnx::onnx()
            .proto_model_for_read(&mut &bytes[..])
            .unwrap();
        let own = proto.opset_import.get(1).map(|set| &set.domain[..]);
        assert!(matches!(own, None | Some("com.microsoft")), "{own:?}");
        assert_eq!(proto.opset_import[0].version, opset);
        let graph: pb::GraphProto = proto.graph.unwrap();
        let mut values = HashSet::new();
        for initializer in &graph.initializer {
            assert!(
                values.insert(initializer.name.clone()),
                "{}",
                initializer.name
            );
        }
        for input in &graph.input {
            assert!(values.insert(input.name.clone()), "{}", input.name);
        }
        let mut nodes = HashSet::new();
        let mut used = HashSet::new();
        for node in &graph.node {
            assert!(nodes.insert(node.name.clone()), "{}", node.name);
            for input in node.input.iter().filter(|name| !name.is_empty()) {
                assert!(values.contains(input), "{} reads {input}", node.name);
                used.insert(input.clone());
            }
            for output in &node.output {
                assert!(values.insert(output.clone()), "{output}");
            }
            for attribute in &node.attribute {
                assert_ne!(attribute.r#type, AttributeType::Undefined as i32);
            }
        }
        for output in &graph.output {
            assert!(values.contains(&output.name));
            used.insert(output.name.clone());
        }
        for initializer in &graph.initializer {
            assert!(
                used.contains(&initializer.name),
                "{} is unused",
                initializer.name
            );
        }
    }
}
