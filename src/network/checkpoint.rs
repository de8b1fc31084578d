//! Tensors of a weights file, memory-mapped where the format allows it.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;
use rayon::prelude::*;

/// Element type of a stored tensor; always little-endian.
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

/// Storage of a tensor. Cloning shares a mapping and copies owned bytes.
#[derive(Clone)]
enum TensorData {
    Owned(Vec<u8>),
    Mapped { map: Arc<Mmap>, range: Range<usize> },
}

/// A dense, row-major tensor.
#[derive(Clone)]
pub struct Tensor {
    /// Dimensions, outermost first; empty for a scalar.
    pub shape: Vec<usize>,
    pub dtype: Dtype,
    data: TensorData,
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({:?} {:?})", self.dtype, self.shape)
    }
}

/// Size in bytes of a tensor of `shape` and `dtype`, or `None` on overflow.
fn byte_len(shape: &[usize], dtype: Dtype) -> Option<usize> {
    shape
        .iter()
        .try_fold(dtype.size(), |bytes, &extent| bytes.checked_mul(extent))
}

impl Tensor {
    /// A tensor that owns its bytes (row-major, little-endian). `None` if their number does not
    /// match the shape.
    pub fn from_bytes(shape: Vec<usize>, dtype: Dtype, bytes: Vec<u8>) -> Option<Self> {
        (byte_len(&shape, dtype)? == bytes.len()).then_some(Self {
            shape,
            dtype,
            data: TensorData::Owned(bytes),
        })
    }

    /// A tensor in a range of a mapped file. `None` if the range lies outside the mapping or its
    /// length does not match the shape.
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

    /// A binary32 tensor. `None` if the number of values does not match the shape.
    pub fn from_f32(shape: Vec<usize>, values: &[f32]) -> Option<Self> {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Self::from_bytes(shape, Dtype::F32, bytes)
    }

    /// The stored bytes, row-major and little-endian; not necessarily aligned to the element type.
    pub fn bytes(&self) -> &[u8] {
        match &self.data {
            TensorData::Owned(bytes) => bytes,
            TensorData::Mapped { map, range } => &map[range.clone()],
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.bytes().len() / self.dtype.size()
    }

    /// Whether any dimension is zero.
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
    /// Chunk size in elements: smaller tensors are converted on the calling thread.
    const PIECE: usize = 1 << 16;
    let (elements, _) = bytes.as_chunks::<SIZE>();
    let values = elements.par_iter().with_min_len(PIECE);
    values.map(|&element| read(element)).collect()
}

/// The tensors of one file by name, and the metadata of the file.
#[derive(Debug, Clone, Default)]
pub struct Checkpoint {
    /// Tensors under the official model's names.
    pub tensors: BTreeMap<String, Tensor>,
    /// The constructor string of an official `.pth`, from `args.model` or `mast3r_model_str`.
    pub model_args: Option<String>,
    /// The encoder name that a decoder-only `.pth` stores as `dune_backbone_name`.
    pub backbone: Option<String>,
}

/// Error from reading weights.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
    /// The file is not in the expected format.
    #[error("{}: expected {expected}, found {found}", path.display())]
    Format {
        path: PathBuf,
        expected: String,
        found: String,
    },
    /// The file holds another network, or only part of one.
    #[error(
        "these weights are not a MASt3R network (catmlp+dpt heads): {}",
        TensorProblems { missing, extra, misshapen }
    )]
    Tensors {
        missing: Vec<String>,
        extra: Vec<String>,
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
            "{} bytes that cannot be parsed ({e}); the file may be truncated: download it again",
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
