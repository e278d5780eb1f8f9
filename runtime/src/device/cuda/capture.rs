//! Work of several kernels as one graph, and work of other libraries in order with ours.

use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::{DriverError, result, sys};

use super::driver::{self, failed};
use super::graph::{NEEDED, RELAXED, Relaxed, Template};
use super::{Cuda, Lane};
use crate::device::{Buffer, DeviceError};

/// Work that was captured on a stream, to be launched there with one call.
pub(crate) struct Recorded {
    lane: Arc<Lane>,
    /// Launched by one thread at a time.
    instance: Mutex<Instance>,
}

struct Instance(sys::CUgraphExec);

// SAFETY: the driver takes its handle from any thread, from one at a time, which the lock sees to.
unsafe impl Send for Instance {}

impl Cuda {
    /// Enqueues work of another library that reads and writes a buffer, behind other streams' use of it. Returns whether
    /// the stream is being captured.
    pub(crate) fn enqueue<E: From<DeviceError>>(
        &self,
        buffer: &Buffer,
        lane: &Lane,
        submit: impl FnOnce(u64, sys::CUstream) -> Result<(), E>,
    ) -> Result<bool, E> {
        let said = |call| move |error| failed(call, error);
        self.context.bind_to_thread().map_err(said("cuCtxSetCurrent"))?;
        let captured = lane.is_captured().map_err(said("cuStreamIsCapturing"))?;
        let Some((memory, offset)) = buffer.cuda_memory() else { return Ok(captured) };
        if !captured {
            memory.begin(lane, true).map_err(said("cuStreamWaitEvent"))?;
        }
        submit(memory.address() + offset as u64, lane.stream.cu_stream())?;
        if !captured {
            self.streams.done(lane).map_err(said("cuEventRecord"))?;
        }
        Ok(captured)
    }

    /// Captures what `submit` enqueues on the stream.
    pub(crate) fn record<E: From<DeviceError>>(
        &self,
        lane: &Arc<Lane>,
        submit: impl FnOnce() -> Result<(), E>,
    ) -> Result<Recorded, E> {
        let said = |call| move |error| failed(call, error);
        if let Some(missing) = driver::missing(&NEEDED) {
            return Err(DeviceError::OldDriver { missing: missing.to_owned() }.into());
        }
        self.context.bind_to_thread().map_err(said("cuCtxSetCurrent"))?;
        let _relaxed = Relaxed::begin().map_err(said("cuThreadExchangeStreamCaptureMode"))?;
        let stream = lane.stream.cu_stream();
        // SAFETY: the stream is of the bound context. The driver refuses one that is being captured.
        unsafe { result::stream::begin_capture(stream, RELAXED) }.map_err(said("cuStreamBeginCapture"))?;
        let submitted = submit();
        // The stream is taken out of its capture even where a launch failed.
        // SAFETY: the stream is being captured.
        let template = unsafe { result::stream::end_capture(stream) }.map(Template);
        submitted?;
        let template = template.map_err(said("cuStreamEndCapture"))?;
        if template.0.is_null() {
            let reason = "nothing was captured".to_owned();
            return Err(DeviceError::Driver { call: "cuStreamEndCapture", reason }.into());
        }
        // SAFETY: the template is a graph that nobody else has.
        let instance = unsafe { result::graph::instantiate(template.0, sys::CUgraphInstantiate_flags(0)) };
        let instance = instance.map_err(said("cuGraphInstantiateWithFlags"))?;
        Ok(Recorded { lane: lane.clone(), instance: Mutex::new(Instance(instance)) })
    }

    /// Enqueues recorded work behind other streams' use of its buffers: those that it reads, and those that it writes.
    pub(crate) fn replay(
        &self,
        recorded: &Recorded,
        reads: &[&Buffer],
        writes: &[&Buffer],
    ) -> Result<(), DeviceError> {
        let said = |call| move |error: DriverError| failed(call, error);
        let lane = &recorded.lane;
        self.context.bind_to_thread().map_err(said("cuCtxSetCurrent"))?;
        let captured = lane.is_captured().map_err(said("cuStreamIsCapturing"))?;
        if !captured {
            for (buffers, written) in [(reads, false), (writes, true)] {
                for (memory, _) in buffers.iter().filter_map(|buffer| buffer.cuda_memory()) {
                    memory.begin(lane, written).map_err(said("cuStreamWaitEvent"))?;
                }
            }
        }
        let instance = recorded.instance.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the instance lives, and this thread alone launches it; its stream is of the bound context.
        unsafe { result::graph::launch(instance.0, lane.stream.cu_stream()) }
            .map_err(said("cuGraphLaunch"))?;
        match captured {
            true => Ok(()),
            false => self.streams.done(lane).map_err(said("cuEventRecord")),
        }
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        let context = self.lane.stream.context();
        // A context that is gone has taken its graphs along.
        if context.bind_to_thread().is_ok() {
            let _relaxed = Relaxed::begin();
            let instance = self.instance.get_mut().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: the instance is nobody else's. One that is still running is freed when it has ended (CUDA driver API,
            // `cuGraphExecDestroy`).
            context.record_err(unsafe { result::graph::exec_destroy(instance.0) });
        }
    }
}
