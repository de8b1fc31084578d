//! Selection of the codebook for place recognition.

use super::{OpenError, Settings};
use crate::compute::retrieval::RetrievalModel;
use crate::inference::InferenceError;
use crate::network;
use crate::slam::Note;
use std::path::Path;
use std::sync::Arc;

/// Loads the codebook of the configuration, or the one next to the weights: `codebook.safetensors`,
/// or the official pair `<weights>_retrieval_trainingfree.pth` and `<weights>_retrieval_codebook.pkl`.
pub fn find(
    settings: &Settings,
    notes: &mut Vec<Note>,
) -> Result<Option<Arc<RetrievalModel>>, OpenError> {
    let named = &settings.config.retrieval.codebook;
    let weights = &settings.weights;
    let stem = weights.file_stem().unwrap_or_default().to_string_lossy();
    let official = weights.with_file_name(format!("{stem}_retrieval_trainingfree.pth"));
    let path = match named.as_str() {
        "" if official.exists() => official,
        "" => weights.with_file_name("codebook.safetensors"),
        named => named.into(),
    };
    if named.is_empty() && !path.exists() {
        notes.push(Note::warning(format!(
            "no codebook next to {}: loops are not closed; build one with `mast3r-slam codebook build`",
            weights.display()
        )));
        return Ok(None);
    }
    let model = match path.to_string_lossy().rsplit_once('_') {
        Some((head, tail)) if tail.ends_with(".pth") => {
            RetrievalModel::load_official(&path, format!("{head}_codebook.pkl").as_ref())?
        }
        _ => RetrievalModel::load(&path)?,
    };
    notes.extend(built_from_other_weights(&path, &model, weights)?);
    Ok(Some(Arc::new(model)))
}

/// A codebook contains the hash of the weights that its features came from; with other weights it recognises
/// nothing. The official codebook has no hash.
fn built_from_other_weights(
    codebook: &Path,
    model: &RetrievalModel,
    weights: &Path,
) -> Result<Option<Note>, OpenError> {
    let of = &model.info().weights_hash;
    if of.is_empty() || *of == network::hash(weights).map_err(InferenceError::from)? {
        return Ok(None);
    }
    Ok(Some(Note::warning(format!(
        "{} was built for other weights than {}: place recognition will be unreliable; build one with \
         `mast3r-slam codebook build`",
        codebook.display(),
        weights.display()
    ))))
}
