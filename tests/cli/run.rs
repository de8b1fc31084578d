//! Whole runs of the program on few frames of the bundled sequence, at a small network size: what
//! is left when input is broken or Ctrl-C comes.

use std::path::Path;
use testkit::program::{Scene, assert_failed, bundled, image, message, poses, program, run, text};

#[test]
fn a_run_leaves_every_result() {
    let scene = Scene::new(5);
    let output = scene.run(&["--calibrated"]);
    assert!(output.status.success(), "{}", message(&output));
    for name in [
        "keyframes.txt",
        "keyframes.csv",
        "frames.csv",
        "cloud.ply",
        "report.html",
    ] {
        let size = std::fs::metadata(scene.out().join(name)).expect(name).len();
        assert!(size > 0, "{name} is empty");
    }
    assert_eq!(poses(&scene.out().join("trajectory.txt")), 5);
    assert!(scene.out().join("colmap").is_dir());
    let keyframes = std::fs::read_dir(scene.out().join("keyframes")).expect("keyframes");
    assert!(keyframes.count() > 0);
    // In a pipe: no bar, no escape sequences.
    assert!(!output.stderr.contains(&0x1b), "{}", message(&output));
    let said = String::from_utf8_lossy(&output.stdout);
    for part in ["5 frames in", "calibrated", "ATE"] {
        assert!(said.contains(part), "{part} is not in: {said}");
    }
}

#[test]
fn start_end_and_stride_choose_frames() {
    let scene = Scene::new(7);
    let output = scene.run(&["--start", "1", "--end", "6", "--stride", "2"]);
    assert!(output.status.success(), "{}", message(&output));
    let trajectory = std::fs::read_to_string(scene.out().join("trajectory.txt")).expect("poses");
    let stamps: Vec<&str> = trajectory
        .lines()
        .filter(|l| !l.starts_with('#'))
        .filter_map(|l| l.split(' ').next())
        .collect();
    assert_eq!(stamps, ["1000.100000", "1000.300000", "1000.500000"]);

    let output = scene.run(&["--force", "--start", "7"]);
    assert_failed(&output, &["7"]);
}

#[test]
fn a_truncated_image_ends_the_run_and_saves_the_frames_before_it() {
    let scene = Scene::new(6);
    let broken = image(&scene.sequence, 4);
    let bytes = std::fs::read(&broken).expect("an image");
    std::fs::write(&broken, &bytes[..bytes.len() / 2]).expect("half an image");
    let output = scene.run(&[]);
    let name = broken.file_name().expect("a name").to_string_lossy();
    assert_failed(&output, &[&name]);
    assert_eq!(poses(&scene.out().join("trajectory.txt")), 4);
    assert!(scene.out().join("report.html").exists());
}

#[test]
fn invalid_images_are_named() {
    for (content, index) in [("", 0), ("just text\n", 3)] {
        let scene = Scene::new(4);
        let broken = image(&scene.sequence, index);
        std::fs::write(&broken, content).expect("a file");
        let output = scene.run(&[]);
        let name = broken.file_name().expect("a name").to_string_lossy();
        assert_failed(&output, &[&name]);
        let saved = scene.out().join("trajectory.txt");
        match index {
            0 => assert!(!saved.exists(), "nothing was computed"),
            n => assert_eq!(poses(&saved), n),
        }
    }
}

#[test]
fn an_image_of_another_size_is_named() {
    let scene = Scene::new(4);
    let odd = image(&scene.sequence, 2);
    // A whole image, a grey one of 16×16 pixels.
    std::fs::write(&odd, [b"P5 16 16 255\n", &[128u8; 256][..]].concat()).expect("an image");
    let output = scene.run(&[]);
    let name = odd.file_name().expect("a name").to_string_lossy();
    assert_failed(&output, &[&name, "16"]);
    assert_eq!(poses(&scene.out().join("trajectory.txt")), 2);
}

#[test]
fn folders_and_lists_that_hold_no_frames_are_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let empty = folder.path().join("empty");
    std::fs::create_dir(&empty).expect("a folder");
    let out = folder.path().join("out");
    assert_failed(&run(&empty, &out, &[]), &["empty"]);
    assert!(!out.exists(), "an output folder without outputs");
}

#[test]
fn lists_with_times_that_do_not_grow_or_files_that_are_not_there_are_refused() {
    let scene = Scene::new(3);
    let list = scene.sequence.join("rgb.txt");
    let rows = std::fs::read_to_string(&list).expect("rgb.txt");
    let rows: Vec<&str> = rows.lines().collect();
    for (lines, place) in [
        ([rows[2], rows[1], rows[0]], "rgb.txt:2"),
        ([rows[0], rows[1], rows[1]], "rgb.txt:3"),
    ] {
        std::fs::write(&list, lines.join("\n")).expect("rgb.txt");
        assert_failed(&scene.run(&[]), &[place]);
    }
    std::fs::write(&list, rows.join("\n")).expect("rgb.txt");
    let missing = image(&scene.sequence, 1);
    std::fs::remove_file(&missing).expect("there was one");
    let name = missing.file_name().expect("a name").to_string_lossy();
    assert_failed(&scene.run(&[]), &["rgb.txt:2", &name]);
    assert!(!scene.out().exists(), "an output folder without outputs");
}

#[test]
fn a_plain_folder_is_held_to_one_size_and_to_times_that_differ() {
    let scene = Scene::new(3);
    let folder = scene.folder.path().join("plain");
    std::fs::create_dir(&folder).expect("a folder");
    for index in 0..3 {
        let to = folder.join(format!("{index}.jpg"));
        std::fs::copy(image(&scene.sequence, index), to).expect("a copy");
    }
    // A whole image, a grey one.
    let odd = [b"P5 16 16 255\n", &[128u8; 256][..]].concat();
    std::fs::write(folder.join("2.jpg"), odd).expect("an image");
    assert_failed(&run(&folder, &scene.out(), &[]), &["2.jpg", "16×16"]);
    assert_eq!(poses(&scene.out().join("trajectory.txt")), 2);

    for (from, to) in [
        ("0.jpg", "1.5.jpg"),
        ("1.jpg", "1.50.jpg"),
        ("2.jpg", "2.5.jpg"),
    ] {
        std::fs::rename(folder.join(from), folder.join(to)).expect("renamed");
    }
    let output = run(&folder, &scene.out(), &["--force"]);
    assert_failed(&output, &["1.5.jpg", "1.50.jpg"]);
    assert_eq!(
        poses(&scene.out().join("trajectory.txt")),
        2,
        "earlier results stay until a run starts"
    );
}

/// The first frames as EuRoC lays them out, from a camera with a strong lens.
fn euroc(scene: &Scene) -> std::path::PathBuf {
    let root = scene.folder.path().join("MH_01");
    let camera = root.join("mav0/cam0");
    std::fs::create_dir_all(camera.join("data")).expect("folders");
    let mut list = String::from("#timestamp [ns],filename\n");
    for index in 0..3 {
        let name = format!("{}.jpg", 1_000_000_000 + index);
        list.push_str(&format!("{},{name}\n", 1_000_000_000 + index));
        let to = camera.join("data").join(name);
        std::fs::copy(image(&scene.sequence, index), to).expect("a copy");
    }
    std::fs::write(camera.join("data.csv"), list).expect("data.csv");
    let sensor = "sensor_type: camera\nresolution: [512, 384]\ncamera_model: pinhole\n\
                  intrinsics: [340.0, 340.0, 255.5, 191.5]\n\
                  distortion_model: radial-tangential\n\
                  distortion_coefficients: [-0.28, 0.07, 0.0002, 0.00002]\n";
    std::fs::write(camera.join("sensor.yaml"), sensor).expect("sensor.yaml");
    root
}

#[test]
fn a_lens_far_from_a_pinhole_is_undistorted_without_calibration_too() {
    let scene = Scene::new(3);
    let sequence = euroc(&scene);
    let first_keyframe = |args: &[&str]| {
        let output = run(&sequence, &scene.out(), args);
        assert!(output.status.success(), "{}", message(&output));
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut images: Vec<_> = std::fs::read_dir(scene.out().join("keyframes"))
            .expect("keyframes")
            .flatten()
            .map(|entry| entry.path())
            .collect();
        images.sort();
        (said, std::fs::read(&images[0]).expect("a picture"))
    };
    let (said, calibrated) = first_keyframe(&["--calibrated"]);
    assert!(said.contains(", calibrated, f ="), "{said}");
    let (said, plain) = first_keyframe(&["--force"]);
    assert!(said.contains("uncalibrated, undistorted"), "{said}");
    assert!(calibrated == plain, "the network sees the same picture");

    let sensor = sequence.join("mav0/cam0/sensor.yaml");
    std::fs::remove_file(sensor).expect("there was one");
    let (said, raw) = first_keyframe(&["--force"]);
    assert!(!said.contains("undistorted"), "{said}");
    assert!(raw != plain, "the lens bends the picture");
}

#[test]
fn a_mask_takes_its_pixels_out_of_the_cloud_and_must_fit() {
    let scene = Scene::new(2);
    let file = scene.folder.path().join("mask.png");
    let cloud = |args: &[&str]| {
        let output = scene.run(args);
        assert!(output.status.success(), "{}", message(&output));
        let cloud = std::fs::metadata(scene.out().join("cloud.ply"));
        cloud.expect("a cloud").len()
    };
    // At so small a size the network is sure of nothing.
    let all = ["--set", "output.C_conf=0"];
    let whole = cloud(&all);
    let used = |_, v| ::image::Luma([if v < 192 { 1_u8 } else { 0 }]);
    let mask = ::image::GrayImage::from_fn(512, 384, used);
    mask.save(&file).expect("a mask");
    let half = cloud(&[&all[..], &["--mask", text(&file), "--force"]].concat());
    assert!(half > 0 && half < whole * 7 / 10, "{half} of {whole} bytes");

    let small = ::image::GrayImage::new(256, 192);
    small.save(&file).expect("a mask");
    let output = scene.run(&["--mask", text(&file), "--force"]);
    assert_failed(&output, &["mask.png", "256×192", "512×384"]);
    let output = scene.run(&["--mask", "nowhere.png", "--force"]);
    assert_failed(&output, &["cannot read the mask nowhere.png"]);
}

#[test]
fn a_calibration_that_does_not_fit_is_refused() {
    let scene = Scene::new(2);
    let file = scene.folder.path().join("other.yaml");
    std::fs::write(
        &file,
        "width: 640\nheight: 360\ncalibration: [500, 500, 320, 180]\n",
    )
    .expect("a file");
    let output = scene.run(&["--calib", text(&file)]);
    assert_failed(&output, &["640", "360", "512", "384"]);

    // An image of the same shape is scaled with a message, without escape sequences, as this is no terminal.
    std::fs::write(
        &file,
        "width: 640\nheight: 480\ncalibration: [440, 440, 319.5, 239.5]\n",
    )
    .expect("a file");
    let output = scene.run(&["--calib", text(&file)]);
    let said = message(&output);
    assert!(output.status.success() && said.contains("scaled"), "{said}");
    assert!(!output.stderr.contains(&0x1b), "{said:?}");

    std::fs::remove_file(scene.sequence.join("camera.yaml")).expect("there was one");
    let output = scene.run(&["--force", "--calibrated"]);
    assert_failed(&output, &["use_calib", "--calib", "--no-calib"]);
}

#[test]
fn ground_truth_with_nan_is_used_and_one_of_another_time_is_not() {
    let scene = Scene::new(5);
    let truth = scene.sequence.join("groundtruth.txt");
    let mut rows = std::fs::read_to_string(&truth).expect("poses");
    rows.push_str("1010.5 nan nan nan 0 0 0 1\n");
    std::fs::write(&truth, &rows).expect("poses");
    let output = scene.run(&[]);
    assert!(output.status.success(), "{}", message(&output));
    // Asked for by name, its flaw is the exit code's matter too.
    let output = scene.run(&["--force", "--ground-truth", text(&truth)]);
    assert_failed(&output, &["groundtruth.txt", "1 row is not finite"]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("ATE"));

    let other = scene.folder.path().join("other.txt");
    std::fs::write(
        &other,
        "5 0 0 0 0 0 0 1\n6 1 0 0 0 0 0 1\n7 1 1 0 0 0 0 1\n",
    )
    .expect("poses");
    let nan = scene.folder.path().join("nan.txt");
    std::fs::write(&nan, "1000.0 nan nan nan 0 0 0 1\n").expect("poses");
    for (truth, part) in [(&other, "ground truth"), (&nan, "non-finite")] {
        let output = scene.run(&["--force", "--ground-truth", text(truth)]);
        assert_failed(&output, &[part]);
        assert_eq!(
            poses(&scene.out().join("trajectory.txt")),
            5,
            "saved all the same"
        );
    }
}

#[test]
fn invalid_weights_are_refused() {
    let scene = Scene::new(2);
    let bundled =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("engines/mast3r-mini/model.safetensors");
    let bytes = std::fs::read(bundled).expect("the bundled weights");
    let weights = scene.folder.path().join("cut.safetensors");
    for keep in [0, 5, 1000, bytes.len() - 1] {
        std::fs::write(&weights, &bytes[..keep]).expect("a file");
        let output = scene.run(&["--weights", text(&weights)]);
        assert_failed(&output, &["cut.safetensors"]);
        assert!(!scene.out().exists(), "{keep}");
        let info = program(&["network", "info", text(&weights)]).output();
        assert_failed(&info.expect("the program starts"), &["cut.safetensors"]);
    }
}

#[test]
fn eval_prints_json_that_programs_read() {
    let truth = bundled().join("groundtruth.txt");
    let args = ["eval", text(&truth), text(&truth), "--json", "--delta", "3"];
    let output = program(&args).output().expect("the program starts");
    assert!(output.status.success(), "{}", message(&output));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    // The same file twice; the alignment rounds.
    assert!(
        json["ate"]["rmse"].as_f64().is_some_and(|e| e < 1e-9),
        "{json}"
    );
    assert_eq!(json["pairs"], 300);
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_the_run_and_writes_the_results() {
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let out = folder.path().join("out");
    let mut child = program(&[
        "run",
        text(&bundled()),
        "--out",
        text(&out),
        "--size",
        "128",
    ])
    .stdout(Stdio::piped())
    .stderr(Stdio::piped())
    .spawn()
    .expect("the program starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    // From this line on Ctrl-C is caught.
    assert!(
        lines
            .by_ref()
            .any(|l| l.is_ok_and(|l| l.starts_with("output:")))
    );
    let kill = std::process::Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(kill.expect("kill runs").success());
    let said: Vec<String> = lines.map_while(Result::ok).collect();
    let status = child.wait().expect("it ends");
    assert_eq!(status.code(), Some(130), "{said:?}");
    let count = poses(&out.join("trajectory.txt"));
    assert!((1..100).contains(&count), "{count} of 100 frames");
    assert!(out.join("report.html").exists());
}
