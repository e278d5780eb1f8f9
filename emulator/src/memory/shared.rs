//! Shared memory of one CTA, with a bit per byte that says whether it was written.

/// Bytes `[base, len)` of a window; what lies below `base` is the system's.
///
/// Also holds the local memory of a warp.
#[derive(Debug)]
pub(crate) struct Smem {
    base: u32,
    data: Vec<u8>,
    written: Vec<u64>,
}

/// The access leaves the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outside;

impl Smem {
    /// Memory up to window offset `len`.
    pub fn new(len: u32, base: u32) -> Self {
        Smem { base, data: vec![0; len as usize], written: vec![0; len.div_ceil(64) as usize + 1] }
    }

    pub fn len(&self) -> u32 {
        self.data.len() as u32
    }

    fn range(&self, at: u32, n: usize) -> Result<std::ops::Range<usize>, Outside> {
        let start = at as usize;
        let end = start + n;
        if at < self.base || end > self.data.len() { Err(Outside) } else { Ok(start..end) }
    }

    /// Whether every byte of a range was written.
    #[inline]
    pub fn is_written(&self, at: u32, n: u32) -> bool {
        let (mut at, end) = (at, at + n);
        while at < end {
            let len = (64 - at % 64).min(end - at);
            let mask = (u64::MAX >> (64 - len)) << (at % 64);
            if self.written[(at / 64) as usize] & mask != mask {
                return false;
            }
            at += len;
        }
        true
    }

    /// Whether any byte of a range of at most 64 was written.
    pub fn any_written(&self, at: u32, n: u32) -> bool {
        (at..at + n).any(|b| self.is_written(b, 1))
    }

    /// Makes a range count as not written.
    pub fn forget(&mut self, at: u32, n: u32) {
        for b in at..at + n {
            if let Some(word) = self.written.get_mut((b / 64) as usize) {
                *word &= !(1 << (b % 64));
            }
        }
    }

    /// Reads; the result says whether all bytes were written before.
    #[inline]
    pub fn read(&self, at: u32, out: &mut [u8]) -> Result<bool, Outside> {
        let r = self.range(at, out.len())?;
        out.copy_from_slice(&self.data[r]);
        Ok(self.is_written(at, out.len() as u32))
    }

    #[inline]
    pub fn write(&mut self, at: u32, data: &[u8]) -> Result<(), Outside> {
        let r = self.range(at, data.len())?;
        self.data[r].copy_from_slice(data);
        self.mark(at, data.len() as u32);
        Ok(())
    }

    /// Makes a range count as written, as far as there is such memory.
    #[inline]
    pub fn mark(&mut self, at: u32, n: u32) {
        let (mut at, end) = (at, at.saturating_add(n).min(self.len()));
        while at < end {
            let len = (64 - at % 64).min(end - at);
            self.written[(at / 64) as usize] |= (u64::MAX >> (64 - len)) << (at % 64);
            at += len;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tracks_written_bytes_across_words() {
        let mut s = Smem::new(4096, 1024);
        s.write(1060, &[7; 100]).unwrap();
        let mut out = [0; 100];
        assert_eq!(s.read(1060, &mut out), Ok(true));
        assert_eq!(s.read(1059, &mut out), Ok(false));
        assert_eq!(s.read(1061, &mut out), Ok(false));
        assert!(s.any_written(1056, 8) && !s.any_written(1056, 4));
        s.forget(1060, 4);
        assert!(!s.any_written(1056, 8) && s.is_written(1064, 96));
        assert_eq!(s.read(4000, &mut out), Err(Outside));
        assert_eq!(s.read(1000, &mut [0; 4]), Err(Outside));
    }
}
