//! The numbers and register lists that templates print.
//!
//! * `mod.rs`: [`View`], one for each entry of a module.
//! * `build.rs`: how it is made from a plan.
//! * `cluster.rs`: which CTA of a cluster does what.
//! * `producer.rs`, `epilogue.rs`: the parts of it that a role needs.
//! * `steps.rs`: where in a stage an MMA finds its operands.
//! * `block_scale.rs`: scale factors of C across lanes.
//! * `groups.rs`: batches and groups of rows.
//! * `inputs.rs`: the gate's vectors, for the epilogue.
//! * `lanes.rs`: which rows and columns a thread has, where threads share the lanes of accumulators.
//! * `products.rs`: D1 and D2, what is kept of the products.
//!
//! What one way to multiply prints is in its folder of `target/`.

mod block_scale;
mod build;
mod cluster;
pub(crate) mod epilogue;
mod groups;
mod inputs;
pub(crate) mod lanes;
mod producer;
mod products;
pub(crate) mod steps;

use super::RenderError;
use super::gate_text;
use crate::config::{Accumulators, Eviction, Raster, Schedule, SfPreload, Strategy};
use crate::gate::{Expr, Fragment, GateCode, Product};
use crate::plan::{BarrierKind, Operand, Output, Plan, Staging, TensorMapRecipe};
use crate::problem::{Groups, MmaKind};
use block_scale::{Nibbles, TransposedScales};
use cluster::{Places, Sender};
use epilogue::{BoxStore, Packing, PartialProduct, ProductVector, Ragged, Unit, Vector, Word};
use groups::GroupsView;
use inputs::{GateStep, Inputs};
pub(super) use lanes::Held;
use lanes::{HeldRow, Lanes};
use producer::{OperandLoad, Policies, ScaleBox, ScaleLoad};
use products::{Kept, KeptProducts};
use std::fmt;

/// Threads of a CTA of the gate's own kernel.
pub(super) const GATE_THREADS: u32 = 256;

/// What an entry computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Both products and the gate.
    Fused,
    /// One product, to fp32.
    Product,
    /// The second product, and the gate with the first one read back.
    Gated,
    /// The gate alone.
    Gate,
}

/// What the way to multiply has for [`View`].
pub(crate) struct TargetView {
    /// The warp that loads.
    pub producer_warp: u32,
    /// Where warps go on that neither compute nor finish tiles, once they are done.
    pub leave: &'static str,
    /// What a thread's registers of a chunk hold, and how many of one product there are.
    pub held: Held,
    pub registers: u32,
    /// Registers for sums of another part, unless those of a chunk have room.
    pub addends: Option<u32>,
    /// Whether results that need no conversion have registers of their own as words.
    pub keeps_words: bool,
    /// See [`View`].
    pub places_staging: bool,
    pub meets_in_producer: bool,
    /// Columns from the first product's accumulator to the second's, and those that two buffers share.
    pub second_column: u32,
    pub shared_columns: u32,
}

/// Where a barrier is, in bytes from the base of SMEM. Printing one that the plan does not have is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(pub Option<u32>);

impl Place {
    /// This one, or the other where the plan does not have it.
    fn or(self, other: Place) -> Place {
        Place(self.0.or(other.0))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.ok_or(fmt::Error)?.fmt(f)
    }
}

/// The templates' second argument, beside the plan.
pub(crate) struct View<'a> {
    pub p: &'a Plan,
    // What the entry is, in words.
    pub about: &'static str,
    pub epilogue_does: &'static str,
    pub b_names: &'static str,
    // Work.
    /// Whether a CTA may compute more than one item.
    pub looped: bool,
    /// Whether an item may be a part of a tile's K.
    pub ranges: bool,
    /// What is added to a tile's counter once the first of its two parts has left its sums in the workspace; 0 where parts are
    /// collected otherwise.
    pub handed_over: u32,
    /// The barrier behind which it is known which part that is.
    pub part_known: Place,
    /// Whether loads of A wait for a launch of the kernel's own, and nothing else for the one before.
    pub waits: bool,
    pub dynamic: bool,
    /// Whether the CTAs of a cluster share a tile's K.
    pub cluster_parts: bool,
    /// Where warps go on that neither compute nor finish tiles, once they are done.
    pub leave: &'static str,
    /// Whether a tile's scale factors on the MMA's row side can be in two blocks.
    pub row_block_above: bool,
    /// Whether threads find their place in the staging as a row, or a lane, each.
    pub places_staging: bool,
    /// Whether the warp that loads meets the epilogues of a cluster that shares K.
    pub meets_in_producer: bool,
    /// Whether there are two buffers of accumulators.
    pub buffered: bool,
    /// Whether they share columns, and in how many of the epilogue's chunks those are.
    pub overlapped: bool,
    pub shared_chunks: u32,
    /// K tiles of an item: a number or a register.
    pub k_count: String,
    /// The same without the split tail.
    pub main_count: String,
    pub groups: GroupsView,
    /// Whether tiles are all in one row, where no raster matters and a division at each item's start is saved.
    pub one_row_of_tiles: bool,
    pub raster_group: u32,
    /// Tiles of a band of the swizzled raster.
    pub raster_band: u64,
    pub passes: Vec<Pass>,
    // Barriers.
    pub full: Place,
    pub empty: Place,
    pub sf_full: Place,
    pub sf_empty: Place,
    /// Whether slots of scale factors are given back, on barriers of their own.
    pub sf_ring: bool,
    /// Done when product 1 is complete: both, where they end together.
    pub product1_done: Place,
    pub product2_done: Place,
    /// Done when both products are complete.
    pub all_done: Place,
    pub accumulators_free: Place,
    pub answer_full: Place,
    pub answer_read: Place,
    pub barriers: Vec<BarrierView>,
    // TMA.
    pub maps: Vec<TensorMapRecipe>,
    pub load_policies: Vec<Policy>,
    /// Bytes that one K tile of scale factors brings, as the barrier counts them.
    pub slot_tx: u32,
    pub last_slot_tx: u32,
    /// Whether the last K tile's loads are shorter than the others'.
    pub ragged_loads: bool,
    /// Row blocks of scale factors on the MMA's column side.
    pub column_blocks: Vec<u32>,
    pub stage_tx: u32,
    pub last_stage_tx: u32,
    pub last_k_tile: u32,
    pub scale_tensors: Vec<&'static str>,
    /// Those on the MMA's row side, and those on its column side.
    pub row_tensors: Vec<&'static str>,
    pub column_tensors: Vec<&'static str>,
    /// Whether scale factors come by tensor map.
    pub boxed: bool,
    /// Eight-byte units of one K tile of a row block of scale factors.
    pub scale_tile_units: u32,
    /// CTAs of an MMA: 1, or a pair.
    pub group: u32,
    pub pair: bool,
    /// Columns of the MMA that a CTA of a pair loads of each tensor it loads.
    pub pair_columns: u32,
    /// The warp that loads, in words.
    pub producer: String,
    /// CTAs that send parts of each other's tiles.
    pub sharers: u32,
    /// CTAs of a cluster.
    pub cluster: u32,
    pub several: bool,
    /// A bit for each CTA of a cluster, and for those at the same place of its pairs as the first.
    pub all_ctas: u32,
    pub even_ctas: u32,
    /// Which CTA of a cluster this is.
    pub places: Places,
    /// Who sends scale factors that several need, where they take turns.
    pub senders: Vec<Sender>,
    /// Whether the leader of a pair sends those of B1 and the peer those of B2, which lie so many bytes further on.
    pub sends_halves: bool,
    pub sfb_step: u32,
    /// Whether those of a shared tile are, so that a slot is free when all that share have let go of it.
    pub shares_scales: bool,
    /// Whether the cluster shares tiles, whose parts have so many rows and bytes, and the register of
    /// the first row.
    pub shares: bool,
    pub shared_rows: u32,
    pub shared_bytes: u32,
    pub shared_row: &'static str,
    /// The registers of the tile's place on the MMA's row side and column side.
    pub row_tile: &'static str,
    pub column_tile: &'static str,
    // MMA.
    pub operand_high: String,
    pub scaled: bool,
    /// Whether they come with each stage's operands: before A, where that waits for an earlier launch.
    pub scales_per_stage: bool,
    // Epilogue.
    pub scalars: Vec<String>,
    pub inputs: Inputs,
    pub c_policy: Option<Policy>,
    /// Columns that are finished together.
    pub chunk: u32,
    /// Loads of accumulators by which threads share lanes.
    pub lanes: Option<Lanes>,
    /// Rows that a thread has parts of, and the registers of the first one, from the CTA's, and of its first column.
    pub rows: Vec<HeldRow>,
    pub thread_row: &'static str,
    pub thread_column: &'static str,
    pub loads_first: bool,
    pub loads_second: bool,
    /// Whether the first product is read back from global memory.
    pub reads_product: bool,
    pub packed_registers: u32,
    pub early_registers: u32,
    pub early_chunks: Vec<EarlyChunk>,
    pub loop_chunks: bool,
    pub whole: Vec<GateStep>,
    /// D1 and D2 of a chunk, where they are kept.
    pub kept: Vec<Kept>,
    pub output: Output,
    pub output_name: &'static str,
    pub staging: Option<Staging>,
    pub needs_rows: bool,
    pub needs_columns: bool,
    /// Sizes of C along the accumulator's rows and columns.
    pub row_limit: String,
    pub column_limit: String,
    /// The register of the first row of C that a thread writes, among those of its matrix or group.
    pub first_row: &'static str,
    /// Whether its place among all rows of C is needed; where vectors along the accumulator's rows are read; whether
    /// those along N are read in one of several matrices.
    pub needs_c_row: bool,
    pub vector_row: &'static str,
    pub vector_columns: bool,
    /// The registers of the first row and column of C that a thread writes.
    pub c_row: &'static str,
    /// Where the gate's columns start in its vectors.
    pub vector_start: &'static str,
    /// Dimensions of C's tensor map, and its coordinates but the innermost.
    pub c_rank: u32,
    pub c_box_row: &'static str,
    pub c_box_column: &'static str,
    pub c_column: &'static str,
    /// Bytes of a row of the staging where lanes hold columns of C, else 0.
    pub staged_columns: u32,
    pub packing: Packing,
    pub words: Vec<Word>,
    pub units: Vec<Unit>,
    pub vectors: Vec<Vector>,
    pub c_hint_operand: &'static str,
    pub chunk_bytes: u64,
    pub stores: Vec<BoxStore>,
    pub product_vectors: Vec<ProductVector>,
    pub product_row_bytes: u64,
    pub product_chunk_bytes: u64,
    // Scale factors of C.
    pub block_scaled: bool,
    /// Whether the launch gives a scale of the whole C.
    pub tensor_scale: bool,
    /// Columns that share a scale factor, and the results of a chunk by those.
    pub scale_block: u32,
    pub scale_groups: Vec<Vec<u32>>,
    /// How they come about where a lane holds a column of C.
    pub scales_transposed: Option<TransposedScales>,
    /// Whether rows beyond M, which have scale factors, are among those of a thread.
    pub rows_padded: bool,
    /// The register of the first column of an item; nothing where `%column` counts from C's own.
    pub first_column: &'static str,
    /// 4-bit elements of a chunk where a lane holds a column of C, and whether rows of it can lie beyond M.
    pub nibbles: Vec<Nibbles>,
    pub nibbles_guarded: bool,
    /// Bytes of the scale factors of 128 rows, and rows with their padding.
    pub scale_row_bytes: u64,
    pub padded_rows: String,
    /// What a store of a chunk's scale factors is, and how far behind them pads follow.
    pub scale_store: &'static str,
    pub scale_pads: Vec<u32>,
    // Shares of K.
    pub partial_products: Vec<PartialProduct>,
    /// Registers for sums of other parts.
    pub addends: u32,
    /// Bytes of a CTA's slot.
    pub partial_bytes: u64,
    /// Bytes from one part's slot to the next one's.
    pub partial_stride: u64,
    /// Bytes of one column of a product in a slot, of all rows.
    pub partial_column_bytes: u32,
    /// Bytes of a chunk, and of a CTA's part of the columns, of a product's sums in shared memory.
    pub sum_chunk_bytes: u32,
    pub sum_part_bytes: u32,
    /// K tiles of the clusters that have one more than the others.
    pub longer_units: u32,
    // The gate's own kernel.
    pub gate_threads: u32,
    pub gate_items: u64,
    pub gate_row_items: u32,
}

/// A K loop of an item.
pub(crate) struct Pass {
    /// What labels end in.
    pub suffix: &'static str,
    /// The accumulator's first column.
    pub d: u32,
    /// The barrier on which the loop's end is announced.
    pub done: Place,
    pub operand_loads: Vec<OperandLoad>,
    pub scale_loads: Vec<ScaleLoad>,
    pub scale_boxes: Vec<ScaleBox>,
}

pub(crate) struct BarrierView {
    pub kind: BarrierKind,
    pub offsets: Vec<u32>,
    pub arrivals: u32,
}

/// An L2 cache policy as the 64-bit operand of `.L2::cache_hint`.
pub(crate) struct Policy {
    pub operand: &'static str,
    pub bits: &'static str,
    pub hint: Eviction,
}

/// A chunk of columns whose first product is taken early.
pub(crate) struct EarlyChunk {
    pub column: u32,
    pub early: Vec<GateStep>,
    /// D1, which is done when the gate has read product 1.
    pub kept: Vec<Kept>,
    pub late: Vec<GateStep>,
    /// D2.
    pub late_kept: Vec<Kept>,
}

/// The tensor maps that an entry takes.
pub(super) fn maps(p: &Plan, role: Role) -> Vec<TensorMapRecipe> {
    let needed = |operand| match role {
        Role::Fused => true,
        Role::Product => !matches!(operand, Operand::B2 | Operand::Sfb2 | Operand::C),
        Role::Gated => !matches!(operand, Operand::B1 | Operand::Sfb1),
        Role::Gate => false,
    };
    p.tensor_maps.iter().filter(|map| needed(map.operand)).copied().collect()
}
