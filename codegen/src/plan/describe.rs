//! A plan as text for people.

use super::{Plan, Region, Warpgroups};
use crate::config::{Schedule, Strategy, TmemShape};
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
            }
        )?;
        writeln!(f, "SMEM      {} of {} bytes, {} stages", self.smem.total, limits.smem_bytes, self.stages)?;
        regions(f, &self.smem.regions)?;
        writeln!(
            f,
            "  a stage: A {} | {}{} bytes in {} K box(es){}",
            self.smem.a_bytes,
            match (self.smem.b_tiles, self.smem.b_box_bytes * self.smem.boxes) {
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
        match self.warpgroups {
            Some(warpgroups) => self.registers(f, warpgroups)?,
            None => self.tensor_memory(f)?,
        }
        writeln!(f, "barriers")?;
        for barrier in &self.barriers {
            writeln!(
                f,
                "  {:>7}  {:<14} {} x 8 bytes, {} arrival(s) a phase",
                barrier.offset, barrier.name, barrier.count, barrier.arrivals
            )?;
        }
        writeln!(f, "tensor maps")?;
        for map in &self.tensor_maps {
            writeln!(
                f,
                "  {:<3} {} [{}] rows {} bytes apart, box [{}, {}], swizzle {}",
                map.operand.name(),
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
        let neighbours = match e.load {
            _ if self.strategy == Strategy::TwoPass => e.c.vector,
            // Two columns of an accumulator, or, swapped, of C one that has neighbours in other lanes.
            _ if self.warpgroups.is_some() => {
                if self.swap_ab {
                    1
                } else {
                    2
                }
            }
            TmemShape::S32x32b => e.c.vector,
            TmemShape::S16x256b => 2,
            TmemShape::S16x128b | TmemShape::S16x64b => 1,
        };
        writeln!(
            f,
            "epilogue  {} chunks of {} columns{}{}, {} bytes a store",
            e.chunks,
            e.chunk,
            if e.load == TmemShape::S32x32b { String::new() } else { format!(" by .{}", e.load.name()) },
            if e.early_chunks > 0 { format!(", {} of them early", e.early_chunks) } else { String::new() },
            if e.c.staging.is_some() { 16 } else { e.c.vector.min(neighbours) * e.c.element_bits / 8 }
        )?;
        if let Some(kept) = e.kept {
            writeln!(
                f,
                "products  D1 and D2 kept as the gate reads them, {} bytes a store",
                if self.swap_ab { kept.element_bits / 8 } else { kept.vector * kept.element_bits / 8 }
            )?;
        }
        let operations = self.problem.shape.operations();
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
    /// Accumulators in tensor memory.
    fn tensor_memory(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "TMEM      {} columns used, {} allocated of {}",
            self.tmem.used,
            self.tmem.columns,
            self.arch.limits().tmem_columns
        )?;
        regions(f, &self.tmem.regions)?;
        if self.tmem.shared > 0 {
            writeln!(
                f,
                "  two buffers share {} of {} columns of each product, which the epilogue reads first",
                self.tmem.shared, self.mma_columns
            )?;
        }
        Ok(())
    }

    /// Accumulators in registers.
    fn registers(&self, f: &mut fmt::Formatter<'_>, warpgroups: Warpgroups) -> fmt::Result {
        let rows = warpgroups.rows();
        writeln!(
            f,
            "warps     {}; one more warpgroup loads",
            match (warpgroups.count, warpgroups.ping_pong) {
                (1, _) => format!("a warpgroup for {rows} rows"),
                (count, true) => format!("{count} warpgroups, by turns a tile of {rows} rows each"),
                (count, false) => format!("{count} warpgroups, {rows} rows of a tile each"),
            }
        )?;
        let products = if self.strategy.is_fused() { 2 } else { 1 };
        write!(
            f,
            "registers {} of a thread for accumulators: {products} x {rows} x {} fp32 in 128 threads",
            products * warpgroups.product_registers,
            self.mma_columns
        )?;
        if let Some(window) = warpgroups.window {
            write!(f, ", {} for sums on their way there", window.sets * warpgroups.product_registers)?;
        }
        match (warpgroups.count, warpgroups.registers) {
            (1, _) => writeln!(f),
            (_, [computes, loads]) => {
                writeln!(f, "; {computes} where MMAs are issued, {loads} in the warpgroup that loads")
            }
        }
    }

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

fn regions(f: &mut fmt::Formatter<'_>, regions: &[Region]) -> fmt::Result {
    for region in regions {
        writeln!(f, "  {:>7} .. {:<7} {}", region.offset, region.offset + region.size, region.name)?;
    }
    Ok(())
}
