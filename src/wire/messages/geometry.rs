//! geometry_msgs and tf2_msgs.

use super::{Header, messages};
use nalgebra::{Isometry3, Quaternion, Translation3, UnitQuaternion};

/// Row-major covariance of x, y, z and the rotations about x, y, z.
pub type Covariance = [[f64; 6]; 6];

messages! {
    Vector3 = "geometry_msgs/msg/Vector3" { x: f64, y: f64, z: f64 }
    Point = "geometry_msgs/msg/Point" { x: f64, y: f64, z: f64 }
    Orientation = "geometry_msgs/msg/Quaternion" { x: f64 = "0", y: f64 = "0", z: f64 = "0", w: f64 = "1" }
    Transform = "geometry_msgs/msg/Transform" { translation: Vector3, rotation: Orientation }
    TransformStamped = "geometry_msgs/msg/TransformStamped" {
        header: Header,
        child_frame_id: String,
        transform: Transform,
    }
    TfMessage = "tf2_msgs/msg/TFMessage" { transforms: Vec<TransformStamped> }
    Pose = "geometry_msgs/msg/Pose" { position: Point, orientation: Orientation }
    PoseStamped = "geometry_msgs/msg/PoseStamped" { header: Header, pose: Pose }
    PoseWithCovariance = "geometry_msgs/msg/PoseWithCovariance" { pose: Pose, covariance: Covariance }
    PoseWithCovarianceStamped = "geometry_msgs/msg/PoseWithCovarianceStamped" {
        header: Header,
        pose: PoseWithCovariance,
    }
    Twist = "geometry_msgs/msg/Twist" { linear: Vector3, angular: Vector3 }
    TwistWithCovariance = "geometry_msgs/msg/TwistWithCovariance" { twist: Twist, covariance: Covariance }
}

impl From<&Isometry3<f64>> for Transform {
    fn from(t: &Isometry3<f64>) -> Self {
        let (v, q) = (t.translation.vector, t.rotation.quaternion());
        Self {
            translation: Vector3 {
                x: v.x,
                y: v.y,
                z: v.z,
            },
            rotation: Orientation {
                x: q.i,
                y: q.j,
                z: q.k,
                w: q.w,
            },
        }
    }
}

impl From<&Isometry3<f64>> for Pose {
    fn from(t: &Isometry3<f64>) -> Self {
        let Transform {
            translation: v,
            rotation,
        } = t.into();
        Self {
            position: Point {
                x: v.x,
                y: v.y,
                z: v.z,
            },
            orientation: rotation,
        }
    }
}

impl Transform {
    /// `None` for non-finite numbers or a quaternion that is not a rotation.
    pub fn isometry(&self) -> Option<Isometry3<f64>> {
        isometry(
            [self.translation.x, self.translation.y, self.translation.z],
            &self.rotation,
        )
    }
}

impl Pose {
    /// `None` for non-finite numbers or a quaternion that is not a rotation.
    pub fn isometry(&self) -> Option<Isometry3<f64>> {
        isometry(
            [self.position.x, self.position.y, self.position.z],
            &self.orientation,
        )
    }
}

fn isometry(v: [f64; 3], q: &Orientation) -> Option<Isometry3<f64>> {
    let rotation = Quaternion::new(q.w, q.x, q.y, q.z);
    let norm = rotation.norm();
    // tf2 tolerates the same deviation from a unit quaternion.
    let fine = v.iter().all(|v| v.is_finite()) && (norm - 1.0).abs() < 1e-2;
    fine.then(|| {
        let rotation = UnitQuaternion::from_quaternion(rotation);
        Isometry3::from_parts(Translation3::new(v[0], v[1], v[2]), rotation)
    })
}
