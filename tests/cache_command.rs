//! The cache's command, on folders that a compiler for tests has filled.

use clap::Parser;
use silumin::{Bundle, Cache};
use silumin_cli::cache::{Options, execute};
use silumin_testkit::compiler::{Counting, source};
use std::path::Path;

/// What the command prints, and whether all is well; or the error.
fn run(folder: &Path, arguments: &[&str]) -> Result<(bool, String), String> {
    let mut out = Vec::new();
    let line =
        ["silumin-cache", "--folder", folder.to_str().unwrap()].into_iter().chain(arguments.iter().copied());
    let options = Options::try_parse_from(line).map_err(|error| error.to_string())?;
    let well = execute(options, &mut out).map_err(|error| error.to_string())?;
    Ok((well, String::from_utf8(out).unwrap()))
}

fn filled() -> (tempfile::TempDir, std::path::PathBuf, Counting) {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("cache");
    let compiler = Counting::new(&folder);
    for ptx in ["one", "two", "three"] {
        drop(Cache::open(&folder).cubin(&source(ptx), &compiler).unwrap());
    }
    (root, folder, compiler)
}

#[test]
fn a_whole_cache_is_listed_and_verified() {
    let (_root, folder, _) = filled();
    let (well, listed) = run(&folder, &["list", "--logs"]).unwrap();
    assert!(well && listed.lines().count() == 3 * 2 + 1, "{listed}");
    assert!(listed.contains("64 B") && listed.contains("sm_100a  test 1  kernel"), "{listed}");
    assert!(listed.contains("    compiled\n") && listed.contains("bytes in "), "{listed}");
    assert_eq!(run(&folder, &["verify"]).unwrap(), (true, "3 entries, 0 damaged\n".to_owned()));
}

#[test]
fn damage_is_found_and_removed_when_asked() {
    let (_root, folder, _) = filled();
    let path = Cache::open(&folder).list().unwrap().remove(1).path;
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let (well, said) = run(&folder, &["verify"]).unwrap();
    assert!(!well && said.contains("checksum") && said.contains("3 entries, 1 damaged\n"), "{said}");
    assert!(run(&folder, &["list"]).unwrap().1.contains("checksum"));
    let (well, said) = run(&folder, &["verify", "--remove"]).unwrap();
    assert!(well && said.contains("1 damaged and removed"), "{said}");
    assert_eq!(run(&folder, &["verify"]).unwrap(), (true, "2 entries, 0 damaged\n".to_owned()));
}

#[test]
fn pruning_takes_sizes_and_exporting_takes_filters() {
    let (root, folder, compiler) = filled();
    let file = root.path().join("kernels");
    let name = file.to_str().unwrap();
    let (_, said) = run(&folder, &["export", name, "--target", "sm_100a", "--kernel", "kern"]).unwrap();
    assert!(said.starts_with("3 kernels, "), "{said}");
    assert_eq!(Bundle::open(&file).unwrap().len(), 3);
    assert!(run(&folder, &["list", "--bundle", name]).unwrap().1.lines().count() == 3);
    let nothing = run(&folder, &["export", name, "--target", "sm_90a"]).unwrap_err();
    assert!(nothing.contains("nothing to export"), "{nothing}");
    assert_eq!(Bundle::open(&file).unwrap().len(), 3, "an export of nothing leaves what was there");
    assert_eq!(run(&folder, &["prune", "1G"]).unwrap().1, "0 entries removed\n");
    assert_eq!(run(&folder, &["prune", "0"]).unwrap().1, "3 entries removed\n");
    // The bundle serves without the folder, and compiles nothing.
    let cache = silumin::CacheOptions::new().bundle(Bundle::open(&file).unwrap()).compiling(false).open();
    assert_eq!(cache.cubin(&source("two"), &compiler).unwrap().entry.cubin, compiler.cubin("two"));
    assert_eq!(compiler.calls(), 3);
    for (size, error) in [("12X", "no unit"), ("M", "no number"), ("99999999999G", "more than any")] {
        let said = run(&folder, &["prune", size]).unwrap_err();
        assert!(said.contains(error), "{size}: {said}");
    }
}

#[test]
fn a_folder_that_is_not_there_is_not_made() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("none");
    for arguments in [&["list"][..], &["verify"], &["prune", "1M"], &["export", "x"]] {
        let error = run(&folder, arguments).unwrap_err();
        assert!(error.contains("there is no cache in"), "{error}");
    }
    assert!(!folder.exists());
}
