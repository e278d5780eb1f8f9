//! What warpgroups do that issue MMAs and hold their sums (`wgmma`).

use super::decode::{self, DecodeLayout, DecodeView};
use super::promotion::{PromotedSum, PromotionView, interval_sum, takes_turns};
use super::sum_scales::factor_of;
use crate::config::{Accumulators, Strategy};
use crate::plan::{Plan, SmemMap, Staging};
use crate::problem::{ElementKind, MmaKind};
use crate::render::view::Role;
use crate::render::view::TilePlace;
use crate::render::view::epilogue::{self, BoxStore, Packing, Vector, operand, registers};
use crate::render::view::parts::{PARTIALS_AHEAD, PartialAdd, PartialRound, PartialVector};
use crate::render::view::steps::{self, MmaOperands};
use crate::target::fragments::WARPGROUP_ROWS;
use crate::target::sm_90a::Wgmma;

/// The third argument of the templates of sm_90a.
pub(crate) struct WarpgroupView {
    pub count: u32,
    pub ping_pong: bool,
    /// Whether an MMA's rows are of both products.
    pub interleaved_rows: bool,
    /// Whether warps issue their MMAs by themselves, so that one may be done long before another.
    pub warps_apart: bool,
    /// Rows of the tile that a warp has.
    pub warp_rows: u32,
    /// Rows of the tile that a warpgroup has, and rows of the tile.
    pub rows: u32,
    pub tile_rows: u32,
    /// The last warp that computes, the one that loads, and the one that sees to sums between two parts.
    pub last_warp: u32,
    pub producer_warp: u32,
    pub fixup_warp: u32,
    /// What no load of A brings in the stages, in parts of 16 bytes a thread.
    pub blanks: Vec<Blank>,
    /// The same in the last tile along M, if other tiles have none.
    pub last_blanks: Vec<Blank>,
    /// The last tile along M.
    pub last_tile: TilePlace,
    /// Threads that compute, and those that sums between two parts are made known to.
    pub threads: u32,
    pub fixup_threads: u32,
    /// From a warpgroup's tile to its next one, where they take turns.
    pub own_tiles_apart: u32,
    /// Registers of a thread that computes, and of one that loads; whether they are moved.
    pub registers: [u32; 2],
    pub moves_registers: bool,
    /// What the low word of a matrix descriptor has beside the address, in 16-byte units.
    pub operand_low: u32,
    /// The register of the row side's first descriptor word, and the step from one warpgroup's rows to the next.
    pub rows_first: &'static str,
    pub rows_step: u32,
    /// Products that are accumulated, and the registers of one.
    pub products: Vec<u32>,
    pub product_registers: u32,
    /// How sums leave the tensor core before the end of the K loop.
    pub promotion: Option<PromotionView>,
    /// `m64nNkK.f32.TYPE.TYPE`, and what follows the operands.
    pub shape: String,
    pub transposes: &'static str,
    pub passes: Vec<WarpgroupPass>,
    /// Stages that a tile of the other warpgroup takes, beyond whole rounds of two.
    pub skipped: u32,
    /// Registers of one product in a chunk.
    pub chunk_registers: u32,
    pub blocks: Vec<WarpgroupBlock>,
    /// Whether sums take more than half of a thread's registers.
    pub crowded: bool,
    /// Sums on their way through the workspace. The part that adds up takes one round after the other.
    pub partials: Vec<PartialRound>,
    /// The parts of the columns that the CTAs of a cluster finish, where they share K, and bytes of what one sends another.
    pub cluster_parts: Vec<ClusterPart>,
    pub cluster_slot_bytes: u32,
    /// Bytes that the other CTAs send in all.
    pub cluster_sum_bytes: u32,
    /// How weights are decoded, where they are.
    pub decode: Option<DecodeView>,
    /// What sums are multiplied with, as hexadecimal digits of an f32, where decoded weights are smaller than they should be.
    pub unscale: &'static str,
}

/// A part of what no load of A brings: the same in each K box of each stage.
pub(crate) struct Blank {
    /// Threads that have 16 bytes of it.
    pub threads: u32,
    /// Where it starts in shared memory.
    pub offsets: Vec<u32>,
}

/// What no load of A brings, `blank_bytes` of each K box, in parts of 16 bytes for each of `threads`.
fn blanks(p: &Plan, blank_bytes: u32, threads: u32) -> Vec<Blank> {
    let SmemMap { boxes, a_box_bytes, stage_bytes, .. } = p.smem;
    let part = |start: u32| Blank {
        threads: ((blank_bytes - start) / 16).min(threads),
        offsets: (0..p.stages)
            .flat_map(|stage| (1..=boxes).map(move |end| stage * stage_bytes + end * a_box_bytes))
            .map(|end| end - blank_bytes + start)
            .collect(),
    };
    (0..blank_bytes).step_by(16 * threads as usize).map(part).collect()
}

/// A K loop of an item.
pub(crate) struct WarpgroupPass {
    /// What labels end in.
    pub suffix: &'static str,
    /// The products that it computes.
    pub products: Vec<u32>,
    /// Whether the second tile of B in a stage is read by itself.
    pub reads_b2: bool,
    /// MMAs that are waited for together: all of a K tile, or, of windows, a product's.
    pub groups: Vec<WarpgroupMmas>,
    /// MMAs of one product in even and in odd K tiles, if they take two sets of registers by turns.
    pub turns: Vec<WarpgroupMmas>,
}

/// MMAs of a K tile.
pub(crate) struct WarpgroupMmas {
    /// Groups of the K tile that are issued after it.
    pub pending: usize,
    pub mmas: Vec<WarpgroupMma>,
    /// What of an interval is added to the accumulators.
    pub adds: Vec<PromotedSum>,
}

/// One `wgmma`.
pub(crate) struct WarpgroupMma {
    /// The accumulators' registers.
    pub d: String,
    /// The registers of the operands' first descriptor words in the stage, and the steps from there.
    pub rows: &'static str,
    pub rows_step: u32,
    pub columns: &'static str,
    pub columns_step: u32,
    /// The predicate that says whether D is added to.
    pub accumulate: &'static str,
}

/// The rows of an MMA.
pub(crate) struct WarpgroupBlock {
    /// The first, among the warpgroup's.
    pub row: u32,
    /// Bytes from the warp's staging to that of these rows.
    pub staging_byte: u32,
    pub chunks: Vec<WarpgroupChunk>,
}

impl WarpgroupBlock {
    /// Bytes from the warp's staging to a box of these rows.
    pub fn staged(&self, store: &BoxStore) -> u32 {
        self.staging_byte + store.offset
    }
}

/// Columns that are finished together.
pub(crate) struct WarpgroupChunk {
    /// What the gate reads, and the accumulators it is in.
    pub moves: Vec<(String, String)>,
    /// Bytes in a row of a box of the staging, and to the box.
    pub staged_byte: u32,
    pub box_byte: u32,
    /// 8 x 8 matrices of 16-bit elements that one `stmatrix` writes: registers, and how many.
    pub matrices: String,
    pub matrix_count: u32,
    /// Elements of other sizes, two columns at a time.
    pub pairs: Vec<StagedPair>,
}

/// Two columns of a row on their way to the staging.
pub(crate) struct StagedPair {
    /// What its place differs in from that of the thread's first element, as bits.
    pub flips: u32,
    pub vector: Vector,
}

/// What a CTA of a cluster that shares a tile's K finishes.
pub(crate) struct ClusterPart {
    pub rank: u32,
    /// Sums of this part in any CTA.
    pub vectors: Vec<ClusterVector>,
    /// Where the others' are in this CTA.
    pub slots: Vec<ClusterSlot>,
}

/// Four registers.
pub(crate) struct ClusterVector {
    /// Bytes in a slot.
    pub offset: u32,
    pub registers: String,
    pub adds: Vec<ClusterAdd>,
}

/// A sum of a part, and the register of the first part that it ends in.
pub(crate) struct ClusterAdd {
    pub from: String,
    pub to: String,
}

/// What another CTA sent.
pub(crate) struct ClusterSlot {
    pub offset: u32,
    pub first: bool,
}

impl ClusterSlot {
    /// Bytes to four registers' sums in what the other CTA sent.
    pub fn byte(&self, vector: &ClusterVector) -> u32 {
        self.offset + vector.offset
    }
}

/// Bytes of the sums that one CTA sends another.
fn cluster_slot_bytes(products: &[u32], warpgroups: Wgmma, parts: u32) -> u32 {
    4 * 128 * warpgroups.count * warpgroups.product_registers * products.len() as u32 / parts
}

impl ClusterPart {
    fn new(products: &[u32], warpgroups: Wgmma, parts: u32, rank: u32) -> Self {
        // Registers of a part among those of 64 rows, which lie column by column.
        let of_block = warpgroups.product_registers / warpgroups.blocks;
        let of_part = of_block / parts;
        let starts = products.iter().flat_map(|product| {
            (0..warpgroups.blocks)
                .flat_map(move |block| (0..of_part).step_by(4).map(move |i| (*product, block * of_block + i)))
        });
        let vectors = (0..).zip(starts).map(|(index, (product, start)): (u32, _)| {
            let own = |i| accumulator(product, start + rank * of_part + i);
            ClusterVector {
                offset: index * 16 * 128 * warpgroups.count,
                registers: (0..4).map(own).collect::<Vec<_>>().join(", "),
                adds: (0..4)
                    .map(|i| ClusterAdd { from: own(i), to: accumulator(product, start + i) })
                    .collect(),
            }
        });
        let slot = cluster_slot_bytes(products, warpgroups, parts);
        let others = (0..parts).filter(|other| *other != rank);
        ClusterPart {
            rank,
            vectors: vectors.collect(),
            slots: (0..)
                .zip(others)
                .map(|(i, other)| ClusterSlot { offset: other * slot, first: i == 0 })
                .collect(),
        }
    }
}

/// The register of an accumulator.
pub(in crate::target) fn accumulator(product: u32, index: u32) -> String {
    format!("%product{product}_{index}")
}

impl WarpgroupView {
    /// Whether warps beside the one that loads bring activations into the order of K in which weights are decoded.
    pub fn orders_beside(&self) -> bool {
        self.decode.as_ref().is_some_and(|decode| decode.layout == DecodeLayout::TwoRows)
    }

    pub fn new(p: &Plan, role: Role, warpgroups: Wgmma, staging: Option<Staging>, packing: Packing) -> Self {
        let products: Vec<u32> = match role {
            Role::Fused => vec![1, 2],
            Role::Product | Role::Single => vec![1],
            Role::Gated | Role::Gate => vec![2],
        };
        let cluster_slot = cluster_slot_bytes(&products, warpgroups, p.work.cluster_parts);
        let span = p.k_loop.tile_bytes / p.smem.boxes;
        let block_registers = p.mma_columns / 2;
        let row_step = WARPGROUP_ROWS * span / 16;
        let side_by_side = p.accumulators == Accumulators::SideBySide;
        let passes: Vec<Vec<u32>> = match p.strategy {
            Strategy::Sequential => products.iter().map(|product| vec![*product]).collect(),
            Strategy::TwoPass | Strategy::SecondFused | Strategy::Interleaved | Strategy::Single => {
                vec![products.clone()]
            }
        };
        let sum = |product: u32, turn: u32, i: u32| match warpgroups.promotion {
            None => accumulator(product, i),
            Some(interval) => interval_sum(interval, &products, product, turn, i),
        };
        let d = |product: u32, block: u32, turn: u32| {
            let start = block * block_registers;
            (start..start + block_registers).map(|i| sum(product, turn, i)).collect::<Vec<_>>()
        };
        // The first MMAs of an interval overwrite its registers. With one K tile per interval, each tile's first MMAs do.
        let first = if warpgroups.promotion.is_some_and(|interval| interval.tiles == 1) {
            "0"
        } else {
            "%accumulate"
        };
        let mmas = |products: &[u32], turn: u32| -> Vec<WarpgroupMma> {
            let mut mmas = Vec::new();
            for step in 0..p.k_loop.blocks {
                let [product1, product2] = steps::operands(p, step);
                for block in 0..warpgroups.blocks {
                    let mut issue = |d: Vec<String>, view: MmaOperands| {
                        mmas.push(WarpgroupMma {
                            d: d.join(", "),
                            rows: view.rows,
                            rows_step: view.rows_step + block * row_step,
                            columns: view.columns,
                            columns_step: view.columns_step,
                            accumulate: if step == 0 { first } else { "1" },
                        });
                    };
                    match products {
                        [first, second] if side_by_side => {
                            issue([d(*first, block, turn), d(*second, block, turn)].concat(), product1);
                        }
                        [first, second] => {
                            issue(d(*first, block, turn), product1);
                            issue(d(*second, block, turn), product2);
                        }
                        [2] if p.smem.b_tiles == 2 => issue(d(2, block, turn), product2),
                        // A stage holds one tile of B.
                        _ => products.iter().for_each(|one| issue(d(*one, block, turn), product1)),
                    }
                }
            }
            mmas
        };
        let apart = warpgroups.promotion.is_some() && !side_by_side;
        let scales_sums = p.problem.formats.scales_sums();
        let groups = |products: &[u32], turn: u32| -> Vec<WarpgroupMmas> {
            let together = if apart { 1 } else { products.len() };
            let count = products.len() / together;
            products
                .chunks(together)
                .zip(1..)
                .map(|(products, done)| WarpgroupMmas {
                    pending: count - done,
                    mmas: mmas(products, turn),
                    adds: products
                        .iter()
                        .filter(|_| warpgroups.promotion.is_some())
                        .flat_map(|product| {
                            (0..warpgroups.product_registers).map(|i| PromotedSum {
                                to: accumulator(*product, i),
                                from: sum(*product, turn, i),
                                factor: scales_sums.then(|| factor_of(p, *product, i)),
                            })
                        })
                        .collect(),
                })
                .collect()
        };
        let suffixes: &[&str] = if passes.len() > 1 { &["_1", "_2"] } else { &[""] };
        let columns = if side_by_side { 2 * p.mma_columns } else { p.mma_columns };
        let chunk_registers = p.epilogue.chunk / if warpgroups.interleaved_rows { 4 } else { 2 };
        let blocks = (0..warpgroups.blocks).map(|block| WarpgroupBlock {
            row: block * WARPGROUP_ROWS,
            staging_byte: staging.map_or(0, |staging| block * staging.boxes * staging.box_bytes),
            chunks: (0..p.epilogue.chunks)
                .map(|chunk| {
                    let start = block * block_registers + chunk * chunk_registers;
                    chunk_of(p, &products, chunk, start, block, staging, packing)
                })
                .collect(),
        });
        // In the epilogue one product's second set of sums is free.
        let free =
            if takes_turns(warpgroups.promotion, &products) { warpgroups.product_registers } else { 0 };
        let elements = p.problem.formats;
        let [a, b] = [elements.a, elements.b].map(|format| type_of(format.spec().element));
        let decoded = type_of(elements.decoded());
        let (a, b) = if p.kind == MmaKind::Decoded { (decoded, decoded) } else { (a, b) };
        let (a, b) = if p.swap_ab { (b, a) } else { (a, b) };
        WarpgroupView {
            count: warpgroups.count,
            ping_pong: warpgroups.ping_pong,
            interleaved_rows: warpgroups.interleaved_rows,
            warps_apart: false,
            warp_rows: warpgroups.rows() / 4,
            rows: warpgroups.rows(),
            tile_rows: warpgroups.tile_rows(),
            last_warp: (4 * warpgroups.count).saturating_sub(1),
            producer_warp: 4 * warpgroups.count,
            fixup_warp: 4 * warpgroups.count + 1,
            blanks: blanks(p, p.smem.blank_bytes, 128 * warpgroups.count),
            last_blanks: blanks(p, p.smem.last_blank_bytes, 128 * warpgroups.count),
            last_tile: TilePlace::last(p),
            threads: 128 * warpgroups.count,
            fixup_threads: 128 * warpgroups.count + 32,
            own_tiles_apart: p.work.clusters.saturating_mul(2),
            registers: warpgroups.registers,
            moves_registers: warpgroups.count > 1,
            operand_low: p.descriptors.operand_low,
            rows_first: if p.swap_ab { "%b_first" } else { "%a_first" },
            rows_step: warpgroups.blocks * row_step,
            product_registers: warpgroups.product_registers,
            promotion: warpgroups.promotion.map(|interval| {
                PromotionView::new(p, &warpgroups, interval, &products, apart && passes.len() == 1)
            }),
            shape: format!("m64n{columns}k{}.f32.{a}.{b}", p.kind.mma_k()),
            // Both operands K-major; those of 8 bits know nothing else.
            transposes: match p.kind {
                MmaKind::F16 => ", 0, 0",
                // One of them is in registers.
                MmaKind::Decoded => ", 0",
                MmaKind::F8f6f4 | MmaKind::Mxf8f6f4 | MmaKind::Mxf4 | MmaKind::Mxf4Nvf4 => "",
            },
            passes: passes
                .iter()
                .zip(suffixes)
                .map(|(products, suffix)| WarpgroupPass {
                    suffix,
                    products: products.clone(),
                    reads_b2: products.len() == 2 && !side_by_side,
                    groups: groups(products, 0),
                    turns: match takes_turns(warpgroups.promotion, products) {
                        true => (0..2).flat_map(|turn| groups(products, turn)).collect(),
                        false => Vec::new(),
                    },
                })
                .collect(),
            skipped: (p.k_loop.tiles * passes.len() as u32) % (2 * p.stages),
            chunk_registers,
            blocks: blocks.collect(),
            crowded: 2 * (warpgroups.sum_registers(products.len() as u32) - free) > warpgroups.registers[0],
            partials: vec![PartialRound { suffix: String::new(), vectors: partials(&products, warpgroups) }],
            cluster_slot_bytes: cluster_slot,
            cluster_sum_bytes: cluster_slot * (p.work.cluster_parts - 1),
            cluster_parts: match p.work.cluster_parts {
                1 => Vec::new(),
                parts => {
                    (0..parts).map(|rank| ClusterPart::new(&products, warpgroups, parts, rank)).collect()
                }
            },
            decode: (p.kind == MmaKind::Decoded).then(|| DecodeView::new(p, &warpgroups)),
            unscale: if p.kind == MmaKind::Decoded { decode::unscale(p) } else { "" },
            products,
        }
    }
}

/// What an operand's elements are called in `wgmma`.
fn type_of(element: ElementKind) -> &'static str {
    match element {
        ElementKind::Bf16 => "bf16",
        ElementKind::F16 => "f16",
        ElementKind::E5m2 => "e5m2",
        ElementKind::E4m3 | ElementKind::E2m1 => "e4m3",
    }
}

/// A chunk whose first accumulators are `start`.
fn chunk_of(
    p: &Plan,
    products: &[u32],
    chunk: u32,
    start: u32,
    block: u32,
    staging: Option<Staging>,
    packing: Packing,
) -> WarpgroupChunk {
    let count = p.epilogue.chunk / if p.interleaved_rows() { 4 } else { 2 };
    let moves = products
        .iter()
        .flat_map(|product| {
            let name = if *product == 1 { "first" } else { "second" };
            (0..count).map(move |i| (format!("%{name}{i}"), accumulator(*product, start + i)))
        })
        .collect();
    let Some(staging) = staging else {
        return WarpgroupChunk {
            moves,
            staged_byte: 0,
            box_byte: 0,
            matrices: String::new(),
            matrix_count: 0,
            pairs: Vec::new(),
        };
    };
    let bytes = p.epilogue.c.element_bits / 8;
    let byte = chunk * p.epilogue.chunk * bytes;
    let halves = p.epilogue.c.element_bits == 16;
    let (staged_byte, box_byte) = match p.swap_ab {
        // The chunk's columns are rows of the box.
        true => (0, block * staging.box_bytes + chunk * p.epilogue.chunk * staging.span),
        false => (byte % staging.span, (block * staging.boxes + byte / staging.span) * staging.box_bytes),
    };
    WarpgroupChunk {
        moves,
        staged_byte,
        box_byte,
        matrices: if halves { registers("packed", 0, count / 2) } else { String::new() },
        matrix_count: count / 2,
        pairs: if halves { Vec::new() } else { pairs(p, byte, box_byte, staging, packing) },
    }
}

/// Pairs of columns of the chunk that starts at `byte` of a row.
fn pairs(p: &Plan, byte: u32, box_byte: u32, staging: Staging, packing: Packing) -> Vec<StagedPair> {
    let bytes = p.epilogue.c.element_bits / 8;
    (0..p.epilogue.chunk / 2)
        .step_by(2)
        .map(|register| {
            // Eight columns further on, every four registers; eight rows below, every other two.
            let column = byte + register / 4 * 8 * bytes;
            let boxes = column / staging.span - byte / staging.span;
            let below = register / 2 % 2 * 8 * staging.span;
            let (width, registers, part) = operand(packing, register, 2);
            StagedPair {
                flips: column % staging.span,
                vector: Vector {
                    guard: None,
                    row: "",
                    column: 0,
                    byte: (box_byte + boxes * staging.box_bytes + below).into(),
                    predicate: "",
                    width,
                    registers,
                    part,
                    staged_byte: 0,
                },
            }
        })
        .collect()
}

/// A thread's sums on their way through the workspace: four registers of all threads after four of all threads.
fn partials(products: &[u32], warpgroups: Wgmma) -> Vec<PartialVector> {
    let group_bytes = 16 * 128 * warpgroups.count;
    let of_product = warpgroups.product_registers / 4;
    let mut vectors = Vec::new();
    for (place, product) in (0..).zip(products) {
        for i in 0..of_product {
            let registers: Vec<String> = (4 * i..4 * i + 4).map(|r| accumulator(*product, r)).collect();
            // Vectors that are loaded together have different ones.
            let first = 4 * (vectors.len() % PARTIALS_AHEAD) as u32;
            vectors.push(PartialVector {
                offset: (place * of_product + i) * group_bytes,
                // Sums in registers go to other CTAs by parts of their own.
                sum_offset: 0,
                registers: registers.join(", "),
                addends: epilogue::registers("addend", first, 4),
                adds: (first..)
                    .zip(registers)
                    .map(|(from, to)| PartialAdd { to, from: format!("%addend{from}") })
                    .collect(),
            });
        }
    }
    vectors
}
