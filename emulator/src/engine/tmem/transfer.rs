//! `tcgen05.ld` and `tcgen05.st`: which thread's register is which word.
//!
//! Sources: PTX ISA, `tcgen05` data movement shapes; CUTLASS `copy_traits_sm100.hpp`; TVM's layout
//! notes, which were checked on hardware.

use super::{COLUMNS, Tmem, TmemAddress, TmemError};

/// The shape of `tcgen05.ld` and `tcgen05.st`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LdStShape {
    /// `.32x32b`
    S32x32b,
    /// `.16x64b`
    S16x64b,
    /// `.16x128b`
    S16x128b,
    /// `.16x256b`
    S16x256b,
    /// `.16x32bx2`
    S16x32bx2,
}

impl LdStShape {
    /// Registers a thread gives for `.x<repeat>`.
    pub const fn registers(self, repeat: u32) -> u32 {
        match self {
            LdStShape::S16x128b => 2 * repeat,
            LdStShape::S16x256b => 4 * repeat,
            _ => repeat,
        }
    }

    /// Largest `.xN`.
    pub const fn max_repeat(self) -> u32 {
        128 / self.registers(1)
    }

    /// Lane and column of register `register` of thread `thread` (0..31), relative to the address.
    /// For [`LdStShape::S16x32bx2`] the upper 16 threads count from the second address.
    pub const fn place(self, thread: u32, register: u32) -> (u32, u32) {
        let (t, r) = (thread, register);
        match self {
            LdStShape::S32x32b => (t, r),
            LdStShape::S16x64b => (t / 4 + 8 * (t % 2), 2 * r + t / 2 % 2),
            LdStShape::S16x128b => (t / 4 + 8 * (r % 2), 4 * (r / 2) + t % 4),
            LdStShape::S16x256b => (t / 4 + 8 * (r / 2 % 2), 8 * (r / 4) + 2 * (t % 4) + r % 2),
            LdStShape::S16x32bx2 => (t % 16, r),
        }
    }
}

/// An `ld` or `st` of a warp, without its registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The shape.
    pub shape: LdStShape,
    /// N of `.xN`.
    pub repeat: u32,
    /// `.pack::16b` of a load, `.unpack::16b` of a store: a register holds the low halves of two
    /// neighbouring columns, the lower column in its low half.
    pub packed: bool,
    /// `immHalfSplitoff` of `.16x32bx2`, added to the address for threads 16..31.
    pub half_split: u32,
    /// The 32-bit address operand.
    pub address: u32,
    /// Index of the warp in its CTA; modulo 4 it says which lanes the warp reaches.
    pub warp: u32,
}

impl Transfer {
    /// First lane and column for each half of the warp, checked.
    fn bases(&self, registers: usize) -> Result<[TmemAddress; 2], TmemError> {
        let limit = self.shape.max_repeat();
        let expected = self.shape.registers(self.repeat);
        let fits = self.repeat.is_power_of_two() && self.repeat <= limit;
        if !fits || registers != expected as usize {
            let (shape, repeat) = (self.shape, self.repeat);
            return Err(TmemError::Registers { shape, repeat, registers, expected, limit });
        }
        let low = self.base(self.address)?;
        let high = match self.shape {
            LdStShape::S16x32bx2 => self.base(self.address.wrapping_add(self.half_split))?,
            _ => low,
        };
        Ok([low, high])
    }

    fn base(&self, address: u32) -> Result<TmemAddress, TmemError> {
        let at = TmemAddress::from_bits(address);
        let warp = self.warp % 4;
        let first = 32 * warp;
        // The quarter may be left out of the address; a wrong one is a mistake.
        let quarter = at.lane & !31;
        if quarter != 0 && quarter != first {
            let last = first + 31;
            return Err(TmemError::ForeignLanes { address, lane: at.lane, warp, first, last });
        }
        let multiple = if self.shape == LdStShape::S32x32b { 32 } else { 16 };
        if !at.lane.is_multiple_of(multiple) {
            let what = "the shape";
            return Err(TmemError::LaneAlignment { address, lane: at.lane, multiple, what });
        }
        if at.column >= COLUMNS {
            return Err(TmemError::OutOfBounds { lane: at.lane, column: at.column });
        }
        Ok(TmemAddress { lane: first + at.lane % 32, column: at.column })
    }
}

impl Transfer {
    /// The words of thread `thread`'s register `register`: lane, and one column or the first of
    /// two.
    fn word(&self, bases: &[TmemAddress; 2], thread: u32, register: u32) -> (u32, u32) {
        let base = bases[(thread / 16) as usize];
        let (lane, column) = self.shape.place(thread, register);
        let width = if self.packed { 2 } else { 1 };
        (base.lane + lane, base.column + width * column)
    }

    /// Calls `check` with the rows of words the transfer touches: lane, first column, columns.
    /// Every shape covers a rectangle (two for `.16x32bx2`) without gaps.
    fn rows(
        &self,
        bases: &[TmemAddress; 2],
        mut check: impl FnMut(u32, u32, u32) -> Result<(), TmemError>,
    ) -> Result<(), TmemError> {
        let width = if self.packed { 2 } else { 1 };
        let (lanes, columns, count) = match self.shape {
            LdStShape::S32x32b => (32, self.repeat, 1),
            LdStShape::S16x32bx2 => (16, self.repeat, 2),
            shape => (16, 2 * shape.registers(self.repeat), 1),
        };
        for base in &bases[..count] {
            for lane in base.lane..base.lane + lanes {
                check(lane, base.column, width * columns)?;
            }
        }
        Ok(())
    }
}

impl Tmem {
    /// `tcgen05.ld`: fills `registers[register][thread]`.
    ///
    /// # Errors
    /// A repeat or register count that the shape lacks, lanes of another warp, and anything
    /// [`Tmem::row`] reports.
    pub fn load_warp(&self, transfer: &Transfer, registers: &mut [[u32; 32]]) -> Result<(), TmemError> {
        let bases = transfer.bases(registers.len())?;
        transfer.rows(&bases, |lane, column, count| self.row(lane, column, count).map(drop))?;
        for (r, threads) in (0..).zip(registers) {
            for (t, register) in (0..).zip(threads) {
                let (lane, column) = transfer.word(&bases, t, r);
                let at = (lane * COLUMNS + column) as usize;
                *register = match transfer.packed {
                    true => self.words[at] & 0xffff | self.words[at + 1] << 16,
                    false => self.words[at],
                };
            }
        }
        Ok(())
    }

    /// As [`Tmem::load_warp`], for words that nothing may have written: returns by register the threads whose values hold
    /// such words, and the first of them; `None` if all words were written.
    ///
    /// # Errors
    /// As [`Tmem::load_warp`], but for words never written.
    #[allow(clippy::type_complexity, reason = "a pair, used once")]
    pub fn load_any(
        &self,
        transfer: &Transfer,
        registers: &mut [[u32; 32]],
    ) -> Result<Option<(Vec<u32>, TmemAddress)>, TmemError> {
        match self.load_warp(transfer, registers) {
            Ok(()) => return Ok(None),
            Err(TmemError::NeverWritten { .. }) => {}
            Err(e) => return Err(e),
        }
        let bases = transfer.bases(registers.len())?;
        transfer.rows(&bases, |lane, column, count| self.any_row(lane, column, count).map(drop))?;
        let (mut missing, mut first) = (vec![0; registers.len()], None);
        for (r, threads) in (0..).zip(registers) {
            for (t, register) in (0..).zip(threads) {
                let (lane, column) = transfer.word(&bases, t, r);
                let at = (lane * COLUMNS + column) as usize;
                *register = match transfer.packed {
                    true => self.words[at] & 0xffff | self.words[at + 1] << 16,
                    false => self.words[at],
                };
                let columns = column..=column + u32::from(transfer.packed);
                for word in columns.map(|column| TmemAddress { lane, column }) {
                    if !self.is_written(word.to_bits()) {
                        missing[r as usize] |= 1 << t;
                        first.get_or_insert(word);
                    }
                }
            }
        }
        Ok(first.map(|first| (missing, first)))
    }

    /// Makes the words of some threads' registers count as never written, after a store of values that nothing wrote.
    pub fn forget_warp(&mut self, transfer: &Transfer, missing: &[u32]) {
        let Ok(bases) = transfer.bases(missing.len()) else { return };
        for (r, threads) in (0..).zip(missing) {
            for t in (0..32).filter(|t| threads >> t & 1 == 1) {
                let (lane, column) = transfer.word(&bases, t, r);
                self.forget(lane, column, 1 + u32::from(transfer.packed));
            }
        }
    }

    /// `tcgen05.st`: stores `registers[register][thread]`. An unpacking store clears the upper
    /// halves of the words it writes (what hardware leaves there is not documented).
    ///
    /// # Errors
    /// A repeat or register count that the shape lacks, lanes of another warp, and anything
    /// [`Tmem::row_mut`] reports.
    pub fn store_warp(&mut self, transfer: &Transfer, registers: &[[u32; 32]]) -> Result<(), TmemError> {
        let bases = transfer.bases(registers.len())?;
        // Also marks the words as written.
        transfer.rows(&bases, |lane, column, count| self.row_mut(lane, column, count).map(drop))?;
        for (r, threads) in (0..).zip(registers) {
            for (t, &register) in (0..).zip(threads) {
                let (lane, column) = transfer.word(&bases, t, r);
                let at = (lane * COLUMNS + column) as usize;
                if transfer.packed {
                    self.words[at] = register & 0xffff;
                    self.words[at + 1] = register >> 16;
                } else {
                    self.words[at] = register;
                }
            }
        }
        Ok(())
    }
}
