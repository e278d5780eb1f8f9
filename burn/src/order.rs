//! What makes cubecl's streams and silumin's stream wait for each other.

use crate::Error;
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError, sys};
use std::sync::Arc;

/// How a call on CUDA is ordered with burn's work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// The host waits: for burn's work on x before the launch, and for silumin's kernels after it.
    #[default]
    Host,
    /// The GPU waits: silumin's kernels for all earlier work in the context, and all later work in the context for them. It takes
    /// a driver of CUDA 12.5 or later.
    Context,
}

/// Events for [`Order::Context`]: cubecl's streams are in the context, so that their names are not needed.
pub(crate) struct Events {
    stream: Arc<CudaStream>,
    before: CudaEvent,
    after: CudaEvent,
}

impl From<DriverError> for Error {
    fn from(error: DriverError) -> Self {
        Error::Driver(error.to_string())
    }
}

impl Events {
    pub(crate) fn new(context: &Arc<CudaContext>, stream: Arc<CudaStream>) -> Result<Self, Error> {
        let mut version = 0;
        // SAFETY: the driver writes a number there.
        unsafe { sys::cuDriverGetVersion(&mut version) }.result()?;
        if version < 12050 {
            return Err(Error::Driver(format!(
                "`Order::Context` takes a driver of CUDA 12.5, and this one has {}.{}: use `Order::Host`",
                version / 1000,
                version % 1000 / 10
            )));
        }
        Ok(Events { stream, before: context.new_event(None)?, after: context.new_event(None)? })
    }

    /// Later work on the stream waits for earlier work in the context.
    pub(crate) fn before(&self) -> Result<(), Error> {
        let context = self.stream.context();
        context.bind_to_thread()?;
        // SAFETY: the event is the context's, and both live.
        unsafe { sys::cuCtxRecordEvent(context.cu_ctx(), self.before.cu_event()) }.result()?;
        Ok(self.stream.wait(&self.before)?)
    }

    /// Later work in the context waits for earlier work on the stream.
    pub(crate) fn after(&self) -> Result<(), Error> {
        let context = self.stream.context();
        self.after.record(&self.stream)?;
        // SAFETY: the event is the context's, and both live.
        Ok(unsafe { sys::cuCtxWaitEvent(context.cu_ctx(), self.after.cu_event()) }.result()?)
    }
}
