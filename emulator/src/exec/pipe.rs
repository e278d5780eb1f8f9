//! The tensor core's pipe: `mma`, `cp`, `shift` and `commit` of a CTA, which complete in the order of their issue.

use super::mbarrier::MbarOp;
use super::order::{Issue, Unit};
use super::queue::Place;
use super::report::Origin;
use super::state::{Cluster, Cta};
use super::tensor::tmem_kind;
use crate::engine::collector::{Buffer, Misuse, Usage};
use crate::engine::idesc::{CtaGroup, MmaKind};
use crate::engine::mma::{self, CtaMemory, MmaError, MmaInstruction};
use crate::engine::tmem::{CpDecompress, CpShape, TmemAddress, copy::CpError};
use crate::finding::FindingKind;
use crate::launch::{Schedule, Tracking};
use crate::memory::{Fault, Smem};

/// An operation of the tensor core.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    Mma(Box<MmaInstruction>, Usage),
    Copy { shape: CpShape, decompress: Option<CpDecompress>, address: u32, descriptor: u64, pair: bool },
    Shift { address: u32, pair: bool },
    Commit { to: Vec<Place> },
}

/// A tensor-core operation in flight.
#[derive(Clone, Debug)]
pub(crate) struct PipeOp {
    pub at: Origin,
    pub work: Work,
    /// For the tracker: the events ordered before the operation.
    pub issue: Option<Issue>,
}

fn kind_name(k: MmaKind) -> &'static str {
    match k {
        MmaKind::F16 => "f16",
        MmaKind::Tf32 => "tf32",
        MmaKind::F8f6f4 => "f8f6f4",
        MmaKind::I8 => "i8",
        MmaKind::Mxf8f6f4 => "mxf8f6f4",
        MmaKind::Mxf4 => "mxf4",
        MmaKind::Mxf4nvf4 => "mxf4nvf4",
    }
}

/// Reads shared memory for the tensor core; records the first undefined bytes.
pub(super) fn reader<'a>(
    smem: &'a Smem,
    unwritten: &'a mut Option<u32>,
) -> impl FnMut(u32, &mut [u8]) -> Result<(), Fault> + 'a {
    move |at, out| match smem.read(at, out) {
        Ok(true) => Ok(()),
        Ok(false) => {
            unwritten.get_or_insert(at);
            Ok(())
        }
        Err(_) => Err(Fault::OutOfBounds(format!(
            "{} bytes at shared offset {at:#x}; the kernel's shared memory ends at {:#x}",
            out.len(),
            smem.len()
        ))),
    }
}

/// Records what a reader reads, for the tracker.
pub(super) fn noting<'a>(
    mut read: impl FnMut(u32, &mut [u8]) -> Result<(), Fault> + 'a,
    reads: &'a mut Vec<(u32, u32)>,
    on: bool,
) -> impl FnMut(u32, &mut [u8]) -> Result<(), Fault> + 'a {
    move |at, out| {
        if on {
            reads.push((at, out.len() as u32));
        }
        read(at, out)
    }
}

impl Cluster<'_> {
    pub(super) fn submit_work(&mut self, c: usize, op: PipeOp) {
        self.progress += 1;
        self.ctas[c].pipe.push_back(op);
        if let Some(h) = &mut self.time {
            h.noted = true;
            h.pipes.push(c);
        } else if self.run.options.schedule == Schedule::Early {
            while !self.fatal && !self.ctas[c].pipe.is_empty() {
                self.advance_pipe(c);
            }
        }
    }

    /// Completes the oldest operation of a CTA's tensor core.
    pub(super) fn advance_pipe(&mut self, c: usize) {
        let Some(op) = self.ctas[c].pipe.pop_front() else {
            return;
        };
        let at = op.at;
        let issue = op.issue;
        if let Some(t) = &mut self.tracker {
            t.performing = issue.clone();
        }
        match op.work {
            Work::Mma(m, usage) => {
                let kept = self.collect(c, at, &m, usage);
                self.mma(c, at, kept.as_deref().unwrap_or(&m));
            }
            Work::Copy { shape, decompress, address, descriptor, pair } => {
                for cta in self.partners(c, pair, at) {
                    self.copy_to_tmem(cta, at, shape, decompress, address, descriptor);
                }
            }
            Work::Shift { address, pair } => {
                let from = TmemAddress::from_bits(address);
                let rows = (1 << (from.lane / 32 % 4), u32::MAX);
                for cta in self.partners(c, pair, at) {
                    self.track_columns(cta, at, rows, from.column..from.column + 8, &[]);
                    if let Err(e) = self.ctas[cta].tmem.shift_down(address) {
                        self.tmem_error(at, "tcgen05.shift", e);
                    }
                }
            }
            Work::Commit { to } => {
                for (cta, offset) in to {
                    if self.ctas[cta].gone() {
                        self.fault(at, "arrival of tcgen05.commit", Fault::Peer(cta as u32));
                        return;
                    }
                    if let (Some(t), Some(issue)) = (&mut self.tracker, &issue) {
                        t.mbar_deliver((cta, offset), at.line, issue, Some(Unit::Pipe), 0);
                    }
                    self.mbar_apply(cta, offset, MbarOp::Arrive(1, 0, false), at);
                }
            }
        }
    }

    /// The CTAs that take part; none after a finding.
    fn partners(&mut self, c: usize, pair: bool, at: Origin) -> std::ops::Range<usize> {
        if !pair {
            return c..c + 1;
        }
        let even = c & !1;
        if self.peer(c, at).is_none() {
            return 0..0;
        }
        even..even + 2
    }

    fn copy_to_tmem(
        &mut self,
        c: usize,
        at: Origin,
        shape: CpShape,
        decompress: Option<CpDecompress>,
        address: u32,
        descriptor: u64,
    ) {
        if self.without_values() {
            return;
        }
        let mut unwritten = None;
        let mut reads = Vec::new();
        let tracked = self.tracker.is_some();
        let Cta { smem, tmem, .. } = &mut self.ctas[c];
        let result = tmem.copy_from_smem(
            shape,
            decompress,
            address,
            descriptor,
            &mut noting(reader(smem, &mut unwritten), &mut reads, tracked),
        );
        let to = TmemAddress::from_bits(address & 0x3fff_ffff);
        let rows = (0xf, if shape == CpShape::S4x256b { 1 << (to.lane % 32) } else { u32::MAX });
        self.track_columns(c, at, rows, to.column..to.column + 4 * shape.units(), &reads);
        // What nothing wrote is judged where a product, or a thread, uses it.
        if unwritten.is_some() && result.is_ok() {
            let Cta { smem, tmem, .. } = &mut self.ctas[c];
            tmem.forget_copied(shape, decompress, address, descriptor, |at, n| smem.is_written(at, n));
        }
        match result {
            Ok(()) => {}
            Err(CpError::Descriptor(e)) => {
                self.report(FindingKind::IllegalDescriptor, at, format!("tcgen05.cp: {e}"))
            }
            Err(CpError::Tmem(e)) => self.tmem_error(at, "tcgen05.cp", e),
            Err(CpError::Memory(f)) => self.fault(at, "tcgen05.cp", f),
        }
    }

    fn unwritten_operand(&mut self, at: Origin, what: &str, unwritten: Option<u32>) {
        if let Some(a) = unwritten {
            self.report(
                FindingKind::UninitialisedShared,
                at,
                format!("{what} reads shared offset {a:#x}, which nothing has written"),
            );
        }
    }

    /// The effect of an MMA on the collector; returns the MMA with the kept operand if it names another one.
    fn collect(
        &mut self,
        c: usize,
        at: Origin,
        m: &MmaInstruction,
        usage: Usage,
    ) -> Option<Box<MmaInstruction>> {
        let first = if m.cta_group == CtaGroup::Two { c & !1 } else { c };
        match self.ctas[first].collectors.take(usage, m, at.line) {
            Ok(()) => None,
            Err(Misuse::Empty) => {
                if self.run.options.tracking == Tracking::Strict {
                    let text = "nothing is kept in the collector: use and lastuse need a fill that is still valid (PTX ISA, tcgen05.mma)";
                    self.report(FindingKind::CollectorMisuse, at, text);
                }
                None
            }
            Err(Misuse::Other { line, what, kept }) => {
                let fill = self.run.module.line(line);
                let operand = match usage.buffer {
                    Buffer::A => "A",
                    Buffer::B(_) => "B",
                };
                let text = format!(
                    "the collector keeps {operand} of line {line} `{fill}`, which differs in its {what}: the hardware may multiply \
                     with the kept one"
                );
                self.report(FindingKind::CollectorMisuse, at, text);
                kept
            }
        }
    }

    fn mma(&mut self, c: usize, at: Origin, m: &MmaInstruction) {
        if self.without_values() {
            return;
        }
        let partners = self.partners(c, m.cta_group == CtaGroup::Two, at);
        if partners.is_empty() {
            return;
        }
        let arithmetic = self.run.options.mma_arithmetic;
        let mut unwritten = [None; 2];
        let [u0, u1] = &mut unwritten;
        let tracked = self.tracker.is_some();
        let mut reads = [Vec::new(), Vec::new()];
        let [r0, r1] = &mut reads;
        let mut notes = Vec::new();
        let result = match &mut self.ctas[partners.clone()] {
            [Cta { smem, tmem, .. }] => mma::execute_anyway(
                m,
                &mut [CtaMemory { tmem, smem: &mut noting(reader(smem, u0), r0, tracked) }],
                arithmetic,
                &mut notes,
            ),
            [Cta { smem: s0, tmem: t0, .. }, Cta { smem: s1, tmem: t1, .. }] => mma::execute_anyway(
                m,
                &mut [
                    CtaMemory { tmem: t0, smem: &mut noting(reader(s0, u0), r0, tracked) },
                    CtaMemory { tmem: t1, smem: &mut noting(reader(s1, u1), r1, tracked) },
                ],
                arithmetic,
                &mut notes,
            ),
            _ => Ok(()),
        };
        self.track_mma(partners, at, m, &reads);
        self.unwritten_operand(at, "tcgen05.mma", unwritten[0].or(unwritten[1]));
        match result {
            Ok(()) => {
                if let Ok(i) = m.descriptor() {
                    let macs = u64::from(i.m) * u64::from(i.n) * u64::from(m.kind.k());
                    *self.stats.mma_macs.entry(kind_name(m.kind)).or_default() += macs;
                }
            }
            Err(e) => notes.push(e),
        }
        for e in notes {
            self.mma_error(at, e);
        }
    }

    fn mma_error(&mut self, at: Origin, e: MmaError<Fault>) {
        let text = e.to_string();
        let kind = match e {
            MmaError::Idesc(_) => FindingKind::IllegalInstructionDescriptor,
            MmaError::Descriptor { .. } => FindingKind::IllegalDescriptor,
            MmaError::Memory { error, operand } => {
                self.fault(at, &format!("{operand} of tcgen05.mma"), error);
                return;
            }
            MmaError::Tmem { source, .. } => tmem_kind(&source),
            MmaError::Sums { .. } | MmaError::OverOperand { .. } => FindingKind::TmemOperandOverwritten,
            MmaError::Metadata { .. } => FindingKind::UndefinedMetadata,
            _ => FindingKind::TmemMisuse,
        };
        self.report(kind, at, text);
    }
}
