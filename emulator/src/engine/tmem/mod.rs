//! Tensor Memory: 128 lanes x 512 columns of 32-bit words, with allocation state and, for every
//! word, whether anything was written to it since its column was allocated.
//!
//! - this file: storage, allocation, single words and row slices
//! - [`transfer`]: `tcgen05.ld` and `tcgen05.st`, a warp at a time
//! - [`copy`]: `tcgen05.cp` and `tcgen05.shift`
//!
//! Source: PTX ISA, Tensor Memory and `tcgen05.alloc`.

pub mod copy;
pub mod transfer;

pub use copy::{CpDecompress, CpShape};
pub use transfer::LdStShape;

use thiserror::Error;

/// Lanes (rows).
pub const LANES: u32 = 128;
/// Columns of 32-bit words.
pub const COLUMNS: u32 = 512;
/// Columns are allocated in powers of two from this up.
pub const MIN_ALLOCATION: u32 = 32;

/// A word of Tensor Memory. The 32-bit form has the lane in bits 16..31 and the column in 0..15.
///
/// Hardware takes the lane modulo 128: kernels that run on B200 address the odd CTA of a pair at lane 128 and up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TmemAddress {
    /// Row, 0..127 when valid.
    pub lane: u32,
    /// Column of words, 0..511 when valid.
    pub column: u32,
}

impl TmemAddress {
    /// Splits the 32-bit form.
    pub const fn from_bits(bits: u32) -> Self {
        Self { lane: bits >> 16 & (LANES - 1), column: bits & 0xffff }
    }

    /// The 32-bit form.
    pub const fn to_bits(self) -> u32 {
        self.lane << 16 | self.column
    }
}

/// Why an access to Tensor Memory failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TmemError {
    /// The allocation size is not a power of two from 32 to 512.
    #[error("TMEM allocation of {columns} columns: the size must be a power of two from 32 to 512")]
    AllocationSize {
        /// Columns asked for.
        columns: u32,
    },
    /// `alloc` after `relinquish_alloc_permit`.
    #[error("TMEM allocation of {columns} columns after this CTA relinquished its permit to allocate")]
    Relinquished {
        /// Columns asked for.
        columns: u32,
    },
    /// The allocation is larger than an earlier one of the same CTA.
    #[error("TMEM allocation of {columns} columns after one of {earlier}: a CTA's allocations must not grow")]
    GrowingAllocation {
        /// Columns asked for.
        columns: u32,
        /// Columns of the allocation before.
        earlier: u32,
    },
    /// `dealloc` of something that is not an allocation.
    #[error(
        "TMEM deallocation of {columns} columns at {address:#010x}: no such allocation is live; pass the address and size that alloc gave"
    )]
    NotAllocated {
        /// The address in the instruction.
        address: u32,
        /// The size in the instruction.
        columns: u32,
    },
    /// A lane or column outside the memory.
    #[error("TMEM lane {lane}, column {column} is outside the 128 lanes and 512 columns")]
    OutOfBounds {
        /// The lane.
        lane: u32,
        /// The column.
        column: u32,
    },
    /// Access to a column that was never allocated.
    #[error("TMEM column {column} (lane {lane}) is not allocated")]
    Unallocated {
        /// The lane.
        lane: u32,
        /// The column.
        column: u32,
    },
    /// Access to a column that was deallocated.
    #[error("TMEM column {column} (lane {lane}) is used after it was deallocated")]
    UseAfterFree {
        /// The lane.
        lane: u32,
        /// The column.
        column: u32,
    },
    /// Read of a word nothing wrote since the column was allocated.
    #[error(
        "TMEM lane {lane}, column {column} is read but nothing has written it, or only values that nothing had written"
    )]
    NeverWritten {
        /// The lane.
        lane: u32,
        /// The column.
        column: u32,
    },
    /// A warp named lanes of another warp's quarter.
    #[error(
        "TMEM address {address:#010x} names lane {lane}, but warp {warp} of its warpgroup can reach lanes {first} to {last} only"
    )]
    ForeignLanes {
        /// The address in the instruction.
        address: u32,
        /// Its lane field.
        lane: u32,
        /// Warp index modulo 4.
        warp: u32,
        /// First lane of the warp.
        first: u32,
        /// Last lane of the warp.
        last: u32,
    },
    /// The lane field does not fit the shape.
    #[error("TMEM address {address:#010x}: lane {lane} is not a multiple of {multiple} as {what} needs")]
    LaneAlignment {
        /// The address in the instruction.
        address: u32,
        /// Its lane field.
        lane: u32,
        /// The required divisor.
        multiple: u32,
        /// The shape or instruction.
        what: &'static str,
    },
    /// A repeat count the shape does not have, or a register array of another length.
    #[error(
        "{shape:?}.x{repeat} with {registers} registers: the repeat is a power of two up to {limit}, and it takes {expected} registers"
    )]
    Registers {
        /// The shape.
        shape: LdStShape,
        /// The `.xN`.
        repeat: u32,
        /// Registers given.
        registers: usize,
        /// Registers the shape takes.
        expected: u32,
        /// Largest repeat of the shape.
        limit: u32,
    },
}

/// Tensor Memory of one CTA.
#[derive(Clone, Debug)]
pub struct Tmem {
    /// Lane-major: word (lane, column) at `lane * 512 + column`.
    words: Box<[u32]>,
    /// One bit per word, 8 x 64 per lane: whether it was written.
    written: Box<[u64]>,
    /// One bit per word: whether a `tcgen05.mma` wrote it last.
    sums: Box<[u64]>,
    /// 512 bits: columns that belong to a live allocation.
    live: [u64; 8],
    /// 512 bits: columns that once did and no longer do.
    freed: [u64; 8],
    /// Live allocations: first column and size.
    allocations: Vec<(u32, u32)>,
    last_size: Option<u32>,
    relinquished: bool,
}

impl Default for Tmem {
    fn default() -> Self {
        Self::new()
    }
}

/// A mask of the bits `[from, to)` of word `word` of a 512-bit set.
#[inline]
fn range_mask(word: usize, from: u32, to: u32) -> u64 {
    let base = word as u32 * 64;
    let low = from.clamp(base, base + 64) - base;
    let high = to.clamp(base, base + 64) - base;
    match high - low {
        0 => 0,
        64 => u64::MAX,
        width => ((1 << width) - 1) << low,
    }
}

/// The words of a 512-bit set that `[from, to)` touches.
#[inline]
fn word_span(from: u32, to: u32) -> std::ops::Range<usize> {
    (from / 64) as usize..to.div_ceil(64) as usize
}

impl Tmem {
    /// Bytes of the words.
    pub const BYTES: u32 = 4 * LANES * COLUMNS;

    /// Empty memory: nothing allocated, nothing written.
    pub fn new() -> Self {
        Self {
            words: vec![0; (LANES * COLUMNS) as usize].into(),
            written: vec![0; (LANES * COLUMNS / 64) as usize].into(),
            sums: vec![0; (LANES * COLUMNS / 64) as usize].into(),
            live: [0; 8],
            freed: [0; 8],
            allocations: Vec::new(),
            last_size: None,
            relinquished: false,
        }
    }

    /// `tcgen05.alloc`: the lowest free range of `columns` columns, aligned to its size.
    ///
    /// Returns the address to store (lane 0), or `None` when there is no room: the instruction
    /// blocks, and succeeds once enough has been deallocated.
    ///
    /// # Errors
    /// A size that is not a power of two in 32..=512, one larger than an earlier one, or an
    /// allocation after [`Tmem::relinquish_alloc_permit`].
    pub fn alloc(&mut self, columns: u32) -> Result<Option<u32>, TmemError> {
        self.may_alloc(columns)?;
        let Some(first) = Self::room(columns, |word| self.live[word]) else { return Ok(None) };
        Ok(Some(self.take(first, columns)))
    }

    /// `tcgen05.alloc` of a pair of CTAs: as [`Tmem::alloc`], of the same columns in both.
    ///
    /// # Errors
    /// As [`Tmem::alloc`], for the even CTA.
    pub fn alloc_pair(even: &mut Tmem, odd: &mut Tmem, columns: u32) -> Result<Option<u32>, TmemError> {
        even.may_alloc(columns)?;
        let Some(first) = Self::room(columns, |word| even.live[word] | odd.live[word]) else {
            return Ok(None);
        };
        odd.take(first, columns);
        Ok(Some(even.take(first, columns)))
    }

    /// Checks that this CTA may allocate `columns` columns.
    ///
    /// # Errors
    /// As [`Tmem::alloc`].
    pub fn may_alloc(&self, columns: u32) -> Result<(), TmemError> {
        if !columns.is_power_of_two() || !(MIN_ALLOCATION..=COLUMNS).contains(&columns) {
            return Err(TmemError::AllocationSize { columns });
        }
        if self.relinquished {
            return Err(TmemError::Relinquished { columns });
        }
        if let Some(earlier) = self.last_size.filter(|&earlier| columns > earlier) {
            return Err(TmemError::GrowingAllocation { columns, earlier });
        }
        Ok(())
    }

    /// The lowest start of `columns` free columns; `live` gives the words of the bit set of taken columns.
    fn room(columns: u32, live: impl Fn(usize) -> u64) -> Option<u32> {
        let taken = |first: u32| {
            let end = first + columns;
            word_span(first, end).any(|w| live(w) & range_mask(w, first, end) != 0)
        };
        (0..COLUMNS).step_by(columns as usize).find(|&first| !taken(first))
    }

    /// Allocates columns; returns their address.
    fn take(&mut self, first: u32, columns: u32) -> u32 {
        let end = first + columns;
        for w in word_span(first, end) {
            let mask = range_mask(w, first, end);
            self.live[w] |= mask;
            self.freed[w] &= !mask;
            for lane in 0..LANES as usize {
                self.written[lane * 8 + w] &= !mask;
            }
        }
        self.allocations.push((first, columns));
        self.last_size = Some(columns);
        TmemAddress { lane: 0, column: first }.to_bits()
    }

    /// `tcgen05.dealloc`.
    ///
    /// # Errors
    /// [`TmemError::NotAllocated`] unless `address` and `columns` are those of a live allocation.
    pub fn dealloc(&mut self, address: u32, columns: u32) -> Result<(), TmemError> {
        let at = TmemAddress::from_bits(address);
        let found = self.allocations.iter().position(|&live| live == (at.column, columns));
        let Some(index) = found.filter(|_| at.lane == 0) else {
            return Err(TmemError::NotAllocated { address, columns });
        };
        self.allocations.remove(index);
        let end = at.column + columns;
        for w in word_span(at.column, end) {
            let mask = range_mask(w, at.column, end);
            self.live[w] &= !mask;
            self.freed[w] |= mask;
        }
        Ok(())
    }

    /// `tcgen05.relinquish_alloc_permit`: every later [`Tmem::alloc`] is an error.
    pub fn relinquish_alloc_permit(&mut self) {
        self.relinquished = true;
    }

    /// Allocations still live, as (address, columns): leaks, if the CTA has exited.
    pub fn leaks(&self) -> Vec<(u32, u32)> {
        self.allocations.clone()
    }

    /// Checks that columns `[column, column + count)` of `lane` exist and are allocated.
    pub(super) fn check_live(&self, lane: u32, column: u32, count: u32) -> Result<(), TmemError> {
        let end = column.saturating_add(count);
        if lane >= LANES || end > COLUMNS {
            let column = if lane >= LANES { column } else { column.max(COLUMNS) };
            return Err(TmemError::OutOfBounds { lane, column });
        }
        for w in word_span(column, end) {
            let dead = range_mask(w, column, end) & !self.live[w];
            if dead != 0 {
                let column = w as u32 * 64 + dead.trailing_zeros();
                return Err(if self.freed[w] >> (column % 64) & 1 == 1 {
                    TmemError::UseAfterFree { lane, column }
                } else {
                    TmemError::Unallocated { lane, column }
                });
            }
        }
        Ok(())
    }

    /// Words `[column, column + count)` of one lane.
    ///
    /// # Errors
    /// Columns that are outside, not allocated, freed, or never written.
    pub fn row(&self, lane: u32, column: u32, count: u32) -> Result<&[u32], TmemError> {
        self.check_live(lane, column, count)?;
        let end = column + count;
        for w in word_span(column, end) {
            let missing = range_mask(w, column, end) & !self.written[lane as usize * 8 + w];
            if missing != 0 {
                let column = w as u32 * 64 + missing.trailing_zeros();
                return Err(TmemError::NeverWritten { lane, column });
            }
        }
        let start = (lane * COLUMNS + column) as usize;
        Ok(&self.words[start..start + count as usize])
    }

    /// As [`Tmem::row`], for words that nothing may have written: they hold what was there before.
    ///
    /// # Errors
    /// Columns that are outside, not allocated or freed.
    pub fn any_row(&self, lane: u32, column: u32, count: u32) -> Result<&[u32], TmemError> {
        self.check_live(lane, column, count)?;
        let start = (lane * COLUMNS + column) as usize;
        Ok(&self.words[start..start + count as usize])
    }

    /// Words `[column, column + count)` of one lane, to be overwritten: all of them count as
    /// written from now on.
    ///
    /// # Errors
    /// Columns that are outside, not allocated or freed.
    pub fn row_mut(&mut self, lane: u32, column: u32, count: u32) -> Result<&mut [u32], TmemError> {
        self.check_live(lane, column, count)?;
        let end = column + count;
        for w in word_span(column, end) {
            let mask = range_mask(w, column, end);
            self.written[lane as usize * 8 + w] |= mask;
            self.sums[lane as usize * 8 + w] &= !mask;
        }
        let start = (lane * COLUMNS + column) as usize;
        Ok(&mut self.words[start..start + count as usize])
    }

    /// As [`Tmem::row_mut`], for the words of an accumulator.
    ///
    /// # Errors
    /// As [`Tmem::row_mut`].
    pub fn sums_mut(&mut self, lane: u32, column: u32, count: u32) -> Result<&mut [u32], TmemError> {
        self.row_mut(lane, column, count)?;
        let end = column + count;
        for w in word_span(column, end) {
            self.sums[lane as usize * 8 + w] |= range_mask(w, column, end);
        }
        let start = (lane * COLUMNS + column) as usize;
        Ok(&mut self.words[start..start + count as usize])
    }

    /// The first of words `[column, column + count)` of one lane that a `tcgen05.mma` was the last to write.
    pub fn first_sum(&self, lane: u32, column: u32, count: u32) -> Option<u32> {
        let end = column.saturating_add(count).min(COLUMNS);
        word_span(column, end).find_map(|w| {
            let sums = range_mask(w, column, end) & self.sums.get(lane as usize * 8 + w)?;
            (sums != 0).then(|| w as u32 * 64 + sums.trailing_zeros())
        })
    }

    /// Reads one word.
    ///
    /// # Errors
    /// As [`Tmem::row`].
    pub fn read(&self, address: u32) -> Result<u32, TmemError> {
        let at = TmemAddress::from_bits(address);
        self.row(at.lane, at.column, 1).map(|words| words[0])
    }

    /// Writes one word.
    ///
    /// # Errors
    /// As [`Tmem::row_mut`].
    pub fn write(&mut self, address: u32, value: u32) -> Result<(), TmemError> {
        let at = TmemAddress::from_bits(address);
        self.row_mut(at.lane, at.column, 1)?[0] = value;
        Ok(())
    }

    /// Marks words as never written, for instructions whose effect on them is not documented.
    pub(crate) fn forget(&mut self, lane: u32, column: u32, count: u32) {
        let end = (column + count).min(COLUMNS);
        for w in word_span(column, end) {
            self.written[lane as usize * 8 + w] &= !range_mask(w, column, end);
        }
    }

    /// Whether a word counts as written.
    pub fn is_written(&self, address: u32) -> bool {
        let at = TmemAddress::from_bits(address);
        at.lane < LANES
            && at.column < COLUMNS
            && self.written[(at.lane * 8 + at.column / 64) as usize] >> (at.column % 64) & 1 == 1
    }
}
