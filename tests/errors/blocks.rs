//! Gated MLP blocks and the experts of a mixture.

use super::{Case, Page, case};
use silumin::formats::Matrix;
use silumin::formats::quantize::{TensorScale, quantize_to};
use silumin::runtime::mlp::{
    Choices, Experts, ExpertsOptions, ExpertsWeights, Mlp, MlpError, MlpOptions, MlpWeights,
};
use silumin::runtime::weights::{GateUp, Weight};
use silumin::{Arch, Buckets, Buffer, Device, OperandFormat};

pub fn show(page: &mut Page) {
    page.cases("Weights of a block", weights());
    page.cases("Calls of a block", calls());
    page.cases("Experts at load", experts());
    page.cases("Calls of experts", chosen());
}

const HIDDEN: usize = 64;
const FEATURES: usize = 32;

/// Gate and up, and down.
struct Layer([Matrix; 2]);

impl Layer {
    fn new(format: OperandFormat, hidden: usize, features: usize) -> Self {
        let of = |rows: usize, k: usize| {
            quantize_to(format, &vec![0.25f32; rows * k], rows, k, TensorScale::One).unwrap()
        };
        Layer([of(features, hidden), of(hidden, features)])
    }

    fn weights(&self) -> MlpWeights<'_> {
        let [up, down] = self.0.each_ref().map(|matrix| Weight::of(matrix).unwrap());
        MlpWeights::new(GateUp::new(up, up).unwrap(), down).unwrap()
    }
}

fn bf16() -> Layer {
    Layer::new(OperandFormat::Bf16, HIDDEN, FEATURES)
}

fn weights() -> Vec<Case> {
    let device = Device::emulated(Arch::Sm90a);
    let options = MlpOptions::new(Buckets::new([8]).unwrap());
    let (bf16, fp8) = (bf16(), Layer::new(OperandFormat::E4m3, HIDDEN, FEATURES));
    let mxfp8 = Layer::new(OperandFormat::Mxfp8, HIDDEN, FEATURES);
    let up = Weight::of(&bf16.0[0]).unwrap();
    let load = |weights: &MlpWeights<'_>| Mlp::load(&device, weights, &options).map(drop).unwrap_err();
    let half = fp8.weights().with_middle_scale(0.5).unwrap();
    let mlp = Mlp::load(&device, &bf16.weights(), &options).unwrap();
    let rank = |rank, ranks| bf16.weights().shard(rank, ranks).map(drop).unwrap_err();
    vec![
        case(
            "Down of another shape",
            MlpWeights::new(GateUp::new(up, up).unwrap(), up).map(drop).unwrap_err(),
        ),
        case(
            "A scale of the intermediate activations that is NaN",
            bf16.weights().with_middle_scale(f32::NAN).map(drop).unwrap_err(),
        ),
        case("One scale of two for FP8 activations", load(&half)),
        case("MXFP8 weights on H200", load(&mxfp8.weights())),
        case(
            "Layers of two formats that are to share kernels",
            mlp.load_layer(&fp8.weights()).map(drop).unwrap_err(),
        ),
        case("32 features among three ranks", rank(0, 3)),
        case("Rank 2 of 2", rank(2, 2)),
    ]
}

fn calls() -> Vec<Case> {
    let device = Device::emulated(Arch::Sm90a);
    let options = MlpOptions::new(Buckets::new([8]).unwrap());
    let mlp = Mlp::load(&device, &bf16().weights(), &options).unwrap();
    let buffer = |rows: usize| device.upload(&vec![0; rows * mlp.row_bytes()]).unwrap();
    let (x, out, stream) = (buffer(3), buffer(8), device.stream());
    let forward = |tokens, x: &Buffer, residual: Option<&Buffer>| {
        mlp.forward(&stream, tokens, x, residual, &out).unwrap_err()
    };
    let there = Device::emulated(Arch::Sm90a).stream();
    vec![
        case("No tokens", forward(0, &x, Some(&out))),
        case("9 tokens and buckets of up to 8", forward(9, &x, Some(&out))),
        case("No residual", forward(3, &x, None)),
        case("x of three tokens for four", forward(4, &x, Some(&out))),
        case(
            "A stream of another device",
            mlp.record(&there, 3, &x, Some(&out), &out).map(drop).unwrap_err(),
        ),
    ]
}

fn experts() -> Vec<Case> {
    let device = Device::emulated(Arch::Sm90a);
    let (layer, other) = (bf16(), Layer::new(OperandFormat::E4m3, HIDDEN, FEATURES));
    let two = ExpertsWeights::new(vec![layer.weights(); 2]).unwrap();
    let buckets = Buckets::new([8]).unwrap();
    let options = |top_k| ExpertsOptions::new(buckets.clone(), top_k);
    let load = |weights: &ExpertsWeights<'_>, options: &ExpertsOptions| {
        Experts::load(&device, weights, options).map(drop).unwrap_err()
    };
    let made = |experts| ExpertsWeights::new(experts).map(drop).unwrap_err();
    let narrow = Layer::new(OperandFormat::Bf16, 40, FEATURES);
    let narrow = ExpertsWeights::new(vec![narrow.weights(); 2]).unwrap();
    vec![
        case("No experts", made(Vec::new())),
        case("An expert of another format", made(vec![layer.weights(), other.weights()])),
        case("Tokens that choose no expert", load(&two, &options(0))),
        case("A number of an expert beyond 31 bits", load(&two, &options(2).first_expert(u32::MAX))),
        case("A width of 40", load(&narrow, &options(2))),
    ]
}

fn chosen() -> Vec<Case> {
    let (device, layer) = (Device::emulated(Arch::Sm90a), bf16());
    let weights = ExpertsWeights::new(vec![layer.weights(); 2]).unwrap();
    let options = ExpertsOptions::new(Buckets::new([8]).unwrap(), 2);
    let experts = Experts::load(&device, &weights, &options).unwrap();
    let buffer = |bytes: usize| device.upload(&vec![0; bytes]).unwrap();
    let bytes = 3 * 2 * HIDDEN;
    let (x, out, numbers, shares, short) = (buffer(bytes), buffer(bytes), buffer(24), buffer(24), buffer(20));
    let stream = device.stream();
    let choices = Choices { experts: &numbers, weights: &shares };
    let refused = |x: &Buffer, choices: &Choices<'_>| -> MlpError {
        experts.forward(&stream, 3, x, choices, None, &out).unwrap_err()
    };
    let there = Device::emulated(Arch::Sm90a).upload(&vec![0; bytes]).unwrap();
    let odd = buffer(bytes + 2).slice(2, bytes).unwrap();
    vec![
        case("Weights of choices that are too short", refused(&x, &Choices { weights: &short, ..choices })),
        case("x on another device", refused(&there, &choices)),
        case("x at an address that is no multiple of 16", refused(&odd, &choices)),
    ]
}
