//! Model load: gate and up out of a checkpoint, onto a device, and through a kernel that was made before the first token.
//!
//! ```text
//! cargo run --release --example model_load                                    # makes checkpoints in both conventions
//! cargo run --release --example model_load -- --device cuda:0                 # the same on a GPU
//! cargo run --release --example model_load -- --checkpoint DIR                # lists its layers
//! cargo run --release --example model_load -- --checkpoint DIR --layer model.layers.0.mlp --tokens 1,5,64
//! ```
//!
//! A layer's result on made-up activations is compared with f64 arithmetic on the same quantised numbers. On Blackwell
//! activations are quantised to NVFP4 too, with the scale that the checkpoint was calibrated for; on Hopper they stay f16.
//! Exit status: 0 if every element is right, 1 if one is not, 2 for bad input.

// An example talks to people on stdout.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod write;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use half::bf16;
use silumin::codegen::arch::Arch;
use silumin::formats::quantize::{TensorScale, quantize, quantize_to};
use silumin::runtime::prepare::{Activations, Quantizer, Source};
use silumin::runtime::weights::{Checkpoint, Convention, Names};
use silumin::verify::check::check_output;
use silumin::verify::output::Output;
use silumin::verify::reference::{dual_gemm as reference, silu};
use silumin::{Buckets, Device, DualGemm, OperandFormat, OutputFormat, Warmup, dual_gemm};
use write::Sizes;

type Failure = Box<dyn std::error::Error>;

/// Loads gate and up of a checkpoint and runs them.
#[derive(Parser)]
struct Options {
    /// `emulated`, `emulated:sm_90a` or another chip, or `cuda:N`.
    #[arg(long, default_value = "emulated")]
    device: String,
    /// A folder of safetensors, or a file; small ones are made if this is left out.
    #[arg(long)]
    checkpoint: Option<PathBuf>,
    /// The layer of that checkpoint; without one its layers are listed.
    #[arg(long)]
    layer: Option<String>,
    /// How many tokens, each a launch.
    #[arg(long, value_delimiter = ',', default_values_t = [1u32, 5, 16])]
    tokens: Vec<u32>,
}

/// SwiGLU for checkpoints with one scale per weight tensor: `gate_scale` and `up_scale` multiply the products before silu is applied.
fn swiglu(arch: Arch) -> DualGemm {
    match arch {
        Arch::Sm90a => {
            dual_gemm!(<A: f16, B: nvfp4, C: f16> silu(gate_scale * (x @ gate)) * (up_scale * (x @ up)))
        }
        _ => dual_gemm!(<nvfp4 -> f16> silu(gate_scale * (x @ gate)) * (up_scale * (x @ up))),
    }
}

/// The device of a name.
pub fn device(text: &str) -> Result<Device, Failure> {
    let (kind, which) = text.split_once(':').unwrap_or((text, ""));
    match (kind, which) {
        ("emulated", "") => Ok(Device::emulated(Arch::Sm100a)),
        ("emulated", chip) => Ok(Device::emulated(chip.parse()?)),
        #[cfg(feature = "cuda")]
        ("cuda", ordinal) => Ok(Device::cuda(ordinal.parse()?)?),
        _ => Err(format!("`{text}` is no device: emulated, emulated:sm_90a or cuda:0").into()),
    }
}

/// Loads one layer and runs it on some numbers of tokens; whether all of it was right.
fn layer(device: &Device, checkpoint: &Checkpoint, name: &str, tokens: &[u32]) -> Result<bool, Failure> {
    let start = Instant::now();
    let weights = checkpoint.gate_up(name)?;
    let (n, k) = (weights.n(), weights.k());
    let there = weights.upload(device)?;
    let convention = checkpoint.convention(name, &Names::default());
    println!(
        "{name}: {n} x {k}, {}, {}; on the device in {:.1} ms",
        convention.map_or_else(String::new, |convention| format!("{convention:?}")),
        weights
            .input_scale()
            .map_or("weights only".to_owned(), |scale| format!("calibrated for {scale:.3e}")),
        start.elapsed().as_secs_f64() * 1e3,
    );

    let start = Instant::now();
    let gemm = swiglu(device.arch());
    let most = tokens.iter().copied().max().unwrap_or(1);
    let kernels = Warmup::of(&gemm)
        .weights(u32::try_from(n)?, u32::try_from(k)?)
        .buckets(Buckets::powers_of_two(most.next_power_of_two()))
        .run(device)?;
    println!("  {} kernels, warm in {:.1} ms", kernels.len(), start.elapsed().as_secs_f64() * 1e3);

    let (gate, up) = (weights.gate().to_matrix()?, weights.up().to_matrix()?);
    let mut right = true;
    for &m in tokens {
        let kernel = kernels.for_problem(m, u32::try_from(n)?, u32::try_from(k)?)?;
        // The bucket's rows: those behind the last token hold zeros.
        let rows = kernel.kernel().problem.shape.m as usize;
        let mut values = write::numbers(m as usize * k, u64::from(m));
        values.iter_mut().for_each(|value| *value *= 16.0);
        values.resize(rows * k, 0.0);
        let scale = weights.input_scale().map_or(TensorScale::FromMax, TensorScale::Fixed);
        let stream = device.stream();
        let (x, a, sfa) = match kernel.kernel().problem.formats.a {
            OperandFormat::Nvfp4 => {
                // On the device; the host's bytes, which are the same, are for the reference.
                let values: Vec<bf16> = values.iter().map(|value| bf16::from_f32(*value)).collect();
                let x = quantize(&values, rows, k, scale)?;
                let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                let from = device.upload(&bytes)?;
                let from =
                    Activations { x: &from, rows: rows as u32, k: k as u32, tensor_scale: x.tensor_scale() };
                let a = Quantizer::load(device, Source::Bf16)?.quantize(&stream, &from)?;
                if a.codes.download()? != x.codes() || a.scales.download()? != x.blocked_scales()? {
                    return Err("the device quantised other than the host".into());
                }
                (x, a.codes, Some(a.scales))
            }
            format => {
                let x = quantize_to(format, &values, rows, k, TensorScale::One)?;
                let a = device.upload(x.codes())?;
                (x, a, None)
            }
        };
        let c = device.alloc(rows * n * 2)?;
        let scalars = there.scalars(x.tensor_scale());
        let start = Instant::now();
        kernel.launch(&stream, &there.args(&a, sfa.as_ref(), &c).scalars(&scalars))?;
        stream.synchronize()?;
        let took = start.elapsed();

        let expected = reference(&x, &gate, &up, |gate, up| silu(gate) * up)?;
        let output = Output::new(rows, n, OutputFormat::F16, c.download()?, Vec::new(), 1.0)?;
        let report = check_output(&output, &expected)?;
        println!(
            "  {m} tokens by the kernel for {rows}: relative error {:.2e}, largest difference {:.1e}, {} in {:.1} ms",
            report.rel_frobenius,
            report.max_abs,
            if report.pass { "right" } else { "WRONG" },
            took.as_secs_f64() * 1e3,
        );
        right &= report.pass && report.rel_frobenius < 1e-3;
    }
    Ok(right)
}

/// Makes a checkpoint in each convention and runs all layers; whether all of it was right.
pub fn made_up(device: &Device, tokens: &[u32]) -> Result<bool, Failure> {
    let mut right = true;
    for convention in [Convention::ModelOpt, Convention::CompressedTensors] {
        let folder = tempfile::tempdir()?;
        write::checkpoint(folder.path(), convention, Sizes { layers: 2, n: 320, k: 512 })?;
        let checkpoint = Checkpoint::open(folder.path())?;
        for name in checkpoint.layers() {
            right &= layer(device, &checkpoint, &name, tokens)?;
        }
    }
    Ok(right)
}

/// Runs a layer of a checkpoint, or lists its layers; whether all of it was right.
pub fn given(device: &Device, path: &Path, name: Option<&str>, tokens: &[u32]) -> Result<bool, Failure> {
    let checkpoint = Checkpoint::open(path)?;
    match name {
        Some(name) => layer(device, &checkpoint, name, tokens),
        None => {
            let layers = checkpoint.layers();
            println!("{}: {} NVFP4 layers; name one with --layer", path.display(), layers.len());
            layers.iter().for_each(|layer| println!("  {layer}"));
            Ok(true)
        }
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    let run = || {
        let device = device(&options.device)?;
        println!("{device}");
        match &options.checkpoint {
            Some(path) => given(&device, path, options.layer.as_deref(), &options.tokens),
            None => made_up(&device, &options.tokens),
        }
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
