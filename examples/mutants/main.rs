//! Writes `docs/mutants.md`: every mutant of every golden kernel, and what caught it.
//!
//! ```text
//! cargo run --release --example mutants
//! cargo run --release --example mutants -- --kernel scales_all --stdout
//! cargo run --release --example mutants -- --kernel hopper --every 13 --stdout
//! ```
//!
//! All of it takes an hour or so on two cores (630 mutants of `scales_all` 14 seconds, 11 of `hopper_default` as many).
//! What is known of a kernel is kept in `target/mutants`, under the kernel's hash, so that a run that was broken off goes on
//! with the next kernel. Exit status: 0 if at least 95 % of the mutants of each kernel were
//! caught or explained, 1 if not, 2 for bad input.

// An example talks to people on stdout.
#![allow(clippy::print_stdout, clippy::print_stderr)]

#[path = "../shared/launches.rs"]
mod launches;
#[path = "../shared/mutants.rs"]
mod mutants;

use clap::{Arg, ArgAction, Command, value_parser};
use mutants::KERNELS;
use silumin::Shape;
use silumin_emulator::mutate::{Earlier, Plan, Subject, Survey, json, markdown};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

/// Other sizes of a kernel, at which what survives gets a second chance.
const ALSO: &[(&str, Shape)] = &[
    ("one_token", Shape::new(130, 40, 3232)),
    ("one_token", Shape::new(130, 40, 4512)),
    ("one_token", Shape::new(386, 40, 1952)),
];

/// Kernels of which a sample will do: those of several launches, each on what the one before left, and those whose gate has
/// vectors. Every so many-eth mutant of each launch.
const SAMPLES: &[(&str, Shape, &[usize])] = &[
    ("two_pass", Shape::new(130, 136, 1440), &[8, 8, 2]),
    ("second_fused", Shape::new(130, 136, 1440), &[8, 8]),
    ("bias", Shape::new(130, 136, 1440), &[24]),
    ("hopper_two_pass", Shape::new(130, 136, 344), &[8, 8, 2]),
    ("hopper_vectors", Shape::new(130, 136, 344), &[24]),
];

/// What goes before and behind the tables.
const HEAD: &str = include_str!("head.md");
const TAIL: &str = include_str!("tail.md");

/// Surveys with the names of their rows.
type Surveys = Vec<(String, Survey)>;

fn main() -> ExitCode {
    let matches = Command::new("mutants")
        .about("Surveys the mutants of all golden kernels, and writes docs/mutants.md")
        .arg(
            Arg::new("kernel")
                .long("kernel")
                .value_name("NAME")
                .default_value("")
                .help("kernels only whose names start so; nothing is written"),
        )
        .arg(
            Arg::new("every")
                .long("every")
                .value_name("N")
                .value_parser(value_parser!(u32).range(1..))
                .default_value("1")
                .help("every n-th mutant only; nothing is written"),
        )
        .arg(
            Arg::new("stdout")
                .long("stdout")
                .action(ArgAction::SetTrue)
                .help("print the document and write nothing"),
        )
        .get_matches();
    let wanted = matches.get_one::<String>("kernel").map_or("", String::as_str);
    let every = matches.get_one::<u32>("every").map_or(1, |&every| every as usize);
    let (whole, samples) = match survey(wanted, every) {
        Ok(surveys) => surveys,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    };
    if whole.is_empty() && samples.is_empty() {
        eprintln!("error: no kernel's name starts with `{wanted}`");
        return ExitCode::from(2);
    }
    let text = document(&whole, &samples, every);
    if !wanted.is_empty() || every > 1 || matches.get_flag("stdout") {
        print!("{text}");
    } else {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/mutants.md");
        if let Err(error) = fs::write(&path, &text) {
            eprintln!("error: {}: {error}", path.display());
            return ExitCode::from(2);
        }
        println!("{} kernels written to {}", whole.len() + samples.len(), path.display());
    }
    ExitCode::from(u8::from(!whole.iter().all(|(_, survey)| survey.holds())))
}

/// Surveys the kernels whose names start with `wanted`: whole ones, and samples.
fn survey(wanted: &str, every: usize) -> Result<(Surveys, Surveys), String> {
    let (mut whole, mut samples) = (Vec::new(), Vec::new());
    for &(name, shape) in KERNELS.iter().filter(|(name, _)| name.starts_with(wanted)) {
        whole.extend(launches_of(name, shape, &[every])?);
    }
    for &(name, shape, steps) in SAMPLES.iter().filter(|(name, ..)| name.starts_with(wanted)) {
        let steps: Vec<usize> = steps.iter().map(|step| step * every).collect();
        samples.extend(launches_of(name, shape, &steps)?);
    }
    Ok((whole, samples))
}

/// A survey of each launch of a kernel, every so many-eth mutant.
fn launches_of(name: &str, shape: Shape, every: &[usize]) -> Result<Surveys, String> {
    let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
    let kernel = mutants::write(name, shape, folder.path(), &[])?;
    let mut others = Vec::new();
    for (index, &(_, shape)) in ALSO.iter().enumerate().filter(|(_, (other, _))| *other == name) {
        let folder = folder.path().join(index.to_string());
        fs::create_dir_all(&folder).map_err(|e| e.to_string())?;
        let other = mutants::write(name, shape, &folder, &[])?;
        others.push(read(&folder.join(format!("{}.toml", other.name)))?);
    }
    let files = launches::launches(&kernel, folder.path())?;
    let mut surveys = Vec::new();
    for (index, (file, every)) in files.iter().zip(every).enumerate() {
        let row = if files.len() == 1 { name.to_owned() } else { format!("{name}_{}", index + 1) };
        let hash = &kernel.hash_hex()[..16];
        let known = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("target/mutants/{row}.{hash}.json"));
        let mut earlier = Earlier::default();
        if let Ok(text) = fs::read_to_string(&known) {
            earlier.read(&text).map_err(|e| format!("{}: {e}", known.display()))?;
        }
        let plan = Plan { every: *every, keep: true, ..mutants::plan()? };
        let started = std::time::Instant::now();
        let survey = read(file)?.survey_with(&plan, &others, &earlier).map_err(|e| format!("{row}: {e}"))?;
        eprintln!("{row}: {} mutants, {:.0} s", survey.outcomes.len(), started.elapsed().as_secs_f64());
        let text = json(std::slice::from_ref(&survey));
        let kept = known.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&known, text));
        kept.map_err(|e| format!("{}: {e}", known.display()))?;
        surveys.push((row, survey));
    }
    Ok(surveys)
}

fn read(path: &Path) -> Result<Subject, String> {
    Subject::read(path).map_err(|e| format!("{}: {e}", path.display()))
}

/// The document.
fn document(whole: &Surveys, samples: &Surveys, every: usize) -> String {
    let all: Surveys = whole.iter().chain(samples).cloned().collect();
    let counted = |of: fn(&Survey) -> usize| whole.iter().map(|(_, survey)| of(survey)).sum::<usize>();
    let [mutants, caught, explained] =
        [counted(|s| s.outcomes.len()), counted(Survey::caught), counted(Survey::explained)];
    let lowest = whole.iter().min_by(|(_, a), (_, b)| a.share().total_cmp(&b.share()));
    let lowest = lowest.map_or(String::new(), |(name, survey)| {
        format!(" The lowest share is {:.1} % (`{name}`).", 100.0 * survey.share())
    });
    let which = if every == 1 { "All".to_owned() } else { format!("Every {every}th:") };
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    for outcome in whole.iter().flat_map(|(_, survey)| &survey.outcomes) {
        if outcome.verdict == silumin_emulator::mutate::Verdict::Survived {
            *kinds.entry(outcome.mutant.kind.name()).or_default() += 1;
        }
    }
    let kinds: String = kinds.iter().map(|(kind, count)| format!("| {kind} | {count} |\n")).collect();
    format!(
        "{HEAD}## Golden kernels

{which} {mutants} mutants, one random seed, of golden kernels with one launch: {caught} caught, {explained} explained, {} neither.{lowest}
Shapes: those of `examples/shared/mutants.rs`. Survivors of `one_token` got a second chance at K = 3232, K = 4512 and M = 386, which go
round its ring of 28 stages. Explained mutants of one reason are one row. Written by `cargo run --release --example mutants`.

{}
What is neither caught nor explained, by the kind of mistake. Most are of rings that are not gone round often enough at this size for the last
slots to be waited for again (counts, addresses and parities of barriers, bounds and steps of counters), of tiles whose index is 0, and of loops
that run once; a larger M, N or K shows them.

| kind | mutants |
|---|---|
{kinds}
Kernels of several launches, each launch on what the one before left, and kernels with vectors in their gates; samples: every 8th mutant of a launch,
of the gate's own kernel every 2nd, of kernels with vectors every 24th.

{}
{}
{TAIL}",
        mutants - caught - explained,
        numbers(whole),
        numbers(samples),
        survivors(&all),
    )
}

/// Where the second of the two tables starts that [`markdown`] makes.
const SECOND: &str = "\n| kernel | line |";

fn numbers(surveys: &Surveys) -> String {
    let tables = markdown(surveys);
    tables.split_once(SECOND).map_or(tables.clone(), |(first, _)| first.to_owned())
}

fn survivors(surveys: &Surveys) -> String {
    markdown(surveys)
        .split_once(SECOND)
        .map_or(String::new(), |(_, second)| format!("{}{second}", &SECOND[1..]))
}
