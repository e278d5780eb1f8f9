//! Every golden kernel on a small shape, under adversarial schedules and with happens-before tracking:
//! its synchronisation orders all that it does, whatever comes late.
//!
//! A commit tries one schedule in seventeen, and other commits the others. It starves the first of four warps that are
//! alike. `SILUMIN_FULL=1` tries all schedules and starves all warps.
//! `SILUMIN_FULL=1 SILUMIN_SEEDS=64 SILUMIN_ORDERED=hopper_ping_pong cargo test --release --test all ordered::` runs more random
//! schedules, of kernels whose names start so.

use silumin::Shape;
use silumin::codegen::config::{CtaGroup, Multicast, Setting};
use silumin::codegen::spec::SpecFile;
use silumin::runtime::device::Schedule;
use silumin::runtime::gemm::DualGemm;
use silumin::verify::inputs::Distribution;
use silumin_testkit::sample;

/// Seeds of the random schedule, unless the environment says otherwise.
const SEEDS: u64 = 2;
/// A commit tries one schedule in so many.
const PARTS: usize = 17;

fn seeds() -> u64 {
    std::env::var("SILUMIN_SEEDS")
        .map_or(SEEDS, |text| text.parse().unwrap_or_else(|_| panic!("SILUMIN_SEEDS={text} is no number")))
}

#[test]
fn golden_kernels_are_ordered_under_every_schedule() {
    let wanted = std::env::var("SILUMIN_ORDERED").unwrap_or_default();
    let every_warp = sample::full();
    let mut runs = Vec::new();
    for path in silumin_testkit::golden_files() {
        let text = std::fs::read_to_string(&path).unwrap();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        if !name.starts_with(&wanted) {
            continue;
        }
        let mut file: SpecFile = toml::from_str(&text).unwrap();
        let whole = file.shape();
        let (spec, arch) = file.read().unwrap();
        let plan = spec.plan(whole, arch).unwrap();
        // As at the kernel's own shape: where tiles are few, `auto` has clusters share K.
        if file.config.schedule == Setting::Auto && plan.tmem().is_some() {
            file.config.schedule = plan.config.schedule;
        }
        let (spec, arch) = file.read().unwrap();
        // Two tiles each way at most, and enough of K to go round the pipeline.
        let pairs_down = file.config.cta_group == Setting::Fixed(CtaGroup::Two)
            && matches!(file.config.multicast, Multicast::B(_));
        let rows = if pairs_down { 512 } else { 256 };
        let shape = Shape { m: whole.m.min(rows), n: whole.n.min(256), k: whole.k.min(1536), ..whole };
        // Where whole tiles have it, no more than that.
        let plan = spec.plan(shape, arch).unwrap();
        let shape = match plan.work.has_ranges() {
            true => shape,
            false => Shape { k: shape.k.min((plan.stages + 2) * plan.tile.k), ..shape },
        };
        let kernel = spec.kernel(shape, arch).unwrap();
        let warps = kernel.launches[0].block.iter().product::<u32>().div_ceil(32);
        let mut schedules = vec![Schedule::Early, Schedule::Late];
        // Those that finish tiles, or compute, are alike in fours; the last four or fewer have roles of their own.
        let alone = (warps - 1) / 4 * 4;
        let starved = || (0..warps).filter(|warp| every_warp || warp % 4 == 0 || *warp >= alone);
        schedules.extend(starved().map(|warp| Schedule::Starve { warp, seed: u64::from(warp) }));
        schedules.extend(starved().map(|warp| Schedule::Delay { warp, seed: u64::from(warp) }));
        schedules.extend((0..seeds()).map(Schedule::Random));
        runs.extend(schedules.into_iter().map(|s| (name.clone(), spec.clone(), arch, shape, s)));
    }
    assert!(!runs.is_empty(), "no golden kernel's name starts with `{wanted}`");
    let runs = sample::of(runs, PARTS);
    let faults = silumin_testkit::faults(&runs, |_, (_, (name, spec, arch, shape, schedule))| {
        let scalars: &[(&str, f32)] =
            if spec.gate.expr.scalars().is_empty() { &[] } else { &[("alpha", 0.5)] };
        let device = silumin_testkit::strict(*arch, *schedule);
        match DualGemm::new(spec.clone()).verify(&device, *shape, Distribution::Full, 7, scalars) {
            Ok(v) if v.check.pass => None,
            Ok(v) => Some(format!("{name}, {schedule:?}: {}", v.check)),
            Err(e) => Some(format!("{name}, {schedule:?}: {e}")),
        }
    });
    sample::assert_none(&faults, runs.len());
}
