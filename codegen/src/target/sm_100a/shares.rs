//! Whether the CTAs of a cluster share each tile's K, where tiles are too few for the chip.

use super::MMA_ROWS;
use crate::arch::{Arch, Limits};
use crate::config::{
    Accumulators, Buffers, Config, CtaGroup, KOrder, Multicast, Setting, SfPreload, Store, Strategy, Tile,
};
use crate::legalize::{CLUSTER_LIMIT, kind};
use crate::plan::draft::row_bytes;
use crate::problem::{Groups, Problem};

/// What sharing has to bring of the time: no published kernel was seen to do it with accumulators in tensor memory
/// (decision 0003).
const GAIN: f64 = 0.02;

/// The same where the MMA's columns are more than there are tokens, so that more CTAs can finish a part of them.
const PADDED_GAIN: f64 = 0.05;

/// What was chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Shares {
    /// CTAs that share a tile's K.
    pub parts: u32,
    /// The tile, perhaps of more columns.
    pub tile: Tile,
}

/// A tile's loads, products and sums on a chip; seconds, modelled.
struct Model {
    limits: &'static Limits,
    k_tiles: u32,
    /// Seconds of a K tile in one CTA: its loads, or its products with the copies of their scale factors.
    k_tile: f64,
    /// Seconds of what must cross DRAM, for all tiles together.
    dram: f64,
    /// Seconds of a CTA's sums on their way to another one.
    sums: f64,
}

impl Model {
    fn new(problem: &Problem, tile: Tile, columns: u32, arch: Arch) -> Model {
        let (limits, kind) = (arch.limits(), kind(problem));
        let row_bytes = f64::from(row_bytes(kind, tile));
        let loads = (f64::from(tile.m) + 2.0 * f64::from(tile.n)) * row_bytes / limits.sm_bytes_per_second;
        // Both products: an MMA multiplies, or waits for its operands from shared memory.
        let [rows, columns] = [MMA_ROWS, columns].map(f64::from);
        let math =
            2.0 * rows * columns * f64::from(tile.k) * f64::from(limits.sms) / limits.ops_per_second(kind);
        let reads = (rows + columns) * row_bytes / limits.smem_bytes_per_second;
        // A block of four scale factors a row, of 128 rows of A and of both weights.
        let steps = tile.k / kind.mma_k();
        let steps_a_block = problem.formats.scale_vector().map_or(1, |vector| 4 * vector / kind.mma_k());
        let blocks = if kind.scales_per_mma() == 0 { 0 } else { steps.div_ceil(steps_a_block.max(1)) };
        let copies = f64::from(3 * blocks) * limits.scale_copy;
        Model {
            limits,
            k_tiles: problem.shape.k.div_ceil(tile.k),
            k_tile: loads.max(2.0 * math.max(reads) + copies),
            dram: problem.compulsory_bytes() as f64 / limits.dram_bytes_per_second,
            sums: 2.0 * 4.0 * rows * columns / limits.cluster_bytes_per_second,
        }
    }

    /// What `parts` CTAs take for a tile: the K tiles of the longest part, or what the chip's DRAM takes, and then the sums that each CTA
    /// sends, after the others have said that there is room. That and the sums' arrival take two ways between SMs each, with their waits.
    fn seconds(&self, parts: u32) -> f64 {
        let loop_seconds = (f64::from(self.k_tiles.div_ceil(parts)) * self.k_tile).max(self.dram);
        if parts == 1 {
            return loop_seconds;
        }
        let others = f64::from(parts - 1) / f64::from(parts) * self.sums;
        loop_seconds + 4.0 * self.limits.cluster_latency + others
    }
}

/// CTAs that share each tile's K by the rule for `auto`; `None` where a tile is one CTA's.
pub(super) fn choose(
    problem: &Problem,
    config: &Config,
    strategy: Strategy,
    tile: Tile,
    swap_ab: bool,
    arch: Arch,
) -> Option<Shares> {
    let free = config.schedule == Setting::Auto
        && strategy == Strategy::Interleaved
        && config.group() == CtaGroup::One
        && config.multicast == Multicast::None
        && config.ctas_per_sm() == 1
        && config.layout() == Accumulators::Separate
        && config.store != Setting::Fixed(Store::Tma)
        && config.sf_preload != SfPreload::All
        && matches!(config.accumulator_buffers, Setting::Auto | Setting::Fixed(Buffers::Whole(1)))
        && !matches!(config.k_order, Setting::Fixed(KOrder::SplitTail(_)));
    let shape = problem.shape;
    let matrices = match shape.groups {
        Groups::One => 1,
        Groups::Batch(count) => count,
        // How many tiles there are only the device knows.
        Groups::Rows(_) => return None,
    };
    // Tiles beyond any chip are refused elsewhere; no sum here is made for them.
    let is_sane = |side: u32| (1..=4096).contains(&side);
    if !free || ![tile.m, tile.n, tile.k].into_iter().all(is_sane) {
        return None;
    }
    let tiles = |tile: Tile| {
        u64::from(shape.m.div_ceil(tile.m)) * u64::from(shape.n.div_ceil(tile.n)) * u64::from(matrices)
    };
    // Blocks of C's scale factors are whole in the columns that a CTA finishes.
    let least = if problem.formats.c.scales().is_some() && !swap_ab { 32 } else { 8 };
    let limits = arch.limits();
    let wider = [32, 64].into_iter().filter(|m| swap_ab && config.tile == Setting::Auto && *m > tile.m);
    let candidates = std::iter::once(tile).chain(wider.map(|m| Tile { m, ..tile })).flat_map(|wide| {
        let columns = if swap_ab { wide.m } else { wide.n };
        let model = Model::new(problem, wide, columns, arch);
        let fits = move |(parts, clusters): &(u32, u32)| {
            let clusters = match config.sms {
                Setting::Auto => *clusters,
                Setting::Fixed(sms) => (*clusters).min(sms / parts),
            };
            tiles(wide) <= u64::from(clusters)
                && columns.is_multiple_of(least * parts)
                && *parts <= shape.k.div_ceil(wide.k)
        };
        let parts = [2, 4, CLUSTER_LIMIT].into_iter().zip(limits.clusters).filter(fits);
        parts.map(move |(parts, _)| (Shares { parts, tile: wide }, model.seconds(parts)))
    });
    let alone = Model::new(problem, tile, if swap_ab { tile.m } else { tile.n }, arch).seconds(1);
    let whole = alone + limits.launch_gap + limits.dram_latency;
    let mut best: Option<(Shares, f64)> = None;
    for (shares, seconds) in candidates {
        let gain = if shares.tile == tile { 0.0 } else { PADDED_GAIN * whole };
        if best.is_none_or(|(_, least)| seconds + gain < least) {
            best = Some((shares, seconds));
        }
    }
    best.filter(|(_, seconds)| alone - seconds > GAIN * whole).map(|(shares, _)| shares)
}
