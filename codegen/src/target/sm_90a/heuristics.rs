//! How `auto` is settled where warpgroups issue the MMAs (`wgmma`, sm_90a).

use super::legalize::{self, sum_limit};
use super::promotion;
use super::tiles::Tiles;
use super::{Wgmma, decodes, has_interleaved_rows, interleaved, ping_pong};
use crate::arch::Arch;
use crate::config::{
    Accumulators, Config, CtaGroup, Multicast, Schedule, Setting, Store, Strategy, Switch, Tile,
};
use crate::error::ConfigError;
use crate::heuristics::{Rule, Rules, choose_strategy, sms, usual_tiles};
use crate::legalize::k_multiple;
use crate::plan::Plan;
use crate::plan::draft::{Draft, Settled};
use crate::problem::{Groups, MmaKind, Problem, Shape};
use crate::target::Target;
use crate::target::fragments::{
    self, COLUMN_LIMIT, WARPGROUP_ROWS, choose_store, settle_store, share_rows, store_rule,
};

/// Columns of an MMA from which on decoding weights in natural order can pay.
const LEAST_NATURAL: u32 = 240;
/// The same for repacked weights.
const LEAST_NATURAL_REPACKED: u32 = 208;

/// See [`Way::plan`](crate::target::Way).
pub(crate) fn plan(problem: &Problem, asked: &Config, arch: Arch) -> Result<Plan, Vec<ConfigError>> {
    legalize::check_asked(problem, asked, arch)?;
    let config = &Config { cta_group: Setting::Fixed(CtaGroup::One), ..asked.with_rows_for(problem.formats) };
    let mut rules = Rules::default();
    let strategy = rules.settle("strategy", config.strategy, || choose_strategy(problem));
    let (swap_ab, rule) = swaps(problem, config, strategy, arch);
    rules.note("swap_ab", rule);
    let tile = rules.settle("tile", config.tile, || {
        let rule = match swap_ab {
            true => Rule::WarpgroupColumns,
            false if (Tiles { problem, config, strategy, arch }).estimated() => Rule::LeastTime,
            false => Rule::WarpgroupRows,
        };
        (choose_tile(problem, config, strategy, swap_ab, arch), rule)
    });
    let accumulators = rules.settle("accumulators", config.accumulators, || {
        match has_interleaved_rows(problem, config, arch) {
            true => (Accumulators::InterleavedRows, Rule::InterleavedRows),
            false => choose_layout(problem, strategy, tile, swap_ab),
        }
    });
    let (schedule, schedule_rule) = choose_schedule(problem, config, strategy, tile, swap_ab, arch);
    rules.note_all(schedule_rule.map(|rule| ("schedule", rule)));
    let store = config.store.unwrap_or_else(|| match schedule {
        // Shared memory holds sums then.
        Setting::Fixed(Schedule::ClusterSplitK(_)) => Store::Direct,
        Setting::Fixed(_) | Setting::Auto => choose_store(problem, strategy, tile, swap_ab),
    });
    // A stage counts where weights are the rows: loads matter most there.
    settle_store(
        asked,
        store,
        |plan| plan.work.is_looped() && swap_ab,
        |store| {
            let config = &Config {
                accumulators: Setting::Fixed(accumulators),
                store: Setting::Fixed(store),
                schedule,
                ..*config
            };
            let mut rules = rules.clone();
            rules.note("store", store_rule(store, swap_ab));
            settle(problem, config, arch, strategy, tile, swap_ab, rules)
        },
    )
}

/// The plan, once all is settled but what has to fit.
fn settle(
    problem: &Problem,
    config: &Config,
    arch: Arch,
    strategy: Strategy,
    tile: Tile,
    swap_ab: bool,
    rules: Rules,
) -> Result<Plan, Vec<ConfigError>> {
    let mut errors = Vec::new();
    let mut warpgroups = share(tile, config, swap_ab, has_interleaved_rows(problem, config, arch));
    warpgroups.ordered = warpgroups.interleaved_rows && orders_first(problem, tile, config, arch);
    warpgroups.promotion =
        promotion::settle(problem, config, strategy, tile, swap_ab, warpgroups, &mut errors);
    let settled = Settled { strategy, tile, swap_ab, target: Target::Wgmma(warpgroups), rules };
    legalize::check(problem, config, arch, &settled, warpgroups, &mut errors);
    if !errors.is_empty() {
        return Err(errors);
    }
    Draft::new(problem, config, arch, settled, &mut errors)?.plan(errors)
}

/// Whether weights take the MMA's row side: for few tokens and many columns.
fn swaps(problem: &Problem, config: &Config, strategy: Strategy, arch: Arch) -> (bool, Rule) {
    if decodes(problem) {
        return (config.swap_ab != Setting::Fixed(Switch::Off), Rule::DecodedInRegisters);
    }
    let free = config.accumulators != Setting::Fixed(Accumulators::SideBySide)
        && config.multicast == Multicast::None;
    let (swaps, rule) = fragments::swaps(problem, config, free);
    let spread = || Tiles { problem, config, strategy, arch }.spread();
    match swaps && config.swap_ab == Setting::Auto && spread() {
        true => (false, Rule::TokensAreRows),
        false => (swaps, rule),
    }
}

/// One MMA of both products where it takes their columns: it reads A once. Not of 8-bit elements, whose sums leave the
/// tensor core product by product.
fn choose_layout(problem: &Problem, strategy: Strategy, tile: Tile, swap_ab: bool) -> (Accumulators, Rule) {
    let together = strategy == Strategy::Interleaved
        && !swap_ab
        && tile.n <= COLUMN_LIMIT / 2
        && problem.formats.check() == Ok(MmaKind::F16);
    match together {
        true => (Accumulators::SideBySide, Rule::ReadsAOnce),
        false => (Accumulators::Separate, Rule::MmaOfEach),
    }
}

/// Decoded weights keep SMs busy for long: where there are tiles for half of them at most, parts of K are for the others; where a
/// quarter would have none, all share K; and where each has several, loads of the next go on under the epilogue (seen on an
/// H200: 31, 3 and 2.5 % of the time).
fn choose_schedule(
    problem: &Problem,
    config: &Config,
    strategy: Strategy,
    tile: Tile,
    swap_ab: bool,
    arch: Arch,
) -> (Setting<Schedule>, Option<Rule>) {
    let tiles = Tiles { problem, config, strategy, arch };
    // A given tile may have a side of 0, which is refused later.
    let is_empty = tile.m == 0 || tile.n == 0 || tile.k == 0;
    if !is_empty && !decodes(problem) && !swap_ab && tiles.estimated() {
        return match tiles.parts_of_k(tile) {
            Some(parts) => (
                Setting::Fixed(Schedule::ClusterSplitK(parts)),
                Some(Rule::ClusterSharesK { modelled: false }),
            ),
            None => (config.schedule, None),
        };
    }
    if config.schedule.is_fixed()
        || ping_pong(config)
        || !decodes(problem)
        || problem.shape.groups != Groups::One
        || is_empty
    {
        return (config.schedule, None);
    }
    if has_interleaved_rows(problem, config, arch) {
        let schedule = interleaved::schedule(problem, config, tile, arch);
        let rule = match schedule {
            Setting::Fixed(Schedule::ClusterSplitK(_)) => Some(Rule::ClusterSharesK { modelled: false }),
            Setting::Fixed(_) => Some(Rule::EqualShares),
            Setting::Auto => None,
        };
        return (schedule, rule);
    }
    let Shape { m, n, k, .. } = problem.shape;
    let tiles = u64::from(m.div_ceil(tile.m))
        .saturating_mul(u64::from(n.div_ceil(tile.n)))
        .saturating_mul(u64::from(config.multicast.ctas()));
    let sms = u64::from(sms(config, arch));
    let parts = (sms / tiles.max(1)).min(4) as u32;
    // A part is long enough for its loads to get going.
    match parts {
        0 if tiles >= 3 * sms => (Setting::Fixed(Schedule::Persistent), Some(Rule::SeveralTiles)),
        1 if 4 * tiles <= 3 * sms && k >= 4096 => {
            (Setting::Fixed(Schedule::StreamK), Some(Rule::EqualShares))
        }
        2.. if k >= 1024 * parts => (Setting::Fixed(Schedule::SplitK(parts)), Some(Rule::PartsOfK)),
        _ => (Setting::Auto, None),
    }
}

/// The tile, with K one swizzle span of 128 bytes.
fn choose_tile(problem: &Problem, config: &Config, strategy: Strategy, swap_ab: bool, arch: Arch) -> Tile {
    let shape = problem.shape;
    let span = 128 * 8 / problem.formats.check().map_or(16, MmaKind::container_bits);
    let k = shape.k.next_multiple_of(k_multiple(problem)).min(span);
    let k = if k * 4 == span * 3 { span } else { k };
    if decodes(problem) {
        if has_interleaved_rows(problem, config, arch) {
            return interleaved::tile(problem, config, arch);
        }
        let columns = shape.typical_rows().next_multiple_of(8).clamp(8, 128);
        // The more of K a tile has, the fewer steps wait for each other (seen on an H200); with many activations that
        // leaves too few stages, with those that are decoded earlier.
        let packed = problem.formats.decodes_a(Arch::Sm90a);
        let longest = if columns <= if packed { 32 } else { 64 } { 256 } else { 128 };
        let several = shape.m > columns || matches!(config.multicast, Multicast::B(_));
        let columns = if packed && several { columns.next_power_of_two() } else { columns };
        let block = k_multiple(problem);
        let whole = |k: &u32| *k <= longest && shape.k.next_multiple_of(block).is_multiple_of(*k);
        let k = [256, 128].into_iter().find(whole).unwrap_or(block);
        return Tile { m: columns, n: 128, k };
    }
    if swap_ab {
        let most = shape.typical_rows().next_multiple_of(8).clamp(8, 128);
        let tile = |m: u32| Tile { m, n: swapped_rows(shape, m, sms(config, arch)), k };
        // Scale factors of each column take registers.
        let fits = |m: &u32| {
            let mut warpgroups = share(tile(*m), config, swap_ab, false);
            let none = &mut Vec::new();
            warpgroups.promotion =
                promotion::settle(problem, config, strategy, tile(*m), swap_ab, warpgroups, none);
            let products = strategy.products();
            let scales = promotion::scale_registers(problem, swap_ab, tile(*m), warpgroups, products);
            scales == 0 || warpgroups.sum_registers(products) + scales <= sum_limit(problem, warpgroups)
        };
        return tile((1..=most / 8).rev().map(|eights| 8 * eights).find(fits).unwrap_or(8));
    }
    Tiles { problem, config, strategy, arch }.choose(k)
}

/// Rows of weights in a tile of so many tokens: 128, or 64 where tiles of 128 leave half of the SMs without one (seen on an H100 with
/// 16 tokens: 0.66 of the time in bf16 and 0.72 in e4m3 with 16 tiles of 128, 0.93 in bf16 with 32, 0.99 with 56).
fn swapped_rows(shape: Shape, columns: u32, sms: u32) -> u32 {
    // Some groups have no rows if there are more groups than rows.
    let groups = if shape.groups.by_rows() { u64::from(shape.m) } else { u64::MAX };
    let tiles = usual_tiles(shape, columns).min(groups) * u64::from(shape.n.div_ceil(128));
    if 2 * tiles <= u64::from(sms) { 64 } else { 128 }
}

/// Whether a launch pays that permutes activations before the kernel that decodes weights. The launch takes 3 us or more. Without
/// it, decoding takes 1.5 times as many instructions. MMAs of many columns hide most of them. Seen on an H200 with one tile per SM,
/// the time without the launch is 0.96 of the time with it for 256 columns, 1.035 for 192 and 1.14 for 128. With repacked weights it
/// is 0.96 for 256, 0.98 for 224, 1.00 for 192 and 1.08 for 160 (decisions 0131 and 0224).
fn orders_first(problem: &Problem, tile: Tile, config: &Config, arch: Arch) -> bool {
    let shape = problem.shape;
    let tiles = usual_tiles(shape, tile.m).saturating_mul(shape.n.div_ceil(tile.n.max(1)).into());
    // Code that shares K through memory, too, leaves too few registers.
    let shares = matches!(config.schedule, Setting::Fixed(Schedule::StreamK | Schedule::SplitK(_)));
    let least = match problem.formats.b.repacks() {
        Some(_) => LEAST_NATURAL_REPACKED,
        None => LEAST_NATURAL,
    };
    tile.m < least || shares || tiles > u64::from(sms(config, arch))
}

/// How warpgroups share the tile's rows: 64 each, or, of 256, 128.
pub(super) fn share(tile: Tile, config: &Config, swap_ab: bool, interleaved_rows: bool) -> Wgmma {
    let (rows, columns) = if swap_ab { (tile.n, tile.m) } else { (tile.m, tile.n) };
    let (rows, columns) =
        if interleaved_rows { (rows.saturating_mul(2), columns / 2) } else { (rows, columns) };
    let (count, blocks) = match ping_pong(config) {
        true => (2, rows / WARPGROUP_ROWS),
        false => share_rows(rows),
    };
    Wgmma { ping_pong: ping_pong(config), interleaved_rows, ..Wgmma::together(count, blocks, columns) }
}
