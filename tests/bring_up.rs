//! The bring-up pack from start to end on the emulated driver: what it finds, what it says of it, and what it goes on after.
//!
//! A commit takes a quarter of a chip's steps and the one with the damaged kernel, and one in seven of its probes;
//! `SILUMIN_FULL=1` takes all.

use serde_json::Value;
use silumin::Arch;
use silumin::verify::toolchain::Ptxas;
use silumin_cli::bring_up;
use silumin_cli::bring_up::pack::{Options, build};
use silumin_cli::bring_up::{Size, probes, steps};
use silumin_testkit::sample;
use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

/// A pack, and a folder that holds nothing but the emulated driver's library.
struct Bench {
    folder: TempDir,
}

/// What the command said and wrote.
struct Run {
    status: i32,
    said: String,
    report: Value,
    page: String,
}

impl Bench {
    fn new(arches: &[Arch], only: &[u32], plant: Option<&str>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = Options {
            arches: arches.to_vec(),
            size: Size::Small,
            only: only.to_vec(),
            plant: plant.map(|text| text.parse().unwrap()),
            out: folder.path().join("pack"),
        };
        build(&options).unwrap();
        fs::create_dir(folder.path().join("driver")).unwrap();
        fs::copy(silumin_testkit::driver::library(), folder.path().join("driver/libcuda.so.1")).unwrap();
        Bench { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// An executable on the path of the command.
    fn tool(&self, name: &str, text: &str) {
        fs::create_dir_all(self.path("tools")).unwrap();
        let path = self.path("tools").join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn run(&self, chip: Arch, flags: &[&str], variables: &[(&str, &str)]) -> Run {
        self.run_on(&chip.to_string(), flags, variables)
    }

    fn run_on(&self, chip: &str, flags: &[&str], variables: &[(&str, &str)]) -> Run {
        let paths = format!("{}:{}", self.path("tools").display(), std::env::var("PATH").unwrap());
        let output = Command::new("python3")
            .arg(self.path("pack/bring_up.py"))
            .arg("--out")
            .arg(self.path("out"))
            .args(["--launches", "3", "--repeats", "1"])
            .args(flags)
            .env("PATH", paths)
            .env("LD_LIBRARY_PATH", self.path("driver"))
            .env("SILUMIN_EMULATED_CHIP", chip)
            .envs(variables.iter().copied())
            .output()
            .unwrap();

        let read = |name: &str| fs::read_to_string(self.path("out").join(name)).unwrap_or_default();
        Run {
            status: output.status.code().unwrap(),
            said: String::from_utf8_lossy(&output.stdout).into_owned()
                + &String::from_utf8_lossy(&output.stderr),
            report: serde_json::from_str(&read("report.json")).unwrap_or_default(),
            page: read("report.md"),
        }
    }
}

/// Ids and verdicts of all cases.
fn verdicts(report: &Value) -> Vec<(&str, &str)> {
    let steps = report["steps"].as_array().into_iter().flatten();
    let cases = steps.flat_map(|step| step["cases"].as_array().into_iter().flatten());
    cases.map(|case| (case["id"].as_str().unwrap(), case["verdict"].as_str().unwrap())).collect()
}

fn case<'a>(report: &'a Value, id: &str) -> &'a Value {
    let steps = report["steps"].as_array().unwrap();
    steps.iter().flat_map(|step| step["cases"].as_array().unwrap()).find(|case| case["id"] == id).unwrap()
}

/// The probes of a chip that the commit chooses, one in seven. Seven is prime to the number of chips, as below.
fn some_probes(arch: Arch) -> Vec<String> {
    let all = probes::all(arch, Size::Small).into_iter().map(|probe| probe.name).collect();
    sample::of(all, 7).into_iter().map(|(_, name)| name).collect()
}

/// A chip's pack with one kernel damaged: the steps that the commit chooses and the kernel's; and probes.
fn from_start_to_end(arch: Arch, planted: &str, assumption: &str, avoid: Option<&str>) {
    let all: Vec<_> =
        steps(arch, Size::Small).into_iter().map(|step| (step.number, step.cases.len())).collect();
    let step: u32 = planted.trim_end_matches(char::is_alphabetic).parse().unwrap();
    let chosen: HashSet<u32> = sample::of(all.clone(), 4).into_iter().map(|(_, (step, _))| step).collect();
    let steps: Vec<_> =
        all.into_iter().filter(|(number, _)| *number == step || chosen.contains(number)).collect();
    let only: Vec<u32> = steps.iter().map(|(number, _)| *number).collect();
    let bench = Bench::new(&[arch], &only, Some(planted));
    let names = some_probes(arch);
    let run = bench.run(arch, &["--no-tools", "--probes", &names.join(",")], &[]);
    let failed: Vec<_> = verdicts(&run.report).into_iter().filter(|(_, verdict)| *verdict != "ok").collect();
    assert_eq!(failed, [(planted, "failed")], "{}; {}", run.said, sample::again());
    assert_eq!(verdicts(&run.report).len(), steps.iter().map(|(_, cases)| cases).sum::<usize>());
    assert_eq!(run.status, 1, "{}", run.said);
    // What is wrong, and what that tells.
    let found = case(&run.report, planted);
    assert_eq!(found["once"]["result"], "wrong", "{found}");
    assert_eq!(found["gpu_afterwards"], "healthy");
    let says = found["says"].to_string();
    assert!(says.contains("halfwords differ") && says.contains(assumption), "{says}");
    assert!(run.said.contains(assumption) && run.page.contains(assumption), "{}", run.page);
    assert_eq!(avoid.is_some(), says.contains("these knob values avoid it"), "{says}");
    assert!(avoid.is_none_or(|knobs| says.contains(knobs)), "{says}");
    // What an emulated driver is, and what a pack has planted, is not kept quiet.
    assert_eq!(run.report["emulated"], true);
    assert_eq!(run.report["finished"], true);
    assert!(run.page.contains("An emulated driver") && run.page.contains("A mistake was planted in"));
    // Every launch back to back was compared.
    for (id, _) in verdicts(&run.report).into_iter().filter(|(id, _)| *id != planted) {
        let looped = &case(&run.report, id)["loop"];
        assert_eq!(
            (looped["launches"].as_u64(), looped["compared"].as_u64()),
            (Some(3), Some(3)),
            "{id}: {looped}"
        );
        assert_eq!(case(&run.report, id)["racecheck"]["result"], "not asked for");
    }
    let probes = run.report["probes"].as_array().unwrap();
    let bad: Vec<_> = probes.iter().filter(|probe| probe["verdict"] != "ok").collect();
    assert!(bad.is_empty(), "{bad:?}; {}", sample::again());
    let taken: Vec<&str> = probes.iter().map(|probe| probe["name"].as_str().unwrap()).collect();
    assert!(taken == names && !taken.is_empty(), "{taken:?}");
    let text = fs::read_to_string(bench.path("out").join(format!("{arch}.measured.toml"))).unwrap();
    let chip: toml::Table = text.parse().unwrap();
    assert_eq!(chip["chip"]["emulated"].as_bool(), Some(true));
    for probe in probes {
        let table = chip[probe["name"].as_str().unwrap()].as_table().unwrap();
        assert!(table["source"].as_str().unwrap().starts_with("probe ") && table.len() > 3, "{table}");
    }
}

#[test]
fn blackwell_s_pack_names_the_wrong_kernel() {
    from_start_to_end(
        Arch::Sm100a,
        "10h",
        "R3: clusters of two pairs, scale-factor multicast mask 15",
        Some("multicast = none"),
    );
}

#[test]
fn hopper_s_pack_names_the_wrong_kernel() {
    from_start_to_end(Arch::Sm90a, "8c", "one CTA hands its sums over to another that waits", None);
}

/// A small chip's pack: the commit chooses the chip, its steps, and its probes.
#[test]
fn packs_of_small_chips_run() {
    for (_, arch) in sample::of(vec![Arch::Sm110a, Arch::Sm120a], 2) {
        let all = steps(arch, Size::Small).into_iter().map(|step| step.number).collect();
        // Prime to the number of chips, so that each chip gets all of its steps.
        let only: Vec<u32> = sample::of(all, 5).into_iter().map(|(_, number)| number).collect();
        let bench = Bench::new(&[arch], &only, None);
        let names = some_probes(arch);
        let run = bench.run(arch, &["--no-tools", "--probes", &names.join(",")], &[]);
        assert_eq!(run.status, 0, "{}; {}", run.said, sample::again());
        let verdicts = verdicts(&run.report);
        let again = sample::again();
        let ok = !verdicts.is_empty() && verdicts.iter().all(|(_, verdict)| *verdict == "ok");
        assert!(ok, "{verdicts:?}; {again}");
        let probes = run.report["probes"].as_array().unwrap();
        let ok = probes.len() == names.len() && probes.iter().all(|probe| probe["verdict"] == "ok");
        assert!(ok && !names.is_empty(), "{probes:?}; {again}");
    }
}

#[test]
fn what_hangs_or_crashes_or_fails_costs_only_itself() {
    let bench = Bench::new(&[Arch::Sm90a], &[2, 4], None);
    // Three kernels of the pack, told by what their first lines say.
    let mishaps = "hang:tile = [64, 64, 64];abort:tile = [192, 96, 64];fail:promotion = every(128)";
    let run = bench.run(
        Arch::Sm90a,
        &["--no-tools", "--no-probes", "--seconds", "12"],
        &[("SILUMIN_EMULATED_MISHAP", mishaps)],
    );
    let failed: Vec<_> = verdicts(&run.report).into_iter().filter(|(_, verdict)| *verdict != "ok").collect();
    assert_eq!(failed, [("2a", "failed"), ("2c", "failed"), ("4b", "failed")], "{}", run.said);
    let result = |id: &str| case(&run.report, id)["once"]["result"].as_str().unwrap().to_owned();
    assert_eq!([result("2a"), result("2c"), result("4b")], ["hang", "crash", "error"]);
    assert!(case(&run.report, "2a")["once"]["text"].as_str().unwrap().contains("not done after 12 s"));
    assert!(case(&run.report, "4b")["once"]["text"].as_str().unwrap().contains("error 719"));
    assert_eq!(case(&run.report, "2a")["loop"]["result"], "not run");
    assert_eq!(run.status, 1);
}

#[test]
fn a_gpu_that_runs_nothing_any_more_ends_the_steps() {
    let bench = Bench::new(&[Arch::Sm90a], &[1, 2], None);
    // Every kernel has the text, the comparison too.
    let run = bench.run(Arch::Sm90a, &["--no-tools"], &[("SILUMIN_EMULATED_MISHAP", "fail:.target")]);
    assert_eq!(run.status, 1);
    assert!(run.said.contains("the driver does not even compare two buffers"), "{}", run.said);
    // All but the comparison.
    let run = bench.run(
        Arch::Sm90a,
        &["--no-tools", "--no-probes", "--from", "2"],
        &[("SILUMIN_EMULATED_MISHAP", "fail:wgmma")],
    );
    assert!(
        verdicts(&run.report).iter().all(|(id, verdict)| id.starts_with('2') && *verdict == "failed"),
        "{}",
        run.said
    );
}

#[test]
fn tools_are_used_where_they_are_and_missed_where_not() {
    let bench = Bench::new(&[Arch::Sm100a], &[1, 2], None);
    // A sanitizer that finds a race in one kernel, and an assembler that leaves the text as it is.
    bench.tool(
        "compute-sanitizer",
        "#!/bin/sh\n[ \"$1\" = --version ] && echo 2099.1 && exit 0\ncase \"$*\" in *racecheck*2a.json*) echo 'a race'; exit 86;; esac\n\
         while [ \"${1#--}\" != \"$1\" ]; do shift 2; done\nexec \"$@\"\n",
    );
    bench.tool(
        "ptxas",
        "#!/bin/sh\ncase \"$1\" in --help) echo --g-tensor-memory-access-check;; --version) echo 99;; *) cp \"$4\" \"$6\";; esac\n",
    );
    let run = bench.run(Arch::Sm100a, &["--no-probes"], &[]);
    let result = |id: &str, tool: &str| case(&run.report, id)[tool]["result"].as_str().unwrap().to_owned();
    assert_eq!(
        [result("1a", "synccheck"), result("1a", "racecheck"), result("1a", "memcheck")],
        ["ok"; 3],
        "{}",
        run.said
    );
    assert_eq!([result("1a", "instrumented"), result("2b", "instrumented")], ["ok"; 2]);
    assert_eq!(result("2a", "racecheck"), "findings");
    assert_eq!(case(&run.report, "2a")["racecheck"]["said"].to_string(), "[\"a race\"]");
    assert_eq!(case(&run.report, "2a")["verdict"], "failed");
    assert_eq!(run.report["tools"]["compute-sanitizer"]["version"].to_string(), "[\"2099.1\"]");
    // An assembler that does not know the checks is no assembler here.
    bench.tool("ptxas", "#!/bin/sh\necho 1.0\n");
    let run = bench.run(Arch::Sm100a, &["--no-probes", "--only", "1"], &[]);
    assert_eq!(case(&run.report, "1a")["instrumented"]["result"], "not there");
    assert_eq!(verdicts(&run.report), [("1a", "ok"), ("1b", "ok")], "{}", run.said);
}

#[test]
fn hazards_of_racecheck_that_are_known_do_not_fail_a_kernel() {
    let bench = Bench::new(&[Arch::Sm90a], &[9], None);
    bench.tool(
        "compute-sanitizer",
        "#!/bin/sh\n[ \"$1\" = --version ] && echo 2099.1 && exit 0\ncase \"$*\" in *racecheck*) echo 'a race'; exit 86;; esac\n\
         while [ \"${1#--}\" != \"$1\" ]; do shift 2; done\nexec \"$@\"\n",
    );
    let run = bench.run(Arch::Sm90a, &["--no-probes"], &[]);
    let (unknown, known) = (case(&run.report, "9a"), case(&run.report, "9d"));
    assert_eq!(
        [&unknown["racecheck"]["result"], &unknown["verdict"]],
        ["findings", "failed"],
        "{}",
        run.said
    );
    assert_eq!([&known["racecheck"]["result"], &known["verdict"]], ["known findings", "ok"], "{}", run.said);
}

#[test]
fn other_chips_and_damaged_packs_are_refused() {
    let bench = Bench::new(&[Arch::Sm90a], &[1], None);
    for chip in ["sm_103a", "sm_110a", "sm_120a"] {
        let run = bench.run_on(chip, &[], &[]);
        assert_eq!(run.status, 2);
        assert!(run.said.contains(&format!("build one with `--arch {chip}`")), "{}", run.said);
    }
    let run = bench.run(Arch::Sm90a, &["--probes", "dram_latency,dram_load_16kb"], &[]);
    let says = "the pack has no probe `dram_load_16kb` for sm_90a; near it: dram_load_16_kb";
    assert!(run.status == 2 && run.said.contains(says), "{}", run.said);
    let run = bench.run(Arch::Sm90a, &["--probes", "dram_latency", "--no-probes"], &[]);
    assert!(run.status == 2 && run.said.contains("exclude each other"), "{}", run.said);
    // The emulated driver has no chip without kernels.
    for (capability, why) in [
        ("(8, 9)", "they need TMA"),
        ("(10, 1)", "one of CUDA 13.0 or newer"),
        ("(13, 0)", "they need a silumin with a target"),
    ] {
        let script =
            format!("import bring_up; print(bring_up.refuse({capability}, 'a GPU', {{'chips': []}}))");
        let output = Command::new("python3")
            .args(["-c", &script])
            .env("PYTHONPATH", bench.path("pack"))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(said.contains(why), "{said}");
        let listed = said.contains("sm_110a (11.0), sm_120a (12.0), sm_121a (12.1)");
        assert!(
            capability == "(10, 1)" || listed && said.contains("silumin has no kernels for it"),
            "{said}"
        );
    }
    let ptx = bench.path("pack/sm_90a/1a.ptx");
    let text = fs::read_to_string(&ptx).unwrap();
    fs::write(&ptx, text.replacen("wgmma", "wgmmb", 1)).unwrap();
    let run = bench.run(Arch::Sm90a, &[], &[]);
    assert_eq!(run.status, 2);
    assert!(run.said.contains("1 files are not as they were built: sm_90a/1a.ptx"), "{}", run.said);
    // Without a driver, and for a kernel that there is not.
    fs::write(&ptx, text).unwrap();
    let run = bench.run(Arch::Sm90a, &[], &[("SILUMIN_LIBCUDA", "/nowhere/libcuda.so.1")]);
    assert_eq!(run.status, 2);
    assert!(run.said.contains("an NVIDIA driver is needed"), "{}", run.said);
    let mut options = Options {
        arches: vec![Arch::Sm90a],
        size: Size::Small,
        only: vec![1],
        plant: Some("9z".parse().unwrap()),
        out: bench.path("other"),
    };
    assert!(build(&options).unwrap_err().to_string().contains("no kernel is called 9z"));
    options.out = bench.path("pack");
    assert!(build(&options).unwrap_err().to_string().contains("is not empty"));
    assert!("1a:late".parse::<bring_up::plant::Plant>().is_err());
}

#[test]
fn probes_assemble() {
    let ptxas = Ptxas::find().unwrap();
    let mut small = Vec::new();
    for arch in [Arch::Sm90a, Arch::Sm100a, Arch::Sm103a, Arch::Sm110a, Arch::Sm120a, Arch::Sm121a] {
        for size in [Size::Small, Size::Full] {
            let probes = bring_up::probes::all(arch, size);
            let names: HashSet<&str> = probes.iter().map(|probe| probe.name.as_str()).collect();
            assert_eq!(names.len(), probes.len());
            if size == Size::Small {
                small.extend(probes.into_iter().map(|probe| (arch, probe)));
            }
        }
    }
    let small = sample::of(small, 3);
    let faults =
        silumin_testkit::faults(&small, |_, (_, (arch, probe))| match ptxas.assemble(&probe.ptx, *arch) {
            Ok(done) if !done.log.contains("serialized") => None,
            Ok(done) => Some(format!("{arch} {}: {}", probe.name, done.log)),
            Err(error) => Some(format!("{arch} {}: {error}", probe.name)),
        });
    sample::assert_none(&faults, small.len());
    let check = fs::read_to_string(silumin_testkit::root().join("cli/src/bring_up/check.ptx")).unwrap();
    ptxas.assemble(&check, Arch::Sm100a).unwrap();
}

/// Every step's configurations are legal for the chips of its kind.
#[test]
fn every_step_makes_kernels_at_full_size() {
    for arch in [Arch::Sm90a, Arch::Sm100a, Arch::Sm103a, Arch::Sm110a, Arch::Sm120a, Arch::Sm121a] {
        for step in steps(arch, Size::Full) {
            for case in step.cases {
                let (spec, arch) = case.spec(arch).unwrap().read().unwrap();
                spec.kernel(case.shape, arch)
                    .unwrap_or_else(|e| panic!("{arch} {} {}: {e}", case.id, case.knobs));
            }
        }
    }
}
