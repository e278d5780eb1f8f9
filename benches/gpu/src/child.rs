//! A child process: one problem, its kernels, one driver context. It reports results line by line to its parent. If a
//! kernel kills it, the parent starts another child with the remaining kernels.

use crate::job::{self, Job};
use crate::machine::{self, Clock};
use crate::problem::{self, Problem};
use crate::raw;
use crate::row::{Message, Row, Status};
use crate::timing::{capture, median, quantile};
use cudarc::driver::sys;
use silumin_codegen::spec::Spec;
use silumin_runtime::device::Device;
use silumin_runtime::gemm::{DualGemm, LoadedKernel};
use silumin_verify::launch_file;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

/// Sends a message to the parent.
pub fn say(message: &Message) {
    // A parent that is gone hears nothing, and the child ends with its job.
    if let Ok(text) = serde_json::to_string(message) {
        let mut out = std::io::stdout().lock();
        let _ = writeln!(out, "{text}");
        let _ = out.flush();
    }
}

/// Reports the current step with a kernel. If the child ends here, that kernel is to blame.
fn at(number: usize, step: &str) {
    say(&Message::At(number, step.to_owned()));
}

/// Formats any error.
fn words(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// A kernel that is being prepared.
struct Candidate {
    number: usize,
    row: Row,
    spec: Spec,
}

/// A loaded kernel.
struct Ready {
    number: usize,
    row: Row,
    kernel: LoadedKernel,
}

impl Ready {
    /// Reports the finished row.
    fn report(self) {
        say(&Message::Row(self.number, Box::new(self.row)));
    }
}

/// Runs a job. An error concerns the whole job.
pub fn run(job: &Job) -> Result<(), String> {
    let device = Device::cuda(job.device).map_err(words)?.with_line_info(job.line_info);
    let stream = problem::open(&device)?;
    let cuda = stream.cuda().ok_or("the device is no GPU")?.clone();
    if job.bandwidth {
        say(&Message::Machine(machine::measure(&device, &stream)?));
    }
    let (shape, formats) = (job::shape(&job.shape)?, job::formats(&job.formats)?);
    let mut spec = Spec::new(job.gate.parse().map_err(words)?, &[device.arch()]).map_err(words)?;
    spec.formats = formats;
    let problem = Problem::new(job, &device, &stream, shape, &spec)?;
    let clock = Clock::new(&cuda)?;
    let mut hashes: Vec<(String, String)> = Vec::new();
    let mut turns: Vec<Ready> = Vec::new();
    for kernels in job.kernels.chunks(job.load_threads.max(1)) {
        let emitted: Vec<_> = kernels
            .iter()
            .filter_map(|(number, knobs)| emit(job, &problem, &spec, *number, knobs, &mut hashes))
            .collect();
        for mut ready in load(&problem, emitted) {
            let checked = check(&problem, &mut ready).and_then(|right| {
                if let (true, Some(folder)) = (right, &job.emit) {
                    ready.row.file = Some(write(job, folder, &ready)?);
                }
                Ok(right)
            });
            match checked {
                Ok(true) if job.check_only => ready.report(),
                Ok(true) if job.interleave => turns.push(ready),
                Ok(true) => time(&problem, job, &clock, vec![ready])?,
                Ok(false) => ready.report(),
                Err(why) => {
                    (ready.row.status, ready.row.why) = (Status::Failed, Some(why));
                    ready.report();
                    // After a kernel that failed the context may be beyond use: another child does the rest.
                    problem.synchronize().map_err(|_| "the context is lost".to_owned())?;
                }
            }
        }
    }
    if !turns.is_empty() {
        time(&problem, job, &clock, turns)?;
    }
    say(&Message::Done);
    Ok(())
}

/// Generates a kernel; `None` if there is nothing to run, which has been reported.
fn emit(
    job: &Job,
    problem: &Problem,
    spec: &Spec,
    number: usize,
    knobs: &str,
    hashes: &mut Vec<(String, String)>,
) -> Option<Candidate> {
    let (shape, arch) = (problem.shape, problem.device.arch());
    let mut row = Row {
        shape: job.shape.clone(),
        m: shape.m,
        n: shape.n,
        k: shape.k,
        format: job.formats.clone(),
        gate: job.gate.clone(),
        device: problem.device.to_string(),
        knobs: knobs.to_owned(),
        sets: problem.sets(),
        reps: job.reps,
        seed: job.seed,
        ..Row::default()
    };
    let mut spec = spec.clone();
    at(number, "emitting");
    let started = Instant::now();
    let made = job::config(knobs).and_then(|config| {
        spec.config = config;
        spec.kernel(shape, arch).map_err(words)
    });
    let (status, why) = match made {
        Err(why) => (Status::Illegal, why),
        Ok(kernel) => {
            row.emit_ms = Some(started.elapsed().as_secs_f64() * 1e3);
            row.plan = spec.plan(shape, arch).map(|plan| plan.config.to_string()).unwrap_or_default();
            row.launches = kernel.launches.len();
            row.smem_bytes = kernel.launches.iter().map(|launch| launch.dynamic_smem).max().unwrap_or(0);
            row.ctas = kernel.launches.first().map_or(0, |launch| launch.grid.iter().product());
            row.hash = kernel.hash_hex();
            match hashes.iter().find(|(hash, _)| *hash == row.hash) {
                Some((_, first)) => (Status::Duplicate, format!("the same as `{first}`")),
                None => {
                    hashes.push((row.hash.clone(), knobs.to_owned()));
                    return Some(Candidate { number, row, spec });
                }
            }
        }
    };
    (row.status, row.why) = (status, Some(why));
    say(&Message::Row(number, Box::new(row)));
    None
}

/// Compiles and loads kernels, one per thread; refused ones have been reported.
fn load(problem: &Problem, candidates: Vec<Candidate>) -> Vec<Ready> {
    let one = |candidate: Candidate| {
        let Candidate { number, mut row, spec } = candidate;
        at(number, "loading");
        let started = Instant::now();
        match DualGemm::new(spec).load(&problem.device, problem.shape) {
            Ok(kernel) => {
                row.load_ms = Some(started.elapsed().as_secs_f64() * 1e3);
                let functions = kernel.cuda_functions();
                let most = |which| functions.iter().filter_map(|f| raw::attribute(*f, which)).max();
                row.registers = most(sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS);
                row.local_bytes = most(sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
                Some(Ready { number, row, kernel })
            }
            Err(why) => {
                row.why = Some(words(why));
                say(&Message::Row(number, Box::new(row)));
                None
            }
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            candidates.into_iter().map(|candidate| scope.spawn(|| one(candidate))).collect();
        threads.into_iter().filter_map(|thread| thread.join().ok().flatten()).collect()
    })
}

/// Runs a kernel once and returns whether its result is right.
fn check(problem: &Problem, ready: &mut Ready) -> Result<bool, String> {
    at(ready.number, "checking");
    problem.poison()?;
    problem.launch(&ready.kernel, 0)?;
    problem.synchronize()?;
    let (name, errors) = problem.judge(&ready.kernel, 0)?;
    let pass = errors.pass();
    ready.row.status = if pass { Status::Ok } else { Status::Wrong };
    ready.row.why = (!pass && name != "C").then(|| format!("{name} is wrong"));
    ready.row.error = Some(errors);
    Ok(pass)
}

/// Writes a kernel's launch file to its own folder, and returns the path.
fn write(job: &Job, folder: &Path, ready: &Ready) -> Result<String, String> {
    let name: String = format!("{}-{}-{}", job.formats, job.shape, ready.number)
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || "-_+".contains(c) { c } else { '_' })
        .collect();
    let scalars: Vec<(&str, f32)> = job.scalars.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    let file =
        launch_file::write(&folder.join(name), ready.kernel.kernel(), None, &scalars).map_err(words)?;
    Ok(file.display().to_string())
}

/// Times kernels in turns, checks their results, and reports them.
fn time(problem: &Problem, job: &Job, clock: &Clock, mut kernels: Vec<Ready>) -> Result<(), String> {
    let cuda = &problem.cuda;
    // What goes wrong from here on may have taken the context along, so that it ends this child.
    let blame = |number: usize| {
        move |why: String| {
            at(number, &why);
            why
        }
    };
    let mut graphs = Vec::new();
    for ready in &mut kernels {
        at(ready.number, "capturing");
        let launch = |set| problem.launch(&ready.kernel, set);
        let graph =
            capture(problem.stream(), problem.sets(), job.graph_ms, launch).map_err(blame(ready.number))?;
        ready.row.calls = graph.launches();
        graphs.push((graph, Vec::with_capacity(job.reps)));
    }
    let marks = clock.marks(&problem.device, cuda, graphs.len() * job.reps)?;
    for turn in 0..job.reps {
        for step in 0..graphs.len() {
            // The order turns too, so that none always runs behind the same one.
            let place = (turn + step) % graphs.len();
            at(kernels[place].number, "timing");
            let (graph, times) = &mut graphs[place];
            let time = marks.around(place * job.reps + turn, || graph.time().map_err(words));
            times.push(time.map_err(blame(kernels[place].number))?);
        }
    }
    let clocks = marks.clocks(cuda).map_err(blame(kernels.first().map_or(0, |ready| ready.number)))?;
    let first = graphs.first().map(|(_, times)| times.clone()).unwrap_or_default();
    let several = graphs.len() > 1;
    for ((mut ready, (graph, times)), clocks) in
        kernels.into_iter().zip(&graphs).zip(clocks.chunks(job.reps.max(1)))
    {
        let whole = ready.kernel.kernel().problem;
        let row = &mut ready.row;
        let us = median(times);
        row.us = Some(us);
        (row.us_min, row.us_max) = (Some(quantile(times, 0.0)), Some(quantile(times, 1.0)));
        row.tflops = Some(whole.operations() / us / 1e6);
        row.gbytes = Some(whole.compulsory_bytes() as f64 / us / 1e3);
        if several {
            let ratios: Vec<f64> = times.iter().zip(&first).map(|(time, first)| time / first).collect();
            row.ratio = Some(median(&ratios));
            row.ratio_spread = Some([quantile(&ratios, 0.1), quantile(&ratios, 0.9)]);
        }
        // Launches that follow each other closely may be wrong where a lone one is not: all sets once more.
        at(ready.number, "checking replays");
        problem.poison().map_err(blame(ready.number))?;
        graph.start().map_err(words).map_err(blame(ready.number))?;
        cuda.synchronize().map_err(|e| raw::said("cuStreamSynchronize", e)).map_err(blame(ready.number))?;
        let clocks: Vec<f64> = clocks.iter().flatten().copied().collect();
        row.mhz = (!clocks.is_empty()).then(|| median(&clocks));
        for set in 0..problem.sets() {
            let (name, errors) = problem.judge(&ready.kernel, set)?;
            if !errors.pass() {
                row.status = Status::Wrong;
                row.why = Some(format!("right alone, wrong in a graph: {name} of set {set}"));
                row.error = Some(errors);
                break;
            }
        }
        ready.report();
    }
    Ok(())
}
