//! Bundles: compiled kernels in one file, to be shipped with a model.
//!
//! ```text
//! bytes   what (numbers are little-endian)
//! 0..8    89 53 4C 4D 42 0D 0A 1A
//! 8..12   format version
//! 12..16  entries, n
//! 16..    for each the length of its bytes (u64), then blake3 over all so far
//! ..      the entries, one after the other, each with a checksum of its own
//! ```

use std::collections::HashMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;

use super::entry::{Entry, EntryError, FORMAT, Reader};
use super::key::SourceId;
use crate::regular_file::{self, ReadError};

const MAGIC: [u8; 8] = *b"\x89SLMB\r\n\x1a";
const HEAD: usize = 16;
const CHECKSUM: usize = 32;
/// Longest bundle that is read, in bytes: ten thousand kernels.
pub const BUNDLE_LIMIT: u64 = 1 << 30;

/// Why a file is not a valid bundle.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BundleError {
    /// The operating system reported an error.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The table of entries is invalid.
    #[error("the bundle is not valid: {0}; export it again")]
    Table(EntryError),
    /// An entry is invalid.
    #[error("entry {index} of the bundle is not valid: {reason}; export it again")]
    Entry {
        /// Counted from 0.
        index: usize,
        /// The error.
        reason: EntryError,
    },
    /// The file is not read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The file is not the bundle that the program expects.
    #[error(
        "the bundle's blake3 hash is {found}, and {expected} is trusted: this is another file, or it was changed"
    )]
    Untrusted {
        /// The expected hash, in hexadecimal.
        expected: String,
        /// The bytes' own.
        found: String,
    },
    /// A text is not a blake3 hash.
    #[error(
        "`{text}` is not a blake3 hash: give 64 hexadecimal digits, as `b3sum` and `silumin-cache export` print them"
    )]
    NoHash {
        /// The start of the text.
        text: String,
    },
    /// Nothing to ship.
    #[error("there is nothing to export: warm up first, or name another folder or target")]
    Empty,
}

/// Compiled kernels by their PTX and target, whatever compiled them.
///
/// A bundle's cubins are for exactly their chip. They run with the driver that made them and with newer ones. If a
/// driver refuses one, it is compiled again if that is allowed.
#[derive(Clone, Debug, Default)]
pub struct Bundle {
    entries: HashMap<SourceId, Arc<Entry>>,
}

impl Bundle {
    /// A bundle of entries. If several have the same PTX and target, the last one counts. Entries without a cubin are
    /// left out.
    #[must_use]
    pub fn new(entries: impl IntoIterator<Item = Entry>) -> Self {
        let entries = entries.into_iter().filter(|entry| !entry.cubin.is_empty());
        Self { entries: entries.map(|entry| (entry.source, Arc::new(entry))).collect() }
    }

    /// Reads a file of at most [`BUNDLE_LIMIT`] bytes. Its machine code runs on the GPU; if others could change the
    /// file, use [`open_trusted`](Bundle::open_trusted).
    ///
    /// # Errors
    ///
    /// [`BundleError`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, BundleError> {
        Self::from_bytes(&regular_file::read(path.as_ref(), BUNDLE_LIMIT)?)
    }

    /// Reads a file whose hash the program knows; any other file is refused before its content is read. The hash is
    /// blake3 over the whole file, 64 hexadecimal digits; `silumin-cache export` and `b3sum` print it.
    ///
    /// # Errors
    ///
    /// [`BundleError::Untrusted`] for another file, [`BundleError`] as for [`open`](Bundle::open).
    pub fn open_trusted(path: impl AsRef<Path>, hash: &str) -> Result<Self, BundleError> {
        let expected = blake3::Hash::from_hex(hash)
            .map_err(|_| BundleError::NoHash { text: hash.chars().take(80).collect() })?;
        let bytes = regular_file::read(path.as_ref(), BUNDLE_LIMIT)?;
        let found = blake3::hash(&bytes);
        if found != expected {
            let [expected, found] = [expected, found].map(|hash| hash.to_string());
            return Err(BundleError::Untrusted { expected, found });
        }
        Self::from_bytes(&bytes)
    }

    /// The hash for [`open_trusted`](Bundle::open_trusted): blake3 over the bytes that [`save`](Bundle::save) writes,
    /// in hexadecimal.
    #[must_use]
    pub fn hash(&self) -> String {
        blake3::hash(&self.to_bytes()).to_string()
    }

    /// Reads a bundle from memory, for example from `include_bytes!`.
    ///
    /// # Errors
    ///
    /// [`BundleError`] for anything that [`to_bytes`](Bundle::to_bytes) did not write.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, BundleError> {
        let length =
            |expected: u64| BundleError::Table(EntryError::Length { found: bytes.len() as u64, expected });
        let mut reader = Reader(bytes);
        if reader.take() != Some(MAGIC) {
            return Err(BundleError::Table(EntryError::Foreign));
        }
        let least = (HEAD + CHECKSUM) as u64;
        let version = reader.u32().ok_or_else(|| length(least))?;
        if version != FORMAT {
            return Err(BundleError::Table(EntryError::Version { found: version }));
        }
        let count = reader.u32().ok_or_else(|| length(least))? as usize;
        // The table's length in u64, for `count` is any number yet.
        let table = HEAD as u64 + 8 * count as u64;
        if (bytes.len() as u64) < table + CHECKSUM as u64 {
            return Err(length(table + CHECKSUM as u64));
        }
        let (head, rest) = bytes.split_at(table as usize);
        let (checksum, mut rest) = rest.split_at(CHECKSUM);
        if blake3::hash(head).as_bytes() != checksum {
            return Err(BundleError::Table(EntryError::Checksum));
        }
        let mut entries = HashMap::with_capacity(count);
        for index in 0..count {
            let bad = |reason| BundleError::Entry { index, reason };
            let found = rest.len() as u64;
            let wanted = reader.u64().unwrap_or(u64::MAX);
            let cut_off = || bad(EntryError::Length { found, expected: wanted });
            let split = usize::try_from(wanted).ok().and_then(|wanted| rest.split_at_checked(wanted));
            let (entry, others) = split.ok_or_else(cut_off)?;
            let entry = Entry::decode(entry, None).map_err(bad)?;
            if entry.cubin.is_empty() {
                return Err(bad(EntryError::Facts));
            }
            entries.insert(entry.source, Arc::new(entry));
            rest = others;
        }
        if !rest.is_empty() {
            return Err(length((bytes.len() - rest.len()) as u64));
        }
        Ok(Self { entries })
    }

    /// The bundle as bytes; equal entries give equal bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut sorted: Vec<_> = self.entries.values().collect();
        sorted.sort_by_key(|entry| entry.source);
        let encoded: Vec<Vec<u8>> = sorted.into_iter().map(|entry| entry.encode()).collect();
        let mut bytes = MAGIC.to_vec();
        bytes.extend(FORMAT.to_le_bytes());
        bytes.extend((encoded.len() as u32).to_le_bytes());
        for entry in &encoded {
            bytes.extend((entry.len() as u64).to_le_bytes());
        }
        let checksum = blake3::hash(&bytes);
        bytes.extend(checksum.as_bytes());
        bytes.extend(encoded.concat());
        bytes
    }

    /// Writes a file atomically.
    ///
    /// # Errors
    ///
    /// [`BundleError::Io`], [`BundleError::Empty`].
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), BundleError> {
        if self.is_empty() {
            return Err(BundleError::Empty);
        }
        let path = path.as_ref();
        let write = || {
            let folder =
                path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            // The system's words alone: those of a temporary file add its name.
            std::fs::metadata(folder)?;
            let mut builder = tempfile::Builder::new();
            #[cfg(unix)]
            builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644));
            let mut file = builder.tempfile_in(folder)?;
            file.write_all(&self.to_bytes())?;
            file.as_file().sync_all()?;
            file.persist(path).map(drop).map_err(|error| error.error)
        };
        write().map_err(|source| BundleError::Io { path: path.to_owned(), source })
    }

    /// The entry for a PTX text and target.
    #[must_use]
    pub fn get(&self, source: SourceId) -> Option<&Arc<Entry>> {
        self.entries.get(&source)
    }

    /// All entries, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.entries.values()
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::tests::sample;
    use super::*;
    use proptest::prelude::*;

    fn pair() -> Bundle {
        Bundle::new([sample(), Entry { source: SourceId([3; 32]), kernel: "other".into(), ..sample() }])
    }

    #[test]
    fn what_is_written_is_read() {
        let bundle = pair();
        let bytes = bundle.to_bytes();
        assert_eq!(pair().to_bytes(), bytes);
        let read = Bundle::from_bytes(&bytes).unwrap();
        assert_eq!(read.len(), 2);
        assert_eq!(read.get(SourceId([3; 32])).unwrap().kernel, "other");
        assert_eq!(**read.get(sample().source).unwrap(), sample());
        assert!(read.get(SourceId([4; 32])).is_none());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bundle");
        bundle.save(&path).unwrap();
        assert_eq!(Bundle::open(&path).unwrap().to_bytes(), bytes);
        assert!(matches!(Bundle::default().save(&path), Err(BundleError::Empty)));
        let missing = Bundle::open(folder.path().join("none")).unwrap_err().to_string();
        assert!(missing.contains("none"), "{missing}");
    }

    #[test]
    fn a_trusted_bundle_is_the_one_that_was_hashed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bundle");
        let bundle = pair();
        bundle.save(&path).unwrap();
        let hash = bundle.hash();
        assert_eq!(Bundle::open_trusted(&path, &hash).unwrap().to_bytes(), bundle.to_bytes());
        // Somebody else's bundle is a good one, checksums and all.
        let other = Bundle::new([Entry { cubin: vec![1; 64], ..sample() }]);
        other.save(&path).unwrap();
        Bundle::open(&path).unwrap();
        let error = Bundle::open_trusted(&path, &hash).unwrap_err();
        let BundleError::Untrusted { expected, found } = &error else { panic!("{error}") };
        assert_eq!((expected, found), (&hash, &other.hash()));
        for no_hash in ["", "abc", &hash[1..], &format!("{hash}0"), "é", &"z".repeat(1000)] {
            let error = Bundle::open_trusted(&path, no_hash).unwrap_err();
            assert!(matches!(error, BundleError::NoHash { .. }) && error.to_string().len() < 300, "{error}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn only_regular_files_of_a_sane_length_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let (pipe, long) = (folder.path().join("pipe"), folder.path().join("long"));
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        std::fs::File::create(&long).unwrap().set_len(10 << 30).unwrap();
        let cases = [
            (&*pipe, "a pipe"),
            (Path::new("/dev/zero"), "a device"),
            (folder.path(), "a directory"),
            (&long, "bytes"),
        ];
        for (path, what) in cases {
            for error in
                [Bundle::open(path).unwrap_err(), Bundle::open_trusted(path, &"0".repeat(64)).unwrap_err()]
            {
                let text = error.to_string();
                assert!(text.contains(what) && text.contains("1073741824"), "{text}");
            }
        }
    }

    #[test]
    fn every_byte_counts_and_every_length() {
        let bytes = pair().to_bytes();
        for place in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[place] ^= 0x10;
            assert!(Bundle::from_bytes(&changed).is_err(), "byte {place}");
            assert!(Bundle::from_bytes(&bytes[..place]).is_err(), "length {place}");
        }
        assert!(Bundle::from_bytes(&[bytes, vec![0]].concat()).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_bytes_are_a_bundle_or_an_error(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..300), count in any::<u32>(), head in any::<bool>(),
        ) {
            if head && bytes.len() >= HEAD {
                bytes[..8].copy_from_slice(&MAGIC);
                bytes[8..12].copy_from_slice(&FORMAT.to_le_bytes());
                bytes[12..16].copy_from_slice(&(count >> (count % 32)).to_le_bytes());
            }
            prop_assert!(Bundle::from_bytes(&bytes).is_err());
        }
    }
}
