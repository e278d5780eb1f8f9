//! f32 scale factors of blocks of K: sums of a block are multiplied by that of A's row and that of B's block.

use crate::plan::{Operand, Plan};
use crate::target::sm_90a::Wgmma;
use crate::target::sm_90a::promotion::{BLOCK, shared_columns};

/// Scale factors that a thread holds of a K tile, which is one block, and what it makes of them.
pub(crate) struct SumScalesView {
    /// Rows of A whose sums the thread has.
    pub a: Vec<ScaledRow>,
    /// Sets of registers that scale factors of K tiles take by turns.
    pub sets: u32,
    /// Lines of 128 bytes that a row's scale factors take.
    pub row_lines: u32,
    /// Lines of all rows of a tile.
    pub lines: u32,
    /// Rows whose lines the threads of a tile prefetch at once.
    pub rows_at_once: u32,
    /// The last row of A in all matrices.
    pub last_row_of_all: u64,
    /// Parts of the tile's columns, or of the warpgroup's rows, that have a scale factor of B each.
    pub b_parts: u32,
    /// Columns of such a part.
    pub part_columns: u32,
    /// Bytes from one row, or block of rows, to the next, in the memory of the scale factors.
    pub pitch: u32,
    /// The last block of rows of B; `None` if no tile can lie beyond it.
    pub last_b_block: Option<u32>,
    /// Blocks of rows of each of several matrices.
    pub matrix_b_blocks: u32,
    /// Rows of A in a matrix of several.
    pub matrix_rows: u32,
    /// Whether a tile can have rows beyond the last of A's matrix or group.
    pub clamped: bool,
    pub products: Vec<ScaledProduct>,
}

/// A row of A, from the first one of the thread.
pub(crate) struct ScaledRow {
    pub index: u32,
    pub offset: u32,
}

/// The scale factors of a product's weights.
pub(crate) struct ScaledProduct {
    pub product: u32,
    /// The parameter that has their address.
    pub parameter: &'static str,
    /// The factors of the product's sums, with the rows of A and the blocks of B that they are made of.
    pub factors: Vec<Factor>,
}

/// The product of two scale factors.
pub(crate) struct Factor {
    pub register: String,
    pub row: u32,
    pub block: u32,
}

impl SumScalesView {
    /// `several`: whether the loop takes several K tiles at once, and so knows each one's set.
    pub fn new(p: &Plan, warpgroups: &Wgmma, products: &[u32], several: bool) -> Self {
        let shape = p.problem.shape;
        let offsets: Vec<u32> = match p.swap_ab {
            // Pairs of columns, 8 apart, which are rows of A.
            true => (0..p.mma_columns / 8).flat_map(|i| [8 * i, 8 * i + 1]).collect(),
            // Two rows, 8 apart, of each 64.
            false => (0..warpgroups.blocks).flat_map(|block| [64 * block, 64 * block + 8]).collect(),
        };
        let part_columns = shared_columns(p.tile.n);
        let [_, b_parts] = warpgroups.scaled(p.mma_columns, p.swap_ab, p.tile.n);
        let rows = offsets.len() as u32;
        let factors = |product| {
            let of_row = move |row| {
                (0..b_parts).map(move |block| Factor { register: factor(product, row, block), row, block })
            };
            (0..rows).flat_map(of_row).collect()
        };
        let b = shape.n.div_ceil(BLOCK);
        // Neighbours of a cluster, the second block of a tile, and rows of a warpgroup can be beyond the last.
        let beyond = p.multicast.ctas() > 1 || !shape.n.is_multiple_of(p.tile.n);
        let row_lines = (4 * p.problem.scale_columns()).div_ceil(128);
        let threads = if warpgroups.ping_pong { 128 } else { 128 * warpgroups.count };
        SumScalesView {
            // With few columns a K tile takes less time than a load. With many, a branch that chooses the set costs more than the earlier
            // load saves (seen on an H100: 0.96 of the time with 16 columns, 1.02 with a tile of 128 x 128).
            sets: if p.swap_ab || several { 2 } else { 1 },
            row_lines,
            lines: row_lines.saturating_mul(p.tile.m),
            rows_at_once: (threads / row_lines.max(1)).max(1),
            last_row_of_all: shape.rows().saturating_sub(1),
            a: (0..).zip(offsets).map(|(index, offset)| ScaledRow { index, offset }).collect(),
            b_parts,
            part_columns,
            pitch: 4 * p.problem.scale_columns(),
            last_b_block: beyond.then_some(b.saturating_sub(1)),
            matrix_b_blocks: b,
            matrix_rows: shape.m,
            clamped: shape.groups.by_rows() || !shape.m.is_multiple_of(p.tile.m) || p.multicast.ctas() > 1,
            products: products
                .iter()
                .map(|&product| ScaledProduct {
                    product,
                    parameter: [Operand::Sfb1, Operand::Sfb2][usize::from(product == 2)].name(),
                    factors: factors(product),
                })
                .collect(),
        }
    }
}

impl SumScalesView {
    /// The first column of a part of the tile.
    pub fn part_begin(&self, part: &u32) -> u32 {
        part * self.part_columns
    }

    /// From a thread's line to its next one, among those of a tile.
    pub fn stride(&self) -> u32 {
        self.rows_at_once * self.row_lines
    }

    /// The last row of A in a matrix.
    pub fn last_row(&self) -> u32 {
        self.matrix_rows.saturating_sub(1)
    }
}

/// The register of what a sum of a product is multiplied by: of the thread's row of A and the tile's block of B.
fn factor(product: u32, row: u32, block: u32) -> String {
    format!("%factor{product}_{row}_{block}")
}

/// The factor of an accumulator, among those of the product's registers.
pub(super) fn factor_of(p: &Plan, product: u32, index: u32) -> String {
    let of_block = p.mma_columns / 2;
    let (block, index) = (index / of_block, index % of_block);
    match p.swap_ab {
        true => factor(product, 2 * (index / 4) + index % 2, 0),
        false => factor(product, 2 * block + index % 4 / 2, 8 * (index / 4) / shared_columns(p.tile.n)),
    }
}
