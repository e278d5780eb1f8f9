//! What the chips hold and do, from what is published. Nothing of it was measured here, and no time is predicted for these chips:
//! the emulator's clock has no file of numbers for them.

use crate::arch::Limits;
use std::sync::LazyLock;

/// Largest dynamic shared memory of a CTA (CUDA C++ programming guide, technical specifications, compute capability 12.x: 99 KB).
const SMEM_BYTES: u32 = 99 * 1024;
/// Cycles of a load that misses L2 (arXiv 2507.10789, an RTX 5080: 877).
const DRAM_CYCLES: f64 = 877.0;
/// Bytes that an SM takes from L2 in a cycle, at most: a sector of 32 bytes from each of two slices, as on earlier chips.
const SM_BYTES: f64 = 64.0;
/// Bytes that shared memory delivers in a cycle (CUDA C++ programming guide: 32 banks of 4 bytes).
const BANK_BYTES: f64 = 128.0;

/// GeForce RTX 5090: 170 SMs, 2407 MHz, 1792 GB/s; 1676 TFLOP/s of FP4 without sparsity (NVIDIA RTX Blackwell GPU architecture, 2025,
/// appendix A). 8-bit elements reach half of it, with scale factors (QuACK: 728) or with sums in f16. A GeForce adds up 16-bit and
/// plain 8-bit products in fp32 at half the rate. Floors leave that out, since an RTX PRO does not.
pub(crate) static RTX_5090: LazyLock<Limits> = LazyLock::new(|| limits(170, 2407.0, 1676e12, 1792e9));

/// DGX Spark (GB10): 48 SMs, 1 PFLOP/s of FP4 with sparsity, 273 GB/s of LPDDR5X (NVIDIA DGX Spark data sheet, 2025). Its clock is that
/// at which 48 SMs with the tensor cores of an RTX 5090 reach that rate.
pub(crate) static DGX_SPARK: LazyLock<Limits> = LazyLock::new(|| limits(48, 2543.0, 500e12, 273e9));

fn limits(sms: u32, megahertz: f64, fp4_ops_per_second: f64, dram_bytes_per_second: f64) -> Limits {
    let hertz = megahertz * 1e6;
    Limits {
        smem_bytes: SMEM_BYTES,
        tmem_columns: 0,
        sms,
        fp4_ops_per_second,
        fp8_ops_per_second: fp4_ops_per_second / 2.0,
        dram_bytes_per_second,
        dram_latency: DRAM_CYCLES / hertz,
        l2_bytes_per_second: f64::from(sms) * SM_BYTES * hertz,
        sm_bytes_per_second: SM_BYTES * hertz,
        smem_bytes_per_second: BANK_BYTES * hertz,
        // There are neither copies to tensor memory nor clusters.
        scale_copy: 0.0,
        clusters: [0; 3],
        cluster_bytes_per_second: 0.0,
        cluster_barrier: 0.0,
        // That of an H200 (chips/h200.toml): none is published.
        launch_gap: 1.34e-6,
    }
}
