//! Where a gate is cut between its accumulators.

use silumin_codegen::gate::{BUILTINS, EvalError, Gate};

/// The early and the late part, with `c` for the carried value.
fn split(text: &str) -> (String, String) {
    let gate: Gate = text.parse().unwrap_or_else(|e| panic!("{e}"));
    let split = gate.expr.split().expect("both products are used");
    let early = split.early.display("p1", "p2").to_string();
    (early, split.late.display("c", "p2").to_string())
}

fn splits(text: &str, early: &str, late: &str) {
    assert_eq!(split(text), (early.to_owned(), late.to_owned()), "{text}");
}

#[test]
fn the_gated_factor_is_carried() {
    splits("silu(A @ B1) * (A @ B2)", "silu(p1)", "c * p2");
    splits("2 * silu(A @ B1) * (A @ B2 + 1)", "2.0 * silu(p1)", "c * (p2 + 1.0)");
    splits("min(silu(s * (A @ B1)), A @ B2)", "silu(s * p1)", "min(c, p2)");
    splits("(A @ B1) / (A @ B2)", "p1", "c / p2");
    splits("-exp(A @ B1) * (A @ B2)", "-exp(p1)", "c * p2");
}

#[test]
fn factors_and_terms_are_gathered() {
    splits(
        "(A @ B1) * (A @ B2 + 1) * sigmoid(1.702 * (A @ B1))",
        "p1 * sigmoid(1.702 * p1)",
        "c * (p2 + 1.0)",
    );
    splits("(A @ B1) + (A @ B2) - exp(A @ B1)", "p1 - exp(p1)", "c + p2");
    splits("(A @ B1) * 0 + (A @ B2) / (A @ B1) / abs(A @ B1)", "p1", "c * 0.0 + p2 / c / abs(c)");
    splits("tanh(A @ B1 - A @ B2 + exp(A @ B1)) * 2", "p1 + exp(p1)", "tanh(c - p2) * 2.0");
}

#[test]
fn where_two_values_would_be_carried_it_is_the_product_itself() {
    let gate = "silu(A @ B1) * (A @ B2) + exp(A @ B1)";
    splits(gate, "p1", "silu(c) * p2 + exp(c)");
    let gate: Gate = gate.parse().expect("a gate");
    assert!(gate.expr.split().expect("split").is_trivial());
}

#[test]
fn one_value_may_be_used_twice() {
    splits("exp(A @ B1) * (A @ B2) + max(exp(A @ B1), A @ B2)", "exp(p1)", "c * p2 + max(c, p2)");
}

#[test]
fn every_builtin_gate_but_the_bilinear_one_has_early_work() {
    for b in &BUILTINS {
        let gate: Gate = b.source.parse().expect("a gate");
        let trivial = gate.expr.split().expect("split").is_trivial();
        assert_eq!(trivial, b.name == "bilinear", "{}", b.name);
    }
}

#[test]
fn the_evaluator_computes_the_mathematics() {
    let swiglu: Gate = "silu(A @ B1) * (A @ B2)".parse().expect("a gate");
    let (g, u) = (-8.72799_f64, 3.5);
    let exact = g / (1.0 + (-g).exp()) * u;
    let value = swiglu.expr.eval(g, u, &[]).expect("no scalars");
    assert!((value - exact).abs() <= 1e-15 * exact.abs(), "{value} {exact}");

    let gelu: Gate = "gelu(A @ B1) + 0 * (A @ B2)".parse().expect("a gate");
    // 0.5 x erfc(-x / sqrt 2), to 17 digits.
    for (x, exact) in [
        (-6.0, -5.919_525_870_226_189e-9),
        (-1.0, -0.158_655_253_931_457_05),
        (0.5, 0.345_731_230_637_006_55),
        (3.0, 2.995_950_305_905_11),
    ] {
        let value = gelu.expr.eval(x, 1.0, &[]).expect("no scalars");
        assert!((value - exact).abs() <= 1e-13 * f64::abs(exact), "gelu({x}) = {value}");
    }

    let mixed: Gate = "clamp(A @ B1, -s, s) - (A @ B2) / t - abs(A @ B2)".parse().expect("a gate");
    assert_eq!(mixed.expr.eval(5.0, -3.0, &[("s", 2.0), ("t", 4.0)]), Ok(-0.25));
    let error = mixed.expr.eval(5.0, -3.0, &[("s", 2.0)]).expect_err("t is missing");
    assert_eq!(error, EvalError::MissingScalar { name: "t".into(), needed: "s, t".into() });
}
