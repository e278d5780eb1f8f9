//! Shadow memory: the past accesses of every granule against which later ones are checked.

/// The kind of an access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Nature {
    pub write: bool,
    /// Through the async proxy.
    pub proxy: bool,
    /// A strong or atomic access, which does not race with its like.
    pub atomic: bool,
    /// `tcgen05.dealloc`.
    pub free: bool,
    /// Whether the write leaves the bytes unchanged: compilers let several warps store one value.
    pub same: bool,
    /// Whether it is an asynchronous write that leaves the bytes unchanged.
    pub repeated: bool,
    /// Whether it is `tcgen05.alloc`'s write of the address.
    pub address: bool,
}

impl Nature {
    /// Whether two accesses to the same bytes need an order.
    #[inline]
    fn conflicts(self, new: Nature) -> bool {
        let idempotent = new.same && self.write && !self.proxy;
        (self.write || new.write) && !(self.atomic && new.atomic) && !idempotent
    }
}

/// A past access.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Past {
    /// The bytes, or lanes, of the granule.
    pub mask: u32,
    pub line: u32,
    /// The epoch: this component at this count.
    pub component: u16,
    pub clock: u32,
    /// The warp of the cluster that made or issued it.
    pub agent: u16,
    /// Lane of the warp, `SEVERAL` or `WHOLE`.
    pub lane: u8,
    /// Number of synchronisations of the warp's lanes before it.
    pub beat: u32,
    pub nature: Nature,
}

impl Past {
    /// Whether two stores of equal bytes are the same instruction's in two lanes of a warp: CUTLASS lets a whole warp
    /// issue the stores of its epilogues, and `cp.async` of one word.
    fn twin(&self, new: &Past) -> bool {
        let here = |p: &Past| (p.agent, p.line, p.beat, p.component, p.clock);
        new.nature.repeated && self.nature.write && here(self) == here(new)
    }
}

/// Several lanes, each for itself.
pub(crate) const SEVERAL: u8 = 32;
/// The whole warp, or no warp.
pub(crate) const WHOLE: u8 = 33;

/// The accesses to one granule: 16 bytes, or a column of 32 lanes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cell(Vec<Past>);

impl Cell {
    /// Adds an access. `conflict` is called with every past access that shares a byte, if one of the two is a write.
    #[inline]
    pub fn access(&mut self, new: Past, mut conflict: impl FnMut(&Past)) {
        let mut at = None;
        for (i, old) in self.0.iter().enumerate() {
            let meets = old.mask & new.mask != 0;
            if meets && old.nature.conflicts(new.nature) && !old.twin(&new) {
                conflict(old);
            }
            if old.component == new.component && old.nature == new.nature && old.mask & !new.mask == 0 {
                at = Some(i);
            }
        }
        // The same unit once more: its later access stands for both.
        if let Some(i) = at
            && (!new.nature.write || self.0.len() == 1)
        {
            let old = self.0[i];
            let alone = old.lane == new.lane || old.beat != new.beat;
            self.0[i] = Past { lane: if alone { new.lane } else { SEVERAL }, ..new };
            return;
        }
        if new.nature.write && !new.nature.atomic && !new.nature.same {
            // What came before is ordered before this write, or has been reported.
            self.0.retain_mut(|old| {
                old.mask &= !new.mask;
                old.mask != 0
            });
        }
        self.0.push(new);
    }

    /// The recorded accesses.
    pub fn pasts(&self) -> &[Past] {
        &self.0
    }

    /// Bytes that the generic proxy has read.
    pub fn observed(&self) -> u32 {
        let reads = self.0.iter().filter(|p| !p.nature.write && !p.nature.proxy);
        reads.fold(0, |mask, p| mask | p.mask)
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn past(component: u16, mask: u32, write: bool) -> Past {
        let nature = Nature { write, ..Nature::default() };
        Past { mask, line: 1, component, clock: 1, agent: 0, lane: WHOLE, beat: 0, nature }
    }

    fn conflicts(cell: &mut Cell, new: Past) -> usize {
        let mut n = 0;
        cell.access(new, |_| n += 1);
        n
    }

    #[test]
    fn writes_of_one_value_do_not_conflict_with_each_other() {
        let mut c = Cell::default();
        let nature = Nature { write: true, same: true, ..Nature::default() };
        assert_eq!(conflicts(&mut c, past(0, 0xf, true)), 0);
        assert_eq!(conflicts(&mut c, Past { nature, ..past(1, 0xf, true) }), 0);
        // A reader must come after both.
        assert_eq!(conflicts(&mut c, past(2, 0xf, false)), 2);
        assert_eq!(conflicts(&mut c, Past { nature, ..past(3, 0xf, true) }), 1);
    }

    #[test]
    fn only_common_bytes_with_a_write_conflict() {
        let mut c = Cell::default();
        assert_eq!(conflicts(&mut c, past(0, 0x00f, true)), 0);
        assert_eq!(conflicts(&mut c, past(1, 0x0f0, true)), 0);
        assert_eq!(conflicts(&mut c, past(2, 0x03c, false)), 2);
        assert_eq!(conflicts(&mut c, past(3, 0x03c, false)), 2);
        // Replaces the middle of all four, which stay at the edges.
        assert_eq!(conflicts(&mut c, past(4, 0x03c, true)), 4);
        assert_eq!(conflicts(&mut c, past(5, 0x0ff, false)), 3);
    }
}
