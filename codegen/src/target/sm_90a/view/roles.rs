//! The roles of a kernel, a template each. Why they are not one: see [`crate::render::Producer`].

use super::consumer::{WarpgroupPass, WarpgroupView};
use super::decode::{DecodeLayout, DecodeView, PackedView};
use super::promotion::PromotionView;
use crate::config::{KOrder, Schedule};
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

/// Declares the registers of the consumer warps.
#[derive(Template)]
#[template(
    ext = "ptx",
    source = r#"{%- import "common/fragments/consumer.ptx" as shared -%}{%- call shared::declare(t, w) %}{% endcall %}"#
)]
pub(in crate::target) struct DeclareConsumer<'a> {
    t: &'a View<'a>,
    w: &'a WarpgroupView,
}

/// MMAs of one K tile of decoded weights.
#[derive(Template)]
#[template(path = "sm_90a/decoded_k_tile.ptx")]
pub(in crate::target) struct DecodedKTile<'a> {
    t: &'a View<'a>,
    w: &'a WarpgroupView,
    d: &'a DecodeView,
}

/// A K loop whose sums leave the tensor core at intervals.
#[derive(Template)]
#[template(
    ext = "ptx",
    source = r#"{%- import "sm_90a/promotion.ptx" as promotion -%}{%- call promotion::k_loop(p, t, w, pass, interval) %}{% endcall %}"#
)]
pub(in crate::target) struct PromotedKLoop<'a> {
    p: &'a Plan,
    t: &'a View<'a>,
    w: &'a WarpgroupView,
    pass: &'a WarpgroupPass,
    interval: &'a PromotionView,
}

impl WarpgroupView {
    pub(in crate::target) fn declare<'a>(&'a self, t: &'a View<'a>) -> DeclareConsumer<'a> {
        DeclareConsumer { t, w: self }
    }

    pub(in crate::target) fn decoded_k_tile<'a>(
        &'a self,
        t: &'a View<'a>,
        d: &'a DecodeView,
    ) -> DecodedKTile<'a> {
        DecodedKTile { t, w: self, d }
    }

    pub(in crate::target) fn promoted_k_loop<'a>(
        &'a self,
        t: &'a View<'a>,
        pass: &'a WarpgroupPass,
        interval: &'a PromotionView,
    ) -> PromotedKLoop<'a> {
        PromotedKLoop { p: t.p, t, w: self, pass, interval }
    }
}
