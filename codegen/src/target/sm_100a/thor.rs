//! What a Jetson Thor holds and does. Its numbers are published ones or, where none is published, a B200's in cycles and an H200's gap
//! between launches. None was measured, and no time is predicted for this chip: the emulator's clock has no file of numbers for it.

use crate::arch::{Limits, RESERVED_SMEM};
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
/// Cycles of a load that misses L2: a B200's (`chips/b200.toml`), without the way to a second partition of L2.
const DRAM_CYCLES: f64 = 838.0;
/// Bytes that an SM takes from L2 in a cycle: a B200's.
const SM_BYTES: f64 = 90.0;
/// Bytes that an SM reads of another one's shared memory in a cycle: a B200's.
const CLUSTER_BYTES: f64 = 21.0;
/// Cycles of a barrier of a cluster: a B200's.
const BARRIER_CYCLES: f64 = 357.0;
/// Cycles of a copy of 512 bytes of scale factors: a B200's.
const SCALE_COPY_CYCLES: f64 = 16.0;
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
    dram_latency: DRAM_CYCLES / HERTZ,
    l2_bytes_per_second: f64::from(SMS) * SM_BYTES * HERTZ,
    sm_bytes_per_second: SM_BYTES * HERTZ,
    smem_bytes_per_second: BANK_BYTES * HERTZ,
    scale_copy: SCALE_COPY_CYCLES / HERTZ,
    // 20 SMs in 3 GPCs of 6 to 8.
    clusters: [10, 4, 1],
    cluster_bytes_per_second: CLUSTER_BYTES * HERTZ,
    cluster_barrier: BARRIER_CYCLES / HERTZ,
    // An H200's (chips/h200.toml): none is published.
    launch_gap: 1.34e-6,
});
