//! The DPT heads written down from their definition.

use super::{backend, noise, relative_error, set};
use mast3r_slam::inference::{Backend, PairOutput};
use mast3r_slam::network::{Checkpoint, Network};

/// A map of `channels × height × width`.
#[derive(Clone)]
pub struct Map {
    channels: usize,
    pub height: usize,
    pub width: usize,
    data: Vec<f64>,
}

impl Map {
    pub fn at(&self, c: usize, y: usize, x: usize) -> f64 {
        self.data[(c * self.height + y) * self.width + x]
    }

    pub fn from_fn(
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
pub struct NaiveDpt<'a> {
    pub checkpoint: &'a Checkpoint,
    pub prefix: String,
    /// Rows and columns of the network's images.
    pub image: (usize, usize),
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

    fn upsample(&self, x: &Map, (h, w): (usize, usize)) -> Map {
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
    pub fn run(&self, hooks: &[Map; 4]) -> Map {
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
            let twice = (2 * sum.height, 2 * sum.width);
            let x = self.conv(&self.upsample(&sum, twice), &format!("{name}.out_conv"), 1);
            let (h, w) = if i == 3 {
                (maps[2].height, maps[2].width)
            } else {
                (x.height, x.width)
            };
            path = Some(Map::from_fn(x.channels, h, w, |c, y, u| x.at(c, y, u)));
        }
        let x = self.conv(&path.expect("four levels"), "head.0", 1);
        let x = self
            .conv(&self.upsample(&x, self.image), "head.2", 1)
            .relu();
        self.conv(&x, "head.4", 1)
    }
}

/// Compares the DPT heads of a network with their definition. With the decoder's blocks silenced, the hooks are
/// known: every layer repeats the projected features, the last one normalised. `before` is what stands before the
/// decoder's names; `network` makes the network.
pub fn assert_heads_are_their_definition(
    mut checkpoint: Checkpoint,
    before: &str,
    (rows, columns): (usize, usize),
    network: impl Fn(Checkpoint) -> Network,
) {
    let silenced: Vec<String> = checkpoint
        .tensors
        .keys()
        .filter(|name| name.starts_with(&format!("{before}dec_blocks")))
        .filter(|name| name.contains("attn.proj.") || name.contains(".mlp.fc2."))
        .cloned()
        .collect();
    assert!(silenced.len() >= 2 * 3 * 2);
    for name in &silenced {
        set(&mut checkpoint, name, |_| 0.0);
    }
    let network = network(checkpoint.clone());
    let patch = network.architecture.patch();
    let (enc, dec) = (
        network.architecture.encoder.width,
        network.architecture.decoder.width,
    );
    let tokens = rows * columns;
    let features = [noise(7, tokens * enc), noise(8, tokens * enc)];
    let mut backend = backend(&network, columns * patch, rows * patch);
    let mut out = PairOutput::zeros(backend.shape());
    backend
        .decode(&features[0], &features[1], &mut out)
        .unwrap();

    let values = |name: &str| -> Vec<f64> {
        let tensor = &checkpoint.tensors[&format!("{before}{name}")];
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
            prefix: format!("{before}downstream_head{}.dpt", head + 1),
            image: (rows * patch, columns * patch),
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
