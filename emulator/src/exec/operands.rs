//! Operands of instructions: values, and findings for undefined or non-uniform ones.

use super::report::Origin;
use super::state::{Cluster, Source, Warp};
use super::step::{Ctx, bits};
use crate::finding::FindingKind;
use crate::lanes::Lanes;
use crate::program::{Addr, CONSTANTS, Pred, SINK, Slot, Space};

impl Cluster<'_> {
    /// Reports a read of an undefined register.
    #[cold]
    fn unwritten(&mut self, x: Ctx, w: &Warp, s: Slot) {
        let lane = (x.m & !w.init[s as usize]).trailing_zeros();
        let name = self.run.program.register_name(s);
        let at = Origin::of(x.c, w, Some(lane), x.line);
        if w.loads.iter().any(|l| l.dst.contains(&s)) {
            self.report(
                FindingKind::MissingWait,
                at,
                format!("{name} is read before tcgen05.wait::ld has made the result of tcgen05.ld valid"),
            );
        } else if w.awaits_wgmma(s) {
            self.report(
                FindingKind::MissingWait,
                at,
                format!("{name} is read before wgmma.wait_group has made the result of wgmma valid"),
            );
        } else {
            let (kind, text) = self.why_undefined(w, s);
            self.report(kind, at, text);
        }
    }

    /// Why a register is undefined, for a finding at its use.
    pub(super) fn why_undefined(&self, w: &Warp, s: Slot) -> (FindingKind, String) {
        let name = |s| self.run.program.register_name(s);
        let Some(u) = w.undefined.get(&s) else {
            return (
                FindingKind::UninitialisedRegister,
                format!("{} is read but nothing has written it", name(s)),
            );
        };
        let mut text = format!("{} is read", name(s));
        let of_another = u.computed != 0;
        if of_another {
            text += &format!("; line {} computed it from {}, which", u.computed, name(u.root));
        } else {
            text += "; it";
        }
        let line = u.loaded;
        let (kind, what) = match u.source {
            Source::Register => (FindingKind::UninitialisedRegister, " nothing has written".to_owned()),
            Source::Local => (
                FindingKind::UninitialisedLocal,
                format!(" was loaded (line {line}) from local memory that nothing has written"),
            ),
            Source::Shared(offset) => (
                FindingKind::UninitialisedShared,
                format!(
                    " was loaded (line {line}) from shared offset {offset:#x}, where nothing has written, or only values that nothing had written"
                ),
            ),
            Source::Tensor { lane, column } => (
                FindingKind::UninitialisedTmem,
                format!(
                    " was loaded (line {line}) from tensor memory lane {lane}, column {column}, where nothing has written, or only values that nothing had written"
                ),
            ),
        };
        (kind, text + &what)
    }

    /// Lanes in which a source of an arithmetic instruction is undefined, and such a source. Compilers compute ahead
    /// of the branch that discards the result, so only an undefined value that reaches memory, an address, a
    /// predicate, or another lane or unit counts.
    #[inline]
    pub(super) fn undefined(&mut self, x: Ctx, w: &Warp, sources: &[Slot]) -> Option<(u32, Slot)> {
        let mut found = None;
        for &s in sources {
            if s < CONSTANTS && w.init[s as usize] & x.m != x.m {
                let lanes = x.m & !self.known(x, w, s);
                found = Some(found.map_or((lanes, s), |(other, s)| (lanes | other, s)));
            }
        }
        found
    }

    /// Checks that a source register is defined.
    #[inline]
    pub fn check(&mut self, x: Ctx, w: &Warp, s: Slot) {
        if s < CONSTANTS && w.init[s as usize] & x.m != x.m {
            self.unwritten(x, w, s);
        }
    }

    /// Lanes in which a register is defined, for instructions that only copy it: compilers move undefined values, and
    /// only computing with them counts.
    pub(super) fn known(&mut self, x: Ctx, w: &Warp, s: Slot) -> u32 {
        if s >= CONSTANTS {
            return u32::MAX;
        }
        if w.loads.iter().any(|l| l.dst.contains(&s)) || w.awaits_wgmma(s) {
            self.check(x, w, s);
        }
        w.init[s as usize]
    }

    /// A checked source register.
    #[inline]
    pub fn read(&mut self, x: Ctx, w: &Warp, s: Slot) -> Lanes {
        self.check(x, w, s);
        *w.lanes(self.run.program, s)
    }

    /// A checked source predicate.
    #[inline]
    pub fn read_pred(&mut self, x: Ctx, w: &Warp, p: Pred) -> u32 {
        let missing = x.m & !w.pinit[p.slot as usize];
        if missing != 0 {
            let at = Origin::of(x.c, w, Some(missing.trailing_zeros()), x.line);
            self.report(
                FindingKind::UninitialisedRegister,
                at,
                "a predicate is read but nothing has written it",
            );
        }
        w.pred(p)
    }

    /// Addresses of an address operand. Only global and generic addresses have 64 bits.
    pub fn addresses(&mut self, x: Ctx, w: &Warp, at: Addr, space: Space) -> Lanes {
        let wide = matches!(space, Space::Generic | Space::Global | Space::Const);
        let mut a = if at.base == SINK { [0; 32] } else { self.read(x, w, at.base) };
        for v in &mut a {
            *v = v.wrapping_add(at.offset as u64);
            if !wide {
                *v = u64::from(*v as u32);
            }
        }
        a
    }

    /// The value that all active lanes must agree on; `None` after a finding.
    pub fn uniform(&mut self, x: Ctx, w: &Warp, v: &Lanes, what: &str) -> Option<u64> {
        let first = v[x.m.trailing_zeros() as usize & 31];
        for i in bits(x.m) {
            if v[i as usize] != first {
                let at = Origin::of(x.c, w, Some(i), x.line);
                let other = v[i as usize];
                self.report(
                    FindingKind::NonUniform,
                    at,
                    format!("{what} must be the same in all lanes: lane {i} has {other:#x}, another has {first:#x}"),
                );
                return None;
            }
        }
        Some(first)
    }
}
