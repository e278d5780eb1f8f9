//! Which tile takes the least time where weights are read as they are: an estimate of each, from what was measured.
//!
//! `evidence/tiles.jsonl` has the times of 330 problems on an H100 and 290 on an H200: tiles of 64 and 128 rows by 8 to 256 columns, and of
//! weights as rows. A test compares what is chosen here with the fastest of them (`tests/tiles.rs`, decision 0212). Whether the CTAs of a
//! cluster share a tile's K comes from the times of 170 problems on an H200 (decision 0250).

use super::legalize::sum_limit;
use super::promotion;
use super::{heuristics, ping_pong};
use crate::arch::Arch;
use crate::config::{Config, Multicast, Schedule, Setting, Store, Strategy, Tile};
use crate::heuristics::{cluster_slots, sms, usual_tiles};
use crate::problem::{Groups, MmaKind, Problem};
use crate::target::fragments::{WARPGROUP_ROWS, least_busy};

/// Percent of the places in their waves (waves times SMs) up to which tiles of 128 rows of weights give way to tokens as rows.
const BUSY_PERCENT: u64 = 75;
/// Tokens up to which weights stay the rows with f32 scale factors.
const TOKENS_BESIDE_FACTORS: u32 = 16;
/// Parts of a clock that estimates count in.
const PARTS: u64 = 4;
/// Tokens up to which times were measured. With more, tiles of 128 rows take turns on all SMs.
const MOST_TOKENS: u32 = 1024;
/// Shared memory for barriers, at most.
const BARRIERS: u64 = 2048;
/// Parts for a column of an MMA of 64 rows: its operands and its share of the tensor core.
const COLUMN: u64 = 7;
/// Parts for a column of the last tile along N that is outside of B, if all SMs load at once.
const OUTSIDE: u64 = 3;
/// Parts for the f32 scale factors of 64 rows.
const FACTORS: u64 = 240;
/// K of a tile with such factors: a block of 8-bit elements.
const FACTORS_K: u32 = 128;
/// Parts for a tile's start and end, and for each column of its products on their way out.
const TILE: u64 = 24_000;
const TILE_COLUMN: u64 = 40;
/// CTAs that may share a tile's K, besides one alone.
const PARTS_OF_K: [u32; 2] = [2, 4];
/// Elements of K that a part has at least.
const LEAST_PART: u32 = 1024;
/// Parts of a clock for an exchange of sums, besides one for each sum that a CTA sends.
const EXCHANGE: u64 = 2000;
/// Percent of the time of loads by all SMs that loads by a few take.
const LEAST_LOAD: u64 = 90;
/// Hundredths of a part in which DRAM brings 128 bytes of weights.
const WEIGHTS: u64 = 16;
/// Percent of the time of whole tiles up to which tiles are shared, and where there are several rows of them: each then reads all weights,
/// which estimates do not see.
const SHARED: u64 = 97;
const SHARED_ROWS: u64 = 85;

/// The tile with tokens as rows, 128 for two warpgroups or 64 for one, and K of `k` elements: the one that is estimated to take the
/// least time, or with as many rows as usual the columns that leave the busiest SM the least to do.
pub(super) fn choose(problem: &Problem, config: &Config, strategy: Strategy, arch: Arch, k: u32) -> Tile {
    let products = strategy.products();
    let widest = if products == 2 { 128 } else { 256 };
    let fits = |tile: &Tile| {
        let mut warpgroups = heuristics::share(*tile, config, false, false);
        let none = &mut Vec::new();
        warpgroups.promotion = promotion::settle(problem, config, strategy, *tile, false, warpgroups, none);
        let scales = promotion::scale_registers(problem, false, *tile, warpgroups, products);
        warpgroups.sum_registers(products) + scales <= sum_limit(problem, warpgroups)
            && promotion::shares_factors(problem, tile.n)
    };
    let of_rows = |m: u32| (1..=widest / 16).map(move |n| Tile { m, n: 16 * n, k }).filter(fits);
    let few = problem.shape.typical_rows() <= WARPGROUP_ROWS;
    let usual = || {
        let m = if few || ping_pong(config) { WARPGROUP_ROWS } else { 2 * WARPGROUP_ROWS };
        let columns = of_rows(m).rev().map(|tile| tile.n).filter(|n| *n > 16);
        Tile { m, n: least_busy(problem, config, arch, m, columns).unwrap_or(128), k }
    };
    if !estimates(problem, config, strategy) {
        return usual();
    }
    // Given stages have to fit, each of 128 bytes of K. Staging of C gives way to them.
    let room = u64::from(arch.limits().smem_bytes).saturating_sub(BARRIERS);
    let stage = |tile: &Tile| 128 * u64::from(tile.m + products * tile.n);
    let has_room = |tile: &Tile| match config.stages {
        Setting::Fixed(stages) => stage(tile).saturating_mul(stages.into()) <= room,
        Setting::Auto => true,
    };
    let tall = of_rows(2 * WARPGROUP_ROWS).filter(|_| !few);
    let candidates = || of_rows(WARPGROUP_ROWS).chain(tall.clone()).filter(has_room);
    let alone = |tile| time(problem, config, arch, products, tile, 1);
    let Some(whole) = candidates().map(alone).min() else { return usual() };
    let shared = candidates().filter_map(|tile| {
        let (time, _) = shared(problem, config, arch, products, tile)?;
        pays(problem, time, whole).then_some((time, tile))
    });
    if let Some((_, tile)) = shared.min_by_key(|(time, _)| *time) {
        return tile;
    }
    candidates().min_by_key(|tile| estimate(problem, config, arch, products, *tile)).unwrap_or_else(usual)
}

/// How many CTAs of a cluster share a tile's K, if that takes less time than whole tiles.
pub(super) fn parts_of_k(
    problem: &Problem,
    config: &Config,
    strategy: Strategy,
    arch: Arch,
    tile: Tile,
) -> Option<u32> {
    let products = strategy.products();
    let (shared, parts) = shared(problem, config, arch, products, tile)?;
    pays(problem, shared, time(problem, config, arch, products, tile, 1)).then_some(parts)
}

/// The least time of a tile whose K the CTAs of a cluster share, and how many.
fn shared(problem: &Problem, config: &Config, arch: Arch, products: u32, tile: Tile) -> Option<(u64, u32)> {
    let free = config.schedule == Setting::Auto && config.store != Setting::Fixed(Store::Tma);
    let tiles =
        usual_tiles(problem.shape, tile.m).saturating_mul(problem.shape.n.div_ceil(tile.n.max(1)).into());
    let least = if problem.formats.c.scales().is_some() { 32 } else { 8 };
    let fits = |parts: &u32| {
        tiles <= cluster_slots(config, arch, *parts).into()
            && tile.n.is_multiple_of(least * parts)
            && problem.shape.k >= LEAST_PART * parts
    };
    let time = |parts| (time(problem, config, arch, products, tile, parts), parts);
    PARTS_OF_K.into_iter().filter(|_| free).filter(fits).map(time).min()
}

/// Whether tiles that CTAs share are preferred to whole ones.
fn pays(problem: &Problem, shared: u64, whole: u64) -> bool {
    let percent = if problem.shape.typical_rows() <= WARPGROUP_ROWS { SHARED } else { SHARED_ROWS };
    shared.saturating_mul(100) < whole.saturating_mul(percent)
}

/// Time of tiles that `parts` CTAs each compute together, all at the same time, in parts of a clock. Few CTAs load little faster than many,
/// and DRAM brings the weights no faster than it can.
fn time(problem: &Problem, config: &Config, arch: Arch, products: u32, tile: Tile, parts: u32) -> u64 {
    let Costs { load, mmas, steps, tiles, columns } = costs(problem, products, tile);
    let (chip, sms) = (u64::from(arch.limits().sms), u64::from(sms(config, arch)));
    let ctas = tiles.saturating_mul(parts.into());
    let step = (load * ctas.min(sms) / chip).max(load * LEAST_LOAD / 100) + mmas;
    let weights = u64::from(products) * u64::from(problem.shape.n) * steps * WEIGHTS / 100;
    let exchange = match parts {
        1 => 0,
        _ => EXCHANGE + u64::from(tile.m) * columns * u64::from(parts - 1) / u64::from(parts),
    };
    let rounds = ctas.div_ceil(sms);
    rounds.saturating_mul(steps.div_ceil(parts.into()) * step).max(weights)
        + rounds.saturating_mul(TILE + TILE_COLUMN * columns)
        + exchange
}

/// Whether few tokens are rows. Most SMs then get a narrow tile; tiles of 64 or 128 rows of weights leave most SMs without one.
/// Seen on an H100 with 1 to 32 tokens, problems drawn by a seed: 0.91 of the time in bf16 (0.74 with N below 1500), 1.00 in e4m3,
/// 0.96 in bf16 with one product. Also where tiles of 128 rows leave places in their waves; with 8-bit operands only if there are
/// several waves. That takes 0.83 to 1.03 of the time on an H200, 0.92 to 1.03 on an H100 (decisions 0230 and 0232). With f32 scale factors
/// it takes 0.82 to 1.04 of the time from 17 tokens on, and 1.02 to 1.15 with fewer (H200, decision 0239), unless CTAs share K: then 0.64 to
/// 0.95 (decision 0250). Weights as rows may leave room for more given stages.
pub(super) fn spreads(problem: &Problem, config: &Config, strategy: Strategy, arch: Arch) -> bool {
    let tiles = usual_tiles(problem.shape, 2 * WARPGROUP_ROWS)
        .saturating_mul(problem.shape.n.div_ceil(2 * WARPGROUP_ROWS).into());
    let sms = u64::from(sms(config, arch));
    let waves = tiles.div_ceil(sms.max(1));
    let idle = (waves > 1 || problem.formats.check() == Ok(MmaKind::F16))
        && tiles.saturating_mul(100) <= waves.saturating_mul(sms).saturating_mul(BUSY_PERCENT);
    let few = tiles.saturating_mul(5) <= 2 * sms;
    let shares = || {
        let tile = choose(problem, config, strategy, arch, FACTORS_K);
        parts_of_k(problem, config, strategy, arch, tile).is_some()
    };
    let leaves_sms = || match problem.formats.scales_sums() {
        true => few && (problem.shape.typical_rows() > TOKENS_BESIDE_FACTORS || shares()),
        false => few || idle,
    };
    estimates(problem, config, strategy) && !config.stages.is_fixed() && leaves_sms()
}

/// Whether tiles are chosen by their estimates: for grids like those that were measured.
pub(super) fn estimates(problem: &Problem, config: &Config, strategy: Strategy) -> bool {
    config.multicast == Multicast::None
        && !ping_pong(config)
        && matches!(config.schedule, Setting::Auto | Setting::Fixed(Schedule::OneTile))
        && matches!(strategy, Strategy::Interleaved | Strategy::Single)
        && problem.shape.groups == Groups::One
        && problem.shape.m <= MOST_TOKENS
}

/// What a tile takes: in a step of K its loads and its MMAs, in parts of a clock; the steps; the tiles there are; columns of all products.
struct Costs {
    load: u64,
    mmas: u64,
    steps: u64,
    tiles: u64,
    columns: u64,
}

fn costs(problem: &Problem, products: u32, tile: Tile) -> Costs {
    let shape = problem.shape;
    let outside =
        u64::from(products) * (u64::from(shape.n).next_multiple_of(tile.n.into()) - u64::from(shape.n));
    let (rows, columns) = (u64::from(tile.m), u64::from(products) * u64::from(tile.n));
    let groups = rows / u64::from(WARPGROUP_ROWS);
    let factors = if problem.formats.scales_sums() { FACTORS * groups } else { 0 };
    Costs {
        load: PARTS * (rows + columns) + OUTSIDE * outside,
        mmas: COLUMN * groups * columns + factors,
        steps: shape.k.div_ceil(tile.k).into(),
        tiles: usual_tiles(shape, tile.m).saturating_mul(shape.n.div_ceil(tile.n).into()),
        columns,
    }
}

/// Time of all tiles, each by a CTA, in parts of a clock. A step of K takes as long as its loads, by the SMs that load at once, and its MMAs
/// together.
fn estimate(problem: &Problem, config: &Config, arch: Arch, products: u32, tile: Tile) -> u64 {
    let Costs { load, mmas, steps, tiles, columns } = costs(problem, products, tile);
    let (chip, sms) = (u64::from(arch.limits().sms), u64::from(sms(config, arch)));
    let step = load * tiles.min(sms) / chip + mmas;
    let rounds = tiles.div_ceil(sms);
    rounds.saturating_mul(steps * step + TILE + TILE_COLUMN * columns)
}
