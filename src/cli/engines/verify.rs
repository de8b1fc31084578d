//! `mast3r-slam engine verify`: compares an engine's outputs with those of the CPU.

use super::VerifyArgs;
use crate::cli::{CliError, Finished, readable, say};
use crate::image::{PreprocessOptions, Preprocessor, RgbImage, decode};
use crate::inference::compare::{Comparison, Errors, compare};
use crate::inference::cpu::CpuBackend;
use crate::inference::tensorrt::{LoadOptions, Silent, TensorRtBackend};
use crate::inference::{Backend, InferenceError};
use crate::network::patch_size;
use crate::slam_builder::{MINI_WEIGHTS, find_asset, located};
use std::path::Path;
use std::sync::Arc;

/// Runs the sub-command.
pub fn run(args: &VerifyArgs) -> Result<Finished, CliError> {
    let weights = match &args.weights {
        Some(path) => located(path)?,
        None => find_asset(MINI_WEIGHTS)?,
    };
    readable("the weights", &weights)?;
    let precision = super::precision(args.precision.as_deref())?;
    let (width, height) = args.size;
    let patch = patch_size(&weights).map_err(InferenceError::from)?;
    let images = (args.images.iter())
        .map(|path| image(path, patch, (width, height)))
        .collect::<Result<Vec<RgbImage>, CliError>>()?;
    let mut engine = TensorRtBackend::load(
        &weights,
        width,
        height,
        &LoadOptions {
            store: args.store.store(),
            precision,
            may_build: false,
            wait: &|| (),
            observer: Arc::new(Silent),
        },
    )?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut cpu = CpuBackend::load(&weights, width, height, threads)?;
    say(&format!("{} compared with {}", engine.name(), cpu.name()));
    let mut worst = Vec::new();
    for pair in images.windows(2) {
        let [first, second] = pair else { continue };
        let found = compare(&mut cpu, &mut engine, [first, second])?;
        say(&table(&found));
        worst.extend(beyond(&found, args));
    }
    match worst.first() {
        None => Ok(Finished::Done),
        Some(message) => Err(InferenceError::SelfTest(message.clone()).into()),
    }
}

/// The image preprocessed for the network.
fn image(path: &Path, patch: usize, (width, height): (usize, usize)) -> Result<RgbImage, CliError> {
    let raw = decode(path)?;
    let options = PreprocessOptions {
        patch,
        ..PreprocessOptions::default()
    };
    let long = width.max(height);
    let mut preprocessor = Preprocessor::new(raw.width, raw.height, long, None, options)?;
    if preprocessor.output_size() != (width, height) {
        let (w, h) = preprocessor.output_size();
        return Err(CliError::Usage(format!(
            "{} is resized to {w}x{h}, but the engine expects {width}x{height}; use images with that aspect ratio",
            path.display()
        )));
    }
    let mut image = RgbImage::new(width, height);
    preprocessor.run(&raw, &mut image)?;
    Ok(image)
}

/// Formats the errors of all outputs.
fn table(found: &Comparison) -> String {
    let mut text = format!(
        "{:24} {:>10} {:>10} {:>10} {:>8}",
        "relative error", "median", "99 %", "largest", "broken"
    );
    let mut row = |name: &str, e: Errors| {
        text += &format!(
            "\n{name:24} {:>10.2e} {:>10.2e} {:>10.2e} {:>8}",
            e.median, e.p99, e.max, e.broken
        );
    };
    row("tokens", found.features);
    for (number, view) in (1..).zip(&found.views) {
        row(&format!("points {number}"), view.points);
        row(&format!("confidence {number}"), view.confidence);
        row(&format!("descriptors {number}, 1-cos"), view.descriptors);
        row(
            &format!("descriptor conf. {number}"),
            view.descriptor_confidence,
        );
    }
    text
}

/// Violations of the limits.
fn beyond(found: &Comparison, args: &VerifyArgs) -> Vec<String> {
    let mut messages = Vec::new();
    for (number, view) in (1..).zip(&found.views) {
        let parts = [
            view.points,
            view.confidence,
            view.descriptors,
            view.descriptor_confidence,
        ];
        let broken: usize = parts.iter().map(|e| e.broken).sum();
        if broken > 0 {
            messages.push(format!("{broken} outputs of view {number} are not finite"));
        }
        // NaN violates the limit.
        let near = view.points.median <= args.points;
        if !near {
            messages.push(format!(
                "the median error of the points of view {number} is {:.2e}, expected at most {:.2e}",
                view.points.median, args.points
            ));
        }
        let near = 1.0 - view.descriptors.median >= args.cosine;
        if !near {
            messages.push(format!(
                "the median cosine of the descriptors of view {number} is {:.5}, expected at least {:.5}",
                1.0 - view.descriptors.median,
                args.cosine
            ));
        }
    }
    messages
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inference::compare::ViewErrors;

    fn errors(median: f64) -> Errors {
        Errors {
            median,
            p99: median,
            max: median,
            broken: 0,
        }
    }

    #[test]
    fn what_is_beyond_the_limits_is_named() {
        let args = VerifyArgs {
            images: Vec::new(),
            weights: None,
            precision: None,
            size: (512, 384),
            store: Default::default(),
            points: 5e-3,
            cosine: 0.999,
        };
        let view = |points, descriptors| ViewErrors {
            points: errors(points),
            confidence: errors(0.5),
            descriptors: errors(descriptors),
            descriptor_confidence: errors(0.5),
        };
        let both = |points, descriptors| Comparison {
            features: errors(0.5),
            views: [view(1e-4, 1e-5), view(points, descriptors)],
        };
        assert!(beyond(&both(4.9e-3, 9.9e-4), &args).is_empty());
        for (points, descriptors, part) in [
            (6e-3, 0.0, "points of view 2"),
            (0.0, 2e-3, "cosine"),
            (f64::NAN, 0.0, "points"),
            (0.0, f64::NAN, "cosine"),
        ] {
            let messages = beyond(&both(points, descriptors), &args);
            assert!(
                messages.len() == 1 && messages[0].contains(part),
                "{messages:?}"
            );
        }
        let mut broken = both(0.0, 0.0);
        broken.views[0].confidence.broken = 7;
        assert!(beyond(&broken, &args)[0].contains("7 outputs of view 1"));
        let text = table(&broken);
        assert_eq!(text.lines().count(), 10, "{text}");
    }
}
