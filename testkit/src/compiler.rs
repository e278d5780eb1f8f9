//! A compiler for tests of the cache. Its cubins are derived from the text, and it counts its calls in a file, across
//! processes.

use silumin::Arch;
use silumin::runtime::cache::{Compiled, Compiler, Identity, ModuleError, Source};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A compiler that counts its calls.
pub struct Counting {
    /// The identity that it reports.
    pub identity: Identity,
    /// A file with one byte for each call.
    pub calls: PathBuf,
    /// Duration of a call.
    pub takes: Duration,
    /// Bytes of a cubin.
    pub bytes: usize,
}

impl Counting {
    /// A compiler that counts its calls in a file beside `folder`.
    pub fn new(folder: &Path) -> Self {
        let identity = Identity { name: "test".into(), version: "1".into(), options: String::new() };
        Self { identity, calls: folder.with_extension("calls"), takes: Duration::ZERO, bytes: 64 }
    }

    /// Calls so far, in all processes.
    pub fn calls(&self) -> u64 {
        self.calls.metadata().map_or(0, |facts| facts.len())
    }

    /// The cubin for a text.
    pub fn cubin(&self, ptx: &str) -> Vec<u8> {
        ptx.bytes()
            .cycle()
            .zip(0u8..=255)
            .map(|(byte, place)| byte ^ place)
            .cycle()
            .take(self.bytes)
            .collect()
    }
}

impl Compiler for Counting {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn compile(&self, source: &Source<'_>) -> Result<Compiled, ModuleError> {
        let mut calls = File::options().create(true).append(true).open(&self.calls).unwrap();
        calls.write_all(b".").unwrap();
        std::thread::sleep(self.takes);
        Ok(Compiled { cubin: self.cubin(source.ptx), log: "compiled".into() })
    }
}

/// A text with one kernel, as a source.
pub fn source<'a>(ptx: &'a str) -> Source<'a> {
    Source { name: "kernel", ptx, arch: Arch::Sm100a, ptx_version: (8, 6) }
}
