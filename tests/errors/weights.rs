//! Weights as slices of the host.

use super::{Case, Page, case};
use silumin::formats::quantize::{TensorScale, quantize_to};
use silumin::runtime::weights::{GateUp, Order, RowScales, Weight, WeightError};
use silumin::{Arch, Device, OperandFormat};

pub fn show(page: &mut Page) {
    page.cases("Weights", cases());
}

fn cases() -> Vec<Case> {
    let (codes, scales) = (vec![0u8; 64 * 64], vec![0x38u8; 64 * 8]);
    let mut damaged = scales.clone();
    damaged[9] = 0x7f;
    let weight =
        |rows: usize, codes, scales| Weight::new(OperandFormat::Nvfp4, rows, 128, codes, scales, 1.0);
    let whole = |rows: usize| weight(rows, &codes[..rows * 64], &scales[..rows * 8]).unwrap();
    let error = |result: Result<Weight<'_>, WeightError>| result.map(drop).unwrap_err();
    let of = |result: Result<GateUp<'_>, WeightError>| result.map(drop).unwrap_err();
    let ones = vec![1.0f32; 130 * 256];
    let blocks = quantize_to(OperandFormat::E4m3Block128, &ones, 130, 256, TensorScale::One).unwrap();
    let mut factors = blocks.scales().to_vec();
    factors[4..8].copy_from_slice(&f32::INFINITY.to_le_bytes());
    let of_rows: Vec<u8> = [1.0f32, 0.0, 1.0, 1.0].into_iter().flat_map(f32::to_le_bytes).collect();
    let ones: Vec<u8> = [1.0f32; 4].into_iter().flat_map(f32::to_le_bytes).collect();
    let fp8 = quantize_to(OperandFormat::E4m3, &vec![1.0f32; 4 * 16], 4, 16, TensorScale::One).unwrap();
    let fp8 = Weight::of(&fp8).unwrap();
    let scaled = fp8.with_row_scales(RowScales::f32(&ones)).unwrap();
    let device = Device::emulated(Arch::Sm90a);
    vec![
        case("NVFP4 weights without their last row", error(weight(64, &codes[64..], &scales))),
        case("A scale factor that is NaN", error(weight(64, &codes, &damaged))),
        case(
            "A scale factor of a block that is infinite",
            error(Weight::new(OperandFormat::E4m3Block128, 130, 256, blocks.codes(), &factors, 1.0)),
        ),
        case("A scale of a row that is 0", error(fp8.with_row_scales(RowScales::f32(&of_rows)))),
        case(
            "Scales of rows, for a gate without a vector",
            GateUp::new(scaled, scaled).unwrap().upload(&device).map(drop).unwrap_err(),
        ),
        case("FP8 weights to be repacked", fp8.to_repacked().map(drop).unwrap_err()),
        case("Rows that do not lie in the matrix", error(whole(64).slice(60..68))),
        case("Rows that cut a block of 128", error(Weight::of(&blocks).unwrap().slice(64..130))),
        case("Columns that cut a block of 16", whole(64).columns(8..40).map(drop).unwrap_err()),
        case("Gate and up of two shapes", of(GateUp::new(whole(64), whole(32)))),
        case("Gate and up in one tensor of 63 rows", of(GateUp::stacked(whole(63), Order::GateFirst))),
        case("Gate and up without rows", of(GateUp::new(whole(0), whole(0)))),
    ]
}
