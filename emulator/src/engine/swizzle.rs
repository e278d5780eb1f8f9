//! The shared-memory swizzle: an XOR on absolute shared addresses, the same in TMA, `wgmma` and
//! `tcgen05`.
//!
//! Sources: PTX ISA, tensor swizzling modes; CUTLASS `cute::Swizzle` of the SMEM layout atoms.

/// A swizzle mode of TMA; the matrix descriptors know the first five but one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SwizzleMode {
    /// Addresses are left alone.
    None,
    /// 16-byte units over 32-byte rows: bit 4 is XORed with bit 7.
    B32,
    /// 16-byte units over 64-byte rows: bits 4..5 are XORed with bits 7..8.
    B64,
    /// 16-byte units over 128-byte rows: bits 4..6 are XORed with bits 7..9.
    B128,
    /// 32-byte units over 128-byte rows: bits 5..6 are XORed with bits 7..8.
    B128Atom32,
    /// [`SwizzleMode::B128Atom32`], and the 8-byte halves of each 16 bytes change places on odd
    /// 128-byte rows. Which parity flips is not documented; odd rows are assumed.
    B128Atom32Flip8,
    /// 64-byte units over 128-byte rows: bit 6 is XORed with bit 7.
    B128Atom64,
}

impl SwizzleMode {
    /// Modes by their names in launch files.
    pub const NAMES: [(&str, Self); 7] = [
        ("none", Self::None),
        ("32b", Self::B32),
        ("64b", Self::B64),
        ("128b", Self::B128),
        ("128b_atom_32b", Self::B128Atom32),
        ("128b_atom_32b_flip_8b", Self::B128Atom32Flip8),
        ("128b_atom_64b", Self::B128Atom64),
    ];

    /// Bytes of one row of the pattern; the inner box of a tensor map may not exceed it.
    /// `None` for [`SwizzleMode::None`].
    pub const fn span(self) -> Option<u32> {
        match self {
            SwizzleMode::None => None,
            SwizzleMode::B32 => Some(32),
            SwizzleMode::B64 => Some(64),
            _ => Some(128),
        }
    }

    /// Bytes that stay together, in order, whatever the address: the length of the largest aligned
    /// run one may move at once. `None` for [`SwizzleMode::None`], where there is no limit.
    pub const fn atom(self) -> Option<u32> {
        match self {
            SwizzleMode::None => None,
            SwizzleMode::B32 | SwizzleMode::B64 | SwizzleMode::B128 => Some(16),
            SwizzleMode::B128Atom32 => Some(32),
            SwizzleMode::B128Atom32Flip8 => Some(8),
            SwizzleMode::B128Atom64 => Some(64),
        }
    }

    /// Where the byte at linear address `address` really lies.
    ///
    /// `address` is an absolute shared-memory byte address, so that a tile which does not start on
    /// a pattern boundary continues the pattern.
    #[inline]
    pub const fn apply(self, address: u32) -> u32 {
        match self {
            SwizzleMode::None => address,
            SwizzleMode::B32 => address ^ (address >> 7 & 1) << 4,
            SwizzleMode::B64 => address ^ (address >> 7 & 3) << 4,
            SwizzleMode::B128 => address ^ (address >> 7 & 7) << 4,
            SwizzleMode::B128Atom32 => address ^ (address >> 7 & 3) << 5,
            SwizzleMode::B128Atom32Flip8 => address ^ (address >> 7 & 3) << 5 ^ (address >> 7 & 1) << 3,
            SwizzleMode::B128Atom64 => address ^ (address >> 7 & 1) << 6,
        }
    }
}
