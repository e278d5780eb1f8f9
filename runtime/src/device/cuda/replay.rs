//! Launches that replay as a CUDA graph, and their time on the device.

use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::{CudaEvent, CudaGraph, CudaStream, DriverError, sys};

use super::driver::failed;
use crate::device::{DeviceError, Stream};

/// Replays before any is timed.
const WARM_UP: usize = 3;

/// Launches captured from a stream, to be replayed and timed: a kernel's time without the host's cost of launching
/// it.
///
/// The method is that of published comparisons: replays of one round over all sets of operands for an estimate; a graph of as
/// many rounds as take the given time; three replays to warm up. Then each replay runs between two events.
pub struct Replay {
    graph: CudaGraph,
    stream: Arc<CudaStream>,
    events: [CudaEvent; 2],
    launches: usize,
}

fn events(stream: &Arc<CudaStream>) -> Result<[CudaEvent; 2], DriverError> {
    let event = || stream.context().new_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT));
    Ok([event()?, event()?])
}

/// Microseconds on the device between two events around `work`; waits for its end.
fn between<E>(
    stream: &CudaStream,
    [start, end]: &[CudaEvent; 2],
    work: impl FnOnce() -> Result<(), E>,
    said: impl Fn(DeviceError) -> E + Copy,
) -> Result<f64, E> {
    start.record(stream).map_err(|error| said(failed("cuEventRecord", error)))?;
    work()?;
    end.record(stream).map_err(|error| said(failed("cuEventRecord", error)))?;
    stream.synchronize().map_err(|error| said(failed("cuStreamSynchronize", error)))?;
    let ms = start.elapsed_ms(end).map_err(|error| said(failed("cuEventElapsedTime", error)))?;
    Ok(f64::from(ms) * 1e3)
}

impl Replay {
    /// Captures rounds of `launch(0)` to `launch(sets - 1)` on the stream, as many as take about `length`. Every
    /// launch runs once before the capture. `said` converts a device error to the caller's error.
    ///
    /// # Errors
    ///
    /// Those of `launch`, the driver's, and [`DeviceError::Foreign`] for the stream of a device that is no GPU.
    pub fn capture<E>(
        stream: &Stream,
        sets: usize,
        length: Duration,
        launch: impl Fn(usize) -> Result<(), E>,
        said: impl Fn(DeviceError) -> E + Copy,
    ) -> Result<Self, E> {
        let Some(cuda) = stream.cuda() else {
            let device = stream.device().numbered();
            return Err(said(DeviceError::Foreign { what: "graph", device }));
        };
        let round = || (0..sets).try_for_each(&launch);
        let events = events(cuda).map_err(|error| said(failed("cuEventCreate", error)))?;
        round()?;
        cuda.synchronize().map_err(|error| said(failed("cuStreamSynchronize", error)))?;
        let of_rounds = |rounds: usize, events| -> Result<Self, E> {
            let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
            cuda.begin_capture(mode).map_err(|error| said(failed("cuStreamBeginCapture", error)))?;
            let captured = (0..rounds).try_for_each(|_| round());
            // The stream is taken out of its capture even where a launch failed.
            let graph = cuda.end_capture(sys::CUgraphInstantiate_flags(0));
            captured?;
            let none = || DeviceError::Driver {
                call: "cuStreamEndCapture",
                reason: "nothing was captured".to_owned(),
            };
            let graph = graph.map_err(|error| said(failed("cuStreamEndCapture", error)))?;
            let graph = graph.ok_or_else(|| said(none()))?;
            let replay = Self { graph, stream: cuda.clone(), events, launches: rounds * sets };
            for _ in 0..WARM_UP {
                replay.start().map_err(said)?;
            }
            cuda.synchronize().map_err(|error| said(failed("cuStreamSynchronize", error)))?;
            Ok(replay)
        };
        // The estimate comes from a graph, too: launches one by one take as long as the host needs for them, and the first of a
        // process much longer. A short graph's start would count for more than that of those that it is compared with.
        let one = of_rounds(1, events)?;
        let mut once = f64::INFINITY;
        for _ in 0..WARM_UP {
            once = once.min(one.time().map_err(said)?);
        }
        let Self { events, .. } = one;
        let rounds = ((length.as_secs_f64() * 1e6 / once.max(1.0) / sets.max(1) as f64) as usize).max(1);
        of_rounds(rounds, events)
    }

    /// Launches per replay.
    #[must_use]
    pub fn launches(&self) -> usize {
        self.launches
    }

    /// Enqueues all launches once more.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Driver`].
    pub fn start(&self) -> Result<(), DeviceError> {
        self.graph.launch().map_err(|error| failed("cuGraphLaunch", error))
    }

    /// Mean time per launch over one replay, in microseconds; waits for its end.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Driver`]: what went wrong in the kernels, too.
    pub fn time(&self) -> Result<f64, DeviceError> {
        let replayed = between(&self.stream, &self.events, || self.start(), |error| error)?;
        Ok(replayed / self.launches.max(1) as f64)
    }
}
