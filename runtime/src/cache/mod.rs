//! Compiled kernels, kept: each is compiled once, by one thread of one process, and later starts read it from disk.
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

/// The variable that names the folder.
pub const FOLDER_VARIABLE: &str = "SILUMIN_CACHE_DIR";
/// Bytes that a folder may hold unless it is told otherwise: some thousand kernels.
pub const DEFAULT_LIMIT: u64 = 512 << 20;
/// How long a process waits for another one that compiles the same.
const PATIENCE: Duration = Duration::from_secs(20);

/// Where a cubin came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// A bundle.
    Bundle,
    /// The folder.
    Disk,
    /// The compiler, just now.
    Compiled,
}

/// A compiled kernel, and where it came from.
#[derive(Clone, Debug)]
pub struct Cubin {
    /// The kernel.
    pub entry: Arc<Entry>,
    /// Where it came from when it was first asked for.
    pub origin: Origin,
}

/// What a cache has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Kernels from a bundle.
    pub bundled: u64,
    /// Kernels read from disk.
    pub read: u64,
    /// Kernels compiled.
    pub compiled: u64,
    /// Kernels that the driver compiled as it loaded them, or had in a cache of its own: those of which its linker would make
    /// slower code.
    pub by_loading: u64,
    /// Kernels written to disk.
    pub written: u64,
    /// Files that were not what was written there.
    pub damaged: u64,
    /// Kernels evicted, for there was no room.
    pub evicted: u64,
}

/// Compiled kernels in memory, in bundles and on disk: a cheap handle, for all devices of a program.
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
    /// Whether the folder is written to; not any more after that failed.
    writes: AtomicBool,
    limit: u64,
    patience: Duration,
    bundles: Vec<Bundle>,
    compiling: bool,
    /// Devices of the driver alone ask for it.
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

/// How a cache is opened.
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
    /// In memory only, of [`DEFAULT_LIMIT`], compiling with the driver, warnings to standard error.
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

    /// Keeps kernels in this folder, which is made where it is not there.
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// Whether the folder may be one that other users own or can write to. It may not, unless this says so: they could have
    /// the GPU run their code in this program's place. On Unix; elsewhere access is not looked at.
    pub fn shared(mut self, shared: bool) -> Self {
        self.shared = shared;
        self
    }

    /// Evicts the least recently used kernels where the folder has more bytes than that.
    pub fn limit(mut self, bytes: u64) -> Self {
        self.limit = bytes;
        self
    }

    /// Looks in this bundle first; several are searched in the order of the calls.
    pub fn bundle(mut self, bundle: Bundle) -> Self {
        self.bundles.push(bundle);
        self
    }

    /// Whether what is not there is compiled (it is, unless this says no), or an error: for programs that ship their
    /// kernels and must not stall.
    pub fn compiling(mut self, compiling: bool) -> Self {
        self.compiling = compiling;
        self
    }

    /// Compiles with NVIDIA's assembler in the driver's place: for PTX that is too new for the driver, or to compile in
    /// as many processes as there are cores.
    pub fn ptxas(mut self, ptxas: PtxasCompiler) -> Self {
        self.ptxas = Some(ptxas);
        self
    }

    /// Hands warnings over, each once, in the place of printing them to standard error.
    pub fn on_warning(mut self, sink: impl Fn(&Warning) + Send + Sync + 'static) -> Self {
        self.sink = Some(Arc::new(sink));
        self
    }

    /// How long to wait for another process that compiles the same kernel, 20 seconds if not set, before compiling it
    /// here as well.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Opens it. A folder that can't be made, or that others can write to, is a warning, and the cache is in memory then.
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
    /// The folder that is used if none is named: that of `SILUMIN_CACHE_DIR`, or `silumin` in the platform's folder
    /// for caches (`$XDG_CACHE_HOME` or `~/.cache`, `~/Library/Caches`, `%LOCALAPPDATA%`). `None` where there is no home.
    #[must_use]
    pub fn default_folder() -> Option<PathBuf> {
        match std::env::var_os(FOLDER_VARIABLE).filter(|folder| !folder.is_empty()) {
            Some(folder) => Some(PathBuf::from(folder)),
            None => Some(choose_native_strategy().ok()?.cache_dir().join("silumin")),
        }
    }

    /// The cache in [`default_folder`](Cache::default_folder), or in memory only where there is none.
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

    /// The cache in `folder`; see [`CacheOptions`] for more to choose.
    #[must_use]
    pub fn open(folder: impl Into<PathBuf>) -> Self {
        CacheOptions::new().folder(folder).open()
    }

    /// Where it keeps kernels; `None` in memory only, as for a folder that others can write to.
    #[must_use]
    pub fn folder(&self) -> Option<&Path> {
        self.inner.store.as_ref().map(Store::folder)
    }

    /// Whether what is not there is compiled.
    #[must_use]
    pub fn compiles(&self) -> bool {
        self.inner.compiling
    }

    /// The assembler that it was given to compile with.
    #[cfg(feature = "cuda")]
    pub(crate) fn assembler(&self) -> Option<&PtxasCompiler> {
        self.inner.ptxas.as_ref()
    }

    /// What it has done since it was opened.
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

    /// The compiled kernel: from memory while anybody has it, from a bundle, from disk, or compiled and kept. Of all
    /// threads that ask at once one does the work and the others wait; so do other processes.
    ///
    /// # Errors
    ///
    /// [`ModuleError`] of the compiler, or [`ModuleError::NotCached`].
    pub fn cubin(&self, source: &Source<'_>, compiler: &dyn Compiler) -> Result<Arc<Cubin>, ModuleError> {
        let key = Key::of(source, compiler.identity());
        self.inner.memory.get_or_make(key, || self.inner.find_or_compile(key, source, compiler).map(Arc::new))
    }

    /// Compiles a kernel anew that the device did not take, for `reason`, and replaces it.
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

    /// Notes that the driver compiles a kernel itself, which it keeps unless it is told not to.
    #[cfg(feature = "cuda")]
    pub(crate) fn compiled_by_loading(&self) {
        count(&self.inner.counts.by_loading, 1);
        if std::env::var_os("CUDA_CACHE_DISABLE").is_some_and(|value| value == "1") {
            self.inner.reporter.tell(Warning::DriverCacheOff);
        }
    }

    /// Tells a warning, once.
    pub(crate) fn tell(&self, warning: Warning) {
        self.inner.reporter.tell(warning);
    }

    /// All entries on disk, least recently used first; empty in memory only.
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

    /// Removes what dead processes left, and the least recently used entries until the rest has at most `limit` bytes.
    /// Returns how many entries went.
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

    /// After the first failure the folder is only read: each try would cost time, and fail again.
    fn stop_writing(&self, store: &Store, error: &io::Error) {
        if self.writes.swap(false, Ordering::Relaxed) {
            let (folder, reason) = (store.folder().to_owned(), error.to_string());
            self.reporter.tell(Warning::Off { folder, reason });
        }
    }
}
