//! The topics that the output thread publishes on, and how poses become messages.

use super::settings::Settings;
use super::status::Status;
use crate::map::EdgeKind;
use crate::ros::messages::geometry::{
    Covariance, Point, Pose, PoseStamped, PoseWithCovariance, PoseWithCovarianceStamped, TfMessage,
    Transform, TransformStamped, Twist, TwistWithCovariance, Vector3,
};
use crate::ros::messages::nav::{Odometry, Path};
use crate::ros::messages::visualization::{self as vis, Marker, MarkerArray};
use crate::ros::messages::{ColorRgba, Header, Message};
use crate::ros::middleware::{Middleware, MiddlewareError, Publish, Qos};
use crate::slam::PoseTable;
use crate::time::Stamp;
use nalgebra::{Isometry3, Vector3 as Vector};
use serde::Serialize;

/// Publishers.
pub struct Topics {
    /// `/tf`
    pub tf: Box<dyn Publish>,
    /// `~/odometry`
    pub odometry: Box<dyn Publish>,
    /// `~/pose`
    pub pose: Box<dyn Publish>,
    /// `~/path`
    pub path: Box<dyn Publish>,
    /// `~/graph`
    pub graph: Box<dyn Publish>,
    /// `/diagnostics`
    pub diagnostics: Box<dyn Publish>,
}

impl Topics {
    /// Advertises them.
    pub fn new(middleware: &dyn Middleware) -> Result<Self, MiddlewareError> {
        let advertise = |topic, kind, qos| middleware.advertise(topic, kind, qos);
        Ok(Self {
            tf: advertise("/tf", TfMessage::TYPE, Qos::reliable(100))?,
            odometry: advertise("~/odometry", Odometry::TYPE, Qos::reliable(10))?,
            pose: advertise("~/pose", PoseWithCovarianceStamped::TYPE, Qos::reliable(10))?,
            path: advertise("~/path", Path::TYPE, Qos::latched(1))?,
            graph: advertise("~/graph", MarkerArray::TYPE, Qos::latched(1))?,
            diagnostics: advertise(
                "/diagnostics",
                crate::ros::messages::diagnostic::DiagnosticArray::TYPE,
                Qos::reliable(1),
            )?,
        })
    }
}

/// Publishes a message; what the middleware refuses is counted and said.
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

/// A transform as a message.
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

/// `~/odometry`; `step` is the base's motion in `seconds`, seen from the base before it; the covariances are
/// those of pose and twist.
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
            // The twist is in the child frame, which at the stamp has turned by the step.
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

/// `~/path`: the robot at the keyframes of `submap`, the newest `settings.path_max_size`.
pub fn path(
    table: &PoseTable,
    submap: u32,
    settings: &Settings,
    map_from_world: &Isometry3<f64>,
    camera_from_base: &Isometry3<f64>,
) -> Path {
    let all = table.poses.iter().zip(&table.stamps).zip(&table.submaps);
    let own = all.filter(|(_, s)| **s == submap);
    let frame = settings.map_frame.as_str();
    let mut poses: Vec<PoseStamped> = own
        .map(|((pose, stamp), _)| PoseStamped {
            header: Header::new(*stamp, frame),
            pose: Pose::from(&(map_from_world * super::frames::rigid(pose) * camera_from_base)),
        })
        .collect();
    if settings.path_max_size > 0 {
        let surplus = poses.len().saturating_sub(settings.path_max_size);
        poses.drain(..surplus);
    }
    let header = poses.last().map_or_else(
        || Header::new(Stamp::default(), frame),
        |newest| newest.header.clone(),
    );
    Path { header, poses }
}

/// `~/graph`: keyframes as spheres, edges as lines, a colour for each kind.
pub fn graph(
    table: &PoseTable,
    submap: u32,
    frame: &str,
    map_from_world: &Isometry3<f64>,
) -> MarkerArray {
    let point = |id: u32| -> Option<Point> {
        let id = id as usize;
        let own = table.submaps.get(id).is_some_and(|s| *s == submap);
        let at = table.poses.get(id).filter(|_| own)?.translation;
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
    let keyframes = (0..table.poses.len() as u32).filter_map(point).collect();
    let lines = |wanted: &[EdgeKind]| -> Vec<Point> {
        let edges = table.edges.iter().filter(|e| wanted.contains(&e.kind));
        edges
            .filter_map(|e| Some([point(e.i)?, point(e.j)?]))
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
