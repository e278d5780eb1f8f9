//! The loader for real GPUs (`scripts/hardware/run.py`), on a stand-in for the driver; and the probes that it takes along.
//!
//! Needs `python3` (3.11 or later) and `cc`; without them the tests fail.

use silumin_emulator::launch_file::LaunchFile;
use silumin_emulator::{Arg, GlobalMemory, Options, Tracking};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

use crate::common::truth;

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn done(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"))
}

/// A folder of kernels beside the stand-in for the driver.
struct Bench(TempDir);

impl Bench {
    fn new() -> Bench {
        let folder = tempfile::tempdir().unwrap();
        let out = done(
            Command::new("cc")
                .args(["-shared", "-fPIC", "-O1", "-o"])
                .arg(folder.path().join("libcuda.so.1"))
                .arg(here("hardware/fake_cuda.c")),
        );
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        Bench(folder)
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        let path = self.0.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    /// Exit status, what was printed, and what the driver was asked for.
    fn run(&self, folder: &Path, sizes: &str) -> (i32, String, String) {
        let log = self.0.path().join("log");
        fs::write(&log, "").unwrap();
        let out = done(
            Command::new("python3")
                .arg(here("../../scripts/hardware/run.py"))
                .arg(folder)
                .args(["--jobs", "2", "--out"])
                .arg(self.0.path().join("out"))
                .env("SILUMIN_LIBCUDA", self.0.path().join("libcuda.so.1"))
                .env("FAKE_LOG", &log)
                .env("FAKE_SIZES", sizes),
        );
        let said = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
        (out.status.code().unwrap(), said, fs::read_to_string(log).unwrap())
    }
}

const LAUNCH: &str = r#"
ptx = "k.ptx"
kernel = "gemm"
grid = [4, 2, 1]
block = [128, 1, 1]
cluster = [2, 1, 1]
dynamic_smem = 49152
[buffers.a]
file = "a.bin"
[buffers.c]
bytes = 8
fill = 7
[[params]]
u32 = 258
[[params]]
f32 = -1.5
[[params]]
hex = "00 ff_10"
[[params]]
null = true
[[params]]
struct = { size = 16, fields = [ { offset = 4, i32 = -2 }, { offset = 8, u16 = 513 } ] }
[[params]]
tensor_map = { buffer = "a", data_type = "bf16", dims = [8, 4, 2], box = [8, 2, 1], swizzle = "64b", l2_promotion = "128b", oob_fill = "nan_request_zero_fma" }
[[params]]
tensor_map = { buffer = "a", data_type = "f16", dims = [8, 2, 2, 2], strides = [16, 32, 64], lower_corner = [-1, 0], upper_corner = [0, 1], channels = 8, pixels = 4, element_strides = [1, 1, 1, 1] }
"#;

#[test]
fn a_launch_reaches_the_driver_as_it_is_written() {
    let bench = Bench::new();
    let a: Vec<u8> = (0..128).collect();
    bench.write("kernels/one/launch.toml", LAUNCH);
    bench.write("kernels/one/k.ptx", "// PTX");
    bench.write("kernels/one/a.bin", &a);
    bench.write("kernels/one/expected/a.bin", &a);
    bench.write("kernels/one/expected/c.bin", [7; 8]);
    let (status, said, log) = bench.run(&bench.0.path().join("kernels"), "4,4,3,8,16,128,128");
    assert_eq!((status, said.as_str()), (0, "one: identical (2 buffers)\n1 of 1 kernels identical\n"));
    let map = "5a".repeat(128);
    let want = format!(
        "function gemm\nattribute 8 49152\n\
         tiled type 9 dims 8,4,2 strides 16,64 box 8,2,1 steps 1,1,1 modes 0 2 2 1\n\
         im2col type 6 dims 8,2,2,2 strides 16,32,64 lower -1,0 upper 0,1 channels 8 pixels 4 steps 1,1,1,1 modes 0 0 0 0\n\
         launch 4,2,1 128,1,1 49152 [4: 2,1,1]\n\
         param 02010000\nparam 0000c0bf\nparam 00ff10\nparam 0000000000000000\n\
         param 00000000feffffff0102000000000000\nparam {map}\nparam {map}\nsynchronise\n"
    );
    assert_eq!(log, want);
    assert_eq!(fs::read(bench.0.path().join("out/one/a.bin")).unwrap(), a);
    assert!(fs::read_to_string(bench.0.path().join("out/report.txt")).unwrap().starts_with("one: identical"));
}

#[test]
fn differences_and_failures_are_reported() {
    let bench = Bench::new();
    let launch = "ptx = \"k.ptx\"\nkernel = \"k\"\ngrid = [1, 1, 1]\nblock = [32, 1, 1]\n[buffers.c]\nbytes = 12\n\
                  [[params]]\npointer = \"c\"\noffset = 4\n";
    for name in ["broken", "differs", "nothing"] {
        bench.write(&format!("kernels/{name}/launch.toml"), launch);
        let text = if name == "broken" { "does not assemble" } else { "" };
        bench.write(&format!("kernels/{name}/k.ptx"), text);
    }
    let mut want = vec![0; 4];
    want.extend(2.5f32.to_le_bytes());
    want.extend(1.0f32.to_le_bytes());
    bench.write("kernels/differs/expected/c.bin", want);
    bench.write("kernels/broken/expected/c.bin", [0; 12]);
    let (status, said, _) = bench.run(&bench.0.path().join("kernels"), "8");
    assert_eq!(status, 1);
    for part in [
        "broken: FAILED: Failure: cuModuleLoadDataEx: error 218, a PTX JIT compilation failed\nptxas: line 7",
        "differs: c: 2 of 3 words differ, the first at byte 4: 00000000 should be 00002040 (bytes in order); \
         largest difference as f32 2.5",
        "nothing: nothing to compare with",
        "0 of 3 kernels identical",
    ] {
        assert!(said.contains(part), "{said}");
    }
    assert_eq!(bench.run(&bench.0.path().join("no such folder"), "").0, 2);
}

#[test]
fn known_differences_are_told_from_others() {
    let bench = Bench::new();
    let launch = "ptx = \"k.ptx\"\nkernel = \"k\"\ngrid = [1, 1, 1]\nblock = [32, 1, 1]\n[buffers.c]\nbytes = 8\n\
                  [[params]]\npointer = \"c\"\n";
    // The stand-in for the driver leaves zeros.
    for name in ["free", "near", "far", "opaque", "stopped"] {
        bench.write(&format!("kernels/{name}/launch.toml"), launch);
        bench.write(
            &format!("kernels/{name}/k.ptx"),
            if name == "stopped" { "does not assemble" } else { "" },
        );
        bench.write(&format!("kernels/{name}/expected/c.bin"), [9; 8]);
    }
    bench.write(
        "kernels/known.txt",
        "# a list\nfree c 8 words * 00000000\nnear c 8 words ~1 00000000 80000000\nfar c 8 words * 00000001\n\
         opaque c 8 opaque\nstopped c 8 stopped\n",
    );
    let (status, said, _) = bench.run(&bench.0.path().join("kernels"), "8");
    assert_eq!(status, 1);
    for part in [
        "free: identical (0 buffers); c in another order",
        "near: identical (0 buffers); c in another order",
        "far: c: 2 of 2 words differ",
        "opaque: identical (0 buffers); c opaque",
        "stopped: FAILED, as known: ",
        "4 of 5 kernels identical",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn kernels_of_ours_are_counted_by_family() {
    let bench = Bench::new();
    let launch = "ptx = \"k.ptx\"\nkernel = \"k\"\ngrid = [1, 1, 1]\nblock = [32, 1, 1]\n[buffers.c]\nbytes = 8\n\
                  [[params]]\npointer = \"c\"\n";
    // The stand-in for the driver leaves zeros.
    for (name, expected) in [
        ("ours-bf16-00", 0),
        ("ours-bf16-01.1", 0),
        ("ours-bf16-01.2", 9),
        ("ours-split_k-00", 0),
        ("ran", 0),
    ] {
        bench.write(&format!("kernels/{name}/launch.toml"), launch);
        bench.write(&format!("kernels/{name}/k.ptx"), "");
        bench.write(&format!("kernels/{name}/expected/c.bin"), [expected; 8]);
    }
    bench.write("kernels/known.txt", "ran c 8 stopped\n");
    let (status, said, _) = bench.run(&bench.0.path().join("kernels"), "8");
    assert_eq!(status, 1);
    for part in [
        "ran: it ran, and was to be stopped\n",
        "\nfamily bf16: 1 of 2 kernels identical, 24 bytes compared\n",
        "\nfamily split_k: 1 of 1 kernels identical, 8 bytes compared\n",
        "\n3 of 5 kernels identical\n",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

/// Launch files of the corpus for sm_90, and of the probes.
fn launches() -> Vec<PathBuf> {
    let mut out = Vec::new();
    for folder in ["triton", "nvcc", "tilelang", "cute", "cutlass", "hardware"] {
        for entry in fs::read_dir(here("corpus").join(folder)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if name.ends_with(".sm90.toml") || (folder == "hardware" && name.ends_with(".toml")) {
                out.push(path);
            }
        }
    }
    out.sort();
    out
}

fn bytes(arg: &Arg) -> &[u8] {
    match arg {
        Arg::Bytes(bytes) => bytes,
        other => panic!("a launch file gives bytes, not {other:?}"),
    }
}

/// Both readers of launch files make the same bytes of all parameters that are neither pointers nor tensor maps.
#[test]
fn the_loader_reads_what_the_emulator_reads() {
    let bench = Bench::new();
    let all = launches();
    assert!(all.len() >= 100, "{} launch files", all.len());
    for path in all.iter().step_by(7) {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let file = LaunchFile::read(path).unwrap_or_else(|e| panic!("{e}"));
        let text = fs::read_to_string(path).unwrap();
        let table: toml::Table = text.parse().unwrap();
        let ptx = table["ptx"].as_str().unwrap();
        bench.write(&format!("{name}/launch.toml"), &text);
        bench.write(&format!("{name}/{ptx}"), fs::read(path.with_file_name(ptx)).unwrap());
        let args: Vec<&[u8]> = file.launch.args.iter().map(bytes).collect();
        let sizes: Vec<String> = args.iter().map(|a| a.len().to_string()).collect();
        let folder = bench.0.path().join(&name);
        let (_, said, log) = bench.run(&folder, &sizes.join(","));
        assert!(said.contains("nothing to compare with"), "{name}: {said}");
        let params: Vec<&str> = log.lines().filter_map(|l| l.strip_prefix("param ")).collect();
        assert_eq!(params.len(), args.len(), "{name}: {log}");
        let given = table.get("params").and_then(|p| p.as_array()).cloned().unwrap_or_default();
        for ((param, got), arg) in given.iter().zip(params).zip(&args) {
            let keys: Vec<String> = param.as_table().unwrap().keys().cloned().collect();
            if !keys.iter().any(|k| ["pointer", "tensor_map", "struct"].contains(&k.as_str())) {
                let want: String = arg.iter().map(|b| format!("{b:02x}")).collect();
                assert_eq!(got, want, "{name}: {param}");
            }
        }
        let [x, y, z] = file.launch.grid;
        assert!(log.contains(&format!("launch {x},{y},{z} ")), "{name}: {log}");
    }
}

#[test]
fn probes_run_without_findings() {
    let mut count = 0;
    for path in launches().iter().filter(|p| p.parent().unwrap().ends_with("hardware")) {
        count += 1;
        let file = LaunchFile::read(path).unwrap_or_else(|e| panic!("{e}"));
        let (memory, buffers): (GlobalMemory, _) = file.allocate();
        let options = Options { tracking: Tracking::HappensBefore, ..Options::default() };
        let report = file.module.run(&file.kernel, &file.launch, &memory, &options).unwrap();
        assert!(report.is_clean(), "{}: {}", path.display(), report.findings[0]);
        let readme = fs::read_to_string(here("corpus/hardware/README.md")).unwrap();
        let name = path.file_stem().unwrap().to_string_lossy();
        assert!(readme.contains(&format!("`{name}`")), "README.md does not speak of {name}");
        let left =
            (file.buffers.iter().zip(&buffers)).map(|(b, at)| (b.name.clone(), memory.read(at))).collect();
        truth::compare(&format!("probe-{name}"), &left).unwrap_or_else(|e| panic!("{e}"));
    }
    assert!(count >= 16, "{count} probes");
}

/// Nothing that a GPU ran has left the corpus.
#[test]
fn every_kernel_of_the_list_is_there() {
    let there: Vec<String> = (launches().iter())
        .map(|path| {
            let folder =
                path.parent().unwrap().file_name().unwrap().to_string_lossy().replace("hardware", "probe");
            let name =
                path.file_name().unwrap().to_string_lossy().replace(".sm90.toml", "").replace(".toml", "");
            format!("{folder}-{name}")
        })
        .collect();
    let missing: Vec<&str> = truth::kernels().into_iter().filter(|k| !there.iter().any(|t| t == k)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    assert!(truth::kernels().len() >= 110);
}
