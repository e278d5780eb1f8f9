//! Checkpoints: both conventions, one file or several, and everything that can be wrong with them.
#![cfg(feature = "safetensors")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use silumin_codegen::arch::Arch;
use silumin_codegen::problem::OperandFormat;
use silumin_formats::Matrix;
use silumin_formats::quantize::{TensorScale, quantize, quantize_to};
use silumin_runtime::device::Device;
use silumin_runtime::mlp::{ExpertsWeights, MlpWeights};
use silumin_runtime::weights::{Checkpoint, CheckpointError, Convention, GateUp, Names, Order, Weight};

/// Name, type, shape and bytes of the tensors of a file.
type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

const LAYER: &str = "model.layers.0.mlp";

fn write(path: &Path, tensors: &Tensors) {
    let views = tensors
        .iter()
        .map(|(name, (dtype, shape, data))| (name, TensorView::new(*dtype, shape.clone(), data).unwrap()));
    fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

fn matrix(rows: usize, k: usize, seed: f32) -> Matrix {
    let values: Vec<f32> =
        (0..rows * k).map(|i| ((i as f32 + seed) * 0.7).sin() * (1.0 + (i % 29) as f32)).collect();
    quantize(&values, rows, k, TensorScale::FromMax).unwrap()
}

/// A number as the convention keeps it.
fn kept(convention: Convention, factor: f32) -> [u8; 4] {
    match convention {
        Convention::ModelOpt => factor.to_le_bytes(),
        Convention::CompressedTensors => (1.0 / factor).to_le_bytes(),
    }
}

/// Adds a projection; `scales` are the factors of the whole tensor, `shape` is that of their tensor.
fn add(
    tensors: &mut Tensors,
    convention: Convention,
    name: &str,
    matrix: &Matrix,
    scales: &[f32],
    input: Option<f32>,
) {
    let (codes, global, input_name) = match convention {
        Convention::ModelOpt => ("weight", "weight_scale_2", "input_scale"),
        Convention::CompressedTensors => ("weight_packed", "weight_global_scale", "input_global_scale"),
    };
    // Model Optimizer writes a scalar, compressed-tensors a vector of one.
    let dimensions =
        |count| if count == 1 && convention == Convention::ModelOpt { vec![] } else { vec![count] };
    let (n, k) = (matrix.rows(), matrix.k());
    let mut put = |what: &str, dtype, shape, data| {
        tensors.insert(format!("{name}.{what}"), (dtype, shape, data));
    };
    put(codes, Dtype::U8, vec![n, k / 2], matrix.codes().to_vec());
    put("weight_scale", Dtype::F8_E4M3, vec![n, k / 16], matrix.scales().to_vec());
    let factors = scales.iter().flat_map(|scale| kept(convention, *scale)).collect();
    put(global, Dtype::F32, dimensions(scales.len()), factors);
    if let Some(input) = input {
        put(input_name, Dtype::F32, dimensions(1), kept(convention, input).to_vec());
    }
}

/// Gate and up of one layer, apart or fused.
fn layer(convention: Convention, fused: bool, n: usize, k: usize) -> (Tensors, [Matrix; 2]) {
    let pair = [matrix(n, k, 1.0), matrix(n, k, 2.0)];
    let mut tensors = Tensors::new();
    if fused {
        let both = |part: fn(&Matrix) -> &[u8]| [part(&pair[0]), part(&pair[1])].concat();
        let stacked =
            Matrix::new(OperandFormat::Nvfp4, 2 * n, k, both(Matrix::codes), both(Matrix::scales), 1.0)
                .unwrap();
        let scales = [pair[0].tensor_scale(), pair[1].tensor_scale()];
        add(&mut tensors, convention, &format!("{LAYER}.gate_up_proj"), &stacked, &scales, Some(0.5));
    } else {
        for (name, matrix) in ["gate_proj", "up_proj"].into_iter().zip(&pair) {
            add(
                &mut tensors,
                convention,
                &format!("{LAYER}.{name}"),
                matrix,
                &[matrix.tensor_scale()],
                Some(0.5),
            );
        }
    }
    (tensors, pair)
}

fn scratch() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

const CONVENTIONS: [Convention; 2] = [Convention::ModelOpt, Convention::CompressedTensors];

#[track_caller]
fn same(found: Weight<'_>, expected: &Matrix, convention: Convention) {
    assert_eq!((found.codes(), found.scales()), (expected.codes(), expected.scales()));
    match convention {
        Convention::ModelOpt => assert_eq!(found.tensor_scale(), expected.tensor_scale()),
        // A reciprocal of a reciprocal is off by a unit in the last place at most.
        Convention::CompressedTensors => {
            assert!(found.tensor_scale().to_bits().abs_diff(expected.tensor_scale().to_bits()) <= 1);
        }
    }
}

#[test]
fn layers_of_both_conventions_apart_and_fused_come_back() {
    for convention in CONVENTIONS {
        for fused in [false, true] {
            let folder = scratch();
            let (tensors, [gate, up]) = layer(convention, fused, 40, 96);
            write(&folder.path().join("model.safetensors"), &tensors);
            for path in [folder.path().to_owned(), folder.path().join("model.safetensors")] {
                let checkpoint = Checkpoint::open(path).unwrap();
                assert_eq!(checkpoint.layers(), [LAYER]);
                assert_eq!(checkpoint.convention(LAYER, &Names::default()), Some(convention));
                assert_eq!(checkpoint.tensors().count(), tensors.len());
                let pair = checkpoint.gate_up(LAYER).unwrap();
                assert_eq!((pair.n(), pair.k(), pair.input_scale()), (40, 96, Some(0.5)));
                same(pair.gate(), &gate, convention);
                same(pair.up(), &up, convention);
            }
        }
    }
}

#[test]
fn layers_in_bf16_f16_and_fp8_come_back_with_down() {
    let (n, k) = (40, 96);
    for (format, dtype) in [
        (OperandFormat::Bf16, Dtype::BF16),
        (OperandFormat::F16, Dtype::F16),
        (OperandFormat::E4m3, Dtype::F8_E4M3),
    ] {
        let folder = scratch();
        let mut tensors = Tensors::new();
        let mut matrices = Vec::new();
        let shapes = [("gate_proj", n, k), ("up_proj", n, k), ("down_proj", k, n)];
        for (seed, (name, rows, k)) in shapes.into_iter().enumerate() {
            let values: Vec<f32> = (0..rows * k).map(|i| ((i + seed) as f32 * 0.7).sin()).collect();
            let matrix = quantize_to(format, &values, rows, k, TensorScale::FromMax).unwrap();
            let name = format!("{LAYER}.{name}");
            tensors.insert(format!("{name}.weight"), (dtype, vec![rows, k], matrix.codes().to_vec()));
            if format == OperandFormat::E4m3 {
                // A factor in F32, of the activations in BF16: both are found.
                let scale = matrix.tensor_scale().to_le_bytes().to_vec();
                tensors.insert(format!("{name}.weight_scale"), (Dtype::F32, vec![], scale));
                let input = half::bf16::from_f32(0.25).to_le_bytes().to_vec();
                tensors.insert(format!("{name}.input_scale"), (Dtype::BF16, vec![1], input));
            }
            matrices.push(matrix);
        }
        write(&folder.path().join("model.safetensors"), &tensors);
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        assert_eq!(checkpoint.layers(), [LAYER], "{format}");
        let input = (format == OperandFormat::E4m3).then_some(0.25);
        let pair = checkpoint.gate_up(LAYER).unwrap();
        let (down, down_input) = checkpoint.down_named(LAYER, &Names::default()).unwrap();
        assert_eq!((pair.input_scale(), down_input), (input, input));
        for (found, expected) in [pair.gate(), pair.up(), down].into_iter().zip(&matrices) {
            assert_eq!(found, Weight::of(expected).unwrap(), "{format}");
        }
        let weights = MlpWeights::of_layer(&checkpoint, LAYER).unwrap();
        assert_eq!((weights.hidden(), weights.features()), (k, n));
    }
}

#[test]
fn fp8_blocks_bring_scale_factors_in_f32_or_bf16() {
    let (n, k) = (256, 384);
    let format = OperandFormat::E4m3Block128;
    for (fused, dtype) in [(false, Dtype::F32), (true, Dtype::F32), (false, Dtype::BF16)] {
        // DeepSeek-V3 has F32, Qwen3-FP8 BF16; compressed-tensors calls them weight_scale.
        let suffix = if fused { "weight_scale" } else { "weight_scale_inv" };
        let folder = scratch();
        let (mut tensors, mut matrices) = (Tensors::new(), Vec::new());
        let shapes = match fused {
            false => vec![("gate_proj", n, k), ("up_proj", n, k), ("down_proj", k, n)],
            true => vec![("gate_up_proj", 2 * n, k), ("down_proj", k, n)],
        };
        for (seed, (name, rows, k)) in shapes.into_iter().enumerate() {
            let values: Vec<f32> = (0..rows * k).map(|i| ((i + seed) as f32 * 0.7).sin()).collect();
            let matrix = quantize_to(format, &values, rows, k, TensorScale::One).unwrap();
            let name = format!("{LAYER}.{name}");
            let factors = matrix.scales().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
            let bytes = factors.flat_map(|factor| match dtype {
                Dtype::BF16 => half::bf16::from_f32(factor).to_le_bytes().to_vec(),
                _ => factor.to_le_bytes().to_vec(),
            });
            let shape = vec![rows.div_ceil(128), k / 128];
            tensors.insert(format!("{name}.{suffix}"), (dtype, shape, bytes.collect()));
            tensors
                .insert(format!("{name}.weight"), (Dtype::F8_E4M3, vec![rows, k], matrix.codes().to_vec()));
            matrices.push(matrix);
        }
        write(&folder.path().join("model.safetensors"), &tensors);
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        let pair = checkpoint.gate_up(LAYER).unwrap();
        let (down, input) = checkpoint.down_named(LAYER, &Names::default()).unwrap();
        assert_eq!((pair.format(), pair.input_scale(), input), (format, None, None));
        let both = Weight::of(&matrices[0]).unwrap();
        let expected = match fused {
            false => matrices.iter().map(|matrix| Weight::of(matrix).unwrap()).collect(),
            true => vec![
                both.slice(0..n).unwrap(),
                both.slice(n..2 * n).unwrap(),
                Weight::of(&matrices[1]).unwrap(),
            ],
        };
        for (found, expected) in [pair.gate(), pair.up(), down].into_iter().zip(expected) {
            assert_eq!(found.codes(), expected.codes());
            let (found, expected) = (found.to_matrix().unwrap(), expected.to_matrix().unwrap());
            for (row, column) in [(0, 0), (127, 255), (found.rows() - 1, found.k() - 1)] {
                let [found, expected] = [&found, &expected].map(|matrix| matrix.value(row, column).unwrap());
                // bf16 keeps eight bits of a factor.
                let room = if dtype == Dtype::BF16 { expected.abs() / 256.0 } else { 0.0 };
                assert!((found - expected).abs() <= room, "{fused} {dtype:?}: {found} for {expected}");
            }
        }
        assert!(MlpWeights::of_layer(&checkpoint, LAYER).is_ok());
    }
}

#[test]
fn fp8_rows_bring_scales_of_their_own() {
    let (n, k) = (40, 96);
    let codes = |rows: usize, k: usize| -> Vec<u8> { (0..rows * k).map(|i| (i * 37 % 112) as u8).collect() };
    let scale = |row: usize| 0.5 + row as f32 / 16.0;
    for fused in [false, true] {
        let folder = scratch();
        let mut tensors = Tensors::new();
        // LLM Compressor writes [N, 1] in bf16, FBGEMM [N] or [N, 1] in f32; activations have no scale.
        let mut put = |name: &str, rows: usize, k: usize, dtype: Dtype, shape: Vec<usize>| {
            let name = format!("{LAYER}.{name}");
            let scales = (0..rows).flat_map(|row| match dtype {
                Dtype::BF16 => half::bf16::from_f32(scale(row)).to_le_bytes().to_vec(),
                _ => scale(row).to_le_bytes().to_vec(),
            });
            tensors.insert(format!("{name}.weight_scale"), (dtype, shape, scales.collect()));
            tensors.insert(format!("{name}.weight"), (Dtype::F8_E4M3, vec![rows, k], codes(rows, k)));
        };
        if fused {
            put("gate_up_proj", 2 * n, k, Dtype::F32, vec![2 * n, 1]);
        } else {
            put("gate_proj", n, k, Dtype::BF16, vec![n, 1]);
            put("up_proj", n, k, Dtype::F32, vec![n]);
        }
        put("down_proj", k, n, Dtype::F32, vec![k, 1]);
        write(&folder.path().join("model.safetensors"), &tensors);
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        let pair = checkpoint.gate_up(LAYER).unwrap();
        let (down, input) = checkpoint.down_named(LAYER, &Names::default()).unwrap();
        assert_eq!((pair.input_scale(), input), (None, None));
        for (weight, first) in [(pair.gate(), 0), (pair.up(), if fused { n } else { 0 }), (down, 0)] {
            let expected: Vec<f32> = (0..weight.rows()).map(|row| scale(first + row)).collect();
            assert_eq!(weight.row_scales().unwrap().values().collect::<Vec<_>>(), expected);
            assert_eq!((weight.product_scales().collect::<Vec<_>>(), weight.tensor_scale()), (expected, 1.0));
        }
        assert!(MlpWeights::of_layer(&checkpoint, LAYER).is_ok());
        // A gate of one's own has one scalar for a tensor: nothing is left out without a word.
        let error = pair.upload(&Device::emulated(Arch::Sm90a)).unwrap_err();
        assert!(
            error.to_string().contains("a scale for each row") && error.to_string().contains("s[n]"),
            "{error}"
        );
        assert!(pair.gate().to_matrix().is_err() && pair.gate().columns(0..16).is_err());
        let there = pair.without_row_scales().upload(&Device::emulated(Arch::Sm90a)).unwrap();
        assert_eq!((there.gate_scale, there.n), (1.0, n));
    }
}

#[test]
fn names_orders_and_numbers_of_a_models_own() {
    let folder = scratch();
    let mut tensors = Tensors::new();
    for expert in [10, 9] {
        for (name, seed) in [("w1", 1.0), ("w3", 3.0)] {
            let name = format!("layers.0.experts.{expert}.{name}");
            add(&mut tensors, Convention::ModelOpt, &name, &matrix(8, 32, seed), &[0.5], None);
        }
    }
    let stacked = matrix(16, 32, 5.0);
    add(&mut tensors, Convention::CompressedTensors, "dense.w31", &stacked, &[4.0, 2.0], None);
    add(&mut tensors, Convention::ModelOpt, "gate_proj", &matrix(8, 32, 1.0), &[1.0], None);
    add(&mut tensors, Convention::ModelOpt, "up_proj", &matrix(8, 32, 1.0), &[1.0], None);
    write(&folder.path().join("weights.safetensors"), &tensors);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let names = Names::mixtral();
    assert_eq!(checkpoint.layers_named(&names), ["layers.0.experts.9", "layers.0.experts.10"]);
    let pair = checkpoint.gate_up_named("layers.0.experts.10", &names).unwrap();
    assert_eq!((pair.up().codes(), pair.input_scale()), (matrix(8, 32, 3.0).codes(), None));
    // Rows of up come first, and so does its scale.
    let names = Names::new("w1", "w3", "w2", "w31", Order::UpFirst);
    let pair = checkpoint.gate_up_named("dense", &names).unwrap();
    assert_eq!((pair.up().tensor_scale(), pair.gate().tensor_scale()), (4.0, 2.0));
    assert_eq!(pair.up().codes(), &stacked.codes()[..8 * 16]);
    // A file of one layer has no prefix.
    assert_eq!(checkpoint.gate_up("").unwrap().n(), 8);
}

#[test]
fn experts_come_by_their_numbers() {
    let folder = scratch();
    let mut tensors = Tensors::new();
    for expert in 2..5 {
        for (name, rows, k) in [("gate_proj", 16, 32), ("up_proj", 16, 32), ("down_proj", 32, 16)] {
            let name = format!("{LAYER}.experts.{expert}.{name}");
            let matrix = quantize(&vec![expert as f32; rows * k], rows, k, TensorScale::One).unwrap();
            add(&mut tensors, Convention::ModelOpt, &name, &matrix, &[1.0], None);
        }
    }
    write(&folder.path().join("model.safetensors"), &tensors);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let weights = ExpertsWeights::of_layer(&checkpoint, LAYER, 3..5).unwrap();
    assert_eq!((weights.count(), weights.hidden(), weights.features()), (2, 32, 16));
    let third = MlpWeights::of_layer(&checkpoint, &format!("{LAYER}.experts.3")).unwrap();
    assert_eq!(weights.experts()[0], third);
    let error = ExpertsWeights::of_layer(&checkpoint, LAYER, 3..6).unwrap_err().to_string();
    assert!(error.contains("experts.5"), "{error}");
}

#[test]
fn the_larger_of_two_input_scales_is_taken() {
    for convention in CONVENTIONS {
        let folder = scratch();
        let path = folder.path().join("model.safetensors");
        let mut tensors = Tensors::new();
        for (name, input) in [("gate_proj", 0.25), ("up_proj", 0.125)] {
            add(
                &mut tensors,
                convention,
                &format!("{LAYER}.{name}"),
                &matrix(8, 32, 1.0),
                &[1.0],
                Some(input),
            );
        }
        write(&path, &tensors);
        assert_eq!(Checkpoint::open(&path).unwrap().gate_up(LAYER).unwrap().input_scale(), Some(0.25));
    }
}

/// Two files and an index.
fn sharded(folder: &Path) -> (Tensors, Tensors, PathBuf) {
    let (tensors, _) = layer(Convention::ModelOpt, false, 40, 96);
    let (first, second): (Tensors, Tensors) =
        tensors.into_iter().partition(|(name, _)| name.contains("up_proj.weight_scale"));
    let index = folder.join("model.safetensors.index.json");
    let mut map = BTreeMap::new();
    for (number, part) in [&first, &second].into_iter().enumerate() {
        let name = format!("model-0000{}-of-00002.safetensors", number + 1);
        write(&folder.join(&name), part);
        map.extend(part.keys().map(|tensor| (tensor.clone(), name.clone())));
    }
    let total = serde_json::json!({ "metadata": { "total_size": 1 }, "weight_map": map });
    fs::write(&index, total.to_string()).unwrap();
    (first, second, index)
}

#[test]
fn tensors_of_one_layer_may_be_in_several_files() {
    let folder = scratch();
    let (_, _, index) = sharded(folder.path());
    // With the index, by the index, and without.
    for path in [folder.path(), &index, folder.path()] {
        let checkpoint = Checkpoint::open(path).unwrap();
        if path == index {
            fs::remove_file(&index).unwrap();
        }
        assert_eq!(checkpoint.layers(), [LAYER]);
        let pair = checkpoint.gate_up(LAYER).unwrap();
        same(pair.gate(), &matrix(40, 96, 1.0), Convention::ModelOpt);
        same(pair.up(), &matrix(40, 96, 2.0), Convention::ModelOpt);
    }
}

fn open_error(path: &Path) -> CheckpointError {
    Checkpoint::open(path).map(drop).unwrap_err()
}

#[test]
fn indices_that_lie_are_found() {
    let folder = scratch();
    let (first, _, index) = sharded(folder.path());
    let text = fs::read_to_string(&index).unwrap();
    let tensor = first.keys().next().unwrap();
    // The other file.
    let lying =
        text.replace(&format!("\"{tensor}\":\"model-00001-of"), &format!("\"{tensor}\":\"model-00002-of"));
    assert_ne!(lying, text);
    fs::write(&index, lying).unwrap();
    let error = Checkpoint::open(folder.path()).unwrap().gate_up(LAYER).map(drop).unwrap_err();
    assert!(matches!(&error, CheckpointError::NotInShard { tensor: name, .. } if name == tensor), "{error}");
    // A file that is not there, and files of other folders.
    fs::write(&index, text.replace("model-00001", "model-00003")).unwrap();
    let error = Checkpoint::open(folder.path()).unwrap().gate_up(LAYER).map(drop).unwrap_err();
    assert!(
        matches!(&error, CheckpointError::Io { .. }) && error.to_string().contains("model-00003"),
        "{error}"
    );
    for name in ["../model.safetensors", "/etc/passwd", "", ".", "..", "a/b", "a\\\\b"] {
        fs::write(&index, format!("{{\"weight_map\": {{\"x\": \"{name}\"}}}}")).unwrap();
        let error = open_error(folder.path());
        assert!(matches!(error, CheckpointError::Index { .. }), "{name}: {error}");
        assert!(error.to_string().contains("no file of its folder"), "{error}");
    }
    for text in ["", "{}", "[]", "{\"weight_map\": {}}", "{\"weight_map\": {\"x\": 3}}", "\u{0}"] {
        fs::write(&index, text).unwrap();
        assert!(matches!(open_error(folder.path()), CheckpointError::Index { .. }), "{text}");
    }
    fs::remove_file(&index).unwrap();
    fs::create_dir(&index).unwrap();
    assert!(matches!(open_error(folder.path()), CheckpointError::Index { .. }));
}

#[test]
fn what_is_no_checkpoint_is_said_to_be_none() {
    let folder = scratch();
    assert!(matches!(open_error(folder.path()), CheckpointError::NoCheckpoint { .. }));
    assert!(matches!(open_error(&folder.path().join("nothing")), CheckpointError::Io { .. }));
    let path = folder.path().join("model.safetensors");
    fs::create_dir(&path).unwrap();
    assert!(matches!(open_error(folder.path()), CheckpointError::NoFile { .. }));
    fs::remove_dir(&path).unwrap();
    for length in 0..8 {
        fs::write(&path, vec![1; length]).unwrap();
        assert!(matches!(open_error(&path), CheckpointError::Truncated { needed: 8, .. }), "{length}");
    }
    fs::write(&path, u64::MAX.to_le_bytes()).unwrap();
    assert!(matches!(open_error(&path), CheckpointError::HeaderTooLarge { bytes: u64::MAX, .. }));
    fs::write(&path, 9u64.to_le_bytes()).unwrap();
    assert!(matches!(open_error(&path), CheckpointError::Truncated { needed: 17, found: 8, .. }));
    let (tensors, _) = layer(Convention::ModelOpt, false, 8, 32);
    for name in ["a.safetensors", "b.safetensors"] {
        write(&folder.path().join(name), &tensors);
    }
    fs::remove_file(&path).unwrap();
    assert!(matches!(open_error(folder.path()), CheckpointError::Twice { .. }));
}

/// Writes a file with this header, followed by `data` bytes.
fn with_header(path: &Path, header: &str, data: usize) {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    fs::write(path, bytes).unwrap();
}

#[test]
fn headers_that_lie_are_found() {
    let folder = scratch();
    let path = folder.path().join("model.safetensors");
    let one = |dtype: &str, shape: &str, start: u64, end: u64| {
        format!("{{\"x\":{{\"dtype\":\"{dtype}\",\"shape\":{shape},\"data_offsets\":[{start},{end}]}}}}")
    };
    with_header(&path, &one("U8", "[4]", 0, 4), 4);
    assert_eq!(Checkpoint::open(&path).unwrap().tensors().collect::<Vec<_>>(), ["x"]);
    // Tensors that are right one by one and end near the largest number there is: lengths do not overflow.
    let size = (1u64 << 61) - 1;
    let tensors = (0..8)
        .map(|i| one("U8", &format!("[{size}]"), i * size, (i + 1) * size).replace('x', &format!("x{i}")));
    let header = tensors.map(|tensor| tensor[1..tensor.len() - 1].to_owned()).collect::<Vec<_>>().join(",");
    with_header(&path, &format!("{{{header}}}"), 4);
    assert!(matches!(open_error(&path), CheckpointError::Truncated { needed: u64::MAX, .. }));
    with_header(&path, &one("U8", "[4]", 0, 4), 3);
    assert!(matches!(open_error(&path), CheckpointError::Truncated { .. }));
    with_header(&path, &one("U8", "[4]", 0, 4), 5);
    let error = open_error(&path);
    assert!(
        matches!(error, CheckpointError::Header { .. }) && error.to_string().contains("1 bytes follow"),
        "{error}"
    );
    for header in [
        one("U8", "[4]", 0, 3),
        one("U8", "[4]", 1, 5),
        one("U8", "[4]", 5, 1),
        one("F32", "[1]", 0, 3),
        one("U8", "[4294967296, 4294967296, 2]", 0, 4),
        one("F64", "[4611686018427387904]", 0, 4),
        one("U9", "[4]", 0, 4),
        one("U8", "[-4]", 0, 4),
        "{".to_owned(),
        "[".repeat(100_000),
        format!("{}1", "{\"x\":".repeat(100_000)),
        "{\"x\":{\"dtype\":\"U8\"}}".to_owned(),
        String::new(),
    ] {
        with_header(&path, &header, 4);
        let error = open_error(&path);
        assert!(matches!(error, CheckpointError::Header { .. }), "{header:.60}: {error}");
    }
}

/// One change to a layer that is right, and what is said of it.
#[track_caller]
fn damaged(convention: Convention, change: impl FnOnce(&mut Tensors), expected: &[&str]) {
    let folder = scratch();
    let path = folder.path().join("model.safetensors");
    let (mut tensors, _) = layer(convention, false, 40, 96);
    change(&mut tensors);
    write(&path, &tensors);
    let error = Checkpoint::open(&path).unwrap().gate_up(LAYER).map(drop).unwrap_err().to_string();
    for part in expected.iter().chain(&["model.safetensors"]) {
        assert!(error.contains(part), "`{part}` is not in: {error}");
    }
}

#[test]
fn damaged_layers_are_named_with_what_is_wrong() {
    use Convention::{CompressedTensors, ModelOpt};
    let name = |suffix: &str| format!("{LAYER}.{suffix}");
    damaged(
        ModelOpt,
        |tensors| drop(tensors.remove(&name("up_proj.weight"))),
        &["up_proj.weight`", "there is `"],
    );
    damaged(
        ModelOpt,
        |tensors| drop(tensors.remove(&name("gate_proj.weight_scale_2"))),
        &["no tensor `model.layers.0.mlp.gate_proj.weight_scale_2`", "up_proj.weight_scale_2`"],
    );
    let retype = |tensors: &mut Tensors, tensor: &str, dtype, shape: &[usize]| {
        let bytes = shape.iter().product::<usize>() * dtype_bytes(dtype);
        tensors.insert(name(tensor), (dtype, shape.to_vec(), vec![1; bytes]));
    };
    damaged(
        ModelOpt,
        |tensors| retype(tensors, "gate_proj.weight", Dtype::BF16, &[40, 96]),
        &["gate is 40 x 96 in bf16, up is 40 x 96 in nvfp4"],
    );
    damaged(
        ModelOpt,
        |tensors| retype(tensors, "gate_proj.weight", Dtype::F8_E4M3, &[40, 96]),
        &["gate_proj.weight_scale` has elements of type F8_E4M3", "F32 or BF16 is expected"],
    );
    damaged(
        ModelOpt,
        |tensors| retype(tensors, "gate_proj.weight", Dtype::F32, &[40, 96]),
        &["F32", "not quantised"],
    );
    damaged(
        ModelOpt,
        |tensors| {
            retype(tensors, "gate_proj.weight", Dtype::F8_E4M3, &[40, 96]);
            tensors.remove(&name("gate_proj.weight_scale"));
            retype(tensors, "gate_proj.weight_scale_inv", Dtype::F32, &[1, 1]);
        },
        &["K = 96 is not a multiple of 128"],
    );
    damaged(
        ModelOpt,
        |tensors| {
            retype(tensors, "gate_proj.weight", Dtype::F8_E4M3, &[40, 96]);
            retype(tensors, "gate_proj.weight_scale", Dtype::F32, &[2, 20]);
        },
        &["is [2, 20]", "[1, 1]: one for each 128 x 128 block of [40, 96]", "or one for each row, [N, 1]"],
    );
    damaged(
        ModelOpt,
        |tensors| {
            retype(tensors, "gate_proj.weight", Dtype::F8_E4M3, &[40, 96]);
            tensors.insert(name("gate_proj.weight_scale"), (Dtype::F32, vec![40, 1], vec![0; 160]));
        },
        &["gate_proj.weight_scale`: the scale of row 0 is 0, but it has to be finite and above 0"],
    );
    damaged(
        CompressedTensors,
        |tensors| retype(tensors, "gate_proj.weight_packed", Dtype::U8, &[2, 40, 48]),
        &["gate_proj.weight_packed` is [2, 40, 48]", "one matrix"],
    );
    damaged(
        CompressedTensors,
        |tensors| retype(tensors, "up_proj.weight_scale", Dtype::U8, &[40, 3]),
        &["MXFP4", "F8_E4M3"],
    );
    damaged(
        CompressedTensors,
        |tensors| retype(tensors, "up_proj.weight_scale", Dtype::F8_E4M3, &[128, 8]),
        &["is [128, 8], and should be [40, 6]", "row-major"],
    );
    damaged(
        ModelOpt,
        |tensors| {
            retype(tensors, "up_proj.weight", Dtype::U8, &[40, 44]);
            retype(tensors, "up_proj.weight_scale", Dtype::F8_E4M3, &[40, 5]);
        },
        &["up_proj.weight`: K = 88 is not a multiple of 16"],
    );
    damaged(
        ModelOpt,
        |tensors| {
            retype(tensors, "up_proj.weight", Dtype::U8, &[39, 48]);
            retype(tensors, "up_proj.weight_scale", Dtype::F8_E4M3, &[39, 6]);
        },
        &["gate is 40 x 96 in nvfp4, up is 39 x 96"],
    );
    for tensor in ["gate_proj", "up_proj"] {
        let weight = format!("{tensor}.weight");
        damaged(
            ModelOpt,
            |tensors| {
                for tensor in ["gate_proj", "up_proj"] {
                    retype(tensors, &format!("{tensor}.weight"), Dtype::U8, &[0, 48]);
                    retype(tensors, &format!("{tensor}.weight_scale"), Dtype::F8_E4M3, &[0, 6]);
                }
            },
            &["the weights are empty (0 x 96)"],
        );
        damaged(
            ModelOpt,
            |tensors| tensors.get_mut(&format!("{LAYER}.{weight}_scale")).unwrap().2[6 * 7 + 2] = 0x7F,
            &[&format!("{weight}_scale`"), "row 7, block 2 is 0x7f (NaN)"],
        );
        for value in [0.0f32, -1.0, f32::NAN, f32::INFINITY, 1e-40] {
            for (convention, name) in
                [(ModelOpt, "weight_scale_2"), (CompressedTensors, "weight_global_scale")]
            {
                damaged(
                    convention,
                    |tensors| {
                        tensors.get_mut(&format!("{LAYER}.{tensor}.{name}")).unwrap().2 =
                            value.to_le_bytes().to_vec();
                    },
                    &[&format!("{tensor}.{name}` is {value}, but a scale is finite and above 0")],
                );
            }
        }
    }
    damaged(
        ModelOpt,
        |tensors| retype(tensors, "gate_proj.weight_scale_2", Dtype::F32, &[40]),
        &["weight_scale_2` is [40], and should be one number"],
    );
    damaged(
        ModelOpt,
        |tensors| retype(tensors, "up_proj.input_scale", Dtype::F16, &[]),
        &["input_scale`", "F32 or BF16"],
    );
}

fn dtype_bytes(dtype: Dtype) -> usize {
    dtype.bitsize() / 8
}

#[test]
fn layers_that_are_not_there_are_told_from_those_that_are() {
    let folder = scratch();
    let (tensors, _) = layer(Convention::ModelOpt, false, 8, 32);
    write(&folder.path().join("model.safetensors"), &tensors);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let error = checkpoint.gate_up("model.layers.1.mlp").map(drop).unwrap_err().to_string();
    for part in
        ["`model.layers.1.mlp` has no", "gate_proj.weight_packed` nor", "there is `model.layers.0.mlp`"]
    {
        assert!(error.contains(part), "{error}");
    }
    let error = checkpoint.gate_up("x").map(drop).unwrap_err().to_string();
    assert!(!error.contains("there is"), "{error}");
}

/// Reads everything that a caller can request of a file, whatever it contains.
fn read_all(path: &Path) -> usize {
    let Ok(checkpoint) = Checkpoint::open(path) else { return 0 };
    let mut layers = checkpoint.layers();
    layers.push(LAYER.to_owned());
    let loaded = |pair: GateUp<'_>| {
        assert_eq!(pair.gate().codes().len(), pair.n() * pair.k() / 2);
        assert!(pair.gate().tensor_scale() > 0.0 && pair.up().tensor_scale().is_finite());
        assert!(pair.up().scales().iter().all(|code| *code < 0x7F));
    };
    layers.iter().filter_map(|layer| checkpoint.gate_up(layer).map(loaded).ok()).count()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn random_bytes_are_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..400), length in 0u64..420) {
        let folder = scratch();
        let path = folder.path().join("model.safetensors");
        for prefix in [&[][..], &length.to_le_bytes()] {
            fs::write(&path, [prefix, &bytes].concat()).unwrap();
            prop_assert_eq!(read_all(&path), 0);
        }
        fs::write(folder.path().join("model.safetensors.index.json"), &bytes).unwrap();
        prop_assert_eq!(read_all(folder.path()), 0);
    }

    #[test]
    fn damaged_files_are_read_without_harm(
        fused in any::<bool>(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        in_header in any::<bool>(),
        digits in any::<bool>(),
        cut in prop::option::weighted(0.2, any::<prop::sample::Index>()),
    ) {
        let folder = scratch();
        let path = folder.path().join("model.safetensors");
        let (tensors, _) = layer(Convention::CompressedTensors, fused, 8, 32);
        write(&path, &tensors);
        let mut bytes = fs::read(&path).unwrap();
        let header = 8 + u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
        for (index, byte) in flips {
            // Half of the changes are other digits of shapes and offsets, which make headers that lie.
            let places: Vec<usize> = (0..if in_header { header } else { bytes.len() })
                .filter(|place| !digits || bytes[*place].is_ascii_digit())
                .collect();
            let place = places[index.index(places.len())];
            bytes[place] = if digits { b'0' + byte % 10 } else { byte };
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        fs::write(&path, bytes).unwrap();
        prop_assert!(read_all(&path) <= 2);
    }
}
