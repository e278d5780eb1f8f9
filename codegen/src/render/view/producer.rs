//! What the TMA warp loads.

use super::cluster::{Places, Sender, Sent, senders, sends_halves, shared_sides};
use super::groups::GroupsView;
use super::policy::Policy;
use super::setup::{BarrierView, Place};
use super::{Role, TargetView};
use crate::config::{Accumulators, CtaGroup, Eviction, SfPreload, Strategy};
use crate::plan::{Operand, Plan};
use crate::problem::MmaKind;

/// A box of A, B1 or B2.
pub(crate) struct OperandLoad {
    /// Bytes from the stage's start.
    pub offset: u32,
    /// The tensor map's register.
    pub source: &'static str,
    /// The register of the byte at which the K tile starts in a row, and bytes from there.
    pub k_start: &'static str,
    pub k_byte: u32,
    /// The register of the first row, and of the matrix where there are several.
    pub row: &'static str,
    pub rank: u32,
    /// Whether it is the first of what the launch before leaves.
    pub waits: bool,
    /// Whether it is this CTA's part of a tile that the cluster shares.
    pub shared: bool,
    /// The policy's register, or nothing.
    pub policy: &'static str,
}

/// A row block of scale factors.
pub(crate) struct ScaleLoad {
    /// Bytes from the slot's start.
    pub offset: u32,
    /// The register of the row block's address.
    pub source: String,
    pub policy: &'static str,
}

/// A box of scale factors: some K blocks of one row block.
pub(crate) struct ScaleBox {
    /// Bytes from the slot's start.
    pub offset: u32,
    /// The tensor map's register.
    pub map: String,
    /// The register of the row block, and of the matrix where there are several.
    pub row: String,
    pub rank: u32,
    /// Eight-byte units from the K tile's start.
    pub inner: u32,
    pub policy: &'static str,
    /// Where others need it too: by whom it is sent, and the register with the mask of those it is sent to.
    pub sent: Option<Sent>,
}

/// A K loop of an item.
pub(crate) struct Pass {
    /// What labels end in.
    pub suffix: &'static str,
    /// The accumulator's first column.
    pub d: u32,
    /// What it adds to, in words.
    pub products: &'static str,
    /// The barrier on which the loop's end is announced.
    pub done: Place,
    pub operand_loads: Vec<OperandLoad>,
    pub scale_loads: Vec<ScaleLoad>,
    pub scale_boxes: Vec<ScaleBox>,
}

/// The place of a tile along M.
pub(crate) struct TilePlace {
    /// The register that has each tile's place.
    pub register: &'static str,
    /// Its value in this tile.
    pub value: u32,
}

impl TilePlace {
    /// The last one.
    pub fn last(p: &Plan) -> TilePlace {
        let tile = p.m_tiles - 1;
        match p.swap_ab {
            true => TilePlace { register: "%column0", value: tile * p.mma_columns },
            false => TilePlace { register: "%block", value: tile },
        }
    }
}

/// The last tile along M, which is loaded by a tensor map of its own.
pub(crate) struct LastTile {
    pub place: TilePlace,
    /// Rows of A in it.
    pub rows: u32,
    /// Expected bytes of a K tile: of other tiles, and of the last tile along M.
    pub stage_tx: [u32; 2],
    /// The same of the last K tile.
    pub last_stage_tx: [u32; 2],
}

impl LastTile {
    /// `tx`: bytes of a K tile of other tiles, and of the last one.
    fn new(p: &Plan, tx: [u32; 2]) -> Option<LastTile> {
        let map = p.tensor_maps.iter().find(|map| map.last_tile)?;
        let with_fewer = |tx: u32| [tx, tx - p.smem.boxes * p.smem.last_blank_bytes];
        Some(LastTile {
            place: TilePlace::last(p),
            rows: map.box_dims[1],
            stage_tx: with_fewer(tx[0]),
            last_stage_tx: with_fewer(tx[1]),
        })
    }
}

/// What the TMA warp loads.
pub(crate) struct ProducerView {
    /// The warp that loads, in words.
    pub producer: String,
    pub b_names: &'static str,
    /// Whether loads of A wait for a launch of the kernel's own, and nothing else for the one before.
    pub waits: bool,
    pub passes: Vec<Pass>,
    pub load_policies: Vec<Policy>,
    /// Bytes that one K tile of scale factors brings, as the barrier counts them.
    pub slot_tx: u32,
    pub last_slot_tx: u32,
    /// Whether the last K tile's loads are shorter than the others'.
    pub ragged_loads: bool,
    /// Row blocks of scale factors on the MMA's column side.
    pub column_blocks: Vec<u32>,
    /// Bytes of a K tile, and of the last one: numbers, or registers where loads of the last tile along M bring fewer.
    pub stage_tx: String,
    pub last_stage_tx: String,
    /// The last tile along M, where it has a tensor map of its own.
    pub last_tile: Option<LastTile>,
    pub scale_tensors: Vec<&'static str>,
    /// Those on the MMA's row side, and those on its column side.
    pub row_tensors: Vec<&'static str>,
    pub column_tensors: Vec<&'static str>,
    /// Whether scale factors come by tensor map.
    pub boxed: bool,
    /// Eight-byte units of one K tile of a row block of scale factors.
    pub scale_tile_units: u32,
    /// Columns of the MMA that a CTA of a pair loads of each tensor it loads.
    pub pair_columns: u32,
    /// Who sends scale factors that several need, where they take turns.
    pub senders: Vec<Sender>,
    /// Whether the leader of a pair sends those of B1 and the peer those of B2, which lie so many bytes further on.
    pub sends_halves: bool,
    pub sfb_step: u32,
    /// Whether those of a shared tile are, so that a slot is free when all that share have let go of it.
    pub shares_scales: bool,
    pub shared_rows: u32,
    pub shared_bytes: u32,
    pub shared_row: &'static str,
    /// Whether a tile's scale factors on the MMA's row side can be in two blocks.
    pub row_block_above: bool,
    /// Whether they come with each stage's operands: before A, where that waits for an earlier launch.
    pub scales_per_stage: bool,
    /// Whether the lanes that load nothing leave the kernel (decision 0231).
    pub alone: bool,
    /// The shared memory that loads name: `cluster` or `cta`.
    pub space: &'static str,
}

impl ProducerView {
    pub fn new(p: &Plan, role: Role, barrier: &BarrierView, target: &TargetView) -> Self {
        let BarrierView { product1_done, all_done, .. } = *barrier;
        let shared = p.multicast.ctas();
        let hint = |hint: Option<Eviction>, register: &'static str| hint.map_or("", |_| register);
        let policies = Policies {
            a: hint(p.cache.a, "%policy_a"),
            b: hint(p.cache.b, "%policy_b"),
            sf: hint(p.cache.sf, "%policy_sf"),
        };
        let scale_tx = match p.scales.slot_tx {
            tx if p.sf_preload == SfPreload::PerStage => (tx, p.scales.last_slot_tx),
            _ => (0, 0),
        };
        // The leader of a pair expects the loads of both.
        let group = p.cta_group.ctas();
        let rows_shared = shared_sides(p)[0];
        let shared_rows = match (rows_shared, p.accumulators) {
            (true, _) => p.cta_rows,
            // Each CTA of a pair loads its half of the columns; side by side, B1 or B2 whole.
            (false, Accumulators::Separate | Accumulators::InterleavedRows) => p.mma_columns / group,
            (false, Accumulators::SideBySide) => p.mma_columns,
        };
        let stage_tx = [scale_tx.0, scale_tx.1].map(|scales| group * (p.smem.stage_tx + scales));
        let last_tile = LastTile::new(p, stage_tx);
        let tx = |number: u32, register: &str| match last_tile {
            Some(_) => register.to_owned(),
            None => number.to_string(),
        };
        let scale_tensors = scale_tensors(p, role);
        let passes = passes(p, role, policies, [product1_done, all_done], target.second_column);
        ProducerView {
            producer: format!("warp {}", target.producer_warp),
            b_names: match (p.strategy, role) {
                (Strategy::Interleaved, _) => "B1, B2",
                (Strategy::Sequential, _) => "B1, then B2",
                _ => "B",
            },
            waits: waits(p),
            load_policies: [("a", p.cache.a), ("b", p.cache.b), ("sf", p.cache.sf)]
                .into_iter()
                .filter_map(|(operand, hint)| Policy::of(operand, hint))
                .collect(),
            slot_tx: group * p.scales.slot_tx,
            last_slot_tx: group * p.scales.last_slot_tx,
            ragged_loads: p.scales.slot_tx != p.scales.last_slot_tx,
            column_blocks: match p.kind.scales_per_mma() {
                0 => Vec::new(),
                _ => (0..p.mma_columns.div_ceil(128)).collect(),
            },
            stage_tx: tx(stage_tx[0], "%stage_bytes"),
            last_stage_tx: tx(stage_tx[1], "%last_stage_bytes"),
            last_tile,
            row_tensors: scale_tensors.iter().copied().filter(|name| (*name == "sfa") != p.swap_ab).collect(),
            column_tensors: scale_tensors
                .iter()
                .copied()
                .filter(|name| (*name == "sfa") == p.swap_ab)
                .collect(),
            boxed: p.scales.box_blocks.is_some(),
            scale_tile_units: p.scales.tile_bytes / 8,
            pair_columns: p.mma_columns / 2,
            senders: senders(&passes),
            sends_halves: passes
                .iter()
                .flat_map(|pass| &pass.scale_boxes)
                .any(|load| load.sent.as_ref().is_some_and(|sent| sent.half)),
            sfb_step: p.smem.sfb2 - p.smem.sfb1,
            shares_scales: p.scales.shared && shared > 1,
            shared_rows: shared_rows / shared,
            shared_bytes: shared_rows / shared
                * match p.kind == MmaKind::Decoded && (rows_shared || p.decodes_a()) {
                    true => p.k_loop.b_tile_bytes,
                    false => p.k_loop.tile_bytes / p.smem.boxes,
                },
            shared_row: if rows_shared { "%row_r" } else { "%row_c" },
            row_block_above: p.interleaved_rows() && p.scales.b_row_blocks > 1,
            scales_per_stage: p.kind.scales_per_mma() > 0 && p.sf_preload == SfPreload::PerStage,
            alone: target.producer_alone,
            space: target.space,
            scale_tensors,
            passes,
        }
    }
}

/// Scale factors that come by bulk copies.
fn scale_tensors(p: &Plan, role: Role) -> Vec<&'static str> {
    let names: &[&str] = match (p.scales.box_blocks, p.strategy, role) {
        _ if p.kind.scales_per_mma() == 0 => &[],
        (Some(_), ..) => &[],
        (None, Strategy::Interleaved | Strategy::Sequential, _) => &["sfa", "sfb1", "sfb2"],
        (None, Strategy::TwoPass | Strategy::SecondFused, Role::Gated) => &["sfa", "sfb2"],
        (
            None,
            Strategy::TwoPass | Strategy::SecondFused,
            Role::Fused | Role::Product | Role::Gate | Role::Single,
        )
        | (None, Strategy::Single, _) => &["sfa", "sfb1"],
    };
    names.iter().copied().filter(|name| *name != "sfa" || p.scales.a_row_blocks > 0).collect()
}

/// L2 policy registers of the loads, or nothing.
#[derive(Clone, Copy)]
struct Policies {
    pub a: &'static str,
    pub b: &'static str,
    pub sf: &'static str,
}

/// The K loops of an item, each with the tiles of B that a stage holds.
fn passes(p: &Plan, role: Role, policies: Policies, done: [Place; 2], second_column: u32) -> Vec<Pass> {
    let products: &[&[usize]] = match (p.strategy, role) {
        (Strategy::Interleaved, _) => &[&[0, 1]],
        (Strategy::Sequential, _) => &[&[0], &[1]],
        (_, Role::Gated) => &[&[1]],
        _ => &[&[0]],
    };
    let suffixes: &[&str] = if products.len() > 1 { &["_1", "_2"] } else { &[""] };
    products
        .iter()
        .zip(suffixes)
        .enumerate()
        .map(|(index, (products, suffix))| Pass {
            suffix,
            d: if index == 1 { second_column } else { 0 },
            products: match products {
                [0] => "product 1",
                [1] => "product 2",
                _ => "both products",
            },
            done: done[if products.len() > 1 { 1 } else { index }],
            operand_loads: operand_loads(p, products, policies),
            scale_loads: scale_loads(p, products, policies.sf),
            scale_boxes: scale_boxes(p, products, policies.sf),
        })
        .collect()
}

/// Matrices that the maps of A and its scale factors, or of B's, have.
fn matrices(p: &Plan, of_a: bool) -> Option<u32> {
    let operand = if of_a { Operand::A } else { Operand::B1 };
    p.tensor_maps.iter().find(|map| map.operand == operand)?.matrices
}

/// Whether loads of A wait for the launch that brings it into order. With `pdl` all wait, for that launch itself may start early.
fn waits(p: &Plan) -> bool {
    p.orders_first() && !p.pdl
}

/// B before A: there is more of it to wait for.
fn operand_loads(p: &Plan, products: &[usize], policies: Policies) -> Vec<OperandLoad> {
    let span = p.k_loop.tile_bytes / p.smem.boxes;
    let (a_row, b_row) = if p.swap_ab { ("%row_c", "%row_r") } else { ("%row_r", "%row_c") };
    let [row_shared, column_shared] = shared_sides(p);
    let a_map = if p.smem.last_blank_bytes > 0 { "%a_tile_map" } else { "%a_map" };
    let load = |k_box: u32, offset, source, row, policy| OperandLoad {
        offset,
        source,
        k_start: match p.kind == MmaKind::Decoded && (row == b_row || p.decodes_a()) {
            true => "%weight_byte",
            false => "%k_byte",
        },
        k_byte: k_box * span,
        row: match (row, matrices(p, row == a_row)) {
            (_, None) => row,
            ("%row_r", _) => "%row_r, %group",
            _ => "%row_c, %group",
        },
        rank: GroupsView::rank(matrices(p, row == a_row)),
        waits: waits(p) && row == a_row && k_box == 0,
        shared: row == "%row_r" && row_shared || row == "%row_c" && column_shared,
        policy,
    };
    let mut loads = Vec::new();
    for k_box in 0..p.smem.boxes {
        let b = p.smem.a_bytes + k_box * p.smem.b_tiles * p.smem.b_box_bytes;
        match (p.cta_group, p.accumulators) {
            // All of a K tile is one box.
            _ if p.kind == MmaKind::Decoded && k_box > 0 => {}
            // One MMA of 2N: its lower half of columns, B1, is the leader's, its upper half the peer's.
            (CtaGroup::Two, Accumulators::SideBySide) => {
                loads.push(load(k_box, b, "%b_map", b_row, policies.b));
            }
            _ => {
                for (place, product) in (0..).zip(products) {
                    let offset = b + place * p.smem.b_box_bytes;
                    loads.push(load(k_box, offset, ["%b1_map", "%b2_map"][*product], b_row, policies.b));
                }
            }
        }
        match p.decodes_a() {
            true if k_box == 0 => loads.push(load(0, p.smem.packed_a, a_map, a_row, policies.a)),
            true => {}
            false => loads.push(load(k_box, k_box * p.smem.a_box_bytes, a_map, a_row, policies.a)),
        }
    }
    loads
}

/// Which of a tile's row blocks of scale factors.
#[derive(Clone, Copy)]
enum RowBlock {
    /// The one that has the first rows on the MMA's row side, or the one above it.
    Rows { above: bool },
    /// One on the MMA's column side, by its number.
    Columns(u32),
}

/// Row blocks of scale factors: tensor, bytes from the slot's start, and which it is.
fn row_blocks(p: &Plan, products: &[usize]) -> Vec<(&'static str, u32, RowBlock)> {
    let mut blocks = Vec::new();
    let mut add = |tensor, start: u32, rows: u32, on_columns: bool| {
        for block in 0..rows {
            let offset = start + block * p.scales.smem_row_block_bytes;
            let place = match on_columns {
                true => RowBlock::Columns(block),
                false => RowBlock::Rows { above: block > 0 },
            };
            blocks.push((tensor, offset, place));
        }
    };
    add("sfa", 0, p.scales.a_row_blocks, p.swap_ab);
    for (product, start) in products.iter().zip([p.smem.sfb1, p.smem.sfb2]) {
        add(["sfb1", "sfb2"][*product], start, p.scales.b_row_blocks, !p.swap_ab);
    }
    blocks
}

fn scale_loads(p: &Plan, products: &[usize], policy: &'static str) -> Vec<ScaleLoad> {
    if p.scales.box_blocks.is_some() || p.kind.scales_per_mma() == 0 {
        return Vec::new();
    }
    let load = |(tensor, offset, block): (&str, u32, RowBlock)| {
        let source = match block {
            RowBlock::Columns(block) => format!("%{tensor}_{block}"),
            RowBlock::Rows { above: true } => format!("%{tensor}_above"),
            RowBlock::Rows { above: false } => format!("%{tensor}"),
        };
        ScaleLoad { offset, source, policy }
    };
    row_blocks(p, products).into_iter().map(load).collect()
}

fn scale_boxes(p: &Plan, products: &[usize], policy: &'static str) -> Vec<ScaleBox> {
    let Some(blocks) = p.scales.box_blocks else { return Vec::new() };
    let places = Places::new(p);
    let shared = if p.scales.shared { shared_sides(p) } else { [false, false] };
    // Those that need the same block, by the register of their place among each other.
    let turns_of = |register, ctas, to| Some((Some((register, ctas)), to));
    let on_rows =
        if shared[0] { turns_of(places.neighbour, p.multicast.ctas(), places.alike_ctas) } else { None };
    let pair = p.scales.shared && p.cta_group == CtaGroup::Two;
    let halves = sends_halves(p, products);
    let on_columns = match (shared[1], pair) {
        (true, _) if halves => turns_of(places.neighbour, p.multicast.ctas(), "%all_ctas"),
        (true, _) => turns_of("%rank", p.cluster_ctas(), "%all_ctas"),
        (false, true) if halves => Some((None, places.pair_ctas)),
        (false, true) => turns_of(places.peer, 2, places.pair_ctas),
        (false, false) => None,
    };
    let per_row = p.scales.smem_row_block_bytes / (512 * blocks);
    let mut boxes = Vec::new();
    // They take turns.
    let mut turns = [0, 0];
    for (tensor, offset, block) in row_blocks(p, products) {
        // Boxes are of one row block on the row side.
        let block = match block {
            RowBlock::Columns(block) => Some(block),
            RowBlock::Rows { .. } => None,
        };
        let half = halves && block.is_some();
        if half && tensor == "sfb2" {
            // What the leader does for B1, the peer does for B2.
            continue;
        }
        let matrices = matrices(p, tensor == "sfa");
        let row = block.map_or("%row_block".to_owned(), |block| format!("%column_block_{block}"));
        let row = if matrices.is_some() { format!("{row}, %group") } else { row };
        let (turn, needed_by) = match block {
            None => (&mut turns[0], on_rows),
            Some(_) => (&mut turns[1], on_columns),
        };
        for i in 0..per_row {
            let sent = needed_by.map(|(turns, to)| {
                let by = turns.map(|(register, ctas)| Sender { register, place: *turn % ctas });
                *turn += 1;
                Sent { by, half, to }
            });
            boxes.push(ScaleBox {
                offset: offset + i * 512 * blocks,
                map: if half { "%sfb_map".to_owned() } else { format!("%{tensor}_map") },
                row: row.clone(),
                rank: GroupsView::rank(matrices),
                inner: i * 64 * blocks,
                policy,
                sent,
            });
        }
    }
    boxes
}
