//! What `wgmma` and `mma.sync` share: warps hold the accumulators in their registers, as fragments, and share a tile's rows in
//! warpgroups of four.

use super::Wgmma;
use crate::arch::Arch;
use crate::config::{Buffers, Config, CtasPerSm, KOrder, Setting, Store, Strategy, Switch, Tile};
use crate::error::ConfigError;
use crate::heuristics::{FEW_TOKENS, Rule, sms, usual_tiles};
use crate::plan::Plan;
use crate::problem::Problem;

/// Rows of a warpgroup's fragment: 16 of each warp (PTX ISA 9.7.15.2).
pub(super) const WARPGROUP_ROWS: u32 = 64;
/// Warpgroups that compute, at most: with the one that loads, 512 threads share an SM's 65536 registers.
pub(super) const WARPGROUP_LIMIT: u32 = 3;
/// Bits per element of C that `stmatrix.trans` can transpose from columns in registers to rows in shared memory.
pub(super) const STAGED_BITS: u32 = 16;
/// Most columns of a tile: a `wgmma` has 256 at most (PTX ISA 9.7.15.2), and so has a box of TMA rows.
pub(super) const COLUMN_LIMIT: u32 = 256;
/// Tokens up to which threads with columns of C store them as they are.
const LEAST_STAGED: u32 = 16;

/// The number of warpgroups that share a tile of `rows` rows, and of MMAs of 64 rows per warpgroup: two for 256 rows, else one.
pub(super) fn share_rows(rows: u32) -> (u32, u32) {
    match rows / WARPGROUP_ROWS {
        4 => (2, 2),
        count => (count, 1),
    }
}

impl Wgmma {
    /// `count` warpgroups that share one tile. Each has `blocks` MMAs of 64 rows and `columns` columns, and adds up all of K in
    /// its accumulators, without promotion.
    pub(super) fn together(count: u32, blocks: u32, columns: u32) -> Wgmma {
        Wgmma {
            count,
            ping_pong: false,
            blocks,
            interleaved_rows: false,
            ordered: false,
            product_registers: blocks.saturating_mul(columns / 2),
            promotion: None,
            registers: match count {
                WARPGROUP_LIMIT => [160, 32],
                // As CUTLASS has them.
                _ => [232, 40],
            },
        }
    }
}

/// Whether weights take the MMA's row side. `auto` puts them there if there are too few tokens for its 64 rows. `free` is false if
/// a knob of the caller's needs tokens as rows.
pub(super) fn swaps(problem: &Problem, config: &Config, free: bool) -> (bool, Rule) {
    let free = free
        && config.tile == Setting::Auto
        && (config.store != Setting::Fixed(Store::Tma) || problem.formats.c.bits() == STAGED_BITS);
    let few = free && problem.shape.typical_rows() <= FEW_TOKENS / 2;
    let swaps = config.swap_ab.unwrap_or_else(|| if few { Switch::On } else { Switch::Off }).is_on();
    (swaps, if swaps { Rule::FewTokens { rows: WARPGROUP_ROWS } } else { Rule::EnoughTokens })
}

/// Picks from `candidates` the columns of a tile of `m` rows that give the busiest SM the least work; the first of equals. A tile
/// costs its columns, and 8 more for what is not an MMA.
pub(super) fn least_busy(
    problem: &Problem,
    config: &Config,
    arch: Arch,
    m: u32,
    candidates: impl Iterator<Item = u32>,
) -> Option<u32> {
    let rows = usual_tiles(problem.shape, m);
    let sms = u64::from(sms(config, arch));
    let tiles = |n: u32| rows * u64::from(problem.shape.n.div_ceil(n));
    candidates.min_by_key(|n| tiles(*n).div_ceil(sms) * (u64::from(*n) + 8))
}

/// Through shared memory and TMA wherever TMA can: a thread has two columns of a row side by side, and would store four
/// bytes at a time (seen on an H200: a tenth of the time of a prefill), or, with columns of C, two.
pub(super) fn choose_store(problem: &Problem, strategy: Strategy, tile: Tile, swap_ab: bool) -> Store {
    let bits = problem.formats.c.bits();
    let row_bits = u64::from(problem.shape.n) * u64::from(bits);
    let boxed = strategy != Strategy::TwoPass
        && row_bits.is_multiple_of(128)
        && match swap_ab {
            true => bits == STAGED_BITS && tile.m > LEAST_STAGED,
            false => (u64::from(tile.n) * u64::from(bits)).is_multiple_of(128),
        };
    if boxed { Store::Tma } else { Store::Direct }
}

/// Makes the plan with `store`. If `auto` chose a TMA store, its staging may leave too little shared memory for what the caller
/// asked for, or cost a pipeline stage of a plan for which `counts_stages` is true. Then C is stored from registers.
pub(super) fn settle_store(
    asked: &Config,
    store: Store,
    counts_stages: impl Fn(&Plan) -> bool,
    plan: impl Fn(Store) -> Result<Plan, Vec<ConfigError>>,
) -> Result<Plan, Vec<ConfigError>> {
    let free = store != Store::Direct && !asked.store.is_fixed();
    match plan(store) {
        Err(_) if free => plan(Store::Direct),
        Ok(staged) if free && counts_stages(&staged) => {
            plan(Store::Direct).map(|direct| if direct.stages > staged.stages { direct } else { staged })
        }
        result => result,
    }
    .map(|plan| Plan { asked: *asked, ..plan })
}

/// The rule that explains `store`.
pub(super) fn store_rule(store: Store, swap_ab: bool) -> Rule {
    match store {
        Store::Tma if swap_ab => Rule::TurnedInSmem,
        Store::Tma => Rule::RowsLeaveWhole,
        Store::Direct | Store::DirectBy(_) => Rule::FromRegisters,
    }
}

/// Refuses the knobs of tensor memory, and of warps that apply the gate while others issue MMAs. `one_buffer` is the reason that
/// an error gives for a single buffer of accumulators.
pub(super) fn check_knobs(
    config: &Config,
    arch: Arch,
    one_buffer: &'static str,
    errors: &mut Vec<ConfigError>,
) {
    let mut refuse = |knob, value: String, reason| {
        errors.push(ConfigError::NotOnChip { knob, value, arch, reason });
    };
    let no_tmem = "accumulators are in registers";
    if config.ctas_per_sm == Setting::Fixed(CtasPerSm::Two) {
        refuse("ctas_per_sm", "2".into(), "accumulators are in registers, which are dealt out for one CTA");
    }
    if let Setting::Fixed(warps) = config.epilogue_warps {
        let reason = "the warps that hold accumulators finish them";
        refuse("epilogue_warps", warps.to_string(), reason);
    }
    if let Setting::Fixed(columns) = config.tmem_columns {
        refuse("tmem_columns", columns.to_string(), no_tmem);
    }
    if let Setting::Fixed(buffers) = config.accumulator_buffers
        && buffers != Buffers::Whole(1)
    {
        refuse("accumulator_buffers", buffers.to_string(), one_buffer);
    }
    if let Setting::Fixed(store @ Store::DirectBy(_)) = config.store {
        refuse("store", store.to_string(), no_tmem);
    }
    if let Setting::Fixed(order @ KOrder::SplitTail(_)) = config.k_order {
        let reason = "the warps that issue the tail's MMAs are those that would apply the gate";
        refuse("k_order", order.to_string(), reason);
    }
}

/// Refuses a TMA store with `swap_ab` if C's elements do not have 16 bits: `stmatrix.trans` cannot transpose others.
pub(super) fn check_store(problem: &Problem, config: &Config, swap_ab: bool, errors: &mut Vec<ConfigError>) {
    if swap_ab && config.store == Setting::Fixed(Store::Tma) && problem.formats.c.bits() != STAGED_BITS {
        errors.push(ConfigError::SwapAb {
            knob: "store",
            value: "tma",
            reason: "threads hold columns of C there, which become rows on their way to shared memory in elements of 16 bits only",
        });
    }
}
