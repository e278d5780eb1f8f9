//! The parts of an SM that warps and engines share.

use super::queue::Queue;
use crate::time::Chip;
use crate::time::cost::UNITS;
use crate::time::memory::Place;
use crate::time::rate::Rate;
use crate::time::record::Moment;
use std::collections::VecDeque;

/// Sub-cores of an SM.
pub(super) const SUB_CORES: usize = 4;
/// Clocks of 128 bytes of shared memory, or a line of L1, on their way between a sub-core and the memory unit of its SM (decision 0249).
const WAVEFRONT: f64 = 2.0;
/// Lines of L1 that are tracked.
const L1_LINES: usize = 256;

/// A sub-core: issue, units, and its part of tensor memory.
#[derive(Debug)]
pub(super) struct SubCore {
    pub issue: Rate,
    /// The ports of its registers, which products of the tensor core share with instructions that calculate.
    pub ports: Rate,
    pub units: [Rate; UNITS],
    /// When its way to the SM's memory unit is free.
    pub accesses: f64,
    pub tmem_load: f64,
    pub tmem_store: f64,
}

/// An SM.
#[derive(Debug)]
pub(super) struct Sm {
    pub sub: Vec<SubCore>,
    /// The port of shared memory, for products, and for warps that load or store.
    pub smem: Rate,
    /// The same port for warps that store, beside TMA loads.
    pub smem_stores: Rate,
    /// What products alone read through that port.
    pub smem_operands: Rate,
    /// Global loads and stores of threads.
    pub lsu: f64,
    /// When the latest accesses of warps leave the SM's memory unit.
    pub held: Held,
    /// The port from L2, for threads, and the port to it.
    pub port_in: Rate,
    pub port_out: f64,
    pub dsmem: f64,
    /// When the TMA can start another load, and another store.
    pub tma: Moment,
    pub tma_store: Moment,
    /// Bytes of pending TMA requests by the time at which they come back; and their total.
    pub requests: Queue<f64>,
    pub under_way: f64,
    /// The port from L2, for the TMA.
    pub tma_port: Rate,
    /// When the tensor core can start another operation.
    pub tensor: Moment,
    /// When the latest `wgmma` leave its queue.
    pub products: VecDeque<Moment>,
    /// Which warpgroups made the latest products.
    pub turns: Turns,
    /// Whether lines of code were fetched, by number.
    pub code: Vec<bool>,
    pub parameters: bool,
    /// Tensor maps that were used, and whether a fence has acquired some since.
    pub maps: Vec<u64>,
    pub maps_acquired: bool,
    pub l1: Vec<u64>,
    pub place: Place,
    pub used: Used,
}

/// A warpgroup of an SM: its CTA in the grid and its number in that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Warpgroup {
    pub cta: [u32; 3],
    pub number: usize,
}

/// Whose product came before a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    /// One of the same warpgroup.
    Same,
    /// One of another warpgroup, or none.
    Other,
    /// Those of two other warpgroups.
    TwoOthers,
}

/// The warpgroups of the latest products.
#[derive(Debug, Default)]
pub(super) struct Turns {
    latest: [Option<Warpgroup>; 2],
    /// When the latest product started, in clk.
    start: f64,
}

impl Turns {
    /// Whose product came before the next one, of `group`, and when that started, in clk; negative if there was none.
    pub fn next(&mut self, group: Warpgroup) -> (Before, f64) {
        let group = Some(group);
        let [last, before] = self.latest;
        self.latest = [group, last];
        let whose = match () {
            () if last == group => Before::Same,
            () if before.is_some() && before != last && before != group => Before::TwoOthers,
            () => Before::Other,
        };
        (whose, if last.is_some() { self.start } else { f64::NEG_INFINITY })
    }

    /// The product starts at this clk.
    pub fn started(&mut self, start: f64) {
        self.start = start;
    }
}

/// Accesses that the memory unit of an SM holds.
#[derive(Debug, Default)]
pub(super) struct Held(VecDeque<f64>);

impl Held {
    /// The unit takes an access that leaves it at this clk. Returns when it can take the next one if it has room for `most`.
    pub fn take(&mut self, leaves: f64, most: f64) -> f64 {
        self.0.push_back(leaves);
        let full = self.0.len() as f64 >= most.max(1.0);
        full.then(|| self.0.pop_front()).flatten().unwrap_or(f64::NEG_INFINITY)
    }
}

/// Use of an SM.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Used {
    pub ran: bool,
    pub slots: f64,
    pub smem: f64,
    pub tensor: f64,
    pub operands: f64,
    pub copies: f64,
    pub tma: f64,
}

impl Sm {
    pub fn new(chip: &Chip, index: usize, lines: usize) -> Self {
        let sub = || SubCore {
            issue: Rate::small(1.0),
            ports: Rate::ports(),
            units: std::array::from_fn(|_| Rate::small(1.0)),
            accesses: 0.0,
            tmem_load: 0.0,
            tmem_store: 0.0,
        };
        Sm {
            sub: (0..SUB_CORES).map(|_| sub()).collect(),
            smem_stores: Rate::shared_memory(chip.smem_rate.value),
            smem_operands: Rate::shared_memory(chip.smem_rate.value),
            smem: Rate::shared_memory(chip.smem_rate.value),
            lsu: 0.0,
            held: Held::default(),
            port_in: Rate::port(chip.sm_rate.value),
            port_out: 0.0,
            dsmem: 0.0,
            tma: Moment::default(),
            tma_store: Moment::default(),
            requests: Queue::default(),
            under_way: 0.0,
            tma_port: Rate::port(chip.tma_rate.value.min(chip.sm_rate.value)),
            tensor: Moment::default(),
            products: VecDeque::new(),
            turns: Turns::default(),
            code: vec![false; lines],
            parameters: false,
            maps: Vec::new(),
            maps_acquired: false,
            l1: vec![u64::MAX; L1_LINES],
            place: Place::of(chip, index),
            used: Used::default(),
        }
    }

    /// A product of these clocks reads operands from shared memory; alone, the reads would take `reading` clocks.
    pub fn read_operands(&mut self, start: f64, clocks: f64, reading: f64) {
        let bytes = reading / self.smem.alone(1.0);
        self.smem.spread(start, clocks, bytes);
        self.smem_operands.spread(start, clocks, bytes);
    }

    /// Factor on the bytes of a warp's load at this clk. Products that read less than half of the port leave half of it to loads, others a
    /// quarter. Loads never get more than products leave.
    pub fn load_cost(&self, at: f64) -> f64 {
        let used = self.smem_operands.used(at);
        if used == 0.0 {
            return 1.0;
        }
        let most = if used < 0.5 { 0.5 } else { 0.25 };
        ((1.0 - used) / most).max(1.0)
    }

    /// When a warp's access has passed the way from its sub-core, `wavefronts` times 128 bytes of shared memory or lines. Latencies include
    /// the first of them.
    pub fn passes(&mut self, warp: usize, at: f64, wavefronts: f64) -> f64 {
        let way = &mut self.sub[warp % SUB_CORES].accesses;
        *way = way.max(at) + wavefronts * WAVEFRONT;
        *way - WAVEFRONT
    }

    /// Whether a line is in L1; afterwards it is.
    pub fn l1_holds(&mut self, line: u64) -> bool {
        let i = (line ^ line >> 8) as usize % L1_LINES;
        std::mem::replace(&mut self.l1[i], line) == line
    }
}
