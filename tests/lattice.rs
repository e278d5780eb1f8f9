//! The lattice: configurations drawn from all knobs and ragged shapes. Every legal draw assembles
//! without spills or warnings and computes right on the emulated device; every illegal one is
//! refused with a reason.
//!
//! `SILUMIN_LATTICE=3000 cargo test --release --test lattice` draws more of them, `SILUMIN_LATTICE_SEED`
//! others.

mod common;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use silumin::codegen::config::Config;
use silumin::codegen::error::explain;
use silumin::codegen::spec::{FormatNames, Spec, SpecFile};
use silumin::runtime::device::{Device, EmulatorOptions, Schedule};
use silumin::runtime::gemm::DualGemm;
use silumin::runtime::inputs::Distribution;
use silumin::runtime::toolchain::Ptxas;
use silumin::{Arch, Shape};
use std::collections::HashSet;

/// Legal configurations that the test holds to, unless the environment says otherwise.
const LEGAL: usize = 320;

fn environment(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

struct Draws(ChaCha8Rng);

impl Draws {
    fn below(&mut self, limit: u32) -> u32 {
        self.0.next_u32() % limit
    }

    fn pick<'a>(&mut self, values: &[&'a str]) -> &'a str {
        values[self.below(values.len() as u32) as usize]
    }

    fn shape(&mut self) -> Shape {
        let m = match self.below(4) {
            0 => 1 + self.below(70),
            1 => 128 * (1 + self.below(2)),
            _ => 1 + self.below(300),
        };
        let n = match self.below(4) {
            0 => 64 * (1 + self.below(6)),
            1 => 8 * (1 + self.below(40)),
            _ => 1 + self.below(400),
        };
        let k = match self.below(3) {
            0 => 256 * (1 + self.below(4)),
            _ => 32 * (1 + self.below(40)),
        };
        let shape = Shape::new(m, n, k);
        match self.below(5) {
            0 => shape.batch(1 + self.below(3)),
            1 => shape.grouped(1 + self.below(6)),
            2 if self.below(4) == 0 => shape.grouped(30 + self.below(40)),
            _ => shape,
        }
    }

    /// Operand formats that go together.
    fn pair(&mut self) -> (String, String) {
        let pairs = [
            "nvfp4 nvfp4",
            "mxfp4 mxfp4",
            "mxfp8 mxfp8",
            "mxfp8 mxfp4",
            "mxfp4 mxfp8_e5m2",
            "mxfp8_e5m2 mxfp8",
            "e4m3 e4m3",
            "e4m3 e5m2",
            "bf16 bf16",
            "f16 f16",
        ];
        let (a, b) = self.pick(&pairs).split_once(' ').unwrap();
        (a.to_owned(), b.to_owned())
    }

    /// Every knob, often auto, sometimes illegal beside the others.
    fn config(&mut self) -> Config {
        let mut config = Config::default();
        let tile_n = self.pick(&["64", "64", "128", "128", "192", "40", "96", "256"]).to_owned();
        let tile_k = self.pick(&["64", "128", "192", "256", "256", "512", "320"]);
        let group = self.pick(&["1", "1", "2"]);
        let rows = if group == "2" { 256 } else { 128 };
        let swap = self.pick(&["auto", "off", "on"]);
        let tile = match swap {
            "on" => format!("[{tile_n}, {rows}, {tile_k}]"),
            _ => format!("[{rows}, {tile_n}, {tile_k}]"),
        };
        let values = [
            ("tile", self.pick(&["auto", &tile, &tile, &tile]).to_owned()),
            ("cta_group", group.to_owned()),
            ("swap_ab", swap.to_owned()),
            ("multicast", self.pick(&["none", "none", "a(2)", "b(2)", "a(4)", "b(4)"]).to_owned()),
            ("sf_load", self.pick(&["auto", "auto", "auto", "multicast", "tensor_map", "bulk"]).to_owned()),
            ("stages", self.pick(&["auto", "auto", "1", "2", "3", "5", "8"]).to_owned()),
            (
                "k_order",
                self.pick(&[
                    "auto",
                    "forward",
                    "reverse",
                    "ping_pong",
                    "split_tail(1)",
                    "split_tail(2)",
                    "split_tail(3)",
                ])
                .to_owned(),
            ),
            ("sf_preload", self.pick(&["per_stage", "ahead(1)", "ahead(3)", "all"]).to_owned()),
            ("accumulators", self.pick(&["separate", "separate", "side_by_side"]).to_owned()),
            ("a_reuse", self.pick(&["auto", "none", "collector"]).to_owned()),
            ("tmem_columns", self.pick(&["auto", "auto", "128", "256", "512"]).to_owned()),
            ("store", self.store()),
            (
                "strategy",
                self.pick(&["auto", "interleaved", "interleaved", "sequential", "two_pass", "second_fused"])
                    .to_owned(),
            ),
            (
                "accumulator_buffers",
                self.pick(&["auto", "auto", "1", "2", "overlapped", "overlapped"]).to_owned(),
            ),
            (
                "schedule",
                self.pick(&[
                    "auto",
                    "one_tile",
                    "persistent",
                    "dynamic",
                    "stream_k",
                    "split_k(2)",
                    "split_k(3)",
                    "cluster_split_k(2)",
                    "cluster_split_k(4)",
                ])
                .to_owned(),
            ),
            ("raster", self.pick(&["along_m", "along_n", "swizzled(2)", "swizzled(3)"]).to_owned()),
            ("sms", self.pick(&["auto", "2", "3", "5", "8"]).to_owned()),
            ("pdl", self.pick(&["off", "off", "on"]).to_owned()),
            ("cache", self.cache()),
        ];
        for (knob, value) in values {
            config.set(knob, &value).unwrap();
        }
        config
    }

    fn store(&mut self) -> String {
        let shape = self.pick(&["32x32b", "16x256b", "16x256b", "16x128b", "16x64b"]);
        let chunk = self.pick(&["", ", 8", ", 16", ", 32"]);
        match self.below(5) {
            0 => "auto".to_owned(),
            1 => "direct".to_owned(),
            2 => "tma".to_owned(),
            _ => format!("direct({shape}{chunk})"),
        }
    }

    fn cache(&mut self) -> String {
        let hints = ["a", "b", "sf", "c"].map(|operand| {
            let hint = self.pick(&["", "evict_normal", "evict_first", "evict_last"]);
            if hint.is_empty() { String::new() } else { format!("{operand}: {hint}") }
        });
        let hints: Vec<String> = hints.into_iter().filter(|hint| !hint.is_empty()).collect();
        match self.below(3) {
            0 => "auto".to_owned(),
            _ if hints.is_empty() => "none".to_owned(),
            _ => format!("[{}]", hints.join(", ")),
        }
    }
}

/// One legal point of the lattice.
struct Point {
    spec: Spec,
    shape: Shape,
    distribution: Distribution,
    schedule: Schedule,
    seed: u64,
}

impl std::fmt::Display for Point {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Point { spec, shape, distribution, schedule, seed } = self;
        let Spec { formats, config, gate, .. } = spec;
        write!(f, "{shape}, {formats}, {config}, gate {gate}, {distribution:?}, {schedule:?}, seed {seed}")
    }
}

const GATES: [&str; 6] = [
    "silu(A @ B1 + b1[n]) * (A @ B2 + b2[n])",
    "silu(s[m] * (A @ B1)) * (s[m] * (A @ B2))",
    "silu(A @ B1) * (A @ B2)",
    "gelu(X @ Wg) * (X @ Wu)",
    "silu(alpha * (A @ B1)) * (alpha * (A @ B2))",
    "min(A @ B1, 7.0) * sigmoid(1.702 * min(A @ B1, 7.0)) * (clamp(A @ B2, -7.0, 7.0) + 1.0)",
];

/// Draws until there are `wanted` distinct legal points; illegal draws must say why.
fn points(wanted: usize, seed: u64) -> (Vec<Point>, usize) {
    let mut draws = Draws(ChaCha8Rng::seed_from_u64(seed));
    let mut seen = HashSet::new();
    let (mut legal, mut illegal) = (Vec::new(), 0);
    while legal.len() < wanted {
        let (shape, config) = (draws.shape(), draws.config());
        let mut file = SpecFile::new(shape);
        file.gate = draws.pick(&GATES).to_owned();
        file.config = config;
        if draws.below(3) == 0 {
            let (a, b) = draws.pair();
            let c = draws.pick(&["f16", "bf16", "f32", "e4m3", "nvfp4", "mxfp8"]).to_owned();
            file.formats = FormatNames { a, b, c, ..FormatNames::default() };
        }
        file.formats.products = draws.pick(&["none", "none", "none", "bf16", "f16", "f32"]).to_owned();
        let (spec, arch) = file.read().unwrap();
        if let Err(errors) = spec.plan(shape, arch) {
            assert!(!errors.is_empty() && errors.iter().all(|error| !error.hint().is_empty()));
            assert!(explain(&errors).len() > 20);
            illegal += 1;
            continue;
        }
        // The gate's vectors are no part of the plan.
        if let Err(error) = spec.kernel(shape, arch) {
            assert!(error.to_string().starts_with("swap_ab: on with `s[m]`"), "{error}");
            illegal += 1;
            continue;
        }
        let index = legal.len() as u64;
        if seen.insert((config, shape, spec.formats)) {
            legal.push(Point {
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

/// What is wrong with a point, if anything.
fn fault(point: &Point, ptxas: &Ptxas) -> Option<String> {
    let kernel = match point.spec.kernel(point.shape, Arch::Sm100a) {
        Ok(kernel) => kernel,
        Err(error) => return Some(format!("{point}\n  {error}")),
    };
    if let Some(fault) = common::unclean(ptxas, &kernel) {
        return Some(format!("{point}\n  {fault}"));
    }
    let options = EmulatorOptions { threads: 1, schedule: point.schedule, ..EmulatorOptions::default() };
    let device = Device::emulated_with(Arch::Sm100a, options);
    let scalars: &[(&str, f32)] =
        if point.spec.gate.expr.scalars().is_empty() { &[] } else { &[("alpha", 0.75)] };
    match DualGemm::new(point.spec.clone()).verify(
        &device,
        point.shape,
        point.distribution,
        point.seed,
        scalars,
    ) {
        Err(error) => Some(format!("{point}\n  {error}")),
        Ok(verification) if !verification.check.pass => Some(format!("{point}\n  {}", verification.check)),
        Ok(_) => None,
    }
}

#[test]
fn legal_draws_assemble_and_compute_right_and_illegal_ones_say_why() {
    let ptxas = Ptxas::find().unwrap();
    let wanted = environment("SILUMIN_LATTICE", LEGAL as u64) as usize;
    let (points, illegal) = points(wanted, environment("SILUMIN_LATTICE_SEED", 1));
    assert!(illegal > wanted / 10, "{illegal} illegal draws beside {wanted} legal ones: nothing was refused");
    let faults = common::faults(&points, |_, point| fault(point, &ptxas));
    assert!(faults.is_empty(), "{} of {wanted} points are wrong:\n{}", faults.len(), faults.join("\n"));
}
