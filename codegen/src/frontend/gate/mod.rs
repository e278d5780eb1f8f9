//! The gate: any elementwise expression over one or two products, from the user's text to PTX.
//!
//! `silu(A @ B1) * (A @ B2)` is parsed ([`parse`](mod@parse), spans kept) into an [`Expr`], computed in f64
//! for the reference (`eval`), cut where the first accumulator is ready (`split`), taken to f32
//! primitives ([`graph`]) by the table of [`functions`], and becomes PTX text with holes for
//! registers (a [`Fragment`]): checked in for the [built-in gates](BUILTINS), made by LLVM with the
//! feature `llvm` for the others. Scales and biases of the products need no LLVM: they are plain
//! instructions in front of a built-in fragment (`affine`). Templates splice fragments; [`gate_code`] is
//! their entry.

mod affine;
mod builtin;
mod eval;
mod expr;
mod fragment;
pub mod functions;
pub mod graph;
#[cfg(feature = "llvm")]
pub mod lower;
pub mod parse;
mod shape;
mod split;

#[cfg(not(feature = "llvm"))]
use crate::problem::Operation;
pub(crate) use affine::pre_activation_code;
pub use builtin::{BUILTIN_WIDTH, BUILTINS, Builtin, GEMM_BUILTINS, builtin, builtin_gate};
pub use eval::{EvalError, Evaluator};
pub use expr::{Axis, BinaryOp, Expr, Gate, GateSource, GateVector, MAX_NODES, MAX_VECTORS, Number, Product};
pub use fragment::{Fragment, FragmentError};
pub use functions::Function;
pub use parse::GateParseError;
pub use split::Split;

/// The architectures a gate can be lowered for, with the PTX version LLVM is asked for: the least
/// that has the instructions used (`f32x2` arithmetic came with 8.6, sm_90a itself with 8.0).
pub static GATE_ARCHES: [(&str, u32); 2] = [("sm_100a", 86), ("sm_90a", 80)];

/// Widths a gate can be lowered at, in elements a splice.
pub static GATE_WIDTHS: [usize; 4] = [1, 2, 4, 8];

/// The PTX of a gate.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GateCode {
    /// Both accumulators to the result.
    pub whole: Fragment,
    /// The same in two steps; see [`Expr::split`]. `None` where the gate is built in but written
    /// with its products the other way round.
    pub split: Option<SplitCode>,
}

/// The two steps of a gate.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SplitCode {
    /// First accumulator to the carried value.
    pub early: Fragment,
    /// Carried value and second accumulator to the result.
    pub late: Fragment,
    /// The carried value is the first accumulator itself: `early` only copies it, so that there is
    /// nothing to gain by running it ahead.
    pub trivial: bool,
}

/// Why there is no code for a gate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GateError {
    /// Not built in, and this build has no LLVM.
    #[error(
        "the gate `{gate}` is not built in, and this build cannot lower it: enable the feature \
         `llvm` (it needs LLVM 22 with its static libraries at build time: packages llvm-22-dev and \
         libpolly-22-dev, found through LLVM_SYS_221_PREFIX), or write a built-in gate, its products \
         scaled and shifted as you like: {known}"
    )]
    NeedsLlvm {
        /// The gate.
        gate: String,
        /// The built-in gates, with their expressions.
        known: String,
    },
    /// Built in, but at another width.
    #[error(
        "the gate `{gate}` is built in at {BUILTIN_WIDTH} elements a splice, not {width}; use \
         {BUILTIN_WIDTH}, or enable the feature `llvm` (LLVM 22) to lower it afresh"
    )]
    BuiltinWidth {
        /// The gate.
        gate: String,
        /// The width asked for.
        width: usize,
    },
    /// No such architecture.
    #[error("gates are lowered for {known}, not for `{arch}`")]
    UnknownArch {
        /// The architecture asked for.
        arch: String,
        /// Those there are.
        known: String,
    },
    /// No such width.
    #[error("a fragment holds 1, 2, 4 or 8 elements, not {width}")]
    Width {
        /// The width asked for.
        width: usize,
    },
    /// The expression has no product, or the second alone.
    #[error("the gate `{gate}` has no first product")]
    NoProduct {
        /// The gate.
        gate: String,
    },
    /// LLVM refused, or printed what this crate does not know. Either is a bug of this crate.
    #[error("LLVM could not lower the gate `{gate}` for {arch}: {message}; please report this")]
    Llvm {
        /// The gate.
        gate: String,
        /// The architecture.
        arch: &'static str,
        /// What went wrong.
        message: String,
    },
}

/// The PTX of `expr` for `arch` (`sm_100a`, `sm_90a`), `width` elements a splice: checked in where
/// the gate is built in, from LLVM where the feature `llvm` is on.
///
/// # Errors
/// [`GateError`]; each says what would help.
pub fn gate_code(expr: &Expr, arch: &str, width: usize) -> Result<GateCode, GateError> {
    let Some(&(arch, _)) = GATE_ARCHES.iter().find(|(name, _)| *name == arch) else {
        let known = GATE_ARCHES.map(|(name, _)| name).join(", ");
        return Err(GateError::UnknownArch { arch: arch.to_owned(), known });
    };
    if !GATE_WIDTHS.contains(&width) {
        return Err(GateError::Width { width });
    }
    if !expr.uses(Product::First) {
        return Err(GateError::NoProduct { gate: expr.to_string() });
    }
    let known = builtin(expr, arch).or_else(|| affine::affine_builtin(expr, arch));
    match known {
        Some(code) if width == BUILTIN_WIDTH => Ok(code),
        _ => fresh(expr, arch, width, known.is_some()),
    }
}

#[cfg(feature = "llvm")]
fn fresh(expr: &Expr, arch: &'static str, width: usize, _: bool) -> Result<GateCode, GateError> {
    lower::lower_gate(expr, arch, width)
}

#[cfg(not(feature = "llvm"))]
fn fresh(expr: &Expr, _: &'static str, width: usize, is_builtin: bool) -> Result<GateCode, GateError> {
    let gate = expr.to_string();
    if is_builtin {
        return Err(GateError::BuiltinWidth { gate, width });
    }
    let known: &[Builtin] = match expr.operation() {
        Operation::DualGemm => &BUILTINS,
        Operation::Gemm => &GEMM_BUILTINS,
    };
    let known: Vec<_> = known.iter().map(|b| format!("{} = {}", b.name, b.source)).collect();
    Err(GateError::NeedsLlvm { gate, known: known.join("; ") })
}
