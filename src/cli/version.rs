//! This program's version, and the commit, features and GPU targets that it was built from.

use serde::Serialize;
use std::fmt;
use std::sync::LazyLock;

/// The commit, from the environment of the build: `deploy/release.sh` and CI set it.
const COMMIT: Option<&str> = option_env!("MAST3R_SLAM_COMMIT");

/// Names of Cargo features and whether this program has them.
const FEATURES: [(&str, bool); 9] = [
    ("bags", cfg!(feature = "bags")),
    ("dds", cfg!(feature = "dds")),
    ("r2r", cfg!(feature = "r2r")),
    ("view", cfg!(feature = "view")),
    ("cuda", cfg!(feature = "cuda")),
    ("onnxruntime", cfg!(feature = "onnxruntime")),
    (
        "tensorrt",
        cfg!(all(
            feature = "tensorrt",
            not(feature = "tensorrt-enterprise")
        )),
    ),
    ("tensorrt-enterprise", cfg!(feature = "tensorrt-enterprise")),
    ("internals", cfg!(feature = "internals")),
];

/// How this program was built.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Build {
    pub version: &'static str,
    /// `None` if the build did not record it.
    pub commit: Option<&'static str>,
    /// `x86_64 linux`.
    pub platform: String,
    pub features: Vec<&'static str>,
    /// Targets of the CUDA kernels, `sm_90` (machine code) or `compute_80` (PTX); empty without the feature `cuda`.
    pub kernels: Vec<&'static str>,
}

impl Build {
    /// This program's.
    pub fn here() -> Self {
        let features = FEATURES.iter().filter(|(_, built)| *built);
        Self {
            version: env!("CARGO_PKG_VERSION"),
            commit: COMMIT.filter(|commit| !commit.is_empty()),
            platform: format!("{} {}", std::env::consts::ARCH, std::env::consts::OS),
            features: features.map(|(name, _)| *name).collect(),
            kernels: kernels(),
        }
    }
}

impl fmt::Display for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |names: &[&str]| match names {
            [] => "none".to_owned(),
            names => names.join(", "),
        };
        writeln!(f, "{}", self.version)?;
        writeln!(f, "commit:   {}", self.commit.unwrap_or("not recorded"))?;
        writeln!(f, "platform: {}", self.platform)?;
        writeln!(f, "features: {}", list(&self.features))?;
        write!(f, "kernels:  {}", list(&self.kernels))
    }
}

/// The text of `--version`, after the program's name.
pub fn long() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| Build::here().to_string());
    &TEXT
}

#[cfg(feature = "cuda")]
fn kernels() -> Vec<&'static str> {
    crate::compute::cuda::KERNELS.architectures().to_vec()
}

#[cfg(not(feature = "cuda"))]
fn kernels() -> Vec<&'static str> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_parts_are_named() {
        let build = Build {
            version: "1.2.3",
            commit: None,
            platform: "riscv64 plan9".into(),
            features: vec!["bags", "cuda"],
            kernels: vec!["sm_87", "compute_120"],
        };
        let expected = "1.2.3\ncommit:   not recorded\nplatform: riscv64 plan9\n\
                        features: bags, cuda\nkernels:  sm_87, compute_120";
        assert_eq!(build.to_string(), expected);
        let bare = Build {
            kernels: Vec::new(),
            ..build
        };
        assert!(bare.to_string().ends_with("kernels:  none"));
    }
}
