//! Seeded operands for a gated dual GEMM.
//!
//! - [`Distribution::Benchmark`]: what the public NVFP4 dual-GEMM benchmark draws;
//! - [`Distribution::Full`]: all codes of both formats, with scales planned in the private module
//!   `full`.
//!
//! Every row of every tensor has a random stream of its own, so that the bytes depend on shape,
//! distribution and seed only, not on threads; and a row does not depend on how many rows there are
//! in `Benchmark`. The generator is ChaCha8; bytes and floats are drawn from its words by formulas
//! written here, so that no other library's release changes them.

mod full;

use std::fmt;

use half::f16;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use rayon::prelude::*;
pub use silumin_codegen::problem::Shape;
use thiserror::Error;

use crate::format::{FormatError, Nvfp4Matrix, SCALE_BLOCK, checked_elements, e4m3, f16_from_f64};

/// What operands are drawn from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Distribution {
    /// The public benchmark's: codes are bytes uniform in 0..=254 with bits 2 and 6 cleared, which
    /// leaves the values 0, 0.5, 1 and 1.5 of both signs; scales are uniform in [0, 1) before they
    /// are rounded to e4m3; C holds standard normal numbers before the kernel runs. The numbers
    /// themselves differ from the benchmark's, which come from PyTorch's generator.
    Benchmark,
    /// Everything the formats hold: all 16 e2m1 codes with equal probability, and e4m3 scales over
    /// the whole finite range, 0 to 448 with the subnormals, drawn anew for every block of every
    /// row.
    ///
    /// Uniform scales would overflow f16 everywhere. Here scales are balanced along K: in a block
    /// where rows of A draw from large scales, rows of B draw from scales as much smaller, and the
    /// other way round, so that every block adds the same variance to every sum. Sums have a
    /// standard deviation of about 24 at any K, which is that of `Benchmark` at K = 7168: f32
    /// accumulation then keeps the benchmark's tolerance, and |C| stays in the range of f16.
    ///
    /// One row of A and up to three rows of B1 and B2 are aligned with each other, so that C holds
    /// one +inf, one -inf and one result of a gate far below zero (N >= 3): with any seed from K =
    /// 512 on, with nearly any from K = 256 on. From K = 32 on both A and B draw from the whole
    /// range of scales; whether a matrix holds each of the 127 codes is a matter of its size (a 256
    /// x 512 matrix does). C holds -62880, near which no answer but the rarest is, before the
    /// kernel runs.
    Full,
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Benchmark => "benchmark",
            Self::Full => "full",
        })
    }
}

/// What keeps operands from being drawn.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum InputsError {
    /// A dimension is zero.
    #[error("the problem {0} is empty: M, N and K have to be at least 1")]
    Empty(Shape),
    /// The operands are not NVFP4 matrices.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// C does not fit the address space.
    #[error("C of the problem {0} is larger than the address space: split it by rows")]
    TooLarge(Shape),
}

/// The operands of one dual GEMM.
#[derive(Debug, Clone, PartialEq)]
pub struct DualGemmInputs {
    /// `[M, K]`.
    pub a: Nvfp4Matrix,
    /// `[N, K]`, the operand of the gate.
    pub b1: Nvfp4Matrix,
    /// `[N, K]`, the operand of the up projection.
    pub b2: Nvfp4Matrix,
    shape: Shape,
    distribution: Distribution,
    seed: u64,
}

/// The tensors, as numbers of random streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tensor {
    A,
    B1,
    B2,
    C,
    Plan,
}

impl DualGemmInputs {
    /// Draws operands; the same arguments give the same bytes.
    ///
    /// ```
    /// use silumin_runtime::inputs::{Distribution, DualGemmInputs, Shape};
    /// # fn main() -> Result<(), silumin_runtime::inputs::InputsError> {
    /// let shape = Shape::new(5, 7, 64);
    /// let inputs = DualGemmInputs::generate(shape, Distribution::Full, 1111)?;
    /// assert_eq!((inputs.a.rows(), inputs.b1.rows(), inputs.b2.k()), (5, 7, 64));
    /// assert_eq!(inputs.initial_output().len(), 35);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// When a dimension is zero, K is not a multiple of 16 or a matrix does not fit.
    pub fn generate(shape: Shape, distribution: Distribution, seed: u64) -> Result<Self, InputsError> {
        let [m, n, k] = sizes(shape);
        if m == 0 || n == 0 || k == 0 {
            return Err(InputsError::Empty(shape));
        }
        checked_elements(m, k)?;
        checked_elements(n, k)?;
        if m.checked_mul(n).is_none_or(|area| area > isize::MAX as usize / 8) {
            return Err(InputsError::TooLarge(shape));
        }
        let [a, b1, b2] = match distribution {
            Distribution::Benchmark => {
                [(Tensor::A, m), (Tensor::B1, n), (Tensor::B2, n)].map(|(tensor, rows)| {
                    fill_rows(rows, k, |row, codes, scales| {
                        let mut rng = stream(seed, tensor, row);
                        benchmark_codes(&mut rng, codes);
                        scales.fill_with(|| e4m3::encode(unit(&mut rng)));
                    })
                })
            }
            Distribution::Full => full::generate(shape, seed),
        };
        let matrix = |rows, (codes, scales)| Nvfp4Matrix::new(rows, k, codes, scales, 1.0);
        Ok(Self { a: matrix(m, a)?, b1: matrix(n, b1)?, b2: matrix(n, b2)?, shape, distribution, seed })
    }

    /// The shape.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The seed they were drawn from.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// What C holds before the kernel runs, row-major `[M, N]`: anything but the answer, so that an
    /// element that no thread stores is a mismatch. See [`Distribution`].
    #[must_use]
    pub fn initial_output(&self) -> Vec<f16> {
        let [m, n, _] = sizes(self.shape);
        let mut c = vec![f16::ZERO; m * n];
        c.par_chunks_mut(n).enumerate().for_each(|(row, values)| match self.distribution {
            Distribution::Benchmark => {
                let mut rng = stream(self.seed, Tensor::C, row);
                values.fill_with(|| f16_from_f64(normal(&mut rng)));
            }
            Distribution::Full => values.fill(f16::from_bits(full::POISON)),
        });
        c
    }
}

/// M, N and K as lengths.
fn sizes(shape: Shape) -> [usize; 3] {
    [shape.m, shape.n, shape.k].map(|size| size as usize)
}

/// Packed codes and scales of a matrix, row-major.
type Parts = (Vec<u8>, Vec<u8>);

/// Fills `[rows, k / 2]` codes and `[rows, k / 16]` scales, row by row.
fn fill_rows(rows: usize, k: usize, fill: impl Fn(usize, &mut [u8], &mut [u8]) + Sync) -> Parts {
    let mut codes = vec![0; rows * k / 2];
    let mut scales = vec![0; rows * k / SCALE_BLOCK];
    codes
        .par_chunks_exact_mut(k / 2)
        .zip(scales.par_chunks_exact_mut(k / SCALE_BLOCK))
        .enumerate()
        .for_each(|(row, (codes, scales))| fill(row, codes, scales));
    (codes, scales)
}

/// The random stream of one row of one tensor.
fn stream(seed: u64, tensor: Tensor, row: usize) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(((tensor as u64) << 56) | row as u64);
    rng
}

/// Bytes uniform in 0..=254, then without bits 2 and 6.
fn benchmark_codes(rng: &mut ChaCha8Rng, codes: &mut [u8]) {
    rng.fill_bytes(codes);
    for byte in codes {
        while *byte == 255 {
            *byte = rng.next_u32() as u8;
        }
        *byte &= 0xBB;
    }
}

/// Uniform in [0, 1), a multiple of 2^-24.
fn unit(rng: &mut ChaCha8Rng) -> f32 {
    (rng.next_u32() >> 8) as f32 / (1 << 24) as f32
}

/// Uniform in 0..bound for a small bound; the bias of a 64-bit product is far below what a test
/// could see.
fn below(rng: &mut ChaCha8Rng, bound: usize) -> usize {
    ((u128::from(rng.next_u64()) * bound as u128) >> 64) as usize
}

/// Standard normal, by the Box-Muller transform.
fn normal(rng: &mut ChaCha8Rng) -> f64 {
    // 1 - u is in (0, 1], so that the logarithm is finite.
    let radius = (-2.0 * f64::from(1.0 - unit(rng)).ln()).sqrt();
    radius * (std::f64::consts::TAU * f64::from(unit(rng))).cos()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::fp4x2;

    const SHAPE: Shape = Shape::new(96, 128, 1024);

    fn benchmark() -> DualGemmInputs {
        DualGemmInputs::generate(SHAPE, Distribution::Benchmark, 1111).unwrap()
    }

    #[test]
    fn the_same_seed_gives_the_same_bytes_and_another_seed_others() {
        for distribution in [Distribution::Benchmark, Distribution::Full] {
            let draw = |seed| DualGemmInputs::generate(SHAPE, distribution, seed).unwrap();
            let first = draw(7);
            assert_eq!(first, draw(7));
            assert_eq!(first.initial_output(), draw(7).initial_output());
            let other = draw(8);
            assert_ne!(first.a, other.a);
            assert_ne!(first.b1, other.b1);
            assert_ne!(first.b1, first.b2);
            assert_ne!(first.a.codes()[..512], first.b1.codes()[..512]);
        }
    }

    #[test]
    fn bytes_are_pinned() {
        // A change here changes every recorded result that names a seed.
        let inputs = benchmark();
        assert_eq!(inputs.a.codes()[..8], [24, 147, 8, 144, 162, 152, 147, 162]);
        assert_eq!(inputs.a.scales()[..8], [54, 44, 12, 46, 33, 40, 49, 46]);
        let inputs = DualGemmInputs::generate(SHAPE, Distribution::Full, 1111).unwrap();
        assert_eq!(inputs.b2.codes()[..8], [127, 61, 88, 16, 227, 12, 78, 52]);
        assert_eq!(inputs.b2.scales()[..8], [76, 8, 1, 3, 22, 24, 123, 67]);
    }

    #[test]
    fn benchmark_codes_are_the_eight_small_values_in_equal_parts() {
        let inputs = benchmark();
        let mut counts = [0usize; 16];
        for &byte in inputs.b1.codes() {
            let (even, odd) = fp4x2::unpack(byte);
            counts[usize::from(even)] += 1;
            counts[usize::from(odd)] += 1;
        }
        let total: usize = counts.iter().sum();
        for (code, &count) in counts.iter().enumerate() {
            let expected = if code & 4 == 0 { total / 8 } else { 0 };
            assert!(count.abs_diff(expected) < total / 100, "code {code}: {count}");
        }
    }

    #[test]
    fn benchmark_scales_are_uniform_numbers_rounded_to_e4m3() {
        let inputs = benchmark();
        let scales: Vec<f64> = inputs.b1.scales().iter().map(|&s| f64::from(e4m3::decode(s))).collect();
        let count = scales.len() as f64;
        assert!(scales.iter().all(|s| (0.0..=1.0).contains(s)));
        let mean = scales.iter().sum::<f64>() / count;
        let square = scales.iter().map(|s| s * s).sum::<f64>() / count;
        // Of [0, 1): mean 1/2, mean square 1/3, and 1/32 of it rounds to 1.
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
        assert!((square - 1.0 / 3.0).abs() < 0.02, "{square}");
        let ones = scales.iter().filter(|&&s| s == 1.0).count() as f64 / count;
        assert!((ones - 1.0 / 32.0).abs() < 0.01, "{ones}");
        assert!(scales.iter().any(|&s| s > 0.0 && s < 1.0 / 64.0), "subnormals");
    }

    #[test]
    fn the_benchmark_poison_is_standard_normal() {
        let values: Vec<f64> = benchmark().initial_output().iter().map(|v| v.to_f64()).collect();
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let variance = values.iter().map(|v| v * v).sum::<f64>() / count;
        assert!(mean.abs() < 0.05 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
        let beyond = values.iter().filter(|v| v.abs() > 2.0).count() as f64 / count;
        assert!((beyond - 0.0455).abs() < 0.01, "{beyond}");
    }

    #[test]
    fn shapes_without_operands_are_refused() {
        let generate =
            |m, n, k| DualGemmInputs::generate(Shape { m, n, k }, Distribution::Full, 0).map(|_| ());
        assert!(matches!(generate(0, 1, 16), Err(InputsError::Empty(_))));
        assert!(matches!(generate(1, 0, 16), Err(InputsError::Empty(_))));
        assert!(matches!(generate(1, 1, 0), Err(InputsError::Empty(_))));
        assert_eq!(generate(1, 1, 40), Err(FormatError::KNotBlocked { k: 40 }.into()));
        let wide = u32::MAX;
        assert!(matches!(generate(wide, wide, 16), Err(InputsError::TooLarge(_))));
        assert_eq!(generate(1, 1, 16), Ok(()));
    }
}
