//! The static transforms of a bag.

use crate::bag::Bag;
use crate::source::SourceError;
use crate::wire::messages::Message;
use crate::wire::messages::geometry::TfMessage;
use nalgebra::Isometry3;

/// Removes the leading slash used by tf1.
pub fn clean(frame: &str) -> &str {
    frame.strip_prefix('/').unwrap_or(frame)
}

/// Maximum number of transforms on `/tf_static`: a robot has a few hundred.
const TRANSFORMS: usize = 4096;

/// A transform `parent_from_child`.
pub struct Edge {
    parent: String,
    child: String,
    pose: Isometry3<f64>,
}

/// The transforms of `/tf_static`, at most [`TRANSFORMS`].
///
/// # Errors
/// Damage of the bag.
pub fn static_transforms(bag: &Bag) -> Result<Vec<Edge>, SourceError> {
    let mut edges: Vec<Edge> = Vec::new();
    if !bag.topics().iter().any(|t| t.name == "/tf_static") {
        return Ok(edges);
    }
    for message in bag.messages(&["/tf_static"]) {
        let Ok(decoded) = TfMessage::decode(&message?.payload) else {
            continue;
        };
        for transform in decoded.transforms {
            if let Some(pose) = transform.transform.isometry()
                && edges.len() < TRANSFORMS
            {
                edges.push(Edge {
                    parent: clean(&transform.header.frame_id).to_owned(),
                    child: clean(&transform.child_frame_id).to_owned(),
                    pose,
                });
            }
        }
    }
    Ok(edges)
}

/// `target_from_source`, along the transforms in either direction.
pub fn connect(edges: &[Edge], target: &str, source: &str) -> Option<Isometry3<f64>> {
    // Frames that are reached, each with `frame_from_source`.
    let mut reached = vec![(source, Isometry3::identity())];
    let mut at = 0;
    while let Some((frame, pose)) = reached.get(at).copied() {
        if frame == target {
            return Some(pose);
        }
        for edge in edges {
            let next = match frame {
                _ if edge.child == frame => (edge.parent.as_str(), edge.pose * pose),
                _ if edge.parent == frame => (edge.child.as_str(), edge.pose.inverse() * pose),
                _ => continue,
            };
            if !reached.iter().any(|(known, _)| *known == next.0) {
                reached.push(next);
            }
        }
        at += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_connected_up_and_down_the_tree() {
        let edge = |parent: &str, child: &str, x: f64| Edge {
            parent: parent.into(),
            child: child.into(),
            pose: Isometry3::translation(x, 0.0, 0.0),
        };
        let edges = [
            edge("link", "colour", 0.1),
            edge("colour", "colour_optical", 0.01),
            edge("link", "depth", -0.2),
            edge("colour", "link", -0.1),
        ];
        let x = |target, source| connect(&edges, target, source).map(|t| t.translation.x);
        let close = |found: Option<f64>, expected: f64| {
            assert!(
                found.is_some_and(|x| (x - expected).abs() < 1e-12),
                "{found:?} {expected}"
            );
        };
        close(x("colour_optical", "depth"), -0.31);
        close(x("depth", "colour_optical"), 0.31);
        close(x("link", "link"), 0.0);
        assert_eq!(x("link", "other"), None);
    }
}
