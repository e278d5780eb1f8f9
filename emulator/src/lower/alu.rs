//! Arithmetic, logic, comparison and selection.

use super::rare::{doubles, is_directed_double, xorsign};
use super::{Call, Form, Lower, LowerFn};
use crate::engine::format::Rounding;
use crate::isa::Ty;
use crate::lanes::float::{self, Mode};
use crate::lanes::int;
use crate::parse::ast::Operand;
use crate::program::{Op, Pred, SINK};

pub(super) const FORMS: &[Form<LowerFn>] = &[
    Form {
        form: "add rnd? ftz? sat? .cc? type type?",
        section: "9.7.1.1, 9.7.2.1, 9.7.3.3, 9.7.4.1, 9.7.5.1",
        lower: arith,
    },
    Form {
        form: "sub rnd? ftz? sat? .cc? type type?",
        section: "9.7.1.2, 9.7.2.3, 9.7.3.4, 9.7.4.2, 9.7.5.2",
        lower: arith,
    },
    Form { form: "addc .cc? type", section: "9.7.2.2", lower: arith },
    Form { form: "subc .cc? type", section: "9.7.2.4", lower: arith },
    Form { form: "mul .lo|.hi|.wide? rnd? ftz? sat? type", section: "9.7.1.3, 9.7.3.5, 9.7.4.3", lower: mul },
    Form {
        form: "mad .lo|.hi|.wide? rnd? ftz? sat? .cc? type",
        section: "9.7.1.4, 9.7.2.5, 9.7.3.7",
        lower: mad,
    },
    Form { form: "madc .lo|.hi? .cc? type", section: "9.7.2.6", lower: mad },
    Form { form: "fma.rn.oob .relu? type", section: "9.7.4.4", lower: fma_oob },
    Form { form: "fma rnd? ftz? sat? .relu? type type?", section: "9.7.3.6, 9.7.4.4, 9.7.5.3", lower: fma },
    Form { form: "div approx? rnd? ftz? type", section: "9.7.1.8, 9.7.3.8", lower: div },
    Form { form: "rem type", section: "9.7.1.9", lower: two },
    Form {
        form: "min ftz? nan? .xorsign? .abs? .relu? type",
        section: "9.7.1.12, 9.7.3.11, 9.7.4.7",
        lower: minmax,
    },
    Form {
        form: "max ftz? nan? .xorsign? .abs? .relu? type",
        section: "9.7.1.13, 9.7.3.12, 9.7.4.8",
        lower: minmax,
    },
    Form { form: "abs ftz? type", section: "9.7.1.10, 9.7.3.9, 9.7.4.6", lower: one },
    Form { form: "neg ftz? type", section: "9.7.1.11, 9.7.3.10, 9.7.4.5", lower: one },
    Form { form: "not type", section: "9.7.8.4", lower: logic },
    Form { form: "cnot type", section: "9.7.8.5", lower: one },
    Form { form: "and type", section: "9.7.8.1", lower: logic },
    Form { form: "or type", section: "9.7.8.2", lower: logic },
    Form { form: "xor type", section: "9.7.8.3", lower: logic },
    Form { form: "shl type", section: "9.7.8.8", lower: shift },
    Form { form: "shr type", section: "9.7.8.9", lower: shift },
    Form { form: "shf .l|.r .clamp|.wrap type", section: "9.7.8.7", lower: funnel },
    Form { form: "popc type", section: "9.7.1.14", lower: count },
    Form { form: "clz type", section: "9.7.1.15", lower: count },
    Form { form: "brev type", section: "9.7.1.18", lower: one },
    Form { form: "bfind .shiftamt? type", section: "9.7.1.16", lower: count },
    Form { form: "bmsk .clamp|.wrap type", section: "9.7.1.22", lower: bmsk },
    Form { form: "bfe type", section: "9.7.1.19", lower: bfe },
    Form { form: "bfi type", section: "9.7.1.20", lower: bfi },
    Form { form: "sad type", section: "9.7.1.7", lower: three },
    Form { form: "dp4a type type", section: "9.7.1.23", lower: dp4a },
    Form { form: "prmt type .f4e|.b4e|.rc8|.ecl|.ecr|.rc16?", section: "9.7.9.7", lower: prmt },
    Form { form: "lop3 .or|.and? type", section: "9.7.8.6", lower: lop3 },
    Form { form: "copysign type", section: "9.7.3.2", lower: two },
    Form { form: "rcp approx? rnd? ftz? type", section: "9.7.3.13", lower: one },
    Form { form: "sqrt approx? rnd? ftz? type", section: "9.7.3.15", lower: one },
    Form { form: "rsqrt approx ftz? type", section: "9.7.3.16", lower: one },
    Form { form: "ex2 approx ftz? type", section: "9.7.3.21, 9.7.4.10", lower: one },
    Form { form: "lg2 approx ftz? type", section: "9.7.3.20", lower: one },
    Form { form: "sin approx ftz? type", section: "9.7.3.18", lower: one },
    Form { form: "cos approx ftz? type", section: "9.7.3.19", lower: one },
    Form { form: "tanh approx type", section: "9.7.3.22, 9.7.4.9", lower: one },
];

/// The rounding that a modifier names; nearest even without one.
pub(super) fn rounding(text: Option<&str>) -> Result<Rounding, String> {
    Ok(match text {
        None | Some("rn" | "rni") => Rounding::NearestEven,
        Some("rz" | "rzi") => Rounding::TowardZero,
        Some("rm" | "rmi") => Rounding::Down,
        Some("rp" | "rpi") => Rounding::Up,
        Some("rna") => Rounding::NearestAway,
        Some(r) => return Err(format!("rounding mode `.{r}` is not supported here")),
    })
}

fn mode(c: &Call<'_, '_>) -> Result<Mode, String> {
    Ok(Mode {
        rounding: rounding(c.mods.get("rnd"))?,
        ftz: c.mods.has("ftz"),
        sat: c.mods.has("sat"),
        nan: c.mods.has("NaN"),
        relu: c.mods.has("relu"),
    })
}

pub(super) fn unsupported<T>(ty: Ty) -> Result<T, String> {
    Err(format!("type .{} or this combination of modifiers is not supported", ty.text()))
}

type Lw<'m, 't> = Lower<'m, 't>;

fn emit1<'t>(lw: &mut Lw<'_, 't>, c: &Call<'_, 't>, op: &str, ty: Ty, dty: Ty) -> Result<(), String> {
    let f = if ty.float() { float::one(op, ty, mode(c)?) } else { int::one(op, ty) };
    let Some(f) = f else { return unsupported(ty) };
    c.arity(2..=2)?;
    let d = lw.dst(c.op(0)?, dty)?;
    let a = lw.src(c.op(1)?, ty)?;
    lw.emit(Op::Alu1 { f, d, a });
    Ok(())
}

/// Lowers a two-source instruction. `d` and the second source may have types of their own (wide products, shift
/// amounts).
fn emit2<'t>(
    lw: &mut Lw<'_, 't>,
    c: &Call<'_, 't>,
    op: &str,
    ty: Ty,
    dty: Ty,
    bty: Ty,
) -> Result<(), String> {
    let f = if ty.float() { float::two(op, ty, mode(c)?) } else { int::two(op, ty) };
    let Some(f) = f else { return unsupported(ty) };
    c.arity(3..=3)?;
    let d = lw.dst(c.op(0)?, dty)?;
    let (a, b) = (lw.src(c.op(1)?, ty)?, lw.src(c.op(2)?, bty)?);
    lw.emit(Op::Alu2 { f, d, a, b });
    Ok(())
}

fn emit3<'t>(lw: &mut Lw<'_, 't>, c: &Call<'_, 't>, op: &str, ty: Ty, tys: [Ty; 4]) -> Result<(), String> {
    let f = if ty.float() { float::three(op, ty, mode(c)?) } else { int::three(op, ty) };
    let Some(f) = f else { return unsupported(ty) };
    c.arity(4..=4)?;
    let d = lw.dst(c.op(0)?, tys[0])?;
    let (a, b, e) = (lw.src(c.op(1)?, tys[1])?, lw.src(c.op(2)?, tys[2])?, lw.src(c.op(3)?, tys[3])?);
    lw.emit(Op::Alu3 { f, d, a, b, c: e });
    Ok(())
}

fn one<'t>(lw: &mut Lw<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    if is_directed_double(c) {
        return doubles(lw, c);
    }
    let ty = c.ty()?;
    let op = if c.mods.get("approx").is_some() { format!("{}.approx", c.head) } else { c.head.to_owned() };
    emit1(lw, c, &op, ty, ty)
}

fn two<'t>(lw: &mut Lw<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    let ty = c.ty()?;
    emit2(lw, c, c.head, ty, ty, ty)
}

fn three<'t>(lw: &mut Lw<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    let ty = c.ty()?;
    emit3(lw, c, c.head, ty, [ty; 4])
}

fn count<'t>(lw: &mut Lw<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    let op = if c.mods.has("shiftamt") { "bfind.shiftamt" } else { c.head };
    emit1(lw, c, op, c.ty()?, Ty::U32)
}

fn carry<'t>(lw: &mut Lw<'_, 't>, c: &Call<'_, 't>, subtract: bool, use_carry: bool) -> Result<(), String> {
    let ty = c.ty()?;
    if !ty.integer() || ty.bits() < 32 {
        return unsupported(ty);
    }
    c.arity(3..=3)?;
    let d = lw.dst(c.op(0)?, ty)?;
    let (a, b) = (lw.src(c.op(1)?, ty)?, lw.src(c.op(2)?, ty)?);
    lw.emit(Op::Carry { d, a, b, subtract, use_carry, set_carry: c.mods.has("cc"), bits: ty.bits() });
    Ok(())
}

fn arith<'t>(lw: &mut Lw<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    if is_directed_double(c) {
        return doubles(lw, c);
    }
    let subtract = c.head.starts_with("sub");
    if c.head.ends_with('c') || c.mods.has("cc") {
        return carry(lw, c, subtract, c.head.ends_with('c'));
    }
    let ty = c.ty()?;
    if let Some(from) = c.mods.ty(1) {
        // add.f32.bf16: the first source is widened, exactly.
        c.arity(3..=3)?;
        let a = widen(lw, c.op(1)?, from, ty)?;
        let Some(f) = float::two(c.head, ty, mode(c)?) else {
            return unsupported(ty);
        };
        let d = lw.dst(c.op(0)?, ty)?;
        let b = lw.src(c.op(2)?, ty)?;
        lw.emit(Op::Alu2 { f, d, a, b });
        return Ok(());
    }
    if c.mods.has("sat") && ty.integer() {
        return emit2(lw, c, &format!("{}.sat", c.head), ty, ty, ty);
    }
    emit2(lw, c, c.head, ty, ty, ty)
}

fn widen<'t>(lw: &mut Lw<'_, 't>, op: &Operand<'t>, from: Ty, to: Ty) -> Result<u32, String> {
    if to != Ty::F32 || !matches!(from, Ty::F16 | Ty::Bf16) {
        return unsupported(from);
    }
    let a = lw.src(op, from)?;
    let d = lw.temporary();
    let how = Box::new(super::convert::plain(to, from, 32));
    lw.emit(Op::Cvt { how, d, a, b: SINK, packed: false });
    Ok(d)
}

fn width_of_mul(c: &Call<'_, '_>, ty: Ty) -> (String, Ty) {
    let wide = match ty {
        Ty::U16 => Ty::U32,
        Ty::S16 => Ty::S32,
        Ty::U32 => Ty::U64,
        _ => Ty::S64,
    };
    for how in ["lo", "hi", "wide"] {
        if c.mods.has(how) {
            return (format!("{}.{how}", c.head), if how == "wide" { wide } else { ty });
        }
    }
    (c.head.to_owned(), ty)
}

fn mul<'t>(lw: &mut Lw<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    if is_directed_double(c) {
        return doubles(lw, c);
    }
    let ty = c.ty()?;
    let (op, d) = width_of_mul(c, ty);
    emit2(lw, c, &op, ty, d, ty)
}

fn mad<'t>(lw: &mut Lw<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    if is_directed_double(c) {
        return doubles(lw, c);
    }
    let ty = c.ty()?;
    if ty.float() {
        return emit3(lw, c, "fma", ty, [ty; 4]);
    }
    if c.head == "madc" || c.mods.has("cc") {
        // The product first, then an addition with carry.
        let op = if c.mods.has("hi") { "mul.hi" } else { "mul.lo" };
        let Some(f) = int::two(op, ty) else {
            return unsupported(ty);
        };
        c.arity(4..=4)?;
        let (a, b) = (lw.src(c.op(1)?, ty)?, lw.src(c.op(2)?, ty)?);
        let product = lw.temporary();
        lw.emit(Op::Alu2 { f, d: product, a, b });
        let d = lw.dst(c.op(0)?, ty)?;
        let b = lw.src(c.op(3)?, ty)?;
        let (use_carry, set_carry) = (c.head == "madc", c.mods.has("cc"));
        lw.emit(Op::Carry { d, a: product, b, subtract: false, use_carry, set_carry, bits: ty.bits() });
        return Ok(());
    }
    if c.mods.has("sat") {
        let (true, Some(mul), Some(add)) =
            (ty == Ty::S32 && c.mods.has("hi"), int::two("mul.hi", ty), int::two("add.sat", ty))
        else {
            return Err(".sat exists for .hi.s32 only".to_owned());
        };
        c.arity(4..=4)?;
        let (a, b, e) = (lw.src(c.op(1)?, ty)?, lw.src(c.op(2)?, ty)?, lw.src(c.op(3)?, ty)?);
        let (d, product) = (lw.dst(c.op(0)?, ty)?, lw.temporary());
        lw.emit(Op::Alu2 { f: mul, d: product, a, b });
        lw.emit(Op::Alu2 { f: add, d, a: product, b: e });
        return Ok(());
    }
    let (op, d) = width_of_mul(c, ty);
    emit3(lw, c, &op, ty, [d, ty, ty, d])
}

fn fma<'t>(lw: &mut Lw<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    if is_directed_double(c) {
        return doubles(lw, c);
    }
    let ty = c.ty()?;
    if let Some(from) = c.mods.ty(1) {
        c.arity(4..=4)?;
        let (a, b) = (widen(lw, c.op(1)?, from, ty)?, widen(lw, c.op(2)?, from, ty)?);
        let Some(f) = float::three("fma", ty, mode(c)?) else {
            return unsupported(ty);
        };
        let d = lw.dst(c.op(0)?, ty)?;
        let e = lw.src(c.op(3)?, ty)?;
        lw.emit(Op::Alu3 { f, d, a, b, c: e });
        return Ok(());
    }
    emit3(lw, c, "fma", ty, [ty; 4])
}

/// `fma.oob`: the result is zero where a factor is 0x7ff7 of either sign, the NaN with which tensor copies fill
/// out-of-bounds elements.
fn fma_oob<'t>(lw: &mut Lw<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    let ty = c.ty()?;
    let packed = matches!(ty, Ty::F16x2 | Ty::Bf16x2);
    if !packed && !matches!(ty, Ty::F16 | Ty::Bf16) {
        return unsupported(ty);
    }
    let mut found = Vec::new();
    for n in 1..=2 {
        let a = lw.src(c.op(n)?, ty)?;
        let t = lw.temporary();
        let half = |v: u64| if v & 0x7fff == 0x7ff7 { 0 } else { 0xffff };
        let f = crate::lanes::Pure::new(move |a, _, _| half(a) | half(a >> 16) << 16);
        lw.emit(Op::Pure { f, d: t, s: [a; 3] });
        found.push(t);
    }
    let d = lw.dst(c.op(0)?, ty)?;
    if d == SINK {
        return Ok(());
    }
    let both = lw.temporary();
    lw.emit(Op::Alu2 { f: crate::lanes::l2!(|a, b| a & b), d: both, a: found[0], b: found[1] });
    emit3(lw, c, "fma", ty, [ty; 4])?;
    lw.emit(Op::Alu2 { f: crate::lanes::l2!(|a, b| a & b), d, a: d, b: both });
    Ok(())
}

fn div<'t>(lw: &mut Lw<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    if is_directed_double(c) {
        return doubles(lw, c);
    }
    let (ty, approx) = (c.ty()?, c.mods.get("approx"));
    if ty != Ty::F32 || approx.is_none() {
        return two(lw, c);
    }
    c.arity(3..=3)?;
    let f = float::divide(approx == Some("full"), c.mods.has("ftz"));
    let d = lw.dst(c.op(0)?, ty)?;
    let (a, b) = (lw.src(c.op(1)?, ty)?, lw.src(c.op(2)?, ty)?);
    lw.emit(Op::Alu2 { f, d, a, b });
    Ok(())
}

fn minmax<'t>(lw: &mut Lw<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    let ty = c.ty()?;
    let count = if c.operands.len() == 4 && ty == Ty::F32 { 3 } else { 2 };
    let (abs, sign) = (c.mods.has("abs"), c.mods.has("xorsign"));
    if sign && (!abs || count == 3) || abs && !ty.float() || abs && count == 2 && !sign {
        return Err(".xorsign.abs is for two floating-point sources, .abs alone for three".to_owned());
    }
    let relu = c.mods.has("relu");
    if relu && !matches!(ty, Ty::S32 | Ty::S16x2) {
        return Err(".relu exists for .s32 and .s16x2 only".to_owned());
    }
    let f = if ty.float() { float::two(c.head, ty, mode(c)?) } else { int::two(c.head, ty) };
    let Some(f) = f else { return unsupported(ty) };
    c.arity(count + 1..=count + 1)?;
    let mut plain = Vec::new();
    let mut s = Vec::new();
    for i in 1..=count {
        let a = lw.src(c.op(i)?, ty)?;
        plain.push(a);
        s.push(a);
        if abs {
            let Some(f) = float::one("abs", ty, mode(c)?) else { return unsupported(ty) };
            let d = lw.temporary();
            lw.emit(Op::Alu1 { f, d, a });
            s[i - 1] = d;
        }
    }
    let d = lw.dst(c.op(0)?, ty)?;
    if count == 3 {
        let t = lw.temporary();
        lw.emit(Op::Alu2 { f, d: t, a: s[0], b: s[1] });
        lw.emit(Op::Alu2 { f, d, a: t, b: s[2] });
        return Ok(());
    }
    let (a, b) = (s[0], s[1]);
    if sign {
        let Some(f2) = xorsign(ty) else { return unsupported(ty) };
        let t = lw.temporary();
        lw.emit(Op::Alu2 { f, d: t, a, b });
        lw.emit(Op::Pure { f: f2, d, s: [t, plain[0], plain[1]] });
    } else if relu {
        let Some(max) = int::two("max", ty) else { return unsupported(ty) };
        let t = lw.temporary();
        lw.emit(Op::Alu2 { f, d: t, a, b });
        let zero = lw.constant(0);
        lw.emit(Op::Alu2 { f: max, d, a: t, b: zero });
    } else {
        lw.emit(Op::Alu2 { f, d, a, b });
    }
    Ok(())
}

fn logic<'t>(lw: &mut Lw<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    let ty = c.ty()?;
    if ty != Ty::Pred {
        return if c.head == "not" { one(lw, c) } else { two(lw, c) };
    }
    // Bit 2a + b of the table.
    let (table, n) = match c.head {
        "and" => (0b1000, 3),
        "or" => (0b1110, 3),
        "xor" => (0b0110, 3),
        _ => (0b0011, 2),
    };
    c.arity(n..=n)?;
    let d = lw.pred_dst(c.op(0)?)?;
    let a = lw.pred(c.op(1)?)?;
    let b = if n == 3 { lw.pred(c.op(2)?)? } else { Pred::ALWAYS };
    lw.emit(Op::Truth { d, a, b, table });
    Ok(())
}

fn shift<'t>(lw: &mut Lw<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    let ty = c.ty()?;
    emit2(lw, c, c.head, ty, ty, Ty::U32)
}

fn funnel<'t>(lw: &mut Lw<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    let dir = if c.mods.has("l") { "l" } else { "r" };
    let how = if c.mods.has("clamp") { "clamp" } else { "wrap" };
    emit3(lw, c, &format!("shf.{dir}.{how}"), Ty::B32, [Ty::B32; 4])
}

fn bmsk<'t>(lw: &mut Lw<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    let op = if c.mods.has("clamp") { "bmsk.clamp" } else { "bmsk.wrap" };
    emit2(lw, c, op, Ty::B32, Ty::B32, Ty::B32)
}

fn bfe<'t>(lw: &mut Lw<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    let ty = c.ty()?;
    emit3(lw, c, "bfe", ty, [ty, ty, Ty::U32, Ty::U32])
}

fn bfi<'t>(lw: &mut Lw<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    let ty = c.ty()?;
    c.arity(5..=5)?;
    let d = lw.dst(c.op(0)?, ty)?;
    let s = [
        lw.src(c.op(1)?, ty)?,
        lw.src(c.op(2)?, ty)?,
        lw.src(c.op(3)?, Ty::U32)?,
        lw.src(c.op(4)?, Ty::U32)?,
    ];
    lw.emit(Op::Bfi { d, s, bits: ty.bits() });
    Ok(())
}

fn dp4a<'t>(lw: &mut Lw<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    let (Some(a), Some(b)) = (c.mods.ty(0), c.mods.ty(1)) else {
        return unsupported(c.ty()?);
    };
    emit3(lw, c, &format!("dp4a.{}.{}", a.text(), b.text()), Ty::U32, [Ty::B32; 4])
}

fn prmt<'t>(lw: &mut Lw<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    for m in ["f4e", "b4e", "rc8", "ecl", "ecr", "rc16"] {
        if c.mods.has(m) {
            let Some(f) = int::prmt_mode(m) else {
                return unsupported(Ty::B32);
            };
            c.arity(4..=4)?;
            let d = lw.dst(c.op(0)?, Ty::B32)?;
            let s = [1, 2, 3].map(|i| c.op(i).and_then(|o| lw.src(o, Ty::B32)));
            let [a, b, e] = s;
            lw.emit(Op::Alu3 { f, d, a: a?, b: b?, c: e? });
            return Ok(());
        }
    }
    c.arity(4..=4)?;
    let d = lw.dst(c.op(0)?, Ty::B32)?;
    let s = [lw.src(c.op(1)?, Ty::B32)?, lw.src(c.op(2)?, Ty::B32)?, lw.src(c.op(3)?, Ty::B32)?];
    lw.emit(Op::Permute { d, s });
    Ok(())
}

fn lop3<'t>(lw: &mut Lw<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    let combine = c.mods.has("or") || c.mods.has("and");
    c.arity(if combine { 6..=6 } else { 5..=5 })?;
    let (d, p) = match c.op(0)? {
        Operand::Pair(d, p) => (lw.dst(d, Ty::B32)?, lw.pred_dst(p)?),
        d => (lw.dst(d, Ty::B32)?, SINK),
    };
    let s = [lw.src(c.op(1)?, Ty::B32)?, lw.src(c.op(2)?, Ty::B32)?, lw.src(c.op(3)?, Ty::B32)?];
    let Operand::Int(table) = c.op(4)? else {
        return Err("the look-up table must be an immediate".to_owned());
    };
    let with = if combine { Some((c.mods.has("and"), lw.pred(c.op(5)?)?)) } else { None };
    lw.emit(Op::Lop3 { d, s, table: *table as u8, p, combine: with });
    Ok(())
}
