//! Probes of the paths to and from an SM: TMA, L2, DRAM, stores.

use super::{BOX, Chip, Probe, Size};
use serde_json::{Value, json};

/// More bytes than any L2 holds.
const FLUSH: u64 = 256 << 20;

/// A probe that loads boxes, `depth` at a time.
pub(super) struct Loads {
    pub name: String,
    pub about: String,
    /// Boxes in flight per CTA.
    pub depth: u32,
    /// Bytes of a box's row, and number of rows.
    pub box_shape: [u32; 2],
    /// Bytes between the starts of successive rows of the tensor.
    pub pitch: u32,
    /// Rows of the tensor, a power of two.
    pub rows: u32,
    /// SMs that read the same boxes: neighbours by number, or SMs far from each other.
    pub group: u32,
    pub far: bool,
    /// Rounds of the two longer launches, of `depth` boxes each.
    pub rounds: [u32; 2],
    /// Rows between the first boxes of two groups, and between successive boxes of a group.
    pub apart: u32,
    pub step: u32,
    pub ctas: u32,
    /// Whether time is in the GPU's nanoseconds instead of the SM's clocks, for what does not depend on the SM's
    /// clock.
    pub nanoseconds: bool,
    /// Rows between the first boxes of two launches.
    pub between: u32,
    /// Boxes side by side in a row of the tensor, a power of two. A CTA reads along them before it moves to other
    /// rows, as a K loop does; `rows`, `step` and `between` then count boxes. 0: the tensor is one box wide.
    pub walk: u32,
    /// Rows of the tensor that a walk reads, if boxes reach over its end.
    pub inside: Option<u32>,
    /// Whether the other 31 lanes wait for the one that loads, instead of leaving the kernel.
    pub parked: bool,
}

impl Loads {
    /// Boxes of 16 KB that are in L2.
    pub fn new(name: &str, about: &str, depth: u32, ctas: u32, rows: u32) -> Self {
        Loads {
            name: name.to_owned(),
            about: about.to_owned(),
            depth,
            box_shape: [128, 128],
            pitch: 128,
            rows,
            group: 1,
            far: false,
            nanoseconds: false,
            rounds: [16, 64],
            apart: 1024,
            step: 128,
            ctas,
            between: 0,
            walk: 0,
            inside: None,
            parked: false,
        }
    }

    pub fn probe(self, chip: &Chip) -> Probe {
        let Loads { depth, box_shape: [width, height], rows, .. } = self;
        let bytes = width * height;
        let mask = (rows - 1).to_string();
        let (rank, place_of_box) = match self.walk {
            0 => (2, "{ 0, %row }"),
            _ => (3, "{ 0, %column, %height }"),
        };
        // Along the tensor's rows first; then the rows that lie behind those of all other CTAs.
        let walk = match self.walk {
            0 => String::new(),
            boxes => format!(
                "    and.b32 %column, %row, {};\n    shr.u32 %height, %row, {};\n    \
                 mad.lo.u32 %height, %height, {}, %cta;\n    shl.b32 %height, %height, {};\n",
                boxes - 1,
                boxes.ilog2(),
                chip.sms,
                height.ilog2()
            ),
        };
        let slot = |index: u32| {
            let (place, barrier) = (index * bytes, depth * bytes + 8 * index);
            format!(
                "{walk}    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%smem + {barrier}], {bytes};\n    \
                 cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%smem + {place}], [%map, {place_of_box}], [%smem + {barrier}];\n    \
                 add.u32 %row, %row, {};\n    and.b32 %row, %row, {mask};\n",
                self.step
            )
        };
        let init: String = (0..depth)
            .map(|index| {
                format!("    mbarrier.init.shared::cta.b64 [%smem + {}], 1;\n", depth * bytes + 8 * index)
            })
            .collect();
        let first: String = (0..depth).map(slot).collect();
        let next: String = (0..depth)
            .map(|index| {
                let barrier = depth * bytes + 8 * index;
                format!(
                    "WAIT{index}:\n    mbarrier.try_wait.parity.shared::cta.b64 %complete, [%smem + {barrier}], %phase;\n    \
                     @!%complete bra WAIT{index};\n    @!%more bra WAITED{index};\n{}WAITED{index}:\n",
                    slot(index)
                )
            })
            .collect();
        let index = match self.far {
            false => format!("    div.u32 %cta, %cta, {};", self.group),
            true => format!("    rem.u32 %cta, %cta, {};", chip.sms / self.group),
        };
        let values = [
            ("ABOUT", self.about.as_str()),
            ("DEPTH", &depth.to_string()),
            ("BOX", &bytes.to_string()),
            ("INDEX", index.as_str()),
            ("CLOCK", if self.nanoseconds { "globaltimer" } else { "clock64" }),
            ("APART", &self.apart.to_string()),
            ("ROW_MASK", &mask),
            ("INIT", init.trim_end()),
            ("FIRST", first.trim_end()),
            ("NEXT", next.trim_end()),
            ("OTHERS", if self.parked { "    @!%elected bra END;" } else { "    @!%elected exit;" }),
            ("END", if self.parked { "END:\n    bar.warp.sync 0xffffffff;" } else { "" }),
        ];
        let ptx = chip.fill(include_str!("tma.ptx"), &values);
        // A CTA more than an SM has room for would wait for another's end.
        let smem = (depth * bytes + 8 * depth).next_multiple_of(128).max(120_000);
        let ctas = if self.ctas > 1 { chip.few(4, self.ctas) } else { 1 };
        let rounds = [1, chip.few(2, self.rounds[0]), chip.few(3, self.rounds[1])];
        let swizzle = if width == 16 { "none".to_owned() } else { format!("{width}b") };
        let map = match self.walk {
            0 => json!({ "tensor_map": {
                "buffer": "data", "data_type": "u8", "dims": [width, rows], "strides": [self.pitch], "box": [width, height], "swizzle": swizzle,
            }}),
            boxes => json!({ "tensor_map": {
                "buffer": "data", "data_type": "u8", "dims": [width, boxes, self.inside.unwrap_or(rows / boxes * height)], "strides": [width, self.pitch],
                "box": [width, 1, height], "swizzle": swizzle,
            }}),
        };
        let data = match self.walk {
            0 => u64::from(rows) * u64::from(self.pitch),
            boxes => u64::from(rows / boxes * height) * u64::from(self.pitch),
        };
        let launches = rounds.iter().enumerate().map(|(index, rounds)| {
            json!({
                "kernel": "probe", "grid": [ctas, 1, 1], "block": [32, 1, 1], "dynamic_smem": smem,
                "params": [map, { "pointer": "out", "offset": 8 * index }, { "u32": rounds }, { "u32": self.between * index as u32 }],
            })
        });
        let counts: Vec<u32> = rounds.iter().map(|rounds| rounds * depth).collect();
        let reduce = match self.nanoseconds {
            false => json!({
                "kind": "line", "counts": counts, "each": "interval_clk", "first": "first_loads_clk", "bytes": bytes,
            }),
            true => json!({
                "kind": "line", "counts": counts, "each": "interval_ns", "first": "first_loads_ns", "bytes": bytes, "ctas": ctas,
            }),
        };
        Probe {
            launches: launches.collect(),
            buffers: vec![("out", 24), ("data", data)],
            reduce,
            name: self.name,
            about: self.about,
            ptx,
        }
    }
}

/// Boxes under way in each CTA, and CTAs.
fn few_from_dram() -> impl Iterator<Item = (u32, u32)> {
    let some = [1, 2, 3, 4, 6, 8, 12];
    let by = |ctas: u32| some.map(|depth| (depth, ctas));
    by(1).into_iter().chain(by(16)).chain([(8, 32), (8, 64)])
}

/// All of them.
pub(super) fn all(chip: &Chip) -> Vec<Probe> {
    let rows = chip.few(1024, 262_144);
    let all = chip.sms;
    let mut probes = vec![
        Loads::new("tma_load_latency", "TMA loads of 16 KB from L2, one after the other", 1, 1, rows)
            .probe(chip),
        Loads::new("tma_load_one_sm", "TMA loads of 16 KB from L2, eight at a time, by one CTA", 8, 1, rows)
            .probe(chip),
        Loads::new(
            "tma_load_all_sms",
            "TMA loads of 16 KB from L2, eight at a time, by all SMs",
            8,
            all,
            rows,
        )
        .probe(chip),
    ];
    for kilobytes in [2, 8, 16] {
        let name = format!("tma_load_parked_of_{kilobytes}_kb");
        let about = format!(
            "TMA loads of {kilobytes} KB from L2, one after the other, by a lane that the rest of its warp waits for"
        );
        let loads = Loads::new(&name, &about, 1, 1, rows);
        let height = 8 * kilobytes;
        probes.push(Loads { box_shape: [128, height], step: height, parked: true, ..loads }.probe(chip));
    }
    for depth in [2, 3, 4, 6] {
        let name = format!("tma_load_{}_kb_one_sm", 16 * depth);
        let about = format!("TMA loads of 16 KB from L2 by one CTA, {} KB under way", 16 * depth);
        probes.push(Loads::new(&name, &about, depth, 1, rows).probe(chip));
    }
    for depth in [1, 2, 3, 4, 6] {
        let name = format!("tma_load_{}_kb_all_sms", 16 * depth);
        let about = format!("TMA loads of 16 KB from L2 by all SMs, {} KB under way in each", 16 * depth);
        probes.push(Loads::new(&name, &about, depth, all, rows).probe(chip));
    }
    let two = "TMA loads of 16 KB from L2, eight at a time, by two CTAs, which the chip places on SMs next to each other";
    probes.push(Loads::new("tma_load_two_sms", two, 8, 2, rows).probe(chip));
    for megabytes in [4, 16] {
        let name = format!("tma_load_all_sms_of_{megabytes}_mb");
        let about = format!(
            "TMA loads of 16 KB from {megabytes} MB in L2, eight at a time, by all SMs, each from its own place on"
        );
        probes.push(Loads::new(&name, &about, 8, all, chip.few(1024, megabytes * 8192)).probe(chip));
    }
    for kilobytes in [2, 4, 8] {
        let name = format!("tma_load_latency_of_{kilobytes}_kb");
        let about = format!("TMA loads of {kilobytes} KB from L2, one after the other");
        let loads = Loads::new(&name, &about, 1, 1, rows);
        let height = 8 * kilobytes;
        probes.push(Loads { box_shape: [128, height], step: height, ..loads }.probe(chip));
    }
    for (group, far) in [
        (2, false),
        (4, false),
        (8, false),
        (16, false),
        (all / 2, false),
        (all, false),
        (2, true),
        (4, true),
        (16, true),
    ] {
        let (suffix, which) = if far { ("_far", "far from each other") } else { ("", "next to each other") };
        let name = format!("tma_load_shared_by_{group}{suffix}");
        let about =
            format!("TMA loads of 16 KB from L2 by all SMs, the same boxes by {group} SMs {which} at once");
        let loads = Loads::new(&name, &about, 8, all, rows);
        probes.push(Loads { group, far, ..loads }.probe(chip));
    }
    for ctas in [2, 4] {
        probes.push(multicast(chip, ctas));
    }
    for width in [32, 64, 128] {
        let name = format!("tma_load_rows_of_{width}");
        let about =
            format!("TMA loads of 8 KB from L2 with rows of {width} bytes, 1024 bytes apart, by one CTA");
        let rows = chip.few(1024, 16_384);
        let height = 8192 / width;
        let loads = Loads::new(&name, &about, 8, 1, rows);
        probes.push(Loads { box_shape: [width, height], pitch: 1024, step: height, ..loads }.probe(chip));
    }
    for width in [32, 64, 128] {
        let name = format!("tma_load_rows_of_{width}_all_sms");
        let about =
            format!("TMA loads of 8 KB from L2 with rows of {width} bytes, 256 bytes apart, by all SMs");
        let height = 8192 / width;
        let loads = Loads::new(&name, &about, 8, all, chip.few(1024, 131_072));
        probes.push(Loads { box_shape: [width, height], pitch: 256, step: height, ..loads }.probe(chip));
    }
    // Boxes that a ragged M or N leaves partly outside of the tensor: the TMA fills the rest with zeros.
    for (inside, height, width, ctas) in [
        (8, 128, 128, 1),
        (1, 16, 128, 1),
        (8, 128, 128, 16),
        (8, 128, 128, 64),
        (128, 128, 128, all),
        (120, 128, 128, all),
        (64, 128, 128, all),
        (8, 128, 128, all),
        (1, 128, 128, all),
        (8, 64, 128, all),
        (1, 16, 128, all),
        (1, 8, 128, all),
        (8, 128, 64, all),
        (8, 256, 64, all),
    ] {
        let (by, suffix) = match ctas {
            1 => ("one CTA".to_owned(), String::new()),
            _ if ctas == all => ("all SMs".to_owned(), "_all_sms".to_owned()),
            _ => (format!("{ctas} CTAs"), format!("_{ctas}_sms")),
        };
        let name = format!("tma_load_{inside}_of_{height}_rows_of_{width}{suffix}");
        let about = format!(
            "TMA loads of {height} rows of {width} bytes, of which {inside} lie inside of the tensor, by {by} that walk along the same rows"
        );
        let loads = Loads::new(&name, &about, 8, ctas, 64);
        let walks = Loads { box_shape: [width, height], group: all, walk: 64, pitch: 64 * width, ..loads };
        probes.push(Loads { apart: 0, step: 1, inside: Some(inside), ..walks }.probe(chip));
    }
    // Few SMs leave DRAM idle: how the rate grows with the bytes under way is the SM's own limit.
    for (depth, ctas) in few_from_dram() {
        let name = format!("dram_load_{}_kb_by_{ctas}", 16 * depth);
        let by = if ctas == 1 { "one CTA".to_owned() } else { format!("{ctas} CTAs") };
        let about = format!("TMA loads of 16 KB from DRAM by {by}, {} KB under way in each", 16 * depth);
        let rows = chip.few(4096, 1 << 26);
        let loads = Loads::new(&name, &about, depth, ctas, rows);
        let between = chip.few(1024, 1 << 24);
        // Launches are repeated: what one CTA reads in each must not fit into L2.
        let (step, boxes) = if ctas == 1 { (128, 16_384) } else { (128 * chip.few(4, all), 2048) };
        let rounds = [boxes / 4 / depth, boxes / depth];
        probes.push(Loads { apart: 128, step, between, rounds, nanoseconds: true, ..loads }.probe(chip));
    }
    for depth in [1, 2, 4, 8] {
        let name = format!("dram_load_{}_kb", 16 * depth);
        let about = format!("TMA loads of 16 KB from DRAM by all SMs, {} KB under way in each", 16 * depth);
        // 8 GB, of which each launch reads another part: a small buffer read in turns has lines left in L2.
        let rows = chip.few(4096, 1 << 26);
        let loads = Loads::new(&name, &about, depth, all, rows);
        let between = chip.few(1024, 1 << 24);
        let (step, rounds) = (128 * chip.few(4, all), [512 / depth, 2048 / depth]);
        probes.push(Loads { apart: 128, step, between, rounds, nanoseconds: true, ..loads }.probe(chip));
    }
    for depth in [2, 4, 8] {
        let name = format!("dram_load_rows_{}_kb", 16 * depth);
        let about = format!(
            "TMA loads from DRAM of 128 rows of 128 bytes, 8 KB apart, by all SMs, {} KB under way in each; a CTA walks along its rows",
            16 * depth
        );
        let rows = chip.few(64 * 8, 1 << 19);
        let loads = Loads::new(&name, &about, depth, all, rows);
        let rounds = [512 / depth, 2048 / depth];
        let between = chip.few(64, 64 * 16);
        let walks = Loads { walk: 64, pitch: 8192, apart: 0, step: 1, between, ..loads };
        probes.push(Loads { rounds, nanoseconds: true, ..walks }.probe(chip));
    }
    for lanes in [1, 2, 8, 32] {
        for ctas in [1, all] {
            probes.push(accesses(chip, true, lanes, ctas));
        }
    }
    for ctas in [1, all] {
        probes.push(accesses(chip, false, 32, ctas));
    }
    for kilobytes in [2, 16] {
        probes.push(tma_store(chip, kilobytes));
    }
    for (depth, ctas) in [(1, 1), (4, 1), (1, all), (4, all)] {
        probes.push(tma_stores(chip, depth, ctas));
    }
    probes
}

/// A launch that removes from L2 what a probe reads, and its buffer.
pub(super) fn flush(chip: &Chip) -> (Value, (&'static str, u64)) {
    let bytes = match chip.size {
        Size::Small => 1 << 16,
        Size::Full => FLUSH,
    };
    let params = json!([{ "pointer": "flushed" }, { "u64": bytes }]);
    let ctas = chip.few(1, 4 * chip.sms);
    (
        json!({ "kernel": "flush", "grid": [ctas, 1, 1], "block": [256, 1, 1], "params": params }),
        ("flushed", bytes),
    )
}

/// The PTX of a probe together with the kernel that empties L2.
pub(super) fn with_flush(ptx: String) -> String {
    ptx + include_str!("flush.ptx")
}

/// Boxes of 16 KB; each CTA of a cluster loads its part for all.
fn multicast(chip: &Chip, ctas: u32) -> Probe {
    let rows = chip.few(1024, 262_144);
    let part = BOX / ctas;
    let arrive: String = (0..ctas)
        .map(|rank| {
            format!(
                "    mapa.shared::cluster.u32 %peer{rank}, %empty, {rank};\n    \
                 mbarrier.arrive.shared::cluster.b64 _, [%peer{rank}];\n"
            )
        })
        .collect();
    let name = format!("tma_load_multicast_{ctas}");
    let about = format!(
        "boxes of 16 KB from L2 for all SMs, each CTA of {ctas} loading its part for all by multicast"
    );
    let values = [
        ("ABOUT", about.as_str()),
        ("CTAS", &ctas.to_string()),
        ("MASK", &((1 << ctas) - 1).to_string()),
        ("PART", &part.to_string()),
        ("PART_ROWS", &(part / 128).to_string()),
        ("ROW_MASK", &(rows - 1).to_string()),
        ("ARRIVE", arrive.trim_end()),
    ];
    let ptx = chip.fill(include_str!("multicast.ptx"), &values);
    let counts = [8, chip.few(16, 128), chip.few(24, 512)];
    // The SMs that clusters of this size fill.
    let grid = chip.few(2, if ctas == 2 { chip.sms / 2 } else { chip.sms / 4 - 1 }) * ctas;
    let map = json!({ "tensor_map": {
        "buffer": "data", "data_type": "u8", "dims": [128, rows], "strides": [128], "box": [128, part / 128], "swizzle": "128b",
    }});
    let launches = counts.iter().enumerate().map(|(index, boxes)| {
        json!({
            "kernel": "probe", "grid": [grid, 1, 1], "cluster": [ctas, 1, 1], "block": [64, 1, 1], "dynamic_smem": 131_200,
            "params": [map, { "pointer": "out", "offset": 8 * index }, { "u32": boxes }],
        })
    });
    Probe {
        launches: launches.collect(),
        buffers: vec![("out", 24), ("data", u64::from(rows) * 128)],
        reduce: json!({
            "kind": "line", "counts": counts, "each": "interval_clk", "first": "first_loads_clk", "bytes": BOX,
        }),
        name,
        about,
        ptx,
    }
}

/// Stores by four warps, or loads by sixteen, of 16 bytes per lane; `lanes` lanes of a warp are consecutive in a row
/// of 1024 bytes.
fn accesses(chip: &Chip, store: bool, lanes: u32, ctas: u32) -> Probe {
    const UNROLL: u32 = 8;
    let (what, threads, region) = if store { ("store", 128, 32_768) } else { ("load", 512, 8192) };
    let by = if ctas == 1 { "one_sm" } else { "all_sms" };
    let rows = 32 / lanes;
    let about = format!(
        "{what}s of 16 bytes a lane by {} warps of {ctas} CTA(s), {lanes} lanes of a warp in each of {rows} rows",
        threads / 32
    );
    // A round works through a part of the rows; the next one goes on, and begins anew behind the last.
    let wide = 16 * lanes;
    let span = if rows == 1 { region } else { 1024 };
    let list: String = (0..UNROLL)
        .map(|i| match store {
            true => format!(
                "    st.global.v4.b32 [%at + {}], {{ %thread, %thread, %thread, %thread }};\n",
                i * wide
            ),
            false => format!(
                "    ld.relaxed.gpu.global.v4.b32 {{ %x0, %x1, %x2, %x3 }}, [%at + {}];\n    \
                 lop3.b32 %sum, %sum, %x0, %x1, 0x96;\n    lop3.b32 %sum, %sum, %x2, %x3, 0x96;\n",
                i * wide
            ),
        })
        .collect();
    let numbers = [
        ("THREADS", threads),
        ("WARPS", threads / 32),
        ("LANES", lanes),
        ("REGION", region),
        ("ROUND", UNROLL * wide % span),
        ("MASK", span - 1),
    ];
    let numbers = numbers.map(|(name, value)| (name, value.to_string()));
    let mut values: Vec<(&str, &str)> = numbers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    values.extend([("ABOUT", about.as_str()), ("WORK", list.trim_end())]);
    let ptx = chip.fill(include_str!("accesses.ptx"), &values);
    let ctas = if ctas > 1 { chip.few(2, ctas) } else { 1 };
    let launch = json!({ "grid": [ctas, 1, 1], "block": [threads, 1, 1] });
    let name = format!("{what}_of_{lanes}_lanes_{by}");
    let mut probe = chip.steady(&name, &about, ptx, UNROLL, "interval_clk", &launch, true);
    probe.buffers[1].1 = u64::from(ctas * (threads / 32) * region);
    probe
}

const STORE: &str = "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%map, { 0, %row }]";

fn store_map(ctas: u32, rows: u32) -> Value {
    json!({ "tensor_map": {
        "buffer": "data", "data_type": "u8", "dims": [128, 512 * ctas], "strides": [128], "box": [128, rows], "swizzle": "128b",
    }})
}

/// One TMA store: times of its issue, of the end of its reads, of the end of its writes.
fn tma_store(chip: &Chip, kilobytes: u32) -> Probe {
    let work = format!(
        "    {STORE}, [%smem];\n    cp.async.bulk.commit_group;\n    mov.u64 %issued, %clock64;\n    cp.async.bulk.wait_group.read 0;\n    \
         mov.u64 %read, %clock64;\n    cp.async.bulk.wait_group 0;"
    );
    let result = "    sub.u64 %issued, %issued, %start;\n    sub.u64 %read, %read, %start;\n    sub.u64 %stop, %stop, %start;\n    \
                  st.global.u64 [%out], %issued;\n    st.global.u64 [%out + 8], %read;\n    st.global.u64 [%out + 16], %stop;";
    let about = format!(
        "a TMA store of {kilobytes} KB: from its issue to the end of the issue, of its reads, of its writes"
    );
    let ptx =
        chip.fill(include_str!("tma_store.ptx"), &[("ABOUT", &about), ("WORK", &work), ("RESULT", result)]);
    Probe {
        name: format!("tma_store_{kilobytes}_kb"),
        about,
        ptx,
        buffers: vec![("out", 24), ("data", 65_536)],
        launches: vec![json!({
            "kernel": "probe", "grid": [1, 1, 1], "block": [32, 1, 1], "dynamic_smem": 65_536,
            "params": [store_map(1, 8 * kilobytes), { "pointer": "out" }, { "u32": 1 }],
        })],
        reduce: json!({ "kind": "columns", "names": ["issue_clk", "read_clk", "written_clk"] }),
    }
}

/// TMA stores one after the other, of which up to `depth` read shared memory at a time.
fn tma_stores(chip: &Chip, depth: u32, ctas: u32) -> Probe {
    let one: String = (0..4)
        .map(|i| {
            format!(
                "    {STORE}, [%smem + {}];\n    cp.async.bulk.commit_group;\n    add.u32 %row, %row, {};\n    \
                 cp.async.bulk.wait_group.read {};\n",
                i * BOX,
                if i == 3 { "-384" } else { "128" },
                depth - 1
            )
        })
        .collect();
    let work = format!(
        "LOOP:\n{one}    sub.u32 %rounds, %rounds, 1;\n    setp.ne.u32 %more, %rounds, 0;\n    @%more bra LOOP;\n    \
         cp.async.bulk.wait_group 0;"
    );
    let result = "    sub.u64 %stop, %stop, %start;\n    atom.global.max.u64 %start, [%out], %stop;";
    let by = if ctas == 1 { "one_sm" } else { "all_sms" };
    let name = format!("tma_stores_{depth}_{by}");
    let about = format!(
        "TMA stores of 16 KB by {ctas} CTA(s), each waiting until at most {} before it read",
        depth - 1
    );
    let ptx =
        chip.fill(include_str!("tma_store.ptx"), &[("ABOUT", &about), ("WORK", &work), ("RESULT", result)]);
    let ctas = if ctas > 1 { chip.few(2, ctas) } else { 1 };
    let rounds = [1, chip.few(2, 16), chip.few(3, 64)];
    let launches = rounds.iter().enumerate().map(|(index, rounds)| {
        json!({
            "kernel": "probe", "grid": [ctas, 1, 1], "block": [32, 1, 1], "dynamic_smem": 120_000,
            "params": [store_map(ctas, 128), { "pointer": "out", "offset": 8 * index }, { "u32": rounds }],
        })
    });
    Probe {
        launches: launches.collect(),
        buffers: vec![("out", 24), ("data", 65_536 * u64::from(ctas))],
        reduce: json!({
            "kind": "line", "counts": rounds.map(|r| 4 * r), "each": "interval_clk", "first": "four_and_wait_clk", "bytes": BOX,
        }),
        name,
        about,
        ptx,
    }
}
