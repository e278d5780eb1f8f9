//! How often sums leave a tensor core that adds up products of 8-bit elements with fewer bits than fp32 has
//! (`promotion`, sm_90a).

use super::legalize::register_limit;
use super::{PromotionInterval, Wgmma};
use crate::arch::Arch;
use crate::config::{Accumulators, Config, Promotion, Setting, Strategy, Tile};
use crate::error::ConfigError;
use crate::problem::{MmaKind, Problem};

/// K after which sums are added to fp32 registers, as DeepSeek-V3 does (arXiv 2412.19437, 3.3.2).
const USUAL: u32 = 128;

/// K tiles that a loop takes at least, if it takes several at once.
pub(in crate::target) const LEAST_TOGETHER: u32 = 4;

/// Elements of K, and rows of B, that share an f32 scale factor.
pub(in crate::target) const BLOCK: u32 = 128;

/// The knob, where there are no sums that lack bits.
pub(super) fn check_knob(problem: &Problem, config: &Config, arch: Arch, errors: &mut Vec<ConfigError>) {
    if config.promotion.is_fixed() && !loses_bits(problem) {
        errors.push(ConfigError::NotOnChip {
            knob: "promotion",
            value: config.promotion.to_string(),
            arch,
            reason: "only sums of 8-bit elements' products lack bits there",
        });
    }
}

fn loses_bits(problem: &Problem) -> bool {
    problem.formats.check().ok() == Some(MmaKind::F8f6f4)
}

/// Columns of a tile that share a factor, at least, unless the tile has fewer.
const MIN_SHARED_COLUMNS: u32 = 32;

/// Columns of a tile that share f32 scale factors wherever the tile starts: as many as divide its columns and a block.
pub(in crate::target) fn shared_columns(columns: u32) -> u32 {
    let (mut a, mut b) = (columns.max(1), BLOCK);
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Whether a tile may have `columns` of B where operands are not swapped: they lie in one block that shares f32 scale factors, or
/// each run of at least 32 of them does.
pub(super) fn shares_factors(problem: &Problem, columns: u32) -> bool {
    !problem.formats.scales_sums() || shared_columns(columns) >= MIN_SHARED_COLUMNS.min(columns)
}

impl Wgmma {
    /// Rows of A that a thread has f32 scale factors of, and parts of a tile's columns that have a factor of B each.
    pub(in crate::target) fn scaled(&self, columns: u32, swap_ab: bool, tile_n: u32) -> [u32; 2] {
        if swap_ab { [columns / 4, 1] } else { [2 * self.blocks, tile_n / shared_columns(tile_n)] }
    }

    /// See [`Plan::loaded_factors`](crate::plan::Plan).
    pub(in crate::target) fn loaded_factors(
        &self,
        columns: u32,
        swap_ab: bool,
        tile_n: u32,
        b_tensors: u64,
    ) -> u64 {
        let [rows, blocks] = self.scaled(columns, swap_ab, tile_n).map(u64::from);
        let threads = 128 * u64::from(if self.ping_pong { 1 } else { self.count });
        threads * (rows + b_tensors * blocks)
    }
}

/// Registers that f32 scale factors take beside sums. With swapped operands a thread has a quarter of a tile's columns, which are rows of A.
/// Each row takes its scale factors of two K tiles, and a factor for the sums of each product. Otherwise a thread has two
/// rows of each 64, whose few registers are not counted. Each further part of a tile's columns counts with one register, and for
/// each product with one of B and one for each row. Places in memory and second sets of B are not counted: no kernel was seen to spill
/// (decision 0247).
pub(super) fn scale_registers(
    problem: &Problem,
    swap_ab: bool,
    tile: Tile,
    warpgroups: Wgmma,
    products: u32,
) -> u32 {
    if !problem.formats.scales_sums() {
        return 0;
    }
    let [rows, parts] = warpgroups.scaled(tile.m, swap_ab, tile.n);
    match swap_ab {
        true => rows.saturating_mul(2 + products),
        false => parts.saturating_sub(1).saturating_mul(products.saturating_mul(1 + rows) + 1),
    }
}

/// What f32 scale factors rule out: sums of a block of K leave the tensor core to be multiplied by them.
pub(super) fn check_scales(
    problem: &Problem,
    config: &Config,
    tile: Tile,
    swap_ab: bool,
    errors: &mut Vec<ConfigError>,
) {
    if !problem.formats.scales_sums() {
        return;
    }
    if tile.k != BLOCK {
        let reason = format!("K is {BLOCK}, the elements that share a scale factor");
        errors.push(ConfigError::WarpgroupTile { side: "K", given: tile.k, reason });
    }
    if !swap_ab && !shares_factors(problem, tile.n) {
        let reason = format!(
            "N divides {BLOCK} or is a multiple of {MIN_SHARED_COLUMNS}, so that each {MIN_SHARED_COLUMNS} columns share a scale factor"
        );
        errors.push(ConfigError::WarpgroupTile { side: "N", given: tile.n, reason });
    }
    if let Setting::Fixed(promotion) = config.promotion
        && promotion != Promotion::Every(BLOCK)
    {
        let reason = format!("sums of {BLOCK} elements of K share scale factors: every({BLOCK}) or auto");
        errors.push(ConfigError::Promotion { promotion, reason, scaled: true });
    }
}

/// How often a K loop with `tile` promotes its sums to fp32 registers. `None`: never before the end of K.
pub(super) fn settle(
    problem: &Problem,
    config: &Config,
    strategy: Strategy,
    tile: Tile,
    swap_ab: bool,
    warpgroups: Wgmma,
    errors: &mut Vec<ConfigError>,
) -> Option<PromotionInterval> {
    if !loses_bits(problem) || tile.k == 0 {
        return None;
    }
    let every = match config.promotion {
        Setting::Auto => USUAL.next_multiple_of(tile.k),
        Setting::Fixed(Promotion::Off) => return None,
        Setting::Fixed(promotion @ Promotion::Every(every)) => {
            if every == 0 || !every.is_multiple_of(tile.k) {
                let reason = format!(
                    "sums leave the tensor core between K tiles: {every} is no multiple of {}",
                    tile.k
                );
                // With scale factors `check_scales` says what it can be.
                if !problem.formats.scales_sums() {
                    errors.push(ConfigError::Promotion { promotion, reason, scaled: false });
                }
                return None;
            }
            every
        }
    };
    if every >= problem.shape.k && !problem.formats.scales_sums() {
        return None;
    }
    let tiles = every / tile.k;
    let one = PromotionInterval { tiles, sets: 1 };
    let two = PromotionInterval { tiles, sets: 2 };
    let products = if strategy == Strategy::Single { 1 } else { 2 };
    let scales = scale_registers(problem, swap_ab, tile, warpgroups, products);
    let sums = |interval| {
        Wgmma { promotion: Some(interval), ..warpgroups }.sum_registers(products).saturating_add(scales)
    };
    // Loops that take several K tiles at once need as many, and a third stage.
    let follow = problem.shape.k.div_ceil(tile.k) >= LEAST_TOGETHER && config.stages != Setting::Fixed(2);
    Some(match (strategy, config.layout()) {
        (Strategy::Interleaved, Accumulators::SideBySide) => two,
        // One set serves both products by turns, if neither's interval is open any more in the other's turn.
        (Strategy::Interleaved, _) if tiles == 1 && sums(two) > register_limit(warpgroups.count) => one,
        (Strategy::Interleaved, _) => two,
        // Two K tiles by turns: sums of one are added while the next one's MMAs run (decision 0245).
        (Strategy::Single, _) if tiles == 1 && follow && sums(two) <= register_limit(warpgroups.count) => two,
        _ => one,
    })
}

/// What a thread holds of a tile's size.
pub(super) fn name_sums(products: u32, warpgroups: Wgmma, scaled: bool) -> &'static str {
    match (products, warpgroups.promotion) {
        _ if scaled => "accumulators, sums on their way there, and scale factors",
        (1, None) => "an accumulator",
        (1, Some(_)) => "an accumulator, and sums on their way there",
        (_, None) => "two accumulators",
        (_, Some(PromotionInterval { sets: 1, .. })) => "two accumulators, and sums on their way there",
        (_, Some(_)) => "two accumulators, and as many sums on their way there",
    }
}
