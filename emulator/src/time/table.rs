//! Issue costs without machine code: a table by opcode.
//!
//! Its numbers are means over what ptxas 13.5 made of the golden kernels and the corpora (book/src/decisions/0080): the
//! machine instructions that are charged to a line, and the clocks that the warp holds for them.

use super::chip::Chip;
use super::cost::{Busy, Cost, Unit};
use super::product::Product;
use crate::program::{CONSTANTS, Inst, Op, Space};

/// Fraction of the ALU and FMA latency that is left where a result is read. In PTX readers follow writers directly;
/// the assembler schedules other work between them.
const EXPOSED: f64 = 0.7;
/// Fraction of the MUFU latency that is left: it is longer, so more work is scheduled in it.
const EXPOSED_MUFU: f64 = 0.5;

/// Cost of an instruction that is not arithmetic, by the first entry whose text begins its opcode: machine
/// instructions, and clocks until the warp's next instruction.
const ISSUE: &[(&str, f64, f64)] = &[
    ("cp.async.bulk.commit", 1.0, 2.0),
    ("cp.async.bulk.wait", 2.0, 6.0),
    ("cp.async.bulk.tensor", 6.0, 10.0),
    ("cp.async.bulk", 4.0, 7.0),
    ("cp.reduce.async.bulk", 6.0, 10.0),
    ("cp.async.commit", 1.0, 3.0),
    ("cp.async.wait", 1.0, 4.0),
    ("cp.async", 2.0, 4.0),
    ("mbarrier.init", 2.0, 4.0),
    ("mbarrier.try_wait", 2.0, 6.0),
    ("mbarrier.test_wait", 2.0, 6.0),
    ("mbarrier.arrive.expect_tx", 2.0, 4.0),
    ("tcgen05.mma", 2.7, 3.3),
    ("tcgen05.commit", 2.0, 3.0),
    ("tcgen05.alloc.cta_group::2", 26.0, 110.0),
    ("tcgen05.alloc", 20.0, 60.0),
    ("tcgen05.dealloc", 17.0, 80.0),
    ("tcgen05.relinquish", 6.0, 20.0),
    ("tcgen05.ld", 1.8, 3.4),
    ("tcgen05.st", 2.5, 6.0),
    ("wgmma.mma", 1.7, 2.7),
    ("wgmma.commit", 0.0, 0.0),
    ("fence.proxy", 4.0, 10.0),
    ("fence.mbarrier", 2.0, 4.0),
    ("fence", 4.0, 14.0),
    ("membar", 4.0, 14.0),
    ("barrier.cluster.arrive", 5.5, 25.0),
    ("barrier.cluster.wait", 3.0, 9.0),
    ("bar.warp", 1.0, 3.0),
    ("bar", 1.0, 4.0),
    ("tensormap", 5.0, 28.0),
    ("setmaxnreg", 2.0, 10.0),
    ("clusterlaunchcontrol", 2.4, 14.0),
    ("griddepcontrol", 1.0, 3.5),
    ("prefetch", 3.0, 5.0),
    ("st.global", 1.8, 4.0),
    ("ld.global", 1.5, 4.0),
    ("st.shared::cluster", 5.0, 8.5),
    ("st.shared", 1.5, 3.0),
    ("ld.shared", 1.1, 4.0),
    ("ld.local", 4.0, 7.0),
    ("ldmatrix", 1.0, 2.6),
    ("stmatrix", 1.0, 2.0),
    ("atom", 3.4, 11.0),
    ("redux", 2.4, 10.0),
    ("red", 3.0, 10.0),
    ("elect", 0.5, 2.2),
    ("shfl", 0.9, 2.3),
    ("match", 2.0, 7.0),
    ("brx", 5.0, 20.0),
    ("bra", 1.2, 5.0),
    ("ret", 0.5, 2.5),
    ("call", 0.5, 2.5),
    ("st.param", 0.3, 0.8),
];

/// Machine instructions of an opcode that is not arithmetic, and clocks.
fn issue(opcode: &str) -> (f64, f64) {
    let found = ISSUE.iter().find(|(begins, ..)| opcode.starts_with(begins));
    found.map_or((1.0, 1.5), |&(_, slots, clocks)| (slots, clocks))
}

/// Kinds of arithmetic, by the opcode.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Arithmetic {
    Folded,
    Alu(f64),
    Fma(f64),
    /// A multiply-add of integers.
    Imad(f64),
    /// Arithmetic on two numbers of 16 bits each.
    Half(f64),
    Mufu(f64),
    Convert(f64),
    /// A subroutine: division and the like.
    Long(f64),
}

/// The arithmetic of an opcode with its modifiers.
fn arithmetic(opcode: &str) -> Arithmetic {
    let mut parts = opcode.split('.');
    let name = parts.next().unwrap_or("");
    let has = |m: &str| opcode.split('.').skip(1).any(|p| p == m);
    let wide = opcode.ends_with("64");
    let half = has("f16") || has("bf16") || has("f16x2") || has("bf16x2");
    let float = has("f32") || has("f32x2") || half;
    match name {
        "mov" | "cvta" | "mapa" | "getctarank" | "isspacep" => Arithmetic::Folded,
        "ex2" | "lg2" | "sin" | "cos" | "tanh" | "rcp" | "rsqrt" | "sqrt"
            if has("approx") || name == "tanh" =>
        {
            // Without `.ftz` small arguments are scaled.
            let scaled = matches!(name, "ex2" | "lg2" | "rsqrt" | "sqrt") && !has("ftz") && has("f32");
            Arithmetic::Mufu(if scaled { 3.0 } else { 1.0 })
        }
        "div" if has("approx") || has("full") => Arithmetic::Mufu(3.0),
        "div" | "rem" if has("f32") => Arithmetic::Long(8.0),
        "div" | "rem" | "rcp" | "sqrt" | "rsqrt" => Arithmetic::Long(if has("f64") {
            16.0
        } else if wide {
            60.0
        } else {
            18.0
        }),
        "fma" | "mul" | "add" | "sub" if has("f64") => Arithmetic::Fma(2.0),
        "fma" | "mul" | "add" | "sub" if half && !has("f32") => Arithmetic::Half(1.0),
        "fma" | "mul" | "add" | "sub" if float => Arithmetic::Fma(if has("f32x2") { 2.0 } else { 1.0 }),
        // Operands are negated by those who read them.
        "neg" | "abs" if float || has("f64") => Arithmetic::Folded,
        // The addition behind it takes it in.
        "mul" if has("wide") => Arithmetic::Folded,
        "mul" if has("hi") && wide => Arithmetic::Long(6.0),
        "mad" if has("wide") => Arithmetic::Long(2.5),
        "mad" | "mul" | "mul24" | "mad24" | "dp4a" | "dp2a" => Arithmetic::Imad(if wide { 2.0 } else { 1.0 }),
        "cvt" => {
            let of = |p: &str| {
                p.starts_with('f') || p.starts_with("bf") || p.starts_with('e') || p.starts_with("ue")
            };
            let types: Vec<&str> =
                opcode.split('.').skip(1).filter(|p| p.ends_with(|c: char| c.is_ascii_digit())).collect();
            let packed = opcode.contains("x2") || opcode.contains("x4");
            if types.iter().any(|t| of(t)) {
                if packed { Arithmetic::Alu(1.0) } else { Arithmetic::Convert(2.0) }
            } else if types.iter().any(|t| t.ends_with("64")) {
                if types.contains(&"s64") { Arithmetic::Alu(0.7) } else { Arithmetic::Folded }
            } else {
                Arithmetic::Alu(1.0)
            }
        }
        "popc" | "clz" | "brev" | "bfind" => Arithmetic::Convert(2.0),
        "bfe" => Arithmetic::Alu(2.0),
        // Half the bits of an address or a descriptor are constants.
        "and" | "or" | "xor" | "not" | "shl" if wide => Arithmetic::Alu(0.4),
        // Sums and shifts with constants end in addresses, and in each other.
        "add" | "sub" if !wide => Arithmetic::Alu(0.7),
        "shl" => Arithmetic::Alu(0.6),
        _ => Arithmetic::Alu(if wide { 1.4 } else { 1.0 }),
    }
}

/// Whether it is a load, store or atomic of the thread itself, not a copy that continues without it.
fn accesses(opcode: &str) -> bool {
    let mut parts = opcode.split('.');
    match parts.next() {
        Some("ld" | "ldu" | "st" | "atom" | "red") => !parts.any(|part| part == "async"),
        Some("ldmatrix" | "stmatrix" | "prefetch" | "prefetchu") => true,
        Some("wmma") => parts.next() != Some("mma"),
        _ => false,
    }
}

/// The cost of an instruction, without its operands. `special`: it reads a special register. `wgmma`: its program has
/// such products.
pub(super) fn cost(inst: &Inst, opcode: &str, special: bool, wgmma: bool, chip: &Chip) -> Cost {
    let alu = chip.alu_latency.value * EXPOSED;
    let fma = chip.fma_latency.value * EXPOSED;
    let mufu = chip.mufu_latency.value * EXPOSED_MUFU;
    let (unit, slots, count, latency) = match &inst.op {
        Op::Nop => (Unit::Folded, 0.0, 0.0, 0.0),
        Op::Mov { .. } if special => (Unit::Alu, 1.0, 1.0, alu),
        // A descriptor: its constant half is moved anew each time. Uniform registers have a unit of their own.
        Op::Pack { s, .. } if s.iter().any(|s| *s >= CONSTANTS) && s.iter().any(|s| *s < CONSTANTS) => {
            (Unit::Alu, 1.0, 0.0, alu)
        }
        Op::Mov { .. }
        | Op::Pack { .. }
        | Op::Unpack { .. }
        | Op::ToGeneric { .. }
        | Op::FromGeneric { .. } => (Unit::Folded, 0.0, 0.0, 0.0),
        Op::Load { space: Space::Param | Space::Const, .. } => (Unit::Folded, 0.0, 0.0, 0.0),
        Op::Alu1 { .. }
        | Op::Alu2 { .. }
        | Op::Alu3 { .. }
        | Op::Pure { .. }
        | Op::Cvt { .. }
        | Op::Permute { .. }
        | Op::Bfi { .. }
        | Op::Lop3 { .. }
        | Op::Carry { .. }
        | Op::IsSpace { .. }
        | Op::Mapa { .. }
        | Op::GetCtaRank { .. }
        | Op::MbarPending { .. }
        | Op::QueryCanceled { .. }
        | Op::QueryCtaid { .. } => match arithmetic(opcode) {
            Arithmetic::Folded => (Unit::Folded, 0.0, 0.0, 0.0),
            Arithmetic::Alu(n) => (Unit::Alu, n, n, alu + (n - 1.0).max(0.0)),
            Arithmetic::Fma(n) => (Unit::Fma, 1.0, n, fma),
            Arithmetic::Imad(n) => (Unit::Heavy, 1.0, n, fma),
            // The assembler gives every second one to the other half, but not beside `wgmma`.
            Arithmetic::Half(n) => (if wgmma { Unit::Lite } else { Unit::Fma }, 1.0, n, fma),
            Arithmetic::Mufu(n) => (Unit::Mufu, n, 1.0, mufu + 4.0 * (n - 1.0)),
            Arithmetic::Convert(n) => (Unit::Convert, 1.0, n, alu + 2.0),
            Arithmetic::Long(n) => (Unit::Fma, n, n, n * fma),
        },
        // The instruction that makes or reads a predicate combines it.
        Op::Truth { .. } => (Unit::Folded, 0.0, 0.0, 0.0),
        Op::Setp { .. } | Op::Setp2 { .. } | Op::Set { .. } | Op::Selp { .. } => {
            let n = if opcode.ends_with("64") { 2.0 } else { 1.0 };
            (Unit::Alu, n, n, alu + 1.0)
        }
        Op::ReadClock { .. } | Op::Activemask { .. } => (Unit::Alu, 1.0, 1.0, 8.0),
        Op::Bra { .. } | Op::Brx { .. } | Op::Call { .. } | Op::Ret | Op::Exit | Op::Trap { .. } => {
            (Unit::Branch, 1.0, 0.0, 0.0)
        }
        Op::Vote { .. } | Op::Shfl { .. } | Op::Match { .. } | Op::Redux { .. } | Op::Elect { .. } => {
            (Unit::Shuffle, 1.0, 0.0, chip.shuffle_latency.value)
        }
        Op::BarWarpSync { .. } => (Unit::Shuffle, 1.0, 0.0, 0.0),
        Op::WarpMma(m) | Op::WmmaMma(m) => {
            let clocks = Product::of(m).interval(chip);
            (Unit::Matrix, 1.0, clocks, clocks + chip.mma_sync_tail.value)
        }
        Op::MovMatrix { .. } => (Unit::Shuffle, 1.0, 0.0, chip.shuffle_latency.value),
        _ if accesses(opcode) => (Unit::Memory, 1.0, 0.0, 0.0),
        _ => (Unit::Engine, 1.0, 0.0, 0.0),
    };
    let (slots, hold) = match unit {
        Unit::Memory | Unit::Engine | Unit::Branch | Unit::Shuffle => issue(opcode),
        _ => (slots, slots),
    };
    let mut busy = Busy::default();
    unit.occupy(&mut busy, count, chip);
    let shared = matches!(unit, Unit::Memory | Unit::Engine | Unit::Branch)
        && !matches!(inst.op, Op::Bra { .. } | Op::Brx { .. } | Op::Call { .. })
        || matches!(inst.op, Op::ReadClock { .. });
    Cost {
        unit,
        slots,
        hold,
        ports: if unit.calculates() { slots } else { 0.0 },
        busy,
        latency,
        waited: false,
        shared,
        reads: Box::default(),
        writes: Box::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_goes_to_its_unit() {
        assert_eq!(arithmetic("ex2.approx.ftz.f32"), Arithmetic::Mufu(1.0));
        assert_eq!(arithmetic("ex2.approx.f32"), Arithmetic::Mufu(3.0));
        assert_eq!(arithmetic("fma.rn.f32"), Arithmetic::Fma(1.0));
        assert_eq!(arithmetic("mad.lo.u32"), Arithmetic::Imad(1.0));
        assert_eq!(arithmetic("mul.rn.bf16x2"), Arithmetic::Half(1.0));
        assert_eq!(arithmetic("cvt.rn.f16x2.f32"), Arithmetic::Alu(1.0));
        assert_eq!(arithmetic("cvt.f32.f16"), Arithmetic::Convert(2.0));
        assert_eq!(arithmetic("cvt.u64.u32"), Arithmetic::Folded);
        assert_eq!(arithmetic("add.s64"), Arithmetic::Alu(1.4));
        assert_eq!(arithmetic("mul.wide.u32"), Arithmetic::Folded);
        assert_eq!(arithmetic("mad.wide.u32"), Arithmetic::Long(2.5));
        assert_eq!(arithmetic("neg.f32"), Arithmetic::Folded);
        assert_eq!(arithmetic("xor.b32"), Arithmetic::Alu(1.0));
    }

    #[test]
    fn copies_of_their_own_are_no_accesses() {
        for opcode in
            ["ld.shared.v4.b32", "st.bulk.weak.shared::cta", "wmma.load.a.sync", "prefetch.global.L2"]
        {
            assert!(accesses(opcode), "{opcode}");
        }
        for opcode in
            ["red.async.relaxed.cluster", "wmma.mma.sync", "cp.async.bulk.prefetch.L2", "fence.sc.gpu"]
        {
            assert!(!accesses(opcode), "{opcode}");
        }
    }

    #[test]
    fn the_first_beginning_that_fits_counts() {
        assert_eq!(issue("cp.async.bulk.commit_group"), (1.0, 2.0));
        assert_eq!(issue("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32").0, 20.0);
        assert_eq!(issue("tcgen05.cp.cta_group::1.128x256b"), (1.0, 1.5));
        for (i, (begins, ..)) in ISSUE.iter().enumerate() {
            assert!(!ISSUE[..i].iter().any(|(b, ..)| begins.starts_with(b)), "{begins} is never reached");
        }
    }
}
