//! 32-bit instruction descriptors of `tcgen05.mma`: shape, types, signs, scale-factor selectors.
//!
//! Sources: PTX ISA, `tcgen05` instruction descriptor and matrix shapes; CUTLASS
//! `mma_sm100_desc.hpp`; Triton's MMAv5 lowering.

use super::descriptor::{Major, Packing};
use super::format::Format;
use thiserror::Error;

/// The `.kind::` qualifier of `tcgen05.mma`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MmaKind {
    /// f16 and bf16.
    F16,
    /// tf32.
    Tf32,
    /// Any mix of 8-, 6- and 4-bit floats, unscaled.
    F8f6f4,
    /// 8-bit integers.
    I8,
    /// 8-, 6- and 4-bit floats with ue8m0 scales per 32.
    Mxf8f6f4,
    /// e2m1 with ue8m0 scales per 32.
    Mxf4,
    /// e2m1 with ue8m0 or ue4m3 scales, per 16 or 32.
    Mxf4nvf4,
}

impl MmaKind {
    /// Whether the kind takes scale factors.
    pub const fn is_block_scaled(self) -> bool {
        matches!(self, MmaKind::Mxf8f6f4 | MmaKind::Mxf4 | MmaKind::Mxf4nvf4)
    }

    /// Elements of K in one dense instruction.
    pub const fn k(self) -> u32 {
        match self {
            MmaKind::Tf32 => 8,
            MmaKind::F16 => 16,
            MmaKind::F8f6f4 | MmaKind::I8 | MmaKind::Mxf8f6f4 => 32,
            MmaKind::Mxf4 | MmaKind::Mxf4nvf4 => 64,
        }
    }
}

/// The `.cta_group::` qualifier: how many CTAs work on one instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CtaGroup {
    /// One CTA.
    One,
    /// A pair of CTAs.
    Two,
}

/// Scale factors per row and instruction: `.scale_vec::NX`, or what `.block16`/`.block32` mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScaleVec {
    /// One scale factor per 32 elements, K = 32.
    X1,
    /// One per 32 elements, K = 64.
    X2,
    /// One per 16 elements, K = 64.
    X4,
}

impl ScaleVec {
    /// Scale factors in one instruction's K.
    pub const fn per_instruction(self) -> u32 {
        match self {
            ScaleVec::X1 => 1,
            ScaleVec::X2 => 2,
            ScaleVec::X4 => 4,
        }
    }
}

/// Which of the four `tcgen05.mma` an instruction descriptor is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct MmaForm {
    /// `.sp`: A is sparse, and K twice as long.
    pub sparse: bool,
    /// `.ws`: weight stationary.
    pub stationary: bool,
}

/// Type of an element of A or B.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementType {
    /// A floating-point format.
    Float(Format),
    /// Unsigned 8-bit integer.
    U8,
    /// Signed 8-bit integer.
    S8,
}

/// Type of an element of D.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccumulatorType {
    /// binary16, in the low half of a TMEM word.
    F16,
    /// binary32.
    F32,
    /// 32-bit integer.
    S32,
}

/// Scale factors of a block-scaled instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ScaleFactors {
    /// [`Format::Ue8m0`] or [`Format::Ue4m3`], of A's and B's alike.
    pub format: Format,
    /// How many per row.
    pub vec: ScaleVec,
    /// First byte used in each of A's scale-factor words.
    pub a_id: u8,
    /// First byte used in each of B's scale-factor words.
    pub b_id: u8,
}

/// A decoded and checked instruction descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstructionDescriptor {
    /// The kind it was decoded for.
    pub kind: MmaKind,
    /// The CTA group it was decoded for.
    pub cta_group: CtaGroup,
    /// Rows of D, over the whole group.
    pub m: u32,
    /// Columns of D.
    pub n: u32,
    /// Type of A.
    pub a: ElementType,
    /// Type of B.
    pub b: ElementType,
    /// Type of D.
    pub d: AccumulatorType,
    /// A enters with its sign flipped.
    pub negate_a: bool,
    /// B enters with its sign flipped.
    pub negate_b: bool,
    /// Contiguous dimension of A in shared memory.
    pub a_major: Major,
    /// Contiguous dimension of B in shared memory.
    pub b_major: Major,
    /// Integer accumulators clamp instead of wrapping.
    pub saturate: bool,
    /// Scale factors, for block-scaled kinds.
    pub scale: Option<ScaleFactors>,
    /// Sparse, or weight stationary.
    pub form: MmaForm,
    /// Which column of metadata a sparse product of 16- or 32-bit elements takes.
    pub selector: u32,
    /// Columns by which B may be shifted with `.ws`.
    pub max_shift: u32,
}

/// Why an instruction descriptor is not legal for its instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum IdescError {
    /// Bits that must be zero are not.
    #[error("instruction descriptor {idesc:#010x}: reserved bits {mask:#010x} must be zero for {kind:?}")]
    ReservedBits {
        /// The whole descriptor.
        idesc: u32,
        /// Which bits are set although reserved.
        mask: u32,
        /// The kind.
        kind: MmaKind,
    },
    /// Bit 2 does not say what the instruction does.
    #[error(
        "instruction descriptor {idesc:#010x}: bit 2 (sparse A) is for tcgen05.mma.sp, and must be set there; the instruction is sparse: {sparse}"
    )]
    Sparse {
        /// The whole descriptor.
        idesc: u32,
        /// Whether the instruction is.
        sparse: bool,
    },
    /// A form that the kind or group does not have.
    #[error("{kind:?} with {cta_group:?} CTA has no .ws form")]
    Stationary {
        /// The kind.
        kind: MmaKind,
        /// The CTA group.
        cta_group: CtaGroup,
    },
    /// A type code without meaning for the kind.
    #[error("instruction descriptor {idesc:#010x}: {operand} type code {code} is not defined for {kind:?}")]
    Type {
        /// The whole descriptor.
        idesc: u32,
        /// `A`, `B` or `D`.
        operand: char,
        /// The code.
        code: u32,
        /// The kind.
        kind: MmaKind,
    },
    /// A shape outside the table of the kind.
    #[error(
        "instruction descriptor {idesc:#010x}: {m}x{n} is not a shape of {kind:?} with {cta_group:?} CTA: {rule}"
    )]
    Shape {
        /// The whole descriptor.
        idesc: u32,
        /// Rows.
        m: u32,
        /// Columns.
        n: u32,
        /// The kind.
        kind: MmaKind,
        /// The CTA group.
        cta_group: CtaGroup,
        /// What is allowed.
        rule: &'static str,
    },
    /// A scale-factor selector that the scale vector size does not allow.
    #[error(
        "instruction descriptor {idesc:#010x}: scale factor id {id} of {operand} is not allowed with {vec:?} (1X: 0..3, 2X: 0 or 2, 4X: 0)"
    )]
    ScaleId {
        /// The whole descriptor.
        idesc: u32,
        /// `A` or `B`.
        operand: char,
        /// The selector.
        id: u32,
        /// Scale factors per row.
        vec: ScaleVec,
    },
    /// ue4m3 scales where only ue8m0 exist.
    #[error(
        "instruction descriptor {idesc:#010x}: bit 23 is clear (ue4m3 scale factors), but {kind:?} with {vec:?} takes ue8m0 only"
    )]
    ScaleType {
        /// The whole descriptor.
        idesc: u32,
        /// The kind.
        kind: MmaKind,
        /// Scale factors per row.
        vec: ScaleVec,
    },
    /// The kind does not have this scale vector size, or needs one and has none.
    #[error("{kind:?} does not go with scale vector size {vec:?}")]
    ScaleVec {
        /// The kind.
        kind: MmaKind,
        /// Scale factors per row.
        vec: Option<ScaleVec>,
    },
    /// K = 96 exists on sm_103a only.
    #[error("instruction descriptor {idesc:#010x}: bit 31 (K = 96) exists on sm_103a only")]
    K96 {
        /// The whole descriptor.
        idesc: u32,
    },
}

impl InstructionDescriptor {
    /// Decodes the descriptor of a dense `tcgen05.mma` (not `.ws`) and checks it against the shape
    /// and type tables.
    ///
    /// `scale_vec` is the instruction's qualifier, `None` for plain kinds; `.block16` is
    /// [`ScaleVec::X4`]; `.block32` is [`ScaleVec::X1`] for mxf8f6f4 and [`ScaleVec::X2`] else.
    ///
    /// # Errors
    /// [`IdescError`] naming the field and the rule.
    pub fn decode(
        idesc: u32,
        kind: MmaKind,
        scale_vec: Option<ScaleVec>,
        cta_group: CtaGroup,
    ) -> Result<Self, IdescError> {
        Self::decode_form(idesc, kind, scale_vec, cta_group, MmaForm::default())
    }

    /// As [`InstructionDescriptor::decode`], for any of the four instructions.
    ///
    /// # Errors
    /// [`IdescError`] naming the field and the rule.
    pub fn decode_form(
        idesc: u32,
        kind: MmaKind,
        scale_vec: Option<ScaleVec>,
        cta_group: CtaGroup,
        form: MmaForm,
    ) -> Result<Self, IdescError> {
        if form.stationary && (kind.is_block_scaled() || cta_group == CtaGroup::Two) {
            return Err(IdescError::Stationary { kind, cta_group });
        }
        let vec_fits = matches!(
            (kind, scale_vec),
            (MmaKind::Mxf8f6f4, Some(ScaleVec::X1))
                | (MmaKind::Mxf4, Some(ScaleVec::X2))
                | (MmaKind::Mxf4nvf4, Some(ScaleVec::X2 | ScaleVec::X4))
                | (MmaKind::F16 | MmaKind::Tf32 | MmaKind::F8f6f4 | MmaKind::I8, None)
        );
        if !vec_fits {
            return Err(IdescError::ScaleVec { kind, vec: scale_vec });
        }
        // The sparsity selector (bits 0..1) only means something with bit 2.
        if (idesc & 4 != 0) != form.sparse {
            return Err(IdescError::Sparse { idesc, sparse: form.sparse });
        }
        let reserved = match kind {
            // 0..1, integer saturation, 6, 23, 29, maximum shift of .ws
            MmaKind::F16 | MmaKind::Tf32 | MmaKind::F8f6f4 => 0xe080_004b,
            // saturation means something; negation does not
            MmaKind::I8 => 0xe080_6043,
            MmaKind::Mxf8f6f4 => 0x8700_004b,
            // bit 12 (B's code has two bits) and the major bits too; 31 is told apart below
            MmaKind::Mxf4 | MmaKind::Mxf4nvf4 => 0x0701_904b,
        };
        let mut reserved = reserved;
        if form.stationary {
            // The maximum shift.
            reserved &= 0x3fff_ffff;
        }
        if form.sparse && matches!(kind, MmaKind::F16 | MmaKind::Tf32) {
            reserved &= !3;
        }
        if idesc & reserved != 0 {
            return Err(IdescError::ReservedBits { idesc, mask: idesc & reserved, kind });
        }
        if matches!(kind, MmaKind::Mxf4 | MmaKind::Mxf4nvf4) && idesc >> 31 == 1 {
            return Err(IdescError::K96 { idesc });
        }
        let bit = |position: u32| idesc >> position & 1 == 1;
        let major = |position: u32| if bit(position) { Major::Mn } else { Major::K };
        let a = element(idesc, kind, 'A', idesc >> 7 & 7)?;
        let b = element(idesc, kind, 'B', idesc >> 10 & 7)?;
        let (d, scale, m) = match scale_vec {
            None => (accumulator(idesc, kind)?, None, (idesc >> 24 & 0x1f) << 4),
            Some(vec) => {
                let scale = scale_factors(idesc, kind, vec)?;
                (AccumulatorType::F32, Some(scale), (idesc >> 27 & 3) << 7)
            }
        };
        // bf16 accumulates in f32 only, and f16 and bf16 do not mix when D is f16.
        let bf16 = ElementType::Float(Format::Bf16);
        if d == AccumulatorType::F16 && (a == bf16 || b == bf16) {
            return Err(IdescError::Type { idesc, operand: 'D', code: 0, kind });
        }
        let n = (idesc >> 17 & 0x3f) << 3;
        if form.stationary {
            let rule = "with .ws M is 32, 64 or 128 and N 64, 128 or 256";
            if !matches!(m, 32 | 64 | 128) || !matches!(n, 64 | 128 | 256) {
                return Err(IdescError::Shape { idesc, m, n, kind, cta_group, rule });
            }
        } else {
            check_shape(idesc, kind, cta_group, m, n)?;
        }
        Ok(Self {
            kind,
            cta_group,
            m,
            n,
            a,
            b,
            d,
            negate_a: bit(13) && kind != MmaKind::I8,
            negate_b: bit(14) && kind != MmaKind::I8,
            a_major: major(15),
            b_major: major(16),
            saturate: kind == MmaKind::I8 && bit(3),
            scale,
            form,
            selector: if form.sparse && scale_vec.is_none() { idesc & 3 } else { 0 },
            max_shift: if form.stationary { [0, 8, 16, 32][(idesc >> 30) as usize] } else { 0 },
        })
    }

    /// Rows of A that each CTA of the group holds.
    pub fn rows_per_cta(&self) -> u32 {
        match self.cta_group {
            CtaGroup::One => self.m,
            CtaGroup::Two => self.m / 2,
        }
    }

    /// Columns of B that each CTA of the group holds.
    pub fn columns_per_cta(&self) -> u32 {
        match self.cta_group {
            CtaGroup::One => self.n,
            CtaGroup::Two => self.n / 2,
        }
    }

    /// How elements of type `element` lie in shared memory for this kind.
    pub fn packing(&self, element: ElementType) -> Packing {
        match element {
            ElementType::Float(Format::Tf32) => Packing::Bits32,
            ElementType::Float(Format::F16 | Format::Bf16) => Packing::Bits16,
            ElementType::Float(Format::E2m1) if self.kind.k() == 64 => Packing::Packed4,
            ElementType::Float(Format::E2m1) => Packing::Slot4,
            ElementType::Float(Format::E2m3 | Format::E3m2) => Packing::Slot6,
            _ => Packing::Bits8,
        }
    }
}

fn element(idesc: u32, kind: MmaKind, operand: char, code: u32) -> Result<ElementType, IdescError> {
    use ElementType::Float;
    Ok(match (kind, code) {
        (MmaKind::F16, 0) => Float(Format::F16),
        (MmaKind::F16, 1) => Float(Format::Bf16),
        (MmaKind::Tf32, 2) => Float(Format::Tf32),
        (MmaKind::F8f6f4 | MmaKind::Mxf8f6f4, 0) => Float(Format::E4m3),
        (MmaKind::F8f6f4 | MmaKind::Mxf8f6f4, 1) => Float(Format::E5m2),
        (MmaKind::F8f6f4 | MmaKind::Mxf8f6f4, 3) => Float(Format::E2m3),
        (MmaKind::F8f6f4 | MmaKind::Mxf8f6f4, 4) => Float(Format::E3m2),
        (MmaKind::F8f6f4 | MmaKind::Mxf8f6f4, 5) => Float(Format::E2m1),
        (MmaKind::I8, 0) => ElementType::U8,
        (MmaKind::I8, 1) => ElementType::S8,
        // Not 5, as the same format has where formats mix.
        (MmaKind::Mxf4 | MmaKind::Mxf4nvf4, 1) => Float(Format::E2m1),
        _ => {
            return Err(IdescError::Type { idesc, operand, code, kind });
        }
    })
}

fn accumulator(idesc: u32, kind: MmaKind) -> Result<AccumulatorType, IdescError> {
    let code = idesc >> 4 & 3;
    Ok(match (kind, code) {
        (MmaKind::F16 | MmaKind::F8f6f4, 0) => AccumulatorType::F16,
        (MmaKind::F16 | MmaKind::F8f6f4 | MmaKind::Tf32, 1) => AccumulatorType::F32,
        (MmaKind::I8, 2) => AccumulatorType::S32,
        _ => {
            return Err(IdescError::Type { idesc, operand: 'D', code, kind });
        }
    })
}

fn scale_factors(idesc: u32, kind: MmaKind, vec: ScaleVec) -> Result<ScaleFactors, IdescError> {
    let format = if idesc >> 23 & 1 == 1 { Format::Ue8m0 } else { Format::Ue4m3 };
    if format == Format::Ue4m3 && vec != ScaleVec::X4 {
        return Err(IdescError::ScaleType { idesc, kind, vec });
    }
    let id = |operand: char, id: u32| {
        let allowed = match vec {
            ScaleVec::X1 => true,
            ScaleVec::X2 => id.is_multiple_of(2),
            ScaleVec::X4 => id == 0,
        };
        if allowed { Ok(id as u8) } else { Err(IdescError::ScaleId { idesc, operand, id, vec }) }
    };
    let a_id = id('A', idesc >> 29 & 3)?;
    let b_id = id('B', idesc >> 4 & 3)?;
    Ok(ScaleFactors { format, vec, a_id, b_id })
}

fn check_shape(idesc: u32, kind: MmaKind, cta_group: CtaGroup, m: u32, n: u32) -> Result<(), IdescError> {
    let multiple = |step: u32| n >= step && n <= 256 && n.is_multiple_of(step);
    let (fits, rule) = match (kind, cta_group) {
        (MmaKind::F16 | MmaKind::Tf32 | MmaKind::F8f6f4, CtaGroup::One) => (
            m == 64 && multiple(8) || m == 128 && multiple(16),
            "M 64 with N a multiple of 8, or M 128 with N a multiple of 16, N up to 256",
        ),
        (MmaKind::F16 | MmaKind::Tf32 | MmaKind::F8f6f4, CtaGroup::Two) => {
            ((m == 128 || m == 256) && multiple(16), "M 128 or 256, N a multiple of 16 up to 256")
        }
        (MmaKind::I8, CtaGroup::One) => (
            (m == 64 || m == 128) && (n == 8 || n == 24 || multiple(16)),
            "M 64 or 128, N 8, 24 or a multiple of 16 up to 256",
        ),
        (MmaKind::I8, CtaGroup::Two) => {
            ((m == 128 || m == 256) && multiple(32), "M 128 or 256, N a multiple of 32 up to 256")
        }
        (_, CtaGroup::One) => (m == 128 && multiple(8), "M 128, N a multiple of 8 up to 256"),
        (_, CtaGroup::Two) => {
            ((m == 128 || m == 256) && multiple(16), "M 128 or 256, N a multiple of 16 up to 256")
        }
    };
    if fits { Ok(()) } else { Err(IdescError::Shape { idesc, m, n, kind, cta_group, rule }) }
}
