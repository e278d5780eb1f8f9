//! CUDA graphs of repeated launches: the driver needs less host time for a graph than for a kernel, and one call for
//! all launches of a kernel.
//!
//! A graph contains all its values, so it is for one set of arguments on one stream. A launch uses a graph only if
//! its values are equal, word for word. The graph is made behind the third launch with the same values, while the GPU
//! is busy with that launch: a warm-up and an estimate launch twice, and values that come no more often are not worth
//! a graph.
//!
//! Failures here never fail a launch: if a graph cannot be made or launched, the module does without graphs from then
//! on.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, TryLockError};

use cudarc::driver::{CudaContext, DriverError, result, sys};

use super::driver;

/// Driver functions for graphs, beyond those of launches (CUDA 11.4).
pub(super) const NEEDED: [&str; 8] = [
    "cuThreadExchangeStreamCaptureMode",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuStreamIsCapturing",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
];
/// Graphs that a kernel keeps: enough for a model's layers on a stream or two.
const MOST_GRAPHS: usize = 256;
/// Graphs of all kernels of a context. Each takes about 100 KB of GPU memory (measured on an H200). Beyond this
/// number, launches without a graph are direct.
const MOST_ALIVE: usize = 1024;
/// Launches between two new graphs once a kernel has made `MOST_GRAPHS`. If more sets of arguments take turns than
/// graphs are kept, making them must not cost more than it gains.
const WORTH: u64 = 256;
/// Launches with the same values before their graph is made; two bits.
const BEFORE: u64 = 2;
/// Sets of values that a kernel remembers, in groups of which one is searched.
const SEEN: usize = 1024;
const GROUP: usize = 4;
/// Most words that identify a launch of a kernel. A gate with more vectors and scalars has no graphs.
const WORDS: usize = 64;

/// Everything that determines a launch's values.
pub(super) struct Values {
    words: [u64; WORDS],
    count: usize,
    hash: u64,
}

impl Values {
    pub fn new() -> Self {
        Self { words: [0; WORDS], count: 0, hash: 0 }
    }

    pub fn push(&mut self, word: u64) {
        if let Some(place) = self.words.get_mut(self.count) {
            *place = word;
        }
        // Counted even where there is no place: then they are too many.
        self.count += 1;
        // What matters is that addresses which differ in few bits come out apart; words are compared besides.
        let mixed = u128::from(self.hash ^ word ^ 0x9E37_79B9_7F4A_7C15) * 0xD6E8_FEB8_6659_FD93;
        self.hash = (mixed as u64 ^ (mixed >> 64) as u64).rotate_left(23);
    }

    fn words(&self) -> Option<&[u64]> {
        self.words.get(..self.count)
    }
}

/// A kernel's graphs.
pub(super) struct Graphs {
    /// Graphs by the hashes of their values.
    kept: papaya::HashMap<u64, Graph>,
    /// Hashes of launched values, with a count in the lowest two bits.
    seen: Box<[AtomicU64]>,
    launches: AtomicU64,
    made: AtomicU64,
    /// Whether a graph could not be made or launched.
    failed: AtomicBool,
}

/// Outcome of an attempt to launch a graph.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Launched {
    /// The graph is in the stream.
    Yes,
    /// There is no graph, and none is to be made.
    No,
    /// There is no graph, and one is to be made.
    Wanted,
}

/// An instantiated graph.
struct Graph {
    context: Arc<CudaContext>,
    instance: sys::CUgraphExec,
    /// Count of the context's graphs, this one included.
    alive: Arc<AtomicUsize>,
    words: Box<[u64]>,
    /// Set while a thread launches it.
    busy: AtomicBool,
    /// Number of launches of the kernel before the graph's latest launch.
    last: AtomicU64,
}

// SAFETY: the driver takes its handle from any thread, from one at a time: launches hold `busy`, and who destroys it has the
// only reference.
unsafe impl Send for Graph {}
// SAFETY: as above.
unsafe impl Sync for Graph {}

impl Drop for Graph {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::Relaxed);
        // A context that is gone has taken its graphs along.
        if self.context.bind_to_thread().is_ok() {
            let _relaxed = Relaxed::begin();
            // SAFETY: the instance is nobody else's. One that is still running is freed when it has ended (CUDA driver API,
            // `cuGraphExecDestroy`).
            self.context.record_err(unsafe { result::graph::exec_destroy(self.instance) });
        }
    }
}

impl Graphs {
    pub fn new() -> Self {
        Self {
            kept: papaya::HashMap::new(),
            seen: (0..SEEN).map(|_| AtomicU64::new(0)).collect(),
            launches: AtomicU64::new(0),
            made: AtomicU64::new(0),
            failed: AtomicBool::new(false),
        }
    }

    /// Launches the graph of these values, if there is one.
    pub fn launch(&self, values: &Values, stream: sys::CUstream) -> Launched {
        let Some(words) = values.words() else { return Launched::No };
        if self.failed.load(Ordering::Relaxed) {
            return Launched::No;
        }
        let number = self.launches.fetch_add(1, Ordering::Relaxed);
        let kept = self.kept.pin();
        let Some(graph) = kept.get(&values.hash) else { return self.note(values.hash, number) };
        // Another thread may be launching the same. (And other values may have the same hash, once in a blue moon.)
        if *graph.words != *words || graph.busy.swap(true, Ordering::Acquire) {
            return Launched::No;
        }
        graph.last.store(number, Ordering::Relaxed);
        // SAFETY: the instance is kept for as long as `kept` is pinned, and this thread alone launches it. Its context is bound,
        // which the stream belongs to. Its kernels are of a module that is loaded. Addresses in it are those of buffers
        // that the caller has handles of, sizes and alignment have been checked: all of them follow from words that are the same.
        let launched = unsafe { result::graph::launch(graph.instance, stream) };
        graph.busy.store(false, Ordering::Release);
        match launched {
            Ok(()) => Launched::Yes,
            Err(_) => {
                // What went wrong before comes out of the launch that takes its place, too.
                self.failed.store(true, Ordering::Relaxed);
                Launched::No
            }
        }
    }

    /// Records a launch without a graph; returns whether a graph is to be made.
    fn note(&self, hash: u64, launches: u64) -> Launched {
        const COUNT: u64 = 3;
        let start = (hash >> 32) as usize % (SEEN / GROUP) * GROUP;
        let group = &self.seen[start..start + GROUP];
        let own = |slot: &&AtomicU64| (slot.load(Ordering::Relaxed) ^ hash) & !COUNT == 0;
        let Some(slot) = group.iter().find(own) else {
            let unused = group.iter().find(|slot| slot.load(Ordering::Relaxed) == 0);
            let slot = unused.unwrap_or(&group[(launches % GROUP as u64) as usize]);
            slot.store(hash & !COUNT | 1, Ordering::Relaxed);
            return Launched::No;
        };
        let count = slot.load(Ordering::Relaxed) & COUNT;
        if count < BEFORE {
            slot.store(hash & !COUNT | (count + 1), Ordering::Relaxed);
            return Launched::No;
        }
        let beyond = self.made.load(Ordering::Relaxed).checked_sub(MOST_GRAPHS as u64);
        match beyond.is_none_or(|beyond| launches / WORTH > beyond) {
            true => Launched::Wanted,
            false => Launched::No,
        }
    }

    fn keep(&self, values: &Values, graph: Graph) {
        let kept = self.kept.pin();
        if kept.len() >= MOST_GRAPHS {
            let age = |(_, graph): &(&u64, &Graph)| graph.last.load(Ordering::Relaxed);
            if let Some(oldest) = kept.iter().min_by_key(age).map(|(hash, _)| *hash) {
                kept.remove(&oldest);
            }
        }
        kept.insert(values.hash, graph);
        self.made.fetch_add(1, Ordering::Relaxed);
    }
}

/// Makes the graphs of a context's kernels, one at a time.
pub(super) struct Maker {
    context: Arc<CudaContext>,
    /// The stream for captures.
    stream: Mutex<Option<Private>>,
    able: OnceLock<bool>,
    alive: Arc<AtomicUsize>,
}

impl Maker {
    pub fn new(context: Arc<CudaContext>) -> Self {
        Self { context, stream: Mutex::new(None), able: OnceLock::new(), alive: Arc::default() }
    }

    /// Makes a graph of the work that `submit` enqueues. The context is current.
    pub fn make(
        &self,
        graphs: &Graphs,
        values: &Values,
        submit: impl FnOnce(sys::CUstream) -> Result<(), DriverError>,
    ) {
        // Another thread is making one: then the next launch does.
        let mut stream = match self.stream.try_lock() {
            Ok(stream) => stream,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let Some(words) = values.words() else { return };
        // One maker at a time: nobody else adds to them.
        if graphs.kept.pin().contains_key(&values.hash) || self.alive.load(Ordering::Relaxed) >= MOST_ALIVE {
            return;
        }
        // cudarc panics where a symbol is missing.
        if !*self.able.get_or_init(|| driver::missing(&NEEDED).is_none()) {
            graphs.failed.store(true, Ordering::Relaxed);
            return;
        }
        match self.record(&mut stream, submit) {
            Ok(instance) => {
                let last = AtomicU64::new(graphs.launches.load(Ordering::Relaxed));
                let (context, busy) = (self.context.clone(), AtomicBool::new(false));
                self.alive.fetch_add(1, Ordering::Relaxed);
                let alive = self.alive.clone();
                graphs.keep(values, Graph { context, instance, alive, words: words.into(), busy, last });
            }
            Err(_) => graphs.failed.store(true, Ordering::Relaxed),
        }
    }

    fn record(
        &self,
        place: &mut Option<Private>,
        submit: impl FnOnce(sys::CUstream) -> Result<(), DriverError>,
    ) -> Result<sys::CUgraphExec, DriverError> {
        let _relaxed = Relaxed::begin()?;
        let stream = match place {
            Some(stream) => stream.stream,
            None => place.insert(Private::new(&self.context)?).stream,
        };
        // SAFETY: the stream is this maker's own, which one thread at a time has, and is not being captured.
        unsafe { result::stream::begin_capture(stream, RELAXED) }?;
        let submitted = submit(stream);
        // The stream is taken out of its capture even where a launch failed.
        // SAFETY: the stream is being captured.
        let template = Template(unsafe { result::stream::end_capture(stream) }?);
        submitted?;
        if template.0.is_null() {
            return Err(DriverError(sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
        }
        // SAFETY: the template is a graph that nobody else has.
        unsafe { result::graph::instantiate(template.0, sys::CUgraphInstantiate_flags(0)) }
    }
}

/// A stream for captures only. It is not a cudarc stream: with a second stream cudarc starts to keep events of all
/// memory, and waits for the device.
struct Private {
    context: Arc<CudaContext>,
    stream: sys::CUstream,
}

// SAFETY: a stream may be used by any thread that has its context bound; one at a time captures on it.
unsafe impl Send for Private {}

impl Private {
    fn new(context: &Arc<CudaContext>) -> Result<Self, DriverError> {
        // What is captured on a stream that waits for the default stream breaks off when anybody launches there.
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking)?;
        Ok(Self { context: context.clone(), stream })
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: the stream is nobody else's, and nothing is on it.
            self.context.record_err(unsafe { result::stream::destroy(self.stream) });
        }
    }
}

/// A captured graph, destroyed when it is dropped.
pub(super) struct Template(pub sys::CUgraph);

impl Drop for Template {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: the graph is nobody else's, and what was instantiated of it does not need it. That it fails means nothing
            // to a launch.
            let _ = unsafe { result::graph::destroy(self.0) };
        }
    }
}

/// Other threads, and libraries in this one, may allocate while a stream is captured in this mode.
pub(super) const RELAXED: sys::CUstreamCaptureMode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;

/// While it lives, allocations of this thread do not invalidate a capture on another stream, and such a capture does
/// not forbid them: the caller may be capturing another stream.
pub(super) struct Relaxed(sys::CUstreamCaptureMode);

impl Relaxed {
    pub(super) fn begin() -> Result<Self, DriverError> {
        let mut mode = RELAXED;
        // SAFETY: the argument is a place for a mode, and holds one.
        unsafe { sys::cuThreadExchangeStreamCaptureMode(ptr::from_mut(&mut mode)) }.result()?;
        Ok(Self(mode))
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        // SAFETY: the argument is a place for a mode, and holds the one from before.
        let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(ptr::from_mut(&mut self.0)) }.result();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn values(words: &[u64]) -> Values {
        let mut values = Values::new();
        words.iter().for_each(|word| values.push(*word));
        values
    }

    #[test]
    fn words_are_told_apart_and_too_many_are_none() {
        let mut hashes = HashSet::new();
        for place in 0..16 {
            for step in 0..64u64 {
                let mut words = [0x7F00_0000_0000; 16];
                words[place] += (step + 1) * 16;
                assert!(hashes.insert(values(&words).hash & !3), "{place} {step}");
            }
        }
        assert_ne!(values(&[1, 2]).hash, values(&[2, 1]).hash);
        assert_ne!(values(&[0]).hash, values(&[0, 0]).hash);
        assert_eq!(values(&[1; WORDS]).words().map(<[u64]>::len), Some(WORDS));
        assert!(values(&[1; WORDS + 1]).words().is_none());
    }

    #[test]
    fn what_comes_again_is_worth_a_graph_and_what_does_not_is_none() {
        let graphs = Graphs::new();
        let note = |word: u64, launches: u64| graphs.note(values(&[word]).hash, launches) == Launched::Wanted;
        assert_eq!([0, 1, 2, 3].map(|number| note(7, number)), [false, false, true, true]);
        assert!((0..100_000u64).all(|number| !note(1000 + number, number)), "each comes once");
        // A model's layers by turns.
        let graphs = Graphs::new();
        let note = |word: u64, launches: u64| graphs.note(values(&[word]).hash, launches) == Launched::Wanted;
        let rounds = [0, 1, 2].map(|round| (0..100).filter(|set| note(*set, round * 100 + set)).count());
        assert_eq!(rounds, [0, 0, 100]);
        // More than are kept are made now and then.
        graphs.made.store(MOST_GRAPHS as u64 + 3, Ordering::Relaxed);
        assert!(!note(5, 3 * WORTH) && note(5, 4 * WORTH));
    }
}
