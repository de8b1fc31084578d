//! Recipes: which engines to build for a kind of machine, and the expected performance.

use super::error::TensorRtError;
use super::manifest::{Part, by_name};
use super::target::{Flavour, Target};
use crate::network::Network;
use crate::network::flops::Flops;
use crate::network::onnx::Precision;
use serde::Deserialize;
use std::path::Path;

/// Engines to build for a kind of machine.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// Name of the machine, for display only.
    pub name: String,
    /// The TensorRT library to use.
    pub tensorrt: Flavour,
    /// Target GPUs.
    pub targets: Vec<Target>,
    /// Image width and height.
    pub size: [usize; 2],
    /// Precision of matrix products.
    #[serde(deserialize_with = "by_name::deserialize")]
    pub precision: Precision,
    /// Images or pairs per call.
    pub batch: usize,
    /// Engines in addition to encoder and decoder.
    #[serde(default = "usual")]
    pub parts: Vec<Part>,
    /// Maximum device memory per kernel, in megabytes.
    pub workspace_mb: u64,
    /// Device memory available to the network, in megabytes: weights plus twice the activations
    /// (tracking and mapping).
    pub memory_budget_mb: u64,
    /// Figures for the prediction.
    pub gpu: Gpu,
}

fn usual() -> Vec<Part> {
    Part::USUAL.to_vec()
}

/// Performance figures of a GPU.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    pub name: String,
    /// Dense fp16 or bf16 products with fp32 accumulation, 10¹² operations per second.
    pub fp16_tflops: f64,
    /// Dense fp8 products, 10¹² operations per second; 0 if not supported.
    pub fp8_tflops: f64,
    /// Memory bandwidth, 10⁹ bytes per second.
    pub bandwidth_gb_s: f64,
    /// Fraction of the peak that such a network reaches; see docs/tensorrt.md.
    pub efficiency: f64,
    /// Source of the figures.
    pub source: String,
}

/// Predicted (not measured) duration of calls.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    /// Encoding an image.
    pub encoder: Step,
    /// Decoding a pair, heads included.
    pub decoder: Step,
}

/// Prediction for one engine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// 10⁹ operations.
    pub gflop: f64,
    /// Compute time in milliseconds.
    pub compute_ms: f64,
    /// Size of the weights in megabytes; each is read once.
    pub weights_mb: f64,
    /// Time to read the weights in milliseconds.
    pub memory_ms: f64,
}

impl Step {
    /// The longer of compute and memory time.
    pub fn ms(&self) -> f64 {
        self.compute_ms.max(self.memory_ms)
    }
}

impl Recipe {
    ///
    /// # Errors
    /// [`TensorRtError::Io`] or [`TensorRtError::Content`].
    pub fn read(path: &Path) -> Result<Self, TensorRtError> {
        let text = std::fs::read_to_string(path).map_err(TensorRtError::io("read", path))?;
        let content = |found: String| TensorRtError::Content {
            path: path.to_owned(),
            expected: "a recipe, such as those of engines/".into(),
            found,
        };
        let recipe: Self = serde_saphyr::from_str(&text).map_err(|e| content(e.to_string()))?;
        let figures = [
            recipe.gpu.fp16_tflops,
            recipe.gpu.bandwidth_gb_s,
            recipe.gpu.efficiency,
        ];
        let positive = figures.iter().all(|n| n.is_finite() && *n > 0.0);
        if recipe.targets.is_empty() || !positive {
            return Err(content(
                "no target, or a figure that is not positive".into(),
            ));
        }
        if recipe.precision == Precision::Fp8 && recipe.gpu.fp8_tflops <= 0.0 {
            return Err(content("fp8 for a GPU without it".into()));
        }
        Ok(recipe)
    }

    /// Predicts the duration of `network`: operations divided by the achievable rate, or weights
    /// divided by bandwidth, whichever is longer.
    pub fn predict(&self, network: &Network) -> Option<Prediction> {
        let [width, height] = self.size;
        let size = (network.architecture).input_size(self.batch, width, height)?;
        let flops = Flops::of(&network.architecture, size);
        let values = |of: fn(&str) -> bool| -> f64 {
            let shapes = network.architecture.expected_shapes();
            let wanted = shapes.iter().filter(|(name, _)| of(name));
            wanted
                .map(|(_, shape)| shape.iter().product::<usize>() as f64)
                .sum()
        };
        let encoder = values(|name| name.starts_with("enc") || name.starts_with("patch"));
        let decoder = values(|name| !name.starts_with("enc") && !name.starts_with("patch"));
        Some(Prediction {
            encoder: self.step(flops.encoder_linear, flops.encoder_attention, encoder),
            decoder: self.step(
                flops.decoder_linear,
                flops.decoder_attention + flops.heads,
                decoder,
            ),
        })
    }

    /// Linear layers at the rate of the precision, the rest at that of fp16.
    fn step(&self, linear: f64, rest: f64, values: f64) -> Step {
        let gpu = &self.gpu;
        let (rate, bytes) = match self.precision {
            // TF32 runs at half the rate of fp16.
            Precision::F32 => (gpu.fp16_tflops / 2.0, 4.0),
            Precision::F16 | Precision::Bf16 => (gpu.fp16_tflops, 2.0),
            Precision::Fp8 => (gpu.fp8_tflops, 1.0),
        };
        let others = gpu.fp16_tflops.min(rate);
        let reached = 1e12 * gpu.efficiency;
        Step {
            gflop: (linear + rest) / 1e9,
            compute_ms: 1e3 * (linear / rate + rest / others) / reached,
            weights_mb: values * bytes / 1e6,
            memory_ms: 1e3 * values * bytes / (gpu.bandwidth_gb_s * 1e9),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::load_network;

    fn folder() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/engines"))
    }

    fn mini() -> Network {
        load_network(&folder().join("mast3r-mini/model.safetensors")).expect("the bundled model")
    }

    #[test]
    fn every_recipe_that_comes_with_the_program_can_be_used() {
        let network = mini();
        let mut names = Vec::new();
        for entry in std::fs::read_dir(folder()).expect("engines/") {
            let path = entry.expect("an entry").path();
            if path.extension().is_none_or(|extension| extension != "yaml") {
                continue;
            }
            let recipe = Recipe::read(&path).expect("a recipe");
            let buildable = recipe
                .tensorrt
                .check_targets(&recipe.targets, recipe.targets.first().copied());
            assert!(buildable.is_ok(), "{}", path.display());
            let mut targets = recipe.targets.iter();
            let has = targets.all(|target| target.check(recipe.precision).is_ok());
            assert!(has, "{}", path.display());
            let prediction = recipe.predict(&network).expect("a size of the network");
            assert!(prediction.encoder.ms() > 0.0 && prediction.decoder.ms() > 0.0);
            names.push(
                path.file_stem()
                    .expect("a name")
                    .to_string_lossy()
                    .into_owned(),
            );
        }
        names.sort();
        assert_eq!(names, ["orin-agx", "orin-nx", "rtx50", "thor"]);
    }

    #[test]
    fn the_prediction_is_the_rule_s() {
        let mut recipe = Recipe::read(&folder().join("rtx50.yaml")).expect("a recipe");
        recipe.gpu = Gpu {
            fp16_tflops: 100.0,
            fp8_tflops: 200.0,
            bandwidth_gb_s: 1000.0,
            efficiency: 0.5,
            ..recipe.gpu
        };
        recipe.precision = Precision::Fp8;
        // 1 T of linear layers at 200 T/s plus 0.1 T of other operations at 100 T/s, at an
        // efficiency of one half.
        let step = recipe.step(1e12, 1e11, 1e9);
        assert!((step.compute_ms - 12.0).abs() < 1e-9, "{step:?}");
        assert!((step.memory_ms - 1.0).abs() < 1e-9, "{step:?}");
        assert_eq!(step.ms(), step.compute_ms);
        recipe.precision = Precision::F16;
        let step = recipe.step(1e12, 1e11, 1e10);
        assert!((step.compute_ms - 22.0).abs() < 1e-9 && (step.memory_ms - 20.0).abs() < 1e-9);
    }

    #[test]
    fn recipes_with_mistakes_are_refused() {
        let good = std::fs::read_to_string(folder().join("rtx50.yaml")).expect("a recipe");
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        for (from, to) in [
            ("batch:", "batches:"),
            ("[sm_120]", "[sm_fast]"),
            ("[sm_120]", "[]"),
            ("efficiency:", "efficiency: -"),
            ("precision: fp16", "precision: fp12"),
            ("two_edges", "three_edges"),
        ] {
            let text = good.replacen(from, to, 1);
            assert_ne!(text, good, "{from}");
            std::fs::write(file.path(), text).expect("a file");
            let read = Recipe::read(file.path());
            assert!(
                matches!(read, Err(TensorRtError::Content { .. })),
                "{to}: {read:?}"
            );
        }
        let orin = std::fs::read_to_string(folder().join("orin-agx.yaml")).expect("a recipe");
        let fp8 = orin.replacen("precision: fp16", "precision: fp8", 1);
        std::fs::write(file.path(), fp8).expect("a file");
        let message = Recipe::read(file.path()).unwrap_err().to_string();
        assert!(message.contains("fp8"), "{message}");
    }
}
