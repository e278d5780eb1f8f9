//! References of `reductions.py`.

use super::run;
use crate::compilers::harness::{close, equal};
use crate::compilers::math;
use crate::compilers::number::*;

#[test]
fn softmax() {
    let (bytes, x) = Numbers(21).reals(F32, 4 * 781, -6.0, 6.0);
    run("softmax", &[("x", &bytes)], |out| close(out, "out", F32, &math::softmax(&x, 781), 4e-6, 0.0));
}

#[test]
fn layernorm() {
    let mut r = Numbers(22);
    let n = 1500;
    let (bx, x) = r.reals(F16, 4 * n, -2.0, 3.0);
    let ((bw, w), (bb, b)) = (r.reals(F32, n, 0.5, 1.5), r.reals(F32, n, -1.0, 1.0));
    let (mut want, mut means) = (Vec::new(), Vec::new());
    for row in x.chunks(n) {
        let mean = row.iter().sum::<f64>() / n as f64;
        let variance = row.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / n as f64;
        means.push(mean);
        want.extend((0..n).map(|i| (row[i] - mean) / (variance + 1e-5).sqrt() * w[i] + b[i]));
    }
    run("layernorm", &[("x", &bx), ("weight", &bw), ("bias", &bb)], |out| {
        close(out, "mean", F32, &means, 1e-5, 0.0);
        close(out, "out", F16, &want, 1e-3, 1e-4);
    });
}

#[test]
fn argmax() {
    let (bytes, x) = Numbers(23).reals(F32, 32 * 128, -1.0, 1.0);
    let best = |row: &[f64]| (0..row.len()).fold(0, |b, i| if row[i] > row[b] { i } else { b });
    let indices: Vec<i32> = x.chunks(128).map(|r| best(r) as i32).collect();
    let values: Vec<f64> = x.chunks(128).map(|r| r[best(r)]).collect();
    let low: Vec<i32> = (0..128)
        .map(|c| (0..32).fold(0, |b, r| if x[r * 128 + c] < x[b * 128 + c] { r } else { b }) as i32)
        .collect();
    run("argmax", &[("x", &bytes)], |out| {
        close(out, "values", F32, &values, 0.0, 0.0);
        equal(out, "indices", &indices);
        equal(out, "low", &low);
    });
}

#[test]
fn scans() {
    let (bytes, x) = Numbers(24).reals(F32, 16 * 128, -1.0, 1.0);
    let (mut sums, mut recurrence, mut backwards) = (vec![0.0; 2048], vec![0.0; 2048], vec![0.0; 2048]);
    for r in 0..16 {
        let (mut s, mut y) = (0.0, 0.0);
        for c in 0..128 {
            let at = r * 128 + c;
            s += x[at];
            y = 0.5 * y + x[at];
            (sums[at], recurrence[at]) = (s, y);
        }
    }
    for c in 0..128 {
        let mut s = 0.0;
        for r in (0..16).rev() {
            s += x[r * 128 + c];
            backwards[r * 128 + c] = s;
        }
    }
    run("scans", &[("x", &bytes)], |out| {
        close(out, "sums", F32, &sums, 0.0, 1e-5);
        close(out, "recurrence", F32, &recurrence, 0.0, 1e-6);
        close(out, "backwards", F32, &backwards, 0.0, 1e-5);
    });
}

#[test]
fn sort() {
    let (bytes, x) = Numbers(25).reals(F32, 4 * 64, -1.0, 1.0);
    let sorted = |down: bool| -> Vec<f64> {
        (x.chunks(64))
            .flat_map(|row| {
                let mut row = row.to_vec();
                row.sort_by(f64::total_cmp);
                if down {
                    row.reverse();
                }
                row
            })
            .collect()
    };
    let (up, down) = (sorted(false), sorted(true));
    run("sort", &[("x", &bytes)], |out| {
        close(out, "up", F32, &up, 0.0, 0.0);
        close(out, "down", F32, &down, 0.0, 0.0);
    });
}

#[test]
fn histogram() {
    let (bytes, x) = Numbers(26).words(1400, 0, 64);
    let mut want = vec![0; 64];
    x.iter().for_each(|&v| want[v as usize] += 1);
    run("histogram", &[("x", &bytes)], |out| equal(out, "out", &want));
}

#[test]
fn atomics() {
    let (bytes, x) = Numbers(27).words(512, 0, 4096);
    let (mut bins, mut sums) = (vec![0; 16], vec![0.0; 16]);
    for &v in &x {
        bins[v as usize % 16] += 1;
        sums[v as usize % 16] += f64::from(v);
    }
    let halves = vec![0.5 * 512.0 / 32.0; 32];
    let extremes = [*x.iter().max().unwrap(), *x.iter().min().unwrap()];
    let fold = |start: i32, f: fn(i32, i32) -> i32| x.iter().fold(start, |a, &v| f(a, v));
    let mut masks = vec![0; 16 + 512];
    masks[0] = fold(0, |a, v| a | v);
    masks[1] = fold(-1, |a, v| a & (v | 0x100));
    masks[2] = fold(0, |a, v| a ^ v);
    masks[16..].copy_from_slice(&x);
    let start = |n: usize, set: &[(usize, i32)]| -> Vec<u8> {
        let mut words = vec![0i32; n];
        set.iter().for_each(|&(i, v)| words[i] = v);
        words.iter().flat_map(|v| v.to_le_bytes()).collect()
    };
    let old: Vec<i32> = (0..512).map(|i| if i < 5 { 9 } else { 0 }).collect();
    let before: Vec<(usize, i32)> = (0..5).map(|i| (16 + i, 9)).chain([(1, -1)]).collect();
    let inputs =
        [("x", bytes.as_slice()), ("extremes", &start(2, &[(1, 5000)])), ("masks", &start(528, &before))];
    run("atomics", &inputs, |out| {
        equal(out, "bins", &bins);
        close(out, "sums", F32, &sums, 0.0, 0.0);
        close(out, "halves", F16, &halves, 0.0, 0.0);
        equal(out, "extremes", &extremes);
        equal(out, "masks", &masks);
        equal(out, "old", &old);
    });
}

#[test]
fn lock() {
    let (_, words) = Numbers(28).words(1024, -1000, 1000);
    let x: Vec<f64> = words.iter().map(|&v| v.into()).collect();
    let want: Vec<f64> = (0..256).map(|i| (0..4).map(|b| x[b * 256 + i]).sum()).collect();
    run("lock", &[("x", &F32.encode_all(&x))], |out| close(out, "out", F32, &want, 0.0, 0.0));
}

#[test]
fn shapes() {
    let (rows, columns) = (32, 64);
    let (bytes, x) = Numbers(29).reals(F32, rows * columns, -1.0, 1.0);
    let mut transposed = vec![0.0; rows * columns];
    let (mut joined, mut picked) = (Vec::new(), Vec::new());
    for r in 0..rows {
        for c in 0..columns {
            let v = x[r * columns + c];
            transposed[c * rows + r] = v;
            joined.extend([v, 2.0 * v]);
            picked.push(x[r * columns + columns - 1 - (c * 7 + r) % columns]);
        }
    }
    run("shapes", &[("x", &bytes)], |out| {
        close(out, "transposed", F32, &transposed, 0.0, 0.0);
        close(out, "joined", F32, &joined, 0.0, 0.0);
        close(out, "picked", F32, &picked, 0.0, 0.0);
    });
}
