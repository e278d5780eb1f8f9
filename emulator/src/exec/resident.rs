//! Which clusters of a grid run at a time, and clusters that wait in global memory for ever.
//!
//! A GPU starts a cluster when there is room for it, and starts no other in its place before it ends. So clusters
//! that wait for one that has not started wait for ever. The number of resident clusters follows from the chip's SMs,
//! threads and shared memory. It is an upper bound, since registers and the placement of clusters are not known here.
//!
//! A cluster spins if each of its warps either waits or returns to the same load with the same registers while
//! nothing happens. If all running clusters spin, and none has changed memory since the first of them was seen to
//! spin, the grid hangs.

use super::report::Origin;
use super::schedule::PATIENCE;
use super::state::{Cluster, Warp};
use super::step::Ctx;
use crate::finding::FindingKind;
use crate::launch::{Launch, product};
use crate::program::{Op, Program};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Instructions of the cluster between two looks at a warp's registers.
const GAP: u64 = 4096;
/// Instructions of the cluster for which the registers of a spinning warp stay the same.
const SPAN: u64 = 16_384;

/// SMs of the largest product of a target, and threads and shared-memory bytes per SM.
fn chip(target: &[String]) -> (u64, u64, u64) {
    let number: String = target
        .iter()
        .filter_map(|t| t.strip_prefix("sm_"))
        .flat_map(str::chars)
        .take_while(char::is_ascii_digit)
        .collect();
    match number.parse() {
        Ok(80..=89) => (144, 2048, 164 << 10),
        Ok(90..=99) => (132, 2048, 228 << 10),
        Ok(100..=102) => (148, 2048, 228 << 10),
        Ok(120..=129) => (188, 1536, 100 << 10),
        _ => (160, 2048, 228 << 10),
    }
}

/// Upper bound on clusters that run at a time. `smem` is the end of a CTA's shared memory, including the system's
/// part.
pub(super) fn resident(target: &[String], launch: &Launch, smem: u32) -> u64 {
    let (sms, threads, bytes) = chip(target);
    let by_threads = threads / product(launch.block).next_multiple_of(32);
    let by_smem = bytes / u64::from(smem.max(1024));
    let ctas = sms * by_threads.min(by_smem).clamp(1, 32);
    (ctas / product(launch.cluster)).max(1)
}

/// A warp that may spin.
#[derive(Clone, Copy, Debug)]
struct Watch {
    line: u32,
    hash: u64,
    /// Instruction counts of the cluster when this state was first and last seen.
    first: u64,
    last: u64,
    spins: bool,
}

/// The state of a cluster in which nothing happens.
#[derive(Debug, Default)]
pub(crate) struct Spin {
    /// Counts changes of global memory.
    pub changes: u64,
    watches: HashMap<(usize, u32), Watch>,
}

impl Spin {
    /// Whether to watch the program: not if its threads read a clock, since they may wait for time to pass.
    pub fn is_possible(program: &Program) -> bool {
        !program.code.iter().any(|i| matches!(i.op, Op::ReadClock { .. }))
    }

    pub fn forget(&mut self) {
        self.watches.clear();
    }
}

impl Cluster<'_> {
    /// Records that a warp reads global memory, or tests an mbarrier whose phase has not completed.
    #[inline]
    pub(super) fn polled(&mut self, x: Ctx, w: &Warp) {
        if self.executed - self.last_progress.1 > PATIENCE {
            self.watch(x, w);
        }
    }

    fn watch(&mut self, x: Ctx, w: &Warp) {
        let now = self.executed;
        let key = (x.c, w.index);
        if let Some(k) = self.spin.watches.get(&key) {
            // Lines that are passed once are forgotten after a while.
            if k.spins || now - k.last < GAP || k.line != x.line && now - k.last < 4 * GAP {
                return;
            }
        }
        let mut hasher = DefaultHasher::new();
        (&w.regs, &w.preds, self.progress).hash(&mut hasher);
        for g in &w.groups {
            (g.pc, g.mask).hash(&mut hasher);
        }
        let fresh = Watch { line: x.line, hash: hasher.finish(), first: now, last: now, spins: false };
        let k = self.spin.watches.entry(key).or_insert(fresh);
        if (k.line, k.hash) == (fresh.line, fresh.hash) {
            k.last = now;
            k.spins = now - k.first >= SPAN;
        } else {
            *k = fresh;
        }
    }

    /// The counters that stay the same while a cluster does nothing.
    pub fn mark(&self) -> (u64, u64) {
        (self.progress, self.spin.changes)
    }

    /// Whether all warps can only wait, with the place of one that spins.
    pub fn spinning(&self) -> Option<Origin> {
        if !self.run.watched {
            return None;
        }
        let mut at = None;
        for (c, cta) in self.ctas.iter().enumerate() {
            for w in cta.warps.iter().flatten().filter(|w| !w.finished()) {
                match self.spin.watches.get(&(c, w.index)) {
                    Some(k) if k.spins => at = Some(Origin::of(c, w, None, k.line)),
                    _ if w.groups.iter().all(|g| g.wait.is_some()) => {}
                    _ => return None,
                }
            }
        }
        at
    }

    /// Reports that no cluster of `live` can continue.
    pub fn report_hang(&mut self, at: Origin, live: u64, total: u64, started: u64) {
        let waiting = match total - started {
            0 => "all of the grid have started".to_owned(),
            n => format!(
                "{n} more of the grid have not started: {} clusters of this size run at a time, and none starts before \
                 another ends",
                self.run.resident
            ),
        };
        let text = format!(
            "this warp looks here for ever: {live} clusters run, all of them wait, and nothing changes what they wait for; {waiting}"
        );
        self.stats.instructions = self.executed;
        self.report(FindingKind::GridDeadlock, at, text);
    }
}

#[cfg(test)]
mod tests {
    use super::resident;
    use crate::launch::Launch;

    #[test]
    fn threads_and_shared_memory_bound_the_clusters_that_run() {
        let of = |target: &str, threads, ctas, smem| {
            let launch = Launch {
                grid: [960, 1, 1],
                block: [threads, 1, 1],
                cluster: [ctas, 1, 1],
                dynamic_smem: 0,
                args: Vec::new(),
            };
            resident(&[target.to_owned()], &launch, smem)
        };
        assert_eq!(of("sm_100a", 192, 2, 228 << 10), 74);
        assert_eq!(of("sm_100a", 192, 1, 70 << 10), 3 * 148);
        assert_eq!(of("sm_90a", 384, 1, 1024), 5 * 132);
        // 32 CTAs an SM, and one that is too large for any table.
        assert_eq!(of("sm_90a", 32, 4, 1024), 8 * 132);
        assert_eq!(of("sm_120a", 1024, 16, 400 << 10), 188 / 16);
    }
}
