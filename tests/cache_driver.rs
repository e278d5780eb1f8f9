//! The cache under a device of the CUDA driver, here the emulated one: the same calls that a GPU gets, from PTX through the
//! linker to a cubin, its file, and the module that is loaded from it.

use silumin::runtime::cache::{
    Compiler, Entry, Identity, Key, ModuleError, Origin, PtxasCompiler, Source, SourceId, Stats, Warning,
};
use silumin::verify::toolchain::Ptxas;
use silumin::{
    Arch, Buckets, Bundle, Cache, CacheOptions, Device, Distribution, DualGemm, Formats, LoadError,
    LoadedKernel, Shape, Spec, Warmup,
};
use silumin_testkit::driver::{role, run};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

const SHAPE: Shape = Shape::new(40, 64, 128);
const FOLDER: &str = "SILUMIN_CACHE_DIR";

fn gemm() -> DualGemm {
    DualGemm::new(Spec::new("silu(A @ B1) * (A @ B2)".parse().unwrap(), &[Arch::Sm100a]).unwrap())
}

fn right(kernel: &LoadedKernel) {
    let found = kernel.verify(Distribution::Full, 3, &[]).unwrap();
    assert!(found.check.pass, "{}", found.check);
}

/// A cache in the default folder whose warnings are gathered.
fn gathered() -> (CacheOptions, Arc<Mutex<Vec<Warning>>>) {
    let warnings: Arc<Mutex<Vec<Warning>>> = Arc::default();
    let sink = warnings.clone();
    let options = CacheOptions::new()
        .folder(Cache::default_folder().unwrap())
        .on_warning(move |warning| sink.lock().unwrap().push(warning.clone()));
    (options, warnings)
}

/// Compiled, read, bundled.
fn counts(stats: Stats) -> [u64; 3] {
    [stats.compiled, stats.read, stats.bundled]
}

fn folder() -> (tempfile::TempDir, String) {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("cache").to_str().unwrap().to_owned();
    (root, folder)
}

#[test]
fn the_second_start_compiles_nothing() {
    const NAME: &str = "the_second_start_compiles_nothing";
    if let Some(role) = role() {
        let (options, warnings) = gathered();
        let cache = options.open();
        let device = Device::cuda(0).unwrap().with_cache(cache.clone());
        let kernel = gemm().load(&device, SHAPE).unwrap();
        let cubin = kernel.cubin().unwrap();
        assert!(cubin.entry.log.contains("bytes of PTX for sm_100a"), "{}", cubin.entry.log);
        assert_eq!(cubin.entry.compiler.name, "driver");
        right(&kernel);
        let first = role == "first";
        assert_eq!(cubin.origin, if first { Origin::Compiled } else { Origin::Disk });
        // The module is shared by all who load the kernel, and loaded again when nobody has it any more.
        let again = gemm().load(&device, SHAPE).unwrap();
        assert!(std::ptr::eq(again.cubin().unwrap(), kernel.cubin().unwrap()));
        assert_eq!(counts(cache.stats()), if first { [1, 0, 0] } else { [0, 1, 0] });
        drop((kernel, again));
        right(&gemm().load(&device, SHAPE).unwrap());
        assert_eq!(counts(cache.stats()), if first { [1, 1, 0] } else { [0, 2, 0] });
        assert_eq!(*warnings.lock().unwrap(), []);
        return;
    }
    let (_root, folder) = folder();
    for role in ["first", "second", "third"] {
        run(module_path!(), NAME, role, &[(FOLDER, &folder)]);
    }
    // Another driver's cubins are others.
    run(module_path!(), NAME, "first", &[(FOLDER, &folder), ("SILUMIN_EMULATED_CUDA", "12.9")]);
}

#[test]
fn line_information_is_an_entry_of_its_own() {
    const NAME: &str = "line_information_is_an_entry_of_its_own";
    if role().is_some() {
        let cache = Cache::open_default();
        let device = Device::cuda(0).unwrap().with_cache(cache.clone());
        let lined = device.clone().with_line_info(true);
        // Both are loaded at once: neither handle gets the other's module.
        let kernels = [&device, &lined, &device, &lined].map(|device| gemm().load(device, SHAPE).unwrap());
        assert_eq!(counts(cache.stats()), [2, 0, 0]);
        let options = kernels.each_ref().map(|kernel| kernel.cubin().unwrap().entry.compiler.options.clone());
        assert_eq!(options, ["", "line info", "", "line info"]);
        kernels.iter().for_each(right);
        // Without a cache, too.
        right(&gemm().load(&Device::cuda(0).unwrap().with_line_info(true), SHAPE).unwrap());
        return;
    }
    let (_root, folder) = folder();
    run(module_path!(), NAME, "only", &[(FOLDER, &folder)]);
}

#[test]
fn many_threads_compile_each_kernel_once() {
    const NAME: &str = "many_threads_compile_each_kernel_once";
    if role().is_some() {
        let cache = Cache::open_default();
        let device = Device::cuda(0).unwrap().with_cache(cache.clone());
        let other_handle = Device::cuda(0).unwrap().with_cache(cache.clone());
        let shapes = [SHAPE, Shape::new(8, 64, 64), Shape::new(200, 64, 64)];
        let kernels: Vec<LoadedKernel> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..16)
                .map(|thread| {
                    let device = if thread % 4 == 0 { &other_handle } else { &device };
                    scope.spawn(move || gemm().load(device, shapes[thread % 3]).unwrap())
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(counts(cache.stats()), [3, 0, 0]);
        kernels[..3].iter().for_each(right);
        return;
    }
    let (_root, folder) = folder();
    run(module_path!(), NAME, "threads", &[(FOLDER, &folder)]);
}

#[test]
fn a_cubin_that_the_driver_refuses_is_compiled_anew() {
    const NAME: &str = "a_cubin_that_the_driver_refuses_is_compiled_anew";
    if role().is_some() {
        let (options, warnings) = gathered();
        let cache = options.open();
        let device = Device::cuda(0).unwrap().with_cache(cache.clone());
        right(&gemm().load(&device, SHAPE).unwrap());
        // A whole entry under the right key, with another chip's machine code in it.
        let found = cache.list().unwrap().remove(0);
        let entry = cache.read(&found).unwrap();
        let foreign = Ptxas::find().unwrap().assemble(
            ".version 8.6\n.target sm_90a\n.address_size 64\n.visible .entry k() { ret; }",
            Arch::Sm90a,
        );
        for cubin in [foreign.unwrap().cubin, b"\x7fELF\x02\0".to_vec(), vec![b'x', 0]] {
            std::fs::write(&found.path, Entry { cubin, ..entry.clone() }.encode()).unwrap();
            let before = cache.stats();
            let kernel = gemm().load(&device, SHAPE).unwrap();
            assert_eq!(kernel.cubin().unwrap().origin, Origin::Compiled);
            right(&kernel);
            assert_eq!(cache.stats().compiled, before.compiled + 1);
            let told = std::mem::take(&mut *warnings.lock().unwrap());
            assert!(told.iter().all(|warning| matches!(warning, Warning::Rejected { .. })), "{told:?}");
            assert_eq!(cache.read(&found).unwrap(), entry);
        }
        return;
    }
    let (_root, folder) = folder();
    run(module_path!(), NAME, "only", &[(FOLDER, &folder)]);
}

/// Entries and bundles are made in safe code from any bytes: none of them has the driver read beyond them.
#[test]
fn no_bytes_of_a_bundle_reach_the_driver_unchecked() {
    const NAME: &str = "no_bytes_of_a_bundle_reach_the_driver_unchecked";
    if role().is_some() {
        let device = Device::cuda(0).unwrap();
        let kernel = gemm().kernel(SHAPE, Arch::Sm100a).unwrap();
        let source = Source::from(&kernel);
        let compiler = Identity { name: "anybody".into(), version: "1".into(), options: "".into() };
        let load = |cubin: Vec<u8>| {
            let (key, source) = (Key::of(&source, &compiler), SourceId::of(&source));
            let (kernel, log) = (kernel.name.clone(), String::new());
            let target = "sm_100a".to_owned();
            let entry = Entry { key, source, target, compiler: compiler.clone(), kernel, log, cubin };
            let cache = CacheOptions::new().bundle(Bundle::new([entry])).compiling(false).open();
            gemm().load(&device.clone().with_cache(cache), SHAPE)
        };
        let whole = image(&kernel.ptx, "sm_100a");
        right(&load(whole.clone()).unwrap());
        // Images that are cut off, text with its zero byte and without, and headers that promise more than there is.
        let refused = |what: &str, bytes: Vec<u8>| {
            let LoadError::Module { reason, .. } = load(bytes).unwrap_err() else { panic!("no module") };
            assert!(matches!(reason, ModuleError::Image { .. }), "{what}: {reason}");
            let text = reason.to_string();
            for wanted in [&*kernel.name, what, "compile it again, or export the bundle again"] {
                assert!(text.contains(wanted), "no `{wanted}` in: {text}");
            }
        };
        for length in [1, 16, 63] {
            refused("its ELF header", whole[..length].to_vec());
        }
        for length in [64, 119] {
            refused("its program headers", whole[..length].to_vec());
        }
        for length in [120, 128, 1000, whole.len() - 1] {
            refused(&format!("segment 0 does not lie within its {length} bytes"), whole[..length].to_vec());
        }
        refused("its ELF header", kernel.ptx.clone().into_bytes());
        refused("its ELF header", [kernel.ptx.as_bytes(), &[0]].concat());
        // Each field that the driver follows, with a number that leads out of the bytes (System V ABI, "ELF Header" and
        // "Program Header"): e_phoff, e_shoff, e_phnum; p_offset, p_filesz.
        let end = whole.len() as u64;
        for (place, value, what) in [
            (32, end, "its program headers"),
            (32, u64::MAX - 8, "its program headers"),
            (40, end, "its section headers"),
            (40, u64::MAX, "its section headers"),
            (72, end, "segment 0"),
            (72, u64::MAX - 8, "segment 0"),
            (96, end, "segment 0"),
            (96, u64::MAX, "segment 0"),
        ] {
            let mut bytes = whole.clone();
            bytes[place..place + 8].copy_from_slice(&value.to_le_bytes());
            refused(what, bytes);
        }
        let mut bytes = whole.clone();
        bytes[56..58].copy_from_slice(&u16::MAX.to_le_bytes());
        refused("its program headers", bytes);
        // More than any cubin has, though its headers are right.
        let mut bytes = whole.clone();
        bytes.resize((64 << 20) + 1, 0);
        refused("it has 67108865 bytes, and at most 67108864 are taken", bytes);
        // Another kernel's machine code: the driver would read as many parameters as that one takes.
        let more = kernel.ptx.replacen("(\n", "(\n    .param .u64 one_more,\n", 1);
        assert_ne!(more, kernel.ptx);
        let LoadError::Module { reason, .. } = load(image(&more, "sm_100a")).unwrap_err() else {
            panic!("no module")
        };
        assert!(matches!(reason, ModuleError::Parameters { .. }), "{reason}");
        return;
    }
    let (_root, folder) = folder();
    run(module_path!(), NAME, "only", &[(FOLDER, &folder)]);
}

#[test]
fn a_bundle_needs_no_compiler_and_no_newer_driver() {
    const NAME: &str = "a_bundle_needs_no_compiler_and_no_newer_driver";
    if let Some(role) = role() {
        let device = Device::cuda(0).unwrap();
        let file = Cache::default_folder().unwrap().with_extension("bundle");
        if role == "ship" {
            let cache = Cache::open_default();
            let device = device.with_cache(cache.clone());
            drop(gemm().load(&device, SHAPE).unwrap());
            Bundle::new(cache.list().unwrap().iter().map(|found| cache.read(found).unwrap()))
                .save(&file)
                .unwrap();
            return;
        }
        let bundle = Bundle::open(&file).unwrap();
        let cache = CacheOptions::new().bundle(bundle).compiling(false).open();
        let device = device.with_cache(cache.clone());
        if role == "older" {
            let refused =
                gemm().load(&device.clone().with_cache(CacheOptions::new().open()), SHAPE).unwrap_err();
            let LoadError::Module { reason: ModuleError::OldDriver { needed, branch, .. }, .. } = &refused
            else {
                panic!("{refused}")
            };
            assert_eq!((*needed, *branch), ((12, 8), 570));
            assert!(refused.to_string().contains("or use a bundle"), "{refused}");
        }
        if role == "much older" {
            let refused = gemm().load(&device, SHAPE).unwrap_err();
            assert!(
                matches!(&refused, LoadError::Module { reason: ModuleError::Driver { .. }, .. }),
                "{refused}"
            );
            return;
        }
        let kernel = gemm().load(&device, SHAPE).unwrap();
        assert_eq!(kernel.cubin().unwrap().origin, Origin::Bundle);
        right(&kernel);
        assert_eq!(counts(cache.stats()), [0, 0, 1]);
        let missing = gemm().load(&device, Shape::new(8, 64, 64)).unwrap_err();
        assert!(
            matches!(&missing, LoadError::Module { reason: ModuleError::NotCached { .. }, .. }),
            "{missing}"
        );
        return;
    }
    let (_root, folder) = folder();
    let version = |cuda| [(FOLDER, folder.as_str()), ("SILUMIN_EMULATED_CUDA", cuda)];
    run(module_path!(), NAME, "ship", &version("12.9"));
    run(module_path!(), NAME, "same", &version("12.9"));
    run(module_path!(), NAME, "newer", &version("13.0"));
    // The PTX is too new for these.
    run(module_path!(), NAME, "older", &version("12.4"));
    run(module_path!(), NAME, "much older", &version("11.8"));
}

#[test]
fn the_assembler_compiles_in_the_driver_s_place() {
    let compiler = PtxasCompiler::new(Ptxas::find().unwrap()).unwrap();
    assert!(compiler.identity().version.contains("cuda"), "{:?}", compiler.identity());
    let (_root, folder) = folder();
    let cache = Cache::open(PathBuf::from(&folder));
    let kernel = gemm().kernel(SHAPE, Arch::Sm100a).unwrap();
    let cubin = cache.cubin(&Source::from(&kernel), &compiler).unwrap();
    assert_eq!(&cubin.entry.cubin[..4], b"\x7fELF");
    assert!(cubin.entry.log.contains("registers"), "{}", cubin.entry.log);
    drop(cubin);
    let again = Cache::open(PathBuf::from(&folder)).cubin(&Source::from(&kernel), &compiler).unwrap();
    assert_eq!(again.origin, Origin::Disk);
    // The same text by another compiler is another entry, and so is its next version.
    let source = Source::from(&kernel);
    let Identity { name, version, options } = compiler.identity().clone();
    let next = Identity { name, version: format!("{version}1"), options };
    assert_ne!(Key::of(&source, compiler.identity()), Key::of(&source, &next));
    // With line information it is another entry, with the same code and the text beside it.
    let lines = PtxasCompiler::new(Ptxas::find().unwrap().with_line_info(true)).unwrap();
    assert_ne!(Key::of(&source, compiler.identity()), Key::of(&source, lines.identity()));
    let [plain, lined] = [&compiler, &lines].map(|compiler| compiler.compile(&source).unwrap());
    let has = |cubin: &[u8], text: &str| cubin.windows(text.len()).any(|window| window == text.as_bytes());
    for text in [".nv_debug_ptx_txt", "PRODUCER_LOOP:"] {
        assert!(has(&lined.cubin, text) && !has(&plain.cubin, text), "{text}");
    }
    assert_eq!(
        plain.log.lines().find(|line| line.contains("registers")),
        lined.log.lines().find(|line| line.contains("registers"))
    );
    // What it refuses comes with the lines around the one that it names.
    let broken = kernel.ptx.replacen("ret;", "rat;", 1);
    let line = 1 + broken.lines().position(|line| line.contains("rat;")).unwrap();
    let error = cache.cubin(&Source { ptx: &broken, ..source }, &compiler).unwrap_err();
    let ModuleError::Refused { log, .. } = &error else { panic!("{error}") };
    assert!(log.contains(&format!("> {line:>5} | ")) && log.contains("rat;"), "{log}");
    assert!(log.contains(&format!("{:>5} | ", line - 2)), "{log}");
}

/// An image as the emulated driver's linker makes it (`emulator/driver/src/link.rs`).
pub fn image(ptx: &str, chip: &str) -> Vec<u8> {
    let mut body = 13_000i32.to_le_bytes().to_vec();
    body.extend(chip.bytes().chain(std::iter::repeat(0)).take(16));
    body.extend(ptx.bytes().chain([0]));
    let sum = body
        .iter()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3));
    // An ELF file for CUDA with one segment.
    let length = 8 + body.len() as u64;
    let mut image = b"\x7fELF\x02\x01\x01\x33\x07SILUMIN\x02\0\xbe\0\x01\0\0\0".to_vec();
    image.extend([0u64, 64, 0].iter().flat_map(|field| field.to_le_bytes()));
    image.extend(0u32.to_le_bytes());
    image.extend([64u16, 56, 1, 64, 0, 0].iter().flat_map(|field| field.to_le_bytes()));
    image.extend([1u32, 4].iter().flat_map(|field| field.to_le_bytes()));
    image.extend([120, 0, 0, length, length, 1].iter().flat_map(|field| field.to_le_bytes()));
    image.extend(sum.to_le_bytes());
    image.extend(body);
    image
}

#[test]
fn kernels_that_the_linker_would_slow_down_are_left_to_the_driver() {
    const NAME: &str = "kernels_that_the_linker_would_slow_down_are_left_to_the_driver";
    if let Some(role) = role() {
        let mut spec = Spec::new("silu(A @ B1) * (A @ B2)".parse().unwrap(), &[Arch::Sm90a]).unwrap();
        let bf16 = "bf16".parse().unwrap();
        spec.formats = Formats { a: bf16, b: bf16, c: "bf16".parse().unwrap(), ..Formats::default() };
        // Two warpgroups, which move registers between them.
        spec.config.set("tile", "[128, 32, 64]").unwrap();
        let (gemm, shape) = (DualGemm::new(spec), Shape::new(512, 512, 128));
        let kernel = gemm.kernel(shape, Arch::Sm90a).unwrap();
        assert!(kernel.ptx.contains("setmaxnreg.inc"), "{}", kernel.ptx);
        let (options, warnings) = gathered();
        let cache = options.open();
        let loaded = gemm.load(&Device::cuda(0).unwrap().with_cache(cache.clone()), shape).unwrap();
        assert!(loaded.cubin().is_none());
        // What was found out is kept, so that the linker is not asked again.
        let stats = cache.stats();
        let first = u64::from(role != "again");
        assert_eq!((counts(stats), stats.by_loading, stats.written), ([0, 0, 0], 1, first));
        right(&loaded);
        let entry = cache.read(&cache.list().unwrap()[0]).unwrap();
        assert!(entry.cubin.is_empty() && entry.log.contains("setmaxnreg"), "{}", entry.log);
        assert!(Bundle::new([entry]).is_empty());
        let off = gathered().0.compiling(false).open();
        let error = gemm.load(&Device::cuda(0).unwrap().with_cache(off), shape).unwrap_err();
        assert!(matches!(&error, LoadError::Module { reason: ModuleError::NotCached { .. }, .. }), "{error}");
        // Only where the driver keeps nothing either there is something to tell.
        let told = warnings.lock().unwrap().clone();
        assert_eq!(told, if role == "not kept" { vec![Warning::DriverCacheOff] } else { vec![] });
        // What ptxas made is taken from a bundle, as any.
        let source = Source::from(&kernel);
        let compiler = Identity { name: "ptxas".into(), version: "1".into(), options: "".into() };
        let entry = Entry {
            key: Key::of(&source, &compiler),
            source: SourceId::of(&source),
            target: "sm_90a".into(),
            compiler,
            kernel: kernel.name.clone(),
            log: String::new(),
            cubin: image(&kernel.ptx, "sm_90a"),
        };
        let cache = CacheOptions::new().bundle(Bundle::new([entry])).compiling(false).open();
        let bundled = gemm.load(&Device::cuda(0).unwrap().with_cache(cache), shape).unwrap();
        assert_eq!(bundled.cubin().unwrap().origin, Origin::Bundle);
        right(&bundled);
        return;
    }
    let (_root, folder) = folder();
    let chip = ("SILUMIN_EMULATED_CHIP", "sm_90a");
    run(module_path!(), NAME, "first", &[(FOLDER, &folder), chip]);
    run(module_path!(), NAME, "again", &[(FOLDER, &folder), chip]);
    let (_root, other) = self::folder();
    run(module_path!(), NAME, "not kept", &[(FOLDER, &other), chip, ("CUDA_CACHE_DISABLE", "1")]);
}

/// What book/src/cache.md says of the assembler: relocatable code has no `setmaxnreg`, whatever the text or the flags say of registers.
#[test]
fn relocatable_code_ignores_setmaxnreg_in_every_spelling() {
    let folder = tempfile::tempdir().unwrap();
    let kernel =
        std::fs::read_to_string(silumin_testkit::root().join("tests/out/hopper_default.ptx")).unwrap();
    assert!(kernel.contains("setmaxnreg.inc") && kernel.contains(".reqntid 384, 1, 1\n.minnctapersm 1\n"));
    let maxnreg = kernel.replacen(".minnctapersm 1", ".maxnreg 168", 1);
    let hidden = kernel.replacen(".visible .entry", ".entry", 1);
    let ignored = |text: &str, flags: &[&str]| {
        let (file, cubin) = (folder.path().join("kernel.ptx"), folder.path().join("kernel.cubin"));
        std::fs::write(&file, text).unwrap();
        let mut command = std::process::Command::new(Ptxas::find().unwrap().path());
        command.args(["-arch", "sm_90a", "-v"]).args(flags).arg("-o").arg(&cubin).arg(&file);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && cubin.is_file(), "{said}");
        said.contains("(C7504)")
    };
    assert!(!ignored(&kernel, &[]) && !ignored(&kernel, &["--extensible-whole-program"]));
    for (text, flags) in [
        (&kernel, &["-c"][..]),
        (&kernel, &["-c", "--maxrregcount", "168"]),
        (&maxnreg, &["-c"]),
        (&hidden, &["-c"]),
    ] {
        assert!(ignored(text, flags), "{flags:?}");
    }
}

#[test]
fn a_warm_up_goes_through_the_cache_and_says_so() {
    const NAME: &str = "a_warm_up_goes_through_the_cache_and_says_so";
    if let Some(role) = role() {
        let cache = Cache::open_default();
        let device = Device::cuda(0).unwrap().with_cache(cache.clone());
        let (told, gemm) = (Mutex::new(Vec::new()), gemm());
        let kernels = Warmup::of(&gemm)
            .weights(64, 128)
            .weights(128, 64)
            .buckets(Buckets::powers_of_two(32).and([24]).unwrap())
            .on_progress(|progress| told.lock().unwrap().push(progress.clone()))
            .run(&device)
            .unwrap();
        let (origin, word) = match role.as_str() {
            "cold" => (Origin::Compiled, " compiled in "),
            _ => (Origin::Disk, " read in "),
        };
        let told = told.into_inner().unwrap();
        assert_eq!((told.len(), kernels.len()), (14, 14));
        assert!(
            told.iter()
                .all(|progress| progress.origin == Some(origin) && progress.to_string().contains(word))
        );
        assert_eq!(counts(cache.stats()), if role == "cold" { [14, 0, 0] } else { [0, 14, 0] });
        right(kernels.for_problem(17, 64, 128).unwrap());
        assert_eq!(kernels.for_problem(17, 64, 128).unwrap().kernel().problem.shape.m, 24);
        return;
    }
    let (_root, folder) = folder();
    for role in ["cold", "warm"] {
        run(module_path!(), NAME, role, &[(FOLDER, &folder)]);
    }
}

#[test]
fn without_a_cache_all_is_as_it_was() {
    const NAME: &str = "without_a_cache_all_is_as_it_was";
    if role().is_some() {
        let device = Device::cuda(0).unwrap();
        assert!(device.cache().is_none());
        let kernel = gemm().load(&device, SHAPE).unwrap();
        assert!(kernel.cubin().is_none());
        right(&kernel);
        assert!(!Cache::default_folder().unwrap().exists());
        // With one in memory it is the same device, and buffers of one handle serve the other.
        let cached = device.clone().with_cache(CacheOptions::new().open());
        assert_eq!(cached, device);
        right(&gemm().load(&cached, SHAPE).unwrap());
        return;
    }
    let (_root, folder) = folder();
    run(module_path!(), NAME, "only", &[(FOLDER, &folder)]);
    // The emulated device has nothing to compile.
    let emulated = Device::emulated(Arch::Sm100a).with_cache(Cache::open(PathBuf::from(&folder)));
    let kernel = gemm().load(&emulated, SHAPE).unwrap();
    assert!(kernel.cubin().is_none() && emulated.cache().is_some());
    assert_eq!(emulated.cache().unwrap().list().unwrap(), []);
}
