//! Matrix products of numbers that tell rules of arithmetic apart against what an H200 made of them:
//! `corpus/hardware/matrices.txt`.
//!
//! A probe draws its operands from tables, ten of them, one for each question ([`QUESTIONS`]); along K two kinds of places
//! take turns, so that a huge factor can always meet a zero.

use crate::common::truth;

use silumin_emulator::{Arg, GlobalMemory, Launch, Module, Options};
use std::fmt::Write;

const LIST: &str = include_str!("corpus/hardware/matrices.txt");
/// Blocks of each question.
const BLOCKS: u32 = 32;
/// Words of each kind of place in a table of A or B, and of the one of C.
const WORDS: usize = 256;

/// Subjects of the tables, in their order.
const QUESTIONS: [&str; 10] = [
    "zero_a: whether zeros of A meeting large numbers align other products",
    "zero_a_c: the same, with nothing but C to align",
    "zero_b: zeros of B",
    "zero_b_c: the same, with nothing but C to align",
    "tiny: products about and below the least f32, C zero or subnormal",
    "specials: infinities, NaNs, zeros times infinity",
    "overflow: sums about the largest number of the accumulator",
    "cancel: sums that are zero, of either sign",
    "wide: all exponents",
    "subnormal: subnormal factors with large ones",
];

/// A format of elements: bits of its exponent and of its fraction.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Float {
    exponent: u32,
    fraction: u32,
    /// Bits that an element takes in a word; those below its fraction are ignored by the hardware.
    bits: u32,
    infinite: bool,
}

const BF16: Float = Float { exponent: 8, fraction: 7, bits: 16, infinite: true };
const F16: Float = Float { exponent: 5, fraction: 10, bits: 16, infinite: true };
const TF32: Float = Float { exponent: 8, fraction: 10, bits: 32, infinite: true };
const F32: Float = Float { exponent: 8, fraction: 23, bits: 32, infinite: true };
const F64: Float = Float { exponent: 11, fraction: 52, bits: 64, infinite: true };
const E4M3: Float = Float { exponent: 4, fraction: 3, bits: 8, infinite: false };
const E5M2: Float = Float { exponent: 5, fraction: 2, bits: 8, infinite: true };

/// Values that an element is drawn from.
#[derive(Clone, Copy)]
enum Pick {
    Zero,
    /// Numbers whose biased exponents are in a range of hundredths between that of 1.0 and the least (below 0) or the
    /// largest one (above 0).
    Range(i32, i32),
    Subnormal,
    Special,
    /// 1.0 or 2.0.
    One,
}

/// A generator that the list depends on: never to be changed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let x = self.0 ^ self.0 >> 33;
        let x = x.wrapping_mul(0xff51_afd7_ed55_8ccd);
        x ^ x >> 29
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

impl Float {
    fn code(self, pick: Pick, random: &mut Random) -> u64 {
        let one = (1 << (self.exponent - 1)) - 1;
        let last = (1 << self.exponent) - if self.infinite { 2 } else { 1 };
        let fraction = random.next() & ((1 << self.fraction) - 1);
        let sign = random.below(2);
        let (exponent, fraction) = match pick {
            Pick::Zero => (0, 0),
            Pick::Range(low, high) => {
                let scaled = |part: i32| match part {
                    ..0 => one + one * i64::from(part) / 100,
                    _ => one + (last - one) * i64::from(part) / 100,
                };
                let (low, high) = (scaled(low), scaled(high));
                (low + random.below((high - low + 1) as u64) as i64, fraction)
            }
            Pick::Subnormal => (0, fraction),
            Pick::Special if self.infinite => (last + 1, if random.below(2) == 0 { 0 } else { fraction }),
            Pick::Special => (last, (1 << self.fraction) - 1),
            Pick::One => (one + random.below(2) as i64, 0),
        };
        // Without infinities the last code of the largest exponent is NaN.
        let nan = !self.infinite && exponent == last && !matches!(pick, Pick::Special);
        let fraction = if nan { fraction.min((1 << self.fraction) - 2) } else { fraction };
        let code = sign << (self.exponent + self.fraction) | (exponent as u64) << self.fraction | fraction;
        let unused = self.bits - 1 - self.exponent - self.fraction;
        code << unused | random.next() & ((1 << unused) - 1)
    }

    /// Factors of products about 2^-145, or the least that the format has.
    fn tiny(self) -> Pick {
        if self.exponent == 8 { Pick::Range(-66, -50) } else { Pick::Range(-100, -60) }
    }
}

/// One element of A or B in a place of the first or the second kind, or of C (`operand` 2).
fn pick(question: usize, operand: usize, second: bool, format: Float, random: &mut Random) -> Pick {
    let dice = random.below(24);
    let large = match dice % 2 {
        0 => Pick::Range(-100, 100),
        _ => Pick::Range(80, 100),
    };
    let zero_operand = usize::from(question >= 2);
    match (question, operand) {
        (0 | 2, 2) => [Pick::Zero, Pick::Range(-40, 0), Pick::Range(-100, -60)][dice as usize % 3],
        (1 | 3, 2) => [Pick::Range(-100, 20), Pick::Range(-100, -80), Pick::Subnormal][dice as usize % 3],
        (0 | 2, _) if second => Pick::Range(-16, 0),
        (1 | 3, _) if second => Pick::Zero,
        (0..=3, _) if operand == zero_operand => Pick::Zero,
        (0..=3, _) => large,
        (4, 2) => [Pick::Zero, Pick::Subnormal, Pick::Range(-99, -96)][dice as usize % 3],
        (4, _) => format.tiny(),
        (5, 2) => {
            if dice == 0 {
                Pick::Special
            } else {
                Pick::Range(-20, 20)
            }
        }
        (5, _) => match dice {
            0 => Pick::Special,
            1..=3 => Pick::Zero,
            _ => Pick::Range(-20, 20),
        },
        (6, 2) => Pick::Range(95, 100),
        (6, _) if format.exponent == 8 || format.exponent == 11 => Pick::Range(44, 51),
        (6, _) => Pick::Range(40, 100),
        (7, 2) => {
            if dice < 16 {
                Pick::Zero
            } else {
                Pick::One
            }
        }
        (7, _) => {
            if dice < 16 {
                Pick::Zero
            } else {
                Pick::One
            }
        }
        (8, _) => {
            if dice < 3 {
                Pick::Zero
            } else {
                Pick::Range(-100, 100)
            }
        }
        (9, 0) if second => Pick::Range(20, 100),
        (9, 0) => Pick::Subnormal,
        (9, 1) if second => Pick::Subnormal,
        (9, 1) => Pick::Range(20, 100),
        _ => [Pick::Zero, Pick::Subnormal, Pick::Range(-100, 0)][dice as usize % 3],
    }
}

/// Elements of a word, drawn one by one.
fn word(question: usize, operand: usize, second: bool, format: Float, random: &mut Random) -> u64 {
    let width = format.bits.max(32);
    let mut out = 0;
    for at in (0..width).step_by(format.bits as usize) {
        let drawn = pick(question, operand, second, format, random);
        out |= format.code(drawn, random) << at;
    }
    out
}

/// An instruction: its opcode, formats, and where its operands are.
struct Form {
    line: &'static str,
    opcode: &'static str,
    /// Text after the operands: scales of `wgmma`, transposition.
    tail: &'static str,
    /// `mma.sync` and registers of A, B and C; `wgmma` with A in registers or in shared memory.
    kind: Kind,
    formats: [Float; 3],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Mma([usize; 3]),
    Registers,
    Shared,
}

impl Form {
    /// `wgmma.m64n16k16.f32.bf16.bf16 shared 1,1,0,0`, or `mma.m16n8k8.row.col.f32.f16.f16.f32 2,1,4`.
    fn parse(line: &'static str) -> Form {
        let parts: Vec<&str> = line.split(' ').collect();
        let opcode = parts[0];
        let named: Vec<&str> = opcode.split('.').collect();
        let format = |name: &str| match name {
            "bf16" => BF16,
            "f16" => F16,
            "tf32" => TF32,
            "f32" => F32,
            "f64" => F64,
            "e4m3" => E4M3,
            "e5m2" => E5M2,
            other => panic!("there is no format {other}"),
        };
        let last = named.len();
        let (kind, formats) = match parts[1] {
            "shared" | "registers" => {
                let kind = if parts[1] == "shared" { Kind::Shared } else { Kind::Registers };
                (kind, [named[last - 2], named[last - 1], named[last - 3]])
            }
            counts => {
                let counts: Vec<usize> = counts.split(',').map(|n| n.parse().expect("a number")).collect();
                let counts = <[usize; 3]>::try_from(counts).expect("three numbers");
                (Kind::Mma(counts), [named[last - 3], named[last - 2], named[last - 1]])
            }
        };
        let tail = parts.get(2).copied().unwrap_or("");
        Form { line, opcode, tail, kind, formats: formats.map(format) }
    }

    fn name(&self) -> String {
        let kind = match self.kind {
            Kind::Mma(_) => "",
            Kind::Registers => "-registers",
            Kind::Shared => "-shared",
        };
        let negated = if self.tail.contains('-') { "-negated" } else { "" };
        format!("matrix-{}{kind}{negated}", self.opcode)
    }

    fn is_double(&self) -> bool {
        self.formats[2] == F64
    }

    /// Bytes of a word of a table.
    fn word(&self) -> usize {
        if self.is_double() { 8 } else { 4 }
    }

    /// Words of D of a thread.
    fn words_of_d(&self) -> usize {
        match self.kind {
            Kind::Mma([_, _, d]) => d,
            _ if self.formats[2] == F16 => 4,
            _ => 8,
        }
    }

    /// Ten tables: A of both kinds of places, B of both, C.
    fn tables(&self) -> Vec<u8> {
        let mut random = Random(truth::hash(self.line.as_bytes()));
        let mut out = Vec::new();
        for question in 0..QUESTIONS.len() {
            for (operand, second) in [(0, false), (0, true), (1, false), (1, true), (2, false)] {
                for _ in 0..WORDS {
                    let word = word(question, operand, second, self.formats[operand], &mut random);
                    out.extend(&word.to_le_bytes()[..self.word()]);
                }
            }
        }
        out
    }

    /// Loads a word of a table: the first or second kind of place as the thread is even or odd.
    fn load(&self, to: &str, operand: usize, salt: usize) -> String {
        let (bytes, bits) = (self.word(), 8 * self.word());
        let start = [0, 2 * WORDS, 4 * WORDS][operand] * bytes;
        let mut text = format!(
            "mad.lo.u32 %h, %seed, 0x9e3779b1, {};\nshr.u32 %m, %h, 15;\nxor.b32 %h, %h, %m;\n\
             mul.lo.u32 %h, %h, 0x85ebca77;\nshr.u32 %m, %h, 13;\nxor.b32 %h, %h, %m;\nand.b32 %h, %h, {};\n",
            1_013_904_223u32.wrapping_add(77_777 * salt as u32),
            WORDS - 1
        );
        if operand < 2 {
            let _ = writeln!(text, "add.u32 %h, %h, %second;");
        }
        let _ = write!(
            text,
            "mul.wide.u32 %o, %h, {bytes};\nadd.u64 %o, %o, %in;\nld.global.b{bits} {to}, [%o+{start}];\n"
        );
        text
    }

    /// A kernel of 128 threads; block y of the grid is a question.
    fn kernel(&self) -> String {
        let (bytes, d) = (self.word(), self.words_of_d());
        let bits = 8 * bytes;
        let mut text = format!(
            ".version 9.0\n.target sm_90a\n.address_size 64\n\
             .visible .entry k(.param .u64 in, .param .u64 out) {{\n\
             .reg .pred %p; .reg .b32 %t, %seed, %h, %m, %x, %second, %at32, %w; .reg .b{bits} %a<16>, %b<16>, %d<16>;\n\
             .reg .b64 %in, %at, %o, %desc<2>;\n\
             .shared .align 128 .b8 left[2048]; .shared .align 128 .b8 right[512];\n\
             ld.param.u64 %in, [in]; ld.param.u64 %at, [out]; cvta.to.global.u64 %in, %in; cvta.to.global.u64 %at, %at;\n\
             mov.u32 %t, %tid.x; mov.u32 %x, %ctaid.y; mul.wide.u32 %o, %x, {}; add.u64 %in, %in, %o;\n\
             mov.u32 %seed, %ctaid.x; mad.lo.u32 %seed, %x, {BLOCKS}, %seed; mad.lo.u32 %seed, %seed, 128, %t;\n\
             and.b32 %second, %t, 1; mul.lo.u32 %second, %second, {WORDS};\n",
            5 * WORDS * bytes,
        );
        let list = |name: &str, count: usize| {
            let names: Vec<String> = (0..count).map(|i| format!("{name}{i}")).collect();
            format!("{{{}}}", names.join(", "))
        };
        for i in 0..d {
            text += &self.load(&format!("%d{i}"), 2, 100 + i);
        }
        match self.kind {
            Kind::Mma([a, b, _]) => {
                for i in 0..a {
                    text += &self.load(&format!("%a{i}"), 0, i);
                }
                for i in 0..b {
                    text += &self.load(&format!("%b{i}"), 1, 50 + i);
                }
                let shape = self.opcode.strip_prefix("mma.").expect("an opcode of mma");
                let (a, b, d) = (list("%a", a), list("%b", b), list("%d", d));
                let _ = writeln!(text, "mma.sync.aligned.{shape} {d}, {a}, {b}, {d};");
            }
            kind => {
                // Core matrices of 8 rows of 16 bytes, two of them along K.
                let _ = writeln!(text, "shl.b32 %x, %t, 2;\nmov.u32 %at32, left;\nadd.u32 %x, %x, %at32;");
                for i in 0..4 {
                    if kind == Kind::Registers {
                        text += &self.load(&format!("%a{i}"), 0, i);
                    } else {
                        text += &self.load("%w", 0, i);
                        let _ = writeln!(text, "st.shared.b32 [%x+{}], %w;", 512 * i);
                    }
                }
                text += &self.load("%w", 1, 50);
                let _ = writeln!(
                    text,
                    "shl.b32 %x, %t, 2;\nmov.u32 %at32, right;\nadd.u32 %x, %x, %at32;\nst.shared.b32 [%x], %w;\n\
                     fence.proxy.async.shared::cta;\nbar.sync 0;"
                );
                for (i, name) in ["left", "right"].iter().enumerate() {
                    let _ = writeln!(
                        text,
                        "mov.u32 %at32, {name};\nshr.u32 %at32, %at32, 4;\ncvt.u64.u32 %desc{i}, %at32;\n\
                         or.b64 %desc{i}, %desc{i}, 0x0000001000080000;"
                    );
                }
                let a = if kind == Kind::Registers { list("%a", 4) } else { "%desc0".to_owned() };
                let tail = self.tail.replace(',', ", ");
                let shape = self.opcode.strip_prefix("wgmma.").expect("an opcode of wgmma");
                // One block in eight leaves C out.
                let _ = writeln!(
                    text,
                    "mov.u32 %x, %ctaid.x;\nand.b32 %x, %x, 7;\nsetp.ne.u32 %p, %x, 7;\nwgmma.fence.sync.aligned;\n\
                     wgmma.mma_async.sync.aligned.{shape} {}, {a}, %desc1, %p, {tail};\n\
                     wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;",
                    list("%d", d)
                );
            }
        }
        let _ = writeln!(text, "mul.wide.u32 %o, %seed, {};\nadd.u64 %at, %at, %o;", d * bytes);
        for i in 0..d {
            let _ = writeln!(text, "st.global.b{bits} [%at+{}], %d{i};", i * bytes);
        }
        text + "ret;\n}\n"
    }

    /// Bytes of D of one question.
    fn bytes_of_d(&self) -> usize {
        BLOCKS as usize * 128 * self.words_of_d() * self.word()
    }
}

/// Writes the kernel, its launch file, its operands and its results to a folder that can be carried to a machine with a GPU.
fn export(root: &std::ffi::OsStr, form: &Form, tables: &[u8], results: &[u8]) {
    let folder = std::path::PathBuf::from(root).join(form.name());
    let launch = format!(
        "ptx = \"k.ptx\"\nkernel = \"k\"\ngrid = [{BLOCKS}, {}, 1]\nblock = [128, 1, 1]\n[buffers.in]\nfile = \"in.bin\"\n\
         [buffers.out]\nbytes = {}\n[[params]]\npointer = \"in\"\n[[params]]\npointer = \"out\"\n",
        QUESTIONS.len(),
        results.len(),
    );
    std::fs::create_dir_all(folder.join("expected")).expect("a folder for the export");
    for (name, bytes) in [
        ("launch.toml", launch.as_bytes()),
        ("k.ptx", form.kernel().as_bytes()),
        ("in.bin", tables),
        ("expected/out.bin", results),
    ] {
        std::fs::write(folder.join(name), bytes).expect("a file of the export");
    }
}

#[test]
fn matrix_products_are_those_of_an_h200() {
    let (mut wrong, mut count) = (Vec::new(), 0);
    for lines in LIST.lines().filter(|l| !l.starts_with('#')).collect::<Vec<_>>().chunks(2) {
        let &[line, hashes] = lines else { panic!("a form without hashes: {lines:?}") };
        let form = Form::parse(line);
        let module = Module::parse("matrix", &form.kernel()).unwrap_or_else(|e| panic!("{line}: {e}"));
        let mut memory = GlobalMemory::new();
        let tables = form.tables();
        let source = memory.alloc_from("in", &tables);
        let bytes = form.bytes_of_d();
        let out = memory.alloc("out", (bytes * QUESTIONS.len()) as u64);
        let args = vec![Arg::Pointer(memory.address(&source)), Arg::Pointer(memory.address(&out))];
        let grid = [BLOCKS, QUESTIONS.len() as u32, 1];
        let launch = Launch { grid, block: [128, 1, 1], cluster: [1, 1, 1], dynamic_smem: 0, args };
        let report = module.run("k", &launch, &memory, &Options::default()).expect("it runs");
        assert!(report.is_clean(), "{line}: {}", report.findings[0]);
        let results = memory.read(&out);
        if let Some(root) = std::env::var_os("SILUMIN_EXPORT") {
            export(&root, &form, &tables, &results);
        }
        let hashes: Vec<&str> = hashes.split_whitespace().collect();
        assert_eq!(hashes.len(), QUESTIONS.len(), "{line}");
        for ((question, want), part) in QUESTIONS.iter().zip(hashes).zip(results.chunks_exact(bytes)) {
            count += 1;
            let got = format!("{:016x}", truth::hash(part));
            if got != want {
                wrong.push(format!("{line}, {question}: {got}, should be {want}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(count >= 280, "{count} questions");
}
