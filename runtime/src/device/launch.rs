//! Arguments of a launch, and its report.

use silumin_codegen::kernel::WorkspaceBuffer;
use silumin_codegen::plan::{Operand, TensorMapRecipe};

use super::emulated;

/// What a launch reports when it returns.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct LaunchReport {
    /// Counts of the emulated device, summed over the launches; `None` on other devices.
    pub emulator: Option<emulated::EmulatorStats>,
    /// Counts of each launch, in order; empty on other devices.
    pub launches: Vec<emulated::EmulatorStats>,
}

/// An argument of a kernel; tensors are given by role.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Argument<'a> {
    /// A tensor map.
    TensorMap(TensorMapRecipe),
    /// An address.
    Pointer(Operand),
    /// The address of a buffer of the workspace.
    Workspace(&'a WorkspaceBuffer),
    /// A number.
    U32(u32),
    /// A scalar.
    F32(f32),
    /// The address of a vector of the gate, by its name.
    Vector(&'a str),
}
