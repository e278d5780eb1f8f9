//! What the templates of sm_120a print.
//!
//! * `multiply.rs`: operands and scale factors on their way to registers, and MMAs.

mod multiply;

use super::Mma;
use crate::config::{KOrder, Schedule};
use crate::kernel::Parameter;
use crate::plan::Plan;
use crate::render::view::View;
use crate::render::{Entry, Producer, RenderError, text};
use crate::target::sm_90a::view::consumer::WarpgroupView;
use crate::target::sm_90a::view::roles::{Epilogue, Fixup, Setup, Teardown};
use askama::Template;
use multiply::MultiplyView;

#[derive(Template)]
#[template(path = "sm_120a/gemm.ptx")]
struct MmaTemplate<'a> {
    p: &'a Plan,
    t: &'a View<'a>,
    w: &'a WarpgroupView,
    name: &'a str,
    parameters: &'a [Parameter],
    setup: Setup<'a>,
    producer: Producer<'a>,
    fixup: Option<Fixup<'a>>,
    consumer: Consumer<'a>,
    epilogue: Epilogue<'a>,
    teardown: Teardown<'a>,
}

/// Vectors of four sums that one loop over a tile's parts adds up. ptxas loads all of them before it adds the first.
const ROUND_VECTORS: usize = 24;

/// Warps that issue MMAs.
#[derive(Template)]
#[template(path = "sm_120a/consumer.ptx")]
struct Consumer<'a> {
    p: &'a Plan,
    t: &'a View<'a>,
    w: &'a WarpgroupView,
    m: &'a MultiplyView,
}

/// See [`crate::target::Isa::render`].
pub(super) fn render(mma: &Mma, entry: &Entry<'_>) -> Result<String, RenderError> {
    let Entry { plan: p, view: t, role, name, parameters } = *entry;
    let shared = WarpgroupView::new(p, role, mma.groups, t.store.staging, t.store.packing);
    let partials = shared.partials.into_iter().flat_map(|round| round.split(ROUND_VECTORS)).collect();
    let w = &WarpgroupView { warps_apart: true, partials, ..shared };
    let m = &MultiplyView::new(p, mma, &w.products);
    text(&MmaTemplate {
        p,
        t,
        w,
        name,
        parameters,
        setup: Setup { p, t, w },
        producer: Producer { p, t },
        fixup: (t.work.fixup_count > 0).then_some(Fixup { p, t, w }),
        consumer: Consumer { p, t, w, m },
        epilogue: Epilogue { p, t, w },
        teardown: Teardown { t },
    })
}
