use silumin::dual_gemm;

fn main() {
    let _ = dual_gemm!(<nvfp4 -> f16> silu(A @ B1 + bias[k]) * (A @ B2));
    let _ = dual_gemm!(<nvfp4 -> f16> silu(A @ B1 + bias[n]) * (A @ B2 + bias[m]));
    let _ = dual_gemm!(<nvfp4 -> f16> silu(A @ B1 + A[n]) * (A @ B2));
    let _ = dual_gemm!(<A: nvfp4, bias: f16> silu(A @ B1 + bias[n]) * (A @ B2));
}
