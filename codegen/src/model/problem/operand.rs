//! Formats of A and B: a format is data, its row in [`OperandFormat::spec`].

use super::UnknownFormat;
use std::fmt;
use std::str::FromStr;

/// How one element is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ElementKind {
    /// Four bits: sign, two of exponent (bias 1), one of mantissa; no NaN, no infinity; two in a
    /// byte, the even one in the low nibble (OCP Microscaling Formats 1.0, section 5.3.3).
    E2m1,
    /// Eight bits: sign, four of exponent (bias 7), three of mantissa; NaN, no infinity; up to 448
    /// (OCP FP8 1.0).
    E4m3,
    /// Eight bits: sign, five of exponent (bias 15), two of mantissa; NaN and infinity; up to 57344
    /// (OCP FP8 1.0).
    E5m2,
    /// Sixteen bits: the upper half of a binary32.
    Bf16,
    /// Sixteen bits: IEEE 754 binary16.
    F16,
}

impl ElementKind {
    /// Bits of one element in memory.
    pub const fn bits(self) -> u32 {
        match self {
            ElementKind::E2m1 => 4,
            ElementKind::E4m3 | ElementKind::E5m2 => 8,
            ElementKind::Bf16 | ElementKind::F16 => 16,
        }
    }
}

/// How a scale factor of one byte is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ByteScale {
    /// e4m3 without its sign: 0 to 448; 0x7F is NaN.
    Ue4m3,
    /// A power of two, 2^(code - 127), 0xFF is NaN; no zero (OCP Microscaling Formats 1.0, 5.4.1).
    Ue8m0,
}

/// How one scale factor is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ScaleFormat {
    /// One byte. An MMA takes it, in the blocked layout.
    Byte(ByteScale),
    /// Four bytes, little-endian: binary32, row-major. No MMA takes it: sums of a block are multiplied by it.
    F32,
}

impl ScaleFormat {
    /// The name in PTX.
    pub const fn name(self) -> &'static str {
        match self {
            ScaleFormat::Byte(ByteScale::Ue4m3) => "ue4m3",
            ScaleFormat::Byte(ByteScale::Ue8m0) => "ue8m0",
            ScaleFormat::F32 => "f32",
        }
    }

    /// Bytes of one scale factor.
    pub const fn bytes(self) -> u32 {
        match self {
            ScaleFormat::Byte(_) => 1,
            ScaleFormat::F32 => 4,
        }
    }

    /// Whether an MMA takes it, in the blocked layout. Those of other formats are row-major.
    pub const fn in_mma(self) -> bool {
        matches!(self, ScaleFormat::Byte(_))
    }
}

/// The scale factors of a block-scaled format. Formats of C have `F` = [`ByteScale`], as their factors are of one byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ScaleSpec<F = ScaleFormat> {
    /// How one is encoded.
    pub format: F,
    /// Elements of a row that share one: 16, 32 or 128.
    pub block: u32,
    /// Rows that share one: 1 or 128.
    pub rows: u32,
}

impl ScaleSpec<ByteScale> {
    /// ue4m3 for every 16: NVFP4.
    pub const NVFP4: Self = ScaleSpec { format: ByteScale::Ue4m3, block: 16, rows: 1 };
    /// ue8m0 for every 32: the MX formats.
    pub const MX: Self = ScaleSpec { format: ByteScale::Ue8m0, block: 32, rows: 1 };

    /// The same as scale factors of A or B.
    pub const fn of_operand(self) -> ScaleSpec {
        ScaleSpec { format: ScaleFormat::Byte(self.format), block: self.block, rows: self.rows }
    }
}

impl<F: Copy> ScaleSpec<F> {
    /// Scale factors of a row of `length` elements, before padding.
    pub const fn columns(self, length: u32) -> u32 {
        length.div_ceil(self.block)
    }

    /// Bytes of the blocked scale factors of `rows` rows of `length` elements: 512 for every block
    /// of 128 rows x 4 scale factors, rows and columns padded to whole blocks.
    pub const fn blocked_bytes(self, rows: u32, length: u32) -> u64 {
        rows.div_ceil(128) as u64 * self.columns(length).div_ceil(4) as u64 * 512
    }
}

impl ScaleSpec {
    /// f32 for 128 elements of a row: activations of FP8 in blocks (DeepSeek-V3, arXiv 2412.19437, 3.3.2; cuBLAS `VEC128_32F`).
    pub const VECTOR128: ScaleSpec = ScaleSpec { format: ScaleFormat::F32, block: 128, rows: 1 };
    /// f32 for 128 rows x 128 elements: weights of FP8 in blocks (the same; cuBLAS `BLK128x128_32F`).
    pub const BLOCK128: ScaleSpec = ScaleSpec { format: ScaleFormat::F32, block: 128, rows: 128 };

    /// Scale factors of `rows` rows of `length` elements, without padding.
    pub const fn count(self, rows: usize, length: usize) -> usize {
        rows.div_ceil(self.rows as usize) * length.div_ceil(self.block as usize)
    }

    /// Bytes of the scale factors of `rows` rows of `length` elements as a kernel reads them: blocked where an MMA takes them,
    /// else row-major without padding.
    pub const fn kernel_bytes(self, rows: u32, length: u32) -> u64 {
        if self.format.in_mma() {
            return self.blocked_bytes(rows, length);
        }
        rows.div_ceil(self.rows) as u64 * self.columns(length) as u64 * self.format.bytes() as u64
    }
}

/// How the elements of A and B are stored. A format is data: its row in [`OperandFormat::spec`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OperandFormat {
    /// NVFP4: e2m1, one ue4m3 scale factor for every 16 along K.
    Nvfp4,
    /// MXFP4: e2m1, one ue8m0 scale factor for every 32 along K.
    Mxfp4,
    /// MXFP8: e4m3, one ue8m0 scale factor for every 32 along K.
    Mxfp8,
    /// MXFP8 of e5m2 elements, one ue8m0 scale factor for every 32 along K.
    Mxfp8E5m2,
    /// e4m3 without scale factors.
    E4m3,
    /// e5m2 without scale factors.
    E5m2,
    /// bfloat16.
    Bf16,
    /// IEEE binary16.
    F16,
    /// e4m3, one f32 scale factor for every 128 elements of a row: activations beside [`OperandFormat::E4m3Block128`].
    E4m3Vector128,
    /// e4m3, one f32 scale factor for every 128 rows x 128 elements: weights of DeepSeek-V3 and of Qwen3-FP8.
    E4m3Block128,
    /// NVFP4 with the bits of each 16 elements permuted for decoding to bf16 ([`OperandFormat::repacks`]). For weights on Hopper.
    Nvfp4Repacked,
    /// MXFP4 with its bits permuted in the same way.
    Mxfp4Repacked,
}

/// The facts of an operand format that plans are derived from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormatSpec {
    /// The name in the DSL.
    pub name: &'static str,
    /// How an element is encoded.
    pub element: ElementKind,
    /// Bits of one element in global memory.
    pub element_bits: u32,
    /// The scale factors along K; `None` where there are none.
    pub scales: Option<ScaleSpec>,
    /// Elements along K of one tcgen05 MMA of two operands of this format: 256 bits of a row (PTX
    /// ISA 9.7.16.2.1). For two formats see [`MmaKind::mma_k`](super::MmaKind::mma_k).
    pub mma_k: u32,
    /// What MMAs of decoded elements get, where this is the format of A: its own elements where they have 16 bits, else the
    /// elements of 16 bits that hold all values.
    pub decoded: ElementKind,
    /// Elements of K that a row must be a multiple of: TMA wants row strides of 16 bytes, and scale
    /// factors whole blocks. For two formats see [`Formats::k_multiple`](super::Formats::k_multiple).
    pub k_multiple: u32,
    /// The format with the same elements and scale factors whose bits are in the usual order, if this is a repacked one.
    pub repacks: Option<OperandFormat>,
}

const NVFP4: FormatSpec =
    spec("nvfp4", ElementKind::E2m1, Some(ScaleSpec::NVFP4.of_operand()), ElementKind::F16, 32);
const MXFP4: FormatSpec =
    spec("mxfp4", ElementKind::E2m1, Some(ScaleSpec::MX.of_operand()), ElementKind::Bf16, 32);

const fn spec(
    name: &'static str,
    element: ElementKind,
    scales: Option<ScaleSpec>,
    decoded: ElementKind,
    k_multiple: u32,
) -> FormatSpec {
    let element_bits = element.bits();
    let mma_k = 256 / element_bits;
    FormatSpec { name, element, element_bits, scales, mma_k, decoded, k_multiple, repacks: None }
}

impl OperandFormat {
    /// All formats.
    pub const ALL: [OperandFormat; 12] = [
        OperandFormat::Nvfp4,
        OperandFormat::Mxfp4,
        OperandFormat::Mxfp8,
        OperandFormat::Mxfp8E5m2,
        OperandFormat::E4m3,
        OperandFormat::E5m2,
        OperandFormat::Bf16,
        OperandFormat::F16,
        OperandFormat::E4m3Vector128,
        OperandFormat::E4m3Block128,
        OperandFormat::Nvfp4Repacked,
        OperandFormat::Mxfp4Repacked,
    ];

    /// The format's facts.
    pub const fn spec(self) -> &'static FormatSpec {
        use ElementKind as E;
        const MX: Option<ScaleSpec> = Some(ScaleSpec::MX.of_operand());
        match self {
            OperandFormat::Nvfp4 => &NVFP4,
            OperandFormat::Mxfp4 => &MXFP4,
            OperandFormat::Mxfp8 => const { &spec("mxfp8", E::E4m3, MX, E::F16, 32) },
            OperandFormat::Mxfp8E5m2 => const { &spec("mxfp8_e5m2", E::E5m2, MX, E::F16, 32) },
            OperandFormat::E4m3 => const { &spec("e4m3", E::E4m3, None, E::F16, 16) },
            OperandFormat::E5m2 => const { &spec("e5m2", E::E5m2, None, E::F16, 16) },
            OperandFormat::Bf16 => const { &spec("bf16", E::Bf16, None, E::Bf16, 8) },
            OperandFormat::F16 => const { &spec("f16", E::F16, None, E::F16, 8) },
            OperandFormat::E4m3Vector128 => {
                const { &spec("e4m3_1x128", E::E4m3, Some(ScaleSpec::VECTOR128), E::F16, 128) }
            }
            OperandFormat::E4m3Block128 => {
                const { &spec("e4m3_128x128", E::E4m3, Some(ScaleSpec::BLOCK128), E::F16, 128) }
            }
            OperandFormat::Nvfp4Repacked => {
                &FormatSpec { name: "nvfp4_repacked", repacks: Some(OperandFormat::Nvfp4), ..NVFP4 }
            }
            OperandFormat::Mxfp4Repacked => {
                &FormatSpec { name: "mxfp4_repacked", repacks: Some(OperandFormat::Mxfp4), ..MXFP4 }
            }
        }
    }

    /// The format with the same elements and scale factors whose bits are in the usual order, if this is a repacked one
    /// ([`FormatSpec::repacks`]).
    ///
    /// Repacking permutes the bits of each 16 elements of K: 64 bits, two little-endian words. Word `w` (0 or 1) has four pairs
    /// of elements, `4 w + j` and `4 w + j + 8` for `j` from 0 to 3. Each half of the word holds one element of each pair: the lower half
    /// holds the first element, but for `j = 3` the second. These are the bits of an element within its half, for sign `s`,
    /// exponent `e1 e0` and mantissa `m`:
    ///
    /// | j | s | e1 | e0 | m |
    /// |---|---|---|---|---|
    /// | 0 | 15 | 8 | 7 | 6 |
    /// | 1 | 12 | 5 | 4 | 3 |
    /// | 2 | 9 | 2 | 1 | 0 |
    /// | 3 | 13 | 11 | 10 | 14 |
    pub const fn repacks(self) -> Option<OperandFormat> {
        self.spec().repacks
    }

    /// The repacked format with the same elements and scale factors, if there is one.
    pub fn repacked(self) -> Option<OperandFormat> {
        OperandFormat::ALL.into_iter().find(|format| format.repacks() == Some(self))
    }

    /// Bytes of the elements of `rows` rows of `k`, rows packed without gaps.
    pub const fn bytes(self, rows: u32, k: u32) -> u64 {
        // At most 2^64 / 8 elements of 16 bits; two 32-bit factors and 16 need 68 bits.
        (rows as u128 * k as u128 * self.spec().element_bits as u128 / 8) as u64
    }

    /// Scale factors of a row of `k`, before padding; 0 without scale factors.
    pub const fn scale_columns(self, k: u32) -> u32 {
        match self.spec().scales {
            Some(scales) => scales.columns(k),
            None => 0,
        }
    }

    /// Bytes of the scale factors of `rows` rows of `k` as a kernel reads them ([`ScaleSpec::kernel_bytes`]); 0 without scale
    /// factors.
    pub const fn scale_bytes(self, rows: u32, k: u32) -> u64 {
        match self.spec().scales {
            Some(scales) => scales.kernel_bytes(rows, k),
            None => 0,
        }
    }
}

impl fmt::Display for OperandFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.spec().name)
    }
}

impl FromStr for OperandFormat {
    type Err = UnknownFormat;

    fn from_str(text: &str) -> Result<Self, UnknownFormat> {
        let text = text.trim();
        OperandFormat::ALL.into_iter().find(|format| format.spec().name == text).ok_or_else(|| {
            UnknownFormat {
                given: text.to_owned(),
                kind: "an operand format",
                known: OperandFormat::ALL.map(|format| format.spec().name).join(", "),
            }
        })
    }
}
