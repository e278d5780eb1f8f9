//! Chips: what each one can hold and how fast it is. A new chip is a row here, a folder of
//! templates and its tests.

use crate::problem::MmaKind;
use std::fmt;
use std::str::FromStr;

/// A chip that silumin emits kernels for, named as PTX's `.target` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Arch {
    /// Blackwell B200 / GB200, compute capability 10.0, architecture-specific features.
    Sm100a,
}

/// What bounds a kernel on one chip. Sizes are per CTA unless the name says otherwise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Largest dynamic shared memory of a CTA, in bytes (opt-in limit of the driver).
    pub smem_bytes: u32,
    /// Tensor-memory columns of an SM; a column is 128 lanes of 32 bits (PTX ISA 9.7.16.1).
    pub tmem_columns: u32,
    /// Streaming multiprocessors of the product that users rent.
    pub sms: u32,
    /// Dense FP4 tensor-core rate in operations a second (a multiply-add counts two), as marketed.
    pub fp4_ops_per_second: f64,
    /// DRAM bandwidth in bytes a second, from bus width times measured memory clock.
    pub dram_bytes_per_second: f64,
}

impl Arch {
    /// All chips, in order of age.
    pub const ALL: [Arch; 1] = [Arch::Sm100a];

    /// The name that PTX's `.target` and ptxas' `-arch` take, `sm_100a` for example.
    pub const fn target(self) -> &'static str {
        match self {
            Arch::Sm100a => "sm_100a",
        }
    }

    /// The chip's table of limits.
    pub const fn limits(self) -> &'static Limits {
        match self {
            Arch::Sm100a => &Limits {
                smem_bytes: 232_448,
                tmem_columns: 512,
                sms: 148,
                fp4_ops_per_second: 9.0e15,
                dram_bytes_per_second: 7.67e12,
            },
        }
    }
}

impl Limits {
    /// Dense tensor-core rate of a kind of MMA in operations a second: FP4's, or half and a quarter of it
    /// with 8-bit and 16-bit elements (all three as marketed).
    pub fn ops_per_second(&self, kind: MmaKind) -> f64 {
        self.fp4_ops_per_second * 4.0 / f64::from(kind.container_bits())
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.target())
    }
}

/// The text names no chip that silumin emits kernels for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is not a chip silumin emits for; it is one of: {}", names())]
pub struct UnknownArch {
    /// What was written.
    pub given: String,
}

fn names() -> String {
    Arch::ALL.map(|arch| arch.target()).join(", ")
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
