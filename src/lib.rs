//! Gated dual GEMMs for LLM inference.

pub use silumin_codegen as codegen;
