//! How many columns a tile of both products has: as many as leave the busiest SM the least to do.

use super::MMA_ROWS;
use crate::arch::Arch;
use crate::config::{Accumulators, Config, CtaGroup, Multicast, Schedule, Setting, Strategy};
use crate::heuristics::{Rule, sms, usual_tiles};
use crate::plan::Plan;
use crate::plan::draft::Settled;
use crate::problem::Problem;

/// Fewest stages of a width that is taken: loads have to be ahead of the MMAs.
const LEAST_STAGES: u32 = 4;

/// Columns that a tile wider than 128 is charged for, because its epilogue is longer.
const WIDE: u64 = 18;

/// A layout of accumulators, and the widths that are tried with it.
struct Layout {
    accumulators: Accumulators,
    /// Columns that a tile is charged for beside its own.
    fixed: u64,
    columns: &'static [u32],
}

/// A pair's tiles with scale factors, whose copies take time for each tile of K.
const SCALED_PAIR: [Layout; 1] =
    [Layout { accumulators: Accumulators::Separate, fixed: 48, columns: &[64, 128, 192] }];

/// A pair's tiles without scale factors. Two narrow MMAs wait for their reads of A; one wide MMA does not. Side by side from 96
/// columns on costs more than separate, and is for those who ask for it.
const PLAIN_PAIR: [Layout; 3] = [
    Layout { accumulators: Accumulators::SideBySide, fixed: 8, columns: &[48, 64, 80, 96, 112, 128] },
    Layout { accumulators: Accumulators::Separate, fixed: 24, columns: &[64] },
    Layout {
        accumulators: Accumulators::Separate,
        fixed: 4,
        columns: &[96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256],
    },
];

/// Tiles of one CTA.
const ALONE: [Layout; 1] = [Layout { accumulators: Accumulators::Separate, fixed: 16, columns: &[64, 128] }];

/// Whether the columns are free, and how much work tiles leave is known.
fn is_free(problem: &Problem, config: &Config, settled: &Settled) -> bool {
    config.tile == Setting::Auto
        && !settled.swap_ab
        && settled.strategy == Strategy::Interleaved
        && !problem.shape.groups.by_rows()
        && config.multicast == Multicast::None
        && config.ctas_per_sm() == 1
        && match config.schedule {
            Setting::Auto => true,
            Setting::Fixed(schedule) => {
                matches!(schedule, Schedule::OneTile | Schedule::Persistent | Schedule::Dynamic)
            }
        }
}

/// The legal plan whose busiest SM has the least to do: waves of tiles times a tile's columns, with what a tile costs beside
/// them. `None` where columns are not free, or no width is legal; then the narrow or the wide tile is taken.
pub(super) fn choose(
    problem: &Problem,
    config: &Config,
    arch: Arch,
    settled: &Settled,
    plan: impl Fn(&Config, Settled) -> Option<Plan>,
) -> Option<Plan> {
    if !is_free(problem, config, settled) {
        return None;
    }
    let ctas = config.group().ctas();
    let scaled = problem.formats.a.spec().scales.is_some();
    let layouts: &[Layout] = match config.group() {
        CtaGroup::One => &ALONE,
        CtaGroup::Two if scaled => &SCALED_PAIR,
        CtaGroup::Two => &PLAIN_PAIR,
    };
    let asked = |layout: &&Layout| match config.accumulators {
        Setting::Auto => true,
        Setting::Fixed(accumulators) => layout.accumulators == accumulators,
    };
    let rows = usual_tiles(problem.shape, MMA_ROWS * ctas);
    let at_once = u64::from((sms(config, arch) / ctas).max(1));
    let cost = |layout: &Layout, n: u32| {
        let waves = rows.saturating_mul(problem.shape.n.div_ceil(n).into()).div_ceil(at_once);
        match n > 128 {
            false => Some(waves.saturating_mul(u64::from(n) + layout.fixed)),
            // Accumulators of the next tile would have no tensor memory while this one's are stored.
            true => (waves == 1).then_some(u64::from(n) + layout.fixed + WIDE),
        }
    };
    let mut candidates: Vec<_> = layouts
        .iter()
        .filter(asked)
        .flat_map(|layout| layout.columns.iter().map(move |n| (layout, *n)))
        .filter_map(|(layout, n)| Some((cost(layout, n)?, layout, n)))
        .collect();
    candidates.sort_by_key(|(cost, _, n)| (*cost, std::cmp::Reverse(*n)));
    candidates.into_iter().find_map(|(_, layout, n)| {
        let mut settled = settled.clone();
        settled.tile.n = n;
        let rule = match layout.accumulators {
            Accumulators::SideBySide => Rule::PairReadsAOnce,
            Accumulators::Separate | Accumulators::InterleavedRows => Rule::MmaOfEach,
        };
        settled.rules.note_all([("tile", Rule::LeastWork), ("accumulators", rule)]);
        let config = Config { accumulators: Setting::Fixed(layout.accumulators), ..*config };
        plan(&config, settled)
            .filter(|plan| config.stages.is_fixed() || plan.stages >= LEAST_STAGES.min(plan.k_loop.tiles))
    })
}
