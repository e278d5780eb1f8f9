//! The cache between processes: writers killed at any byte or at any time, many that race, disks that are full or read
//! only, a process that never lets go. Each test runs itself again in processes of their own.
//!
//! A write is cut at a byte by a limit on the length of files: the kernel writes up to it and kills the process there. A
//! full disk is a small tmpfs of a mount namespace, and, where none may be made, a limit whose signal is ignored, so that
//! the write fails.
#![cfg(target_os = "linux")]

use silumin::runtime::cache::{Cache, CacheOptions, Compiler, Key, Origin, Warning};
use silumin_testkit::compiler::{Counting, source};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Set in the processes that a test starts: what they do.
const ROLE: &str = "SILUMIN_TEST_ROLE";
const FOLDER: &str = "SILUMIN_TEST_FOLDER";
const NUMBER: &str = "SILUMIN_TEST_NUMBER";

fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

fn folder() -> PathBuf {
    PathBuf::from(std::env::var_os(FOLDER).unwrap())
}

fn number() -> u64 {
    std::env::var(NUMBER).unwrap().parse().unwrap()
}

/// This program again, to run the test called `name` in a role.
fn again(name: &str, role: &str, folder: &Path, number: u64) -> Command {
    through(Command::new(std::env::current_exe().unwrap()), name, role, folder, number)
}

fn through(mut command: Command, name: &str, role: &str, folder: &Path, number: u64) -> Command {
    command
        .args([
            "--exact",
            &silumin_testkit::test_name(module_path!(), name),
            "--nocapture",
            "--test-threads",
            "1",
        ])
        .env(ROLE, role)
        .env(FOLDER, folder)
        .env(NUMBER, number.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// The same after `script` in a shell of a mount namespace of its own; `None` where none may be made.
fn in_namespace(script: &str, name: &str, role: &str, folder: &Path, number: u64) -> Option<Command> {
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount"]);
        command
    };
    let allowed = unshare().args(["mount", "-t", "tmpfs", "tmpfs", "/mnt"]).output();
    if !allowed.is_ok_and(|output| output.status.success()) {
        return None;
    }
    let mut shell = unshare();
    shell.args(["sh", "-ec", &format!("{script}; exec \"$@\""), "sh"]).arg(std::env::current_exe().unwrap());
    Some(through(shell, name, role, folder, number))
}

/// This program again, as one who obeys permissions: root gives up what lets it pass them by.
fn obeying(name: &str, role: &str, folder: &Path, number: u64) -> Command {
    if !rustix::process::geteuid().is_root() {
        return again(name, role, folder, number);
    }
    let mut command = Command::new("setpriv");
    command
        .args(["--bounding-set", "-dac_override,-dac_read_search,-fowner"])
        .arg(std::env::current_exe().unwrap());
    through(command, name, role, folder, number)
}

fn succeeds(output: Output) -> String {
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    said.into_owned()
}

/// A cache whose warnings are gathered.
fn gathered(folder: &Path) -> (CacheOptions, Arc<Mutex<Vec<Warning>>>) {
    let warnings: Arc<Mutex<Vec<Warning>>> = Arc::default();
    let sink = warnings.clone();
    let options = CacheOptions::new()
        .folder(folder)
        .on_warning(move |warning| sink.lock().unwrap().push(warning.clone()));
    (options, warnings)
}

fn path(folder: &Path, compiler: &Counting, ptx: &str) -> PathBuf {
    folder.join(format!("{}.cubin.slmn", Key::of(&source(ptx), compiler.identity())))
}

fn names(folder: &Path) -> Vec<String> {
    fs::read_dir(folder).unwrap().map(|item| item.unwrap().file_name().into_string().unwrap()).collect()
}

fn unfinished(folder: &Path) -> usize {
    names(folder).iter().filter(|name| !name.ends_with(".cubin.slmn")).count()
}

/// Whatever happened to the writer: the entry from before is whole, the other one is whole or not there, both are right,
/// nothing is told, and nothing is left over.
fn judge(folder: &Path, compiler: &Counting, what: &str) -> Origin {
    let (options, warnings) = gathered(folder);
    let cache = options.open();
    assert_eq!(unfinished(folder), 0, "{what}: {:?}", names(folder));
    let before = cache.cubin(&source("before"), compiler).unwrap();
    assert_eq!((before.origin, &before.entry.cubin), (Origin::Disk, &compiler.cubin("before")), "{what}");
    let after = cache.cubin(&source("after"), compiler).unwrap();
    assert_eq!(after.entry.cubin, compiler.cubin("after"), "{what}");
    assert_eq!(*warnings.lock().unwrap(), [], "{what}");
    let again = Cache::open(folder).cubin(&source("after"), compiler).unwrap();
    assert_eq!(again.origin, Origin::Disk, "{what}");
    after.origin
}

#[test]
fn a_writer_killed_at_any_byte_leaves_nothing_half() {
    const NAME: &str = "a_writer_killed_at_any_byte_leaves_nothing_half";
    if role().is_some() {
        use rustix::process::{Resource, Rlimit, setrlimit};
        let compiler = Counting::new(&folder());
        let cache = Cache::open(folder());
        let limit = |bytes| Rlimit { current: Some(bytes), maximum: Some(bytes) };
        setrlimit(Resource::Core, limit(0)).unwrap();
        // Beyond the file that the compiler counts in.
        setrlimit(Resource::Fsize, limit(number())).unwrap();
        drop(cache.cubin(&source("after"), &compiler).unwrap());
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("cache");
    let compiler = Counting::new(&folder);
    drop(Cache::open(&folder).cubin(&source("before"), &compiler).unwrap());
    let entry = path(&folder, &compiler, "after");
    let length = fs::metadata(path(&folder, &compiler, "before")).unwrap().len();
    let mut killed = 0;
    for cut in 0..=length {
        // The compiler's file is short again, so that the limit is the entry's.
        let _ = fs::remove_file(folder.with_extension("calls"));
        let output = again(NAME, "writer", &folder, cut).output().unwrap();
        killed += u64::from(!output.status.success());
        // (The first byte is the compiler's own.)
        let whole = cut >= length;
        assert_eq!(output.status.success(), whole, "{cut} of {length}: {output:?}");
        assert_eq!(entry.exists(), whole, "{cut} of {length}");
        let origin = judge(&folder, &compiler, &format!("cut at {cut}"));
        assert_eq!(origin == Origin::Disk, whole, "{cut} of {length}");
        fs::remove_file(&entry).unwrap();
    }
    assert_eq!(killed, length);
    assert!(killed >= 200, "{killed}");
}

#[test]
fn a_writer_killed_at_any_time_leaves_nothing_half() {
    const NAME: &str = "a_writer_killed_at_any_time_leaves_nothing_half";
    if role().is_some() {
        let compiler = Counting { bytes: 20_000, ..Counting::new(&folder()) };
        let cache = CacheOptions::new().folder(folder()).limit(200_000).open();
        for round in 0u64.. {
            drop(cache.cubin(&source(&format!("{} {round}", number())), &compiler).unwrap());
            let rewritten = path(&folder(), &compiler, "after");
            let _ = fs::remove_file(rewritten);
            drop(cache.cubin(&source("after"), &compiler).unwrap());
        }
    }
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("cache");
    let compiler = Counting { bytes: 20_000, ..Counting::new(&folder) };
    let mut random = 0x2545_f491_4f6c_dd1du64;
    let mut found_whole = 0;
    for round in 0..200 {
        drop(Cache::open(&folder).cubin(&source("before"), &compiler).unwrap());
        let calls = compiler.calls();
        let mut child = again(NAME, "writer", &folder, round).spawn().unwrap();
        // Not before it is at work, and then at any time.
        let start = Instant::now();
        while compiler.calls() == calls && start.elapsed() < Duration::from_secs(20) {
            std::thread::yield_now();
        }
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        std::thread::sleep(Duration::from_micros(random % 4000));
        kill(&mut child);
        let whole = path(&folder, &compiler, "after").exists();
        drop(Cache::open(&folder).cubin(&source("before"), &compiler).unwrap());
        let origin = judge(&folder, &compiler, &format!("round {round}"));
        assert_eq!(origin == Origin::Disk, whole, "round {round}");
        found_whole += u64::from(whole);
    }
    assert!((1..200).contains(&found_whole), "{found_whole} of 200");
}

fn kill(child: &mut Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn sixteen_processes_on_an_empty_cache_compile_each_kernel_once() {
    const NAME: &str = "sixteen_processes_on_an_empty_cache_compile_each_kernel_once";
    const KERNELS: u64 = 8;
    let work = |folder: &Path, first: u64| {
        let compiler = Counting { takes: Duration::from_millis(30), ..Counting::new(folder) };
        let (options, warnings) = gathered(folder);
        let cache = options.open();
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (cache, compiler) = (&cache, &compiler);
                scope.spawn(move || {
                    for kernel in 0..KERNELS {
                        let ptx = format!("kernel {}", (kernel + first + 4 * thread) % KERNELS);
                        let cubin = cache.cubin(&source(&ptx), compiler).unwrap();
                        assert_eq!(cubin.entry.cubin, compiler.cubin(&ptx));
                    }
                });
            }
        });
        assert_eq!(*warnings.lock().unwrap(), []);
    };
    if role().is_some() {
        return work(&folder(), number());
    }
    for _ in 0..5 {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("a").join("cache");
        fs::create_dir(root.path().join("a")).unwrap();
        let children: Vec<Child> =
            (0..16).map(|number| again(NAME, "racer", &folder, number).spawn().unwrap()).collect();
        for child in children {
            succeeds(child.wait_with_output().unwrap());
        }
        assert_eq!(Counting::new(&folder).calls(), KERNELS);
        assert_eq!(
            (names(&folder).len(), unfinished(&folder)),
            (KERNELS as usize, 0),
            "{:?}",
            names(&folder)
        );
    }
}

#[test]
fn a_full_disk_is_one_warning_and_no_cache() {
    const NAME: &str = "a_full_disk_is_one_warning_and_no_cache";
    if let Some(role) = role() {
        // 20 kB an entry, where there is room for one.
        let compiler = Counting { bytes: 20_000, ..Counting::new(&folder().with_extension("elsewhere")) };
        let (options, warnings) = gathered(&folder());
        let cache = options.open();
        let mut origins = Vec::new();
        for ptx in ["one", "two", "three"] {
            let cubin = cache.cubin(&source(ptx), &compiler).unwrap();
            assert_eq!(cubin.entry.cubin, compiler.cubin(ptx));
            origins.push(cubin.origin);
        }
        assert_eq!(origins, [Origin::Compiled; 3]);
        let told = warnings.lock().unwrap().clone();
        assert!(matches!(&told[..], [Warning::Off { .. }]), "{told:?}");
        // What was kept is read, and nothing half is left.
        let kept = cache.list().unwrap().len();
        assert_eq!(kept, if role == "full" { 1 } else { 0 });
        assert_eq!(unfinished(&folder()), 0);
        let cache = Cache::open(folder());
        assert_eq!(cache.cubin(&source("one"), &compiler).unwrap().origin == Origin::Disk, kept == 1);
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let full = root.path().join("full");
    fs::create_dir(&full).unwrap();
    let script = "mount -t tmpfs -o size=32k,mode=700 tmpfs \"$SILUMIN_TEST_FOLDER\"";
    if let Some(mut command) = in_namespace(script, NAME, "full", &full, 0) {
        succeeds(command.output().unwrap());
    }
    // Writes fail at half the first entry; the signal that comes along is ignored.
    let limited = root.path().join("limited");
    let mut shell = Command::new("sh");
    shell
        .args(["-ec", "trap '' XFSZ; ulimit -f 16; exec \"$@\"", "sh"])
        .arg(std::env::current_exe().unwrap());
    succeeds(through(shell, NAME, "limited", &limited, 0).output().unwrap());
}

#[test]
fn a_folder_that_is_read_only_is_read() {
    const NAME: &str = "a_folder_that_is_read_only_is_read";
    if let Some(role) = role() {
        let compiler = Counting::new(&folder().with_extension("elsewhere"));
        if role == "namespace" {
            drop(Cache::open(folder()).cubin(&source("one"), &compiler).unwrap());
            let remounted = Command::new("mount").args(["-o", "remount,ro"]).arg(folder()).status().unwrap();
            assert!(remounted.success());
        }
        let (options, warnings) = gathered(&folder());
        let cache = options.open();
        for (ptx, origin) in [("one", Origin::Disk), ("two", Origin::Compiled), ("three", Origin::Compiled)] {
            let cubin = cache.cubin(&source(ptx), &compiler).unwrap();
            assert_eq!((cubin.origin, &cubin.entry.cubin), (origin, &compiler.cubin(ptx)));
        }
        let told = warnings.lock().unwrap().clone();
        assert!(matches!(&told[..], [Warning::Off { .. }]), "{told:?}");
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("cache");
    fs::create_dir(&folder).unwrap();
    let script = "mount -t tmpfs -o size=1m,mode=700 tmpfs \"$SILUMIN_TEST_FOLDER\"";
    match in_namespace(script, NAME, "namespace", &folder, 0) {
        Some(mut command) => drop(succeeds(command.output().unwrap())),
        // Permissions do the same, also for root in a container that may make none, without the rights that pass them by.
        None => {
            use std::os::unix::fs::PermissionsExt;
            drop(Cache::open(&folder).cubin(&source("one"), &Counting::new(&folder)).unwrap());
            fs::set_permissions(&folder, fs::Permissions::from_mode(0o555)).unwrap();
            let output = obeying(NAME, "permissions", &folder, 0).output().unwrap();
            fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
            succeeds(output);
        }
    }
}

#[test]
fn a_process_that_never_lets_go_is_waited_for_no_longer_than_said() {
    const NAME: &str = "a_process_that_never_lets_go_is_waited_for_no_longer_than_said";
    if role().is_some() {
        // It compiles for an hour, the lock in its hands.
        let compiler = Counting { takes: Duration::from_secs(3600), ..Counting::new(&folder()) };
        drop(Cache::open(folder()).cubin(&source("one"), &compiler).unwrap());
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("cache");
    let compiler = Counting::new(&folder);
    let mut child = again(NAME, "holder", &folder, 0).spawn().unwrap();
    let start = Instant::now();
    while compiler.calls() == 0 && start.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let patience = Duration::from_millis(200);
    let cache = CacheOptions::new().folder(&folder).patience(patience).open();
    assert!(names(&folder).iter().any(|name| name.ends_with(".lock")), "{:?}", names(&folder));
    let start = Instant::now();
    let cubin = cache.cubin(&source("one"), &compiler).unwrap();
    let took = start.elapsed();
    assert_eq!(cubin.entry.cubin, compiler.cubin("one"));
    assert!(took >= patience && took < Duration::from_secs(10), "{took:?}");
    kill(&mut child);
    // Its lock died with it: nobody waits, and the file is gone at the next start.
    fs::remove_file(path(&folder, &compiler, "one")).unwrap();
    let start = Instant::now();
    let cache = CacheOptions::new().folder(&folder).patience(Duration::from_secs(3600)).open();
    assert_eq!(unfinished(&folder), 0);
    drop(cache.cubin(&source("one"), &compiler).unwrap());
    assert!(start.elapsed() < Duration::from_secs(10));
    // A folder or a pipe where the lock would be stops nobody either.
    for kind in ["mkdir", "mkfifo"] {
        fs::remove_file(path(&folder, &compiler, "one")).unwrap();
        let lock = path(&folder, &compiler, "one").with_extension("").with_extension("lock");
        assert!(Command::new(kind).arg(&lock).status().unwrap().success());
        let fresh = CacheOptions::new().folder(&folder).open();
        drop(fresh.cubin(&source("one"), &compiler).unwrap());
        assert!(path(&folder, &compiler, "one").exists());
        Command::new("rm").args([OsStr::new("-r"), lock.as_os_str()]).status().unwrap();
    }
}
