//! Memory of the emulated device: host bytes with a record of the written ones, so reads of unwritten bytes are
//! noticed.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One allocation.
pub(crate) struct HostMemory {
    contents: Mutex<Contents>,
}

struct Contents {
    bytes: Vec<u8>,
    /// Written ranges: ascending, disjoint, not empty.
    written: Vec<Range<usize>>,
}

impl HostMemory {
    /// `len` unwritten bytes; `None` if the host has not enough memory.
    pub(super) fn uninitialised(len: usize) -> Option<Self> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).ok()?;
        bytes.resize(len, 0);
        Some(Self { contents: Mutex::new(Contents { bytes, written: Vec::new() }) })
    }

    /// A copy of `data`; `None` if the host has not enough memory.
    pub(super) fn of(data: &[u8]) -> Option<Self> {
        let memory = Self::uninitialised(data.len())?;
        memory.write(0, data);
        Some(memory)
    }

    fn contents(&self) -> MutexGuard<'_, Contents> {
        // Nothing below panics while it holds the lock.
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes `data` at `offset`; the range is inside the memory.
    pub(super) fn write(&self, offset: usize, data: &[u8]) {
        let mut contents = self.contents();
        contents.bytes[offset..offset + data.len()].copy_from_slice(data);
        contents.mark(offset..offset + data.len());
    }

    /// Calls a function for each written piece of a range, with its distance from `offset`.
    pub(super) fn for_written(&self, offset: usize, len: usize, mut f: impl FnMut(usize, &[u8])) {
        let contents = self.contents();
        for range in &contents.written {
            let piece = range.start.max(offset)..range.end.min(offset + len);
            if !piece.is_empty() {
                f(piece.start - offset, &contents.bytes[piece]);
            }
        }
    }

    /// Whether all written bytes of the range at `offset` equal `bytes`.
    pub(super) fn holds(&self, offset: usize, bytes: &[u8]) -> bool {
        let mut same = true;
        self.for_written(offset, bytes.len(), |at, piece| same &= bytes[at..at + piece.len()] == *piece);
        same
    }

    /// The bytes of a range.
    ///
    /// # Errors
    ///
    /// The first byte that nothing wrote, counted from `offset`.
    pub(super) fn read(&self, offset: usize, len: usize) -> Result<Vec<u8>, usize> {
        let contents = self.contents();
        let end = offset + len;
        let covering = contents.written.iter().find(|range| range.contains(&offset));
        match covering {
            Some(range) if range.end >= end => Ok(contents.bytes[offset..end].to_vec()),
            Some(range) => Err(range.end - offset),
            None => Err(0),
        }
    }
}

impl Contents {
    fn mark(&mut self, mut range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        // Those that overlap or touch it become one with it.
        let first = self.written.partition_point(|other| other.end < range.start);
        let last = self.written.partition_point(|other| other.start <= range.end);
        if let Some(others) = self.written.get(first..last)
            && let (Some(start), Some(end)) = (others.first(), others.last())
        {
            range = range.start.min(start.start)..range.end.max(end.end);
        }
        self.written.splice(first..last, [range]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_record_of_writes_agrees_with_one_flag_a_byte(
            writes in prop::collection::vec((0usize..40, 0usize..12), 0..12),
            (offset, len) in (0usize..40, 0usize..12),
        ) {
            let memory = HostMemory::uninitialised(52).unwrap();
            let mut flags = [false; 52];
            for (number, &(offset, len)) in writes.iter().enumerate() {
                memory.write(offset, &vec![number as u8; len]);
                flags[offset..offset + len].fill(true);
            }
            let written = memory.contents().written.clone();
            prop_assert!(written.windows(2).all(|pair| pair[0].end < pair[1].start));
            let marked: usize = written.iter().map(Range::len).sum();
            prop_assert_eq!(marked, flags.iter().filter(|flag| **flag).count());
            let expected = flags[offset..offset + len].iter().position(|flag| !flag);
            if len > 0 {
                prop_assert_eq!(memory.read(offset, len).err(), expected);
            }
            let (mut seen, mut copy) = ([false; 12], [0xFFu8; 12]);
            memory.for_written(offset, len, |at, piece| {
                seen[at..at + piece.len()].fill(true);
                copy[at..at + piece.len()].copy_from_slice(piece);
            });
            prop_assert_eq!(&seen[..len], &flags[offset..offset + len]);
            prop_assert!(memory.holds(offset, &copy[..len]));
            if let Some(first) = seen.iter().position(|seen| *seen) {
                copy[first] ^= 1;
                prop_assert!(!memory.holds(offset, &copy[..len]));
            }
        }
    }
}
