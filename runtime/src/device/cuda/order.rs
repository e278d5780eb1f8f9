//! Order between streams that use the same buffers.
//!
//! Every stream of a context has a number below 64 and an event, which is recorded after each of our launches and
//! copies on it once there are several streams. A buffer keeps three words: which stream wrote it last, which streams
//! are ordered behind that write, and which have read it since. A launch waits for another stream's event only if
//! these words require it, and does nothing if the order is already established: weights that were uploaded once cost
//! each stream one wait. This path takes no lock and allocates nothing.
//!
//! Waiting for a stream's event waits for all work enqueued on it so far, which may be more than the buffer needs but
//! never less. Calls that several threads make at the same time have no order.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError, sys};

use super::driver::failed;
use crate::device::DeviceError;

/// Streams of a context that can be in use at a time: the bits of a word.
const MOST: usize = 64;

/// A stream with its number.
pub(crate) struct Lane {
    index: usize,
    /// cudarc's.
    pub stream: Arc<CudaStream>,
    /// Recorded after the last launch or copy.
    event: CudaEvent,
}

impl PartialEq for Lane {
    fn eq(&self, other: &Self) -> bool {
        self.stream == other.stream
    }
}

impl Eq for Lane {}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.stream.fmt(f)
    }
}

impl Lane {
    fn bit(&self) -> u64 {
        1 << self.index
    }

    /// Its number.
    pub(super) fn index(&self) -> usize {
        self.index
    }

    /// The key of this stream's workspace: the stream's handle, and the thread's number if one handle names a stream
    /// per thread (`CU_STREAM_PER_THREAD`).
    pub(super) fn workspace_key(&self) -> (usize, u64) {
        const PER_THREAD: usize = 2;
        static THREADS: AtomicU64 = AtomicU64::new(1);
        thread_local! {
            static THREAD: u64 = THREADS.fetch_add(1, Ordering::Relaxed);
        }
        match self.stream.cu_stream().addr() {
            // A thread that is ending has no number any more, and one that is nobody else's is as good.
            PER_THREAD => (
                PER_THREAD,
                THREAD.try_with(|number| *number).unwrap_or_else(|_| THREADS.fetch_add(1, Ordering::Relaxed)),
            ),
            handle => (handle, 0),
        }
    }

    /// Whether the stream can be captured to a graph: the context's default stream cannot.
    pub fn can_be_captured(&self) -> bool {
        self.index != 0
    }

    /// Whether the stream is being captured to a graph.
    pub fn is_captured(&self) -> Result<bool, DriverError> {
        Ok(self.can_be_captured()
            && self.stream.capture_status()? != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }
}

/// All streams of a context that our buffers have been used on.
pub(crate) struct Streams {
    lanes: papaya::HashMap<usize, Arc<Lane>>,
    /// Whether there are more streams than the default stream; without, no event has to be recorded.
    several: AtomicBool,
    making: Mutex<()>,
}

/// The streams of every context in use, by its address: two handles of one GPU share them as they share buffers.
static KNOWN: Mutex<Vec<(usize, Weak<Streams>)>> = Mutex::new(Vec::new());

impl Streams {
    /// The streams of a context, and the lane of its default stream.
    pub fn of(context: &Arc<CudaContext>) -> Result<(Arc<Self>, Arc<Lane>), DeviceError> {
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|(_, streams)| streams.strong_count() > 0);
        let address = context.cu_ctx().addr();
        let found = known.iter().find(|(other, _)| *other == address).and_then(|(_, weak)| weak.upgrade());
        let streams = found.unwrap_or_else(|| {
            let streams = Arc::new(Self {
                lanes: papaya::HashMap::new(),
                several: AtomicBool::new(false),
                making: Mutex::new(()),
            });
            known.push((address, Arc::downgrade(&streams)));
            streams
        });
        let own = streams.lane(context.default_stream())?;
        Ok((streams, own))
    }

    /// The lane of a stream. It is made at its first use, and is ordered after everything on other streams at that
    /// time.
    pub fn lane(&self, stream: Arc<CudaStream>) -> Result<Arc<Lane>, DeviceError> {
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        let lanes = self.lanes.pin();
        if let Some((_, lane)) = lanes.iter().find(|(_, lane)| lane.stream == stream) {
            return Ok(lane.clone());
        }
        let index = match (0..MOST).find(|index| !lanes.contains_key(index)) {
            Some(index) => index,
            None => self.free()?,
        };
        let said = |call| move |error| failed(call, error);
        let event = stream.context().new_event(None).map_err(said("cuEventCreate"))?;
        let lane = Arc::new(Lane { index, stream, event });
        if index > 0 {
            self.several.store(true, Ordering::Release);
            let joins = !lane.is_captured().map_err(said("cuStreamIsCapturing"))?;
            for (_, other) in lanes.iter() {
                // A capture takes no events from outside, and hands none out: what is in it runs when its graph does.
                if joins && !other.is_captured().map_err(said("cuStreamIsCapturing"))? {
                    other.event.record(&other.stream).map_err(said("cuEventRecord"))?;
                    lane.stream.wait(&other.event).map_err(said("cuStreamWaitEvent"))?;
                }
            }
        }
        lanes.insert(index, lane.clone());
        Ok(lane)
    }

    /// Frees the number of a stream without handles, after its work.
    fn free(&self) -> Result<usize, DeviceError> {
        let lanes = self.lanes.pin();
        let unused = lanes.iter().find(|(index, lane)| **index > 0 && Arc::strong_count(lane) == 1);
        let (index, lane) = unused.ok_or(DeviceError::TooManyStreams { limit: MOST })?;
        lane.stream.synchronize().map_err(|error| failed("cuStreamSynchronize", error))?;
        Ok(*index)
    }

    /// Makes `lane` wait for the work on the streams of these bits.
    fn wait(&self, lane: &Lane, mut bits: u64) -> Result<(), DriverError> {
        bits &= !lane.bit();
        if bits == 0 {
            return Ok(());
        }
        let lanes = self.lanes.pin();
        while bits != 0 {
            let index = bits.trailing_zeros() as usize;
            bits &= bits - 1;
            if let Some(other) = lanes.get(&index) {
                lane.stream.wait(&other.event)?;
            }
        }
        Ok(())
    }

    /// Records that work was enqueued on a stream.
    pub fn done(&self, lane: &Lane) -> Result<(), DriverError> {
        match self.several.load(Ordering::Acquire) {
            true => lane.event.record(&lane.stream),
            false => Ok(()),
        }
    }
}

/// Which streams have used a buffer.
pub(super) struct Uses {
    writer: AtomicUsize,
    /// Streams that are ordered after the last write.
    ordered: AtomicU64,
    /// Streams that have read since the last write.
    readers: AtomicU64,
}

impl Uses {
    /// State of a buffer allocated on stream `index` (0 = default), which may have written it.
    pub fn new(index: usize) -> Self {
        let ordered = AtomicU64::new(1u64 << index);
        Self { writer: AtomicUsize::new(index), ordered, readers: AtomicU64::new(0) }
    }

    /// Records a use by stream `index`, and returns the bits of the streams that it has to wait for.
    pub fn note(&self, index: usize, written: bool) -> u64 {
        let bit = 1u64 << index;
        let ordered = self.ordered.load(Ordering::Acquire) & bit != 0;
        let writer = if ordered { 0 } else { 1u64 << self.writer.load(Ordering::Acquire) };
        let readers = self.readers.load(Ordering::Acquire);
        if !written {
            if !ordered {
                self.ordered.fetch_or(bit, Ordering::AcqRel);
            }
            if readers & bit == 0 {
                self.readers.fetch_or(bit, Ordering::AcqRel);
            }
            return writer & !bit;
        }
        if !ordered || readers != 0 || self.writer.load(Ordering::Relaxed) != index {
            self.writer.store(index, Ordering::Release);
            self.ordered.store(bit, Ordering::Release);
            self.readers.store(0, Ordering::Release);
        }
        (writer | readers) & !bit
    }

    /// Makes the stream wait for other streams' use of the buffer, and records its own use.
    pub fn begin(&self, streams: &Streams, lane: &Lane, written: bool) -> Result<(), DriverError> {
        streams.wait(lane, self.note(lane.index, written))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LANES: usize = 5;
    const BUFFERS: usize = 3;

    /// How much of each stream's work is known to be done where a stream is.
    type Clock = [u64; LANES];

    /// A GPU whose streams do nothing but wait for each other's events.
    #[derive(Default)]
    struct Model {
        /// Clocks that a stream's next work comes after.
        behind: [Clock; LANES],
        /// Clocks that a stream's event stands for.
        events: [Clock; LANES],
        /// Work that was put in each stream.
        put: Clock,
    }

    impl Model {
        fn wait(&mut self, lane: usize, bits: u64) {
            for other in (0..LANES).filter(|other| bits >> other & 1 == 1) {
                let event = self.events[other];
                self.behind[lane].iter_mut().zip(event).for_each(|(mine, theirs)| *mine = theirs.max(*mine));
            }
        }

        /// Puts work in a stream and records its event; the work's number.
        fn work(&mut self, lane: usize) -> u64 {
            self.put[lane] += 1;
            self.behind[lane][lane] = self.put[lane];
            self.events[lane] = self.behind[lane];
            self.put[lane]
        }
    }

    /// Who used a buffer: stream, number of the work, whether it wrote.
    type Use = (usize, u64, bool);

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

        /// Calls one after the other: a write comes after all that came before it, a read after all writes.
        #[test]
        fn every_use_is_behind_those_that_it_must_be(
            calls in proptest::collection::vec((0..LANES, proptest::collection::vec((0..BUFFERS, any::<bool>()), 1..4)), 1..60),
        ) {
            let uses: [Uses; BUFFERS] = std::array::from_fn(|_| Uses::new(0));
            let (mut model, mut past) = (Model::default(), vec![Vec::<Use>::new(); BUFFERS]);
            // Memory comes from the default stream.
            let made = model.work(0);
            past.iter_mut().for_each(|past| past.push((0, made, true)));
            let (mut waits, mut all) = (0, 0);
            for (lane, buffers) in calls {
                for (buffer, written) in &buffers {
                    let bits = uses[*buffer].note(lane, *written);
                    prop_assert_eq!(bits >> lane & 1, 0, "a stream does not wait for itself");
                    waits += bits.count_ones();
                    all += 1;
                    model.wait(lane, bits);
                }
                let number = model.work(lane);
                for (buffer, written) in &buffers {
                    for (other, before, wrote) in &past[*buffer] {
                        if *written || *wrote {
                            prop_assert!(model.behind[lane][*other] >= *before || *other == lane);
                        }
                    }
                }
                for (buffer, written) in buffers {
                    past[buffer].push((lane, number, written));
                }
            }
            // No more than one for each other stream.
            prop_assert!(waits <= all * (LANES as u32 - 1));
        }
    }

    #[test]
    fn weights_cost_each_stream_one_wait_and_one_stream_none() {
        let weights = Uses::new(0);
        assert_eq!([0, 0, 1, 1, 2, 1, 2, 0].map(|lane| weights.note(lane, false)), [0, 0, 1, 0, 1, 0, 0, 0]);
        // New weights wait for everybody who has read the old ones.
        assert_eq!(weights.note(0, true), 0b110);
        assert_eq!([1, 1, 0].map(|lane| weights.note(lane, false)), [1, 0, 0]);
        let own = Uses::new(0);
        assert_eq!([true, false, true, true].map(|written| own.note(0, written)), [0; 4]);
    }
}
