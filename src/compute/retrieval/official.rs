//! The official retrieval files: a whitening `.pth` and an ASMK codebook `.pkl`.

use std::path::Path;

use super::{CodebookInfo, RetrievalError, RetrievalModel};
use crate::network::checkpoint::map_file;
use crate::network::pickle::{Id, Pickle, Value};
use crate::network::{CheckpointError, Dtype, Tensor, pth};

impl RetrievalModel {
    /// Reads the official `*_retrieval_trainingfree.pth` and `*_retrieval_codebook.pkl`.
    ///
    /// # Errors
    /// [`RetrievalError::File`] if a file cannot be read or has other content;
    /// [`RetrievalError::Model`] if the two do not match.
    pub fn load_official(whitening: &Path, codebook: &Path) -> Result<Self, RetrievalError> {
        let (mean, projection) = read_whitening(whitening)?;
        let centroids = read_codebook(codebook)?;
        if centroids.dim != mean.len() {
            return Err(RetrievalError::Model {
                expected: format!(
                    "centroids of {} values each, as {} has",
                    mean.len(),
                    whitening.display()
                ),
                found: format!("{} in {}", centroids.dim, codebook.display()),
            });
        }
        Self::new(mean, projection, &centroids.values, CodebookInfo::default())
    }
}

/// `prewhiten.m` (1 × C) and `prewhiten.p` (C × C).
fn read_whitening(path: &Path) -> Result<(Vec<f64>, Vec<f64>), CheckpointError> {
    let checkpoint = pth::read(path)?;
    let format = |expected: String, found: String| CheckpointError::Format {
        path: path.to_owned(),
        expected,
        found,
    };
    let get = |name: &str| {
        checkpoint.tensors.get(name).ok_or_else(|| {
            let names: Vec<_> = checkpoint.tensors.keys().take(3).cloned().collect();
            format(
                format!("retrieval whitening with a tensor {name}"),
                format!(
                    "{} tensors ({}, …)",
                    checkpoint.tensors.len(),
                    names.join(", ")
                ),
            )
        })
    };
    let (mean, projection) = (get("prewhiten.m")?, get("prewhiten.p")?);
    let dim = mean.len();
    if projection.shape != [dim, dim] {
        return Err(format(
            format!("prewhiten.p of shape [{dim}, {dim}], as prewhiten.m has {dim} values"),
            format!("{:?}", projection.shape),
        ));
    }
    Ok((to_f64(mean), to_f64(projection)))
}

fn to_f64(tensor: &Tensor) -> Vec<f64> {
    match tensor.dtype {
        Dtype::F64 => {
            let (values, _) = tensor.bytes().as_chunks();
            values.iter().map(|&v| f64::from_le_bytes(v)).collect()
        }
        _ => tensor.to_f32().into_iter().map(f64::from).collect(),
    }
}

/// A two-dimensional array.
struct Centroids {
    dim: usize,
    values: Vec<f32>,
}

/// Reads `state.centroids` of an ASMK codebook.
fn read_codebook(path: &Path) -> Result<Centroids, CheckpointError> {
    let map = map_file(path)?;
    let format = |expected: &str, found: String| CheckpointError::Format {
        path: path.to_owned(),
        expected: expected.into(),
        found,
    };
    let pickle = Pickle::parse(&map)
        .map_err(|e| format("an asmk codebook (a pickle of plain data)", e.to_string()))?;
    let root = pickle.root();
    let array = pickle
        .lookup(root, "state")
        .and_then(|state| pickle.lookup(state, "centroids"))
        .ok_or_else(|| {
            format(
                "an asmk codebook with state.centroids",
                format!("{} without it", pickle.describe(root)),
            )
        })?;
    read_array(&pickle, array)
        .map_err(|found| format("centroids as a float32 matrix in row-major order", found))
}

/// Reads a NumPy float32 matrix; the error describes what was found instead.
fn read_array(pickle: &Pickle<'_>, id: Id) -> Result<Centroids, String> {
    let not_an_array = || pickle.describe(id);
    let object = pickle.object(id).ok_or_else(not_an_array)?;
    let (shape, dtype, columns_first, bytes) = match (object.module, object.name) {
        // Protocols 2 to 4: state is (version, shape, dtype, Fortran order, bytes).
        ("numpy.core.multiarray" | "numpy._core.multiarray", "_reconstruct") => {
            let state = object.state.and_then(|state| pickle.items(state));
            let Some(&[_, shape, dtype, fortran, bytes]) = state else {
                return Err("an array without state".into());
            };
            (
                shape,
                dtype,
                pickle.get(fortran) != &Value::Bool(false),
                bytes,
            )
        }
        // Protocol 5: arguments are (bytes, dtype, shape, order).
        ("numpy.core.numeric" | "numpy._core.numeric", "_frombuffer") => {
            let Some(&[bytes, dtype, shape, order]) = pickle.items(object.args) else {
                return Err("an array without arguments".into());
            };
            (shape, dtype, pickle.str(order) != Some("C"), bytes)
        }
        _ => return Err(not_an_array()),
    };
    let kind = dtype_name(pickle, dtype).ok_or("an unknown element type")?;
    if kind != "<f4" {
        return Err(format!("element type {kind}"));
    }
    let shape = pickle.items(shape).ok_or("no shape")?;
    let [Some(words), Some(dim)] = *shape.iter().map(|&n| pickle.usize(n)).collect::<Vec<_>>()
    else {
        return Err(format!("{} axes", shape.len()));
    };
    if columns_first && words > 1 && dim > 1 {
        return Err("column-major order".into());
    }
    let bytes = pickle.bytes(bytes).ok_or("no data")?;
    let expected = words.checked_mul(dim).and_then(|n| n.checked_mul(4));
    if expected != Some(bytes.len()) {
        return Err(format!("{} bytes for {words} × {dim} values", bytes.len()));
    }
    let (values, _) = bytes.as_chunks();
    Ok(Centroids {
        dim,
        values: values.iter().map(|&v| f32::from_le_bytes(v)).collect(),
    })
}

/// `numpy.dtype('f4', …)` with a state `(version, byte order, …)`, as `<f4`.
fn dtype_name(pickle: &Pickle<'_>, id: Id) -> Option<String> {
    let object = pickle.object(id).filter(|o| o.is("numpy", "dtype"))?;
    let kind = pickle.str(*pickle.items(object.args)?.first()?)?;
    let order = match object.state {
        Some(state) => pickle.str(*pickle.items(state)?.get(1)?)?,
        None => "<",
    };
    Some(format!("{order}{kind}"))
}
