//! What the program around SLAM tells of itself.

/// The run or the node.
pub trait Host: Send + Sync {
    /// What it is at, asked at each scrape.
    fn report(&self) -> HostReport;
}

/// What a program is at.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HostReport {
    /// In words; `None`: the tracking state says it.
    pub state: Option<String>,
    /// Why it does not work, if it does not.
    pub failure: Option<String>,
    /// Images, poses and messages that were left out: the reason, and how many.
    pub drops: Vec<(&'static str, u64)>,
}
