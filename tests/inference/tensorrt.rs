//! Engines: built for a GPU that is not there, and what the program says when it cannot have one. Where
//! TensorRT's libraries are not found, what needs them is skipped; `MAST3R_REQUIRE_TENSORRT=1` makes that a
//! failure.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use testkit::program::{assert_failed, bundled, message, program, text};
use testkit::skip::{Need, skip};

/// The smallest images with every kind of layer; engines build in seconds.
const SIZE: &str = "96x64";

fn engine(store: &Path, args: &[&str]) -> Command {
    let mut command = program(&["engine"]);
    command.args(args).args(["--out", text(store)]);
    command
}

/// Whether TensorRT-RTX can be had.
fn installed(output: &Output) -> bool {
    let missing = message(output).contains("is not installed");
    if missing {
        skip(Need::TensorRt, message(output));
    }
    !missing
}

/// Builds for sm_120; the engine's folder, unless the library is missing.
fn built(store: &Path, more: &[&str]) -> Option<PathBuf> {
    let mut args = vec!["build", "--size", SIZE];
    if !more.contains(&"--recipe") {
        args.extend(["--target", "sm_120"]);
    }
    args.extend(more);
    let output = engine(store, &args).output().expect("the program starts");
    if !installed(&output) {
        return None;
    }
    assert!(output.status.success(), "{}", message(&output));
    let folder = String::from_utf8(output.stdout).expect("UTF-8");
    Some(folder.trim().into())
}

fn json(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).expect("a file");
    serde_json::from_str(&text).expect("JSON")
}

#[test]
fn without_the_library_the_program_works_and_says_what_is_missing() {
    let empty = tempfile::tempdir().expect("a temporary folder");
    let place = text(empty.path());
    let store = empty.path().join("engines");
    let output = engine(&store, &["build", "--target", "sm_120"])
        .env("MAST3R_TENSORRT_DIR", place)
        .output();
    let missing = ["is not installed", place, "MAST3R_TENSORRT_DIR", "install "];
    assert_failed(&output.expect("the program starts"), &missing);
    // Looking at engines takes no library.
    let output = engine(&store, &["list"])
        .env("MAST3R_TENSORRT_DIR", place)
        .output()
        .expect("the program starts");
    assert!(output.status.success(), "{}", message(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("no engines"));
}

#[cfg(feature = "cuda")]
#[test]
fn a_run_that_asks_for_it_fails_and_one_that_does_not_goes_on() {
    let root = tempfile::tempdir().expect("a temporary folder");
    let sequence = testkit::program::sequence(root.path(), 2);
    let with = |backend: &str, out: &str| {
        let out = root.path().join(out);
        let mut args = vec!["run", text(&sequence), "--out", text(&out), "--size", "64"];
        args.extend(["--backend", backend]);
        let mut command = program(&args);
        command.env("MAST3R_TENSORRT_DIR", root.path());
        command.output().expect("the program starts")
    };
    assert_failed(&with("tensorrt", "asked"), &["is not installed"]);
    let output = with("auto", "auto");
    assert!(output.status.success(), "{}", message(&output));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        said.contains("next backend") && said.contains("is not installed"),
        "{said}"
    );
}

#[test]
fn an_engine_is_built_without_a_gpu_and_kept() {
    let root = tempfile::tempdir().expect("a temporary folder");
    let store = root.path().join("engines");
    let Some(folder) = built(&store, &["--precision", "fp16"]) else {
        return;
    };
    let path = folder.join("manifest.json");
    let manifest = json(&path);
    assert_eq!(manifest["size"], serde_json::json!([96, 64]));
    assert_eq!(manifest["precision"], "fp16");
    assert_eq!(manifest["targets"], serde_json::json!(["sm_120"]));
    assert_eq!(manifest["tensorrt"]["flavour"], "rtx");
    assert_eq!(
        manifest["weights"]["sha256"].as_str().map(str::len),
        Some(64)
    );
    for engine in manifest["engines"].as_array().expect("engines") {
        let part = engine["part"].as_str().expect("a part");
        let file = folder.join(format!("{part}.engine"));
        let bytes = std::fs::metadata(&file).expect("an engine").len();
        assert_eq!(engine["bytes"].as_u64(), Some(bytes));
        let number = |key: &str| engine[key].as_u64().expect("a number");
        // The values were found in the builder's log.
        assert!(number("weight_bytes") > 1 << 20, "{engine}");
        assert!(
            number("activation_bytes") > 0 && number("layers") > 10,
            "{engine}"
        );
        let layers = std::fs::read_to_string(folder.join(format!("{part}.layers.txt")));
        let layers = layers.expect("a list of kernels");
        // Both branches as one batch are named so.
        let names = ["enc_blocks", "dec_blocks", "dec_both"];
        assert!(names.iter().any(|name| layers.contains(name)), "{part}");
        assert!(layers.contains("Datatype: Half"), "{part} computes in fp16");
        assert!(
            layers.contains("Datatype: Float"),
            "{part} has fp32 inputs and outputs"
        );
    }

    assert_eq!(parts(&manifest), ["encoder", "decoder", "mono", "edge"]);

    // The same order again: nothing is built.
    let before = std::fs::metadata(&path)
        .and_then(|m| m.modified())
        .expect("a time");
    assert_eq!(
        built(&store, &["--precision", "fp16"]),
        Some(folder.clone())
    );
    let after = std::fs::metadata(&path)
        .and_then(|m| m.modified())
        .expect("a time");
    assert_eq!(before, after);
    // A damaged file is no engine.
    std::fs::write(folder.join("encoder.engine"), "half of it").expect("a file");
    let output = engine(&store, &["inspect", text(&folder)]).output();
    assert_failed(
        &output.expect("the program starts"),
        &["encoder.engine", "expected", "10 bytes"],
    );
    assert_eq!(
        built(&store, &["--precision", "fp16"]),
        Some(folder.clone())
    );
    assert_ne!(json(&path), Value::Null);

    let inspect = |more: &[&str]| {
        let name = folder
            .file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        let mut args = vec!["inspect", &name];
        args.extend(more);
        let output = engine(&store, &args).output().expect("the program starts");
        assert!(output.status.success(), "{}", message(&output));
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let said = inspect(&[]);
    for part in [
        "sm_120", "fp16", "96x64", "encoder:", "decoder:", "mono:", "edge:", "CRC-32",
    ] {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
    let all: Value = serde_json::from_str(&inspect(&["--json"])).expect("JSON");
    assert_eq!(all["manifest"]["precision"], "fp16");
    assert!(all["layers"]["decoder"].is_array() || all["layers"]["decoder"].is_object());

    let output = engine(&store, &["list"])
        .output()
        .expect("the program starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("96x64") && said.contains("sm_120"), "{said}");
}

/// Kernels of a part, by kind, in the numbers that TensorRT builds for the bundled network. More of any mean that the
/// emitted graph has lost a pattern that TensorRT fuses.
#[test]
fn attention_and_the_heads_are_fused() {
    let root = tempfile::tempdir().expect("a temporary folder");
    let Some(folder) = built(root.path(), &["--precision", "fp16"]) else {
        return;
    };
    let output = engine(
        root.path(),
        &["inspect", text(&folder), "--kinds", "--json"],
    )
    .output();
    let output = output.expect("the program starts");
    assert!(output.status.success(), "{}", message(&output));
    let found: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    // Blocks of the encoder, blocks of the decoder with both branches in one batch, heads.
    const ENCODER: u64 = 8;
    const DECODER: u64 = 10;
    for (part, blocks, norms, heads, moves) in [
        ("encoder", ENCODER, 2 * ENCODER + 1, 0, 1),
        ("decoder", 2 * DECODER, 3 * DECODER + 1, 2, 5),
        ("mono", 2 * DECODER, 3 * DECODER + 1, 1, 5),
        // Attention of several pairs leaves tokens in an order that the next layer does not read.
        ("edge", 2 * DECODER, 3 * DECODER + 1, 2, 25),
    ] {
        let kernels = |kind: &str| {
            let mut rows = found["kinds"][part].as_array().expect("kinds").iter();
            let row = rows.find(|row| row["kind"] == kind);
            row.map_or(0, |row| row["sum"]["layers"].as_u64().expect("a number"))
        };
        let lines = found["layers"][part].as_array().expect("kernels").iter();
        let softmax = lines.filter(|line| line.as_str().is_some_and(|l| l.contains("Softmax")));
        // One kernel with both products and the softmax.
        assert_eq!(kernels("attention"), blocks, "{part}");
        assert_eq!(softmax.count() as u64, blocks, "{part}");
        // Queries, keys and values are turned and put into place at once.
        assert_eq!(kernels("rotation"), blocks, "{part}");
        assert!(kernels("norm") <= norms, "{part}: {}", kernels("norm"));
        assert!(
            kernels("reformat") <= moves,
            "{part}: {}",
            kernels("reformat")
        );
        // A head has four `max(x, 0)` whose argument is also added later, points, descriptors, and their confidence;
        // then there is the end of a norm.
        let elementwise = kernels("elementwise");
        assert!(elementwise <= 7 * heads + 1, "{part}: {elementwise}");
        assert_eq!(kernels("enlargement"), 5 * heads, "{part}");
    }
}

/// Names of an engine's parts.
fn parts(manifest: &Value) -> Vec<&str> {
    let engines = manifest["engines"].as_array().expect("engines").iter();
    let names = engines.map(|engine| engine["part"].as_str().expect("a part"));
    names.collect()
}

/// Additional parts are built on request, and the engines are rebuilt when more are requested.
#[test]
fn an_engine_has_the_parts_that_were_asked_for() {
    let root = tempfile::tempdir().expect("a temporary folder");
    let with = |more: &[&str]| {
        let folder = built(root.path(), more)?;
        Some(json(&folder.join("manifest.json")))
    };
    let Some(least) = with(&["--parts", ""]) else {
        return;
    };
    assert_eq!(parts(&least), ["encoder", "decoder"]);
    let more = with(&["--parts", "two_edges,mono"]).expect("the library is there");
    assert_eq!(parts(&more), ["encoder", "decoder", "mono", "two_edges"]);
    let bytes = |part: &str| {
        let engines = more["engines"].as_array().expect("engines").iter();
        let mut engines = engines.filter(|engine| engine["part"] == part);
        engines.next().expect(part)["activation_bytes"].as_u64()
    };
    // Four pairs at once need room for more than one.
    assert!(bytes("two_edges") > bytes("decoder"), "{more}");
    // The existing engines also satisfy a smaller request.
    assert_eq!(with(&["--parts", "mono"]), Some(more.clone()));
    // The decoder both ways has no 8-bit floats.
    let fp8 = ["--parts", "edge,mono", "--precision", "fp8"];
    let fp8 = with(&fp8).expect("the library is there");
    assert_eq!(parts(&fp8), ["encoder", "decoder", "mono"]);
}

#[test]
fn eight_bit_floats_and_bfloat_are_in_the_kernels_that_were_asked_for_them() {
    let root = tempfile::tempdir().expect("a temporary folder");
    for (precision, datatype) in [("fp8", "FP8"), ("bf16", "BFloat16")] {
        let Some(folder) = built(root.path(), &["--precision", precision, "--parts", ""]) else {
            return;
        };
        for part in ["encoder", "decoder"] {
            let layers = std::fs::read_to_string(folder.join(format!("{part}.layers.txt")));
            let layers = layers.expect("a list of kernels");
            let datatype = format!("Datatype: {datatype}");
            // In every block of the transformers.
            let in_it = layers.lines().filter(|line| line.contains(&datatype));
            assert!(in_it.count() > 8, "{precision} {part}");
        }
    }
}

#[test]
fn what_cannot_be_built_is_refused_with_a_reason() {
    let root = tempfile::tempdir().expect("a temporary folder");
    let fails = |args: &[&str], parts: &[&str]| {
        let output = engine(root.path(), args)
            .output()
            .expect("the program starts");
        assert_failed(&output, parts);
    };
    // Before the library is looked for.
    fails(
        &["build", "--target", "sm_90"],
        &["sm_90", "sm_75, sm_80", "tensorrt-enterprise"],
    );
    let orin = ["build", "--target", "sm_86,sm_120", "--precision", "fp8"];
    fails(&orin, &["sm_86", "fp8", "fp16"]);
    fails(
        &["build", "--target", "sm_120", "--weights", "no/such.pth"],
        &["no/such.pth"],
    );
    for args in [
        &["build", "--target", "fast"][..],
        &["build", "--target", "sm_120", "--precision", "fp12"],
        &["build", "--target", "sm_120", "--parts", "edges"],
        &["build", "--target", "sm_120", "--size", "100x64"],
    ] {
        let output = engine(root.path(), args)
            .output()
            .expect("the program starts");
        assert_eq!(output.status.code(), Some(2), "{}", message(&output));
    }
    let image = bundled().join("groundtruth.txt");
    let not_weights = ["build", "--target", "sm_120", "--weights", text(&image)];
    let output = engine(root.path(), &not_weights)
        .output()
        .expect("the program starts");
    if installed(&output) {
        assert_failed(&output, &["groundtruth.txt", "expected"]);
    }
    let output = engine(root.path(), &["inspect", "nothing"]).output();
    assert_failed(
        &output.expect("the program starts"),
        &["nothing", "manifest.json"],
    );
}

#[test]
fn a_recipe_names_its_prediction_as_one() {
    let recipe = Path::new(env!("CARGO_MANIFEST_DIR")).join("engines/rtx50.yaml");
    let output = program(&["engine", "recipe", text(&recipe)]).output();
    let output = output.expect("the program starts");
    assert!(output.status.success(), "{}", message(&output));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    for part in [
        "sm_120",
        "fp16",
        "512x384",
        "predicted (not measured)",
        "GFLOP",
    ] {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
    let root = tempfile::tempdir().expect("a temporary folder");
    let encoder = ["--recipe", text(&recipe), "--parts", ""];
    for precision in ["fp16", "fp32"] {
        // Command-line options take precedence, the rest comes from the recipe.
        let option: &[&str] = match precision {
            "fp16" => &[],
            other => &["--precision", other],
        };
        let Some(folder) = built(root.path(), &[&encoder, option].concat()) else {
            return;
        };
        let manifest = json(&folder.join("manifest.json"));
        assert_eq!(manifest["precision"], precision);
        assert_eq!(manifest["size"], serde_json::json!([96, 64]));
        assert_eq!(manifest["targets"], serde_json::json!(["sm_120"]));
        let layers = std::fs::read_to_string(folder.join("encoder.layers.txt"));
        let half = layers
            .expect("a list of kernels")
            .contains("Datatype: Half");
        assert_eq!(half, precision == "fp16");
    }
}
