//! The random numbers of one row: streams, distributions, and the filling of codes and scale factors row by row.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use rayon::prelude::*;
use silumin_codegen::problem::{ByteScale, ElementKind, OperandFormat, ScaleFormat};
use silumin_formats::{code_bytes, e4m3, element, ue8m0};

use super::Tensor;

/// Packed codes and scales of a matrix, row-major.
pub(super) type Parts = (Vec<u8>, Vec<u8>);

/// Fills codes and scales, row by row. For f32 factors, a row's scales are the powers of two of ue8m0, multiplied by 0.75 to 1.25
/// later; where several rows share a factor, it is that of the first.
pub(super) fn fill_rows(
    format: OperandFormat,
    rows: usize,
    k: usize,
    fill: impl Fn(usize, &mut [u8], &mut [u8]) + Sync,
) -> Parts {
    let row_bytes = code_bytes(format, k);
    let columns = format.spec().scales.map_or(0, |scales| k / scales.block as usize);
    let mut codes = vec![0; rows * row_bytes];
    let mut scales = vec![0; rows * columns];
    if columns == 0 {
        codes.par_chunks_exact_mut(row_bytes).enumerate().for_each(|(row, codes)| fill(row, codes, &mut []));
    } else {
        codes
            .par_chunks_exact_mut(row_bytes)
            .zip(scales.par_chunks_exact_mut(columns))
            .enumerate()
            .for_each(|(row, (codes, scales))| fill(row, codes, scales));
    }
    if let Some(spec) = format.spec().scales.filter(|spec| !spec.format.in_mma()) {
        let of_row = |(block, codes): (usize, &[u8])| {
            let factor = move |(column, code): (usize, &u8)| wide_factor(*code, block, column).to_le_bytes();
            codes.iter().enumerate().flat_map(factor).collect::<Vec<u8>>()
        };
        let rows = scales.chunks(columns.max(1)).step_by(spec.rows as usize);
        scales = rows.enumerate().flat_map(of_row).collect();
    }
    (codes, scales)
}

/// An f32 scale factor near the power of two of a ue8m0 code: 0.75 to 1.25 times it, by its place.
pub(super) fn wide_factor(code: u8, row: usize, column: usize) -> f32 {
    let mut rng = ChaCha8Rng::seed_from_u64(u64::from(code));
    rng.set_stream(((row as u64) << 32) | column as u64);
    (f64::from(ue8m0::decode(code)) * (0.75 + f64::from(unit(&mut rng)) / 2.0)) as f32
}

/// The random stream of one row of one tensor.
pub(super) fn stream(seed: u64, tensor: Tensor, row: usize) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(((tensor as u64) << 56) | row as u64);
    rng
}

/// Draws one row of [`Distribution::Benchmark`](super::Distribution::Benchmark).
pub(super) fn benchmark_row(
    format: OperandFormat,
    rng: &mut ChaCha8Rng,
    codes: &mut [u8],
    scales: &mut [u8],
) {
    let spec = format.spec();
    let deviation = if spec.scales.is_some() { 1.5 } else { 0.5 };
    match spec.element {
        ElementKind::E2m1 => benchmark_codes(rng, codes),
        kind @ (ElementKind::E4m3 | ElementKind::E5m2) => {
            codes.fill_with(|| element::encode(kind, deviation * bell(rng)) as u8);
        }
        kind @ (ElementKind::Bf16 | ElementKind::F16) => {
            for bytes in codes.as_chunks_mut::<2>().0 {
                *bytes = element::encode(kind, deviation * bell(rng)).to_le_bytes();
            }
        }
    }
    match spec.scales.map(|scales| scales.format) {
        Some(ScaleFormat::Byte(ByteScale::Ue4m3)) => scales.fill_with(|| e4m3::encode(unit(rng))),
        Some(ScaleFormat::Byte(ByteScale::Ue8m0) | ScaleFormat::F32) => {
            scales.fill_with(|| ue8m0::encode_toward_zero(unit(rng)))
        }
        None => {}
    }
}

/// An approximately standard normal number, the sum of four uniform 16-bit numbers; much faster than [`normal`] for
/// millions of draws.
pub(super) fn bell(rng: &mut ChaCha8Rng) -> f32 {
    let bits = rng.next_u64();
    let sum = (0..4).map(|part| (bits >> (16 * part)) as i32 & 0xFFFF).sum::<i32>() - 2 * 0xFFFF;
    // The variance of one is (2^32 - 1) / 12.
    sum as f32 / 37_837.227
}

/// Draws bytes uniform in 0..=254 and clears bits 2 and 6.
pub(super) fn benchmark_codes(rng: &mut ChaCha8Rng, codes: &mut [u8]) {
    rng.fill_bytes(codes);
    for byte in codes {
        while *byte == 255 {
            *byte = rng.next_u32() as u8;
        }
        *byte &= 0xBB;
    }
}

/// A uniform number in [0, 1), a multiple of 2^-24.
pub(super) fn unit(rng: &mut ChaCha8Rng) -> f32 {
    (rng.next_u32() >> 8) as f32 / (1 << 24) as f32
}

/// A uniform integer in 0..bound for a small bound. The 64-bit product's bias is far below what a test could detect.
pub(super) fn below(rng: &mut ChaCha8Rng, bound: usize) -> usize {
    ((u128::from(rng.next_u64()) * bound as u128) >> 64) as usize
}

/// A standard normal number, by the Box-Muller transform.
pub(super) fn normal(rng: &mut ChaCha8Rng) -> f64 {
    // 1 - u is in (0, 1], so that the logarithm is finite.
    let radius = (-2.0 * f64::from(1.0 - unit(rng)).ln()).sqrt();
    radius * (std::f64::consts::TAU * f64::from(unit(rng))).cos()
}
