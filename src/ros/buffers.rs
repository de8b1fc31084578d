//! The limit on receive buffers of sockets, which bursts of images must fit.

/// Minimum size in bytes; below it, bursts of images are lost.
pub const RECEIVE_BUFFER: u64 = 2 << 20;

/// The limit is too low.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the kernel limits receive buffers to {limit} bytes, so raw images will be lost: run \
     `sudo sysctl -w net.core.rmem_max={RECEIVE_BUFFER}` (or use image_transport:=compressed)"
)]
pub struct SmallReceiveBuffers {
    /// Bytes.
    pub limit: u64,
}

/// The limit in bytes; `None` on systems other than Linux.
///
/// # Errors
/// If bursts of images do not fit.
pub fn check() -> Result<Option<u64>, SmallReceiveBuffers> {
    let limit = std::fs::read_to_string("/proc/sys/net/core/rmem_max");
    enough(limit.ok().and_then(|text| text.trim().parse::<u64>().ok()))
}

fn enough(limit: Option<u64>) -> Result<Option<u64>, SmallReceiveBuffers> {
    match limit {
        Some(limit) if limit < RECEIVE_BUFFER => Err(SmallReceiveBuffers { limit }),
        other => Ok(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linux_s_own_limit_is_too_low_and_the_error_says_the_remedy() {
        let error = enough(Some(212_992)).unwrap_err().to_string();
        for part in ["212992", "sudo sysctl -w net.core.rmem_max=2097152"] {
            assert!(error.contains(part), "{error}");
        }
        assert_eq!(enough(Some(2_097_152)), Ok(Some(2_097_152)));
        assert_eq!(enough(None), Ok(None));
    }
}
