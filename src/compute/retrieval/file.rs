//! Codebook file format: one safetensors file with `mean` (C), `projection` (C × C) and `centroids`
//! (K × C), each in the narrowest of f16, f32 and f64 that represents its values exactly.

use std::collections::HashMap;
use std::path::Path;

use half::f16;
use serde::{Deserialize, Serialize};

use super::{CodebookInfo, RetrievalError, RetrievalModel};
use crate::files;
use crate::network::CheckpointError;
use crate::network::checkpoint::map_file;

/// The only metadata key: several would be written in random order, and equal codebooks must yield
/// equal files.
const METADATA: &str = "mast3r_slam_codebook";

const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Header {
    version: u32,
    weights_hash: String,
    images: usize,
    dim: usize,
    words: usize,
}

/// A tensor to write.
struct Stored {
    shape: Vec<usize>,
    dtype: safetensors::Dtype,
    bytes: Vec<u8>,
}

impl Stored {
    fn new(shape: Vec<usize>, values: &[f64]) -> Self {
        let (dtype, bytes) = if values.iter().all(|&v| f16::from_f64(v).to_f64() == v) {
            let bytes = values.iter().flat_map(|&v| f16::from_f64(v).to_le_bytes());
            (safetensors::Dtype::F16, bytes.collect())
        } else if values.iter().all(|&v| f64::from(v as f32) == v) {
            let bytes = values.iter().flat_map(|&v| (v as f32).to_le_bytes());
            (safetensors::Dtype::F32, bytes.collect())
        } else {
            let bytes = values.iter().flat_map(|&v| v.to_le_bytes());
            (safetensors::Dtype::F64, bytes.collect())
        };
        Self {
            shape,
            dtype,
            bytes,
        }
    }
}

impl safetensors::View for &Stored {
    fn dtype(&self) -> safetensors::Dtype {
        self.dtype
    }
    fn shape(&self) -> &[usize] {
        &self.shape
    }
    fn data(&self) -> std::borrow::Cow<'_, [u8]> {
        (&self.bytes).into()
    }
    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

impl RetrievalModel {
    /// Writes the model losslessly and atomically (a temporary file next to `path`, then a rename).
    ///
    /// # Errors
    /// [`RetrievalError::Write`]; an existing file at `path` is then unchanged.
    pub fn save(&self, path: &Path) -> Result<(), RetrievalError> {
        let write = |source| RetrievalError::Write {
            path: path.to_owned(),
            source,
        };
        let (dim, words) = (self.dim(), self.words());
        let centroids: Vec<f64> = self
            .codebook()
            .to_rows()
            .into_iter()
            .map(f64::from)
            .collect();
        let stored = [
            ("mean", Stored::new(vec![dim], self.mean())),
            ("projection", Stored::new(vec![dim, dim], self.projection())),
            ("centroids", Stored::new(vec![words, dim], &centroids)),
        ];
        let header = Header {
            version: VERSION,
            weights_hash: self.info().weights_hash.clone(),
            images: self.info().images,
            dim,
            words,
        };
        let header = serde_json::to_string(&header).map_err(|e| write(e.into()))?;
        let metadata = HashMap::from([(METADATA.to_owned(), header)]);
        let views = stored.iter().map(|(name, tensor)| (*name, tensor));
        let bytes = safetensors::serialize(views, Some(metadata))
            .map_err(|e| write(std::io::Error::other(e)))?;
        files::write_bytes(path, &bytes).map_err(write)
    }

    /// Reads a file written by [`RetrievalModel::save`].
    ///
    /// # Errors
    /// [`RetrievalError::File`] if the file cannot be read or has another format;
    /// [`RetrievalError::Model`] if its tensors do not match each other.
    pub fn load(path: &Path) -> Result<Self, RetrievalError> {
        let map = map_file(path)?;
        let format = |expected: &str, found: String| CheckpointError::Format {
            path: path.to_owned(),
            expected: expected.into(),
            found,
        };
        let whole = "a complete codebook made by `mast3r-slam codebook build`";
        let damaged = |e: safetensors::SafeTensorError| {
            format(
                whole,
                format!("{} bytes that cannot be parsed ({e})", map.len()),
            )
        };
        let (_, metadata) = safetensors::SafeTensors::read_metadata(&map).map_err(damaged)?;
        let header = metadata
            .metadata()
            .as_ref()
            .and_then(|metadata| metadata.get(METADATA))
            .ok_or_else(|| format(whole, "a safetensors file without its header".into()))?;
        let header: Header = serde_json::from_str(header)
            .map_err(|e| format(whole, format!("an unreadable header ({e})")))?;
        if header.version != VERSION {
            return Err(format(
                &format!("a codebook of version {VERSION}"),
                format!("version {}: build it again", header.version),
            )
            .into());
        }
        let file = safetensors::SafeTensors::deserialize(&map).map_err(damaged)?;
        let get = |name: &str, shape: &[usize]| {
            let tensor = file.tensor(name).map_err(damaged)?;
            if tensor.shape() != shape {
                return Err(format(
                    &format!("{name} of shape {shape:?}"),
                    format!("{:?}", tensor.shape()),
                ));
            }
            values(tensor.dtype(), tensor.data())
                .ok_or_else(|| format("float tensors", format!("{name} of {:?}", tensor.dtype())))
        };
        let (dim, words) = (header.dim, header.words);
        let centroids: Vec<f32> = get("centroids", &[words, dim])?
            .into_iter()
            .map(|v| v as f32)
            .collect();
        Self::new(
            get("mean", &[dim])?,
            get("projection", &[dim, dim])?,
            &centroids,
            CodebookInfo {
                weights_hash: header.weights_hash,
                images: header.images,
            },
        )
    }
}

fn values(dtype: safetensors::Dtype, bytes: &[u8]) -> Option<Vec<f64>> {
    fn read<const N: usize>(bytes: &[u8], to_f64: impl Fn([u8; N]) -> f64) -> Option<Vec<f64>> {
        let (values, _) = bytes.as_chunks::<N>();
        Some(values.iter().map(|&v| to_f64(v)).collect())
    }
    match dtype {
        safetensors::Dtype::F16 => read(bytes, |v| f16::from_le_bytes(v).to_f64()),
        safetensors::Dtype::F32 => read(bytes, |v| f32::from_le_bytes(v).into()),
        safetensors::Dtype::F64 => read(bytes, f64::from_le_bytes),
        _ => None,
    }
}
