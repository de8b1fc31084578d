//! The SLAM system in a ray-cast room.

mod bounded;
mod covariance;
mod depth;
mod device;
mod economy;
mod failures;
mod false_loops;
mod live;
mod live_failures;
mod live_thread;
mod masks;
mod motion;
mod packed;
mod packed_faults;
mod room;
mod saved;
mod store;
