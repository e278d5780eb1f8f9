//! Reports as text.

use super::Runs;
use crate::finding::{Finding, Report, Stats};
use crate::launch::Schedule;

/// A schedule as a flag.
pub(super) fn schedule(schedule: Schedule) -> String {
    match schedule {
        Schedule::Random(seed) => format!("seed {seed}"),
        Schedule::Starve { warp, seed } => format!("starve {warp}, seed {seed}"),
        Schedule::Delay { warp, seed } => format!("delay {warp}, seed {seed}"),
        Schedule::Early => "early".to_owned(),
        Schedule::Late => "late".to_owned(),
    }
}

/// The whole report.
pub(super) fn runs(runs: &Runs<'_>) -> String {
    let file = runs.file.module.file();
    let [first, rest @ ..] = runs.runs.as_slice() else {
        return String::new();
    };
    let mut out = String::new();
    let mut list = |what: &str, of: fn(&Report) -> &[Finding]| {
        let mut shown: Vec<&Finding> = Vec::new();
        for run in &runs.runs {
            for f in of(&run.report) {
                // One of a kind at one line is enough to read; the summary says which schedules have it.
                if !shown.iter().any(|s| s.kind == f.kind && s.line == f.line) {
                    shown.push(f);
                    out += &finding(&format!("{what} {}", shown.len()), file, f, &schedule(run.schedule));
                }
            }
        }
        shown.len()
    };
    let shown = list("finding", |report| &report.findings);
    let warnings = list("warning", |report| &report.warnings);
    out += &launched(runs);
    out += &stats("", &first.report.stats);
    if !rest.is_empty() {
        out += &summary(runs);
    }
    if runs.planned > runs.runs.len() {
        let (ran, planned) = (runs.runs.len(), runs.planned);
        out +=
            &format!("limit     the time limit ended schedule {ran} of {planned}; the others did not run\n");
    }
    let stopped: Vec<_> = runs.runs.iter().filter(|r| r.report.stopped).collect();
    if !stopped.is_empty() {
        let which = match rest.is_empty() {
            true => String::new(),
            false => {
                let names: Vec<_> = stopped.iter().map(|r| schedule(r.schedule)).collect();
                format!(" of {}", names.join("; "))
            }
        };
        out += &format!(
            "partial   a finding stopped the run{which}: buffers hold what was written until there, and are no result\n"
        );
    }
    let left_out = runs.runs.iter().map(|r| r.report.left_out).max().unwrap_or(0);
    out += &match warnings {
        0 => String::new(),
        1 => {
            "1 warning: kernels that do this are known to run; --track strict makes it a finding\n".to_owned()
        }
        n => format!(
            "{n} warnings: kernels that do this are known to run; --track strict makes them findings\n"
        ),
    };
    out += &match shown {
        0 => "no finding\n".to_owned(),
        1 => "1 finding\n".to_owned(),
        n if left_out > 0 => format!(
            "{n} findings, and {left_out} of other kinds or lines in one run, which the limit of {} a run leaves out\n",
            runs.limit
        ),
        n => format!("{n} findings\n"),
    };
    out
}

fn finding(title: &str, file: &str, f: &Finding, schedule: &str) -> String {
    let [x, y, z] = f.cta;
    let mut out = format!("{title}: {:?}: {}\n", f.kind, f.message);
    if f.line > 0 {
        out += &format!("  {file}:{}: {}\n", f.line, f.text);
    }
    let lane = f.lane.map_or(String::new(), |lane| format!(", lane {lane}"));
    let times = if f.count > 1 { format!("; {} times", f.count) } else { String::new() };
    out += &format!("  CTA ({x}, {y}, {z}), warp {}{lane}; schedule {schedule}{times}\n\n", f.warp);
    out
}

fn launched(runs: &Runs<'_>) -> String {
    let launch = &runs.file.launch;
    format!(
        "ran       {} of {}: grid {:?}, block {:?}, cluster {:?}, {} bytes of dynamic SMEM\n",
        runs.file.kernel,
        runs.file.module.file(),
        launch.grid,
        launch.block,
        launch.cluster,
        launch.dynamic_smem
    )
}

fn stats(what: &str, stats: &Stats) -> String {
    let seconds = stats.time.as_secs_f64();
    let rate = |n: u64, unit: f64| if seconds > 0.0 { n as f64 / unit / seconds } else { 0.0 };
    let mut out = format!(
        "executed  {what}{} PTX instructions (counted once a warp) in {seconds:.3} s: {:.2} M/s\n",
        stats.instructions,
        rate(stats.instructions, 1e6)
    );
    for (kind, &macs) in &stats.mma_macs {
        out += &format!("mma       {kind}: {macs} MAC, {:.3} GMAC/s\n", rate(macs, 1e9));
    }
    out += &format!(
        "bytes     {} read and {} written by threads, {} and {} by bulk and tensor copies: {:.1} MB/s\n",
        stats.global_read,
        stats.global_written,
        stats.tma_read,
        stats.tma_written,
        rate(stats.global_read + stats.global_written + stats.tma_read + stats.tma_written, 1e6)
    );
    out
}

/// Which schedules had findings, and whether outputs agree.
fn summary(runs: &Runs<'_>) -> String {
    let mut total = Stats::default();
    for run in &runs.runs {
        total.add(&run.report.stats);
        total.time += run.report.stats.time;
    }
    let n = runs.runs.len();
    let mut out = format!("\nall {n} schedules:\n");
    out += &stats("", &total);
    let list = |found: Vec<String>| if found.is_empty() { "none".to_owned() } else { found.join(", ") };
    let found: Vec<_> = runs.runs.iter().filter(|r| !r.report.is_clean()).collect();
    out += &format!(
        "found     {} of {n} schedules found something: {}\n",
        found.len(),
        list(found.iter().map(|r| schedule(r.schedule)).collect())
    );
    out += &match runs.outputs_equal() {
        None => "outputs   not compared: fewer than two schedules ran without findings\n".to_owned(),
        Some(true) => "outputs   bitwise equal in all schedules without findings\n".to_owned(),
        Some(false) => {
            let mut lines =
                "outputs   DIFFER from those of the first schedule without findings:\n".to_owned();
            for run in &runs.runs {
                if let Some(names) = run.differing.as_ref().filter(|d| !d.is_empty()) {
                    lines += &format!("            {}: {}\n", schedule(run.schedule), names.join(", "));
                }
            }
            lines
        }
    };
    out
}
