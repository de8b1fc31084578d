//! PyTorch checkpoints: a zip archive with a pickle (`*/data.pkl`) that describes the tensors and
//! one entry per storage (`*/data/N`). Uncompressed entries are used in place in the mapped file;
//! deflated ones are inflated. The pickle is read as data (see [`super::pickle`]).

use std::collections::{BTreeMap, HashMap};
use std::io::{Cursor, Read};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;
use rayon::prelude::*;
use zip::{CompressionMethod, ZipArchive};

use super::checkpoint::{Checkpoint, CheckpointError, Dtype, Tensor, map_file};
use super::pickle::{Id, Pickle, Value};

/// Limit on the total size of inflated storages: three times the official checkpoint. Torch never
/// deflates, so only a repacked or a hostile file comes near it.
const MAX_INFLATED: u64 = 8 << 30;

type Archive<'a> = ZipArchive<Cursor<&'a [u8]>>;

/// Reads a torch checkpoint, either `{'model': state_dict, 'args': Namespace(model='…')}` as in the
/// official ones or a bare state dict. Verifies the checksum of every entry.
///
/// # Errors
/// [`CheckpointError::Io`] if the file cannot be opened; [`CheckpointError::Format`] if it is not a
/// torch zip archive, is truncated or damaged, would execute code when loaded by Python, or holds
/// tensors other than 16, 32 or 64-bit floats.
pub fn read(path: &Path) -> Result<Checkpoint, CheckpointError> {
    decoded(path, true)
}

/// Like [`read`] without verifying checksums, for inspecting which tensors exist.
pub(super) fn look(path: &Path) -> Result<Checkpoint, CheckpointError> {
    decoded(path, false)
}

fn decoded(path: &Path, verify: bool) -> Result<Checkpoint, CheckpointError> {
    let map = map_file(path)?;
    decode(&map, verify).map_err(|Mismatch { expected, found }| CheckpointError::Format {
        path: path.to_owned(),
        expected,
        found,
    })
}

/// The expected and found items of an error; the caller adds the path.
struct Mismatch {
    expected: String,
    found: String,
}

fn mismatch(expected: impl Into<String>, found: impl Into<String>) -> Mismatch {
    Mismatch {
        expected: expected.into(),
        found: found.into(),
    }
}

fn decode(map: &Arc<Mmap>, verify: bool) -> Result<Checkpoint, Mismatch> {
    let mut archive = open(map)?;
    let (prefix, pickle_index) = find_pickle(&archive)?;
    check_byte_order(&mut archive, &prefix)?;
    if verify {
        verify_checksums(&archive)?;
    }
    let pickled = read_entry(&mut archive, pickle_index, map.len() as u64 * 2)?;
    let pickle = Pickle::parse(&pickled)
        .map_err(|e| mismatch("a checkpoint that is plain data", e.to_string()))?;

    let root = pickle.root();
    if pickle.entries(root).is_none() {
        return Err(mismatch(
            "a dict of tensors, or one with the keys 'model' and 'args'",
            pickle.describe(root),
        ));
    }
    let model = pickle
        .lookup(root, "model")
        .filter(|&model| pickle.entries(model).is_some());
    let model_args = pickle
        .lookup(root, "args")
        .and_then(|args| attribute(&pickle, args, "model"))
        .or_else(|| pickle.lookup(root, "mast3r_model_str"))
        .and_then(|model| pickle.str(model))
        .map(str::to_owned);
    let backbone = pickle.lookup(root, "dune_backbone_name");
    let backbone = backbone
        .and_then(|name| pickle.str(name))
        .map(str::to_owned);

    let mut storages = Storages {
        map,
        archive,
        prefix,
        loaded: HashMap::new(),
        inflated: 0,
        copied: 0,
    };
    let mut tensors = BTreeMap::new();
    for &(key, value) in pickle.entries(model.unwrap_or(root)).unwrap_or_default() {
        let Some(name) = pickle.str(key) else {
            return Err(mismatch(
                "names of tensors as keys of the state dict",
                pickle.describe(key),
            ));
        };
        let tensor = storages
            .tensor(&pickle, value)
            .map_err(|m| mismatch(m.expected, format!("{} (tensor {name})", m.found)))?;
        tensors.insert(name.to_owned(), tensor);
    }
    Ok(Checkpoint {
        tensors,
        model_args,
        backbone,
    })
}

fn open(map: &[u8]) -> Result<Archive<'_>, Mismatch> {
    ZipArchive::new(Cursor::new(map)).map_err(|e| {
        let zip_starts = map.starts_with(b"PK\x03\x04");
        let found = if zip_starts {
            format!(
                "a truncated or damaged archive of {} bytes ({e}): download the file again",
                map.len()
            )
        } else if map.is_empty() {
            "an empty file".into()
        } else if map.first() == Some(&0x80) {
            "a bare pickle (PyTorch before 1.6): load it with that version and save it again with a newer one"
                .into()
        } else {
            format!("{} bytes of another format ({e})", map.len())
        };
        mismatch("a complete torch zip archive (.pth)", found)
    })
}

/// The archive's folder name and its `data.pkl`.
fn find_pickle(archive: &Archive<'_>) -> Result<(String, usize), Mismatch> {
    archive
        .file_names_raw()
        .enumerate()
        .find_map(|(index, name)| {
            let prefix = std::str::from_utf8(name).ok()?.strip_suffix("data.pkl")?;
            (prefix.is_empty() || prefix.ends_with('/')).then(|| (prefix.to_owned(), index))
        })
        .ok_or_else(|| {
            mismatch(
                "a torch archive with an entry data.pkl",
                format!("a zip archive of {} other entries", archive.len()),
            )
        })
}

fn check_byte_order(archive: &mut Archive<'_>, prefix: &str) -> Result<(), Mismatch> {
    // Absent before PyTorch 2.1, when in practice only little-endian files existed.
    let Some(index) = archive.index_for_name(&format!("{prefix}byteorder")) else {
        return Ok(());
    };
    let order = read_entry(archive, index, 64)?;
    if order.trim_ascii() != b"little" {
        return Err(mismatch(
            "little-endian tensors",
            format!("byte order {:?}", String::from_utf8_lossy(&order)),
        ));
    }
    Ok(())
}

/// Reads every entry once so that the archive verifies its checksum: mapped entries are otherwise
/// used without passing through the archive, and a flipped bit in a weight would go unnoticed.
fn verify_checksums(archive: &Archive<'_>) -> Result<(), Mismatch> {
    (0..archive.len()).into_par_iter().try_for_each_init(
        || (archive.clone(), vec![0; 1 << 16]),
        |(archive, buffer), index| {
            let name = entry_name(archive, index);
            let damaged = |e: String| {
                mismatch(
                    "undamaged entries",
                    format!("damaged entry {name} ({e}): download the file again"),
                )
            };
            let mut entry = archive
                .by_index(index)
                .map_err(|e| damaged(e.to_string()))?;
            let mut left = MAX_INFLATED;
            loop {
                match entry.read(buffer) {
                    Ok(0) => return Ok(()),
                    Ok(n) => {
                        left = left
                            .checked_sub(n as u64)
                            .ok_or_else(|| damaged(format!("more than {MAX_INFLATED} bytes")))?;
                    }
                    Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(damaged(e.to_string())),
                }
            }
        },
    )
}

fn entry_name(archive: &Archive<'_>, index: usize) -> String {
    match archive.name_for_index(index) {
        Some(Ok(name)) => name.into_owned(),
        _ => format!("number {index}"),
    }
}

/// Reads an entry of at most `limit` bytes. Memory grows with the actual content, never with the
/// size that the archive declares.
fn read_entry(archive: &mut Archive<'_>, index: usize, limit: u64) -> Result<Vec<u8>, Mismatch> {
    let name = entry_name(archive, index);
    let unreadable = |e: String| {
        mismatch(
            "readable entries",
            format!("unreadable entry {name} ({e}): download the file again"),
        )
    };
    let entry = archive
        .by_index(index)
        .map_err(|e| unreadable(e.to_string()))?;
    let mut bytes = Vec::new();
    entry
        .take(limit.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(|e| unreadable(e.to_string()))?;
    if bytes.len() as u64 > limit {
        return Err(unreadable(format!("more than {limit} bytes")));
    }
    Ok(bytes)
}

/// `object.name`, or `object[name]` for a dict.
fn attribute(pickle: &Pickle<'_>, object: Id, name: &str) -> Option<Id> {
    match pickle.object(object).and_then(|object| object.state) {
        Some(state) => pickle.lookup(state, name),
        None => pickle.lookup(object, name),
    }
}

#[derive(Clone)]
enum Storage {
    /// A range of the mapped file.
    Mapped(Range<usize>),
    Inflated(Arc<Vec<u8>>),
}

struct Storages<'a> {
    map: &'a Arc<Mmap>,
    archive: Archive<'a>,
    prefix: String,
    loaded: HashMap<String, Storage>,
    /// Bytes inflated so far, and bytes copied out of storages so far.
    inflated: u64,
    copied: u64,
}

impl Storages<'_> {
    /// A tensor described by `_rebuild_tensor_v2(storage, offset, shape, strides, …)`, or a
    /// parameter that wraps one.
    fn tensor(&mut self, pickle: &Pickle<'_>, id: Id) -> Result<Tensor, Mismatch> {
        let not_a_tensor = || mismatch("only tensors in the state dict", pickle.describe(id));
        let mut call = pickle.object(id).ok_or_else(not_a_tensor)?;
        if call.is("torch._utils", "_rebuild_parameter") {
            let data = pickle.items(call.args).and_then(|args| args.first());
            call = data
                .and_then(|&data| pickle.object(data))
                .ok_or_else(not_a_tensor)?;
        }
        if !call.is("torch._utils", "_rebuild_tensor_v2") {
            return Err(not_a_tensor());
        }
        let [storage, offset, shape, strides, ..] =
            *pickle.items(call.args).ok_or_else(not_a_tensor)?
        else {
            return Err(not_a_tensor());
        };
        let (key, dtype, elements) = storage_reference(pickle, storage)?;
        let (Some(offset), Some(shape), Some(strides)) = (
            pickle.usize(offset),
            extents(pickle, shape),
            extents(pickle, strides),
        ) else {
            return Err(mismatch("an offset, a shape and strides", "other values"));
        };

        let stored = self.storage(key)?;
        let available = match &stored {
            Storage::Mapped(range) => range.len(),
            Storage::Inflated(bytes) => bytes.len(),
        };
        let outside = || {
            mismatch(
                format!("a tensor within the {available} bytes of its storage {key}"),
                format!(
                    "offset {offset}, shape {shape:?}, strides {strides:?} ({dtype:?}, {elements} \
                     elements declared)"
                ),
            )
        };
        if elements
            .checked_mul(dtype.size())
            .is_none_or(|n| n > available)
        {
            return Err(outside());
        }
        let span = Span::new(offset, &shape, &strides, elements).ok_or_else(outside)?;
        let first = offset * dtype.size();
        let length = span.len * dtype.size();
        let tensor = match (&stored, span.contiguous) {
            (Storage::Mapped(range), true) => {
                let start = range.start + first;
                Tensor::from_mapped(
                    shape.clone(),
                    dtype,
                    self.map.clone(),
                    start..start + length,
                )
            }
            (Storage::Inflated(bytes), true) => {
                self.account(length)?;
                let bytes = bytes.get(first..first + length).ok_or_else(outside)?;
                Tensor::from_bytes(shape.clone(), dtype, bytes.to_vec())
            }
            (_, false) => {
                self.account(length)?;
                let bytes = match &stored {
                    Storage::Mapped(range) => self.map.get(range.clone()).ok_or_else(outside)?,
                    Storage::Inflated(bytes) => bytes,
                };
                let gathered = gather(bytes, offset, &shape, &strides, dtype.size(), length);
                Tensor::from_bytes(shape.clone(), dtype, gathered)
            }
        };
        tensor.ok_or_else(outside)
    }

    /// Many views of one storage could multiply its size; a genuine checkpoint copies each at most
    /// twice.
    fn account(&mut self, bytes: usize) -> Result<(), Mismatch> {
        self.copied += bytes as u64;
        let limit = 4 * (self.map.len() as u64 + self.inflated);
        if self.copied > limit {
            return Err(mismatch(
                format!("at most {limit} bytes of tensors that have to be copied"),
                "more",
            ));
        }
        Ok(())
    }

    fn storage(&mut self, key: &str) -> Result<Storage, Mismatch> {
        if let Some(storage) = self.loaded.get(key) {
            return Ok(storage.clone());
        }
        let name = format!("{}data/{key}", self.prefix);
        let Some(index) = self.archive.index_for_name(&name) else {
            return Err(mismatch(format!("an archive entry {name}"), "none"));
        };
        let mapped = {
            let entry = self
                .archive
                .by_index(index)
                .map_err(|e| mismatch(format!("a readable entry {name}"), e.to_string()))?;
            if entry.compression() == CompressionMethod::Stored && !entry.encrypted() {
                let start = entry.data_start().and_then(|s| usize::try_from(s).ok());
                let size = usize::try_from(entry.size()).ok();
                let range = start.zip(size).and_then(|(start, size)| {
                    let end = start.checked_add(size)?;
                    (end <= self.map.len()).then_some(start..end)
                });
                Some(range.ok_or_else(|| {
                    mismatch(format!("entry {name} within the file"), "a truncated entry")
                })?)
            } else {
                None
            }
        };
        let storage = match mapped {
            Some(range) => Storage::Mapped(range),
            None => {
                let bytes = read_entry(&mut self.archive, index, MAX_INFLATED - self.inflated)?;
                self.inflated += bytes.len() as u64;
                Storage::Inflated(Arc::new(bytes))
            }
        };
        self.loaded.insert(key.to_owned(), storage.clone());
        Ok(storage)
    }
}

/// The key, element type and length in `('storage', torch.FloatStorage, key, device, length)`.
fn storage_reference<'p>(pickle: &Pickle<'p>, id: Id) -> Result<(&'p str, Dtype, usize), Mismatch> {
    let expected = "a tensor storage of this archive";
    let reference = match pickle.get(id) {
        Value::Persistent(reference) => pickle.items(*reference),
        _ => None,
    };
    let Some(&[tag, class, key, _, elements]) = reference else {
        return Err(mismatch(expected, pickle.describe(id)));
    };
    let (Some("storage"), Value::Global { module, name }, Some(key), Some(elements)) = (
        pickle.str(tag),
        pickle.get(class),
        pickle.str(key),
        pickle.usize(elements),
    ) else {
        return Err(mismatch(expected, "another reference"));
    };
    let dtype = match (*module, *name) {
        ("torch", "HalfStorage") => Dtype::F16,
        ("torch", "BFloat16Storage") => Dtype::BF16,
        ("torch", "FloatStorage") => Dtype::F32,
        ("torch", "DoubleStorage") => Dtype::F64,
        _ => {
            return Err(mismatch(
                "float elements (torch.HalfStorage, BFloat16Storage, FloatStorage, DoubleStorage)",
                format!("{module}.{name}"),
            ));
        }
    };
    Ok((key, dtype, elements))
}

fn extents(pickle: &Pickle<'_>, id: Id) -> Option<Vec<usize>> {
    pickle.items(id)?.iter().map(|&n| pickle.usize(n)).collect()
}

/// The part of a storage that a tensor covers.
struct Span {
    /// Number of elements of the tensor.
    len: usize,
    /// Whether they are contiguous in row-major order.
    contiguous: bool,
}

impl Span {
    /// `None` if the tensor reaches beyond `elements`, has overlapping elements (which would let a
    /// small file demand any amount of memory), or its extents overflow.
    fn new(offset: usize, shape: &[usize], strides: &[usize], elements: usize) -> Option<Self> {
        if shape.len() != strides.len() || offset > elements {
            return None;
        }
        let len = shape.iter().try_fold(1usize, |n, &e| n.checked_mul(e))?;
        if len == 0 {
            return Some(Self {
                len,
                contiguous: true,
            });
        }
        let mut last = offset;
        let mut contiguous = true;
        let mut expected = 1usize;
        for (&extent, &stride) in shape.iter().zip(strides).rev() {
            if extent > 1 {
                last = last.checked_add((extent - 1).checked_mul(stride)?)?;
                contiguous &= stride == expected;
            }
            expected = expected.checked_mul(extent)?;
        }
        (last < elements && len <= elements).then_some(Self { len, contiguous })
    }
}

/// Copies a strided tensor into row-major order. [`Span::new`] has checked that it fits.
fn gather(
    bytes: &[u8],
    offset: usize,
    shape: &[usize],
    strides: &[usize],
    size: usize,
    length: usize,
) -> Vec<u8> {
    let mut out = Vec::with_capacity(length);
    let mut index = vec![0usize; shape.len()];
    while out.len() < length {
        let element: usize = index.iter().zip(strides).map(|(i, s)| i * s).sum();
        let start = (offset + element) * size;
        out.extend_from_slice(&bytes[start..start + size]);
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            if index[axis] < shape[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
    out
}
