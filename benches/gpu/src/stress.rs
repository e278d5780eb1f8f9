//! Stress test: many threads, streams and kernels at once, with every result compared, like an inference engine
//! without pauses.
//!
//! Each kernel is first compared alone with the f64 reference. After that its C must not change in any byte, whatever
//! else runs. In a round a thread launches drawn kernels on each of its streams, on operands that all threads share,
//! into its own poisoned memory. In one of four rounds two streams write the same C one after the other, from
//! different operands and without a wait on the host, to test the order between streams. Then the thread waits and
//! compares.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use silumin_codegen::config::Config;
use silumin_codegen::problem::{Formats, OutputFormat, Shape};
use silumin_codegen::spec::Spec;
use silumin_runtime::device::{Buffer, Device, Stream};
use silumin_runtime::gemm::{Args, DeviceOperands, DualGemm, LoadedKernel, expected};
use silumin_runtime::tune::knobs;
use silumin_verify::check::check_output;
use silumin_verify::inputs::{Distribution, DualGemmInputs};
use silumin_verify::reference::Reference;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const THREADS: usize = 8;
const STREAMS: usize = 4;
const KERNELS: usize = 64;
/// Launches per stream in a round.
const LAUNCHES: usize = 4;
/// Configurations for each shape; illegal ones are skipped.
const WAYS: [&str; 5] = [
    "",
    "schedule=persistent sms=24",
    "schedule=stream_k sms=32",
    "schedule=split_k(2)",
    "strategy=two_pass",
];
/// Fill byte of C before a launch.
const POISON: u8 = 0xFF;

/// A kernel, and its C for each of two sets of operands.
struct Job {
    kernel: LoadedKernel,
    shape: Shape,
    expected: [Vec<u8>; 2],
}

/// Formats any error.
fn words(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Shapes of several sizes, some ragged.
fn shapes() -> Vec<Shape> {
    let mut shapes = Vec::new();
    for (n, k) in [(256, 256), (384, 512), (200, 384), (512, 256)] {
        shapes.extend([1, 16, 50, 128, 200].map(|m| Shape::new(m, n, k)));
    }
    shapes
}

/// Operands of a shape, and the expected results.
struct Problem {
    operands: DeviceOperands,
    unwritten: Vec<u8>,
    reference: Reference,
}

type Problems = HashMap<Shape, [Problem; 2]>;

fn problem(device: &Device, spec: &Spec, shape: Shape, seed: u64) -> Result<Problem, String> {
    let drawn = DualGemmInputs::generate_for(shape, spec.formats, Distribution::Benchmark, seed);
    let inputs = drawn.map_err(words)?;
    let operands = DeviceOperands::upload(device, &inputs).map_err(words)?;
    let reference = expected(spec, &inputs, &[]).map_err(words)?;
    Ok(Problem { operands, unwritten: inputs.initial_output_bytes(), reference })
}

/// All kernels, each checked alone.
fn prepare(device: &Device) -> Result<(Vec<Job>, Problems), String> {
    let arch = device.arch();
    let mut spec = Spec::new("silu(A @ B1) * (A @ B2)".parse().map_err(words)?, &[arch]).map_err(words)?;
    spec.formats = Formats { c: OutputFormat::Bf16, ..Formats::usual(arch) };
    let mut problems = Problems::new();
    for shape in shapes() {
        problems.insert(shape, [problem(device, &spec, shape, 0)?, problem(device, &spec, shape, 1)?]);
    }
    let mut jobs = Vec::new();
    for way in WAYS {
        spec.config = knobs(way, &Config::default()).map_err(words)?;
        let gemm = DualGemm::new(spec.clone());
        for shape in shapes() {
            if jobs.len() == KERNELS || gemm.plan(shape, arch).is_err() {
                continue;
            }
            let kernel = gemm.load(device, shape).map_err(words)?;
            let mut expected = [Vec::new(), Vec::new()];
            for (Problem { operands, unwritten, reference }, expected) in
                problems[&shape].iter().zip(&mut expected)
            {
                operands.c.write(unwritten).map_err(words)?;
                kernel.launch(&device.stream(), &operands.args(&[])).map_err(words)?;
                let found = check_output(&operands.output().map_err(words)?, reference).map_err(words)?;
                if !found.pass {
                    return Err(format!("{shape} {way}: wrong when alone: {found}"));
                }
                *expected = operands.c.download().map_err(words)?;
            }
            jobs.push(Job { kernel, shape, expected });
        }
    }
    Ok((jobs, problems))
}

/// State shared by all threads, with counts.
struct Shared<'a> {
    device: &'a Device,
    jobs: &'a [Job],
    problems: &'a Problems,
    stop: AtomicBool,
    launches: AtomicU64,
    wrong: AtomicU64,
}

impl Shared<'_> {
    /// Launches a job on a stream, on one of its sets of operands, into `c`.
    fn launch(&self, job: &Job, set: usize, c: &Buffer, stream: &Stream) -> Result<(), String> {
        let operands = &self.problems[&job.shape][set].operands;
        let args = Args { c, ..operands.args(&[]) };
        self.launches.fetch_add(1, Ordering::Relaxed);
        job.kernel.launch(stream, &args).map(drop).map_err(words)
    }

    /// Runs rounds of one thread until the time is over.
    fn work(&self, thread: usize) -> Result<(), String> {
        let streams: Result<Vec<Stream>, _> = (0..STREAMS).map(|_| self.device.new_stream()).collect();
        let streams = streams.map_err(words)?;
        let mut random = ChaCha8Rng::seed_from_u64(thread as u64);
        let largest = self.jobs.iter().map(|job| job.expected[0].len()).max().unwrap_or(1);
        let poison = vec![POISON; largest];
        // Each stream has an allocation of its own: what shares one is ordered as one, and streams must not wait for each other.
        let room = largest.next_multiple_of(256);
        let all: Result<Vec<Buffer>, _> = (0..STREAMS).map(|_| self.device.alloc(room * LAUNCHES)).collect();
        let all = all.map_err(words)?;
        let places: Result<Vec<Buffer>, _> = (0..STREAMS * LAUNCHES)
            .map(|place| all[place % STREAMS].slice(place / STREAMS * room, largest))
            .collect();
        let places = places.map_err(words)?;
        while !self.stop.load(Ordering::Relaxed) {
            let mut due = Vec::new();
            for (number, place) in places.iter().enumerate() {
                let draw = random.next_u32() as usize;
                let job = &self.jobs[draw % self.jobs.len()];
                let c = place.slice(0, job.expected[0].len()).map_err(words)?;
                c.write(&poison[..c.len()]).map_err(words)?;
                let set = (draw >> 16) & 1;
                let stream = &streams[number % STREAMS];
                if (draw >> 17).is_multiple_of(4) {
                    // The other set first, on another stream: what comes later is what stays.
                    let other = &streams[(number + 1) % STREAMS];
                    self.launch(job, 1 - set, &c, other)?;
                }
                self.launch(job, set, &c, stream)?;
                due.push((job, set, c));
            }
            for (job, set, c) in due {
                // Reading waits for the stream that wrote it, and for no other.
                if c.download().map_err(words)? != job.expected[set] {
                    self.wrong.fetch_add(1, Ordering::Relaxed);
                    println!("WRONG: thread {thread}, {}, set {set}", job.kernel.kernel().name);
                }
            }
        }
        streams.iter().try_for_each(|stream| stream.synchronize().map_err(words))
    }
}

/// Runs the test for `seconds`; `true` if everything was right.
pub fn run(device: usize, seconds: f64) -> Result<bool, String> {
    let device = Device::cuda(device).map_err(words)?;
    let started = Instant::now();
    let (jobs, problems) = prepare(&device)?;
    println!("{device}: {} kernels checked alone in {:.1} s", jobs.len(), started.elapsed().as_secs_f64());
    let shared = Shared {
        device: &device,
        jobs: &jobs,
        problems: &problems,
        stop: AtomicBool::new(false),
        launches: AtomicU64::new(0),
        wrong: AtomicU64::new(0),
    };
    let length = Duration::try_from_secs_f64(seconds).map_err(|e| format!("--stress: {e}"))?;
    let started = Instant::now();
    let results: Vec<Result<(), String>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let shared = &shared;
                scope.spawn(move || shared.work(thread))
            })
            .collect();
        while started.elapsed() < length && threads.iter().any(|thread| !thread.is_finished()) {
            std::thread::sleep(Duration::from_millis(20));
        }
        shared.stop.store(true, Ordering::Relaxed);
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.map(|result| result.unwrap_or_else(|_| Err("a thread panicked".to_owned()))).collect()
    });
    let (launches, wrong) = (shared.launches.load(Ordering::Relaxed), shared.wrong.load(Ordering::Relaxed));
    let took = started.elapsed().as_secs_f64();
    println!(
        "{launches} launches of {} kernels by {THREADS} threads on {STREAMS} streams each in {took:.1} s, {:.0} a second: {wrong} wrong",
        jobs.len(),
        launches as f64 / took
    );
    for failed in results.iter().filter_map(|result| result.as_ref().err()) {
        println!("FAILED: {failed}");
    }
    Ok(wrong == 0 && launches > 0 && results.iter().all(Result::is_ok))
}
