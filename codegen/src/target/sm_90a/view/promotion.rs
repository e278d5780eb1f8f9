//! How sums of 8-bit elements' products leave the tensor core before the end of K (`promotion`).

use super::sum_scales::SumScalesView;
use crate::plan::Plan;
use crate::target::sm_90a::promotion::LEAST_TOGETHER;
use crate::target::sm_90a::{PromotionInterval, Wgmma};
use std::ops::RangeInclusive;

/// K tiles between two waits for all MMAs, where sums of one K tile are added while MMAs of the next run.
const TOGETHER: RangeInclusive<u32> = LEAST_TOGETHER..=8;

/// How many of `tiles` K tiles a loop takes at once: no MMA runs behind the last of them, nor behind each one that is left.
/// They take whole rounds of `sets` of registers for scale factors.
fn together(tiles: u32, sets: u32) -> u32 {
    let waits = |count: &u32| tiles / count + tiles % count;
    TOGETHER.filter(|count| count.is_multiple_of(sets)).min_by_key(waits).unwrap_or(LEAST_TOGETHER)
}

/// A sum of an interval on its way to its accumulator.
pub(crate) struct PromotedSum {
    pub to: String,
    pub from: String,
    /// What it is multiplied by.
    pub factor: Option<String>,
}

/// Sums of stretches of K.
pub(crate) struct PromotionView {
    /// K tiles of a stretch.
    pub tiles: u32,
    /// Elements of K of a stretch.
    pub elements: u32,
    /// Names of the sets of registers.
    pub set_names: Vec<u32>,
    /// Whether the products of a K tile have registers of their own.
    pub apart: bool,
    /// K tiles of which each one's MMAs follow while sums of the one before are added.
    /// A third stage holds the next K tile, so that another one can be loaded.
    pub together: Vec<TileTogether>,
    /// Whether an item can have fewer K tiles than such a loop takes.
    pub checks_several: bool,
    /// Whether a loop takes K tiles one at a time: all of them, or the last ones of an item.
    pub has_single_loop: bool,
    /// The scale factors that sums are multiplied by.
    pub scales: Option<SumScalesView>,
}

/// One of several K tiles that a loop takes at once.
pub(crate) struct TileTogether {
    /// The set of registers that has its scale factors.
    pub scale_set: u32,
    /// Its turn, and that of the K tile before it, where one product's sums take two sets of registers.
    pub turn: usize,
    pub turn_before: usize,
}

/// Whether K tiles of one product take two sets of registers by turns.
pub(super) fn takes_turns(promotion: Option<PromotionInterval>, products: &[u32]) -> bool {
    promotion.is_some_and(|interval| interval.sets == 2) && products.len() == 1
}

/// The register of an interval's sum of one of `products`, in a K tile whose turn it is. Two sets are of one product by turns, or one of
/// each product.
pub(super) fn interval_sum(
    interval: PromotionInterval,
    products: &[u32],
    product: u32,
    turn: u32,
    index: u32,
) -> String {
    let set = match products {
        _ if interval.sets == 1 => 1,
        [_] => 1 + turn,
        _ => product,
    };
    format!("%interval{set}_{index}")
}

impl PromotionView {
    /// `one_pass_apart`: whether one pass over K computes all products, and each MMA writes sums of one of them.
    pub fn new(
        p: &Plan,
        warpgroups: &Wgmma,
        interval: PromotionInterval,
        products: &[u32],
        one_pass_apart: bool,
    ) -> Self {
        let ranges = p.work.has_ranges();
        // Beside a second warpgroup's MMAs two products gain nothing, and take up to 1.01 of the time (decision 0244).
        let pays = warpgroups.count == 1 || warpgroups.ping_pong || products.len() == 1;
        let enough = p.stages > 2 && (ranges || p.k_loop.tiles >= LEAST_TOGETHER);
        let several = interval.tiles == 1 && interval.sets == 2 && one_pass_apart && pays && enough;
        let scales =
            p.problem.formats.scales_sums().then(|| SumScalesView::new(p, warpgroups, products, several));
        let sets = scales.as_ref().map_or(1, |s| s.sets);
        let together = match several {
            true if ranges => LEAST_TOGETHER,
            true => together(p.k_loop.tiles, sets),
            false => 1,
        };
        let takes_turns = takes_turns(Some(interval), products);
        let tile = |tile: u32| TileTogether {
            scale_set: tile % sets,
            turn: tile as usize % 2,
            turn_before: (tile as usize + 1) % 2,
        };
        PromotionView {
            tiles: interval.tiles,
            elements: interval.tiles * p.tile.k,
            set_names: (1..=if takes_turns && together == 1 { 1 } else { interval.sets }).collect(),
            apart: products.len() == 1 || interval.sets == 2,
            together: (0..together).map(tile).collect(),
            checks_several: ranges,
            has_single_loop: together == 1 || ranges || !p.k_loop.tiles.is_multiple_of(together),
            scales,
        }
    }
}
