//! Devices, their memory, and groups of ranks. What a CUDA driver says comes from processes with the emulated one.

use super::load::{NO_CODE, with_code};
use super::{Case, Page, case, kind};
use crate::cache_driver::image;
use silumin::formats::quantize::{TensorScale, quantize_to};
use silumin::runtime::cache::{Entry, Identity, Key, Source, SourceId};
use silumin::runtime::communicator::{Communicator, CommunicatorError};
use silumin::runtime::dlpack::DlpackError;
use silumin::runtime::dlpack::abi::DLManagedTensorVersioned;
use silumin::runtime::mlp::{Mlp, MlpError, MlpOptions, MlpWeights, Source as Activations};
use silumin::runtime::predict::{Chip, IssueSource, PredictError, issue_costs};
use silumin::runtime::prepare::{self, Quantizer};
use silumin::runtime::tensor::bf16;
use silumin::runtime::tune::tune;
use silumin::runtime::weights::{GateUp, Weight};
use silumin::verify::toolchain::Ptxas;
use silumin::{
    Arch, Buckets, Bundle, CacheOptions, Device, DualGemm, LoadError, LoadedKernel, Matrix, OperandFormat,
    Shape, Spec,
};
use silumin_emulator::time::TimeError;
use silumin_testkit::driver::{role, run};
use std::fs;
use std::time::Duration;

pub fn show(page: &mut Page) {
    page.cases("Memory of a device", memory());
    page.cases("Groups of ranks", ranks());
    gpus(page);
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
    let late = Communicator::all_within(&devices, Duration::from_secs(1)).unwrap();
    let is_late = case("A rank that does not come", sum(&late[0]));
    let failed = case("The next sum of that group", sum(&late[1]));
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
fn gpus(page: &mut Page) {
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
        Case::all_from_json(&fs::read(&out).unwrap())
    };
    let library = silumin_testkit::driver::library();
    let library = library.to_str().unwrap();
    let fails = [("SILUMIN_EMULATED_MISHAP", "fail:.target")];
    let assembler = folder.path().join("ptxas");
    fs::write(&assembler, "no program").unwrap();
    let assembler = assembler.to_str().unwrap();
    let named = |path| [("SILUMIN_PTXAS", path), ("SILUMIN_NVDISASM", path)];
    let search = [("SILUMIN_PTXAS", ""), ("SILUMIN_NVDISASM", ""), ("PATH", "")];
    let groups = [
        (
            "GPUs and their driver",
            vec![
                of("without", &[("LD_LIBRARY_PATH", nothing)]),
                of("two", &[("SILUMIN_EMULATED_DEVICES", "2"), nccl]),
                of("nccl", &[("SILUMIN_EMULATED_DEVICES", "2"), ("SILUMIN_NCCL", library)]),
            ],
        ),
        ("Modules on a GPU", vec![of("code", &[]), of("old", &[("SILUMIN_EMULATED_CUDA", "12.4")])]),
        ("Kernels that fail on a GPU", vec![of("fails", &fails), of("lost", &fails)]),
        (
            "NVIDIA's tools",
            vec![
                of("none", &search),
                of("no file", &named("/opt/cuda/bin/ptxas")),
                of("no program", &named(assembler)),
            ],
        ),
    ];
    for (title, cases) in groups {
        let placed = |mut case: Case| {
            case.said = case.said.replace(library, "libother.so");
            case.without(folder.path())
        };
        page.cases(title, cases.into_iter().flatten().map(placed).collect());
    }
}

/// In a process that [`gpus`] starts.
#[test]
fn a_process_with_a_driver() {
    let cases = match role().as_deref() {
        Some("without") => vec![case("No driver", Device::cuda(0).map(drop).unwrap_err())],
        Some("two") => two(),
        Some("nccl") => vec![case("A library that is not NCCL", group())],
        Some("code") => code(),
        Some("old") => old(),
        Some("fails") => fails(),
        Some("lost") => lost(),
        Some("none") => tools(["No assembler, for a kernel", "The same for a prediction"]),
        Some("no file") => {
            tools(["An assembler that is not there, for a kernel", "The same for a prediction"])
        }
        Some("no program") => tools(["A file that is no program, for a kernel", "The same for a prediction"]),
        Some(other) => panic!("{other}"),
        None => return,
    };
    fs::write(std::env::var_os(OUT).unwrap(), Case::all_to_json(&cases)).unwrap();
}

const SHAPE: Shape = Shape::new(4, 64, 128);

fn gemm() -> DualGemm {
    DualGemm::new(Spec::new("silu(A @ B1) * (A @ B2)".parse().unwrap(), &[Arch::Sm100a]).unwrap())
}

fn refused<T>(what: &'static str, result: Result<T, LoadError>) -> Case {
    super::load::refused(what, result.map(drop).unwrap_err())
}

/// A driver that is too old for the kernel's PTX and for the machine code of a bundle.
fn old() -> Vec<Case> {
    let device = Device::cuda(0).unwrap();
    let ptx = gemm().kernel(SHAPE, Arch::Sm100a).unwrap().ptx;
    vec![
        refused("A driver for CUDA 12.4", gemm().load(&device, SHAPE)),
        refused("Machine code for a newer driver", of_bundle(&device, image(&ptx, "sm_100a"))),
    ]
}

/// A kernel that leaves its GPU beyond use.
fn fails() -> Vec<Case> {
    let device = Device::cuda(0).unwrap();
    let ready = super::launches::Ready::new(&device, "silu(A @ B1) * (A @ B2)");
    let quantizer = Quantizer::load(&device, Activations::Bf16).unwrap();
    let [codes, scales] = Quantizer::bytes(4, 128).unwrap().map(|bytes| device.alloc(bytes).unwrap());
    let x = device.upload(&[0; 2 * 4 * 128]).unwrap();
    let from = prepare::Activations { x: &x, rows: 4, k: 128, tensor_scale: 1.0 };
    let launched = ready.refuses(&ready.operands.args(&[]));
    let quantised = quantizer.launch(&device.stream(), &from, &codes, &scales).unwrap_err();
    vec![
        case("A launch that the driver refuses", launched),
        super::prepare::ran("The next launch, of a kernel that quantises", quantised),
        case("A wait for a stream with a kernel that failed", device.stream().synchronize().unwrap_err()),
    ]
}

/// A kernel that leaves its GPU beyond use while it is tuned.
fn lost() -> Vec<Case> {
    let lost = tune(&Device::cuda(0).unwrap(), &gemm(), SHAPE, &"stages=2".parse().unwrap());
    vec![case("A kernel that fails while it is tuned", lost.map(drop).unwrap_err())]
}

/// NVIDIA's tools for a kernel, and for a prediction.
fn tools([kernel, prediction]: [&'static str; 2]) -> Vec<Case> {
    let folder = tempfile::tempdir().unwrap();
    std::env::set_current_dir(folder.path()).unwrap();
    let own = gemm().kernel(SHAPE, Arch::Sm100a).unwrap();
    let assembled =
        Ptxas::find().and_then(|ptxas| ptxas.assemble(&own.ptx, Arch::Sm100a)).map(drop).unwrap_err();
    let chip = Chip::named("b200").unwrap();
    let costs = issue_costs(&own, &chip, IssueSource::Sass).map(drop).unwrap_err();
    let PredictError::Issue(TimeError::Sass(inner)) = &costs else { panic!("{costs}") };
    let inner = kind(inner);
    let here = |case: Case| {
        let said = case.said.replace(folder.path().to_str().unwrap(), "/home/me/model");
        Case { said, ..case }
    };
    vec![here(case(kernel, assembled)), here(case(prediction, costs).and(inner))]
}

fn group() -> CommunicatorError {
    let devices = [Device::cuda(0).unwrap(), Device::cuda(1).unwrap()];
    Communicator::all(&devices).map(drop).unwrap_err()
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
        case("A group of GPUs without NCCL", group()),
        case("A block on the default stream, to be recorded", default_stream(device)),
    ];
    cases.extend(lent(device));
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

/// Loads the kernel from a bundle with this machine code.
fn of_bundle(device: &Device, cubin: Vec<u8>) -> Result<LoadedKernel, LoadError> {
    let kernel = gemm().kernel(SHAPE, Arch::Sm100a).unwrap();
    let source = Source::from(&kernel);
    let compiler = Identity { name: "anybody".into(), version: "1".into(), options: String::new() };
    let (key, source) = (Key::of(&source, &compiler), SourceId::of(&source));
    let (kernel, target) = (kernel.name, "sm_100a".to_owned());
    let entry = Entry { key, source, target, compiler, kernel, log: String::new(), cubin };
    let cache = CacheOptions::new().bundle(Bundle::new([entry])).compiling(false).open();
    gemm().load(&device.clone().with_cache(cache), SHAPE)
}

/// Code that is damaged or of another kernel.
fn code() -> Vec<Case> {
    let device = Device::cuda(0).unwrap();
    let ptx = gemm().kernel(SHAPE, Arch::Sm100a).unwrap().ptx;
    let other = ptx.replace("silumin_dual_gemm", "gemm");
    let more = ptx.replacen("(\n", "(\n    .param .u64 one_more,\n", 1);
    let bundled = |what: &'static str, cubin| refused(what, of_bundle(&device, cubin));
    vec![
        bundled("Machine code that is damaged", b"\x7fELF".to_vec()),
        bundled("Machine code for another chip", image(&ptx, "sm_90a")),
        bundled("Machine code of another kernel", image(&other, "sm_100a")),
        bundled("Machine code of another version of the kernel", image(&more, "sm_100a")),
        refused("A gate's code with a mistake", with_code(NO_CODE).load(&device, SHAPE)).shortened(8),
        refused("A gate's code with a zero byte", with_code("\0").load(&device, SHAPE)),
    ]
}
