//! What a launch costs the host, on the emulated driver: `cargo bench -p silumin-bench-host --bench launch`.
//!
//! Launches go into a capture, or are those of a graph that runs nothing. Times are of this machine and of a driver that is none: what they say is
//! how much of a launch is ours, beside the same call made by hand. On a GPU: `silumin-bench-gpu --launch-cost`.

use criterion::{BenchmarkId, Criterion};
use cudarc::driver::sys::{self, CUgraphInstantiate_flags, CUstreamCaptureMode};
use silumin::verify::inputs::DualGemmInputs;
use silumin::{Arch, Buckets, Device, DeviceOperands, Distribution, DualGemm, Shape, Spec, Stream, Warmup};
use std::ffi::c_void;
use std::hint::black_box;
use std::process::Command;
use std::time::{Duration, Instant};

/// Set in the process that finds the emulated driver: a process looks for the driver's library once, at its start.
const MARK: &str = "SILUMIN_BENCH_DRIVER";
const SHAPE: Shape = Shape::new(16, 128, 512);
/// Launches of one capture.
const BATCH: u64 = 512;

fn main() {
    if std::env::var_os(MARK).is_some() {
        let mut criterion = Criterion::default().configure_from_args();
        launches(&mut criterion);
        criterion.final_summary();
        return;
    }
    // The crate is named so that it is linked, and so built.
    let _ = silumin_emulated_driver::cuInit;
    let name =
        format!("{}silumin_emulated_driver{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    let own = std::env::current_exe().expect("a program has a path");
    let library = own.parent().expect("it lies in a folder").join(name);
    let folder = tempfile::tempdir().expect("a folder for the driver");
    for file in ["libcuda.so", "libcuda.so.1"] {
        std::fs::copy(&library, folder.path().join(file)).expect("the emulated driver was built");
    }
    let mut again = Command::new(own);
    again.args(std::env::args_os().skip(1)).env(MARK, "1").env("LD_LIBRARY_PATH", folder.path());
    again.env("SILUMIN_EMULATED_GRAPHS", "idle");
    let status = again.status().expect("the bench runs");
    assert!(status.success(), "{status}");
}

/// How long so many calls take, in captures that are thrown away.
fn captured(stream: &Stream, calls: u64, mut call: impl FnMut()) -> Duration {
    let cuda = stream.cuda().expect("a stream of the driver's");
    let (mut took, mut left) = (Duration::ZERO, calls);
    while left > 0 {
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        cuda.begin_capture(mode).expect("a capture");
        let batch = left.min(BATCH);
        let start = Instant::now();
        (0..batch).for_each(|_| call());
        took += start.elapsed();
        drop(cuda.end_capture(CUgraphInstantiate_flags(0)));
        left -= batch;
    }
    took
}

fn launches(criterion: &mut Criterion) {
    let device = Device::cuda(0).expect("the emulated driver");
    let gate = "silu(A @ B1) * (A @ B2)".parse().expect("a gate");
    let gemm = DualGemm::new(Spec::new(gate, &[Arch::Sm100a]).expect("it is built in"));
    let warmup = Warmup::of(&gemm).weights(SHAPE.n, SHAPE.k).buckets(Buckets::powers_of_two(16));
    let kernels = warmup.run(&device).expect("kernels");
    let inputs = DualGemmInputs::generate(SHAPE, Distribution::Benchmark, 1).expect("operands");
    let operands = DeviceOperands::upload(&device, &inputs).expect("memory");
    let stream = device.new_stream().expect("a stream");
    let kernel = kernels.for_problem(SHAPE.m, SHAPE.n, SHAPE.k).expect("a kernel");
    kernel.launch(&stream, &operands.args(&[])).expect("a launch");

    criterion.bench_function("look-up", |bencher| {
        bencher.iter(|| kernels.for_problem(black_box(13), SHAPE.n, SHAPE.k).is_ok());
    });
    let mut group = criterion.benchmark_group("launch");
    group.bench_function(BenchmarkId::from_parameter("look-up, checks and launch"), |bencher| {
        bencher.iter_custom(|calls| {
            captured(&stream, calls, || {
                let kernel = kernels.for_problem(black_box(13), SHAPE.n, SHAPE.k).expect("a kernel");
                kernel.launch(&stream, &operands.args(&[])).expect("a launch");
            })
        });
    });
    // What came before on this stream: its graph is launched, and runs nothing.
    (0..4).for_each(|_| drop(kernel.launch(&stream, &operands.args(&[])).expect("a launch")));
    group.bench_function(BenchmarkId::from_parameter("look-up, checks and graph"), |bencher| {
        bencher.iter(|| {
            let kernel = kernels.for_problem(black_box(13), SHAPE.n, SHAPE.k).expect("a kernel");
            kernel.launch(&stream, &operands.args(&[])).expect("a launch")
        });
    });
    let launch = &kernel.kernel().launches[0];
    let function = kernel.cuda_functions()[0];
    // No parameter is larger than a tensor map.
    let zeros = [0u8; 128];
    let mut places: Vec<*mut c_void> =
        launch.parameters.iter().map(|_| zeros.as_ptr().cast_mut().cast()).collect();
    group.bench_function(BenchmarkId::from_parameter("the driver's own part"), |bencher| {
        let config = sys::CUlaunchConfig {
            gridDimX: launch.grid[0],
            gridDimY: launch.grid[1],
            gridDimZ: launch.grid[2],
            blockDimX: launch.block[0],
            blockDimY: launch.block[1],
            blockDimZ: launch.block[2],
            sharedMemBytes: launch.dynamic_smem,
            hStream: stream.cuda().expect("a stream of the driver's").cu_stream(),
            attrs: std::ptr::null_mut(),
            numAttrs: 0,
        };
        bencher.iter_custom(|calls| {
            captured(&stream, calls, || {
                // SAFETY: there is a place for each parameter, as large as any; what is captured never runs.
                let result = unsafe {
                    sys::cuLaunchKernelEx(&config, function, places.as_mut_ptr(), std::ptr::null_mut())
                };
                assert_eq!(result, sys::CUresult::CUDA_SUCCESS);
            })
        });
    });
    group.finish();
}
