//! The figures of `eval` are those of evo 1.38.1, to 1e-6 (metres, degrees, scale).
//! `tests/data/eval/make_fixtures.py` made the trajectories and asked evo.

use mast3r_slam::eval::{self, Alignment, Delta, Options, Statistics};
use serde_json::Value;
use std::path::Path;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/eval");

fn options(case: &Value) -> Options {
    let given = &case["options"];
    let mut options = Options::default();
    if let Some(align) = given["align"].as_str() {
        options.alignment = align.parse().unwrap();
    }
    if let Some(tolerance) = given["tolerance"].as_f64() {
        options.tolerance = tolerance;
    }
    if let Some(offset) = given["offset"].as_f64() {
        options.offset = offset;
    }
    if let Some(frames) = given["delta"].as_u64() {
        options.delta = Delta::Frames(frames as usize);
    }
    if let Some(metres) = given["metres"].as_f64() {
        options.delta = Delta::Metres(metres);
    }
    options
}

fn close(what: &str, ours: f64, evo: f64) {
    assert!((ours - evo).abs() < 1e-6, "{what}: {ours}, evo says {evo}");
}

fn same(what: &str, ours: &Statistics, evo: &Value) {
    let pairs = [
        ("rmse", ours.rmse),
        ("mean", ours.mean),
        ("median", ours.median),
        ("std", ours.std),
        ("min", ours.min),
        ("max", ours.max),
    ];
    for (name, value) in pairs {
        close(
            &format!("{what} {name}"),
            value,
            evo[name].as_f64().unwrap(),
        );
    }
}

#[test]
fn every_case_gives_evos_figures() {
    let text = std::fs::read_to_string(Path::new(FOLDER).join("expected.json")).unwrap();
    let cases: Vec<Value> = serde_json::from_str(&text).unwrap();
    assert!(cases.len() >= 19);
    for case in &cases {
        let name = format!("{} {} {}", case["estimate"], case["truth"], case["options"]);
        let file = |key: &str| Path::new(FOLDER).join(case[key].as_str().unwrap());
        let ours = eval::evaluate_files(&file("estimate"), &file("truth"), &options(case))
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        let evo = &case["evo"];
        let errors = evo["errors"].as_array().unwrap();
        assert_eq!(ours.errors.len(), errors.len(), "{name}: associated poses");
        for (i, (o, e)) in ours.errors.iter().zip(errors).enumerate() {
            close(&format!("{name}: error {i}"), o.error, e.as_f64().unwrap());
        }
        same(&format!("{name}: ATE"), &ours.ate, &evo["ate"]);
        same(
            &format!("{name}: RPE translation"),
            &ours.rpe_translation.unwrap(),
            &evo["rpe_translation"],
        );
        same(
            &format!("{name}: RPE rotation"),
            &ours.rpe_rotation.unwrap(),
            &evo["rpe_rotation"],
        );
        if ours.options.alignment != Alignment::None {
            close(&name, ours.alignment.scale, evo["scale"].as_f64().unwrap());
            let matrix = ours.alignment.to_matrix();
            for (r, row) in evo["matrix"].as_array().unwrap().iter().enumerate() {
                for c in 0..4 {
                    let what = format!("{name}: alignment {r},{c}");
                    close(&what, matrix[(r, c)], row[c].as_f64().unwrap());
                }
            }
        }
    }
}
