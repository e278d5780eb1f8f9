//! Model load: kernels, the cache of compiled kernels, bundles and files.

use super::{Case, Page, case, kind};
use silumin::runtime::cache::{BundleError, Entry, Key, Warning};
use silumin::runtime::regular_file;
use silumin::runtime::warmup::Cancel;
use silumin::{Arch, Buckets, Bundle, Cache, CacheOptions, Device, DualGemm, LoadError, Shape, Spec, Warmup};
use silumin_testkit::compiler::{Counting, source};
use std::fs::{self, File};
use std::path::Path;
use std::sync::{Arc, Mutex};

pub fn show(page: &mut Page) {
    let folder = tempfile::tempdir().unwrap();
    let placed = |cases: Vec<Case>| cases.into_iter().map(|case| case.without(folder.path())).collect();
    page.cases("Kernels", kernels());
    page.cases("Compiled kernels", placed(entries(folder.path())));
    page.cases("Bundles", placed(bundles(folder.path())));
    page.cases("Files", placed(files(folder.path())));
}

fn gemm() -> DualGemm {
    DualGemm::new(Spec::new("silu(A @ B1) * (A @ B2)".parse().unwrap(), &[Arch::Sm100a]).unwrap())
}

fn kernels() -> Vec<Case> {
    let (device, gemm) = (Device::emulated(Arch::Sm100a), gemm());
    let kernels = Warmup::of(&gemm).weights(64, 128).buckets(Buckets::powers_of_two(4)).run(&device).unwrap();
    let one = Buckets::powers_of_two(1);
    let odd = Warmup::of(&gemm).weights(64, 100).buckets(one.clone()).run(&device).map(drop).unwrap_err();
    let cancel = Cancel::new();
    cancel.cancel();
    let given_up = Warmup::of(&gemm).weights(64, 128).buckets(one).cancel(&cancel).run(&device).map(drop);
    let given_up = given_up.unwrap_err();
    let inner = kind(&given_up.failures[0].1);
    let given_up = case("A warm-up that the program gives up", given_up).and(inner);
    let outside = |m, n, k| kernels.for_problem(m, n, k).map(drop).unwrap_err();
    vec![
        case("Buckets without a size", Buckets::new([]).unwrap_err()),
        case("A bucket of no tokens", Buckets::new([4, 0]).unwrap_err()),
        case("K that NVFP4 does not have", odd),
        given_up,
        refused(
            "A gate's code with a mistake",
            with_code(NO_CODE).load(&device, Shape::new(4, 64, 128)).map(drop).unwrap_err(),
        )
        .shortened(5),
        case("5 tokens and buckets of up to 4", outside(5, 64, 128)),
        case("Weights that nobody named", outside(4, 128, 64)),
    ]
}

/// A dual GEMM with other code for its gate.
pub fn with_code(code: &'static str) -> DualGemm {
    let mut spec = gemm().spec().clone();
    spec.code[0].whole.text = code.into();
    spec.code[0].split = None;
    DualGemm::new(spec)
}

/// A line of a gate's code that is not PTX.
pub const NO_CODE: &str = "mull.f32 <out.0>, <p1.0>, <p2.0>;\n";

/// A device's refusal of a module.
pub fn refused(what: &'static str, error: LoadError) -> Case {
    let LoadError::Module { reason, .. } = &error else { panic!("{error}") };
    let inner = kind(reason);
    case(what, error).and(inner)
}

/// A kernel that a compiler for tests has compiled, as it lies on the disk.
fn compiled(top: &Path) -> (Cache, std::path::PathBuf, Counting) {
    let folder = top.join("cache");
    let (cache, compiler) = (Cache::open(&folder), Counting::new(&folder));
    drop(cache.cubin(&source("one"), &compiler).unwrap());
    let path = cache.list().unwrap().remove(0).path;
    (cache, path, compiler)
}

fn resealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let covered = bytes.len() - 32;
    let checksum = blake3::hash(&bytes[..covered]);
    bytes[covered..].copy_from_slice(checksum.as_bytes());
    bytes
}

fn entries(top: &Path) -> Vec<Case> {
    let (_, path, compiler) = compiled(top);
    let whole = fs::read(&path).unwrap();
    let changed = |at: usize, by: u8| {
        let mut bytes = whole.clone();
        bytes[at] ^= by;
        bytes
    };
    let refused = |bytes: &[u8], key: Option<Key>| Entry::decode(bytes, key).map(drop).unwrap_err();
    let other = Key::of(&source("two"), &compiler.identity);
    // What is in a file's place is told while the kernel is compiled again.
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    fs::write(path.join("letter"), "dear").unwrap();
    let told: Arc<Mutex<Vec<Warning>>> = Arc::default();
    let sink = told.clone();
    let options = CacheOptions::new().folder(top.join("cache"));
    let cache = options.on_warning(move |warning| sink.lock().unwrap().push(warning.clone())).open();
    drop(cache.cubin(&source("one"), &compiler).unwrap());
    let warning = told.lock().unwrap()[0].to_string();
    let name = path.file_name().unwrap().to_str().unwrap();
    let off = CacheOptions::new().compiling(false).open();
    vec![
        case("A script in the cache", refused(b"#!/bin/sh\n", None)),
        case("An entry of another version", refused(&resealed(changed(8, 3)), None)),
        case("An entry that is cut off", refused(&whole[..whole.len() - 40], None)),
        case("An entry with a changed byte", refused(&changed(100, 1), None)),
        case("A file with the name of another kernel's", refused(&whole, Some(other))),
        case("An entry that another program wrote", refused(&resealed(changed(88, 0x40)), None)),
        Case {
            what: "A folder in a file's place".into(),
            kinds: vec![("runtime::EntryError".to_owned(), "NoFile".to_owned())],
            said: warning.replace(name, "KERNEL"),
        },
        case(
            "A kernel that is not in the cache, and compiling is off",
            off.cubin(&source("one"), &compiler).map(drop).unwrap_err(),
        ),
    ]
}

fn bundles(top: &Path) -> Vec<Case> {
    let folder = top.join("models");
    fs::create_dir(&folder).unwrap();
    let (cache, compiler) = (Cache::open(folder.join("cache")), Counting::new(&folder.join("cache")));
    drop(cache.cubin(&source("one"), &compiler).unwrap());
    let bundle = Bundle::new(cache.list().unwrap().iter().map(|found| cache.read(found).unwrap()));
    let path = top.join("model.kernels");
    bundle.save(&path).unwrap();
    let whole = bundle.to_bytes();
    let bad = |what: &'static str, bytes: &[u8]| {
        let error = Bundle::from_bytes(bytes).map(drop).unwrap_err();
        let (BundleError::Table(reason) | BundleError::Entry { reason, .. }) = &error else {
            panic!("{error}")
        };
        let inner = kind(reason);
        case(what, error).and(inner)
    };
    let mut changed = whole.clone();
    *changed.last_mut().unwrap() ^= 1;
    let refused = |result: Result<Bundle, BundleError>| result.map(drop).unwrap_err();
    vec![
        case("A bundle that is not there", refused(Bundle::open(top.join("missing.kernels")))),
        bad("A file that is no bundle", b"PK\x03\x04"),
        bad("A bundle with a changed byte", &changed),
        case(
            "A bundle with another hash than the program knows",
            refused(Bundle::open_trusted(&path, &"0".repeat(64))),
        ),
        case("A hash that is cut off", refused(Bundle::open_trusted(&path, "c0ffee"))),
        case("A bundle of no kernels", Bundle::default().save(&path).unwrap_err()),
        case(
            "A bundle for a folder that is not there",
            bundle.save(top.join("none/model.kernels")).unwrap_err(),
        ),
    ]
}

fn files(top: &Path) -> Vec<Case> {
    let read = |name: &str| regular_file::read_text(&top.join(name), 64).map(drop).unwrap_err();
    fs::write(top.join("text"), b"ab\xff").unwrap();
    File::create(top.join("long")).unwrap().set_len(65).unwrap();
    vec![
        case("A file that is not there", read("knobs.toml")),
        case("A folder in place of a file", read("models")),
        case("A file that is too long", read("long")),
        case("A file that is no text", read("text")),
    ]
}
