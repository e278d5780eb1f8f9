//! Operands of synchronising and asynchronous instructions, traced to where they were computed.

use super::source::{inside, names};
use super::{Collection, Kind};
use crate::parse::ast::Operand;
use std::ops::Range;

/// Steps from a use back to the constants that make it up.
const DEPTH: u32 = 2;

pub(super) fn mutate(out: &mut Collection<'_, '_>, at: usize) {
    let inst = &out.source.insts[at];
    let count = inst.operands.len();
    if inst.is("mbarrier.try_wait") || inst.is("mbarrier.test_wait") {
        address(out, at, 1, Kind::BarrierAddress, 8);
        if inst.has("parity") {
            parity(out, at, 2);
        }
    } else if inst.is("mbarrier.init") {
        address(out, at, 0, Kind::BarrierAddress, 8);
        constant(out, at, 1, Kind::InitCount, &[1]);
    } else if inst.is("mbarrier.arrive") {
        address(out, at, 1, Kind::BarrierAddress, 8);
        if inst.has("expect_tx") {
            constant(out, at, count.wrapping_sub(1), Kind::ExpectBytes, &[16, -16]);
            zero(out, at, count.wrapping_sub(1), Kind::ExpectBytes);
        }
    } else if inst.is("mbarrier.expect_tx") {
        address(out, at, 0, Kind::BarrierAddress, 8);
        constant(out, at, 1, Kind::ExpectBytes, &[16, -16]);
        zero(out, at, 1, Kind::ExpectBytes);
    } else if inst.is("tcgen05.commit") {
        address(out, at, 0, Kind::BarrierAddress, 8);
        if count > 1 {
            constant(out, at, 1, Kind::Multicast, &[-1, -2]);
        }
    } else if inst.is("tcgen05.alloc") {
        address(out, at, 0, Kind::SmemAddress, 4);
        size(out, at);
    } else if inst.is("tcgen05.dealloc") {
        size(out, at);
    } else if inst.is("tcgen05.cp") {
        address(out, at, 0, Kind::TmemAddress, 4);
        descriptor(out, at, 1);
    } else if inst.is("tcgen05.mma") {
        product(out, at);
    } else if inst.is("tcgen05.ld") {
        address(out, at, 1, Kind::TmemAddress, 1);
    } else if inst.is("tcgen05.st") {
        address(out, at, 0, Kind::TmemAddress, 1);
    } else if inst.is("cp.async.bulk.wait_group")
        || inst.is("cp.async.wait_group")
        || inst.is("wgmma.wait_group")
    {
        constant(out, at, 0, Kind::GroupWait, &[1]);
    } else if inst.is("cp.async.bulk") && !inst.has("prefetch") {
        copy(out, at);
    } else if inst.is("st.shared") {
        address(out, at, 0, Kind::SmemAddress, 16);
    } else if inst.is("ld.shared") {
        address(out, at, 1, Kind::SmemAddress, 4);
    } else if inst.is("st.global") {
        address(out, at, 0, Kind::GlobalAddress, 16);
    } else if inst.is("ld.global") {
        address(out, at, 1, Kind::GlobalAddress, 4);
    }
}

fn copy(out: &mut Collection<'_, '_>, at: usize) {
    let source = out.source;
    let inst = &source.insts[at];
    let to_shared = inst.operands.get(1).is_some() && !inst.opcode.contains("global.shared::cta");
    let (near, far) = if to_shared { (0, 1) } else { (1, 0) };
    address(out, at, near, Kind::SmemAddress, 128);
    if inst.has("tensor") {
        let Some((range, Operand::Address(parts))) = inst.operands.get(far) else { return };
        let ranges = inside(source.text, range);
        if let (Some(r), Some(Operand::Vector(list))) = (ranges.get(1), parts.get(1)) {
            for (r, o) in inside(source.text, r).into_iter().zip(list) {
                traced(out, at, &r, o, Kind::Coordinate, &[1]);
            }
        }
    } else {
        address(out, at, far, Kind::GlobalAddress, 16);
        constant(out, at, 2, Kind::GlobalAddress, &[16, -16]);
    }
    if to_shared {
        address(out, at, if inst.has("tensor") { 2 } else { 3 }, Kind::BarrierAddress, 8);
    }
    if inst.has("L2::cache_hint") || inst.opcode.contains("cache_hint") {
        constant(out, at, inst.operands.len() - 1, Kind::Hint, &[1 << 52]);
    }
}

/// `tcgen05.mma [d], a, b, idesc, ...`: with block scales the addresses of both; then whether to add.
fn product(out: &mut Collection<'_, '_>, at: usize) {
    let source = out.source;
    let inst = &source.insts[at];
    address(out, at, 0, Kind::TmemAddress, 4);
    for operand in [1, 2] {
        match inst.operands.get(operand) {
            Some((_, Operand::Address(_))) => address(out, at, operand, Kind::TmemAddress, 4),
            Some(_) => descriptor(out, at, operand),
            None => {}
        }
    }
    if let [_, (a, x), (b, y), ..] = inst.operands.as_slice()
        && std::mem::discriminant(x) == std::mem::discriminant(y)
    {
        let text = |r: &Range<usize>| source.text[r.clone()].to_owned();
        out.replace(Kind::Swap, at, a.start..b.end, format!("{}, {}", text(b), text(a)), "A and B swapped");
    }
    instruction_descriptor(out, at, 3);
    for operand in 4..inst.operands.len() {
        if matches!(inst.operands[operand].1, Operand::Address(_)) {
            address(out, at, operand, Kind::TmemAddress, 4);
        }
    }
    if let (Some((a, Operand::Address(_))), Some((b, Operand::Address(_)))) =
        (inst.operands.get(4), inst.operands.get(5))
    {
        let text = |r: &Range<usize>| source.text[r.clone()].to_owned();
        out.replace(Kind::Swap, at, a.start..b.end, format!("{}, {}", text(b), text(a)), "scales swapped");
    }
    accumulate(out, at);
    for (from, to) in
        [("::fill", "::lastuse"), ("::lastuse", "::fill"), ("::fill", "::use"), ("::lastuse", "::discard")]
    {
        for operand in ["collector::a", "collector::b0"] {
            if inst.opcode.contains(&format!("{operand}{from}")) {
                let new = inst.opcode.replace(&format!("{operand}{from}"), &format!("{operand}{to}"));
                let change = format!("{operand}{to}");
                out.replace(Kind::Collector, at, inst.opcode_span.clone(), new, change);
            }
        }
    }
}

/// The predicate after the descriptor and scales: a constant, or what was compared for it.
fn accumulate(out: &mut Collection<'_, '_>, at: usize) {
    let source = out.source;
    let inst = &source.insts[at];
    let Some((range, operand)) = inst
        .operands
        .iter()
        .skip(4)
        .find(|(_, o)| matches!(o, Operand::Int(_) | Operand::Name(_) | Operand::Not(_)))
    else {
        return;
    };
    match operand {
        Operand::Int(v) => {
            let new = u32::from(*v == 0).to_string();
            out.replace(Kind::Accumulate, at, range.clone(), new, "accumulation inverted");
        }
        _ => {
            let name = &source.text[range.clone()];
            let new = name.strip_prefix('!').map_or_else(|| format!("!{name}"), str::to_owned);
            out.replace(Kind::Accumulate, at, range.clone(), new, "accumulation inverted");
            out.replace(Kind::Accumulate, at, range.clone(), "1", "always accumulates");
            out.replace(Kind::Accumulate, at, range.clone(), "0", "never accumulates");
        }
    }
}

/// Each of the 32 bits.
fn instruction_descriptor(out: &mut Collection<'_, '_>, at: usize, operand: usize) {
    let source = out.source;
    let Some((range, o)) = source.insts[at].operands.get(operand) else { return };
    let flip = |out: &mut Collection<'_, '_>, i: usize, range: &Range<usize>, v: u64| {
        for bit in 0..32 {
            let new = format!("{:#010x}", (v ^ (1 << bit)) & 0xffff_ffff);
            out.replace(Kind::InstructionDescriptor, i, range.clone(), new, format!("bit {bit} flipped"));
        }
    };
    match o {
        Operand::Int(v) => flip(out, at, range, *v),
        Operand::Name(name) => {
            for i in source.slice(at, name, DEPTH) {
                for (range, o) in source.insts[i].operands.iter().skip(1) {
                    if let Operand::Int(v) = o {
                        flip(out, i, range, *v);
                    }
                }
            }
        }
        _ => {}
    }
}

/// Fields of a matrix descriptor (PTX ISA, `tcgen05` matrix descriptor): the step in its lower word, and in its
/// upper one the stride (bits 32 to 45), the version (46 to 48) and the swizzle (61 to 63).
fn descriptor(out: &mut Collection<'_, '_>, at: usize, operand: usize) {
    let source = out.source;
    let Some((_, Operand::Name(name))) = source.insts[at].operands.get(operand) else { return };
    let fields = [
        (0, "stride"),
        (1, "stride"),
        (6, "stride"),
        (14, "version"),
        (17, "base offset"),
        (20, "relative mode"),
        (29, "swizzle"),
        (30, "swizzle"),
        (31, "swizzle"),
    ];
    for i in source.slice(at, name, 3) {
        let inst = &source.insts[i];
        for (range, o) in inst.operands.iter().skip(1) {
            match o {
                Operand::Vector(list) => {
                    if let (Some(Operand::Int(high)), Some(range)) =
                        (list.get(1), inside(source.text, range).get(1))
                    {
                        for (bit, field) in fields {
                            let new = format!("{:#010x}", high ^ (1 << bit));
                            let change = format!("{field}: bit {} flipped", bit + 32);
                            out.replace(Kind::Descriptor, i, range.clone(), new, change);
                        }
                    }
                }
                Operand::Int(v) if *v >> 32 != 0 && !inst.is("and") => {
                    for (bit, field) in fields {
                        let new = format!("{:#018x}", v ^ (1 << (bit + 32)));
                        let change = format!("{field}: bit {} flipped", bit + 32);
                        out.replace(Kind::Descriptor, i, range.clone(), new, change);
                    }
                }
                Operand::Int(v) if inst.is("add") || inst.is("mad") || inst.is("mul") => {
                    offset(out, i, range, *v, Kind::Descriptor, &[2]);
                }
                _ => {}
            }
        }
    }
}

/// Columns of an allocation: half and twice as many.
fn size(out: &mut Collection<'_, '_>, at: usize) {
    if let Some((range, Operand::Int(v))) = out.source.insts[at].operands.last() {
        for new in [v / 2, v * 2] {
            let change = format!("{v} columns to {new}");
            out.replace(Kind::Allocation, at, range.clone(), new.to_string(), change);
        }
    }
}

/// The other parity, at the use and where a register has its first value.
fn parity(out: &mut Collection<'_, '_>, at: usize, operand: usize) {
    let source = out.source;
    let Some((range, o)) = source.insts[at].operands.get(operand) else { return };
    match o {
        Operand::Int(v) => {
            out.replace(Kind::Parity, at, range.clone(), (v ^ 1).to_string(), "parity inverted");
        }
        Operand::Name(name) => {
            for (i, inst) in source.insts.iter().enumerate() {
                if !matches!(inst.operands.first(), Some((_, Operand::Name(n))) if n == name) {
                    continue;
                }
                if inst.is("xor") {
                    out.remove(Kind::Parity, i);
                } else if inst.is("mov")
                    && let Some((range, Operand::Int(v))) = inst.operands.get(1)
                {
                    out.replace(Kind::Parity, i, range.clone(), (v ^ 1).to_string(), "first parity inverted");
                }
            }
        }
        _ => {}
    }
}

/// An address in brackets: its offset, and the constants that its register was computed from.
fn address(out: &mut Collection<'_, '_>, at: usize, operand: usize, kind: Kind, step: i64) {
    let source = out.source;
    let Some((range, Operand::Address(parts))) = source.insts[at].operands.get(operand) else {
        return constant(out, at, operand, kind, &[step]);
    };
    let (Some(range), Some(first)) = (inside(source.text, range).into_iter().next(), parts.first()) else {
        return;
    };
    match first {
        Operand::Offset(name, v) => {
            let new = format!("{name} + {}", v + step);
            out.replace(kind, at, range, new, format!("offset {v} to {}", v + step));
        }
        o => traced(out, at, &range, o, kind, &[step]),
    }
}

fn constant(out: &mut Collection<'_, '_>, at: usize, operand: usize, kind: Kind, steps: &[i64]) {
    if let Some((range, o)) = out.source.insts[at].operands.get(operand) {
        traced(out, at, range, o, kind, steps);
    }
}

/// A constant operand, or the constants that a register was computed from.
fn traced(
    out: &mut Collection<'_, '_>,
    at: usize,
    range: &Range<usize>,
    o: &Operand<'_>,
    kind: Kind,
    steps: &[i64],
) {
    let source = out.source;
    if let Operand::Int(v) = o {
        return offset(out, at, range, *v, kind, steps);
    }
    for name in names(o) {
        for i in source.slice(at, name, DEPTH) {
            let inst = &source.insts[i];
            if inst.is("and") && matches!(inst.operands.get(2), Some((_, Operand::Int(_)))) {
                let range = inst.operands[2].0.clone();
                out.replace(kind, i, range, "0xffffffff", "mask left out");
            }
            if !["add", "sub", "mul", "mad", "mov"].iter().any(|op| inst.is(op)) {
                continue;
            }
            for (range, o) in inst.operands.iter().skip(1) {
                if let Operand::Int(v) = o {
                    offset(out, i, range, *v, kind, steps);
                }
            }
        }
    }
}

fn offset(out: &mut Collection<'_, '_>, at: usize, range: &Range<usize>, v: u64, kind: Kind, steps: &[i64]) {
    for &step in steps {
        let new = v.wrapping_add_signed(step);
        if step > 0 || v >= step.unsigned_abs() {
            let (new, change) = if v >> 32 == 0 {
                (new.to_string(), format!("{v} to {new}"))
            } else {
                (format!("{new:#x}"), format!("{v:#x} to {new:#x}"))
            };
            out.replace(kind, at, range.clone(), new, change);
        }
    }
}

fn zero(out: &mut Collection<'_, '_>, at: usize, operand: usize, kind: Kind) {
    if let Some((range, Operand::Int(v))) = out.source.insts[at].operands.get(operand) {
        out.replace(kind, at, range.clone(), "0", format!("{v} to 0"));
    }
}
