//! What the templates of sm_90a print.
//!
//! * `consumer.rs`: MMAs and sums of warpgroups.
//! * `decode.rs`: NVFP4 and MXFP4 weights on their way to registers.
//! * `order_first.rs`: activations on their way into the order of K of such weights.
//! * `promotion.rs`: sums that leave the tensor core before the end of K.
//! * `roles.rs`: the templates of a kernel's roles.
//! * `sum_scales.rs`: f32 scale factors of blocks of K.

pub(in crate::target) mod consumer;
mod decode;
mod order_first;
mod promotion;
pub(in crate::target) mod roles;
mod sum_scales;

use super::Wgmma;
use crate::kernel::{Launch, Parameter};
use crate::plan::Plan;
use crate::render::view::View;
use crate::render::view::lanes::FragmentLayout;
use crate::render::view::parts::PARTIALS_AHEAD;
use crate::render::{Entry, Producer, RenderError, TargetView, text};
use askama::Template;
use consumer::WarpgroupView;
use order_first::OrderFirst;
use roles::{Consumer, Epilogue, Fixup, Order, Setup, Teardown, Unpack};

/// Registers of a thread that an epilogue needs beside sums, at a guess: for a chunk, its gate, and addresses.
const EPILOGUE_REGISTERS: u32 = 88;

#[derive(Template)]
#[template(path = "sm_90a/gemm.ptx")]
struct WarpgroupTemplate<'a> {
    p: &'a Plan,
    t: &'a View<'a>,
    w: &'a WarpgroupView,
    name: &'a str,
    parameters: &'a [Parameter],
    setup: Setup<'a>,
    producer: Producer<'a>,
    unpack: Option<Unpack<'a>>,
    order: Option<Order<'a>>,
    fixup: Option<Fixup<'a>>,
    consumer: Consumer<'a>,
    epilogue: Epilogue<'a>,
    teardown: Teardown<'a>,
}

#[derive(Template)]
#[template(path = "sm_90a/order_first.ptx")]
struct OrderTemplate<'a> {
    t: &'a OrderFirst,
    name: &'a str,
    parameters: &'a [Parameter],
}

/// See [`crate::target::Isa::view`].
pub(super) fn target_view(warpgroups: &Wgmma, plan: &Plan) -> TargetView {
    let chunk = plan.epilogue.chunk;
    let sums = warpgroups.product_registers * plan.strategy.products();
    TargetView {
        producer_warp: 4 * warpgroups.count,
        held: FragmentLayout::warpgroup(chunk, plan.swap_ab, warpgroups.interleaved_rows),
        registers: chunk / if warpgroups.interleaved_rows { 4 } else { 2 },
        free_registers: free_registers(warpgroups, plan),
        addends: Some(sums.min(4 * PARTIALS_AHEAD as u32)),
        keeps_words: false,
        places_staging: false,
        // In clusters it costs time (decision 0231).
        producer_alone: plan.cluster_ctas() == 1,
        space: "cluster",
        second_column: 0,
        shared_columns: 0,
    }
}

/// Registers of a thread beside sums and what an epilogue needs. The latter is an estimate; tests count what `ptxas` spills.
fn free_registers(warpgroups: &Wgmma, plan: &Plan) -> u32 {
    let sums = warpgroups.product_registers.saturating_mul(plan.problem.operation.products());
    warpgroups.registers[0].saturating_sub(sums.saturating_add(EPILOGUE_REGISTERS))
}

/// See [`crate::target::Isa::render`].
pub(super) fn render(warpgroups: &Wgmma, entry: &Entry<'_>) -> Result<String, RenderError> {
    let Entry { plan: p, view: t, role, name, parameters } = *entry;
    let w = &WarpgroupView::new(p, role, *warpgroups, t.store.staging, t.store.packing);
    // MMAs with rows of both products read activations that an earlier launch has brought into order.
    let decode = w.decode.as_ref().filter(|_| w.orders_beside());
    let packed = decode.and_then(|d| d.order.packed.as_ref().map(|packed| (d, packed)));
    text(&WarpgroupTemplate {
        p,
        t,
        w,
        name,
        parameters,
        setup: Setup { p, t, w },
        producer: Producer { p, t },
        unpack: packed.map(|(d, packed)| Unpack { p, t, d, packed }),
        order: decode.filter(|_| packed.is_none()).map(|d| Order { p, t, d }),
        fixup: (t.work.fixup_count > 0).then_some(Fixup { p, t, w }),
        consumer: Consumer { p, t, w },
        epilogue: Epilogue { p, t, w },
        teardown: Teardown { t },
    })
}

/// See [`crate::target::Isa::render_before`].
pub(super) fn render_before(
    warpgroups: &Wgmma,
    plan: &Plan,
    name: &str,
) -> Result<Vec<(String, Launch)>, RenderError> {
    if !warpgroups.ordered {
        return Ok(Vec::new());
    }
    let view = OrderFirst::new(plan);
    let entry = format!("{name}_order");
    let parameters = view.parameters(plan);
    let ptx = text(&OrderTemplate { t: &view, name: &entry, parameters: &parameters })?;
    Ok(vec![(ptx, view.launch(entry, parameters))])
}
