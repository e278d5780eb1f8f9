//! The launch that brings activations into the order of K in which weights are decoded, before the one that multiplies
//! them (sm_90a): see [`super::decode`].
//!
//! A CTA moves 64 elements of 64 rows. In a row these are a matrix of 8 x 8 that is transposed: of each block of 16 elements the
//! first four of both halves are a row of the matrix and the others the next, so that transposed it has pairs of elements four apart.
//! Lane `l` of a warp loads the word that `movmatrix` expects of it, and stores word `l`. No shared memory and few
//! registers: what multiplies takes all of an SM's.

use crate::kernel::{Launch, Parameter};
use crate::plan::{ORDER_BLOCK, Operand, Plan};

/// Rows and elements of K of a CTA; rows of one of its warps.
const ROWS: u32 = ORDER_BLOCK;
const ELEMENTS: u32 = ORDER_BLOCK;
const WARP_ROWS: u32 = 16;
/// Bytes of so many elements of a row.
const SPAN: u32 = 128;

/// What the template needs.
pub(in crate::render) struct OrderFirst {
    pub threads: u32,
    pub rows: u32,
    pub warp_rows: u32,
    /// Bytes of a CTA's part of a row.
    pub span: u32,
    /// Rows that there are, and whether the last CTAs have others.
    pub rows_total: u64,
    pub ragged_rows: bool,
    /// CTAs along K, and whether the last ones reach beyond it.
    pub k_tiles: u32,
    pub ragged_k: bool,
    /// Bytes of a row of the activations, and of the workspace.
    pub a_row_bytes: u64,
    pub row_bytes: u64,
    /// A warp's rows.
    pub moved: Vec<MovedRow>,
}

/// A row on its way to the workspace: bytes from the warp's first one, before and after.
pub(in crate::render) struct MovedRow {
    pub row: u32,
    pub from: u64,
    pub to: u64,
}

impl OrderFirst {
    pub fn new(p: &Plan) -> Self {
        let shape = p.problem.shape;
        let k_tiles = shape.k.div_ceil(ELEMENTS);
        let row_bytes = u64::from(SPAN) * u64::from(k_tiles);
        let a_row_bytes = 2 * u64::from(shape.k);
        let moved =
            |row: u32| MovedRow { row, from: u64::from(row) * a_row_bytes, to: u64::from(row) * row_bytes };
        OrderFirst {
            threads: ROWS / WARP_ROWS * 32,
            rows: ROWS,
            warp_rows: WARP_ROWS,
            span: SPAN,
            rows_total: shape.rows(),
            ragged_rows: !shape.rows().is_multiple_of(ROWS.into()),
            k_tiles,
            ragged_k: !shape.k.is_multiple_of(ELEMENTS),
            a_row_bytes,
            row_bytes,
            moved: (0..WARP_ROWS).map(moved).collect(),
        }
    }

    /// The activations as they are, and where they are left in order.
    pub fn parameters(&self, p: &Plan) -> Vec<Parameter> {
        let ordered = p.workspace.iter().find(|buffer| buffer.name == "ordered").copied();
        std::iter::once(Parameter::Pointer(Operand::A)).chain(ordered.map(Parameter::Workspace)).collect()
    }

    pub fn launch(&self, entry: String, parameters: Vec<Parameter>) -> Launch {
        let ctas = self.rows_total.div_ceil(ROWS.into()) * u64::from(self.k_tiles);
        Launch {
            entry,
            // `validate` keeps it within 31 bits.
            grid: [ctas as u32, 1, 1],
            cluster: [1, 1, 1],
            block: [self.threads, 1, 1],
            dynamic_smem: 0,
            // It waits itself, and what it then lets in finds all that the kernel before has written.
            programmatic: true,
            parameters,
        }
    }
}
