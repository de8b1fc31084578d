//! Results of a map whose keyframes are elsewhere: few are in memory at a time.

use mast3r_slam::config::Config;
use mast3r_slam::image::RgbImage;
use mast3r_slam::map::grid::{self, GridOptions, Upright};
use mast3r_slam::map::{
    CloudOptions, Content, KeyframeView, MapSnapshot, ReadKeyframe, colmap, keyframes, ply,
};
use mast3r_slam::report::{self, ReportInput, RunSummary};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use testkit::map_room::room;

/// Keyframes that are copied when they are read.
struct Elsewhere {
    views: Vec<KeyframeView>,
    /// The copies.
    read: Mutex<Vec<Weak<RgbImage>>>,
    /// The largest number of copies that existed at a time.
    most: AtomicUsize,
    count: AtomicUsize,
}

impl ReadKeyframe for Elsewhere {
    fn read(&self, id: u32) -> KeyframeView {
        let held = &self.views[id as usize];
        let view = KeyframeView {
            image: Arc::new(RgbImage::clone(&held.image)),
            points: Arc::new(held.points.to_vec()),
            confidence: Arc::new(held.confidence.to_vec()),
        };
        let mut read = self.read.lock().unwrap();
        read.retain(|copy| copy.strong_count() > 0);
        read.push(Arc::downgrade(&view.image));
        self.most.fetch_max(read.len(), Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
        view
    }
}

/// The same map, with its keyframes elsewhere.
fn moved_away(map: &MapSnapshot) -> (MapSnapshot, Arc<Elsewhere>) {
    let elsewhere = Arc::new(Elsewhere {
        views: map.keyframes.iter().map(|k| k.view()).collect(),
        read: Mutex::default(),
        most: AtomicUsize::new(0),
        count: AtomicUsize::new(0),
    });
    let mut map = map.clone();
    for keyframe in &mut map.keyframes {
        keyframe.content = Content::Elsewhere(elsewhere.clone());
    }
    (map, elsewhere)
}

/// Everything that is made of keyframes.
fn write_all(folder: &Path, map: &MapSnapshot) {
    keyframes::write(folder, map).unwrap();
    let whole = CloudOptions {
        min_confidence: 0.0,
        voxel_size: 0.0,
    };
    ply::write(&folder.join("cloud.ply"), map, &whole).unwrap();
    colmap::write(&folder.join("colmap"), map, &whole).unwrap();
    let mut uncalibrated = map.clone();
    uncalibrated.intrinsics = None;
    colmap::write(&folder.join("uncalibrated"), &uncalibrated, &whole).unwrap();
    let input = ReportInput {
        snapshot: map,
        title: "a map",
        settings: &[],
        evaluation: None,
        ground_truth: None,
        cloud: whole,
        grid: None,
        splats: &[],
        run: &RunSummary {
            fps: None,
            peak_memory: None,
            backend: String::new(),
            scale: None,
            mapping: Vec::new(),
        },
    };
    report::write(&folder.join("report.html"), &input).unwrap();
    let options = GridOptions::new(&Config::default().grid, 0.0);
    let (upright, _) = Upright::find(map, 0, &options).unwrap();
    let (grid, _) = grid::of_snapshot(map, 0, &upright, &options);
    fs::write(folder.join("grid"), format!("{:?}", grid.cells)).unwrap();
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push(path),
        }
    }
    found.sort();
    found
}

#[test]
fn few_keyframes_are_in_memory_and_the_files_are_the_same() {
    let held = room(160, 2, 32, 24);
    let (streamed, elsewhere) = moved_away(&held);
    assert!(streamed.keyframes.len() > 60);
    let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
    write_all(folders[0].path(), &held);
    write_all(folders[1].path(), &streamed);
    let [a, b] = folders.each_ref().map(|folder| files(folder.path()));
    assert!(a.len() == b.len() && a.len() > streamed.keyframes.len());
    for (a, b) in a.iter().zip(&b) {
        assert_eq!(a.file_name(), b.file_name());
        assert!(
            fs::read(a).unwrap() == fs::read(b).unwrap(),
            "{}",
            b.display()
        );
    }
    // One a thread, and the one that is being dropped.
    let most = elsewhere.most.load(Ordering::Relaxed);
    assert!(most <= rayon::current_num_threads() + 1, "{most} at a time");
    // Each result reads a keyframe a few times.
    let reads = elsewhere.count.load(Ordering::Relaxed);
    let per_keyframe = reads / streamed.keyframes.len();
    assert!((5..25).contains(&per_keyframe), "{per_keyframe} times each");
}

#[test]
fn what_is_changed_is_held() {
    let (mut map, elsewhere) = moved_away(&room(4, 2, 16, 12));
    let view = map.keyframes[1].view_mut();
    view.confidence = Arc::new(vec![7.0; 192]);
    assert_eq!(elsewhere.count.load(Ordering::Relaxed), 1);
    assert_eq!(map.keyframes[1].view().confidence[3], 7.0);
    assert_eq!(elsewhere.count.load(Ordering::Relaxed), 1);
    assert_ne!(map.keyframes[0].view().confidence[3], 7.0);
    assert_eq!(elsewhere.count.load(Ordering::Relaxed), 2);
}
