//! The TMA engine: tensor maps, and which bytes a box moves from where to where.
//!
//! - this file: what a tensor map says, and the rules it must obey
//! - [`encoding`]: the 128 bytes it travels in
//! - [`boxes`]: the walk over one box
//!
//! Sources: CUDA driver API, `cuTensorMapEncodeTiled`; PTX ISA, tensors and `cp.async.bulk.tensor`.

pub mod boxes;
pub mod encoding;
pub mod im2col;

pub use boxes::{BoxError, Chunk};
pub use encoding::ForeignTensorMap;

use super::swizzle::SwizzleMode;
use thiserror::Error;

/// Element type of a tensor map; numbered as `CUtensorMapDataType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DataType {
    /// 8-bit unsigned.
    U8 = 0,
    /// 16-bit unsigned.
    U16 = 1,
    /// 32-bit unsigned.
    U32 = 2,
    /// 32-bit signed.
    I32 = 3,
    /// 64-bit unsigned.
    U64 = 4,
    /// 64-bit signed.
    I64 = 5,
    /// binary16.
    F16 = 6,
    /// binary32.
    F32 = 7,
    /// binary64.
    F64 = 8,
    /// bfloat16.
    Bf16 = 9,
    /// binary32, subnormals flushed by reductions.
    F32Ftz = 10,
    /// tf32 in 32 bits.
    Tf32 = 11,
    /// tf32, subnormals flushed by reductions.
    Tf32Ftz = 12,
    /// Sixteen 4-bit elements, 8 bytes in global and in shared memory.
    U4x16Align8B = 13,
    /// Sixteen 4-bit elements, 8 bytes in global memory, 8 and 8 of padding in shared memory.
    U4x16Align16B = 14,
    /// Sixteen 6-bit elements, 12 bytes in global memory, 12 and 4 of padding in shared memory.
    U6x16Align16B = 15,
}

impl DataType {
    /// Types by their names in launch files.
    pub const NAMES: [(&str, Self); 16] = [
        ("u8", Self::U8),
        ("u16", Self::U16),
        ("u32", Self::U32),
        ("i32", Self::I32),
        ("u64", Self::U64),
        ("i64", Self::I64),
        ("f16", Self::F16),
        ("f32", Self::F32),
        ("f64", Self::F64),
        ("bf16", Self::Bf16),
        ("f32_ftz", Self::F32Ftz),
        ("tf32", Self::Tf32),
        ("tf32_ftz", Self::Tf32Ftz),
        ("16u4_align8b", Self::U4x16Align8B),
        ("16u4_align16b", Self::U4x16Align16B),
        ("16u6_align16b", Self::U6x16Align16B),
    ];

    /// The type of a `CUtensorMapDataType` value.
    pub const fn from_code(code: u32) -> Option<Self> {
        Some(match code {
            0 => Self::U8,
            1 => Self::U16,
            2 => Self::U32,
            3 => Self::I32,
            4 => Self::U64,
            5 => Self::I64,
            6 => Self::F16,
            7 => Self::F32,
            8 => Self::F64,
            9 => Self::Bf16,
            10 => Self::F32Ftz,
            11 => Self::Tf32,
            12 => Self::Tf32Ftz,
            13 => Self::U4x16Align8B,
            14 => Self::U4x16Align16B,
            15 => Self::U6x16Align16B,
            _ => return None,
        })
    }

    /// Bits of an element in global memory.
    pub const fn bits(self) -> u32 {
        match self {
            Self::U8 => 8,
            Self::U16 | Self::F16 | Self::Bf16 => 16,
            Self::U64 | Self::I64 | Self::F64 => 64,
            Self::U4x16Align8B | Self::U4x16Align16B => 4,
            Self::U6x16Align16B => 6,
            _ => 32,
        }
    }

    /// Whether an out-of-bounds element can be filled with NaN.
    pub const fn is_float(self) -> bool {
        matches!(
            self,
            Self::F16 | Self::F32 | Self::F64 | Self::Bf16 | Self::F32Ftz | Self::Tf32 | Self::Tf32Ftz
        )
    }

    /// Whether 16 elements are padded to 16 bytes in shared memory.
    pub const fn is_padded(self) -> bool {
        matches!(self, Self::U4x16Align16B | Self::U6x16Align16B)
    }
}

/// `CUtensorMapInterleave`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Interleave {
    /// The usual layout.
    None = 0,
    /// NC/8HWC8; not modelled.
    B16 = 1,
    /// NC/16HWC16; not modelled.
    B32 = 2,
}

impl Interleave {
    /// Layouts by their names in launch files.
    pub const NAMES: [(&str, Self); 3] = [("none", Self::None), ("16b", Self::B16), ("32b", Self::B32)];
}

/// `CUtensorMapL2promotion`: a hint without effect on results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum L2Promotion {
    /// None.
    None = 0,
    /// 64 bytes.
    B64 = 1,
    /// 128 bytes.
    B128 = 2,
    /// 256 bytes.
    B256 = 3,
}

impl L2Promotion {
    /// Promotions by their names in launch files.
    pub const NAMES: [(&str, Self); 4] =
        [("none", Self::None), ("64b", Self::B64), ("128b", Self::B128), ("256b", Self::B256)];
}

/// `CUtensorMapFloatOOBfill`: the fill value of a load outside the tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum OobFill {
    /// Zeros.
    Zeros = 0,
    /// NaN, for floating-point types.
    NanRequestZeroFma = 1,
}

impl OobFill {
    /// Fills by their names in launch files; `none` is zeros.
    pub const NAMES: [(&str, Self); 3] =
        [("none", Self::Zeros), ("zeros", Self::Zeros), ("nan_request_zero_fma", Self::NanRequestZeroFma)];
}

/// The arguments of `cuTensorMapEncodeTiled`. Dimension 0 is the contiguous one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorMapParams {
    /// Element type.
    pub data_type: DataType,
    /// Address of element 0.
    pub global_address: u64,
    /// Elements along each dimension; its length is the rank, 1..=5.
    pub global_dims: Vec<u64>,
    /// Bytes from one element to the next along dimension i + 1; rank - 1 of them.
    pub global_strides: Vec<u64>,
    /// Elements of a box along each dimension.
    pub box_dims: Vec<u32>,
    /// Take every n-th element of the box along each dimension. The first is ignored.
    pub element_strides: Vec<u32>,
    /// Interleaved layout.
    pub interleave: Interleave,
    /// Swizzle in shared memory.
    pub swizzle: SwizzleMode,
    /// Cache hint.
    pub l2_promotion: L2Promotion,
    /// Fill outside the tensor.
    pub oob_fill: OobFill,
}

/// A rule of `cuTensorMapEncodeTiled` that the arguments break.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TensorMapError {
    /// Rank outside 1..=5.
    #[error("tensorRank is {rank}: a tensor map has 1 to 5 dimensions")]
    Rank {
        /// The rank.
        rank: usize,
    },
    /// An array whose length does not follow the rank.
    #[error("{field} has {found} entries: a tensor of rank {rank} takes {expected}")]
    Length {
        /// The argument.
        field: &'static str,
        /// Its length.
        found: usize,
        /// The rank.
        rank: usize,
        /// The length it should have.
        expected: usize,
    },
    /// An interleaved layout, which is not modelled.
    #[error("interleave is {interleave:?}: interleaved tensor maps are not modelled, use None")]
    Interleave {
        /// The mode.
        interleave: Interleave,
    },
    /// Base address alignment.
    #[error("globalAddress is {address:#x}: it must be a multiple of {alignment} bytes for {data_type:?}")]
    GlobalAddress {
        /// The address.
        address: u64,
        /// Bytes.
        alignment: u64,
        /// The element type.
        data_type: DataType,
    },
    /// A dimension outside 1..=2^32.
    #[error("globalDim[{dimension}] is {value}: it must be from 1 to 2^32 elements")]
    GlobalDim {
        /// The dimension, 0 for the innermost.
        dimension: usize,
        /// Its value.
        value: u64,
    },
    /// The inner dimension of a packed type.
    #[error("globalDim[0] is {value}: it must be a multiple of {multiple} elements for {data_type:?}")]
    PackedDim {
        /// Its value.
        value: u64,
        /// The required divisor.
        multiple: u64,
        /// The element type.
        data_type: DataType,
    },
    /// Stride alignment.
    #[error("globalStrides[{index}] is {value} bytes: it must be a multiple of {multiple} for {data_type:?}")]
    StrideAlignment {
        /// Index of the stride.
        index: usize,
        /// Its value.
        value: u64,
        /// The required divisor.
        multiple: u64,
        /// The element type.
        data_type: DataType,
    },
    /// Stride too large.
    #[error("globalStrides[{index}] is {value} bytes: it must be less than 2^40")]
    StrideRange {
        /// Index of the stride.
        index: usize,
        /// Its value.
        value: u64,
    },
    /// A box dimension outside 1..=256.
    #[error("boxDim[{dimension}] is {value}: it must be from 1 to 256 elements")]
    BoxDim {
        /// The dimension, 0 for the innermost.
        dimension: usize,
        /// Its value.
        value: u32,
    },
    /// Inner box bytes not a multiple of 16.
    #[error("boxDim[0] is {value} elements of {bits} bits: the inner box must be a multiple of 16 bytes")]
    InnerBoxGranularity {
        /// Elements.
        value: u32,
        /// Bits of an element.
        bits: u32,
    },
    /// Inner box of a padded type.
    #[error("boxDim[0] is {value}: it must be exactly 128 for {data_type:?}")]
    PaddedInnerBox {
        /// Elements.
        value: u32,
        /// The element type.
        data_type: DataType,
    },
    /// Inner box larger than the swizzle span.
    #[error("boxDim[0] is {bytes} bytes in shared memory: swizzle {swizzle:?} allows at most {span}")]
    InnerBoxSpan {
        /// Bytes of a box row in shared memory.
        bytes: u32,
        /// The swizzle.
        swizzle: SwizzleMode,
        /// Bytes that the swizzle permutes, which a box row must fit into.
        span: u32,
    },
    /// Element stride outside 1..=8.
    #[error("elementStrides[{dimension}] is {value}: it must be from 1 to 8")]
    ElementStride {
        /// The dimension, 0 for the innermost.
        dimension: usize,
        /// Its value.
        value: u32,
    },
    /// Swizzle of a padded type.
    #[error("swizzle is {swizzle:?}: {data_type:?} goes with None, 128B and 128B_ATOM_32B only")]
    PaddedSwizzle {
        /// The swizzle.
        swizzle: SwizzleMode,
        /// The element type.
        data_type: DataType,
    },
    /// NaN fill of a type without NaN.
    #[error("oobFill is NaN: {data_type:?} is not a floating-point type")]
    NanFill {
        /// The element type.
        data_type: DataType,
    },
}

impl TensorMapParams {
    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.global_dims.len()
    }

    /// Checks every rule of `cuTensorMapEncodeTiled`.
    ///
    /// # Errors
    /// The first rule broken, in the order of the function's arguments.
    pub fn validate(&self) -> Result<(), TensorMapError> {
        let data_type = self.data_type;
        let rank = self.rank();
        if !(1..=5).contains(&rank) {
            return Err(TensorMapError::Rank { rank });
        }
        if self.interleave != Interleave::None {
            return Err(TensorMapError::Interleave { interleave: self.interleave });
        }
        let lengths = [
            ("globalStrides", self.global_strides.len(), rank - 1),
            ("boxDim", self.box_dims.len(), rank),
            ("elementStrides", self.element_strides.len(), rank),
        ];
        for (field, found, expected) in lengths {
            if found != expected {
                return Err(TensorMapError::Length { field, found, rank, expected });
            }
        }
        let alignment = if data_type.is_padded() { 32 } else { 16 };
        let address = self.global_address;
        if !address.is_multiple_of(alignment) {
            return Err(TensorMapError::GlobalAddress { address, alignment, data_type });
        }
        for (dimension, &value) in self.global_dims.iter().enumerate() {
            if !(1..=1 << 32).contains(&value) {
                return Err(TensorMapError::GlobalDim { dimension, value });
            }
        }
        let multiple = match data_type {
            DataType::U4x16Align8B => 2,
            DataType::U4x16Align16B | DataType::U6x16Align16B => 128,
            _ => 1,
        };
        if !self.global_dims[0].is_multiple_of(multiple) {
            let value = self.global_dims[0];
            return Err(TensorMapError::PackedDim { value, multiple, data_type });
        }
        for (index, &value) in self.global_strides.iter().enumerate() {
            if !value.is_multiple_of(alignment) {
                let multiple = alignment;
                return Err(TensorMapError::StrideAlignment { index, value, multiple, data_type });
            }
            if value >= 1 << 40 {
                return Err(TensorMapError::StrideRange { index, value });
            }
        }
        for (dimension, &value) in self.box_dims.iter().enumerate() {
            if !(1..=256).contains(&value) {
                return Err(TensorMapError::BoxDim { dimension, value });
            }
        }
        self.validate_inner_box()?;
        for (dimension, &value) in self.element_strides.iter().enumerate() {
            if !(1..=8).contains(&value) {
                return Err(TensorMapError::ElementStride { dimension, value });
            }
        }
        if self.oob_fill == OobFill::NanRequestZeroFma && !data_type.is_float() {
            return Err(TensorMapError::NanFill { data_type });
        }
        Ok(())
    }

    fn validate_inner_box(&self) -> Result<(), TensorMapError> {
        let (data_type, value, swizzle) = (self.data_type, self.box_dims[0], self.swizzle);
        let bits = data_type.bits();
        if data_type.is_padded() {
            if value != 128 {
                return Err(TensorMapError::PaddedInnerBox { value, data_type });
            }
            if !matches!(swizzle, SwizzleMode::None | SwizzleMode::B128 | SwizzleMode::B128Atom32) {
                return Err(TensorMapError::PaddedSwizzle { swizzle, data_type });
            }
        } else if !(value * bits).is_multiple_of(128) {
            return Err(TensorMapError::InnerBoxGranularity { value, bits });
        }
        let bytes = self.shared_row_bytes();
        match swizzle.span() {
            Some(span) if bytes > span => Err(TensorMapError::InnerBoxSpan { bytes, swizzle, span }),
            _ => Ok(()),
        }
    }

    /// Bytes of one box row in shared memory, padding included.
    pub(crate) fn shared_row_bytes(&self) -> u32 {
        if self.data_type.is_padded() {
            self.box_dims[0]
        } else {
            self.box_dims[0] * self.data_type.bits() / 8
        }
    }

    /// Elements that a box takes along `dimension`: the element stride thins it out.
    pub(crate) fn taken(&self, dimension: usize) -> u32 {
        match dimension {
            0 => self.box_dims[0],
            d => self.box_dims[d].div_ceil(self.element_strides[d]),
        }
    }

    /// Rows of a box.
    pub(crate) fn rows(&self) -> u32 {
        // 256 to the fourth is one more than a u32 holds; such a box fits nowhere anyway.
        (1..self.rank()).map(|d| self.taken(d)).fold(1, u32::saturating_mul)
    }

    /// Bytes that a load of one box reports to its mbarrier (`complete_tx`): the payload of the
    /// whole box, whether or not it lies inside the tensor, padding not counted.
    pub fn transaction_bytes(&self) -> u32 {
        (self.box_dims[0] * self.data_type.bits() / 8).saturating_mul(self.rows())
    }

    /// Bytes of shared memory from a box's first to its last, padding included.
    pub fn shared_bytes(&self) -> u32 {
        self.shared_row_bytes().saturating_mul(self.rows())
    }
}
