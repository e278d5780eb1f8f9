//! Why a plan is as it is and what bounds it: each memory's parts and what is left of it, what the next larger value of
//! a knob would cost, which knobs were settled by which rule, and the modelled figures that say what a kernel waits for.
//!
//! Times are modelled from [`Limits`](crate::arch::Limits), never measured.

use crate::config::{Config, Schedule, Setting, SfPreload};
use crate::error::ConfigError;
use crate::heuristics::cluster_slots;
use crate::legalize::validate_gate;
use crate::plan::{Plan, Region};
use std::fmt;

/// All there is to say about a plan; [`Plan::explain`] makes it, `Display` prints it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Explanation {
    /// SMEM, and TMEM where the chip has it.
    pub rooms: Vec<MemoryBudget>,
    /// What a stage holds and how far ahead the pipeline reads.
    pub stage: Stage,
    /// Every knob, in the order of [`KNOBS`](crate::config::KNOBS).
    pub choices: Vec<Choice>,
    /// Neighbouring configurations, and what becomes of them.
    pub what_ifs: Vec<WhatIf>,
    /// How evenly the SMs are busy.
    pub balance: Balance,
    /// Operations for a byte that must cross DRAM.
    pub intensity: f64,
    /// Operations for a byte that SMs load or store.
    pub sm_intensity: f64,
    /// Operations for a byte at which math and DRAM take equally long.
    pub ridge: f64,
}

/// A memory, its parts, and what is left.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryBudget {
    /// `SMEM` or `TMEM`.
    pub name: &'static str,
    /// What it is counted in.
    pub unit: &'static str,
    /// What the chip has.
    pub limit: u32,
    /// What is taken: bytes of SMEM, allocated columns of TMEM.
    pub used: u32,
    /// What takes it, in order.
    pub parts: Vec<Region>,
    /// What is allocated but holds nothing: rounding.
    pub padding: u32,
}

impl MemoryBudget {
    /// What is left.
    pub fn slack(&self) -> u32 {
        self.limit.saturating_sub(self.used)
    }
}

/// One K tile on its way through a CTA.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stage {
    /// Bytes of A, of B, and of scale factors that one CTA loads of a K tile.
    pub bytes: [u32; 3],
    /// Stages.
    pub depth: u32,
    /// Bytes in flight when the whole pipeline is.
    pub in_flight: u64,
    /// Seconds of DRAM's rate that the pipelines of all SMs hold, each SM having an equal share; modelled.
    pub covers: f64,
    /// Seconds from a load that misses L2 to its data; modelled.
    pub latency: f64,
    /// Seconds that the SM's tensor core needs for a K tile at its share of the chip's rate; modelled.
    pub math: f64,
    /// Seconds that the SM's share of DRAM needs for it, if nothing of it is in L2; modelled.
    pub load: f64,
}

/// A knob's value, and who chose it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The knob.
    pub knob: &'static str,
    /// Its value.
    pub value: String,
    /// The rule by which `auto` was settled; `None` where the value was asked for.
    pub rule: Option<String>,
}

/// A configuration that differs in one knob.
#[derive(Clone, Debug, PartialEq)]
pub struct WhatIf {
    /// The knob and its other value.
    pub knob: &'static str,
    /// See `knob`.
    pub value: String,
    /// The whole configuration: what was settled, with that value and `auto` for what follows from it.
    pub config: Config,
    /// SMEM bytes, TMEM columns (0 where there is no TMEM) and stages of that plan, or why there is none.
    pub outcome: Result<[u32; 3], Vec<ConfigError>>,
}

/// How evenly K tiles are spread over the SMs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Balance {
    /// Clusters that the SMs hold at once.
    pub slots: u32,
    /// K tiles of all tiles of C.
    pub k_tiles: u64,
    /// K tiles of the busiest slot.
    pub busiest: u64,
    /// Waves of items.
    pub waves: f64,
    /// Share of the SMs' time that is busy, if K tiles took equally long and nothing else any time.
    pub efficiency: f64,
}

impl Plan {
    /// Why the plan is as it is, and what bounds it.
    pub fn explain(&self) -> Explanation {
        let limits = self.arch.limits();
        let operations = self.problem.operations();
        let (read, written) = self.moved_bytes();
        Explanation {
            rooms: self.rooms(),
            stage: self.stage(),
            choices: self.choices(),
            what_ifs: self.what_ifs(),
            balance: self.balance(),
            intensity: operations / self.dram_bytes() as f64,
            sm_intensity: operations / (read as f64 + written as f64),
            ridge: limits.ops_per_second(self.kind) / limits.dram_bytes_per_second,
        }
    }

    fn rooms(&self) -> Vec<MemoryBudget> {
        let smem = &self.smem;
        let held: u32 = smem.regions.iter().map(|region| region.size).sum();
        let smem = MemoryBudget {
            name: "SMEM",
            unit: "bytes",
            limit: self.config.smem_limit(self.arch),
            used: smem.total,
            parts: smem.regions.clone(),
            padding: smem.total.saturating_sub(held),
        };
        [smem].into_iter().chain(self.isa().memory(self)).collect()
    }

    fn stage(&self) -> Stage {
        let limits = self.arch.limits();
        let bytes = self.k_tile_bytes().map(|(_, bytes)| bytes);
        // With `all`, scale factors are no part of the pipeline.
        let per_stage = match self.sf_preload {
            SfPreload::All => bytes[0] + bytes[1],
            SfPreload::PerStage | SfPreload::Ahead(_) => bytes.iter().sum(),
        };
        let in_flight = u64::from(self.stages) * u64::from(per_stage);
        let sms = f64::from(limits.sms);
        let rate = limits.dram_bytes_per_second / sms;
        let products = f64::from(self.smem.b_tiles);
        let macs = f64::from(self.cta_rows) * f64::from(self.mma_columns) * f64::from(self.tile.k) * products;
        Stage {
            bytes,
            depth: self.stages,
            in_flight,
            covers: in_flight as f64 / rate,
            latency: limits.dram_latency,
            math: 2.0 * macs / (limits.ops_per_second(self.kind) / sms),
            load: f64::from(per_stage) / rate,
        }
    }

    fn choices(&self) -> Vec<Choice> {
        let settled = self.config.entries();
        let choice = |((knob, value), (_, asked)): (&(&'static str, String), (&str, String))| Choice {
            knob,
            value: value.clone(),
            rule: if asked == "auto" { self.rules.of(knob).map(|rule| rule.text(self)) } else { None },
        };
        settled.iter().zip(self.asked.entries()).map(choice).collect()
    }

    /// What the next larger value of a knob would take.
    fn what_ifs(&self) -> Vec<WhatIf> {
        let tile = |n: u32, k: u32| format!("[{}, {n}, {k}]", self.tile.m);
        let mut wanted = vec![
            ("stages", (self.stages + 1).to_string()),
            ("tile", tile(2 * self.tile.n, self.tile.k)),
            ("tile", tile(self.tile.n, 2 * self.tile.k)),
        ];
        wanted.extend(self.isa().what_ifs());
        let outcome = |(knob, value): (&'static str, String)| {
            // What was chosen stays as it is, but for what follows from the knob.
            let mut config = Config {
                stages: if knob == "stages" { Setting::Auto } else { self.asked.stages },
                tmem_columns: Setting::Auto,
                cache: self.asked.cache,
                k_order: self.asked.k_order,
                sf_load: self.asked.sf_load,
                accumulator_buffers: self.asked.accumulator_buffers,
                schedule: if knob == "consumers" { self.asked.schedule } else { self.config.schedule },
                ..self.config
            };
            config.set(knob, &value).ok()?;
            let plan = validate_gate(&self.problem, &config, self.arch, &self.gate);
            let outcome = plan.map(|plan| [plan.smem.total, plan.tmem_columns(), plan.stages]);
            Some(WhatIf { knob, value, config, outcome })
        };
        wanted.into_iter().filter_map(outcome).collect()
    }

    /// Seconds below which this plan's kernels cannot be: [`Plan::floor_seconds`], or the MMAs of the busiest SM at its
    /// share of the tensor cores' rate, rows and columns beyond the problem included. Modelled, never measured.
    pub fn schedule_floor_seconds(&self) -> f64 {
        let k = &self.k_loop;
        let Balance { busiest, .. } = self.balance();
        // Tiles that the busiest SM may see the shorter end of.
        let ends = busiest.div_ceil(u64::from(k.tiles).max(1)) + u64::from(self.work.has_ranges());
        let missing = ends * u64::from(k.blocks.saturating_sub(self.last_steps()));
        let steps = busiest.saturating_mul(u64::from(k.blocks)).saturating_sub(missing);
        let passes = f64::from(2 / self.smem.b_tiles.max(1));
        let math = passes * self.stage().math / f64::from(k.blocks) * steps as f64;
        math.max(self.floor_seconds())
    }

    /// How evenly the SMs are busy.
    pub fn balance(&self) -> Balance {
        let work = &self.work;
        let slots = cluster_slots(&self.config, self.arch, self.cluster_ctas()).max(1);
        // Groups of rows are taken to differ as little as they can.
        let tiles = self.items_of(&self.problem.shape.even_sizes());
        let k_tiles = tiles * u64::from(self.k_loop.tiles);
        let longest = u64::from(work.share) + u64::from(work.longer > 0);
        let items = tiles * u64::from(work.splits);
        let busiest = match work.schedule {
            Schedule::StreamK => longest,
            Schedule::OneTile
            | Schedule::Persistent
            | Schedule::Dynamic
            | Schedule::SplitK(_)
            | Schedule::ClusterSplitK(_) => items.div_ceil(u64::from(slots)) * longest,
        };
        Balance {
            slots,
            k_tiles,
            busiest,
            waves: items as f64 / f64::from(slots),
            // The CTAs of a cluster that shares a tile's K work side by side.
            efficiency: k_tiles as f64 / (f64::from(slots * work.cluster_parts) * busiest.max(1) as f64),
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for room in &self.rooms {
            room.fmt(f)?;
        }
        writeln!(f, "knobs")?;
        for Choice { knob, value, rule } in &self.choices {
            match rule {
                Some(rule) => writeln!(f, "  {knob:<20}{value:<18} auto: {rule}")?,
                None => writeln!(f, "  {knob:<20}{value}")?,
            }
        }
        writeln!(f, "what if")?;
        for what_if in &self.what_ifs {
            what_if.fmt(f)?;
        }
        let Stage { bytes: [a, b, scales], depth, in_flight, covers, latency, math, load } = self.stage;
        let factors = if scales > 0 { format!(" + scale factors {scales}") } else { String::new() };
        writeln!(f, "K tile    A {a} + B {b}{factors} = {} bytes a CTA", a + b + scales)?;
        writeln!(
            f,
            "          {:.0} ns of math and {:.0} ns of loads at an SM's share of the chip (modelled): {} bound{}",
            math * 1e9,
            load * 1e9,
            if math >= load { "math" } else { "load" },
            if math >= load { "" } else { ", unless L2 has it" }
        )?;
        writeln!(
            f,
            "pipeline  {depth} stages, {in_flight} bytes in flight a CTA: {:.2} us of an SM's share of DRAM, {:.1} times the latency of {:.2} us (modelled)",
            covers * 1e6,
            covers / latency,
            latency * 1e6
        )?;
        let Balance { slots, k_tiles, busiest, waves, efficiency } = self.balance;
        writeln!(
            f,
            "waves     {waves:.2} of {slots} clusters; {k_tiles} K tiles in all, {busiest} on the busiest: {:.1} % busy",
            efficiency * 100.0
        )?;
        writeln!(
            f,
            "intensity {:.0} operations for a byte of DRAM, {:.0} for a byte at the SMs; {:.0} balance DRAM and math: {} bound",
            self.intensity,
            self.sm_intensity,
            self.ridge,
            if self.intensity >= self.ridge { "math" } else { "memory" }
        )
    }
}

impl fmt::Display for MemoryBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MemoryBudget { name, unit, limit, used, parts, padding } = self;
        writeln!(f, "{name:<10}{used} of {limit} {unit}, {} left", self.slack())?;
        for part in parts {
            writeln!(f, "  {:>8}  {}", part.size, part.name)?;
        }
        if *padding > 0 {
            writeln!(f, "  {padding:>8}  rounding")?;
        }
        Ok(())
    }
}

impl fmt::Display for WhatIf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WhatIf { knob, value, outcome, config: _ } = self;
        match outcome {
            Ok([smem, 0, stages]) => {
                writeln!(f, "  {knob} = {value}: fits, {smem} bytes of SMEM, {stages} stages")
            }
            Ok([smem, tmem, stages]) => {
                writeln!(
                    f,
                    "  {knob} = {value}: fits, {smem} bytes of SMEM, {tmem} columns of TMEM, {stages} stages"
                )
            }
            Err(errors) => errors.iter().try_for_each(|error| writeln!(f, "  {knob} = {value}: {error}")),
        }
    }
}
