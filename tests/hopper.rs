//! Kernels for sm_90a, whose warpgroups hold both accumulators in registers: what the other tests are for tensor memory.
//!
//! Every value of every knob that the chip takes; configurations drawn from all knobs and ragged shapes, with happens-before
//! tracking; a few of those under several schedules. All assemble without spills or warnings. A commit judges a part of each.
//!
//! `SILUMIN_HOPPER=2000 cargo test --release --test all hopper::` draws more of them, `SILUMIN_LATTICE_SEED` others; with
//! `SILUMIN_FULL=1` all are judged, values of knobs are tried with four times the K, as on sm_100a, all decoded formats with all
//! shapes, and twelve configurations under all schedules.

use silumin::codegen::problem::OperandFormat;
use silumin::codegen::spec::{FormatNames, SpecFile};
use silumin::formats::Matrix;
use silumin::runtime::device::{Schedule, Tracking};
use silumin::runtime::gemm::{DeviceOperands, DualGemm, expected};
use silumin::verify::inputs::{Distribution, DualGemmInputs};
use silumin::verify::toolchain::Ptxas;
use silumin::{Arch, Shape};
use silumin_testkit::lattice::{Point, environment, fault, fault_beside_plan, points, run};
use silumin_testkit::sample;
use silumin_testkit::values::{HOPPER_VALUES, SHAPES};

/// Legal configurations that the test holds to, unless the environment says otherwise.
const LEGAL: usize = 48;
/// Formats that are decoded in the kernel: of weights, or of both operands.
const DECODED: [(&str, &str); 6] = [
    ("bf16", "nvfp4"),
    ("bf16", "mxfp4"),
    ("bf16", "nvfp4_repacked"),
    ("bf16", "mxfp4_repacked"),
    ("nvfp4", "nvfp4"),
    ("mxfp4", "mxfp4"),
];
/// Configurations that are run under several schedules; those of `SILUMIN_FULL=1`.
const FEW: [usize; 2] = [4, 12];

/// A commit judges one draw, or one run, in so many.
/// Cases alternate shapes and schedules by 4 and 12, which have no common divisor with seven: a commit sees all of them.
const PARTS: usize = 7;

/// The parts of which one is judged: who asks for a number of draws gets all of them.
fn parts() -> usize {
    if std::env::var_os("SILUMIN_HOPPER").is_some() { 1 } else { PARTS }
}

fn usual() -> FormatNames {
    FormatNames { a: "bf16".into(), b: "bf16".into(), c: "bf16".into(), ..FormatNames::default() }
}

#[test]
fn every_value_is_clean_right_and_moves_what_the_plan_says() {
    let ptxas = Ptxas::find().unwrap();
    // 16-bit elements fill as many K tiles with a quarter of K.
    let shapes = SHAPES.map(|shape| Shape { k: if sample::full() { shape.k } else { shape.k / 4 }, ..shape });
    let runs: Vec<_> = HOPPER_VALUES.iter().flat_map(|value| shapes.map(|shape| (value, shape))).collect();
    // Prime to the number of shapes, so that a part has all of them.
    let runs = sample::of(runs, 5);
    let faults = silumin_testkit::faults(&runs, |_, &(_, ((knob, value, beside), shape))| {
        let mut file = SpecFile::new(shape);
        file.arch = Arch::Sm90a.to_string();
        for (knob, value) in beside.iter().chain(&[(*knob, *value)]) {
            file.config.set(knob, value).unwrap();
        }
        fault_beside_plan(&Point::of(&file, Schedule::default(), 7), &ptxas)
    });
    sample::assert_none(&faults, runs.len());
}

#[test]
fn legal_draws_assemble_and_compute_right_in_order_and_illegal_ones_say_why() {
    let ptxas = Ptxas::find().unwrap();
    let wanted = environment("SILUMIN_HOPPER", LEGAL as u64) as usize;
    let (points, illegal) = points(Arch::Sm90a, &usual(), 50, wanted, environment("SILUMIN_LATTICE_SEED", 1));
    assert!(illegal > wanted / 10, "{illegal} illegal draws beside {wanted} legal ones: nothing was refused");
    let points = sample::of(points, parts());
    let faults = silumin_testkit::faults(&points, |_, (_, point)| fault(point, &ptxas, Tracking::Strict));
    sample::assert_none(&faults, points.len());
}

#[test]
fn draws_with_decoded_weights_compute_right_in_order() {
    let ptxas = Ptxas::find().unwrap();
    let wanted = environment("SILUMIN_HOPPER", LEGAL as u64) as usize / 8;
    let mut drawn = Vec::new();
    for (a, b) in DECODED {
        let usual = FormatNames { a: a.into(), b: b.into(), ..usual() };
        let (points, illegal) =
            points(Arch::Sm90a, &usual, 0, wanted, environment("SILUMIN_LATTICE_SEED", 1));
        assert!(illegal > wanted, "{illegal} illegal draws of {a} x {b} beside {wanted} legal ones");
        drawn.extend(points);
    }
    let points = sample::of(drawn, parts());
    let faults = silumin_testkit::faults(&points, |_, (_, point)| fault(point, &ptxas, Tracking::Strict));
    sample::assert_none(&faults, points.len());
}

/// Tiles and parts of a tile one after the other, and CTAs that share one.
const DECODED_KNOBS: [&[(&str, &str)]; 8] = [
    &[],
    &[("tile", "[16, 128, 128]"), ("schedule", "persistent"), ("sms", "3")],
    &[("tile", "[64, 128, 256]"), ("multicast", "a(2)")],
    &[("tile", "[32, 128, 128]"), ("multicast", "b(2)"), ("schedule", "split_k(2)")],
    &[("tile", "[64, 128, 128]"), ("schedule", "stream_k"), ("sms", "5")],
    &[("tile", "[128, 128, 128]"), ("raster", "along_n"), ("pdl", "on")],
    &[("tile", "[32, 128, 128]"), ("schedule", "cluster_split_k(2)")],
    &[("tile", "[64, 128, 128]"), ("schedule", "cluster_split_k(4)"), ("pdl", "on")],
];

/// MMAs with rows of both products, of activations that a launch brings into order, or, with many columns, of weights that are decoded in
/// the order they lie in.
const BOTH_KNOBS: [&[(&str, &str)]; 12] = [
    &[("tile", "[240, 64, 128]")],
    &[("tile", "[256, 64, 128]"), ("schedule", "cluster_split_k(2)")],
    &[("tile", "[256, 64, 128]"), ("schedule", "persistent"), ("pdl", "on")],
    &[("accumulators", "interleaved_rows")],
    &[("tile", "[64, 64, 128]"), ("schedule", "persistent"), ("sms", "3")],
    &[("tile", "[48, 96, 128]"), ("schedule", "persistent"), ("sms", "2"), ("raster", "along_n")],
    &[("tile", "[96, 96, 128]"), ("multicast", "a(2)")],
    &[("tile", "[32, 64, 256]"), ("multicast", "b(2)"), ("schedule", "split_k(2)")],
    &[("tile", "[64, 64, 128]"), ("schedule", "cluster_split_k(2)"), ("pdl", "on")],
    &[("tile", "[80, 64, 128]"), ("schedule", "stream_k"), ("sms", "5")],
    // A CTA has more of K than a tile: two at most share one, and the first to start hands its sums over.
    &[("tile", "[48, 96, 128]"), ("schedule", "stream_k"), ("sms", "2"), ("pdl", "on")],
    &[("tile", "[64, 64, 128]"), ("store", "direct"), ("schedule", "stream_k"), ("sms", "3")],
];

#[test]
fn decoded_formats_move_what_the_plan_says() {
    let ptxas = Ptxas::find().unwrap();
    // K ends with a block of scale factors, and inside of one; multiples of 128 have an order of their own.
    let shape = Shape::new(139, 200, 480);
    let shapes = [Shape::new(5, 328, 512), shape, Shape { k: 512, ..shape }.batch(2), shape.grouped(3)];
    let mut runs = Vec::new();
    for formats @ (a, _) in DECODED {
        // Only with plain activations: those that are decoded are brought into order on the way.
        let both = if a == "bf16" { &BOTH_KNOBS[..] } else { &[] };
        for (turn, knobs) in DECODED_KNOBS.iter().chain(both).enumerate() {
            // Each of the first format's kernels of each shape; of the others', which share all but the decoding, by turns.
            let whole = sample::full() || formats == DECODED[0];
            let drawn = shapes.iter().enumerate().filter(|(index, _)| whole || *index == turn % shapes.len());
            runs.extend(drawn.map(|(_, shape)| (formats, *shape, *knobs)));
        }
    }
    let runs = sample::of(runs, PARTS);
    let faults = silumin_testkit::faults(&runs, |_, &(index, ((a, b), shape, knobs))| {
        let mut file = SpecFile::new(shape);
        file.arch = Arch::Sm90a.to_string();
        file.formats = FormatNames { a: a.into(), b: b.into(), ..usual() };
        for (knob, value) in knobs {
            file.config.set(knob, value).unwrap();
        }
        let point = Point::of(&file, silumin_testkit::by_turns(index), index as u64);
        // Its shares of K are constants.
        let illegal = shape.groups.by_rows() && knobs.contains(&("schedule", "stream_k"));
        if illegal && point.spec.plan(shape, point.arch).is_err() {
            return None;
        }
        fault_beside_plan(&point, &ptxas)
    });
    sample::assert_none(&faults, runs.len());
}

/// From 2^-127, which has no exponent's bits in bf16, to 2^127, with activations that make up for it.
#[test]
fn every_scale_factor_of_mxfp4_weights_is_exact() {
    let shape = Shape::new(8, 128, 256 * 32);
    let mut file = SpecFile::new(shape);
    file.arch = Arch::Sm90a.to_string();
    file.gate = "(A @ B1) * (A @ B2)".into();
    file.formats = FormatNames { b: "mxfp4".into(), c: "f32".into(), ..usual() };
    let (spec, arch) = file.read().unwrap();
    let mut inputs = DualGemmInputs::generate_for(shape, spec.formats, Distribution::Benchmark, 1).unwrap();
    let (k, blocks) = (shape.k as usize, shape.k as usize / 32);
    let code = |block: usize| block.min(254) as u8;
    let activation = |index: usize| -> u16 {
        let (row, column) = (index / k, index % k);
        let magnitude = match 254 - u16::from(code(column / 32)) {
            0 => 0x0040,
            exponent => exponent << 7,
        };
        magnitude | if (row + column).is_multiple_of(3) { 0x8000 } else { 0 }
    };
    let codes = (0..8 * k).flat_map(|index| activation(index).to_le_bytes()).collect();
    inputs.a = Matrix::new(OperandFormat::Bf16, 8, k, codes, Vec::new(), 1.0).unwrap();
    for (turn, matrix) in (0..).zip([&mut inputs.b1, &mut inputs.b2]) {
        let codes = (0..128 * k as u32 / 2)
            .map(|byte| ((byte + turn).wrapping_mul(0x9e37_79b1) >> 13) as u8)
            .collect();
        let scales = (0..128 * blocks).map(|index| code(index % blocks)).collect();
        *matrix = Matrix::new(OperandFormat::Mxfp4, 128, k, codes, scales, 1.0).unwrap();
    }
    let reference = expected(&spec, &inputs, &[]).unwrap();
    let device = silumin_testkit::strict(arch, Schedule::default());
    let operands = DeviceOperands::upload(&device, &inputs).unwrap();
    let kernel = DualGemm::new(spec).load(&device, shape).unwrap();
    kernel.launch(&device.stream(), &operands.args(&[])).unwrap();
    let results = operands.output().unwrap().decode();
    let wrong =
        results.iter().zip(reference.exact()).position(|(got, exact)| *got != f64::from(*exact as f32));
    assert_eq!(wrong, None);
    assert!(reference.exact().iter().filter(|exact| exact.abs() > 100.0).count() > 800);
}

#[test]
fn a_sample_is_right_whatever_is_late() {
    let wanted = FEW[usize::from(sample::full())];
    let (points, _) =
        points(Arch::Sm90a, &usual(), 50, wanted, 1000 + environment("SILUMIN_LATTICE_SEED", 1));
    let mut schedules = vec![Schedule::Early, Schedule::Late];
    schedules.extend((0..17).step_by(4).map(|warp| Schedule::Starve { warp, seed: 3 }));
    schedules.extend((0..6).map(Schedule::Random));
    let runs = points.iter().flat_map(|point| schedules.iter().map(move |schedule| (point, *schedule)));
    let runs = sample::of(runs.collect(), parts());
    let faults =
        silumin_testkit::faults(&runs, |_, (_, (point, schedule))| run(point, *schedule, Tracking::Strict));
    sample::assert_none(&faults, runs.len());
}
