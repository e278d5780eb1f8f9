//! Registers that warps hand over with `setmaxnreg` (ISA section 9.7.19.5).
//!
//! A CTA has the registers that it was launched with. `.dec` puts registers of a warp into the CTA's pool, and `.inc`
//! waits until the pool has enough. A warp that exits puts all of its registers there: the ISA says nothing of it, and
//! a run is no stricter. A count on the wrong side of the warp's own changes nothing.

use super::state::{Cluster, Wait, Warp};
use super::step::{Ctx, Flow};
use crate::program::Program;

/// Registers of a thread are allocated in multiples of this.
pub(crate) const GRANULE: u32 = 8;
/// Most registers of a thread.
pub(crate) const MOST: u32 = 255;
/// Sub-partitions of an SM. The warps of a CTA are spread over them, and each has its own part of the registers.
const PARTITIONS: u32 = 4;

/// Registers that `ctas` CTAs of so many threads leave each thread, in multiples of [`GRANULE`]. ptxas bounds kernels
/// with `.minnctapersm` in this way (`Used n registers` of 13.0 for 128 to 1,024 threads).
pub(crate) fn share(of_an_sm: u32, ctas: u32, threads: u32) -> u32 {
    let warps = threads.div_ceil(32).saturating_mul(ctas).div_ceil(PARTITIONS).max(1);
    (of_an_sm / PARTITIONS / 32 / warps / GRANULE * GRANULE).min(MOST)
}

impl Program {
    /// Registers of a thread at launch, in a kernel that hands them over: what bounds them, and no more than a warp ever
    /// takes. `None` if nothing bounds them; ptxas then ignores every `setmaxnreg` (its message C7508).
    pub(crate) fn registers_at_entry(&self, of_an_sm: u32) -> Option<u32> {
        if !self.hands_registers_over {
            return None;
        }
        let threads = self.reqntid.or(self.maxntid).map(|n| n.iter().product::<u32>());
        let shared = self.min_ctas.zip(threads).map(|(ctas, threads)| share(of_an_sm, ctas.max(1), threads));
        let bound = match (self.max_registers, shared) {
            (None, None) => return None,
            (Some(one), None) | (None, Some(one)) => one,
            (Some(one), Some(other)) => one.min(other),
        };
        Some(bound.min(self.most_taken.unwrap_or(MOST)).min(MOST).next_multiple_of(GRANULE))
    }
}

/// Registers of an SM on every chip that has `setmaxnreg` (compute capabilities 9.0 to 12.1).
pub(crate) const OF_AN_SM: u32 = 65_536;

impl Cluster<'_> {
    /// `setmaxnreg` of a whole warp.
    pub(super) fn hand_over(&mut self, x: Ctx, w: &mut Warp, count: u32, more: bool) -> Flow {
        if let Some(flow) = self.converge(w, x.m, u32::MAX) {
            return flow;
        }
        let Some(pool) = &mut self.ctas[x.c].spare_registers else { return Flow::Next };
        if more && count > w.held {
            let missing = count - w.held;
            if *pool < missing {
                return Flow::Wait(Wait::Registers { missing });
            }
            *pool -= missing;
            w.held = count;
        } else if !more && count < w.held {
            *pool += w.held - count;
            w.held = count;
            self.progress += 1;
        }
        Flow::Next
    }

    /// Puts the registers of a warp that exits into the pool of its CTA.
    pub(super) fn release_registers(&mut self, c: usize, w: &mut Warp) {
        if let Some(pool) = &mut self.ctas[c].spare_registers {
            *pool += std::mem::take(&mut w.held);
        }
    }

    /// Why a warp waits for registers.
    pub(super) fn describe_registers(&self, c: usize, missing: u32) -> String {
        let cta = &self.ctas[c];
        let entry = self.run.program.registers_at_entry(OF_AN_SM).unwrap_or_default();
        format!(
            "waits for {missing} more registers a thread; the CTA was launched with {entry} for each of its {} warps, \
             and warps have given {} back: let other warps give more with setmaxnreg.dec, or ask for fewer",
            cta.warps.len(),
            cta.spare_registers.unwrap_or_default()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `(threads, .minnctapersm, registers)` as ptxas 13.0 prints them for `sm_90a`.
    #[test]
    fn shares_are_those_of_ptxas() {
        let of_ptxas = [
            (384, 1, 168),
            (384, 2, 80),
            (256, 1, 255),
            (512, 1, 128),
            (416, 1, 128),
            (416, 2, 72),
            (1024, 1, 64),
        ];
        for (threads, ctas, registers) in of_ptxas {
            let own = share(OF_AN_SM, ctas, threads);
            assert_eq!(own, registers, "{threads} threads, {ctas} CTAs");
        }
    }
}
