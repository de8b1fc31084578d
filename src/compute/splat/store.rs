//! The rows of the CPU: one array a plane, of the layout's capacity, with a canary behind it.

use super::SplatError;
use super::layout::{CANARY, CANARY_BYTES, FIELDS, Field, Layout};
use super::row::Row;
use super::sh::MAX_COEFFICIENTS;
use nalgebra::{Vector3, Vector4};

/// Fields without which a row cannot be drawn.
const SHAPE: [Field; 4] = [Field::Mean, Field::Scale, Field::Rotation, Field::Opacity];

const CANARY_WORDS: usize = CANARY_BYTES as usize / 4;
const CANARY_WORD: u32 = u32::from_le_bytes([CANARY; 4]);

/// Parameters, first moments or second moments of all rows.
#[derive(Debug, Clone)]
pub struct FieldPlanes([Vec<f32>; FIELDS]);

impl FieldPlanes {
    fn new(capacity: usize, degree: u8) -> Self {
        Self(Field::ALL.map(|field| {
            let mut plane = vec![0.0; capacity * field.width(degree)];
            plane.extend([f32::from_bits(CANARY_WORD); CANARY_WORDS]);
            plane
        }))
    }

    /// The whole plane of a field.
    pub fn get(&self, field: Field) -> &[f32] {
        &self.0[field as usize]
    }

    /// The whole plane of a field.
    pub fn get_mut(&mut self, field: Field) -> &mut [f32] {
        &mut self.0[field as usize]
    }
}

/// The rows.
#[derive(Debug, Clone)]
pub struct Store {
    layout: Layout,
    /// Number of rows.
    pub rows: usize,
    pub parameters: FieldPlanes,
    pub first: FieldPlanes,
    pub second: FieldPlanes,
    pub gradient_sum: Vec<f32>,
    pub seen: Vec<u32>,
    pub anchor: Vec<u32>,
    pub observed: Vec<u32>,
}

impl Store {
    pub fn new(layout: Layout) -> Result<Self, SplatError> {
        let capacity = usize::try_from(layout.capacity()).unwrap_or(usize::MAX);
        let words = || {
            let mut plane = vec![0; capacity];
            plane.extend([CANARY_WORD; CANARY_WORDS]);
            plane
        };
        let mut gradient_sum = vec![0.0; capacity];
        gradient_sum.extend([f32::from_bits(CANARY_WORD); CANARY_WORDS]);
        let planes = || FieldPlanes::new(capacity, layout.degree());
        Ok(Self {
            rows: 0,
            parameters: planes(),
            first: planes(),
            second: planes(),
            gradient_sum,
            seen: words(),
            anchor: words(),
            observed: words(),
            layout,
        })
    }

    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    pub fn capacity(&self) -> usize {
        self.seen.len() - CANARY_WORDS
    }

    /// A parameter of a row.
    pub fn value(&self, field: Field, row: usize) -> &[f32] {
        let width = field.width(self.layout.degree());
        &self.parameters.get(field)[row * width..(row + 1) * width]
    }

    /// A parameter of a row.
    pub fn value_mut(&mut self, field: Field, row: usize) -> &mut [f32] {
        let width = field.width(self.layout.degree());
        &mut self.parameters.get_mut(field)[row * width..(row + 1) * width]
    }

    /// Whether a row can be drawn: mean, scales, quaternion and opacity are finite, and the quaternion can be normalised.
    /// Colours are not read; one that is not finite is drawn as 0.
    pub fn is_valid(&self, row: usize) -> bool {
        let finite = |field| self.value(field, row).iter().all(|v| v.is_finite());
        super::row::is_rotation(self.value(Field::Rotation, row)) && SHAPE.into_iter().all(finite)
    }

    /// A row in double precision.
    pub fn row(&self, row: usize) -> Row {
        let vector = |field| {
            let v = self.value(field, row);
            Vector3::new(v[0], v[1], v[2]).map(f64::from)
        };
        let q = self.value(Field::Rotation, row);
        let mut sh = [Vector3::zeros(); MAX_COEFFICIENTS];
        sh[0] = vector(Field::Dc);
        let (bands, _) = self.value(Field::Rest, row).as_chunks::<3>();
        for (to, from) in sh[1..].iter_mut().zip(bands) {
            *to = Vector3::from(from.map(f64::from));
        }
        Row {
            mean: vector(Field::Mean),
            scale: vector(Field::Scale),
            rotation: Vector4::new(q[0], q[1], q[2], q[3]).map(f64::from),
            logit: f64::from(self.value(Field::Opacity, row)[0]),
            sh,
        }
    }

    /// Copies the parameters of a row.
    pub fn copy_parameters(&mut self, from: usize, to: usize) {
        for field in Field::ALL {
            let width = field.width(self.layout.degree());
            let plane = self.parameters.get_mut(field);
            plane.copy_within(from * width..(from + 1) * width, to * width);
        }
    }

    /// Copies all planes of a row but the statistics.
    pub fn copy_row(&mut self, from: usize, to: usize) {
        self.copy_parameters(from, to);
        for field in Field::ALL {
            let width = field.width(self.layout.degree());
            for moments in [&mut self.first, &mut self.second] {
                let plane = moments.get_mut(field);
                plane.copy_within(from * width..(from + 1) * width, to * width);
            }
        }
        self.anchor[to] = self.anchor[from];
        self.observed[to] = self.observed[from];
    }

    /// Sets the moments of a row to 0.
    pub fn clear_moments(&mut self, row: usize) {
        for field in Field::ALL {
            let width = field.width(self.layout.degree());
            for moments in [&mut self.first, &mut self.second] {
                moments.get_mut(field)[row * width..(row + 1) * width].fill(0.0);
            }
        }
    }

    /// Sets everything of new rows but parameters and anchors to 0.
    pub fn clear_state(&mut self, rows: std::ops::Range<usize>) {
        rows.clone().for_each(|row| self.clear_moments(row));
        self.clear_statistics(rows.clone());
        self.observed[rows].fill(0);
    }

    /// Sets the statistics of rows to 0.
    pub fn clear_statistics(&mut self, rows: std::ops::Range<usize>) {
        self.gradient_sum[rows.clone()].fill(0.0);
        self.seen[rows].fill(0);
    }

    /// Checks the canaries.
    pub fn verify(&self) -> Result<(), SplatError> {
        let floats = [&self.parameters, &self.first, &self.second];
        let floats = floats.into_iter().flat_map(|planes| &planes.0);
        let floats = floats.chain([&self.gradient_sum]);
        let floats = floats.flat_map(|plane| plane.iter().rev().take(CANARY_WORDS));
        let words = [&self.seen, &self.anchor, &self.observed].into_iter();
        let words = words.flat_map(|plane| plane.iter().rev().take(CANARY_WORDS));
        let all = floats.map(|f| f.to_bits()).chain(words.copied());
        let changed = all.filter(|word| *word != CANARY_WORD).count() as u64;
        if changed == 0 {
            return Ok(());
        }
        Err(SplatError::Corrupt {
            what: "changed words behind the planes",
            expected: 0,
            found: changed,
        })
    }

    /// Bytes of the planes.
    pub fn bytes(&self) -> u64 {
        let floats = [&self.parameters, &self.first, &self.second];
        let floats = floats
            .into_iter()
            .flat_map(|planes| &planes.0)
            .map(Vec::len);
        let rest = self.gradient_sum.len() + 3 * self.seen.len();
        4 * (floats.sum::<usize>() + rest) as u64
    }
}
