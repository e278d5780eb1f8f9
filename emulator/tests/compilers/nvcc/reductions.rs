//! References of `reductions.cu`.

use super::run;
use crate::compilers::harness::{close, equal, long_words, words};
use crate::compilers::number::*;

fn bytes_of(v: &[i32]) -> Vec<u8> {
    v.iter().flat_map(|v| v.to_le_bytes()).collect()
}

#[test]
fn reduce() {
    let (bytes, x) = Numbers(121).reals(F32, 5000, -1.0, 1.0);
    let want = [x.iter().sum(), x.iter().copied().fold(f64::MIN, f64::max)];
    run("reduce", &[("x", &bytes)], |out| {
        close(out, "out", F32, &want, 0.0, 2e-5);
        close(out, "out", F32, &[F32.decode_all(&out["out"])[0], want[1]], 0.0, 0.0);
    });
}

#[test]
fn warp_votes() {
    let n = 128;
    let (bytes, mut x) = Numbers(122).words(n, 0, 100);
    // One warp has a 3, one has no number that three divides, and one has a lane whose upper half is not as the others'.
    x[40] = 3;
    x[64..96].iter_mut().for_each(|v| *v += i32::from(*v % 3 == 0));
    x[100] += 1 << 16;
    let bytes = { bytes_of(&x[..bytes.len() / 4]) };
    let mut want = vec![0; 14 * n];
    for (warp, v) in x.chunks(32).enumerate() {
        let mask = |f: &dyn Fn(i32) -> bool| (0..32).fold(0u32, |m, i| m | u32::from(f(v[i])) << i);
        let thirds = mask(&|v| v % 3 == 0);
        for lane in 0..32 {
            let mut row = [0; 14];
            row[0] = mask(&|v| v & 1 == 1) as i32;
            row[1] = i32::from(v.contains(&3)) * 2 + i32::from(v.iter().all(|&v| v < 60));
            row[2] = mask(&|o| o & 7 == v[lane] & 7) as i32;
            row[3] = if v.iter().all(|&o| o >> 16 == v[0] >> 16) { -1 ^ 8 } else { 0 };
            row[4] = v.iter().sum();
            row[5] = *v.iter().min().unwrap();
            row[6] = *v.iter().max().unwrap();
            row[7] = v.iter().fold(0, |a, b| a | b);
            row[8] = v[lane / 8 * 8 + lane * 5 % 8];
            row[9] = v[if lane % 16 >= 3 { lane - 3 } else { lane }];
            row[10] = v[lane ^ 21];
            if v[lane] % 3 == 0 {
                let below = thirds & ((1 << lane) - 1);
                row[11] = v[thirds.trailing_zeros() as usize] * 100 + below.count_ones() as i32;
            }
            row[12] = ((1u32 << lane) - 1) as i32;
            row[13] = v[lane & 16..(lane & 16) + 16].iter().fold(0, |a, b| a ^ b);
            for (k, r) in row.into_iter().enumerate() {
                want[k * n + warp * 32 + lane] = r;
            }
        }
    }
    run("warp_votes", &[("x", &bytes)], |out| equal(out, "out", &want));
}

#[test]
fn scan() {
    let (bytes, x) = Numbers(123).words(1200, -50, 1000);
    let mut sum = 0;
    let want: Vec<i32> = x
        .iter()
        .map(|v| {
            sum += v;
            sum
        })
        .collect();
    run("scan", &[("x", &bytes)], |out| equal(out, "out", &want));
}

#[test]
fn transpose() {
    let (rows, columns) = (50, 75);
    let mut r = Numbers(124);
    let (bytes, x) = r.reals(F32, rows * columns, -1.0, 1.0);
    let y: Vec<i16> = (0..rows * columns).map(|_| r.next() as i16).collect();
    let turn = |i: usize| (i % rows) * columns + i / rows;
    let want: Vec<f64> = (0..rows * columns).map(|i| x[turn(i)]).collect();
    let want_short: Vec<u8> = (0..rows * columns).flat_map(|i| y[turn(i)].to_le_bytes()).collect();
    let short: Vec<u8> = y.iter().flat_map(|v| v.to_le_bytes()).collect();
    run("transpose", &[("x", &bytes), ("y", &short)], |out| {
        close(out, "out", F32, &want, 0.0, 0.0);
        assert!(out["yout"] == want_short, "the 16-bit matrix is not transposed");
    });
}

#[test]
fn histogram() {
    let mut r = Numbers(125);
    let x: Vec<u8> = (0..4096).map(|_| ((r.next() >> 40) & r.next() >> 50) as u8).collect();
    let mut want = vec![0; 256];
    x.iter().for_each(|&v| want[usize::from(v)] += 1);
    run("histogram", &[("x", &x)], |out| equal(out, "out", &want));
}

#[test]
fn atomics() {
    let (bytes, x) = Numbers(126).words(384, 0, 4096);
    let start = [100, -100, 5000, -5000, -1, 0, 0, 0, 0, 0, 0];
    let fold = |start: i32, f: fn(i32, i32) -> i32| x.iter().fold(start, |a, &v| f(a, v));
    let sum: i32 = x.iter().sum();
    let want = [
        100 + sum,
        -100 - sum,
        fold(5000, i32::min),
        fold(-5000, i32::max),
        fold(-1, |a, v| a & (v | 0xff00)),
        fold(0, |a, v| a | v & 0x0f0f),
        fold(0, |a, v| a ^ v),
        384 % 100,
        78 - 384 % 78,
        5,
        384,
    ];
    let long: Vec<i64> = x.iter().map(|&v| v.into()).collect();
    let want_long = [
        long.iter().map(|v| v * v).sum(),
        long.iter().map(|v| v << 33).max().unwrap(),
        long.iter().fold(0, |a, v| a ^ v << 21),
        7,
    ];
    let top = x.iter().max().map(|&v| f64::from(v) * 0.5).unwrap();
    let floats = [x.iter().map(|v| f64::from(v & 255)).sum(), top];
    let quad =
        [384.0, 768.0, x.iter().map(|v| f64::from(v & 1)).sum(), x.iter().map(|v| f64::from(v & 2)).sum()];
    let mut blocks: Vec<(i32, i32)> =
        x.chunks(128).map(|b| (b.iter().map(|v| v & 7).sum(), b.iter().min().unwrap() + 256)).collect();
    blocks.sort_unstable();
    run("atomics", &[("x", &bytes), ("words", &bytes_of(&start))], |out| {
        equal(out, "words", &want);
        assert_eq!(long_words(out, "wide"), want_long);
        close(out, "floats", F32, &floats, 0.0, 0.0);
        close(out, "real", F64, &[f64::from(sum) * 0.25], 0.0, 0.0);
        close(out, "halves", F16, &[96.0, 192.0, 96.0, 192.0], 0.0, 0.0);
        close(out, "bfloats", Bf16, &[24.0, 48.0].repeat(4), 0.0, 0.0);
        close(out, "quad", F32, &quad, 0.0, 0.0);
        assert_eq!(out["shorts"], [9, 0, 3, 0]);
        let order = words(out, "order");
        assert_eq!(order[0], 3, "blocks that held the lock");
        let mut got: Vec<(i32, i32)> = (0..3).map(|k| (order[1 + k], order[4 + k])).collect();
        got.sort_unstable();
        assert_eq!(got, blocks);
    });
}

#[test]
fn groups() {
    let n = 256;
    let (bytes, x) = Numbers(127).words(n, 0, 100);
    run("groups", &[("x", &bytes)], |out| {
        let got = words(out, "out");
        let mut elected = vec![0; n / 8];
        for i in 0..n {
            let (warp, tile) = (&x[i / 32 * 32..][..32], &x[i / 8 * 8..][..8]);
            let lane = i % 32;
            let odd: Vec<usize> = (0..32).filter(|&l| warp[l] & 1 == 1).collect();
            let here = odd.iter().position(|&l| l == lane);
            let next = i / 128 * 128 + (i / 32 + 1) % 4 * 32;
            let want = [
                tile.iter().sum(),
                *warp.iter().max().unwrap(),
                tile[..i % 8].iter().sum(),
                warp[..=lane].iter().fold(0, |a, v| a ^ v),
                x[i / 4 * 4 + 3] + (i / 4 % 2) as i32,
                i32::from(tile.iter().any(|&v| v > 90)) + 2 * i32::from(tile.iter().all(|&v| v > 10)),
                here.map_or(0, |rank| (odd.len() * 1000 + rank) as i32),
                here.map_or(0, |_| warp[odd[0]]),
                warp.iter().filter(|&&v| v % 3 == x[i] % 3).count() as i32,
                *x[next..next + 32].iter().max().unwrap(),
            ];
            for (k, w) in want.into_iter().enumerate() {
                let mut g = got[k * n + i];
                if k == 9 && g >= 1_000_000 {
                    // Any thread of the tile may be the one that is invoked.
                    elected[i / 8] += 1;
                    g -= 1_000_000;
                }
                assert_eq!(g, w, "result {k} of thread {i}");
            }
        }
        assert!(elected.iter().all(|&e| e == 1), "one thread of each tile: {elected:?}");
    });
}
