//! Decides which PTX line pays for which machine instruction, and how often.
//!
//! An instruction is charged to its own line where both are executed equally often. Four cases differ:
//! - The assembler moved the instruction into or out of a loop: a neighbour that stayed in place pays.
//! - The assembler copied code (unrolled loops, tails shared by several paths, inlined functions). Instructions that
//!   it never makes or removes (copies, products, barriers, memory accesses) tell how many copies there are, and each
//!   copy is charged with its share.
//! - The code repeats a failed try of an mbarrier. It costs nothing, because the warp waits at that time anyway.
//! - The code of one line has branches of its own (allocations, divisions, loops over lanes): the shortest path is
//!   charged, with loops executed once.
//!
//! Waits for results of `MUFU`, `SHFL`, conversions and shared memory follow from the order of the machine code, in
//! which the assembler hides them, and are charged to the instruction that waits. Other memory, Tensor Memory and
//! mbarriers take as long as the run determines.

use super::SassError;
use super::flow::{Loops, blocks, loops};
use super::listing::{Instruction, SCOREBOARDS, Section};
use crate::program::{Op, Program};
use crate::time::Chip;
use crate::time::cost::{Busy, Unit};
use crate::time::product::Product;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The cost of one execution of a PTX line by a warp.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct LineCost {
    /// Issue slots.
    pub slots: f64,
    /// Clocks from the line's first issue to the next line's: stall counts and waits for results.
    pub stalls: f64,
    /// Slots of the ports of registers.
    pub ports: f64,
    /// Clocks for which units are busy.
    pub busy: Busy,
    /// Whether the line calls code outside the kernel (a division, say), which is not charged.
    pub calls: bool,
}

/// How well an instruction counts copies of its line: 0 if the assembler can make, remove or merge it, 1 if not, 2 if
/// it also stands for exactly one PTX instruction.
fn anchor(i: &Instruction) -> u32 {
    match i.name() {
        "UTMALDG" | "UTMASTG" | "UTMAREDG" | "UTMAPF" | "UBLKCP" | "UBLKRED" | "UTCCP" | "UTCBAR"
        | "LDTM" | "STTM" | "BAR" | "SYNCS" | "HGMMA" | "QGMMA" | "IGMMA" | "BGMMA" | "UCGABAR_ARV"
        | "UCGABAR_WAIT" | "LDS" | "STS" | "LDG" | "STG" | "LD" | "ST" | "LDSM" | "STSM" | "LDGSTS"
        | "SHFL" => 2,
        n if n.starts_with("UTC") && n.ends_with("MMA") => 2,
        "LDL" | "STL" | "ATOM" | "ATOMG" | "ATOMS" | "RED" | "REDG" | "REDAS" | "HMMA" | "QMMA" | "IMMA"
        | "OMMA" | "BMMA" | "DMMA" => 1,
        _ => 0,
    }
}

/// The unit of a sub-core that an instruction occupies.
pub(super) fn unit(i: &Instruction) -> Unit {
    match i.name() {
        "MUFU" => Unit::Mufu,
        "FFMA" | "FMUL" | "FADD" | "FFMA2" | "FMUL2" | "FADD2" | "DFMA" | "DADD" | "DMUL" | "FSWZADD" => {
            Unit::Fma
        }
        // `HFMA2.MMA` and the like are those that the assembler gives to the other half.
        "HFMA2" | "HADD2" | "HMUL2" if !i.opcode.contains(".MMA") => Unit::Lite,
        "IMAD" | "IDP" | "HFMA2" | "HADD2" | "HMUL2" => Unit::Heavy,
        "F2F" | "F2I" | "I2F" | "I2FP" | "F2IP" | "FRND" | "POPC" | "FLO" | "BREV" => Unit::Convert,
        "HMMA" | "QMMA" | "IMMA" | "OMMA" | "BMMA" | "DMMA" => Unit::Matrix,
        "SHFL" | "VOTE" | "VOTEU" | "MATCH" | "REDUX" | "CREDUX" => Unit::Shuffle,
        "BRA" | "BRX" | "BRXU" | "JMP" | "CALL" | "RET" | "EXIT" | "BSSY" | "BSYNC" | "WARPSYNC" => {
            Unit::Branch
        }
        "NOP" | "YIELD" | "NANOSLEEP" | "DEPBAR" | "ERRBAR" => Unit::Folded,
        n if anchor(i) > 0 || n.starts_with("UTC") || n.starts_with("LDC") || n.starts_with("S2") => {
            Unit::Engine
        }
        n if n.starts_with('U')
            || n.starts_with("MEMBAR")
            || n.starts_with("FENCE")
            || n == "ELECT"
            || n == "R2UR" =>
        {
            Unit::Engine
        }
        _ => Unit::Alu,
    }
}

fn branches(op: &Op) -> bool {
    matches!(op, Op::Bra { .. } | Op::Brx { .. } | Op::Call { .. } | Op::Ret | Op::Exit | Op::Trap { .. })
}

/// The PTX side: loops and blocks of its lines.
struct Lines {
    loops: Loops,
    /// Whether a loop only waits for an mbarrier.
    spins: Vec<bool>,
    /// The first instruction of each line.
    first: HashMap<u32, usize>,
    blocks: Vec<usize>,
    /// Lines with a branch of their own in PTX.
    branching: BTreeSet<u32>,
    /// Lines whose instruction becomes several memory accesses, and so counts no copies.
    several: BTreeSet<u32>,
}

impl Lines {
    fn new(program: &Program) -> Self {
        let code = &program.code;
        let next: Vec<Vec<usize>> = (code.iter().enumerate())
            .map(|(i, inst)| {
                let mut to = Vec::new();
                let on = !matches!(
                    inst.op,
                    Op::Bra { .. } | Op::Brx { .. } | Op::Ret | Op::Exit | Op::Trap { .. }
                );
                if (on || inst.guard.is_some()) && i + 1 < code.len() {
                    to.push(i + 1);
                }
                match &inst.op {
                    Op::Bra { target } => to.push(*target as usize),
                    Op::Brx { targets, .. } => to.extend(targets.iter().map(|&t| t as usize)),
                    _ => {}
                }
                to.retain(|&t| t < code.len());
                to
            })
            .collect();
        let loops = loops(&next);
        let spins = (loops.list.iter())
            .map(|l| {
                l.nodes.len() <= 16
                    && l.nodes.iter().filter(|&&n| matches!(code[n].op, Op::MbarWait { .. })).count() == 1
                    && l.nodes.iter().all(|&n| {
                        matches!(
                            code[n].op,
                            Op::MbarWait { .. }
                                | Op::Bra { .. }
                                | Op::Nop
                                | Op::Setp { .. }
                                | Op::Selp { .. }
                                | Op::Truth { .. }
                                | Op::Alu1 { .. }
                                | Op::Alu2 { .. }
                                | Op::Mov { .. }
                        )
                    })
                    && counts_nothing(l, code)
            })
            .collect();
        let mut first = HashMap::new();
        for (pc, inst) in code.iter().enumerate() {
            first.entry(inst.line).or_insert(pc);
        }
        let branching = code.iter().filter(|i| branches(&i.op)).map(|i| i.line).collect();
        let several = |op: &Op| {
            matches!(op, Op::WmmaMove(_) | Op::WmmaMma(_) | Op::CopyLocal { .. } | Op::ByteMatrix { .. })
        };
        let several = code.iter().filter(|i| several(&i.op)).map(|i| i.line).collect();
        Lines { blocks: blocks(&next), loops, spins, first, branching, several }
    }

    /// The innermost loop of a line, without loops that only wait; `None` where the line has no instruction.
    fn of(&self, line: u32) -> Option<Option<usize>> {
        let pc = *self.first.get(&line)?;
        Some(self.loops.chain(self.loops.innermost[pc]).find(|&l| !self.spins[l]))
    }

    fn spins(&self, line: u32) -> bool {
        self.first.get(&line).is_some_and(|&pc| self.loops.innermost[pc].is_some_and(|l| self.spins[l]))
    }
}

/// Whether a loop only waits: what its branches test comes from an mbarrier.
fn counts_nothing(l: &super::flow::Loop, code: &[crate::program::Inst]) -> bool {
    let waits: Vec<u32> = (l.nodes.iter())
        .filter_map(|&n| if let Op::MbarWait { p, .. } = &code[n].op { Some(*p) } else { None })
        .collect();
    l.nodes.iter().all(|&n| match (&code[n].op, code[n].guard) {
        (Op::Bra { .. }, Some(g)) => {
            waits.contains(&g.slot) || !l.nodes.iter().any(|&m| matches!(code[m].op, Op::Alu2 { .. }))
        }
        _ => true,
    })
}

/// The machine-code side.
struct Code<'c> {
    code: &'c [Instruction],
    next: Vec<Vec<usize>>,
    loops: Loops,
    blocks: Vec<usize>,
    /// Whether an instruction is executed as often as the kernel's own text.
    live: Vec<bool>,
}

impl<'c> Code<'c> {
    fn new(code: &'c [Instruction], lines: &Lines) -> Self {
        let next: Vec<Vec<usize>> = (code.iter().enumerate())
            .map(|(i, inst)| {
                let mut to = Vec::new();
                if !inst.ends() && i + 1 < code.len() {
                    to.push(i + 1);
                }
                if inst.jumps() {
                    to.extend(inst.targets.iter().copied().filter(|&t| t < code.len()));
                }
                to
            })
            .collect();
        let mut of =
            Code { loops: loops(&next), blocks: blocks(&next), live: vec![true; code.len()], code, next };
        of.reach(lines);
        of.drop_retries(lines);
        of.reach(lines);
        of.drop_detours(lines);
        of
    }

    /// Keeps the code that is reachable from the kernel, including functions in the text that it calls.
    fn reach(&mut self, lines: &Lines) {
        let mut seen = vec![false; self.code.len()];
        let mut work = vec![0];
        while let Some(i) = work.pop() {
            if !self.live.get(i).copied().unwrap_or(false) || std::mem::replace(&mut seen[i], true) {
                continue;
            }
            work.extend(&self.next[i]);
            if self.code[i].name() == "CALL" && lines.branching.contains(&self.code[i].line) {
                work.extend(&self.code[i].targets);
            }
        }
        self.live = seen;
    }

    /// Drops the code that repeats a failed wait, where the first try is elsewhere.
    fn drop_retries(&mut self, lines: &Lines) {
        let test = |i: &Instruction| i.opcode.starts_with("SYNCS.PHASECHK");
        for l in &self.loops.list {
            let tests: Vec<usize> = l.nodes.iter().copied().filter(|&n| test(&self.code[n])).collect();
            let spin = !tests.is_empty()
                && (l.nodes.iter())
                    .filter(|&&n| self.code[n].jumps())
                    .all(|&n| lines.spins(self.code[n].line));
            let elsewhere = |n: usize| {
                (0..self.code.len()).any(|m| {
                    self.live[m]
                        && test(&self.code[m])
                        && self.code[m].line == self.code[n].line
                        && !l.nodes.contains(&m)
                })
            };
            if spin && tests.iter().all(|&n| elsewhere(n)) {
                for &n in &l.nodes {
                    self.live[n] = false;
                }
            }
        }
    }

    /// Keeps the shortest path through one line's code, where that has branches of its own.
    fn drop_detours(&mut self, lines: &Lines) {
        let count = self.blocks.last().map_or(0, |b| b + 1);
        let mut starts = vec![(usize::MAX, 0); count];
        for (i, &b) in self.blocks.iter().enumerate() {
            starts[b] = (starts[b].0.min(i), i);
        }
        let live = |b: usize| self.live[starts[b].0];
        // The line of a block that is of one line alone.
        let own: Vec<Option<u32>> = (starts.iter())
            .map(|&(from, to)| {
                let line = self.code[from].line;
                (self.code[from..=to].iter().all(|i| i.line == line)).then_some(line)
            })
            .collect();
        let made: BTreeSet<u32> = (self.code.iter())
            .filter(|i| i.jumps() && i.conditional && !lines.branching.contains(&i.line))
            .map(|i| i.line)
            .collect();
        let to = |b: usize| self.next[starts[b].1].iter().map(|&n| self.blocks[n]);
        let mut dropped = Vec::new();
        for line in made {
            let inside: BTreeSet<usize> = (0..count).filter(|&b| live(b) && own[b] == Some(line)).collect();
            let firm = |b: usize| {
                self.code[starts[b].0..=starts[b].1].iter().any(|i| anchor(i) > 0 && i.line == line)
            };
            // What the line is for lies in the branches.
            let wanted = inside.iter().any(|&b| firm(b))
                && !(0..count).any(|b| live(b) && !inside.contains(&b) && firm(b));
            let mut kept = BTreeSet::new();
            for source in
                (0..count).filter(|&b| live(b) && !inside.contains(&b) && to(b).any(|t| inside.contains(&t)))
            {
                // Shortest ways to (block, has seen what it is for).
                type Visit = (usize, bool);
                let mut best: BTreeMap<Visit, (usize, Option<Visit>)> = BTreeMap::new();
                let mut work = BTreeSet::from([(0usize, source, !wanted, None::<Visit>)]);
                let mut end = None;
                while let Some((cost, b, seen, from)) = work.pop_first() {
                    if b != source && !inside.contains(&b) {
                        if seen {
                            end = from;
                            break;
                        }
                        continue;
                    }
                    if best.contains_key(&(b, seen)) {
                        continue;
                    }
                    best.insert((b, seen), (cost, from));
                    let length = if b == source { 0 } else { starts[b].1 + 1 - starts[b].0 };
                    let seen_now = seen || b != source && firm(b);
                    for t in to(b) {
                        work.insert((cost + length, t, seen_now, Some((b, seen))));
                    }
                    // A way may end in the kernel's exit.
                    if to(b).next().is_none() && seen_now {
                        end = Some((b, seen));
                        break;
                    }
                }
                while let Some(at) = end {
                    kept.insert(at.0);
                    end = best.get(&at).and_then(|b| b.1);
                }
            }
            if wanted && !kept.iter().any(|&b| firm(b)) {
                continue;
            }
            dropped.extend(inside.iter().copied().filter(|b| !kept.contains(b)));
        }
        for b in dropped {
            self.live[starts[b].0..=starts[b].1].fill(false);
        }
    }

    fn alive(&self) -> impl Iterator<Item = usize> {
        (0..self.code.len()).filter(|&i| self.live[i])
    }
}

/// Which loops of the machine code are which loops of PTX.
struct Matched {
    /// For each loop of the machine code, the PTX loop whose iterations it runs.
    to: Vec<Option<usize>>,
    /// For each PTX loop, the innermost enclosing loop (or itself) that exists in the machine code.
    of: Vec<Option<usize>>,
}

impl Matched {
    fn new(code: &Code<'_>, lines: &Lines) -> Self {
        let all = &code.loops;
        let mut to: Vec<Option<usize>> = vec![None; all.list.len()];
        // The loop that all of its branches and anchors are in.
        let mut common: Vec<Option<Option<usize>>> = vec![None; all.list.len()];
        for i in code.alive() {
            let Some(s) = all.innermost[i] else { continue };
            let inst = &code.code[i];
            if anchor(inst) == 0 && !inst.jumps() {
                continue;
            }
            let Some(p) = lines.of(inst.line) else { continue };
            common[s] = Some(common[s].map_or(p, |c| lines.loops.common(c, p)));
        }
        // Outer loops come first.
        for s in 0..all.list.len() {
            let outer = all.list[s].parent.and_then(|p| to[p]);
            to[s] = match common[s] {
                Some(Some(p)) if lines.loops.chain(Some(p)).any(|q| Some(q) == outer) || outer.is_none() => {
                    Some(p)
                }
                _ => outer,
            };
        }
        let kept: BTreeSet<usize> = to.iter().flatten().copied().collect();
        let of = (0..lines.loops.list.len())
            .map(|p| lines.loops.chain(Some(p)).find(|q| kept.contains(q)))
            .collect();
        Matched { to, of }
    }

    /// The loop in which the iterations of a line's loop are executed.
    fn line(&self, lines: &Lines, line: u32) -> Option<Option<usize>> {
        lines.of(line).map(|p| p.and_then(|p| self.of[p]))
    }
}

/// Refuses a listing that was made of another text.
pub(super) fn check(entry: &str, section: &Section, program: &Program) -> Result<(), SassError> {
    let lines: BTreeSet<u32> = program.code.iter().map(|i| i.line).collect();
    // The assembler puts some of its own on the line of the kernel's name.
    let anchors = || section.code.iter().filter(|i| anchor(i) > 0 && i.line != 0);
    let stray = || anchors().filter(|i| !lines.contains(&i.line));
    match stray().next() {
        Some(i) if 2 * stray().count() > anchors().count() => {
            Err(SassError::Text { entry: entry.to_owned(), line: i.line })
        }
        _ => Ok(()),
    }
}

/// Clocks until the result of an instruction is ready, without contention; `None` where only the run knows it.
fn latency(i: &Instruction, chip: &Chip) -> Option<f64> {
    match i.name() {
        // Conversions that take a scoreboard are done by the unit of MUFU.
        "MUFU" | "F2F" | "F2I" | "I2F" | "FRND" | "POPC" | "FLO" | "BREV" => Some(chip.mufu_latency.value),
        "SHFL" => Some(chip.shuffle_latency.value),
        "LDS" | "LDSM" => Some(chip.smem_latency.value),
        _ => None,
    }
}

/// Clocks that each instruction waits for scoreboards with a known latency.
fn waits(code: &Code<'_>, chip: &Chip) -> Vec<f64> {
    let mut out = vec![0.0; code.code.len()];
    let (mut now, mut boards, mut last) = (0.0_f64, [0.0_f64; SCOREBOARDS as usize], None);
    for i in code.alive() {
        let inst = &code.code[i];
        if last.is_some_and(|l: usize| l + 1 != i || code.code[l].ends()) {
            boards.fill(0.0);
        }
        last = Some(i);
        let until = (boards.iter().enumerate())
            .filter(|(b, _)| inst.waits >> b & 1 == 1)
            .map(|(_, &done)| done)
            .fold(now, f64::max);
        out[i] = until - now;
        if let Some(b) = inst.write_barrier {
            let done = latency(inst, chip).map_or(0.0, |l| until + l);
            let board = &mut boards[usize::from(b)];
            *board = board.max(done);
        }
        now = until + f64::from(inst.stall);
    }
    out
}

/// The cost of each line.
pub(super) fn lines(code: &[Instruction], program: &Program, chip: &Chip) -> HashMap<u32, LineCost> {
    let lines = Lines::new(program);
    let code = Code::new(code, &lines);
    let matched = Matched::new(&code, &lines);
    let payers = payers(&code, &lines, &matched);
    let copies = copies(&code, &lines, &payers, program);
    let waits = waits(&code, chip);
    let mut out: HashMap<u32, LineCost> = HashMap::new();
    for i in code.alive() {
        let inst = &code.code[i];
        let payer = payers[i].0;
        let part = 1.0 / f64::from(lines.first.get(&payer).map_or(1, |&pc| copies[lines.blocks[pc]]));
        let cost = out.entry(payer).or_default();
        cost.slots += part;
        cost.stalls += part * (f64::from(inst.stall) + waits[i]);
        let unit = unit(inst);
        let count = match unit {
            Unit::Matrix => part * Product::of_machine(&inst.opcode).interval(chip),
            _ => part,
        };
        unit.occupy(&mut cost.busy, count, chip);
        if unit.calculates() {
            cost.ports += part;
        }
        if payer == inst.line {
            cost.calls |= inst.name() == "CALL" && !lines.branching.contains(&payer);
        }
    }
    out
}

/// For each instruction, the line that pays for it, and whether the instruction is where its line is.
fn payers(code: &Code<'_>, lines: &Lines, matched: &Matched) -> Vec<(u32, bool)> {
    let here = |i: usize| code.loops.innermost[i].and_then(|s| matched.to[s]);
    // Loops of PTX that a block has anchors of.
    let mut held: HashMap<usize, BTreeSet<Option<usize>>> = HashMap::new();
    for i in code.alive().filter(|&i| anchor(&code.code[i]) > 0) {
        if let Some(p) = matched.line(lines, code.code[i].line) {
            held.entry(code.blocks[i]).or_default().insert(p);
        }
    }
    let mut payers: Vec<(u32, bool)> = code.code.iter().map(|i| (i.line, false)).collect();
    // In place, and in its loop: may pay for neighbours.
    let mut firm = vec![false; code.code.len()];
    for i in code.alive() {
        if let Some(p) = matched.line(lines, code.code[i].line) {
            firm[i] = p == here(i);
            payers[i].1 = firm[i] || held.get(&code.blocks[i]).is_some_and(|h| h.contains(&p));
        }
    }
    let moved: Vec<usize> = code.alive().filter(|&i| !payers[i].1).collect();
    for i in moved {
        let near = |same_block: bool| {
            let fits = |&j: &usize| {
                firm[j]
                    && code.live[j]
                    && here(j) == here(i)
                    && (!same_block || code.blocks[j] == code.blocks[i])
            };
            let before =
                (0..i).rev().take(4096).take_while(|&j| !same_block || code.blocks[j] == code.blocks[i]);
            let after = (i + 1..code.code.len())
                .take(4096)
                .take_while(|&j| !same_block || code.blocks[j] == code.blocks[i]);
            let (b, a) = (before.into_iter().find(fits), after.into_iter().find(fits));
            match (b, a) {
                (Some(b), Some(a)) => Some(if i - b <= a - i { b } else { a }),
                (b, a) => b.or(a),
            }
        };
        let found = near(true).or_else(|| near(false));
        if let Some(j) = found {
            payers[i].0 = code.code[j].line;
        }
    }
    payers
}

/// Number of copies of each PTX block in the machine code.
fn copies(code: &Code<'_>, lines: &Lines, payers: &[(u32, bool)], program: &Program) -> Vec<u32> {
    let count = lines.blocks.last().map_or(0, |b| b + 1);
    // By line: how often each opcode is there that counts, and the others.
    let mut by_line: BTreeMap<u32, BTreeMap<&str, (u32, u32)>> = BTreeMap::new();
    // By block: products of the machine code, which have the line of an instruction before them, and those of PTX.
    let mut products = vec![(0, 0); count];
    for (pc, _) in program.code.iter().enumerate().filter(|(_, inst)| matches!(inst.op, Op::Wgmma(_))) {
        products[lines.blocks[pc]].1 += 1;
    }
    for i in code.alive().filter(|&i| payers[i].1) {
        let inst = &code.code[i];
        if inst.name().ends_with("GMMA") {
            if let Some(&pc) = lines.first.get(&inst.line) {
                products[lines.blocks[pc]].0 += 1;
            }
            continue;
        }
        let of = by_line.entry(inst.line).or_default().entry(inst.name()).or_insert((0, anchor(inst)));
        of.0 += 1;
    }
    // By block: votes for a number.
    let mut votes: Vec<BTreeMap<u32, u32>> = vec![BTreeMap::new(); count];
    let mut soft: Vec<BTreeMap<u32, u32>> = vec![BTreeMap::new(); count];
    for (line, names) in &by_line {
        let Some(&pc) = lines.first.get(line).filter(|_| !lines.several.contains(line)) else { continue };
        let block = lines.blocks[pc];
        let counted = names.values().filter(|v| v.1 > 0).max_by_key(|v| (v.1, std::cmp::Reverse(v.0)));
        match counted {
            Some(&(n, weight)) => *votes[block].entry(n).or_default() += weight,
            // An instruction of PTX that became one of the machine.
            None if names.len() == 1 && !lines.branching.contains(line) => {
                if let Some(&(n, _)) = names.values().next() {
                    *soft[block].entry(n).or_default() += 1;
                }
            }
            None => {}
        }
    }
    for (block, &(machine, ptx)) in products.iter().enumerate() {
        if ptx > 0 && machine > 0 && machine % ptx == 0 {
            *votes[block].entry(machine / ptx).or_default() += 2 * ptx;
        }
    }
    let looped: BTreeSet<usize> = (0..lines.blocks.len())
        .filter(|&pc| lines.loops.innermost[pc].is_some())
        .map(|pc| lines.blocks[pc])
        .collect();
    (0..count)
        .map(|b| {
            let most = |v: &BTreeMap<u32, u32>| {
                v.iter().max_by_key(|(n, w)| (**w, std::cmp::Reverse(**n))).map(|(n, w)| (*n, *w))
            };
            match (most(&votes[b]), most(&soft[b])) {
                // One access alone may have been split.
                (Some((n, w)), _) if n == 1 || w >= 2 => n,
                (_, Some((n, _))) if looped.contains(&b) => n,
                _ => 1,
            }
        })
        .collect()
}
