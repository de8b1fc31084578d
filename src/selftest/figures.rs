//! Recorded figures, in a safetensors file: the network's outputs at some pixels, and the ATE.

use super::network::{Outputs, PAIR};
use crate::files;
use crate::inference::{PairOutput, ViewOutput};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Version of the file's layout and of the frames that are used.
const VERSION: u32 = 1;
/// Key of the header in the file's metadata.
const HEADER: &str = "selftest";
/// A file of figures is some 45 kB.
const MAX_BYTES: u64 = 1 << 20;
/// Files that are looked at in the folder of figures.
const MAX_FILES: usize = 256;

/// Error of recorded figures.
#[derive(Debug, thiserror::Error)]
pub enum FiguresError {
    #[error("cannot {doing} {path}: {cause}", path = path.display())]
    Io {
        doing: &'static str,
        path: PathBuf,
        cause: std::io::Error,
    },
    #[error("{path}: expected figures of `mast3r-slam selftest --record`, found {found}", path = path.display())]
    Format { path: PathBuf, found: String },
    #[error(
        "{path}: expected figures of the weights {weights} at {size}, found those of {found}; record them on a CPU with \
         `mast3r-slam selftest --record FILE`",
        path = path.display()
    )]
    Other {
        path: PathBuf,
        weights: String,
        size: String,
        found: String,
    },
    #[error(
        "no figures are recorded for the weights {weights} at {size}; record them on a CPU with `mast3r-slam selftest \
         --record FILE`, then compare with `--figures FILE`"
    )]
    Unknown { weights: String, size: String },
}

impl FiguresError {
    pub fn unknown(weights: &str, size: (usize, usize)) -> Self {
        Self::Unknown {
            weights: short(weights),
            size: shown(size),
        }
    }
}

fn shown((width, height): (usize, usize)) -> String {
    format!("{width}x{height}")
}

/// The start of a hash, for people.
fn short(hash: &str) -> String {
    hash.chars().take(12).collect()
}

/// What the tensors belong to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    version: u32,
    /// SHA-256 of the weights.
    weights: String,
    width: usize,
    height: usize,
    /// The runtime that made them.
    network: String,
    precision: String,
    /// Indices of the two frames.
    pair: [usize; 2],
    descriptor_dim: usize,
    /// Metres.
    pub ate: f64,
}

/// Recorded figures.
#[derive(Debug)]
pub struct Figures {
    pub path: PathBuf,
    pub header: Header,
    pub sampled: PairOutput,
}

/// Names of the tensors of one view, with their number of values per pixel.
fn tensors(view: &ViewOutput, dim: usize) -> [(&'static str, &Vec<f32>, usize); 4] {
    [
        ("points", &view.points, 3),
        ("confidence", &view.confidence, 1),
        ("descriptors", &view.descriptors, dim),
        ("descriptor_confidence", &view.descriptor_confidence, 1),
    ]
}

impl Figures {
    pub fn new(path: &Path, outputs: Outputs, ate: f64) -> Self {
        Self {
            path: path.to_owned(),
            header: Header {
                version: VERSION,
                weights: outputs.weights,
                width: outputs.size.0,
                height: outputs.size.1,
                network: outputs.name,
                precision: outputs.precision.name().to_owned(),
                pair: PAIR,
                descriptor_dim: outputs.descriptor_dim,
                ate,
            },
            sampled: outputs.sampled,
        }
    }

    /// The figures in `folder` for these weights at this size.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn find(
        folder: &Path,
        weights: &str,
        size: (usize, usize),
    ) -> Result<Option<Self>, FiguresError> {
        let io = |cause| FiguresError::Io {
            doing: "read",
            path: folder.to_owned(),
            cause,
        };
        for entry in std::fs::read_dir(folder).map_err(io)?.take(MAX_FILES) {
            let path = entry.map_err(io)?.path();
            if path
                .extension()
                .is_none_or(|ending| ending != "safetensors")
            {
                continue;
            }
            let figures = Self::read(&path)?;
            if figures.is_made_for(weights, size) {
                return Ok(Some(figures));
            }
        }
        Ok(None)
    }

    fn is_made_for(&self, weights: &str, size: (usize, usize)) -> bool {
        self.header.weights == weights && (self.header.width, self.header.height) == size
    }

    /// Rejects figures of other weights or another size.
    pub fn check_made_for(&self, weights: &str, size: (usize, usize)) -> Result<(), FiguresError> {
        match self.is_made_for(weights, size) {
            true => Ok(()),
            false => Err(FiguresError::Other {
                path: self.path.clone(),
                weights: short(weights),
                size: shown(size),
                found: format!(
                    "{} at {}",
                    short(&self.header.weights),
                    shown((self.header.width, self.header.height))
                ),
            }),
        }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read or has another format.
    pub fn read(path: &Path) -> Result<Self, FiguresError> {
        let io = |cause| FiguresError::Io {
            doing: "read",
            path: path.to_owned(),
            cause,
        };
        let other = |found: String| FiguresError::Format {
            path: path.to_owned(),
            found,
        };
        let size = std::fs::metadata(path).map_err(io)?.len();
        if size > MAX_BYTES {
            return Err(other(format!("{size} bytes")));
        }
        let bytes = std::fs::read(path).map_err(io)?;
        let (_, metadata) = SafeTensors::read_metadata(&bytes).map_err(|e| other(e.to_string()))?;
        let header = metadata.metadata().as_ref().and_then(|map| map.get(HEADER));
        let header = header.ok_or_else(|| other("no header".into()))?;
        let header: Header =
            serde_json::from_str(header).map_err(|e| other(format!("a header with {e}")))?;
        if header.version != VERSION || header.pair != PAIR {
            return Err(other(format!(
                "version {}: record them again",
                header.version
            )));
        }
        let file = SafeTensors::deserialize(&bytes).map_err(|e| other(e.to_string()))?;
        let values = |number: usize, name: &str, dim: usize| {
            let tensor = file
                .tensor(&format!("{name}{number}"))
                .map_err(|e| other(e.to_string()))?;
            match (tensor.dtype(), tensor.shape()) {
                (Dtype::F32, [_, columns]) if *columns == dim => {
                    let (values, _) = tensor.data().as_chunks::<4>();
                    Ok(values.iter().map(|&v| f32::from_le_bytes(v)).collect())
                }
                (_, shape) => Err(other(format!("{name}{number} of shape {shape:?}"))),
            }
        };
        let view = |number| {
            Ok::<_, FiguresError>(ViewOutput {
                points: values(number, "points", 3)?,
                confidence: values(number, "confidence", 1)?,
                descriptors: values(number, "descriptors", header.descriptor_dim)?,
                descriptor_confidence: values(number, "descriptor_confidence", 1)?,
            })
        };
        let sampled = PairOutput {
            view1: view(1)?,
            view2: view(2)?,
        };
        Ok(Self {
            path: path.to_owned(),
            header,
            sampled,
        })
    }

    /// Writes the file, atomically.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self) -> Result<(), FiguresError> {
        let io = |cause| FiguresError::Io {
            doing: "write",
            path: self.path.clone(),
            cause,
        };
        let mut stored = Vec::new();
        for (number, view) in [(1, &self.sampled.view1), (2, &self.sampled.view2)] {
            for (name, values, dim) in tensors(view, self.header.descriptor_dim) {
                let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
                stored.push((
                    format!("{name}{number}"),
                    vec![values.len() / dim.max(1), dim],
                    bytes,
                ));
            }
        }
        let views = stored.iter().map(|(name, shape, bytes)| {
            TensorView::new(Dtype::F32, shape.clone(), bytes).map(|view| (name.as_str(), view))
        });
        let views = views
            .collect::<Result<Vec<_>, _>>()
            .map_err(|e| io(std::io::Error::other(e)))?;
        let header = serde_json::to_string(&self.header).map_err(|e| io(e.into()))?;
        let metadata = HashMap::from([(HEADER.to_owned(), header)]);
        let bytes = safetensors::serialize(views, Some(metadata))
            .map_err(|e| io(std::io::Error::other(e)))?;
        files::write_bytes(&self.path, &bytes).map_err(io)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::onnx::Precision;

    fn figures(path: &Path) -> Figures {
        let view = |start: f32| ViewOutput {
            points: vec![start; 9],
            confidence: vec![start + 1.0; 3],
            descriptors: vec![start + 2.0; 6],
            descriptor_confidence: vec![start + 3.0; 3],
        };
        let outputs = Outputs {
            weights: "abc".into(),
            name: "test".into(),
            precision: Precision::F32,
            size: (32, 16),
            descriptor_dim: 2,
            sampled: PairOutput {
                view1: view(0.5),
                view2: view(7.5),
            },
        };
        Figures::new(path, outputs, 0.125)
    }

    #[test]
    fn figures_are_read_as_written_and_found_by_weights_and_size() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.safetensors");
        let written = figures(&path);
        written.write().unwrap();
        std::fs::write(folder.path().join("README.md"), "text").unwrap();
        let find = |weights, size| Figures::find(folder.path(), weights, size).unwrap();
        let found = find("abc", (32, 16)).unwrap();
        assert_eq!(
            (found.header, found.sampled),
            (written.header, written.sampled)
        );
        assert!(find("abd", (32, 16)).is_none() && find("abc", (16, 32)).is_none());
        let error = Figures::read(&path)
            .unwrap()
            .check_made_for("abd", (32, 16))
            .unwrap_err();
        assert!(error.to_string().contains("abc at 32x16"), "{error}");
    }

    #[test]
    fn damaged_figures_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.safetensors");
        figures(&path).write().unwrap();
        let whole = std::fs::read(&path).unwrap();
        for bytes in [&whole[..whole.len() - 1], &whole[..7], b"{}"] {
            std::fs::write(&path, bytes).unwrap();
            let error = Figures::read(&path).unwrap_err().to_string();
            assert!(error.contains("expected figures of"), "{error}");
        }
        assert!(Figures::read(folder.path()).is_err());
    }
}
