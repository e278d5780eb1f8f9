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

/// What tiles are estimated for.
pub(super) struct Tiles<'a> {
    pub problem: &'a Problem,
    pub config: &'a Config,
    pub strategy: Strategy,
    pub arch: Arch,
}

/// What a tile takes: in a step of K its loads and its MMAs, in parts of a clock; the steps; the tiles there are; columns of all products.
struct Costs {
    load: u64,
    mmas: u64,
    steps: u64,
    tiles: u64,
    columns: u64,
}

impl Tiles<'_> {
    /// The tile with tokens as rows, 128 for two warpgroups or 64 for one, and K of `k` elements: the one that is estimated to take the
    /// least time, or with as many rows as usual the columns that leave the busiest SM the least to do.
    pub fn choose(&self, k: u32) -> Tile {
        let candidates = self.candidates(k);
        if !self.estimated() || candidates.is_empty() {
            return self.usual(k);
        }
        match self.shared(&candidates) {
            Some((tile, _)) => tile,
            None => candidates.into_iter().min_by_key(|tile| self.estimate(*tile)).unwrap_or(self.usual(k)),
        }
    }

    /// How many CTAs of a cluster share the K of this tile, if that takes less time than whole tiles do.
    pub fn parts_of_k(&self, tile: Tile) -> Option<u32> {
        let candidates = match self.config.tile {
            Setting::Fixed(_) => vec![tile],
            Setting::Auto => self.candidates(tile.k),
        };
        self.shared(&candidates).map(|(_, parts)| parts)
    }

    /// Whether few tokens are rows. Most SMs then get a narrow tile; tiles of 64 or 128 rows of weights leave most SMs without one.
    /// Seen on an H100 with 1 to 32 tokens, problems drawn by a seed: 0.91 of the time in bf16 (0.74 with N below 1500), 1.00 in e4m3,
    /// 0.96 in bf16 with one product. Also where tiles of 128 rows leave places in their waves; with 8-bit operands only if there are
    /// several waves. That takes 0.83 to 1.03 of the time on an H200, 0.92 to 1.03 on an H100 (decisions 0230 and 0232). With f32 scale
    /// factors it takes 0.82 to 1.04 of the time from 17 tokens on, and 1.02 to 1.15 with fewer (H200, decision 0239), unless CTAs share
    /// K: then 0.64 to 0.95 (decision 0250). Weights as rows may leave room for more given stages.
    pub fn spread(&self) -> bool {
        let shape = self.problem.shape;
        let tiles = usual_tiles(shape, 2 * WARPGROUP_ROWS)
            .saturating_mul(shape.n.div_ceil(2 * WARPGROUP_ROWS).into());
        let sms = self.sms();
        let waves = tiles.div_ceil(sms.max(1));
        let idle = (waves > 1 || self.problem.formats.check() == Ok(MmaKind::F16))
            && tiles.saturating_mul(100) <= waves.saturating_mul(sms).saturating_mul(BUSY_PERCENT);
        let few = tiles.saturating_mul(5) <= 2 * sms;
        let many_tokens = shape.typical_rows() > TOKENS_BESIDE_FACTORS;
        let leaves_sms = || match self.problem.formats.scales_sums() {
            true => few && (many_tokens || self.shared(&self.candidates(FACTORS_K)).is_some()),
            false => few || idle,
        };
        self.estimated() && !self.config.stages.is_fixed() && leaves_sms()
    }

    /// Whether tiles are chosen by their estimates: for grids like those that were measured.
    pub fn estimated(&self) -> bool {
        let Tiles { problem, config, strategy, .. } = self;
        config.multicast == Multicast::None
            && !ping_pong(config)
            && matches!(config.schedule, Setting::Auto | Setting::Fixed(Schedule::OneTile))
            && matches!(strategy, Strategy::Interleaved | Strategy::Single)
            && problem.shape.groups == Groups::One
            && problem.shape.m <= MOST_TOKENS
    }

    fn sms(&self) -> u64 {
        sms(self.config, self.arch).into()
    }

    fn few(&self) -> bool {
        self.problem.shape.typical_rows() <= WARPGROUP_ROWS
    }

    /// Tiles of so many rows whose sums fit a thread's registers.
    fn of_rows(&self, m: u32, k: u32) -> impl DoubleEndedIterator<Item = Tile> {
        let Tiles { problem, config, strategy, .. } = *self;
        let products = strategy.products();
        let widest = if products == 2 { 128 } else { 256 };
        (1..=widest / 16).map(move |n| Tile { m, n: 16 * n, k }).filter(move |tile| {
            let mut warpgroups = heuristics::share(*tile, config, false, false);
            let none = &mut Vec::new();
            warpgroups.promotion =
                promotion::settle(problem, config, strategy, *tile, false, warpgroups, none);
            let scales = promotion::scale_registers(problem, false, *tile, warpgroups, products);
            warpgroups.sum_registers(products) + scales <= sum_limit(problem, warpgroups)
                && promotion::shares_factors(problem, tile.n)
        })
    }

    fn usual(&self, k: u32) -> Tile {
        let Tiles { problem, config, arch, .. } = *self;
        let m = if self.few() || ping_pong(config) { WARPGROUP_ROWS } else { 2 * WARPGROUP_ROWS };
        let columns = self.of_rows(m, k).rev().map(|tile| tile.n).filter(|n| *n > 16);
        Tile { m, n: least_busy(problem, config, arch, m, columns).unwrap_or(128), k }
    }

    /// Tiles that are compared.
    fn candidates(&self, k: u32) -> Vec<Tile> {
        // Given stages have to fit, each of 128 bytes of K. Staging of C gives way to them.
        let room = u64::from(self.arch.limits().smem_bytes).saturating_sub(BARRIERS);
        let stage = |tile: &Tile| 128 * u64::from(tile.m + self.strategy.products() * tile.n);
        let has_room = |tile: &Tile| match self.config.stages {
            Setting::Fixed(stages) => stage(tile).saturating_mul(stages.into()) <= room,
            Setting::Auto => true,
        };
        let tall = self.of_rows(2 * WARPGROUP_ROWS, k).filter(|_| !self.few());
        self.of_rows(WARPGROUP_ROWS, k).chain(tall).filter(has_room).collect()
    }

    /// The tile whose K is best shared, and by how many CTAs of a cluster, if that takes less time than any whole tile.
    fn shared(&self, candidates: &[Tile]) -> Option<(Tile, u32)> {
        let whole = candidates.iter().map(|tile| self.time(*tile, 1)).min()?;
        let choices = candidates.iter().flat_map(|tile| PARTS_OF_K.map(|parts| (*tile, parts)));
        let (time, choice) = choices
            .filter(|(tile, parts)| self.can_share(*tile, *parts))
            .map(|(tile, parts)| (self.time(tile, parts), (tile, parts)))
            .min_by_key(|(time, _)| *time)?;
        let percent = if self.few() { SHARED } else { SHARED_ROWS };
        (time.saturating_mul(100) < whole.saturating_mul(percent)).then_some(choice)
    }

    /// Whether so many CTAs can share a tile's K, all clusters at the same time.
    fn can_share(&self, tile: Tile, parts: u32) -> bool {
        let Tiles { problem, config, arch, .. } = *self;
        let least = if problem.formats.c.scales().is_some() { 32 } else { 8 };
        config.schedule == Setting::Auto
            && config.store != Setting::Fixed(Store::Tma)
            && self.costs(tile).tiles <= cluster_slots(config, arch, parts).into()
            && tile.n.is_multiple_of(least * parts)
            && problem.shape.k >= LEAST_PART * parts
    }

    fn costs(&self, tile: Tile) -> Costs {
        let (shape, products) = (self.problem.shape, u64::from(self.strategy.products()));
        let outside = products * (u64::from(shape.n).next_multiple_of(tile.n.into()) - u64::from(shape.n));
        let (rows, columns) = (u64::from(tile.m), products * u64::from(tile.n));
        let groups = rows / u64::from(WARPGROUP_ROWS);
        let factors = if self.problem.formats.scales_sums() { FACTORS * groups } else { 0 };
        Costs {
            load: PARTS * (rows + columns) + OUTSIDE * outside,
            mmas: COLUMN * groups * columns + factors,
            steps: shape.k.div_ceil(tile.k).into(),
            tiles: usual_tiles(shape, tile.m).saturating_mul(shape.n.div_ceil(tile.n).into()),
            columns,
        }
    }

    /// Time of all tiles, each by a CTA, in parts of a clock. A step of K takes as long as its loads, by the SMs that load at once, and its
    /// MMAs together.
    fn estimate(&self, tile: Tile) -> u64 {
        let Costs { load, mmas, steps, tiles, columns } = self.costs(tile);
        let (chip, sms) = (u64::from(self.arch.limits().sms), self.sms());
        let step = load * tiles.min(sms) / chip + mmas;
        tiles.div_ceil(sms).saturating_mul(steps * step + TILE + TILE_COLUMN * columns)
    }

    /// The same for tiles that `parts` CTAs each compute together. Few CTAs load little faster than many, and DRAM brings the weights no
    /// faster than it can.
    fn time(&self, tile: Tile, parts: u32) -> u64 {
        let Costs { load, mmas, steps, tiles, columns } = self.costs(tile);
        let (chip, sms) = (u64::from(self.arch.limits().sms), self.sms());
        let parts = u64::from(parts);
        let ctas = tiles.saturating_mul(parts);
        let rounds = ctas.div_ceil(sms);
        let step = (load * ctas.min(sms) / chip).max(load * LEAST_LOAD / 100) + mmas;
        let rows_of_weights = u64::from(self.strategy.products()) * u64::from(self.problem.shape.n);
        let k_loop =
            rounds.saturating_mul(steps.div_ceil(parts) * step).max(rows_of_weights * steps * WEIGHTS / 100);
        let sent = u64::from(tile.m) * columns * (parts - 1) / parts;
        let exchange = if parts > 1 { EXCHANGE + sent } else { 0 };
        k_loop + rounds.saturating_mul(TILE + TILE_COLUMN * columns) + exchange
    }
}
