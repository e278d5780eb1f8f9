//! What the tests share.

#[path = "../../examples/shared/parallel.rs"]
#[allow(dead_code)]
pub mod parallel;

/// What `judge` has against each item, on all cores, in the items' order.
#[allow(dead_code)]
pub fn faults<T: Sync>(items: &[T], judge: impl Fn(usize, &T) -> Option<String> + Sync) -> Vec<String> {
    parallel::map(items, judge).into_iter().flatten().collect()
}
