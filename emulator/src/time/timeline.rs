//! Timelines: Perfetto's JSON (the Trace Event Format) and an SVG for documents.

use super::record::{Bar, Cause, Track};
use super::{Prediction, Wait};
use serde_json::{Value, json};
use std::fmt::Write;

/// The name of a row, and its position in its CTA.
fn row(track: Track) -> (u32, String) {
    match track {
        Track::Warp(w) => (w, format!("warp {w}")),
        Track::Tma => (100, "TMA".to_owned()),
        Track::Tensor => (101, "tensor core".to_owned()),
    }
}

/// The bars as a JSON document for <https://ui.perfetto.dev>: one process per CTA, one thread per warp or engine.
/// Times are predicted, in microseconds.
pub fn perfetto(p: &Prediction, line: &dyn Fn(u32) -> String) -> String {
    let mut ctas: Vec<[u32; 3]> = p.bars.iter().map(|b| b.cta).collect();
    ctas.sort_unstable_by_key(|c| (c[2], c[1], c[0]));
    ctas.dedup();
    let number = |cta: [u32; 3]| ctas.iter().position(|c| *c == cta).unwrap_or(0);
    let mut events: Vec<Value> = Vec::new();
    for cta in &ctas {
        let name =
            format!("CTA {}, {}, {}: predicted, {} at {:.0} MHz", cta[0], cta[1], cta[2], p.chip, p.clock);
        events.push(
            json!({ "ph": "M", "pid": number(*cta), "name": "process_name", "args": { "name": name } }),
        );
        let mut rows: Vec<_> = p.bars.iter().filter(|b| b.cta == *cta).map(|b| row(b.track)).collect();
        rows.sort();
        rows.dedup();
        for (id, name) in rows {
            let args = json!({ "name": name });
            events.push(
                json!({ "ph": "M", "pid": number(*cta), "tid": id, "name": "thread_name", "args": args }),
            );
            let args = json!({ "sort_index": id });
            events.push(json!({ "ph": "M", "pid": number(*cta), "tid": id, "name": "thread_sort_index", "args": args }));
        }
    }
    for b in &p.bars {
        events.push(json!({
            "ph": "X",
            "pid": number(b.cta),
            "tid": row(b.track).0,
            "name": b.name,
            "ts": b.start / 1000.0,
            "dur": b.length / 1000.0,
            "args": { "line": b.line, "text": line(b.line) },
        }));
    }
    format!("{}\n", json!({ "traceEvents": events, "displayTimeUnit": "ns" }))
}

/// Colour of a bar.
fn colour(b: &Bar) -> &'static str {
    match (b.track, b.name.as_str()) {
        (_, "wait") => "#e3e3e3",
        (Track::Warp(_), _) => "#4878a8",
        (Track::Tma, "store") => "#b07aa1",
        (Track::Tma, _) => "#f2a541",
        (_, "copy") => "#8fbf6f",
        (Track::Tensor, _) => "#2f8f5b",
    }
}

/// The bars as SVG: one row per warp and engine, time from left to right.
pub fn svg(p: &Prediction) -> String {
    const WIDTH: f64 = 1200.0;
    const LEFT: f64 = 150.0;
    const ROW: f64 = 18.0;
    let end = p.bars.iter().map(|b| b.start + b.length).fold(1.0, f64::max);
    let mut rows: Vec<([u32; 3], u32, String)> = p
        .bars
        .iter()
        .map(|b| {
            let (id, name) = row(b.track);
            (b.cta, id, name)
        })
        .collect();
    rows.sort_by_key(|r| ((r.0[2], r.0[1], r.0[0]), r.1));
    rows.dedup();
    let height = 60.0 + ROW * rows.len() as f64;
    let mut out = String::new();
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"11\">",
        WIDTH + LEFT + 20.0
    );
    let title = format!(
        "predicted on {} at {:.0} MHz: {:.2} us from the first instruction to the end",
        p.chip,
        p.clock,
        p.kernel / 1000.0
    );
    let _ = writeln!(out, "<text x=\"4\" y=\"14\">{title}</text>");
    for (i, (cta, _, name)) in rows.iter().enumerate() {
        let y = 32.0 + ROW * i as f64;
        let _ = writeln!(out, "<text x=\"4\" y=\"{:.1}\">CTA {} {name}</text>", y + 11.0, cta[0]);
    }
    for b in &p.bars {
        let (id, _) = row(b.track);
        let i = rows.iter().position(|r| r.0 == b.cta && r.1 == id).unwrap_or(0);
        let (x, w) = (LEFT + b.start / end * WIDTH, (b.length / end * WIDTH).max(0.2));
        let y = 32.0 + ROW * i as f64;
        let fill = colour(b);
        let _ = writeln!(
            out,
            "<rect x=\"{x:.2}\" y=\"{y:.1}\" width=\"{w:.2}\" height=\"14\" fill=\"{fill}\"><title>{} {:.0} to {:.0} ns, line {}</title></rect>",
            b.name,
            b.start,
            b.start + b.length,
            b.line
        );
    }
    let y = 46.0 + ROW * rows.len() as f64;
    let step = nice(end / 10.0);
    let mut t = 0.0;
    while t <= end {
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{y:.1}\">{:.1} us</text>",
            LEFT + t / end * WIDTH,
            t / 1000.0
        );
        t += step;
    }
    out += "</svg>\n";
    out
}

/// A round number that is not smaller.
fn nice(v: f64) -> f64 {
    let power = 10f64.powf(v.max(1.0).log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|n| *n >= v).unwrap_or(10.0 * power)
}

/// The prediction as text.
pub fn text(p: &Prediction, range: Option<(f64, f64)>, line: &dyn Fn(u32) -> String) -> String {
    let us = |ns: f64| format!("{:.2} us", ns / 1000.0);
    let mut out = format!("predicted on {} at {:.0} MHz: {} a launch", p.chip, p.clock, us(p.time));
    if let Some((low, high)) = range {
        let _ = write!(out, " ({:.2} to {:.2})", low / 1000.0, high / 1000.0);
    }
    let _ = writeln!(out, ", {} from its first instruction to its end", us(p.kernel));
    let _ =
        writeln!(out, "grid      {} CTAs, {} at a time, on {} SMs", p.ctas, p.resident.min(p.ctas), p.sms);
    if let Some(bound) = p.bound() {
        let _ = writeln!(out, "bound     by {} ({} of the critical path)", bound.name(), us(p.path[&bound]));
    }
    out += "phases    (means over CTAs)\n";
    for phase in &p.phases {
        let _ = writeln!(
            out,
            "    {:<14} {:>9}   from {:.2} to {:.2}",
            phase.name,
            us(phase.end - phase.start),
            phase.start / 1000.0,
            phase.end / 1000.0
        );
    }
    out += "critical path\n";
    let mut path: Vec<(&Cause, &f64)> = p.path.iter().filter(|(_, ns)| **ns >= 5.0).collect();
    path.sort_by(|a, b| b.1.total_cmp(a.1));
    for (cause, ns) in path {
        let _ = writeln!(out, "    {:<36} {:>9}  {:>4.1} %", cause.name(), us(*ns), ns / p.time * 100.0);
    }
    out += "use of the chip, from the first instruction to the end\n";
    for s in p.shares.iter().filter(|s| s.used >= 0.0005) {
        let _ = writeln!(out, "    {:<22} {:>5.1} %", s.name, s.used * 100.0);
    }
    out += "warps     share of their lives that they wait, and for what\n";
    for (index, w) in p.warps.iter().enumerate().filter(|(_, w)| w.lived > 0.0) {
        let waited: f64 = w.waits.values().map(|x| x.clocks).sum();
        let _ = writeln!(out, "    warp {index:<3} {:>5.1} %", waited / w.lived * 100.0);
        let mut waits: Vec<(&u32, &Wait)> =
            w.waits.iter().filter(|(_, x)| x.clocks > 0.03 * w.lived).collect();
        waits.sort_by(|a, b| b.1.clocks.total_cmp(&a.1.clocks));
        for (at, wait) in waits.into_iter().take(3) {
            let _ =
                write!(out, "        {:>5.1} % at line {at} `{}`", wait.clocks / w.lived * 100.0, line(*at));
            let by = wait.ended_by.iter().max_by(|a, b| a.1.total_cmp(b.1));
            if let Some((by, clocks)) = by.filter(|(by, _)| **by > 0) {
                let _ =
                    write!(out, "; {:.0} % ended by line {by} `{}`", clocks / wait.clocks * 100.0, line(*by));
            }
            out.push('\n');
        }
    }
    out += "lines     that warps spent most time at\n";
    let mut lines: Vec<(&u32, &f64)> = p.lines.iter().collect();
    lines.sort_by(|a, b| b.1.total_cmp(a.1));
    let lived: f64 = p.warps.iter().map(|w| w.lived).sum();
    for (number, clocks) in lines.into_iter().take(8) {
        let _ = writeln!(
            out,
            "    {:>5.1} %  line {number} `{}`",
            clocks / lived.max(1.0) * 100.0,
            line(*number)
        );
    }
    out
}
