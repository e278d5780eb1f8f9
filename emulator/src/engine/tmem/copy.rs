//! `tcgen05.cp` (shared memory to Tensor Memory) and `tcgen05.shift`.
//!
//! Sources: PTX ISA, `tcgen05.cp` and `tcgen05.shift`; CUTLASS `copy_traits_sm100.hpp`; TVM's layout
//! notes, which were checked on hardware.

use super::super::SmemReader;
use super::super::descriptor::{DescriptorError, Packing, SmemDescriptor, spread_slots};
use super::{LANES, Tmem, TmemAddress, TmemError};
use thiserror::Error;

/// Shape and multicast of `tcgen05.cp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CpShape {
    /// `.128x256b`: row r to lane r, 8 columns.
    S128x256b,
    /// `.128x128b`: row r to lane r, 4 columns.
    S128x128b,
    /// `.4x256b`: row r to lane 32 r, 8 columns.
    S4x256b,
    /// `.64x128b.warpx2::02_13`: row r to lanes r and r + 64, 4 columns.
    S64x128bWarpx2At02And13,
    /// `.64x128b.warpx2::01_23`: row r to lanes r % 32 + 64 (r / 32) and 32 further, 4 columns.
    S64x128bWarpx2At01And23,
    /// `.32x128b.warpx4`: row r to lanes r, r + 32, r + 64, r + 96, 4 columns.
    S32x128bWarpx4,
}

impl CpShape {
    /// Rows read from shared memory.
    pub const fn rows(self) -> u32 {
        match self {
            CpShape::S128x256b | CpShape::S128x128b => 128,
            CpShape::S4x256b => 4,
            CpShape::S64x128bWarpx2At02And13 | CpShape::S64x128bWarpx2At01And23 => 64,
            CpShape::S32x128bWarpx4 => 32,
        }
    }

    /// 16-byte units (4 columns) of one row.
    pub const fn units(self) -> u32 {
        match self {
            CpShape::S128x256b | CpShape::S4x256b => 2,
            _ => 1,
        }
    }

    /// The lanes that row `row` goes to, relative to the address: first lane, number of lanes, and
    /// distance between them.
    pub const fn lanes(self, row: u32) -> (u32, u32, u32) {
        match self {
            CpShape::S128x256b | CpShape::S128x128b => (row, 1, 0),
            CpShape::S4x256b => (32 * row, 1, 0),
            CpShape::S64x128bWarpx2At02And13 => (row, 2, 64),
            CpShape::S64x128bWarpx2At01And23 => (row % 32 + 64 * (row / 32), 2, 32),
            CpShape::S32x128bWarpx4 => (row, 4, 32),
        }
    }
}

/// Decompression of `tcgen05.cp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CpDecompress {
    /// `.b8x16.b4x16_p64`: 16 4-bit elements and 8 bytes of padding become 16 bytes, each element
    /// in bits 2..5 (0b00ABCD00).
    B4x16P64,
    /// `.b8x16.b6x16_p32`: 16 6-bit elements and 4 bytes of padding become 16 bytes, each element in
    /// bits 0..5.
    B6x16P32,
}

/// Why a `tcgen05.cp` failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CpError<E> {
    /// The descriptor is illegal.
    #[error(transparent)]
    Descriptor(#[from] DescriptorError),
    /// The destination is.
    #[error(transparent)]
    Tmem(#[from] TmemError),
    /// The caller's reader refused an address.
    #[error("{0}")]
    Memory(E),
}

impl Tmem {
    /// `tcgen05.cp` of one CTA; with `cta_group::2`, call it for each CTA of the pair with that
    /// CTA's shared memory.
    ///
    /// # Errors
    /// An illegal descriptor, a destination outside live columns, or the reader's error.
    pub fn copy_from_smem<E>(
        &mut self,
        shape: CpShape,
        decompress: Option<CpDecompress>,
        address: u32,
        descriptor: u64,
        read: &mut SmemReader<'_, E>,
    ) -> Result<(), CpError<E>> {
        let source = SmemDescriptor::decode_sm100(descriptor)?;
        let base = TmemAddress::from_bits(address);
        for row in 0..shape.rows() {
            for unit in 0..shape.units() {
                let mut bytes = [0u8; 16];
                read(source.k_major_unit(row, unit), &mut bytes).map_err(CpError::Memory)?;
                let bytes = match decompress {
                    None => bytes,
                    Some(CpDecompress::B4x16P64) => spread_slots(Packing::Slot4, bytes).map(|code| code << 2),
                    Some(CpDecompress::B6x16P32) => spread_slots(Packing::Slot6, bytes),
                };
                let (first, count, step) = shape.lanes(row);
                for copy in 0..count {
                    let lane = base.lane + first + copy * step;
                    let words = self.row_mut(lane, base.column + 4 * unit, 4)?;
                    for (word, four) in words.iter_mut().zip(bytes.as_chunks::<4>().0) {
                        *word = u32::from_le_bytes(*four);
                    }
                }
            }
        }
        Ok(())
    }

    /// Marks words of Tensor Memory as never written where a `tcgen05.cp` copied bytes that nothing had written.
    /// `written` says of an offset and a number of bytes of shared memory whether all were written.
    pub fn forget_copied(
        &mut self,
        shape: CpShape,
        decompress: Option<CpDecompress>,
        address: u32,
        descriptor: u64,
        written: impl Fn(u32, u32) -> bool,
    ) {
        let Ok(source) = SmemDescriptor::decode_sm100(descriptor) else { return };
        let base = TmemAddress::from_bits(address);
        for row in 0..shape.rows() {
            for unit in 0..shape.units() {
                let from = source.k_major_unit(row, unit);
                // Decompression spreads the bytes of a unit: it counts as a whole.
                let whole = decompress.is_some() && !written(from, 16);
                let (first, count, step) = shape.lanes(row);
                for word in (0..4).filter(|word| whole || !written(from + 4 * word, 4)) {
                    for copy in 0..count {
                        self.forget(base.lane + first + copy * step, base.column + 4 * unit + word, 1);
                    }
                }
            }
        }
    }

    /// `tcgen05.shift.down`: in the 8 columns at `address`, every lane from the address's on takes
    /// what the lane after it held; the last keeps its own.
    ///
    /// The direction follows from CUTLASS, which then renews the last lane of each quarter with
    /// `cp.4x256b`; whether the shift crosses from one quarter into the next is not documented.
    /// Lanes 31, 63 and 95 therefore count as never written until something renews them.
    ///
    /// # Errors
    /// A lane that is not a multiple of 32, and anything [`Tmem::row`] reports.
    pub fn shift_down(&mut self, address: u32) -> Result<(), TmemError> {
        let base = TmemAddress::from_bits(address);
        if !base.lane.is_multiple_of(32) {
            let (lane, what) = (base.lane, "tcgen05.shift");
            return Err(TmemError::LaneAlignment { address, lane, multiple: 32, what });
        }
        for lane in base.lane..LANES - 1 {
            let mut moved = [0; 8];
            moved.copy_from_slice(self.any_row(lane + 1, base.column, 8)?);
            self.row_mut(lane, base.column, 8)?.copy_from_slice(&moved);
            // Words that nothing wrote stay so where they go.
            for column in base.column..base.column + 8 {
                if !self.is_written(TmemAddress { lane: lane + 1, column }.to_bits()) {
                    self.forget(lane, column, 1);
                }
            }
        }
        for lane in (31..LANES - 1).step_by(32).filter(|&lane| lane >= base.lane) {
            self.forget(lane, base.column, 8);
        }
        Ok(())
    }
}
