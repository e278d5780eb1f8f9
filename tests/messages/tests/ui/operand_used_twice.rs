use silumin::dual_gemm;

fn main() {
    let _ = dual_gemm!(<nvfp4 -> f16> silu(A @ B1) * (A @ B1));
    let _ = dual_gemm!(<nvfp4 -> f16> silu(A @ B1) * (B1 @ B2));
    let _ = dual_gemm!(<nvfp4 -> f16> silu(A @ A) * (A @ B2));
    let _ = dual_gemm!(<nvfp4 -> f16> silu(A @ B1) * (C @ B2));
}
