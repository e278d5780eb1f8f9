//! Making findings.

use super::state::{Cluster, Warp};
use crate::finding::{Finding, FindingKind};
use crate::memory::Fault;

/// Adds a finding to a list, or counts it if the same one is there.
pub(crate) fn merge(list: &mut Vec<Finding>, f: Finding) {
    match list.iter_mut().find(|o| o.kind == f.kind && o.line == f.line) {
        Some(o) => o.count += f.count,
        None => list.push(f),
    }
}

/// Where something happened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    pub cta: u32,
    pub warp: u32,
    pub lane: Option<u32>,
    pub line: u32,
}

impl Origin {
    pub fn of(cta: usize, w: &Warp, lane: Option<u32>, line: u32) -> Self {
        Origin { cta: cta as u32, warp: w.index, lane, line }
    }
}

impl Cluster<'_> {
    /// Records a finding; a fatal one stops the cluster. Reaching the limit ends the list, not the run.
    #[cold]
    pub fn report(&mut self, kind: FindingKind, at: Origin, message: impl Into<String>) {
        self.fatal |= kind.is_fatal();
        let warns = kind.is_warning() && !self.strict();
        let list = if warns { &mut self.warnings } else { &mut self.findings };
        if let Some(o) = list.iter_mut().find(|o| o.kind == kind && o.line == at.line) {
            o.count += 1;
            return;
        }
        let options = self.run.options;
        // What stops the run is always told.
        if list.len() >= options.max_findings.max(1) && !kind.is_fatal() {
            self.left_out.insert((kind, at.line));
            return;
        }
        self.fatal |= options.stop_at_limit && !warns && list.len() + 1 >= options.max_findings;
        list.push(Finding {
            kind,
            line: at.line,
            text: self.run.module.line(at.line).to_owned(),
            cta: self.ctas.get(at.cta as usize).map_or([0; 3], |c| c.id),
            warp: at.warp,
            lane: at.lane,
            message: message.into(),
            count: 1,
        });
    }

    /// Reports a failed access.
    #[cold]
    pub fn fault(&mut self, at: Origin, what: &str, f: Fault) {
        let (kind, message) = match f {
            Fault::OutOfBounds(text) => (FindingKind::OutOfBounds, format!("{what}: {text}")),
            Fault::Misaligned { address, bytes } => (
                FindingKind::Misaligned,
                format!("{what}: address {address:#x} is not a multiple of {bytes}"),
            ),
            Fault::Peer(rank) => (
                FindingKind::PeerExited,
                format!(
                    "{what}: all threads of the cluster's CTA {rank} have exited; its shared memory is gone"
                ),
            ),
            Fault::Unsupported(text) => (FindingKind::Unsupported, format!("{what}: {text}")),
        };
        self.report(kind, at, message);
    }
}
