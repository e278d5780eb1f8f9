//! Instructions left out, and guards.

use super::{Collection, Kind};

/// Opcodes whose removal is a mutant of a kind. Waits for mbarriers loop until a predicate is true, so that
/// leaving them out means that it is.
const REMOVED: &[(&str, Kind)] = &[
    ("mbarrier.arrive", Kind::Arrive),
    ("mbarrier.arrive_drop", Kind::Arrive),
    ("mbarrier.expect_tx", Kind::Arrive),
    ("mbarrier.complete_tx", Kind::Arrive),
    ("cp.async.mbarrier.arrive", Kind::Arrive),
    ("mbarrier.init", Kind::InitCount),
    ("fence", Kind::Fence),
    ("membar", Kind::Fence),
    ("tcgen05.fence", Kind::Fence),
    ("wgmma.fence", Kind::Fence),
    ("tcgen05.commit", Kind::Commit),
    ("wgmma.commit_group", Kind::Commit),
    ("cp.async.commit_group", Kind::Commit),
    ("cp.async.bulk.commit_group", Kind::Commit),
    ("cp.async.wait_group", Kind::GroupWait),
    ("cp.async.wait_all", Kind::GroupWait),
    ("cp.async.bulk.wait_group", Kind::GroupWait),
    ("wgmma.wait_group", Kind::GroupWait),
    ("tcgen05.wait", Kind::GroupWait),
    ("bar.warp.sync", Kind::WarpBarrier),
    ("bar", Kind::Barrier),
    ("barrier", Kind::Barrier),
    ("tcgen05.alloc", Kind::Allocation),
    ("tcgen05.dealloc", Kind::Allocation),
    ("tcgen05.relinquish_alloc_permit", Kind::Hint),
    ("prefetch", Kind::Hint),
    ("prefetchu", Kind::Hint),
    ("cp.async.bulk.prefetch", Kind::Hint),
    ("setmaxnreg", Kind::Hint),
    ("nanosleep", Kind::Hint),
    ("tcgen05.cp", Kind::Work),
    ("tcgen05.mma", Kind::Work),
    ("tcgen05.ld", Kind::Work),
    ("tcgen05.st", Kind::Work),
    ("tcgen05.shift", Kind::Work),
    ("wgmma.mma_async", Kind::Work),
    ("mma", Kind::Work),
    ("ldmatrix", Kind::Work),
    ("stmatrix", Kind::Work),
    ("cp.async", Kind::Work),
    ("cp.reduce.async", Kind::Work),
    ("ld.shared", Kind::Work),
    ("ld.global", Kind::Work),
    ("st", Kind::Work),
    ("red", Kind::Work),
    ("atom", Kind::Work),
];

/// Description of a change to a guard.
pub(super) const NEGATED: &str = "guard negated";
/// Description of a change to a guard.
pub(super) const LEFT_OUT: &str = "guard left out";

pub(super) fn mutate(out: &mut Collection<'_, '_>, at: usize) {
    let source = out.source;
    let inst = &source.insts[at];
    if inst.is("mbarrier.try_wait") || inst.is("mbarrier.test_wait") {
        if let Some((range, _)) = inst.operands.first() {
            let complete = format!("setp.eq.u32 {}, 0, 0;", &source.text[range.clone()]);
            out.replace(Kind::Wait, at, inst.opcode_span.start..inst.span.end, complete, "does not wait");
        }
    } else if let Some(&(_, kind)) = REMOVED.iter().find(|(words, _)| inst.is(words)) {
        out.remove(kind, at);
    }
    guard(out, at);
    if inst.is("mbarrier.arrive.expect_tx")
        && let [first, _, last] = inst.operands.as_slice()
    {
        // Only the arrival, and only the expectation.
        let arrive = inst.opcode.replace("arrive.expect_tx", "arrive");
        let text = |r: std::ops::Range<usize>| &source.text[r];
        let all = inst.opcode_span.start..inst.span.end;
        let address = inst.operands[1].0.clone();
        let new = format!("{arrive} {}, {};", text(first.0.clone()), text(address.clone()));
        out.replace(Kind::Arrive, at, all.clone(), new, "expects no bytes");
        let modifiers: Vec<&str> = (inst.opcode.split('.'))
            .filter(|m| !matches!(*m, "arrive" | "release" | "relaxed" | "cta" | "cluster"))
            .collect();
        let expect = modifiers.join(".").replace("expect_tx", "expect_tx.relaxed.cta");
        let new = format!("{expect} {}, {};", text(address), text(last.0.clone()));
        out.replace(Kind::Arrive, at, all, new, "expects bytes without arriving");
    }
}

fn guard(out: &mut Collection<'_, '_>, at: usize) {
    let source = out.source;
    let inst = &source.insts[at];
    let Some((range, negated)) = inst.guard.clone() else { return };
    let name = source.text[range.clone()].trim_start_matches(['@', '!', ' ', '\t']);
    let new = if negated { format!("@{name}") } else { format!("@!{name}") };
    let kind = if inst.is("xor") { Kind::Parity } else { Kind::Guard };
    out.replace(kind, at, range.clone(), new, NEGATED);
    out.replace(kind, at, range, "", LEFT_OUT);
    if inst.is("bra") {
        out.remove(kind, at);
    }
}
