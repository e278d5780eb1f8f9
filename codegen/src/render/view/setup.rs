//! What a CTA sets up: barriers and tensor maps.

use super::Role;
use crate::plan::{BarrierKind, Operand, Plan, TensorMapRecipe};
use std::fmt;

/// Where barriers of a kind are, in bytes from the base of SMEM. Printing one that the plan does not have is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(Option<(u32, BarrierKind)>);

impl Place {
    /// Where the plan has them.
    pub fn new(p: &Plan, kind: BarrierKind) -> Place {
        Place(p.barrier(kind).map(|offset| (offset, kind)))
    }

    /// What they are called.
    pub fn name(&self) -> &'static str {
        self.0.map_or("", |(_, kind)| kind.name())
    }

    /// This one, or the other where the plan does not have it.
    fn or(self, other: Place) -> Place {
        Place(self.0.or(other.0))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.ok_or(fmt::Error)?.0.fmt(f)
    }
}

/// Where barriers are.
pub(crate) struct BarrierView {
    pub full: Place,
    pub empty: Place,
    pub sf_full: Place,
    pub sf_empty: Place,
    /// Whether slots of scale factors are given back, on barriers of their own.
    pub sf_ring: bool,
    /// Done when product 1 is complete: both, where they end together.
    pub product1_done: Place,
    pub product2_done: Place,
    /// Done when both products are complete.
    pub all_done: Place,
    pub accumulators_free: Place,
    pub answer_full: Place,
    pub answer_read: Place,
    /// The barrier behind which it is known which part that is.
    pub part_known: Place,
    /// The barrier behind which the other CTAs that share a tile's K have room for this one's sums.
    pub peers_read: Place,
    /// The barrier on which other CTAs' sums of this one's part of a tile arrive.
    pub sums_arrived: Place,
}

impl BarrierView {
    pub fn new(p: &Plan) -> Self {
        let barrier = |kind| Place::new(p, kind);
        let both = barrier(BarrierKind::ProductsDone);
        let product2_done = barrier(BarrierKind::Product2Done);
        let product1_done = barrier(BarrierKind::Product1Done).or(both);
        let all_done = both.or(product2_done);
        BarrierView {
            full: barrier(BarrierKind::Full),
            empty: barrier(BarrierKind::Empty),
            sf_full: barrier(BarrierKind::SfFull),
            sf_empty: barrier(BarrierKind::SfEmpty),
            sf_ring: p.barrier(BarrierKind::SfEmpty).is_some(),
            product1_done,
            product2_done,
            all_done,
            accumulators_free: barrier(BarrierKind::AccumulatorsFree).or(barrier(BarrierKind::SharedFree)),
            answer_full: barrier(BarrierKind::AnswerFull),
            answer_read: barrier(BarrierKind::AnswerRead),
            part_known: barrier(BarrierKind::PartKnown),
            peers_read: barrier(BarrierKind::PeersRead),
            sums_arrived: barrier(BarrierKind::SumsArrived),
        }
    }
}

/// Barriers of one kind.
pub(crate) struct SetupBarrier {
    pub kind: BarrierKind,
    pub offsets: Vec<u32>,
    pub arrivals: u32,
}

/// What a CTA sets up.
pub(crate) struct SetupView {
    pub barriers: Vec<SetupBarrier>,
    pub maps: Vec<TensorMapRecipe>,
}

impl SetupView {
    pub fn new(p: &Plan, role: Role) -> Self {
        SetupView { barriers: barriers(p), maps: maps(p, role) }
    }
}

fn barriers(p: &Plan) -> Vec<SetupBarrier> {
    let view = |b: &crate::plan::Barrier| SetupBarrier {
        kind: b.kind,
        offsets: (0..b.count).map(|i| b.offset + 8 * i).collect(),
        arrivals: b.arrivals,
    };
    p.barriers.iter().map(view).collect()
}

/// The tensor maps that an entry takes.
pub(crate) fn maps(p: &Plan, role: Role) -> Vec<TensorMapRecipe> {
    let needed = |operand| match role {
        Role::Fused | Role::Single => true,
        Role::Product => !matches!(operand, Operand::B2 | Operand::Sfb2 | Operand::C),
        Role::Gated => !matches!(operand, Operand::B1 | Operand::Sfb1),
        Role::Gate => false,
    };
    p.tensor_maps.iter().filter(|map| needed(map.operand)).copied().collect()
}
