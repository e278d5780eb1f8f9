//! What `tcgen05` and tensor memory (sm_100a) rule out.

use super::{MMA_ROWS, load, neighbours, shares_scales};
use crate::arch::Arch;
use crate::config::{
    AReuse, Accumulators, Buffers, Config, CtaGroup, CtasPerSm, EpilogueWarps, Multicast, Schedule, Setting,
    SfLoad, Store, Tile,
};
use crate::error::ConfigError;
use crate::legalize::{self as common, CLUSTER_LIMIT, COUNT_LIMIT, F32_SCALES, k_multiple, sides};
use crate::plan::draft::Settled;
use crate::problem::{MmaKind, Problem, Shape};

/// Formats that its MMAs do not take.
pub(super) fn check_formats(problem: &Problem, arch: Arch) -> Result<(), Vec<ConfigError>> {
    if problem.formats.check() == Ok(MmaKind::Decoded) {
        let reason = "its MMAs take scale factors: quantise the activations, too";
        return Err(vec![ConfigError::FormatsOnChip { formats: problem.formats, arch, reason }]);
    }
    if problem.formats.scales_sums() {
        let formats = problem.formats;
        return Err(vec![ConfigError::FormatsOnChip { formats, arch, reason: F32_SCALES }]);
    }
    Ok(())
}

/// What was settled, but for what has to fit.
pub(super) fn check(
    problem: &Problem,
    config: &Config,
    arch: Arch,
    settled: &Settled,
    errors: &mut Vec<ConfigError>,
) {
    let Settled { strategy, tile, swap_ab, .. } = *settled;
    check_tile(problem, tile, config, swap_ab, errors);
    check_accumulators(problem, tile, config.layout(), errors);
    common::check_scales(problem, config, errors);
    check_output_scales(problem, tile, swap_ab, errors);
    common::check_ranges(config, arch, errors);
    common::check_strategy(problem, config, strategy, errors);
    common::check_shares(config, errors);
    check_sides(problem.shape, config, swap_ab, errors);
    check_multicast(tile, config, swap_ab, errors);
    common::check_cluster_parts(problem, tile, config, swap_ab, 8, errors);
    common::groups::check_knobs(problem, config, strategy, swap_ab, errors);
    load::check(problem, tile, config, swap_ab, errors);
    check_epilogue_warps(problem, tile, config, swap_ab, errors);
    let mut refuse = |knob, value, reason| errors.push(ConfigError::NotOnChip { knob, value, arch, reason });
    if config.consumers.is_fixed() {
        let reason = "accumulators are in tensor memory, and one warp issues all MMAs";
        refuse("consumers", config.consumers.to_string(), reason);
    }
    if config.accumulators == Setting::Fixed(Accumulators::InterleavedRows) {
        refuse("accumulators", "interleaved_rows".into(), "its MMAs take weights of 4 bits as they are");
    }
    if config.promotion.is_fixed() {
        refuse("promotion", config.promotion.to_string(), "its tensor cores add up in fp32");
    }
}

fn check_tile(problem: &Problem, tile: Tile, config: &Config, swap_ab: bool, errors: &mut Vec<ConfigError>) {
    let (shape, ctas) = (problem.shape, config.group().ctas());
    let scaled = problem.formats.a.spec().scales.is_some();
    let [rows, columns] = sides(tile, swap_ab);
    let extent = if swap_ab { shape.m } else { shape.n };
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

/// What eight epilogue warps rule out: each half of a tile's columns is finished by itself.
fn check_epilogue_warps(
    problem: &Problem,
    tile: Tile,
    config: &Config,
    swap_ab: bool,
    errors: &mut Vec<ConfigError>,
) {
    if config.epilogue_warps != Setting::Fixed(EpilogueWarps::Eight) {
        return;
    }
    let mut refuse = |reason: String| errors.push(ConfigError::EpilogueWarps { reason });
    let columns = if swap_ab { tile.m } else { tile.n };
    let multiple = load::halves(problem, config, swap_ab);
    if !columns.is_multiple_of(multiple) {
        refuse(format!(
            "four of them finish half of a tile's {columns} columns, in whole chunks: the columns have to be a multiple of {multiple}"
        ));
    }
    if let Setting::Fixed(schedule @ (Schedule::StreamK | Schedule::SplitK(_) | Schedule::ClusterSplitK(_))) =
        config.schedule
    {
        refuse(format!("with schedule = {schedule} four warps add up the parts of a tile"));
    }
    if config.accumulator_buffers == Setting::Fixed(Buffers::Overlapped) {
        refuse("overlapped buffers are read chunk by chunk, the shared ones first, by four warps".into());
    }
    if config.ctas_per_sm == Setting::Fixed(CtasPerSm::Two) {
        refuse("two CTAs of 320 threads leave 96 registers for each thread".into());
    }
    let half_bits = u64::from(tile.n / 2) * u64::from(problem.formats.c.bits());
    if config.store == Setting::Fixed(Store::Tma) && !swap_ab && !half_bits.is_multiple_of(128) {
        refuse(format!(
            "with store = tma half of a tile's {} columns are {} bytes, and rows of a box are multiples of 16",
            tile.n,
            half_bits / 8
        ));
    }
}

fn check_multicast(tile: Tile, config: &Config, swap_ab: bool, errors: &mut Vec<ConfigError>) {
    let multicast = config.multicast;
    let mut refuse = |reason: String| errors.push(ConfigError::Multicast { multicast, reason });
    let pair = config.group() == CtaGroup::Two;
    let whole = if swap_ab { tile.m } else { tile.n };
    // Each CTA of a pair loads its half of the MMA's columns; side by side, B1 or B2 whole.
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
