//! Which tile takes the least time where weights are read as they are: an estimate of each, from what was measured.
//!
//! `evidence/tiles.jsonl` has the times of 330 problems on an H100 and 290 on an H200: tiles of 64 and 128 rows by 8 to 256 columns, and of
//! weights as rows. A test compares what is chosen here with the fastest of them (`tests/tiles.rs`, decision 0212).

use super::legalize::sum_limit;
use super::promotion;
use super::{heuristics, ping_pong};
use crate::arch::Arch;
use crate::config::{Config, Multicast, Schedule, Setting, Strategy, Tile};
use crate::heuristics::{sms, usual_tiles};
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
/// Parts for a tile's start and end, and for each column of its products on their way out.
const TILE: u64 = 24_000;
const TILE_COLUMN: u64 = 40;

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
    let candidates = of_rows(WARPGROUP_ROWS).chain(tall).filter(has_room);
    candidates.min_by_key(|tile| estimate(problem, config, arch, products, *tile)).unwrap_or_else(usual)
}

/// Whether few tokens are rows. Most SMs then get a narrow tile; tiles of 64 or 128 rows of weights leave most SMs without one.
/// Seen on an H100 with 1 to 32 tokens, problems drawn by a seed: 0.91 of the time in bf16 (0.74 with N below 1500), 1.00 in e4m3,
/// 0.96 in bf16 with one product. Also where tiles of 128 rows leave places in their waves; with 8-bit operands only if there are
/// several waves. That takes 0.83 to 1.03 of the time on an H200, 0.92 to 1.03 on an H100 (decisions 0230 and 0232). With f32 scale factors
/// it takes 0.82 to 1.04 of the time from 17 tokens on, and 1.02 to 1.15 with fewer (H200, decision 0239). Weights as rows may
/// leave room for more given stages.
pub(super) fn spreads(problem: &Problem, config: &Config, strategy: Strategy, arch: Arch) -> bool {
    let tiles = usual_tiles(problem.shape, 2 * WARPGROUP_ROWS)
        .saturating_mul(problem.shape.n.div_ceil(2 * WARPGROUP_ROWS).into());
    let sms = u64::from(sms(config, arch));
    let waves = tiles.div_ceil(sms.max(1));
    let idle = (waves > 1 || problem.formats.check() == Ok(MmaKind::F16))
        && tiles.saturating_mul(100) <= waves.saturating_mul(sms).saturating_mul(BUSY_PERCENT);
    let few = tiles.saturating_mul(5) <= 2 * sms;
    let leaves_sms = match problem.formats.scales_sums() {
        true => few && problem.shape.typical_rows() > TOKENS_BESIDE_FACTORS,
        false => few || idle,
    };
    estimates(problem, config, strategy) && !config.stages.is_fixed() && leaves_sms
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

/// Time of all tiles, in parts of a clock. A step of K takes as long as its loads, by the SMs that load at once, and its MMAs together.
fn estimate(problem: &Problem, config: &Config, arch: Arch, products: u32, tile: Tile) -> u64 {
    let shape = problem.shape;
    let (chip, sms) = (u64::from(arch.limits().sms), u64::from(sms(config, arch)));
    let tiles = usual_tiles(shape, tile.m).saturating_mul(shape.n.div_ceil(tile.n).into());
    let outside =
        u64::from(products) * (u64::from(shape.n).next_multiple_of(tile.n.into()) - u64::from(shape.n));
    let (rows, columns) = (u64::from(tile.m), u64::from(products) * u64::from(tile.n));
    let factors = problem.formats.scales_sums();
    let groups = rows / u64::from(WARPGROUP_ROWS);
    let loading = tiles.min(sms);
    let step = (PARTS * (rows + columns) + OUTSIDE * outside) * loading / chip
        + COLUMN * groups * columns
        + if factors { FACTORS * groups } else { 0 };
    let steps = u64::from(shape.k.div_ceil(tile.k));
    let rounds = tiles.div_ceil(sms);
    rounds.saturating_mul(steps * step + TILE + TILE_COLUMN * columns)
}
