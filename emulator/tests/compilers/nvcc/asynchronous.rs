//! References of `asynchronous.cu`.

use super::run;
use crate::compilers::harness::{close, equal};
use crate::compilers::number::*;

#[test]
fn pipelined() {
    let (n, tiles) = (4950, 5);
    let mut r = Numbers(131);
    let ((bytes, x), (bw, weights)) = (r.reals(F32, n, -1.0, 1.0), r.reals(F32, tiles, -1.0, 1.0));
    let mut want = Vec::new();
    for thread in 0..256 {
        let (block, t) = (thread / 128, thread % 128);
        let of = |k: usize, j: usize| {
            let at = (block * tiles + k) * 512 + (t + 128 * j + 37) % 512;
            x.get(at).map_or(0.0, |v| v * weights[k])
        };
        want.push((0..tiles).flat_map(|k| (0..4).map(move |j| (k, j))).map(|(k, j)| of(k, j)).sum());
    }
    run("pipelined", &[("x", &bytes), ("weights", &bw)], |out| close(out, "out", F32, &want, 0.0, 3e-6));
}

#[test]
fn producer() {
    let (bytes, x) = Numbers(132).words(64 * 12, -1000, 1000);
    let of = |i: usize| {
        let (block, t) = (i / 64, i % 64);
        (0..6).fold(0i32, |sum, k| sum * 3 + x[(block * 6 + k) * 64 + 63 - (t + 1) % 64])
    };
    let want: Vec<i32> = (0..128).map(of).collect();
    run("producer", &[("x", &bytes)], |out| equal(out, "out", &want));
}

#[test]
fn bulk() {
    let (bytes, x) = Numbers(133).reals(F32, 768, -1.0, 1.0);
    let want: Vec<f64> = x.iter().map(|v| F32.round(2.0 * v + 1.0)).collect();
    let total: Vec<f64> = (0..256).map(|k| want[k] + want[k + 256] + want[k + 512]).collect();
    run("bulk", &[("x", &bytes)], |out| {
        close(out, "out", F32, &want, 0.0, 0.0);
        close(out, "total", F32, &total, 0.0, 1e-6);
    });
}

#[test]
fn stencil() {
    let (columns, rows) = (60, 40);
    let (bytes, x) = Numbers(134).reals(F32, columns * rows, -1.0, 1.0);
    let at = |r: i32, c: i32| {
        let inside = (0..rows as i32).contains(&r) && (0..columns as i32).contains(&c);
        if inside { x[r as usize * columns + c as usize] } else { 0.0 }
    };
    let mut want = Vec::new();
    for r in 0..rows as i32 {
        for c in 0..columns as i32 {
            want.push(4.0 * at(r, c) - at(r - 1, c) - at(r + 1, c) - at(r, c - 1) - at(r, c + 1));
        }
    }
    run("stencil", &[("x", &bytes)], |out| close(out, "out", F32, &want, 0.0, 2e-6));
}

#[test]
fn cluster_histogram() {
    let (bytes, x) = Numbers(135).words(2000, 0, 128);
    let mut want = vec![0; 128];
    x.iter().for_each(|&v| want[v as usize] += 1);
    run("cluster_histogram", &[("x", &bytes)], |out| equal(out, "out", &want));
}

#[test]
fn cluster_ring() {
    let (_, words) = Numbers(136).words(1024, -500, 500);
    let x: Vec<f64> = words.iter().map(|&v| v.into()).collect();
    // Ranks in a cluster of 2 x 2 go along x first.
    let thread = |cluster: usize, rank: usize, t: usize| ((cluster * 2 + rank / 2) * 2 + rank % 2) * 128 + t;
    let mut want = vec![0.0; 1024];
    for cluster in 0..2 {
        for rank in 0..4 {
            for t in 0..128 {
                let from = |k: usize| x[thread(cluster, (rank + 8 - k) % 4, t)] + k as f64;
                want[thread(cluster, rank, t)] = (0..=5).map(from).sum();
            }
        }
    }
    run("cluster_ring", &[("x", &F32.encode_all(&x))], |out| close(out, "out", F32, &want, 0.0, 0.0));
}

#[test]
fn multicast() {
    let (bytes, x) = Numbers(137).reals(F32, 1024, -1.0, 1.0);
    let of = |i: usize| {
        let (block, k) = (i / 512, i % 512);
        x[block / 2 * 512 + k] * if block % 2 == 0 { 1.0 } else { -1.0 }
    };
    let want: Vec<f64> = (0..2048).map(of).collect();
    run("multicast", &[("x", &bytes)], |out| close(out, "out", F32, &want, 0.0, 0.0));
}

#[test]
fn dependent() {
    let (bytes, x) = Numbers(138).words(128, -1000, 1000);
    let want: Vec<i32> = x.iter().map(|v| v * 3 + 1).collect();
    run("dependent", &[("x", &bytes)], |out| equal(out, "out", &want));
}

#[test]
fn stealing() {
    let (bytes, x) = Numbers(139).words(768, -1000, 1000);
    let want: Vec<i32> = x.iter().enumerate().map(|(i, v)| v + (i / 64) as i32).collect();
    run("stealing", &[("x", &bytes)], |out| {
        equal(out, "out", &want);
        equal(out, "taken", &[12]);
    });
}
