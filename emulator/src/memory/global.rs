//! Global memory: buffers at made-up 64-bit addresses, shared by all threads of the host.
//!
//! Words are atomics with relaxed ordering: kernels may race, and a race must stay a wrong value,
//! never undefined behaviour of the emulator. A write of part of a word is a compare-and-swap.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use zerocopy::FromZeros;

/// Address of the first buffer of `GlobalMemory::new`.
pub(crate) const USER_BASE: u64 = 0x1000_0000_0000;
/// The first buffers are far apart, however small they are, so an access past the end of one reaches no other.
const FAR: Arena = Arena { first: 0, count: 768, spacing: 1 << 34 };
/// Later buffers are as far apart as the remaining addresses allow.
const NEAR: Arena = Arena { first: FAR.count, count: 1 << 15, spacing: 1 << 27 };
/// Least distance between the end of a buffer and the next one.
const GUARD: u64 = 1 << 20;
/// Drivers map memory in pages of this size.
const PAGE: u64 = 2 << 20;
/// The number of no slot.
const NOWHERE: u32 = u32::MAX;

/// Slots of one size, stored contiguously.
struct Arena {
    /// The number of its first slot.
    first: u32,
    count: u32,
    /// Bytes from a slot to the next.
    spacing: u64,
}

impl Arena {
    const fn bytes(&self) -> u64 {
        self.count as u64 * self.spacing
    }

    /// The largest buffer.
    const fn largest(&self) -> u64 {
        self.spacing - GUARD
    }
}

// Variables of modules come behind (`lower::module::MODULE_BASE`).
const _: () = assert!(FAR.bytes() + NEAR.bytes() == USER_BASE);

/// A handle of a buffer in a [`GlobalMemory`]. After the buffer is freed it refers to nothing, even if another buffer
/// has its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Buffer {
    slot: u32,
    /// Number of the buffer among those that had the slot.
    generation: u32,
}

struct Region {
    name: String,
    generation: u32,
    bytes: u64,
    words: Box<[AtomicU64]>,
    /// One bit per byte: whether it was written.
    written: Box<[AtomicU64]>,
}

/// Why an access failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    OutOfBounds(String),
    Misaligned { address: u64, bytes: u64 },
    Peer(u32),
    Unsupported(String),
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Fault::OutOfBounds(text) | Fault::Unsupported(text) => f.write_str(text),
            Fault::Misaligned { address, bytes } => {
                write!(f, "address {address:#x} is not a multiple of {bytes}")
            }
            Fault::Peer(rank) => write!(f, "all threads of the cluster's CTA {rank} have exited"),
        }
    }
}

/// The global memory of a device: named buffers at made-up 64-bit addresses.
///
/// The first 768 buffers start 16 GiB apart, so an access past the end of one is inside no other. Up to 32,768 more,
/// each below 128 MiB, start 128 MiB apart. Addresses of freed buffers are reused, the oldest first, once there are
/// no others.
pub struct GlobalMemory {
    base: u64,
    /// By slot: those of `FAR` and those of `NEAR`.
    far: Vec<Region>,
    near: Vec<Region>,
    /// Slots of freed buffers, in the order in which they were freed.
    free: [VecDeque<u32>; 2],
}

impl std::fmt::Debug for GlobalMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut list = f.debug_list();
        for (arena, regions) in [(FAR, &self.far), (NEAR, &self.near)] {
            for (slot, r) in (arena.first..).zip(regions) {
                list.entry(&format_args!("{} at {:#x}, {} bytes", r.name, self.start(slot), r.bytes));
            }
        }
        list.finish()
    }
}

impl Default for GlobalMemory {
    fn default() -> Self {
        Self::new()
    }
}

/// Zeros that take memory only where they are written, or `None` if there is no memory.
fn zeros(words: u64) -> Option<Box<[AtomicU64]>> {
    <[AtomicU64]>::new_box_zeroed_with_elems(usize::try_from(words).ok()?).ok()
}

impl GlobalMemory {
    /// Empty memory.
    pub fn new() -> Self {
        Self::at(USER_BASE)
    }

    pub(crate) fn at(base: u64) -> Self {
        GlobalMemory { base, far: Vec::new(), near: Vec::new(), free: Default::default() }
    }

    /// Adds a buffer with undefined bytes: reading them is reported.
    ///
    /// `name` appears in findings. A buffer has at most 16 GiB; larger ones are cut. If there are no addresses left
    /// ([`GlobalMemory::try_alloc`]) it has no bytes.
    pub fn alloc(&mut self, name: &str, bytes: u64) -> Buffer {
        let nowhere = Buffer { slot: NOWHERE, generation: 0 };
        self.try_alloc(name, bytes.min(FAR.largest())).unwrap_or(nowhere)
    }

    /// Adds a buffer, or returns `None` if there are no addresses or no memory for it: see [`GlobalMemory`].
    pub fn try_alloc(&mut self, name: &str, bytes: u64) -> Option<Buffer> {
        // Addresses that no buffer has had yet come first, far from others before near; then those of freed buffers, of which the
        // longest freed is the one that a stale address is least likely to hit.
        let fresh = |arena: &Arena, regions: &Vec<Region>| {
            let next = regions.len() as u32;
            (next < arena.count && bytes <= arena.largest()).then_some(arena.first + next)
        };
        let slot = fresh(&FAR, &self.far)
            .or_else(|| if bytes <= FAR.largest() { self.free[0].pop_front() } else { None })
            .or_else(|| fresh(&NEAR, &self.near))
            .or_else(|| if bytes <= NEAR.largest() { self.free[1].pop_front() } else { None })?;
        let words = zeros(bytes.div_ceil(8))?;
        let written = zeros(bytes.div_ceil(64))?;
        let regions = if slot < NEAR.first { &mut self.far } else { &mut self.near };
        let place = if slot < NEAR.first { slot } else { slot - NEAR.first } as usize;
        let generation = regions.get(place).map_or(0, |region| region.generation);
        let region = Region { name: name.to_owned(), generation, bytes, words, written };
        match regions.get_mut(place) {
            Some(old) => *old = region,
            None => regions.push(region),
        }
        Some(Buffer { slot, generation })
    }

    /// Adds a buffer with the given contents.
    pub fn alloc_from(&mut self, name: &str, data: &[u8]) -> Buffer {
        let b = self.alloc(name, data.len() as u64);
        self.write(&b, 0, data);
        b
    }

    /// Fills a buffer with one byte value; all of it is then defined.
    pub fn fill(&self, buffer: &Buffer, value: u8) {
        let Some(r) = self.region(buffer) else {
            return;
        };
        for w in &r.words {
            w.store(u64::from_ne_bytes([value; 8]), Relaxed);
        }
        for w in &r.written {
            w.store(u64::MAX, Relaxed);
        }
    }

    /// Writes `data` at a byte offset; bytes beyond the end are dropped.
    pub fn write(&self, buffer: &Buffer, offset: u64, data: &[u8]) {
        let Some(r) = self.region(buffer) else {
            return;
        };
        let room = r.bytes.saturating_sub(offset) as usize;
        r.write(offset, &data[..data.len().min(room)]);
    }

    /// The bytes of a buffer, with zeros where it is undefined.
    pub fn read(&self, buffer: &Buffer) -> Vec<u8> {
        let Some(r) = self.region(buffer) else {
            return Vec::new();
        };
        let mut out: Vec<u8> = r.words.iter().flat_map(|w| w.load(Relaxed).to_le_bytes()).collect();
        out.truncate(r.bytes as usize);
        out
    }

    /// `bytes` bytes of a buffer from a byte offset on; bytes beyond the end are left out.
    pub fn read_part(&self, buffer: &Buffer, offset: u64, bytes: u64) -> Vec<u8> {
        let Some(r) = self.region(buffer) else {
            return Vec::new();
        };
        let (first, end) = (offset.min(r.bytes), offset.saturating_add(bytes).min(r.bytes));
        let words = &r.words[first as usize / 8..(end as usize).div_ceil(8).max(first as usize / 8)];
        let out = words.iter().flat_map(|w| w.load(Relaxed).to_le_bytes());
        out.skip(first as usize % 8).take((end - first) as usize).collect()
    }

    /// Frees a buffer. It then has no bytes, and its addresses are unused until no others are left.
    pub fn free(&mut self, buffer: &Buffer) {
        let near = buffer.slot >= NEAR.first;
        let place = (buffer.slot - if near { NEAR.first } else { 0 }) as usize;
        let regions = if near { &mut self.near } else { &mut self.far };
        if let Some(region) = regions.get_mut(place).filter(|region| region.generation == buffer.generation) {
            (region.bytes, region.words, region.written) = (0, Box::default(), Box::default());
            region.generation += 1;
            self.free[usize::from(near)].push_back(buffer.slot);
        }
    }

    /// The region in a slot.
    fn slot(&self, slot: u32) -> Option<&Region> {
        match slot.checked_sub(NEAR.first) {
            None => self.far.get(slot as usize),
            Some(place) => self.near.get(place as usize),
        }
    }

    fn region(&self, buffer: &Buffer) -> Option<&Region> {
        self.slot(buffer.slot).filter(|region| region.generation == buffer.generation)
    }

    /// The address of a slot.
    fn start(&self, slot: u32) -> u64 {
        match slot.checked_sub(NEAR.first) {
            None => self.base + u64::from(slot) * FAR.spacing,
            Some(place) => self.base + FAR.bytes() + u64::from(place) * NEAR.spacing,
        }
    }

    /// Address and bytes of all buffers.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = (u64, u64)> {
        [(FAR, &self.far), (NEAR, &self.near)].into_iter().flat_map(move |(arena, regions)| {
            (arena.first..).zip(regions).map(|(slot, r)| (self.start(slot), r.bytes)).filter(|r| r.1 > 0)
        })
    }

    /// The slot that an address lies in, how far, and how large the slot is. Addresses below all slots lie in none.
    fn place(&self, address: u64) -> (u32, u64, u64) {
        let from = address.wrapping_sub(self.base);
        match from.checked_sub(FAR.bytes()) {
            None => ((from / FAR.spacing) as u32, from % FAR.spacing, FAR.spacing),
            Some(from) if from < NEAR.bytes() => {
                (NEAR.first + (from / NEAR.spacing) as u32, from % NEAR.spacing, NEAR.spacing)
            }
            Some(from) => (NOWHERE, from, 0),
        }
    }

    /// The ranges of a buffer's defined bytes, ascending.
    pub fn written(&self, buffer: &Buffer) -> Vec<Range<u64>> {
        let Some(r) = self.region(buffer) else { return Vec::new() };
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for byte in (0..r.bytes).filter(|b| r.written[(b / 64) as usize].load(Relaxed) >> (b % 64) & 1 == 1) {
            match ranges.last_mut() {
                Some(range) if range.end == byte => range.end = byte + 1,
                _ => ranges.push(byte..byte + 1),
            }
        }
        ranges
    }

    /// Number of undefined bytes of a buffer.
    pub fn unwritten(&self, buffer: &Buffer) -> u64 {
        self.len(buffer) - self.written(buffer).iter().map(|range| range.end - range.start).sum::<u64>()
    }

    /// Address of a buffer's first byte: a multiple of 2^27, and of 2^34 for the first 768 buffers.
    pub fn address(&self, buffer: &Buffer) -> u64 {
        if buffer.slot == NOWHERE { 0 } else { self.start(buffer.slot) }
    }

    /// Size of a buffer in bytes.
    pub fn len(&self, buffer: &Buffer) -> u64 {
        self.region(buffer).map_or(0, |r| r.bytes)
    }

    /// Whether there are no buffers.
    pub fn is_empty(&self) -> bool {
        self.far.is_empty() && self.near.is_empty()
    }

    fn locate(&self, address: u64, bytes: u64) -> Result<(&Region, u64), Fault> {
        let (slot, offset, _) = self.place(address);
        match self.slot(slot) {
            Some(r) if offset + bytes <= r.bytes => Ok((r, offset)),
            _ => Err(Fault::OutOfBounds(self.describe(address, bytes))),
        }
    }

    /// A description of an address.
    pub(crate) fn describe(&self, address: u64, bytes: u64) -> String {
        let (slot, offset, spacing) = self.place(address);
        if let Some(r) = self.slot(slot) {
            return format!(
                "{bytes} bytes at {address:#x}: offset {offset} of buffer `{}`, which has {} bytes",
                r.name, r.bytes
            );
        }
        // Closer to the next slot than to any buffer before it.
        let before = spacing.saturating_sub(offset);
        if spacing > 0
            && before <= 1 << 30
            && let Some(last) = slot.checked_sub(1).and_then(|slot| self.slot(slot))
        {
            return format!("{bytes} bytes at {address:#x}: past buffer `{}`", last.name);
        }
        // The gap in front of the first buffer.
        if let (Some(before), Some(r)) = (self.base.checked_sub(address), self.far.first())
            && before <= FAR.spacing
        {
            return format!("{bytes} bytes at {address:#x}: {before} bytes before buffer `{}`", r.name);
        }
        format!("{bytes} bytes at {address:#x}, where no buffer is")
    }

    /// Reads bytes; returns whether all of them were defined.
    pub(crate) fn load(&self, address: u64, out: &mut [u8]) -> Result<bool, Fault> {
        let (r, offset) = self.locate(address, out.len() as u64)?;
        Ok(r.read(offset, out))
    }

    /// Reads bytes that may lie past the end of a buffer but in its last page; returns how many are the buffer's. The
    /// others are zeros. `None` if nothing is mapped there.
    pub(crate) fn load_past(&self, address: u64, out: &mut [u8]) -> Option<usize> {
        let (slot, offset, _) = self.place(address);
        let r = self.slot(slot).filter(|r| r.bytes > 0)?;
        if offset + out.len() as u64 > r.bytes.next_multiple_of(PAGE) {
            return None;
        }
        let own = r.bytes.saturating_sub(offset).min(out.len() as u64) as usize;
        out.fill(0);
        r.read(offset.min(r.bytes), &mut out[..own]);
        Some(own)
    }

    pub(crate) fn store(&self, address: u64, data: &[u8]) -> Result<(), Fault> {
        let (r, offset) = self.locate(address, data.len() as u64)?;
        r.write(offset, data);
        Ok(())
    }

    /// Replaces an aligned value of 1 to 8 bytes atomically; returns the old value, and whether it was defined.
    pub(crate) fn update(
        &self,
        address: u64,
        bytes: u32,
        f: impl Fn(u64) -> u64,
    ) -> Result<(u64, bool), Fault> {
        let (r, offset) = self.locate(address, u64::from(bytes))?;
        let shift = offset % 8 * 8;
        let mask = if bytes == 8 { u64::MAX } else { ((1 << (bytes * 8)) - 1) << shift };
        let word = &r.words[(offset / 8) as usize];
        let mut seen = word.load(Relaxed);
        loop {
            let old = (seen & mask) >> shift;
            let new = seen & !mask | f(old) << shift & mask;
            match word.compare_exchange_weak(seen, new, Relaxed, Relaxed) {
                Ok(_) => {
                    let written = r.is_written(offset, u64::from(bytes));
                    r.mark(offset, u64::from(bytes));
                    return Ok((old, written));
                }
                Err(now) => seen = now,
            }
        }
    }

    /// As [`GlobalMemory::update`] for 16 bytes. One such update happens at a time; a plain store to
    /// the same bytes at the same time is a race of the kernel's.
    pub(crate) fn update_wide(&self, address: u64, f: impl Fn(u128) -> u128) -> Result<(u128, bool), Fault> {
        static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
        let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut bytes = [0u8; 16];
        let written = self.load(address, &mut bytes)?;
        let old = u128::from_le_bytes(bytes);
        self.store(address, &f(old).to_le_bytes())?;
        Ok((old, written))
    }
}

impl Region {
    fn is_written(&self, offset: u64, bytes: u64) -> bool {
        let mut at = offset;
        let end = offset + bytes;
        while at < end {
            let n = (64 - at % 64).min(end - at);
            let mask = (u64::MAX >> (64 - n)) << (at % 64);
            if self.written[(at / 64) as usize].load(Relaxed) & mask != mask {
                return false;
            }
            at += n;
        }
        true
    }

    fn mark(&self, offset: u64, bytes: u64) {
        let mut at = offset;
        let end = offset + bytes;
        while at < end {
            let n = (64 - at % 64).min(end - at);
            let mask = (u64::MAX >> (64 - n)) << (at % 64);
            let w = &self.written[(at / 64) as usize];
            // Most writes are rewrites; a load is much cheaper than a locked operation.
            if w.load(Relaxed) & mask != mask {
                w.fetch_or(mask, Relaxed);
            }
            at += n;
        }
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> bool {
        if offset.is_multiple_of(8) && out.len().is_multiple_of(8) {
            let first = (offset / 8) as usize;
            for (chunk, word) in out.chunks_exact_mut(8).zip(&self.words[first..]) {
                chunk.copy_from_slice(&word.load(Relaxed).to_le_bytes());
            }
        } else {
            let (mut at, mut done) = (offset, 0);
            while done < out.len() {
                let word = self.words[(at / 8) as usize].load(Relaxed).to_le_bytes();
                let from = (at % 8) as usize;
                let n = (8 - from).min(out.len() - done);
                out[done..done + n].copy_from_slice(&word[from..from + n]);
                done += n;
                at += n as u64;
            }
        }
        self.is_written(offset, out.len() as u64)
    }

    fn write(&self, offset: u64, data: &[u8]) {
        let (mut at, mut done) = (offset, 0);
        while done < data.len() {
            let word = &self.words[(at / 8) as usize];
            let from = (at % 8) as usize;
            let n = (8 - from).min(data.len() - done);
            let mut bytes = [0u8; 8];
            bytes[from..from + n].copy_from_slice(&data[done..done + n]);
            let value = u64::from_le_bytes(bytes);
            if n == 8 {
                word.store(value, Relaxed);
            } else {
                let mask = (u64::MAX >> (64 - 8 * n)) << (8 * from);
                let mut seen = word.load(Relaxed);
                while let Err(now) = word.compare_exchange_weak(seen, seen & !mask | value, Relaxed, Relaxed)
                {
                    seen = now;
                }
            }
            done += n;
            at += n as u64;
        }
        self.mark(offset, data.len() as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unaligned_pieces_come_back_and_mark_only_their_bytes() {
        let mut m = GlobalMemory::new();
        let b = m.alloc("x", 100);
        let a = m.address(&b);
        m.store(a + 3, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]).unwrap();
        let mut out = [0; 11];
        assert!(m.load(a + 3, &mut out).unwrap());
        assert_eq!(out, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
        let mut more = [0; 12];
        assert!(!m.load(a + 3, &mut more).unwrap());
        assert_eq!(m.unwritten(&b), 89);
    }

    #[test]
    fn faults_name_the_buffer_and_the_offset() {
        let mut m = GlobalMemory::new();
        let b = m.alloc("weights", 64);
        let a = m.address(&b);
        let Err(Fault::OutOfBounds(text)) = m.load(a + 60, &mut [0; 8]) else { panic!("no fault") };
        assert!(text.contains("offset 60 of buffer `weights`, which has 64 bytes"), "{text}");
        let Err(Fault::OutOfBounds(text)) = m.load(a - 8, &mut [0; 8]) else { panic!("no fault") };
        assert!(text.contains("8 bytes before buffer `weights`"), "{text}");
        assert!(matches!(m.load(0, &mut [0; 1]), Err(Fault::OutOfBounds(_))));
    }

    #[test]
    fn updates_replace_one_value_of_a_word() {
        let mut m = GlobalMemory::new();
        let b = m.alloc_from("x", &[0xff; 16]);
        let a = m.address(&b);
        assert_eq!(m.update(a + 4, 4, |v| v.wrapping_add(1)).unwrap(), (0xffff_ffff, true));
        assert_eq!(m.read(&b)[..9], [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0xff]);
    }

    #[test]
    fn addresses_last_for_any_number_of_buffers_one_after_the_other() {
        let mut m = GlobalMemory::new();
        let kept = m.alloc_from("kept", &[7; 24]);
        let mut last = None;
        for number in 0..100_000u32 {
            let b = m.try_alloc("one of many", 64).unwrap();
            m.store(m.address(&b), &number.to_le_bytes()).unwrap();
            assert_eq!(m.unwritten(&b), 60, "nothing is left of the buffer that was there before");
            m.free(&b);
            last = Some((b, m.address(&b)));
        }
        // A stale handle is nobody's, and so is a stale address, long after the last fresh one was handed out.
        let (stale, address) = last.unwrap();
        assert_eq!((m.len(&stale), m.read(&stale)), (0, Vec::new()));
        assert!(m.load(address, &mut [0; 4]).is_err());
        let next = m.alloc("next", 64);
        assert!(m.address(&next) != address && m.load(address, &mut [0; 4]).is_err());
        m.free(&stale);
        assert_eq!(m.len(&next), 64, "freeing twice frees nobody else's");
        assert_eq!(m.read(&kept), [7; 24]);
    }

    #[test]
    fn thousands_of_buffers_live_side_by_side_with_gaps_between_them() {
        let mut m = GlobalMemory::new();
        let all: Vec<Buffer> =
            (0..5_000u32).map(|number| m.alloc_from("one of many", &number.to_le_bytes())).collect();
        let mut addresses: Vec<u64> = all.iter().map(|buffer| m.address(buffer)).collect();
        for (number, (buffer, address)) in (0..5_000u32).zip(all.iter().zip(&addresses)) {
            let mut word = [0; 4];
            assert!(m.load(*address, &mut word).unwrap());
            assert_eq!((u32::from_le_bytes(word), m.read(buffer)), (number, word.to_vec()));
            assert!(m.load(address + 1, &mut [0; 4]).is_err() && m.load(address - 1, &mut [0; 1]).is_err());
        }
        addresses.sort_unstable();
        assert!(addresses.windows(2).all(|pair| pair[1] - pair[0] >= 1 << 27));
        assert!(addresses.iter().all(|address| (USER_BASE..2 * USER_BASE).contains(address)));
        // The first ones are as far apart as they can be, and have room for the largest.
        assert!(addresses[..768].windows(2).all(|pair| pair[1] - pair[0] == 1 << 34));
        assert!(m.try_alloc("too large for what is left", 1 << 27).is_none());
        m.free(&all[3]);
        let large = m.try_alloc("in a freed one's place", 1 << 27).unwrap();
        assert_eq!(m.address(&large), USER_BASE + 3 * (1 << 34));
    }

    #[test]
    fn there_is_an_end_to_addresses_and_it_is_told() {
        let mut m = GlobalMemory::new();
        let all: Vec<Buffer> = std::iter::from_fn(|| m.try_alloc("x", 1)).collect();
        assert_eq!(all.len(), 768 + (1 << 15));
        let none = m.alloc("no more", 1);
        assert_eq!((m.len(&none), m.address(&none)), (0, 0));
        m.write(&none, 0, &[1]);
        m.free(&none);
        m.free(&all[800]);
        let again = m.try_alloc("again", 1).unwrap();
        assert_eq!(m.address(&again), m.address(&all[800]));
    }
}
