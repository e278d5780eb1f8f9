//! Small floating-point formats: exact decoding, and encoding with the roundings `cvt` offers.
//!
//! Sources: OCP Microscaling Formats 1.0 (e2m1, e2m3, e3m2, ue8m0), OCP FP8 (e4m3, e5m2), PTX ISA
//! `cvt` (roundings, saturation, what NaN becomes).

/// A floating-point format of at most 19 significant bits, as `cvt` and the tensor cores name them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// 4 bits: sign, 2 exponent bits (bias 1), 1 mantissa bit. No infinity, no NaN. Largest 6.
    E2m1,
    /// 6 bits: sign, 2 exponent bits (bias 1), 3 mantissa bits. No infinity, no NaN. Largest 7.5.
    E2m3,
    /// 6 bits: sign, 3 exponent bits (bias 3), 2 mantissa bits. No infinity, no NaN. Largest 28.
    E3m2,
    /// 8 bits: sign, 4 exponent bits (bias 7), 3 mantissa bits. NaN 0x7F, no infinity. Largest 448.
    E4m3,
    /// 8 bits: sign, 5 exponent bits (bias 15), 2 mantissa bits, IEEE-style. Largest 57344.
    E5m2,
    /// 8 bits, exponent only: 2^(code - 127). NaN 0xFF; neither zero nor infinity.
    Ue8m0,
    /// e4m3 without the sign: bit 7 is ignored on decoding. The scale factor of NVFP4.
    Ue4m3,
    /// IEEE binary16.
    F16,
    /// The upper half of an IEEE binary32.
    Bf16,
    /// 19 bits in the upper part of a 32-bit word: binary32 with 10 mantissa bits; the low 13 bits
    /// are ignored on decoding and zero on encoding.
    Tf32,
}

/// How [`Format::encode`] picks between two neighbouring codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Rounding {
    /// `.rn`: nearest, ties to the even code.
    #[default]
    NearestEven,
    /// `.rna`: nearest, ties away from zero.
    NearestAway,
    /// `.rz`: toward zero.
    TowardZero,
    /// `.rm`: toward negative infinity.
    Down,
    /// `.rp`: toward positive infinity.
    Up,
}

/// How [`Format::encode`] handles values beyond the largest finite code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Overflow {
    /// IEEE: infinity (or NaN where the format has none), or the largest finite value if the
    /// rounding direction says so.
    Ieee,
    /// `.satfinite`: the largest finite value of the same sign; infinities too.
    Satfinite,
}

/// The bit layout of one format.
#[derive(Clone, Copy, Debug)]
struct Layout {
    /// Explicit mantissa bits.
    mantissa: u32,
    /// Smallest normal exponent; also the exponent of subnormals.
    min_exponent: i32,
    /// Largest finite magnitude code.
    max_code: u32,
    /// Magnitude code of infinity, if there is one.
    infinity: Option<u32>,
    /// Canonical NaN, if there is one.
    nan: Option<u32>,
    /// Position of the sign bit, if there is one.
    sign: Option<u32>,
}

impl Format {
    /// Bits of one code (32 for tf32, which lives in a 32-bit word).
    pub const fn bits(self) -> u32 {
        match self {
            Format::E2m1 => 4,
            Format::E2m3 | Format::E3m2 => 6,
            Format::E4m3 | Format::E5m2 | Format::Ue8m0 | Format::Ue4m3 => 8,
            Format::F16 | Format::Bf16 => 16,
            Format::Tf32 => 32,
        }
    }

    const fn layout(self) -> Layout {
        // Shorthand for the formats that have a sign on top and no special values.
        const fn finite(mantissa: u32, min_exponent: i32, bits: u32) -> Layout {
            Layout {
                mantissa,
                min_exponent,
                max_code: (1 << (bits - 1)) - 1,
                infinity: None,
                nan: None,
                sign: Some(bits - 1),
            }
        }
        const fn ieee(mantissa: u32, min_exponent: i32, bits: u32) -> Layout {
            let infinity = ((1 << (bits - 1 - mantissa)) - 1) << mantissa;
            Layout {
                mantissa,
                min_exponent,
                max_code: infinity - 1,
                infinity: Some(infinity),
                nan: Some((1 << (bits - 1)) - 1),
                sign: Some(bits - 1),
            }
        }
        match self {
            Format::E2m1 => finite(1, 0, 4),
            Format::E2m3 => finite(3, 0, 6),
            Format::E3m2 => finite(2, -2, 6),
            Format::E4m3 => Layout {
                mantissa: 3,
                min_exponent: -6,
                max_code: 0x7e,
                infinity: None,
                nan: Some(0x7f),
                sign: Some(7),
            },
            Format::Ue4m3 => Layout {
                mantissa: 3,
                min_exponent: -6,
                max_code: 0x7e,
                infinity: None,
                nan: Some(0x7f),
                sign: None,
            },
            Format::E5m2 => ieee(2, -14, 8),
            Format::F16 => ieee(10, -14, 16),
            Format::Bf16 => ieee(7, -126, 16),
            // Worked on as a 19-bit code; `encode` and `decode` shift it into place.
            Format::Tf32 => ieee(10, -126, 19),
            // Handled apart: there is no mantissa and no subnormal.
            Format::Ue8m0 => Layout {
                mantissa: 0,
                min_exponent: -127,
                max_code: 0xfe,
                infinity: None,
                nan: Some(0xff),
                sign: None,
            },
        }
    }

    /// The exponent of the smallest normal number, which subnormals share.
    pub const fn min_exponent(self) -> i32 {
        self.layout().min_exponent
    }

    /// Explicit mantissa bits.
    pub const fn mantissa_bits(self) -> u32 {
        self.layout().mantissa
    }

    /// The value of a code, exactly: every value of every format here is an f32.
    ///
    /// Bits above [`Format::bits`] are ignored. NaN codes give a quiet NaN.
    pub fn decode(self, code: u32) -> f32 {
        match self {
            Format::E2m1 => E2M1[(code & 0xf) as usize],
            Format::E4m3 => E4M3[(code & 0xff) as usize],
            Format::E5m2 => E5M2[(code & 0xff) as usize],
            Format::Ue4m3 => E4M3[(code & 0x7f) as usize],
            Format::Ue8m0 => UE8M0[(code & 0xff) as usize],
            Format::Bf16 => f32::from_bits(code << 16),
            Format::Tf32 => f32::from_bits(code & !0x1fff),
            _ => self.decode_by_rule(code),
        }
    }

    /// [`Format::decode`] from the bit layout alone, for building tables and for the rare formats.
    const fn decode_by_rule(self, code: u32) -> f32 {
        let l = self.layout();
        if let Format::Ue8m0 = self {
            return match code & 0xff {
                0xff => f32::NAN,
                0 => f32::from_bits(1 << 22),
                e => f32::from_bits(e << 23),
            };
        }
        let (magnitude, negative) = match l.sign {
            Some(bit) => (code & ((1 << bit) - 1), code >> bit & 1 == 1),
            None => (code & 0x7f, false),
        };
        let value = if magnitude > l.max_code {
            match l.infinity {
                Some(infinity) if magnitude == infinity => f32::INFINITY,
                _ => f32::NAN,
            }
        } else {
            let field = magnitude >> l.mantissa;
            let fraction = magnitude & ((1 << l.mantissa) - 1);
            let (significand, exponent) = match field {
                0 => (fraction, l.min_exponent),
                field => (fraction | 1 << l.mantissa, l.min_exponent + field as i32 - 1),
            };
            // Only f16 and smaller come here, so that the power of two is a normal f32.
            significand as f32 * power_of_two(exponent - l.mantissa as i32)
        };
        if negative { -value } else { value }
    }

    /// The code nearest to `value` under the given rounding, as `cvt` with an f32 source makes it.
    ///
    /// NaN becomes the canonical NaN (0x7F for e4m3 and e5m2, 0x7FFF for f16 and bf16, 0x7FFFE000
    /// for tf32, 0xFF for ue8m0) and, where the format has none, the largest positive value (PTX
    /// `cvt`, `.satfinite`). Unsigned formats encode the magnitude. ue8m0 has no zero: what is
    /// below 2^-127 becomes 2^-127.
    pub fn encode(self, value: f32, rounding: Rounding, overflow: Overflow) -> u32 {
        let l = self.layout();
        let place = |code: u32| {
            if self == Format::Tf32 { code << 13 } else { code }
        };
        if value.is_nan() {
            return place(l.nan.unwrap_or(l.max_code));
        }
        let negative = value.is_sign_negative() && l.sign.is_some();
        let sign = match l.sign {
            Some(bit) if negative => 1 << bit,
            _ => 0,
        };
        let too_large = |away_from_zero: bool| match (overflow, l.infinity, l.nan) {
            (Overflow::Ieee, Some(infinity), _) if away_from_zero => infinity,
            (Overflow::Ieee, None, Some(nan)) if away_from_zero => nan,
            _ => l.max_code,
        };
        if value.is_infinite() {
            return place(sign | too_large(true));
        }
        let bits = value.to_bits() & 0x7fff_ffff;
        let (significand, exponent) = match bits >> 23 {
            0 => (bits, -126),
            field => (bits & 0x7f_ffff | 0x80_0000, field as i32 - 127),
        };
        if self == Format::Ue8m0 {
            return Self::encode_ue8m0(significand, exponent, rounding, too_large);
        }
        // In units of 2^(exponent - 23); the code's unit is 2^(scale - mantissa).
        let scale = exponent.max(l.min_exponent);
        let shift = (23 - l.mantissa as i32 + scale - exponent) as u32;
        let quotient = round_shift(significand as u64, shift, rounding, negative) as u32;
        // The implicit bit of a normal number adds one to the exponent field by itself, and so does
        // a carry out of the mantissa.
        let magnitude = ((scale - l.min_exponent) as u32) << l.mantissa;
        let magnitude = magnitude + quotient;
        let code = if magnitude > l.max_code {
            let away = match rounding {
                Rounding::NearestEven | Rounding::NearestAway => true,
                Rounding::TowardZero => false,
                Rounding::Down => negative,
                Rounding::Up => !negative,
            };
            too_large(away)
        } else {
            magnitude
        };
        place(sign | code)
    }

    fn encode_ue8m0(
        significand: u32,
        exponent: i32,
        rounding: Rounding,
        too_large: impl Fn(bool) -> u32,
    ) -> u32 {
        if significand == 0 {
            return 0;
        }
        // A subnormal f32 lies below 2^-126; normalise it, it may still reach 2^-127.
        let top = 31 - significand.leading_zeros();
        let exponent = exponent - (23 - top as i32);
        let fraction = significand - (1 << top);
        let half = (1u32 << top) / 2;
        let up = match rounding {
            Rounding::TowardZero | Rounding::Down => false,
            Rounding::Up => fraction > 0,
            // Between 2^e and 2^(e+1) the midpoint is 1.5 * 2^e; on a tie the even code wins.
            Rounding::NearestEven => {
                fraction > half || fraction == half && half > 0 && (exponent + 127) & 1 == 1
            }
            Rounding::NearestAway => half > 0 && fraction >= half,
        };
        let code = exponent + 127 + i32::from(up);
        match code {
            i32::MIN..=-1 => 0,
            0..=0xfe => code as u32,
            _ => too_large(true),
        }
    }
}

/// `value / 2^shift` as an integer under `rounding`; `negative` is the sign of the number whose
/// magnitude `value` is.
pub(crate) fn round_shift(value: u64, shift: u32, rounding: Rounding, negative: bool) -> u64 {
    if shift == 0 {
        return value;
    }
    // Beyond 63 bits only whether there is anything left matters.
    let (quotient, rest, half) = if shift > 63 {
        (0, u64::from(value != 0), 2)
    } else {
        (value >> shift, value & ((1 << shift) - 1), 1 << (shift - 1))
    };
    let up = match rounding {
        Rounding::NearestEven => rest > half || rest == half && quotient & 1 == 1,
        Rounding::NearestAway => rest >= half,
        Rounding::TowardZero => false,
        Rounding::Down => rest != 0 && negative,
        Rounding::Up => rest != 0 && !negative,
    };
    quotient + u64::from(up)
}

/// 2^exponent for a normal f32.
const fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

const fn table<const N: usize>(format: Format) -> [f32; N] {
    let mut values = [0.0; N];
    let mut code = 0;
    while code < N {
        values[code] = format.decode_by_rule(code as u32);
        code += 1;
    }
    values
}

/// Values of the 16 e2m1 codes.
pub static E2M1: [f32; 16] = table(Format::E2m1);
/// Values of the 256 e4m3 codes.
pub static E4M3: [f32; 256] = table(Format::E4m3);
/// Values of the 256 e5m2 codes.
pub static E5M2: [f32; 256] = table(Format::E5m2);
/// Values of the 256 ue8m0 codes.
pub static UE8M0: [f32; 256] = table(Format::Ue8m0);
