//! The system as the command line drives it: preprocessing, tracking, mapping.

use super::CliError;
use super::session::Engine;
use super::settings::Settings;
use crate::geometry::{Calibration, Intrinsics};
use crate::image::{PreprocessOptions, Preprocessor, RgbImage};
use crate::inference::{Backend, cpu::CpuBackend};
use crate::map::{FrameRecord, MapSnapshot};
use crate::slam::retrieval::RetrievalModel;
use crate::slam::{FrameInput, MappingCounts, Pace, System};
use crate::source::SourceFrame;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// A loaded network and a system that it feeds.
pub struct SlamEngine {
    preprocessor: Preprocessor,
    system: System,
    description: String,
}

impl SlamEngine {
    /// Loads the network for images like `first` and sets the system up.
    pub fn new(
        settings: &Settings,
        calibration: Option<&Calibration>,
        first: &RgbImage,
        jobs: usize,
        pace: Pace,
    ) -> Result<Self, CliError> {
        let config = &settings.config;
        let options = PreprocessOptions {
            center_principal_point: config.dataset.center_principle_point,
            parity_intrinsics: config.dataset.parity_intrinsics,
        };
        let size = config.network.size;
        let preprocessor =
            Preprocessor::new(first.width, first.height, size, calibration, options)?;
        let (width, height) = preprocessor.output_size();
        let backend = load_backend(&settings.weights, width, height, jobs)?;
        let intrinsics = preprocessor.intrinsics();
        let description = describe(settings, backend.as_ref(), intrinsics.as_ref());
        let retrieval = retrieval_model(settings)?;
        let system = System::new(config.clone(), pace, backend, retrieval, intrinsics)?;
        Ok(Self {
            preprocessor,
            system,
            description,
        })
    }

    /// Counters of the mapping side, once the system is finished.
    pub fn mapping_counts(&self) -> Option<MappingCounts> {
        self.system.mapping_counts()
    }
}

impl Engine for SlamEngine {
    fn describe(&self) -> String {
        self.description.clone()
    }

    fn process(&mut self, frame: SourceFrame) -> Result<FrameRecord, CliError> {
        let start = Instant::now();
        let (width, height) = self.preprocessor.output_size();
        // A keyframe keeps its image, so each frame has its own.
        let mut image = RgbImage::new(width, height);
        self.preprocessor.run(&frame.image, &mut image)?;
        let input = FrameInput {
            index: frame.index,
            stamp: frame.stamp,
            image: Arc::new(image),
            preprocess_ms: start.elapsed().as_secs_f64() * 1e3,
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

/// The network on the CPU for images of `width × height`, tested before it is trusted.
pub fn load_backend(
    weights: &Path,
    width: usize,
    height: usize,
    jobs: usize,
) -> Result<Box<dyn Backend>, CliError> {
    Ok(Box::new(CpuBackend::load(weights, width, height, jobs)?))
}

fn retrieval_model(settings: &Settings) -> Result<Option<Arc<RetrievalModel>>, CliError> {
    let _ = settings;
    Ok(None)
}

fn describe(settings: &Settings, backend: &dyn Backend, intrinsics: Option<&Intrinsics>) -> String {
    let shape = backend.shape();
    let camera = match intrinsics {
        Some(k) => format!("calibrated, f = {:.1} × {:.1} px", k.fx, k.fy),
        None => "uncalibrated".into(),
    };
    format!(
        "{} at {}×{}, {}, {camera}",
        settings.weights_name(),
        shape.width,
        shape.height,
        backend.name(),
    )
}
