//! Instructions that compilers seldom emit, each lowered to a function of up to three words.

use super::alu::{rounding, unsupported};
use super::{Call, Form, Lower, LowerFn};
use crate::isa::Ty;
use crate::lanes::float::half::{bf16_of, f16_of};
use crate::lanes::{Pure, double, simd};
use crate::program::{Op, Slot};

pub(super) const FORMS: &[Form<LowerFn>] = &[
    Form { form: "fns type", section: "9.7.1.17", lower: fns },
    Form { form: "szext .clamp|.wrap type", section: "9.7.1.21", lower: szext },
    Form { form: "dp2a .lo|.hi type type", section: "9.7.1.24", lower: dp2a },
    Form { form: "mul24 .lo|.hi type", section: "9.7.1.5", lower: mul24 },
    Form { form: "mad24 .lo|.hi sat? type", section: "9.7.1.6", lower: mad24 },
    Form { form: "cvt.pack sat small .s32 .b32?", section: "9.7.9.22", lower: pack },
];

/// Emits `d = f(a, b, c)` for the operands after the first; missing operands are zero.
fn emit<'t>(
    lw: &mut Lower<'_, 't>,
    c: &Call<'_, 't>,
    n: usize,
    ty: Ty,
    f: impl Fn(u64, u64, u64) -> u64 + Send + Sync + 'static,
) -> Result<(), String> {
    c.arity(n + 1..=n + 1)?;
    let d = lw.dst(c.op(0)?, ty)?;
    let mut s: [Slot; 3] = [lw.constant(0); 3];
    for (i, slot) in s.iter_mut().enumerate().take(n) {
        *slot = lw.src(c.op(i + 1)?, ty)?;
    }
    lw.emit(Op::Pure { f: Pure::new(f), d, s });
    Ok(())
}

fn word(ty: Ty) -> Result<bool, String> {
    match ty {
        Ty::U32 => Ok(false),
        Ty::S32 => Ok(true),
        _ => unsupported(ty),
    }
}

fn fns<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    if c.ty()? != Ty::B32 {
        return unsupported(c.ty()?);
    }
    emit(lw, c, 3, Ty::B32, simd::fns)
}

fn szext<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    let (signed, clamp) = (word(c.ty()?)?, c.mods.has("clamp"));
    emit(lw, c, 2, Ty::B32, move |a, n, _| simd::szext(a, n, clamp, signed))
}

fn dp2a<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    let (Some(a), Some(b)) = (c.mods.ty(0), c.mods.ty(1)) else {
        return unsupported(c.ty()?);
    };
    let (sa, sb, high) = (word(a)?, word(b)?, c.mods.has("hi"));
    emit(lw, c, 3, Ty::B32, move |a, b, c| simd::dp2a(a, b, c, high, sa, sb))
}

fn mul24<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    let (signed, high) = (word(c.ty()?)?, c.mods.has("hi"));
    emit(lw, c, 2, Ty::B32, move |a, b, _| simd::mul24(a, b, high, signed).into())
}

fn mad24<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    let (signed, high, sat) = (word(c.ty()?)?, c.mods.has("hi"), c.mods.has("sat"));
    if sat && !(signed && high) {
        return Err(".sat exists for .hi.s32 only".to_owned());
    }
    emit(lw, c, 3, Ty::B32, move |a, b, c| {
        let product = simd::mul24(a, b, high, signed);
        u64::from(match sat {
            true => (product as i32).saturating_add(c as i32) as u32,
            false => product.wrapping_add(c as u32),
        })
    })
}

fn pack<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    let text = c.mods.get("small").unwrap_or("");
    let signed = text.starts_with('s');
    let bits: u32 = text.get(1..).and_then(|n| n.parse().ok()).unwrap_or(16);
    if (bits == 16) == c.mods.has("b32") {
        return Err("16-bit parts fill the word; smaller ones take a third source, .b32".to_owned());
    }
    emit(lw, c, if bits == 16 { 2 } else { 3 }, Ty::B32, move |a, b, c| simd::pack(a, b, c, bits, signed))
}

/// Binary64 arithmetic with directed rounding, which the host does not have (ISA sections 9.7.3.3 to 9.7.3.15).
pub(super) fn doubles<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    let r = rounding(c.mods.get("rnd"))?;
    let f = f64::from_bits;
    match c.head {
        "add" => emit(lw, c, 2, Ty::F64, move |a, b, _| double::add(f(a), f(b), r)),
        "sub" => emit(lw, c, 2, Ty::F64, move |a, b, _| double::sub(f(a), f(b), r)),
        "mul" => emit(lw, c, 2, Ty::F64, move |a, b, _| double::mul(f(a), f(b), r)),
        "div" => emit(lw, c, 2, Ty::F64, move |a, b, _| double::div(f(a), f(b), r)),
        "fma" | "mad" => emit(lw, c, 3, Ty::F64, move |a, b, c| double::fma(f(a), f(b), f(c), r)),
        "rcp" => emit(lw, c, 1, Ty::F64, move |a, _, _| double::div(1.0, f(a), r)),
        "sqrt" => emit(lw, c, 1, Ty::F64, move |a, _, _| double::sqrt(f(a), r)),
        _ => unsupported(Ty::F64),
    }
}

/// Whether an instruction is one of [`doubles`].
pub(super) fn is_directed_double(c: &Call<'_, '_>) -> bool {
    c.mods.ty(0) == Some(Ty::F64)
        && c.mods.ty(1).is_none()
        && matches!(c.mods.get("rnd"), Some("rz" | "rm" | "rp"))
}

/// `.xorsign.abs` of min and max: `m` is the minimum or maximum of the magnitudes, and the result gets the sign of
/// the product; a NaN is unchanged (ISA sections 9.7.3.11 and 9.7.4.7).
pub(super) fn xorsign(ty: Ty) -> Option<Pure> {
    fn part(m: u64, a: u64, b: u64, sign: u64, nan: bool) -> u64 {
        if nan { m } else { m & !sign | (a ^ b) & sign }
    }
    fn halves(bf: bool, m: u64, a: u64, b: u64) -> u64 {
        let nan = if bf { bf16_of(m & 0xffff).is_nan() } else { f16_of(m & 0xffff).is_nan() };
        part(m & 0xffff, a & 0xffff, b & 0xffff, 0x8000, nan)
    }
    let half = |bf: bool, packed: bool| {
        Pure::new(move |m, a, b| match packed {
            false => halves(bf, m, a, b),
            true => halves(bf, m, a, b) | halves(bf, m >> 16, a >> 16, b >> 16) << 16,
        })
    };
    Some(match ty {
        Ty::F32 => Pure::new(|m, a, b| part(m, a, b, 0x8000_0000, f32::from_bits(m as u32).is_nan())),
        Ty::F16 => half(false, false),
        Ty::F16x2 => half(false, true),
        Ty::Bf16 => half(true, false),
        Ty::Bf16x2 => half(true, true),
        _ => return None,
    })
}
