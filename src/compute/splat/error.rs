//! Errors of the Gaussian map.

/// The underlying error of a device.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// An error of the Gaussian map. After [`SplatError::Corrupt`] and [`SplatError::Device`] the map must not be used
/// again; every other error leaves it as it was.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the text of an error names its fields")]
pub enum SplatError {
    /// The rows to append do not fit.
    #[error(
        "{rows} more rows do not fit: the Gaussian map holds {held} of at most {capacity}; raise splat.capacity"
    )]
    Full { rows: u64, held: u64, capacity: u64 },
    /// The capacity or the degree cannot be used.
    #[error("splat.{name} is {found}, expected {expected}")]
    Setting {
        name: &'static str,
        found: u64,
        expected: &'static str,
    },
    /// The memory for that capacity is not there.
    #[error(
        "a Gaussian map of {capacity} rows needs {needed} bytes, {available} are available: {fits} rows would fit; lower splat.capacity or splat.degree"
    )]
    Memory {
        capacity: u64,
        needed: u64,
        available: u64,
        fits: u64,
    },
    /// An array has another length than its image or its rows.
    #[error("{what}: expected {expected} values, found {found}")]
    Length {
        what: &'static str,
        expected: usize,
        found: usize,
    },
    /// Rows that are not there.
    #[error("rows {start} to {end} were asked for, the Gaussian map holds {held}")]
    Rows { start: u64, end: u64, held: u64 },
    /// The camera cannot be rendered.
    #[error(
        "a camera of {width}×{height} pixels with focal lengths {fx} and {fy} cannot be rendered"
    )]
    Camera {
        width: usize,
        height: usize,
        fx: f64,
        fy: f64,
    },
    /// A step without the gradients that it needs; indicates a defect in the caller.
    #[error("an optimiser step needs the gradients of a view first")]
    NoGradients,
    /// A view could not be loaded.
    #[error("cannot load view {id}: {cause}")]
    View { id: u32, cause: Cause },
    /// A view shows more than its buffers hold.
    #[error("{found} {what}, at most {limit} fit the memory of a view of the Gaussian map")]
    Crowded {
        what: &'static str,
        found: u64,
        limit: u64,
    },
    /// A check of the map's memory failed; indicates a defect of this program or of the memory.
    #[error(
        "the memory of the Gaussian map is corrupt: {what}, expected {expected}, found {found}"
    )]
    Corrupt {
        what: &'static str,
        expected: u64,
        found: u64,
    },
    /// The device failed.
    #[error("{device}: {cause}")]
    Device { device: &'static str, cause: Cause },
}
