//! The maps of shared memory and of tensor memory.

use super::work::RESPONSE_BYTES;
use crate::config::{Accumulators, Tile};
use crate::error::Sum;

/// Bytes of a group in the table of groups: its first tile, its first row, its rows, its first block of scale factors.
pub(super) const GROUP_BYTES: u32 = 16;

/// Bytes after which the widest swizzle repeats itself: 8 rows of 128.
const SWIZZLE_PATTERN: u64 = 1024;

/// A named piece of SMEM (bytes) or TMEM (columns).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// What it holds.
    pub name: &'static str,
    /// Where it starts.
    pub offset: u32,
    /// How long it is.
    pub size: u32,
}

/// Shared memory, in bytes from the 1024-byte aligned base of dynamic SMEM.
///
/// Of a pair, both CTAs have the same map, each with 128 rows of A and half of B: half the rows of
/// B1 and of B2, or, side by side, one of the two whole.
///
/// Operand tiles come first, so that each starts on its swizzle pattern's boundary: a stage is
/// `A | B1 | B2` (`A | B` where the products are computed one after the other), each `rows x span` boxes,
/// K-major, and behind them A as it arrives, where threads decode it. Then, where tiles of C follow each other, the staging of C; the scale-factor slots
/// (`SFA | SFB1 | SFB2`, 512-byte blocks, K fastest); then the barriers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SmemMap {
    /// Bytes of one operand stage.
    pub stage_bytes: u32,
    /// Bytes that barriers count for one operand stage: of e2m1 that TMA expands, those in global memory.
    pub stage_tx: u32,
    /// Bytes of A in a stage.
    pub a_bytes: u32,
    /// From a stage's start to A as it arrives, and bytes of that, where threads decode it to A's place; else 0.
    pub packed_a: u32,
    /// See `packed_a`.
    pub packed_a_bytes: u32,
    /// Bytes of a stage that no load brings: decoded activations, and what aligns the next stage.
    pub made_bytes: u32,
    /// Bytes of B1 (and of B2) in one K box of a stage.
    pub b_box_bytes: u32,
    /// Bytes of A in one K box of a stage.
    pub a_box_bytes: u32,
    /// K boxes (swizzle spans) of a stage.
    pub boxes: u32,
    /// Tiles of B in a stage: 2, or 1 where the products are computed one after the other.
    pub b_tiles: u32,
    /// Start of the staging of C, where there is one.
    pub staging: u32,
    /// Start of the scale-factor slots.
    pub scales: u32,
    /// Bytes of one scale-factor slot.
    pub slot_bytes: u32,
    /// SFB1 in a slot.
    pub sfb1: u32,
    /// SFB2 in a slot.
    pub sfb2: u32,
    /// Start of the barriers, 8 bytes each.
    pub barriers: u32,
    /// Answers of cluster launch control, 16 bytes each.
    pub responses: u32,
    /// The table of groups of rows: an entry of 16 bytes a group, and one behind the last.
    pub groups: u32,
    /// The word that `tcgen05.alloc` writes the TMEM address to.
    pub tmem_address: u32,
    /// The word by which the epilogue's warps learn whether they are the last of a tile.
    pub last_flag: u32,
    /// Everything, with names, in order.
    pub regions: Vec<Region>,
    /// Bytes in all: the launch's dynamic SMEM.
    pub total: u32,
}

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
    /// Of a chip that has none.
    pub(super) const NONE: TmemMap = TmemMap {
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
            (Accumulators::Separate, _) => (sfb1 + half * blocks, half),
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
            (Accumulators::Separate, _) => regions.extend([
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

/// What the SMEM map is made from.
#[derive(Clone, Copy, Debug)]
pub(super) struct SmemParts {
    pub tile: Tile,
    /// CTAs that share the tile, each with its own rows of A and its part of B.
    pub ctas: u32,
    /// Tiles of B in a stage.
    pub b_tiles: u32,
    /// Whether TMA expands A and B.
    pub expanded: [bool; 2],
    /// Bytes of a swizzle span.
    pub span: u32,
    /// Bytes of a row of a K tile.
    pub row_bytes: u32,
    /// Bytes of a row of a K tile of B: fewer, in one box, where weights are decoded.
    pub b_row_bytes: u32,
    /// Bytes of a row of a K tile of A as it arrives, where it is decoded; else 0.
    pub packed_a_row_bytes: u32,
    pub stages: u32,
    pub sf_slots: u32,
    /// Bytes of one row block in a slot.
    pub sf_row_block: u64,
    pub a_row_blocks: u32,
    pub b_row_blocks: u32,
    pub barriers: u32,
    /// Answers of cluster launch control.
    pub responses: u32,
    /// Groups of rows, listed in a table; 0 without.
    pub groups: u32,
    /// Whether accumulators are in tensor memory.
    pub tmem: bool,
    /// Whether CTAs share a tile's K, so that one of them is the last.
    pub marks: bool,
    /// Bytes of the TMA store's staging.
    pub staging: u32,
    /// Whether the staging lies over the stages, which nobody reads any more by then.
    pub staging_over_stages: bool,
}

impl SmemParts {
    /// Rows of A and of each B in one CTA.
    fn rows(&self) -> [u32; 2] {
        [self.tile.m / self.ctas, self.tile.n / self.ctas]
    }

    /// Bytes of one operand stage.
    pub fn stage_bytes(&self) -> u64 {
        let [a, b] = self.rows().map(u64::from);
        a * u64::from(self.row_bytes)
            + u64::from(self.b_tiles) * b * u64::from(self.b_row_bytes)
            // The next stage starts on a swizzle pattern's boundary.
            + (a * u64::from(self.packed_a_row_bytes)).next_multiple_of(SWIZZLE_PATTERN)
    }

    /// Bytes of one scale-factor slot.
    pub fn slot_bytes(&self) -> u64 {
        let row_blocks =
            u64::from(self.a_row_blocks) + u64::from(self.b_tiles) * u64::from(self.b_row_blocks);
        self.sf_row_block.saturating_mul(row_blocks)
    }

    /// Bytes of the table of groups.
    pub fn group_bytes(&self) -> u64 {
        if self.groups == 0 { 0 } else { u64::from(GROUP_BYTES) * (u64::from(self.groups) + 1) }
    }

    /// Everything, as a sum.
    pub fn sum(&self) -> Sum {
        let mut sum = Sum::default();
        let name = if self.b_tiles == 2 { "stages of A, B1, B2" } else { "stages of A, B" };
        sum.add(u64::from(self.stages), self.stage_bytes(), name);
        let stages = u64::from(self.stages).saturating_mul(self.stage_bytes());
        if !self.staging_over_stages && self.staging > 0 {
            sum.add(1, u64::from(self.staging), "staging of C");
        } else if stages < u64::from(self.staging) {
            sum.add(1, u64::from(self.staging) - stages, "rest of the staging of C");
        }
        if self.sf_row_block > 0 {
            sum.add(u64::from(self.sf_slots), self.slot_bytes(), "slots of scale factors");
        }
        if self.responses > 0 {
            sum.add(u64::from(self.responses), RESPONSE_BYTES.into(), "answers of cluster launch control");
        }
        if self.groups > 0 {
            sum.add(1, self.group_bytes(), "table of groups");
        }
        let name = match (self.tmem, self.marks) {
            (true, _) => "barriers and the TMEM address",
            (false, true) => "barriers and the last part's mark",
            (false, false) => "barriers",
        };
        sum.add(1, 8 * u64::from(self.barriers) + u64::from(self.word_bytes()), name);
        sum
    }

    /// Bytes of the TMEM address and of the last part's mark behind it, where there is either.
    fn word_bytes(&self) -> u32 {
        if self.tmem || self.marks { 8 } else { 0 }
    }

    /// The map. Call it only once [`SmemParts::sum`] fits: all values are small then.
    pub fn map(&self) -> SmemMap {
        let [a_rows, b_rows] = self.rows();
        let boxes = self.row_bytes / self.span;
        let a_box_bytes = a_rows * self.span;
        let b_box_bytes =
            b_rows * if self.b_row_bytes == self.row_bytes { self.span } else { self.b_row_bytes };
        let stage_bytes = self.stage_bytes() as u32;
        let packed_a_bytes = a_rows * self.packed_a_row_bytes;
        let packed_a = stage_bytes - packed_a_bytes.next_multiple_of(SWIZZLE_PATTERN as u32);
        let made_bytes = match packed_a_bytes {
            0 => 0,
            bytes => boxes * a_box_bytes + stage_bytes - packed_a - bytes,
        };
        let row_block = self.sf_row_block as u32;
        let slot_bytes = self.slot_bytes() as u32;
        let stages = self.stages * stage_bytes;
        let (operands, staging, scales) = match self.staging_over_stages {
            true => (stages.max(self.staging), 0, stages.max(self.staging)),
            false => (stages, stages, stages + self.staging),
        };
        let responses = scales + self.sf_slots * slot_bytes;
        let groups = responses + RESPONSE_BYTES * self.responses;
        let barriers = groups + self.group_bytes() as u32;
        let tmem_address = barriers + 8 * self.barriers;
        let sfb1 = self.a_row_blocks * row_block;
        let sfb2 = sfb1 + (self.b_tiles - 1) * self.b_row_blocks * row_block;
        let mut regions = vec![Region { name: "operand stages", offset: 0, size: operands }];
        if staging > 0 && self.staging > 0 {
            regions.push(Region { name: "staging of C", offset: staging, size: self.staging });
        }
        if responses > scales {
            regions.push(Region { name: "scale factors", offset: scales, size: responses - scales });
        }
        if self.responses > 0 {
            let size = groups - responses;
            regions.push(Region { name: "launch control answers", offset: responses, size });
        }
        if self.groups > 0 {
            regions.push(Region { name: "table of groups", offset: groups, size: barriers - groups });
        }
        regions.push(Region { name: "barriers", offset: barriers, size: 8 * self.barriers });
        if self.word_bytes() > 0 {
            let name = if self.tmem { "TMEM address" } else { "mark of a tile's last part" };
            regions.push(Region { name, offset: tmem_address, size: self.word_bytes() });
        }
        SmemMap {
            stage_bytes,
            stage_tx: stage_bytes
                - made_bytes
                - if self.expanded[0] { boxes * a_box_bytes / 2 } else { 0 }
                - if self.expanded[1] { self.b_tiles * boxes * b_box_bytes / 2 } else { 0 },
            a_bytes: boxes * a_box_bytes,
            packed_a: if packed_a_bytes > 0 { packed_a } else { 0 },
            packed_a_bytes,
            made_bytes,
            a_box_bytes,
            b_box_bytes,
            boxes,
            b_tiles: self.b_tiles,
            staging,
            scales,
            slot_bytes,
            sfb1,
            sfb2,
            barriers,
            responses,
            groups,
            tmem_address,
            last_flag: tmem_address + 4,
            regions,
            total: tmem_address + self.word_bytes(),
        }
    }
}
