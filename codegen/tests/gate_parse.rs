//! The gate language: what it accepts, what it refuses, and where it points.

#[path = "gate_common/exprs.rs"]
mod exprs;

use exprs::any_gate;
use proptest::prelude::*;
use silumin_codegen::gate::{
    Axis, BUILTINS, BinaryOp, Expr, Function, Gate, GateSource, GateVector, MAX_NODES, MAX_VECTORS, Number,
    Product,
};
use silumin_codegen::problem::Operation;

fn parse(text: &str) -> Gate {
    text.parse().unwrap_or_else(|e| panic!("{e}"))
}

fn p1() -> Expr {
    Expr::Product(Product::First)
}

fn p2() -> Expr {
    Expr::Product(Product::Second)
}

fn lit(value: f64) -> Expr {
    Expr::Literal(Number::new(value).expect("finite"))
}

fn call(function: Function, x: Expr) -> Expr {
    Expr::Call(function, vec![x])
}

#[test]
fn the_names_are_the_users() {
    let gate = parse("silu(x @ w_gate) * (x @ w_up)");
    let [a, b1, b2] = ["x", "w_gate", "w_up"].map(str::to_owned);
    assert_eq!(gate.source, GateSource { a, b1, b2: Some(b2) });
    assert_eq!(gate.expr, call(Function::Silu, p1()).binary(BinaryOp::Mul, p2()));
    assert_eq!(gate.to_string(), "silu(x @ w_gate) * (x @ w_up)");
}

#[test]
fn one_product_is_a_gemm() {
    let gate = parse("alpha * (x @ w) + bias[n] + residual[m, n]");
    assert_eq!(gate.source, GateSource { a: "x".into(), b1: "w".into(), b2: None });
    assert_eq!(gate.expr.operation(), Operation::Gemm);
    let vector = |name: &str, axis| GateVector { name: name.to_owned(), axis };
    assert_eq!(gate.expr.vectors(), [vector("bias", Axis::N), vector("residual", Axis::MN)]);
    assert_eq!(gate.to_string(), "alpha * (x @ w) + bias[n] + residual[m, n]");
    assert_eq!(parse("relu(A @ B) * relu(A @ B)").expr.operation(), Operation::Gemm);
    assert_eq!(parse("silu(A @ B1) * (A @ B2)").expr.operation(), Operation::DualGemm);
    // What it is written as with the standard names is read back.
    let text = gate.expr.to_string();
    assert_eq!(text, "alpha * (A @ B) + bias[n] + residual[m, n]");
    assert_eq!(parse(&text).expr, gate.expr);
}

#[test]
fn the_first_product_is_the_first_in_reading_order() {
    let gate = parse("(A @ B2) * silu(A @ B1)");
    assert_eq!((gate.source.b1.as_str(), gate.source.b2.as_deref()), ("B2", Some("B1")));
    assert_eq!(gate.expr, p1().binary(BinaryOp::Mul, call(Function::Silu, p2())));
}

#[test]
fn products_bind_tighter_than_factors_and_may_be_repeated() {
    let gate = parse("A @ B1 * A @ B2 - -A @ B1 / 2");
    let product = p1().binary(BinaryOp::Mul, p2());
    let quotient = Expr::Neg(Box::new(p1())).binary(BinaryOp::Div, lit(2.0));
    assert_eq!(gate.expr, product.binary(BinaryOp::Sub, quotient));
}

#[test]
fn numbers_may_be_integers_signed_suffixed_or_scientific() {
    let gate = parse("clamp(A @ B1, -7, 7f32) * (A @ B2 + 1e-3) * 1_0.5");
    assert_eq!(gate.to_string(), "clamp(A @ B1, -7.0, 7.0) * ((A @ B2) + 0.001) * 10.5");
}

#[test]
fn other_names_are_scalars_in_order_of_appearance() {
    let gate = parse("silu(beta * (A @ B1)) * (alpha * (A @ B2)) + beta");
    assert_eq!(gate.expr.scalars(), ["beta", "alpha"]);
}

#[test]
fn names_with_an_index_are_vectors_in_order_of_appearance() {
    let text = "silu(s[m] * (A @ B1) + b1[n]) * (s[m] * (A @ B2) * w[ n ])";
    let gate = parse(text);
    assert_eq!(gate.to_string(), "silu(s[m] * (A @ B1) + b1[n]) * (s[m] * (A @ B2) * w[n])");
    let vector = |name: &str, axis| GateVector { name: name.into(), axis };
    assert_eq!(gate.expr.vectors(), [vector("s", Axis::M), vector("b1", Axis::N), vector("w", Axis::N)]);
    assert!(gate.expr.scalars().is_empty());
    assert_eq!(parse("(A @ B1 + n[n]) * (A @ B2) * m").expr.vectors(), [vector("n", Axis::N)]);
}

#[test]
fn vectors_have_one_axis_and_a_name_of_their_own() {
    refused("silu(A @ B1 + b[k]) * (A @ B2)", "                ^", "`b[n]` for an element a column");
    refused("silu(A @ B1 + b[]) * (A @ B2)", "               ^^", "`b[m]` for one a row");
    refused("silu(A @ B1 + b[n, m]) * (A @ B2)", "                ^^^^", "`b[n, m]` is no vector or matrix");
    refused("silu(A @ B1 + b[0]) * (A @ B2)", "                ^", "`b[0]` is no vector");
    refused("silu(A @ B1 + B1[n]) * (A @ B2)", "              ^^", "is a matrix, in `A @ B1`");
    refused("silu(A[m] @ B1) * (A @ B2)", "          ^", "names of matrices");
    refused("silu(A @ B1) * (A @ B2) * silu[n]", "                          ^^^^", "`silu(x)`");
    refused("silu(b * (A @ B1)) * (A @ B2 + b[n])", "                               ^", "a scalar elsewhere");
    refused(
        "silu(A @ B1 + b[n]) * (A @ B2 + b[m])",
        "                                ^",
        "has an element a column in `b[n]`, and here one a row",
    );
    refused("b[n] * 2", "^", "the gate has no product");
    refused("[n] * (A @ B1) * (A @ B2)", "^", "a vector (`b[n]`)");
    let many: Vec<String> = (0..=MAX_VECTORS).map(|i| format!("v{i}[n]")).collect();
    let fits = format!("(A @ B1) * (A @ B2) * {}", many[1..].join(" * "));
    assert_eq!(parse(&fits).expr.vectors().len(), MAX_VECTORS);
    let error = format!("{fits} * {}", many[0]).parse::<Gate>().expect_err("one too many");
    assert!(error.message.contains("at most 4 with an element a column"), "{error}");
    assert_eq!(error.columns.end - error.columns.start, 2);
}

#[test]
fn elements_of_vectors_reach_the_evaluator_by_position() {
    let expr = parse("(s[m] * (A @ B1) + b[n]) * (A @ B2 - s[m])").expr;
    let evaluator = expr.evaluator(&[]).expect("it has no scalars");
    assert_eq!(evaluator.eval_at(5.0, 7.0, |i| [2.0, 3.0][i]), 13.0 * 5.0);
    assert!(evaluator.eval(5.0, 7.0).is_nan(), "there is nothing to read them from");
}

#[test]
fn builtins_parse_and_print_as_they_are_written() {
    for builtin in &BUILTINS {
        assert_eq!(parse(builtin.source).to_string(), builtin.source, "{}", builtin.name);
    }
}

/// Asserts that `text` is refused with a message that has `message`, at the place that the line
/// `carets` marks.
fn refused(text: &str, carets: &str, message: &str) {
    let Err(error) = text.parse::<Gate>() else { panic!("accepted: {text}") };
    let shown = error.to_string();
    assert!(error.message.contains(message), "{shown}\n  should say: {message}");
    let start = carets.chars().take_while(|c| *c == ' ').count();
    let end = carets.chars().count();
    assert_eq!(error.columns, start..end, "{shown}\n  should mark:\n  {carets}");
    assert!(shown.lines().last().is_some_and(|l| l.starts_with("  ")), "{shown}");
}

#[test]
fn operands_of_the_products_have_to_fit() {
    refused("silu(A @ A) * (A @ B2)", "         ^", "`A` is used on both sides of `@`");
    refused(
        "silu(A @ B1) * (B1 @ B2)",
        "                ^^",
        "`B1` is used on both sides: it is the right operand of `A @ B1` already",
    );
    refused("silu(A @ B1) * (A @ B2) + A @ A", "                              ^", "both sides of `@`");
    refused(
        "silu(A @ B1) * (X @ B2)",
        "                ^",
        "the left operand is `A` in the first product and `X` here",
    );
    refused(
        "silu(A @ B1) * (A @ B2) + (A @ B3)",
        "                               ^^",
        "third right operand, after `B1` and `B2`",
    );
    refused("silu(alpha) * 2", "     ^^^^^", "the gate has no product, such as `A @ B`");
    refused("2 * 3", "^", "the gate has no product");
}

#[test]
fn matrices_and_functions_are_not_values() {
    refused("silu(A) * (A @ B2) * (A @ B1)", "     ^", "`A` is a matrix");
    refused("silu(A @ B1) * (A @ B2) * B1", "                          ^^", "as in `A @ B1`");
    refused("silu * (A @ B1) * (A @ B2)", "^^^^", "call it: `silu(x)`");
}

#[test]
fn malformed_products() {
    refused("silu(A @ B @ C) * (A @ D)", "           ^", "`@` cannot be chained");
    refused("silu(@ B1) * (A @ B2)", "     ^", "`@` has no left operand");
    refused("silu(A @) * (A @ B2)", "        ^", "after `A @`");
    refused("silu(A @ 2) * (A @ B2)", "         ^", "after `A @`");
    refused("(A + 1) @ B1 * (A @ B2)", "        ^", "names of matrices");
    refused("silu(A @ f(B1)) * (A @ B2)", "         ^", "cannot be an operand");
}

#[test]
fn names_are_ptx_identifiers_too() {
    refused("größe * (A @ B1) * (A @ B2)", "^^^^^", "cannot be a name in PTX");
    refused("silu(r#A @ B1) * (A @ B2)", "     ^^^", "no `r#`");
    refused("silu(A @ in) * (A @ B2)", "         ^^", "the name of a matrix");
    refused("type * (A @ B1) * (A @ B2)", "^^^^", "expected a product");
}

#[test]
fn functions_are_known_and_get_their_arguments() {
    refused("sliu(A @ B1) * (A @ B2)", "^^^^", "did you mean `silu`?");
    refused("swish(A @ B1) * (A @ B2)", "^^^^^", "did you mean `silu`?");
    refused("gelu_tan(A @ B1) * (A @ B2)", "^^^^^^^^", "did you mean `gelu_tanh`?");
    refused("erfinv(A @ B1) * (A @ B2)", "^^^^^^", "unknown function `erfinv`; the functions are");
    refused(
        "clamp(A @ B1, 7.0) * (A @ B2)",
        "^^^^^^^^^^^^^^^^^^",
        "`clamp` takes 3 arguments, (x, low, high), and has 2",
    );
    refused("silu(A @ B1, 2) * (A @ B2)", "^^^^^^^^^^^^^^^", "`silu` takes 1 argument, (x)");
    refused("min() * (A @ B2)", "^^^^^", "has 0");
}

#[test]
fn literals_are_numbers_of_f32() {
    refused("(A @ B1) * (A @ B2) * true", "                      ^^^^", "`true` is not a number");
    refused("(A @ B1) * (A @ B2) * \"x\"", "                      ^^^", "is not a number");
    refused("(A @ B1) * (A @ B2) * 0x10", "                      ^^^^", "not decimal");
    refused("(A @ B1) * (A @ B2) * 1.0f64", "                      ^^^^^^", "suffix `f64`");
    refused("(A @ B1) * (A @ B2) * 1e39", "                      ^^^^", "overflows f32");
}

#[test]
fn syntax_errors_point_at_the_token() {
    refused("", "", "the gate is empty");
    refused("silu(A @ B1) *", "             ^", "expected an operand");
    refused("silu(A @ B1) (A @ B2)", "             ^", "expected `+`, `-`, `*`, `/`");
    refused("silu(A @ B1 + ) * (A @ B2)", "              ^", "expected an operand");
    refused("silu(A @ B1) ** (A @ B2)", "              ^", "expected a product");
    refused("silu(A @ B1 B2) * (A @ B2)", "            ^^", "or `)`");
    refused("silu(A @ B1)) * (A @ B2)", "            ^", "unmatched bracket");
    refused("() * (A @ B2)", "^", "empty");
    refused("silu(A @ B1) * (A @ B2), 3", "                       ^", "the end of the gate");
    // Two lines count as one, so that the carets line up.
    refused("silu(A @ B1)\n  * (A @ A)", "                      ^", "both sides");
}

#[test]
fn absurd_input_is_refused_and_does_not_exhaust_the_stack() {
    let deep = format!("{}A @ B1{} * (A @ B2)", "(".repeat(200_000), ")".repeat(200_000));
    assert!(deep.parse::<Gate>().is_err_and(|e| e.message.contains("nests deeper")));
    let signs = format!("{}(A @ B1) * (A @ B2)", "-".repeat(60_000));
    assert!(signs.parse::<Gate>().is_err_and(|e| e.message.contains("nests deeper")));
    let long = format!("(A @ B1) * (A @ B2){}", " + 1".repeat(16_000));
    assert!(long.parse::<Gate>().is_err_and(|e| e.message.contains("more than 1024")));
    let fits = format!("(A @ B1) * (A @ B2){}", " + 1".repeat((MAX_NODES - 3) / 2));
    assert!(fits.parse::<Gate>().is_ok_and(|g| g.expr.split().is_some()));
}

proptest! {
    #[test]
    fn display_parses_back(expr in any_gate(any::<f32>())) {
        let text = expr.to_string();
        let back = text.parse::<Gate>().map_err(|e| TestCaseError::fail(e.to_string()))?;
        prop_assert_eq!(&back.expr, &expr, "{}", text);
        prop_assert_eq!(back.to_string(), text);
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in "[ABsilugen@*/+().,0-9 \\-\"'{\\[é]{0,40}") {
        let _ = text.parse::<Gate>();
    }

    #[test]
    fn split_and_canonical_form_keep_the_value(
        expr in any_gate(-8.0..8.0f32), g in -3.0..3.0f64, u in -3.0..3.0f64,
    ) {
        let scalars = expr.scalars();
        let bound: Vec<_> = scalars.iter().enumerate()
            .map(|(i, n)| (n.as_str(), 0.25 + i as f64)).collect();
        let eval = |expr: &Expr, g: f64, u: f64, scalars: &[(&str, f64)]| {
            let vectors = expr.vectors();
            // By name and axis, in whatever order a part of the gate has them.
            let element = |i: usize| match (vectors[i].name.as_str(), vectors[i].axis) {
                (name, Axis::M) => 0.75 + f64::from(u8::from(name == "Mb")),
                (name, Axis::N) => -1.25 - f64::from(u8::from(name == "Nb")),
                (_, Axis::MN) => 0.5,
            };
            expr.evaluator(scalars).expect("all scalars are bound").eval_at(g, u, element)
        };
        let whole = eval(&expr, g, u, &bound);
        let close = |x: f64| {
            x == whole || (x - whole).abs() <= 1e-6 * whole.abs().max(1.0)
                || x.is_nan() && whole.is_nan()
        };
        let split = expr.split().expect("both products are used");
        prop_assert!(!split.early.uses(Product::Second));
        let carried = eval(&split.early, g, f64::NAN, &bound);
        let late = eval(&split.late, carried, u, &bound);
        if !whole.is_finite() || !carried.is_finite() || whole.abs() > 1e12 {
            // Few; infinities and cancellation make the order of operations matter.
            return Ok(());
        }
        prop_assert!(close(late), "{expr}: {whole} whole, {late} split");

        let (canonical, names) = expr.canonical();
        let renamed: Vec<_> = names.iter().enumerate()
            .map(|(i, n)| (format!("s{i}"), bound.iter().find(|(b, _)| b == n).expect("known").1))
            .collect();
        let renamed: Vec<_> = renamed.iter().map(|(n, v)| (n.as_str(), *v)).collect();
        let value = eval(&canonical, g, u, &renamed);
        prop_assert!(close(value), "{expr}: {whole}, canonical {canonical}: {value}");
        prop_assert_eq!(canonical.canonical().0, canonical);
    }
}

#[test]
fn steps_in_f32_lose_what_large_terms_cancel() {
    let expr = parse("alpha * (A @ B) + b[n] + r[m, n]").expr;
    let evaluator = expr.evaluator(&[("alpha", 1.0)]).unwrap();
    let (first, terms) = (1.0 / 3.0, [0.7f32, -1.033_333_3]);
    let element = |i: usize| f64::from(terms[i]);
    let exact = evaluator.eval_at(first, f64::NAN, element);
    let lost = (f64::from(first as f32 + terms[0] + terms[1]) - exact).abs();
    let bound = evaluator.rounding_at(first, f64::NAN, element);
    assert!(lost < bound && bound < 1e-6 && bound > 1e-3 * exact.abs(), "{lost}, {bound}, {exact}");
    // Nothing is lost where nothing is computed; a function passes on what its argument lacks.
    let bound = |text: &str| {
        let expr = parse(text).expr;
        expr.evaluator(&[]).unwrap().rounding_at(3.0, 5.0, |_| f64::NAN)
    };
    assert_eq!(bound("A @ B1"), 0.0);
    let product = bound("silu(A @ B1) * (A @ B2)");
    assert!((1e-6..1e-4).contains(&product), "{product}");
}
