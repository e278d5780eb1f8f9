//! `mma.sync` (sm_120a, sm_121a): warps issue MMAs and hold operands and accumulators in their registers.
//!
//! * `mod.rs`: [`Mma`], what a plan has of it.
//! * `legalize.rs`: what it rules out.
//! * `heuristics.rs`: how `auto` is settled.
//! * `plan.rs`: its part of a plan.
//! * `view/`: its part of what templates print.

pub(crate) mod heuristics;
mod legalize;
mod plan;
#[cfg(feature = "render")]
mod view;

use super::Wgmma;
use super::fragments::share_rows;
use crate::config::Tile;
use crate::problem::{Formats, OperandFormat, OutputFormat};
use crate::target::Way;

/// Rows and columns of an MMA (PTX ISA 9.7.14.5).
const MMA_ROWS: u32 = 16;
const MMA_COLUMNS: u32 = 8;

/// What is known of it before there is a plan.
pub(crate) const WAY: Way = Way {
    plan: heuristics::plan,
    error_rank: 2,
    swaps_row_vectors: true,
    usual_formats: Formats::new(OperandFormat::Nvfp4, OperandFormat::Nvfp4, OutputFormat::F16),
    takes_scales: true,
    converts_e2m1: true,
    tmem_columns: 0,
    // A multiply-add counts two; four sub-cores multiply 16 x 8 x 32 elements of 8 bits with scale factors. 16-bit elements are
    // counted at half of that rate. A GeForce, which adds these up in fp32, reaches half of it; an RTX PRO reaches it.
    rates: |number| {
        let (bits8, bits4) = (number("mma_sync_scaled_8"), number("mma_sync_scaled_4"));
        (4.0 * 16.0 * 8.0 * 32.0 / bits8, Some(bits4 / bits8))
    },
};

/// Warps that issue MMAs and hold their operands and accumulators. Four more bring the operands, of which one does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mma {
    /// How warps share a tile: in groups of four, each with 64 rows, and each warp with 16 of these. A warpgroup of sm_90a shares
    /// its rows so, and its threads hold the same accumulators.
    pub groups: Wgmma,
}

impl Mma {
    /// How warps share a tile's rows: 64 for each four of them, or, of 256, 128.
    fn of(tile: Tile, swap_ab: bool) -> Mma {
        let (rows, columns) = if swap_ab { (tile.n, tile.m) } else { (tile.m, tile.n) };
        let (count, blocks) = share_rows(rows);
        Mma { groups: Wgmma::together(count, blocks, columns) }
    }

    /// Registers of a thread that so many products take.
    pub fn sum_registers(&self, products: u32) -> u32 {
        self.groups.sum_registers(products)
    }
}
