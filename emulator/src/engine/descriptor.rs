//! 64-bit shared-memory matrix descriptors, and the addresses they stand for.
//!
//! A descriptor names a start address, two strides and a swizzle. The tensor core and `tcgen05.cp`
//! read 16-byte units: unit `u` of line `l`, where a line is a row of K bytes for a K-major operand
//! and one K index for an MN-major one.
//!
//! Sources: PTX ISA, `tcgen05` matrix descriptor and canonical layouts; PTX ISA, `wgmma` matrix
//! descriptor; CUTLASS `mma_sm100_desc.hpp`, `mma_traits_sm90_gmma.hpp`.

use super::SmemReader;
use super::swizzle::SwizzleMode;
use thiserror::Error;

/// Which dimension of an operand is contiguous in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Major {
    /// Consecutive K elements of a row lie side by side.
    K,
    /// Consecutive rows (of A) or columns (of B) lie side by side.
    Mn,
}

/// Why a descriptor is not one the hardware defines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DescriptorError {
    /// Bits that must be zero are not.
    #[error("matrix descriptor {descriptor:#018x}: reserved bits {mask:#018x} must be zero")]
    ReservedBits {
        /// The whole descriptor.
        descriptor: u64,
        /// Which of its bits are set although reserved.
        mask: u64,
    },
    /// Bits 46..48 are not 0b001.
    #[error(
        "matrix descriptor {descriptor:#018x}: bits 46..48 are {found:#05b}, tcgen05 requires \
         0b001 (set bit 46; a wgmma descriptor leaves it clear)"
    )]
    Version {
        /// The whole descriptor.
        descriptor: u64,
        /// The three bits.
        found: u8,
    },
    /// The swizzle field holds a value without meaning.
    #[error(
        "matrix descriptor {descriptor:#018x}: swizzle field is {found}; 0 (none), 1 (128B with 32B \
         atoms), 2 (128B), 4 (64B) and 6 (32B) are defined"
    )]
    Swizzle {
        /// The whole descriptor.
        descriptor: u64,
        /// The field.
        found: u8,
    },
    /// The base offset is not zero.
    #[error(
        "matrix descriptor {descriptor:#018x}: base offset {found} is not modelled; align the tile \
         to its swizzle pattern (1024, 512 or 256 bytes) and leave the field 0"
    )]
    BaseOffset {
        /// The whole descriptor.
        descriptor: u64,
        /// The field.
        found: u8,
    },
    /// Absolute leading-dimension addressing (bit 52) on a chip that lacks it.
    #[error(
        "matrix descriptor {descriptor:#018x}: bit 52 (absolute leading-dimension address) exists \
         on sm_103a only"
    )]
    AbsoluteLeadingDimension {
        /// The whole descriptor.
        descriptor: u64,
    },
    /// The descriptor's swizzle does not suit the operand: 128-byte swizzle with 32-byte atoms is for MN-major
    /// operands of 4-byte elements, which allow no other.
    #[error(
        "swizzle {swizzle:?} does not go with a {major:?}-major operand of {element_bytes}-byte \
         elements: 128B with 32B atoms is for MN-major 4-byte elements, and for them the only one"
    )]
    SwizzleMismatch {
        /// The descriptor's swizzle.
        swizzle: SwizzleMode,
        /// The operand's major dimension.
        major: Major,
        /// Bytes an element takes in shared memory.
        element_bytes: u32,
    },
    /// MN-major operands of elements smaller than a byte.
    #[error("an MN-major operand cannot hold {what}: only 8-bit and larger elements transpose")]
    SubByteMnMajor {
        /// The packing in words.
        what: &'static str,
    },
    /// An MN-major operand whose number of rows does not fill 16-byte units.
    #[error("an MN-major operand of {rows} rows does not fill 16-byte units of {per_unit} elements")]
    PartialUnit {
        /// Rows asked for.
        rows: u32,
        /// Elements in 16 bytes.
        per_unit: u32,
    },
}

/// A decoded matrix descriptor. Addresses and offsets in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmemDescriptor {
    /// Start address: an offset in the CTA's shared window, 16-byte aligned, below 2^18.
    pub start: u32,
    /// Leading-dimension byte offset (LBO).
    pub leading: u32,
    /// Stride-dimension byte offset (SBO).
    pub stride: u32,
    /// Swizzle of the tile.
    pub swizzle: SwizzleMode,
}

/// How elements of one operand lie in its 16-byte units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Packing {
    /// 32-bit words (tf32): 4 in a unit.
    Bits32,
    /// 16-bit elements: 8 in a unit.
    Bits16,
    /// 8-bit elements: 16 in a unit.
    Bits8,
    /// 4-bit elements in 8-bit slots: 16 in a unit, 8 bytes of data and then 8 of padding (the
    /// image TMA makes of `16U4_ALIGN16B`).
    Slot4,
    /// 6-bit elements in 8-bit slots: 16 in a unit, 12 bytes of data and then 4 of padding
    /// (`16U6_ALIGN16B`).
    Slot6,
    /// 4-bit elements, two a byte, the lower index in the low nibble: 32 in a unit.
    Packed4,
}

impl Packing {
    /// Elements in one 16-byte unit.
    pub const fn per_unit(self) -> u32 {
        match self {
            Packing::Bits32 => 4,
            Packing::Bits16 => 8,
            Packing::Bits8 | Packing::Slot4 | Packing::Slot6 => 16,
            Packing::Packed4 => 32,
        }
    }

    /// Elements of K that one instruction consumes: 32 bytes' worth.
    pub const fn k(self) -> u32 {
        2 * self.per_unit()
    }
}

/// One operand of one instruction, gathered: `k` elements of every row in 32 bytes.
///
/// A byte holds an 8-bit element, or a 4- or 6-bit one in its low bits, or (with
/// [`Packing::Packed4`]) two 4-bit ones; wider elements are little-endian. Rows are rows of A or
/// columns of B.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperandTile {
    /// How the bytes are to be read; the slot packings have become one byte an element.
    pub packing: Packing,
    /// Rows of 32 bytes.
    pub rows: Vec<[u8; 32]>,
}

/// Either the descriptor is wrong, or the memory that it points to cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum GatherError<E> {
    /// The descriptor is illegal for this operand.
    #[error(transparent)]
    Descriptor(#[from] DescriptorError),
    /// The caller's reader refused an address.
    #[error("{0}")]
    Memory(E),
}

impl SmemDescriptor {
    /// Decodes a descriptor of `tcgen05.mma` or `tcgen05.cp` on sm_100a.
    ///
    /// # Errors
    /// [`DescriptorError`] for anything the ISA does not define on this chip.
    pub fn decode_sm100(bits: u64) -> Result<Self, DescriptorError> {
        // 14..15, 30..31 and 53..60 are zero.
        const RESERVED: u64 = 0b11 << 14 | 0b11 << 30 | 0xff << 53;
        let descriptor = bits;
        if bits & RESERVED != 0 {
            return Err(DescriptorError::ReservedBits { descriptor, mask: bits & RESERVED });
        }
        let version = (bits >> 46 & 7) as u8;
        if version != 1 {
            return Err(DescriptorError::Version { descriptor, found: version });
        }
        if bits >> 52 & 1 == 1 {
            return Err(DescriptorError::AbsoluteLeadingDimension { descriptor });
        }
        let swizzle = match (bits >> 61) as u8 {
            0 => SwizzleMode::None,
            1 => SwizzleMode::B128Atom32,
            2 => SwizzleMode::B128,
            4 => SwizzleMode::B64,
            6 => SwizzleMode::B32,
            found => return Err(DescriptorError::Swizzle { descriptor, found }),
        };
        Self::with_strides(bits, swizzle)
    }

    /// Decodes a descriptor of `wgmma` on sm_90a.
    ///
    /// # Errors
    /// [`DescriptorError`] for anything the ISA does not define on this chip.
    pub fn decode_sm90(bits: u64) -> Result<Self, DescriptorError> {
        // 14..15, 30..31, 46..48 and 52..61 are zero.
        const RESERVED: u64 = 0b11 << 14 | 0b11 << 30 | 0b111 << 46 | 0x3ff << 52;
        if bits & RESERVED != 0 {
            return Err(DescriptorError::ReservedBits { descriptor: bits, mask: bits & RESERVED });
        }
        let swizzle = match bits >> 62 {
            0 => SwizzleMode::None,
            1 => SwizzleMode::B128,
            2 => SwizzleMode::B64,
            _ => SwizzleMode::B32,
        };
        Self::with_strides(bits, swizzle)
    }

    fn with_strides(bits: u64, swizzle: SwizzleMode) -> Result<Self, DescriptorError> {
        let base_offset = (bits >> 49 & 7) as u8;
        // Without a swizzle there is no pattern whose start could be off.
        if base_offset != 0 && swizzle != SwizzleMode::None {
            return Err(DescriptorError::BaseOffset { descriptor: bits, found: base_offset });
        }
        let field = |low: u32| ((bits >> low & 0x3fff) << 4) as u32;
        Ok(Self { start: field(0), leading: field(16), stride: field(32), swizzle })
    }

    /// Address of 16-byte unit `unit` (along K) of row `row` of a K-major operand.
    #[inline]
    pub fn k_major_unit(&self, row: u32, unit: u32) -> u32 {
        let (pitch, along) = match self.swizzle.span() {
            None => (16, unit * self.leading),
            // Inside the swizzled row units are neighbours and LBO is ignored.
            Some(span) => (span, unit % (span / 16) * 16 + unit / (span / 16) * self.leading),
        };
        self.locate(row % 8 * pitch + row / 8 * self.stride + along)
    }

    /// Address of 16-byte unit `unit` (along M or N) at K index `k` of an MN-major operand.
    #[inline]
    pub fn mn_major_unit(&self, unit: u32, k: u32) -> u32 {
        let offset = match self.swizzle.span() {
            None => unit * self.stride + k % 8 * 16 + k / 8 * self.leading,
            Some(span) => {
                let units = span / 16;
                let group = if self.swizzle == SwizzleMode::B128Atom32 { 4 } else { 8 };
                unit % units * 16 + unit / units * self.leading + k % group * span + k / group * self.stride
            }
        };
        self.locate(offset)
    }

    /// The operand from row (of A, or column of B) `first` on, a multiple of 16.
    #[must_use]
    pub fn from_row(&self, major: Major, packing: Packing, first: u32) -> Self {
        let offset = match major {
            Major::K => first / 8 * self.stride,
            Major::Mn => {
                let unit = first / packing.per_unit();
                match self.swizzle.span() {
                    None => unit * self.stride,
                    Some(span) => unit % (span / 16) * 16 + unit / (span / 16) * self.leading,
                }
            }
        };
        Self { start: self.start.wrapping_add(offset), ..*self }
    }

    /// Start plus offset, in the 18 bits the hardware keeps, swizzled.
    #[inline]
    fn locate(&self, offset: u32) -> u32 {
        self.swizzle.apply(self.start.wrapping_add(offset) & 0x3_ffff)
    }

    /// Reads the operand of one instruction: `rows` rows of 32 bytes of K (as the tensor core
    /// counts, where 4- and 6-bit elements in 8-bit slots count one byte).
    ///
    /// # Errors
    /// [`GatherError::Descriptor`] if swizzle, major dimension and element size do not go together;
    /// [`GatherError::Memory`] for the first unit the reader refuses.
    pub fn gather<E>(
        &self,
        major: Major,
        packing: Packing,
        rows: u32,
        read: &mut SmemReader<'_, E>,
    ) -> Result<OperandTile, GatherError<E>> {
        self.gather_from(major, packing, rows, 0, read)
    }

    /// As [`SmemDescriptor::gather`], of the `step`-th 32 bytes of K: B of a sparse product has two.
    ///
    /// # Errors
    /// As [`SmemDescriptor::gather`].
    pub fn gather_from<E>(
        &self,
        major: Major,
        packing: Packing,
        rows: u32,
        step: u32,
        read: &mut SmemReader<'_, E>,
    ) -> Result<OperandTile, GatherError<E>> {
        self.check_operand(major, packing, rows)?;
        let mut tile = vec![[0u8; 32]; rows as usize];
        match major {
            Major::K => {
                let mut unit = [0u8; 16];
                // The padding of 8-bit slots is never read, so nothing need have written it.
                let payload = match packing {
                    Packing::Slot4 => 8,
                    Packing::Slot6 => 12,
                    _ => 16,
                };
                for (row, out) in tile.iter_mut().enumerate() {
                    for u in 0..2 {
                        let address = self.k_major_unit(row as u32, u + 2 * step);
                        read(address, &mut unit[..payload]).map_err(GatherError::Memory)?;
                        let half = &mut out[16 * u as usize..][..16];
                        half.copy_from_slice(&spread_slots(packing, unit));
                    }
                }
            }
            Major::Mn => {
                let per_unit = packing.per_unit() as usize;
                let bytes = 16 / per_unit;
                let mut unit = [0u8; 16];
                for k in 0..packing.k() as usize {
                    for (u, lines) in tile.chunks_exact_mut(per_unit).enumerate() {
                        let address = self.mn_major_unit(u as u32, k as u32 + step * packing.k());
                        read(address, &mut unit).map_err(GatherError::Memory)?;
                        for (element, row) in unit.chunks_exact(bytes).zip(lines) {
                            row[k * bytes..][..bytes].copy_from_slice(element);
                        }
                    }
                }
            }
        }
        let packing = match packing {
            Packing::Slot4 | Packing::Slot6 => Packing::Bits8,
            other => other,
        };
        Ok(OperandTile { packing, rows: tile })
    }

    fn check_operand(&self, major: Major, packing: Packing, rows: u32) -> Result<(), DescriptorError> {
        let wide_transpose = major == Major::Mn && packing == Packing::Bits32;
        if (self.swizzle == SwizzleMode::B128Atom32) != wide_transpose {
            return Err(DescriptorError::SwizzleMismatch {
                swizzle: self.swizzle,
                major,
                element_bytes: (16 / packing.per_unit()).max(1),
            });
        }
        if major == Major::Mn {
            let what = match packing {
                Packing::Packed4 => "packed 4-bit elements",
                Packing::Slot4 => "4-bit elements in 8-bit slots",
                Packing::Slot6 => "6-bit elements in 8-bit slots",
                _ => "",
            };
            if !what.is_empty() {
                return Err(DescriptorError::SubByteMnMajor { what });
            }
            let per_unit = packing.per_unit();
            if !rows.is_multiple_of(per_unit) {
                return Err(DescriptorError::PartialUnit { rows, per_unit });
            }
        }
        Ok(())
    }
}

/// Turns a unit of sub-byte elements in 8-bit slots into one byte an element, in the low bits.
pub(crate) fn spread_slots(packing: Packing, unit: [u8; 16]) -> [u8; 16] {
    match packing {
        Packing::Slot4 => std::array::from_fn(|i| unit[i / 2] >> (i % 2 * 4) & 0xf),
        Packing::Slot6 => std::array::from_fn(|i| {
            let bit = 6 * i;
            // The last element starts at bit 90 and ends inside byte 11; byte 12 is padding.
            let pair = u16::from_le_bytes([unit[bit / 8], unit[bit / 8 + 1]]);
            (pair >> (bit % 8) & 0x3f) as u8
        }),
        _ => unit,
    }
}
