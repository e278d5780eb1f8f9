//! Which CTA of a cluster does what: who leads, who sends what to whom.

use super::producer::Pass;
use crate::config::{CtaGroup, Multicast};
use crate::plan::Plan;

/// How one CTA's load reaches several.
#[derive(Clone)]
pub(crate) struct Sent {
    /// Nobody in particular where all of them send a box at once.
    pub by: Option<Sender>,
    /// Whether the leader of a pair sends B1's and the peer B2's.
    pub half: bool,
    /// The register with the mask of those it is sent to.
    pub to: &'static str,
}

impl Sent {
    /// What stands before the instruction that sends.
    pub fn guard(&self) -> String {
        self.by.as_ref().map_or(String::new(), |by| format!("@{} ", by.predicate()))
    }
}

/// The CTA that sends a box: the one whose `register`, its place among those that need it, is `place`.
#[derive(Clone, PartialEq)]
pub(crate) struct Sender {
    pub register: &'static str,
    pub place: u32,
}

impl Sender {
    /// The predicate that is true in this CTA.
    pub fn predicate(&self) -> String {
        format!("%sends_{}_{}", self.register.trim_start_matches('%'), self.place)
    }
}

/// The registers that say which CTA of a cluster this is, and the masks of those like it.
#[derive(Clone, Copy)]
pub(crate) struct Places {
    /// Whether several pairs make a cluster, so that these are registers of their own.
    pub pairs: bool,
    /// Place in the pair, and of the pair (or CTA) among its neighbours.
    pub peer: &'static str,
    pub neighbour: &'static str,
    /// The cluster's first CTA.
    pub first: &'static str,
    /// The rank of the pair's leader.
    pub leader: &'static str,
    /// CTAs of the pair; CTAs at the same place of each pair, which need the same part of a shared tile.
    pub pair_ctas: &'static str,
    pub alike_ctas: &'static str,
}

impl Places {
    pub fn new(p: &Plan) -> Places {
        if p.cta_group == CtaGroup::Two && p.multicast != Multicast::None {
            return Places {
                pairs: true,
                peer: "%peer",
                neighbour: "%pair",
                first: "%is_first",
                leader: "%leader",
                pair_ctas: "%pair_ctas",
                alike_ctas: "%alike_ctas",
            };
        }
        Places {
            pairs: false,
            peer: "%rank",
            neighbour: "%rank",
            first: "%is_leader",
            leader: "0",
            pair_ctas: "%all_ctas",
            alike_ctas: "%all_ctas",
        }
    }
}

/// Whether the cluster shares the tile on the MMA's row side, and that on its column side.
pub(super) fn shared_sides(p: &Plan) -> [bool; 2] {
    match p.multicast {
        Multicast::None => [false, false],
        Multicast::A(_) => [!p.swap_ab, p.swap_ab],
        Multicast::B(_) => [p.swap_ab, !p.swap_ab],
    }
}

/// Whether the CTAs of a pair, which both need the scale factors of B1 and of B2, send those of one each.
pub(super) fn sends_halves(p: &Plan, products: &[usize]) -> bool {
    p.scales.shared && p.cta_group == CtaGroup::Two && !p.swap_ab && products.len() == 2
}

/// All that send scale factors in turns, each once.
pub(super) fn senders(passes: &[Pass]) -> Vec<Sender> {
    let mut senders: Vec<Sender> = Vec::new();
    let sent = passes.iter().flat_map(|pass| &pass.scale_boxes).filter_map(|load| load.sent.as_ref());
    for by in sent.filter_map(|sent| sent.by.as_ref()) {
        if !senders.contains(by) {
            senders.push(by.clone());
        }
    }
    senders
}
