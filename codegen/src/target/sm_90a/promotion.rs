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

/// How often a K loop with `tile` promotes its sums to fp32 registers. `None`: never before the end of K.
pub(super) fn settle(
    problem: &Problem,
    config: &Config,
    strategy: Strategy,
    tile: Tile,
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
                errors.push(ConfigError::Promotion { promotion, reason });
                return None;
            }
            every
        }
    };
    if every >= problem.shape.k {
        return None;
    }
    let tiles = every / tile.k;
    let one = PromotionInterval { tiles, sets: 1 };
    let two = PromotionInterval { tiles, sets: 2 };
    let sets = |interval| Wgmma { promotion: Some(interval), ..warpgroups }.sum_registers(2);
    Some(match (strategy, config.layout()) {
        (Strategy::Interleaved, Accumulators::SideBySide) => two,
        // One set serves both products by turns, if neither's interval is open any more in the other's turn.
        (Strategy::Interleaved, _) if tiles == 1 && sets(two) > register_limit(warpgroups.count) => one,
        (Strategy::Interleaved, _) => two,
        _ => one,
    })
}

/// What a thread holds of a tile's size.
pub(super) fn name_sums(products: u32, warpgroups: Wgmma) -> &'static str {
    match (products, warpgroups.promotion) {
        (1, None) => "an accumulator",
        (1, Some(_)) => "an accumulator, and sums on their way there",
        (_, None) => "two accumulators",
        (_, Some(PromotionInterval { sets: 1, .. })) => "two accumulators, and sums on their way there",
        (_, Some(_)) => "two accumulators, and as many sums on their way there",
    }
}
