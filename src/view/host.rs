//! The state of the program around SLAM.

/// The run or the node.
pub trait Host: Send + Sync {
    /// Its state, read at each scrape.
    fn report(&self) -> HostReport;
}

/// The state of a program.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HostReport {
    /// In words; `None`: the tracking state says it.
    pub state: Option<String>,
    /// Why it does not work, if it does not.
    pub failure: Option<String>,
    /// Images, poses and messages that were left out: the reason, and how many.
    pub drops: Vec<(&'static str, u64)>,
}
