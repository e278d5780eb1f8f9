//! The verb `view`: a kernel, or two side by side, as one HTML page; and pictures of a plan, as SVG.
//!
//! * `mod.rs`: the flags, and which pictures there are.
//! * `shown.rs`: what the page says of a kernel.
//! * `page.rs`: the page; `page.css` and `page.js` are parts of it.
//! * `svg.rs`: shapes and text.
//! * `memory.rs`: maps of shared memory and tensor memory.
//! * `pipeline.rs`: the ring of stages over time.
//! * `timeline.rs`: what warps and engines do over predicted time.
//! * `waits.rs`: which role waits for which, and at which barrier.

mod memory;
mod page;
mod pipeline;
mod shown;
pub mod svg;
mod timeline;
mod waits;

use crate::emit;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use shown::{Look, Shown};
use silumin::codegen::plan::Plan;
use silumin::codegen::spec::SpecFile;
use silumin::runtime::predict::{IssueSource, Prediction};
use silumin::runtime::regular_file::{SETTINGS_LIMIT, read_text};
use silumin::verify::launch_file::OutputFolder;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The flags: what `emit` has for a kernel's description, and files.
#[must_use]
pub fn command() -> Command {
    let shown = [
        "shape",
        "batch",
        "groups",
        "arch",
        "formats",
        "gate",
        "config",
        "out",
        "time",
        "issue",
        "no-verify",
        "json",
    ];
    let is_shown = move |arg: &Arg| {
        shown.contains(&arg.get_id().as_str()) || arg.get_help_heading() == Some(emit::KNOBS_HEADING)
    };
    emit::command()
        .name("view")
        .about("Draws a kernel, or two side by side, as one HTML page: memory, time, waits, findings, PTX beside SASS")
        .mut_args(move |arg| if is_shown(&arg) { arg } else { arg.hide(true) })
        .arg(
            Arg::new("files")
                .value_name("FILE.toml")
                .num_args(0..=2)
                .value_parser(value_parser!(PathBuf))
                .conflicts_with("config")
                .help("a configuration like those in tests/in, or a launch file of any compiler's PTX; two are shown side by side"),
        )
        .arg(
            Arg::new("beside")
                .long("beside")
                .value_name("KNOBS")
                .help("the same kernel with other knobs beside it, such as 'stages=2 store=tma'"),
        )
        .arg(
            Arg::new("svg")
                .long("svg")
                .action(ArgAction::SetTrue)
                .help("write the pictures of plans as SVG files, too"),
        )
}

/// Does what the flags say; the exit status.
#[must_use]
pub fn main(matches: &ArgMatches) -> ExitCode {
    let as_json = matches.get_flag("json");
    let said = run(matches).and_then(|written| {
        let written: Vec<String> = written.iter().map(|path| path.display().to_string()).collect();
        match as_json {
            true => crate::print::document(&serde_json::json!({ "written": written }))?,
            false => written.iter().for_each(|path| println!("{path}")),
        }
        Ok(true)
    });
    crate::status(said)
}

/// Whether a file is a launch file. Its text is a table with the kernel's PTX; a configuration has none.
fn launches(path: &Path) -> Result<bool, Box<dyn Error>> {
    let text = read_text(path, SETTINGS_LIMIT)?;
    let table: toml::Table = text.parse().map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(table.contains_key("ptx"))
}

/// The kernel that a file describes.
fn described_by(path: &Path) -> Result<SpecFile, Box<dyn Error>> {
    let text = read_text(path, SETTINGS_LIMIT)?;
    Ok(toml::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?)
}

/// `KNOB=VALUE KNOB=VALUE` over the knobs of a description.
fn changed(file: &SpecFile, knobs: &str) -> Result<SpecFile, Box<dyn Error>> {
    let mut file = file.clone();
    for part in knobs.split_whitespace() {
        let (knob, value) = part
            .split_once('=')
            .ok_or_else(|| format!("--beside: `{part}` is not KNOB=VALUE, such as stages=2"))?;
        file.config.set(knob, value)?;
    }
    Ok(file)
}

/// Does what the flags say; the files that it has written, the page first.
///
/// # Errors
/// A flag or file that is wrong, a kernel that cannot be made, run or timed, or a folder that cannot be written. Then no file has changed.
pub fn run(matches: &ArgMatches) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let files: Vec<&PathBuf> = matches.get_many("files").into_iter().flatten().collect();
    let issue = matches.get_one::<String>("issue").and_then(|name| IssueSource::named(name));
    if matches.get_one::<String>("time").is_some_and(|name| name == "off") {
        return Err(
            "--time off: a page has a timeline; name a chip, such as b200, or leave the flag out".into()
        );
    }
    let look = Look {
        chip: matches.get_one::<String>("time").cloned(),
        issue: issue.unwrap_or_default(),
        run: !matches.get_flag("no-verify"),
    };
    let mut kernels: Vec<Shown> = Vec::new();
    let mut svgs: Vec<(String, String)> = Vec::new();
    let mut own = |file: &SpecFile| -> Result<Shown, Box<dyn Error>> {
        let (plan, shown) = shown::of_spec(file, &look)?;
        svgs.extend(pictures(&shown.name, &plan));
        Ok(shown)
    };
    let mut described: Option<SpecFile> = None;
    if files.is_empty() {
        kernels.push(own(described.insert(emit::spec_file(matches)?))?);
    }
    for path in files {
        kernels.push(match launches(path)? {
            true => shown::of_launch(path, &look)?,
            false => own(described.insert(described_by(path)?))?,
        });
    }
    if let Some(knobs) = matches.get_one::<String>("beside") {
        if kernels.len() != 1 {
            return Err("--beside: two kernels are shown already; name one".into());
        }
        let file = described.as_ref().ok_or("--beside changes knobs, and a launch file has none")?;
        let (_, mut shown) = shown::of_spec(&changed(file, knobs)?, &look)?;
        shown.name = format!("{}, {knobs}", shown.name);
        kernels.push(shown);
    }
    let out = matches.get_one::<PathBuf>("out").ok_or("--out has a default")?;
    let name = kernels.first().map_or("kernel", |kernel| kernel.name.as_str());
    let mut folder = OutputFolder::open(out, []).map_err(|error| format!("--out {error}"))?;
    let mut written = vec![format!("{name}.html")];
    folder.add(&written[0], page::html(&kernels)?.as_bytes())?;
    for (name, svg) in svgs.into_iter().filter(|_| matches.get_flag("svg")) {
        folder.add(&name, svg.as_bytes())?;
        written.push(name);
    }
    folder.commit().map_err(|error| format!("--out {error}"))?;
    Ok(written.into_iter().map(|name| out.join(name)).collect())
}

/// The page of kernels: descriptions and launch files.
///
/// # Errors
/// A file that cannot be read, or a kernel that cannot be made, run or timed.
pub fn page(files: &[&Path], run: bool) -> Result<String, Box<dyn Error>> {
    let look = Look { chip: None, issue: IssueSource::Auto, run };
    let mut kernels = Vec::new();
    for path in files {
        kernels.push(match launches(path)? {
            true => shown::of_launch(path, &look)?,
            false => shown::of_spec(&described_by(path)?, &look)?.1,
        });
    }
    page::html(&kernels)
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
pub fn pictures(name: &str, plan: &Plan) -> Vec<(String, String)> {
    vec![
        (format!("{name}_memory.svg"), memory::draw(plan)),
        (format!("{name}_pipeline.svg"), pipeline::draw(plan)),
        (format!("{name}_waits.svg"), waits::draw(plan)),
    ]
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
