//! Decoded weights whose MMAs have rows of both products (`wgmma`): whether, in which tiles, and who computes them.
//!
//! What is compared are estimates of an SM's time, in columns of C times tokens times K: those of its MMAs and of decoding what
//! they meet, and what a schedule adds to them. The constants were fitted to sweeps on an H200: 16 to 512 tokens by 1,024 to 28,672
//! features (`benches/gpu --format nvfp4w --knobs ...`). What `stream_k` costs was fitted to a sweep with repacked weights
//! (`evidence/decoded_tiles.jsonl`, decision 0228).

use crate::arch::Arch;
use crate::config::{Config, Multicast, Schedule, Setting, Tile};
use crate::heuristics::{sms, usual_tiles};
use crate::legalize::{CLUSTER_LIMIT, k_multiple};
use crate::problem::{Groups, Problem, Shape};
use std::iter;

/// Rows of a tile: 32 of each product in each of two or three warpgroups.
pub(super) const ROWS: [u32; 2] = [64, 96];
/// Elements of K of such a tile.
const K: u32 = 128;
/// Elements of K of a tile of [`ROWS`]`[0]` with few tokens, if CTAs share K: half as many barriers.
const LONG_K: u32 = 256;
/// Most tokens of such a tile.
const LONG_K_TOKENS: u32 = 96;
/// Time of a CTA with `stream_k`, in percent of its part of the work: parts are not equal to the last K tile, and loads start anew with
/// each. The second is for [`LONG_K`], which takes 0.97 of the time of [`K`] (decision 0228).
const STREAM_K_PERCENT: [u128; 2] = [102, 99];
/// Tokens of a tile at most, of two warpgroups and of three, which have fewer registers.
const MOST: [u32; 2] = [256, 128];
/// Tokens from which on separate MMAs are not looked at; of several matrices or groups, where less was tried.
const TOKENS: u32 = 64;
const TOKENS_OF_EACH: u32 = 129;
/// Waves of tiles from which on sharing K does not pay for what it adds.
const WAVES: u64 = 8;

/// What a launch that brings activations into order costs.
const ORDERING: u64 = 2_700_000;
/// Cost of handing sums over to one other CTA, per token of the tile, for tiles of each of [`ROWS`].
const HANDED_OVER: [u64; 2] = [80_000, 55_000];
/// Cost per token where the last of several CTAs collects the sums.
const COLLECTED: u64 = 200_000;
/// Cost per token of sending sums within a cluster.
const SENT: u64 = 50_000;
/// Cost per token of separate MMAs' sums: handed over with `stream_k`, and added with `split_k`.
const SEPARATE: u64 = 100_000;
const SPLIT: u64 = 148_000;

/// A tile, who computes such tiles, and how long that takes.
struct Choice {
    tile: Tile,
    schedule: Setting<Schedule>,
    cost: u64,
}

/// Whether rows of both products are worth a launch more, and nothing that was asked for is against it.
pub(super) fn gains(problem: &Problem, config: &Config, arch: Arch) -> bool {
    let shape = problem.shape;
    let free = !problem.formats.decodes_a(Arch::Sm90a)
        && !config.stages.is_fixed()
        && config.multicast == Multicast::None
        && matches!(
            config.schedule,
            Setting::Auto | Setting::Fixed(Schedule::OneTile | Schedule::Persistent | Schedule::StreamK)
        )
        && shape.k.next_multiple_of(k_multiple(problem)).is_multiple_of(K);
    free && match shape.groups {
        Groups::One if shape.m < TOKENS => {
            let both = best(problem, config, arch).cost.saturating_add(ORDERING);
            both.saturating_add(both / 32) < separate(shape, config, arch)
        }
        Groups::One => true,
        Groups::Batch(_) | Groups::Rows(_) => shape.typical_rows() >= TOKENS_OF_EACH,
    }
}

/// The tile that takes the least time.
pub(super) fn tile(problem: &Problem, config: &Config, arch: Arch) -> Tile {
    best(problem, config, arch).tile
}

/// Who computes such tiles: what was asked for, or what takes the least time.
pub(super) fn schedule(problem: &Problem, config: &Config, tile: Tile, arch: Arch) -> Setting<Schedule> {
    of_tile(problem.shape, config, tile, arch).schedule
}

fn best(problem: &Problem, config: &Config, arch: Arch) -> Choice {
    let shape = problem.shape;
    let rows = shape.typical_rows().max(1);
    // What no cluster has is refused elsewhere.
    let share = (8 * config.multicast.ctas().clamp(1, CLUSTER_LIMIT)).next_multiple_of(16);
    let tiles = ROWS.into_iter().zip(MOST).flat_map(|(n, most)| {
        (1..=rows.div_ceil(64).min(64))
            .map(move |parts| rows.div_ceil(parts).min(most).next_multiple_of(share).clamp(share, most))
            .map(move |m| Tile { m, n, k: K })
    });
    let long = shape.k.is_multiple_of(LONG_K) && shares_k(shape, config) && !config.stages.is_fixed();
    let tiles = tiles.flat_map(|tile| {
        let longer = long && tile.n == ROWS[0] && tile.m <= LONG_K_TOKENS;
        iter::once(tile).chain(longer.then_some(Tile { k: LONG_K, ..tile }))
    });
    let choices = tiles.map(|tile| of_tile(shape, config, tile, arch));
    let widest = || of_tile(shape, config, Tile { m: MOST[0], n: ROWS[0], k: K }, arch);
    choices.min_by_key(|choice| choice.cost).unwrap_or_else(widest)
}

/// Whether CTAs may share the K of one matrix with `stream_k`.
fn shares_k(shape: Shape, config: &Config) -> bool {
    let asked = config.schedule == Setting::Fixed(Schedule::StreamK);
    let free = !config.schedule.is_fixed() && config.multicast == Multicast::None;
    (asked || free) && shape.groups == Groups::One
}

/// The schedule for a tile: whole tiles, shared K where waves would leave many SMs idle, or clusters of two, which every chip has
/// room for, where there are tiles for half of the SMs at most.
fn of_tile(shape: Shape, config: &Config, tile: Tile, arch: Arch) -> Choice {
    let sms = u64::from(sms(config, arch)).max(1);
    let (m, k) = (u64::from(tile.m), u64::from(shape.k));
    let rows = usual_tiles(shape, tile.m.max(1));
    let tiles = rows.saturating_mul(shape.n.div_ceil(tile.n.max(1)).into()).max(1);
    let work = k.saturating_mul(rate(tile));
    let whole = tiles.div_ceil(sms).saturating_mul(work);
    let percent = STREAM_K_PERCENT[usize::from(tile.k == LONG_K && tile.m <= LONG_K_TOKENS)];
    let shared =
        (u128::from(tiles) * u128::from(work) * percent / 100 / u128::from(sms)).min(u64::MAX.into()) as u64;
    let handed_over = HANDED_OVER[usize::from(tile.n == ROWS[1])];
    let stream = shared.saturating_add(m * if tiles >= sms { handed_over } else { COLLECTED });
    let cluster = (work / 2).saturating_add(m * SENT);
    let choice = |schedule, cost| Choice { tile, schedule, cost };
    if config.schedule.is_fixed() || config.multicast != Multicast::None || shape.groups != Groups::One {
        let stream_k = config.schedule == Setting::Fixed(Schedule::StreamK);
        return choice(config.schedule, if stream_k { stream } else { whole });
    }
    let mut best = choice(Setting::Auto, whole);
    // A tile of more tokens in several parts would take registers that are not there.
    let parts_fit = tiles >= sms || tile.m <= MOST[1];
    if stream < best.cost && tiles < WAVES * sms && parts_fit {
        best = choice(Setting::Fixed(Schedule::StreamK), stream);
    }
    // A part is long enough for its loads to get going.
    if cluster < best.cost && 2 * tiles <= sms && m.is_multiple_of(32) && k >= 2048 {
        best = choice(Setting::Fixed(Schedule::ClusterSplitK(2)), cluster);
    }
    best
}

/// Cost of an element of K: a tile's MMAs, and beside them what weights cost to decode and, with few tokens, to load. With
/// the most tokens three warpgroups hide more of that than two.
fn rate(tile: Tile) -> u64 {
    let (m, n) = (u64::from(tile.m), u64::from(tile.n));
    let hidden = if tile.n == ROWS[1] && tile.m == MOST[1] { 4 } else { 0 };
    n * (m + 80 - hidden).max(m / 2 + 107)
}

/// What separate MMAs of 128 rows take, with activations put in order in shared memory, as [`super::wgmma`] schedules them.
fn separate(shape: Shape, config: &Config, arch: Arch) -> u64 {
    let sms = u64::from(sms(config, arch)).max(1);
    let (m, k) = (u64::from(shape.m.next_multiple_of(8)), u64::from(shape.k));
    let work = k.saturating_mul(128 * (m + 86));
    let tiles = u64::from(shape.n.div_ceil(128)).max(1);
    let auto = config.schedule == Setting::Auto;
    match (sms / tiles).min(4) {
        parts @ 2.. if auto && k >= 1024 * parts => work / parts + 3_200_000 + m * SPLIT,
        1 if auto && 4 * tiles <= 3 * sms && k >= 4096 => work / sms * tiles + 16_000_000 + m * SEPARATE,
        _ => tiles.div_ceil(sms).saturating_mul(work),
    }
}
