//! Compares the quantisers, byte by byte, with a second implementation of their rules over other crates' number
//! formats.

use float4::{E8M0, F4E2M1};
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use microfloat::{f4e2m1fn, f8e4m3fn, f8e5m2, f8e8m0fnu};
use proptest::prelude::*;
use silumin_codegen::problem::OperandFormat;
use silumin_formats::quantize::{MxRule, Real, TensorScale, quantize_with};

/// The code of an element, by the other crates.
fn element(format: OperandFormat, value: f32) -> u8 {
    use OperandFormat as F;
    let (one, other) = match format {
        F::Nvfp4 | F::Mxfp4 => {
            (f4e2m1fn::from_f32(value).to_bits(), F4E2M1::from_f64(f64::from(value)).to_bits())
        }
        // microfloat does not saturate.
        F::Mxfp8 => {
            (f8e4m3fn::from_f32(value.clamp(-448.0, 448.0)).to_bits(), F8E4M3::from_f32(value).to_bits())
        }
        _ => (
            f8e5m2::from_f32(value.clamp(-57344.0, 57344.0)).to_bits(),
            F8E5M2::from_f32(value.clamp(-57344.0, 57344.0)).to_bits(),
        ),
    };
    assert_eq!(one, other, "{format}: {value:e}");
    one
}

/// The scale factor of a block: its code and its value.
fn factor(format: OperandFormat, amax: f32, tensor_scale: f32, rule: MxRule) -> (u8, f32) {
    let (largest, emax) = match format {
        OperandFormat::Nvfp4 => {
            let wanted = amax / 6.0 / tensor_scale;
            let code = F8E4M3::from_f32(wanted);
            assert_eq!(code.to_bits(), f8e4m3fn::from_f32(wanted.min(448.0)).to_bits());
            return (code.to_bits(), code.to_f32());
        }
        OperandFormat::Mxfp4 => (6.0, 2),
        OperandFormat::Mxfp8 => (448.0, 8),
        _ => (57344.0, 15),
    };
    // By search among all powers of two.
    let amax = f64::from(amax) / f64::from(tensor_scale);
    let value = |code: u8| E8M0::from_bits(code).to_f64();
    let code = match rule {
        MxRule::Floor => (0..=254).rev().find(|code| value(*code) * 2f64.powi(emax) <= amax).unwrap_or(0),
        MxRule::Up => (0..=254).find(|code| value(*code) >= amax / largest).unwrap_or(254),
    };
    assert_eq!(f64::from(f8e8m0fnu::from_bits(code).to_f32()), value(code));
    (code, value(code) as f32)
}

fn compare<T: Real>(format: OperandFormat, values: &[T], k: usize, scale: TensorScale, rule: MxRule) {
    let matrix = quantize_with(format, values, values.len() / k, k, scale, rule).unwrap();
    let (block, bits) = match format {
        OperandFormat::Nvfp4 => (16, 4),
        OperandFormat::Mxfp4 => (32, 4),
        _ => (32, 8),
    };
    let tensor_scale = matrix.tensor_scale();
    for (number, run) in values.chunks(block).enumerate() {
        let amax = run.iter().map(|value| value.as_f32().abs()).fold(0.0, f32::max);
        let (code, scale) = factor(format, amax, tensor_scale, rule);
        assert_eq!(matrix.scales()[number], code, "{format}: block {number}, {amax:e}");
        for (offset, value) in run.iter().enumerate() {
            let step = scale * tensor_scale;
            let expected = if step == 0.0 { 0 } else { element(format, value.as_f32() / step) };
            let index = number * block + offset;
            let found = match bits {
                4 => matrix.codes()[index / 2] >> (4 * (index % 2)) & 0xF,
                _ => matrix.codes()[index],
            };
            assert_eq!(
                found,
                expected,
                "{format}: element {index}, {:e} in steps of {step:e}",
                value.as_f32()
            );
        }
    }
}

const FORMATS: [OperandFormat; 4] =
    [OperandFormat::Nvfp4, OperandFormat::Mxfp4, OperandFormat::Mxfp8, OperandFormat::Mxfp8E5m2];

fn scales() -> impl Strategy<Value = TensorScale> {
    prop_oneof![
        Just(TensorScale::One),
        Just(TensorScale::FromMax),
        (-40i32..40, 1.0f32..2.0).prop_map(|(e, m)| TensorScale::Fixed(m * 2f32.powi(e))),
    ]
}

/// Numbers of all sizes: zeros of both signs, subnormals, ties of every format, powers of two and their neighbours.
fn numbers() -> impl Strategy<Value = f32> {
    let sign = |value: f32, negative: bool| if negative { -value } else { value };
    prop_oneof![
        1 => Just(0.0f32),
        1 => Just(-0.0f32),
        4 => -8.0f32..8.0,
        2 => (0u32..1 << 23).prop_map(f32::from_bits),
        4 => (-126i32..127, 0u32..16, any::<bool>())
            .prop_map(move |(e, m, s)| sign(2f32.powi(e) * (1.0 + m as f32 / 16.0), s)),
        2 => any::<u32>().prop_map(f32::from_bits).prop_filter("finite", |value| value.is_finite()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_byte_is_that_of_other_crates(
        values in prop::collection::vec(numbers(), 192),
        near in prop::option::of(-20i32..20),
        scale in scales(),
        up in any::<bool>(),
    ) {
        // Blocks of one size, or of any.
        let values: Vec<f32> = match near {
            Some(exponent) => values.iter().map(|v| v.clamp(-8.0, 8.0) * 2f32.powi(exponent)).collect(),
            None => values,
        };
        let rule = if up { MxRule::Up } else { MxRule::Floor };
        for format in FORMATS {
            compare(format, &values, 96, scale, rule);
            let halves: Vec<f16> = values.iter().map(|v| f16::from_f32(v.clamp(-6e4, 6e4))).collect();
            compare(format, &halves, 96, scale, rule);
            let brains: Vec<bf16> = values.iter().map(|v| bf16::from_f32(*v)).collect();
            if brains.iter().all(|v| v.is_finite()) {
                compare(format, &brains, 96, scale, rule);
            }
        }
    }
}

#[test]
fn every_finite_bf16_and_f16() {
    let brains: Vec<bf16> = (0..=u16::MAX).map(bf16::from_bits).filter(|value| value.is_finite()).collect();
    let halves: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).filter(|value| value.is_finite()).collect();
    for format in FORMATS {
        for scale in [TensorScale::One, TensorScale::Fixed(0.37), TensorScale::FromMax] {
            let fill = |rest: usize| rest.next_multiple_of(32);
            let mut wide = vec![bf16::ZERO; fill(brains.len())];
            wide[..brains.len()].copy_from_slice(&brains);
            compare(format, &wide, 32, scale, MxRule::Floor);
            let mut wide = vec![f16::ZERO; fill(halves.len())];
            wide[..halves.len()].copy_from_slice(&halves);
            compare(format, &wide, 32, scale, MxRule::Floor);
            // In the order of their bits neighbours are alike: here they are strangers.
            let spread: Vec<f16> =
                (0..halves.len() / 32 * 32).map(|i| halves[i * 4099 % halves.len()]).collect();
            compare(format, &spread, 32, scale, MxRule::Up);
        }
    }
}
