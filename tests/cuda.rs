//! The CUDA device on the emulated driver: the same calls that a GPU gets, down to the library's symbols.
//!
//! A process looks for the driver's library once, at its start; so each test runs itself again in a process that
//! finds the emulated one.

#[path = "common/library.rs"]
mod library;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use library::library;
use silumin::codegen::config::{Config, Setting, Switch};
use silumin::runtime::inputs::DualGemmInputs;
use silumin::{Arch, Device, DeviceError, DeviceOperands, Distribution, DualGemm, Shape, Spec};
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
        .args(["--exact", name, "--nocapture", "--test-threads", "1"])
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
        assert!(error.contains("another device (emulated sm_100a)"), "{error}");
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
fn a_chip_without_kernels_is_an_error() {
    let chip = [("SILUMIN_EMULATED_CHIP", "sm_120a")];
    with_driver("a_chip_without_kernels_is_an_error", &chip, || {
        let error = Device::cuda(0).unwrap_err().to_string();
        assert!(error.contains("emulated sm_120a has compute capability 12.0"), "{error}");
        assert!(error.contains("sm_100a") && error.contains("Device::emulated"), "{error}");
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
        assert!(error.contains("for CUDA 12.4: it takes one for CUDA 12.8 or newer (branch 570)"), "{error}");
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
