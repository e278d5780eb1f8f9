//! Video instructions (ISA section 9.7.18): arithmetic on selected parts of 32-bit words.

use super::alu::unsupported;
use super::{Call, Form, Lower, LowerFn};
use crate::isa::Ty;
use crate::lanes::Pure;
use crate::lanes::simd::{Part, Simd};
use crate::lanes::video::{Mad, Scalar, Second, Select, Verb};
use crate::parse::ast::Operand;
use crate::program::{Op, Slot};

/// Table rows that differ only in the opcode: `vadd2 .. vmax2`.
macro_rules! rows {
    ($lower:ident, $form:literal, $section:literal: $($op:literal $what:expr;)*) => {
        &[$(Form {
            form: concat!($op, " ", $form),
            section: $section,
            lower: |lw, c| $lower(lw, c, $what),
        },)*]
    };
}

const TWO: &[Form<LowerFn>] = rows! { simd, "type type type sat? .add?", "9.7.18.2.1":
    "vadd2" Part::Add; "vsub2" Part::Sub; "vavrg2" Part::Average; "vabsdiff2" Part::Difference;
    "vmin2" Part::Min; "vmax2" Part::Max;
};

const FOUR: &[Form<LowerFn>] = rows! { simd, "type type type sat? .add?", "9.7.18.2.3":
    "vadd4" Part::Add; "vsub4" Part::Sub; "vavrg4" Part::Average; "vabsdiff4" Part::Difference;
    "vmin4" Part::Min; "vmax4" Part::Max;
};

const SCALAR: &[Form<LowerFn>] = rows! { scalar, "type type type sat? .add|.min|.max?", "9.7.18.1.1":
    "vadd" Verb::Add; "vsub" Verb::Sub; "vabsdiff" Verb::Difference; "vmin" Verb::Min; "vmax" Verb::Max;
};

const SHIFTS: &[Form<LowerFn>] = rows! {
    scalar, "type type .u32 sat? .clamp|.wrap .add|.min|.max?", "9.7.18.1.2":
    "vshl" Verb::Left; "vshr" Verb::Right;
};

const OTHERS: &[Form<LowerFn>] = &[
    Form { form: "vmad type type type .po? sat? .shr7|.shr15?", section: "9.7.18.1.3", lower: mad },
    Form {
        form: "vset type type cmp .add|.min|.max?",
        section: "9.7.18.1.4",
        lower: |lw, c| {
            let verb = Verb::Set(comparison(c)?);
            scalar(lw, c, verb)
        },
    },
    Form { form: "vset2 type type cmp .add?", section: "9.7.18.2.2", lower: simd_set },
    Form { form: "vset4 type type cmp .add?", section: "9.7.18.2.4", lower: simd_set },
];

pub(super) const FORMS: [&[Form<LowerFn>]; 5] = [TWO, FOUR, SCALAR, SHIFTS, OTHERS];

fn word(ty: Ty) -> Result<bool, String> {
    match ty {
        Ty::U32 => Ok(false),
        Ty::S32 => Ok(true),
        _ => unsupported(ty),
    }
}

fn signed(c: &Call<'_, '_>, n: usize) -> Result<bool, String> {
    c.mods.ty(n).ok_or_else(|| "types are missing".to_owned()).and_then(word)
}

fn comparison(c: &Call<'_, '_>) -> Result<u8, String> {
    ["eq", "ne", "lt", "le", "gt", "ge"]
        .iter()
        .position(|&t| Some(t) == c.mods.get("cmp"))
        .map(|i| i as u8)
        .ok_or_else(|| "this comparison does not exist".to_owned())
}

/// The register of an operand and the selector after it, as in `%r1.h0`.
fn selected<'t>(lw: &Lower<'_, 't>, op: &Operand<'t>) -> (Operand<'t>, Option<&'t str>) {
    if let Operand::Name(name) = op
        && lw.find_register(name).is_none()
        && let Some((register, selector)) = name.rsplit_once('.')
    {
        return (Operand::Name(register), Some(selector));
    }
    (op.clone(), None)
}

fn scalar_part(selector: Option<&str>) -> Result<Select, String> {
    Ok(match selector {
        None => Select { shift: 0, bits: 32 },
        Some("h0") => Select { shift: 0, bits: 16 },
        Some("h1") => Select { shift: 16, bits: 16 },
        Some("b0") => Select { shift: 0, bits: 8 },
        Some("b1") => Select { shift: 8, bits: 8 },
        Some("b2") => Select { shift: 16, bits: 8 },
        Some("b3") => Select { shift: 24, bits: 8 },
        Some(s) => return Err(format!("`.{s}` does not select a part of a word")),
    })
}

/// A source operand and its selected part.
fn source<'t>(lw: &mut Lower<'_, 't>, op: &Operand<'t>) -> Result<(Slot, Select), String> {
    let (op, selector) = selected(lw, op);
    Ok((lw.src(&op, Ty::B32)?, scalar_part(selector)?))
}

fn second(c: &Call<'_, '_>) -> Option<Second> {
    match () {
        () if c.mods.has("add") => Some(Second::Add),
        () if c.mods.has("min") => Some(Second::Min),
        () if c.mods.has("max") => Some(Second::Max),
        () => None,
    }
}

fn scalar<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>, verb: Verb) -> Result<(), String> {
    let set = matches!(verb, Verb::Set(_));
    let shift = matches!(verb, Verb::Left | Verb::Right);
    let second = second(c);
    let (d, d_part) = selected(lw, c.op(0)?);
    let merge = d_part.map(|s| scalar_part(Some(s))).transpose()?;
    let n = 3 + usize::from(second.is_some() || merge.is_some());
    c.arity(n..=n)?;
    if second.is_some() && merge.is_some() {
        return Err("a second operation and a merge do not go together".to_owned());
    }
    let (a, a_part) = source(lw, c.op(1)?)?;
    let (b, b_part) = source(lw, c.op(2)?)?;
    let e = if n == 4 { lw.src(c.op(3)?, Ty::B32)? } else { lw.constant(0) };
    let first = usize::from(!set);
    let f = Scalar {
        verb,
        d_signed: !set && signed(c, 0)?,
        a: (a_part, signed(c, first)?),
        b: (b_part, !shift && signed(c, first + 1)?),
        saturate: c.mods.has("sat"),
        wrap: c.mods.has("wrap"),
        second,
        merge,
    };
    let d = lw.dst(&d, Ty::B32)?;
    lw.emit(Op::Pure { f: Pure::new(move |a, b, c| f.apply(a, b, c)), d, s: [a, b, e] });
    Ok(())
}

fn mad<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(4..=4)?;
    let minus = |n: usize| match c.op(n) {
        Ok(Operand::Minus(inner)) => Ok((true, (**inner).clone())),
        Ok(op) => Ok((false, op.clone())),
        Err(e) => Err(e),
    };
    let [(na, a), (nb, b), (nc, e)] = [minus(1)?, minus(2)?, minus(3)?];
    let po = c.mods.has("po");
    let product = na != nb;
    if po && (product || nc) || product && nc {
        return Err("at most one of the product and the addend is negated, and none with .po".to_owned());
    }
    let (a, a_part) = source(lw, &a)?;
    let (b, b_part) = source(lw, &b)?;
    let e = lw.src(&e, Ty::B32)?;
    let f = Mad {
        a: (a_part, signed(c, 1)?),
        b: (b_part, signed(c, 2)?),
        product,
        addend: nc,
        plus_one: po,
        saturate: c.mods.has("sat"),
        shift: if c.mods.has("shr7") {
            7
        } else if c.mods.has("shr15") {
            15
        } else {
            0
        },
    };
    let d = lw.dst(c.op(0)?, Ty::B32)?;
    lw.emit(Op::Pure { f: Pure::new(move |a, b, c| f.apply(a, b, c)), d, s: [a, b, e] });
    Ok(())
}

/// `.h32` or `.b7654`: for each part of the result, lowest first, the part of `b:a` that it takes.
fn picks(selector: Option<&str>, bits: u32, upper: bool) -> Result<[u8; 4], String> {
    let count = 32 / bits as usize;
    let Some(text) = selector else {
        let first = if upper { count } else { 0 };
        return Ok(std::array::from_fn(|i| (first + i) as u8));
    };
    let letter = if bits == 8 { 'b' } else { 'h' };
    let digits: Option<Vec<u8>> = text
        .strip_prefix(letter)
        .map(|d| d.bytes().rev().map(|b| b.wrapping_sub(b'0')).collect())
        .filter(|d: &Vec<u8>| d.len() == count && d.iter().all(|&v| usize::from(v) < 2 * count));
    match digits {
        Some(d) => Ok(std::array::from_fn(|i| d.get(i).copied().unwrap_or(0))),
        None => Err(format!("`.{text}` does not select {count} parts")),
    }
}

/// `.h10` or `.b310`: the parts of the result that are written.
fn mask(selector: Option<&str>, bits: u32) -> Result<u8, String> {
    let count = 32 / bits;
    let Some(text) = selector else { return Ok((1 << count) - 1) };
    let letter = if bits == 8 { 'b' } else { 'h' };
    let mut mask = 0u8;
    for digit in text.strip_prefix(letter).unwrap_or("?").chars() {
        match digit.to_digit(10) {
            Some(v) if v < count && mask >> v == 0 => mask |= 1 << v,
            Some(v) if v < count && mask >> v & 1 == 0 => mask |= 1 << v,
            _ => return Err(format!("`.{text}` is not a mask of {count} parts")),
        }
    }
    Ok(mask)
}

fn emit_simd<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>, mut f: Simd) -> Result<(), String> {
    c.arity(4..=4)?;
    if f.saturate && f.accumulate {
        return Err(".sat and .add do not go together".to_owned());
    }
    let (d, d_mask) = selected(lw, c.op(0)?);
    let (a, a_picks) = selected(lw, c.op(1)?);
    let (b, b_picks) = selected(lw, c.op(2)?);
    f.mask = mask(d_mask, f.bits)?;
    f.a_picks = picks(a_picks, f.bits, false)?;
    f.b_picks = picks(b_picks, f.bits, true)?;
    let s = [lw.src(&a, Ty::B32)?, lw.src(&b, Ty::B32)?, lw.src(c.op(3)?, Ty::B32)?];
    let d = lw.dst(&d, Ty::B32)?;
    lw.emit(Op::Pure { f: Pure::new(move |a, b, c| f.apply(a, b, c)), d, s });
    Ok(())
}

fn base(c: &Call<'_, '_>, part: Part) -> Simd {
    Simd {
        part,
        bits: if c.head.ends_with('4') { 8 } else { 16 },
        d_signed: false,
        a_signed: false,
        b_signed: false,
        saturate: c.mods.has("sat"),
        accumulate: c.mods.has("add"),
        mask: 0,
        a_picks: [0; 4],
        b_picks: [0; 4],
    }
}

fn simd<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>, part: Part) -> Result<(), String> {
    let f =
        Simd { d_signed: signed(c, 0)?, a_signed: signed(c, 1)?, b_signed: signed(c, 2)?, ..base(c, part) };
    emit_simd(lw, c, f)
}

fn simd_set<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    let f = Simd { a_signed: signed(c, 0)?, b_signed: signed(c, 1)?, ..base(c, Part::Set(comparison(c)?)) };
    emit_simd(lw, c, f)
}
