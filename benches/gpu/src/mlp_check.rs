//! Checks the result of an MLP block: computes some tokens in f64, and rounds or quantises x and the middle as the block does.

use silumin_formats::Matrix;
use silumin_runtime::mlp::Mlp;

use crate::mlp::words;

/// Weights of a block on the host: gate and up `[features, hidden]`, down `[hidden, features]`.
pub struct Host {
    pub gate: Matrix,
    pub up: Matrix,
    pub down: Matrix,
}

/// Numbers of bf16, two bytes each.
pub fn values(bytes: &[u8]) -> Vec<f64> {
    bytes.as_chunks::<2>().0.iter().map(|pair| half::bf16::from_le_bytes(*pair).to_f64()).collect()
}

/// The block in f64 for rows of bf16 x and of what is added, `[tokens, hidden]` each.
///
/// # Errors
/// What the reference says of the sizes.
pub fn reference(mlp: &Mlp, host: &Host, x: &[u8], residual: &[u8]) -> Result<Vec<f64>, String> {
    let x: Vec<f32> = values(x).into_iter().map(|value| value as f32).collect();
    let down = mlp.reference(&host.weights()?, &x).map_err(words)?;
    Ok(down.iter().zip(values(residual)).map(|(down, residual)| down + residual).collect())
}
