//! Operands over the whole range of NVFP4 whose products still fit f16.
//!
//! Along K, each block of 16 has a pair of ranges of scale codes, one for the rows of A and one for
//! the rows of both B. One side leads: its scales are zero or in 1..=cap, with caps spread evenly
//! from 8 (the subnormals) to 126 (448). The other side follows: its range is the widest whose mean
//! square, times the leader's, times the mean square of sixteen products of codes, stays within the
//! share of a block in the variance of a sum. Where even the smallest scale is too much for that,
//! most of the follower's scales are zero. Codes of e4m3 are close to evenly spaced in logarithm,
//! so that a uniform code is close to a log-uniform scale.

use std::ops::RangeInclusive;

use rand_chacha::rand_core::RngCore;

use super::{ChaCha8Rng, Parts, Shape, Tensor, below, fill_rows, sizes, stream, unit};
use crate::format::{SCALE_BLOCK, e2m1, e4m3};

/// f16 bits of what C holds beforehand: -62880.
pub(super) const POISON: u16 = 0xFBAD;

/// Standard deviation of a sum over K.
const DEVIATION: f64 = 24.0;

/// Largest finite scale code.
const LAST_CODE: u8 = 0x7E;

/// Least cap of a leader: all subnormals and the least normal scale.
const LEAST_LEADER: u8 = 8;

/// Share of a leader's scales that are not zero.
const LEADER_DENSITY: f64 = 15.0 / 16.0;

/// Share of a leader's scales that are drawn from the last eight codes of its range, about one
/// octave, so that large scales are not rare.
const LEADER_OCTAVE: f64 = 1.0 / 4.0;

/// How the scales of one block along K are drawn on one side: zero, or a code uniform in
/// 1..=cap or in the last eight of these.
#[derive(Debug, Clone, Copy, PartialEq)]
struct ScaleRange {
    cap: u8,
    /// Probability of a scale other than zero.
    density: f64,
    /// Probability of the last eight codes, of a scale that is not zero.
    octave: f64,
}

impl ScaleRange {
    /// Mean square of the scales drawn.
    fn mean_square(self) -> f64 {
        let mean = |codes: RangeInclusive<u8>| codes.clone().map(square).sum::<f64>() / codes.len() as f64;
        let within = (1.0 - self.octave) * mean(1..=self.cap) + self.octave * mean(self.top()..=self.cap);
        self.density * within
    }

    /// The first of the last eight codes.
    fn top(self) -> u8 {
        self.cap.saturating_sub(7).max(1)
    }

    /// The widest range whose mean square is at most `budget`.
    fn within(budget: f64) -> Self {
        let mut widest = Self { cap: 1, density: (budget / square(1)).min(1.0), octave: 0.0 };
        if widest.density == 1.0 {
            for cap in 2..=LAST_CODE {
                let wider = Self { cap, density: 1.0, octave: 0.0 };
                if wider.mean_square() > budget {
                    break;
                }
                widest = wider;
            }
        }
        widest
    }

    fn draw(self, rng: &mut ChaCha8Rng) -> u8 {
        if f64::from(unit(rng)) >= self.density {
            0
        } else {
            let from = if f64::from(unit(rng)) < self.octave { self.top() } else { 1 };
            from + below(rng, usize::from(self.cap - from) + 1) as u8
        }
    }

    /// The one scale whose square is nearest to the mean square: a row of them has about the energy
    /// of a row of drawn ones.
    fn typical(self) -> u8 {
        let mean_square = self.mean_square();
        let distance = |code: &u8| (square(*code) - mean_square).abs();
        (0..=LAST_CODE).min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap_or(0)
    }
}

fn square(code: u8) -> f64 {
    f64::from(e4m3::decode(code)).powi(2)
}

/// Mean square of a uniform e2m1 code.
fn code_mean_square() -> f64 {
    e2m1::VALUES.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>() / 16.0
}

/// The ranges of A and of B for each block along K.
fn plan(k: usize, rng: &mut ChaCha8Rng) -> Vec<[ScaleRange; 2]> {
    let blocks = k / SCALE_BLOCK;
    // Of the product of the two mean squares of scales.
    let budget =
        DEVIATION.powi(2) / blocks as f64 / (SCALE_BLOCK as f64 * code_mean_square() * code_mean_square());
    let mut plan: Vec<_> = (0..blocks)
        .map(|index| {
            // Leaders alternate; each side walks down its own caps, from the largest.
            let (step, steps) = (index / 2, blocks.div_ceil(2));
            let span = usize::from(LAST_CODE - LEAST_LEADER) + 1;
            let cap = LAST_CODE - (step * span / steps) as u8;
            let leader = ScaleRange { cap, density: LEADER_DENSITY, octave: LEADER_OCTAVE };
            let follower = ScaleRange::within(budget / leader.mean_square());
            if index % 2 == 0 { [leader, follower] } else { [follower, leader] }
        })
        .collect();
    for index in (1..blocks).rev() {
        plan.swap(index, below(rng, index + 1));
    }
    plan
}

/// Rows that are aligned so that C overflows: one row of A, and of both B those whose result is
/// +inf, -inf and that of a gate far below zero, as many as there are.
struct Aligned {
    a: usize,
    b: Vec<usize>,
}

impl Aligned {
    fn choose([m, n, _]: [usize; 3], rng: &mut ChaCha8Rng) -> Self {
        let a = below(rng, m);
        let mut b = Vec::new();
        while b.len() < n.min(3) {
            let row = below(rng, n);
            if !b.contains(&row) {
                b.push(row);
            }
        }
        Self { a, b }
    }
}

/// Codes and scales of A, B1 and B2.
pub(super) fn generate(shape: Shape, seed: u64) -> [Parts; 3] {
    let mut rng = stream(seed, Tensor::Plan, 0);
    let [m, n, k] = sizes(shape);
    let plan = plan(k, &mut rng);
    let aligned = Aligned::choose([m, n, k], &mut rng);
    let codes_of = |tensor, row, codes: &mut [u8]| {
        let mut rng = stream(seed, tensor, row);
        rng.fill_bytes(codes);
        rng
    };
    [(Tensor::A, m), (Tensor::B1, n), (Tensor::B2, n)].map(|(tensor, rows)| {
        let side = usize::from(tensor != Tensor::A);
        fill_rows(rows, k, |row, codes, scales| {
            let kind = if tensor == Tensor::A {
                (row == aligned.a).then_some(0)
            } else {
                aligned.b.iter().position(|&b| b == row)
            };
            let Some(kind) = kind else {
                let mut rng = codes_of(tensor, row, codes);
                for (scale, ranges) in scales.iter_mut().zip(&plan) {
                    *scale = ranges[side].draw(&mut rng);
                }
                return;
            };
            // The same codes in A and B make every product positive, and a sum as large as the two
            // rows' energies allow: DEVIATION * sqrt(K). Kind 0 is +inf, 1 has B2 negated, 2 has
            // B1.
            codes_of(Tensor::A, aligned.a, codes);
            if (tensor == Tensor::B2 && kind == 1) || (tensor == Tensor::B1 && kind == 2) {
                for byte in codes {
                    *byte ^= 0x88;
                }
            }
            for (scale, ranges) in scales.iter_mut().zip(&plan) {
                *scale = ranges[side].typical();
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Tolerance, check};
    use crate::format::{Nvfp4Matrix, f16_from_f64, fp4x2};
    use crate::inputs::{Distribution, DualGemmInputs};
    use crate::reference::{dual_gemm, gemm, silu};

    fn draw(m: u32, n: u32, k: u32, seed: u64) -> DualGemmInputs {
        DualGemmInputs::generate(Shape::new(m, n, k), Distribution::Full, seed).unwrap()
    }

    #[test]
    fn a_and_b_hold_every_code_of_both_formats() {
        let inputs = draw(256, 256, 512, 1);
        for matrix in [&inputs.a, &inputs.b1, &inputs.b2] {
            let mut codes = [0usize; 16];
            for &byte in matrix.codes() {
                let (even, odd) = fp4x2::unpack(byte);
                codes[usize::from(even)] += 1;
                codes[usize::from(odd)] += 1;
            }
            let total: usize = codes.iter().sum();
            assert!(codes.iter().all(|&count| count.abs_diff(total / 16) < total / 200));
            for code in 0..=LAST_CODE {
                assert!(matrix.scales().contains(&code), "scale {code:#04x} is missing");
            }
            assert!(matrix.scales().iter().all(|&code| code <= LAST_CODE));
        }
    }

    #[test]
    fn ends_of_the_range_are_reached_from_k_32_on() {
        let inputs = draw(4096, 4096, 32, 2);
        for matrix in [&inputs.a, &inputs.b1, &inputs.b2] {
            for code in [0, 1, LAST_CODE] {
                assert!(matrix.scales().contains(&code), "scale {code:#04x}");
            }
        }
    }

    #[test]
    fn sums_have_the_planned_deviation_at_any_k() {
        for k in [16, 64, 256, 2048] {
            let inputs = draw(200, 200, k, 3);
            let sums = gemm(&inputs.a, &inputs.b2).unwrap();
            // The median of squares is not moved by the aligned rows: 0.455 of the variance of a
            // normal distribution, and less with heavier tails.
            let mut squares: Vec<f64> = sums.iter().map(|s| s * s).collect();
            squares.sort_by(f64::total_cmp);
            let median = squares[squares.len() / 2] / DEVIATION.powi(2);
            let mean = squares[..squares.len() - 600].iter().sum::<f64>()
                / (squares.len() as f64 * DEVIATION.powi(2));
            assert!(median < 0.46, "K = {k}: {median}");
            assert!(mean > 0.2 && mean < 1.3, "K = {k}: {mean}");
        }
    }

    #[test]
    fn results_fit_f16_but_for_the_aligned_ones() {
        for (k, seed) in [(256, 4), (256, 5), (512, 6), (2048, 7), (7168, 8)] {
            let inputs = draw(130, 90, k, seed);
            let result = dual_gemm(&inputs.a, &inputs.b1, &inputs.b2, |gate, up| silu(gate) * up).unwrap();
            let count = |want: fn(f64) -> bool| result.rounded().iter().filter(|v| want(v.to_f64())).count();
            assert_eq!(count(|v| v == f64::INFINITY), 1, "K = {k}");
            assert_eq!(count(|v| v == f64::NEG_INFINITY), 1, "K = {k}");
            assert_eq!(count(f64::is_nan), 0);
            assert!(count(|v| v.abs() > 1.0) > result.rounded().len() / 3, "K = {k}");
        }
    }

    #[test]
    fn a_gate_far_below_zero_gives_a_signed_zero() {
        let inputs = draw(16, 3, 7168, 9);
        let gates = gemm(&inputs.a, &inputs.b1).unwrap();
        assert!(gates.iter().any(|&gate| gate < -1000.0));
        assert!(gates.iter().any(|&gate| gate > 1000.0));
    }

    #[test]
    fn few_columns_and_rows_are_enough() {
        for (m, n) in [(1, 1), (1, 2), (2, 1), (3, 3)] {
            let inputs = draw(m, n, 256, 10);
            let result = dual_gemm(&inputs.a, &inputs.b1, &inputs.b2, |gate, up| silu(gate) * up).unwrap();
            assert!(result.rounded().contains(&half::f16::INFINITY));
        }
    }

    /// A kernel's arithmetic: K steps of 64 added to an f32 accumulator that truncates, and the
    /// gate in f32. `scales_of` says which block's scale a block uses.
    fn accumulate_f32(a: &Nvfp4Matrix, b: &Nvfp4Matrix, scale_of: impl Fn(usize) -> usize) -> Vec<f32> {
        let blocks = a.k() / SCALE_BLOCK;
        let decoded = |matrix: &Nvfp4Matrix| -> Vec<f64> {
            let values = (0..matrix.rows() * matrix.k()).map(|index| {
                let (row, column) = (index / matrix.k(), index % matrix.k());
                let block = row * blocks + scale_of(column / SCALE_BLOCK);
                let code = fp4x2::get(matrix.codes(), index).unwrap();
                let scale = e4m3::decode(matrix.scales()[block]);
                f64::from(e2m1::decode(code)) * f64::from(scale)
            });
            values.collect()
        };
        let (left, right) = (decoded(a), decoded(b));
        let mut sums = Vec::new();
        for row in left.chunks(a.k()) {
            for column in right.chunks(b.k()) {
                let mut sum = 0f32;
                for (x, y) in row.chunks(64).zip(column.chunks(64)) {
                    let step: f64 = x.iter().zip(y).map(|(x, y)| x * y).sum();
                    let exact = f64::from(sum) + step;
                    // To f32 toward zero.
                    let nearest = exact as f32;
                    sum = if f64::from(nearest).abs() > exact.abs() {
                        f32::from_bits(nearest.to_bits() - 1)
                    } else {
                        nearest
                    };
                }
                sums.push(sum);
            }
        }
        sums
    }

    fn kernel(inputs: &DualGemmInputs, scale_of: impl Fn(usize) -> usize) -> Vec<half::f16> {
        let gates = accumulate_f32(&inputs.a, &inputs.b1, &scale_of);
        let ups = accumulate_f32(&inputs.a, &inputs.b2, &scale_of);
        gates
            .iter()
            .zip(&ups)
            .map(|(&gate, &up)| f16_from_f64(f64::from(gate / (1.0 + (-gate).exp()) * up)))
            .collect()
    }

    #[test]
    fn f32_accumulation_passes_the_check_and_stale_scales_fail_it() {
        let inputs = draw(48, 40, 7168, 11);
        let reference = dual_gemm(&inputs.a, &inputs.b1, &inputs.b2, |gate, up| silu(gate) * up).unwrap();
        let judge = |c: &[half::f16]| check(c, &reference, Tolerance::default()).unwrap();
        let right = judge(&kernel(&inputs, |block| block));
        assert!(right.pass, "{right}");
        // Scales that are not stepped from one K = 64 instruction to the next, and scales that are
        // not stepped inside one.
        for stale in [judge(&kernel(&inputs, |block| block % 4)), judge(&kernel(&inputs, |b| b & !3))] {
            assert!(stale.mismatches > stale.elements / 2, "{stale}");
        }
        let untouched = judge(&inputs.initial_output());
        assert_eq!(untouched.mismatches, untouched.elements);
    }
}
