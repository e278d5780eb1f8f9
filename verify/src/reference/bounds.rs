//! Bounds on how far a right kernel's sums and gate may be from the reference.
//!
//! A kernel sums in fp32 on tensor cores and evaluates the gate in fp32. Per product,
//!
//! ```text
//! |sum' - sum| <= steps * 2^-23 * (|sum| + 2 sqrt(sum over blocks of |a|^2 |b|^2)) + 2^-20 |sum|
//! ```
//!
//! where a step is one MMA instruction, |a| and |b| are the norms of 16 elements of a row along K, and
//! the last term covers the gate's own rounding.
//!
//! A step aligns the terms and the accumulator to the largest of them, truncates them 25 bits below it,
//! and truncates the sum to fp32. 2^-23 of the bracket covers the truncation of the sum, and some terms
//! truncated in one direction. No term is larger than |a| |b| of its block. The accumulator stays within
//! the bracket except for sums whose blocks add up systematically: the root is the standard deviation
//! of a sum of the block norms with random signs. Worst-case bounds are useless at this depth (Higham
//! and Mary, "A new approach to probabilistic rounding error analysis", 2019).
//!
//! The bound of a result is the effect of these errors on the gate, evaluated at both ends of each
//! product's range, plus 2^-19 of the result, plus 2^-120 times both products for values flushed to zero, plus what the caller says
//! of the gate's own steps, whose errors stay where large terms cancel.

use rayon::prelude::*;
use silumin_codegen::problem::MmaKind;

use super::Operand;

/// Elements along K per block norm.
const BLOCK: usize = 16;

/// Error model of how a kernel sums over K.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Accumulation {
    /// Number of successive additions to an accumulator.
    pub steps: f64,
    /// Error of one addition, relative to the largest magnitude in it.
    pub step_error: f64,
}

impl Accumulation {
    /// Tensor memory of Blackwell: a step for each MMA instruction of K, and eight for kernels that add
    /// partial sums of a split K; see the module for the error of a step.
    #[must_use]
    pub fn tensor_core(kind: MmaKind, k: usize) -> Self {
        Self { steps: k.div_ceil(kind.mma_k() as usize) as f64 + 8.0, step_error: 2f64.powi(-23) }
    }

    /// Hopper's tensor core with 8-bit operands, whose sums are added to fp32 registers after every `window` of K. A
    /// window takes a step for each of its MMAs. A step truncates 32 products and the accumulator 13 bits below the
    /// largest of them, and their sum likewise: an error of 2^-13 of the largest in one direction, plus the root of
    /// 32 such errors of either sign. Errors of different windows have either sign; together they are at most the
    /// error of one window with all the energy.
    #[must_use]
    pub fn narrow(window: usize) -> Self {
        Self {
            steps: window.div_ceil(MmaKind::F8f6f4.mma_k() as usize) as f64,
            step_error: 6.0 * 2f64.powi(-13),
        }
    }

    /// Bound on the error of one sum. `energy` is the sum over blocks of |a|^2 |b|^2.
    fn bound(self, sum: f64, energy: f64) -> f64 {
        self.steps * self.step_error * (sum.abs() + 2.0 * energy.sqrt()) + 2f64.powi(-20) * sum.abs()
    }

    /// Bound on the error of gate(first, second), whose exact value is `center` and whose steps lose up to `rounding`.
    pub(super) fn of_gate(
        self,
        gate: &impl Fn(f64, f64) -> f64,
        center: f64,
        [first, second]: [f64; 2],
        [energy1, energy2]: [f64; 2],
        rounding: f64,
    ) -> f64 {
        let [off1, off2] = [self.bound(first, energy1), self.bound(second, energy2)];
        let to = |first, second| (gate(first, second) - center).abs();
        let by_first = to(first - off1, second).max(to(first + off1, second));
        let by_second = to(first, second - off2).max(to(first, second + off2));
        // exp overflows f32 where its reciprocal is still 2^-128: what is lost then is that, times what
        // the gate multiplies it with.
        let flushed = 2f64.powi(-120) * first.abs().max(1.0) * second.abs().max(1.0);
        let bound = by_first + by_second + 2f64.powi(-19) * center.abs() + flushed + rounding;
        if bound.is_nan() { f64::INFINITY } else { bound }
    }
}

/// Squared norms of an operand's rows by blocks of 16 along K, presented as an operand.
pub(super) struct Energies {
    rows: usize,
    blocks: usize,
    values: Vec<f64>,
}

impl Energies {
    pub(super) fn of(operand: &dyn Operand) -> Self {
        let (rows, k) = (operand.rows(), operand.k());
        let blocks = k.div_ceil(BLOCK);
        let mut values = vec![0.0; rows * blocks];
        values.par_chunks_mut(blocks.max(1)).enumerate().for_each_init(
            || vec![0.0; k],
            |decoded, (row, out)| {
                operand.decode_row(row, 0, decoded);
                for (energy, block) in out.iter_mut().zip(decoded.chunks(BLOCK)) {
                    *energy = block.iter().map(|value| value * value).sum();
                }
            },
        );
        Self { rows, blocks, values }
    }
}

impl Operand for Energies {
    fn rows(&self) -> usize {
        self.rows
    }

    fn k(&self) -> usize {
        self.blocks
    }

    fn decode_row(&self, row: usize, k_start: usize, out: &mut [f64]) {
        out.copy_from_slice(&self.values[row * self.blocks + k_start..][..out.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inputs::{Distribution, DualGemmInputs, Shape, legal_pairs};
    use crate::reference::{dual_gemm_bounded, silu};
    use silumin_codegen::problem::{Formats, OutputFormat};

    /// Truncates to f32.
    fn cut(value: f64) -> f64 {
        let nearest = value as f32;
        let beyond = f64::from(nearest).abs() > value.abs();
        f64::from(f32::from_bits(nearest.to_bits() - u32::from(beyond)))
    }

    /// Model of a tensor core: terms and accumulator are truncated 25 bits below the largest exponent, the sum to
    /// f32.
    fn sum(a: &[f64], b: &[f64], mma_k: usize) -> f64 {
        let mut accumulator = 0.0f64;
        for (a, b) in a.chunks(mma_k).zip(b.chunks(mma_k)) {
            let terms: Vec<f64> = a.iter().zip(b).map(|(a, b)| a * b).chain([accumulator]).collect();
            let largest = terms.iter().fold(0.0f64, |most, term| most.max(term.abs()));
            if largest == 0.0 {
                continue;
            }
            let unit = 2f64.powi(largest.log2().floor() as i32 - 25);
            accumulator = cut(terms.iter().map(|term| (term / unit).trunc() * unit).sum());
        }
        accumulator
    }

    /// A modelled tensor core stays within the bounds, and the bounds leave little room for wrong sums.
    #[test]
    fn a_modelled_tensor_core_stays_within_the_bounds_and_near_them() {
        let shape = Shape::new(24, 20, 4096);
        for (a, b) in legal_pairs() {
            let formats = Formats::new(a, b, OutputFormat::F32);
            let kind = formats.check().unwrap();
            let accumulation = Accumulation::tensor_core(kind, 4096);
            for distribution in [Distribution::Benchmark, Distribution::Full] {
                let inputs = DualGemmInputs::generate_for(shape, formats, distribution, 77).unwrap();
                let gate = |_: [usize; 2], gate: f64, up: f64| silu(gate) * up;
                let reference =
                    dual_gemm_bounded(&inputs.a, &inputs.b1, &inputs.b2, gate, accumulation).unwrap();
                let rows = |matrix: &silumin_formats::Matrix| -> Vec<Vec<f64>> {
                    let mut rows = vec![vec![0.0; 4096]; matrix.rows()];
                    rows.iter_mut().enumerate().for_each(|(row, out)| matrix.decode_row(row, 0, out));
                    rows
                };
                let [left, first, second] = [&inputs.a, &inputs.b1, &inputs.b2].map(rows);
                let bounds = reference.bounds().unwrap();
                let (mut most, mut tightness) = (0.0f64, Vec::new());
                for (index, &exact) in reference.exact().iter().enumerate() {
                    let (row, column) = (index / 20, index % 20);
                    let mma_k = kind.mma_k() as usize;
                    let gate = sum(&left[row], &first[column], mma_k) as f32;
                    let up = sum(&left[row], &second[column], mma_k) as f32;
                    let got = gate / (1.0 + (-gate).exp()) * up;
                    most = most.max((f64::from(got) - exact).abs() / bounds[index]);
                    if exact.abs() > 1.0 {
                        tightness.push(bounds[index] / exact.abs());
                    }
                }
                tightness.sort_by(f64::total_cmp);
                let median = tightness[tightness.len() / 2];
                let name = format!("{a} x {b}, {distribution}");
                assert!(most > 1e-4 && most < 1.0, "{name}: {most}");
                // That is at K = 4096; it falls in proportion to K.
                assert!(median < 2e-3, "{name}: {median}");
            }
        }
    }

    #[test]
    fn energies_are_squared_norms_of_blocks() {
        let formats = Formats::default();
        let inputs =
            DualGemmInputs::generate_for(Shape::new(3, 2, 80), formats, Distribution::Full, 1).unwrap();
        let energies = Energies::of(&inputs.a);
        assert_eq!((energies.rows(), Operand::k(&energies)), (3, 5));
        for row in 0..3 {
            for block in 0..5 {
                let ks = block * 16..block * 16 + 16;
                let expected: f64 = ks.map(|k| inputs.a.value(row, k).unwrap().powi(2)).sum();
                let mut got = [0.0];
                Operand::decode_row(&energies, row, block, &mut got);
                assert_eq!(got, [expected]);
            }
        }
    }
}
