//! How many columns `auto` gives a tile with more than 64 tokens on sm_100a, and which knobs rule over it.

use silumin_codegen::arch::Arch;
use silumin_codegen::config::{Accumulators, Setting};
use silumin_codegen::plan::Plan;
use silumin_codegen::problem::{Groups, Shape};
use silumin_codegen::spec::{FormatNames, SpecFile};

const NVFP4: [&str; 3] = ["nvfp4", "nvfp4", "f16"];
const BF16: [&str; 3] = ["bf16", "bf16", "bf16"];

fn plan(shape: Shape, [a, b, c]: [&str; 3], knobs: &[(&str, &str)]) -> Plan {
    let mut file = SpecFile::new(shape);
    file.formats = FormatNames { a: a.into(), b: b.into(), c: c.into(), ..file.formats };
    for (knob, value) in knobs {
        file.config.set(knob, value).unwrap();
    }
    file.read().unwrap().0.plan(shape, Arch::Sm100a).unwrap_or_else(|errors| panic!("{knobs:?}: {errors:?}"))
}

/// Columns of a tile, and whether both products are side by side.
fn columns(plan: &Plan) -> (u32, bool) {
    (plan.tile.n, plan.config.accumulators == Setting::Fixed(Accumulators::SideBySide))
}

#[test]
fn the_busiest_sm_has_the_least_to_do() {
    for (m, n, k, formats, wanted) in [
        // Benchmark: pairs of 64 or 128 columns, all in one wave.
        (256, 4096, 7168, NVFP4, (64, false)),
        (512, 4096, 7168, NVFP4, (128, false)),
        (256, 3072, 4096, NVFP4, (64, false)),
        (512, 3072, 7168, NVFP4, (128, false)),
        // 192 columns take one wave, 128 would take two.
        (192, 12288, 4096, NVFP4, (192, false)),
        (1024, 2880, 2880, NVFP4, (192, false)),
        // As few as the 74 pairs need.
        (256, 2880, 2880, BF16, (48, true)),
        (512, 3072, 7168, BF16, (96, false)),
        (512, 4096, 7168, BF16, (112, false)),
        (1024, 3584, 8192, BF16, (208, false)),
        // Two waves of 80 before one of 160: the second's MMAs overlap the first's epilogue.
        (1024, 2880, 2880, BF16, (80, true)),
    ] {
        let shape = Shape::new(m, n, k);
        assert_eq!(columns(&plan(shape, formats, &[])), wanted, "{shape} in {formats:?}");
    }
}

#[test]
fn what_was_asked_for_stays() {
    let shape = Shape::new(1024, 2880, 2880);
    let one_wave = plan(Shape::new(512, 4096, 7168), BF16, &[("accumulators", "side_by_side")]);
    assert_eq!(columns(&one_wave), (112, true));
    for (formats, knobs, wanted) in [
        (BF16, &[("accumulators", "separate")][..], (160, false)),
        (NVFP4, &[("accumulators", "side_by_side")], (128, true)),
        (BF16, &[("tile", "[256, 128, 64]")], (128, false)),
        // A tail has two MMAs, one for each product.
        (BF16, &[("k_order", "split_tail(5)")], (160, false)),
        (BF16, &[("stages", "9")], (64, true)),
        (NVFP4, &[("tmem_columns", "256")], (64, false)),
        (NVFP4, &[("multicast", "a(2)")], (128, false)),
        (NVFP4, &[("ctas_per_sm", "2")], (64, false)),
        (NVFP4, &[("schedule", "stream_k")], (128, false)),
    ] {
        let plan = plan(shape, formats, knobs);
        assert_eq!(columns(&plan), wanted, "{knobs:?} in {formats:?}");
        let entries = plan.config.entries();
        for (knob, value) in knobs {
            let (_, settled) = entries.iter().find(|(name, _)| name == knob).unwrap();
            assert_eq!(settled, value);
        }
    }
}

#[test]
fn few_sms_take_wide_tiles_and_many_matrices_count() {
    let one = plan(Shape::new(256, 1024, 2048), NVFP4, &[("sms", "2")]);
    assert_eq!((columns(&one), one.work.tiles), ((128, false), 8));
    // No pair fits one SM.
    let one = plan(Shape::new(256, 1024, 2048), NVFP4, &[("sms", "1")]);
    assert_eq!((one.cluster_ctas(), columns(&one)), (1, (128, false)));
    // 2 x 8 matrices of 256 x 512 have room for 64 columns; 2 x 32 have not.
    for (count, wanted) in [(8, 64), (32, 128)] {
        let mut shape = Shape::new(256, 512, 2048);
        shape.groups = Groups::Batch(count);
        assert_eq!(columns(&plan(shape, NVFP4, &[])), (wanted, false), "{count} matrices");
    }
}

#[test]
fn the_largest_shapes_have_a_width_or_a_clear_error() {
    for shape in
        [Shape::new(1 << 20, 1 << 20, 256), Shape::new(129, 1, 64), Shape::new(u32::MAX, u32::MAX, u32::MAX)]
    {
        let mut file = SpecFile::new(shape);
        file.formats = FormatNames { a: "bf16".into(), b: "bf16".into(), c: "bf16".into(), ..file.formats };
        let Ok((spec, arch)) = file.read() else { continue };
        match spec.plan(shape, arch) {
            Ok(plan) => assert!(plan.tile.n >= 48, "{shape}: {:?}", plan.tile),
            Err(errors) => assert!(!errors.is_empty()),
        }
    }
}
