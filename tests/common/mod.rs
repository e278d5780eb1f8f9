//! What the tests share.

#[path = "../../examples/shared/parallel.rs"]
#[allow(dead_code)]
pub mod parallel;

/// What `judge` has against each item, on all cores, in the items' order.
#[allow(dead_code)]
pub fn faults<T: Sync>(items: &[T], judge: impl Fn(usize, &T) -> Option<String> + Sync) -> Vec<String> {
    parallel::map(items, judge).into_iter().flatten().collect()
}

/// Where the emulator counted other bytes than the plan has, those of a gate without vectors.
#[allow(dead_code)]
pub fn miscounted(
    verification: &silumin::runtime::gemm::Verification,
    plan: &silumin::codegen::plan::Plan,
) -> Option<String> {
    let stats = verification.launch.emulator.as_ref()?;
    let counted = (stats.global_read + stats.tma_read, stats.global_written + stats.tma_written);
    let modelled = plan.moved_bytes();
    (counted != modelled).then(|| format!("{counted:?} bytes read and written, the plan has {modelled:?}"))
}
