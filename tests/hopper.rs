//! Kernels for sm_90a, whose warpgroups hold both accumulators in registers: what the other tests are for tensor memory.
//!
//! Every value of every knob that the chip takes; configurations drawn from all knobs and ragged shapes, with happens-before
//! tracking; a sample of those under several schedules. All assemble without spills or warnings.
//!
//! `SILUMIN_HOPPER=2000 cargo test --release --test hopper` draws more of them, `SILUMIN_LATTICE_SEED` others; with
//! `SILUMIN_FULL=1` values of knobs are tried with four times the K, as on sm_100a, and twelve configurations under all schedules.

mod common;
#[path = "../examples/shared/draws.rs"]
mod draws;
#[path = "common/lattice.rs"]
mod lattice;
#[path = "../examples/shared/values.rs"]
#[allow(dead_code)]
mod values;

use lattice::{environment, fault, points, run};
use silumin::codegen::config::KNOBS;
use silumin::codegen::spec::{FormatNames, SpecFile};
use silumin::runtime::device::{Schedule, Tracking};
use silumin::runtime::gemm::DualGemm;
use silumin::runtime::inputs::Distribution;
use silumin::runtime::toolchain::Ptxas;
use silumin::{Arch, Shape};
use values::{HOPPER_VALUES, SHAPES};

/// Legal configurations that the test holds to, unless the environment says otherwise.
const LEGAL: usize = 160;
/// Configurations that are run under several schedules; those of `SILUMIN_FULL=1`.
const SAMPLE: [usize; 2] = [4, 12];

/// Whether to take the time for all there is.
fn full() -> bool {
    std::env::var_os("SILUMIN_FULL").is_some()
}

fn usual() -> FormatNames {
    FormatNames { a: "bf16".into(), b: "bf16".into(), c: "bf16".into(), ..FormatNames::default() }
}

#[test]
fn every_knob_is_tested() {
    for knob in &KNOBS {
        assert!(
            HOPPER_VALUES.iter().any(|(name, ..)| *name == knob.name),
            "no value of {} is tested",
            knob.name
        );
    }
}

#[test]
fn every_value_is_clean_right_and_moves_what_the_plan_says() {
    let ptxas = Ptxas::find().unwrap();
    // 16-bit elements fill as many K tiles with a quarter of K.
    let shapes = SHAPES.map(|shape| Shape { k: if full() { shape.k } else { shape.k / 4 }, ..shape });
    let runs: Vec<_> = HOPPER_VALUES.iter().flat_map(|value| shapes.map(|shape| (value, shape))).collect();
    let faults = common::faults(&runs, |_, &((knob, value, beside), shape)| {
        let mut file = SpecFile::new(shape);
        file.arch = Arch::Sm90a.to_string();
        for (knob, value) in beside.iter().chain(&[(*knob, *value)]) {
            file.config.set(knob, value).unwrap();
        }
        let (spec, arch) = file.read().unwrap();
        let about = format!("{knob} = {value} beside {beside:?}, {shape}");
        let plan = match spec.plan(shape, arch) {
            Ok(plan) => plan,
            Err(errors) => return Some(format!("{about}: {}", errors[0])),
        };
        let kernel = spec.kernel(shape, arch).unwrap();
        if let Some(fault) = common::unclean(&ptxas, &kernel) {
            return Some(format!("{about}: {fault}"));
        }
        let device = common::strict(arch, Schedule::default());
        let verification = match DualGemm::new(spec).verify(&device, shape, Distribution::Full, 7, &[]) {
            Ok(verification) => verification,
            Err(error) => return Some(format!("{about}: {error}")),
        };
        let macs: u64 = verification.launch.launches.iter().flat_map(|s| s.mma_macs.values()).sum();
        let modelled = plan.mmas_issued() * plan.mma_macs();
        if macs != modelled {
            return Some(format!("{about}: {macs} multiply-adds, the plan has {modelled}"));
        }
        if let Some(fault) = common::miscounted(&verification, &plan) {
            return Some(format!("{about}: {fault}"));
        }
        (!verification.check.pass).then(|| format!("{about}: {}", verification.check))
    });
    assert!(faults.is_empty(), "{} of {}:\n{}", faults.len(), runs.len(), faults.join("\n"));
}

#[test]
fn legal_draws_assemble_and_compute_right_in_order_and_illegal_ones_say_why() {
    let ptxas = Ptxas::find().unwrap();
    let wanted = environment("SILUMIN_HOPPER", LEGAL as u64) as usize;
    let (points, illegal) = points(Arch::Sm90a, &usual(), 50, wanted, environment("SILUMIN_LATTICE_SEED", 1));
    assert!(illegal > wanted / 10, "{illegal} illegal draws beside {wanted} legal ones: nothing was refused");
    let faults = common::faults(&points, |_, point| fault(point, &ptxas, Tracking::Strict));
    assert!(faults.is_empty(), "{} of {wanted} points are wrong:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn draws_with_decoded_weights_compute_right_in_order() {
    let ptxas = Ptxas::find().unwrap();
    let wanted = environment("SILUMIN_HOPPER", LEGAL as u64) as usize / 8;
    let usual = FormatNames { b: "nvfp4".into(), ..usual() };
    let (points, illegal) = points(Arch::Sm90a, &usual, 0, wanted, environment("SILUMIN_LATTICE_SEED", 1));
    assert!(illegal > wanted, "{illegal} illegal draws beside {wanted} legal ones");
    let faults = common::faults(&points, |_, point| fault(point, &ptxas, Tracking::Strict));
    assert!(faults.is_empty(), "{} of {wanted} points are wrong:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn a_sample_is_right_whatever_is_late() {
    let sample = SAMPLE[usize::from(full())];
    let (points, _) =
        points(Arch::Sm90a, &usual(), 50, sample, 1000 + environment("SILUMIN_LATTICE_SEED", 1));
    let mut schedules = vec![Schedule::Early, Schedule::Late];
    schedules.extend((0..17).step_by(4).map(|warp| Schedule::Starve { warp, seed: 3 }));
    schedules.extend((0..6).map(Schedule::Random));
    let faults = common::faults(&points, |_, point| {
        schedules.iter().find_map(|schedule| run(point, *schedule, Tracking::Strict))
    });
    assert!(faults.is_empty(), "{} of {sample} points are wrong:\n{}", faults.len(), faults.join("\n"));
}
