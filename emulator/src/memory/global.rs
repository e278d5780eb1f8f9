//! Global memory: buffers at made-up 64-bit addresses, shared by all threads of the host.
//!
//! Words are atomics with relaxed ordering: kernels may race, and a race must stay a wrong value,
//! never undefined behaviour of the emulator. A write of part of a word is a compare-and-swap.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Address of the first buffer of `GlobalMemory::new`.
pub(crate) const USER_BASE: u64 = 0x1000_0000_0000;
/// Distance between buffers: what lies between the end of one and the next is a guard gap.
const SPACING: u64 = 1 << 34;
/// Largest buffer.
const MAX_BYTES: u64 = SPACING - (1 << 20);

/// A buffer in a [`GlobalMemory`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Buffer(usize);

struct Region {
    name: String,
    bytes: u64,
    words: Box<[AtomicU64]>,
    /// One bit per byte, set once the byte was written.
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
/// Buffers start 16 GiB apart, so that an access past the end of one is never inside another.
pub struct GlobalMemory {
    base: u64,
    regions: Vec<Region>,
}

impl std::fmt::Debug for GlobalMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut list = f.debug_list();
        for (i, r) in self.regions.iter().enumerate() {
            list.entry(&format_args!("{} at {:#x}, {} bytes", r.name, self.address(&Buffer(i)), r.bytes));
        }
        list.finish()
    }
}

impl Default for GlobalMemory {
    fn default() -> Self {
        Self::new()
    }
}

fn atomics(words: Vec<u64>) -> Box<[AtomicU64]> {
    // The allocator hands out large zeroed blocks untouched; building atomics one by one keeps
    // that only because the loop is a copy that the optimiser removes.
    words.into_iter().map(AtomicU64::new).collect()
}

impl GlobalMemory {
    /// Empty memory.
    pub fn new() -> Self {
        Self::at(USER_BASE)
    }

    pub(crate) fn at(base: u64) -> Self {
        GlobalMemory { base, regions: Vec::new() }
    }

    /// Adds a buffer whose bytes count as never written: reading them is reported.
    ///
    /// `name` appears in findings. Buffers are 16 GiB at most; larger ones are cut to that.
    pub fn alloc(&mut self, name: &str, bytes: u64) -> Buffer {
        let bytes = bytes.min(MAX_BYTES);
        let words = atomics(vec![0; bytes.div_ceil(8) as usize]);
        let written = atomics(vec![0; bytes.div_ceil(64) as usize]);
        self.regions.push(Region { name: name.to_owned(), bytes, words, written });
        Buffer(self.regions.len() - 1)
    }

    /// Adds a buffer with these contents.
    pub fn alloc_from(&mut self, name: &str, data: &[u8]) -> Buffer {
        let b = self.alloc(name, data.len() as u64);
        self.write(&b, 0, data);
        b
    }

    /// Fills a buffer with one byte value; all of it counts as written.
    pub fn fill(&self, buffer: &Buffer, value: u8) {
        let Some(r) = self.regions.get(buffer.0) else {
            return;
        };
        for w in &r.words {
            w.store(u64::from_ne_bytes([value; 8]), Relaxed);
        }
        for w in &r.written {
            w.store(u64::MAX, Relaxed);
        }
    }

    /// Writes `data` at a byte offset; what lies beyond the end is dropped.
    pub fn write(&self, buffer: &Buffer, offset: u64, data: &[u8]) {
        let Some(r) = self.regions.get(buffer.0) else {
            return;
        };
        let room = r.bytes.saturating_sub(offset) as usize;
        r.write(offset, &data[..data.len().min(room)]);
    }

    /// The bytes of a buffer (zeros where nothing was written).
    pub fn read(&self, buffer: &Buffer) -> Vec<u8> {
        let Some(r) = self.regions.get(buffer.0) else {
            return Vec::new();
        };
        let mut out: Vec<u8> = r.words.iter().flat_map(|w| w.load(Relaxed).to_le_bytes()).collect();
        out.truncate(r.bytes as usize);
        out
    }

    /// `bytes` bytes of a buffer from a byte offset on; what lies beyond the end is left out.
    pub fn read_part(&self, buffer: &Buffer, offset: u64, bytes: u64) -> Vec<u8> {
        let Some(r) = self.regions.get(buffer.0) else {
            return Vec::new();
        };
        let (first, end) = (offset.min(r.bytes), offset.saturating_add(bytes).min(r.bytes));
        let words = &r.words[first as usize / 8..(end as usize).div_ceil(8).max(first as usize / 8)];
        let out = words.iter().flat_map(|w| w.load(Relaxed).to_le_bytes());
        out.skip(first as usize % 8).take((end - first) as usize).collect()
    }

    /// Gives a buffer's memory back: from then on it has no bytes, and its addresses are nobody's.
    pub fn free(&mut self, buffer: &Buffer) {
        if let Some(r) = self.regions.get_mut(buffer.0) {
            (r.bytes, r.words, r.written) = (0, Box::default(), Box::default());
        }
    }

    /// Number of bytes of a buffer that nothing wrote.
    pub fn unwritten(&self, buffer: &Buffer) -> u64 {
        let Some(r) = self.regions.get(buffer.0) else {
            return 0;
        };
        (0..r.bytes).filter(|b| r.written[(b / 64) as usize].load(Relaxed) >> (b % 64) & 1 == 0).count()
            as u64
    }

    /// Address of a buffer's first byte; a multiple of 2^34.
    pub fn address(&self, buffer: &Buffer) -> u64 {
        self.base + buffer.0 as u64 * SPACING
    }

    /// Size of a buffer in bytes.
    pub fn len(&self, buffer: &Buffer) -> u64 {
        self.regions.get(buffer.0).map_or(0, |r| r.bytes)
    }

    /// True when there is no buffer.
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    fn locate(&self, address: u64, bytes: u64) -> Result<(&Region, u64), Fault> {
        let index = address.wrapping_sub(self.base) / SPACING;
        let offset = address.wrapping_sub(self.base) % SPACING;
        match self.regions.get(index as usize) {
            Some(r) if offset + bytes <= r.bytes => Ok((r, offset)),
            _ => Err(Fault::OutOfBounds(self.describe(address, bytes))),
        }
    }

    /// Where an address lies, in words.
    pub(crate) fn describe(&self, address: u64, bytes: u64) -> String {
        let index = address.wrapping_sub(self.base) / SPACING;
        let offset = address.wrapping_sub(self.base) % SPACING;
        if address >= self.base
            && let Some(r) = self.regions.get(index as usize)
        {
            return format!(
                "{bytes} bytes at {address:#x}: offset {offset} of buffer `{}`, which has {} bytes",
                r.name, r.bytes
            );
        }
        if address >= self.base && index as usize == self.regions.len() && SPACING - offset <= 1 << 30 {
            let name = self.regions.last().map_or("", |r| &r.name);
            return format!("{bytes} bytes at {address:#x}: past buffer `{name}`");
        }
        // The region after the gap that the address lies in.
        let after = address.wrapping_add(SPACING).wrapping_sub(self.base);
        if let Some(r) = self.regions.get((after / SPACING) as usize) {
            let before = SPACING - after % SPACING;
            return format!("{bytes} bytes at {address:#x}: {before} bytes before buffer `{}`", r.name);
        }
        format!("{bytes} bytes at {address:#x}, where no buffer is")
    }

    /// Reads bytes; the result says whether all of them were written before.
    pub(crate) fn load(&self, address: u64, out: &mut [u8]) -> Result<bool, Fault> {
        let (r, offset) = self.locate(address, out.len() as u64)?;
        Ok(r.read(offset, out))
    }

    pub(crate) fn store(&self, address: u64, data: &[u8]) -> Result<(), Fault> {
        let (r, offset) = self.locate(address, data.len() as u64)?;
        r.write(offset, data);
        Ok(())
    }

    /// Replaces a value of 1 to 8 bytes, aligned to its size, atomically. Returns the old value, and
    /// whether it was written before.
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
}
