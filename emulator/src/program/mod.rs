//! The executable form of a kernel: every name resolved to a slot, every modifier to a value.
//!
//! * `mod.rs`: slots and predicates, instructions and programs.
//! * `operands.rs`: operands of memory, barriers, lanes and matrices.
//! * `op.rs`: the operations.

mod op;
mod operands;

pub(crate) use op::Op;
pub(crate) use operands::*;

use crate::lanes::Lanes;

/// Index of a data register, or from `CONSTANTS` on of a constant.
pub(crate) type Slot = u32;
/// No operand; as a destination, `_`.
pub(crate) const SINK: Slot = u32::MAX;
/// First slot that stands for a constant of the program.
pub(crate) const CONSTANTS: Slot = 1 << 30;
/// The predicate register that is always true.
pub(crate) const TRUE: u32 = 0;
/// The predicate register that holds the carry flag `CC.CF`.
pub(crate) const CARRY: u32 = 1;
/// Offset of a program's first shared variable: the hardware keeps the first KiB for itself.
pub(crate) const SMEM_BASE: u32 = 1024;

/// A predicate source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pred {
    pub slot: u32,
    pub negated: bool,
}

impl Pred {
    pub const ALWAYS: Pred = Pred { slot: TRUE, negated: false };
}

/// An operation with its guard and source line.
#[derive(Clone, Debug)]
pub(crate) struct Inst {
    pub guard: Option<Pred>,
    pub op: Op,
    pub line: u32,
    /// The instruction's opcode, by its number in [`Program::opcodes`].
    pub opcode: u32,
    pub order: Order,
    pub scope: Scope,
}

/// A kernel parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ParamInfo {
    pub name: String,
    pub offset: u32,
    pub bytes: u32,
}

/// A kernel, ready to run.
#[derive(Debug)]
pub(crate) struct Program {
    pub code: Vec<Inst>,
    /// Opcodes with their modifiers; the first is empty.
    pub opcodes: Vec<String>,
    /// Index of the return that ends the kernel's own body.
    pub exit_pc: u32,
    pub registers: u32,
    pub predicates: u32,
    pub constants: Vec<Lanes>,
    pub specials: Vec<(Slot, Special)>,
    pub params: Vec<ParamInfo>,
    pub param_bytes: u32,
    /// Whether the kernel has a `wgmma`.
    pub wgmma: bool,
    /// End of the static shared variables, as an offset from 0.
    pub static_end: u32,
    /// Bytes of local memory per thread.
    pub local_bytes: u32,
    pub reqntid: Option<[u32; 3]>,
    pub maxntid: Option<[u32; 3]>,
    pub reqcluster: Option<[u32; 3]>,
    /// `.minnctapersm`.
    pub min_ctas: Option<u32>,
    /// Most threads of an SM of the target. ptxas ignores `.minnctapersm` if it asks for more.
    pub sm_threads: u32,
    /// `.maxnreg`.
    pub max_registers: Option<u32>,
    /// Whether the kernel has a `setmaxnreg`.
    pub hands_registers_over: bool,
    /// The largest count of its `setmaxnreg.inc`; `None` if it has none.
    pub largest_increase: Option<u32>,
    /// Names of data registers, for messages: `(first slot, count, name)`.
    pub names: Vec<(Slot, u32, String)>,
}

impl Program {
    /// Name of a data register, for messages.
    pub fn register_name(&self, slot: Slot) -> String {
        let i = self.names.partition_point(|n| n.0 <= slot);
        match i.checked_sub(1).map(|i| &self.names[i]) {
            Some((first, 1, name)) if *first == slot => name.clone(),
            Some((first, count, name)) if slot - first < *count => {
                format!("{name}{}", slot - first)
            }
            _ => format!("register {slot}"),
        }
    }
}
