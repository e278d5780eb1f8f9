//! Long gates: the time grows with the text, not with its square or worse.

use std::fmt::Write;
use std::time::{Duration, Instant};

use silumin_codegen::gate::{Evaluator, Gate, GateCode, gate_code};

/// Unoptimised code on a busy machine; optimised code takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(2);

/// Parses a gate, cuts it, and looks for its code among the built-in gates.
fn judged(text: &str) -> Gate {
    let start = Instant::now();
    let gate: Gate = text.parse().unwrap();
    let _ = gate.expr.split();
    let _ = gate.expr.canonical();
    if cfg!(not(feature = "llvm")) {
        let _: Result<GateCode, _> = gate_code(&gate.expr, "sm_100a", 2);
    }
    let taken = start.elapsed();
    assert!(taken < PATIENCE, "{taken:?} for {} characters: {:.80}", text.len(), text);
    gate
}

#[test]
fn chains_of_hundreds_take_no_time() {
    let joined = |item: &dyn Fn(usize) -> String, by: &str, count: usize| {
        (0..count).map(item).collect::<Vec<_>>().join(by)
    };
    let products = |i: usize| format!("(A @ B{})", 1 + i % 2);
    for by in [" * ", " + ", " - ", " / "] {
        let gate = judged(&joined(&products, by, 400));
        let value = gate.expr.eval(1.0, 1.0, &[]).unwrap();
        assert!(value.is_finite());
        // Scalars of 300 names, and factors that move to a product.
        judged(&format!("silu(A @ B1) * (A @ B2){by}{}", joined(&|i| format!("s{i}"), by, 300)));
        judged(&joined(&|i| format!("silu(A @ B{}) * s{i}", 1 + i % 2), by, 120));
        judged(&joined(&|i| format!("sigmoid(A @ B1) * (A @ B2 + {i}.5)"), by, 120));
    }
}

/// Once gathering walked every chain twice a level: 60 levels took 2^30 steps.
#[test]
fn nested_chains_take_no_time() {
    for (before, after) in
        [("(", " * 2.0 + 1.0)"), ("silu(", " * s * 2.0)"), ("(1.0 / ", " - 3.0)"), ("(", " + b[n])")]
    {
        for levels in [30, 60] {
            let mut text = "A @ B1".to_owned();
            for _ in 0..levels {
                text = format!("{before}{text}{after}");
            }
            write!(text, " * (A @ B2)").unwrap();
            let gate = judged(&text);
            let split = gate.expr.split().unwrap();
            assert!(!split.is_trivial());
        }
    }
}

#[test]
fn text_and_words_have_limits_that_errors_name() {
    let message = |text: &str| text.parse::<Gate>().unwrap_err().to_string();
    let long = message(&format!("(A @ B1) * (A @ B2){}", " ".repeat(1 << 20)));
    assert!(long.contains("65536") && long.len() < 200, "{long}");
    let start = Instant::now();
    let number = message(&format!("(A @ B1) * (A @ B2) * 1{}", "0".repeat(60_000)));
    assert!(number.starts_with("a name or a number of more than 256 characters"), "{number:.100}");
    let name = message(&format!("(A @ B1) * (A @ {})", "B".repeat(257)));
    assert!(name.starts_with("a name or a number of more than 256 characters"), "{name:.100}");
    assert!(start.elapsed() < PATIENCE);
    let fits: Gate = format!("(A @ B1) * (A @ {})", "B".repeat(256)).parse().unwrap();
    assert_eq!(fits.source.b2.unwrap().len(), 256);
}

#[test]
fn gathered_chains_keep_their_values() {
    let value = |evaluator: &Evaluator, x: f64, y: f64| evaluator.eval(x, y);
    for text in [
        "silu(A @ B1) * (A @ B2) * s / t",
        "s * (silu(A @ B1) / t) * ((A @ B2) * 3.0) / (2.0 * u)",
        "(A @ B1) * s * exp(A @ B1) * (A @ B2)",
        "((A @ B1) * s + 1.0) * t * (A @ B2 - 2.0) / ((A @ B1) * (A @ B1) + u)",
    ] {
        let gate: Gate = text.parse().unwrap();
        let split = gate.expr.split().unwrap();
        let scalars = [("s", 1.5), ("t", -0.75), ("u", 3.25)];
        let [whole, early, late] =
            [&gate.expr, &split.early, &split.late].map(|e| e.evaluator(&scalars).unwrap());
        for (x, y) in [(0.5, 2.0), (-3.0, 0.25), (1.75, -4.5)] {
            let (whole, cut) = (value(&whole, x, y), value(&late, value(&early, x, f64::NAN), y));
            assert!((whole - cut).abs() <= 1e-12 * whole.abs(), "{text}: {whole} and {cut}");
        }
    }
}
