//! The verb `emit` beyond one kernel: `--sweep` and `--explain`.

use serde_json::Value;
use silumin::codegen::arch::TensorCore;
use silumin::codegen::config::{Config, KNOBS};
use silumin::codegen::spec::SpecFile;
use silumin::runtime::predict::default_chip;
use silumin::{Arch, Shape};
use silumin_cli::emit::sweep::Sweep;
use silumin_cli::{emit, print};
use silumin_testkit::sample;

/// Runs `emit`, which prints; what it returns is its exit status.
fn emit(args: &[&str]) -> Result<bool, String> {
    let args = ["emit"].iter().chain(args);
    let matches = emit::command().try_get_matches_from(args).map_err(|error| error.to_string())?;
    emit::run(&matches).map_err(|error| error.to_string())
}

fn sweep(shape: Shape, knobs: &[&str], verify_k: Option<u32>) -> Result<Value, String> {
    let (spec, arch) = SpecFile::new(shape).read().unwrap();
    let sweep = Sweep {
        spec: &spec,
        arch,
        shape,
        seed: 1,
        scalars: &[],
        threads: 1,
        chip: "b200".to_owned(),
        fixed: vec!["cta_group"],
        chosen: knobs.iter().map(|knob| (*knob).to_owned()).collect(),
        verify_k,
    };
    let table = sweep.measure()?;
    let document = table.document(&sweep);
    assert_eq!(document["right"], table.is_right());
    Ok(document)
}

#[test]
fn a_sweep_counts_verifies_and_says_why_not() {
    let knobs = ["strategy=sequential;interleaved", "cta-group=1;2", "tile=[M, 64, 256];[M, 264, 256]"];
    let document = sweep(Shape::new(130, 136, 928), &knobs, None).unwrap();
    assert_eq!(document["right"], true, "{document:#}");
    let rows = document["configurations"].as_array().unwrap();
    assert_eq!(rows.len(), 8);
    let (legal, illegal): (Vec<&Value>, Vec<&Value>) = rows.iter().partition(|row| row["legal"] == true);
    assert_eq!((legal.len(), illegal.len()), (4, 4));
    for row in legal {
        assert_eq!((&row["bytes"], &row["verdict"]["pass"]), (&"counted".into(), &true.into()), "{row:#}");
        assert!(row["mmas"].as_u64() > Some(0) && row["ptxas"]["registers"].as_u64() > Some(16), "{row:#}");
        assert_eq!(row["ptxas"]["spilled"], 0);
    }
    for row in illegal {
        assert!(row["reason"].as_str().unwrap().contains("N = 264"), "{row:#}");
    }
    // A pair loads half of B in each CTA.
    let loaded = |row: &Value| row["loaded_bytes"].as_u64().unwrap();
    assert_eq!(rows[0]["knobs"]["cta_group"], "1");
    assert!(loaded(&rows[2]) < loaded(&rows[0]), "{:#}", document);
}

#[test]
fn batches_and_groups_are_emitted_and_swept() {
    let groups = &["--groups", "5,0,129,0,1"];
    let shape = &["--shape", "140,72,96"];
    let out = tempfile::tempdir().unwrap();
    let out = &["--out", out.path().to_str().unwrap()];
    assert_eq!(emit(&[&groups[..], shape, out, &["--inputs", "--track"]].concat()), Ok(true));
    assert_eq!(emit(&[&["--batch", "2", "--shape", "70,72,96"], &out[..]].concat()), Ok(true));
    // Without a shape M is the rows of all groups.
    assert_eq!(emit(&[&groups[..], out, &["--no-verify"]].concat()), Ok(true));
    assert_eq!(emit(&[&groups[..], shape, &["--explain"]].concat()), Ok(true));
    assert_eq!(emit(&[&groups[..], shape, &["--explain", "--schedule", "stream_k"]].concat()), Ok(false));
    let knob = ["--sweep", "--sweep-knob", "schedule=persistent;dynamic;stream_k"];
    assert_eq!(emit(&[&groups[..], shape, &knob].concat()), Ok(true));
    let knob = ["--sweep", "--sweep-knob", "schedule=persistent"];
    assert_eq!(emit(&[&["--batch", "3"], &shape[..], &knob].concat()), Ok(true));
    for (args, said) in [
        (&["--groups", "5,x"][..], "not M1,M2"),
        (&["--groups", "5,6", "--shape", "10,72,96"], "11 rows together"),
        (&["--groups", "1", "--batch", "2"], "cannot be used with"),
    ] {
        let error = emit(args).unwrap_err();
        assert!(error.contains(said), "{args:?}: {error}");
    }
}

#[test]
fn a_configuration_is_a_regular_file_of_a_sane_size() {
    let folder = tempfile::tempdir().unwrap();
    let [pipe, long] = ["pipe", "long"].map(|name| folder.path().join(name).to_str().unwrap().to_owned());
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    std::fs::File::create(&long).unwrap().set_len(10 << 30).unwrap();
    let directory = folder.path().to_str().unwrap();
    for (path, what) in [
        (&*pipe, "a pipe"),
        ("/dev/zero", "a device"),
        (directory, "a directory"),
        (&*long, "10737418240 bytes"),
    ] {
        let error = emit(&["--explain", "--config", path]).unwrap_err();
        assert!(error.contains(path) && error.contains(what) && error.contains("1048576"), "{error}");
    }
}

#[test]
fn what_explain_calls_legal_is_emitted() {
    let out = tempfile::tempdir().unwrap();
    let emitted = &["--out", out.path().to_str().unwrap(), "--no-verify"];
    let gate = &["--shape", "16,64,256", "--gate", "silu(s[m] * (A @ B1)) * (s[m] * (A @ B2))"];
    assert_eq!(emit(&[&gate[..], &["--explain", "--swap-ab", "on"]].concat()), Ok(false));
    let error = emit(&[&gate[..], emitted, &["--swap-ab", "on"]].concat()).unwrap_err();
    assert!(
        error.contains("swap_ab: on with `s[m]`") && error.contains("help: write swap_ab = off"),
        "{error}"
    );
    assert_eq!(emit(&[&gate[..], &["--explain"]].concat()), Ok(true));
    assert_eq!(emit(&[&gate[..], emitted].concat()), Ok(true));
}

#[test]
fn another_chip_needs_no_other_flag() {
    let out = tempfile::tempdir().unwrap();
    let out = &["--out", out.path().to_str().unwrap()];
    let hopper = &["--arch", "sm_90a", "--shape", "130,72,600"];
    assert_eq!(emit(&[&hopper[..], out, &["--inputs", "--track"]].concat()), Ok(true));
    assert_eq!(emit(&[&hopper[..], out, &["--consumers", "ping_pong", "--no-verify"]].concat()), Ok(true));
    assert_eq!(emit(&[&hopper[..], &["--explain"]].concat()), Ok(true));
    assert_eq!(emit(&[&hopper[..], &["--explain", "--cta-group", "2"]].concat()), Ok(false));
    let knob =
        ["--sweep", "--sweep-knob", "consumers=cooperative;ping_pong", "--sweep-knob", "tile=[M, 64, 64]"];
    assert_eq!(emit(&[&hopper[..], &knob].concat()), Ok(true));
    let mut file = SpecFile::new(Shape::new(130, 72, 600));
    file.arch = "sm_90a".to_owned();
    let formats = |file: &SpecFile| file.read().unwrap().0.formats.to_string();
    assert_eq!(formats(&file), "bf16 x bf16 -> bf16");
    // What is written wins.
    (file.formats.a, file.formats.b) = ("f16".to_owned(), "f16".to_owned());
    assert_eq!(formats(&file), "f16 x f16 -> bf16");
    file.arch = "sm_100a".to_owned();
    file.formats.b = "auto".to_owned();
    assert_eq!(formats(&file), "f16 x nvfp4 -> f16");
}

#[test]
fn a_sweep_that_verifies_less_of_k_says_so() {
    let shape = Shape::new(130, 136, 2080);
    let knobs = ["stages=1;3", "schedule=one_tile;split_k(9)"];
    let document = sweep(shape, &knobs, Some(1024)).unwrap();
    assert_eq!(document["verified_k"], 1024);
    let rows = document["configurations"].as_array().unwrap();
    assert!(rows.iter().all(|row| row["bytes"] == "modelled"));
    // A time is predicted for all of K, and is no lower than the floor.
    assert!(rows.iter().all(|row| row["predicted_us"].as_f64() > row["floor_us"].as_f64()), "{rows:?}");
    // Nine parts are legal for all of K, but not for the part that is verified: that is no verdict on the kernel.
    assert_eq!((&document["right"], &rows[0]["verdict"]["pass"]), (&true.into(), &true.into()));
    let error = rows[1]["verdict"]["skipped"].as_str().unwrap();
    assert!(error.contains("K = 1024") && error.contains("split_k(9)"), "{error}");
    let none = sweep(shape, &["stages=2"], Some(0)).unwrap();
    assert_eq!((&none["verified_k"], &none["configurations"][0]["verdict"]), (&Value::Null, &Value::Null));
}

#[test]
fn the_usual_sweep_leaves_out_what_is_fixed() {
    let document = sweep(Shape::new(8, 64, 128), &[], Some(0)).unwrap();
    let rows = document["configurations"].as_array().unwrap();
    assert_eq!(rows.len(), 4 * 5 * 3);
    assert!(rows.iter().all(|row| row["knobs"].get("cta_group").is_none()));
}

/// `emit --sweep` without another flag tries what the chip knows: most rows are legal. The commit chooses the chip.
#[test]
fn the_usual_sweep_suits_the_chip() {
    for (_, arch) in sample::of(vec![Arch::Sm90a, Arch::Sm100a, Arch::Sm120a], 3) {
        let mut file = SpecFile::new(Shape::new(130, 128, 256));
        file.arch = arch.to_string();
        let (spec, arch) = file.read().unwrap();
        let sweep = Sweep {
            spec: &spec,
            arch,
            shape: file.shape(),
            seed: 1,
            scalars: &[],
            threads: 1,
            chip: default_chip(arch.target()).unwrap().to_owned(),
            fixed: Vec::new(),
            chosen: Vec::new(),
            verify_k: Some(0),
        };
        let document = sweep.measure().unwrap().document(&sweep);
        let rows = document["configurations"].as_array().unwrap();
        let legal = rows.iter().filter(|row| row["legal"] == true).count();
        assert!(2 * legal > rows.len(), "{arch}: {legal} of {}; {}", rows.len(), sample::again());
    }
}

#[test]
fn every_value_of_every_knob_is_a_flag_and_its_help_says_what_it_means() {
    let help =
        emit::command().render_long_help().to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    for knob in &KNOBS {
        for core in [TensorCore::Tcgen05, TensorCore::Wgmma, TensorCore::Mma] {
            let drawn = [knob.draws(core), knob.rare_draws(core), knob.foreign_draws(core)].concat();
            for text in drawn {
                let flag = format!("--{}={text}", knob.name.replace('_', "-"));
                let matches = emit::command().try_get_matches_from(["emit", &flag]).unwrap();
                let mut config = Config::default();
                config.set(knob.name, text).unwrap();
                assert_eq!(emit::spec_file(&matches).unwrap().config, config, "{flag}");
            }
        }
        for value in knob.values {
            assert!(help.contains(value.about.trim()), "{}: {}", knob.name, value.about);
        }
    }
}

#[test]
fn wrong_sweeps_are_refused_with_a_reason() {
    let shape = Shape::new(8, 64, 128);
    for (knob, said) in
        [("stages", "NAME=V1;V2"), ("stagse=1", "no knob `stagse`"), ("stages=1;many", "many")]
    {
        let error = sweep(shape, &[knob], Some(0)).unwrap_err();
        assert!(error.contains(said), "{knob}: {error}");
    }
    assert!(emit(&["--sweep-knob", "stages=1"]).unwrap_err().contains("--sweep"));
}

#[test]
fn an_explanation_fails_where_the_configuration_is_illegal() {
    assert_eq!(emit(&["--explain", "--shape", "130,136,928"]), Ok(true));
    assert_eq!(emit(&["--explain", "--tile", "128,256,512", "--stages", "40"]), Ok(false));
    assert_eq!(emit(&["--sweep", "--shape", "130,72,480", "--sweep-knob", "stages=1;2", "--json"]), Ok(true));
}

/// Set for a process that prints to a reader who leaves.
const PRINTER: &str = "SILUMIN_TEST_PRINTER";

#[test]
fn a_program_whose_reader_leaves_ends_without_a_word() {
    const NAME: &str = "a_program_whose_reader_leaves_ends_without_a_word";
    use std::io::Read;
    use std::process::{Command, Stdio};
    if std::env::var_os(PRINTER).is_some() {
        print::end_with_reader();
        // More than any pipe holds.
        (0..1_000_000).for_each(|line| print::print(format_args!("line {line}\n")));
        panic!("somebody has read all that");
    }
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &silumin_testkit::test_name(module_path!(), NAME), "--nocapture"])
        .env(PRINTER, "1")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut start = [0; 64];
    child.stdout.take().unwrap().read_exact(&mut start).unwrap();
    let ended = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&ended.stderr), "");
    assert_eq!(ended.status.code(), Some(141));
}

#[test]
fn every_program_ends_with_its_reader() {
    let root = &silumin_testkit::root();
    // What all verbs go through, what has verbs without them, and the thin examples.
    let programs = ["cli/src/lib.rs", "benches/gpu/src/main.rs", "examples/emit.rs", "examples/ladder.rs"];
    for program in programs {
        let text = std::fs::read_to_string(root.join(program)).unwrap();
        assert!(text.contains("print::end_with_reader();"), "{program} never calls `print::end_with_reader`");
    }
    for program in ["cli/src/main.rs", "xtask/src/main.rs"] {
        let text = std::fs::read_to_string(root.join(program)).unwrap();
        assert!(text.contains("    dispatch("), "{program} does not go through `silumin_cli::dispatch`");
    }
}

#[test]
fn a_verb_of_its_own_does_what_the_flag_does() {
    let run = |args: &[&str]| {
        let program = silumin_cli::program("silumin", "", &silumin_cli::VERBS);
        let matches =
            program.try_get_matches_from([&["silumin"], args].concat()).map_err(|e| e.to_string())?;
        let (_, matches) = matches.subcommand().ok_or("no verb")?;
        emit::run(matches).map_err(|e| e.to_string())
    };
    let small = ["--shape", "16,64,256", "--verify-k", "0", "--sweep-knob", "stages=2;3"];
    assert_eq!(run(&[&["sweep"], &small[..]].concat()), Ok(true));
    assert_eq!(run(&[&["emit", "--sweep"], &small[..]].concat()), Ok(true));
    assert!(run(&[&["emit"], &small[..]].concat()).unwrap_err().contains("--sweep"));
    assert_eq!(run(&["explain", "--tile", "128,128,256"]), Ok(true));
    assert_eq!(run(&["explain", "--tile", "128,1000,256"]), Ok(false));
}
