//! A plan as text for people.

use crate::config::{Schedule, Strategy, TmemShape};
use crate::plan::{Plan, Region};
use crate::problem::Groups;
use std::fmt;

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limits = self.arch.limits();
        let k = &self.k_loop;
        writeln!(f, "problem   {}", self.problem)?;
        writeln!(f, "chip      {}, PTX ISA {}.{}", self.arch, self.ptx_version.0, self.ptx_version.1)?;
        writeln!(f, "knobs")?;
        for ((name, value), (_, asked)) in self.config.entries().iter().zip(self.asked.entries()) {
            let auto = if *value == asked { "" } else { "   (auto)" };
            writeln!(f, "  {name:<20}{value}{auto}")?;
        }
        writeln!(
            f,
            "grid      {} x {} tiles{}, {} CTAs of {} threads, {:.2} waves of tiles on {} SMs",
            self.m_tiles,
            self.n_tiles,
            match self.problem.shape.groups {
                Groups::One => String::new(),
                Groups::Batch(count) => format!(" in each of {count} matrices"),
                Groups::Rows(_) => " at most".to_owned(),
            },
            self.ctas(),
            self.threads,
            self.waves(),
            self.config.sms
        )?;
        self.shares(f)?;
        writeln!(
            f,
            "K loop    {} tiles of {} MMA steps, the last of {}; {}",
            k.tiles,
            k.blocks,
            self.last_steps(),
            match self.strategy {
                Strategy::Interleaved =>
                    format!("{} interleaved, {} in the split tail", k.main_tiles, k.tail_tiles),
                Strategy::Sequential => "once for each product, in one kernel".to_owned(),
                Strategy::TwoPass | Strategy::SecondFused => "a kernel for each product".to_owned(),
                Strategy::Single => "one product".to_owned(),
            }
        )?;
        writeln!(
            f,
            "SMEM      {} of {} bytes, {} stages",
            self.smem.total,
            self.config.smem_limit(self.arch),
            self.stages
        )?;
        write_regions(f, &self.smem.regions)?;
        writeln!(
            f,
            "  a stage: A {}{} | {}{} bytes in {} K box(es){}",
            self.smem.a_bytes,
            match [self.smem.blank_bytes, self.smem.last_blank_bytes].map(|bytes| self.smem.boxes * bytes) {
                [0, 0] => String::new(),
                [0, bytes] => format!(", of which {bytes} are not loaded in the last tile along M"),
                [bytes, _] => format!(", of which {bytes} are zeros"),
            },
            match (self.smem.b_tiles, self.smem.b_box_bytes * self.smem.b_boxes) {
                (1, bytes) => format!("B {bytes}"),
                (_, bytes) => format!("B1 {bytes} | B2 {bytes}"),
            },
            match self.smem.packed_a_bytes {
                0 => String::new(),
                bytes => format!(" | packed A {bytes}"),
            },
            self.smem.boxes,
            match self.smem.slot_bytes {
                0 => String::new(),
                bytes => format!("; a slot of scale factors: {bytes} bytes"),
            }
        )?;
        self.isa().describe(self, f)?;
        writeln!(f, "barriers")?;
        for barrier in &self.barriers {
            writeln!(
                f,
                "  {:>7}  {:<14} {} x 8 bytes, {} arrival(s) a phase",
                barrier.offset, barrier.kind, barrier.count, barrier.arrivals
            )?;
        }
        writeln!(f, "tensor maps")?;
        let width = self.tensor_maps.iter().map(|map| map.name().len().max(3)).max().unwrap_or(0);
        for map in &self.tensor_maps {
            writeln!(
                f,
                "  {:<width$} {} [{}] rows {} bytes apart, box [{}, {}], swizzle {}",
                map.name(),
                map.element.name(),
                map.all_dims().iter().map(u64::to_string).collect::<Vec<_>>().join(", "),
                map.row_stride,
                map.box_dims[0],
                map.box_dims[1],
                map.swizzle.name()
            )?;
        }
        let e = &self.epilogue;
        // Columns that a thread has side by side; the gate's own kernel has whole vectors.
        let columns = match self.strategy {
            Strategy::TwoPass => e.c.vector,
            Strategy::SecondFused | Strategy::Sequential | Strategy::Interleaved | Strategy::Single => {
                self.isa().store_columns(self, e.c.vector)
            }
        };
        writeln!(
            f,
            "epilogue  {} chunks of {} columns{}{}, {} bytes a store",
            e.chunks,
            e.chunk,
            if e.load == TmemShape::S32x32b { String::new() } else { format!(" by .{}", e.load.name()) },
            if e.early_chunks > 0 { format!(", {} of them early", e.early_chunks) } else { String::new() },
            if e.c.staging.is_some() { 16 } else { columns * e.c.element_bits / 8 }
        )?;
        if let Some(kept) = e.kept {
            writeln!(
                f,
                "kept      pre-activations D1 and D2, {} bytes a store",
                if self.swap_ab { kept.element_bits / 8 } else { kept.vector * kept.element_bits / 8 }
            )?;
        }
        let operations = self.problem.operations();
        let bytes = self.problem.compulsory_bytes();
        writeln!(
            f,
            "work      {:.3} GFLOP; {:.3} MB must cross DRAM, {:.3} MB are loaded to SMEM",
            operations / 1e9,
            bytes as f64 / 1e6,
            self.loaded_bytes() as f64 / 1e6
        )?;
        writeln!(
            f,
            "floor     {:.2} us, modelled: {:.2} us of math at {:.1} PFLOP/s, {:.2} us of DRAM at {:.2} TB/s",
            self.floor_seconds() * 1e6,
            operations / limits.ops_per_second(self.kind) * 1e6,
            limits.ops_per_second(self.kind) / 1e15,
            bytes as f64 / limits.dram_bytes_per_second * 1e6,
            limits.dram_bytes_per_second / 1e12
        )
    }
}

impl Plan {
    /// How the work is shared out, where there is something to say.
    fn shares(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let work = &self.work;
        match work.schedule {
            Schedule::SplitK(parts) | Schedule::ClusterSplitK(parts) => writeln!(
                f,
                "shares    {parts} parts of K a tile, {} of {} K tiles, the others of {}",
                work.longer,
                work.share + 1,
                work.share
            )?,
            Schedule::StreamK => writeln!(
                f,
                "shares    {} K tiles in all: {} clusters of {}, the others of {}",
                u64::from(work.tiles) * u64::from(self.k_loop.tiles),
                work.longer,
                work.share + 1,
                work.share
            )?,
            Schedule::OneTile | Schedule::Persistent | Schedule::Dynamic => {}
        }
        for buffer in &self.workspace {
            let zeroed = if buffer.zeroed { ", zero before and after" } else { "" };
            writeln!(f, "workspace {}, {} bytes{zeroed}", buffer.name, buffer.bytes)?;
        }
        Ok(())
    }
}

/// Places of a memory, a line each.
pub(crate) fn write_regions(f: &mut fmt::Formatter<'_>, regions: &[Region]) -> fmt::Result {
    for region in regions {
        writeln!(f, "  {:>7} .. {:<7} {}", region.offset, region.offset + region.size, region.name)?;
    }
    Ok(())
}
