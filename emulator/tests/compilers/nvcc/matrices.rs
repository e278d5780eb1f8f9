//! References of `matrices.cu`.

use super::run;
use crate::compilers::harness::close;
use crate::compilers::number::*;
use crate::compilers::product::{F32_SUM, products};
use crate::compilers::scaled::scaled_products;

products! { run;
    mma_f16: 128 64 96, F16 -> F32, AlongK, F32_SUM;
    mma_s8: 32 16 64, S8 -> S32, AlongK, 0.0;
    mma_tf32: 32 16 32, F32 -> F32, AlongK, 1e-3;
    mma_f64: 16 16 16, F64 -> F64, AlongK, 1e-15;
    wgmma_f16: 256 128 320, F16 -> F32, AlongK, F32_SUM;
    tcgen05_f16: 256 128 256, F16 -> F32, AlongK, F32_SUM;
    tcgen05_pair: 512 128 192, Bf16 -> F32, AlongK, F32_SUM;
}

scaled_products! { run;
    tcgen05_nvfp4: E2m1, E2m1, Ue4m3, 16, (256, 128, 512), true, 1e-6;
}

#[test]
fn wgmma_dequantised() {
    let (m, n, k) = (64, 128, 192);
    let mut r = Numbers(141);
    let ((ba, a), (bs, scale)) = (r.reals(S8, m * k, -127.0, 127.0), r.reals(F32, m, 0.001, 0.01));
    let (bb, b) = r.reals(Bf16, k * n, -1.0, 1.0);
    let mut want = Vec::new();
    for row in 0..m {
        let a: Vec<f64> = (0..k).map(|l| Bf16.round(F32.round(a[row * k + l] * scale[row]))).collect();
        want.extend((0..n).map(|c| (0..k).map(|l| a[l] * b[l * n + c]).sum::<f64>()));
    }
    run("wgmma_dequantised", &[("a", &ba), ("scale", &bs), ("b", &bb)], |out| {
        close(out, "c", F32, &want, 0.0, 1e-4);
    });
}
