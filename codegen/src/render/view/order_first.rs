//! The launch that brings activations into the order of K in which weights are decoded, before the one that multiplies
//! them (sm_90a): see [`super::decode`].
//!
//! A CTA moves 64 elements of 64 rows. In a row these are a matrix of 8 x 8 that is transposed: of each block of 16 elements the
//! first four of both halves are a row of the matrix and the others the next, so that transposed it has pairs of elements four apart.
//! Lane `l` of a warp reads the word that `movmatrix` expects of it, and stores word `l`: 128 bytes of a row side by side. TMA
//! brings the rows, for of a launch with fewer of them it fills in zeros.

use crate::kernel::{Launch, Parameter};
use crate::plan::{ElementType, ORDER_BLOCK, Operand, Plan, Swizzle, TensorMapRecipe};

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
    /// Bytes of a row of the tile, of a warp's rows, and of the tile.
    pub span: u32,
    pub warp_bytes: u32,
    pub tile_bytes: u32,
    /// Rows that there are, and whether the last CTAs have others.
    pub rows_total: u64,
    pub ragged: bool,
    /// CTAs along K.
    pub k_tiles: u32,
    /// Bytes of a row of the workspace.
    pub row_bytes: u64,
    /// A warp's rows.
    pub moved: Vec<MovedRow>,
}

/// A row on its way to the workspace: bytes from the warp's first one, in the tile and there.
pub(in crate::render) struct MovedRow {
    pub row: u32,
    pub from: u32,
    pub to: u64,
}

impl OrderFirst {
    pub fn new(p: &Plan) -> Self {
        let shape = p.problem.shape;
        let k_tiles = shape.k.div_ceil(ELEMENTS);
        let row_bytes = u64::from(SPAN) * u64::from(k_tiles);
        let moved = |row: u32| MovedRow { row, from: row * SPAN, to: u64::from(row) * row_bytes };
        OrderFirst {
            threads: ROWS / WARP_ROWS * 32,
            rows: ROWS,
            warp_rows: WARP_ROWS,
            span: SPAN,
            warp_bytes: WARP_ROWS * SPAN,
            tile_bytes: ROWS * SPAN,
            rows_total: shape.rows(),
            ragged: !shape.rows().is_multiple_of(ROWS.into()),
            k_tiles,
            row_bytes,
            moved: (0..WARP_ROWS).map(moved).collect(),
        }
    }

    /// The activations as they are, and where they are left in order.
    pub fn parameters(&self, p: &Plan) -> Vec<Parameter> {
        let map = TensorMapRecipe {
            operand: Operand::A,
            workspace: None,
            element: ElementType::U8,
            dims: [2 * u64::from(p.problem.shape.k), self.rows_total],
            row_stride: 2 * u64::from(p.problem.shape.k),
            matrices: None,
            box_dims: [SPAN, ROWS],
            swizzle: Swizzle::None,
            l2_promotion: 256,
        };
        let ordered = p.workspace.iter().find(|buffer| buffer.name == "ordered").copied();
        std::iter::once(Parameter::TensorMap(map)).chain(ordered.map(Parameter::Workspace)).collect()
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
