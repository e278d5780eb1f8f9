//! The gate language: what it accepts, what it refuses, and where it points.

#[path = "gate_common/exprs.rs"]
mod exprs;

use exprs::any_gate;
use proptest::prelude::*;
use silumin_codegen::gate::{
    BUILTINS, BinaryOp, Expr, Function, Gate, GateSource, MAX_NODES, Number, Product,
};

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
    assert_eq!(gate.source, GateSource { a, b1, b2 });
    assert_eq!(gate.expr, call(Function::Silu, p1()).binary(BinaryOp::Mul, p2()));
    assert_eq!(gate.to_string(), "silu(x @ w_gate) * (x @ w_up)");
}

#[test]
fn the_first_product_is_the_first_in_reading_order() {
    let gate = parse("(A @ B2) * silu(A @ B1)");
    assert_eq!((gate.source.b1.as_str(), gate.source.b2.as_str()), ("B2", "B1"));
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
    refused("silu(A @ B1) * (A @ B1)", "                    ^^", "the only product, written twice");
    refused("silu(A @ B1)", "     ^^^^^^", "the gate has one product, `A @ B1`");
    refused("silu(alpha) * 2", "     ^^^^^", "the gate has no product `A @ B1`");
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
    refused("erfinv(A @ B1) * (A @ B2)", "^^^^^^", "unknown function `erfinv`. The functions are");
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
    refused("silu(A @ B1) *", "              ", "expected an operand");
    refused("silu(A @ B1) (A @ B2)", "             ^", "expected `+`, `-`, `*`, `/`");
    refused("silu(A @ B1 + ) * (A @ B2)", "              ^", "expected an operand");
    refused("silu(A @ B1) ** (A @ B2)", "              ^", "expected a product");
    refused("silu(A @ B1 B2) * (A @ B2)", "            ^^", "or `)`");
    refused("silu(A @ B1)) * (A @ B2)", "            ^", "unmatched bracket");
    refused("() * (A @ B2)", "^", "empty");
    refused("silu(A @ B1) * (A @ B2), 3", "                       ^", "the end of the gate");
    // Two lines count as one, so that the carets line up.
    refused("silu(A @ B1)\n  * (A @ B1)", "                      ^^", "written twice");
}

#[test]
fn absurd_input_is_refused_and_does_not_exhaust_the_stack() {
    let deep = format!("{}A @ B1{} * (A @ B2)", "(".repeat(200_000), ")".repeat(200_000));
    assert!(deep.parse::<Gate>().is_err_and(|e| e.message.contains("nests deeper")));
    let signs = format!("{}(A @ B1) * (A @ B2)", "-".repeat(200_000));
    assert!(signs.parse::<Gate>().is_err_and(|e| e.message.contains("nests deeper")));
    let long = format!("(A @ B1) * (A @ B2){}", " + 1".repeat(100_000));
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
        let whole = expr.eval(g, u, &bound).expect("all scalars are bound");
        let close = |x: f64| {
            x == whole || (x - whole).abs() <= 1e-6 * whole.abs().max(1.0)
                || x.is_nan() && whole.is_nan()
        };
        let split = expr.split().expect("both products are used");
        prop_assert!(!split.early.uses(Product::Second));
        let carried = split.early.eval(g, f64::NAN, &bound).expect("bound");
        let late = split.late.eval(carried, u, &bound).expect("bound");
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
        let value = canonical.eval(g, u, &renamed).expect("bound");
        prop_assert!(close(value), "{expr}: {whole}, canonical {canonical}: {value}");
        prop_assert_eq!(canonical.canonical().0, canonical);
    }
}
