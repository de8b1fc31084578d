//! One step of Adam (Kingma and Ba, 2015, algorithm 1) over the rows that a view showed.

use super::constants::{BETA1, BETA2, EPSILON};
use super::device::{AdamStep, RowGradients};
use super::layout::Field;
use super::rng::{Purpose, normals, words};
use super::row::{rotation_matrix, sigmoid};
use super::store::Store;
use nalgebra::Vector3;

/// Changes one value by its gradient.
fn update(
    value: &mut f32,
    first: &mut f32,
    second: &mut f32,
    gradient: f32,
    rate: f32,
    step: &AdamStep,
) {
    let gradient = if gradient.is_finite() { gradient } else { 0.0 };
    *first = BETA1 * *first + (1.0 - BETA1) * gradient;
    *second = BETA2 * *second + (1.0 - BETA2) * gradient * gradient;
    *value -= rate * (*first / step.bias1) / ((*second / step.bias2).sqrt() + EPSILON);
}

/// Changes the rows by their gradients.
pub fn step(store: &mut Store, gradients: &RowGradients, step: &AdamStep) {
    let degree = store.layout().degree();
    let floats = store.layout().floats();
    let count = store.rows.max(1) as f32;
    for (row, values) in gradients
        .rows
        .iter()
        .zip(gradients.values.chunks_exact(floats))
    {
        let row = *row as usize;
        let opacity = sigmoid(f64::from(store.value(Field::Opacity, row)[0])) as f32;
        let mut start = 0;
        for (field, rate) in Field::ALL.into_iter().zip(step.rates) {
            let width = field.width(degree);
            for (k, gradient) in values[start..start + width].iter().enumerate() {
                let at = row * width + k;
                let value = &mut store.parameters.get_mut(field)[at];
                let regular = match field {
                    Field::Opacity => step.opacity_weight / count * opacity * (1.0 - opacity),
                    Field::Scale => step.scale_weight / (3.0 * count) * value.exp(),
                    _ => 0.0,
                };
                let first = &mut store.first.get_mut(field)[at];
                let second = &mut store.second.get_mut(field)[at];
                update(value, first, second, gradient + regular, rate, step);
            }
            start += width;
        }
        if step.noise != 0.0 {
            add_noise(store, row, step);
        }
    }
}

/// Moves a transparent row at random within its own extent: mean += f·σ(½ − 100 o)·Σ z.
fn add_noise(store: &mut Store, row: usize, step: &AdamStep) {
    let r = store.row(row);
    let axes = rotation_matrix(&(r.rotation / r.rotation.norm()));
    let covariance = axes
        * nalgebra::Matrix3::from_diagonal(&r.scale.map(|s| (2.0 * s).exp()))
        * axes.transpose();
    let noise = words(step.seed, row as u32, step.step, 0, Purpose::Noise);
    let z = Vector3::from(normals(noise).map(f64::from));
    let factor = f64::from(step.noise) * sigmoid(0.5 - 100.0 * sigmoid(r.logit));
    let moved = r.mean + covariance * z * factor;
    if moved.iter().all(|v| v.is_finite()) {
        let to = store.value_mut(Field::Mean, row);
        to.iter_mut()
            .zip(moved.iter())
            .for_each(|(to, from)| *to = *from as f32);
    }
}
