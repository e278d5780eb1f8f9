//! A row of facts for each chip, and the numbers of `chips/*.toml`, the files that predicted times are made from, so that
//! rules and floors use the same ones.
//!
//! The emulator reads these files whole and judges their form; a test holds the two readings together.

use super::way;
use crate::arch::{Arch, Limits, RESERVED_SMEM, TensorCore};
use std::sync::LazyLock;

/// The facts of a chip.
pub(crate) struct Chip {
    /// The name in PTX's `.target`.
    pub name: &'static str,
    /// The chip whose gate code it runs.
    pub gate_target: &'static str,
    /// How it multiplies.
    pub tensor_core: TensorCore,
    /// The lowest PTX ISA version that knows the target.
    pub ptx_version: (u32, u32),
    /// Whether it is a family target.
    pub family: bool,
    /// The product that users rent.
    pub limits: &'static LazyLock<Limits>,
}

/// The row of a chip.
pub(crate) const fn chip(arch: Arch) -> &'static Chip {
    match arch {
        Arch::Sm90a => &SM_90A,
        Arch::Sm100a => &SM_100A,
        Arch::Sm100f => &SM_100F,
        Arch::Sm103a => &SM_103A,
        Arch::Sm110a => &SM_110A,
        Arch::Sm120a => &SM_120A,
        Arch::Sm121a => &SM_121A,
    }
}

static H200: LazyLock<Limits> =
    LazyLock::new(|| limits(include_str!("../../chips/h200.toml"), TensorCore::Wgmma));
static B200: LazyLock<Limits> =
    LazyLock::new(|| limits(include_str!("../../chips/b200.toml"), TensorCore::Tcgen05));
static B300: LazyLock<Limits> =
    LazyLock::new(|| limits(include_str!("../../chips/b300.toml"), TensorCore::Tcgen05));
static JETSON_THOR: LazyLock<Limits> =
    LazyLock::new(|| limits(include_str!("../../chips/jetson_thor.toml"), TensorCore::Tcgen05));
static RTX_5090: LazyLock<Limits> =
    LazyLock::new(|| limits(include_str!("../../chips/rtx_5090.toml"), TensorCore::Mma));
static DGX_SPARK: LazyLock<Limits> =
    LazyLock::new(|| limits(include_str!("../../chips/dgx_spark.toml"), TensorCore::Mma));

static SM_90A: Chip = Chip {
    name: "sm_90a",
    gate_target: "sm_90a",
    tensor_core: TensorCore::Wgmma,
    ptx_version: (8, 0),
    family: false,
    limits: &H200,
};
static SM_100A: Chip = Chip {
    name: "sm_100a",
    gate_target: "sm_100a",
    tensor_core: TensorCore::Tcgen05,
    ptx_version: (8, 6),
    family: false,
    limits: &B200,
};
// Its limits are those of the weaker chip of the family.
static SM_100F: Chip = Chip { name: "sm_100f", ptx_version: (8, 8), family: true, ..SM_100A };
static SM_103A: Chip = Chip { name: "sm_103a", ptx_version: (8, 8), limits: &B300, ..SM_100A };
static SM_110A: Chip = Chip { name: "sm_110a", ptx_version: (9, 0), limits: &JETSON_THOR, ..SM_100A };
static SM_120A: Chip = Chip {
    name: "sm_120a",
    // Its threads hold what those of sm_90a hold, and the code uses nothing that is that chip's alone.
    gate_target: "sm_90a",
    tensor_core: TensorCore::Mma,
    ptx_version: (8, 7),
    family: false,
    limits: &RTX_5090,
};
static SM_121A: Chip = Chip { name: "sm_121a", ptx_version: (8, 8), limits: &DGX_SPARK, ..SM_120A };

/// The value of a number of a chip file, which is a table of its own with `value` first.
fn number(text: &str, name: &str) -> f64 {
    let table = text.split_once(&format!("\n[{name}]\n")).map_or("", |(_, table)| table);
    let value = table.lines().find_map(|line| line.strip_prefix("value = "));
    // The files are part of this crate, and a test reads every number of them.
    value.and_then(|value| value.trim().parse().ok()).unwrap_or(f64::NAN)
}

fn limits(text: &str, tensor_core: TensorCore) -> Limits {
    let number = |name: &str| number(text, name);
    let way = way(tensor_core);
    let (sms, hertz) = (number("sms"), number("clock") * 1e6);
    let (f16, fp4_ratio) = (way.rates)(&number);
    // A mean: half of the lines are in the farther half, and some wait for a refresh, half of it on average.
    let refresh = number("dram_refresh") / number("dram_refresh_interval") * number("dram_refresh") / 2.0;
    let miss = number("dram_latency") + number("dram_far") / 2.0 + refresh;
    Limits {
        smem_bytes: number("smem") as u32 - RESERVED_SMEM,
        tmem_columns: way.tmem_columns,
        sms: sms as u32,
        fp4_ops_per_second: fp4_ratio.map_or(0.0, |ratio| 4.0 * f16 / ratio * sms * hertz),
        fp8_ops_per_second: 2.0 * f16 * sms * hertz,
        dram_bytes_per_second: number("dram_rate") * 1e9,
        dram_latency: (number("l2_latency") + number("l2_far") + miss) / hertz,
        l2_bytes_per_second: number("l2_rate") * hertz,
        sm_bytes_per_second: number("sm_rate") * hertz,
        smem_bytes_per_second: number("smem_rate") * hertz,
        scale_copy: number("tcgen05_copy_scales") / hertz,
        clusters: ["clusters_of_2", "clusters_of_4", "clusters_of_8"].map(|name| number(name) as u32),
        cluster_bytes_per_second: number("dsmem_rate") * hertz,
        cluster_latency: number("dsmem_latency") / hertz,
        launch_gap: number("launch_gap") * 1e-9,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_read() {
        for arch in Arch::ALL {
            let Limits {
                smem_bytes,
                tmem_columns,
                sms,
                fp4_ops_per_second,
                fp8_ops_per_second,
                dram_bytes_per_second,
                dram_latency,
                l2_bytes_per_second,
                sm_bytes_per_second,
                smem_bytes_per_second,
                scale_copy,
                clusters,
                cluster_bytes_per_second,
                cluster_latency,
                launch_gap,
            } = *arch.limits();
            let rates = [dram_latency, l2_bytes_per_second, sm_bytes_per_second, scale_copy];
            let cluster = [cluster_bytes_per_second, cluster_latency, launch_gap];
            assert!(rates.iter().chain(&cluster).all(|number| number.is_finite()), "{arch}: {rates:?}");
            // Small chips, as their makers rate them in FP4 without sparsity.
            let rated = match arch {
                Arch::Sm110a => Some(1035e12),
                Arch::Sm120a => Some(1676e12),
                Arch::Sm121a => Some(500e12),
                Arch::Sm90a | Arch::Sm100a | Arch::Sm100f | Arch::Sm103a => None,
            };
            if let Some(rated) = rated {
                let memories = if arch == Arch::Sm110a { (232_448, 512) } else { (101_376, 0) };
                assert_eq!((smem_bytes, tmem_columns), memories, "{arch}");
                assert!((20..=170).contains(&sms), "{arch}: {sms}");
                assert!((fp4_ops_per_second / rated - 1.0).abs() < 0.01, "{arch}: {fp4_ops_per_second}");
                assert_eq!(fp8_ops_per_second, fp4_ops_per_second / 2.0, "{arch}");
                assert!((2e11..2e12).contains(&dram_bytes_per_second), "{arch}: {dram_bytes_per_second}");
                assert!((2e-7..8e-7).contains(&dram_latency), "{arch}: {dram_latency}");
                assert!(l2_bytes_per_second > dram_bytes_per_second, "{arch}: {l2_bytes_per_second}");
                continue;
            }
            assert_eq!(smem_bytes, 232_448, "{arch}");
            assert!((130..=160).contains(&sms), "{arch}: {sms}");
            let blackwell = arch.tensor_core() == TensorCore::Tcgen05;
            assert_eq!(tmem_columns > 0, blackwell, "{arch}");
            assert_eq!(fp4_ops_per_second > 8e15, blackwell, "{arch}: {fp4_ops_per_second}");
            assert!((1.9e15..6e15).contains(&fp8_ops_per_second), "{arch}: {fp8_ops_per_second}");
            assert!((4e12..9e12).contains(&dram_bytes_per_second), "{arch}: {dram_bytes_per_second}");
            assert!((2e-7..8e-7).contains(&dram_latency), "{arch}: {dram_latency}");
            assert!(l2_bytes_per_second > dram_bytes_per_second, "{arch}: {l2_bytes_per_second}");
            assert!((1e11..4e11).contains(&sm_bytes_per_second), "{arch}: {sm_bytes_per_second}");
            assert!((2e11..3e11).contains(&smem_bytes_per_second), "{arch}: {smem_bytes_per_second}");
            assert!((1e-9..2e-8).contains(&scale_copy), "{arch}: {scale_copy}");
            assert!(clusters.is_sorted_by(|x, y| x > y) && clusters[0] <= sms / 2, "{arch}: {clusters:?}");
            assert!((2e10..2e11).contains(&cluster_bytes_per_second), "{arch}: {cluster_bytes_per_second}");
            assert!((5e-8..5e-7).contains(&cluster_latency), "{arch}: {cluster_latency}");
            assert!((5e-7..3e-6).contains(&launch_gap), "{arch}: {launch_gap}");
        }
        assert!(number(include_str!("../../chips/b200.toml"), "no_such_number").is_nan());
    }
}
