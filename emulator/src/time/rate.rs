//! A resource with a rate in bytes per clock. Requests may come in any order of time; each is served in the first
//! free clocks from its own time on.

/// Clocks of a bin.
const BIN: f64 = 16.0;
/// Clocks per bin for a DRAM channel, which takes longer per request.
const CHANNEL_BIN: f64 = 64.0;
/// Number of bins that are kept; earlier ones are dropped.
const BINS: usize = 1 << 14;
/// For units of an SM.
const FEW: usize = 256;
/// Clocks per bin for the ports of registers: between products a slot is free about as often.
const PORT_BIN: f64 = 4.0;
/// For a channel of DRAM, and for ports.
const CHANNEL_BINS: usize = 1024;
/// For a port from L2: as many clocks as all bytes take that SMs can have asked DRAM for.
const PORT_BINS: usize = 4096;

/// A rate in bytes per clock, with a calendar of the used part.
#[derive(Debug)]
pub(crate) struct Rate {
    /// Clocks of a bin.
    bin: f64,
    /// Bytes per bin, and clocks per byte.
    room: f64,
    clocks: f64,
    taken: Vec<f64>,
    /// Number of the bin that each place stands for.
    number: Vec<u64>,
    /// All bins from `from` to here are full.
    full: (u64, u64),
}

impl Rate {
    /// For what all SMs share.
    pub fn new(bytes_per_clock: f64) -> Self {
        Self::with(bytes_per_clock, BIN, BINS)
    }

    /// For a unit of an SM, whose requests lie close together.
    pub fn small(per_clock: f64) -> Self {
        Self::with(per_clock, BIN, FEW)
    }

    /// For a port of an SM from L2. Bytes come in any order, because lines take different times.
    pub fn port(bytes_per_clock: f64) -> Self {
        Self::with(bytes_per_clock, BIN, PORT_BINS)
    }

    /// For the port of shared memory. Queued products reserve bins in advance, by less than the stages of a pipeline last.
    pub fn shared_memory(bytes_per_clock: f64) -> Self {
        Self::with(bytes_per_clock, BIN, CHANNEL_BINS)
    }

    /// For the ports of a sub-core's registers, one slot per clock.
    pub fn ports() -> Self {
        Self::with(1.0, PORT_BIN, CHANNEL_BINS)
    }

    /// For a channel of DRAM.
    pub fn channel(bytes_per_clock: f64) -> Self {
        Self::with(bytes_per_clock, CHANNEL_BIN, CHANNEL_BINS)
    }

    fn with(per_clock: f64, bin: f64, bins: usize) -> Self {
        Rate {
            bin,
            room: per_clock * bin,
            clocks: per_clock.recip(),
            taken: vec![0.0; bins],
            number: vec![u64::MAX; bins],
            full: (0, 0),
        }
    }

    /// Takes `bytes` from `now` on; returns when the last of them is served.
    pub fn take(&mut self, now: f64, bytes: f64) -> f64 {
        let mut bin = (now.max(0.0) * self.bin.recip()) as u64;
        if (self.full.0..self.full.1).contains(&bin) {
            bin = self.full.1;
        }
        let first = bin;
        let mut left = bytes;
        loop {
            // The number of bins is a power of two.
            let i = bin as usize & (self.taken.len() - 1);
            if self.number[i] != bin {
                (self.number[i], self.taken[i]) = (bin, 0.0);
            }
            let free = self.room - self.taken[i];
            if left <= free {
                self.taken[i] += left;
                // Within a bin bytes are served one after the other.
                let at = bin as f64 * self.bin + self.taken[i] * self.clocks;
                return at.max(now + bytes * self.clocks);
            }
            self.taken[i] = self.room;
            left -= free;
            bin += 1;
            if self.full.1 == first || (self.full.0..=self.full.1).contains(&first) {
                self.full.1 = self.full.1.max(bin);
            } else if bin - first > 4 {
                self.full = (first, bin);
            }
        }
    }

    /// Takes `bytes` from `now` on, and returns from when on: `now`, or the first bin that has room for the last of them. Unlike
    /// [`Rate::take`] it knows no order within a bin.
    pub fn claim(&mut self, now: f64, bytes: f64) -> f64 {
        let mut bin = (now.max(0.0) * self.bin.recip()) as u64;
        let mut left = bytes;
        loop {
            let i = bin as usize & (self.taken.len() - 1);
            if self.number[i] != bin {
                (self.number[i], self.taken[i]) = (bin, 0.0);
            }
            let part = left.min(self.room - self.taken[i]);
            self.taken[i] += part;
            left -= part;
            if left <= 0.0 {
                return now.max(bin as f64 * self.bin);
            }
            bin += 1;
        }
    }

    /// Takes `bytes` spread evenly over the `clocks` from `now` on. What a bin has no room for is left out: whoever
    /// came first has it.
    pub fn spread(&mut self, now: f64, clocks: f64, bytes: f64) {
        let (from, to) = (now.max(0.0), now.max(0.0) + clocks);
        let mut bin = (from * self.bin.recip()) as u64;
        while (bin as f64) * self.bin < to {
            let start = (bin as f64 * self.bin).max(from);
            let end = ((bin + 1) as f64 * self.bin).min(to);
            let i = bin as usize & (self.taken.len() - 1);
            if self.number[i] != bin {
                (self.number[i], self.taken[i]) = (bin, 0.0);
            }
            self.taken[i] = (self.taken[i] + bytes * (end - start) / clocks).min(self.room);
            bin += 1;
        }
    }

    /// The part of the bin at `now` that is taken.
    pub fn used(&self, now: f64) -> f64 {
        let bin = (now.max(0.0) * self.bin.recip()) as u64;
        let i = bin as usize & (self.taken.len() - 1);
        if self.number[i] == bin { self.taken[i] / self.room } else { 0.0 }
    }

    /// Clocks of a request without competition.
    pub fn alone(&self, bytes: f64) -> f64 {
        bytes * self.clocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_out_of_order_take_what_is_free() {
        let mut r = Rate::new(100.0);
        assert_eq!(r.take(1600.0, 1600.0), 1616.0);
        // An earlier one is not behind it.
        assert_eq!(r.take(0.0, 1600.0), 16.0);
        assert_eq!(r.take(1600.0, 1600.0), 1632.0);
    }

    #[test]
    fn what_is_spread_leaves_the_rest_to_others() {
        let mut r = Rate::small(1.0);
        r.spread(8.0, 32.0, 24.0);
        // Each clock from 8 to 40 has a quarter left.
        assert_eq!(r.take(16.0, 4.0), 32.0);
        assert_eq!(r.take(16.0, 6.0), 44.0);
        // A claim does not wait for what else is in its bin.
        assert_eq!(r.claim(8.0, 10.0), 8.0);
        assert_eq!(r.claim(8.0, 1.0), 32.0);
        assert_eq!((r.used(40.0), r.used(70.0)), (13.0 / 16.0, 0.0));
        r.spread(64.0, 16.0, 100.0);
        assert_eq!(r.used(70.0), 1.0);
        assert_eq!(r.take(64.0, 1.0), 81.0);
    }

    #[test]
    fn a_queue_serves_its_rate() {
        let mut r = Rate::new(128.0);
        let last = (0..10_000).map(|i| r.take(f64::from(i) * 0.1, 128.0)).fold(0.0, f64::max);
        assert!((9_990.0..10_040.0).contains(&last), "{last}");
        assert!((r.take(5_000.0, 128.0) - last).abs() < 20.0);
    }
}
