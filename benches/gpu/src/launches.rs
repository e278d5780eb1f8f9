//! What a launch costs the host: the time from one call to the next, while the GPU keeps up or its queue has room.

use crate::raw::{Raw, Value, said};
use crate::timing::{median, quantile};
use cudarc::driver::sys;
use serde::Serialize;
use silumin_codegen::problem::{Formats, Shape};
use silumin_codegen::spec::Spec;
use silumin_runtime::device::{Device, Stream};
use silumin_runtime::gemm::{DeviceOperands, DualGemm};
use silumin_runtime::inputs::{Distribution, DualGemmInputs};
use silumin_runtime::warmup::{Buckets, Warmup};
use std::path::Path;
use std::time::Instant;

/// A kernel that does nothing: what the driver itself takes for a launch.
const NOTHING: &str = ".version 8.0\n.target sm_90\n.address_size 64\n\
    .visible .entry nothing(.param .u64 unused)\n{\n    ret;\n}\n";
/// A problem that a GPU does in a few microseconds.
const SHAPE: Shape = Shape::new(16, 512, 512);
/// Sets of buffers that take turns.
const SETS: usize = 16;

/// Nanoseconds of a call.
#[derive(Serialize)]
struct Cost {
    what: &'static str,
    median_ns: f64,
    low_ns: f64,
    high_ns: f64,
}

/// Text of any error.
fn words(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Nanoseconds of a call in each of so many batches of `calls` calls, the stream idle before every batch.
fn batches(
    stream: &Stream,
    [batches, calls]: [usize; 2],
    mut call: impl FnMut(usize) -> Result<(), String>,
) -> Result<Vec<f64>, String> {
    // Caches, the driver's own first times, the clock of the processor.
    for number in 0..calls {
        call(number)?;
    }
    let mut times = Vec::with_capacity(batches);
    for _ in 0..batches {
        stream.synchronize().map_err(words)?;
        let start = Instant::now();
        for number in 0..calls {
            call(number)?;
        }
        times.push(start.elapsed().as_secs_f64() * 1e9 / calls as f64);
    }
    stream.synchronize().map_err(words)?;
    Ok(times)
}

/// The same, summed up and printed.
fn cost(
    what: &'static str,
    stream: &Stream,
    reps: [usize; 2],
    call: impl FnMut(usize) -> Result<(), String>,
) -> Result<Cost, String> {
    let times = batches(stream, reps, call)?;
    let [low_ns, high_ns] = [0.1, 0.9].map(|share| quantile(&times, share));
    let cost = Cost { what, median_ns: median(&times), low_ns, high_ns };
    println!("{:8.0} ns ({:.0} to {:.0})  {what}", cost.median_ns, cost.low_ns, cost.high_ns);
    Ok(cost)
}

/// What a look-up and a launch cost, and an empty kernel beside them.
pub struct Launch {
    /// Nanoseconds of a look-up and a launch, of each batch.
    pub batches_ns: Vec<f64>,
    /// Nanoseconds of a launch of an empty kernel by the driver's own call, the median.
    pub empty_ns: f64,
}

/// Measures a look-up and a launch on one stream, in so many batches of `calls`. With `captured` each batch goes into a graph that is
/// thrown away: for the emulated driver, whose launches return when the kernel has run.
pub fn look_up_and_launch(
    device: &Device,
    calls: usize,
    reps: usize,
    captured: bool,
) -> Result<Launch, String> {
    let arch = device.arch();
    let mut spec = Spec::new("silu(A @ B1) * (A @ B2)".parse().map_err(words)?, &[arch]).map_err(words)?;
    spec.formats = Formats::usual(arch);
    let gemm = DualGemm::new(spec);
    let warmup = Warmup::of(&gemm).weights(SHAPE.n, SHAPE.k).buckets(Buckets::powers_of_two(32));
    let kernels = warmup.run(device).map_err(words)?;
    let inputs = DualGemmInputs::generate_for(SHAPE, gemm.spec().formats, Distribution::Benchmark, 1);
    let operands = DeviceOperands::upload(device, &inputs.map_err(words)?).map_err(words)?;
    // The default stream can't be captured.
    let own = if captured { device.new_stream().map_err(words)? } else { device.stream() };
    let cuda = own.cuda().ok_or("the device is no GPU")?;
    let nothing = Raw::load(cuda, NOTHING, "nothing")?;
    let timed = |call: &dyn Fn() -> Result<(), String>| -> Result<Vec<f64>, String> {
        if !captured {
            return batches(&own, [reps, calls], |_| call());
        }
        call()?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        let batch = || -> Result<f64, String> {
            cuda.begin_capture(mode).map_err(|error| said("cuStreamBeginCapture", error))?;
            let start = Instant::now();
            let called = (0..calls).try_for_each(|_| call());
            let ns = start.elapsed().as_secs_f64() * 1e9 / calls as f64;
            drop(cuda.end_capture(sys::CUgraphInstantiate_flags(0)));
            called.map(|()| ns)
        };
        (0..reps).map(|_| batch()).collect()
    };
    let empty = timed(&|| {
        // SAFETY: the parameter is its own, and it reads nothing.
        unsafe { nothing.launch([1, 1], 32, &mut [Value::U64(0)]) }
    })?;
    let batches_ns = timed(&|| {
        let kernel = kernels.for_problem(SHAPE.m, SHAPE.n, SHAPE.k).map_err(words)?;
        kernel.launch(&own, &operands.args(&[])).map(drop).map_err(words)
    })?;
    Ok(Launch { batches_ns, empty_ns: median(&empty) })
}

/// Measures and prints all of it.
pub fn run(device: usize, calls: usize, reps: usize, json: Option<&Path>) -> Result<bool, String> {
    let device = Device::cuda(device).map_err(words)?;
    let arch = device.arch();
    let mut spec = Spec::new("silu(A @ B1) * (A @ B2)".parse().map_err(words)?, &[arch]).map_err(words)?;
    spec.formats = Formats::usual(arch);
    let gemm = DualGemm::new(spec);
    let (n, k) = (SHAPE.n, SHAPE.k);
    let warmup = Warmup::of(&gemm).weights(n, k).weights(n, 2 * k).buckets(Buckets::powers_of_two(32));
    let kernels = warmup.run(&device).map_err(words)?;
    let inputs = DualGemmInputs::generate_for(SHAPE, gemm.spec().formats, Distribution::Benchmark, 1)
        .map_err(words)?;
    let sets: Result<Vec<_>, _> = (0..SETS).map(|_| DeviceOperands::upload(&device, &inputs)).collect();
    let sets = sets.map_err(words)?;
    println!(
        "{device}, {}: the host's cost of a call, median of {reps} batches of {calls}",
        gemm.spec().formats
    );
    let own = device.stream();
    let reps = [reps, calls];
    let nothing = Raw::load(own.cuda().ok_or("the device is no GPU")?, NOTHING, "nothing")?;
    let mut costs = vec![cost("the driver: an empty kernel, cuLaunchKernel", &own, reps, |_| {
        // SAFETY: the parameter is its own, and it reads nothing.
        unsafe { nothing.launch([1, 1], 32, &mut [Value::U64(0)]) }
    })?];
    let mut found = 0;
    costs.push(cost("look-up of a kernel", &own, reps, |number| {
        let kernel = kernels.for_problem(1 + number as u32 % 32, n, k).map_err(words)?;
        found += kernel.kernel().problem.shape.m;
        Ok(())
    })?);
    let launch = |stream: &Stream, set: usize| -> Result<(), String> {
        let kernel = kernels.for_problem(SHAPE.m, n, k).map_err(words)?;
        kernel.launch(stream, &sets[set].args(&[])).map(drop).map_err(words)
    };
    costs.push(cost("look-up and launch, one stream", &own, reps, |_| launch(&own, 0))?);
    costs.push(cost("look-up and launch, 16 sets of buffers by turns", &own, reps, |number| {
        launch(&own, number % SETS)
    })?);
    // From here on there are several streams, and order between them.
    let other = device.new_stream().map_err(words)?;
    costs.push(cost("look-up and launch, one of several streams", &other, reps, |_| launch(&other, 0))?);
    costs.push(cost(
        "the same buffers on two streams by turns, each waiting for the other",
        &other,
        reps,
        |number| launch(if number % 2 == 0 { &other } else { &own }, 0),
    )?);
    let streams = [device.new_stream().map_err(words)?, device.new_stream().map_err(words)?];
    costs.push(cost("two streams by turns, sets of their own", &streams[0], reps, |number| {
        launch(&streams[number % 2], 1 + number % 2)
    })?);
    if let Some(path) = json {
        let text = serde_json::to_string_pretty(&costs).map_err(words)?;
        std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(found > 0)
}
