//! Operations on the 16-bit or 8-bit parts of 32-bit words, and other rare integer functions.

/// Operation of a SIMD video instruction on a pair of parts (ISA section 9.7.18.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Add,
    Sub,
    Average,
    Difference,
    Min,
    Max,
    /// 1 if the comparison holds, else 0: ==, !=, <, <=, >, >=, in this order.
    Set(u8),
}

/// A SIMD video instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Simd {
    pub part: Part,
    /// Bits of a part: 8 or 16.
    pub bits: u32,
    pub a_signed: bool,
    pub b_signed: bool,
    pub d_signed: bool,
    /// Saturates results to the range of a part.
    pub saturate: bool,
    /// Adds results to `c` instead of packing them.
    pub accumulate: bool,
    /// Which parts of the result are written; the others are taken from `c`.
    pub mask: u8,
    /// For each part of the result, which part of `b:a` is the source.
    pub a_picks: [u8; 4],
    pub b_picks: [u8; 4],
}

impl Simd {
    /// The result for 32-bit words.
    pub fn apply(self, a: u64, b: u64, c: u64) -> u64 {
        let bits = self.bits;
        let value = |word: u64, i: u32, signed: bool| {
            let raw = (word >> (i * bits)) as i64 & ((1 << bits) - 1);
            if signed && raw >> (bits - 1) == 1 { raw - (1 << bits) } else { raw }
        };
        let both = a & 0xffff_ffff | b << 32;
        let (mut sum, mut packed) = (c as u32, c as u32);
        for i in (0..32 / bits).filter(|i| self.mask >> i & 1 == 1) {
            let pick = |list: [u8; 4]| u32::from(list[i as usize & 3]);
            let x = value(both, pick(self.a_picks), self.a_signed);
            let y = value(both, pick(self.b_picks), self.b_signed);
            let r = match self.part {
                Part::Add => x + y,
                Part::Sub => x - y,
                Part::Average => (x + y + i64::from(x + y >= 0)) >> 1,
                Part::Difference => (x - y).abs(),
                Part::Min => x.min(y),
                Part::Max => x.max(y),
                Part::Set(cmp) => i64::from(match cmp {
                    0 => x == y,
                    1 => x != y,
                    2 => x < y,
                    3 => x <= y,
                    4 => x > y,
                    _ => x >= y,
                }),
            };
            let r = match (self.saturate, self.d_signed) {
                (false, _) => r,
                (true, true) => r.clamp(-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
                (true, false) => r.clamp(0, (1 << bits) - 1),
            };
            sum = sum.wrapping_add(r as u32);
            let field = ((1u32 << bits) - 1) << (i * bits);
            packed = packed & !field | (r as u32) << (i * bits) & field;
        }
        u64::from(if self.accumulate { sum } else { packed })
    }
}

/// `fns`: the position of the `offset`-th set bit of `mask` from bit `base` on (ISA section 9.7.1.17).
pub(crate) fn fns(mask: u64, base: u64, offset: u64) -> u64 {
    let (mask, base, offset) = (mask as u32, base as i32, offset as i32);
    if !(0..32).contains(&base) {
        return 0xffff_ffff;
    }
    let set = |at: i32| mask >> at & 1 == 1;
    if offset == 0 {
        return if set(base) { base as u64 } else { 0xffff_ffff };
    }
    let mut left = offset.unsigned_abs();
    let mut at = base;
    while (0..32).contains(&at) {
        if set(at) {
            left -= 1;
            if left == 0 {
                return at as u64;
            }
        }
        at += offset.signum();
    }
    0xffff_ffff
}

/// `szext`: the low `n` bits of `a`, extended (ISA section 9.7.1.21).
pub(crate) fn szext(a: u64, n: u64, clamp: bool, signed: bool) -> u64 {
    let (a, n) = (a as u32, n as u32);
    if clamp && n >= 32 {
        return u64::from(a);
    }
    let n = n & 31;
    if n == 0 {
        return 0;
    }
    let shift = 32 - n;
    u64::from(if signed { ((a << shift) as i32 >> shift) as u32 } else { a << shift >> shift })
}

/// `dp2a`: two 16-bit parts of `a` times two bytes of `b`, plus `c` (ISA section 9.7.1.24).
pub(crate) fn dp2a(a: u64, b: u64, c: u64, high: bool, a_signed: bool, b_signed: bool) -> u64 {
    let half = |i: u32| {
        let x = (a >> (16 * i)) as u16;
        if a_signed { i32::from(x as i16) } else { i32::from(x) }
    };
    let byte = |i: u32| {
        let x = (b >> (8 * (i + if high { 2 } else { 0 }))) as u8;
        if b_signed { i32::from(x as i8) } else { i32::from(x) }
    };
    let sum = (0..2).fold(c as u32, |sum, i| sum.wrapping_add(half(i).wrapping_mul(byte(i)) as u32));
    u64::from(sum)
}

/// The low or high 32 bits of the 48-bit product of two 24-bit values (ISA section 9.7.1.5).
pub(crate) fn mul24(a: u64, b: u64, high: bool, signed: bool) -> u32 {
    let value = |v: u64| match signed {
        true => i64::from((v as i32) << 8 >> 8),
        false => (v & 0xff_ffff) as i64,
    };
    let product = value(a) * value(b);
    (product >> if high { 16 } else { 0 }) as u32
}

/// `cvt.pack`: two values, saturated to `bits` bits, in the low part of the word, and the low part of `c` above them
/// (ISA section 9.7.9.22).
pub(crate) fn pack(a: u64, b: u64, c: u64, bits: u32, signed: bool) -> u64 {
    let (low, high) = match signed {
        true => (-(1i64 << (bits - 1)), (1i64 << (bits - 1)) - 1),
        false => (0, (1i64 << bits) - 1),
    };
    let part = |v: u64| (i64::from(v as i32).clamp(low, high) as u64) & ((1 << bits) - 1);
    let above = if bits == 16 { 0 } else { c << (2 * bits) };
    (above | part(a) << bits | part(b)) & 0xffff_ffff
}
