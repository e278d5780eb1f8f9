//! By which rules `auto` was settled here.

use super::Wgmma;
use crate::config::{Accumulators, Store};
use crate::plan::Plan;
use crate::problem::MmaKind;

impl Wgmma {
    /// The rule of a knob that warpgroups settle in their own way.
    pub(super) fn rule_of(&self, plan: &Plan, knob: &str) -> Option<String> {
        let sms = plan.config.sms.unwrap_or_else(|| plan.arch.limits().sms);
        let rule = match knob {
            "tile" if plan.swap_ab => format!(
                "weights are the rows of {} warpgroups; tokens are columns, as many as there are up to 128; K is one 128-byte swizzle span of a row, or the problem's",
                self.count
            ),
            "tile" => format!(
                "{} rows, 64 for each MMA; of all N, {} leaves the busiest of {sms} SMs least to do; K is one 128-byte swizzle span of a row, or the problem's",
                self.tile_rows(),
                plan.tile.n
            ),
            "promotion" if self.promotion.is_some() => {
                "tensor cores add up products of 8-bit elements with fewer bits than fp32 has: sums leave them every 128 of K, or K tile".into()
            }
            "promotion" if plan.kind == MmaKind::F8f6f4 => "K ends before sums lose bits".into(),
            "consumers" => {
                "both warpgroups on one tile read the same B, and every schedule has work for them".into()
            }
            "cta_group" => "an MMA is one warpgroup's".into(),
            "accumulator_buffers" => {
                "accumulators take registers, which have no room for those of another tile".into()
            }
            "a_reuse" => "tensor cores of this chip have no collector".into(),
            "tmem_columns" => "this chip has no tensor memory".into(),
            "k_order" => "the warps that would apply the gate to a tail issue its MMAs".into(),
            "schedule" if self.ping_pong => {
                "warpgroups by turns need tiles that follow each other".into()
            }
            "swap_ab" if plan.kind == MmaKind::Decoded => {
                "weights are decoded in registers, from which an MMA takes its rows".into()
            }
            "swap_ab" if plan.swap_ab => "few tokens: weights fill the MMA's 64 rows better".into(),
            "accumulators" if plan.interleaved_rows() => {
                "an MMA's rows are of both products: tiles of fewer columns of C, or of more tokens".into()
            }
            "accumulators" if plan.accumulators == Accumulators::SideBySide => {
                "one MMA of 2N reads A once for both products".into()
            }
            "store" if plan.store == Store::Tma && plan.swap_ab => {
                "a thread has columns of C: through SMEM, where they are turned, rows leave whole".into()
            }
            "store" if plan.store == Store::Tma => {
                "a thread has two columns side by side: through SMEM, rows leave whole".into()
            }
            "raster" if plan.work.is_looped() => {
                "bands of 8 rows of tiles: a wave's operands stay in L2".into()
            }
            _ => return None,
        };
        Some(rule)
    }
}
