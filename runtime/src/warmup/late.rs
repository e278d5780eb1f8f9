//! Kernels that are compiled in the background while the engine runs.
//!
//! There is a fixed number of slots, each set once, so a look-up takes no lock and allocates nothing.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};

use silumin_codegen::problem::Shape;

use super::tuned::Chooser;
use crate::device::Device;
use crate::gemm::LoadedKernel;

/// Most kernels compiled in the background. An engine that needs more has named the wrong buckets.
pub(super) const PLACES: usize = 64;

pub(super) struct Late {
    chooser: Arc<Chooser>,
    device: Device,
    places: [Place; PLACES],
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
struct Place {
    shape: OnceLock<Shape>,
    result: OnceLock<Result<LoadedKernel, String>>,
}

/// State of a background kernel.
#[derive(Clone, Copy)]
pub(super) enum State<'a> {
    Ready(&'a LoadedKernel),
    /// The kernel is being compiled.
    Compiling,
    /// The kernel cannot be made, for this reason.
    Failed(&'a str),
    /// All slots are taken.
    Full,
}

impl Late {
    pub fn new(chooser: Arc<Chooser>, device: Device) -> Arc<Self> {
        Arc::new(Self {
            chooser,
            device,
            places: std::array::from_fn(|_| Place::default()),
            threads: Mutex::default(),
        })
    }

    /// The state of a shape's kernel; starts the compilation if needed.
    pub fn get(self: &Arc<Self>, shape: Shape) -> State<'_> {
        for (index, place) in self.places.iter().enumerate() {
            let mut mine = false;
            let taken = place.shape.get_or_init(|| {
                mine = true;
                shape
            });
            if *taken != shape {
                continue;
            }
            if mine {
                self.begin(index, shape);
            }
            return match place.result.get() {
                Some(Ok(kernel)) => State::Ready(kernel),
                Some(Err(reason)) => State::Failed(reason),
                None => State::Compiling,
            };
        }
        State::Full
    }

    fn begin(self: &Arc<Self>, index: usize, shape: Shape) {
        let late = self.clone();
        let work = move || {
            let result = late.chooser.load(&late.device, shape);
            let result = result.map(|(kernel, _)| kernel).map_err(|error| error.to_string());
            let _ = late.places[index].result.set(result);
        };
        match thread::Builder::new().name(format!("silumin {shape}")).spawn(work) {
            Ok(thread) => self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread),
            Err(error) => {
                let _ = self.places[index].result.set(Err(format!("no thread to compile it: {error}")));
            }
        }
    }

    /// Waits for running compilations: a driver that compiles while the process ends may crash it.
    pub fn finish(&self) {
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // One that panicked has nothing to hand over.
            let _ = thread.join();
        }
    }
}
