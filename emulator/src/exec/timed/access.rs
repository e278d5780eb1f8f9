//! Loads, stores and atomics of warps: bank conflicts, lines, ports.

use super::hooks::Access;
use super::{Timed, World};
use crate::exec::access::Target;
use crate::exec::state::Warp;
use crate::program::{Order, Scope};
use crate::time::memory::LINE;
use crate::time::record::{Cause, Moment};

/// Clocks of stores on their way out of an SM that may be queued before a warp waits.
const STORE_QUEUE: f64 = 64.0;
/// Clocks that accesses to shared memory are served ahead of time beside products and TMA loads, before a warp waits (decision 0249).
const AHEAD: f64 = 8.0;

impl<'r> World<'r> {
    /// Charges the accesses of an instruction: sets when its results are ready, and returns when the warp can
    /// continue.
    #[allow(clippy::too_many_arguments, reason = "they say which instruction of whom")]
    pub(super) fn accessed(
        &mut self,
        t: &mut Timed<'r>,
        c: usize,
        w: &Warp,
        pc: usize,
        accesses: &[Access],
        at: Moment,
        next: Moment,
    ) -> Moment {
        let own = c;
        let sm = t.ctas[c].sm;
        let wi = w.index as usize;
        let mut next = next;
        let least = if self.costs[pc].waited { 0.0 } else { self.chip.alu_latency.value };
        let mut done = (at.time + least, Cause::SharedMemory);
        let mut later = |time: f64, cause: Cause| {
            if time > done.0 {
                done = (time, cause);
            }
        };
        let shared = accesses.iter().any(|a| matches!(a.target, Target::Shared(to, _) if to == own));
        if shared {
            let clocks = wavefronts(accesses, own);
            let unit = &mut self.sms[sm];
            let bytes = clocks * self.chip.smem_rate.value;
            unit.used.smem += clocks;
            let store = accesses.iter().any(|a| a.write);
            let served = match store {
                true => unit.smem.take(at.time, bytes).max(unit.smem_stores.take(at.time, bytes)),
                false => unit.smem.take(at.time, bytes * unit.load_cost(at.time)),
            };
            let served = served.max(unit.passes(wi, at.time, clocks));
            let latency = if self.costs[pc].waited { 0.0 } else { self.chip.smem_latency.value - 1.0 };
            later(served + latency, Cause::SharedMemory);
            // What products and TMA loads take of the port is known as time goes on.
            let beside = store && unit.under_way > 0.0 || unit.smem_operands.used(at.time) > 0.0;
            let soonest = if beside { served - AHEAD } else { f64::NEG_INFINITY };
            next = next.until(self.holds(sm, served).max(soonest), Cause::SharedMemory);
        }
        let far: f64 = accesses
            .iter()
            .filter(|a| matches!(a.target, Target::Shared(to, _) if to != own))
            .map(|a| f64::from(a.bytes))
            .sum();
        if far > 0.0 {
            let unit = &mut self.sms[sm];
            unit.dsmem = unit.dsmem.max(at.time) + far / self.chip.dsmem_rate.value;
            later(unit.dsmem + self.chip.dsmem_latency.value, Cause::Cluster);
            next = next.until(unit.dsmem - STORE_QUEUE, Cause::Cluster);
        }
        if accesses.iter().any(|a| matches!(a.target, Target::Local(_))) {
            later(at.time + self.chip.l1_latency.value, Cause::GlobalMemory);
        }
        // What other SMs may have written is read from L2.
        let inst = &self.run.program.code[pc];
        let strong = inst.order != Order::Default && inst.scope != Scope::Cta;
        let mut sectors: Vec<(u64, bool, bool)> = accesses
            .iter()
            .filter_map(|a| match a.target {
                Target::Global(address) => Some((address, a)),
                _ => None,
            })
            .flat_map(|(address, a)| {
                (address / 32..(address + u64::from(a.bytes)).div_ceil(32)).map(|s| (s, a.write, a.atomic))
            })
            .collect();
        if !sectors.is_empty() {
            sectors.sort_unstable();
            // Atomics on one sector follow each other; other accesses to it are one.
            let atomics = sectors.iter().filter(|s| s.2).count();
            sectors.dedup();
            let write = sectors.iter().any(|s| s.1);
            let mut rest = &sectors[..];
            let mut passed = at.time;
            while let Some(&(first, _, atomic)) = rest.first() {
                let line = first * 32 / LINE;
                let n = rest.iter().take_while(|s| s.0 * 32 / LINE == line).count();
                rest = &rest[n..];
                let bytes = 32.0 * n as f64;
                let unit = &mut self.sms[sm];
                let lines = if write { self.chip.store_lines.value } else { self.chip.l1_lines.value };
                unit.lsu = unit.lsu.max(at.time) + 1.0 / lines;
                passed = unit.passes(wi, at.time, 1.0);
                let request = unit.lsu.max(passed);
                if atomic {
                    let there = self.memory.update(line, request);
                    let clock = &mut t.ctas[c].warps[wi];
                    clock.stored = clock.stored.max(there + self.chip.store_latency.value);
                    later(there + self.chip.atomic_latency.value + 2.0 * atomics as f64, Cause::GlobalMemory);
                } else if write {
                    unit.port_out = unit.port_out.max(request) + bytes / self.chip.sm_write_rate.value;
                    let sent = unit.port_out;
                    unit.l1_holds(line);
                    let arrived = self.memory.write(line, bytes, sent) + self.chip.store_latency.value;
                    let clock = &mut t.ctas[c].warps[wi];
                    clock.stored = clock.stored.max(arrived);
                } else if !strong && unit.l1_holds(line) {
                    later(request + self.chip.l1_latency.value, Cause::GlobalMemory);
                } else {
                    let read = self.memory.read(line, bytes, request, unit.place, false);
                    let unit = &mut self.sms[sm];
                    later(unit.port_in.take(read.at, bytes), Cause::GlobalMemory);
                }
            }
            let (served, out) = (self.sms[sm].lsu.max(passed), self.sms[sm].port_out);
            let held = self.holds(sm, served);
            next = next.until(held, if write { Cause::Stores } else { Cause::GlobalMemory });
            if write {
                next = next.until(out - STORE_QUEUE, Cause::Stores);
            }
        }
        for &d in &self.costs[pc].writes {
            t.ctas[c].warps[wi].ready[d as usize] = done;
        }
        next
    }

    /// The memory unit of an SM takes a warp's access that leaves it at `served`. Returns when it has room for the next one.
    fn holds(&mut self, sm: usize, served: f64) -> f64 {
        self.sms[sm].held.take(served, self.chip.access_queue.value)
    }
}

/// Clocks of shared memory: the most words that one of its 32 banks has to serve.
fn wavefronts(accesses: &[Access], own: usize) -> f64 {
    let mut words: Vec<u32> = Vec::with_capacity(128);
    for a in accesses {
        if let Target::Shared(to, offset) = a.target
            && to == own
        {
            words.extend(offset / 4..(offset + a.bytes).div_ceil(4));
        }
    }
    words.sort_unstable();
    words.dedup();
    let mut banks = [0u32; 32];
    for w in words {
        banks[w as usize % 32] += 1;
    }
    f64::from(banks.into_iter().max().unwrap_or(0).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lanes(bytes: u32, stride: u32) -> Vec<Access> {
        (0..32)
            .map(|i| Access {
                target: Target::Shared(0, 1024 + i * stride),
                bytes,
                write: false,
                atomic: false,
            })
            .collect()
    }

    #[test]
    fn banks_serve_a_word_each() {
        assert_eq!(wavefronts(&lanes(4, 4), 0), 1.0);
        assert_eq!(wavefronts(&lanes(4, 0), 0), 1.0);
        assert_eq!(wavefronts(&lanes(4, 128), 0), 32.0);
        assert_eq!(wavefronts(&lanes(4, 132), 0), 1.0);
        assert_eq!(wavefronts(&lanes(16, 16), 0), 4.0);
        assert_eq!(wavefronts(&lanes(2, 2), 0), 1.0);
    }
}
