use silumin::dual_gemm;

fn main() {
    let _ = dual_gemm!(<stages = 4, tile = auto, stages = 3> silu(A @ B1) * (A @ B2));
    let _ = dual_gemm!(<nvfp4 -> f16, A: nvfp4> silu(A @ B1) * (A @ B2));
    let _ = dual_gemm!(<C: f16, D: f16> silu(A @ B1) * (A @ B2));
}
