//! The lattice: configurations drawn from all knobs and ragged shapes. Every legal draw assembles
//! without spills or warnings and computes right on the emulated device; every illegal one is
//! refused with a reason. A commit judges one draw in eleven, and other commits the others.
//!
//! `SILUMIN_LATTICE=3000 cargo test --release --test all lattice::` draws more of them, `SILUMIN_LATTICE_SEED`
//! others, `SILUMIN_LATTICE_ARCH=sm_110a` for another chip.

use silumin::Arch;
use silumin::codegen::spec::FormatNames;
use silumin::runtime::device::Tracking;
use silumin::verify::toolchain::Ptxas;
use silumin_testkit::lattice::{environment, fault, points};
use silumin_testkit::sample;

/// Legal configurations that the test holds to, unless the environment says otherwise.
const LEGAL: usize = 240;
/// A commit judges one in so many, unless the environment says how many to draw.
const PARTS: usize = 11;

#[test]
fn legal_draws_assemble_and_compute_right_and_illegal_ones_say_why() {
    let ptxas = Ptxas::find().unwrap();
    let wanted = environment("SILUMIN_LATTICE", LEGAL as u64) as usize;
    let seed = environment("SILUMIN_LATTICE_SEED", 1);
    let arch = std::env::var("SILUMIN_LATTICE_ARCH").map_or(Arch::Sm100a, |name| name.parse().unwrap());
    let (points, illegal) = points(arch, &FormatNames::default(), 33, wanted, seed);
    assert!(illegal > wanted / 10, "{illegal} illegal draws beside {wanted} legal ones: nothing was refused");
    let parts = if std::env::var_os("SILUMIN_LATTICE").is_some() { 1 } else { PARTS };
    let points = sample::of(points, parts);
    let faults = silumin_testkit::faults(&points, |_, (_, point)| fault(point, &ptxas, Tracking::Off));
    sample::assert_none(&faults, points.len());
}
