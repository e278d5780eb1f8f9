//! Elements and scale factors of every operand format, selected by [`ElementKind`] and [`ScaleFormat`]: one interface
//! to the modules of the formats.

use half::{bf16, f16};
use silumin_codegen::problem::{ByteScale, ElementKind, ScaleFormat};

use super::{e2m1, e4m3, e5m2, f32_to_odd, ue8m0};

/// Largest finite magnitude.
#[must_use]
pub const fn max(kind: ElementKind) -> f32 {
    match kind {
        ElementKind::E2m1 => e2m1::MAX,
        ElementKind::E4m3 => e4m3::MAX,
        ElementKind::E5m2 => e5m2::MAX,
        ElementKind::Bf16 => 3.389_531_4e38,
        ElementKind::F16 => 65504.0,
    }
}

/// Exponent of the largest power of two in the format (emax in OCP Microscaling Formats 1.0, section 6.3).
#[must_use]
pub const fn max_exponent(kind: ElementKind) -> i32 {
    match kind {
        ElementKind::E2m1 => 2,
        ElementKind::E4m3 => 8,
        ElementKind::E5m2 | ElementKind::F16 => 15,
        ElementKind::Bf16 => 127,
    }
}

/// Code of the largest finite magnitude. The codes from 0 to it are all nonnegative magnitudes, in ascending order.
#[must_use]
pub const fn max_code(kind: ElementKind) -> u16 {
    match kind {
        ElementKind::E2m1 => 0x7,
        ElementKind::E4m3 => 0x7E,
        ElementKind::E5m2 => 0x7B,
        ElementKind::Bf16 => 0x7F7F,
        ElementKind::F16 => 0x7BFF,
    }
}

/// The sign bit of a code.
#[must_use]
pub const fn sign_bit(kind: ElementKind) -> u16 {
    1 << (kind.bits() - 1)
}

/// Value of the element `code`, which is in the low bits.
#[must_use]
pub fn decode(kind: ElementKind, code: u16) -> f32 {
    match kind {
        ElementKind::E2m1 => e2m1::decode(code as u8),
        ElementKind::E4m3 => e4m3::decode(code as u8),
        ElementKind::E5m2 => e5m2::decode(code as u8),
        ElementKind::Bf16 => f32::from_bits(u32::from(code) << 16),
        ElementKind::F16 => decode_f16(code),
    }
}

/// The code nearest to `value`, ties to even, as the hardware's `cvt.rn` rounds: e2m1, e4m3 and e5m2 saturate
/// (`.satfinite`), bf16 and f16 overflow to infinity.
#[must_use]
pub fn encode(kind: ElementKind, value: f32) -> u16 {
    match kind {
        ElementKind::E2m1 => u16::from(e2m1::encode(value)),
        ElementKind::E4m3 => u16::from(e4m3::encode(value)),
        ElementKind::E5m2 => u16::from(e5m2::encode(value)),
        ElementKind::Bf16 => bf16::from_f32(value).to_bits(),
        ElementKind::F16 => f16::from_f32(value).to_bits(),
    }
}

/// As [`encode`], from f64 with a single rounding.
#[must_use]
pub fn encode_f64(kind: ElementKind, value: f64) -> u16 {
    encode(kind, f32_to_odd(value))
}

/// Value of an f16, by integer arithmetic that compilers vectorise.
#[inline]
#[must_use]
pub fn decode_f16(code: u16) -> f32 {
    // The exponent field read with f32's bias is 112 too small; the product corrects it exactly, of
    // subnormals as well.
    const REBIAS: f32 = f32::from_bits((127 + 112) << 23);
    let bits = u32::from(code & 0x7FFF) << 13;
    let magnitude = if code & 0x7C00 == 0x7C00 {
        f32::from_bits(bits | 0x7F80_0000)
    } else {
        f32::from_bits(bits) * REBIAS
    };
    f32::from_bits(magnitude.to_bits() | (u32::from(code & 0x8000) << 16))
}

/// Value of a scale factor of a byte. The sign bit of ue4m3 counts, so that a reference shows it; no quantiser sets it.
#[must_use]
pub fn decode_scale(format: ByteScale, code: u8) -> f64 {
    match format {
        ByteScale::Ue4m3 => f64::from(e4m3::decode(code)),
        ByteScale::Ue8m0 => f64::from(ue8m0::decode(code)),
    }
}

/// Value of the scale factor with the number `index` in memory that holds one behind the other.
///
/// # Panics
///
/// Where the memory ends before it.
#[must_use]
pub fn scale_at(format: ScaleFormat, scales: &[u8], index: usize) -> f64 {
    match format {
        ScaleFormat::Byte(format) => decode_scale(format, scales[index]),
        ScaleFormat::F32 => f64::from(f32::from_le_bytes(scales.as_chunks::<4>().0[index])),
    }
}

/// Code of the largest finite scale factor of a byte. The codes from 0 to it are all smaller ones, in ascending order.
#[must_use]
pub const fn max_scale_code(format: ByteScale) -> u8 {
    match format {
        ByteScale::Ue4m3 => 0x7E,
        ByteScale::Ue8m0 => 0xFE,
    }
}

/// Code of a NaN scale factor of a byte.
#[must_use]
pub const fn nan_scale_code(format: ByteScale) -> u8 {
    match format {
        ByteScale::Ue4m3 => e4m3::NAN,
        ByteScale::Ue8m0 => ue8m0::NAN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{RngCore, SeedableRng};

    const KINDS: [ElementKind; 5] =
        [ElementKind::E2m1, ElementKind::E4m3, ElementKind::E5m2, ElementKind::Bf16, ElementKind::F16];

    #[test]
    fn codes_up_to_the_largest_ascend_and_come_back() {
        for kind in KINDS {
            let mut last = -1.0;
            for code in 0..=max_code(kind) {
                let value = decode(kind, code);
                assert!(value > last && value.is_finite(), "{kind:?} {code:#x}");
                last = value;
                for code in [code, code | sign_bit(kind)] {
                    assert_eq!(encode(kind, decode(kind, code)), code, "{kind:?}");
                }
            }
            assert_eq!(last, max(kind), "{kind:?}");
            let exponent = 2f32.powi(max_exponent(kind));
            assert!(last >= exponent && last / 2.0 < exponent, "{kind:?}");
            if kind != ElementKind::E2m1 {
                assert!(!decode(kind, max_code(kind) + 1).is_finite(), "{kind:?}");
            }
        }
    }

    #[test]
    fn sixteen_bit_codes_decode_as_half_decodes_them() {
        for code in 0..=u16::MAX {
            let (brain, half) = (bf16::from_bits(code).to_f32(), f16::from_bits(code).to_f32());
            for (ours, theirs) in
                [(decode(ElementKind::Bf16, code), brain), (decode(ElementKind::F16, code), half)]
            {
                assert!(ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(), "{code:#x}");
            }
        }
    }

    #[test]
    fn f64_is_rounded_once() {
        for kind in KINDS {
            let mut rng = ChaCha8Rng::seed_from_u64(21);
            for _ in 0..20_000 {
                let code = (rng.next_u32() % u32::from(max_code(kind))) as u16;
                let [low, high] = [code, code + 1].map(|code| f64::from(decode(kind, code)));
                let midpoint = (low + high) / 2.0;
                // f32 cannot hold the neighbours of the midpoint: by way of it they would be ties.
                assert_eq!(encode_f64(kind, midpoint), (code + 1) & !1, "{kind:?} {code:#x}");
                assert_eq!(encode_f64(kind, midpoint.next_down()), code, "{kind:?} {code:#x}");
                assert_eq!(encode_f64(kind, midpoint.next_up()), code + 1, "{kind:?} {code:#x}");
                assert_eq!(encode_f64(kind, -midpoint.next_up()), (code + 1) | sign_bit(kind));
            }
        }
    }

    #[test]
    fn scales_ascend_up_to_the_largest() {
        for format in [ByteScale::Ue4m3, ByteScale::Ue8m0] {
            for code in 0..max_scale_code(format) {
                assert!(decode_scale(format, code) < decode_scale(format, code + 1), "{format:?} {code:#x}");
            }
            assert_eq!(max_scale_code(format) + 1, nan_scale_code(format));
            assert!(decode_scale(format, nan_scale_code(format)).is_nan());
        }
        assert_eq!(decode_scale(ByteScale::Ue8m0, 0), 2f64.powi(-127));
    }
}
