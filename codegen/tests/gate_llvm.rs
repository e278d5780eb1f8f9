//! Lowering through LLVM: what is checked in is what it makes, and what it makes assembles.
#![cfg(feature = "llvm")]

#[path = "gate_common/exprs.rs"]
mod exprs;
#[path = "gate_common/kernels.rs"]
mod kernels;

use exprs::any_gate;
use kernels::{assemble, parts};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use silumin_codegen::gate::lower::lower_gate;
use silumin_codegen::gate::{
    BUILTIN_WIDTH, BUILTINS, Expr, Fragment, GATE_ARCHES, GATE_WIDTHS, Gate, GateCode, builtin, gate_code,
};

fn parse(text: &str) -> Gate {
    text.parse().unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn what_is_checked_in_is_what_llvm_makes() {
    for (arch, _) in GATE_ARCHES {
        for b in &BUILTINS {
            let expr = parse(b.source).expr;
            let fresh = lower_gate(&expr, arch, BUILTIN_WIDTH).unwrap_or_else(|e| panic!("{e}"));
            assert!(
                builtin(&expr, arch).is_some_and(|known| known == fresh),
                "{} for {arch} differs from what is checked in; see the changes after \
                 `cargo run -p silumin-codegen --features llvm --example fragments`",
                b.name
            );
        }
    }
}

/// Every function and operator, alone and in company.
const GATES: [&str; 17] = [
    "min(A @ B1, A @ B2)",
    "max(A @ B1, 0.5) * (A @ B2)",
    "clamp(A @ B1, low, high) * (A @ B2)",
    "exp(A @ B1) * (A @ B2)",
    "log(abs(A @ B1) + 1e-6) * (A @ B2)",
    "sqrt(abs(A @ B1)) * (A @ B2)",
    "tanh(A @ B1) * (A @ B2)",
    "square(relu(A @ B1)) * (A @ B2)",
    "(A @ B1) / (A @ B2)",
    "1 / (A @ B1) - (A @ B2) / 3",
    "-(A @ B1) * -(A @ B2)",
    "(A @ B2) * gelu(A @ B1) + bias",
    "silu(alpha * (A @ B1)) * (beta * (A @ B2)) + gamma",
    "sigmoid(A @ B1) * tanh(A @ B2)",
    "gelu_tanh(A @ B1 + A @ B2) - 0.5 * (A @ B1)",
    "square(A @ B1 - A @ B2)",
    "0 * (A @ B1) + 0 * (A @ B2)",
];

/// The instructions fragments are made of: all that their reader has to know.
const INSTRUCTIONS: [&str; 26] = [
    "mov.b32",
    "mov.b64",
    "add.rn.f32",
    "add.rn.f32x2",
    "sub.rn.f32",
    "sub.rn.f32x2",
    "mul.rn.f32",
    "mul.rn.f32x2",
    "fma.rn.f32",
    "fma.rn.f32x2",
    "div.full.f32",
    "min.NaN.f32",
    "max.NaN.f32",
    "neg.f32",
    "abs.f32",
    "sqrt.approx.f32",
    "lg2.approx.f32",
    "ex2.approx.f32",
    "ex2.approx.ftz.f32",
    "rcp.approx.f32",
    "rcp.approx.ftz.f32",
    "setp.lt.f32",
    "setp.gt.f32",
    "selp.f32",
    "and.b32",
    "xor.b32",
];

/// Asserts that the gates' fragments for `arch` are made of those and assemble.
fn check(arch: &str, version: u32, codes: &[(String, GateCode)]) {
    let mut fragments: Vec<(String, &Fragment)> = Vec::new();
    for (name, code) in codes {
        for (part, fragment) in parts(code) {
            for line in fragment.text.lines() {
                let opcode = line.split(' ').next().unwrap_or_default();
                let known = INSTRUCTIONS.contains(&opcode) || matches!(opcode, "//" | ".reg");
                assert!(known, "{name} for {arch}: {line}\n{}", fragment.text);
            }
            fragments.push((format!("{name}_{part}"), fragment));
        }
    }
    assemble(arch, &format!("{}.{}", version / 10, version % 10), &fragments);
}

#[test]
fn every_function_at_every_width() {
    for (arch, version) in GATE_ARCHES {
        let mut codes = Vec::new();
        for (i, gate) in GATES.iter().enumerate() {
            for width in GATE_WIDTHS {
                let code = gate_code(&parse(gate).expr, arch, width);
                let code = code.unwrap_or_else(|e| panic!("{e}"));
                assert_eq!(code.whole.inputs.len(), 2 * width);
                codes.push((format!("gate{i}_{width}"), code));
            }
        }
        check(arch, version, &codes);
    }
}

/// Vectors where arithmetic in front of a built-in gate does not reach.
const VECTOR_GATES: [(&str, usize, usize); 3] = [
    ("tanh(A @ B1 + b[n]) * (A @ B2)", 0, 1),
    ("silu(s[m] * (A @ B1)) * max(A @ B2, b[n]) / s[m] + c[n]", 1, 2),
    ("exp(-abs(A @ B1 - s[m])) * (t[m] + A @ B2)", 2, 0),
];

#[test]
fn vectors_are_inputs_of_fragments() {
    for (arch, version) in GATE_ARCHES {
        let mut codes = Vec::new();
        for (i, (gate, rows, columns)) in VECTOR_GATES.into_iter().enumerate() {
            for width in GATE_WIDTHS {
                let code = gate_code(&parse(gate).expr, arch, width).unwrap_or_else(|e| panic!("{e}"));
                assert_eq!(code.whole.vectors, parse(gate).expr.vectors());
                assert_eq!(code.whole.inputs.len(), 2 * width + rows + columns * width, "{gate}");
                for input in &code.whole.inputs {
                    assert!(code.whole.text.contains(&format!("<{input}>")), "{gate}: {input}");
                }
                codes.push((format!("gate{i}_{width}"), code));
            }
        }
        let early = &codes[0].1.split.as_ref().expect("both products").early;
        assert_eq!(early.inputs, ["p1.0", "v.0.0"]);
        check(arch, version, &codes);
    }
}

#[test]
fn gates_drawn_at_random() {
    let mut runner = TestRunner::deterministic();
    let exprs: Vec<Expr> =
        (0..48).map(|_| any_gate(-8.0..8.0f32).new_tree(&mut runner).expect("a gate").current()).collect();
    for (arch, version) in GATE_ARCHES {
        let mut codes = Vec::new();
        for (i, expr) in exprs.iter().enumerate() {
            let width = GATE_WIDTHS[i % 2];
            let code = gate_code(expr, arch, width).unwrap_or_else(|e| panic!("{e}"));
            codes.push((format!("gate{i}"), code));
        }
        check(arch, version, &codes);
    }
}

#[test]
fn ptx_is_ascii_whatever_a_scalar_is_called() {
    let expr = parse("silu(s * (A @ B1)) * (A @ B2)").expr.rename_scalars(&|_| "größe".into());
    let code = lower_gate(&expr, "sm_100a", 2).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(code.whole.scalars, ["größe"]);
    check("sm_100a", 86, &[("renamed".into(), code)]);
}

#[test]
fn lowering_is_deterministic_and_threads_do_not_matter() {
    let expr = parse(GATES[14]).expr;
    let once = lower_gate(&expr, "sm_100a", 2);
    assert!(once.is_ok());
    std::thread::scope(|scope| {
        let again: Vec<_> = (0..4).map(|_| scope.spawn(|| lower_gate(&expr, "sm_100a", 2))).collect();
        for thread in again {
            assert_eq!(thread.join().expect("no panic"), once);
        }
    });
}
