//! Survivors that could not matter in a launch, by what it executes and reads. This says nothing about other
//! launches.

use super::harness::Runner;
use super::source::{Inst, Source};
use super::{Edit, Kind, Mutant};
use crate::parse::ast::Operand;
use std::ops::Range;

/// Byte ranges of the text and their replacements.
type Edits = Vec<(Range<usize>, String)>;

impl Runner<'_> {
    /// Why a survivor could not matter in this launch.
    pub(super) fn idle(&self, mutant: &Mutant) -> Option<String> {
        if !self.met.reaches(mutant) {
            return Some("no lane executes it in this launch".to_owned());
        }
        // Which lanes it lets through may be a question of when: of what has completed already if nothing takes time.
        let same_walk = || {
            if self.walked.executes(mutant) != self.met.executes(mutant) {
                return false;
            }
            let Ok((module, launch)) = self.mutated(mutant) else { return false };
            let module = module.as_ref().unwrap_or(&self.subject.file.module);
            self.walk(module, &launch).is_ok_and(|walk| walk == self.walked)
        };
        // A comparison that guards something: where all guards come out the same, so did it.
        let result = mutant.was.split_whitespace().nth(1)?.trim_end_matches(',');
        let guards = [format!("@{result} "), format!("@!{result} ")];
        let is_guard = guards.iter().any(|g| self.subject.text.contains(g));
        let reason = match mutant.kind {
            Kind::Bound if is_guard && same_walk() => {
                "the comparison comes out the same every time in this launch"
            }
            Kind::Guard if same_walk() => "the guard lets the same lanes through in this launch",
            Kind::Step | Kind::Parity | Kind::Bound if self.is_same_with(mutant, &results) => {
                "nothing reads its result in this launch: any other gives the same"
            }
            _ if self.is_same_with(mutant, &factors) => {
                "what it multiplies is 0 in this launch: any other factor gives the same"
            }
            _ => return None,
        };
        Some(reason.to_owned())
    }

    /// Whether each of several other edits of the instruction has no effect either.
    fn is_same_with(&self, mutant: &Mutant, others: &dyn Fn(&Inst<'_>, &str) -> Edits) -> bool {
        let source = Source::new(&self.subject.text, self.subject.kernel());
        let Edit::Text(range, _) = &mutant.edit else { return false };
        let inside = |i: &&Inst<'_>| i.span.start <= range.start && range.end <= i.span.end;
        let Some(inst) = source.insts.iter().find(inside) else { return false };
        let edits = others(inst, source.text);
        !edits.is_empty()
            && edits.into_iter().all(|(range, new)| {
                let edit = Edit::Text(range, new);
                self.judge(&Mutant { edit, ..mutant.clone() }, self.schedules.len()).is_none()
            })
    }
}

/// Arbitrary results instead of an instruction's.
fn results(inst: &Inst<'_>, text: &str) -> Edits {
    let Some((result, Operand::Name(_))) = inst.operands.first() else { return Vec::new() };
    let (result, whole) = (&text[result.clone()], inst.span.clone());
    if inst.is("setp") {
        return ["eq", "ne"].map(|is| (whole.clone(), format!("setp.{is}.u32 {result}, 0, 0;"))).into();
    }
    let bits = match inst.opcode.rsplit_once(['u', 's', 'b']) {
        Some((_, "32")) => 32,
        Some((_, "64")) => 64,
        _ => return Vec::new(),
    };
    let number = |byte: &str| format!("mov.b{bits} {result}, 0x{};", byte.repeat(bits / 8));
    ["5a", "a5"].map(|byte| (whole.clone(), number(byte))).into()
}

/// Arbitrary factors instead of an instruction's.
fn factors(inst: &Inst<'_>, _: &str) -> Edits {
    match inst.operands.get(2) {
        Some((factor, Operand::Int(_))) if inst.is("mul") || inst.is("mad") => {
            ["0x00a5a5a0", "0x005a5a50"].map(|number| (factor.clone(), number.to_owned())).into()
        }
        _ => Vec::new(),
    }
}
