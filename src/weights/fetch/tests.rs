use super::*;
use std::cell::RefCell;
use testkit::http::{Answer, Server};

/// Bytes that no two places share.
fn content() -> Vec<u8> {
    (0..100_000u32).flat_map(u32::to_le_bytes).collect()
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect()
}

/// Stops at `limit` bytes and notes where fetching was.
struct Watched {
    limit: u64,
    at: RefCell<Vec<u64>>,
}

impl Watch for Watched {
    fn at(&self, bytes: u64, _: Option<u64>) {
        self.at.borrow_mut().push(bytes);
    }
    fn stop(&self) -> bool {
        self.at.borrow().last().is_some_and(|&at| at >= self.limit)
    }
}

fn watched(limit: u64) -> Watched {
    let at = RefCell::new(Vec::new());
    Watched { limit, at }
}

struct Scene {
    folder: tempfile::TempDir,
    server: Server,
    address: String,
    hash: String,
}

impl Scene {
    fn new(answers: &[Answer]) -> Self {
        let server = Server::new(content(), "\"one\"", answers);
        Self {
            folder: tempfile::tempdir().unwrap(),
            address: format!("{}/folder/file.pth", server.address()),
            server,
            hash: sha256(&content()),
        }
    }

    fn target(&self) -> PathBuf {
        self.folder.path().join("cache/file.pth")
    }

    fn fetch(&self, bytes: Option<u64>, sha256: Option<&str>) -> Result<Outcome, WeightsError> {
        self.fetch_until(bytes, sha256, u64::MAX)
    }

    fn fetch_until(
        &self,
        bytes: Option<u64>,
        sha256: Option<&str>,
        limit: u64,
    ) -> Result<Outcome, WeightsError> {
        let target = self.target();
        let wanted = Wanted {
            address: &self.address,
            target: &target,
            bytes,
            sha256,
        };
        Client::default().fetch(&wanted, &watched(limit))
    }

    fn left(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.folder.path().join("cache")).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn is_complete(&self) -> bool {
        self.left() == ["file.pth"] && std::fs::read(self.target()).unwrap() == content()
    }
}

#[test]
fn a_file_arrives_and_leaves_nothing_else_behind() {
    let scene = Scene::new(&[]);
    let done = scene.fetch(Some(400_000), Some(&scene.hash)).unwrap();
    let sha256 = scene.hash.clone();
    assert_eq!(
        done,
        Outcome::Done {
            bytes: 400_000,
            sha256
        }
    );
    assert!(scene.is_complete());
    // Neither size nor hash are needed.
    let unknown = Scene::new(&[]);
    unknown.fetch(None, None).unwrap();
    assert!(unknown.is_complete());
}

#[test]
fn a_stopped_download_continues_where_it_was() {
    let scene = Scene::new(&[]);
    let stopped = scene.fetch_until(None, None, 150_000).unwrap();
    let Outcome::Stopped { bytes } = stopped else {
        panic!("{stopped:?}");
    };
    assert!((150_000..400_000).contains(&bytes));
    assert!(!scene.target().exists());
    scene.fetch(Some(400_000), Some(&scene.hash)).unwrap();
    assert!(scene.is_complete());
    let requests = scene.server.requests();
    let expected = format!("/folder/file.pth bytes={bytes}- \"one\"");
    assert_eq!(requests, ["/folder/file.pth - -".to_owned(), expected]);
}

#[test]
fn a_connection_that_breaks_off_is_taken_up_again() {
    let scene = Scene::new(&[
        Answer::Cut(100_000),
        Answer::Status(503),
        Answer::Cut(200_000),
    ]);
    scene.fetch(Some(400_000), Some(&scene.hash)).unwrap();
    assert!(scene.is_complete());
    let ranges: Vec<String> = scene
        .server
        .requests()
        .iter()
        .map(|r| r.split(' ').nth(1).unwrap().to_owned())
        .collect();
    assert_eq!(
        ranges,
        ["-", "bytes=100000-", "bytes=100000-", "bytes=300000-"]
    );
}

#[test]
fn a_server_that_sends_nothing_more_ends_it_and_the_part_is_kept() {
    let scene = Scene::new(&[[Answer::Cut(100_000)].as_slice(), &[Answer::Cut(0); 8]].concat());
    let error = scene.fetch(Some(400_000), None).unwrap_err().to_string();
    assert!(
        error.contains("after 100000 of 400000 bytes") && error.contains("again"),
        "{error}"
    );
    assert!(scene.left().contains(&"file.pth.part".to_owned()));
    assert!(!scene.target().exists());
    // Tries are limited.
    assert_eq!(scene.server.requests().len(), MAX_FAILURES);
}

#[test]
fn a_server_without_ranges_and_one_with_another_version_start_over() {
    let scene = Scene::new(&[Answer::Cut(100_000), Answer::NoRanges]);
    scene.fetch(Some(400_000), Some(&scene.hash)).unwrap();
    assert!(scene.is_complete());
    let scene = Scene::new(&[]);
    let path = scene.target();
    std::fs::create_dir(path.parent().unwrap()).unwrap();
    std::fs::write(beside(&path, ".part"), vec![7; 1000]).unwrap();
    std::fs::write(beside(&path, ".part.version"), "\"two\"").unwrap();
    scene.fetch(Some(400_000), None).unwrap();
    assert!(scene.is_complete());
    assert_eq!(
        scene.server.requests(),
        ["/folder/file.pth bytes=1000- \"two\""]
    );
}

#[test]
fn a_file_with_another_hash_or_size_is_not_kept() {
    let scene = Scene::new(&[]);
    let other = sha256(b"another file");
    let error = scene
        .fetch(Some(400_000), Some(&other))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains(&other) && error.contains(&scene.hash),
        "{error}"
    );
    assert!(scene.left().is_empty(), "{:?}", scene.left());
    for bytes in [399_999, 400_001] {
        let error = scene.fetch(Some(bytes), None).unwrap_err().to_string();
        assert!(
            error.contains(&bytes.to_string()) && error.contains("400000"),
            "{error}"
        );
        assert!(!scene.target().exists());
    }
}

#[test]
fn a_missing_file_is_told_at_once() {
    let scene = Scene::new(&[Answer::Status(404); 9]);
    let error = scene.fetch(None, None).unwrap_err().to_string();
    assert!(
        error.contains("404") && error.contains(&scene.address),
        "{error}"
    );
    assert_eq!(scene.server.requests().len(), 1);
    let scene = Scene {
        address: "nowhere".into(),
        ..Scene::new(&[])
    };
    assert!(scene.fetch(None, None).is_err());
}

#[test]
fn two_processes_do_not_fetch_one_file() {
    let scene = Scene::new(&[]);
    let path = beside(&scene.target(), ".part");
    std::fs::create_dir(path.parent().unwrap()).unwrap();
    let held = File::create(&path).unwrap();
    held.lock().unwrap();
    let error = scene.fetch(None, None).unwrap_err();
    assert!(matches!(error, WeightsError::Busy { .. }), "{error}");
    drop(held);
    scene.fetch(None, None).unwrap();
    assert!(scene.is_complete());
}

#[test]
fn a_folder_that_cannot_be_written_to_is_named() {
    let scene = Scene::new(&[]);
    // A file where the folder should be; permissions do not stop root.
    let folder = scene.folder.path().join("cache");
    std::fs::write(&folder, "").unwrap();
    let error = scene.fetch(None, None).unwrap_err().to_string();
    assert!(
        error.contains(folder.to_str().unwrap()) && error.contains("permissions"),
        "{error}"
    );
}

#[test]
fn a_file_larger_than_the_disk_is_refused_before_it_is_fetched() {
    let scene = Scene::new(&[]);
    std::fs::create_dir(scene.folder.path().join("cache")).unwrap();
    let target = scene.target();
    let wanted = Wanted {
        address: &scene.address,
        target: &target,
        bytes: None,
        sha256: None,
    };
    let partial = Partial::open(&wanted).unwrap();
    match free_space(scene.folder.path()) {
        None => assert!(partial.check_space(Some(u64::MAX)).is_ok()),
        Some(_) => {
            let error = partial.check_space(Some(u64::MAX)).unwrap_err().to_string();
            assert!(
                error.contains("bytes free") && error.contains("cache"),
                "{error}"
            );
            assert!(partial.check_space(Some(1)).is_ok());
        }
    }
}

#[test]
fn ranges_are_read_strictly() {
    assert_eq!(content_range("bytes 5-9/10"), Some((5, Some(10))));
    assert_eq!(content_range("bytes 5-9/*"), Some((5, None)));
    for text in [
        "",
        "bytes */10",
        "bytes 5/10",
        "items 5-9/10",
        "bytes -5-9/10",
    ] {
        assert_eq!(content_range(text), None, "{text}");
    }
}
