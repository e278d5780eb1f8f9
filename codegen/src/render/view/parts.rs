//! Sums of parts of a tile's K on their way between CTAs.

use super::epilogue::registers;
use super::facts::Facts;
use super::{Role, TargetView};
use crate::plan::Plan;

/// A chunk of one product on its way through the workspace.
pub(crate) struct PartialProduct {
    /// What its registers are called, without the number.
    pub registers: String,
    /// The product's first column in TMEM.
    pub column: u32,
    pub vectors: Vec<PartialVector>,
}

/// Four columns of it.
pub(crate) struct PartialVector {
    /// Bytes from the chunk's first column of product 1: in the workspace, and in what a CTA of the cluster sends another.
    pub offset: u32,
    pub sum_offset: u32,
    pub registers: String,
    /// Where another part's sums of them are loaded.
    pub addends: String,
    pub adds: Vec<PartialAdd>,
}

/// Vectors of another part's sums that are loaded before the first of them is added.
pub(crate) const PARTIALS_AHEAD: usize = 16;

/// Sums in registers that one loop over a tile's parts adds up.
pub(crate) struct PartialRound {
    /// Ends the loop's label.
    pub suffix: String,
    pub vectors: Vec<PartialVector>,
}

impl PartialRound {
    /// Vectors that are loaded together.
    pub fn batches(&self) -> std::slice::Chunks<'_, PartialVector> {
        self.vectors.chunks(PARTIALS_AHEAD)
    }

    /// The same sums in rounds of at most `most` vectors: the loads of a round then leave registers for all else.
    pub fn split(self, most: usize) -> Vec<Self> {
        let rounds = self.vectors.len().div_ceil(most).max(1);
        let each = self.vectors.len().div_ceil(rounds).max(1);
        let mut vectors = self.vectors.into_iter();
        (1..=rounds)
            .map(|round| Self {
                suffix: if rounds == 1 { String::new() } else { format!("_{round}") },
                vectors: vectors.by_ref().take(each).collect(),
            })
            .collect()
    }
}

/// Sums that a CTA of the cluster has sent.
pub(crate) struct SumSlot {
    pub offset: u32,
}

impl SumSlot {
    /// Bytes to four columns' sums.
    pub fn byte(&self, vector: &PartialVector) -> u32 {
        self.offset + vector.sum_offset
    }
}

pub(crate) struct PartialAdd {
    pub to: String,
    pub from: String,
}

/// Sums of parts of a tile's K.
pub(crate) struct PartsView {
    pub partial_products: Vec<PartialProduct>,
    /// Registers for sums of other parts.
    pub addends: u32,
    /// Bytes of a CTA's slot.
    pub partial_bytes: u64,
    /// Bytes from one part's slot to the next one's.
    pub partial_stride: u64,
    /// Twice that.
    pub two_strides: u64,
    /// Bytes of one column of a product in a slot, of all rows.
    pub partial_column_bytes: u32,
    /// Bytes of a chunk of a product's sums in shared memory, of what a CTA of the cluster sends another, and of what
    /// comes from all others.
    pub sum_chunk_bytes: u32,
    pub sum_slot_bytes: u32,
    pub sum_bytes: u32,
    pub sum_slots: Vec<SumSlot>,
    /// The number of the last of those CTAs, a mask.
    pub last_part: u32,
}

impl PartsView {
    pub fn new(p: &Plan, facts: &Facts, target: &TargetView) -> Self {
        let Facts { role, chunk, .. } = *facts;
        let cluster_ctas = p.cluster_ctas();
        let partial_bytes =
            4 * u64::from(p.cta_rows) * u64::from(p.mma_columns) * u64::from(p.strategy.products());
        let sum_slot_bytes = 4 * p.cta_rows * p.epilogue.columns * partial_names(role).len() as u32;
        let parts = p.work.cluster_parts;
        PartsView {
            partial_products: partial_products(p, role, target.second_column),
            addends: target.addends.unwrap_or_else(|| addends(p, role)),
            partial_bytes,
            partial_stride: partial_bytes * u64::from(cluster_ctas),
            two_strides: 2 * partial_bytes * u64::from(cluster_ctas),
            partial_column_bytes: 4 * p.cta_rows,
            sum_chunk_bytes: 4 * p.cta_rows * chunk,
            sum_slot_bytes,
            sum_bytes: (parts - 1) * sum_slot_bytes,
            last_part: parts - 1,
            sum_slots: (0..parts).map(|part| SumSlot { offset: part * sum_slot_bytes }).collect(),
        }
    }
}

/// Registers of the products that go through the workspace where K is shared out.
fn partial_names(role: Role) -> &'static [&'static str] {
    match role {
        Role::Fused => &["first", "second"],
        Role::Gated => &["second"],
        Role::Product | Role::Single | Role::Gate => &["first"],
    }
}

/// Registers for sums of another part: of a chunk of all products, so that all of its loads are on their way together.
fn addends(p: &Plan, role: Role) -> u32 {
    partial_names(role).len() as u32 * p.epilogue.chunk
}

/// The products that go through the workspace where K is shared out.
fn partial_products(p: &Plan, role: Role, second_column: u32) -> Vec<PartialProduct> {
    let names = partial_names(role);
    let chunk = p.epilogue.chunk;
    let product_bytes = p.mma_columns * p.cta_rows * 4;
    let sum_bytes = p.epilogue.columns * p.cta_rows * 4;
    (0..)
        .zip(names)
        .map(|(index, name)| PartialProduct {
            registers: format!("%{name}"),
            column: index * second_column,
            vectors: (0..chunk / 4)
                .map(|i| PartialVector {
                    offset: index * product_bytes + i * 16 * p.cta_rows,
                    sum_offset: index * sum_bytes + i * 16 * p.cta_rows,
                    registers: registers(name, 4 * i, 4),
                    addends: registers("addend", index * chunk + 4 * i, 4),
                    adds: (4 * i..4 * i + 4)
                        .map(|column| PartialAdd {
                            to: registers(name, column, 1),
                            from: registers("addend", index * chunk + column, 1),
                        })
                        .collect(),
                })
                .collect(),
        })
        .collect()
}
