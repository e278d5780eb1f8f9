//! Scale factor of a block from its largest magnitude (`amax`), by the rules of the formats, in f64.

use super::{e2m1, e4m3, f32_to_odd};

/// NVFP4: the ue4m3 nearest to `amax / 6 / tensor_scale`, saturating at 448.
///
/// The block's largest element then becomes 6, the largest e2m1, apart from the rounding of the scale factor (NVIDIA,
/// "Introducing NVFP4", and Transformer Engine's NVFP4 recipe).
#[must_use]
pub fn nvfp4(amax: f64, tensor_scale: f64) -> u8 {
    e4m3::encode(f32_to_odd(amax / f64::from(e2m1::MAX) / tensor_scale)) & 0x7F
}

/// The MX formats: the code of 2^(floor(log2(amax)) - max_exponent), saturating at both ends
/// (OCP Microscaling Formats 1.0, section 6.3). Elements between the largest of the format and the
/// next power of two saturate.
#[must_use]
pub fn mx(amax: f64, max_exponent: i32) -> u8 {
    biased(floor_log2(amax) - max_exponent)
}

/// MX formats without saturation of elements: the code of the least power of two that is at least `amax / max`
/// (`cvt.rp.satfinite.ue8m0x2.f32`; cuBLAS and Transformer Engine quantise this way).
#[must_use]
pub fn mx_up(amax: f64, max: f64) -> u8 {
    let wanted = amax / max;
    let floor = floor_log2(wanted);
    let exact = wanted.is_normal() && wanted.to_bits() << 12 == 0;
    biased(floor.saturating_add(i32::from(!exact)))
}

fn biased(exponent: i32) -> u8 {
    exponent.saturating_add(127).clamp(0, 254) as u8
}

/// floor(log2(|value|)). Zero and subnormals of f64 give a value far below any scale factor, infinity and NaN one far
/// above.
fn floor_log2(value: f64) -> i32 {
    ((value.to_bits() >> 52) & 0x7FF) as i32 - 1023
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ue8m0;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn mx_scales_put_the_maximum_into_the_last_octave(mantissa in 1.0f64..2.0, exponent in -100i32..100) {
            let amax = mantissa * 2f64.powi(exponent);
            for (max, max_exponent) in [(6.0, 2), (448.0, 8), (57344.0, 15)] {
                let [floor, up] =
                    [mx(amax, max_exponent), mx_up(amax, max)].map(|code| f64::from(ue8m0::decode(code)));
                let first = 2f64.powi(max_exponent);
                prop_assert!((first..2.0 * first).contains(&(amax / floor)));
                prop_assert!(amax / up <= max && amax / up > max / 2.0);
                prop_assert!(up == floor || up == 2.0 * floor);
            }
        }

        #[test]
        fn mx_up_is_what_cvt_rp_gives(value in 1e-37f32..1e38) {
            prop_assert_eq!(mx_up(f64::from(value), 1.0), ue8m0::encode_up(value));
        }

        #[test]
        fn nvfp4_scales_are_the_nearest(amax in 1e-3f64..2600.0, tensor_scale in 0.5f64..4.0) {
            let wanted = amax / 6.0 / tensor_scale;
            let code = nvfp4(amax, tensor_scale);
            let error = |code: u8| (f64::from(e4m3::decode(code)) - wanted).abs();
            prop_assert!((0..=0x7E).all(|other| error(other) >= error(code)));
        }
    }

    #[test]
    fn ends_saturate() {
        assert_eq!([mx(0.0, 8), mx_up(0.0, 448.0)], [0, 0]);
        assert_eq!([mx(f64::INFINITY, 8), mx_up(f64::INFINITY, 448.0)], [254, 254]);
        assert_eq!([mx(1e-300, 8), mx(1e300, 8)], [0, 254]);
        assert_eq!([mx(448.0, 8), mx_up(448.0, 448.0), mx_up(448.1, 448.0)], [127, 127, 128]);
        assert_eq!([nvfp4(0.0, 1.0), nvfp4(1e30, 1.0), nvfp4(6.0, 1.0)], [0, 0x7E, 0x38]);
    }
}
