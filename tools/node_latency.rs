//! Shows a running `mast3r-slam node` a sequence at a camera's rate and measures how long poses take.
//!
//! ```sh
//! mast3r-slam node --ros-args -p image_qos:=reliable -p use_calibration:=false -p base_frame:='' &
//! node_latency assets/room_loop --rate 30 --seconds 30
//! ```
//!
//! The images go forth and back, scaled to `--size`, as rgb8 (or, with `--compressed`, as the files are: then
//! decoding them is part of what is measured). Prints the time from an image's publication to its pose's
//! arrival, what arrived, and the node's own diagnostics. Both ends must be on one machine.

use mast3r_slam::ros::dds::{Dds, Environment};
use mast3r_slam::ros::middleware::{Lane, Middleware, Publish};
use mast3r_slam::source::{self, SourceOptions};
use mast3r_slam::time::Stamp;
use mast3r_slam::wire::Qos;
use mast3r_slam::wire::messages::diagnostic::DiagnosticArray;
use mast3r_slam::wire::messages::geometry::PoseWithCovarianceStamped;
use mast3r_slam::wire::messages::sensor::{CompressedImage, Image};
use mast3r_slam::wire::messages::{Header, Message};
use mast3r_slam::wire::names::NodeNames;
use std::collections::HashMap;
use std::error::Error;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

type Failure = Box<dyn Error>;

struct Options {
    folder: String,
    rate: f64,
    seconds: f64,
    size: (u32, u32),
    compressed: bool,
    node: String,
}

impl Options {
    fn read() -> Result<Self, Failure> {
        const USAGE: &str = "usage: node_latency FOLDER [--rate HZ] [--seconds S] [--size WxH] [--compressed] [--node NAME]";
        let mut options = Self {
            folder: String::new(),
            rate: 30.0,
            seconds: 30.0,
            size: (640, 480),
            compressed: false,
            node: "mast3r_slam".into(),
        };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(USAGE);
            match word.as_str() {
                "--rate" => options.rate = value()?.parse()?,
                "--seconds" => options.seconds = value()?.parse()?,
                "--size" => {
                    let size = value()?;
                    let (w, h) = size.split_once('x').ok_or(USAGE)?;
                    options.size = (w.parse()?, h.parse()?);
                }
                "--compressed" => options.compressed = true,
                "--node" => options.node = value()?,
                folder => options.folder = folder.to_owned(),
            }
        }
        match options.folder.is_empty() || options.rate <= 0.0 {
            true => Err(USAGE.into()),
            false => Ok(options),
        }
    }
}

/// An image as it is sent, without its header.
enum Picture {
    Raw(Vec<u8>),
    File(Vec<u8>),
}

fn pictures(options: &Options) -> Result<Vec<Picture>, Failure> {
    if options.compressed {
        return files(Path::new(&options.folder));
    }
    let (w, h) = options.size;
    let mut source = source::open(options.folder.as_ref(), SourceOptions::default())?;
    let mut pictures = Vec::new();
    while let Some(frame) = source.next_frame()? {
        let (width, height) = (frame.image.width as u32, frame.image.height as u32);
        let image = image::RgbImage::from_raw(width, height, frame.image.data);
        let image = image.ok_or("an image of another size than it says")?;
        let filter = image::imageops::FilterType::Triangle;
        let scaled = image::imageops::resize(&image, w, h, filter);
        pictures.push(Picture::Raw(scaled.into_raw()));
    }
    Ok(pictures)
}

fn files(folder: &Path) -> Result<Vec<Picture>, Failure> {
    let inner = folder.join("rgb");
    let folder = if inner.is_dir() { &inner } else { folder };
    let entries = std::fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>()?;
    let mut paths: Vec<_> = entries.iter().map(|e| e.path()).collect();
    paths.retain(|p| p.extension().is_some_and(|e| e == "jpg" || e == "png"));
    paths.sort();
    let read = |p: &std::path::PathBuf| Ok(Picture::File(std::fs::read(p)?));
    paths.iter().map(read).collect()
}

/// What came back.
#[derive(Default)]
struct Heard {
    /// By the image's stamp: when its pose came.
    poses: HashMap<i64, Instant>,
    diagnostics: Option<DiagnosticArray>,
}

struct Sender {
    topic: Box<dyn Publish>,
    pictures: Vec<Picture>,
    size: (u32, u32),
    next: usize,
}

impl Sender {
    /// Sends the next image; its stamp, and when it was handed over.
    fn send(&mut self) -> Result<(i64, Instant), Failure> {
        // Forth and back.
        let period = 2 * (self.pictures.len() - 1).max(1);
        let at = self.next % period;
        let picture = &self.pictures[at.min(period - at).min(self.pictures.len() - 1)];
        self.next += 1;
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
        let nanos = i64::try_from(now.as_nanos())?;
        let header = Header::new(Stamp { nanos }, "camera");
        let start = Instant::now();
        let bytes = match picture {
            Picture::Raw(data) => {
                let (width, height) = self.size;
                let image = Image {
                    header,
                    height,
                    width,
                    encoding: "rgb8".into(),
                    is_bigendian: 0,
                    step: 3 * width,
                    data: serde_bytes::Bytes::new(data),
                };
                image.encode()?
            }
            Picture::File(data) => {
                let image = CompressedImage {
                    header,
                    format: "jpeg".into(),
                    data: serde_bytes::Bytes::new(data),
                };
                image.encode()?
            }
        };
        self.topic.publish(bytes)?;
        Ok((nanos, start))
    }
}

fn main() -> Result<(), Failure> {
    let options = Options::read()?;
    let pictures = pictures(&options)?;
    if pictures.is_empty() {
        return Err(format!("no images in {}", options.folder).into());
    }
    let names = NodeNames::new("node_latency", "/", &[])?;
    let client = Dds::new(names, Environment::read()?)?;
    let heard: Arc<Mutex<Heard>> = Arc::default();
    let lock = |heard: &Mutex<Heard>, act: &mut dyn FnMut(&mut Heard)| {
        act(&mut heard.lock().unwrap_or_else(PoisonError::into_inner));
    };

    let at = Arc::clone(&heard);
    let _poses = client.subscribe(
        &format!("/{}/pose", options.node),
        PoseWithCovarianceStamped::TYPE,
        Qos::reliable(100),
        Lane::Images,
        Box::new(move |payload| {
            let now = Instant::now();
            if let Ok(pose) = PoseWithCovarianceStamped::decode(&payload) {
                let stamp = Stamp::from(&pose.header.stamp).nanos;
                lock(&at, &mut |heard| {
                    heard.poses.entry(stamp).or_insert(now);
                });
            }
        }),
    )?;
    let at = Arc::clone(&heard);
    let _diagnostics = client.subscribe(
        "/diagnostics",
        DiagnosticArray::TYPE,
        Qos::reliable(10),
        Lane::Rest,
        Box::new(move |payload| {
            if let Ok(message) = DiagnosticArray::decode(&payload) {
                lock(&at, &mut |heard| heard.diagnostics = Some(message.clone()));
            }
        }),
    )?;
    let (topic, kind) = match options.compressed {
        true => ("/image/compressed", CompressedImage::TYPE),
        false => ("/image", Image::TYPE),
    };
    let mut sender = Sender {
        topic: client.advertise(topic, kind, Qos::reliable(5))?,
        pictures,
        size: options.size,
        next: 0,
    };

    println!("waiting for a node that subscribes to {topic}");
    while sender.topic.subscribers() == 0 {
        std::thread::sleep(Duration::from_millis(50));
    }
    // The first image starts SLAM, which takes seconds; images that come meanwhile would count as dropped.
    let count = || {
        heard
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .poses
            .len()
    };
    sender.send()?;
    for k in 1.. {
        std::thread::sleep(Duration::from_millis(100));
        if count() > 0 {
            break;
        }
        if k % 600 == 0 {
            println!("no pose after {} s", k / 10);
            // Perhaps the image was lost on the way.
            sender.send()?;
        }
    }
    println!(
        "the first pose has come; {} s at {} Hz",
        options.seconds, options.rate
    );

    let period = Duration::from_secs_f64(1.0 / options.rate);
    let frames = (options.seconds * options.rate).round() as u32;
    let mut sent = Vec::with_capacity(frames as usize);
    let start = Instant::now();
    for k in 0..frames {
        let due = start + period * k;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        sent.push(sender.send()?);
    }
    let took = start.elapsed().as_secs_f64();
    // Two diagnostics later all has come.
    std::thread::sleep(Duration::from_millis(2500));
    report(
        &sent,
        took,
        &heard.lock().unwrap_or_else(PoisonError::into_inner),
    );
    Ok(())
}

fn report(sent: &[(i64, Instant)], took: f64, heard: &Heard) {
    let latency = |(stamp, at): &(i64, Instant)| {
        let came = heard.poses.get(stamp)?;
        Some(came.saturating_duration_since(*at).as_secs_f64() * 1e3)
    };
    let mut millis: Vec<f64> = sent.iter().filter_map(latency).collect();
    millis.sort_by(f64::total_cmp);
    let part = |share: f64| {
        let rank = (millis.len() as f64 * share).ceil() as usize;
        millis
            .get(rank.saturating_sub(1))
            .copied()
            .unwrap_or(f64::NAN)
    };
    println!(
        "{} images sent in {took:.1} s, {} poses ({:.1} a second)",
        sent.len(),
        millis.len(),
        millis.len() as f64 / took
    );
    println!(
        "image to pose: p50 {:.2} ms, p90 {:.2} ms, p99 {:.2} ms, most {:.2} ms",
        part(0.5),
        part(0.9),
        part(0.99),
        part(1.0)
    );
    let Some(diagnostics) = &heard.diagnostics else {
        return println!("no diagnostics came");
    };
    for status in &diagnostics.status {
        println!("{}: {}", status.name, status.message);
        for value in &status.values {
            println!("  {}: {}", value.key, value.value);
        }
    }
}
