//! Kernels that measure a chip. Each is a PTX text of its own, run by `bring_up.py` like a case; its buffer `out` holds 64-bit numbers.
//!
//! The templates in `probes/` have `@NAME@` for what differs. A probe of the kind `line` runs once for each of several counts of
//! the same work: the slope is the time of one, whatever starting and waiting take.
//!
//! * this file: tensor cores, clusters, L2's halves, launches.
//! * `beside.rs`: instructions beside products.
//! * `bursts.rs`: loads of the same lines by several SMs.
//! * `cold.rs`: loads that miss L2, one after the other.
//! * `memory.rs`: TMA, L2, DRAM, stores.
//! * `shared.rs`: who shares the port of shared memory.
//! * `units.rs`: latencies and intervals of an SM's units.
//! * `starts.rs`: what is slow the first time.

mod beside;
mod bursts;
mod cold;
mod memory;
mod rings;
mod shared;
mod starts;
mod units;

use super::Size;
use serde_json::{Map, Value, json};
use silumin::Arch;
use silumin::codegen::arch::TensorCore;

/// Dynamic shared memory of the tensor-core probe in bytes: operands, scale factors, a barrier and an address.
const TENSOR_CORE_SMEM: u32 = 86_144;
/// Size in bytes above which a buffer is not initialised, because the host would have to send gigabytes of zeros.
const LARGE: u64 = 1 << 30;
/// Bytes of a TMA box: 128 rows of 128 bytes.
const BOX: u32 = 16_384;

/// A probe.
#[derive(Clone, Debug)]
pub struct Probe {
    /// Name, for files and for the chip file.
    pub name: String,
    /// What it measures.
    pub about: String,
    /// Its text.
    pub ptx: String,
    /// Buffers: name and bytes. They start as zeros up to `LARGE`; `out` is read back.
    pub buffers: Vec<(&'static str, u64)>,
    /// Launches, as in a case.
    pub launches: Vec<Value>,
    /// How `bring_up.py` reduces the numbers in `out` (its `reduce`).
    pub reduce: Value,
}

impl Probe {
    /// The probe's entry in `pack.json`.
    pub fn document(&self, arch: &str) -> Value {
        json!({
            "name": self.name, "about": self.about, "reduce": self.reduce,
            "file": format!("{arch}/probe-{}.json", self.name),
        })
    }

    /// The probe's buffers and launches.
    pub fn case(&self, arch: &str) -> Value {
        let buffers: Map<String, Value> = (self.buffers.iter())
            .map(|(name, bytes)| {
                let mut buffer = json!({ "bytes": bytes, "role": "probe" });
                if *bytes <= LARGE {
                    buffer["fill"] = 0.into();
                }
                ((*name).to_owned(), buffer)
            })
            .collect();
        json!({
            "ptx": format!("{arch}/probe-{}.ptx", self.name), "buffers": buffers, "launches": self.launches,
        })
    }
}

/// What depends on the chip and on the pack's size.
struct Chip {
    version: (u32, u32),
    target: String,
    sms: u32,
    size: Size,
}

impl Chip {
    fn fill(&self, template: &str, values: &[(&str, &str)]) -> String {
        let (major, minor) = self.version;
        let text =
            template.replace("@VERSION@", &format!("{major}.{minor}")).replace("@TARGET@", &self.target);
        values.iter().fold(text, |text, (name, value)| text.replace(&format!("@{name}@"), value))
    }

    fn few(&self, small: u32, full: u32) -> u32 {
        match self.size {
            Size::Small => small,
            Size::Full => full,
        }
    }

    /// A probe with one launch for each number of rounds; a round has `unroll` copies of the work, or one if it is
    /// `None`.
    fn line(
        &self,
        name: String,
        about: String,
        ptx: String,
        unroll: u32,
        each: &str,
        launch: Value,
    ) -> Probe {
        let rounds = [0, self.few(1, 16), self.few(2, 64)];
        let counts: Vec<u32> = rounds.iter().map(|rounds| (rounds * unroll).max(1)).collect();
        let launches = rounds.iter().enumerate().map(|(index, rounds)| {
            let params = json!([{ "pointer": "out", "offset": 8 * index }, { "u32": rounds }]);
            with(&launch, &[("kernel", json!("probe")), ("params", params)])
        });
        Probe {
            launches: launches.collect(),
            buffers: vec![("out", 8 * rounds.len() as u64)],
            reduce: json!({ "kind": "line", "counts": counts, "each": each, "first": "one_and_wait_clk" }),
            name,
            about,
            ptx,
        }
    }

    /// A probe whose rounds are all alike, each with `unroll` copies of the work; `data` adds a buffer of 64 KB.
    #[allow(clippy::too_many_arguments, reason = "the fields of a probe")]
    fn steady(
        &self,
        name: &str,
        about: &str,
        ptx: String,
        unroll: u32,
        each: &str,
        launch: &Value,
        data: bool,
    ) -> Probe {
        let rounds = [1, self.few(4, 64), self.few(8, 256)];
        let launches = rounds.iter().enumerate().map(|(index, rounds)| {
            let mut params = vec![json!({ "pointer": "out", "offset": 8 * index }), json!({ "u32": rounds })];
            params.extend(data.then(|| json!({ "pointer": "data" })));
            with(launch, &[("kernel", json!("probe")), ("params", params.into())])
        });
        let mut buffers = vec![("out", 24)];
        buffers.extend(data.then_some(("data", 65_536)));
        Probe {
            name: name.to_owned(),
            about: about.to_owned(),
            ptx,
            buffers,
            launches: launches.collect(),
            reduce: json!({
                "kind": "line", "counts": rounds.map(|rounds| rounds * unroll), "each": each, "first": "one_clk",
            }),
        }
    }
}

/// A launch with additional keys.
fn with(launch: &Value, more: &[(&str, Value)]) -> Value {
    let mut table = launch.as_object().cloned().unwrap_or_default();
    table.extend(more.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));
    Value::Object(table)
}

/// All probes of a chip.
pub fn all(arch: Arch, size: Size) -> Vec<Probe> {
    let core = arch.tensor_core();
    let version = match core {
        TensorCore::Wgmma => (8, 3),
        TensorCore::Tcgen05 | TensorCore::Mma => arch.ptx_version().max((8, 8)),
    };
    let chip = Chip { version, target: arch.to_string(), sms: arch.limits().sms, size };
    let mut probes = vec![clock(&chip)];
    match core {
        TensorCore::Tcgen05 => {
            probes.extend(tensor_core(&chip));
            probes.push(launch_control(&chip));
            probes.extend(shared::all(&chip, true));
        }
        TensorCore::Wgmma => {
            probes.extend(warpgroup(&chip));
            probes.extend(rings::all(&chip));
            probes.extend(beside::all(&chip));
            probes.extend(shared::all(&chip, false));
        }
        // What it has no clusters and no tensor memory for is left out.
        TensorCore::Mma => {
            probes.push(mbarrier(&chip));
            probes.extend([gap(&chip, false), gap(&chip, true)]);
            return probes;
        }
    }
    probes.extend(memory::all(&chip));
    probes.extend(bursts::all(&chip));
    probes.extend(cold::all(&chip));
    probes.push(mbarrier(&chip));
    let sync = "    barrier.cluster.arrive.release.aligned;\n    barrier.cluster.wait.acquire.aligned;";
    let load = "    ld.shared::cluster.u32 %value, [%at];\n    add.u32 %at, %at, %value;";
    let relaxed = "    barrier.cluster.arrive.relaxed.aligned;\n    barrier.cluster.wait.aligned;";
    probes.push(cluster(
        &chip,
        "cluster_barrier_release",
        "a barrier of a cluster of two CTAs, release and acquire",
        sync,
    ));
    probes.push(cluster(
        &chip,
        "cluster_barrier_relaxed",
        "a barrier of a cluster of two CTAs, relaxed arrival",
        relaxed,
    ));
    probes.push(cluster(&chip, "dsmem_load", "a dependent load from the other CTA's shared memory", load));
    probes.push(l2(&chip));
    probes.extend(units::all(&chip));
    probes.extend(starts::all(&chip));
    probes.extend([gap(&chip, false), gap(&chip, true)]);
    probes
}

/// Kinds of MMA: name, PTX kind, instruction descriptor without M and N, and whether it has scale factors (PTX ISA
/// 9.7.16.4.2).
const KINDS: [(&str, &str, u32, bool); 3] = [
    ("bf16", "kind::f16", 1 << 4 | 1 << 7 | 1 << 10, false),
    ("mxf8", "kind::mxf8f6f4.block_scale.scale_vec::1X", 1 << 23, true),
    ("nvfp4", "kind::mxf4nvf4.block_scale.scale_vec::4X", 1 << 7 | 1 << 10, true),
];
// Columns of tensor memory: the second accumulators, and scale factors of A, B1 and B2.
const SECOND: u32 = 192;
const SFA: u32 = 448;
const SFB1: u32 = 456;
const SFB2: u32 = 464;

fn copy(group: u32, column: u32) -> String {
    format!(
        "    add.u32 %at, %tmem, {column};\n    tcgen05.cp.cta_group::{group}.32x128b.warpx4 [%at], %sf;\n"
    )
}

/// One MMA into the first or the second accumulators.
fn mma(group: u32, kind: usize, n: u32, second: bool, collector: &str) -> String {
    let (_, kind, instruction, scaled) = KINDS[kind];
    let instruction = instruction | (n >> 3) << 17 | (8 * group) << 24;
    let (b, d, sfb) = if second { ("%b2", SECOND, SFB2) } else { ("%b1", 0, SFB1) };
    let scales = if scaled { format!(", [%tmem + {SFA}], [%tmem + {sfb}]") } else { String::new() };
    format!(
        "    tcgen05.mma.cta_group::{group}.{kind}{collector} [%tmem + {d}], %a, {b}, {instruction:#010x}{scales}, %accumulate;\n"
    )
}

fn tensor_core_probe(chip: &Chip, group: u32, name: String, about: String, unit: &str, each: &str) -> Probe {
    const UNROLL: u32 = 4;
    let copies: String = [SFA, SFB1, SFB1 + 4, SFB2, SFB2 + 4].map(|column| copy(group, column)).concat();
    let unrolled = unit.repeat(UNROLL as usize);
    let values = [
        ("ABOUT", about.as_str()),
        ("GROUP", &group.to_string()),
        ("COPIES", copies.trim_end()),
        ("UNROLLED", unrolled.trim_end()),
        ("UNIT", unit.trim_end()),
    ];
    let ptx = chip.fill(include_str!("probes/tensor_core.ptx"), &values);
    let shape = [group, 1, 1];
    let launch =
        json!({ "grid": shape, "cluster": shape, "block": [32, 1, 1], "dynamic_smem": TENSOR_CORE_SMEM });
    chip.line(name, about, ptx, UNROLL, each, launch)
}

fn tensor_core(chip: &Chip) -> Vec<Probe> {
    let mut probes = Vec::new();
    for group in [1, 2] {
        let ctas = if group == 1 { "one CTA" } else { "a pair of CTAs" };
        for (kind, (kind_name, text, ..)) in KINDS.iter().enumerate() {
            for n in [64, 128, 192, 256] {
                let name = format!("mma_{kind_name}_cta{group}_n{n}");
                let about = format!(
                    "MMAs of {text} with N = {n} by {ctas}, one after the other into the same accumulators"
                );
                let unit = mma(group, kind, n, false, "");
                probes.push(tensor_core_probe(chip, group, name, about, &unit, "interval_clk"));
            }
        }
        for n in [64, 128, 192] {
            for (name, what, [first, second]) in [
                ("two_products", "both reading A", ["", ""]),
                (
                    "collector",
                    "the second with A from the collector",
                    [".collector::a::fill", ".collector::a::lastuse"],
                ),
            ] {
                let about = format!("two NVFP4 MMAs with the same A and N = {n} by {ctas}, {what}");
                let unit = mma(group, 2, n, false, first) + &mma(group, 2, n, true, second);
                let name = format!("mma_nvfp4_{name}_cta{group}_n{n}");
                probes.push(tensor_core_probe(chip, group, name, about, &unit, "interval_of_two_clk"));
            }
        }
        let about = format!("copies of 512 bytes of scale factors (32x128b.warpx4) by {ctas}");
        let name = format!("scale_copy_cta{group}");
        probes.push(tensor_core_probe(chip, group, name, about, &copy(group, SFA), "interval_clk"));
        for n in [64, 128] {
            let about = format!(
                "three copies of scale factors and two NVFP4 MMAs with N = {n} by {ctas}, as in a kernel's K loop"
            );
            let unit = [SFA, SFB1, SFB2].map(|column| copy(group, column)).concat()
                + &mma(group, 2, n, false, ".collector::a::fill")
                + &mma(group, 2, n, true, ".collector::a::lastuse");
            let name = format!("k_step_nvfp4_cta{group}_n{n}");
            probes.push(tensor_core_probe(chip, group, name, about, &unit, "interval_clk"));
        }
    }
    probes
}

fn warpgroup(chip: &Chip) -> Vec<Probe> {
    const UNROLL: u32 = 4;
    let mut probes = Vec::new();
    let mut add = |name: String, about: String, groups: u32, n: u32, types: &str, k: u32, registers: bool| {
        let count = n / 2;
        let list: Vec<String> = (0..count).map(|i| format!("%d{i}")).collect();
        let (a, transposes) = match (registers, k) {
            (true, _) => ("{ %x0, %x1, %x2, %x3 }", ", 0"),
            (false, 16) => ("%a", ", 0, 0"),
            (false, _) => ("%a", ""),
        };
        let unit = format!(
            "    wgmma.mma_async.sync.aligned.m64n{n}k{k}.f32.{types}.{types} {{ {} }}, {a}, %b, 1, 1, 1{transposes};\n",
            list.join(", ")
        );
        let clear: String = (list.iter().map(|d| format!("    mov.f32 {d}, 0f00000000;\n")))
            .chain((0..4).map(|i| format!("    mov.b32 %x{i}, 0;\n")))
            .collect();
        let threads = 128 * groups;
        let unrolled = unit.repeat(UNROLL as usize);
        let values = [
            ("ABOUT", about.as_str()),
            ("THREADS", &threads.to_string()),
            ("STRIDE", &(16 * threads).to_string()),
            ("REGISTERS", &count.to_string()),
            ("CLEAR", clear.trim_end()),
            ("UNROLLED", unrolled.trim_end()),
            ("UNIT", unit.trim_end()),
        ];
        let ptx = chip.fill(include_str!("probes/warpgroup.ptx"), &values);
        let launch = json!({ "grid": [1, 1, 1], "block": [threads, 1, 1], "dynamic_smem": 49_152 });
        probes.push(chip.line(name, about, ptx, UNROLL, "interval_clk", launch));
    };
    for n in [8, 16, 32, 64, 96, 128, 192, 256] {
        let about = format!("wgmma of bf16 with N = {n} by one warpgroup, both operands in shared memory");
        add(format!("wgmma_bf16_n{n}"), about, 1, n, "bf16", 16, false);
    }
    for n in [64, 128, 256] {
        let about = format!("wgmma of e4m3 with N = {n} by one warpgroup, both operands in shared memory");
        add(format!("wgmma_e4m3_n{n}"), about, 1, n, "e4m3", 32, false);
    }
    for n in [8, 16, 32, 64, 128] {
        let about = format!("wgmma of bf16 with N = {n} by one warpgroup, A in registers");
        add(format!("wgmma_bf16_registers_n{n}"), about, 1, n, "bf16", 16, true);
    }
    for n in [64, 128, 192] {
        let about =
            format!("wgmma of bf16 with N = {n} by two warpgroups at once, both operands in shared memory");
        add(format!("wgmma_bf16_two_n{n}"), about, 2, n, "bf16", 16, false);
    }
    for (groups, name) in [(2, "two"), (3, "three")] {
        for n in [8, 16, 24, 32, 40, 48, 64, 80, 96, 128] {
            let about = format!("wgmma of bf16 with N = {n} by {name} warpgroups at once, A in registers");
            add(format!("wgmma_bf16_registers_{name}_n{n}"), about, groups, n, "bf16", 16, true);
        }
    }
    probes
}

fn mbarrier(chip: &Chip) -> Probe {
    let ptx = chip.fill(include_str!("probes/mbarrier.ptx"), &[]);
    let about = "two warps of a CTA wake each other by mbarriers: arrival, wait, arrival, wait";
    let launch = json!({ "grid": [1, 1, 1], "block": [64, 1, 1], "dynamic_smem": 16 });
    chip.steady("mbarrier_wake_up", about, ptx, 1, "round_trip_clk", &launch, false)
}

fn cluster(chip: &Chip, name: &str, about: &str, unit: &str) -> Probe {
    let ptx = chip.fill(include_str!("probes/cluster.ptx"), &[("ABOUT", about), ("UNIT", unit)]);
    let launch = json!({ "grid": [2, 1, 1], "cluster": [2, 1, 1], "block": [32, 1, 1], "dynamic_smem": 16 });
    chip.steady(name, about, ptx, 1, "interval_clk", &launch, false)
}

/// L2 loads line by line, from eight SMs, one after the other.
fn l2(chip: &Chip) -> Probe {
    const TURNS: u32 = 8;
    // A prime number of 128-byte lines between two, so that they lie in all parts of L2.
    const STRIDE: u32 = 131 * 128;
    let lines = chip.few(8, 512);
    let ptx = chip.fill(include_str!("probes/l2.ptx"), &[("STRIDE", &STRIDE.to_string())]);
    let launches = (0..TURNS).map(|turn| {
        json!({
            "kernel": "probe", "grid": [chip.sms, 1, 1], "block": [32, 1, 1],
            "params": [
                { "pointer": "out", "offset": 8 * turn * lines }, { "pointer": "data" },
                { "u32": turn * chip.sms / TURNS }, { "u32": lines },
            ],
        })
    });
    Probe {
        name: "l2_hit".to_owned(),
        about: "a load that hits L2, line by line, from eight SMs: the slower half of the lines of an SM is the far one if there are two halves".to_owned(),
        ptx,
        buffers: vec![("out", 8 * u64::from(TURNS * lines)), ("data", u64::from(lines) * u64::from(STRIDE))],
        launches: launches.collect(),
        reduce: json!({ "kind": "spread", "unit": "clk", "per": lines }),
    }
}

fn clock(chip: &Chip) -> Probe {
    let ptx = chip.fill(include_str!("probes/clock.ptx"), &[]);
    let rounds = chip.few(100, 200_000);
    Probe {
        name: "clock".to_owned(),
        about: "the SM's clock while one warp adds".to_owned(),
        ptx,
        buffers: vec![("out", 16)],
        launches: vec![json!({
            "kernel": "probe", "grid": [1, 1, 1], "block": [32, 1, 1], "params": [{ "pointer": "out" }, { "u32": rounds }],
        })],
        reduce: json!({ "kind": "clock" }),
    }
}

fn gap(chip: &Chip, programmatic: bool) -> Probe {
    const LAUNCHES: u64 = 32;
    // Longer than a call of the driver takes the host.
    let hold = chip.few(10, 200_000);
    let launches = (0..LAUNCHES).map(|index| {
        json!({
            "kernel": "probe", "grid": [1, 1, 1], "block": [32, 1, 1], "programmatic": programmatic,
            "params": [{ "pointer": "out", "offset": 24 * index }, { "u32": hold }],
        })
    });
    let (name, how) = match programmatic {
        true => ("launch_gap_programmatic", "each of which may start before its predecessor ends"),
        false => ("launch_gap", "one after the other"),
    };
    Probe {
        name: name.to_owned(),
        about: format!(
            "the time between the end of a small launch and the start of the next one's work, {how}"
        ),
        ptx: chip.fill(include_str!("probes/gap.ptx"), &[]),
        buffers: vec![("out", 24 * LAUNCHES)],
        launches: launches.collect(),
        reduce: json!({ "kind": "gaps" }),
    }
}

fn launch_control(chip: &Chip) -> Probe {
    let requests = chip.few(4, 64);
    Probe {
        name: "launch_control".to_owned(),
        about: "a request of cluster launch control, from the request to the answer seen".to_owned(),
        ptx: chip.fill(include_str!("probes/launch_control.ptx"), &[]),
        buffers: vec![("out", 8 * u64::from(requests))],
        // One CTA fits an SM, so that thousands wait while the first one asks.
        launches: vec![json!({
            "kernel": "probe", "grid": [chip.few(200, 8192), 1, 1], "block": [32, 1, 1], "dynamic_smem": 200_000,
            "params": [{ "pointer": "out" }, { "u32": requests }],
        })],
        reduce: json!({ "kind": "spread", "unit": "clk" }),
    }
}
