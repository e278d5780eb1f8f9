//! The built-in gates: found by meaning, complete, and accepted by the assembler.

#[path = "gate_common/kernels.rs"]
mod kernels;

use kernels::{assemble, parts};
use silumin_codegen::gate::{
    BUILTIN_WIDTH, BUILTINS, Fragment, GATE_ARCHES, GEMM_BUILTINS, Gate, GateCode, GateError, builtin,
    builtin_gate, gate_code,
};

fn parse(text: &str) -> Gate {
    text.parse().unwrap_or_else(|e| panic!("{e}"))
}

fn code(text: &str) -> Option<GateCode> {
    builtin(&parse(text).expr, "sm_100a")
}

#[test]
fn every_builtin_gate_assembles_on_every_architecture() {
    for (arch, version) in GATE_ARCHES {
        let codes: Vec<(&str, GateCode)> = (BUILTINS.iter().chain(&GEMM_BUILTINS))
            .map(|b| (b.name, builtin(&parse(b.source).expr, arch).expect("it is built in")))
            .collect();
        let fragments: Vec<(String, &Fragment)> = codes
            .iter()
            .flat_map(|(name, code)| {
                parts(code).into_iter().map(move |(part, f)| (format!("{name}_{part}"), f))
            })
            .collect();
        assert_eq!(fragments.len(), 3 * BUILTINS.len() + GEMM_BUILTINS.len());
        let version = format!("{}.{}", version / 10, version % 10);
        assemble(arch, &version, &fragments);
    }
}

#[test]
fn fragments_read_first_write_last_and_do_not_branch() {
    for (arch, _) in GATE_ARCHES {
        for b in BUILTINS.iter().chain(&GEMM_BUILTINS) {
            let code = builtin(&parse(b.source).expr, arch).expect("it is built in");
            for (part, fragment) in parts(&code) {
                let text = &fragment.text;
                let last_read = fragment
                    .inputs
                    .iter()
                    .map(|n| text.find(&format!(", <{n}>;")).expect("every input is read"))
                    .max();
                let first_write = fragment
                    .outputs
                    .iter()
                    .map(|n| text.find(&format!("mov.b32 <{n}>,")).expect("every output is written"))
                    .min();
                assert!(last_read < first_write, "{} {part}", b.name);
                assert!(!text.contains("bra") && !text.contains("call") && !text.contains("ret"));
                let holes = fragment.inputs.len() + fragment.outputs.len();
                let holes = holes + fragment.scalars.len();
                let found = ["<p1.", "<p2.", "<carried.", "<out.", "<s."]
                    .iter()
                    .map(|h| text.matches(h).count())
                    .sum::<usize>();
                assert_eq!(found, holes, "{} {part}: each hole once", b.name);
            }
        }
    }
}

#[test]
fn sm_100a_computes_pairs_at_once() {
    let whole = code("silu(A @ B1) * (A @ B2)").expect("built in").whole;
    assert_eq!(whole.text.matches("mul.rn.f32x2").count(), 3);
    assert_eq!(whole.text.matches("add.rn.f32x2").count(), 1);
}

#[test]
fn builtins_are_found_by_meaning() {
    let swiglu = code("silu(A @ B1) * (A @ B2)");
    assert!(swiglu.is_some());
    assert_eq!(code("silu(x @ gate) * (x @ up)"), swiglu);
    let oai = code(BUILTINS[6].source);
    assert!(oai.is_some());
    let respelt = "sigmoid(min(7, A @ B1) * 1.702) * min(A @ B1, 7) \
                   * (1 + min(max(A @ B2, -7), 7))";
    assert_eq!(code(respelt), oai);
    assert_eq!(code("silu(A @ B1) * (A @ B2) * 2"), None);
    assert_eq!(code("silu(A @ B1) * silu(A @ B2)"), None);
    assert_eq!(builtin(&parse("silu(A @ B1) * (A @ B2)").expr, "sm_80"), None);
}

#[test]
fn scalars_keep_the_names_of_the_user() {
    let ours = code("silu(alpha * (A @ B1)) * (alpha * (A @ B2))").expect("built in");
    let theirs = code("scale * (A @ B2) * silu((A @ B1) * scale)");
    // Written the other way round, the first product is the one that is not gated.
    let theirs = theirs.expect("built in");
    assert_eq!(theirs.whole.scalars, ["scale"]);
    assert_eq!(theirs.split, None);
    let theirs = code("silu((A @ B1) * scale) * scale * (A @ B2)").expect("built in");
    assert_eq!(theirs.whole.scalars, ["scale"]);
    assert_eq!(theirs.whole.text, ours.whole.text);
    assert_eq!(theirs.split.expect("split").late.scalars, ["scale"]);
    // Two different scalars are not the one.
    assert_eq!(code("silu(x * (A @ B1)) * (y * (A @ B2))"), None);
}

#[test]
fn a_gate_written_the_other_way_round_reads_its_products_so() {
    let swiglu = code("silu(A @ B1) * (A @ B2)").expect("built in").whole;
    let turned = code("(A @ B1) * silu(A @ B2)").expect("built in");
    assert_eq!(turned.split, None);
    let (first, second, out) = (["%g0", "%g1"], ["%u0", "%u1"], ["%o0", "%o1"]);
    let straight = [first, second].concat();
    let crossed = [second, first].concat();
    assert_eq!(turned.whole.render(&crossed, &out, &[]), swiglu.render(&straight, &out, &[]),);
    assert_ne!(turned.whole.text, swiglu.text);
}

/// Scales and biases of products; how many registers the parts declare beside the built-in gate's.
const AFFINE: [(&str, [&str; 3]); 8] = [
    ("silu(A @ B1 + b1[n]) * (A @ B2 + b2[n])", ["<4>", "<2>", "<2>"]),
    // Three uses of one affine part are computed once; a product and a sum are one fma.
    (
        "min(w[n] * (A @ B1) + b[n], 7) * sigmoid(1.702 * min(w[n] * (A @ B1) + b[n], 7)) \
         * (clamp(A @ B2, -7, 7) + 1)",
        ["<2>", "<2>", ""],
    ),
    ("silu(s[m] * (A @ B1) * w1[n]) * (s[m] * (A @ B2) * w2[n])", ["<8>", "<4>", "<4>"]),
    // Factors of the whole move to the second product.
    ("silu(A @ B1) * (A @ B2) * 2", ["<2>", "", "<2>"]),
    ("s[m] * gelu(A @ B1) * (A @ B2) / w[n]", ["<4>", "", "<4>"]),
    ("silu(x * (A @ B1)) * (y * (A @ B2))", ["<4>", "<2>", "<2>"]),
    ("(A @ B1 - zero[n]) * (-(A @ B2))", ["<4>", "<2>", "<2>"]),
    // What depends on neither element is computed once.
    ("relu((A @ B1) * (s[m] * alpha)) * (A @ B2)", ["<3>", "<3>", ""]),
];

#[test]
fn scales_and_biases_need_no_llvm_and_assemble() {
    for (arch, version) in GATE_ARCHES {
        let code = |gate| gate_code(&parse(gate).expr, arch, BUILTIN_WIDTH).unwrap_or_else(|e| panic!("{e}"));
        let codes: Vec<(&str, [&str; 3], GateCode)> =
            AFFINE.into_iter().map(|(gate, registers)| (gate, registers, code(gate))).collect();
        let mut fragments: Vec<(String, &Fragment)> = Vec::new();
        for (i, (gate, registers, code)) in codes.iter().enumerate() {
            assert_eq!(builtin(&parse(gate).expr, arch), None);
            assert_eq!(code.whole.vectors, parse(gate).expr.vectors(), "{gate}");
            assert_eq!(code.whole.scalars, parse(gate).expr.scalars(), "{gate}");
            assert_eq!(parts(code).len(), 3, "{gate}");
            for ((part, fragment), registers) in parts(code).into_iter().zip(registers) {
                let own = fragment.text.lines().find_map(|line| line.strip_prefix(".reg .f32 %gate_a"));
                assert_eq!(own.unwrap_or_default().trim_end_matches(';'), *registers, "{gate}, {part}");
                let holes = fragment.inputs.iter().chain(&fragment.outputs);
                for hole in holes {
                    assert!(fragment.text.contains(&format!("<{hole}>")), "{gate}, {part}: <{hole}>");
                }
                fragments.push((format!("gate{i}_{part}"), fragment));
            }
        }
        assemble(arch, &format!("{}.{}", version / 10, version % 10), &fragments);
    }
}

#[test]
fn an_affine_part_is_arithmetic_in_front_of_the_built_in_gate() {
    let swiglu = code("silu(A @ B1) * (A @ B2)").expect("built in");
    let gate = parse("silu(A @ B1 * w[n] + b[n]) * (A @ B2)").expr;
    let code = gate_code(&gate, "sm_100a", BUILTIN_WIDTH).unwrap_or_else(|e| panic!("{e}"));
    let text = &code.whole.text;
    assert!(text.contains("// p1 stands for p1 * w[n] + b[n]\n"), "{text}");
    assert!(text.contains("fma.rn.f32 %gate_a1, <p1.1>, <v.0.1>, <v.1.1>;\n"), "{text}");
    let body = swiglu.whole.text.split_once('\n').expect("lines").1;
    let body = body.replace("<p1.0>", "%gate_a0").replace("<p1.1>", "%gate_a1");
    assert!(text.ends_with(&body), "{text}");
    let split = code.split.expect("both parts");
    assert_eq!(split.early.inputs, ["p1.0", "p1.1", "v.0.0", "v.0.1", "v.1.0", "v.1.1"]);
    assert_eq!(split.late, swiglu.split.expect("both parts").late);
    // Nothing is carried but the product, until it is shifted.
    let trivial = |gate: &str| {
        let code = gate_code(&parse(gate).expr, "sm_100a", BUILTIN_WIDTH).unwrap_or_else(|e| panic!("{e}"));
        code.split.expect("both parts").trivial
    };
    assert!(trivial("(A @ B1) * (A @ B2 + b[n])") && !trivial("(A @ B1 + b[n]) * (A @ B2)"));
}

#[test]
fn what_is_not_arithmetic_in_front_of_a_built_in_gate_is_not_taken_for_it() {
    for gate in [
        "silu(A @ B1 + b[n]) * (A @ B2) + c[n]",
        "tanh(A @ B1 + b[n]) * (A @ B2)",
        "min(A @ B1 + b[n], 7) * sigmoid(1.702 * min(A @ B1, 7)) * (clamp(A @ B2, -7, 7) + 1)",
        "silu(exp(s[m]) * (A @ B1)) * (A @ B2)",
        "silu(2 / (A @ B1)) * (A @ B2)",
        "silu(A @ B1) / (A @ B2)",
        "silu(A @ B1 + A @ B2) * (A @ B2)",
    ] {
        let found = gate_code(&parse(gate).expr, "sm_100a", BUILTIN_WIDTH);
        let own = found.is_ok_and(|code| code.whole.text.contains("%gate_a"));
        assert!(!own, "{gate}");
    }
}

#[test]
fn render_fills_every_hole_and_wants_every_register() {
    let code = code("silu(a * (A @ B1)) * (a * (A @ B2))").expect("built in").whole;
    let (inputs, outputs) = (["%i0", "%i1", "%i2", "%i3"], ["%o0", "%o1"]);
    let text = code.render(&inputs, &outputs, &["%alpha"]).expect("complete");
    for register in inputs.iter().chain(&outputs).chain(&["%alpha"]) {
        assert!(text.contains(register), "{register}");
    }
    // The counts of register declarations are all that is left in angle brackets.
    assert_eq!(text.matches('<').count(), text.matches(".reg").count());
    let error = code.render(&inputs[..3], &outputs, &["%alpha"]).expect_err("one too few");
    assert!(error.to_string().contains("p1.0, p1.1, p2.0, p2.1"), "{error}");
    let error = code.render(&inputs, &outputs, &[]).expect_err("no scalar");
    assert!(error.to_string().contains("1 scalars (a)"), "{error}");
}

#[test]
fn gates_by_name() {
    for b in &BUILTINS {
        assert_eq!(builtin_gate(b.name).map(|g| g.to_string()).as_deref(), Some(b.source));
    }
    assert_eq!(builtin_gate("swish"), None);
}

#[test]
fn gate_code_says_what_would_help() {
    let swiglu = parse("silu(A @ B1) * (A @ B2)").expr;
    assert_eq!(gate_code(&swiglu, "sm_100a", BUILTIN_WIDTH).ok(), builtin(&swiglu, "sm_100a"));
    let error = gate_code(&swiglu, "sm_75", 2).expect_err("no such architecture");
    assert!(error.to_string().contains("sm_100a, sm_90a, not for `sm_75`"), "{error}");
    assert_eq!(gate_code(&swiglu, "sm_90a", 3), Err(GateError::Width { width: 3 }));
}

#[cfg(not(feature = "llvm"))]
#[test]
fn without_llvm_a_gate_of_ones_own_is_an_error_that_says_what_to_do() {
    let own = parse("tanh(A @ B1) * (A @ B2)").expr;
    let error = gate_code(&own, "sm_100a", 2).expect_err("not built in").to_string();
    for part in ["tanh(A @ B1) * (A @ B2)", "feature `llvm`", "llvm-22-dev", "swiglu_oai = min("] {
        assert!(error.contains(part), "{error}");
    }
    let swiglu = parse("silu(A @ B1) * (A @ B2)").expr;
    let error = gate_code(&swiglu, "sm_100a", 4).expect_err("another width");
    assert!(matches!(error, GateError::BuiltinWidth { width: 4, .. }), "{error}");
}
