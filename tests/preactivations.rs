//! The kept pre-activations D1 and D2: right under every strategy, schedule, side and store, in
//! every format, on even and ragged shapes, ordered, and without spills.

use silumin::codegen::error::explain;
use silumin::codegen::gate::Product;
use silumin::codegen::problem::PreactivationFormat;
use silumin::codegen::spec::{FormatNames, Spec, SpecFile};
use silumin::runtime::device::Schedule;
use silumin::runtime::gemm::DualGemm;
use silumin::verify::inputs::Distribution;
use silumin::verify::toolchain::Ptxas;
use silumin::{Arch, Shape};
use silumin_testkit::sample;

/// Whole tiles; tiles that M, N and K all end inside of, rows of D1 of whole vectors; rows of odd length; few tokens.
const SHAPES: [Shape; 4] = [
    Shape::new(256, 384, 1024),
    Shape::new(203, 328, 928),
    Shape::new(130, 225, 672),
    Shape::new(24, 200, 544),
];

const PLAIN: &str = "silu(A @ B1) * (A @ B2)";
const SCALED: &str = "silu(alpha * (A @ B1)) * (alpha * (A @ B2))";
const BIASED: &str = "silu(alpha * (A @ B1) + b1[n]) * (A @ B2 / alpha - b2[n])";
const BY_ROW: &str = "silu(s[m] * (A @ B1)) * (s[m] * (A @ B2))";
/// Its products are the other way round: the gate has nothing to do early, and D1 is B1's all the same.
const CROSSED: &str = "(A @ B1 + b1[n]) * silu(alpha * (A @ B2))";

/// Knobs, and gates that they go with; TMA stores want rows of whole 16 bytes.
const CASES: &[(&[(&str, &str)], &str)] = &[
    (&[], PLAIN),
    (&[("swap_ab", "off"), ("cta_group", "1")], BIASED),
    (&[("strategy", "two_pass")], BIASED),
    (&[("strategy", "two_pass"), ("swap_ab", "on")], SCALED),
    (&[("strategy", "second_fused")], BY_ROW),
    (&[("strategy", "second_fused"), ("swap_ab", "on")], BIASED),
    (&[("strategy", "sequential")], CROSSED),
    (&[("strategy", "sequential"), ("schedule", "persistent"), ("sms", "2")], BY_ROW),
    (&[("schedule", "persistent"), ("sms", "2")], SCALED),
    (&[("schedule", "dynamic"), ("cta_group", "2")], BIASED),
    (&[("schedule", "stream_k"), ("sms", "5"), ("cta_group", "1")], SCALED),
    (&[("schedule", "split_k(2)")], BIASED),
    (&[("schedule", "cluster_split_k(2)"), ("swap_ab", "off")], BIASED),
    (&[("k_order", "split_tail(2)"), ("cta_group", "1"), ("swap_ab", "off")], BIASED),
    (&[("k_order", "split_tail(1)"), ("swap_ab", "on"), ("tile", "[64, 128, 256]")], BIASED),
    (&[("k_order", "split_tail(2)"), ("schedule", "persistent"), ("sms", "3"), ("cta_group", "1")], CROSSED),
    (&[("swap_ab", "on"), ("tile", "[64, 128, 256]"), ("store", "tma")], BIASED),
    (&[("swap_ab", "on"), ("schedule", "cluster_split_k(2)"), ("tile", "[64, 128, 128]")], SCALED),
    (&[("cta_group", "2"), ("store", "tma"), ("tile", "[256, 64, 256]")], PLAIN),
    (&[("multicast", "a(2)"), ("swap_ab", "off")], BY_ROW),
    (&[("multicast", "b(2)"), ("swap_ab", "off"), ("schedule", "dynamic")], BIASED),
    (&[("accumulators", "side_by_side"), ("swap_ab", "off"), ("tile", "[128, 128, 256]")], SCALED),
    (&[("pdl", "on"), ("strategy", "two_pass")], BY_ROW),
];

fn spec(knobs: &[(&str, &str)], gate: &str, c: &str, preactivations: &str, shape: Shape) -> Spec {
    let mut file = SpecFile::new(shape);
    file.gate = gate.to_owned();
    file.formats =
        FormatNames { c: c.to_owned(), preactivations: preactivations.to_owned(), ..FormatNames::default() };
    for (knob, value) in knobs {
        file.config.set(knob, value).unwrap();
    }
    file.read().unwrap().0
}

/// Assembles and runs; what is wrong, if anything.
fn fault(index: usize, spec: &Spec, shape: Shape, ptxas: &Ptxas) -> Option<String> {
    let name = format!("{shape}, {}, {}, {}", spec.formats, spec.config, spec.gate);
    let plan = match silumin_testkit::clean_plan(spec, shape, Arch::Sm100a, ptxas) {
        Ok(plan) => plan,
        Err(fault) => return Some(format!("{name}: {fault}")),
    };
    let schedule = [Schedule::Early, Schedule::Late, Schedule::Random(index as u64)][index % 3];
    let device = silumin_testkit::strict(Arch::Sm100a, schedule);
    let scalars: &[(&str, f32)] = if spec.gate.expr.scalars().is_empty() { &[] } else { &[("alpha", 0.375)] };
    let distribution = if index.is_multiple_of(2) { Distribution::Full } else { Distribution::Benchmark };
    match DualGemm::new(spec.clone()).verify(&device, shape, distribution, index as u64, scalars) {
        Ok(v) if v.check.pass && v.check.preactivations.len() == 2 => {
            match spec.gate.expr.vectors().is_empty() {
                true => silumin_testkit::miscounted(&v, &plan).map(|text| format!("{name}: {text}")),
                // Vectors are no part of the plan.
                false => None,
            }
        }
        Ok(v) => Some(format!("{name}: {}", v.check)),
        Err(error) => Some(format!("{name}: {error}")),
    }
}

#[test]
fn preactivations_are_kept_right_under_every_knob() {
    let ptxas = Ptxas::find().unwrap();
    let mut runs = Vec::new();
    for (index, (knobs, gate)) in CASES.iter().enumerate() {
        for (turn, shape) in SHAPES.into_iter().enumerate() {
            let has = |knob, value| knobs.contains(&(knob, value));
            let c = ["f16", "bf16", "f32", "e4m3"][(index + turn) % 4];
            // Rows that TMA does not store, vectors a row with tokens on the column side, K tiles to share.
            let rows = shape.n
                * if c == "f32" {
                    4
                } else if c == "e4m3" {
                    1
                } else {
                    2
                };
            if has("store", "tma") && !rows.is_multiple_of(16) || *gate == BY_ROW && has("swap_ab", "on") {
                continue;
            }
            let preactivations = ["bf16", "f32", "f16"][(index + 2 * turn) % 3];
            runs.push((spec(knobs, gate, c, preactivations, shape), shape));
        }
    }
    assert!(runs.len() > 3 * CASES.len(), "{} runs", runs.len());
    // Cases alternate three schedules; with five parts a commit sees all of them.
    let runs = sample::of(runs, 5);
    let faults =
        silumin_testkit::faults(&runs, |_, (index, (spec, shape))| fault(*index, spec, *shape, &ptxas));
    sample::assert_none(&faults, runs.len());
}

/// What is kept is what the gate reads, as it is written.
#[test]
fn a_pre_activation_is_the_largest_affine_part_of_one_product() {
    for (gate, first, second) in [
        (PLAIN, "(A @ B1)", "(A @ B2)"),
        (SCALED, "alpha * (A @ B1)", "alpha * (A @ B2)"),
        (BIASED, "alpha * (A @ B1) + b1[n]", "(A @ B2) / alpha - b2[n]"),
        (CROSSED, "(A @ B1) + b1[n]", "alpha * (A @ B2)"),
        ("silu(A @ B1) * alpha * (A @ B2)", "(A @ B1)", "(A @ B2)"),
        ("silu(A @ B1) * (alpha * (A @ B2))", "(A @ B1)", "alpha * (A @ B2)"),
        ("silu(-(A @ B1)) * (A @ B2 + 1.0)", "-(A @ B1)", "(A @ B2) + 1.0"),
        // Its occurrences are in different expressions, so that the product itself is what they share.
        ("(A @ B1) * sigmoid(1.702 * (A @ B1)) * (A @ B2)", "(A @ B1)", "(A @ B2)"),
        ("silu(exp(alpha) * (A @ B1)) * (A @ B2)", "(A @ B1)", "(A @ B2)"),
    ] {
        let gate: silumin::codegen::gate::Gate = gate.parse().unwrap();
        let shown = |product| gate.expr.pre_activation(product).display("A @ B1", "A @ B2").to_string();
        assert_eq!([shown(Product::First), shown(Product::Second)], [first, second], "{gate}");
    }
}

#[test]
fn what_is_kept_is_counted_and_named() {
    let shape = Shape::new(203, 328, 928);
    for strategy in ["interleaved", "sequential", "second_fused", "two_pass"] {
        let plan = |preactivations: &str| {
            let spec = spec(&[("strategy", strategy)], PLAIN, "f16", preactivations, shape);
            spec.plan(shape, Arch::Sm100a).unwrap_or_else(|errors| panic!("{}", explain(&errors)))
        };
        let none = plan("none");
        for (preactivations, bytes) in [("bf16", 2), ("f16", 2), ("f32", 4)] {
            let kept = plan(preactivations);
            let extra = 2 * bytes * u64::from(shape.m) * u64::from(shape.n);
            assert_eq!(kept.moved_bytes().0, none.moved_bytes().0, "{strategy}");
            assert_eq!(kept.moved_bytes().1, none.moved_bytes().1 + extra, "{strategy}");
            assert_eq!(kept.problem.compulsory_bytes(), none.problem.compulsory_bytes() + extra);
            assert!(
                kept.to_string().contains(&format!("-> f16, pre-activations in {preactivations}")),
                "{kept}"
            );
        }
        assert!(!none.to_string().contains("pre-activations in"));
    }
}

#[test]
fn a_kernel_without_them_says_nothing_of_them() {
    let shape = Shape::new(203, 328, 928);
    let ptx = |preactivations: &str| {
        spec(&[], PLAIN, "f16", preactivations, shape).kernel(shape, Arch::Sm100a).unwrap().ptx
    };
    assert!(!ptx("none").contains("[d1]") && !ptx("none").contains("%kept"));
    for format in PreactivationFormat::ALL {
        let kept = ptx(&format.to_string());
        assert!(kept.contains("[d1]") && kept.contains(".param .u64 d1,") && kept.contains(".param .u64 d2"));
    }
}

#[test]
fn files_of_earlier_versions_say_products() {
    let file = |name: &str| -> SpecFile {
        toml::from_str(&format!("shape = [1, 64, 64]\n[formats]\n{name} = \"f32\"\n")).unwrap()
    };
    assert_eq!(file("products"), file("preactivations"));
    assert_eq!(file("products").formats.preactivations, "f32");
}
