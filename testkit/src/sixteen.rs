//! Activations in 16 bits: numbers drawn, to bytes and back.

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

/// Numbers of nearly normal distribution with mean 0 and standard deviation `size`, the same for the same seed.
#[must_use]
pub fn normal(count: usize, seed: u64, size: f64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut unit = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64 - 0.5
    };
    // Twelve uniform numbers have variance 1.
    (0..count).map(|_| ((0..12).map(|_| unit()).sum::<f64>() * size) as f32).collect()
}
