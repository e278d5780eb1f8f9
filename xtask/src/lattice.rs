//! Writes drawn configurations for a GPU: legal values of every knob on ragged shapes, in the form that `benches/gpu
//! --sweep` reads.
//!
//! ```text
//! cargo xtask lattice --arch sm_90a --out lattice
//! ./gpu --format bf16 --shapes "$(cat lattice.shapes)" --sweep lattice.txt --check-only
//! ```
//!
//! `lattice.txt` has a line for each configuration, `SHAPE: KNOB=VALUE ...`, with the knobs that are not the default;
//! `lattice.shapes` the shapes of all lines, with commas.

use clap::{ArgMatches, Command, CommandFactory, FromArgMatches, Parser};
use silumin::codegen::config::Config;
use silumin::codegen::spec::{FormatNames, SpecFile};
use silumin::{Groups, Shape};
use silumin_testkit::draws::Draws;
use std::collections::HashSet;
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

/// Writes drawn configurations for the GPU bench, one per line.
#[derive(Parser)]
struct Flags {
    /// The chip.
    #[arg(long, default_value = "sm_90a")]
    arch: String,
    /// Formats of the operands and of C, named as in `tests/in`.
    #[arg(long, default_value = "bf16,bf16,bf16")]
    formats: String,
    /// The gate.
    #[arg(long, default_value = "silu(A @ B1) * (A @ B2)")]
    gate: String,
    /// How many shapes.
    #[arg(long, default_value_t = 40)]
    shapes: usize,
    /// Number of configurations for each shape.
    #[arg(long, default_value_t = 16)]
    each: usize,
    /// Largest factor by which drawn sizes are multiplied; 1 suits the emulator.
    #[arg(long, default_value_t = 2)]
    scale: u32,
    /// Seed of the draws.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Path of the files, without extensions.
    #[arg(long, default_value = "lattice")]
    out: PathBuf,
}

/// The flags.
#[must_use]
pub fn command() -> Command {
    Flags::command().name("lattice")
}

/// Runs the verb and returns its exit status.
#[must_use]
pub fn main(matches: &ArgMatches) -> ExitCode {
    let done = Flags::from_arg_matches(matches).map_err(Into::into).and_then(|flags| run(&flags));
    silumin_cli::status(done.map(|()| true))
}

/// A shape as the bench writes it.
fn name(shape: Shape) -> String {
    let sizes = format!("{}x{}x{}", shape.m, shape.n, shape.k);
    match shape.groups {
        Groups::One => sizes,
        Groups::Batch(count) => format!("{sizes}:l{count}"),
        Groups::Rows(count) => format!("{sizes}:g{count}"),
    }
}

/// The knobs with other values than the default.
fn knobs(config: &Config) -> String {
    let usual = Config::default().entries();
    let set = config.entries().into_iter().zip(usual).filter(|(given, usual)| given != usual);
    set.map(|((knob, value), _)| format!("{knob}={value}")).collect::<Vec<_>>().join(" ")
}

fn run(flags: &Flags) -> Result<(), Box<dyn Error>> {
    let arch = flags.arch.parse()?;
    let [a, b, c] = <[&str; 3]>::try_from(flags.formats.split(',').collect::<Vec<_>>())
        .map_err(|_| format!("--formats: `{}` is not A,B,C, such as bf16,bf16,bf16", flags.formats))?;
    let mut draws = Draws::new(arch, flags.seed);
    let (mut lines, mut shapes) = (Vec::new(), Vec::new());
    let mut drawn = 0;
    while shapes.len() < flags.shapes {
        let mut shape = draws.shape();
        for size in [&mut shape.m, &mut shape.n, &mut shape.k] {
            *size = size.saturating_mul(1 + draws.below(flags.scale.max(1)));
        }
        if shapes.contains(&name(shape)) {
            continue;
        }
        let mut file = SpecFile::new(shape);
        file.arch.clone_from(&flags.arch);
        file.gate.clone_from(&flags.gate);
        file.formats = FormatNames { a: a.into(), b: b.into(), c: c.into(), ..FormatNames::default() };
        let (mut spec, arch) = file.read()?;
        let mut seen = HashSet::new();
        // Some shapes have few legal configurations, or none.
        for _ in 0..400 * flags.each {
            if seen.len() == flags.each {
                break;
            }
            drawn += 1;
            spec.config = draws.config();
            if spec.plan(shape, arch).is_ok() && spec.kernel(shape, arch).is_ok() && seen.insert(spec.config)
            {
                lines.push(format!("{}: {}", name(shape), knobs(&spec.config)));
            }
        }
        if !seen.is_empty() {
            shapes.push(name(shape));
        }
    }
    let text = format!(
        "# {} on {arch}, gate {}, seed {}\n{}\n",
        flags.formats,
        flags.gate,
        flags.seed,
        lines.join("\n")
    );
    for (extension, text) in [("txt", text), ("shapes", shapes.join(","))] {
        let path = flags.out.with_extension(extension);
        std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    println!("{} configurations of {drawn} drawn, {} shapes", lines.len(), shapes.len());
    Ok(())
}
