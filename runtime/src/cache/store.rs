//! The cache's folder: one file per kernel, named by its key.
//!
//! An entry is written under another name, flushed and renamed, so a reader sees all of it or nothing, whenever the
//! writer dies. Nothing but the entry itself depends on a file's existence, and times only decide what is evicted
//! first. The operating system holds locks and releases them when their process ends.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use super::entry::{Entry, EntryError, MOST_BYTES};
use super::key::Key;
use crate::regular_file;

/// Suffix of entry files.
const SUFFIX: &str = ".cubin.slmn";
/// Prefix and suffix of files that are being written.
const WRITING: &str = "silumin-";
const UNFINISHED: &str = ".unfinished";
const LOCK: &str = ".lock";
/// Interval at which a waiting process looks again.
const POLL: Duration = Duration::from_millis(2);

/// Why an entry could not be read.
#[derive(Debug)]
pub(super) enum ReadError {
    /// It is damaged.
    Damaged(EntryError),
    /// The operating system reported an error.
    Io(io::Error),
}

/// An entry file of the folder.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Found {
    /// Where it is.
    pub path: PathBuf,
    /// The key in its name.
    pub key: Key,
    /// Its length.
    pub bytes: u64,
    /// Time of its last use, as far as the clock was right.
    pub used: SystemTime,
}

#[derive(Debug)]
pub(super) struct Store {
    folder: PathBuf,
}

/// Held while a process compiles a kernel that others wait for.
pub(super) struct KeyLock {
    path: PathBuf,
    file: File,
}

impl Drop for KeyLock {
    fn drop(&mut self) {
        // Removed first: a process that has it open already gets the lock, looks for the entry, and finds it.
        let _ = fs::remove_file(&self.path);
        let _ = self.file.unlock();
    }
}

impl Store {
    pub fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn path(&self, key: Key) -> PathBuf {
        self.folder.join(format!("{key}{SUFFIX}"))
    }

    /// Creates the folder, for its owner alone.
    pub fn create(&self) -> io::Result<()> {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(&self.folder)
    }

    /// Why other users can put code into the folder, or `None`.
    #[cfg(unix)]
    pub fn writable_by_others(&self) -> io::Result<Option<String>> {
        use std::os::unix::fs::MetadataExt;
        let facts = fs::metadata(&self.folder)?;
        let (owner, own) = (facts.uid(), rustix::process::geteuid().as_raw());
        Ok(match facts.mode() & 0o022 {
            _ if owner != own && owner != 0 => Some(format!("user {owner} owns it, and this is user {own}")),
            0 => None,
            _ => Some(format!("its mode is {:03o}: others can write to it", facts.mode() & 0o777)),
        })
    }

    /// Outside Unix access is not checked.
    #[cfg(not(unix))]
    pub fn writable_by_others(&self) -> io::Result<Option<String>> {
        Ok(None)
    }

    /// The entry of a key, if there is one.
    pub fn read(&self, key: Key) -> Result<Option<Entry>, ReadError> {
        match read_file(&self.path(key)) {
            Ok(bytes) => Entry::decode(&bytes, Some(key)).map(Some).map_err(ReadError::Damaged),
            Err(ReadError::Io(error)) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Records the use of an entry, if the folder is writable.
    pub fn touch(&self, key: Key) {
        // On most systems times can be set through a file that is open for writing only.
        if let Ok(file) = regular_file::open_own(&self.path(key), false) {
            let _ = file.set_modified(SystemTime::now());
        }
    }

    /// Writes an entry atomically.
    pub fn write(&self, entry: &Entry) -> io::Result<()> {
        let bytes = entry.encode();
        if bytes.len() as u64 > MOST_BYTES {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{} bytes, and at most {MOST_BYTES} are kept", bytes.len()),
            ));
        }
        match self.write_bytes(entry.key, &bytes) {
            // Somebody who tidied up took the file for a dead process's, in the moment before it was locked.
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.write_bytes(entry.key, &bytes),
            other => other,
        }
    }

    fn write_bytes(&self, key: Key, bytes: &[u8]) -> io::Result<()> {
        let mut builder = tempfile::Builder::new();
        builder.prefix(WRITING).suffix(UNFINISHED);
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644));
        let mut file = builder.tempfile_in(&self.folder)?;
        // The lock tells those who tidy up that somebody is writing; without locks they go by nothing else.
        let _ = file.as_file().try_lock();
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        let path = self.path(key);
        match file.persist(&path) {
            Ok(_) => Ok(()),
            // An empty folder in the entry's place goes; one with anything in it is not ours to delete.
            Err(error) if path.is_dir() && fs::remove_dir(&path).is_ok() => {
                error.file.persist(&path).map(drop).map_err(|error| error.error)
            }
            Err(error) => Err(error.error),
        }
    }

    pub fn remove(&self, key: Key) -> io::Result<()> {
        fs::remove_file(self.path(key))
    }

    /// Waits up to `patience` until no other process compiles the same kernel; a stopped process blocks no other.
    /// Without the lock the caller continues, and at worst two processes do the same work.
    pub fn lock(&self, key: Key, patience: Duration) -> Option<KeyLock> {
        let path = self.folder.join(format!("{key}{LOCK}"));
        let start = Instant::now();
        loop {
            let file = regular_file::open_own(&path, true).ok()?;
            loop {
                match file.try_lock() {
                    Ok(()) => break,
                    Err(TryLockError::WouldBlock) if start.elapsed() < patience => std::thread::sleep(POLL),
                    Err(_) => return None,
                }
            }
            // Whoever had it before has removed the file's name, and the next one would lock another.
            if is_named(&file, &path) {
                return Some(KeyLock { path, file });
            }
        }
    }

    /// All entries, least recently used first. Other files are ignored.
    pub fn list(&self) -> io::Result<Vec<Found>> {
        let mut found = Vec::new();
        for item in fs::read_dir(&self.folder)? {
            let item = item?;
            let name = item.file_name();
            let key =
                name.to_str().and_then(|name| name.strip_suffix(SUFFIX)).and_then(|key| key.parse().ok());
            // One that is gone meanwhile was evicted by somebody else.
            let (Some(key), Ok(facts)) = (key, item.metadata()) else { continue };
            if facts.is_file() {
                let used = facts.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                found.push(Found { path: item.path(), key, bytes: facts.len(), used });
            }
        }
        found.sort_by_key(|found| (found.used, found.key));
        Ok(found)
    }

    /// Removes files of dead processes: partial entries, and locks that no process holds.
    pub fn tidy(&self) -> io::Result<()> {
        for item in fs::read_dir(&self.folder)? {
            let path = item?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let ours = name.starts_with(WRITING) && name.ends_with(UNFINISHED)
                || name.strip_suffix(LOCK).is_some_and(|key| key.parse::<Key>().is_ok());
            if ours
                && let Ok(file) = regular_file::open_own(&path, false)
                && file.try_lock().is_ok()
            {
                let _ = fs::remove_file(&path);
            }
        }
        Ok(())
    }

    /// Removes the least recently used entries until the rest has at most `limit` bytes, but never `keep`. Returns
    /// the number of removed entries.
    pub fn evict(&self, limit: u64, keep: Option<Key>) -> io::Result<u64> {
        let mut found = self.list()?;
        let total: u64 = found.iter().map(|found| found.bytes).sum();
        if total <= limit {
            return Ok(0);
        }
        restamp(&mut found, SystemTime::now());
        let (mut left, mut gone) = (total, 0);
        for entry in found {
            if left <= limit {
                break;
            }
            if Some(entry.key) == keep {
                continue;
            }
            match fs::remove_file(&entry.path) {
                Ok(()) => gone += 1,
                // Another process had the same thought.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(_) => continue,
            }
            left -= entry.bytes;
        }
        Ok(gone)
    }
}

/// Whether an open file is still the one at `path`.
fn is_named(file: &File, path: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let identity = |facts: fs::Metadata| (facts.dev(), facts.ino());
        match (file.metadata(), fs::metadata(path)) {
            (Ok(open), Ok(named)) => identity(open) == identity(named),
            // Without its name it is not; without facts there is nothing better to be had.
            (Ok(_), Err(error)) => error.kind() != io::ErrorKind::NotFound,
            (Err(_), _) => true,
        }
    }
    #[cfg(not(unix))]
    {
        // A file that is open keeps its name.
        let _ = (file, path);
        true
    }
}

/// Sets entries with times in the future to now, in their order; after a clock was set back they would outlive all
/// others.
fn restamp(found: &mut [Found], now: SystemTime) {
    let future = found.iter().filter(|found| found.used > now).count() as u32;
    if future == 0 {
        return;
    }
    let mut step = future;
    for entry in found.iter_mut().filter(|found| found.used > now) {
        entry.used = now.checked_sub(Duration::from_millis(step.into())).unwrap_or(now);
        step -= 1;
        if let Ok(file) = regular_file::open_own(&entry.path, false) {
            let _ = file.set_modified(entry.used);
        }
    }
    found.sort_by_key(|found| (found.used, found.key));
}

/// Reads a regular file that is not too long.
pub(super) fn read_file(path: &Path) -> Result<Vec<u8>, ReadError> {
    regular_file::read(path, MOST_BYTES).map_err(|error| match error {
        regular_file::ReadError::Io { source, .. } => ReadError::Io(source),
        regular_file::ReadError::TooLong { found, limit, .. } => {
            ReadError::Damaged(EntryError::Length { found, expected: limit })
        }
        regular_file::ReadError::NotRegular { .. } | regular_file::ReadError::NotText { .. } => {
            ReadError::Damaged(EntryError::NoFile)
        }
    })
}
