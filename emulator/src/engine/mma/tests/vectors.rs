//! Results of MMA-Sim (arXiv 2511.10909; microsoft/MMA-Sim, commit c7851383), whose arithmetic was
//! checked against hardware, on random operands of every size: ours must be the same bits, but for one where zeros
//! meet large numbers, which an H200 does not let align anything.
//!
//! A line of `vectors.txt` is: kind, A, B, scale factors of A and of B, accumulator, result, all in
//! hexadecimal with the first element along K first; `-` where there are none.

use super::super::Arithmetic;
use super::super::operands::Scales;
use super::super::path::Path;
use super::super::product::Product;
use super::rows::idesc;
use crate::engine::descriptor::{OperandTile, Packing};
use crate::engine::format::Format;
use crate::engine::idesc::{AccumulatorType, ElementType, MmaKind, ScaleFactors, ScaleVec};

static VECTORS: &str = include_str!("vectors.txt");

/// 32 bytes of K from codes of `digits` hexadecimal digits.
fn row(text: &str, digits: usize) -> [u8; 32] {
    let mut bytes = [0; 32];
    let codes: Vec<u16> = (0..text.len() / digits)
        .map(|i| u16::from_str_radix(&text[i * digits..(i + 1) * digits], 16).unwrap())
        .collect();
    for (k, &code) in codes.iter().enumerate() {
        match digits {
            1 => bytes[k / 2] |= (code as u8) << (4 * (k % 2)),
            2 => bytes[k] = code as u8,
            _ => bytes[2 * k..2 * k + 2].copy_from_slice(&code.to_le_bytes()),
        }
    }
    bytes
}

/// Scale factors, the first in the lowest byte.
fn factors(text: &str) -> u32 {
    (0..text.len() / 2).map(|i| u32::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap() << (8 * i)).sum()
}

fn check(line: &str) {
    let fields: Vec<&str> = line.split(' ').collect();
    let [name, a, b, sa, sb, c, result] = fields[..] else {
        panic!("seven fields are expected in {line:?}");
    };
    let (format, packing, digits, kind) = match name.split('.').next() {
        Some("fp4") => (Format::E2m1, Packing::Packed4, 1, MmaKind::Mxf4nvf4),
        Some("e4m3") => (Format::E4m3, Packing::Bits8, 2, MmaKind::F8f6f4),
        Some("e5m2") => (Format::E5m2, Packing::Bits8, 2, MmaKind::F8f6f4),
        Some("mx") => (Format::E4m3, Packing::Bits8, 2, MmaKind::Mxf8f6f4),
        Some("f16") => (Format::F16, Packing::Bits16, 4, MmaKind::F16),
        Some("bf16") => (Format::Bf16, Packing::Bits16, 4, MmaKind::F16),
        _ => panic!("{name} is not a kind"),
    };
    let vec = match sa.len() {
        8 => ScaleVec::X4,
        4 => ScaleVec::X2,
        _ => ScaleVec::X1,
    };
    let scale = if name == "fp4.ue4m3" { Format::Ue4m3 } else { Format::Ue8m0 };
    let scaled = (sa != "-").then_some(ScaleFactors { format: scale, vec, a_id: 0, b_id: 0 });
    let d = match name.ends_with(".f16") {
        true => AccumulatorType::F16,
        false => AccumulatorType::F32,
    };
    let element = ElementType::Float(format);
    let idesc = idesc(kind, element, element, d, (false, false), scaled);
    let tile = |text| OperandTile { packing, rows: vec![row(text, digits)] };
    let (a, b) = (tile(a), tile(b));
    let scales = scaled.map(|of| Scales { factors: of, a: vec![factors(sa)], b: vec![factors(sb)] });
    for path in Path::available() {
        let product = Product::new(&idesc, Arithmetic::Hardware, path, &a, &b, scales.as_ref());
        let mut words = [u32::from_str_radix(c, 16).unwrap()];
        product.accumulate_row(0, &mut words);
        assert_eq!(words[0], u32::from_str_radix(result, 16).unwrap(), "{path:?}: {line}");
    }
}

#[test]
fn results_are_those_of_mma_sim() {
    assert!(VECTORS.lines().count() >= 200);
    VECTORS.lines().for_each(check);
}

/// MMA-Sim has 0 for this: it takes zero for 2^-126, and some number opposite for what all terms are aligned to.
#[test]
fn zeros_align_nothing_as_on_an_h200() {
    let a = "00000000000000002aa500000000000014910000000000000000000000000000";
    let b = "3b880000000000000000000000000000000000000000000000000000f1e02b45";
    check(&format!("bf16 {a} {b} - - 876e1e40 876e1e40"));
}
