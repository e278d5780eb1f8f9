//! The 128 bytes of a tensor map.
//!
//! NVIDIA's encoding is opaque. This one is the emulator's own, with a mark and a checksum, so that
//! a kernel which is handed anything else is told so.
//!
//! | bytes | content |
//! |---|---|
//! | 0..8 | mark `SILUMAP1` |
//! | 8..12 | FNV-1a of bytes 12..128 |
//! | 12..18 | data type, rank, interleave, swizzle, L2 promotion, fill |
//! | 18..23 | element strides |
//! | 23 | swizzle atomicity that `tensormap.replace` set: 0 16 B, 1 32 B, 2 32 B with flip, 3 64 B |
//! | 24..32 | global address |
//! | 32..72 | dimensions, as u64 |
//! | 72..104 | strides, as u64 |
//! | 104..114 | box, as u16 |

use super::im2col::FLAG;
use super::{DataType, Interleave, L2Promotion, OobFill, TensorMapError, TensorMapParams};
use crate::engine::swizzle::SwizzleMode;
use crate::program::MapField;
use thiserror::Error;

const MARK: &[u8; 8] = b"SILUMAP1";

const SWIZZLES: [SwizzleMode; 7] = [
    SwizzleMode::None,
    SwizzleMode::B32,
    SwizzleMode::B64,
    SwizzleMode::B128,
    SwizzleMode::B128Atom32,
    SwizzleMode::B128Atom32Flip8,
    SwizzleMode::B128Atom64,
];

/// The code of 128-byte swizzle with a given atomicity, which the driver numbers on from it.
fn swizzle_code(mode: u32, atomicity: u32) -> u32 {
    if mode == 3 { 3 + atomicity } else { mode }
}

/// `tensormap.replace`: sets one field of a map, whose rules are checked when it is used.
///
/// A map of zeros is a fresh one, as kernels make them. Numbers of the ISA's own order (element
/// types, swizzles) become those of the driver. Source: PTX ISA, `tensormap.replace`.
pub(crate) fn replace(
    map: &mut [u8; 128],
    field: MapField,
    ordinal: u32,
    value: u64,
) -> Result<(), ForeignTensorMap> {
    // The ISA's element types, as the driver numbers them.
    const TYPES: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 10, 8, 9, 11, 12, 13, 14, 15];
    if map.iter().all(|&b| b == 0) {
        map[..8].copy_from_slice(MARK);
    } else if let Some(&start) = map.first_chunk::<8>().filter(|&start| start != MARK) {
        return Err(ForeignTensorMap::Mark { start });
    }
    let illegal = |field| ForeignTensorMap::Field { field, value: value.min(255) as u8 };
    let limited = |field, n: u64| if value < n { Ok(value as u8) } else { Err(illegal(field)) };
    let ordinal = ordinal as usize;
    let last = if field == MapField::GlobalStride { 3 } else { 4 };
    if ordinal > last {
        return Err(ForeignTensorMap::Field { field: "the ordinal", value: ordinal.min(255) as u8 });
    }
    match field {
        MapField::GlobalAddress => map[24..32].copy_from_slice(&value.to_le_bytes()),
        MapField::Rank => map[13] = limited("rank", 5)? + 1,
        MapField::BoxDim => {
            map[104 + 2 * ordinal..][..2].copy_from_slice(&(value.min(0xffff) as u16).to_le_bytes());
        }
        // 32 bits, where zero stands for 2^32.
        MapField::GlobalDim => {
            let dim = if value as u32 == 0 { 1 << 32 } else { u64::from(value as u32) };
            map[32 + 8 * ordinal..][..8].copy_from_slice(&dim.to_le_bytes());
        }
        MapField::GlobalStride => map[72 + 8 * ordinal..][..8].copy_from_slice(&value.to_le_bytes()),
        MapField::ElementStride => map[18 + ordinal] = value.min(255) as u8,
        MapField::Elemtype => map[12] = TYPES[usize::from(limited("elemtype", 16)?)],
        MapField::Interleave => map[14] = limited("interleave", 3)?,
        MapField::Swizzle => map[15] = limited("swizzle", 4)?,
        MapField::SwizzleAtomicity => map[23] = limited("swizzle atomicity", 4)?,
        MapField::Fill => map[17] = limited("fill", 2)?,
    }
    if map[15] > 3 {
        // As the driver numbers it: mode and atomicity in one.
        (map[15], map[23]) = (3, map[15] - 3);
    }
    let sum = checksum(&map[12..]);
    map[8..12].copy_from_slice(&sum.to_le_bytes());
    Ok(())
}

/// Writes the checksum.
pub(super) fn seal(map: &mut [u8; 128]) {
    let sum = checksum(&map[12..]);
    map[8..12].copy_from_slice(&sum.to_le_bytes());
}

/// Why 128 bytes are not a tensor map of this emulator.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ForeignTensorMap {
    /// The mark is missing.
    #[error(
        "these 128 bytes are not a tensor map of this emulator (they start {start:02x?}): pass the \
         128 bytes that its encode function made, at the address the kernel uses"
    )]
    Mark {
        /// The first eight bytes.
        start: [u8; 8],
    },
    /// The mark is there, but the rest was altered.
    #[error(
        "a tensor map was altered after it was encoded: checksum {found:#010x}, expected {expected:#010x}"
    )]
    Checksum {
        /// The stored checksum.
        found: u32,
        /// The checksum that the bytes should have.
        expected: u32,
    },
    /// A field holds a number without meaning.
    #[error("a tensor map holds {value} in {field}")]
    Field {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u8,
    },
    /// The fields break a rule.
    #[error(transparent)]
    Rule(#[from] TensorMapError),
}

fn checksum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, &b| (hash ^ u32::from(b)).wrapping_mul(0x0100_0193))
}

impl SwizzleMode {
    /// The mode of a `CUtensorMapSwizzle` value.
    pub fn from_tensor_map_code(code: u32) -> Option<Self> {
        SWIZZLES.get(code as usize).copied()
    }

    /// Its `CUtensorMapSwizzle` value.
    pub fn tensor_map_code(self) -> u32 {
        SWIZZLES.iter().position(|&mode| mode == self).unwrap_or(0) as u32
    }
}

impl Interleave {
    /// The mode of a `CUtensorMapInterleave` value.
    pub const fn from_code(code: u32) -> Option<Self> {
        Some(match code {
            0 => Self::None,
            1 => Self::B16,
            2 => Self::B32,
            _ => return None,
        })
    }
}

impl L2Promotion {
    /// The mode of a `CUtensorMapL2promotion` value.
    pub const fn from_code(code: u32) -> Option<Self> {
        Some(match code {
            0 => Self::None,
            1 => Self::B64,
            2 => Self::B128,
            3 => Self::B256,
            _ => return None,
        })
    }
}

impl OobFill {
    /// The mode of a `CUtensorMapFloatOOBfill` value.
    pub const fn from_code(code: u32) -> Option<Self> {
        Some(match code {
            0 => Self::Zeros,
            1 => Self::NanRequestZeroFma,
            _ => return None,
        })
    }
}

impl TensorMapParams {
    /// Checks the arguments and packs them.
    ///
    /// # Errors
    /// As [`TensorMapParams::validate`].
    pub fn encode(&self) -> Result<[u8; 128], TensorMapError> {
        self.validate()?;
        let mut out = [0u8; 128];
        out[..8].copy_from_slice(MARK);
        out[12] = self.data_type as u8;
        out[13] = self.rank() as u8;
        out[14] = self.interleave as u8;
        out[15] = self.swizzle.tensor_map_code() as u8;
        out[16] = self.l2_promotion as u8;
        out[17] = self.oob_fill as u8;
        for (byte, &stride) in out[18..23].iter_mut().zip(&self.element_strides) {
            *byte = stride as u8;
        }
        out[24..32].copy_from_slice(&self.global_address.to_le_bytes());
        for (word, dim) in out[32..72].chunks_exact_mut(8).zip(&self.global_dims) {
            word.copy_from_slice(&dim.to_le_bytes());
        }
        for (word, stride) in out[72..104].chunks_exact_mut(8).zip(&self.global_strides) {
            word.copy_from_slice(&stride.to_le_bytes());
        }
        for (half, &dim) in out[104..114].chunks_exact_mut(2).zip(&self.box_dims) {
            half.copy_from_slice(&(dim as u16).to_le_bytes());
        }
        seal(&mut out);
        Ok(out)
    }

    /// Unpacks what [`TensorMapParams::encode`] packed.
    ///
    /// # Errors
    /// [`ForeignTensorMap`] for any other 128 bytes.
    pub fn decode(bytes: &[u8; 128]) -> Result<Self, ForeignTensorMap> {
        let (start, rest) = (bytes.first_chunk::<8>(), &bytes[8..]);
        if let Some(&start) = start.filter(|&start| start != MARK) {
            return Err(ForeignTensorMap::Mark { start });
        }
        let word = |at: usize| -> u64 {
            let mut le = [0; 8];
            le.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(le)
        };
        let found = word(8) as u32;
        let expected = checksum(&rest[4..]);
        if found != expected {
            return Err(ForeignTensorMap::Checksum { found, expected });
        }
        let field =
            |field: &'static str, at: usize| move || ForeignTensorMap::Field { field, value: bytes[at] };
        let rank = usize::from(bytes[13]);
        if !(1..=5).contains(&rank) {
            return Err(TensorMapError::Rank { rank }.into());
        }
        let code = |at: usize| u32::from(bytes[at]);
        let params = Self {
            data_type: DataType::from_code(code(12)).ok_or_else(field("dataType", 12))?,
            interleave: Interleave::from_code(code(14)).ok_or_else(field("interleave", 14))?,
            swizzle: SwizzleMode::from_tensor_map_code(swizzle_code(code(15), code(23)))
                .ok_or_else(field("swizzle", 15))?,
            l2_promotion: L2Promotion::from_code(code(16)).ok_or_else(field("l2Promotion", 16))?,
            oob_fill: OobFill::from_code(code(17)).ok_or_else(field("oobFill", 17))?,
            global_address: word(24),
            global_dims: (0..rank).map(|d| word(32 + 8 * d)).collect(),
            global_strides: (1..rank).map(|d| word(64 + 8 * d)).collect(),
            box_dims: (0..rank)
                .map(|d| match bytes[FLAG] {
                    // In im2col mode corners are there.
                    1 if d > 0 => 1,
                    _ => u32::from(u16::from_le_bytes([bytes[104 + 2 * d], bytes[105 + 2 * d]])),
                })
                .collect(),
            element_strides: (0..rank).map(|d| u32::from(bytes[18 + d])).collect(),
        };
        params.validate()?;
        Ok(params)
    }
}
