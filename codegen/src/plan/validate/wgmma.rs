//! What differs where warpgroups issue the MMAs and hold the accumulators (`wgmma`, sm_90a).

use super::draft::{self, Draft, Settled};
use super::{
    CLUSTER_LIMIT, FEW_TOKENS, both, check_cluster_parts, check_ranges, check_scales, check_shape,
    check_shares, check_strategy, groups, k_multiple, window,
};
use crate::arch::Arch;
use crate::config::{
    AReuse, Accumulators, Buffers, Config, Consumers, CtaGroup, KOrder, Multicast, Schedule, Setting, SfLoad,
    SfPreload, Store, Strategy, Switch, Tile,
};
use crate::error::ConfigError;
use crate::plan::{Plan, WARPGROUP_ROWS, Warpgroups};
use crate::problem::{Groups, MmaKind, Problem, Shape};

/// Bits of the elements of C that threads with columns of it can turn into rows on their way to shared memory (`stmatrix.trans`).
const STAGED_BITS: u32 = 16;
/// Warpgroups that compute, at most: with the one that loads, 512 threads share an SM's 65536 registers.
const WARPGROUP_LIMIT: u32 = 3;
/// Columns of an MMA from which on decoding weights in the order they lie in can pay.
const LEAST_NATURAL: u32 = 240;
/// Columns of a `wgmma` (PTX ISA 9.7.15.2).
const COLUMN_LIMIT: u32 = 256;
/// Tokens up to which threads with columns of C store them as they are.
const LEAST_STAGED: u32 = 16;
/// See [`super::validate`].
pub(super) fn validate(problem: &Problem, asked: &Config, arch: Arch) -> Result<Plan, Vec<ConfigError>> {
    let mut errors = Vec::new();
    check_shape(problem, &mut errors);
    check_formats(problem, arch, &mut errors);
    check_knobs(asked, arch, &mut errors);
    window::check_knob(problem, asked, arch, &mut errors);
    if !errors.is_empty() {
        return Err(errors);
    }
    let config = &Config { cta_group: Setting::Fixed(CtaGroup::One), ..*asked };
    let strategy = config.strategy.unwrap_or_else(|| Strategy::Interleaved);
    let swap_ab = swaps(problem, config);
    let tile = config.tile.unwrap_or_else(|| choose_tile(problem, config, strategy, swap_ab, arch));
    let both = has_both(problem, config, arch);
    let accumulators = config.accumulators.unwrap_or_else(|| match both {
        true => Accumulators::SideBySide,
        false => choose_layout(problem, strategy, tile, swap_ab),
    });
    let store = config.store.unwrap_or_else(|| match config.schedule {
        // Shared memory holds sums then.
        Setting::Fixed(Schedule::ClusterSplitK(_)) => Store::Direct,
        _ => choose_store(problem, strategy, tile, swap_ab),
    });
    let with = |store| {
        let config = &Config {
            accumulators: Setting::Fixed(accumulators),
            store: Setting::Fixed(store),
            schedule: choose_schedule(problem, config, tile, arch),
            ..*config
        };
        settle(problem, config, arch, strategy, tile, swap_ab)
    };
    match with(store) {
        // The staging must not cost what was asked for.
        Err(_) if store != Store::Direct && !asked.store.is_fixed() => with(Store::Direct),
        // Nor, where weights are the rows and loads matter most, a stage.
        Ok(plan) if swap_ab && store != Store::Direct && !asked.store.is_fixed() && plan.work.is_looped() => {
            with(Store::Direct).map(|direct| if direct.stages > plan.stages { direct } else { plan })
        }
        result => result,
    }
    .map(|plan| Plan { asked: *asked, ..plan })
}

/// The plan, once all is settled but what has to fit.
fn settle(
    problem: &Problem,
    config: &Config,
    arch: Arch,
    strategy: Strategy,
    tile: Tile,
    swap_ab: bool,
) -> Result<Plan, Vec<ConfigError>> {
    let mut errors = Vec::new();
    let mut warpgroups = share(tile, config, swap_ab, has_both(problem, config, arch));
    warpgroups.ordered = warpgroups.both && orders_first(problem, tile, config, arch);
    warpgroups.window = window::settle(problem, config, strategy, tile, warpgroups, &mut errors);
    check_decoded(problem, tile, config, strategy, arch, swap_ab, &mut errors);
    check_tile(problem, tile, config, strategy, swap_ab, warpgroups, &mut errors);
    check_scales(problem, config, &mut errors);
    check_ranges(config, arch, &mut errors);
    // Registers go to other CTAs four at a time.
    check_cluster_parts(problem, tile, config, swap_ab, if warpgroups.both { 16 } else { 8 }, &mut errors);
    check_strategy(config, strategy, &mut errors);
    check_shares(config, &mut errors);
    check_multicast(tile, config, &mut errors);
    groups::check_knobs(problem, config, strategy, swap_ab, &mut errors);
    if !errors.is_empty() {
        return Err(errors);
    }
    Draft::new(
        problem,
        config,
        arch,
        Settled { strategy, tile, swap_ab, warpgroups: Some(warpgroups) },
        &mut errors,
    )?
    .plan(errors)
}

fn check_formats(problem: &Problem, arch: Arch, errors: &mut Vec<ConfigError>) {
    let formats = problem.formats;
    let mut refuse = |reason| errors.push(ConfigError::FormatsOnChip { formats, arch, reason });
    match formats.kind(arch) {
        Ok(MmaKind::F16 | MmaKind::Decoded | MmaKind::F8f6f4) => {}
        Ok(MmaKind::Mxf4Nvf4 | MmaKind::Mxf4 | MmaKind::Mxf8f6f4) => refuse("its MMAs take no scale factors"),
        // Refused already.
        Err(_) => {}
    }
    if formats.c.scales().is_some() {
        refuse("C with scale factors is made for the MMAs that take them");
    }
}

/// Knobs of tensor memory and of clusters that issue MMAs together.
fn check_knobs(config: &Config, arch: Arch, errors: &mut Vec<ConfigError>) {
    let mut refuse = |knob, value: String, reason| {
        errors.push(ConfigError::NotOnChip { knob, value, arch, reason });
    };
    let no_tmem = "accumulators are in registers";
    if config.cta_group == Setting::Fixed(CtaGroup::Two) {
        refuse("cta_group", "2".into(), "an MMA is one warpgroup's");
    }
    if let Setting::Fixed(columns) = config.tmem_columns {
        refuse("tmem_columns", columns.to_string(), no_tmem);
    }
    if let Setting::Fixed(buffers) = config.accumulator_buffers
        && buffers != Buffers::Whole(1)
    {
        let reason =
            "accumulators are in registers; with consumers = ping_pong an epilogue overlaps other MMAs";
        refuse("accumulator_buffers", buffers.to_string(), reason);
    }
    if let Setting::Fixed(store @ Store::DirectBy(_)) = config.store {
        refuse("store", store.to_string(), no_tmem);
    }
    if config.a_reuse == Setting::Fixed(AReuse::Collector) {
        refuse(
            "a_reuse",
            "collector".into(),
            "its tensor cores have no collector; side_by_side reads A once",
        );
    }
    if let Setting::Fixed(order @ KOrder::SplitTail(_)) = config.k_order {
        refuse(
            "k_order",
            order.to_string(),
            "the warps that issue the tail's MMAs are those that would apply the gate",
        );
    }
    if config.schedule == Setting::Fixed(Schedule::Dynamic) {
        refuse("schedule", Schedule::Dynamic.to_string(), "it has no cluster launch control");
    }
    if let Setting::Fixed(
        schedule @ (Schedule::OneTile | Schedule::StreamK | Schedule::SplitK(_) | Schedule::ClusterSplitK(_)),
    ) = config.schedule
        && ping_pong(config)
    {
        errors.push(ConfigError::PingPong { schedule });
    }
}

/// Whether weights are decoded on their way to the tensor core.
fn decodes(problem: &Problem) -> bool {
    problem.formats.kind(Arch::Sm90a) == Ok(MmaKind::Decoded)
}

/// Whether an MMA's rows are of both products: with as many registers it has twice the columns, so that a weight that is decoded
/// meets twice the activations. That takes a launch more, which brings activations into order: in shared memory it would take
/// the bandwidth that MMAs need.
fn has_both(problem: &Problem, config: &Config, arch: Arch) -> bool {
    decodes(problem)
        && match (config.accumulators, config.tile) {
            (Setting::Fixed(accumulators), _) => accumulators == Accumulators::SideBySide,
            (Setting::Auto, Setting::Fixed(tile)) => {
                both::ROWS.contains(&tile.n) && !problem.formats.decodes_a(Arch::Sm90a)
            }
            (Setting::Auto, Setting::Auto) => both::gains(problem, config, arch),
        }
}

/// Whether weights take the MMA's row side: where there are too few tokens for its 64 rows.
fn swaps(problem: &Problem, config: &Config) -> bool {
    if decodes(problem) {
        return config.swap_ab != Setting::Fixed(Switch::Off);
    }
    let free = config.tile == Setting::Auto
        && config.accumulators != Setting::Fixed(Accumulators::SideBySide)
        && (config.store != Setting::Fixed(Store::Tma) || problem.formats.c.bits() == STAGED_BITS)
        && config.multicast == Multicast::None;
    let few = free && problem.shape.typical_rows() <= FEW_TOKENS / 2;
    config.swap_ab.unwrap_or_else(|| if few { Switch::On } else { Switch::Off }).is_on()
}

/// One MMA of both products where it takes their columns: it reads A once. Not of 8-bit elements, whose sums leave the
/// tensor core product by product.
fn choose_layout(problem: &Problem, strategy: Strategy, tile: Tile, swap_ab: bool) -> Accumulators {
    let together = strategy == Strategy::Interleaved
        && !swap_ab
        && tile.n <= COLUMN_LIMIT / 2
        && problem.formats.check() == Ok(MmaKind::F16);
    if together { Accumulators::SideBySide } else { Accumulators::Separate }
}

/// Through shared memory and TMA wherever TMA can: a thread has two columns of a row side by side, and would store four
/// bytes at a time (seen on an H200: a tenth of the time of a prefill), or, with columns of C, two.
fn choose_store(problem: &Problem, strategy: Strategy, tile: Tile, swap_ab: bool) -> Store {
    let bits = problem.formats.c.bits();
    let row_bits = u64::from(problem.shape.n) * u64::from(bits);
    let boxed = strategy != Strategy::TwoPass
        && !problem.shape.groups.by_rows()
        && row_bits.is_multiple_of(128)
        && match swap_ab {
            true => bits == STAGED_BITS && tile.m > LEAST_STAGED,
            false => (u64::from(tile.n) * u64::from(bits)).is_multiple_of(128),
        };
    if boxed { Store::Tma } else { Store::Direct }
}

/// Decoded weights keep SMs busy for long: where there are tiles for half of them at most, parts of K are for the others; where a
/// quarter would have none, all share K; and where each has several, loads of the next go on under the epilogue (seen on an
/// H200: 31, 3 and 2.5 % of the time).
fn choose_schedule(problem: &Problem, config: &Config, tile: Tile, arch: Arch) -> Setting<Schedule> {
    if config.schedule.is_fixed()
        || ping_pong(config)
        || !decodes(problem)
        || problem.shape.groups != Groups::One
        || tile.m == 0
        || tile.n == 0
        || tile.k == 0
    {
        return config.schedule;
    }
    if has_both(problem, config, arch) {
        return both::schedule(problem, config, tile, arch);
    }
    let Shape { m, n, k, .. } = problem.shape;
    let tiles = u64::from(m.div_ceil(tile.m))
        .saturating_mul(u64::from(n.div_ceil(tile.n)))
        .saturating_mul(u64::from(config.multicast.ctas()));
    let sms = u64::from(draft::sms(config, arch));
    let parts = (sms / tiles.max(1)).min(4) as u32;
    // A part is long enough for its loads to get going.
    match parts {
        0 if tiles >= 3 * sms => Setting::Fixed(Schedule::Persistent),
        1 if 4 * tiles <= 3 * sms && k >= 4096 => Setting::Fixed(Schedule::StreamK),
        2.. if k >= 1024 * parts => Setting::Fixed(Schedule::SplitK(parts)),
        _ => Setting::Auto,
    }
}

fn ping_pong(config: &Config) -> bool {
    config.consumers == Setting::Fixed(Consumers::PingPong)
}

/// 128 rows for two warpgroups, or as few as there are for one, and as many columns as leave the SMs least to do; K one swizzle span of 128 bytes.
fn choose_tile(problem: &Problem, config: &Config, strategy: Strategy, swap_ab: bool, arch: Arch) -> Tile {
    let shape = problem.shape;
    let span = 128 * 8 / problem.formats.check().map_or(16, MmaKind::container_bits);
    let k = shape.k.next_multiple_of(k_multiple(problem)).min(span);
    let k = if k * 4 == span * 3 { span } else { k };
    if decodes(problem) {
        if has_both(problem, config, arch) {
            return both::tile(problem, config, arch);
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
        let columns = shape.typical_rows().next_multiple_of(8).clamp(8, 128);
        return Tile { m: columns, n: 128, k };
    }
    let m = if ping_pong(config) || shape.typical_rows() <= 64 { 64 } else { 128 };
    let sms = u64::from(draft::sms(config, arch));
    let rows = groups::usual_tiles(shape, m);
    // Of the time of the busiest SM: its columns, and what a tile costs beside its MMAs.
    let cost = |n: &u32| (rows * u64::from(shape.n.div_ceil(*n))).div_ceil(sms) * (u64::from(*n) + 8);
    let widest = if strategy.is_fused() { 128 } else { 256 };
    // Rows do not matter: with 64 in each warpgroup, columns are what registers are for.
    let fits = |n: &u32| {
        let tile = Tile { m, n: *n, k };
        let mut warpgroups = share(tile, config, swap_ab, false);
        warpgroups.window = window::settle(problem, config, strategy, tile, warpgroups, &mut Vec::new());
        let products = if strategy.is_fused() { 2 } else { 1 };
        warpgroups.sum_registers(products) <= sum_limit(problem, warpgroups)
    };
    let n = (2..=widest / 16).rev().map(|n| 16 * n).filter(fits).min_by_key(cost).unwrap_or(128);
    Tile { m, n, k }
}

/// Whether a launch before pays that brings activations into the order of K in which weights of both products are decoded. It takes
/// some 3 us and more, and its end is waited for; decoding without it takes 1.5 times as many instructions, which the widest MMAs
/// hide but for 4 % of their time (seen on an H200, of the time with it: 0.96 with 256 columns and a tile an SM, 1.01 with many tiles, 1.035 with
/// 192 columns, 1.07 with 160, 1.14 with 128).
fn orders_first(problem: &Problem, tile: Tile, config: &Config, arch: Arch) -> bool {
    let shape = problem.shape;
    let tiles = groups::usual_tiles(shape, tile.m).saturating_mul(shape.n.div_ceil(tile.n.max(1)).into());
    // Code that shares K through memory, too, leaves too few registers.
    let shares = matches!(config.schedule, Setting::Fixed(Schedule::StreamK | Schedule::SplitK(_)));
    tile.m < LEAST_NATURAL || shares || tiles > u64::from(draft::sms(config, arch))
}

/// How warpgroups share the tile's rows: 64 each, or, of 256, 128.
fn share(tile: Tile, config: &Config, swap_ab: bool, both: bool) -> Warpgroups {
    let (rows, columns) = if swap_ab { (tile.n, tile.m) } else { (tile.m, tile.n) };
    let (rows, columns) = if both { (rows.saturating_mul(2), columns / 2) } else { (rows, columns) };
    let ping_pong = ping_pong(config);
    let (count, blocks) = match (ping_pong, rows / WARPGROUP_ROWS) {
        (true, blocks) => (2, blocks),
        (false, 4) => (2, 2),
        (false, count) => (count, 1),
    };
    Warpgroups {
        count,
        ping_pong,
        blocks,
        both,
        ordered: false,
        product_registers: blocks.saturating_mul(columns / 2),
        window: None,
        registers: match count {
            3 => [160, 32],
            // As CUTLASS has them.
            _ => [232, 40],
        },
    }
}

/// Registers of a thread that accumulators may take: the others hold addresses, the gate's values and C's. Of three
/// warpgroups' 128, ptxas refuses to give one MMA 104 (C7602).
pub(super) fn register_limit(warpgroups: u32) -> u32 {
    if warpgroups == WARPGROUP_LIMIT { 96 } else { 192 }
}

/// The same of a problem: decoded weights need registers of their own, and where products are kept beside C, ptxas spills a
/// few bytes of one kernel in forty with all 192 (13.0; windows are through by then, and leave theirs).
fn sum_limit(problem: &Problem, warpgroups: Warpgroups) -> u32 {
    let limit = register_limit(warpgroups.count);
    match problem.formats.kind(Arch::Sm90a) {
        Ok(MmaKind::Decoded) => limit.min(if warpgroups.count == WARPGROUP_LIMIT { 64 } else { 160 }),
        _ if problem.formats.products.is_some() && warpgroups.window.is_none() => limit.min(184),
        _ => limit,
    }
}

fn check_tile(
    problem: &Problem,
    tile: Tile,
    config: &Config,
    strategy: Strategy,
    swap_ab: bool,
    warpgroups: Warpgroups,
    errors: &mut Vec<ConfigError>,
) {
    let [rows, columns] = match swap_ab {
        false => [("M", tile.m), ("N", tile.n)],
        true => [("with swap_ab, N", tile.n), ("with swap_ab, M", tile.m)],
    };
    let mut refuse =
        |(side, given), reason: String| errors.push(ConfigError::WarpgroupTile { side, given, reason });
    let legal: &[u32] = if warpgroups.ping_pong { &[64, 128] } else { &[64, 128, 192, 256] };
    // Of decoded weights `check_decoded` says which are.
    if !decodes(problem) && !legal.contains(&rows.1) {
        let rows_of = if warpgroups.ping_pong {
            "a warpgroup has 64 or 128 rows"
        } else {
            "warpgroups have 64 rows each, or two of them 128: 64, 128, 192 or 256"
        };
        refuse(rows, rows_of.into());
    }
    let wide = config.layout() == Accumulators::SideBySide && !warpgroups.both;
    let limit = if wide { COLUMN_LIMIT / 2 } else { COLUMN_LIMIT };
    if !(8..=limit).contains(&columns.1) || !columns.1.is_multiple_of(8) {
        refuse(
            columns,
            format!(
                "one MMA has a multiple of 8 columns, 8 to {COLUMN_LIMIT}{}",
                if limit < COLUMN_LIMIT { ", those of both products" } else { "" }
            ),
        );
    }
    if swap_ab && config.layout() == Accumulators::SideBySide && !decodes(problem) {
        errors.push(ConfigError::SwapAb {
            knob: "accumulators",
            value: "side_by_side",
            reason: "the products would lie below each other, and one MMA has no rows for both",
        });
    }
    if swap_ab && config.store == Setting::Fixed(Store::Tma) && problem.formats.c.bits() != STAGED_BITS {
        errors.push(ConfigError::SwapAb {
            knob: "store",
            value: "tma",
            reason: "threads hold columns of C there, which become rows on their way to shared memory in elements of 16 bits only",
        });
    }
    let products = if strategy.is_fused() { 2 } else { 1 };
    let registers = warpgroups.sum_registers(products);
    let limit = sum_limit(problem, warpgroups);
    if registers > limit {
        errors.push(ConfigError::Registers {
            sums: window::name_sums(products, warpgroups),
            rows: warpgroups.rows(),
            columns: columns.1,
            warpgroups: warpgroups.count,
            registers,
            limit,
        });
    }
    let multiple = k_multiple(problem);
    if tile.k == 0 || !tile.k.is_multiple_of(multiple) {
        errors.push(ConfigError::TileK { given: tile.k, multiple });
    }
}

/// What decoding rules out.
fn check_decoded(
    problem: &Problem,
    tile: Tile,
    config: &Config,
    strategy: Strategy,
    arch: Arch,
    swap_ab: bool,
    errors: &mut Vec<ConfigError>,
) {
    if !decodes(problem) {
        return;
    }
    let mut refuse = |knob, value: String, reason| {
        errors.push(ConfigError::Decoded { knob, value, formats: problem.formats, reason });
    };
    if !swap_ab {
        refuse(
            "swap_ab",
            "off".into(),
            "decoded weights are in registers, from which an MMA takes its rows only",
        );
    }
    if strategy != Strategy::Interleaved {
        refuse(
            "strategy",
            strategy.to_string(),
            "while one product's MMAs run, the other's weights are decoded",
        );
    }
    if ping_pong(config) {
        refuse(
            "consumers",
            "ping_pong".into(),
            "a tile has the 128 rows of a block of scale factors, and a warpgroup decodes 64",
        );
    }
    if config.sf_preload != SfPreload::PerStage {
        refuse("sf_preload", config.sf_preload.to_string(), "scale factors come with their weights");
    }
    if matches!(config.sf_load, Setting::Fixed(load) if load != SfLoad::Bulk) {
        refuse("sf_load", config.sf_load.to_string(), "each CTA reads those of its own weights");
    }
    let several = problem.shape.m > tile.m || matches!(config.multicast, Multicast::B(_));
    if problem.formats.decodes_a(Arch::Sm90a)
        && several
        && !(tile.m > 0 && 128 % tile.m == 0 || tile.m.is_multiple_of(64))
    {
        refuse(
            "tile",
            tile.to_string(),
            "of several tiles along M each has M that divides 128 or is a multiple of 64, so that it starts in the blocks of scale factors that it loads",
        );
    }
    let both = has_both(problem, config, arch);
    if both && problem.formats.decodes_a(Arch::Sm90a) {
        refuse(
            "accumulators",
            "side_by_side".into(),
            "activations are brought into order by a launch before, which decodes none",
        );
    }
    if both && !both::ROWS.contains(&tile.n) {
        refuse(
            "tile",
            tile.to_string(),
            "with accumulators = side_by_side N is 64 or 96: two or three warpgroups have 32 rows of each product",
        );
    } else if both && !tile.m.is_multiple_of(16) {
        let reason =
            "with accumulators = side_by_side M is a multiple of 16: sums of a thread go four at a time";
        refuse("tile", tile.to_string(), reason);
    } else if both && ![128, 256].contains(&tile.k) {
        refuse("tile", tile.to_string(), "with accumulators = side_by_side K is 128 or 256");
    } else if !both && tile.n != 128 {
        refuse(
            "tile",
            tile.to_string(),
            "N is 128, the rows of a block of scale factors, or, with accumulators = side_by_side, 64 or 96",
        );
    } else if ![64, 128, 256].contains(&tile.k) {
        refuse("tile", tile.to_string(), "K is 64, 128 or 256: one swizzle span of packed weights");
    } else if !problem.shape.k.next_multiple_of(k_multiple(problem)).is_multiple_of(tile.k) {
        let reason = match problem.formats.scale_vector() {
            Some(32) => "K tiles are whole, for scale factors come in blocks of 128 and none are beyond K",
            _ => "K tiles are whole, for scale factors come in blocks of 64 and none are beyond K",
        };
        refuse("tile", tile.to_string(), reason);
    }
}

fn check_multicast(tile: Tile, config: &Config, errors: &mut Vec<ConfigError>) {
    let multicast = config.multicast;
    let mut refuse = |reason: String| errors.push(ConfigError::Multicast { multicast, reason });
    let rows = match multicast {
        Multicast::None => return,
        Multicast::A(_) => tile.m,
        Multicast::B(_) => tile.n,
    };
    let ctas = multicast.ctas();
    if !(2..=CLUSTER_LIMIT).contains(&ctas) || !ctas.is_power_of_two() {
        refuse(format!("a cluster has 2, 4 or {CLUSTER_LIMIT} CTAs, the largest that every chip runs"));
    } else if !rows.is_multiple_of(8 * ctas) {
        refuse(format!(
            "each CTA loads its part of {rows} rows, and swizzled rows come in groups of 8: {rows} / {ctas} is no multiple"
        ));
    }
}
