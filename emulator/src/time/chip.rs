//! Chips as files of numbers, each with its unit, its source, and a range if it is not known exactly.

use serde::Deserialize;
use std::collections::BTreeMap;

/// One number of a chip.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quantity {
    /// The value that the simulator uses.
    pub value: f64,
    /// Smallest plausible value.
    pub low: f64,
    /// Largest.
    pub high: f64,
}

impl Quantity {
    /// Whether the value is not known exactly.
    pub fn is_uncertain(self) -> bool {
        self.low < self.value || self.value < self.high
    }
}

/// Why a chip file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChipError {
    /// The emulator has no chip with this name.
    #[error("there is no chip `{name}`; use {known}, or a file of the same form")]
    Unknown {
        /// The name.
        name: String,
        /// The names there are.
        known: String,
    },
    /// The file does not have the form of a chip file.
    #[error("{file}: {message}")]
    Form {
        /// The file.
        file: String,
        /// What is wrong.
        message: String,
    },
    /// A number is missing.
    #[error("{file}: there is no `{key}` ({unit}): {about}")]
    Missing {
        /// The file.
        file: String,
        /// The key.
        key: &'static str,
        /// Its unit.
        unit: &'static str,
        /// What it is.
        about: &'static str,
    },
    /// A number has a value that no chip has.
    #[error("{file}: [{key}] {message}")]
    Value {
        /// The file.
        file: String,
        /// The key.
        key: String,
        /// What is wrong.
        message: String,
    },
    /// A change names no number of the chip.
    #[error("`{key}` is not a number of a chip; the numbers are {known}")]
    NoSuchNumber {
        /// The name.
        key: String,
        /// The names there are.
        known: String,
    },
}

macro_rules! chip {
    ($($(#[doc = $about:literal])+ $name:ident: $unit:literal,)+) => {
        /// The numbers of a chip from which times follow. `clk` is a clock of its SMs.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Chip {
            /// Name of the product.
            pub name: String,
            /// Targets whose kernels it runs.
            pub targets: Vec<String>,
            $($(#[doc = $about])+ #[doc = concat!("Unit: ", $unit, ".")] pub $name: Quantity,)+
        }

        impl Chip {
            /// Name, unit and meaning of each number.
            pub const NUMBERS: &'static [(&'static str, &'static str, &'static str)] =
                &[$((stringify!($name), $unit, concat!($($about),+)),)+];

            /// A number by its name.
            pub fn number(&self, name: &str) -> Option<Quantity> {
                match name {
                    $(stringify!($name) => Some(self.$name),)+
                    _ => None,
                }
            }

            fn number_mut(&mut self, name: &str) -> Option<&mut Quantity> {
                match name {
                    $(stringify!($name) => Some(&mut self.$name),)+
                    _ => None,
                }
            }

            fn from_parts(name: String, targets: Vec<String>, mut get: impl FnMut(&'static str, &'static str, &'static str) -> Result<Quantity, ChipError>) -> Result<Chip, ChipError> {
                Ok(Chip { name, targets, $($name: get(stringify!($name), $unit, concat!($($about),+))?,)+ })
            }
        }
    };
}

chip! {
    /// Number of streaming multiprocessors.
    sms: "SMs",
    /// Number of GPCs. SMs of a GPC share what they request of L2 at about the same time.
    gpcs: "GPCs",
    /// Clusters of 2 CTAs that run at a time with one CTA per SM.
    clusters_of_2: "clusters",
    /// Clusters of 4 CTAs that run at a time with one CTA per SM.
    clusters_of_4: "clusters",
    /// Clusters of 8 CTAs that run at a time with one CTA per SM.
    clusters_of_8: "clusters",
    /// Clusters of 16 CTAs that run at a time with one CTA per SM.
    clusters_of_16: "clusters",
    /// Shared memory per SM, including the part that the system reserves.
    smem: "bytes",
    /// Threads per SM.
    threads: "threads",
    /// 32-bit registers per SM.
    registers: "registers",
    /// Clock of the SMs.
    clock: "MHz",
    /// Clock of the SMs at which the numbers of L2, the crossbar and DRAM in `clk` were read. These parts have clocks
    /// of their own, which do not fall with that of the SMs.
    memory_clock: "MHz",
    /// Fraction of the time that the tensor cores of all SMs may be busy at the maximum clock under a load that
    /// lasts. Beyond it the power limit lowers the clock; see [`Chip::sustained_clock`].
    tensor_power: "1",
    /// Latency of integer and logic instructions.
    alu_latency: "clk",
    /// Clocks for which one warp instruction occupies a sub-core's integer unit.
    alu_interval: "clk",
    /// Latency of multiply-adds in binary32 and of 32-bit integers.
    fma_latency: "clk",
    /// Clocks for which one warp instruction occupies a sub-core's multiply-add unit.
    fma_interval: "clk",
    /// Clocks for which one warp instruction of 32-bit integers occupies the half of that unit that multiplies them.
    imad_interval: "clk",
    /// Clocks for which one warp instruction of two numbers of 16 bits occupies the other half.
    half_interval: "clk",
    /// Latency of exponentials, reciprocals and the like.
    mufu_latency: "clk",
    /// Clocks for which one warp instruction occupies a sub-core's unit for them.
    mufu_interval: "clk",
    /// Clocks for which one warp instruction occupies a sub-core's conversion unit.
    convert_interval: "clk",
    /// Latency of shuffles, votes and elections.
    shuffle_latency: "clk",
    /// Clocks from a branch to the next instruction of the warp.
    branch: "clk",
    /// Clocks for which `mma.sync` with 16 x 8 x 16 elements of 16 bits and sums in binary32 occupies a sub-core.
    mma_sync_interval: "clk",
    /// The same for 16 x 8 x 32 elements of 8 bits.
    mma_sync_8: "clk",
    /// The same for 16 x 8 x 32 elements of 8 bits with scale factors.
    mma_sync_scaled_8: "clk",
    /// The same for 16 x 8 x 64 elements of 4 bits with scale factors.
    mma_sync_scaled_4: "clk",
    /// Fraction of these clocks that sums in binary16 or in integers take.
    mma_sync_half: "ratio",
    /// From the end of that interval to the results.
    mma_sync_tail: "clk",
    /// Rate at which an SM reads or writes shared memory.
    smem_rate: "bytes/clk",
    /// Bytes that warps can store less to shared memory for each byte that a TMA load brings there.
    smem_tma_cost: "ratio",
    /// Latency of a load from shared memory.
    smem_latency: "clk",
    /// Latency of a load that hits L1.
    l1_latency: "clk",
    /// Lines of 128 bytes that an SM's L1 looks up per clock.
    l1_lines: "lines/clk",
    /// Lines of 128 bytes that an SM's threads store to per clock.
    store_lines: "lines/clk",
    /// Loads and stores of warps that the memory unit of an SM holds before the next one waits.
    access_queue: "instructions",
    /// Latency of a load that hits the near half of L2.
    l2_latency: "clk",
    /// The part of that latency that is in clocks of the SM.
    l2_latency_sm: "clk",
    /// Additional latency of a line that the far half of L2 has.
    l2_far: "clk",
    /// Capacity of L2.
    l2_bytes: "bytes",
    /// Halves of L2 with copies of their own: 2 where a line that SMs of both halves read takes room in both, else 1.
    l2_copies: "copies",
    /// The part of L2 that lines read with `evict_first` fill.
    l2_evict_first: "1",
    /// Rate at which lines cross from one half of L2 to the other, in each direction, where each has copies.
    l2_cross_rate: "bytes/clk",
    /// Rate at which L2 delivers to all SMs together.
    l2_rate: "bytes/clk",
    /// Longest time after a request for a whole line in which others of its GPC join it. They do so only while it waits for L2.
    l2_merge: "clk",
    /// Rate at which L2, with merged requests, delivers to all SMs together.
    crossbar_rate: "bytes/clk",
    /// Rate at which L2 accepts writes of all SMs together.
    l2_write_rate: "bytes/clk",
    /// Rate at which one SM reads from L2.
    sm_rate: "bytes/clk",
    /// Rate at which one SM writes to L2.
    sm_write_rate: "bytes/clk",
    /// Additional latency of an L2 miss.
    dram_latency: "clk",
    /// Additional latency of DRAM beside the other half of L2.
    dram_far: "clk",
    /// Clocks for which a refresh keeps a bank of DRAM from answering.
    dram_refresh: "clk",
    /// From the start of a bank's refresh to the start of its next one.
    dram_refresh_interval: "clk",
    /// Rate of all DRAM channels together.
    dram_rate: "GB/s",
    /// Channels of DRAM, each with a queue of its own.
    dram_channels: "count",
    /// Contiguous bytes per channel.
    dram_interleave: "bytes",
    /// Latency of an atomic operation in global memory.
    atomic_latency: "clk",
    /// From a store to its arrival in L2, which a fence waits for.
    store_latency: "clk",
    /// Clocks for which a warp is busy issuing a TMA copy.
    tma_issue: "clk",
    /// From the issue of a TMA load to its first request to L2.
    tma_latency: "clk",
    /// Most bytes that loads of an SM's TMA have under way.
    tma_under_way: "bytes",
    /// Clocks of the first use of a tensor map on an SM.
    tma_descriptor: "clk",
    /// The first use of a tensor map after a fence that acquires it.
    tma_acquired: "clk",
    /// From a `tensormap.cp_fenceproxy` to its arrival in L2.
    tma_publish: "clk",
    /// Clocks the TMA takes for a row of a box, of at most 128 bytes.
    tma_row: "clk",
    /// Rate at which all SMs together load rows of boxes outside of their tensor, over the square root of the number of SMs.
    tma_outside_rate: "rows/clk",
    /// Rate at which TMA writes to an SM's shared memory.
    tma_rate: "bytes/clk",
    /// From the last byte of a load to its mbarrier.
    tma_arrive: "clk",
    /// From the issue of a TMA store to its first read of shared memory.
    tma_store_latency: "clk",
    /// Rate at which a TMA store reads shared memory.
    tma_store_rate: "bytes/clk",
    /// Clocks of `tcgen05.mma` per column of N, for 128 rows per SM.
    tcgen05_column: "clk",
    /// Fraction of that for `kind::mxf4nvf4` and `kind::mxf4`.
    tcgen05_fp4: "ratio",
    /// From the issue of a product to its start in an idle tensor core.
    tcgen05_issue: "clk",
    /// From the end of a product's interval to its results.
    tcgen05_tail: "clk",
    /// Additional clocks for a pair of CTAs.
    tcgen05_pair: "clk",
    /// Clocks for which a warp is busy issuing a `tcgen05.mma`, `cp` or `commit`.
    tcgen05_warp: "clk",
    /// From the end of the covered products to a commit's arrival.
    tcgen05_commit: "clk",
    /// Clocks of a `tcgen05.cp.32x128b.warpx4`.
    tcgen05_copy_scales: "clk",
    /// Rate of other `tcgen05.cp`.
    tcgen05_copy_rate: "bytes/clk",
    /// Rate at which a sub-core loads from tensor memory.
    tmem_load_rate: "bytes/clk",
    /// From a load's last bytes to the registers.
    tmem_load_latency: "clk",
    /// Rate at which a sub-core stores to tensor memory.
    tmem_store_rate: "bytes/clk",
    /// From a store's last bytes to tensor memory.
    tmem_store_latency: "clk",
    /// Clocks of `tcgen05.alloc` in an empty tensor memory.
    tmem_alloc: "clk",
    /// Clocks of `wgmma` per column of N, for 64 rows.
    wgmma_column: "clk",
    /// Clocks that a `wgmma` takes to read A from registers, after one of the same warpgroup. B's bytes add.
    wgmma_registers: "clk",
    /// Least clocks from one `wgmma` with A in registers to the next of another warpgroup.
    wgmma_registers_two: "clk",
    /// The same where three warpgroups take turns and N is above 16. B's bytes add.
    wgmma_registers_three: "clk",
    /// Slots of the ports of registers that a `wgmma` takes from instructions of each sub-core per column of N, for its sums.
    wgmma_slots: "slots",
    /// Such slots that it takes in addition for A in registers.
    wgmma_slots_a: "slots",
    /// From the end of a product's arithmetic to the end of a wait for it.
    wgmma_tail: "clk",
    /// Clocks for which a warp is busy issuing a `wgmma` of up to 64 columns.
    wgmma_issue: "clk",
    /// `wgmma` that an SM accepts before the first is done.
    wgmma_queue: "products",
    /// From the end of a product's interval until the queue has a free place.
    wgmma_leave: "clk",
    /// Arrival at an mbarrier, from its issue.
    mbarrier_arrive: "clk",
    /// From the completion of a phase to a waiting warp's next instruction.
    mbarrier_wake: "clk",
    /// Between two looks at an mbarrier by lanes that wait for it while other lanes of their warp wait elsewhere. 0: they see it at
    /// once.
    mbarrier_look: "clk",
    /// From the start of such a wait to the first of these looks.
    mbarrier_first_look: "clk",
    /// A test of an mbarrier whose phase is complete.
    mbarrier_test: "clk",
    /// Additional clocks of an arrival in another CTA of the cluster.
    mbarrier_remote: "clk",
    /// `bar.sync` of one warp.
    barrier: "clk",
    /// Additional clocks per warp.
    barrier_warp: "clk",
    /// Cluster barrier with relaxed arrival.
    cluster_relaxed: "clk",
    /// Cluster barrier with releasing arrival.
    cluster_release: "clk",
    /// Load from another CTA's shared memory.
    dsmem_latency: "clk",
    /// Rate at which an SM accesses another CTA's shared memory.
    dsmem_rate: "bytes/clk",
    /// `fence.cta` and proxy fences of one state space.
    fence_cta: "clk",
    /// `fence.proxy.async` of all state spaces.
    fence_proxy: "clk",
    /// `fence.gpu` and `fence.cluster` with nothing pending.
    fence_gpu: "clk",
    /// What an acquire adds to a load or an atomic operation.
    acquire: "clk",
    /// From the request for another work item to its answer.
    launch_control: "clk",
    /// From the start of a launch to the first instruction of its first CTAs, with nothing before it on the stream.
    launch: "ns",
    /// From the end of a kernel to the first instruction of the next one on the stream.
    launch_gap: "ns",
    /// The same gap if the next kernel is launched programmatically (PDL) and waits for the first.
    launch_gap_pdl: "ns",
    /// From the end of a kernel's last CTA to the release of waiters for the kernel.
    kernel_end: "ns",
    /// From the end of a CTA to the first instruction of the next one on its SM.
    cta_gap: "clk",
    /// Between the starts of CTAs of one grid, chip-wide.
    cta_interval: "clk",
    /// Clocks of an SM's first fetch of code, at its start and at branch targets; following code is prefetched.
    code_miss: "clk",
    /// Clocks of an SM's first read of kernel parameters.
    param_miss: "clk",
}

/// As in the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    value: f64,
    unit: String,
    #[serde(default)]
    low: Option<f64>,
    #[serde(default)]
    high: Option<f64>,
    source: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    name: String,
    targets: Vec<String>,
}

/// Chips that are part of the emulator.
const CHIPS: &[(&str, &str)] = &[
    ("b200", include_str!("../../chips/b200.toml")),
    ("b300", include_str!("../../chips/b300.toml")),
    ("dgx_spark", include_str!("../../chips/dgx_spark.toml")),
    ("h100", include_str!("../../chips/h100.toml")),
    ("h200", include_str!("../../chips/h200.toml")),
    ("jetson_thor", include_str!("../../chips/jetson_thor.toml")),
    ("rtx_5090", include_str!("../../chips/rtx_5090.toml")),
    ("rtx_pro_6000", include_str!("../../chips/rtx_pro_6000.toml")),
];

impl Chip {
    /// Names of the chips that are part of the emulator.
    pub fn names() -> impl Iterator<Item = &'static str> {
        CHIPS.iter().map(|(n, _)| *n)
    }

    /// A chip that is part of the emulator, by name.
    ///
    /// # Errors
    /// [`ChipError::Unknown`].
    pub fn named(name: &str) -> Result<Chip, ChipError> {
        let lower = name.to_ascii_lowercase();
        match CHIPS.iter().find(|(n, _)| *n == lower) {
            Some((n, text)) => Chip::parse(&format!("chips/{n}.toml"), text),
            None => Err(ChipError::Unknown {
                name: name.to_owned(),
                known: Chip::names().collect::<Vec<_>>().join(", "),
            }),
        }
    }

    /// Parses a chip file: `[chip]` with `name` and `targets`, and a table for each of [`Chip::NUMBERS`] with
    /// `value`, `unit`, `source`, and `low` and `high` if the number is not known exactly.
    ///
    /// # Errors
    /// The first number that is missing, unknown or impossible.
    pub fn parse(file: &str, text: &str) -> Result<Chip, ChipError> {
        let form = |message: String| ChipError::Form { file: file.to_owned(), message };
        let mut table: BTreeMap<String, toml::Value> =
            toml::from_str(text).map_err(|e| form(e.to_string()))?;
        let head = table.remove("chip").ok_or_else(|| form("there is no table [chip]".to_owned()))?;
        let head: Head = head.try_into().map_err(|e| form(format!("[chip] {e}")))?;
        let chip = Chip::from_parts(head.name, head.targets, |key, unit, about| {
            let Some(entry) = table.remove(key) else {
                let about = about.trim();
                return Err(ChipError::Missing { file: file.to_owned(), key, unit, about });
            };
            let bad =
                |message: String| ChipError::Value { file: file.to_owned(), key: key.to_owned(), message };
            let e: Entry = entry.try_into().map_err(|e: toml::de::Error| bad(e.message().to_owned()))?;
            let (low, high) = (e.low.unwrap_or(e.value), e.high.unwrap_or(e.value));
            if e.unit != unit {
                return Err(bad(format!("the unit is `{}`, and this number is in {unit}", e.unit)));
            }
            if e.source.trim().is_empty() {
                return Err(bad(
                    "there is no source: name a paper, a file or the probe that measured it".to_owned()
                ));
            }
            if ![e.value, low, high].iter().all(|v| v.is_finite() && *v >= 0.0) {
                return Err(bad(format!("{} ({low} to {high}) is no finite number from 0 up", e.value)));
            }
            if !(low <= e.value && e.value <= high) {
                return Err(bad(format!("the value {} lies outside of its range, {low} to {high}", e.value)));
            }
            Ok(Quantity { value: e.value, low, high })
        })?;
        if let Some(key) = table.keys().next() {
            let known = Chip::NUMBERS.iter().map(|n| n.0).collect::<Vec<_>>().join(", ");
            let message = format!("this is no number of a chip; there are {known}");
            return Err(ChipError::Value { file: file.to_owned(), key: key.clone(), message });
        }
        for (key, q) in chip.positive() {
            if q.low <= 0.0 {
                let message = "it must be greater than 0".to_owned();
                return Err(ChipError::Value { file: file.to_owned(), key: key.to_owned(), message });
            }
        }
        Ok(chip)
    }

    /// Numbers that must not be 0.
    fn positive(&self) -> impl Iterator<Item = (&'static str, Quantity)> {
        let rates = [
            "sms",
            "clock",
            "tensor_power",
            "smem",
            "threads",
            "l1_lines",
            "store_lines",
            "access_queue",
            "dram_refresh_interval",
        ];
        Chip::NUMBERS
            .iter()
            .filter(move |n| n.0.ends_with("_rate") || rates.contains(&n.0))
            .filter_map(|n| Some((n.0, self.number(n.0)?)))
    }

    /// The chip with one number changed to an exact value.
    ///
    /// # Errors
    /// [`ChipError::NoSuchNumber`], or a value that no chip has.
    pub fn with(&self, key: &str, value: f64) -> Result<Chip, ChipError> {
        let mut chip = self.clone();
        let known = || Chip::NUMBERS.iter().map(|n| n.0).collect::<Vec<_>>().join(", ");
        let Some(q) = chip.number_mut(key) else {
            return Err(ChipError::NoSuchNumber { key: key.to_owned(), known: known() });
        };
        *q = Quantity { value, low: value, high: value };
        let divides = chip.positive().any(|(n, _)| n == key);
        if !value.is_finite() || value < 0.0 || divides && value == 0.0 {
            let least = if divides { "above 0" } else { "not below 0" };
            let message = format!("{value} is no value that it can have: it is finite and {least}");
            return Err(ChipError::Value { file: self.name.clone(), key: key.to_owned(), message });
        }
        Ok(chip)
    }

    /// The chip with all uncertain numbers at their fast or slow ends; its clock stays.
    #[must_use]
    pub fn extreme(&self, slow: bool) -> Chip {
        let mut chip = self.clone();
        for (name, _, _) in Chip::NUMBERS.iter().filter(|n| n.0 != "clock") {
            // Rates and counts are better the larger they are, all others the smaller.
            let more_is_faster = name.ends_with("_rate")
                || name.starts_with("clusters_of")
                || [
                    "sms",
                    "l1_lines",
                    "store_lines",
                    "access_queue",
                    "l2_bytes",
                    "l2_evict_first",
                    "smem",
                    "threads",
                    "registers",
                    "memory_clock",
                    "tensor_power",
                    "tma_under_way",
                    "wgmma_queue",
                ]
                .contains(name);
            if let Some(q) = chip.number_mut(name) {
                let value = if slow == more_is_faster { q.low } else { q.high };
                *q = Quantity { value, low: value, high: value };
            }
        }
        chip
    }

    /// Clock of the SMs in MHz under a load that lasts and keeps the tensor cores of all SMs busy for the fraction
    /// `tensor_use` of the time.
    ///
    /// Power grows with the busy fraction and with the cube of the clock, since the voltage follows the clock. At the
    /// maximum clock the limit is reached at `tensor_power`.
    #[must_use]
    pub fn sustained_clock(&self, tensor_use: f64) -> f64 {
        self.clock.value / (tensor_use / self.tensor_power.value).max(1.0).cbrt()
    }

    /// Numbers that are not known exactly.
    pub fn uncertain(&self) -> impl Iterator<Item = (&'static str, Quantity)> {
        Chip::NUMBERS.iter().filter_map(|n| Some((n.0, self.number(n.0)?))).filter(|(_, q)| q.is_uncertain())
    }

    /// Whether it runs kernels of a target.
    pub fn runs(&self, target: &str) -> bool {
        self.targets.iter().any(|t| t == target)
    }
}
