//! L2 and DRAM, which all SMs share: present lines, lines under way, and queues.

use super::chip::Chip;
use super::rate::Rate;

/// Bytes of a line.
pub(crate) const LINE: u64 = 128;
/// Lines of a page: 4 KB. All of them belong to the half of L2 beside their DRAM.
const PAGE: u64 = 32;
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
    /// Time at which its bytes are here, in clk. Where the halves share their lines it is that of SMs beside the line's DRAM.
    ready: f64,
    /// When it was last used.
    used: u32,
    /// Whether its last reader asked L2 to evict it first.
    first: bool,
    /// Whether DRAM lacks what was written to it.
    written: bool,
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
    /// Bytes of written lines that others took the place of.
    pub written_back: f64,
    /// Bytes of lines that crossed from one half of L2 to the other.
    pub crossed: f64,
    pub written: f64,
    /// Clocks that requests waited for other requests.
    pub queued: f64,
    pub requests: u64,
}

/// L2 and DRAM.
#[derive(Debug)]
pub(crate) struct Memory {
    /// Sets of the first half of L2, then those of the second; or of both together.
    sets: Vec<[Way; WAYS]>,
    /// Halves that keep lines of their own: 2 where each half has a copy of what its SMs read, else 1.
    copies: usize,
    /// Ways of a set for lines that are to be evicted first.
    first_ways: usize,
    /// The request of each GPC for each line that later ones may join.
    reads: Vec<Joinable>,
    gpcs: usize,
    clock: u32,
    /// The halves of L2, and DRAM.
    l2: [Rate; 2],
    /// From the other half to the first one, and to the second.
    links: [Rate; 2],
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
        let copies = if chip.l2_copies.value >= 2.0 { 2 } else { 1 };
        let sets = lines / WAYS as u64 / copies * copies;
        // Clocks of SMs in a clock of theirs when the numbers were read.
        let scale = chip.clock.value / chip.memory_clock.value;
        let own = chip.l2_latency_sm.value.min(chip.l2_latency.value);
        let empty = Way { line: 0, ready: 0.0, used: 0, first: false, written: false };
        let gpcs = gpcs(chip);
        Memory {
            sets: vec![[empty; WAYS]; sets as usize],
            reads: vec![Joinable::default(); sets as usize * WAYS * gpcs],
            copies: copies as usize,
            first_ways: ((chip.l2_evict_first.value * WAYS as f64).round() as usize).clamp(1, WAYS),
            gpcs,
            clock: 0,
            l2: [0, 1].map(|_| Rate::new(chip.l2_rate.value / 2.0 / scale)),
            links: [0, 1].map(|_| Rate::new(chip.l2_cross_rate.value / scale)),
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

    /// The DRAM channel of a run of lines. The first half of the channels is beside the first half of L2. A page belongs to one half,
    /// and of two pages one to each. Within a half addresses are spread so that no stride uses one channel alone.
    fn channel(&self, run: u64) -> usize {
        let half = self.channels.len() / 2;
        let page = run * self.interleave / PAGE;
        let beside = (page ^ hash(page / 2).rotate_left(24)) & 1;
        // The sets of L2 take other bits of the hash.
        let h = u128::from(hash(run).rotate_left(14));
        match half {
            0 => 0,
            _ => beside as usize * half + ((h * half as u128) >> 64) as usize,
        }
    }

    /// The half of L2 beside a channel.
    fn beside(&self, channel: usize) -> usize {
        usize::from(2 * channel >= self.channels.len())
    }

    /// The half that a line belongs to: with copies the one beside its DRAM, else the one that answers for it.
    fn home(&self, line: u64) -> usize {
        match self.copies {
            1 => (hash(line) & 1) as usize,
            _ => self.beside(self.channel(line / self.interleave)),
        }
    }

    /// The copy that SMs of `half` read.
    fn copy_of(&self, half: usize) -> usize {
        if self.copies == 1 { 0 } else { half }
    }

    /// What a line of a channel takes longer for an SM in `half`.
    fn far_of(&self, channel: usize, half: usize) -> f64 {
        if self.beside(channel) == half { 0.0 } else { self.dram_far }
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

    /// Marks lines as present in L2 at the start, as far as there is room.
    pub fn warm(&mut self, address: u64, bytes: u64) {
        for line in address / LINE..(address + bytes).div_ceil(LINE) {
            let h = hash(line);
            for copy in 0..self.copies {
                let (set, way) = self.place(self.sets_of(h, copy), false);
                if self.sets[set][way].line == 0 || self.ready(line, h, copy).is_some() {
                    self.find(line, h, copy, false, 0.0).0.ready = 0.0;
                }
            }
        }
    }

    /// The two sets of a copy that a line may be in, by the line's hash.
    fn sets_of(&self, h: u64, copy: usize) -> [usize; 2] {
        // The high half of a product picks a set without a division.
        let sets = (self.sets.len() / self.copies) as u128;
        [h, h.rotate_left(32)].map(|h| copy * sets as usize + ((u128::from(h) * sets) >> 64) as usize)
    }

    /// The set and the way that a new line gets. The set with more empty ways takes it. Without any, a line goes that is to be evicted
    /// first, else the one that was used longest ago. A line that is itself to be evicted first gets a way of its own only while the
    /// set has few of them.
    fn place(&self, choice: [usize; 2], first: bool) -> (usize, usize) {
        let firsts = |set: usize| self.sets[set].iter().filter(|w| w.first).count();
        let among_firsts = first && choice.iter().all(|&set| firsts(set) >= self.first_ways);
        let (mut best, mut most) = ((choice[0], 0), 0);
        for set in choice {
            if first && !among_firsts && firsts(set) >= self.first_ways {
                continue;
            }
            let (mut empty, mut age, mut at) = (0, 0, 0);
            for (i, w) in self.sets[set].iter().enumerate() {
                if among_firsts && !w.first {
                    continue;
                }
                let a = match (w.line, w.first) {
                    (0, _) => 1 << 34,
                    (_, true) => (1 << 33) + u64::from(self.clock.wrapping_sub(w.used)),
                    (_, false) => u64::from(self.clock.wrapping_sub(w.used)),
                };
                empty += u64::from(w.line == 0);
                if a > age {
                    (age, at) = (a, i);
                }
            }
            if age + empty > most {
                (best, most) = ((set, at), age + empty);
            }
        }
        best
    }

    /// Finds a line in a copy by its number and hash, or gives it a place there at `now`. Returns it, its place in `reads`, and whether
    /// it is new.
    fn find(&mut self, line: u64, h: u64, copy: usize, first: bool, now: f64) -> (&mut Way, usize, bool) {
        self.clock = self.clock.wrapping_add(1);
        let choice = self.sets_of(h, copy);
        let found = choice.into_iter().find_map(|set| {
            let way = self.sets[set].iter().position(|w| w.line == line + 1)?;
            Some((set, way))
        });
        let (set, way) = found.unwrap_or_else(|| self.place(choice, first));
        let reads = (set * WAYS + way) * self.gpcs;
        let before = self.sets[set][way];
        if found.is_none() && before.written {
            let channel = self.channel((before.line - 1) / self.interleave);
            self.channels[channel].take(now, LINE as f64);
            self.traffic.written_back += LINE as f64;
        }
        let place = &mut self.sets[set][way];
        if found.is_none() {
            *place = Way { line: line + 1, ready: 0.0, used: self.clock, first, written: false };
            self.reads[reads..reads + self.gpcs].fill(Joinable::default());
        }
        (place.used, place.first) = (self.clock, first);
        (place, reads, found.is_none())
    }

    /// When a line from DRAM is there for SMs beside it, and how long it waits for other lines.
    fn fetch(&mut self, line: u64, now: f64) -> (f64, f64) {
        let run = line / self.interleave;
        let at = self.channel(run);
        let channel = &mut self.channels[at];
        let served = channel.take(now, LINE as f64);
        // The latency is that of a line that nobody is in the way of.
        let from = served - channel.alone(LINE as f64);
        self.traffic.dram_bytes += LINE as f64;
        (from + self.refreshed(run, from) + self.dram, (from - now).max(0.0))
    }

    /// When a copy has, or will have, a line; none if it has not asked for it.
    fn ready(&self, line: u64, h: u64, copy: usize) -> Option<f64> {
        let mut ways = self.sets_of(h, copy).into_iter().flat_map(|set| &self.sets[set]);
        ways.find(|w| w.line == line + 1).map(|w| w.ready)
    }

    /// A line that a half of L2 lacks. A line belongs to the half beside its DRAM, which keeps it too: from there it crosses to the other
    /// one. Returns as `fetch`, and where the line was.
    fn bring(&mut self, line: u64, h: u64, half: usize, first: bool, now: f64) -> (f64, f64, Source) {
        let home = self.home(line);
        if home == half {
            let (ready, waited) = self.fetch(line, now);
            return (ready, waited, Source::Dram);
        }
        self.traffic.crossed += LINE as f64;
        // When the other half has the line, when it would be here without others on the link, and how long it waited for DRAM.
        let (there, alone, waited, source) = match self.ready(line, h, home) {
            None => {
                let (ready, waited) = self.fetch(line, now);
                // What is to be evicted first passes through.
                if !first {
                    self.find(line, h, home, false, now).0.ready = ready;
                }
                (ready, ready + self.dram_far, waited, Source::Dram)
            }
            Some(there) => {
                self.find(line, h, home, first, now);
                if there > now {
                    (there, there + self.dram_far, 0.0, Source::Shared)
                } else {
                    (now, now + self.far, 0.0, Source::L2)
                }
            }
        };
        let link = &mut self.links[half];
        let crosses = (link.take(there, LINE as f64) - link.alone(LINE as f64) - there).max(0.0);
        (alone + crosses, waited + crosses, source)
    }

    /// A read of `bytes` of a line by an SM at `place`, requested at `now`. `first` asks L2 to evict the line first.
    pub fn read(&mut self, line: u64, bytes: f64, now: f64, place: Place, first: bool) -> Read {
        let h = hash(line);
        let half = place.half;
        let shared = self.copies == 1;
        let copy = self.copy_of(half);
        let (way, reads, new) = self.find(line, h, copy, first, now);
        let there = way.ready;
        // Requests for parts of lines join only earlier ones that are closer than SMs of a kernel stay to each other.
        let whole = bytes >= LINE as f64;
        let joined = self.reads[reads + place.gpc];
        let merged = whole && now <= f64::from(joined.until) && joined.until > 0.0;
        // Where the halves share their lines, one of them answers, and SMs of the other wait longer.
        let slices = if shared { self.home(line) } else { half };
        let far = if slices == half { 0.0 } else { self.far };
        let late = if shared { self.far_of(self.channel(line / self.interleave), half) } else { 0.0 };
        let (ready, mut queued, source) = match new {
            true => {
                let (ready, waited, source) = match shared {
                    true => {
                        let (ready, waited) = self.fetch(line, now);
                        (ready, waited, Source::Dram)
                    }
                    false => self.bring(line, h, half, first, now),
                };
                self.find(line, h, copy, first, now).0.ready = ready;
                (ready + late, waited, source)
            }
            false if there > now => (there + late, 0.0, Source::Shared),
            false => (now, 0.0, Source::L2),
        };
        let from = ready.max(now);
        let crossed = self.crossbar.take(from, bytes);
        let served = match merged {
            true => crossed.max(f64::from(joined.served)),
            false => crossed.max(self.l2[slices].take(from, bytes)),
        };
        if whole && !merged {
            let until = served.min(now + self.merge) as f32;
            self.reads[reads + place.gpc] = Joinable { until, served: served as f32 };
        }
        queued += (served - from - self.l2[slices].alone(bytes)).max(0.0);
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

    /// A write of `bytes` of a line; returns when L2 has accepted it. DRAM gets the line when another one takes its place.
    pub fn write(&mut self, line: u64, bytes: f64, now: f64) -> f64 {
        let served = self.writes.take(now, bytes);
        self.traffic.l2_bytes += bytes;
        self.traffic.written += bytes;
        let copy = self.copy_of(self.home(line));
        let (way, _, new) = self.find(line, hash(line), copy, false, now);
        way.written = true;
        if new {
            way.ready = served;
        }
        served
    }

    /// An atomic operation; returns when the line is available for it.
    pub fn update(&mut self, line: u64, now: f64) -> f64 {
        let place = Place { half: self.home(line), gpc: 0 };
        self.read(line, 32.0, now, place, false).at - self.latency
    }
}

#[cfg(test)]
#[path = "memory_tests.rs"]
mod tests;
