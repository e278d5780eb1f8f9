//! Tuning: spaces of knobs, files of results, and predicted times.

use super::load::{NO_CODE, with_code};
use super::{Case, Page, case, kind};
use silumin::codegen::spec::SpecFile;
use silumin::runtime::predict::{Chip, TimeOptions, default_chip, predict};
use silumin::runtime::tune::{
    Space, SpaceError, Table, TableError, Tune, TuneError, TuningEntry, knobs, tune,
};
use silumin::runtime::warmup::Cancel;
use silumin::{Arch, Config, Device, DualGemm, Shape, Spec};
use std::fs::{self, File};
use std::path::Path;

pub fn show(page: &mut Page) {
    page.cases("Runs of the tuner", runs());
    page.cases("Spaces of knobs", spaces());
    page.cases("Files of results", files());
    page.cases("Predicted times", times());
}

fn gemm() -> DualGemm {
    DualGemm::new(Spec::new("silu(A @ B1) * (A @ B2)".parse().unwrap(), &[Arch::Sm100a]).unwrap())
}

fn runs() -> Vec<Case> {
    let device = Device::emulated(Arch::Sm100a);
    let shape = Shape::new(8, 64, 256);
    let refused = |gemm: &DualGemm, shape, space: &str| -> TuneError {
        tune(&device, gemm, shape, &space.parse().unwrap()).map(drop).unwrap_err()
    };
    let cancel = Cancel::new();
    cancel.cancel();
    let cancelled = Tune::of(&gemm(), shape).cancel(&cancel).run(&device).map(drop).unwrap_err();
    vec![
        case("K that NVFP4 does not have", refused(&gemm(), Shape::new(8, 64, 40), "stages=2")),
        case("A kernel that is wrong with all knobs", refused(&with_code(NO_CODE), shape, "stages=2"))
            .shortened(4),
        case("Tuning that the program gives up", cancelled),
    ]
}

fn spaces() -> Vec<Case> {
    let space = |text: &str| -> SpaceError { text.parse::<Space>().map(drop).unwrap_err() };
    let stages = (1..=32).map(|stages| stages.to_string()).collect::<Vec<_>>().join("|");
    let ahead = (1..=32).map(|stages| format!("ahead({stages})")).collect::<Vec<_>>().join("|");
    let sms = (1..=148).map(|sms| sms.to_string()).collect::<Vec<_>>().join("|");
    let large = format!("stages={stages} sf_preload={ahead} sms={sms} pdl=on|off");
    vec![
        case("A word without a value", space("stages")),
        case("A value that a knob does not take", space("stages=many")),
        case("A knob twice in a line", space("stages=2 stages=3")),
        case("Too many combinations", space(&large)),
    ]
}

fn files() -> Vec<Case> {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let read = |name: &str| -> TableError { Table::read(&at(name)).map(drop).unwrap_err() };
    fs::write(at("notes.txt"), "my notes").unwrap();
    fs::write(at("newer.jsonl"), "{\"silumin_tuning\":2}\n").unwrap();
    File::create(at("long.jsonl")).unwrap().set_len(1 << 40).unwrap();
    let cases = vec![
        case("A file that is not there", read("tuning.jsonl")),
        case("A file of another kind", read("notes.txt")),
        case("A file of a newer version", read("newer.jsonl")),
        case("A file that is too long", read("long.jsonl")),
    ];
    cases.into_iter().map(|case| case.without(folder.path())).chain(lines(folder.path())).collect()
}

/// Damaged lines, which a table skips.
fn lines(folder: &Path) -> Vec<Case> {
    let (device, gemm) = (Device::emulated(Arch::Sm100a), gemm());
    let tuned = tune(&device, &gemm, Shape::new(8, 64, 256), &"stages=2".parse().unwrap()).unwrap();
    let mut table = Table::new();
    table.insert(TuningEntry::of(&device, &gemm, &tuned).unwrap());
    let text = table.encode();
    let (head, line) = text.split_once('\n').unwrap();
    let entry = line.split_once("\"entry\":").unwrap().1.rsplit_once(",\"sum\"").unwrap().0;
    let newer = entry.replace("\"knobs\":\"", "\"knobs\":\"warp_drive=on ");
    assert_ne!(newer, entry);
    let sealed = format!("{{\"entry\":{newer},\"sum\":\"{}\"}}", blake3::hash(newer.as_bytes()).to_hex());
    let damage = |what: &'static str, line: &str| {
        let table =
            Table::parse(format!("{head}\n{line}\n").as_bytes(), &folder.join("tuning.jsonl")).unwrap();
        case(what, table.damaged()[0].error.clone())
    };
    vec![
        damage("A line that is cut off", &line[..line.len() / 2]),
        damage("A line with a changed number", &line.replacen("64", "65", 1)),
        damage("A line with a knob of a newer version", &sealed),
    ]
}

fn times() -> Vec<Case> {
    let kernel = |formats: &str, groups: Option<u32>| {
        let mut file = SpecFile::new(Shape::new(64, 64, 256));
        let names: Vec<&str> = formats.split(',').collect();
        (file.formats.a, file.formats.b, file.formats.c) =
            (names[0].into(), names[1].into(), names[2].into());
        file.groups = groups;
        let (spec, arch) = file.read().unwrap();
        spec.kernel(file.shape(), arch).unwrap()
    };
    let timing = |chip: &str| TimeOptions::new(Chip::named(chip).unwrap());
    let plain = kernel("nvfp4,nvfp4,f16", None);
    let foreign = predict(&plain, None, &timing("h200")).map(drop).unwrap_err();
    let silumin::runtime::predict::PredictError::Time { source, .. } = &foreign else { panic!("{foreign}") };
    let inner = kind(source);
    let mut damaged = plain.clone();
    damaged.ptx = damaged.ptx.replacen("ret;", "rat;", 1);
    let damaged = predict(&damaged, None, &timing("b200")).map(drop).unwrap_err();
    vec![
        case("A kernel for B200, on H200", foreign).and(inner),
        case("A chip that no file has the numbers of", default_chip("sm_107a").unwrap_err()),
        case(
            "A kernel with groups, and no sizes",
            predict(&kernel("nvfp4,nvfp4,f16", Some(2)), None, &timing("b200")).map(drop).unwrap_err(),
        ),
        case("PTX with a mistake", damaged),
        case("Knobs of a line of results", knobs("stages", &Config::default()).unwrap_err()),
    ]
}
