//! How `auto` is settled where all targets agree on it; each folder of `target/` has what only it decides.

mod rules;

pub(crate) use rules::{Rule, Rules};

use crate::arch::Arch;
use crate::config::{Buffers, CacheHints, Config, Consumers, Eviction, Raster, Schedule, Setting, Strategy};
use crate::error::ConfigError;
use crate::legalize::COUNT_LIMIT;
use crate::plan::Work;
use crate::plan::draft::Draft;
use crate::problem::{MmaKind, Operation, Problem, Shape};
use crate::target::Isa;

/// Tokens up to which weights take the row side of an MMA of 128 rows: half of what it has.
pub(crate) const FEW_TOKENS: u32 = 64;

/// SMs that the kernel is made for; at least one, as long as a given 0 is not refused yet.
pub(crate) fn sms(asked: &Config, arch: Arch) -> u32 {
    asked.sms.unwrap_or_else(|| arch.limits().sms).max(1)
}

/// Clusters of `ctas` CTAs that the chip runs at a time. A cluster's SMs are of one GPC, and a GPC can have SMs left that make no
/// cluster: an H200 runs 30 clusters of 4 (decision 0246).
pub(crate) fn cluster_slots(asked: &Config, arch: Arch, ctas: u32) -> u32 {
    let [of_2, of_4, of_8] = arch.limits().clusters;
    let most = match ctas {
        0..=1 => 0,
        2 => of_2,
        3..=4 => of_4,
        _ => of_8,
    };
    let by_sms = sms(asked, arch) * asked.ctas_per_sm() / ctas.max(1);
    // A chip without clusters of that size refuses them elsewhere.
    if most == 0 { by_sms } else { by_sms.min(most * asked.ctas_per_sm()) }
}

/// The strategy of as many products as there are.
pub(crate) fn choose_strategy(problem: &Problem) -> (Strategy, Rule) {
    match problem.operation {
        Operation::DualGemm => (Strategy::Interleaved, Rule::OneKernel),
        Operation::Gemm => (Strategy::Single, Rule::OneProduct),
    }
}

/// CTAs of a cluster that share a tile's K, as asked for; 1 where none do.
pub(crate) fn cluster_parts(asked: &Config) -> u32 {
    if let Setting::Fixed(Schedule::ClusterSplitK(parts)) = asked.schedule { parts } else { 1 }
}

/// Tiles of `rows` rows that C has along M, over all matrices; of groups if they are of one size.
pub(crate) fn usual_tiles(shape: Shape, rows: u32) -> u64 {
    u64::from(shape.typical_rows().div_ceil(rows)) * u64::from(shape.groups.count())
}

/// Chooses L2 eviction hints. Weights get `evict_first` if each is read once: all tiles run in one wave, or decoded weights
/// have one tile along M. Under stream-K several tiles along M read the same weights at different times, and L2 has to keep them until
/// then (decision 0242); decoded weights with one tile along M leave L2 to partial sums: C gets `evict_first`, and A, which all
/// tiles read, `evict_last` (1 % each at 128 tokens on an H200).
pub(crate) fn choose_cache(draft: &Draft<'_>) -> (CacheHints, Rule) {
    let slots = cluster_slots(draft.asked, draft.arch, draft.cluster_ctas());
    let in_step = draft.work.schedule != Schedule::StreamK || draft.m_tiles == 1;
    let one_wave = in_step && draft.work.tiles <= slots;
    let once = draft.kind == MmaKind::Decoded && draft.m_tiles == 1;
    let shared = once && draft.work.schedule == Schedule::StreamK;
    let hints = CacheHints {
        a: shared.then_some(Eviction::Last),
        b: (one_wave || once).then_some(Eviction::First),
        c: shared.then_some(Eviction::First),
        ..CacheHints::default()
    };
    let rule = match (hints == CacheHints::default(), in_step) {
        (true, true) => Rule::MoreWaves,
        (true, false) => Rule::OutOfStep,
        (false, _) => Rule::OneWave,
    };
    (hints, rule)
}

/// Settles the schedule and the number of clusters. `auto` is persistent if there are more tiles than run at once. With
/// interleaved rows the grid has only as many clusters as keep the largest number of tiles per cluster.
pub(crate) fn settle_work(
    asked: &Config,
    arch: Arch,
    isa: &dyn Isa,
    items: [u32; 2],
    matrices: u32,
    k_tiles: u32,
    rules: &mut Rules,
) -> Result<Work, ConfigError> {
    let parts = cluster_parts(asked);
    let ctas = asked.group().ctas() * asked.multicast.ctas() * parts;
    let tiles = u64::from(items[0]).saturating_mul(u64::from(items[1])).saturating_mul(matrices.into());
    let capacity = cluster_slots(asked, arch, ctas);
    // Two buffers were asked for: there is something to overlap only where tiles follow each other.
    let two = matches!(asked.accumulator_buffers, Setting::Fixed(Buffers::Overlapped | Buffers::Whole(2)));
    let by_turns = asked.consumers == Setting::Fixed(Consumers::PingPong);
    let schedule = asked.schedule.unwrap_or_else(|| {
        let (schedule, rule) = match tiles > u64::from(capacity) || two || by_turns {
            true if by_turns => (Schedule::Persistent, Rule::ByTurns),
            true => (Schedule::Persistent, Rule::SeveralTiles),
            false => (Schedule::OneTile, Rule::AllAtOnce),
        };
        rules.note("schedule", rule);
        schedule
    });
    let count = |what, count: u64| match count > COUNT_LIMIT {
        true => Err(ConfigError::Count { knob: "tile", what, count, limit: COUNT_LIMIT }),
        false => Ok(()),
    };
    count("CTAs of the grid", tiles.saturating_mul(ctas.into()))?;
    match schedule {
        Schedule::SplitK(parts) | Schedule::ClusterSplitK(parts) if !(1..=k_tiles).contains(&parts) => {
            return Err(ConfigError::SplitK { schedule, parts, k_tiles });
        }
        Schedule::SplitK(parts) => count("CTAs of the grid", tiles * u64::from(ctas) * u64::from(parts))?,
        Schedule::StreamK => count("K tiles of all tiles of C", tiles * u64::from(k_tiles))?,
        Schedule::OneTile | Schedule::Persistent | Schedule::Dynamic | Schedule::ClusterSplitK(_) => {}
    }
    // As soon done, and what they share, L2 and power, is for fewer (seen on an H200: 1 % of 224 tiles by 112 CTAs).
    let even = schedule == Schedule::Persistent && isa.interleaved_rows() && capacity > 0;
    let capacity =
        if even { tiles.div_ceil(tiles.div_ceil(capacity.into()).max(1)) as u32 } else { capacity };
    let work = Work::new(schedule, Raster::AlongM, items, matrices, k_tiles, capacity);
    // With several waves, the operands of a band of tiles stay in L2.
    let (auto, rule) = match isa.bands() && work.is_looped() {
        true => (Raster::Swizzled(8), Rule::Bands),
        false => (Raster::AlongM, Rule::DownColumns),
    };
    rules.note_all([("raster", rule), ("sms", Rule::AllOfChip)]);
    let raster = asked.raster.unwrap_or_else(|| auto);
    Ok(Work { raster, ..work })
}
