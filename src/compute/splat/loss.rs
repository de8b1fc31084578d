//! The training loss of a view, (1 − λ) L1 + λ (1 − SSIM) + w |D − S d|, and its gradient by the image.

use super::SplatError;
use super::blend::Image;
use super::camera::{Rendering, View, expect_length};
use super::constants::{SSIM_C1, SSIM_C2, SSIM_SIGMA, SSIM_WINDOW};
use super::device::{Loss, LossWeights};
use rayon::prelude::*;

/// Weights of SSIM's window along one axis; their sum is 1.
pub fn window() -> [f64; SSIM_WINDOW] {
    let centre = (SSIM_WINDOW / 2) as f64;
    let mut weights = [0.0; SSIM_WINDOW];
    for (k, weight) in weights.iter_mut().enumerate() {
        let d = k as f64 - centre;
        *weight = (-d * d / (2.0 * SSIM_SIGMA * SSIM_SIGMA)).exp();
    }
    let sum: f64 = weights.iter().sum();
    weights.map(|weight| weight / sum)
}

/// Convolution of one channel with the window; values outside of the image are 0.
fn blur(width: usize, height: usize, src: &[f64]) -> Vec<f64> {
    let weights = window();
    let half = SSIM_WINDOW / 2;
    let line = |values: &dyn Fn(usize) -> f64, n: usize, i: usize| -> f64 {
        let (first, last) = (i.saturating_sub(half), (i + half).min(n - 1));
        (first..=last)
            .map(|j| weights[j + half - i] * values(j))
            .sum()
    };
    let rows: Vec<f64> = (0..width * height)
        .map(|at| {
            let row = &src[at / width * width..][..width];
            line(&|x| row[x], width, at % width)
        })
        .collect();
    (0..width * height)
        .map(|at| line(&|y| rows[y * width + at % width], height, at / width))
        .collect()
}

/// Sum of SSIM over one channel, and its gradient by `x`.
fn ssim_channel(width: usize, height: usize, x: &[f64], y: &[f64]) -> (f64, Vec<f64>) {
    let product = |a: &[f64], b: &[f64]| -> Vec<f64> {
        let products: Vec<f64> = a.iter().zip(b).map(|(a, b)| a * b).collect();
        blur(width, height, &products)
    };
    let (mean_x, mean_y) = (blur(width, height, x), blur(width, height, y));
    let (xx, yy, xy) = (product(x, x), product(y, y), product(x, y));
    let n = width * height;
    let (mut sum, mut by_mean, mut by_xx, mut by_xy) =
        (0.0, vec![0.0; n], vec![0.0; n], vec![0.0; n]);
    for (i, (mx, my)) in mean_x.into_iter().zip(mean_y).enumerate() {
        let a1 = 2.0 * mx * my + SSIM_C1;
        let a2 = 2.0 * (xy[i] - mx * my) + SSIM_C2;
        let b1 = mx * mx + my * my + SSIM_C1;
        let b2 = (xx[i] - mx * mx) + (yy[i] - my * my) + SSIM_C2;
        let s = a1 * a2 / (b1 * b2);
        sum += s;
        by_mean[i] = 2.0 * my * (a2 - a1) / (b1 * b2) - 2.0 * mx * s / b1 + 2.0 * mx * s / b2;
        by_xx[i] = -s / b2;
        by_xy[i] = 2.0 * a1 / (b1 * b2);
    }
    // The window is symmetric, so the transpose of the convolution is the convolution.
    let (by_mean, by_xx, by_xy) = (
        blur(width, height, &by_mean),
        blur(width, height, &by_xx),
        blur(width, height, &by_xy),
    );
    let gradient = (0..n).map(|i| by_mean[i] + 2.0 * x[i] * by_xx[i] + y[i] * by_xy[i]);
    (sum, gradient.collect())
}

/// The loss of an image against a view. `by` becomes its gradient by the image.
pub fn loss(image: &Image, view: &View<'_>, weights: &LossWeights, by: &mut Image) -> Loss {
    let (width, height) = (view.camera.width, view.camera.height);
    let n = width * height;
    by.color.clear();
    by.color.resize(3 * n, 0.0);
    by.depth.clear();
    by.depth.resize(n, 0.0);
    by.silhouette.clear();
    by.silhouette.resize(n, 0.0);
    let values = 3.0 * n as f64;
    let lambda = f64::from(weights.ssim);

    let channels: Vec<(f64, Vec<f64>)> = (0..3_usize)
        .into_par_iter()
        .map(|channel| {
            let x: Vec<f64> = (0..n).map(|i| image.color[3 * i + channel]).collect();
            let bytes = (0..n).map(|i| f64::from(view.image[3 * i + channel]) / 255.0);
            let y: Vec<f64> = bytes.collect();
            ssim_channel(width, height, &x, &y)
        })
        .collect();
    let mut loss = Loss::default();
    for (channel, (sum, gradient)) in channels.iter().enumerate() {
        loss.ssim += sum / values;
        for (i, g) in gradient.iter().enumerate() {
            by.color[3 * i + channel] = -lambda * g / values;
        }
    }
    for (i, (value, byte)) in image.color.iter().zip(view.image).enumerate() {
        let difference = value - f64::from(*byte) / 255.0;
        loss.l1 += difference.abs() / values;
        loss.mse += difference * difference / values;
        by.color[i] += (1.0 - lambda) * sign(difference) / values;
    }
    let depth_weight = f64::from(weights.depth);
    for (i, depth) in view.depth.unwrap_or_default().iter().enumerate() {
        let measured = f64::from(*depth);
        if !(measured.is_finite() && measured > 0.0) {
            continue;
        }
        let difference = image.depth[i] - image.silhouette[i] * measured;
        loss.depth += difference.abs() / n as f64;
        by.depth[i] = depth_weight * sign(difference) / n as f64;
        by.silhouette[i] = -measured * by.depth[i];
    }
    loss.total = (1.0 - lambda) * loss.l1 + lambda * (1.0 - loss.ssim) + depth_weight * loss.depth;
    loss
}

/// Mean squared error of a rendering, limited to colours from 0 to 1, against an 8-bit image, and SSIM.
///
/// # Errors
/// [`SplatError::Length`] if the image has another size.
pub fn quality(rendering: &Rendering, image: &[u8]) -> Result<(f64, f64), SplatError> {
    let (width, height) = (rendering.width, rendering.height);
    let n = width * height;
    expect_length("bytes of an image", 3 * n, image.len())?;
    let channel = |channel: usize| {
        let x = (0..n).map(|i| f64::from(rendering.color[3 * i + channel].clamp(0.0, 1.0)));
        let y = (0..n).map(|i| f64::from(image[3 * i + channel]) / 255.0);
        let (x, y): (Vec<f64>, Vec<f64>) = (x.collect(), y.collect());
        let squares = x.iter().zip(&y).map(|(x, y)| (x - y) * (x - y));
        (squares.sum::<f64>(), ssim_channel(width, height, &x, &y).0)
    };
    let sums: Vec<(f64, f64)> = (0..3).into_par_iter().map(channel).collect();
    let values = (3 * n).max(1) as f64;
    let mse = sums.iter().map(|s| s.0).sum::<f64>() / values;
    Ok((mse, sums.iter().map(|s| s.1).sum::<f64>() / values))
}

/// −1, 0 or 1.
fn sign(x: f64) -> f64 {
    match x {
        x if x > 0.0 => 1.0,
        x if x < 0.0 => -1.0,
        _ => 0.0,
    }
}

/// Peak signal-to-noise ratio of a mean squared error of values from 0 to 1, decibels.
pub fn psnr(mse: f64) -> f64 {
    -10.0 * mse.log10()
}
