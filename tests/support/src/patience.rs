//! How long a test waits for what must come.

use std::time::Duration;

/// So many seconds, times `MAST3R_TEST_PATIENCE` where that is set, as on an emulated processor.
///
/// # Panics
/// If it is set to something that is not a whole number from 1 on.
pub fn patience(seconds: u64) -> Duration {
    let factor = std::env::var("MAST3R_TEST_PATIENCE").map_or(1, |text| {
        let factor = text.parse().ok().filter(|factor| *factor > 0);
        factor.unwrap_or_else(|| panic!("MAST3R_TEST_PATIENCE is {text}, not a whole number"))
    });
    Duration::from_secs(seconds * factor)
}
