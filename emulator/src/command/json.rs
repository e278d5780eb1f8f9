//! Reports as JSON: one document.

use super::check::Checked;
use super::{BAD_INPUT, Run, Runs, text};
use crate::finding::{Finding, Stats};
use serde_json::{Value, json};

fn print(value: &Value) -> String {
    format!("{value:#}\n")
}

/// Bad input.
pub(super) fn error(message: &str) -> String {
    print(&json!({ "exit": BAD_INPUT, "error": message, "findings": [] }))
}

fn finding(file: &str, f: &Finding, run: &Run) -> Value {
    json!({
        "kind": format!("{:?}", f.kind),
        "file": file,
        "line": f.line,
        "text": f.text,
        "cta": f.cta,
        "warp": f.warp,
        "lane": f.lane,
        "message": f.message,
        "count": f.count,
        "schedule": text::schedule(run.schedule),
        "seed": run.schedule.seed(),
    })
}

fn stats(s: &Stats) -> Value {
    let seconds = s.time.as_secs_f64();
    let rate = |n: u64| if seconds > 0.0 { n as f64 / seconds } else { 0.0 };
    let macs: u64 = s.mma_macs.values().sum();
    json!({
        "instructions": s.instructions,
        "mma_macs": s.mma_macs,
        "global_read_bytes": s.global_read,
        "global_written_bytes": s.global_written,
        "tma_read_bytes": s.tma_read,
        "tma_written_bytes": s.tma_written,
        "seconds": seconds,
        "instructions_per_second": rate(s.instructions),
        "macs_per_second": rate(macs),
    })
}

/// Runs of a launch file: findings and statistics of all, and of each.
pub(super) fn runs(runs: &Runs<'_>, status: u8) -> String {
    let file = runs.file.module.file();
    let list =
        |run: &Run, of: &[Finding]| -> Vec<Value> { of.iter().map(|f| finding(file, f, run)).collect() };
    let findings = |run: &Run| list(run, &run.report.findings);
    let warnings = |run: &Run| list(run, &run.report.warnings);
    let mut total = Stats::default();
    for run in &runs.runs {
        total.add(&run.report.stats);
        total.time += run.report.stats.time;
    }
    let each: Vec<Value> = (runs.runs.iter())
        .map(|run| {
            json!({
                "schedule": text::schedule(run.schedule),
                "seed": run.schedule.seed(),
                "findings": findings(run),
                "warnings": warnings(run),
                "findings_left_out": run.report.left_out,
                "partial": run.report.stopped,
                "stats": stats(&run.report.stats),
                "differing_buffers": run.differing,
            })
        })
        .collect();
    let launch = &runs.file.launch;
    print(&json!({
        "exit": status,
        "ptx": file,
        "kernel": runs.file.kernel,
        "grid": launch.grid,
        "block": launch.block,
        "cluster": launch.cluster,
        "dynamic_smem": launch.dynamic_smem,
        "findings": runs.runs.iter().flat_map(findings).collect::<Vec<_>>(),
        "warnings": runs.runs.iter().flat_map(warnings).collect::<Vec<_>>(),
        "findings_left_out": runs.runs.iter().map(|run| run.report.left_out).max(),
        "partial": runs.runs.iter().any(|run| run.report.stopped),
        "stats": stats(&total),
        "runs": each,
        "outputs_equal": runs.outputs_equal(),
        "schedules_left_out": runs.planned - runs.runs.len(),
    }))
}

/// Checked PTX files.
pub(super) fn checked(files: &[(String, Checked)], status: u8) -> String {
    let files: Vec<Value> = (files.iter())
        .map(|(name, c)| match c {
            Checked::Unread(message) => json!({ "file": name, "error": message }),
            Checked::Lines(lines, kernels) => {
                let problems: Vec<Value> = (lines.iter())
                    .map(|e| json!({ "line": e.line, "text": e.text, "message": e.message }))
                    .collect();
                json!({ "file": name, "kernels": kernels, "problems": problems })
            }
        })
        .collect();
    print(&json!({ "exit": status, "files": files }))
}
