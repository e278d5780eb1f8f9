//! A plan for people: what it is, why it is so, what it moves.
//!
//! * `describe.rs`: a plan as text.
//! * `explain.rs`: why a plan is as it is, and what bounds it.
//! * `traffic.rs`: bytes that each launch moves, MMAs that it issues.
//! * `groups.rs`: what groups of given sizes make of it.

mod describe;
mod explain;
mod groups;
mod traffic;

pub(crate) use describe::write_regions;
pub use explain::{Balance, Choice, Explanation, MemoryBudget, Stage, WhatIf};
pub use traffic::Traffic;
