//! What is computed, on which chip, and the kernel that comes of it.

pub mod arch;
pub mod kernel;
pub mod problem;
