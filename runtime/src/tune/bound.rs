//! A lower bound on each configuration's time, from the chip's numbers: it decides which configurations are tried.

use std::collections::{BTreeMap, HashSet};

use silumin_codegen::arch::Arch;
use silumin_codegen::config::{Config, Multicast, Schedule, Setting, Strategy, Tile};
use silumin_codegen::plan::Plan;
use silumin_codegen::problem::Shape;
use silumin_codegen::spec::Spec;

/// A kernel whose bound is this many times the lowest bound is not kept for variety.
const HOPELESS: f64 = 3.0;

/// A legal configuration with a lower bound on its time.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Bounded {
    /// As asked for.
    pub config: Config,
    /// The configuration with every `auto` settled. Equal ones give one kernel.
    pub settled: Config,
    /// Least time of the busiest part of the chip, in seconds.
    pub bound: f64,
    /// The bound plus a tenth of the other parts' times, which overlap only in part. It orders equal bounds.
    pub order: f64,
    /// Bytes moved between global memory and the SMs.
    pub bytes: u64,
    /// Waves of tiles.
    pub waves: f64,
    family: Family,
}

/// The kind of a kernel. Some of each kind are tried, whatever their bounds.
type Family = (Strategy, bool, Schedule, bool, Option<Tile>);

/// The configurations of a space after they were checked.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Drawn {
    /// Legal and distinct configurations, `auto` first.
    pub legal: Vec<Bounded>,
    /// Number of configurations in the space.
    pub drawn: usize,
    /// Refused configurations by knob, with one of the reasons.
    pub illegal: BTreeMap<&'static str, (usize, String)>,
    /// Configurations that give the same kernel as another.
    pub same: usize,
}

/// Checks every configuration of `configs`, and the one that the spec gives, which comes first.
pub(super) fn draw(spec: &Spec, shape: Shape, arch: Arch, sms: u32, configs: &[Config]) -> Drawn {
    let base = spec.config;
    let mut drawn = Drawn::default();
    let (mut spec, mut seen) = (spec.clone(), HashSet::new());
    for mut config in std::iter::once(base).chain(configs.iter().copied()) {
        // A chip with fewer SMs than the product that limits are of: waves are of those that there are.
        if config != base && config.sms == Setting::Auto && sms != 0 && sms != arch.limits().sms {
            config.sms = Setting::Fixed(sms);
        }
        drawn.drawn += 1;
        spec.config = config;
        match spec.plan(shape, arch) {
            Ok(plan) if seen.insert(plan.config) => drawn.legal.push(bounded(config, &plan)),
            Ok(_) => drawn.same += 1,
            Err(errors) => {
                let knob = errors.first().map_or("shape", |error| error.knob());
                let reason = errors.first().map(ToString::to_string).unwrap_or_default();
                drawn.illegal.entry(knob).or_insert((0, reason)).0 += 1;
            }
        }
    }
    drawn
}

/// The longest of these times, plus the gaps between launches: the MMAs of the busiest SM; bytes through DRAM,
/// through L2, and into the busiest SM; and that SM's loads at one latency per bytes in flight.
fn bounded(config: Config, plan: &Plan) -> Bounded {
    let limits = plan.arch.limits();
    let (read, written) = plan.moved_bytes();
    let balance = plan.balance();
    let dram = plan.dram_bytes() as f64 / limits.dram_bytes_per_second;
    let l2 = (read + written) as f64 / limits.l2_bytes_per_second;
    let active = plan.ctas().min(u64::from(balance.slots) * u64::from(plan.cluster_ctas())).max(1);
    let sm = read as f64 / active as f64 / limits.sm_bytes_per_second;
    let launches = match plan.strategy {
        Strategy::TwoPass => 3.0,
        Strategy::SecondFused => 2.0,
        Strategy::Sequential | Strategy::Interleaved | Strategy::Single => 1.0,
    };
    let in_flight =
        u64::from(plan.stages) * plan.k_tile_bytes().iter().map(|(_, b)| u64::from(*b)).sum::<u64>();
    let busiest = read as f64 / active as f64 / balance.efficiency.clamp(0.05, 1.0).sqrt();
    let rounds = limits.dram_latency * busiest / in_flight.max(1) as f64;
    let parts = [plan.schedule_floor_seconds(), dram, l2, sm, rounds];
    let longest = parts.iter().copied().fold(0.0, f64::max);
    let beside = limits.dram_latency + limits.launch_gap * launches;
    // Lines that L2 has come sooner than DRAM's, so that rounds order kernels and bound none.
    let bound = beside + parts[..4].iter().copied().fold(0.0, f64::max);
    let order = beside + longest + 0.1 * (parts.iter().sum::<f64>() - longest);
    let turns = plan.takes_turns();
    let shared = plan.multicast != Multicast::None || plan.cta_group.ctas() > 1;
    let family = (plan.strategy, plan.swap_ab, plan.work.schedule, turns != shared, Some(plan.tile));
    Bounded {
        config,
        settled: plan.config,
        bound,
        order,
        bytes: read + written,
        waves: balance.waves,
        family,
    }
}

/// Selects at most `most` configurations to load: `auto` first; then, up to a third of them, the best of each kind whose
/// bound is within `HOPELESS`; then the best of all. Also returns the number of configurations left out.
pub(super) fn keep(mut legal: Vec<Bounded>, most: usize) -> (Vec<Bounded>, usize) {
    if legal.len() <= most.max(1) {
        return (legal, 0);
    }
    let all = legal.len();
    let auto = legal.remove(0);
    legal.sort_by(|x, y| x.order.total_cmp(&y.order));
    let limit = HOPELESS * legal.first().map_or(0.0, |best| best.order);
    let room = most.max(1) - 1;
    // First kinds without the tile, then those with it: in order.
    let (mut kinds, mut kept) = (HashSet::new(), Vec::new());
    for with_tile in [false, true] {
        let most = room / 3 * (1 + usize::from(with_tile));
        for (place, one) in legal.iter().enumerate() {
            let (strategy, swap, schedule, turns, tile) = one.family;
            let kind = (strategy, swap, schedule, turns, tile.filter(|_| with_tile));
            if kept.len() < most && one.order <= limit && !kept.contains(&place) && kinds.insert(kind) {
                kept.push(place);
            }
        }
    }
    let rest = (0..legal.len()).filter(|place| !kept.contains(place)).take(room - kept.len());
    let rest: Vec<usize> = rest.collect();
    kept.extend(rest);
    kept.sort_unstable();
    let kept: Vec<Bounded> =
        std::iter::once(auto).chain(kept.into_iter().map(|place| legal[place].clone())).collect();
    let left_out = all - kept.len();
    (kept, left_out)
}

/// Configurations that differ in one knob from a good one, among the knobs that `base` leaves open.
pub(super) fn neighbours(one: &Bounded, base: &Config) -> Vec<Config> {
    let mut text = String::new();
    if let Setting::Fixed(Tile { m, n, k }) = one.settled.tile {
        let mut tiles =
            vec![[2 * m, n, k], [m / 2, n, k], [m, 2 * n, k], [m, n / 2, k], [m, n, 2 * k], [m, n, k / 2]];
        for step in [8, 16, 32, 64] {
            tiles.extend([[m, n + step, k], [m, n.saturating_sub(step), k]]);
            tiles.extend([[m + step, n, k], [m.saturating_sub(step), n, k]]);
        }
        tiles.retain(|tile| tile.iter().all(|size| *size > 0));
        let tiles: Vec<String> = tiles.iter().map(|[m, n, k]| format!("{m}x{n}x{k}")).collect();
        text += &format!("tile={}\n", tiles.join("|"));
    }
    if let Setting::Fixed(stages) = one.settled.stages {
        let near = [stages.saturating_sub(2), stages.saturating_sub(1), stages + 1];
        let near: Vec<String> = near.iter().filter(|stages| **stages > 0).map(u32::to_string).collect();
        text += &format!("stages={}\n", near.join("|"));
    }
    text += "schedule=one_tile|persistent|dynamic|stream_k|split_k(2)|split_k(3)|split_k(4)|split_k(5)|split_k(6)|split_k(8)|cluster_split_k(2)|cluster_split_k(4)|cluster_split_k(8)
        cta_group=1|2
        swap_ab=on|off
        raster=along_m|along_n|swizzled(2)|swizzled(4)|swizzled(8)|swizzled(16)
        multicast=none|a(2)|b(2)|a(4)|b(4)
        accumulators=separate|side_by_side
        accumulator_buffers=1|2|overlapped
        a_reuse=none|collector
        k_order=forward|split_tail(1)|split_tail(2)|split_tail(3)|split_tail(5)
        sf_preload=per_stage|ahead(1)|ahead(2)
        store=direct|tma|direct(16x256b)
        cache=none|[a: evict_last, b: evict_first]|[b: evict_first, c: evict_first]
        consumers=cooperative|ping_pong";
    text.parse::<super::Space>().unwrap_or_default().each(&one.config, base)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::Space;
    use silumin_codegen::problem::{Formats, OperandFormat, OutputFormat, Problem};

    fn spec(arch: Arch, formats: Formats) -> Spec {
        let mut spec = Spec::new("silu(A @ B1) * (A @ B2)".parse().unwrap(), &[arch]).unwrap();
        spec.formats = formats;
        spec
    }

    fn drawn(arch: Arch, formats: Formats, shape: Shape) -> Drawn {
        let space = Space::usual(&Problem::dual(shape, formats), arch);
        draw(&spec(arch, formats), shape, arch, arch.limits().sms, &space.configs(&Config::default()))
    }

    #[test]
    fn what_is_drawn_is_counted_and_auto_comes_first() {
        let bf16 = Formats::new(OperandFormat::Bf16, OperandFormat::Bf16, OutputFormat::Bf16);
        let found = drawn(Arch::Sm90a, bf16, Shape::new(512, 4096, 7168));
        let illegal: usize = found.illegal.values().map(|(count, _)| count).sum();
        assert_eq!(found.drawn, found.legal.len() + illegal + found.same);
        assert_eq!(found.legal[0].config, Config::default());
        assert!(found.illegal.values().all(|(_, reason)| !reason.is_empty()));
        let all = found.legal.len();
        let (kept, left_out) = keep(found.legal, 24);
        assert_eq!((kept.len(), left_out), (24, all - 24));
        assert_eq!(kept[0].config, Config::default());
        assert!(kept[1..].windows(2).all(|pair| pair[0].order <= pair[1].order));
        let kinds: HashSet<_> = kept.iter().map(|one| (one.family.0, one.family.2)).collect();
        assert!(kinds.len() >= 4, "{kinds:?}");
    }

    #[test]
    fn another_number_of_sms_is_told_to_the_generator() {
        let bf16 = Formats::new(OperandFormat::Bf16, OperandFormat::Bf16, OutputFormat::Bf16);
        let shape = Shape::new(512, 4096, 1024);
        let space: Space = "schedule=persistent tile=128x64x64".parse().unwrap();
        let found =
            draw(&spec(Arch::Sm90a, bf16), shape, Arch::Sm90a, 114, &space.configs(&Config::default()));
        assert_eq!(found.legal[0].config.sms, Setting::Auto);
        assert_eq!(found.legal[1].config.sms, Setting::Fixed(114));
    }

    #[test]
    fn a_few_are_kept_as_they_are_and_neighbours_differ_in_a_knob() {
        let found = drawn(Arch::Sm100a, Formats::default(), Shape::new(256, 4096, 7168));
        let base = super::super::knobs("pdl=on stages=3", &Config::default()).unwrap();
        let near = neighbours(&found.legal[0], &base);
        assert!(
            near.len() > 40 && near.iter().all(|config| config.stages == Setting::Auto),
            "{}",
            near.len()
        );
        let usual = found.legal[0].config;
        assert!(near.iter().all(|config| super::super::difference(config, &usual).matches('=').count() <= 1));
        let (kept, left_out) = keep(found.legal[..3].to_vec(), 8);
        assert_eq!((kept.len(), left_out), (3, 0));
        assert_eq!(keep(found.legal, 0).0.len(), 1);
    }
}
