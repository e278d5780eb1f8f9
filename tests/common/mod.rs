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

/// The plan of a kernel that assembles cleanly, or what is wrong with it.
#[allow(dead_code)]
pub fn clean_plan(
    spec: &silumin::Spec,
    shape: silumin::Shape,
    arch: silumin::Arch,
    ptxas: &silumin::runtime::toolchain::Ptxas,
) -> Result<silumin::codegen::plan::Plan, String> {
    let kernel = spec.kernel(shape, arch).map_err(|error| error.to_string())?;
    let plan = spec.plan(shape, arch).map_err(|errors| format!("{errors:?}"))?;
    unclean(ptxas, &kernel).map_or(Ok(plan), Err)
}

/// A device that asks what orders every access, on one core.
#[allow(dead_code)]
pub fn strict(arch: silumin::Arch, schedule: silumin::runtime::device::Schedule) -> silumin::Device {
    let tracking = silumin::runtime::device::Tracking::Strict;
    let options = silumin::EmulatorOptions { threads: 1, tracking, schedule, ..Default::default() };
    silumin::Device::emulated_with(arch, options)
}

/// Schedules that take turns.
#[allow(dead_code)]
pub fn by_turns(index: usize) -> silumin::runtime::device::Schedule {
    use silumin::runtime::device::Schedule::{Early, Late, Random, Starve};
    [Early, Late, Random(index as u64), Starve { warp: 4, seed: 1 }][index % 4]
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
