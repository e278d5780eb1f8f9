//! Chips: what each one can hold and how fast it is. A new chip is a name here, its row in `target/chip.rs`, and, where it
//! multiplies in a way of its own, a folder beside that.

use crate::problem::MmaKind;
use crate::suggest::did_you_mean;
use crate::target::chip::chip;
use std::fmt;
use std::str::FromStr;

/// A chip that silumin emits kernels for, named as PTX's `.target` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Arch {
    /// Hopper H100 / H200, compute capability 9.0, architecture-specific features.
    Sm90a,
    /// Blackwell B200 / GB200, compute capability 10.0, architecture-specific features.
    Sm100a,
    /// The family of compute capabilities 10.0 and 10.3, with the features that both have: one kernel for
    /// B200 and B300.
    Sm100f,
    /// Blackwell Ultra B300 / GB300, compute capability 10.3, architecture-specific features.
    Sm103a,
    /// Blackwell Jetson Thor, compute capability 11.0, architecture-specific features.
    Sm110a,
    /// Blackwell GeForce RTX 50 and RTX PRO, compute capability 12.0, architecture-specific features.
    Sm120a,
    /// Blackwell DGX Spark (GB10), compute capability 12.1, architecture-specific features.
    Sm121a,
}

/// How a chip multiplies matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TensorCore {
    /// Warpgroups issue MMAs and hold the accumulators in their registers (`wgmma`, PTX ISA 9.7.15).
    Wgmma,
    /// A thread issues MMAs, and accumulators are in tensor memory (`tcgen05`, PTX ISA 9.7.16).
    Tcgen05,
    /// Each warp issues MMAs whose operands and accumulators are in its registers (`mma.sync`, PTX ISA 9.7.14).
    Mma,
}

/// What the system keeps of an SM's shared memory for each CTA, in bytes (CUDA C++ programming guide, technical specifications).
pub(crate) const RESERVED_SMEM: u32 = 1024;

/// What bounds a kernel on one chip. Sizes are per CTA unless the name says otherwise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Largest dynamic shared memory of a CTA, in bytes (opt-in limit of the driver).
    pub smem_bytes: u32,
    /// Tensor-memory columns of an SM; a column is 128 lanes of 32 bits (PTX ISA 9.7.16.1). 0 where there is none.
    pub tmem_columns: u32,
    /// Streaming multiprocessors of the product that users rent.
    pub sms: u32,
    /// Dense FP4 tensor-core rate in operations a second (a multiply-add counts two) at the chip's highest clock; 0 where there
    /// is none.
    pub fp4_ops_per_second: f64,
    /// The same for FP8; 16-bit elements take twice as long.
    pub fp8_ops_per_second: f64,
    /// What DRAM delivers in bytes a second.
    pub dram_bytes_per_second: f64,
    /// Seconds from a load that misses L2 to its data.
    pub dram_latency: f64,
    /// What L2 delivers to all SMs together in bytes a second.
    pub l2_bytes_per_second: f64,
    /// What one SM takes from L2 in bytes a second.
    pub sm_bytes_per_second: f64,
    /// What shared memory of an SM delivers in bytes a second.
    pub smem_bytes_per_second: f64,
    /// Seconds that the tensor core's queue takes for a copy of 512 bytes of scale factors.
    pub scale_copy: f64,
    /// Clusters of 2, 4 and 8 CTAs that run at once, with an SM for each CTA.
    pub clusters: [u32; 3],
    /// What one SM sends to another one's shared memory in bytes a second.
    pub cluster_bytes_per_second: f64,
    /// Seconds of the way from one SM of a cluster to another.
    pub cluster_latency: f64,
    /// Seconds from the end of a kernel to the first instruction of the next one on the stream.
    pub launch_gap: f64,
}

impl Arch {
    /// All chips, in order of age.
    pub const ALL: [Arch; 7] =
        [Arch::Sm90a, Arch::Sm100a, Arch::Sm100f, Arch::Sm103a, Arch::Sm110a, Arch::Sm120a, Arch::Sm121a];

    /// The name that PTX's `.target` and ptxas' `-arch` take, `sm_100a` for example.
    pub const fn target(self) -> &'static str {
        chip(self).name
    }

    /// The chip whose gate code it runs: gates use nothing that the chips of a family do not share.
    pub const fn gate_target(self) -> &'static str {
        chip(self).gate_target
    }

    /// How it multiplies matrices.
    pub const fn tensor_core(self) -> TensorCore {
        chip(self).tensor_core
    }

    /// The lowest PTX ISA version that knows the target: major, minor.
    pub const fn ptx_version(self) -> (u32, u32) {
        chip(self).ptx_version
    }

    /// Whether it is a family target: what several chips have.
    pub const fn is_family(self) -> bool {
        chip(self).family
    }

    /// What the product that users of this chip rent or own can hold and do, from its file of numbers: `chips/h200.toml`,
    /// `b200.toml` (a family's weaker chip, too), `b300.toml`, `jetson_thor.toml`, `rtx_5090.toml` or `dgx_spark.toml`.
    pub fn limits(self) -> &'static Limits {
        chip(self).limits
    }
}

impl Limits {
    /// Largest dynamic shared memory of each of `ctas` CTAs that an SM runs at once, in bytes: the system keeps some for each.
    pub(crate) fn smem_of(&self, ctas: u32) -> u32 {
        (self.smem_bytes + RESERVED_SMEM) / ctas - RESERVED_SMEM
    }

    /// Dense tensor-core rate of a kind of MMA in operations a second.
    pub fn ops_per_second(&self, kind: MmaKind) -> f64 {
        match kind {
            MmaKind::Mxf4Nvf4 | MmaKind::Mxf4 => self.fp4_ops_per_second,
            MmaKind::Mxf8f6f4 | MmaKind::F8f6f4 => self.fp8_ops_per_second,
            MmaKind::F16 | MmaKind::Decoded => self.fp8_ops_per_second / 2.0,
        }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.target())
    }
}

/// The text names no chip that silumin emits kernels for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is not a chip silumin emits for{}; it is one of: {}", did_you_mean(given, names()), names().join(", "))]
pub struct UnknownArch {
    /// What was written.
    pub given: String,
}

fn names() -> [&'static str; Arch::ALL.len()] {
    Arch::ALL.map(Arch::target)
}

impl FromStr for Arch {
    type Err = UnknownArch;

    fn from_str(text: &str) -> Result<Self, UnknownArch> {
        Arch::ALL
            .into_iter()
            .find(|arch| arch.target() == text.trim())
            .ok_or_else(|| UnknownArch { given: text.trim().to_owned() })
    }
}
