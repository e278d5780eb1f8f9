//! What the templates of sm_100a print.
//!
//! * `mma.rs`: what the MMA warp issues.
//! * `roles.rs`: the templates of a kernel's roles.

mod mma;
mod roles;

use super::Tcgen05;
use crate::kernel::Parameter;
use crate::plan::{Plan, TmemMap};
use crate::render::view::View;
use crate::render::view::lanes::FragmentLayout;
use crate::render::{Entry, Producer, RenderError, TargetView, text};
use askama::Template;
use mma::Block;
use roles::{Epilogue, Mma, Setup, Teardown};

#[derive(Template)]
#[template(path = "sm_100a/gemm.ptx")]
struct GemmTemplate<'a> {
    p: &'a Plan,
    t: &'a View<'a>,
    m: &'a MmaView<'a>,
    name: &'a str,
    parameters: &'a [Parameter],
    setup: Setup<'a>,
    producer: Producer<'a>,
    mma: Mma<'a>,
    epilogue: Epilogue<'a>,
    teardown: Teardown<'a>,
}

/// The third argument of the templates of sm_100a.
struct MmaView<'a> {
    tmem: &'a TmemMap,
    buffers: u32,
    collector: bool,
    /// Warps, in order: 0 to the last that finishes tiles, the one that loads, the one that issues MMAs.
    last_epilogue_warp: u32,
    producer_warp: u32,
    mma_warp: u32,
    /// Threads that wait for tensor memory to be allocated.
    allocation_threads: u32,
    /// The register of the accumulators' first column.
    d: &'static str,
    /// From the base of SMEM to the scale factors, and from one K tile's to the next's, in 16-byte units.
    scales_units: u32,
    scale_tile_step: u32,
    scale_high: String,
    /// `.kind::...` with the size of its scale vectors.
    kind: String,
    blocks: Vec<Block>,
}

impl<'a> MmaView<'a> {
    fn new(p: &Plan, tcgen05: &'a Tcgen05) -> Self {
        let tmem = &tcgen05.tmem;
        MmaView {
            tmem,
            buffers: tcgen05.buffers,
            collector: tcgen05.collector,
            last_epilogue_warp: tcgen05.epilogue_warps - 1,
            producer_warp: tcgen05.epilogue_warps,
            mma_warp: tcgen05.epilogue_warps + 1,
            allocation_threads: 32 * (tcgen05.epilogue_warps + 1),
            d: if tcgen05.buffers > 1 { "%d" } else { "%tmem" },
            scales_units: p.smem.scales / 16,
            scale_tile_step: p.scales.tile_bytes / 16,
            scale_high: format!("{:#010x}", p.descriptors.scale_high),
            kind: match p.kind.scales_per_mma() {
                0 => p.kind.to_string(),
                // Family targets take the younger spelling only.
                scales if p.arch.is_family() => {
                    format!("{}.block_scale.block{}", p.kind, p.kind.mma_k() / scales)
                }
                scales => format!("{}.block_scale.scale_vec::{scales}X", p.kind),
            },
            blocks: (0..p.k_loop.blocks).map(|index| mma::block(p, tmem, index)).collect(),
        }
    }
}

/// See [`crate::target::Isa::view`].
pub(super) fn target_view(tcgen05: &Tcgen05, plan: &Plan) -> TargetView {
    let chunk = plan.epilogue.chunk;
    TargetView {
        producer_warp: tcgen05.epilogue_warps,
        held: FragmentLayout::new(plan.epilogue.load, chunk, plan.swap_ab),
        registers: chunk,
        free_registers: 0,
        addends: None,
        keeps_words: true,
        places_staging: true,
        // Not before a B200 was seen to need it (decision 0231).
        producer_alone: false,
        space: "cluster",
        second_column: tcgen05.tmem.second,
        shared_columns: tcgen05.tmem.shared,
    }
}

/// See [`crate::target::Isa::render`].
pub(super) fn render(tcgen05: &Tcgen05, entry: &Entry<'_>) -> Result<String, RenderError> {
    let Entry { plan: p, view: t, name, parameters, .. } = *entry;
    let m = &MmaView::new(p, tcgen05);
    text(&GemmTemplate {
        p,
        t,
        m,
        name,
        parameters,
        setup: Setup { p, t, m },
        producer: Producer { p, t },
        mma: Mma { p, t, m },
        epilogue: Epilogue { p, t, m },
        teardown: Teardown { t, m },
    })
}
