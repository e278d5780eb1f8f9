//! Mistakes of clusters and pairs: CTAs that differ in what they do, or do it too early; and products that use
//! another A than the collector keeps.

use super::{Collection, Kind};
use crate::parse::ast::Operand;

/// Description of a change to a product.
pub(super) const ANOTHER_A: &str = "another A than is kept";

pub(super) fn mutate(out: &mut Collection<'_, '_>, at: usize) {
    let inst = &out.source.insts[at];
    let pair = inst.has("cta_group::2");
    if pair
        && ["tcgen05.alloc", "tcgen05.dealloc", "tcgen05.relinquish_alloc_permit"].iter().any(|i| inst.is(i))
    {
        one_cta(out, at);
    } else if inst.is("barrier.cluster.arrive") {
        own_barrier(out, at);
    } else if inst.has("collector::a::use") || inst.has("collector::a::lastuse") {
        another_a(out, at);
    }
}

/// One CTA of each pair omits the instruction, or the odd one allocates half the columns.
fn one_cta(out: &mut Collection<'_, '_>, at: usize) {
    let source = out.source;
    let inst = &source.insts[at];
    if inst.guard.is_some() {
        return;
    }
    let rank = "{ .reg .pred %mutant_even; .reg .b32 %mutant_rank; mov.u32 %mutant_rank, %cluster_ctarank; \
                and.b32 %mutant_rank, %mutant_rank, 1; setp.eq.u32 %mutant_even, %mutant_rank, 0;";
    let all = inst.span.clone();
    let lines = "\n".repeat(source.text[all.clone()].matches('\n').count());
    let text = source.text[all.clone()].split_whitespace().collect::<Vec<_>>().join(" ");
    for (guard, change) in
        [("@%mutant_even", "by the even CTA alone"), ("@!%mutant_even", "by the odd CTA alone")]
    {
        out.replace(Kind::Pair, at, all.clone(), format!("{rank} {guard} {text} }}{lines}"), change);
    }
    if inst.is("tcgen05.alloc")
        && let Some((range, Operand::Int(columns @ 64..))) = inst.operands.get(1)
    {
        let before =
            source.text[inst.opcode_span.start..range.start].split_whitespace().collect::<Vec<_>>().join(" ");
        let half = columns / 2;
        let new = format!(
            "{rank} .reg .b32 %mutant_columns; selp.b32 %mutant_columns, {columns}, {half}, %mutant_even; {before} \
             %mutant_columns; }}{lines}"
        );
        out.replace(Kind::Pair, at, all, new, format!("{half} columns in the odd CTA"));
    }
}

/// A barrier of the cluster that joins each CTA only.
fn own_barrier(out: &mut Collection<'_, '_>, at: usize) {
    let source = out.source;
    let [inst, next] = match source.insts.get(at..at + 2) {
        Some([inst, next]) => [inst, next],
        _ => return,
    };
    if !next.is("barrier.cluster.wait") || inst.guard.is_some() || next.guard.is_some() {
        return;
    }
    let all = inst.span.start..next.span.end;
    let lines = "\n".repeat(source.text[all.clone()].matches('\n').count());
    out.replace(Kind::Barrier, at, all, format!("bar.sync 0;{lines}"), "of the CTA alone");
}

/// The descriptor of A is the next slice of K's.
fn another_a(out: &mut Collection<'_, '_>, at: usize) {
    let source = out.source;
    let inst = &source.insts[at];
    let Some((range, Operand::Name(a))) = inst.operands.get(1) else { return };
    let all = inst.span.clone();
    let (before, after) = (&source.text[all.start..range.start], &source.text[range.end..all.end]);
    let new = format!("{{ .reg .b64 %mutant_a; add.u64 %mutant_a, {a}, 2; {before}%mutant_a{after} }}");
    out.replace(Kind::Collector, at, all, new, ANOTHER_A);
}
