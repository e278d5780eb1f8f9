//! Activations to NVFP4 on a device: right, and how fast.
//!
//! ```text
//! cargo run --release --example quantize                                             # on the emulated device
//! cargo run --release --example quantize -- --device cuda:0 --shapes 1x7168,16x7168,4096x7168,16384x8192
//! ```
//!
//! Every byte is compared with the host's quantiser, and blocked scale factors with the host's layout. Times are medians of
//! launches back to back, the host's work for them included. Exit status: 0 if all bytes are right, 1 if not, 2 for bad input.

// An example talks to people on stdout.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use silumin::formats::layout::to_blocked;
use silumin::formats::quantize::{TensorScale, quantize};
use silumin::runtime::prepare::{Activations, Quantizer, ScaleBlocker, Source};
use silumin::{Arch, Device, Stream};

type Failure = Box<dyn std::error::Error>;

/// Quantises activations on a device.
#[derive(Parser)]
struct Options {
    /// `emulated`, `emulated:sm_90a` or another chip, or `cuda:N`.
    #[arg(long, default_value = "emulated")]
    device: String,
    /// Rows and K of each.
    #[arg(long, value_delimiter = ',', default_values_t = ["3x64".to_owned(), "130x272".to_owned()])]
    shapes: Vec<String>,
}

fn device(text: &str) -> Result<Device, Failure> {
    match text.split_once(':').unwrap_or((text, "")) {
        ("emulated", "") => Ok(Device::emulated(Arch::Sm100a)),
        ("emulated", chip) => Ok(Device::emulated(chip.parse()?)),
        #[cfg(feature = "cuda")]
        ("cuda", ordinal) => Ok(Device::cuda(ordinal.parse()?)?),
        _ => Err(format!("`{text}` is no device: emulated, emulated:sm_90a or cuda:0").into()),
    }
}

/// bf16 patterns of all finite sizes within 2^12 of 1, and zeros.
fn activations(count: usize) -> Vec<half::bf16> {
    let pattern = |i: usize| {
        let hash = (i as u32).wrapping_mul(2_654_435_761) ^ (i >> 16) as u32;
        let code = 0x3980 + (hash >> 20) as u16 % 0x0C00;
        if hash.is_multiple_of(61) { 0 } else { code | ((hash as u16 & 1) << 15) }
    };
    (0..count).map(|i| half::bf16::from_bits(pattern(i))).collect()
}

/// The median time of a launch, in microseconds, of five batches.
fn time(stream: &Stream, batch: u32, launch: impl Fn() -> Result<(), Failure>) -> Result<f64, Failure> {
    let mut times = Vec::new();
    for _ in 0..5 {
        stream.synchronize()?;
        let start = Instant::now();
        for _ in 0..batch {
            launch()?;
        }
        stream.synchronize()?;
        times.push(start.elapsed().as_secs_f64() * 1e6 / f64::from(batch));
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

fn shape(device: &Device, text: &str, batch: u32) -> Result<bool, Failure> {
    let (rows, k) = text.split_once('x').ok_or(format!("`{text}` is no shape: 16x7168 is one"))?;
    let (rows, k): (u32, u32) = (rows.parse()?, k.parse()?);
    let stream = device.stream();
    let values = activations(rows as usize * k as usize);
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let tensor_scale = 4096.0 / (6.0 * 448.0);
    let host = quantize(&values, rows as usize, k as usize, TensorScale::Fixed(tensor_scale))?;

    let quantizer = Quantizer::load(device, Source::Bf16)?;
    let x = device.upload(&bytes)?;
    let from = Activations { x: &x, rows, k, tensor_scale };
    let to = quantizer.quantize(&stream, &from)?;
    let scales = host.blocked_scales()?;
    let quantized = to.codes.download()? == host.codes() && to.scales.download()? == scales;
    let took = time(&stream, batch, || Ok(quantizer.launch(&stream, &from, &to.codes, &to.scales)?))?;
    let moved = (bytes.len() + host.codes().len() + scales.len()) as f64;

    let blocker = ScaleBlocker::load(device)?;
    let (linear, blocked) = (device.upload(host.scales())?, device.alloc(scales.len())?);
    let sizes = [rows, k / 16];
    blocker.launch(&stream, &linear, sizes, &blocked)?;
    let in_order = blocked.download()? == to_blocked(host.scales(), rows as usize, k as usize / 16)?;
    let blocking = time(&stream, batch, || Ok(blocker.launch(&stream, &linear, sizes, &blocked)?))?;
    println!(
        "{rows} x {k}: quantised {} in {took:.1} us ({:.0} GB/s), scale factors blocked {} in {blocking:.1} us",
        if quantized { "right" } else { "WRONG" },
        moved / took / 1e3,
        if in_order { "right" } else { "WRONG" },
    );
    Ok(quantized && in_order)
}

fn main() -> ExitCode {
    let options = Options::parse();
    let run = || {
        let device = device(&options.device)?;
        println!("{device}");
        let batch = if options.device.starts_with("cuda") { 200 } else { 1 };
        options
            .shapes
            .iter()
            .try_fold(true, |right, text| Ok::<_, Failure>(shape(&device, text, batch)? && right))
    };
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}
