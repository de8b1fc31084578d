//! Rows move with their keyframes.

use super::device::AnchorMove;
use super::layout::Field;
use super::sh::BandRotation;
use super::store::Store;
use crate::geometry::Sim3;
use nalgebra::{Quaternion, Vector3};
use std::collections::HashMap;

/// A move with what every row of a keyframe needs of it.
struct Prepared {
    transform: Sim3,
    ln_scale: f32,
    bands: BandRotation,
}

/// Moves the rows of the listed keyframes: mean → s R mean + t, log scale + ln s, q → q_R q, and the higher bands of the
/// colour turn with R. A transform that is not finite moves nothing.
pub fn move_anchors(store: &mut Store, moves: &[AnchorMove]) {
    let prepared: HashMap<u32, Prepared> = moves
        .iter()
        .filter(|m| m.new_from_old.is_finite())
        .map(|m| {
            let transform = m.new_from_old;
            let prepared = Prepared {
                transform,
                ln_scale: transform.scale.ln() as f32,
                bands: BandRotation::new(&transform.rotation.to_rotation_matrix().into_inner()),
            };
            (m.anchor, prepared)
        })
        .collect();
    for row in 0..store.rows {
        let Some(moved) = prepared.get(&store.anchor[row]) else {
            continue;
        };
        let r = store.row(row);
        let mean = moved.transform.transform(&r.mean);
        let write = |to: &mut [f32], from: &[f64]| {
            to.iter_mut()
                .zip(from)
                .for_each(|(to, from)| *to = *from as f32);
        };
        write(store.value_mut(Field::Mean, row), Vector3::as_slice(&mean));
        let scales = store.value_mut(Field::Scale, row);
        scales.iter_mut().for_each(|s| *s += moved.ln_scale);
        let q = Quaternion::new(r.rotation[0], r.rotation[1], r.rotation[2], r.rotation[3]);
        let q = moved.transform.rotation.into_inner() * q;
        write(store.value_mut(Field::Rotation, row), &[q.w, q.i, q.j, q.k]);
        moved.bands.apply(store.value_mut(Field::Rest, row));
    }
}
