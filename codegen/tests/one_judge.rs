//! What `Spec::plan` calls legal becomes a kernel, and what it refuses does not: there is one judge.

mod draws;

use std::cell::Cell;

use draws::{config, size};
use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestRunner};
use silumin_codegen::arch::Arch;
use silumin_codegen::config::{Config, Setting, Switch};
use silumin_codegen::error::ConfigError;
use silumin_codegen::gate::Gate;
use silumin_codegen::plan::{GateNeeds, validate, validate_gate};
use silumin_codegen::problem::{Formats, OperandFormat, OutputFormat, PreactivationFormat, Problem, Shape};
use silumin_codegen::render::{RenderError, render};
use silumin_codegen::spec::{EmitError, Spec};

/// Gates with no vectors, vectors along each axis and along both, and scalars.
const GATES: [&str; 6] = [
    "silu(A @ B1) * (A @ B2)",
    "silu(s[m] * (A @ B1)) * (s[m] * (A @ B2))",
    "silu(A @ B1 + b1[n]) * (A @ B2 + b2[n])",
    "silu(s[m] * (A @ B1) * w[n]) * (t[m] * (A @ B2))",
    "silu(alpha * (A @ B1)) * (alpha * (A @ B2))",
    "gelu(X @ Wg) * (X @ Wu)",
];

fn spec(gate: &str, arch: Arch) -> Spec {
    Spec::new(gate.parse::<Gate>().unwrap(), &[arch]).unwrap()
}

/// Both verdicts on a draw; whether they are that it is legal.
fn agree(spec: &Spec, shape: Shape, arch: Arch) -> Result<bool, TestCaseError> {
    match (spec.plan(shape, arch), spec.kernel(shape, arch)) {
        (Ok(plan), Ok(kernel)) => {
            prop_assert!(kernel.ptx.contains(".visible .entry"));
            // What explaining it tries beside it is judged with the same gate.
            let explained = plan.explain().to_string();
            prop_assert!(!explained.is_empty());
            Ok(true)
        }
        (Err(told), Err(EmitError::Config(refused))) => {
            prop_assert_eq!(&told, &refused);
            for error in &told {
                prop_assert!(error.to_string().starts_with(error.knob()), "{}", error);
                prop_assert!(!error.hint().is_empty());
            }
            Ok(false)
        }
        (plan, kernel) => {
            let (plan, kernel) = (plan.map(drop), kernel.map(drop).map_err(|error| error.to_string()));
            Err(TestCaseError::fail(format!("plan: {plan:?}, kernel: {kernel:?}")))
        }
    }
}

/// Draws until `wanted` configurations were legal, on any gate and with any formats that `formats` has.
fn judged(arch: Arch, formats: &[Formats], cases: u32, wanted: u32) {
    let specs: Vec<Spec> = GATES.iter().map(|gate| spec(gate, arch)).collect();
    let legal = Cell::new(0);
    // Half of the draws have the default for all knobs but the sides, on which the gate's vectors depend.
    let sides = draws::setting(prop::sample::select(vec![Switch::Off, Switch::On]));
    let configs =
        prop_oneof![config(arch), sides.prop_map(|swap_ab| Config { swap_ab, ..Config::default() }),];
    let preactivations = vec![None, None, Some(PreactivationFormat::Bf16)];
    let shapes = (size(), size(), (1u32..100).prop_map(|k| 32 * k));
    let draws = (
        shapes,
        configs,
        prop::sample::select((0..GATES.len()).collect::<Vec<_>>()),
        prop::sample::select(formats.to_vec()),
        prop::sample::select(preactivations),
    );
    let mut runner =
        TestRunner::new(ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() });
    let outcome = runner.run(&draws, |((m, n, k), config, gate, formats, preactivations)| {
        let formats = Formats { preactivations, ..formats };
        let spec = Spec { formats, config, ..specs[gate].clone() };
        let taken = agree(&spec, Shape::new(m, n, k), arch)?;
        legal.set(legal.get() + u32::from(taken));
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
    assert!(legal.get() >= wanted, "{} of {cases} draws are legal", legal.get());
}

#[test]
fn what_is_legal_for_tensor_memory_renders() {
    let formats = Formats::default();
    let bf16 = Formats::new(OperandFormat::Bf16, OperandFormat::Bf16, OutputFormat::Bf16);
    judged(Arch::Sm100a, &[formats, bf16], 1500, 150);
}

#[test]
fn what_is_legal_for_warpgroups_renders() {
    let bf16 = Formats::new(OperandFormat::Bf16, OperandFormat::Bf16, OutputFormat::Bf16);
    let decoded = Formats::new(OperandFormat::Bf16, OperandFormat::Nvfp4, OutputFormat::Bf16);
    judged(Arch::Sm90a, &[bf16, decoded], 1500, 100);
}

#[test]
fn what_is_legal_for_warps_renders() {
    let bf16 = Formats::new(OperandFormat::Bf16, OperandFormat::Bf16, OutputFormat::Bf16);
    judged(Arch::Sm120a, &[Formats::default(), bf16], 1500, 100);
}

#[test]
fn a_vector_per_row_rules_swapped_sides_out_before_rendering() {
    let shape = Shape::new(16, 4096, 7168);
    let swapped = Config { swap_ab: Setting::Fixed(Switch::On), ..Config::default() };
    let per_row = Spec { config: swapped, ..spec(GATES[1], Arch::Sm100a) };
    let errors = per_row.plan(shape, Arch::Sm100a).unwrap_err();
    assert_eq!(errors, [ConfigError::SwapAbRows { vector: "s[m]".into() }]);
    let auto = Spec { config: Config::default(), ..per_row.clone() };
    assert!(!auto.plan(shape, Arch::Sm100a).unwrap().swap_ab);
    // Without the vector few tokens are swapped, and where warpgroups hold sums the vector is no obstacle.
    assert!(spec(GATES[0], Arch::Sm100a).plan(shape, Arch::Sm100a).unwrap().swap_ab);
    let bf16 = Formats::new(OperandFormat::Bf16, OperandFormat::Bf16, OutputFormat::Bf16);
    let hopper = Spec { config: swapped, formats: bf16, ..spec(GATES[1], Arch::Sm90a) };
    assert!(hopper.plan(shape, Arch::Sm90a).unwrap().swap_ab);
    hopper.kernel(shape, Arch::Sm90a).unwrap();
    // All reasons are told, not only the gate's.
    let both = Spec { config: Config { stages: Setting::Fixed(99), ..swapped }, ..per_row };
    assert_eq!(both.plan(shape, Arch::Sm100a).unwrap_err().len(), 2);
}

#[test]
fn a_plan_of_another_gate_is_refused() {
    let problem = Problem::nvfp4(Shape::new(16, 4096, 7168));
    let [plain, per_row] = [GATES[0], GATES[1]].map(|gate| gate.parse::<Gate>().unwrap());
    let plan = validate(&problem, &Config::default(), Arch::Sm100a).unwrap();
    assert!(plan.swap_ab);
    render(&plan, &plain, "k").unwrap();
    let refused = render(&plan, &per_row, "k").unwrap_err();
    assert!(
        matches!(&refused, RenderError::Config(ConfigError::SwapAbRows { vector }) if vector == "s[m]"),
        "{refused}"
    );
    let needs = GateNeeds::from(&per_row.expr);
    let plan = validate_gate(&problem, &Config::default(), Arch::Sm100a, &needs).unwrap();
    render(&plan, &per_row, "k").unwrap();
}

#[test]
fn names_are_judged_with_the_rest() {
    let shape = Shape::new(256, 4096, 7168);
    let good = spec(GATES[0], Arch::Sm100a);
    for name in ["_x y", "1st", "caf\u{e9}", &"k".repeat(190), "a-b"] {
        let named = Spec { name: name.to_owned().into(), ..good.clone() };
        let errors = named.plan(shape, Arch::Sm100a).unwrap_err();
        assert!(matches!(&errors[..], [ConfigError::Name { .. }]), "{name}: {errors:?}");
        assert!(matches!(named.kernel(shape, Arch::Sm100a), Err(EmitError::Config(_))), "{name}");
    }
    let long = Spec { name: "k".repeat(180).into(), ..good };
    long.kernel(shape, Arch::Sm100a).unwrap();
}
