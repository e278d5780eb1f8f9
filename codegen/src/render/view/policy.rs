//! L2 cache policies.

use crate::config::Eviction;

/// An L2 cache policy as the 64-bit operand of `.L2::cache_hint`.
pub(crate) struct Policy {
    pub operand: &'static str,
    pub bits: &'static str,
    pub hint: Eviction,
}

impl Policy {
    /// The policy of an operand, where there is a hint.
    pub(super) fn of(operand: &'static str, hint: Option<Eviction>) -> Option<Policy> {
        hint.map(|hint| Policy { operand, bits: policy_bits(hint), hint })
    }
}

/// The 64-bit policies that `createpolicy.fractional.L2::*.b64 policy, 1.0` makes, as constants
/// (CUTLASS, `cute/arch/copy_sm90_desc.hpp`, `TMA::CacheHintSm90`).
fn policy_bits(hint: Eviction) -> &'static str {
    match hint {
        Eviction::Normal => "0x1000000000000000",
        Eviction::First => "0x12f0000000000000",
        Eviction::Last => "0x14f0000000000000",
    }
}
