//! `tcgen05` (sm_100a, sm_100f, sm_103a, sm_110a): one thread issues MMAs, and accumulators are in tensor memory.
//!
//! * `mod.rs`: [`Tcgen05`], what a plan has of it.
//! * `legalize.rs`: what it rules out.
//! * `heuristics.rs`: how `auto` is settled.
//! * `columns.rs`: how many columns a tile has.
//! * `load.rs`: how the epilogue reads accumulators.
//! * `shares.rs`: whether clusters share K where tiles are few.
//! * `tail.rs`: how long a split tail pays.
//! * `tmem.rs`: the map of tensor memory.
//! * `descriptor.rs`: instruction descriptors.
//! * `plan.rs`: its part of a plan.
//! * `view/`: its part of what templates print.

mod columns;
mod descriptor;
pub(crate) mod heuristics;
mod legalize;
mod load;
mod plan;
mod shares;
mod tail;
mod tmem;
#[cfg(feature = "render")]
mod view;

pub use tmem::TmemMap;

use crate::config::{Config, CtaGroup, Multicast};
use crate::problem::{Formats, OperandFormat, OutputFormat};
use crate::target::Way;

/// Rows that a CTA contributes to a block-scaled MMA (PTX ISA 9.7.16.2.1).
const MMA_ROWS: u32 = 128;
/// Epilogue warps with the same columns: each reads 32 lanes of tensor memory (PTX ISA 9.7.16.2.3).
const LANE_WARPS: u32 = 4;
/// Warps beside the epilogue's: TMA and MMA, in this order behind them.
const OTHER_WARPS: u32 = 2;

/// What is known of it before there is a plan.
pub(crate) const WAY: Way = Way {
    plan: heuristics::plan,
    // A thread's pair of results is of two rows then, and the gate's code takes one element for both.
    error_rank: 0,
    swaps_row_vectors: false,
    usual_formats: Formats::new(OperandFormat::Nvfp4, OperandFormat::Nvfp4, OutputFormat::F16),
    takes_scales: true,
    converts_e2m1: true,
    // PTX ISA 9.7.16.1.
    tmem_columns: 512,
    // A multiply-add counts two; an MMA multiplies 32 bytes of K a row, 16 elements of 16 bits.
    rates: |number| (2.0 * 128.0 * 16.0 / number("tcgen05_column"), Some(number("tcgen05_fp4"))),
};

/// Accumulators in tensor memory, and how MMAs feed them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tcgen05 {
    /// Tensor memory.
    pub tmem: TmemMap,
    /// Tiles of C in flight in a CTA, each with its accumulators.
    pub buffers: u32,
    /// Whether the second MMA of a K block takes A from the collector.
    pub collector: bool,
    /// Warps that finish tiles: 4, or 8.
    pub epilogue_warps: u32,
}

impl Tcgen05 {
    /// Before anything is settled.
    const NEW: Tcgen05 = Tcgen05 { tmem: TmemMap::EMPTY, buffers: 1, collector: false, epilogue_warps: 4 };
}

/// Whether several CTAs of a cluster need the same scale factors: those of B in a pair, those of a shared tile.
fn shares_scales(config: &Config) -> bool {
    config.group() == CtaGroup::Two || config.multicast != Multicast::None
}

/// Tiles of a cluster side by side along the MMA's columns.
fn neighbours(config: &Config, swap_ab: bool) -> u32 {
    match config.multicast {
        Multicast::A(ctas) if !swap_ab => ctas,
        Multicast::B(ctas) if swap_ab => ctas,
        Multicast::None | Multicast::A(_) | Multicast::B(_) => 1,
    }
}
