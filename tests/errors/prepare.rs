//! Kernels that prepare activations.

use super::{Case, Page, case, kind};
use silumin::codegen::prepare::Source;
use silumin::runtime::prepare::{Activations, E4m3BlockQuantizer, E4m3Blocks, PrepareError, Quantizer};
use silumin::{Arch, Device};

pub fn show(page: &mut Page) {
    page.cases("Activations to quantise", cases());
}

fn cases() -> Vec<Case> {
    let device = Device::emulated(Arch::Sm100a);
    let stream = device.stream();
    let quantizer = Quantizer::load(&device, Source::F16).unwrap();
    let [code_bytes, scale_bytes] = Quantizer::bytes(3, 64).unwrap();
    let room = device.upload(&[0; 4096]).unwrap();
    let part = |offset: usize, len: usize| room.slice(offset, len).unwrap();
    let x = part(0, 4 * code_bytes);
    let (codes, scales) = (device.alloc(code_bytes).unwrap(), device.alloc(scale_bytes).unwrap());
    let from = Activations { x: &x, rows: 3, k: 64, tensor_scale: 1.0 };
    let refused = |from: Activations<'_>| quantizer.launch(&stream, &from, &codes, &scales).unwrap_err();
    let blocks = E4m3BlockQuantizer::load(&device, Source::F16, E4m3Blocks::Vector128).unwrap();
    let odd = part(8, 4 * code_bytes);
    let there = Device::emulated(Arch::Sm100a).upload(&[0; 384]).unwrap();
    let shared = part(16, code_bytes);
    let blank = device.alloc(x.len()).unwrap();
    let found = refused(Activations { x: &blank, ..from });
    vec![
        case("K = 40 for a quantiser to NVFP4", refused(Activations { k: 40, ..from })),
        case("K = 64 for a quantiser with blocks of 128", blocks.bytes(3, 64).unwrap_err()),
        case("No rows", refused(Activations { rows: 0, ..from })),
        case("More rows than a kernel counts", refused(Activations { rows: u32::MAX, ..from })),
        case("A tensor scale that is NaN", refused(Activations { tensor_scale: f32::NAN, ..from })),
        case("Activations of three rows for four", refused(Activations { rows: 4, ..from })),
        case("Activations at an address that is no multiple of 16", refused(Activations { x: &odd, ..from })),
        case("Activations on another device", refused(Activations { x: &there, ..from })),
        case(
            "Codes within the memory of the activations",
            quantizer.launch(&stream, &from, &shared, &scales).unwrap_err(),
        ),
        ran("Activations that nothing wrote", found),
    ]
}

pub fn ran(what: &'static str, error: PrepareError) -> Case {
    let PrepareError::Run { reason, .. } = &error else { panic!("{error}") };
    let inner = kind(reason);
    case(what, error).and(inner)
}
