//! What groups of given sizes make of a plan: items of work, and bytes that they move.
//!
//! How many rows each group has only the device knows; figures for the host to show are those of groups that differ as
//! little as they can. A batch needs none of this: its matrices are alike.

use super::traffic::Traffic;
use crate::config::{Multicast, Strategy};
use crate::plan::{Operand, Plan};
use crate::problem::Shape;

/// Bytes of an offset, of which a CTA reads two a group.
const OFFSET_BYTES: u64 = 4;

/// A group's place in the work.
struct Group {
    /// Rows before it, and its rows.
    begin: u64,
    rows: u64,
    /// Blocks of scale factors before it.
    block: u64,
    /// Items along M.
    m_items: u64,
}

impl Plan {
    /// Tiles along M that an item has.
    fn item_tiles(&self) -> u64 {
        match self.multicast {
            Multicast::B(ctas) => ctas.into(),
            Multicast::None | Multicast::A(_) => 1,
        }
    }

    fn groups(&self, sizes: &[u32]) -> Vec<Group> {
        let item_rows = u64::from(self.tile.m) * self.item_tiles();
        let place = |(begin, block): &mut (u64, u64), size: &u32| {
            let rows = u64::from(*size);
            let group = Group { begin: *begin, rows, block: *block, m_items: rows.div_ceil(item_rows) };
            *begin += rows;
            *block += rows.div_ceil(128);
            Some(group)
        };
        sizes.iter().scan((0, 0), place).collect()
    }

    /// Items of work that groups of these sizes make; without groups, the plan's.
    pub fn items_of(&self, sizes: &[u32]) -> u64 {
        if !self.problem.shape.groups.by_rows() {
            return self.work.tiles.into();
        }
        self.groups(sizes).iter().map(|group| group.m_items * u64::from(self.work.n_items)).sum()
    }

    /// What each launch moves for groups of these sizes, in order: as [`Plan::traffic`].
    pub fn traffic_of(&self, sizes: &[u32]) -> Vec<Traffic> {
        if !self.problem.shape.groups.by_rows() {
            return self.traffic();
        }
        let groups = self.groups(sizes);
        let rows: u64 = groups.iter().map(|group| group.rows).sum();
        let padded: u64 = groups.iter().map(|group| group.rows.next_multiple_of(128)).sum();
        let Shape { m, n, .. } = self.problem.shape;
        let per_row = |operand: Operand, of: u64| operand.bytes(&self.problem) / of.max(1);
        let blocks = self.problem.shape.row_blocks(128);
        let c = per_row(Operand::C, m.into()) * rows + per_row(Operand::Sfc, 128 * blocks) * padded;
        let kept_preactivations =
            u64::from(self.problem.operation.products()) * per_row(Operand::D1, m.into()) * rows;
        let product = 4 * rows * u64::from(n.next_multiple_of(4));
        let loops = |passes, b_tiles, products| self.group_loops(&groups, passes, b_tiles, products);
        match self.strategy {
            _ if self.orders_first() => {
                vec![self.order_traffic(), Traffic { c, kept_preactivations, ..loops(1, 2, 2) }]
            }
            Strategy::Interleaved => vec![Traffic { c, kept_preactivations, ..loops(1, 2, 2) }],
            Strategy::Sequential => vec![Traffic { c, kept_preactivations, ..loops(2, 1, 2) }],
            Strategy::Single => vec![Traffic { c, kept_preactivations, ..loops(1, 1, 1) }],
            // Two launches of tiles that are alike; the gate's own kernel is refused.
            Strategy::SecondFused | Strategy::TwoPass => {
                let gemm = loops(1, 1, 1);
                vec![
                    Traffic { products_written: product, ..gemm },
                    Traffic { products_read: product, c, kept_preactivations, ..gemm },
                ]
            }
        }
    }

    /// `passes` K loops over all groups' tiles.
    fn group_loops(&self, groups: &[Group], passes: u64, b_tiles: u64, products: u64) -> Traffic {
        let shape = self.problem.shape;
        let capacity = u64::from(shape.m);
        let ctas = u64::from(self.cta_group.ctas());
        let (item_tiles, n_items) = (self.item_tiles(), u64::from(self.work.n_items));
        let n_tiles = match self.multicast {
            Multicast::A(wide) => n_items * u64::from(wide),
            Multicast::None | Multicast::B(_) => n_items,
        };
        let a_row = self.loaded_a_bytes() / capacity.max(1);
        let b_matrix = Operand::B1.bytes(&self.problem) / u64::from(shape.groups.count());
        let boxed = self.scales.box_blocks.is_some();
        let (a_total, b_total) = match self.swap_ab {
            false => (self.scales.rows_total, self.scales.columns_total),
            true => (self.scales.columns_total, self.scales.rows_total),
        };
        let (a_total, b_total) = (u64::from(a_total), u64::from(b_total));
        let wide_blocks = u64::from(self.column_row_blocks());
        // How many blocks from `first` on are loaded: bulk copies bring another in the place of one that is not there.
        let there = |first: u64, count: u64, total: u64| match boxed {
            true => count.min(total.saturating_sub(first)),
            false => count,
        };
        let neighbours = u64::from(self.multicast.ctas());
        let sharing = self.scale_sharing();
        let mut moved = Traffic::default();
        let mut blocks = 0;
        for group in groups {
            let m_tiles = group.m_items * item_tiles;
            // Rows behind a group's are loaded with it, as long as A has some.
            let rows = (m_tiles * u64::from(self.tile.m)).min(capacity - group.begin);
            moved.a += passes * n_items * rows * a_row;
            moved.b += passes * b_tiles * group.m_items * b_matrix;
            for tile in 0..m_tiles {
                // Neighbours along M that share a load have it once.
                let first_of_item = tile.is_multiple_of(neighbours);
                blocks += match self.swap_ab {
                    false => {
                        let columns = if sharing.rows { n_tiles / neighbours } else { n_tiles };
                        let of_a = there(group.block + tile * ctas, ctas, a_total) * columns;
                        let of_b: u64 = (0..n_tiles)
                            .map(|n| there(n * u64::from(self.mma_columns) / 128, wide_blocks, b_total))
                            .sum();
                        let loads = if sharing.columns { u64::from(first_of_item) } else { sharing.copies };
                        of_a + b_tiles * loads * of_b
                    }
                    true => {
                        let first = group.block + tile * u64::from(self.mma_columns) / 128;
                        let loads =
                            if sharing.columns { n_tiles / neighbours } else { n_tiles * sharing.copies };
                        let of_a = there(first, wide_blocks, a_total) * loads;
                        let loads = u64::from(!sharing.rows || first_of_item);
                        let of_tile = u64::from(self.row_row_blocks());
                        of_a + b_tiles * loads * there(0, n_tiles * ctas * of_tile, b_total)
                    }
                };
            }
        }
        let tiles: u64 = groups.iter().map(|group| group.m_items * item_tiles * n_tiles).sum();
        moved.scales = passes * (blocks * self.scales.row_block_bytes + self.factor_bytes(tiles, b_tiles));
        moved.offsets = 2 * OFFSET_BYTES * u64::from(shape.groups.count()) * self.ctas();
        let items: u64 = groups.iter().map(|group| group.m_items * n_items).sum();
        moved.partials = self.partial_bytes(items, products);
        moved
    }
}
