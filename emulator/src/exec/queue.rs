//! Asynchronous operations in flight.
//!
//! Copies may complete in any order. Tensor-core operations of a CTA complete in the order of their issue
//! (`Cta::pipe`). The schedule decides when.

use super::mbarrier::MbarOp;
use super::order::Issue;
use super::report::Origin;
use super::state::{Cluster, Warp};
use super::step::bits;
use crate::engine::tensor_map::TensorMapParams;
use crate::engine::tensor_map::im2col::Im2colParams;
use crate::isa::Ty;
use crate::launch::Schedule;
use crate::program::Rmw;
use std::collections::HashMap;
use std::ops::{Deref, DerefMut};

/// A place in the shared memory of the cluster: CTA and offset.
pub(crate) type Place = (usize, u32);

/// The additions of im2col mode to a tensor copy: the map with its bounding box, and the offsets.
pub(crate) type Pixels = Box<(Im2colParams, Vec<u16>)>;

/// Where a store of the bulk engine writes.
#[derive(Clone, Debug)]
pub(crate) enum StoreTo {
    /// `mask`: which of every 16 bytes are written.
    Linear {
        global: u64,
        bytes: u32,
        mask: u16,
        reduce: Option<(Rmw, Ty)>,
    },
    Tensor {
        map: Box<TensorMapParams>,
        coords: Vec<i32>,
        pixels: Option<Pixels>,
        reduce: Option<(Rmw, Ty)>,
    },
}

/// An asynchronous copy.
#[derive(Clone, Debug)]
pub(crate) enum Copy {
    TensorLoad {
        map: Box<TensorMapParams>,
        coords: Vec<i32>,
        pixels: Option<Pixels>,
        to: Vec<(Place, Place)>,
        /// Whether L2 is to evict what it reads first.
        first: bool,
    },
    BulkLoad {
        src: u64,
        bytes: u32,
        to: Vec<(Place, Place)>,
        first: bool,
    },
    BulkSmem {
        src: Place,
        dst: Place,
        bytes: u32,
        mbar: Place,
        reduce: Option<(Rmw, Ty)>,
    },
    Store {
        from: Place,
        to: StoreTo,
        group: u32,
        staged: Option<Vec<(u64, Vec<u8>)>>,
    },
    Small {
        src: u64,
        dst: Place,
        bytes: u32,
        valid: u32,
        group: u32,
    },
    /// `st.async`, or `red.async` of one value.
    Remote {
        to: Place,
        data: Vec<u8>,
        mbar: Place,
        reduce: Option<(Rmw, Ty)>,
    },
    /// `cp.async.mbarrier.arrive`: after all earlier `Small` copies of the thread.
    SmallArrive {
        mbar: Place,
        group: u32,
    },
    /// Answer of `clusterlaunchcontrol.try_cancel`: its bytes, and the places of the answer and of its mbarrier.
    Answer {
        bytes: [u8; 16],
        to: Vec<(Place, Place)>,
    },
}

/// A copy in flight.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    pub sequence: u64,
    pub at: Origin,
    pub copy: Copy,
    /// For the tracker: the events ordered before the copy.
    pub issue: Option<Issue>,
}

/// The copies of a cluster that are in flight, in no order. One is found by its sequence number without a search.
#[derive(Debug, Default)]
pub(crate) struct Flight {
    copies: Vec<Pending>,
    /// Where the copy of each sequence number is.
    places: HashMap<u64, usize>,
}

impl Flight {
    pub fn push(&mut self, copy: Pending) {
        self.places.insert(copy.sequence, self.copies.len());
        self.copies.push(copy);
    }

    /// The place of a copy, if it is in flight.
    pub fn place(&self, sequence: u64) -> Option<usize> {
        self.places.get(&sequence).copied()
    }

    /// Takes a copy out. The last one gets its place.
    pub fn take(&mut self, place: usize) -> Pending {
        let copy = self.copies.swap_remove(place);
        self.places.remove(&copy.sequence);
        if let Some(moved) = self.copies.get(place) {
            self.places.insert(moved.sequence, place);
        }
        copy
    }
}

impl Deref for Flight {
    type Target = [Pending];

    fn deref(&self) -> &[Pending] {
        &self.copies
    }
}

impl DerefMut for Flight {
    fn deref_mut(&mut self) -> &mut [Pending] {
        &mut self.copies
    }
}

fn same_thread(a: Origin, b: Origin) -> bool {
    a.cta == b.cta && a.warp == b.warp && a.lane == b.lane
}

impl Cluster<'_> {
    /// Starts a copy; with the early schedule it completes at once.
    pub fn submit(&mut self, at: Origin, copy: Copy) {
        self.progress += 1;
        self.sequence += 1;
        let issue = self.issue_copy(at, &copy);
        let mut p = Pending { sequence: self.sequence, at, copy, issue };
        if let Some(h) = &mut self.time {
            h.noted = true;
            h.copies.push(p.sequence);
        } else if self.run.options.schedule == Schedule::Early {
            while !self.fatal && !self.perform(&mut p) {}
            return;
        }
        self.queue.push(p);
    }

    /// Completes one operation in flight, if there is one.
    pub fn complete_one(&mut self) -> bool {
        self.complete_some(None)
    }

    /// Completes one operation in flight that `except` has not issued, if there is one.
    pub fn complete_some(&mut self, except: Option<u32>) -> bool {
        let eligible: Vec<usize> = (0..self.queue.len())
            .filter(|&i| {
                let p = &self.queue[i];
                if except == Some(p.at.warp) {
                    return false;
                }
                !matches!(p.copy, Copy::SmallArrive { .. })
                    || !self.queue.iter().any(|q| {
                        q.sequence < p.sequence
                            && matches!(q.copy, Copy::Small { .. })
                            && same_thread(q.at, p.at)
                    })
            })
            .collect();
        let pipes: Vec<usize> = (0..self.ctas.len())
            .filter(|&c| self.ctas[c].pipe.front().is_some_and(|p| except != Some(p.at.warp)))
            .collect();
        let n = eligible.len() + pipes.len();
        if n == 0 {
            return false;
        }
        let pick = match self.run.options.schedule {
            Schedule::Random(_) | Schedule::Starve { .. } | Schedule::Delay { .. } => {
                self.random(n as u64) as usize
            }
            // Late: the newest copy first; the tensor core, which is slow, after the copies.
            Schedule::Early | Schedule::Late => {
                match eligible.iter().enumerate().max_by_key(|(_, i)| self.queue[**i].sequence) {
                    Some((k, _)) => k,
                    None => 0,
                }
            }
        };
        self.progress += 1;
        if let Some(&i) = eligible.get(pick) {
            let mut p = self.queue.take(i);
            if !self.perform(&mut p) {
                self.queue.push(p);
            }
        } else if let Some(&c) = pipes.get(pick - eligible.len()) {
            self.advance_pipe(c);
        }
        true
    }

    /// Whether the bulk groups of a wait are complete.
    pub fn bulk_done(&self, c: usize, w: &Warp, mask: u32, groups: u32, read: bool) -> bool {
        !self.queue.iter().any(|p| {
            let Copy::Store { group, staged, .. } = &p.copy else {
                return false;
            };
            let Some(lane) = p.at.lane else { return false };
            p.at.cta as usize == c
                && p.at.warp == w.index
                && mask >> lane & 1 == 1
                && group.saturating_add(groups) < w.bulk_groups[lane as usize]
                && !(read && staged.is_some())
        })
    }

    /// Whether the `cp.async` groups of a wait are complete.
    pub fn copies_done(&self, c: usize, w: &Warp, mask: u32, groups: u32) -> bool {
        !self.queue.iter().any(|p| {
            let Copy::Small { group, .. } = &p.copy else {
                return false;
            };
            let Some(lane) = p.at.lane else { return false };
            p.at.cta as usize == c
                && p.at.warp == w.index
                && mask >> lane & 1 == 1
                && group.saturating_add(groups) < w.copy_groups[lane as usize]
        })
    }

    /// Commits the bulk or small copies of lanes as a group.
    pub fn commit_group(w: &mut Warp, m: u32, small: bool) {
        for i in bits(m) {
            let n = if small { &mut w.copy_groups } else { &mut w.bulk_groups };
            n[i as usize] += 1;
        }
    }

    /// Tells an mbarrier that bytes have arrived.
    pub fn complete_tx(&mut self, (cta, offset): Place, bytes: u32, at: Origin) {
        if self.fatal {
            return;
        }
        if self.ctas.get(cta).is_some_and(|c| c.gone()) {
            let rank = cta as u32;
            self.fault(at, "arrival of copied bytes", crate::memory::Fault::Peer(rank));
            return;
        }
        let phase =
            self.ctas.get(cta).and_then(|c| c.mbars.iter().find(|b| b.offset == offset)).map(|b| b.phase);
        if let (Some(t), Some(phase)) = (&mut self.tracker, phase)
            && let Some(issue) = t.performing.clone()
        {
            t.mbar_deliver((cta, offset), at.line, &issue, None, phase);
        }
        self.mbar_apply(cta, offset, MbarOp::Complete(bytes), at);
    }
}
