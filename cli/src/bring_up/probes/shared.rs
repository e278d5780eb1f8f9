//! Probes of who shares the port of shared memory: products that read operands, warps that load or store, and TMA loads that
//! write. One of them is measured, another one runs beside it from before its start until after its end.

use super::{Chip, Probe};
use serde_json::json;

/// Bytes of dynamic shared memory, and within it: boxes that are loaded, and barriers.
const SMEM: u32 = 122_960;
const BOXES: u32 = 57_344;
const BARRIERS: u32 = BOXES + COPIES * BOX;
/// Products of a round, accesses of a warp per round, and copies of a round.
const UNROLL: u32 = 4;
const ACCESSES: u32 = 16;
const COPIES: u32 = 8;
/// Bytes of a copy.
const BOX: u32 = 8192;
/// How much slower something may become beside another.
const MOST_SLOWDOWN: u32 = 16;
/// The column of tensor memory where warps store.
const SCALES_COLUMN: u32 = 448;

/// Something that uses shared memory.
#[derive(Clone, Copy, PartialEq)]
enum PortUser {
    Nothing,
    /// Products of bf16 with this N, both operands in shared memory: `wgmma` of one warpgroup, or `tcgen05.mma` of one CTA.
    Products(u32),
    /// The same with A in registers.
    RegisterProducts(u32),
    /// `ld.shared.v4` by this many warps.
    Loads(u32),
    /// `st.shared.v4` by this many warps.
    Stores(u32),
    /// `ld.shared.v4` and `tcgen05.st` of what was loaded by four warps.
    Scales,
    /// TMA loads of 8 KB from L2, this many under way.
    Copies(u32),
}

impl PortUser {
    fn name(self) -> String {
        match self {
            PortUser::Nothing => "nothing".to_owned(),
            PortUser::Products(n) => format!("products_n{n}"),
            PortUser::RegisterProducts(n) => format!("products_registers_n{n}"),
            PortUser::Loads(warps) => format!("loads_{warps}"),
            PortUser::Stores(warps) => format!("stores_{warps}"),
            PortUser::Scales => "scales".to_owned(),
            PortUser::Copies(depth) => format!("copies_{depth}"),
        }
    }

    fn about(self) -> String {
        match self {
            PortUser::Nothing => "nothing".to_owned(),
            PortUser::Products(n) => format!("products of bf16 with N = {n}, both operands in shared memory"),
            PortUser::RegisterProducts(n) => format!("products of bf16 with N = {n}, A in registers"),
            PortUser::Loads(warps) => format!("ld.shared.v4 of {warps} warp(s), 512 bytes each"),
            PortUser::Stores(warps) => format!("st.shared.v4 of {warps} warp(s), 512 bytes each"),
            PortUser::Scales => "ld.shared.v4 and tcgen05.st of four warps, 512 bytes each".to_owned(),
            PortUser::Copies(depth) => format!("bulk loads of 8 KB from L2, {depth} under way"),
        }
    }

    /// Uses of a round, by all warps.
    fn unroll(self) -> u32 {
        match self {
            PortUser::Nothing => 0,
            PortUser::Products(_) | PortUser::RegisterProducts(_) => UNROLL,
            PortUser::Loads(_) | PortUser::Stores(_) | PortUser::Scales => ACCESSES * self.warps(),
            PortUser::Copies(depth) => depth,
        }
    }

    /// About the clocks of a round without others.
    fn clocks(self) -> u32 {
        match self {
            PortUser::Nothing => 1,
            PortUser::Products(n) | PortUser::RegisterProducts(n) => UNROLL * n / 2,
            // A warp alone waits for latencies.
            PortUser::Loads(_) | PortUser::Stores(_) | PortUser::Scales => {
                ACCESSES * (4 * self.warps()).max(11)
            }
            // A single load takes 400 clk.
            PortUser::Copies(depth) => (depth * BOX / 96).max(400),
        }
    }

    /// Rounds as the kernel's parameters: products, accesses, copies.
    fn rounds(self, count: u32) -> [u32; 3] {
        match self {
            PortUser::Nothing => [0; 3],
            PortUser::Products(_) | PortUser::RegisterProducts(_) => [count, 0, 0],
            PortUser::Loads(_) | PortUser::Stores(_) | PortUser::Scales => [0, count, 0],
            PortUser::Copies(_) => [0, 0, count],
        }
    }

    /// Warps that load or store.
    fn warps(self) -> u32 {
        match self {
            PortUser::Loads(warps) | PortUser::Stores(warps) => warps,
            PortUser::Scales => 4,
            PortUser::Nothing
            | PortUser::Products(_)
            | PortUser::RegisterProducts(_)
            | PortUser::Copies(_) => 0,
        }
    }

    /// N of products, and whether A is in registers.
    fn product(self) -> Option<(u32, bool)> {
        match self {
            PortUser::Products(n) => Some((n, false)),
            PortUser::RegisterProducts(n) => Some((n, true)),
            PortUser::Nothing
            | PortUser::Loads(_)
            | PortUser::Stores(_)
            | PortUser::Scales
            | PortUser::Copies(_) => None,
        }
    }

    /// One access of a warp.
    fn access(self, i: u32) -> Vec<String> {
        let offset = 2048 * (i % 4);
        let x = 4 * (i % 4);
        let load = format!(
            "ld.volatile.shared.v4.b32 {{ %x{x}, %x{}, %x{}, %x{} }}, [%at + {offset}];",
            x + 1,
            x + 2,
            x + 3
        );
        match self {
            PortUser::Loads(_) => {
                // Loads that nothing reads are faster.
                vec![
                    load,
                    format!("lop3.b32 %kept, %kept, %x{x}, %x{}, 0xfe;", x + 1),
                    format!("lop3.b32 %kept, %kept, %x{}, %x{}, 0xfe;", x + 2, x + 3),
                ]
            }
            PortUser::Stores(_) => {
                vec![format!("st.volatile.shared.v4.b32 [%at + {offset}], {{ %x0, %x1, %x2, %x3 }};")]
            }
            // Four loads, then four stores: no store waits for a load's latency.
            PortUser::Scales if i % 4 == 3 => {
                let stores = (i - 3..=i).map(|i| {
                    let x = 4 * (i % 4);
                    format!(
                        "tcgen05.st.sync.aligned.32x32b.x4.b32 [%place + {}], {{ %x{x}, %x{}, %x{}, %x{} }};",
                        4 * i,
                        x + 1,
                        x + 2,
                        x + 3
                    )
                });
                let wait = (i + 1 == ACCESSES).then(|| "tcgen05.wait::st.sync.aligned;".to_owned());
                [load].into_iter().chain(stores).chain(wait).collect()
            }
            PortUser::Scales => vec![load],
            PortUser::Nothing
            | PortUser::Products(_)
            | PortUser::RegisterProducts(_)
            | PortUser::Copies(_) => Vec::new(),
        }
    }
}

/// What is measured, and what runs beside it.
fn pairs(blackwell: bool) -> Vec<(PortUser, PortUser)> {
    use PortUser::{Copies, Loads, Nothing, Products, RegisterProducts, Scales, Stores};
    let others = [Loads(1), Loads(4), Stores(4), Copies(8)].into_iter().chain(blackwell.then_some(Scales));
    let others: Vec<PortUser> = others.collect();
    let mut pairs: Vec<_> = others.iter().map(|&user| (user, Nothing)).collect();
    for n in [64, 128, 192, 256] {
        pairs.push((Products(n), Nothing));
        pairs.extend(others.iter().map(|&other| (Products(n), other)));
        // Narrower products read all that the port has: warps would wait for their end. On Blackwell A has 128 rows.
        let widest = if blackwell { 128 } else { 64 };
        let served = others.iter().filter(|other| n > widest || other.warps() == 0);
        pairs.extend(served.map(|&other| (other, Products(n))));
    }
    if !blackwell {
        let some = [Loads(4), Stores(4)];
        for n in [16, 64, 256] {
            pairs.push((RegisterProducts(n), Nothing));
            pairs.extend(some.map(|other| (RegisterProducts(n), other)));
            pairs.extend(some.map(|other| (other, RegisterProducts(n))));
        }
    }
    for depth in [1, 2, 4, 8] {
        pairs.extend([Loads(4), Stores(4)].map(|user| (user, Copies(depth))));
        pairs.extend([Loads(4), Stores(4)].map(|user| (Copies(depth), user)));
        pairs.extend((depth < 8).then_some((Copies(depth), Nothing)));
    }
    pairs
}

/// All of them.
pub(super) fn all(chip: &Chip, blackwell: bool) -> Vec<Probe> {
    pairs(blackwell).into_iter().map(|(user, beside)| probe(chip, user, beside, blackwell)).collect()
}

fn text(lines: impl IntoIterator<Item = String>) -> String {
    lines.into_iter().map(|line| format!("    {line}\n")).collect::<String>().trim_end().to_owned()
}

/// The texts of products with this N: the loop, what comes before it, what comes behind the barrier, and the end.
fn products(chip: &Chip, (n, registers): (u32, bool), blackwell: bool, stop: &str) -> [String; 4] {
    let sums: Vec<String> = (0..n / 2).map(|i| format!("%d{i}")).collect();
    let product = match blackwell {
        true => {
            let instruction = 1 << 4 | 1 << 7 | 1 << 10 | (n >> 3) << 17 | 8 << 24;
            format!("tcgen05.mma.cta_group::1.kind::f16 [%tmem], %a, %b, {instruction:#010x}, %accumulate;")
        }
        false => {
            let (a, transposes) = if registers { ("{ %x0, %x1, %x2, %x3 }", "0") } else { ("%a", "0, 0") };
            format!(
                "wgmma.mma_async.sync.aligned.m64n{n}k16.f32.bf16.bf16 {{ {} }}, {a}, %b, 1, 1, 1, {transposes};",
                sums.join(", ")
            )
        }
    };
    let unrolled = text(std::iter::repeat_n(product, UNROLL as usize));
    let clear = text(
        (sums.iter().map(|d| format!("mov.f32 {d}, 0f00000000;")))
            .chain((0..4).map(|i| format!("mov.b32 %x{i}, 0;"))),
    );
    let template =
        if blackwell { include_str!("shared_tcgen05.ptx") } else { include_str!("shared_wgmma.ptx") };
    let values = [("CLEAR", clear.as_str()), ("PRODUCTS", &unrolled), ("STOP_PRODUCTS", stop)];
    let multiply = chip.fill(template, &values).trim_end().to_owned();
    if !blackwell {
        return [multiply, String::new(), String::new(), String::new()];
    }
    let place = format!("add.u32 %word, %smem, {};", BARRIERS + 8 * COPIES + 8);
    let first = "setp.ne.u32 %more, %warp, 0;";
    let lines = |lines: &[&str]| text(lines.iter().map(|&line| line.to_owned()));
    let setup = lines(&[
        first,
        "@%more bra ALLOCATED;",
        "bar.warp.sync 0xffffffff;",
        &place,
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%word], 512;",
        "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;",
        "tcgen05.fence::before_thread_sync;",
        "ALLOCATED:",
    ]);
    let ready = lines(&["tcgen05.fence::after_thread_sync;", &place, "ld.shared.b32 %tmem, [%word];"]);
    let end = lines(&[
        "bar.warp.sync 0xffffffff;",
        "tcgen05.fence::before_thread_sync;",
        "bar.sync 0;",
        first,
        "@%more bra FREED;",
        "tcgen05.fence::after_thread_sync;",
        "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %tmem, 512;",
        "FREED:",
    ]);
    [multiply, setup, ready, end]
}

fn probe(chip: &Chip, user: PortUser, beside: PortUser, blackwell: bool) -> Probe {
    let product = user.product().or(beside.product()).unwrap_or((64, false));
    let accesses = if user.warps() > 0 { user } else { beside };
    let barrier = |i: u32| format!("add.u32 %word, %smem, {};", BARRIERS + 8 * i);
    let copy = |i: u32| {
        [
            barrier(i),
            format!("add.u32 %place, %smem, {};", BOXES + BOX * i),
            format!("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%word], {BOX};"),
            format!(
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%place], [%data], {BOX}, [%word];"
            ),
        ]
    };
    let depth = [user, beside]
        .into_iter()
        .find_map(|u| if let PortUser::Copies(depth) = u { Some(depth) } else { None });
    let depth = depth.unwrap_or(1);
    let wait = |i: u32, name: &str| {
        [
            barrier(i),
            format!("{name}_{i}: mbarrier.try_wait.parity.shared::cta.b64 %complete, [%word], %phase;"),
            format!("@!%complete bra {name}_{i};"),
        ]
    };
    // Lanes of a warp of tensor memory.
    let place = [
        "and.b32 %word, %warp, 3;".to_owned(),
        "shl.b32 %word, %word, 21;".to_owned(),
        format!("add.u32 %place, %tmem, {SCALES_COLUMN};"),
        "add.u32 %place, %place, %word;".to_owned(),
    ];
    let place = place.into_iter().filter(|_| accesses == PortUser::Scales);
    let init = |i: u32| [barrier(i), "mbarrier.init.shared::cta.b64 [%word], 1;".to_owned()];
    let stop = |measured: bool| if measured { "    mov.u64 %stop, %clock64;" } else { "" };
    let [multiply, setup, ready, end] = products(chip, product, blackwell, stop(user.product().is_some()));
    let about = match beside {
        PortUser::Nothing => format!("{}, and nothing else", user.about()),
        _ => format!("{} beside {}", user.about(), beside.about()),
    };
    let values = [
        ("ABOUT", about.as_str()),
        ("REGISTERS", &(product.0 / 2).to_string()),
        // A barrier of products, too.
        ("INIT", &text((0..=COPIES).flat_map(init))),
        ("SETUP", &setup),
        ("READY", &ready),
        ("MULTIPLY", &multiply),
        ("LAST_WARP", &(4 + accesses.warps()).to_string()),
        ("ACCESSES", &text((0..ACCESSES).flat_map(|i| accesses.access(i)))),
        ("FIRST_COPIES", &text((0..depth).flat_map(copy))),
        ("NEXT_COPIES", &text((0..depth).flat_map(|i| wait(i, "ARRIVED").into_iter().chain(copy(i))))),
        ("LAST_COPIES", &text((0..depth).flat_map(|i| wait(i, "LAST")))),
        ("STOP_ACCESSES", stop(user.warps() > 0)),
        ("STOP_COPIES", stop(matches!(user, PortUser::Copies(_)))),
        ("PLACE", &text(place)),
        ("DEPTH", &depth.to_string()),
        ("END", &end),
    ];
    let ptx = chip.fill(include_str!("shared.ptx"), &values);
    let rounds = [chip.few(1, 64), chip.few(2, 128), chip.few(3, 256)];
    // The neighbour has to outlast what is measured.
    let longest = MOST_SLOWDOWN * rounds[2] * user.clocks();
    let [p, a, c] = beside.rounds(longest.div_ceil(beside.clocks()).max(4));
    let launches = rounds.iter().enumerate().map(|(index, &count)| {
        let [products, accesses, copies] = user.rounds(count);
        json!({
            "kernel": "probe", "grid": [1, 1, 1], "block": [288, 1, 1], "dynamic_smem": SMEM,
            "params": [
                { "pointer": "out", "offset": 8 * index }, { "u32": products + p }, { "u32": accesses + a },
                { "u32": copies + c }, { "pointer": "data" },
            ],
        })
    });
    let beside =
        if beside == PortUser::Nothing { String::new() } else { format!("_beside_{}", beside.name()) };
    Probe {
        name: format!("shared_{}{beside}", user.name()),
        launches: launches.collect(),
        buffers: vec![("out", 24), ("data", u64::from(BOX))],
        reduce: json!({
            "kind": "line", "counts": rounds.map(|rounds| rounds * user.unroll()), "each": "interval_clk",
            "first": "first_clk",
        }),
        about,
        ptx,
    }
}
