//! Measures the host's cost of a launch: the time from one call to the next, while the GPU keeps up or its queue has
//! room.

use crate::raw::{Raw, Value, said};
use crate::timing::{median, quantile};
use cudarc::driver::{CudaGraph, CudaStream, result, sys};
use serde::Serialize;
use silumin_codegen::problem::{Formats, Shape};
use silumin_codegen::spec::Spec;
use silumin_runtime::device::{Device, Stream};
use silumin_runtime::gemm::{Args, DeviceOperands, DualGemm};
use silumin_runtime::warmup::Kernels;
use silumin_runtime::warmup::{Buckets, Warmup};
use silumin_verify::inputs::{Distribution, DualGemmInputs};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// An empty kernel, for the driver's own cost of a launch.
const NOTHING: &str = ".version 8.0\n.target sm_90\n.address_size 64\n\
    .visible .entry nothing(.param .u64 unused)\n{\n    ret;\n}\n";
/// A problem that takes a GPU a few microseconds.
const SHAPE: Shape = Shape::new(16, 512, 512);
/// Sets of buffers, used in turn.
const SETS: usize = 16;
/// Batches in a row.
const ROW: usize = 10;
/// Limit on the graphs made for measuring.
const MADE: usize = 250;

/// Time of a call in nanoseconds.
#[derive(Serialize)]
struct Cost {
    what: &'static str,
    median_ns: f64,
    low_ns: f64,
    high_ns: f64,
}

/// Formats any error.
fn words(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Nanoseconds per call in each of `batches` batches of `calls` calls; the stream is idle before each batch.
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

/// Prints the median and the 10 % and 90 % quantiles of times in nanoseconds, and returns them.
fn summed(what: &'static str, times: &[f64]) -> Cost {
    let [low_ns, high_ns] = [0.1, 0.9].map(|share| quantile(times, share));
    let cost = Cost { what, median_ns: median(times), low_ns, high_ns };
    println!("{:8.0} ns ({:.0} to {:.0})  {what}", cost.median_ns, cost.low_ns, cost.high_ns);
    cost
}

/// Measures [`batches`] and prints the result.
fn cost(
    what: &'static str,
    stream: &Stream,
    reps: [usize; 2],
    call: impl FnMut(usize) -> Result<(), String>,
) -> Result<Cost, String> {
    Ok(summed(what, &batches(stream, reps, call)?))
}

/// Measures rows that end when the GPU has finished them, which shows work that starts later on the GPU too.
fn row(
    what: &'static str,
    stream: &Stream,
    [rows, calls]: [usize; 2],
    mut call: impl FnMut(usize) -> Result<(), String>,
) -> Result<Cost, String> {
    let mut times = Vec::with_capacity(rows);
    for _ in 0..rows {
        stream.synchronize().map_err(words)?;
        let start = Instant::now();
        for number in 0..calls {
            call(number)?;
        }
        stream.synchronize().map_err(words)?;
        times.push(start.elapsed().as_secs_f64() * 1e9 / calls as f64);
    }
    Ok(summed(what, &times))
}

/// Cost of a look-up with a launch, and of an empty kernel.
pub struct Launch {
    /// Nanoseconds of a look-up and a launch, for each batch.
    pub batches_ns: Vec<f64>,
    /// Median nanoseconds of launching an empty kernel by the driver's own call.
    pub empty_ns: f64,
}

/// Measures a look-up and a launch on one stream, in batches of `calls`. With `captured` each batch is captured into
/// a graph that is dropped: on the emulated driver a launch returns only after the kernel has run.
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

/// Loads kernels of a gate for the problem, with or without graphs.
fn kernels(device: &Device, knobs: &[(&str, &str)], graphs: bool) -> Result<(DualGemm, Kernels), String> {
    let arch = device.arch();
    let mut spec = Spec::new("silu(A @ B1) * (A @ B2)".parse().map_err(words)?, &[arch]).map_err(words)?;
    spec.formats = Formats::usual(arch);
    for (name, value) in knobs {
        spec.config.set(name, value).map_err(words)?;
    }
    let gemm = DualGemm::new(spec);
    let (n, k) = (SHAPE.n, SHAPE.k);
    let warmup = Warmup::of(&gemm).weights(n, k).weights(n, 2 * k).buckets(Buckets::powers_of_two(32));
    let kernels = warmup.run(&device.clone().with_graphs(graphs)).map_err(words)?;
    Ok((gemm, kernels))
}

/// A graph of one empty kernel.
fn graph_of(nothing: &Raw, stream: &Arc<CudaStream>) -> Result<CudaGraph, String> {
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    stream.begin_capture(mode).map_err(|error| said("cuStreamBeginCapture", error))?;
    // SAFETY: the parameter is its own, and it reads nothing.
    let launched = unsafe { nothing.launch([1, 1], 32, &mut [Value::U64(0)]) };
    let graph = stream.end_capture(sys::CUgraphInstantiate_flags(0));
    launched?;
    graph.map_err(|error| said("cuStreamEndCapture", error))?.ok_or_else(|| "no graph".to_owned())
}

/// Nanoseconds of calls that each have their own arguments, round by round, and the device memory in bytes that the
/// rounds took.
fn rounds(
    stream: &Stream,
    rounds: usize,
    calls: usize,
    mut call: impl FnMut(usize) -> Result<(), String>,
) -> Result<(Vec<Vec<f64>>, u64), String> {
    let free = || result::mem_get_info().map_err(|error| said("cuMemGetInfo", error));
    stream.synchronize().map_err(words)?;
    let before = free()?.0;
    let mut times = Vec::new();
    for _ in 0..rounds {
        let mut round = Vec::with_capacity(calls);
        for number in 0..calls {
            let start = Instant::now();
            call(number)?;
            round.push(start.elapsed().as_secs_f64() * 1e9);
        }
        stream.synchronize().map_err(words)?;
        times.push(round);
    }
    Ok((times, before.saturating_sub(free()?.0) as u64))
}

/// Runs and prints all measurements.
pub fn run(device: usize, calls: usize, reps: usize, json: Option<&Path>) -> Result<bool, String> {
    let device = Device::cuda(device).map_err(words)?;
    let (gemm, with) = kernels(&device, &[], true)?;
    let (_, plain) = kernels(&device, &[], false)?;
    let several = [("strategy", "two_pass")];
    let (three, three_plain) = (kernels(&device, &several, true)?.1, kernels(&device, &several, false)?.1);
    let (n, k) = (SHAPE.n, SHAPE.k);
    let inputs = DualGemmInputs::generate_for(SHAPE, gemm.spec().formats, Distribution::Benchmark, 1)
        .map_err(words)?;
    let sets: Result<Vec<_>, _> = (0..SETS).map(|_| DeviceOperands::upload(&device, &inputs)).collect();
    let sets = sets.map_err(words)?;
    println!(
        "{device}, driver {}, {}: the host's cost of a call, median of {reps} batches of {calls}",
        device.facts().driver,
        gemm.spec().formats
    );
    let own = device.stream();
    let cuda = own.cuda().ok_or("the device is no GPU")?;
    let (long, reps) = ([reps, ROW * calls], [reps, calls]);
    let nothing = Raw::load(cuda, NOTHING, "nothing")?;
    // A stream that buffers know nothing of: the default stream can't be captured.
    let side = cuda.context().new_stream().map_err(|error| said("cuStreamCreate", error))?;
    let beside = Raw::load(&side, NOTHING, "nothing")?;
    let graph = graph_of(&beside, &side)?;
    // SAFETY: the parameter is its own, and it reads nothing.
    let empty = |_| unsafe { nothing.launch([1, 1], 32, &mut [Value::U64(0)]) };
    let replayed = |_| {
        // SAFETY: the graph and the stream are of the bound context, and this is the only thread that has the graph.
        unsafe { result::graph::launch(graph.cu_graph_exec(), cuda.cu_stream()) }
            .map_err(|error| said("cuGraphLaunch", error))
    };
    let mut costs = vec![
        cost("the driver: an empty kernel, cuLaunchKernel", &own, reps, empty)?,
        cost("the driver: a graph of one empty kernel, cuGraphLaunch", &own, reps, replayed)?,
    ];
    let mut found = 0;
    costs.push(cost("look-up of a kernel", &own, reps, |number| {
        let kernel = with.for_problem(1 + number as u32 % 32, n, k).map_err(words)?;
        found += kernel.kernel().problem.shape.m;
        Ok(())
    })?);
    let launch = |kernels: &Kernels, stream: &Stream, args: &Args<'_>| -> Result<(), String> {
        let kernel = kernels.for_problem(SHAPE.m, n, k).map_err(words)?;
        kernel.launch(stream, args).map(drop).map_err(words)
    };
    // What a graph takes to be made, and of the device's memory: C in as many places.
    let places = calls.min(MADE);
    let c = &sets[0].c;
    let room = c.len().next_multiple_of(256);
    let all = device.alloc(room * places).map_err(words)?;
    let slices: Result<Vec<_>, _> = (0..places).map(|place| all.slice(place * room, c.len())).collect();
    let slices = slices.map_err(words)?;
    let (times, bytes) = rounds(&own, 5, places, |place| {
        launch(&with, &own, &Args { c: &slices[place], ..sets[0].args(&[]) })
    })?;
    let names = [
        "first launch with these arguments",
        "the second",
        "the third, which makes the graph",
        "the fourth, the graph's first",
        "the fifth",
    ];
    costs.extend(names.into_iter().zip(&times).map(|(what, times)| summed(what, times)));
    println!("            {places} graphs took {bytes} bytes of the device's memory");

    let one = |kernels, set: usize| launch(kernels, &own, &sets[set].args(&[]));
    costs.push(cost("look-up and launch, one stream", &own, reps, |_| one(&with, 0))?);
    costs.push(cost("look-up and launch, one stream; without graphs", &own, reps, |_| one(&plain, 0))?);
    costs.push(cost("look-up and launch, 16 sets of buffers by turns", &own, reps, |number| {
        one(&with, number % SETS)
    })?);
    costs.push(cost(
        "look-up and launch, 16 sets of buffers by turns; without graphs",
        &own,
        reps,
        |number| one(&plain, number % SETS),
    )?);
    costs.push(cost("look-up and launch of three kernels (two_pass)", &own, reps, |_| one(&three, 0))?);
    costs.push(cost("look-up and launch of three kernels (two_pass); without graphs", &own, reps, |_| {
        one(&three_plain, 0)
    })?);
    println!("a launch in a row of {}, the wait for all of them included", long[1]);
    costs.push(row("in a row: an empty kernel, cuLaunchKernel", &own, long, empty)?);
    costs.push(row("in a row: a graph of one empty kernel, cuGraphLaunch", &own, long, replayed)?);
    costs.push(row("in a row: look-up and launch", &own, long, |_| one(&with, 0))?);
    costs.push(row("in a row: look-up and launch; without graphs", &own, long, |_| one(&plain, 0))?);
    costs.push(row("in a row: look-up and launch, two_pass", &own, long, |_| one(&three, 0))?);
    costs.push(row("in a row: look-up and launch, two_pass; without graphs", &own, long, |_| {
        one(&three_plain, 0)
    })?);

    // From here on there are several streams, and order between them.
    println!("with several streams in use");
    let other = device.new_stream().map_err(words)?;
    let streams = [device.new_stream().map_err(words)?, device.new_stream().map_err(words)?];
    for (kernels, names) in [
        (
            &with,
            [
                "look-up and launch, one of several streams",
                "the same buffers on two streams by turns, each waiting for the other",
                "two streams by turns, sets of their own",
            ],
        ),
        (
            &plain,
            [
                "look-up and launch, one of several streams; without graphs",
                "the same buffers on two streams by turns; without graphs",
                "two streams by turns, sets of their own; without graphs",
            ],
        ),
    ] {
        costs.push(cost(names[0], &other, reps, |_| launch(kernels, &other, &sets[0].args(&[])))?);
        costs.push(cost(names[1], &other, reps, |number| {
            launch(kernels, if number % 2 == 0 { &other } else { &own }, &sets[0].args(&[]))
        })?);
        costs.push(cost(names[2], &streams[0], reps, |number| {
            launch(kernels, &streams[number % 2], &sets[1 + number % 2].args(&[]))
        })?);
    }
    if let Some(path) = json {
        let text = serde_json::to_string_pretty(&costs).map_err(words)?;
        std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(found > 0)
}
