//! An old spelling of a knob's value compiles with a note; here the note is an error.

#![deny(deprecated)]

use silumin::dual_gemm;

dual_gemm! {
    Old<nvfp4 -> f16, k_order = ping_pong> = silu(A @ B1) * (A @ B2);
}

fn main() {
    let _ = dual_gemm!(<nvfp4 -> f16, stages = 2, k_order = ping_pong> silu(A @ B1) * (A @ B2));
    let _ = &*Old;
}
