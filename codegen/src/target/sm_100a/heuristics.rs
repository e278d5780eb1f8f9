//! How `auto` is settled where accumulators are in tensor memory (`tcgen05`, sm_100a).

use super::{MMA_ROWS, Tcgen05, columns, legalize, load, neighbours, shares};
use crate::arch::Arch;
use crate::config::{
    AReuse, Accumulators, Config, CtaGroup, EpilogueWarps, Multicast, Schedule, Setting, SfLoad, Store,
    Strategy, Switch, Tile,
};
use crate::error::ConfigError;
use crate::heuristics::{FEW_TOKENS, Rule, Rules, choose_strategy, cluster_parts, sms, usual_tiles};
use crate::legalize::{k_multiple, kind};
use crate::plan::Plan;
use crate::plan::draft::{Draft, Settled};
use crate::problem::{Problem, Shape};
use crate::target::Target;
use crate::target::fragments::settle_store;
use std::ops::RangeInclusive;

/// See [`Way::plan`](crate::target::Way).
pub(crate) fn plan(problem: &Problem, config: &Config, arch: Arch) -> Result<Plan, Vec<ConfigError>> {
    legalize::check_formats(problem, arch)?;
    let asked = config;
    let mut rules = Rules::default();
    let strategy = rules.settle("strategy", asked.strategy, || choose_strategy(problem));
    rules.note("accumulators", Rule::MmaOfEach);
    rules.note("store", Rule::FromRegisters);
    let (group, group_rule) = choose_group(problem.shape, asked);
    rules.note("cta_group", group_rule);
    let sides = |group: CtaGroup| {
        let mut rules = rules.clone();
        let config = Config { cta_group: Setting::Fixed(group), ..*asked };
        let (swap_ab, rule) = swaps(problem, &config);
        rules.note("swap_ab", rule);
        let tile = rules.settle("tile", config.tile, || choose_tile(problem, &config, swap_ab, arch));
        let shares = shares::choose(problem, &config, strategy, tile, swap_ab, arch);
        (config, Settled { strategy, tile, swap_ab, target: Target::Tcgen05(Tcgen05::NEW), rules }, shares)
    };
    let plan = |config: &Config, settled| {
        settle(problem, config, arch, &settled).map(|plan| Plan { asked: *asked, ..plan })
    };
    // Where pairs would leave SMs idle, CTAs that share K use them.
    let alone = sides(CtaGroup::One);
    let shared = asked.cta_group == Setting::Auto && asked.tile == Setting::Auto && alone.2.is_some();
    let (config, settled, shares) = if group == CtaGroup::One || shared { alone } else { sides(group) };
    if let Some(shares::Shares { parts, tile }) = shares {
        let schedule = Setting::Fixed(Schedule::ClusterSplitK(parts));
        // Another knob may leave no room for the sums: then the tile is one CTA's, or a pair's.
        let mut settled = Settled { tile, ..settled };
        settled.rules.note_all([
            ("cta_group", Rule::CtasShareK),
            ("schedule", Rule::ClusterSharesK { modelled: true }),
        ]);
        if let Ok(plan) = plan(&Config { schedule, ..config }, settled) {
            return Ok(plan);
        }
    }
    let (config, mut settled, _) = sides(group);
    if config.tile == Setting::Auto && takes_half_spans(problem, &config, arch, &settled) {
        settled.tile.k /= 2;
    }
    columns::choose(problem, &config, arch, &settled, |config, settled| plan(config, settled).ok())
        .map_or_else(|| plan(&config, settled), Ok)
}

/// Where a CTA has several tiles, a TMA store may cost stages down to this many. With fewer C is stored from registers, if that leaves
/// more.
const LEAST_STAGES: u32 = 4;

/// Makes the plan, if it is legal and fits. Staging that does not fit over the stages costs a stage. Eight epilogue warps for one tile
/// are not worth that.
fn settle(
    problem: &Problem,
    config: &Config,
    arch: Arch,
    settled: &Settled,
) -> Result<Plan, Vec<ConfigError>> {
    let counts_stages = |plan: &Plan| {
        let staging =
            plan.epilogue.c.staging.map_or(0, |staging| plan.epilogue.column_parts * staging.half_bytes());
        match plan.work.is_looped() {
            true => plan.stages < LEAST_STAGES,
            false => plan.epilogue.column_parts > 1 && staging > plan.stages * plan.smem.stage_bytes,
        }
    };
    // From registers four warps store C: eight are taken for a TMA store alone.
    settle_store(config, config.store.unwrap_or_else(|| Store::Tma), counts_stages, |store| {
        let direct = store == Store::Direct && config.store == Setting::Auto;
        let four = store == Store::Direct && config.epilogue_warps == Setting::Auto;
        let config = Config {
            store: if direct { Setting::Fixed(store) } else { config.store },
            epilogue_warps: if four { Setting::Fixed(EpilogueWarps::Four) } else { config.epilogue_warps },
            ..*config
        };
        settle_as_asked(problem, &config, arch, settled.clone())
    })
}

/// The same, with what is not settled left to the plan.
fn settle_as_asked(
    problem: &Problem,
    config: &Config,
    arch: Arch,
    settled: Settled,
) -> Result<Plan, Vec<ConfigError>> {
    let mut errors = Vec::new();
    legalize::check(problem, config, arch, &settled, &mut errors);
    if !errors.is_empty() {
        return Err(errors);
    }
    Draft::new(problem, config, arch, settled, &mut errors)?.plan(errors)
}

/// A pair where there are rows for one: each CTA then loads half of B, and the pipeline is the deeper
/// for it. A tile that was asked for says which it is.
fn choose_group(shape: Shape, config: &Config) -> (CtaGroup, Rule) {
    let rules_out = config.swap_ab == Setting::Fixed(Switch::On)
        || matches!(config.schedule, Setting::Fixed(Schedule::ClusterSplitK(_)))
        || config.multicast != Multicast::None
        || config.sf_load == Setting::Fixed(SfLoad::Bulk)
        || config.sms == Setting::Fixed(1);
    let group = config.cta_group.unwrap_or_else(|| match config.tile {
        _ if rules_out => CtaGroup::One,
        Setting::Fixed(tile) if tile.m == 2 * MMA_ROWS => CtaGroup::Two,
        Setting::Auto if shape.typical_rows() > MMA_ROWS => CtaGroup::Two,
        Setting::Fixed(_) | Setting::Auto => CtaGroup::One,
    });
    let rule = match group {
        CtaGroup::Two => Rule::RowsForPair,
        CtaGroup::One if cluster_parts(config) > 1 => Rule::CtasShareK,
        CtaGroup::One => Rule::OneCta,
    };
    (group, rule)
}

/// 128 x 128 x 256; N = 64 where that still leaves every SM at most one tile, so that a small grid
/// spreads over more of the chip; K no longer than the problem's. N is the first guess of [`columns::choose`].
///
/// With few tokens on the MMA's column side, as many columns as there are tokens.
fn choose_tile(problem: &Problem, config: &Config, swap_ab: bool, arch: Arch) -> (Tile, Rule) {
    let shape = problem.shape;
    let ctas = config.group().ctas();
    let kind = kind(problem);
    let whole = 128 * 8 / kind.container_bits();
    let k = shape.k.next_multiple_of(k_multiple(problem)).min(whole);
    // Three quarters would leave half of a 128-byte swizzle span unused.
    let k = if k * 4 == whole * 3 { whole } else { k };
    if swap_ab {
        let multiple = if neighbours(config, swap_ab) > 1 { 64 } else { 16 * ctas };
        // Groups have tiles of their own, whose scale factors start in the middle of a block at worst.
        let few = shape.groups.by_rows() && shape.typical_rows() <= 64 && shape.m > 64;
        let m = match few {
            true => 64,
            false if shape.m > 128 => 128,
            false => shape.m.next_multiple_of(multiple),
        };
        return (Tile { m, n: MMA_ROWS * ctas, k }, Rule::TokensAreColumns);
    }
    let m = MMA_ROWS * ctas;
    let grid = |n: u32| usual_tiles(shape, m) * u64::from(ctas) * u64::from(shape.n.div_ceil(n));
    let narrow = config.layout() == Accumulators::Separate
        && grid(64) <= u64::from(sms(config, arch))
        && load::takes_columns(config, 64);
    match narrow {
        // Two accumulators of 128 columns, and scale factors, are more than half of tensor memory.
        _ if config.ctas_per_sm() > 1 => (Tile { m, n: 64, k }, Rule::TwoOfSm),
        true => (Tile { m, n: 64, k }, Rule::NarrowTile),
        false => (Tile { m, n: 128, k }, Rule::WideTile),
    }
}

/// Lengths of K, in whole K tiles, for which `auto` halves the K tile of 4-bit operands.
const HALF_SPANS: RangeInclusive<u32> = 6..=16;

/// Whether K tiles of 4-bit operands have 64 bytes a row, and not 128: where a CTA has one tile and K is short. The pipeline fills and
/// drains once, in smaller steps. With a longer K of NVFP4 the MMA warp is the bound, and issues more instructions for each MMA.
fn takes_half_spans(problem: &Problem, config: &Config, arch: Arch, settled: &Settled) -> bool {
    let Tile { m, n, k } = settled.tile;
    let tiles = usual_tiles(problem.shape, m) * u64::from(problem.shape.n.div_ceil(n));
    let one_tile = tiles * u64::from(config.group().ctas()) <= u64::from(sms(config, arch));
    let spans = k * kind(problem).container_bits() == 128 * 8;
    kind(problem).container_bits() == 4
        && spans
        && one_tile
        && !settled.swap_ab
        && settled.strategy == Strategy::Interleaved
        // Only the device knows the number of tiles of groups of rows.
        && !problem.shape.groups.by_rows()
        // A given number of stages would hold half as many bytes.
        && config.stages == Setting::Auto
        && matches!(config.schedule, Setting::Auto | Setting::Fixed(Schedule::OneTile))
        && HALF_SPANS.contains(&problem.shape.k.div_ceil(k))
}

/// Whether weights take the MMA's row side: where it was asked for, or where it was not ruled out and
/// there are few tokens.
fn swaps(problem: &Problem, config: &Config) -> (bool, Rule) {
    let shape = problem.shape;
    let free = config.tile == Setting::Auto
        && config.group() == CtaGroup::One
        && config.layout() == Accumulators::Separate
        && config.a_reuse != Setting::Fixed(AReuse::Collector)
        && config.multicast == Multicast::None
        // Pads of scale factors of groups of rows need rows in threads.
        && !(shape.groups.by_rows() && problem.formats.c.scales().is_some())
        && !load::shares_lanes(config);
    let few = free && shape.typical_rows() <= FEW_TOKENS;
    let swaps = config.swap_ab.unwrap_or_else(|| if few { Switch::On } else { Switch::Off }).is_on();
    (swaps, if swaps { Rule::FewTokens { rows: MMA_ROWS } } else { Rule::EnoughTokens })
}
