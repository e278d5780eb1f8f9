//! What warpgroups (`wgmma`, sm_90a) rule out.

use super::promotion;
use super::{Wgmma, decodes, has_interleaved_rows, interleaved, ping_pong};
use crate::arch::Arch;
use crate::config::{
    AReuse, Accumulators, Config, CtaGroup, Multicast, Schedule, Setting, SfLoad, SfPreload, Strategy, Tile,
};
use crate::error::ConfigError;
use crate::legalize::{self as common, CLUSTER_LIMIT, k_multiple, sides};
use crate::plan::draft::Settled;
use crate::problem::{MmaKind, Problem};
use crate::target::fragments::{self, COLUMN_LIMIT, WARPGROUP_LIMIT, check_store};

/// What was asked for, before anything is settled.
pub(super) fn check_asked(problem: &Problem, asked: &Config, arch: Arch) -> Result<(), Vec<ConfigError>> {
    let mut errors = Vec::new();
    check_formats(problem, arch, &mut errors);
    check_knobs(asked, arch, &mut errors);
    let one_buffer =
        "accumulators are in registers; with consumers = ping_pong an epilogue overlaps other MMAs";
    fragments::check_knobs(asked, arch, one_buffer, &mut errors);
    promotion::check_knob(problem, asked, arch, &mut errors);
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// What was settled, but for what has to fit.
pub(super) fn check(
    problem: &Problem,
    config: &Config,
    arch: Arch,
    settled: &Settled,
    warpgroups: Wgmma,
    errors: &mut Vec<ConfigError>,
) {
    let Settled { strategy, tile, swap_ab, .. } = *settled;
    check_decoded(problem, tile, config, strategy, arch, swap_ab, errors);
    check_tile(problem, tile, config, strategy, swap_ab, warpgroups, errors);
    promotion::check_scales(problem, config, tile, swap_ab, errors);
    common::check_scales(problem, config, errors);
    common::check_ranges(config, arch, errors);
    // Registers go to other CTAs four at a time.
    let least = if warpgroups.interleaved_rows { 16 } else { 8 };
    common::check_cluster_parts(problem, tile, config, swap_ab, least, errors);
    common::check_strategy(problem, config, strategy, errors);
    common::check_shares(config, errors);
    check_multicast(tile, config, errors);
    common::groups::check_knobs(problem, config, strategy, swap_ab, errors);
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
    if config.cta_group == Setting::Fixed(CtaGroup::Two) {
        refuse("cta_group", "2".into(), "an MMA is one warpgroup's");
    }
    if config.a_reuse == Setting::Fixed(AReuse::Collector) {
        refuse(
            "a_reuse",
            "collector".into(),
            "its tensor cores have no collector; side_by_side reads A once",
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

/// Registers of a thread that accumulators may take: the others hold addresses, the gate's values and C's. A thread
/// of three warpgroups has 128, and ptxas refuses to give one MMA 104 of them (C7602).
pub(super) fn register_limit(warpgroups: u32) -> u32 {
    if warpgroups == WARPGROUP_LIMIT { 96 } else { 192 }
}

/// [`register_limit`] for one problem. Decoded weights need registers of their own. With kept pre-activations and all 192
/// registers, ptxas 13.0 spills a few bytes in one kernel of forty; with `promotion` a second set of sums is free by then.
pub(super) fn sum_limit(problem: &Problem, warpgroups: Wgmma) -> u32 {
    let limit = register_limit(warpgroups.count);
    match problem.formats.kind(Arch::Sm90a) {
        Ok(MmaKind::Decoded) => limit.min(if warpgroups.count == WARPGROUP_LIMIT { 64 } else { 160 }),
        _ if problem.formats.preactivations.is_some() && warpgroups.promotion.is_none() => limit.min(184),
        _ => limit,
    }
}

fn check_tile(
    problem: &Problem,
    tile: Tile,
    config: &Config,
    strategy: Strategy,
    swap_ab: bool,
    warpgroups: Wgmma,
    errors: &mut Vec<ConfigError>,
) {
    let [rows, columns] = sides(tile, swap_ab);
    let mut refuse =
        |(side, given), reason: String| errors.push(ConfigError::WarpgroupTile { side, given, reason });
    let legal: &[u32] = if warpgroups.ping_pong { &[64, 128] } else { &[64, 128, 192, 256] };
    // `check_decoded` says which rows decoded weights may have.
    if !decodes(problem) && !legal.contains(&rows.1) {
        let rows_of = if warpgroups.ping_pong {
            "a warpgroup has 64 or 128 rows"
        } else {
            "warpgroups have 64 rows each, or two of them 128: 64, 128, 192 or 256"
        };
        refuse(rows, rows_of.into());
    }
    let wide = config.layout() == Accumulators::SideBySide;
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
    if config.layout() == Accumulators::InterleavedRows && !decodes(problem) {
        errors.push(ConfigError::Decoded {
            knob: "accumulators",
            value: "interleaved_rows".into(),
            formats: problem.formats,
            reason: "an MMA's rows are of both products for weights that are decoded",
        });
    }
    if swap_ab && config.layout() == Accumulators::SideBySide {
        errors.push(ConfigError::SwapAb {
            knob: "accumulators",
            value: "side_by_side",
            reason: "the products would lie below each other, and one MMA has no rows for both",
        });
    }
    check_store(problem, config, swap_ab, errors);
    let products = strategy.products();
    let scales = promotion::scale_registers(problem, swap_ab, tile, warpgroups, products);
    let registers = warpgroups.sum_registers(products).saturating_add(scales);
    let limit = sum_limit(problem, warpgroups);
    if registers > limit {
        errors.push(ConfigError::Registers {
            sums: promotion::name_sums(products, warpgroups, scales > 0),
            rows: warpgroups.rows(),
            columns: columns.1,
            warpgroups: warpgroups.count,
            registers,
            limit,
            scales: scales > 0,
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
    if !matches!(strategy, Strategy::Interleaved | Strategy::Single) {
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
    let both = has_interleaved_rows(problem, config, arch);
    if both && problem.formats.decodes_a(Arch::Sm90a) {
        refuse(
            "accumulators",
            "interleaved_rows".into(),
            "activations are brought into order by a launch before, which decodes none",
        );
    }
    if both && !interleaved::ROWS.contains(&tile.n) {
        refuse(
            "tile",
            tile.to_string(),
            "with accumulators = interleaved_rows N is 64 or 96: two or three warpgroups have 32 rows of each product",
        );
    } else if both && !tile.m.is_multiple_of(16) {
        let reason =
            "with accumulators = interleaved_rows M is a multiple of 16: sums of a thread go four at a time";
        refuse("tile", tile.to_string(), reason);
    } else if both && ![128, 256].contains(&tile.k) {
        refuse("tile", tile.to_string(), "with accumulators = interleaved_rows K is 128 or 256");
    } else if !both && tile.n != 128 {
        refuse(
            "tile",
            tile.to_string(),
            "N is 128, the rows of a block of scale factors, or, with accumulators = interleaved_rows, 64 or 96",
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
