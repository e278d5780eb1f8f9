//! What is legal: the one judge, which refuses and only refuses.
//!
//! [`validate`] is what the macro, the command line, the runtime and the tests call. What all chips rule out is here; what
//! one way to multiply rules out is in its folder of `target/`. Each refusal names the knob, the limit and the sum, and
//! [`ConfigError::hint`] has a way out.
//!
//! * `mod.rs`: [`validate`], and what can be judged of each knob by itself or beside another.
//! * `groups.rs`: what batches and groups of rows rule out.
//! * `counts.rs`: launches beside the MMAs'.
//!
//! What has to fit memory is judged where memory is laid out, in `plan/draft.rs`.

pub(crate) mod counts;
pub(crate) mod groups;

use crate::arch::Arch;
use crate::config::{
    AReuse, Accumulators, Buffers, Config, CtaGroup, KOrder, Multicast, Raster, Schedule, Setting, SfPreload,
    Store, Strategy, Switch, Tile,
};
use crate::error::ConfigError;
use crate::gate::{Axis, Expr};
use crate::kernel::is_ptx_name;
use crate::plan::Plan;
use crate::problem::{MmaKind, Problem, Shape};
use crate::target::way_of;

/// Largest M, N and K: TMA coordinates are signed 32-bit and tiles round up.
pub(crate) const SIZE_LIMIT: u32 = 1 << 30;
/// The deepest pipeline and the deepest scale-factor ring beyond it.
pub(crate) const STAGE_LIMIT: u32 = 32;
/// The largest cluster that every chip runs (CUDA programming guide, "Thread Block Clusters").
pub(crate) const CLUSTER_LIMIT: u32 = 8;
/// Largest number of CTAs of a grid along x, and of anything else that kernels count in 32 bits.
pub(crate) const COUNT_LIMIT: u64 = (1 << 31) - 1;
/// Threads of the gate's own kernel, which number themselves in 32 bits: all but a CTA's 256.
const GATE_THREAD_LIMIT: u64 = (1 << 32) - 256;

/// The sides of a tile, its MMAs' rows first, with the names that an error gives them.
pub(crate) fn sides(tile: Tile, swap_ab: bool) -> [(&'static str, u32); 2] {
    match swap_ab {
        false => [("M", tile.m), ("N", tile.n)],
        true => [("with swap_ab, N", tile.n), ("with swap_ab, M", tile.m)],
    }
}

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

/// Refuses a gate that a plan with swapped operands cannot apply.
pub(crate) fn check_gate(arch: Arch, swap_ab: bool, gate: &GateNeeds) -> Result<(), ConfigError> {
    match &gate.row_vector {
        Some(vector) if swap_ab && !way_of(arch).swaps_row_vectors => {
            Err(ConfigError::SwapAbRows { vector: vector.clone() })
        }
        Some(_) | None => Ok(()),
    }
}

/// Refuses a kernel's name, the shape behind it, that PTX does not take.
pub(crate) fn check_name(name: &str) -> Result<(), ConfigError> {
    if is_ptx_name(name) { Ok(()) } else { Err(ConfigError::Name { name: name.to_owned() }) }
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
    errors.extend(check_gate(arch, config.swap_ab == Setting::Fixed(Switch::On), gate).err());
    if check_gate(arch, true, gate).is_err() {
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
    (way_of(arch).plan)(problem, config, arch)
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

/// What clusters that share a tile's K rule out.
pub(crate) fn check_cluster_parts(
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

/// Why chips whose MMAs take scale factors do not multiply sums by f32 ones.
pub(crate) const F32_SCALES: &str =
    "its MMAs multiply by a scale factor for each 32 elements themselves: requantise both operands to mxfp8";

/// The MMA's kind; formats have been checked.
pub(crate) fn kind(problem: &Problem) -> MmaKind {
    problem.formats.check().unwrap_or(MmaKind::Mxf4Nvf4)
}

/// What a K tile is a multiple of: whole MMA steps, and whole blocks of four scale factors. TMA expands
/// e2m1 in boxes of 128.
pub(crate) fn k_multiple(problem: &Problem) -> u32 {
    kind(problem).mma_k().max(4 * problem.formats.scale_vector().unwrap_or(0))
}

/// Knobs of scale factors where there are none.
pub(crate) fn check_scales(problem: &Problem, config: &Config, errors: &mut Vec<ConfigError>) {
    if problem.formats.scale_vector().is_some() {
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

pub(crate) fn check_ranges(config: &Config, arch: Arch, errors: &mut Vec<ConfigError>) {
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
    let limit = config.tmem_limit(arch);
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
pub(crate) fn check_strategy(
    problem: &Problem,
    config: &Config,
    strategy: Strategy,
    errors: &mut Vec<ConfigError>,
) {
    if strategy.operation() != problem.operation {
        errors.push(ConfigError::StrategyProducts { strategy, operation: problem.operation });
        return;
    }
    if strategy == Strategy::Interleaved {
        return;
    }
    match config.layout() {
        Accumulators::Separate => {}
        layout @ (Accumulators::SideBySide | Accumulators::InterleavedRows) => {
            errors.push(ConfigError::NotInterleaved {
                knob: "accumulators",
                value: layout.row().spelling,
                strategy,
                reason: "one MMA computes both products",
            });
        }
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
pub(crate) fn check_shares(config: &Config, errors: &mut Vec<ConfigError>) {
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
