//! The cache of compiled kernels: each is compiled once, by one thread of one process, and later starts read it from
//! disk.
//!
//! * `mod.rs`: [`Cache`], which is what devices are given, and how it is opened.
//! * `compile.rs`: [`Compiler`], the step that it saves.
//! * `key.rs`: what an entry is filed under.
//! * `entry.rs`: an entry as bytes.
//! * `store.rs`: the folder.
//! * `bundle.rs`: many entries in one file, to ship with a model.
//! * `shared.rs`: values that many threads ask for and one makes.
//! * `error.rs`: why there is no module; `report.rs`: what is told beside.
//!
//! A cache never makes a kernel fail: what is on disk is believed only if its checksum fits, and a folder that can't be
//! used is none, with one warning. A checksum is no defence against somebody who may write to the folder, who can put any
//! code there: it is made for its owner alone, and one that others can write to is not used ([`CacheOptions::shared`]).

mod bundle;
mod compile;
mod entry;
mod error;
mod key;
mod report;
pub(crate) mod shared;
mod store;

pub use bundle::{BUNDLE_LIMIT, Bundle, BundleError};
pub use compile::{Compiled, Compiler, Identity, PtxasCompiler, Source};
#[cfg(feature = "cuda")]
pub(crate) use entry::MOST_BYTES;
pub use entry::{Entry, EntryError};
pub use error::ModuleError;
#[cfg(feature = "cuda")]
pub(crate) use error::with_lines;
pub use key::{Key, NoKey, SourceId};
pub use report::{Sink, Warning};
pub use store::Found;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use etcetera::base_strategy::{BaseStrategy, choose_native_strategy};

use report::Reporter;
use shared::Shared;
use store::{ReadError, Store};

/// The environment variable that names the folder.
pub const FOLDER_VARIABLE: &str = "SILUMIN_CACHE_DIR";
/// Default limit of the folder in bytes: some thousand kernels.
pub const DEFAULT_LIMIT: u64 = 512 << 20;
/// Default wait for another process that compiles the same kernel.
const PATIENCE: Duration = Duration::from_secs(20);

/// Where a cubin came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// A bundle.
    Bundle,
    /// The folder.
    Disk,
    /// It was compiled for this call.
    Compiled,
}

/// A compiled kernel and its origin.
#[derive(Clone, Debug)]
pub struct Cubin {
    /// The kernel.
    pub entry: Arc<Entry>,
    /// Where the cubin came from when it was first requested.
    pub origin: Origin,
}

/// Counts of a cache since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Kernels taken from a bundle.
    pub bundled: u64,
    /// Kernels read from disk.
    pub read: u64,
    /// Kernels compiled.
    pub compiled: u64,
    /// Kernels that the driver compiled when it loaded them, or had in its own cache, because its linker would make
    /// slower code.
    pub by_loading: u64,
    /// Kernels written to disk.
    pub written: u64,
    /// Damaged files found.
    pub damaged: u64,
    /// Kernels evicted to stay within the limit.
    pub evicted: u64,
}

/// Compiled kernels in memory, in bundles and on disk, for all devices of a program. Cloning it is cheap.
///
/// ```no_run
/// use silumin_runtime::cache::Cache;
/// use silumin_runtime::device::Device;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = Device::cuda(0)?.with_cache(Cache::open_default());
/// # let _ = device;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Cache {
    inner: Arc<Inner>,
}

struct Inner {
    store: Option<Store>,
    /// Whether the folder is still written to; not after a failure.
    writes: AtomicBool,
    limit: u64,
    patience: Duration,
    bundles: Vec<Bundle>,
    compiling: bool,
    /// The assembler; only devices of the driver use it.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    ptxas: Option<PtxasCompiler>,
    memory: Shared<Key, Cubin, ModuleError>,
    reporter: Reporter,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    bundled: AtomicU64,
    read: AtomicU64,
    compiled: AtomicU64,
    by_loading: AtomicU64,
    written: AtomicU64,
    damaged: AtomicU64,
    evicted: AtomicU64,
}

fn count(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

/// Options of a cache.
///
/// ```
/// use silumin_runtime::cache::{Cache, CacheOptions};
///
/// let folder = std::env::temp_dir().join("silumin-example-cache");
/// let cache = CacheOptions::new().folder(&folder).limit(64 << 20).on_warning(|w| eprintln!("{w}")).open();
/// assert_eq!(cache.folder(), Some(&*folder));
/// # let _ = std::fs::remove_dir(&folder);
/// ```
#[derive(Clone)]
#[must_use]
pub struct CacheOptions {
    folder: Option<PathBuf>,
    shared: bool,
    limit: u64,
    patience: Duration,
    bundles: Vec<Bundle>,
    compiling: bool,
    ptxas: Option<PtxasCompiler>,
    sink: Option<Sink>,
}

impl Default for CacheOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl CacheOptions {
    /// A cache in memory only, with [`DEFAULT_LIMIT`], the driver's compiler, and warnings on standard error.
    pub fn new() -> Self {
        Self {
            folder: None,
            shared: false,
            limit: DEFAULT_LIMIT,
            patience: PATIENCE,
            bundles: Vec::new(),
            compiling: true,
            ptxas: None,
            sink: None,
        }
    }

    /// Keeps kernels in this folder, which is created if needed.
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// Whether to use a folder that other users own or can write to. The default is no, because such users could make
    /// the GPU run their code. On Unix only; elsewhere access is not checked.
    pub fn shared(mut self, shared: bool) -> Self {
        self.shared = shared;
        self
    }

    /// Evicts the least recently used kernels if the folder exceeds this many bytes.
    pub fn limit(mut self, bytes: u64) -> Self {
        self.limit = bytes;
        self
    }

    /// Adds a bundle to look in first. Several are searched in the order of the calls.
    pub fn bundle(mut self, bundle: Bundle) -> Self {
        self.bundles.push(bundle);
        self
    }

    /// Whether a missing kernel is compiled (the default) or is an error: for programs that ship their kernels and
    /// must not stall.
    pub fn compiling(mut self, compiling: bool) -> Self {
        self.compiling = compiling;
        self
    }

    /// Compiles with NVIDIA's assembler instead of the driver: for PTX that is too new for the driver, or to compile
    /// in as many processes as there are cores.
    pub fn ptxas(mut self, ptxas: PtxasCompiler) -> Self {
        self.ptxas = Some(ptxas);
        self
    }

    /// Passes each distinct warning to `sink` instead of printing it to standard error.
    pub fn on_warning(mut self, sink: impl Fn(&Warning) + Send + Sync + 'static) -> Self {
        self.sink = Some(Arc::new(sink));
        self
    }

    /// How long to wait for another process that compiles the same kernel before compiling it here as well. The
    /// default is 20 seconds.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Opens the cache. If the folder cannot be created, or others can write to it, there is a warning and the cache
    /// is in memory only.
    #[must_use]
    pub fn open(self) -> Cache {
        let reporter = Reporter::new(self.sink);
        let store = self.folder.map(Store::new);
        let created = store.as_ref().map_or(Ok(()), Store::create);
        let store = store.filter(|store| {
            // What can't be looked at can't be read either, which is told where it is tried.
            let reason = if self.shared { None } else { store.writable_by_others().ok().flatten() };
            if let Some(reason) = &reason {
                let (folder, reason) = (store.folder().to_owned(), reason.clone());
                reporter.tell(Warning::Untrusted { folder, reason });
            }
            reason.is_none()
        });
        let cache = Cache {
            inner: Arc::new(Inner {
                store,
                writes: AtomicBool::new(true),
                limit: self.limit,
                patience: self.patience,
                bundles: self.bundles,
                compiling: self.compiling,
                ptxas: self.ptxas,
                memory: Shared::new(),
                reporter,
                counts: Counts::default(),
            }),
        };
        if let Some(store) = &cache.inner.store {
            match created {
                // What dead processes left is in nobody's way: that it can't be removed is no news.
                Ok(()) => drop(store.tidy()),
                Err(error) => cache.inner.stop_writing(store, &error),
            }
        }
        cache
    }
}

impl Cache {
    /// The default folder: `SILUMIN_CACHE_DIR`, or `silumin` in the platform's folder for caches (`$XDG_CACHE_HOME`
    /// or `~/.cache`, `~/Library/Caches`, `%LOCALAPPDATA%`). `None` without a home folder.
    #[must_use]
    pub fn default_folder() -> Option<PathBuf> {
        match std::env::var_os(FOLDER_VARIABLE).filter(|folder| !folder.is_empty()) {
            Some(folder) => Some(PathBuf::from(folder)),
            None => Some(choose_native_strategy().ok()?.cache_dir().join("silumin")),
        }
    }

    /// A cache in [`default_folder`](Cache::default_folder), or in memory only if there is none.
    #[must_use]
    pub fn open_default() -> Self {
        let options = CacheOptions::new();
        match Self::default_folder() {
            Some(folder) => options.folder(folder).open(),
            None => {
                let cache = options.open();
                cache.inner.reporter.tell(Warning::Off {
                    folder: PathBuf::from("no home folder"),
                    reason: "the platform names no folder for caches".to_owned(),
                });
                cache
            }
        }
    }

    /// A cache in `folder`; [`CacheOptions`] has more to choose.
    #[must_use]
    pub fn open(folder: impl Into<PathBuf>) -> Self {
        CacheOptions::new().folder(folder).open()
    }

    /// The folder; `None` for a cache in memory only, also if others can write to the folder.
    #[must_use]
    pub fn folder(&self) -> Option<&Path> {
        self.inner.store.as_ref().map(Store::folder)
    }

    /// Whether missing kernels are compiled.
    #[must_use]
    pub fn compiles(&self) -> bool {
        self.inner.compiling
    }

    /// The assembler, if it compiles with one.
    #[cfg(feature = "cuda")]
    pub(crate) fn assembler(&self) -> Option<&PtxasCompiler> {
        self.inner.ptxas.as_ref()
    }

    /// Counts since the cache was opened.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let Counts { bundled, read, compiled, by_loading, written, damaged, evicted } = &self.inner.counts;
        let now = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            bundled: now(bundled),
            read: now(read),
            compiled: now(compiled),
            by_loading: now(by_loading),
            written: now(written),
            damaged: now(damaged),
            evicted: now(evicted),
        }
    }

    /// The compiled kernel: from memory while a handle lives, from a bundle, from disk, or compiled and kept. If
    /// several threads or processes ask at once, one does the work and the others wait.
    ///
    /// # Errors
    ///
    /// [`ModuleError`] of the compiler, or [`ModuleError::NotCached`].
    pub fn cubin(&self, source: &Source<'_>, compiler: &dyn Compiler) -> Result<Arc<Cubin>, ModuleError> {
        let key = Key::of(source, compiler.identity());
        self.inner.memory.get_or_make(key, || self.inner.find_or_compile(key, source, compiler).map(Arc::new))
    }

    /// Compiles a kernel again that the device refused for `reason`, and replaces the entry.
    ///
    /// # Errors
    ///
    /// As [`Cache::cubin`].
    pub fn renew(
        &self,
        source: &Source<'_>,
        compiler: &dyn Compiler,
        reason: &str,
    ) -> Result<Arc<Cubin>, ModuleError> {
        let (kernel, reason) = (source.name.to_owned(), reason.to_owned());
        self.inner.reporter.tell(Warning::Rejected { kernel, reason });
        let key = Key::of(source, compiler.identity());
        self.inner.memory.discard(&key);
        self.inner.memory.get_or_make(key, || self.inner.compile(key, source, compiler).map(Arc::new))
    }

    /// Records that the driver compiles a kernel itself and keeps it, unless its cache is off.
    #[cfg(feature = "cuda")]
    pub(crate) fn compiled_by_loading(&self) {
        count(&self.inner.counts.by_loading, 1);
        if std::env::var_os("CUDA_CACHE_DISABLE").is_some_and(|value| value == "1") {
            self.inner.reporter.tell(Warning::DriverCacheOff);
        }
    }

    /// Emits a warning once.
    pub(crate) fn tell(&self, warning: Warning) {
        self.inner.reporter.tell(warning);
    }

    /// All entries on disk, least recently used first; empty for a cache in memory only.
    ///
    /// # Errors
    ///
    /// The folder can't be read.
    pub fn list(&self) -> io::Result<Vec<Found>> {
        self.inner.store.as_ref().map_or(Ok(Vec::new()), Store::list)
    }

    /// Reads an entry and checks all of it.
    ///
    /// # Errors
    ///
    /// In words.
    pub fn read(&self, found: &Found) -> Result<Entry, String> {
        match store::read_file(&found.path) {
            Ok(bytes) => Entry::decode(&bytes, Some(found.key)).map_err(|error| error.to_string()),
            Err(ReadError::Damaged(error)) => Err(error.to_string()),
            Err(ReadError::Io(error)) => Err(error.to_string()),
        }
    }

    /// Removes one entry from disk.
    ///
    /// # Errors
    ///
    /// The folder can't be written to.
    pub fn remove(&self, key: Key) -> io::Result<()> {
        self.inner.memory.discard(&key);
        self.inner.store.as_ref().map_or(Ok(()), |store| store.remove(key))
    }

    /// Removes files of dead processes, and the least recently used entries until the rest has at most `limit` bytes.
    /// Returns the number of removed entries.
    ///
    /// # Errors
    ///
    /// The folder can't be read.
    pub fn prune(&self, limit: u64) -> io::Result<u64> {
        let Some(store) = &self.inner.store else { return Ok(0) };
        store.tidy()?;
        let gone = store.evict(limit, None)?;
        count(&self.inner.counts.evicted, gone);
        Ok(gone)
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let folder = self.folder().map_or("memory".into(), Path::to_string_lossy);
        write!(f, "Cache({folder})")
    }
}

impl Inner {
    fn find_or_compile(
        &self,
        key: Key,
        source: &Source<'_>,
        compiler: &dyn Compiler,
    ) -> Result<Cubin, ModuleError> {
        let id = SourceId::of(source);
        let target = source.arch.target();
        let bundled = self.bundles.iter().find_map(|bundle| bundle.get(id));
        if let Some(entry) = bundled.filter(|entry| entry.target == target) {
            count(&self.counts.bundled, 1);
            return Ok(Cubin { entry: entry.clone(), origin: Origin::Bundle });
        }
        let not_cached =
            || Err(ModuleError::NotCached { kernel: source.name.to_owned(), target: target.to_owned() });
        // What was found to be left to the driver is not tried again.
        let whole = |found: Cubin| match (found.entry.cubin.is_empty(), self.compiling) {
            (false, _) => Ok(found),
            (true, true) => Err(ModuleError::Relocatable { reason: found.entry.log.clone() }),
            (true, false) => not_cached(),
        };
        if let Some(found) = self.read(key) {
            return whole(found);
        }
        if !self.compiling {
            return not_cached();
        }
        // One process compiles, the others wait and then find it.
        let store = self.store.as_ref().filter(|_| self.writes.load(Ordering::Relaxed));
        let lock = store.and_then(|store| store.lock(key, self.patience));
        if lock.is_some()
            && let Some(found) = self.read(key)
        {
            return whole(found);
        }
        self.compile(key, source, compiler)
    }

    /// The entry on disk, if it is there and whole.
    fn read(&self, key: Key) -> Option<Cubin> {
        let store = self.store.as_ref()?;
        match store.read(key) {
            Ok(None) => None,
            Ok(Some(entry)) => {
                store.touch(key);
                count(&self.counts.read, u64::from(!entry.cubin.is_empty()));
                Some(Cubin { entry: Arc::new(entry), origin: Origin::Disk })
            }
            Err(error) => {
                count(&self.counts.damaged, 1);
                self.reporter.tell(match error {
                    ReadError::Damaged(error) => Warning::damaged(store.path(key), error),
                    ReadError::Io(error) => {
                        Warning::Damaged { path: store.path(key), reason: error.to_string() }
                    }
                });
                None
            }
        }
    }

    fn compile(&self, key: Key, source: &Source<'_>, compiler: &dyn Compiler) -> Result<Cubin, ModuleError> {
        let entry = |cubin, log| Entry {
            key,
            source: SourceId::of(source),
            target: source.arch.target().to_owned(),
            compiler: compiler.identity().clone(),
            kernel: source.name.to_owned(),
            log,
            cubin,
        };
        match compiler.compile(source) {
            Ok(Compiled { cubin, log }) => {
                count(&self.counts.compiled, 1);
                let entry = entry(cubin, log);
                self.keep(&entry);
                Ok(Cubin { entry: Arc::new(entry), origin: Origin::Compiled })
            }
            Err(ModuleError::Relocatable { reason }) => {
                self.keep(&entry(Vec::new(), reason.clone()));
                Err(ModuleError::Relocatable { reason })
            }
            Err(error) => Err(error),
        }
    }

    fn keep(&self, entry: &Entry) {
        let Some(store) = self.store.as_ref().filter(|_| self.writes.load(Ordering::Relaxed)) else { return };
        match store.write(entry) {
            Ok(()) => {
                count(&self.counts.written, 1);
                if let Ok(gone) = store.evict(self.limit, Some(entry.key)) {
                    count(&self.counts.evicted, gone);
                }
            }
            // Something of this one kernel's: its place is taken, or it is too long.
            Err(error) if store.path(entry.key).is_dir() || error.kind() == io::ErrorKind::InvalidData => {
                let (path, reason) = (store.path(entry.key), error.to_string());
                self.reporter.tell(Warning::NotKept { path, reason });
            }
            Err(error) => self.stop_writing(store, &error),
        }
    }

    /// Stops writing after the first failure: each further try would take time and fail again.
    fn stop_writing(&self, store: &Store, error: &io::Error) {
        if self.writes.swap(false, Ordering::Relaxed) {
            let (folder, reason) = (store.folder().to_owned(), error.to_string());
            self.reporter.tell(Warning::Off { folder, reason });
        }
    }
}
