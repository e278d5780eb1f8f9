//! Control flow, divergence, functions, and operations across lanes.

use crate::common::{finding, kernel, launch, parse, run, words};
use silumin_emulator::{Arg, FindingKind, GlobalMemory, Launch, Module, Options};

const STORE: &str = "
    mov.u32 %r60, %tid.x;
    mul.wide.u32 %rd30, %r60, 4;
    add.u64 %rd31, %out, %rd30;
    st.global.u32 [%rd31], %r0;";

/// Runs 32 threads that each leave a result in `%r0`.
fn lanes(code: &str) -> Vec<u32> {
    words(&format!("{code}\n{STORE}"), 32, 32)
}

#[test]
fn lanes_take_their_own_paths_and_meet_again() {
    // Collatz steps, a different number in each lane; then a warp-wide vote after the loop.
    let got = lanes(
        "
    mov.u32 %r1, %laneid;
    add.u32 %r1, %r1, 1;
    mov.u32 %r0, 0;
LOOP:
    setp.eq.u32 %p0, %r1, 1;
    @%p0 bra DONE;
    and.b32 %r2, %r1, 1;
    setp.eq.u32 %p1, %r2, 0;
    @%p1 bra EVEN;
    mad.lo.u32 %r1, %r1, 3, 1;
    bra NEXT;
EVEN:
    shr.u32 %r1, %r1, 1;
NEXT:
    add.u32 %r0, %r0, 1;
    bra LOOP;
DONE:
    vote.sync.ballot.b32 %r3, %p0, 0xffffffff;
    setp.ne.u32 %p2, %r3, 0xffffffff;
    @%p2 trap;",
    );
    for (i, g) in got.iter().enumerate() {
        let (mut n, mut steps) = (i + 1, 0);
        while n != 1 {
            n = if n % 2 == 0 { n / 2 } else { 3 * n + 1 };
            steps += 1;
        }
        assert_eq!(*g, steps, "lane {i}");
    }
}

#[test]
fn branch_tables_and_local_scopes() {
    let got = lanes(
        "
    mov.u32 %r1, %laneid;
    and.b32 %r2, %r1, 3;
    targets: .branchtargets L0, L1, L2, L3;
    brx.idx %r2, targets;
L0:
    mov.u32 %r0, 10;
    bra JOIN;
L1:
    {
        .reg .b32 %r0a;
        .reg .pred %q;
        mov.u32 %r0a, 20;
        setp.lt.u32 %q, %r1, 16;
        @%q bra LOW;
        add.u32 %r0a, %r0a, 1;
LOW:
        mov.u32 %r0, %r0a;
        bra JOIN;
    }
L2:
    mov.u32 %r0, 30;
    bra JOIN;
L3:
    mov.u32 %r0, 40;
JOIN:",
    );
    for (i, g) in got.iter().enumerate() {
        let want = [10, if i < 16 { 20 } else { 21 }, 30, 40][i % 4];
        assert_eq!(*g, want, "lane {i}");
    }
}

#[test]
fn device_functions_pass_parameters_in_memory_and_registers() {
    let text = r#".version 8.0
.target sm_90a
.address_size 64
.func (.param .b32 result) weighted(.param .align 4 .b8 pair[8], .param .b32 weight)
{
    .reg .b32 %r<5>;
    ld.param.u32 %r0, [pair];
    ld.param.u32 %r1, [pair+4];
    ld.param.u32 %r2, [weight];
    mad.lo.u32 %r3, %r1, %r2, %r0;
    st.param.b32 [result], %r3;
    ret;
}
.func (.reg .u32 d) twice(.reg .u32 a)
{
    add.u32 d, a, a;
    ret;
}
.visible .entry k(.param .u64 out)
{
    .reg .b32 %r<6>;
    .reg .b64 %rd<4>;
    .reg .pred %p;
    ld.param.u64 %rd0, [out];
    cvta.to.global.u64 %rd0, %rd0;
    mov.u32 %r0, %tid.x;
    setp.lt.u32 %p, %r0, 8;
    mov.u32 %r4, 0;
    @%p bra SKIP;
    {
        .param .align 4 .b8 a[8];
        .param .b32 b;
        .param .b32 ret0;
        st.param.b32 [a], %r0;
        st.param.b32 [a+4], 100;
        st.param.b32 [b], 3;
        call.uni (ret0), weighted, (a, b);
        ld.param.b32 %r1, [ret0];
    }
    call (%r4), twice, (%r1);
SKIP:
    mul.wide.u32 %rd1, %r0, 4;
    add.u64 %rd2, %rd0, %rd1;
    st.global.u32 [%rd2], %r4;
    ret;
}
"#;
    let mut memory = GlobalMemory::new();
    let out = memory.alloc("out", 128);
    let l = launch(1, 32, vec![Arg::Pointer(memory.address(&out))]);
    let report = run(&parse(text), &l, &memory, &Options::default());
    assert!(report.is_clean(), "{}", report.findings[0]);
    for (i, c) in memory.read(&out).chunks(4).enumerate() {
        let want = if i < 8 { 0 } else { 2 * (i as u32 + 300) };
        assert_eq!(u32::from_le_bytes(c.try_into().unwrap()), want, "lane {i}");
    }
}

#[test]
fn recursion_is_refused() {
    let text = r#".version 8.0
.target sm_90a
.address_size 64
.func f() { call f; ret; }
.visible .entry k() { call f; ret; }
"#;
    let e = Module::parse("r.ptx", text).unwrap_err().to_string();
    assert!(e.contains("function `f` is recursive"), "{e}");
}

#[test]
fn shuffles_votes_matches_and_reductions() {
    let l: Vec<u32> = (0..32).collect();
    let id = "mov.u32 %r1, %laneid;";
    let down = lanes(&format!("{id} shfl.sync.down.b32 %r0|%p0, %r1, 4, 31, 0xffffffff;"));
    assert_eq!(down, l.iter().map(|&i| if i < 28 { i + 4 } else { i }).collect::<Vec<_>>());
    let bfly = lanes(&format!("{id} shfl.sync.bfly.b32 %r0, %r1, 9, 31, 0xffffffff;"));
    assert_eq!(bfly, l.iter().map(|&i| i ^ 9).collect::<Vec<_>>());
    let up = lanes(&format!("{id} shfl.sync.up.b32 %r0, %r1, 1, 0, 0xffffffff;"));
    assert_eq!(up, l.iter().map(|&i| i.saturating_sub(1)).collect::<Vec<_>>());
    // Segments of 8 lanes.
    let idx = lanes(&format!("{id} shfl.sync.idx.b32 %r0, %r1, 3, 0x181f, 0xffffffff;"));
    assert_eq!(idx, l.iter().map(|&i| i / 8 * 8 + 3).collect::<Vec<_>>());
    let sum = lanes(&format!("{id} redux.sync.add.u32 %r0, %r1, 0xffffffff;"));
    assert_eq!(sum, vec![496; 32]);
    let same = lanes(&format!("{id} and.b32 %r2, %r1, 3; match.any.sync.b32 %r0, %r2, 0xffffffff;"));
    assert_eq!(same, l.iter().map(|&i| 0x1111_1111 << (i % 4)).collect::<Vec<_>>());
    let elected = lanes("elect.sync %r1|%p0, 0xffffffff; selp.u32 %r0, 7, 0, %p0;");
    assert_eq!(elected[0], 7);
    assert_eq!(elected[1..], [0; 31]);
}

#[test]
fn special_registers_of_a_three_dimensional_launch() {
    let text = kernel(
        "
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, %tid.y;
    mov.u32 %r2, %tid.z;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %ntid.y;
    mad.lo.u32 %r5, %r2, %r4, %r1;
    mad.lo.u32 %r5, %r5, %r3, %r0;
    mov.u32 %r6, %ctaid.x;
    mov.u32 %r7, %ctaid.y;
    mov.u32 %r8, %nctaid.x;
    mad.lo.u32 %r6, %r7, %r8, %r6;
    mad.lo.u32 %r7, %r6, 60, %r5;
    mul.wide.u32 %rd0, %r7, 4;
    add.u64 %rd1, %out, %rd0;
    mov.u32 %r9, %warpid;
    shl.b32 %r9, %r9, 5;
    mov.u32 %r10, %laneid;
    add.u32 %r9, %r9, %r10;
    mad.lo.u32 %r9, %r6, 1000, %r9;
    st.global.u32 [%rd1], %r9;",
    );
    let mut memory = GlobalMemory::new();
    let out = memory.alloc("out", 4 * 60 * 6);
    let args = vec![Arg::Pointer(memory.address(&out))];
    let l = Launch { grid: [3, 2, 1], block: [5, 4, 3], cluster: [1, 1, 1], dynamic_smem: 0, args };
    let report = run(&parse(&text), &l, &memory, &Options::default());
    assert!(report.is_clean(), "{}", report.findings[0]);
    for (i, c) in memory.read(&out).chunks(4).enumerate() {
        let want = (i / 60 * 1000 + i % 60) as u32;
        assert_eq!(u32::from_le_bytes(c.try_into().unwrap()), want, "thread {i}");
    }
}

#[test]
fn a_divergent_aligned_instruction_is_found() {
    let text = finding(
        "
    mov.u32 %r1, %laneid;
    setp.lt.u32 %p0, %r1, 16;
    @%p0 bar.sync 0;
    mov.u32 %r0, 1;
SPIN:
    setp.eq.u32 %p1, %r0, 1;
    @%p1 bar.sync 1;
    @%p1 bra SPIN;",
        32,
        FindingKind::Divergent,
    );
    assert!(text.contains("must execute together"), "{text}");
}

#[test]
fn a_kernel_that_spins_for_ever_meets_the_limit() {
    let module = parse(&kernel("SPIN:\n    bra SPIN;"));
    let l = launch(1, 32, vec![Arg::U64(0)]);
    let options = Options { instruction_limit: 2_000_000, ..Options::default() };
    let report = run(&module, &l, &GlobalMemory::new(), &options);
    assert_eq!(report.findings[0].kind, FindingKind::InstructionLimit);
    assert_eq!(report.findings[0].text, "bra SPIN;");
}

#[test]
fn clusters_that_wait_for_each_other_through_global_memory_take_turns() {
    // CTA 0 waits for a flag of the last CTA, which starts last, on one host thread.
    let text = kernel(
        "
    mov.u32 %r1, %ctaid.x;
    setp.ne.u32 %p0, %r1, 0;
    @%p0 bra SET;
WAIT:
    ld.acquire.gpu.global.u32 %r2, [%out];
    setp.ne.u32 %p1, %r2, 4;
    @%p1 bra WAIT;
    st.global.u32 [%out+4], 99;
    ret;
SET:
    atom.release.gpu.global.add.u32 %r3, [%out], 1;",
    );
    let mut memory = GlobalMemory::new();
    let out = memory.alloc_from("out", &[0; 8]);
    let l = launch(5, 1, vec![Arg::Pointer(memory.address(&out))]);
    let report = run(&parse(&text), &l, &memory, &Options { threads: 1, ..Options::default() });
    assert!(report.is_clean(), "{}", report.findings[0]);
    assert_eq!(memory.read(&out), [4, 0, 0, 0, 99, 0, 0, 0]);
}

#[test]
fn lanes_that_contend_for_a_lock_all_get_it() {
    // The holder of the lock stands further on than the lanes that spin for it.
    let got = words(
        "
    .shared .align 4 .b32 lock;
    .shared .align 4 .b32 total;
    mov.u32 %r1, %laneid;
    setp.eq.u32 %p0, %r1, 0;
    @%p0 st.shared.u32 [lock], 0;
    @%p0 st.shared.u32 [total], 0;
    bar.sync 0;
SPIN:
    atom.shared.cas.b32 %r2, [lock], 0, 1;
    setp.ne.u32 %p1, %r2, 0;
    @%p1 bra SPIN;
    ld.shared.u32 %r3, [total];
    add.u32 %r3, %r3, %r1;
    st.shared.u32 [total], %r3;
    atom.shared.exch.b32 %r4, [lock], 0;
    bar.sync 0;
    ld.shared.u32 %r5, [total];
    @%p0 st.global.u32 [%out], %r5;",
        32,
        1,
    );
    assert_eq!(got, [496]);
}

#[test]
fn cluster_launch_control_hands_out_every_block_once() {
    let text = kernel(
        "
    .shared .align 16 .b8 answer[16];
    .shared .align 8 .b64 bar;
    .reg .b128 %q;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r9, 0;
    mbarrier.init.shared::cta.b64 [bar], 1;
NEXT:
    mul.wide.u32 %rd0, %r1, 4;
    add.u64 %rd1, %out, %rd0;
    red.global.add.u32 [%rd1], 1;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], 16;
    clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [answer], [bar];
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p0, [bar], %r9;
    @!%p0 bra WAIT;
    xor.b32 %r9, %r9, 1;
    ld.shared.b128 %q, [answer];
    clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p1, %q;
    @!%p1 bra DONE;
    clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r1, %q;
    bra NEXT;
DONE:",
    );
    for threads in [1, 3] {
        let mut memory = GlobalMemory::new();
        let out = memory.alloc_from("out", &[0; 4 * 50]);
        let l = launch(50, 1, vec![Arg::Pointer(memory.address(&out))]);
        let report = run(&parse(&text), &l, &memory, &Options { threads, ..Options::default() });
        assert!(report.is_clean(), "{}", report.findings[0]);
        assert_eq!(memory.read(&out), 1u32.to_le_bytes().repeat(50));
    }
}

#[test]
fn lanes_with_different_member_masks_meet_apart() {
    // Halves of the warp at one instruction: each shuffles and votes among its own lanes.
    let got = lanes(
        "
    // As CUDA's headers write it, without a space.
    .reg.b32 mask, %a;
    mov.u32 %r1, %laneid;
    setp.lt.u32 %p0, %r1, 16;
    selp.b32 mask, 0xffff, 0xffff0000, %p0;
    shfl.sync.bfly.b32 %a, %r1, 1, 0x101f, mask;
    vote.sync.ballot.b32 %r3, %p0, mask;
    add.u32 %r0, %r3, %a;",
    );
    let want: Vec<u32> = (0..32).map(|i| if i < 16 { 0xffff + (i ^ 1) } else { i ^ 1 }).collect();
    assert_eq!(got, want);
    // The lower half's shuffle completes although lanes of the upper half are still on their way, and
    // must: the last lanes wait for what lane 0 does afterwards.
    let got = lanes(
        "
    .shared .b32 flag;
    mov.u32 %r1, %laneid;
    mov.u32 %r2, 0;
    st.volatile.shared.u32 [flag], %r2;
    bar.warp.sync 0xffffffff;
    setp.lt.u32 %p0, %r1, 16;
    selp.b32 %r4, 0xffff, 0xffff0000, %p0;
    setp.lt.u32 %p1, %r1, 24;
    @%p1 bra MEET;
SPIN:
    ld.volatile.shared.u32 %r2, [flag];
    setp.eq.u32 %p2, %r2, 0;
    @%p2 bra SPIN;
MEET:
    shfl.sync.idx.b32 %r0, %r1, 0, 0x101f, %r4;
    setp.ne.u32 %p3, %r1, 0;
    @%p3 bra DONE;
    mov.u32 %r2, 1;
    st.volatile.shared.u32 [flag], %r2;
DONE:",
    );
    assert_eq!(got, [[0; 16], [16; 16]].concat());
    // A mask that names lanes which have gone to the barrier.
    finding(
        "
    mov.u32 %r1, %laneid;
    setp.lt.u32 %p0, %r1, 16;
    selp.b32 %r4, 0xffff, 0xffffffff, %p0;
    shfl.sync.idx.b32 %r0, %r1, 0, 0x101f, %r4;
    bar.sync 0;",
        32,
        FindingKind::Divergent,
    );
}

#[test]
fn undefined_local_memory_counts_where_something_is_computed_from_it() {
    let local = "
    .local .align 16 .b8 l[32];
    mov.u32 %r1, %laneid;
    st.local.b32 [l], %r1;
    st.local.b16 [l+6], %h0;
    ld.local.v4.b32 {%r2, %r3, %r4, %r5}, [l];
    setp.lt.u32 %p0, %r1, 64;
    st.local.v2.b32 [l+16], {%r4, %r2};
    ld.local.v2.b32 {%r6, %r7}, [l+16];
    selp.b32 %r0, %r7, %r6, %p0;";
    let defined = format!("mov.b16 %h0, 7;{local}");
    assert_eq!(lanes(&defined), (0..32).collect::<Vec<u32>>());
    let used = format!("{defined}\nadd.u32 %r0, %r6, 1;\nst.global.b32 [%out], %r0;");
    let used = finding(&used, 32, FindingKind::UninitialisedLocal);
    assert!(used.contains("%r6"), "{used}");
    finding(&format!("{defined}\nst.global.b32 [%out], %r4;"), 32, FindingKind::UninitialisedLocal);
}
