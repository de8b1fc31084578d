//! The camera's way and the loops, for the plan and the viewer.

use super::ReportInput;
use crate::map::{FrameRecord, TrackingState};
use nalgebra::Vector3;
use std::collections::HashMap;

/// Loop edges, as indices into the list of keyframes.
pub(super) fn loop_edges(input: &ReportInput) -> Vec<(usize, usize)> {
    let keyframes = &input.snapshot.keyframes;
    let place: HashMap<u32, usize> = keyframes
        .iter()
        .enumerate()
        .map(|(i, k)| (k.id, i))
        .collect();
    let edges = input.snapshot.loop_edges();
    let mut out: Vec<(usize, usize)> = edges
        .filter_map(|e| Some((*place.get(&e.i)?, *place.get(&e.j)?)))
        .map(|(a, b)| (a.min(b), a.max(b)))
        .collect();
    out.sort_unstable();
    out.dedup();
    out
}

/// Positions of a submap's frames, in segments that end where tracking was lost.
pub(super) fn path_pieces(frames: &[FrameRecord], submap: u32) -> Vec<Vec<Vector3<f64>>> {
    let mut pieces = vec![Vec::new()];
    for f in frames.iter().filter(|f| f.submap == submap) {
        if f.state == TrackingState::Lost || !f.world_from_camera.is_finite() {
            pieces.push(Vec::new());
        } else if let Some(piece) = pieces.last_mut() {
            piece.push(f.world_from_camera.translation);
        }
    }
    pieces.retain(|p| !p.is_empty());
    pieces
}
