//! Loaded kernels by problem.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use silumin_codegen::problem::Shape;
use thiserror::Error;

use super::late::{Late, PLACES, State};
use super::tuned::Chooser;
use super::{Buckets, Outside, TuningReport};
use crate::device::Device;
use crate::gemm::LoadedKernel;

/// The kernels of one dual GEMM on one device. Cloning it is cheap.
///
/// A look-up takes no lock, compiles nothing, and allocates nothing unless it returns an error. Dropping the last
/// handle waits for background compilations.
#[derive(Clone)]
pub struct Kernels {
    inner: Arc<Inner>,
}

struct Inner {
    name: String,
    by_shape: HashMap<Shape, LoadedKernel>,
    /// Whether there are kernels for shapes beside the buckets'; if not, a look-up searches only the buckets.
    named: bool,
    /// For each pair of N and K the kernels of all buckets, in their order.
    by_weights: HashMap<(u32, u32), Vec<LoadedKernel>>,
    buckets: Option<Buckets>,
    late: Option<Arc<Late>>,
    chooser: Arc<Chooser>,
}

/// No kernel was warmed up for a shape.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "`{name}` has no kernel for {shape}: {}; loaded: {}",
    .background.as_deref().unwrap_or("name that shape, or weights and buckets that hold it, at warm-up"), listed(.loaded)
)]
pub struct UnknownShape {
    /// The dual GEMM.
    pub name: String,
    /// The requested shape.
    pub shape: Shape,
    /// The shapes with kernels, ascending.
    pub loaded: Vec<Shape>,
    /// State of the background compilation, if it is on.
    pub background: Option<String>,
}

fn listed(shapes: &[Shape]) -> String {
    match shapes {
        [] => "none".to_owned(),
        _ => shapes.iter().map(Shape::to_string).collect::<Vec<_>>().join(", "),
    }
}

/// A kernel for a problem, or what to do until it is compiled.
#[derive(Clone, Copy, Debug)]
pub enum Availability<'a> {
    /// The kernel is ready. Its M may be larger than the problem's; the tensors then have that many rows.
    Ready(&'a LoadedKernel),
    /// The kernel is being compiled. Use this until then.
    Meanwhile(FallBack<'a>),
}

/// How to serve a problem while its kernel is being compiled.
#[derive(Clone, Copy, Debug)]
pub enum FallBack<'a> {
    /// The problem has more rows than the largest bucket: launch that bucket's kernel this many times, each on the
    /// next rows of A and C.
    Chunks {
        /// The kernel of the largest bucket.
        kernel: &'a LoadedKernel,
        /// How many launches.
        launches: u32,
    },
    /// There are no kernels for these weights: use code of your own, two GEMMs and the gate for example.
    Own,
}

impl Kernels {
    pub(super) fn new(
        chooser: &Arc<Chooser>,
        device: &Device,
        loaded: Vec<(Shape, LoadedKernel)>,
        weights: &[(u32, u32)],
        buckets: Option<Buckets>,
        outside: Outside,
    ) -> Self {
        let by_shape: HashMap<Shape, LoadedKernel> = loaded.into_iter().collect();
        let of_weights = |(n, k): &(u32, u32)| {
            let sizes = buckets.iter().flat_map(Buckets::sizes);
            sizes.filter_map(|m| by_shape.get(&Shape::new(*m, *n, *k)).cloned()).collect()
        };
        let by_weights: HashMap<_, Vec<LoadedKernel>> =
            weights.iter().map(|weights| (*weights, of_weights(weights))).collect();
        let named = by_weights.values().map(Vec::len).sum::<usize>() < by_shape.len();
        let name = chooser.name();
        let late = (outside == Outside::Background).then(|| Late::new(chooser.clone(), device.clone()));
        let chooser = chooser.clone();
        Self { inner: Arc::new(Inner { name, by_shape, named, by_weights, buckets, late, chooser }) }
    }

    /// The kernel for C `[m, n]` with K = `k`: that of the shape if it was named, else that of the smallest bucket
    /// with at least `m` rows. With a bucket, tensors have the rows of the kernel's shape; the content of A beyond
    /// row `m` does not matter, and that of C is meaningless.
    ///
    /// # Errors
    ///
    /// [`UnknownShape`] where there is none, with the shapes that there are; where kernels are compiled in the background
    /// it is begun, and later calls find it.
    pub fn for_problem(&self, m: u32, n: u32, k: u32) -> Result<&LoadedKernel, UnknownShape> {
        match self.find(m, n, k) {
            Some(kernel) => Ok(kernel),
            None => match self.late(m, n, k) {
                Some(State::Ready(kernel)) => Ok(kernel),
                state => Err(self.unknown(Shape::new(m, n, k), state)),
            },
        }
    }

    /// The kernel for a problem, or what to do until it is compiled in the background. It costs as much as
    /// [`for_problem`](Kernels::for_problem), and the start of a thread the first time.
    ///
    /// # Errors
    ///
    /// [`UnknownShape`] where nothing is compiled in the background ([`Outside::Error`]), or that failed.
    pub fn choose(&self, m: u32, n: u32, k: u32) -> Result<Availability<'_>, UnknownShape> {
        if let Some(kernel) = self.find(m, n, k) {
            return Ok(Availability::Ready(kernel));
        }
        match self.late(m, n, k) {
            Some(State::Ready(kernel)) => Ok(Availability::Ready(kernel)),
            Some(State::Compiling) => Ok(Availability::Meanwhile(self.fall_back(m, n, k))),
            state => Err(self.unknown(Shape::new(m, n, k), state)),
        }
    }

    /// The kernel for exactly this shape, which may be a batch or have groups of rows.
    ///
    /// # Errors
    ///
    /// [`UnknownShape`] where it was not warmed up, with the shapes that were.
    pub fn for_shape(&self, shape: Shape) -> Result<&LoadedKernel, UnknownShape> {
        self.inner.by_shape.get(&shape).ok_or_else(|| self.unknown(shape, None))
    }

    fn find(&self, m: u32, n: u32, k: u32) -> Option<&LoadedKernel> {
        let Inner { by_shape, named, by_weights, buckets, .. } = &*self.inner;
        let own = named.then(|| by_shape.get(&Shape::new(m, n, k))).flatten();
        own.or_else(|| by_weights.get(&(n, k))?.get(buckets.as_ref()?.index_for(m)?))
    }

    /// The background kernel for a problem: for the bucket that would serve M, or for the next power of two beyond
    /// all buckets.
    fn late(&self, m: u32, n: u32, k: u32) -> Option<State<'_>> {
        // No rows are no problem that a kernel is for.
        let late = self.inner.late.as_ref().filter(|_| m > 0)?;
        let declared = self.inner.buckets.as_ref().and_then(|buckets| buckets.size_for(m));
        let rows = declared.or_else(|| m.checked_next_power_of_two()).unwrap_or(m);
        Some(late.get(Shape::new(rows, n, k)))
    }

    fn fall_back(&self, m: u32, n: u32, k: u32) -> FallBack<'_> {
        let largest = self.inner.by_weights.get(&(n, k)).and_then(|kernels| kernels.last());
        largest.map_or(FallBack::Own, |kernel| {
            let rows = kernel.kernel().problem.shape.m.max(1);
            FallBack::Chunks { kernel, launches: m.div_ceil(rows) }
        })
    }

    fn unknown(&self, shape: Shape, state: Option<State<'_>>) -> UnknownShape {
        let mut loaded: Vec<Shape> = self.inner.by_shape.keys().copied().collect();
        loaded.sort_unstable();
        let background = state.map(|state| match state {
            State::Failed(reason) => format!("compiling it in the background failed: {reason}"),
            State::Full => format!(
                "{PLACES} kernels have been compiled in the background, and no more are: name buckets"
            ),
            State::Ready(_) | State::Compiling => "it is being compiled in the background".to_owned(),
        });
        UnknownShape { name: self.inner.name.clone(), shape, loaded, background }
    }

    /// Which kernels use tuned knobs, background ones included, and which tuning results were not used.
    #[must_use]
    pub fn tuning(&self) -> TuningReport {
        self.inner.chooser.report()
    }

    /// All warmed-up kernels, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &LoadedKernel> {
        self.inner.by_shape.values()
    }

    /// Number of warmed-up kernels.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inner.by_shape.len()
    }

    /// Whether there are no kernels.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.inner.by_shape.is_empty()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(late) = &self.late {
            late.finish();
        }
    }
}

impl fmt::Debug for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Warmup;
    use super::super::tests::swiglu;
    use super::*;
    use silumin_codegen::arch::Arch;
    use std::time::{Duration, Instant};

    fn rows(kernel: &LoadedKernel) -> u32 {
        kernel.kernel().problem.shape.m
    }

    fn warm(outside: Outside) -> Kernels {
        let gemm = swiglu();
        Warmup::of(&gemm)
            .shapes(&[Shape::new(3, 64, 64), Shape::new(5, 64, 64)])
            .weights(64, 64)
            .buckets(Buckets::new([4, 8, 12]).unwrap())
            .outside(outside)
            .run(&Device::emulated(Arch::Sm100a))
            .unwrap()
    }

    /// Asks until the thread is done.
    fn wait<'a>(
        ask: impl Fn() -> Result<Availability<'a>, UnknownShape>,
    ) -> Result<&'a LoadedKernel, UnknownShape> {
        let start = Instant::now();
        loop {
            match ask()? {
                Availability::Ready(kernel) => return Ok(kernel),
                Availability::Meanwhile(_) => assert!(start.elapsed() < Duration::from_secs(60)),
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn the_shape_s_own_comes_before_its_bucket() {
        let kernels = warm(Outside::Error);
        let found = [1, 2, 3, 4, 5, 6, 8, 9, 12].map(|m| rows(kernels.for_problem(m, 64, 64).unwrap()));
        assert_eq!(found, [4, 4, 3, 4, 5, 8, 8, 12, 12]);
        for (m, n, k) in [(13, 64, 64), (0, 64, 64), (4, 128, 64), (4, 64, 128)] {
            let error = kernels.for_problem(m, n, k).unwrap_err();
            assert_eq!((error.loaded.len(), &error.background), (5, &None));
            assert!(
                error.to_string().contains("buckets that hold it") && kernels.choose(m, n, k).is_err(),
                "{error}"
            );
        }
        assert!(kernels.for_shape(Shape::new(6, 64, 64)).is_err());
        assert_eq!(format!("{kernels:?}").matches("LoadedKernel").count(), kernels.len());
    }

    #[test]
    fn what_is_outside_is_compiled_behind_the_back_and_once() {
        let kernels = warm(Outside::Background);
        match kernels.choose(25, 64, 64).unwrap() {
            Availability::Meanwhile(FallBack::Chunks { kernel, launches }) => {
                assert_eq!((rows(kernel), launches), (12, 3));
            }
            // On a busy machine the thread that compiles may be done before this one looks.
            Availability::Ready(kernel) => assert_eq!(rows(kernel), 32),
            Availability::Meanwhile(FallBack::Own) => panic!("there are kernels for these weights"),
        }
        let late = wait(|| kernels.choose(25, 64, 64)).unwrap();
        assert_eq!(rows(late), 32);
        // All that it holds, it serves, to every handle.
        assert!(std::ptr::eq(kernels.clone().for_problem(17, 64, 64).unwrap(), late));
        // Weights that were not named have the caller's own way, then the bucket's kernel.
        match kernels.choose(6, 128, 64).unwrap() {
            Availability::Meanwhile(FallBack::Own) => {}
            Availability::Ready(kernel) => assert_eq!(rows(kernel), 8),
            Availability::Meanwhile(FallBack::Chunks { .. }) => {
                panic!("there are no kernels for these weights")
            }
        }
        assert_eq!(rows(wait(|| kernels.choose(6, 128, 64)).unwrap()), 8);
        // What can't be made says so, each time.
        let error = wait(|| kernels.choose(6, 64, 40)).unwrap_err();
        assert!(error.background.as_ref().is_some_and(|text| text.contains("multiple of 32")), "{error}");
        assert!(kernels.for_problem(6, 64, 40).is_err());
        assert_eq!(kernels.for_problem(0, 64, 64).unwrap_err().background, None);
    }

    #[test]
    fn there_is_an_end_to_what_is_compiled_late() {
        let kernels = warm(Outside::Background);
        for step in 1..=PLACES as u32 {
            let _ = kernels.choose(1, 64 + 8 * step, 64);
        }
        let error = kernels.choose(1, 8192, 64).unwrap_err();
        assert!(error.to_string().contains("64 kernels"), "{error}");
        for step in 1..=PLACES as u32 {
            assert_eq!(rows(wait(|| kernels.choose(1, 64 + 8 * step, 64)).unwrap()), 4);
        }
    }
}
