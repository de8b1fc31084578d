//! The table of known weights.

use std::path::Path;

/// Weights with a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Name for `--weights`.
    pub name: &'static str,
    pub about: &'static str,
    pub licence: Licence,
    pub origin: Origin,
    /// The weights, then what belongs beside them.
    pub files: &'static [KnownFile],
}

/// Licence of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Licence {
    pub name: &'static str,
    /// Where it can be read.
    pub address: &'static str,
    /// Conditions that a user agrees to before anything is fetched; empty if the program may pass the files on.
    pub conditions: &'static str,
}

/// Where the files come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A folder below the share folder, which comes with the program.
    Bundled(&'static str),
    /// Address of a folder on a server.
    Server(&'static str),
}

/// A file of an entry. Size and hash are those that this project could check; `None` is unknown, not unchecked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownFile {
    pub name: &'static str,
    pub bytes: Option<u64>,
    pub sha256: Option<&'static str>,
}

/// All known weights.
pub const CATALOGUE: &[Entry] = &[
    Entry {
        name: "mast3r-mini",
        about: "the bundled network of 16.4 million parameters, trained by this project on synthetic rooms",
        licence: Licence {
            name: "MIT OR Apache-2.0",
            address: "https://spdx.org/licenses/Apache-2.0.html",
            conditions: "",
        },
        origin: Origin::Bundled("engines/mast3r-mini"),
        files: &[
            KnownFile {
                name: "model.safetensors",
                bytes: Some(33_773_760),
                sha256: Some("ded045f6502d545d5567feb61b42a30972cc28cd3a75ef62a9af0ca7a969ee21"),
            },
            KnownFile {
                name: "codebook.safetensors",
                bytes: Some(541_848),
                sha256: Some("6222ea07d81bf0028478ff95b6de620c9c1f1cd1dc1644cce9398b15c41e0d11"),
            },
        ],
    },
    Entry {
        name: "mast3r-vitl",
        about: "the official network of Naver, ViT-L encoder, 688.6 million parameters, metric, 512 pixels",
        licence: Licence {
            name: "CC BY-NC-SA 4.0",
            address: "https://github.com/naver/mast3r/blob/main/CHECKPOINTS_NOTICE",
            conditions: "The official MASt3R checkpoints, Copyright (C) 2024-present Naver Corporation, are licensed \
                under CC BY-NC-SA 4.0: attribution, no commercial use, share alike.\nIn addition, their users agree \
                to the licences of all the data sets they were trained on. That of the mapfree data set is very \
                restrictive.",
        },
        origin: Origin::Server("https://download.europe.naverlabs.com/ComputerVision/MASt3R"),
        files: &[
            KnownFile {
                name: "MASt3R_ViTLarge_BaseDecoder_512_catmlpdpt_metric.pth",
                bytes: Some(2_754_910_614),
                sha256: None,
            },
            KnownFile {
                name: "MASt3R_ViTLarge_BaseDecoder_512_catmlpdpt_metric_retrieval_trainingfree.pth",
                bytes: None,
                sha256: None,
            },
            KnownFile {
                name: "MASt3R_ViTLarge_BaseDecoder_512_catmlpdpt_metric_retrieval_codebook.pkl",
                bytes: None,
                sha256: None,
            },
        ],
    },
];

impl Entry {
    /// Whether the files come with the program.
    pub fn bundled(&self) -> bool {
        matches!(self.origin, Origin::Bundled(_))
    }
}

/// The entry that `text` names. A file of that name takes precedence.
pub fn named(text: &Path) -> Option<&'static Entry> {
    let entry = CATALOGUE.iter().find(|entry| text == Path::new(entry.name));
    entry.filter(|_| !text.exists())
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::{Digest, Sha256};

    #[test]
    fn what_the_table_says_of_the_bundled_files_is_true() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let bundled = CATALOGUE.iter().filter_map(|entry| match entry.origin {
            Origin::Bundled(folder) => Some((folder, entry.files)),
            Origin::Server(_) => None,
        });
        let mut checked = 0;
        for (folder, files) in bundled {
            for file in files {
                let bytes = std::fs::read(root.join(folder).join(file.name)).unwrap();
                assert_eq!(Some(bytes.len() as u64), file.bytes, "{}", file.name);
                let digest = Sha256::digest(&bytes);
                let hash: String = digest.iter().map(|b| format!("{b:02x}")).collect();
                assert_eq!(Some(hash.as_str()), file.sha256, "{}", file.name);
                checked += 1;
            }
        }
        assert_eq!(checked, 2);
    }

    #[test]
    fn what_is_not_ours_has_conditions_and_a_secure_address() {
        for entry in CATALOGUE {
            assert_eq!(named(Path::new(entry.name)), Some(entry));
            assert!(!entry.files.is_empty());
            if let Origin::Server(address) = entry.origin {
                assert!(address.starts_with("https://"), "{address}");
                assert!(!entry.licence.conditions.is_empty());
            }
        }
        assert_eq!(named(Path::new("mast3r-vitx")), None);
        assert_eq!(named(Path::new("./mast3r-vitl.pth")), None);
    }
}
