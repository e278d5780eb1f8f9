//! Cost of each instruction of a program: issue slots, units, latencies.

use super::chip::Chip;
use super::table;
use crate::program::{CONSTANTS, MatrixA, Op, Pred, Program, SINK, Slot, WgmmaA};

/// The unit of a sub-core or SM that an instruction uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// None: the assembler folds it into others (moves, conversions of addresses, parameters).
    Folded,
    Alu,
    /// Multiply-adds in binary32: the halves of the unit take them by turns.
    Fma,
    /// The half of that unit that also multiplies integers.
    Heavy,
    /// The other half.
    Lite,
    Mufu,
    Convert,
    Shuffle,
    Branch,
    /// `mma.sync`.
    Matrix,
    /// Loads and stores; the accesses of a run say of what.
    Memory,
    /// Barriers, mbarriers, fences, asynchronous copies, tensor cores.
    Engine,
}

/// Units of a sub-core that instructions occupy for an interval.
pub(crate) const UNITS: usize = 6;

/// Clocks for which each of those units is busy, by [`Unit::index`].
pub(crate) type Busy = [f64; UNITS];

impl Unit {
    /// By place among the units that are occupied.
    const ALL: [Unit; UNITS] = [Unit::Alu, Unit::Heavy, Unit::Lite, Unit::Mufu, Unit::Convert, Unit::Matrix];

    /// Its place among the units that are occupied. [`Unit::Fma`] is two of them.
    pub fn index(self) -> Option<usize> {
        Self::ALL.iter().position(|u| *u == self)
    }

    /// The clocks of this unit among those of all.
    pub fn busy(self, of: &Busy) -> f64 {
        self.index().map_or(0.0, |i| of[i])
    }

    /// Whether its instructions calculate, and so take a slot of the ports of registers.
    pub fn calculates(self) -> bool {
        match self {
            Unit::Alu | Unit::Fma | Unit::Heavy | Unit::Lite | Unit::Mufu | Unit::Convert => true,
            Unit::Folded | Unit::Shuffle | Unit::Branch | Unit::Matrix | Unit::Memory | Unit::Engine => false,
        }
    }

    /// Adds the clocks that `count` instructions of this unit take. For [`Unit::Matrix`] it is their clocks, because
    /// products differ: see `Product::interval`.
    pub fn occupy(self, busy: &mut Busy, count: f64, chip: &Chip) {
        let mut add = |unit: Unit, clocks: f64| {
            if let Some(i) = unit.index() {
                busy[i] += clocks;
            }
        };
        match self {
            Unit::Alu => add(self, count * chip.alu_interval.value),
            Unit::Fma => {
                add(Unit::Heavy, count * chip.fma_interval.value);
                add(Unit::Lite, count * chip.fma_interval.value);
            }
            Unit::Heavy => add(self, count * chip.imad_interval.value),
            Unit::Lite => add(self, count * chip.half_interval.value),
            Unit::Mufu => add(self, count * chip.mufu_interval.value),
            Unit::Convert => add(self, count * chip.convert_interval.value),
            Unit::Matrix => add(self, count),
            Unit::Folded | Unit::Shuffle | Unit::Branch | Unit::Memory | Unit::Engine => {}
        }
    }
}

/// The cost of an instruction.
#[derive(Clone, Debug)]
pub(crate) struct Cost {
    pub unit: Unit,
    /// Issue slots of the sub-core: machine instructions.
    pub slots: f64,
    /// Clocks before the warp can issue its next instruction.
    pub hold: f64,
    /// Slots of the ports of registers: machine instructions that calculate.
    pub ports: f64,
    /// Clocks for which units are busy.
    pub busy: Busy,
    /// Clocks until its results can be used.
    pub latency: f64,
    /// Whether waits for results of shared memory are included in `hold` of readers.
    pub waited: bool,
    /// Whether other warps, CTAs or engines can observe it.
    pub shared: bool,
    /// Registers, then predicates from `Program::registers` on.
    pub reads: Box<[u32]>,
    pub writes: Box<[u32]>,
}

/// Collects operands of an operation.
struct Operands {
    registers: u32,
    reads: Vec<u32>,
    writes: Vec<u32>,
}

impl Operands {
    fn r(&mut self, s: Slot) {
        if s < CONSTANTS && !self.reads.contains(&s) {
            self.reads.push(s);
        }
    }
    fn w(&mut self, s: Slot) {
        if s < CONSTANTS {
            self.writes.push(s);
        }
    }
    fn rp(&mut self, p: Pred) {
        if p.slot != SINK && p.slot != crate::program::TRUE {
            self.reads.push(self.registers + p.slot);
        }
    }
    fn wp(&mut self, p: u32) {
        if p != SINK {
            self.writes.push(self.registers + p);
        }
    }

    fn of(&mut self, op: &Op) {
        match op {
            Op::Nop
            | Op::Fence(_)
            | Op::Bra { .. }
            | Op::Call { .. }
            | Op::Ret
            | Op::Exit
            | Op::Trap { .. } => {}
            Op::Alu1 { d, a, .. } | Op::Mov { d, a } | Op::MovMatrix { d, a } | Op::GetCtaRank { d, a } => {
                self.r(*a);
                self.w(*d);
            }
            Op::Alu2 { d, a, b, .. } => {
                self.r(*a);
                self.r(*b);
                self.w(*d);
            }
            Op::Alu3 { d, a, b, c, .. } => {
                [a, b, c].into_iter().for_each(|s| self.r(*s));
                self.w(*d);
            }
            Op::Permute { d, s } | Op::Pure { d, s, .. } => {
                s.iter().for_each(|s| self.r(*s));
                self.w(*d);
            }
            Op::Bfi { d, s, .. } => {
                s.iter().for_each(|s| self.r(*s));
                self.w(*d);
            }
            Op::Lop3 { d, s, p, combine, .. } => {
                s.iter().for_each(|s| self.r(*s));
                if let Some((_, q)) = combine {
                    self.rp(*q);
                }
                self.w(*d);
                self.wp(*p);
            }
            Op::Cvt { d, a, b, .. } => {
                self.r(*a);
                self.r(*b);
                self.w(*d);
            }
            Op::Carry { d, a, b, use_carry, set_carry, .. } => {
                self.r(*a);
                self.r(*b);
                if *use_carry {
                    self.reads.push(self.registers + crate::program::CARRY);
                }
                self.w(*d);
                if *set_carry {
                    self.wp(crate::program::CARRY);
                }
            }
            Op::Pack { d, s, .. } | Op::Unpack { d, s, .. } => {
                s.iter().for_each(|s| self.r(*s));
                d.iter().for_each(|d| self.w(*d));
            }
            Op::Setp { p, q, a, b, combine, .. } | Op::Setp2 { p, q, a, b, combine, .. } => {
                self.r(*a);
                self.r(*b);
                if let Some((_, c)) = combine {
                    self.rp(*c);
                }
                self.wp(*p);
                self.wp(*q);
            }
            Op::Set { d, a, b, combine, .. } => {
                self.r(*a);
                self.r(*b);
                if let Some((_, c)) = combine {
                    self.rp(*c);
                }
                self.w(*d);
            }
            Op::Selp { d, a, b, p } => {
                self.r(*a);
                self.r(*b);
                self.rp(*p);
                self.w(*d);
            }
            Op::Truth { d, a, b, .. } => {
                self.rp(*a);
                self.rp(*b);
                self.wp(*d);
            }
            Op::ReadClock { d, .. } | Op::Activemask { d } => self.w(*d),
            Op::Load { at, dst, .. } | Op::LdMatrix { at, dst, .. } => {
                self.r(at.base);
                dst.iter().for_each(|d| self.w(*d));
            }
            Op::Store { at, src, .. } | Op::StMatrix { at, src, .. } => {
                self.r(at.base);
                src.iter().for_each(|s| self.r(*s));
            }
            Op::Atom { at, d, b, c, .. } => {
                self.r(at.base);
                b.iter().for_each(|s| self.r(*s));
                self.r(*c);
                d.iter().for_each(|d| self.w(*d));
            }
            Op::WideAtom { at, d, b, swap, .. } => {
                self.r(at.base);
                b.iter().for_each(|s| self.r(*s));
                swap.iter().flatten().for_each(|s| self.r(*s));
                d.iter().for_each(|d| self.w(*d));
            }
            Op::CopyLocal { .. } => {}
            Op::Prefetch { at, .. } => self.r(at.base),
            Op::ToGeneric { d, a, .. } | Op::FromGeneric { d, a, .. } => {
                self.r(*a);
                self.w(*d);
            }
            Op::IsSpace { p, a, .. } => {
                self.r(*a);
                self.wp(*p);
            }
            Op::Mapa { d, a, rank, .. } => {
                self.r(*a);
                self.r(*rank);
                self.w(*d);
            }
            Op::Brx { index, .. } => self.r(*index),
            Op::Bar { id, count, p, d, dp, .. } => {
                self.r(*id);
                self.r(*count);
                self.rp(*p);
                self.w(*d);
                self.wp(*dp);
            }
            Op::BarWarpSync { mask } => self.r(*mask),
            Op::ClusterArrive { .. } | Op::ClusterWait { .. } => {}
            Op::Vote { d, p, src, mask, .. } => {
                self.rp(*src);
                self.r(*mask);
                self.w(*d);
                self.wp(*p);
            }
            Op::Shfl { d, p, a, b, c, mask, .. } => {
                [a, b, c, mask].into_iter().for_each(|s| self.r(*s));
                self.w(*d);
                self.wp(*p);
            }
            Op::Match { d, p, a, mask, .. } => {
                self.r(*a);
                self.r(*mask);
                self.w(*d);
                self.wp(*p);
            }
            Op::Redux { d, a, mask, .. } => {
                self.r(*a);
                self.r(*mask);
                self.w(*d);
            }
            Op::Elect { d, p, mask } => {
                self.r(*mask);
                self.w(*d);
                self.wp(*p);
            }
            Op::MbarInit { at, count, .. } => {
                self.r(at.base);
                self.r(*count);
            }
            Op::MbarInval { at, .. } => self.r(at.base),
            Op::MbarArrive { at, state, count, expect, .. } => {
                [at.base, *count, *expect].into_iter().for_each(|s| self.r(s));
                self.w(*state);
            }
            Op::MbarTx { at, bytes, .. } => {
                self.r(at.base);
                self.r(*bytes);
            }
            Op::MbarWait { at, p, token, .. } => {
                self.r(at.base);
                self.r(*token);
                self.wp(*p);
            }
            Op::MbarPending { d, state } => {
                self.r(*state);
                self.w(*d);
            }
            Op::CpAsync { dst, src, valid, ignore, .. } => {
                [dst.base, src.base, *valid].into_iter().for_each(|s| self.r(s));
                if let Some(p) = ignore {
                    self.rp(*p);
                }
            }
            Op::CpAsyncCommit | Op::CpAsyncWait { .. } | Op::BulkCommit | Op::BulkWait { .. } => {}
            Op::CpAsyncArrive { at, .. } => self.r(at.base),
            Op::BulkLoad { dst, src, bytes, mbar, mask, policy } => {
                [dst.base, src.base, *bytes, mbar.base, *mask, *policy].into_iter().for_each(|s| self.r(s));
            }
            Op::BulkSmem { dst, src, bytes, mbar, .. } => {
                [dst.base, src.base, *bytes, mbar.base].into_iter().for_each(|s| self.r(s));
            }
            Op::BulkStore { dst, src, bytes, mask, .. } => {
                [dst.base, src.base, *bytes, *mask].into_iter().for_each(|s| self.r(s));
            }
            Op::TensorLoad(c) | Op::TensorPrefetch(c) | Op::TensorStore { copy: c, .. } => {
                [c.smem.base, c.map.base, c.mbar.base, c.mask, c.policy].into_iter().for_each(|s| self.r(s));
                c.coords.iter().for_each(|s| self.r(*s));
                c.im2col.iter().flatten().for_each(|s| self.r(*s));
            }
            Op::MapReplace { at, ordinal, value, .. } => {
                [at.base, *ordinal, *value].into_iter().for_each(|s| self.r(s));
            }
            Op::Remote { at, mbar, src, .. } => {
                self.r(at.base);
                self.r(mbar.base);
                src.iter().for_each(|s| self.r(*s));
            }
            Op::MapCopy { dst, src } => {
                self.r(dst.base);
                self.r(src.base);
            }
            Op::BulkFill { dst, bytes } => {
                self.r(dst.base);
                self.r(*bytes);
            }
            Op::TcAlloc { dst, columns, .. } => {
                self.r(dst.base);
                self.r(*columns);
            }
            Op::TcDealloc { at, columns, .. } => {
                self.r(*at);
                self.r(*columns);
            }
            Op::TcRelinquish { .. } | Op::TcWait { .. } | Op::SetMaxNreg { .. } => {}
            Op::TcCopy { at, desc, .. } => {
                self.r(at.base);
                self.r(*desc);
            }
            Op::TcMma(m) => {
                self.r(m.d.base);
                match &m.a {
                    MatrixA::Smem(s) => self.r(*s),
                    MatrixA::Tmem(a) => self.r(a.base),
                }
                [m.b, m.idesc, m.scale_d, m.zero_columns].into_iter().for_each(|s| self.r(s));
                if let Some((a, b, _)) = &m.scales {
                    self.r(a.base);
                    self.r(b.base);
                }
                m.lane_mask.iter().for_each(|s| self.r(*s));
                self.rp(m.enable_d);
            }
            Op::TcShift { at, .. } => self.r(at.base),
            Op::TcLoad { access, dst, .. } => {
                self.r(access.at.base);
                dst.iter().for_each(|d| self.w(*d));
            }
            Op::TcStore { access, src } => {
                self.r(access.at.base);
                src.iter().for_each(|s| self.r(*s));
            }
            Op::TcCommit { at, mask, .. } => {
                self.r(at.base);
                self.r(*mask);
            }
            Op::TryCancel { dst, mbar, .. } => {
                self.r(dst.base);
                self.r(mbar.base);
            }
            Op::QueryCanceled { p, lo } => {
                self.r(*lo);
                self.wp(*p);
            }
            Op::QueryCtaid { d, lo, hi, .. } => {
                self.r(*lo);
                self.r(*hi);
                d.iter().for_each(|d| self.w(*d));
            }
            Op::WarpMma(m) | Op::WmmaMma(m) => {
                m.a.iter().chain(&m.b).chain(&m.c).for_each(|s| self.r(*s));
                m.d.iter().for_each(|d| self.w(*d));
            }
            Op::WmmaMove(m) => {
                self.r(m.at.base);
                for &s in &m.registers {
                    if m.store { self.r(s) } else { self.w(s) }
                }
            }
            Op::ByteMatrix { load, at, registers, .. } => {
                self.r(at.base);
                for &s in registers {
                    if *load { self.w(s) } else { self.r(s) }
                }
            }
            Op::WgmmaFence | Op::WgmmaCommit | Op::WgmmaWait { .. } => {}
            // Accumulators are the tensor core's until the wait.
            Op::Wgmma(m) => {
                match &m.a {
                    WgmmaA::Smem(s) => self.r(*s),
                    WgmmaA::Registers(s) => s.iter().for_each(|s| self.r(*s)),
                }
                self.r(m.b);
                self.rp(m.scale_d);
            }
        }
    }
}

/// Costs of all instructions of a program.
pub(crate) fn costs(program: &Program, chip: &Chip) -> Vec<Cost> {
    let mut out = Vec::with_capacity(program.code.len());
    let wgmma = program.code.iter().any(|inst| matches!(inst.op, Op::Wgmma(_)));
    for inst in &program.code {
        let opcode = program.opcodes.get(inst.opcode as usize).map_or("", String::as_str);
        let mut o = Operands { registers: program.registers, reads: Vec::new(), writes: Vec::new() };
        o.of(&inst.op);
        if let Some(p) = inst.guard {
            o.rp(p);
        }
        let special = matches!(inst.op, Op::Mov { a, .. } if program.specials.iter().any(|s| s.0 == a));
        let mut cost = table::cost(inst, opcode, special, wgmma, chip);
        (cost.reads, cost.writes) = (o.reads.into_boxed_slice(), o.writes.into_boxed_slice());
        out.push(cost);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::module::Module;

    /// Slots and clocks of all operations of a kernel with that body.
    fn sums(body: &str) -> Vec<(f64, f64, Busy)> {
        let text = format!(
            ".version 8.7\n.target sm_100a\n.address_size 64\n.visible .entry k()\n{{\n{body}\nret;\n}}\n"
        );
        let module = Module::parse("k.ptx", &text).unwrap();
        let program = &module.program("k").unwrap();
        costs(program, &Chip::named("b200").unwrap()).iter().map(|c| (c.slots, c.hold, c.busy)).collect()
    }

    #[test]
    fn a_line_of_several_instructions_costs_what_they_cost() {
        let lines = [
            ".reg .b32 %first<6>, %early<6>;",
            ".reg .b32 %gate_r<15>;",
            ".reg .b64 %gate_rd<9>;",
            "mov.b64 %gate_rd1, {%first2, %first3};",
            "mov.b32 %gate_r5, 0fBFB8AA3B;",
            "mov.b64 %gate_rd2, {%gate_r5, %gate_r5};",
            "mul.rn.f32x2 %gate_rd3, %gate_rd1, %gate_rd2;",
            "mov.b64 {%gate_r6, %gate_r7}, %gate_rd3;",
            "ex2.approx.ftz.f32 %gate_r8, %gate_r6;",
            "ex2.approx.ftz.f32 %gate_r9, %gate_r7;",
            "mov.b64 %gate_rd4, {%gate_r8, %gate_r9};",
            "mov.b32 %gate_r10, 0f3F800000;",
            "mov.b64 %gate_rd5, {%gate_r10, %gate_r10};",
            "add.rn.f32x2 %gate_rd6, %gate_rd4, %gate_rd5;",
            "mov.b64 {%gate_r11, %gate_r12}, %gate_rd6;",
            "rcp.approx.ftz.f32 %gate_r13, %gate_r11;",
            "rcp.approx.ftz.f32 %gate_r14, %gate_r12;",
            "mov.b64 %gate_rd7, {%gate_r13, %gate_r14};",
            "mul.rn.f32x2 %gate_rd8, %gate_rd1, %gate_rd7;",
            "mov.b64 {%early2, %early3}, %gate_rd8;",
        ];
        assert_eq!(sums(&lines.join(" ")), sums(&lines.join("\n")));
        assert_eq!(
            sums(&format!("{{ {} }}", lines.join(" "))),
            sums(&format!("{{\n{}\n}}", lines.join("\n")))
        );
    }
}
