//! The device that is always there: the processor, in safe Rust. What it computes is the definition
//! of right for any other device.

mod camera;
mod edges;
mod exchange;
mod mapping;
mod places;
mod tracking;

use super::device::{Device, DeviceError, Setup};
use crate::inference::Backend;
use camera::Camera;
use exchange::Exchange;
use mapping::Mapping;
use std::sync::Arc;
use tracking::Tracking;

/// The processor as a device, with `backend` for the network.
pub fn device(backend: Box<dyn Backend>, setup: Setup) -> Device {
    let Setup {
        config,
        preprocessor,
        intrinsics,
        places,
    } = setup;
    let exchange = Arc::new(Exchange::default());
    let mapping = Mapping::new(
        backend.share(),
        Arc::clone(&config),
        intrinsics,
        places,
        Arc::clone(&exchange),
    );
    let camera = Camera::new(preprocessor, backend.shape());
    let tracking = Tracking::new(backend, config, intrinsics, camera, exchange);
    Device {
        tracking: Box::new(tracking),
        mapping: Box::new(mapping),
    }
}

/// What errors call it.
const NAME: &str = "the CPU";

fn unknown(what: &'static str, id: u32) -> DeviceError {
    let device = NAME;
    DeviceError::Unknown { device, what, id }
}
