use silumin::dual_gemm;

fn main() {
    let _ = dual_gemm!(<fp4 -> f16> silu(A @ B1) * (A @ B2));
    let _ = dual_gemm!(<nvfp4 -> f61> silu(A @ B1) * (A @ B2));
    let _ = dual_gemm!(<A: nvfp4, B: int4, C: f16> silu(A @ B1) * (A @ B2));
    let _ = dual_gemm!(<alpha: f32> silu(alpha * (A @ B1)) * (alpha * (A @ B2)));
    let _ = dual_gemm!(<nvfp4> silu(A @ B1) * (A @ B2));
    let _ = dual_gemm!(<nvfp4 -> f16 silu(A @ B1) * (A @ B2));
}
