//! Runs a launch file of the corpus with buffers of the test's.

use super::number::Type;
use silumin_emulator::launch_file::{Contents, LaunchFile};
use silumin_emulator::{FindingKind, Options, Schedule, Tracking};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The buffers after a run, by name.
pub type Results = BTreeMap<String, Vec<u8>>;

/// Kernels with a race of Triton's own making: both consumer warpgroups compute and store the same tile
/// (3.9, sm_90a, 64 rows), so that the tracker is right, and so are the results.
const DOUBLE_STORES: [(&str, &str); 1] = [("triton", "specialised_64")];

fn corpus(compiler: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(compiler)
}

/// Random schedules of each kernel; the environment variable `SEEDS` asks for more.
fn seeds() -> u64 {
    std::env::var("SEEDS").ok().and_then(|v| v.parse().ok()).unwrap_or(1)
}

/// Runs every compiled form of a compiler's kernel under several schedules; `check` sees the buffers of each run.
///
/// Buffers not named in `inputs` start as the launch file says.
pub fn run(compiler: &str, name: &str, inputs: &[(&str, &[u8])], check: impl Fn(&Results)) {
    let mut count = 0;
    for chip in ["sm90", "sm100"] {
        let path = corpus(compiler).join(format!("{name}.{chip}.toml"));
        if !path.exists() {
            continue;
        }
        count += 1;
        let mut file = match LaunchFile::read(&path) {
            Ok(f) => f,
            Err(e) => panic!("{e}"),
        };
        for (buffer, bytes) in inputs {
            let spec = file.buffers.iter_mut().find(|b| b.name == *buffer).expect("the buffer exists");
            assert_eq!(spec.bytes, bytes.len() as u64, "{name}: size of {buffer}");
            spec.contents = Contents::Bytes(bytes.to_vec());
        }
        let random = (1..=seeds()).map(Schedule::Random);
        for schedule in [Schedule::Early, Schedule::Late].into_iter().chain(random) {
            let (memory, buffers) = file.allocate();
            let tracking = Tracking::HappensBefore;
            let options = Options { schedule, tracking, instruction_limit: 50_000_000, ..Options::default() };
            let report = match file.module.run(&file.kernel, &file.launch, &memory, &options) {
                Ok(r) => r,
                Err(e) => panic!("{name}.{chip}: {e}"),
            };
            let races = DOUBLE_STORES.contains(&(compiler, name));
            if races {
                let twice = |f: &silumin_emulator::Finding| f.kind == FindingKind::MissingCopyWait;
                assert!(!report.is_clean() && report.findings.iter().all(twice), "{:#?}", report.findings);
            } else if let Some(f) = report.findings.first() {
                panic!("{name}.{chip}, {schedule:?}: {} findings, first {f}", report.findings.len());
            }
            let results = (file.buffers.iter().zip(&buffers))
                .map(|(spec, buffer)| (spec.name.clone(), memory.read(buffer)))
                .collect();
            check(&results);
        }
    }
    assert!(count > 0, "there is no launch file for {name}");
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
