//! Warnings of the cache, each emitted once.

use std::collections::HashSet;
use std::fmt;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use super::entry::EntryError;

/// A problem that makes the cache less useful. The kernels are right all the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Warning {
    /// Nothing can be kept on disk: the folder cannot be created or written to, or the disk is full.
    Off {
        /// The folder.
        folder: PathBuf,
        /// The system's error.
        reason: String,
    },
    /// The folder is not used: other users could put code into it.
    Untrusted {
        /// The folder.
        folder: PathBuf,
        /// Which user or group can write to it.
        reason: String,
    },
    /// A kernel cannot be stored.
    NotKept {
        /// Its place.
        path: PathBuf,
        /// The system's error.
        reason: String,
    },
    /// A file is damaged. Its kernel is compiled again and the file replaced.
    Damaged {
        /// The file.
        path: PathBuf,
        /// The error.
        reason: String,
    },
    /// Some kernels are left to the driver, and its own cache is off, so they are compiled at every start.
    DriverCacheOff,
    /// Some or all tuning results are not used.
    Tuning {
        /// The file.
        path: PathBuf,
        /// The error.
        reason: String,
    },
    /// The driver refuses an undamaged cubin. Its kernel is compiled again.
    Rejected {
        /// The kernel's name.
        kernel: String,
        /// The driver's words.
        reason: String,
    },
}

impl Warning {
    pub(super) fn damaged(path: PathBuf, error: EntryError) -> Self {
        Warning::Damaged { path, reason: error.to_string() }
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Warning::Off { folder, reason } => write!(
                f,
                "compiled kernels are not kept, and every start compiles them again: {}: {reason}; set \
                 SILUMIN_CACHE_DIR to a folder that can be written to",
                folder.display()
            ),
            Warning::Untrusted { folder, reason } => write!(
                f,
                "compiled kernels are neither read from {0} nor kept there: {reason}, and whoever can write to it decides what \
                 the GPU runs; make it your own (chown, chmod go-w {0}), set SILUMIN_CACHE_DIR to another folder, or, where \
                 those others are trusted, open it with CacheOptions::shared(true)",
                folder.display()
            ),
            Warning::NotKept { path, reason } => {
                write!(f, "a compiled kernel is not kept: {}: {reason}", path.display())
            }
            Warning::Damaged { path, reason } => {
                write!(f, "{} is compiled anew: {reason}", path.display())
            }
            Warning::DriverCacheOff => f.write_str(
                "some kernels are compiled at every start: the driver's linker would make slower code of them, and the \
                 driver's own cache is off; unset CUDA_CACHE_DISABLE, compile with ptxas, or ship a bundle",
            ),
            Warning::Tuning { path, reason } => {
                write!(f, "kernels are made without results of tuning, all or some: {}: {reason}", path.display())
            }
            Warning::Rejected { kernel, reason } => {
                write!(f, "`{kernel}` is compiled anew, for the driver does not take the cubin: {reason}")
            }
        }
    }
}

/// Where warnings go.
pub type Sink = Arc<dyn Fn(&Warning) + Send + Sync>;

/// Emits each warning once.
pub(super) struct Reporter {
    sink: Sink,
    told: Mutex<HashSet<Warning>>,
}

/// Warnings that are remembered.
const MOST: usize = 1000;

impl Reporter {
    pub fn new(sink: Option<Sink>) -> Self {
        let sink = sink.unwrap_or_else(|| {
            Arc::new(|warning| {
                // Where standard error is gone, there is nobody to tell.
                let _ = writeln!(std::io::stderr(), "silumin: {warning}");
            })
        });
        Self { sink, told: Mutex::default() }
    }

    pub fn tell(&self, warning: Warning) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() < MOST && told.insert(warning.clone()) {
            drop(told);
            (self.sink)(&warning);
        }
    }
}
