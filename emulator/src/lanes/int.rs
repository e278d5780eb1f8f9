//! Integer and bit operations (ISA sections 9.7.1 and 9.7.8).

use super::{Cmp, F1, F2, F3, l1, l2, l3, lc};
use crate::isa::Ty;

/// A two-source integer operation. `$t` is the type it computes in, `$u` the unsigned type of the same width.
macro_rules! i2 {
    ($t:ty, $u:ty, |$a:ident, $b:ident| $e:expr) => {
        l2!(|x, y| {
            let ($a, $b) = (x as $t, y as $t);
            ($e) as $u as u64
        })
    };
}
macro_rules! i1 {
    ($t:ty, $u:ty, |$a:ident| $e:expr) => {
        l1!(|x| {
            let $a = x as $t;
            ($e) as $u as u64
        })
    };
}
macro_rules! i3 {
    ($t:ty, $u:ty, |$a:ident, $b:ident, $c:ident| $e:expr) => {
        l3!(|x, y, z| {
            let ($a, $b, $c) = (x as $t, y as $t, z as $t);
            ($e) as $u as u64
        })
    };
}
/// Picks among the six integer types of 16, 32 and 64 bits.
macro_rules! by_int {
    ($ty:expr, $m:ident, $($args:tt)*) => {
        match $ty {
            Ty::U16 | Ty::B16 => Some($m!(u16, u16, $($args)*)),
            Ty::S16 => Some($m!(i16, u16, $($args)*)),
            Ty::U32 | Ty::B32 => Some($m!(u32, u32, $($args)*)),
            Ty::S32 => Some($m!(i32, u32, $($args)*)),
            Ty::U64 | Ty::B64 => Some($m!(u64, u64, $($args)*)),
            Ty::S64 => Some($m!(i64, u64, $($args)*)),
            _ => None,
        }
    };
}

macro_rules! packed16 {
    ($t:ty, |$a:ident, $b:ident| $e:expr) => {
        l2!(|x, y| {
            let lo = {
                let ($a, $b) = (x as $t, y as $t);
                ($e) as u16 as u64
            };
            let hi = {
                let ($a, $b) = ((x >> 16) as $t, (y >> 16) as $t);
                ($e) as u16 as u64
            };
            lo | hi << 16
        })
    };
}

/// The two-source operation `op` on `ty`.
pub(crate) fn two(op: &str, ty: Ty) -> Option<F2> {
    match (op, ty) {
        ("add", Ty::U16x2 | Ty::S16x2) => return Some(packed16!(u16, |a, b| a.wrapping_add(b))),
        ("min", Ty::U16x2) => return Some(packed16!(u16, |a, b| a.min(b))),
        ("min", Ty::S16x2) => return Some(packed16!(i16, |a, b| a.min(b))),
        ("max", Ty::U16x2) => return Some(packed16!(u16, |a, b| a.max(b))),
        ("max", Ty::S16x2) => return Some(packed16!(i16, |a, b| a.max(b))),
        ("add.sat", Ty::S32) => return Some(i2!(i32, u32, |a, b| a.saturating_add(b))),
        ("sub.sat", Ty::S32) => return Some(i2!(i32, u32, |a, b| a.saturating_sub(b))),
        _ => {}
    }
    match op {
        "add" => by_int!(ty, i2, |a, b| a.wrapping_add(b)),
        "sub" => by_int!(ty, i2, |a, b| a.wrapping_sub(b)),
        "mul.lo" => by_int!(ty, i2, |a, b| a.wrapping_mul(b)),
        "mul.hi" => mul_hi(ty),
        "mul.wide" => mul_wide(ty),
        // The ISA leaves division by zero unspecified; all ones is what the machine's code gives.
        "div" => by_int!(ty, i2, |a, b| if b == 0 { !0 } else { a.wrapping_div(b) }),
        "rem" => by_int!(ty, i2, |a, b| if b == 0 { !0 } else { a.wrapping_rem(b) }),
        "min" => by_int!(ty, i2, |a, b| a.min(b)),
        "max" => by_int!(ty, i2, |a, b| a.max(b)),
        "and" => bits(ty, l2!(|a, b| a & b)),
        "or" => bits(ty, l2!(|a, b| a | b)),
        "xor" => bits(ty, l2!(|a, b| a ^ b)),
        "shl" => match ty.bits() {
            16 => Some(l2!(|a, b| if b as u32 > 15 { 0 } else { (a << b) as u16 as u64 })),
            32 => Some(l2!(|a, b| if b as u32 > 31 { 0 } else { (a << b) as u32 as u64 })),
            64 => Some(l2!(|a, b| if b as u32 > 63 { 0 } else { a << (b as u32) })),
            _ => None,
        },
        "shr" => match ty {
            Ty::S16 => Some(l2!(|a, b| (a as i16 >> (b as u32).min(15)) as u16 as u64)),
            Ty::S32 => Some(l2!(|a, b| (a as i32 >> (b as u32).min(31)) as u32 as u64)),
            Ty::S64 => Some(l2!(|a, b| (a as i64 >> (b as u32).min(63)) as u64)),
            _ => bits(ty, l2!(|a, b| if b as u32 > 63 { 0 } else { a >> (b as u32) })),
        },
        "bmsk.clamp" => Some(l2!(|a, b| {
            let (start, len) = (a as u32, b as u32);
            let ones = if len >= 32 { u32::MAX } else { (1u32 << len) - 1 };
            if start >= 32 { 0 } else { u64::from(ones << start) }
        })),
        "bmsk.wrap" => Some(l2!(|a, b| {
            let (start, len) = (a as u32 & 31, b as u32 & 31);
            u64::from(((1u32 << len) - 1) << start)
        })),
        _ => None,
    }
}

fn bits(ty: Ty, f: F2) -> Option<F2> {
    (ty.integer() && ty.bits() >= 16).then_some(f)
}

fn mul_hi(ty: Ty) -> Option<F2> {
    Some(match ty {
        Ty::U16 => l2!(|a, b| ((a as u16 as u32 * b as u16 as u32) >> 16) as u64),
        Ty::S16 => l2!(|a, b| ((a as i16 as i32 * b as i16 as i32) >> 16) as u16 as u64),
        Ty::U32 => l2!(|a, b| (a as u32 as u64 * b as u32 as u64) >> 32),
        Ty::S32 => l2!(|a, b| ((a as i32 as i64 * b as i32 as i64) >> 32) as u32 as u64),
        Ty::U64 => l2!(|a, b| ((a as u128 * b as u128) >> 64) as u64),
        Ty::S64 => l2!(|a, b| ((a as i64 as i128 * b as i64 as i128) >> 64) as u64),
        _ => return None,
    })
}

fn mul_wide(ty: Ty) -> Option<F2> {
    Some(match ty {
        Ty::U16 => l2!(|a, b| (a as u16 as u32 * b as u16 as u32) as u64),
        Ty::S16 => l2!(|a, b| (a as i16 as i32 * b as i16 as i32) as u32 as u64),
        Ty::U32 => l2!(|a, b| a as u32 as u64 * b as u32 as u64),
        Ty::S32 => l2!(|a, b| (a as i32 as i64 * b as i32 as i64) as u64),
        _ => return None,
    })
}

/// The one-source operation `op` on `ty`.
pub(crate) fn one(op: &str, ty: Ty) -> Option<F1> {
    match op {
        "neg" => by_int!(ty, i1, |a| a.wrapping_neg()),
        "abs" => match ty {
            Ty::S16 => Some(i1!(i16, u16, |a| a.wrapping_abs())),
            Ty::S32 => Some(i1!(i32, u32, |a| a.wrapping_abs())),
            Ty::S64 => Some(i1!(i64, u64, |a| a.wrapping_abs())),
            _ => None,
        },
        "not" => match ty.bits() {
            16 => Some(l1!(|a| !a as u16 as u64)),
            32 => Some(l1!(|a| !a as u32 as u64)),
            64 => Some(l1!(|a| !a)),
            _ => None,
        },
        "cnot" => by_int!(ty, i1, |a| (a == 0) as u8),
        "popc" => match ty.bits() {
            32 => Some(l1!(|a| (a as u32).count_ones() as u64)),
            64 => Some(l1!(|a| a.count_ones() as u64)),
            _ => None,
        },
        "clz" => match ty.bits() {
            32 => Some(l1!(|a| (a as u32).leading_zeros() as u64)),
            64 => Some(l1!(|a| a.leading_zeros() as u64)),
            _ => None,
        },
        "brev" => match ty.bits() {
            32 => Some(l1!(|a| (a as u32).reverse_bits() as u64)),
            64 => Some(l1!(|a| a.reverse_bits())),
            _ => None,
        },
        "bfind" => match ty {
            Ty::U32 => Some(l1!(|a| 31u32.wrapping_sub((a as u32).leading_zeros()) as u64)),
            Ty::U64 => Some(l1!(|a| 63u32.wrapping_sub(a.leading_zeros()) as u64)),
            Ty::S32 => Some(l1!(|a| {
                let v = a as i32;
                31u32.wrapping_sub((if v < 0 { !v } else { v }).leading_zeros()) as u64
            })),
            Ty::S64 => Some(l1!(|a| {
                let v = a as i64;
                63u32.wrapping_sub((if v < 0 { !v } else { v }).leading_zeros()) as u64
            })),
            _ => None,
        },
        "bfind.shiftamt" => match ty {
            Ty::U32 => {
                Some(l1!(|a| if a as u32 == 0 { 0xffff_ffff } else { (a as u32).leading_zeros() as u64 }))
            }
            Ty::U64 => Some(l1!(|a| if a == 0 { 0xffff_ffff } else { a.leading_zeros() as u64 })),
            Ty::S32 => Some(l1!(|a| {
                let v = a as i32 ^ (a as i32 >> 31);
                if v == 0 { 0xffff_ffff } else { v.leading_zeros() as u64 }
            })),
            Ty::S64 => Some(l1!(|a| {
                let v = a as i64 ^ (a as i64 >> 63);
                if v == 0 { 0xffff_ffff } else { v.leading_zeros() as u64 }
            })),
            _ => None,
        },
        _ => None,
    }
}

/// The three-source operation `op` on `ty`.
pub(crate) fn three(op: &str, ty: Ty) -> Option<F3> {
    match op {
        "mad.lo" => by_int!(ty, i3, |a, b, c| a.wrapping_mul(b).wrapping_add(c)),
        "mad.hi" => Some(match ty {
            Ty::U16 => l3!(|a, b, c| ((a as u16 as u64 * b as u16 as u64) >> 16).wrapping_add(c) & 0xffff),
            Ty::S16 => {
                l3!(|a, b, c| (((a as i16 as i64 * b as i16 as i64) >> 16) as u64).wrapping_add(c) & 0xffff)
            }
            Ty::U32 => {
                l3!(|a, b, c| ((a as u32 as u64 * b as u32 as u64) >> 32).wrapping_add(c) as u32 as u64)
            }
            Ty::S32 => {
                l3!(|a, b, c| (((a as i32 as i64 * b as i32 as i64) >> 32) as u64).wrapping_add(c) as u32
                    as u64)
            }
            Ty::U64 => l3!(|a, b, c| (((a as u128 * b as u128) >> 64) as u64).wrapping_add(c)),
            Ty::S64 => {
                l3!(|a, b, c| (((a as i64 as i128 * b as i64 as i128) >> 64) as u64).wrapping_add(c))
            }
            _ => return None,
        }),
        "mad.wide" => Some(match ty {
            Ty::U16 => {
                l3!(|a, b, c| (a as u16 as u32 * b as u16 as u32).wrapping_add(c as u32) as u64)
            }
            Ty::S16 => {
                l3!(|a, b, c| ((a as i16 as i32 * b as i16 as i32) as u32).wrapping_add(c as u32) as u64)
            }
            Ty::U32 => l3!(|a, b, c| (a as u32 as u64 * b as u32 as u64).wrapping_add(c)),
            Ty::S32 => l3!(|a, b, c| ((a as i32 as i64 * b as i32 as i64) as u64).wrapping_add(c)),
            _ => return None,
        }),
        "sad" => by_int!(ty, i3, |a, b, c| (if a < b { b.wrapping_sub(a) } else { a.wrapping_sub(b) })
            .wrapping_add(c)),
        "bfe" => Some(match ty {
            Ty::U32 => l3!(|a, p, n| bfe(a as u32 as u64, p, n, 32, false)),
            Ty::S32 => l3!(|a, p, n| bfe(a as u32 as u64, p, n, 32, true)),
            Ty::U64 => l3!(|a, p, n| bfe(a, p, n, 64, false)),
            Ty::S64 => l3!(|a, p, n| bfe(a, p, n, 64, true)),
            _ => return None,
        }),
        "shf.l.clamp" => Some(l3!(|lo, hi, n| {
            let v = hi << 32 | lo as u32 as u64;
            let n = (n as u32).min(32);
            (v << n >> 32) as u32 as u64
        })),
        "shf.l.wrap" => {
            Some(l3!(|lo, hi, n| ((hi << 32 | lo as u32 as u64) << (n & 31) >> 32) as u32 as u64))
        }
        "shf.r.clamp" => {
            Some(l3!(|lo, hi, n| ((hi << 32 | lo as u32 as u64) >> (n as u32).min(32)) as u32 as u64))
        }
        "shf.r.wrap" => Some(l3!(|lo, hi, n| ((hi << 32 | lo as u32 as u64) >> (n & 31)) as u32 as u64)),
        "dp4a.u32.u32" => Some(l3!(|a, b, c| dp4a(a, b, c, false, false))),
        "dp4a.s32.s32" => Some(l3!(|a, b, c| dp4a(a, b, c, true, true))),
        "dp4a.u32.s32" => Some(l3!(|a, b, c| dp4a(a, b, c, false, true))),
        "dp4a.s32.u32" => Some(l3!(|a, b, c| dp4a(a, b, c, true, false))),
        _ => None,
    }
}

fn dp4a(a: u64, b: u64, c: u64, sa: bool, sb: bool) -> u64 {
    let byte = |v: u64, i: u32, s: bool| {
        let x = (v >> (8 * i)) as u8;
        if s { i32::from(x as i8) } else { i32::from(x) }
    };
    (0..4).fold(c as u32, |acc, i| acc.wrapping_add((byte(a, i, sa) * byte(b, i, sb)) as u32)) as u64
}

/// Position or length of a bit field: the low 8 bits of `v`, or for 64-bit operands all of `v`, limited to 255.
fn eight(v: u64, width: u32) -> u32 {
    if width == 64 { (v as u32).min(255) } else { v as u32 & 0xff }
}

fn bfe(a: u64, pos: u64, len: u64, width: u32, signed: bool) -> u64 {
    let (pos, len) = (eight(pos, width), eight(len, width));
    let msb = width - 1;
    let sign = if !signed || len == 0 { 0 } else { a >> (pos.saturating_add(len) - 1).min(msb) & 1 };
    let mut d = if sign == 1 { u64::MAX } else { 0 };
    for i in 0..width.min(len) {
        let bit = if pos + i <= msb { a >> (pos + i) & 1 } else { sign };
        d = d & !(1 << i) | bit << i;
    }
    if width == 32 { d as u32 as u64 } else { d }
}

/// `bfi`: inserts the low `len` bits of `a` into `b` at `pos`.
pub(crate) fn bfi(a: u64, b: u64, pos: u64, len: u64, width: u32) -> u64 {
    let (pos, len) = (eight(pos, width), eight(len, width));
    let mut d = b;
    for i in 0..len.min(width) {
        if pos + i >= width {
            break;
        }
        d = d & !(1 << (pos + i)) | (a >> i & 1) << (pos + i);
    }
    d
}

/// `prmt`: picks four bytes of `a` (0 to 3) and `b` (4 to 7), or copies of their signs, by four selectors.
pub(crate) fn prmt(a: u64, b: u64, c: u64) -> u64 {
    let bytes = (a as u32 as u64) | b << 32;
    let mut d = 0u64;
    for i in 0..4 {
        let sel = (c >> (4 * i)) as u32;
        let mut v = bytes >> (8 * (sel & 7)) & 0xff;
        if sel & 8 != 0 {
            v = if v & 0x80 != 0 { 0xff } else { 0 };
        }
        d |= v << (8 * i);
    }
    d
}

/// `prmt` with a mode (`f4e`, `b4e`, `rc8`, `ecl`, `ecr`, `rc16`) rewritten as a general selector.
pub(crate) fn prmt_mode(mode: &str) -> Option<F3> {
    Some(match mode {
        "f4e" => l3!(|a, b, c| prmt(a, b, [0x3210, 0x4321, 0x5432, 0x6543][(c & 3) as usize])),
        "b4e" => l3!(|a, b, c| prmt(a, b, [0x5670, 0x6701, 0x7012, 0x0123][(c & 3) as usize])),
        "rc8" => l3!(|a, b, c| prmt(a, b, [0x0000, 0x1111, 0x2222, 0x3333][(c & 3) as usize])),
        "ecl" => l3!(|a, b, c| prmt(a, b, [0x3210, 0x3211, 0x3222, 0x3333][(c & 3) as usize])),
        "ecr" => l3!(|a, b, c| prmt(a, b, [0x0000, 0x1110, 0x2210, 0x3210][(c & 3) as usize])),
        "rc16" => l3!(|a, b, c| prmt(a, b, [0x1010, 0x3232, 0x1010, 0x3232][(c & 3) as usize])),
        _ => return None,
    })
}

/// `lop3` by its truth table.
pub(crate) fn lop3(a: u64, b: u64, c: u64, table: u8) -> u64 {
    let mut d = 0u32;
    let (a, b, c) = (a as u32, b as u32, c as u32);
    for i in 0..8u8 {
        if table >> i & 1 == 1 {
            let x = if i & 4 != 0 { a } else { !a };
            let y = if i & 2 != 0 { b } else { !b };
            let z = if i & 1 != 0 { c } else { !c };
            d |= x & y & z;
        }
    }
    u64::from(d)
}

/// Integer comparison.
pub(crate) fn compare(op: &str, ty: Ty) -> Option<Cmp> {
    macro_rules! c2 {
        ($t:ty, $u:ty, |$a:ident, $b:ident| $e:expr) => {
            lc!(|x, y| {
                let ($a, $b) = (x as $t, y as $t);
                $e
            })
        };
    }
    let unsigned = match ty.bits() {
        16 => Ty::U16,
        32 => Ty::U32,
        64 => Ty::U64,
        _ => return None,
    };
    match op {
        "eq" => by_int!(unsigned, c2, |a, b| a == b),
        "ne" => by_int!(unsigned, c2, |a, b| a != b),
        "lt" => by_int!(ty, c2, |a, b| a < b),
        "le" => by_int!(ty, c2, |a, b| a <= b),
        "gt" => by_int!(ty, c2, |a, b| a > b),
        "ge" => by_int!(ty, c2, |a, b| a >= b),
        "lo" => by_int!(unsigned, c2, |a, b| a < b),
        "ls" => by_int!(unsigned, c2, |a, b| a <= b),
        "hi" => by_int!(unsigned, c2, |a, b| a > b),
        "hs" => by_int!(unsigned, c2, |a, b| a >= b),
        _ => None,
    }
}
