//! Tensor memory and the fifth-generation tensor cores (ISA section 9.7.16).

use super::memory::space;
use super::{Call, Form, Lower, LowerFn};
use crate::engine::collector::{Action, Buffer, Usage};
use crate::engine::idesc::{CtaGroup, MmaKind, ScaleVec};
use crate::engine::tmem::{CpDecompress, CpShape, LdStShape};
use crate::isa::Ty;
use crate::lanes::{float, int};
use crate::parse::ast::Operand;
use crate::program::{Fence, MatrixA, Mma, Op, SINK, Slot, TcAccess, TcReduce};

pub(super) const FORMS: &[Form<LowerFn>] = &[
    Form { form: "tcgen05.alloc group .sync .aligned shared? .b32", section: "9.7.16.7.1", lower: alloc },
    Form { form: "tcgen05.dealloc group .sync .aligned .b32", section: "9.7.16.7.1", lower: dealloc },
    Form {
        form: "tcgen05.relinquish_alloc_permit group .sync .aligned",
        section: "9.7.16.7.1",
        lower: relinquish,
    },
    Form { form: "tcgen05.ld .sync .aligned tshape tnum .pack::16b? .b32", section: "9.7.16.8.3", lower: ld },
    Form {
        form: "tcgen05.ld.red .sync .aligned .32x32b|.16x32bx2 tnum .min|.max .abs? nan? .f32|.u32|.s32",
        section: "9.7.16.8.3",
        lower: ld_red,
    },
    Form {
        form: "tcgen05.st .sync .aligned tshape tnum .unpack::16b? .b32",
        section: "9.7.16.8.4",
        lower: st,
    },
    Form {
        form: "tcgen05.wait::ld .sync .aligned",
        section: "9.7.16.8.5",
        lower: |lw, _| done(lw, Op::TcWait { load: true }),
    },
    Form {
        form: "tcgen05.wait::st .sync .aligned",
        section: "9.7.16.8.5",
        lower: |lw, _| done(lw, Op::TcWait { load: false }),
    },
    Form { form: "tcgen05.cp group cpshape cpmcast? cpfmt*", section: "9.7.16.9.2", lower: cp },
    Form { form: "tcgen05.shift group .down", section: "9.7.16.9.3", lower: shift },
    Form {
        form: "tcgen05.mma group kind .block_scale? scalevec? .ashift? collector?",
        section: "9.7.16.10.9.1",
        lower: mma,
    },
    Form {
        form: "tcgen05.mma.sp group kind .block_scale? scalevec? .ashift? collector?",
        section: "9.7.16.10.9.2",
        lower: mma,
    },
    Form { form: "tcgen05.mma.ws .cta_group::1 kind collector?", section: "9.7.16.10.9.3", lower: mma },
    Form { form: "tcgen05.mma.ws.sp .cta_group::1 kind collector?", section: "9.7.16.10.9.4", lower: mma },
    Form {
        form: "tcgen05.fence::before_thread_sync",
        section: "9.7.16.11.1",
        lower: |lw, _| done(lw, Op::Fence(Fence::TensorBefore)),
    },
    Form {
        form: "tcgen05.fence::after_thread_sync",
        section: "9.7.16.11.1",
        lower: |lw, _| done(lw, Op::Fence(Fence::TensorAfter)),
    },
    Form {
        form: "tcgen05.commit group .mbarrier::arrive::one shared? .multicast::cluster? .b64",
        section: "9.7.16.12.1",
        lower: commit,
    },
];

fn done(lw: &mut Lower<'_, '_>, op: Op) -> Result<(), String> {
    lw.emit(op);
    Ok(())
}

/// Whether the instruction is for a CTA pair. All of a kernel's must agree.
fn pair(lw: &mut Lower<'_, '_>, c: &Call<'_, '_>) -> Result<bool, String> {
    let pair = c.mods.has("cta_group::2");
    match lw.cta_pair.replace(pair) {
        Some(p) if p != pair => {
            Err("all tcgen05 instructions of a kernel must name the same .cta_group".to_owned())
        }
        _ => Ok(pair),
    }
}

fn alloc<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(2..=2)?;
    let symbol = lw.addr_symbol(c.op(0)?);
    let space = space(c.mods, symbol);
    let dst = lw.addr(c.op(0)?)?;
    let columns = lw.src(c.op(1)?, Ty::U32)?;
    let pair = pair(lw, c)?;
    done(lw, Op::TcAlloc { dst, space, columns, pair })
}

fn dealloc<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(2..=2)?;
    let at = lw.src(c.op(0)?, Ty::B32)?;
    let columns = lw.src(c.op(1)?, Ty::U32)?;
    let pair = pair(lw, c)?;
    done(lw, Op::TcDealloc { at, columns, pair })
}

fn relinquish<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    let pair = pair(lw, c)?;
    done(lw, Op::TcRelinquish { pair })
}

fn shape(c: &Call<'_, '_>) -> Result<(LdStShape, u32), String> {
    let shape = match c.mods.get("tshape") {
        Some("32x32b") => LdStShape::S32x32b,
        Some("16x64b") => LdStShape::S16x64b,
        Some("16x128b") => LdStShape::S16x128b,
        Some("16x256b") => LdStShape::S16x256b,
        _ => LdStShape::S16x32bx2,
    };
    let repeat: u32 = c.mods.get("tnum").and_then(|n| n[1..].parse().ok()).unwrap_or(1);
    if repeat > shape.max_repeat() {
        return Err(format!("x{repeat} is too many for this shape (at most x{})", shape.max_repeat()));
    }
    Ok((shape, repeat))
}

fn check_registers(shape: LdStShape, repeat: u32, found: usize) -> Result<(), String> {
    let want = shape.registers(repeat);
    if found as u32 == want { Ok(()) } else { Err(format!("{want} registers are needed, found {found}")) }
}

fn split(c: &Call<'_, '_>, shape: LdStShape, n: usize) -> Result<u32, String> {
    match (shape, c.operands.get(n)) {
        (LdStShape::S16x32bx2, Some(Operand::Int(v))) => Ok(*v as u32),
        (LdStShape::S16x32bx2, _) => Err("16x32bx2 needs an immediate half split offset".to_owned()),
        _ => Ok(0),
    }
}

fn ld<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(2..=3)?;
    let (shape, repeat) = shape(c)?;
    let items = lw.elements(c.op(0)?);
    check_registers(shape, repeat, items.len())?;
    let dst = items.iter().map(|o| lw.dst(o, Ty::B32)).collect::<Result<Vec<_>, _>>()?;
    let at = lw.addr(c.op(1)?)?;
    let split = split(c, shape, 2)?;
    let packed = c.mods.has("pack::16b");
    done(
        lw,
        Op::TcLoad { access: TcAccess { at, shape, repeat, packed, split }, dst: dst.into(), reduce: None },
    )
}

/// A load that also reduces the values that each thread gets, for sm_103a and sm_110a.
fn ld_red<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(3..=4)?;
    let shape = if c.mods.has("32x32b") { LdStShape::S32x32b } else { LdStShape::S16x32bx2 };
    let repeat: u32 = c.mods.get("tnum").and_then(|n| n[1..].parse().ok()).unwrap_or(1);
    let ty = match () {
        () if c.mods.has("f32") => Ty::F32,
        () if c.mods.has("u32") => Ty::U32,
        () => Ty::S32,
    };
    let (abs, nan) = (c.mods.has("abs"), c.mods.has("NaN"));
    if ty != Ty::F32 && (abs || nan) {
        return Err(".abs and .NaN exist for .f32 only".to_owned());
    }
    let op = if c.mods.has("min") { "min" } else { "max" };
    let f = match ty {
        Ty::F32 => float::two(op, ty, float::Mode { nan, ..float::Mode::default() }),
        _ => int::two(op, ty),
    };
    let Some(f) = f else { return Err(format!(".{op} of .{} is not supported", ty.text())) };
    let items = lw.elements(c.op(0)?);
    check_registers(shape, repeat, items.len())?;
    if repeat < 2 {
        return Err("a reduction takes two columns at least".to_owned());
    }
    let mut dst = items.iter().map(|o| lw.dst(o, Ty::B32)).collect::<Result<Vec<_>, _>>()?;
    dst.push(lw.dst(c.op(1)?, ty)?);
    let at = lw.addr(c.op(2)?)?;
    let split = split(c, shape, 3)?;
    let reduce = Some(TcReduce { f, abs });
    done(
        lw,
        Op::TcLoad { access: TcAccess { at, shape, repeat, packed: false, split }, dst: dst.into(), reduce },
    )
}

fn st<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(2..=3)?;
    let (shape, repeat) = shape(c)?;
    let at = lw.addr(c.op(0)?)?;
    let split = split(c, shape, 1)?;
    let Some(last) = c.operands.last() else {
        return Err("operands are missing".to_owned());
    };
    let items = lw.elements(last);
    check_registers(shape, repeat, items.len())?;
    let src = items.iter().map(|o| lw.src(o, Ty::B32)).collect::<Result<Vec<_>, _>>()?;
    let packed = c.mods.has("unpack::16b");
    done(lw, Op::TcStore { access: TcAccess { at, shape, repeat, packed, split }, src: src.into() })
}

fn cp<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(2..=2)?;
    let shape = match (c.mods.get("cpshape"), c.mods.get("cpmcast")) {
        (Some("128x256b"), None) => CpShape::S128x256b,
        (Some("128x128b"), None) => CpShape::S128x128b,
        (Some("4x256b"), None) => CpShape::S4x256b,
        (Some("64x128b"), Some("warpx2::02_13")) => CpShape::S64x128bWarpx2At02And13,
        (Some("64x128b"), Some("warpx2::01_23")) => CpShape::S64x128bWarpx2At01And23,
        (Some("32x128b"), Some("warpx4")) => CpShape::S32x128bWarpx4,
        _ => return Err("this shape and multicast do not go together".to_owned()),
    };
    let decompress = if c.mods.has("b4x16_p64") {
        Some(CpDecompress::B4x16P64)
    } else if c.mods.has("b6x16_p32") {
        Some(CpDecompress::B6x16P32)
    } else {
        None
    };
    if decompress.is_some() != c.mods.has("b8x16") {
        return Err("decompression is .b8x16 with .b4x16_p64 or .b6x16_p32".to_owned());
    }
    let at = lw.addr(c.op(0)?)?;
    let desc = lw.src(c.op(1)?, Ty::B64)?;
    let pair = pair(lw, c)?;
    done(lw, Op::TcCopy { at, desc, shape, decompress, pair })
}

fn shift<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(1..=1)?;
    let at = lw.addr(c.op(0)?)?;
    let pair = pair(lw, c)?;
    done(lw, Op::TcShift { at, pair })
}

fn scale_vec(kind: MmaKind, text: Option<&str>) -> Result<ScaleVec, String> {
    Ok(match (kind, text) {
        (MmaKind::Mxf8f6f4, None | Some("scale_vec::1X" | "block32")) => ScaleVec::X1,
        (MmaKind::Mxf4, None | Some("scale_vec::2X" | "block32")) => ScaleVec::X2,
        (MmaKind::Mxf4nvf4, Some("scale_vec::2X" | "block32")) => ScaleVec::X2,
        (MmaKind::Mxf4nvf4, Some("scale_vec::4X" | "block16")) => ScaleVec::X4,
        (_, None) => return Err("this kind needs a scale vector size".to_owned()),
        (_, Some(t)) => return Err(format!("`.{t}` does not exist for this kind")),
    })
}

/// How an instruction uses a collector buffer. By default it discards the buffer of A, or with `.ws` the first buffer
/// of B.
fn collector(c: &Call<'_, '_>, shift_a: bool, stationary: bool, in_tmem: bool) -> Result<Usage, String> {
    let text = c.mods.get("collector").unwrap_or("");
    let of_a = text.starts_with("collector::a");
    if !text.is_empty() && of_a == stationary {
        return Err(format!("`.{text}` is for {} only", if of_a { "other forms than .ws" } else { ".ws" }));
    }
    if shift_a && (!in_tmem || text.ends_with("::fill") || text.ends_with("::use")) {
        return Err(".ashift takes A from tensor memory, and neither fills nor uses the collector".to_owned());
    }
    let parts = text.strip_prefix("collector::").and_then(|t| t.split_once("::"));
    let (buffer, action) = parts.unwrap_or((if stationary { "b0" } else { "a" }, "discard"));
    let buffer = match buffer.strip_prefix('b').map(str::parse) {
        Some(Ok(n)) => Buffer::B(n),
        Some(Err(_)) | None => Buffer::A,
    };
    let action = match action {
        "fill" => Action::Fill,
        "use" => Action::Use,
        "lastuse" => Action::LastUse,
        _ => Action::Discard,
    };
    Ok(Usage { buffer, action })
}

fn mma<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    let kind = match c.mods.get("kind") {
        Some("kind::f16") => MmaKind::F16,
        Some("kind::tf32") => MmaKind::Tf32,
        Some("kind::f8f6f4") => MmaKind::F8f6f4,
        Some("kind::i8") => MmaKind::I8,
        Some("kind::mxf8f6f4") => MmaKind::Mxf8f6f4,
        Some("kind::mxf4") => MmaKind::Mxf4,
        _ => MmaKind::Mxf4nvf4,
    };
    let pair = pair(lw, c)?;
    let scaled = kind.is_block_scaled();
    if scaled != c.mods.has("block_scale") {
        return Err("`.block_scale` goes with the mx kinds, and only with them".to_owned());
    }
    if !scaled && let Some(t) = c.mods.get("scalevec") {
        return Err(format!("`.{t}` does not exist for this kind"));
    }
    let d = lw.addr(c.op(0)?)?;
    let a = match c.op(1)? {
        op @ Operand::Address(_) => MatrixA::Tmem(lw.addr(op)?),
        op => MatrixA::Smem(lw.src(op, Ty::B64)?),
    };
    let b = lw.src(c.op(2)?, Ty::B64)?;
    let (sparse, stationary) = (c.opcode.contains(".sp."), c.opcode.contains(".mma.ws"));
    let shift_a = c.mods.has("ashift");
    let collector = collector(c, shift_a, stationary, matches!(a, MatrixA::Tmem(_)))?;
    let metadata = if sparse { Some(lw.addr(c.op(3)?)?) } else { None };
    let after = 3 + usize::from(sparse);
    let idesc = lw.src(c.op(after)?, Ty::B32)?;
    let mut next = after + 1;
    let mut scales = None;
    let mut lane_mask: Vec<Slot> = Vec::new();
    if scaled {
        let vec = scale_vec(kind, c.mods.get("scalevec"))?;
        scales = Some((lw.addr(c.op(next)?)?, lw.addr(c.op(next + 1)?)?, vec));
        next += 2;
    } else if let Operand::Vector(items) = c.op(next)?
        && !stationary
    {
        let want = if pair { 8 } else { 4 };
        if items.len() != want {
            return Err(format!("the lane mask has {} registers, {want} are needed", items.len()));
        }
        lane_mask = items.iter().map(|o| lw.src(o, Ty::B32)).collect::<Result<_, _>>()?;
        next += 1;
    }
    let enable_d = lw.pred(c.op(next)?)?;
    let (mut scale_d, mut zero_columns) = (SINK, SINK);
    match c.operands.get(next + 1) {
        Some(o) if stationary => zero_columns = lw.src(o, Ty::B64)?,
        Some(o) => scale_d = lw.src(o, Ty::U32)?,
        None => {}
    }
    c.arity(0..=next + 2)?;
    if scale_d != SINK && !matches!(kind, MmaKind::F16 | MmaKind::Tf32) {
        return Err("scale-input-d exists for the f16 and tf32 kinds only".to_owned());
    }
    if let Some(chip) = lw.target.filter(|_| scale_d != SINK) {
        chip.scale_input_d()?;
    }
    let group = if pair { CtaGroup::Two } else { CtaGroup::One };
    let mma = Mma {
        kind,
        group,
        d,
        a,
        b,
        idesc,
        scales,
        lane_mask: lane_mask.into(),
        enable_d,
        scale_d,
        metadata,
        stationary,
        zero_columns,
        shift_a,
        collector,
    };
    done(lw, Op::TcMma(Box::new(mma)))
}

fn commit<'t>(lw: &mut Lower<'_, 't>, c: &Call<'_, 't>) -> Result<(), String> {
    c.arity(1..=2)?;
    let symbol = lw.addr_symbol(c.op(0)?);
    let space = space(c.mods, symbol);
    let at = lw.addr(c.op(0)?)?;
    let mask = if c.mods.has("multicast::cluster") { lw.src(c.op(1)?, Ty::B16)? } else { SINK };
    pair(lw, c)?;
    done(lw, Op::TcCommit { at, space, mask })
}
