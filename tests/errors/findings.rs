//! What the emulator finds wrong with a kernel: small kernels of the emulator's tests, each with one mistake.

use super::{Case, Page};
use silumin_emulator::{Arg, FindingKind, GlobalMemory, Launch, Module, Options, Schedule, Tracking};

pub fn show(page: &mut Page) {
    page.cases("Findings of registers, memory and barriers", memory());
    page.cases("Findings of copies and mbarriers", copies());
    page.cases("Findings of tensor memory", tensor_memory());
    page.text += "\nThese are some of the kinds of findings; `FindingKind` in the documentation of `silumin-emulator` lists all,\n";
    page.text += "and [Run any PTX](guide/emulate.md) says how to look for them.\n";
}

/// Words that two warps exchange.
const EXCHANGE: &str = "
    .shared .align 16 .b32 x[64];
    shl.b32 %r1, %tid, 2;
    mov.u32 %r2, x;
    add.u32 %r3, %r2, %r1;
    xor.b32 %r4, %r1, 128;
    add.u32 %r4, %r2, %r4;
    st.shared.u32 [%r3], %tid;
    bar.sync 0;
    ld.shared.u32 %r5, [%r4];
";

/// A bulk copy to shared memory, and one back.
const BULK: &str = include_str!("../../emulator/tests/common/bodies/bulk.ptx");

/// A word that goes from warp 0 to warp 4 by tensor memory.
const TENSOR: &str = include_str!("../../emulator/tests/common/bodies/tensor.ptx");

fn memory() -> Vec<Case> {
    vec![
        found(
            "A register that nothing wrote",
            FindingKind::UninitialisedRegister,
            32,
            "
    add.u32 %r0, %r17, 1;
    st.global.u32 [%out], %r0;
",
            "",
            "",
        ),
        found(
            "A load behind the end of a buffer",
            FindingKind::OutOfBounds,
            32,
            "
    ld.global.u32 %r0, [%out+4096];
",
            "",
            "",
        ),
        found(
            "A load of two words at an odd one",
            FindingKind::Misaligned,
            32,
            "
    ld.global.v2.u32 {%r0, %r1}, [%out+4];
",
            "",
            "",
        ),
        found(
            "Two warps without a barrier between them",
            FindingKind::RaceShared,
            64,
            EXCHANGE,
            "    bar.sync 0;\n",
            "",
        ),
        found(
            "A barrier that half of a warp reaches",
            FindingKind::Divergent,
            32,
            "
    setp.lt.u32 %p0, %tid, 16;
    @%p0 bar.sync 0;
    mov.u32 %r0, 1;
SPIN:
    setp.eq.u32 %p1, %r0, 1;
    @%p1 bar.sync 1;
    @%p1 bra SPIN;
",
            "",
            "",
        ),
    ]
}

fn copies() -> Vec<Case> {
    let wait = "    mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], 0;\n    @!%p1 bra WAIT;\n";
    let twice = wait.replace("], 0;", "], 1;");
    vec![
        found("Data of a copy that nobody waited for", FindingKind::MissingMbarrierWait, 64, BULK, wait, ""),
        found("A wait for the phase after the copy's", FindingKind::Deadlock, 64, BULK, wait, &twice),
        found(
            "A copy of fewer bytes than announced",
            FindingKind::TransactionMismatch,
            64,
            BULK,
            "[%r1], 64;",
            "[%r1], 80;",
        ),
        found(
            "Stored words that a copy reads, without a fence",
            FindingKind::MissingProxyFence,
            64,
            BULK,
            "    fence.proxy.async.shared::cta;\n",
            "",
        ),
        found(
            "An mbarrier that other warps use at once",
            FindingKind::MbarrierNotVisible,
            64,
            BULK,
            "    bar.sync 0; // initialised\n",
            "",
        ),
    ]
}

fn tensor_memory() -> Vec<Case> {
    vec![
        found(
            "Tensor memory without a fence before the barrier",
            FindingKind::MissingTcgen05Fence,
            160,
            TENSOR,
            "    tcgen05.fence::before_thread_sync;\n",
            "",
        ),
        found(
            "A load of tensor memory without its wait",
            FindingKind::MissingWait,
            160,
            TENSOR,
            "    tcgen05.wait::ld.sync.aligned;\n",
            "",
        ),
        found(
            "Tensor memory that is never freed",
            FindingKind::TmemLeak,
            160,
            TENSOR,
            "    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r3, 32;\n",
            "",
        ),
    ]
}

/// The finding of this kind in a kernel whose body has `to` in place of `from`.
fn found(what: &'static str, kind: FindingKind, threads: u32, body: &str, from: &str, to: &str) -> Case {
    assert!(body.contains(from), "{what}: no `{from}`");
    let text = format!(
        ".version 8.8\n.target sm_100a\n.address_size 64\n.visible .entry k(.param .u64 out)\n{{\n    .reg .pred %p<8>;\n    \
         .reg .b32 %r<32>;\n    .reg .b32 %tid;\n    .reg .b64 %out;\n    mov.u32 %tid, %tid.x;\n    ld.param.u64 %out, [out];\n\
         {}    ret;\n}}\n",
        body.trim_start_matches('\n').replacen(from, to, 1)
    );
    let module = Module::parse("k.ptx", &text).unwrap_or_else(|errors| panic!("{errors}"));
    let mut memory = GlobalMemory::new();
    let out = memory.alloc_from("out", &[1; 4096]);
    let args = vec![Arg::Pointer(memory.address(&out))];
    let launch =
        Launch { grid: [1, 1, 1], block: [threads, 1, 1], cluster: [1, 1, 1], dynamic_smem: 0, args };
    // What the schedule of a run hides is found by tracking.
    let mut seen = Vec::new();
    for schedule in [Schedule::Early, Schedule::Late] {
        let options = Options { schedule, tracking: Tracking::HappensBefore, ..Options::default() };
        let report = module.run("k", &launch, &memory, &options).unwrap();
        match report.findings.iter().find(|finding| finding.kind == kind) {
            Some(finding) => return Case { what: what.into(), kinds: Vec::new(), said: finding.to_string() },
            None => seen.extend(report.findings.iter().map(|finding| finding.kind)),
        }
    }
    panic!("{what}: {kind:?} is not among {seen:?}");
}
