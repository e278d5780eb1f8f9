//! `cvt`, `mov`, and packing of registers.

use super::alu::{rounding, unsupported};
use super::{Call, Form, Lower, LowerFn};
use crate::engine::format::{Format, Rounding};
use crate::isa::Ty;
use crate::lanes::convert::{Convert, element};
use crate::lanes::{Pure, narrow};
use crate::parse::ast::Operand;
use crate::program::{Op, Pred, SINK};

pub(super) const FORMS: &[Form<LowerFn>] = &[
    Form { form: "cvt.rs .relu? satfinite? type .f32", section: "9.7.9.21", lower: stochastic },
    Form {
        form: "cvt.rn satfinite? .relu? .scaled::n2::ue8m0? .s2f6x2 type",
        section: "9.7.9.21",
        lower: fixed,
    },
    Form { form: "cvt rnd? irnd? ftz? sat? satfinite? .relu? type type", section: "9.7.9.21", lower: cvt },
    Form { form: "mov type", section: "9.7.9.3", lower: mov },
];

/// A conversion without modifiers.
pub(super) fn plain(dst: Ty, src: Ty, reg_bits: u32) -> Convert {
    Convert {
        dst,
        src,
        reg_bits,
        rounding: Rounding::NearestEven,
        integral: false,
        ftz: false,
        sat: false,
        satfinite: false,
        relu: false,
    }
}

fn cvt<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    let (Some(dty), Some(sty)) = (c.mods.ty(0), c.mods.ty(1)) else {
        return Err("two types are needed".to_owned());
    };
    let supported = |t: Ty| (t.integer() || t.float() || element(t).is_some()) && t != Ty::F32x2;
    if !supported(dty) || !supported(sty) || c.mods.get("rnd") == Some("rs") {
        return Err(format!("conversion .{}.{} is not supported", dty.text(), sty.text()));
    }
    let d = match lw.dst_loose(c.op(0)?, dty, true)? {
        Some(r) => r,
        None => return Err("the destination cannot be `_`".to_owned()),
    };
    let irnd = c.mods.get("irnd");
    let how = Convert {
        rounding: rounding(c.mods.get("rnd").or(irnd))?,
        integral: irnd.is_some(),
        ftz: c.mods.has("ftz"),
        sat: c.mods.has("sat"),
        satfinite: c.mods.has("satfinite"),
        relu: c.mods.has("relu"),
        ..plain(dty, sty, d.ty.bits())
    };
    let packed_dst = dty.text().ends_with("x2");
    let packed_src = sty.text().ends_with("x2");
    let how = Box::new(how);
    if packed_dst && !packed_src {
        c.arity(3..=3)?;
        let (a, b) = (lw.src_loose(c.op(1)?, sty)?, lw.src_loose(c.op(2)?, sty)?);
        lw.emit(Op::Cvt { how, d: d.slot, a, b, packed: true });
        return Ok(());
    }
    if packed_dst != packed_src {
        return Err(format!("conversion .{}.{} is not supported", dty.text(), sty.text()));
    }
    c.arity(2..=2)?;
    let a = lw.src_loose(c.op(1)?, sty)?;
    lw.emit(Op::Cvt { how, d: d.slot, a, b: SINK, packed: packed_dst });
    Ok(())
}

/// Stochastic rounding of two or four values.
fn stochastic<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    let (satfinite, relu) = (c.mods.has("satfinite"), c.mods.has("relu"));
    let (format, bits, four) = match c.ty()? {
        Ty::F16x2 => (Format::F16, 16, false),
        Ty::Bf16x2 => (Format::Bf16, 16, false),
        Ty::E4m3x4 => (Format::E4m3, 8, true),
        Ty::E5m2x4 => (Format::E5m2, 8, true),
        Ty::E2m3x4 => (Format::E2m3, 8, true),
        Ty::E3m2x4 => (Format::E3m2, 8, true),
        Ty::E2m1x4 => (Format::E2m1, 4, true),
        ty => return Err(format!("there is no .rs conversion to .{}", ty.text())),
    };
    if four && !satfinite {
        return Err("this conversion needs .satfinite".to_owned());
    }
    let round = move |a: u64, b: u64, random: [(u32, u32); 2]| {
        let [h, l] = [(a, random[0]), (b, random[1])]
            .map(|(v, r)| narrow::stochastic(f32::from_bits(v as u32), format, r, satfinite, relu));
        u64::from(h << bits | l)
    };
    if !four {
        c.arity(4..=4)?;
        let s = [lw.src(c.op(1)?, Ty::F32)?, lw.src(c.op(2)?, Ty::F32)?, lw.src(c.op(3)?, Ty::B32)?];
        let d = lw.dst(c.op(0)?, Ty::B32)?;
        let f = Pure::new(move |a, b, r| round(a, b, narrow::halves(format, r as u32)));
        lw.emit(Op::Pure { f, d, s });
        return Ok(());
    }
    c.arity(3..=3)?;
    let Operand::Vector(items) = c.op(1)? else {
        return Err("the sources are a vector of four".to_owned());
    };
    if items.len() != 4 {
        return Err(format!("the sources are a vector of four, found {}", items.len()));
    }
    let random = lw.src(c.op(2)?, Ty::B32)?;
    let mut halves = [0; 2];
    for (i, (half, pair)) in halves.iter_mut().rev().zip(items.chunks_exact(2)).enumerate() {
        *half = lw.temporary();
        let s = [lw.src(&pair[0], Ty::F32)?, lw.src(&pair[1], Ty::F32)?, random];
        let f = Pure::new(move |a, b, r| round(a, b, [narrow::quarter(format, r as u32, i == 0); 2]));
        lw.emit(Op::Pure { f, d: *half, s });
    }
    let d = lw.dst(c.op(0)?, if bits == 4 { Ty::B16 } else { Ty::B32 })?;
    lw.emit(Op::Pack { d: [d].into(), s: halves.into(), bits: 2 * bits });
    Ok(())
}

/// The packed scale factors, or ones where there are none.
fn factors<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>, n: usize) -> Result<u32, String> {
    let scaled = c.mods.has("scaled::n2::ue8m0");
    c.arity(n + usize::from(scaled)..=n + usize::from(scaled))?;
    if scaled { lw.src(c.op(n)?, Ty::B16) } else { Ok(lw.constant(0x7f7f)) }
}

/// Conversions to and from s2f6. The first type is the destination's.
fn fixed<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    match (c.opcode.ends_with(".s2f6x2"), c.ty()?) {
        (true, Ty::Bf16x2) => from_fixed(lw, c),
        (false, Ty::Bf16x2 | Ty::F32) => to_fixed(lw, c),
        (_, ty) => unsupported(ty),
    }
}

fn to_fixed<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    let relu = c.mods.has("relu");
    if !c.mods.has("satfinite") {
        return Err("this conversion needs .satfinite".to_owned());
    }
    let packed = c.mods.has("bf16x2");
    let scale = factors(lw, c, if packed { 2 } else { 3 })?;
    let d = lw.dst(c.op(0)?, Ty::B16)?;
    let fixed = move |h: u64, l: u64, scale: u64| {
        let [h, l] =
            [(h, scale >> 8), (l, scale)].map(|(v, s)| narrow::to_s2f6(f32::from_bits(v as u32), s, relu));
        h << 8 | l
    };
    let (f, s) = if packed {
        let a = lw.src(c.op(1)?, Ty::B32)?;
        (Pure::new(move |a, _, s| fixed(a & 0xffff_0000, a << 16 & 0xffff_0000, s)), [a, a, scale])
    } else {
        let s = [lw.src(c.op(1)?, Ty::F32)?, lw.src(c.op(2)?, Ty::F32)?, scale];
        (Pure::new(fixed), s)
    };
    lw.emit(Op::Pure { f, d, s });
    Ok(())
}

fn from_fixed<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    let (satfinite, relu) = (c.mods.has("satfinite"), c.mods.has("relu"));
    let scale = factors(lw, c, 2)?;
    let a = lw.src(c.op(1)?, Ty::B16)?;
    let d = lw.dst(c.op(0)?, Ty::B32)?;
    let f = Pure::new(move |a, s, _| {
        let [h, l] = [(a >> 8, s >> 8), (a, s)].map(|(v, s)| narrow::from_s2f6(v, s, satfinite, relu));
        h << 16 | l
    });
    lw.emit(Op::Pure { f, d, s: [a, scale, scale] });
    Ok(())
}

fn mov<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    let ty = c.ty()?;
    c.arity(2..=2)?;
    if ty == Ty::Pred {
        let d = lw.pred_dst(c.op(0)?)?;
        let a = lw.pred(c.op(1)?)?;
        lw.emit(Op::Truth { d, a, b: Pred::ALWAYS, table: 0b1100 });
        return Ok(());
    }
    match (c.op(0)?, c.op(1)?) {
        (Operand::Vector(d), s) => {
            let n = d.len() as u32;
            let part = part_type(ty, n)?;
            let d = d.iter().map(|o| lw.dst(o, part)).collect::<Result<Vec<_>, _>>()?;
            let s = source_words(lw, s, ty)?;
            lw.emit(Op::Unpack { d: d.into(), s: s.into(), bits: part.bits() });
        }
        (d, Operand::Vector(s)) => {
            let part = part_type(ty, s.len() as u32)?;
            let s = s.iter().map(|o| lw.src(o, part)).collect::<Result<Vec<_>, _>>()?;
            let d = lw.dst(d, ty)?;
            let d = if ty == Ty::B128 { vec![d, if d == SINK { SINK } else { d + 1 }] } else { vec![d] };
            lw.emit(Op::Pack { d: d.into(), s: s.into(), bits: part.bits() });
        }
        (d, s) if ty == Ty::B128 => {
            let d = lw.dst(d, ty)?;
            let s = source_words(lw, s, ty)?;
            lw.emit(Op::Mov { d, a: s[0] });
            lw.emit(Op::Mov { d: d.saturating_add(1), a: s[1] });
        }
        (d, s) => {
            let d = lw.dst(d, ty)?;
            let a = lw.src(s, ty)?;
            lw.emit(Op::Mov { d, a });
        }
    }
    Ok(())
}

fn part_type(ty: Ty, n: u32) -> Result<Ty, String> {
    match ty.bits().checked_div(n) {
        Some(8) => Ok(Ty::B8),
        Some(16) => Ok(Ty::B16),
        Some(32) => Ok(Ty::B32),
        Some(64) => Ok(Ty::B64),
        _ => Err(format!("{n} elements do not make a .{}", ty.text())),
    }
}

fn source_words<'t>(lw: &mut Lower<'_, 't>, s: &Operand<'t>, ty: Ty) -> Result<Vec<u32>, String> {
    let a = lw.src(s, ty)?;
    Ok(if ty == Ty::B128 { vec![a, a + 1] } else { vec![a] })
}
