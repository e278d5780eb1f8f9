//! Formats: values from their definitions, encoding by search among all codes.

use crate::engine::format::{E2M1, E4M3, E5M2, Format, Overflow, Rounding, UE8M0};
use half::{bf16, f16};
use proptest::prelude::*;

const SMALL: [Format; 6] =
    [Format::E2m1, Format::E2m3, Format::E3m2, Format::E4m3, Format::E5m2, Format::F16];

const ROUNDINGS: [Rounding; 5] =
    [Rounding::NearestEven, Rounding::NearestAway, Rounding::TowardZero, Rounding::Down, Rounding::Up];

#[test]
fn values_of_the_definitions() {
    let e2m1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    assert_eq!(E2M1[..8], e2m1);
    for (code, value) in e2m1.into_iter().enumerate() {
        assert_eq!(E2M1[code + 8].to_bits(), (-value).to_bits());
    }
    let decode = |format: Format, codes: [u32; 4]| codes.map(|code| format.decode(code));
    assert_eq!(decode(Format::E2m3, [1, 7, 8, 31]), [0.125, 0.875, 1.0, 7.5]);
    assert_eq!(decode(Format::E3m2, [1, 3, 4, 31]), [0.0625, 0.1875, 0.25, 28.0]);
    assert_eq!(decode(Format::E4m3, [1, 8, 0x7e, 0xb8]), [2f32.powi(-9), 2f32.powi(-6), 448.0, -1.0]);
    assert_eq!(decode(Format::E5m2, [1, 4, 0x7b, 0xbc]), [2f32.powi(-16), 2f32.powi(-14), 57344.0, -1.0]);
    assert_eq!(E5M2[0x7c], f32::INFINITY);
    assert_eq!(E5M2[0xfc], f32::NEG_INFINITY);
    let nans = [E4M3[0x7f], E4M3[0xff], E5M2[0x7d], E5M2[0xff], UE8M0[0xff]];
    assert!(nans.iter().all(|value| value.is_nan()));
    assert_eq!(E4M3.iter().filter(|value| value.is_nan()).count(), 2);
    assert_eq!(E5M2.iter().filter(|value| value.is_nan()).count(), 6);
    for code in 0..255 {
        assert_eq!(f64::from(UE8M0[code]), 2f64.powi(code as i32 - 127));
        // The scale factor format is e4m3 whose sign bit does not count.
        let (unsigned, e4m3) = (Format::Ue4m3.decode(code as u32), E4M3[code & 0x7f]);
        assert!(unsigned == e4m3 || unsigned.is_nan() && e4m3.is_nan());
    }
    assert_eq!(Format::Tf32.decode(0x3f80_3fff), f32::from_bits(0x3f80_2000));
}

#[test]
fn sixteen_bit_formats_agree_with_the_half_crate() {
    for code in 0..=u16::MAX {
        let same = |a: f32, b: f32| {
            a == b && a.is_sign_negative() == b.is_sign_negative() || a.is_nan() && b.is_nan()
        };
        assert!(same(Format::F16.decode(code.into()), f16::from_bits(code).to_f32()), "{code:#x}");
        assert!(same(Format::Bf16.decode(code.into()), bf16::from_bits(code).to_f32()), "{code:#x}");
    }
}

#[test]
fn every_code_encodes_to_itself() {
    for format in SMALL.into_iter().chain([Format::Bf16, Format::Ue8m0, Format::Ue4m3]) {
        for code in 0..1u32 << format.bits() {
            let value = format.decode(code);
            let sign_ignored = format == Format::Ue4m3 && code > 0x7f;
            if value.is_nan() || sign_ignored {
                continue;
            }
            for rounding in ROUNDINGS {
                assert_eq!(format.encode(value, rounding, Overflow::Ieee), code, "{format:?}");
            }
        }
    }
}

#[test]
fn what_cannot_be_encoded() {
    let encode = |format: Format, value: f32, overflow| format.encode(value, Rounding::NearestEven, overflow);
    use Overflow::{Ieee, Satfinite};
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    // NaN becomes the largest value where there is none.
    assert_eq!(encode(Format::E2m1, nan, Satfinite), 7);
    assert_eq!(encode(Format::E2m1, -inf, Satfinite), 15);
    assert_eq!(encode(Format::E3m2, -nan, Satfinite), 31);
    assert_eq!(encode(Format::E4m3, -nan, Satfinite), 0x7f);
    assert_eq!(encode(Format::E4m3, 1e9, Satfinite), 0x7e);
    assert_eq!(encode(Format::E4m3, 1e9, Ieee), 0x7f);
    assert_eq!(encode(Format::E4m3, 464.0, Ieee), 0x7e);
    assert_eq!(encode(Format::E5m2, -inf, Ieee), 0xfc);
    assert_eq!(encode(Format::E5m2, -inf, Satfinite), 0xfb);
    assert_eq!(encode(Format::F16, 65520.0, Ieee), 0x7c00);
    assert_eq!(encode(Format::F16, 65520.0, Satfinite), 0x7bff);
    assert_eq!(encode(Format::F16, nan, Ieee), 0x7fff);
    assert_eq!(encode(Format::Bf16, f32::MAX, Ieee), 0x7f80);
    assert_eq!(Format::Bf16.encode(f32::MAX, Rounding::TowardZero, Ieee), 0x7f7f);
    assert_eq!(Format::F16.encode(-1e6, Rounding::Up, Ieee), 0xfbff);
    assert_eq!(Format::F16.encode(-1e6, Rounding::Down, Ieee), 0xfc00);
    assert_eq!(Format::Tf32.encode(1.0 + 2f32.powi(-11), Rounding::NearestAway, Ieee), 0x3f80_2000);
    assert_eq!(Format::Tf32.encode(1.0 + 2f32.powi(-11), Rounding::NearestEven, Ieee), 0x3f80_0000);
}

#[test]
fn ue8m0_rounds_exponents() {
    let encode = |value: f32, rounding| Format::Ue8m0.encode(value, rounding, Overflow::Satfinite);
    assert_eq!(encode(1.0, Rounding::Up), 127);
    assert_eq!(encode(1.0001, Rounding::Up), 128);
    assert_eq!(encode(1.9999, Rounding::TowardZero), 127);
    assert_eq!(encode(0.0, Rounding::Up), 0);
    assert_eq!(encode(f32::MAX, Rounding::Up), 254);
    assert_eq!(encode(f32::INFINITY, Rounding::TowardZero), 254);
    assert_eq!(encode(f32::NAN, Rounding::TowardZero), 255);
    // 2^-127 is subnormal in f32, and what lies below becomes it.
    assert_eq!(encode(f32::from_bits(1 << 22), Rounding::TowardZero), 0);
    assert_eq!(encode(f32::from_bits(1 << 22 | 1), Rounding::Up), 1);
    assert_eq!(encode(f32::from_bits(3), Rounding::Up), 0);
}

/// The code that `rounding` picks, found by looking at every magnitude of the format.
fn search(format: Format, value: f32, rounding: Rounding) -> u32 {
    let sign = if value.is_sign_negative() { 1 << (format.bits() - 1) } else { 0 };
    let exact = f64::from(value.abs());
    let finite = |code: &u32| format.decode(*code).is_finite();
    let largest = (0..1 << (format.bits() - 1)).filter(finite).max().unwrap();
    let real = |code: u32| f64::from(format.decode(code));
    // The step beyond the largest value is as long as the one before it.
    let above_largest = 2.0 * real(largest) - real(largest - 1);
    if exact >= above_largest {
        return sign | largest;
    }
    let below = (0..=largest).rev().find(|&code| real(code) <= exact).unwrap();
    let (low, high) = (real(below), if below == largest { above_largest } else { real(below + 1) });
    let up = match rounding {
        _ if exact == low => false,
        Rounding::TowardZero => false,
        Rounding::Down => sign != 0,
        Rounding::Up => sign == 0,
        _ if exact - low != high - exact => exact - low > high - exact,
        Rounding::NearestAway => true,
        Rounding::NearestEven => below % 2 == 1,
    };
    sign | (below + u32::from(up)).min(largest)
}

proptest! {
    #[test]
    fn encoding_picks_the_right_neighbour(
        format in 0..5usize,
        rounding in 0..5usize,
        mantissa: u32,
        exponent in -20i32..20,
        coarse: bool,
        negative: bool,
    ) {
        let (format, rounding) = (SMALL[format], ROUNDINGS[rounding]);
        // Few bits make ties likely.
        let mantissa = if coarse { mantissa & 0x7c_0000 } else { mantissa & 0x7f_ffff };
        let value = f32::from_bits(((exponent + 127) as u32) << 23 | mantissa);
        let value = if negative { -value } else { value };
        let code = format.encode(value, rounding, Overflow::Satfinite);
        prop_assert_eq!(code, search(format, value, rounding), "{:?} {} {:?}", format, value, rounding);
    }

    #[test]
    fn half_precision_agrees_with_the_half_crate(bits: u32) {
        let value = f32::from_bits(bits);
        prop_assume!(!value.is_nan());
        let encode = |format: Format| format.encode(value, Rounding::NearestEven, Overflow::Ieee);
        prop_assert_eq!(encode(Format::F16), u32::from(f16::from_f32(value).to_bits()));
        prop_assert_eq!(encode(Format::Bf16), u32::from(bf16::from_f32(value).to_bits()));
        let truncated = Format::Tf32.encode(value, Rounding::TowardZero, Overflow::Ieee);
        prop_assert_eq!(truncated, bits & 0xffff_e000);
    }
}
