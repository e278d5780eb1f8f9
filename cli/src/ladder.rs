//! The ladder to the fastest kernel: twelve configurations of one dual GEMM, each one line of the DSL away from the one
//! before.
//!
//! ```text
//! cargo run --release --example ladder
//! cargo run --release --example ladder -- --shape 512,3072,7168
//! ```
//!
//! Every rung runs on the emulated device, which counts bytes and MMAs, and is compared with an f64 reference. Times are
//! predicted, for a B200; nothing is measured. Exit status: 0 if every rung is right, 1 if one is not, 2 for bad input.

#![allow(clippy::print_stderr, reason = "errors of a program go there")]

use crate::measure::{Bench, Counted, entries, predicted};
use clap::{Arg, ArgMatches, Command, value_parser};
use silumin::codegen::error::explain;
use silumin::codegen::spec::SpecFile;
use silumin::runtime::predict::Chip;
use silumin::{Arch, Shape};
use std::process::ExitCode;

/// Knobs with their values.
type Knobs = &'static [(&'static str, &'static str)];

/// Four warps finish a tile.
const FOUR: (&str, &str) = ("epilogue_warps", "4");
/// CTAs do not share K, even where tiles are few.
const ONE: (&str, &str) = ("schedule", "one_tile");

/// The rungs: a name, all knobs that are set, and what is new in the line and in the kernel.
const RUNGS: [(&str, Knobs, &str); 12] = [
    (
        "two_pass",
        &[("strategy", "two_pass"), ("cta_group", "1"), ("tile", "[128, 128, 256]"), ("stages", "2")],
        "what two GEMMs and an activation kernel do: both fp32 products go through memory",
    ),
    (
        "second_fused",
        &[
            ("strategy", "second_fused"),
            ("cta_group", "1"),
            ("tile", "[128, 128, 256]"),
            ("stages", "2"),
            FOUR,
        ],
        "`strategy`: the second GEMM's epilogue applies the gate; one product goes through memory",
    ),
    (
        "sequential",
        &[("strategy", "sequential"), ("cta_group", "1"), ("tile", "[128, 128, 256]"), ("stages", "2"), FOUR],
        "`strategy`: one kernel, both accumulators in TMEM; A is loaded twice, nothing goes through memory",
    ),
    (
        "interleaved",
        &[
            ("cta_group", "1"),
            ("tile", "[128, 128, 256]"),
            ("stages", "2"),
            ("k_order", "forward"),
            ONE,
            FOUR,
        ],
        "`strategy`: one K loop; a K tile of A is loaded once and feeds both MMAs",
    ),
    (
        "stages",
        &[("cta_group", "1"), ("tile", "[128, 128, 256]"), ("k_order", "forward"), ONE, FOUR],
        "`stages`: as many K tiles in flight as shared memory holds",
    ),
    (
        "tile",
        &[("cta_group", "1"), ("tile", "[128, 64, 256]"), ("k_order", "forward"), FOUR],
        "`tile`: half the columns, so that twice as many SMs have work",
    ),
    (
        "eight warps",
        &[("cta_group", "1"), ("tile", "[128, 64, 256]"), ("k_order", "forward")],
        "`epilogue_warps = 8`: twice as many warps finish the tile, and C leaves by TMA",
    ),
    (
        "split tail",
        &[("cta_group", "1"), ("tile", "[128, 64, 256]"), ("k_order", "split_tail(2)")],
        "+ `k_order = split_tail(2)`: GEMM 1 ends two K tiles early, and the gate's work overlaps the rest of GEMM 2",
    ),
    (
        "two CTAs",
        &[("cta_group", "2"), ("tile", "[256, 64, 256]"), ("k_order", "split_tail(2)")],
        "+ `cta_group = 2`: a pair of CTAs issues one MMA of 256 rows, and each loads half of B",
    ),
    (
        "scale factors ahead",
        &[
            ("cta_group", "2"),
            ("tile", "[256, 64, 256]"),
            ("k_order", "split_tail(2)"),
            ("sf_preload", "ahead(1)"),
        ],
        "+ `sf_preload = ahead(1)`: scale factors arrive a stage before their K tile, through slots of their own",
    ),
    (
        "persistent",
        &[
            ("cta_group", "2"),
            ("tile", "[256, 64, 256]"),
            ("k_order", "split_tail(2)"),
            ("schedule", "persistent"),
        ],
        "`schedule = persistent`: clusters stay; the next tile's loads and MMAs overlap this one's epilogue",
    ),
    (
        "stream-K",
        &[("cta_group", "2"), ("tile", "[256, 64, 256]"), ("schedule", "stream_k")],
        "`schedule = stream_k`, no split tail: every SM has the same number of K tiles; partial sums go through memory",
    ),
];

/// What is said of a rung.
pub struct Rung {
    /// Its name.
    pub name: &'static str,
    /// As printed.
    pub text: String,
    /// Every element is right, and the emulator counted what the plan says.
    pub right: bool,
    /// Microseconds of all launches, predicted.
    pub predicted: f64,
}

/// Runs every rung.
pub fn climb(shape: Shape, threads: usize, chip: &str) -> Result<Vec<Rung>, String> {
    let (spec, arch) = SpecFile::new(shape).read().map_err(|e| e.to_string())?;
    let bench = Bench::new(&spec, arch, shape, 1111, &[], threads)?;
    let mut rungs: Vec<Rung> = Vec::new();
    for rung in &RUNGS {
        let before = rungs.last().map(|rung| rung.predicted);
        rungs.push(step(rung, shape, arch, &bench, chip, before)?);
    }
    Ok(rungs)
}

fn step(
    (name, knobs, about): &(&'static str, Knobs, &str),
    shape: Shape,
    arch: Arch,
    bench: &Bench,
    chip: &str,
    before: Option<f64>,
) -> Result<Rung, String> {
    let mut file = SpecFile::new(shape);
    for (knob, value) in *knobs {
        file.config.set(knob, value).map_err(|e| e.to_string())?;
    }
    let (spec, _) = file.read().map_err(|e| e.to_string())?;
    let plan = spec.plan(shape, arch).map_err(|errors| format!("{name}: {}", explain(&errors)))?;
    let kernel = spec.kernel(shape, arch).map_err(|e| e.to_string())?;
    let us = predicted(&kernel, chip).map_err(|error| format!("{name}: {error}"))?.time() / 1e3;
    let gain = before.map_or_else(String::new, |before| format!(" ({:+.1} %)", 100.0 * (us / before - 1.0)));
    let (check, report) = bench.run(&spec).map_err(|error| format!("{name}: {error}"))?;
    let modelled = Counted::modelled(&plan);
    let counted = Counted::of(&plan, &report).unwrap_or(modelled);
    let line: Vec<String> = knobs.iter().map(|(knob, value)| format!(", {knob} = {value}")).collect();
    let text = format!(
        "{name}\n  dual_gemm!(<nvfp4 -> f16{}> silu(A @ B1) * (A @ B2))\n  {about}\n  {} kernel(s) in {} launch(es); {:.2} MB read, {:.2} MB written{}; {} MMAs of {}; {} bytes of SMEM in {} stages, {} columns of TMEM\n  {:.2} waves of {} clusters, {:.0} % busy; predicted {us:.2} us{gain} on {chip}, not measured; {}, relative error {:.2e}\n",
        line.concat(),
        entries(&kernel),
        kernel.launches.len(),
        counted.read as f64 / 1e6,
        counted.written as f64 / 1e6,
        if counted == modelled { "" } else { " (not what the plan says)" },
        counted.mmas,
        plan.mma_shape().map(|size| size.to_string()).join(" x "),
        plan.smem.total,
        plan.stages,
        plan.tmem_columns(),
        plan.waves(),
        plan.balance().slots,
        plan.balance().efficiency * 100.0,
        if check.pass { "PASS" } else { "FAIL" },
        check.rel_frobenius
    );
    let right = check.pass && counted == modelled;
    Ok(Rung { name, text, right, predicted: us })
}

/// The flags.
#[must_use]
pub fn command() -> Command {
    Command::new("ladder")
        .about("Runs twelve configurations of one dual GEMM, from two GEMMs and a gate to stream-K")
        .arg(Arg::new("shape").long("shape").value_name("M,N,K").default_value("256,4096,7168"))
        .arg(
            Arg::new("threads")
                .long("threads")
                .value_name("N")
                .help("host threads of the emulator; 0 is one per core")
                .default_value("0")
                .value_parser(value_parser!(usize)),
        )
        .arg(
            Arg::new("time")
                .long("time")
                .value_name("CHIP")
                .help(format!("chip for the predicted times: {}", chips().join(", ")))
                .default_value("b200"),
        )
}

/// Names of the chips that run the ladder's kernels.
fn chips() -> Vec<&'static str> {
    let target = SpecFile::new(Shape::new(1, 1, 1)).arch;
    let runs = |name: &&str| Chip::named(name).is_ok_and(|chip| chip.runs(&target));
    Chip::names().filter(runs).collect()
}

/// Does what the flags say; the exit status.
#[must_use]
pub fn main(matches: &ArgMatches) -> ExitCode {
    let text = matches.get_one::<String>("shape").map_or("", String::as_str);
    let sizes: Vec<u32> = text.split(',').filter_map(|size| size.trim().parse().ok()).collect();
    let &[m, n, k] = &sizes[..] else {
        eprintln!("error: --shape: `{text}` is not M,N,K, three positive numbers such as 256,4096,7168");
        return ExitCode::from(2);
    };
    let chip = matches.get_one::<String>("time").map_or("b200", String::as_str);
    match climb(Shape::new(m, n, k), matches.get_one::<usize>("threads").copied().unwrap_or(0), chip) {
        Ok(rungs) => {
            for (index, rung) in rungs.iter().enumerate() {
                println!("{}. {}", index + 1, rung.text);
            }
            let wrong: Vec<&str> = rungs.iter().filter(|rung| !rung.right).map(|rung| rung.name).collect();
            println!(
                "{}",
                if wrong.is_empty() { "PASS".to_owned() } else { format!("FAIL: {}", wrong.join(", ")) }
            );
            ExitCode::from(u8::from(!wrong.is_empty()))
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}
