//! What a device is handed for a launch, and what it says of it.

use silumin_codegen::kernel::WorkspaceBuffer;
use silumin_codegen::plan::{Operand, TensorMapRecipe};

use super::emulated;

/// What is known of a launch when it returns.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct LaunchReport {
    /// What the emulated device did; `None` on a device that does not count.
    pub emulator: Option<emulated::EmulatorStats>,
    /// The same of each launch, in order; empty on a device that does not count.
    pub launches: Vec<emulated::EmulatorStats>,
}

/// One argument of a kernel, its tensors by role.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Argument<'a> {
    /// A tensor map.
    TensorMap(TensorMapRecipe),
    /// An address.
    Pointer(Operand),
    /// The address of a buffer of the workspace.
    Workspace(&'a WorkspaceBuffer),
    /// A scalar.
    F32(f32),
    /// The address of a vector of the gate, by its name.
    Vector(&'a str),
}
