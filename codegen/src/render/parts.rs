//! Parts of roles that are templates of their own, and the calls that render them.
//!
//! A macro of a template becomes a part of each function that calls it, and rustc checks borrows in time that grows with the
//! square of a function's length. So the longest macros are called here, once each (decision 0227).

use super::view::View;
use super::view::preactivations::SavedProduct;
use super::view::producer::Pass;
use crate::config::{KOrder, Multicast, Raster, Schedule};
use crate::problem::OutputElement;
use askama::Template;

/// Coordinates of the item of work; `shifts` divides by powers of two with shifts.
#[derive(Template)]
#[template(
    ext = "ptx",
    source = r#"{%- import "common/work.ptx" as work -%}{%- call work::locate(t, shifts) %}{% endcall %}"#
)]
pub(crate) struct LocateWork<'a> {
    t: &'a View<'a>,
    shifts: bool,
}

/// Rounds a chunk of C and stores it.
#[derive(Template)]
#[template(
    ext = "ptx",
    source = r#"{%- import "common/epilogue_macros.ptx" as part -%}{%- call part::store_chunk(t) %}{% endcall %}"#
)]
pub(crate) struct StoreChunk<'a> {
    t: &'a View<'a>,
}

/// Rounds a chunk of pre-activations and stores it.
#[derive(Template)]
#[template(
    ext = "ptx",
    source = r#"{%- import "common/preactivations.ptx" as preactivations -%}{%- call preactivations::keep(kept) %}{% endcall %}"#
)]
pub(crate) struct StorePreactivations<'a> {
    kept: &'a [SavedProduct],
}

/// Loads the scale factors of one K tile to the next slot of their ring.
#[derive(Template)]
#[template(
    ext = "ptx",
    source = r#"{%- import "common/producer_macros.ptx" as part -%}{%- call part::load_slot(t, pass) %}{% endcall %}"#
)]
pub(crate) struct LoadSlot<'a> {
    t: &'a View<'a>,
    pass: &'a Pass,
}

/// Loads the scale factors of the K tile in a stage.
#[derive(Template)]
#[template(
    ext = "ptx",
    source = r#"{%- import "common/producer_macros.ptx" as part -%}{%- call part::load_stage_scales(t, pass) %}{% endcall %}"#
)]
pub(crate) struct LoadStageScales<'a> {
    t: &'a View<'a>,
    pass: &'a Pass,
}

impl View<'_> {
    pub fn locate_work(&self, shifts: bool) -> LocateWork<'_> {
        LocateWork { t: self, shifts }
    }

    pub fn store_chunk(&self) -> StoreChunk<'_> {
        StoreChunk { t: self }
    }

    pub fn store_preactivations<'a>(&self, kept: &'a [SavedProduct]) -> StorePreactivations<'a> {
        StorePreactivations { kept }
    }

    pub fn load_slot<'a>(&'a self, pass: &'a Pass) -> LoadSlot<'a> {
        LoadSlot { t: self, pass }
    }

    pub fn load_stage_scales<'a>(&'a self, pass: &'a Pass) -> LoadStageScales<'a> {
        LoadStageScales { t: self, pass }
    }
}
