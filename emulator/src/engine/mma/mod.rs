//! The tensor core: `tcgen05.mma`, dense and sparse, plain and weight stationary, all kinds.
//!
//! [`execute`] is the one entry point: it takes an instruction with its operand values and the
//! memories of the CTAs that take part, and does all of it. The parts:
//!
//! - [`sum`]: the rule by which the hardware adds, as integers; parametric, for `wgmma` as well
//! - [`scalar`]: one element of D computed the plain way
//! - [`operands`]: A, B and scale factors out of shared and Tensor Memory
//! - [`layout`]: which word of Tensor Memory an element of D is
//! - [`product`]: whole rows of D: [`fp4`] for mxf4 and mxf4nvf4, [`float`] for the other
//!   floating-point kinds, [`integer`] for i8
//! - [`sparse`]: rows of D of a sparse product
//! - [`path`]: which host instructions they use

mod exact;
pub mod float;
pub mod fp4;
pub mod integer;
pub mod layout;
pub mod operands;
pub mod path;
pub mod product;
pub mod scalar;
pub mod sparse;
pub mod sum;

#[cfg(test)]
mod tests;

use super::SmemReader;
use super::descriptor::DescriptorError;
use super::idesc::{CtaGroup, IdescError, InstructionDescriptor, MmaForm, MmaKind, ScaleVec};
use super::tmem::{Tmem, TmemError};
use thiserror::Error;

/// How products are summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Arithmetic {
    /// Hardware's arithmetic, bit for bit as far as it is known (see [`sum`]).
    #[default]
    Hardware,
    /// Plain f32: products and sums rounded to nearest, K in order. Integers are exact in both.
    F32,
}

/// Where A comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperandA {
    /// Shared memory: a 64-bit matrix descriptor.
    Smem(u64),
    /// Tensor Memory: a 32-bit address.
    Tmem(u32),
}

/// Modifiers `.sp`, `.ws` and `.ashift` of a `tcgen05.mma`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Variant {
    /// `.sp`: Tensor Memory address of the metadata.
    pub metadata: Option<u32>,
    /// `.ws`.
    pub stationary: bool,
    /// The zero-column mask descriptor of `.ws`; 0 if absent.
    pub zero_columns: u64,
    /// `.ashift`: rows of A are moved up by one, but the last.
    pub shift_a: bool,
}

/// A `tcgen05.mma` with the values of its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MmaInstruction {
    /// `.kind::`.
    pub kind: MmaKind,
    /// `.scale_vec::`, or what `.block16`/`.block32` stand for (see
    /// [`InstructionDescriptor::decode`]); `None` for plain kinds.
    pub scale_vec: Option<ScaleVec>,
    /// `.cta_group::`.
    pub cta_group: CtaGroup,
    /// Instruction descriptor.
    pub idesc: u32,
    /// Tensor Memory address of D.
    pub d: u32,
    /// A.
    pub a: OperandA,
    /// Matrix descriptor of B.
    pub b: u64,
    /// Tensor Memory address of A's scale factors; ignored by plain kinds.
    pub scale_a: u32,
    /// Tensor Memory address of B's scale factors; ignored by plain kinds.
    pub scale_b: u32,
    /// The predicate `enable-input-d`: whether D's old value is added.
    pub enable_input_d: bool,
    /// The immediate `scale-input-d`: D's old value is divided by 2 to this power. 0 if absent.
    pub scale_input_d: u32,
    /// Bit i of word i / 32: lane i of D is not written. Words 0..4 are the even CTA's lanes, 4..8
    /// the odd one's. Zeros if absent.
    pub disabled_lanes: [u32; 8],
    /// Whether it is sparse or weight stationary, with the operands of that.
    pub variant: Variant,
}

impl MmaInstruction {
    /// Its instruction descriptor, decoded and checked.
    ///
    /// # Errors
    /// [`IdescError`] naming the field and the rule.
    pub fn descriptor(&self) -> Result<InstructionDescriptor, IdescError> {
        let form = MmaForm { sparse: self.variant.metadata.is_some(), stationary: self.variant.stationary };
        InstructionDescriptor::decode_form(self.idesc, self.kind, self.scale_vec, self.cta_group, form)
    }
}

/// The memories of one CTA.
pub struct CtaMemory<'a, E> {
    /// Its Tensor Memory.
    pub tmem: &'a mut Tmem,
    /// Reads its shared memory.
    pub smem: &'a mut SmemReader<'a, E>,
}

/// An operand, for error messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operand {
    /// A.
    A,
    /// B.
    B,
    /// D.
    D,
    /// A's scale factors.
    ScaleA,
    /// B's scale factors.
    ScaleB,
    /// Sparsity metadata of A.
    Metadata,
}

impl std::fmt::Display for Operand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Operand::A => "A",
            Operand::B => "B",
            Operand::D => "D",
            Operand::ScaleA => "scale factors of A",
            Operand::ScaleB => "scale factors of B",
            Operand::Metadata => "sparsity metadata",
        })
    }
}

/// Why a `tcgen05.mma` failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MmaError<E> {
    /// The instruction descriptor is illegal.
    #[error(transparent)]
    Idesc(#[from] IdescError),
    /// A matrix descriptor is illegal.
    #[error("{operand} of tcgen05.mma: {source}")]
    Descriptor {
        /// Whose.
        operand: Operand,
        /// Why.
        source: DescriptorError,
    },
    /// Shared memory cannot be read.
    #[error("{operand} of tcgen05.mma: {error}")]
    Memory {
        /// Whose.
        operand: Operand,
        /// The reader's error.
        error: E,
    },
    /// Tensor Memory cannot be read or written.
    #[error("{operand} of tcgen05.mma: {source}")]
    Tmem {
        /// Whose.
        operand: Operand,
        /// Why.
        source: TmemError,
    },
    /// The lane field of an address is not one the layout allows.
    #[error("{operand} of tcgen05.mma: lane {lane} in address {address:#010x}; {rule}")]
    Lane {
        /// Whose.
        operand: Operand,
        /// The address.
        address: u32,
        /// Its lane field.
        lane: u32,
        /// What is allowed.
        rule: &'static str,
    },
    /// Copies of an operand that must agree differ.
    #[error(
        "{operand} of tcgen05.mma: row {row} differs between lanes {first} and {second} \
         ({first_word:#010x} and {second_word:#010x}) at column {column}; every quarter of the \
         lanes needs its own copy (tcgen05.cp with .warpx4 makes them)"
    )]
    NotReplicated {
        /// Whose.
        operand: Operand,
        /// Row of A or column of B.
        row: u32,
        /// A lane.
        first: u32,
        /// The lane that should hold the same value.
        second: u32,
        /// Column.
        column: u32,
        /// The bits of the first that count.
        first_word: u32,
        /// The bits of the second that count.
        second_word: u32,
    },
    /// An operand in tensor memory was last written by a `tcgen05.mma`, as sums.
    #[error(
        "{operand} of tcgen05.mma: lane {lane}, column {column} holds sums of a tcgen05.mma, which was the last to write there; \
         tcgen05.cp or tcgen05.st of the operand comes between"
    )]
    Sums {
        /// The operand.
        operand: Operand,
        /// Lane.
        lane: u32,
        /// Column.
        column: u32,
    },
    /// D overlaps an operand of the same instruction.
    #[error(
        "D of tcgen05.mma, columns {first} to {last}, covers column {column} of {operand}, which the same instruction reads: \
         which comes first is not defined; N or an address is wrong"
    )]
    OverOperand {
        /// The operand.
        operand: Operand,
        /// First column of D.
        first: u32,
        /// Last column of D.
        last: u32,
        /// The first common column.
        column: u32,
    },
    /// The number of CTAs does not match the group.
    #[error("tcgen05.mma with {group:?} CTA was given the memories of {found}")]
    CtaCount {
        /// The group.
        group: CtaGroup,
        /// CTAs given.
        found: usize,
    },
    /// `scale-input-d` does not exist for the kind, or is too large.
    #[error(
        "scale-input-d is {value}: it is 0 to 15, and exists for kinds f16 and tf32 only (kind is {kind:?})"
    )]
    ScaleInputD {
        /// The immediate.
        value: u32,
        /// The kind.
        kind: MmaKind,
    },
    /// Sparsity metadata has no meaning.
    #[error(
        "sparsity metadata of tcgen05.mma: index {index:#06b} for chunk {chunk} of row {row} has no meaning for {kind:?}"
    )]
    Metadata {
        /// Row of A.
        row: u32,
        /// Chunk along K.
        chunk: u32,
        /// The four bits.
        index: u32,
        /// The kind.
        kind: MmaKind,
    },
    /// `.ashift` does not exist for the instruction.
    #[error("tcgen05.mma.ashift takes A from tensor memory, with M 128 or 256; M is {m}")]
    Shift {
        /// Rows.
        m: u32,
    },
    /// A zero-column mask descriptor with reserved bits, or too far a shift.
    #[error(
        "zero-column mask descriptor {descriptor:#018x}: bits 36 to 38 and 62 to 63 are zero, and the column shift is at most {limit}"
    )]
    ZeroColumns {
        /// The descriptor.
        descriptor: u64,
        /// The largest shift.
        limit: u32,
    },
    /// A lane mask on a block-scaled kind.
    #[error("a disable-output-lane mask does not exist for {kind:?}")]
    LaneMask {
        /// The kind.
        kind: MmaKind,
    },
}

/// Cases that the ISA leaves undefined and hardware executes: unwritten words, sums or meaningless metadata as
/// operands, and D over an operand.
#[derive(Debug)]
pub(crate) struct Notes<'a, E> {
    /// The list for such cases, one of a kind; without a list they are errors.
    list: Option<&'a mut Vec<MmaError<E>>>,
}

impl<E> Notes<'_, E> {
    /// Records a case and continues, or fails with it.
    fn put(&mut self, error: MmaError<E>) -> Result<(), MmaError<E>> {
        let Some(list) = &mut self.list else { return Err(error) };
        let kind = std::mem::discriminant(&error);
        if !list.iter().any(|e| std::mem::discriminant(e) == kind) {
            list.push(error);
        }
        Ok(())
    }

    /// Words of Tensor Memory that are an operand.
    fn row<'t>(
        &mut self,
        tmem: &'t Tmem,
        operand: Operand,
        (lane, column, count): (u32, u32, u32),
    ) -> Result<&'t [u32], MmaError<E>> {
        let fault = |source| MmaError::Tmem { operand, source };
        match tmem.row(lane, column, count) {
            Ok(words) => Ok(words),
            Err(source @ TmemError::NeverWritten { .. }) => {
                self.put(fault(source))?;
                tmem.any_row(lane, column, count).map_err(fault)
            }
            Err(source) => Err(fault(source)),
        }
    }
}

/// Executes one `tcgen05.mma`.
///
/// `ctas` has one entry for `cta_group::1`, and the even and then the odd CTA of the pair for
/// `cta_group::2`: descriptors and addresses apply to each CTA's own memories, CTA c holding rows
/// `c*M/2..` of A and D and columns `c*N/2..` of B.
///
/// # Errors
/// [`MmaError`]; D is unchanged unless the error is about D itself.
pub fn execute<E>(
    instruction: &MmaInstruction,
    ctas: &mut [CtaMemory<'_, E>],
    arithmetic: Arithmetic,
) -> Result<(), MmaError<E>> {
    execute_noting(instruction, ctas, arithmetic, &mut Notes { list: None })
}

/// Executes as [`execute`], but continues where hardware does: cases that the ISA leaves undefined are added to
/// `notes`, one of a kind.
///
/// # Errors
/// [`MmaError`], as [`execute`], where it is not known what hardware does.
pub fn execute_anyway<E>(
    instruction: &MmaInstruction,
    ctas: &mut [CtaMemory<'_, E>],
    arithmetic: Arithmetic,
    notes: &mut Vec<MmaError<E>>,
) -> Result<(), MmaError<E>> {
    execute_noting(instruction, ctas, arithmetic, &mut Notes { list: Some(notes) })
}

fn execute_noting<E>(
    instruction: &MmaInstruction,
    ctas: &mut [CtaMemory<'_, E>],
    arithmetic: Arithmetic,
    notes: &mut Notes<'_, E>,
) -> Result<(), MmaError<E>> {
    let &MmaInstruction { kind, cta_group, .. } = instruction;
    let idesc = instruction.descriptor()?;
    let expected = match cta_group {
        CtaGroup::One => 1,
        CtaGroup::Two => 2,
    };
    if ctas.len() != expected {
        return Err(MmaError::CtaCount { group: cta_group, found: ctas.len() });
    }
    let value = instruction.scale_input_d;
    if value > 15 || value != 0 && !matches!(kind, MmaKind::F16 | MmaKind::Tf32) {
        return Err(MmaError::ScaleInputD { value, kind });
    }
    if kind.is_block_scaled() && instruction.disabled_lanes != [0; 8] {
        return Err(MmaError::LaneMask { kind });
    }
    let variant = instruction.variant;
    let in_tmem = matches!(instruction.a, OperandA::Tmem(_));
    if variant.shift_a && (!in_tmem || idesc.m < 128 || variant.stationary) {
        return Err(MmaError::Shift { m: idesc.m });
    }
    let zero = sparse::ZeroColumns::decode(variant.zero_columns, &idesc)?;
    let layout = layout::DLayout::new(&idesc, instruction.d)?;
    layout::check_overlap(instruction, &idesc).or_else(|e| notes.put(e))?;
    let path = path::Path::best();
    let mut b = operands::gather_b(instruction, &idesc, ctas, (0, zero.shift))?;
    zero.clear(&mut b);
    let mut upper = None;
    if variant.metadata.is_some() {
        let mut second = operands::gather_b(instruction, &idesc, ctas, (1, zero.shift))?;
        zero.clear(&mut second);
        upper = Some(second);
    }
    // All operands of all CTAs are read before any D is written.
    let mut jobs = Vec::with_capacity(2 * ctas.len());
    for (rank, cta) in ctas.iter_mut().enumerate() {
        let a = operands::gather_a(instruction, &idesc, cta, notes)?;
        for half in layout.halves() {
            let scales = operands::read_scales(instruction, &idesc, cta.tmem, *half, notes)?;
            let columns = half.columns();
            let lower = b.slice(columns.clone());
            let product = match (&upper, variant.metadata) {
                (Some(upper), Some(address)) => {
                    let metadata = sparse::read_metadata(&idesc, address, *half, cta.tmem, notes)?;
                    let b = [lower, upper.slice(columns)];
                    let a = a.clone();
                    Rows::Sparse(sparse::SparseProduct { idesc, arithmetic, path, a, b, scales, metadata })
                }
                _ => {
                    Rows::Dense(product::Product::new(&idesc, arithmetic, path, &a, &lower, scales.as_ref()))
                }
            };
            jobs.push((rank, *half, product));
        }
    }
    for (rank, half, product) in jobs {
        let tmem = &mut *ctas[rank].tmem;
        for row in 0..idesc.rows_per_cta() {
            let lane = layout.lane(row, half);
            let mask = instruction.disabled_lanes[rank * 4 + (lane / 32) as usize];
            if mask >> (lane % 32) & 1 == 1 {
                continue;
            }
            let column = layout.column();
            let count = half.count;
            let on_d = |source| MmaError::Tmem { operand: Operand::D, source };
            if instruction.enable_input_d {
                notes.row(tmem, Operand::D, (lane, column, count))?;
            }
            let words = tmem.sums_mut(lane, column, count).map_err(on_d)?;
            if !instruction.enable_input_d {
                words.fill(0);
            } else if value != 0 {
                product::scale_down(idesc.d, value, words);
            }
            match &product {
                Rows::Dense(p) => p.accumulate_row(row as usize, words),
                Rows::Sparse(p) => p.accumulate_row(row as usize, words),
            }
        }
    }
    Ok(())
}

/// The implementation that computes rows of D.
enum Rows {
    Dense(product::Product),
    Sparse(sparse::SparseProduct),
}
