//! A compiled kernel as bytes, on disk and in bundles.
//!
//! ```text
//! bytes   what (numbers are little-endian)
//! 0..8    89 53 4C 4D 4E 0D 0A 1A: no text file starts so, and a copy that changes line ends breaks it
//! 8..12   format version
//! 12..16  bytes of the facts, f
//! 16..24  bytes of the cubin, c
//! 24..56  key
//! 56..88  source's id
//! 88..    facts: six texts, each after its length (u32): target, compiler, version, options, kernel, log
//! 88+f..  the cubin
//! ..      blake3 over all before it
//! ```
//!
//! The reader accepts any bytes. It returns the entry that was written, or an error.

use thiserror::Error;

use super::compile::Identity;
use super::key::{Key, SourceId};

/// How entries start.
const MAGIC: [u8; 8] = *b"\x89SLMN\r\n\x1a";
/// The format version: the only one that is written and read.
pub(crate) const FORMAT: u32 = 1;
const HEAD: usize = 88;
const CHECKSUM: usize = 32;
/// Longest entry that is written or read; our cubins have a hundred kilobytes.
pub(crate) const MOST_BYTES: u64 = 64 << 20;
/// Bytes of a compiler's log that are kept.
const MOST_LOG: usize = 64 << 10;

/// A compiled kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key of the entry.
    pub key: Key,
    /// The part of the key that depends on the kernel alone.
    pub source: SourceId,
    /// The chip, for example `sm_100a`.
    pub target: String,
    /// What compiled it.
    pub compiler: Identity,
    /// The kernel's name, for messages.
    pub kernel: String,
    /// The compiler's log.
    pub log: String,
    /// The ELF image. It is empty if the driver is to compile the kernel when it loads it; the log says why.
    pub cubin: Vec<u8>,
}

/// Why bytes are not the expected entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EntryError {
    /// The bytes are not an entry.
    #[error("it is not a compiled kernel of silumin")]
    Foreign,
    /// Another version of silumin wrote the entry.
    #[error("it has format {found}, and this version reads {FORMAT}")]
    Version {
        /// Its version.
        found: u32,
    },
    /// A part is missing, or there are more bytes than the entry says.
    #[error("it has {found} bytes, and the entry has {expected}: it is cut off or torn")]
    Length {
        /// Bytes there are.
        found: u64,
        /// Expected length in bytes.
        expected: u64,
    },
    /// Bytes have changed.
    #[error("its checksum does not match its bytes: they were changed")]
    Checksum,
    /// The entry is valid, but its key is another one.
    #[error("it belongs to another kernel: a file was renamed")]
    OtherKey,
    /// The checksum is right, but the contents are not valid.
    #[error("its checksum is right, but its fields cannot be read: another program wrote this entry")]
    Facts,
    /// The path is a folder, a pipe or a device.
    #[error("it is not a file but a folder, a pipe or the like: move it away")]
    NoFile,
}

impl Entry {
    /// The entry as bytes; a log that is too long is cut.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut facts = Vec::new();
        let log = cut(&self.log, MOST_LOG);
        for text in self.facts(log) {
            facts.extend((text.len() as u32).to_le_bytes());
            facts.extend(text.as_bytes());
        }
        let mut bytes = Vec::with_capacity(HEAD + facts.len() + self.cubin.len() + CHECKSUM);
        bytes.extend(MAGIC);
        bytes.extend(FORMAT.to_le_bytes());
        bytes.extend((facts.len() as u32).to_le_bytes());
        bytes.extend((self.cubin.len() as u64).to_le_bytes());
        bytes.extend(self.key.0);
        bytes.extend(self.source.0);
        bytes.extend(facts);
        bytes.extend(&self.cubin);
        let checksum = blake3::hash(&bytes);
        bytes.extend(checksum.as_bytes());
        bytes
    }

    /// The text fields, in the order in which they are written.
    fn facts<'a>(&'a self, log: &'a str) -> [&'a str; 6] {
        let Identity { name, version, options } = &self.compiler;
        [&self.target, name, version, options, &self.kernel, log]
    }

    /// Reads what [`encode`](Entry::encode) wrote. If a key is given, the entry must have it.
    ///
    /// # Errors
    ///
    /// [`EntryError`] for all other bytes.
    pub fn decode(bytes: &[u8], key: Option<Key>) -> Result<Self, EntryError> {
        let mut head = Reader(bytes);
        if head.take::<8>() != Some(MAGIC) {
            return Err(EntryError::Foreign);
        }
        let cut_off = EntryError::Length { found: bytes.len() as u64, expected: (HEAD + CHECKSUM) as u64 };
        let version = head.u32().ok_or(cut_off)?;
        if version != FORMAT {
            return Err(EntryError::Version { found: version });
        }
        let fact_bytes = head.u32().ok_or(cut_off)?;
        let cubin_bytes = head.u64().ok_or(cut_off)?;
        let (Some(found_key), Some(source)) = (head.take(), head.take()) else { return Err(cut_off) };
        let expected = cubin_bytes.saturating_add(u64::from(fact_bytes) + (HEAD + CHECKSUM) as u64);
        if bytes.len() as u64 != expected {
            return Err(EntryError::Length { found: bytes.len() as u64, expected });
        }
        let (covered, checksum) = bytes.split_at(bytes.len() - CHECKSUM);
        if blake3::hash(covered) != *checksum {
            return Err(EntryError::Checksum);
        }
        if key.is_some_and(|key| key.0 != found_key) {
            return Err(EntryError::OtherKey);
        }
        // The lengths add up to the file's, so that both parts lie in it.
        let (facts, cubin) = covered[HEAD..].split_at(fact_bytes as usize);
        let mut facts = Reader(facts);
        let mut text = || facts.text().ok_or(EntryError::Facts);
        let (target, name, version, options) = (text()?, text()?, text()?, text()?);
        let (kernel, log) = (text()?, text()?);
        if !facts.0.is_empty() {
            return Err(EntryError::Facts);
        }
        Ok(Entry {
            key: Key(found_key),
            source: SourceId(source),
            target,
            compiler: Identity { name, version, options },
            kernel,
            log,
            cubin: cubin.to_vec(),
        })
    }
}

/// The start of `text`, at most `most` bytes, cut between characters.
fn cut(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Takes bytes from the front; `None` if there are too few.
pub(super) struct Reader<'a>(pub &'a [u8]);

impl Reader<'_> {
    pub fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Option<String> {
        let bytes = self.u32()? as usize;
        let (text, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        String::from_utf8(text.to_vec()).ok()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(in crate::cache) fn sample() -> Entry {
        Entry {
            key: Key([7; 32]),
            source: SourceId([9; 32]),
            target: "sm_100a".into(),
            compiler: Identity { name: "driver".into(), version: "580.159".into(), options: String::new() },
            kernel: "silumin_dual_gemm".into(),
            log: "ptxas info: 168 registers".into(),
            cubin: (0..200u8).collect(),
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let entry = sample();
        let bytes = entry.encode();
        assert_eq!(Entry::decode(&bytes, Some(entry.key)), Ok(entry.clone()));
        assert_eq!(Entry::decode(&bytes, None), Ok(entry.clone()));
        assert_eq!(Entry::decode(&bytes, Some(Key([8; 32]))), Err(EntryError::OtherKey));
        let long = Entry { log: "é".repeat(MOST_LOG), ..entry.clone() };
        assert_eq!(Entry::decode(&long.encode(), None).unwrap().log, "é".repeat(MOST_LOG / 2));
        let empty = Entry { cubin: Vec::new(), ..entry };
        assert_eq!(Entry::decode(&empty.encode(), None), Ok(empty));
    }

    #[test]
    fn every_bit_counts() {
        let entry = sample();
        let mut bytes = entry.encode();
        for bit in 0..8 * bytes.len() {
            bytes[bit / 8] ^= 1 << (bit % 8);
            let found = Entry::decode(&bytes, Some(entry.key));
            let right = match bit / 8 {
                0..8 => matches!(found, Err(EntryError::Foreign)),
                8..12 => matches!(found, Err(EntryError::Version { .. })),
                12..24 => matches!(found, Err(EntryError::Length { .. })),
                _ => matches!(found, Err(EntryError::Checksum)),
            };
            assert!(right, "bit {bit}: {found:?}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(Entry::decode(&bytes, Some(entry.key)), Ok(entry));
    }

    #[test]
    fn every_other_length_is_refused() {
        let bytes = sample().encode();
        for length in 0..bytes.len() {
            let found = Entry::decode(&bytes[..length], None).unwrap_err();
            let expected = if length < 8 {
                found == EntryError::Foreign
            } else {
                matches!(found, EntryError::Length { .. })
            };
            assert!(expected, "{length}: {found:?}");
        }
        for more in [1, 32, 4096] {
            let longer = [bytes.clone(), vec![0; more]].concat();
            assert!(matches!(Entry::decode(&longer, None), Err(EntryError::Length { .. })));
        }
    }

    /// With a checksum that fits, as only somebody who means it can make it.
    fn resealed(mut bytes: Vec<u8>) -> Vec<u8> {
        let covered = bytes.len() - CHECKSUM;
        let checksum = blake3::hash(&bytes[..covered]);
        bytes[covered..].copy_from_slice(checksum.as_bytes());
        bytes
    }

    #[test]
    fn facts_that_do_not_add_up_are_refused_under_any_checksum() {
        let bytes = sample().encode();
        for place in HEAD..HEAD + 4 {
            let mut changed = bytes.clone();
            changed[place] ^= 0xff;
            assert_eq!(Entry::decode(&resealed(changed), None), Err(EntryError::Facts));
        }
        let mut no_text = bytes;
        no_text[HEAD + 4] = 0xff;
        assert_eq!(Entry::decode(&resealed(no_text), None), Err(EntryError::Facts));
    }

    fn entries() -> impl Strategy<Value = Entry> {
        let text = || ".{0,40}";
        let bytes = proptest::collection::vec(any::<u8>(), 1..300);
        (any::<[u8; 32]>(), any::<[u8; 32]>(), (text(), text(), text(), text(), text(), text()), bytes)
            .prop_map(|(key, source, (target, name, version, options, kernel, log), cubin)| Entry {
                key: Key(key),
                source: SourceId(source),
                target,
                compiler: Identity { name, version, options },
                kernel,
                log,
                cubin,
            })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_entry_comes_back(entry in entries()) {
            prop_assert_eq!(Entry::decode(&entry.encode(), Some(entry.key)), Ok(entry));
        }

        /// Any bytes, with or without a beginning that looks right and a checksum that fits.
        #[test]
        fn any_bytes_are_an_entry_or_an_error(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..400), head in 0..4usize, seal in any::<bool>(),
        ) {
            let start = [&MAGIC[..], &FORMAT.to_le_bytes()[..]].concat();
            let fixed = match head { 0 => 0, 1 => 8, _ => 12 };
            for (byte, right) in bytes.iter_mut().zip(&start[..fixed]) {
                *byte = *right;
            }
            if head == 3 && bytes.len() >= HEAD + CHECKSUM {
                // Lengths that fit the bytes there are.
                let rest = bytes.len() - HEAD - CHECKSUM;
                let facts = rest.min(usize::from(bytes[12]));
                bytes[12..16].copy_from_slice(&(facts as u32).to_le_bytes());
                bytes[16..24].copy_from_slice(&((rest - facts) as u64).to_le_bytes());
            }
            if seal && bytes.len() >= CHECKSUM {
                bytes = resealed(bytes);
            }
            if let Ok(entry) = Entry::decode(&bytes, None) {
                prop_assert_eq!(entry.encode(), bytes);
            }
        }

        /// A whole entry with bytes changed, cut out or put in is no entry.
        #[test]
        fn a_changed_entry_is_none(entry in entries(), place in any::<prop::sample::Index>(), byte in any::<u8>(), how in 0..3) {
            let mut bytes = entry.encode();
            let place = place.index(bytes.len());
            match how {
                0 if bytes[place] == byte => return Ok(()),
                0 => bytes[place] = byte,
                1 => bytes.insert(place, byte),
                _ => drop(bytes.remove(place)),
            }
            prop_assert!(Entry::decode(&bytes, None).is_err());
        }
    }
}
