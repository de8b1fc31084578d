//! The system as the command line drives it: preprocessing, tracking, mapping.

use super::device::CameraImages;
use super::session::Engine;
use super::settings::Settings;
use super::{CliError, backend, device};
use crate::compute::device::Setup;
use crate::compute::retrieval::RetrievalModel;
use crate::geometry::Calibration;
use crate::image::encoding::RawImage;
use crate::image::{PreprocessOptions, Preprocessor, RgbImage};
use crate::inference::InferenceError;
use crate::map::{FrameRecord, MapSnapshot};
use crate::network::{self, CheckpointError};
#[cfg(feature = "bags")]
use crate::slam::{Covariance6, PoseTable};
use crate::slam::{FrameInput, MapLabel, Pace, SavedMap, SavedMapError, System};
use crate::source::SourceFrame;
#[cfg(feature = "bags")]
use arc_swap::ArcSwap;
#[cfg(feature = "bags")]
use nalgebra::Isometry3;
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, OnceLock};

/// A loaded network and a system that it feeds.
pub struct SlamEngine {
    system: System,
    description: String,
    weights: WeightsHash,
}

/// The hash of a weights file. Made when it is first asked for: of gigabytes it takes seconds.
#[derive(Debug, Clone)]
pub struct WeightsHash {
    path: PathBuf,
    hash: Arc<OnceLock<String>>,
}

impl WeightsHash {
    fn of(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            hash: Arc::default(),
        }
    }

    /// The hash, as a map's file has it.
    pub fn get(&self) -> Result<String, CheckpointError> {
        if let Some(hash) = self.hash.get() {
            return Ok(hash.clone());
        }
        let hash = network::hash(&self.path)?;
        Ok(self.hash.get_or_init(|| hash).clone())
    }
}

impl SlamEngine {
    /// Loads the network for images like `first` and sets the system up. Images are undistorted
    /// with `calibration`; its intrinsics are used where the configuration says so.
    pub fn new(
        settings: &Settings,
        calibration: Option<&Calibration>,
        first: &RgbImage,
        jobs: usize,
        pace: Pace,
    ) -> Result<Self, CliError> {
        let images = (&RawImage::from(first)).into();
        Self::for_images(settings, calibration, images, jobs, pace)
    }

    /// [`SlamEngine::new`] for any camera's images.
    pub fn for_images(
        settings: &Settings,
        calibration: Option<&Calibration>,
        images: CameraImages,
        jobs: usize,
        pace: Pace,
    ) -> Result<Self, CliError> {
        let config = &settings.config;
        let options = PreprocessOptions {
            center_principal_point: config.dataset.center_principle_point,
            parity_intrinsics: config.dataset.parity_intrinsics,
            patch: network::patch_size(&settings.weights).map_err(InferenceError::from)?,
        };
        let size = config.network.size;
        let preprocessor =
            Preprocessor::new(images.width, images.height, size, calibration, options)?;
        let (width, height) = preprocessor.output_size();
        let backend = backend::load(&backend::Wanted {
            config,
            weights: &settings.weights,
            size: (width, height),
            jobs,
        })?;
        let intrinsics = preprocessor.intrinsics().filter(|_| config.use_calib);
        let camera = match intrinsics {
            Some(k) => format!("calibrated, f = {:.1} × {:.1} px", k.fx, k.fy),
            None if preprocessor.undistorts() => "uncalibrated, undistorted".into(),
            None => "uncalibrated".into(),
        };
        let config = Arc::new(config.clone());
        let setup = Setup {
            config: Arc::clone(&config),
            preprocessor: Some(preprocessor),
            intrinsics,
            places: retrieval_model(settings)?,
        };
        let device = device::make(config.device, backend, setup, images)?;
        let description = format!(
            "{} at {width}×{height}, {}, {camera}",
            settings.weights_name(),
            device.tracking.describe(),
        );
        let system = System::with_device(config, pace, device, intrinsics)?;
        Ok(Self {
            system,
            description,
            weights: WeightsHash::of(&settings.weights),
        })
    }

    /// The keyframes' poses as they are published.
    #[cfg(feature = "bags")]
    pub fn poses(&self) -> Arc<ArcSwap<PoseTable>> {
        self.system.poses()
    }

    /// [`System::step`]
    #[cfg(feature = "bags")]
    pub fn step(&self) -> Option<Isometry3<f64>> {
        self.system.step()
    }

    /// [`System::covariance`]
    #[cfg(feature = "bags")]
    pub fn covariance(&self) -> Option<Covariance6> {
        self.system.covariance()
    }

    /// [`System::read_keyframes`]
    #[cfg(feature = "bags")]
    pub fn read_keyframes(
        &mut self,
        ids: Vec<u32>,
        reply: Box<dyn FnOnce(MapSnapshot) + Send>,
    ) -> bool {
        self.system.read_keyframes(ids, reply)
    }

    /// Goes on with the map in a file; before the first frame.
    pub fn load_map(&mut self, path: &Path) -> Result<SavedMap, CliError> {
        let weights = self.weights.get().map_err(InferenceError::from)?;
        Ok(self.system.load_map(path, &weights)?)
    }

    /// Saves the map into a file; after [`Engine::finish`].
    pub fn save_map(&mut self, path: &Path) -> Result<SavedMap, CliError> {
        let weights = self.weights.get().map_err(InferenceError::from)?;
        let label = MapLabel {
            weights,
            map_from_world: None,
        };
        let (sender, receiver) = sync_channel(1);
        let reply = Box::new(move |saved| {
            // There is room for the one answer.
            let _ = sender.send(saved);
        });
        let asked = self
            .system
            .save_map(path.to_owned(), Box::new(|| Ok(label)), reply);
        let answer = asked.then(|| receiver.recv().ok()).flatten();
        let gone = || SavedMapError::Label("the mapping side has no map any more".to_owned());
        Ok(answer.ok_or_else(gone)??)
    }

    /// The system and what it is made of, for whoever feeds it otherwise.
    #[cfg(any(feature = "dds", feature = "r2r"))]
    pub fn into_parts(self) -> (System, String, WeightsHash) {
        (self.system, self.description, self.weights)
    }
}

impl Engine for SlamEngine {
    fn describe(&self) -> String {
        self.description.clone()
    }

    fn process(&mut self, frame: SourceFrame) -> Result<FrameRecord, CliError> {
        let input = FrameInput {
            index: frame.index,
            stamp: frame.stamp,
            image: (&frame.image).into(),
        };
        Ok(self.system.process(input)?)
    }

    fn finish(&mut self) -> Result<(), CliError> {
        Ok(self.system.finish()?)
    }

    fn snapshot(&self) -> MapSnapshot {
        self.system.snapshot()
    }
}

/// The codebook of the configuration, or the one that lies beside the weights: `codebook.safetensors`,
/// or the official pair `<weights>_retrieval_trainingfree.pth` and `<weights>_retrieval_codebook.pkl`.
fn retrieval_model(settings: &Settings) -> Result<Option<Arc<RetrievalModel>>, CliError> {
    let named = &settings.config.retrieval.codebook;
    let stem = settings
        .weights
        .file_stem()
        .unwrap_or_default()
        .to_string_lossy();
    let official = settings
        .weights
        .with_file_name(format!("{stem}_retrieval_trainingfree.pth"));
    let path = match named.as_str() {
        "" if official.exists() => official,
        "" => settings.weights.with_file_name("codebook.safetensors"),
        named => named.into(),
    };
    if named.is_empty() && !path.exists() {
        tracing::warn!(
            "no codebook beside {}: loops are not closed; build one with `mast3r-slam codebook build`",
            settings.weights.display()
        );
        return Ok(None);
    }
    let model = match path.to_string_lossy().rsplit_once('_') {
        Some((head, tail)) if tail.ends_with(".pth") => {
            RetrievalModel::load_official(&path, format!("{head}_codebook.pkl").as_ref())?
        }
        _ => RetrievalModel::load(&path)?,
    };
    warn_of_other_weights(&path, &model, &settings.weights)?;
    Ok(Some(Arc::new(model)))
}

/// A codebook knows the weights whose features it was built from; with others it finds nothing. The
/// official one does not say.
fn warn_of_other_weights(
    codebook: &Path,
    model: &RetrievalModel,
    weights: &Path,
) -> Result<(), CliError> {
    let of = &model.info().weights_hash;
    if !of.is_empty() && *of != network::hash(weights).map_err(InferenceError::from)? {
        tracing::warn!(
            "{} was built from other weights than {}: places will hardly be recognised; build one with \
             `mast3r-slam codebook build`",
            codebook.display(),
            weights.display()
        );
    }
    Ok(())
}
