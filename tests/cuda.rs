//! The CUDA device on the emulated driver: the same calls that a GPU gets, down to the library's symbols.
//!
//! A process looks for the driver's library once, at its start; so each test runs itself again in a process that
//! finds the emulated one.

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use silumin::codegen::config::{Config, Setting, Switch};
use silumin::formats::Matrix;
use silumin::formats::quantize::{TensorScale, quantize};
use silumin::runtime::communicator::Communicator;
use silumin::runtime::mlp::{Choices, Experts, ExpertsOptions, ExpertsWeights, Mlp, MlpOptions, MlpWeights};
use silumin::runtime::weights::{GateUp, Weight};
use silumin::verify::inputs::DualGemmInputs;
use silumin::verify::vectors::GateVectors;
use silumin::{
    Arch, Args, Buckets, Buffer, Device, DeviceError, DeviceOperands, Distribution, DualGemm, LoadedKernel,
    Shape, Spec, Stream,
};
use silumin_testkit::driver::library;
use std::process::{Command, Output};

/// Set in the process that finds the emulated driver.
const MARK: &str = "SILUMIN_TEST_DRIVER";
const SHAPE: Shape = Shape::new(200, 136, 512);

/// Runs the test called `name` in a process of its own whose driver's library is `driver`, a file's contents.
fn again(name: &str, driver: &[u8], variables: &[(&str, &str)]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    for file in ["libcuda.so", "libcuda.so.1"] {
        std::fs::write(folder.path().join(file), driver).unwrap();
    }
    Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            &silumin_testkit::test_name(module_path!(), name),
            "--nocapture",
            "--test-threads",
            "1",
        ])
        .env(MARK, "1")
        .env("LD_LIBRARY_PATH", folder.path())
        .envs(variables.iter().copied())
        .output()
        .unwrap()
}

/// Runs `body` in a process that finds the emulated driver.
fn with_driver(name: &str, variables: &[(&str, &str)], body: fn()) {
    if std::env::var_os(MARK).is_some() {
        return body();
    }
    let output = again(name, &std::fs::read(library()).unwrap(), variables);
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

fn gemm(gate: &str, arch: Arch, knobs: &[(&str, &str)]) -> DualGemm {
    let mut spec = Spec::new(gate.parse().unwrap(), &[arch]).unwrap();
    for (name, value) in knobs {
        spec.config.set(name, value).unwrap();
    }
    DualGemm::new(spec)
}

const SWIGLU: &str = "silu(A @ B1) * (A @ B2)";

#[test]
fn kernels_of_every_kind_of_launch_are_right() {
    with_driver("kernels_of_every_kind_of_launch_are_right", &[], || {
        let device = Device::cuda(0).unwrap();
        assert_eq!(device.arch(), Arch::Sm100a);
        assert_eq!(device.to_string(), "emulated sm_100a (sm_100a)");
        for knobs in [
            &[][..],
            &[("cta_group", "1")],
            &[("strategy", "two_pass")],
            &[("strategy", "second_fused"), ("pdl", "on")],
            &[("schedule", "split_k(2)"), ("cta_group", "1")],
            &[("schedule", "stream_k"), ("sms", "3"), ("cta_group", "1")],
            &[("schedule", "cluster_split_k(2)"), ("cta_group", "1")],
            &[("store", "tma"), ("sf_load", "tensor_map")],
            &[("multicast", "a(2)"), ("cta_group", "1")],
            &[("swap_ab", "on"), ("cta_group", "1")],
        ] {
            let kernel = gemm(SWIGLU, Arch::Sm100a, knobs).load(&device, SHAPE).unwrap();
            let found = kernel.verify(Distribution::Full, 7, &[]).unwrap();
            assert!(found.check.pass, "{knobs:?}: {}", found.check);
            assert_eq!(found.launch.emulator, None);
        }
    });
}

#[test]
fn scalars_and_other_formats_arrive() {
    with_driver("scalars_and_other_formats_arrive", &[], || {
        let device = Device::cuda(0).unwrap();
        let mut spec =
            Spec::new("silu(alpha * (A @ B1)) * (A @ B2)".parse().unwrap(), &[Arch::Sm100a]).unwrap();
        spec.formats.a = "mxfp8".parse().unwrap();
        spec.formats.b = "mxfp4".parse().unwrap();
        let found =
            DualGemm::new(spec).verify(&device, SHAPE, Distribution::Full, 3, &[("alpha", 0.25)]).unwrap();
        assert!(found.check.pass, "{}", found.check);
    });
}

#[test]
fn a_kernel_launches_again_on_other_streams_and_buffers() {
    with_driver("a_kernel_launches_again_on_other_streams_and_buffers", &[], || {
        let device = Device::cuda(0).unwrap();
        // A workspace that has to be zero again after each launch, one for each stream.
        let kernel = gemm(SWIGLU, Arch::Sm100a, &[("schedule", "split_k(2)"), ("cta_group", "1")])
            .load(&device, SHAPE)
            .unwrap();
        let streams = [device.stream(), device.new_stream().unwrap()];
        assert_ne!(streams[0], streams[1]);
        let results: Vec<_> = (0..4u64)
            .map(|launch| {
                let inputs = DualGemmInputs::generate(SHAPE, Distribution::Full, launch / 2).unwrap();
                let operands = DeviceOperands::upload(&device, &inputs).unwrap();
                let stream = &streams[launch as usize % 2];
                kernel.launch(stream, &operands.args(&[])).unwrap();
                stream.synchronize().unwrap();
                operands.result().unwrap()
            })
            .collect();
        assert_eq!(results[0], results[1]);
        assert_eq!(results[2], results[3]);
        assert_ne!(results[0], results[2]);
    });
}

#[test]
fn launches_are_captured_into_graphs() {
    with_driver("launches_are_captured_into_graphs", &[], || {
        let device = Device::cuda(0).unwrap();
        for knobs in [&[("cta_group", "1")][..], &[("schedule", "split_k(2)"), ("cta_group", "1")]] {
            let kernel = gemm(SWIGLU, Arch::Sm100a, knobs).load(&device, SHAPE).unwrap();
            let inputs = DualGemmInputs::generate(SHAPE, Distribution::Full, 5).unwrap();
            let operands = DeviceOperands::upload(&device, &inputs).unwrap();
            let unwritten = operands.c.download().unwrap();
            // Another stream has used the buffers, and their order is by events that no capture may wait for.
            kernel.launch(&device.stream(), &operands.args(&[])).unwrap();
            let expected = operands.c.download().unwrap();
            assert_ne!(expected, unwritten);
            operands.c.write(&unwritten).unwrap();
            let stream = device.new_stream().unwrap();
            let cuda = stream.cuda().unwrap();
            let capture = || {
                cuda.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
                let launched = kernel.launch(&stream, &operands.args(&[]));
                let graph = cuda.end_capture(CUgraphInstantiate_flags(0)).unwrap().unwrap();
                launched.map(|_| graph)
            };
            if !kernel.kernel().workspace.is_empty() {
                let error = capture().map(drop).unwrap_err().to_string();
                assert!(
                    error.contains("launch the kernel once on this stream before the capture"),
                    "{error}"
                );
                kernel.launch(&stream, &operands.args(&[])).unwrap();
                operands.c.write(&unwritten).unwrap();
            }
            let graph = capture().unwrap();
            assert_eq!(operands.c.download().unwrap(), unwritten, "a captured launch does not run");
            for _ in 0..2 {
                operands.c.write(&unwritten).unwrap();
                graph.launch().unwrap();
                stream.synchronize().unwrap();
                assert_eq!(operands.c.download().unwrap(), expected);
            }
        }
    });
}

/// What the emulated driver has counted: launches that ran by a call of their own, launches of graphs, graphs that there are.
fn counts() -> [u64; 3] {
    // SAFETY: the library is loaded, and its initialisers have run.
    let library = unsafe { libloading::Library::new("libcuda.so") }.unwrap();
    // SAFETY: it is the function's type.
    let counts: libloading::Symbol<'_, unsafe extern "C" fn(*mut [u64; 3]) -> i32> =
        unsafe { library.get(b"silumin_emulated_counts") }.unwrap();
    let mut found = [0; 3];
    // SAFETY: the argument is a place for the three.
    assert_eq!(unsafe { counts(&mut found) }, 0);
    found
}

/// What `work` adds to launches by themselves and to launches of graphs.
fn counted(work: impl FnOnce()) -> [u64; 2] {
    let before = counts();
    work();
    let after = counts();
    [after[0] - before[0], after[1] - before[1]]
}

const SMALL: Shape = Shape::new(8, 64, 512);

fn small(device: &Device, seed: u64) -> DeviceOperands {
    let inputs = DualGemmInputs::generate(SMALL, Distribution::Full, seed).unwrap();
    DeviceOperands::upload(device, &inputs).unwrap()
}

/// Launches so many times, C overwritten before each; whether it was `expected` each time.
fn repeated(
    kernel: &LoadedKernel,
    stream: &Stream,
    c: &silumin::Buffer,
    args: &Args<'_>,
    times: usize,
    expected: &[u8],
) {
    for number in 0..times {
        c.write(&vec![0xFF; c.len()]).unwrap();
        kernel.launch(stream, args).unwrap();
        assert_eq!(c.download().unwrap(), expected, "launch {number}");
    }
}

#[test]
fn launches_that_come_again_are_one_graph() {
    with_driver("launches_that_come_again_are_one_graph", &[], || {
        let device = Device::cuda(0).unwrap();
        let set = small(&device, 1);
        for (knobs, graphs) in [
            (&[][..], true),
            (&[("strategy", "two_pass")], true),
            (&[("strategy", "second_fused")], true),
            (&[("schedule", "split_k(2)"), ("cta_group", "1")], true),
            // What starts before the kernel in front of it has ended is launched as it is.
            (&[("pdl", "on")], false),
        ] {
            let kernel = gemm(SWIGLU, Arch::Sm100a, knobs).load(&device, SMALL).unwrap();
            let alone = kernel.kernel().launches.len() as u64;
            let args = set.args(&[]);
            kernel.launch(&device.stream(), &args).unwrap();
            let expected = set.c.download().unwrap();
            let found = counted(|| repeated(&kernel, &device.stream(), &set.c, &args, 9, &expected));
            assert_eq!(found, if graphs { [2 * alone, 7] } else { [9 * alone, 0] }, "{knobs:?}");
            // A capture of the caller's gets the launches themselves.
            let stream = device.new_stream().unwrap();
            (0..4).for_each(|_| drop(kernel.launch(&stream, &args).unwrap()));
            let cuda = stream.cuda().unwrap();
            cuda.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
            let found = counted(|| drop(kernel.launch(&stream, &args).unwrap()));
            let graph = cuda.end_capture(CUgraphInstantiate_flags(0)).unwrap().unwrap();
            assert_eq!(found, [0, 0]);
            set.c.write(&vec![0xFF; expected.len()]).unwrap();
            graph.launch().unwrap();
            stream.synchronize().unwrap();
            assert_eq!(set.c.download().unwrap(), expected);
            drop(graph);
            assert_eq!(counts()[2], if graphs { 2 } else { 0 }, "one for each stream");
            // By a handle of the device without, the same module's launches are not.
            let plain = kernel.dual_gemm().load(&device.clone().with_graphs(false), SMALL).unwrap();
            let found = counted(|| repeated(&plain, &device.stream(), &set.c, &args, 5, &expected));
            assert_eq!(found, [5 * alone, 0]);
            drop((kernel, plain));
            assert_eq!(counts()[2], 0, "they go with the module");
        }
    });
}

#[test]
fn a_launch_that_starts_while_one_of_its_own_kernel_ends_is_in_the_graph() {
    let chip = [("SILUMIN_EMULATED_CHIP", "sm_90a")];
    with_driver("a_launch_that_starts_while_one_of_its_own_kernel_ends_is_in_the_graph", &chip, || {
        let device = Device::cuda(0).unwrap();
        let mut spec = Spec::new(SWIGLU.parse().unwrap(), &[Arch::Sm90a]).unwrap();
        spec.formats.a = "bf16".parse().unwrap();
        spec.formats.b = "nvfp4".parse().unwrap();
        spec.formats.c = "bf16".parse().unwrap();
        spec.config.set("accumulators", "interleaved_rows").unwrap();
        let inputs = DualGemmInputs::generate_for(SMALL, spec.formats, Distribution::Benchmark, 1);
        let set = DeviceOperands::upload(&device, &inputs.unwrap()).unwrap();
        let kernel = DualGemm::new(spec).load(&device, SMALL).unwrap();
        let programmatic: Vec<bool> =
            kernel.kernel().launches.iter().map(|launch| launch.programmatic).collect();
        assert_eq!(programmatic, [true, true]);
        kernel.launch(&device.stream(), &set.args(&[])).unwrap();
        let expected = set.c.download().unwrap();
        let found = counted(|| {
            repeated(&kernel, &device.stream(), &set.c, &set.args(&[]), 6, &expected);
        });
        assert_eq!(found, [4, 4]);
        assert!(kernel.verify(Distribution::Full, 1, &[]).unwrap().check.pass);
    });
}

#[test]
fn a_graph_runs_with_no_values_but_its_own() {
    with_driver("a_graph_runs_with_no_values_but_its_own", &[], || {
        let device = Device::cuda(0).unwrap();
        let gemm = gemm("silu(alpha * (A @ B1) + b[n]) * (A @ B2)", Arch::Sm100a, &[]);
        let [plain, kernel] =
            [false, true].map(|on| gemm.load(&device.clone().with_graphs(on), SMALL).unwrap());
        let sets = [small(&device, 1), small(&device, 2)];
        let draw = |seed| {
            let drawn =
                GateVectors::draw(&gemm.spec().gate.expr.vectors(), &gemm.spec().problem(SMALL), seed);
            silumin::runtime::gemm::upload_vectors(&drawn, &device).unwrap()
        };
        let vectors = [draw(1), draw(2)];
        let vectors = vectors.each_ref().map(|all| -> Vec<(&str, &silumin::Buffer)> {
            all.iter().map(|(name, buffer)| (name.as_str(), buffer)).collect()
        });
        let scalars = [[("alpha", 0.5f32)], [("alpha", -1.5)]];
        let stream = device.stream();
        let c = device.alloc(sets[0].c.len()).unwrap();
        // All combinations: operands, a vector, a scalar, rows, where C is.
        let args = |which: usize| {
            let bit = |place: usize| which >> place & 1;
            let set = &sets[bit(0)];
            let target = if bit(4) == 1 { &c } else { &set.c };
            Args { vectors: &vectors[bit(1)], c: target, ..set.args(&scalars[bit(2)]) }
        };
        let run = |kernel: &LoadedKernel, which: usize| {
            let full = args(which);
            let half = full.a.slice(0, full.a.len() / 2).unwrap();
            let args = if which >> 3 & 1 == 1 { Args { a: &half, ..full }.rows(4) } else { full };
            args.c.write(&vec![0xFF; args.c.len()]).unwrap();
            kernel.launch(&stream, &args).unwrap();
            args.c.download().unwrap()
        };
        let expected: Vec<Vec<u8>> = (0..32).map(|which| run(&plain, which)).collect();
        assert!((0..16).all(|which| (0..which).all(|other| expected[which] != expected[other])));
        let found = counted(|| {
            for step in 0..32 * 6 {
                let which = step * 7 % 32;
                assert_eq!(run(&kernel, which), expected[which], "{step}: {which:05b}");
            }
        });
        assert_eq!(found, [3 * 32, 3 * 32]);
        // Values that never come again cost no graph.
        let alive = counts()[2];
        for step in 0..200 {
            let scalars = [("alpha", 1.0 + step as f32 / 128.0)];
            kernel.launch(&stream, &Args { vectors: &vectors[0], ..sets[0].args(&scalars) }).unwrap();
        }
        assert_eq!(counts()[2], alive);
    });
}

#[test]
fn a_kernel_keeps_so_many_graphs_and_makes_more_now_and_then() {
    with_driver("a_kernel_keeps_so_many_graphs_and_makes_more_now_and_then", &[], || {
        let device = Device::cuda(0).unwrap();
        let gemm = gemm("silu(alpha * (A @ B1)) * (A @ B2)", Arch::Sm100a, &[]);
        let shape = Shape::new(1, 32, 64);
        let kernel = gemm.load(&device, shape).unwrap();
        let inputs = DualGemmInputs::generate(shape, Distribution::Full, 1).unwrap();
        let set = DeviceOperands::upload(&device, &inputs).unwrap();
        let launch = |which: usize| {
            let scalars = [("alpha", which as f32)];
            drop(kernel.launch(&device.stream(), &set.args(&scalars)).unwrap());
        };
        (0..4).for_each(|_| (0..300).for_each(&launch));
        // Those that were dropped are destroyed in batches.
        let kept = || assert!((256..256 + 64).contains(&counts()[2]), "{:?}", counts());
        kept();
        // What is launched now has a graph soon, whatever was before.
        let found = counted(|| (0..600).for_each(|_| launch(1000)));
        assert!(found[1] > 300, "{found:?}");
        kept();
    });
}

#[test]
fn where_no_graph_can_be_made_kernels_are_launched() {
    let none = [("SILUMIN_EMULATED_GRAPHS", "none")];
    with_driver("where_no_graph_can_be_made_kernels_are_launched", &none, || {
        let device = Device::cuda(0).unwrap();
        let kernel = gemm(SWIGLU, Arch::Sm100a, &[]).load(&device, SMALL).unwrap();
        let set = small(&device, 1);
        kernel.launch(&device.stream(), &set.args(&[])).unwrap();
        let expected = set.c.download().unwrap();
        let found = counted(|| repeated(&kernel, &device.stream(), &set.c, &set.args(&[]), 6, &expected));
        assert_eq!(found, [6, 0]);
        assert_eq!(counts()[2], 0, "what was captured is destroyed");
    });
}

#[test]
fn threads_and_streams_launch_graphs() {
    with_driver("threads_and_streams_launch_graphs", &[], || {
        let device = Device::cuda(0).unwrap();
        let kernel = gemm(SWIGLU, Arch::Sm100a, &[]).load(&device, SMALL).unwrap();
        let sets = [small(&device, 1), small(&device, 2)];
        let expected = sets.each_ref().map(|set| {
            kernel.launch(&device.stream(), &set.args(&[])).unwrap();
            set.c.download().unwrap()
        });
        let shared = device.new_stream().unwrap();
        let found = counted(|| {
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    let (device, kernel, sets, expected, shared) =
                        (&device, &kernel, &sets, &expected, &shared);
                    scope.spawn(move || {
                        let own = device.new_stream().unwrap();
                        let c = device.alloc(expected[0].len()).unwrap();
                        for step in 0..24 {
                            // The same arguments as every other thread, on the same stream at the same time: two of them write the same C
                            // in no order, and the same bytes.
                            kernel.launch(shared, &sets[0].args(&[])).unwrap();
                            let set = step % 2;
                            kernel.launch(&own, &Args { c: &c, ..sets[set].args(&[]) }).unwrap();
                            assert_eq!(c.download().unwrap(), expected[set]);
                        }
                    });
                }
            });
        });
        assert_eq!(found[0] + found[1], 4 * 48);
        assert!(found[1] > 4 * 48 / 4, "{found:?}");
        assert_eq!(sets[0].c.download().unwrap(), expected[0]);
        // While this thread is capturing another stream, a graph is made and launched beside it.
        let (captured, beside) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let cuda = captured.cuda().unwrap();
        kernel.launch(&captured, &sets[1].args(&[])).unwrap();
        cuda.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
        let found =
            counted(|| (0..5).for_each(|_| drop(kernel.launch(&beside, &sets[1].args(&[])).unwrap())));
        kernel.launch(&captured, &sets[1].args(&[])).unwrap();
        assert!(cuda.end_capture(CUgraphInstantiate_flags(0)).unwrap().is_some());
        assert_eq!(found, [3, 2]);
    });
}

#[test]
fn memory_is_checked_as_on_every_device() {
    with_driver("memory_is_checked_as_on_every_device", &[], || {
        let device = Device::cuda(0).unwrap();
        let whole = device.upload(&[0u8; 64]).unwrap();
        whole.slice(48, 2).unwrap().write(&[7, 9]).unwrap();
        assert_eq!(whole.download().unwrap()[47..51], [0, 7, 9, 0]);
        assert!(whole.is_aligned(256) && !whole.slice(8, 8).unwrap().is_aligned(16));
        assert_eq!(device.alloc(0).unwrap_err(), DeviceError::Empty);
        assert!(matches!(device.alloc(1 << 60).unwrap_err(), DeviceError::OutOfMemory { .. }));
        // Another handle of the same GPU is the same device; an emulated one is not.
        let again = Device::cuda(0).unwrap();
        assert_eq!(again, device);
        let emulated = Device::emulated(Arch::Sm100a);
        assert_ne!(emulated, device);
        let kernel = gemm(SWIGLU, Arch::Sm100a, &[]).load(&again, SHAPE).unwrap();
        let inputs = DualGemmInputs::generate(SHAPE, Distribution::Full, 1).unwrap();
        let operands = DeviceOperands::upload(&device, &inputs).unwrap();
        kernel.launch(&device.stream(), &operands.args(&[])).unwrap();
        let elsewhere = DeviceOperands::upload(&emulated, &inputs).unwrap();
        let error = kernel.launch(&device.stream(), &elsewhere.args(&[])).unwrap_err().to_string();
        assert!(
            error.contains("another device (emulated sm_100a, number ") && error.contains("(GPU 0, "),
            "{error}"
        );
        assert!(kernel.launch(&emulated.stream(), &operands.args(&[])).is_err());
        // cudarc's own memory and streams.
        let stream = device.stream().cuda().unwrap().context().new_stream().unwrap();
        let adopted = device.adopt(stream.clone_htod(&[5u8; 32]).unwrap()).unwrap();
        assert_eq!(adopted.download().unwrap(), [5; 32]);
        device.stream_of(stream.clone()).unwrap().synchronize().unwrap();
        assert!(matches!(emulated.stream_of(stream), Err(DeviceError::Foreign { .. })));
    });
}

#[test]
fn a_gpu_that_is_not_there_is_an_error() {
    with_driver("a_gpu_that_is_not_there_is_an_error", &[], || {
        let error = Device::cuda(3).unwrap_err();
        assert_eq!(error, DeviceError::NoDevice { ordinal: 3, devices: 1 });
    });
}

#[test]
fn geforce_takes_its_own_kernels() {
    let chip = [("SILUMIN_EMULATED_CHIP", "sm_120a")];
    with_driver("geforce_takes_its_own_kernels", &chip, || {
        let device = Device::cuda(0).unwrap();
        assert_eq!(device.arch(), Arch::Sm120a);
        let found =
            gemm(SWIGLU, Arch::Sm120a, &[]).verify(&device, SHAPE, Distribution::Full, 1, &[]).unwrap();
        assert!(found.check.pass, "{}", found.check);
    });
}

#[test]
fn the_other_blackwell_takes_its_own_kernels() {
    let chip = [("SILUMIN_EMULATED_CHIP", "sm_103a")];
    with_driver("the_other_blackwell_takes_its_own_kernels", &chip, || {
        let device = Device::cuda(0).unwrap();
        assert_eq!(device.arch(), Arch::Sm103a);
        let found =
            gemm(SWIGLU, Arch::Sm103a, &[]).verify(&device, SHAPE, Distribution::Full, 1, &[]).unwrap();
        assert!(found.check.pass, "{}", found.check);
    });
}

#[test]
fn hopper_takes_its_own_kernels() {
    let chip = [("SILUMIN_EMULATED_CHIP", "sm_90a")];
    with_driver("hopper_takes_its_own_kernels", &chip, || {
        let device = Device::cuda(0).unwrap();
        assert_eq!(device.arch(), Arch::Sm90a);
        let mut spec = Spec::new(SWIGLU.parse().unwrap(), &[Arch::Sm90a]).unwrap();
        for operand in [&mut spec.formats.a, &mut spec.formats.b] {
            *operand = "bf16".parse().unwrap();
        }
        let found = DualGemm::new(spec).verify(&device, SHAPE, Distribution::Full, 1, &[]).unwrap();
        assert!(found.check.pass, "{}", found.check);
    });
}

#[test]
fn a_driver_too_old_for_the_ptx_says_which_would_do() {
    let version = [("SILUMIN_EMULATED_CUDA", "12.4")];
    with_driver("a_driver_too_old_for_the_ptx_says_which_would_do", &version, || {
        let device = Device::cuda(0).unwrap();
        let error = gemm(SWIGLU, Arch::Sm100a, &[]).load(&device, SHAPE).unwrap_err().to_string();
        assert!(error.contains("for CUDA 12.4: install one for CUDA 12.8 or newer (branch 570)"), "{error}");
    });
}

#[test]
fn without_a_driver_the_error_names_what_was_looked_for() {
    let name = "without_a_driver_the_error_names_what_was_looked_for";
    if std::env::var_os(MARK).is_some() {
        let error = Device::cuda(0).unwrap_err();
        assert!(matches!(error, DeviceError::NoDriver { .. }), "{error}");
        assert!(error.to_string().contains("libcuda.so.1"), "{error}");
        return;
    }
    let output = again(name, b"no library", &[]);
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
fn warm_up_loads_kernels_on_several_threads() {
    with_driver("warm_up_loads_kernels_on_several_threads", &[], || {
        let device = Device::cuda(0).unwrap();
        let config = Config { pdl: Switch::On, stages: Setting::Fixed(2), ..Config::default() };
        let mut spec = Spec::new(SWIGLU.parse().unwrap(), &[Arch::Sm100a]).unwrap();
        spec.config = config;
        let kernels = DualGemm::new(spec).warmup(&device, &[SHAPE, Shape::new(1, 64, 64)]).unwrap();
        for kernel in kernels.iter() {
            assert!(kernel.verify(Distribution::Benchmark, 1111, &[]).unwrap().check.pass);
        }
    });
}

#[test]
fn allocations_come_and_go_in_any_number() {
    with_driver("allocations_come_and_go_in_any_number", &[], || {
        let device = Device::cuda(0).unwrap();
        let kept = device.upload(&[7; 100]).unwrap();
        for number in 0..100_000u32 {
            let buffer = device.upload(&number.to_le_bytes()).unwrap();
            if number % 10_000 == 0 {
                assert_eq!(buffer.download().unwrap(), number.to_le_bytes());
            }
        }
        let live: Vec<_> =
            (0..5_000u32).map(|number| device.upload(&number.to_le_bytes()).unwrap()).collect();
        for (number, buffer) in (0..5_000u32).zip(&live) {
            assert_eq!(buffer.download().unwrap(), number.to_le_bytes());
        }
        assert_eq!(kept.download().unwrap(), [7; 100]);
        // Kernels run on buffers that came late as on others.
        let gemm = gemm(SWIGLU, Arch::Sm100a, &[]);
        assert!(
            gemm.load(&device, Shape::new(8, 64, 64))
                .unwrap()
                .verify(Distribution::Full, 1, &[])
                .unwrap()
                .check
                .pass
        );
    });
}

#[test]
fn a_call_of_a_block_is_one_graph() {
    with_driver("a_call_of_a_block_is_one_graph", &[("SILUMIN_NCCL", "/nowhere/nccl.so")], || {
        let (hidden, features, tokens) = (64, 128, 3);
        let sines = |rows: usize, k: usize, step: f32| {
            let values: Vec<f32> = (0..rows * k).map(|i| (step * i as f32).sin() / 8.0).collect();
            quantize(&values, rows, k, TensorScale::FromMax).unwrap()
        };
        let matrices =
            [sines(features, hidden, 0.3), sines(features, hidden, 0.7), sines(hidden, features, 0.9)];
        let [gate, up, down] = [0, 1, 2].map(|matrix| Weight::of(&matrices[matrix]).unwrap());
        let weights = MlpWeights::new(GateUp::new(gate, up).unwrap(), down).unwrap();
        let options = MlpOptions::new(Buckets::new([8]).unwrap());
        let device = Device::cuda(0).unwrap();
        let mlp = Mlp::load(&device, &weights, &options).unwrap();
        let (bf16, stream) = (
            |value: u16, rows: usize| value.to_le_bytes().repeat(rows * hidden),
            device.new_stream().unwrap(),
        );
        let x = device.upload(&bf16(0x3F80, tokens)).unwrap();
        let residual = device.upload(&bf16(0x4000, 8)).unwrap();
        let out = device.upload(&bf16(0, 8)).unwrap();
        let first = |buffer: &Buffer| buffer.slice(0, tokens * mlp.row_bytes()).unwrap().download().unwrap();

        // Recorded before anything has run: nothing is written until the launch.
        let call = mlp.record(&stream, tokens as u32, &x, Some(&residual), &out).unwrap();
        assert_eq!(first(&out), bf16(0, tokens));
        call.launch().unwrap();
        let ones = first(&out);
        mlp.forward(&device.stream(), tokens as u32, &x, Some(&residual), &out).unwrap();
        assert_eq!(first(&out), ones);
        assert_ne!(ones, bf16(0, tokens));
        // What is in x at the time of the launch counts.
        x.write(&bf16(0, tokens)).unwrap();
        call.launch().unwrap();
        assert_eq!(first(&out), bf16(0x4000, tokens));
        drop(mlp.clone());

        let error = mlp.record(&device.stream(), tokens as u32, &x, Some(&residual), &out).unwrap_err();
        assert!(error.to_string().contains("the default stream cannot be captured"), "{error}");
        let error = Communicator::all(&[device]).unwrap_err().to_string();
        assert!(error.contains("NCCL was not found (tried /nowhere/nccl.so)"), "{error}");
    });
}

#[test]
fn a_call_of_experts_is_one_graph_for_any_choices() {
    with_driver("a_call_of_experts_is_one_graph_for_any_choices", &[], || {
        let (hidden, features, tokens, top_k) = (64, 128, 3, 2);
        let sines = |rows: usize, k: usize, step: f32| {
            let values: Vec<f32> = (0..rows * k).map(|i| (step * i as f32).sin() / 8.0).collect();
            quantize(&values, rows, k, TensorScale::FromMax).unwrap()
        };
        let matrices: Vec<[Matrix; 3]> = [0.3, 0.4, 0.5, 0.6]
            .map(|step| {
                [
                    sines(features, hidden, step),
                    sines(features, hidden, 2.0 * step),
                    sines(hidden, features, step),
                ]
            })
            .into();
        let mut experts = Vec::new();
        for matrices in &matrices {
            let [gate, up, down] = matrices.each_ref().map(|matrix| Weight::of(matrix).unwrap());
            experts.push(MlpWeights::new(GateUp::new(gate, up).unwrap(), down).unwrap());
        }
        let weights = ExpertsWeights::new(experts).unwrap();
        let options = ExpertsOptions::new(Buckets::new([8]).unwrap(), top_k as u32);
        let x: Vec<u8> =
            (0..tokens * hidden).flat_map(|i| (0x3F00 + (i % 256) as u16).to_le_bytes()).collect();
        let shares = [0.5f32, 0.25, 1.0, 2.0, -1.0, 0.125].map(f32::to_le_bytes).concat();
        let choices = [[3i32, 0, 1, 2, 0, 1], [2, 2, -1, 3, 0, 9]]
            .map(|numbers| numbers.map(i32::to_le_bytes).concat());

        // What an emulated device computes.
        let of = |device: &Device| {
            let up = |bytes: &[u8]| device.upload(bytes).unwrap();
            (
                Experts::load(device, &weights, &options).unwrap(),
                [up(&x), up(&choices[0]), up(&shares), up(&x)],
            )
        };
        let emulated = Device::emulated(Arch::Sm100a);
        let (experts, [there, numbers, shares_there, out]) = of(&emulated);
        let expected = choices.each_ref().map(|chosen| {
            numbers.write(chosen).unwrap();
            let choices = Choices { experts: &numbers, weights: &shares_there };
            experts.forward(&emulated.stream(), tokens as u32, &there, &choices, None, &out).unwrap();
            out.download().unwrap()
        });
        assert_ne!(expected[0], expected[1]);

        let device = Device::cuda(0).unwrap();
        let (experts, [there, numbers, shares_there, out]) = of(&device);
        let stream = device.new_stream().unwrap();
        let given = Choices { experts: &numbers, weights: &shares_there };
        let call = experts.record(&stream, tokens as u32, &there, &given, None, &out).unwrap();
        assert_eq!(out.download().unwrap(), x, "nothing is written until the launch");
        for (chosen, expected) in choices.iter().zip(&expected) {
            numbers.write(chosen).unwrap();
            call.launch().unwrap();
            assert!(out.download().unwrap() == *expected);
            experts.forward(&stream, tokens as u32, &there, &given, None, &out).unwrap();
            assert!(out.download().unwrap() == *expected);
        }
    });
}
