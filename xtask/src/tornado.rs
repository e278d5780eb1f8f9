//! Finds the chip numbers that matter most for the benchmark's four shapes: predicts with each uncertain number at
//! both ends of its range.
//!
//! ```text
//! cargo xtask tornado
//! cargo xtask tornado 256x3072x4096
//! ```
//!
//! Times are predicted, by the table of issue costs. Writes `evidence/tornado.jsonl`, or the file of `--out`; rows of
//! shapes that were not asked for stay.

use clap::{Arg, ArgMatches, Command, value_parser};
use serde_json::{Value, json};
use silumin::Shape;
use silumin::codegen::spec::SpecFile;
use silumin::runtime::predict::{Chip, TimeOptions, predict};
use silumin_testkit::parallel;
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

/// The shapes that rank the benchmark.
const SHAPES: [[u32; 3]; 4] = [[256, 4096, 7168], [512, 4096, 7168], [256, 3072, 4096], [512, 3072, 7168]];
/// Number of rows for each shape.
const MOST: usize = 10;

/// The flags.
#[must_use]
pub fn command() -> Command {
    Command::new("tornado")
        .about("Predicts times with each uncertain number of a chip at both ends of its range")
        .arg(
            Arg::new("shape")
                .value_name("MxNxK")
                .num_args(0..)
                .help("one of the benchmark's four shapes [default: all]"),
        )
        .arg(
            Arg::new("out")
                .long("out")
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .help("file of rows [default: evidence/tornado.jsonl]"),
        )
}

/// Runs the verb and returns its exit status.
#[must_use]
pub fn main(matches: &ArgMatches) -> ExitCode {
    silumin_cli::status(run(matches).map(|()| true))
}

fn run(matches: &ArgMatches) -> Result<(), Box<dyn Error>> {
    let given: Vec<&String> = matches.get_many("shape").into_iter().flatten().collect();
    let usual = silumin_testkit::root().join("evidence").join("tornado.jsonl");
    let path = matches.get_one::<PathBuf>("out").cloned().unwrap_or(usual);
    let old = std::fs::read_to_string(&path).unwrap_or_default();
    let old: Vec<Value> = old.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let mut rows = Vec::new();
    for [m, n, k] in SHAPES {
        let name = format!("{m}x{n}x{k}");
        if !given.is_empty() && !given.contains(&&name) {
            rows.extend(old.iter().filter(|row| row["shape"] == name.as_str()).cloned());
            continue;
        }
        let file = SpecFile::new(Shape::new(m, n, k));
        let (spec, arch) = file.read()?;
        let kernel = spec.kernel(file.shape(), arch)?;
        let chip = Chip::named("b200")?;
        let time = |chip: Chip| {
            let predicted = predict(&kernel, None, &TimeOptions::new(chip)).map_err(|e| e.to_string())?;
            Ok::<f64, String>(predicted.time() / 1e3)
        };
        let us = time(chip.clone())?;
        let numbers: Vec<_> = chip.uncertain().filter(|(number, _)| *number != "clock").collect();
        let ends: Vec<_> =
            numbers.iter().flat_map(|(number, q)| [(*number, q.low), (*number, q.high)]).collect();
        let times = parallel::map(&ends, |_, (number, end)| {
            time(chip.with(number, *end).map_err(|e| e.to_string())?)
        });
        let times = times.into_iter().collect::<Result<Vec<f64>, String>>()?;
        let mut found: Vec<_> = numbers.iter().zip(times.chunks(2)).collect();
        let width =
            |ends: &[f64]| ends.iter().fold(us, |a, b| a.max(*b)) - ends.iter().fold(us, |a, b| a.min(*b));
        found.sort_by(|x, y| width(y.1).total_cmp(&width(x.1)));
        println!("{name}: {us:.2} us predicted on {} at {:.0} MHz", chip.name, chip.clock.value);
        for ((number, q), ends) in found.into_iter().take(MOST) {
            println!("    {number:<22} {:>8} {:>7.2} us   {:>8} {:>7.2} us", q.low, ends[0], q.high, ends[1]);
            let round = |us: f64| (us * 1e3).round() / 1e3;
            rows.push(json!({
                "shape": name, "chip": "b200", "clock": chip.clock.value, "us": round(us), "number": number,
                "low": q.low, "high": q.high, "us_low": round(ends[0]), "us_high": round(ends[1]),
            }));
        }
    }
    let text: String = rows.iter().map(|row| format!("{row}\n")).collect();
    std::fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(())
}
