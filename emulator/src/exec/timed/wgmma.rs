//! `wgmma`: when the tensor core accepts, starts and finishes a product, and when its warp continues.

use super::sm::{Before, Warpgroup};
use super::{Timed, World};
use crate::exec::state::Warp;
use crate::program::WgmmaA;
use crate::time::Chip;
use crate::time::record::{Cause, Moment, Track};

/// Columns up to which three warpgroups by turns take as long per product, A in registers, as two.
const FEW_COLUMNS: f64 = 16.0;

/// What a product takes.
struct Product {
    /// Columns of N.
    n: f64,
    /// Whether A is in registers.
    registers: bool,
}

impl Product {
    /// Clocks of the arithmetic.
    fn math(&self, chip: &Chip) -> f64 {
        self.n * chip.wgmma_column.value
    }

    /// Clocks for B's bytes in shared memory: a row of N has 32.
    fn b(&self, chip: &Chip) -> f64 {
        self.n * 32.0 / chip.smem_rate.value
    }

    /// Clocks for the bytes of A and B that are read from shared memory.
    fn reading(&self, chip: &Chip) -> f64 {
        self.b(chip) + if self.registers { 0.0 } else { Self::a(chip) }
    }

    /// Clocks for A's bytes in shared memory: 64 rows of 32.
    fn a(chip: &Chip) -> f64 {
        64.0 * 32.0 / chip.smem_rate.value
    }

    /// Clocks for A and B after a product of the same kind.
    fn operands(&self, before: Before, chip: &Chip) -> f64 {
        match before {
            _ if !self.registers => self.reading(chip),
            Before::Same => chip.wgmma_registers.value + self.b(chip),
            Before::TwoOthers if self.n > FEW_COLUMNS => chip.wgmma_registers_three.value + self.b(chip),
            Before::Other | Before::TwoOthers => chip.wgmma_registers_two.value,
        }
    }
}

impl<'r> World<'r> {
    /// Processes a `wgmma` that a warp has issued; returns when the warp can continue.
    pub(super) fn wgmma_issued(&mut self, t: &mut Timed<'r>, c: usize, w: &Warp, at: Moment) -> Moment {
        let chip = self.chip;
        let Some(last) = w.wgmma.last() else { return at };
        let (op, line) = (last.op.clone(), last.line);
        let wi = w.index as usize;
        let at = at.until(t.ctas[c].warps[wi].next_product, Cause::Instructions);
        let group = w.wgmma_groups;
        let product = Product { n: op.n as f64, registers: matches!(op.a, WgmmaA::Registers(_)) };
        let n = product.n;
        let math = product.math(chip);
        // After a product of another warpgroup; one of the same, or of a third by turns, may have to wait longer.
        let busy = math.max(product.operands(Before::Other, chip));
        let cause = if busy > math { Cause::TensorOperands } else { Cause::TensorMath };
        let unit = &mut self.sms[t.ctas[c].sm];
        // The four warps of a warpgroup are one product: the first of them takes the tensor core.
        let start = if wi.is_multiple_of(4) {
            // A product is accepted when one of those before it leaves the queue.
            let places = chip.wgmma_queue.value as usize;
            let accepted = match unit.products.len().checked_sub(places).and_then(|i| unit.products.get(i)) {
                Some(first) => at.until(first.time + chip.wgmma_leave.value, cause),
                None => at,
            };
            let cta = t.cluster.ctas[c].id;
            let (before, began) = unit.turns.next(Warpgroup { cta, number: wi / 4 });
            let operands = product.operands(before, chip);
            let start = accepted.max(unit.tensor);
            let start =
                if product.registers { start.until(began + operands, Cause::TensorOperands) } else { start };
            unit.turns.started(start.time);
            unit.tensor = start.after(busy, cause);
            unit.products.push_back(unit.tensor);
            if unit.products.len() > places {
                unit.products.pop_front();
            }
            unit.used.tensor += math;
            unit.used.operands += operands;
            // Sums, and A, are in the registers that other instructions read, too.
            let of_a = if product.registers { chip.wgmma_slots_a.value } else { 0.0 };
            let slots = n * chip.wgmma_slots.value + of_a;
            for sub in &mut unit.sub {
                sub.ports.spread(start.time, busy, slots);
            }
            unit.read_operands(start.time, busy, product.reading(chip));
            let times = &mut t.ctas[c].times;
            times.first_product.get_or_insert(start.time);
            times.last_product = Some(start.time + busy);
            t.ctas[c].accepted[wi / 4] = accepted;
            self.bar(t, c, Track::Tensor, "wgmma", line, start.time, start.time + busy);
            start
        } else {
            let leader = t.ctas[c].warps[wi / 4 * 4].products.last();
            let floor = leader.map_or(at, |(_, m)| {
                let mut m = *m;
                m.time -= math + chip.wgmma_tail.value;
                m
            });
            at.max(floor)
        };
        let done = start.after(math, Cause::TensorMath).after(chip.wgmma_tail.value, Cause::TensorLatency);
        t.ctas[c].warps[wi].products.push((group, done));
        // Beyond 64 columns the next one waits a clock more for 8 of them; other instructions do not.
        let next = at.max(t.ctas[c].accepted[wi / 4]);
        let issue = chip.wgmma_issue.value + (n - 64.0).max(0.0) / 8.0;
        t.ctas[c].warps[wi].next_product = next.time + issue;
        next.after(chip.wgmma_issue.value, Cause::Instructions)
    }
}
