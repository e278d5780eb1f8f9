//! The gated MLP of a layer on the emulated device against f64 on decoded values, with the quantisation of the middle in the
//! reference: both ways for activations to travel, weights of both checkpoint conventions' scales, all activations, any number of
//! tokens.

use half::bf16;
use silumin::codegen::problem::{OperandFormat, OutputFormat};
use silumin::formats::Matrix;
use silumin::formats::quantize::{TensorScale, quantize_to};
use silumin::runtime::communicator::{Communicator, CommunicatorError};
use silumin::runtime::mlp::{Activation, Mlp, MlpError, MlpOptions, MlpWeights, Source};
use silumin::runtime::warmup::Buckets;
use silumin::runtime::weights::{GateUp, RowScales, Weight};
use silumin::verify::block::relative_error;
use silumin::{Arch, Buffer, Device};
use silumin_testkit::sixteen::{normal, read, rounded};

const HIDDEN: usize = 192;
const FEATURES: usize = 320;
const BUCKETS: [u32; 2] = [8, 40];

/// A width in whole blocks of the format along K.
fn width(format: OperandFormat, usual: usize) -> usize {
    usual.next_multiple_of(if format.spec().k_multiple == 128 { 128 } else { 1 })
}

/// A layer's weights; tensor scales differ and are not 1 where the format has them.
struct Layer {
    gate: Matrix,
    up: Matrix,
    down: Matrix,
}

impl Layer {
    fn new(format: OperandFormat) -> Layer {
        let [hidden, features] = [HIDDEN, FEATURES].map(|usual| width(format, usual));
        Layer::wide(format, hidden, features)
    }

    fn wide(format: OperandFormat, hidden: usize, features: usize) -> Layer {
        let of = |rows: usize, k: usize, seed, size| {
            let values = normal(rows * k, seed, size / (k as f64).sqrt());
            quantize_to(format, &values, rows, k, TensorScale::FromMax).unwrap()
        };
        Layer {
            gate: of(features, hidden, 1, 1.5),
            up: of(features, hidden, 2, 0.7),
            down: of(hidden, features, 3, 2.0),
        }
    }

    fn weights(&self) -> MlpWeights<'_> {
        self.calibrated(None)
    }

    /// With scales of x and of the middle.
    fn calibrated(&self, scales: Option<[f32; 2]>) -> MlpWeights<'_> {
        let [gate, up, down] = [&self.gate, &self.up, &self.down].map(|matrix| Weight::of(matrix).unwrap());
        let gate_up = GateUp::new(gate, up).unwrap().with_input_scale(scales.map(|[x, _]| x));
        let weights = MlpWeights::new(gate_up, down).unwrap();
        scales.map_or(weights, |[_, middle]| weights.with_middle_scale(middle).unwrap())
    }
}

/// The block in f64 on decoded values, with the quantisation or rounding of x and of the middle.
fn reference(mlp: &Mlp, layer: &Layer, x: &[f32], residual: Option<&[f32]>) -> Vec<f64> {
    let down = mlp.reference(&layer.weights(), x).unwrap();
    match residual {
        Some(residual) => down.iter().zip(residual).map(|(down, x)| down + f64::from(*x)).collect(),
        None => down,
    }
}

struct Case {
    arch: Arch,
    weights: OperandFormat,
    source: Source,
    activation: Activation,
    residual: bool,
    /// Scales of x and of the middle, as of a checkpoint that was calibrated.
    scales: Option<[f32; 2]>,
    buckets: &'static [u32],
}

impl Case {
    fn new(arch: Arch, weights: OperandFormat, source: Source) -> Case {
        Case {
            arch,
            weights,
            source,
            activation: Activation::Silu,
            residual: true,
            scales: None,
            buckets: &BUCKETS,
        }
    }

    /// Runs numbers of tokens; returns whether activations are quantised and the largest relative error.
    fn run(&self, tokens: &[u32]) -> (bool, f64) {
        let Case { arch, weights, source, activation, residual, scales, buckets } = *self;
        let device = Device::emulated(arch);
        let layer = Layer::new(weights);
        let options =
            MlpOptions { residual, ..MlpOptions::new(Buckets::new(buckets.iter().copied()).unwrap()) };
        let options = options.activation(activation).source(source);
        let weights = layer.calibrated(scales);
        let mlp = Mlp::load(&device, &weights, &options).unwrap();
        let hidden = mlp.hidden();
        let mut worst = 0.0f64;
        for tokens in tokens.iter().copied() {
            let rows = mlp.rows(tokens).unwrap() as usize;
            let (x, x_bytes) = rounded(source, &normal(tokens as usize * hidden, 7 + u64::from(tokens), 1.0));
            let (added, added_bytes) = rounded(source, &normal(rows * hidden, 11, 3.0));
            let x_there = device.upload(&x_bytes).unwrap();
            // In place: the residual stream becomes the result.
            let out = device.upload(&added_bytes).unwrap();
            let given = residual.then_some(&out);
            mlp.forward(&device.stream(), tokens, &x_there, given, &out).unwrap();
            let count = tokens as usize * hidden;
            // x with the bucket's rows gives the same.
            let whole = [&x_bytes[..], &vec![0x3f; 2 * (rows * hidden - count)]].concat();
            let (whole, again) = (device.upload(&whole).unwrap(), device.upload(&added_bytes).unwrap());
            let given = residual.then_some(&again);
            mlp.forward(&device.stream(), tokens, &whole, given, &again).unwrap();
            let [first, second] = [&out, &again].map(|out| out.download().unwrap()[..2 * count].to_vec());
            assert!(first == second, "{tokens} tokens in {rows} rows");
            let expected = reference(&mlp, &layer, &x, residual.then_some(&added[..count]));
            let got = read(source, &out.download().unwrap());
            assert!(got[..count].iter().all(|value| value.is_finite()));
            worst = worst.max(relative_error(&got[..count], &expected));
        }
        (mlp.quantises(), worst)
    }
}

#[test]
fn a_block_is_right_on_each_chip_with_each_format() {
    use OperandFormat::{Bf16, E4m3, E4m3Block128, F16, Mxfp4, Mxfp8, Nvfp4};
    for (arch, weights, source, quantises) in [
        (Arch::Sm100a, Nvfp4, Source::Bf16, true),
        (Arch::Sm100a, Nvfp4, Source::F16, true),
        (Arch::Sm100a, Bf16, Source::Bf16, false),
        (Arch::Sm90a, Nvfp4, Source::Bf16, false),
        (Arch::Sm90a, Mxfp4, Source::Bf16, false),
        (Arch::Sm90a, F16, Source::F16, false),
        (Arch::Sm90a, E4m3, Source::Bf16, true),
        (Arch::Sm100a, E4m3, Source::F16, true),
        (Arch::Sm110a, Nvfp4, Source::Bf16, true),
        // These kernels write no NVFP4: a launch of its own quantises the middle.
        (Arch::Sm120a, Nvfp4, Source::Bf16, true),
        (Arch::Sm121a, Nvfp4, Source::F16, true),
        (Arch::Sm120a, E4m3, Source::Bf16, true),
        (Arch::Sm121a, Bf16, Source::Bf16, false),
        // Scale factors of blocks: in f32 on Hopper, requantised to MXFP8 on Blackwell.
        (Arch::Sm90a, E4m3Block128, Source::Bf16, true),
        (Arch::Sm90a, E4m3Block128, Source::F16, true),
        (Arch::Sm100a, E4m3Block128, Source::Bf16, true),
        (Arch::Sm120a, E4m3Block128, Source::F16, true),
        (Arch::Sm100a, Mxfp8, Source::F16, true),
        (Arch::Sm121a, Mxfp8, Source::Bf16, true),
    ] {
        let (found, error) = Case::new(arch, weights, source).run(&[1, 8, 9, 40]);
        assert_eq!(found, quantises, "{arch}, {weights}");
        // Rounding of the result alone is 2^-9 in bf16. Where the middle is quantised, sums that lie next to a boundary between
        // two codes may go either way.
        assert!(error < 6e-3, "{arch}, {weights}, {source:?}: {error:.2e}");
    }
}

/// The formats of the middle as the first kernel writes it, of blocks and of experts.
pub const WRITTEN: [(Arch, OperandFormat, OutputFormat); 6] = [
    (Arch::Sm100a, OperandFormat::Nvfp4, OutputFormat::Nvfp4),
    (Arch::Sm100a, OperandFormat::Mxfp8, OutputFormat::Mxfp8),
    (Arch::Sm110a, OperandFormat::E4m3Block128, OutputFormat::Mxfp8),
    (Arch::Sm90a, OperandFormat::E4m3Block128, OutputFormat::Bf16),
    (Arch::Sm120a, OperandFormat::Mxfp8, OutputFormat::Bf16),
    (Arch::Sm121a, OperandFormat::Nvfp4, OutputFormat::Bf16),
];

#[test]
fn the_first_kernel_quantises_the_middle_where_it_can() {
    for (arch, weights, written) in WRITTEN {
        let (device, layer) = (Device::emulated(arch), Layer::new(weights));
        let options = MlpOptions::new(Buckets::new([8]).unwrap());
        let loaded = Mlp::load(&device, &layer.weights(), &options).unwrap();
        let found: Vec<_> =
            loaded.kernels()[0].iter().map(|kernel| kernel.kernel().problem.formats.c).collect();
        assert!(!found.is_empty() && found.iter().all(|c| *c == written), "{arch}, {weights}: {found:?}");
    }
}

#[test]
fn tokens_of_a_large_bucket_are_right() {
    // Both kernels have several rows of tiles, and leave out those behind the tokens.
    for (arch, weights) in [
        (Arch::Sm90a, OperandFormat::Bf16),
        (Arch::Sm90a, OperandFormat::Nvfp4),
        (Arch::Sm90a, OperandFormat::E4m3Block128),
        (Arch::Sm100a, OperandFormat::Nvfp4),
        (Arch::Sm100a, OperandFormat::Mxfp8),
        (Arch::Sm120a, OperandFormat::Nvfp4),
    ] {
        let case = Case { buckets: &[600], ..Case::new(arch, weights, Source::Bf16) };
        let (_, error) = case.run(&[70, 130, 599]);
        assert!(error < 6e-3, "{arch}, {weights}: {error:.2e}");
    }
}

#[test]
fn fp8_activations_have_a_checkpoint_s_scales_or_one_for_each_token() {
    for (arch, source) in [(Arch::Sm90a, Source::F16), (Arch::Sm100a, Source::Bf16)] {
        for scales in [None, Some([1.0 / 64.0, 1.0 / 32.0])] {
            let case = Case { scales, ..Case::new(arch, OperandFormat::E4m3, source) };
            let (quantised, error) = case.run(&[1, 9, 40]);
            assert!(quantised && error < 6e-3, "{arch}, {source:?}, {scales:?}: {error:.2e}");
        }
    }
}

#[test]
fn every_activation_and_no_residual() {
    for activation in Activation::ALL {
        for residual in [true, false] {
            let case = Case::new(Arch::Sm100a, OperandFormat::Nvfp4, Source::Bf16);
            let (_, error) = Case { activation, residual, ..case }.run(&[5]);
            assert!(error < 6e-3, "{activation:?}, residual {residual}: {error:.2e}");
        }
    }
}

/// Scales of rows, from 1/2 to 3/2, in bf16 or f32.
fn row_scales(rows: usize, brain: bool) -> Vec<u8> {
    let scale = |row: usize| 0.5 + (row * 7 % 16) as f32 / 16.0;
    let bytes = |row| match brain {
        true => bf16::from_f32(scale(row)).to_le_bytes().to_vec(),
        false => scale(row).to_le_bytes().to_vec(),
    };
    (0..rows).flat_map(bytes).collect()
}

#[test]
fn rows_of_fp8_weights_have_scales_of_their_own() {
    let layer = Layer::new(OperandFormat::E4m3);
    let (brain, wide, long) =
        (row_scales(FEATURES, true), row_scales(FEATURES, false), row_scales(HIDDEN, false));
    let with = |matrix, scales| Weight::of(matrix).unwrap().with_row_scales(scales).unwrap();
    let gate = with(&layer.gate, RowScales::bf16(&brain));
    let gate_up = GateUp::new(gate, with(&layer.up, RowScales::f32(&wide))).unwrap();
    let weights = MlpWeights::new(gate_up, with(&layer.down, RowScales::f32(&long))).unwrap();
    let options = MlpOptions::new(Buckets::new([8]).unwrap());
    let (x, x_bytes) = rounded(Source::Bf16, &normal(5 * HIDDEN, 7, 1.0));
    let (added, added_bytes) = rounded(Source::Bf16, &normal(8 * HIDDEN, 11, 3.0));
    for arch in [Arch::Sm90a, Arch::Sm100a] {
        let device = Device::emulated(arch);
        let mlp = Mlp::load(&device, &weights, &options).unwrap();
        let down = mlp.reference(&weights, &x).unwrap();
        let expected: Vec<f64> = down.iter().zip(&added).map(|(down, x)| down + f64::from(*x)).collect();
        let plain = mlp.reference(&layer.weights(), &x).unwrap();
        assert!(relative_error(&down, &plain) > 0.1, "scales of rows matter here");
        let right = |result: &Buffer| {
            relative_error(&read(Source::Bf16, &result.download().unwrap())[..5 * HIDDEN], &expected)
        };
        let (there, out) = (device.upload(&x_bytes).unwrap(), device.upload(&added_bytes).unwrap());
        mlp.forward(&device.stream(), 5, &there, Some(&out), &out).unwrap();
        assert!(right(&out) < 6e-3, "{arch}: {:.2e}", right(&out));

        // The same on two ranks: down's columns are cut, and its rows' scales are not. A rank's part of a token has its own scale.
        let mut expected: Vec<f64> = added[..5 * HIDDEN].iter().map(|x| f64::from(*x)).collect();
        for rank in 0..2 {
            let shard = weights.shard(rank, 2).unwrap();
            let part = mlp.reference(&shard.weights().unwrap(), &x).unwrap();
            expected.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
        }
        let right = |result: &Buffer| {
            relative_error(&read(Source::Bf16, &result.download().unwrap())[..5 * HIDDEN], &expected)
        };
        let devices = [device.clone(), Device::emulated(arch)];
        let group = Communicator::all(&devices).unwrap();
        std::thread::scope(|scope| {
            for rank in &group {
                scope.spawn(|| {
                    let mlp = Mlp::load_shard(rank, &weights, &options).unwrap();
                    let device = rank.device();
                    let (x, out) = (device.upload(&x_bytes).unwrap(), device.upload(&added_bytes).unwrap());
                    let stream = device.stream();
                    mlp.forward(&stream, 5, &x, Some(&out), &out).unwrap();
                    rank.wait(&stream).unwrap();
                    assert!(right(&out) < 8e-3, "{arch}, two ranks: {:.2e}", right(&out));
                });
            }
        });
    }
    let error = Weight::of(&layer.gate).unwrap().with_row_scales(RowScales::f32(&brain)).unwrap_err();
    assert!(error.to_string().contains("the scales of rows"), "{error}");
    let error = Weight::of(&layer.down)
        .unwrap()
        .with_row_scales(RowScales::f32(&vec![0xFF; 4 * HIDDEN]))
        .unwrap_err();
    assert!(error.to_string().contains("the scale of row 0 is NaN"), "{error}");
}

/// Results of all ranks, each computed twice: by `forward` and by a recorded call.
fn on_ranks(
    ranks: &[Communicator],
    layer: &Layer,
    options: &MlpOptions,
    tokens: u32,
    x: &[u8],
    residual: &[u8],
) -> Vec<Vec<f64>> {
    let one = |rank: &Communicator| {
        let mlp = Mlp::load_shard(rank, &layer.weights(), options).unwrap();
        assert_eq!((mlp.hidden(), mlp.features()), (HIDDEN, FEATURES / rank.ranks()));
        let device = rank.device();
        let stream = device.new_stream().unwrap();
        let (x, out) = (device.upload(x).unwrap(), device.upload(residual).unwrap());
        mlp.forward(&stream, tokens, &x, Some(&out), &out).unwrap();
        rank.wait(&stream).unwrap();
        let first = read(options.source, &out.download().unwrap());
        out.write(residual).unwrap();
        let call = mlp.record(&stream, tokens, &x, Some(&out), &out).unwrap();
        call.launch().unwrap();
        rank.wait(&stream).unwrap();
        assert_eq!(read(options.source, &out.download().unwrap()), first);
        first[..tokens as usize * HIDDEN].to_vec()
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.iter().map(|rank| scope.spawn(move || one(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn ranks_have_the_result_of_the_whole_block() {
    use OperandFormat::{Bf16, Nvfp4};
    for (arch, weights, ranks) in
        [(Arch::Sm100a, Nvfp4, 2), (Arch::Sm100a, Nvfp4, 5), (Arch::Sm90a, Nvfp4, 2), (Arch::Sm90a, Bf16, 4)]
    {
        let (layer, source) = (Layer::new(weights), Source::Bf16);
        let options = MlpOptions::new(Buckets::new(BUCKETS).unwrap());
        let devices: Vec<Device> = (0..ranks).map(|_| Device::emulated(arch)).collect();
        for tokens in [3u32, 40] {
            let rows = if tokens > 8 { 40 } else { 8 };
            let (x, x_bytes) = rounded(source, &normal(tokens as usize * HIDDEN, 7, 1.0));
            let (added, added_bytes) = rounded(source, &normal(rows * HIDDEN, 11, 3.0));
            let group = Communicator::all(&devices).unwrap();
            let results = on_ranks(&group, &layer, &options, tokens, &x_bytes, &added_bytes);
            assert!(results.iter().all(|result| *result == results[0]), "all ranks have the same");

            let whole = Mlp::load(&devices[0], &layer.weights(), &options).unwrap();
            let count = tokens as usize * HIDDEN;
            let expected = reference(&whole, &layer, &x, Some(&added[..count]));
            let error = relative_error(&results[0], &expected);
            // Each part is rounded to bf16 before it is added.
            assert!(error < 8e-3, "{arch}, {weights}, {ranks} ranks, {tokens} tokens: {error:.2e}");
        }
    }
}

/// FP8 with scale factors of blocks on two ranks: down's columns are cut with their factors.
#[test]
fn ranks_share_blocks_of_scale_factors() {
    let (format, source) = (OperandFormat::E4m3Block128, Source::Bf16);
    let layer = Layer::wide(format, 256, 512);
    let options = MlpOptions::new(Buckets::new([8]).unwrap()).without_residual();
    for arch in [Arch::Sm90a, Arch::Sm100a] {
        let (x, x_bytes) = rounded(source, &normal(5 * 256, 7, 1.0));
        let mut expected = vec![0.0; x.len()];
        let whole = Mlp::load(&Device::emulated(arch), &layer.weights(), &options).unwrap();
        for rank in 0..2 {
            let shard = layer.weights().shard(rank, 2).unwrap();
            let part = whole.reference(&shard.weights().unwrap(), &x).unwrap();
            expected.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
        }
        let group = Communicator::all(&[Device::emulated(arch), Device::emulated(arch)]).unwrap();
        std::thread::scope(|scope| {
            for rank in &group {
                scope.spawn(|| {
                    let mlp = Mlp::load_shard(rank, &layer.weights(), &options).unwrap();
                    let (device, stream) = (rank.device(), rank.device().stream());
                    let (x, out) =
                        (device.upload(&x_bytes).unwrap(), device.upload(&[0; 2 * 8 * 256]).unwrap());
                    mlp.forward(&stream, 5, &x, None, &out).unwrap();
                    rank.wait(&stream).unwrap();
                    let got = read(source, &out.download().unwrap());
                    let error = relative_error(&got[..expected.len()], &expected);
                    assert!(error < 8e-3, "{arch}: {error:.2e}");
                });
            }
        });
    }
    let error = Layer::wide(format, 256, 384).weights().shard(0, 2).unwrap_err().to_string();
    assert!(error.contains("384"), "{error}");
}

/// A layer of a rank shares what the rank's first layer has, and both can be recorded: a graph keeps reading its own layer's
/// weights.
#[test]
fn layers_of_ranks_share_beside_recorded_graphs() {
    let first = Layer::new(OperandFormat::Nvfp4);
    let second = Layer { gate: first.up.clone(), up: first.gate.clone(), down: first.down.clone() };
    let options = MlpOptions::new(Buckets::new([8]).unwrap()).without_residual();
    let (_, x) = rounded(Source::Bf16, &normal(5 * HIDDEN, 7, 1.0));
    let group = Communicator::all(&[Device::emulated(Arch::Sm100a), Device::emulated(Arch::Sm100a)]).unwrap();
    std::thread::scope(|scope| {
        for rank in &group {
            scope.spawn(|| {
                let device = rank.device();
                let stream = device.new_stream().unwrap();
                let shared = Mlp::load_shard(rank, &first.weights(), &options).unwrap();
                let beside = shared.load_layer(&second.weights()).unwrap();
                assert_eq!((beside.hidden(), beside.features()), (HIDDEN, FEATURES / 2));
                let x = device.upload(&x).unwrap();
                let memory = || device.upload(&vec![0; 8 * shared.row_bytes()]).unwrap();
                let result = |out: &Buffer| out.slice(0, 5 * shared.row_bytes()).unwrap().download().unwrap();
                let alone = Mlp::load_shard(rank, &second.weights(), &options).unwrap();
                let expected = [&shared, &alone].map(|mlp| {
                    let out = memory();
                    mlp.forward(&stream, 5, &x, None, &out).unwrap();
                    rank.wait(&stream).unwrap();
                    result(&out)
                });
                assert_ne!(expected[0], expected[1]);
                let outs = [memory(), memory()];
                let calls = [(&shared, &outs[0]), (&beside, &outs[1])]
                    .map(|(mlp, out)| mlp.record(&stream, 5, &x, None, out).unwrap());
                for order in [[0, 1], [1, 0]] {
                    for which in order {
                        calls[which].launch().unwrap();
                        rank.wait(&stream).unwrap();
                        assert!(result(&outs[which]) == expected[which], "layer {which}");
                    }
                }
            });
        }
    });
}

#[test]
fn a_rank_that_does_not_come_is_named() {
    let layer = Layer::new(OperandFormat::Bf16);
    let options = MlpOptions::new(Buckets::new([8]).unwrap()).without_residual();
    let devices = [Device::emulated(Arch::Sm90a), Device::emulated(Arch::Sm90a)];
    let forward = |rank: &Communicator| {
        let mlp = Mlp::load_shard(rank, &layer.weights(), &options).unwrap();
        let buffer = |rows: usize| devices[rank.rank()].upload(&vec![0; rows * mlp.row_bytes()]).unwrap();
        mlp.forward(&rank.device().stream(), 8, &buffer(8), None, &buffer(8)).unwrap_err()
    };
    let mut group = Communicator::all_within(&devices, std::time::Duration::from_millis(100)).unwrap();
    let error = forward(&group[0]).to_string();
    assert!(
        error.contains("rank 1 (emulated sm_90a, number ")
            && error.contains(") is late: it has asked for 0 sums"),
        "{error}"
    );
    let error = forward(&group[1]).to_string();
    assert!(error.contains("the group failed before: rank 1"), "{error}");

    group = Communicator::all(&devices).unwrap();
    drop(group.pop());
    let error = forward(&group[0]);
    let left = matches!(&error, MlpError::Communicator(CommunicatorError::Left { rank: 1, its: 0, .. }));
    assert!(left, "{error}");

    let same = [devices[0].clone(), devices[0].clone()];
    let error = Communicator::all(&same).unwrap_err().to_string();
    assert!(error.contains("ranks 0 and 1 are the same device"), "{error}");
    assert_eq!(Communicator::all(&[]).unwrap_err(), CommunicatorError::NoDevices);
}

#[test]
fn widths_that_do_not_divide_name_those_that_do() {
    // 320 features in blocks of 32.
    let nvfp4 = Layer::new(OperandFormat::Nvfp4);
    let error = nvfp4.weights().shard(0, 4).unwrap_err().to_string();
    assert!(
        error.contains("320 features cannot be divided among 4 ranks, for each has a multiple of 32"),
        "{error}"
    );
    assert!(error.contains("numbers of ranks are 2 and 5") && error.contains("are 256 and 384"), "{error}");
    let error = nvfp4.weights().shard(2, 2).unwrap_err().to_string();
    assert!(error.contains("rank 2 of 2"), "{error}");
    // 8 of 16 bits are 16 bytes.
    assert!(Layer::new(OperandFormat::Bf16).weights().shard(39, 40).is_ok());
}

#[test]
fn layers_share_kernels_and_memory_and_nothing_else() {
    for (format, scales) in [
        (OperandFormat::Nvfp4, Some([0.125, 0.25])),
        (OperandFormat::E4m3, None),
        (OperandFormat::Bf16, None),
    ] {
        let device = Device::emulated(Arch::Sm100a);
        let first = Layer::new(format);
        let second = Layer { gate: first.up.clone(), up: first.gate.clone(), down: first.down.clone() };
        let options = MlpOptions::new(Buckets::new([8]).unwrap());
        let shared = Mlp::load(&device, &first.weights(), &options).unwrap();
        let beside = shared.load_layer(&second.calibrated(scales)).unwrap();
        let alone = Mlp::load(&device, &second.calibrated(scales), &options).unwrap();
        assert_eq!(beside.activation_scales(), alone.activation_scales());
        let (_, x) = rounded(Source::Bf16, &normal(5 * HIDDEN, 7, 1.0));
        let x = device.upload(&x).unwrap();
        let result = |mlp: &Mlp| {
            let out = device.upload(&vec![0; 8 * mlp.row_bytes()]).unwrap();
            mlp.forward(&device.stream(), 5, &x, Some(&out), &out).unwrap();
            out.slice(0, 5 * mlp.row_bytes()).unwrap().download().unwrap()
        };
        let (of_first, of_second) = (result(&shared), result(&alone));
        assert_ne!(of_first, of_second);
        assert!(result(&beside) == of_second && result(&shared) == of_first, "{format}");
        let other = if format == OperandFormat::Bf16 { OperandFormat::Nvfp4 } else { OperandFormat::Bf16 };
        let error = shared.load_layer(&Layer::new(other).weights()).unwrap_err().to_string();
        assert!(error.contains("cannot share the kernels of"), "{error}");
    }
}

#[test]
fn weights_that_are_repacked_already_give_the_same_result() {
    let device = Device::emulated(Arch::Sm90a);
    let options = MlpOptions::new(Buckets::new([8]).unwrap()).without_residual();
    for format in [OperandFormat::Nvfp4, OperandFormat::Mxfp4] {
        let layer = Layer::new(format);
        let before = |matrix: &Matrix| Weight::of(matrix).unwrap().to_repacked().unwrap();
        let repacked = Layer { gate: before(&layer.gate), up: before(&layer.up), down: before(&layer.down) };
        let result = |layer: &Layer| {
            let mlp = Mlp::load(&device, &layer.weights(), &options).unwrap();
            let x = device.upload(&rounded(Source::Bf16, &normal(8 * HIDDEN, 7, 1.0)).1).unwrap();
            let out = device.alloc(8 * mlp.row_bytes()).unwrap();
            mlp.forward(&device.stream(), 8, &x, None, &out).unwrap();
            out.download().unwrap()
        };
        assert!(result(&layer) == result(&repacked), "{format}");
    }
}

#[test]
fn what_does_not_fit_is_an_error_that_names_it() {
    let layer = Layer::new(OperandFormat::Nvfp4);
    let device = Device::emulated(Arch::Sm100a);
    let options = MlpOptions::new(Buckets::new(BUCKETS).unwrap());
    let gate_up = GateUp::new(Weight::of(&layer.gate).unwrap(), Weight::of(&layer.up).unwrap()).unwrap();
    let error = MlpWeights::new(gate_up, Weight::of(&layer.up).unwrap()).unwrap_err();
    assert!(error.to_string().contains("down is 320 x 192 in nvfp4"), "{error}");
    let error = layer.weights().with_middle_scale(f32::NAN).unwrap_err();
    assert!(matches!(error, MlpError::MiddleScale { .. }), "{error}");
    let half = Layer::new(OperandFormat::E4m3);
    let half = half.weights().with_middle_scale(0.5).unwrap();
    let error = Mlp::load(&device, &half, &options).unwrap_err().to_string();
    assert!(error.contains("none for x: set both") && error.contains("without_activation_scales"), "{error}");
    for (arch, format, reason) in [
        (Arch::Sm90a, OperandFormat::Mxfp8, "no MMA multiplies bf16 by mxfp8;"),
        (Arch::Sm100a, OperandFormat::Mxfp4, "bf16 x mxfp4 -> bf16: not on sm_100a"),
    ] {
        let layer = Layer::new(format);
        let error = Mlp::load(&Device::emulated(arch), &layer.weights(), &options).unwrap_err();
        let error = error.to_string();
        assert!(error.contains(&format!("block with {format} weights on {arch}")), "{error}");
        assert!(error.contains(reason), "{error}");
    }

    let mlp = Mlp::load(&device, &layer.weights(), &options).unwrap();
    let buffer = |rows: usize| device.upload(&vec![0; rows * mlp.row_bytes()]).unwrap();
    let (x, out) = (buffer(3), buffer(8));
    let stream = device.stream();
    let error = mlp.forward(&stream, 41, &x, Some(&out), &out).unwrap_err();
    assert!(error.to_string().contains("41 tokens: the block has buckets for 1 to 40"), "{error}");
    let error = mlp.forward(&stream, 0, &x, Some(&out), &out).unwrap_err();
    assert!(matches!(error, MlpError::Tokens { tokens: 0, .. }), "{error}");
    let error = mlp.forward(&stream, 3, &x, None, &out).unwrap_err();
    assert!(error.to_string().contains("none was given"), "{error}");
    let error = mlp.forward(&stream, 3, &x, Some(&x), &out).unwrap_err();
    assert!(matches!(error, MlpError::Length { tensor: "residual", .. }), "{error}");
    mlp.forward(&stream, 3, &x, Some(&out), &out).unwrap();
}
