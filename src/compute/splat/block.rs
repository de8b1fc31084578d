//! Blocks of rows on the host: what is uploaded, downloaded, saved and exported.

use super::SplatError;
use super::camera::expect_length;
use super::layout::{FIELDS, Field};

/// One value of every field for a number of rows, in the layout of the planes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FieldBuffers([Vec<f32>; FIELDS]);

impl FieldBuffers {
    /// `rows × width` values.
    pub fn get(&self, field: Field) -> &[f32] {
        &self.0[field as usize]
    }

    /// `rows × width` values.
    pub fn get_mut(&mut self, field: Field) -> &mut [f32] {
        &mut self.0[field as usize]
    }

    /// The values of a row. Panics if the row is not in the block.
    pub fn row(&self, field: Field, degree: u8, row: usize) -> &[f32] {
        let width = field.width(degree);
        &self.0[field as usize][row * width..(row + 1) * width]
    }

    /// The values of a row. Panics if the row is not in the block.
    pub fn row_mut(&mut self, field: Field, degree: u8, row: usize) -> &mut [f32] {
        let width = field.width(degree);
        &mut self.0[field as usize][row * width..(row + 1) * width]
    }

    fn resize(&mut self, rows: usize, degree: u8) {
        for (buffer, field) in self.0.iter_mut().zip(Field::ALL) {
            buffer.resize(rows * field.width(degree), 0.0);
        }
    }

    fn check(&self, what: &'static str, rows: usize, degree: u8) -> Result<(), SplatError> {
        let pairs = self.0.iter().zip(Field::ALL);
        pairs.into_iter().try_for_each(|(buffer, field)| {
            expect_length(what, rows * field.width(degree), buffer.len())
        })
    }
}

/// Which planes of a row a block holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BlockContent {
    /// Parameters and anchors. Appended rows get zero moments and statistics.
    #[default]
    Parameters,
    /// All planes: the state of training.
    State,
}

/// Consecutive rows on the host.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RowBlock {
    rows: usize,
    degree: u8,
    content: BlockContent,
    pub parameters: FieldBuffers,
    /// Adam's first moments; empty without [`BlockContent::State`].
    pub first: FieldBuffers,
    /// Adam's second moments; empty without [`BlockContent::State`].
    pub second: FieldBuffers,
    /// Keyframes with which the rows move.
    pub anchor: Vec<u32>,
    /// See [`PlaneKind::GradientSum`](super::layout::PlaneKind::GradientSum); empty without [`BlockContent::State`].
    pub gradient_sum: Vec<f32>,
    /// See [`PlaneKind::Seen`](super::layout::PlaneKind::Seen); empty without [`BlockContent::State`].
    pub seen: Vec<u32>,
    /// See [`PlaneKind::Observed`](super::layout::PlaneKind::Observed); empty without [`BlockContent::State`].
    pub observed: Vec<u32>,
}

impl RowBlock {
    /// A block of zeros.
    pub fn new(rows: usize, degree: u8, content: BlockContent) -> Self {
        let mut block = Self {
            degree,
            content,
            ..Self::default()
        };
        block.resize(rows);
        block
    }

    /// Changes the number of rows; new rows are zeros. Allocates only if it grows.
    pub fn resize(&mut self, rows: usize) {
        self.rows = rows;
        let state = match self.content {
            BlockContent::Parameters => 0,
            BlockContent::State => rows,
        };
        self.parameters.resize(rows, self.degree);
        self.first.resize(state, self.degree);
        self.second.resize(state, self.degree);
        self.anchor.resize(rows, 0);
        self.gradient_sum.resize(state, 0.0);
        self.seen.resize(state, 0);
        self.observed.resize(state, 0);
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Degree of the spherical harmonics.
    pub fn degree(&self) -> u8 {
        self.degree
    }

    /// What the block holds of a row.
    pub fn content(&self) -> BlockContent {
        self.content
    }

    /// # Errors
    /// [`SplatError::Setting`] if the block has another degree than the map; [`SplatError::Length`] if a buffer was
    /// given another length.
    pub fn check(&self, degree: u8) -> Result<(), SplatError> {
        if self.degree != degree {
            return Err(SplatError::Setting {
                name: "degree",
                found: degree.into(),
                expected: "the degree of the rows",
            });
        }
        let state = match self.content {
            BlockContent::Parameters => 0,
            BlockContent::State => self.rows,
        };
        self.parameters
            .check("parameters of rows", self.rows, degree)?;
        self.first.check("first moments of rows", state, degree)?;
        self.second.check("second moments of rows", state, degree)?;
        expect_length("anchors of rows", self.rows, self.anchor.len())?;
        expect_length("gradient sums of rows", state, self.gradient_sum.len())?;
        expect_length("counts of rows", state, self.seen.len())?;
        expect_length("observations of rows", state, self.observed.len())
    }
}
