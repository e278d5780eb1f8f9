//! Times launches by graphs that are replayed between two events (`Replay`), and summarises the times.

use silumin_runtime::device::{Replay, Stream};
use std::time::Duration;

pub use silumin_runtime::tune::{median, quantile};

/// Captures rounds of `launch(0)` to `launch(sets - 1)`, as many as take about `graph_ms`.
pub fn capture(
    stream: &Stream,
    sets: usize,
    graph_ms: f64,
    launch: impl Fn(usize) -> Result<(), String>,
) -> Result<Replay, String> {
    let length = Duration::try_from_secs_f64(graph_ms / 1e3).map_err(|e| format!("--graph-ms: {e}"))?;
    Replay::capture(stream, sets, length, launch, |error| error.to_string())
}
