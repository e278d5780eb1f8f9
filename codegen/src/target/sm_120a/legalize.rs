//! What `mma.sync` (sm_120a) rules out.

use super::Mma;
use crate::arch::Arch;
use crate::config::{
    AReuse, Accumulators, Config, CtaGroup, Multicast, Schedule, Setting, SfLoad, SfPreload, Strategy, Tile,
};
use crate::error::ConfigError;
use crate::legalize::{self as common, F32_SCALES, k_multiple, sides};
use crate::plan::draft::Settled;
use crate::problem::{Groups, MmaKind, Problem};
use crate::target::fragments::{self, COLUMN_LIMIT, WARPGROUP_LIMIT, check_store};

/// Rows that share blocks of scale factors.
const BLOCK_ROWS: u32 = 128;

/// What was asked for, before anything is settled.
pub(super) fn check_asked(problem: &Problem, asked: &Config, arch: Arch) -> Result<(), Vec<ConfigError>> {
    let mut errors = Vec::new();
    check_formats(problem, arch, &mut errors);
    check_knobs(asked, arch, &mut errors);
    fragments::check_knobs(asked, arch, "accumulators are in registers", &mut errors);
    if errors.is_empty() { Ok(()) } else { Err(errors) }
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
    check_tile(problem, tile, config, strategy, swap_ab, errors);
    check_scaled(problem, tile, swap_ab, errors);
    common::check_scales(problem, config, errors);
    common::check_ranges(config, arch, errors);
    common::check_strategy(problem, config, strategy, errors);
    common::check_shares(config, errors);
    common::groups::check_knobs(problem, config, strategy, swap_ab, errors);
}

fn check_formats(problem: &Problem, arch: Arch, errors: &mut Vec<ConfigError>) {
    let formats = problem.formats;
    let mut refuse = |reason| errors.push(ConfigError::FormatsOnChip { formats, arch, reason });
    match formats.kind(arch) {
        Ok(MmaKind::Decoded) => refuse("its MMAs take scale factors: quantise the activations, too"),
        Ok(_) if formats.scales_sums() => refuse(F32_SCALES),
        Ok(MmaKind::F16 | MmaKind::F8f6f4 | MmaKind::Mxf4Nvf4 | MmaKind::Mxf4 | MmaKind::Mxf8f6f4) => {}
        // Refused already.
        Err(_) => {}
    }
    if formats.c.scales().is_some() {
        refuse(
            "a thread holds two columns of a row, and a block of C that shares a scale factor has 16 or 32",
        );
    }
}

/// Knobs of tensor memory, of clusters, and of MMAs that are larger than a warp's.
fn check_knobs(config: &Config, arch: Arch, errors: &mut Vec<ConfigError>) {
    let mut refuse = |knob, value: String, reason| {
        errors.push(ConfigError::NotOnChip { knob, value, arch, reason });
    };
    let alone = "a cluster has one CTA";
    if config.cta_group == Setting::Fixed(CtaGroup::Two) {
        refuse("cta_group", "2".into(), "an MMA is one warp's");
    }
    if config.multicast != Multicast::None {
        refuse("multicast", config.multicast.to_string(), alone);
    }
    if let Setting::Fixed(load @ (SfLoad::TensorMap | SfLoad::Multicast)) = config.sf_load {
        refuse(
            "sf_load",
            load.to_string(),
            "no other CTA needs a CTA's scale factors: bulk copies bring them",
        );
    }
    if let preload @ (SfPreload::Ahead(_) | SfPreload::All) = config.sf_preload {
        refuse("sf_preload", preload.to_string(), "warps read scale factors where they read their operands");
    }
    match config.accumulators {
        Setting::Auto | Setting::Fixed(Accumulators::Separate) => {}
        Setting::Fixed(layout @ (Accumulators::SideBySide | Accumulators::InterleavedRows)) => {
            let reason = "an MMA has 16 rows and 8 columns, of one product; A is read once for both anyway";
            refuse("accumulators", layout.to_string(), reason);
        }
    }
    if config.consumers.is_fixed() {
        refuse("consumers", config.consumers.to_string(), "all warps that compute work on one tile");
    }
    if config.promotion.is_fixed() {
        refuse("promotion", config.promotion.to_string(), "its tensor cores add up in fp32");
    }
    if config.a_reuse == Setting::Fixed(AReuse::Collector) {
        refuse("a_reuse", "collector".into(), "A is in registers, where both products' MMAs find it");
    }
    match config.schedule {
        Setting::Fixed(schedule @ Schedule::ClusterSplitK(_)) => {
            refuse("schedule", schedule.to_string(), alone);
        }
        Setting::Fixed(Schedule::Dynamic) => {
            let reason = "its kernels do not ask for tiles (cluster launch control)";
            refuse("schedule", Schedule::Dynamic.to_string(), reason);
        }
        Setting::Auto
        | Setting::Fixed(
            Schedule::OneTile | Schedule::Persistent | Schedule::StreamK | Schedule::SplitK(_),
        ) => {}
    }
}

/// Registers of a thread that accumulators may take: the others hold operands, scale factors, addresses, the gate's values and C's.
pub(super) fn register_limit(groups: u32) -> u32 {
    if groups == WARPGROUP_LIMIT { 96 } else { 160 }
}

fn check_tile(
    problem: &Problem,
    tile: Tile,
    config: &Config,
    strategy: Strategy,
    swap_ab: bool,
    errors: &mut Vec<ConfigError>,
) {
    let [rows, columns] = sides(tile, swap_ab);
    let mma = Mma::of(tile, swap_ab);
    let mut refuse =
        |(side, given), reason: String| errors.push(ConfigError::WarpgroupTile { side, given, reason });
    if ![64, 128, 192, 256].contains(&rows.1) {
        refuse(rows, "four warps have 64 rows, and there are 4, 8 or 12: 64, 128, 192 or 256".into());
    }
    if !(8..=COLUMN_LIMIT).contains(&columns.1) || !columns.1.is_multiple_of(8) {
        let reason = format!("an MMA has 8 columns, and a tile 8 to {COLUMN_LIMIT}, a multiple of that");
        refuse(columns, reason);
    }
    check_store(problem, config, swap_ab, errors);
    let products = strategy.products();
    let registers = mma.sum_registers(products);
    let limit = register_limit(mma.groups.count);
    if registers > limit {
        errors.push(ConfigError::Registers {
            sums: if products == 1 { "an accumulator" } else { "two accumulators" },
            rows: mma.groups.rows(),
            columns: columns.1,
            warpgroups: mma.groups.count,
            registers,
            limit,
            scales: false,
        });
    }
    let multiple = k_multiple(problem);
    if tile.k == 0 || !tile.k.is_multiple_of(multiple) {
        errors.push(ConfigError::TileK { given: tile.k, multiple });
    }
}

/// Tiles start and end where warps find their scale factors in the blocks of 128 rows that come with them.
fn check_scaled(problem: &Problem, tile: Tile, swap_ab: bool, errors: &mut Vec<ConfigError>) {
    if problem.formats.b.spec().scales.is_none() {
        return;
    }
    let shape = problem.shape;
    let [rows, columns] = sides(tile, swap_ab);
    let extent = if swap_ab { shape.m } else { shape.n };
    let mut refuse =
        |(side, given), reason: String| errors.push(ConfigError::WarpgroupTile { side, given, reason });
    let grouped = matches!(shape.groups, Groups::Rows(_)) && !swap_ab;
    if rows.1 > BLOCK_ROWS {
        refuse(
            rows,
            format!("scale factors come in blocks of {BLOCK_ROWS} rows, and a tile has one: 64 or 128"),
        );
    } else if grouped && rows.1 < BLOCK_ROWS {
        refuse(rows, format!("each group starts in a block of scale factors of its own: {BLOCK_ROWS} rows"));
    }
    if columns.1 > BLOCK_ROWS {
        let reason = format!(
            "scale factors come in blocks of {BLOCK_ROWS} columns, and a tile has one: up to {BLOCK_ROWS}"
        );
        refuse(columns, reason);
    } else if columns.1 > 0 && !BLOCK_ROWS.is_multiple_of(columns.1) && extent > columns.1 {
        let reason = format!(
            "each of several tiles lies inside one block of {BLOCK_ROWS} scale factors: 8, 16, 32, 64 or 128"
        );
        refuse(columns, reason);
    }
}
