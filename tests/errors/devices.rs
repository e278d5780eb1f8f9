//! Devices, their memory, and groups of ranks. What a CUDA driver says comes from processes with the emulated one.

use super::load::damaged;
use super::{Case, Page, case};
use serde_json::Value;
use silumin::formats::quantize::{TensorScale, quantize_to};
use silumin::runtime::cache::{Entry, Identity, Key, Source, SourceId};
use silumin::runtime::communicator::{Communicator, CommunicatorError};
use silumin::runtime::dlpack::DlpackError;
use silumin::runtime::dlpack::abi::DLManagedTensorVersioned;
use silumin::runtime::mlp::{Mlp, MlpError, MlpOptions, MlpWeights, Source as Activations};
use silumin::runtime::tensor::bf16;
use silumin::runtime::weights::{GateUp, Weight};
use silumin::{
    Arch, Buckets, Bundle, CacheOptions, Device, DualGemm, LoadError, Matrix, OperandFormat, Shape, Spec,
};
use silumin_testkit::driver::{role, run};
use std::fs;
use std::time::Duration;

pub fn show(page: &mut Page) {
    page.cases("Memory of a device", memory());
    page.cases("Groups of ranks", ranks());
    page.cases("GPUs and their driver", gpus());
}

fn memory() -> Vec<Case> {
    let device = Device::emulated(Arch::Sm100a);
    let buffer = device.alloc(24).unwrap();
    vec![
        case("A buffer of no bytes", device.alloc(0).map(drop).unwrap_err()),
        case("More bytes than there are", device.alloc(usize::MAX).map(drop).unwrap_err()),
        case("A part that exceeds its buffer", buffer.slice(8, 17).map(drop).unwrap_err()),
        case("23 bytes for a buffer of 24", buffer.write(&[0; 23]).unwrap_err()),
        case("Bytes that nothing wrote", buffer.download().map(drop).unwrap_err()),
    ]
}

fn ranks() -> Vec<Case> {
    let devices = [Device::emulated(Arch::Sm90a), Device::emulated(Arch::Sm90a)];
    let buffers = devices.each_ref().map(|device| device.upload(&[0; 32]).unwrap());
    let sum = |rank: &Communicator| {
        let buffer = &buffers[rank.rank()];
        rank.all_reduce(&rank.device().stream(), buffer, Activations::Bf16).unwrap_err()
    };
    let refused = |devices: &[Device]| Communicator::all(devices).map(drop).unwrap_err();
    let late = Communicator::all_within(&devices, Duration::from_millis(20)).unwrap();
    let is_late = stable(case("A rank that does not come", sum(&late[0])));
    let failed = stable(case("The next sum of that group", sum(&late[1])));
    let mut left = Communicator::all(&devices).unwrap();
    let foreign = left[0].all_reduce(&devices[0].stream(), &buffers[1], Activations::Bf16).unwrap_err();
    drop(left.pop());
    vec![
        case("A group of no devices", refused(&[])),
        case("A device twice", refused(&[devices[0].clone(), devices[0].clone()])),
        case("A buffer of another rank", foreign),
        is_late,
        failed,
        case("A rank that has left", sum(&left[0])),
        lengths(&devices),
    ]
}

/// Seconds of a limit of less than one are 0.
fn stable(case: Case) -> Case {
    assert!(case.said.contains(" 0 s "), "{}", case.said);
    case
}

fn lengths(devices: &[Device; 2]) -> Case {
    let group = Communicator::all(devices).unwrap();
    let sum = |rank: &Communicator| {
        let buffer = rank.device().upload(&vec![0; 32 * (1 + rank.rank())]).unwrap();
        rank.all_reduce(&rank.device().stream(), &buffer, Activations::Bf16)
    };
    let mut errors: Vec<CommunicatorError> = std::thread::scope(|scope| {
        let ranks: Vec<_> = group.iter().map(|rank| scope.spawn(|| sum(rank))).collect();
        ranks.into_iter().filter_map(|rank| rank.join().unwrap().err()).collect()
    });
    errors.retain(|error| matches!(error, CommunicatorError::Lengths { .. }));
    case("Ranks with different numbers of tokens", errors.remove(0))
}

/// Where a process leaves its cases.
const OUT: &str = "SILUMIN_ERRORS_OUT";

/// Cases of processes that find a driver.
fn gpus() -> Vec<Case> {
    let folder = tempfile::tempdir().unwrap();
    for name in ["libcuda.so", "libcuda.so.1"] {
        fs::write(folder.path().join(name), "no library").unwrap();
    }
    let nothing = folder.path().to_str().unwrap();
    let nccl = ("SILUMIN_NCCL", "libnccl.so.2.none");
    let of = |role: &str, variables: &[(&str, &str)]| {
        let out = folder.path().join("cases");
        let variables = [variables, &[(OUT, out.to_str().unwrap())]].concat();
        run(module_path!(), "a_process_with_a_driver", role, &variables);
        let cases: Vec<(String, Vec<(String, String)>, String)> =
            serde_json::from_slice(&fs::read(&out).unwrap()).unwrap();
        cases
            .into_iter()
            .map(|(what, kinds, said)| Case { what: what.leak(), kinds, said })
            .collect::<Vec<_>>()
    };
    [
        of("without", &[("LD_LIBRARY_PATH", nothing)]),
        of("two", &[("SILUMIN_EMULATED_DEVICES", "2"), nccl]),
        of("old", &[("SILUMIN_EMULATED_CUDA", "12.4")]),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// In a process that [`gpus`] starts.
#[test]
fn a_process_with_a_driver() {
    let cases = match role().as_deref() {
        Some("without") => vec![case("No driver", Device::cuda(0).map(drop).unwrap_err())],
        Some("two") => two(),
        Some("old") => vec![refused("A driver for CUDA 12.4", gemm().load(&Device::cuda(0).unwrap(), SHAPE))],
        Some(other) => panic!("{other}"),
        None => return,
    };
    let cases: Vec<Value> = cases.iter().map(Case::to_json).collect();
    fs::write(std::env::var_os(OUT).unwrap(), serde_json::to_vec(&cases).unwrap()).unwrap();
}

const SHAPE: Shape = Shape::new(4, 64, 128);

fn gemm() -> DualGemm {
    DualGemm::new(Spec::new("silu(A @ B1) * (A @ B2)".parse().unwrap(), &[Arch::Sm100a]).unwrap())
}

fn refused<T>(what: &'static str, result: Result<T, LoadError>) -> Case {
    super::load::refused(what, result.map(drop).unwrap_err())
}

/// Two GPUs.
fn two() -> Vec<Case> {
    let devices = [Device::cuda(0).unwrap(), Device::cuda(1).unwrap()];
    let device = &devices[0];
    let stream = devices[1].stream().cuda().unwrap().clone();
    let held: Vec<_> = (0..200).map_while(|_| device.new_stream().ok()).collect();
    let streams = device.new_stream().map(drop).unwrap_err();
    drop(held);
    let mixed = [device.clone(), Device::emulated(Arch::Sm100a)];
    let mut cases = vec![
        case("A GPU that is not there", Device::cuda(2).map(drop).unwrap_err()),
        case("More bytes than a GPU has", device.alloc(1 << 60).map(drop).unwrap_err()),
        case("A stream of another GPU", device.stream_of(stream).map(drop).unwrap_err()),
        case("A stream more than buffers track", streams),
        case("GPUs beside emulated devices in a group", Communicator::all(&mixed).map(drop).unwrap_err()),
        case("A group of GPUs without NCCL", Communicator::all(&devices).map(drop).unwrap_err()),
        case("A block on the default stream, to be recorded", default_stream(device)),
    ];
    cases.extend(lent(device));
    cases.extend(images(device));
    cases.push(refused("A gate's code with a mistake", damaged().load(device, SHAPE)));
    cases
}

fn default_stream(device: &Device) -> MlpError {
    let one = |rows: usize, k: usize| {
        quantize_to(OperandFormat::Bf16, &vec![0.25f32; rows * k], rows, k, TensorScale::One).unwrap()
    };
    let (up, down) = (one(32, 64), one(64, 32));
    let up = Weight::of(&up).unwrap();
    let weights = MlpWeights::new(GateUp::new(up, up).unwrap(), Weight::of(&down).unwrap()).unwrap();
    let options = MlpOptions::new(Buckets::new([8]).unwrap()).without_residual();
    let mlp = Mlp::load(device, &weights, &options).unwrap();
    let buffer = |rows: usize| device.upload(&vec![0; rows * mlp.row_bytes()]).unwrap();
    mlp.record(&device.stream(), 8, &buffer(8), None, &buffer(8)).map(drop).unwrap_err()
}

/// Tensors of other libraries.
fn lent(device: &Device) -> Vec<Case> {
    let matrix = Matrix::<bf16>::zeros(device, 2, 64).unwrap();
    let refused = |change: fn(&mut DLManagedTensorVersioned)| -> DlpackError {
        let managed = super::tensors::lent(&matrix, change).unwrap();
        Matrix::<bf16>::from_dlpack(managed, &device.stream()).map(drop).unwrap_err()
    };
    let mut odd = case("A view that starts at column 4", refused(|tensor| tensor.dl_tensor.byte_offset = 8));
    // Where the memory lies is another place in each run.
    let (before, after) = odd.said.split_once("0x").unwrap();
    let digits = after.find(|c: char| !c.is_ascii_hexdigit()).unwrap();
    odd.said = format!("{before}0x7f0000000008{}", &after[digits..]);
    let cpu =
        case("A tensor of the CPU, for a GPU", refused(|tensor| tensor.dl_tensor.device.device_type = 1));
    vec![odd, cpu]
}

/// Machine code in bundles.
fn images(device: &Device) -> Vec<Case> {
    let kernel = gemm().kernel(SHAPE, Arch::Sm100a).unwrap();
    let source = Source::from(&kernel);
    let compiler = Identity { name: "anybody".into(), version: "1".into(), options: String::new() };
    let load = |cubin: Vec<u8>| {
        let (key, source) = (Key::of(&source, &compiler), SourceId::of(&source));
        let (kernel, target) = (kernel.name.clone(), "sm_100a".to_owned());
        let entry =
            Entry { key, source, target, compiler: compiler.clone(), kernel, log: String::new(), cubin };
        let cache = CacheOptions::new().bundle(Bundle::new([entry])).compiling(false).open();
        gemm().load(&device.clone().with_cache(cache), SHAPE)
    };
    vec![refused("Machine code that is damaged", load(b"\x7fELF".to_vec()))]
}
