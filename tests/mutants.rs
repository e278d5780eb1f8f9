//! A sample of the mutants of golden kernels: what the emulator must catch, it catches. A commit mutates a sixth of the kernels,
//! and other commits the others.
//!
//! All mutants of all kernels: `cargo xtask mutants`, which writes `evidence/mutants.jsonl`. `SILUMIN_MUTANTS=hopper` keeps to
//! kernels whose names start so.

use silumin::Shape;
use silumin_emulator::FindingKind;
use silumin_emulator::mutate::{Earlier, Kind, Outcome, Subject, SurveyOptions, Verdict, json, text};
use silumin_testkit::mutants::KERNELS;
use silumin_testkit::{mutants, sample};
use std::fs;
use std::path::Path;

/// A commit mutates one kernel in so many.
const PARTS: usize = 6;

fn subject(name: &str, shape: Shape, folder: &Path) -> Subject {
    subject_with(name, shape, folder, &[])
}

fn subject_with(name: &str, shape: Shape, folder: &Path, knobs: &[(&str, &str)]) -> Subject {
    let kernel = mutants::write(name, shape, folder, knobs).unwrap();
    Subject::read(&folder.join(format!("{}.toml", kernel.name))).unwrap()
}

fn plan() -> SurveyOptions {
    mutants::plan().unwrap()
}

#[test]
fn a_sample_of_the_mutants_is_caught() {
    let (mut all, mut good) = (0, 0);
    let mut below = String::new();
    let wanted = std::env::var("SILUMIN_MUTANTS").unwrap_or_default();
    // If kernels are named, mutate all of them.
    let parts = if wanted.is_empty() { PARTS } else { 1 };
    let kernels = KERNELS.iter().filter(|(name, _)| name.starts_with(&wanted)).collect();
    for (_, &(name, shape)) in sample::of(kernels, parts) {
        let folder = tempfile::tempdir().unwrap();
        // Kernels of warpgroups have fewer places for mistakes: one warp loads, and the others issue few instructions.
        let every = if name.starts_with("hopper") { 43 } else { 97 };
        let survey = subject(name, shape, folder.path()).survey(&SurveyOptions { every, ..plan() }).unwrap();
        assert!(survey.outcomes.len() >= 5, "{name}: {} mutants", survey.outcomes.len());
        all += survey.outcomes.len();
        good += survey.caught() + survey.explained();
        // A sample is too small for the bar of one kernel.
        if survey.share() < 0.85 {
            below += &format!("{name}\n{}", text(&survey));
        }
    }
    assert!(below.is_empty(), "{}:\n{below}", sample::again());
    assert!(all > 0 && good * 100 >= all * 95, "{good} of {all}; {}", sample::again());
}

#[test]
fn all_lost_synchronisation_is_caught() {
    let folder = tempfile::tempdir().unwrap();
    let only =
        vec![Kind::Wait, Kind::Arrive, Kind::ExpectBytes, Kind::Commit, Kind::GroupWait, Kind::Barrier];
    // Under a split tail a `wait::ld` that is left out may be covered by the next one, before the value has an effect.
    let forward = [("k_order", "forward")];
    let survey = subject_with("default", Shape::new(130, 136, 2400), folder.path(), &forward)
        .survey(&SurveyOptions { only, ..plan() })
        .unwrap();
    assert!(survey.caught() >= 10, "{}", text(&survey));
    // Two are explained. Pairs wait at the producer's end for arrivals that the last barrier of the cluster waits for, too;
    // and that barrier is what others have before `dealloc`, where each CTA has waited for all that reaches it.
    assert!(survey.outcomes.iter().all(|o| o.verdict != Verdict::Survived), "{}", text(&survey));
    assert!(survey.explained() <= 2, "{}", text(&survey));
}

#[test]
fn one_lane_does_not_let_decoded_weights_go_for_a_warp_that_has_not_met() {
    let folder = tempfile::tempdir().unwrap();
    // Enough of K to go round the ring: a slot that nobody fills again may be let go at any time.
    let survey = subject("hopper_weights", Shape::new(10, 136, 2912), folder.path())
        .survey(&SurveyOptions { only: vec![Kind::WarpBarrier], ..plan() })
        .unwrap();
    let ptx = fs::read_dir(folder.path()).unwrap().map(|f| f.unwrap().path());
    let ptx = ptx.into_iter().find(|f| f.extension().is_some_and(|e| e == "ptx")).unwrap();
    let ptx = fs::read_to_string(ptx).unwrap();
    let lines: Vec<&str> = ptx.lines().collect();
    // The lane that arrives a few lines on speaks for all. The last stages' slots nobody fills again.
    let arrives =
        |line: u32| lines[line as usize..][..4].iter().any(|l| l.contains("@%lets_go mbarrier.arrive"));
    let mut count = 0;
    for outcome in survey.outcomes.iter().filter(|o| arrives(o.mutant.line)) {
        count += 1;
        let Verdict::Found { kind: FindingKind::SlotOverwritten, finding, .. } = &outcome.verdict else {
            panic!("{outcome:?}")
        };
        assert!(finding.contains("ld.shared") && finding.contains("bar.warp.sync"), "{finding}");
    }
    assert!(count > 0, "{}", text(&survey));
}

#[test]
fn mistakes_of_pairs_are_caught_by_what_looks_for_them() {
    let folder = tempfile::tempdir().unwrap();
    let subject = subject("default", Shape::new(256, 128, 1024), folder.path());
    let only = vec![Kind::Pair, Kind::Collector, Kind::Barrier];
    let survey = subject.survey(&SurveyOptions { only, ..plan() }).unwrap();
    let kinds = |kind: Kind, change: &str| -> Vec<Option<FindingKind>> {
        let of = survey.outcomes.iter().filter(|o| o.mutant.kind == kind && o.mutant.change.contains(change));
        let kinds = of.map(|o| match &o.verdict {
            Verdict::Found { kind, .. } => Some(*kind),
            Verdict::Refused(_) | Verdict::Output { .. } | Verdict::Explained(_) | Verdict::Survived => None,
        });
        kinds.collect()
    };
    // Alloc, relinquish and dealloc, by either CTA; and another size.
    let alone = kinds(Kind::Pair, "alone");
    assert_eq!((alone.len(), kinds(Kind::Pair, "columns in the odd CTA").len()), (6, 1));
    assert!(!survey.outcomes.iter().any(|o| o.verdict == Verdict::Survived), "{}", text(&survey));
    // Without a dealloc of one CTA, or without its relinquish, nothing else is wrong.
    let mismatch = Some(FindingKind::TmemPairMismatch);
    assert!(alone.iter().filter(|&&k| k == mismatch).count() >= 4, "{alone:?}");
    let other = kinds(Kind::Collector, "another A");
    assert!(!other.is_empty() && other.iter().all(|&k| k == Some(FindingKind::CollectorMisuse)), "{other:?}");
    // The one before the allocation; that of the end is explained.
    let barriers = kinds(Kind::Barrier, "of the CTA alone");
    assert!(barriers.contains(&Some(FindingKind::PairAllocBeforePeer)), "{barriers:?}");
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
fn the_instruction_limit_is_the_kernel_s_and_its_mutants() {
    let folder = tempfile::tempdir().unwrap();
    let subject = guards(8, folder.path());
    let survey = |instruction_limit| {
        subject.survey(&SurveyOptions { instruction_limit, only: vec![Kind::Guard], ..plan() })
    };
    let error = survey(5).unwrap_err().to_string();
    assert!(error.contains("not right") && error.contains("InstructionLimit"), "{error}");
    assert!(error.contains("executed 5 instructions"), "{error}");
    let tight = survey(20_000).unwrap();
    let ended = |o: &&Outcome| matches!(&o.verdict, Verdict::Found { finding, .. } if finding.contains("executed 20000 instructions"));
    let ended: Vec<&Outcome> = tight.outcomes.iter().filter(ended).collect();
    assert!(!ended.is_empty(), "{:#?}", tight.outcomes);
}

#[test]
fn hints_are_explained_and_counted_apart() {
    let folder = tempfile::tempdir().unwrap();
    let survey = subject("default", Shape::new(130, 136, 320), folder.path())
        .survey(&SurveyOptions { only: vec![Kind::Hint], ..plan() })
        .unwrap();
    assert_eq!((survey.caught(), survey.explained()), (0, survey.outcomes.len()), "{}", text(&survey));
    assert!(survey.outcomes.iter().all(|o| matches!(&o.verdict, Verdict::Explained(why) if !why.is_empty())));
}

#[test]
fn a_step_whose_result_nothing_reads_is_explained_and_one_that_is_read_is_caught() {
    let folder = tempfile::tempdir().unwrap();
    let ptx = "\
.version 8.7
.target sm_90a
.address_size 64
.visible .entry steps(.param .u64 out)
{
    .reg .b32 %thread;
    .reg .b64 %at;
    ld.param.u64 %at, [out];
    mov.u32 %thread, %tid.x;
    mad.wide.u32 %at, %thread, 4, %at;
    add.u32 %thread, %thread, 3;
    st.global.u32 [%at], %thread;
    add.u32 %thread, %thread, 5;
    add.u64 %at, %at, 128;
    ret;
}
";
    let launch = "\
ptx = \"steps.ptx\"
kernel = \"steps\"
grid = [1, 1, 1]
block = [32, 1, 1]
[buffers.out]
bytes = 128
fill = 0xA5
[[params]]
pointer = \"out\"
";
    fs::write(folder.path().join("steps.ptx"), ptx).unwrap();
    fs::write(folder.path().join("steps.toml"), launch).unwrap();
    let survey = Subject::read(&folder.path().join("steps.toml"))
        .unwrap()
        .survey(&SurveyOptions { only: vec![Kind::Step], ..plan() })
        .unwrap();
    let of = |line: u32| survey.outcomes.iter().filter(move |o| o.mutant.line == line);
    assert_eq!([11, 13, 14].map(|line| of(line).count()), [2, 2, 2], "{}", text(&survey));
    assert!(of(11).all(|o| matches!(o.verdict, Verdict::Output { .. })), "{}", text(&survey));
    let unread = |o: &Outcome| matches!(&o.verdict, Verdict::Explained(why) if why.contains("nothing reads"));
    assert!(of(13).chain(of(14)).all(unread), "{}", text(&survey));
}

#[test]
fn what_survives_at_one_size_is_caught_at_another() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    // A pair waits for all stages before it ends; a single CTA does not. Five K tiles use three of four stages once.
    let knobs = [("cta_group", "1"), ("stages", "4")];
    let small = subject_with("default", Shape::new(130, 136, 1184), folders[0].path(), &knobs);
    let large = [subject_with("default", Shape::new(130, 136, 4960), folders[1].path(), &knobs)];
    let plan = SurveyOptions { only: vec![Kind::InitCount], ..plan() };
    // Stages that are used once: nobody waits for them to be free again.
    let alone = small.survey(&plan).unwrap();
    assert!(!alone.outcomes.iter().all(|o| o.verdict.means().is_some()), "{}", text(&alone));
    let mut earlier = Earlier::default();
    earlier.read(&json(std::slice::from_ref(&alone))).unwrap();
    let both = small.survey_with(&plan, &large, &earlier).unwrap();
    assert!(both.outcomes.iter().all(|o| o.verdict.means().is_some()), "{}", text(&both));
    // What is known is not run again.
    let kept = small.survey_with(&SurveyOptions { keep: true, ..plan }, &large, &earlier).unwrap();
    assert_eq!(kept, alone);
}

/// Warp 0 waits for what warp 1 has written, and adds one to it where `n` is below 5.
const GUARDS: &str = "\
.version 8.0
.target sm_90a
.address_size 64
.visible .entry guards(.param .u64 out, .param .u32 n)
{
    .reg .pred %first, %waits, %complete, %few;
    .reg .b32 %thread, %n, %value, %place;
    .reg .b64 %at;
    .shared .align 8 .b64 full;
    .shared .align 4 .b32 words[32];
    ld.param.u64 %at, [out];
    ld.param.u32 %n, [n];
    mov.u32 %thread, %tid.x;
    mad.wide.u32 %at, %thread, 4, %at;
    mov.u32 %place, words;
    setp.eq.u32 %first, %thread, 0;
    @%first mbarrier.init.shared::cta.b64 [full], 32;
    bar.sync 0;
    setp.lt.u32 %waits, %thread, 32;
    @%waits bra WAIT;
    sub.u32 %thread, %thread, 32;
    mad.lo.u32 %place, %thread, 4, %place;
    st.shared.u32 [%place], %thread;
    mbarrier.arrive.shared::cta.b64 _, [full];
    bra DONE;
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %complete, [full], 0;
    @!%complete bra WAIT;
    mad.lo.u32 %place, %thread, 4, %place;
    ld.shared.u32 %value, [%place];
    setp.lt.u32 %few, %n, 5;
    @%few add.u32 %value, %value, 1;
    st.global.u32 [%at], %value;
DONE:
    ret;
}
";

fn guards(n: u32, folder: &Path) -> Subject {
    let launch = format!(
        "ptx = \"guards.ptx\"\nkernel = \"guards\"\ngrid = [1, 1, 1]\nblock = [64, 1, 1]\n\
        [buffers.out]\nbytes = 128\n[[params]]\npointer = \"out\"\n[[params]]\nu32 = {n}\n"
    );
    let file = folder.join(format!("{n}.toml"));
    fs::write(folder.join("guards.ptx"), GUARDS).unwrap();
    fs::write(&file, launch).unwrap();
    Subject::read(&file).unwrap()
}

#[test]
fn a_way_that_only_waits_that_give_up_take_is_no_way_that_nobody_takes() {
    let folder = tempfile::tempdir().unwrap();
    let plan = SurveyOptions { only: vec![Kind::Guard], seeds: 64, ..plan() };
    let survey = guards(3, folder.path()).survey(&plan).unwrap();
    let wait = |o: &&Outcome| o.mutant.was.ends_with("bra WAIT;") && o.mutant.change == "removed";
    let all: Vec<&Outcome> = survey.outcomes.iter().filter(wait).collect();
    // Warp 0 goes to the wait, and back to it.
    assert_eq!(all.len(), 2, "{}", text(&survey));
    assert!(all.iter().all(|o| o.verdict.means().is_some()), "{}", text(&survey));
}

#[test]
fn a_guard_that_lets_no_lane_through_matters_where_it_is_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let plan = SurveyOptions { only: vec![Kind::Guard], ..plan() };
    let (few, many) = (guards(3, folder.path()), [guards(9, folder.path())]);
    let verdict = |others: &[Subject]| {
        let survey = few.survey_with(&plan, others, &Earlier::default()).unwrap();
        let of = |o: &&Outcome| o.mutant.was.starts_with("@%few") && o.mutant.change == "guard left out";
        survey.outcomes.iter().find(of).unwrap_or_else(|| panic!("{}", text(&survey))).verdict.clone()
    };
    let Verdict::Explained(why) = verdict(&[]) else { panic!("it is the same for few") };
    assert!(why.contains("same lanes"), "{why}");
    assert!(matches!(verdict(&many), Verdict::Output { .. }));
}

#[test]
fn the_table_adds_up_and_leaves_nothing_unexplained() {
    let rows = xtask::mutants::row::read(&silumin_testkit::root().join("evidence/mutants.jsonl")).unwrap();
    for row in &rows {
        let listed: usize = row.survivors.iter().map(|survivor| survivor.lines.len()).sum();
        assert_eq!(row.caught + listed, row.mutants, "{}", row.kernel);
        assert_eq!(row.caught_by.values().sum::<usize>(), row.caught, "{}", row.kernel);
        assert!(row.survivors.iter().all(|survivor| survivor.reason.is_some()), "{}", row.kernel);
    }
    for (name, _) in KERNELS {
        assert!(rows.iter().any(|row| row.kernel == *name), "{name}: run `cargo xtask mutants --every 8`");
    }
}
