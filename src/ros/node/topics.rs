//! The topics that the output thread publishes on.

use super::pose_messages::PoseMessages;
use super::publish::send;
use super::status::Status;
use crate::ros::middleware::{Middleware, MiddlewareError, Publish};
use crate::wire::Qos;
use crate::wire::messages::Message;
use crate::wire::messages::diagnostic::DiagnosticArray;
use crate::wire::messages::geometry::{PoseWithCovarianceStamped, TfMessage, TransformStamped};
use crate::wire::messages::nav::{Odometry, Path};
use crate::wire::messages::visualization::MarkerArray;
use std::sync::Arc;

/// Publishers.
pub struct Topics {
    /// `/tf`
    pub tf: Arc<dyn Publish>,
    /// `~/odometry`
    pub odometry: Box<dyn Publish>,
    /// `~/pose`
    pub pose: Box<dyn Publish>,
    /// `~/path`
    pub path: Box<dyn Publish>,
    /// `~/graph`
    pub graph: Box<dyn Publish>,
    /// `/diagnostics`
    pub diagnostics: Arc<dyn Publish>,
}

impl Topics {
    /// Advertises them.
    pub fn new(middleware: &dyn Middleware) -> Result<Self, MiddlewareError> {
        let advertise = |topic, kind, qos| middleware.advertise(topic, kind, qos);
        Ok(Self {
            tf: advertise("/tf", TfMessage::TYPE, Qos::reliable(100))?.into(),
            odometry: advertise("~/odometry", Odometry::TYPE, Qos::reliable(10))?,
            pose: advertise("~/pose", PoseWithCovarianceStamped::TYPE, Qos::reliable(10))?,
            path: advertise("~/path", Path::TYPE, Qos::latched(1))?,
            graph: advertise("~/graph", MarkerArray::TYPE, Qos::latched(1))?,
            diagnostics: advertise("/diagnostics", DiagnosticArray::TYPE, Qos::reliable(1))?.into(),
        })
    }
}

impl Topics {
    /// Publishes the messages of a frame.
    pub fn send(&self, messages: PoseMessages, status: &Status) {
        let both = [messages.odom_from_base, messages.map_from_odom];
        let transforms: Vec<TransformStamped> = both.into_iter().flatten().collect();
        if !transforms.is_empty() {
            send(self.tf.as_ref(), &TfMessage { transforms }, status);
        }
        if let Some(odometry) = &messages.odometry {
            send(self.odometry.as_ref(), odometry, status);
        }
        if let Some(pose) = &messages.pose {
            send(self.pose.as_ref(), pose, status);
        }
    }
}
