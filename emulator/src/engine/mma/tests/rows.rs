//! Every path of every kind, bit for bit: fast path == integer rule == oracle.

use super::super::Arithmetic;
use super::super::operands::Scales;
use super::super::path::Path;
use super::super::product::Product;
use super::super::scalar::Cell;
use super::super::sum::{Number, SumRule};
use super::{Noise, oracle};
use crate::engine::descriptor::{OperandTile, Packing};
use crate::engine::format::Format;
use crate::engine::idesc::{
    AccumulatorType, CtaGroup, ElementType, InstructionDescriptor, MmaKind, ScaleFactors, ScaleVec,
};
use proptest::prelude::*;

const ROWS: usize = 6;
/// Two whole blocks and a part of one.
const COLUMNS: usize = 40;

fn tile(packing: Packing, rows: usize, mut code: impl FnMut() -> u32) -> OperandTile {
    let rows = (0..rows)
        .map(|_| {
            let mut row = [0u8; 32];
            for k in 0..packing.k() as usize {
                let code = code();
                match packing {
                    Packing::Packed4 => row[k / 2] |= (code as u8 & 0xf) << (4 * (k % 2)),
                    Packing::Bits16 => row[2 * k..2 * k + 2].copy_from_slice(&(code as u16).to_le_bytes()),
                    Packing::Bits32 => row[4 * k..4 * k + 4].copy_from_slice(&code.to_le_bytes()),
                    _ => row[k] = code as u8,
                }
            }
            row
        })
        .collect();
    OperandTile { packing, rows }
}

fn codes(tile: &OperandTile, row: usize) -> Vec<u32> {
    let bytes = &tile.rows[row];
    (0..tile.packing.k() as usize)
        .map(|k| match tile.packing {
            Packing::Packed4 => (u32::from(bytes[k / 2]) >> (4 * (k & 1))) & 15,
            Packing::Bits16 => u32::from(bytes[2 * k]) + 256 * u32::from(bytes[2 * k + 1]),
            Packing::Bits32 => (0..4).map(|i| u32::from(bytes[4 * k + i]) << (8 * i)).sum(),
            _ => bytes[k].into(),
        })
        .collect()
}

pub fn idesc(
    kind: MmaKind,
    a: ElementType,
    b: ElementType,
    d: AccumulatorType,
    negate: (bool, bool),
    scale: Option<ScaleFactors>,
) -> InstructionDescriptor {
    // The bits of a legal descriptor, then the fields under test.
    let base = InstructionDescriptor::decode(0x0820_0910, MmaKind::Tf32, None, CtaGroup::One);
    InstructionDescriptor { kind, a, b, d, negate_a: negate.0, negate_b: negate.1, scale, ..base.unwrap() }
}

/// How accumulators, elements and scale factors are drawn.
#[derive(Clone, Copy, Debug)]
enum Draw {
    /// Any bits at all.
    Any,
    /// Finite and of ordinary size.
    Ordinary,
    /// The ends of the range, zeros and subnormals.
    Ends,
    /// Accumulators that nearly cancel the products.
    Cancelling,
    /// Elements of A that are nearly all zero and small scale factors, so that what alignment does
    /// to the accumulator shows.
    Sparse,
}

const DRAWS: [Draw; 5] = [Draw::Any, Draw::Ordinary, Draw::Ends, Draw::Cancelling, Draw::Sparse];

fn accumulator(draw: Draw, noise: &mut Noise) -> u32 {
    match draw {
        Draw::Any => noise.next() as u32,
        // Any mantissa, and an exponent down to that of zero terms.
        Draw::Sparse => (noise.next() as u32) & 0x807f_ffff | (noise.below(130) as u32) << 23,
        Draw::Ordinary | Draw::Cancelling => {
            ((noise.below(200) as f32 - 100.0) * 0.37).to_bits() & !(noise.below(8) as u32)
        }
        Draw::Ends => {
            let special = [
                0,
                0x8000_0000,
                1,
                0x8000_0001,
                0x007f_ffff,
                0x0080_0000,
                0x7f7f_ffff,
                0xff7f_ffff,
                0x7f80_0000,
                0xff80_0000,
                0x7fc0_0000,
                0x3f80_0000,
                0xbf80_0001,
                0x0012_3456,
                0x4b7f_ffff,
                0x5f12_3456,
            ];
            noise.pick(&special)
        }
    }
}

fn scale_code(draw: Draw, format: Format, noise: &mut Noise) -> u8 {
    match (draw, format) {
        (Draw::Any, _) => noise.next() as u8,
        // Anything at all in the sign bit of ue4m3, which is ignored.
        (Draw::Ordinary | Draw::Cancelling, Format::Ue4m3) => {
            (0x28 + noise.below(0x20) as u8) | (noise.next() as u8 & 0x80)
        }
        (Draw::Ordinary | Draw::Cancelling, _) => 120 + noise.below(14) as u8,
        (Draw::Sparse, Format::Ue4m3) => noise.pick(&[0, 1, 1, 2, 3, 7, 7, 9]),
        (Draw::Ends, Format::Ue4m3) => noise.pick(&[0, 1, 2, 7, 8, 9, 0x38, 0x7d, 0x7e, 0x80]),
        (Draw::Ends | Draw::Sparse, _) => noise.pick(&[0, 1, 2, 63, 64, 100, 127, 200, 253, 254]),
    }
}

fn check_fp4(seed: u64, draw: Draw, vec: ScaleVec, format: Format, negate: (bool, bool)) {
    let mut noise = Noise(seed);
    let factors = ScaleFactors { format, vec, a_id: 0, b_id: 0 };
    let count = vec.per_instruction() as usize;
    let e2m1 = ElementType::Float(Format::E2m1);
    let kind = MmaKind::Mxf4nvf4;
    let idesc = idesc(kind, e2m1, e2m1, AccumulatorType::F32, negate, Some(factors));
    let a = tile(Packing::Packed4, ROWS, || match draw {
        Draw::Sparse if noise.below(40) != 0 => noise.pick(&[0, 8]),
        _ => noise.next() as u32,
    });
    // Runs of the largest values, now and then.
    let b = tile(Packing::Packed4, COLUMNS, || match seed % 3 {
        0 => noise.pick(&[7, 15]),
        _ => noise.next() as u32,
    });
    let mut words = |rows: usize| -> Vec<u32> {
        (0..rows)
            .map(|_| u32::from_le_bytes([0; 4].map(|_: u8| scale_code(draw, format, &mut noise))))
            .collect()
    };
    let scales = Scales { factors, a: words(ROWS), b: words(COLUMNS) };
    let sign = if negate.0 != negate.1 { 8 } else { 0 };
    for row in 0..ROWS {
        let a_codes = codes(&a, row);
        let expected = |column: usize, c: u32| {
            let b_codes = codes(&b, column);
            let (sa, sb) = (scales.a[row].to_le_bytes(), scales.b[column].to_le_bytes());
            let (sa, sb) = (&sa[..count], &sb[..count]);
            let cell = Cell {
                a: (Format::E2m1, &a_codes),
                b: (Format::E2m1, &b_codes),
                scales: Some((format, sa, sb)),
                negate: sign != 0,
                c: Number::of_f32(f32::from_bits(c)),
                rule: SumRule::TCGEN05_FP4,
            };
            let flipped: Vec<u32> = a_codes.iter().map(|code| code ^ sign).collect();
            let again = oracle::fp4(&flipped, &b_codes, format, sa, sb, f32::from_bits(c));
            assert_eq!(cell.value(), again, "integer rule and oracle differ, c {c:#x}");
            again
        };
        let mut before: Vec<u32> = (0..COLUMNS).map(|_| accumulator(draw, &mut noise)).collect();
        if let Draw::Cancelling = draw {
            for (column, c) in before.iter_mut().enumerate() {
                let product = expected(column, 0);
                *c = (product ^ 0x8000_0000).wrapping_add(noise.below(5) as u32).wrapping_sub(2);
            }
        }
        let wanted: Vec<u32> = before.iter().enumerate().map(|(column, &c)| expected(column, c)).collect();
        for path in Path::available() {
            let product = Product::new(&idesc, Arithmetic::Hardware, path, &a, &b, Some(&scales));
            let mut words = before.clone();
            product.accumulate_row(row, &mut words);
            assert_eq!(words, wanted, "{path:?}, row {row}");
        }
    }
}

const FLOATS: [Format; 8] = [
    Format::E4m3,
    Format::E5m2,
    Format::E2m3,
    Format::E3m2,
    Format::E2m1,
    Format::F16,
    Format::Bf16,
    Format::Tf32,
];

fn element_code(draw: Draw, format: Format, noise: &mut Noise) -> u32 {
    let bits = format.bits();
    let top = 1u64 << (bits - 1);
    let sign = (noise.next() & top) as u32;
    let magnitude = match draw {
        Draw::Any => noise.next() & (top - 1),
        Draw::Ordinary | Draw::Cancelling => {
            // Around 1, over a few binades.
            let exponent = noise.below(6) as i32 - 3;
            let value = (1.0 + noise.below(1024) as f32 / 1024.0) * 2f32.powi(exponent);
            use crate::engine::format::{Overflow, Rounding};
            u64::from(format.encode(value, Rounding::TowardZero, Overflow::Satfinite))
        }
        Draw::Ends | Draw::Sparse => match noise.below(5) {
            0 => 0,
            1 => 1 << (bits - 4).min(13),
            2 => noise.below(8) << if bits == 32 { 13 } else { 0 },
            // The largest finite code of every format, and its neighbours below.
            _ => match format {
                Format::E4m3 => 0x7e,
                Format::E5m2 => 0x7b,
                Format::F16 => 0x7bff,
                Format::Bf16 => 0x7f7f,
                Format::Tf32 => 0x7f7f_e000,
                _ => top - 1,
            },
        },
    };
    sign | magnitude as u32
}

fn check_float(seed: u64, draw: Draw, formats: (Format, Format), half: bool, scaled: bool) {
    let mut noise = Noise(seed);
    let packing = match formats.0.bits() {
        32 => Packing::Bits32,
        16 => Packing::Bits16,
        _ => Packing::Bits8,
    };
    let negate = (noise.below(2) == 1, noise.below(2) == 1);
    let factors = ScaleFactors { format: Format::Ue8m0, vec: ScaleVec::X1, a_id: 0, b_id: 0 };
    let kind = match (packing, scaled) {
        (Packing::Bits32, _) => MmaKind::Tf32,
        (Packing::Bits16, _) => MmaKind::F16,
        (_, false) => MmaKind::F8f6f4,
        (_, true) => MmaKind::Mxf8f6f4,
    };
    let d = if half { AccumulatorType::F16 } else { AccumulatorType::F32 };
    let (a_type, b_type) = (ElementType::Float(formats.0), ElementType::Float(formats.1));
    let idesc = idesc(kind, a_type, b_type, d, negate, scaled.then_some(factors));
    let a = tile(packing, ROWS, || match draw {
        Draw::Sparse if noise.below(20) != 0 => 0,
        _ => element_code(draw, formats.0, &mut noise),
    });
    let b = tile(packing, COLUMNS, || element_code(draw, formats.1, &mut noise));
    let mut words = |rows: usize| -> Vec<u32> {
        (0..rows).map(|_| scale_code(draw, Format::Ue8m0, &mut noise).into()).collect()
    };
    let scales = scaled.then(|| Scales { factors, a: words(ROWS), b: words(COLUMNS) });
    let rule = if half { SumRule::TCGEN05_F16 } else { SumRule::TCGEN05 };
    for row in 0..ROWS {
        let a_codes = codes(&a, row);
        let expected = |column: usize, word: u32| {
            let b_codes = codes(&b, column);
            let pair = scales.as_ref().map(|s| (s.a[row] as u8, s.b[column] as u8));
            let bytes = pair.map_or([[0], [0]], |(x, y)| [[x], [y]]);
            let (c, real) = if half {
                (Number::of(Format::F16, word), f64::from(Format::F16.decode(word)))
            } else {
                (Number::of_f32(f32::from_bits(word)), f64::from(f32::from_bits(word)))
            };
            let cell = Cell {
                a: (formats.0, &a_codes),
                b: (formats.1, &b_codes),
                scales: pair.map(|_| (Format::Ue8m0, &bytes[0][..], &bytes[1][..])),
                negate: negate.0 != negate.1,
                c,
                rule,
            };
            let flip = if negate.0 != negate.1 { 1 << (formats.0.bits() - 1) } else { 0 };
            let flipped: Vec<u32> = a_codes.iter().map(|code| code ^ flip).collect();
            let (a, b) = ((formats.0, &flipped[..]), (formats.1, &b_codes[..]));
            let again = oracle::float(a, b, pair, real, half);
            assert_eq!(cell.value(), again, "integer rule and oracle differ, c {word:#x}");
            again
        };
        let mut before: Vec<u32> = (0..COLUMNS)
            .map(|_| {
                let word = accumulator(draw, &mut noise);
                if half { word >> 16 } else { word }
            })
            .collect();
        if let Draw::Cancelling = draw {
            let sign = if half { 0x8000 } else { 0x8000_0000 };
            for (column, c) in before.iter_mut().enumerate() {
                *c = expected(column, 0) ^ sign ^ noise.below(2) as u32;
            }
        }
        let wanted: Vec<u32> = before.iter().enumerate().map(|(column, &c)| expected(column, c)).collect();
        for path in Path::available() {
            let product = Product::new(&idesc, Arithmetic::Hardware, path, &a, &b, scales.as_ref());
            let mut words = before.clone();
            product.accumulate_row(row, &mut words);
            assert_eq!(words, wanted, "{path:?}, row {row}");
        }
    }
}

fn draws() -> impl Strategy<Value = Draw> {
    proptest::sample::select(&DRAWS[..])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn fp4_paths_follow_the_rule(
        seed: u64,
        draw in draws(),
        mode in 0..3,
        negate: (bool, bool),
    ) {
        let (vec, format) = match mode {
            0 => (ScaleVec::X4, Format::Ue4m3),
            1 => (ScaleVec::X4, Format::Ue8m0),
            _ => (ScaleVec::X2, Format::Ue8m0),
        };
        check_fp4(seed, draw, vec, format, negate);
    }

    #[test]
    fn small_float_paths_follow_the_rule(
        seed: u64,
        draw in draws(),
        a in 0..5usize,
        b in 0..5usize,
        half: bool,
        scaled: bool,
    ) {
        check_float(seed, draw, (FLOATS[a], FLOATS[b]), half && !scaled, scaled);
    }

    #[test]
    fn wide_float_paths_follow_the_rule(
        seed: u64,
        draw in draws(),
        format in 5..8usize,
        half: bool,
    ) {
        let format = FLOATS[format];
        check_float(seed, draw, (format, format), half && format == Format::F16, false);
    }

    #[test]
    fn integers_are_exact(seed: u64, signed: (bool, bool), saturate: bool) {
        let mut noise = Noise(seed);
        let element = |signed| if signed { ElementType::S8 } else { ElementType::U8 };
        let (a_type, b_type) = (element(signed.0), element(signed.1));
        let s32 = AccumulatorType::S32;
        let mut idesc = idesc(MmaKind::I8, a_type, b_type, s32, (false, false), None);
        idesc.saturate = saturate;
        let mut code = || noise.pick(&[0, 1, 127, 128, 255, 3, 200]) as u32;
        let a = tile(Packing::Bits8, ROWS, &mut code);
        let b = tile(Packing::Bits8, COLUMNS, &mut code);
        let value = |signed: bool, code: u32| match signed && code > 127 {
            true => i64::from(code) - 256,
            false => i64::from(code),
        };
        for path in Path::available() {
            let product = Product::new(&idesc, Arithmetic::F32, path, &a, &b, None);
            for row in 0..ROWS {
                let before: Vec<u32> = (0..COLUMNS)
                    .map(|_| noise.pick(&[0, 5, 0x7fff_ffff, 0x8000_0000, 0xffff_fff0]))
                    .collect();
                let mut words = before.clone();
                product.accumulate_row(row, &mut words);
                for (column, (&word, &c)) in words.iter().zip(&before).enumerate() {
                    let mut sum = i64::from(c as i32);
                    for (&x, &y) in codes(&a, row).iter().zip(&codes(&b, column)) {
                        sum += value(signed.0, x) * value(signed.1, y);
                    }
                    if saturate {
                        sum = sum.clamp(-(1 << 31), (1 << 31) - 1);
                    }
                    prop_assert_eq!(word, sum as u32);
                }
            }
        }
    }

    #[test]
    fn plain_mode_is_close_and_paths_agree(seed: u64) {
        let mut noise = Noise(seed);
        let factors =
            ScaleFactors { format: Format::Ue4m3, vec: ScaleVec::X4, a_id: 0, b_id: 0 };
        let e2m1 = ElementType::Float(Format::E2m1);
        let kind = MmaKind::Mxf4nvf4;
        let f32_type = AccumulatorType::F32;
        let idesc = idesc(kind, e2m1, e2m1, f32_type, (false, false), Some(factors));
        let a = tile(Packing::Packed4, ROWS, || noise.next() as u32);
        let b = tile(Packing::Packed4, COLUMNS, || noise.next() as u32);
        let mut words = |rows: usize| -> Vec<u32> {
            (0..rows).map(|_| noise.next() as u32 & 0x3f3f_3f3f).collect()
        };
        let scales = Scales { factors, a: words(ROWS), b: words(COLUMNS) };
        for row in 0..ROWS {
            let mut results = Vec::new();
            for path in Path::available() {
                let product =
                    Product::new(&idesc, Arithmetic::F32, path, &a, &b, Some(&scales));
                let mut words = vec![1f32.to_bits(); COLUMNS];
                product.accumulate_row(row, &mut words);
                results.push(words);
            }
            for words in &results {
                prop_assert_eq!(words, &results[0]);
            }
            for (column, &word) in results[0].iter().enumerate() {
                let (sa, sb) = (scales.a[row].to_le_bytes(), scales.b[column].to_le_bytes());
                let mut sum = 1f64;
                let mut size = 1f64;
                for (k, (x, y)) in codes(&a, row).into_iter().zip(codes(&b, column)).enumerate() {
                    let scale = f64::from(Format::E4m3.decode(sa[k / 16].into()))
                        * f64::from(Format::E4m3.decode(sb[k / 16].into()));
                    let product = f64::from(Format::E2m1.decode(x) * Format::E2m1.decode(y));
                    sum += product * scale;
                    size += (product * scale).abs();
                }
                let error = (f64::from(f32::from_bits(word)) - sum).abs();
                prop_assert!(error <= size * 1e-6, "{} is not {}", f32::from_bits(word), sum);
            }
        }
    }
}

/// A sum of f16 products where the exponent of a zero accumulator decides: 2^-25, halfway between two
/// codes, plus 2^-45, which a zero with the exponent of f16's subnormals would push out.
#[test]
fn zero_accumulators_do_not_align() {
    let f16 = ElementType::Float(Format::F16);
    let half = AccumulatorType::F16;
    let idesc = idesc(MmaKind::F16, f16, f16, half, (false, false), None);
    let mut a = OperandTile { packing: Packing::Bits16, rows: vec![[0; 32]] };
    let mut b = a.clone();
    // 2^-15 * 2^-10 and 2^-24 * 2^-21.
    for (k, (x, y)) in [(0x0200u16, 0x1400u16), (0x0001, 0x0008)].into_iter().enumerate() {
        a.rows[0][2 * k..2 * k + 2].copy_from_slice(&x.to_le_bytes());
        b.rows[0][2 * k..2 * k + 2].copy_from_slice(&y.to_le_bytes());
    }
    for path in Path::available() {
        let product = Product::new(&idesc, Arithmetic::Hardware, path, &a, &b, None);
        for (before, after) in [(0, 1), (1, 2), (0x400, 0x400)] {
            let mut words = [before];
            product.accumulate_row(0, &mut words);
            assert_eq!(words, [after], "{path:?}");
        }
    }
}
