//! The node's message types against rosbags' serialisation of the interface packages
//! (`tests/data/ros/make_messages.py`).

use mast3r_slam::wire::Payload;
use mast3r_slam::wire::messages::geometry::{PoseWithCovarianceStamped, TfMessage};
use mast3r_slam::wire::messages::nav::{OccupancyGrid, OccupancyGridUpdate, Odometry, Path};
use mast3r_slam::wire::messages::sensor::{CameraInfo, CompressedImage, Image, Imu, PointCloud2};
use mast3r_slam::wire::messages::visualization::MarkerArray;
use mast3r_slam::wire::messages::{Clock, Message, TriggerRequest, TriggerResponse};
use mast3r_slam::wire::messages::{diagnostic, lifecycle, parameter};
use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Deserialize)]
struct Case {
    r#type: String,
    values: Value,
    cdr: String,
}

fn bytes(hex: &str) -> Vec<u8> {
    let digit = |k: usize| u8::from_str_radix(&hex[k..k + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(digit).collect()
}

/// Matrices here are rows of columns where ROS has one array.
fn flat(value: &Value, out: &mut Vec<Value>) {
    match value {
        Value::Array(inner) => inner.iter().for_each(|v| flat(v, out)),
        other => out.push(other.clone()),
    }
}

fn same(at: &str, ours: &Value, theirs: &Value) {
    match (ours, theirs) {
        (Value::Object(a), Value::Object(b)) => {
            assert_eq!(a.len(), b.len(), "{at}: fields");
            for (name, theirs) in b {
                // A keyword of Rust.
                let name = if name == "type" { "kind" } else { name };
                let ours = a
                    .get(name)
                    .unwrap_or_else(|| panic!("{at}: no field {name}"));
                same(&format!("{at}.{name}"), ours, theirs);
            }
        }
        (Value::Array(_), Value::Array(_)) => {
            let (mut a, mut b) = (Vec::new(), Vec::new());
            flat(ours, &mut a);
            flat(theirs, &mut b);
            assert_eq!(a.len(), b.len(), "{at}: length");
            for (k, (a, b)) in a.iter().zip(&b).enumerate() {
                same(&format!("{at}[{k}]"), a, b);
            }
        }
        (Value::Number(a), Value::Number(b)) => {
            assert_eq!(a.as_f64(), b.as_f64(), "{at}");
        }
        _ => assert_eq!(ours, theirs, "{at}"),
    }
}

fn check<'de, M: Message + Serialize + Deserialize<'de>>(case: &Case, payload: &'de Payload) {
    let message = M::decode(payload).unwrap_or_else(|e| panic!("{}: {e}", case.r#type));
    same(
        &case.r#type,
        &serde_json::to_value(&message).unwrap(),
        &case.values,
    );
    assert_eq!(message.encode().unwrap(), payload.data, "{}", case.r#type);
}

#[test]
fn every_type_is_read_and_written_as_rosbags_does() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/ros/messages.json");
    let cases: Vec<Case> = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for case in &cases {
        let payload = Payload::from(bytes::Bytes::from(bytes(&case.cdr)));
        seen.insert(case.r#type.as_str());
        macro_rules! check_type {
            ($($kind:ty),* $(,)?) => {
                match case.r#type.as_str() {
                    $(<$kind as Message>::TYPE => check::<$kind>(case, &payload),)*
                    other => panic!("no type for {other}"),
                }
            };
        }
        check_type!(
            Image,
            CompressedImage,
            CameraInfo,
            PointCloud2,
            PoseWithCovarianceStamped,
            TfMessage,
            Odometry,
            Path,
            MarkerArray,
            diagnostic::DiagnosticArray,
            Clock,
            parameter::ParameterEvent,
            lifecycle::TransitionEvent,
            TriggerRequest,
            TriggerResponse,
            lifecycle::ChangeStateRequest,
            lifecycle::ChangeStateResponse,
            lifecycle::GetStateResponse,
            lifecycle::GetAvailableStatesResponse,
            lifecycle::GetAvailableTransitionsResponse,
            parameter::GetParametersRequest,
            parameter::GetParametersResponse,
            parameter::GetParameterTypesRequest,
            parameter::GetParameterTypesResponse,
            parameter::DescribeParametersRequest,
            parameter::DescribeParametersResponse,
            parameter::ListParametersRequest,
            parameter::ListParametersResponse,
            parameter::SetParametersRequest,
            parameter::SetParametersResponse,
            parameter::SetParametersAtomicallyRequest,
            parameter::SetParametersAtomicallyResponse,
            OccupancyGrid,
            OccupancyGridUpdate,
            Imu,
        );
    }
    assert_eq!(seen.len(), 35);
}
