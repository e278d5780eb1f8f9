//! The MLP block: on one GPU, and on several that share its weights.
//!
//! Each rank has a thread. A time is that of many calls in a row, each a graph ([`MlpGraph`]), by turns over several copies of
//! the weights so that none is in L2; the slowest rank counts. The share of the sum is what is missing without it.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use serde::Serialize;
use silumin_codegen::problem::{ElementKind, OperandFormat, ScaleFormat};
use silumin_formats::{Matrix, code_bytes, scale_bytes};
use silumin_runtime::communicator::Communicator;
use silumin_runtime::device::{Buffer, Device, Stream};
use silumin_runtime::mlp::{Mlp, MlpGraph, MlpOptions, MlpWeights};
use silumin_runtime::warmup::Buckets;
use silumin_runtime::weights::{GateUp, Weight};
use silumin_verify::block::relative_error;
use std::path::Path;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use crate::job;
use crate::mlp_check::{Host, reference, values};
use crate::timing::median;

/// Copies of the weights.
const LAYERS: usize = 4;
/// Turns that are timed.
const TURNS: usize = 9;
/// Calls of a turn: as many as take about this long.
const TURN: Duration = Duration::from_millis(20);
/// Most calls of a turn.
const MOST: u64 = 2000;
/// Seed of the weights.
const SEED: u64 = 7;
/// How long a rank waits for others, and for one that does not come.
const LIMIT: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_secs(2);
/// Largest relative norm of a difference, to f64 or to one GPU. Parts, the middle and the result are rounded to bf16 or quantised.
const BAR: f64 = 6e-3;

/// What is measured.
pub struct Request<'a> {
    /// Number of GPUs.
    pub ranks: usize,
    /// Blocks, `HIDDENxFEATURES`, separated by commas.
    pub blocks: &'a str,
    /// Formats of the weights, separated by commas.
    pub formats: &'a str,
    /// Numbers of tokens, separated by commas.
    pub tokens: &'a str,
    /// Rows that kernels are made for, separated by commas: those of the tokens if nothing is said.
    pub buckets: Option<&'a str>,
    /// Calls that are compared with the first.
    pub forwards: u64,
    /// File for the rows.
    pub json: Option<&'a Path>,
}

/// A block with a number of tokens.
#[derive(Clone, Debug, Serialize)]
struct Row {
    hidden: usize,
    features: usize,
    weights: String,
    tokens: u32,
    /// Rows of the kernels.
    bucket: u32,
    ranks: usize,
    /// Microseconds a call: one GPU, all, all without the sum.
    one_us: f64,
    all_us: Option<f64>,
    without_sum_us: Option<f64>,
    /// Norm of (result - f64) over the norm of f64: first and last token.
    error: f64,
    /// Norm of (several GPUs - one GPU) over the norm of one GPU: all tokens, the worst rank.
    difference: Option<f64>,
}

#[derive(Serialize)]
struct Report {
    device: String,
    rows: Vec<Row>,
    /// Calls whose results were compared with the first, bit for bit.
    forwards: u64,
    /// What a rank says of one that does not come, and of one that left.
    late: String,
    left: String,
}

pub fn words(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl Host {
    /// Weights in a format, by a seed.
    ///
    /// # Errors
    /// Widths that the format does not have.
    pub fn new(format: OperandFormat, hidden: usize, features: usize, seed: u64) -> Result<Host, String> {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut draw = |rows: usize, k: usize| {
            let mut codes = vec![0u8; code_bytes(format, rows * k)];
            random.fill_bytes(&mut codes);
            let spec = format.spec();
            if spec.element_bits == 16 {
                // Magnitudes from 2^-7 to 2^-5, either sign: bf16 has its exponent in bits 7 to 14.
                for pair in codes.as_chunks_mut::<2>().0 {
                    let bits = u16::from_le_bytes(*pair);
                    *pair = (bits & 0x80FF | 0x3C00).to_le_bytes();
                }
            }
            if spec.element == ElementKind::E4m3 {
                // Magnitudes from 2^-5 to 2^-3, either sign: some codes are NaN.
                codes.iter_mut().for_each(|code| *code = *code & 0x8F | 0x10);
            }
            // Scale factors from 0.5 to 1, times 1/64. Checkpoints with f32 factors have no scale of the whole tensor beside them.
            let mut scales = vec![0u8; scale_bytes(format, rows, k)];
            random.fill_bytes(&mut scales);
            let tensor_scale = match spec.scales.map(|scales| scales.format) {
                None => 1.0,
                Some(ScaleFormat::F32) => {
                    for factor in scales.as_chunks_mut::<4>().0 {
                        *factor = ((0.5 + f32::from(factor[0]) / 512.0) / 64.0).to_le_bytes();
                    }
                    1.0
                }
                Some(ScaleFormat::Byte(_)) => {
                    scales.iter_mut().for_each(|scale| *scale = *scale & 7 | 0x30);
                    1.0 / 64.0
                }
            };
            Matrix::new(format, rows, k, codes, scales, tensor_scale).map_err(words)
        };
        Ok(Host { gate: draw(features, hidden)?, up: draw(features, hidden)?, down: draw(hidden, features)? })
    }

    /// The weights of a block.
    ///
    /// # Errors
    /// Scale factors that are none.
    pub fn weights(&self) -> Result<MlpWeights<'_>, String> {
        let gate_up =
            GateUp::new(Weight::of(&self.gate).map_err(words)?, Weight::of(&self.up).map_err(words)?);
        MlpWeights::new(gate_up.map_err(words)?, Weight::of(&self.down).map_err(words)?).map_err(words)
    }
}

/// A seed, and the size of numbers.
pub type Draw = (u64, f64);
/// x.
const X: Draw = (1, 1.0);
/// What is added: small, so that the result is more than that.
const RESIDUAL: Draw = (2, 1.0 / 64.0);

/// Numbers in bf16, normal ones nearly.
pub fn numbers(count: usize, (seed, size): Draw) -> Vec<u8> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut sum =
        || (0..4).map(|_| f64::from(random.next_u32()) / f64::from(u32::MAX) - 0.5).sum::<f64>() * 1.7;
    (0..count).flat_map(|_| half::bf16::from_f64(size * sum()).to_le_bytes()).collect()
}

/// How far the first and the last token's results are from f64.
fn error(mlp: &Mlp, host: &Host, tokens: usize, result: &[u8]) -> Result<f64, String> {
    let ends = |bytes: &[u8]| {
        let row = 2 * mlp.hidden();
        let last = if tokens > 1 { &bytes[(tokens - 1) * row..tokens * row] } else { &[][..] };
        [&bytes[..row], last].concat()
    };
    let [x, residual] = [X, RESIDUAL].map(|draw| ends(&numbers(tokens * mlp.hidden(), draw)));
    let expected = reference(mlp, host, &x, &residual)?;
    Ok(relative_error(&values(&ends(result)), &expected))
}

/// A device's calls for one number of tokens: a graph for each copy of the weights.
struct Calls {
    graphs: Vec<MlpGraph>,
    stream: Stream,
    out: Buffer,
    bytes: usize,
}

impl Calls {
    fn new(layers: &[Mlp], tokens: u32) -> Result<Calls, String> {
        let first = layers.first().ok_or("no layers")?;
        let (device, rows) = (first.device(), first.rows(tokens).map_err(words)? as usize);
        let stream = device.new_stream().map_err(words)?;
        let upload = |bytes: &[u8]| device.upload(bytes).map_err(words);
        let x = upload(&numbers(tokens as usize * first.hidden(), X))?;
        let residual = upload(&numbers(rows * first.hidden(), RESIDUAL))?;
        let out = upload(&vec![0; rows * first.row_bytes()])?;
        let record = |mlp: &Mlp| mlp.record(&stream, tokens, &x, Some(&residual), &out).map_err(words);
        let graphs = layers.iter().map(record).collect::<Result<_, _>>()?;
        Ok(Calls { graphs, stream, out, bytes: tokens as usize * first.row_bytes() })
    }

    fn wait(&self) -> Result<(), String> {
        match self.graphs.first().and_then(|graph| graph.mlp().communicator()) {
            Some(communicator) => communicator.wait(&self.stream).map_err(words),
            None => self.stream.synchronize().map_err(words),
        }
    }

    fn result(&self) -> Result<Vec<u8>, String> {
        self.out.slice(0, self.bytes).and_then(|out| out.download()).map_err(words)
    }

    /// Runs the first copy once.
    fn once(&self) -> Result<Vec<u8>, String> {
        self.graphs.first().ok_or("no graph")?.launch().map_err(words)?;
        self.wait()?;
        self.result()
    }

    /// Seconds for so many calls.
    fn time(&self, calls: u64) -> Result<f64, String> {
        self.wait()?;
        let start = Instant::now();
        for graph in self.graphs.iter().cycle().take(calls as usize) {
            graph.launch().map_err(words)?;
        }
        self.wait()?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// Calls that take about a turn.
    fn turn(&self) -> Result<u64, String> {
        self.time(LAYERS as u64)?;
        let one = self.time(4 * LAYERS as u64)? / (4 * LAYERS) as f64;
        Ok(((TURN.as_secs_f64() / one.max(1e-7)) as u64).clamp(LAYERS as u64, MOST))
    }

    /// Microseconds a call in each turn.
    fn turns(&self, calls: u64, meet: impl Fn()) -> Result<Vec<f64>, String> {
        let turn = |_| {
            meet();
            Ok(self.time(calls)? * 1e6 / calls as f64)
        };
        (0..TURNS).map(turn).collect()
    }
}

/// What a rank measured for one number of tokens.
struct Measured {
    all: Vec<f64>,
    result: Vec<u8>,
}

/// Runs `one` for each rank in a thread of its own.
fn on_ranks<T: Send>(
    group: &[Communicator],
    one: impl Fn(&Communicator) -> Result<T, String> + Sync,
) -> Result<Vec<T>, String> {
    std::thread::scope(|scope| {
        let one = &one;
        let threads: Vec<_> = group.iter().map(|rank| scope.spawn(move || one(rank))).collect();
        let joined =
            threads.into_iter().map(|thread| thread.join().map_err(|_| "a rank panicked".to_owned())?);
        joined.collect()
    })
}

fn block(text: &str) -> Result<(usize, usize), String> {
    let sizes = text.trim().split_once('x').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    sizes.ok_or_else(|| format!("--mlp: `{text}` is not HIDDENxFEATURES, such as 4096x14336"))
}

/// The parts of a list, separated by commas.
///
/// # Errors
/// What `one` says of a part.
pub fn list<T>(text: &str, one: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>, String> {
    text.split(',').map(|text| one(text.trim())).collect()
}

/// Measures all blocks; `true` if everything was right.
pub fn run(request: &Request<'_>) -> Result<bool, String> {
    let tokens = list(request.tokens, |text| {
        text.parse::<u32>().map_err(|_| format!("--tokens: `{text}` is no number"))
    })?;
    let buckets = match request.buckets {
        None => tokens.clone(),
        Some(text) => {
            list(text, |text| text.parse::<u32>().map_err(|_| format!("--buckets: `{text}` is no number")))?
        }
    };
    let blocks = list(request.blocks, block)?;
    let formats = list(request.formats, |text| Ok(job::formats(text)?.b))?;
    let devices: Vec<Device> = (0..request.ranks.max(1))
        .map(|number| Device::cuda(number).map_err(words))
        .collect::<Result<_, _>>()?;
    let mut report = Report {
        device: devices[0].to_string(),
        rows: Vec::new(),
        forwards: 0,
        late: String::new(),
        left: String::new(),
    };
    let mut right = true;
    println!(
        "| block | weights | tokens | bucket | one GPU, us | {} GPUs, us | ratio | share of the sum | error | difference |",
        devices.len()
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for (hidden, features) in blocks {
        for format in &formats {
            let host = Host::new(*format, hidden, features, SEED)?;
            let rows = measure(&devices, &host, *format, [&tokens, &buckets])?;
            right &= rows.iter().all(|row| row.error < BAR && row.difference.is_none_or(|off| off < BAR));
            rows.iter().for_each(show);
            report.rows.extend(rows);
        }
    }
    if devices.len() > 1 {
        report.forwards = forwards(&devices, request.forwards)?;
        println!(
            "{} calls on {} GPUs gave the first one's result, bit for bit",
            report.forwards,
            devices.len()
        );
        (report.late, report.left) = missing(&devices)?;
        println!("a rank that does not come: {}\na rank that left: {}", report.late, report.left);
        right &= report.late.contains("rank 1") && report.left.contains("rank 1");
    }
    if let Some(path) = request.json {
        let text = serde_json::to_string_pretty(&report).map_err(words)?;
        std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(right)
}

fn show(row: &Row) {
    let or = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let share = row
        .all_us
        .zip(row.without_sum_us)
        .map(|(all, without)| format!("{:.0} %", 100.0 * (1.0 - without / all)));
    println!(
        "| {} x {} | {} | {} | {} | {:.1} | {} | {} | {} | {:.1e} | {} |",
        row.hidden,
        row.features,
        row.weights,
        row.tokens,
        row.bucket,
        row.one_us,
        or(row.all_us.map(|us| format!("{us:.1}"))),
        or(row.all_us.map(|us| format!("{:.2}", us / row.one_us))),
        or(share),
        row.error,
        or(row.difference.map(|difference| format!("{difference:.1e}"))),
    );
}

/// All numbers of tokens of a block.
fn measure(
    devices: &[Device],
    host: &Host,
    format: OperandFormat,
    [tokens, buckets]: [&[u32]; 2],
) -> Result<Vec<Row>, String> {
    let options = MlpOptions::new(Buckets::new(buckets.iter().copied()).map_err(words)?);
    let weights = host.weights()?;
    let layers =
        |load: &dyn Fn() -> Result<Mlp, String>| (0..LAYERS).map(|_| load()).collect::<Result<Vec<_>, _>>();
    let whole = layers(&|| Mlp::load(&devices[0], &weights, &options).map_err(words))?;
    let mut rows = Vec::new();
    let mut results = Vec::new();
    for &tokens in tokens {
        let calls = Calls::new(&whole, tokens)?;
        results.push(calls.once()?);
        let one_us = median(&calls.turns(calls.turn()?, || {})?);
        let error = error(&whole[0], host, tokens as usize, &results[results.len() - 1])?;
        let (hidden, features, weights) = (weights.hidden(), weights.features(), format.to_string());
        let (ranks, all_us, without_sum_us, difference) = (devices.len(), None, None, None);
        rows.push(Row {
            hidden,
            features,
            weights,
            tokens,
            bucket: whole[0].rows(tokens).map_err(words)?,
            ranks,
            one_us,
            all_us,
            without_sum_us,
            error,
            difference,
        });
    }
    drop(whole);
    if devices.len() == 1 {
        return Ok(rows);
    }
    let group = Communicator::all_within(devices, LIMIT).map_err(words)?;
    let barrier = Barrier::new(group.len());
    let measured = on_ranks(&group, |rank| {
        let layers = layers(&|| Mlp::load_shard(rank, &weights, &options).map_err(words))?;
        let meet = || {
            barrier.wait();
        };
        let one = |tokens: &u32| {
            let calls = Calls::new(&layers, *tokens)?;
            let result = calls.once()?;
            // All ranks make the same number of calls.
            let turn = (2 * LAYERS as u64).max(MOST / (*tokens as u64).clamp(4, 250));
            calls.time(turn)?;
            Ok(Measured { all: calls.turns(turn, meet)?, result })
        };
        tokens.iter().map(one).collect::<Result<Vec<Measured>, String>>()
    })?;
    drop(group);
    // A rank's part by itself, without the sum.
    let shard = weights.shard(0, devices.len()).map_err(words)?;
    let part = shard.weights().map_err(words)?;
    let parts = layers(&|| Mlp::load(&devices[0], &part, &options).map_err(words))?;
    for (number, row) in rows.iter_mut().enumerate() {
        let ranks: Vec<&Measured> = measured.iter().map(|rank| &rank[number]).collect();
        let slowest = (0..TURNS).map(|turn| ranks.iter().map(|rank| rank.all[turn]).fold(0.0, f64::max));
        row.all_us = Some(median(&slowest.collect::<Vec<_>>()));
        let one = values(&results[number]);
        let offs = ranks.iter().map(|rank| relative_error(&values(&rank.result), &one));
        // A NaN is no small difference: `f64::max` would drop it.
        let worst =
            offs.fold(0.0, |worst: f64, off| if off.is_nan() { f64::INFINITY } else { worst.max(off) });
        row.difference = Some(worst);
        let calls = Calls::new(&parts, row.tokens)?;
        row.without_sum_us = Some(median(&calls.turns(calls.turn()?, || {})?));
    }
    Ok(rows)
}

/// A small block on all devices.
fn small() -> Result<(Host, MlpOptions), String> {
    let options = MlpOptions::new(Buckets::new([16]).map_err(words)?);
    Ok((Host::new(OperandFormat::Bf16, 1024, 4096, SEED)?, options))
}

/// Calls a block again and again; every result is compared with the first, bit for bit. Returns the number of calls.
fn forwards(devices: &[Device], count: u64) -> Result<u64, String> {
    let (host, options) = small()?;
    let weights = host.weights()?;
    let group = Communicator::all_within(devices, LIMIT).map_err(words)?;
    on_ranks(&group, |rank| {
        let mlp = Mlp::load_shard(rank, &weights, &options).map_err(words)?;
        let calls = Calls::new(std::slice::from_ref(&mlp), 16)?;
        let first = calls.once()?;
        for number in 1..count {
            if calls.once()? != first {
                return Err(format!("call {number} differs from the first on rank {}", rank.rank()));
            }
        }
        Ok(())
    })?;
    Ok(count)
}

/// What rank 0 says of a rank 1 that does not come, and of one that has left.
fn missing(devices: &[Device]) -> Result<(String, String), String> {
    let (host, options) = small()?;
    let weights = host.weights()?;
    let said = |leaves: bool| {
        let mut group = Communicator::all_within(devices, SHORT).map_err(words)?;
        let mlp = Mlp::load_shard(&group[0], &weights, &options).map_err(words)?;
        let calls = Calls::new(std::slice::from_ref(&mlp), 16)?;
        if leaves {
            group.truncate(1);
        }
        match calls.once() {
            Ok(_) => Err("a sum ended without rank 1".to_owned()),
            Err(error) => Ok(error),
        }
    };
    Ok((said(false)?, said(true)?))
}
