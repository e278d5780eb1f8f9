//! Kernels for sm_120a and sm_121a, whose warps hold operands and accumulators in registers: what the other tests are for tensor
//! memory.
//!
//! Every value of every knob that the chips take, every pair of formats, and configurations drawn from all knobs and ragged shapes,
//! with happens-before tracking; a few of those under several schedules. All assemble without spills or warnings. A commit
//! judges a part of each.
//!
//! `SILUMIN_GEFORCE=2000 cargo test --release --test all geforce::` draws more, `SILUMIN_LATTICE_SEED` others; with `SILUMIN_FULL=1`
//! all are judged.

use silumin::codegen::kernel::Kernel;
use silumin::codegen::spec::{FormatNames, SpecFile};
use silumin::runtime::device::{Schedule, Tracking};
use silumin::runtime::predict::{Chip, TimeOptions, default_chip, predict};
use silumin::verify::toolchain::Ptxas;
use silumin::{Arch, Shape};
use silumin_testkit::lattice::{Point, environment, fault, fault_beside_plan, points, run};
use silumin_testkit::sample;
use silumin_testkit::values::{GEFORCE_VALUES, SHAPES};

/// Legal configurations that the test holds to, unless the environment says otherwise.
const LEGAL: usize = 36;
/// Configurations that are run under several schedules; those of `SILUMIN_FULL=1`.
const FEW: [usize; 2] = [3, 12];
/// A commit judges one draw, or one run, in so many.
/// Cases alternate chips, shapes and schedules by 2, 4 and 12, which have no common divisor with seven: a commit sees all of them.
const PARTS: usize = 7;

/// The parts of which one is judged: who asks for a number of draws gets all of them.
fn parts() -> usize {
    if std::env::var_os("SILUMIN_GEFORCE").is_some() { 1 } else { PARTS }
}

#[test]
fn every_value_is_clean_right_and_moves_what_the_plan_says() {
    let ptxas = Ptxas::find().unwrap();
    // Rows of 4-bit elements are a multiple of 16 bytes with multiples of 32.
    let shorter = |k: u32| if sample::full() { k } else { (k / 2).next_multiple_of(32) };
    let shapes = SHAPES.map(|shape| Shape { k: shorter(shape.k), ..shape });
    let runs: Vec<_> = GEFORCE_VALUES.iter().flat_map(|value| shapes.map(|shape| (value, shape))).collect();
    // Prime to the number of shapes, so that a part has all of them.
    let runs = sample::of(runs, 5);
    let faults = silumin_testkit::faults(&runs, |_, &(_, ((knob, value, beside), shape))| {
        let mut file = SpecFile::new(shape);
        file.arch = Arch::Sm120a.to_string();
        for (knob, value) in beside.iter().chain(&[(*knob, *value)]) {
            file.config.set(knob, value).unwrap();
        }
        fault_beside_plan(&Point::of(&file, Schedule::default(), 7), &ptxas)
    });
    sample::assert_none(&faults, runs.len());
}

/// Pairs of formats: each kind of MMA, and elements of 4 bits beside those of 8 on either side.
const PAIRS: [(&str, &str); 10] = [
    ("nvfp4", "nvfp4"),
    ("mxfp4", "mxfp4"),
    ("mxfp8", "mxfp8"),
    ("mxfp8_e5m2", "mxfp8"),
    ("mxfp8", "mxfp4"),
    ("mxfp4", "mxfp8_e5m2"),
    ("e4m3", "e4m3"),
    ("e5m2", "e4m3"),
    ("bf16", "bf16"),
    ("f16", "f16"),
];

/// Rows of half a block of scale factors and of a whole one, columns inside of a block, tokens as columns.
const KNOBS: [&[(&str, &str)]; 4] = [
    &[],
    &[("tile", "[64, 32, 128]"), ("schedule", "persistent"), ("sms", "3")],
    &[("tile", "[128, 64, 128]"), ("strategy", "sequential")],
    &[("swap_ab", "on"), ("tile", "[32, 128, 128]"), ("schedule", "stream_k"), ("sms", "3")],
];

#[test]
fn every_format_is_clean_right_and_moves_what_the_plan_says() {
    let ptxas = Ptxas::find().unwrap();
    // K ends with a tile; and inside of one, where TMA does not widen elements.
    let shape = Shape::new(139, 200, 384);
    let mut runs = Vec::new();
    for (a, b) in PAIRS {
        let widens = a != b && (a == "mxfp4" || b == "mxfp4");
        for (turn, knobs) in KNOBS.iter().enumerate() {
            let ragged = Shape { k: if widens { 256 } else { 416 }, ..shape };
            let groups = [ragged, ragged.batch(2), ragged.grouped(3), Shape { m: 20, ..shape }];
            // Groups of rows have whole blocks, and shares of K that are constants.
            let whole = if turn == 0 { 2 } else { 0 };
            let shape = groups[if turn == 1 { 1 } else { whole }];
            runs.push((a, b, *knobs, shape));
            runs.push((a, b, *knobs, groups[3]));
        }
    }
    let runs = sample::of(runs, PARTS);
    let faults = silumin_testkit::faults(&runs, |_, &(index, (a, b, knobs, shape))| {
        let mut file = SpecFile::new(shape);
        file.arch = if index % 2 == 0 { Arch::Sm120a } else { Arch::Sm121a }.to_string();
        file.formats = FormatNames { a: a.into(), b: b.into(), c: "bf16".into(), ..FormatNames::default() };
        for (knob, value) in knobs {
            file.config.set(knob, value).unwrap();
        }
        fault_beside_plan(&Point::of(&file, silumin_testkit::by_turns(index), 7), &ptxas)
    });
    sample::assert_none(&faults, runs.len());
}

#[test]
fn legal_draws_assemble_and_compute_right_in_order_and_illegal_ones_say_why() {
    let ptxas = Ptxas::find().unwrap();
    let wanted = environment("SILUMIN_GEFORCE", LEGAL as u64) as usize;
    let usual = FormatNames::default();
    let (points, illegal) = points(Arch::Sm120a, &usual, 50, wanted, environment("SILUMIN_LATTICE_SEED", 1));
    assert!(illegal > wanted / 10, "{illegal} illegal draws beside {wanted} legal ones: nothing was refused");
    let points = sample::of(points, parts());
    let faults = silumin_testkit::faults(&points, |_, (_, point)| fault(point, &ptxas, Tracking::Strict));
    sample::assert_none(&faults, points.len());
}

#[test]
fn a_sample_is_right_whatever_is_late() {
    let wanted = FEW[usize::from(sample::full())];
    let seed = 1000 + environment("SILUMIN_LATTICE_SEED", 1);
    let (points, _) = points(Arch::Sm121a, &FormatNames::default(), 50, wanted, seed);
    let mut schedules = vec![Schedule::Early, Schedule::Late];
    schedules.extend((0..12).step_by(3).map(|warp| Schedule::Starve { warp, seed: 3 }));
    schedules.extend((0..6).map(Schedule::Random));
    let runs = points.iter().flat_map(|point| schedules.iter().map(move |schedule| (point, *schedule)));
    let runs = sample::of(runs.collect(), parts());
    let faults =
        silumin_testkit::faults(&runs, |_, (_, (point, schedule))| run(point, *schedule, Tracking::Strict));
    sample::assert_none(&faults, runs.len());
}

fn kernel(arch: Arch, elements: &str, k: u32) -> Kernel {
    let mut file = SpecFile::new(Shape::new(512, 2048, k));
    file.arch = arch.to_string();
    (file.formats.a, file.formats.b) = (elements.to_owned(), elements.to_owned());
    file.formats.c = "bf16".to_owned();
    file.read().unwrap().0.kernel(file.shape(), arch).unwrap()
}

/// Each of these chips has a file of numbers. Elements with more bits take longer, and the value lies between the ends of the ranges.
/// The commit chooses the chip.
#[test]
fn times_are_predicted_by_the_chips_own_numbers() {
    for (_, arch) in sample::of(vec![Arch::Sm110a, Arch::Sm120a, Arch::Sm121a], 3) {
        let chip = Chip::named(default_chip(arch.target()).unwrap()).unwrap();
        assert!(chip.runs(arch.target()), "{arch}");
        let on = |elements, chip: Chip| {
            predict(&kernel(arch, elements, 1024), None, &TimeOptions::new(chip)).unwrap().time()
        };
        let times = ["nvfp4", "e4m3", "bf16"].map(|elements| on(elements, chip.clone()));
        let [fast, slow] = [false, true].map(|slow| on("nvfp4", chip.extreme(slow)));
        let again = sample::again();
        assert!(fast < times[0] && times[0] < slow, "{arch}: {} ns, {fast} to {slow}; {again}", times[0]);
        assert!(times.is_sorted_by(|few, many| 1.1 * few < *many), "{arch}: {times:?}; {again}");
    }
}

/// A GeForce adds up bf16 products in binary32 at half the rate, and e2m1 products at the full rate.
#[test]
fn sums_in_binary32_take_longer_on_a_geforce() {
    let clocks = |name: &str, elements: &str| {
        let chip = Chip::named(name).unwrap();
        predict(&kernel(Arch::Sm120a, elements, 512), None, &TimeOptions::new(chip.clone())).unwrap().launches
            [0]
        .kernel
            * chip.clock.value
    };
    let ratio = |elements| clocks("rtx_5090", elements) / clocks("rtx_pro_6000", elements);
    assert!((1.5..2.1).contains(&ratio("bf16")), "{}", ratio("bf16"));
    assert!((0.8..1.25).contains(&ratio("nvfp4")), "{}", ratio("nvfp4"));
}

/// A number that is another chip's has a wide range, and no range makes a cluster impossible that runs.
#[test]
fn what_is_not_published_of_small_chips_has_a_range() {
    for name in ["dgx_spark", "jetson_thor", "rtx_5090", "rtx_pro_6000"] {
        let path = silumin_testkit::root().join(format!("chips/{name}.toml"));
        let file: toml::Table = std::fs::read_to_string(path).unwrap().parse().unwrap();
        let chip = Chip::named(name).unwrap();
        let mut borrowed = 0;
        for (number, unit, _) in Chip::NUMBERS {
            let (value, source) = (chip.number(number).unwrap(), file[*number]["source"].as_str().unwrap());
            if source == "no published number; as of a B200" && *unit != "ratio" {
                borrowed += 1;
                let wide = value.low <= 0.751 * value.value && 1.33 * value.value <= value.high;
                assert!(wide, "{name}: {number} is {value:?}");
            }
            let cluster = number.starts_with("clusters_of") && value.value >= 1.0;
            assert!(!cluster || value.low >= 1.0, "{name}: {number} is {value:?}");
        }
        assert!(borrowed > 20, "{name}: {borrowed}");
    }
}
