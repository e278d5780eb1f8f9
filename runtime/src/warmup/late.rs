//! Kernels that are made while the engine runs, by threads of their own, where it allows that.
//!
//! A fixed number of places, each set once: whoever looks one up takes no lock and allocates nothing.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};

use silumin_codegen::problem::Shape;

use super::tuned::Chooser;
use crate::device::Device;
use crate::gemm::LoadedKernel;

/// Kernels that are made late, at most: an engine that needs more has named the wrong buckets.
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

/// How a late kernel stands.
#[derive(Clone, Copy)]
pub(super) enum State<'a> {
    Ready(&'a LoadedKernel),
    /// It is in the making.
    Compiling,
    /// It can't be made: why.
    Failed(&'a str),
    /// There are as many as there may be.
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

    /// The kernel, which is begun if it is not.
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

    /// Waits for what is in the making: a driver that compiles while the process ends may take it down.
    pub fn finish(&self) {
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // One that panicked has nothing to hand over.
            let _ = thread.join();
        }
    }
}
