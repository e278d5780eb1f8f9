//! The mbarriers of a plan in the making.

use super::draft::Draft;
use crate::config::{Schedule, SfLoad, SfPreload, Strategy};
use crate::plan::work::RESPONSES;
use crate::plan::{ordering_passes, ordering_warps};
use crate::problem::MmaKind;

impl Draft<'_> {
    /// Every barrier: its name, how many there are, and the arrivals of a phase.
    pub fn barrier_counts(&self, stages: u32) -> Vec<(&'static str, u32, u32)> {
        let ctas = self.asked.group().ctas();
        let (looped, buffers) = (self.work.is_looped(), self.buffers);
        if let Some(warpgroups) = self.warpgroups {
            // Each warpgroup that reads a stage lets go of it, in all CTAs that send to it.
            let users = if warpgroups.ping_pong { 1 } else { warpgroups.count };
            // Weights that are decoded are read by threads: each warp says when it is done.
            let users = if self.kind == MmaKind::Decoded { 4 * users } else { users };
            let mut wanted =
                vec![("full", stages, 1), ("empty", stages, users * self.asked.multicast.ctas())];
            if self.kind == MmaKind::Decoded && !warpgroups.both {
                let (passes, _) = ordering_passes(self.tile.m * self.tile.k, self.decodes_a());
                wanted.push(("ordered", stages, ordering_warps(passes)));
            }
            if warpgroups.hand_over(&self.work, self.k_tiles, self.kind) {
                wanted.push(("part_known", 1, 1));
            }
            return wanted;
        }
        // A stage is empty when all that share a tile of it have used it.
        let mut wanted = vec![("full", stages, 1), ("empty", stages, self.asked.multicast.ctas())];
        match self.asked.sf_preload {
            SfPreload::PerStage => {}
            // Loaded once, and never given back.
            SfPreload::All if !looped && self.strategy != Strategy::Sequential => {
                wanted.push(("sf_full", 1, 1))
            }
            SfPreload::All | SfPreload::Ahead(_) => {
                let slots = self.sf_slots(stages);
                // Where others send into a slot, all of them wait for all.
                let users = match self.sf_load() {
                    SfLoad::Multicast => self.asked.multicast.ctas(),
                    SfLoad::Bulk | SfLoad::TensorMap => 1,
                };
                wanted.extend([("sf_full", slots, 1), ("sf_empty", slots, users)]);
            }
        }
        match self.products_apart() {
            true => wanted.extend([("product1_done", buffers, 1), ("product2_done", buffers, 1)]),
            false => wanted.push(("products_done", buffers, 1)),
        }
        if looped {
            // One lane of each epilogue warp of each CTA. Whoever has read the columns that two buffers share has read
            // the tile before, too.
            wanted.push(match self.shared {
                0 => ("accumulators_free", buffers, 4 * ctas),
                _ => ("shared_free", 1, 4 * ctas),
            });
        }
        if self.work.schedule == Schedule::Dynamic {
            // The MMA threads; of each CTA, the TMA thread and one lane of each epilogue warp.
            let readers = self.cluster_ctas() * 5 + self.asked.multicast.ctas();
            wanted.extend([("answer_full", RESPONSES, 1), ("answer_read", RESPONSES, readers)]);
        }
        wanted
    }
}
