//! Files of the cache that are not what was written there: whatever lies in an entry's place, the right kernel comes
//! out, what is wrong is told once, and the next start finds a whole entry again.

use silumin::runtime::cache::{Cache, CacheOptions, Entry, Key, Origin, Warning};
use silumin_testkit::compiler::{Counting, source};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

struct Setup {
    _root: tempfile::TempDir,
    folder: PathBuf,
    compiler: Counting,
    warnings: Arc<Mutex<Vec<Warning>>>,
}

impl Setup {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("cache");
        let compiler = Counting::new(&folder);
        Self { _root: root, folder, compiler, warnings: Arc::default() }
    }

    fn options(&self) -> CacheOptions {
        let warnings = self.warnings.clone();
        CacheOptions::new()
            .folder(&self.folder)
            .on_warning(move |warning| warnings.lock().unwrap().push(warning.clone()))
    }

    fn cache(&self) -> Cache {
        self.options().open()
    }

    fn told(&self) -> Vec<Warning> {
        std::mem::take(&mut *self.warnings.lock().unwrap())
    }

    /// As a program does at its start.
    fn start(&self, ptx: &str) -> (Origin, Vec<u8>) {
        let cubin = self.cache().cubin(&source(ptx), &self.compiler).unwrap();
        assert_eq!(cubin.entry.target, "sm_100a");
        (cubin.origin, cubin.entry.cubin.clone())
    }

    fn right(&self, ptx: &str, from: Origin) {
        assert_eq!(self.start(ptx), (from, self.compiler.cubin(ptx)));
    }

    fn path(&self, ptx: &str) -> PathBuf {
        use silumin::runtime::cache::Compiler;
        let key = Key::of(&source(ptx), self.compiler.identity());
        self.folder.join(format!("{key}.cubin.slmn"))
    }

    /// The entry is in whatever state: the next start compiles and tells, the one after that reads.
    fn recovers(&self, ptx: &str, what: &str) {
        self.right(ptx, Origin::Compiled);
        let told = self.told();
        assert!(
            matches!(&told[..], [Warning::Damaged { path, .. }] if *path == self.path(ptx)),
            "{what}: {told:?}"
        );
        self.right(ptx, Origin::Disk);
        assert_eq!(self.told(), [], "{what}");
    }
}

#[test]
fn a_start_after_the_first_reads() {
    let setup = Setup::new();
    setup.right("one", Origin::Compiled);
    setup.right("one", Origin::Disk);
    setup.right("two", Origin::Compiled);
    assert_eq!((setup.compiler.calls(), setup.told()), (2, vec![]));
    // One cache asks the disk once as long as somebody has the cubin.
    let cache = setup.cache();
    let held = cache.cubin(&source("one"), &setup.compiler).unwrap();
    let again = cache.cubin(&source("one"), &setup.compiler).unwrap();
    assert!(Arc::ptr_eq(&held, &again));
    assert_eq!((cache.stats().read, cache.stats().compiled), (1, 0));
}

#[test]
fn every_byte_flipped_is_found() {
    let setup = Setup::new();
    setup.right("one", Origin::Compiled);
    let path = setup.path("one");
    let whole = fs::read(&path).unwrap();
    for place in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[place] ^= 1 << (place % 8);
        fs::write(&path, bytes).unwrap();
        setup.recovers("one", &format!("byte {place}"));
        assert_eq!(fs::read(&path).unwrap(), whole);
    }
    assert_eq!(setup.compiler.calls(), 1 + whole.len() as u64);
}

#[test]
fn every_length_is_found() {
    let setup = Setup::new();
    setup.right("one", Origin::Compiled);
    let path = setup.path("one");
    let whole = fs::read(&path).unwrap();
    for length in (0..whole.len()).chain([whole.len() + 1, 2 * whole.len(), 100_000]) {
        let mut bytes = whole.clone();
        bytes.resize(length, 0);
        fs::write(&path, bytes).unwrap();
        setup.recovers("one", &format!("{length} bytes"));
    }
    // A file of 10 TB that has no blocks: it is not read.
    File::options().write(true).open(&path).unwrap().set_len(10 << 40).unwrap();
    setup.recovers("one", "10 TB");
}

#[test]
fn another_version_s_entry_and_another_key_s_are_found() {
    let setup = Setup::new();
    setup.right("one", Origin::Compiled);
    setup.right("two", Origin::Compiled);
    let whole = fs::read(setup.path("one")).unwrap();
    for version in [0u32, 2, u32::MAX] {
        let mut other = whole.clone();
        other[8..12].copy_from_slice(&version.to_le_bytes());
        let covered = other.len() - 32;
        let checksum = blake3::hash(&other[..covered]);
        other[covered..].copy_from_slice(checksum.as_bytes());
        fs::write(setup.path("one"), other).unwrap();
        setup.recovers("one", &format!("version {version}"));
    }
    fs::copy(setup.path("two"), setup.path("one")).unwrap();
    setup.recovers("one", "renamed");
    fs::write(setup.path("one"), "#!/bin/sh\n").unwrap();
    setup.recovers("one", "a script");
}

#[test]
fn what_lies_in_a_file_s_place_is_not_touched_unless_it_is_empty() {
    let setup = Setup::new();
    setup.right("one", Origin::Compiled);
    let path = setup.path("one");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    setup.recovers("one", "an empty folder");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    fs::write(path.join("letter"), "dear").unwrap();
    for _ in 0..2 {
        setup.right("one", Origin::Compiled);
        let told = setup.told();
        assert!(matches!(&told[..], [Warning::Damaged { .. }, Warning::NotKept { .. }]), "{told:?}");
        assert_eq!(fs::read(path.join("letter")).unwrap(), b"dear");
    }
    // Other kernels are kept as ever.
    setup.right("two", Origin::Compiled);
    setup.right("two", Origin::Disk);
    assert_eq!(setup.told(), []);
}

#[cfg(unix)]
#[test]
fn pipes_and_links_hang_nobody() {
    let setup = Setup::new();
    setup.right("one", Origin::Compiled);
    let path = setup.path("one");
    let whole = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    setup.recovers("one", "a pipe");
    for target in ["/dev/zero", "/dev/stdin", "/proc/self/mem"] {
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(target, &path).unwrap();
        setup.right("one", Origin::Compiled);
        setup.told();
        setup.right("one", Origin::Disk);
    }
    // A link to nowhere is nothing; one to a whole entry is that.
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("nowhere", &path).unwrap();
    setup.right("one", Origin::Compiled);
    let aside = setup.folder.join("aside");
    fs::rename(&path, &aside).unwrap();
    std::os::unix::fs::symlink(&aside, &path).unwrap();
    setup.right("one", Origin::Disk);
    assert_eq!((fs::read(&aside).unwrap(), setup.told()), (whole, vec![]));
}

#[test]
fn a_folder_that_cannot_be_is_one_warning_and_no_cache() {
    let setup = Setup::new();
    // A file in the folder's place.
    fs::write(&setup.folder, "not a folder").unwrap();
    let cache = setup.cache();
    for ptx in ["one", "two", "one"] {
        let cubin = cache.cubin(&source(ptx), &setup.compiler).unwrap();
        assert_eq!((cubin.origin, &cubin.entry.cubin), (Origin::Compiled, &setup.compiler.cubin(ptx)));
    }
    let told = setup.told();
    let off = told.iter().filter(|warning| matches!(warning, Warning::Off { .. })).count();
    assert_eq!(off, 1, "{told:?}");
    assert!(told.iter().any(|warning| warning.to_string().contains("SILUMIN_CACHE_DIR")), "{told:?}");
    assert!(cache.list().is_err());
    // In memory a cubin is shared as long as somebody has it.
    let memory = CacheOptions::new().open();
    let held = memory.cubin(&source("one"), &setup.compiler).unwrap();
    assert!(Arc::ptr_eq(&held, &memory.cubin(&source("one"), &setup.compiler).unwrap()));
    assert_eq!((memory.folder(), memory.list().unwrap()), (None, vec![]));
}

fn set_time(path: &Path, time: SystemTime) {
    File::options().append(true).open(path).unwrap().set_modified(time).unwrap();
}

#[test]
fn the_least_recently_used_go_first() {
    let setup = Setup::new();
    let texts: Vec<String> = (0..8).map(|n| format!("text {n}")).collect();
    texts.iter().for_each(|ptx| setup.right(ptx, Origin::Compiled));
    let bytes = fs::metadata(setup.path(&texts[0])).unwrap().len();
    let now = SystemTime::now();
    for (place, ptx) in texts.iter().enumerate() {
        set_time(&setup.path(ptx), now - Duration::from_secs(1000 - 10 * place as u64));
    }
    // Reading is use.
    setup.right(&texts[0], Origin::Disk);
    let cache = setup.options().limit(4 * bytes).open();
    drop(cache.cubin(&source("one more"), &setup.compiler).unwrap());
    assert_eq!((cache.stats().evicted, cache.list().unwrap().len()), (5, 4));
    for (place, ptx) in texts.iter().enumerate() {
        assert_eq!(setup.path(ptx).exists(), matches!(place, 0 | 6 | 7), "{ptx}");
    }
    // What was just written stays, however little room there is.
    let cache = setup.options().limit(1).open();
    drop(cache.cubin(&source("the last"), &setup.compiler).unwrap());
    let left = cache.list().unwrap();
    assert!(left.len() == 1 && left[0].path == setup.path("the last"), "{left:?}");
    assert_eq!(cache.prune(0).unwrap(), 1);
    assert_eq!(setup.told(), []);
}

#[test]
fn a_clock_set_back_evicts_nothing_that_is_in_use() {
    let setup = Setup::new();
    for ptx in ["old", "older"] {
        setup.right(ptx, Origin::Compiled);
    }
    let year = Duration::from_secs(365 * 86_400);
    let future = SystemTime::now() + 70 * year;
    set_time(&setup.path("older"), future);
    set_time(&setup.path("old"), future + year);
    let bytes = fs::metadata(setup.path("old")).unwrap().len();
    let cache = setup.options().limit(3 * bytes).open();
    // By their times alone each of these would be the first to go.
    let texts: Vec<String> = (0..6).map(|n| format!("t{n}")).collect();
    for ptx in &texts {
        drop(cache.cubin(&source(ptx), &setup.compiler).unwrap());
        std::thread::sleep(Duration::from_millis(3));
        assert!(setup.path(ptx).exists());
    }
    assert!(!setup.path("older").exists() && !setup.path("old").exists());
    assert!(texts[3..].iter().all(|ptx| setup.path(ptx).exists()));
    // A time before 1970 is only the oldest.
    set_time(&setup.path(&texts[5]), SystemTime::UNIX_EPOCH - year);
    setup.right(&texts[5], Origin::Disk);
    assert_eq!(setup.told(), []);
}

#[test]
fn without_compiling_only_what_is_there_is_handed_out() {
    let setup = Setup::new();
    setup.right("one", Origin::Compiled);
    let cache = setup.options().compiling(false).open();
    assert_eq!(cache.cubin(&source("one"), &setup.compiler).unwrap().origin, Origin::Disk);
    let error = cache.cubin(&source("two"), &setup.compiler).unwrap_err().to_string();
    assert!(error.contains("not in the cache") && error.contains("bundle"), "{error}");
    assert_eq!(setup.compiler.calls(), 1);
}

#[test]
fn entries_are_listed_read_and_removed() {
    let setup = Setup::new();
    setup.right("one", Origin::Compiled);
    setup.right("two", Origin::Compiled);
    fs::write(setup.folder.join("notes.txt"), "mine").unwrap();
    let cache = setup.cache();
    let found = cache.list().unwrap();
    assert_eq!(found.len(), 2);
    let entries: Vec<Entry> = found.iter().map(|found| cache.read(found).unwrap()).collect();
    assert!(entries.iter().all(|entry| entry.log == "compiled" && entry.kernel == "kernel"));
    fs::write(&found[0].path, "no entry").unwrap();
    assert!(cache.read(&found[0]).unwrap_err().contains("not a compiled kernel"));
    cache.remove(found[0].key).unwrap();
    assert_eq!(cache.list().unwrap().len(), 1);
    assert_eq!(fs::read(setup.folder.join("notes.txt")).unwrap(), b"mine");
}

/// A user who can write to the folder decides what the GPU runs.
#[cfg(unix)]
#[test]
fn a_folder_that_others_can_write_to_is_not_used() {
    use std::os::unix::fs::PermissionsExt;
    let setup = Setup::new();
    drop(setup.cache().cubin(&source("one"), &setup.compiler).unwrap());
    let mode = |mode| std::fs::set_permissions(&setup.folder, std::fs::Permissions::from_mode(mode)).unwrap();
    for (bits, used) in [(0o777, false), (0o770, false), (0o1777, false), (0o755, true), (0o700, true)] {
        mode(bits);
        let cache = setup.cache();
        let origin = cache.cubin(&source("one"), &setup.compiler).unwrap().origin;
        assert_eq!((origin == Origin::Disk, cache.folder().is_some()), (used, used), "{bits:o}");
        match &setup.told()[..] {
            [] => assert!(used, "{bits:o}"),
            [warning @ Warning::Untrusted { folder, reason }] => {
                assert!(
                    !used && *folder == setup.folder && reason.contains(&format!("{:03o}", bits & 0o777))
                );
                assert!(warning.to_string().contains("chmod go-w"), "{warning}");
            }
            others => panic!("{others:?}"),
        }
        // A program that trusts the other users opts in.
        let shared = setup.options().shared(true).open();
        assert_eq!(shared.cubin(&source("one"), &setup.compiler).unwrap().origin, Origin::Disk);
        assert_eq!(setup.told(), []);
    }
}

/// Locks are opened in a folder whose names somebody else may have chosen.
#[cfg(unix)]
#[test]
fn locks_follow_no_links() {
    use silumin::runtime::cache::Compiler;
    let setup = Setup::new();
    drop(setup.cache());
    let outside = tempfile::tempdir().unwrap();
    let (victim, made) = (outside.path().join("victim"), outside.path().join("made"));
    std::fs::write(&victim, "mine").unwrap();
    for (text, target) in [("one", &victim), ("two", &made)] {
        let key = Key::of(&source(text), setup.compiler.identity());
        let lock = setup.folder.join(format!("{key}.lock"));
        std::os::unix::fs::symlink(target, &lock).unwrap();
        // Without a lock it is compiled all the same.
        assert_eq!(setup.cache().cubin(&source(text), &setup.compiler).unwrap().origin, Origin::Compiled);
        assert!(lock.symlink_metadata().unwrap().is_symlink(), "tidying up takes no link for a lock");
    }
    assert_eq!(std::fs::read(&victim).unwrap(), b"mine");
    assert!(!made.exists());
}
