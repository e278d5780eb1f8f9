//! Sums over GPUs, by NCCL.
//!
//! The library is looked for when a group is made, so programs build and run without it. cudarc's own bindings look for
//! `libnccl.so` only, which packages for running lack, and panic where it is missing.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cudarc::driver::{CudaStream, DriverError, sys};
use libloading::Library;

use super::CommunicatorError;
use super::group::Group;
use crate::device::{Backend, Buffer, Device, DeviceError, Stream};
use crate::prepare::Source;

/// The file of the library, in place of the names below.
const VARIABLE: &str = "SILUMIN_NCCL";
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];
/// How long a wait looks without a pause, and how long its pauses are then.
const SPIN: Duration = Duration::from_millis(1);
const PAUSE: Duration = Duration::from_micros(50);
/// How long the end of a communicator is waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// `ncclComm_t`.
type Comm = *mut c_void;
/// `ncclResult_t`.
type Code = c_int;
const SUCCESS: Code = 0;
const IN_PROGRESS: Code = 7;
/// `ncclFloat16` and `ncclBfloat16` of `ncclDataType_t`, `ncclSum` of `ncclRedOp_t`.
const F16: c_int = 6;
const BF16: c_int = 9;
const SUM: c_int = 0;

/// The functions of NCCL that are used (NCCL API reference; `nccl.h` of 2.10 and newer).
struct Nccl {
    init_all: unsafe extern "C" fn(*mut Comm, c_int, *const c_int) -> Code,
    all_reduce:
        unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, sys::CUstream) -> Code,
    async_error: unsafe extern "C" fn(Comm, *mut Code) -> Code,
    abort: unsafe extern "C" fn(Comm) -> Code,
    destroy: unsafe extern "C" fn(Comm) -> Code,
    group_start: unsafe extern "C" fn() -> Code,
    group_end: unsafe extern "C" fn() -> Code,
    error_string: unsafe extern "C" fn(Code) -> *const c_char,
    _library: Library,
}

impl Nccl {
    /// The library, loaded once.
    fn get() -> Result<&'static Nccl, CommunicatorError> {
        static NCCL: OnceLock<Result<Nccl, CommunicatorError>> = OnceLock::new();
        NCCL.get_or_init(Self::load).as_ref().map_err(Clone::clone)
    }

    fn load() -> Result<Nccl, CommunicatorError> {
        let given = std::env::var(VARIABLE).ok();
        let names: Vec<&str> = given.as_deref().map_or(NAMES.to_vec(), |given| vec![given]);
        // SAFETY: initialisers of NCCL have no preconditions.
        let open =
            |name: &&str| unsafe { Library::new(*name) }.ok().map(|library| (library, (*name).to_owned()));
        let Some((library, name)) = names.iter().find_map(open) else {
            return Err(CommunicatorError::NoNccl { tried: names.join(", ") });
        };
        macro_rules! function {
            ($symbol:literal) => {
                // SAFETY: the symbol has this type in `nccl.h`, and the library stays loaded for as long as the function.
                match unsafe { library.get($symbol) } {
                    Ok(symbol) => *symbol,
                    Err(_) => {
                        let missing = String::from_utf8_lossy($symbol).into_owned();
                        return Err(CommunicatorError::OldNccl { library: name, missing });
                    }
                }
            };
        }
        Ok(Nccl {
            init_all: function!(b"ncclCommInitAll"),
            all_reduce: function!(b"ncclAllReduce"),
            async_error: function!(b"ncclCommGetAsyncError"),
            abort: function!(b"ncclCommAbort"),
            destroy: function!(b"ncclCommDestroy"),
            group_start: function!(b"ncclGroupStart"),
            group_end: function!(b"ncclGroupEnd"),
            error_string: function!(b"ncclGetErrorString"),
            _library: library,
        })
    }

    fn check(&self, call: &'static str, code: Code) -> Result<(), CommunicatorError> {
        if code == SUCCESS || code == IN_PROGRESS {
            return Ok(());
        }
        // SAFETY: any code is allowed, and the result is a string constant.
        let text = unsafe { (self.error_string)(code) };
        let reason = match text.is_null() {
            true => format!("error {code}"),
            // SAFETY: NCCL's strings end with a zero.
            false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
        };
        Err(CommunicatorError::Nccl { call, reason })
    }
}

/// A rank's NCCL communicator.
pub(super) struct Rank {
    nccl: &'static Nccl,
    device: Device,
    group: Arc<Group>,
    number: usize,
    state: Mutex<State>,
}

struct State {
    /// `None` once sums under way were given up.
    comm: Option<Comm>,
    /// The streams that had sums.
    streams: Vec<Arc<CudaStream>>,
    /// Ends the communicator.
    ending: Option<JoinHandle<()>>,
}

// SAFETY: a communicator may be used by any thread, by one at a time, which the lock sees to.
unsafe impl Send for State {}

/// Makes the communicators of all ranks, and adds once, so that all links are made before anything is captured.
pub(super) fn join(devices: &[Device], group: &Arc<Group>) -> Result<Vec<Rank>, CommunicatorError> {
    let nccl = Nccl::get()?;
    let ordinals: Vec<c_int> =
        devices.iter().filter_map(Device::ordinal).map(|ordinal| ordinal as c_int).collect();
    let mut comms: Vec<Comm> = vec![ptr::null_mut(); ordinals.len()];
    // SAFETY: there is a place for each of the devices.
    let code = unsafe { (nccl.init_all)(comms.as_mut_ptr(), ordinals.len() as c_int, ordinals.as_ptr()) };
    nccl.check("ncclCommInitAll", code)?;
    let rank = |(number, (comm, device)): (usize, (Comm, &Device))| {
        let state = Mutex::new(State { comm: Some(comm), streams: Vec::new(), ending: None });
        Rank { nccl, device: device.clone(), group: group.clone(), number, state }
    };
    let ranks: Vec<Rank> = comms.into_iter().zip(devices).enumerate().map(rank).collect();
    // Eight zeros: NCCL makes the links between GPUs with the first sum.
    let buffers = devices.iter().map(|device| device.upload(&[0; 16]));
    let buffers = buffers.collect::<Result<Vec<_>, DeviceError>>()?;
    // SAFETY: no preconditions.
    nccl.check("ncclGroupStart", unsafe { (nccl.group_start)() })?;
    let asked = ranks
        .iter()
        .zip(&buffers)
        .try_for_each(|(rank, buffer)| rank.all_reduce(&rank.device.stream(), buffer, Source::F16, || {}));
    // The group is ended even where a call in it failed.
    // SAFETY: a group was started.
    let ended = nccl.check("ncclGroupEnd", unsafe { (nccl.group_end)() });
    asked.and(ended)?;
    ranks.iter().try_for_each(|rank| rank.wait(&rank.device.stream()))?;
    Ok(ranks)
}

impl Rank {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing below panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enqueues a sum; calls `asked` unless the stream is being captured.
    pub fn all_reduce(
        &self,
        stream: &Stream,
        buffer: &Buffer,
        source: Source,
        asked: impl FnOnce(),
    ) -> Result<(), CommunicatorError> {
        let (Backend::Cuda(cuda), Some(lane)) = (self.device.backend(), stream.lane()) else { return Ok(()) };
        let mut state = self.state();
        let Some(comm) = state.comm else { return self.group.check() };
        if !state.streams.contains(&lane.stream) {
            state.streams.push(lane.stream.clone());
        }
        let kind = match source {
            Source::Bf16 => BF16,
            Source::F16 => F16,
        };
        let captured = cuda.enqueue(buffer, lane, |address, stream| {
            let (place, count) = (ptr::without_provenance_mut(address as usize), buffer.len() / 2);
            // SAFETY: the range is a buffer's that the caller has a handle of; the stream and the communicator are of its GPU,
            // whose context is bound.
            let code = unsafe { (self.nccl.all_reduce)(place, place, count, kind, SUM, comm, stream) };
            self.nccl.check("ncclAllReduce", code)
        })?;
        if !captured {
            asked();
        }
        Ok(())
    }

    /// Waits for the stream; gives up sums under way where a rank is late or has left.
    pub fn wait(&self, stream: &Stream) -> Result<(), CommunicatorError> {
        match stream.cuda() {
            Some(stream) => self.wait_for(stream),
            None => Ok(()),
        }
    }

    fn wait_for(&self, stream: &CudaStream) -> Result<(), CommunicatorError> {
        let (start, group) = (Instant::now(), &self.group);
        loop {
            if is_done(stream)? {
                // NCCL may have noticed an error in a sum that has ended all the same.
                return self.noticed();
            }
            let waited = start.elapsed();
            let late = || (waited >= group.limit).then(|| group.late(self.number, waited.as_secs()));
            let noticed = || self.noticed().err();
            let failed = || group.check().err();
            if let Some(error) = group.gone(self.number).or_else(failed).or_else(noticed).or_else(late) {
                let error = group.fail(error);
                self.abort(stream);
                return Err(error);
            }
            match waited < SPIN {
                true => std::thread::yield_now(),
                false => std::thread::sleep(PAUSE),
            }
        }
    }

    /// What NCCL has noticed of its own accord.
    fn noticed(&self) -> Result<(), CommunicatorError> {
        let state = self.state();
        let Some(comm) = state.comm else { return Ok(()) };
        let mut code = SUCCESS;
        // SAFETY: the communicator lives, and the argument is a place for a code.
        let asked = unsafe { (self.nccl.async_error)(comm, &raw mut code) };
        self.nccl.check("ncclCommGetAsyncError", asked)?;
        self.nccl.check("a sum of NCCL", code)
    }

    /// Gives up the sums under way, and waits until the stream has seen that.
    fn abort(&self, stream: &CudaStream) {
        self.end(self.nccl.abort);
        let start = Instant::now();
        while matches!(is_done(stream), Ok(false)) && start.elapsed() < PATIENCE {
            std::thread::sleep(PAUSE);
        }
    }

    /// Ends the communicator, in a thread: NCCL gives up sums under way at once, and then waits for graphs that have sums of
    /// it, which their owners may drop later.
    fn end(&self, call: unsafe extern "C" fn(Comm) -> Code) {
        let mut state = self.state();
        let Some(comm) = state.comm.take().map(Owned) else { return };
        let device = self.device.clone();
        state.ending = Some(std::thread::spawn(move || {
            let comm = comm;
            // SAFETY: the communicator lives, and nobody uses it behind this. That it fails changes nothing.
            let _ = unsafe { call(comm.0) };
            drop(device);
        }));
    }
}

/// A communicator on its way to a thread.
struct Owned(Comm);

// SAFETY: a communicator may be used by any thread, and nobody else uses this one.
unsafe impl Send for Owned {}

/// Whether all work on a stream has ended.
fn is_done(stream: &CudaStream) -> Result<bool, CommunicatorError> {
    let failed = |call, error: DriverError| {
        CommunicatorError::from(DeviceError::Driver { call, reason: format!("{:?}", error.0) })
    };
    stream.context().bind_to_thread().map_err(|error| failed("cuCtxSetCurrent", error))?;
    // SAFETY: the stream is of the bound context.
    match unsafe { sys::cuStreamQuery(stream.cu_stream()) }.result() {
        Ok(()) => Ok(true),
        Err(error) if error.0 == sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
        Err(error) => Err(failed("cuStreamQuery", error)),
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        // Other ranks need this one's part of sums under way. Where it does not end, they are given up.
        let streams = std::mem::take(&mut self.state().streams);
        let ended = !std::thread::panicking() && streams.iter().all(|stream| self.wait_for(stream).is_ok());
        self.end(if ended { self.nccl.destroy } else { self.nccl.abort });
        // A program that ends while NCCL is at work crashes; one that keeps a graph of its own is not waited for.
        let (ending, start) = (self.state().ending.take(), Instant::now());
        if let Some(thread) = ending {
            while !thread.is_finished() && start.elapsed() < PATIENCE {
                std::thread::sleep(PAUSE);
            }
        }
    }
}
