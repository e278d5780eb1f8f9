//! The collector of the tensor core: what `use` and `lastuse` take is what `fill` kept.

use crate::common::{kernel, launch, parse, run};
use silumin_emulator::{Arg, FindingKind, GlobalMemory, Options, Report, Schedule, Tracking};

/// One warp: A of ones and of twos, B of ones and of twos, 128 x 64 x 16 in f16. `PRODUCTS` put their results into columns 0
/// and 64; lane 0's first word of each goes out.
const TEXT: &str = "
    .shared .align 1024 .b8 tiles[16384];
    .shared .align 8 .b64 done;
    .shared .align 4 .b32 place;
    .reg .pred %first;
    mov.u32 %r0, %tid.x;
    shl.b32 %r1, %r0, 2;
    mov.u32 %r2, tiles;
    add.u32 %r3, %r2, %r1;
    mov.u32 %r4, 0;
FILL:
    shr.u32 %r5, %r4, 5;
    and.b32 %r5, %r5, 1;
    setp.eq.u32 %p0, %r5, 0;
    selp.b32 %r6, 0x3c003c00, 0x40004000, %p0;
    st.shared.u32 [%r3], %r6;
    add.u32 %r3, %r3, 128;
    add.u32 %r4, %r4, 1;
    setp.lt.u32 %p0, %r4, 128;
    @%p0 bra FILL;
    setp.eq.u32 %first, %r0, 0;
    @%first mbarrier.init.shared::cta.b64 [done], 1;
    fence.proxy.async.shared::cta;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [place], 128;
    bar.sync 0;
    ld.shared.u32 %r10, [place];
    and.b32 %r2, %r2, 0x3ffff;
    shr.u32 %r2, %r2, 4;
    cvt.u64.u32 %rd0, %r2;
    // Tiles of 4096 bytes: core matrices of 128 bytes, two along K.
    or.b64 %rd10, %rd0, 0x0000401000080000;
    add.u64 %rd11, %rd10, 256;
    add.u64 %rd12, %rd10, 512;
    add.u64 %rd13, %rd10, 768;
    add.u32 %r11, %r10, 64;
    @!%first bra WAIT;
PRODUCTS
    tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [done];
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [done], 0;
    @!%p1 bra WAIT;
    tcgen05.fence::after_thread_sync;
    tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r20}, [%r10];
    tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r21}, [%r11];
    tcgen05.wait::ld.sync.aligned;
    @%first st.global.v2.u32 [%out], {%r20, %r21};
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r10, 128;
";

fn products(lines: &[&str], schedule: Schedule, tracking: Tracking) -> (Report, [f32; 2]) {
    let lines: Vec<String> = lines.iter().map(|l| format!("    {l}\n")).collect();
    let text = kernel(&TEXT.replace("PRODUCTS\n", &lines.concat()));
    let mut memory = GlobalMemory::new();
    let out = memory.alloc("out", 8);
    let l = launch(1, 32, vec![Arg::Pointer(memory.address(&out))]);
    let report = run(&parse(&text), &l, &memory, &Options { schedule, tracking, ..Options::default() });
    let bytes = memory.read(&out);
    let word = |i: usize| f32::from_bits(u32::from_le_bytes(bytes[4 * i..4 * i + 4].try_into().unwrap()));
    (report, [word(0), word(1)])
}

/// `d`, `a` and `b` are registers; the other half of the instruction descriptor says what `how` does.
fn mma(d: &str, a: &str, b: &str, usage: &str) -> String {
    let ws = if usage.starts_with("collector::b") { ".ws" } else { "" };
    let usage = if usage.is_empty() { String::new() } else { format!(".{usage}") };
    format!("tcgen05.mma{ws}.cta_group::1.kind::f16{usage} [{d}], {a}, {b}, 0x08100010, 0;")
}

const EARLY_AND_LATE: [Schedule; 2] = [Schedule::Early, Schedule::Late];

#[test]
fn what_is_kept_is_what_is_named() {
    for schedule in EARLY_AND_LATE {
        // A of ones, times B of ones and of twos.
        let lines = [
            mma("%r10", "%rd10", "%rd12", "collector::a::fill"),
            mma("%r10", "%rd10", "%rd12", "collector::a::use"),
            mma("%r11", "%rd10", "%rd13", "collector::a::lastuse"),
        ];
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let (report, got) = products(&lines, schedule, Tracking::Strict);
        assert!(report.is_clean(), "{}", report.findings[0]);
        assert_eq!(got, [16.0, 32.0]);
        // The same of B.
        let lines = [
            mma("%r10", "%rd10", "%rd12", "collector::b2::fill"),
            mma("%r11", "%rd11", "%rd12", "collector::b2::lastuse"),
        ];
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let (report, got) = products(&lines, schedule, Tracking::Strict);
        assert!(report.is_clean(), "{}", report.findings[0]);
        assert_eq!(got, [16.0, 32.0]);
    }
}

#[test]
fn another_operand_than_the_kept_one_is_found_and_the_kept_one_taken() {
    for schedule in EARLY_AND_LATE {
        for usage in ["use", "lastuse"] {
            let lines = [
                mma("%r10", "%rd10", "%rd12", "collector::a::fill"),
                mma("%r11", "%rd11", "%rd12", &format!("collector::a::{usage}")),
            ];
            let (report, got) = products(&[&lines[0], &lines[1]], schedule, Tracking::Off);
            let [f] = report.findings.as_slice() else { panic!("{:#?}", report.findings) };
            assert_eq!(f.kind, FindingKind::CollectorMisuse);
            assert!(
                f.text.contains(usage) && f.message.contains("differs in its address or descriptor"),
                "{f}"
            );
            assert_eq!(got, [16.0, 16.0]);
            let lines = [
                mma("%r10", "%rd10", "%rd12", "collector::b0::fill"),
                mma("%r11", "%rd10", "%rd13", &format!("collector::b0::{usage}")),
            ];
            let (report, got) = products(&[&lines[0], &lines[1]], schedule, Tracking::Off);
            assert_eq!(report.findings[0].kind, FindingKind::CollectorMisuse);
            assert_eq!(got, [16.0, 16.0]);
        }
        // Its sign is another: the kept one cannot be told from the named one by where it is.
        let fill = mma("%r10", "%rd10", "%rd12", "collector::a::fill");
        let negated =
            mma("%r11", "%rd10", "%rd12", "collector::a::lastuse").replace("0x08100010", "0x08102010");
        let (report, got) = products(&[&fill, &negated], schedule, Tracking::Off);
        let f = &report.findings[0];
        assert!(f.kind == FindingKind::CollectorMisuse && f.message.contains("sign"), "{f}");
        assert_eq!(got, [16.0, -16.0]);
    }
}

#[test]
fn a_use_without_a_fill_reads_memory_and_is_found_where_that_is_asked_for() {
    for between in ["", "collector::a::discard", "collector::a::lastuse"] {
        for first in ["", "collector::a::fill"] {
            if (first, between) == ("collector::a::fill", "collector::a::lastuse") {
                // Then the last one has let go of it, see below.
                continue;
            }
            let lines = [
                mma("%r10", "%rd10", "%rd12", first),
                mma("%r10", "%rd10", "%rd12", between),
                mma("%r11", "%rd11", "%rd12", "collector::a::lastuse"),
            ];
            let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
            for schedule in EARLY_AND_LATE {
                let (report, got) = products(&lines, schedule, Tracking::HappensBefore);
                assert!(report.is_clean(), "{}", report.findings[0]);
                assert_eq!(got, [16.0, 32.0]);
                let (report, _) = products(&lines, schedule, Tracking::Strict);
                assert_eq!(report.findings[0].kind, FindingKind::CollectorMisuse);
                assert!(report.findings[0].message.contains("nothing is kept"));
            }
        }
    }
    let lines = [
        mma("%r10", "%rd10", "%rd12", "collector::a::fill"),
        mma("%r10", "%rd10", "%rd12", "collector::a::lastuse"),
        mma("%r11", "%rd11", "%rd12", "collector::a::use"),
    ];
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let (report, got) = products(&lines, Schedule::Early, Tracking::Strict);
    assert!(report.findings[0].message.contains("nothing is kept"), "{}", report.findings[0]);
    assert_eq!(got, [16.0, 32.0]);
}
