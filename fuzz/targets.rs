//! One function for each reader of foreign input: it reads `data` as its format and must return, whatever the data is.
//! `fuzz_targets/` calls them with libFuzzer, `tests/fuzz` with a seeded mutator.

use mast3r_slam::bag::Bag;
use mast3r_slam::compute::device::ContentFormats;
use mast3r_slam::compute::retrieval::RetrievalModel;
use mast3r_slam::compute::store::FloatFormat;
use mast3r_slam::config;
use mast3r_slam::image::depth::{DepthDecoder, DepthImage};
use mast3r_slam::image::{decode_bytes, dimensions_of_bytes};
use mast3r_slam::map::saved::{Header, ImageShape, Reader, SavedEdge, SavedKeyframe};
use mast3r_slam::map::splat::{self, Splat};
use mast3r_slam::map::store;
use mast3r_slam::network;
use mast3r_slam::network::pickle::Pickle;
use mast3r_slam::ros::args::RosArgs;
use mast3r_slam::source::depth_message::DepthTransport;
use mast3r_slam::source::{self, camera_info, image_message};
use mast3r_slam::trajectory::{self, BadRows};
use mast3r_slam::wire::Payload;
use mast3r_slam::wire::messages::geometry::{PoseWithCovarianceStamped, TfMessage};
use mast3r_slam::wire::messages::lifecycle::ChangeStateRequest;
use mast3r_slam::wire::messages::parameter::{
    GetParametersRequest, ListParametersRequest, SetParametersRequest,
};
use mast3r_slam::wire::messages::sensor::CameraInfo;
use mast3r_slam::wire::messages::{Clock, Message};
use rusqlite::{Connection, params};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A reader under test.
pub type Target = fn(&[u8]);

/// Every target with its name, which is also that of its binary and of its folders of seeds and regressions.
pub const TARGETS: [(&str, Target); 16] = [
    ("pth", pth),
    ("pickle", pickle),
    ("codebook", codebook),
    ("safetensors", safetensors),
    ("map", map),
    ("store", store),
    ("packed", packed),
    ("splat", splat),
    ("mcap", mcap),
    ("db3", db3),
    ("cdr", cdr),
    ("yaml", yaml),
    ("trajectory", trajectory),
    ("camera", camera),
    ("image", image),
    ("depth", depth),
];

thread_local! {
    static FOLDER: TempDir = tempfile::tempdir().expect("a folder");
}

/// A file of this content.
fn file(name: &str, data: &[u8]) -> PathBuf {
    let path = FOLDER.with(|folder| folder.path().join(name));
    std::fs::write(&path, data).expect("a file");
    path
}

/// A checkpoint of PyTorch.
pub fn pth(data: &[u8]) {
    let path = file("weights.pth", data);
    let _ = network::load(&path);
    let _ = network::load_network(&path);
}

/// A pickle.
pub fn pickle(data: &[u8]) {
    if let Ok(pickle) = Pickle::parse(data) {
        let root = pickle.root();
        let _ = pickle.describe(root);
        for (key, value) in pickle.entries(root).unwrap_or_default() {
            let _ = (pickle.str(*key), pickle.bytes(*value), pickle.usize(*value));
        }
    }
}

/// A codebook of place recognition.
pub fn codebook(data: &[u8]) {
    let path = file("codebook.pkl", data);
    let _ = RetrievalModel::load(&path);
    let _ = RetrievalModel::load_official(&path, &path);
}

/// A checkpoint in safetensors.
pub fn safetensors(data: &[u8]) {
    let path = file("weights.safetensors", data);
    let _ = network::load(&path);
    let _ = network::load_network(&path);
}

/// Bytes of the checksum at the end of a map.
const CHECKSUM: usize = 32;

/// A map file, as it is and with the right checksum.
pub fn map(data: &[u8]) {
    read_map(&file("plain.map", data));
    if let Some(content) = data.len().checked_sub(CHECKSUM) {
        let mut whole = data[..content].to_vec();
        whole.extend_from_slice(&Sha256::digest(&data[..content]));
        read_map(&file("summed.map", &whole));
    }
}

fn read_map(path: &Path) {
    let Ok(mut reader) = Reader::open(path) else {
        return;
    };
    let _ = reader.verify();
    let Header {
        keyframes,
        edges,
        factors,
        ..
    } = *reader.header();
    let mut keyframe = SavedKeyframe::default();
    let mut edge = SavedEdge::default();
    let read = (0..keyframes).all(|_| reader.keyframe(&mut keyframe).is_ok());
    let read = read && (0..edges).all(|_| reader.edge(&mut edge).is_ok());
    let _ = read && (0..factors).all(|_| reader.factor().is_ok());
}

/// Tables of a map that is written as it is made, by the number in their rows' checksums.
pub const TABLES: [&str; 9] = [
    "meta", "keyframe", "image", "points", "edge", "matches", "factor", "removed", "meta",
];

/// The description of the map whose rows are under test.
pub fn store_header() -> Header {
    Header {
        program: String::new(),
        weights: String::new(),
        shape: ImageShape {
            width: 4,
            height: 2,
            tokens: 1,
            channels: 2,
        },
        formats: ContentFormats {
            confidence: FloatFormat::F32,
            features: FloatFormat::F32,
        },
        intrinsics: None,
        map_from_world: None,
        keyframes: 0,
        edges: 0,
        solved_edges: 0,
        factors: 0,
    }
}

/// A map that is written as it is made: a database, or rows to which the right checksums are added: for each its table,
/// its key (u32), its length (u16) and its content.
pub fn store(data: &[u8]) {
    read_rows(data, "");
}

/// Splats: PLY, compressed PLY or spz.
pub fn splat(data: &[u8]) {
    let Ok(mut reader) = splat::Reader::open(&file("splats", data)) else {
        return;
    };
    let mut row = Splat::default();
    // A stream of zeros unpacks into thousands of times its size.
    for _ in 0..1 << 16 {
        if !reader.next(&mut row).unwrap_or(false) {
            break;
        }
    }
}

/// A packed map, likewise.
pub fn packed(data: &[u8]) {
    read_rows(data, "PRAGMA application_id = 0x4d335250");
}

fn read_rows(data: &[u8], statement: &str) {
    if data.starts_with(b"SQLite") {
        return read_store(&file("plain.map", data));
    }
    let path = FOLDER.with(|folder| folder.path().join("rows.map"));
    let _ = std::fs::remove_file(&path);
    store::create(&path, &store_header()).expect("a new map");
    let database = Connection::open(&path).expect("a database");
    database.execute_batch(statement).expect("a packed map");
    drop(database);
    insert(&path, data).expect("a database");
    read_store(&path);
}

fn insert(path: &Path, mut rows: &[u8]) -> rusqlite::Result<()> {
    let mut database = Connection::open(path)?;
    let database = database.transaction()?;
    while let Some((start, rest)) = rows.split_first_chunk::<7>() {
        let [tag, key @ .., low, high] = *start;
        let key = u32::from_le_bytes(key);
        let length = usize::from(u16::from_le_bytes([low, high])).min(rest.len());
        let (content, rest) = rest.split_at(length);
        rows = rest;
        let Some(table) = TABLES.get(usize::from(tag)) else {
            continue;
        };
        let mut sum = Sha256::new();
        sum.update([tag]);
        sum.update(u64::from(key).to_le_bytes());
        sum.update(content);
        let sealed = [content, &sum.finalize()[..8]].concat();
        match *table {
            "meta" => {
                let name = if tag == 0 { "header" } else { "state" };
                let put = "INSERT OR REPLACE INTO meta (name, content) VALUES (?1, ?2)";
                database.execute(put, params![name, sealed])?;
            }
            table => {
                let put = format!("INSERT OR REPLACE INTO {table} (id, content) VALUES (?1, ?2)");
                database.execute(&put, params![key, sealed])?;
            }
        }
    }
    database.commit()
}

fn read_store(path: &Path) {
    if let Ok(mut reader) = store::Reader::open(path) {
        let _ = reader.check();
    }
}

fn bag(path: &Path) {
    let Ok(bag) = Bag::open(path) else { return };
    let topics: Vec<&str> = bag.topics().iter().map(|t| t.name.as_str()).collect();
    for message in bag.messages(&topics) {
        let Ok(message) = message else { return };
        read_message(&message.payload);
    }
}

/// A bag in MCAP.
pub fn mcap(data: &[u8]) {
    bag(&file("bag.mcap", data));
}

/// A bag in SQLite.
pub fn db3(data: &[u8]) {
    bag(&file("bag.db3", data));
}

fn read_message(payload: &Payload) {
    let _ = image_message::raw(payload);
    if let Ok((_, file)) = image_message::compressed(payload) {
        let _ = image_message::size(file);
    }
    let (mut decoder, mut depth) = (DepthDecoder::default(), DepthImage::default());
    let _ = DepthTransport::Raw.decode(payload, &mut decoder, &mut depth);
    if let Ok(info) = CameraInfo::decode(payload) {
        let _ = (
            camera_info::calibration(&info),
            camera_info::rectified(&info),
        );
    }
    if let Ok(message) = TfMessage::decode(payload) {
        let _: Vec<_> = message
            .transforms
            .iter()
            .map(|t| t.transform.isometry())
            .collect();
    }
    if let Ok(message) = PoseWithCovarianceStamped::decode(payload) {
        let _ = message.pose.pose.isometry();
    }
    let _ = Clock::decode(payload);
    let _ = ChangeStateRequest::decode(payload);
    let _ = GetParametersRequest::decode(payload);
    let _ = ListParametersRequest::decode(payload);
    let _ = SetParametersRequest::decode(payload);
}

/// A ROS message; the first byte says in which byte order.
pub fn cdr(data: &[u8]) {
    let Some((order, data)) = data.split_first() else {
        return;
    };
    read_message(&Payload {
        data: bytes::Bytes::copy_from_slice(data),
        big_endian: order & 1 == 1,
    });
}

/// A configuration, a file of ROS parameters, the metadata of a bag.
pub fn yaml(data: &[u8]) {
    let path = file("parameters.yaml", data);
    let _ = config::load(&path);
    let words = ["--params-file".to_owned(), path.display().to_string()];
    if let Ok(args) = RosArgs::parse(&words) {
        let _ = args.parameters_of("slam", "/slam").is_ok();
    }
    let metadata = file("metadata.yaml", data);
    let folder = metadata.parent().expect("the folder");
    let _ = Bag::open(folder);
}

/// A trajectory.
pub fn trajectory(data: &[u8]) {
    let path = file("trajectory.txt", data);
    let _ = trajectory::read(&path, BadRows::Refuse);
    let _ = trajectory::read(&path, BadRows::Skip);
}

/// A calibration.
pub fn camera(data: &[u8]) {
    let _ = source::read_calibration(&file("camera.yaml", data));
}

/// Images with more pixels are not decoded here, where speed counts.
const PIXELS: usize = 1 << 16;

/// An image file.
pub fn image(data: &[u8]) {
    let origin = Path::new("image");
    let size = dimensions_of_bytes(data, origin);
    if size.is_ok_and(|(width, height)| width * height <= PIXELS) {
        let _ = decode_bytes(data, origin);
    }
}

/// `data` of a message of compressed_depth_image_transport; the first byte says in which format.
pub fn depth(data: &[u8]) {
    let Some((format, data)) = data.split_first() else {
        return;
    };
    let formats = [
        "16UC1; compressedDepth",
        "32FC1; compressedDepth png",
        "16UC1; compressedDepth rvl",
        "32FC1; compressedDepth rvl",
    ];
    let format = formats[usize::from(format % 4)];
    let packed = data.get(12..).unwrap_or_default();
    let size = match format.ends_with("rvl") {
        true => packed.first_chunk::<8>().map(|sides| {
            let side = |at: usize| {
                u32::from_le_bytes([sides[at], sides[at + 1], sides[at + 2], sides[at + 3]])
            };
            (side(0) as usize, side(4) as usize)
        }),
        false => dimensions_of_bytes(packed, Path::new("depth")).ok(),
    };
    if size.is_none_or(|(width, height)| width.saturating_mul(height) <= PIXELS) {
        let _ = DepthDecoder::default().compressed(format, data, &mut DepthImage::default());
    }
}
