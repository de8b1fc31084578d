//! `mast3r-slam plan`: runs without a GPU.

use testkit::program::{message, program};

#[cfg(not(feature = "cuda"))]
#[test]
fn without_cuda_there_is_no_plan_but_advice() {
    let output = program(&["plan"]).output().expect("the program starts");
    assert_eq!(output.status.code(), Some(2), "{}", message(&output));
    let message = message(&output);
    assert!(message.contains("--features cuda"), "{message}");
}

#[cfg(feature = "cuda")]
mod with_cuda {
    use super::{message, program};
    use serde_json::Value;

    fn json(args: &[&str]) -> Value {
        let output = program(args).arg("--json").output().expect("the program");
        assert!(output.status.success(), "{}", message(&output));
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// Weights of the bundled model as the native backend would store them, and the workspaces that it would run in.
    #[test]
    fn the_native_network_is_planned_with_its_weights_and_workspaces() {
        let planned = |precision: &str| {
            let precision = format!("network.precision={precision}");
            let native = ["--set", "network.backend=native", "--set", &precision];
            json(&[&["plan", "--size", "256x192"][..], &native].concat())
        };
        let other = json(&["plan", "--size", "256x192"]);
        let number = |plan: &serde_json::Value, key: &str| plan[key].as_u64().expect("bytes");
        let of = |precision| {
            let plan = planned(precision);
            assert!(number(&plan, "device_bytes") > number(&other, "device_bytes"));
            number(&plan, "elsewhere_bytes")
        };
        assert_eq!(number(&other, "elsewhere_bytes"), 0);
        // The file holds binary16, here some layers are filled up.
        let stored = testkit::repository("engines/mast3r-mini/model.safetensors");
        let stored = std::fs::metadata(stored)
            .expect("the bundled weights")
            .len();
        let half = of("fp16");
        assert!(
            half > stored / 10 * 9 && half < stored / 2 * 3,
            "{half} of {stored}"
        );
        assert_eq!(of("bf16"), half);
        let quantised = of("fp8");
        assert!(quantised < half && quantised > half / 2, "{quantised}");
    }

    #[test]
    fn the_official_model_s_keyframe_fits_in_5_2_megabytes() {
        let args = [
            "plan", "--model", "vitl", "--size", "512x384", "--budget", "8GB",
        ];
        let plan = json(&args);
        let number = |key: &str| {
            plan[key]
                .as_u64()
                .unwrap_or_else(|| panic!("{key}: {plan}"))
        };
        assert!(number("keyframe_bytes") <= 5_200_000);
        let buffers = plan["buffers"].as_array().expect("buffers");
        let listed = |place: &str| -> u64 {
            let of = buffers.iter().filter(|b| b["place"] == place);
            of.map(|b| b["bytes"].as_u64().expect("bytes")).sum()
        };
        let gaps = 256 * buffers.len() as u64;
        for (place, key) in [("device", "device_bytes"), ("pinned", "pinned_bytes")] {
            let (listed, all) = (listed(place), number(key));
            assert!(
                (listed..=listed + gaps).contains(&all),
                "{place}: {listed}, {all}"
            );
        }
        // With that many slots the plan fits in the budget, with one more it does not.
        let fit = number("keyframes_that_fit");
        for (slots, fits) in [(fit, true), (fit + 1, false)] {
            let set = format!("memory.keyframe_slots={slots}");
            let mut args = args.to_vec();
            args.extend(["--set", &set]);
            let bytes = json(&args)["device_bytes"].as_u64().expect("bytes");
            assert_eq!(bytes <= 8_000_000_000, fits, "{slots} slots: {bytes}");
        }
        assert!(!plan["lower"].as_array().expect("advice").is_empty());
    }

    #[test]
    fn the_table_names_every_buffer() {
        let args = [
            "plan", "--gpu", "orin", "--size", "256x192", "--budget", "1MB",
        ];
        let output = program(&args).output().expect("the program starts");
        assert!(output.status.success(), "{}", message(&output));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let plan = json(&args);
        for buffer in plan["buffers"].as_array().expect("buffers") {
            let name = buffer["name"].as_str().expect("a name");
            assert!(text.contains(name), "{name} is not in {text}");
        }
        for part in [
            "Jetson AGX Orin",
            "does not fit",
            "lower",
            "memory.keyframe_slots",
        ] {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for args in [
            &["plan", "--size", "500x300"][..],
            &["plan", "--camera", "0x0"],
            &["plan", "--budget", "much"],
            &["plan", "--gpu", "abacus"],
        ] {
            let output = program(args).output().expect("the program starts");
            assert_eq!(
                output.status.code(),
                Some(2),
                "{args:?}: {}",
                message(&output)
            );
        }
    }
}
