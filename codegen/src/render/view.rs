//! What the templates print that is not in the plan as it stands: offsets, steps, register lists.

use super::{RenderError, gate_text};
use crate::config::{Accumulators, CtaGroup, Eviction};
use crate::gate::GateCode;
use crate::plan::{Plan, Staging};

/// The templates' second argument, beside the plan.
pub(super) struct View<'a> {
    pub p: &'a Plan,
    // Barriers, in bytes from the base of SMEM; 0 where the plan has no such barrier.
    pub full: u32,
    pub empty: u32,
    pub sf_full: u32,
    pub sf_empty: u32,
    /// Done when product 1 is complete: both, where there is no split tail.
    pub product1_done: u32,
    pub product2_done: u32,
    /// Done when both products are complete.
    pub all_done: u32,
    pub barriers: Vec<BarrierView>,
    // TMA.
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
    pub operand_loads: Vec<OperandLoad>,
    pub scale_loads: Vec<ScaleLoad>,
    pub scale_boxes: Vec<ScaleBox>,
    /// Eight-byte units of one K tile of a row block of scale factors.
    pub scale_tile_units: u32,
    /// CTAs of an MMA: 1, or a pair.
    pub group: u32,
    pub pair: bool,
    /// Rows of B that a CTA of a pair loads of each tensor it loads.
    pub pair_rows: u32,
    // MMA.
    pub scales_units: u32,
    pub scale_tile_step: u32,
    pub operand_high: String,
    pub scale_high: String,
    pub instruction: String,
    pub blocks: Vec<Block>,
    // Epilogue.
    pub scalars: Vec<String>,
    pub c_policy: Option<Policy>,
    pub packed_registers: u32,
    pub early_registers: u32,
    pub early_chunks: Vec<EarlyChunk>,
    pub loop_chunks: bool,
    pub whole: Vec<String>,
    pub pairs: Vec<Pair>,
    pub units: Vec<Unit>,
    pub vectors: Vec<Vector>,
    pub c_hint: &'static str,
    pub c_hint_operand: &'static str,
    pub chunk_bytes: u32,
    pub stores: Vec<BoxStore>,
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

/// A box of A, B1 or B2.
pub(super) struct OperandLoad {
    /// Bytes from the stage's start.
    pub offset: u32,
    /// The tensor map's register.
    pub source: &'static str,
    /// Bytes from the K tile's start.
    pub k_byte: u32,
    /// The register of the first row.
    pub row: &'static str,
    /// The policy's register, or nothing.
    pub policy: &'static str,
}

/// A row block of scale factors.
pub(super) struct ScaleLoad {
    /// Bytes from the slot's start.
    pub offset: u32,
    /// The register of the row block's address.
    pub source: String,
    pub policy: &'static str,
}

/// A box of scale factors: some K blocks of one row block.
pub(super) struct ScaleBox {
    /// Bytes from the slot's start.
    pub offset: u32,
    /// The tensor map's register.
    pub map: &'static str,
    /// The register of the row block.
    pub row: String,
    /// Eight-byte units from the K tile's start.
    pub inner: u32,
    pub policy: &'static str,
}

/// 64 elements of K: one MMA of each product.
pub(super) struct Block {
    pub index: u32,
    /// Whether K ends before this block in the last K tile; set on the first such block, from
    /// which the rest is skipped.
    pub beyond_k: bool,
    /// Descriptor steps from the stage's A, B1 or B2.
    pub a: u32,
    pub b: u32,
    pub sfa: Vec<ScaleCopy>,
    pub sfb1: Vec<ScaleCopy>,
    pub sfb2: Vec<ScaleCopy>,
    pub sfa_column: u32,
    pub sfb1_column: u32,
    pub sfb2_column: u32,
    /// The predicate that says whether D is added to.
    pub accumulate: &'static str,
}

/// 512 bytes of scale factors on their way from SMEM to TMEM.
pub(super) struct ScaleCopy {
    /// 16-byte units from the slot's start.
    pub smem_units: u32,
    pub column: u32,
}

/// A chunk of columns whose first product is taken early.
pub(super) struct EarlyChunk {
    pub column: u32,
    pub early: Vec<String>,
    pub late: Vec<String>,
}

/// Two results that one `cvt` packs.
pub(super) struct Pair {
    pub index: u32,
    pub low: u32,
    pub high: u32,
}

/// 16 bytes of a row on their way to the staging.
pub(super) struct Unit {
    pub byte: u32,
    pub registers: String,
}

/// One store to global memory.
pub(super) struct Vector {
    /// The first column in the chunk, where it must be compared with N.
    pub guard: Option<bool>,
    pub column: u32,
    pub byte: u32,
    pub predicate: &'static str,
    pub width: &'static str,
    pub registers: String,
    /// A single 16-bit element of a packed pair.
    pub half: bool,
    pub register: u32,
}

/// A TMA store of one box.
pub(super) struct BoxStore {
    pub column: u32,
    pub offset: u32,
    pub policy: &'static str,
}

impl<'a> View<'a> {
    pub fn new(p: &'a Plan, code: &GateCode) -> Result<Self, RenderError> {
        let barrier = |name: &str| p.barriers.iter().find(|b| b.name == name).map_or(0, |b| b.offset);
        let both = barrier("products_done");
        let (product1_done, product2_done) = (barrier("product1_done").max(both), barrier("product2_done"));
        let hint = |hint: Option<Eviction>, register: &'static str| hint.map_or("", |_| register);
        let policy_of = |operand, hint: Option<Eviction>| {
            hint.map(|hint| Policy { operand, bits: policy_bits(hint), hint })
        };
        let scale_tx = match p.scales.slot_tx {
            tx if p.sf_preload == crate::config::SfPreload::PerStage => (tx, p.scales.last_slot_tx),
            _ => (0, 0),
        };
        // The leader of a pair expects the loads of both.
        let group = p.cta_group.ctas();
        let chunk = p.epilogue.chunk;
        let early_chunks: Result<Vec<EarlyChunk>, RenderError> = (0..p.epilogue.early_chunks)
            .map(|i| {
                let column = i * chunk;
                let early = gate_text::early(code, column, chunk)?;
                Ok(EarlyChunk { column, early, late: gate_text::late(code, column, chunk)? })
            })
            .collect();
        Ok(View {
            p,
            full: barrier("full"),
            empty: barrier("empty"),
            sf_full: barrier("sf_full"),
            sf_empty: barrier("sf_empty"),
            product1_done,
            product2_done,
            all_done: both.max(product2_done),
            barriers: barriers(p),
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
            scale_boxes: scale_boxes(p, hint(p.cache.sf, "%policy_sf")),
            scale_tile_units: p.k_loop.blocks * 64,
            group,
            pair: group == 2,
            pair_rows: p.tile.n / 2,
            last_k_tile: p.k_loop.tiles - 1,
            operand_loads: operand_loads(p, hint(p.cache.a, "%policy_a"), hint(p.cache.b, "%policy_b")),
            scale_loads: scale_loads(p, hint(p.cache.sf, "%policy_sf")),
            scales_units: p.smem.scales / 16,
            scale_tile_step: p.k_loop.blocks * p.descriptors.scale_step,
            operand_high: format!("{:#010x}", p.descriptors.operand_high),
            scale_high: format!("{:#010x}", p.descriptors.scale_high),
            instruction: format!("{:#010x}", p.descriptors.instruction),
            blocks: (0..p.k_loop.blocks).map(|index| block(p, index)).collect(),
            scalars: code.whole.scalars.clone(),
            c_policy: policy_of("c", p.cache.c),
            packed_registers: chunk / 2,
            early_registers: p.epilogue.early_chunks * chunk,
            early_chunks: early_chunks?,
            loop_chunks: p.epilogue.early_chunks < p.epilogue.chunks,
            whole: gate_text::whole(code, chunk)?,
            pairs: (0..chunk / 2).map(|index| Pair { index, low: 2 * index, high: 2 * index + 1 }).collect(),
            units: (0..chunk / 8)
                .map(|unit| Unit { byte: 16 * unit, registers: packed(4 * unit, 4) })
                .collect(),
            vectors: vectors(p),
            c_hint: hint(p.cache.c, ".L2::cache_hint"),
            c_hint_operand: hint(p.cache.c, ", %policy_c"),
            chunk_bytes: chunk * p.problem.formats.c.bytes(),
            stores: p.epilogue.staging.map_or(Vec::new(), |s| stores(s, hint(p.cache.c, "%policy_c"))),
        })
    }
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

/// B before A: there is more of it to wait for.
fn operand_loads(p: &Plan, policy_a: &'static str, policy_b: &'static str) -> Vec<OperandLoad> {
    let span = p.k_loop.tile_bytes / p.smem.boxes;
    let load = |k_box: u32, offset, source, row, policy| OperandLoad {
        offset,
        source,
        k_byte: k_box * span,
        row,
        policy,
    };
    let mut loads = Vec::new();
    for k_box in 0..p.smem.boxes {
        let b1 = p.smem.a_bytes + k_box * 2 * p.smem.b_box_bytes;
        match (p.cta_group, p.accumulators) {
            // One MMA of 2N: its lower half of columns, B1, is the leader's, its upper half the peer's.
            (CtaGroup::Two, Accumulators::SideBySide) => {
                loads.push(load(k_box, b1, "%b_map", "%row_b", policy_b));
            }
            _ => {
                loads.push(load(k_box, b1, "%b1_map", "%row_b", policy_b));
                loads.push(load(k_box, b1 + p.smem.b_box_bytes, "%b2_map", "%row_b", policy_b));
            }
        }
        loads.push(load(k_box, k_box * p.smem.a_box_bytes, "%a_map", "%row_a", policy_a));
    }
    loads
}

fn scale_loads(p: &Plan, policy: &'static str) -> Vec<ScaleLoad> {
    if p.scales.box_blocks.is_some() {
        return Vec::new();
    }
    let mut loads = vec![ScaleLoad { offset: 0, source: "%sfa".to_owned(), policy }];
    for (tensor, start) in [("sfb1", p.smem.sfb1), ("sfb2", p.smem.sfb2)] {
        for block in 0..p.scales.b_row_blocks {
            let offset = start + block * p.scales.smem_row_block_bytes;
            loads.push(ScaleLoad { offset, source: format!("%{tensor}_{block}"), policy });
        }
    }
    loads
}

fn scale_boxes(p: &Plan, policy: &'static str) -> Vec<ScaleBox> {
    let Some(blocks) = p.scales.box_blocks else { return Vec::new() };
    let rows = (0..p.scales.b_row_blocks).map(|block| (block, format!("%row_block_{block}")));
    let sfb = rows.flat_map(|(block, row)| {
        let offset = block * p.scales.smem_row_block_bytes;
        [("%sfb1_map", p.smem.sfb1 + offset, row.clone()), ("%sfb2_map", p.smem.sfb2 + offset, row)]
    });
    let tensors = std::iter::once(("%sfa_map", 0, "%m_cta".to_owned())).chain(sfb);
    let boxes = p.scales.smem_row_block_bytes / (512 * blocks);
    tensors
        .flat_map(|(map, offset, row)| {
            (0..boxes).map(move |i| ScaleBox {
                offset: offset + i * 512 * blocks,
                map,
                row: row.clone(),
                inner: i * 64 * blocks,
                policy,
            })
        })
        .collect()
}

fn block(p: &Plan, index: u32) -> Block {
    let d = &p.descriptors;
    let here = index * d.scale_step;
    let copies = |start: u32, column: u32| -> Vec<ScaleCopy> {
        (0..p.scales.b_row_blocks)
            .map(|row| ScaleCopy {
                smem_units: start / 16 + row * d.scale_row_step + here,
                column: column + 4 * row,
            })
            .collect()
    };
    let (sfb1, sfb2) = (p.tmem.sfb1 + index * p.tmem.sfb_step, p.tmem.sfb2 + index * p.tmem.sfb_step);
    let sfa = p.tmem.sfa + index * p.tmem.sfa_step;
    Block {
        index,
        beyond_k: p.ragged_k() && index == p.k_loop.last_blocks,
        a: d.a_blocks[index as usize],
        b: d.b_blocks[index as usize],
        sfa: vec![ScaleCopy { smem_units: here, column: sfa }],
        sfb1: copies(p.smem.sfb1, sfb1),
        sfb2: copies(p.smem.sfb2, sfb2),
        sfa_column: sfa,
        sfb1_column: sfb1,
        sfb2_column: sfb2,
        accumulate: if index == 0 { "%accumulate" } else { "1" },
    }
}

/// `{ %packed4, %packed5, ... }` without the braces.
fn packed(first: u32, count: u32) -> String {
    let names: Vec<String> = (first..first + count).map(|i| format!("%packed{i}")).collect();
    names.join(", ")
}

fn vectors(p: &Plan) -> Vec<Vector> {
    let e = &p.epilogue;
    let element = p.problem.formats.c.bytes();
    let vector = e.vector.min(e.chunk);
    let (rows, columns) = (e.rows_ragged, e.columns_ragged);
    let predicate = match (rows, columns) {
        (_, true) => "@%in_range ",
        (true, false) => "@%row_in_range ",
        (false, false) => "",
    };
    let width = match vector {
        8 => ".v4",
        4 => ".v2",
        _ => "",
    };
    (0..e.chunk / vector)
        .map(|i| {
            let column = i * vector;
            let register = column / 2;
            let registers = match vector {
                1 if column.is_multiple_of(2) => "%low".to_owned(),
                1 => "%high".to_owned(),
                2 => packed(register, 1),
                _ => format!("{{ {} }}", packed(register, vector / 2)),
            };
            Vector {
                guard: columns.then_some(rows),
                column,
                byte: column * element,
                predicate,
                width,
                registers,
                half: vector == 1,
                register,
            }
        })
        .collect()
}

fn stores(staging: Staging, policy: &'static str) -> Vec<BoxStore> {
    (0..staging.boxes)
        .map(|i| BoxStore { column: i * staging.columns, offset: i * staging.box_bytes, policy })
        .collect()
}
