//! A sample of the mutants of every golden kernel: what the emulator must catch, it catches.
//!
//! All of them: `cargo run --release --example mutate`, see `docs/mutants.md`. `SILUMIN_MUTANTS=hopper` keeps to kernels whose
//! names start so.

use silumin::Shape;
use silumin::codegen::spec::SpecFile;
use silumin::runtime::inputs::{Distribution, DualGemmInputs};
use silumin::runtime::launch_file;
use silumin_emulator::mutate::{Earlier, Equivalents, Kind, Plan, Subject, Verdict, json, text};
use std::fs;
use std::path::Path;

/// Golden kernels, at sizes that go round their rings of stages and are ragged in M, N and K.
const KERNELS: &[(&str, Shape)] = &[
    ("default", Shape::new(130, 136, 2400)),
    ("one_token", Shape::new(130, 40, 1952)),
    ("one_cta", Shape::new(130, 72, 3872)),
    ("pair_ragged", Shape::new(130, 136, 3872)),
    ("ragged", Shape::new(130, 72, 1056)),
    ("ragged_tma", Shape::new(130, 200, 2336)),
    ("scalar_gate", Shape::new(128, 72, 2080)),
    ("scales_ahead", Shape::new(130, 72, 2400)),
    ("scales_all", Shape::new(130, 72, 2048)),
    ("side_by_side", Shape::new(130, 72, 2400)),
    ("split_tail", Shape::new(130, 72, 2400)),
    ("wide_tile", Shape::new(130, 72, 2400)),
    ("split_k", Shape::new(130, 72, 2080)),
    ("cluster_split_k", Shape::new(130, 72, 2080)),
    ("swapped", Shape::new(10, 130, 2400)),
    ("swapped_tma", Shape::new(70, 136, 1056)),
    ("multicast_a", Shape::new(130, 200, 1952)),
    ("multicast_b", Shape::new(300, 72, 1440)),
    ("multicast_pair_a", Shape::new(300, 328, 1440)),
    ("multicast_pair_b", Shape::new(520, 72, 2400)),
    ("mxfp8", Shape::new(130, 160, 1184)),
    ("mixed", Shape::new(130, 72, 1152)),
    ("bf16", Shape::new(130, 72, 600)),
    ("nvfp4_out", Shape::new(130, 160, 2080)),
    ("nvfp4_out_tma", Shape::new(130, 160, 2080)),
    ("swapped_nvfp4_out", Shape::new(10, 160, 2400)),
    ("products", Shape::new(130, 75, 1056)),
    ("sequential", Shape::new(130, 72, 1440)),
    ("persistent", Shape::new(300, 200, 1440)),
    ("persistent_pair", Shape::new(300, 200, 1056)),
    ("dynamic", Shape::new(300, 136, 1440)),
    ("dynamic_pair", Shape::new(600, 136, 1056)),
    ("stream_k", Shape::new(130, 200, 2080)),
    ("overlapped", Shape::new(300, 200, 1440)),
    ("overlapped_tail", Shape::new(300, 300, 1056)),
    ("lanes", Shape::new(130, 136, 2400)),
    ("batched", Shape::new(200, 136, 800).batch(3)),
    ("grouped_pair", Shape::new(400, 160, 800).grouped(4)),
    ("hopper_default", Shape::new(130, 136, 600)),
    ("hopper_side_by_side", Shape::new(300, 136, 344)),
    ("hopper_ping_pong", Shape::new(200, 200, 600)),
    ("hopper_multicast_b", Shape::new(300, 136, 600)),
];

fn subject(name: &str, shape: Shape, folder: &Path) -> Subject {
    subject_with(name, shape, folder, &[])
}

fn subject_with(name: &str, shape: Shape, folder: &Path, knobs: &[(&str, &str)]) -> Subject {
    let input = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/in").join(format!("{name}.toml"));
    let mut file: SpecFile = toml::from_str(&fs::read_to_string(input).unwrap()).unwrap();
    for (knob, value) in knobs {
        file.config.set(knob, value).unwrap();
    }
    let (spec, arch) = file.read().unwrap();
    let kernel = spec.kernel(shape, arch).unwrap();
    let inputs = DualGemmInputs::generate_for(shape, spec.formats, Distribution::Benchmark, 1111).unwrap();
    let launch = launch_file::write(
        folder,
        &kernel,
        Some(&inputs),
        &[("alpha", 1.0)][..spec.gate.expr.scalars().len()],
    );
    Subject::read(&launch.unwrap()).unwrap()
}

fn plan() -> Plan {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mutants.toml");
    let equivalents = Equivalents::parse(&fs::read_to_string(path).unwrap()).unwrap();
    Plan { seeds: 1, equivalents, ..Plan::default() }
}

#[test]
fn a_sample_of_all_kernels_is_caught() {
    let (mut all, mut good) = (0, 0);
    let mut below = String::new();
    let wanted = std::env::var("SILUMIN_MUTANTS").unwrap_or_default();
    for &(name, shape) in KERNELS.iter().filter(|(name, _)| name.starts_with(&wanted)) {
        let folder = tempfile::tempdir().unwrap();
        // Kernels of warpgroups have fewer places for mistakes: one warp loads, and the others issue few instructions.
        let every = if name.starts_with("hopper") { 13 } else { 41 };
        let survey = subject(name, shape, folder.path()).survey(&Plan { every, ..plan() }).unwrap();
        assert!(survey.outcomes.len() >= 10, "{name}: {} mutants", survey.outcomes.len());
        all += survey.outcomes.len();
        good += survey.caught() + survey.explained();
        // A sample is too small for the bar of one kernel.
        if survey.share() < 0.85 {
            below += &format!("{name}\n{}", text(&survey));
        }
    }
    assert!(below.is_empty(), "{below}");
    assert!(good * 100 >= all * 95, "{good} of {all}");
}

#[test]
fn all_lost_synchronisation_is_caught() {
    let folder = tempfile::tempdir().unwrap();
    let only =
        vec![Kind::Wait, Kind::Arrive, Kind::ExpectBytes, Kind::Commit, Kind::GroupWait, Kind::Barrier];
    // Under a split tail a `wait::ld` that is left out may be covered by the next one, before the value has an effect.
    let forward = [("k_order", "forward")];
    let survey = subject_with("default", Shape::new(130, 136, 2400), folder.path(), &forward)
        .survey(&Plan { only, ..plan() })
        .unwrap();
    assert!(survey.outcomes.len() >= 10, "{}", survey.outcomes.len());
    assert!(survey.outcomes.iter().all(|o| o.verdict.means().is_some()), "{}", text(&survey));
}

#[test]
fn a_kernel_that_is_not_right_is_not_mutated() {
    let folder = tempfile::tempdir().unwrap();
    subject("default", Shape::new(130, 136, 320), folder.path());
    let of = |extension: &str| {
        let mut files = fs::read_dir(folder.path()).unwrap().map(|f| f.unwrap().path());
        files.find(|f| f.extension().is_some_and(|e| e == extension)).unwrap()
    };
    let ptx = of("ptx");
    let broken = fs::read_to_string(&ptx).unwrap().replace("tcgen05.wait::ld.sync.aligned;", "");
    fs::write(&ptx, broken).unwrap();
    let error = Subject::read(&of("toml")).unwrap().survey(&plan()).unwrap_err().to_string();
    assert!(error.contains("the kernel itself is not right"), "{error}");
}

#[test]
fn hints_are_explained_and_counted_apart() {
    let folder = tempfile::tempdir().unwrap();
    let survey = subject("default", Shape::new(130, 136, 320), folder.path())
        .survey(&Plan { only: vec![Kind::Hint], ..plan() })
        .unwrap();
    assert_eq!((survey.caught(), survey.explained()), (0, survey.outcomes.len()), "{}", text(&survey));
    assert!(survey.outcomes.iter().all(|o| matches!(&o.verdict, Verdict::Explained(why) if !why.is_empty())));
}

#[test]
fn what_survives_at_one_size_is_caught_at_another() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let small = subject("default", Shape::new(130, 136, 2400), folders[0].path());
    let large = [subject("default", Shape::new(130, 136, 4960), folders[1].path())];
    let plan = Plan { only: vec![Kind::InitCount], ..plan() };
    // Stages that are used once: nobody waits for them to be free again.
    let alone = small.survey(&plan).unwrap();
    assert!(!alone.outcomes.iter().all(|o| o.verdict.means().is_some()), "{}", text(&alone));
    let mut earlier = Earlier::default();
    earlier.read(&json(std::slice::from_ref(&alone))).unwrap();
    let both = small.survey_with(&plan, &large, &earlier).unwrap();
    assert!(both.outcomes.iter().all(|o| o.verdict.means().is_some()), "{}", text(&both));
    // What is known is not run again.
    let kept = small.survey_with(&Plan { keep: true, ..plan }, &large, &earlier).unwrap();
    assert_eq!(kept, alone);
}
