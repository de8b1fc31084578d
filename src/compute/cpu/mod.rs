//! The CPU device, in safe Rust. Its results are the reference for every other device.

mod camera;
mod depth;
mod edges;
mod hand_off;
mod mapping;
mod places;
mod tracking;

use super::device::{Device, DeviceError, Setup};
use crate::inference::Backend;
use camera::Camera;
use hand_off::HandOff;
use mapping::Mapping;
use std::sync::Arc;
use tracking::Tracking;

/// A CPU device that runs the network with `backend`.
pub fn device(backend: Box<dyn Backend>, setup: Setup) -> Device {
    let Setup {
        config,
        preprocessor,
        intrinsics,
        places,
    } = setup;
    let hand_off = Arc::new(HandOff::default());
    let mapping = Mapping::new(
        backend.share(),
        Arc::clone(&config),
        intrinsics,
        places,
        Arc::clone(&hand_off),
    );
    let camera = Camera::new(preprocessor, backend.shape());
    let tracking = Tracking::new(backend, config, intrinsics, camera, hand_off);
    Device {
        tracking: Box::new(tracking),
        mapping: Box::new(mapping),
    }
}

/// Name used in errors.
const NAME: &str = "the CPU";

fn unknown(what: &'static str, id: u32) -> DeviceError {
    let device = NAME;
    DeviceError::Unknown { device, what, id }
}
