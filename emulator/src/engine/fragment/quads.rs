//! `mma.m8n8k4` of binary16: four products, of the eight lanes `4 i..4 i + 4` and `16 + 4 i..20 + 4 i` each
//! (PTX ISA, "Matrix Fragments for mma.m8n8k4 with .f16 floating point type").

use crate::engine::format::Format;

use super::{Arithmetic, Extras, Kind, Lanes, Shape, convert, product};

const SHAPE: Shape = Shape { m: 8, n: 8, k: 4 };

/// Lane of a quad's thread: the lower four, then the upper four.
fn lane(quad: usize, thread: usize) -> usize {
    4 * quad + thread % 4 + thread / 4 * 16
}

/// Row and column of accumulator `i` of a thread of the eight.
fn place(thread: usize, i: usize, half: bool) -> (usize, usize) {
    let upper = thread / 4 * 4;
    match half {
        true => (thread % 4 + upper, i),
        false => ((thread & 1) + (i & 2) + upper, (i & 4) + (thread & 2) + (i & 1)),
    }
}

/// D of all four; `halves`: whether C and D are binary16; `layouts`: A column-major, B row-major.
pub(super) fn mma(
    kind: Kind,
    arithmetic: Arithmetic,
    [a, b, c]: [&[Lanes]; 3],
    halves: (bool, bool),
    layouts: (bool, bool),
) -> Vec<Lanes> {
    let element = |r: &[Lanes], lane: usize, i: usize| r[i / 2][lane] >> (16 * (i % 2)) & 0xffff;
    let mut out = vec![[0u64; 32]; if halves.1 { 4 } else { 8 }];
    for quad in 0..4 {
        let (mut ca, mut cb) = ([0u64; 32], [0u64; 32]);
        let mut d = [0u64; 64];
        for thread in 0..8 {
            let (l, t, upper) = (lane(quad, thread), thread % 4, thread / 4 * 4);
            for i in 0..4 {
                // Rows of A along K, columns of B along K.
                let (row, k) = if layouts.0 { (i + upper, t) } else { (t + upper, i) };
                ca[row * 4 + k] = element(a, l, i);
                let (column, k) = if layouts.1 { (i + upper, t) } else { (t + upper, i) };
                cb[column * 4 + k] = element(b, l, i);
            }
            for i in 0..8 {
                let (row, column) = place(thread, i, halves.0);
                d[row * 8 + column] = if halves.0 { element(c, l, i) } else { c[i][l] };
            }
        }
        convert(&mut d, halves.0, halves.1);
        match kind {
            Kind::Float { half: false, .. } => fused(&ca, &cb, &mut d),
            _ => product(SHAPE, kind, arithmetic, (&ca, &cb), &mut d, &Extras::default()),
        }
        for thread in 0..8 {
            let l = lane(quad, thread);
            for i in 0..8 {
                let (row, column) = place(thread, i, halves.1);
                let word = d[row * 8 + column];
                match halves.1 {
                    true => out[i / 2][l] |= (word & 0xffff) << (16 * (i % 2)),
                    false => out[i][l] = word,
                }
            }
        }
    }
    out
}

/// The products of binary16 in binary32: chips since sm_80 have no unit for them, and `ptxas` writes a chain of fused
/// products from zero, rounded to nearest each, with C added last.
fn fused(ca: &[u64; 32], cb: &[u64; 32], d: &mut [u64; 64]) {
    let value = |code: u64| Format::F16.decode(code as u32);
    for (row, a) in ca.as_chunks::<4>().0.iter().enumerate() {
        for (column, b) in cb.as_chunks::<4>().0.iter().enumerate() {
            let sum = a.iter().zip(b).fold(0f32, |sum, (&a, &b)| value(a).mul_add(value(b), sum));
            let word = &mut d[row * 8 + column];
            let total = f32::from_bits(*word as u32) + sum;
            *word = u64::from(if total.is_nan() { 0x7fff_ffff } else { total.to_bits() });
        }
    }
}
