//! Tests of the file: what is written is read, and nothing else is.

use super::*;
use crate::gemm::DualGemm;
use crate::tuned::{Ranked, Verdict};
use proptest::prelude::*;
use silumin_codegen::arch::Arch;
use std::fs;

fn gemm() -> DualGemm {
    DualGemm::new(Spec::new("silu(A @ B1) * (A @ B2)".parse().unwrap(), &[Arch::Sm100a]).unwrap())
}

fn device() -> Device {
    Device::emulated(Arch::Sm100a)
}

/// A result for `m` rows with these knobs.
fn entry(m: u32, text: &str, ranked: Ranked, tried: u32) -> TuningEntry {
    let (gemm, shape) = (gemm(), Shape::new(m, 64, 256));
    let config = knobs(text, &gemm.spec().config).unwrap();
    let code = code_of(gemm.spec(), config, shape, Arch::Sm100a).unwrap();
    let key = TuningKey::of(device().facts(), gemm.spec(), shape);
    TuningEntry { key, knobs: text.to_owned(), code, ranked, tried }
}

fn measured(us: f64, turns: usize, verdict: Verdict) -> Ranked {
    Ranked::Measured { us, auto_us: Some(us * 1.1), ratio: Some(1.0 / 1.1), turns, verdict }
}

fn table(entries: impl IntoIterator<Item = TuningEntry>) -> Table {
    let mut table = Table::new();
    for entry in entries {
        table.insert(entry);
    }
    table
}

fn three() -> Table {
    table([
        entry(1, "stages=2", Ranked::Predicted { us: 7.0, auto_us: 10.0, chip: "b200" }, 8),
        entry(130, "", measured(40.25, 30, Verdict::Tied), 20),
        entry(200, "stages=3 tile=128x64x128", measured(41.0 / 3.0, 60, Verdict::Clear), 40),
    ])
}

fn parsed(bytes: &[u8]) -> Result<Table, TableError> {
    Table::parse(bytes, Path::new("it"))
}

#[test]
fn what_is_written_is_read() {
    let all = three();
    let text = all.encode();
    assert_eq!(parsed(text.as_bytes()).unwrap(), all);
    assert_eq!(text.lines().count(), 4);
    // Every line is JSON for whoever else reads it.
    assert!(text.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()));
    let entry = all.entries().next().unwrap();
    assert_eq!(entry.problem(), "1 x 64 x 256, nvfp4 x nvfp4 -> f16, silu(A @ B1) * (A @ B2)");
    assert_eq!(entry.as_problem().unwrap().shape, Shape::new(1, 64, 256));
}

#[test]
fn batches_groups_and_what_the_user_set_are_in_the_key() {
    let mut spec = gemm().spec().clone();
    let plain = Shape::new(8, 64, 256);
    let mut keys = std::collections::HashSet::new();
    for shape in [plain, plain.batch(2), plain.grouped(2), Shape::new(9, 64, 256)] {
        keys.insert(TuningKey::of(device().facts(), &spec, shape));
    }
    spec.config = knobs("stages=2", &spec.config).unwrap();
    keys.insert(TuningKey::of(device().facts(), &spec, plain));
    spec.formats.c = "bf16".parse().unwrap();
    keys.insert(TuningKey::of(device().facts(), &spec, plain));
    // What it is called is not in it.
    spec.name = "other".into();
    keys.insert(TuningKey::of(device().facts(), &spec, plain));
    assert_eq!(keys.len(), 6);
    let entries = keys.into_iter().map(|key| TuningEntry {
        key,
        knobs: String::new(),
        code: [7; 32],
        ranked: Ranked::Predicted { us: 10.0, auto_us: 10.0, chip: "b200" },
        tried: 1,
    });
    let all = table(entries);
    assert_eq!(parsed(all.encode().as_bytes()).unwrap(), all);
}

#[test]
fn a_result_holds_for_its_device_driver_code_and_user() {
    let all = three();
    let (here, gemm) = (device(), gemm());
    let shape = Shape::new(200, 64, 256);
    let Found::Tuned(_, config) = all.find(&here, gemm.spec(), shape) else { panic!("{all:?}") };
    assert_eq!(config, knobs("stages=3 tile=128x64x128", &Config::default()).unwrap());
    // Another name makes another text of the same code.
    let named = Spec { name: "swiglu".into(), ..gemm.spec().clone() };
    assert!(matches!(all.find(&here, &named, shape), Found::Tuned(..)));
    // What the user sets is no result's that was found without.
    let mut set = gemm.spec().clone();
    set.config = knobs("stages=2", &set.config).unwrap();
    assert_eq!(all.find(&here, &set, shape), Found::Nothing);
    assert_eq!(all.find(&here, gemm.spec(), Shape::new(201, 64, 256)), Found::Nothing);

    let mut changed = entry(200, "stages=3", measured(1.0, 9, Verdict::Clear), 9);
    changed.code[0] ^= 1;
    let stale = |table: &Table| match table.find(&here, gemm.spec(), shape) {
        Found::Stale(_, why) => why,
        other => panic!("{other:?}"),
    };
    assert_eq!(stale(&table([changed.clone()])), Stale::Code);
    changed.key.device.driver = "13.0 580.1".to_owned();
    assert_eq!(stale(&table([changed.clone()])), Stale::Driver { found: "13.0 580.1".to_owned() });
    changed.key.device.sms = 3;
    let other = table([changed.clone()]);
    assert!(matches!(stale(&other), Stale::Device { .. }));
    assert!(stale(&other).to_string().contains("3 SMs"));
    assert_eq!(other.stale(&here.facts()).len(), 1);
    assert!(all.stale(&here.facts()).is_empty());
}

#[test]
fn the_better_of_two_results_stays_in_any_order() {
    let of = |ranked, tried| entry(8, "stages=2", ranked, tried);
    let ascending = [
        of(Ranked::Predicted { us: 9.0, auto_us: 10.0, chip: "b200" }, 90),
        of(measured(9.0, 200, Verdict::Open), 90),
        of(measured(9.0, 30, Verdict::Tied), 20),
        of(measured(8.0, 30, Verdict::Clear), 20),
        of(measured(8.5, 31, Verdict::Clear), 20),
        of(measured(9.5, 12, Verdict::Tied), 21),
    ];
    for (place, worse) in ascending.iter().enumerate() {
        for better in &ascending[place + 1..] {
            let (one, other) = (table([worse.clone()]), table([better.clone()]));
            let mut forth = one.clone();
            assert_eq!(forth.merge(&other), 1);
            let mut back = other.clone();
            assert_eq!(back.merge(&one), 0);
            assert_eq!(forth, back);
            assert_eq!(forth.entries().next(), Some(better));
        }
    }
    let mut again = table([ascending[5].clone()]);
    again.replace(ascending[0].clone());
    assert_eq!(again.entries().next(), Some(&ascending[0]));
}

#[test]
fn every_cut_and_every_flip_costs_the_lines_it_is_in() {
    let all = three();
    let text = all.encode();
    let head = text.find('\n').unwrap();
    for cut in 0..text.len() {
        match parsed(&text.as_bytes()[..cut]) {
            Ok(found) => {
                assert!(cut == 0 || cut >= head, "{cut}");
                assert!(found.entries().all(|entry| all.entries.get(&entry.key) == Some(entry)));
                assert!(found.damaged().len() <= 1);
                let whole = text[..cut].matches('\n').count().saturating_sub(1);
                // The end of the last line is none of what it says.
                assert!(found.len() == whole || found.len() == whole + 1 && text.as_bytes()[cut] == b'\n');
            }
            Err(error) => {
                assert!(cut <= head && matches!(error, TableError::Foreign { .. }), "{cut}: {error}");
            }
        }
    }
    for place in 0..text.len() {
        for bit in [0, 3, 7] {
            let mut bytes = text.clone().into_bytes();
            bytes[place] ^= 1 << bit;
            match parsed(&bytes) {
                Ok(found) => {
                    assert!(
                        found.entries().all(|entry| all.entries.get(&entry.key) == Some(entry)),
                        "{place}"
                    );
                    // An end of line that is none costs two.
                    assert!(!found.is_empty(), "{place}: {:?}", found.damaged());
                }
                Err(error) => assert!(place <= head, "{place}: {error}"),
            }
        }
    }
}

#[test]
fn foreign_files_and_other_versions_are_errors_that_say_so() {
    assert!(matches!(parsed(b"hello\n"), Err(TableError::Foreign { .. })));
    assert!(matches!(parsed(&[0xFF; 40]), Err(TableError::Foreign { .. })));
    let error = parsed(b"{\"silumin_tuning\":2}\n").unwrap_err();
    assert!(matches!(error, TableError::Version { found: 2, .. }) && error.to_string().contains("format 2"));
    assert!(parsed(b"").unwrap().is_empty());
    let folder = tempfile::tempdir().unwrap();
    assert!(matches!(Table::read(folder.path()), Err(TableError::Foreign { .. })));
    assert!(matches!(Table::read(&folder.path().join("none")), Err(TableError::Io { .. })));
    let file = folder.path().join("notes.txt");
    fs::write(&file, "my notes").unwrap();
    assert!(matches!(three().save(&file), Err(TableError::Foreign { .. })));
    assert_eq!(fs::read_to_string(&file).unwrap(), "my notes", "what is none of ours is left alone");
    // A line of another version, whose checksum fits.
    let line = three().encode().lines().nth(1).unwrap().to_owned();
    let entry = line.split_once("\"entry\":").unwrap().1.rsplit_once(",\"sum\"").unwrap().0;
    let newer = entry.replace("\"knobs\":\"stages=2\"", "\"knobs\":\"warp_drive=on\"");
    let text = format!(
        "{HEAD}{FORMAT}}}\n{{\"entry\":{newer},\"sum\":\"{}\"}}\n",
        blake3::hash(newer.as_bytes()).to_hex()
    );
    let found = parsed(text.as_bytes()).unwrap();
    assert_eq!(found.damaged()[0].error, RecordError::Contents { what: "knobs" });
    assert_eq!(found.damaged()[0].line, 2);
}

#[test]
fn writers_at_the_same_time_lose_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tuning.jsonl");
    std::thread::scope(|scope| {
        for thread in 0..8u32 {
            let file = &file;
            scope.spawn(move || {
                for step in 0..8 {
                    let one = entry(
                        1 + thread * 8 + step,
                        "",
                        Ranked::Predicted { us: 10.0, auto_us: 10.0, chip: "b200" },
                        1,
                    );
                    table([one]).save(file).unwrap();
                }
            });
        }
    });
    let all = Table::read(&file).unwrap();
    assert_eq!((all.len(), all.damaged().len()), (64, 0));
    // A damaged line is gone with the next write, the others stay.
    let mut text = fs::read_to_string(&file).unwrap();
    text = text.replacen("\"m\"", "\"n\"", 1).replacen("ranked", "ranged", 1);
    fs::write(&file, text).unwrap();
    assert_eq!(Table::read(&file).unwrap().damaged().len(), 1);
    let saved = Table::new().save(&file).unwrap();
    assert_eq!((saved.len(), Table::read(&file).unwrap()), (63, saved));
    // Nothing is left over but the lock.
    let names: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|item| item.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), headed in any::<bool>()) {
        let mut whole = if headed { format!("{HEAD}{FORMAT}}}\n").into_bytes() } else { Vec::new() };
        whole.extend(&bytes);
        if let Ok(found) = parsed(&whole) {
            prop_assert!(found.is_empty());
        }
    }

    #[test]
    fn what_has_a_checksum_that_fits_is_read_or_refused(
        (m, n, k) in (any::<u32>(), any::<u32>(), any::<u32>()),
        groups in proptest::option::of(any::<u32>()),
        text in "[a-z_=0-9\\[\\]x, |\"\\\\]{0,40}",
        us in any::<f64>(),
        code in "[0-9a-f]{0,66}",
        verdict in "clear|tied|open|[a-z]{1,5}",
    ) {
        let body = serde_json::json!({
            "device": {"name": text, "capability": [9, 0], "sms": 132, "driver": text},
            "problem": {"shape": [m, n, k], "groups": groups, "a": "bf16", "b": "bf16", "c": "bf16", "preactivations": "none", "gate": text},
            "base": "", "knobs": text, "code": code,
            "result": {"ranked": "measured", "us": us, "turns": 3, "verdict": verdict, "tried": 1},
        }).to_string();
        let line = format!("{{\"entry\":{body},\"sum\":\"{}\"}}", blake3::hash(body.as_bytes()).to_hex());
        let whole = format!("{HEAD}{FORMAT}}}\n{line}\n");
        let found = parsed(whole.as_bytes()).unwrap();
        prop_assert_eq!(found.len() + found.damaged().len(), 1);
        // A look-up of whatever was read makes no kernel that the generator does not, and never panics.
        for entry in found.entries() {
            if let Some(problem) = entry.as_problem() {
                let mut spec = gemm().spec().clone();
                spec.formats = problem.formats;
                let _ = found.find(&device(), &spec, problem.shape);
            }
        }
    }

    #[test]
    fn tables_merge_to_the_same_in_any_order(picks in proptest::collection::vec((1..4u32, 0..3usize, 1..5u32, 1..40u32), 0..12)) {
        let verdicts = [Verdict::Clear, Verdict::Tied, Verdict::Open];
        let entries: Vec<TuningEntry> = picks.iter().map(|(m, verdict, tried, us)| {
            let ranked = measured(f64::from(*us), 10, verdicts[*verdict]);
            entry(*m, if us % 2 == 0 { "stages=2" } else { "" }, ranked, *tried)
        }).collect();
        let whole = table(entries.clone());
        let parts: Vec<Table> = entries.chunks(3).map(|part| table(part.to_vec())).collect();
        let mut forth = Table::new();
        for part in &parts {
            forth.merge(part);
        }
        let mut back = Table::new();
        for part in parts.iter().rev() {
            back.merge(part);
        }
        prop_assert_eq!(&forth, &whole);
        prop_assert_eq!(&back, &whole);
        let mut twice = whole.clone();
        prop_assert_eq!(twice.merge(&whole), 0);
    }
}

#[cfg(feature = "emulated")]
#[test]
fn predicted_results_may_be_of_any_chip_that_times_are_predicted_for() {
    assert!(crate::predict::Chip::names().eq(super::super::record::CHIPS));
}
