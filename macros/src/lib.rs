//! The `dual_gemm!` and `gemm!` macros of silumin. Use it through the facade crate `silumin`: what it expands to
//! names that crate.

#![forbid(unsafe_code)]

use proc_macro::TokenStream;
use silumin_codegen::problem::Operation;

/// A gated dual GEMM: an expression of type `silumin::DualGemm`, or items of it.
///
/// ```text
/// let swiglu = dual_gemm!(<nvfp4 -> f16> silu(A @ B1) * (A @ B2));
///
/// dual_gemm! {
///     /// The MLP's gate, with everything chosen by hand.
///     pub SwiGlu<A: nvfp4, B: nvfp4, C: f16, tile = [128, 128, 256], k_order = split_tail(2)>
///         = silu(A @ B1) * (A @ B2);
/// }
/// ```
///
/// The mathematics is an elementwise expression over two products that share their left operand:
/// `+`, `-`, `*`, `/`, numbers, the functions of `silumin::codegen::gate::functions`, and scalars, by any name,
/// that are arguments of each launch. So are vectors: `b[n]` has an element a column of the result, `s[m]` one a
/// row. A matrix, `r[m, n]`, has the shape of the result, in its format, or in bf16 if that has 4 or 8 bits. `A` is M x K; `B1` and `B2` are N x K, a row for each output
/// feature, as checkpoints have them; the result is M x N.
///
/// In the angle brackets, in any order, each once, all optional, the brackets included:
///
/// | entry | meaning |
/// |---|---|
/// | `nvfp4 -> f16` | formats of the operands and of the result |
/// | `A: nvfp4, B: nvfp4, C: f16` | the same, operand by operand, by the gate's names; any other name is the result's |
/// | `tile = [M, N, K]`, `stages = 4`, ... | the knobs of `silumin::codegen::config::Config`; `auto` where left out |
/// | `shape = [M, N, K]` | the only shape, so that everything is checked while compiling |
/// | `arch = sm_100a` | the chips, one or a list (`[sm_90a, sm_100a]`); all of them where left out |
///
/// An item is a static `LazyLock<DualGemm>`; its name is also that of its kernels.
///
/// # Errors
/// Whatever makes no kernel is an error of the compiler with the caret under what is wrong: with a
/// shape, also what does not fit that shape; without one, what fits none.
///
/// Gates that are not built in (`silumin::codegen::gate::BUILTINS`), whose products may be scaled and shifted, are lowered by LLVM 22 while the
/// macro expands, with silumin's feature `llvm`. The program that uses the macro links none of it.
#[proc_macro]
pub fn dual_gemm(input: TokenStream) -> TokenStream {
    silumin_codegen::dsl::expand(Operation::DualGemm, input.into()).into()
}

/// A GEMM with an elementwise epilogue: an expression of type `silumin::Gemm`, or items of it.
///
/// ```text
/// let down = gemm!(<nvfp4 -> bf16> alpha * (A @ B) + bias[n] + residual[m, n]);
/// ```
///
/// The language is that of [`dual_gemm!`](macro@dual_gemm), with one product. `A` is M x K, `B` is N x K, the result is
/// M x N. What is affine in the product needs no LLVM, nor do the activations of
/// `silumin::codegen::gate::GEMM_BUILTINS` over it.
///
/// # Errors
/// As [`dual_gemm!`](macro@dual_gemm); two products are an error that names `dual_gemm!`.
#[proc_macro]
pub fn gemm(input: TokenStream) -> TokenStream {
    silumin_codegen::dsl::expand(Operation::Gemm, input.into()).into()
}
