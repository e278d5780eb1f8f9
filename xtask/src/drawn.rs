//! The measured set that judges predicted times: configurations drawn by a seed, timed on a GPU, and written as a set for `cargo xtask times`.
//!
//! ```text
//! cargo xtask drawn --out FOLDER
//! silumin-bench-gpu --format bf16 --shapes "$(cat FOLDER/shapes)" --sweep FOLDER/bf16.txt --inputs peers --no-bandwidth --reps 41 --json FOLDER/bf16.json
//! cargo xtask drawn --read FOLDER --machine "one H200, driver 580.159, 2026-11-25"
//! cargo xtask times --set h200_drawn
//! ```
//!
//! The first line writes `shapes` and a list of knobs for each format; the second times one of the lists on the GPU; the third writes
//! `evidence/times/h200_drawn.toml` from all reports. `--set h200_drawn_blocks` does that for FP8 with scale factors of blocks, and
//! `--set h200_drawn_products` for one product, with `--gate "A @ B"`. The seeds stand in this file, and stood here before anything was timed.

use clap::{ArgMatches, Command, CommandFactory, FromArgMatches, Parser};
use serde::Deserialize;
use silumin::codegen::arch::TensorCore;
use silumin::codegen::config::{Config, KNOBS};
use silumin::codegen::spec::{FormatNames, SpecFile};
use silumin::runtime::tune::knobs;
use silumin::{Arch, Shape};
use silumin_testkit::draws::Draws;
use std::collections::HashSet;
use std::error::Error;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Configurations for each pair of formats and shape.
const EACH: usize = 5;

/// A set: what is drawn, by which seed.
struct Set {
    /// Name of the file of measured times.
    name: &'static str,
    title: &'static str,
    /// Chosen before anything was measured.
    seed: u64,
    /// M, N, K: tokens by widths of Llama, Qwen, DeepSeek and gpt-oss.
    shapes: &'static [[u32; 3]; 10],
    /// The gate, if it is not the default one.
    gate: Option<&'static str>,
    /// Name in `silumin-bench-gpu --format`, and formats of A, B and C.
    formats: &'static [(&'static str, [&'static str; 3])],
}

const SHAPES: [[u32; 3]; 10] = [
    [1, 14336, 4096],
    [8, 4096, 7168],
    [16, 14336, 4096],
    [64, 9728, 2560],
    [96, 2880, 2880],
    [128, 14336, 4096],
    [256, 4096, 7168],
    [512, 7168, 2048],
    [1024, 9728, 2560],
    [4096, 11008, 4096],
];

/// [`SHAPES`] with 96 x 3072 x 4096 in place of 96 x 2880 x 2880: K is a multiple of 128.
const WHOLE_BLOCKS: [[u32; 3]; 10] = {
    let mut shapes = SHAPES;
    shapes[4] = [96, 3072, 4096];
    shapes
};

const SETS: [Set; 3] = [
    Set {
        name: "h200_drawn",
        title: "H200, drawn configurations",
        seed: 20_261_125,
        shapes: &SHAPES,
        gate: None,
        formats: &[
            ("bf16", ["bf16", "bf16", "bf16"]),
            ("e4m3", ["e4m3", "e4m3", "bf16"]),
            ("nvfp4w", ["bf16", "nvfp4", "bf16"]),
            ("nvfp4", ["nvfp4", "nvfp4", "bf16"]),
        ],
    },
    Set {
        name: "h200_drawn_blocks",
        title: "H200, drawn configurations of FP8 in blocks",
        seed: 20_261_128,
        shapes: &WHOLE_BLOCKS,
        gate: None,
        formats: &[("e4m3_blocks", ["e4m3_1x128", "e4m3_128x128", "bf16"])],
    },
    Set {
        name: "h200_drawn_products",
        title: "H200, drawn configurations of one product",
        seed: 20_261_130,
        shapes: &WHOLE_BLOCKS,
        gate: Some("A @ B"),
        formats: &[
            ("bf16", ["bf16", "bf16", "bf16"]),
            ("e4m3", ["e4m3", "e4m3", "bf16"]),
            ("e4m3_blocks", ["e4m3_1x128", "e4m3_128x128", "bf16"]),
        ],
    },
];

/// Draws the configurations that judge predicted times, or reads their measured times.
#[derive(Parser)]
struct Flags {
    /// Folder for the lists.
    #[arg(long, required_unless_present = "read", conflicts_with = "read")]
    out: Option<PathBuf>,
    /// Folder of the bench's reports, FORMAT.json.
    #[arg(long, requires = "machine")]
    read: Option<PathBuf>,
    /// GPU, driver and date of the measurement.
    #[arg(long)]
    machine: Option<String>,
    /// The set: h200_drawn, h200_drawn_blocks or h200_drawn_products.
    #[arg(long, default_value = SETS[0].name, value_parser = SETS.map(|set| set.name))]
    set: String,
    /// Seed of the draws, instead of the set's.
    #[arg(long)]
    seed: Option<u64>,
}

/// The flags.
#[must_use]
pub fn command() -> Command {
    Flags::command().name("drawn")
}

/// Runs the verb and returns its exit status.
#[must_use]
pub fn main(matches: &ArgMatches) -> ExitCode {
    let done = Flags::from_arg_matches(matches).map_err(Into::into).and_then(|flags| {
        let set = SETS.iter().find(|set| set.name == flags.set).unwrap_or(&SETS[0]);
        let seed = flags.seed.unwrap_or(set.seed);
        match (&flags.out, &flags.read, &flags.machine) {
            (Some(folder), ..) => write_lists(set, folder, seed),
            (_, Some(folder), Some(machine)) => read_reports(set, folder, machine, seed),
            _ => Err("give --out FOLDER, or --read FOLDER with --machine TEXT".into()),
        }
    });
    silumin_cli::status(done.map(|()| true))
}

/// Draws knobs that people would try: a tile or the chosen one, and up to three other knobs. Returns `NAME=VALUE` with spaces between,
/// never nothing. The configuration can be illegal.
fn draw(draws: &mut Draws) -> String {
    let mut set = Vec::new();
    if draws.below(4) > 0 {
        let rows = draws.pick(&["64", "64", "128", "128", "192", "256"]);
        let columns = draws.pick(&["8", "16", "32", "64", "96", "128", "128", "192", "256"]);
        let k = draws.pick(&["64", "64", "128"]);
        match draws.below(2) {
            0 => set.push(format!("tile=[{rows},{columns},{k}]")),
            _ => set.extend(["swap_ab=on".to_owned(), format!("tile=[{columns},{rows},{k}]")]),
        }
    }
    // Few SMs take milliseconds, and one launch alone shows nothing of programmatic dependent launch.
    let other = ["tile", "cache", "swap_ab", "sms", "pdl"];
    let names: Vec<_> = KNOBS.iter().filter(|knob| !other.contains(&knob.name)).collect();
    for _ in 0..=draws.below(3) {
        let knob = names[draws.below(names.len() as u32) as usize];
        let values: Vec<_> =
            knob.draws(TensorCore::Wgmma).into_iter().filter(|value| *value != "auto").collect();
        if !values.is_empty() && !set.iter().any(|text| text.starts_with(&format!("{}=", knob.name))) {
            let value = draws.pick(&values).replace(' ', "");
            set.push(format!("{}={value}", knob.name));
        }
    }
    if set.is_empty() { draw(draws) } else { set.join(" ") }
}

fn write_lists(set: &Set, folder: &Path, seed: u64) -> Result<(), Box<dyn Error>> {
    let save = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
    };
    std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut draws = Draws::new(Arch::Sm90a, seed);
    let (mut drawn, mut legal) = (0, 0);
    for (name, [a, b, c]) in set.formats {
        let mut text = format!("# seed {seed}\n");
        for &[m, n, k] in set.shapes {
            let mut file = SpecFile::new(Shape::new(m, n, k));
            "sm_90a".clone_into(&mut file.arch);
            file.formats =
                FormatNames { a: (*a).into(), b: (*b).into(), c: (*c).into(), ..FormatNames::default() };
            if let Some(gate) = set.gate {
                gate.clone_into(&mut file.gate);
            }
            let (mut spec, arch) = file.read()?;
            let mut seen = HashSet::new();
            for _ in 0..20_000 {
                if seen.len() == EACH {
                    break;
                }
                drawn += 1;
                let line = draw(&mut draws);
                let Ok(config) = knobs(&line, &Config::default()) else { continue };
                spec.config = config;
                if let Ok(kernel) = spec.kernel(file.shape(), arch)
                    && seen.insert(kernel.ptx)
                {
                    legal += 1;
                    writeln!(text, "{m}x{n}x{k}: {line}")?;
                }
            }
            if seen.len() < EACH {
                return Err(
                    format!("{name} {m}x{n}x{k}: only {} configurations are legal", seen.len()).into()
                );
            }
        }
        save(&format!("{name}.txt"), &text)?;
    }
    save("shapes", &set.shapes.map(|[m, n, k]| format!("{m}x{n}x{k}")).join(","))?;
    println!("{legal} configurations of {drawn} drawn, in {}", folder.display());
    Ok(())
}

/// What the bench's report has that a set needs.
#[derive(Deserialize)]
struct Report {
    rows: Vec<Timed>,
}

#[derive(Deserialize)]
struct Timed {
    m: u32,
    n: u32,
    k: u32,
    knobs: String,
    status: String,
    us: Option<f64>,
    mhz: Option<f64>,
}

fn read_reports(set: &Set, folder: &Path, machine: &str, seed: u64) -> Result<(), Box<dyn Error>> {
    let mut text = format!(
        "# Drawn by `cargo xtask drawn`, seed {seed}; timed by `silumin-bench-gpu --inputs peers --no-bandwidth --reps 41`.\n\
         title = \"{}\"\n\
         chip = \"h200\"\n\
         clock = 1980\n\
         clock_source = \"mean of the SMs in the timed replays\"\n\
         harness = \"median of graphs of 2 ms of launches, each of other operands than L2 holds, by GPU events\"\n\
         l2 = \"cold\"\n\
         source = \"silumin-bench-gpu, {machine}\"\n",
        set.title
    );
    if let Some(gate) = set.gate {
        writeln!(text, "gate = \"{gate}\"")?;
    }
    let (mut right, mut other) = (0, Vec::new());
    for (name, formats) in set.formats {
        let path = folder.join(format!("{name}.json"));
        let at = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let report = std::fs::read_to_string(&path).map_err(|error| at(&error))?;
        let report: Report = serde_json::from_str(&report).map_err(|error| at(&error))?;
        for Timed { m, n, k, knobs, status, us, mhz } in report.rows {
            let (Some(us), Some(mhz), "ok") = (us, mhz, status.as_str()) else {
                other.push(format!("{name} {m}x{n}x{k} {knobs}: {status}"));
                continue;
            };
            right += 1;
            write!(
                text,
                "\n[[row]]\nkernel = \"{knobs}\"\nformats = \"{}\"\nshape = [{m}, {n}, {k}]\nus = {us:.2}\nclock = {mhz:.0}\n",
                formats.join(",")
            )?;
        }
    }
    let path = silumin_testkit::root().join("evidence/times").join(format!("{}.toml", set.name));
    std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    println!("{right} rows in {}", path.display());
    match other.is_empty() {
        true => Ok(()),
        false => Err(format!("not timed:\n{}", other.join("\n")).into()),
    }
}
