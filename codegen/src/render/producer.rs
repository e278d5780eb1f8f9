//! The template of the producer's role.

use crate::config::{Accumulators, KOrder, Schedule, SfPreload};
use crate::plan::Plan;
use crate::render::view::View;
use askama::Template;

/// The producer's role, for all chips.
///
/// Roles are templates of their own and not included in the kernel's: an included template is a part of the function that renders
/// the kernel, and the compiler checks borrows in time that grows with the square of a function's length.
#[derive(Clone, Copy, Template)]
#[template(path = "common/producer.ptx")]
pub(crate) struct Producer<'a> {
    pub p: &'a Plan,
    pub t: &'a View<'a>,
}
