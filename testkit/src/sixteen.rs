//! Activations in 16 bits: numbers to bytes and back.

use half::{bf16, f16};
use silumin::runtime::mlp::Source;

/// Values rounded to the format of activations, and their bytes.
pub fn rounded(source: Source, values: &[f32]) -> (Vec<f32>, Vec<u8>) {
    let round = |value: &f32| match source {
        Source::Bf16 => (bf16::from_f32(*value).to_f32(), bf16::from_f32(*value).to_bits()),
        Source::F16 => (f16::from_f32(*value).to_f32(), f16::from_f32(*value).to_bits()),
    };
    let (values, bits): (Vec<f32>, Vec<u16>) = values.iter().map(round).unzip();
    (values, bits.into_iter().flat_map(u16::to_le_bytes).collect())
}

/// The values of such bytes.
pub fn read(source: Source, bytes: &[u8]) -> Vec<f64> {
    let value = |pair: &[u8; 2]| match source {
        Source::Bf16 => bf16::from_le_bytes(*pair).to_f64(),
        Source::F16 => f16::from_le_bytes(*pair).to_f64(),
    };
    bytes.as_chunks::<2>().0.iter().map(value).collect()
}
