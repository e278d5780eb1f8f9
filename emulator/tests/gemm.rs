//! A warp-specialised NVFP4 GEMM with TMA, mbarriers and `tcgen05`, whole and damaged.

use crate::common::nvfp4_gemm;

use crate::common::nvfp4_gemm::{Codes, TEXT};
use crate::common::{Random, parse, run};
use silumin_emulator::{
    Arg, Arithmetic, Buffer, Finding, FindingKind, GlobalMemory, Launch, Options, Report, Schedule,
    TmemLoads, Tracking,
};

const E2M1: [f64; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

fn e2m1(code: u8) -> f64 {
    let v = E2M1[(code & 7) as usize];
    if code & 8 != 0 { -v } else { v }
}

fn ue4m3(code: u8) -> f64 {
    let (e, m) = (code >> 3 & 15, f64::from(code & 7));
    if e == 0 { m / 512.0 } else { (1.0 + m / 8.0) * 2f64.powi(i32::from(e) - 7) }
}

/// Byte of the scale factor of `row` and 16-wide block `k` in the 128 x 4 block layout.
fn scale_index(row: usize, k: usize, k_blocks: usize) -> usize {
    (row / 128 * (k_blocks / 4) + k / 4) * 512 + row % 32 * 16 + row % 128 / 32 * 4 + k % 4
}

struct Operand {
    codes: Vec<u8>,
    scales: Vec<u8>,
    k: usize,
}

impl Operand {
    fn random(rows: usize, k: usize, seed: u64) -> Self {
        let mut r = Random(seed);
        let codes = (0..rows * k / 2).map(|_| r.next() as u8).collect();
        // Finite scales of every exponent that keeps sums well inside f32.
        let scales = (0..rows * k / 16).map(|_| (r.next() % 0x60) as u8).collect();
        Operand { codes, scales, k }
    }

    fn value(&self, row: usize, k: usize) -> f64 {
        let byte = self.codes[(row * self.k + k) / 2];
        let code = if k.is_multiple_of(2) { byte & 15 } else { byte >> 4 };
        e2m1(code) * ue4m3(self.scales[scale_index(row, k / 16, self.k / 16)])
    }
}

impl Operand {
    fn bytes(&self) -> Codes<'_> {
        Codes { elements: &self.codes, scales: &self.scales }
    }

    fn decode(&self, rows: usize) -> Vec<Vec<f64>> {
        (0..rows).map(|r| (0..self.k).map(|k| self.value(r, k)).collect()).collect()
    }
}

struct Problem {
    m: usize,
    n: usize,
    a: Operand,
    b: Operand,
    memory: GlobalMemory,
    result: Buffer,
    launch: Launch,
}

fn problem(m: usize, n: usize, k: usize) -> Problem {
    let (a, b) = (Operand::random(m, k, 1), Operand::random(n, k, 2));
    let mut memory = GlobalMemory::new();
    let (launch, result) = nvfp4_gemm::launch(&mut memory, [m, n, k], &a.bytes(), &b.bytes())
        .expect("the tensor maps are legal");
    Problem { m, n, a, b, memory, result, launch }
}

impl Problem {
    fn run(&self, text: &str, options: &Options<'_>) -> Report {
        run(&parse(text), &self.launch, &self.memory, options)
    }

    /// Largest error relative to the sum of magnitudes, against f64.
    fn error(&self) -> f64 {
        let bytes = self.memory.read(&self.result);
        let mut worst = 0f64;
        let (a, b) = (self.a.decode(self.m), self.b.decode(self.n));
        for (row, x) in a.iter().enumerate() {
            for (col, y) in b.iter().enumerate() {
                let (mut exact, mut size) = (0.0, 0.0);
                for (x, y) in x.iter().zip(y) {
                    let p = x * y;
                    exact += p;
                    size += p.abs();
                }
                let at = 4 * (row * self.n + col);
                let got = f64::from(f32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()));
                worst = worst.max((got - exact).abs() / size.max(1e-30));
            }
        }
        worst
    }
}

fn only(report: &Report, kind: FindingKind) -> &Finding {
    match report.findings.iter().find(|f| f.kind == kind) {
        Some(f) => f,
        None => panic!("expected {kind:?}, found {:#?}", report.findings),
    }
}

/// Removes or alters the `n`-th occurrence of a text.
fn damage(from: &str, to: &str) -> String {
    assert!(TEXT.contains(from), "the kernel has no `{from}`");
    TEXT.replacen(from, to, 1)
}

#[test]
fn computes_the_product_under_every_schedule() {
    let starved = (0..6).map(|warp| Schedule::Starve { warp, seed: 1 });
    for schedule in
        [Schedule::Early, Schedule::Late, Schedule::Random(1), Schedule::Random(2)].into_iter().chain(starved)
    {
        let p = problem(128, 128, 1536);
        let report = p.run(TEXT, &Options { schedule, tracking: Tracking::Strict, ..Options::default() });
        assert!(report.is_clean(), "{schedule:?}: {}", report.findings[0]);
        assert!(p.error() < 1e-6, "{schedule:?}: error {}", p.error());
        assert_eq!(p.memory.unwritten(&p.result), 0);
        let macs: u64 = report.stats.mma_macs.values().sum();
        assert_eq!(macs, 128 * 128 * 1536);
        // A, B and their scale factors.
        assert_eq!(report.stats.tma_read, 2 * 128 * 1536 / 2 + 2 * 128 * 1536 / 16);
        assert_eq!(report.stats.global_written, 4 * 128 * 128);
    }
}

#[test]
fn computes_several_tiles_with_plain_arithmetic_and_progress() {
    let p = problem(256, 384, 512);
    let seen = std::sync::atomic::AtomicU64::new(0);
    let progress = |done: u64, total: u64| {
        assert_eq!(total, 6);
        seen.fetch_max(done, std::sync::atomic::Ordering::Relaxed);
    };
    let options = Options {
        mma_arithmetic: Arithmetic::F32,
        progress: Some(&progress),
        threads: 2,
        ..Options::default()
    };
    let report = p.run(TEXT, &options);
    assert!(report.is_clean(), "{}", report.findings[0]);
    assert!(p.error() < 1e-6, "error {}", p.error());
    assert_eq!(seen.into_inner(), 6);
}

#[test]
fn a_missing_commit_is_a_deadlock_that_names_the_barrier() {
    let text = damage(
        "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r5];\n    add.u32 %k",
        "add.u32 %k",
    );
    let p = problem(128, 128, 1536);
    let report = p.run(&text, &Options::default());
    let f = only(&report, FindingKind::Deadlock);
    // The TMA warp waits for an empty slot: the first `empty` barrier lies 32 bytes into shared memory.
    assert!(f.message.contains("parity 0 of the mbarrier at shared address 0x420"), "{f}");
    assert!(f.message.contains("1 of 1 arrivals pending and a transaction count of 0"), "{f}");
    assert!(f.message.contains("warp 4"), "{f}");
    assert!(f.text.contains("mbarrier.try_wait"), "{f}");
}

#[test]
fn a_wrong_byte_count_is_named_and_shown() {
    let text = damage("[%bar], 36864;", "[%bar], 36880;");
    let report = problem(128, 128, 256).run(&text, &Options::default());
    let f = only(&report, FindingKind::TransactionMismatch);
    assert!(f.message.contains("0 of 1 arrivals pending and a transaction count of 16"), "{f}");
}

#[test]
fn a_missing_wait_is_found() {
    // The MMA warp does not wait for the bytes: under the late schedule nothing has arrived.
    let text = damage(
        "    mbarrier.try_wait.parity.shared::cta.b64 %p4, [%bar], %phase;\n    @!%p4 bra MMA_WAIT;\n",
        "",
    );
    let report =
        problem(128, 128, 512).run(&text, &Options { schedule: Schedule::Random(3), ..Options::default() });
    // tcgen05.cp passes on what nothing wrote; the product is what it has an effect on.
    only(&report, FindingKind::UninitialisedTmem);
    // The epilogue does not wait for tcgen05.ld.
    let text = damage("    tcgen05.wait::ld.sync.aligned;\n", "");
    let report = problem(128, 128, 512).run(&text, &Options::default());
    let f = only(&report, FindingKind::MissingWait);
    assert!(f.text.starts_with("st.global.v4.f32"), "{f}");
}

#[test]
fn missing_order_is_found_whatever_the_schedule() {
    let wait = |name: &str, bar: &str, parity: &str| {
        format!(
            "{name}:\n    mbarrier.try_wait.parity.shared::cta.b64 %p4, [{bar}], {parity};\n    @!%p4 bra {name};\n"
        )
    };
    let late_mma = Schedule::Starve { warp: 5, seed: 1 };
    let cases = [
        // The MMA warp does not wait for the bytes, which are there when it comes last.
        (wait("MMA_WAIT", "%bar", "%phase"), late_mma, FindingKind::MissingMbarrierWait),
        // The TMA warp does not wait until a slot is free.
        (wait("LOAD_WAIT", "%r5", "%phase"), Schedule::Early, FindingKind::SlotOverwritten),
        // The epilogue does not wait for the product, which has not begun.
        (wait("EPILOGUE_WAIT", "%r5", "0"), Schedule::Early, FindingKind::UninitialisedTmem),
    ];
    for (from, witness, kind) in &cases {
        let text = damage(from, "");
        for schedule in [*witness, Schedule::Early, Schedule::Late, Schedule::Random(1)] {
            let p = problem(128, 128, 2048);
            let options = Options { schedule, tracking: Tracking::HappensBefore, ..Options::default() };
            let report = p.run(&text, &options);
            assert!(!report.is_clean(), "{schedule:?}: {from}");
            if schedule == *witness {
                only(&report, *kind);
            }
        }
    }
}

#[test]
fn a_missing_fence_after_a_commit_is_found_by_strict_tracking_only() {
    // The epilogue waits, but does not order its loads after the wait.
    let text = damage("bra EPILOGUE_WAIT;\n    tcgen05.fence::after_thread_sync;\n", "bra EPILOGUE_WAIT;\n");
    for schedule in [Schedule::Early, Schedule::Late, Schedule::Random(1)] {
        for (tracking, found) in [(Tracking::HappensBefore, false), (Tracking::Strict, true)] {
            let p = problem(128, 128, 2048);
            let report = p.run(&text, &Options { schedule, tracking, ..Options::default() });
            if found {
                only(&report, FindingKind::MissingTcgen05Fence);
            } else {
                assert!(report.is_clean(), "{schedule:?}: {}", report.findings[0]);
            }
        }
    }
}

#[test]
fn tensor_memory_misuse_is_found() {
    let text = damage("    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %tmem, 256;\n", "");
    let report = problem(128, 128, 256).run(&text, &Options::default());
    let f = only(&report, FindingKind::TmemLeak);
    assert!(f.message.contains("256 columns"), "{f}");
    // Half of the columns that the kernel uses.
    let text =
        TEXT.replace("[tmem_address], 256;", "[tmem_address], 128;").replace("%tmem, 256;", "%tmem, 128;");
    let report = problem(128, 128, 256).run(&text, &Options::default());
    let f = only(&report, FindingKind::TmemUnallocated);
    assert!(f.text.starts_with("tcgen05.cp"), "{f}");
    // Every epilogue warp reads the lanes of warp 1.
    let text = damage("shl.b32 %r12, %r10, 16;", "mov.u32 %r12, 0x200000;");
    let report = problem(128, 128, 256).run(&text, &Options::default());
    only(&report, FindingKind::TmemWrongWarp);
    // Without scale factors in place.
    let text = TEXT.replace("tcgen05.cp.cta_group::1.32x128b.warpx4 [%tmem+128], %desc_sfa;", "");
    let report = problem(128, 128, 256).run(&text, &Options::default());
    let f = only(&report, FindingKind::UninitialisedTmem);
    assert!(f.text.starts_with("tcgen05.mma"), "{f}");
}

#[test]
fn illegal_descriptors_are_found() {
    let text = TEXT.replace("0x08200480", "0x08200481");
    let report = problem(128, 128, 256).run(&text, &Options::default());
    only(&report, FindingKind::IllegalInstructionDescriptor);
    // Swizzle mode 3 does not exist.
    let text = damage("0x4000404000010000", "0x6000404000010000");
    let report = problem(128, 128, 256).run(&text, &Options::default());
    only(&report, FindingKind::IllegalDescriptor);
    let mut p = problem(128, 128, 256);
    p.launch.args[0] = Arg::TensorMap([0; 128]);
    only(&p.run(TEXT, &Options::default()), FindingKind::IllegalTensorMap);
}

#[test]
fn a_store_past_the_result_names_the_buffer() {
    let p = problem(128, 128, 256);
    let mut launch = p.launch.clone();
    launch.args[5] = Arg::U32(256);
    let report = run(&parse(TEXT), &launch, &p.memory, &Options::default());
    let f = only(&report, FindingKind::OutOfBounds);
    assert!(f.message.contains("buffer `result`, which has 65536 bytes"), "{f}");
}

#[test]
fn results_of_tcgen05_ld_can_be_packed_before_the_wait_and_read_at_once_on_request() {
    // As compilers place it: a copy of a register that is not valid yet.
    let moved = TEXT.replace(
        "    tcgen05.wait::ld.sync.aligned;\n",
        "    mov.b64 %rd5, {%f0, %f1};\n    tcgen05.wait::ld.sync.aligned;\n    mov.b64 {%f0, %f1}, %rd5;\n",
    );
    for schedule in [Schedule::Early, Schedule::Late] {
        let p = problem(128, 128, 256);
        let report = p.run(&moved, &Options { schedule, ..Options::default() });
        assert!(report.is_clean(), "{schedule:?}: {}", report.findings[0]);
        assert!(p.error() < 1e-6, "error {}", p.error());
    }
    let none = damage("    tcgen05.wait::ld.sync.aligned;\n", "");
    let p = problem(128, 128, 256);
    let report = p.run(&none, &Options { tmem_loads: TmemLoads::Interlocked, ..Options::default() });
    assert!(report.is_clean(), "{}", report.findings[0]);
    assert!(p.error() < 1e-6, "error {}", p.error());
}

#[test]
fn a_kernel_without_any_one_of_its_lines_ends_without_a_panic() {
    let lines: Vec<&str> = TEXT.lines().collect();
    let first = lines.iter().position(|l| l.contains("mov.u32 %r0, %tid.x;")).unwrap();
    let p = problem(128, 128, 512);
    let mut caught = 0;
    let mut tried = 0;
    for (i, line) in lines.iter().enumerate().skip(first) {
        if !line.trim_end().ends_with(';') {
            continue;
        }
        tried += 1;
        let text: String =
            lines.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, l)| format!("{l}\n")).collect();
        let Ok(module) = silumin_emulator::Module::parse("mutant.ptx", &text) else {
            caught += 1;
            continue;
        };
        p.memory.fill(&p.result, 0xff);
        let options = Options {
            schedule: Schedule::Random(i as u64),
            instruction_limit: 300_000,
            ..Options::default()
        };
        let report = run(&module, &p.launch, &p.memory, &options);
        caught += usize::from(!report.is_clean());
    }
    // Many lines only change values, which the result would show; most others are found.
    assert!(caught * 2 > tried, "{caught} of {tried}");
}

#[test]
fn sums_over_operands_in_tensor_memory_are_found() {
    let tracked = Options { tracking: Tracking::Strict, ..Options::default() };
    // N = 136: the sums cover the scale factors of A that the same product reads.
    let wide = damage("0x08200480", "0x08220480");
    let report = problem(128, 128, 256).run(&wide, &tracked);
    let f = only(&report, FindingKind::TmemOperandOverwritten);
    assert!(f.message.contains("columns 0 to 135, covers column 128 of scale factors of A"), "{f}");
    // A product of its own over the columns of the next one's scale factors, before they are copied there: legal.
    let copy = "    tcgen05.cp.cta_group::1.32x128b.warpx4 [%tmem+132], %desc_sfa;\n";
    let product = "    tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.scale_vec::4X [%tmem+132], %desc_a, %desc_b, 0x08020480, [%sfa], [%sfb], 0;\n";
    let legal = damage(copy, &[product, copy].concat());
    for schedule in [Schedule::Early, Schedule::Late, Schedule::Random(3)] {
        let p = problem(128, 128, 256);
        let report = p.run(&legal, &Options { schedule, ..tracked });
        assert!(report.is_clean(), "{schedule:?}: {}", report.findings[0]);
        assert!(p.error() < 1e-6, "error {}", p.error());
    }
    // After it, or with no copy at all, the next product takes sums for scale factors.
    for text in [damage(copy, &[copy, product].concat()), damage(copy, product)] {
        let report = problem(128, 128, 256).run(&text, &tracked);
        let f = only(&report, FindingKind::TmemOperandOverwritten);
        assert!(f.message.contains("scale factors of A of tcgen05.mma: lane 0, column 132"), "{f}");
    }
}
