//! Checks the result of an MLP block: computes some tokens in f64, and rounds or quantises x and the middle as the block does.

use silumin_codegen::gate::Gate;
use silumin_codegen::problem::OperandFormat;
use silumin_formats::Matrix;
use silumin_formats::quantize::{TensorScale, quantize_to};
use silumin_runtime::mlp::{Activation, Mlp};
use silumin_verify::reference::gemm;

use crate::mlp::words;

/// Weights of a block on the host: gate and up `[features, hidden]`, down `[hidden, features]`.
pub struct Host {
    pub gate: Matrix,
    pub up: Matrix,
    pub down: Matrix,
}

/// Numbers of bf16, two bytes each.
pub fn values(bytes: &[u8]) -> impl Iterator<Item = f64> + '_ {
    bytes.as_chunks::<2>().0.iter().map(|pair| half::bf16::from_le_bytes(*pair).to_f64())
}

/// Norm of the difference over the norm of what is expected.
pub fn difference(got: impl Iterator<Item = f64>, expected: &[f64]) -> f64 {
    let (off, norm) = got.zip(expected).fold((0.0, 0.0), |(off, norm), (got, expected)| {
        (off + (got - expected).powi(2), norm + expected.powi(2))
    });
    (off / norm).sqrt()
}

/// The block in f64 for rows of bf16 x and of what is added, `[tokens, hidden]` each.
///
/// # Errors
/// What the reference says of the sizes.
pub fn reference(mlp: &Mlp, host: &Host, x: &[u8], residual: &[u8]) -> Result<Vec<f64>, String> {
    let tokens = x.len() / 2 / mlp.hidden();
    let [x_scale, middle_scale] = mlp.activation_scales();
    let matrix = |values: &[f32], k, scale| match mlp.quantises() {
        true => quantize_to(host.gate.format(), values, tokens, k, TensorScale::Fixed(scale)),
        false => quantize_to(OperandFormat::Bf16, values, tokens, k, TensorScale::One),
    };
    let x: Vec<f32> = values(x).map(|value| value as f32).collect();
    let x = matrix(&x, mlp.hidden(), x_scale).map_err(words)?;
    let (gates, ups) = rayon::join(|| gemm(&x, &host.gate), || gemm(&x, &host.up));
    let gate: Gate =
        format!("{}(A @ B1) * (A @ B2)", Activation::default().function()).parse().map_err(words)?;
    let gate = gate.expr.evaluator(&[]).map_err(words)?;
    let pairs = gates.map_err(words)?.into_iter().zip(ups.map_err(words)?);
    let middle: Vec<f32> = pairs.map(|(gate_x, up)| gate.eval(gate_x, up) as f32).collect();
    let middle = matrix(&middle, mlp.features(), middle_scale).map_err(words)?;
    let down = gemm(&middle, &host.down).map_err(words)?;
    Ok(down.iter().zip(values(residual)).map(|(down, residual)| down + residual).collect())
}
