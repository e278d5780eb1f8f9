//! Problem and configuration to plan to PTX: the code generator of silumin.

#![forbid(unsafe_code)]
// A format, a knob's value or a chip that is added has to be met wherever it matters: the compiler lists where.
#![warn(clippy::wildcard_enum_match_arm)]
// What only rendering uses stays in without it: the macro's build is judged by its time, and this one by its lints.
#![cfg_attr(not(feature = "render"), allow(dead_code, unused_imports))]

pub mod arch;
pub mod config;
#[allow(clippy::wildcard_enum_match_arm)] // tokens and expressions, of which most are treated alike
pub mod dsl;
pub mod error;
#[allow(clippy::wildcard_enum_match_arm)] // tokens and expressions, of which most are treated alike
pub mod gate;
mod heuristics;
pub mod kernel;
pub(crate) mod legalize;
pub mod plan;
#[cfg(feature = "render")]
pub mod prepare;
pub mod problem;
#[cfg(feature = "render")]
pub mod render;
mod report;
pub mod spec;
mod suggest;
pub mod target;
