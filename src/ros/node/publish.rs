//! How poses become messages, and how a message is sent.

use super::settings::Settings;
use super::status::Status;
use crate::map::EdgeKind;
use crate::ros::middleware::{MiddlewareError, Publish};
use crate::slam::PoseTable;
use crate::time::Stamp;
use crate::wire::messages::geometry::{
    Covariance, Point, Pose, PoseStamped, PoseWithCovariance, PoseWithCovarianceStamped, Transform,
    TransformStamped, Twist, TwistWithCovariance, Vector3,
};
use crate::wire::messages::nav::{Odometry, Path};
use crate::wire::messages::visualization::{self as vis, Marker, MarkerArray};
use crate::wire::messages::{ColorRgba, Header, Message};
use nalgebra::{Isometry3, Vector3 as Vector};
use serde::Serialize;

/// Maximum number of poses in `~/path`: a message of about 400 kB, which peers with default settings
/// still receive.
pub const MAX_PATH: usize = 4000;
/// Maximum number of points in a marker of `~/graph`: about 100 kB each.
const MAX_POINTS: usize = 4000;

/// All items, or at most `max` evenly spaced ones, the last one included.
fn thinned<T: Clone>(all: &[T], max: usize) -> Vec<T> {
    let step = all.len().div_ceil(max.max(1)).max(1);
    let mut some: Vec<T> = all.iter().rev().step_by(step).cloned().collect();
    some.reverse();
    some
}

/// Publishes a message; what the middleware refuses is counted and logged.
pub fn send<M: Message + Serialize>(topic: &dyn Publish, message: &M, status: &Status) {
    let sent = message
        .encode()
        .map_err(MiddlewareError::from)
        .and_then(|data| topic.publish(data));
    if let Err(error) = sent {
        status.unsent.add();
        status.warn("send", || error.to_string());
    }
}

/// Converts a transform to a message.
pub fn transform(
    stamp: Stamp,
    parent: &str,
    child: &str,
    parent_from_child: &Isometry3<f64>,
) -> TransformStamped {
    TransformStamped {
        header: Header::new(stamp, parent),
        child_frame_id: child.to_owned(),
        transform: Transform::from(parent_from_child),
    }
}

/// `~/pose`
pub fn pose(
    stamp: Stamp,
    frame: &str,
    pose: &Isometry3<f64>,
    covariance: Covariance,
) -> PoseWithCovarianceStamped {
    PoseWithCovarianceStamped {
        header: Header::new(stamp, frame),
        pose: PoseWithCovariance {
            pose: Pose::from(pose),
            covariance,
        },
    }
}

/// `~/odometry`; `step` is the motion of the base during `seconds`, relative to its previous pose;
/// the covariances are those of pose and twist.
pub fn odometry(
    stamp: Stamp,
    frames: (&str, &str),
    odom_from_base: &Isometry3<f64>,
    step: Option<(&Isometry3<f64>, f64)>,
    covariances: [Covariance; 2],
) -> Odometry {
    let twist = step
        .filter(|(_, seconds)| *seconds > 0.0)
        .map(|(step, seconds)| {
            // The twist is expressed in the child frame, which has rotated by the step.
            let linear = step.rotation.inverse() * step.translation.vector / seconds;
            let angular = step.rotation.scaled_axis() / seconds;
            let vector = |v: Vector<f64>| Vector3 {
                x: v.x,
                y: v.y,
                z: v.z,
            };
            Twist {
                linear: vector(linear),
                angular: vector(angular),
            }
        });
    let [of_pose, of_twist] = covariances;
    Odometry {
        header: Header::new(stamp, frames.0),
        child_frame_id: frames.1.to_owned(),
        pose: PoseWithCovariance {
            pose: Pose::from(odom_from_base),
            covariance: of_pose,
        },
        twist: TwistWithCovariance {
            twist: twist.unwrap_or_default(),
            covariance: of_twist,
        },
    }
}

/// `~/path`: the robot's poses at the keyframes of `submap`, limited to the newest
/// `settings.path_max_size`; at most [`MAX_PATH`], evenly spaced.
pub fn path(
    table: &PoseTable,
    submap: u32,
    settings: &Settings,
    map_from_world: &Isometry3<f64>,
    camera_from_base: &Isometry3<f64>,
) -> Path {
    let all = table.poses.iter().zip(&table.stamps).zip(&table.submaps);
    let own = all
        .filter(|(_, s)| **s == submap)
        .map(|(keyframe, _)| keyframe);
    let own: Vec<_> = own.collect();
    let newest = match settings.path_max_size {
        0 => own.len(),
        max => max.min(own.len()),
    };
    let frame = settings.map_frame.as_str();
    let shown = thinned(&own[own.len() - newest..], MAX_PATH);
    let poses = shown.into_iter().map(|(pose, stamp)| PoseStamped {
        header: Header::new(*stamp, frame),
        pose: Pose::from(&(map_from_world * pose.rigid() * camera_from_base)),
    });
    let poses: Vec<PoseStamped> = poses.collect();
    let header = poses.last().map_or_else(
        || Header::new(Stamp::default(), frame),
        |newest| newest.header.clone(),
    );
    Path { header, poses }
}

/// `~/graph`: keyframes as spheres, and edges as lines coloured by kind; evenly spaced ones in
/// a large map.
pub fn graph(
    table: &PoseTable,
    submap: u32,
    frame: &str,
    map_from_world: &Isometry3<f64>,
) -> MarkerArray {
    let point = |id: u32| -> Option<Point> {
        let index = table.index_of(id)?;
        let own = table.submaps.get(index).is_some_and(|s| *s == submap);
        let at = table.poses.get(index).filter(|_| own)?.translation;
        let p = map_from_world * nalgebra::Point3::from(at);
        Some(Point {
            x: p.x,
            y: p.y,
            z: p.z,
        })
    };
    let marker = |ns: &str, kind: i32, size: f64, color: [f32; 3], points: Vec<Point>| Marker {
        header: Header {
            stamp: vis::always(),
            frame_id: frame.to_owned(),
        },
        ns: ns.to_owned(),
        kind,
        action: vis::ADD,
        pose: Pose::from(&Isometry3::identity()),
        scale: Vector3 {
            x: size,
            y: size,
            z: size,
        },
        color: ColorRgba {
            r: color[0],
            g: color[1],
            b: color[2],
            a: 1.0,
        },
        points,
        ..Default::default()
    };
    let keyframes: Vec<Point> = table.ids.iter().copied().filter_map(point).collect();
    let keyframes = thinned(&keyframes, MAX_POINTS);
    let lines = |wanted: &[EdgeKind]| -> Vec<Point> {
        let edges = table.edges.iter().filter(|e| wanted.contains(&e.kind));
        let ends = edges.filter_map(|e| Some([point(e.i)?, point(e.j)?]));
        let ends: Vec<[Point; 2]> = ends.collect();
        thinned(&ends, MAX_POINTS / 2)
            .into_iter()
            .flatten()
            .collect()
    };
    let track = lines(&[EdgeKind::Consecutive, EdgeKind::Neighbour]);
    let loops = lines(&[EdgeKind::Loop, EdgeKind::Relocalisation]);
    MarkerArray {
        markers: vec![
            marker(
                "keyframes",
                vis::SPHERE_LIST,
                0.04,
                [0.1, 0.6, 1.0],
                keyframes,
            ),
            marker("track", vis::LINE_LIST, 0.01, [0.6, 0.6, 0.6], track),
            marker("loops", vis::LINE_LIST, 0.02, [1.0, 0.3, 0.1], loops),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::Sim3;
    use crate::map::MapEdge;

    #[test]
    fn thinning_keeps_the_last_and_the_bound() {
        let all: Vec<u32> = (0..1000).collect();
        assert_eq!(thinned(&all, 1000), all);
        for max in [1, 7, 500, 999] {
            let some = thinned(&all, max);
            assert!(some.len() <= max && some.last() == Some(&999), "{max}");
            assert!(some.is_sorted() && some.len() * 2 > max, "{max}");
        }
        assert!(thinned::<u32>(&[], 5).is_empty());
    }

    #[test]
    fn the_graph_of_a_large_map_is_a_bounded_message() {
        let count = 20_000;
        let edge = |k: u32, kind| MapEdge {
            i: k,
            j: k + 1,
            kind,
        };
        let of = |kind| (0..count - 1).map(move |k| edge(k, kind));
        let edges = of(EdgeKind::Consecutive).chain(of(EdgeKind::Loop));
        let table = PoseTable {
            ids: (0..count).collect(),
            poses: vec![Sim3::identity(); count as usize],
            submaps: vec![0; count as usize],
            stamps: vec![Stamp::default(); count as usize],
            edges: edges.collect(),
            ..PoseTable::default()
        };
        let message = graph(&table, 0, "map", &Isometry3::identity());
        for marker in &message.markers {
            let points = marker.points.len();
            assert!((MAX_POINTS / 2..=MAX_POINTS).contains(&points), "{points}");
        }
        let bytes = message.encode().expect("a message").len();
        assert!(bytes < 400_000, "{bytes}");
    }
}
