//! The launch that brings activations into the order of K in which weights are decoded, before the one that multiplies
//! them (sm_90a): see [`super::decode`].
//!
//! A CTA moves 64 elements of 64 rows, or 128 elements of 32 rows where weights are decoded in blocks of 128. A row's 64 elements that
//! MMAs take one after the other are a matrix of 8 x 8 that is transposed. The first four elements of both halves of a block of 16 are
//! a row of the matrix, and the others the next row, so that the transposed matrix has pairs of elements four apart. For repacked
//! weights the first eight are a row and the others the next, and pairs are eight apart. 128 elements are two matrices: the first has
//! the even blocks and the second the odd ones. Lane `l` of a warp reads the word that `movmatrix` expects of it, and stores word `l`:
//! 128 bytes of a row side by side. TMA brings the rows, and zeros for those that a launch does not have.

use super::decode::{WIDE, is_repacked, is_wide};
use crate::kernel::{Launch, Parameter, WorkspaceKind};
use crate::plan::{ElementType, Operand, Plan, Swizzle, TensorMapRecipe};
use crate::target::sm_90a::ORDER_BLOCK;

/// Warps of a CTA.
const WARPS: u32 = 4;
/// Bytes of a matrix.
const MATRIX: u32 = 2 * ORDER_BLOCK;

/// What the template needs.
pub(crate) struct OrderFirst {
    pub threads: u32,
    /// Rows and elements of K of a CTA, and rows of one of its warps.
    pub rows: u32,
    pub elements: u32,
    pub warp_rows: u32,
    /// Bytes of a row of the tile, from a block of one of its matrices to the next, of a warp's rows, and of the tile.
    pub span: u32,
    pub block_step: u32,
    /// Whether weights are repacked: pairs are eight elements apart, else four.
    pub repacked: bool,
    /// What bits 2 and 1 of a lane's number are multiplied with: bytes to the second row of a block, and to the second half of a row.
    pub row_factor: u32,
    pub half_factor: u32,
    pub warp_bytes: u32,
    pub tile_bytes: u32,
    /// Rows that there are, and whether the last CTAs have others.
    pub rows_total: u64,
    pub ragged: bool,
    /// Whether a launch says how many rows count, rows of an item of the launch that multiplies, and one less.
    pub counts_rows: bool,
    pub item_rows: u32,
    pub round_up: u32,
    /// CTAs along K.
    pub k_tiles: u32,
    /// Bytes of a row of the workspace.
    pub row_bytes: u64,
    /// What a warp moves.
    pub moved: Vec<MovedMatrix>,
}

/// A row's matrix on its way to the workspace: its row among the warp's, and bytes from the first one's start, in the tile and there.
pub(crate) struct MovedMatrix {
    pub row: u32,
    pub from: u32,
    pub to: u64,
}

impl OrderFirst {
    pub fn new(p: &Plan) -> Self {
        let shape = p.problem.shape;
        let elements = if is_wide(p) { WIDE } else { ORDER_BLOCK };
        let matrices = elements / ORDER_BLOCK;
        let rows = ORDER_BLOCK / matrices;
        let warp_rows = rows / WARPS;
        let span = 2 * elements;
        let k_tiles = shape.k.div_ceil(elements);
        let row_bytes = u64::from(span) * u64::from(k_tiles);
        let moved = |i: u32| {
            let (row, matrix) = (i / matrices, i % matrices);
            MovedMatrix {
                row,
                // A block of 16 elements.
                from: row * span + 32 * matrix,
                to: u64::from(row) * row_bytes + u64::from(MATRIX * matrix),
            }
        };
        OrderFirst {
            threads: 32 * WARPS,
            rows,
            elements,
            warp_rows,
            span,
            block_step: 32 * matrices,
            repacked: is_repacked(p),
            row_factor: if is_repacked(p) { 4 } else { 2 },
            half_factor: if is_repacked(p) { 4 } else { 8 },
            warp_bytes: warp_rows * span,
            tile_bytes: rows * span,
            rows_total: shape.rows(),
            ragged: !shape.rows().is_multiple_of(rows.into()),
            counts_rows: p.work.counts_rows,
            item_rows: p.item_rows(),
            round_up: p.item_rows().saturating_sub(1),
            k_tiles,
            row_bytes,
            moved: (0..matrices * warp_rows).map(moved).collect(),
        }
    }

    /// The map of the activations, the workspace that receives them in order, and the number of rows that count.
    pub fn parameters(&self, p: &Plan) -> Vec<Parameter> {
        let map = TensorMapRecipe {
            last_tile: false,
            operand: Operand::A,
            workspace: None,
            element: ElementType::U8,
            dims: [2 * u64::from(p.problem.shape.k), self.rows_total],
            row_stride: 2 * u64::from(p.problem.shape.k),
            matrices: None,
            box_dims: [self.span, self.rows],
            swizzle: Swizzle::None,
            l2_promotion: 256,
        };
        let permuted = p.buffer(WorkspaceKind::Permuted);
        let rows = self.counts_rows.then_some(Parameter::Rows);
        let parameters = std::iter::once(Parameter::TensorMap(map)).chain(permuted.map(Parameter::Workspace));
        parameters.chain(rows).collect()
    }

    pub fn launch(&self, entry: String, parameters: Vec<Parameter>) -> Launch {
        let ctas = self.rows_total.div_ceil(self.rows.into()) * u64::from(self.k_tiles);
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
