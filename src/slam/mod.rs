//! The SLAM system: tracker, keyframes, factor graph, retrieval, relocalisation, state machine.

pub mod retrieval;
