//! Kernels of a few lines that run under every schedule and tracking: what each finds.

use crate::common::{parse, run};
use silumin_emulator::{Arg, FindingKind, GlobalMemory, Launch, Options, Report, Schedule, Tracking};

/// The schedules of every case.
pub const SCHEDULES: [Schedule; 5] = [
    Schedule::Early,
    Schedule::Late,
    Schedule::Random(1),
    Schedule::Random(2),
    Schedule::Starve { warp: 1, seed: 3 },
];

/// A kernel of the right chip around a body; `%out` is its buffer.
pub fn kernel(chip: &str, attributes: &str, body: &str) -> String {
    format!(
        r#".version 9.0
.target {chip}
.address_size 64
.visible .entry k(.param .u64 out) {attributes}
{{
    .reg .pred %p<8>;
    .reg .b16 %h<4>;
    .reg .b32 %r<48>;
    .reg .b64 %rd<8>;
    .reg .f32 %f<16>;
    .reg .b64 %out;
    .reg .b32 %tid, %warp;
    mov.u32 %tid, %tid.x;
    shr.u32 %warp, %tid, 5;
    ld.param.u64 %out, [out];
{body}
    ret;
}}
"#
    )
}

/// A kernel around `body` on `chip`: one cluster of so many CTAs, with so many threads each.
pub struct Case<'a> {
    pub chip: &'a str,
    pub cluster: u32,
    pub threads: u32,
    pub body: &'a str,
}

impl Case<'_> {
    /// The report, and what the buffer holds after a run of the kernel.
    pub fn run(&self, options: &Options<'_>) -> (Report, Vec<u8>) {
        let attributes =
            if self.cluster > 1 { format!(".reqnctapercluster {}", self.cluster) } else { String::new() };
        let module = parse(&kernel(self.chip, &attributes, self.body));
        let mut memory = GlobalMemory::new();
        let out = memory.alloc_from("out", &[1; 4096]);
        let launch = Launch {
            grid: [self.cluster, 1, 1],
            block: [self.threads, 1, 1],
            cluster: [self.cluster, 1, 1],
            dynamic_smem: 0,
            args: vec![Arg::Pointer(memory.address(&out))],
        };
        let report = run(&module, &launch, &memory, options);
        (report, memory.read(&out))
    }

    /// Runs under all schedules; by default it finds exactly `default`, strictly exactly `strict`, and goes on to the end.
    pub fn finds(&self, default: &[FindingKind], strict: &[FindingKind]) {
        for schedule in SCHEDULES {
            for (tracking, wanted) in [
                (Tracking::Off, None),
                (Tracking::HappensBefore, Some(default)),
                (Tracking::Strict, Some(strict)),
            ] {
                let (report, _) = self.run(&Options { schedule, tracking, ..Options::default() });
                let mut found: Vec<FindingKind> = report.findings.iter().map(|f| f.kind).collect();
                found.sort();
                found.dedup();
                assert!(!report.stopped, "{schedule:?} {tracking:?}: {}\n{}", report.findings[0], self.body);
                match wanted {
                    Some(wanted) => assert_eq!(
                        found, wanted,
                        "{schedule:?} {tracking:?}: {:#?}\n{}",
                        report.findings, self.body
                    ),
                    None => assert!(
                        found.iter().all(|k| default.contains(k)),
                        "{schedule:?}: {:#?}\n{}",
                        report.findings,
                        self.body
                    ),
                }
            }
        }
    }
}

/// A case of one CTA on `sm_100a`.
pub fn blackwell(threads: u32, body: &str) -> Case<'_> {
    Case { chip: "sm_100a", cluster: 1, threads, body }
}

/// A pair of CTAs of 128 threads on `sm_100a`.
pub fn pair(body: &str) -> Case<'_> {
    Case { chip: "sm_100a", cluster: 2, threads: 128, body }
}

/// A case of one CTA on `sm_120a`.
pub fn geforce(threads: u32, body: &str) -> Case<'_> {
    Case { chip: "sm_120a", cluster: 1, threads, body }
}

/// Allocates 32 columns by warp 0, in all threads' way.
pub const ALLOCATE: &str = "
    .shared .align 16 .b8 word[64];
    mov.u32 %r40, word;
    setp.ne.u32 %p7, %warp, 0;
    @%p7 bra ALLOCATED;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r40], 32;
ALLOCATED:
    bar.sync 0;
    shl.b32 %r41, %warp, 21;
";

/// Frees what [`ALLOCATE`] allocated.
pub const FREE: &str = "
    bar.sync 0;
    @%p7 bra FREED;
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 0, 32;
FREED:
";
