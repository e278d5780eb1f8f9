//! A finished kernel: its PTX and everything a host needs to launch it.

use crate::arch::Arch;
use crate::plan::{Operand, Plan, TensorMapRecipe};
use crate::problem::Problem;
use std::fmt;

/// PTX text with its launch facts. Any host that follows them can run it: silumin's runtime, a
/// CUDA program of your own, or the emulator.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Kernel {
    /// The entry's name.
    pub name: String,
    /// The chip: the module's `.target`, to be matched exactly.
    pub arch: Arch,
    /// The module's text.
    pub ptx: String,
    /// What it computes.
    pub problem: Problem,
    /// CTAs in x, y and z.
    pub grid: [u32; 3],
    /// CTAs of a cluster in x, y and z.
    pub cluster: [u32; 3],
    /// Threads of a CTA in x, y and z.
    pub block: [u32; 3],
    /// Dynamic shared memory in bytes. Above 48 KiB it needs
    /// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
    pub dynamic_smem: u32,
    /// The entry's parameters, in order.
    pub parameters: Vec<Parameter>,
    /// The PTX ISA version the module asks for: major, minor.
    pub ptx_version: (u32, u32),
    /// blake3 over the PTX and the launch facts: the key of caches.
    pub hash: [u8; 32],
}

/// A parameter of a kernel's entry.
#[derive(Clone, Debug, PartialEq)]
pub enum Parameter {
    /// A 128-byte tensor map, 64-byte aligned, encoded from the recipe and the tensor's address.
    TensorMap(TensorMapRecipe),
    /// The address of a tensor, 16-byte aligned.
    Pointer(Operand),
    /// An f32 of the gate, by the user's name for it.
    Scalar(String),
    /// The f32 scale of the whole C, positive and finite: the value of an element of C is its code times
    /// its scale factor times this.
    OutputScale,
}

impl Parameter {
    /// The parameter's name in the PTX.
    pub fn name(&self) -> String {
        match self {
            Parameter::TensorMap(recipe) => format!("{}_map", recipe.operand),
            Parameter::Pointer(operand) => operand.name().to_owned(),
            Parameter::Scalar(name) => format!("scalar_{name}"),
            Parameter::OutputScale => "c_scale".to_owned(),
        }
    }

    /// The parameter's declaration in the PTX.
    pub fn declaration(&self) -> String {
        let name = self.name();
        match self {
            Parameter::TensorMap(_) => format!(".param .align 64 .b8 {name}[128]"),
            Parameter::Pointer(_) => format!(".param .u64 {name}"),
            Parameter::Scalar(_) | Parameter::OutputScale => format!(".param .f32 {name}"),
        }
    }
}

impl fmt::Display for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.declaration())
    }
}

impl Kernel {
    /// The hash as 64 hexadecimal digits.
    pub fn hash_hex(&self) -> String {
        blake3::Hash::from_bytes(self.hash).to_hex().to_string()
    }

    /// Puts text and launch facts together and hashes them.
    pub(crate) fn new(plan: &Plan, name: String, ptx: String, parameters: Vec<Parameter>) -> Kernel {
        let mut kernel = Kernel {
            name,
            arch: plan.arch,
            ptx,
            problem: plan.problem,
            grid: [plan.m_tiles * plan.cta_group.ctas(), plan.n_tiles, 1],
            cluster: [plan.cta_group.ctas(), 1, 1],
            block: [plan.threads, 1, 1],
            dynamic_smem: plan.smem.total,
            parameters,
            ptx_version: plan.ptx_version,
            hash: [0; 32],
        };
        let facts = format!(
            "{} {} {:?} {:?} {:?} {} {:?}\n",
            kernel.name,
            kernel.arch,
            kernel.grid,
            kernel.cluster,
            kernel.block,
            kernel.dynamic_smem,
            kernel.parameters
        );
        let mut hasher = blake3::Hasher::new();
        hasher.update(facts.as_bytes());
        hasher.update(kernel.ptx.as_bytes());
        kernel.hash = *hasher.finalize().as_bytes();
        kernel
    }
}
