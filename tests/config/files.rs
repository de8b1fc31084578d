//! The files of `config/` hold what they should, and inheritance and overrides work.

use mast3r_slam::config::{
    self, Base, Config, FilteringMode, Loops, Threads, builtin, builtin_names,
};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn shipped(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("config")
        .join(name)
}

fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).expect("a file in a temporary folder");
    path
}

/// Dotted paths of all leaves.
fn leaves(prefix: &str, value: &Value, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            for (key, inner) in map {
                let path = if prefix.is_empty() {
                    key.clone()
                } else {
                    format!("{prefix}.{key}")
                };
                leaves(&path, inner, into);
            }
        }
        _ => {
            into.insert(prefix.to_owned());
        }
    }
}

#[test]
fn base_is_complete_and_equals_the_defaults() {
    let base = config::load(&shipped("base.yaml")).expect("base.yaml loads");
    assert_eq!(base, Config::default());

    let text = builtin("base.yaml").expect("base.yaml is built in");
    let file: Value = serde_saphyr::from_str(text).expect("base.yaml is YAML");
    let structs = serde_json::to_value(Config::default()).expect("a configuration serialises");
    let (mut in_file, mut in_structs) = (BTreeSet::new(), BTreeSet::new());
    leaves("", &file, &mut in_file);
    leaves("", &structs, &mut in_structs);
    assert_eq!(in_file, in_structs);
}

#[test]
fn the_reference_s_files_differ_where_its_own_do() {
    let load = |name| config::load(&shipped(name)).expect(name);
    let base = Config::default();

    let mut expected = base.clone();
    expected.use_calib = true;
    expected.dataset.subsample = 2;
    assert_eq!(load("calib.yaml"), expected);

    expected.threads = Threads::Single;
    assert_eq!(load("eval_calib.yaml"), expected);

    let mut uncalibrated = expected.clone();
    uncalibrated.use_calib = false;
    assert_eq!(load("eval_no_calib.yaml"), uncalibrated);

    expected.dataset.subsample = 1;
    expected.dataset.center_principle_point = false;
    expected.reloc.strict = false;
    assert_eq!(load("eth3d.yaml"), expected);
}

#[test]
fn built_in_copies_equal_the_files() {
    for name in builtin_names() {
        let from_file = config::load(&shipped(name)).expect(name);
        let stem = Path::new(name.strip_suffix(".yaml").expect("a YAML file"));
        let built_in = config::load_with(Base::Named(stem), &[]).expect(name);
        assert_eq!(built_in, from_file, "{name}");
        let listed = std::fs::read_to_string(shipped(name)).expect(name);
        assert_eq!(builtin(name), Some(listed.as_str()));
    }
    // Folders hold what is not for `--config`, such as the node's parameters.
    let shipped_files = std::fs::read_dir(shipped("")).expect("config/");
    let is_file = |entry: &std::fs::DirEntry| entry.path().is_file();
    assert_eq!(
        shipped_files
            .map(|e| e.expect("an entry"))
            .filter(is_file)
            .count(),
        builtin_names().count(),
        "a file of config/ is not built in"
    );
}

#[test]
fn children_win_over_parents_and_the_rest_is_kept() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::create_dir(folder.path().join("robots")).expect("a folder");
    write(
        folder.path(),
        "site.yaml",
        "inherit: mini.yaml\ntracking:\n  Q_conf: 0.7\n  huber: 2\nloops: off\n",
    );
    let robot = write(
        &folder.path().join("robots"),
        "robot.yaml",
        "inherit: ../site.yaml\ntracking:\n  huber: 3.5\nreloc:\n",
    );
    let config = config::load(&robot).expect("three levels");
    assert_eq!(config.network.size, 256, "from the built-in mini.yaml");
    assert_eq!(config.tracking.q_conf, 0.7, "from site.yaml");
    assert_eq!(config.loops, Loops::Off, "from site.yaml");
    assert_eq!(config.tracking.huber, 3.5, "from robot.yaml");
    let mini = config::load_with(config::Base::Builtin("mini.yaml"), &[]).expect("mini.yaml");
    assert_eq!(config.reloc, mini.reloc, "an empty section");
}

#[test]
fn numbers_of_every_spelling_are_numbers() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = write(
        folder.path(),
        "a.yaml",
        "matching:\n  lambda_init: 1e-8\n  dist_thresh: 1\ntracking:\n  sigma_dist: 1E+1\n  sigma_ray: .003\n  depth_eps: 1.e-6\n",
    );
    let config = config::load(&path).expect("numbers");
    assert_eq!(config.matching.lambda_init, 1e-8);
    assert_eq!(config.matching.dist_thresh, 1.0);
    assert_eq!(config.tracking.sigma_dist, 10.0);
    assert_eq!(config.tracking.sigma_ray, 0.003);
    assert_eq!(config.tracking.depth_eps, 1e-6);
}

#[test]
fn booleans_of_the_reference_s_files_are_understood() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = write(
        folder.path(),
        "a.yaml",
        "use_calib: True\nreloc:\n  strict: False\n",
    );
    let config = config::load(&path).expect("Python's spelling");
    assert!(config.use_calib && !config.reloc.strict);
}

#[test]
fn overrides_come_last_and_the_last_one_wins() {
    let set = |items: &[&str]| {
        let items: Vec<String> = items.iter().map(|s| (*s).to_owned()).collect();
        config::load_with(Base::Builtin("mini"), &items)
    };
    let config = set(&[
        "tracking.Q_conf=0.9",
        "tracking.Q_conf=1e-1",
        "loops=off",
        "threads=single",
        "tracking.filtering_mode=best_score",
        "network.weights=",
        "retrieval.codebook=a=b.bin",
    ])
    .expect("overrides");
    assert_eq!(config.tracking.q_conf, 0.1);
    assert_eq!(config.loops, Loops::Off);
    assert_eq!(config.threads, Threads::Single);
    assert_eq!(config.tracking.filtering_mode, FilteringMode::BestScore);
    assert_eq!(config.network.weights, "");
    assert_eq!(config.retrieval.codebook, "a=b.bin");
    assert_eq!(config.network.size, 256, "mini.yaml still holds");
}

#[test]
fn files_named_in_a_file_are_relative_to_it() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let codebook = match cfg!(windows) {
        true => "C:/srv/codebook.pkl",
        false => "/srv/codebook.pkl",
    };
    let text = format!("network:\n  weights: models/big.pth\nretrieval:\n  codebook: {codebook}\n");
    let path = write(folder.path(), "a.yaml", &text);
    let config = config::load(&path).expect("paths");
    assert_eq!(
        Path::new(&config.network.weights),
        folder.path().join("models/big.pth")
    );
    assert_eq!(config.retrieval.codebook, codebook);
}

#[test]
fn what_is_shown_loads_back_to_the_same_values() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for name in builtin_names() {
        let config = config::load(&shipped(name)).expect(name);
        let text = config.to_yaml().expect("YAML");
        let path = write(folder.path(), "shown.yaml", &text);
        assert_eq!(config::load(&path).expect(name), config, "{text}");
    }
}

#[test]
fn reports_list_every_key_with_its_value_as_written() {
    let flat = Config::default().flat();
    let value = |key: &str| flat.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str());
    for (key, expected) in [
        ("use_calib", "false"),
        ("threads", "pipelined"),
        ("network.size", "512"),
        ("tracking.match_frac_thresh", "0.333"),
        ("tracking.huber", "1.345"),
        ("network.weights", ""),
    ] {
        assert_eq!(value(key), Some(expected), "{key}");
    }
    let mut keys = BTreeSet::new();
    let tree = serde_json::to_value(Config::default()).expect("a configuration serialises");
    leaves("", &tree, &mut keys);
    assert_eq!(
        flat.into_iter().map(|(k, _)| k).collect::<BTreeSet<_>>(),
        keys
    );
}
