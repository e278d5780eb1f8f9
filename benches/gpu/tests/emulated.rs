//! Tests the whole program on the emulated driver: kernels are checked, timed from graphs and reported, wrong ones
//! too.

use serde_json::Value;
use silumin_testkit::driver::library;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Runs the program with the emulated driver of an sm_100a; rows are written to `rows.json` in `folder`.
fn bench(folder: &Path, flags: &[&str]) -> Output {
    bench_on("sm_100a", folder, flags)
}

/// As [`bench`], for another target.
fn bench_on(chip: &str, folder: &Path, flags: &[&str]) -> Output {
    for file in ["libcuda.so", "libcuda.so.1"] {
        std::fs::copy(library(), folder.join(file)).unwrap();
    }
    Command::new(env!("CARGO_BIN_EXE_silumin-bench-gpu"))
        .args(flags)
        .arg("--json")
        .arg(folder.join("rows.json"))
        .env("LD_LIBRARY_PATH", folder)
        .env("SILUMIN_EMULATED_CHIP", chip)
        .output()
        .unwrap()
}

/// The report that the program wrote.
fn report(folder: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(folder.join("rows.json")).unwrap()).unwrap()
}

fn texts<'a>(report: &'a Value, key: &str) -> Vec<&'a str> {
    report["rows"].as_array().unwrap().iter().map(|row| row[key].as_str().unwrap()).collect()
}

#[test]
fn kernels_are_checked_timed_and_written_down() {
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("list.txt");
    std::fs::write(&list, "40x96x256: stages=1|2 cta_group=1 # two kernels\n1x1x1: stages=9\n").unwrap();
    let list = list.to_str().unwrap();
    let flags =
        ["--format", "nvfp4,bf16", "--shapes", "40x96x256", "--knobs", "stages=2 cta_group=1", "--knobs"];
    let more = ["tile=1000x64x64", "--sweep", list, "--top", "2", "--reps", "3", "--graph-ms", "0.01"];
    let output = bench(folder.path(), &[&flags[..], &more[..]].concat());
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let report = report(folder.path());
    assert!(report["machine"]["read_gbytes"].as_f64().unwrap() > 0.0);
    let status = texts(&report, "status");
    assert_eq!(status, ["ok", "illegal", "ok", "duplicate"].repeat(2), "{said}");
    for row in report["rows"].as_array().unwrap().iter().filter(|row| row["status"] == "ok") {
        let number = |key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key} of {row}"));
        assert!(number("us") > 0.0 && number("floor_us") > 0.0 && number("floor_us") < number("us"), "{row}");
        assert!(number("us_min") <= number("us") && number("us") <= number("us_max"), "{row}");
        let tflops = 4.0 * 40.0 * 96.0 * 256.0 / number("us") / 1e6;
        assert!((number("tflops") / tflops - 1.0).abs() < 1e-6, "{row}");
        assert!(number("ratio") > 0.0, "the best were timed in turns: {row}");
        assert_eq!((row["sets"].as_u64(), row["reps"].as_u64()), (Some(16), Some(3)));
        assert!(number("calls") >= 16.0 && number("load_ms") > 0.0, "{row}");
        let error = &row["error"];
        assert_eq!((error["elements"].as_u64(), error["unwritten"].as_u64()), (Some(40 * 96), Some(0)));
        assert!(error["frobenius"].as_f64().unwrap() > 0.0, "{row}");
    }
}

#[test]
fn every_gate_and_format_is_checked() {
    let folder = tempfile::tempdir().unwrap();
    let output = bench(
        folder.path(),
        &[
            "--check-only",
            "--shapes",
            "33x72x128,16x64x128:l2,40x64x128:g3",
            "--format",
            "bf16->f32,e4m3+bf16",
            "--gate",
        ]
        .into_iter()
        .chain(["gelu(alpha * (A @ B1) + b[n]) * (A @ B2)", "--scalar", "alpha=0.5", "--inputs", "benchmark"])
        .collect::<Vec<_>>(),
    );
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("6 right, 0 not"), "{said}");
}

#[test]
fn what_is_wrong_is_told_and_the_rest_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    // A limit that no kernel keeps.
    let flags = [
        "--shapes",
        "8x64x64",
        "--limit",
        "1e-9",
        "--check-only",
        "--knobs",
        "stages=1",
        "--knobs",
        "stages=x",
    ];
    let output = bench(folder.path(), &flags);
    assert_eq!(output.status.code(), Some(1));
    let report = report(folder.path());
    assert_eq!(texts(&report, "status"), ["wrong", "illegal"]);
    assert!(report["rows"][1]["why"].as_str().unwrap().contains("is not a value of `stages`"));
    for (flags, text) in [
        (["--shapes", "8x64"], "MxNxK"),
        (["--format", "int4"], "nvfp4w"),
        (["--knobs", "stages"], "NAME=VALUE"),
        (["--scalar", "alpha"], "NAME=VALUE"),
    ] {
        let output = bench(folder.path(), &flags);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(text), "{flags:?}: {said}");
    }
}

#[test]
fn without_a_driver_every_kernel_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_silumin-bench-gpu"))
        .args(["--shapes", "8x64x64", "--device", "7"])
        .env("LD_LIBRARY_PATH", folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.code() == Some(1) && said.contains("FAILED"), "{said}");
}

#[test]
fn rows_and_peers_make_a_table() {
    let folder = tempfile::tempdir().unwrap();
    let row = |shape: &str, m: u32, us: f64, status: &str, knobs: &str| {
        serde_json::json!({
            "shape": shape, "m": m, "n": 64, "k": 64, "format": "bf16", "status": status, "us": us, "tflops": 1.0,
            "floor_us": 5.0, "knobs": knobs, "error": {"frobenius": 1.6e-3},
        })
    };
    let ours = |scale: f64| {
        serde_json::json!({
            "machine": {"device": "a GPU", "sms": 132, "read_gbytes": 4500.0},
            "rows": [
                row("one", 8, 10.0 * scale, "ok", "stages=2"), row("8x64x64", 8, 9.0 * scale, "ok", "stages=3"),
                row("one", 8, 1.0, "wrong", "stages=4"), row("two", 16, 40.0 * scale, "ok", ""),
            ],
        })
    };
    let peers = serde_json::json!({
        "one": {"M": 8, "N": 64, "K": 64, "rows": {
            "triton fused": {"us": 18.0}, "cublas 1 gemm alone": {"us": 2.0}, "cublas fp8 1 gemm + silu_mul kernel": {"us": 3.0}}},
        "two": {"M": 16, "N": 64, "K": 64, "rows": {"triton fused": {"us": 20.0}, "quack gated swiglu": {"us": 25.0}}},
        "three": {"M": 32, "N": 64, "K": 64, "rows": {"triton fused": {"us": 20.0}}},
    });
    let write = |name: &str, value: &Value| {
        let path = folder.path().join(name);
        std::fs::write(&path, value.to_string()).unwrap();
        path
    };
    let table = |flags: &[&str]| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("table.py");
        let output = Command::new("python3").arg(script).args(flags).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let files: Vec<PathBuf> =
        [0.9, 1.0, 1.3].iter().map(|s| write(&format!("{s}.json"), &ours(*s))).collect();
    let theirs = write("peers.json", &peers);
    let path = |path: &'_ PathBuf| path.to_str().unwrap().to_owned();
    let pairs: Vec<String> = files.iter().flat_map(|file| [path(file), path(&theirs)]).collect();
    let text = table(&pairs.iter().map(String::as_str).collect::<Vec<_>>());
    // 9 / 18 and 40 / 20, and what they were in the other runs.
    assert!(
        text.contains("| 8 x 64 x 64 | 9.0 |") && text.contains("| triton fused | 0.500 (0.450 to 0.650) |"),
        "{text}"
    );
    assert!(
        text.contains("| triton fused | 2.000 (1.800 to 2.600) |") && text.contains("`stages=3`"),
        "{text}"
    );
    assert!(text.contains("geometric mean of 2 |") && text.contains("| 1.000 |"), "{text}");
    let best = table(&["--best", &path(&files[1])]);
    assert!(best.contains("one: stages=2  # bf16, 10.00 us") && best.contains("8x64x64: stages=3"), "{best}");
}

#[test]
fn launch_files_run_from_python() {
    let folder = tempfile::tempdir().unwrap();
    let kernels = folder.path().join("kernels");
    let shape = ["--shapes", "40x96x512", "--check-only", "--emit", kernels.to_str().unwrap()];
    // One launch, one with a workspace that has to be zero, and three with products in memory between them.
    let knobs = [
        "--knobs",
        "cta_group=1",
        "--knobs",
        "cta_group=1 schedule=split_k(2)",
        "--knobs",
        "strategy=two_pass",
    ];
    let output = bench(folder.path(), &[&shape[..], &knobs[..]].concat());
    let report = report(folder.path());
    assert!(output.status.success(), "{report}");
    for file in texts(&report, "file") {
        let out = folder.path().join("out");
        let output = Command::new("python3")
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("launch.py"))
            .args([file, "--out", out.to_str().unwrap()])
            .env("LD_LIBRARY_PATH", folder.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        // The file's own operands make both products 0.74609375^2 * 512 everywhere.
        let product = 0.746_093_75f64.powi(2) * 512.0;
        let c = std::fs::read(out.join("c.bin")).unwrap();
        assert_eq!(c.len(), 40 * 96 * 2);
        for pair in c.as_chunks::<2>().0 {
            let value = half::bf16::from_le_bytes(*pair).to_f64();
            assert!((value / (product * product) - 1.0).abs() < 1.0 / 256.0, "{file}: {value}");
        }
        std::fs::remove_dir_all(out).unwrap();
    }
}

#[test]
fn the_chip_is_the_device_s_own() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--format", "bf16,nvfp4w", "--shapes", "24x64x128", "--reps", "1", "--graph-ms", "0.01"];
    let output = bench_on("sm_90a", folder.path(), &flags);
    let report = report(folder.path());
    assert!(output.status.success(), "{report}");
    assert_eq!(report["machine"]["arch"], "sm_90a");
    assert_eq!(texts(&report, "status"), ["ok", "ok"]);
    assert!(texts(&report, "device").iter().all(|device| device.contains("sm_90a")));
}

#[test]
fn launches_are_costed_and_stressed() {
    let folder = tempfile::tempdir().unwrap();
    let output = bench(folder.path(), &["--launch-cost", "2", "--reps", "2"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let costs: Value =
        serde_json::from_str(&std::fs::read_to_string(folder.path().join("rows.json")).unwrap()).unwrap();
    let costs = costs.as_array().unwrap();
    assert_eq!(costs.len(), 26);
    assert!(costs.iter().all(|cost| cost["median_ns"].as_f64().unwrap() > 0.0), "{costs:?}");
    for chip in ["sm_90a", "sm_100a"] {
        let output = bench_on(chip, folder.path(), &["--stress", "0.1"]);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains(" 0 wrong"), "{said}");
        assert!(said.contains("64 kernels by 8 threads on 4 streams each"), "{said}");
    }
}

#[test]
fn lists_and_ptx_are_regular_files_of_a_sane_size() {
    let folder = tempfile::tempdir().unwrap();
    let [pipe, long] = ["pipe", "long"].map(|name| folder.path().join(name).to_str().unwrap().to_owned());
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    std::fs::File::create(&long).unwrap().set_len(10 << 30).unwrap();
    let directory = folder.path().to_str().unwrap();
    for (flag, limit) in [("--sweep", "16777216"), ("--beside", "67108864")] {
        for (path, what) in [
            (&*pipe, "a pipe"),
            ("/dev/zero", "a device"),
            (directory, "a directory"),
            (&*long, "10737418240 bytes"),
        ] {
            let start = std::time::Instant::now();
            let more = if flag == "--beside" { &["--runtime-table"][..] } else { &[] };
            let output = bench(folder.path(), &[&[flag, path], more].concat());
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{said}");
            for wanted in [flag, path, what, limit] {
                assert!(said.contains(wanted), "no `{wanted}` in: {said}");
            }
            assert!(start.elapsed() < std::time::Duration::from_secs(30), "{flag} {path}");
            assert!(!folder.path().join("rows.json").exists());
        }
    }
}

#[test]
fn the_table_of_starts_has_a_row_for_each_bar() {
    let folder = tempfile::tempdir().unwrap();
    let kernel = folder.path().join("other.ptx");
    let text = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry other()\n{\n    ret;\n}\n";
    std::fs::write(&kernel, text).unwrap();
    for chip in ["sm_90a", "sm_100a"] {
        let flags = ["--runtime-table", "--reps", "1", "--beside", kernel.to_str().unwrap()];
        let output = bench_on(chip, folder.path(), &flags);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
        let rows: Vec<Value> =
            serde_json::from_str(&std::fs::read_to_string(folder.path().join("rows.json")).unwrap()).unwrap();
        assert_eq!(rows.len(), 7, "{said}");
        for row in &rows {
            let times = row["times_ms"].as_array().unwrap();
            assert!(!times.is_empty() && times.iter().all(|time| time.as_f64().unwrap() > 0.0), "{row}");
            assert!(said.contains(&format!("| {} | ", row["what"].as_str().unwrap())), "{said}");
        }
        // A second start compiles nothing: what the driver compiled as it loaded is told apart.
        assert!(said.contains("64 read") || said.contains("by loading"), "{said}");
    }
}

#[test]
fn a_block_is_timed_and_written_down() {
    let folder = tempfile::tempdir().unwrap();
    // NVFP4 activations on Blackwell, 16-bit ones on Hopper.
    for (chip, formats) in [("sm_90a", &["nvfp4", "bf16"][..]), ("sm_100a", &["nvfp4"])] {
        let flags = ["--mlp", "64x128", "--format", &formats.join(","), "--tokens", "1,3"];
        let output = bench_on(chip, folder.path(), &flags);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
        let report = report(folder.path());
        assert_eq!(texts(&report, "weights"), formats.iter().flat_map(|name| [*name; 2]).collect::<Vec<_>>());
        for row in report["rows"].as_array().unwrap() {
            assert!(row["one_us"].as_f64().unwrap() > 0.0 && row["all_us"].is_null(), "{row}");
            // Rounding shows: it is not compared with itself.
            assert!((1e-5..6e-3).contains(&row["error"].as_f64().unwrap()), "{row}");
        }
    }
    for (flags, error) in [
        (["--mlp", "64", "--tokens", "3"], "--mlp: `64` is not HIDDENxFEATURES"),
        (["--mlp", "64x128", "--tokens", "few"], "--tokens: `few` is no number"),
        (["--mlp", "64x128", "--ranks", "2"], "there is no GPU 1"),
    ] {
        let output = bench(folder.path(), &flags);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(error), "{said}");
    }
}

#[test]
fn experts_are_checked_and_timed() {
    let folder = tempfile::tempdir().unwrap();
    for chip in ["sm_90a", "sm_100a"] {
        let flags = ["--experts", "64x128x4x2", "--format", "nvfp4", "--tokens", "1,3", "--forwards", "2"];
        let output = bench_on(chip, folder.path(), &flags);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
        let report = report(folder.path());
        let rows = report["rows"].as_array().unwrap();
        assert_eq!((rows.len(), rows[0]["chosen"].as_u64()), (2, Some(2)));
        for row in rows {
            assert!(row["us"].as_f64().unwrap() > 0.0, "{row}");
            assert!((1e-5..6e-3).contains(&row["error"].as_f64().unwrap()), "{row}");
        }
    }
    let output = bench(folder.path(), &["--experts", "64x128x4x5"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("--experts: `64x128x4x5` is not HIDDENxFEATURESxEXPERTSxTOP_K"), "{said}");
}
