//! A tiny DUNE-MASt3R of random weights, and its encoder written down from its definition.

use super::{noise, tiny_checkpoint};
use mast3r_slam::image::RgbImage;
use mast3r_slam::network::{Checkpoint, Hints, Network, Tensor};
use std::path::Path;

/// Channels and heads of the encoder, its blocks, registers, and the grid that positions were learnt for.
pub const WIDTH: usize = 24;
pub const HEADS: usize = 2;
pub const DEPTH: usize = 2;
pub const REGISTERS: usize = 4;
pub const GRID: usize = 4;
pub const PATCH: usize = 14;

/// Names and shapes as naver's files have them: the encoder's, which its own file calls `encoder.…`.
pub fn encoder_shapes() -> Vec<(String, Vec<usize>)> {
    let (c, hidden) = (WIDTH, 4 * WIDTH);
    let mut shapes = vec![
        ("cls_token".into(), vec![1, 1, c]),
        ("register_tokens".into(), vec![1, REGISTERS, c]),
        ("pos_embed".into(), vec![1, GRID * GRID + 1, c]),
        ("mask_token".into(), vec![1, c]),
        ("patch_embed.proj.weight".into(), vec![c, 3, PATCH, PATCH]),
        ("patch_embed.proj.bias".into(), vec![c]),
        ("norm.weight".into(), vec![c]),
        ("norm.bias".into(), vec![c]),
    ];
    for block in 0..DEPTH {
        for (name, shape) in [
            ("norm1.weight", vec![c]),
            ("norm1.bias", vec![c]),
            ("attn.qkv.weight", vec![3 * c, c]),
            ("attn.qkv.bias", vec![3 * c]),
            ("attn.proj.weight", vec![c, c]),
            ("attn.proj.bias", vec![c]),
            ("ls1.gamma", vec![c]),
            ("norm2.weight", vec![c]),
            ("norm2.bias", vec![c]),
            ("mlp.fc1.weight", vec![hidden, c]),
            ("mlp.fc1.bias", vec![hidden]),
            ("mlp.fc2.weight", vec![c, hidden]),
            ("mlp.fc2.bias", vec![c]),
            ("ls2.gamma", vec![c]),
        ] {
            shapes.push((format!("blocks.0.{block}.{name}"), shape));
        }
    }
    shapes
}

fn random(name: &str, shape: &[usize]) -> Tensor {
    let seed = name
        .bytes()
        .fold(17u32, |h, b| h.wrapping_mul(31) ^ u32::from(b));
    let values = noise(seed, shape.iter().product());
    let fan_in = shape.iter().skip(1).product::<usize>().max(1) as f32;
    let is_vector = shape.len() == 1;
    let value = |v: f32| match (
        is_vector,
        name.ends_with("weight") || name.ends_with("gamma"),
    ) {
        // Scales of norms and layers.
        (true, true) => 1.0 + 0.3 * v,
        (true, false) => 0.2 * v,
        (false, true) => v * (3.0 / fan_in).sqrt(),
        (false, false) => v,
    };
    let values: Vec<f32> = values.into_iter().map(value).collect();
    Tensor::from_f32(shape.to_vec(), &values).expect("as many values as the shape has")
}

/// The encoder's tensors, under names that begin with `before`.
pub fn encoder(before: &str) -> impl Iterator<Item = (String, Tensor)> {
    let shapes = encoder_shapes().into_iter();
    shapes.map(move |(name, shape)| (format!("{before}{name}"), random(&name, &shape)))
}

/// The decoder's tensors as its file has them: the tiny network's decoder and heads, with other sizes where
/// encoder and patch play a part.
pub fn decoder() -> Checkpoint {
    let tiny = tiny_checkpoint();
    let width = |name: &str, axis: usize| tiny.tensors[name].shape[axis];
    let (old, dec) = (
        width("decoder_embed.weight", 1),
        width("decoder_embed.weight", 0),
    );
    let local = "downstream_head1.head_local_features";
    let channels = width(&format!("{local}.fc2.weight"), 0) / 256;
    let mut tensors = std::collections::BTreeMap::new();
    for (name, tensor) in &tiny.tensors {
        if name.starts_with("enc_") || name.starts_with("patch_embed") || name == "mask_token" {
            continue;
        }
        let mut shape = tensor.shape.clone();
        if name == "decoder_embed.weight" || name.contains("act_postprocess.0.0.weight") {
            shape[1] = WIDTH;
        } else if name.ends_with("head_local_features.fc1.weight") {
            assert_eq!(shape[1], old + dec);
            shape[1] = WIDTH + dec;
        } else if name.contains("head_local_features.fc2.") {
            shape[0] = channels * PATCH * PATCH;
        }
        let tensor = match shape == tensor.shape {
            true => tensor.clone(),
            false => random(name, &shape),
        };
        tensors.insert(format!("mast3r.{name}"), tensor);
    }
    for name in ["norm.weight", "norm.bias"] {
        tensors.insert(name.into(), random(&format!("between.{name}"), &[WIDTH]));
    }
    for name in ["imagenet_mean", "imagenet_std"] {
        tensors.insert(name.into(), random(name, &[1, 3, 1, 1]));
    }
    Checkpoint {
        tensors,
        ..Checkpoint::default()
    }
}

/// Decoder and encoder in one.
pub fn checkpoint() -> Checkpoint {
    let mut all = decoder();
    all.tensors.extend(encoder("dune_backbone."));
    all
}

pub fn hints() -> Hints {
    Hints {
        enc_num_heads: Some(HEADS),
        ..super::tiny_hints()
    }
}

pub fn network(checkpoint: Checkpoint) -> Network {
    Network::new(Path::new("dune.pth"), checkpoint, &hints()).expect("a complete network")
}

/// The encoder in binary64, with plain loops, in the order of its definition: colours normalised by ImageNet's
/// statistics; patches; positions by bicubic interpolation; class token, registers, patches; blocks; the norm
/// between encoder and decoder.
pub struct NaiveEncoder<'a>(pub &'a Checkpoint);

impl NaiveEncoder<'_> {
    fn values(&self, name: &str) -> Vec<f64> {
        let values = self.0.tensors[name].to_f32();
        values.into_iter().map(f64::from).collect()
    }

    fn of_backbone(&self, name: &str) -> Vec<f64> {
        self.values(&format!("dune_backbone.{name}"))
    }

    pub fn run(&self, image: &RgbImage) -> Vec<f32> {
        let (rows, columns) = (image.height / PATCH, image.width / PATCH);
        let c = WIDTH;
        let patches = self.patches(image, rows, columns);
        let positions = self.of_backbone("pos_embed");
        let mut tokens: Vec<Vec<f64>> = Vec::new();
        let class = self.of_backbone("cls_token");
        tokens.push((0..c).map(|k| class[k] + positions[k]).collect());
        let registers = self.of_backbone("register_tokens");
        tokens.extend(registers.chunks_exact(c).map(<[f64]>::to_vec));
        for row in 0..rows {
            for column in 0..columns {
                let patch = &patches[row * columns + column];
                let at = interpolated(&positions[c..], (row, rows), (column, columns));
                tokens.push(patch.iter().zip(at).map(|(x, p)| x + p).collect());
            }
        }
        for block in 0..DEPTH {
            tokens = self.block(tokens, &format!("blocks.0.{block}"));
        }
        let scale = self.values("norm.weight");
        let shift = self.values("norm.bias");
        let kept = tokens[1 + REGISTERS..].iter();
        kept.flat_map(|x| layer_norm(x, &scale, &shift, 1e-5))
            .map(|v| v as f32)
            .collect()
    }

    fn patches(&self, image: &RgbImage, rows: usize, columns: usize) -> Vec<Vec<f64>> {
        let weight = self.of_backbone("patch_embed.proj.weight");
        let bias = self.of_backbone("patch_embed.proj.bias");
        let (mean, deviation) = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);
        let colour = |y: usize, x: usize, k: usize| {
            let byte = image.data[(y * image.width + x) * 3 + k];
            (f64::from(byte) / 255.0 - mean[k]) / deviation[k]
        };
        let patch = |n: usize| {
            let (top, left) = (n / columns * PATCH, n % columns * PATCH);
            let filter = |o: usize| {
                let mut sum = bias[o];
                for k in 0..3 {
                    for i in 0..PATCH {
                        for j in 0..PATCH {
                            let w = weight[((o * 3 + k) * PATCH + i) * PATCH + j];
                            sum += w * colour(top + i, left + j, k);
                        }
                    }
                }
                sum
            };
            (0..WIDTH).map(filter).collect()
        };
        (0..rows * columns).map(patch).collect()
    }

    fn linear(&self, x: &[f64], name: &str) -> Vec<f64> {
        let weight = self.of_backbone(&format!("{name}.weight"));
        let bias = self.of_backbone(&format!("{name}.bias"));
        let rows = weight.chunks_exact(x.len()).zip(bias);
        rows.map(|(w, b)| b + w.iter().zip(x).map(|(w, x)| w * x).sum::<f64>())
            .collect()
    }

    fn norm(&self, x: &[f64], name: &str) -> Vec<f64> {
        let scale = self.of_backbone(&format!("{name}.weight"));
        let shift = self.of_backbone(&format!("{name}.bias"));
        layer_norm(x, &scale, &shift, 1e-6)
    }

    fn block(&self, tokens: Vec<Vec<f64>>, name: &str) -> Vec<Vec<f64>> {
        let of = |part: &str| format!("{name}.{part}");
        let (c, each) = (WIDTH, WIDTH / HEADS);
        let add = |x: Vec<f64>, y: Vec<f64>, gamma: &[f64]| -> Vec<f64> {
            let scaled = y.iter().zip(gamma).map(|(y, g)| y * g);
            x.iter().zip(scaled).map(|(x, y)| x + y).collect()
        };
        let joint: Vec<Vec<f64>> = tokens
            .iter()
            .map(|x| self.linear(&self.norm(x, &of("norm1")), &of("attn.qkv")))
            .collect();
        let attended = |q: &Vec<f64>| {
            let mut mixed = vec![0.0; c];
            for head in 0..HEADS {
                let part = |x: &[f64], kind: usize| {
                    x[kind * c + head * each..kind * c + (head + 1) * each].to_vec()
                };
                let query = part(q, 0);
                let logit = |k: &Vec<f64>| {
                    let key = part(k, 1);
                    let dot: f64 = query.iter().zip(key).map(|(a, b)| a * b).sum();
                    (dot / (each as f64).sqrt()).exp()
                };
                let weights: Vec<f64> = joint.iter().map(logit).collect();
                let total: f64 = weights.iter().sum();
                for (other, weight) in joint.iter().zip(&weights) {
                    for (k, v) in part(other, 2).into_iter().enumerate() {
                        mixed[head * each + k] += weight / total * v;
                    }
                }
            }
            self.linear(&mixed, &of("attn.proj"))
        };
        let outputs: Vec<Vec<f64>> = joint.iter().map(attended).collect();
        let (ls1, ls2) = (
            self.of_backbone(&of("ls1.gamma")),
            self.of_backbone(&of("ls2.gamma")),
        );
        let mlp = |x: Vec<f64>| {
            let hidden = self.linear(&self.norm(&x, &of("norm2")), &of("mlp.fc1"));
            let hidden: Vec<f64> = hidden.into_iter().map(gelu).collect();
            let y = self.linear(&hidden, &of("mlp.fc2"));
            add(x, y, &ls2)
        };
        let pairs = tokens.into_iter().zip(outputs);
        pairs.map(|(x, y)| mlp(add(x, y, &ls1))).collect()
    }
}

fn layer_norm(x: &[f64], scale: &[f64], shift: &[f64], epsilon: f64) -> Vec<f64> {
    let mean = x.iter().sum::<f64>() / x.len() as f64;
    let variance = x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / x.len() as f64;
    let unit = x.iter().map(|v| (v - mean) / (variance + epsilon).sqrt());
    unit.zip(scale.iter().zip(shift))
        .map(|(u, (g, b))| u * g + b)
        .collect()
}

/// `x·Φ(x)`, the error function by its Taylor series.
fn gelu(x: f64) -> f64 {
    let z = x / 2.0_f64.sqrt();
    if z.abs() > 4.0 {
        // 1 − erf(4) is 2e-8.
        return if x > 0.0 { x } else { 0.0 };
    }
    let (mut term, mut sum) = (z, z);
    for n in 1..120 {
        term *= -z * z / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    x * 0.5 * (1.0 + sum * std::f64::consts::FRAC_2_SQRT_PI)
}

/// What was learnt for a grid of [`GRID`]² places (`GRID² × WIDTH`), at one of `rows × columns`: the sum over all
/// places, each clamped to the grid, of Keys' kernel of the distances along both axes.
fn interpolated(
    learnt: &[f64],
    (row, rows): (usize, usize),
    (column, columns): (usize, usize),
) -> Vec<f64> {
    if (rows, columns) == (GRID, GRID) {
        let at = (row * GRID + column) * WIDTH;
        return learnt[at..at + WIDTH].to_vec();
    }
    let source = |i: usize, n: usize| {
        let scale = (n as f64 + 0.1) / GRID as f64;
        (i as f64 + 0.5) / scale - 0.5
    };
    let (y, x) = (source(row, rows), source(column, columns));
    let clamped = |k: i32| k.clamp(0, GRID as i32 - 1) as usize;
    let mut out = vec![0.0; WIDTH];
    for i in -3..GRID as i32 + 3 {
        for j in -3..GRID as i32 + 3 {
            let weight = keys(y - f64::from(i)) * keys(x - f64::from(j));
            let at = (clamped(i) * GRID + clamped(j)) * WIDTH;
            for (out, value) in out.iter_mut().zip(&learnt[at..at + WIDTH]) {
                *out += weight * value;
            }
        }
    }
    out
}

/// The cubic convolution kernel of Keys (1981) with a = −0.75.
fn keys(distance: f64) -> f64 {
    let (a, d) = (-0.75, distance.abs());
    if d <= 1.0 {
        (a + 2.0) * d.powi(3) - (a + 3.0) * d.powi(2) + 1.0
    } else if d < 2.0 {
        a * (d.powi(3) - 5.0 * d.powi(2) + 8.0 * d - 4.0)
    } else {
        0.0
    }
}
