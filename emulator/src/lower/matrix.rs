//! Matrix products of a warp and of a warpgroup (ISA sections 9.7.14 and 9.7.15).

use super::{Call, Form, Lower, LowerFn};
use crate::engine::descriptor::Major;
use crate::engine::format::Format;
use crate::engine::fragment::{Kind, Shape};
use crate::isa::Ty;
use crate::parse::ast::Operand;
use crate::program::{Op, Pred, SINK, Slot, WarpMma, Wgmma, WgmmaA};
use std::sync::Arc;

pub(super) const FORMS: &[Form<LowerFn>] = &[
    Form {
        form: "mma.sync .aligned mma .row .col .kind::f8f6f4? .satfinite? element element element element .xor|.and? .popc?",
        section: "9.7.14.5.14",
        lower: mma,
    },
    Form { form: "movmatrix.sync .aligned .m8n8 .trans .b16", section: "9.7.14.5.17", lower: movmatrix },
    Form {
        form: "wgmma.fence.sync .aligned",
        section: "9.7.15.7.1",
        lower: |lw, _| done(lw, Op::WgmmaFence),
    },
    Form {
        form: "wgmma.commit_group.sync .aligned",
        section: "9.7.15.7.2",
        lower: |lw, _| done(lw, Op::WgmmaCommit),
    },
    Form { form: "wgmma.wait_group.sync .aligned", section: "9.7.15.7.3", lower: wait },
    Form {
        form: "wgmma.mma_async.sync .aligned wgmma element element element .satfinite? .and? .popc?",
        section: "9.7.15.5.2",
        lower: wgmma,
    },
];

fn done(lw: &mut Lower<'_, '_>, op: Op) -> Result<(), String> {
    lw.emit(op);
    Ok(())
}

/// The numbers of `m16n8k16`.
fn shape(text: &str) -> Option<Shape> {
    let (m, rest) = text.strip_prefix('m')?.split_once('n')?;
    let (n, k) = rest.split_once('k')?;
    Some(Shape { m: m.parse().ok()?, n: n.parse().ok()?, k: k.parse().ok()? })
}

fn format(text: &str) -> Option<Format> {
    Some(match text {
        "f16" => Format::F16,
        "bf16" => Format::Bf16,
        "tf32" => Format::Tf32,
        "e4m3" => Format::E4m3,
        "e5m2" => Format::E5m2,
        _ => return None,
    })
}

/// What elements of these types make; `d` is the accumulator's.
fn kind(c: &Call<'_, '_>, d: &str, a: &str, b: &str) -> Result<Kind, String> {
    let bad = || Err(format!("there is no product of .{a} and .{b} that makes .{d}"));
    if let (Some(fa), Some(fb)) = (format(a), format(b)) {
        let eight = |f| matches!(f, Format::E4m3 | Format::E5m2);
        if !(fa == fb || eight(fa) && eight(fb)) || !matches!(d, "f32" | "f16") {
            return bad();
        }
        if d == "f16" && matches!(fa, Format::Bf16 | Format::Tf32) || c.mods.has("satfinite") {
            return bad();
        }
        return Ok(Kind::Float { a: fa, b: fb, half: d == "f16" });
    }
    let integer = |t: &str| match t {
        "s8" => Some((8, true)),
        "u8" => Some((8, false)),
        "s4" => Some((4, true)),
        "u4" => Some((4, false)),
        _ => None,
    };
    match (integer(a), integer(b)) {
        (Some((bits, a_signed)), Some((other, b_signed))) if bits == other && d == "s32" => {
            return Ok(Kind::Integer { bits, a_signed, b_signed, saturate: c.mods.has("satfinite") });
        }
        _ => {}
    }
    match (a, b, d) {
        ("b1", "b1", "s32") if c.mods.has("popc") => Ok(Kind::Bits { xor: c.mods.has("xor") }),
        ("f64", "f64", "f64") => Ok(Kind::Double),
        _ => bad(),
    }
}

/// Whether the ISA has this shape for these elements.
fn exists(s: Shape, kind: Kind) -> bool {
    let list: &[(usize, usize)] = match kind {
        Kind::Float { a: Format::F16 | Format::Bf16, .. } => &[(16, 8), (16, 16)],
        Kind::Float { a: Format::Tf32, .. } => &[(16, 4), (16, 8)],
        Kind::Float { .. } => &[(16, 16), (16, 32)],
        Kind::Integer { bits: 8, .. } => &[(8, 16), (16, 16), (16, 32)],
        Kind::Integer { .. } => &[(8, 32), (16, 32), (16, 64)],
        Kind::Bits { .. } => &[(8, 128), (16, 128), (16, 256)],
        Kind::Double => &[(8, 4), (16, 4), (16, 8), (16, 16)],
    };
    s.n == 8 && list.contains(&(s.m, s.k))
}

fn slots<'t>(
    lw: &mut Lower<'_, 't>,
    op: &Operand<'t>,
    (count, ty): (usize, Ty),
    dst: bool,
) -> Result<Box<[Slot]>, String> {
    let items = lw.elements(op);
    if items.len() != count {
        return Err(format!("{count} registers are needed, found {}", items.len()));
    }
    items.iter().map(|o| if dst { lw.dst(o, ty) } else { lw.src(o, ty) }).collect()
}

fn mma<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(4..=4)?;
    let Some(s) = c.mods.get("mma").and_then(shape) else {
        return Err("the shape is missing".to_owned());
    };
    let ty = |n| c.mods.nth("element", n).unwrap_or("");
    if ty(0) != ty(3) {
        return Err(format!("C of .{} and D of .{} are not supported", ty(3), ty(0)));
    }
    if c.mods.has("kind::f8f6f4") && !["e4m3", "e5m2"].contains(&ty(1)) {
        return Err("4- and 6-bit elements exist on sm_120a only, which is not modelled".to_owned());
    }
    let kind = kind(c, ty(0), ty(1), ty(2))?;
    if !exists(s, kind) {
        return Err(format!("shape m{}n{}k{} of these elements is not supported", s.m, s.n, s.k));
    }
    let word = if kind == Kind::Double { Ty::B64 } else { Ty::B32 };
    let d = slots(lw, c.op(0)?, (s.d_registers(kind), word), true)?;
    let a = slots(lw, c.op(1)?, (s.a_registers(kind), word), false)?;
    let b = slots(lw, c.op(2)?, (s.b_registers(kind), word), false)?;
    let e = slots(lw, c.op(3)?, (s.d_registers(kind), word), false)?;
    done(lw, Op::WarpMma(Box::new(WarpMma { shape: s, kind, d, a, b, c: e })))
}

fn movmatrix<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(2..=2)?;
    let d = lw.dst(c.op(0)?, Ty::B32)?;
    let a = lw.src(c.op(1)?, Ty::B32)?;
    done(lw, Op::MovMatrix { d, a })
}

fn wait<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(1..=1)?;
    let Operand::Int(groups) = c.op(0)? else {
        return Err("the number of groups must be an immediate".to_owned());
    };
    if *groups > 7 {
        return Err("at most 7 groups can be left pending".to_owned());
    }
    done(lw, Op::WgmmaWait { groups: *groups as u32 })
}

/// An immediate of -1 or 1.
fn sign(op: &Operand<'_>) -> Result<bool, String> {
    match op {
        Operand::Int(1) => Ok(false),
        Operand::Int(v) if *v as i64 == -1 => Ok(true),
        _ => Err("a scale is the immediate 1 or -1".to_owned()),
    }
}

fn major(op: &Operand<'_>) -> Result<Major, String> {
    match op {
        Operand::Int(0) => Ok(Major::K),
        Operand::Int(1) => Ok(Major::Mn),
        _ => Err("a transposition is the immediate 0 or 1".to_owned()),
    }
}

fn wgmma<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    let Some(s) = c.opcode.split('.').find(|p| p.starts_with("m64n")).and_then(shape) else {
        return Err("the shape is missing".to_owned());
    };
    let ty = |n| c.mods.nth("element", n).unwrap_or("");
    let kind = kind(c, ty(0), ty(1), ty(2))?;
    let k = 256 / kind.bits() as usize;
    let few = matches!(kind, Kind::Integer { .. } | Kind::Bits { .. }) && s.n > 24 && !s.n.is_multiple_of(16);
    if s.k != k
        || kind.bits() == 4
        || kind == Kind::Double
        || s.n % 8 != 0
        || !(8..=256).contains(&s.n)
        || few
    {
        return Err(format!("shape m64n{}k{} of these elements does not exist", s.n, s.k));
    }
    let float = matches!(kind, Kind::Float { .. });
    let part = Shape { m: 16, ..s };
    let d = slots(lw, c.op(0)?, (part.d_registers(kind), Ty::B32), true)?;
    if d.contains(&SINK) {
        return Err("an accumulator cannot be `_`".to_owned());
    }
    let (a, smem) = match c.op(1)? {
        op @ Operand::Vector(_) => {
            (WgmmaA::Registers(slots(lw, op, (part.a_registers(kind), Ty::B32), false)?), 0)
        }
        op => (WgmmaA::Smem(lw.src(op, Ty::B64)?), 1),
    };
    let b = lw.src(c.op(2)?, Ty::B64)?;
    // scale-d, the two signs, and for 16-bit elements the transpositions of what is in shared memory.
    let sixteen = kind.bits() == 16;
    let expected = 3 + 1 + if float { 2 } else { 0 } + if sixteen { 1 + smem } else { 0 };
    let (scale_d, rest) = match c.operands.get(3) {
        None => (Pred::ALWAYS, &c.operands[3..]),
        Some(p) => (lw.pred(p)?, &c.operands[4..]),
    };
    if c.operands.len() != 3 && c.operands.len() != expected {
        return Err(format!("{expected} operands are needed, found {}", c.operands.len()));
    }
    let mut rest = rest.iter();
    let mut negate = false;
    if float {
        for op in rest.by_ref().take(2) {
            negate ^= sign(op)?;
        }
    }
    let mut majors = rest.map(major);
    let a_major = if smem == 1 { majors.next().unwrap_or(Ok(Major::K))? } else { Major::K };
    let b_major = majors.next().unwrap_or(Ok(Major::K))?;
    let op = Wgmma { kind, n: s.n, d, a, b, scale_d, negate, a_major, b_major };
    done(lw, Op::Wgmma(Arc::new(op)))
}
