use silumin::dual_gemm;

fn main() {
    let _ = dual_gemm!(<nvfp4 -> f16, stagse = 4> silu(A @ B1) * (A @ B2));
    let _ = dual_gemm!(<nvfp4 -> f16, cluster = 2> silu(A @ B1) * (A @ B2));
}
