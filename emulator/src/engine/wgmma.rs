//! The arithmetic of `wgmma.mma_async` on sm_90a: the 16 rows of D that one warp of the warpgroup holds.
//!
//! The warps of a warpgroup share B and work on rows `16 * w..` of A and D each, so one warp's part is
//! a whole of its own. Sources: PTX ISA "Asynchronous Warpgroup Level Matrix Instructions", the
//! layouts of its figures; arithmetic as in [`super::mma::sum`].

use super::SmemReader;
use super::descriptor::{DescriptorError, GatherError, Major, OperandTile, Packing, SmemDescriptor};
use super::format::Format;
use super::fragment::{self, Kind, Lanes, accumulator};
use super::mma::Arithmetic;
use super::mma::float::{FloatMode, FloatProduct};
use super::mma::integer::IntegerProduct;
use super::mma::path::Path;
use super::sparsity::{self, Chunk};
use thiserror::Error;

/// Where A comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperandA {
    /// Shared memory: a descriptor of all 64 rows.
    Smem(u64),
    /// Registers: the warp's fragment of 16 rows.
    Registers(Vec<Lanes>),
}

/// One warp's part of a `wgmma.mma_async`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// Element and accumulator types.
    pub kind: Kind,
    /// Columns of B and D.
    pub n: usize,
    /// A.
    pub a: OperandA,
    /// Descriptor of B.
    pub b: u64,
    /// A is MN-major.
    pub a_major: Major,
    /// B is MN-major.
    pub b_major: Major,
    /// `imm-scale-a` times `imm-scale-b` is -1.
    pub negate: bool,
    /// Number of the warp in its warpgroup.
    pub warp: u32,
    /// Metadata of a sparse A in the lanes of the warp, and the selector.
    pub sparse: Option<(Lanes, u32)>,
}

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WgmmaError<E> {
    /// A matrix descriptor is illegal.
    #[error("{operand} of wgmma: {source}")]
    Descriptor {
        /// A or B.
        operand: char,
        /// Why.
        source: DescriptorError,
    },
    /// Metadata of a sparse A without meaning.
    #[error("metadata of wgmma: {0}")]
    Metadata(String),
    /// Shared memory cannot be read.
    #[error("{operand} of wgmma: {error}")]
    Memory {
        /// A or B.
        operand: char,
        /// The reader's error.
        error: E,
    },
}

fn gather<E>(
    operand: char,
    bits: u64,
    major: Major,
    packing: Packing,
    (first, rows, step): (u32, u32, u32),
    read: &mut SmemReader<'_, E>,
) -> Result<OperandTile, WgmmaError<E>> {
    let on = |source| WgmmaError::Descriptor { operand, source };
    let descriptor = SmemDescriptor::decode_sm90(bits).map_err(on)?;
    let from = descriptor.from_row(major, packing, first);
    from.gather_from(major, packing, rows, step, read).map_err(|e| match e {
        GatherError::Descriptor(source) => WgmmaError::Descriptor { operand, source },
        GatherError::Memory(error) => WgmmaError::Memory { operand, error },
    })
}

/// Adds A times B to the accumulators `d` (zeros where `scale-d` is false), one register per entry. Returns a message
/// if sparsity metadata has an index without meaning in the ISA.
///
/// # Errors
/// [`WgmmaError`]; `d` is unchanged then.
pub fn execute<E>(
    instruction: &Instruction,
    arithmetic: Arithmetic,
    d: &mut [Lanes],
    read: &mut SmemReader<'_, E>,
) -> Result<Option<String>, WgmmaError<E>> {
    let &Instruction { kind, n, .. } = instruction;
    let packing = match kind.bits() {
        32 => Packing::Bits32,
        16 => Packing::Bits16,
        _ => Packing::Bits8,
    };
    let a = match &instruction.a {
        OperandA::Smem(bits) => {
            let rows = (16 * instruction.warp, 16, 0);
            gather('A', *bits, instruction.a_major, packing, rows, read)?
        }
        OperandA::Registers(registers) => {
            let k = packing.k() as usize;
            fragment::tile(&fragment::unpack(registers, 16, k, kind), k, 0, k, kind.bits())
        }
    };
    let b = gather('B', instruction.b, instruction.b_major, packing, (0, n as u32, 0), read)?;
    let path = Path::best();
    let mut note = None;
    let sparse = match &instruction.sparse {
        None => None,
        Some((lanes, selector)) => {
            let upper = gather('B', instruction.b, instruction.b_major, packing, (0, n as u32, 1), read)?;
            let k = 2 * packing.k() as usize;
            let (rows, meaningless) =
                sparsity::rows(kind.bits(), k, lanes, *selector).map_err(WgmmaError::Metadata)?;
            note = meaningless;
            Some((upper, rows, k))
        }
    };
    let product = Product::new(instruction, arithmetic, path, &a, &b);
    let half = matches!(kind, Kind::Float { half: true, .. });
    for row in 0..16 {
        let mut words = vec![0u32; n];
        // Lanes of this row, and their accumulators in it.
        let places = (0..n).map(|column| {
            let lane = 4 * (row % 8) + column % 8 / 2;
            let i = 4 * (column / 8) + 2 * (row / 8) + column % 2;
            debug_assert_eq!(accumulator(lane, i), (row, column));
            (lane, i)
        });
        for (word, (lane, i)) in words.iter_mut().zip(places.clone()) {
            *word = match half {
                true => (d[i / 2][lane] >> (16 * (i % 2))) as u32 & 0xffff,
                false => d[i][lane] as u32,
            };
        }
        match &sparse {
            None => product.accumulate_row(row, &mut words),
            Some((upper, metadata, k)) => {
                let b = held(kind, metadata[row], *k, &b, upper);
                let a = a.slice(row..row + 1);
                Product::new(instruction, arithmetic, path, &a, &b).accumulate_row(0, &mut words);
            }
        }
        for (word, (lane, i)) in words.iter().zip(places) {
            match half {
                true => {
                    let shift = 16 * (i % 2);
                    d[i / 2][lane] = d[i / 2][lane] & !(0xffff << shift) | u64::from(*word & 0xffff) << shift;
                }
                false => d[i][lane] = u64::from(*word),
            }
        }
    }
    Ok(note)
}

/// The elements of B that meet those which a row of a sparse A holds.
fn held(kind: Kind, metadata: u64, k: usize, low: &OperandTile, high: &OperandTile) -> OperandTile {
    let width = (kind.bits() / 8) as usize;
    let places = Chunk::of(kind.bits()).map_or(Vec::new(), |c| c.held(metadata, k));
    let rows = low.rows.iter().zip(&high.rows).map(|(low, high)| {
        let mut out = [0u8; 32];
        for (to, at) in out.chunks_exact_mut(width).zip(places.iter().map(|p| p * width)) {
            let from = if at < 32 { &low[at..] } else { &high[at - 32..] };
            to.copy_from_slice(&from[..width]);
        }
        out
    });
    OperandTile { packing: low.packing, rows: rows.collect() }
}

/// Decoded operands.
enum Product {
    Float(FloatProduct),
    Integer(IntegerProduct),
    /// Rows of A and columns of B, to be combined by AND.
    Bits(Vec<[u8; 32]>, Vec<[u8; 32]>),
}

impl Product {
    fn new(
        instruction: &Instruction,
        arithmetic: Arithmetic,
        path: Path,
        a: &OperandTile,
        b: &OperandTile,
    ) -> Self {
        match instruction.kind {
            Kind::Float { a: fa, b: fb, half } => {
                let narrow = matches!(fa, Format::E4m3 | Format::E5m2);
                let plain = arithmetic == Arithmetic::F32;
                let mode = FloatMode { plain, half, negate: instruction.negate, narrow };
                Self::Float(FloatProduct::new(path, mode, (fa, a), (fb, b), None))
            }
            Kind::Integer { a_signed, b_signed, saturate, .. } => {
                Self::Integer(IntegerProduct::new(path, saturate, (a_signed, a), (b_signed, b)))
            }
            Kind::Bits { .. } | Kind::Double | Kind::Packed4 => Self::Bits(a.rows.clone(), b.rows.clone()),
        }
    }

    fn accumulate_row(&self, row: usize, words: &mut [u32]) {
        match self {
            Self::Float(p) => p.accumulate_row(row, words),
            Self::Integer(p) => p.accumulate_row(row, words),
            Self::Bits(a, b) => {
                for (word, b) in words.iter_mut().zip(b) {
                    let ones: u32 = a[row].iter().zip(b).map(|(a, b)| (a & b).count_ones()).sum();
                    *word = word.wrapping_add(ones);
                }
            }
        }
    }
}
