//! Runs any PTX on the emulated GPU, from a launch file, and reports what is wrong with it.
//!
//! ```text
//! silumin emulate LAUNCH.toml --out results
//! silumin emulate LAUNCH.toml --seeds 64
//! silumin emulate LAUNCH.toml --time b200 --timeline kernel.svg
//! silumin emulate --check KERNEL.ptx OTHER.ptx
//! ```
//!
//! Exit status: 0 for no finding, 1 for findings (or PTX that cannot run), 2 for bad input, in which
//! case no file was written. A run that its time or instruction limit has ended has a finding that says so; a
//! launch that takes more memory than it may is bad input.

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Command, value_parser};
use silumin_emulator::command::{Limits, Request, Schedules, Timing, TraceTarget, execute};
use silumin_emulator::time::{Clock, IssueSource};
use silumin_emulator::{Reconvergence, Schedule, Tracking};
use std::io::{stderr, stdout};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Runs the verb and returns its exit status.
#[must_use]
pub fn main(matches: &ArgMatches) -> ExitCode {
    silumin_emulator::note_slow_build();
    match request(matches) {
        // The command itself sees whether anybody reads what it writes.
        Ok(request) => ExitCode::from(execute(&request, &mut stdout().lock(), &mut stderr())),
        Err(message) => command().error(ErrorKind::ArgumentConflict, message).exit(),
    }
}

/// The flags.
pub fn command() -> Command {
    let option = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    Command::new("emulate")
        .about("Runs PTX of any compiler on the emulated GPU, and reports what is wrong with it")
        .after_help(
            "Exit status: 0 without findings; 1 with findings (reaching the time or instruction limit is one), or if the PTX \
             cannot run; 2 for bad input (also a launch beyond the memory limit), and then no file is written",
        )
        .arg(
            Arg::new("launch")
                .value_name("LAUNCH.toml")
                .help("the kernel, its grid, buffers and parameters")
                .value_parser(value_parser!(PathBuf)),
        )
        .arg(
            option("check", "FILE.ptx", "only list what is malformed or not supported in these files")
                .num_args(1..)
                .value_parser(value_parser!(PathBuf)),
        )
        .group(ArgGroup::new("input").args(["launch", "check"]).required(true))
        .arg(
            option("out", "DIR", "write every buffer to DIR/NAME.bin (of the first schedule)")
                .value_parser(value_parser!(PathBuf)),
        )
        .args(time_flags())
        .arg(
            Arg::new("json")
                .long("json")
                .action(ArgAction::SetTrue)
                .help("print one JSON document with findings and statistics, and nothing else"),
        )
        .arg(
            option("seed", "N", "run the random schedule with this seed, as reported by --seeds")
                .value_parser(value_parser!(u64))
                .conflicts_with("seeds"),
        )
        .arg(
            option(
                "seeds",
                "N",
                "run many schedules and compare their outputs: early, late, --starve and --delay of each warp, and random seeds 0 to N - 1",
            )
            .value_parser(value_parser!(u64)),
        )
        .arg(
            option("schedule", "WHEN", "when asynchronous work completes [default: early]")
                .value_parser(["early", "late", "random"])
                .conflicts_with("seeds"),
        )
        .arg(
            option("starve", "WARP", "random schedule in which this warp of every CTA runs only when no other warp can")
                .value_parser(value_parser!(u32))
                .conflicts_with_all(["seeds", "schedule"]),
        )
        .arg(
            option("delay", "WARP", "as --starve, but asynchronous work that the warp has issued is not held back")
                .value_parser(value_parser!(u32))
                .conflicts_with_all(["seeds", "schedule", "starve"]),
        )
        .arg(
            option(
                "track",
                "WHAT",
                "report races that this schedule does not show; strict: also missing fences that the ISA requires and published kernels omit",
            )
            .value_parser(["off", "on", "strict"])
            .default_value("on"),
        )
        .arg(
            option(
                "reconvergence",
                "HOW",
                "when diverged lanes of a warp run together again: as soon as they can, as hardware usually \
                 does (eager), or only where a .sync or .aligned instruction requires it, which is all that PTX \
                 guarantees (forced)",
            )
            .value_parser(Reconvergence::NAMES.map(|(name, _)| name))
            .default_value("eager"),
        )
        .arg(
            option(
                "trace",
                "WARP",
                "print each instruction that a warp executes to stderr; WARP (of CTA 0), CTA:WARP or X,Y,Z:WARP",
            )
            .value_parser(|text: &str| text.parse::<TraceTarget>()),
        )
        .arg(
            option("threads", "N", "host threads; 0 is one per core")
                .default_value("0")
                .value_parser(value_parser!(usize)),
        )
        .arg(
            option("time-limit", "SECONDS", "stop after this time, for all schedules together, and report the findings so far")
                .value_parser(seconds),
        )
        .arg(
            option(
                "instruction-limit",
                "N",
                "limit on the PTX instructions of one cluster, counted once per warp; clusters that wait for each other \
                 may execute eight times as many together without progress [default: 1000000000]",
            )
            .value_parser(value_parser!(u64).range(1..)),
        )
        .arg(
            option(
                "memory-limit",
                "BYTES",
                "limit on host memory for buffers and clusters [default: 7/8 of what the machine has available]",
            )
            .value_parser(value_parser!(u64)),
        )
        .arg(
            option(
                "resident",
                "N",
                "clusters that run at a time; with fewer than the grid has, a cluster that waits for one that has not \
                 started hangs, as on a smaller or busy chip [default: as many as the chip can hold]",
            )
            .value_parser(value_parser!(u32).range(1..)),
        )
}

/// Flags of `--time`.
fn time_flags() -> Vec<Arg> {
    let option = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    let others = ["out", "seed", "seeds", "schedule", "starve", "delay", "trace", "check", "resident"];
    let time = option(
        "time",
        "CHIP",
        "predict how long the launch takes on a chip, and what bounds it: b200, b300, h200, h100, jetson_thor, rtx_5090, rtx_pro_6000, dgx_spark, or a file that describes one",
    );
    let flags = vec![
        option("clock", "MHZ", "clock of the SMs: maximum, sustained (under a lasting load), or a number of MHz")
            .value_parser(|text: &str| text.parse::<Clock>()),
        option(
            "what-if",
            "NAME=VALUE",
            "change a number of the chip, to a value or by a factor, such as dram_rate=*2",
        )
        .action(ArgAction::Append),
        option(
            "values",
            "WHETHER",
            "whether products are computed and copied bytes moved, for kernels that branch on them [default: off]",
        )
        .value_parser(["on", "off"]),
        option(
            "l2",
            "STATE",
            "contents of L2 at the start: nothing (cold, the default), or all buffers that fit (warm)",
        )
        .value_parser(["cold", "warm"]),
        option(
            "issue",
            "SOURCE",
            "where issue costs come from: machine code if ptxas and nvdisasm are found, else a table (auto, the \
             default); machine code, or an error without the tools (sass); the table, which is the same everywhere (table)",
        )
        .value_parser(IssueSource::NAMES.map(|(name, _)| name)),
        option("timeline", "FILE", "draw the first cluster's timeline to an .svg, or to a .json for Perfetto")
            .value_parser(value_parser!(PathBuf)),
        Arg::new("pdl")
            .long("pdl")
            .action(ArgAction::SetTrue)
            .help("assume that the previous launch lets this one start early (PDL)"),
        Arg::new("sensitivity")
            .long("sensitivity")
            .value_name("N")
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("10")
            .value_parser(value_parser!(usize))
            .requires("time")
            .help("list the N uncertain numbers of the chip that matter most (10 without N), with two runs for each"),
        Arg::new("no-range")
            .long("no-range")
            .action(ArgAction::SetTrue)
            .help("skip the runs at the ends of the chip's ranges"),
    ];
    let flags = flags.into_iter().map(|f| f.requires("time"));
    std::iter::once(time.conflicts_with_all(others)).chain(flags).collect()
}

/// A time above 0.
fn seconds(text: &str) -> Result<Duration, String> {
    let limit = text.parse().ok().and_then(|s: f64| Duration::try_from_secs_f64(s).ok());
    limit
        .filter(|l| !l.is_zero())
        .ok_or_else(|| "a time limit is a number of seconds above 0, such as 2.5".to_owned())
}

/// What the flags ask for.
pub fn request(matches: &ArgMatches) -> Result<Request, String> {
    let json = matches.get_flag("json");
    if let Some(files) = matches.get_many::<PathBuf>("check") {
        return Ok(Request::Check { files: files.cloned().collect(), json });
    }
    let seed = matches.get_one::<u64>("seed").copied();
    let [starved, delayed] = ["starve", "delay"].map(|name| matches.get_one::<u32>(name));
    let schedule = match (matches.get_one::<String>("schedule").map(String::as_str), seed) {
        (Some("random") | None, Some(seed)) => Schedule::Random(seed),
        (Some("random"), None) => Schedule::Random(0),
        (Some("late"), None) => Schedule::Late,
        (Some("early") | None, None) => Schedule::Early,
        (Some(other), _) => {
            return Err(format!("--seed goes with `--schedule random` or alone; `{other}` has no seed"));
        }
    };
    let schedule = match (starved, delayed) {
        (Some(&warp), _) => Schedule::Starve { warp, seed: seed.unwrap_or_default() },
        (None, Some(&warp)) => Schedule::Delay { warp, seed: seed.unwrap_or_default() },
        (None, None) => schedule,
    };
    let tracking = match matches.get_one::<String>("track").map(String::as_str) {
        Some("off") => Tracking::Off,
        Some("strict") => Tracking::Strict,
        _ => Tracking::HappensBefore,
    };
    let limits = Limits {
        time: matches.get_one::<Duration>("time-limit").copied(),
        instructions: matches.get_one::<u64>("instruction-limit").copied(),
        memory: matches.get_one::<u64>("memory-limit").copied(),
        resident: matches.get_one::<u32>("resident").copied(),
    };
    let is = |flag: &str, value: &str| matches.get_one::<String>(flag).is_some_and(|v| v == value);
    if let Some(chip) = matches.get_one::<String>("time") {
        let timing = Timing {
            chip: chip.clone(),
            clock: matches.get_one::<Clock>("clock").copied().unwrap_or_default(),
            what_if: matches.get_many::<String>("what-if").into_iter().flatten().cloned().collect(),
            values: is("values", "on"),
            warm: is("l2", "warm"),
            programmatic: matches.get_flag("pdl"),
            range: !matches.get_flag("no-range"),
            sensitivity: matches.get_one::<usize>("sensitivity").copied(),
            issue: (matches.get_one::<String>("issue"))
                .and_then(|name| IssueSource::named(name))
                .unwrap_or_default(),
            timeline: matches.get_one::<PathBuf>("timeline").cloned(),
        };
        let launch = matches.get_one::<PathBuf>("launch").cloned().unwrap_or_default();
        return Ok(Request::Time { launch, timing, limits, json });
    }
    Ok(Request::Run {
        tracking,
        reconvergence: (matches.get_one::<String>("reconvergence"))
            .and_then(|name| Reconvergence::named(name))
            .unwrap_or_default(),
        launch: matches.get_one::<PathBuf>("launch").cloned().unwrap_or_default(),
        out: matches.get_one::<PathBuf>("out").cloned(),
        schedules: match matches.get_one::<u64>("seeds") {
            Some(&n) => Schedules::Seeds(n),
            None => Schedules::One(schedule),
        },
        trace: matches.get_one::<TraceTarget>("trace").copied(),
        threads: matches.get_one::<usize>("threads").copied().unwrap_or_default(),
        limits,
        json,
    })
}
