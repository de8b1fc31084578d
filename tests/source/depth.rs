//! Depth images beside the frames of datasets.

use image::{ImageBuffer, Luma, Rgb, RgbImage as Picture};
use mast3r_slam::source::{DepthOptions, Source, SourceOptions, open};
use mast3r_slam::{DepthCamera, DepthImage, DepthLimits, DepthReader, NetworkView};
use nalgebra::Vector3;
use std::fs;
use std::path::Path;

const SIZE: (u32, u32) = (64, 48);

fn colour(path: &Path) {
    Picture::from_pixel(SIZE.0, SIZE.1, Rgb([1, 2, 3]))
        .save(path)
        .unwrap();
}

/// A 16-bit depth image of one value.
fn depth(path: &Path, value: u16) {
    ImageBuffer::<Luma<u16>, _>::from_pixel(SIZE.0, SIZE.1, Luma([value]))
        .save(path)
        .unwrap();
}

fn tum(folder: &Path, colours: &[&str], depths: &[(&str, u16)]) {
    fs::create_dir_all(folder.join("rgb")).unwrap();
    fs::create_dir_all(folder.join("depth")).unwrap();
    let mut list = String::new();
    for stamp in colours {
        colour(&folder.join(format!("rgb/{stamp}.png")));
        list += &format!("{stamp} rgb/{stamp}.png\n");
    }
    fs::write(folder.join("rgb.txt"), list).unwrap();
    let mut list = String::from("# depth maps\n");
    for (stamp, value) in depths {
        depth(&folder.join(format!("depth/{stamp}.png")), *value);
        list += &format!("{stamp} depth/{stamp}.png\n");
    }
    fs::write(folder.join("depth.txt"), list).unwrap();
}

fn with_depth(units: Option<f64>) -> SourceOptions {
    SourceOptions {
        depth: Some(DepthOptions { units }),
        ..Default::default()
    }
}

/// The first value of each frame's depth.
fn first(source: &mut dyn Source) -> Vec<Option<f32>> {
    let value = |image: &DepthImage| {
        assert_eq!((image.width, image.height), (64, 48));
        assert!(image.metres.iter().all(|z| *z == image.metres[0]));
        image.metres[0]
    };
    source
        .map(|frame| frame.unwrap().depth.map(|depth| value(&depth.image)))
        .collect()
}

#[test]
fn tum_depth_belongs_to_the_frame_nearest_in_time() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path();
    let colours = ["1.000000", "1.033000", "1.066000", "1.100000"];
    let depths = [
        ("1.004000", 5000),
        ("1.030000", 6000),
        ("1.036500", 7000),
        ("1.121000", 8000),
    ];
    tum(folder, &colours, &depths);
    let mut source = open(folder, with_depth(None)).unwrap();
    assert_eq!(source.describe(), "TUM RGB-D, 4 frames, 2 with depth");
    assert_eq!(source.depth_camera(), Some(&DepthCamera::Registered));
    // 1.066 has none within 20 ms, and 1.1 just not.
    assert_eq!(first(source.as_mut()), [Some(1.0), Some(1.2), None, None]);

    // Without being asked for, nothing is read.
    let mut source = open(folder, SourceOptions::default()).unwrap();
    assert_eq!(source.describe(), "TUM RGB-D, 4 frames");
    assert_eq!(source.depth_camera(), None);
    assert_eq!(first(source.as_mut()), [None; 4]);

    // The selection of frames takes their depth along.
    let options = SourceOptions {
        start: 1,
        end: Some(2),
        ..with_depth(None)
    };
    assert_eq!(first(open(folder, options).unwrap().as_mut()), [Some(1.2)]);
}

#[test]
fn the_unit_is_the_given_one_or_the_dataset_s() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path();
    tum(folder, &["1.0"], &[("1.0", 2000)]);
    let metres = |units| first(open(folder, with_depth(units)).unwrap().as_mut())[0].unwrap();
    assert_eq!(metres(None), 0.4);
    assert_eq!(metres(Some(1000.0)), 2.0);
    let camera = |factor: &str| {
        let text = format!(
            "width: 64\nheight: 48\ncalibration: [60, 60, 32, 24]\ndepth_factor: {factor}\n"
        );
        fs::write(folder.join("camera.yaml"), text).unwrap();
    };
    camera("4000");
    assert_eq!(metres(None), 0.5);
    assert_eq!(metres(Some(1000.0)), 2.0);
    camera("0");
    let refused = open(folder, with_depth(None))
        .err()
        .expect("a refusal")
        .to_string();
    assert!(refused.contains("depth_factor: 0"), "{refused}");
    // Without depth, the key is ignored as before.
    assert!(open(folder, SourceOptions::default()).is_ok());
}

#[test]
fn a_depth_image_that_cannot_be_read_leaves_its_frame_without() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path();
    tum(
        folder,
        &["1.0", "1.1", "1.2", "1.3"],
        &[("1.0", 5000), ("1.1", 5000), ("1.2", 5000), ("1.3", 5000)],
    );
    fs::write(folder.join("depth/1.0.png"), "not a PNG").unwrap();
    colour(&folder.join("depth/1.1.png"));
    let mut source = open(folder, with_depth(None)).unwrap();
    assert_eq!(first(source.as_mut()), [None, None, Some(1.0), Some(1.0)]);
}

#[test]
fn sources_without_depth_are_refused_where_it_is_asked_for() {
    let root = tempfile::tempdir().unwrap();
    let refused = |folder: &Path| {
        open(folder, with_depth(None))
            .err()
            .expect("a refusal")
            .to_string()
    };
    let images = root.path().join("images");
    fs::create_dir(&images).unwrap();
    colour(&images.join("1.png"));
    let text = refused(&images);
    assert!(
        text.contains("depth.txt") && text.contains("found images"),
        "{text}"
    );
    let folder = root.path().join("tum");
    tum(&folder, &["1.0"], &[("2.0", 5000)]);
    assert!(
        refused(&folder).contains("found 1 at other times"),
        "{}",
        refused(&folder)
    );
    fs::write(folder.join("depth.txt"), "1.0 depth/none.png\n").unwrap();
    assert!(refused(&folder).contains("none.png"));
    fs::remove_file(folder.join("depth.txt")).unwrap();
    assert!(refused(&folder).contains("depth.txt"));
}

#[test]
fn seven_scenes_depth_is_that_of_its_own_camera() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path();
    let name = |k: usize, kind: &str| folder.join(format!("frame-{k:06}.{kind}.png"));
    for k in 0..3 {
        Picture::new(640, 480).save(name(k, "color")).unwrap();
    }
    let refused = open(folder, with_depth(None))
        .err()
        .expect("no depth")
        .to_string();
    assert!(refused.contains("found none"), "{refused}");
    // A wall at 2 m with a hole of invalid values.
    let wall = ImageBuffer::from_fn(640, 480, |u, _| {
        Luma([if u < 300 { 2000u16 } else { 65535 }])
    });
    wall.save(name(1, "depth")).unwrap();
    let mut source = open(folder, with_depth(None)).unwrap();
    assert_eq!(source.describe(), "7-Scenes, 3 frames, 1 with depth");
    let camera = *source.depth_camera().unwrap();
    let frames: Vec<_> = source.as_mut().map(Result::unwrap).collect();
    let with: Vec<bool> = frames.iter().map(|f| f.depth.is_some()).collect();
    assert_eq!(with, [false, true, false]);
    let image = &frames[1].depth.as_ref().unwrap().image;
    assert_eq!((image.metres[0], image.metres[300]), (2.0, 0.0));
    // In the colour image, of focal length 525 and 25 mm beside: the last column of the wall, 299.5 − 320 of 585.
    let limits = DepthLimits {
        min: 0.2,
        max: 8.0,
        max_jump: 0.05,
    };
    let mut reader = DepthReader::new(NetworkView::same((640, 480)), limits);
    let depth = reader.read(image, &camera).unwrap().metres;
    let point = Vector3::new((299.5 - 320.0) / 585.0 * 2.0 - 0.025, 0.0, 2.0);
    let border = 525.0 * point.x / point.z + 320.0;
    let row = &depth[240 * 640..241 * 640];
    let last = row.iter().rposition(|z| *z > 0.0).unwrap() as f64;
    assert!((last - border).abs() <= 1.0, "{last} {border}");
    assert!(row.iter().all(|z| *z == 0.0 || *z == 2.0));
}
