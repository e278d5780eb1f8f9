use silumin::dual_gemm;

dual_gemm! {
    /// Each of these has its own caret.
    pub SwiGlu<fp4 -> f16, stages = 99x, stores = tma> = silu(A @ B1) * swish(A @ B2);
}

fn main() {
    let made = dual_gemm!(<stages = 40, tile = [128, 100, 256]> silu(A @ B1) * (A @ B2));
    let _ = made.shape();
}
