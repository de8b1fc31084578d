//! The manifest stored with an engine, which describes its purpose and origin.

use super::error::TensorRtError;
use super::target::{Flavour, Target, list};
use super::version::Version;
use crate::files;
use crate::network::Network;
use crate::network::onnx::Precision;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::UNIX_EPOCH;

/// File name of the manifest in an engine folder.
pub const FILE: &str = "manifest.json";

/// Version of the manifest format and of the engines' inputs and outputs. Engines of another
/// version are rebuilt.
pub const FORMAT: u32 = 2;

/// The engines of a network. Each stores its own weights on the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Image to tokens.
    Encoder,
    /// Tokens of a pair to dense outputs: decoder and heads.
    Decoder,
    /// Like the decoder, for view 1 of an image paired with itself.
    Mono,
    /// Tokens of two images to the dense outputs of both, in both directions: an edge of the graph.
    Edge,
    /// Two edges at once.
    TwoEdges,
}

impl Part {
    pub const ALL: [Self; 5] = [
        Self::Encoder,
        Self::Decoder,
        Self::Mono,
        Self::Edge,
        Self::TwoEdges,
    ];

    /// Engines required to run the network. The decoder can replace the others but is slower.
    pub const NEEDED: [Self; 2] = [Self::Encoder, Self::Decoder];

    /// Engines built by default.
    pub const USUAL: [Self; 4] = [Self::Encoder, Self::Decoder, Self::Mono, Self::Edge];

    /// The name used in files and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Encoder => "encoder",
            Self::Decoder => "decoder",
            Self::Mono => "mono",
            Self::Edge => "edge",
            Self::TwoEdges => "two_edges",
        }
    }

    /// Number of edges decoded per call.
    pub fn edges(self) -> Option<usize> {
        match self {
            Self::Encoder | Self::Decoder | Self::Mono => None,
            Self::Edge => Some(1),
            Self::TwoEdges => Some(2),
        }
    }

    /// The parts to build for a request: the needed ones plus `asked`, each once, without those
    /// unavailable in `precision`. (The both-ways decoder is not available in FP8; running the pair
    /// decoder twice is faster.)
    pub fn to_build(asked: &[Self], precision: Precision) -> Vec<Self> {
        let wanted = |part: &Self| {
            Self::NEEDED.contains(part)
                || asked.contains(part) && (part.edges().is_none() || precision != Precision::Fp8)
        };
        Self::ALL.into_iter().filter(wanted).collect()
    }

    /// File name of the engine in its folder.
    pub fn file(self) -> String {
        format!("{}.engine", self.name())
    }

    /// File name of the list of its kernels in the same folder.
    pub fn layers_file(self) -> String {
        format!("{}.layers.txt", self.name())
    }
}

impl std::str::FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|part| part.name() == text);
        found.ok_or_else(|| "expected encoder, decoder, mono, edge or two_edges".into())
    }
}

/// The weights file that an engine was built from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Weights {
    /// File name, for display only.
    pub name: String,
    /// SHA-256 of the content.
    pub sha256: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Modification time in nanoseconds since 1970.
    pub modified: u64,
}

impl Weights {
    /// Reads the whole file at `path`.
    pub fn of(path: &Path) -> Result<Self, TensorRtError> {
        let (bytes, modified) = stamp(path)?;
        let sha256 = crate::network::hash(path).map_err(|error| TensorRtError::Content {
            path: path.to_owned(),
            expected: "weights".into(),
            found: error.to_string(),
        })?;
        Ok(Self {
            name: path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned(),
            sha256,
            bytes,
            modified,
        })
    }
}

/// Total size and latest modification time of all files that make up the weights.
fn stamp(path: &Path) -> Result<(u64, u64), TensorRtError> {
    // An unreadable network is reported when it is loaded.
    let files = crate::network::files(path).unwrap_or_else(|_| vec![path.to_owned()]);
    let (mut bytes, mut newest) = (0, 0);
    for path in files {
        let metadata = std::fs::metadata(&path).map_err(TensorRtError::io("read", &path))?;
        let modified = metadata.modified().ok();
        let modified = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let modified = modified.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(0));
        bytes += metadata.len();
        newest = newest.max(modified);
    }
    Ok((bytes, newest))
}

/// The weights at a path, read only if size and time are inconclusive.
pub struct WeightsFile<'a> {
    path: &'a Path,
    stamp: (u64, u64),
    known: std::cell::OnceCell<String>,
}

impl<'a> WeightsFile<'a> {
    /// The file at `path`, which must exist.
    pub fn new(path: &'a Path) -> Result<Self, TensorRtError> {
        Ok(Self {
            path,
            stamp: stamp(path)?,
            known: std::cell::OnceCell::new(),
        })
    }

    /// Whether the engine was built from these weights, judged by size and modification time as in
    /// build tools, otherwise by content.
    fn are(&self, weights: &Weights) -> bool {
        let (bytes, modified) = self.stamp;
        if weights.bytes != bytes {
            return false;
        }
        if weights.modified == modified && modified != 0 {
            return true;
        }
        let sha256 = self
            .known
            .get_or_init(|| crate::network::hash(self.path).unwrap_or_default());
        weights.sha256 == *sha256
    }
}

/// Dimensions of the network, for display only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkSummary {
    /// Channels and blocks of the encoder.
    pub encoder: [usize; 2],
    /// Channels and blocks of each decoder branch.
    pub decoder: [usize; 2],
    /// Channels per descriptor.
    pub descriptor: usize,
    /// Side of a patch in pixels.
    pub patch: usize,
}

impl NetworkSummary {
    pub fn of(network: &Network) -> Self {
        let a = &network.architecture;
        Self {
            encoder: [a.encoder.width, a.encoder.depth],
            decoder: [a.decoder.width, a.decoder.depth],
            descriptor: a.descriptor_dim,
            patch: a.patch(),
        }
    }
}

/// The TensorRT library that built an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Builder {
    pub flavour: Flavour,
    pub version: Version,
}

/// The file of one engine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineFile {
    pub part: Part,
    /// Size in bytes.
    pub bytes: u64,
    /// CRC-32 of the content, to detect truncated or damaged files before TensorRT reads them.
    pub crc32: u32,
    /// Device memory for execution in addition to inputs, outputs and weights, in bytes, as planned
    /// by the builder; compilation on the target GPU can change it.
    pub activation_bytes: u64,
    /// Device memory for weights, in bytes.
    pub weight_bytes: u64,
    /// Number of kernels and other steps.
    pub layers: usize,
    /// Build time in seconds.
    pub build_seconds: f64,
}

/// Purpose and origin of a set of engines.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    pub format: u32,
    /// Version of the program that built it.
    pub program: String,
    /// Weights that it was built from.
    pub weights: Weights,
    pub network: NetworkSummary,
    /// Image width and height.
    pub size: [usize; 2],
    /// Images or pairs per call.
    pub batch: usize,
    /// Precision of matrix products.
    #[serde(with = "by_name")]
    pub precision: Precision,
    pub tensorrt: Builder,
    /// GPUs it can run on.
    pub targets: Vec<Target>,
    pub engines: Vec<EngineFile>,
}

/// Serialises precisions by name.
pub(super) mod by_name {
    use crate::network::onnx::Precision;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(precision: &Precision, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(precision.name())
    }

    pub fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Precision, D::Error> {
        let text = String::deserialize(from)?;
        text.parse()
            .map_err(|e| D::Error::custom(format!("{e}, found {text}")))
    }
}

/// Requirements for an engine.
pub struct Wanted<'a> {
    pub weights: &'a WeightsFile<'a>,
    /// Image width and height.
    pub size: [usize; 2],
    /// Images or pairs per call.
    pub batch: usize,
    /// Precision of matrix products; `None` for any.
    pub precision: Option<Precision>,
    /// The library that will run it.
    pub tensorrt: Builder,
    pub target: Target,
}

impl Manifest {
    pub fn read(folder: &Path) -> Result<Self, TensorRtError> {
        let path = folder.join(FILE);
        let text = std::fs::read_to_string(&path).map_err(TensorRtError::io("read", &path))?;
        let content = |found: String| TensorRtError::Content {
            path: path.clone(),
            expected: format!("a manifest of format {FORMAT}"),
            found,
        };
        // Check the format first: other formats may have other keys.
        let tree: serde_json::Value =
            serde_json::from_str(&text).map_err(|e| content(e.to_string()))?;
        match tree.get("format").and_then(serde_json::Value::as_u64) {
            Some(format) if format == u64::from(FORMAT) => {}
            Some(format) => return Err(content(format!("format {format}"))),
            None => return Err(content("no format".into())),
        }
        let manifest: Self = serde_json::from_value(tree).map_err(|e| content(e.to_string()))?;
        let complete = (Part::NEEDED.iter()).all(|part| manifest.engine(*part).is_some());
        if !complete {
            return Err(content("an engine that is not listed".into()));
        }
        Ok(manifest)
    }

    /// Writes the manifest to `folder`. It is the last file written and makes the engine valid.
    pub fn write(&self, folder: &Path) -> Result<(), TensorRtError> {
        let path = folder.join(FILE);
        let text = serde_json::to_string_pretty(self).map_err(|e| TensorRtError::Content {
            path: path.clone(),
            expected: "a manifest".into(),
            found: e.to_string(),
        })?;
        files::write_bytes(&path, format!("{text}\n").as_bytes())
            .map_err(TensorRtError::io("write", &path))
    }

    /// The file of one part.
    pub fn engine(&self, part: Part) -> Option<&EngineFile> {
        self.engines.iter().find(|engine| engine.part == part)
    }

    /// Device memory in bytes: weights, plus twice the activations of parts that both tracking and
    /// mapping run.
    pub fn device_bytes(&self) -> u64 {
        let of = |f: fn(&EngineFile) -> u64| self.engines.iter().map(f);
        let weights: u64 = of(|engine| engine.weight_bytes).sum();
        weights + 2 * of(|engine| engine.activation_bytes).max().unwrap_or(0)
    }

    /// Reasons why the engine does not meet the requirements; empty if it does.
    pub fn mismatches(&self, wanted: &Wanted<'_>) -> Vec<String> {
        let mut reasons = Vec::new();
        let mut differs = |is: bool, reason: String| {
            if is {
                reasons.push(reason);
            }
        };
        let [width, height] = self.size;
        differs(
            self.size != wanted.size,
            format!(
                "its input size is {width}x{height}, not {}x{}",
                wanted.size[0], wanted.size[1]
            ),
        );
        differs(
            self.batch != wanted.batch,
            format!("its batch is {}, not {}", self.batch, wanted.batch),
        );
        if let Some(precision) = wanted.precision {
            differs(
                self.precision != precision,
                format!("it computes in {}, not {precision}", self.precision),
            );
        }
        differs(
            !self.targets.contains(&wanted.target),
            format!("it is for {}, not {}", list(&self.targets), wanted.target),
        );
        let (built, here) = (self.tensorrt, wanted.tensorrt);
        let same = built.flavour == here.flavour
            && (built.version.major, built.version.minor)
                == (here.version.major, here.version.minor);
        differs(
            !same,
            format!(
                "it was built by {} {}, and {} {} is installed",
                built.flavour.name(),
                built.version,
                here.flavour.name(),
                here.version
            ),
        );
        // Checked last, because it may have to read the file.
        if reasons.is_empty() && !wanted.weights.are(&self.weights) {
            reasons.push(format!(
                "it was built from other weights ({}, or this file before it changed)",
                self.weights.name
            ));
        }
        reasons
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn manifest(weights: &Path) -> Manifest {
        let file = |part| EngineFile {
            part,
            bytes: 5,
            crc32: crc32fast::hash(b"12345"),
            activation_bytes: 1 << 20,
            weight_bytes: 1 << 24,
            layers: 9,
            build_seconds: 1.5,
        };
        Manifest {
            format: FORMAT,
            program: "0.1.0".into(),
            weights: Weights::of(weights).expect("weights"),
            network: NetworkSummary {
                encoder: [1024, 24],
                decoder: [768, 12],
                descriptor: 24,
                patch: 16,
            },
            size: [512, 384],
            batch: 1,
            precision: Precision::F16,
            tensorrt: Builder {
                flavour: Flavour::Rtx,
                version: [1, 7, 1].into(),
            },
            targets: vec![Target::new(12, 0), Target::new(8, 9)],
            engines: Part::ALL.map(file).to_vec(),
        }
    }

    pub(in super::super) fn wanted<'a>(weights: &'a WeightsFile<'a>) -> Wanted<'a> {
        Wanted {
            weights,
            size: [512, 384],
            batch: 1,
            precision: Some(Precision::F16),
            tensorrt: Builder {
                flavour: Flavour::Rtx,
                version: [1, 7, 0].into(),
            },
            target: Target::new(12, 0),
        }
    }

    #[test]
    fn a_manifest_survives_its_file() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let weights = folder.path().join("w.pth");
        std::fs::write(&weights, "weights").expect("a file");
        let manifest = manifest(&weights);
        manifest.write(folder.path()).expect("written");
        assert_eq!(Manifest::read(folder.path()).expect("read"), manifest);
    }

    #[test]
    fn an_invalid_manifest_is_refused() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let weights = folder.path().join("w.pth");
        std::fs::write(&weights, "weights").expect("a file");
        let good = serde_json::to_value(manifest(&weights)).expect("JSON");
        let with = |key: &str, value: serde_json::Value| {
            let mut tree = good.clone();
            tree[key] = value;
            tree.to_string()
        };
        let one_engine = serde_json::json!([good["engines"][0]]);
        for (text, part) in [
            (String::new(), "EOF"),
            ("{".into(), "EOF"),
            ("[]".into(), "no format"),
            (with("format", 1.into()), "format 1"),
            (with("targets", serde_json::json!(["fast"])), "fast"),
            (with("precision", "fp12".into()), "fp12"),
            (with("engines", one_engine), "not listed"),
            (with("surprise", 1.into()), "surprise"),
        ] {
            std::fs::write(folder.path().join(FILE), &text).expect("a file");
            let message = Manifest::read(folder.path()).unwrap_err().to_string();
            assert!(message.contains(part), "{part:?} is not in {message}");
        }
        let missing = Manifest::read(&folder.path().join("nowhere"));
        assert!(matches!(missing, Err(TensorRtError::Io { .. })));
    }

    #[test]
    fn what_is_needed_is_built_whatever_is_asked_for() {
        use Part::{Decoder, Edge, Encoder, Mono, TwoEdges};
        let of = |asked: &[Part], precision| Part::to_build(asked, precision);
        assert_eq!(of(&[], Precision::F16), [Encoder, Decoder]);
        let twice = [Mono, Encoder, Mono];
        assert_eq!(of(&twice, Precision::F16), [Encoder, Decoder, Mono]);
        assert_eq!(of(&Part::ALL, Precision::Bf16), Part::ALL);
        let edges = [TwoEdges, Mono, Edge];
        assert_eq!(of(&edges, Precision::Fp8), [Encoder, Decoder, Mono]);
        for part in Part::ALL {
            assert_eq!(part.name().parse(), Ok(part));
            let written = serde_json::to_value(part).expect("JSON");
            assert_eq!(written, part.name());
        }
        assert!("edges".parse::<Part>().is_err());
    }

    #[test]
    fn every_difference_has_its_reason() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("w.pth");
        std::fs::write(&path, "weights").expect("a file");
        let manifest = manifest(&path);
        let weights = WeightsFile::new(&path).expect("weights");
        let fits = || wanted(&weights);
        assert_eq!(manifest.mismatches(&fits()), Vec::<String>::new());
        let any = Wanted {
            precision: None,
            ..fits()
        };
        assert_eq!(manifest.mismatches(&any), Vec::<String>::new());

        let version = |flavour, version: [u32; 3]| Builder {
            flavour,
            version: version.into(),
        };
        for (wanted, part) in [
            (
                Wanted {
                    size: [512, 288],
                    ..fits()
                },
                "512x288",
            ),
            (Wanted { batch: 2, ..fits() }, "batch"),
            (
                Wanted {
                    precision: Some(Precision::Bf16),
                    ..fits()
                },
                "bf16",
            ),
            (
                Wanted {
                    target: Target::new(9, 0),
                    ..fits()
                },
                "sm_90",
            ),
            (
                Wanted {
                    tensorrt: version(Flavour::Rtx, [1, 8, 0]),
                    ..fits()
                },
                "1.8.0",
            ),
            (
                Wanted {
                    tensorrt: version(Flavour::Enterprise, [1, 7, 0]),
                    ..fits()
                },
                "TensorRT 1.7.0",
            ),
        ] {
            let reasons = manifest.mismatches(&wanted);
            assert_eq!(reasons.len(), 1, "{reasons:?}");
            assert!(reasons[0].contains(part), "{part:?} is not in {reasons:?}");
        }
    }

    #[test]
    fn changed_weights_are_found() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("w.pth");
        std::fs::write(&path, "weights").expect("a file");
        let manifest = manifest(&path);
        let touch = |text: &str, seconds: u64| {
            std::fs::write(&path, text).expect("a file");
            let file = std::fs::File::options().write(true).open(&path);
            let time = UNIX_EPOCH + std::time::Duration::from_secs(seconds);
            file.and_then(|f| f.set_modified(time)).expect("a time");
            let weights = WeightsFile::new(&path).expect("weights");
            manifest.mismatches(&wanted(&weights)).is_empty()
        };
        assert!(touch("weights", 7), "the same content, written again");
        assert!(!touch("wEights", 7), "as long, but changed");
        assert!(!touch("weights and more", 7));
        assert!(WeightsFile::new(&folder.path().join("gone")).is_err());
    }
}
