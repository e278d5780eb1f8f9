//! Gated MLPs over CPU tensors, on the emulator: right, for any view that is let in, and what is not let in is told.

use candle_core::{DType, Device, Module, Tensor, Var};
use silumin::formats::quantize::{TensorScale, quantize};
use silumin::runtime::mlp::{ExpertsOptions, MlpOptions, MlpWeights};
use silumin::runtime::weights::{GateUp, Weight};
use silumin::{Arch, Buckets, DualGemm, dual_gemm};
use silumin_candle::{Error, Experts, GatedMlp, Mlp};

const CPU: Device = Device::Cpu;
const N: usize = 72;
const K: usize = 128;

fn values(rows: usize, k: usize, seed: f32) -> Vec<f32> {
    (0..rows * k).map(|i| (i as f32 * 0.7 + seed).sin() * if i % 7 == 0 { 2.0 } else { 0.5 }).collect()
}

fn tensor(rows: usize, k: usize, seed: f32, dtype: DType) -> Tensor {
    Tensor::from_vec(values(rows, k, seed), (rows, k), &CPU).unwrap().to_dtype(dtype).unwrap()
}

/// The same by candle's own operations, in f32 of the same numbers.
fn candle(x: &Tensor, gate: &Tensor, up: &Tensor) -> Tensor {
    let [x, gate, up] = [x, gate, up].map(|tensor| tensor.to_dtype(DType::F32).unwrap());
    let x = x.contiguous().unwrap();
    let x = x.reshape((x.elem_count() / K, K)).unwrap();
    let product = |weights: &Tensor| x.matmul(&weights.t().unwrap()).unwrap();
    (product(&gate).silu().unwrap() * product(&up)).unwrap()
}

/// Whether all elements are those of candle, to a rounding of their type.
fn same(got: &Tensor, want: &Tensor) {
    let relative = match got.dtype() {
        DType::BF16 => 1.0 / 128.0,
        DType::F16 => 1.0 / 1024.0,
        _ => 1e-4,
    };
    let flat = |tensor: &Tensor| {
        let tensor = tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap();
        tensor.to_vec1::<f32>().unwrap()
    };
    let (got, want) = (flat(got), flat(want));
    assert_eq!(got.len(), want.len());
    for (place, (got, want)) in got.iter().zip(&want).enumerate() {
        assert!((got - want).abs() <= relative * want.abs() + 1e-3, "element {place}: {got}, not {want}");
    }
}

fn bf16() -> DualGemm {
    dual_gemm!(<bf16 -> bf16> silu(x @ gate) * (x @ up))
}

fn mlp() -> (GatedMlp, Tensor, Tensor) {
    let (gate, up) = (tensor(N, K, 1.0, DType::BF16), tensor(N, K, 2.0, DType::BF16));
    let mlp =
        GatedMlp::of(&bf16()).tensors(&gate, &up).buckets(Buckets::new([4, 16]).unwrap()).build().unwrap();
    (mlp, gate, up)
}

#[test]
fn every_number_of_rows_is_right_in_any_view_that_needs_no_copy() {
    let (mlp, gate, up) = mlp();
    assert_eq!((mlp.n(), mlp.k(), mlp.kernels().len()), (N, K, 2));
    for rows in [1, 3, 4, 5, 16] {
        let x = tensor(rows, K, rows as f32, DType::BF16);
        same(&mlp.run(&x).unwrap(), &candle(&x, &gate, &up));
    }
    // Three dimensions, and rows out of the middle of a longer tensor.
    let long = tensor(20, K, 9.0, DType::BF16);
    let middle = long.narrow(0, 7, 6).unwrap();
    assert!(middle.layout().start_offset() > 0);
    same(&mlp.run(&middle).unwrap(), &candle(&middle, &gate, &up));
    let batch = middle.reshape((2, 3, K)).unwrap();
    let y = mlp.forward(&batch).unwrap();
    assert_eq!(y.dims(), [2, 3, N]);
    same(&y, &candle(&batch, &gate, &up));
    let one = tensor(1, K, 3.0, DType::BF16).squeeze(0).unwrap();
    assert_eq!(mlp.run(&one).unwrap().dims(), [N]);
    // What comes out is a tensor like any other: its storage has more rows than it where the bucket had.
    let sum = (mlp.run(&middle).unwrap().narrow(0, 1, 2).unwrap() + 1.0).unwrap();
    same(&sum, &(candle(&middle, &gate, &up).narrow(0, 1, 2).unwrap() + 1.0).unwrap());
}

#[test]
fn weights_may_be_halves_of_one_tensor_and_formats_and_chips_differ() {
    let stacked = tensor(2 * N, K, 4.0, DType::F16);
    let (gate, up) = (stacked.narrow(0, 0, N).unwrap(), stacked.narrow(0, N, N).unwrap());
    let x = tensor(5, K, 0.0, DType::F16);
    for (gemm, dtype) in [
        (dual_gemm!(<f16 -> f16> silu(x @ gate) * (x @ up)), DType::F16),
        (dual_gemm!(<f16 -> f32> silu(x @ gate) * (x @ up)), DType::F32),
    ] {
        for arch in [Arch::Sm90a, Arch::Sm100a] {
            let mlp = GatedMlp::of(&gemm).tensors(&gate, &up).largest(8).emulating(arch).build().unwrap();
            let y = mlp.run(&x).unwrap();
            assert_eq!(y.dtype(), dtype);
            same(&y, &candle(&x, &gate, &up));
        }
    }
    // A gate with a scalar of its own.
    let scaled = dual_gemm!(<f16 -> f32> silu(alpha * (x @ gate)) * (x @ up));
    let mlp = GatedMlp::of(&scaled).tensors(&gate, &up).largest(8).scalar("alpha", 0.5).build().unwrap();
    let half = (gate.to_dtype(DType::F32).unwrap() * 0.5).unwrap();
    same(&mlp.run(&x).unwrap(), &candle(&x, &half, &up));
}

#[test]
fn quantised_weights_bring_their_scales() {
    let quantised = |seed| quantize(&values(N, K, seed), N, K, TensorScale::FromMax).unwrap();
    let (gate, up) = (quantised(1.0), quantised(2.0));
    let gemm = dual_gemm!(<A: bf16, B: nvfp4, C: bf16> silu(gate_scale * (x @ gate)) * (up_scale * (x @ up)));
    let weights = GateUp::new(Weight::of(&gate).unwrap(), Weight::of(&up).unwrap()).unwrap();
    let mlp = GatedMlp::of(&gemm).weights(weights, &CPU).largest(8).build().unwrap();
    let x = tensor(3, K, 0.5, DType::BF16);
    let real = |weights: &silumin::formats::Matrix| {
        let all = (0..N * K).map(|i| weights.value(i / K, i % K).unwrap() as f32).collect::<Vec<_>>();
        Tensor::from_vec(all, (N, K), &CPU).unwrap()
    };
    same(&mlp.run(&x).unwrap(), &candle(&x, &real(&gate), &real(&up)));
}

#[test]
fn what_is_wrong_with_a_tensor_is_told_before_anything_runs() {
    let (mlp, gate, up) = mlp();
    let error = |x: &Tensor| mlp.run(x).unwrap_err();
    let x = tensor(4, K, 0.0, DType::BF16);
    assert!(matches!(
        error(&x.to_dtype(DType::F16).unwrap()),
        Error::DType { tensor: "x", found: DType::F16, expected: DType::BF16 }
    ));
    assert!(matches!(error(&tensor(4, K + 32, 0.0, DType::BF16)), Error::Shape { tensor: "x", .. }));
    assert!(matches!(error(&x.narrow(0, 0, 0).unwrap()), Error::Shape { tensor: "x", .. }));
    let wide = tensor(4, 2 * K, 0.0, DType::BF16).narrow(1, 0, K).unwrap();
    let strided = error(&wide);
    assert!(matches!(strided, Error::Strided { tensor: "x", .. }));
    assert!(strided.to_string().contains("contiguous()"), "{strided}");
    let odd = Tensor::zeros(K + 3, DType::BF16, &CPU).unwrap().narrow(0, 3, K).unwrap();
    assert!(matches!(error(&odd), Error::Alignment { bytes: 6, alignment: 16, .. }));
    // More rows than the largest bucket: the sizes that there are stand in the error, through candle's own type too.
    let many = error(&tensor(17, K, 0.0, DType::BF16));
    assert!(matches!(many, Error::Rows(_)) && many.to_string().contains("16 x 72 x 128"), "{many}");
    let through = mlp.forward(&tensor(17, K, 0.0, DType::BF16)).unwrap_err();
    assert!(through.to_string().contains("16 x 72 x 128"), "{through}");
    assert!(matches!(Error::from(through), Error::Rows(_)));

    let gemm = bf16();
    let build =
        |gate: &Tensor, up: &Tensor| GatedMlp::of(&gemm).tensors(gate, up).build().map(drop).unwrap_err();
    assert!(matches!(build(&gate, &up.to_dtype(DType::F32).unwrap()), Error::DType { tensor: "up", .. }));
    assert!(matches!(build(&gate, &up.narrow(0, 0, N - 8).unwrap()), Error::Shape { tensor: "up", .. }));
    assert!(matches!(build(&gate.t().unwrap(), &up.t().unwrap()), Error::Strided { tensor: "gate", .. }));
    assert!(matches!(build(&gate.unsqueeze(0).unwrap(), &up), Error::Shape { tensor: "gate", .. }));
    assert!(matches!(GatedMlp::of(&gemm).build().map(drop), Err(Error::NoWeights)));
    let narrow = tensor(N, 12, 0.0, DType::BF16);
    let illegal = build(&narrow, &narrow);
    assert!(matches!(illegal, Error::Warmup(_)), "{illegal}");
    for (gemm, expected) in [
        (dual_gemm!(<nvfp4 -> f16> silu(x @ gate) * (x @ up)), "activations in nvfp4"),
        (dual_gemm!(<bf16 -> e4m3> silu(x @ gate) * (x @ up)), "writes e4m3"),
        (dual_gemm!(<bf16 -> bf16> silu(x @ gate + b[n]) * (x @ up)), "vector `b`"),
        (dual_gemm!(<A: bf16, B: nvfp4, C: bf16> silu(x @ gate) * (x @ up)), "weights are in bf16"),
    ] {
        let error = GatedMlp::of(&gemm).tensors(&gate, &up).build().map(drop).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_backward_pass_is_refused_and_not_left_out() {
    let (mlp, ..) = mlp();
    let x = Var::from_tensor(&tensor(4, K, 0.0, DType::BF16)).unwrap();
    let y = mlp.run(x.as_tensor()).unwrap().sum_all().unwrap();
    let error = y.backward().unwrap_err().to_string();
    assert!(error.contains("silumin-gated-mlp"), "{error}");
}

/// The block by candle's own operations, in f32, with the intermediate activations rounded to bf16.
fn block(x: &Tensor, [gate, up, down]: [&Tensor; 3]) -> Tensor {
    let middle = candle(x, gate, up).to_dtype(DType::BF16).unwrap().to_dtype(DType::F32).unwrap();
    middle.matmul(&down.to_dtype(DType::F32).unwrap().t().unwrap()).unwrap()
}

/// Whether the norm of the difference is small beside that of the result.
fn close(got: &Tensor, want: &Tensor) {
    let norm = |tensor: &Tensor| tensor.sqr().unwrap().sum_all().unwrap().to_scalar::<f32>().unwrap().sqrt();
    let got = got.to_dtype(DType::F32).unwrap().reshape(want.shape()).unwrap();
    let off = norm(&(got - want).unwrap()) / norm(want);
    assert!(off < 6e-3, "{off}");
}

#[test]
fn a_block_is_right_with_and_without_a_residual() {
    let small = |rows, k, seed| (tensor(rows, k, seed, DType::BF16) * 0.1).unwrap();
    let (gate, up, down) = (small(N, K, 1.0), small(N, K, 2.0), small(K, N, 3.0));
    let buckets = || Buckets::new([4, 16]).unwrap();
    for arch in [Arch::Sm90a, Arch::Sm100a] {
        let options = MlpOptions::new(buckets()).without_residual();
        let mlp = Mlp::of_tensors(&gate, &up, &down).options(options).emulating(arch).load(&CPU).unwrap();
        let adding = Mlp::of_tensors(&gate, &up, &down).options(MlpOptions::new(buckets())).emulating(arch);
        let adding = adding.load(&CPU).unwrap();
        for rows in [1, 3, 4, 5] {
            let x = tensor(rows, K, rows as f32, DType::BF16);
            let want = block(&x, [&gate, &up, &down]);
            let y = mlp.forward(&x.unsqueeze(0).unwrap()).unwrap();
            assert_eq!((y.dims(), y.dtype()), (&[1, rows, K][..], DType::BF16));
            close(&y, &want);
            let residual = tensor(rows, K, 7.0, DType::BF16);
            let want = (want + residual.to_dtype(DType::F32).unwrap()).unwrap();
            close(&adding.run_adding(&x, &residual).unwrap(), &want);
        }
    }
}

#[test]
fn a_block_in_nvfp4_is_right_on_blackwell() {
    let quantised = |rows, k, seed| {
        let small: Vec<f32> = values(rows, k, seed).iter().map(|value| value * 0.1).collect();
        quantize(&small, rows, k, TensorScale::FromMax).unwrap()
    };
    let (n, k) = (64, 128);
    let matrices = [quantised(n, k, 1.0), quantised(n, k, 2.0), quantised(k, n, 3.0)];
    let [gate, up, down] = [0, 1, 2].map(|matrix| Weight::of(&matrices[matrix]).unwrap());
    let weights = MlpWeights::new(GateUp::new(gate, up).unwrap(), down).unwrap();
    let options = MlpOptions::new(Buckets::new([4]).unwrap()).without_residual();
    let mlp = Mlp::of(&weights).options(options.clone()).emulating(Arch::Sm100a).load(&CPU).unwrap();
    assert!(mlp.loaded().quantises());
    let x = tensor(3, k, 0.5, DType::BF16);
    let real = |matrix: &silumin::formats::Matrix| {
        let (rows, k) = (matrix.rows(), matrix.k());
        let all: Vec<f32> = (0..rows * k).map(|i| matrix.value(i / k, i % k).unwrap() as f32).collect();
        Tensor::from_vec(all, (rows, k), &CPU).unwrap()
    };
    let [gate, up, down] = [0, 1, 2].map(|matrix| real(&matrices[matrix]));
    let (got, want) = (mlp.run(&x).unwrap(), block(&x, [&gate, &up, &down]));
    // Another layer, which shares the first one's kernels, and has weights of its own.
    let [gate, up, down] = [1, 0, 2].map(|matrix| Weight::of(&matrices[matrix]).unwrap());
    let other = MlpWeights::new(GateUp::new(gate, up).unwrap(), down).unwrap();
    let beside = mlp.load_layer(&other).unwrap();
    let alone = Mlp::of(&other).options(options).emulating(Arch::Sm100a).load(&CPU).unwrap();
    let bits = |tensor: &Tensor| {
        tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap()
    };
    assert_eq!(bits(&beside.run(&x).unwrap()), bits(&alone.run(&x).unwrap()));
    assert_ne!(bits(&beside.run(&x).unwrap()), bits(&got));
    assert_eq!(bits(&mlp.run(&x).unwrap()), bits(&got));
    // x and the middle are quantised to 4 bits.
    let norm = |tensor: &Tensor| tensor.sqr().unwrap().sum_all().unwrap().to_scalar::<f32>().unwrap().sqrt();
    let off = norm(&(got.to_dtype(DType::F32).unwrap() - &want).unwrap()) / norm(&want);
    assert!(off < 0.25, "{off}");
}

#[test]
fn what_a_block_does_not_take_is_told() {
    let (gate, down) = (tensor(N, K, 1.0, DType::BF16), tensor(K, N, 3.0, DType::BF16));
    let options = MlpOptions::new(Buckets::new([4]).unwrap());
    let mlp = Mlp::of_tensors(&gate, &gate, &down).options(options.clone()).load(&CPU).unwrap();
    let x = tensor(4, K, 0.0, DType::BF16);
    let said = |error: Error| error.to_string();
    assert!(said(mlp.run(&x).unwrap_err()).contains("call `run_adding`"));
    let error = mlp.run_adding(&x, &x.narrow(0, 0, 2).unwrap()).unwrap_err();
    assert!(matches!(error, Error::Shape { tensor: "residual", .. }), "{error}");
    let long = tensor(5, K, 0.0, DType::BF16);
    assert!(
        said(mlp.run_adding(&long, &long).unwrap_err())
            .contains("5 tokens: the block has buckets for 1 to 4")
    );
    let error =
        Mlp::of_tensors(&gate, &gate, &gate).options(options.clone()).load(&CPU).map(drop).unwrap_err();
    assert!(said(error).contains("down is 72 x 128 in bf16"));
    let wide = gate.to_dtype(DType::F32).unwrap();
    let error = Mlp::of_tensors(&wide, &gate, &down).options(options).load(&CPU).map(drop).unwrap_err();
    assert!(matches!(error, Error::DType { tensor: "gate", found: DType::F32, .. }), "{error}");
}

/// Gate, up and down of three experts.
fn experts(device: &Device) -> Vec<[Tensor; 3]> {
    let of = |rows, k, seed| tensor(rows, k, seed, DType::BF16).to_device(device).unwrap();
    [0.0f32, 10.0, 20.0].map(|seed| [of(N, K, seed), of(N, K, seed + 1.0), of(K, N, seed + 2.0)]).into()
}

#[test]
fn experts_are_summed_as_their_tokens_choose() {
    let layer = experts(&CPU);
    let options = ExpertsOptions::new(Buckets::new([4, 16]).unwrap(), 2);
    let experts = Experts::of_tensors(&layer, options).load(&CPU).unwrap();
    let x = tensor(5, K, 0.5, DType::BF16).reshape((1, 5, K)).unwrap();
    let chosen = [2u32, 0, 1, 2, 0, 1, 1, 7, 2, 1];
    let shares = [0.5f32, 0.5, 1.0, -0.25, 0.75, 0.25, 2.0, 1.0, 0.125, 0.875];
    let numbers = Tensor::from_slice(&chosen, (1, 5, 2), &CPU).unwrap();
    let weights = Tensor::from_slice(&shares, (1, 5, 2), &CPU).unwrap();
    let got = experts.run(&x, &numbers, &weights).unwrap();
    assert_eq!((got.dims(), got.dtype()), (x.dims(), DType::BF16));

    // Each expert for all tokens, by candle; the intermediate activations is rounded to bf16.
    let parts: Vec<Vec<f32>> = layer
        .iter()
        .map(|[gate, up, down]| {
            let middle = candle(&x, gate, up).to_dtype(DType::BF16).unwrap().to_dtype(DType::F32).unwrap();
            let down = down.to_dtype(DType::F32).unwrap().t().unwrap();
            let rows =
                middle.matmul(&down).unwrap().to_dtype(DType::BF16).unwrap().to_dtype(DType::F32).unwrap();
            rows.flatten_all().unwrap().to_vec1::<f32>().unwrap()
        })
        .collect();
    let expected: Vec<f32> = (0..5 * K)
        .map(|at| {
            let choices = at / K * 2..at / K * 2 + 2;
            choices.filter_map(|choice| Some(shares[choice] * parts.get(chosen[choice] as usize)?[at])).sum()
        })
        .collect();
    let got = got.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|value| value * value).sum::<f32>().sqrt();
    let off = norm(&mut got.iter().zip(&expected).map(|(got, expected)| got - expected));
    assert!(off < 6e-3 * norm(&mut expected.iter().copied()), "{off}");

    let error = experts.run(&x, &weights, &weights).unwrap_err().to_string();
    assert!(error.contains("experts") && error.contains("U32"), "{error}");
    let flat = numbers.reshape((5, 2)).unwrap();
    let error = experts.run(&x, &flat, &weights).unwrap_err().to_string();
    assert!(error.contains("[1, 5, 2]: the choices of each of x's tokens"), "{error}");
    let many = Tensor::zeros((17, K), DType::BF16, &CPU).unwrap();
    let (numbers, weights) =
        (Tensor::zeros((17, 2), DType::U32, &CPU), Tensor::zeros((17, 2), DType::F32, &CPU));
    let error = experts.run(&many, &numbers.unwrap(), &weights.unwrap()).unwrap_err().to_string();
    assert!(error.contains("17 tokens"), "{error}");
}
