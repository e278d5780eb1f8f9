//! Every golden kernel for every chip: ptxas takes it for that target without spills, and on the emulated
//! device of that chip it computes right.

use silumin::Arch;
use silumin::Shape;
use silumin::codegen::spec::{EmitError, SpecFile};
use silumin::runtime::device::{Device, EmulatorOptions};
use silumin::runtime::gemm::DualGemm;
use silumin::verify::inputs::Distribution;
use silumin::verify::toolchain::Ptxas;
use silumin_testkit::sample;

/// A commit judges one case in so many.
const PARTS: usize = 11;

#[test]
fn golden_kernels_assemble_and_compute_right_for_every_chip() {
    let ptxas = Ptxas::find().unwrap();
    let mut cases = Vec::new();
    for path in silumin_testkit::golden_files() {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).unwrap();
        cases.extend(Arch::ALL.map(|arch| {
            let mut file: SpecFile = toml::from_str(&text).unwrap();
            let at_home: Arch = file.arch.parse().unwrap();
            file.arch = arch.to_string();
            (name.clone(), at_home, file)
        }));
    }
    assert!(cases.len() >= 27 * Arch::ALL.len());
    // With no common divisor of parts and chips a commit sees kernels of every chip.
    assert!(!Arch::ALL.len().is_multiple_of(PARTS));
    let cases = sample::of(cases, PARTS);
    let faults = silumin_testkit::faults(&cases, |_, (_, (name, at_home, file))| {
        let (spec, arch) = file.read().unwrap();
        let whole = file.shape();
        let kernel = match spec.kernel(whole, arch) {
            // A knob or a format of the other kind of tensor core: it was asked for where there is one.
            Err(EmitError::Config(errors)) if arch.tensor_core() != at_home.tensor_core() => {
                assert!(errors.iter().all(|error| !error.hint().is_empty()), "{name}, {arch}");
                return None;
            }
            kernel => kernel.unwrap_or_else(|error| panic!("{name}, {arch}: {error}")),
        };
        assert!(kernel.ptx.contains(&format!(".target {arch}\n")), "{name}");
        if let Some(fault) = silumin_testkit::unclean(&ptxas, &kernel) {
            return Some(format!("{name}, {arch}: {fault}"));
        }
        let shape = Shape { m: whole.m.min(256), n: whole.n.min(256), k: whole.k.min(1536), ..whole };
        let device =
            Device::emulated_with(arch, EmulatorOptions { threads: 1, ..EmulatorOptions::default() });
        let scalars: &[(&str, f32)] =
            if spec.gate.expr.scalars().is_empty() { &[] } else { &[("alpha", 0.5)] };
        match DualGemm::new(spec).verify(&device, shape, Distribution::Full, 7, scalars) {
            Ok(v) if v.check.pass => None,
            Ok(v) => Some(format!("{name}, {arch}: {}", v.check)),
            Err(e) => Some(format!("{name}, {arch}: {e}")),
        }
    });
    sample::assert_none(&faults, cases.len());
}
