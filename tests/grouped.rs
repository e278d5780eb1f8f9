//! Batches and groups of rows: right in every format and on both sides of the MMA, whatever the sizes are, and never outside
//! of the groups' rows, whatever the offsets are.

use silumin::codegen::config::Schedule;
use silumin::codegen::plan::Plan;
use silumin::codegen::spec::{FormatNames, Spec, SpecFile};
use silumin::runtime::device::Device;
use silumin::runtime::gemm::{DeviceOperands, DualGemm};
use silumin::verify::inputs::{Distribution, DualGemmInputs};
use silumin::verify::toolchain::Ptxas;
use silumin::{Arch, Args, GroupSizes, Groups, LaunchError, Shape, dual_gemm};
use silumin_testkit::sample;

type Knobs = &'static [(&'static str, &'static str)];

fn spec(shape: Shape, formats: [&str; 3], knobs: &[(&str, &str)]) -> Spec {
    spec_for(Arch::Sm100a, shape, formats, knobs)
}

fn spec_for(arch: Arch, shape: Shape, formats: [&str; 3], knobs: &[(&str, &str)]) -> Spec {
    let mut file = SpecFile::new(shape);
    file.arch = arch.to_string();
    let [a, b, c] = formats.map(str::to_owned);
    file.formats = FormatNames { a, b, c, ..FormatNames::default() };
    for (knob, value) in knobs {
        file.config.set(knob, value).unwrap();
    }
    file.read().unwrap().0
}

fn plan(spec: &Spec, shape: Shape, arch: Arch) -> Plan {
    let plan = spec.plan(shape, arch);
    plan.unwrap_or_else(|errors| panic!("{shape}, {}: {errors:?}", spec.config))
}

fn device() -> Device {
    silumin_testkit::strict(Arch::Sm100a, Default::default())
}

/// Chips with each way to multiply.
const CHIPS: [Arch; 3] = [Arch::Sm90a, Arch::Sm100a, Arch::Sm120a];

const NVFP4: [&str; 3] = ["nvfp4", "nvfp4", "f16"];
const FORMATS: [[&str; 3]; 5] = [
    NVFP4,
    ["mxfp8", "mxfp8", "bf16"],
    ["bf16", "bf16", "f32"],
    ["nvfp4", "nvfp4", "nvfp4"],
    ["mxfp8", "mxfp4", "mxfp8"],
];

/// One CTA a tile, pairs, and weights on the MMA's row side, each with one item a cluster and with several; both ways that C leaves.
const SIDES: [Knobs; 9] = [
    &[("swap_ab", "off"), ("cta_group", "1")],
    &[("swap_ab", "off"), ("cta_group", "1"), ("schedule", "persistent"), ("sms", "3")],
    &[("cta_group", "2"), ("schedule", "persistent"), ("sms", "4")],
    &[("cta_group", "2"), ("schedule", "dynamic")],
    &[("swap_ab", "on"), ("schedule", "persistent"), ("sms", "2")],
    &[("swap_ab", "on"), ("cta_group", "2")],
    &[("swap_ab", "off"), ("cta_group", "1"), ("schedule", "persistent"), ("sms", "3"), ("store", "direct")],
    &[("swap_ab", "on"), ("schedule", "persistent"), ("sms", "2"), ("store", "tma")],
    &[("cta_group", "2"), ("store", "tma")],
];

/// Everything else that there is, once each.
const TURNED: [Knobs; 23] = [
    &[("strategy", "sequential"), ("swap_ab", "off"), ("schedule", "persistent"), ("sms", "2")],
    &[("strategy", "second_fused"), ("swap_ab", "off")],
    &[("strategy", "second_fused"), ("swap_ab", "on"), ("schedule", "persistent"), ("sms", "2")],
    &[("schedule", "split_k(2)"), ("swap_ab", "off")],
    &[("schedule", "split_k(2)"), ("cta_group", "2")],
    &[("schedule", "cluster_split_k(2)"), ("swap_ab", "off")],
    &[("schedule", "cluster_split_k(2)"), ("swap_ab", "on")],
    &[("schedule", "dynamic"), ("swap_ab", "on"), ("tile", "[192, 128, 256]")],
    &[("multicast", "a(2)"), ("schedule", "persistent"), ("sms", "4")],
    &[("multicast", "b(2)"), ("schedule", "persistent"), ("sms", "4")],
    &[("multicast", "b(2)"), ("schedule", "dynamic"), ("sf_load", "tensor_map")],
    &[("multicast", "b(2)"), ("swap_ab", "on"), ("tile", "[64, 128, 256]")],
    &[("raster", "along_n"), ("swap_ab", "off"), ("schedule", "persistent"), ("sms", "2")],
    &[("raster", "swizzled(2)"), ("swap_ab", "off"), ("tile", "[128, 64, 128]")],
    &[("k_order", "split_tail(2)"), ("swap_ab", "off"), ("schedule", "persistent"), ("sms", "2")],
    &[("k_order", "serpentine"), ("swap_ab", "off"), ("sf_load", "tensor_map")],
    &[("sf_preload", "all"), ("swap_ab", "off"), ("schedule", "persistent"), ("sms", "2")],
    &[("sf_preload", "ahead(2)"), ("cta_group", "2"), ("schedule", "persistent"), ("sms", "2")],
    &[("accumulators", "side_by_side"), ("cta_group", "2"), ("pdl", "on")],
    &[("store", "tma"), ("schedule", "split_k(2)"), ("swap_ab", "off")],
    &[("store", "tma"), ("strategy", "second_fused"), ("swap_ab", "off")],
    &[("store", "tma"), ("multicast", "b(2)"), ("swap_ab", "off"), ("schedule", "one_tile")],
    &[
        ("swap_ab", "off"),
        ("schedule", "persistent"),
        ("sms", "1"),
        ("pdl", "on"),
        ("tile", "[128, 192, 128]"),
    ],
];

/// Capacity and sizes: one empty group, the usual mixture, eight drawn ones, none with rows, and one with all.
fn sizes() -> Vec<(u32, Vec<u32>)> {
    let eight = Shape::new(500, 8, 32).grouped(8);
    vec![
        (70, vec![0]),
        (140, vec![5, 0, 129, 0, 1]),
        (500, GroupSizes::draw(eight, 3).as_slice().to_vec()),
        (130, vec![0; 3]),
        (300, vec![0, 300, 0]),
    ]
}

struct Run {
    arch: Arch,
    spec: Spec,
    shape: Shape,
    sizes: Option<Vec<u32>>,
}

impl Run {
    fn grouped(m: u32, n: u32, sizes: &[u32], formats: [&str; 3], knobs: &[(&str, &str)]) -> Run {
        let shape = Shape::new(m, n, 512).grouped(sizes.len() as u32);
        Run { arch: Arch::Sm100a, spec: spec(shape, formats, knobs), shape, sizes: Some(sizes.to_vec()) }
    }

    fn inputs(&self, seed: u64) -> DualGemmInputs {
        let problem = self.spec.problem(self.shape);
        DualGemmInputs::generate_problem(&problem, self.sizes.as_deref(), Distribution::Full, seed).unwrap()
    }

    /// What is wrong, if anything: results, bytes, MMAs.
    fn fault(&self) -> Option<String> {
        let Run { arch, spec, shape, sizes } = self;
        let place = || format!("{arch}, {shape}, {sizes:?}, {}, {}", spec.formats, spec.config);
        let kernel = match DualGemm::new(spec.clone())
            .load(&silumin_testkit::strict(*arch, Default::default()), *shape)
        {
            Ok(kernel) => kernel,
            Err(error) => return Some(format!("{}: {error}", place())),
        };
        let inputs = self.inputs(7);
        let verification = match kernel.verify_on(&inputs, &[]) {
            Ok(verification) if verification.check.pass => verification,
            Ok(verification) => return Some(format!("{}: {}", place(), verification.check)),
            Err(error) => return Some(format!("{}: {error}", place())),
        };
        let plan = plan(spec, *shape, *arch);
        let sizes = inputs.group_sizes().as_slice();
        let counted: Vec<_> = (verification.launch.launches.iter())
            .map(|s| [s.global_read + s.tma_read, s.global_written + s.tma_written])
            .collect();
        let modelled: Vec<_> = plan.traffic_of(sizes).iter().map(|t| [t.read(), t.written()]).collect();
        let macs: u64 = verification.launch.launches.iter().flat_map(|s| s.mma_macs.values()).sum();
        let mmas = plan.mmas_issued_for(sizes) * plan.mma_macs();
        // Clusters that others take over never read the offsets.
        let unread = match plan.work.schedule {
            Schedule::Dynamic => plan.traffic_of(sizes)[0].offsets,
            _ => 0,
        };
        let near = |([read, written], [most, all]): (&[u64; 2], &[u64; 2])| {
            (most - unread..=*most).contains(read) && written == all
        };
        // The reads of the gate's vectors are in no model.
        let same = !spec.gate.expr.vectors().is_empty()
            || (counted.len() == modelled.len() && counted.iter().zip(&modelled).all(near));
        (!same || macs != mmas).then(|| {
            format!(
                "{}:\n  counted {counted:?}\n  modelled {modelled:?}\n  {macs} MACs, modelled {mmas}",
                place()
            )
        })
    }
}

fn legal(spec: &Spec, shape: Shape) -> bool {
    spec.plan(shape, Arch::Sm100a).is_ok()
}

fn judge(runs: &[Run]) {
    let faults = silumin_testkit::faults(runs, |_, run| run.fault());
    assert!(faults.is_empty(), "{} of {}:\n{}", faults.len(), runs.len(), faults.join("\n"));
}

/// Judges one run in `parts`, which the commit chooses.
fn judge_a_part(runs: Vec<Run>, parts: usize) {
    let runs = sample::of(runs, parts);
    let faults = silumin_testkit::faults(&runs, |_, (_, run)| run.fault());
    sample::assert_none(&faults, runs.len());
}

#[test]
fn groups_of_all_sizes_are_right_on_both_sides_of_the_mma() {
    let mut runs = Vec::new();
    for (index, formats) in FORMATS.into_iter().enumerate() {
        for knobs in SIDES {
            for (m, sizes) in sizes() {
                // N whole in tiles, and ragged.
                for n in [256, 224] {
                    let run = Run::grouped(m, n, &sizes, formats, knobs);
                    // C with scale factors wants rows in threads; every other N and format beside that.
                    let wanted = index < 3 || n == 224;
                    if wanted && legal(&run.spec, run.shape) {
                        runs.push(run);
                    }
                }
            }
        }
    }
    assert!(runs.len() >= 3 * 9 * 5 * 2 + 2 * 5 * 5, "{}", runs.len());
    // An odd number, so that a part has both N.
    judge_a_part(runs, 7);
}

/// Boxes of 16 and 32 rows, and of a tile of columns of C: groups end behind their first row, before their last, with them, and
/// between them.
#[test]
fn boxes_in_which_groups_end_leave_the_next_group_s_rows_alone() {
    let formats = [["bf16", "bf16", "bf16"], ["bf16", "bf16", "f32"], ["e4m3", "e4m3", "e4m3"]];
    let sides: [Knobs; 6] = [
        &[("swap_ab", "off")],
        &[("swap_ab", "off"), ("schedule", "one_tile")],
        &[("swap_ab", "off"), ("schedule", "persistent"), ("sms", "2"), ("cache", "[c: evict_first]")],
        &[("swap_ab", "on")],
        &[("swap_ab", "on"), ("schedule", "persistent"), ("sms", "2")],
        &[("swap_ab", "off"), ("strategy", "sequential"), ("schedule", "persistent"), ("sms", "2")],
    ];
    let sizes = [16, 17, 1, 0, 15, 33, 64, 127, 128, 31, 48, 190];
    let mut runs = Vec::new();
    for arch in CHIPS {
        for formats in formats {
            for knobs in sides {
                // N in whole tiles, and one that ends inside of a box.
                for n in [256, 208] {
                    let knobs = [knobs, &[("store", "tma")]].concat();
                    let shape = Shape::new(700, n, 512).grouped(sizes.len() as u32);
                    let spec = spec_for(arch, shape, formats, &knobs);
                    if spec.plan(shape, arch).is_ok() {
                        runs.push(Run { arch, spec, shape, sizes: Some(sizes.to_vec()) });
                    }
                }
            }
        }
    }
    // Columns of C leave Hopper's threads in elements of 16 bits alone.
    assert!(runs.len() >= 3 * 3 * 4 * 2, "{}", runs.len());
    judge_a_part(runs, 11);
}

#[test]
fn every_knob_goes_with_groups_or_says_why_not() {
    let mut runs = Vec::new();
    for knobs in TURNED {
        for sizes in [&[5, 0, 129, 0, 1][..], &[0, 60, 300, 3]] {
            runs.push(Run::grouped(400, 328, sizes, NVFP4, knobs));
        }
    }
    judge(&runs);
}

#[test]
fn batches_are_right_on_both_sides_of_the_mma() {
    let mut runs = Vec::new();
    for count in [1, 2, 3] {
        for formats in &FORMATS[..3] {
            for knobs in SIDES {
                for (m, n) in [(256, 256), (130, 328)] {
                    let shape = Shape::new(m, n, 512).batch(count);
                    runs.push(Run {
                        arch: Arch::Sm100a,
                        spec: spec(shape, *formats, knobs),
                        shape,
                        sizes: None,
                    });
                }
            }
        }
    }
    let others: [Knobs; 6] = [
        &[("strategy", "two_pass")],
        &[("schedule", "stream_k"), ("sms", "5"), ("tile", "[128, 64, 128]")],
        &[("schedule", "stream_k"), ("sms", "6"), ("cta_group", "2"), ("store", "tma")],
        &[("store", "tma"), ("schedule", "persistent"), ("sms", "3")],
        &[("store", "tma"), ("swap_ab", "on"), ("tile", "[64, 128, 256]")],
        &[("store", "tma"), ("cta_group", "2"), ("schedule", "dynamic")],
    ];
    for knobs in TURNED.into_iter().chain(others) {
        let shape = Shape::new(203, 328, 512).batch(2);
        runs.push(Run { arch: Arch::Sm100a, spec: spec(shape, NVFP4, knobs), shape, sizes: None });
    }
    // Prime to the numbers of formats, sides and shapes, so that a part has all of them.
    judge_a_part(runs, 11);
}

#[test]
fn vectors_are_those_of_the_row_and_of_its_group() {
    let mut runs = Vec::new();
    let gates = [
        "silu(s[m] * (x @ gate) * w[n] + b[n]) * (s[m] * (x @ up) + c[n])",
        "silu(A @ B1 + b[n]) * (A @ B2 + c[n])",
        "silu(A @ B1 + r[m, n]) * (A @ B2)",
    ];
    for (gate, knobs) in [
        (0, &[("swap_ab", "off"), ("schedule", "persistent"), ("sms", "2")][..]),
        (0, &[("cta_group", "2"), ("k_order", "split_tail(2)")]),
        (0, &[("swap_ab", "off"), ("schedule", "persistent"), ("sms", "2"), ("store", "tma")]),
        (0, &[("schedule", "cluster_split_k(2)"), ("swap_ab", "off")]),
        (0, &[("strategy", "second_fused"), ("swap_ab", "off")]),
        (0, &[("strategy", "two_pass")]),
        (1, &[("swap_ab", "on"), ("schedule", "persistent"), ("sms", "2")]),
        (1, &[("strategy", "second_fused"), ("swap_ab", "on")]),
        (2, &[("swap_ab", "off"), ("schedule", "persistent"), ("sms", "2"), ("store", "tma")]),
        (2, &[("swap_ab", "on"), ("schedule", "persistent"), ("sms", "2"), ("store", "tma")]),
    ] {
        for n in [256, 201] {
            for (shape, sizes) in [
                (Shape::new(300, n, 512).grouped(4), Some(vec![60, 0, 131, 3])),
                (Shape::new(140, n, 512).batch(3), None),
            ] {
                let mut spec = spec(shape, NVFP4, knobs);
                spec = Spec {
                    config: spec.config,
                    ..Spec::new(gates[gate].parse().unwrap(), &[Arch::Sm100a]).unwrap()
                };
                if legal(&spec, shape) {
                    runs.push(Run { arch: Arch::Sm100a, spec, shape, sizes });
                }
            }
        }
    }
    assert_eq!(runs.len(), 32);
    judge(&runs);
}

/// Offsets that no host would write, or that point behind A.
fn garbage() -> Vec<Vec<i32>> {
    vec![
        vec![i32::MIN, -1, 0, 1, 2, 3],
        vec![0, i32::MAX, i32::MIN, 0, i32::MAX, 7],
        vec![100, 90, 80, 70, 60, 50],
        vec![-5, 20, 10, 1000, 40, 2000],
        vec![i32::MAX; 6],
        vec![-1; 6],
        vec![7, 7, 40, 300, 301, -1],
        vec![0, 1 << 30, 1 << 30, -(1 << 30), 5, 6],
    ]
}

#[test]
fn no_offsets_lead_out_of_the_tensors() {
    let shape = Shape::new(300, 224, 512).grouped(5);
    let mut runs = Vec::new();
    for formats in [NVFP4, FORMATS[3]] {
        for knobs in SIDES {
            for offsets in garbage() {
                let spec = spec(shape, formats, knobs);
                if legal(&spec, shape) {
                    runs.push((spec, offsets));
                }
            }
        }
    }
    assert!(runs.len() >= 10 * garbage().len());
    let faults = silumin_testkit::faults(&runs, |_, (spec, offsets)| {
        let device = device();
        let inputs = DualGemmInputs::generate_for(shape, spec.formats, Distribution::Full, 5).unwrap();
        let operands = DeviceOperands::upload(&device, &inputs).unwrap();
        let bytes: Vec<u8> = offsets.iter().flat_map(|offset| offset.to_le_bytes()).collect();
        let offsets_buffer = device.upload(&bytes).unwrap();
        let args = Args { offsets: Some(&offsets_buffer), ..operands.args(&[]) };
        let before = operands.c.download().unwrap();
        // The launch compares what is outside of the rows that these offsets leave with what was there.
        let launched =
            DualGemm::new(spec.clone()).load(&device, shape).unwrap().launch(&device.stream(), &args);
        let place = || format!("{offsets:?}, {}, {}", spec.formats, spec.config);
        match launched {
            Err(error) => Some(format!("{}: {error}", place())),
            Ok(_) => {
                let after = operands.c.download().unwrap();
                let row = after.len() / 300;
                let most = offsets.iter().scan(0, |most, offset| {
                    *most = (*offset).clamp(0, 300).max(*most);
                    Some(*most as usize)
                });
                let ends: Vec<usize> = most.collect();
                let outside = (0..ends[0] * row).chain(ends[5] * row..after.len());
                let touched = outside.filter(|byte| after[*byte] != before[*byte]).count();
                (touched > 0).then(|| format!("{}: {touched} bytes touched", place()))
            }
        }
    });
    assert!(faults.is_empty(), "{} of {}:\n{}", faults.len(), runs.len(), faults.join("\n"));
}

#[test]
fn rows_of_no_group_are_neither_read_for_a_result_nor_written() {
    // Behind the groups A is NaN, as are the pads of its scale factors.
    let shape = Shape::new(400, 200, 512).grouped(3);
    for formats in [["mxfp8", "mxfp8", "bf16"], ["bf16", "bf16", "f32"]] {
        for knobs in SIDES {
            let spec = spec(shape, formats, knobs);
            let run = Run { arch: Arch::Sm100a, spec, shape, sizes: Some(vec![130, 0, 77]) };
            let inputs = run.inputs(11);
            let device = device();
            let operands = DeviceOperands::upload(&device, &inputs).unwrap();
            let row = operands.a.len() / 400;
            operands.a.slice(207 * row, 193 * row).unwrap().write(&vec![0xFF; 193 * row]).unwrap();
            let poison = operands.c.download().unwrap();
            let kernel = DualGemm::new(run.spec.clone()).load(&device, shape).unwrap();
            kernel.launch(&device.stream(), &operands.args(&[])).unwrap();
            let reference = silumin::runtime::gemm::expected(&run.spec, &inputs, &[]).unwrap();
            let check =
                silumin::verify::check::check_output(&operands.output().unwrap(), &reference).unwrap();
            assert!(check.pass, "{}: {check}", run.spec.config);
            let after = operands.c.download().unwrap();
            let end = 207 * after.len() / 400;
            assert_eq!(after[end..], poison[end..], "{}", run.spec.config);
        }
    }
}

#[test]
fn offsets_are_checked_like_tensors() {
    let shape = Shape::new(40, 64, 64).grouped(3);
    let device = device();
    let run = Run::grouped(40, 64, &[10, 0, 20], NVFP4, &[]);
    let kernel = DualGemm::new(spec(shape, NVFP4, &[])).load(&device, shape).unwrap();
    let inputs =
        DualGemmInputs::generate_grouped(shape, &[10, 0, 20], run.spec.formats, Distribution::Full, 1)
            .unwrap();
    let operands = DeviceOperands::upload(&device, &inputs).unwrap();
    let launch = |args: &Args<'_>| kernel.launch(&device.stream(), args).unwrap_err().to_string();
    let error = launch(&Args { offsets: None, ..operands.args(&[]) });
    assert!(error.starts_with("`offsets` is missing") && error.contains("16 bytes"), "{error}");
    let short = device.upload(&[0; 12]).unwrap();
    let error = launch(&Args { offsets: Some(&short), ..operands.args(&[]) });
    assert!(error.contains("`offsets` has 12 bytes") && error.contains("it has 16"), "{error}");
    let plain = Shape::new(40, 64, 64);
    let inputs = DualGemmInputs::generate(plain, Distribution::Full, 1).unwrap();
    let given = DeviceOperands::upload(&device, &inputs).unwrap();
    let kernel = DualGemm::new(spec(plain, NVFP4, &[])).load(&device, plain).unwrap();
    let args = Args { offsets: operands.offsets.as_ref(), ..given.args(&[]) };
    let error = kernel.launch(&device.stream(), &args).unwrap_err();
    assert!(matches!(error, LaunchError::SuperfluousOperand { .. }), "{error}");
}

#[test]
fn a_part_of_c_that_holds_nothing_beyond_the_groups_stays_so() {
    let shape = Shape::new(200, 64, 64).grouped(2);
    let device = device();
    let spec = spec(shape, NVFP4, &[]);
    let inputs =
        DualGemmInputs::generate_grouped(shape, &[3, 130], spec.formats, Distribution::Full, 1).unwrap();
    let operands = DeviceOperands::upload(&device, &inputs).unwrap();
    let c = device.alloc(operands.c.len()).unwrap();
    let args = Args { c: &c, ..operands.args(&[]) };
    DualGemm::new(spec).load(&device, shape).unwrap().launch(&device.stream(), &args).unwrap();
    assert_eq!(c.slice(0, 133 * 128).unwrap().download().unwrap().len(), 133 * 128);
    assert!(c.slice(133 * 128, 128).unwrap().download().is_err());
}

#[test]
fn grouped_kernels_do_not_spill() {
    let ptxas = Ptxas::find().unwrap();
    let mut kernels = Vec::new();
    for knobs in SIDES.into_iter().chain(TURNED) {
        for shape in [
            Shape::new(400, 328, 512).grouped(5),
            Shape::new(400, 328, 512).grouped(64),
            Shape::new(400, 328, 512).batch(3),
        ] {
            for formats in FORMATS {
                let spec = spec(shape, formats, knobs);
                if legal(&spec, shape) {
                    kernels.push(spec.kernel(shape, Arch::Sm100a).unwrap());
                }
            }
        }
    }
    // Prime to the numbers of shapes and formats, so that a part has all of them.
    let kernels = sample::of(kernels, 7);
    let faults = silumin_testkit::faults(&kernels, |_, (_, kernel)| {
        let fault = silumin_testkit::unclean(&ptxas, kernel)?;
        Some(format!("{}, {}: {fault}", kernel.problem, kernel.name))
    });
    sample::assert_none(&faults, kernels.len());
}

#[test]
fn files_hold_batches_and_groups() {
    let shape = Shape::new(300, 200, 416);
    for shape in [shape, shape.batch(3), shape.grouped(5)] {
        let file = SpecFile::new(shape);
        let text = toml::to_string(&file).unwrap();
        assert_eq!(text.contains("batch = 3"), shape.groups == Groups::Batch(3), "{text}");
        let read: SpecFile = toml::from_str(&text).unwrap();
        assert_eq!((read.shape(), &read), (shape, &file));
    }
}

#[test]
fn the_macro_takes_both_beside_a_shape() {
    let batch = dual_gemm!(<nvfp4 -> f16, shape = [20, 64, 64], batch = 3> silu(A @ B1) * (A @ B2));
    assert_eq!(batch.shape(), Some(Shape::new(20, 64, 64).batch(3)));
    let experts = dual_gemm!(<nvfp4 -> f16, shape = [20, 64, 64], groups = 4> silu(A @ B1) * (A @ B2));
    assert_eq!(experts.shape(), Some(Shape::new(20, 64, 64).grouped(4)));
    let device = device();
    for gemm in [batch, experts] {
        let kernels = gemm.warmup(&device, &[]).unwrap();
        let kernel = kernels.for_shape(gemm.shape().unwrap()).unwrap();
        assert!(kernel.verify(Distribution::Full, 3, &[]).unwrap().check.pass);
        assert!(kernels.for_problem(20, 64, 64).unwrap_err().to_string().contains("20 x 64 x 64 in "));
    }
}
