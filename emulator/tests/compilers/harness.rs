//! Runs a launch file of the corpus with buffers of the test's.

use super::number::Type;
use silumin_emulator::launch_file::{Contents, LaunchFile};
use silumin_emulator::{FindingKind, Options, Schedule, Tracking};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The buffers after a run, by name.
pub type Results = BTreeMap<String, Vec<u8>>;

/// A mistake that a compiler made, so that findings are right.
enum Mistake {
    /// Found in every run, and nothing else; the results are right all the same.
    Harmless(FindingKind),
    /// Found in every run; the results are not looked at.
    Fatal(FindingKind),
    /// Found in some runs, of these kinds; the results are right unless the finding ended the run.
    Sometimes(&'static [FindingKind]),
    /// Threads wait at an mbarrier that nobody holds up for them: they hang where a schedule keeps them from that wait
    /// until the phase after has completed, too.
    Overtaken,
}

fn mistake(compiler: &str, name: &str) -> Option<Mistake> {
    Some(match (compiler, name) {
        // Triton 3.9, sm_90a: both consumer warpgroups compute and store the same tile.
        ("triton", "specialised_64") => Mistake::Harmless(FindingKind::MissingCopyWait),
        // CUTLASS 4.2, sm_100a: of a pair, the barrier for freeing tensor memory is initialised after the fence.
        ("cutlass", "bf16_pair" | "nvfp4_pair") => Mistake::Sometimes(&[FindingKind::MbarrierNotVisible]),
        // Ours: the boxes start one element before the tile, which no GPU takes.
        ("nvcc", "stencil") => Mistake::Fatal(FindingKind::IllegalTensorMap),
        // Ours: tensor memory is allocated before the cluster barrier.
        ("nvcc", "tcgen05_pair") => Mistake::Harmless(FindingKind::PairAllocBeforePeer),
        // Triton 3.7 lets only the first partition arrive at the barrier of the cluster (its PR 9456): a hang.
        ("gluon/3.7", "pair" | "pairs_multicast") => Mistake::Fatal(FindingKind::Deadlock),
        // Triton 3.7 and 3.8: tensor memory of a pair is allocated before the cluster barrier.
        (
            "gluon/3.7" | "gluon/3.8",
            "pair" | "pair_alike" | "pairs_multicast" | "stream_pair" | "nvfp4_pair",
        ) => Mistake::Sometimes(&[FindingKind::PairAllocBeforePeer]),
        // Triton 3.9: a warp invalidates the mbarrier on which others may still be waiting.
        ("gluon/3.9", "pair_alike" | "nvfp4_pair") => Mistake::Sometimes(&[FindingKind::MbarrierReused]),
        // TileLang 0.1.15: a stage is handed back, and tensor memory freed, before the products are done.
        ("tilelang", "gemm_tmem_specialised") => Mistake::Fatal(FindingKind::TmemUseAfterFree),
        // TileLang 0.1.15: all warps of the producers wait for a free stage, and one of them loads.
        ("tilelang", "gemm" | "gemm_small" | "gemm_fp8" | "gemm_bias_silu" | "attention") => {
            Mistake::Overtaken
        }
        _ => return None,
    })
}

/// The folders of a compiler, by label: its own, and one for each earlier version (`triton`, `triton/3.6`).
fn folders(compiler: &str) -> Vec<(String, PathBuf)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(compiler);
    let entries = std::fs::read_dir(&root).unwrap_or_else(|e| panic!("{}: {e}", root.display()));
    let mut versions: Vec<PathBuf> =
        entries.map(|e| e.expect("an entry").path()).filter(|p| p.is_dir()).collect();
    versions.sort();
    let label = |p: &PathBuf| format!("{compiler}/{}", p.file_name().expect("a name").display());
    let versions = versions.into_iter().filter(|p| !p.ends_with("__pycache__")).map(|p| (label(&p), p));
    std::iter::once((compiler.to_owned(), root.clone())).chain(versions).collect()
}

/// The schedules of each kernel: all early, all late and a random one; with `SILUMIN_SEEDS=N` those of `emulate --seeds N`,
/// which starve each warp too and are N random ones.
fn schedules(threads: [u32; 3]) -> Vec<Schedule> {
    let ends = [Schedule::Early, Schedule::Late].into_iter();
    let Ok(text) = std::env::var("SILUMIN_SEEDS") else {
        return ends.chain([Schedule::Random(1)]).collect();
    };
    let seeds: u64 = text.parse().unwrap_or_else(|_| panic!("SILUMIN_SEEDS={text} is no number"));
    let warps = threads.iter().product::<u32>().div_ceil(32);
    let starved = (0..warps).map(|warp| Schedule::Starve { warp, seed: 0 });
    let delayed = (0..warps).map(|warp| Schedule::Delay { warp, seed: 0 });
    ends.chain(starved).chain(delayed).chain((0..seeds).map(Schedule::Random)).collect()
}

/// Writes the launch file, its PTX and its inputs to a folder that can be carried to another machine.
fn write_launch(path: &Path, folder: &Path, inputs: &[(&str, &[u8])]) {
    let text = std::fs::read_to_string(path).expect("the launch file");
    let mut launch: toml::Table = text.parse().expect("the launch file is TOML");
    let ptx = launch["ptx"].as_str().expect("a name").to_owned();
    std::fs::copy(path.with_file_name(&ptx), folder.join(&ptx)).expect("the PTX");
    for (name, bytes) in inputs {
        let file = format!("{name}.bin");
        std::fs::write(folder.join(&file), bytes).expect("an input");
        let mut table = toml::Table::new();
        table.insert("file".to_owned(), file.into());
        let buffers = launch["buffers"].as_table_mut().expect("buffers");
        buffers.insert((*name).to_owned(), table.into());
    }
    let text = toml::to_string(&launch).expect("TOML");
    std::fs::write(folder.join("launch.toml"), text).expect("the launch file of the export");
}

/// Runs every compiled form of a compiler's kernel, of all its versions, under several schedules; `check` sees the
/// buffers of each run.
///
/// Buffers not named in `inputs` start as the launch file says.
pub fn run(compiler: &str, name: &str, inputs: &[(&str, &[u8])], check: impl Fn(&Results)) {
    let mut count = 0;
    for (compiler, folder) in &folders(compiler) {
        for chip in ["sm90", "sm100"] {
            let path = folder.join(format!("{name}.{chip}.toml"));
            if path.exists() {
                count += 1;
                run_file(compiler, name, chip, &path, inputs, &check);
            }
        }
    }
    assert!(count > 0, "there is no launch file for {name}");
}

/// Runs one launch file of `compiler`, the label of its folder.
fn run_file(
    compiler: &str,
    name: &str,
    chip: &str,
    path: &Path,
    inputs: &[(&str, &[u8])],
    check: &impl Fn(&Results),
) {
    let mut file = match LaunchFile::read(path) {
        Ok(f) => f,
        Err(e) => panic!("{e}"),
    };
    for (buffer, bytes) in inputs {
        let spec = file.buffers.iter_mut().find(|b| b.name == *buffer).expect("the buffer exists");
        assert_eq!(spec.bytes, bytes.len() as u64, "{name}: size of {buffer}");
        spec.contents = Contents::Bytes(bytes.to_vec());
    }
    let mut export = std::env::var_os("SILUMIN_EXPORT").filter(|_| chip == "sm90").map(|root| {
        let folder = PathBuf::from(root).join(format!("{compiler}-{name}"));
        std::fs::create_dir_all(folder.join("expected")).expect("a folder for the export");
        write_launch(path, &folder, inputs);
        folder
    });
    for schedule in schedules(file.launch.block) {
        let (memory, buffers) = file.allocate();
        let tracking = Tracking::HappensBefore;
        let options = Options { schedule, tracking, instruction_limit: 50_000_000, ..Options::default() };
        let report = match file.module.run(&file.kernel, &file.launch, &memory, &options) {
            Ok(r) => r,
            Err(e) => panic!("{compiler}/{name}.{chip}: {e}"),
        };
        let kinds: Vec<FindingKind> = report.all().map(|f| f.kind).collect();
        let random = schedule.seed().is_some();
        let met = match mistake(compiler, name) {
            _ if kinds.is_empty() => true,
            Some(Mistake::Harmless(kind)) => kinds.iter().all(|&k| k == kind),
            Some(Mistake::Fatal(kind)) => kinds.contains(&kind),
            Some(Mistake::Sometimes(some)) => kinds.iter().all(|k| some.contains(k)),
            Some(Mistake::Overtaken) => random && kinds.iter().all(|&k| k == FindingKind::Deadlock),
            None => false,
        };
        if !met {
            let f = report.all().next().expect("one of the kinds");
            panic!("{compiler}/{name}.{chip}, {schedule:?}: {} findings, first {f}", kinds.len());
        }
        if matches!(mistake(compiler, name), Some(Mistake::Harmless(_) | Mistake::Fatal(_))) {
            assert!(
                !kinds.is_empty(),
                "{compiler}/{name}.{chip}, {schedule:?}: the compiler's mistake is not found"
            );
        }
        let fatal = matches!(mistake(compiler, name), Some(Mistake::Fatal(_)));
        if fatal || kinds.iter().any(|k| k.is_fatal()) {
            continue;
        }
        let results = (file.buffers.iter().zip(&buffers))
            .map(|(spec, buffer)| (spec.name.clone(), memory.read(buffer)))
            .collect();
        check(&results);
        // Sums may depend on the schedule; the list says where.
        if chip == "sm90"
            && let Err(e) = crate::common::truth::compare(&format!("{compiler}-{name}"), &results)
        {
            panic!("{e}, {schedule:?}");
        }
        if let Some(folder) = export.take() {
            for (buffer, bytes) in &results {
                let file = folder.join("expected").join(format!("{buffer}.bin"));
                std::fs::write(file, bytes).expect("an expected buffer");
            }
        }
    }
}

/// Compares a buffer with a reference: `|got - want| <= absolute + relative * |want|`.
pub fn close(results: &Results, buffer: &str, ty: Type, want: &[f64], relative: f64, absolute: f64) {
    let got = ty.decode_all(&results[buffer]);
    assert_eq!(got.len(), want.len(), "elements of {buffer}");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let ok = (g - w).abs() <= absolute + relative * w.abs();
        assert!(ok, "{buffer}[{i}] is {g}, should be {w}");
    }
}

/// 32-bit words of a buffer.
pub fn words(results: &Results, buffer: &str) -> Vec<i32> {
    results[buffer].chunks_exact(4).map(|b| i32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// 64-bit words of a buffer.
pub fn long_words(results: &Results, buffer: &str) -> Vec<i64> {
    results[buffer].chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap())).collect()
}

/// Compares 32-bit words.
pub fn equal(results: &Results, buffer: &str, want: &[i32]) {
    let got = words(results, buffer);
    assert_eq!(got.len(), want.len(), "elements of {buffer}");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert_eq!(g, w, "{buffer}[{i}]");
    }
}
