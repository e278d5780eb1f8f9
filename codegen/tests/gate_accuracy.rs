//! The f32 lowering of every function against its f64 evaluator, on the host model, with every
//! `approx` instruction pushed to the edges of what the PTX ISA allows it. The bounds are those
//! that `gate::functions` documents.

use silumin_codegen::gate::graph::{Graph, Node};
use silumin_codegen::gate::{Evaluator, Expr, Function, Product};

/// Half an ulp of 1.
const U: f64 = 1.0 / 16_777_216.0;

/// The smallest normal f32: what flushing and gradual underflow may cost.
const TINY: f64 = f32::MIN_POSITIVE as f64;

/// The result of an approximate instruction moved by its bound, `side` in -1..=1.
fn moved(node: &Node, exact: f32, side: f64) -> f32 {
    let bound = match node {
        Node::Ex2 { .. } | Node::Div(..) => 2.0_f64.powi(-22),
        Node::Rcp { .. } | Node::Sqrt(_) => 2.0_f64.powi(-23),
        Node::Lg2(_) if exact.abs() < 1.0 => {
            return (f64::from(exact) + side * 2.0_f64.powi(-22)) as f32;
        }
        Node::Lg2(_) => 2.0_f64.powi(-22),
        _ => 0.0,
    };
    (f64::from(exact) * (1.0 + side * bound)) as f32
}

/// The worst error of a function of one argument, in units of `bound(x, exact)`, and its place.
fn worst(
    function: Function,
    points: impl Iterator<Item = f32>,
    bound: impl Fn(f64, f64) -> f64,
) -> (f64, f32) {
    let expr = Expr::Call(function, vec![Expr::Product(Product::First)]);
    let graph = Graph::of(&expr);
    let evaluator: Evaluator = expr.evaluator(&[]).expect("it has no scalars");
    let mut worst = (0.0, 0.0);
    for x in points {
        let exact = evaluator.eval(f64::from(x), 0.0);
        for (power, rest) in [(1.0, 1.0), (1.0, -1.0), (-1.0, 1.0), (-1.0, -1.0), (0.0, 0.0)] {
            let result = graph.run(x, 0.0, &[], |node, value| {
                let side = if matches!(node, Node::Ex2 { .. }) { power } else { rest };
                moved(node, value, side)
            });
            let error = (f64::from(result) - exact).abs() / bound(f64::from(x), exact);
            assert!(!error.is_nan(), "{}({x}) = {result}, exactly {exact}", function.name());
            if error > worst.0 {
                worst = (error, x);
            }
        }
    }
    worst
}

/// Both signs of 2^low ..= 2^high, 512 points an octave; and 0.
fn sweep(low: i32, high: i32) -> impl Iterator<Item = f32> {
    let magnitudes = (low * 512..=high * 512).map(|i| 2.0_f64.powf(f64::from(i) / 512.0) as f32);
    std::iter::once(0.0).chain(magnitudes.flat_map(|x| [x, -x]))
}

fn check(function: Function, points: impl Iterator<Item = f32>, bound: impl Fn(f64, f64) -> f64) {
    let (error, x) = worst(function, points, bound);
    assert!(error <= 1.0, "{}({x}): {error:.3} of its documented bound", function.name());
    // A bound that nothing comes near says nothing.
    assert!(error > 0.5, "{}: at most {error:.3} of its bound", function.name());
}

#[test]
fn exp_is_within_its_bound() {
    check(Function::Exp, sweep(-20, 6).chain([88.0, -100.0]), |x, y| {
        y * (6.0 + 1.5 * x.abs()) * U + 2.0_f64.powi(-149)
    });
}

#[test]
fn log_is_within_its_bound() {
    check(Function::Log, sweep(-120, 120).filter(|x| *x > 0.0), |x, y| {
        if x > 0.5 && x < 2.0 { 4.0 * U } else { y.abs() * 8.0 * U }
    });
}

#[test]
fn sqrt_is_within_its_bound() {
    check(Function::Sqrt, sweep(-120, 120).filter(|x| *x >= 0.0), |_, y| y * 4.0 * U + TINY);
}

#[test]
fn square_is_within_its_bound() {
    check(Function::Square, sweep(-60, 60), |_, y| y * U + TINY);
}

#[test]
fn sigmoid_is_within_its_bound() {
    check(Function::Sigmoid, sweep(-30, 7), |x, y| y * (7.0 + 1.5 * x.abs()) * U + TINY);
}

#[test]
fn silu_is_within_its_bound() {
    check(Function::Silu, sweep(-30, 7), |x, y| {
        y.abs() * (8.0 + 1.5 * x.abs()) * U + if x < -87.3 { 1.1e-36 } else { TINY }
    });
}

#[test]
fn tanh_is_within_its_bound() {
    check(Function::Tanh, sweep(-60, 10), |_, y| y.abs() * 18.0 * U + TINY);
}

#[test]
fn gelu_is_within_its_bounds() {
    check(Function::Gelu, sweep(-30, 10), |x, y| {
        let growth = if x < 0.0 { 2.0 + x * x } else { 0.0 };
        y.abs() * (17.0 + growth) * U + TINY * x.abs().max(1.0)
    });
    check(Function::Gelu, sweep(-30, 10), |x, _| 2.0e-7 * x.max(1.0));
}

#[test]
fn gelu_tanh_is_within_its_bound() {
    check(Function::GeluTanh, sweep(-30, 4), |x, y| {
        let z = 0.79788 * (x + 0.044715 * x * x * x).abs();
        y.abs() * (8.0 + 5.0 * z) * U + TINY * x.abs().max(1.0)
    });
}

/// The value of a function of one argument on the host model, `approx` instructions exact.
fn at(function: Function, x: f32) -> f32 {
    let graph = Graph::of(&Expr::Call(function, vec![Expr::Product(Product::First)]));
    graph.run(x, 0.0, &[], |_, value| value)
}

#[test]
fn extremes_are_sensible() {
    let inf = f32::INFINITY;
    for (function, at_least, at_most) in [
        (Function::Sigmoid, 0.0, 1.0),
        (Function::Tanh, -1.0, 1.0),
        (Function::Exp, 0.0, inf),
        (Function::Relu, 0.0, inf),
    ] {
        assert_eq!((at(function, -inf), at(function, inf)), (at_least, at_most), "{function:?}");
        assert_eq!(
            (at(function, -1e30), at(function, f32::MAX)),
            (at_least, { if function == Function::Relu { f32::MAX } else { at_most } })
        );
    }
    for function in [Function::Silu, Function::Gelu, Function::GeluTanh] {
        assert_eq!(at(function, inf), inf, "{function:?}");
        assert_eq!(at(function, f32::MAX), f32::MAX, "{function:?}");
        for x in [-100.0, -1e5, -1e20, -f32::MAX] {
            assert_eq!(at(function, x), 0.0, "{function:?}({x})");
        }
        // x times a probability that is 0; PyTorch's have NaN here too.
        assert!(at(function, -inf).is_nan(), "{function:?}");
    }
}

#[test]
fn nan_is_passed_on_by_every_function_in_every_argument() {
    for row in &silumin_codegen::gate::functions::FUNCTIONS {
        for nan in 0..row.parameters.len() {
            let names = ["x", "y", "z"];
            let args = (0..row.parameters.len()).map(|i| Expr::scalar(names[i])).collect();
            let expr = Expr::Call(row.function, args);
            let values = [0, 1, 2].map(|i| if i == nan { f32::NAN } else { 1.0 });
            let lowered = Graph::of(&expr).run(0.0, 0.0, &values, |_, value| value);
            let bound = [0, 1, 2].map(|i| (names[i], f64::from(values[i])));
            let exact = expr.eval(0.0, 0.0, &bound).expect("all scalars are given");
            assert!(lowered.is_nan() && exact.is_nan(), "{}: argument {nan}", row.name);
        }
    }
}
