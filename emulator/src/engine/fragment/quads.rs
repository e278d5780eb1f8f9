//! `mma.m8n8k4` of binary16: four products, of the eight lanes `4 i..4 i + 4` and `16 + 4 i..20 + 4 i` each
//! (PTX ISA, "Matrix Fragments for mma.m8n8k4 with .f16 floating point type").

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
        product(SHAPE, kind, arithmetic, (&ca, &cb), &mut d, &Extras::default());
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
