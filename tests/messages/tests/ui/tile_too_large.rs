use silumin::dual_gemm;

fn main() {
    let _ = dual_gemm!(<nvfp4 -> f16, tile = [128, 256, 256]> silu(A @ B1) * (A @ B2));
    let _ = dual_gemm!(<nvfp4 -> f16, tile = [128, 128, 512], stages = 4> silu(A @ B1) * (A @ B2));
    let _ = dual_gemm!(
        <A: nvfp4, B: nvfp4, C: f16,
         tile = [256, 128, 256], stages = auto, cta_group = 1>
        silu(A @ B1) * (A @ B2)
    );
    let _ = dual_gemm!(
        <sf_preload = all, tile = [128, 128, 256], shape = [128, 128, 262144]> silu(A @ B1) * (A @ B2)
    );
}
