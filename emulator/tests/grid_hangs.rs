//! Clusters that wait for each other in global memory: split-K whose sums are waited for by who runs first.

use crate::common::{kernel, launch, parse, run};
use silumin_emulator::{Arg, FindingKind, GlobalMemory, Options, Report, Schedule, Tracking};

/// Words: a flag a tile, from 0; sums of the parts, from 64; results, from 192.
const WORDS: usize = 256;
const TILES: u32 = 8;

/// A part of K by each CTA, `%r2` of tile `%r1`; what is done with the parts follows.
const PARTS: &str = "
    mov.u32 %r0, %ctaid.x;
    rem.u32 %r1, %r0, 8;
    div.u32 %r2, %r0, 8;
    mul.lo.u32 %r3, %r0, 10;
    mul.wide.u32 %rd1, %r1, 4;
    add.u64 %rd1, %rd1, %out;
    mul.wide.u32 %rd2, %r0, 4;
    add.u64 %rd2, %rd2, %out;
    mov.u32 %r9, %tid.x;
    setp.ne.u32 %p0, %r9, 0;
    @%p0 bra END;
";

/// The first part's CTA waits for the second's, which comes later in the grid, and adds up.
const WAITS: &str = "
    setp.eq.u32 %p1, %r2, 0;
    @%p1 bra SPIN;
    st.global.u32 [%rd2+256], %r3;
    st.release.gpu.global.u32 [%rd1], 1;
    bra END;
SPIN:
    LOAD %r4, [%rd1];
    setp.eq.u32 %p2, %r4, 0;
    @%p2 bra SPIN;
    ld.global.u32 %r5, [%rd2+288];
    add.u32 %r5, %r5, %r3;
    st.global.u32 [%rd1+768], %r5;
END:
";

/// The cluster that comes last adds up.
const LAST: &str = "
    st.global.u32 [%rd2+256], %r3;
    atom.acq_rel.gpu.global.add.u32 %r4, [%rd1], 1;
    setp.eq.u32 %p1, %r4, 0;
    @%p1 bra END;
    ld.global.u32 %r5, [%rd1+256];
    ld.global.u32 %r6, [%rd1+288];
    add.u32 %r5, %r5, %r6;
    st.global.u32 [%rd1+768], %r5;
END:
";

fn split_k(body: &str, options: &Options<'_>) -> (Report, Vec<u32>) {
    let mut memory = GlobalMemory::new();
    let out = memory.alloc_from("out", &[0; 4 * WORDS]);
    let l = launch(2 * TILES, 64, vec![Arg::Pointer(memory.address(&out))]);
    let report = run(&parse(&kernel(&format!("{PARTS}{body}"))), &l, &memory, options);
    let words =
        memory.read(&out).chunks(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect::<Vec<_>>();
    (report, words[192..192 + TILES as usize].to_vec())
}

fn sums() -> Vec<u32> {
    (0..TILES).map(|t| 10 * t + 10 * (t + TILES)).collect()
}

const LOADS: [&str; 3] =
    ["ld.acquire.gpu.global.u32", "ld.volatile.global.u32", "atom.acquire.gpu.global.or.b32"];

fn waits(load: &str) -> String {
    let text = if load.starts_with("atom") {
        WAITS.replace("[%rd1];\n    setp", "[%rd1], 0;\n    setp")
    } else {
        WAITS.to_owned()
    };
    text.replace("LOAD", load)
}

#[test]
fn waiting_for_a_cluster_that_has_not_started_hangs_the_grid() {
    let schedules = [Schedule::Early, Schedule::Late, Schedule::Random(1)];
    for (i, (schedule, load)) in schedules.into_iter().zip(LOADS).enumerate() {
        let options = Options { schedule, threads: 1 + i, resident: Some(TILES), ..Options::default() };
        let (report, _) = split_k(&waits(load), &options);
        let f = &report.findings[0];
        assert_eq!(f.kind, FindingKind::GridDeadlock, "{f}");
        assert!(f.text.contains(load), "{f}");
        assert!(f.message.contains("8 clusters run") && f.message.contains("8 more of the grid"), "{f}");
    }
}

#[test]
fn with_room_for_all_or_without_a_wait_the_sums_are_right() {
    let tracking = Tracking::HappensBefore;
    for schedule in [Schedule::Early, Schedule::Late, Schedule::Random(1)] {
        // One more than wait, and the default: far more than there are.
        for resident in [Some(TILES + 1), None] {
            let options = Options { schedule, threads: 2, tracking, resident, ..Options::default() };
            let (report, got) = split_k(&waits(LOADS[0]), &options);
            assert!(report.is_clean(), "{}", report.findings[0]);
            assert_eq!(got, sums());
        }
        for resident in [1, 3] {
            let options =
                Options { schedule, threads: 2, tracking, resident: Some(resident), ..Options::default() };
            let (report, got) = split_k(LAST, &options);
            assert!(report.is_clean(), "{}", report.findings[0]);
            assert_eq!(got, sums());
        }
    }
}

#[test]
fn clusters_that_have_all_started_and_wait_for_nobody_hang_too() {
    // The flag is never raised.
    let body = waits(LOADS[0]).replace("    st.release.gpu.global.u32 [%rd1], 1;\n", "");
    let (report, _) = split_k(&body, &Options { threads: 2, ..Options::default() });
    let f = &report.findings[0];
    assert_eq!(f.kind, FindingKind::GridDeadlock, "{f}");
    assert!(f.message.contains("all of the grid have started"), "{f}");
}

#[test]
fn what_takes_long_or_ends_by_itself_is_no_hang() {
    // A count of 3 million with a load in it, and a wait that gives up.
    let count = "
    mov.u32 %r4, 0;
COUNT:
    ld.volatile.global.u32 %r5, [%rd1];
    add.u32 %r4, %r4, 1;
    setp.lt.u32 %p1, %r4, 600000;
    @%p1 bra COUNT;
    st.global.u32 [%rd1+768], %r4;
END:
";
    let mut memory = GlobalMemory::new();
    let out = memory.alloc_from("out", &[0; 4 * WORDS]);
    let l = launch(2, 64, vec![Arg::Pointer(memory.address(&out))]);
    let report = run(&parse(&kernel(&format!("{PARTS}{count}"))), &l, &memory, &Options::default());
    assert!(report.is_clean(), "{}", report.findings[0]);
}
