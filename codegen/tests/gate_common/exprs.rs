//! Arbitrary gates.

use proptest::prelude::*;
use silumin_codegen::gate::functions::FUNCTIONS;
use silumin_codegen::gate::{Axis, BinaryOp, Expr, Function, Number, Product};

/// Any expression, products and all, with literals out of `literals`.
fn any_expr(literals: impl Strategy<Value = f32> + 'static) -> impl Strategy<Value = Expr> {
    let leaf = prop_oneof![
        Just(Expr::Product(Product::First)),
        Just(Expr::Product(Product::Second)),
        "[a-z][a-z0-9_]{0,5}"
            .prop_filter("a name that means something else", |n| {
                Function::from_name(n).is_none() && syn::parse_str::<syn::Ident>(n).is_ok()
            })
            .prop_map(Expr::Scalar),
        // Capitals, so that no scalar has the name.
        "N[ab]".prop_map(|name| Expr::vector(name, Axis::N)),
        "M[ab]".prop_map(|name| Expr::vector(name, Axis::M)),
        literals.prop_filter_map("not finite", |x| Number::new(f64::from(x))).prop_map(Expr::Literal),
    ];
    leaf.prop_recursive(6, 60, 3, |inner| {
        let op =
            prop_oneof![Just(BinaryOp::Add), Just(BinaryOp::Sub), Just(BinaryOp::Mul), Just(BinaryOp::Div)];
        prop_oneof![
            inner.clone().prop_map(|x| Expr::Neg(Box::new(x))),
            (op, inner.clone(), inner.clone()).prop_map(|(op, x, y)| x.binary(op, y)),
            (0..FUNCTIONS.len(), prop::collection::vec(inner, 3)).prop_map(|(i, mut args)| {
                let row = &FUNCTIONS[i];
                args.truncate(row.parameters.len());
                Expr::Call(row.function, args)
            }),
        ]
    })
}

/// Any expression that a gate may be, with its first product first.
pub fn any_gate(literals: impl Strategy<Value = f32> + 'static) -> impl Strategy<Value = Expr> {
    any_expr(literals).prop_map(|e| {
        Expr::Product(Product::First)
            .binary(BinaryOp::Mul, Expr::Product(Product::Second))
            .binary(BinaryOp::Add, e)
    })
}
