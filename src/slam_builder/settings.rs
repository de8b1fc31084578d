//! Resolution of the configuration and the weights.

use super::{OpenError, assets};
use crate::config::{
    self, BackendChoice, Config, ConfigError, DeviceChoice, Loops, Setting, Threads,
};
use crate::weights;
use std::path::{Path, PathBuf};

/// Configuration for the bundled model.
const MINI: &str = "mini.yaml";

/// Configuration for the bundled model at sizes above [`MINI_SIZE`].
const MINI_LARGE: &str = "mini_512.yaml";

/// [`MINI_LARGE`] for a calibrated camera.
const MINI_LARGE_CALIBRATED: &str = "mini_512_calib.yaml";

/// Maximum long side for [`MINI`], between the sizes for which the two configurations were tuned.
const MINI_SIZE: usize = 384;

/// Configuration to which single settings are applied.
#[derive(Debug, Clone, Default)]
pub enum Base {
    /// The configuration for the weights.
    #[default]
    OfWeights,
    /// A YAML file, or the built-in configuration of this name.
    Named(PathBuf),
    /// A complete configuration.
    Given(Box<Config>),
}

/// The chosen settings, before they are combined.
#[derive(Debug, Clone, Default)]
pub struct Choice {
    pub base: Base,
    /// `KEY=VALUE`, in order.
    pub overrides: Vec<String>,
    /// Keys and values, applied after `overrides`.
    pub values: Vec<(String, serde_json::Value)>,
    pub weights: Option<PathBuf>,
    pub codebook: Option<PathBuf>,
    pub size: Option<usize>,
    pub stride: Option<usize>,
    pub calibrated: Option<bool>,
    pub device: Option<DeviceChoice>,
    pub backend: Option<BackendChoice>,
    pub threads: Option<Threads>,
    pub loops: Option<Loops>,
    pub max_keyframes: Option<usize>,
}

/// Inputs of a run.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The effective configuration, validated.
    pub config: Config,
    /// The weights file.
    pub weights: PathBuf,
    /// Whether they are the bundled model.
    pub bundled: bool,
}

impl Settings {
    /// Name of the weights, for messages.
    pub fn weights_name(&self) -> String {
        match self.bundled {
            true => "bundled mini model".into(),
            false => self.weights.display().to_string(),
        }
    }
}

impl Choice {
    /// The effective configuration. The default configuration of the bundled model depends on the network's size
    /// and on whether the camera is calibrated.
    pub fn config(&self) -> Result<Config, ConfigError> {
        let mut config = self.base_config()?;
        if let Some(path) = &self.weights {
            config.network.weights = path.to_string_lossy().into_owned();
        }
        self.apply(&mut config);
        config.validate()?;
        Ok(config)
    }

    fn base_config(&self) -> Result<Config, ConfigError> {
        let load = |base| config::load_settings(base, &self.settings_in_order());
        let path = match &self.base {
            Base::Given(config) => return load(config::Base::Given(config)),
            Base::Named(path) => return load(config::Base::Named(path)),
            Base::OfWeights if self.has_own_weights() => return load(config::Base::Defaults),
            Base::OfWeights => MINI,
        };
        let config = load(config::Base::Builtin(path))?;
        if self.size.unwrap_or(config.network.size) <= MINI_SIZE {
            return Ok(config);
        }
        load(config::Base::Builtin(
            match self.calibrated.unwrap_or(config.use_calib) {
                true => MINI_LARGE_CALIBRATED,
                false => MINI_LARGE,
            },
        ))
    }

    fn settings_in_order(&self) -> Vec<Setting<'_>> {
        let overrides = self.overrides.iter().map(|text| Setting::Text(text));
        let values = self.values.iter();
        overrides
            .chain(values.map(|(key, value)| Setting::Value { key, value }))
            .collect()
    }

    fn has_own_weights(&self) -> bool {
        let key = "network.weights";
        let in_text = |text: &String| {
            let name = text.split_once('=').map(|(name, _)| name.trim());
            name == Some(key)
        };
        self.weights.is_some()
            || self.overrides.iter().any(in_text)
            || self.values.iter().any(|(name, _)| name == key)
    }

    fn apply(&self, config: &mut Config) {
        fn set<T: Copy>(to: &mut T, value: Option<T>) {
            if let Some(value) = value {
                *to = value;
            }
        }
        set(&mut config.use_calib, self.calibrated);
        set(&mut config.network.size, self.size);
        set(&mut config.dataset.subsample, self.stride);
        set(&mut config.device, self.device);
        set(&mut config.network.backend, self.backend);
        set(&mut config.threads, self.threads);
        set(&mut config.loops, self.loops);
        set(&mut config.local_opt.max_keyframes, self.max_keyframes);
        if let Some(path) = &self.codebook {
            config.retrieval.codebook = path.to_string_lossy().into_owned();
        }
    }

    /// Configuration and weights. Files given explicitly must be readable.
    pub fn settings(&self) -> Result<Settings, OpenError> {
        let config = self.config()?;
        let named = &config.network.weights;
        let own: Option<PathBuf> = (!named.is_empty()).then(|| named.into());
        let bundled = own.is_none();
        let weights = match own {
            Some(path) => {
                let path = located(&path)?;
                readable("the weights", &path)?;
                path
            }
            None => assets::find(assets::MINI_WEIGHTS)?,
        };
        if !config.retrieval.codebook.is_empty() {
            readable("the codebook", config.retrieval.codebook.as_ref())?;
        }
        Ok(Settings {
            config,
            weights,
            bundled,
        })
    }
}

/// The file that `weights` means: itself, or the weights of this name.
///
/// # Errors
/// If they have a name and are not here.
pub fn located(path: &Path) -> Result<PathBuf, OpenError> {
    match weights::named(path) {
        Some(entry) if entry.bundled() => assets::find(assets::MINI_WEIGHTS),
        Some(entry) => Ok(weights::locate(entry, &weights::folder())?),
        None => Ok(path.to_owned()),
    }
}

/// Rejects a file that cannot be opened before any work is done.
fn readable(what: &'static str, path: &Path) -> Result<(), OpenError> {
    match std::fs::File::open(path) {
        Ok(_) => Ok(()),
        Err(cause) => Err(OpenError::Unreadable {
            what,
            path: path.to_owned(),
            cause,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bundled_model_brings_its_configuration() {
        let mini = Choice::default().config().expect("mini");
        assert_eq!(mini.network.size, 256);

        // At a larger size, others are used, however that size was requested.
        let large = Choice {
            size: Some(512),
            ..Default::default()
        };
        let large = large.config().expect("mini");
        assert_ne!(
            large.tracking.match_frac_thresh,
            mini.tracking.match_frac_thresh
        );
        let set = Choice {
            overrides: vec!["network.size=512".into()],
            ..Default::default()
        };
        assert_eq!(set.config().expect("mini"), large);
        let value = Choice {
            values: vec![("network.size".into(), 512.into())],
            ..Default::default()
        };
        assert_eq!(value.config().expect("mini"), large);
        let calibrated = Choice {
            size: Some(512),
            calibrated: Some(true),
            ..Default::default()
        };
        let set = Choice {
            overrides: vec!["network.size=512".into(), "use_calib=true".into()],
            ..Default::default()
        };
        let set = set.config().expect("mini");
        assert_eq!(set.tracking, calibrated.config().expect("mini").tracking);
        assert_ne!(set.tracking, large.tracking);

        let own = Choice {
            weights: Some("big.pth".into()),
            ..Default::default()
        };
        let own = own.config().expect("base");
        assert_eq!(
            (own.network.size, own.network.weights.as_str()),
            (512, "big.pth")
        );

        let set = Choice {
            overrides: vec!["network.weights=big.pth".into()],
            ..Default::default()
        };
        assert_eq!(set.config().expect("base").network.size, 512);

        let named = Choice {
            base: Base::Named("calib".into()),
            ..Default::default()
        };
        let named = named.config().expect("calib");
        assert!(named.use_calib && named.network.size == 512);
    }

    #[test]
    fn single_settings_win_over_the_configuration() {
        let choice = Choice {
            base: Base::Given(Box::default()),
            calibrated: Some(true),
            size: Some(320),
            stride: Some(4),
            device: Some(DeviceChoice::Cpu),
            backend: Some(BackendChoice::Onnxruntime),
            threads: Some(Threads::Single),
            loops: Some(Loops::Off),
            max_keyframes: Some(7),
            codebook: Some("c.bin".into()),
            ..Default::default()
        };
        let config = choice.config().expect("a configuration");
        assert!(config.use_calib);
        assert_eq!(config.network.size, 320);
        assert_eq!(config.dataset.subsample, 4);
        assert_eq!(config.device, DeviceChoice::Cpu);
        assert_eq!(config.network.backend, BackendChoice::Onnxruntime);
        assert_eq!(config.threads, Threads::Single);
        assert_eq!(config.loops, Loops::Off);
        assert_eq!(config.local_opt.max_keyframes, 7);
        assert_eq!(config.retrieval.codebook, "c.bin");
    }
}
