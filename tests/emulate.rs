//! The `emulate` command from its flags to its exit status: what it runs, reports, writes and refuses.

use silumin::codegen::kernel::Kernel;
use silumin::verify::inputs::DualGemmInputs;
use silumin::verify::launch_file;
use silumin::{Arch, Device, DeviceOperands, Distribution, DualGemm, Gate, Shape, Spec};
use silumin_cli::emulate as verb;
use silumin_emulator::command::{Limits, Request, Schedules, execute};
use silumin_emulator::{Reconvergence, Schedule, Tracking};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// What the command said, and its exit status.
struct Said {
    status: u8,
    out: String,
    err: String,
}

fn emulate(args: &[&str]) -> Said {
    let matches = match verb::command().try_get_matches_from([&["emulate"], args].concat()) {
        Ok(matches) => matches,
        Err(e) => return Said { status: e.exit_code() as u8, out: String::new(), err: e.to_string() },
    };
    let request = match verb::request(&matches) {
        Ok(request) => request,
        Err(e) => return Said { status: 2, out: String::new(), err: e },
    };
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let status = execute(&request, &mut out, &mut err);
    Said { status, out: String::from_utf8(out).unwrap(), err: String::from_utf8(err).unwrap() }
}

impl Said {
    fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e} in: {}", self.out))
    }

    #[track_caller]
    fn expect(&self, status: u8, wanted: &[&str]) {
        let all = format!("{}{}", self.out, self.err);
        assert_eq!(self.status, status, "{all}");
        for w in wanted {
            assert!(all.contains(w), "no `{w}` in: {all}");
        }
    }
}

/// A folder with a kernel of one pointer parameter, and a launch of 64 threads on a buffer `x` of words.
fn kernel(body: &str, buffer: &str) -> (TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let ptx = format!(
        ".version 8.7
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 p)
{{
    .reg .pred %p<4>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<8>;
    .shared .align 4 .b32 word;
    ld.param.u64 %rd1, [p];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd2, %r1, 4;
    add.u64 %rd2, %rd1, %rd2;
{body}
    ret;
}}
"
    );
    fs::write(folder.path().join("k.ptx"), ptx).unwrap();
    let toml = format!(
        "ptx = \"k.ptx\"\nkernel = \"k\"\ngrid = [2, 1, 1]\nblock = [64, 1, 1]\n[buffers.x]\n{buffer}\n[[params]]\npointer = \"x\"\n"
    );
    let launch = folder.path().join("launch.toml");
    fs::write(&launch, toml).unwrap();
    let launch = launch.to_str().unwrap().to_owned();
    (folder, launch)
}

const STORE: &str = "    st.global.u32 [%rd2], %r1;";
const LOAD: &str = "    ld.global.u32 %r2, [%rd2];\n    add.u32 %r2, %r2, 1;\n    st.global.u32 [%rd2], %r2;";

fn path(folder: &TempDir, name: &str) -> PathBuf {
    folder.path().join(name)
}

#[test]
fn a_clean_run_exits_with_0_and_writes_every_buffer() {
    let (folder, launch) = kernel(STORE, "bytes = 260");
    let out = path(&folder, "deep/results");
    let said = emulate(&[&launch, "--out", out.to_str().unwrap(), "--threads", "1"]);
    said.expect(
        0,
        &["ran       k of ", "grid [2, 1, 1], block [64, 1, 1]", "PTX instructions", "no finding"],
    );
    assert!(said.err.is_empty(), "{}", said.err);
    let words: Vec<u8> = (0..64u32).flat_map(u32::to_le_bytes).chain([0; 4]).collect();
    assert_eq!(fs::read(out.join("x.bin")).unwrap(), words);
}

#[test]
fn lanes_that_went_apart_stay_apart_on_request() {
    let body = "    and.b32 %r3, %r1, 1;
    setp.eq.u32 %p1, %r3, 0;
    @%p1 bra EVEN;
    add.u32 %r4, %r1, 1;
EVEN:
    activemask.b32 %r5;
    st.global.u32 [%rd2], %r5;";
    let masks = |how: &str| {
        let (folder, launch) = kernel(body, "bytes = 256");
        let out = path(&folder, "out");
        emulate(&[&launch, "--out", out.to_str().unwrap(), "--reconvergence", how])
            .expect(0, &["no finding"]);
        let bytes = fs::read(out.join("x.bin")).unwrap();
        bytes.chunks(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect::<Vec<_>>()
    };
    assert_eq!(masks("eager"), [u32::MAX; 64]);
    assert_eq!(masks("forced")[..2], [0x5555_5555, 0xaaaa_aaaa]);
    emulate(&["launch.toml", "--reconvergence", "never"]).expect(2, &["eager", "forced"]);
}

#[test]
fn findings_exit_with_1_and_say_where() {
    let (folder, launch) = kernel(LOAD, "bytes = 256");
    let said = emulate(&[&launch, "--out", path(&folder, "o").to_str().unwrap()]);
    said.expect(
        1,
        &["UninitialisedGlobal", "k.ptx:14: ld.global.u32 %r2, [%rd2];", "CTA (", "warp ", "finding 1: "],
    );
    assert_eq!(fs::read(path(&folder, "o/x.bin")).unwrap().len(), 256);
    // A fill is a value, and so is a file.
    let (folder, launch) = kernel(LOAD, "bytes = 256\nfill = 1");
    let text = fs::read_to_string(&launch).unwrap();
    // One CTA: two would race for the same bytes.
    fs::write(&launch, text.replace("grid = [2,", "grid = [1,")).unwrap();
    emulate(&[&launch, "--out", path(&folder, "o").to_str().unwrap()]).expect(0, &["no finding"]);
    assert_eq!(fs::read(path(&folder, "o/x.bin")).unwrap()[1..4], [1, 1, 1]);
    let (folder, launch) = kernel(LOAD, "file = \"x.bin\"");
    fs::write(path(&folder, "x.bin"), [7; 128]).unwrap();
    emulate(&[&launch]).expect(1, &["OutOfBounds", "buffer `x`, which has 128 bytes"]);
}

#[test]
fn bad_input_exits_with_2_and_writes_nothing() {
    let (folder, launch) = kernel(STORE, "bytes = 256");
    let out = path(&folder, "out");
    let o = out.to_str().unwrap();
    let none = path(&folder, "none.toml");
    for (args, wanted) in [
        (vec![none.to_str().unwrap(), "--out", o], "none.toml"),
        (vec![&launch, "--out", o, "--seeds", "0"], "--seeds 0"),
        (vec![&launch, "--out", o, "--seeds", "99999999"], "from 1 to"),
        (vec![&launch, "--out", o, "--threads", "99999"], "at most 1024"),
        (vec![&launch, "--out", o, "--trace", "2"], "there is no warp 2: a CTA of this launch has 2"),
        (vec![&launch, "--out", o, "--trace", "2:0"], "there is no CTA 2"),
        (vec![&launch, "--out", o, "--trace", "0,1,0:0"], "there is no CTA [0, 1, 0]"),
        (vec![&launch, "--out", o, "--trace", "x"], "is not a warp"),
        (vec![&launch, "--out", o, "--trace", "0,1:0"], "is not a warp"),
        (vec![&launch, "--out", o, "--seed", "1", "--seeds", "2"], "cannot be used with"),
        (vec![&launch, "--out", o, "--seed", "1", "--schedule", "late"], "`late` has no seed"),
        (vec![&launch, "--out", o, "--schedule", "never"], "early, late, random"),
        (vec![&launch, "--out", &launch], "--out"),
        (vec![], "required"),
        (vec!["--check"], "--check"),
        (vec!["--check", none.to_str().unwrap()], "none.toml"),
    ] {
        emulate(&args).expect(2, &[wanted]);
    }
    assert!(!out.exists());
    let said = emulate(&[none.to_str().unwrap(), "--json"]);
    said.expect(2, &[]);
    assert!(said.json()["error"].as_str().unwrap().contains("none.toml"));
}

#[test]
fn an_input_file_is_not_overwritten_by_a_result() {
    let (folder, launch) = kernel(LOAD, "file = \"x.bin\"");
    fs::write(path(&folder, "x.bin"), [7; 256]).unwrap();
    let here = folder.path().to_str().unwrap();
    emulate(&[&launch, "--out", here]).expect(2, &["would overwrite an input", "another folder"]);
    assert_eq!(fs::read(path(&folder, "x.bin")).unwrap(), [7; 256]);
}

#[test]
#[cfg(unix)]
fn no_input_is_overwritten_whatever_it_is_named_or_linked_to() {
    use std::os::unix::fs::symlink;
    let (folder, launch) = kernel(STORE, "file = \"data\"");
    fs::write(path(&folder, "data"), [7; 256]).unwrap();
    let inputs = [path(&folder, "data"), PathBuf::from(&launch), path(&folder, "k.ptx")];
    let before: Vec<Vec<u8>> = inputs.iter().map(|input| fs::read(input).unwrap()).collect();
    for (n, input) in inputs.iter().enumerate() {
        for (kind, link) in [("hard", true), ("soft", false)] {
            let out = path(&folder, &format!("{kind}{n}"));
            fs::create_dir(&out).unwrap();
            match link {
                true => fs::hard_link(input, out.join("x.bin")).unwrap(),
                false => symlink(input, out.join("x.bin")).unwrap(),
            }
            let said = emulate(&[&launch, "--out", out.to_str().unwrap()]);
            said.expect(2, &["would overwrite an input", "another folder", "x.bin"]);
            let entries: Vec<_> = fs::read_dir(&out).unwrap().collect();
            assert_eq!(entries.len(), 1, "{entries:?}");
        }
    }
    // A link that leads elsewhere is replaced, and where it leads stays as it is.
    let (out, precious) = (path(&folder, "out"), path(&folder, "precious"));
    fs::create_dir(&out).unwrap();
    fs::write(&precious, "precious").unwrap();
    symlink(&precious, out.join("x.bin")).unwrap();
    emulate(&[&launch, "--out", out.to_str().unwrap()]).expect(0, &["no finding"]);
    assert_eq!(fs::read(&precious).unwrap(), b"precious");
    assert_eq!(fs::read(out.join("x.bin")).unwrap().len(), 256);
    let after: Vec<Vec<u8>> = inputs.iter().map(|input| fs::read(input).unwrap()).collect();
    assert_eq!(before, after);
}

#[test]
fn limits_end_a_run_with_what_was_found() {
    let (folder, launch) = kernel("    st.global.u32 [%rd1], 1;\nSPIN:\n    bra SPIN;", "bytes = 256");
    let out = path(&folder, "out");
    let o = out.to_str().unwrap();
    let start = std::time::Instant::now();
    let said = emulate(&[&launch, "--time-limit", "0.5", "--seeds", "8", "--out", o]);
    said.expect(1, &["TimeLimit", "the time limit of", "ended schedule 1 of 14; the others did not run"]);
    emulate(&[&launch, "--instruction-limit", "10000"]).expect(1, &["InstructionLimit", "bra SPIN"]);
    assert!(start.elapsed() < std::time::Duration::from_secs(60));
    let said = emulate(&[&launch, "--time-limit", "0.2", "--seeds", "2", "--json"]);
    said.expect(1, &[]);
    assert_eq!(said.json()["schedules_left_out"], 7);
    assert_eq!(said.json()["findings"][0]["kind"], "TimeLimit");
    // Memory: of buffers and of clusters, refused before anything is written.
    let none = path(&folder, "none");
    for (limit, wanted) in [("100", "the buffers of the launch have 256 bytes"), ("2000", "memory limit")] {
        let said = emulate(&[&launch, "--memory-limit", limit, "--out", none.to_str().unwrap()]);
        said.expect(2, &[wanted]);
        assert!(!none.join("x.bin").exists());
    }
    for (flag, value) in [
        ("--time-limit", "0"),
        ("--time-limit", "-1"),
        ("--time-limit", "x"),
        ("--time-limit", "1e30"),
        ("--instruction-limit", "0"),
        ("--memory-limit", "-5"),
        ("--resident", "0"),
        ("--resident", "all"),
    ] {
        emulate(&[&launch, &format!("{flag}={value}")]).expect(2, &[flag]);
    }
}

/// Which CTA comes first raises a flag, and waits until the other one has raised it, too.
const MEET: &str = "
    atom.global.gpu.add.u32 %r2, [%rd1], 0;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra DONE;
    atom.global.gpu.add.u32 %r2, [%rd1], 1;
SPIN:
    ld.acquire.gpu.global.u32 %r3, [%rd1];
    setp.lt.u32 %p1, %r3, 2;
    @%p1 bra SPIN;
DONE:";

#[test]
fn a_grid_that_needs_more_clusters_at_a_time_than_there_is_room_for_hangs() {
    let (folder, launch) = kernel(MEET, "file = \"zero.bin\"");
    fs::write(path(&folder, "zero.bin"), [0; 256]).unwrap();
    for flags in [&[][..], &["--resident", "2"], &["--resident", "7", "--seeds", "2"]] {
        emulate(&[&[launch.as_str()], flags].concat()).expect(0, &["no finding"]);
    }
    let said = emulate(&[&launch, "--resident", "1", "--time-limit", "60"]);
    said.expect(1, &["GridDeadlock", "ld.acquire.gpu.global.u32 %r3", "1 more of the grid"]);
    // A caller of the library has no flags that are checked before.
    let matches = verb::command().get_matches_from(["emulate", &launch]);
    let Ok(Request::Run { limits, launch, .. }) = verb::request(&matches) else { unreachable!() };
    let request = Request::Run {
        limits: Limits { resident: Some(0), ..limits },
        launch,
        out: None,
        schedules: Schedules::One(Schedule::Early),
        tracking: Tracking::Off,
        reconvergence: Reconvergence::Eager,
        trace: None,
        threads: 1,
        json: false,
    };
    let (mut out, mut err) = (Vec::new(), Vec::new());
    assert_eq!(execute(&request, &mut out, &mut err), 2);
    assert!(String::from_utf8_lossy(&err).contains("must be at least 1"));
}

#[test]
fn json_is_one_document_with_findings_and_statistics() {
    let (_folder, launch) = kernel(LOAD, "bytes = 256");
    let said = emulate(&[&launch, "--json"]);
    assert_eq!((said.status, said.err.as_str()), (1, ""));
    let json = said.json();
    assert_eq!(json["exit"], 1);
    let finding = &json["findings"][0];
    assert_eq!((&finding["kind"], &finding["line"]), (&"UninitialisedGlobal".into(), &14.into()));
    assert!(finding["file"].as_str().unwrap().ends_with("k.ptx"));
    assert_eq!(finding["cta"].as_array().unwrap().len(), 3);
    assert!(json["stats"]["instructions"].as_u64().unwrap() > 0);
    assert_eq!(json["runs"].as_array().unwrap().len(), 1);
    assert!(json["outputs_equal"].is_null());

    let (_folder, launch) = kernel(STORE, "bytes = 256");
    let json = emulate(&[&launch, "--json", "--seeds", "3"]).json();
    assert_eq!((&json["exit"], &json["outputs_equal"]), (&0.into(), &true.into()));
    let schedules: Vec<_> = json["runs"].as_array().unwrap().iter().map(|r| r["schedule"].clone()).collect();
    // A CTA has two warps, and each is starved once with what it has issued, and delayed once alone.
    let (starved, delayed) =
        (["starve 0, seed 0", "starve 1, seed 0"], ["delay 0, seed 0", "delay 1, seed 0"]);
    let wanted = [&["early", "late"][..], &starved, &delayed, &["seed 0", "seed 1", "seed 2"]].concat();
    assert_eq!(schedules, wanted);
    assert_eq!(json["runs"][7]["seed"], 1);
    assert_eq!(json["stats"]["global_written_bytes"], 9 * 2 * 64 * 4);
}

#[test]
fn seeds_compare_outputs_and_name_the_schedules_that_differ() {
    let (_folder, launch) = kernel(STORE, "bytes = 256");
    emulate(&[&launch, "--seeds", "4"])
        .expect(0, &["all 10 schedules", "0 of 10 schedules found something", "bitwise equal"]);
    // Which of four warps is the last to write is not determined.
    let race = "    mov.u32 %r3, %warpid;\n    st.global.u32 [%rd1], %r3;";
    let (_folder, launch) = kernel(race, "bytes = 4");
    // Tracking sees that under any schedule; without it, only the outputs tell.
    emulate(&[&launch, "--threads", "1"]).expect(1, &["RaceGlobal", "k.ptx:15"]);
    let untracked = [&launch, "--seeds", "16", "--threads", "1", "--track", "off"];
    emulate(&untracked).expect(0, &["outputs   DIFFER", "seed ", ": x"]);
    // A schedule that differs replays: its bytes are the same again.
    let json = emulate(&[&untracked[..], &["--json"]].concat()).json();
    assert_eq!(json["outputs_equal"], false);
    let (_folder, launch) = kernel(LOAD, "bytes = 256");
    emulate(&[&launch, "--seeds", "2"])
        .expect(1, &["8 of 8 schedules found something: early, late, starve 0, seed 0", "not compared"]);
}

#[test]
fn one_seed_replays() {
    let race = "    mov.u32 %r3, %warpid;\n    st.global.u32 [%rd1], %r3;";
    let (folder, launch) = kernel(race, "bytes = 4");
    let run = |seed: u32, name: &str| {
        let out = path(&folder, name);
        let seed = seed.to_string();
        let out_folder = out.to_str().unwrap();
        let args = [&launch, "--seed", &seed, "--threads", "1", "--track", "off", "--out", out_folder];
        emulate(&args).expect(0, &["no finding"]);
        fs::read(out.join("x.bin")).unwrap()
    };
    let first: Vec<_> = (0..16).map(|seed| run(seed, "a")).collect();
    let second: Vec<_> = (0..16).map(|seed| run(seed, "b")).collect();
    assert_eq!(first, second);
    assert!(first.iter().any(|bytes| *bytes != first[0]), "16 seeds, one order");
}

#[test]
fn a_trace_shows_lines_and_active_lanes_of_one_warp() {
    let body = "    setp.lt.u32 %p1, %r1, 36;\n    @%p1 st.global.u32 [%rd2], %r1;\n    bar.sync 0;";
    let (_folder, launch) = kernel(body, "bytes = 256");
    let trace = |target: &str| {
        let said = emulate(&[&launch, "--trace", target]);
        said.expect(0, &["no finding"]);
        said.err
    };
    let second = trace("1:1");
    let lines: Vec<&str> = second.lines().collect();
    assert_eq!(lines[0], "ffffffff     10: ld.param.u64 %rd1, [p];");
    assert_eq!(lines[5], "0000000f     15: @%p1 st.global.u32 [%rd2], %r1;");
    assert_eq!(lines[6], "ffffffff     16: bar.sync 0;");
    assert_eq!(lines[7], "ffffffff     17: ret;");
    assert_eq!(lines.len(), 8, "{second}");
    assert_eq!(trace("1,0,0:1"), second);
    assert!(trace("0").contains("ffffffff     15: @%p1"));
}

#[test]
fn check_lists_everything_that_cannot_run() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        fs::write(folder.path().join(name), text).unwrap();
        folder.path().join(name).to_str().unwrap().to_owned()
    };
    let head = ".version 8.7\n.target sm_100a\n.address_size 64\n";
    let good = write("good.ptx", &format!("{head}.entry one()\n{{\n    ret;\n}}\n"));
    let bad = write(
        "bad.ptx",
        &format!(
            "{head}.func unused()\n{{\n    frob.u32;\n    ret;\n}}\n.entry two()\n{{\n    .reg .b32 %r<2>;\n    1 2 3;\n    add.u33 %r0, %r1, 1;\n    blah;\n    ret;\n}}\n"
        ),
    );
    emulate(&["--check", &good]).expect(0, &["good.ptx: all of it can run: one"]);
    let said = emulate(&["--check", &good, &bad]);
    said.expect(
        1,
        &["bad.ptx:6: frob.u32;: ", "bad.ptx:12: 1 2 3;: ", "bad.ptx:13: add.u33", "bad.ptx:14: blah;: "],
    );
    said.expect(1, &["bad.ptx: 4 problems", "good.ptx: all of it can run"]);
    let header = write(
        "header.ptx",
        &format!(
            "{head}.entry three() .frobs 2\n{{\n    ret;\n}}\n.visible .entry four()\n{{\n{}}}\n",
            "    1 2 3;\n".repeat(200)
        ),
    );
    emulate(&["--check", &header]).expect(
        1,
        &[
            "header.ptx:4: .entry three() .frobs 2: ",
            "header.ptx:10: 1 2 3;: ",
            "header.ptx:209: ",
            " 201 problems",
        ],
    );
    emulate(&["--check", &bad, "/nonexistent.ptx"]).expect(2, &["/nonexistent.ptx: ", "4 problems"]);
    let json = emulate(&["--json", "--check", &bad, &good]).json();
    assert_eq!(json["exit"], 1);
    assert_eq!(json["files"][0]["problems"].as_array().unwrap().len(), 4);
    assert_eq!(json["files"][0]["problems"][1]["line"], 12);
    assert_eq!(json["files"][1]["kernels"][0], "one");
}

/// Nobody reads what is written here.
struct Closed;

impl std::io::Write for Closed {
    fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
        Err(std::io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_reader_who_leaves_changes_no_exit_status() {
    let (_folder, launch) = kernel("    trap;", "bytes = 256");
    let ptx = Path::new(&launch).with_file_name("k.ptx");
    for (args, status) in [(vec![launch.as_str()], 1), (vec!["--check", ptx.to_str().unwrap()], 0)] {
        emulate(&args).expect(status, &[]);
        let matches = verb::command().get_matches_from([vec!["emulate"], args].concat());
        let mut err = Vec::new();
        assert_eq!(execute(&verb::request(&matches).unwrap(), &mut Closed, &mut err), status);
        assert_eq!(String::from_utf8(err).unwrap(), "");
    }
}

#[test]
fn check_survives_damaged_kernels() {
    // Cut and spliced text reaches every way in which a tree can be incomplete.
    let text = fs::read_to_string(silumin_testkit::root().join("tests/out/default.ptx")).unwrap();
    let bytes = text.as_bytes();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("k.ptx");
    let mut state = 1u64;
    let mut random = |n: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n
    };
    let mut refused = 0;
    for _ in 0..150 {
        let mut damaged = bytes.to_vec();
        for _ in 0..1 + random(4) {
            let at = random(damaged.len());
            let cut = random(40).min(damaged.len() - at);
            let from = random(bytes.len() - 40);
            let piece = bytes[from..from + random(40)].to_vec();
            damaged.splice(at..at + cut, piece);
        }
        fs::write(&file, &damaged).unwrap();
        let said = emulate(&["--check", file.to_str().unwrap()]);
        assert!(said.status < 2, "{}", said.err);
        refused += usize::from(said.status);
    }
    assert!(refused > 75, "only {refused} of 150 damaged files were refused");
}

/// The kernel for a shape, and its dual GEMM.
fn dual_gemm(shape: Shape) -> (DualGemm, Kernel) {
    let gate: Gate = "silu(A @ B1) * (A @ B2)".parse().unwrap();
    let gemm = DualGemm::new(Spec::new(gate, &[Arch::Sm100a]).unwrap());
    let kernel = gemm.kernel(shape, Arch::Sm100a).unwrap();
    (gemm, kernel)
}

#[test]
fn launch_files_of_emitted_kernels_run_as_they_are() {
    let shape = Shape::new(130, 200, 416);
    let (_, kernel) = dual_gemm(shape);
    let folder = tempfile::tempdir().unwrap();
    let launch = launch_file::write(folder.path(), &kernel, None, &[]).unwrap();
    let out = folder.path().join("out");
    let args = [launch.to_str().unwrap(), "--seeds", "2", "--out", out.to_str().unwrap()];
    emulate(&args).expect(0, &["no finding", "bitwise equal", "mma       mxf4nvf4"]);
    // Both products are K / 64 = 6.5 everywhere, and silu(6.5) * 6.5 is 42.1875 in f16.
    let c = fs::read(out.join("c.bin")).unwrap();
    assert_eq!(c.len(), 130 * 200 * 2);
    assert!(c.chunks(2).all(|v| v == 0x5146u16.to_le_bytes()), "{:02x?}", &c[..8]);
}

#[test]
fn launch_files_with_inputs_give_the_result_of_verify() {
    let shape = Shape::new(130, 200, 416);
    let (gemm, kernel) = dual_gemm(shape);
    let inputs = DualGemmInputs::generate(shape, Distribution::Full, 1111).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let launch = launch_file::write(folder.path(), &kernel, Some(&inputs), &[]).unwrap();
    let out = folder.path().join("out");
    emulate(&[launch.to_str().unwrap(), "--out", out.to_str().unwrap()]).expect(0, &["no finding"]);

    let device = Device::emulated(Arch::Sm100a);
    let loaded = gemm.load(&device, shape).unwrap();
    let operands = DeviceOperands::upload(&device, &inputs).unwrap();
    loaded.launch(&device.stream(), &operands.args(&[])).unwrap();
    let expected: Vec<u8> = operands.result().unwrap().iter().flat_map(|v| v.to_le_bytes()).collect();
    assert_eq!(fs::read(out.join("c.bin")).unwrap(), expected);
}
