//! Everything that is derived from a problem, a configuration and a chip, and that all targets share.
//!
//! Templates see a [`Plan`] and do no arithmetic of their own.
//!
//! * `mod.rs`: the plan's types.
//! * `draft.rs`: what has to fit: stages, SMEM, the grid; and its refusals.
//! * `lower.rs`: the plan, once all of it does.
//! * `work.rs`: who computes which tiles of C and which part of K.
//! * `memory.rs`: the map of SMEM.
//! * `barriers.rs`: mbarriers.
//! * `transfer.rs`: tensor maps and descriptors: what the asynchronous engines are told.

mod barriers;
pub(crate) mod draft;
mod lower;
mod memory;
mod transfer;
pub(crate) mod work;

pub(crate) use barriers::BarrierCount;
pub use barriers::{Barrier, BarrierKind};
pub(crate) use lower::EARLY_COLUMNS;
pub use memory::{Region, SmemMap};
pub use transfer::{Descriptors, ElementType, Operand, Swizzle, TensorMapRecipe};
pub use work::Work;

pub(crate) use crate::legalize::SIZE_LIMIT;
pub use crate::legalize::{GateNeeds, validate, validate_gate};
pub(crate) use crate::report::write_regions;
pub use crate::report::{Balance, Choice, Explanation, MemoryBudget, Stage, Traffic, WhatIf};
pub use crate::target::{Mma, PromotionInterval, Target, Tcgen05, TmemMap, Wgmma};

use crate::arch::Arch;
use crate::config::{
    Accumulators, CacheHints, Config, CtaGroup, KOrder, Multicast, SfPreload, Store, Strategy, Tile,
    TmemShape,
};
use crate::heuristics::Rules;
use crate::kernel::{WorkspaceBuffer, WorkspaceKind};
use crate::problem::{MmaKind, Problem};
use crate::target::Isa;

/// A legal kernel, all numbers in place. Made by [`validate`] only.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Plan {
    /// What is computed.
    pub problem: Problem,
    /// The chip.
    pub arch: Arch,
    /// The MMA's kind.
    pub kind: MmaKind,
    /// What the gate asks of the configuration.
    pub gate: GateNeeds,
    /// The configuration as asked for, `auto`s included.
    pub asked: Config,
    /// The configuration with every `auto` settled.
    pub config: Config,
    /// By which rules `auto`s were settled.
    pub(crate) rules: Rules,
    /// Which kernels compute C.
    pub strategy: Strategy,
    /// The tile of a CTA, or of a pair.
    pub tile: Tile,
    /// CTAs that compute a tile together: also the cluster's size, along the grid's x.
    pub cta_group: CtaGroup,
    /// Whether weights are on the MMA's row side, and tokens on its column side.
    pub swap_ab: bool,
    /// Tiles that the CTAs, or pairs, of a cluster share.
    pub multicast: Multicast,
    /// How products are multiplied, and what only that way has.
    pub target: Target,
    /// Columns of one accumulator: the tile's N, or, swapped, its M.
    pub mma_columns: u32,
    /// Rows of an accumulator in one CTA.
    pub cta_rows: u32,
    /// Pipeline depth in K tiles.
    pub stages: u32,
    /// Order of the K loop.
    pub k_order: KOrder,
    /// When scale factors are loaded.
    pub sf_preload: SfPreload,
    /// Accumulator layout.
    pub accumulators: Accumulators,
    /// L2 hints.
    pub cache: CacheHints,
    /// How C is stored.
    pub store: Store,
    /// Whether kernels start while their predecessors end, and wait for them.
    pub pdl: bool,
    /// Tiles along M.
    pub m_tiles: u32,
    /// Tiles along N.
    pub n_tiles: u32,
    /// Who computes which tiles.
    pub work: Work,
    /// Threads of a CTA: four or eight epilogue warps, a TMA warp, an MMA warp; or the warpgroups that issue MMAs and
    /// finish their tiles, and one of which a thread loads.
    pub threads: u32,
    /// The K loop.
    pub k_loop: KLoop,
    /// Scale factors: blocks, bytes, strides.
    pub scales: Scales,
    /// Shared memory.
    pub smem: SmemMap,
    /// mbarriers, in the order of their addresses.
    pub barriers: Vec<Barrier>,
    /// Descriptor constants and steps.
    pub descriptors: Descriptors,
    /// Tensor maps, in the order of the kernel's parameters.
    pub tensor_maps: Vec<TensorMapRecipe>,
    /// What the epilogue does.
    pub epilogue: Epilogue,
    /// Memory beside the tensors: products between launches, partial sums between CTAs.
    pub workspace: Vec<WorkspaceBuffer>,
    /// PTX ISA version, the lowest that has what the kernel uses: major, minor.
    pub ptx_version: (u32, u32),
}

impl Plan {
    /// What the way to multiply answers.
    pub(crate) fn isa(&self) -> &dyn Isa {
        self.target.isa()
    }

    /// Rows of A that an item of work has: of a tile, or of those that a cluster computes side by side.
    pub(crate) fn item_rows(&self) -> u32 {
        match self.multicast {
            Multicast::B(ctas) => self.tile.m * ctas,
            Multicast::None | Multicast::A(_) => self.tile.m,
        }
    }

    /// Whether a launch of its own brings the activations into the order of K in which weights are decoded.
    pub fn orders_first(&self) -> bool {
        self.isa().orders_first()
    }

    /// Whether two CTAs at most share a tile's K, one of which hands its sums over to the other: where each has as much to do as a
    /// whole tile, and a warp is free to see to it.
    pub fn has_fixup(&self) -> bool {
        self.isa().fixup(&self.work, self.k_loop.tiles, self.kind)
    }

    /// Whether an MMA's rows are of both products by turns.
    pub fn interleaved_rows(&self) -> bool {
        self.isa().interleaved_rows()
    }

    /// The buffer of a kind, where the workspace has it.
    pub fn buffer(&self, kind: WorkspaceKind) -> Option<WorkspaceBuffer> {
        self.workspace.iter().find(|buffer| buffer.kind == kind).copied()
    }

    /// The barrier of a kind: bytes from the base of SMEM, where the plan has it.
    pub fn barrier(&self, kind: BarrierKind) -> Option<u32> {
        self.barriers.iter().find(|barrier| barrier.kind == kind).map(|barrier| barrier.offset)
    }
}

/// The walk along K.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KLoop {
    /// K tiles.
    pub tiles: u32,
    /// MMA steps (of 256 bits of a row) in a full K tile.
    pub blocks: u32,
    /// MMA steps in the last K tile: `blocks`, or fewer where K ends inside it.
    pub last_blocks: u32,
    /// Bytes of a row of one K tile in SMEM, of A and of B.
    pub tile_bytes: u32,
    /// See `tile_bytes`: decoded weights are smaller than what they meet.
    pub b_tile_bytes: u32,
    /// K tiles whose MMAs alternate between the products.
    pub main_tiles: u32,
    /// K tiles of the split tail: all of GEMM 1, then all of GEMM 2.
    pub tail_tiles: u32,
    /// K tiles whose scale factors are loaded before the operand loop (`ahead`).
    pub sf_prologue: u32,
    /// Slots of the scale-factor ring: the stages, or more with `ahead`; 1 with `all`.
    pub sf_slots: u32,
}

/// Scale-factor geometry. A block is 128 rows x 4 scale factors = 512 bytes, and serves one MMA step of
/// NVFP4, two of MXFP4, four of MXFP8. Without scale factors all counts and sizes are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scales {
    /// 128-row blocks that a CTA's tile of A touches.
    pub a_row_blocks: u32,
    /// 128-row blocks that a CTA's tile of B touches.
    pub b_row_blocks: u32,
    /// 128-row blocks of the tensor on the MMA's row side: A, or, swapped, B1 (and B2).
    pub rows_total: u32,
    /// Rows of a tile on the row side, in quarters of a block of 128.
    pub row_quarters: u32,
    /// Whether a tile can lie beyond the tensor on the row side, so that its block index is clamped.
    pub rows_clamped: bool,
    /// 128-row blocks of the tensor on the MMA's column side: B1 (and B2), or, swapped, A.
    pub columns_total: u32,
    /// Whether a tile's last block can lie beyond the tensor, so that its index is clamped.
    pub columns_clamped: bool,
    /// Whether tiles can start in the upper half of a block (their width an odd multiple of 64).
    pub columns_half_blocks: bool,
    /// Bytes of one row block over all K, in global memory.
    pub row_block_bytes: u64,
    /// MMA steps that a block of four scale factors serves; 1 without scale factors.
    pub steps_per_block: u32,
    /// Bytes of one row block over one K tile.
    pub tile_bytes: u32,
    /// The same in the last K tile.
    pub last_tile_bytes: u32,
    /// Bytes of one row block in an SMEM slot: one K tile, or all K with `all`.
    pub smem_row_block_bytes: u32,
    /// How they are brought: `Some` by tensor map, a box of so many K blocks at a time, `None` by
    /// bulk copies of a row block. A bulk copy can signal its own CTA's barriers only, so that
    /// pairs use tensor maps.
    pub box_blocks: Option<u32>,
    /// Whether each is loaded once for all CTAs of a cluster that need it.
    pub shared: bool,
    /// Bytes that one slot's loads bring to one CTA: SFA, SFB1 and SFB2.
    pub slot_tx: u32,
    /// The same in the last K tile.
    pub last_slot_tx: u32,
}

/// The epilogue, a chunk of columns at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epilogue {
    /// The shape of `tcgen05.ld`.
    pub load: TmemShape,
    /// Columns of one `tcgen05.ld` of each product: 8, 16 or 32.
    pub chunk: u32,
    /// Chunks in the tile.
    pub chunks: u32,
    /// Chunks whose first product is taken early, where product 1 is done before product 2.
    pub early_chunks: u32,
    /// Columns that a warp finishes: all of a tile's; its CTA's part of them where a cluster shares a tile's K; or half, where two
    /// warps have the same rows.
    pub columns: u32,
    /// Warps that have the same rows of a tile: 1, or 2.
    pub column_parts: u32,
    /// Whether an accumulator can have rows beyond M (swapped: beyond N).
    pub rows_ragged: bool,
    /// Whether an accumulator can have columns beyond N (swapped: beyond M).
    pub columns_ragged: bool,
    /// How C is written.
    pub c: Output,
    /// How an fp32 product is written and read back, with a kernel a product.
    pub product: Option<Output>,
    /// How D1 and D2 are written, where they are kept.
    pub kept: Option<Output>,
    /// How matrices that the gate reads lie.
    pub matrix: Output,
}

/// How rows of results go to global memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Output {
    /// Bits of an element.
    pub element_bits: u32,
    /// Elements of one store instruction.
    pub vector: u32,
    /// Bytes from one row to the next.
    pub row_bytes: u64,
    /// The staging of a TMA store.
    pub staging: Option<Staging>,
}

impl Scales {
    /// The last 128-row block on the MMA's row side.
    pub(crate) fn last_row_block(&self) -> u32 {
        self.rows_total.saturating_sub(1)
    }

    /// The last 128-row block on the MMA's column side.
    pub(crate) fn last_column_block(&self) -> u32 {
        self.columns_total.saturating_sub(1)
    }
}

impl Epilogue {
    /// The number of the last chunk.
    pub(crate) fn last_chunk(&self) -> u32 {
        self.chunks.saturating_sub(1)
    }
}

impl Output {
    /// Bytes of an element that has whole ones.
    pub(crate) fn element_bytes(&self) -> u32 {
        self.element_bits / 8
    }

    /// The same as a shift.
    pub(crate) fn byte_shift(&self) -> u32 {
        self.element_bytes().trailing_zeros()
    }
}

impl Staging {
    /// The bits of a byte's place in a row of a box.
    pub(crate) fn span_mask(&self) -> u32 {
        self.span.saturating_sub(1)
    }

    /// Threads that fill boxes together.
    #[cfg(feature = "render")]
    pub(crate) fn threads(&self) -> u32 {
        32 * self.warps
    }

    /// Units of 16 bytes in a row of a box.
    #[cfg(feature = "render")]
    pub(crate) fn units(&self) -> u32 {
        self.span / 16
    }

    /// Bytes of the boxes of four warps: the next four may have the other half of the columns.
    pub(crate) fn half_bytes(&self) -> u32 {
        4 * self.warp_bytes
    }
}

/// SMEM staging of a TMA store: for each epilogue warp, boxes of 32 rows one after the other; for a warpgroup whose threads hold
/// columns of C, boxes of all of the tile's rows. Where a CTA computes one tile, it lies over the operand stages, which nobody
/// reads any more by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Staging {
    /// Bytes of a box row, the swizzle span: 128, 64, 32, or 16 without swizzle.
    pub span: u32,
    /// Columns of a box.
    pub columns: u32,
    /// Boxes across the tile.
    pub boxes: u32,
    /// Rows of a box.
    pub box_rows: u32,
    /// Bytes of a box.
    pub box_bytes: u32,
    /// Warps that fill boxes together: 1, or the 4 of a warpgroup.
    pub warps: u32,
    /// Bytes of the boxes of so many warps.
    pub warp_bytes: u32,
    /// Permutation of a box in SMEM.
    pub swizzle: Swizzle,
    /// Mask of the row bits that the swizzle folds in: 7, 3, 1 or 0.
    pub swizzle_mask: u32,
}

impl Plan {
    /// Whether A is decoded, too, on its way to MMAs that take no scale factors.
    pub fn decodes_a(&self) -> bool {
        self.problem.formats.decodes_a(self.arch)
    }

    /// Whether the loads of the last K tile differ from the others'.
    pub fn ragged_k(&self) -> bool {
        self.k_loop.last_blocks != self.k_loop.blocks
    }

    /// Row blocks of scale factors that a tile has on the MMA's row side, in one CTA.
    pub fn row_row_blocks(&self) -> u32 {
        if self.swap_ab { self.scales.b_row_blocks } else { self.scales.a_row_blocks }
    }

    /// Row blocks of scale factors that a tile has on the MMA's column side.
    pub fn column_row_blocks(&self) -> u32 {
        if self.swap_ab { self.scales.a_row_blocks } else { self.scales.b_row_blocks }
    }

    /// CTAs of a cluster: of a tile, and of those that share its operands.
    pub fn cluster_ctas(&self) -> u32 {
        self.cta_group.ctas() * self.multicast.ctas() * self.work.cluster_parts
    }

    /// CTAs of the grid.
    pub fn ctas(&self) -> u64 {
        u64::from(self.work.clusters) * u64::from(self.cluster_ctas())
    }

    /// Waves of tiles, or of a split tile's parts, on the SMs that the kernel is made for.
    pub fn waves(&self) -> f64 {
        self.balance().waves
    }

    /// Bytes that TMA brings to SMEM over all launches.
    pub fn loaded_bytes(&self) -> u64 {
        let k = &self.k_loop;
        let stage = self.smem.stage_bytes - self.smem.made_bytes - self.smem.boxes * self.smem.blank_bytes;
        let operands = u64::from(k.tiles) * u64::from(stage);
        let scales =
            u64::from(k.tiles - 1) * u64::from(self.scales.slot_tx) + u64::from(self.scales.last_slot_tx);
        // Where a stage holds one tile of B, the K loop runs once a product.
        let loops = u64::from(self.problem.operation.products() / self.smem.b_tiles);
        let items = self.items_of(&self.problem.shape.even_sizes());
        let ctas = items * u64::from(self.cta_group.ctas() * self.multicast.ctas());
        // The last tiles along M have fewer rows.
        let last_tiles = u64::from(self.work.tiles / self.work.m_items.max(1));
        let blank = u64::from(k.tiles) * u64::from(self.smem.boxes * self.smem.last_blank_bytes);
        loops * (ctas * (operands + scales) - last_tiles * blank)
    }

    /// Seconds below which no kernel can be on this chip: the larger of operations over the tensor
    /// core's rate and compulsory bytes over DRAM's, both as [`crate::arch::Limits`] has them.
    /// Modelled, never measured.
    pub fn floor_seconds(&self) -> f64 {
        let limits = self.arch.limits();
        let math = self.problem.operations() / limits.ops_per_second(self.kind);
        let memory = self.problem.compulsory_bytes() as f64 / limits.dram_bytes_per_second;
        math.max(memory)
    }
}
