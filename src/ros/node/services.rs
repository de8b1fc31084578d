//! The node's services.

use super::inbox::Order;
use super::lifecycle;
use super::shared::{Event, Shared};
use super::{Inner, Value};
use crate::map::saved;
use crate::map::store::{self, Kind};
use crate::ros::middleware::{MiddlewareError, Respond};
use crate::wire::Payload;
use crate::wire::messages::lifecycle::{
    ChangeStateRequest, ChangeStateResponse, GetAvailableStatesResponse,
    GetAvailableTransitionsResponse, GetStateResponse,
};
use crate::wire::messages::parameter::{
    DescribeParametersRequest, DescribeParametersResponse, GetParameterTypesRequest,
    GetParameterTypesResponse, GetParametersRequest, GetParametersResponse, ListParametersRequest,
    ListParametersResponse, ListParametersResult, NOT_SET, Parameter, ParameterDescriptor,
    ParameterValue, SetParametersAtomicallyRequest, SetParametersAtomicallyResponse,
    SetParametersRequest, SetParametersResponse, SetParametersResult,
};
use crate::wire::messages::{Message, TriggerResponse};
use serde::Serialize;
use serde_bytes::ByteBuf;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// A pending response. If dropped, it reports a failure.
struct Owed(Option<Respond>);

impl Owed {
    fn pay(mut self, success: bool, message: impl Into<String>) {
        self.send(success, message.into());
    }

    fn send(&mut self, success: bool, message: String) {
        if let Some(respond) = self.0.take() {
            answer(respond, &TriggerResponse { success, message });
        }
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        self.send(false, "the map cannot be read now; try again".into());
    }
}

fn answer<M: Message + Serialize>(respond: Respond, message: &M) {
    match message.encode() {
        Ok(data) => respond(data),
        Err(error) => tracing::error!("cannot send a reply: {error}"),
    }
}

/// Advertises the services.
pub fn serve(inner: &Arc<Inner>) -> Result<(), MiddlewareError> {
    parameters(inner)?;
    states(inner)?;
    trigger(inner, "~/reset", |_, shared, owed| {
        let ordered = shared
            .inbox
            .order(Order::Reset("~/reset was called".into()));
        owed.pay(
            ordered,
            if ordered {
                "a new map starts with the next image"
            } else {
                "too many commands are waiting; try again"
            },
        );
    })?;
    trigger(inner, "~/pause", |_, shared, owed| {
        shared.paused.store(true, Ordering::Release);
        owed.pay(true, "images are ignored until ~/resume");
    })?;
    trigger(inner, "~/resume", |_, shared, owed| {
        shared.paused.store(false, Ordering::Release);
        owed.pay(true, "images are processed again");
    })?;
    trigger(inner, "~/save_map", |_, shared, owed| save(shared, owed))?;
    trigger(inner, "~/load_map", |_, shared, owed| load(shared, owed))?;
    trigger(inner, "~/save_incident", |_, shared, owed| {
        let reply = move |written: Result<String, String>| match written {
            Ok(text) => owed.pay(true, text),
            Err(why) => owed.pay(false, why),
        };
        shared.incidents.request(Box::new(reply));
    })?;
    trigger(inner, "~/set_map_origin", |_, shared, owed| {
        set_map_origin(shared, owed);
    })?;
    trigger(inner, "~/set_mode_mapping", |inner, _, owed| {
        mode(inner, false, owed)
    })?;
    trigger(inner, "~/set_mode_localization", |inner, _, owed| {
        mode(inner, true, owed)
    })
}

/// A `std_srvs/Trigger` service of a configured node.
fn trigger(
    inner: &Arc<Inner>,
    name: &str,
    act: impl Fn(&Inner, &Arc<Shared>, Owed) + Send + 'static,
) -> Result<(), MiddlewareError> {
    let weak = Arc::downgrade(inner);
    let handler = move |_: Payload, respond: Respond| {
        let owed = Owed(Some(respond));
        let Some(inner) = weak.upgrade() else { return };
        let shared = inner
            .life()
            .running
            .as_ref()
            .map(|r| Arc::clone(r.shared()));
        match &shared {
            Some(shared) => act(&inner, shared, owed),
            None => owed.pay(false, "the node is not configured"),
        }
    };
    inner
        .middleware
        .serve(name, "std_srvs/srv/Trigger", Box::new(handler))
}

fn mode(inner: &Inner, localization_only: bool, owed: Owed) {
    let value = Value::Bool(localization_only).to_message();
    match inner.change(&[("localization_only", &value)]) {
        Ok(()) if localization_only => owed.pay(true, "the map is frozen"),
        Ok(()) => owed.pay(true, "the map grows again"),
        Err(error) => owed.pay(false, error.to_string()),
    }
}

/// How long the output thread may take to move the map.
const MOVE_PATIENCE: Duration = Duration::from_secs(2);

fn set_map_origin(shared: &Arc<Shared>, owed: Owed) {
    let (reply, moved) = sync_channel(1);
    shared.tell(Event::SetOrigin(reply));
    match moved.recv_timeout(MOVE_PATIENCE) {
        Ok(true) => owed.pay(
            true,
            "the map's origin is where the robot was in the last frame",
        ),
        Ok(false) => owed.pay(false, "no frame has been tracked in this map yet"),
        Err(_) => owed.pay(false, "the node is too busy; try again"),
    }
}

fn load(shared: &Arc<Shared>, owed: Owed) {
    let settings = shared.settings.load_full();
    if settings.map_path.is_empty() {
        return owed.pay(
            false,
            "map_path is empty; set it to a map's file or folder first",
        );
    }
    let file = saved::file_of(Path::new(&settings.map_path));
    let reply = Box::new(move |loaded: Result<String, String>| match loaded {
        Ok(told) => owed.pay(true, format!("{told}; relocalising in it")),
        Err(why) => owed.pay(false, why),
    });
    if !shared.inbox.order(Order::Load(file, reply)) {
        tracing::warn!("cannot load the map: too many commands are waiting");
    }
}

fn save(shared: &Arc<Shared>, owed: Owed) {
    let settings = shared.settings.load_full();
    if settings.map_path.is_empty() {
        return owed.pay(
            false,
            "map_path is empty; set it to a folder, or a file that ends in .map, first",
        );
    }
    if shared.poses.load().is_none() {
        return owed.pay(false, "there is no map yet");
    }
    if settings.map_root.is_empty() {
        return owed.pay(
            false,
            "the node was started without map_path and map_root, so it writes no maps; start it with one of them",
        );
    }
    let path = PathBuf::from(&settings.map_path);
    let why = match store::kind_of(&saved::file_of(&path)) {
        Ok(Kind::Store) => "map_path is a map that is written as it is made",
        Ok(Kind::Packed) => "map_path is a packed map, which stays as it is",
        _ => "",
    };
    if !why.is_empty() {
        let instead = "for a copy, set map_path to a file of another name";
        return owed.pay(false, format!("{why}; {instead}"));
    }
    let file = match saved::target_in(Path::new(&settings.map_root), &path) {
        Ok(file) => file,
        Err(error) => return owed.pay(false, error.to_string()),
    };
    if let Some(folder) = file.parent()
        && let Err(error) = crate::files::export::create_folder(folder)
    {
        return owed.pay(false, error.to_string());
    }
    let order = Order::Save {
        results: (file != path).then_some(path),
        file,
        reply: Box::new(move |saved: Result<String, String>| match saved {
            Ok(text) => owed.pay(true, text),
            Err(why) => owed.pay(false, why),
        }),
    };
    if !shared.inbox.order(order) {
        tracing::warn!("cannot save the map: too many commands are waiting");
    }
}

/// A service that responds immediately.
fn query<Q, A>(
    inner: &Arc<Inner>,
    name: &str,
    type_name: &'static str,
    act: impl Fn(&Inner, Q) -> A + Send + 'static,
) -> Result<(), MiddlewareError>
where
    Q: FromRequest,
    A: Message + Serialize,
{
    let weak: Weak<Inner> = Arc::downgrade(inner);
    let handler = move |request: Payload, respond: Respond| {
        let Some(inner) = weak.upgrade() else { return };
        match Q::from_request(&request) {
            Ok(request) => answer(respond, &act(&inner, request)),
            Err(error) => tracing::warn!("cannot answer a request: {error}"),
        }
    };
    inner.middleware.serve(name, type_name, Box::new(handler))
}

/// Parsed form of a request; a request without fields is not parsed.
trait FromRequest: Sized {
    fn from_request(payload: &Payload) -> Result<Self, crate::wire::cdr::CdrError>;
}

impl FromRequest for () {
    fn from_request(_: &Payload) -> Result<Self, crate::wire::cdr::CdrError> {
        Ok(())
    }
}

macro_rules! requests {
    ($($name:ident),*) => {$(
        impl FromRequest for $name {
            fn from_request(payload: &Payload) -> Result<Self, crate::wire::cdr::CdrError> {
                Self::decode(payload)
            }
        }
    )*};
}
requests!(
    ChangeStateRequest,
    GetParametersRequest,
    GetParameterTypesRequest,
    DescribeParametersRequest,
    ListParametersRequest,
    SetParametersRequest,
    SetParametersAtomicallyRequest
);

fn states(inner: &Arc<Inner>) -> Result<(), MiddlewareError> {
    query(
        inner,
        "~/change_state",
        "lifecycle_msgs/srv/ChangeState",
        |inner, request: ChangeStateRequest| {
            let mut life = inner.life();
            let done = match life.state.requested(&request.transition) {
                Some(step) => inner.take(&mut life, step).is_ok(),
                None => {
                    let (asked, state) = (&request.transition, life.state.message().label);
                    tracing::warn!(
                        "transition {} {:?} is not possible while {state}",
                        asked.id,
                        asked.label
                    );
                    false
                }
            };
            ChangeStateResponse { success: done }
        },
    )?;
    query(
        inner,
        "~/get_state",
        "lifecycle_msgs/srv/GetState",
        |inner, ()| GetStateResponse {
            current_state: inner.life().state.message(),
        },
    )?;
    query(
        inner,
        "~/get_available_states",
        "lifecycle_msgs/srv/GetAvailableStates",
        |_, ()| GetAvailableStatesResponse {
            available_states: lifecycle::states(),
        },
    )?;
    query(
        inner,
        "~/get_available_transitions",
        "lifecycle_msgs/srv/GetAvailableTransitions",
        |inner, ()| GetAvailableTransitionsResponse {
            available_transitions: inner.life().state.available(),
        },
    )?;
    query(
        inner,
        "~/get_transition_graph",
        "lifecycle_msgs/srv/GetAvailableTransitions",
        |_, ()| GetAvailableTransitionsResponse {
            available_transitions: lifecycle::graph(),
        },
    )
}

fn parameters(inner: &Arc<Inner>) -> Result<(), MiddlewareError> {
    query(
        inner,
        "~/get_parameters",
        "rcl_interfaces/srv/GetParameters",
        |inner, request: GetParametersRequest| {
            let table = inner.table();
            let value = |name: &String| {
                let found = table.get(name).map(|(_, value)| value.to_message());
                found.unwrap_or_else(ParameterValue::default)
            };
            GetParametersResponse {
                values: request.names.iter().map(value).collect(),
            }
        },
    )?;
    query(
        inner,
        "~/get_parameter_types",
        "rcl_interfaces/srv/GetParameterTypes",
        |inner, request: GetParameterTypesRequest| {
            let table = inner.table();
            let kind = |name: &String| {
                table
                    .get(name)
                    .map_or(NOT_SET, |(_, v)| v.to_message().kind)
            };
            let types: Vec<u8> = request.names.iter().map(kind).collect();
            GetParameterTypesResponse {
                types: ByteBuf::from(types),
            }
        },
    )?;
    query(
        inner,
        "~/describe_parameters",
        "rcl_interfaces/srv/DescribeParameters",
        |inner, request: DescribeParametersRequest| {
            let table = inner.table();
            let descriptor = |name: &String| match table.get(name) {
                Some((definition, _)) => definition.descriptor(),
                None => ParameterDescriptor {
                    name: name.clone(),
                    ..Default::default()
                },
            };
            DescribeParametersResponse {
                descriptors: request.names.iter().map(descriptor).collect(),
            }
        },
    )?;
    query(
        inner,
        "~/list_parameters",
        "rcl_interfaces/srv/ListParameters",
        |inner, request: ListParametersRequest| {
            let below = |name: &str, prefix: &str| {
                let rest = name.strip_prefix(prefix);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            };
            let wanted = |name: &&str| {
                request.prefixes.is_empty() || request.prefixes.iter().any(|p| below(name, p))
            };
            let table = inner.table();
            let names: Vec<String> = table.names().filter(wanted).map(str::to_owned).collect();
            let mut prefixes: Vec<String> = names
                .iter()
                .filter_map(|name| Some(name.rsplit_once('.')?.0.to_owned()))
                .collect();
            prefixes.dedup();
            ListParametersResponse {
                result: ListParametersResult { names, prefixes },
            }
        },
    )?;
    query(
        inner,
        "~/set_parameters",
        "rcl_interfaces/srv/SetParameters",
        |inner, request: SetParametersRequest| {
            let one = |parameter: &Parameter| set(inner, std::slice::from_ref(parameter));
            SetParametersResponse {
                results: request.parameters.iter().map(one).collect(),
            }
        },
    )?;
    query(
        inner,
        "~/set_parameters_atomically",
        "rcl_interfaces/srv/SetParametersAtomically",
        |inner, request: SetParametersAtomicallyRequest| SetParametersAtomicallyResponse {
            result: set(inner, &request.parameters),
        },
    )
}

fn set(inner: &Inner, parameters: &[Parameter]) -> SetParametersResult {
    let changes: Vec<_> = parameters
        .iter()
        .map(|p| (p.name.as_str(), &p.value))
        .collect();
    match inner.change(&changes) {
        Ok(()) => SetParametersResult {
            successful: true,
            reason: String::new(),
        },
        Err(error) => SetParametersResult {
            successful: false,
            reason: error.to_string(),
        },
    }
}
