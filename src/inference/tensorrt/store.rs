//! A folder of engines: finds a matching engine, builds at most one at a time, and never leaves a
//! partial one.
//!
//! Each engine set has its own folder with engine files, lists of kernels, TensorRT-RTX's cache of
//! compiled kernels, and the manifest, which is written last.

use super::error::TensorRtError;
use super::manifest::{Manifest, Part, Wanted};
use super::target::Target;
use crate::files;
use crate::network::onnx::Precision;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

#[derive(Debug, Clone)]
pub struct Store {
    folder: PathBuf,
}

/// An engine folder and its manifest.
type Listed = (PathBuf, Result<Manifest, TensorRtError>);

/// A matching engine.
#[derive(Debug)]
pub struct Found {
    pub folder: PathBuf,
    pub manifest: Manifest,
}

impl Store {
    /// A store in `folder`, which need not exist yet.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
        }
    }

    /// The default folder, unless configured otherwise: `mast3r_slam/engines` in the user's cache
    /// folder.
    pub fn default_folder() -> PathBuf {
        files::cache("engines")
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// All engines in the folder, by name: each with its manifest, or the error from reading it.
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

    /// Finds a matching engine; if several differ in precision, fp16 is preferred, then bf16, fp8,
    /// fp32.
    ///
    /// # Errors
    /// [`TensorRtError::NoEngine`] says why each existing engine does not match, the nearest size
    /// first.
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
                    0 => "the folder has no engines".into(),
                    _ => reasons.join("; "),
                },
                may_build,
            }
        })
    }

    /// The folder of an engine; its name contains only what distinguishes engines.
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

    /// Waits until no other process builds in this folder, and locks it until the result is dropped
    /// (or this process ends). `wait` is called if another process holds the lock.
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

    /// Finds a matching engine, or builds one with `build`, in one process at a time: a process
    /// that waited for another searches again.
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

    /// Opens a matching engine. One that fails to load (TensorRT returns nothing, or the file is
    /// damaged) is discarded and rebuilt once.
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
        tracing::warn!("{}: {error}; rebuilding the engine", found.folder.display());
        let lock = self.lock(&wait)?;
        found.discard(&lock)?;
        drop(lock);
        let found = self.find_or_build(wanted, may_build, &wait, &mut build)?;
        let loaded = load(&found)?;
        Ok((found, loaded))
    }

    /// Prepares the folder of an engine and removes an old manifest, so that files written next do
    /// not count until the new manifest is written.
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

/// The right to build in a store.
#[derive(Debug)]
pub struct Lock {
    /// Closing the file releases the lock.
    _file: File,
}

impl Found {
    /// Removes the manifest, so that the engine is no longer found, unless another process has
    /// rebuilt it meanwhile.
    pub fn discard(&self, _lock: &Lock) -> Result<(), TensorRtError> {
        match Manifest::read(&self.folder) {
            Ok(manifest) if manifest == self.manifest => {}
            _ => return Ok(()),
        }
        let path = self.folder.join(super::manifest::FILE);
        std::fs::remove_file(&path).map_err(TensorRtError::io("remove", &path))
    }

    /// Reads one engine and verifies it against the manifest.
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

/// Writes one engine to its folder atomically, with the list of its kernels.
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

/// Distance between two sizes.
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

    /// An engine of a few bytes, written like a real one.
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
        assert!(at("size is 512x288") < at("size is 256x192"), "{message}");
        assert!(at("size is 256x192") < at("size is 1024x768"), "{message}");
        for part in ["engine build", "network.build_engine"] {
            assert!(message.contains(part), "{part:?} is not in {message}");
        }
        let none = Store::new(f.root.path().join("nowhere"));
        let message = none.find(&wanted(&weights), true).unwrap_err().to_string();
        assert!(message.contains("the folder has no engines"), "{message}");
    }

    #[test]
    fn half_of_an_engine_does_not_count() {
        let f = fixture();
        let manifest = manifest(&f.weights);
        let weights = WeightsFile::new(&f.weights).expect("weights");
        let folder = put(&f.store, &manifest);
        // Another build starts and is killed after its first file.
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
                            // Wait until the others are waiting.
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
        // An engine that never loads is not rebuilt forever.
        let (opened, built) = open(true, &|_| Err(null()));
        assert!(matches!(opened, Err(TensorRtError::Failed { .. })));
        assert_eq!(built, 1);
        // A damaged file is rebuilt too; insufficient memory is not the engine's fault.
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
