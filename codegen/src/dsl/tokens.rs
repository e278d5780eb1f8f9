//! A [`Spec`] as the expression that makes it again: constructors of constants, nothing to parse
//! and nothing that can fail at run time. Paths start at `::silumin::codegen`, the facade's name
//! for this crate.

use crate::gate::{Expr, Fragment, Gate, GateCode, GateSource, GateVector, SplitCode};
use crate::problem::{Formats, Groups, PreactivationFormat, Shape};
use crate::spec::Spec;
use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use std::fmt::Debug;

/// The expression, of type `::silumin::codegen::spec::Spec`, whose value is `spec`.
pub fn spec_tokens(spec: &Spec) -> TokenStream {
    // Patterns name every field, here and below, so that a new one cannot be forgotten.
    let Spec { name, gate: mathematics, formats: stored, config, code } = spec;
    let (gate, formats) = (gate(mathematics), formats(stored));
    let code = code.iter().map(gate_code);
    quote! {
        ::silumin::codegen::spec::Spec {
            name: ::std::borrow::Cow::Borrowed(#name),
            gate: #gate,
            formats: #formats,
            config: #config,
            code: ::std::vec![#(#code),*],
        }
    }
}

/// The expression of type `::silumin::codegen::problem::Shape` whose value is `shape`.
pub(super) fn shape(shape: Shape) -> TokenStream {
    let Shape { m, n, k, groups } = shape;
    let one = quote!(::silumin::codegen::problem::Shape::new(#m, #n, #k));
    match groups {
        Groups::One => one,
        Groups::Batch(count) => quote!(#one.batch(#count)),
        Groups::Rows(count) => quote!(#one.grouped(#count)),
    }
}

/// `::silumin::codegen::MODULE::TYPE::VARIANT` for an enum's value without fields.
fn variant(module: &str, kind: &str, value: &impl Debug) -> TokenStream {
    let [module, kind, value] = [module, kind, &format!("{value:?}")].map(|name| format_ident!("{name}"));
    quote!(::silumin::codegen::#module::#kind::#value)
}

fn formats(formats: &Formats) -> TokenStream {
    let Formats { a, b, c, preactivations } = formats;
    let [a, b] = [a, b].map(|format| variant("problem", "OperandFormat", format));
    let c = variant("problem", "OutputFormat", c);
    let preactivations = match preactivations {
        None => quote!(::std::option::Option::None),
        Some(format @ (PreactivationFormat::F32 | PreactivationFormat::Bf16 | PreactivationFormat::F16)) => {
            let format = variant("problem", "PreactivationFormat", format);
            quote!(::std::option::Option::Some(#format))
        }
    };
    quote!(::silumin::codegen::problem::Formats { a: #a, b: #b, c: #c, preactivations: #preactivations })
}

fn gate(gate: &Gate) -> TokenStream {
    let Gate { source: GateSource { a, b1, b2 }, expr: mathematics } = gate;
    let expr = expr(mathematics);
    let b2 = match b2 {
        None => quote!(::std::option::Option::None),
        Some(b2) => quote!(::std::option::Option::Some(::std::string::String::from(#b2))),
    };
    quote! {
        ::silumin::codegen::gate::Gate {
            source: ::silumin::codegen::gate::GateSource {
                a: ::std::string::String::from(#a),
                b1: ::std::string::String::from(#b1),
                b2: #b2,
            },
            expr: #expr,
        }
    }
}

fn expr(node: &Expr) -> TokenStream {
    let path = quote!(::silumin::codegen::gate::Expr);
    match node {
        Expr::Product(product) => {
            let product = variant("gate", "Product", product);
            quote!(#path::Product(#product))
        }
        Expr::Scalar(name) => quote!(#path::Scalar(::std::string::String::from(#name))),
        Expr::Vector(GateVector { name, axis }) => {
            let axis = variant("gate", "Axis", axis);
            quote! {
                #path::Vector(::silumin::codegen::gate::GateVector {
                    name: ::std::string::String::from(#name),
                    axis: #axis,
                })
            }
        }
        Expr::Literal(number) => {
            // Literal tokens have no sign of their own.
            let sign = number.get().is_sign_negative().then(|| quote!(-));
            let magnitude = number.get().abs();
            quote!(#path::Literal(::silumin::codegen::gate::Number::nearest(#sign #magnitude)))
        }
        Expr::Neg(x) => {
            let x = expr(x);
            quote!(#path::Neg(::std::boxed::Box::new(#x)))
        }
        Expr::Binary(op, x, y) => {
            let (op, x, y) = (variant("gate", "BinaryOp", op), expr(x), expr(y));
            quote!(#path::Binary(#op, ::std::boxed::Box::new(#x), ::std::boxed::Box::new(#y)))
        }
        Expr::Call(function, arguments) => {
            let function = variant("gate", "Function", function);
            let arguments = arguments.iter().map(expr);
            quote!(#path::Call(#function, ::std::vec![#(#arguments),*]))
        }
    }
}

fn gate_code(code: &GateCode) -> TokenStream {
    let GateCode { whole, split } = code;
    let whole = fragment(whole);
    let split = match split {
        None => quote!(::std::option::Option::None),
        Some(SplitCode { early, late, trivial }) => {
            let (early, late) = (fragment(early), fragment(late));
            quote! {
                ::std::option::Option::Some(::silumin::codegen::gate::SplitCode {
                    early: #early,
                    late: #late,
                    trivial: #trivial,
                })
            }
        }
    };
    quote!(::silumin::codegen::gate::GateCode { whole: #whole, split: #split })
}

fn fragment(fragment: &Fragment) -> TokenStream {
    let Fragment { arch, width, inputs, outputs, scalars, vectors, text } = fragment;
    let vectors = vectors.iter().map(|GateVector { name, axis }| {
        let axis = variant("gate", "Axis", axis);
        quote!((#name, #axis))
    });
    quote! {
        ::silumin::codegen::gate::Fragment::from_static(
            #arch,
            #width,
            &[#(#inputs),*],
            &[#(#outputs),*],
            &[#(#scalars),*],
            &[#(#vectors),*],
            #text,
        )
    }
}
