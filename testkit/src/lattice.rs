//! Legal points of the lattice of all knobs, and the faults of a point.

use crate::draws::Draws;
use silumin::codegen::error::explain;
use silumin::codegen::gate::Gate;
use silumin::codegen::problem::Operation;
use silumin::codegen::spec::{FormatNames, Spec, SpecFile};
use silumin::runtime::device::{Device, EmulatorOptions, Schedule, Tracking};
use silumin::runtime::gemm::{DualGemm, Verification};
use silumin::verify::inputs::Distribution;
use silumin::verify::toolchain::Ptxas;
use silumin::{Arch, Shape};
use std::collections::HashSet;

/// A number from an environment variable.
pub fn environment(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// One point of the lattice, and how it is run.
pub struct Point {
    /// The chip.
    pub arch: Arch,
    /// Gate, formats and knobs.
    pub spec: Spec,
    /// Sizes.
    pub shape: Shape,
    /// How operands are drawn.
    pub distribution: Distribution,
    /// When asynchronous work completes.
    pub schedule: Schedule,
    /// Seed of the operands.
    pub seed: u64,
}

impl Point {
    /// A configuration file's kernel with operands of all values.
    pub fn of(file: &SpecFile, schedule: Schedule, seed: u64) -> Point {
        let (spec, arch) = file.read().unwrap();
        Point { arch, spec, shape: file.shape(), distribution: Distribution::Full, schedule, seed }
    }
}

impl std::fmt::Display for Point {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Point { arch, spec, shape, distribution, schedule, seed } = self;
        let Spec { formats, config, gate, .. } = spec;
        write!(
            f,
            "{arch}, {shape}, {formats}, {config}, gate {gate}, {distribution:?}, {schedule:?}, seed {seed}"
        )
    }
}

const GATES: [&str; 11] = [
    "silu(A @ B1 + b1[n]) * (A @ B2 + b2[n])",
    "silu(s[m] * (A @ B1)) * (s[m] * (A @ B2))",
    "silu(A @ B1) * (A @ B2)",
    "gelu(X @ Wg) * (X @ Wu)",
    "silu(alpha * (A @ B1)) * (alpha * (A @ B2))",
    "silu(A @ B1 + r[m, n]) * (A @ B2)",
    "A @ B",
    "alpha * (A @ B) + b1[n] + r[m, n]",
    "gelu(s[m] * (A @ B) + b1[n])",
    "r[m, n] - alpha * (A @ B)",
    "min(A @ B1, 7.0) * sigmoid(1.702 * min(A @ B1, 7.0)) * (clamp(A @ B2, -7.0, 7.0) + 1.0)",
];

/// Draws until there are `wanted` distinct legal points; illegal draws must say why. `odd_formats` of a hundred
/// points have other formats than `usual`. Also returns the number of illegal draws.
pub fn points(
    arch: Arch,
    usual: &FormatNames,
    odd_formats: u32,
    wanted: usize,
    seed: u64,
) -> (Vec<Point>, usize) {
    let mut draws = Draws::new(arch, seed);
    let mut seen = HashSet::new();
    let (mut legal, mut illegal) = (Vec::new(), 0);
    while legal.len() < wanted {
        let (shape, config) = (draws.shape(), draws.config());
        let mut file = SpecFile::new(shape);
        file.arch = arch.to_string();
        file.gate = draws.pick(&GATES).to_owned();
        file.config = config;
        let gate: Gate = file.gate.parse().unwrap();
        // A GEMM has a strategy of its own.
        if gate.expr.operation() == Operation::Gemm {
            file.config.set("strategy", draws.pick(&["auto", "single"])).unwrap();
        }
        file.formats = usual.clone();
        if draws.below(100) < odd_formats {
            let (a, b) = draws.pair();
            let c = draws.output();
            file.formats = FormatNames { a, b, c, ..FormatNames::default() };
        }
        file.formats.preactivations = draws.pick(&["none", "none", "none", "bf16", "f16", "f32"]).to_owned();
        let (spec, arch) = file.read().unwrap();
        if let Err(errors) = spec.plan(shape, arch) {
            assert!(!errors.is_empty() && errors.iter().all(|error| !error.hint().is_empty()));
            assert!(explain(&errors).len() > 20);
            illegal += 1;
            continue;
        }
        if let Err(error) = spec.kernel(shape, arch) {
            panic!("{shape} with {config}, gate {}: legal, and no kernel: {error}", spec.gate);
        }
        let index = legal.len() as u64;
        if seen.insert((spec.config, shape, spec.formats, spec.operation())) {
            legal.push(Point {
                arch,
                spec,
                shape,
                distribution: if index.is_multiple_of(2) {
                    Distribution::Full
                } else {
                    Distribution::Benchmark
                },
                schedule: [Schedule::Early, Schedule::Late, Schedule::Random(index)][index as usize % 3],
                seed: seed + index,
            });
        }
    }
    (legal, illegal)
}

/// The fault of a point, if it has one.
pub fn fault(point: &Point, ptxas: &Ptxas, tracking: Tracking) -> Option<String> {
    let kernel = match point.spec.kernel(point.shape, point.arch) {
        Ok(kernel) => kernel,
        Err(error) => return Some(format!("{point}\n  {error}")),
    };
    if let Some(fault) = crate::unclean(ptxas, &kernel) {
        return Some(format!("{point}\n  {fault}"));
    }
    run(point, point.schedule, tracking)
}

/// The fault of a point's results under a schedule, if there is one.
pub fn run(point: &Point, schedule: Schedule, tracking: Tracking) -> Option<String> {
    verify(point, schedule, tracking).err()
}

/// The fault of a point whose gate has no vectors, if it has one: as [`fault`] with strict tracking, and the multiply-adds and bytes
/// that the emulator counts are those of the plan.
pub fn fault_beside_plan(point: &Point, ptxas: &Ptxas) -> Option<String> {
    let plan = match crate::clean_plan(&point.spec, point.shape, point.arch, ptxas) {
        Ok(plan) => plan,
        Err(fault) => return Some(format!("{point}\n  {fault}")),
    };
    let verification = match verify(point, point.schedule, Tracking::Strict) {
        Ok(verification) => verification,
        Err(fault) => return Some(fault),
    };
    // Sizes of groups are drawn.
    if point.shape.groups.by_rows() {
        return None;
    }
    let macs: u64 = verification.launch.launches.iter().flat_map(|launch| launch.mma_macs.values()).sum();
    let modelled = plan.mmas_issued() * plan.mma_macs();
    let macs = (macs != modelled).then(|| format!("{macs} multiply-adds, the plan has {modelled}"));
    crate::miscounted(&verification, &plan).or(macs).map(|text| format!("{point}\n  {text}"))
}

/// A point's results, if they are right.
fn verify(point: &Point, schedule: Schedule, tracking: Tracking) -> Result<Verification, String> {
    let options = EmulatorOptions { threads: 1, schedule, tracking, ..EmulatorOptions::default() };
    let device = Device::emulated_with(point.arch, options);
    let scalars: &[(&str, f32)] =
        if point.spec.gate.expr.scalars().is_empty() { &[] } else { &[("alpha", 0.75)] };
    match DualGemm::new(point.spec.clone()).verify(
        &device,
        point.shape,
        point.distribution,
        point.seed,
        scalars,
    ) {
        Err(error) => Err(format!("{point}\n  {schedule:?}: {error}")),
        Ok(verification) if verification.check.pass => Ok(verification),
        Ok(verification) => Err(format!("{point}\n  {schedule:?}: {}", verification.check)),
    }
}
