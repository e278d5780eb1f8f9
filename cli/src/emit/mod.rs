//! The main job: from a shape to a kernel that is shown to be right.
//!
//! ```text
//! silumin emit
//! silumin emit --shape 512,4096,7168 --k-order 'split_tail(2)' --store tma
//! silumin emit --config tests/in/ragged.toml --out out/ragged --inputs
//! silumin sweep
//! silumin explain --tile 128,256,512
//! silumin emit --groups 80,176,128,72,64,248,96,160
//! silumin emit --batch 4 --shape 100,512,1024
//! silumin emit --sass --k-order 'split_tail(2)'
//! silumin emit --arch sm_90a
//! ```
//!
//! Writes the PTX, the plan and a launch file; prints the plan; assembles the PTX where ptxas is found;
//! runs the kernel on the emulated device and compares every element with an f64 reference.
//! Exit status: 0 if it passed (or was not to be run), 1 if it did not, 2 for bad input.
//!
//! * `mod.rs`: the flags, and one kernel;
//! * `sweep.rs`: many configurations side by side;
//! * `explain.rs`: why one is legal, or not;
//! * `sass.rs`: what its machine code issues.

#![allow(clippy::print_stderr, reason = "errors of a program go there")]

mod explain;
mod sass;
pub mod sweep;

use crate::print::verdict;
use crate::progress::Progress;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use serde_json::{Value, json};
use silumin::codegen::config::{Config, KNOBS, Knob};
use silumin::codegen::kernel::Kernel;
use silumin::codegen::plan::Plan;
use silumin::codegen::spec::{FormatNames, Spec, SpecFile};
use silumin::runtime::device::{Device, EmulatorOptions, Tracking};
use silumin::runtime::gemm::{DualGemm, Verification};
use silumin::runtime::predict::{self, Chip, IssueSource, KernelPrediction, PredictError, TimeOptions};
use silumin::runtime::regular_file::{SETTINGS_LIMIT, read_text};
use silumin::verify::check;
use silumin::verify::inputs::{Distribution, DualGemmInputs, InputsError};
use silumin::verify::launch_file::{self, OutputFolder};
use silumin::verify::toolchain::Ptxas;
use silumin::{Arch, Formats, GroupSizes, Shape};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

/// The heading of the flags that set knobs.
pub(crate) const KNOBS_HEADING: &str = "Knobs";
/// The first shape of the public benchmark.
const DEFAULT_SHAPE: Shape = Shape::new(256, 4096, 7168);

/// Runs the verb and returns its exit status.
#[must_use]
pub fn main(matches: &ArgMatches) -> ExitCode {
    crate::status(run(matches))
}

/// `emit --explain` as its own verb.
#[must_use]
pub fn explain_command() -> Command {
    flags(false)
        .name("explain")
        .about("Explains why a configuration is legal and what bounds its time, or lists everything that makes it illegal")
        .mut_arg("explain", |flag| flag.default_value("true").hide(true))
        .mut_args(|arg| if ["sweep", "sass"].contains(&arg.get_id().as_str()) { arg.hide(true) } else { arg })
}

/// `emit --sweep` as its own verb.
#[must_use]
pub fn sweep_command() -> Command {
    flags(true)
        .name("sweep")
        .about("Compares configurations, one per line; knobs that are given keep their values")
        .mut_arg("sweep", |flag| flag.default_value("true").hide(true))
        .mut_args(
            |arg| if ["explain", "sass"].contains(&arg.get_id().as_str()) { arg.hide(true) } else { arg },
        )
}

/// The flags.
#[must_use]
pub fn command() -> Command {
    flags(false)
}

/// The flags of `emit`, or those of `sweep`, where no other flag has to say that it is one.
fn flags(sweeps: bool) -> Command {
    let of_sweeps = |arg: Arg| if sweeps { arg } else { arg.requires("sweep") };
    let option = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name.replace('_', "-")).value_name(value).help(help)
    };
    let knobs = KNOBS.map(|knob| {
        option(knob.name, "VALUE", knob.brief()).long_help(knob.help()).help_heading(KNOBS_HEADING)
    });
    Command::new("emit")
        .about("Emits a gated dual GEMM or a GEMM, prints its plan, and verifies it on the emulated device")
        .arg(option("shape", "M,N,K", "sizes of C (M, N) and the summed dimension [default: 256,4096,7168]"))
        .arg(
            option("batch", "L", "number of matrices in a batch, each of the shape")
                .value_parser(value_parser!(u32))
                .conflicts_with("groups"),
        )
        .arg(option(
            "groups",
            "M1,M2,...",
            "rows of each group; without --shape M is their sum, with it they may have fewer rows than M; a sweep uses groups as even as possible",
        ))
        .arg(option("arch", "ARCH", "").help(format!(
            "target, one of {}; without --formats or --config operands are NVFP4 and C is f16, on sm_90a all are bf16 [default: sm_100a]",
            Arch::ALL.map(Arch::target).join(", ")
        )))
        .arg(option("formats", "A,B,C", "formats of A, of B1 and B2, and of C, such as bf16,nvfp4,bf16"))
        .arg(option("gate", "EXPR", "the gate [default: silu(A @ B1) * (A @ B2)]"))
        .arg(option("config", "FILE", "a TOML file like those in tests/in; flags override it"))
        .arg(
            option("scalar", "NAME=VALUE", "a run-time scalar of the gate [default: 1]")
                .action(ArgAction::Append),
        )
        .arg(option("out", "DIR", "folder for the files").default_value("out").value_parser(value_parser!(PathBuf)))
        .arg(option("seed", "N", "seed of the inputs").default_value("1111").value_parser(value_parser!(u64)))
        .arg(
            option("threads", "N", "host threads of the emulator; 0 is one per core")
                .default_value("0")
                .value_parser(value_parser!(usize)),
        )
        .arg(
            Arg::new("inputs")
                .long("inputs")
                .action(ArgAction::SetTrue)
                .help("write the operands beside the launch file"),
        )
        .arg(
            Arg::new("track")
                .long("track")
                .action(ArgAction::SetTrue)
                .help("also report races that the run does not show; takes several times as long"),
        )
        .arg(Arg::new("time").long("time").value_name("CHIP").help(format!(
            "chip for the predicted time: {}; off for no prediction [default: by --arch]",
            Chip::names().collect::<Vec<_>>().join(", ")
        )))
        .arg(
            option(
                "issue",
                "SOURCE",
                "where the predicted time takes issue costs from: machine code if ptxas and nvdisasm are found, else a table (auto); machine code (sass); the table (table), which sweeps and --explain always use",
            )
            .default_value("auto")
            .value_parser(IssueSource::NAMES.map(|(name, _)| name)),
        )
        .arg(Arg::new("no-verify").long("no-verify").action(ArgAction::SetTrue).help("do not run the kernel"))
        .arg(
            Arg::new("sweep")
                .long("sweep")
                .action(ArgAction::SetTrue)
                .help("compare configurations, one per line; knobs that are given keep their values")
                .help_heading("Instead of one kernel"),
        )
        .arg(of_sweeps(
            option("sweep_knob", "NAME=V1;V2", "a knob to sweep instead of the usual ones; M in a tile stands for the CTA group's rows")
                .action(ArgAction::Append)
                .help_heading("Instead of one kernel"),
        ))
        .arg(of_sweeps(
            option("verify_k", "K", "verify a sweep at this K; 0 verifies nothing [default: a K that takes about a minute]")
                .value_parser(value_parser!(u32))
                .help_heading("Instead of one kernel"),
        ))
        .arg(crate::print::json_flag())
        .arg(
            Arg::new("explain")
                .long("explain")
                .action(ArgAction::SetTrue)
                .conflicts_with_all(["sweep", "sass"])
                .help("explain why the configuration is legal and what bounds its time, or list everything that makes it illegal")
                .help_heading("Instead of one kernel"),
        )
        .arg(
            Arg::new("sass")
                .long("sass")
                .action(ArgAction::SetTrue)
                .conflicts_with("sweep")
                .help("count the machine instructions per MMA, and compare with Triton's kernel (needs ptxas and nvdisasm)")
                .help_heading("Instead of one kernel"),
        )
        .args(knobs)
}

/// Does what the flags ask for; false for a kernel that is illegal or not right.
pub fn run(matches: &ArgMatches) -> Result<bool, Box<dyn Error>> {
    let as_json = matches.get_flag("json");
    if as_json {
        crate::print::expect_document();
    }
    let file = spec_file(matches)?;
    let (spec, arch) = file.read()?;
    if let Some(note) = spec.config.note(spec.formats) {
        eprintln!("note: {note}");
    }
    let shape = file.shape();
    if matches.get_flag("explain") {
        if as_json {
            let document = explain::document(&spec, shape, arch, &chip(matches, arch)?);
            crate::print::document(&document)?;
            return Ok(document["legal"] == true);
        }
        return Ok(explain::run(&spec, shape, arch, &chip(matches, arch)?));
    }
    if matches.get_flag("sweep") {
        let sweep = sweep::Sweep {
            spec: &spec,
            arch,
            shape,
            seed: matches.get_one::<u64>("seed").copied().unwrap_or_default(),
            scalars: &scalars(matches, &spec.gate.expr.scalars())?,
            threads: matches.get_one::<usize>("threads").copied().unwrap_or_default(),
            fixed: given(&spec.config),
            chosen: matches.get_many::<String>("sweep_knob").into_iter().flatten().cloned().collect(),
            chip: chip(matches, arch)?,
            verify_k: matches.get_one::<u32>("verify_k").copied(),
        };
        return sweep::run(&sweep, as_json);
    }
    let started = Instant::now();
    let kernel = spec.kernel(shape, arch)?;
    let took = started.elapsed();
    let plan = spec.plan(shape, arch).map_err(|errors| silumin::codegen::error::explain(&errors))?;
    if matches.get_flag("sass") {
        return sass::run(&kernel, &plan);
    }
    let sizes = group_sizes(matches, shape)?;
    let scalars = scalars(matches, &kernel.scalars())?;
    let scalars: Vec<(&str, f32)> = scalars.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    let seed = matches.get_one::<u64>("seed").copied().unwrap_or_default();

    println!("gate      {}", spec.gate);
    print!("{plan}");
    println!("emitted   {} lines of PTX in {:.2} ms", kernel.ptx.lines().count(), took.as_secs_f64() * 1e3);
    let launch = write_files(matches, &kernel, &plan, &sizes, seed, &scalars)?;
    assemble(&kernel);
    let mut document = json!({
        "kernel": kernel.name, "problem": plan.problem.to_string(), "arch": arch.to_string(), "gate": spec.gate.to_string(),
        "knobs": plan.config.entries().into_iter().map(|(knob, value)| (knob.to_owned(), json!(value.to_string())))
            .collect::<serde_json::Map<_, _>>(),
        "launch_file": launch.display().to_string(), "ptx_lines": kernel.ptx.lines().count(),
        "predicted": predict(matches, &kernel, &sizes), "checks": null, "pass": null,
    });
    let finish = |document: &Value| if as_json { crate::print::document(document) } else { Ok(()) };
    if matches.get_flag("no-verify") {
        println!("not run: --no-verify");
        finish(&document)?;
        return Ok(true);
    }
    let options = EmulatorOptions {
        threads: matches.get_one::<usize>("threads").copied().unwrap_or_default(),
        tracking: if matches.get_flag("track") { Tracking::Strict } else { Tracking::Off },
        ..EmulatorOptions::default()
    };
    let (passed, checks) = verify(spec, arch, shape, &sizes, seed, &scalars, options)?;
    (document["checks"], document["pass"]) = (json!(checks), json!(passed));
    finish(&document)?;
    Ok(passed)
}

/// The file of `--config`, or defaults, with the flags on top.
pub fn spec_file(matches: &ArgMatches) -> Result<SpecFile, Box<dyn Error>> {
    let mut file = match matches.get_one::<String>("config") {
        Some(path) => {
            let text = read_text(Path::new(path), SETTINGS_LIMIT)?;
            let file = toml::from_str(&text).map_err(|error| format!("{path}: {error}"))?;
            // Text that is a file of knobs is a table, too.
            let table: toml::Table = text.parse().map_err(|error| format!("{path}: {error}"))?;
            for (name, value) in table.get("config").and_then(toml::Value::as_table).into_iter().flatten() {
                note(name, value.as_str().unwrap_or_default());
            }
            file
        }
        None => SpecFile::new(DEFAULT_SHAPE),
    };
    if let Some(text) = matches.get_one::<String>("shape") {
        file.shape = parse_shape(text)?;
    }
    if let Some(count) = matches.get_one::<u32>("batch") {
        (file.batch, file.groups) = (Some(*count), None);
    }
    if let Some(text) = matches.get_one::<String>("groups") {
        let sizes = parse_sizes(text)?;
        let rows = sizes.iter().try_fold(0u32, |rows, size| rows.checked_add(*size));
        let rows = rows.ok_or("--groups: more rows together than 32 bits count")?;
        if !matches.contains_id("shape") {
            file.shape[0] = rows.max(1);
        }
        (file.batch, file.groups) = (None, Some(sizes.len() as u32));
    }
    if let Some(arch) = matches.get_one::<String>("arch") {
        file.arch.clone_from(arch);
    }
    if let Some(text) = matches.get_one::<String>("formats") {
        let [a, b, c] = <[&str; 3]>::try_from(text.split(',').map(str::trim).collect::<Vec<_>>())
            .map_err(|_| format!("--formats: `{text}` is not A,B,C, such as bf16,nvfp4,bf16"))?;
        file.formats = FormatNames { a: a.into(), b: b.into(), c: c.into(), ..file.formats };
    }
    if let Some(gate) = matches.get_one::<String>("gate") {
        file.gate.clone_from(gate);
    }
    for knob in &KNOBS {
        if let Some(value) = matches.get_one::<String>(knob.name) {
            file.config.set(knob.name, value)?;
            note(knob.name, value);
        }
    }
    Ok(file)
}

/// Tells of a spelling of an earlier version.
fn note(knob: &str, value: &str) {
    if let Some(note) = Knob::named(knob).and_then(|knob| knob.note(value)) {
        eprintln!("note: {note}");
    }
}

fn parse_sizes(text: &str) -> Result<Vec<u32>, String> {
    let sizes: Result<Vec<u32>, _> = text.split(',').map(|size| size.trim().parse()).collect();
    sizes
        .map_err(|_| format!("--groups: `{text}` is not M1,M2,..., the rows of each group, such as 80,0,128"))
}

/// The sizes of `--groups`, or, without it, sizes for the groups of the configuration file.
fn group_sizes(matches: &ArgMatches, shape: Shape) -> Result<GroupSizes, Box<dyn Error>> {
    match matches.get_one::<String>("groups") {
        Some(text) => Ok(GroupSizes::new(shape, &parse_sizes(text)?)?),
        None => Ok(GroupSizes::draw(shape, matches.get_one::<u64>("seed").copied().unwrap_or_default())),
    }
}

/// Draws operands for a kernel.
fn draw(
    kernel: &Kernel,
    sizes: &GroupSizes,
    distribution: Distribution,
    seed: u64,
) -> Result<DualGemmInputs, InputsError> {
    DualGemmInputs::generate_problem(&kernel.problem, Some(sizes.as_slice()), distribution, seed)
}

/// Knobs that flags or the file set to other values than the default.
fn given(config: &Config) -> Vec<&'static str> {
    let usual = Config::default().entries();
    let set = config.entries().into_iter().zip(usual).filter(|(given, usual)| given != usual);
    set.map(|((knob, _), _)| knob).collect()
}

fn parse_shape(text: &str) -> Result<[u32; 3], String> {
    let sizes: Result<Vec<u32>, _> = text.split([',', 'x']).map(|size| size.trim().parse()).collect();
    sizes.ok().and_then(|sizes| <[u32; 3]>::try_from(sizes).ok()).ok_or_else(|| {
        format!("--shape: `{text}` is not M,N,K, three positive numbers such as 256,4096,7168")
    })
}

/// Values of the kernel's scalars: those given, otherwise 1.
fn scalars<N: AsRef<str> + std::fmt::Debug>(
    matches: &ArgMatches,
    names: &[N],
) -> Result<Vec<(String, f32)>, String> {
    let mut values: Vec<(String, f32)> = names.iter().map(|name| (name.as_ref().to_owned(), 1.0)).collect();
    for text in matches.get_many::<String>("scalar").into_iter().flatten() {
        let (name, value) = text
            .split_once('=')
            .and_then(|(name, value)| Some((name.trim(), value.trim().parse().ok()?)))
            .ok_or_else(|| format!("--scalar: `{text}` is not NAME=NUMBER"))?;
        let known = values.iter_mut().find(|(known, _)| known == name);
        known.ok_or_else(|| format!("--scalar: the gate has no scalar `{name}`; it has {names:?}"))?.1 =
            value;
    }
    Ok(values)
}

fn write_files(
    matches: &ArgMatches,
    kernel: &Kernel,
    plan: &Plan,
    sizes: &GroupSizes,
    seed: u64,
    scalars: &[(&str, f32)],
) -> Result<PathBuf, Box<dyn Error>> {
    let folder = matches.get_one::<PathBuf>("out").map_or(Path::new("out"), PathBuf::as_path);
    let inputs = match matches.get_flag("inputs") {
        true => Some(draw(kernel, sizes, Distribution::Benchmark, seed)?),
        false => None,
    };
    // All files or none, and not over the configuration, whatever it is named.
    let config = matches.get_one::<String>("config").map(Path::new);
    let mut out = OutputFolder::open(folder, config).map_err(|error| format!("--out {error}"))?;
    let launch = launch_file::add(&mut out, kernel, inputs.as_ref(), scalars)?;
    let plan_file = launch.with_extension("plan");
    let name = plan_file.file_name().and_then(|name| name.to_str()).unwrap_or("kernel.plan");
    out.add(name, plan.to_string().as_bytes())?;
    out.commit().map_err(|error| format!("--out {error}"))?;
    println!("written   {0}.{{ptx,plan,toml}}", launch.with_extension("").display());
    Ok(launch)
}

/// The chip for predicted times, or `off`.
fn chip(matches: &ArgMatches, arch: Arch) -> Result<String, PredictError> {
    match matches.get_one::<String>("time") {
        Some(name) => Ok(name.clone()),
        None => predict::default_chip(arch.target()).map(str::to_owned),
    }
}

/// Prints the time that the emulator predicts for the kernel; as JSON, too.
fn predict(matches: &ArgMatches, kernel: &Kernel, sizes: &GroupSizes) -> Value {
    let name = chip(matches, kernel.arch);
    if matches!(name.as_deref(), Ok("off")) {
        return Value::Null;
    }
    let source = matches.get_one::<String>("issue").and_then(|name| IssueSource::named(name));
    let predicted = name.and_then(|name| Ok(Chip::named(&name)?)).and_then(|chip| {
        let costs = predict::issue_costs(kernel, &chip, source.unwrap_or_default())?;
        let time = |chip: Chip| {
            let timing = TimeOptions { sass: costs.sass.clone(), ..TimeOptions::new(chip) };
            predict::predict(kernel, Some(sizes), &timing)
        };
        let ends = || rayon::join(|| time(chip.extreme(false)), || time(chip.extreme(true)));
        let (nominal, (fast, slow)) = rayon::join(|| time(chip.clone()), ends);
        Ok((chip.clone(), costs.clone(), nominal?, fast?, slow?))
    });
    match predicted {
        Err(error) => {
            println!("predicted no time: {error}");
            json!({ "error": error.to_string() })
        }
        Ok((chip, costs, nominal, fast, slow)) => {
            let us = |p: &KernelPrediction| p.time() / 1e3;
            println!(
                "predicted {:.2} us a launch on {} at {:.0} MHz, {:.2} to {:.2} by the ranges of its numbers; not measured",
                us(&nominal),
                chip.name,
                chip.clock.value,
                us(&fast).min(us(&nominal)),
                us(&slow).max(us(&nominal))
            );
            let bound = nominal.launches.iter().max_by(|a, b| a.time.total_cmp(&b.time)).and_then(|p| {
                let cause = p.bound()?;
                Some((cause, p.path[&cause]))
            });
            if let Some((cause, ns)) = bound {
                println!("          {:.2} us of the critical path: {}", ns / 1e3, cause.name());
            }
            println!("          issue costs by {costs}");
            json!({
                "chip": chip.name, "clock_mhz": chip.clock.value, "us": us(&nominal), "low_us": us(&fast).min(us(&nominal)),
                "high_us": us(&slow).max(us(&nominal)), "bound": bound.map(|(cause, _)| cause.name()), "issue": costs.name(),
            })
        }
    }
}

/// Prints what ptxas reports, if it is installed.
fn assemble(kernel: &Kernel) {
    let assembled = Ptxas::find().and_then(|ptxas| ptxas.assemble(&kernel.ptx, kernel.arch));
    match assembled {
        Ok(assembled) => {
            for warning in &assembled.warnings {
                println!("ptxas     {warning}");
            }
            for launch in &kernel.launches {
                let Some(entry) = assembled.entry(&launch.entry) else { continue };
                println!(
                    "ptxas     {}: {} registers a thread, {} bytes of spill stores, {} of spill loads, {} of stack; {} + {} bytes of SMEM",
                    launch.entry,
                    entry.registers,
                    entry.spill_stores,
                    entry.spill_loads,
                    entry.stack_frame,
                    entry.static_smem,
                    launch.dynamic_smem
                );
            }
        }
        Err(error) => println!("ptxas     not assembled: {error}"),
    }
}

/// Runs the kernel on both distributions; whether both pass, and what each showed.
fn verify(
    spec: Spec,
    arch: Arch,
    shape: Shape,
    sizes: &GroupSizes,
    seed: u64,
    scalars: &[(&str, f32)],
    options: EmulatorOptions,
) -> Result<(bool, Vec<Value>), Box<dyn Error>> {
    silumin_emulator::note_slow_build();
    let progress = Arc::new(Progress::new(0, "CTAs emulated"));
    let shown = Arc::clone(&progress);
    let options =
        EmulatorOptions { progress: Some(Arc::new(move |done, total| shown.set(done, total))), ..options };
    let device = Device::emulated_with(arch, options);
    let kernel = DualGemm::new(spec).load(&device, shape)?;
    let (mut passed, mut checks) = (true, Vec::new());
    let Formats { a, b, .. } = kernel.kernel().problem.formats;
    let whole = match [a, b].iter().all(|format| format.spec().element_bits == 4) {
        true => "all 16 e2m1 codes, the whole range of scales",
        false => "the whole range of the operands' formats",
    };
    for (distribution, about) in
        [(Distribution::Benchmark, "the public benchmark's inputs"), (Distribution::Full, whole)]
    {
        let started = Instant::now();
        let inputs = draw(kernel.kernel(), sizes, distribution, seed)?;
        let result = kernel.verify_on(&inputs, scalars);
        progress.clear();
        println!("\ninputs    {about}, seed {seed}");
        if shape.groups.by_rows() {
            let sizes: Vec<String> = sizes.as_slice().iter().map(u32::to_string).collect();
            println!("groups    of {} rows", sizes.join(", "));
        }
        match result {
            Ok(verification) => {
                report(&verification, started.elapsed().as_secs_f64());
                let check = &verification.check;
                checks.push(json!({
                    "inputs": about, "seed": seed, "pass": check.pass, "max_abs": check.max_abs, "max_rel": check.max_rel,
                    "rel_frobenius": check.rel_frobenius,
                }));
                passed &= verification.check.pass;
            }
            // The kernel did something that no kernel may do: a verdict on it, not on the input.
            Err(error) => {
                println!("{error}");
                checks.push(
                    json!({ "inputs": about, "seed": seed, "pass": false, "error": error.to_string() }),
                );
                passed = false;
            }
        }
    }
    println!("\n{}", verdict(passed));
    Ok((passed, checks))
}

fn report(verification: &Verification, seconds: f64) {
    let check::CheckReport { max_abs, max_rel, rel_frobenius, .. } = &verification.check;
    println!("result    {}", verification.check);
    println!(
        "errors    max absolute {max_abs:.3e}, max relative {max_rel:.3e}, relative Frobenius {rel_frobenius:.3e}"
    );
    if let Some(stats) = &verification.launch.emulator {
        let macs: u64 = stats.mma_macs.values().sum();
        println!(
            "emulated  in {:.2} s ({seconds:.1} s with inputs and reference): {} PTX instructions, {:.2} GMAC, {:.2} MB loaded, {:.2} MB stored",
            stats.time.as_secs_f64(),
            stats.instructions,
            macs as f64 / 1e9,
            (stats.tma_read + stats.global_read) as f64 / 1e6,
            (stats.tma_written + stats.global_written) as f64 / 1e6
        );
    }
}
