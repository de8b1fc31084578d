//! Where the rows of a Gaussian map are in its memory: a structure of arrays in one pool.
//!
//! A plane holds one field of `capacity` rows, row by row. Planes start at multiples of [`PLANE_ALIGNMENT`] bytes, and
//! [`CANARY_BYTES`] bytes of [`CANARY`] follow the last row of each. Element and byte offsets are u64: 59 floats of
//! 40 million rows are beyond 2³¹.

use super::SplatError;

/// Alignment of planes, bytes.
pub const PLANE_ALIGNMENT: u64 = 256;
/// Bytes after each plane that no operation may change.
pub const CANARY_BYTES: u64 = 256;
/// The value of these bytes.
pub const CANARY: u8 = 0xA5;
/// Maximum number of rows: refinement keeps a row's rank in 30 bits.
pub const MAX_CAPACITY: u64 = (1 << 30) - 1;
/// Maximum degree of the spherical harmonics.
pub const MAX_DEGREE: u8 = 3;
/// Maximum number of floats of a row.
pub const MAX_FLOATS: usize = 59;

/// A parameter of a row, in the order of the planes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Field {
    /// x, y, z in the world frame, metres.
    Mean = 0,
    /// Natural logarithms of the three standard deviations in metres.
    Scale = 1,
    /// Quaternion w, x, y, z from the row's axes to the world frame, of any norm.
    Rotation = 2,
    /// Logit of the opacity.
    Opacity = 3,
    /// Coefficients of the zeroth band, R, G, B.
    Dc = 4,
    /// Coefficients of the higher bands: by coefficient, within it R, G, B.
    Rest = 5,
}

/// Number of fields.
pub const FIELDS: usize = 6;

impl Field {
    /// All fields in the order of the planes.
    pub const ALL: [Self; FIELDS] = [
        Self::Mean,
        Self::Scale,
        Self::Rotation,
        Self::Opacity,
        Self::Dc,
        Self::Rest,
    ];

    /// Floats of a row at a degree from 0 to 3.
    pub const fn width(self, degree: u8) -> usize {
        match self {
            Self::Mean | Self::Scale | Self::Dc => 3,
            Self::Rotation => 4,
            Self::Opacity => 1,
            Self::Rest => 3 * (coefficients(degree) - 1),
        }
    }
}

/// Coefficients of a colour channel: 1, 4, 9 or 16.
pub const fn coefficients(degree: u8) -> usize {
    (degree as usize + 1) * (degree as usize + 1)
}

/// Floats of a row: 14, 23, 38 or 59.
pub const fn floats(degree: u8) -> usize {
    11 + 3 * coefficients(degree)
}

/// What a plane holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PlaneKind {
    /// A parameter, f32.
    Parameter(Field),
    /// Adam's first moment of a parameter, f32.
    First(Field),
    /// Adam's second moment of a parameter, f32.
    Second(Field),
    /// Sum of the norms of the gradient by the projected mean, in units of half the image; f32.
    GradientSum,
    /// Number of views in that sum, u32.
    Seen,
    /// Keyframe with which the row moves, u32.
    Anchor,
    /// Number of training views that showed the row since it was made, u32; it stays at the maximum.
    Observed,
}

/// One plane of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plane {
    pub kind: PlaneKind,
    /// Byte offset of row 0, a multiple of [`PLANE_ALIGNMENT`].
    pub offset: u64,
    /// Elements of 4 bytes of a row.
    pub width: u64,
    /// Bytes of `capacity` rows. The canary starts at `offset + bytes`.
    pub bytes: u64,
}

impl Plane {
    /// Byte offset of a row.
    pub fn row(&self, row: u64) -> u64 {
        self.offset + row * self.width * 4
    }

    /// Byte offset of the canary.
    pub fn canary(&self) -> u64 {
        self.offset + self.bytes
    }
}

/// The planes of a map: parameters, first moments, second moments (each in the order of [`Field::ALL`], without
/// [`Field::Rest`] at degree 0), then the four planes of bookkeeping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    capacity: u64,
    degree: u8,
    planes: Vec<Plane>,
    bytes: u64,
}

impl Layout {
    /// The layout of `capacity` rows.
    ///
    /// # Errors
    /// [`SplatError::Setting`] if the capacity is 0 or above [`MAX_CAPACITY`], or the degree above [`MAX_DEGREE`].
    pub fn new(capacity: u64, degree: u8) -> Result<Self, SplatError> {
        if capacity == 0 || capacity > MAX_CAPACITY {
            return Err(SplatError::Setting {
                name: "capacity",
                found: capacity,
                expected: "1 to 1073741823 rows",
            });
        }
        if degree > MAX_DEGREE {
            return Err(SplatError::Setting {
                name: "degree",
                found: degree.into(),
                expected: "0 to 3",
            });
        }
        let fields = Field::ALL.into_iter();
        let fields = fields.filter(|field| field.width(degree) > 0);
        let groups = [PlaneKind::Parameter, PlaneKind::First, PlaneKind::Second];
        let kinds = groups
            .into_iter()
            .flat_map(|group: fn(Field) -> PlaneKind| fields.clone().map(group));
        let kinds = kinds.chain([
            PlaneKind::GradientSum,
            PlaneKind::Seen,
            PlaneKind::Anchor,
            PlaneKind::Observed,
        ]);
        let (mut planes, mut bytes) = (Vec::with_capacity(3 * FIELDS + 4), 0_u64);
        for kind in kinds {
            let width = match kind {
                PlaneKind::Parameter(f) | PlaneKind::First(f) | PlaneKind::Second(f) => {
                    f.width(degree) as u64
                }
                _ => 1,
            };
            let plane = Plane {
                kind,
                offset: bytes,
                width,
                bytes: capacity * width * 4,
            };
            bytes = (plane.canary() + CANARY_BYTES).next_multiple_of(PLANE_ALIGNMENT);
            planes.push(plane);
        }
        Ok(Self {
            capacity,
            degree,
            planes,
            bytes,
        })
    }

    /// Maximum number of rows.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Degree of the spherical harmonics, 0 to 3.
    pub fn degree(&self) -> u8 {
        self.degree
    }

    /// Floats of a row.
    pub fn floats(&self) -> usize {
        floats(self.degree)
    }

    /// All planes in the order of their offsets.
    pub fn planes(&self) -> &[Plane] {
        &self.planes
    }

    /// The plane of a kind; without one for [`Field::Rest`] at degree 0.
    pub fn plane(&self, kind: PlaneKind) -> Option<&Plane> {
        self.planes.iter().find(|plane| plane.kind == kind)
    }

    /// Bytes of the pool, canaries included.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of a row in all planes: 184, 292, 472 or 724.
    pub fn row_bytes(&self) -> u64 {
        self.planes.iter().map(|plane| plane.width * 4).sum()
    }

    /// Maximum number of rows whose pool has at most `bytes` bytes.
    pub fn rows_in(bytes: u64, degree: u8) -> u64 {
        let fits = |rows: u64| Self::new(rows, degree).is_ok_and(|layout| layout.bytes <= bytes);
        let (mut low, mut high) = (0, MAX_CAPACITY + 1);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if fits(middle) {
                low = middle;
            } else {
                high = middle;
            }
        }
        low
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_bytes_of_its_parameters_moments_and_bookkeeping() {
        for (degree, floats, bytes) in [(0, 14, 184), (1, 23, 292), (2, 38, 472), (3, 59, 724)] {
            let layout = Layout::new(1000, degree).expect("a layout");
            assert_eq!((layout.floats(), layout.row_bytes()), (floats, bytes));
        }
    }

    #[test]
    fn planes_are_aligned_and_do_not_overlap_each_other_or_canaries() {
        for capacity in [1, 63, 64, 2049, 40_000_000] {
            let layout = Layout::new(capacity, 3).expect("a layout");
            let mut end = 0;
            for plane in layout.planes() {
                assert_eq!(plane.offset % PLANE_ALIGNMENT, 0);
                assert!(plane.offset >= end);
                assert_eq!(plane.row(capacity), plane.canary());
                end = plane.canary() + CANARY_BYTES;
            }
            assert!(end <= layout.bytes() && layout.bytes() < end + PLANE_ALIGNMENT);
        }
    }

    #[test]
    fn forty_million_rows_of_degree_three_take_29_gb() {
        let layout = Layout::new(40_000_000, 3).expect("a layout");
        assert!((28.96e9..28.97e9).contains(&(layout.bytes() as f64)));
        assert_eq!(Layout::rows_in(layout.bytes(), 3), 40_000_000);
        let fewer = Layout::rows_in(layout.bytes() - 1, 3);
        let bytes = |rows| Layout::new(rows, 3).expect("a layout").bytes();
        assert!(bytes(fewer) < layout.bytes() && bytes(fewer + 1) == layout.bytes());
    }

    #[test]
    fn capacities_and_degrees_out_of_range_are_refused() {
        assert!(Layout::new(0, 0).is_err());
        assert!(Layout::new(MAX_CAPACITY + 1, 0).is_err());
        assert!(Layout::new(1, 4).is_err());
    }
}
