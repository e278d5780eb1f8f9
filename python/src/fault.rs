//! Errors as Python exceptions, and work beside the interpreter.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// How often a run is asked whether the user has pressed Ctrl-C.
const PATIENCE: Duration = Duration::from_millis(50);
/// Stack of the thread that parses and starts runs, in bytes.
const STACK: usize = 16 << 20;

/// An error on its way to Python.
#[derive(Debug)]
pub struct Fault {
    /// Name of the exception in `silumin._errors`.
    pub class: &'static str,
    /// Its text.
    pub message: String,
}

impl Fault {
    /// An error in the text of a kernel.
    pub fn ptx(message: impl ToString) -> Self {
        Fault { class: "PtxError", message: message.to_string() }
    }

    /// An error in a launch or its arguments.
    pub fn launch(message: impl ToString) -> Self {
        Fault { class: "LaunchError", message: message.to_string() }
    }

    /// An error in an option of a call.
    pub fn option(message: impl ToString) -> Self {
        Fault { class: "ArgumentError", message: message.to_string() }
    }

    /// A kernel that cannot be made.
    pub fn config(message: impl ToString) -> Self {
        Fault { class: "ConfigError", message: message.to_string() }
    }

    /// A time that cannot be predicted.
    pub fn prediction(message: impl ToString) -> Self {
        Fault { class: "PredictionError", message: message.to_string() }
    }

    /// A GPU that is missing or has failed.
    pub fn device(message: impl ToString) -> Self {
        Fault { class: "DeviceError", message: message.to_string() }
    }

    /// A mistake of this package.
    fn internal(panic: &(dyn Any + Send)) -> Self {
        let text =
            (panic.downcast_ref::<String>().map(String::as_str)).or(panic.downcast_ref::<&str>().copied());
        let text = text.unwrap_or("no text");
        Fault {
            class: "InternalError",
            message: format!(
                "this is a mistake in silumin, not in your kernel; please report it with the kernel: {text}"
            ),
        }
    }

    /// The exception.
    fn raise(self, py: Python<'_>) -> PyErr {
        let class = py.import("silumin._errors").and_then(|module| module.getattr(self.class));
        match class.and_then(|class| class.call1((&self.message,))) {
            Ok(exception) => PyErr::from_value(exception),
            // The package's own module is missing or damaged.
            Err(_) => PyRuntimeError::new_err(self.message),
        }
    }
}

/// Does short work; a panic is an exception.
pub fn caught<T>(py: Python<'_>, work: impl FnOnce() -> Result<T, Fault>) -> PyResult<T> {
    let done = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(Fault::internal(&*panic)));
    done.map_err(|fault| fault.raise(py))
}

/// Does long work in a thread of its own, without the interpreter's lock. Ctrl-C sets the flag that the work gets, and is raised when
/// the work has ended.
pub fn interruptible<T: Send>(
    py: Python<'_>,
    work: impl FnOnce(&AtomicBool) -> Result<T, Fault> + Send,
) -> PyResult<T> {
    let stop = AtomicBool::new(false);
    let (alive, mut ended) = channel::<()>();
    let (joined, interrupt) = thread::scope(|scope| {
        let stop = &stop;
        let body = move || {
            let _alive = alive;
            work(stop)
        };
        let handle = match thread::Builder::new().stack_size(STACK).spawn_scoped(scope, body) {
            Ok(handle) => handle,
            Err(error) => {
                let fault =
                    Fault { class: "InternalError", message: format!("no thread for the run: {error}") };
                return (Ok(Err(fault)), None);
            }
        };
        let mut interrupt = None;
        loop {
            let (back, outcome) = py.detach(move || {
                let outcome = ended.recv_timeout(PATIENCE);
                (ended, outcome)
            });
            ended = back;
            if outcome != Err(RecvTimeoutError::Timeout) {
                break;
            }
            if interrupt.is_none()
                && let Err(signal) = py.check_signals()
            {
                stop.store(true, Ordering::Relaxed);
                interrupt = Some(signal);
            }
        }
        (py.detach(move || handle.join()), interrupt)
    });
    match interrupt {
        Some(signal) => Err(signal),
        None => joined.unwrap_or_else(|panic| Err(Fault::internal(&*panic))).map_err(|fault| fault.raise(py)),
    }
}
