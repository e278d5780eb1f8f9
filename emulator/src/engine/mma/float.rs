//! Kinds f16, tf32, f8f6f4 and mxf8f6f4: every product is a term of its own.
//!
//! Plain code over eight columns at a time, compiled once for each [`Path`].

use super::exact::{
    EXCESS, EXPONENT, accumulator_power, alignment, larger, power, to_f16_nearest, to_f32_toward_zero,
    truncate,
};
use super::operands::Scales;
use super::path::Path;
use super::sum::ZERO_EXPONENT;
use crate::engine::descriptor::{OperandTile, Packing};
use crate::engine::format::Format;

/// Columns worked on at a time.
const LANES: usize = 8;

/// How to round and where to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FloatMode {
    /// Add in f32, in order, rounding to nearest, instead of by the hardware's rule.
    pub plain: bool,
    /// The accumulator is binary16.
    pub half: bool,
    /// Every product enters with its sign flipped.
    pub negate: bool,
    /// 13 fraction bits instead of 25, and in the result instead of 23: FP8 in Hopper's `wgmma`.
    pub narrow: bool,
}

/// An element of A: its value and the power of two of its exponent.
#[derive(Clone, Copy, Debug)]
struct Element {
    value: f64,
    power: f64,
}

/// Elements of eight columns of B at one K.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Lanes {
    value: [f64; LANES],
    power: [f64; LANES],
}

/// Decoded operands of one instruction.
#[derive(Clone, Debug)]
pub struct FloatProduct {
    path: Path,
    mode: FloatMode,
    k: usize,
    /// `k` elements per row.
    a: Vec<Element>,
    /// `k` entries for every eight columns.
    b: Vec<Lanes>,
}

impl FloatProduct {
    /// Decodes tiles of the given formats. Scale factors, one a row, go into the elements. A `path`
    /// that the machine lacks is replaced by one it has.
    pub fn new(
        path: Path,
        mode: FloatMode,
        (a_format, a): (Format, &OperandTile),
        (b_format, b): (Format, &OperandTile),
        scales: Option<&Scales>,
    ) -> Self {
        let k = a.packing.k() as usize;
        let factor = |factors: Option<&u32>| match (scales, factors) {
            (Some(scales), Some(&code)) => element(scales.factors.format, code),
            _ => Element { value: 1.0, power: 1.0 },
        };
        let mut out_a = Vec::with_capacity(a.rows.len() * k);
        for (row, bytes) in a.rows.iter().enumerate() {
            let mut scale = factor(scales.and_then(|s| s.a.get(row)));
            if mode.negate {
                scale.value = -scale.value;
            }
            codes(a.packing, bytes, |_, code| out_a.push(scaled(element(a_format, code), scale)));
        }
        let empty = Lanes { value: [0.0; LANES], power: [power(-126); LANES] };
        let mut out_b = vec![empty; b.rows.len().div_ceil(LANES) * k];
        for (column, bytes) in b.rows.iter().enumerate() {
            let scale = factor(scales.and_then(|s| s.b.get(column)));
            let lanes = &mut out_b[column / LANES * k..][..k];
            codes(b.packing, bytes, |k, code| {
                let element = scaled(element(b_format, code), scale);
                lanes[k].value[column % LANES] = element.value;
                lanes[k].power[column % LANES] = element.power;
            });
        }
        Self { path: path.or_portable(), mode, k, a: out_a, b: out_b }
    }

    /// Adds row `row` of A times B to the accumulators, one a column.
    pub fn accumulate_row(&self, row: usize, words: &mut [u32]) {
        let a = &self.a[row * self.k..][..self.k];
        for (words, b) in words.chunks_mut(LANES).zip(self.b.chunks_exact(self.k)) {
            let mut lanes = [0; LANES];
            lanes[..words.len()].copy_from_slice(words);
            match self.path {
                // SAFETY: `new` kept these paths only if the processor has what they need.
                #[cfg(target_arch = "x86_64")]
                Path::Avx512 => unsafe { avx512(self.mode, a, b, &mut lanes) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                Path::Avx2 => unsafe { avx2(self.mode, a, b, &mut lanes) },
                _ => accumulate::<false>(self.mode, a, b, &mut lanes),
            }
            words.copy_from_slice(&lanes[..words.len()]);
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512vl")]
fn avx512(mode: FloatMode, a: &[Element], b: &[Lanes], words: &mut [u32; LANES]) {
    accumulate::<true>(mode, a, b, words);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn avx2(mode: FloatMode, a: &[Element], b: &[Lanes], words: &mut [u32; LANES]) {
    accumulate::<true>(mode, a, b, words);
}

/// `ROUND`: the machine has an instruction that rounds to an integer.
#[inline(always)]
fn accumulate<const ROUND: bool>(mode: FloatMode, a: &[Element], b: &[Lanes], words: &mut [u32; LANES]) {
    let c: [f64; LANES] = std::array::from_fn(|i| match mode.half {
        true => f64::from(Format::F16.decode(words[i])),
        false => f64::from(f32::from_bits(words[i])),
    });
    if mode.plain {
        let mut sum = c.map(|c| c as f32);
        for (a, b) in a.iter().zip(b) {
            for (sum, &b) in sum.iter_mut().zip(&b.value) {
                *sum += (a.value * b) as f32;
            }
        }
        *words = sum.map(|sum| match mode.half {
            true => to_f16_nearest(sum.into()),
            false if sum.is_nan() => 0x7fff_ffff,
            false => (sum + 0.0).to_bits(),
        });
        return;
    }
    let to_integer = |x: f64| if ROUND { x.trunc() } else { truncate(x) };
    let mut largest = c.map(|c| match mode.half {
        false => accumulator_power(c),
        true if c == 0.0 => power(-126),
        true => larger(f64::from_bits(c.to_bits() & EXPONENT), power(-14)),
    });
    for (a, b) in a.iter().zip(b) {
        for (largest, &b) in largest.iter_mut().zip(&b.power) {
            *largest = larger(*largest, a.power * b);
        }
    }
    let fraction = if mode.narrow { 13 } else { 25 };
    let align = largest.map(|l| alignment(fraction, l));
    let mut sum: [f64; LANES] = std::array::from_fn(|i| to_integer(c[i] * align[i]));
    for (a, b) in a.iter().zip(b) {
        for i in 0..LANES {
            sum[i] += to_integer(a.value * b.value[i] * align[i]);
        }
    }
    let value: [f64; LANES] = std::array::from_fn(|i| sum[i] * (largest[i] * power(-fraction)));
    if mode.half {
        *words = value.map(to_f16_nearest);
        return;
    }
    if mode.narrow {
        // A magnitude that was cut to nothing is a positive zero.
        *words = value.map(to_f32_toward_zero).map(|w| match w & !0x3ff {
            0x8000_0000 => 0,
            _ if w & 0x7fff_ffff > 0x7f80_0000 => w,
            cut => cut,
        });
        return;
    }
    let usual = |v: f64| (v.abs() >= power(-126)) & (v.abs() < power(128)) | (v == 0.0);
    if value.iter().fold(true, |all, &v| all & usual(v)) {
        // Cutting the mantissa rounds toward zero; a negative zero becomes positive.
        *words = value.map(|v| (f64::from_bits(v.to_bits() & !EXCESS) as f32 + 0.0).to_bits());
    } else {
        *words = value.map(to_f32_toward_zero);
    }
}

fn element(format: Format, code: u32) -> Element {
    let value = f64::from(format.decode(code));
    let power = if value == 0.0 {
        power(ZERO_EXPONENT)
    } else if value.is_finite() {
        larger(f64::from_bits(value.to_bits() & EXPONENT), power(format.min_exponent()))
    } else {
        // Infinities and NaNs decide the sum whatever the alignment.
        1.0
    };
    Element { value, power }
}

fn scaled(element: Element, scale: Element) -> Element {
    Element { value: element.value * scale.value, power: element.power * scale.power }
}

/// Calls `each` with the index and code of every element of a row.
fn codes(packing: Packing, bytes: &[u8; 32], mut each: impl FnMut(usize, u32)) {
    match packing {
        Packing::Bits32 => {
            for (k, &le) in bytes.as_chunks::<4>().0.iter().enumerate() {
                each(k, u32::from_le_bytes(le));
            }
        }
        Packing::Bits16 => {
            for (k, &le) in bytes.as_chunks::<2>().0.iter().enumerate() {
                each(k, u16::from_le_bytes(le).into());
            }
        }
        Packing::Packed4 => {
            for (k, &pair) in bytes.iter().enumerate() {
                each(2 * k, (pair & 0xf).into());
                each(2 * k + 1, (pair >> 4).into());
            }
        }
        Packing::Bits8 | Packing::Slot4 | Packing::Slot6 => {
            for (k, &code) in bytes.iter().enumerate() {
                each(k, code.into());
            }
        }
    }
}
