//! `wgmma` (sm_90a): warpgroups issue MMAs and hold the accumulators in their registers.
//!
//! * `mod.rs`: [`Wgmma`], what a plan has of it.
//! * `legalize.rs`: what it rules out.
//! * `heuristics.rs`: how `auto` is settled.
//! * `interleaved.rs`: MMAs whose rows are of both products, where weights are decoded: whether, in which tiles, by whom.
//! * `tiles.rs`: the tile that takes the least time.
//! * `promotion.rs`: how often sums leave their tensor cores.
//! * `plan.rs`: its part of a plan.
//! * `view/`: its part of what templates print.

pub(crate) mod heuristics;
mod interleaved;
mod legalize;
mod plan;
mod promotion;
mod tiles;
#[cfg(feature = "render")]
pub(in crate::target) mod view;

use crate::arch::Arch;
use crate::config::{Accumulators, Config, Consumers, Schedule, Setting};
use crate::plan::Work;
use crate::problem::{Formats, MmaKind, OperandFormat, Operation, OutputFormat, Problem};
use crate::target::Way;
use crate::target::fragments::WARPGROUP_ROWS;

/// Rows, and elements of K, that a CTA of a launch before the MMAs brings into the order of K in which weights are decoded.
const ORDER_BLOCK: u32 = 64;

/// What is known of it before there is a plan.
pub(crate) const WAY: Way = Way {
    plan: heuristics::plan,
    error_rank: 1,
    swaps_row_vectors: true,
    usual_formats: Formats::new(OperandFormat::Bf16, OperandFormat::Bf16, OutputFormat::Bf16),
    takes_scales: false,
    converts_e2m1: false,
    tmem_columns: 0,
    // A multiply-add counts two; an MMA multiplies 32 bytes of K a row, 16 elements of 16 bits.
    rates: |number| (2.0 * 64.0 * 16.0 / number("wgmma_column"), None),
};

/// Warpgroups that issue MMAs and hold their accumulators. One more brings the operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wgmma {
    /// How many warpgroups there are.
    pub count: u32,
    /// Whether each has tiles of its own.
    pub ping_pong: bool,
    /// MMAs of 64 rows that each has below each other.
    pub blocks: u32,
    /// Whether an MMA's rows are of both products, 8 of the first and 8 of the second by turns: it has 32 rows of each then.
    pub interleaved_rows: bool,
    /// Whether a launch before brings activations into the order of K in which a thread decodes weights fastest, where rows are
    /// interleaved; else it decodes them in the order they lie in.
    pub ordered: bool,
    /// Registers that a thread holds one product in.
    pub product_registers: u32,
    /// How sums leave the tensor core before the end of the K loop, where they do.
    pub promotion: Option<PromotionInterval>,
    /// Registers of a thread that issues MMAs, and of one that loads (`setmaxnreg`, PTX ISA 9.7.19.5).
    pub registers: [u32; 2],
}

/// A stretch of K that the tensor core adds up by itself; its sums are added to fp32 registers then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromotionInterval {
    /// K tiles of one.
    pub tiles: u32,
    /// Sets of registers for an interval's sums: with two, sums in one are added while MMAs write the other. Two products have one
    /// each, or the K tiles of one product take both by turns.
    pub sets: u32,
}

impl Wgmma {
    /// Registers of a thread that so many products take, with sums on their way there.
    pub fn sum_registers(&self, products: u32) -> u32 {
        let sets = self.promotion.map_or(0, |interval| interval.sets);
        self.product_registers.saturating_mul(products + sets)
    }

    /// Whether two CTAs at most share a tile's K, one of which hands its sums over to the other: where each has as much to
    /// do as a whole tile, and a warp is free to see to it.
    fn has_fixup(&self, work: &Work, k_tiles: u32, kind: MmaKind) -> bool {
        let free = self.interleaved_rows || kind != MmaKind::Decoded;
        work.schedule == Schedule::StreamK && work.share >= k_tiles && free
    }

    /// Rows of a tile that one warpgroup has.
    pub const fn rows(&self) -> u32 {
        WARPGROUP_ROWS * self.blocks / if self.interleaved_rows { 2 } else { 1 }
    }

    /// Rows of the tile that a CTA computes.
    pub const fn tile_rows(&self) -> u32 {
        if self.ping_pong { self.rows() } else { self.count * self.rows() }
    }
}

/// Whether weights are decoded on their way to the tensor core.
fn decodes(problem: &Problem) -> bool {
    problem.formats.kind(Arch::Sm90a) == Ok(MmaKind::Decoded)
}

/// Whether an MMA's rows are of both products: with as many registers it has twice the columns, so that a weight that is decoded
/// meets twice the activations. That takes a launch more, which brings activations into order: in shared memory it would take
/// the bandwidth that MMAs need.
fn has_interleaved_rows(problem: &Problem, config: &Config, arch: Arch) -> bool {
    decodes(problem)
        && match (config.accumulators, config.tile) {
            (Setting::Fixed(accumulators), _) => accumulators == Accumulators::InterleavedRows,
            (Setting::Auto, _) if problem.operation == Operation::Gemm => false,
            (Setting::Auto, Setting::Fixed(tile)) => {
                interleaved::ROWS.contains(&tile.n) && !problem.formats.decodes_a(Arch::Sm90a)
            }
            (Setting::Auto, Setting::Auto) => interleaved::gains(problem, config, arch),
        }
}

fn ping_pong(config: &Config) -> bool {
    config.consumers == Setting::Fixed(Consumers::PingPong)
}

/// Passes over so many activations of a stage, in rows of 64, that bring them into the order of K that weights are
/// decoded in, and the rows of one.
fn ordering_passes(elements: u32, decoded: bool) -> (u32, u32) {
    let lines = elements / 64;
    // Rows of operands come in eights, of which a warp decodes 64 columns at a time.
    let rows = if lines.is_multiple_of(16) && !decoded { 16 } else { 8 };
    (lines / rows, rows)
}

/// Warps that share the passes: the three beside the one that loads.
fn ordering_warps(passes: u32) -> u32 {
    passes.min(3)
}
