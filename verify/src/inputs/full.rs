//! Draws operands over the whole range of their formats whose products still fit f16.
//!
//! Each block along K has two ranges, one for the rows of A and one for the rows of both B: ranges of scale factors
//! where the format has them, else of elements. One side leads and one follows. The caps of the leader's ranges are
//! spread evenly over all codes of the format (see [`ladder`](super::ladder)). The follower's range is the widest
//! that keeps the block's contribution to the variance of a sum within its share: mean square of the leader, times
//! that of the follower, times that of a block's products of elements. Where even the smallest value exceeds the
//! share, most of the follower's values are zero.

use silumin_codegen::problem::{ElementKind, FormatSpec};

use super::ladder::{Ladder, Range, element_mean_square, fill_elements, put};
use super::{ChaCha8Rng, Operands, Parts, Tensor, below, fill_rows, stream};
use silumin_formats::element;

/// Bits of -62880 in f16, which fills C before the kernel runs.
pub(super) const POISON: u16 = 0xFBAD;

/// Target standard deviation of a sum over K.
const DEVIATION: f64 = 24.0;

/// Elements of a block in formats without scales.
const PLAIN_BLOCK: usize = 16;

/// Elements along K that share a range: the scale block of an operand with scale factors, or [`PLAIN_BLOCK`].
fn block(specs: [&FormatSpec; 2]) -> usize {
    specs.iter().find_map(|spec| spec.scales).map_or(PLAIN_BLOCK, |scales| scales.block as usize)
}

/// Mean square of the elements of a format with scale factors; 1 for others, whose elements are drawn from the ladder
/// itself.
fn inner_mean_square(spec: &FormatSpec) -> f64 {
    if spec.scales.is_some() { element_mean_square(spec.element) } else { 1.0 }
}

/// The ranges of A and of B for each block along K.
fn plan(specs: [&FormatSpec; 2], ladders: &[Ladder; 2], k: usize, rng: &mut ChaCha8Rng) -> Vec<[Range; 2]> {
    let block = block(specs);
    let blocks = k.div_ceil(block);
    // What the product of the two mean squares may be.
    let budget = DEVIATION.powi(2)
        / blocks as f64
        / (block as f64 * inner_mean_square(specs[0]) * inner_mean_square(specs[1]));
    let most = [0, 1].map(|side| ladders[side].most_leader(&ladders[1 - side], budget));
    let mut plan: Vec<_> = (0..blocks)
        .map(|index| {
            // Leaders alternate; each side walks down its own caps, from the largest.
            let (step, steps) = (index / 2, blocks.div_ceil(2));
            let side = index % 2;
            let leader = ladders[side].leader(step, steps, most[side]);
            let follower = ladders[1 - side].follower(budget / ladders[side].mean_square(leader));
            if side == 0 { [leader, follower] } else { [follower, leader] }
        })
        .collect();
    for index in (1..blocks).rev() {
        plan.swap(index, below(rng, index + 1));
    }
    plan
}

/// Rows aligned so that C overflows: one row of A, and up to three rows of both B, whose results are +inf, -inf and
/// that of a gate far below zero.
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
pub(super) fn generate(operands: &Operands, seed: u64) -> [Parts; 3] {
    let mut rng = stream(seed, Tensor::Plan, 0);
    let Operands { m, n, k, a, b } = *operands;
    let specs = [a.spec(), b.spec()];
    let ladders = specs.map(Ladder::of);
    let (plan, block) = (plan(specs, &ladders, k, &mut rng), block(specs));
    let aligned = Aligned::choose([m, n, k], &mut rng);
    // With one kind of element under scales the aligned rows of B have the codes of A's row;
    // otherwise all have elements of typical magnitude and one set of signs.
    let shared = a.spec().element == b.spec().element && a.spec().scales.is_some();
    [(Tensor::A, m, a), (Tensor::B1, n, b), (Tensor::B2, n, b)].map(|(tensor, rows, format)| {
        let side = usize::from(tensor != Tensor::A);
        let (spec, ladder) = (format.spec(), &ladders[side]);
        fill_rows(format, rows, k, |row, codes, scales| {
            let kind = if tensor == Tensor::A {
                (row == aligned.a).then_some(0)
            } else {
                aligned.b.iter().position(|&b| b == row)
            };
            // Rows that share a scale factor have the aligned row's.
            let shared_rows = spec.scales.map_or(1, |scales| scales.rows as usize);
            let with_aligned =
                tensor != Tensor::A && aligned.b.iter().any(|b| b / shared_rows == row / shared_rows);
            let Some(kind) = kind else {
                let mut rng = stream(seed, tensor, row);
                if spec.scales.is_some() {
                    fill_elements(spec.element, &mut rng, codes);
                    for (scale, ranges) in scales.iter_mut().zip(&plan) {
                        let rung = match with_aligned {
                            true => ladder.typical(ranges[side]),
                            false => ladder.draw(ranges[side], &mut rng),
                        };
                        *scale = ladder.code(rung) as u8;
                    }
                } else {
                    for index in 0..k {
                        let rung = ladder.draw(plan[index / block][side], &mut rng);
                        let sign = if below(&mut rng, 2) == 0 { 0 } else { element::sign_bit(spec.element) };
                        put(spec.element, codes, index, ladder.code(rung) | sign);
                    }
                }
                return;
            };
            // Products that are all positive, and a sum as large as the two rows' energies allow:
            // DEVIATION * sqrt(K). Kind 0 is +inf, 1 has B2 negated, 2 has B1.
            let negated = (tensor == Tensor::B2 && kind == 1) || (tensor == Tensor::B1 && kind == 2);
            let mut rng = stream(seed, Tensor::A, aligned.a);
            for (scale, ranges) in scales.iter_mut().zip(&plan) {
                *scale = ladder.code(ladder.typical(ranges[side])) as u8;
            }
            if shared {
                fill_elements(spec.element, &mut rng, codes);
                negate(spec.element, codes, negated);
                return;
            }
            let middle = Ladder::of(&FormatSpec { scales: None, ..*spec });
            let inner = middle.code(middle.nearest(element_mean_square(spec.element)));
            for index in 0..k {
                let magnitude = match spec.scales {
                    Some(_) => inner,
                    None => ladder.code(ladder.typical(plan[index / block][side])),
                };
                let negative = (below(&mut rng, 2) == 1) != negated;
                let sign = if negative { element::sign_bit(spec.element) } else { 0 };
                put(spec.element, codes, index, magnitude | sign);
            }
        })
    })
}

/// Flips the sign of all elements.
fn negate(kind: ElementKind, codes: &mut [u8], negated: bool) {
    let bytes: [u8; 2] = match kind {
        ElementKind::E2m1 => [0x88; 2],
        ElementKind::E4m3 | ElementKind::E5m2 => [0x80; 2],
        ElementKind::Bf16 | ElementKind::F16 => [0, 0x80],
    };
    for (index, byte) in codes.iter_mut().enumerate().filter(|_| negated) {
        *byte ^= bytes[index % 2];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Tolerance, check};
    use crate::inputs::{Distribution, DualGemmInputs, Shape, legal_pairs};
    use silumin_codegen::problem::{ByteScale, Formats, OperandFormat, OutputFormat, ScaleFormat};
    use silumin_formats::{Matrix, e2m1, e4m3, f16_from_f64, fp4x2};

    const LAST_CODE: u8 = 0x7E;
    const SCALE_BLOCK: usize = 16;
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

    /// Models a kernel's arithmetic: K in steps of 64 added to a truncating f32 accumulator, and the gate in f32.
    /// `scales_of` maps each block to the block whose scale it uses.
    fn accumulate_f32(a: &Matrix, b: &Matrix, scale_of: impl Fn(usize) -> usize) -> Vec<f32> {
        let blocks = a.k() / SCALE_BLOCK;
        let decoded = |matrix: &Matrix| -> Vec<f64> {
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

    fn draw_for(m: u32, n: u32, k: u32, (a, b): (OperandFormat, OperandFormat), seed: u64) -> DualGemmInputs {
        let formats = Formats::new(a, b, OutputFormat::F32);
        DualGemmInputs::generate_for(Shape::new(m, n, k), formats, Distribution::Full, seed).unwrap()
    }

    #[test]
    fn sums_have_the_planned_deviation_in_every_format() {
        for (a, b) in legal_pairs() {
            for k in [32, 256, 2048] {
                let k = k.max(a.spec().k_multiple);
                let inputs = draw_for(150, 150, k, (a, b), 3);
                let sums = gemm(&inputs.a, &inputs.b2).unwrap();
                assert!(sums.iter().all(|sum| sum.is_finite()));
                let mut squares: Vec<f64> = sums.iter().map(|s| s * s).collect();
                squares.sort_by(f64::total_cmp);
                let ordinary = &squares[..squares.len() - 600];
                let mean = ordinary.iter().sum::<f64>() / (squares.len() as f64 * DEVIATION.powi(2));
                // Steep ladders have heavy tails, which the largest sums that are left out hold.
                assert!(mean > 0.02 && mean < 1.3, "{a} x {b}, K = {k}: {mean}");
                if k > 256 {
                    let median = squares[squares.len() / 2] / DEVIATION.powi(2);
                    assert!(median > 0.02 && median < 0.46, "{a} x {b}, K = {k}: {median}");
                }
            }
        }
    }

    #[test]
    fn every_format_is_drawn_whole_and_finite() {
        for (a, b) in legal_pairs() {
            let inputs = draw_for(512, 512, 2048, (a, b), 4);
            for matrix in [&inputs.a, &inputs.b1] {
                let spec = matrix.format().spec();
                let mut values = vec![0.0; 2048];
                for row in 0..512 {
                    matrix.decode_row(row, 0, &mut values);
                    assert!(values.iter().all(|value| value.is_finite()), "{a} x {b}");
                }
                let expected: Vec<u8> = match spec.scales.map(|scales| scales.format) {
                    Some(ScaleFormat::Byte(ByteScale::Ue4m3)) => (0..=0x7E).collect(),
                    // The largest would want a follower below the least; the least are rare.
                    Some(ScaleFormat::Byte(ByteScale::Ue8m0)) => (30..=190).collect(),
                    Some(ScaleFormat::F32) => {
                        let factors = matrix.scales().as_chunks::<4>().0;
                        let factors = factors.iter().map(|bytes| f32::from_le_bytes(*bytes));
                        let [small, large] = [f32::min, f32::max].map(|f| factors.clone().reduce(f).unwrap());
                        assert!(small > 0.0 && small < 1e-3 && large > 1e3, "{a} x {b}: {small} to {large}");
                        continue;
                    }
                    None => continue,
                };
                let missing = expected.iter().filter(|code| !matrix.scales().contains(code)).count();
                assert_eq!(missing, 0, "{a} x {b}");
            }
            for matrix in [&inputs.a, &inputs.b1] {
                let kind = matrix.format().spec().element;
                if kind.bits() == 8 {
                    let codes = (0..=255u8).filter(|code| u16::from(code & 0x7F) <= element::max_code(kind));
                    for code in codes {
                        assert!(matrix.codes().contains(&code), "{a} x {b}: {code:#04x}");
                    }
                } else if kind.bits() == 16 {
                    // All exponents of both signs, the subnormals' included.
                    let shift = if kind == ElementKind::Bf16 { 7 } else { 10 };
                    let mut seen = vec![false; 1 << (16 - shift)];
                    for bytes in matrix.codes().as_chunks::<2>().0 {
                        seen[usize::from(u16::from_le_bytes(*bytes)) >> shift] = true;
                    }
                    let finite = usize::from(element::max_code(kind) >> shift) + 1;
                    // As above, where the other side's scale factors are powers of two.
                    let follower = |format: OperandFormat| format.spec().scales.map(|scales| scales.format);
                    let powers = [a, b].map(follower).contains(&Some(ScaleFormat::Byte(ByteScale::Ue8m0)));
                    let drawn = if powers { finite.min(220) } else { finite };
                    let half = seen.len() / 2;
                    assert!(
                        seen[..drawn].iter().chain(&seen[half..half + drawn]).all(|seen| *seen),
                        "{a} x {b}"
                    );
                }
            }
        }
    }

    #[test]
    fn aligned_rows_reach_both_ends_in_every_format() {
        for (a, b) in legal_pairs() {
            let inputs = draw_for(40, 30, 2048, (a, b), 9);
            let [gates, ups] = [&inputs.b1, &inputs.b2].map(|b| gemm(&inputs.a, b).unwrap());
            let far = |test: fn(f64, f64) -> bool| gates.iter().zip(&ups).any(|(&g, &u)| test(g, u));
            assert!(far(|g, u| g > 250.0 && u > 250.0), "{a} x {b}");
            assert!(far(|g, u| g > 250.0 && u < -250.0), "{a} x {b}");
            assert!(far(|g, u| g < -250.0 && u > 250.0), "{a} x {b}");
        }
    }
}
