//! The public NVFP4 dual-GEMM benchmark: its shapes, its inputs, its checker, default configuration.
//!
//! The test suite runs the small shapes; `SILUMIN_FULL=1 cargo test --release --test benchmark -- --nocapture`
//! runs all fourteen at full size.

// `--nocapture` shows how far off each shape is.
#![allow(clippy::print_stdout)]

use silumin::codegen::spec::SpecFile;
use silumin::runtime::device::Device;
use silumin::runtime::gemm::DualGemm;
use silumin::runtime::inputs::Distribution;
use silumin::{Arch, Shape};

/// The benchmark's correctness shapes; the first is there twice.
const TESTS: [Shape; 10] = [
    Shape::new(1536, 512, 7168),
    Shape::new(1536, 512, 7168),
    Shape::new(256, 512, 256),
    Shape::new(3072, 1024, 1536),
    Shape::new(7168, 1024, 256),
    Shape::new(7168, 2304, 2048),
    Shape::new(4608, 384, 7168),
    Shape::new(7168, 384, 2304),
    Shape::new(512, 768, 7168),
    Shape::new(4096, 768, 512),
];

/// The shapes it times.
const TIMED: [Shape; 4] = [
    Shape::new(256, 4096, 7168),
    Shape::new(512, 4096, 7168),
    Shape::new(256, 3072, 4096),
    Shape::new(512, 3072, 7168),
];

/// The benchmark's seed.
const SEED: u64 = 1111;

/// Multiply-adds that the suite spends on one shape.
const SMALL: f64 = 4e9;

#[test]
fn the_benchmark_s_shapes_pass_its_checker() {
    let full = std::env::var_os("SILUMIN_FULL").is_some();
    let device = Device::emulated(Arch::Sm100a);
    let mut checked = 0;
    for shape in TESTS.into_iter().chain(TIMED) {
        if !full && shape.operations() / 2.0 > SMALL {
            continue;
        }
        let (spec, _) = SpecFile::new(shape).read().unwrap();
        let gemm = DualGemm::new(spec);
        for distribution in [Distribution::Benchmark, Distribution::Full] {
            let verification = gemm.verify(&device, shape, distribution, SEED, &[]).unwrap();
            println!("{shape}, {distribution:?}: {}", verification.check);
            assert!(verification.check.pass, "{shape}, {distribution:?}: {}", verification.check);
        }
        checked += 1;
    }
    assert_eq!(checked, if full { 14 } else { 3 });
}
