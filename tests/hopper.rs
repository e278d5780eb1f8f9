//! Kernels for sm_90a, whose warpgroups hold both accumulators in registers: what the other tests are for tensor memory.
//!
//! Every value of every knob that the chip takes; configurations drawn from all knobs and ragged shapes, with happens-before
//! tracking; a sample of those under several schedules. All assemble without spills or warnings.
//!
//! `SILUMIN_HOPPER=2000 cargo test --release --test hopper` draws more of them, `SILUMIN_LATTICE_SEED` others.

mod common;
#[path = "../examples/shared/draws.rs"]
mod draws;
#[path = "common/lattice.rs"]
mod lattice;

use lattice::{environment, fault, points, run};
use silumin::Arch;
use silumin::codegen::spec::FormatNames;
use silumin::runtime::device::{Schedule, Tracking};
use silumin::runtime::toolchain::Ptxas;

/// Legal configurations that the test holds to, unless the environment says otherwise.
const LEGAL: usize = 240;
/// Configurations that are run under several schedules.
const SAMPLE: usize = 12;

fn usual() -> FormatNames {
    FormatNames { a: "bf16".into(), b: "bf16".into(), c: "bf16".into(), ..FormatNames::default() }
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
fn a_sample_is_right_whatever_is_late() {
    let (points, _) =
        points(Arch::Sm90a, &usual(), 50, SAMPLE, 1000 + environment("SILUMIN_LATTICE_SEED", 1));
    let mut schedules = vec![Schedule::Early, Schedule::Late];
    schedules.extend((0..17).step_by(4).map(|warp| Schedule::Starve { warp, seed: 3 }));
    schedules.extend((0..6).map(Schedule::Random));
    let faults = common::faults(&points, |_, point| {
        schedules.iter().find_map(|schedule| run(point, *schedule, Tracking::Strict))
    });
    assert!(faults.is_empty(), "{} of {SAMPLE} points are wrong:\n{}", faults.len(), faults.join("\n"));
}
