//! `mma.sync`, `mma.sp` and `wmma` of every kind on small integers, whose products and sums are exact,
//! against the layouts of the ISA's tables.

#![allow(clippy::needless_range_loop, reason = "lanes and elements index registers, matrices and formulas")]

use crate::common::{Random, launch, parse, run};
use silumin_emulator::{Arg, GlobalMemory, Options};

/// The code of an integer from -2 to 2 in a format, as a register holds it.
fn code(format: &str, v: i64) -> u64 {
    let sign = u64::from(v < 0);
    let m = v.unsigned_abs() as usize;
    match format {
        "f16" => half::f16::from_f64(v as f64).to_bits().into(),
        "bf16" => half::bf16::from_f64(v as f64).to_bits().into(),
        "tf32" | "f32" => (v as f32).to_bits().into(),
        "f64" => (v as f64).to_bits(),
        "e4m3" => sign << 7 | [0, 0x38, 0x40][m],
        "e5m2" => sign << 7 | [0, 0x3c, 0x40][m],
        "e2m3" => sign << 5 | [0, 8, 16][m],
        "e3m2" => sign << 5 | [0, 12, 16][m],
        "e2m1" => (sign << 3 | [0, 2, 4][m]) << 2,
        "fp4" => sign << 3 | [0, 2, 4][m],
        "s8" | "u8" => v as u64 & 0xff,
        "s4" | "u4" => v as u64 & 0xf,
        "s32" => v as u64 & 0xffff_ffff,
        "b1" => v as u64 & 1,
        _ => panic!("{format}"),
    }
}

fn bits(format: &str) -> usize {
    match format {
        "f64" => 64,
        "tf32" | "f32" | "s32" => 32,
        "f16" | "bf16" => 16,
        "s4" | "u4" | "fp4" => 4,
        "b1" => 1,
        _ => 8,
    }
}

/// Integers that a format has.
fn value(format: &str, r: &mut Random) -> i64 {
    match format {
        "u8" | "u4" => (r.next() % 3) as i64,
        "b1" => (r.next() % 2) as i64,
        _ => (r.next() % 5) as i64 - 2,
    }
}

type Words = Vec<[u64; 32]>;

/// Registers of a fragment whose element `i` of lane `l` is at `place(l, i)`.
fn fragment(format: &str, registers: usize, value: impl Fn(usize, usize) -> i64) -> Words {
    let per = (32 / bits(format)).max(1);
    let mut out = vec![[0u64; 32]; registers];
    for lane in 0..32 {
        for i in 0..registers * per {
            out[i / per][lane] |= code(format, value(lane, i)) << (i % per * bits(format));
        }
    }
    out
}

/// Runs `op` on registers: `lists` are its sources, `d` registers come back.
fn execute(head: &str, op: &str, wide: bool, d: usize, lists: &[&Words], tail: &str) -> Words {
    let (ty, size) = if wide { ("b64", 8) } else { ("b32", 4) };
    let total: usize = lists.iter().map(|l| l.len()).sum();
    let mut loads = String::new();
    let mut operands = Vec::new();
    let mut n = 0;
    for list in lists {
        let names: Vec<String> = (n..n + list.len()).map(|i| format!("%x{i}")).collect();
        for name in &names {
            loads += &format!("    ld.global.{ty} {name}, [%rd1+{}];\n", n * size);
            n += 1;
        }
        operands.push(format!("{{{}}}", names.join(", ")));
    }
    let results: Vec<String> = (0..d).map(|i| format!("%y{i}")).collect();
    let stores: String = results
        .iter()
        .enumerate()
        .map(|(i, y)| format!("    st.global.{ty} [%rd2+{}], {y};\n", i * size))
        .collect();
    // Scale factors are registers too.
    let mut tail = tail.to_owned();
    for register in ["%r2", "%r3"] {
        if let Some(at) = tail.find("0x") {
            loads += &format!("    mov.b32 {register}, {};\n", &tail[at..at + 10]);
            tail.replace_range(at..at + 10, register);
        }
    }
    let tail = tail.replace("E0", &format!("%x{}", total.saturating_sub(1)));
    let shown = if tail.is_empty() {
        operands.join(", ")
    } else {
        // The last list is what the tail names.
        format!("{}, {tail}", operands[..3].join(", "))
    };
    let text = format!(
        ".version 9.1\n{head}\n.address_size 64\n.visible .entry k(.param .u64 in, .param .u64 out) {{
    .reg .{ty} %x<{}>; .reg .{ty} %y<16>; .reg .b32 %r<4>; .reg .b16 %h<4>; .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [in]; ld.param.u64 %rd2, [out];
    cvta.to.global.u64 %rd1, %rd1; cvta.to.global.u64 %rd2, %rd2;
    mov.u32 %r1, %tid.x;
    mad.wide.u32 %rd1, %r1, {}, %rd1;
    mad.wide.u32 %rd2, %r1, {}, %rd2;
{loads}    {op} {{{}}}, {shown};\n{stores}    ret;\n}}\n",
        total + 1,
        total * size,
        d * size,
        results.join(", ")
    );
    let mut bytes = Vec::new();
    for lane in 0..32 {
        for list in lists {
            for word in list.iter() {
                bytes.extend_from_slice(&word[lane].to_le_bytes()[..size]);
            }
        }
    }
    let mut memory = GlobalMemory::new();
    let input = memory.alloc_from("in", &bytes);
    let out = memory.alloc("out", (32 * d * size) as u64);
    let args = vec![Arg::Pointer(memory.address(&input)), Arg::Pointer(memory.address(&out))];
    let report = run(&parse(&text), &launch(1, 32, args), &memory, &Options::default());
    assert!(report.is_clean(), "{op}: {}", report.findings[0]);
    let got = memory.read(&out);
    (0..d)
        .map(|i| {
            std::array::from_fn(|lane| {
                let at = (lane * d + i) * size;
                let mut le = [0u8; 8];
                le[..size].copy_from_slice(&got[at..at + size]);
                u64::from_le_bytes(le)
            })
        })
        .collect()
}

fn matrix(format: &str, rows: usize, columns: usize, r: &mut Random) -> Vec<Vec<i64>> {
    (0..rows).map(|_| (0..columns).map(|_| value(format, r)).collect()).collect()
}

/// Row and column of element `i` of lane `l` in an A or B of `rows` rows, `per` elements in a register.
fn place(l: usize, i: usize, rows: usize, per: usize) -> (usize, usize) {
    let r = i / per;
    (l / 4 + 8 * (r % (rows / 8)), per * (l % 4) + i % per + 4 * per * (r / (rows / 8)))
}

fn place_d(l: usize, i: usize) -> (usize, usize) {
    (l / 4 + 8 * (i / 2), 2 * (l % 4) + i % 2)
}

#[derive(Clone, Copy)]
struct Form {
    target: &'static str,
    op: &'static str,
    m: usize,
    k: usize,
    a: &'static str,
    b: &'static str,
    d: &'static str,
}

fn product(a: i64, b: i64, op: &str) -> i64 {
    if op.contains("xor.popc") {
        a ^ b
    } else if op.contains("and.popc") {
        a & b
    } else {
        a * b
    }
}

fn check_d(form: Form, d: &Words, want: impl Fn(usize, usize) -> i64) {
    let per = (32 / bits(form.d)).max(1);
    for lane in 0..32 {
        for i in 0..form.m * 8 / 32 {
            let (row, column) = place_d(lane, i);
            let shift = i % per * bits(form.d);
            let mask = u64::MAX >> (64 - bits(form.d));
            let want: u64 = match form.d {
                "f16" => half::f16::from_f64(want(row, column) as f64).to_bits().into(),
                "f32" => (want(row, column) as f32).to_bits().into(),
                "f64" => (want(row, column) as f64).to_bits(),
                _ => u64::from(want(row, column) as u32),
            };
            let got = d[i / per][lane] >> shift & mask;
            assert_eq!(got, want, "{}: ({row}, {column})", form.op);
        }
    }
}

fn dense(form: Form, r: &mut Random) {
    let Form { m, k, a, b, d, .. } = form;
    let (va, vb) = (matrix(a, m, k, r), matrix(b, 8, k, r));
    let vc = matrix(if d == "s32" { "s8" } else { d }, m, 8, r);
    let (pa, pb) = ((32 / bits(a)).max(1), (32 / bits(b)).max(1));
    let fa = fragment(a, m / 8 * k / (4 * pa), |l, i| {
        let (x, y) = place(l, i, m, pa);
        va[x][y]
    });
    let fb = fragment(b, k / (4 * pb), |l, i| {
        let (x, y) = place(l, i, 8, pb);
        vb[x][y]
    });
    let count = m * 8 / 32 / (32 / bits(d)).max(1);
    let fc = fragment(d, count, |l, i| {
        let (x, y) = place_d(l, i);
        vc[x][y]
    });
    let out = execute(form.target, form.op, d == "f64", count, &[&fa, &fb, &fc], "");
    check_d(form, &out, |x, y| vc[x][y] + (0..k).map(|i| product(va[x][i], vb[y][i], form.op)).sum::<i64>());
}

#[test]
fn dense_products_of_small_floats_and_of_bits() {
    let mut r = Random(1);
    let formats = ["e4m3", "e5m2", "e3m2", "e2m3", "e2m1"];
    for a in formats {
        for b in formats {
            let op = format!("mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.{a}.{b}.f32");
            let op = Box::leak(op.into_boxed_str());
            dense(Form { target: ".target sm_120a", op, m: 16, k: 32, a, b, d: "f32" }, &mut r);
        }
    }
    for (op, m, k) in [
        ("mma.sync.aligned.m8n8k128.row.col.s32.b1.b1.s32.xor.popc", 8, 128),
        ("mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc", 16, 256),
    ] {
        dense(Form { target: ".target sm_80", op, m, k, a: "b1", b: "b1", d: "s32" }, &mut r);
    }
    for (op, m, k) in [
        ("mma.sync.aligned.m16n8k64.row.col.s32.s4.u4.s32", 16, 64),
        ("mma.sync.aligned.m8n8k32.row.col.satfinite.s32.s4.u4.s32", 8, 32),
    ] {
        dense(Form { target: ".target sm_80", op, m, k, a: "s4", b: "u4", d: "s32" }, &mut r);
    }
    let op = "mma.sync.aligned.m16n8k4.row.col.rz.f64.f64.f64.f64";
    dense(Form { target: ".target sm_100a", op, m: 16, k: 4, a: "f64", b: "f64", d: "f64" }, &mut r);
}

/// Four bits and the two places in a chunk that they name.
fn chunk(r: &mut Random, format: &str) -> (u64, Vec<usize>) {
    if bits(format) == 32 {
        return if r.next().is_multiple_of(2) { (0b0100, vec![0]) } else { (0b1110, vec![1]) };
    }
    let (i, j) = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)][r.next() as usize % 6];
    let places = if bits(format) == 4 { vec![2 * i, 2 * i + 1, 2 * j, 2 * j + 1] } else { vec![i, j] };
    ((j << 2 | i) as u64, places)
}

/// Metadata registers for `form`, and for every row which elements of K are held.
fn metadata(form: Form, selector: usize, r: &mut Random) -> (Words, Vec<Vec<usize>>) {
    let length = match bits(form.a) {
        32 => 2,
        4 => 8,
        _ => 4,
    };
    let mut e = vec![[0u64; 32]];
    let mut held = Vec::new();
    for row in 0..16 {
        let mut list = Vec::new();
        for c in 0..form.k / length {
            let (index, places) = chunk(r, form.a);
            list.extend(places.iter().map(|p| c * length + p));
            let (g, upper) = (4 * (row % 8), row / 8);
            // 16-bit pieces of four chunks, of two rows in a register; or whole registers of one row.
            let (thread, bit) = if bits(form.a) >= 16 {
                let threads = form.k / length / 4;
                (g + threads * selector + c / 4, 16 * upper + 4 * (c % 4))
            } else {
                let threads = form.k / length / 4;
                (g + threads * selector + upper + 2 * (c / 8), 4 * (c % 8))
            };
            e[0][thread] |= index << bit;
        }
        held.push(list);
    }
    (e, held)
}

fn sparse(form: Form, selector: usize, scale: Option<(&str, [i32; 2])>, r: &mut Random) {
    let Form { m, k, a, b, d, .. } = form;
    let (va, vb, vc) =
        (matrix(a, m, k / 2, r), matrix(b, 8, k, r), matrix(if d == "s32" { "s8" } else { d }, m, 8, r));
    let (e, held) = metadata(form, selector, r);
    let (pa, pb) = ((32 / bits(a)).max(1), (32 / bits(b)).max(1));
    let fa = fragment(a, 2 * (k / 2) / (4 * pa), |l, i| {
        let (x, y) = place(l, i, m, pa);
        va[x][y]
    });
    let fb = fragment(b, k / (4 * pb), |l, i| {
        let (x, y) = place(l, i, 8, pb);
        vb[x][y]
    });
    let count = 4 / (32 / bits(d)).max(1);
    let fc = fragment(d, count, |l, i| {
        let (x, y) = place_d(l, i);
        vc[x][y]
    });
    let tail = match scale {
        None => format!("E0, {selector}"),
        Some((tail, _)) => format!("E0, {selector}, {tail}"),
    };
    let out = execute(form.target, form.op, false, count, &[&fa, &fb, &fc, &e], &tail);
    let factor = scale.map_or(1, |(_, [x, y])| i64::from(x) * i64::from(y));
    check_d(form, &out, |x, y| {
        let sum: i64 = held[x].iter().enumerate().map(|(p, &at)| va[x][p] * vb[y][at]).sum();
        vc[x][y] + factor * sum
    });
}

#[test]
fn sparse_products_take_the_elements_that_metadata_names() {
    let mut r = Random(2);
    let sm = ".target sm_100a";
    for (op, k, a, d, selectors) in [
        ("mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", 16, "f16", "f32", 4),
        ("mma.sp::ordered_metadata.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16", 16, "f16", "f16", 4),
        ("mma.sp.sync.aligned.m16n8k32.row.col.f32.bf16.bf16.f32", 32, "bf16", "f32", 2),
        ("mma.sp.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", 8, "tf32", "f32", 4),
        ("mma.sp.sync.aligned.m16n8k16.row.col.f32.tf32.tf32.f32", 16, "tf32", "f32", 2),
        ("mma.sp.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32", 32, "s8", "s32", 2),
        ("mma.sp.sync.aligned.m16n8k64.row.col.satfinite.s32.s8.s8.s32", 64, "s8", "s32", 1),
        ("mma.sp.sync.aligned.m16n8k64.row.col.f32.e4m3.e4m3.f32", 64, "e4m3", "f32", 1),
    ] {
        for selector in 0..selectors {
            sparse(Form { target: sm, op, m: 16, k, a, b: a, d }, selector, None, &mut r);
        }
    }
    for (op, k, selectors) in [
        ("mma.sp.sync.aligned.m16n8k64.row.col.s32.s4.s4.s32", 64, 2),
        ("mma.sp::ordered_metadata.sync.aligned.m16n8k128.row.col.s32.s4.s4.s32", 128, 1),
    ] {
        for selector in 0..selectors {
            let form = Form { target: ".target sm_80", op, m: 16, k, a: "s4", b: "s4", d: "s32" };
            sparse(form, selector, None, &mut r);
        }
    }
    let op = "mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.kind::f8f6f4.f32.e2m1.e3m2.f32";
    let form = Form { target: ".target sm_120a", op, m: 16, k: 64, a: "e2m1", b: "e3m2", d: "f32" };
    sparse(form, 0, None, &mut r);
    // Scale factors 2 and 4 everywhere: 0x80 and 0x81 of ue8m0, 0x40 and 0x48 of ue4m3.
    let op = "mma.sp::ordered_metadata.sync.aligned.m16n8k128.row.col.kind::mxf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0";
    let form = Form { target: ".target sm_120a", op, m: 16, k: 128, a: "fp4", b: "fp4", d: "f32" };
    sparse(form, 0, Some(("0x80808080, {2, 1}, 0x81818181, {0, 3}", [2, 4])), &mut r);
    let op = "mma.sp::ordered_metadata.sync.aligned.m16n8k128.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3";
    sparse(Form { op, ..form }, 0, Some(("0x40404040, {0, 0}, 0x48484848, {0, 2}", [2, 4])), &mut r);
    let op = "mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.kind::mxf8f6f4.block_scale.f32.e4m3.e2m1.f32.ue8m0";
    let form = Form { op, k: 64, a: "e4m3", b: "e2m1", ..form };
    sparse(form, 0, Some(("0x80808080, {3, 0}, 0x81818181, {1, 1}", [2, 4])), &mut r);
}

#[test]
fn scale_factors_come_from_the_threads_and_bytes_that_are_selected() {
    let mut r = Random(3);
    let two = |e: u64| 2i64.pow(e as u32);
    for (byte_a, pair, byte_b, thread, vec) in
        [(0, 0, 0, 0, 4), (2, 1, 0, 3, 2), (0, 0, 2, 1, 2), (3, 1, 1, 2, 1)]
    {
        // Exponents of the scale factors of each row and column: 127 to 129 of ue8m0.
        let sa: Vec<Vec<u64>> = (0..16).map(|_| (0..vec).map(|_| r.next() % 3).collect()).collect();
        let sb: Vec<Vec<u64>> = (0..8).map(|_| (0..vec).map(|_| r.next() % 3).collect()).collect();
        let (k, f, kind) = match vec {
            1 => (32, "e4m3", "mxf8f6f4"),
            2 => (64, "fp4", "mxf4"),
            _ => (64, "fp4", "mxf4nvf4"),
        };
        let (va, vb) = (matrix(f, 16, k, &mut r), matrix(f, 8, k, &mut r));
        let per = 32 / bits(f);
        let fa = fragment(f, 2 * k / (4 * per), |l, i| {
            let (x, y) = place(l, i, 16, per);
            va[x][y]
        });
        let fb = fragment(f, k / (4 * per), |l, i| {
            let (x, y) = place(l, i, 8, per);
            vb[x][y]
        });
        let fc = fragment("f32", 4, |_, _| 1);
        let mut scales = vec![[0xeeee_eeee_u64; 32], [0xeeee_eeee; 32]];
        let word = |list: &[u64], byte: usize| {
            let mut le = [0xee; 4];
            list.iter().enumerate().for_each(|(i, e)| le[byte + i] = 127 + *e as u8);
            u64::from(u32::from_le_bytes(le))
        };
        for (row, s) in sa.iter().enumerate() {
            scales[0][4 * (row % 8) + 2 * pair + row / 8] = word(s, byte_a);
        }
        for (column, s) in sb.iter().enumerate() {
            scales[1][4 * column + thread] = word(s, byte_b);
        }
        let e = if f == "fp4" { "e2m1" } else { f };
        let shape = format!("m16n8k{k}");
        let op = format!(
            "mma.sync.aligned.{shape}.row.col.kind::{kind}.block_scale.scale_vec::{vec}X.f32.{e}.{e}.f32.ue8m0"
        );
        let n = fa.len() + fb.len() + 4;
        let tail = format!("%x{n}, {{{byte_a}, {pair}}}, %x{}, {{{byte_b}, {thread}}}", n + 1);
        let out = execute(".target sm_120a", &op, false, 4, &[&fa, &fb, &fc, &scales], &tail);
        let form = Form { target: "", op: "block scale", m: 16, k, a: "", b: "", d: "f32" };
        check_d(form, &out, |x, y| {
            let block = k / vec;
            1 + (0..k)
                .map(|i| va[x][i] * vb[y][i] * two(sa[x][i / block]) * two(sb[y][i / block]))
                .sum::<i64>()
        });
    }
}

#[test]
fn quads_of_lanes_make_four_products() {
    let mut r = Random(4);
    for (d_ty, c_ty) in [("f32", "f32"), ("f16", "f16"), ("f32", "f16")] {
        for (a_col, b_row) in [(false, false), (true, false), (false, true), (true, true)] {
            let a: Vec<_> = (0..4).map(|_| matrix("f16", 8, 4, &mut r)).collect();
            let b: Vec<_> = (0..4).map(|_| matrix("f16", 4, 8, &mut r)).collect();
            let c: Vec<_> = (0..4).map(|_| matrix("f16", 8, 8, &mut r)).collect();
            let quad = |l: usize| l % 16 / 4;
            let upper = |l: usize| if l < 16 { 0 } else { 4 };
            let fa = fragment("f16", 2, |l, i| {
                let (row, column) = if a_col { (i % 4 + upper(l), l % 4) } else { (l % 4 + upper(l), i) };
                a[quad(l)][row][column]
            });
            let fb = fragment("f16", 2, |l, i| {
                let (row, column) = if b_row { (l % 4, i + upper(l)) } else { (i, l % 4 + upper(l)) };
                b[quad(l)][row][column]
            });
            let at = |ty: &str, l: usize, i: usize| match ty {
                "f16" => (l % 4 + upper(l), i),
                _ => ((l & 1) + (i & 2) + upper(l), (i & 4) + (l & 2) + (i & 1)),
            };
            let fc = fragment(c_ty, if c_ty == "f16" { 4 } else { 8 }, |l, i| {
                let (row, column) = at(c_ty, l, i);
                c[quad(l)][row][column]
            });
            let (la, lb) = (if a_col { "col" } else { "row" }, if b_row { "row" } else { "col" });
            let op = format!("mma.sync.aligned.m8n8k4.{la}.{lb}.{d_ty}.f16.f16.{c_ty}");
            let n = if d_ty == "f16" { 4 } else { 8 };
            let out = execute(".target sm_80", &op, false, n, &[&fa, &fb, &fc], "");
            for l in 0..32 {
                for i in 0..8 {
                    let (row, column) = at(d_ty, l, i);
                    let q = quad(l);
                    let sum = c[q][row][column] + (0..4).map(|k| a[q][row][k] * b[q][k][column]).sum::<i64>();
                    let (got, want): (u64, u64) = match d_ty {
                        "f16" => (
                            out[i / 2][l] >> (16 * (i % 2)) & 0xffff,
                            half::f16::from_f64(sum as f64).to_bits().into(),
                        ),
                        _ => (out[i][l], (sum as f32).to_bits().into()),
                    };
                    assert_eq!(got, want, "{op}: lane {l}, element {i}");
                }
            }
        }
    }
}

/// A matrix in memory, by rows or by columns, lines `stride` elements apart.
fn stored(format: &str, v: &[Vec<i64>], by_row: bool, stride: usize) -> Vec<u8> {
    let (rows, columns) = (v.len(), v[0].len());
    let width = bits(format);
    let lines = if by_row { rows } else { columns };
    let mut out = vec![0u8; (lines * stride * width).div_ceil(8)];
    for (x, row) in v.iter().enumerate() {
        for (y, &value) in row.iter().enumerate() {
            let at = if by_row { x * stride + y } else { y * stride + x };
            let c = code(format, value);
            for bit in 0..width {
                out[(at * width + bit) / 8] |= ((c >> bit & 1) as u8) << ((at * width + bit) % 8);
            }
        }
    }
    out
}

#[test]
fn wmma_multiplies_matrices_in_memory() {
    let mut r = Random(5);
    let cases = [
        (".target sm_100a", "m16n16k16", "f16", "f32", "f32.f32"),
        (".target sm_100a", "m8n32k16", "f16", "f16", "f16.f16"),
        (".target sm_100a", "m32n8k16", "bf16", "f32", "f32.bf16.bf16.f32"),
        (".target sm_100a", "m16n16k8", "tf32", "f32", "f32.tf32.tf32.f32"),
        (".target sm_100a", "m32n8k16", "s8", "s32", "s32.s8.s8.s32"),
        (".target sm_100a", "m16n16k16", "u8", "s32", "s32.u8.u8.s32.satfinite"),
        (".target sm_100a", "m8n8k4", "f64", "f64", "f64.f64.f64.f64"),
        (".target sm_80", "m8n8k32", "s4", "s32", "s32.s4.s4.s32"),
        (".target sm_80", "m8n8k128", "b1", "s32", "s32.b1.b1.s32"),
    ];
    for (target, shape, f, acc, types) in cases {
        let numbers: Vec<usize> = shape.split(['m', 'n', 'k']).filter_map(|n| n.parse().ok()).collect();
        let [m, n, k] = numbers[..] else { panic!() };
        for by in 0..8 {
            let (mut a_row, mut b_row, d_row) = (by & 1 == 0, by & 2 == 0, by & 4 == 0);
            if bits(f) < 8 {
                (a_row, b_row) = (true, false);
            }
            let (va, vb) = (matrix(f, m, k, &mut r), matrix(f, k, n, &mut r));
            let vc = matrix(if acc == "s32" { "s8" } else { acc }, m, n, &mut r);
            // Lines of A and B are longer than need be.
            let length = |by_row: bool, rows: usize, columns: usize| if by_row { columns } else { rows };
            let (sa, sb) = (length(a_row, m, k) + 32, length(b_row, k, n) + 32);
            let sc = length(d_row, m, n);
            let count = |f: &str, elements: usize, multiplicand: bool| match f {
                "f16" if multiplicand => 8,
                "f64" => elements / 32,
                _ => (elements * bits(f)).div_ceil(1024),
            };
            let list = |letter: char, n: usize| {
                (0..n).map(|i| format!("%{letter}{i}")).collect::<Vec<_>>().join(", ")
            };
            let (na, nb, nc) = (count(f, m * k, true), count(f, k * n, true), count(acc, m * n, false));
            let (fa, fb, fc) = (list('a', na), list('b', nb), list('c', nc));
            let side = |row: bool| if row { "row" } else { "col" };
            let (la, lb, ld) = (side(a_row), side(b_row), side(d_row));
            let reg = if f == "f64" { "b64" } else { "b32" };
            let bitwise = if f == "b1" { ".xor.popc" } else { "" };
            let text = format!(
                ".version 9.1\n{target}\n.address_size 64
.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d) {{
    .reg .{reg} %a<16>; .reg .{reg} %b<16>; .reg .{reg} %c<16>; .reg .b64 %rd<8>; .reg .b32 %r<4>;
    ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b]; ld.param.u64 %rd3, [c]; ld.param.u64 %rd4, [d];
    mov.u32 %r1, {sa}; mov.u32 %r2, {sb}; mov.u32 %r3, {sc};
    wmma.load.a.sync.aligned.{la}.{shape}.global.{f} {{{fa}}}, [%rd1], %r1;
    wmma.load.b.sync.aligned.{lb}.{shape}.global.{f} {{{fb}}}, [%rd2], %r2;
    wmma.load.c.sync.aligned.{ld}.{shape}.global.{acc} {{{fc}}}, [%rd3], %r3;
    wmma.mma{bitwise}.sync.aligned.{la}.{lb}.{shape}.{types} {{{fc}}}, {{{fa}}}, {{{fb}}}, {{{fc}}};
    wmma.store.d.sync.aligned.{ld}.{shape}.global.{acc} [%rd4], {{{fc}}};
    ret;\n}}\n"
            );
            let mut memory = GlobalMemory::new();
            let buffers = [
                memory.alloc_from("a", &stored(f, &va, a_row, sa)),
                memory.alloc_from("b", &stored(f, &vb, b_row, sb)),
                memory.alloc_from("c", &stored(acc, &vc, d_row, sc)),
                memory.alloc("d", (m * n * bits(acc) / 8) as u64),
            ];
            let args = buffers.iter().map(|b| Arg::Pointer(memory.address(b))).collect();
            let report = run(&parse(&text), &launch(1, 32, args), &memory, &Options::default());
            assert!(report.is_clean(), "{shape} {f}: {}", report.findings[0]);
            let got = memory.read(&buffers[3]);
            let product = |x: i64, y: i64| if f == "b1" { x ^ y } else { x * y };
            let want: Vec<Vec<i64>> = (0..m)
                .map(|x| {
                    (0..n)
                        .map(|y| vc[x][y] + (0..k).map(|i| product(va[x][i], vb[i][y])).sum::<i64>())
                        .collect()
                })
                .collect();
            let size = bits(acc) / 8;
            for (x, row) in want.iter().enumerate() {
                for (y, &w) in row.iter().enumerate() {
                    let at = if d_row { x * n + y } else { y * m + x } * size;
                    let mut le = [0u8; 8];
                    le[..size].copy_from_slice(&got[at..at + size]);
                    let bits = u64::from_le_bytes(le);
                    let got = match acc {
                        "f16" => f64::from(half::f16::from_bits(bits as u16)),
                        "f32" => f64::from(f32::from_bits(bits as u32)),
                        "f64" => f64::from_bits(bits),
                        _ => f64::from(bits as u32 as i32),
                    };
                    assert_eq!(got, w as f64, "{shape} {f} {la} {lb} {ld}: ({x}, {y})");
                }
            }
        }
    }
}
