//! The node's parameters and lifecycle, as `ros2 param` and a lifecycle manager ask for them.

use crate::support::Room;
use crate::support::memory::Memory;
use crate::support::stage::arguments;
use bytes::Bytes;
use mast3r_slam::ros::node::Node;
use mast3r_slam::wire::messages::lifecycle::{
    ChangeStateRequest, ChangeStateResponse, GetAvailableStatesResponse,
    GetAvailableTransitionsResponse, GetStateResponse, Transition, TransitionEvent,
};
use mast3r_slam::wire::messages::parameter::{
    BOOL, DOUBLE, DescribeParametersRequest, DescribeParametersResponse, GetParameterTypesRequest,
    GetParameterTypesResponse, GetParametersRequest, GetParametersResponse, INTEGER,
    ListParametersRequest, ListParametersResponse, NOT_SET, Parameter, ParameterEvent,
    ParameterValue, STRING, SetParametersAtomicallyRequest, SetParametersAtomicallyResponse,
    SetParametersRequest, SetParametersResponse,
};
use mast3r_slam::wire::messages::{Message, TriggerResponse};
use std::sync::Arc;

fn start(parameters: &[&str]) -> (Memory, Node) {
    let graph = Memory::new();
    let args = arguments(&parameters.join(" "));
    let node = Node::start(Arc::new(graph.clone()), Room::default().builder(), &args);
    (graph, node.unwrap())
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|n| (*n).to_owned()).collect()
}

fn text(value: &str) -> ParameterValue {
    ParameterValue {
        kind: STRING,
        string_value: value.into(),
        ..Default::default()
    }
}

fn number(value: f64) -> ParameterValue {
    ParameterValue {
        kind: DOUBLE,
        double_value: value,
        ..Default::default()
    }
}

fn parameter(name: &str, value: ParameterValue) -> Parameter {
    Parameter {
        name: name.into(),
        value,
    }
}

fn state(graph: &Memory) -> String {
    graph
        .call::<GetStateResponse>("/slam/get_state", Bytes::new())
        .current_state
        .label
}

fn change(graph: &Memory, id: u8) -> bool {
    let request = ChangeStateRequest {
        transition: Transition {
            id,
            label: String::new(),
        },
    };
    graph
        .call::<ChangeStateResponse>("/slam/change_state", request.encode().unwrap())
        .success
}

#[test]
fn every_parameter_is_listed_described_and_has_a_value() {
    let (graph, _node) = start(&[]);
    let list = ListParametersRequest::default().encode().unwrap();
    let list: ListParametersResponse = graph.call("/slam/list_parameters", list);
    let all = list.result.names;
    for name in [
        "config",
        "weights",
        "backend",
        "device",
        "map_frame",
        "odom_frame",
        "base_frame",
        "camera_optical_frame",
        "publish_map_to_odom_tf",
        "publish_odom_to_base_tf",
        "publish_when_lost",
        "image_transport",
        "image_qos",
        "camera_info_qos",
        "max_rate",
        "use_calib",
        "map_path",
        "load_map_on_start",
        "localization_only",
        "max_keyframes",
        "map_voxel_size",
        "map_publish_period",
        "path_max_size",
        "threads",
        "cloud_chunk_bytes",
        "use_sim_time",
        "slam.tracking.Q_conf",
        "slam.use_calib",
        "slam.network.backend",
    ] {
        assert!(all.iter().any(|n| n == name), "{name}");
    }
    let request = DescribeParametersRequest { names: all.clone() }
        .encode()
        .unwrap();
    let described: DescribeParametersResponse = graph.call("/slam/describe_parameters", request);
    let request = GetParametersRequest { names: all.clone() }
        .encode()
        .unwrap();
    let values: GetParametersResponse = graph.call("/slam/get_parameters", request);
    let request = GetParameterTypesRequest { names: all.clone() }
        .encode()
        .unwrap();
    let types: GetParameterTypesResponse = graph.call("/slam/get_parameter_types", request);
    assert_eq!(
        (
            described.descriptors.len(),
            values.values.len(),
            types.types.len()
        ),
        (all.len(), all.len(), all.len())
    );
    for (k, name) in all.iter().enumerate() {
        let descriptor = &described.descriptors[k];
        assert_eq!(&descriptor.name, name);
        assert!(!descriptor.description.is_empty(), "{name}");
        assert_eq!(
            (descriptor.kind, types.types[k]),
            (values.values[k].kind, values.values[k].kind),
            "{name}"
        );
        assert!(
            [BOOL, INTEGER, DOUBLE, STRING].contains(&descriptor.kind),
            "{name}"
        );
    }
    let request = GetParametersRequest {
        names: names(&["max_rate", "nonsense"]),
    }
    .encode()
    .unwrap();
    let values: GetParametersResponse = graph.call("/slam/get_parameters", request);
    assert_eq!(
        (values.values[0].kind, values.values[1].kind),
        (DOUBLE, NOT_SET)
    );
}

#[test]
fn parameters_are_set_one_by_one_or_all_together_and_told() {
    let (graph, _node) = start(&["max_rate:=10"]);
    let request = SetParametersRequest {
        parameters: vec![
            parameter("max_rate", number(20.0)),
            parameter("device", text("cuda")),
            parameter("nonsense", number(1.0)),
            parameter("map_voxel_size", number(-1.0)),
            parameter("map_path", text("/maps/a")),
        ],
    };
    let answer: SetParametersResponse =
        graph.call("/slam/set_parameters", request.encode().unwrap());
    let fine: Vec<bool> = answer.results.iter().map(|r| r.successful).collect();
    assert_eq!(fine, [true, false, false, false, true]);
    assert!(
        answer.results[1].reason.contains("unconfigured"),
        "{}",
        answer.results[1].reason
    );
    assert!(answer.results[2].reason.contains("nonsense"));
    assert!(answer.results[3].reason.contains("from 0 to 10"));

    let together = SetParametersAtomicallyRequest {
        parameters: vec![
            parameter("max_rate", number(5.0)),
            parameter("map_voxel_size", number(-1.0)),
        ],
    };
    let answer: SetParametersAtomicallyResponse = graph.call(
        "/slam/set_parameters_atomically",
        together.encode().unwrap(),
    );
    assert!(!answer.result.successful);
    let request = GetParametersRequest {
        names: names(&["max_rate", "map_path"]),
    }
    .encode()
    .unwrap();
    let values: GetParametersResponse = graph.call("/slam/get_parameters", request);
    assert_eq!(values.values, [number(20.0), text("/maps/a")]);

    let events: Vec<ParameterEvent> = graph.sent("/parameter_events");
    let changed: Vec<_> = events
        .iter()
        .flat_map(|e| &e.changed_parameters)
        .map(|p| p.name.as_str())
        .collect();
    assert_eq!(changed, ["max_rate", "map_path"]);
    assert!(events.iter().all(|e| e.node == "/slam"));
}

#[test]
fn a_manager_leads_the_node_through_its_life() {
    let (graph, _node) = start(&["autostart:=false"]);
    assert_eq!(state(&graph), "unconfigured");
    assert!(!graph.subscribed("/image"));
    let pause: TriggerResponse = graph.call("/slam/pause", Bytes::new());
    assert!(!pause.success);
    assert!(!change(&graph, 3), "activated without being configured");
    // Parameters that are fixed later can be changed now.
    let request = SetParametersRequest {
        parameters: vec![parameter("weights", text("missing"))],
    }
    .encode()
    .unwrap();
    let answer: SetParametersResponse = graph.call("/slam/set_parameters", request);
    assert!(answer.results[0].successful);
    assert!(!change(&graph, 1), "configured without weights");
    assert_eq!(state(&graph), "unconfigured");
    let request = SetParametersRequest {
        parameters: vec![parameter("weights", text(""))],
    }
    .encode()
    .unwrap();
    let answer: SetParametersResponse = graph.call("/slam/set_parameters", request);
    assert!(answer.results[0].successful);
    for (id, label, subscribed) in [
        (1, "inactive", true),
        (3, "active", true),
        (4, "inactive", true),
        (2, "unconfigured", false),
        (1, "inactive", true),
        (3, "active", true),
        (7, "finalized", false),
    ] {
        let offered: GetAvailableTransitionsResponse =
            graph.call("/slam/get_available_transitions", Bytes::new());
        assert!(
            offered
                .available_transitions
                .iter()
                .any(|t| t.transition.id == id),
            "{id}"
        );
        assert!(change(&graph, id), "{id}");
        assert_eq!(
            (state(&graph).as_str(), graph.subscribed("/image")),
            (label, subscribed),
            "after {id}"
        );
    }
    assert!(!change(&graph, 1), "configured after the end");
    let states: GetAvailableStatesResponse = graph.call("/slam/get_available_states", Bytes::new());
    assert_eq!(states.available_states.len(), 11);
    let whole: GetAvailableTransitionsResponse =
        graph.call("/slam/get_transition_graph", Bytes::new());
    assert_eq!(whole.available_transitions.len(), 7);
    let events: Vec<TransitionEvent> = graph.sent("/slam/transition_event");
    let seen: Vec<_> = events
        .iter()
        .map(|e| (e.start_state.id, e.goal_state.id))
        .collect();
    assert_eq!(seen[..4], [(1, 10), (10, 1), (1, 10), (10, 2)]);
    assert_eq!(seen[seen.len() - 2..], [(3, 12), (12, 4)]);
}

#[test]
fn started_as_any_node_it_is_active_at_once() {
    let (graph, _node) = start(&[]);
    assert_eq!(state(&graph), "active");
}

#[test]
fn invalid_requests_are_not_answered_and_end_nothing() {
    let (graph, _node) = start(&[]);
    let broken = Bytes::from_static(&[255; 7]);
    let asked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        graph
            .clone()
            .call::<SetParametersResponse>("/slam/set_parameters", broken)
    }));
    assert!(asked.is_err(), "an answer to nonsense");
    drop(graph);
}

#[test]
fn keys_of_the_configuration_are_parameters_and_former_names_are_taken() {
    let (graph, _node) = start(&[
        "slam.tracking.Q_conf:=0.75",
        "keyframe_capacity:=7",
        "use_calibration:=false",
    ]);
    let request = GetParametersRequest {
        names: names(&[
            "slam.tracking.Q_conf",
            "max_keyframes",
            "use_calib",
            "keyframe_capacity",
            "slam.local_opt.max_keyframes",
            "slam.network.size",
        ]),
    };
    let values: GetParametersResponse =
        graph.call("/slam/get_parameters", request.encode().unwrap());
    let [q_conf, keyframes, calib, former, in_effect, size] = &values.values[..] else {
        panic!("{values:?}");
    };
    assert_eq!((q_conf.kind, q_conf.double_value), (DOUBLE, 0.75));
    assert_eq!((keyframes.kind, keyframes.integer_value), (INTEGER, 7));
    assert_eq!((calib.kind, calib.bool_value), (BOOL, false));
    assert_eq!(former.integer_value, 7);
    // What is in effect, whichever parameter it comes from.
    assert_eq!((in_effect.integer_value, size.integer_value), (7, 128));
    let request = ListParametersRequest {
        prefixes: names(&["slam.reloc"]),
        ..Default::default()
    };
    let listed: ListParametersResponse =
        graph.call("/slam/list_parameters", request.encode().unwrap());
    assert!(!listed.result.names.is_empty());
    assert!(
        listed
            .result
            .names
            .iter()
            .all(|n| n.starts_with("slam.reloc."))
    );
    assert_eq!(listed.result.prefixes, ["slam.reloc"]);
}
