//! The numbers and register lists that templates print.
//!
//! * `mod.rs`: [`View`], one for each entry of a module.
//! * `producer.rs`, `mma.rs`, `epilogue.rs`: the parts of it that a role needs.
//! * `inputs.rs`: the gate's vectors, for the epilogue.

mod epilogue;
mod inputs;
mod mma;
mod producer;

use super::RenderError;
use super::gate_text;
use crate::config::{Eviction, Raster, Schedule, SfPreload, Strategy};
use crate::gate::GateCode;
use crate::plan::{Operand, Output, Plan, Staging, TensorMapRecipe};
use epilogue::{BoxStore, Pair, PartialProduct, ProductVector, Ragged, Unit, Vector};
use inputs::{GateStep, Inputs};
use mma::Block;
use producer::{OperandLoad, Policies, ScaleBox, ScaleLoad};

/// Threads of a CTA of the gate's own kernel.
pub(super) const GATE_THREADS: u32 = 256;

/// What an entry computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Both products and the gate.
    Fused,
    /// One product, to fp32.
    Product,
    /// The second product, and the gate with the first one read back.
    Gated,
    /// The gate alone.
    Gate,
}

/// The templates' second argument, beside the plan.
pub(super) struct View<'a> {
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
    pub dynamic: bool,
    /// Whether there are two buffers of accumulators.
    pub buffered: bool,
    /// K tiles of an item: a number or a register.
    pub k_count: String,
    /// The same without the split tail.
    pub main_count: String,
    pub raster_group: u32,
    /// Tiles of a band of the swizzled raster.
    pub raster_band: u64,
    pub passes: Vec<Pass>,
    // Barriers, in bytes from the base of SMEM; 0 where the plan has no such barrier.
    pub full: u32,
    pub empty: u32,
    pub sf_full: u32,
    pub sf_empty: u32,
    /// Whether slots of scale factors are given back, on barriers of their own.
    pub sf_ring: bool,
    /// Done when product 1 is complete: both, where they end together.
    pub product1_done: u32,
    pub product2_done: u32,
    /// Done when both products are complete.
    pub all_done: u32,
    pub accumulators_free: u32,
    pub answer_full: u32,
    pub answer_read: u32,
    pub barriers: Vec<BarrierView>,
    // TMA.
    pub maps: Vec<TensorMapRecipe>,
    pub load_policies: Vec<Policy>,
    /// Bytes that one K tile of scale factors brings, as the barrier counts them.
    pub slot_tx: u32,
    pub last_slot_tx: u32,
    /// Whether the last K tile's loads are shorter than the others'.
    pub ragged_loads: bool,
    pub row_blocks: Vec<u32>,
    pub last_row_block: u32,
    pub stage_tx: u32,
    pub last_stage_tx: u32,
    pub last_k_tile: u32,
    pub scale_tensors: Vec<&'static str>,
    pub sfb_tensors: Vec<&'static str>,
    /// Eight-byte units of one K tile of a row block of scale factors.
    pub scale_tile_units: u32,
    /// CTAs of an MMA: 1, or a pair.
    pub group: u32,
    pub pair: bool,
    /// Rows of B that a CTA of a pair loads of each tensor it loads.
    pub pair_rows: u32,
    // MMA.
    /// The register of the accumulators' first column.
    pub d: &'static str,
    pub scales_units: u32,
    pub scale_tile_step: u32,
    pub operand_high: String,
    pub scale_high: String,
    pub instruction: String,
    pub blocks: Vec<Block>,
    // Epilogue.
    pub scalars: Vec<String>,
    pub inputs: Inputs,
    pub c_policy: Option<Policy>,
    /// Columns that are finished together.
    pub chunk: u32,
    pub loads_first: bool,
    pub loads_second: bool,
    /// Whether the first product is read back from global memory.
    pub reads_product: bool,
    pub packed_registers: u32,
    pub early_registers: u32,
    pub early_chunks: Vec<EarlyChunk>,
    pub loop_chunks: bool,
    pub whole: Vec<GateStep>,
    pub output: Output,
    pub output_name: &'static str,
    pub staging: Option<Staging>,
    pub needs_rows: bool,
    pub needs_columns: bool,
    pub pairs: Vec<Pair>,
    pub units: Vec<Unit>,
    pub vectors: Vec<Vector>,
    pub c_hint: &'static str,
    pub c_hint_operand: &'static str,
    pub chunk_bytes: u32,
    pub stores: Vec<BoxStore>,
    pub product_vectors: Vec<ProductVector>,
    pub product_row_bytes: u64,
    pub product_chunk_bytes: u32,
    // Shares of K.
    pub partial_products: Vec<PartialProduct>,
    /// Bytes of a CTA's slot.
    pub partial_bytes: u64,
    /// Bytes from one part's slot to the next one's.
    pub partial_stride: u64,
    /// Bytes of one column of a product in a slot, of all rows.
    pub partial_column_bytes: u32,
    /// K tiles of the clusters that have one more than the others.
    pub longer_units: u32,
    // The gate's own kernel.
    pub gate_threads: u32,
    pub gate_items: u64,
    pub gate_row_items: u32,
}

/// A K loop of an item.
pub(super) struct Pass {
    /// What labels end in.
    pub suffix: &'static str,
    /// The accumulator's first column.
    pub d: u32,
    /// The barrier on which the loop's end is announced.
    pub done: u32,
    pub operand_loads: Vec<OperandLoad>,
    pub scale_loads: Vec<ScaleLoad>,
    pub scale_boxes: Vec<ScaleBox>,
}

pub(super) struct BarrierView {
    pub name: &'static str,
    pub offsets: Vec<u32>,
    pub arrivals: u32,
}

/// An L2 cache policy as the 64-bit operand of `.L2::cache_hint`.
pub(super) struct Policy {
    pub operand: &'static str,
    pub bits: &'static str,
    pub hint: Eviction,
}

/// A chunk of columns whose first product is taken early.
pub(super) struct EarlyChunk {
    pub column: u32,
    pub early: Vec<GateStep>,
    pub late: Vec<GateStep>,
}

impl<'a> View<'a> {
    pub fn new(p: &'a Plan, code: &GateCode, role: Role) -> Result<Self, RenderError> {
        let barrier = |name: &str| p.barriers.iter().find(|b| b.name == name).map_or(0, |b| b.offset);
        let both = barrier("products_done");
        let (product1_done, product2_done) = (barrier("product1_done").max(both), barrier("product2_done"));
        let all_done = both.max(product2_done);
        let hint = |hint: Option<Eviction>, register: &'static str| hint.map_or("", |_| register);
        let policy_of = |operand, hint: Option<Eviction>| {
            hint.map(|hint| Policy { operand, bits: policy_bits(hint), hint })
        };
        let scale_tx = match p.scales.slot_tx {
            tx if p.sf_preload == SfPreload::PerStage => (tx, p.scales.last_slot_tx),
            _ => (0, 0),
        };
        let policies = Policies {
            a: hint(p.cache.a, "%policy_a"),
            b: hint(p.cache.b, "%policy_b"),
            sf: hint(p.cache.sf, "%policy_sf"),
        };
        // The leader of a pair expects the loads of both.
        let group = p.cta_group.ctas();
        let raw = role == Role::Product;
        let (output, output_name) = match p.epilogue.product {
            Some(product) if raw => (product, "r1"),
            _ => (p.epilogue.c, "c"),
        };
        let chunk = match role {
            Role::Gate if p.problem.shape.n.is_multiple_of(8) => 8,
            Role::Gate => 4,
            _ => p.epilogue.chunk,
        };
        let ragged = match role {
            Role::Gate => Ragged { rows: false, columns: !p.problem.shape.n.is_multiple_of(chunk) },
            _ => Ragged { rows: p.epilogue.rows_ragged, columns: p.epilogue.columns_ragged },
        };
        let reads_product = role == Role::Gated;
        let gated = !raw;
        let staging = output.staging.filter(|_| gated);
        let shape = p.problem.shape;
        let inputs = Inputs::new(if gated { &code.whole.vectors } else { &[] });
        let (row_inputs, column_inputs) = (!inputs.rows.is_empty(), !inputs.columns.is_empty());
        let early_chunks: Result<Vec<EarlyChunk>, RenderError> = (0..p.epilogue.early_chunks)
            .map(|i| {
                let column = i * chunk;
                let split = code.split.as_ref();
                let early = gate_text::early(code, column, chunk)?;
                let late = gate_text::late(code, column, chunk)?;
                Ok(EarlyChunk {
                    column,
                    early: inputs::steps(split.map(|split| &split.early), early, column, ragged, shape),
                    // By then the pointers have come this far themselves.
                    late: inputs::steps(
                        Some(split.map_or(&code.whole, |split| &split.late)),
                        late,
                        0,
                        ragged,
                        shape,
                    ),
                })
            })
            .collect();
        let row_items = p.problem.shape.n.div_ceil(chunk);
        let partial_bytes = 4
            * u64::from(p.cta_rows)
            * u64::from(p.tile.n)
            * u64::from(if p.strategy.is_fused() { 2u32 } else { 1 });
        let scale_tensors: Vec<&'static str> = match (p.scales.box_blocks, p.strategy, role) {
            (Some(_), ..) => Vec::new(),
            (_, Strategy::Interleaved | Strategy::Sequential, _) => vec!["sfa", "sfb1", "sfb2"],
            (_, _, Role::Gated) => vec!["sfa", "sfb2"],
            _ => vec!["sfa", "sfb1"],
        };
        let k_count = if p.work.has_ranges() { "%k_count".to_owned() } else { p.k_loop.tiles.to_string() };
        Ok(View {
            p,
            about: match role {
                Role::Fused => "Both products and the gate.",
                Role::Product => "One product, to fp32.",
                Role::Gated => "The second product, and the gate with the first one read back.",
                Role::Gate => "The gate.",
            },
            epilogue_does: if raw { "store" } else { "gate, round, store" },
            b_names: match (p.strategy, role) {
                (Strategy::Interleaved, _) => "B1, B2",
                (Strategy::Sequential, _) => "B1, then B2",
                _ => "B",
            },
            looped: p.work.is_looped(),
            ranges: p.work.has_ranges(),
            dynamic: p.work.schedule == Schedule::Dynamic,
            buffered: p.buffers > 1,
            main_count: match p.k_loop.tail_tiles {
                0 => k_count.clone(),
                _ => p.k_loop.main_tiles.to_string(),
            },
            k_count,
            raster_group: raster_group(p),
            raster_band: u64::from(raster_group(p)) * u64::from(p.n_tiles),
            passes: producer::passes(p, role, policies, [product1_done, all_done]),
            full: barrier("full"),
            empty: barrier("empty"),
            sf_full: barrier("sf_full"),
            sf_empty: barrier("sf_empty"),
            sf_ring: barrier("sf_empty") > 0,
            product1_done,
            product2_done,
            all_done,
            accumulators_free: barrier("accumulators_free"),
            answer_full: barrier("answer_full"),
            answer_read: barrier("answer_read"),
            barriers: barriers(p),
            maps: maps(p, role),
            load_policies: [("a", p.cache.a), ("b", p.cache.b), ("sf", p.cache.sf)]
                .into_iter()
                .filter_map(|(operand, hint)| policy_of(operand, hint))
                .collect(),
            row_blocks: (0..p.scales.b_row_blocks).collect(),
            last_row_block: p.scales.b_row_blocks_total - 1,
            stage_tx: group * (p.smem.stage_bytes + scale_tx.0),
            last_stage_tx: group * (p.smem.stage_bytes + scale_tx.1),
            slot_tx: group * p.scales.slot_tx,
            last_slot_tx: group * p.scales.last_slot_tx,
            ragged_loads: p.scales.slot_tx != p.scales.last_slot_tx,
            sfb_tensors: scale_tensors.iter().copied().skip(1).collect(),
            scale_tensors,
            scale_tile_units: p.k_loop.blocks * 64,
            group,
            pair: group == 2,
            pair_rows: p.tile.n / 2,
            last_k_tile: p.k_loop.tiles - 1,
            d: if p.buffers > 1 { "%d" } else { "%tmem" },
            scales_units: p.smem.scales / 16,
            scale_tile_step: p.k_loop.blocks * p.descriptors.scale_step,
            operand_high: format!("{:#010x}", p.descriptors.operand_high),
            scale_high: format!("{:#010x}", p.descriptors.scale_high),
            instruction: format!("{:#010x}", p.descriptors.instruction),
            blocks: (0..p.k_loop.blocks).map(|index| mma::block(p, index)).collect(),
            scalars: if gated { code.whole.scalars.clone() } else { Vec::new() },
            c_policy: policy_of("c", p.cache.c).filter(|_| gated),
            chunk,
            loads_first: !reads_product,
            loads_second: !raw,
            reads_product,
            packed_registers: chunk / 2,
            early_registers: p.epilogue.early_chunks * chunk,
            early_chunks: early_chunks?,
            loop_chunks: p.epilogue.early_chunks < p.epilogue.chunks,
            whole: match gated {
                true => inputs::steps(Some(&code.whole), gate_text::whole(code, chunk)?, 0, ragged, shape),
                false => Vec::new(),
            },
            inputs,
            output,
            output_name,
            staging,
            needs_rows: staging.is_none() || reads_product || row_inputs,
            needs_columns: ragged.columns && (staging.is_none() || reads_product || column_inputs),
            pairs: if gated { epilogue::pairs(chunk) } else { Vec::new() },
            units: epilogue::units(chunk),
            vectors: match raw {
                true => epilogue::product_stores(chunk, ragged),
                false => epilogue::vectors(&output, chunk, ragged),
            },
            c_hint: if gated { hint(p.cache.c, ".L2::cache_hint") } else { "" },
            c_hint_operand: if gated { hint(p.cache.c, ", %policy_c") } else { "" },
            chunk_bytes: chunk * output.element_bytes,
            stores: staging.map_or(Vec::new(), |s| epilogue::stores(s, hint(p.cache.c, "%policy_c"))),
            product_vectors: epilogue::product_loads(chunk, ragged),
            product_row_bytes: p.epilogue.product.map_or(0, |product| product.row_bytes),
            product_chunk_bytes: 4 * chunk,
            partial_products: epilogue::partial_products(p, role),
            partial_bytes,
            partial_stride: partial_bytes * u64::from(group),
            partial_column_bytes: 4 * p.cta_rows,
            longer_units: p.work.longer * (p.work.share + 1),
            gate_threads: GATE_THREADS,
            gate_items: u64::from(p.problem.shape.m) * u64::from(row_items),
            gate_row_items: row_items,
        })
    }
}

/// Rows of tiles in a band of the swizzled raster: no more than there are.
fn raster_group(p: &Plan) -> u32 {
    match p.work.raster {
        Raster::Swizzled(group) => group.min(p.m_tiles),
        Raster::AlongM | Raster::AlongN => p.m_tiles,
    }
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

/// The 64-bit policies that `createpolicy.fractional.L2::*.b64 policy, 1.0` makes, as constants
/// (CUTLASS, `cute/arch/copy_sm90_desc.hpp`, `TMA::CacheHintSm90`).
fn policy_bits(hint: Eviction) -> &'static str {
    match hint {
        Eviction::Normal => "0x1000000000000000",
        Eviction::First => "0x12f0000000000000",
        Eviction::Last => "0x14f0000000000000",
    }
}

fn barriers(p: &Plan) -> Vec<BarrierView> {
    let view = |b: &crate::plan::Barrier| BarrierView {
        name: b.name,
        offsets: (0..b.count).map(|i| b.offset + 8 * i).collect(),
        arrivals: b.arrivals,
    };
    p.barriers.iter().map(view).collect()
}
