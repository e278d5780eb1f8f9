//! A gated MLP over candle's tensors: one kernel beside candle's own two matmuls, silu and product.
//!
//! ```text
//! cargo run --release --example gated_mlp                                          # CPU tensors, the kernel on the emulator
//! cargo run --release --features cuda --example gated_mlp -- --cuda 0 --tokens 1,16,333 --size 14336x4096
//! ```
//!
//! Exit status: 0 if every element is within bf16's rounding of candle's, 1 if one is not, 2 for bad input.

use candle_core::{DType, Device, Tensor};
use silumin::dual_gemm;
use silumin_candle::GatedMlp;
use std::process::ExitCode;
use std::time::Instant;

type Failure = Box<dyn std::error::Error>;

/// Flags by hand: the crate has no other use for a parser of them.
struct Options {
    cuda: Option<usize>,
    tokens: Vec<usize>,
    size: [usize; 2],
}

fn options() -> Result<Options, Failure> {
    let mut options = Options { cuda: None, tokens: vec![1, 5, 16], size: [128, 256] };
    let mut arguments = std::env::args().skip(1);
    while let Some(flag) = arguments.next() {
        let value = arguments.next().ok_or(format!("{flag} wants a value"))?;
        match flag.as_str() {
            "--cuda" => options.cuda = Some(value.parse()?),
            "--tokens" => options.tokens = value.split(',').map(str::parse).collect::<Result<_, _>>()?,
            "--size" => {
                let (n, k) = value.split_once('x').ok_or("--size wants NxK, such as 14336x4096")?;
                options.size = [n.parse()?, k.parse()?];
            }
            _ => return Err(format!("{flag} is none of --cuda, --tokens, --size").into()),
        }
    }
    Ok(options)
}

/// Some numbers of both signs.
fn numbers(rows: usize, k: usize, size: f64, device: &Device) -> Result<Tensor, Failure> {
    let wave = (Tensor::arange(0u32, (rows * k) as u32, device)?.to_dtype(DType::F32)? * 0.7)?.sin()?;
    Ok(wave.affine(size, 0.0)?.reshape((rows, k))?.to_dtype(DType::BF16)?)
}

/// The same with candle's own operations, in f32 of the same numbers.
fn candle(x: &Tensor, gate: &Tensor, up: &Tensor) -> Result<Tensor, Failure> {
    let [x, gate, up] = [x, gate, up].map(|tensor| tensor.to_dtype(DType::F32));
    let (x, gate, up) = (x?, gate?, up?);
    let (gate, up) = (x.matmul(&gate.t()?)?, x.matmul(&up.t()?)?);
    Ok((gate.silu()? * up)?)
}

fn run() -> Result<bool, Failure> {
    let Options { cuda, tokens, size: [n, k] } = options()?;
    let device = cuda.map_or(Ok(Device::Cpu), Device::new_cuda)?;
    let size = 1.0 / (k as f64).sqrt();
    let (gate, up) = (numbers(n, k, size, &device)?, numbers(n, k, -1.5 * size, &device)?);
    let swiglu = dual_gemm!(<bf16 -> bf16> silu(x @ gate) * (x @ up));
    let largest = tokens.iter().max().copied().unwrap_or(1);
    let start = Instant::now();
    let mlp = GatedMlp::of(&swiglu).tensors(&gate, &up).largest(largest as u32).build()?;
    println!("{} kernels ready after {:.1} ms", mlp.kernels().len(), start.elapsed().as_secs_f64() * 1e3);
    let mut right = true;
    for tokens in tokens {
        // Rows out of the middle of a longer tensor, as an engine slices a batch.
        let x = numbers(tokens + 3, k, 1.0, &device)?.narrow(0, 2, tokens)?;
        let (got, want) = (mlp.run(&x)?, candle(&x, &gate, &up)?);
        let off = (got.to_dtype(DType::F32)? - &want)?.abs()?;
        // Sums in f32 in another order, and one rounding to bf16.
        let allowed = (want.abs()? / 128.0)?.affine(1.0, 1e-3)?;
        let outside = off.gt(&allowed)?.to_dtype(DType::U32)?.sum_all()?.to_scalar::<u32>()?;
        let most = off.flatten_all()?.max(0)?.to_scalar::<f32>()?;
        println!(
            "{tokens} tokens: {:?}, {outside} of {} elements off, {most:.2e} at most",
            got.dims(),
            tokens * n
        );
        right &= outside == 0 && got.dims() == [tokens, n];
        if cuda.is_some() {
            let time = |what: &str, run: &dyn Fn() -> Result<Tensor, Failure>| -> Result<(), Failure> {
                const LAUNCHES: u32 = 200;
                for _ in 0..LAUNCHES / 10 {
                    run()?;
                }
                device.synchronize()?;
                let start = Instant::now();
                for _ in 0..LAUNCHES {
                    run()?;
                }
                device.synchronize()?;
                println!("    {what}: {:.1} us", start.elapsed().as_secs_f64() * 1e6 / f64::from(LAUNCHES));
                Ok(())
            };
            let (gate_t, up_t) = (gate.t()?, up.t()?);
            time("one kernel of silumin's", &|| Ok(mlp.run(&x)?))?;
            time("candle's two matmuls, silu and product", &|| {
                Ok((x.matmul(&gate_t)?.silu()? * x.matmul(&up_t)?)?)
            })?;
        }
    }
    Ok(right)
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}
