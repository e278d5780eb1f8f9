//! Graphs of launches, captured from a stream; and events, which know when they were recorded.
//!
//! A stream that is captured takes launches and nothing else: what would wait for it, or allocate or copy on it, is an
//! error, as it is on a GPU or would become a part of the graph there.

use crate::module;
use crate::put;
use crate::state::{Code, Replays, code, state};
use silumin_emulator::Launch;
use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// `CU_STREAM_CAPTURE_STATUS_NONE` and `CU_STREAM_CAPTURE_STATUS_ACTIVE`.
const NOT_CAPTURING: c_int = 0;
const CAPTURING: c_int = 1;

/// Launches that a call of `cuLaunchKernel` made, outside of graphs.
pub(crate) static DIRECT: AtomicU64 = AtomicU64::new(0);
/// Launches of graphs.
static REPLAYED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The thread's mode of captures; global before any is set.
    static MODE: Cell<c_uint> = const { Cell::new(0) };
}

/// Launches, each with the handle of its function.
pub(crate) type Launches = Vec<(usize, Launch)>;

/// Captures, graphs and events, by their handles.
#[derive(Default)]
pub(crate) struct Graphs {
    capturing: HashMap<usize, Launches>,
    /// Graphs, and what was instantiated of them.
    graphs: HashMap<usize, Arc<Launches>>,
    /// Graphs that a call is launching.
    launching: HashSet<usize>,
    /// When each event was recorded last.
    events: HashMap<usize, Instant>,
}

impl Graphs {
    /// Records a launch if the stream is being captured; else returns it.
    pub fn take(&mut self, stream: *mut c_void, function: usize, launch: Launch) -> Option<Launch> {
        match self.capturing.get_mut(&stream.addr()) {
            Some(launches) => {
                launches.push((function, launch));
                None
            }
            None => Some(launch),
        }
    }
}

/// The error of work other than launches on a captured stream.
pub(crate) fn not_captured(stream: *mut c_void) -> Result<(), Code> {
    match state().graphs().capturing.contains_key(&stream.addr()) {
        true => Err(Code::StreamCaptureUnsupported),
        false => Ok(()),
    }
}

/// As [`not_captured`], as the driver's functions return it.
fn unless_captured(stream: *mut c_void) -> c_int {
    match not_captured(stream) {
        Ok(()) => state().sticky() as c_int,
        Err(error) => code(error),
    }
}

/// Does nothing: all work has already run.
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamSynchronize(stream: *mut c_void) -> c_int {
    unless_captured(stream)
}

/// Success: all work has already run.
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamQuery(stream: *mut c_void) -> c_int {
    unless_captured(stream)
}

/// Does nothing: events have occurred. A captured stream does not wait for what is outside its capture.
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamWaitEvent(
    stream: *mut c_void,
    _event: *mut c_void,
    _flags: c_uint,
) -> c_int {
    match not_captured(stream) {
        Ok(()) => state().sticky() as c_int,
        Err(_) => code(Code::StreamCaptureIsolation),
    }
}

/// Records the time. In a capture the event becomes a part of the graph, which ignores it.
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventRecord(event: *mut c_void, stream: *mut c_void) -> c_int {
    if not_captured(stream).is_ok() {
        state().graphs().events.insert(event.addr(), Instant::now());
    }
    state().sticky() as c_int
}

/// Destroys an event.
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventDestroy_v2(event: *mut c_void) -> c_int {
    state().graphs().events.remove(&event.addr());
    state().sticky() as c_int
}

/// Milliseconds of host time between two events.
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime(ms: *mut f32, start: *mut c_void, end: *mut c_void) -> c_int {
    let graphs = state().graphs();
    let when = |event: *mut c_void| graphs.events.get(&event.addr()).copied();
    let (Some(start), Some(end)) = (when(start), when(end)) else { return code(Code::InvalidHandle) };
    // SAFETY: the caller's place.
    code(unsafe { put(ms, end.saturating_duration_since(start).as_secs_f32() * 1e3) })
}

/// As [`cuEventElapsedTime`].
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime_v2(ms: *mut f32, start: *mut c_void, end: *mut c_void) -> c_int {
    // SAFETY: the caller's.
    unsafe { cuEventElapsedTime(ms, start, end) }
}

/// Starts to record a stream's launches. The legacy stream cannot be captured, as on a GPU.
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamBeginCapture_v2(stream: *mut c_void, _mode: c_uint) -> c_int {
    if stream.is_null() {
        return code(Code::StreamCaptureUnsupported);
    }
    let mut graphs = state().graphs();
    match graphs.capturing.contains_key(&stream.addr()) {
        true => code(Code::InvalidValue),
        false => {
            graphs.capturing.insert(stream.addr(), Vec::new());
            code(Code::Success)
        }
    }
}

/// Whether a stream is being captured.
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamIsCapturing(stream: *mut c_void, status: *mut c_int) -> c_int {
    let now = if not_captured(stream).is_ok() { NOT_CAPTURING } else { CAPTURING };
    // SAFETY: the caller's place.
    code(unsafe { put(status, now) })
}

/// Ends a capture and returns its graph.
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamEndCapture(stream: *mut c_void, graph: *mut *mut c_void) -> c_int {
    let number = state().number();
    let mut graphs = state().graphs();
    let Some(launches) = graphs.capturing.remove(&stream.addr()) else {
        return code(Code::InvalidValue);
    };
    graphs.graphs.insert(number, Arc::new(launches));
    // SAFETY: the caller's place.
    code(unsafe { put(graph, ptr::without_provenance_mut(number)) })
}

/// Instantiates a graph for launches.
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphInstantiateWithFlags(
    instance: *mut *mut c_void,
    graph: *mut c_void,
    _flags: c_ulonglong,
) -> c_int {
    if state().replays == Replays::None {
        return code(Code::NotSupported);
    }
    let number = state().number();
    let mut graphs = state().graphs();
    let Some(launches) = graphs.graphs.get(&graph.addr()).cloned() else {
        return code(Code::InvalidHandle);
    };
    graphs.graphs.insert(number, launches);
    // SAFETY: the caller's place.
    code(unsafe { put(instance, ptr::without_provenance_mut(number)) })
}

/// Runs all launches of a graph. Two calls with one graph at the same time are an error: graph objects are not for
/// several threads at once (CUDA driver API, "Graph object thread safety").
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphLaunch(instance: *mut c_void, stream: *mut c_void) -> c_int {
    if not_captured(stream).is_err() {
        return code(Code::StreamCaptureUnsupported);
    }
    let launches = {
        let mut graphs = state().graphs();
        let Some(launches) = graphs.graphs.get(&instance.addr()).cloned() else {
            return code(Code::InvalidHandle);
        };
        if !graphs.launching.insert(instance.addr()) {
            module::say("two threads launch one graph at the same time");
            return code(state().fail());
        }
        launches
    };
    REPLAYED.fetch_add(1, Ordering::Relaxed);
    if state().replays == Replays::Idle {
        state().graphs().launching.remove(&instance.addr());
        return code(state().sticky());
    }
    let run = |(function, launch): &(usize, Launch)| module::execute(*function, launch);
    let failed = launches.iter().map(run).find(|result| *result != Code::Success);
    state().graphs().launching.remove(&instance.addr());
    code(failed.unwrap_or_else(|| state().sticky()))
}

/// Sets the thread's capture mode and returns the previous one. It forbids no calls here.
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut c_uint) -> c_int {
    // SAFETY: the caller's place.
    match unsafe { mode.as_mut() } {
        // Global, of the thread, relaxed.
        Some(mode @ 0..=2) => {
            *mode = MODE.replace(*mode);
            code(Code::Success)
        }
        _ => code(Code::InvalidValue),
    }
}

/// Counts for tests, which no GPU driver has: direct launches, graph launches, and graphs with their instances.
///
/// # Safety
/// `counts` is null or a place for the three.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn silumin_emulated_counts(counts: *mut [u64; 3]) -> c_int {
    let alive = state().graphs().graphs.len() as u64;
    let found = [DIRECT.load(Ordering::Relaxed), REPLAYED.load(Ordering::Relaxed), alive];
    // SAFETY: the caller's place.
    code(unsafe { put(counts, found) })
}

/// Destroys a graph.
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphDestroy(graph: *mut c_void) -> c_int {
    let found = state().graphs().graphs.remove(&graph.addr());
    code(if found.is_some() { Code::Success } else { Code::InvalidHandle })
}

/// Destroys a graph's instance.
///
/// # Safety
/// As in the driver's API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphExecDestroy(instance: *mut c_void) -> c_int {
    // SAFETY: the caller's.
    unsafe { cuGraphDestroy(instance) }
}
