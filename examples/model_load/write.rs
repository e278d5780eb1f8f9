//! Small checkpoints, as the two public tools write them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use silumin::formats::Matrix;
use silumin::formats::quantize::{TensorScale, quantize};
use silumin::runtime::weights::Convention;

/// What a checkpoint is made of.
#[derive(Clone, Copy)]
pub struct Sizes {
    /// Layers.
    pub layers: usize,
    /// Rows of gate and of up.
    pub n: usize,
    /// Elements of a row.
    pub k: usize,
}

/// Numbers like those of a trained layer: a bell curve of deviation 1 / 16, by a generator of six lines.
pub fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    (0..count).map(|_| (0..4).map(|_| uniform()).sum::<f32>() * 0.11).collect()
}

/// The largest magnitude of activations that calibration would have seen.
const CALIBRATED: f32 = 4.0;

type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

/// Writes a checkpoint of two files and an index. The last layer's projections are fused.
pub fn checkpoint(
    folder: &Path,
    convention: Convention,
    sizes: Sizes,
) -> Result<(), Box<dyn std::error::Error>> {
    let Sizes { layers, n, k } = sizes;
    let mut files = [Tensors::new(), Tensors::new()];
    for layer in 0..layers {
        let file = &mut files[layer % 2];
        let quantized = |rows: usize, seed: usize| {
            quantize(&numbers(rows * k, seed as u64), rows, k, TensorScale::FromMax)
        };
        let prefix = format!("model.layers.{layer}.mlp");
        if layer + 1 == layers && layers > 1 {
            add(file, convention, &format!("{prefix}.gate_up_proj"), &quantized(2 * n, 10 * layer + 3)?);
        } else {
            add(file, convention, &format!("{prefix}.gate_proj"), &quantized(n, 10 * layer + 1)?);
            add(file, convention, &format!("{prefix}.up_proj"), &quantized(n, 10 * layer + 2)?);
        }
    }
    let mut map = BTreeMap::new();
    for (number, tensors) in files.iter().enumerate().filter(|(_, tensors)| !tensors.is_empty()) {
        let name = format!("model-{:05}-of-00002.safetensors", number + 1);
        let views: Vec<_> = tensors
            .iter()
            .map(|(name, (dtype, shape, data))| Ok((name, TensorView::new(*dtype, shape.clone(), data)?)))
            .collect::<Result<_, safetensors::SafeTensorError>>()?;
        fs::write(folder.join(&name), safetensors::serialize(views, None)?)?;
        map.extend(tensors.keys().map(|tensor| (tensor, name.clone())));
    }
    let index = serde_json::json!({ "metadata": {}, "weight_map": map });
    fs::write(folder.join("model.safetensors.index.json"), index.to_string())?;
    Ok(())
}

fn add(file: &mut Tensors, convention: Convention, name: &str, matrix: &Matrix) {
    let input = CALIBRATED / (6.0 * 448.0);
    let (n, k) = (matrix.rows(), matrix.k());
    let mut put = |what: &str, dtype, shape, data: &[u8]| {
        file.insert(format!("{name}.{what}"), (dtype, shape, data.to_vec()));
    };
    put("weight_scale", Dtype::F8_E4M3, vec![n, k / 16], matrix.scales());
    match convention {
        Convention::ModelOpt => {
            put("weight", Dtype::U8, vec![n, k / 2], matrix.codes());
            put("weight_scale_2", Dtype::F32, vec![], &matrix.tensor_scale().to_le_bytes());
            put("input_scale", Dtype::F32, vec![], &input.to_le_bytes());
        }
        Convention::CompressedTensors => {
            put("weight_packed", Dtype::U8, vec![n, k / 2], matrix.codes());
            put("weight_global_scale", Dtype::F32, vec![1], &(1.0 / matrix.tensor_scale()).to_le_bytes());
            put("input_global_scale", Dtype::F32, vec![1], &(1.0 / input).to_le_bytes());
        }
    }
}
