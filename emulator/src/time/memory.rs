//! L2 and DRAM, which all SMs share: present lines, lines under way, and queues.

use super::chip::Chip;
use super::rate::Rate;

/// Bytes of a line.
pub(crate) const LINE: u64 = 128;
/// Ways of a set. A line may be in either of two sets, so that few lines find both full before L2 is.
const WAYS: usize = 8;

/// A request for a whole line that requests of its GPC may join. All zeros: none.
#[derive(Clone, Copy, Debug, Default)]
struct Joinable {
    /// The last clk at which one joins it.
    until: f32,
    /// When L2 has served it, in clk.
    served: f32,
}

/// A line of L2.
#[derive(Clone, Copy, Debug)]
struct Way {
    /// Line number plus 1; 0 for none.
    line: u64,
    /// Time at which its bytes are in L2, for SMs of the half that its DRAM is beside, in clk.
    ready: f64,
    /// When it was last used.
    used: u32,
}

/// Where an SM is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The half of L2 beside it.
    pub half: usize,
    /// Its GPC. Requests of a GPC's SMs for one line are one request to L2.
    pub gpc: usize,
}

impl Place {
    /// Where the SM with this number is. Its TPC has two SMs, and successive TPCs are in successive GPCs.
    pub fn of(chip: &Chip, sm: usize) -> Place {
        let gpcs = gpcs(chip);
        let gpc = sm / 2 % gpcs;
        Place { half: usize::from(2 * gpc >= gpcs), gpc }
    }
}

/// GPCs of a chip, at least one.
pub(crate) fn gpcs(chip: &Chip) -> usize {
    chip.gpcs.value.max(1.0) as usize
}

/// Where a request found its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    L2,
    /// Under way from DRAM for another SM.
    Shared,
    Dram,
}

/// When a request's bytes leave L2 for its SM, and the reasons for delays.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Read {
    pub at: f64,
    pub source: Source,
    /// Clocks that it waited for other requests.
    pub queued: f64,
    /// Clocks of a hit.
    pub latency: f64,
}

/// Bytes transferred, and waiting times of requests.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Traffic {
    pub l2_bytes: f64,
    pub dram_bytes: f64,
    pub written: f64,
    /// Clocks that requests waited for other requests.
    pub queued: f64,
    pub requests: u64,
}

/// L2 and DRAM.
#[derive(Debug)]
pub(crate) struct Memory {
    sets: Vec<[Way; WAYS]>,
    /// The request of each GPC for each line that later ones may join.
    reads: Vec<Joinable>,
    gpcs: usize,
    clock: u32,
    /// The halves of L2, and DRAM.
    l2: [Rate; 2],
    crossbar: Rate,
    writes: Rate,
    /// Rows outside of tensors, and the SMs that have asked for one.
    outside: Rate,
    asked: Vec<bool>,
    asking: f64,
    /// What one of their rows takes of the rate for one SM.
    share: f64,
    /// DRAM channels, chosen by address.
    channels: Vec<Rate>,
    /// Contiguous lines per channel.
    interleave: u64,
    merge: f64,
    latency: f64,
    far: f64,
    dram: f64,
    /// What DRAM of the other half takes in addition.
    dram_far: f64,
    /// How long a refresh keeps a bank of DRAM busy, and from the start of one to the next.
    refresh: f64,
    refresh_interval: f64,
    pub traffic: Traffic,
}

fn hash(line: u64) -> u64 {
    let x = line ^ line >> 17;
    let x = x.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ x >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^ x >> 32
}

impl Memory {
    pub fn new(chip: &Chip) -> Self {
        let channels = chip.dram_channels.value.max(1.0);
        let channel = chip.dram_rate.value * 1000.0 / chip.clock.value / channels;
        let lines = (chip.l2_bytes.value as u64 / LINE).max(WAYS as u64);
        let sets = lines / WAYS as u64;
        // Clocks of SMs in a clock of theirs when the numbers were read.
        let scale = chip.clock.value / chip.memory_clock.value;
        let own = chip.l2_latency_sm.value.min(chip.l2_latency.value);
        let empty = Way { line: 0, ready: 0.0, used: 0 };
        let gpcs = gpcs(chip);
        Memory {
            sets: vec![[empty; WAYS]; sets as usize],
            reads: vec![Joinable::default(); sets as usize * WAYS * gpcs],
            gpcs,
            clock: 0,
            l2: [0, 1].map(|_| Rate::new(chip.l2_rate.value / 2.0 / scale)),
            crossbar: Rate::new(chip.crossbar_rate.value / scale),
            writes: Rate::new(chip.l2_write_rate.value / scale),
            outside: Rate::new(chip.tma_outside_rate.value / scale),
            asked: vec![false; chip.sms.value as usize],
            asking: 0.0,
            share: 1.0,
            merge: chip.l2_merge.value,
            channels: (0..channels as usize).map(|_| Rate::channel(channel)).collect(),
            interleave: (chip.dram_interleave.value as u64 / LINE).max(1),
            latency: own + (chip.l2_latency.value - own) * scale,
            far: chip.l2_far.value * scale,
            dram: chip.dram_latency.value * scale,
            dram_far: chip.dram_far.value * scale,
            refresh: chip.dram_refresh.value * scale,
            refresh_interval: chip.dram_refresh_interval.value * scale,
            traffic: Traffic::default(),
        }
    }

    /// The half of L2 that holds a line.
    fn half(line: u64) -> usize {
        (hash(line) & 1) as usize
    }

    /// The DRAM channel of a run of lines. Addresses are spread so that no stride uses one channel alone.
    fn channel(&self, run: u64) -> usize {
        // The halves of L2 take other bits of the hash.
        let h = u128::from(hash(run).rotate_left(24));
        ((h * self.channels.len() as u128) >> 64) as usize
    }

    /// What a line of a channel takes longer for an SM in `half`. The first half of the channels is beside the first half of L2.
    fn far_of(&self, channel: usize, half: usize) -> f64 {
        let beside = (2 * channel >= self.channels.len()) == (half == 1);
        if beside { 0.0 } else { self.dram_far }
    }

    /// Clocks from `now` until the bank that holds a run of lines has been refreshed: 0 if it is not being refreshed. Banks are
    /// refreshed one after the other, each again and again.
    fn refreshed(&self, run: u64, now: f64) -> f64 {
        if self.refresh == 0.0 {
            return 0.0;
        }
        let phase = (hash(run).rotate_left(40) >> 11) as f64 / (1u64 << 53) as f64;
        let since = (now + phase * self.refresh_interval).rem_euclid(self.refresh_interval);
        (self.refresh - since).max(0.0)
    }

    /// Marks lines as present in L2 at the start.
    pub fn warm(&mut self, address: u64, bytes: u64) {
        for line in address / LINE..(address + bytes).div_ceil(LINE) {
            self.find(line, hash(line)).0.ready = 0.0;
        }
    }

    /// Finds a line by its number and hash, or replaces the least recently used one. Returns it, its place in `reads`, and whether it
    /// is new.
    fn find(&mut self, line: u64, h: u64) -> (&mut Way, usize, bool) {
        self.clock = self.clock.wrapping_add(1);
        let clock = self.clock;
        // The high half of a product picks a set without a division.
        let sets = self.sets.len() as u128;
        let choice = [h, h.rotate_left(32)].map(|h| ((u128::from(h) * sets) >> 64) as usize);
        // The set with more empty places takes a new line; without any, the line goes that was used longest ago.
        let (mut oldest, mut most, mut found) = ((choice[0], 0), 0, None);
        for c in choice {
            let (mut empty, mut age, mut at) = (0, 0, 0);
            for (i, w) in self.sets[c].iter().enumerate() {
                if w.line == line + 1 {
                    found = Some((c, i));
                    break;
                }
                let a = if w.line == 0 { u64::from(u32::MAX) } else { u64::from(clock.wrapping_sub(w.used)) };
                empty += u64::from(w.line == 0);
                if a > age {
                    (age, at) = (a, i);
                }
            }
            if found.is_some() {
                break;
            }
            if age + empty > most {
                (oldest, most) = ((c, at), age + empty);
            }
        }
        let (set, way) = found.unwrap_or(oldest);
        let reads = (set * WAYS + way) * self.gpcs;
        let place = &mut self.sets[set][way];
        if found.is_none() {
            *place = Way { line: line + 1, ready: 0.0, used: clock };
            self.reads[reads..reads + self.gpcs].fill(Joinable::default());
        }
        place.used = clock;
        (place, reads, found.is_none())
    }

    /// A read of `bytes` of a line by an SM at `place`, requested at `now`.
    pub fn read(&mut self, line: u64, bytes: f64, now: f64, place: Place) -> Read {
        let h = hash(line);
        let home = (h & 1) as usize;
        let half = place.half;
        let far = if home == half { 0.0 } else { self.far };
        let mut queued = 0.0;
        let (way, reads, new) = self.find(line, h);
        let mut ready = way.ready;
        // Requests for parts of lines join only earlier ones that are closer than SMs of a kernel stay to each other.
        let whole = bytes >= LINE as f64;
        let joined = self.reads[reads + place.gpc];
        let merged = whole && now <= f64::from(joined.until) && joined.until > 0.0;
        let source = if new {
            let run = line / self.interleave;
            let at = self.channel(run);
            let channel = &mut self.channels[at];
            let served = channel.take(now, LINE as f64);
            let alone = channel.alone(LINE as f64);
            queued = (served - now - alone).max(0.0);
            // The latency is that of a line that nobody is in the way of.
            let from = served - alone;
            ready = from + self.refreshed(run, from) + self.dram;
            self.find(line, h).0.ready = ready;
            self.traffic.dram_bytes += LINE as f64;
            ready += self.far_of(at, half);
            Source::Dram
        } else if ready > now {
            ready += self.far_of(self.channel(line / self.interleave), half);
            Source::Shared
        } else {
            ready = now;
            Source::L2
        };
        let from = ready.max(now);
        let crossed = self.crossbar.take(from, bytes);
        let served = match merged {
            true => crossed.max(f64::from(joined.served)),
            false => crossed.max(self.l2[home].take(from, bytes)),
        };
        if whole && !merged {
            let until = served.min(now + self.merge) as f32;
            self.reads[reads + place.gpc] = Joinable { until, served: served as f32 };
        }
        queued += (served - from - self.l2[home].alone(bytes)).max(0.0);
        let t = &mut self.traffic;
        t.requests += 1;
        t.l2_bytes += if merged { 0.0 } else { bytes };
        t.queued += queued;
        Read { at: served + self.latency + far, source, queued, latency: self.latency + far }
    }

    /// A read by `sm` of a row that lies outside of its tensor. L2 answers it like any other, but from one place, so that all SMs
    /// wait for each other; the more of them ask, the more requests it answers at a time.
    pub fn outside(&mut self, sm: usize, bytes: f64, now: f64) -> Read {
        if let Some(asked) = self.asked.get_mut(sm).filter(|asked| !**asked) {
            *asked = true;
            self.asking += 1.0;
            self.share = self.asking.sqrt().recip();
        }
        let share = self.share;
        let crossed = self.crossbar.take(now, bytes);
        let served = self.outside.take(now, share).max(crossed);
        let queued = (served - now - self.outside.alone(share)).max(0.0);
        let t = &mut self.traffic;
        t.requests += 1;
        t.queued += queued;
        Read { at: served + self.latency, source: Source::L2, queued, latency: self.latency }
    }

    /// A write of `bytes` of a line; returns when L2 has accepted it.
    pub fn write(&mut self, line: u64, bytes: f64, now: f64) -> f64 {
        let served = self.writes.take(now, bytes);
        self.traffic.l2_bytes += bytes;
        self.traffic.written += bytes;
        let (way, _, new) = self.find(line, hash(line));
        if new {
            way.ready = served;
        }
        served
    }

    /// An atomic operation; returns when the line is available for it.
    pub fn update(&mut self, line: u64, now: f64) -> f64 {
        let place = Place { half: Self::half(line), gpc: 0 };
        self.read(line, 32.0, now, place).at - self.latency
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> Memory {
        Memory::new(&Chip::named("b200").unwrap())
    }

    const FIRST: Place = Place { half: 0, gpc: 0 };

    /// An SM beside the half of L2 that has a line.
    fn near(line: u64) -> Place {
        Place { half: Memory::half(line), gpc: 0 }
    }

    /// Whether L2 serves a read of its own for an SM of this GPC, and when the read's bytes leave.
    fn served(m: &mut Memory, line: u64, now: f64, gpc: usize, bytes: f64) -> (bool, f64) {
        let before = m.traffic.l2_bytes;
        let read = m.read(line, bytes, now, Place { half: 0, gpc });
        (m.traffic.l2_bytes > before, read.at)
    }

    #[test]
    fn sms_of_a_gpc_are_served_once_while_the_first_of_them_waits() {
        let mut m = memory();
        m.warm(0, 1024 * LINE);
        let lines: Vec<u64> = (0..1024).filter(|&line| Memory::half(line) == 0).collect();
        let (&line, others) = lines.split_last().unwrap();
        // L2 is idle, and the first request waits for nothing.
        assert!(served(&mut m, line, 1e4, 0, 128.0).0 && served(&mut m, line, 1e4 + 40.0, 0, 128.0).0);
        for line in others {
            m.read(*line, 128.0, 2e4, FIRST);
        }
        let (first, at) = served(&mut m, line, 2e4, 0, 128.0);
        let (second, joined) = served(&mut m, line, 2e4 + 1.0, 0, 128.0);
        assert!(first && !second && joined >= at, "{at} {joined}");
        // Another GPC, a part of the line, and a request that is too late.
        assert!(served(&mut m, line, 2e4 + 1.0, 1, 128.0).0);
        assert!(served(&mut m, line, 2e4 + 1.0, 0, 64.0).0);
        assert!(served(&mut m, line, 2e4 + 2000.0, 0, 128.0).0);
    }

    #[test]
    fn a_second_read_hits_and_one_under_way_is_shared() {
        let mut m = memory();
        let place = near(5);
        let first = m.read(5, 128.0, 0.0, place);
        assert_eq!(first.source, Source::Dram);
        let merged = m.read(5, 128.0, 1.0, place);
        assert_eq!(merged.source, Source::Shared);
        assert!((merged.at - first.at).abs() < 32.0);
        let hit = m.read(5, 128.0, 1e5, place);
        assert_eq!(hit.source, Source::L2);
        assert!(hit.at < 1e5 + m.latency + 32.0);
        assert!(first.at - 0.0 > hit.at - 1e5 + m.dram - 32.0);
    }

    #[test]
    fn lines_of_the_other_half_and_of_banks_that_are_refreshed_take_longer() {
        let chip = Chip::named("h200").unwrap();
        let mut m = Memory::new(&chip);
        let (far, refresh) = (chip.dram_far.value, chip.dram_refresh.value);
        // Each in a run of its own, and after the one before.
        let lines = 4000u64;
        let took: Vec<f64> = (0..lines)
            .map(|l| {
                let now = l as f64 * 1777.0;
                let line = l * m.interleave;
                m.read(line, 128.0, now, near(line)).at - now
            })
            .collect();
        let least = took.iter().copied().fold(f64::MAX, f64::min);
        let share = |from: f64, to: f64| {
            took.iter().filter(|&&t| t - least >= from && t - least < to).count() as f64 / lines as f64
        };
        assert!((0.43..0.5).contains(&share(0.0, 1.0)), "near: {}", share(0.0, 1.0));
        assert!((0.43..0.5).contains(&share(far - 1.0, far + 1.0)), "far: {}", share(far - 1.0, far + 1.0));
        let waits = 1.0 - share(0.0, 1.0) - share(far - 1.0, far + 1.0);
        let expected = refresh / chip.dram_refresh_interval.value;
        assert!((waits / expected - 1.0).abs() < 0.2, "{waits} wait for a refresh, {expected} expected");
        assert!(share(far + refresh + 1.0, f64::MAX) == 0.0);
    }

    #[test]
    fn bytes_beyond_the_rate_queue() {
        let mut m = memory();
        let n = 10_000u64;
        let rate = 7270.0 * 1000.0 / 1965.0;
        let last = (0..n).map(|l| m.read(l, 128.0, 0.0, FIRST).at).fold(0.0, f64::max);
        let bound = (n * LINE) as f64 / rate;
        // The channel with the most of 2,500 runs of lines has twice its share of them.
        assert!(last > bound && last < bound * 2.2 + m.dram + m.latency + m.far + 100.0, "{last} {bound}");
    }

    #[test]
    fn runs_of_lines_share_a_channel_and_all_channels_have_their_part() {
        let m = memory();
        let run = m.interleave;
        let mut lines = vec![0u64; m.channels.len()];
        for line in 0..run * 64 * lines.len() as u64 {
            lines[m.channel(line / m.interleave)] += 1;
        }
        assert!(lines.iter().all(|n| n % run == 0), "{lines:?}");
        assert!(lines.iter().all(|n| (32 * run..112 * run).contains(n)), "{lines:?}");
    }

    #[test]
    fn what_does_not_fit_is_read_again() {
        let mut m = memory();
        let lines = 4 * m.sets.len() as u64 * WAYS as u64;
        for l in 0..lines {
            m.read(l, 128.0, l as f64, FIRST);
        }
        assert_eq!(m.read(0, 128.0, 1e9, FIRST).source, Source::Dram);
        assert_eq!(m.read(lines - 1, 128.0, 2e9, FIRST).source, Source::L2);
    }
}
