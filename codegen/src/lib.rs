//! Problem and configuration to plan to PTX: the code generator of silumin.

#![forbid(unsafe_code)]

pub mod arch;
mod chip;
pub mod config;
pub mod dsl;
pub mod error;
pub mod gate;
pub mod kernel;
pub mod plan;
pub mod prepare;
pub mod problem;
pub mod render;
pub mod spec;
