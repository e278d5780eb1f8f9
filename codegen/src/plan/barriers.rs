//! mbarriers: which there are, and where.

use std::fmt;

/// What a phase of an mbarrier stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BarrierKind {
    /// A stage's operands have arrived.
    Full,
    /// A stage has been read.
    Empty,
    /// A stage's activations are in the order of K in which weights are decoded.
    Permuted,
    /// It is known which part of a tile hands its sums over.
    PartKnown,
    /// The other CTAs that share a tile's K have read their last operands.
    PeersRead,
    /// The other CTAs' sums of this one's part of a tile have arrived.
    SumsArrived,
    /// A slot's scale factors have arrived.
    SfFull,
    /// A slot of scale factors has been read.
    SfEmpty,
    /// Product 1 of a buffer is complete, before product 2.
    Product1Done,
    /// Product 2 of a buffer is complete, after product 1.
    Product2Done,
    /// Both products of a buffer are complete.
    ProductsDone,
    /// A buffer of accumulators has been read.
    AccumulatorsFree,
    /// The columns that two buffers share have been read.
    SharedFree,
    /// An answer of cluster launch control has arrived.
    AnswerFull,
    /// An answer of cluster launch control has been read.
    AnswerRead,
}

impl BarrierKind {
    /// The name in kernels and plans.
    pub const fn name(self) -> &'static str {
        match self {
            BarrierKind::Full => "full",
            BarrierKind::Empty => "empty",
            BarrierKind::Permuted => "permuted",
            BarrierKind::PartKnown => "part_known",
            BarrierKind::PeersRead => "peers_read",
            BarrierKind::SumsArrived => "sums_arrived",
            BarrierKind::SfFull => "sf_full",
            BarrierKind::SfEmpty => "sf_empty",
            BarrierKind::Product1Done => "product1_done",
            BarrierKind::Product2Done => "product2_done",
            BarrierKind::ProductsDone => "products_done",
            BarrierKind::AccumulatorsFree => "accumulators_free",
            BarrierKind::SharedFree => "shared_free",
            BarrierKind::AnswerFull => "answer_full",
            BarrierKind::AnswerRead => "answer_read",
        }
    }
}

impl fmt::Display for BarrierKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A barrier that a plan in the making needs: how many there are, and the arrivals of a phase.
pub(crate) type BarrierCount = (BarrierKind, u32, u32);

/// mbarriers of one kind, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Barrier {
    /// What a phase stands for.
    pub kind: BarrierKind,
    /// Bytes from the base of dynamic SMEM.
    pub offset: u32,
    /// How many there are, 8 bytes apart.
    pub count: u32,
    /// Arrivals that complete a phase.
    pub arrivals: u32,
}
