//! The roles of a kernel, a template each. Why they are not one: see [`crate::render::Producer`].

use super::MmaView;
use crate::config::{Accumulators, KOrder, Multicast, Raster, Schedule, SfPreload};
use crate::plan::Plan;
use crate::problem::OutputElement;
use crate::render::view::View;
use askama::Template;

/// Registers, barriers, tensor memory and what all warps start with.
#[derive(Template)]
#[template(path = "sm_100a/setup.ptx")]
pub(super) struct Setup<'a> {
    pub p: &'a Plan,
    pub t: &'a View<'a>,
    pub m: &'a MmaView<'a>,
}

/// The warp that issues MMAs.
#[derive(Template)]
#[template(path = "sm_100a/mma.ptx")]
pub(super) struct Mma<'a> {
    pub p: &'a Plan,
    pub t: &'a View<'a>,
    pub m: &'a MmaView<'a>,
}

/// Tensor memory to results.
#[derive(Template)]
#[template(path = "sm_100a/epilogue.ptx")]
pub(super) struct Epilogue<'a> {
    pub p: &'a Plan,
    pub t: &'a View<'a>,
    pub m: &'a MmaView<'a>,
}

/// How all warps end.
#[derive(Template)]
#[template(path = "sm_100a/teardown.ptx")]
pub(super) struct Teardown<'a> {
    pub t: &'a View<'a>,
    pub m: &'a MmaView<'a>,
}
