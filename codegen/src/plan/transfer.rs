//! What the asynchronous engines are told: tensor maps, matrix descriptors, barriers.

use super::memory::SmemMap;
use crate::arch::TensorCore;
use crate::kernel::WorkspaceBuffer;
use crate::problem::{ElementKind, Formats, MmaKind, Problem};
use std::fmt;

/// A tensor of the dual GEMM, named by its role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operand {
    /// The left operand of both products.
    A,
    /// The right operand of the first product.
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
    /// Every tensor that a dual GEMM can have; which of them one has, [`Operand::present`] says.
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

    /// Whether a kernel for `problem` has the tensor.
    pub fn present(self, problem: &Problem) -> bool {
        let formats = problem.formats;
        match self {
            Operand::A | Operand::B1 | Operand::B2 | Operand::C => true,
            Operand::Sfa => formats.a.spec().scales.is_some(),
            Operand::Sfb1 | Operand::Sfb2 => formats.b.spec().scales.is_some(),
            Operand::Sfc => formats.c.scales().is_some(),
            Operand::Offsets => problem.shape.groups.by_rows(),
            Operand::D1 | Operand::D2 => formats.products.is_some(),
        }
    }

    /// What the tensor's address has to be a multiple of, in bytes: 4 for row offsets, 16 for tensor maps, bulk copies
    /// and vector stores, 32 where TMA expands e2m1 (cuTensorMapEncodeTiled, `16U4_ALIGN16B`).
    pub fn alignment(self, problem: &Problem) -> u32 {
        let Formats { a, b, .. } = problem.formats;
        let expanded = |element| problem.formats.check().is_ok_and(|kind| kind.expands(element));
        match self {
            Operand::A if expanded(a.spec().element) => 32,
            Operand::B1 | Operand::B2 if expanded(b.spec().element) => 32,
            Operand::Offsets => 4,
            _ => 16,
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
            Operand::D1 | Operand::D2 => problem.product_bytes(),
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

    /// Bits 62..=63 of an sm_90 matrix descriptor (PTX ISA 9.7.15.5.1).
    const fn wgmma_bits(self) -> u64 {
        match self {
            Swizzle::None => 0,
            Swizzle::B128 => 1,
            Swizzle::B64 => 2,
            Swizzle::B32 => 3,
        }
    }

    /// Bits 61..=63 of an sm_100 matrix descriptor (PTX ISA 9.7.16.4.1).
    const fn descriptor_bits(self) -> u64 {
        match self {
            Swizzle::None => 0,
            Swizzle::B128 => 2,
            Swizzle::B64 => 4,
            Swizzle::B32 => 6,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TensorMapRecipe {
    /// The tensor.
    pub operand: Operand,
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

impl TensorMapRecipe {
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

/// An mbarrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Barrier {
    /// What completes it.
    pub name: &'static str,
    /// Bytes from the base of dynamic SMEM.
    pub offset: u32,
    /// How many there are, 8 bytes apart.
    pub count: u32,
    /// Arrivals that complete a phase.
    pub arrivals: u32,
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
    core: TensorCore,
    kind: MmaKind,
    elements: [ElementKind; 2],
    mma: [u32; 2],
    smem: &SmemMap,
    span: Swizzle,
    sf_row_block: u32,
) -> Descriptors {
    let units = |bytes: u32| bytes / 16;
    // Version 1 sits at bit 46; the stride between 8-row groups at bits 32..=45.
    let high = |group_bytes: u32, swizzle: Swizzle| {
        let bits = match core {
            TensorCore::Tcgen05 => 1 << 46 | swizzle.descriptor_bits() << 61,
            TensorCore::Wgmma => swizzle.wgmma_bits() << 62,
        } | u64::from(units(group_bytes)) << 32;
        (bits >> 32) as u32
    };
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
        instruction: match core {
            TensorCore::Tcgen05 => instruction_descriptor(kind, elements, mma),
            TensorCore::Wgmma => 0,
        },
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

/// A dense K-major MMA to fp32 (PTX ISA 9.7.16.4.2). Bits 7..=9 and 10..=12 hold the elements' codes, 17..=22
/// N/8, 24..=28 M/16; bits 4..=5 the fp32 of D where there are no scale factors, else bit 23 their type.
fn instruction_descriptor(kind: MmaKind, elements: [ElementKind; 2], mma: [u32; 2]) -> u32 {
    let code = |element| match (kind, element) {
        (MmaKind::Mxf4Nvf4 | MmaKind::Mxf4, _) => 1,
        (_, ElementKind::E4m3 | ElementKind::F16) => 0,
        (_, ElementKind::E5m2 | ElementKind::Bf16) => 1,
        (_, ElementKind::E2m1) => 5,
    };
    let kind_bits = match kind {
        MmaKind::Mxf4Nvf4 => 0,
        MmaKind::Mxf4 | MmaKind::Mxf8f6f4 => 1 << 23,
        MmaKind::F8f6f4 | MmaKind::F16 | MmaKind::Decoded => 1 << 4,
    };
    kind_bits | code(elements[0]) << 7 | code(elements[1]) << 10 | (mma[1] >> 3) << 17 | (mma[0] >> 4) << 24
}

/// The same with other scale factors of a block of four: the first one's number is in bits 4..=5 for the
/// column side and 29..=30 for the row side.
pub(crate) fn with_scale_id(instruction: u32, id: u32) -> u32 {
    instruction | id << 4 | id << 29
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instruction_descriptors_match_published_ones() {
        use ElementKind::{Bf16, E2m1, E4m3, F16};
        let descriptor = |kind, element, mma| instruction_descriptor(kind, [element, element], mma);
        assert_eq!(descriptor(MmaKind::Mxf4Nvf4, E2m1, [128, 128]), 0x0820_0480);
        assert_eq!(descriptor(MmaKind::Mxf4Nvf4, E2m1, [128, 256]), 0x0840_0480);
        assert_eq!(descriptor(MmaKind::Mxf4Nvf4, E2m1, [256, 256]), 0x1040_0480);
        assert_eq!(descriptor(MmaKind::F16, Bf16, [128, 256]), 0x0840_0490);
        assert_eq!(descriptor(MmaKind::F16, F16, [128, 128]), 0x0820_0010);
        assert_eq!(descriptor(MmaKind::F8f6f4, E4m3, [128, 256]), 0x0840_0010);
        let mxfp8 = descriptor(MmaKind::Mxf8f6f4, E4m3, [128, 128]);
        assert_eq!((mxfp8, with_scale_id(mxfp8, 3)), (0x08A0_0000, 0x68A0_0030));
        let mxfp4 = descriptor(MmaKind::Mxf4, E2m1, [128, 128]);
        assert_eq!((mxfp4, with_scale_id(mxfp4, 2)), (0x08A0_0480, 0x48A0_04A0));
    }

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
