//! Probes of instructions beside products: each warpgroup works, then multiplies, with two sets of registers by turns.

use super::{Chip, Probe};
use serde_json::json;

/// What the warps do between products.
#[derive(Clone, Copy)]
enum Work {
    /// This many pairs of 4-bit codes become pairs of bf16, which the products read: two ANDs, an integer product, a
    /// product of bf16.
    Decode(u32),
    /// This many ANDs.
    Logic(u32),
    /// This many multiply-adds in binary32.
    Fma(u32),
}

/// Warpgroups, columns of a product, whether A is in registers, work for each of two groups of products in a round.
const PROBES: &[(u32, u32, bool, Work)] = &[
    (1, 64, true, Work::Decode(16)),
    (2, 64, true, Work::Decode(12)),
    (2, 64, true, Work::Decode(16)),
    (2, 96, true, Work::Decode(16)),
    (3, 8, true, Work::Decode(0)),
    (3, 32, true, Work::Decode(0)),
    (3, 64, true, Work::Decode(0)),
    (3, 8, true, Work::Decode(12)),
    (3, 8, true, Work::Decode(16)),
    (3, 16, true, Work::Decode(12)),
    (3, 16, true, Work::Decode(16)),
    (3, 32, true, Work::Decode(12)),
    (3, 32, true, Work::Decode(16)),
    (3, 64, true, Work::Decode(12)),
    (3, 64, true, Work::Decode(16)),
    (3, 96, true, Work::Decode(12)),
    (3, 96, true, Work::Decode(16)),
    (3, 128, true, Work::Decode(16)),
    (3, 16, true, Work::Logic(64)),
    (3, 64, true, Work::Logic(64)),
    (3, 64, true, Work::Logic(128)),
    (3, 128, true, Work::Logic(128)),
    (3, 64, false, Work::Logic(128)),
    (3, 128, false, Work::Logic(128)),
    (3, 16, true, Work::Fma(128)),
    (3, 64, true, Work::Fma(64)),
    (3, 64, true, Work::Fma(128)),
    (3, 128, true, Work::Fma(128)),
    (3, 64, false, Work::Fma(128)),
    (3, 128, false, Work::Fma(128)),
];
/// Products of a group, one K step each.
const PRODUCTS: u32 = 4;

/// All of them.
pub(super) fn all(chip: &Chip) -> Vec<Probe> {
    PROBES.iter().map(|&(groups, n, registers, work)| probe(chip, groups, n, registers, work)).collect()
}

impl Work {
    fn name(self) -> (String, String) {
        match self {
            Work::Decode(pairs) => (format!("decode_{pairs}"), format!("{pairs} pairs of codes decoded")),
            Work::Logic(count) => (format!("logic_{count}"), format!("{count} lop3.b32")),
            Work::Fma(count) => (format!("fma_{count}"), format!("{count} fma.rn.f32")),
        }
    }

    /// The lines of one group of products.
    fn lines(self, set: u32) -> Vec<String> {
        match self {
            Work::Decode(pairs) => (0..pairs)
                .flat_map(|i| {
                    let (word, m) = (i / 4, i % 8);
                    let codes = if i % 4 < 2 { format!("%x{word}") } else { "%upper".to_owned() };
                    let (mask, factor) =
                        if i % 2 == 1 { (0x000f_000f, 0x1040) } else { (0x00f0_00f0, 0x104) };
                    let fresh = [
                        format!("add.u32 %x{word}, %x{word}, %other;"),
                        format!("shr.u32 %upper, %x{word}, 8;"),
                    ];
                    let pair = [
                        format!("and.b32 %m{m}, {codes}, {mask:#x};"),
                        format!("mul.lo.u32 %m{m}, %m{m}, {factor:#x};"),
                        format!("and.b32 %m{m}, %m{m}, 0x81c081c0;"),
                        format!("mul.rn.bf16x2 %set{set}_{i}, %m{m}, %other;"),
                    ];
                    fresh.into_iter().filter(move |_| i % 4 == 0).chain(pair)
                })
                .collect(),
            Work::Logic(count) => (0..count)
                .map(|i| format!("lop3.b32 %x{0}, %x{0}, 0x0f0f1f0f, %other, 0x6a;", i % 8))
                .collect(),
            Work::Fma(count) => {
                (0..count).map(|i| format!("fma.rn.f32 %f{0}, %f{0}, %f8, %f9;", i % 8)).collect()
            }
        }
    }
}

fn probe(chip: &Chip, groups: u32, n: u32, registers: bool, work: Work) -> Probe {
    let sums: Vec<String> = (0..n / 2).map(|i| format!("%d{i}")).collect();
    let sums = sums.join(", ");
    let product = |set: u32, step: u32| {
        let (a, transposes) = match registers {
            true => {
                let list: Vec<String> = (0..4).map(|i| format!("%set{set}_{}", 4 * step + i)).collect();
                (format!("{{ {} }}", list.join(", ")), ", 0")
            }
            false => ("%a".to_owned(), ", 0, 0"),
        };
        format!(
            "wgmma.mma_async.sync.aligned.m64n{n}k16.f32.bf16.bf16 {{ {sums} }}, {a}, %b, 1, 1, 1{transposes};"
        )
    };
    let group = |set: u32| {
        let mut lines = vec!["wgmma.wait_group.sync.aligned 1;".to_owned()];
        lines.extend(work.lines(set));
        lines.push("wgmma.fence.sync.aligned;".to_owned());
        lines.extend((0..PRODUCTS).map(|step| product(set, step)));
        lines.push("wgmma.commit_group.sync.aligned;".to_owned());
        lines
    };
    let text = |lines: &[String]| lines.iter().map(|line| format!("    {line}\n")).collect::<String>();
    let round = text(&[group(0), group(1)].concat());
    let clear: Vec<String> = (0..n / 2)
        .map(|i| format!("mov.f32 %d{i}, 0f00000000;"))
        .chain((0..8).map(|i| format!("mov.b32 %x{i}, %thread;")))
        .chain((0..10).map(|i| format!("cvt.rn.f32.u32 %f{i}, %thread;")))
        .chain((0..32).map(|i| format!("mov.b32 %set{}_{}, 0;", i / 16, i % 16)))
        .collect();
    let keep: Vec<String> = (["mov.b32 %word, %x0;".to_owned()].into_iter())
        .chain((1..8).map(|i| format!("xor.b32 %word, %word, %x{i};")))
        .chain((0..8).map(|i| format!("mov.b32 %upper, %f{i};\n    xor.b32 %word, %word, %upper;")))
        .collect();
    let (clear, keep) = (text(&clear), text(&keep));
    let threads = 128 * groups;
    let place = if registers { "registers" } else { "shared memory" };
    let (name, what) = work.name();
    let name = format!("beside_{groups}_n{n}_{}{name}", if registers { "" } else { "smem_" });
    let about = format!(
        "{groups} warpgroup(s) that each turn: {what}, then {PRODUCTS} wgmma of bf16 with N = {n}, A in {place}; two turns per round"
    );
    let values = [
        ("ABOUT", about.as_str()),
        ("THREADS", &threads.to_string()),
        ("STRIDE", &(16 * threads).to_string()),
        ("REGISTERS", &(n / 2).to_string()),
        ("CLEAR", clear.trim_end()),
        ("ROUND", round.trim_end()),
        ("KEEP", keep.trim_end()),
    ];
    let ptx = chip.fill(include_str!("beside.ptx"), &values);
    let launch = json!({ "grid": [1, 1, 1], "block": [threads, 1, 1], "dynamic_smem": 40_960 });
    chip.steady(&name, &about, ptx, 1, "round_clk", &launch, false)
}
