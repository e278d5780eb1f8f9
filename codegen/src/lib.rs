//! Problem and configuration to plan to PTX: the code generator of silumin.
//!
//! * `model/`: problems, formats and chips; kernels, which come out at the end. `config/`: the knobs.
//! * `frontend/`: declarations and gates. `dsl/`: their text in `dual_gemm!`.
//! * `legalize/`: what is refused. `heuristics/`: how `auto` is settled. `plan/`: what all targets share of a plan.
//! * `target/`: what differs from chip to chip, a folder for each way to multiply.
//! * `render/`: plans to PTX, through the templates. `report/`: plans for people.

#![forbid(unsafe_code)]
// A format, a knob's value or a chip that is added has to be met wherever it matters: the compiler lists where.
#![warn(clippy::wildcard_enum_match_arm)]
// What only rendering uses stays in without it: the macro's build is judged by its time, and this one by its lints.
#![cfg_attr(not(feature = "render"), allow(dead_code, unused_imports))]

#[cfg(all(doctest, feature = "render"))]
#[doc = include_str!("../README.md")]
mod readme {}

pub mod config;
#[allow(clippy::wildcard_enum_match_arm)] // tokens, of which most are treated alike
pub mod dsl;
pub mod error;
mod frontend;
mod heuristics;
mod legalize;
mod model;
pub mod plan;
#[cfg(feature = "render")]
pub mod prepare;
#[cfg(feature = "render")]
pub mod render;
mod report;
mod suggest;
pub mod target;

pub use frontend::{declaration as spec, gate};
pub use model::{arch, kernel, problem};
