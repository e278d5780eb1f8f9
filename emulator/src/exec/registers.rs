//! Registers that warps hand over with `setmaxnreg` (ISA section 9.7.19.5).
//!
//! A CTA has the registers that it was launched with. `.dec` puts registers of a warp into the CTA's pool, and `.inc`
//! waits until the pool has enough. The ISA does not say what happens at exit; here a warp returns all of its registers.
//! A count on the wrong side of the warp's own changes nothing.

use super::state::{Cluster, Wait, Warp};
use super::step::{Ctx, Flow};
use crate::launch::product;
use crate::program::Program;

/// Registers of a thread are allocated in multiples of this.
pub(crate) const GRANULE: u32 = 8;
/// Most registers that a thread can have.
pub(crate) const MAX_REGISTERS: u32 = 255;
/// Registers of an SM on every chip that has `setmaxnreg` (compute capabilities 9.0 to 12.1).
pub(crate) const SM_REGISTERS: u32 = 65_536;
/// Sub-partitions of an SM. The warps of a CTA are spread over them, and each has its own part of the registers.
const PARTITIONS: u32 = 4;

/// Registers per thread if `ctas` CTAs of `threads` threads share an SM: a multiple of [`GRANULE`], or [`MAX_REGISTERS`]. `None` if
/// these are more than `sm_threads`. ptxas applies `.minnctapersm` in this way (13.0, 13.5).
pub(crate) fn registers_per_thread(
    sm_registers: u32,
    ctas: u32,
    threads: u64,
    sm_threads: u32,
) -> Option<u32> {
    if threads == 0 || threads.saturating_mul(ctas.into()) > sm_threads.into() {
        return None;
    }
    let warps = ((threads as u32).div_ceil(32) * ctas).div_ceil(PARTITIONS).max(1);
    Some((sm_registers / PARTITIONS / 32 / warps / GRANULE * GRANULE).min(MAX_REGISTERS))
}

impl Program {
    /// Registers per thread at launch, in a kernel that hands them over: the lowest of its bounds and the largest count that a
    /// warp takes. `None` if nothing bounds them; ptxas then ignores every `setmaxnreg` (its message C7508).
    pub(crate) fn registers_at_entry(&self, sm_registers: u32) -> Option<u32> {
        if !self.hands_registers_over {
            return None;
        }
        let declared = self.reqntid.or(self.maxntid).map(product);
        let shared = (self.min_ctas.zip(declared)).and_then(|(ctas, threads)| {
            registers_per_thread(sm_registers, ctas.max(1), threads, self.sm_threads)
        });
        let bound = match (self.max_registers, shared) {
            (None, None) => return None,
            (Some(one), None) | (None, Some(one)) => one,
            (Some(one), Some(other)) => one.min(other),
        };
        let bound = bound.min(self.largest_increase.unwrap_or(MAX_REGISTERS)).min(MAX_REGISTERS);
        Some(bound.next_multiple_of(GRANULE))
    }
}

impl Cluster<'_> {
    /// `setmaxnreg` of a whole warp.
    pub(super) fn set_max_registers(&mut self, x: Ctx, w: &mut Warp, count: u32, increase: bool) -> Flow {
        if let Some(flow) = self.converge(w, x.m, u32::MAX) {
            return flow;
        }
        let Some(pool) = &mut self.ctas[x.c].spare_registers else { return Flow::Next };
        if increase && count > w.held {
            let missing = count - w.held;
            if *pool < missing {
                return Flow::Wait(Wait::Registers { missing });
            }
            *pool -= missing;
            w.held = count;
        } else if !increase && count < w.held {
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
        format!(
            "waits for {missing} more registers per thread, and the CTA's pool has {} left; the CTA started with {} per \
             thread in each of its {} warps: release more with setmaxnreg.dec, or ask for fewer",
            cta.spare_registers.unwrap_or_default(),
            self.run.program.registers_at_entry(SM_REGISTERS).unwrap_or_default(),
            cta.warps.len()
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
            let own = registers_per_thread(SM_REGISTERS, ctas, threads, 2048);
            assert_eq!(own, Some(registers), "{threads} threads, {ctas} CTAs");
        }
        for (threads, ctas) in [(1024, 3), (384, 6), (128, 17), (1024, u32::MAX), (1 << 32, 1), (0, 1)] {
            assert_eq!(
                registers_per_thread(SM_REGISTERS, ctas, threads, 2048),
                None,
                "{threads} threads, {ctas} CTAs"
            );
        }
        // For sm_110a, sm_120a and sm_121a ptxas 13.5 ignores what asks for more than 1,536 threads.
        for (threads, ctas, registers) in
            [(128, 12, Some(40)), (128, 13, None), (640, 2, Some(48)), (896, 2, None)]
        {
            let own = registers_per_thread(SM_REGISTERS, ctas, threads, 1536);
            assert_eq!(own, registers, "{threads} threads, {ctas} CTAs");
        }
    }
}
