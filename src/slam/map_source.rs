//! A map file of any kind.

use super::fit::{Fit, SavedMapError};
use crate::map::saved::{self, Header};
use crate::map::store::{self, Kind};
use std::path::Path;

/// A map file that was opened.
#[derive(Debug)]
pub enum MapSource {
    /// One that was saved at once.
    Saved(Box<saved::Reader>),
    /// One that is written as the map is made, or packed.
    Store(Box<store::Reader>),
}

impl MapSource {
    /// Opens a file, whose map must be as `fit` says. One that was saved at once is read as a whole to verify it.
    pub fn open(path: &Path, fit: &Fit<'_>) -> Result<Self, SavedMapError> {
        let check = |header: &Header| {
            fit.check(header).map_err(|cause| SavedMapError::Unfit {
                path: path.to_owned(),
                cause,
            })
        };
        if matches!(Kind::of(path)?, Kind::Store | Kind::Packed) {
            let reader = store::Reader::open(path)?;
            check(reader.header())?;
            return Ok(Self::Store(Box::new(reader)));
        }
        let mut reader = saved::Reader::open(path)?;
        check(reader.header())?;
        reader.verify()?;
        Ok(Self::Saved(Box::new(reader)))
    }

    /// The description of the map.
    pub fn header(&self) -> &Header {
        match self {
            Self::Saved(reader) => reader.header(),
            Self::Store(reader) => reader.header(),
        }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        match self {
            Self::Saved(reader) => reader.path(),
            Self::Store(reader) => reader.path(),
        }
    }

    /// Id of the keyframe after the newest one.
    pub fn next_keyframe(&self) -> u32 {
        match self {
            Self::Saved(reader) => reader.header().keyframes,
            Self::Store(reader) => reader.next().0,
        }
    }
}
