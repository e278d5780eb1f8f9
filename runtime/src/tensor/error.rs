//! Errors of typed matrices.

use silumin_codegen::plan::Operand;
use silumin_codegen::problem::Problem;
use silumin_formats::FormatError;
use silumin_formats::layout::LayoutError;
use thiserror::Error;

use crate::device::DeviceError;

/// Why there is no such matrix, or why a kernel does not take it.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum TensorError {
    /// A matrix without rows or columns.
    #[error("a matrix of {rows} x {columns} has no elements: it has at least 1 row and 1 column")]
    Empty {
        /// Rows.
        rows: usize,
        /// Columns.
        columns: usize,
    },
    /// The bytes do not fit the address space.
    #[error("a matrix of {rows} x {columns} elements is larger than the address space: split it by rows")]
    TooLarge {
        /// Rows.
        rows: usize,
        /// Columns.
        columns: usize,
    },
    /// A slice or a buffer has another length than the matrix.
    #[error("a matrix of {rows} x {columns} has {expected} {unit}, and {given} were given: pass {expected}")]
    Length {
        /// Rows.
        rows: usize,
        /// Columns.
        columns: usize,
        /// What is counted.
        unit: &'static str,
        /// Required number.
        expected: usize,
        /// Given number.
        given: usize,
    },
    /// Parts of a matrix are on two devices.
    #[error("the elements are on {elements}, and the scale factors on {scales}: upload both to one device")]
    TwoDevices {
        /// The device of the elements.
        elements: String,
        /// The device of the scale factors.
        scales: String,
    },
    /// A matrix of the host has another format.
    #[error("the matrix is in {found}, and {expected} is taken: quantise it to {expected}")]
    OtherFormat {
        /// Its format.
        found: &'static str,
        /// What is taken.
        expected: &'static str,
    },
    /// The values cannot be quantised.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The scale factors have no blocked layout.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// Memory of the device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A matrix has another format than the kernel reads or writes.
    #[error(
        "`{operand}` is a matrix of {found}, and in the problem {problem} it is {expected}: upload it as {expected}, or load a kernel for {found}"
    )]
    OperandFormat {
        /// The matrix.
        operand: Operand,
        /// Its element.
        found: &'static str,
        /// The kernel's format.
        expected: &'static str,
        /// The problem that the kernel computes.
        problem: Problem,
    },
    /// A matrix has another shape than the kernel's.
    #[error("`{operand}` is {rows} x {columns}, and in the problem {problem} it is {expected_rows} x {expected_columns}{}", shape_help(*.operand))]
    OperandShape {
        /// The matrix.
        operand: Operand,
        /// Its rows.
        rows: usize,
        /// Its columns.
        columns: usize,
        /// The kernel's rows.
        expected_rows: u32,
        /// The kernel's columns.
        expected_columns: u32,
        /// The problem that the kernel computes.
        problem: Problem,
    },
    /// The kernel is for batches or groups of rows.
    #[error(
        "the problem {problem} has several matrices in each operand: make its arguments with Args::new and Matrix::buffer"
    )]
    Groups {
        /// The problem that the kernel computes.
        problem: Problem,
    },
    /// The kernel has one product and two weights are given, or the other way round.
    #[error(
        "the gate `{gate}` has {}: use LoadedKernel::{}", products(*.dual), method(*.dual)
    )]
    Products {
        /// The gate.
        gate: String,
        /// Whether the gate has two products.
        dual: bool,
    },
    /// The operands have scales of whole matrices, and nothing applies them.
    #[error(
        "the tensor scales of `{a}` and `{b}` multiply to {scale}, and the gate `{gate}` has no scalar to apply them: C would be wrong. \
         Scale each product, as in `alpha * (A @ B)`, and set alpha to a.tensor_scale() * b.tensor_scale(); or upload with TensorScale::One"
    )]
    UnappliedScale {
        /// The gate.
        gate: String,
        /// The left operand.
        a: Operand,
        /// The right operand.
        b: Operand,
        /// The product of their tensor scales.
        scale: f32,
    },
    /// C is memory that must not be written.
    #[error("C is a matrix of read-only memory, borrowed from another library: give one that can be written")]
    ReadOnly,
}

fn shape_help(operand: Operand) -> &'static str {
    match operand {
        Operand::A => " (without scale factors it may have fewer rows)",
        Operand::B1 | Operand::B2 => " (weights are [N, K], a row for each column of C)",
        _ => "",
    }
}

fn products(dual: bool) -> &'static str {
    if dual { "two products" } else { "one product" }
}

fn method(dual: bool) -> &'static str {
    if dual { "args" } else { "gemm_args" }
}
