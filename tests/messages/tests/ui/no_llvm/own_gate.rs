use silumin::dual_gemm;

dual_gemm! {
    Tanh<nvfp4 -> f16> = tanh(A @ B1) * (A @ B2);
}

fn main() {
    let _ = dual_gemm!(<nvfp4 -> f16> silu(A @ B1) * silu(A @ B2));
}
