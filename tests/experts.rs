//! The experts of a mixture on the emulated device: the kernels that sort, gather and sum against the host, and the whole
//! against f64 on decoded values, expert by expert.

use crate::mlp::WRITTEN;
use silumin::codegen::problem::OperandFormat;
use silumin::formats::Matrix;
use silumin::formats::quantize::{TensorScale, quantize_to};
use silumin::runtime::mlp::{
    Activation, Choices, Experts, ExpertsOptions, ExpertsWeights, MlpWeights, Source,
};
use silumin::runtime::warmup::Buckets;
use silumin::runtime::weights::{GateUp, Weight};
use silumin::verify::block::relative_error;
use silumin::{Arch, Device};
use silumin_testkit::sixteen::{read, rounded};

const HIDDEN: usize = 192;
const FEATURES: usize = 128;
const COUNT: usize = 6;

/// Numbers from -size to size, by a hash.
fn numbers(count: usize, seed: u32, size: f64) -> Vec<f32> {
    let hash = |i: u32| {
        let mixed = (i ^ seed.wrapping_mul(0x9E37_79B9)).wrapping_mul(0x85EB_CA6B);
        let mixed = (mixed ^ mixed >> 13).wrapping_mul(0xC2B2_AE35);
        mixed ^ mixed >> 16
    };
    (0..count as u32)
        .map(|i| ((f64::from(hash(i)) / f64::from(u32::MAX) - 0.5) * 2.0 * size) as f32)
        .collect()
}

/// A width in whole blocks of the format along K.
fn width(format: OperandFormat, usual: usize) -> usize {
    usual.next_multiple_of(if format.spec().k_multiple == 128 { 128 } else { 1 })
}

/// The experts of a layer: gate, up and down. Each has scales of whole tensors of its own, where the format has them.
struct Layer(Vec<[Matrix; 3]>);

impl Layer {
    fn new(format: OperandFormat) -> Layer {
        let of = |rows: usize, k: usize, seed, size| {
            let values = numbers(rows * k, seed, size / (k as f64).sqrt());
            quantize_to(format, &values, rows, k, TensorScale::FromMax).unwrap()
        };
        let expert = |e: usize| {
            let (seed, size) = (10 * e as u32, 1.0 + 0.3 * e as f64);
            let [hidden, features] = [HIDDEN, FEATURES].map(|usual| width(format, usual));
            [
                of(features, hidden, seed, 3.0 * size),
                of(features, hidden, seed + 1, 2.0),
                of(hidden, features, seed + 2, 3.0),
            ]
        };
        Layer((0..COUNT).map(expert).collect())
    }

    fn weights(&self) -> ExpertsWeights<'_> {
        self.calibrated(None)
    }

    /// With scales of x and of the middle.
    fn calibrated(&self, scales: Option<[f32; 2]>) -> ExpertsWeights<'_> {
        let mut experts = Vec::new();
        for matrices in &self.0 {
            let [gate, up, down] = matrices.each_ref().map(|matrix| Weight::of(matrix).unwrap());
            let gate_up = GateUp::new(gate, up).unwrap().with_input_scale(scales.map(|[x, _]| x));
            let weights = MlpWeights::new(gate_up, down).unwrap();
            experts.push(scales.map_or(weights, |[_, middle]| weights.with_middle_scale(middle).unwrap()));
        }
        ExpertsWeights::new(experts).unwrap()
    }
}

/// What tokens choose: numbers of experts and their weights.
struct Chosen {
    top_k: usize,
    experts: Vec<i32>,
    weights: Vec<f32>,
}

impl Chosen {
    /// Experts by a hash, some popular; here and there -1 or a number beyond all experts.
    fn new(tokens: usize, top_k: usize, seed: u32) -> Chosen {
        let draw = |value: &f32| match (value * 1000.0) as i32 {
            0..=60 => -1,
            61..=100 => COUNT as i32,
            101..=500 => 1,
            other => other % COUNT as i32,
        };
        let drawn: Vec<f32> = numbers(tokens * top_k, seed, 1.0).iter().map(|value| value.abs()).collect();
        Chosen {
            top_k,
            experts: drawn.iter().map(draw).collect(),
            weights: numbers(tokens * top_k, seed + 1, 1.0),
        }
    }

    /// The result in f64: each expert for all tokens, then what each token takes of them.
    fn sum(
        &self,
        experts: &Experts,
        layer: &Layer,
        first: i32,
        x: &[f32],
        residual: Option<&[f32]>,
    ) -> Vec<f64> {
        let each: Vec<Vec<f64>> =
            layer.weights().experts().iter().map(|expert| experts.reference(expert, x).unwrap()).collect();
        let hidden = experts.hidden();
        let one = |at: usize| {
            let choices = at / hidden * self.top_k..(at / hidden + 1) * self.top_k;
            let taken = choices.filter_map(|choice| {
                let expert = usize::try_from(self.experts[choice] - first).ok()?;
                Some(f64::from(self.weights[choice]) * each.get(expert)?[at])
            });
            taken.sum::<f64>() + residual.map_or(0.0, |residual| f64::from(residual[at]))
        };
        (0..x.len()).map(one).collect()
    }
}

struct Case {
    arch: Arch,
    weights: OperandFormat,
    source: Source,
    top_k: usize,
    residual: bool,
    first: i32,
    /// Scales of x and of the middle, as of a checkpoint that was calibrated.
    scales: Option<[f32; 2]>,
}

impl Case {
    fn new(arch: Arch, weights: OperandFormat, source: Source) -> Case {
        Case { arch, weights, source, top_k: 3, residual: true, first: 0, scales: None }
    }

    /// Runs numbers of tokens; returns whether activations are quantised and the largest relative error.
    fn run(&self, tokens: &[usize]) -> (bool, f64) {
        let Case { arch, weights, source, top_k, residual, first, scales } = *self;
        let (device, layer) = (Device::emulated(arch), Layer::new(weights));
        let options = ExpertsOptions::new(Buckets::new([2, 8, 60]).unwrap(), top_k as u32);
        let options = options.source(source).first_expert(first as u32).activation(Activation::Silu);
        let experts = Experts::load(&device, &layer.calibrated(scales), &options).unwrap();
        let hidden = experts.hidden();
        let mut worst = 0.0f64;
        for tokens in tokens.iter().copied() {
            let (x, x_bytes) = rounded(source, &numbers(tokens * hidden, 7 + tokens as u32, 1.7));
            let (added, added_bytes) = rounded(source, &numbers(tokens * hidden, 11, 2.0));
            let mut chosen = Chosen::new(tokens, top_k, tokens as u32);
            chosen.experts.iter_mut().for_each(|expert| *expert += first);
            let bytes = |values: &[[u8; 4]]| device.upload(values.as_flattened()).unwrap();
            let numbers =
                bytes(&chosen.experts.iter().map(|expert| expert.to_le_bytes()).collect::<Vec<_>>());
            let shares = bytes(&chosen.weights.iter().map(|weight| weight.to_le_bytes()).collect::<Vec<_>>());
            let choices = Choices { experts: &numbers, weights: &shares };
            let x_there = device.upload(&x_bytes).unwrap();
            // In place: the residual stream becomes the result.
            let out = device.upload(&added_bytes).unwrap();
            let stream = device.stream();
            let given = residual.then_some(&out);
            experts.forward(&stream, tokens as u32, &x_there, &choices, given, &out).unwrap();
            let got = out.download().unwrap();
            let expected = chosen.sum(&experts, &layer, first, &x, residual.then_some(&added));
            worst = worst.max(relative_error(&read(source, &got), &expected));

            // The same again, recorded.
            out.write(&added_bytes).unwrap();
            let call = experts.record(&stream, tokens as u32, &x_there, &choices, given, &out).unwrap();
            call.launch().unwrap();
            assert_eq!(out.download().unwrap(), got);
        }
        (experts.quantises(), worst)
    }
}

#[test]
fn experts_are_right_on_each_chip_with_each_format() {
    use OperandFormat::{Bf16, E4m3, E4m3Block128, F16, Mxfp4, Mxfp8, Nvfp4};
    for (arch, weights, source, quantises) in [
        (Arch::Sm100a, Nvfp4, Source::Bf16, true),
        (Arch::Sm100a, Nvfp4, Source::F16, true),
        (Arch::Sm100a, Bf16, Source::Bf16, false),
        (Arch::Sm100a, E4m3, Source::F16, true),
        (Arch::Sm90a, Nvfp4, Source::Bf16, false),
        (Arch::Sm90a, Mxfp4, Source::Bf16, false),
        (Arch::Sm90a, F16, Source::F16, false),
        (Arch::Sm90a, E4m3, Source::Bf16, true),
        (Arch::Sm120a, Bf16, Source::Bf16, false),
        (Arch::Sm121a, E4m3, Source::Bf16, true),
        (Arch::Sm110a, Nvfp4, Source::Bf16, true),
        // These kernels write no NVFP4: a launch of its own quantises the middle.
        (Arch::Sm120a, Nvfp4, Source::Bf16, true),
        (Arch::Sm121a, Nvfp4, Source::F16, true),
        // Scale factors of blocks: in f32 on Hopper, requantised to MXFP8 on Blackwell.
        (Arch::Sm90a, E4m3Block128, Source::Bf16, true),
        (Arch::Sm100a, E4m3Block128, Source::F16, true),
        (Arch::Sm120a, E4m3Block128, Source::Bf16, true),
        (Arch::Sm100a, Mxfp8, Source::Bf16, true),
    ] {
        let (found, error) = Case::new(arch, weights, source).run(&[1, 7, 60]);
        assert_eq!(found, quantises, "{arch}, {weights}");
        assert!(error < 6e-3, "{arch}, {weights}, {source:?}: {error:.2e}");
    }
}

#[test]
fn the_first_kernel_quantises_the_middle_where_it_can() {
    for (arch, weights, written) in WRITTEN {
        let (device, layer) = (Device::emulated(arch), Layer::new(weights));
        let options = ExpertsOptions::new(Buckets::new([4]).unwrap(), 2);
        let loaded = Experts::load(&device, &layer.weights(), &options).unwrap();
        let found: Vec<_> =
            loaded.kernels()[0].iter().map(|kernel| kernel.kernel().problem.formats.c).collect();
        assert!(!found.is_empty() && found.iter().all(|c| *c == written), "{arch}, {weights}: {found:?}");
    }
}

#[test]
fn fp8_activations_have_a_checkpoint_s_scales_or_one_for_each_row() {
    for (arch, source) in [(Arch::Sm90a, Source::F16), (Arch::Sm100a, Source::Bf16)] {
        for scales in [None, Some([1.0 / 64.0, 1.0 / 32.0])] {
            let case = Case { scales, ..Case::new(arch, OperandFormat::E4m3, source) };
            let (quantised, error) = case.run(&[1, 40]);
            assert!(quantised && error < 6e-3, "{arch}, {source:?}, {scales:?}: {error:.2e}");
        }
    }
}

#[test]
fn one_choice_no_residual_and_some_of_a_layer_s_experts() {
    for (top_k, residual, first) in [(1, false, 0), (8, true, 0), (5, false, 12)] {
        let case =
            Case { top_k, residual, first, ..Case::new(Arch::Sm100a, OperandFormat::Nvfp4, Source::Bf16) };
        let (_, error) = case.run(&[1, 40]);
        assert!(error < 6e-3, "{top_k} choices, residual {residual}, first {first}: {error:.2e}");
    }
}

#[test]
fn layers_share_kernels_and_memory_and_nothing_else() {
    let device = Device::emulated(Arch::Sm100a);
    let (first, mut second) = (Layer::new(OperandFormat::Nvfp4), Layer::new(OperandFormat::Nvfp4));
    second.0.rotate_left(2);
    let options = ExpertsOptions::new(Buckets::new([4]).unwrap(), 2);
    let own =
        |layer: &Layer, scale| Experts::load(&device, &layer.calibrated(Some([scale; 2])), &options).unwrap();
    let shared = own(&first, 0.125);
    let beside = shared.load_layer(&second.calibrated(Some([0.25; 2]))).unwrap();
    assert_eq!(beside.activation_scales(), [0.25; 2]);
    assert!(shared.shared_bytes() > 0 && beside.shared_bytes() == shared.shared_bytes());
    let (_, x) = rounded(Source::Bf16, &numbers(3 * HIDDEN, 5, 1.0));
    let upload = |bytes: &[u8]| device.upload(bytes).unwrap();
    let (x, chosen) = (upload(&x), upload(&[5i32, 0, 1, 2, 3, 4].map(i32::to_le_bytes).concat()));
    let shares = upload(&[0.5f32; 6].map(f32::to_le_bytes).concat());
    let result = |experts: &Experts| {
        let out = upload(&vec![0; x.len()]);
        let choices = Choices { experts: &chosen, weights: &shares };
        experts.forward(&device.stream(), 3, &x, &choices, None, &out).unwrap();
        out.download().unwrap()
    };
    let (expected, of_second) = (result(&own(&first, 0.125)), result(&own(&second, 0.25)));
    assert_ne!(expected, of_second);
    for _ in 0..2 {
        assert!(result(&shared) == expected && result(&beside) == of_second);
    }
    let error = shared.load_layer(&Layer::new(OperandFormat::Bf16).weights()).unwrap_err().to_string();
    assert!(
        error.contains("in bf16")
            && error.contains("cannot share the kernels of")
            && error.contains("in nvfp4"),
        "{error}"
    );
}

#[test]
fn what_does_not_fit_is_an_error_that_names_it() {
    let (device, layer) = (Device::emulated(Arch::Sm100a), Layer::new(OperandFormat::Nvfp4));
    let (weights, buckets) = (layer.weights(), Buckets::new([8]).unwrap());
    let none = Experts::load(&device, &weights, &ExpertsOptions::new(buckets.clone(), 0));
    let none = none.unwrap_err().to_string();
    assert!(none.contains("0 choices for each of 8 tokens"), "{none}");
    let options = ExpertsOptions::new(buckets.clone(), 2);
    let far =
        Experts::load(&device, &weights, &options.clone().first_expert(u32::MAX)).unwrap_err().to_string();
    assert!(far.contains("numbers of experts are below 2^31"), "{far}");
    let narrow =
        quantize_to(OperandFormat::Bf16, &numbers(200 * 200, 1, 1.0), 200, 200, TensorScale::One).unwrap();
    let of = || Weight::of(&narrow).unwrap();
    let narrow = MlpWeights::new(GateUp::new(of(), of()).unwrap(), of()).unwrap();
    let narrow = ExpertsWeights::new(vec![narrow; 2]).unwrap();
    let error = Experts::load(&device, &narrow, &options).unwrap_err().to_string();
    assert!(error.contains("hidden is 200"), "{error}");
    let error = ExpertsWeights::new(Vec::new()).unwrap_err().to_string();
    assert!(error.contains("0 experts: a layer has from 1 to 1024"), "{error}");
    let error = ExpertsWeights::new(vec![weights.experts()[0]; 1025]).unwrap_err().to_string();
    assert!(error.contains("1025 experts"), "{error}");
    let other = Layer::new(OperandFormat::Bf16);
    let mixed = vec![weights.experts()[0], other.weights().experts()[0]];
    let error = ExpertsWeights::new(mixed).unwrap_err().to_string();
    assert!(
        error.contains("expert 1 has 128 features of 192 in bf16") && error.contains("in nvfp4"),
        "{error}"
    );

    let experts = Experts::load(&device, &weights, &ExpertsOptions::new(buckets, 2)).unwrap();
    let buffer = |bytes: usize| device.upload(&vec![0; bytes]).unwrap();
    let (x, out, numbers, shares) = (buffer(3 * 2 * HIDDEN), buffer(3 * 2 * HIDDEN), buffer(24), buffer(24));
    let stream = device.stream();
    let choices = Choices { experts: &numbers, weights: &shares };
    let refused = |tokens, x, choices: &Choices<'_>| {
        experts.forward(&stream, tokens, x, choices, None, &out).unwrap_err().to_string()
    };
    let error = refused(9, &x, &choices);
    assert!(error.contains("9 tokens: the block has buckets for 1 to 8"), "{error}");
    let error = refused(2, &x, &choices);
    assert!(error.contains("`x` has 1152 bytes, and 2 x 192 of 16 bits are 768"), "{error}");
    let short = buffer(20);
    let error = refused(3, &x, &Choices { weights: &short, ..choices });
    assert!(error.contains("`choices.weights` has 20 bytes") && error.contains("are 24"), "{error}");
    let elsewhere = Device::emulated(Arch::Sm100a).upload(&vec![0; x.len()]).unwrap();
    let error = refused(3, &elsewhere, &choices);
    assert!(error.contains("`x` is on emulated sm_100a, number "), "{error}");
    let odd = buffer(x.len() + 2).slice(2, x.len()).unwrap();
    let error = refused(3, &odd, &choices);
    assert!(error.contains("the address of `x` is not a multiple of 16"), "{error}");
    // Behind an all-to-all there may be no token.
    experts.forward(&stream, 0, &x, &choices, None, &out).unwrap();
    // Half of the result in the residual, which the kernel may read late.
    let both = buffer(9 * HIDDEN);
    let [low, high] = [0, 3 * HIDDEN].map(|start| both.slice(start, 6 * HIDDEN).unwrap());
    let error = experts.forward(&stream, 3, &x, &choices, Some(&low), &high).unwrap_err().to_string();
    assert!(error.contains("overlap in memory"), "{error}");
    experts.forward(&stream, 3, &x, &choices, None, &out).unwrap();
    experts.forward(&stream, 3, &x, &choices, None, &x).unwrap();
    assert_eq!(x.download().unwrap(), out.download().unwrap());
}
