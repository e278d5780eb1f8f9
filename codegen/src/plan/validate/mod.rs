//! The one place that knows what is legal.
//!
//! * `mod.rs`: [`validate`], and what can be judged of each knob by itself or beside another.
//! * `draft.rs`: what has to fit: stages, SMEM, TMEM, the grid.
//! * `barriers.rs`: its mbarriers.
//! * `both.rs`: MMAs whose rows are of both products, where weights are decoded: whether, in which tiles, by whom.
//! * `counts.rs`: launches beside the MMAs'.
//! * `groups.rs`: what batches and groups of rows rule out.
//! * `load.rs`: how the epilogue reads accumulators.
//! * `shares.rs`: whether clusters share K where tiles are few.
//! * `wgmma.rs`: what differs where warpgroups hold the accumulators.
//! * `window.rs`: how often sums leave their tensor cores.
//! * `build.rs`: the plan, once all of it does.

mod barriers;
mod both;
mod build;
mod counts;
mod draft;
mod groups;
mod load;
mod shares;
mod wgmma;
mod window;

use super::Plan;
use crate::arch::{Arch, TensorCore};
use crate::config::{
    AReuse, Accumulators, Buffers, Config, CtaGroup, KOrder, Multicast, Raster, Schedule, Setting, SfLoad,
    SfPreload, Store, Strategy, Switch, Tile,
};
use crate::error::ConfigError;
use crate::gate::{Axis, Expr};
use crate::problem::{MmaKind, Problem, Shape};
use draft::{Draft, Settled};

/// Largest M, N and K: TMA coordinates are signed 32-bit and tiles round up.
pub(crate) const SIZE_LIMIT: u32 = 1 << 30;
/// The deepest pipeline and the deepest scale-factor ring beyond it.
const STAGE_LIMIT: u32 = 32;
/// Rows that a CTA contributes to a block-scaled MMA (PTX ISA 9.7.16.2.1).
const MMA_ROWS: u32 = 128;
/// The largest cluster that every chip runs (CUDA programming guide, "Thread Block Clusters").
const CLUSTER_LIMIT: u32 = 8;
/// Tokens up to which weights take the MMA's row side: half of what it has.
const FEW_TOKENS: u32 = 64;
/// Largest number of CTAs of a grid along x, and of anything else that kernels count in 32 bits.
const COUNT_LIMIT: u64 = (1 << 31) - 1;
/// Threads of the gate's own kernel, which number themselves in 32 bits: all but a CTA's 256.
const GATE_THREAD_LIMIT: u64 = (1 << 32) - 256;

/// Decides whether `config` can compute `problem` on `arch`, and if so, everything about the kernel.
///
/// # Errors
/// Every reason that could be found, not only the first: each names its knob, the limit, and the
/// sum that does not fit ([`ConfigError::hint`] has a way out). Never panics, whatever the numbers.
pub fn validate(problem: &Problem, config: &Config, arch: Arch) -> Result<Plan, Vec<ConfigError>> {
    validate_gate(problem, config, arch, &GateNeeds::default())
}

/// What a gate asks of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct GateNeeds {
    /// A vector with an element per row of C, as it is written in the gate: `s[m]`.
    pub row_vector: Option<String>,
}

impl From<&Expr> for GateNeeds {
    fn from(gate: &Expr) -> Self {
        let vectors = gate.vectors();
        let row_vector = vectors.iter().find(|vector| vector.axis == Axis::M).map(ToString::to_string);
        GateNeeds { row_vector }
    }
}

/// [`validate`] for a gate: the same, and what the gate's vectors rule out. Rendering takes every plan that this made for
/// its gate.
///
/// # Errors
/// As [`validate`].
pub fn validate_gate(
    problem: &Problem,
    config: &Config,
    arch: Arch,
    gate: &GateNeeds,
) -> Result<Plan, Vec<ConfigError>> {
    let asked = config;
    let mut config = *config;
    let mut errors = Vec::new();
    if let (TensorCore::Tcgen05, Some(vector)) = (arch.tensor_core(), &gate.row_vector) {
        // Swapped, a thread's pair of results is of two rows, and the gate's code takes one element for both.
        if config.swap_ab == Setting::Fixed(Switch::On) {
            errors.push(ConfigError::SwapAbRows { vector: vector.clone() });
        }
        config.swap_ab = Setting::Fixed(config.swap_ab.unwrap_or_else(|| Switch::Off));
    }
    match validate_products(problem, &config, arch) {
        Ok(plan) if errors.is_empty() => Ok(Plan { asked: *asked, gate: gate.clone(), ..plan }),
        Ok(_) => Err(errors),
        Err(others) => {
            errors.extend(others);
            Err(errors)
        }
    }
}

/// All but what the gate's vectors rule out.
fn validate_products(problem: &Problem, config: &Config, arch: Arch) -> Result<Plan, Vec<ConfigError>> {
    let mut errors = Vec::new();
    check_shape(problem, &mut errors);
    if !errors.is_empty() {
        return Err(errors);
    }
    if arch.tensor_core() == TensorCore::Wgmma {
        return wgmma::validate(problem, config, arch);
    }
    if problem.formats.check() == Ok(MmaKind::Decoded) {
        let reason = "its MMAs take scale factors: quantise the activations, too";
        return Err(vec![ConfigError::FormatsOnChip { formats: problem.formats, arch, reason }]);
    }
    let asked = config;
    let strategy = asked.strategy.unwrap_or_else(|| Strategy::Interleaved);
    let sides = |group: CtaGroup| {
        let config = Config { cta_group: Setting::Fixed(group), ..*asked };
        let swap_ab = swaps(problem, &config);
        let tile = config.tile.unwrap_or_else(|| choose_tile(problem, &config, swap_ab, arch));
        let shares = shares::choose(problem, &config, strategy, tile, swap_ab, arch);
        (config, Settled { strategy, tile, swap_ab, warpgroups: None }, shares)
    };
    let plan = |config: &Config, settled| {
        settle(problem, config, arch, settled).map(|plan| Plan { asked: *asked, ..plan })
    };
    let group = choose_group(problem.shape, asked);
    // Where pairs would leave SMs idle, CTAs that share K use them.
    let alone = sides(CtaGroup::One);
    let shared = asked.cta_group == Setting::Auto && asked.tile == Setting::Auto && alone.2.is_some();
    let (config, settled, shares) = if group == CtaGroup::One || shared { alone } else { sides(group) };
    if let Some(shares::Shares { parts, tile }) = shares {
        let schedule = Setting::Fixed(Schedule::ClusterSplitK(parts));
        // Another knob may leave no room for the sums: then the tile is one CTA's, or a pair's.
        if let Ok(plan) = plan(&Config { schedule, ..config }, Settled { tile, ..settled }) {
            return Ok(plan);
        }
    }
    let (config, settled, _) = sides(group);
    plan(&config, settled)
}

/// A plan of what was settled, if it is legal and fits.
fn settle(
    problem: &Problem,
    config: &Config,
    arch: Arch,
    settled: Settled,
) -> Result<Plan, Vec<ConfigError>> {
    let mut errors = Vec::new();
    let Settled { strategy, tile, swap_ab, .. } = settled;
    check_tile(problem, tile, config, swap_ab, &mut errors);
    check_accumulators(problem, tile, config.layout(), &mut errors);
    check_scales(problem, config, &mut errors);
    check_output_scales(problem, tile, swap_ab, &mut errors);
    check_ranges(config, arch, &mut errors);
    check_strategy(config, strategy, &mut errors);
    check_shares(config, &mut errors);
    check_sides(problem.shape, config, swap_ab, &mut errors);
    check_multicast(tile, config, swap_ab, &mut errors);
    check_cluster_parts(problem, tile, config, swap_ab, 8, &mut errors);
    groups::check_knobs(problem, config, strategy, swap_ab, &mut errors);
    load::check(problem, tile, config, swap_ab, &mut errors);
    let mut refuse = |knob, value, reason| errors.push(ConfigError::NotOnChip { knob, value, arch, reason });
    if config.consumers.is_fixed() {
        let reason = "accumulators are in tensor memory, and one warp issues all MMAs";
        refuse("consumers", config.consumers.to_string(), reason);
    }
    if config.promotion.is_fixed() {
        refuse("promotion", config.promotion.to_string(), "its tensor cores add up in fp32");
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    Draft::new(problem, config, arch, settled, &mut errors)?.plan(errors)
}

/// A pair where there are rows for one: each CTA then loads half of B, and the pipeline is the deeper
/// for it. A tile that was asked for says which it is.
fn choose_group(shape: Shape, config: &Config) -> CtaGroup {
    let rules_out = config.swap_ab == Setting::Fixed(Switch::On)
        || matches!(config.schedule, Setting::Fixed(Schedule::ClusterSplitK(_)))
        || config.multicast != Multicast::None
        || config.sf_load == Setting::Fixed(SfLoad::Bulk)
        || config.sms == Setting::Fixed(1);
    config.cta_group.unwrap_or_else(|| match config.tile {
        _ if rules_out => CtaGroup::One,
        Setting::Fixed(tile) if tile.m == 2 * MMA_ROWS => CtaGroup::Two,
        Setting::Auto if shape.typical_rows() > MMA_ROWS => CtaGroup::Two,
        Setting::Fixed(_) | Setting::Auto => CtaGroup::One,
    })
}

fn check_shape(problem: &Problem, errors: &mut Vec<ConfigError>) {
    let Shape { m, n, k, .. } = problem.shape;
    for (dimension, value) in [("M", m), ("N", n), ("K", k)] {
        if !(1..=SIZE_LIMIT).contains(&value) {
            errors.push(ConfigError::Size { dimension, value, limit: SIZE_LIMIT });
        }
    }
    groups::check_shape(problem, errors);
    problem.check_formats(errors);
}

/// 128 x 128 x 256; N = 64 where that still leaves every SM at most one tile, so that a small grid
/// spreads over more of the chip; K no longer than the problem's.
///
/// With few tokens on the MMA's column side, as many columns as there are tokens.
fn choose_tile(problem: &Problem, config: &Config, swap_ab: bool, arch: Arch) -> Tile {
    let shape = problem.shape;
    let ctas = config.group().ctas();
    let kind = kind(problem);
    let whole = 128 * 8 / kind.container_bits();
    let k = shape.k.next_multiple_of(k_multiple(problem)).min(whole);
    // Three quarters would leave half of a 128-byte swizzle span unused.
    let k = if k * 4 == whole * 3 { whole } else { k };
    if swap_ab {
        let multiple = if neighbours(config, swap_ab) > 1 { 64 } else { 16 * ctas };
        // Of groups, each has a tile of its own, which starts scale factors in the middle of a block at most.
        let few = shape.groups.by_rows() && shape.typical_rows() <= 64 && shape.m > 64;
        let m = match few {
            true => 64,
            false if shape.m > 128 => 128,
            false => shape.m.next_multiple_of(multiple),
        };
        return Tile { m, n: MMA_ROWS * ctas, k };
    }
    let m = MMA_ROWS * ctas;
    let grid = |n: u32| groups::usual_tiles(shape, m) * u64::from(ctas) * u64::from(shape.n.div_ceil(n));
    let narrow = config.layout() == Accumulators::Separate
        && grid(64) <= u64::from(draft::sms(config, arch))
        && load::takes_columns(config, 64);
    Tile { m, n: if narrow { 64 } else { 128 }, k }
}

/// Whether weights take the MMA's row side: where it was asked for, or where it was not ruled out and
/// there are few tokens.
fn swaps(problem: &Problem, config: &Config) -> bool {
    let shape = problem.shape;
    let free = config.tile == Setting::Auto
        && config.group() == CtaGroup::One
        && config.layout() == Accumulators::Separate
        && config.a_reuse != Setting::Fixed(AReuse::Collector)
        && config.multicast == Multicast::None
        // Pads of scale factors of groups of rows need rows in threads.
        && !(shape.groups.by_rows() && problem.formats.c.scales().is_some())
        && !load::shares_lanes(config);
    config
        .swap_ab
        .unwrap_or_else(|| if free && shape.typical_rows() <= FEW_TOKENS { Switch::On } else { Switch::Off })
        .is_on()
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
        _ => 1,
    }
}

fn check_tile(problem: &Problem, tile: Tile, config: &Config, swap_ab: bool, errors: &mut Vec<ConfigError>) {
    let (shape, ctas) = (problem.shape, config.group().ctas());
    let scaled = problem.formats.a.spec().scales.is_some();
    let (rows, columns, extent) = match swap_ab {
        false => (("M", tile.m), ("N", tile.n), shape.n),
        true => (("with swap_ab, N", tile.n), ("with swap_ab, M", tile.m), shape.m),
    };
    if rows.1 != MMA_ROWS * ctas {
        errors.push(ConfigError::TileM { side: rows.0, given: rows.1, ctas, wanted: MMA_ROWS * ctas });
    }
    // Each CTA of a pair holds half of the columns, in groups of 8 rows of their operand.
    let multiple = if scaled { 8 * ctas } else { 16 };
    let (side, given) = columns;
    if !(multiple..=256).contains(&given) || !given.is_multiple_of(multiple) {
        errors.push(ConfigError::TileN { side, given, ctas, multiple });
    } else {
        let tiles = extent.div_ceil(given).max(neighbours(config, swap_ab));
        if scaled && tiles > 1 && !given.is_multiple_of(64) {
            errors.push(ConfigError::TileNStart { side, given, tiles });
        }
    }
    let multiple = k_multiple(problem);
    if tile.k == 0 || !tile.k.is_multiple_of(multiple) {
        errors.push(ConfigError::TileK { given: tile.k, multiple });
    }
}

/// What needs A on the MMA's row side.
fn check_sides(shape: Shape, config: &Config, swap_ab: bool, errors: &mut Vec<ConfigError>) {
    if config.sf_load == Setting::Fixed(SfLoad::Bulk) && config.group() == CtaGroup::Two {
        errors.push(ConfigError::SfLoadPair);
    }
    if config.sf_load == Setting::Fixed(SfLoad::Multicast) && !shares_scales(config) {
        errors.push(ConfigError::SfLoadAlone);
    }
    if !swap_ab {
        return;
    }
    if config.layout() == Accumulators::SideBySide {
        errors.push(ConfigError::SwapAb {
            knob: "accumulators",
            value: "side_by_side",
            reason: "the products would lie below each other, and one MMA has no rows for both",
        });
    }
    if config.a_reuse == Setting::Fixed(AReuse::Collector) {
        errors.push(ConfigError::NothingToReuse { reason: "with swap_ab they share the other operand" });
    }
    // Stores reach 32 rows of C, or of an fp32 product, with constant offsets.
    let reach = 32 * 4 * u64::from(shape.n.next_multiple_of(4));
    if reach > COUNT_LIMIT {
        errors.push(ConfigError::Count {
            knob: "swap_ab",
            what: "bytes of 32 rows of C in fp32",
            count: reach,
            limit: COUNT_LIMIT,
        });
    }
}

/// What clusters that share a tile's K rule out.
fn check_cluster_parts(
    problem: &Problem,
    tile: Tile,
    config: &Config,
    swap_ab: bool,
    least: u32,
    errors: &mut Vec<ConfigError>,
) {
    let Setting::Fixed(Schedule::ClusterSplitK(parts)) = config.schedule else { return };
    let columns = if swap_ab { tile.m } else { tile.n };
    let least = if problem.formats.c.scales().is_some() && !swap_ab { 32 } else { least };
    let mut refuse = |reason: String| errors.push(ConfigError::ClusterSplitK { parts, reason });
    if !(2..=CLUSTER_LIMIT).contains(&parts) || !parts.is_power_of_two() {
        refuse(format!("a cluster has 2, 4 or {CLUSTER_LIMIT} CTAs, the largest that every chip runs"));
    } else if config.group() == CtaGroup::Two || config.multicast != Multicast::None {
        refuse("the cluster is the tile's parts, and has no room for a pair or for neighbours".into());
    } else if !columns.is_multiple_of(least * parts) {
        refuse(format!(
            "each CTA finishes its part of a tile's {columns} columns, {least} at a time: {columns} / {parts} is no multiple"
        ));
    }
    if config.store == Setting::Fixed(Store::Tma) {
        refuse("C is stored from registers, for shared memory holds the sums".into());
    }
}

fn check_multicast(tile: Tile, config: &Config, swap_ab: bool, errors: &mut Vec<ConfigError>) {
    let multicast = config.multicast;
    let mut refuse = |reason: String| errors.push(ConfigError::Multicast { multicast, reason });
    let pair = config.group() == CtaGroup::Two;
    let whole = if swap_ab { tile.m } else { tile.n };
    // Of a pair, each CTA loads its half of the MMA's columns; side by side, B1 or B2 whole.
    let columns = if pair && config.layout() == Accumulators::Separate { whole / 2 } else { whole };
    let rows = match multicast {
        Multicast::None => return,
        Multicast::A(_) if swap_ab => columns,
        Multicast::A(_) => MMA_ROWS,
        Multicast::B(_) if swap_ab => MMA_ROWS,
        Multicast::B(_) => columns,
    };
    let (tiles, limit) = (multicast.ctas(), CLUSTER_LIMIT / config.group().ctas());
    if !(2..=limit).contains(&tiles) || !tiles.is_power_of_two() {
        let several = if pair { "2 or 4 pairs" } else { "2, 4 or 8 CTAs" };
        refuse(format!("a cluster has {several}: {CLUSTER_LIMIT} CTAs is the largest that every chip runs"));
    } else if !rows.is_multiple_of(8 * tiles) {
        refuse(format!(
            "each CTA loads its part of {rows} rows, and swizzled rows come in groups of 8: {rows} / {tiles} is no multiple"
        ));
    }
}

/// The MMA's kind; formats have been checked.
fn kind(problem: &Problem) -> MmaKind {
    problem.formats.check().unwrap_or(MmaKind::Mxf4Nvf4)
}

/// What a K tile is a multiple of: whole MMA steps, and whole blocks of four scale factors. TMA expands
/// e2m1 in boxes of 128.
fn k_multiple(problem: &Problem) -> u32 {
    kind(problem).mma_k().max(4 * problem.formats.scale_vector().unwrap_or(0))
}

/// Knobs of scale factors where there are none.
fn check_scales(problem: &Problem, config: &Config, errors: &mut Vec<ConfigError>) {
    if problem.formats.b.spec().scales.is_some() {
        return;
    }
    let formats = problem.formats;
    if config.sf_preload != SfPreload::PerStage {
        errors.push(ConfigError::NoScales { knob: "sf_preload", formats });
    }
    if config.sf_load != Setting::Auto {
        errors.push(ConfigError::NoScales { knob: "sf_load", formats });
    }
}

/// C with scale factors: its blocks must be whole in a thread's registers, or, swapped, in a warp's lanes, as
/// they always are.
fn check_output_scales(problem: &Problem, tile: Tile, swap_ab: bool, errors: &mut Vec<ConfigError>) {
    if problem.formats.c.scales().is_none() {
        return;
    }
    if !swap_ab && !tile.n.is_multiple_of(32) {
        let reason = format!("N = {} is no multiple of the 32 columns that are finished together", tile.n);
        errors.push(ConfigError::OutputScales { knob: "tile", format: problem.formats.c, reason });
    }
}

fn check_accumulators(
    problem: &Problem,
    tile: Tile,
    accumulators: Accumulators,
    errors: &mut Vec<ConfigError>,
) {
    if accumulators == Accumulators::SideBySide && tile.n <= 256 {
        if tile.n > 128 {
            errors.push(ConfigError::SideBySideWidth { tile_n: tile.n, doubled: 2 * tile.n });
        } else if tile.n != 128 && problem.formats.a.spec().scales.is_some() {
            errors.push(ConfigError::SideBySideScales { tile_n: tile.n });
        }
    }
}

fn check_ranges(config: &Config, arch: Arch, errors: &mut Vec<ConfigError>) {
    if let Setting::Fixed(given) = config.stages
        && !(1..=STAGE_LIMIT).contains(&given)
    {
        errors.push(ConfigError::Stages { given });
    }
    if let SfPreload::Ahead(given) = config.sf_preload
        && !(1..=STAGE_LIMIT).contains(&given)
    {
        errors.push(ConfigError::Ahead { given });
    }
    let limit = arch.limits().tmem_columns;
    if let Setting::Fixed(given) = config.tmem_columns
        && !(given.is_power_of_two() && (32..=limit).contains(&given))
    {
        errors.push(ConfigError::TmemColumns { given, limit });
    }
    let (limit, ctas) =
        (arch.limits().sms, config.group().ctas() * config.multicast.ctas().clamp(1, CLUSTER_LIMIT));
    if let Setting::Fixed(given) = config.sms
        && !(ctas..=limit).contains(&given)
    {
        errors.push(ConfigError::Sms { given, least: ctas, limit });
    }
    if config.layout() == Accumulators::SideBySide {
        if matches!(config.k_order, Setting::Fixed(KOrder::SplitTail(_))) {
            errors.push(ConfigError::SplitTailSideBySide);
        }
        if config.a_reuse == Setting::Fixed(AReuse::Collector) {
            errors.push(ConfigError::NothingToReuse {
                reason: "side_by_side accumulators have one MMA for both products",
            });
        }
    }
}

/// What only the interleaved K loop has.
fn check_strategy(config: &Config, strategy: Strategy, errors: &mut Vec<ConfigError>) {
    if strategy == Strategy::Interleaved {
        return;
    }
    if config.layout() == Accumulators::SideBySide {
        errors.push(ConfigError::NotInterleaved {
            knob: "accumulators",
            value: "side_by_side",
            strategy,
            reason: "one MMA computes both products",
        });
    }
    if matches!(config.k_order, Setting::Fixed(KOrder::SplitTail(_))) {
        errors.push(ConfigError::NotInterleaved {
            knob: "k_order",
            value: "split_tail",
            strategy,
            reason: "it ends a K loop that computes both products",
        });
    }
    if config.a_reuse == Setting::Fixed(AReuse::Collector) {
        errors.push(ConfigError::NothingToReuse { reason: "this strategy has one product a K loop" });
    }
}

/// What shares of K rule out.
fn check_shares(config: &Config, errors: &mut Vec<ConfigError>) {
    if let Setting::Fixed(Buffers::Whole(given)) = config.accumulator_buffers
        && !(1..=2).contains(&given)
    {
        errors.push(ConfigError::AccumulatorBuffers { given });
    }
    if let Setting::Fixed(Raster::Swizzled(0)) = config.raster {
        errors.push(ConfigError::RasterGroup);
    }
    let Setting::Fixed(schedule @ (Schedule::StreamK | Schedule::SplitK(_) | Schedule::ClusterSplitK(_))) =
        config.schedule
    else {
        return;
    };
    if matches!(config.k_order, Setting::Fixed(KOrder::SplitTail(_))) {
        errors.push(ConfigError::WholeTiles {
            knob: "k_order",
            value: "split_tail",
            schedule,
            reason: "its tail is that of a whole tile's K",
        });
    }
    if config.sf_preload == SfPreload::All {
        errors.push(ConfigError::WholeTiles {
            knob: "sf_preload",
            value: "all",
            schedule,
            reason: "it loads the scale factors of all of K",
        });
    }
}
