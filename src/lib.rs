//! Gated dual GEMMs for LLM inference.

pub use silumin_codegen as codegen;
pub use silumin_codegen::arch::Arch;
pub use silumin_codegen::problem::Shape;
pub use silumin_runtime as runtime;
