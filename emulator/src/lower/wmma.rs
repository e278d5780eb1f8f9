//! `wmma` (ISA section 9.7.14.4): loads, multiplies and stores fragments.

use super::matrix::{kind, shape, slots};
use super::memory::space;
use super::{Call, Form, Lower, LowerFn};
use crate::engine::fragment::{Kind, Shape};
use crate::isa::Ty;
use crate::program::{Op, SINK, Space, WarpMma, WmmaMove};

pub(super) const FORMS: &[Form<LowerFn>] = &[
    Form {
        form: "wmma.load .a|.b|.c .sync .aligned .row|.col mma space? element",
        section: "9.7.14.4.3",
        lower: transfer,
    },
    Form {
        form: "wmma.store .d .sync .aligned .row|.col mma space? element",
        section: "9.7.14.4.4",
        lower: transfer,
    },
    Form {
        form: "wmma.mma .sync .aligned .row|.col .row|.col mma .f16|.f32 .f16|.f32",
        section: "9.7.14.4.5",
        lower: halves,
    },
    Form {
        form: "wmma.mma .xor|.and? .popc? .sync .aligned .row|.col .row|.col mma rnd? element element element element .satfinite?",
        section: "9.7.14.4.5",
        lower: named,
    },
];

/// Bits of an element in memory and in a fragment.
fn bits(element: &str) -> Option<u32> {
    Some(match element {
        "f64" => 64,
        "f32" | "tf32" | "s32" => 32,
        "f16" | "bf16" => 16,
        "s8" | "u8" => 8,
        "s4" | "u4" => 4,
        "b1" => 1,
        _ => return None,
    })
}

/// Whether the ISA has the shape for multiplicands of this type.
fn exists(s: Shape, element: &str) -> bool {
    match element {
        "f16" | "bf16" | "s8" | "u8" => s.k == 16 && matches!((s.m, s.n), (16, 16) | (8, 32) | (32, 8)),
        "tf32" => (s.m, s.n, s.k) == (16, 16, 8),
        "f64" => (s.m, s.n, s.k) == (8, 8, 4),
        "s4" | "u4" => (s.m, s.n, s.k) == (8, 8, 32),
        "b1" => (s.m, s.n, s.k) == (8, 8, 128),
        _ => false,
    }
}

/// Registers of a fragment of `elements`. Multiplicands in binary16 have 8 registers for every shape, as on the first
/// chips.
fn registers(element: &str, elements: usize, multiplicand: bool) -> usize {
    match element {
        "f16" if multiplicand => 8,
        "f64" => elements / 32,
        e => (elements * bits(e).unwrap_or(32) as usize / 32).div_ceil(32),
    }
}

fn word(element: &str) -> Ty {
    if element == "f64" { Ty::B64 } else { Ty::B32 }
}

fn the_shape(c: &Call<'_, '_>) -> Result<Shape, String> {
    c.mods.get("mma").and_then(shape).ok_or_else(|| "the shape is missing".to_owned())
}

fn transfer<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(2..=3)?;
    let s = the_shape(c)?;
    let element = c.mods.get("element").unwrap_or("");
    let store = c.head2() == "store";
    let which = ["a", "b", "c", "d"].into_iter().find(|w| c.mods.has(w)).unwrap_or("d");
    let multiplicand = matches!(which, "a" | "b");
    let known = match multiplicand {
        true => exists(s, element),
        false => {
            let of = |list: &[&str]| list.iter().any(|e| exists(s, e));
            match element {
                "f16" => of(&["f16"]),
                "f32" => of(&["f16", "tf32"]),
                "s32" => of(&["s8", "s4", "b1"]),
                "f64" => of(&["f64"]),
                _ => false,
            }
        }
    };
    let Some(bits) = bits(element).filter(|_| known) else {
        return Err(format!("there is no fragment of .{element} of this shape"));
    };
    // Rows and columns of the matrix; a fragment of B counts its columns.
    let (rows, columns) = match which {
        "a" => (s.m, s.k),
        "b" => (s.k, s.n),
        _ => (s.m, s.n),
    };
    let by_row = c.mods.get(".row|.col") == Some("row");
    if bits < 8 && by_row != (which != "b") && multiplicand {
        return Err("elements of less than a byte lie along K".to_owned());
    }
    let (lines, length) = if by_row { (rows, columns) } else { (columns, rows) };
    let (memory, list) = if store { (0, 1) } else { (1, 0) };
    let symbol = lw.addr_symbol(c.op(memory)?);
    let space = space(c.mods, symbol);
    if !matches!(space, Space::Generic | Space::Global | Space::SharedCta) {
        return Err("fragments are in .global or .shared::cta memory".to_owned());
    }
    let at = lw.addr(c.op(memory)?)?;
    let count = registers(element, rows * columns, multiplicand);
    let registers = slots(lw, c.op(list)?, (count, word(element)), !store)?;
    let stride = match c.operands.get(2) {
        Some(o) => lw.src(o, Ty::U32)?,
        None => SINK,
    };
    let along = by_row != (which == "b");
    let m = WmmaMove { space, at, stride, lines, length, bits, along, registers, store };
    lw.emit(Op::WmmaMove(Box::new(m)));
    Ok(())
}

/// `.dtype.ctype` of binary16 multiplicands.
fn halves<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    let ty = |n| c.mods.nth(".f16|.f32", n).unwrap_or("");
    multiply(lw, c, [ty(0), "f16", "f16", ty(1)])
}

fn named<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    let ty = |n| c.mods.nth("element", n).unwrap_or("");
    if ty(0) != ty(3) || ty(1) != ty(2) {
        return Err("C and D, and A and B, are of one type here".to_owned());
    }
    multiply(lw, c, [ty(0), ty(1), ty(2), ty(3)])
}

fn multiply<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>, [td, ta, tb, tc]: [&str; 4]) -> Result<(), String> {
    c.arity(4..=4)?;
    let s = the_shape(c)?;
    if !exists(s, ta) {
        return Err(format!("there is no wmma of .{ta} of this shape"));
    }
    let kind = kind(c, td, ta, tb)?;
    let rounding = super::alu::rounding(c.mods.get("rnd"))?;
    if c.mods.get("rnd").is_some() && kind != Kind::Double {
        return Err("a rounding is for .f64".to_owned());
    }
    let counts = [
        registers(td, s.m * s.n, false),
        registers(ta, s.m * s.k, true),
        registers(tb, s.k * s.n, true),
        registers(tc, s.m * s.n, false),
    ];
    let d = slots(lw, c.op(0)?, (counts[0], word(td)), true)?;
    let a = slots(lw, c.op(1)?, (counts[1], word(ta)), false)?;
    let b = slots(lw, c.op(2)?, (counts[2], word(ta)), false)?;
    let e = slots(lw, c.op(3)?, (counts[3], word(tc)), false)?;
    let c_half = tc == "f16";
    let mma = WarpMma {
        shape: s,
        kind,
        d,
        a,
        b,
        c: e,
        c_half,
        rounding,
        quads: None,
        sparse: None,
        scale: None,
        widened: false,
    };
    lw.emit(Op::WmmaMma(Box::new(mma)));
    Ok(())
}
