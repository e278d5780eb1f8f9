//! Tuning: on the emulated device, where kernels are ranked, and on the emulated driver, where they are timed; and warm-ups that
//! use what was found.

use silumin::runtime::cache::Warning;
use silumin::runtime::tune::{Fate, Found, Stale, Step, TuningEntry, Verdict, knobs};
use silumin::runtime::tune::{Ranked, Space, Table, Tune, TuneError, tune};
use silumin::runtime::warmup::TuningReport;
use silumin::runtime::warmup::{Cancel, KnobsBy, Outside};
use silumin::{Arch, Cache, CacheOptions, Config, Device, DualGemm, Shape, Spec, Warmup};
use silumin_testkit::driver::{role, run};
use silumin_testkit::test_name;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SHAPE: Shape = Shape::new(130, 128, 512);

fn gemm() -> DualGemm {
    DualGemm::new(Spec::new("silu(A @ B1) * (A @ B2)".parse().unwrap(), &[Arch::Sm100a]).unwrap())
}

fn device() -> Device {
    Device::emulated(Arch::Sm100a)
}

fn space(text: &str) -> Space {
    text.parse().unwrap()
}

/// A result for a shape that says these knobs, whatever is the fastest.
fn said(device: &Device, gemm: &DualGemm, shape: Shape, text: &str) -> Table {
    let mut tuned = tune(device, gemm, shape, &space("stages=2")).unwrap();
    tuned.config = knobs(text, &gemm.spec().config).unwrap();
    let mut table = Table::new();
    table.replace(TuningEntry::of(device, gemm, &tuned).unwrap());
    table
}

#[test]
fn on_the_emulated_device_kernels_are_ranked_by_predicted_times() {
    let space = space("tile=128x64x256|128x128x256|128x40x256 schedule=one_tile|persistent|split_k(9)");
    let tuned = tune(&device(), &gemm(), SHAPE, &space).unwrap();
    let Ranked::Predicted { us, auto_us, chip } = tuned.ranked else { panic!("{tuned}") };
    assert!(us <= auto_us && chip == "b200" && tuned.to_string().contains("not measured"), "{tuned}");
    let counts = tuned.counts;
    assert_eq!((counts.drawn, counts.timed, counts.wrong, counts.refused), (10, 0, 0, 0));
    // Tiles that scale factors do not start in, and more parts than K has tiles: counted, with a reason.
    assert_eq!(counts.illegal, 5);
    let reasons: Vec<_> =
        tuned.illegal.iter().map(|(knob, count, reason)| (*knob, *count, !reason.is_empty())).collect();
    assert_eq!(reasons, [("schedule", 2, true), ("tile", 3, true)]);
    assert_eq!(tuned.candidates.len(), counts.drawn - counts.illegal - counts.same);
    // The winner has run on the emulator.
    assert_eq!(tuned.candidates[0].fate, Fate::Right);
    assert_eq!(tuned.candidates[0].config, tuned.config);
    let rest = &tuned.candidates[1..];
    assert!(rest.iter().all(|one| one.fate == Fate::Ranked || one.fate == Fate::Untried), "{rest:?}");
    // The prediction is that of `emit`, and no kernel is faster than its bound.
    assert_eq!(tuned.candidates[0].predicted, Some(us));
    assert!(tuned.candidates.iter().all(|one| one.predicted.is_none_or(|us| us >= one.bound)), "{tuned:?}");
    // A problem that would take the emulator long is not run for values, and the budget ends predicting.
    let large = Tune::of(&gemm(), Shape::new(512, 4096, 4096)).budget(Duration::ZERO).run(&device()).unwrap();
    assert!(large.candidates[0].fate == Fate::Ranked, "{large}");
    assert!(large.candidates.iter().any(|one| one.fate == Fate::Untried), "{large}");
}

#[test]
fn knobs_of_the_user_stay_and_a_problem_without_kernels_is_an_error() {
    let mut spec = gemm().spec().clone();
    spec.config = knobs("stages=2 pdl=on", &Config::default()).unwrap();
    let own = DualGemm::new(spec);
    let tuned = Tune::of(&own, SHAPE).keep(8).run(&device()).unwrap();
    assert!(tuned.candidates.iter().all(|candidate| candidate.config.stages == own.spec().config.stages));
    assert!(!tuned.knobs().contains("stages") && !tuned.knobs().contains("pdl"));
    let error = tune(&device(), &own, Shape::new(8, 64, 40), &Space::default()).unwrap_err();
    assert!(matches!(error, TuneError::Kernel(_)) && error.to_string().contains("multiple of 32"), "{error}");
    let cancel = Cancel::new();
    cancel.cancel();
    let cancelled = Tune::of(&own, SHAPE).cancel(&cancel).run(&device());
    assert!(matches!(cancelled, Err(TuneError::Cancelled)));
}

#[test]
fn a_wrong_kernel_is_told_and_never_chosen() {
    // Where the gate is cut in two, the code is another gate's: kernels with a split tail compute something else.
    let mut spec = gemm().spec().clone();
    let other = Spec::new("relu(A @ B1) * (A @ B2)".parse().unwrap(), &[Arch::Sm100a]).unwrap();
    assert!(spec.code[0].split.is_some());
    spec.code[0].split.clone_from(&other.code[0].split);
    let gemm = DualGemm::new(spec);
    let space = space("tile=128x64x256 cta_group=1 k_order=forward|split_tail(1) stages=2");
    let steps = Mutex::new(Vec::new());
    let shape = Shape::new(128, 64, 512);
    let tuned = Tune::of(&gemm, shape)
        .space(space)
        .on_progress(|step| steps.lock().unwrap().push(step.clone()))
        .run(&device());
    let tuned = tuned.unwrap();
    assert_eq!(tuned.candidates[0].fate, Fate::Right, "{tuned}");
    // The model knows nothing of tails, so that whichever came first was tried first: with nothing but tails none is right.
    let only: Space = "tile=128x64x256 cta_group=1 k_order=split_tail(1)".parse().unwrap();
    let mut wrong = gemm.spec().clone();
    wrong.config = knobs("k_order=split_tail(1)", &Config::default()).unwrap();
    let error = Tune::of(&DualGemm::new(wrong), shape)
        .space(only)
        .on_progress(|step| steps.lock().unwrap().push(step.clone()))
        .run(&device())
        .unwrap_err();
    assert!(matches!(error, TuneError::NoneRight { .. }), "{error}");
    let told: Vec<String> = steps
        .into_inner()
        .unwrap()
        .iter()
        .filter(|s| matches!(s, Step::Wrong { .. }))
        .map(Step::to_string)
        .collect();
    assert!(!told.is_empty() && told[0].starts_with("WRONG, and left out"), "{told:?}");
}

#[test]
fn gates_with_scalars_and_vectors_groups_and_batches_are_tuned() {
    let gate = "silu(alpha * (A @ B1) + b[n]) * (A @ B2)".parse().unwrap();
    let gemm = DualGemm::new(Spec::new(gate, &[Arch::Sm100a]).unwrap());
    for shape in [SHAPE, Shape::new(40, 64, 256).batch(2), Shape::new(100, 64, 256).grouped(3)] {
        let tuned = tune(&device(), &gemm, shape, &space("stages=2|3 schedule=auto|persistent")).unwrap();
        assert_eq!(tuned.candidates[0].fate, Fate::Right, "{tuned}");
    }
}

#[test]
fn warm_ups_take_the_user_s_knobs_then_what_was_tuned_then_auto() {
    let (device, gemm) = (device(), gemm());
    let table = said(&device, &gemm, SHAPE, "stages=1 tile=128x64x128");
    let other = Shape::new(64, 128, 512);
    let told = Mutex::new(Vec::new());
    let kernels = Warmup::of(&gemm)
        .shapes(&[SHAPE, other])
        .tuning(table.clone())
        .outside(Outside::Background)
        .on_progress(|progress| {
            told.lock().unwrap().push((progress.shape, progress.knobs, progress.to_string()))
        })
        .run(&device)
        .unwrap();
    let config = |shape: Shape| kernels.for_shape(shape).unwrap().dual_gemm().spec().config;
    assert_eq!(config(SHAPE), knobs("stages=1 tile=128x64x128", &Config::default()).unwrap());
    assert_eq!(config(other), Config::default());
    assert_eq!((kernels.tuning().tuned, kernels.tuning().stale), (vec![SHAPE], vec![]));
    let mut told = told.into_inner().unwrap();
    told.sort_by_key(|(shape, _, _)| *shape);
    assert_eq!(told.iter().map(|(_, by, _)| *by).collect::<Vec<_>>(), [KnobsBy::Auto, KnobsBy::Tuning]);
    assert!(told[1].2.ends_with(", tuned") && !told[0].2.contains("tuned"));
    assert!(
        kernels.for_shape(SHAPE).unwrap().verify(silumin::Distribution::Full, 3, &[]).unwrap().check.pass
    );
    // What the user has set is another key, and stays.
    let mut spec = gemm.spec().clone();
    spec.config = knobs("stages=3", &Config::default()).unwrap();
    let own = DualGemm::new(spec);
    let kernels = Warmup::of(&own).shapes(&[SHAPE]).tuning(table.clone()).run(&device).unwrap();
    assert_eq!(kernels.for_shape(SHAPE).unwrap().dual_gemm(), &own);
    assert_eq!(kernels.tuning(), TuningReport::default());
    // But what was tuned on top of it is used.
    let more = said(&device, &own, SHAPE, "schedule=persistent");
    let kernels = Warmup::of(&own).shapes(&[SHAPE]).tuning(more).run(&device).unwrap();
    let config = kernels.for_shape(SHAPE).unwrap().dual_gemm().spec().config;
    assert_eq!(config, knobs("stages=3 schedule=persistent", &Config::default()).unwrap());
    // On another chip it is listed, and not used.
    let elsewhere = Device::emulated(Arch::Sm103a);
    let both = DualGemm::new(
        Spec::new("silu(A @ B1) * (A @ B2)".parse().unwrap(), &[Arch::Sm100a, Arch::Sm103a]).unwrap(),
    );
    let kernels = Warmup::of(&both).shapes(&[SHAPE]).tuning(table).run(&elsewhere).unwrap();
    assert_eq!(kernels.for_shape(SHAPE).unwrap().dual_gemm(), &both);
    let report = kernels.tuning();
    assert!(matches!(&report.stale[..], [(SHAPE, Stale::Device { .. })]), "{report:?}");
}

/// A cache in a folder, and what it warns of.
fn cache(folder: &std::path::Path) -> (Cache, Arc<Mutex<Vec<Warning>>>) {
    let warnings: Arc<Mutex<Vec<Warning>>> = Arc::default();
    let sink = warnings.clone();
    let cache =
        CacheOptions::new().folder(folder).on_warning(move |w| sink.lock().unwrap().push(w.clone())).open();
    (cache, warnings)
}

#[test]
fn the_file_beside_the_cache_is_used_and_a_bad_one_is_one_warning() {
    let folder = tempfile::tempdir().unwrap();
    let (cache, warnings) = cache(folder.path());
    let device = device().with_cache(cache.clone());
    let file: PathBuf = Table::beside(&cache).unwrap();
    let gemm = gemm();
    let warm = || {
        let kernels = gemm.warmup(&device, &[SHAPE]).unwrap();
        let config = kernels.for_shape(SHAPE).unwrap().dual_gemm().spec().config;
        (config != Config::default(), kernels.tuning())
    };
    assert_eq!(warm(), (false, TuningReport::default()), "there is none");
    said(&device, &gemm, SHAPE, "stages=1").save(&file).unwrap();
    let (tuned, report) = warm();
    assert!(tuned && report.path.as_ref() == Some(&file) && report.damaged == 0);
    let untuned = Warmup::of(&gemm).shapes(&[SHAPE]).untuned().run(&device).unwrap();
    assert!(untuned.tuning().tuned.is_empty());
    assert!(warnings.lock().unwrap().is_empty());
    // The line of our shape changes, another stays: told once, however many warm-ups there are.
    said(&device, &gemm, Shape::new(1, 64, 64), "stages=1").save(&file).unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replacen("[130,128,512]", "[130,128,544]", 1)).unwrap();
    for _ in 0..3 {
        let (tuned, report) = warm();
        assert!(!tuned && report.damaged == 1 && report.unread.is_none());
    }
    std::fs::write(&file, "no such thing").unwrap();
    for _ in 0..3 {
        let (tuned, report) = warm();
        assert!(!tuned && report.unread.is_some());
    }
    let warnings = warnings.lock().unwrap();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings.iter().all(|warning| matches!(warning, Warning::Tuning { .. })));
    assert!(warnings[0].to_string().contains("checksum") && warnings[1].to_string().contains("move it away"));
}

#[test]
fn on_a_gpu_kernels_are_timed_and_the_result_is_used() {
    const NAME: &str = "on_a_gpu_kernels_are_timed_and_the_result_is_used";
    if role().is_none() {
        run(module_path!(), NAME, "child", &[]);
        return;
    }
    // K is short, so that the emulator behind the driver is done in a moment.
    let shape = Shape::new(40, 64, 512);
    let folder = tempfile::tempdir().unwrap();
    let (cache, warnings) = cache(folder.path());
    let device = Device::cuda(0).unwrap().with_cache(cache.clone());
    let facts = device.facts();
    assert_eq!((facts.name.as_str(), facts.capability, facts.sms), ("emulated sm_100a", (10, 0), 148));
    assert!(facts.driver.starts_with("13.0"));
    let gemm = gemm();
    let steps = Mutex::new(Vec::new());
    let tuned = Tune::of(&gemm, shape)
        .space(space("schedule=auto|split_k(2) stages=1|2 swap_ab=on|off cta_group=1 tile=auto|128x40x128"))
        .keep(5)
        .sets(2)
        .replay_length(Duration::from_micros(1))
        .budget(Duration::from_secs(3))
        .on_progress(|step| steps.lock().unwrap().push(step.clone()))
        .run(&device)
        .unwrap();
    let Ranked::Measured { us, auto_us, ratio, turns, verdict } = tuned.ranked else { panic!("{tuned}") };
    assert!(us > 0.0 && auto_us.is_some_and(|us| us > 0.0) && ratio.is_some() && turns > 0, "{tuned}");
    assert!(tuned.counts.timed >= 5 && tuned.counts.wrong + tuned.counts.failed == 0, "{tuned}");
    // Nothing that was not shown to be faster takes auto's place.
    if tuned.knobs().is_empty() {
        assert!(ratio.is_some_and(|ratio| (ratio - 1.0).abs() < 1e-9));
    } else {
        assert!(verdict != Verdict::Open || turns > 0);
    }
    let steps = steps.into_inner().unwrap();
    assert!(matches!(steps[0], Step::Drawn { kept: 5, .. }), "{:?}", steps[0]);
    for wanted in ["loaded", "checked", "turn"] {
        assert!(steps.iter().any(|step| step.to_string().contains(wanted)), "{wanted}");
    }
    let mut table = Table::new();
    table.add(&device, &gemm, &tuned).unwrap();
    table.save(&Table::beside(&cache).unwrap()).unwrap();
    let kernels = gemm.warmup(&device, &[shape]).unwrap();
    assert_eq!(kernels.for_shape(shape).unwrap().dual_gemm().spec().config, tuned.config);
    assert_eq!(kernels.tuning().tuned, [shape]);
    assert!(
        kernels.for_shape(shape).unwrap().verify(silumin::Distribution::Full, 1, &[]).unwrap().check.pass
    );
    // The emulated device is called the same, and has no driver.
    assert!(matches!(table.find(&self::device(), gemm.spec(), shape), Found::Stale(_, Stale::Driver { .. })));
    assert!(warnings.lock().unwrap().is_empty());
}

#[test]
fn a_writer_that_is_killed_leaves_a_file_that_is_whole() {
    const NAME: &str = "a_writer_that_is_killed_leaves_a_file_that_is_whole";
    const FILE: &str = "SILUMIN_TEST_TUNING_FILE";
    if role().is_some() {
        let file = PathBuf::from(std::env::var_os(FILE).unwrap());
        let (device, gemm) = (device(), gemm());
        let from = Table::read(&file).map_or(0, |table| table.len() as u32);
        for m in from + 1.. {
            said(&device, &gemm, Shape::new(m, 64, 64), "").save(&file).unwrap();
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tuning.jsonl");
    let mut most = 0;
    for round in 0..30u64 {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &test_name(module_path!(), NAME), "--nocapture", "--test-threads", "1"])
            .env("SILUMIN_TEST_DRIVER_ROLE", "child")
            .env(FILE, &file)
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        // It has to have begun; what it is killed at differs from round to round.
        let start = std::time::Instant::now();
        while Table::read(&file).map_or(0, |table| table.len()) <= most
            && start.elapsed() < Duration::from_secs(20)
        {
            std::thread::sleep(Duration::from_micros(200));
        }
        std::thread::sleep(Duration::from_micros(700 * (round % 17)));
        child.kill().unwrap();
        child.wait().unwrap();
        let table = Table::read(&file).unwrap();
        assert!(
            table.len() > most && table.damaged().is_empty(),
            "round {round}: {} after {most}",
            table.len()
        );
        most = table.len();
    }
    // A lock that a dead process held is nobody's.
    said(&device(), &gemm(), SHAPE, "").save(&file).unwrap();
    assert_eq!(Table::read(&file).unwrap().len(), most + 1);
}
