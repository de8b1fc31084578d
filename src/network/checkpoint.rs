//! Weights as they lie in a file: named tensors, memory-mapped where the format allows it.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;
use rayon::prelude::*;

/// Element type of a stored tensor; all little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dtype {
    /// IEEE 754 binary16.
    F16,
    /// The upper half of a binary32.
    BF16,
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary64.
    F64,
}

impl Dtype {
    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Dtype::F16 | Dtype::BF16 => 2,
            Dtype::F32 => 4,
            Dtype::F64 => 8,
        }
    }
}

/// Where a tensor's bytes live. Cloning shares a mapping and copies owned bytes.
#[derive(Clone)]
enum TensorData {
    Owned(Vec<u8>),
    Mapped { map: Arc<Mmap>, range: Range<usize> },
}

/// A dense, row-major tensor.
#[derive(Clone)]
pub struct Tensor {
    /// Extents, outermost first; empty for a scalar.
    pub shape: Vec<usize>,
    /// Element type of the bytes.
    pub dtype: Dtype,
    data: TensorData,
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({:?} {:?})", self.dtype, self.shape)
    }
}

/// Bytes that `shape` of `dtype` takes, or `None` where that overflows.
fn byte_len(shape: &[usize], dtype: Dtype) -> Option<usize> {
    shape
        .iter()
        .try_fold(dtype.size(), |bytes, &extent| bytes.checked_mul(extent))
}

impl Tensor {
    /// A tensor over bytes of its own (row-major, little-endian). `None` if their number does not
    /// fit the shape.
    pub fn from_bytes(shape: Vec<usize>, dtype: Dtype, bytes: Vec<u8>) -> Option<Self> {
        (byte_len(&shape, dtype)? == bytes.len()).then_some(Self {
            shape,
            dtype,
            data: TensorData::Owned(bytes),
        })
    }

    /// A tensor over a part of a mapped file. `None` if the range lies outside the mapping or its
    /// length does not fit the shape.
    pub fn from_mapped(
        shape: Vec<usize>,
        dtype: Dtype,
        map: Arc<Mmap>,
        range: Range<usize>,
    ) -> Option<Self> {
        let fits = range.start <= range.end
            && range.end <= map.len()
            && byte_len(&shape, dtype)? == range.len();
        fits.then_some(Self {
            shape,
            dtype,
            data: TensorData::Mapped { map, range },
        })
    }

    /// A binary32 tensor of given values. `None` if their number does not fit the shape.
    pub fn from_f32(shape: Vec<usize>, values: &[f32]) -> Option<Self> {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Self::from_bytes(shape, Dtype::F32, bytes)
    }

    /// The stored bytes, row-major and little-endian; not necessarily aligned to the elements.
    pub fn bytes(&self) -> &[u8] {
        match &self.data {
            TensorData::Owned(bytes) => bytes,
            TensorData::Mapped { map, range } => &map[range.clone()],
        }
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.bytes().len() / self.dtype.size()
    }

    /// Whether some extent is zero.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All elements as binary32 (binary64 is rounded).
    pub fn to_f32(&self) -> Vec<f32> {
        let bytes = self.bytes();
        match self.dtype {
            Dtype::F16 => convert(bytes, |b| half::f16::from_le_bytes(b).to_f32()),
            Dtype::BF16 => convert(bytes, |b| half::bf16::from_le_bytes(b).to_f32()),
            Dtype::F32 => convert(bytes, f32::from_le_bytes),
            Dtype::F64 => convert(bytes, |b| f64::from_le_bytes(b) as f32),
        }
    }
}

fn convert<const SIZE: usize>(bytes: &[u8], read: impl Fn([u8; SIZE]) -> f32 + Sync) -> Vec<f32> {
    /// Elements below which no other thread is asked for help.
    const PIECE: usize = 1 << 16;
    let (elements, _) = bytes.as_chunks::<SIZE>();
    let values = elements.par_iter().with_min_len(PIECE);
    values.map(|&element| read(element)).collect()
}

/// The tensors of one file by name, and what the file says of itself.
#[derive(Debug, Clone, Default)]
pub struct Checkpoint {
    /// Tensors under the official model's names.
    pub tensors: BTreeMap<String, Tensor>,
    /// The constructor string that an official `.pth` carries as `args.model` or `mast3r_model_str`.
    pub model_args: Option<String>,
    /// The encoder that a `.pth` with only the decoder names as `dune_backbone_name`.
    pub backbone: Option<String>,
}

/// Why weights could not be read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The operating system refused.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's own error.
        source: std::io::Error,
    },
    /// The file is not what it should be.
    #[error("{}: expected {expected}, found {found}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What should be there.
        expected: String,
        /// What is there.
        found: String,
    },
    /// The file holds another network, or a part of one.
    #[error(
        "these weights are not a MASt3R network (catmlp+dpt heads): {}",
        TensorProblems { missing, extra, misshapen }
    )]
    Tensors {
        /// Tensors that the network needs and the file lacks.
        missing: Vec<String>,
        /// Tensors of the file that the network does not have.
        extra: Vec<String>,
        /// Tensors of another shape: name, expected and found.
        misshapen: Vec<String>,
    },
}

struct TensorProblems<'a> {
    missing: &'a [String],
    extra: &'a [String],
    misshapen: &'a [String],
}

impl fmt::Display for TensorProblems<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A wholly different file would list a thousand names; a dozen of each kind tell enough.
        const SHOWN: usize = 12;
        let mut separator = "";
        for (kind, names) in [
            ("missing", self.missing),
            ("not part of it", self.extra),
            ("of the wrong shape", self.misshapen),
        ] {
            if names.is_empty() {
                continue;
            }
            let shown = names.len().min(SHOWN);
            write!(
                f,
                "{separator}{} {kind}: {}",
                names.len(),
                names[..shown].join(", ")
            )?;
            if names.len() > shown {
                write!(f, ", and {} more", names.len() - shown)?;
            }
            separator = "; ";
        }
        Ok(())
    }
}

/// Maps a file into memory, read-only.
pub(crate) fn map_file(path: &Path) -> Result<Arc<Mmap>, CheckpointError> {
    let io = |source| CheckpointError::Io {
        path: path.to_owned(),
        source,
    };
    let file = std::fs::File::open(path).map_err(io)?;
    // SAFETY: the mapping is read-only and only ever viewed as bytes, for which every bit pattern
    // is valid. Another process that truncates the file while we read could still fault us; a
    // weights file is not written while it is in use, and copying 2.75 GB to be sure is worse.
    let map = unsafe { Mmap::map(&file) }.map_err(io)?;
    Ok(Arc::new(map))
}

/// Reads a safetensors file without copying its tensors.
pub fn read_safetensors(path: &Path) -> Result<Checkpoint, CheckpointError> {
    let map = map_file(path)?;
    let format = |found: String| CheckpointError::Format {
        path: path.to_owned(),
        expected: "a complete safetensors file".into(),
        found,
    };
    let parsed = safetensors::SafeTensors::deserialize(&map).map_err(|e| {
        format(format!(
            "{} bytes that are not one ({e}); the file may be cut short: fetch it again",
            map.len()
        ))
    })?;
    let base = map.as_ptr() as usize;
    let mut tensors = BTreeMap::new();
    for (name, view) in parsed.iter() {
        let dtype = match view.dtype() {
            safetensors::Dtype::F16 => Dtype::F16,
            safetensors::Dtype::BF16 => Dtype::BF16,
            safetensors::Dtype::F32 => Dtype::F32,
            safetensors::Dtype::F64 => Dtype::F64,
            other => return Err(format(format!("tensor {name} of element type {other:?}"))),
        };
        let start = view.data().as_ptr() as usize - base;
        let range = start..start + view.data().len();
        let tensor = Tensor::from_mapped(view.shape().to_vec(), dtype, map.clone(), range)
            .ok_or_else(|| format(format!("tensor {name} whose bytes do not fit its shape")))?;
        tensors.insert(name.to_owned(), tensor);
    }
    Ok(Checkpoint {
        tensors,
        ..Checkpoint::default()
    })
}
