//! The experts of a mixture's layer on one GPU: checked against f64, and timed as graphs.
//!
//! Choices are drawn: each token takes different experts, all equally likely. A time is the mean of many calls in succession.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use serde::Serialize;
use silumin_codegen::problem::OperandFormat;
use silumin_runtime::device::Device;
use silumin_runtime::mlp::{Choices, Experts, ExpertsOptions, ExpertsWeights};
use silumin_runtime::warmup::Buckets;
use silumin_verify::block::relative_error;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::job;
use crate::mlp::{list, numbers, words};
use crate::mlp_check::{Host, values};
use crate::timing::median;

/// Turns that are timed.
const TURNS: usize = 9;
/// How long a turn takes, about.
const TURN: Duration = Duration::from_millis(40);
/// Most calls of a turn.
const MOST: u64 = 2000;
/// Largest relative norm of a difference to f64. Rows are rounded to bf16, and so is their sum.
const BAR: f64 = 6e-3;
/// The same with FP8 activations. A value near the boundary between two e4m3 codes may round either way, and the codes differ
/// by up to 1/8.
const FP8_BAR: f64 = 1.2e-2;

/// What is measured.
pub struct Request<'a> {
    /// Layers, `HIDDENxFEATURESxEXPERTSxTOP_K`, separated by commas.
    pub layers: &'a str,
    /// Formats of the weights, separated by commas.
    pub formats: &'a str,
    /// Numbers of tokens, separated by commas.
    pub tokens: &'a str,
    /// Calls that are compared bit for bit, the first included.
    pub forwards: u64,
    /// File for the rows.
    pub json: Option<&'a Path>,
}

/// A layer with a number of tokens.
#[derive(Clone, Debug, Serialize)]
struct Row {
    hidden: usize,
    features: usize,
    experts: usize,
    top_k: u32,
    weights: String,
    tokens: u32,
    /// Experts that some token chose.
    chosen: usize,
    /// Microseconds a call.
    us: f64,
    /// Bytes of the chosen experts' weights over the time, in 10^12 a second.
    tb_per_s: f64,
    /// Operations over the time, in 10^12 a second.
    tflops: f64,
    /// Norm of (result - f64) over the norm of f64: first and last token.
    error: f64,
    /// Calls that were compared bit for bit, the first included.
    forwards: u64,
}

#[derive(Serialize)]
struct Report {
    device: String,
    rows: Vec<Row>,
}

/// Widths and numbers of a layer.
#[derive(Clone, Copy)]
struct Layer {
    hidden: usize,
    features: usize,
    experts: usize,
    top_k: u32,
}

fn layer(text: &str) -> Result<Layer, String> {
    let wrong =
        || format!("--experts: `{text}` is not HIDDENxFEATURESxEXPERTSxTOP_K, such as 2048x768x128x8");
    let parts: Vec<usize> =
        text.split('x').map(|part| part.parse().map_err(|_| wrong())).collect::<Result<_, _>>()?;
    match parts[..] {
        [hidden, features, experts, top_k] if (1..=experts).contains(&top_k) => {
            Ok(Layer { hidden, features, experts, top_k: top_k as u32 })
        }
        _ => Err(wrong()),
    }
}

/// Different experts for each token, all equally likely, and weights that add up to 1.
fn choices(layer: Layer, tokens: u32) -> (Vec<i32>, Vec<f32>) {
    let mut random = ChaCha8Rng::seed_from_u64(u64::from(tokens));
    let (mut chosen, mut weights) = (Vec::new(), Vec::new());
    for _ in 0..tokens {
        let mut left: Vec<i32> = (0..layer.experts as i32).collect();
        let drawn: Vec<f32> =
            (0..layer.top_k).map(|_| 0.5 + random.next_u32() as f32 / u32::MAX as f32).collect();
        for weight in &drawn {
            let place = (u64::from(random.next_u32()) * left.len() as u64) >> 32;
            chosen.push(left.swap_remove(place as usize));
            weights.push(weight / drawn.iter().sum::<f32>());
        }
    }
    (chosen, weights)
}

/// Measures all layers; `true` if everything was right.
pub fn run(request: &Request<'_>) -> Result<bool, String> {
    let tokens = list(request.tokens, |text| {
        text.parse::<u32>().map_err(|_| format!("--tokens: `{text}` is no number"))
    })?;
    let layers = list(request.layers, layer)?;
    let formats = list(request.formats, |text| Ok(job::formats(text)?.b))?;
    let device = Device::cuda(0).map_err(words)?;
    let mut report = Report { device: device.to_string(), rows: Vec::new() };
    println!("| hidden x features | experts | weights | tokens | us | TB/s | TFLOP/s | error |");
    println!("|---|---|---|---|---|---|---|---|");
    for layer in layers {
        for format in &formats {
            report.rows.extend(measure(&device, layer, *format, &tokens, request.forwards)?);
        }
    }
    if let Some(path) = request.json {
        let text = serde_json::to_string_pretty(&report).map_err(words)?;
        std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    let bar = |row: &Row| if row.weights.starts_with("e4m3") { FP8_BAR } else { BAR };
    Ok(report.rows.iter().all(|row| row.error < bar(row)))
}

/// All numbers of tokens of a layer.
fn measure(
    device: &Device,
    layer: Layer,
    format: OperandFormat,
    tokens: &[u32],
    forwards: u64,
) -> Result<Vec<Row>, String> {
    let Layer { hidden, features, experts: count, top_k } = layer;
    let hosts: Vec<Host> = (0..count as u64)
        .map(|expert| Host::new(format, hidden, features, expert))
        .collect::<Result<_, _>>()?;
    let weights = hosts.iter().map(Host::weights).collect::<Result<_, _>>()?;
    let weights = ExpertsWeights::new(weights).map_err(words)?;
    let options = ExpertsOptions::new(Buckets::new(tokens.iter().copied()).map_err(words)?, top_k);
    let experts = Experts::load(device, &weights, &options).map_err(words)?;
    let bytes = |host: &Host| -> usize {
        [&host.gate, &host.up, &host.down]
            .map(|matrix| matrix.codes().len() + matrix.scales().len())
            .iter()
            .sum()
    };
    let one = hosts.first().map_or(0, bytes);
    let mut rows = Vec::new();
    for &tokens in tokens {
        let stream = device.new_stream().map_err(words)?;
        let upload = |bytes: &[u8]| device.upload(bytes).map_err(words);
        let x_host = numbers(tokens as usize * hidden, (1, 1.0));
        let (chosen, shares) = choices(layer, tokens);
        let x = upload(&x_host)?;
        let numbers = upload(&chosen.iter().flat_map(|expert| expert.to_le_bytes()).collect::<Vec<_>>())?;
        let weights = upload(&shares.iter().flat_map(|weight| weight.to_le_bytes()).collect::<Vec<_>>())?;
        let out = upload(&vec![0; x_host.len()])?;
        let given = Choices { experts: &numbers, weights: &weights };
        let call = experts.record(&stream, tokens, &x, &given, None, &out).map_err(words)?;
        let once = || -> Result<Vec<u8>, String> {
            call.launch().map_err(words)?;
            stream.synchronize().map_err(words)?;
            out.download().map_err(words)
        };
        let first = once()?;
        for number in 1..forwards {
            if once()? != first {
                return Err(format!("call {number} differs from the first"));
            }
        }

        // The first and the last token.
        let (mut got, mut expected) = (Vec::new(), Vec::new());
        for token in [0, tokens as usize - 1] {
            let row = token * 2 * hidden..(token + 1) * 2 * hidden;
            let x: Vec<f32> = values(&x_host[row.clone()]).into_iter().map(|value| value as f32).collect();
            let mut sum = vec![0.0; hidden];
            for choice in token * top_k as usize..(token + 1) * top_k as usize {
                let host = &hosts[chosen[choice] as usize];
                let part = experts.reference(&host.weights()?, &x).map_err(words)?;
                sum.iter_mut().zip(part).for_each(|(sum, part)| *sum += f64::from(shares[choice]) * part);
            }
            expected.extend(sum);
            got.extend(values(&first[row]));
        }

        let time = |calls: u64| -> Result<f64, String> {
            stream.synchronize().map_err(words)?;
            let start = Instant::now();
            for _ in 0..calls {
                call.launch().map_err(words)?;
            }
            stream.synchronize().map_err(words)?;
            Ok(start.elapsed().as_secs_f64() / calls as f64)
        };
        time(3)?;
        let calls = ((TURN.as_secs_f64() / time(10)?.max(1e-7)) as u64).clamp(3, MOST);
        let us = 1e6 * median(&(0..TURNS).map(|_| time(calls)).collect::<Result<Vec<_>, _>>()?);
        let mut of: Vec<i32> = chosen;
        of.sort_unstable();
        of.dedup();
        let operations = 6.0 * f64::from(tokens * top_k) * hidden as f64 * features as f64;
        let row = Row {
            hidden,
            features,
            experts: count,
            top_k,
            weights: format.to_string(),
            tokens,
            chosen: of.len(),
            us,
            tb_per_s: (of.len() * one) as f64 / us / 1e6,
            tflops: operations / us / 1e6,
            error: relative_error(&got, &expected),
            forwards,
        };
        println!(
            "| {hidden} x {features} | {top_k} of {count} | {format} | {tokens} | {us:.1} | {:.2} | {:.0} | {:.1e} |",
            row.tb_per_s, row.tflops, row.error
        );
        rows.push(row);
    }
    Ok(rows)
}
