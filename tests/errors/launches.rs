//! Launches, and the vectors of a gate.

use super::{Case, Page, case, kind};
use silumin::codegen::problem::Formats;
use silumin::verify::inputs::DualGemmInputs;
use silumin::{
    Arch, Args, Buffer, Device, DeviceOperands, Distribution, DualGemm, EmulatorOptions, LaunchError,
    LoadedKernel, Shape, Spec,
};

const SHAPE: Shape = Shape::new(4, 64, 128);
const SWIGLU: &str = "silu(A @ B1) * (A @ B2)";

pub fn show(page: &mut Page) {
    page.cases("Operands", operands());
    page.cases("Scalars", scalars());
    page.cases("Vectors", vectors());
    page.cases("What a kernel does", runs());
}

/// A kernel with what its launches take.
pub struct Ready {
    pub kernel: LoadedKernel,
    pub operands: DeviceOperands,
}

impl Ready {
    pub fn new(device: &Device, gate: &str) -> Self {
        let spec = Spec::new(gate.parse().unwrap(), &[device.arch()]).unwrap();
        let kernel = DualGemm::new(spec).load(device, SHAPE).unwrap();
        let inputs =
            DualGemmInputs::generate_for(SHAPE, Formats::default(), Distribution::Benchmark, 1).unwrap();
        Ready { kernel, operands: DeviceOperands::upload(device, &inputs).unwrap() }
    }

    pub fn refuses(&self, args: &Args<'_>) -> LaunchError {
        self.kernel.launch(&self.kernel.device().stream(), args).unwrap_err()
    }
}

fn part(buffer: &Buffer, offset: usize, len: usize) -> Buffer {
    buffer.slice(offset, len).unwrap()
}

fn operands() -> Vec<Case> {
    let device = Device::emulated(Arch::Sm100a);
    let plain = Ready::new(&device, SWIGLU);
    let args = plain.operands.args(&[]);
    let other = Device::emulated(Arch::Sm100a);
    let foreign = other.upload(&[0; 64 * 4]).unwrap();
    let long = device.alloc(1024).unwrap();
    let short = part(&plain.operands.a, 0, 128);
    let odd = part(&long, 8, plain.operands.a.len());
    let inside = part(&long, 0, 512);
    let wrong_stream = plain.kernel.launch(&other.stream(), &args).unwrap_err();
    vec![
        case("The stream of another device", wrong_stream),
        case("A on another device", plain.refuses(&Args { a: &foreign, ..args })),
        case("No scale factors of A", plain.refuses(&Args { sfa: None, ..args })),
        case("Scale factors of C, which is f16", plain.refuses(&Args { sfc: Some(&long), ..args })),
        case("A scale of C, which is f16", plain.refuses(&Args { c_scale: Some(0.5), ..args })),
        case("A without its last rows", plain.refuses(&Args { a: &short, ..args })),
        case("More rows than the kernel computes", plain.refuses(&args.rows(5))),
        case("A at an address that is no multiple of 16", plain.refuses(&Args { a: &odd, ..args })),
        case(
            "C within the memory of A's scale factors",
            plain.refuses(&Args { sfa: Some(&long), c: &inside, ..args }),
        ),
        case(
            "Weights with tensor scales, and a gate without",
            plain.refuses(&Args { weight_scales: Some([0.5, 2.0]), ..args }),
        ),
    ]
}

fn scalars() -> Vec<Case> {
    let scaled = Ready::new(&Device::emulated(Arch::Sm100a), "silu(alpha * (A @ B1)) * (A @ B2)");
    let args = scaled.operands.args(&[]);
    let with = |scalars: &[(&str, f32)]| scaled.refuses(&args.scalars(scalars));
    vec![
        case("No value for a scalar", with(&[])),
        case("A scalar that the gate does not have", with(&[("beta", 1.0)])),
        case("A scalar twice", with(&[("alpha", 1.0), ("alpha", 1.0)])),
    ]
}

fn vectors() -> Vec<Case> {
    let device = Device::emulated(Arch::Sm100a);
    let biased = Ready::new(&device, "silu((A @ B1) + bias[n]) * (A @ B2)");
    let args = biased.operands.args(&[]);
    let with = |what: &'static str, vectors: &[(&str, &Buffer)]| {
        let error = biased.refuses(&args.vectors(vectors));
        let LaunchError::Vector(inner) = &error else { panic!("{error}") };
        let inner = kind(inner);
        case(what, error).and(inner)
    };
    let (bias, half) = (device.upload(&[0; 4 * 64]).unwrap(), device.upload(&[0; 4 * 32]).unwrap());
    let odd = part(&device.alloc(4 * 65).unwrap(), 4, 4 * 64);
    let foreign = Device::emulated(Arch::Sm100a).upload(&[0; 4 * 64]).unwrap();
    let shared = part(&biased.operands.c, 0, 4 * 64);
    vec![
        with("No bias", &[]),
        with("A bias under another name", &[("b", &bias)]),
        with("A bias twice", &[("bias", &bias), ("bias", &bias)]),
        with("Half of a bias", &[("bias", &half)]),
        with("A bias at an address that is no multiple of 16", &[("bias", &odd)]),
        with("A bias on another device", &[("bias", &foreign)]),
        with("A bias within the memory of C", &[("bias", &shared)]),
    ]
}

fn runs() -> Vec<Case> {
    let options = EmulatorOptions { instruction_limit: 500, threads: 1, ..EmulatorOptions::default() };
    let device = Device::emulated_with(Arch::Sm100a, options);
    let ready = Ready::new(&device, SWIGLU);
    vec![case("A limit of 500 instructions on the emulated device", ready.refuses(&ready.operands.args(&[])))]
}
