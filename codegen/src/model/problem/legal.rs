//! Which formats go together, and the MMA that multiplies them.

use super::{ElementKind, OperandFormat, OutputFormat, PreactivationFormat};
use crate::arch::Arch;
use crate::target::way_of;
use std::fmt;

/// The formats of one dual GEMM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Formats {
    /// Format of A.
    pub a: OperandFormat,
    /// Format of B1 and B2.
    pub b: OperandFormat,
    /// Format of C.
    pub c: OutputFormat,
    /// Format in which the pre-activations D1 and D2, the gate's inputs, are stored beside C. `None` stores C alone.
    pub preactivations: Option<PreactivationFormat>,
}

impl Default for Formats {
    fn default() -> Self {
        Formats::new(OperandFormat::Nvfp4, OperandFormat::Nvfp4, OutputFormat::F16)
    }
}

impl Formats {
    /// Formats of the operands and of C; no pre-activations are kept.
    pub const fn new(a: OperandFormat, b: OperandFormat, c: OutputFormat) -> Self {
        Formats { a, b, c, preactivations: None }
    }

    /// The elements of matrices that a gate reads, `r[m, n]`: those of C if C is f32, bf16 or f16, else bf16.
    pub const fn matrix(self) -> OutputFormat {
        match self.c {
            OutputFormat::F32 | OutputFormat::Bf16 | OutputFormat::F16 => self.c,
            OutputFormat::E4m3 | OutputFormat::Nvfp4 | OutputFormat::Mxfp8 => OutputFormat::Bf16,
        }
    }

    /// What a chip is usually fed: NVFP4 to f16 where MMAs take scale factors, bf16 to bf16 where none does.
    pub fn usual(arch: Arch) -> Self {
        way_of(arch).usual_formats
    }
}

impl fmt::Display for Formats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Formats { a, b, c, preactivations } = self;
        write!(f, "{a} x {b} -> {c}")?;
        preactivations.map_or(Ok(()), |format| write!(f, ", pre-activations in {format}"))
    }
}

/// The kind of a tcgen05 MMA (PTX ISA 9.7.16.2.1, `.kind`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MmaKind {
    /// Packed e2m1 with ue4m3 scale factors for every 16: NVFP4.
    Mxf4Nvf4,
    /// Packed e2m1 with ue8m0 scale factors for every 32: MXFP4.
    Mxf4,
    /// Any of e4m3, e5m2 and e2m1 in bytes, with ue8m0 scale factors for every 32.
    Mxf8f6f4,
    /// Either of e4m3 and e5m2 without scale factors.
    F8f6f4,
    /// bf16 or f16.
    F16,
    /// bf16 or f16 by NVFP4 weights, or bf16 by MXFP4 or repacked weights, which are decoded to the other operand's elements between
    /// shared memory and the tensor core; or NVFP4 by NVFP4, both decoded to f16, and MXFP4 by MXFP4, to bf16: every product
    /// of an e2m1 and its scale factor is exact there (sm_90a).
    Decoded,
}

impl MmaKind {
    /// All kinds.
    pub const ALL: [MmaKind; 6] = [
        MmaKind::Mxf4Nvf4,
        MmaKind::Mxf4,
        MmaKind::Mxf8f6f4,
        MmaKind::F8f6f4,
        MmaKind::F16,
        MmaKind::Decoded,
    ];

    /// The qualifier in PTX, where it is a kind that PTX names.
    pub const fn ptx(self) -> &'static str {
        match self {
            MmaKind::Mxf4Nvf4 => "kind::mxf4nvf4",
            MmaKind::Mxf4 => "kind::mxf4",
            MmaKind::Mxf8f6f4 => "kind::mxf8f6f4",
            MmaKind::F8f6f4 => "kind::f8f6f4",
            MmaKind::F16 => "kind::f16",
            MmaKind::Decoded => "16 bits, decoded",
        }
    }

    /// Elements along K of one instruction: 256 bits of a row's containers.
    pub const fn mma_k(self) -> u32 {
        256 / self.container_bits()
    }

    /// Bits that an element takes in shared memory, whatever it takes in global memory: an e2m1 that
    /// meets 8-bit elements is expanded by TMA (`CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B`).
    pub const fn container_bits(self) -> u32 {
        match self {
            MmaKind::Mxf4Nvf4 | MmaKind::Mxf4 => 4,
            MmaKind::Mxf8f6f4 | MmaKind::F8f6f4 => 8,
            MmaKind::F16 | MmaKind::Decoded => 16,
        }
    }

    /// Elements along K that share a scale factor: 16 (`.block16`), 32 (`.block32`) or none. For decoded
    /// weights it is the 16 that a thread decodes together; the formats say how many share a factor
    /// ([`Formats::scale_vector`]).
    pub const fn scale_vector(self) -> Option<u32> {
        match self {
            MmaKind::Mxf4Nvf4 | MmaKind::Decoded => Some(16),
            MmaKind::Mxf4 | MmaKind::Mxf8f6f4 => Some(32),
            MmaKind::F8f6f4 | MmaKind::F16 => None,
        }
    }

    /// Scale factors of a row that one instruction takes: 4, 2, 1 or none (`.scale_vec::4X` and so
    /// on).
    pub const fn scales_per_mma(self) -> u32 {
        match self.scale_vector() {
            Some(vector) => self.mma_k() / vector,
            None => 0,
        }
    }

    /// Whether an operand of this element is wider in shared memory than in global memory.
    pub const fn expands(self, element: ElementKind) -> bool {
        !matches!(self, MmaKind::Decoded) && element.bits() < self.container_bits()
    }
}

impl fmt::Display for MmaKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.ptx())
    }
}

/// Two operand formats that no MMA multiplies.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("formats: no MMA multiplies {a} by {b}{}; {a} goes with: {}", why(*.a, *.b), names(.partners))]
pub struct FormatsError {
    /// Format of A.
    pub a: OperandFormat,
    /// Format of B1 and B2.
    pub b: OperandFormat,
    /// Formats of B1 and B2 that are legal beside A's.
    pub partners: Vec<OperandFormat>,
}

/// Why two formats do not go together that look as if they could.
fn why(a: OperandFormat, b: OperandFormat) -> &'static str {
    match (a, b) {
        (OperandFormat::F16, OperandFormat::Mxfp4) => {
            ": scale factors of mxfp4 go from 2^-127 to 2^127, and f16 from 2^-24 to 2^16; bf16 holds all of it"
        }
        (OperandFormat::Nvfp4Repacked | OperandFormat::Mxfp4Repacked, _)
        | (_, OperandFormat::Nvfp4Repacked | OperandFormat::Mxfp4Repacked) => {
            ": repacked formats are for weights beside bf16 activations; use nvfp4 or mxfp4 elsewhere"
        }
        (OperandFormat::E4m3Vector128 | OperandFormat::E4m3Block128, _)
        | (_, OperandFormat::E4m3Vector128 | OperandFormat::E4m3Block128) => {
            ": activations in e4m3_1x128 go with weights in e4m3_128x128, and neither goes with another format"
        }
        _ => "",
    }
}

fn names(formats: &[OperandFormat]) -> String {
    formats.iter().map(|format| format.spec().name).collect::<Vec<_>>().join(", ")
}

impl Formats {
    /// The MMA that multiplies A by B.
    ///
    /// # Errors
    /// There is none; the error lists what goes with A's format.
    pub fn check(self) -> Result<MmaKind, FormatsError> {
        let Formats { a, b, .. } = self;
        kind(a, b).ok_or_else(|| FormatsError {
            a,
            b,
            partners: OperandFormat::ALL.into_iter().filter(|&other| kind(a, other).is_some()).collect(),
        })
    }

    /// The MMA that multiplies A by B on a chip: that of [`Formats::check`], or, where MMAs take no scale factors, one of 16
    /// bits to which e2m1 are decoded. Whether the chip has it is for `validate` to say.
    ///
    /// # Errors
    /// As [`Formats::check`].
    pub fn kind(self, arch: Arch) -> Result<MmaKind, FormatsError> {
        let kind = self.check()?;
        let decodes = matches!(kind, MmaKind::Mxf4Nvf4 | MmaKind::Mxf4) && !way_of(arch).takes_scales;
        Ok(if decodes { MmaKind::Decoded } else { kind })
    }

    /// What elements are decoded to where the MMA is [`MmaKind::Decoded`]: those of A, or, where A is decoded too, f16 for NVFP4,
    /// which takes fewer instructions, and bf16 for MXFP4, whose scale factors f16 has no room for.
    pub const fn decoded(self) -> ElementKind {
        self.a.spec().decoded
    }

    /// Whether A is decoded as well as B, on its way to MMAs that take no scale factors.
    pub fn decodes_a(self, arch: Arch) -> bool {
        self.kind(arch) == Ok(MmaKind::Decoded) && self.a.spec().scales.is_some()
    }

    /// Elements along K that share a scale factor that MMAs or decoding take, of either operand: where both have them, they
    /// agree on it.
    pub const fn scale_vector(self) -> Option<u32> {
        match (self.a.spec().scales, self.b.spec().scales) {
            (_, Some(scales)) | (Some(scales), None) if scales.format.in_mma() => Some(scales.block),
            _ => None,
        }
    }

    /// Whether sums of each 128 elements of K are multiplied by f32 scale factors ([`ScaleFormat::F32`](super::ScaleFormat::F32)).
    pub const fn scales_sums(self) -> bool {
        matches!(self.b.spec().scales, Some(scales) if !scales.format.in_mma())
    }

    /// Elements that K has to be a multiple of: what either format wants
    /// ([`FormatSpec::k_multiple`](super::FormatSpec::k_multiple)), or 128 where TMA expands one of the
    /// operands (cuTensorMapEncodeTiled: `16U4_ALIGN16B` needs a `globalDim[0]` of a multiple of 128).
    pub fn k_multiple(self) -> u32 {
        let (a, b) = (self.a.spec(), self.b.spec());
        match self.check() {
            Ok(kind) if kind.expands(a.element) || kind.expands(b.element) => 128,
            _ => a.k_multiple.max(b.k_multiple),
        }
    }
}

fn kind(a: OperandFormat, b: OperandFormat) -> Option<MmaKind> {
    use OperandFormat as F;
    let mx = |format| matches!(format, F::Mxfp4 | F::Mxfp8 | F::Mxfp8E5m2);
    let plain = |format| matches!(format, F::E4m3 | F::E5m2);
    match (a, b) {
        (F::Nvfp4, F::Nvfp4) => Some(MmaKind::Mxf4Nvf4),
        (F::Mxfp4, F::Mxfp4) => Some(MmaKind::Mxf4),
        _ if mx(a) && mx(b) => Some(MmaKind::Mxf8f6f4),
        _ if plain(a) && plain(b) => Some(MmaKind::F8f6f4),
        (F::Bf16, F::Bf16) | (F::F16, F::F16) => Some(MmaKind::F16),
        (F::Bf16 | F::F16, F::Nvfp4) | (F::Bf16, F::Mxfp4 | F::Nvfp4Repacked | F::Mxfp4Repacked) => {
            Some(MmaKind::Decoded)
        }
        (F::E4m3Vector128, F::E4m3Block128) => Some(MmaKind::F8f6f4),
        _ => None,
    }
}
