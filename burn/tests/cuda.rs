//! CUDA tensors: on a GPU, or, as `check.sh cuda` runs it, on the emulated driver. No kernel of burn's runs, so that no compiler
//! is needed for them: tensors are made on the host, and results are views.
#![cfg(feature = "cuda")]

use burn::tensor::{DType, Device, Tensor, TensorData};
use silumin::runtime::mlp::MlpWeights;
use silumin::runtime::weights::{GateUp, Weight};
use silumin::{Buckets, OperandFormat};
use silumin_burn_example::{Error, GatedMlp, Order};

const HIDDEN: usize = 256;
const FEATURES: usize = 128;

/// Some numbers of both signs in bf16.
fn codes(count: usize, size: f32, seed: f32) -> Vec<u8> {
    let number = |i: usize| half::bf16::from_f32(size * (i as f32 * 0.7 + seed).sin());
    (0..count).flat_map(|i| number(i).to_le_bytes()).collect()
}

fn values(tensor: Tensor<3>) -> Vec<f32> {
    tensor.into_data().try_into_vec_as::<f32>().unwrap()
}

#[test]
fn tensors_are_used_where_they_are() {
    for order in [Order::Host, Order::Context] {
        used_where_they_are(order);
    }
}

fn used_where_they_are(order: Order) {
    let codes_of = [1.0, 2.0, 3.0].map(|seed| codes(FEATURES * HIDDEN, 0.1, seed));
    let weight =
        |at: usize, rows, k| Weight::new(OperandFormat::Bf16, rows, k, &codes_of[at], &[], 1.0).unwrap();
    let gate_up = GateUp::new(weight(0, FEATURES, HIDDEN), weight(1, FEATURES, HIDDEN)).unwrap();
    let weights = MlpWeights::new(gate_up, weight(2, HIDDEN, FEATURES)).unwrap();
    let [there, here] = [Device::cuda(0), Device::flex()];
    let mlps = [&there, &here].map(|device| {
        let mlp = GatedMlp::load(device, &weights, Buckets::new([4, 16]).unwrap()).unwrap();
        mlp.ordered(order).unwrap()
    });
    // Fewer tokens than the bucket has, and as many.
    for shape in [[1, 1, HIDDEN], [2, 3, HIDDEN], [4, 4, HIDDEN]] {
        let bytes = codes(shape.iter().product(), 1.0, 4.0);
        let [got, want] = [&there, &here].map(|device| {
            let data = TensorData::from_bytes_vec(bytes.clone(), shape, DType::BF16);
            let x = Tensor::<3>::from_data(data, (device, DType::BF16));
            let mlp = &mlps[usize::from(device == &here)];
            // Twice: memory of a call is used again.
            let (first, second) = (mlp.forward(x.clone()).unwrap(), mlp.forward(x).unwrap());
            assert_eq!((first.dims(), first.dtype()), (shape, DType::BF16));
            let first = values(first);
            assert_eq!(first, values(second));
            first
        });
        let most = want.iter().fold(0.0f32, |most, value| most.max(value.abs()));
        for (place, (got, want)) in got.iter().zip(&want).enumerate() {
            assert!((got - want).abs() <= most / 64.0, "element {place}: {got}, not {want}");
        }
    }
    // A tensor of another device.
    let x = Tensor::<3>::ones([1, 2, HIDDEN], (&here, DType::BF16));
    assert!(matches!(mlps[0].forward(x).unwrap_err(), Error::Device { .. }));
}

#[test]
fn threads_have_streams_of_their_own() {
    for order in [Order::Host, Order::Context] {
        in_threads(order);
    }
}

fn in_threads(order: Order) {
    let codes = codes(FEATURES * HIDDEN, 0.1, 1.0);
    let weight = |rows, k| Weight::new(OperandFormat::Bf16, rows, k, &codes, &[], 1.0).unwrap();
    let gate_up = GateUp::new(weight(FEATURES, HIDDEN), weight(FEATURES, HIDDEN)).unwrap();
    let weights = MlpWeights::new(gate_up, weight(HIDDEN, FEATURES)).unwrap();
    let device = Device::cuda(0);
    let mlp = GatedMlp::load(&device, &weights, Buckets::new([4]).unwrap()).unwrap();
    let mlp = mlp.ordered(order).unwrap();
    let make = |seed: f32| {
        let data =
            TensorData::from_bytes_vec(self::codes(4 * HIDDEN, 1.0, seed), [2, 2, HIDDEN], DType::BF16);
        Tensor::<3>::from_data(data, (&device, DType::BF16))
    };
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (mlp, make) = (&mlp, &make);
            // A tensor of this thread, used on another.
            let x = make(thread as f32);
            scope.spawn(move || {
                let want = values(mlp.forward(x.clone()).unwrap());
                for _ in 0..5 {
                    assert_eq!(values(mlp.forward(make(thread as f32)).unwrap()), want);
                }
            });
        }
    });
}
