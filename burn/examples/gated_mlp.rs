//! silumin's gated MLP on burn's tensors, beside the same MLP of burn's own operations.
//!
//! ```text
//! cargo run --example gated_mlp                                        # CPU tensors, kernels on the emulated device
//! cargo run --example gated_mlp -- --weights nvfp4
//! cargo run --release --features cuda --example gated_mlp -- --cuda 0 --size 14336x4096 --batch 2 --tokens 1,8,100 --order context
//! ```
//!
//! Exit status: 0 if the results agree, 1 if they do not, 2 for bad input.

use burn::tensor::activation::silu;
use burn::tensor::{DType, Device, Tensor, TensorData};
use half::bf16;
use silumin::formats::Matrix;
use silumin::formats::quantize::{TensorScale, quantize};
use silumin::runtime::mlp::MlpWeights;
use silumin::runtime::weights::{GateUp, Weight};
use silumin::{Buckets, OperandFormat};
use silumin_burn_example::GatedMlp;
#[cfg(feature = "cuda")]
use silumin_burn_example::Order;
use std::process::ExitCode;
use std::time::Instant;

type Failure = Box<dyn std::error::Error>;

struct Options {
    /// Number of the GPU; `None` for CPU tensors.
    cuda: Option<usize>,
    batch: usize,
    tokens: Vec<usize>,
    features: usize,
    hidden: usize,
    nvfp4: bool,
    /// Whether events order the work on CUDA, and not the host.
    events: bool,
}

fn options() -> Result<Options, Failure> {
    let mut options = Options {
        cuda: None,
        batch: 2,
        tokens: vec![1, 3, 8],
        features: 128,
        hidden: 256,
        nvfp4: false,
        events: false,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(flag) = arguments.next() {
        let value = arguments.next().ok_or(format!("{flag} wants a value"))?;
        match (flag.as_str(), value.as_str()) {
            ("--cuda", _) => options.cuda = Some(value.parse()?),
            ("--batch", _) => options.batch = value.parse()?,
            ("--tokens", _) => options.tokens = value.split(',').map(str::parse).collect::<Result<_, _>>()?,
            ("--size", _) => {
                let (features, hidden) =
                    value.split_once('x').ok_or("--size wants FEATURESxHIDDEN, such as 14336x4096")?;
                (options.features, options.hidden) = (features.parse()?, hidden.parse()?);
            }
            ("--weights", "bf16" | "nvfp4") => options.nvfp4 = value == "nvfp4",
            ("--weights", _) => return Err("--weights wants bf16 or nvfp4".into()),
            ("--order", "host" | "context") => options.events = value == "context",
            ("--order", _) => return Err("--order wants host or context".into()),
            _ => {
                return Err(format!(
                    "{flag} is none of --cuda, --batch, --tokens, --size, --weights, --order"
                )
                .into());
            }
        }
    }
    if options.batch == 0 || options.tokens.contains(&0) || options.hidden == 0 || options.features == 0 {
        return Err("sizes, batch and tokens have to be above 0".into());
    }
    let most = options.tokens.iter().max().copied().unwrap_or(1);
    let fits = |dimensions: &[usize]| {
        let elements =
            dimensions.iter().try_fold(1usize, |product, &dimension| product.checked_mul(dimension));
        elements.is_some_and(|elements| elements < 1 << 31)
    };
    if !fits(&[options.features, options.hidden]) || !fits(&[options.batch, most, options.hidden]) {
        return Err("weights and x have to have less than 2^31 elements each".into());
    }
    Ok(options)
}

/// Random numbers between -1 and 1 (xorshift64*), the same in each run.
struct Random(u64);

impl Random {
    fn numbers(&mut self, count: usize, size: f32) -> Vec<f32> {
        let mut next = || {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..count).map(|_| bf16::from_f32(size * next()).to_f32()).collect()
    }
}

/// A weight as a checkpoint has it, `[rows, k]`: in bf16, or quantised.
enum Stored {
    Bf16(Vec<u8>),
    Nvfp4(Matrix),
}

impl Stored {
    fn new(random: &mut Random, [rows, k]: [usize; 2], nvfp4: bool) -> Result<Self, Failure> {
        let numbers = random.numbers(rows * k, (3.0 / k as f32).sqrt());
        Ok(match nvfp4 {
            true => Stored::Nvfp4(quantize(&numbers, rows, k, TensorScale::FromMax)?),
            false => Stored::Bf16(
                numbers.iter().flat_map(|&number| bf16::from_f32(number).to_le_bytes()).collect(),
            ),
        })
    }

    fn weight(&self, [rows, k]: [usize; 2]) -> Result<Weight<'_>, Failure> {
        Ok(match self {
            Stored::Bf16(bytes) => Weight::new(OperandFormat::Bf16, rows, k, bytes, &[], 1.0)?,
            Stored::Nvfp4(matrix) => Weight::of(matrix)?,
        })
    }

    /// The same numbers as a tensor of burn's, `[1, k, rows]`.
    fn tensor(&self, [rows, k]: [usize; 2], device: &Device) -> Tensor<3> {
        let data = match self {
            Stored::Bf16(bytes) => TensorData::from_bytes_vec(bytes.clone(), [1, rows, k], DType::BF16),
            Stored::Nvfp4(matrix) => {
                let mut numbers = vec![0.0; rows * k];
                matrix.decode_row_range(0..rows, &mut numbers);
                TensorData::new(numbers, [1, rows, k])
            }
        };
        Tensor::from_data(data, (device, DType::BF16)).swap_dims(1, 2)
    }
}

/// The MLP of burn's operations, in the type of its tensors. Batches share the weights: all tokens are rows of one product.
fn burns([gate, up, down]: &[Tensor<3>; 3], x: Tensor<3>) -> Tensor<3> {
    let shape = x.dims();
    let x = x.reshape([1, shape[0] * shape[1], shape[2]]);
    let middle = silu(x.clone().matmul(gate.clone())) * x.matmul(up.clone());
    middle.matmul(down.clone()).reshape(shape)
}

fn values(tensor: Tensor<3>) -> Result<Vec<f32>, Failure> {
    Ok(tensor.try_into_data()?.try_into_vec_as::<f32>()?)
}

/// The norm of the difference in relation to the norm of what is wanted.
fn error(got: &[f32], want: &[f32]) -> f64 {
    let norm =
        |numbers: &mut dyn Iterator<Item = f64>| numbers.map(|number| number * number).sum::<f64>().sqrt();
    let mut off = got.iter().zip(want).map(|(&got, &want)| f64::from(got) - f64::from(want));
    norm(&mut off) / norm(&mut want.iter().map(|&want| f64::from(want)))
}

/// Microseconds of a call, from many that follow each other.
fn time(device: &Device, call: &dyn Fn() -> Result<Tensor<3>, Failure>) -> Result<f64, Failure> {
    const CALLS: u32 = 200;
    for _ in 0..CALLS / 4 {
        call()?;
    }
    device.sync()?;
    let start = Instant::now();
    for _ in 0..CALLS {
        call()?;
    }
    device.sync()?;
    Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(CALLS))
}

#[cfg(feature = "cuda")]
fn gpu(number: usize) -> Result<Device, Failure> {
    Ok(Device::cuda(number))
}

#[cfg(not(feature = "cuda"))]
fn gpu(_: usize) -> Result<Device, Failure> {
    Err("--cuda needs the feature `cuda`".into())
}

fn run() -> Result<bool, Failure> {
    let Options { cuda, batch, tokens, features, hidden, nvfp4, events } = options()?;
    let device = cuda.map_or(Ok(Device::flex()), gpu)?;
    let mut random = Random(0x5EED);
    let [wide, narrow] = [[features, hidden], [hidden, features]];
    let [gate, up] = [Stored::new(&mut random, wide, nvfp4)?, Stored::new(&mut random, wide, nvfp4)?];
    let down = Stored::new(&mut random, narrow, nvfp4)?;

    // At model load. silumin's device comes first: it says in words that there is no driver, or no such GPU.
    let weights = MlpWeights::new(GateUp::new(gate.weight(wide)?, up.weight(wide)?)?, down.weight(narrow)?)?;
    let most = batch * tokens.iter().max().copied().unwrap_or(1);
    let start = Instant::now();
    let mlp = GatedMlp::load(&device, &weights, Buckets::powers_of_two(u32::try_from(most)?))?;
    #[cfg(feature = "cuda")]
    let mlp = mlp.ordered(if events { Order::Context } else { Order::Host })?;
    #[cfg(not(feature = "cuda"))]
    if events {
        return Err("--order needs the feature `cuda`".into());
    }
    println!("{:?} loaded in {:.1} s", mlp.mlp(), start.elapsed().as_secs_f64());
    // The same weights for burn's operations.
    let theirs = [gate.tensor(wide, &device), up.tensor(wide, &device), down.tensor(narrow, &device)];
    // Both round the products and the result to bf16, and sum in orders of their own. Where silumin also quantises
    // activations (NVFP4 on Blackwell), that is most of the error.
    let allowed = if mlp.mlp().quantises() { 0.2 } else { 0.01 };

    let mut right = true;
    for tokens in tokens {
        let shape = [batch, tokens, hidden];
        let numbers = TensorData::new(random.numbers(batch * tokens * hidden, 1.0), shape);
        let x = Tensor::<3>::from_data(numbers, (&device, DType::BF16));
        let y = mlp.forward(x.clone())?;
        let dimensions = y.dims();
        // The result is a tensor of burn's like any other.
        let sum = values(x.clone() + y.clone())?;
        let (got, want) = (values(y)?, burns(&theirs, x.clone()));
        let want_sum = values(x.clone() + want.clone())?;
        let off = error(&got, &values(want)?);
        let off_sum = error(&sum, &want_sum);
        println!(
            "[{batch}, {tokens}, {hidden}] -> {dimensions:?}: error {off:.2e}, and {off_sum:.2e} of x + mlp(x)"
        );
        right &= off <= allowed && off_sum <= allowed && dimensions == shape;
        if cuda.is_some() {
            let silumin = time(&device, &|| Ok(mlp.forward(x.clone())?))?;
            let burn = time(&device, &|| Ok(burns(&theirs, x.clone())))?;
            println!("    silumin {silumin:.1} us a call, burn's operations in bf16 {burn:.1} us");
        }
    }
    if !right {
        eprintln!("the results differ: an error is above {allowed}");
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
