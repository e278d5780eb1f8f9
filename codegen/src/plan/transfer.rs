//! What the asynchronous engines are told: tensor maps, matrix descriptors, barriers.

use super::memory::SmemMap;
use crate::kernel::WorkspaceBuffer;
use crate::problem::{ElementKind, Formats, MmaKind, OutputElement, Problem};
use crate::target::Isa;
use std::fmt;

/// A tensor of a dual GEMM or GEMM, named by its role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operand {
    /// The left operand of both products.
    A,
    /// The right operand of the first product, or of the only one.
    B1,
    /// The right operand of the second product.
    B2,
    /// Scale factors of A.
    Sfa,
    /// Scale factors of B1.
    Sfb1,
    /// Scale factors of B2.
    Sfb2,
    /// The result.
    C,
    /// Scale factors of the result.
    Sfc,
    /// Where each group's rows start, and where the last one's end.
    Offsets,
    /// The first product as the gate reads it.
    D1,
    /// The second product as the gate reads it.
    D2,
}

impl Operand {
    /// Every tensor that a problem can have; which of them one has, [`Operand::present`] says.
    pub const ALL: [Operand; 11] = [
        Operand::A,
        Operand::B1,
        Operand::B2,
        Operand::Sfa,
        Operand::Sfb1,
        Operand::Sfb2,
        Operand::C,
        Operand::Sfc,
        Operand::Offsets,
        Operand::D1,
        Operand::D2,
    ];

    /// The name in kernels, plans and launch files.
    pub const fn name(self) -> &'static str {
        match self {
            Operand::A => "a",
            Operand::B1 => "b1",
            Operand::B2 => "b2",
            Operand::Sfa => "sfa",
            Operand::Sfb1 => "sfb1",
            Operand::Sfb2 => "sfb2",
            Operand::C => "c",
            Operand::Sfc => "sfc",
            Operand::Offsets => "offsets",
            Operand::D1 => "d1",
            Operand::D2 => "d2",
        }
    }

    /// Whether the kernel writes the tensor; the others it reads.
    pub const fn is_output(self) -> bool {
        matches!(self, Operand::C | Operand::Sfc | Operand::D1 | Operand::D2)
    }

    /// The tensor that the second product has in its place.
    #[cfg(feature = "render")]
    pub(crate) const fn of_second_product(self) -> Operand {
        match self {
            Operand::B1 | Operand::B2 => Operand::B2,
            Operand::Sfb1 | Operand::Sfb2 => Operand::Sfb2,
            Operand::D1 | Operand::D2 => Operand::D2,
            Operand::A | Operand::Sfa | Operand::C | Operand::Sfc | Operand::Offsets => self,
        }
    }

    /// Whether a kernel for `problem` has the tensor.
    pub fn present(self, problem: &Problem) -> bool {
        let formats = problem.formats;
        let second = problem.operation.products() == 2;
        match self {
            Operand::A | Operand::B1 | Operand::C => true,
            Operand::B2 => second,
            Operand::Sfa => formats.a.spec().scales.is_some(),
            Operand::Sfb1 => formats.b.spec().scales.is_some(),
            Operand::Sfb2 => second && formats.b.spec().scales.is_some(),
            Operand::Sfc => formats.c.scales().is_some(),
            Operand::Offsets => problem.shape.groups.by_rows(),
            Operand::D1 => formats.preactivations.is_some(),
            Operand::D2 => second && formats.preactivations.is_some(),
        }
    }

    /// What the tensor's address has to be a multiple of, in bytes: 4 for row offsets and f32 scale factors, 16 for tensor maps, bulk copies
    /// and vector stores, 32 where TMA expands e2m1 (cuTensorMapEncodeTiled, `16U4_ALIGN16B`).
    pub fn alignment(self, problem: &Problem) -> u32 {
        let Formats { a, b, .. } = problem.formats;
        let expanded = |element| problem.formats.check().is_ok_and(|kind| kind.expands(element));
        match self {
            Operand::A if expanded(a.spec().element) => 32,
            Operand::B1 | Operand::B2 if expanded(b.spec().element) => 32,
            Operand::A | Operand::B1 | Operand::B2 => 16,
            Operand::Sfa | Operand::Sfb1 | Operand::Sfb2 if problem.formats.scales_sums() => 4,
            Operand::Sfa | Operand::Sfb1 | Operand::Sfb2 | Operand::C | Operand::Sfc => 16,
            Operand::D1 | Operand::D2 => 16,
            Operand::Offsets => 4,
        }
    }

    /// Bytes of the tensor for `problem`; 0 where it has none.
    pub fn bytes(self, problem: &Problem) -> u64 {
        match self {
            Operand::A => problem.a_bytes(),
            Operand::B1 | Operand::B2 => problem.b_bytes(),
            Operand::Sfa => problem.a_scale_bytes(),
            Operand::Sfb1 | Operand::Sfb2 => problem.b_scale_bytes(),
            Operand::C => problem.output_bytes(),
            Operand::Sfc => problem.output_scale_bytes(),
            Operand::Offsets => 4 * (u64::from(problem.shape.groups.count()) + 1),
            Operand::D1 | Operand::D2 => problem.preactivation_bytes(),
        }
    }
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Swizzle of a tensor map and of the matrix descriptors that read what it loads: the span in
/// which 16-byte units are permuted (PTX ISA 5.5.6, CUtensorMapSwizzle).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Swizzle {
    /// No permutation.
    None,
    /// 32-byte spans.
    B32,
    /// 64-byte spans.
    B64,
    /// 128-byte spans.
    B128,
}

impl Swizzle {
    /// The widest swizzle whose span divides `bytes`.
    pub fn of_row(bytes: u32) -> Swizzle {
        match bytes {
            _ if bytes.is_multiple_of(128) => Swizzle::B128,
            _ if bytes.is_multiple_of(64) => Swizzle::B64,
            _ if bytes.is_multiple_of(32) => Swizzle::B32,
            _ => Swizzle::None,
        }
    }

    /// Bytes of the span; 16 without swizzle, the unit that is then left in place.
    pub const fn span(self) -> u32 {
        match self {
            Swizzle::None => 16,
            Swizzle::B32 => 32,
            Swizzle::B64 => 64,
            Swizzle::B128 => 128,
        }
    }

    /// The name in launch files.
    pub const fn name(self) -> &'static str {
        match self {
            Swizzle::None => "none",
            Swizzle::B32 => "32b",
            Swizzle::B64 => "64b",
            Swizzle::B128 => "128b",
        }
    }
}

/// Element type of a tensor map (CUtensorMapDataType).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementType {
    /// Bytes: packed operands travel as bytes, which every driver that has tensor maps knows.
    U8,
    /// IEEE binary16.
    F16,
    /// e2m1 in pairs, 16 of which take 16 bytes of SMEM, 8 of them pads: what an MMA of 8-bit elements
    /// takes for e2m1.
    U4Align16,
    /// bfloat16.
    Bf16,
    /// IEEE binary32.
    F32,
    /// Eight bytes: scale factors travel in units of eight, so that a box holds 2048 bytes of them.
    U64,
}

impl ElementType {
    /// What elements of C are mapped as; what is smaller than 16 bits as bytes.
    pub(crate) const fn of_output(element: OutputElement) -> ElementType {
        match element {
            OutputElement::F32 => ElementType::F32,
            OutputElement::Bf16 => ElementType::Bf16,
            OutputElement::F16 => ElementType::F16,
            OutputElement::E4m3 | OutputElement::E2m1 => ElementType::U8,
        }
    }

    /// The name in launch files.
    pub const fn name(self) -> &'static str {
        match self {
            ElementType::U8 => "u8",
            ElementType::U4Align16 => "16u4_align16b",
            ElementType::F16 => "f16",
            ElementType::Bf16 => "bf16",
            ElementType::F32 => "f32",
            ElementType::U64 => "u64",
        }
    }

    /// Bytes of an element in SMEM.
    pub const fn bytes(self) -> u32 {
        match self {
            ElementType::U8 | ElementType::U4Align16 => 1,
            ElementType::F16 | ElementType::Bf16 => 2,
            ElementType::F32 => 4,
            ElementType::U64 => 8,
        }
    }
}

/// What the host encodes with cuTensorMapEncodeTiled, all but the address: rank 2, or 3 where there are several
/// matrices, inner dimension first, box of one matrix, element strides 1, no interleave, out-of-bounds elements zero, L2 promotion 256 bytes for
/// loads.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TensorMapRecipe {
    /// The tensor.
    pub operand: Operand,
    /// Whether only the last tile along M is loaded by it: a box has the rows that A has there, and none outside.
    pub last_tile: bool,
    /// The buffer of the workspace that holds the tensor in another order, where the map is of that.
    pub workspace: Option<WorkspaceBuffer>,
    /// Its element type.
    pub element: ElementType,
    /// Sizes in elements.
    pub dims: [u64; 2],
    /// Bytes between two rows.
    pub row_stride: u64,
    /// Matrices, where the map has a third dimension of them: each starts where the one before it ends.
    pub matrices: Option<u32>,
    /// Box sizes in elements.
    pub box_dims: [u32; 2],
    /// Swizzle of the box in SMEM.
    pub swizzle: Swizzle,
    /// Bytes that L2 promotes a miss to: 256 for loads, 0 (none) for stores.
    pub l2_promotion: u32,
}

/// `last_tile` only where it is set: kernels' hashes are over this text.
impl fmt::Debug for TensorMapRecipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TensorMapRecipe {
            operand,
            last_tile,
            workspace,
            element,
            dims,
            row_stride,
            matrices,
            box_dims,
            swizzle,
            l2_promotion,
        } = self;
        let mut text = f.debug_struct("TensorMapRecipe");
        text.field("operand", operand);
        if *last_tile {
            text.field("last_tile", last_tile);
        }
        text.field("workspace", workspace)
            .field("element", element)
            .field("dims", dims)
            .field("row_stride", row_stride)
            .field("matrices", matrices)
            .field("box_dims", box_dims)
            .field("swizzle", swizzle)
            .field("l2_promotion", l2_promotion)
            .finish()
    }
}

impl TensorMapRecipe {
    /// What plans call it: the operand's name, or `a_last`.
    pub fn name(&self) -> &'static str {
        if self.last_tile { "a_last" } else { self.operand.name() }
    }

    /// Sizes in elements, inner dimension first: two of them, or three.
    pub fn all_dims(&self) -> Vec<u64> {
        self.dims.into_iter().chain(self.matrices.map(u64::from)).collect()
    }

    /// Bytes from one row to the next, and from one matrix to the next where there are several.
    pub fn strides(&self) -> Vec<u64> {
        let matrix = self.matrices.map(|_| self.row_stride.saturating_mul(self.dims[1]));
        [self.row_stride].into_iter().chain(matrix).collect()
    }

    /// The box in elements: of several matrices, one.
    pub fn all_box_dims(&self) -> Vec<u32> {
        self.box_dims.into_iter().chain(self.matrices.map(|_| 1)).collect()
    }
}

/// Constants of SMEM matrix descriptors and of the instruction descriptor. A descriptor's low word
/// is the SMEM address in 16-byte units plus `operand_low`; steps are in the same units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptors {
    /// High word for A and B: stride between 8-row groups, version, swizzle.
    pub operand_high: u32,
    /// Low word for A and B without the address: the leading offset field, which K-major swizzled
    /// layouts ignore and CUTLASS sets to 1.
    pub operand_low: u32,
    /// High word for scale factors: 128 bytes between 8-row groups, no swizzle.
    pub scale_high: u32,
    /// The instruction descriptor of one MMA (PTX ISA 9.7.16.4.2), with the first scale factors of a
    /// block of four; 0 for `wgmma`, which has none.
    pub instruction: u32,
    /// From one operand stage to the next.
    pub stage_step: u32,
    /// From one scale-factor slot to the next.
    pub slot_step: u32,
    /// From one 512-byte scale-factor block to the next along K.
    pub scale_step: u32,
    /// From one row block of scale factors to the next, in a slot.
    pub scale_row_step: u32,
    /// From A to B1 in the first K box.
    pub b1: u32,
    /// From B1 to B2 in any K box.
    pub b2: u32,
    /// Per K block (64 elements) of a stage: the offsets of A and of B1.
    pub a_blocks: [u32; MAX_BLOCKS],
    /// See `a_blocks`.
    pub b_blocks: [u32; MAX_BLOCKS],
}

/// K blocks of the longest K tile: 2048 elements, far beyond what SMEM holds two stages of.
pub const MAX_BLOCKS: usize = 32;

/// Bytes of K that one MMA takes of each row (PTX ISA 9.7.16.2.1).
const MMA_ROW_BYTES: u32 = 32;

/// `mma` is rows and columns of one MMA, `elements` the elements on those sides.
pub(super) fn descriptors(
    isa: &dyn Isa,
    kind: MmaKind,
    elements: [ElementKind; 2],
    mma: [u32; 2],
    smem: &SmemMap,
    span: Swizzle,
    sf_row_block: u32,
) -> Descriptors {
    let units = |bytes: u32| bytes / 16;
    // The stride between 8-row groups is at bits 32..=45.
    let high = |group_bytes: u32, swizzle: Swizzle| isa.descriptor_bits(swizzle) | units(group_bytes);
    let mut a_blocks = [0; MAX_BLOCKS];
    let mut b_blocks = [0; MAX_BLOCKS];
    let per_box = span.span() / MMA_ROW_BYTES;
    for (block, (a, b)) in a_blocks.iter_mut().zip(&mut b_blocks).enumerate() {
        let (k_box, inside) = (block as u32 / per_box, block as u32 % per_box);
        *a = units(k_box * smem.a_box_bytes + inside * MMA_ROW_BYTES);
        *b = units(k_box * smem.b_tiles * smem.b_box_bytes + inside * MMA_ROW_BYTES);
    }
    Descriptors {
        operand_high: high(8 * span.span(), span),
        operand_low: 1 << 16,
        scale_high: high(128, Swizzle::None),
        instruction: isa.instruction(kind, elements, mma),
        stage_step: units(smem.stage_bytes),
        slot_step: units(smem.slot_bytes),
        scale_step: units(512),
        scale_row_step: units(sf_row_block),
        b1: units(smem.a_bytes),
        b2: units(smem.b_box_bytes),
        a_blocks,
        b_blocks,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_widest_swizzle_divides_the_row() {
        for (bytes, swizzle) in [
            (16, Swizzle::None),
            (32, Swizzle::B32),
            (64, Swizzle::B64),
            (96, Swizzle::B32),
            (384, Swizzle::B128),
        ] {
            assert_eq!(Swizzle::of_row(bytes), swizzle);
            assert_eq!(bytes % swizzle.span(), 0);
        }
    }
}
