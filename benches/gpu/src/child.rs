//! A child process: one problem, its kernels, one context of the driver. What it finds goes line by line to its parent,
//! which starts another one with what is left when this one dies of a kernel.

use crate::compare::{self, Errors};
use crate::inputs;
use crate::job::{self, Job};
use crate::raw::{self, Raw, Value};
use crate::reference;
use crate::row::{Machine, Message, Row, Status};
use crate::timing::{Captured, median, quantile};
use cudarc::driver::{CudaStream, sys};
use silumin_codegen::problem::{Formats, Shape};
use silumin_codegen::spec::Spec;
use silumin_runtime::device::{Buffer, Device, Stream};
use silumin_runtime::gemm::{Args, DeviceOperands, DualGemm, GateVectors, LoadedKernel};
use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

const READ: &str = include_str!("../read.ptx");
/// Bytes that are read to measure bandwidth; an emulated device gets less.
const READ_BYTES: usize = 4 << 30;
const READ_THREADS: usize = 512;
/// The peers' script has as many sets of operands as take about this many bytes, and no less than 2, no more than 16.
const SET_BYTES: f64 = 200e6;

/// Says something to the parent.
pub fn say(message: &Message) {
    // A parent that is gone hears nothing, and the child ends with its job.
    if let Ok(text) = serde_json::to_string(message) {
        let mut out = std::io::stdout().lock();
        let _ = writeln!(out, "{text}");
        let _ = out.flush();
    }
}

/// Text of any error.
fn words(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// The problem on the device: operands in several sets, and what C should be.
struct Problem {
    device: Device,
    stream: Stream,
    cuda: Arc<CudaStream>,
    shape: Shape,
    formats: Formats,
    sets: Vec<DeviceOperands>,
    vectors: Vec<(String, Buffer)>,
    scalars: Vec<(String, f32)>,
    want: Vec<f64>,
    limit: f64,
}

/// A kernel that is right.
struct Ready {
    number: usize,
    row: Row,
    kernel: LoadedKernel,
}

/// Does a job; an error is one of the whole job.
pub fn run(job: &Job) -> Result<(), String> {
    let device = Device::cuda(job.device).map_err(words)?;
    let stream = open(&device)?;
    let cuda = stream.cuda().ok_or("the device is no GPU")?.clone();
    if job.bandwidth {
        say(&Message::Machine(machine(&device, &cuda)?));
    }
    let (shape, formats) = (job::shape(&job.shape)?, job::formats(&job.formats)?);
    let mut spec = Spec::new(job.gate.parse().map_err(words)?, &[device.arch()]).map_err(words)?;
    spec.formats = formats;
    let problem = Problem::new(job, device, stream, cuda, shape, &spec)?;
    let mut ready: Vec<Ready> = Vec::new();
    let mut hashes: Vec<(String, String)> = Vec::new();
    for (number, knobs) in &job.kernels {
        let mut row = Row {
            shape: job.shape.clone(),
            m: shape.m,
            n: shape.n,
            k: shape.k,
            format: job.formats.clone(),
            gate: job.gate.clone(),
            device: problem.device.to_string(),
            knobs: knobs.clone(),
            sets: problem.sets.len(),
            reps: job.reps,
            seed: job.seed,
            ..Row::default()
        };
        let checked = problem.check(*number, &spec, knobs, &mut row, &mut hashes);
        match checked {
            Ok(Some(kernel)) if !job.check_only => {
                let kernel = Ready { number: *number, row, kernel };
                match job.interleave {
                    true => ready.push(kernel),
                    false => problem.time(job, vec![kernel])?,
                }
            }
            Ok(_) => say(&Message::Row(*number, Box::new(row))),
            Err(why) => {
                row.why = Some(why);
                say(&Message::Row(*number, Box::new(row)));
                // After a kernel that failed the context may be beyond use: another child does the rest.
                if problem.cuda.synchronize().is_err() {
                    return Err("the context is lost".to_owned());
                }
            }
        }
    }
    if !ready.is_empty() {
        problem.time(job, ready)?;
    }
    say(&Message::Done);
    Ok(())
}

/// A stream to capture from. cudarc's own order between streams is by events, which a capture has no place for: there is one
/// stream for kernels, and whoever copies waits for it.
fn open(device: &Device) -> Result<Stream, String> {
    let own = device.stream();
    let cuda = own.cuda().ok_or("the device is no GPU")?;
    // SAFETY: all work on memory is on one stream, or waited for before another one has it.
    unsafe { cuda.context().disable_event_tracking() };
    device.new_stream().map_err(words)
}

/// Measures how fast the device reads.
fn machine(device: &Device, cuda: &Arc<CudaStream>) -> Result<Machine, String> {
    use sys::CUdevice_attribute as Attribute;
    let attribute = |which| raw::device_attribute(cuda, which).unwrap_or(0);
    let sms = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    let l2_bytes = attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
    // An emulated device says nothing of its L2, and is slow.
    let (bytes, ctas) = if l2_bytes == 0 { (1 << 17, 2) } else { (READ_BYTES, sms.max(1) as usize * 4) };
    let turn = ctas * READ_THREADS * 16 * 4;
    let bytes = bytes / turn * turn;
    let source = device.alloc(bytes).map_err(words)?;
    let sink = device.alloc(16).map_err(words)?;
    let [from, to] = [&source, &sink].map(|buffer| buffer.cuda_address().unwrap_or(0));
    device.stream().synchronize().map_err(words)?;
    let kernel = Raw::load(cuda, READ, "read_all")?;
    // SAFETY: the buffer is so long.
    unsafe { raw::fill(cuda, from, 1, bytes)? };
    let captured = Captured::new(cuda, 1, 10.0, |_| {
        let mut values = [Value::U64(from), Value::U64(to), Value::U64(bytes as u64 / 16)];
        // SAFETY: these are its parameters; the grid's threads read four vectors in each turn, and the buffer is whole turns.
        unsafe { kernel.launch([ctas as u32, 1], READ_THREADS as u32, &mut values) }
    })?;
    let us = median(&captured.times(21)?);
    Ok(Machine {
        device: device.to_string(),
        arch: device.arch().to_string(),
        sms,
        l2_bytes,
        read_gbytes: bytes as f64 / us / 1e3,
    })
}

impl Problem {
    fn new(
        job: &Job,
        device: Device,
        stream: Stream,
        cuda: Arc<CudaStream>,
        shape: Shape,
        spec: &Spec,
    ) -> Result<Self, String> {
        let inputs = inputs::draw(shape, spec.formats, &job.inputs, job.seed)?;
        let mut operands = DeviceOperands::upload(&device, &inputs).map_err(words)?;
        let want = reference::expected(&device, &cuda, spec, &inputs, &operands, &job.scalars)?;
        if spec.formats.c.has_tensor_scale() {
            let most = want
                .iter()
                .filter(|value| value.is_finite())
                .fold(0.0f64, |most, value| most.max(value.abs()));
            let scale = (most / (6.0 * 448.0)) as f32;
            operands.c_scale = Some(if scale.is_normal() { scale } else { 1.0 });
        }
        let drawn = GateVectors::draw(&spec.gate.expr.vectors(), shape, job.seed);
        let vectors = drawn.upload(&device).map_err(words)?;
        let bytes: usize = inputs_of(&operands).iter().map(|buffer| buffer.len()).sum();
        let count = if job.check_only { 1 } else { ((SET_BYTES / bytes as f64) as usize + 1).clamp(2, 16) };
        let mut sets = vec![operands];
        while sets.len() < count {
            sets.push(copied(&cuda, &sets[0])?);
        }
        device.stream().synchronize().map_err(words)?;
        cuda.synchronize().map_err(|e| raw::said("cuStreamSynchronize", e))?;
        let scalars = job.scalars.clone();
        let formats = spec.formats;
        let limit = job.limit.unwrap_or_else(|| compare::limit(&formats, &want));
        Ok(Problem { device, stream, cuda, shape, formats, sets, vectors, scalars, want, limit })
    }

    fn launch(&self, kernel: &LoadedKernel, set: usize) -> Result<(), String> {
        let scalars: Vec<(&str, f32)> =
            self.scalars.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        let vectors: Vec<_> = self.vectors.iter().map(|(name, buffer)| (name.as_str(), buffer)).collect();
        let args = Args { vectors: &vectors, ..self.sets[set].args(&scalars) };
        kernel.launch(&self.stream, &args).map(drop).map_err(words)
    }

    fn synchronize(&self) -> Result<(), String> {
        self.cuda.synchronize().map_err(|e| raw::said("the launch", e))
    }

    /// Has outputs hold what no kernel writes.
    fn poison(&self) -> Result<(), String> {
        for set in &self.sets {
            for buffer in outputs_of(set) {
                let address = buffer.cuda_address().unwrap_or(0);
                // SAFETY: the buffer is so long.
                unsafe { raw::fill(&self.cuda, address, compare::POISON, buffer.len())? };
            }
        }
        Ok(())
    }

    /// Compares C of a set with what it should be.
    fn compare(&self, set: usize) -> Result<Errors, String> {
        let operands = &self.sets[set];
        let errors = match self.formats.c.scales() {
            None => {
                let bytes = operands.c.download().map_err(words)?;
                compare::compare(&self.formats, self.limit, &bytes, None, &self.want)
            }
            Some(_) => {
                let output = operands.output().map_err(words)?;
                let values = output.decode();
                let unwritten = output.scales().iter().filter(|byte| **byte == compare::POISON).count();
                let errors = compare::compare(&self.formats, self.limit, &[], Some(&values), &self.want);
                Errors { unwritten: unwritten as u64, ..errors }
            }
        };
        Ok(errors)
    }

    /// Makes a kernel, loads it, and runs it once; the kernel, where it is right.
    fn check(
        &self,
        number: usize,
        spec: &Spec,
        knobs: &str,
        row: &mut Row,
        hashes: &mut Vec<(String, String)>,
    ) -> Result<Option<LoadedKernel>, String> {
        let mut spec = spec.clone();
        say(&Message::At(number, "emitting".to_owned()));
        spec.config = match job::config(knobs) {
            Ok(config) => config,
            Err(why) => {
                (row.status, row.why) = (Status::Illegal, Some(why));
                return Ok(None);
            }
        };
        let arch = self.device.arch();
        let started = Instant::now();
        let kernel = match spec.kernel(self.shape, arch) {
            Ok(kernel) => kernel,
            Err(why) => {
                (row.status, row.why) = (Status::Illegal, Some(words(why)));
                return Ok(None);
            }
        };
        row.emit_ms = Some(started.elapsed().as_secs_f64() * 1e3);
        if let Ok(plan) = spec.plan(self.shape, arch) {
            row.plan = plan.config.to_string();
        }
        row.hash = kernel.hash_hex();
        if let Some((_, first)) = hashes.iter().find(|(hash, _)| *hash == row.hash) {
            (row.status, row.why) = (Status::Duplicate, Some(format!("the same as `{first}`")));
            return Ok(None);
        }
        hashes.push((row.hash.clone(), knobs.to_owned()));
        row.launches = kernel.launches.len();
        row.smem_bytes = kernel.launches.iter().map(|launch| launch.dynamic_smem).max().unwrap_or(0);
        row.ctas = kernel.launches.first().map_or(0, |launch| launch.grid.iter().product());
        say(&Message::At(number, "loading".to_owned()));
        let started = Instant::now();
        let loaded = DualGemm::new(spec).load(&self.device, self.shape).map_err(words)?;
        row.load_ms = Some(started.elapsed().as_secs_f64() * 1e3);
        let most = |which| loaded.cuda_functions().iter().filter_map(|f| raw::attribute(*f, which)).max();
        row.registers = most(sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_NUM_REGS);
        row.local_bytes = most(sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
        say(&Message::At(number, "checking".to_owned()));
        self.poison()?;
        self.launch(&loaded, 0)?;
        self.synchronize()?;
        let errors = self.compare(0)?;
        row.status = if errors.pass() { Status::Ok } else { Status::Wrong };
        row.error = Some(errors);
        Ok((row.status == Status::Ok).then_some(loaded))
    }

    /// Times kernels in turns, then looks at what they left behind.
    fn time(&self, job: &Job, mut kernels: Vec<Ready>) -> Result<(), String> {
        let lost = |number: usize, why: String| {
            say(&Message::At(number, why.clone()));
            why
        };
        let mut graphs = Vec::new();
        for ready in &mut kernels {
            say(&Message::At(ready.number, "capturing".to_owned()));
            self.poison().map_err(|e| lost(ready.number, e))?;
            let launch = |set| self.launch(&ready.kernel, set);
            let graph = Captured::new(&self.cuda, self.sets.len(), job.graph_ms, launch)
                .map_err(|e| lost(ready.number, e))?;
            ready.row.calls = graph.calls;
            graphs.push((graph, Vec::with_capacity(job.reps)));
        }
        for turn in 0..job.reps {
            for step in 0..graphs.len() {
                // The order turns too, so that none always runs behind the same one.
                let place = (turn + step) % graphs.len();
                if step == 0 || turn == 0 {
                    say(&Message::At(kernels[place].number, "timing".to_owned()));
                }
                let (graph, times) = &mut graphs[place];
                times.push(graph.time().map_err(|e| lost(kernels[place].number, e))?);
            }
        }
        let first = graphs.first().map(|(_, times)| times.clone()).unwrap_or_default();
        let several = graphs.len() > 1;
        for (ready, (graph, times)) in kernels.into_iter().zip(&graphs) {
            let Ready { number, mut row, .. } = ready;
            let us = median(times);
            row.us = Some(us);
            (row.us_min, row.us_max) = (Some(quantile(times, 0.0)), Some(quantile(times, 1.0)));
            let problem = silumin_codegen::problem::Problem { shape: self.shape, formats: self.formats };
            row.tflops = Some(self.shape.operations() / us / 1e6);
            row.gbytes = Some(problem.compulsory_bytes() as f64 / us / 1e3);
            if several {
                let ratios: Vec<f64> = times.iter().zip(&first).map(|(time, first)| time / first).collect();
                row.ratio = Some(median(&ratios));
                row.ratio_spread = Some([quantile(&ratios, 0.1), quantile(&ratios, 0.9)]);
            }
            // Launches that overlap or follow each other closely may be wrong where a lone one is not: all sets once more.
            say(&Message::At(number, "checking replays".to_owned()));
            self.poison().map_err(|e| lost(number, e))?;
            graph.time().map_err(|e| lost(number, e))?;
            for set in 0..self.sets.len() {
                let errors = self.compare(set)?;
                if !errors.pass() {
                    row.status = Status::Wrong;
                    row.why = Some(format!("right alone, wrong in a graph: set {set}"));
                    row.error = Some(errors);
                    break;
                }
            }
            say(&Message::Row(number, Box::new(row)));
        }
        Ok(())
    }
}

/// Tensors that a kernel reads.
fn inputs_of(operands: &DeviceOperands) -> Vec<&Buffer> {
    let scales = [&operands.sfa, &operands.sfb1, &operands.sfb2];
    [&operands.a, &operands.b1, &operands.b2].into_iter().chain(scales.into_iter().flatten()).collect()
}

/// Tensors that a kernel writes.
fn outputs_of(operands: &DeviceOperands) -> Vec<&Buffer> {
    let optional = [&operands.sfc, &operands.d1, &operands.d2];
    std::iter::once(&operands.c).chain(optional.into_iter().flatten()).collect()
}

/// Another set of operands with the same contents, in memory of its own.
fn copied(cuda: &CudaStream, from: &DeviceOperands) -> Result<DeviceOperands, String> {
    let copy = |buffer: &Buffer| -> Result<Buffer, String> {
        let made = buffer.device().alloc(buffer.len()).map_err(words)?;
        buffer.device().stream().synchronize().map_err(words)?;
        let [source, target] = [buffer, &made].map(|buffer| buffer.cuda_address().unwrap_or(0));
        // SAFETY: both buffers are so long.
        unsafe { raw::copy(cuda, target, source, buffer.len())? };
        Ok(made)
    };
    let each = |buffer: &Option<Buffer>| buffer.as_ref().map(copy).transpose();
    let mut made = from.clone();
    (made.a, made.b1, made.b2, made.c) = (copy(&from.a)?, copy(&from.b1)?, copy(&from.b2)?, copy(&from.c)?);
    (made.sfa, made.sfb1, made.sfb2) = (each(&from.sfa)?, each(&from.sfb1)?, each(&from.sfb2)?);
    (made.sfc, made.d1, made.d2) = (each(&from.sfc)?, each(&from.d1)?, each(&from.d2)?);
    Ok(made)
}
