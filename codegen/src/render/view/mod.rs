//! The numbers and register lists that templates print, a view for each role.
//!
//! * `mod.rs`: [`View`], one for each entry of a module, and its views.
//! * `work.rs`: which items of work a CTA computes, its cluster.
//! * `setup.rs`: barriers and tensor maps.
//! * `producer.rs`: what the TMA warp loads; `policy.rs`: with which L2 policies.
//! * `facts.rs`: what the views of an epilogue have in common.
//! * `place.rs`, `gate.rs`, `store.rs`, `block_scale.rs`, `parts.rs`: where a thread's chunk is, what becomes of it, how it and its scale
//!   factors are stored, and sums of parts of K.
//! * `cluster.rs`: which CTA of a cluster does what.
//! * `groups.rs`: batches and groups of rows.
//! * `epilogue.rs`: vectors of results.
//! * `inputs.rs`: the gate's vectors; `matrices.rs`: its matrices; `ahead.rs`: their elements loaded some chunks ahead.
//! * `lanes.rs`: which rows and columns a thread has.
//! * `preactivations.rs`: the stores of the pre-activations D1 and D2.
//! * `steps.rs`: where in a stage an MMA finds its operands.
//!
//! What one way to multiply prints is in its folder of `target/`.

mod ahead;
mod block_scale;
mod cluster;
pub(crate) mod epilogue;
mod facts;
mod gate;
mod groups;
mod inputs;
pub(crate) mod lanes;
mod matrices;
pub(crate) mod parts;
mod place;
mod policy;
pub(super) mod preactivations;
pub(super) mod producer;
mod setup;
pub(crate) mod steps;
mod store;
mod work;

pub(crate) use producer::TilePlace;
pub(crate) use setup::Place;
pub(crate) use setup::maps;

use super::RenderError;
use crate::gate::{Expr, GateCode};
use crate::plan::Plan;
use block_scale::OutputScalesView;
use facts::Facts;
use gate::GateView;
use groups::GroupsView;
pub(crate) use lanes::FragmentLayout;
use parts::PartsView;
use place::PlaceView;
use producer::ProducerView;
use setup::{BarrierView, SetupView};
use store::StoreView;
use work::{BuffersView, ClusterView, WorkView};

/// Threads of a CTA of the gate's own kernel.
pub(super) const GATE_THREADS: u32 = 256;

/// What an entry computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Both products and the gate.
    Fused,
    /// One product, to fp32.
    Product,
    /// The second product, and the gate with the first one read back.
    Gated,
    /// The gate alone.
    Gate,
    /// The only product and the gate.
    Single,
}

/// What the way to multiply has for [`View`].
pub(crate) struct TargetView {
    /// The warp that loads.
    pub producer_warp: u32,
    /// What a thread's registers of a chunk hold, and how many of one product there are.
    pub held: FragmentLayout,
    pub registers: u32,
    /// Registers of a thread that no chunk of an epilogue needs, for elements of the gate's vectors and matrices that are loaded
    /// ahead; 0 where chunks are not unrolled.
    pub free_registers: u32,
    /// Registers for sums of another part, unless those of a chunk have room.
    pub addends: Option<u32>,
    /// Whether results that need no conversion have registers of their own as words.
    pub keeps_words: bool,
    /// See [`View`].
    pub places_staging: bool,
    /// See [`ProducerView::alone`].
    pub producer_alone: bool,
    /// The shared memory that loads name: `cluster` or `cta`.
    pub space: &'static str,
    /// Columns from the first product's accumulator to the second's, and those that two buffers share.
    pub second_column: u32,
    pub shared_columns: u32,
}

/// The templates' second argument, beside the plan.
pub(crate) struct View<'a> {
    pub p: &'a Plan,
    /// What the entry is, and what its epilogue does, in words.
    pub about: &'static str,
    pub epilogue_does: &'static str,
    /// Whether operands have scale factors that MMAs or decoding take.
    pub scaled: bool,
    /// The high word of operands' matrix descriptors.
    pub operand_high: String,
    pub work: WorkView,
    pub cluster: ClusterView,
    pub groups: GroupsView,
    pub setup: SetupView,
    pub barrier: BarrierView,
    pub producer: ProducerView,
    pub buffers: BuffersView,
    pub place: PlaceView,
    pub gate: GateView,
    pub store: StoreView,
    pub scales: OutputScalesView,
    pub parts: PartsView,
    pub gate_kernel: GateKernelView,
}

impl<'a> View<'a> {
    pub fn new(p: &'a Plan, gate: &Expr, code: &GateCode, role: Role) -> Result<Self, RenderError> {
        let target = &p.isa().view(p);
        let facts = &Facts::new(p, role, target, &code.whole.vectors);
        let barrier = BarrierView::new(p);
        Ok(View {
            p,
            about: match role {
                Role::Fused => "Both products and the gate.",
                Role::Product => "One product, to fp32.",
                Role::Gated => "The second product, and the gate with the first one read back.",
                Role::Gate => "The gate.",
                Role::Single => "One product and the gate.",
            },
            epilogue_does: if role == Role::Product { "store" } else { "gate, round, store" },
            scaled: p.kind.scales_per_mma() > 0,
            operand_high: format!("{:#010x}", p.descriptors.operand_high),
            work: WorkView::new(p),
            cluster: ClusterView::new(p),
            groups: GroupsView::new(p),
            setup: SetupView::new(p, role),
            producer: ProducerView::new(p, role, &barrier, target),
            barrier,
            buffers: BuffersView::new(p, target),
            place: PlaceView::new(p, facts),
            gate: GateView::new(p, gate, code, facts, target)?,
            store: StoreView::new(p, facts, target),
            scales: OutputScalesView::new(p, facts),
            parts: PartsView::new(p, facts, target),
            gate_kernel: GateKernelView::new(p, facts),
        })
    }
}

/// The gate's own kernel.
pub(crate) struct GateKernelView {
    pub gate_threads: u32,
    pub gate_items: u64,
    pub gate_row_items: u32,
}

impl GateKernelView {
    pub fn new(p: &Plan, facts: &Facts) -> Self {
        let Facts { chunk, gate_pads, .. } = *facts;
        let padded_rows = p.problem.shape.m.next_multiple_of(128);
        let row_items = p.problem.shape.n.div_ceil(chunk);
        GateKernelView {
            gate_threads: GATE_THREADS,
            gate_items: (if gate_pads { u64::from(padded_rows) } else { p.problem.shape.rows() })
                * u64::from(row_items),
            gate_row_items: row_items,
        }
    }
}
