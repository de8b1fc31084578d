//! Construction of SLAM with [`Slam::builder`]. Weights, codebook, backend, device, calibration and
//! preprocessing are selected only here; the selection, and why faster options were unavailable, is kept as notes.

mod assets;
mod backend;
mod codebook;
mod depth;
mod device;
mod error;
mod map;
mod motion;
mod order;
mod results;
mod settings;
pub(crate) mod splat;
#[cfg(feature = "cuda")]
pub(crate) mod times;

#[cfg(any(feature = "tensorrt", feature = "cuda"))]
pub(crate) use assets::MINI_WEIGHTS;
pub(crate) use assets::{DEMO_SEQUENCE, FIGURES, find as find_asset};
#[cfg(not(all(feature = "tensorrt", feature = "onnxruntime", feature = "cuda")))]
pub(crate) use backend::not_built;
pub(crate) use backend::{Wanted, load as load_backend};
#[cfg(feature = "cuda")]
pub(crate) use backend::{load_named as load_named_backend, precision_of};
pub use depth::DepthFeed;
#[cfg(not(feature = "cuda"))]
pub(crate) use device::WITHOUT_CUDA;
pub use error::OpenError;
pub use map::{FinishError, Map};
pub use motion::MotionFeed;
pub use results::Written;
pub(crate) use results::{Facts, write as write_results};
pub(crate) use settings::Settings;
#[cfg(feature = "tensorrt")]
pub(crate) use settings::located;

use crate::compute::device::{Device, DeviceError, Setup};
use crate::config::{BackendChoice, Config, DeviceChoice, DeviceConfig, Loops, Threads};
use crate::geometry::{Calibration, Intrinsics};
use crate::image::encoding::ImageFormat;
use crate::image::{PreprocessOptions, Preprocessor};
use crate::inference::{Backend, InferenceError};
use crate::network::{self, WeightsHash};
use crate::slam::{About, Frame, MapMode, Note, Pace, Slam};
use crate::source::{Source, SourceError, SourceFrame};
use crate::weights;
use settings::{Base, Choice};
use std::path::PathBuf;
use std::sync::Arc;

/// Creates the device that SLAM runs on, for tests with their own device.
#[doc(hidden)]
pub type DeviceMaker =
    Arc<dyn Fn(&Setup, &ImageFormat) -> Result<Device, DeviceError> + Send + Sync>;

/// Puts something of a test between SLAM and its device.
#[doc(hidden)]
pub type DeviceWrapper = Arc<dyn Fn(Option<Intrinsics>, Device) -> Device + Send + Sync>;

/// Selects how SLAM runs. Defaults are the bundled model and its configuration, the codebook next to the
/// weights, and the fastest backend and device that work.
#[derive(Clone, Default)]
#[must_use = "nothing is loaded before `build`"]
pub struct SlamBuilder {
    choice: Choice,
    format: Option<ImageFormat>,
    calibration: Option<Calibration>,
    /// Whether images are undistorted even in uncalibrated runs.
    always_undistort: bool,
    /// Description of the source, for messages.
    origin: String,
    /// Why the source provided no image.
    unreadable: Option<Arc<SourceError>>,
    pace: Pace,
    jobs: Option<usize>,
    mask: Option<PathBuf>,
    map: Option<(PathBuf, MapMode)>,
    device_maker: Option<DeviceMaker>,
    device_wrapper: Option<DeviceWrapper>,
    #[cfg(all(feature = "tensorrt", feature = "cuda"))]
    observer: Option<Arc<dyn crate::inference::tensorrt::Observer>>,
}

impl<'a> From<&'a SourceFrame> for Frame<'a> {
    fn from(frame: &'a SourceFrame) -> Self {
        Self {
            index: frame.index,
            stamp: frame.stamp,
            image: (&frame.image).into(),
        }
    }
}

impl Slam {
    /// Creates a builder with default settings.
    pub fn builder() -> SlamBuilder {
        SlamBuilder::default()
    }
}

impl SlamBuilder {
    /// Sets the entire configuration [default: the one for the weights].
    pub fn config(mut self, config: Config) -> Self {
        self.choice.base = Base::Given(Box::new(config));
        self
    }

    /// Sets the configuration from a YAML file, or the built-in configuration of this name.
    pub fn config_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.choice.base = Base::Named(path.into());
        self
    }

    /// Sets keys of the configuration, such as `tracking.Q_conf=0.5`; the last value of a key wins.
    pub fn set(mut self, overrides: impl IntoIterator<Item = String>) -> Self {
        self.choice.overrides.extend(overrides);
        self
    }

    /// Sets one key of the configuration to a value of its type.
    pub(crate) fn set_value(mut self, key: impl Into<String>, value: serde_json::Value) -> Self {
        self.choice.values.push((key.into(), value));
        self
    }

    /// Sets the network's weights: `.pth` or `.safetensors`, or a name that `mast3r-slam weights list` shows [default:
    /// the bundled model].
    pub fn weights(mut self, path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        // The bundled model keeps its own configuration when it is named.
        let bundled = weights::named(&path).is_some_and(weights::Entry::bundled);
        self.choice.weights = (!bundled).then_some(path);
        self
    }

    /// Sets the codebook of place recognition [default: the one next to the weights].
    pub fn codebook(mut self, path: impl Into<PathBuf>) -> Self {
        self.choice.codebook = Some(path.into());
        self
    }

    /// Sets the long side of the network's input in pixels, a multiple of 16 (DUNE-MASt3R: 14).
    pub fn size(mut self, pixels: usize) -> Self {
        self.choice.size = Some(pixels);
        self
    }

    /// Uses every `frames`-th frame of a source.
    pub fn stride(mut self, frames: usize) -> Self {
        self.choice.stride = Some(frames);
        self
    }

    /// Sets the device for everything except the network.
    pub fn device(mut self, device: DeviceChoice) -> Self {
        self.choice.device = Some(device);
        self
    }

    /// Sets the backend of the network.
    pub fn backend(mut self, backend: BackendChoice) -> Self {
        self.choice.backend = Some(backend);
        self
    }

    /// Sets whether mapping runs on its own thread.
    pub fn threads(mut self, threads: Threads) -> Self {
        self.choice.threads = Some(threads);
        self
    }

    /// Sets whether loops are closed by place recognition.
    pub fn loops(mut self, loops: Loops) -> Self {
        self.choice.loops = Some(loops);
        self
    }

    /// Sets the maximum number of keyframes; 0: limited only by memory.
    pub fn max_keyframes(mut self, keyframes: usize) -> Self {
        self.choice.max_keyframes = Some(keyframes);
        self
    }

    /// Sets whether the camera's intrinsics are used.
    pub fn calibrated(mut self, calibrated: bool) -> Self {
        self.choice.calibrated = Some(calibrated);
        self
    }

    /// Sets the calibration of the camera's raw images, used in calibrated runs.
    pub fn calibration(mut self, calibration: Calibration) -> Self {
        self.calibration = Some(calibration);
        self
    }

    /// Sets the size, encoding and row stride of the images.
    pub fn format(mut self, format: ImageFormat) -> Self {
        self.format = Some(format);
        self
    }

    /// Takes the image format and the calibration from a source; reads its first image ahead.
    pub fn source(mut self, source: &mut dyn Source) -> Self {
        self.origin = source.describe();
        self.calibration = self.calibration.or(source.calibration().copied());
        self.always_undistort = source.always_undistort();
        match source.peek() {
            Ok(first) => self.format = first.map(|frame| (&frame.image).into()),
            Err(error) => self.unreadable = Some(Arc::new(error)),
        }
        self
    }

    /// Sets whether frames may wait for mapping [default: they may].
    pub fn pace(mut self, pace: Pace) -> Self {
        self.pace = pace;
        self
    }

    /// Sets the number of threads of the network on the CPU [default: all cores].
    pub fn jobs(mut self, threads: usize) -> Self {
        self.jobs = Some(threads);
        self
    }

    /// Hides pixels of every frame, see [`Slam::set_mask`]: those that are black in this image.
    pub fn mask(mut self, path: impl Into<PathBuf>) -> Self {
        self.mask = Some(path.into());
        self.set_value("tracking.masks", true.into())
    }

    /// Uses depth images of a sensor, see [`Slam::set_depth`].
    pub fn depth(self) -> Self {
        self.set_value("depth.use", true.into())
    }

    /// Opens this map: see [`Slam::open_map`].
    pub fn map(mut self, path: impl Into<PathBuf>, mode: MapMode) -> Self {
        self.map = Some((path.into(), mode));
        self
    }

    /// Runs on a device of the caller; no network is loaded.
    #[doc(hidden)]
    pub fn on_device(mut self, maker: DeviceMaker) -> Self {
        self.device_maker = Some(maker);
        self
    }

    /// Runs on what `wrapper` makes of the device.
    #[doc(hidden)]
    pub fn around_device(mut self, wrapper: DeviceWrapper) -> Self {
        self.device_wrapper = Some(wrapper);
        self
    }

    /// Observes the building of TensorRT engines [default: it is logged].
    #[cfg(all(feature = "tensorrt", feature = "cuda"))]
    pub(crate) fn observer(
        mut self,
        observer: Arc<dyn crate::inference::tensorrt::Observer>,
    ) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Without what belongs to another camera or a map, so that the bundled sequence can be tracked, and repeatably.
    pub(crate) fn for_bundled_sequence(mut self) -> Self {
        (self.mask, self.map, self.calibration, self.format) = (None, None, None, None);
        (self.choice.calibrated, self.choice.threads) = (Some(true), Some(Threads::Single));
        self.pace = Pace::default();
        self.set_value("tracking.masks", false.into())
            .set_value("depth.use", false.into())
    }

    /// Loads the network alone, for images of this size.
    pub(crate) fn load_network(&self, size: (usize, usize)) -> Result<Box<dyn Backend>, OpenError> {
        let settings = self.settings()?;
        let wanted = Wanted {
            config: &settings.config,
            weights: &settings.weights,
            size,
            jobs: self.thread_count(),
            #[cfg(all(feature = "tensorrt", feature = "cuda"))]
            observer: self.observer.clone(),
        };
        // SLAM is built after it, and tells these notes then.
        Ok(backend::load(&wanted, &mut Vec::new())?)
    }

    /// The effective configuration, whether or not the weights exist.
    pub(crate) fn effective_config(&self) -> Result<Config, OpenError> {
        Ok(self.choice.config()?)
    }

    /// The effective configuration and the weights, both checked but not loaded.
    pub(crate) fn settings(&self) -> Result<Settings, OpenError> {
        self.choice.settings()
    }

    /// Whether the image format is known.
    pub(crate) fn knows_format(&self) -> bool {
        self.format.is_some()
    }

    /// Number of threads of the network on the CPU.
    pub(crate) fn thread_count(&self) -> usize {
        self.jobs
            .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
    }

    /// Loads the network and the codebook, sets up the device with all of its memory, and loads the map, if any.
    /// Threads start only after all of this has succeeded.
    ///
    /// # Errors
    /// If settings are invalid, files are missing or damaged, a requested backend or device cannot be used,
    /// memory is insufficient, a calibrated run has no calibration, or the image format is unknown.
    pub fn build(self) -> Result<Slam, OpenError> {
        let settings = self.settings()?;
        let config = &settings.config;
        let calibration = match self.calibration {
            Some(calibration) if config.use_calib || self.always_undistort => Some(calibration),
            None if config.use_calib => {
                return Err(OpenError::NoCalibration {
                    origin: self.origin,
                });
            }
            _ => None,
        };
        if let Some(error) = self.unreadable {
            return Err(OpenError::Source(error));
        }
        let format = match self.format {
            Some(format) => format,
            None if self.origin.is_empty() => return Err(OpenError::NoFormat),
            None => {
                return Err(OpenError::NoImages {
                    origin: self.origin,
                });
            }
        };
        let mut notes = Vec::new();
        if self.always_undistort && calibration.is_none() {
            notes.push(Note::warning(format!(
                "{}: without the camera's sensor.yaml, images are not undistorted",
                self.origin
            )));
        }
        let jobs = self.thread_count();
        let own_device = self.device_maker.is_some();
        let patch = match own_device {
            true => PreprocessOptions::default().patch,
            false => network::patch_size(&settings.weights).map_err(InferenceError::from)?,
        };
        let options = PreprocessOptions {
            center_principal_point: config.dataset.center_principle_point,
            parity_intrinsics: config.dataset.parity_intrinsics,
            patch,
        };
        let preprocessor = Preprocessor::new(
            format.width,
            format.height,
            config.network.size,
            calibration.as_ref(),
            options,
        )?;
        let (width, height) = preprocessor.output_size();
        let view = preprocessor.view().or_lens(self.calibration);
        let of_masks = config.tracking.masks.then(|| preprocessor.clone());
        let intrinsics = preprocessor.intrinsics().filter(|_| config.use_calib);
        let camera = match intrinsics {
            Some(k) => format!("calibrated, f = {:.1} × {:.1} px", k.fx, k.fy),
            None if preprocessor.undistorts() => "uncalibrated, undistorted".into(),
            None => "uncalibrated".into(),
        };
        let shared_config = Arc::new(config.clone());
        let mut setup = Setup {
            config: Arc::new(DeviceConfig::from(config)),
            preprocessor: Some(preprocessor),
            intrinsics,
            places: None,
        };
        let device = match &self.device_maker {
            Some(make) => make(&setup, &format)?,
            None => {
                let wanted = Wanted {
                    config,
                    weights: &settings.weights,
                    size: (width, height),
                    jobs,
                    #[cfg(all(feature = "tensorrt", feature = "cuda"))]
                    observer: self.observer.clone(),
                };
                let network = backend::load(&wanted, &mut notes)?;
                setup.places = codebook::find(&settings, &mut notes)?;
                let continued = self
                    .map
                    .as_ref()
                    .filter(|(_, mode)| *mode == MapMode::Continue);
                let map = continued.map(|(path, _)| path.as_path());
                let spill = device::spill_directory(&config.memory.directory, map);
                device::make(config.device, network, setup, &format, spill, &mut notes)?
            }
        };
        let device = match &self.device_wrapper {
            Some(wrap) => wrap(intrinsics, device),
            None => device,
        };
        let description = format!(
            "{} at {width}×{height}, {}, {camera}",
            settings.weights_name(),
            device.tracking.describe(),
        );
        let weights = match own_device {
            true => WeightsHash::default(),
            false => WeightsHash::of(&settings.weights),
        };
        let about = About {
            description,
            weights_name: settings.weights_name(),
            weights,
            notes,
        };
        let slam = Slam::new(&shared_config, self.pace, device, intrinsics)?;
        let mut slam = slam
            .with_about(about)
            .with_preprocessor(of_masks)
            .with_view(view);
        if let Some(path) = &self.mask {
            let mask = crate::image::decode(path)?;
            let kept = slam.keep_mask(&(&mask).into());
            kept.map_err(|cause| OpenError::Mask {
                path: path.clone(),
                cause,
            })?;
        }
        if let Some((map, mode)) = &self.map {
            slam.open_map(map, *mode)?;
        }
        Ok(slam)
    }
}
