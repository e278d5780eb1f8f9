//! The CUDA code: on a GPU, or, as `check.sh cuda` runs it, on the emulated driver. No operation of candle's own runs on the
//! device, so that candle's kernels are not needed: tensors are made and compared on the CPU.
#![cfg(feature = "cuda")]

use candle_core::{DType, Device, Tensor};
use silumin::formats::quantize::{TensorScale, quantize};
use silumin::runtime::mlp::{ExpertsOptions, MlpOptions};
use silumin::runtime::weights::{GateUp, Weight};
use silumin::{Buckets, Cache, dual_gemm};
use silumin_candle::{Error, Experts, GatedMlp, Mlp};

const N: usize = 72;
const K: usize = 128;

fn values(rows: usize, k: usize, seed: f32) -> Vec<f32> {
    (0..rows * k).map(|i| (i as f32 * 0.7 + seed).sin() * if i % 7 == 0 { 2.0 } else { 0.5 }).collect()
}

/// On the CPU.
fn tensor(rows: usize, k: usize, seed: f32) -> Tensor {
    let tensor = Tensor::from_vec(values(rows, k, seed), (rows, k), &Device::Cpu).unwrap();
    tensor.to_dtype(DType::BF16).unwrap()
}

fn candle(x: &Tensor, gate: &Tensor, up: &Tensor) -> Tensor {
    let [x, gate, up] = [x, gate, up].map(|tensor| tensor.to_dtype(DType::F32).unwrap());
    let product = |weights: &Tensor| x.matmul(&weights.t().unwrap()).unwrap();
    (product(&gate).silu().unwrap() * product(&up)).unwrap()
}

fn same(got: &Tensor, want: &Tensor) {
    let got = got.to_device(&Device::Cpu).unwrap();
    assert_eq!(got.dims(), want.dims());
    let flat = |tensor: &Tensor| {
        tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap()
    };
    for (place, (got, want)) in flat(&got).iter().zip(&flat(want)).enumerate() {
        assert!((got - want).abs() <= want.abs() / 128.0 + 1e-3, "element {place}: {got}, not {want}");
    }
}

/// candle's default device, whose stream each thread has one of, and one with a stream of its own.
fn devices() -> [Device; 2] {
    [Device::new_cuda(0).unwrap(), Device::new_cuda_with_stream(0).unwrap()]
}

#[test]
fn tensors_are_used_where_they_are() {
    let gemm = dual_gemm!(<bf16 -> bf16> silu(x @ gate) * (x @ up));
    let folder = std::env::temp_dir().join(format!("silumin-candle-{}", std::process::id()));
    for device in devices() {
        let (gate, up) = (tensor(N, K, 1.0), tensor(N, K, 2.0));
        let there = [&gate, &up].map(|tensor| tensor.to_device(&device).unwrap());
        let mlp = GatedMlp::of(&gemm)
            .tensors(&there[0], &there[1])
            .buckets(Buckets::new([4, 16]).unwrap())
            .cache(Cache::open(&folder))
            .build()
            .unwrap();
        // The weights' tensors may go: the MLP keeps their memory.
        drop(there);
        let long = tensor(20, K, 9.0);
        let long_there = long.to_device(&device).unwrap();
        for (first, rows) in [(0, 1), (3, 4), (7, 6), (4, 16)] {
            let x = long.narrow(0, first, rows).unwrap();
            let y = mlp.run(&long_there.narrow(0, first, rows).unwrap()).unwrap();
            assert!(y.device().same_device(&device));
            same(&y, &candle(&x, &gate, &up));
            // A view of the result: its storage has the bucket's rows.
            let last = y.narrow(0, rows - 1, 1).unwrap();
            same(&last, &candle(&x, &gate, &up).narrow(0, rows - 1, 1).unwrap());
        }
        // What one call makes another reads, on the stream alone: no wait of the host's in between.
        let square = tensor(K, K, 5.0);
        let square_there = square.to_device(&device).unwrap();
        let chain = GatedMlp::of(&gemm).tensors(&square_there, &square_there).largest(8).build().unwrap();
        let x = tensor(8, K, 3.0);
        let y = chain.run(&x.to_device(&device).unwrap()).unwrap();
        let z = mlp.run(&y).unwrap();
        same(&z, &candle(&y.to_device(&Device::Cpu).unwrap(), &gate, &up));
        // From several threads, each with results of its own.
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (mlp, device, gate, up) = (&mlp, &device, &gate, &up);
                scope.spawn(move || {
                    for step in 0..5 {
                        let x = tensor(1 + (thread + step) % 16, K, (thread * 10 + step) as f32);
                        same(&mlp.run(&x.to_device(device).unwrap()).unwrap(), &candle(&x, gate, up));
                    }
                });
            }
        });
        let error = mlp.run(&tensor(4, K, 0.0)).unwrap_err();
        assert!(matches!(error, Error::Device { tensor: "x", .. }), "{error}");
        let error = mlp.run(&tensor(17, K, 0.0).to_device(&device).unwrap()).unwrap_err();
        assert!(matches!(error, Error::Rows(_)), "{error}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn quantised_weights_go_to_candle_s_device() {
    // sm_90a alone decodes weights in the kernel.
    let device = Device::new_cuda(0).unwrap();
    let quantised = |seed| quantize(&values(N, K, seed), N, K, TensorScale::FromMax).unwrap();
    let (gate, up) = (quantised(1.0), quantised(2.0));
    let gemm = dual_gemm!(<A: bf16, B: nvfp4, C: bf16> silu(gate_scale * (x @ gate)) * (up_scale * (x @ up)));
    let weights = GateUp::new(Weight::of(&gate).unwrap(), Weight::of(&up).unwrap()).unwrap();
    let mlp = match GatedMlp::of(&gemm).weights(weights, &device).largest(8).build() {
        Ok(mlp) => mlp,
        Err(Error::Warmup(error)) => {
            let arch = silumin::Device::cuda(0).unwrap().arch();
            assert!(arch != silumin::Arch::Sm90a, "{error}");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let x = tensor(3, K, 0.5);
    let real = |weights: &silumin::formats::Matrix| {
        let all = (0..N * K).map(|i| weights.value(i / K, i % K).unwrap() as f32).collect::<Vec<_>>();
        Tensor::from_vec(all, (N, K), &Device::Cpu).unwrap()
    };
    same(&mlp.run(&x.to_device(&device).unwrap()).unwrap(), &candle(&x, &real(&gate), &real(&up)));
}

#[test]
fn a_block_runs_where_tensors_are() {
    for device in devices() {
        let (gate, up, down) = (tensor(N, K, 1.0), tensor(N, K, 2.0), tensor(K, N, 3.0));
        let small = |tensor: &Tensor| (tensor * 0.1).unwrap();
        let (gate, up, down) = (small(&gate), small(&up), small(&down));
        let options = MlpOptions::new(Buckets::new([4, 16]).unwrap());
        let mlp = Mlp::of_tensors(&gate, &up, &down).options(options).load(&device).unwrap();
        for rows in [1, 5, 16] {
            // Rows out of the middle of longer tensors.
            let [x, residual] = [4.0, 5.0].map(|seed| tensor(rows + 2, K, seed));
            let there = |tensor: &Tensor| tensor.to_device(&device).unwrap().narrow(0, 1, rows).unwrap();
            let y = mlp.run_adding(&there(&x), &there(&residual)).unwrap();
            let here = |tensor: &Tensor| tensor.narrow(0, 1, rows).unwrap();
            let middle = candle(&here(&x), &gate, &up).to_dtype(DType::BF16).unwrap();
            let [middle, down, residual] =
                [&middle, &down, &here(&residual)].map(|tensor| tensor.to_dtype(DType::F32).unwrap());
            let want = (middle.matmul(&down.t().unwrap()).unwrap() + residual).unwrap();
            same(&y, &want);
        }
    }
}

#[test]
fn experts_are_what_the_emulated_device_makes_of_them() {
    let of = |rows, k, seed| tensor(rows, k, seed);
    let layer: Vec<[Tensor; 3]> =
        [0.0f32, 10.0, 20.0].map(|seed| [of(N, K, seed), of(N, K, seed + 1.0), of(K, N, seed + 2.0)]).into();
    let options = ExpertsOptions::new(Buckets::new([4, 16]).unwrap(), 2);
    let x = tensor(5, K, 0.5);
    let numbers = Tensor::new(&[[2u32, 0], [1, 2], [0, 1], [1, 7], [2, 1]], &Device::Cpu).unwrap();
    let weights =
        Tensor::new(&[[0.5f32, 0.5], [1.0, -0.25], [0.75, 0.25], [2.0, 1.0], [0.125, 0.875]], &Device::Cpu)
            .unwrap();
    let on_cpu = Experts::of_tensors(&layer, options.clone()).load(&Device::Cpu).unwrap();
    let want = on_cpu.run(&x, &numbers, &weights).unwrap();
    for device in devices() {
        let experts = Experts::of_tensors(&layer, options.clone()).load(&device).unwrap();
        let there = [&x, &numbers, &weights].map(|tensor| tensor.to_device(&device).unwrap());
        same(&experts.run(&there[0], &there[1], &there[2]).unwrap(), &want);
    }
}
