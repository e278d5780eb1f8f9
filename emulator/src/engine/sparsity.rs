//! Sparse A of `mma.sp` and `wgmma.mma_async.sp`: which elements it holds, by the metadata in the registers of a
//! warp.
//!
//! A thread's register holds metadata of eight chunks, four bits each.
//!
//! For 16- and 32-bit elements, the low half has four chunks of row `lane / 4`, the high half four chunks of the row
//! 8 further down; the next thread has the next block of K. For smaller elements, all eight chunks are of one row;
//! the next thread has the row 8 further down, and the thread after that the next block of K. The selector names one
//! of four threads, or one of two pairs of threads. Sources: PTX ISA, "Sparse matrix storage" and the metadata
//! figures; CUTLASS `ELayout_64x16`, `_64x32`, `_64x64`.

/// How elements are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chunk {
    /// tf32: one of two.
    OneOfTwo,
    /// 16 and 8 bits: two of four.
    TwoOfFour,
    /// 4 bits: two pairs of eight.
    PairsOfEight,
}

impl Chunk {
    /// By the bits of an element; single bits and binary64 have no sparse form.
    pub fn of(bits: u32) -> Option<Self> {
        Some(match bits {
            32 => Chunk::OneOfTwo,
            8 | 16 => Chunk::TwoOfFour,
            4 => Chunk::PairsOfEight,
            _ => return None,
        })
    }

    /// Elements of K in a chunk.
    const fn length(self) -> usize {
        match self {
            Chunk::OneOfTwo => 2,
            Chunk::TwoOfFour => 4,
            Chunk::PairsOfEight => 8,
        }
    }

    /// The places along K of the elements held.
    pub fn held(self, bits: u64, k: usize) -> Vec<usize> {
        let index = |chunk: usize, second: usize| (bits >> (4 * chunk + 2 * second) & 3) as usize;
        let mut out = Vec::with_capacity(k / 2);
        for c in 0..k / self.length() {
            let (first, i, j) = (c * self.length(), index(c, 0), index(c, 1));
            match self {
                Chunk::OneOfTwo => out.push(first + i / 2),
                Chunk::TwoOfFour => out.extend([first + i, first + j]),
                Chunk::PairsOfEight => {
                    out.extend([i, j].iter().flat_map(|p| [first + 2 * p, first + 2 * p + 1]));
                }
            }
        }
        out
    }

    /// Whether four bits mean something: two different places.
    fn means(self, index: u64) -> bool {
        match self {
            Chunk::OneOfTwo => matches!(index, 0b1110 | 0b0100),
            _ => index & 3 != index >> 2,
        }
    }
}

/// The metadata of the 16 rows of a warp for `k` elements, four bits per chunk, and a message if an index has no
/// meaning in the ISA: hardware uses the elements that its bits name ([`Chunk::held`]). CUTLASS's compressor writes 0
/// for a chunk of zeros.
///
/// # Errors
/// A message for a selector that does not exist.
#[allow(clippy::type_complexity, reason = "a pair, used twice")]
pub(crate) fn rows(
    bits: u32,
    k: usize,
    lanes: &[u64; 32],
    selector: u32,
) -> Result<([u64; 16], Option<String>), String> {
    let Some(chunk) = Chunk::of(bits) else {
        return Err("these elements have no sparse form".to_owned());
    };
    let chunks = k / chunk.length();
    let narrow = bits >= 16;
    // Threads of four that give metadata: 4 chunks each, or 8.
    let threads = chunks / 4;
    let limit = 4 / threads.max(1) as u32;
    if selector >= limit {
        return Err(format!("sparsity selector {selector}: it is less than {limit} for this shape"));
    }
    let (mut out, mut note) = ([0u64; 16], None);
    for (row, out) in out.iter_mut().enumerate() {
        let group = 4 * (row % 8);
        let first = group + threads * selector as usize;
        *out = if narrow {
            (0..threads).map(|b| (lanes[first + b] >> (row / 8 * 16) & 0xffff) << (16 * b)).sum()
        } else {
            let words = threads / 2;
            (0..words).map(|b| (lanes[first + row / 8 + 2 * b] & 0xffff_ffff) << (32 * b)).sum()
        };
        if let Some(c) = (0..chunks).find(|c| !chunk.means(*out >> (4 * c) & 15)) {
            let index = *out >> (4 * c) & 15;
            note.get_or_insert_with(|| {
                format!("index {index:#06b} for chunk {c} of row {row} has no meaning in the ISA; hardware takes the elements that its bits name")
            });
        }
    }
    Ok((out, note))
}
