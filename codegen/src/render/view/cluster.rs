//! Which CTA of a cluster does what: who leads, who sends what to whom.

use super::Pass;
use crate::config::{CtaGroup, Multicast};
use crate::plan::Plan;

/// How one CTA's load reaches several.
#[derive(Clone)]
pub(in crate::render) struct Sent {
    pub by: Sender,
    pub to: &'static str,
}

/// The CTA that sends a box: the one whose `register`, its place among those that need it, is `place`.
#[derive(Clone, PartialEq)]
pub(in crate::render) struct Sender {
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
pub(in crate::render) struct Places {
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

/// All that send scale factors, each once.
pub(super) fn senders(passes: &[Pass]) -> Vec<Sender> {
    let mut senders: Vec<Sender> = Vec::new();
    for sent in passes.iter().flat_map(|pass| &pass.scale_boxes).filter_map(|load| load.sent.as_ref()) {
        if !senders.contains(&sent.by) {
            senders.push(sent.by.clone());
        }
    }
    senders
}
