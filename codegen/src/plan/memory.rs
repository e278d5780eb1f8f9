//! The map of shared memory.

use super::work::RESPONSE_BYTES;
use crate::config::Tile;
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
/// Both CTAs of a pair have the same map, each with 128 rows of A and half of B: half the rows of
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
    /// K boxes of B1 (and of B2) in a stage: 1 for weights that are decoded in the kernel, else as many as A has.
    pub b_boxes: u32,
    /// Bytes of A in one K box of a stage.
    pub a_box_bytes: u32,
    /// Bytes at the end of A's part of a K box that no load brings, since A has fewer rows than the tile.
    pub blank_bytes: u32,
    /// Bytes that no load brings at that place in the last tile along M; 0 if all tiles are loaded alike.
    pub last_blank_bytes: u32,
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
    /// Rows of A that a load brings: fewer than the tile has where A has fewer.
    pub a_box_rows: u32,
    /// Rows of A that a load of the last tile along M brings, if other tiles have more.
    pub a_last_rows: Option<u32>,
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
        let blank_bytes = (a_rows - self.a_box_rows) * self.span;
        let last_blank_bytes = self.a_last_rows.map_or(0, |rows| (a_rows - rows) * self.span);
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
                - boxes * blank_bytes
                - if self.expanded[0] { boxes * a_box_bytes / 2 } else { 0 }
                - if self.expanded[1] { self.b_tiles * boxes * b_box_bytes / 2 } else { 0 },
            a_bytes: boxes * a_box_bytes,
            packed_a: if packed_a_bytes > 0 { packed_a } else { 0 },
            packed_a_bytes,
            made_bytes,
            a_box_bytes,
            b_box_bytes,
            b_boxes: if self.b_row_bytes == self.row_bytes { boxes } else { 1 },
            blank_bytes,
            last_blank_bytes,
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
