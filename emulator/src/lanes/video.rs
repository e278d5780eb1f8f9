//! Scalar video instructions (ISA section 9.7.18.1), one word at a time.

/// A part of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Select {
    pub shift: u32,
    pub bits: u32,
}

impl Select {
    fn value(self, word: u64, signed: bool) -> i64 {
        let raw = (word as u32 >> self.shift) as u64 & ((1 << self.bits) - 1);
        let up = 64 - self.bits;
        if signed { (raw << up) as i64 >> up } else { raw as i64 }
    }
}

/// The first operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Add,
    Sub,
    Difference,
    Min,
    Max,
    Left,
    Right,
    /// 1 if the comparison holds, else 0: ==, !=, <, <=, >, >=, in this order.
    Set(u8),
}

/// The second operation, which combines the result with `c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Second {
    Add,
    Min,
    Max,
}

/// `vadd`, `vsub`, `vabsdiff`, `vmin`, `vmax`, `vshl`, `vshr` and `vset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scalar {
    pub verb: Verb,
    pub d_signed: bool,
    /// The part of the operand, and whether it is signed.
    pub a: (Select, bool),
    pub b: (Select, bool),
    pub saturate: bool,
    /// Whether shift amounts wrap modulo 32 or are limited to 32.
    pub wrap: bool,
    pub second: Option<Second>,
    /// The part of `c` that the result replaces.
    pub merge: Option<Select>,
}

impl Scalar {
    /// The result for 32-bit words.
    pub fn apply(self, a: u64, b: u64, c: u64) -> u64 {
        let (x, y) = (self.a.0.value(a, self.a.1), self.b.0.value(b, self.b.1));
        let by = if self.wrap { y & 31 } else { y.min(32) } as u32;
        let r = match self.verb {
            Verb::Add => x + y,
            Verb::Sub => x - y,
            Verb::Difference => (x - y).abs(),
            Verb::Min => x.min(y),
            Verb::Max => x.max(y),
            // 33 bits shifted by 32 at most need 65: what leaves them is beyond every clamp.
            Verb::Left => ((i128::from(x)) << by).clamp(i64::MIN.into(), i64::MAX.into()) as i64,
            Verb::Right => x >> by,
            Verb::Set(0) => i64::from(x == y),
            Verb::Set(1) => i64::from(x != y),
            Verb::Set(2) => i64::from(x < y),
            Verb::Set(3) => i64::from(x <= y),
            Verb::Set(4) => i64::from(x > y),
            Verb::Set(_) => i64::from(x >= y),
        };
        let bits = self.merge.map_or(32, |m| m.bits);
        let r = match (self.saturate, self.d_signed) {
            // Left shifts that were clamped above keep their low bits.
            (false, _) if self.verb == Verb::Left => (u128::from(x as u64) << by) as u64 as i64,
            (false, _) => r,
            (true, true) => r.clamp(-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
            (true, false) => r.clamp(0, (1 << bits) - 1),
        };
        let (low, c32) = (r as u32, c as u32);
        let pick = |first: bool| if first { low } else { c32 };
        let less = if self.d_signed { (low as i32) < c32 as i32 } else { low < c32 };
        u64::from(match (self.second, self.merge) {
            (Some(Second::Add), _) => low.wrapping_add(c32),
            (Some(Second::Min), _) => pick(less),
            (Some(Second::Max), _) => pick(!less),
            (None, Some(m)) => {
                let field = (((1u64 << m.bits) - 1) as u32) << m.shift;
                c32 & !field | low << m.shift & field
            }
            (None, None) => low,
        })
    }
}

/// `vmad`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mad {
    pub a: (Select, bool),
    pub b: (Select, bool),
    /// Negates the product; `addend` negates `c`.
    pub product: bool,
    pub addend: bool,
    pub plus_one: bool,
    pub saturate: bool,
    pub shift: u32,
}

impl Mad {
    /// The result for 32-bit words.
    pub fn apply(self, a: u64, b: u64, c: u64) -> u64 {
        let product = i128::from(self.a.0.value(a, self.a.1)) * i128::from(self.b.0.value(b, self.b.1));
        let signed = self.a.1 || self.b.1 || self.product || self.addend;
        let c = if self.addend { !(c as u32) } else { c as u32 };
        let c = if signed { i128::from(c as i32) } else { i128::from(c) };
        let product = if self.product { !product } else { product };
        let one = i128::from(self.plus_one || self.product || self.addend);
        let r = (product + c + one) >> self.shift;
        let r = match (self.saturate, signed) {
            (false, _) => r,
            (true, true) => r.clamp(i32::MIN.into(), i32::MAX.into()),
            (true, false) => r.clamp(0, u32::MAX.into()),
        };
        u64::from(r as u32)
    }
}
