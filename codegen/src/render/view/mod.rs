//! The numbers and register lists that templates print.
//!
//! * `mod.rs`: [`View`], one for each entry of a module.
//! * `cluster.rs`: which CTA of a cluster does what.
//! * `producer.rs`, `mma.rs`, `epilogue.rs`: the parts of it that a role needs.
//! * `block_scale.rs`: scale factors of C across lanes.
//! * `groups.rs`: batches and groups of rows.
//! * `inputs.rs`: the gate's vectors, for the epilogue.
//! * `lanes.rs`: which rows and columns a thread has, where threads share the lanes of accumulators.
//! * `products.rs`: D1 and D2, what is kept of the products.

mod block_scale;
mod cluster;
mod epilogue;
mod groups;
mod inputs;
mod lanes;
mod mma;
mod producer;
mod products;

use super::RenderError;
use super::gate_text;
use crate::arch::Arch;
use crate::config::{Accumulators, Eviction, Raster, Schedule, SfPreload, Strategy};
use crate::gate::{Expr, Fragment, GateCode, Product};
use crate::plan::{Operand, Output, Plan, Staging, TensorMapRecipe};
use crate::problem::Groups;
use block_scale::{Nibbles, TransposedScales};
use cluster::{Places, Sender};
use epilogue::{BoxStore, Packing, PartialProduct, ProductVector, Ragged, Unit, Vector, Word};
use groups::GroupsView;
use inputs::{GateStep, Inputs};
pub(super) use lanes::Held;
use lanes::{HeldRow, Lanes};
use mma::Block;
use producer::{OperandLoad, Policies, ScaleBox, ScaleLoad};
use products::{Kept, KeptProducts};

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
    /// Whether the CTAs of a cluster share a tile's K.
    pub cluster_parts: bool,
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
    /// The register of the accumulators' first column.
    pub d: &'static str,
    pub scales_units: u32,
    pub scale_tile_step: u32,
    pub operand_high: String,
    pub scale_high: String,
    /// `.kind::...` with the size of its scale vectors.
    pub mma: String,
    pub scaled: bool,
    pub blocks: Vec<Block>,
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
    /// D1, which is done when the gate has read product 1.
    pub kept: Vec<Kept>,
    pub late: Vec<GateStep>,
    /// D2.
    pub late_kept: Vec<Kept>,
}

impl<'a> View<'a> {
    pub fn new(p: &'a Plan, gate: &Expr, code: &GateCode, role: Role) -> Result<Self, RenderError> {
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
        let packing = if raw { Packing::PRODUCT } else { Packing::of(p.problem.formats.c) };
        let transposed = p.swap_ab && role != Role::Gate;
        let (cluster_ctas, shared) = (p.cluster_ctas(), p.multicast.ctas());
        let rows_shared = cluster::shared_sides(p)[0];
        let shared_rows = match (rows_shared, p.accumulators) {
            (true, _) => p.cta_rows,
            // Of a pair, each CTA loads its half of the columns; side by side, B1 or B2 whole.
            (false, Accumulators::Separate) => p.mma_columns / group,
            (false, Accumulators::SideBySide) => p.mma_columns,
        };
        let chunk = match role {
            // All that the largest blocks of C with scale factors have.
            Role::Gate if p.problem.formats.c.scales().is_some() => 32,
            Role::Gate if p.problem.shape.n.is_multiple_of(8) => 8,
            Role::Gate => 4,
            _ => p.epilogue.chunk,
        };
        let held = match role {
            Role::Gate => Held::Row,
            _ => Held::new(p.epilogue.load, chunk, p.swap_ab),
        };
        let lanes = held.lanes();
        let padded_rows = p.problem.shape.m.next_multiple_of(128);
        // The gate's own kernel has rows for the pads of scale factors only.
        let gate_pads = p.problem.formats.c.scales().is_some() && padded_rows != p.problem.shape.m;
        let ragged = match role {
            Role::Gate => Ragged { rows: gate_pads, columns: !p.problem.shape.n.is_multiple_of(chunk) },
            _ => Ragged { rows: p.epilogue.rows_ragged, columns: p.epilogue.columns_ragged },
        };
        let reads_product = role == Role::Gated;
        let gated = !raw;
        let scales = p.problem.formats.c.scales().filter(|_| gated);
        let scale_block = scales.map_or(chunk, |scales| scales.block);
        let scale_columns = scales.map_or(0, |scales| scales.columns(p.problem.shape.n));
        // Behind the scale factors of the row's last chunk.
        let pads = match scales {
            Some(_) if !transposed => {
                chunk / scale_block..chunk / scale_block + scale_columns.next_multiple_of(4) - scale_columns
            }
            _ => 0..0,
        };
        let nibbles = transposed && output.element_bits == 4;
        let staging = output.staging.filter(|_| gated);
        let shape = p.problem.shape;
        let inputs = Inputs::new(if gated { &code.whole.vectors } else { &[] }, transposed);
        let several = shape.groups != Groups::One;
        let m_limit = if shape.groups.by_rows() { "%group_rows".to_owned() } else { shape.m.to_string() };
        let (row_inputs, column_inputs) = (!inputs.rows.is_empty(), !inputs.columns.is_empty());
        let kept = KeptProducts::new(p, gate, code.whole.arch, chunk, ragged, held, role != Role::Gate);
        let kept = Some(kept).filter(|_| gated && p.epilogue.kept.is_some());
        // A part of the gate, and what is kept of the products that it is the last to read.
        let steps = |part: Option<&Fragment>, mut texts: Vec<String>, base: u32, last: &[Product]| {
            let mut fragments: Vec<&Fragment> = part.into_iter().collect();
            if let Some(kept) = &kept {
                kept.scale(&mut texts, last)?;
                fragments.extend(kept.fragments(last));
            }
            fragments.retain(|_| !transposed);
            Ok::<_, RenderError>(inputs::steps(&fragments, texts, base, ragged, shape, held))
        };
        let stores = |product: Product, base: u32| -> Vec<Kept> {
            kept.as_ref().and_then(|kept| kept.stores(product, base)).into_iter().collect()
        };
        let early_chunks: Result<Vec<EarlyChunk>, RenderError> = (0..p.epilogue.early_chunks)
            .map(|i| {
                let column = i * chunk;
                // Where buffers share columns, the pointers move along.
                let base = if p.tmem.shared > 0 { 0 } else { column };
                let split = code.split.as_ref();
                let early = gate_text::early(code, column, chunk, held)?;
                let late = gate_text::late(code, column, chunk, held)?;
                let late_code = split.map_or(&code.whole, |split| &split.late);
                Ok(EarlyChunk {
                    column,
                    early: steps(split.map(|split| &split.early), early, base, &[Product::First])?,
                    kept: stores(Product::First, base),
                    // By then the pointers have come this far themselves.
                    late: steps(Some(late_code), late, 0, &[Product::Second])?,
                    late_kept: stores(Product::Second, 0),
                })
            })
            .collect();
        let both = [Product::First, Product::Second];
        let whole = match gated {
            true => steps(Some(&code.whole), gate_text::whole(code, chunk, held)?, 0, &both)?,
            false => Vec::new(),
        };
        let kept_chunk: Vec<Kept> = both.into_iter().flat_map(|product| stores(product, 0)).collect();
        let keeps = !kept_chunk.is_empty();
        let row_items = p.problem.shape.n.div_ceil(chunk);
        let partial_bytes = 4
            * u64::from(p.cta_rows)
            * u64::from(p.mma_columns)
            * u64::from(if p.strategy.is_fused() { 2u32 } else { 1 });
        let scale_tensors: Vec<&'static str> = match (p.scales.box_blocks, p.strategy, role) {
            _ if p.kind.scales_per_mma() == 0 => Vec::new(),
            (Some(_), ..) => Vec::new(),
            (_, Strategy::Interleaved | Strategy::Sequential, _) => vec!["sfa", "sfb1", "sfb2"],
            (_, _, Role::Gated) => vec!["sfa", "sfb2"],
            _ => vec!["sfa", "sfb1"],
        };
        let passes = producer::passes(p, role, policies, [product1_done, all_done]);
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
            cluster_parts: p.work.cluster_parts > 1,
            dynamic: p.work.schedule == Schedule::Dynamic,
            buffered: p.buffers > 1,
            overlapped: p.tmem.shared > 0,
            shared_chunks: p.tmem.shared / p.epilogue.chunk,
            main_count: match p.k_loop.tail_tiles {
                0 => k_count.clone(),
                _ => p.k_loop.main_tiles.to_string(),
            },
            k_count,
            groups: GroupsView::new(p),
            raster_group: raster_group(p),
            raster_band: u64::from(raster_group(p)) * u64::from(p.work.n_items),
            senders: cluster::senders(&passes),
            sends_halves: passes
                .iter()
                .flat_map(|pass| &pass.scale_boxes)
                .any(|load| load.sent.as_ref().is_some_and(|sent| sent.half)),
            sfb_step: p.smem.sfb2 - p.smem.sfb1,
            passes,
            full: barrier("full"),
            empty: barrier("empty"),
            sf_full: barrier("sf_full"),
            sf_empty: barrier("sf_empty"),
            sf_ring: barrier("sf_empty") > 0,
            product1_done,
            product2_done,
            all_done,
            accumulators_free: barrier("accumulators_free").max(barrier("shared_free")),
            answer_full: barrier("answer_full"),
            answer_read: barrier("answer_read"),
            barriers: barriers(p),
            maps: maps(p, role),
            load_policies: [("a", p.cache.a), ("b", p.cache.b), ("sf", p.cache.sf)]
                .into_iter()
                .filter_map(|(operand, hint)| policy_of(operand, hint))
                .collect(),
            column_blocks: (0..p.mma_columns.div_ceil(128)).collect(),
            stage_tx: group * (p.smem.stage_tx + scale_tx.0),
            last_stage_tx: group * (p.smem.stage_tx + scale_tx.1),
            slot_tx: group * p.scales.slot_tx,
            last_slot_tx: group * p.scales.last_slot_tx,
            ragged_loads: p.scales.slot_tx != p.scales.last_slot_tx,
            row_tensors: scale_tensors.iter().copied().filter(|name| (*name == "sfa") != p.swap_ab).collect(),
            column_tensors: scale_tensors
                .iter()
                .copied()
                .filter(|name| (*name == "sfa") == p.swap_ab)
                .collect(),
            scale_tensors,
            boxed: p.scales.box_blocks.is_some(),
            scale_tile_units: p.scales.tile_bytes / 8,
            group,
            pair: group == 2,
            pair_columns: p.mma_columns / 2,
            cluster: cluster_ctas,
            several: cluster_ctas > 1,
            all_ctas: (1 << cluster_ctas) - 1,
            even_ctas: 0x5555 & ((1 << cluster_ctas) - 1),
            places: Places::new(p),
            shares_scales: p.scales.shared && shared > 1,
            shares: shared > 1,
            shared_rows: shared_rows / shared,
            shared_bytes: shared_rows / shared * (p.k_loop.tile_bytes / p.smem.boxes),
            shared_row: if rows_shared { "%row_r" } else { "%row_c" },
            row_tile: if p.swap_ab { "%n_tile" } else { "%m_tile" },
            column_tile: if p.swap_ab { "%m_tile" } else { "%n_tile" },
            last_k_tile: p.k_loop.tiles - 1,
            d: if p.buffers > 1 { "%d" } else { "%tmem" },
            scales_units: p.smem.scales / 16,
            scale_tile_step: p.scales.tile_bytes / 16,
            operand_high: format!("{:#010x}", p.descriptors.operand_high),
            scale_high: format!("{:#010x}", p.descriptors.scale_high),
            mma: match p.kind.scales_per_mma() {
                0 => p.kind.to_string(),
                // Family targets take the younger spelling only.
                scales => match p.arch {
                    Arch::Sm100f => format!("{}.block_scale.block{}", p.kind, p.kind.mma_k() / scales),
                    Arch::Sm100a | Arch::Sm103a => format!("{}.block_scale.scale_vec::{scales}X", p.kind),
                },
            },
            scaled: p.kind.scales_per_mma() > 0,
            blocks: (0..p.k_loop.blocks).map(|index| mma::block(p, index)).collect(),
            scalars: if gated { code.whole.scalars.clone() } else { Vec::new() },
            c_policy: policy_of("c", p.cache.c).filter(|_| gated),
            chunk,
            lanes,
            rows: held.rows(),
            thread_row: if lanes.is_some() { "%thread_row" } else { "%thread" },
            thread_column: if lanes.is_some() { "%thread_column" } else { "%column0" },
            loads_first: !reads_product,
            loads_second: !raw,
            reads_product,
            packed_registers: if nibbles { 0 } else { chunk / packing.per_word },
            early_registers: p.epilogue.early_chunks * chunk,
            early_chunks: early_chunks?,
            loop_chunks: p.epilogue.early_chunks < p.epilogue.chunks,
            whole,
            kept: kept_chunk,
            inputs,
            output,
            output_name,
            staging,
            needs_rows: staging.is_none() || reads_product || row_inputs || keeps || scales.is_some(),
            needs_columns: (ragged.columns
                && (staging.is_none()
                    || reads_product
                    || column_inputs
                    || keeps
                    || scales.is_some() && !transposed))
                || pads.clone().next().is_some(),
            row_limit: match (p.swap_ab, raw) {
                (false, _) => m_limit.clone(),
                (true, false) => shape.n.to_string(),
                // The gate's kernel reads whole vectors.
                (true, true) => shape.n.next_multiple_of(4).to_string(),
            },
            column_limit: match p.swap_ab {
                true => m_limit,
                // Whole vectors, again, though no thread has all of one.
                false if raw && lanes.is_some() => shape.n.next_multiple_of(4).to_string(),
                false => shape.n.to_string(),
            },
            c_row: match (several, p.swap_ab) {
                (true, _) => "%c_row",
                (false, true) => "%column0",
                (false, false) => "%row",
            },
            first_row: if p.swap_ab { "%column0" } else { "%row" },
            vector_start: match (several, role) {
                (true, _) => "%vector_column",
                (false, Role::Gate) => "%column",
                (false, _) if lanes.is_some() => "%thread_column",
                (false, _) => "%column0",
            },
            c_rank: GroupsView::rank(several.then_some(shape.groups.count())),
            c_box_row: if several { "%row0, %group" } else { "%row0" },
            c_box_column: if several { "%column0, %group" } else { "%column0" },
            vector_row: match (several, transposed) {
                _ if role == Role::Gate => "%row",
                (false, _) => "%row",
                (true, false) => "%c_row",
                (true, true) => "%vector_column",
            },
            needs_c_row: several
                && (staging.is_none() || reads_product || keeps || (row_inputs && !transposed)),
            vector_columns: several && (column_inputs || (transposed && row_inputs)),
            c_column: match p.swap_ab {
                true => "%row",
                false if lanes.is_some() => "%thread_column",
                false => "%column0",
            },
            staged_columns: staging.filter(|_| transposed).map_or(0, |staging| staging.span),
            words: if nibbles { Vec::new() } else { packing.words(chunk) },
            units: epilogue::units(packing, chunk),
            packing,
            vectors: match held {
                Held::Row => epilogue::vectors(packing, &output, chunk, ragged),
                Held::Lanes(lanes) => lanes.vectors(packing, &output, ragged),
                Held::Column if nibbles => Vec::new(),
                Held::Column => {
                    let span = staging.map_or(0, |staging| staging.span);
                    epilogue::transposed::vectors(packing, &output, chunk, ragged, span)
                }
            },
            c_hint_operand: if gated { hint(p.cache.c, ", %policy_c") } else { "" },
            chunk_bytes: match transposed {
                false => u64::from(chunk * output.element_bits / 8),
                true => u64::from(chunk) * output.row_bytes,
            },
            stores: staging.map_or(Vec::new(), |s| epilogue::stores(s, hint(p.cache.c, "%policy_c"))),
            product_vectors: match (held, p.epilogue.product) {
                (Held::Column, Some(product)) => epilogue::transposed::product_loads(&product, chunk, ragged),
                (Held::Lanes(lanes), Some(product)) => lanes.product_loads(&product, ragged),
                _ => epilogue::product_loads(chunk, ragged),
            },
            product_row_bytes: p.epilogue.product.map_or(0, |product| product.row_bytes),
            product_chunk_bytes: match p.epilogue.product.filter(|_| transposed) {
                None => (4 * chunk).into(),
                Some(product) => u64::from(chunk) * product.row_bytes,
            },
            block_scaled: scales.is_some(),
            tensor_scale: scales.is_some() && p.problem.formats.c.has_tensor_scale(),
            scale_block,
            scale_groups: scale_groups(chunk, scale_block),
            scale_row_bytes: scales.map_or(0, |scales| scales.blocked_bytes(128, p.problem.shape.n)),
            scales_transposed: scales
                .filter(|_| transposed)
                .map(|scales| TransposedScales::new(p, scales, chunk)),
            rows_padded: ragged.rows,
            first_column: if role == Role::Gate { "" } else { "%column0" },
            nibbles: if nibbles { block_scale::nibbles(&output, chunk, ragged) } else { Vec::new() },
            nibbles_guarded: ragged.columns && staging.is_none(),
            padded_rows: match shape.groups.by_rows() {
                true => "%padded_rows".to_owned(),
                false => shape.m.next_multiple_of(128).to_string(),
            },
            scale_store: if chunk / scale_block == 2 { "b16" } else { "b8" },
            scale_pads: pads.collect(),
            partial_products: epilogue::partial_products(p, role),
            partial_bytes,
            partial_stride: partial_bytes * u64::from(cluster_ctas),
            partial_column_bytes: 4 * p.cta_rows,
            sum_chunk_bytes: 4 * p.cta_rows * chunk,
            sum_part_bytes: 4 * p.cta_rows * p.epilogue.columns,
            longer_units: p.work.longer * (p.work.share + 1),
            gate_threads: GATE_THREADS,
            gate_items: (if gate_pads { u64::from(padded_rows) } else { p.problem.shape.rows() })
                * u64::from(row_items),
            gate_row_items: row_items,
        })
    }
}

/// The results of a chunk, by the scale factor they share.
fn scale_groups(chunk: u32, block: u32) -> Vec<Vec<u32>> {
    (0..chunk / block).map(|group| (group * block..(group + 1) * block).collect()).collect()
}

/// Rows of tiles in a band of the swizzled raster: no more than there are.
fn raster_group(p: &Plan) -> u32 {
    match p.work.raster {
        Raster::Swizzled(group) => group.min(p.work.m_items),
        Raster::AlongM | Raster::AlongN => p.work.m_items,
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
