//! The emulator's launch files, launches, chips, times and mutants.

use super::{Case, Page, case, kind};
use silumin_emulator::command::{self, Limits, Request, Schedules, TraceTarget};
use silumin_emulator::files::OutputFolder;
use silumin_emulator::mutate::{MutateError, Subject, SurveyOptions};
use silumin_emulator::time::{Chip, ChipError, Clock, SassCosts, TimeError, TimeOptions, issue_costs};
use silumin_emulator::{
    Arg, GlobalMemory, Launch, LaunchError, LaunchFile, Module, Options, Reconvergence, Schedule, Tracking,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

pub fn show(page: &mut Page) {
    let folder = tempfile::tempdir().unwrap();
    let placed = |cases: Vec<Case>| cases.into_iter().map(|case| case.without(folder.path())).collect();
    page.cases("Launch files", placed(launch_files(folder.path())));
    page.cases("Launches", launches());
    page.cases("Warps to trace", placed(traces(folder.path())));
    page.cases("Folders of results", placed(results(folder.path())));
    page.cases("Chips", chips());
    page.cases("Times", times());
    page.cases("Listings of machine code", listings());
    page.cases("Mutants", placed(mutants(folder.path())));
}

/// A kernel `k` around a body.
pub fn ptx(params: &str, body: &str) -> String {
    format!(
        ".version 8.7\n.target sm_100a\n.address_size 64\n.visible .entry k({params})\n{{\n{body}    ret;\n}}\n"
    )
}

pub const HEAD: &str = "ptx = \"k.ptx\"\nkernel = \"k\"\ngrid = [2, 1, 1]\nblock = [32, 1, 1]\n";
const BUFFER: &str = "[buffers.c]\nbytes = 64\n";

/// A launch file in a folder `name`, with `k.ptx` beside it.
fn written(top: &Path, name: &str, ptx: &str, text: &str) -> PathBuf {
    let folder = top.join(name);
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("k.ptx"), ptx).unwrap();
    fs::write(folder.join("launch.toml"), text).unwrap();
    folder.join("launch.toml")
}

fn launch_files(top: &Path) -> Vec<Case> {
    let read = |name: &str, ptx: &str, text: &str| {
        LaunchFile::read(&written(top, name, ptx, text)).map(drop).unwrap_err()
    };
    let empty = ptx("", "");
    let one = ptx(".param .u8 p", "");
    let params = |value: &str| format!("{HEAD}{BUFFER}[[params]]\n{value}\n");
    let map =
        "tensor_map = { buffer = \"c\", data_type = \"u8\", dims = [64, 4], strides = [60], box = [64, 4] }";
    vec![
        case(
            "A launch file that is not there",
            LaunchFile::read(&top.join("launch.toml")).map(drop).unwrap_err(),
        ),
        case("A key that launch files do not have", read("key", &empty, &format!("{HEAD}shared = 1\n"))),
        case("A grid of two numbers", read("grid", &empty, &HEAD.replace("[2, 1, 1]", "[2, 1]"))),
        case("A number that is too large for its type", read("number", &one, &params("u8 = 256"))),
        case(
            "A kernel that the PTX does not have",
            read("kernel", &empty, &HEAD.replace("\"k\"", "\"gemm\"")),
        ),
        case(
            "A tensor map that no device takes",
            read("map", &ptx(".param .align 64 .b8 p[128]", ""), &params(map)),
        ),
        case("PTX with two mistakes", read("ptx", &ptx("", "    frob.u32 1;\n    blah;\n"), HEAD)),
    ]
}

fn launch(block: u32, args: Vec<Arg>) -> Launch {
    Launch { grid: [1, 1, 1], block: [block, 1, 1], cluster: [1, 1, 1], dynamic_smem: 0, args }
}

fn launches() -> Vec<Case> {
    let module = Module::parse("k.ptx", &ptx(".param .u64 p", "")).unwrap();
    let refused = |entry: &str, launch: &Launch| -> LaunchError { module.check(entry, launch).unwrap_err() };
    let right = launch(32, vec![Arg::U64(0)]);
    let little = Options { memory_limit: Some(4096), ..Options::default() };
    let little = module.run("k", &right, &GlobalMemory::new(), &little).map(drop).unwrap_err();
    vec![
        case("A kernel that the module does not have", refused("gemm", &right)),
        case("No arguments for a parameter", refused("k", &launch(32, Vec::new()))),
        case("Four bytes for a parameter of eight", refused("k", &launch(32, vec![Arg::U32(0)]))),
        case("A block of 1056 threads", refused("k", &launch(1056, vec![Arg::U64(0)]))),
        case(
            "More shared memory than a CTA has",
            refused("k", &Launch { dynamic_smem: 300_000, ..right.clone() }),
        ),
        case("A limit of 4096 bytes of memory", little),
    ]
}

fn traces(top: &Path) -> Vec<Case> {
    let launch = written(top, "trace", &ptx("", ""), HEAD);
    let run = |what: &'static str, variant: &str, warp: &str| {
        let request = Request::Run {
            launch: launch.clone(),
            out: None,
            schedules: Schedules::One(Schedule::Early),
            tracking: Tracking::Off,
            reconvergence: Reconvergence::Eager,
            trace: Some(warp.parse().unwrap()),
            threads: 1,
            limits: Limits::default(),
            json: false,
        };
        let mut said = Vec::new();
        assert_eq!(command::execute(&request, &mut Vec::new(), &mut said), command::BAD_INPUT);
        let kinds = vec![("emulator::TraceTargetError".to_owned(), variant.to_owned())];
        Case { what: what.into(), kinds, said: String::from_utf8(said).unwrap().trim_end().to_owned() }
    };
    vec![
        case("A warp that is no number", "first".parse::<TraceTarget>().map(drop).unwrap_err()),
        run("A CTA that the grid does not have", "Cta", "2:0"),
        run("A warp that the block does not have", "Warp", "1"),
    ]
}

fn results(top: &Path) -> Vec<Case> {
    let folder = top.join("results");
    fs::create_dir_all(folder.join("c.bin")).unwrap();
    fs::write(folder.join("a.bin"), "input").unwrap();
    let add = |name: &str| {
        let input = folder.join("a.bin");
        let mut out = OutputFolder::open(&folder, [&*input])?;
        out.add(name, b"new")?;
        out.commit()
    };
    vec![
        case("A result in place of an input", add("a.bin").unwrap_err()),
        case("A folder with the name of a result", add("c.bin").unwrap_err()),
        case("A name that leads out of the folder", add("../c.bin").unwrap_err()),
        case(
            "A file in place of the folder",
            OutputFolder::open(&folder.join("a.bin"), []).map(drop).unwrap_err(),
        ),
    ]
}

fn chips() -> Vec<Case> {
    let b200 = include_str!("../../chips/b200.toml");
    let parse = |text: &str| -> ChipError { Chip::parse("mine.toml", text).map(drop).unwrap_err() };
    let (before, rest) = b200.split_once("[tma_row]").unwrap();
    let missing = format!("{before}{}", &rest[rest.find("\n[").unwrap()..]);
    let unit = b200.replacen("unit = \"bytes/clk\"", "unit = \"bytes\"", 1);
    let with = |key: &str| Chip::named("b200").unwrap().with(key, 0.0).map(drop).unwrap_err();
    vec![
        case("A chip without a file", Chip::named("h900").map(drop).unwrap_err()),
        case("A file without a chip", parse("speed = 1\n")),
        case("A file without a number", parse(&missing)),
        case("A number in another unit", parse(&unit)),
        case("A rate of 0", with("dram_rate")),
        case("A number that chips do not have", with("speed")),
        case("A clock that is no number", "fast".parse::<Clock>().map(drop).unwrap_err()),
    ]
}

fn times() -> Vec<Case> {
    let on = |chip: Chip, text: &str, launch: &Launch, options: &Options<'_>| -> TimeError {
        let module = Module::parse("k.ptx", text).unwrap();
        let timing = TimeOptions::new(chip);
        module.time("k", launch, &GlobalMemory::new(), options, &timing).map(drop).unwrap_err()
    };
    let b200 = || Chip::named("b200").unwrap();
    let time = |text: &str, launch: &Launch, options: &Options<'_>| on(b200(), text, launch, options);
    let (options, one) = (Options::default(), launch(32, Vec::new()));
    let spin = ptx("", "SPIN:\n    bra SPIN;\n");
    let never = ptx(
        "",
        "    .reg .pred %done;\n    .shared .align 8 .b64 full;\n    mbarrier.init.shared::cta.b64 [full], 1;\nWAIT:\n    mbarrier.try_wait.parity.shared::cta.b64 %done, [full], 0;\n    @!%done bra WAIT;\n",
    );
    let cluster = Launch { grid: [16, 1, 1], cluster: [16, 1, 1], ..one.clone() };
    let stop = AtomicBool::new(true);
    let none = Options { interrupt: Some(&stop), ..options };
    let launch_error = time(&spin, &launch(0, Vec::new()), &options);
    let TimeError::Launch(inner) = &launch_error else { panic!("{launch_error}") };
    let inner = kind(inner);
    vec![
        case("A launch that no device takes", launch_error).and(inner),
        case("A module for B200, on H200", on(Chip::named("h200").unwrap(), &spin, &one, &options)),
        case(
            "A cluster of 16 on a chip that runs none of them",
            on(b200().with("clusters_of_16", 0.0).unwrap(), &spin, &cluster, &options),
        ),
        case("A kernel that traps", time(&ptx("", "    trap;\n"), &one, &options)),
        case("A kernel that waits for an arrival that nobody makes", time(&never, &one, &options)),
        case("A time limit that is over at once", time(&spin, &one, &none)),
        case(
            "A limit of 1000 instructions",
            time(&spin, &one, &Options { instruction_limit: 1000, ..options }),
        ),
    ]
}

/// Listings of machine code.
fn listings() -> Vec<Case> {
    let read = |text: &str| SassCosts::from_listing(text).map(drop).unwrap_err();
    let listing = |kernel: &str, line: &str| {
        let code = "/*0000*/ STG.E [R2.64], R4 ; /* 0x0 */\n/* 0x000fe20000000000 */\n";
        format!("\t.section\t.text.{kernel},\"ax\"\n{line}{code}")
    };
    let module = Module::parse("k.ptx", &ptx("", "")).unwrap();
    let chip = Chip::named("b200").unwrap();
    let costs = |what: &'static str, kernel: &str, line: u32| {
        let text = listing(kernel, &format!("//## File \"\", line {line}\n"));
        let sass = SassCosts::from_listing(&text).unwrap();
        let error = issue_costs(&module, "k", &chip, Some(&sass)).map(drop).unwrap_err();
        let TimeError::Sass(inner) = &error else { panic!("{error}") };
        let inner = kind(inner);
        case(what, error).and(inner)
    };
    vec![
        case("A listing without code", read("nothing")),
        case("A listing without lines of PTX", read(&listing("k", ""))),
        case("A listing that is cut off", read("\t.section\t.text.k,\"ax\"\n/*0000*/ EX\n")),
        costs("A listing of another module", "gemm", 6),
        costs("A listing of another version of the text", "k", 9),
    ]
}

fn mutants(top: &Path) -> Vec<Case> {
    let survey = |name: &str, body: &str| {
        let subject = Subject::read(&written(top, name, &ptx("", body), HEAD)).unwrap();
        subject.survey(&SurveyOptions::default()).map(drop).unwrap_err()
    };
    vec![
        case(
            "A kernel that is wrong itself",
            survey("wrong", "    .shared .align 4 .b8 s[8];\n    bar.sync 0;\n    st.shared.u32 [s+8], 1;\n"),
        ),
        case("A kernel whose result depends on the order of its warps", last(top)),
        case("A kernel without an instruction to change", survey("nothing", "")),
    ]
}

/// Two warps write their numbers to one place.
fn last(top: &Path) -> MutateError {
    let body = "    .reg .b32 %r<3>;
    .reg .b64 %rd;
    ld.param.u64 %rd, [p];
    mov.u32 %r0, %tid.x;
    shr.u32 %r0, %r0, 5;
    atom.relaxed.gpu.global.exch.b32 %r1, [%rd], %r0;
";
    let head = HEAD.replace("[2, 1, 1]", "[1, 1, 1]").replace("[32, 1, 1]", "[64, 1, 1]");
    let text = format!("{head}[buffers.c]\nbytes = 4\nfill = 0\n[[params]]\npointer = \"c\"\n");
    let subject = Subject::read(&written(top, "last", &ptx(".param .u64 p", body), &text)).unwrap();
    subject.survey(&SurveyOptions::default()).map(drop).unwrap_err()
}
