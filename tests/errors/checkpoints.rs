//! Checkpoints in safetensors files.

use super::{Case, Page, case};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use silumin::formats::quantize::{TensorScale, quantize};
use silumin::runtime::weights::{Checkpoint, CheckpointError};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Name, type, shape and bytes of the tensors of a file.
type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

const LAYER: &str = "model.layers.0.mlp";

pub fn show(page: &mut Page) {
    let folder = tempfile::tempdir().unwrap();
    let cases = |cases: Vec<Case>| cases.into_iter().map(|case| case.without(folder.path())).collect();
    page.cases("Files of a checkpoint", cases(files(folder.path())));
    page.cases("Tensors of a layer", cases(layers(folder.path())));
}

/// A new folder `name`.
fn model(top: &Path, name: &str) -> PathBuf {
    let folder = top.join(name);
    fs::create_dir(&folder).unwrap();
    folder
}

fn write(path: &Path, tensors: &Tensors) {
    let views = tensors
        .iter()
        .map(|(name, (dtype, shape, data))| (name, TensorView::new(*dtype, shape.clone(), data).unwrap()));
    fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

/// Gate and up of one layer in NVFP4, 8 x 32, as Model Optimizer writes them.
fn layer() -> Tensors {
    let mut tensors = Tensors::new();
    let matrix = quantize(&[0.5f32; 8 * 32], 8, 32, TensorScale::One).unwrap();
    for name in ["gate_proj", "up_proj"] {
        let mut put = |what: &str, dtype, shape, data| {
            tensors.insert(format!("{LAYER}.{name}.{what}"), (dtype, shape, data));
        };
        put("weight", Dtype::U8, vec![8, 16], matrix.codes().to_vec());
        put("weight_scale", Dtype::F8_E4M3, vec![8, 2], matrix.scales().to_vec());
        put("weight_scale_2", Dtype::F32, vec![], 1.0f32.to_le_bytes().to_vec());
    }
    tensors
}

fn opened(path: &Path) -> CheckpointError {
    Checkpoint::open(path).map(drop).unwrap_err()
}

fn files(top: &Path) -> Vec<Case> {
    let file = |name: &str, bytes: &[u8]| {
        let path = model(top, name).join("model.safetensors");
        fs::write(&path, bytes).unwrap();
        path
    };
    let header = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let x = header(r#"{"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#);
    let unknown = header(r#"{"x":{"dtype":"U9","shape":[4],"data_offsets":[0,4]}}"#);
    let folder = model(top, "folder");
    fs::create_dir(folder.join("model.safetensors")).unwrap();
    let index = model(top, "index");
    fs::write(index.join("model.safetensors.index.json"), r#"{"weight_map":{"x":"../model.safetensors"}}"#)
        .unwrap();
    let two = model(top, "two");
    for name in ["a.safetensors", "b.safetensors"] {
        write(&two.join(name), &layer());
    }
    let shards = model(top, "shards");
    let (gate, up) = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors");
    let of = |part: &str| layer().into_iter().filter(|(name, _)| name.contains(part)).collect::<Tensors>();
    write(&shards.join(gate), &of("gate_proj"));
    write(&shards.join(up), &of("up_proj"));
    let all: BTreeMap<String, &str> = layer().into_keys().map(|name| (name, up)).collect();
    let text = serde_json::json!({ "weight_map": all }).to_string();
    fs::write(shards.join("model.safetensors.index.json"), text).unwrap();
    let lying = Checkpoint::open(&shards).unwrap().gate_up(LAYER).map(drop).unwrap_err();
    vec![
        case("A folder that is not there", opened(&top.join("llama"))),
        case("A folder without weights", opened(&model(top, "empty"))),
        case("A folder with the name of a file", opened(&folder)),
        case("An index with a file of another folder", opened(&index)),
        case("A file whose last tensor is cut off", opened(&file("short", &[&x[..], &[0; 3]].concat()))),
        case("A file of another kind", opened(&file("text", b"This is a model."))),
        case(
            "A type of elements that safetensors do not have",
            opened(&file("type", &[&unknown[..], &[0; 4]].concat())),
        ),
        case("A tensor in two files, and no index", opened(&two)),
        case("An index that names the wrong file", lying),
    ]
}

fn layers(top: &Path) -> Vec<Case> {
    let read = |name: &str, layer: &str, change: &dyn Fn(&mut Tensors)| {
        let (path, mut tensors) = (model(top, name).join("model.safetensors"), self::layer());
        change(&mut tensors);
        write(&path, &tensors);
        Checkpoint::open(&path).unwrap().gate_up(layer).map(drop).unwrap_err()
    };
    let name = |suffix: &str| format!("{LAYER}.{suffix}");
    let retype = |tensors: &mut Tensors, tensor: &str, dtype: Dtype, shape: &[usize]| {
        let bytes = shape.iter().product::<usize>() * dtype.bitsize() / 8;
        tensors.insert(name(tensor), (dtype, shape.to_vec(), vec![1; bytes]));
    };
    let weights = read("nan", LAYER, &|tensors| {
        tensors.get_mut(&name("up_proj.weight_scale")).unwrap().2[5] = 0x7f;
    });
    let CheckpointError::Weights { reason, .. } = &weights else { panic!("{weights}") };
    let inner = super::kind(reason);
    let weights = case("A scale factor that is NaN", weights).and(inner);
    vec![
        case("A layer that is not there", read("layer", "model.layers.1.mlp", &|_| {})),
        case(
            "A layer without a scale of its tensor",
            read("missing", LAYER, &|tensors| drop(tensors.remove(&name("gate_proj.weight_scale_2")))),
        ),
        case(
            "Weights in F32",
            read("dtype", LAYER, &|tensors| retype(tensors, "gate_proj.weight", Dtype::F32, &[8, 32])),
        ),
        case(
            "Scale factors in the blocked layout",
            read("shape", LAYER, &|tensors| {
                retype(tensors, "up_proj.weight_scale", Dtype::F8_E4M3, &[128, 4])
            }),
        ),
        case(
            "A scale of a tensor that is 0",
            read("scale", LAYER, &|tensors| {
                tensors.get_mut(&name("gate_proj.weight_scale_2")).unwrap().2 = vec![0; 4];
            }),
        ),
        weights,
    ]
}
