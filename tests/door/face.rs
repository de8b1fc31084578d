//! The names that the library shows, read from its sources.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Public items that the library may have at most, modules included.
const MAX_ITEMS: usize = 250;

/// The names at the top of the library. A name that goes breaks other crates; one that comes needs a reason.
const NAMES: &[&str] = &[
    "About",
    "BackendChoice",
    "Config",
    "DepthCamera",
    "DepthDecoder",
    "DepthEncoding",
    "DepthError",
    "DepthImage",
    "DepthLimits",
    "DepthReader",
    "NetworkDepth",
    "NetworkView",
    "OwnCamera",
    "RawDepth",
    "Covariance6",
    "DeviceChoice",
    "DeviceError",
    "EdgeKind",
    "Encoding",
    "EvalError",
    "Evaluation",
    "ExportError",
    "FinishError",
    "Frame",
    "FrameRecord",
    "ImageError",
    "ImageFormat",
    "InferenceError",
    "KeyframeRecord",
    "KeyframeView",
    "Map",
    "MapEdge",
    "MapMode",
    "MapSnapshot",
    "MappingCounts",
    "Note",
    "OpenError",
    "Pace",
    "PoseTable",
    "RawImage",
    "RetrievalError",
    "RgbImage",
    "SavedMap",
    "SavedMapError",
    "Slam",
    "SlamBuilder",
    "SlamError",
    "StageTimes",
    "Stamp",
    "TrackedFrame",
    "TrackingState",
    "Written",
    "config",
    "geometry",
    "source",
];

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Names that a file makes public: items and re-exports at its top level, hidden ones left out.
fn public_names(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut hidden = false;
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        hidden |= line.starts_with("#[doc(hidden)]");
        let Some(item) = line.strip_prefix("pub ") else {
            hidden &= line.starts_with("#[") || line.starts_with("///");
            continue;
        };
        let mut item = item.to_owned();
        while item.starts_with("use ") && !item.contains(';') {
            item.push_str(lines.next().expect("the rest of a use"));
        }
        if !std::mem::take(&mut hidden) {
            names.extend(names_of(&item));
        }
    }
    names
}

fn names_of(item: &str) -> Vec<String> {
    let word = |text: &str| {
        let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
        text[..end.unwrap_or(text.len())].to_owned()
    };
    if let Some(path) = item.strip_prefix("use ") {
        let path = path.trim_end_matches(';');
        let last = path
            .split_once('{')
            .map(|(_, list)| list.trim_end_matches('}'));
        let last = last.unwrap_or_else(|| path.rsplit("::").next().unwrap_or(path));
        let names = last.split(',').map(str::trim).filter(|n| !n.is_empty());
        return names
            .map(|n| word(n.rsplit(" as ").next().unwrap_or(n)))
            .collect();
    }
    let kinds = [
        "struct ", "enum ", "trait ", "fn ", "const ", "type ", "mod ", "static ",
    ];
    let item = item.trim_start_matches("unsafe ");
    let named = kinds.iter().find_map(|kind| item.strip_prefix(kind));
    named.map(word).into_iter().collect()
}

#[test]
fn the_door_s_names_are_these() {
    let found: BTreeSet<String> = public_names(&read(&sources().join("lib.rs")))
        .into_iter()
        .collect();
    let known: BTreeSet<String> = NAMES.iter().map(|n| (*n).to_owned()).collect();
    let gone: Vec<_> = known.difference(&found).collect();
    let new: Vec<_> = found.difference(&known).collect();
    assert!(
        gone.is_empty() && new.is_empty(),
        "gone: {gone:?}; new: {new:?}"
    );
}

#[test]
fn the_door_shows_at_most_250_items() {
    let mut count = NAMES.len();
    for module in ["config", "geometry", "source"] {
        count += public_names(&read(&sources().join(module).join("mod.rs"))).len();
    }
    assert!(
        count <= MAX_ITEMS,
        "{count} public items, at most {MAX_ITEMS}"
    );
}

#[test]
fn public_names_are_found_in_a_text() {
    let text = "pub mod a;\n#[doc(hidden)]\npub mod b;\nmod c;\npub use d::{E, f};\npub use g::H as I;\n\
                /// Text.\npub struct J<T> {\n    pub k: T,\n}\npub(crate) fn l() {}\npub fn m() {}\n";
    assert_eq!(public_names(text), ["a", "E", "f", "I", "J", "m"]);
}
