//! How a chunk is stored.

use super::TargetView;
use super::block_scale::{self, Nibbles};
use super::epilogue::{self, BoxStore, Packing, Unit, Vector, Word};
use super::facts::Facts;
use super::lanes::FragmentLayout;
use super::policy::Policy;
use crate::config::Eviction;
use crate::plan::{Output, Plan, Staging};

/// How a chunk is stored.
pub(crate) struct StoreView {
    pub c_policy: Option<Policy>,
    pub packed_registers: u32,
    pub output: Output,
    pub output_name: &'static str,
    pub staging: Option<Staging>,
    /// Whether threads find their place in the staging as a row, or a lane, each.
    pub places_staging: bool,
    /// Bytes of a row of the staging where lanes hold columns of C, else 0.
    pub staged_columns: u32,
    pub packing: Packing,
    pub words: Vec<Word>,
    pub units: Vec<Unit>,
    pub vectors: Vec<Vector>,
    pub c_hint_operand: &'static str,
    pub chunk_bytes: u64,
    pub stores: Vec<BoxStore>,
    /// 4-bit elements of a chunk where a lane holds a column of C, and whether rows of it can lie beyond M.
    pub nibbles: Vec<Nibbles>,
    pub nibbles_guarded: bool,
}

impl StoreView {
    /// Whether columns of a tile can lie beyond N.
    pub fn n_ragged(&self, p: &Plan) -> bool {
        if p.swap_ab { p.epilogue.rows_ragged } else { p.epilogue.columns_ragged }
    }

    pub fn new(p: &Plan, facts: &Facts, target: &TargetView) -> Self {
        let Facts {
            gated,
            chunk,
            count,
            held,
            transposed,
            ragged,
            output,
            output_name,
            packing,
            staging,
            nibbles,
            ..
        } = *facts;
        let hint = |hint: Option<Eviction>, register: &'static str| hint.map_or("", |_| register);
        StoreView {
            c_policy: Policy::of("c", p.cache.c).filter(|_| gated),
            packed_registers: if nibbles || !packing.rounds() && !target.keeps_words {
                0
            } else {
                count / packing.per_word
            },
            output,
            output_name,
            staging,
            places_staging: target.places_staging,
            staged_columns: staging.filter(|_| transposed).map_or(0, |staging| staging.span),
            packing,
            words: if nibbles { Vec::new() } else { packing.words(count) },
            units: epilogue::units(packing, chunk),
            vectors: match held {
                FragmentLayout::Row => epilogue::vectors(packing, &output, chunk, ragged),
                FragmentLayout::Lanes(lanes) => lanes.vectors(packing, &output, ragged),
                FragmentLayout::Column if nibbles => Vec::new(),
                FragmentLayout::Column => {
                    let span = staging.map_or(0, |staging| staging.span);
                    epilogue::transposed::vectors(packing, &output, chunk, ragged, span)
                }
            },
            c_hint_operand: if gated { hint(p.cache.c, ", %policy_c") } else { "" },
            chunk_bytes: match transposed {
                false => u64::from(chunk * output.element_bits / 8),
                true => u64::from(chunk) * output.row_bytes,
            },
            stores: staging.map_or(Vec::new(), |s| epilogue::stores(s, hint(p.cache.c, "%policy_c"))),
            nibbles: if nibbles { block_scale::nibbles(&output, chunk, ragged) } else { Vec::new() },
            nibbles_guarded: ragged.columns && staging.is_none(),
        }
    }
}
