//! What a Jetson Thor holds and does. Its numbers are published ones or, where none is published, a B200's in cycles and an H200's gap
//! between launches. None was measured, and no time is predicted for this chip: the emulator's clock has no file of numbers for it.

use crate::arch::{Limits, RESERVED_SMEM};
use crate::target::chip::b200;
use crate::target::sm_100a::WAY;
use std::sync::LazyLock;

/// Shared memory of an SM (CUDA C++ programming guide, technical specifications, compute capability 11.0: 228 KB).
const SMEM_BYTES: u32 = 228 * 1024;
/// SMs that a T5000 reports; the die has 24 in 3 GPCs (NVIDIA developer forum, topic 356355, 2026).
const SMS: u32 = 20;
/// The highest clock of its SMs (NVIDIA Jetson AGX Thor data sheet, 2025: 1.57 GHz).
const HERTZ: f64 = 1.57e9;
/// Operations of a dense FP4 MMA a second (the same sheet: 2070 TFLOP/s with sparsity). An SM does as much in a cycle as a B200's.
const FP4_OPS: f64 = 1035e12;
/// LPDDR5X, 256 bits wide (the same sheet).
const DRAM_BYTES: f64 = 273e9;
/// Bytes that shared memory delivers in a cycle (CUDA C++ programming guide: 32 banks of 4 bytes).
const BANK_BYTES: f64 = 128.0;

/// Jetson AGX Thor, T5000.
pub(crate) static JETSON_THOR: LazyLock<Limits> = LazyLock::new(|| Limits {
    smem_bytes: SMEM_BYTES - RESERVED_SMEM,
    tmem_columns: WAY.tmem_columns,
    sms: SMS,
    fp4_ops_per_second: FP4_OPS,
    fp8_ops_per_second: FP4_OPS / 2.0,
    dram_bytes_per_second: DRAM_BYTES,
    // Without the way to a second partition of L2.
    dram_latency: (b200("l2_latency") + b200("dram_latency")) / HERTZ,
    l2_bytes_per_second: f64::from(SMS) * b200("sm_rate") * HERTZ,
    sm_bytes_per_second: b200("sm_rate") * HERTZ,
    smem_bytes_per_second: BANK_BYTES * HERTZ,
    scale_copy: b200("tcgen05_copy_scales") / HERTZ,
    // 20 SMs in 3 GPCs of 6 to 8.
    clusters: [10, 4, 1],
    cluster_bytes_per_second: b200("dsmem_rate") * HERTZ,
    cluster_barrier: b200("cluster_release") / HERTZ,
    // An H200's (chips/h200.toml): none is published.
    launch_gap: 1.34e-6,
});
