//! Tuning results as a file: beside the cache, shipped with a model, merged from several machines.
//!
//! The first line identifies the file; each other line is a result (`record.rs`). A file is written under another
//! name, flushed and renamed, under a lock of the operating system, and keeps what it held before. Runs that end, are
//! killed, or write at the same time lose no complete result.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use silumin_codegen::config::Config;
use silumin_codegen::problem::Shape;
use silumin_codegen::spec::Spec;
use thiserror::Error;

use super::knobs;
use super::record::{RecordError, TuningEntry, TuningKey, code_of};
use crate::cache::Cache;
use crate::device::{Device, DeviceFacts};

use crate::regular_file::{self, ReadError};

/// File name beside a cache.
pub const FILE: &str = "tuning.jsonl";
/// The version that is written, and the only one that is read.
const FORMAT: u32 = 1;
/// Beginning of a file, up to the version.
const HEAD: &str = "{\"silumin_tuning\":";
/// Longest file that is read; a result takes half a kilobyte.
const MOST_BYTES: u64 = 64 << 20;
/// Longest wait for another process that writes the same file.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a file was not read or written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TableError {
    /// The operating system reported an error.
    #[error("{}: {reason}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's words.
        reason: io::Error,
    },
    /// The file is of another kind, or a folder or a pipe.
    #[error("{} is not a tuning file of silumin: move it away, or name another file", .path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// Another version of silumin wrote the file.
    #[error("{} has format {found}, and this version reads {FORMAT}: tune again, or move it away", .path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// The file is too long.
    #[error("{} has {found} bytes, and at most {MOST_BYTES} are read: move it away, and tune again", .path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// Its length.
        found: u64,
    },
    /// Another process holds the lock for too long.
    #[error("{} is locked by another process for longer than {} s: wait until it is done, or name another file", .path.display(), PATIENCE.as_secs())]
    Locked {
        /// The file.
        path: PathBuf,
    },
}

/// Why a result is not used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Stale {
    /// The result is from another device.
    #[error("it was found on {} ({}.{}, {} SMs)", .found.name, .found.capability.0, .found.capability.1, .found.sms)]
    Device {
        /// That device.
        found: DeviceFacts,
    },
    /// The result is from another driver, whose compiler generates other code.
    #[error("it was found with driver {found}")]
    Driver {
        /// That driver.
        found: String,
    },
    /// Its knobs now make another kernel, or none.
    #[error("this version of silumin makes another kernel of its knobs")]
    Code,
}

/// What a table has for a problem.
#[derive(Clone, Debug, PartialEq)]
pub enum Found<'a> {
    /// A valid result and its configuration.
    Tuned(&'a TuningEntry, Config),
    /// A result that is not valid here, with the reason.
    Stale(&'a TuningEntry, Stale),
    /// The table has no result for the problem.
    Nothing,
}

/// A line that is not a result.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Damaged {
    /// Line number, from 1.
    pub line: usize,
    /// The error.
    pub error: RecordError,
}

/// Tuning results by problem, device, driver and the user's knobs.
///
/// ```
/// use silumin_codegen::{arch::Arch, problem::Shape, spec::Spec};
/// use silumin_runtime::device::Device;
/// use silumin_runtime::gemm::DualGemm;
/// use silumin_runtime::tune::{Found, Space, Table, tune};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let swiglu = DualGemm::new(Spec::new("silu(A @ B1) * (A @ B2)".parse()?, &[Arch::Sm100a])?);
/// let (device, shape) = (Device::emulated(Arch::Sm100a), Shape::new(128, 256, 256));
/// let tuned = tune(&device, &swiglu, shape, &"stages=2|3".parse::<Space>()?)?;
///
/// let mut table = Table::new();
/// table.add(&device, &swiglu, &tuned)?;
/// let folder = tempfile::tempdir()?;
/// let file = folder.path().join("model.tuning");
/// table.save(&file)?;
/// let Found::Tuned(_, config) = Table::read(&file)?.find(&device, swiglu.spec(), shape) else { panic!() };
/// assert_eq!(config, tuned.config);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    entries: BTreeMap<TuningKey, TuningEntry>,
    damaged: Vec<Damaged>,
}

impl Table {
    /// One without results.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The path of the file beside a cache; `None` for a cache in memory only.
    #[must_use]
    pub fn beside(cache: &Cache) -> Option<PathBuf> {
        cache.folder().map(|folder| folder.join(FILE))
    }

    /// Reads a file. Damaged lines are skipped and listed in [`damaged`](Table::damaged).
    ///
    /// # Errors
    ///
    /// [`TableError`] where it is no file of this version's at all.
    pub fn read(path: &Path) -> Result<Self, TableError> {
        let bytes = regular_file::read(path, MOST_BYTES).map_err(|error| match error {
            ReadError::Io { path, source } => TableError::Io { path, reason: source },
            ReadError::TooLong { path, found, .. } => TableError::TooLong { path, found },
            ReadError::NotRegular { path, .. } | ReadError::NotText { path, .. } => {
                TableError::Foreign { path }
            }
        })?;
        Self::parse(&bytes, path)
    }

    /// Parses a table from bytes; the path is for errors.
    ///
    /// # Errors
    ///
    /// As [`Table::read`].
    pub fn parse(bytes: &[u8], path: &Path) -> Result<Self, TableError> {
        let mut table = Table::new();
        // What was cut off before its first byte holds nothing.
        if bytes.is_empty() {
            return Ok(table);
        }
        let mut lines = bytes.split(|byte| *byte == b'\n').enumerate();
        let head = lines.next().and_then(|(_, line)| str::from_utf8(line).ok()).unwrap_or_default();
        let version = head.strip_prefix(HEAD).and_then(|rest| rest.trim_end().strip_suffix('}'));
        match version.and_then(|version| version.parse::<u32>().ok()) {
            None => return Err(TableError::Foreign { path: path.to_owned() }),
            Some(FORMAT) => {}
            Some(found) => return Err(TableError::Version { path: path.to_owned(), found }),
        }
        for (number, line) in lines.filter(|(_, line)| !line.trim_ascii().is_empty()) {
            match TuningEntry::decode(line) {
                Ok(entry) => {
                    table.insert(entry);
                }
                Err(error) => table.damaged.push(Damaged { line: number + 1, error }),
            }
        }
        Ok(table)
    }

    /// The bytes of the file.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut text = format!("{HEAD}{FORMAT}}}\n");
        for entry in self.entries.values() {
            text += &entry.encode();
            text.push('\n');
        }
        text
    }

    /// Merges all results into a file and returns the merged table. With two results for one problem the better one
    /// stays, as in [`merge`](Table::merge).
    ///
    /// # Errors
    ///
    /// [`TableError`]; a file that is none of ours is left as it is.
    pub fn save(&self, path: &Path) -> Result<Self, TableError> {
        let io = |reason| TableError::Io { path: path.to_owned(), reason };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let _lock = Lock::take(path)?;
        let mut all = match Self::read(path) {
            Ok(table) => table,
            Err(TableError::Io { reason, .. }) if reason.kind() == io::ErrorKind::NotFound => Self::new(),
            Err(error) => return Err(error),
        };
        all.merge(self);
        let mut builder = tempfile::Builder::new();
        builder.prefix("silumin-").suffix(".unfinished");
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644));
        let mut file = builder.tempfile_in(folder).map_err(io)?;
        // Whoever tidies the cache's folder up takes a file that nobody holds for a dead process's.
        let _ = file.as_file().try_lock();
        file.write_all(all.encode().as_bytes()).map_err(io)?;
        file.as_file().sync_all().map_err(io)?;
        file.persist(path).map_err(|error| io(error.error))?;
        all.damaged.clear();
        Ok(all)
    }

    /// Adds a result; returns whether it was better than an existing one or there was none.
    pub fn insert(&mut self, entry: TuningEntry) -> bool {
        match self.entries.get(&entry.key) {
            Some(known) if known.rank() >= entry.rank() => false,
            _ => {
                self.entries.insert(entry.key.clone(), entry);
                true
            }
        }
    }

    /// Adds a result and replaces an existing one, for a problem that was tuned again.
    pub fn replace(&mut self, entry: TuningEntry) {
        self.entries.insert(entry.key.clone(), entry);
    }

    /// Adds another table's results. The better of two for one problem, device, driver and user's knobs stays: measured
    /// before predicted, then settled before out of time, then more kernels, more turns and the lower time. Tables merge to
    /// the same in any order. Returns how many came or were replaced.
    pub fn merge(&mut self, other: &Table) -> usize {
        other.entries.values().filter(|entry| self.insert((*entry).clone())).count()
    }

    /// The result for a problem on a device, if any.
    #[must_use]
    pub fn find(&self, device: &Device, spec: &Spec, shape: Shape) -> Found<'_> {
        let key = TuningKey::of(device.facts(), spec, shape);
        let Some(entry) = self.entries.get(&key) else { return self.elsewhere(&key) };
        match self.configuration(entry, device, spec) {
            Some(config) => Found::Tuned(entry, config),
            None => Found::Stale(entry, Stale::Code),
        }
    }

    fn configuration(&self, entry: &TuningEntry, device: &Device, spec: &Spec) -> Option<Config> {
        let config = knobs(&entry.knobs, &spec.config).ok()?;
        let code = code_of(spec, config, entry.key.shape, device.arch()).ok()?;
        (code == entry.code).then_some(config)
    }

    fn elsewhere(&self, key: &TuningKey) -> Found<'_> {
        let mut others: Vec<_> = self
            .entries
            .values()
            .filter(|entry| entry.key.without_device() == key.without_device())
            .map(|entry| (entry, foreign(&entry.key.device, &key.device)))
            .collect();
        // That of the same device is the nearest.
        others.sort_by_key(|(_, stale)| !matches!(stale, Stale::Driver { .. }));
        others.into_iter().next().map_or(Found::Nothing, |(entry, stale)| Found::Stale(entry, stale))
    }

    /// Results of other devices and drivers, with the reasons. Results of other versions of the generator are found
    /// by [`find`](Table::find).
    #[must_use]
    pub fn stale(&self, device: &DeviceFacts) -> Vec<(&TuningEntry, Stale)> {
        let others = self.entries.values().filter(|entry| entry.key.device != *device);
        others.map(|entry| (entry, foreign(&entry.key.device, device))).collect()
    }

    /// All results, by problem.
    pub fn entries(&self) -> impl Iterator<Item = &TuningEntry> {
        self.entries.values()
    }

    /// Number of results.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no results.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Lines of the file that are not results.
    #[must_use]
    pub fn damaged(&self) -> &[Damaged] {
        &self.damaged
    }
}

fn foreign(found: &DeviceFacts, here: &DeviceFacts) -> Stale {
    let same = DeviceFacts { driver: here.driver.clone(), ..found.clone() } == *here;
    match same {
        true => Stale::Driver { found: found.driver.clone() },
        false => Stale::Device { found: found.clone() },
    }
}

/// A lock file beside the table's. The operating system holds the lock and releases it when its process ends; the
/// file's existence means nothing.
struct Lock(File);

impl Lock {
    fn take(path: &Path) -> Result<Self, TableError> {
        let mut name = path.as_os_str().to_owned();
        name.push(".lock");
        let beside = PathBuf::from(name);
        let io = |reason| TableError::Io { path: beside.clone(), reason };
        let file = regular_file::open_own(&beside, true).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidInput => TableError::Foreign { path: beside.clone() },
            _ => io(error),
        })?;
        let start = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Self(file)),
                Err(TryLockError::WouldBlock) if start.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err(TryLockError::WouldBlock) => return Err(TableError::Locked { path: path.to_owned() }),
                // A file system without locks: whoever writes last is whole, too.
                Err(TryLockError::Error(_)) => return Ok(Self(file)),
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
