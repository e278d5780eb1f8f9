//! Warm-up: generates, compiles and loads the kernels of a model before the first request.
//!
//! * `mod.rs`: [`Warmup`]: what is made, and how it goes on.
//! * `buckets.rs`: [`Buckets`], sizes of M.
//! * `kernels.rs`: [`Kernels`], which a launch looks its kernel up in.
//! * `tuned.rs`: which knobs they are made with.
//! * `late.rs`: kernels that are made behind the back of a running engine, where it allows that.
//!
//! ```
//! use silumin_codegen::{arch::Arch, spec::Spec};
//! use silumin_runtime::device::Device;
//! use silumin_runtime::gemm::DualGemm;
//! use silumin_runtime::warmup::{Buckets, Warmup};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let swiglu = DualGemm::new(Spec::new("silu(A @ B1) * (A @ B2)".parse()?, &[Arch::Sm100a])?);
//! let device = Device::emulated(Arch::Sm100a);
//! let kernels = Warmup::of(&swiglu)
//!     .weights(64, 128)
//!     .weights(128, 64)
//!     .buckets(Buckets::powers_of_two(64).and([48])?)
//!     .on_progress(|progress| println!("{progress}"))
//!     .run(&device)?;
//! assert_eq!(kernels.len(), 2 * 8);
//! // 37 rows are served by the kernel for 48: A and C have memory for 48, and what the last 11 hold does not matter.
//! assert_eq!(kernels.for_problem(37, 64, 128)?.kernel().problem.shape.m, 48);
//! assert!(kernels.for_problem(65, 64, 128).is_err());
//! # Ok(())
//! # }
//! ```

mod buckets;
mod kernels;
mod late;
mod tuned;

pub use buckets::{BucketError, Buckets};
pub use kernels::{Availability, FallBack, Kernels, UnknownShape};
pub use tuned::{KnobsBy, TuningReport};

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rayon::prelude::*;
use silumin_codegen::problem::Shape;
use thiserror::Error;

use crate::cache::Origin;
use crate::device::Device;
use crate::gemm::{DualGemm, LoadError};
use crate::nvtx::range;
use crate::tuned::Table;
use tuned::{Chooser, Source};

/// Shapes whose kernels could not be loaded.
#[derive(Debug, Error)]
#[error("{}", failed(.failures))]
pub struct WarmupError {
    /// The failed shapes with their errors, in the order of the call.
    pub failures: Vec<(Shape, LoadError)>,
}

impl WarmupError {
    /// Whether cancellation is the only error.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.failures.iter().all(|(_, error)| matches!(error, LoadError::Cancelled))
    }
}

fn failed(failures: &[(Shape, LoadError)]) -> String {
    let lines: Vec<String> = failures.iter().map(|(shape, error)| format!("{shape}: {error}")).collect();
    lines.join("\n")
}

/// Progress of a warm-up, reported after each kernel.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Progress {
    /// Finished kernels, this one included.
    pub done: usize,
    /// Kernels in all.
    pub of: usize,
    /// This kernel's shape.
    pub shape: Shape,
    /// Where the machine code came from; `None` without a cache, and if the kernel failed.
    pub origin: Option<Origin>,
    /// Whether the kernel was loaded.
    pub loaded: bool,
    /// Where the kernel's knobs came from.
    pub knobs: KnobsBy,
    /// Time from the start to the loaded module.
    pub took: Duration,
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match (self.loaded, self.origin) {
            (false, _) => "failed",
            (true, Some(Origin::Disk)) => "read",
            (true, Some(Origin::Bundle)) => "bundled",
            (true, Some(Origin::Compiled)) => "compiled",
            (true, None) => "loaded",
        };
        let Progress { done, of, shape, took, .. } = self;
        let tuned = if self.loaded && self.knobs == KnobsBy::Tuning { ", tuned" } else { "" };
        write!(f, "{done}/{of}: {shape} {what} in {:.1} ms{tuned}", took.as_secs_f64() * 1e3)
    }
}

/// Cancels a warm-up from any thread: running kernels are finished, and no others are started.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// A handle that is not cancelled.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancels all warm-ups with this handle.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the handle is cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// What to do with a problem for which the warm-up made no kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Outside {
    /// Return an error each time.
    #[default]
    Error,
    /// Compile its kernel once, in a background thread. No launch waits for it: [`Kernels::choose`] says what to launch
    /// until it is ready.
    Background,
}

type Listener<'a> = Box<dyn Fn(&Progress) + Send + Sync + 'a>;

/// The kernels to make before the first request: exact shapes, and weights with buckets of M.
#[must_use]
pub struct Warmup<'a> {
    gemm: &'a DualGemm,
    shapes: Vec<Shape>,
    weights: Vec<(u32, u32)>,
    buckets: Option<Buckets>,
    outside: Outside,
    tuning: Source,
    listener: Option<Listener<'a>>,
    cancel: Cancel,
}

impl<'a> Warmup<'a> {
    /// An empty warm-up of one dual GEMM.
    pub fn of(gemm: &'a DualGemm) -> Self {
        Self {
            gemm,
            shapes: Vec::new(),
            weights: Vec::new(),
            buckets: None,
            outside: Outside::default(),
            tuning: Source::default(),
            listener: None,
            cancel: Cancel::new(),
        }
    }

    /// Adds kernels for exactly these shapes, which may be batches or have groups of rows.
    pub fn shapes(mut self, shapes: &[Shape]) -> Self {
        self.shapes.extend_from_slice(shapes);
        self
    }

    /// Adds kernels for weights `[n, k]` and every bucket of M.
    pub fn weights(mut self, n: u32, k: u32) -> Self {
        self.weights.push((n, k));
        self
    }

    /// Sets the buckets of M for all weights. The default is powers of two up to 1024.
    pub fn buckets(mut self, buckets: Buckets) -> Self {
        self.buckets = Some(buckets);
        self
    }

    /// Sets what to do with a problem that no kernel was made for. The default is an error.
    pub fn outside(mut self, outside: Outside) -> Self {
        self.outside = outside;
        self
    }

    /// Takes tuning results from this table. The default is the file beside the device's cache, if there is one.
    /// Knobs that the user has set always come first: a result is used only with the knobs that it was found with.
    pub fn tuning(mut self, table: impl Into<Arc<Table>>) -> Self {
        self.tuning = Source::Given(table.into());
        self
    }

    /// Ignores tuning results.
    pub fn untuned(mut self) -> Self {
        self.tuning = Source::Off;
        self
    }

    /// Calls `listener` after each kernel, from the thread that made it.
    pub fn on_progress(mut self, listener: impl Fn(&Progress) + Send + Sync + 'a) -> Self {
        self.listener = Some(Box::new(listener));
        self
    }

    /// Draws a progress bar on standard error if it is a terminal. It replaces any listener.
    #[cfg(feature = "progress")]
    pub fn bar(self) -> Self {
        let bar = indicatif::ProgressBar::new(0);
        if let Ok(style) = indicatif::ProgressStyle::with_template("{bar:40} {pos}/{len} kernels, {msg}") {
            bar.set_style(style);
        }
        self.on_progress(move |progress| {
            bar.set_length(progress.of as u64);
            // Threads tell out of order; the bar only grows.
            bar.set_position(bar.position().max(progress.done as u64));
            bar.set_message(progress.shape.to_string());
            if progress.done == progress.of {
                bar.finish();
            }
        })
    }

    /// Ends the warm-up early when `cancel` is cancelled.
    pub fn cancel(mut self, cancel: &Cancel) -> Self {
        self.cancel = cancel.clone();
        self
    }

    /// Generates, compiles and loads all kernels on all threads of rayon's pool. Afterwards a launch only looks its
    /// kernel up.
    ///
    /// # Errors
    ///
    /// [`WarmupError`] with every shape that has no kernel, and why. What was compiled is in the device's cache.
    pub fn run(self, device: &Device) -> Result<Kernels, WarmupError> {
        let buckets = match self.buckets {
            None if !self.weights.is_empty() => Some(Buckets::powers_of_two(1024)),
            buckets => buckets,
        };
        let mut wanted: Vec<Shape> = self.shapes;
        if let Some(buckets) = &buckets {
            for (n, k) in &self.weights {
                wanted.extend(buckets.sizes().iter().map(|m| Shape::new(*m, *n, *k)));
            }
        }
        let mut seen = std::collections::HashSet::new();
        wanted.retain(|shape| seen.insert(*shape));
        let (of, done) = (wanted.len(), AtomicUsize::new(0));
        let chooser = Chooser::new(self.gemm, device, &self.tuning);
        let _range = range(format_args!("warm-up, {of} kernel{}", if of == 1 { "" } else { "s" }));
        let make = |shape: Shape| {
            let _range = range(format_args!("load {shape}"));
            let start = Instant::now();
            let result = match self.cancel.is_cancelled() {
                true => Err(LoadError::Cancelled),
                false => chooser.load(device, shape),
            };
            if let Some(listener) = &self.listener {
                let (kernel, knobs) = match &result {
                    Ok((kernel, knobs)) => (Some(kernel), *knobs),
                    Err(_) => (None, KnobsBy::default()),
                };
                listener(&Progress {
                    done: done.fetch_add(1, Ordering::Relaxed) + 1,
                    of,
                    shape,
                    origin: kernel.and_then(|kernel| kernel.cubin()).map(|cubin| cubin.origin),
                    loaded: kernel.is_some(),
                    knobs,
                    took: start.elapsed(),
                });
            }
            (shape, result)
        };
        // One at a time to each thread: a kernel takes long enough, and halves of the list do not end together.
        let results: Vec<_> = wanted.into_par_iter().with_max_len(1).map(make).collect();
        let (mut loaded, mut failures) = (Vec::with_capacity(of), Vec::new());
        for (shape, result) in results {
            match result {
                Ok((kernel, _)) => loaded.push((shape, kernel)),
                Err(error) => failures.push((shape, error)),
            }
        }
        if failures.is_empty() {
            Ok(Kernels::new(&chooser, device, loaded, &self.weights, buckets, self.outside))
        } else {
            Err(WarmupError { failures })
        }
    }
}

impl DualGemm {
    /// Makes and loads the kernels for all `shapes`, on all cores; for no shapes, the one for the
    /// shape that the dual GEMM is for. After that nothing is compiled any more: launches only look
    /// up.
    ///
    /// # Errors
    ///
    /// [`WarmupError`] with every shape that has no kernel, and why.
    pub fn warmup(&self, device: &Device, shapes: &[Shape]) -> Result<Kernels, WarmupError> {
        let warmup = Warmup::of(self);
        match (shapes, self.shape()) {
            ([], Some(fixed)) => warmup.shapes(&[fixed]).run(device),
            _ => warmup.shapes(shapes).run(device),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use silumin_codegen::arch::Arch;
    use silumin_codegen::spec::Spec;
    use std::sync::Mutex;

    pub(super) fn swiglu() -> DualGemm {
        let gate = "silu(A @ B1) * (A @ B2)".parse().unwrap();
        DualGemm::new(Spec::new(gate, &[Arch::Sm100a]).unwrap())
    }

    #[test]
    fn progress_counts_every_kernel_and_weights_take_all_buckets() {
        let device = Device::emulated(Arch::Sm100a);
        let told = Mutex::new(Vec::new());
        let gemm = swiglu();
        let kernels = Warmup::of(&gemm)
            .shapes(&[Shape::new(7, 64, 64), Shape::new(4, 64, 128)])
            .weights(64, 128)
            .buckets(Buckets::powers_of_two(8))
            .on_progress(|progress| told.lock().unwrap().push(progress.clone()))
            .run(&device)
            .unwrap();
        // One of the shapes is a bucket's.
        assert_eq!(kernels.len(), 5);
        let mut told = told.into_inner().unwrap();
        told.sort_by_key(|progress| progress.done);
        assert_eq!(told.iter().map(|progress| progress.done).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        assert!(told.iter().all(|progress| progress.of == 5 && progress.loaded && progress.origin.is_none()));
        assert!(told[0].to_string().starts_with("1/5: ") && told[0].to_string().contains(" loaded in "));
        assert_eq!(kernels.for_problem(7, 64, 64).unwrap().kernel().problem.shape.m, 7);
        assert!(kernels.for_problem(6, 64, 64).is_err(), "a shape as it is is no bucket");
    }

    #[test]
    fn a_cancelled_warm_up_begins_nothing_more() {
        let device = Device::emulated(Arch::Sm100a);
        let (cancel, gemm) = (Cancel::new(), swiglu());
        let error = Warmup::of(&gemm)
            .weights(64, 64)
            .buckets(Buckets::new(1..=64).unwrap())
            .cancel(&cancel)
            .on_progress(|_| cancel.cancel())
            .run(&device)
            .unwrap_err();
        // Each thread had at most one in the making.
        assert!(error.is_cancelled() && error.failures.len() >= 64 - rayon::current_num_threads(), "{error}");
        assert!(error.to_string().contains("cancelled"), "{error}");
        assert!(cancel.is_cancelled());
    }

    #[test]
    fn failures_name_their_shapes() {
        let (device, gemm) = (Device::emulated(Arch::Sm100a), swiglu());
        let error =
            Warmup::of(&gemm).weights(64, 40).buckets(Buckets::powers_of_two(2)).run(&device).unwrap_err();
        assert_eq!(error.failures.len(), 2);
        assert!(!error.is_cancelled() && error.to_string().contains("2 x 64 x 40: "), "{error}");
    }

    #[test]
    fn warm_up_loads_each_shape_once_and_lists_what_it_has() {
        let device = Device::emulated(Arch::Sm100a);
        let (small, large) = (Shape::new(1, 64, 64), Shape::new(128, 64, 256));
        let kernels = swiglu().warmup(&device, &[large, small, large]).unwrap();
        assert_eq!((kernels.len(), kernels.is_empty()), (2, false));
        let kernel = kernels.for_problem(128, 64, 256).unwrap();
        assert_eq!((kernel.kernel().problem.shape, kernel.device()), (large, &device));
        let error = kernels.for_problem(2, 64, 64).unwrap_err();
        assert_eq!(error.loaded, [small, large]);
        let text = error.to_string();
        assert!(text.contains("2 x 64 x 64") && text.contains("1 x 64 x 64, 128 x 64 x 256"), "{text}");
        let none = swiglu().warmup(&device, &[]).unwrap();
        assert!(none.is_empty() && none.for_problem(1, 1, 1).unwrap_err().to_string().ends_with("none"));
    }

    #[test]
    fn warm_up_names_every_shape_that_fails() {
        let device = Device::emulated(Arch::Sm100a);
        let shapes = [Shape::new(1, 64, 40), Shape::new(128, 64, 256), Shape::new(0, 64, 64)];
        let error = swiglu().warmup(&device, &shapes).unwrap_err();
        let failed: Vec<Shape> = error.failures.iter().map(|(shape, _)| *shape).collect();
        assert_eq!(failed, [shapes[0], shapes[2]]);
        let text = error.to_string();
        assert!(text.contains("1 x 64 x 40: ") && text.contains("multiple of 32"), "{text}");
    }

    #[test]
    fn a_fixed_shape_is_what_is_warmed_up_for_none() {
        let gemm = swiglu().with_shape(Shape::new(128, 64, 256));
        let kernels = gemm.warmup(&Device::emulated(Arch::Sm100a), &[]).unwrap();
        assert!(kernels.for_problem(128, 64, 256).is_ok());
    }
}
