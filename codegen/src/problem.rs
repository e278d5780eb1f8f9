//! What is computed: `C = gate(A @ B1, A @ B2)` for one shape and one set of formats.
//!
//! Layouts, all of them the ones checkpoints and the public NVFP4 benchmark use:
//!
//! | tensor | shape | layout |
//! |---|---|---|
//! | A | M x K | row-major, K contiguous, two e2m1 codes a byte, even K in the low nibble |
//! | B1, B2 | N x K | row-major, K contiguous (a weight `[out_features, in_features]`), packed as A |
//! | scale factors of A, B1, B2 | rows x K/16 | e4m3, 128 x 4 blocks of 512 bytes, K blocks fastest; rows padded to 128, columns to 4, pads finite (zero is best) |
//! | C | M x N | row-major |

use std::fmt;
use std::str::FromStr;

/// Rows and columns of the product: A is `m x k`, B1 and B2 are `n x k`, C is `m x n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Shape {
    /// Rows of A and of C (tokens).
    pub m: u32,
    /// Rows of B1 and B2 and columns of C (features of the gate and of the up projection, each).
    pub n: u32,
    /// The summed dimension (features of the input).
    pub k: u32,
}

impl Shape {
    /// A shape from its three sizes in the order every tool uses.
    pub const fn new(m: u32, n: u32, k: u32) -> Self {
        Shape { m, n, k }
    }

    /// Operations of both products, a multiply-add counted as two: `4 m n k`.
    pub fn operations(self) -> f64 {
        4.0 * f64::from(self.m) * f64::from(self.n) * f64::from(self.k)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {} x {}", self.m, self.n, self.k)
    }
}

/// How the elements of A and B are stored. A format is data: its row in [`OperandFormat::spec`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum OperandFormat {
    /// NVFP4: e2m1 codes, one e4m3 scale factor for every 16 along K.
    Nvfp4,
}

/// The facts of an operand format that plans are derived from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormatSpec {
    /// The name in the DSL.
    pub name: &'static str,
    /// Bits of one element.
    pub element_bits: u32,
    /// Elements along K that share a scale factor.
    pub scale_block: u32,
    /// Elements along K of one MMA instruction (256 bits of a row; PTX ISA 9.7.16.2.1).
    pub mma_k: u32,
    /// Elements of K that a row must be a multiple of: TMA wants row strides of 16 bytes.
    pub k_multiple: u32,
}

impl OperandFormat {
    /// All formats.
    pub const ALL: [OperandFormat; 1] = [OperandFormat::Nvfp4];

    /// The format's facts.
    pub const fn spec(self) -> &'static FormatSpec {
        match self {
            OperandFormat::Nvfp4 => {
                &FormatSpec { name: "nvfp4", element_bits: 4, scale_block: 16, mma_k: 64, k_multiple: 32 }
            }
        }
    }
}

/// How the elements of C are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum OutputFormat {
    /// IEEE binary16, rounded once from fp32 to nearest even; what is too large becomes infinite.
    F16,
}

impl OutputFormat {
    /// All formats.
    pub const ALL: [OutputFormat; 1] = [OutputFormat::F16];

    /// The name in the DSL.
    pub const fn name(self) -> &'static str {
        match self {
            OutputFormat::F16 => "f16",
        }
    }

    /// Bytes of one element.
    pub const fn bytes(self) -> u32 {
        match self {
            OutputFormat::F16 => 2,
        }
    }
}

/// The text names no format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is not {kind}; it is one of: {known}")]
pub struct UnknownFormat {
    /// What was written.
    pub given: String,
    kind: &'static str,
    known: String,
}

impl fmt::Display for OperandFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.spec().name)
    }
}

impl fmt::Display for OutputFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
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

impl FromStr for OutputFormat {
    type Err = UnknownFormat;

    fn from_str(text: &str) -> Result<Self, UnknownFormat> {
        let text = text.trim();
        OutputFormat::ALL.into_iter().find(|format| format.name() == text).ok_or_else(|| UnknownFormat {
            given: text.to_owned(),
            kind: "an output format",
            known: OutputFormat::ALL.map(|format| format.name()).join(", "),
        })
    }
}

/// The formats of one dual GEMM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Formats {
    /// Of A.
    pub a: OperandFormat,
    /// Of B1 and B2.
    pub b: OperandFormat,
    /// Of C.
    pub c: OutputFormat,
}

impl Default for Formats {
    fn default() -> Self {
        Formats { a: OperandFormat::Nvfp4, b: OperandFormat::Nvfp4, c: OutputFormat::F16 }
    }
}

/// One dual GEMM, all but its gate: the gate is an expression and travels beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Problem {
    /// Sizes.
    pub shape: Shape,
    /// Formats.
    pub formats: Formats,
}

impl Problem {
    /// NVFP4 in, f16 out: the problem of the public benchmark.
    pub fn nvfp4(shape: Shape) -> Self {
        Problem { shape, formats: Formats::default() }
    }

    /// Scale factors along K, before padding: `k / 16` for NVFP4, rounded up.
    pub fn scale_columns(&self) -> u32 {
        self.shape.k.div_ceil(self.formats.a.spec().scale_block)
    }

    /// Bytes of a blocked scale-factor tensor with `rows` rows: 512 for every 128 x 4 block.
    pub fn scale_bytes(&self, rows: u32) -> u64 {
        u64::from(rows.div_ceil(128)) * u64::from(self.scale_columns().div_ceil(4)) * 512
    }

    /// Bytes of a packed operand with `rows` rows.
    pub fn operand_bytes(&self, rows: u32) -> u64 {
        u64::from(rows) * u64::from(self.shape.k) * u64::from(self.formats.a.spec().element_bits) / 8
    }

    /// Bytes of C.
    pub fn output_bytes(&self) -> u64 {
        u64::from(self.shape.m) * u64::from(self.shape.n) * u64::from(self.formats.c.bytes())
    }

    /// Bytes that must cross DRAM at least once: both operands, their scale factors, C.
    pub fn compulsory_bytes(&self) -> u64 {
        let Shape { m, n, .. } = self.shape;
        self.operand_bytes(m)
            + 2 * self.operand_bytes(n)
            + self.scale_bytes(m)
            + 2 * self.scale_bytes(n)
            + self.output_bytes()
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Formats { a, b, c } = self.formats;
        write!(f, "{}, {a} x {b} -> {c}", self.shape)
    }
}
