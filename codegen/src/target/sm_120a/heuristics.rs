//! How `auto` is settled where warps issue the MMAs (`mma.sync`, sm_120a). Nothing was measured on such a chip: rules follow from what
//! fits, and from what holds for warpgroups of sm_90a, whose threads hold the same.

use super::Mma;
use super::legalize::{self, register_limit};
use crate::arch::Arch;
use crate::config::{Accumulators, Config, CtaGroup, Setting, Strategy, Tile};
use crate::error::ConfigError;
use crate::heuristics::{Rule, Rules, choose_strategy};
use crate::legalize::k_multiple;
use crate::plan::Plan;
use crate::plan::draft::{Draft, Settled, row_bytes};
use crate::problem::{MmaKind, Problem};
use crate::target::Target;
use crate::target::fragments::{choose_store, least_busy, settle_store, store_rule, swaps};

/// Stages that are worth shorter ones.
const STAGES: u32 = 3;
/// Rows of a tile, at most; scale factors come in blocks of as many.
const ROWS: u32 = 128;
/// Bytes that barriers and marks take, at most.
const BARRIERS: u32 = 1024;

/// See [`Way::plan`](crate::target::Way).
pub(crate) fn plan(problem: &Problem, asked: &Config, arch: Arch) -> Result<Plan, Vec<ConfigError>> {
    legalize::check_asked(problem, asked, arch)?;
    let config = &Config {
        cta_group: Setting::Fixed(CtaGroup::One),
        accumulators: Setting::Fixed(Accumulators::Separate),
        ..*asked
    };
    let mut rules = Rules::default();
    let strategy = rules.settle("strategy", config.strategy, || choose_strategy(problem));
    let (swap_ab, rule) = swaps(problem, config, true);
    rules.note("swap_ab", rule);
    rules.note("accumulators", Rule::MmaOfEach);
    let tile = rules.settle("tile", config.tile, || choose_tile(problem, config, strategy, swap_ab, arch));
    let store = config.store.unwrap_or_else(|| choose_store(problem, strategy, tile, swap_ab));
    // A stage counts where there are few.
    settle_store(
        asked,
        store,
        |plan| plan.work.is_looped() && plan.stages < STAGES,
        |store| {
            let config = &Config { store: Setting::Fixed(store), ..*config };
            let mut rules = rules.clone();
            rules.note("store", store_rule(store, swap_ab));
            settle(
                problem,
                config,
                arch,
                Settled { strategy, tile, swap_ab, target: Target::Mma(Mma::of(tile, swap_ab)), rules },
            )
        },
    )
}

/// The plan, once all is settled but what has to fit.
fn settle(
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

/// 128 rows, or as few as there are, and as many columns as leave the SMs least to do; K one swizzle span of 128 bytes, or half of
/// one where shared memory would hold less than three stages.
fn choose_tile(
    problem: &Problem,
    config: &Config,
    strategy: Strategy,
    swap_ab: bool,
    arch: Arch,
) -> (Tile, Rule) {
    let shape = problem.shape;
    let scaled = problem.formats.b.spec().scales.is_some();
    if swap_ab {
        let tokens = shape.typical_rows().next_multiple_of(8).clamp(8, ROWS);
        // Each tile must lie inside one block of scale factors, so its columns divide 128.
        let several = scaled && shape.m > tokens;
        let m = if several { tokens.next_power_of_two() } else { tokens };
        let (k, shortened) = choose_k(problem, strategy, [m, ROWS], swap_ab, arch);
        return (Tile { m, n: ROWS, k }, Rule::WarpColumns { shortened });
    }
    let grouped = scaled && shape.groups.by_rows();
    let m = if shape.typical_rows() <= ROWS / 2 && !grouped { ROWS / 2 } else { ROWS };
    let fits = |n: &u32| {
        let mma = Mma::of(Tile { m, n: *n, k: 0 }, false);
        let (k, _) = choose_k(problem, strategy, [m, *n], swap_ab, arch);
        mma.sum_registers(strategy.products()) <= register_limit(mma.groups.count)
            && 2 * stage_bytes(problem, strategy, Tile { m, n: *n, k }, swap_ab) <= smem(arch)
    };
    let starts = |n: &u32| !scaled || ROWS.is_multiple_of(*n);
    let columns = (2..=16).rev().map(|n| 16 * n).filter(starts).filter(fits);
    let n = least_busy(problem, config, arch, m, columns).unwrap_or(64);
    let (k, shortened) = choose_k(problem, strategy, [m, n], swap_ab, arch);
    (Tile { m, n, k }, Rule::WarpRows { shortened })
}

/// K of a tile of so many rows and columns, and whether it is half of a swizzle span.
fn choose_k(
    problem: &Problem,
    strategy: Strategy,
    [m, n]: [u32; 2],
    swap_ab: bool,
    arch: Arch,
) -> (u32, bool) {
    let multiple = k_multiple(problem);
    let span = (128 * 8 / container_bits(problem)).max(multiple);
    let k = problem.shape.k.next_multiple_of(multiple).min(span);
    let k = if k * 4 == span * 3 { span } else { k };
    let stages = u64::from(STAGES) * stage_bytes(problem, strategy, Tile { m, n, k }, swap_ab);
    let shortened = k == span && (k / 2).is_multiple_of(multiple) && stages > smem(arch);
    (if shortened { k / 2 } else { k }, shortened)
}

/// Bytes of a stage, scale factors included.
fn stage_bytes(problem: &Problem, strategy: Strategy, tile: Tile, swap_ab: bool) -> u64 {
    let products = if strategy == Strategy::Interleaved { 2 } else { 1 };
    let operands = u64::from(tile.m + products * tile.n)
        * u64::from(row_bytes(problem.formats.check().unwrap_or(MmaKind::F16), tile));
    let blocks = problem.formats.scale_vector().map_or(0, |vector| tile.k.div_ceil(4 * vector));
    let row_blocks = if swap_ab { 1 + products } else { 1 + products * tile.n.div_ceil(ROWS) };
    operands + u64::from(512 * blocks * row_blocks)
}

fn container_bits(problem: &Problem) -> u32 {
    problem.formats.check().map_or(16, MmaKind::container_bits)
}

/// Bytes of shared memory for stages: barriers take the rest.
fn smem(arch: Arch) -> u64 {
    u64::from(arch.limits().smem_bytes - BARRIERS)
}
