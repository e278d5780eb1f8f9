//! Vectors in the gate, biases and scales a row or a column: right under every strategy, schedule, store and
//! ragged shape, free of races, and without spills.

use silumin::codegen::gate::{BUILTINS, Expr, Gate};
use silumin::codegen::spec::{FormatNames, Spec, SpecFile};
use silumin::runtime::device::{Device, EmulatorOptions, Schedule, Tracking};
use silumin::runtime::gemm::VerifyError;
use silumin::runtime::gemm::{DeviceOperands, DualGemm, expected, expected_with};
use silumin::verify::check::{Tolerance, check};
use silumin::verify::inputs::{Distribution, DualGemmInputs};
use silumin::verify::toolchain::Ptxas;
use silumin::verify::vectors::{GateVectors, VectorError};
use silumin::{Arch, Args, Buffer, LaunchError, Shape, dual_gemm};
use silumin_testkit::sample;

const BIAS: &str = "silu(A @ B1 + b1[n]) * (A @ B2 + b2[n])";
const SCALES: &str = "silu(s[m] * (x @ gate) * w1[n] + b1[n]) * (s[m] * (x @ up) * w2[n] + b2[n])";
/// Written the other way round, with a scalar beside vectors and a factor behind the gate.
const TURNED: &str = "(x @ up + b[n]) * gelu(alpha * (x @ gate) - zero[n]) * s[m]";
const ROWS: &str = "relu((A @ B1) / s[m]) * (s[m] * (A @ B2))";

/// Knobs, as pairs of name and value.
type Knobs = &'static [(&'static str, &'static str)];

const CONFIGS: [Knobs; 22] = [
    &[],
    &[("store", "direct")],
    &[("store", "tma")],
    &[("k_order", "split_tail(2)")],
    &[("k_order", "split_tail(2)"), ("tile", "[128, 192, 128]"), ("store", "tma")],
    &[("k_order", "serpentine"), ("cta_group", "2")],
    &[("cta_group", "2"), ("tile", "[256, 192, 128]"), ("k_order", "split_tail(2)")],
    &[("accumulators", "side_by_side")],
    &[("schedule", "persistent"), ("sms", "2")],
    &[("schedule", "persistent"), ("sms", "3"), ("store", "tma"), ("k_order", "split_tail(2)")],
    &[("schedule", "persistent"), ("sms", "4"), ("cta_group", "2"), ("pdl", "on")],
    &[("schedule", "dynamic"), ("tile", "[128, 64, 256]")],
    &[("schedule", "dynamic"), ("cta_group", "2"), ("store", "tma")],
    &[("schedule", "stream_k"), ("sms", "5")],
    &[("schedule", "stream_k"), ("sms", "6"), ("cta_group", "2"), ("store", "tma")],
    &[("schedule", "split_k(2)")],
    &[("schedule", "split_k(3)"), ("cta_group", "2")],
    &[("strategy", "two_pass")],
    &[("strategy", "two_pass"), ("pdl", "on"), ("schedule", "persistent"), ("sms", "2")],
    &[("strategy", "second_fused")],
    &[("strategy", "second_fused"), ("schedule", "stream_k"), ("sms", "5")],
    &[("strategy", "sequential")],
];

/// Whole tiles; ragged with N a multiple of 8 and of nothing.
const SHAPES: [Shape; 3] = [Shape::new(256, 384, 512), Shape::new(203, 328, 544), Shape::new(130, 201, 544)];

fn gemm(gate: &str, knobs: &[(&str, &str)], shape: Shape) -> Option<Spec> {
    let mut file = SpecFile::new(shape);
    file.gate = gate.to_owned();
    for (knob, value) in knobs {
        file.config.set(knob, value).unwrap();
    }
    let (spec, arch) = file.read().unwrap_or_else(|error| panic!("{gate}: {error}"));
    // TMA stores take every other N than an odd one.
    spec.plan(shape, arch).is_ok().then_some(spec)
}

fn scalars(expr: &Expr) -> &'static [(&'static str, f32)] {
    if expr.scalars().is_empty() { &[] } else { &[("alpha", 0.75)] }
}

/// What is wrong with the kernel of `spec`, if anything.
fn fault(spec: &Spec, shape: Shape, options: EmulatorOptions) -> Option<String> {
    let device = Device::emulated_with(Arch::Sm100a, EmulatorOptions { threads: 1, ..options });
    let place = || format!("{}, {shape}, {}", spec.gate, spec.config);
    let scalars = scalars(&spec.gate.expr);
    match DualGemm::new(spec.clone()).verify(&device, shape, Distribution::Full, 7, scalars) {
        Ok(verification) if verification.check.pass => None,
        Ok(verification) => Some(format!("{}: {}", place(), verification.check)),
        Err(error) => Some(format!("{}: {error}", place())),
    }
}

#[test]
fn every_way_to_run_a_kernel_hands_the_gate_its_vectors() {
    let mut runs = Vec::new();
    for (index, knobs) in CONFIGS.into_iter().enumerate() {
        for (at, shape) in SHAPES.into_iter().enumerate() {
            for gate in [BIAS, SCALES, TURNED, ROWS].into_iter().skip((index + at) % 2).step_by(2) {
                runs.extend(gemm(gate, knobs, shape).map(|spec| (spec, shape)));
            }
        }
    }
    assert!(runs.len() > 2 * CONFIGS.len(), "only {} kernels are legal", runs.len());
    let faults =
        silumin_testkit::faults(&runs, |_, (spec, shape)| fault(spec, *shape, EmulatorOptions::default()));
    assert!(faults.is_empty(), "{} of {}:\n{}", faults.len(), runs.len(), faults.join("\n"));
}

#[test]
fn no_schedule_finds_a_race_in_what_vectors_add() {
    let shape = Shape::new(140, 72, 416);
    let mut runs = Vec::new();
    for knobs in CONFIGS {
        let Some(spec) = gemm(SCALES, knobs, shape) else { continue };
        for schedule in
            [Schedule::Early, Schedule::Late, Schedule::Random(3), Schedule::Starve { warp: 1, seed: 1 }]
        {
            runs.push((spec.clone(), schedule));
        }
    }
    assert!(runs.len() > 40, "only {} runs", runs.len());
    let strict =
        |schedule| EmulatorOptions { schedule, tracking: Tracking::Strict, ..EmulatorOptions::default() };
    let faults = silumin_testkit::faults(&runs, |_, (spec, schedule)| fault(spec, shape, strict(*schedule)));
    assert!(faults.is_empty(), "{} of {}:\n{}", faults.len(), runs.len(), faults.join("\n"));
}

#[test]
fn swapped_operands_take_vectors_along_n_and_refuse_those_along_m_where_asked_for() {
    let few = Shape::new(30, 201, 544);
    let mut runs = Vec::new();
    for knobs in [
        &[("swap_ab", "on")][..],
        &[("swap_ab", "on"), ("k_order", "split_tail(2)")],
        &[("swap_ab", "on"), ("strategy", "second_fused"), ("schedule", "stream_k"), ("sms", "3")],
        &[("swap_ab", "on"), ("strategy", "two_pass")],
    ] {
        runs.push((gemm(BIAS, knobs, few).unwrap(), few));
    }
    // Left to itself, a gate with a vector along M keeps its rows in threads.
    runs.push((gemm(SCALES, &[], few).unwrap(), few));
    let faults =
        silumin_testkit::faults(&runs, |_, (spec, shape)| fault(spec, *shape, EmulatorOptions::default()));
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    let mut file = SpecFile::new(few);
    file.gate = SCALES.to_owned();
    file.config.set("swap_ab", "on").unwrap();
    let refused = file.read().unwrap().0.plan(few, Arch::Sm100a).unwrap_err();
    assert!(refused.iter().any(|e| e.to_string().contains("swap_ab: on with `s[m]`")), "{refused:?}");
}

/// As many vectors as a gate may have, in front of the gates that take most registers themselves.
const MOST: [&str; 2] = [
    "gelu((A @ B1) * p[n] * s[m] + q[n] - w[m]) * ((A @ B2) * (t[m] - u[m]) * r[n] + z[n])",
    "min((A @ B1) * s[m] * p[n] + q[n], 7.0) * sigmoid(1.702 * min((A @ B1) * s[m] * p[n] + q[n], 7.0)) \
     * (clamp((A @ B2) * s[m] * r[n] + z[n], -7.0, 7.0) + 1.0)",
];

#[test]
fn vectors_do_not_make_a_kernel_spill() {
    let ptxas = Ptxas::find().unwrap();
    let mut kernels = Vec::new();
    for (knobs, shape) in CONFIGS.into_iter().flat_map(|knobs| SHAPES.map(|shape| (knobs, shape))) {
        let specs = [BIAS, SCALES, MOST[0], MOST[1]].map(|gate| gemm(gate, knobs, shape));
        let specs = specs.into_iter().flatten();
        kernels.extend(specs.map(|spec| (spec.kernel(shape, Arch::Sm100a).unwrap(), spec)));
    }
    // Prime to the numbers of gates and shapes, so that a part has each gate on each shape.
    let kernels = sample::of(kernels, 11);
    let faults = silumin_testkit::faults(&kernels, |_, (_, (kernel, spec))| {
        let place = format!("{}, {}, {}", kernel.problem.shape, spec.gate, spec.config);
        silumin_testkit::unclean(&ptxas, kernel).map(|fault| format!("{place}: {fault}"))
    });
    sample::assert_none(&faults, kernels.len());
}

#[test]
fn every_builtin_gate_takes_scales_and_biases_without_llvm() {
    let shape = Shape::new(70, 72, 96);
    let faults = silumin_testkit::faults(&BUILTINS, |_, builtin| {
        let source = builtin
            .source
            .replace("A @ B1", "(A @ B1) * (s[m] * w[n]) + b1[n]")
            .replace("A @ B2", "b2[n] - (A @ B2) / w[n] * 0.5");
        let spec = gemm(&source, &[], shape)?;
        fault(&spec, shape, EmulatorOptions::default())
    });
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn vectors_of_ones_own_reach_the_gate() {
    let gemm = dual_gemm!(<nvfp4 -> f16> silu(A @ B1 + b1[n]) * (s[m] * (A @ B2)));
    let shape = Shape::new(5, 40, 64);
    let device = Device::emulated(Arch::Sm100a);
    let kernel = gemm.load(&device, shape).unwrap();
    let inputs = DualGemmInputs::generate(shape, Distribution::Benchmark, 3).unwrap();
    let operands = DeviceOperands::upload(&device, &inputs).unwrap();
    let bias: Vec<f32> = (0..40).map(|n| n as f32 / 8.0 - 2.0).collect();
    let scale: Vec<f32> = (0..5).map(|m| 1.0 + m as f32).collect();
    let given = [("s", &scale[..]), ("b1", &bias[..])];
    let vectors = GateVectors::new(&gemm.spec().gate.expr, &gemm.spec().problem(shape), &given).unwrap();
    let buffers = silumin::runtime::gemm::upload_vectors(&vectors, &device).unwrap();
    let named: Vec<_> = buffers.iter().map(|(name, buffer)| (name.as_str(), buffer)).collect();
    let args = Args { vectors: &named, ..operands.args(&[]) };
    kernel.launch(&device.stream(), &args).unwrap();
    let reference = expected_with(gemm.spec(), &inputs, &[], &vectors).unwrap();
    let report = check(&operands.result().unwrap(), &reference, Tolerance::default()).unwrap();
    assert!(report.pass, "{report}");
    // Drawn vectors give another result, so that both sides do read them.
    assert_ne!(expected(gemm.spec(), &inputs, &[]).unwrap().rounded(), reference.rounded());
}

#[test]
fn vectors_are_checked_like_operands() {
    let gemm = dual_gemm!(<nvfp4 -> f16> silu(A @ B1 + b[n]) * (s[m] * (A @ B2)));
    let shape = Shape::new(5, 40, 64);
    let device = Device::emulated(Arch::Sm100a);
    let kernel = gemm.load(&device, shape).unwrap();
    let inputs = DualGemmInputs::generate(shape, Distribution::Benchmark, 3).unwrap();
    let operands = DeviceOperands::upload(&device, &inputs).unwrap();
    let zeros = |bytes: usize| device.upload(&vec![0; bytes]).unwrap();
    let (b, s) = (zeros(160), zeros(20));
    let refused = |vectors: &[(&str, &silumin::Buffer)]| {
        let args = Args { vectors, ..operands.args(&[]) };
        match kernel.launch(&device.stream(), &args) {
            Err(LaunchError::Vector(error)) => error,
            other => panic!("{other:?}"),
        }
    };
    let text = refused(&[("b", &b)]).to_string();
    assert!(text.contains("reads `s[m]`") && text.contains("5 elements"), "{text}");
    let text = refused(&[("b", &b), ("s", &s), ("t", &s)]).to_string();
    assert!(text.contains("no vector `t`; it has: b[n], s[m]"), "{text}");
    assert!(matches!(refused(&[("b", &b), ("s", &s), ("b", &b)]), VectorError::Duplicate { .. }));
    let text = refused(&[("b", &s), ("s", &s)]).to_string();
    assert!(
        text.contains("`b[n]` has 20 bytes") && text.contains("it has 160") && text.contains("40 elements"),
        "{text}"
    );
    let shifted = zeros(40).slice(4, 20).unwrap();
    assert!(matches!(refused(&[("b", &b), ("s", &shifted)]), VectorError::Alignment { .. }));
    let elsewhere = Device::emulated(Arch::Sm100a).upload(&[0; 20]).unwrap();
    assert!(matches!(refused(&[("b", &b), ("s", &elsewhere)]), VectorError::Device { .. }));
    let aliased = operands.c.slice(16, 160).unwrap();
    assert!(matches!(refused(&[("b", &aliased), ("s", &s)]), VectorError::Aliasing { .. }));

    let gate: Gate = BIAS.parse().unwrap();
    let short =
        GateVectors::new(&gate.expr, &gemm.spec().problem(shape), &[("b1", &[0.0; 40]), ("b2", &[0.0; 39])]);
    assert!(matches!(short, Err(VectorError::Length { found: 156, expected: 160, .. })), "{short:?}");
    let other =
        GateVectors::new(&gate.expr, &gemm.spec().problem(shape), &[("b1", &[0.0; 40]), ("b2", &[0.0; 40])])
            .unwrap();
    let error = expected_with(gemm.spec(), &inputs, &[], &other).unwrap_err();
    assert!(
        matches!(error, VerifyError::Launch(LaunchError::Vector(VectorError::Unknown { .. }))),
        "{error}"
    );
}

#[test]
fn launch_files_hold_the_vectors_of_their_inputs() {
    let shape = Shape::new(5, 40, 64);
    let spec = gemm(SCALES, &[], shape).unwrap();
    let kernel = spec.kernel(shape, Arch::Sm100a).unwrap();
    let inputs = DualGemmInputs::generate(shape, Distribution::Full, 9).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = silumin::verify::launch_file::write(folder.path(), &kernel, Some(&inputs), &[]).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    let names: Vec<String> = kernel.vectors().iter().map(|v| v.name.clone()).collect();
    assert_eq!(names, ["s", "w1", "b1", "w2", "b2"]);
    for name in &names {
        let bytes = std::fs::read(folder.path().join(format!("{}.vector_{name}.bin", kernel.name))).unwrap();
        assert_eq!(bytes.len(), if name == "s" { 20 } else { 160 });
        assert!(text.contains(&format!("[buffers.vector_{name}]")));
        assert!(text.contains(&format!("pointer = \"vector_{name}\"")));
    }
    let path = silumin::verify::launch_file::write(folder.path(), &kernel, None, &[]).unwrap();
    assert!(std::fs::read_to_string(&path).unwrap().contains("bytes = 160\nfill = 0x3F"));
}

/// Chip, formats, shape and knobs of GEMMs that add C to their product.
const IN_PLACE: [(Arch, [&str; 3], [u32; 3], Knobs); 8] = [
    (Arch::Sm100a, ["nvfp4", "nvfp4", "bf16"], [200, 136, 512], &[]),
    (
        Arch::Sm100a,
        ["nvfp4", "nvfp4", "f16"],
        [200, 136, 512],
        &[("store", "tma"), ("schedule", "persistent"), ("sms", "2")],
    ),
    (Arch::Sm100a, ["bf16", "bf16", "f32"], [20, 256, 256], &[("swap_ab", "on")]),
    (
        Arch::Sm100a,
        ["nvfp4", "nvfp4", "bf16"],
        [130, 256, 2048],
        &[("cta_group", "1"), ("schedule", "split_k(2)")],
    ),
    (Arch::Sm90a, ["bf16", "bf16", "bf16"], [200, 136, 256], &[("store", "tma")]),
    (Arch::Sm90a, ["bf16", "bf16", "bf16"], [40, 136, 256], &[("swap_ab", "on"), ("store", "tma")]),
    (Arch::Sm90a, ["bf16", "nvfp4", "bf16"], [40, 256, 1024], &[("schedule", "stream_k"), ("sms", "3")]),
    (
        Arch::Sm90a,
        ["bf16", "bf16", "bf16"],
        [200, 136, 256],
        &[("schedule", "cluster_split_k(2)"), ("tile", "[64, 64, 64]")],
    ),
];

#[test]
fn c_as_a_matrix_is_updated_in_place_without_a_race() {
    let faults = silumin_testkit::faults(&IN_PLACE, |_, (arch, [a, b, c], [m, n, k], knobs)| {
        let mut file = SpecFile::new(Shape::new(*m, *n, *k));
        file.arch = arch.to_string();
        file.gate = "A @ B + r[m, n]".to_owned();
        let [a, b, c] = [a, b, c].map(|name| (*name).to_owned());
        file.formats = FormatNames { a, b, c, ..FormatNames::default() };
        for (knob, value) in *knobs {
            file.config.set(knob, value).unwrap();
        }
        let (spec, arch) = file.read().unwrap();
        let problem = spec.problem(file.shape());
        let options = EmulatorOptions { tracking: Tracking::Strict, ..EmulatorOptions::default() };
        let device = Device::emulated_with(arch, options);
        let kernel = DualGemm::new(spec.clone()).load(&device, file.shape()).unwrap();
        let inputs = DualGemmInputs::generate_problem(&problem, None, Distribution::Benchmark, 3).unwrap();
        let operands = DeviceOperands::upload(&device, &inputs).unwrap();
        let drawn = GateVectors::draw(&spec.gate.expr.vectors(), &problem, 3);
        let bytes = drawn.bytes().next().unwrap().1;
        let apart = device.upload(&bytes).unwrap();
        let run = |matrix: &Buffer| {
            let vectors = [("r", matrix)];
            let args = Args { vectors: &vectors, ..operands.args(&[]) };
            kernel.launch(&device.stream(), &args).map(|_| operands.c.download().unwrap())
        };
        let expected = match run(&apart) {
            Ok(expected) => expected,
            Err(error) => return Some(format!("{problem}, {knobs:?}: apart: {error}")),
        };
        operands.c.write(&bytes).unwrap();
        match run(&operands.c) {
            Ok(got) if got == expected => None,
            Ok(_) => Some(format!("{problem}, {knobs:?}: C in place is another than apart")),
            Err(error) => Some(format!("{problem}, {knobs:?}: in place: {error}")),
        }
    });
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
