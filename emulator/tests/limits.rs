//! What hostile or careless input may cost: time and memory are bounded, and a bound that is met is an error or a
//! finding that says so.
//!
//! Bounds on time are several times what a slow machine takes in a debug build, and far below what superlinear code
//! would.

use crate::common::cases;

use crate::common::cases::blackwell;
use crate::common::{kernel, launch, parse, run};
use silumin_emulator::time::{Chip, TimeError, TimeOptions};
use silumin_emulator::{
    Arg, FindingKind, GlobalMemory, Launch, LaunchError, Module, Options, Reconvergence, Report, Schedule,
    Tracking, max_smem,
};
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const HEAD: &str = ".version 8.8\n.target sm_100a\n.address_size 64\n";

/// The errors of a text, which both ways of reading it find, and the time they took.
fn errors(text: &str) -> (String, Duration) {
    let start = Instant::now();
    let parsed = Module::parse("bad.ptx", text);
    let problems = Module::problems("bad.ptx", text);
    let took = start.elapsed();
    assert_eq!(parsed.is_err(), !problems.is_empty());
    (problems.iter().map(|e| format!("{e}\n")).collect(), took)
}

#[track_caller]
fn refused(text: &str, wanted: &str, seconds: u64) {
    let (said, took) = errors(text);
    let head: String = said.chars().take(2000).collect();
    assert!(said.contains(wanted), "no `{wanted}` in: {head}");
    assert!(said.len() < 100_000, "{} bytes of errors: {head}", said.len());
    assert!(took < Duration::from_secs(seconds), "{took:?}: {head}");
}

#[track_caller]
fn accepted(text: &str, seconds: u64) {
    let (said, took) = errors(text);
    assert!(said.is_empty(), "{}", said.chars().take(2000).collect::<String>());
    assert!(took < Duration::from_secs(seconds), "{took:?}");
}

#[test]
fn nesting_is_bounded_wherever_there_is_any() {
    for n in [100, 27_600, 1_000_000] {
        let (open, close) = ("generic(".repeat(n), ")".repeat(n));
        let text = format!(
            "{HEAD}.global .b32 g;\n.global .u64 x[1] = {{{open}g{close}}};\n.entry k() {{ ret; }}\n"
        );
        refused(&text, "generic() takes a variable", 10);
        let text = format!("{HEAD}.global .u64 x[1] = {}0{};\n", "{".repeat(n), "}".repeat(n));
        refused(&text, "nested too deeply", 10);
        for (open, close) in [("(", ")"), ("{", "}"), ("[", "]"), ("!", ""), ("-", ""), ("~", "")] {
            let body = format!("mov.b32 %r0, {}1{};", open.repeat(n), close.repeat(n));
            refused(&kernel(&body), "nested too deeply: at most 64", 10);
        }
        let body = format!("mov.b32 %r0, {}1;", "1+(".repeat(n));
        refused(&kernel(&body), "nested too deeply", 10);
        let blocks = format!("{}mov.b32 %r0, 1;{}", "{ ".repeat(n + 200), "} ".repeat(n + 200));
        refused(&kernel(&blocks), "blocks are nested too deeply: at most 256", 10);
    }
    let body = format!("{}mov.b32 %r0, ((((1))));{}", "{ ".repeat(256), "} ".repeat(256));
    accepted(&kernel(&body), 10);
    let text = "{ generic(g)+4, generic(generic(g)) }";
    refused(
        &format!("{HEAD}.global .b32 g;\n.global .u64 x[1] = {text};\n"),
        "generic() takes a variable",
        10,
    );
}

#[test]
fn a_long_chain_of_functions_is_no_more_work_than_its_length() {
    for n in [300, 10_000] {
        let mut text = HEAD.to_owned();
        for i in (0..n).rev() {
            let next = if i + 1 < n { format!("call f{};", i + 1) } else { String::new() };
            writeln!(text, ".func f{i}() {{ {next} ret; }}").unwrap();
        }
        text += ".entry k() { call f0; ret; }\n";
        accepted(&text, 20);
        // The same chain closed to a ring.
        let ring = text.replace(
            &format!(".func f{}() {{  ret; }}", n - 1),
            &format!(".func f{}() {{ call f0; ret; }}", n - 1),
        );
        assert_ne!(ring, text);
        let ring = ring.replacen(HEAD, &format!("{HEAD}.func f0();\n"), 1);
        refused(&ring, "is recursive", 20);
    }
    // All call all that come after them: many ways to the last.
    let mut text = HEAD.to_owned();
    for i in (0..200).rev() {
        let calls: String = (i + 1..200).map(|j| format!("call f{j}; ")).collect();
        writeln!(text, ".func f{i}() {{ {calls}ret; }}").unwrap();
    }
    text += ".entry k() { call f0; ret; }\n";
    accepted(&text, 20);
}

#[test]
fn names_of_outer_blocks_and_numbered_names_are_found_in_time() {
    // Branches to a label of the outermost block, from the innermost.
    let depth = 250;
    let inner = "bra OUT; @%p0 bra OUT; mov.b32 %r0, %r1;\n".repeat(20_000);
    let blocks: String = (0..depth).map(|i| format!("{{ .reg .b32 q{i}; L{i}: ")).collect();
    accepted(&kernel(&format!("setp.eq.u32 %p0, 1, 1; {blocks}{inner}{}\nOUT:", "}".repeat(depth))), 30);
    // Families of registers beside single ones that could be of them.
    let mut body = String::new();
    for i in 0..60_000 {
        writeln!(body, ".reg .b32 a{i}; .reg .b32 b{i}_<2>;").unwrap();
    }
    accepted(&kernel(&body), 30);
    let twice = kernel(".reg .b32 a7;\n.reg .b32 a<8>;");
    refused(&twice, "`a<8>` defines `a7`, which line 15 has defined", 10);
    // Branch tables times branches.
    let table = format!("T: .branchtargets {};\n", vec!["OUT"; 20_000].join(", "));
    let body = format!("mov.b32 %r0, 0;\n{table}{}OUT:", "brx.idx %r0, T;\n".repeat(20_000));
    refused(&kernel(&body), "operations together", 180);
    // Calls through pointers times functions that they may call.
    let mut text = HEAD.to_owned();
    for i in 0..3_000 {
        writeln!(text, ".func f{i}() {{ ret; }}").unwrap();
    }
    let table: Vec<String> = (0..3_000).map(|i| format!("f{i}")).collect();
    writeln!(text, ".global .u64 table[3000] = {{{}}};", table.join(", ")).unwrap();
    text += ".entry k() {\n.reg .b64 d; ld.global.u64 d, [table];\nP: .callprototype _ ();\n";
    text += &"call d, P;\n".repeat(3_000);
    refused(&(text + "ret; }\n"), "operations together", 180);
}

#[test]
fn long_lines_are_shown_in_part() {
    let filler = "add.u32 %r0, %r1, 2; ".repeat(500_000);
    let text = kernel(&format!("{filler}wiggle.b32 %r0; {filler}"));
    let (said, took) = errors(&text);
    assert!(
        said.contains("unknown instruction `wiggle.b32`") && said.contains("2; wiggle.b32 %r0; add"),
        "{said}"
    );
    assert!(said.len() < 1000 && took < Duration::from_secs(60), "{} bytes, {took:?}", said.len());
    // A syntax error in the middle, and many in one line.
    let text = kernel(&format!("{filler}add.u32 %r0 %r1; {filler}"));
    let (said, _) = errors(&text);
    assert!(said.contains("expected `,` or `;`") && said.contains("add.u32 %r0 %r1; add"), "{said}");
    assert!(said.len() < 1000, "{}", said.len());
    let many = "wiggle %r0; ".repeat(20_000);
    let (said, took) = errors(&kernel(&many));
    assert!(said.len() < 20_000 * 600 && took < Duration::from_secs(30), "{} bytes, {took:?}", said.len());
    // Names and numbers without an end.
    let long = "x".repeat(10 << 20);
    refused(&kernel(&format!("mov.b32 {long}, 1;")), "bytes left out", 30);
    refused(&kernel(&format!("mov.b32 %r0, {long};")), "bytes left out", 30);
    refused(&kernel(&format!("{long}.b32 %r0, 1;")), "an opcode of", 30);
    refused(&kernel(&format!("add{};", ".u32".repeat(1 << 20))), "an opcode of", 30);
    refused(&kernel(&format!("mov.b32 %r0, 0x{};", "1".repeat(10 << 20))), "is not a number", 30);
    refused(&format!("{HEAD}.{long} k() {{ ret; }}"), "unknown directive", 30);
    refused(&kernel(&format!("/* {long}")), "the file ends inside a function body", 30);
}

#[test]
fn findings_and_traces_show_a_part_of_a_long_line() {
    let body = format!("{} LOOP: bra LOOP;", "mov.u32 %r0, 1; ".repeat(10_000));
    let module = parse(&kernel(&body));
    let options = Options { instruction_limit: 100_000, ..Options::default() };
    let report = run(&module, &launch(1, 32, vec![Arg::U64(0)]), &GlobalMemory::new(), &options);
    assert!(report.findings[0].text.len() < 300, "{}", report.findings[0].text.len());
}

#[test]
fn predicates_have_the_limit_that_registers_have() {
    for ty in ["pred", "b32", "b64"] {
        refused(&kernel(&format!(".reg .{ty} %x<600000>;")), "may have 500000", 10);
        let many: String = (0..2_000).map(|i| format!(".reg .{ty} %x{i}_<4000000>;\n")).collect();
        let (said, took) = errors(&kernel(&many));
        assert!(said.contains("may have 500000") && took < Duration::from_secs(10), "{took:?}");
        accepted(&kernel(&format!(".reg .{ty} %x<400000>;")), 10);
    }
}

fn spin(threads: u32, grid: u32, options: &Options<'_>) -> (Report, Duration) {
    let text =
        kernel(".reg .b32 %never;\nadd.u32 %r1, %r0, 1;\nst.global.u32 [%out], %r1;\nSPIN:\n    bra SPIN;");
    let mut memory = GlobalMemory::new();
    let out = memory.alloc("out", 4);
    let start = Instant::now();
    let report =
        run(&parse(&text), &launch(grid, threads, vec![Arg::U64(memory.address(&out))]), &memory, options);
    (report, start.elapsed())
}

#[test]
fn a_run_ends_soon_after_it_is_interrupted() {
    let stop = AtomicBool::new(false);
    let options =
        Options { interrupt: Some(&stop), time_limit: Some(Duration::from_secs(60)), ..Options::default() };
    let (report, took) = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(200));
            stop.store(true, Ordering::Relaxed);
        });
        spin(256, 100, &options)
    });
    assert_eq!(report.findings[0].kind, FindingKind::TimeLimit, "{:?}", report.findings);
    assert!(report.findings[0].message.starts_with("the run was interrupted"), "{:?}", report.findings[0]);
    assert!(took < Duration::from_secs(20), "{took:?}");
}

#[test]
fn a_prediction_of_one_warp_that_spins_ends_at_each_limit() {
    let module = parse(&kernel("SPIN:\n    bra SPIN;"));
    let timing = TimeOptions::new(Chip::named("b200").unwrap());
    let ends = |options: &Options<'_>| {
        let memory = GlobalMemory::new();
        module.time("k", &launch(1, 32, vec![Arg::U64(0)]), &memory, options, &timing).unwrap_err()
    };
    let start = Instant::now();
    let instructions = ends(&Options { instruction_limit: 100_000, ..Options::default() });
    assert!(matches!(instructions, TimeError::Limit { limit: 100_000, .. }), "{instructions}");
    let most = Options { instruction_limit: u64::MAX, ..Options::default() };
    let time = ends(&Options { time_limit: Some(Duration::from_millis(200)), ..most });
    assert!(matches!(time, TimeError::Deadline { .. }), "{time}");
    let stop = AtomicBool::new(true);
    let interrupted = ends(&Options { interrupt: Some(&stop), ..most });
    assert!(matches!(interrupted, TimeError::Deadline { .. }), "{interrupted}");
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
}

#[test]
fn a_large_grid_that_spins_ends_within_the_time_with_what_was_found() {
    let options = Options { time_limit: Some(Duration::from_millis(1500)), threads: 2, ..Options::default() };
    for tracking in [Tracking::Off, Tracking::HappensBefore] {
        let (report, took) = spin(256, 10_000, &Options { tracking, ..options });
        assert_eq!(report.findings[0].kind, FindingKind::TimeLimit, "{:?}", report.findings);
        assert_eq!(report.findings[0].text, "bra SPIN;");
        let uninitialised = |f: &&silumin_emulator::Finding| f.kind == FindingKind::UninitialisedRegister;
        assert!(report.findings.iter().find(uninitialised).is_some(), "{:?}", report.findings);
        assert!(took < Duration::from_secs(20), "{took:?}");
        assert!(report.stats.instructions > 1000);
    }
}

#[test]
fn a_large_grid_that_spins_ends_within_its_instructions() {
    let options = Options { instruction_limit: 100_000, threads: 2, ..Options::default() };
    let (report, took) = spin(256, 10_000, &options);
    assert_eq!(report.findings[0].kind, FindingKind::InstructionLimit, "{:?}", report.findings);
    assert!(took < Duration::from_secs(20), "{took:?}");
    // Each cluster alone is within its limit for long; together they are not.
    let options = Options { instruction_limit: 5_000_000, ..options };
    let (report, took) = spin(32, 10_000, &options);
    let found = &report.findings[0];
    assert_eq!(found.kind, FindingKind::InstructionLimit, "{:?}", report.findings);
    assert!(found.message.contains("since the last that another could wait for"), "{}", found.message);
    assert!(report.stats.instructions < 400_000_000, "{}", report.stats.instructions);
    assert!(took < Duration::from_secs(60), "{took:?}");
}

#[test]
fn memory_is_estimated_before_it_is_taken() {
    // 499,000 registers of 64 bits for each of 16,384 threads: 66 GB and more.
    let text = kernel(".reg .b64 %many<499000>;\nmov.u64 %many3, 1;\nst.global.u64 [%out], %many3;");
    let module = parse(&text);
    let mut memory = GlobalMemory::new();
    let out = memory.alloc("out", 8);
    let args = vec![Arg::U64(memory.address(&out))];
    let large = Launch { cluster: [16, 1, 1], ..launch(16, 1024, args.clone()) };
    let limited = Options { memory_limit: Some(8 << 30), ..Options::default() };
    let start = Instant::now();
    let error = module.run("k", &large, &memory, &limited).unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(5));
    let LaunchError::Memory { needed, limit, .. } = &error else { panic!("{error}") };
    assert!(*needed > 60 << 30 && *limit == 8 << 30, "{error}");
    let said = error.to_string();
    assert!(
        said.contains("registers") && said.contains("16 CTAs of 32 warps") && said.contains("limit"),
        "{said}"
    );
    // Predicates and local memory count as well.
    for body in [".reg .pred %many<499000>;", ".local .b8 many[500000];"] {
        let tight = Options { memory_limit: Some(64 << 20), ..Options::default() };
        let error = parse(&kernel(body)).run("k", &large, &memory, &tight).unwrap_err();
        assert!(matches!(error, LaunchError::Memory { .. }), "{error}");
    }
    // Where one fits and not all, fewer run at a time, and all of them run.
    let small = launch(40, 32, args);
    let one = Options { memory_limit: Some(200 << 20), threads: 4, ..Options::default() };
    let report = module.run("k", &small, &memory, &one).unwrap();
    assert!(report.is_clean(), "{:?}", report.findings);
    assert_eq!(memory.read(&out), 1u64.to_le_bytes());
}

#[test]
fn a_cluster_that_waits_for_one_without_room_is_told_apart() {
    // The first waits for the last, which has no room while the first is there.
    let text = kernel(
        ".reg .b64 %many<200000>;\nmov.u64 %many3, 1;\nmov.u32 %r1, %ctaid.x;\nsetp.eq.u32 %p0, %r1, 3;\n\
         @%p0 st.release.gpu.global.u32 [%out], 1;\nWAIT:\nld.acquire.gpu.global.u32 %r2, [%out];\n\
         setp.eq.u32 %p1, %r2, 0;\n@%p1 bra WAIT;",
    );
    let module = parse(&text);
    let run = |memory_limit: u64| {
        let mut memory = GlobalMemory::new();
        let out = memory.alloc_from("out", &[0; 4]);
        let options = Options {
            memory_limit: Some(memory_limit),
            instruction_limit: 2_000_000,
            threads: 1,
            ..Options::default()
        };
        module.run("k", &launch(4, 32, vec![Arg::U64(memory.address(&out))]), &memory, &options).unwrap()
    };
    assert!(run(1 << 30).is_clean());
    let report = run(120 << 20);
    assert!(
        report.findings[0].message.contains("only 2 clusters fit into the memory limit"),
        "{:?}",
        report.findings
    );
}

#[test]
fn shared_memory_of_a_cta_is_the_chip_s() {
    for (target, most) in [
        ("sm_75", 65_536),
        ("sm_80", 166_912),
        ("sm_86", 101_376),
        ("sm_89", 101_376),
        ("sm_90a", 232_448),
        ("sm_100a", 232_448),
        ("sm_100f", 232_448),
        ("sm_103a", 232_448),
        ("sm_110a", 232_448),
        ("sm_120a", 101_376),
        ("sm_120f", 101_376),
        ("sm_120", 101_376),
        ("sm_121a", 101_376),
    ] {
        assert_eq!(max_smem(target), most, "{target}");
        let text = format!(".version 9.0\n.target {target}\n.address_size 64\n.entry k() {{ ret; }}\n");
        let with = |module: &Module, dynamic_smem: u32| {
            // The dynamic part starts at a multiple of 1024, behind what the system has.
            module.check("k", &Launch { dynamic_smem, ..launch(1, 32, Vec::new()) })
        };
        let module = parse(&text);
        assert_eq!(with(&module, most), Ok(()));
        let error = with(&module, most + 1).unwrap_err().to_string();
        assert!(error.contains(target) && error.contains(&most.to_string()), "{error}");
        // On another chip it is that one's.
        let module = module.on_chip("sm_120a");
        assert!(with(&module, 101_376).is_ok() == (most >= 101_376 || target == "sm_75"));
        assert!(with(&module, 101_377).is_err());
    }
}

/// Reads 30 registers that nothing wrote, in 30 lines, and then does `end`.
fn many(end: &str) -> String {
    let lines: Vec<String> = (1..=30).map(|i| format!("st.global.u32 [%out+{}], %r{i};", 4 * i)).collect();
    format!("{}\nst.global.u32 [%out], %tid;\n{end}", lines.join("\n"))
}

#[test]
fn the_limit_on_findings_ends_the_list_and_not_the_run() {
    let (report, out) = blackwell(1, &many("")).run(&Options::default());
    assert_eq!((report.findings.len(), report.left_out, report.stopped), (20, 10, false));
    assert_eq!(out[..4], [0; 4]);
    // What stops the run is told even so.
    let (report, out) = blackwell(1, &many("trap;")).run(&Options::default());
    assert_eq!(report.findings[0].kind, FindingKind::Trap);
    assert_eq!((report.findings.len(), report.left_out, report.stopped), (20, 11, true));
    assert_eq!(out[..4], [0; 4]);
    // A caller that asks only whether there is a finding stops at the first.
    let options = Options { max_findings: 1, stop_at_limit: true, ..Options::default() };
    let (report, out) = blackwell(1, &many("")).run(&options);
    assert_eq!((report.findings.len(), report.stopped), (1, true));
    assert_eq!(out[..4], [1; 4]);
}

#[test]
fn a_report_says_what_it_leaves_out_and_that_outputs_are_partial() {
    use silumin_emulator::command::{FOUND, Request, Schedules, execute};
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("k.ptx"), cases::kernel("sm_100a", "", &many("trap;"))).unwrap();
    let launch = folder.path().join("k.toml");
    let text = "ptx = \"k.ptx\"\nkernel = \"k\"\ngrid = [1, 1, 1]\nblock = [1, 1, 1]\n[buffers.o]\nbytes = 4096\nfill = 0\n[[params]]\npointer = \"o\"\n";
    std::fs::write(&launch, text).unwrap();
    let report = |json| {
        let request = Request::Run {
            launch: launch.clone(),
            out: Some(folder.path().join("out")),
            schedules: Schedules::One(Schedule::Early),
            tracking: Tracking::HappensBefore,
            reconvergence: Reconvergence::Eager,
            trace: None,
            threads: 1,
            limits: silumin_emulator::command::Limits::default(),
            json,
        };
        let (mut out, mut err) = (Vec::new(), Vec::new());
        assert_eq!(execute(&request, &mut out, &mut err), FOUND, "{}", String::from_utf8_lossy(&err));
        String::from_utf8(out).unwrap()
    };
    let text = report(false);
    assert!(text.contains("partial   a finding stopped the run"), "{text}");
    assert!(text.contains("20 findings, and 11 of other kinds or lines"), "{text}");
    let json: serde_json::Value = serde_json::from_str(&report(true)).unwrap();
    assert_eq!((&json["partial"], &json["findings_left_out"]), (&true.into(), &11.into()));
    assert_eq!(
        (&json["runs"][0]["partial"], &json["runs"][0]["findings_left_out"]),
        (&true.into(), &11.into())
    );
}
