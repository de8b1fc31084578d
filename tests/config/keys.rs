//! The declaration of settings: keys with types, values and ranges, and the table in the documentation.

use mast3r_slam::config::{
    self, BackendChoice, Base, Choice, Config, ConfigError, Key, Kind, Setting, SettingValue,
    Threads,
};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;

/// Markers around the table in the documentation.
const MARKERS: [&str; 2] = [
    "<!-- The table of keys is generated from src/config/settings.rs; see tests/config/keys.rs. -->\n",
    "<!-- End of the table of keys. -->\n",
];

/// The sections of the table: prefix of their keys, heading.
const SECTIONS: [(&str, &str); 14] = [
    ("", "General"),
    ("network", "Network"),
    ("dataset", "Frames"),
    ("matching", "Matching"),
    ("tracking", "Tracking"),
    ("depth", "Depth"),
    ("local_opt", "Global optimisation"),
    ("retrieval", "Place recognition"),
    ("reloc", "Relocalisation"),
    ("economy", "Map economy"),
    ("memory", "GPU memory"),
    ("output", "Results"),
    ("grid", "Occupancy grid"),
    ("splat", "Gaussian map"),
];

fn section(key: &Key) -> &'static str {
    key.name.split_once('.').map_or("", |(section, _)| section)
}

fn row(key: &Key, default: &SettingValue) -> String {
    let default = match default {
        SettingValue::Text(text) if text.is_empty() => "empty".to_owned(),
        value => format!("`{value}`"),
    };
    let range = match key.kind {
        Kind::Choice(names) => names
            .iter()
            .map(|n| format!("`{n}`"))
            .collect::<Vec<_>>()
            .join(", "),
        _ => {
            let parts = [key.unit.to_owned(), key.range.short()];
            parts
                .into_iter()
                .filter(|p| !p.is_empty())
                .collect::<Vec<_>>()
                .join(", ")
        }
    };
    let doc = key.doc().replace('|', "\\|");
    format!("| `{}` | {default} | {range} | {doc} |\n", key.name)
}

fn table() -> String {
    let defaults = Config::default();
    let mut out = String::new();
    for (prefix, heading) in SECTIONS {
        out += &format!(
            "\n### {heading}\n\n| key | default | unit, range | meaning |\n|---|---|---|---|\n"
        );
        for key in Config::keys().filter(|key| section(key) == prefix) {
            out += &row(key, &defaults.get(key.name).expect("a value"));
        }
    }
    out + "\n"
}

#[test]
fn the_documentation_s_table_is_that_of_the_declaration() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/configuration.md");
    let text = std::fs::read_to_string(&path).expect("docs/configuration.md");
    let [begin, end] = MARKERS;
    let start = text.find(begin).expect("the first marker") + begin.len();
    let stop = text.find(end).expect("the second marker");
    let expected = table();
    if text[start..stop] == expected {
        return;
    }
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let text = format!("{}{expected}{}", &text[..start], &text[stop..]);
        std::fs::write(&path, text).expect("docs/configuration.md");
        return;
    }
    panic!(
        "the table in docs/configuration.md is not that of src/config/settings.rs; \
         write it anew with UPDATE_DOCS=1 cargo test --test config"
    );
}

#[test]
fn every_setting_has_a_section_and_a_sentence() {
    let known: BTreeSet<&str> = SECTIONS.iter().map(|(prefix, _)| *prefix).collect();
    let mut names = BTreeSet::new();
    for key in Config::keys() {
        assert!(
            known.contains(section(key)),
            "{} is in no section of the table",
            key.name
        );
        let doc = key.doc();
        assert!(doc.ends_with('.') && doc.len() > 10, "{}: {doc}", key.name);
        assert!(names.insert(key.name), "{} is declared twice", key.name);
    }
    assert!(names.len() > 70);
}

fn set(key: &str, value: &Value) -> Result<Config, ConfigError> {
    let base = Config::default();
    config::load_settings(Base::Given(&base), &[Setting::Value { key, value }])
}

#[test]
fn a_key_is_set_and_read_by_its_name() {
    for (name, value, expected) in [
        ("use_calib", json!(true), SettingValue::Bool(true)),
        ("device", json!("cpu"), SettingValue::Text("cpu".into())),
        ("tracking.Q_conf", json!(0.333), SettingValue::Number(0.333)),
        // ROS has one type for whole numbers and one for others: 3 is a number, too.
        ("tracking.huber", json!(3), SettingValue::Number(3.0)),
        (
            "local_opt.max_keyframes",
            json!(500),
            SettingValue::Whole(500),
        ),
        (
            "network.weights",
            json!("a.pth"),
            SettingValue::Text("a.pth".into()),
        ),
    ] {
        assert_ne!(
            Config::default().get(name).as_ref(),
            Some(&expected),
            "{name}"
        );
        let config = set(name, &value).expect(name);
        assert_eq!(config.get(name), Some(expected), "{name}");
    }
    assert_eq!(Config::default().get("tracking.nothing"), None);
}

#[test]
fn what_cannot_be_set_is_refused_with_the_key_and_what_fits() {
    for (name, value, parts) in [
        (
            "tracking.Q_cnf",
            json!(1.0),
            ["unknown key", "tracking.Q_conf?"],
        ),
        ("tracking.Q_conf", json!(true), ["true", "a number"]),
        ("tracking.sigma_ray", json!(-1.0), ["-1.0", "above 0"]),
        ("threads", json!("both"), ["both", "pipelined or single"]),
        ("retrieval.k", json!(1.5), ["retrieval.k", "a whole number"]),
        ("network", json!(1), ["network", "a section"]),
    ] {
        let error = set(name, &value).expect_err(name).to_string();
        for part in parts.into_iter().chain(["parameter"]) {
            assert!(error.contains(part), "{part:?} is not in: {error}");
        }
    }
}

#[test]
fn choices_are_named_and_read_back() {
    assert_eq!(
        BackendChoice::NAMES,
        ["auto", "cpu", "native", "onnxruntime", "tensorrt"]
    );
    for choice in BackendChoice::ALL {
        assert_eq!(choice.name().parse(), Ok(*choice));
    }
    let error = "both".parse::<Threads>().expect_err("not a choice");
    assert_eq!(error, "expected pipelined, single");
}
