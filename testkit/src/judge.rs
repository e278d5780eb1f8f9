//! Checks kernels with the assembler and the emulator.

use silumin::codegen::plan::Plan;
use silumin::runtime::device::{Schedule, Tracking};
use silumin::runtime::gemm::Verification;
use silumin::verify::toolchain::Ptxas;
use silumin::{Arch, Device, EmulatorOptions, Kernel, Shape, Spec};
use silumin_cli::parallel;

/// The faults that `judge` finds in each item, on all cores, in the items' order.
#[must_use]
pub fn faults<T: Sync>(items: &[T], judge: impl Fn(usize, &T) -> Option<String> + Sync) -> Vec<String> {
    parallel::map(items, judge).into_iter().flatten().collect()
}

/// What the assembler reports against a kernel: errors, warnings, spills, a stack, or warpgroup MMAs that it
/// serialises (C7510 and the like).
#[must_use]
pub fn unclean(ptxas: &Ptxas, kernel: &Kernel) -> Option<String> {
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

/// The plan of a kernel that assembles cleanly, or its faults.
pub fn clean_plan(spec: &Spec, shape: Shape, arch: Arch, ptxas: &Ptxas) -> Result<Plan, String> {
    let kernel = spec.kernel(shape, arch).map_err(|error| error.to_string())?;
    let plan = spec.plan(shape, arch).map_err(|errors| format!("{errors:?}"))?;
    unclean(ptxas, &kernel).map_or(Ok(plan), Err)
}

/// A device that requires an order for every access, on one core.
#[must_use]
pub fn strict(arch: Arch, schedule: Schedule) -> Device {
    let tracking = Tracking::Strict;
    let options = EmulatorOptions { threads: 1, tracking, schedule, ..Default::default() };
    Device::emulated_with(arch, options)
}

/// A schedule for an index; the schedules rotate.
#[must_use]
pub fn by_turns(index: usize) -> Schedule {
    use Schedule::{Early, Late, Random, Starve};
    [Early, Late, Random(index as u64), Starve { warp: 4, seed: 1 }][index % 4]
}

/// Differences between the bytes that the emulator counted and the plan's, for gates without vectors.
#[must_use]
pub fn miscounted(verification: &Verification, plan: &Plan) -> Option<String> {
    let stats = verification.launch.emulator.as_ref()?;
    let counted = (stats.global_read + stats.tma_read, stats.global_written + stats.tma_written);
    let modelled = plan.moved_bytes();
    (counted != modelled).then(|| format!("{counted:?} bytes read and written, the plan has {modelled:?}"))
}
