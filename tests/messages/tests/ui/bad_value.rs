use silumin::dual_gemm;

fn main() {
    let _ = dual_gemm!(<stages = many> silu(A @ B1) * (A @ B2));
    let _ = dual_gemm!(<tile = [128, 128]> silu(A @ B1) * (A @ B2));
    let _ = dual_gemm!(<k_order = split_tail, stages = -1> silu(A @ B1) * (A @ B2));
    let _ = dual_gemm!(<cache = [a: evict_never]> silu(A @ B1) * (A @ B2));
    let _ = dual_gemm!(<stages = , store = tma> silu(A @ B1) * (A @ B2));
    let _ = dual_gemm!(<shape = 4096> silu(A @ B1) * (A @ B2));
    let _ = dual_gemm!(<preactivations = e4m3> silu(A @ B1) * (A @ B2));
}
