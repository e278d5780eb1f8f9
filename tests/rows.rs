//! Launches of which fewer rows count than the kernel computes: tiles behind them are left out, and the others come out as ever.

use silumin::codegen::plan::Operand;
use silumin::codegen::problem::Formats;
use silumin::runtime::device::Tracking;
use silumin::verify::inputs::DualGemmInputs;
use silumin::{
    Arch, Args, Device, DeviceOperands, Distribution, DualGemm, EmulatorOptions, LoadedKernel, Shape, Spec,
};
use silumin_testkit::driver::{role, run};
use silumin_testkit::sample;

const GATE: &str = "silu(A @ B1) * (A @ B2)";

fn formats(text: &str) -> Formats {
    let names: Vec<&str> = text.split(' ').collect();
    let kept = names.get(3).map(|name| name.parse().unwrap());
    Formats {
        a: names[0].parse().unwrap(),
        b: names[1].parse().unwrap(),
        c: names[2].parse().unwrap(),
        preactivations: kept,
    }
}

/// Formats and knobs of a kernel, and the rows of an item of its work.
type Kind = (&'static str, &'static [(&'static str, &'static str)], u32);

/// Kernels of several rows of tiles, by what says which tile is whose.
fn kinds(arch: Arch) -> &'static [Kind] {
    match arch {
        Arch::Sm90a => &[
            ("bf16 bf16 bf16", &[("tile", "[64, 64, 64]"), ("schedule", "one_tile")], 64),
            ("bf16 bf16 bf16", &[("tile", "[64, 64, 64]"), ("sms", "5")], 64),
            (
                "bf16 bf16 bf16",
                &[
                    ("tile", "[64, 64, 64]"),
                    ("schedule", "persistent"),
                    ("consumers", "ping_pong"),
                    ("sms", "5"),
                ],
                64,
            ),
            ("bf16 bf16 f32", &[("tile", "[128, 64, 64]"), ("multicast", "b(2)"), ("sms", "4")], 256),
            (
                "bf16 bf16 bf16",
                &[("tile", "[64, 64, 64]"), ("multicast", "b(2)"), ("schedule", "one_tile")],
                128,
            ),
            ("bf16 bf16 bf16", &[("tile", "[64, 64, 64]"), ("multicast", "a(2)"), ("sms", "4")], 64),
            ("e4m3 e4m3 bf16", &[("tile", "[64, 64, 128]"), ("raster", "along_n"), ("sms", "5")], 64),
            (
                "bf16 nvfp4 bf16",
                &[("tile", "[64, 128, 64]"), ("swap_ab", "on"), ("schedule", "one_tile"), ("pdl", "on")],
                64,
            ),
            ("bf16 nvfp4 bf16", &[("tile", "[64, 128, 64]"), ("swap_ab", "on"), ("sms", "5")], 64),
            ("bf16 nvfp4 bf16", &[("accumulators", "interleaved_rows"), ("tile", "[64, 64, 128]")], 64),
            ("bf16 nvfp4 bf16", &[("accumulators", "interleaved_rows"), ("tile", "[112, 64, 128]")], 112),
            ("nvfp4 nvfp4 bf16", &[("sms", "3")], 0),
            ("bf16 bf16 bf16", &[("strategy", "second_fused"), ("schedule", "one_tile")], 0),
        ],
        Arch::Sm120a => {
            &[("nvfp4 nvfp4 bf16", &[("schedule", "one_tile")], 0), ("bf16 bf16 bf16", &[("sms", "5")], 0)]
        }
        _ => &[
            ("nvfp4 nvfp4 f16", &[("schedule", "one_tile"), ("cta_group", "1")], 128),
            ("nvfp4 nvfp4 f16", &[("schedule", "persistent"), ("cta_group", "1"), ("sms", "5")], 128),
            (
                "nvfp4 nvfp4 nvfp4",
                &[("schedule", "persistent"), ("cta_group", "2"), ("sms", "6"), ("swap_ab", "off")],
                256,
            ),
            ("mxfp8 mxfp8 bf16", &[("schedule", "dynamic"), ("cta_group", "1"), ("pdl", "on")], 128),
            ("bf16 bf16 bf16", &[("schedule", "dynamic"), ("cta_group", "2")], 256),
            ("bf16 bf16 bf16", &[("schedule", "dynamic"), ("cta_group", "1"), ("multicast", "b(2)")], 256),
            (
                "bf16 bf16 bf16 f32",
                &[("schedule", "one_tile"), ("cta_group", "1"), ("raster", "swizzled(2)")],
                128,
            ),
            (
                "nvfp4 nvfp4 bf16",
                &[("schedule", "persistent"), ("cta_group", "1"), ("multicast", "b(2)"), ("sms", "6")],
                256,
            ),
            (
                "e4m3 e4m3 bf16",
                &[("swap_ab", "on"), ("tile", "[64, 128, 128]"), ("schedule", "persistent"), ("sms", "4")],
                64,
            ),
            (
                "bf16 bf16 bf16",
                &[
                    ("strategy", "sequential"),
                    ("schedule", "persistent"),
                    ("raster", "swizzled(2)"),
                    ("sms", "5"),
                ],
                0,
            ),
        ],
    }
}

/// What a launch left in C, and the products that its tensor cores computed.
fn launched(kernel: &LoadedKernel, operands: &DeviceOperands, args: &Args<'_>) -> (Vec<u8>, u64) {
    operands.c.write(&vec![0xFF; operands.c.len()]).unwrap();
    let report = kernel.launch(&kernel.device().stream(), args).unwrap();
    let macs = report.emulator.map_or(0, |stats| stats.mma_macs.values().sum());
    (operands.c.download().unwrap(), macs)
}

fn rows_count(device: &Device) {
    let shape = Shape::new(600, 288, 256);
    // A commit runs one kernel in three.
    for (_, (names, knobs, item_rows)) in sample::of(kinds(device.arch()).iter().collect(), 3) {
        let mut spec = Spec::new(GATE.parse().unwrap(), &[device.arch()]).unwrap();
        spec.formats = formats(names);
        for (name, value) in *knobs {
            spec.config.set(name, value).unwrap();
        }
        let what = format!("{names} {knobs:?} on {}", device.arch());
        let plan = spec.plan(shape, device.arch()).unwrap_or_else(|errors| panic!("{what}: {errors:?}"));
        let item = if *item_rows == 0 { plan.tile.m } else { *item_rows };
        let kernel = DualGemm::new(spec).load(device, shape).unwrap();
        let inputs =
            DualGemmInputs::generate_for(shape, plan.problem.formats, Distribution::Benchmark, 3).unwrap();
        let mut operands = DeviceOperands::upload(device, &inputs).unwrap();
        operands.c_scale = operands.sfc.as_ref().map(|_| 1.0);
        let (expected, all_macs) = launched(&kernel, &operands, &operands.args(&[]));
        let a = operands.a.download().unwrap();
        let row = operands.c.len() / shape.m as usize;
        for rows in [1, item, item + 1, shape.m - 1] {
            let short = device.upload(&a[..a.len() / shape.m as usize * rows as usize]).unwrap();
            // A with these rows alone, and with all of the kernel's.
            for a in [&short, &operands.a] {
                let what = format!("{rows} rows of {}, {what}", a.len());
                let args = Args { a, ..operands.args(&[]) }.rows(rows);
                let (found, macs) = launched(&kernel, &operands, &args);
                assert!(found[..rows as usize * row] == expected[..rows as usize * row], "{what}");
                let (items, of) = (u64::from(rows.div_ceil(item)), u64::from(shape.m.div_ceil(item)));
                assert_eq!(macs * of, all_macs * items, "{what}");
                // Tiles that are left out write nothing.
                let behind = items as usize * item as usize * row;
                let untouched = found.get(behind..).unwrap_or_default().iter().all(|byte| *byte == 0xFF);
                assert!(untouched, "{what}");
            }
        }
    }
}

#[test]
fn tiles_behind_the_rows_that_count_are_left_out() {
    for arch in [Arch::Sm90a, Arch::Sm100a, Arch::Sm120a] {
        let options = EmulatorOptions { tracking: Tracking::Strict, ..EmulatorOptions::default() };
        rows_count(&Device::emulated_with(arch, options));
    }
}

#[test]
fn activations_are_put_in_order_as_far_as_rows_count() {
    let device = Device::emulated(Arch::Sm90a);
    let shape = Shape::new(600, 288, 256);
    for tile in ["[64, 64, 128]", "[112, 64, 128]"] {
        let mut spec = Spec::new(GATE.parse().unwrap(), &[Arch::Sm90a]).unwrap();
        spec.formats = formats("bf16 nvfp4 bf16");
        spec.config.set("tile", tile).unwrap();
        spec.config.set("accumulators", "interleaved_rows").unwrap();
        let kernel = DualGemm::new(spec).load(&device, shape).unwrap();
        assert_eq!(kernel.kernel().launches.len(), 2, "one puts activations in order");
        let formats = kernel.dual_gemm().spec().formats;
        let inputs = DualGemmInputs::generate_for(shape, formats, Distribution::Benchmark, 3).unwrap();
        let operands = DeviceOperands::upload(&device, &inputs).unwrap();
        let written = |rows| {
            let report = kernel.launch(&device.stream(), &operands.args(&[]).rows(rows)).unwrap();
            report.launches[0].global_written
        };
        let [first, all] = [1, 600].map(written);
        assert!(0 < first && 4 * first <= all, "{tile}: {first} of {all} bytes");
    }
}

#[test]
fn the_driver_gets_the_rows_that_count() {
    const NAME: &str = "the_driver_gets_the_rows_that_count";
    let Some(_) = role() else {
        run(module_path!(), NAME, "child", &[("SILUMIN_EMULATED_CHIP", "sm_90a")]);
        return;
    };
    let device = Device::cuda(0).unwrap();
    let shape = Shape::new(200, 64, 128);
    let mut spec = Spec::new(GATE.parse().unwrap(), &[device.arch()]).unwrap();
    spec.formats = formats("bf16 bf16 bf16");
    spec.config.set("tile", "[64, 64, 64]").unwrap();
    let kernel = DualGemm::new(spec).load(&device, shape).unwrap();
    let inputs =
        DualGemmInputs::generate_for(shape, kernel.dual_gemm().spec().formats, Distribution::Benchmark, 3);
    let operands = DeviceOperands::upload(&device, &inputs.unwrap()).unwrap();
    let (expected, _) = launched(&kernel, &operands, &operands.args(&[]));
    let row = operands.c.len() / shape.m as usize;
    // Often enough for graphs, whose numbers then differ.
    for rows in [64, 65, 64, 65, 64, 65, 200, 64, 65, 64] {
        // At one address, with all of the kernel's rows and with these alone: each has maps of its own.
        let short = operands.a.slice(0, operands.a.len() / shape.m as usize * rows as usize).unwrap();
        let (whole, _) = launched(&kernel, &operands, &operands.args(&[]).rows(rows));
        let args = Args { a: &short, ..operands.args(&[]) }.rows(rows);
        let (found, _) = launched(&kernel, &operands, &args);
        assert!(whole[..rows as usize * row] == expected[..rows as usize * row], "{rows}, all of A");
        assert!(found[..rows as usize * row] == expected[..rows as usize * row], "{rows}");
        let behind = rows.next_multiple_of(64).min(shape.m) as usize * row;
        assert!(found[behind..].iter().all(|byte| *byte == 0xFF), "{rows} rows: tiles behind them ran");
    }
}

#[test]
fn kernels_that_share_k_out_compute_all_rows() {
    let has_rows = |knobs: &[(&str, &str)], m: u32| {
        let mut spec = Spec::new(GATE.parse().unwrap(), &[Arch::Sm90a]).unwrap();
        spec.formats = formats("bf16 bf16 bf16");
        for (name, value) in knobs {
            spec.config.set(name, value).unwrap();
        }
        let plan = spec.plan(Shape::new(m, 256, 256), Arch::Sm90a).unwrap();
        assert_eq!(Operand::A.bytes(&plan.problem), u64::from(m) * 512);
        plan.work.counts_rows
    };
    assert!(has_rows(&[], 600));
    assert!(!has_rows(&[], 64), "one row of tiles");
    for schedule in ["split_k(2)", "stream_k", "cluster_split_k(2)"] {
        assert!(!has_rows(&[("schedule", schedule)], 600), "{schedule}");
    }
    assert!(!has_rows(&[("strategy", "two_pass")], 600));
}
