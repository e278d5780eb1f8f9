//! The verb `view`: pictures of a plan, as SVG.
//!
//! * `mod.rs`: the flags, and which pictures there are.
//! * `svg.rs`: shapes and text.
//! * `memory.rs`: maps of shared memory and tensor memory.
//! * `pipeline.rs`: the ring of stages over time.
//! * `timeline.rs`: what warps and engines do over predicted time.
//! * `waits.rs`: which role waits for which, and at which barrier.

mod memory;
mod pipeline;
pub mod svg;
mod timeline;
mod waits;

use crate::emit;
use clap::{Arg, ArgMatches, Command};
use silumin::codegen::plan::Plan;
use silumin::codegen::spec::SpecFile;
use silumin::runtime::predict::Prediction;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The flags: what `emit` has for a kernel's description.
#[must_use]
pub fn command() -> Command {
    let shown = ["shape", "batch", "groups", "arch", "formats", "gate", "config", "out"];
    let is_shown = move |arg: &Arg| {
        shown.contains(&arg.get_id().as_str()) || arg.get_help_heading() == Some(emit::KNOBS_HEADING)
    };
    emit::command()
        .name("view")
        .about("Draws a kernel from its plan as SVG: memory, the ring of stages, which warps wait for which")
        .mut_args(move |arg| if is_shown(&arg) { arg } else { arg.hide(true) })
}

/// Does what the flags say; the exit status.
#[must_use]
pub fn main(matches: &ArgMatches) -> ExitCode {
    crate::status(run(matches).map(|()| true))
}

fn run(matches: &ArgMatches) -> Result<(), Box<dyn Error>> {
    let file = emit::spec_file(matches)?;
    let (spec, arch) = file.read()?;
    let plan = spec.plan(file.shape(), arch).map_err(|errors| silumin::codegen::error::explain(&errors))?;
    let out = matches.get_one::<PathBuf>("out").ok_or("--out has a default")?;
    fs::create_dir_all(out).map_err(|e| format!("{}: {e}", out.display()))?;
    for (name, svg) in pictures(&spec.kernel(file.shape(), arch)?.name, &plan)? {
        let path = out.join(name);
        fs::write(&path, svg).map_err(|e| format!("{}: {e}", path.display()))?;
        println!("{}", path.display());
    }
    Ok(())
}

/// The plan of a dual GEMM that is written as TOML.
///
/// # Errors
/// The file cannot be read, is not a dual GEMM, or is illegal.
pub fn plan(file: &Path) -> Result<Plan, String> {
    let name = file.display();
    let text = fs::read_to_string(file).map_err(|e| format!("{name}: {e}"))?;
    let file: SpecFile = toml::from_str(&text).map_err(|e| format!("{name}: {e}"))?;
    let (spec, arch) = file.read().map_err(|e| format!("{name}: {e}"))?;
    spec.plan(file.shape(), arch).map_err(|errors| {
        let reasons: Vec<String> = errors.iter().map(ToString::to_string).collect();
        format!("{name}: {}", reasons.join("\n"))
    })
}

/// File names and texts of all pictures of a plan.
///
/// # Errors
/// The plan has a barrier that the picture of waits knows nothing of.
pub fn pictures(name: &str, plan: &Plan) -> Result<Vec<(String, String)>, String> {
    Ok(vec![
        (format!("{name}_memory.svg"), memory::draw(plan)),
        (format!("{name}_pipeline.svg"), pipeline::draw(plan)),
        (format!("{name}_waits.svg"), waits::draw(plan)?),
    ])
}

/// A kernel at a glance: the predicted timeline of a CTA, above maps of its memory.
///
/// `prediction` has bars for `cta` ([`TimeOptions::timeline`](silumin::runtime::predict::TimeOptions)).
#[must_use]
pub fn overview(plan: &Plan, prediction: &Prediction, cta: [u32; 3]) -> String {
    let mut picture = svg::Picture::new(960.0, &title(plan, "A kernel at a glance"));
    let y = timeline::rows(&mut picture, 30.0, prediction, cta, &|warp| waits::warp(warp, plan));
    memory::maps(&mut picture, y + 6.0, plan);
    picture.finish()
}

/// One line on what a picture shows.
fn title(plan: &Plan, what: &str) -> String {
    let tile = plan.tile;
    format!("{what}: {}, {}, tile {} x {} x {}", plan.problem, plan.arch, tile.m, tile.n, tile.k)
}
