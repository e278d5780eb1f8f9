//! What the tests share.

#[path = "../../examples/shared/parallel.rs"]
#[allow(dead_code)]
pub mod parallel;

/// What `judge` has against each item, on all cores, in the items' order.
#[allow(dead_code)]
pub fn faults<T: Sync>(items: &[T], judge: impl Fn(usize, &T) -> Option<String> + Sync) -> Vec<String> {
    parallel::map(items, judge).into_iter().flatten().collect()
}

/// What the assembler has against a kernel: errors, warnings, spills, a stack, MMAs of warpgroups that it makes wait for
/// each other (C7510 and the like).
#[allow(dead_code)]
pub fn unclean(ptxas: &silumin::runtime::toolchain::Ptxas, kernel: &silumin::Kernel) -> Option<String> {
    let assembled = match ptxas.assemble(&kernel.ptx, kernel.arch) {
        Ok(assembled) => assembled,
        Err(error) => return Some(error.to_string()),
    };
    let clean = kernel.launches.iter().all(|launch| {
        let entry = assembled.entry(&launch.entry);
        entry.is_some_and(|e| e.spill_stores + e.spill_loads + e.stack_frame == 0)
    });
    let serialized = assembled.log.contains("serialized");
    (!clean || serialized || !assembled.warnings.is_empty())
        .then(|| format!("spills or warnings:\n{}", assembled.log))
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
