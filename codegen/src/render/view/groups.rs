//! Batches and groups of rows: which matrices an item of work multiplies, and which rows of A and C it has.

use crate::config::{Raster, Schedule};
use crate::plan::Plan;
use crate::problem::Groups;

/// What the templates of several dual GEMMs in one launch print.
pub(crate) struct GroupsView {
    /// Whether there are several matrices of weights, which `%group` counts.
    pub several: bool,
    /// Whether it is a batch.
    pub batch: bool,
    /// Whether the rows of A are shared out between groups by offsets on the device.
    pub by_rows: bool,
    /// Whether the number of items is computed from `rows` at launch. Otherwise each cluster compares its own first row.
    pub counts_items: bool,
    /// Matrices of a batch, or groups.
    pub count: u32,
    /// Items of one matrix of a batch.
    pub matrix_items: u64,
    /// Rows of A and C in one matrix of a batch; of groups, of all of them.
    pub rows: u32,
    /// Columns of C.
    pub columns: u32,
    /// Rows of an item of work.
    pub item_rows: u32,
    /// What rounds rows up to whole items.
    pub round_up: u32,
    /// Items along N.
    pub n_items: u32,
    /// Where the table of groups is in SMEM, where in it the next group's entry is, and the number of all items.
    pub table: u32,
    /// Where its rows are in a group's entry.
    pub rows_at: u32,
    pub next: u32,
    pub total: u32,
    /// Whether one warp's lanes do not hold all groups at once.
    pub rounds: bool,
    /// Whether a group's first block of scale factors is needed, and whether items are as long as blocks.
    pub blocks: bool,
    pub items_are_blocks: bool,
    /// The number of all items: a number or a register.
    pub items: String,
    /// The registers of the item among those of its matrix or group, and their number along M.
    pub tile: &'static str,
    pub m_items: String,
    /// Where a producer without items goes.
    pub items_done: &'static str,
    /// Whether the MMA warp needs an item's place.
    pub mma_locates: bool,
    /// Whether the number along M is needed.
    pub counts_m: bool,
    /// The register of A's first row in the producer.
    pub a_row: &'static str,
    /// Whether blocks of scale factors of the MMA's rows, and of its columns, are those of a group of A.
    pub row_blocks: bool,
    pub column_blocks: bool,
    /// Whether bulk copies find the blocks of the MMA's rows, and of its columns, in one of several matrices.
    pub row_matrices: bool,
    pub column_matrices: bool,
    /// Blocks of scale factors of C in one matrix of a batch.
    pub output_blocks: u32,
}

impl GroupsView {
    pub(super) fn new(p: &Plan) -> Self {
        let shape = p.problem.shape;
        let (several, by_rows) = (shape.groups != Groups::One, shape.groups.by_rows());
        let item_rows = p.item_rows();
        let count = shape.groups.count();
        let scaled = p.kind.scales_per_mma() > 0;
        let bulk = scaled && several && p.scales.box_blocks.is_none();
        let total = p.smem.groups + 16 * count;
        // With one tile per cluster, numbered down columns, a cluster compares its own first row. That takes no division by a register.
        let one_tile = p.work.schedule == Schedule::OneTile && p.work.raster == Raster::AlongM;
        let counts_items = p.work.counts_rows && !one_tile;
        GroupsView {
            several,
            batch: several && !by_rows,
            by_rows,
            counts_items,
            count,
            matrix_items: u64::from(p.work.m_items) * u64::from(p.work.n_items),
            rows: shape.m,
            columns: shape.n,
            item_rows,
            round_up: item_rows.saturating_sub(1),
            n_items: p.work.n_items,
            table: p.smem.groups,
            rows_at: p.smem.groups + 8,
            next: p.smem.groups + 16,
            total,
            rounds: count + 1 > 32,
            blocks: by_rows && (scaled || p.problem.formats.c.scales().is_some()),
            items_are_blocks: item_rows == 128,
            items: if by_rows || counts_items { "%items".to_owned() } else { p.work.tiles.to_string() },
            tile: if several { "%group_tile" } else { "%tile" },
            m_items: if by_rows || counts_items { "%m_items".to_owned() } else { p.work.m_items.to_string() },
            items_done: match p.pdl || p.multicast.ctas() > 1 {
                true => "PRODUCER_ITEMS_DONE",
                false => "PRODUCER_DONE",
            },
            mma_locates: !by_rows || p.scales.columns_half_blocks,
            counts_m: (by_rows || counts_items) && p.work.raster != Raster::AlongN,
            a_row: if p.swap_ab { "%row_c" } else { "%row_r" },
            row_blocks: by_rows && scaled && !p.swap_ab,
            column_blocks: by_rows && scaled && p.swap_ab,
            row_matrices: bulk && (p.swap_ab || !by_rows),
            column_matrices: bulk && !(p.swap_ab && by_rows),
            output_blocks: shape.m.div_ceil(128),
        }
    }

    /// Coordinates of a tensor map behind the row, where it has several matrices.
    pub(super) fn rank(matrices: Option<u32>) -> u32 {
        if matrices.is_some() { 3 } else { 2 }
    }
}
