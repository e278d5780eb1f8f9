//! Matrix products of a warp and of a warpgroup (ISA sections 9.7.14 and 9.7.15).

use super::{Call, Form, Lower, LowerFn};
use crate::engine::descriptor::Major;
use crate::engine::format::Format;
use crate::engine::fragment::{Kind, Shape};
use crate::engine::idesc::ScaleVec;
use crate::isa::Ty;
use crate::parse::ast::Operand;
use crate::program::{Op, Pred, SINK, Slot, WarpMma, WarpScale, Wgmma, WgmmaA};
use std::sync::Arc;

pub(super) const FORMS: &[Form<LowerFn>] = &[
    Form {
        form: "mma.sync .aligned mma .row|.col .row|.col rnd? .kind::f8f6f4? .satfinite? element element element element .xor|.and? .popc?",
        section: "9.7.14.5.14",
        lower: mma,
    },
    Form {
        form: "mma.sync .aligned mma .row .col kind .block_scale scalevec? element element element element .ue8m0|.ue4m3",
        section: "9.7.14.5.14",
        lower: mma,
    },
    Form {
        form: "mma.sp.sync .aligned mma .row .col .satfinite? element element element element",
        section: "9.7.14.6.3",
        lower: mma,
    },
    Form {
        form: "mma.sp::ordered_metadata.sync .aligned mma .row .col .kind::f8f6f4? .satfinite? element element element element",
        section: "9.7.14.6.3",
        lower: mma,
    },
    Form {
        form: "mma.sp::ordered_metadata.sync .aligned mma .row .col kind .block_scale scalevec? element element element element .ue8m0|.ue4m3",
        section: "9.7.14.6.3",
        lower: mma,
    },
    // The sparse spelling as a modifier, which CUTLASS writes for block-scaled products.
    Form {
        form: "mma.sync .aligned .sp::ordered_metadata mma .row .col .kind::f8f6f4? .satfinite? element element element element",
        section: "9.7.14.6.3",
        lower: mma,
    },
    Form {
        form: "mma.sync .aligned .sp::ordered_metadata mma .row .col kind .block_scale scalevec? element element element element .ue8m0|.ue4m3",
        section: "9.7.14.6.3",
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
        form: "wgmma.mma_async.sp.sync .aligned wgmma element element element .satfinite?",
        section: "9.7.15.6.3",
        lower: wgmma,
    },
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

/// M, N and K of `m16n8k16`.
pub(super) fn shape(text: &str) -> Option<Shape> {
    let (m, rest) = text.strip_prefix('m')?.split_once('n')?;
    let (n, k) = rest.split_once('k')?;
    Some(Shape { m: m.parse().ok()?, n: n.parse().ok()?, k: k.parse().ok()? })
}

pub(super) fn format(text: &str) -> Option<Format> {
    Some(match text {
        "f16" => Format::F16,
        "bf16" => Format::Bf16,
        "tf32" => Format::Tf32,
        "e4m3" => Format::E4m3,
        "e5m2" => Format::E5m2,
        "e2m1" => Format::E2m1,
        "e2m3" => Format::E2m3,
        "e3m2" => Format::E3m2,
        _ => return None,
    })
}

/// The MMA kind for these element types; `d` is the accumulator's.
pub(super) fn kind(c: &Call<'_, '_>, d: &str, a: &str, b: &str) -> Result<Kind, String> {
    let bad = || Err(format!("there is no product of .{a} and .{b} that makes .{d}"));
    if let (Some(fa), Some(fb)) = (format(a), format(b)) {
        let narrow = c.opcode.contains("f8f6f4");
        let eight = |f| match f {
            Format::E4m3 | Format::E5m2 => true,
            Format::E2m1 | Format::E2m3 | Format::E3m2 => narrow,
            _ => false,
        };
        if narrow && !(eight(fa) && eight(fb)) {
            return bad();
        }
        if !eight(fa) && fa.bits() < 8 || !(fa == fb || eight(fa) && eight(fb)) || !matches!(d, "f32" | "f16")
        {
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

/// Whether the ISA has this shape for this kind.
fn exists(s: Shape, kind: Kind, sparse: bool) -> bool {
    if sparse {
        let list: &[usize] = match kind {
            Kind::Float { a: Format::F16 | Format::Bf16, .. } => &[16, 32],
            Kind::Float { a: Format::Tf32, .. } => &[8, 16],
            Kind::Float { .. } => &[64],
            Kind::Integer { bits: 8, .. } => &[32, 64],
            Kind::Integer { .. } => &[64, 128],
            Kind::Packed4 => &[128],
            Kind::Bits { .. } | Kind::Double => &[],
        };
        return s.n == 8 && s.m == 16 && list.contains(&s.k);
    }
    let list: &[(usize, usize)] = match kind {
        Kind::Packed4 => &[(16, 64)],
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

pub(super) fn slots<'t>(
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

/// Kind and scale factors of a block-scaled product; its scale operands start at operand `next`.
fn scaled<'t>(
    lw: &mut Lower<'_, 't>,
    c: &Call<'_, 't>,
    (a, b): (&str, &str),
    next: usize,
) -> Result<(Kind, WarpScale), String> {
    let (Some(fa), Some(fb)) = (format(a), format(b)) else {
        return Err(format!("there is no scaled product of .{a} and .{b}"));
    };
    let eight = |f: Format| !matches!(f, Format::F16 | Format::Bf16 | Format::Tf32);
    let fp4 = fa == Format::E2m1 && fb == Format::E2m1;
    let factor = if c.mods.has("ue4m3") { Format::Ue4m3 } else { Format::Ue8m0 };
    let vec = c.mods.get("scalevec");
    let (kind, vec) = match (c.mods.get("kind"), vec) {
        (Some("kind::mxf8f6f4"), None | Some("scale_vec::1X")) if eight(fa) && eight(fb) => {
            (Kind::Float { a: fa, b: fb, half: false }, ScaleVec::X1)
        }
        (Some("kind::mxf4"), None | Some("scale_vec::2X")) if fp4 => (Kind::Packed4, ScaleVec::X2),
        (Some("kind::mxf4nvf4"), Some("scale_vec::2X")) if fp4 => (Kind::Packed4, ScaleVec::X2),
        (Some("kind::mxf4nvf4"), Some("scale_vec::4X")) if fp4 => (Kind::Packed4, ScaleVec::X4),
        _ => return Err("kind, elements and scale vector size do not go together".to_owned()),
    };
    if factor == Format::Ue4m3 && vec != ScaleVec::X4 {
        return Err(".ue4m3 scale factors go with .scale_vec::4X".to_owned());
    }
    let bytes: &[u64] = match vec {
        ScaleVec::X1 => &[0, 1, 2, 3],
        ScaleVec::X2 => &[0, 2],
        ScaleVec::X4 => &[0],
    };
    let mut side = |n: usize, what: &str, threads: &[u64]| -> Result<[Slot; 3], String> {
        let data = lw.src(only(c.op(n)?), Ty::B32)?;
        match lw.elements(c.op(n + 1)?) {
            [byte, thread] => {
                immediate(byte, &format!("byte-id of {what} with this scale vector size"), bytes)?;
                immediate(thread, &format!("thread-id of {what}"), threads)?;
                Ok([data, lw.src(byte, Ty::U16)?, lw.src(thread, Ty::U16)?])
            }
            _ => Err("selectors are a pair {byte-id, thread-id}".to_owned()),
        }
    };
    let (a, b) = (side(next, "A", &[0, 1])?, side(next + 2, "B", &[0, 1, 2, 3])?);
    Ok((kind, WarpScale { format: factor, vec, a, b }))
}

/// The element of a one-element vector, the form in which CUTLASS writes scale factors and metadata; else the operand
/// itself.
fn only<'o, 't>(op: &'o Operand<'t>) -> &'o Operand<'t> {
    match op {
        Operand::Vector(items) if items.len() == 1 => &items[0],
        op => op,
    }
}

/// Checks a selector given as an immediate. One in a register is checked when the instruction runs.
fn immediate(op: &Operand<'_>, what: &str, allowed: &[u64]) -> Result<(), String> {
    match op {
        Operand::Int(v) if !allowed.contains(v) => {
            let list: Vec<String> = allowed.iter().map(u64::to_string).collect();
            Err(format!("{what} is {v}; it can be {}", list.join(", ")))
        }
        _ => Ok(()),
    }
}

/// Metadata and selector operands of a sparse product.
fn metadata<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>, n: usize) -> Result<(Slot, u32), String> {
    let slot = lw.src(only(c.op(n)?), Ty::B32)?;
    match c.op(n + 1)? {
        Operand::Int(v) if *v < 4 => Ok((slot, *v as u32)),
        _ => Err("the sparsity selector is an immediate from 0 to 3".to_owned()),
    }
}

fn mma<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    let Some(s) = c.mods.get("mma").and_then(shape) else {
        return Err("the shape is missing".to_owned());
    };
    let ty = |n| c.mods.nth("element", n).unwrap_or("");
    let halves = matches!(ty(0), "f16" | "f32") && matches!(ty(3), "f16" | "f32");
    if ty(0) != ty(3) && !(halves && ty(1) == "f16") {
        return Err(format!("C of .{} and D of .{} are not supported", ty(3), ty(0)));
    }
    let sparse = c.opcode.contains(".sp");
    let after = if sparse { 6 } else { 4 };
    let (kind, scale) = if c.mods.has("block_scale") {
        c.arity(after + 4..=after + 4)?;
        let (kind, scale) = scaled(lw, c, (ty(1), ty(2)), after)?;
        (kind, Some(scale))
    } else {
        c.arity(after..=after)?;
        (kind(c, ty(0), ty(1), ty(2))?, None)
    };
    let sparse = if sparse { Some(metadata(lw, c, 4)?) } else { None };
    let layout = |n| c.mods.nth(".row|.col", n) == Some("col");
    let half_in = matches!(kind, Kind::Float { a: Format::F16, b: Format::F16, .. });
    let quad = half_in && (s.m, s.n, s.k) == (8, 8, 4) && sparse.is_none();
    if !quad && !exists(s, kind, sparse.is_some()) {
        return Err(format!("shape m{}n{}k{} of these elements is not supported", s.m, s.n, s.k));
    }
    // The one form whose layouts can be chosen names them; everywhere else A is .row and B .col.
    let named = c.opcode.contains(".row.col");
    if !quad && !named {
        return Err("A is .row and B is .col".to_owned());
    }
    let rounding = super::alu::rounding(c.mods.get("rnd"))?;
    if c.mods.get("rnd").is_some() && kind != Kind::Double {
        return Err("a rounding is for .f64".to_owned());
    }
    let word = if kind == Kind::Double { Ty::B64 } else { Ty::B32 };
    let (c_half, d_half) = (ty(3) == "f16", ty(0) == "f16");
    let stored = Shape { k: if sparse.is_some() { s.k / 2 } else { s.k }, ..s };
    let counts = match quad {
        true => [if d_half { 4 } else { 8 }, 2, 2, if c_half { 4 } else { 8 }],
        false => {
            [s.d_registers(d_half), stored.a_registers(kind), s.b_registers(kind), s.d_registers(c_half)]
        }
    };
    let d = slots(lw, c.op(0)?, (counts[0], word), true)?;
    let a = slots(lw, c.op(1)?, (counts[1], word), false)?;
    let b = slots(lw, c.op(2)?, (counts[2], word), false)?;
    let e = slots(lw, c.op(3)?, (counts[3], word), false)?;
    let quads = quad.then(|| (layout(0), !layout(1)));
    // sm_89 and sm_120 multiply FP8 as it is.
    let eight = |f| matches!(f, Format::E4m3 | Format::E5m2);
    let widened = matches!(kind, Kind::Float { a, b, .. } if eight(a) && eight(b))
        && !c.mods.has("kind::f8f6f4")
        && matches!(lw.chip, 90..120);
    let mma = WarpMma { shape: s, kind, d, a, b, c: e, c_half, rounding, quads, sparse, scale, widened };
    done(lw, Op::WarpMma(Box::new(mma)))
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

/// An immediate that is -1 or 1.
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
    let sparse = c.opcode.contains(".sp.");
    let k = 256 / kind.bits() as usize * if sparse { 2 } else { 1 };
    let few = matches!(kind, Kind::Integer { .. } | Kind::Bits { .. }) && s.n > 24 && !s.n.is_multiple_of(16);
    if s.k != k
        || kind.bits() == 4
        || kind == Kind::Double
        || sparse && matches!(kind, Kind::Bits { .. })
        || s.n % 8 != 0
        || !(8..=256).contains(&s.n)
        || few
    {
        return Err(format!("shape m64n{}k{} of these elements does not exist", s.n, s.k));
    }
    let float = matches!(kind, Kind::Float { .. });
    let part = Shape { m: 16, k: 256 / kind.bits() as usize, ..s };
    let d = slots(lw, c.op(0)?, (part.d_registers(ty(0) == "f16"), Ty::B32), true)?;
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
    let metadata = if sparse { Some(metadata(lw, c, 3)?) } else { None };
    let before = if sparse { 5 } else { 3 };
    let expected = before + 1 + if float { 2 } else { 0 } + if sixteen { 1 + smem } else { 0 };
    let (scale_d, rest) = match c.operands.get(before) {
        None => (Pred::ALWAYS, &c.operands[before..]),
        Some(p) => (lw.pred(p)?, &c.operands[before + 1..]),
    };
    if c.operands.len() != before && c.operands.len() != expected {
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
    let op = Wgmma { kind, n: s.n, d, a, b, scale_d, negate, a_major, b_major, sparse: metadata };
    done(lw, Op::Wgmma(Arc::new(op)))
}
