//! The device that is always there: the processor, in safe Rust. What it computes is the definition
//! of right for any other device.

mod edges;
mod exchange;
mod mapping;
mod places;
mod tracking;

use super::device::{Device, DeviceError};
use super::retrieval::RetrievalModel;
use crate::config::Config;
use crate::geometry::Intrinsics;
use crate::inference::Backend;
use exchange::Exchange;
use mapping::Mapping;
use std::sync::Arc;
use tracking::Tracking;

/// The processor as a device, with `backend` for the network. With intrinsics (of the network's input)
/// it works calibrated; without a retrieval model it knows no places.
pub fn device(
    backend: Box<dyn Backend>,
    config: &Arc<Config>,
    intrinsics: Option<Intrinsics>,
    model: Option<Arc<RetrievalModel>>,
) -> Device {
    let exchange = Arc::new(Exchange::default());
    let mapping = Mapping::new(
        backend.share(),
        Arc::clone(config),
        intrinsics,
        model,
        Arc::clone(&exchange),
    );
    let tracking = Tracking::new(backend, Arc::clone(config), intrinsics, exchange);
    Device {
        tracking: Box::new(tracking),
        mapping: Box::new(mapping),
    }
}

fn unknown(what: &'static str, id: u32) -> DeviceError {
    let device = "the CPU";
    DeviceError::Unknown { device, what, id }
}
