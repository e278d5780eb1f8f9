//! The maps of shared memory and of tensor memory.

use crate::config::{Accumulators, Tile};
use crate::error::Sum;

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
/// `A | B1 | B2`, each `rows x span` boxes, K-major. Then the scale-factor slots
/// (`SFA | SFB1 | SFB2`, 512-byte blocks, K fastest), then the barriers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SmemMap {
    /// Bytes of one operand stage.
    pub stage_bytes: u32,
    /// Bytes of A in a stage.
    pub a_bytes: u32,
    /// Bytes of B1 (and of B2) in one K box of a stage.
    pub b_box_bytes: u32,
    /// Bytes of A in one K box of a stage.
    pub a_box_bytes: u32,
    /// K boxes (swizzle spans) of a stage.
    pub boxes: u32,
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
    /// The word that `tcgen05.alloc` writes the TMEM address to.
    pub tmem_address: u32,
    /// Everything, with names, in order.
    pub regions: Vec<Region>,
    /// Bytes in all: the launch's dynamic SMEM.
    pub total: u32,
}

/// Tensor memory, in columns from the allocation's first.
///
/// `product 1 | product 2 | SFA | SFB1 | SFB2`; a K block (64 elements) of scale factors takes
/// four columns for every 128 rows, and every K block of a stage has its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TmemMap {
    /// Accumulator of `A @ B2`; that of `A @ B1` is at 0.
    pub second: u32,
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

/// Columns of the parts of a tile in TMEM, as a sum.
pub(super) fn tmem_sum(tile: Tile, blocks: u64, b_row_blocks: u64) -> Sum {
    let mut sum = Sum::default();
    sum.add(2, u64::from(tile.n), "accumulators");
    sum.add(blocks, 4, "SFA");
    sum.add(2 * blocks, 4 * b_row_blocks, "SFB1, SFB2");
    sum
}

pub(super) fn tmem_map(
    tile: Tile,
    blocks: u32,
    b_row_blocks: u32,
    accumulators: Accumulators,
    columns: u32,
) -> TmemMap {
    let sfa = 2 * tile.n;
    let sfb1 = sfa + 4 * blocks;
    let half = 4 * b_row_blocks;
    // One MMA of 2N finds SFB2 right behind SFB1 of the same K block.
    let (sfb2, sfb_step) = match accumulators {
        Accumulators::Separate => (sfb1 + half * blocks, half),
        Accumulators::SideBySide => (sfb1 + half, 2 * half),
    };
    let used = sfb1 + 2 * half * blocks;
    let mut regions = vec![
        Region { name: "product 1", offset: 0, size: tile.n },
        Region { name: "product 2", offset: tile.n, size: tile.n },
        Region { name: "SFA", offset: sfa, size: 4 * blocks },
    ];
    match accumulators {
        Accumulators::Separate => regions.extend([
            Region { name: "SFB1", offset: sfb1, size: half * blocks },
            Region { name: "SFB2", offset: sfb2, size: half * blocks },
        ]),
        Accumulators::SideBySide => {
            regions.push(Region { name: "SFB1 | SFB2", offset: sfb1, size: 2 * half * blocks });
        }
    }
    TmemMap { second: tile.n, sfa, sfb1, sfb2, sfa_step: 4, sfb_step, regions, used, columns }
}

/// What the SMEM map is made from.
#[derive(Clone, Copy, Debug)]
pub(super) struct SmemParts {
    pub tile: Tile,
    /// CTAs that share the tile, each with its own rows of A and its part of B.
    pub ctas: u32,
    /// Bytes of a swizzle span.
    pub span: u32,
    pub stages: u32,
    pub sf_slots: u32,
    /// Bytes of one row block in a slot.
    pub sf_row_block: u64,
    pub b_row_blocks: u32,
    pub barriers: u32,
    /// Bytes of the TMA store's staging, which lies over the stages.
    pub staging: u32,
}

impl SmemParts {
    /// Rows of A and of each B in one CTA.
    fn rows(&self) -> [u32; 2] {
        [self.tile.m / self.ctas, self.tile.n / self.ctas]
    }

    /// Bytes of one operand stage.
    pub fn stage_bytes(&self) -> u64 {
        let [a, b] = self.rows().map(u64::from);
        (a + 2 * b) * u64::from(self.tile.k) / 2
    }

    /// Bytes of one scale-factor slot.
    pub fn slot_bytes(&self) -> u64 {
        self.sf_row_block.saturating_mul(1 + 2 * u64::from(self.b_row_blocks))
    }

    /// Everything, as a sum.
    pub fn sum(&self) -> Sum {
        let mut sum = Sum::default();
        sum.add(u64::from(self.stages), self.stage_bytes(), "stages of A, B1, B2");
        let stages = u64::from(self.stages).saturating_mul(self.stage_bytes());
        if stages < u64::from(self.staging) {
            sum.add(1, u64::from(self.staging) - stages, "rest of the staging of C");
        }
        sum.add(u64::from(self.sf_slots), self.slot_bytes(), "slots of scale factors");
        sum.add(1, 8 * u64::from(self.barriers) + 8, "barriers and the TMEM address");
        sum
    }

    /// The map. Call it only once [`SmemParts::sum`] fits: all values are small then.
    pub fn map(&self) -> SmemMap {
        let [a_box_bytes, b_box_bytes] = self.rows().map(|rows| rows * self.span);
        let boxes = self.tile.k / 2 / self.span;
        let stage_bytes = self.stage_bytes() as u32;
        let row_block = self.sf_row_block as u32;
        let slot_bytes = self.slot_bytes() as u32;
        let operands = (self.stages * stage_bytes).max(self.staging);
        let scales = operands;
        let barriers = scales + self.sf_slots * slot_bytes;
        let tmem_address = barriers + 8 * self.barriers;
        let sfb1 = row_block;
        let sfb2 = sfb1 + self.b_row_blocks * row_block;
        let regions = vec![
            Region { name: "operand stages", offset: 0, size: operands },
            Region { name: "scale factors", offset: scales, size: barriers - scales },
            Region { name: "barriers", offset: barriers, size: 8 * self.barriers },
            Region { name: "TMEM address", offset: tmem_address, size: 8 },
        ];
        SmemMap {
            stage_bytes,
            a_bytes: boxes * a_box_bytes,
            a_box_bytes,
            b_box_bytes,
            boxes,
            scales,
            slot_bytes,
            sfb1,
            sfb2,
            barriers,
            tmem_address,
            regions,
            total: tmem_address + 8,
        }
    }
}
