//! The roles of a kernel, a template each. Why they are not one: see [`crate::render::Producer`].

use super::MmaView;
use super::mma::{Block, Mma as BlockMma};
use crate::config::{Accumulators, KOrder, Schedule, SfPreload};
use crate::plan::{Plan, Staging};
use crate::render::view::View;
use askama::Template;
use std::borrow::Borrow;

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

/// One MMA of a K block, into the accumulator at column `d`.
#[derive(Template)]
#[template(
    ext = "ptx",
    source = r#"{%- import "sm_100a/mma_macros.ptx" as tile -%}{%- call tile::multiply(t, m, block, mma, d, collector, name) %}{% endcall %}"#
)]
pub(super) struct Multiply<'a> {
    t: &'a View<'a>,
    m: &'a MmaView<'a>,
    block: &'a Block,
    mma: &'a BlockMma,
    d: u32,
    collector: &'a str,
    name: &'a str,
}

/// Stores a part's sums to the workspace.
#[derive(Template)]
#[template(
    ext = "ptx",
    source = r#"{%- import "sm_100a/partials.ptx" as partials -%}{%- call partials::give(t) %}{% endcall %}"#
)]
pub(super) struct StorePartials<'a> {
    t: &'a View<'a>,
}

/// Adds up the parts of a chunk.
#[derive(Template)]
#[template(
    ext = "ptx",
    source = r#"{%- import "sm_100a/partials.ptx" as partials -%}{%- call partials::sum(t) %}{% endcall %}"#
)]
pub(super) struct SumPartials<'a> {
    t: &'a View<'a>,
}

/// Sends a part's sums to the CTA of the cluster that finishes them.
#[derive(Template)]
#[template(
    ext = "ptx",
    source = r#"{%- import "sm_100a/cluster_parts.ptx" as parts -%}{%- call parts::give(t) %}{% endcall %}"#
)]
pub(super) struct SendClusterParts<'a> {
    t: &'a View<'a>,
}

/// Adds up the cluster's parts of a chunk.
#[derive(Template)]
#[template(
    ext = "ptx",
    source = r#"{%- import "sm_100a/cluster_parts.ptx" as parts -%}{%- call parts::sum(t) %}{% endcall %}"#
)]
pub(super) struct SumClusterParts<'a> {
    t: &'a View<'a>,
}

/// Sends a tile of C from its staging in shared memory.
#[derive(Template)]
#[template(path = "sm_100a/send.ptx")]
pub(super) struct SendTile<'a> {
    p: &'a Plan,
    t: &'a View<'a>,
    s: &'a Staging,
}

impl MmaView<'_> {
    pub(super) fn send_tile<'a>(&self, t: &'a View<'a>, s: &'a Staging) -> SendTile<'a> {
        SendTile { p: t.p, t, s }
    }

    /// `d` is the accumulator's column. It is `Borrow<u32>` because askama passes literals by value and fields by reference.
    pub(super) fn multiply<'a>(
        &'a self,
        t: &'a View<'a>,
        block: &'a Block,
        mma: &'a BlockMma,
        d: impl Borrow<u32>,
        collector: &'a str,
        name: &'a str,
    ) -> Multiply<'a> {
        Multiply { t, m: self, block, mma, d: *d.borrow(), collector, name }
    }

    pub(super) fn store_partials<'a>(&self, t: &'a View<'a>) -> StorePartials<'a> {
        StorePartials { t }
    }

    pub(super) fn sum_partials<'a>(&self, t: &'a View<'a>) -> SumPartials<'a> {
        SumPartials { t }
    }

    pub(super) fn send_cluster_parts<'a>(&self, t: &'a View<'a>) -> SendClusterParts<'a> {
        SendClusterParts { t }
    }

    pub(super) fn sum_cluster_parts<'a>(&self, t: &'a View<'a>) -> SumClusterParts<'a> {
        SumClusterParts { t }
    }
}
