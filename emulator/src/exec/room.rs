//! Host memory of a cluster, and how many clusters fit.

use super::order::Tracker;
use crate::engine::tmem::Tmem;
use crate::launch::{Launch, LaunchError, Options, Tracking, product};
use crate::program::{Program, SMEM_BASE};

/// Size below which available memory is not queried.
const SMALL: u64 = 64 << 20;

/// Host memory that a run may take: what is available, less an eighth for what grows during the run.
pub(crate) fn available() -> u64 {
    // Where nothing is known nothing is refused.
    match free() {
        0 => u64::MAX,
        free => free - free / 8,
    }
}

/// Bytes of memory that are available; 0 if nothing is known.
#[cfg(feature = "sysinfo")]
fn free() -> u64 {
    let mut system = sysinfo::System::new();
    system.refresh_memory();
    // A container may have less than the machine.
    match system.cgroup_limits() {
        Some(limits) => system.available_memory().min(limits.free_memory),
        None => system.available_memory(),
    }
}

/// The same by Linux's own count, which knows of no container.
#[cfg(not(feature = "sysinfo"))]
fn free() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kilobytes = text.lines().find_map(|line| {
        line.strip_prefix("MemAvailable:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    });
    kilobytes.unwrap_or(0).saturating_mul(1024)
}

/// Bytes of memory of `len` bytes, with a bit for each that says whether it was written.
fn tracked(len: u64) -> u64 {
    len + len.div_ceil(8)
}

/// Bytes of one cluster, and the largest part of them.
fn cluster(program: &Program, launch: &Launch, smem_end: u32, tracking: Tracking) -> (u64, String) {
    let ctas = product(launch.cluster);
    let warps = product(launch.block).div_ceil(32);
    // Values of 64 bits in 32 lanes, and whether they were written and fenced.
    let registers = u64::from(program.registers) * (32 * 8 + 4 + u64::from(program.wgmma));
    let predicates = u64::from(program.predicates) * 8;
    let local = tracked(32 * u64::from(program.local_bytes));
    let shared = tracked(u64::from(smem_end)) + tracked(u64::from(Tmem::BYTES));
    let order = match tracking {
        Tracking::Off => 0,
        Tracking::HappensBefore | Tracking::Strict => Tracker::bytes(ctas, warps, smem_end),
    };
    let bytes = ctas * (warps * (4096 + registers + predicates + local) + shared) + order;
    let what = format!(
        "{} registers, {} predicates and {} bytes of local memory a thread, {} bytes of shared memory a CTA; {ctas} \
         CTAs of {warps} warps",
        program.registers,
        program.predicates,
        program.local_bytes,
        smem_end - SMEM_BASE
    );
    (bytes, what)
}

/// The number of clusters that fit at a time, at most `wanted`.
///
/// # Errors
/// [`LaunchError::Memory`] if not even one does.
pub(super) fn fitting(
    program: &Program,
    launch: &Launch,
    smem_end: u32,
    options: &Options<'_>,
    wanted: u64,
) -> Result<u64, LaunchError> {
    let (needed, what) = cluster(program, launch, smem_end, options.tracking);
    let all = needed.saturating_mul(wanted);
    let limit = match options.memory_limit {
        Some(limit) => limit,
        None if all <= SMALL => return Ok(wanted),
        None => available(),
    };
    match limit / needed.max(1) {
        0 => Err(LaunchError::Memory { needed, limit, what }),
        fit => Ok(fit.min(wanted)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(any(feature = "sysinfo", target_os = "linux"))]
    fn a_machine_that_runs_tests_has_memory() {
        assert!((1 << 20..u64::MAX).contains(&available()), "{}", available());
    }
}
