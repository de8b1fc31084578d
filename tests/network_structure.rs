//! How the network is wired, shown by feeding it weights whose effect is known.

mod network_support;

use std::collections::BTreeMap;

use mast3r_slam::inference::{Backend, PairOutput, ViewOutput};
use mast3r_slam::network::architecture::Stack;
use mast3r_slam::network::{Architecture, Checkpoint, Tensor, load_network};
use network_support::{
    backend, noise, noise_image, relative_error, repository, run, set, tiny_checkpoint,
    tiny_network,
};

#[test]
fn swapped_views_with_swapped_branches_swap_the_outputs() {
    let original = tiny_checkpoint();
    let swap = |name: &str| -> String {
        for (a, b) in [
            ("dec_blocks.", "dec_blocks2."),
            ("downstream_head1.", "downstream_head2."),
        ] {
            if let Some(rest) = name.strip_prefix(a) {
                return format!("{b}{rest}");
            }
            if let Some(rest) = name.strip_prefix(b) {
                return format!("{a}{rest}");
            }
        }
        name.to_owned()
    };
    let tensors: BTreeMap<String, Tensor> = original
        .tensors
        .iter()
        .map(|(name, tensor)| (swap(name), tensor.clone()))
        .collect();
    let swapped = Checkpoint {
        tensors,
        ..original.clone()
    };
    let images = [noise_image(1, 64, 48), noise_image(2, 64, 48)];
    let straight = run(
        &mut backend(&tiny_network(original), 64, 48),
        &images[0],
        &images[1],
    );
    let crossed = run(
        &mut backend(&tiny_network(swapped), 64, 48),
        &images[1],
        &images[0],
    );
    // The same operations on the same numbers: the same bits.
    assert!(straight.view1 == crossed.view2);
    assert!(straight.view2 == crossed.view1);
    assert!(straight.view1 != straight.view2);
}

#[test]
fn descriptor_channels_land_on_their_pixels() {
    let mut checkpoint = tiny_checkpoint();
    let channel = |c: usize, pixel: usize| 1.0 + c as f32 * 0.25 + pixel as f32 * 0.001;
    for head in 1..=2 {
        let fc2 = format!("downstream_head{head}.head_local_features.fc2");
        set(&mut checkpoint, &format!("{fc2}.weight"), |_| 0.0);
        // Channel c·256 + i·16 + j; 24 descriptor channels, then the confidence.
        set(&mut checkpoint, &format!("{fc2}.bias"), |n| match n / 256 {
            24 => (n % 256) as f32 / 256.0,
            c => channel(c, n % 256),
        });
    }
    let (width, height) = (48, 32);
    let network = tiny_network(checkpoint);
    let image = noise_image(3, width, height);
    let out = run(&mut backend(&network, width, height), &image, &image);
    for view in [&out.view1, &out.view2] {
        for v in 0..height {
            for u in 0..width {
                let (pixel, n) = ((v % 16) * 16 + u % 16, v * width + u);
                let raw: Vec<f32> = (0..24).map(|c| channel(c, pixel)).collect();
                let length = raw.iter().map(|d| d * d).sum::<f32>().sqrt();
                let unit: Vec<f32> = raw.iter().map(|d| d / length).collect();
                let found = &view.descriptors[n * 24..(n + 1) * 24];
                // Neighbouring pixels differ by 1e-3, rounding by 1e-6.
                assert!(relative_error(found, &unit, 24, 0.0) < 1e-5, "({u}, {v})");
                let expected = (pixel as f32 / 256.0).exp();
                let found = view.descriptor_confidence[n];
                assert!((found - expected).abs() < 1e-5 * expected, "({u}, {v})");
            }
        }
    }
}

/// Sizes whose token grid is odd, a single row or column, portrait.
#[test]
fn any_multiple_of_16_runs() {
    let network = tiny_network(tiny_checkpoint());
    for (width, height) in [
        (16, 16),
        (16, 48),
        (80, 16),
        (48, 80),
        (112, 48),
        (512, 336),
    ] {
        let (a, b) = (noise_image(4, width, height), noise_image(5, width, height));
        let out = run(&mut backend(&network, width, height), &a, &b);
        let all_finite = |view: &ViewOutput| {
            let mut values = view.points.iter().chain(&view.confidence);
            values.all(|v| v.is_finite())
        };
        assert!(
            all_finite(&out.view1) && all_finite(&out.view2),
            "{width}x{height}"
        );
    }
}

/// The published model: its tensors were counted by instantiating it.
#[test]
fn the_official_model_has_its_688_million_parameters() {
    let official = Architecture {
        encoder: Stack {
            width: 1024,
            depth: 24,
            heads: 16,
            hidden: 4096,
        },
        decoder: Stack {
            width: 768,
            depth: 12,
            heads: 12,
            hidden: 3072,
        },
        rope_base: 100.0,
        hooks: [0, 6, 9, 12],
        layer_dims: [96, 192, 384, 768],
        feature_dim: 256,
        output_dims: [128, 128],
        descriptor_hidden: 7168,
        descriptor_dim: 24,
    };
    let shapes = official.expected_shapes();
    let used: usize = shapes.values().map(|s| s.iter().product::<usize>()).sum();
    // The mask token, and four tensors per head in the coarsest fusion block.
    let unused = 768 + 2 * 1_180_160;
    assert_eq!(used + unused, 688_638_856);
    assert_eq!(shapes.len() + 1 + 2 * 4, 1009);
    assert_eq!(
        shapes["downstream_head1.head_local_features.fc2.weight"],
        [6400, 7168]
    );
}

#[test]
fn the_bundled_model_has_the_dimensions_of_its_card() {
    let weights = repository("engines/mast3r-mini/model.safetensors");
    let network = load_network(&weights).unwrap();
    let stack = |depth| Stack {
        width: 192,
        depth,
        heads: 3,
        hidden: 384,
    };
    assert_eq!(
        network.architecture,
        Architecture {
            encoder: stack(8),
            decoder: stack(10),
            rope_base: 100.0,
            hooks: [0, 5, 7, 10],
            layer_dims: [24, 48, 64, 96],
            feature_dim: 64,
            output_dims: [32, 32],
            descriptor_hidden: 240,
            descriptor_dim: 24,
        }
    );
}

/// A map of `channels × height × width`.
#[derive(Clone)]
struct Map {
    channels: usize,
    height: usize,
    width: usize,
    data: Vec<f64>,
}

impl Map {
    fn at(&self, c: usize, y: usize, x: usize) -> f64 {
        self.data[(c * self.height + y) * self.width + x]
    }

    fn from_fn(
        channels: usize,
        height: usize,
        width: usize,
        f: impl Fn(usize, usize, usize) -> f64,
    ) -> Self {
        let mut data = Vec::with_capacity(channels * height * width);
        for c in 0..channels {
            for y in 0..height {
                for x in 0..width {
                    data.push(f(c, y, x));
                }
            }
        }
        Self {
            channels,
            height,
            width,
            data,
        }
    }

    fn plus(&self, other: &Map) -> Map {
        Map::from_fn(self.channels, self.height, self.width, |c, y, x| {
            self.at(c, y, x) + other.at(c, y, x)
        })
    }

    fn relu(&self) -> Map {
        Map::from_fn(self.channels, self.height, self.width, |c, y, x| {
            self.at(c, y, x).max(0.0)
        })
    }
}

/// The DPT head written down from its definition, with plain loops, in binary64.
struct NaiveDpt<'a> {
    checkpoint: &'a Checkpoint,
    prefix: String,
}

impl NaiveDpt<'_> {
    fn tensor(&self, name: &str) -> Option<(Vec<usize>, Vec<f32>)> {
        let tensor = self
            .checkpoint
            .tensors
            .get(&format!("{}.{name}", self.prefix))?;
        Some((tensor.shape.clone(), tensor.to_f32()))
    }

    fn conv(&self, x: &Map, name: &str, stride: usize) -> Map {
        let (shape, weight) = self.tensor(&format!("{name}.weight")).expect(name);
        let bias = self.tensor(&format!("{name}.bias")).map(|(_, b)| b);
        let (out, inputs, k) = (shape[0], shape[1], shape[2]);
        let pad = k / 2;
        let side = |n: usize| (n + 2 * pad - k) / stride + 1;
        Map::from_fn(out, side(x.height), side(x.width), |o, y, u| {
            let mut sum = bias.as_ref().map_or(0.0, |b| f64::from(b[o]));
            for c in 0..inputs {
                for i in 0..k {
                    for j in 0..k {
                        let (py, px) = (y * stride + i, u * stride + j);
                        if py < pad || px < pad || py - pad >= x.height || px - pad >= x.width {
                            continue;
                        }
                        let w = weight[((o * inputs + c) * k + i) * k + j];
                        sum += f64::from(w) * x.at(c, py - pad, px - pad);
                    }
                }
            }
            sum
        })
    }

    fn conv_transpose(&self, x: &Map, name: &str) -> Map {
        let (shape, weight) = self.tensor(&format!("{name}.weight")).expect(name);
        let (_, bias) = self.tensor(&format!("{name}.bias")).expect(name);
        let (inputs, out, k) = (shape[0], shape[1], shape[2]);
        Map::from_fn(out, x.height * k, x.width * k, |o, y, u| {
            let tap = |c: usize| f64::from(weight[((c * out + o) * k + y % k) * k + u % k]);
            let sum: f64 = (0..inputs).map(|c| tap(c) * x.at(c, y / k, u / k)).sum();
            f64::from(bias[o]) + sum
        })
    }

    fn upsample(&self, x: &Map) -> Map {
        let (h, w) = (x.height * 2, x.width * 2);
        let source = |i: usize, n_in: usize, n_out: usize| {
            let s = i as f64 * (n_in - 1) as f64 / (n_out - 1) as f64;
            let low = (s.floor() as usize).min(n_in - 1);
            (low, (low + 1).min(n_in - 1), s - low as f64)
        };
        Map::from_fn(x.channels, h, w, |c, y, u| {
            let (y0, y1, fy) = source(y, x.height, h);
            let (x0, x1, fx) = source(u, x.width, w);
            let top = x.at(c, y0, x0) * (1.0 - fx) + x.at(c, y0, x1) * fx;
            let bottom = x.at(c, y1, x0) * (1.0 - fx) + x.at(c, y1, x1) * fx;
            top * (1.0 - fy) + bottom * fy
        })
    }

    fn residual(&self, x: &Map, name: &str) -> Map {
        let y = self.conv(&x.relu(), &format!("{name}.conv1"), 1);
        self.conv(&y.relu(), &format!("{name}.conv2"), 1).plus(x)
    }

    /// From the four hooks' token maps to points and confidence before activation.
    fn run(&self, hooks: &[Map; 4]) -> Map {
        let mut maps = Vec::new();
        for (i, hook) in hooks.iter().enumerate() {
            let x = self.conv(hook, &format!("act_postprocess.{i}.0"), 1);
            let rescale = format!("act_postprocess.{i}.1");
            let x = match i {
                0 | 1 => self.conv_transpose(&x, &rescale),
                2 => x,
                _ => self.conv(&x, &rescale, 2),
            };
            maps.push(self.conv(&x, &format!("scratch.layer{}_rn", i + 1), 1));
        }
        let mut path: Option<Map> = None;
        for i in (0..4).rev() {
            let name = format!("scratch.refinenet{}", i + 1);
            let sum = match path {
                None => maps[i].clone(),
                Some(path) => path.plus(&self.residual(&maps[i], &format!("{name}.resConfUnit1"))),
            };
            let sum = self.residual(&sum, &format!("{name}.resConfUnit2"));
            // In the official order.
            let x = self.conv(&self.upsample(&sum), &format!("{name}.out_conv"), 1);
            let (h, w) = if i == 3 {
                (maps[2].height, maps[2].width)
            } else {
                (x.height, x.width)
            };
            path = Some(Map::from_fn(x.channels, h, w, |c, y, u| x.at(c, y, u)));
        }
        let x = self.conv(&path.expect("four levels"), "head.0", 1);
        let x = self.conv(&self.upsample(&x), "head.2", 1).relu();
        self.conv(&x, "head.4", 1)
    }
}

/// Odd token rows and columns: the coarsest map is rounded up when it halves, enlarged again, and
/// cropped. With the decoder's blocks silenced, the hooks are known: every layer repeats the
/// projected features, the last one normalised.
#[test]
fn dpt_head_equals_its_definition_on_an_odd_grid() {
    let (rows, columns) = (3, 5);
    let mut checkpoint = tiny_checkpoint();
    let silenced: Vec<String> = checkpoint
        .tensors
        .keys()
        .filter(|name| name.starts_with("dec_blocks"))
        .filter(|name| name.contains("attn.proj.") || name.contains(".mlp.fc2."))
        .cloned()
        .collect();
    assert!(silenced.len() >= 2 * 3 * 2);
    for name in &silenced {
        set(&mut checkpoint, name, |_| 0.0);
    }
    let network = tiny_network(checkpoint.clone());
    let (enc, dec) = (
        network.architecture.encoder.width,
        network.architecture.decoder.width,
    );
    let tokens = rows * columns;
    let features = [noise(7, tokens * enc), noise(8, tokens * enc)];
    let mut backend = backend(&network, columns * 16, rows * 16);
    let mut out = PairOutput::zeros(backend.shape());
    backend
        .decode(&features[0], &features[1], &mut out)
        .unwrap();

    let values = |name: &str| -> Vec<f64> {
        let tensor = &checkpoint.tensors[name];
        tensor.to_f32().into_iter().map(f64::from).collect()
    };
    let (embed, embed_bias) = (values("decoder_embed.weight"), values("decoder_embed.bias"));
    let (scale, shift) = (values("dec_norm.weight"), values("dec_norm.bias"));
    for (head, (features, view)) in features.iter().zip([&out.view1, &out.view2]).enumerate() {
        let feature = |t: usize, c: usize| f64::from(features[t * enc + c]);
        let projected = |t: usize, o: usize| {
            let products = (0..enc).map(|c| embed[o * enc + c] * feature(t, c));
            embed_bias[o] + products.sum::<f64>()
        };
        let normed = |t: usize, o: usize| {
            let x: Vec<f64> = (0..dec).map(|o| projected(t, o)).collect();
            let mean = x.iter().sum::<f64>() / dec as f64;
            let variance = x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / dec as f64;
            (x[o] - mean) / (variance + 1e-6).sqrt() * scale[o] + shift[o]
        };
        let token = |y: usize, x: usize| y * columns + x;
        let middle = Map::from_fn(dec, rows, columns, |c, y, x| projected(token(y, x), c));
        let hooks = [
            Map::from_fn(enc, rows, columns, |c, y, x| feature(token(y, x), c)),
            middle.clone(),
            middle,
            Map::from_fn(dec, rows, columns, |c, y, x| normed(token(y, x), c)),
        ];
        let dpt = NaiveDpt {
            checkpoint: &checkpoint,
            prefix: format!("downstream_head{}.dpt", head + 1),
        };
        let raw = dpt.run(&hooks);
        let mut points = Vec::new();
        let mut confidence = Vec::new();
        for y in 0..raw.height {
            for x in 0..raw.width {
                let a = [0, 1, 2].map(|c| raw.at(c, y, x));
                let norm = a.iter().map(|v| v * v).sum::<f64>().sqrt();
                let factor = norm.exp_m1() / norm.max(1e-8);
                points.extend(a.map(|v| (v * factor) as f32));
                confidence.push((1.0 + raw.at(3, y, x).exp()) as f32);
            }
        }
        // Binary32 through some twenty layers of sums of up to 150 terms; a wrong row, column or
        // crop is off by the map's own size.
        assert!(relative_error(&view.points, &points, 3, 1e-2) < 1e-4);
        assert!(relative_error(&view.confidence, &confidence, 1, 0.0) < 1e-4);
    }
}
