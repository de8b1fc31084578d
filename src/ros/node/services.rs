//! The node's services.

use super::engine::EngineError;
use super::inbox::Order;
use super::lifecycle;
use super::shared::Shared;
use super::{Inner, Settings, Value};
use crate::map::{MapSnapshot, saved};
use crate::ros::messages::lifecycle::{
    ChangeStateRequest, ChangeStateResponse, GetAvailableStatesResponse,
    GetAvailableTransitionsResponse, GetStateResponse,
};
use crate::ros::messages::parameter::{
    DescribeParametersRequest, DescribeParametersResponse, GetParameterTypesRequest,
    GetParameterTypesResponse, GetParametersRequest, GetParametersResponse, ListParametersRequest,
    ListParametersResponse, ListParametersResult, NOT_SET, Parameter, ParameterDescriptor,
    ParameterValue, SetParametersAtomicallyRequest, SetParametersAtomicallyResponse,
    SetParametersRequest, SetParametersResponse, SetParametersResult,
};
use crate::ros::messages::{Message, TriggerResponse};
use crate::ros::middleware::{MiddlewareError, Payload, Respond};
use crate::slam::SavedMap;
use serde::Serialize;
use serde_bytes::ByteBuf;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};

/// An answer that is owed. Dropped unanswered, it says so.
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
        self.send(false, "the map could not be read now; try again".into());
    }
}

fn answer<M: Message + Serialize>(respond: Respond, message: &M) {
    match message.encode() {
        Ok(data) => respond(data),
        Err(error) => tracing::error!("a reply could not be sent: {error}"),
    }
}

/// Starts to answer.
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
                "a new map begins with the next image"
            } else {
                "too much is waiting"
            },
        );
    })?;
    trigger(inner, "~/pause", |_, shared, owed| {
        shared.paused.store(true, Ordering::Release);
        owed.pay(true, "images are ignored until ~/resume");
    })?;
    trigger(inner, "~/resume", |_, shared, owed| {
        shared.paused.store(false, Ordering::Release);
        owed.pay(true, "images are looked at");
    })?;
    trigger(inner, "~/save_map", |_, shared, owed| save(shared, owed))?;
    trigger(inner, "~/load_map", |_, shared, owed| load(shared, owed))?;
    trigger(inner, "~/set_mode_mapping", |inner, _, owed| {
        mode(inner, false, owed)
    })?;
    trigger(inner, "~/set_mode_localization", |inner, _, owed| {
        mode(inner, true, owed)
    })
}

/// A `std_srvs/Trigger` of a configured node.
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
        Ok(()) if localization_only => owed.pay(true, "the map is not extended any more"),
        Ok(()) => owed.pay(true, "the map is extended"),
        Err(error) => owed.pay(false, error.to_string()),
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
        Ok(told) => owed.pay(true, format!("{told}; the camera is looked for in it")),
        Err(why) => owed.pay(false, why),
    });
    if !shared.inbox.order(Order::Load(file, reply)) {
        tracing::warn!("the map is not loaded: too much is waiting");
    }
}

type Saved = Result<SavedMap, EngineError>;

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
    let path = PathBuf::from(&settings.map_path);
    let file = saved::file_of(&path);
    if let Some(folder) = file.parent()
        && let Err(error) = crate::map::atomic::create_folder(folder)
    {
        return owed.pay(false, error.to_string());
    }
    let ordered = if file == path {
        let reply = Box::new(move |saved: Saved| match saved {
            Ok(map) => owed.pay(true, map.to_string()),
            Err(error) => owed.pay(false, error.to_string()),
        });
        shared.inbox.order(Order::Save(file, reply))
    } else {
        save_with_results(shared, file, owed)
    };
    if !ordered {
        tracing::warn!("the map is not saved: too much is waiting");
    }
}

/// Saves the map into a file, and into the folder around it what a run writes.
fn save_with_results(shared: &Arc<Shared>, file: PathBuf, owed: Owed) -> bool {
    let settings = shared.settings.load_full();
    let outcome: Arc<Mutex<Option<Saved>>> = Arc::default();
    let saved = Arc::clone(&outcome);
    let keep = Box::new(move |result: Saved| {
        *saved.lock().unwrap_or_else(|e| e.into_inner()) = Some(result);
    });
    let factory = Arc::clone(&shared.factory);
    let reply = Box::new(move |map: MapSnapshot| {
        // Writing takes seconds, and this is the mapping thread.
        let write = move || write(factory.as_ref(), &settings, &map, &outcome, owed);
        if let Err(error) = std::thread::Builder::new()
            .name("save-map".into())
            .spawn(write)
        {
            tracing::error!("the map's results are not written: {error}");
        }
    });
    // One after the other in the mapping thread.
    shared.inbox.order(Order::Save(file, keep)) && shared.inbox.order(Order::Map(reply))
}

fn write(
    factory: &dyn super::EngineFactory,
    settings: &Settings,
    map: &MapSnapshot,
    saved: &Mutex<Option<Saved>>,
    owed: Owed,
) {
    let folder = PathBuf::from(&settings.map_path);
    let results = factory.save(settings, map, &folder);
    let saved = saved.lock().unwrap_or_else(|e| e.into_inner()).take();
    match (saved, results) {
        (Some(Ok(map)), Ok(written)) => owed.pay(true, format!("{map}; {written}")),
        (Some(Err(error)), _) | (_, Err(error)) => owed.pay(false, error.to_string()),
        (None, Ok(written)) => owed.pay(false, format!("no map file was written; {written}")),
    }
}

/// A service whose answer is there at once.
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
            Err(error) => tracing::warn!("a request is not answered: {error}"),
        }
    };
    inner.middleware.serve(name, type_name, Box::new(handler))
}

/// What a request becomes; one without fields is not looked at.
trait FromRequest: Sized {
    fn from_request(payload: &Payload) -> Result<Self, crate::ros::cdr::CdrError>;
}

impl FromRequest for () {
    fn from_request(_: &Payload) -> Result<Self, crate::ros::cdr::CdrError> {
        Ok(())
    }
}

macro_rules! requests {
    ($($name:ident),*) => {$(
        impl FromRequest for $name {
            fn from_request(payload: &Payload) -> Result<Self, crate::ros::cdr::CdrError> {
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
            let wanted = |name: &&str| {
                request.prefixes.is_empty() || request.prefixes.iter().any(|p| p == name)
            };
            let table = inner.table();
            let names = table.names().filter(wanted).map(str::to_owned).collect();
            ListParametersResponse {
                // No name of this node has a dot, so there are no prefixes to list.
                result: ListParametersResult {
                    names,
                    prefixes: Vec::new(),
                },
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
