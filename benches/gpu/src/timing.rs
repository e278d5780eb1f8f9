//! Times of launches: graphs that are replayed between two events, and what is made of the times.
//!
//! The method is that of the peers' script: every set of operands once for an estimate; a graph of as many rounds over all
//! sets as take about 2 ms; three replays to warm up; then replays one by one, each between two events and waited for. A
//! launch's time is the replay's over its launches, and the figure is the median of the replays.

use crate::raw::said;
use cudarc::driver::{CudaEvent, CudaGraph, CudaStream, sys};
use std::sync::Arc;

/// Replays before any is timed.
const WARM_UP: usize = 3;

/// Launches that replay together.
pub struct Captured {
    graph: CudaGraph,
    stream: Arc<CudaStream>,
    events: [CudaEvent; 2],
    /// Launches in the graph.
    pub calls: usize,
}

/// Two events that tell the time between them.
fn events(stream: &Arc<CudaStream>) -> Result<[CudaEvent; 2], String> {
    let event = || {
        let flags = sys::CUevent_flags::CU_EVENT_DEFAULT;
        stream.context().new_event(Some(flags)).map_err(|e| said("cuEventCreate", e))
    };
    Ok([event()?, event()?])
}

/// Microseconds that `work` takes on the device.
fn between(
    stream: &Arc<CudaStream>,
    [start, end]: &[CudaEvent; 2],
    work: impl FnOnce() -> Result<(), String>,
) -> Result<f64, String> {
    start.record(stream).map_err(|e| said("cuEventRecord", e))?;
    work()?;
    end.record(stream).map_err(|e| said("cuEventRecord", e))?;
    stream.synchronize().map_err(|e| said("cuStreamSynchronize", e))?;
    let ms = start.elapsed_ms(end).map_err(|e| said("cuEventElapsedTime", e))?;
    Ok(f64::from(ms) * 1e3)
}

impl Captured {
    /// Captures rounds of `launch(0)` to `launch(sets - 1)`, as many as take about `graph_ms`. All have run once before.
    pub fn new(
        stream: &Arc<CudaStream>,
        sets: usize,
        graph_ms: f64,
        launch: impl Fn(usize) -> Result<(), String>,
    ) -> Result<Self, String> {
        let round = || (0..sets).try_for_each(&launch);
        let events = events(stream)?;
        round()?;
        stream.synchronize().map_err(|e| said("cuStreamSynchronize", e))?;
        let once = between(stream, &events, round)? / sets as f64;
        let rounds = ((graph_ms * 1e3 / once.max(1.0) / sets as f64) as usize).max(1);
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        stream.begin_capture(mode).map_err(|e| said("cuStreamBeginCapture", e))?;
        let captured = (0..rounds).try_for_each(|_| round());
        // The stream is taken out of its capture even where a launch failed.
        let graph = stream.end_capture(sys::CUgraphInstantiate_flags(0));
        captured?;
        let graph = graph.map_err(|e| said("cuStreamEndCapture", e))?.ok_or("nothing was captured")?;
        let captured = Self { graph, stream: stream.clone(), events, calls: rounds * sets };
        for _ in 0..WARM_UP {
            captured.replay()?;
        }
        stream.synchronize().map_err(|e| said("cuStreamSynchronize", e))?;
        Ok(captured)
    }

    /// Puts all launches in the stream once more.
    pub fn replay(&self) -> Result<(), String> {
        self.graph.launch().map_err(|e| said("cuGraphLaunch", e))
    }

    /// Microseconds of a launch, in one replay.
    pub fn time(&self) -> Result<f64, String> {
        Ok(between(&self.stream, &self.events, || self.replay())? / self.calls as f64)
    }

    /// The same, so many times.
    pub fn times(&self, reps: usize) -> Result<Vec<f64>, String> {
        (0..reps).map(|_| self.time()).collect()
    }
}

/// The value that a share of all lie below, between neighbours by their distance; NaN of none.
pub fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let place = share.clamp(0.0, 1.0) * last as f64;
    let (low, high) = (place.floor() as usize, place.ceil() as usize);
    sorted[low] + (sorted[high] - sorted[low]) * (place - low as f64)
}

/// The middle of all.
pub fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_quantiles_are_those_of_numpy() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0, 5.0], 0.1), 1.4);
        assert_eq!((quantile(&[7.0], 0.9), quantile(&[1.0, 2.0], 2.0)), (7.0, 2.0));
        assert!(median(&[]).is_nan());
    }
}
