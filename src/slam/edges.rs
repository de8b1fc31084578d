//! Makes edges on the device, and checks the agreement of their two directions.

use super::graph::Edge;
use crate::compute::device::{DeviceError, MappingDevice, NewEdge, TwoWay};
use crate::map::EdgeKind;

/// Maximum difference of the log-scale between an edge's two directions: about 15 %. For true edges
/// of the mini model it stays below 5 %, for spurious ones it is 10 to 40 %.
const TWO_WAY_LOG_SCALE: f64 = 0.15;

/// Makes edges of the given kinds from `i` to `j` in one call: a GPU decodes several at once faster
/// than one by one. On cancellation, the device makes fewer.
pub fn make(
    device: &mut dyn MappingDevice,
    wanted: &[(u32, u32, EdgeKind)],
) -> Result<Vec<Edge>, DeviceError> {
    let pairs: Vec<(u32, u32)> = wanted.iter().map(|&(i, j, _)| (i, j)).collect();
    let mut made = Vec::with_capacity(pairs.len());
    device.make_edges(&pairs, &mut made)?;
    let edge = |(edge, &(i, j, kind)): (NewEdge, _)| Edge {
        id: edge.id,
        i,
        j,
        kind,
        match_fraction: edge.match_fraction,
        poses: None,
    };
    Ok(made.into_iter().zip(wanted).map(edge).collect())
}

/// Both relative poses of an edge, solved on first use: the pointmaps of its keyframes do not
/// change while an event is handled.
pub fn relative_poses(
    device: &mut dyn MappingDevice,
    edge: &mut Edge,
) -> Result<TwoWay, DeviceError> {
    match edge.poses {
        Some(poses) => Ok(poses),
        None => {
            let poses = device.relative_poses(edge.id)?;
            edge.poses = Some(poses);
            Ok(poses)
        }
    }
}

/// Whether both directions of an edge, solved separately, give the same relative pose to within
/// `max_degrees` and a scale: if two views share nothing, the network hallucinates matches, and
/// different ones in each direction. 0 degrees disables the test.
pub fn agree_both_ways(
    device: &mut dyn MappingDevice,
    edge: &mut Edge,
    max_degrees: f64,
) -> Result<bool, DeviceError> {
    if max_degrees == 0.0 {
        return Ok(true);
    }
    let poses = relative_poses(device, edge)?;
    let (agree, degrees, scale) = agreement(&poses, max_degrees);
    let fraction = edge.match_fraction;
    tracing::debug!(
        i = edge.i,
        j = edge.j,
        fraction,
        degrees,
        scale,
        "edge both ways"
    );
    Ok(agree)
}

/// Whether the poses agree; also the angle and log-scale of the composition of both directions.
fn agreement(poses: &TwoWay, max_degrees: f64) -> (bool, f64, f64) {
    let (Some(i_from_j), Some(j_from_i)) = (poses.i_from_j, poses.j_from_i) else {
        return (false, f64::NAN, f64::NAN);
    };
    let around = i_from_j * j_from_i;
    let degrees = around.rotation.angle().to_degrees();
    let agree = degrees <= max_degrees && around.scale.ln().abs() <= TWO_WAY_LOG_SCALE;
    (agree, degrees, around.scale)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::Sim3;
    use nalgebra::UnitQuaternion;

    fn turned(degrees: f64, scale: f64) -> Sim3 {
        Sim3 {
            rotation: UnitQuaternion::from_euler_angles(0.0, degrees.to_radians(), 0.0),
            scale,
            ..Sim3::identity()
        }
    }

    #[test]
    fn directions_agree_up_to_an_angle_and_a_scale() {
        let i_from_j = turned(40.0, 1.2);
        let agrees = |degrees: f64, scale: f64| {
            let j_from_i = Some(i_from_j.inverse() * turned(degrees, scale));
            let poses = TwoWay {
                i_from_j: Some(i_from_j),
                j_from_i,
            };
            agreement(&poses, 5.0).0
        };
        assert!(agrees(0.0, 1.0) && agrees(4.9, 1.0) && agrees(-4.9, 1.15));
        assert!(!agrees(5.1, 1.0) && !agrees(0.0, 1.17) && !agrees(0.0, 0.85));
    }

    #[test]
    fn a_direction_that_could_not_be_solved_agrees_with_nothing() {
        let one = TwoWay {
            i_from_j: Some(Sim3::identity()),
            j_from_i: None,
        };
        assert!(!agreement(&one, 180.0).0);
        assert!(!agreement(&TwoWay::default(), 180.0).0);
    }
}
