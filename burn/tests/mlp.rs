//! What is wrong with a tensor is told, and nothing panics. The example compares results.

use burn::tensor::{DType, Device, Tensor};
use silumin::runtime::mlp::{MlpError, MlpWeights};
use silumin::runtime::weights::{GateUp, Weight};
use silumin::{Buckets, OperandFormat};
use silumin_burn_example::{Error, GatedMlp};

const HIDDEN: usize = 64;
const FEATURES: usize = 128;

fn mlp() -> GatedMlp {
    // 0.125 in bf16.
    let codes = [0x00, 0x3E].repeat(FEATURES * HIDDEN);
    let weight = |rows, k| Weight::new(OperandFormat::Bf16, rows, k, &codes, &[], 1.0).unwrap();
    let gate_up = GateUp::new(weight(FEATURES, HIDDEN), weight(FEATURES, HIDDEN)).unwrap();
    let weights = MlpWeights::new(gate_up, weight(HIDDEN, FEATURES)).unwrap();
    GatedMlp::load(&Device::flex(), &weights, Buckets::new([4, 8]).unwrap()).unwrap()
}

fn ones(shape: [usize; 3], dtype: DType) -> Tensor<3> {
    Tensor::ones(shape, (&Device::flex(), dtype))
}

#[test]
fn batches_and_views_are_tensors_like_others() {
    let mlp = mlp();
    let values = |tensor: Tensor<3>| tensor.into_data().try_into_vec_as::<f32>().unwrap();
    // Fewer tokens than the bucket has, and as many.
    for shape in [[1, 1, HIDDEN], [2, 3, HIDDEN], [4, 2, HIDDEN]] {
        let y = mlp.forward(ones(shape, DType::BF16)).unwrap();
        assert_eq!((y.dims(), y.dtype()), (shape, DType::BF16));
        assert!(values(y).iter().all(|&value| value == 1024.0));
    }
    // A strided view.
    let turned = ones([HIDDEN, 3, 2], DType::BF16).swap_dims(0, 2);
    assert!(values(mlp.forward(turned).unwrap()).iter().all(|&value| value == 1024.0));
}

#[test]
fn what_is_wrong_is_told() {
    let mlp = mlp();
    let error = |x: Tensor<3>| mlp.forward(x).unwrap_err();
    let wide = error(ones([1, 2, 2 * HIDDEN], DType::BF16));
    assert!(matches!(wide, Error::Shape { found: [1, 2, 128], hidden: HIDDEN }), "{wide}");
    let floats = error(ones([1, 2, HIDDEN], DType::F32));
    assert!(matches!(floats, Error::DType(DType::F32)) && floats.to_string().contains("cast"), "{floats}");
    let many = error(ones([3, 3, HIDDEN], DType::BF16));
    assert!(matches!(many, Error::Mlp(MlpError::Tokens { tokens: 9, most: 8 })), "{many}");
    let none = error(Tensor::empty([0, 3, HIDDEN], (&Device::flex(), DType::BF16)));
    assert!(matches!(none, Error::Mlp(MlpError::Tokens { tokens: 0, .. })), "{none}");
}
