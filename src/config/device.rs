//! The settings of a device.

use super::{
    Config, GlobalOptConfig, Loops, MatchingConfig, MemoryConfig, RetrievalConfig, TrackingConfig,
};

/// Confidence of measured points over the minimum of the outputs: averages and half precision round.
const OVER_OUTPUTS: f32 = 1.25;

/// The part of [`Config`] that a device needs.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceConfig {
    /// Pixel matching.
    pub matching: MatchingConfig,
    /// Frame-to-keyframe tracking.
    pub tracking: TrackingConfig,
    /// Whether frames may have depth.
    pub depth: bool,
    /// Minimum confidence of points that agree with measured depth: the outputs have them, however uncertain the network
    /// was.
    pub measured_confidence: f32,
    /// Global optimisation.
    pub local_opt: GlobalOptConfig,
    /// Place recognition.
    pub retrieval: RetrievalConfig,
    /// GPU memory.
    pub memory: MemoryConfig,
    /// Whether loops are closed, which needs the place database.
    pub loops: Loops,
    /// Width of the network's images in pixels; the memory plan proposes a lower one.
    pub network_size: usize,
}

impl Default for DeviceConfig {
    fn default() -> Self {
        Self::from(&Config::default())
    }
}

impl From<&Config> for DeviceConfig {
    fn from(config: &Config) -> Self {
        Self {
            matching: config.matching.clone(),
            tracking: config.tracking.clone(),
            depth: config.depth.enabled,
            measured_confidence: OVER_OUTPUTS * config.output.c_conf,
            local_opt: config.local_opt.clone(),
            retrieval: config.retrieval.clone(),
            memory: config.memory.clone(),
            loops: config.loops,
            network_size: config.network.size,
        }
    }
}
