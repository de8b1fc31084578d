//! The folder of engines: finding the one that fits, building one at a time, never leaving half of one.
//!
//! An engine is a folder of its own: two engine files, lists of their kernels, TensorRT-RTX's cache of
//! compiled kernels, and the manifest, which is written last.

use super::error::TensorRtError;
use super::manifest::{Manifest, Part, Wanted};
use super::target::Target;
use crate::files;
use crate::network::onnx::Precision;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// A folder of engines.
#[derive(Debug, Clone)]
pub struct Store {
    folder: PathBuf,
}

/// An engine's folder, and what its manifest says.
type Listed = (PathBuf, Result<Manifest, TensorRtError>);

/// An engine that fits.
#[derive(Debug)]
pub struct Found {
    /// Its folder.
    pub folder: PathBuf,
    /// What it is.
    pub manifest: Manifest,
}

impl Store {
    /// The engines below `folder`, which need not exist yet.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
        }
    }

    /// Where runs look for engines unless the configuration says otherwise: `mast3r_slam/engines` in the
    /// user's folder for caches.
    pub fn default_folder() -> PathBuf {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let cache = if cfg!(windows) {
            variable("LOCALAPPDATA").map(PathBuf::from)
        } else {
            let named = variable("XDG_CACHE_HOME").map(PathBuf::from);
            named.or_else(|| Some(PathBuf::from(variable("HOME")?).join(".cache")))
        };
        match cache {
            Some(cache) => cache.join("mast3r_slam").join("engines"),
            None => "engines".into(),
        }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Every engine of the folder, by name: its manifest, or why it cannot be read.
    pub fn list(&self) -> Result<Vec<Listed>, TensorRtError> {
        let entries = match std::fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(TensorRtError::io("read", &self.folder)(e)),
        };
        let mut folders: Vec<PathBuf> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.join(super::manifest::FILE).is_file())
            .collect();
        folders.sort();
        let read = |folder: PathBuf| {
            let manifest = Manifest::read(&folder);
            (folder, manifest)
        };
        Ok(folders.into_iter().map(read).collect())
    }

    /// The engine that fits; of several precisions fp16, else bf16, fp8, fp32 in this order.
    ///
    /// # Errors
    /// [`TensorRtError::NoEngine`] says why each of those that are there does not, the nearest size first.
    pub fn find(&self, wanted: &Wanted<'_>, may_build: bool) -> Result<Found, TensorRtError> {
        let mut fits: Vec<Found> = Vec::new();
        let mut others: Vec<(u64, String)> = Vec::new();
        for (folder, manifest) in self.list()? {
            let name = name_of(&folder);
            match manifest {
                Ok(manifest) => {
                    let reasons = manifest.mismatches(wanted);
                    if reasons.is_empty() {
                        fits.push(Found { folder, manifest });
                        continue;
                    }
                    let away = distance(manifest.size, wanted.size);
                    others.push((away, format!("{name}: {}", reasons.join(" and "))));
                }
                Err(error) => others.push((u64::MAX, error.to_string())),
            }
        }
        let rank = |found: &Found| match found.manifest.precision {
            Precision::F16 => 3,
            Precision::Bf16 => 2,
            Precision::Fp8 => 1,
            Precision::F32 => 0,
        };
        let best = fits.into_iter().max_by_key(rank);
        best.ok_or_else(|| {
            others.sort();
            let reasons: Vec<String> = others.into_iter().map(|(_, reason)| reason).collect();
            TensorRtError::NoEngine {
                folder: self.folder.clone(),
                reason: match reasons.len() {
                    0 => "there is none".into(),
                    _ => reasons.join("; "),
                },
                may_build,
            }
        })
    }

    /// The folder of an engine; what does not tell engines apart is not in its name.
    pub fn folder_of(&self, manifest: &Manifest) -> PathBuf {
        let [width, height] = manifest.size;
        let targets: Vec<String> = manifest.targets.iter().map(Target::to_string).collect();
        let version = manifest.tensorrt.version;
        let weights = manifest.weights.sha256.get(..12).unwrap_or_default();
        let batch = match manifest.batch {
            1 => String::new(),
            batch => format!("-b{batch}"),
        };
        self.folder.join(format!(
            "{weights}-{width}x{height}{batch}-{}-{}{}.{}-{}",
            manifest.precision,
            manifest.tensorrt.flavour.tag(),
            version.major,
            version.minor,
            targets.join("+")
        ))
    }

    /// Waits until no other process builds into this folder, and keeps others from it as long as the result
    /// lives (or this process does). `wait` is told when there is somebody to wait for.
    pub fn lock(&self, wait: impl FnOnce()) -> Result<Lock, TensorRtError> {
        std::fs::create_dir_all(&self.folder).map_err(TensorRtError::io("make", &self.folder))?;
        let path = self.folder.join(".lock");
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(TensorRtError::io("open", &path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => {
                wait();
                file.lock().map_err(TensorRtError::io("lock", &path))?;
            }
            Err(std::fs::TryLockError::Error(e)) => {
                return Err(TensorRtError::io("lock", &path)(e));
            }
        }
        Ok(Lock { _file: file })
    }

    /// The engine that fits; if there is none, `build` makes one, in one process at a time: who waited for
    /// another looks again.
    pub fn find_or_build(
        &self,
        wanted: &Wanted<'_>,
        may_build: bool,
        wait: impl FnOnce(),
        build: impl FnOnce(&Lock, &TensorRtError) -> Result<Manifest, TensorRtError>,
    ) -> Result<Found, TensorRtError> {
        match self.find(wanted, may_build) {
            Err(TensorRtError::NoEngine { .. }) if may_build => {}
            other => return other,
        }
        let lock = self.lock(wait)?;
        let missing = match self.find(wanted, may_build) {
            Err(missing @ TensorRtError::NoEngine { .. }) => missing,
            other => return other,
        };
        let manifest = build(&lock, &missing)?;
        let folder = self.folder_of(&manifest);
        Ok(Found { folder, manifest })
    }

    /// The engine that fits, loaded. One that does not load (TensorRT gives nothing, the file is damaged) is
    /// discarded and built again, once.
    pub fn open<T>(
        &self,
        wanted: &Wanted<'_>,
        may_build: bool,
        wait: impl Fn(),
        mut build: impl FnMut(&Lock, &TensorRtError) -> Result<Manifest, TensorRtError>,
        load: impl Fn(&Found) -> Result<T, TensorRtError>,
    ) -> Result<(Found, T), TensorRtError> {
        let found = self.find_or_build(wanted, may_build, &wait, &mut build)?;
        let error = match load(&found) {
            Ok(loaded) => return Ok((found, loaded)),
            Err(error) => error,
        };
        if !may_build || !error.may_be_the_engine() {
            return Err(error);
        }
        tracing::warn!("{}: {error}; it is built again", found.folder.display());
        let lock = self.lock(&wait)?;
        found.discard(&lock)?;
        drop(lock);
        let found = self.find_or_build(wanted, may_build, &wait, &mut build)?;
        let loaded = load(&found)?;
        Ok((found, loaded))
    }

    /// Makes room for an engine: its folder, empty of an older manifest, so that what is written next does
    /// not count until its own is.
    pub fn begin(&self, _lock: &Lock, folder: &Path) -> Result<(), TensorRtError> {
        std::fs::create_dir_all(folder).map_err(TensorRtError::io("make", folder))?;
        let manifest = folder.join(super::manifest::FILE);
        match std::fs::remove_file(&manifest) {
            Ok(()) => Ok(()),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(TensorRtError::io("remove", &manifest)(e)),
        }
    }
}

/// The right to build into a store.
#[derive(Debug)]
pub struct Lock {
    /// Closing it unlocks.
    _file: File,
}

impl Found {
    /// Makes it no engine any more, so that the next search finds none, unless another process has built it
    /// anew meanwhile.
    pub fn discard(&self, _lock: &Lock) -> Result<(), TensorRtError> {
        match Manifest::read(&self.folder) {
            Ok(manifest) if manifest == self.manifest => {}
            _ => return Ok(()),
        }
        let path = self.folder.join(super::manifest::FILE);
        std::fs::remove_file(&path).map_err(TensorRtError::io("remove", &path))
    }

    /// Reads one engine, checking that it is the one of the manifest.
    pub fn read(&self, part: Part) -> Result<Vec<u8>, TensorRtError> {
        let path = self.folder.join(part.file());
        let Some(file) = self.manifest.engine(part) else {
            return Err(TensorRtError::Content {
                path: self.folder.join(super::manifest::FILE),
                expected: format!("the {}", part.name()),
                found: "none".into(),
            });
        };
        let content = |found: String| TensorRtError::Content {
            path: path.clone(),
            expected: format!("the engine of its manifest, {} bytes", file.bytes),
            found,
        };
        let mut handle = File::open(&path).map_err(TensorRtError::io("read", &path))?;
        let metadata = handle
            .metadata()
            .map_err(TensorRtError::io("read", &path))?;
        if metadata.len() != file.bytes {
            return Err(content(format!("{} bytes", metadata.len())));
        }
        let mut bytes = Vec::with_capacity(usize::try_from(file.bytes).unwrap_or(0));
        handle
            .read_to_end(&mut bytes)
            .map_err(TensorRtError::io("read", &path))?;
        if crc32fast::hash(&bytes) != file.crc32 {
            return Err(content("other content (its CRC-32 differs)".into()));
        }
        Ok(bytes)
    }
}

/// Writes one engine into its folder, completely or not at all, with the list of its kernels.
pub fn write_engine(
    folder: &Path,
    part: Part,
    engine: &[u8],
    layers: &str,
) -> Result<(u64, u32), TensorRtError> {
    let path = folder.join(part.file());
    files::write_bytes(&path, engine).map_err(TensorRtError::io("write", &path))?;
    let path = folder.join(part.layers_file());
    files::write_bytes(&path, layers.as_bytes()).map_err(TensorRtError::io("write", &path))?;
    Ok((engine.len() as u64, crc32fast::hash(engine)))
}

/// How far two sizes are from each other.
fn distance(a: [usize; 2], b: [usize; 2]) -> u64 {
    a.iter().zip(&b).map(|(a, b)| a.abs_diff(*b) as u64).sum()
}

fn name_of(folder: &Path) -> String {
    folder
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

#[cfg(test)]
mod tests {
    use super::super::manifest::WeightsFile;
    use super::super::manifest::tests::{manifest, wanted};
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    struct Fixture {
        root: tempfile::TempDir,
        weights: PathBuf,
        store: Store,
    }

    fn fixture() -> Fixture {
        let root = tempfile::tempdir().expect("a temporary folder");
        let weights = root.path().join("w.pth");
        std::fs::write(&weights, "weights").expect("a file");
        let store = Store::new(root.path().join("engines"));
        Fixture {
            root,
            weights,
            store,
        }
    }

    /// An engine of a few bytes, written as a real one is.
    fn put(store: &Store, manifest: &Manifest) -> PathBuf {
        let lock = store.lock(|| ()).expect("the lock");
        let folder = store.folder_of(manifest);
        store.begin(&lock, &folder).expect("a folder");
        for part in Part::ALL {
            write_engine(&folder, part, b"12345", "kernel").expect("an engine");
        }
        manifest.write(&folder).expect("a manifest");
        folder
    }

    #[test]
    fn the_engine_that_fits_is_found_and_read() {
        let f = fixture();
        let fp16 = manifest(&f.weights);
        let fp8 = Manifest {
            precision: Precision::Fp8,
            ..fp16.clone()
        };
        put(&f.store, &fp8);
        put(&f.store, &fp16);
        let weights = WeightsFile::new(&f.weights).expect("weights");
        let found = f.store.find(&wanted(&weights), true).expect("fp16");
        assert_eq!(found.manifest, fp16);
        assert_eq!(found.read(Part::Decoder).expect("bytes"), b"12345");
        let any = Wanted {
            precision: None,
            ..wanted(&weights)
        };
        let found = f.store.find(&any, true).expect("the best");
        assert_eq!(found.manifest.precision, Precision::F16);
    }

    #[test]
    fn the_nearest_size_is_named_first() {
        let f = fixture();
        let base = manifest(&f.weights);
        for size in [[256, 192], [512, 288], [1024, 768]] {
            put(
                &f.store,
                &Manifest {
                    size,
                    ..base.clone()
                },
            );
        }
        let weights = WeightsFile::new(&f.weights).expect("weights");
        let error = f.store.find(&wanted(&weights), false).unwrap_err();
        let message = error.to_string();
        let at = |part: &str| message.find(part).expect(part);
        assert!(at("takes 512x288") < at("takes 256x192"), "{message}");
        assert!(at("takes 256x192") < at("takes 1024x768"), "{message}");
        for part in ["engine build", "network.build_engine"] {
            assert!(message.contains(part), "{part:?} is not in {message}");
        }
        let none = Store::new(f.root.path().join("nowhere"));
        let message = none.find(&wanted(&weights), true).unwrap_err().to_string();
        assert!(message.contains("there is none"), "{message}");
    }

    #[test]
    fn half_of_an_engine_does_not_count() {
        let f = fixture();
        let manifest = manifest(&f.weights);
        let weights = WeightsFile::new(&f.weights).expect("weights");
        let folder = put(&f.store, &manifest);
        // Another build begins and is killed after its first file.
        let lock = f.store.lock(|| ()).expect("the lock");
        f.store.begin(&lock, &folder).expect("a folder");
        write_engine(&folder, Part::Encoder, b"54321", "").expect("an engine");
        drop(lock);
        let error = f.store.find(&wanted(&weights), true).unwrap_err();
        assert!(matches!(error, TensorRtError::NoEngine { .. }), "{error}");
    }

    #[test]
    fn a_damaged_engine_is_found_before_it_is_loaded() {
        let f = fixture();
        let folder = put(&f.store, &manifest(&f.weights));
        let weights = WeightsFile::new(&f.weights).expect("weights");
        let found = f.store.find(&wanted(&weights), true).expect("an engine");
        for (content, part) in [(&b"1234"[..], "4 bytes"), (b"12346", "CRC-32")] {
            std::fs::write(folder.join("encoder.engine"), content).expect("a file");
            let message = found.read(Part::Encoder).unwrap_err().to_string();
            assert!(message.contains(part), "{part:?} is not in {message}");
        }
        std::fs::remove_file(folder.join("encoder.engine")).expect("removed");
        let gone = found.read(Part::Encoder);
        assert!(matches!(gone, Err(TensorRtError::Io { .. })), "{gone:?}");
        let lock = f.store.lock(|| ()).expect("the lock");
        found.discard(&lock).expect("discarded");
        assert!(f.store.find(&wanted(&weights), true).is_err());
    }

    #[test]
    fn concurrent_starts_build_once() {
        let f = fixture();
        let builds = AtomicUsize::new(0);
        let waits = AtomicUsize::new(0);
        let start = std::sync::Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let weights = WeightsFile::new(&f.weights).expect("weights");
                    start.wait();
                    let found = f.store.find_or_build(
                        &wanted(&weights),
                        true,
                        || {
                            waits.fetch_add(1, Ordering::SeqCst);
                        },
                        |lock, missing| {
                            assert!(matches!(missing, TensorRtError::NoEngine { .. }));
                            builds.fetch_add(1, Ordering::SeqCst);
                            let manifest = manifest(&f.weights);
                            let folder = f.store.folder_of(&manifest);
                            f.store.begin(lock, &folder)?;
                            // Long enough for the others to come.
                            while waits.load(Ordering::SeqCst) < 3 {
                                std::thread::yield_now();
                            }
                            for part in Part::ALL {
                                write_engine(&folder, part, b"12345", "")?;
                            }
                            manifest.write(&folder)?;
                            Ok(manifest)
                        },
                    );
                    found
                        .expect("an engine")
                        .read(Part::Encoder)
                        .expect("bytes");
                });
            }
        });
        assert_eq!(builds.load(Ordering::SeqCst), 1);
        assert_eq!(waits.load(Ordering::SeqCst), 3);
    }

    #[test]
    fn an_engine_that_does_not_load_is_built_again_once() {
        let f = fixture();
        let folder = put(&f.store, &manifest(&f.weights));
        let weights = WeightsFile::new(&f.weights).expect("weights");
        let builds = AtomicUsize::new(0);
        let open = |may_build, load: &dyn Fn(&Found) -> Result<u32, TensorRtError>| {
            let build = |lock: &Lock, _: &TensorRtError| {
                builds.fetch_add(1, Ordering::SeqCst);
                let mut manifest = manifest(&f.weights);
                manifest.program = format!("build {}", builds.load(Ordering::SeqCst));
                f.store.begin(lock, &folder)?;
                for part in Part::ALL {
                    write_engine(&folder, part, b"12345", "")?;
                }
                manifest.write(&folder)?;
                Ok(manifest)
            };
            let opened = f
                .store
                .open(&wanted(&weights), may_build, || (), build, load);
            (
                opened.map(|(found, n)| (found.manifest.program, n)),
                builds.swap(0, Ordering::SeqCst),
            )
        };
        let null = || TensorRtError::Failed {
            doing: "loading the encoder".into(),
            message: "null".into(),
        };
        let (opened, built) = open(true, &|found| match found.manifest.program.as_str() {
            "build 1" => Ok(7),
            _ => Err(null()),
        });
        assert_eq!(
            (opened.expect("the second"), built),
            (("build 1".to_owned(), 7), 1)
        );
        // One that never loads is not built for ever.
        let (opened, built) = open(true, &|_| Err(null()));
        assert!(matches!(opened, Err(TensorRtError::Failed { .. })));
        assert_eq!(built, 1);
        // A damaged file counts as well; too little memory is no fault of the engine.
        std::fs::write(folder.join("encoder.engine"), "1234").expect("a file");
        let (opened, built) = open(true, &|found| Ok(found.read(Part::Encoder)?.len() as u32));
        assert_eq!((opened.expect("the second").1, built), (5, 1));
        let small = || TensorRtError::GpuMemory { needed: 2, free: 1 };
        let (opened, built) = open(true, &|_| Err(small()));
        assert!(matches!(opened, Err(TensorRtError::GpuMemory { .. })));
        assert_eq!(built, 0);
        let (opened, built) = open(false, &|_| Err(null()));
        assert!(opened.is_err() && built == 0);
    }

    #[test]
    fn building_can_be_forbidden() {
        let f = fixture();
        let weights = WeightsFile::new(&f.weights).expect("weights");
        let found = f.store.find_or_build(
            &wanted(&weights),
            false,
            || (),
            |_, _| unreachable!("must not be built"),
        );
        let message = found.unwrap_err().to_string();
        assert!(message.contains("network.build_engine: true"), "{message}");
    }

    #[test]
    fn a_failed_build_leaves_nothing_that_fits() {
        let f = fixture();
        let weights = WeightsFile::new(&f.weights).expect("weights");
        let failed = f.store.find_or_build(
            &wanted(&weights),
            true,
            || (),
            |lock, _| {
                let folder = f.store.folder_of(&manifest(&f.weights));
                f.store.begin(lock, &folder)?;
                write_engine(&folder, Part::Encoder, b"12345", "")?;
                Err(TensorRtError::Cancelled)
            },
        );
        assert!(matches!(failed, Err(TensorRtError::Cancelled)));
        assert!(f.store.find(&wanted(&weights), true).is_err());
    }
}
