//! A configuration that cannot be right is refused with file, key and what to do.

use mast3r_slam::config::{self, Base, ConfigError};
use std::path::{Path, PathBuf};

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).expect("a file in a temporary folder");
    path
}

/// The error that `text` gives, which must name its file.
fn refused(text: &str) -> String {
    let folder = folder();
    let path = write(folder.path(), "mine.yaml", text);
    match config::load(&path) {
        Ok(_) => panic!("accepted: {text}"),
        Err(error) => {
            let message = error.to_string();
            assert!(message.contains("mine.yaml"), "{message}");
            message
        }
    }
}

fn assert_has(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "{part:?} is not in: {message}");
    }
}

#[test]
fn unknown_keys_come_with_the_nearest_valid_one() {
    for (text, key, suggestion) in [
        (
            "tracking:\n  Q_cnf: 1\n",
            "tracking.Q_cnf",
            "tracking.Q_conf",
        ),
        ("trackin:\n  Q_conf: 1\n", "trackin", "tracking"),
        ("Q_conf: 1\n", "Q_conf", "Q_conf"),
        (
            "tracking:\n  dist_thresh: 1\n",
            "tracking.dist_thresh",
            "matching.dist_thresh",
        ),
        ("use_calibration: true\n", "use_calibration", "use_calib"),
        (
            "local_opt:\n  sigma_pixels: 1\n",
            "local_opt.sigma_pixels",
            "local_opt.sigma_pixel",
        ),
        (
            "dataset:\n  center_principal_point: true\n",
            "dataset.center_principal_point",
            "dataset.center_principle_point",
        ),
    ] {
        let message = refused(text);
        assert_has(
            &message,
            &[
                &format!("unknown key {key}:"),
                "did you mean",
                &format!("{suggestion}?"),
            ],
        );
    }
}

#[test]
fn keys_like_nothing_come_with_the_list() {
    let message = refused("reloc:\n  zzzzzz: 1\n");
    assert_has(
        &message,
        &["reloc.zzzzzz", "min_match_frac", "strict", "max_tries"],
    );
}

#[test]
fn keys_that_only_the_reference_has_say_what_to_do() {
    assert_has(&refused("single_thread: True\n"), &["threads: single"]);
    assert_has(
        &refused("local_opt:\n  use_cuda: True\n"),
        &["local_opt.use_cuda", "remove it"],
    );
}

#[test]
fn wrong_types_name_key_value_and_type() {
    for (text, parts) in [
        (
            "tracking:\n  Q_conf: high\n",
            ["tracking.Q_conf", "\"high\"", "a number"],
        ),
        (
            "tracking:\n  Q_conf: \"0.5\"\n",
            ["tracking.Q_conf", "\"0.5\"", "a number"],
        ),
        (
            "tracking:\n  max_iters: 2.5\n",
            ["tracking.max_iters", "2.5", "a whole number"],
        ),
        (
            "tracking:\n  max_iters: -3\n",
            ["tracking.max_iters", "-3", "a whole number"],
        ),
        (
            "tracking:\n  max_iters: [1, 2]\n",
            ["tracking.max_iters", "a list", "a whole number"],
        ),
        (
            "tracking:\n  huber:\n",
            ["tracking.huber", "empty", "a number"],
        ),
        (
            "tracking:\n  huber: .nan\n",
            ["tracking.huber", "nan", "a number"],
        ),
        (
            "tracking:\n  huber: 1e999\n",
            ["tracking.huber", "inf", "a number"],
        ),
        (
            "use_calib: yes\n",
            ["use_calib", "\"yes\"", "true or false"],
        ),
        ("use_calib: 1\n", ["use_calib", "1", "true or false"]),
        (
            "threads: both\n",
            ["threads", "\"both\"", "pipelined or single"],
        ),
        ("loops: true\n", ["loops", "true", "on or off"]),
        (
            "tracking:\n  filtering_mode: newest\n",
            ["tracking.filtering_mode", "\"newest\"", "best_score"],
        ),
        ("tracking: 3\n", ["tracking", "3", "a section with"]),
        ("network:\n  weights: 7\n", ["network.weights", "7", "text"]),
        ("inherit: 3\n", ["inherit", "3", "YAML file"]),
    ] {
        assert_has(&refused(text), &parts);
    }
}

#[test]
fn values_out_of_range_name_key_value_and_range() {
    for (text, parts) in [
        (
            "network:\n  size: 500\n",
            ["network.size", "500", "multiple of 16"],
        ),
        ("network:\n  size: 0\n", ["network.size", "0", "32 to 4096"]),
        (
            "dataset:\n  subsample: 0\n",
            ["dataset.subsample", "0", "1 or more"],
        ),
        (
            "tracking:\n  sigma_ray: 0\n",
            ["tracking.sigma_ray", "0", "above 0"],
        ),
        (
            "tracking:\n  sigma_ray: -0.003\n",
            ["tracking.sigma_ray", "-0.003", "above 0"],
        ),
        (
            "tracking:\n  match_frac_thresh: 1.5\n",
            ["tracking.match_frac_thresh", "1.5", "0 to 1"],
        ),
        (
            "reloc:\n  min_match_frac: -0.1\n",
            ["reloc.min_match_frac", "-0.1", "0 to 1"],
        ),
        (
            "matching:\n  max_iter: 0\n",
            ["matching.max_iter", "0", "1 to 1000"],
        ),
        // Larger than f32: not silently infinite.
        (
            "matching:\n  dist_thresh: 1e300\n",
            ["matching.dist_thresh", "inf", "above 0"],
        ),
        (
            "output:\n  voxel_size: -1\n",
            ["output.voxel_size", "-1", "0 or more"],
        ),
    ] {
        assert_has(&refused(text), &parts);
    }
}

#[test]
fn a_value_out_of_range_is_blamed_on_the_file_that_holds_it() {
    let folder = folder();
    write(folder.path(), "parent.yaml", "retrieval:\n  k: 0\n");
    let child = write(folder.path(), "child.yaml", "inherit: parent.yaml\n");
    let message = config::load(&child)
        .map(|_| ())
        .expect_err("k is 0")
        .to_string();
    assert_has(&message, &["parent.yaml", "retrieval.k"]);

    let set = vec!["network.size=100".to_owned()];
    let message = config::load_with(Base::Defaults, &set)
        .map(|_| ())
        .expect_err("100")
        .to_string();
    assert_has(&message, &["--set network.size=100", "multiple of 16"]);
}

#[test]
fn circles_are_found() {
    let folder = folder();
    let a = write(folder.path(), "a.yaml", "inherit: b.yaml\n");
    write(folder.path(), "b.yaml", "inherit: c.yaml\n");
    write(folder.path(), "c.yaml", "inherit: ./a.yaml\n");
    let error = config::load(&a).expect_err("a circle");
    assert!(matches!(error, ConfigError::Cycle { .. }), "{error}");
    assert_has(&error.to_string(), &["a.yaml", "b.yaml", "c.yaml", "→"]);

    let own = write(folder.path(), "own.yaml", "inherit: own.yaml\n");
    let error = config::load(&own).expect_err("a circle of one");
    assert!(matches!(error, ConfigError::Cycle { .. }), "{error}");
}

#[test]
fn a_file_anywhere_may_inherit_a_built_in_one() {
    let folder = folder();
    let mini = write(folder.path(), "tuned.yaml", "inherit: mini\n");
    assert_eq!(config::load(&mini).expect("built in").network.size, 256);
}

#[test]
fn endless_chains_are_cut() {
    let folder = folder();
    for k in 0..20 {
        let text = format!("inherit: {}.yaml\n", k + 1);
        write(folder.path(), &format!("{k}.yaml"), &text);
    }
    write(folder.path(), "20.yaml", "use_calib: true\n");
    let error = config::load(&folder.path().join("0.yaml")).expect_err("21 files");
    assert!(matches!(error, ConfigError::Depth { .. }), "{error}");
}

#[test]
fn missing_files_are_named() {
    let folder = folder();
    let message = config::load(&folder.path().join("none.yaml"))
        .expect_err("no such file")
        .to_string();
    assert_has(&message, &["none.yaml", "cannot read"]);

    let orphan = write(folder.path(), "orphan.yaml", "inherit: gone.yaml\n");
    let message = config::load(&orphan).expect_err("no parent").to_string();
    assert_has(&message, &["gone.yaml", "cannot read"]);

    let message = config::load_with(Base::Named(Path::new("minni")), &[])
        .expect_err("no such name")
        .to_string();
    assert_has(&message, &["minni", "mini.yaml", "base.yaml"]);
}

#[test]
fn broken_files_are_refused() {
    for text in [
        "",
        "  \n",
        "# only a comment\n",
        "just words\n",
        "- 1\n- 2\n",
        "3\n",
    ] {
        assert_has(&refused(text), &["use_calib: true", "found"]);
    }
    // Cut in the middle of a list, wrong indentation, a key twice.
    for text in [
        "tracking: [1, 2",
        "tracking:\n  Q_conf: 1\n huber: 2\n",
        "use_calib: true\nuse_calib: false\n",
    ] {
        refused(text);
    }
    let folder = folder();
    let path = folder.path().join("binary.yaml");
    std::fs::write(&path, [0xff, 0xfe, 0x00, 0x80]).expect("a file");
    let message = config::load(&path).expect_err("not text").to_string();
    assert_has(&message, &["binary.yaml"]);
    config::load(folder.path()).expect_err("a folder is no file");
}

#[test]
fn malformed_overrides_are_refused() {
    for text in [
        "tracking.Q_conf",
        "=3",
        ".=3",
        "tracking.=3",
        "tracking..Q_conf=1",
    ] {
        let error = config::load_with(Base::Defaults, &[text.to_owned()]).expect_err(text);
        assert!(matches!(error, ConfigError::Override { .. }), "{error}");
        assert_has(&error.to_string(), &[text, "key=value"]);
    }
    for (text, part) in [
        ("tracking.Q_cnf=1", "did you mean tracking.Q_conf?"),
        ("tracking.Q_conf.deep=1", "expected a number"),
        ("tracking=1", "a section with"),
        ("tracking.Q_conf=fast", "expected a number"),
        ("tracking.Q_conf=", "expected a number"),
        ("inherit=mini.yaml", "unknown key inherit"),
        ("tracking.Q_conf=[", "--set"),
    ] {
        let message = config::load_with(Base::Defaults, &[text.to_owned()])
            .expect_err(text)
            .to_string();
        assert_has(&message, &[part, "--set"]);
    }
}
