//! Registers that a thread holds at one time: a lower bound on a kernel's registers without an assembler.

use super::cost::Cost;
use crate::program::{Op, Program};

/// The instructions that may follow an instruction.
fn successors(program: &Program, pc: usize) -> Vec<usize> {
    let inst = &program.code[pc];
    let mut out: Vec<usize> = match &inst.op {
        Op::Bra { target } => vec![*target as usize],
        Op::Brx { targets, .. } => targets.iter().map(|t| *t as usize).collect(),
        Op::Call { target } => vec![*target as usize, pc + 1],
        Op::Ret | Op::Exit | Op::Trap { .. } => Vec::new(),
        _ => vec![pc + 1],
    };
    if inst.guard.is_some() {
        out.push(pc + 1);
    }
    out.retain(|t| *t < program.code.len());
    out
}

/// The most registers that are live at one time, by backward data flow. Names of 64 bits count as one: pointers are
/// few where registers are scarce.
pub(crate) fn live_registers(program: &Program, costs: &[Cost]) -> u64 {
    let words = (program.registers as usize).div_ceil(64);
    let count = program.code.len();
    let next: Vec<Vec<usize>> = (0..count).map(|pc| successors(program, pc)).collect();
    let mut live = vec![0u64; words * count];
    let mut now = vec![0u64; words];
    let mut most = 0;
    let mut changed = true;
    while changed {
        changed = false;
        for pc in (0..count).rev() {
            now.fill(0);
            for &to in &next[pc] {
                for (word, old) in now.iter_mut().zip(&live[words * to..]) {
                    *word |= old;
                }
            }
            let mut set = |slot: u32, on: bool| {
                if let Some(word) = now.get_mut(slot as usize / 64).filter(|_| slot < program.registers) {
                    let bit = 1 << (slot % 64);
                    *word = if on { *word | bit } else { *word & !bit };
                }
            };
            if program.code[pc].guard.is_none() {
                costs[pc].writes.iter().for_each(|&slot| set(slot, false));
            }
            costs[pc].reads.iter().for_each(|&slot| set(slot, true));
            // Sums are read and written.
            if let Op::Wgmma(m) = &program.code[pc].op {
                m.d.iter().for_each(|&slot| set(slot, true));
            }
            let old = &mut live[words * pc..words * (pc + 1)];
            if *old != now[..] {
                old.copy_from_slice(&now);
                changed = true;
                most = most.max(now.iter().map(|word| u64::from(word.count_ones())).sum());
            }
        }
    }
    most
}
