//! The positive codes of a format in ascending order (a ladder of rungs), and ranges of rungs to draw from.
//!
//! What the distribution [`Full`](super::Distribution::Full) spreads over a whole format is the scale
//! factor where there is one, and the element itself where there is none: both are a ladder of codes
//! whose values ascend, near enough evenly in logarithm that a uniform code is close to a log-uniform
//! value.

use rand_chacha::rand_core::RngCore;
use silumin_codegen::problem::{ByteScale, ElementKind, FormatSpec, ScaleFormat};

use super::{ChaCha8Rng, below, unit};
use silumin_formats::element;

/// The positive codes of one format, smallest value first.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Ladder {
    /// Code of the first rung.
    base: u16,
    /// Squares of the values, smallest first.
    squares: Vec<f64>,
    /// Prefix sums of the squares: `sums[i]` is the sum before rung `i`; the last is the total.
    sums: Vec<f64>,
    /// Smallest cap of a leader's range.
    least_leader: usize,
    /// Probability that a leader draws a rung other than the first.
    leader_density: f64,
    /// Size of the window, which is the rungs just below a cap, and the share of draws that come from it. A leader
    /// has one so that large values are not rare, a follower so that on steep ladders its mean square does not depend
    /// on a few rungs among many.
    window: usize,
    leader_window: f64,
    follower_window: f64,
}

impl Ladder {
    /// The ladder of a format's scale factors, or of its elements where it has none.
    pub(super) fn of(spec: &FormatSpec) -> Self {
        match spec.scales.map(|scales| scales.format) {
            Some(ScaleFormat::Byte(format @ ByteScale::Ue4m3)) => {
                let squares = (0..=element::max_scale_code(format))
                    .map(|code| element::decode_scale(format, code).powi(2));
                Ladder {
                    leader_density: 15.0 / 16.0,
                    leader_window: 1.0 / 4.0,
                    follower_window: 0.0,
                    least_leader: 8,
                    ..Ladder::new(0, squares.collect(), 8)
                }
            }
            // f32 factors are drawn near powers of two (`rows::wide_factor`).
            Some(ScaleFormat::Byte(ByteScale::Ue8m0) | ScaleFormat::F32) => {
                // 2^-100 to 2^100: with any element a normal f32, as anybody's weights are.
                let codes = 27..=227u8;
                let base = u16::from(*codes.start());
                Ladder::new(
                    base,
                    codes.map(|code| element::decode_scale(ByteScale::Ue8m0, code).powi(2)).collect(),
                    4,
                )
            }
            None => {
                let kind = spec.element;
                let squares = (0..=element::max_code(kind))
                    .map(|code| f64::from(element::decode(kind, code)).powi(2))
                    .collect();
                Ladder::new(0, squares, 4 * per_octave(kind))
            }
        }
    }

    /// A steep ladder, which draws mostly from the window below the cap.
    fn new(base: u16, squares: Vec<f64>, window: usize) -> Self {
        let mut sums = vec![0.0];
        for square in &squares {
            sums.push(sums[sums.len() - 1] + square);
        }
        let mostly = 7.0 / 8.0;
        Ladder {
            base,
            squares,
            sums,
            least_leader: window,
            leader_density: 15.0 / 16.0,
            window,
            leader_window: mostly,
            follower_window: mostly,
        }
    }

    /// Index of the last rung.
    pub(super) fn last(&self) -> usize {
        self.squares.len() - 1
    }

    /// The code of a rung.
    pub(super) fn code(&self, rung: usize) -> u16 {
        self.base + rung as u16
    }

    /// The range of a leader at `step` of `steps`; caps go down evenly from `most`.
    pub(super) fn leader(&self, step: usize, steps: usize, most: usize) -> Range {
        let span = most - self.least_leader + 1;
        Range { cap: most - step * span / steps, density: self.leader_density, window: self.leader_window }
    }

    /// The largest cap of a leader for which a follower on the ladder `other` can keep within `budget`. No limit
    /// where the other ladder has a zero.
    pub(super) fn most_leader(&self, other: &Ladder, budget: f64) -> usize {
        let least = 16.0 * other.squares[0];
        let fits = |&cap: &usize| self.mean_square(self.leader(0, 1, cap)) * least <= budget;
        (self.least_leader..=self.last()).rev().find(fits).unwrap_or(self.least_leader)
    }

    /// The widest range whose mean square is at most `budget`.
    pub(super) fn follower(&self, budget: f64) -> Range {
        let mut widest = Range { cap: 1, density: (budget / self.squares[1]).min(1.0), window: 0.0 };
        if widest.density == 1.0 {
            for cap in 2..=self.last() {
                let wider = Range { cap, density: 1.0, window: self.follower_window };
                if self.mean_square(wider) > budget {
                    break;
                }
                widest = wider;
            }
        }
        widest
    }

    /// Mean square of a draw from a range.
    pub(super) fn mean_square(&self, range: Range) -> f64 {
        let mean = |from: usize| (self.sums[range.cap + 1] - self.sums[from]) / (range.cap - from + 1) as f64;
        let within = (1.0 - range.window) * mean(1) + range.window * mean(self.top(range));
        range.density * within
    }

    /// The first rung of a range's window.
    fn top(&self, range: Range) -> usize {
        (range.cap + 1).saturating_sub(self.window).max(1)
    }

    /// Draws a rung of a range.
    pub(super) fn draw(&self, range: Range, rng: &mut ChaCha8Rng) -> usize {
        if f64::from(unit(rng)) >= range.density {
            0
        } else {
            let from = if f64::from(unit(rng)) < range.window { self.top(range) } else { 1 };
            from + below(rng, range.cap - from + 1)
        }
    }

    /// The rung whose square is nearest to the mean square of a range, so that a row of it has about the energy of a
    /// drawn row.
    pub(super) fn typical(&self, range: Range) -> usize {
        self.nearest(self.mean_square(range))
    }

    /// The rung whose square is nearest to `square`.
    pub(super) fn nearest(&self, square: f64) -> usize {
        let after = self.squares.partition_point(|&other| other < square).clamp(1, self.last());
        let distance = |rung: usize| (self.squares[rung] - square).abs();
        if distance(after - 1) <= distance(after) { after - 1 } else { after }
    }
}

fn per_octave(kind: ElementKind) -> usize {
    match kind {
        ElementKind::E2m1 => 2,
        ElementKind::E4m3 => 8,
        ElementKind::E5m2 => 4,
        ElementKind::Bf16 => 128,
        ElementKind::F16 => 1024,
    }
}

/// How one side draws the values of a block along K: the first rung, a rung uniform in 1..=cap, or one uniform in the
/// window below the cap.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Range {
    cap: usize,
    /// Probability of drawing a rung other than the first.
    density: f64,
    /// Probability that such a draw is from the window.
    window: f64,
}

/// Mean square of an element drawn uniformly from its finite codes.
pub(super) fn element_mean_square(kind: ElementKind) -> f64 {
    let codes = 0..=element::max_code(kind);
    let count = codes.len() as f64;
    codes.map(|code| f64::from(element::decode(kind, code)).powi(2)).sum::<f64>() / count
}

/// Fills packed codes with finite elements, all codes equally likely.
pub(super) fn fill_elements(kind: ElementKind, rng: &mut ChaCha8Rng, codes: &mut [u8]) {
    rng.fill_bytes(codes);
    match kind {
        ElementKind::E2m1 => {}
        ElementKind::E4m3 | ElementKind::E5m2 => {
            let largest = element::max_code(kind) as u8;
            for byte in codes {
                while *byte & 0x7F > largest {
                    *byte = rng.next_u32() as u8;
                }
            }
        }
        ElementKind::Bf16 | ElementKind::F16 => {
            let largest = element::max_code(kind);
            for bytes in codes.as_chunks_mut::<2>().0 {
                while u16::from_le_bytes(*bytes) & 0x7FFF > largest {
                    *bytes = (rng.next_u32() as u16).to_le_bytes();
                }
            }
        }
    }
}

/// Writes the code of element `index` of a row to its packed codes.
pub(super) fn put(kind: ElementKind, codes: &mut [u8], index: usize, code: u16) {
    match kind {
        ElementKind::E2m1 => {
            let (byte, shift) = (&mut codes[index / 2], 4 * (index % 2));
            *byte = *byte & !(0xF << shift) | (code as u8 & 0xF) << shift;
        }
        ElementKind::E4m3 | ElementKind::E5m2 => codes[index] = code as u8,
        ElementKind::Bf16 | ElementKind::F16 => {
            codes[2 * index..2 * index + 2].copy_from_slice(&code.to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_chacha::rand_core::SeedableRng;
    use silumin_codegen::problem::OperandFormat;

    #[test]
    fn what_is_drawn_has_the_mean_square_that_was_planned() {
        for format in OperandFormat::ALL {
            let ladder = Ladder::of(format.spec());
            let mut rng = ChaCha8Rng::seed_from_u64(3);
            for range in [
                ladder.leader(0, 3, ladder.last()),
                ladder.leader(2, 3, ladder.last()),
                ladder.follower(1.0),
                // Where there is no zero, this is below the least.
                ladder.follower(if ladder.squares[0] == 0.0 { ladder.squares[1] / 5.0 } else { 0.1 }),
            ] {
                let draws = 200_000;
                let sum: f64 = (0..draws).map(|_| ladder.squares[ladder.draw(range, &mut rng)]).sum();
                let share = sum / f64::from(draws) / ladder.mean_square(range);
                assert!((share - 1.0).abs() < 0.05, "{format}, {range:?}: {share}");
            }
            for budget in [1e-6, 1.0, 300.0] {
                let range = ladder.follower(budget);
                assert!(ladder.mean_square(range) <= budget, "{format}");
                assert!(ladder.mean_square(range) > budget / 8.0, "{format}: {range:?}");
                let typical = ladder.squares[ladder.typical(range)];
                assert!(typical == 0.0 || typical / ladder.mean_square(range) < 4.0);
            }
        }
    }

    #[test]
    fn elements_are_put_where_they_are_read() {
        for (kind, bytes) in [(ElementKind::E2m1, [0x40, 0]), (ElementKind::E5m2, [0, 0x04])] {
            let mut codes = [0; 2];
            put(kind, &mut codes, 1, 4);
            assert_eq!(codes, bytes);
        }
        let mut codes = [0; 4];
        put(ElementKind::Bf16, &mut codes, 1, 0x1234);
        assert_eq!(codes, [0, 0, 0x34, 0x12]);
    }
}
