//! Converts the records of a run to a prediction.

use super::World;
use crate::launch::product;
use crate::time::record::{Cause, CtaTimes};
use crate::time::{Phase, Prediction, Share, TENSOR_CORES};
use std::collections::BTreeMap;

impl World<'_> {
    pub(super) fn prediction(self) -> Prediction {
        let chip = self.chip;
        let ns = 1000.0 / chip.clock.value;
        let gap = if self.options.programmatic { chip.launch_gap_pdl.value } else { chip.launch_gap.value };
        let clocks = self.end.time;
        let mut path: BTreeMap<Cause, f64> = BTreeMap::new();
        for cause in Cause::ALL {
            let spent = f64::from(self.end.spent[cause as usize]) * ns;
            if spent > 0.0 {
                path.insert(cause, spent);
            }
        }
        *path.entry(Cause::Launch).or_default() += gap;
        let sms = self.sms.iter().filter(|s| s.used.ran).count() as u32;
        let all = clocks.max(1.0) * chip.sms.value;
        let sum = |f: fn(&super::sm::Used) -> f64| self.sms.iter().map(|s| f(&s.used)).sum::<f64>();
        let traffic = self.memory.traffic;
        let scale = chip.clock.value / chip.memory_clock.value;
        let shares = vec![
            Share { name: "SMs", used: f64::from(sms) / chip.sms.value },
            Share { name: TENSOR_CORES, used: sum(|u| u.tensor) / all },
            Share { name: "their operands", used: sum(|u| u.operands) / all },
            Share { name: "scale factor copies", used: sum(|u| u.copies) / all },
            Share { name: "TMA", used: sum(|u| u.tma) / all },
            Share { name: "shared memory", used: sum(|u| u.smem) / all },
            Share { name: "issue slots", used: sum(|u| u.slots) / (4.0 * all) },
            Share { name: "L2", used: traffic.l2_bytes / (clocks.max(1.0) * chip.l2_rate.value / scale) },
            Share {
                name: "link of L2's halves",
                used: traffic.crossed / (clocks.max(1.0) * 2.0 * chip.l2_cross_rate.value / scale),
            },
            Share {
                name: "DRAM",
                used: (traffic.dram_bytes + traffic.written_back)
                    / (clocks.max(1.0) * ns * chip.dram_rate.value),
            },
        ];
        Prediction {
            chip: chip.name.clone(),
            clock: chip.clock.value,
            time: clocks * ns + gap,
            kernel: clocks * ns,
            clocks,
            sms,
            ctas: product(self.run.launch.grid),
            resident: self.resident * product(self.run.launch.cluster),
            instructions: self.instructions,
            phases: phases(&self.cta_times, ns),
            shares,
            dram_bytes: traffic.dram_bytes,
            l2_bytes: traffic.l2_bytes,
            path,
            warps: self.warps,
            lines: (0..).zip(self.lines).filter(|(_, clocks)| *clocks > 0.0).collect(),
            bars: self.bars,
        }
    }
}

/// Means over CTAs: setup, first bytes, K loop, epilogue.
fn phases(ctas: &[CtaTimes], ns: f64) -> Vec<Phase> {
    let mean = |f: &dyn Fn(&CtaTimes) -> Option<f64>| {
        let list: Vec<f64> = ctas.iter().filter_map(f).collect();
        (!list.is_empty()).then(|| list.iter().sum::<f64>() / list.len() as f64 * ns)
    };
    let marks = [
        ("start", mean(&|c| Some(c.start))),
        ("setup", mean(&|c| c.first_copy)),
        ("first bytes", mean(&|c| c.first_product)),
        ("K loop", mean(&|c| c.last_product)),
        ("epilogue", mean(&|c| Some(c.end))),
    ];
    let mut out = Vec::new();
    let mut start = 0.0;
    for (name, end) in marks {
        if let Some(end) = end {
            if name != "start" {
                out.push(Phase { name, start, end });
            }
            start = end;
        }
    }
    out
}
