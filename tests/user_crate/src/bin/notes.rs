//! An old spelling of a knob's value and a scalar with a vector's name compile with a note; here notes are errors.

#![deny(deprecated)]

use silumin::dual_gemm;

dual_gemm! {
    Old<nvfp4 -> f16, k_order = ping_pong> = silu(A @ B1) * (A @ B2);
}

fn main() {
    let _ = dual_gemm!(<nvfp4 -> f16, stages = 2, k_order = ping_pong> silu(A @ B1) * (A @ B2));
    let _ = &*Old;
    let _ = dual_gemm!(<nvfp4 -> f16> silu(A @ B1 + bias) * (A @ B2));
}
