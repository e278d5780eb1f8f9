//! The map of tensor memory.

use crate::config::Accumulators;
use crate::error::Sum;
use crate::plan::Region;

/// Tensor memory, in columns from the allocation's first.
///
/// `product 1 | product 2` once for every buffer, then `SFA | SFB1 | SFB2`; a K block (one MMA) of scale
/// factors takes four columns for every 128 rows, and every K block of a stage has its own.
///
/// Overlapped buffers share columns: those of product 1 lie together and those of product 2 behind them, and of
/// each the last [`shared`](TmemMap::shared) columns of buffer 1 are the first ones of buffer 2. Columns of C that
/// are shared are so in both products, so that the epilogue frees them with the fewest of its chunks. Where one
/// MMA writes both products, buffers are whole pairs, and buffer 2 starts in the last columns of product 2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TmemMap {
    /// Accumulator of `A @ B2` in a buffer; that of `A @ B1` is at 0.
    pub second: u32,
    /// Columns from one buffer of accumulators to the next.
    pub buffer_step: u32,
    /// Columns of C, the tile's last in the first buffer and its first in the second one, that one buffer's MMAs
    /// write where the other's sums were; 0 where buffers are whole.
    pub shared: u32,
    /// Scale factors of A.
    pub sfa: u32,
    /// Scale factors of B1.
    pub sfb1: u32,
    /// Scale factors of B2.
    pub sfb2: u32,
    /// Columns between two K blocks of SFA.
    pub sfa_step: u32,
    /// Columns between two K blocks of SFB1 (and of SFB2).
    pub sfb_step: u32,
    /// Everything, with names, in order.
    pub regions: Vec<Region>,
    /// Columns that are used.
    pub used: u32,
    /// Columns that are allocated: a power of two.
    pub columns: u32,
}

impl TmemMap {
    /// Before anything is in it.
    pub(super) const EMPTY: TmemMap = TmemMap {
        second: 0,
        buffer_step: 0,
        shared: 0,
        sfa: 0,
        sfb1: 0,
        sfb2: 0,
        sfa_step: 0,
        sfb_step: 0,
        regions: Vec::new(),
        used: 0,
        columns: 0,
    };
}

/// What the TMEM map is made from.
#[derive(Clone, Copy, Debug)]
pub(super) struct TmemParts {
    /// Blocks of four scale factors along a K tile; 0 without scale factors.
    pub blocks: u32,
    /// Columns of one accumulator: the MMA's N.
    pub mma_n: u32,
    /// 128-row blocks of scale factors of a tile of A.
    pub a_row_blocks: u32,
    /// 128-row blocks of scale factors of a tile of B.
    pub b_row_blocks: u32,
    pub layout: Accumulators,
    /// Products that a tile accumulates: 2, or 1 with a kernel a product.
    pub products: u32,
    /// Tiles of B in a stage.
    pub b_tiles: u32,
    /// Tiles of C in flight.
    pub buffers: u32,
    /// Columns of C that two buffers share.
    pub shared: u32,
}

impl TmemParts {
    /// Columns of the parts, as a sum.
    pub fn sum(&self) -> Sum {
        let blocks = u64::from(self.blocks);
        let mut sum = Sum::default();
        let accumulators = u64::from(self.products) * u64::from(self.buffers);
        sum.add(accumulators, u64::from(self.mma_n), "accumulators");
        if blocks > 0 {
            sum.add(blocks, 4 * u64::from(self.a_row_blocks), "SFA");
            let name = if self.b_tiles == 2 { "SFB1, SFB2" } else { "SFB" };
            sum.add(u64::from(self.b_tiles) * blocks, 4 * u64::from(self.b_row_blocks), name);
        }
        sum
    }

    /// Accumulators whose overlap with the other buffer's saves columns: each by itself, or a pair of one MMA.
    fn overlaps(&self) -> u32 {
        if self.layout == Accumulators::SideBySide { 1 } else { self.products }
    }

    /// Columns that all of it takes.
    pub fn total(&self) -> u64 {
        self.sum().total().saturating_sub(u64::from(self.overlaps()) * u64::from(self.shared))
    }

    /// Columns of C that the buffers have to share to fit into `limit`, a multiple of the epilogue's `chunk`.
    pub fn missing(&self, limit: u32, chunk: u32) -> u64 {
        let over = self.sum().total().saturating_sub(limit.into());
        over.div_ceil(self.overlaps().into()).next_multiple_of(chunk.into())
    }

    /// Where the accumulators are: the second product, the second buffer, and names of what lies where.
    fn accumulators(&self) -> (u32, u32, Vec<Region>) {
        let (n, shared) = (self.mma_n, self.shared);
        let second = |column| if self.products == 2 { column } else { 0 };
        let mut regions = Vec::new();
        let mut add = |name, size| {
            let offset = regions.last().map_or(0, |last: &Region| last.offset + last.size);
            regions.push(Region { name, offset, size });
        };
        const NAMES: [[&str; 2]; 2] =
            [["product 1", "product 2"], ["product 1, buffer 2", "product 2, buffer 2"]];
        if shared == 0 {
            for buffer in 0..self.buffers {
                for product in 0..self.products {
                    add(
                        match self.products {
                            1 => ["product", "product, buffer 2"][buffer as usize],
                            _ => NAMES[buffer as usize][product as usize],
                        },
                        n,
                    );
                }
            }
            return (second(n), self.products * n, regions);
        }
        if self.layout == Accumulators::SideBySide {
            add("product 1", n);
            add("product 2", n - shared);
            add("product 2, and product 1 of buffer 2", shared);
            add("product 1, buffer 2", n - shared);
            add("product 2, buffer 2", n);
            return (second(n), 2 * n - shared, regions);
        }
        let names: &[[&str; 3]] = match self.products {
            1 => &[["product", "product, both buffers", "product, buffer 2"]],
            _ => &[
                ["product 1", "product 1, both buffers", "product 1, buffer 2"],
                ["product 2", "product 2, both buffers", "product 2, buffer 2"],
            ],
        };
        for [first, both, other] in names {
            add(first, n - shared);
            add(both, shared);
            add(other, n - shared);
        }
        (second(2 * n - shared), n - shared, regions)
    }

    /// The map, in an allocation of `columns`.
    pub fn map(&self, columns: u32) -> TmemMap {
        let (blocks, shared) = (self.blocks, self.shared);
        let (second, buffer_step, mut regions) = self.accumulators();
        let sfa = regions.last().map_or(0, |last| last.offset + last.size);
        let sfa_step = 4 * self.a_row_blocks;
        let sfb1 = sfa + sfa_step * blocks;
        let half = 4 * self.b_row_blocks;
        // One MMA of 2N finds SFB2 right behind SFB1 of the same K block.
        let (sfb2, sfb_step) = match (self.layout, self.b_tiles) {
            (_, 1) => (sfb1, half),
            // These kernels have no interleaved rows.
            (Accumulators::Separate | Accumulators::InterleavedRows, _) => (sfb1 + half * blocks, half),
            (Accumulators::SideBySide, _) => (sfb1 + half, 2 * half),
        };
        let used = sfb1 + self.b_tiles * half * blocks;
        if blocks == 0 {
            let (sfa_step, sfb_step) = (0, 0);
            return TmemMap {
                second,
                buffer_step,
                shared,
                sfa,
                sfb1,
                sfb2,
                sfa_step,
                sfb_step,
                regions,
                used,
                columns,
            };
        }
        regions.push(Region { name: "SFA", offset: sfa, size: sfa_step * blocks });
        match (self.layout, self.b_tiles) {
            (_, 1) => regions.push(Region { name: "SFB", offset: sfb1, size: half * blocks }),
            (Accumulators::Separate | Accumulators::InterleavedRows, _) => regions.extend([
                Region { name: "SFB1", offset: sfb1, size: half * blocks },
                Region { name: "SFB2", offset: sfb2, size: half * blocks },
            ]),
            (Accumulators::SideBySide, _) => {
                regions.push(Region { name: "SFB1 | SFB2", offset: sfb1, size: 2 * half * blocks });
            }
        }
        TmemMap { second, buffer_step, shared, sfa, sfb1, sfb2, sfa_step, sfb_step, regions, used, columns }
    }
}
