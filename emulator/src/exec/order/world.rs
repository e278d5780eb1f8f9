//! Order between the clusters of one launch, in global memory.
//!
//! A cluster is one unit here: what one of its threads has observed, all of them have. That misses some races and
//! invents none. For every page of 4 KiB, the record has which bytes each cluster read or wrote in which epoch; an
//! epoch ends when the cluster releases with `.gpu` scope or wider. Clusters run on several host threads, so pages
//! and flags have locks, held for one access each.

use super::Tracker;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of a page.
const PAGE: u64 = 4096;
const WORDS: usize = PAGE as usize / 64;
const SHARDS: usize = 64;
/// Entries of one page beyond which the oldest half is forgotten.
const MOST: usize = 2048;

/// The last epoch of each other cluster that is ordered before a point of execution.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen(HashMap<u32, u32>);

impl Seen {
    fn join(&mut self, other: &Seen) {
        for (&cluster, &epoch) in &other.0 {
            let e = self.0.entry(cluster).or_default();
            *e = (*e).max(epoch);
        }
    }

    fn has(&self, cluster: u32, epoch: u32) -> bool {
        self.0.get(&cluster).is_some_and(|&e| e >= epoch)
    }
}

/// Accesses of one cluster to a page in one epoch.
struct Entry {
    cluster: u32,
    epoch: u32,
    line: u32,
    write: bool,
    atomic: bool,
    bytes: Box<[u64; WORDS]>,
}

#[derive(Default)]
struct Page {
    entries: Vec<Entry>,
    written: bool,
    values: Option<Box<Values>>,
}

/// The bytes that threads last stored in a page, and which of them are known. They are kept here because memory may
/// lag behind: another cluster may have announced its store and not made it yet.
struct Values {
    bytes: [u8; PAGE as usize],
    known: [u64; WORDS],
}

/// Accesses of all clusters of a launch to global memory.
pub(crate) struct World {
    shards: Vec<Mutex<HashMap<u64, Page>>>,
    /// Views published through flags, by address.
    flags: Mutex<HashMap<u64, Seen>>,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One access of a cluster.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Act<'a> {
    pub write: bool,
    /// Strong, of `.gpu` scope or wider.
    pub atomic: bool,
    /// The bytes that a thread stores: clusters that store equal bytes do not race.
    pub data: Option<&'a [u8]>,
    pub line: u32,
}

/// A past access of another cluster that is not ordered before the new one: cluster, line, address.
pub(crate) type Conflict = (u32, u32, u64);

impl World {
    pub fn new() -> Self {
        World { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), flags: Mutex::default() }
    }

    fn access(&self, own: &Own, address: u64, n: u64, act: Act<'_>) -> Option<Conflict> {
        let mut found = None;
        let end = address.saturating_add(n);
        let mut at = address;
        while at < end {
            // The end of the last page does not fit a u64.
            let stop = end.min((at | (PAGE - 1)).saturating_add(1));
            let page = at / PAGE;
            let mut shard = lock(&self.shards[page as usize % SHARDS]);
            let data = act.data.and_then(|d| d.get((at - address) as usize..(stop - address) as usize));
            let clash =
                shard.entry(page).or_default().access(own, (at % PAGE, stop - at), Act { data, ..act });
            found = found.or(clash.map(|(cluster, line, byte)| (cluster, line, page * PAGE + byte)));
            at = stop;
        }
        found
    }
}

impl Page {
    fn access(&mut self, own: &Own, (first, n): (u64, u64), act: Act<'_>) -> Option<(u32, u32, u64)> {
        let (from, to) = (first as usize / 64, (first + n - 1) as usize / 64);
        // The bytes of word `w` that the access covers.
        let mask = |w: usize| {
            let low = first.saturating_sub(64 * w as u64).min(63);
            let high = (first + n - 64 * w as u64).min(64);
            (u64::MAX >> (64 - (high - low))) << low
        };
        let mut found = None;
        let mut mine = None;
        for (i, e) in self.entries.iter().enumerate() {
            if e.cluster == own.cluster {
                if e.epoch == own.epoch && e.write == act.write && e.atomic == act.atomic {
                    mine = Some(i);
                }
                continue;
            }
            let harmless = !(e.write || act.write) || e.atomic && act.atomic;
            if harmless || found.is_some() || !(self.written || act.write) || own.seen.has(e.cluster, e.epoch)
            {
                continue;
            }
            // Bytes of both accesses that differ, or may.
            let differ = |w: usize| {
                let both = e.bytes[w] & mask(w);
                match (&self.values, act.data) {
                    (Some(v), Some(d)) if e.write => both & !v.equal(first, d, w, both),
                    _ => both,
                }
            };
            if let Some((w, bytes)) = (from..=to).map(|w| (w, differ(w))).find(|&(_, bytes)| bytes != 0) {
                found = Some((e.cluster, e.line, 64 * w as u64 + u64::from(bytes.trailing_zeros())));
            }
        }
        self.written |= act.write;
        if act.write {
            match act.data {
                Some(d) => {
                    let v = self.values.get_or_insert_with(Values::none);
                    v.bytes[first as usize..][..d.len()].copy_from_slice(d);
                    (from..=to).for_each(|w| v.known[w] |= mask(w));
                }
                None => {
                    if let Some(v) = &mut self.values {
                        (from..=to).for_each(|w| v.known[w] &= !mask(w));
                    }
                }
            }
        }
        let i = mine.unwrap_or_else(|| {
            if self.entries.len() >= MOST {
                self.entries.drain(..MOST / 2);
            }
            self.entries.push(Entry {
                cluster: own.cluster,
                epoch: own.epoch,
                line: act.line,
                write: act.write,
                atomic: act.atomic,
                bytes: Box::new([0; WORDS]),
            });
            self.entries.len() - 1
        });
        let e = &mut self.entries[i];
        e.line = act.line;
        for w in from..=to {
            e.bytes[w] |= mask(w);
        }
        found
    }
}

impl Values {
    fn none() -> Box<Self> {
        Box::new(Values { bytes: [0; PAGE as usize], known: [0; WORDS] })
    }

    /// Which of `bytes` of word `w` are known to hold what `data`, starting at byte `first` of the page, would store.
    fn equal(&self, first: u64, data: &[u8], w: usize, bytes: u64) -> u64 {
        let mut left = bytes & self.known[w];
        let mut equal = 0;
        while left != 0 {
            let bit = left.trailing_zeros();
            let at = 64 * w + bit as usize;
            equal |= u64::from(data.get(at - first as usize) == Some(&self.bytes[at])) << bit;
            left &= left - 1;
        }
        equal
    }
}

/// One cluster's part.
#[derive(Debug)]
pub(crate) struct Own {
    cluster: u32,
    epoch: u32,
    seen: Seen,
    /// By warp: what its last fence published, and what relaxed reads saw since its last fence.
    fenced: Vec<Option<Seen>>,
    unacquired: Vec<Seen>,
}

impl Own {
    pub fn new(cluster: u32, warps: usize) -> Self {
        let unacquired = (0..warps).map(|_| Seen::default()).collect();
        Own { cluster, epoch: 1, seen: Seen::default(), fenced: vec![None; warps], unacquired }
    }

    /// Everything that the cluster did and observed; later events belong to a new epoch.
    fn publish(&mut self) -> Seen {
        let mut all = self.seen.clone();
        all.0.insert(self.cluster, self.epoch);
        self.epoch += 1;
        all
    }

    /// A fence of `.gpu` scope or wider.
    pub fn fence(&mut self, warp: u16) {
        let late = std::mem::take(&mut self.unacquired[warp as usize]);
        self.seen.join(&late);
        self.fenced[warp as usize] = Some(self.publish());
    }

    /// A strong write: before it is made.
    pub fn release(&mut self, world: &World, warp: u16, at: u64, relaxed: bool) {
        let what = if relaxed { self.fenced[warp as usize].clone() } else { Some(self.publish()) };
        if let Some(what) = what {
            lock(&world.flags).entry(at).or_default().join(&what);
        }
    }

    /// A strong read: after it is made.
    pub fn acquire(&mut self, world: &World, warp: u16, at: u64, relaxed: bool) {
        if let Some(what) = lock(&world.flags).get(&at) {
            let to = if relaxed { &mut self.unacquired[warp as usize] } else { &mut self.seen };
            to.join(what);
        }
    }
}

impl Tracker {
    /// Checks an access to global memory against other clusters.
    pub(super) fn abroad(&mut self, world: &World, address: u64, n: u64, act: Act<'_>) -> Option<Conflict> {
        let own = self.own_world.as_ref()?;
        if n == 0 {
            return None;
        }
        world.access(own, address, n, act)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn act(write: bool) -> Act<'static> {
        Act { write, atomic: false, data: None, line: 7 }
    }

    #[test]
    fn equal_bytes_of_two_clusters_do_not_race_and_others_do() {
        let world = World::new();
        let (a, b) = (Own::new(0, 1), Own::new(1, 1));
        let store = |own: &Own, at: u64, data: &[u8]| {
            world.access(own, at, data.len() as u64, Act { data: Some(data), ..act(true) })
        };
        assert_eq!(store(&a, 4092, &[1, 2, 3, 4, 5, 6, 7, 8]), None);
        assert_eq!(store(&b, 4094, &[3, 4, 5, 6]), None);
        assert_eq!(store(&b, 4095, &[4, 5, 9]), Some((0, 7, 4097)));
        // What an asynchronous copy wrote is not known, nor is a load of equal bytes harmless.
        assert_eq!(world.access(&a, 8192, 4, act(true)), None);
        assert_eq!(store(&b, 8192, &[0]), Some((0, 7, 8192)));
        assert_eq!(world.access(&b, 4092, 1, act(false)), Some((0, 7, 4092)));
    }

    #[test]
    fn an_access_at_the_end_of_the_address_space_ends() {
        let (world, own) = (World::new(), Own::new(0, 1));
        assert_eq!(world.access(&own, u64::MAX - 31, 128, act(true)), None);
        assert_eq!(world.access(&Own::new(1, 1), u64::MAX - 31, 4, act(true)), Some((0, 7, u64::MAX - 31)));
        let pages: usize = world.shards.iter().map(|shard| lock(shard).len()).sum();
        assert_eq!(pages, 1);
    }

    #[test]
    fn bytes_of_two_clusters_conflict_unless_released_and_acquired() {
        let world = World::new();
        let (mut a, mut b) = (Own::new(0, 1), Own::new(1, 1));
        assert_eq!(world.access(&a, 4090, 12, act(true)), None);
        // Neighbours do not meet.
        assert_eq!(world.access(&b, 4102, 4, act(true)), None);
        assert_eq!(world.access(&b, 4100, 4, act(false)), Some((0, 7, 4100)));
        a.release(&world, 0, 64, false);
        b.acquire(&world, 0, 64, true);
        assert!(world.access(&b, 4090, 4, act(false)).is_some());
        b.fence(0);
        assert_eq!(world.access(&b, 4090, 12, act(false)), None);
        // What a did after its release is not covered.
        assert_eq!(world.access(&a, 0, 64, act(true)), None);
        assert_eq!(world.access(&b, 63, 1, act(false)), Some((0, 7, 63)));
    }

    #[test]
    fn relaxed_writes_carry_what_a_fence_published() {
        let world = World::new();
        let (mut a, mut b) = (Own::new(0, 2), Own::new(1, 1));
        assert_eq!(world.access(&a, 0, 8, act(true)), None);
        a.release(&world, 0, 64, true);
        b.acquire(&world, 0, 64, false);
        assert!(world.access(&b, 0, 8, act(false)).is_some());
        a.fence(1);
        a.release(&world, 1, 64, true);
        b.acquire(&world, 0, 64, false);
        assert_eq!(world.access(&b, 0, 8, act(false)), None);
        let atomic = Act { atomic: true, ..act(true) };
        assert_eq!(world.access(&a, 128, 8, atomic), None);
        assert_eq!(world.access(&b, 128, 8, atomic), None);
        assert!(world.access(&b, 128, 8, act(true)).is_some());
    }
}
