//! `map pack`: a compact copy of a map, and what the program does with it.

use testkit::program::{Scene, assert_failed, message, program, run, text};

#[test]
fn a_packed_map_is_told_checked_and_used() {
    let scene = Scene::new(6);
    let folder = scene.folder.path();
    let (whole, small) = (folder.join("whole.map"), folder.join("small.map"));
    let first = scene.run(&["--map", text(&whole)]);
    assert!(first.status.success(), "{}", message(&first));
    let said = |args: &[&str]| {
        let output = program(args).output().expect("the program starts");
        assert!(output.status.success(), "{}", message(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let pack = ["map", "pack", text(&whole), text(&small)];
    let told = said(&pack);
    assert!(
        told.contains(" keyframes and ") && told.contains(" MB before"),
        "{told}"
    );
    let bytes = |path: &std::path::Path| path.metadata().expect("the file").len();
    assert!(bytes(&small) * 3 < bytes(&whole));
    let info = said(&["map", "info", text(&small)]);
    for part in ["state: packed", "images: 64×48, uncalibrated", "submaps: 1"] {
        assert!(info.contains(part), "{part:?} is not in: {info}");
    }
    assert!(said(&["map", "check", text(&small)]).contains("undamaged"));
    let again = program(&pack).output().expect("the program starts");
    assert_failed(&again, &["small.map exists", "--force"]);
    said(&[&pack[..], &["--force"]].concat());

    let before = std::fs::read(&small).expect("the file");
    for (more, words) in [
        (&["--read-only"][..], "read only"),
        (&[], "the file stays as it is"),
    ] {
        let out = folder.join("out");
        let args = [&["--map", text(&small), "--force"], more].concat();
        let run = run(&scene.sequence, &out, &args);
        assert!(run.status.success(), "{}", message(&run));
        let said = String::from_utf8_lossy(&run.stdout).into_owned();
        assert!(
            said.contains(words) && said.contains("1 relocalised"),
            "{said}"
        );
    }
    assert!(std::fs::read(&small).expect("the file") == before);

    let database = rusqlite::Connection::open(&small).expect("a database");
    let damage = "UPDATE image SET content = zeroblob(100) WHERE id = 0";
    database.execute(damage, []).expect("damaged");
    drop(database);
    let check = program(&["map", "check", text(&small)]);
    let check = { check }.output().expect("the program starts");
    assert_failed(&check, &["is damaged: 1 keyframes (0)"]);
}
