//! The roles of a kernel, a template each. Why they are not one: see [`crate::render::Producer`].

use super::consumer::WarpgroupView;
use super::decode::{DecodeLayout, DecodeView, PackedView};
use crate::config::{KOrder, Multicast, Raster, Schedule};
use crate::plan::Plan;
use crate::problem::OutputElement;
use crate::render::view::View;
use askama::Template;

/// Registers, barriers and what all warps start with.
#[derive(Template)]
#[template(path = "common/fragments/setup.ptx")]
pub(in crate::target) struct Setup<'a> {
    pub p: &'a Plan,
    pub t: &'a View<'a>,
    pub w: &'a WarpgroupView,
}

/// Warps that decode A into the order of K of decoded weights.
#[derive(Template)]
#[template(path = "sm_90a/unpack.ptx")]
pub(super) struct Unpack<'a> {
    pub p: &'a Plan,
    pub t: &'a View<'a>,
    pub d: &'a DecodeView,
    pub packed: &'a PackedView,
}

/// Warps that bring A into the order of K of decoded weights.
#[derive(Template)]
#[template(path = "sm_90a/order.ptx")]
pub(super) struct Order<'a> {
    pub p: &'a Plan,
    pub t: &'a View<'a>,
    pub d: &'a DecodeView,
}

/// The warp that sees to the fixup of two parts of a tile.
#[derive(Template)]
#[template(path = "common/fragments/fixup.ptx")]
pub(in crate::target) struct Fixup<'a> {
    pub p: &'a Plan,
    pub t: &'a View<'a>,
    pub w: &'a WarpgroupView,
}

/// Warpgroups that issue MMAs.
#[derive(Template)]
#[template(path = "sm_90a/consumer.ptx")]
pub(super) struct Consumer<'a> {
    pub p: &'a Plan,
    pub t: &'a View<'a>,
    pub w: &'a WarpgroupView,
}

/// Sums to results.
#[derive(Template)]
#[template(path = "common/fragments/epilogue.ptx")]
pub(in crate::target) struct Epilogue<'a> {
    pub p: &'a Plan,
    pub t: &'a View<'a>,
    pub w: &'a WarpgroupView,
}

/// How all warps end.
#[derive(Template)]
#[template(path = "common/fragments/teardown.ptx")]
pub(in crate::target) struct Teardown<'a> {
    pub t: &'a View<'a>,
}
