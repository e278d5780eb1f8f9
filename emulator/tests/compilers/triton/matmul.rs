//! References of `matmul.py`, but for block scales.

use super::run;
use crate::compilers::harness::close;
use crate::compilers::number::*;
use crate::compilers::product::{F32_SUM, products};

products! { run;
    mm_f16: 200 136 96, F16 -> F32, Plain, F32_SUM;
    mm_bf16: 128 128 128, Bf16 -> Bf16, Plain, F32_SUM;
    mm_f16_small: 32 32 64, F16 -> F32, Plain, F32_SUM;
    mm_tf32: 128 64 64, F32 -> F32, Plain, 2e-3;
    mm_ieee: 32 32 32, F32 -> F32, Plain, F32_SUM;
    mm_tf32x3: 64 64 32, F32 -> F32, Plain, 4e-6;
    mm_e4m3: 128 128 256, E4m3 -> F32, AlongK, 2e-3;
    mm_e5m2: 128 64 128, E5m2 -> F32, AlongK, 2e-3;
    mm_e4m3_small: 32 32 64, E4m3 -> F32, AlongK, F32_SUM;
    mm_s8: 128 128 128, S8 -> S32, AlongK, 0.0;
    mm_f16_f16: 128 64 64, F16 -> F16, Plain, 2e-3;
    mm_f64: 32 32 32, F64 -> F64, Plain, 1e-14;
    mm_8warps: 256 128 64, F16 -> F32, Plain, F32_SUM;
    tma_f16: 256 128 256, F16 -> F16, AlongK, F32_SUM;
    tma_edge: 200 72 104, Bf16 -> F32, AlongK, F32_SUM;
    tma_e4m3: 128 128 256, E4m3 -> F16, AlongK, 2e-3;
    tma_f32: 128 64 64, F32 -> F32, AlongK, 2e-3;
    tma_transposed: 256 128 128, F16 -> F16, AcrossK, F32_SUM;
    tma_transposed_f32: 128 64 64, F32 -> F32, AcrossK, 2e-3;
    tma_device: 256 128 128, F16 -> F16, Plain, F32_SUM;
    tma_reduce: 128 64 128, F16 -> F32, AlongK, F32_SUM;
    persistent: 256 256 128, F16 -> F16, AlongK, F32_SUM;
    persistent_ws: 256 256 192, F16 -> F16, AlongK, F32_SUM;
    persistent_cluster: 512 256 192, F16 -> F16, AlongK, F32_SUM;
    specialised: 128 128 320, F16 -> F16, AlongK, F32_SUM;
    specialised_64: 128 128 320, F16 -> F16, AlongK, F32_SUM;
    tma_cluster: 256 256 128, F16 -> F16, AlongK, F32_SUM;
    tma_bn256: 128 256 128, F16 -> F16, AlongK, F32_SUM;
}

fn attention(name: &str, ty: Type, rows: usize, length: usize) {
    let d = 64;
    let mut r = Numbers(41);
    let (bq, q) = r.reals(ty, rows * d, -1.0, 1.0);
    let ((bk, k), (bv, v)) = (r.reals(ty, length * d, -1.0, 1.0), r.reals(ty, length * d, -1.0, 1.0));
    let mut want = Vec::new();
    for q in q.chunks(d) {
        let s: Vec<f64> =
            k.chunks(d).map(|k| q.iter().zip(k).map(|(a, b)| a * b).sum::<f64>() * 0.18).collect();
        let top = s.iter().copied().fold(f64::MIN, f64::max);
        let p: Vec<f64> = s.iter().map(|s| (s - top).exp2()).collect();
        let total: f64 = p.iter().sum();
        want.extend((0..d).map(|j| (0..length).map(|i| p[i] * v[i * d + j]).sum::<f64>() / total));
    }
    let step = if ty == Bf16 { 4e-3 } else { 5e-4 };
    run(name, &[("q", &bq), ("k", &bk), ("v", &bv)], |out| close(out, "out", ty, &want, step, step));
}

#[test]
fn attention_of_64_rows() {
    attention("attention", F16, 128, 128);
}

#[test]
fn attention_of_128_rows_by_specialised_warps() {
    attention("attention_128", Bf16, 128, 256);
}

#[test]
fn rows_by_an_index() {
    let mut r = Numbers(42);
    let (bytes, a) = r.reals(F16, 64 * 64, -1.0, 1.0);
    let index: Vec<i32> = (0..16).map(|i| (i * 13 + 5) % 64).collect();
    let mut want = vec![0.0; 64 * 64];
    for &k in &index {
        for c in 0..64 {
            want[(63 - k as usize) * 64 + c] = 2.0 * a[k as usize * 64 + c];
        }
    }
    let words: Vec<u8> = index.iter().flat_map(|k| k.to_le_bytes()).collect();
    run("row_gather", &[("a", &bytes), ("index", &words)], |out| close(out, "out", F16, &want, 0.0, 0.0));
}
