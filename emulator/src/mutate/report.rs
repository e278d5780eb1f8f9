//! Surveys as text, JSON and Markdown.

use super::{Mutant, Outcome, Survey, Verdict};
use serde_json::{Value, json as value};
use std::collections::BTreeMap;

/// Mutants, one a line.
pub fn list(mutants: &[Mutant]) -> String {
    mutants.iter().map(|m| format!("{:6}  {:<22}  {}  [{}]\n", m.line, m.kind, m.was, m.change)).collect()
}

/// How many were caught by what, as a sentence.
fn means(survey: &Survey) -> String {
    let list: Vec<String> = survey.means().iter().map(|(name, n)| format!("{name} {n}")).collect();
    list.join(", ")
}

fn survivors(survey: &Survey) -> impl Iterator<Item = (&Outcome, Option<&str>)> {
    survey.outcomes.iter().filter_map(|o| match &o.verdict {
        Verdict::Survived => Some((o, None)),
        Verdict::Explained(reason) => Some((o, Some(reason.as_str()))),
        _ => None,
    })
}

/// Numbers by kind, then every survivor.
pub fn text(survey: &Survey) -> String {
    let mut kinds: BTreeMap<_, [usize; 3]> = BTreeMap::new();
    for o in &survey.outcomes {
        let row = kinds.entry(o.mutant.kind).or_default();
        let column = match o.verdict {
            Verdict::Survived => 2,
            Verdict::Explained(_) => 1,
            _ => 0,
        };
        row[column] += 1;
    }
    let mut out = format!(
        "{}: {} mutants, up to {} schedules each\n\n",
        survey.kernel,
        survey.outcomes.len(),
        survey.schedules
    );
    out += "kind                      caught  explained  survived\n";
    for (kind, [caught, explained, survived]) in kinds {
        out += &format!("{kind:<24}  {caught:>6}  {explained:>9}  {survived:>8}\n");
    }
    out += &format!("\ncaught by {}\n", means(survey));
    let left: Vec<_> = survivors(survey).collect();
    for (title, open) in [("\nsurvivors, explained:\n", false), ("\nsurvivors, NOT explained:\n", true)] {
        let mut part = left.iter().filter(|(_, reason)| reason.is_none() == open).peekable();
        if part.peek().is_some() {
            out += title;
        }
        for (o, reason) in part {
            out += &format!(
                "  line {}: {}\n    {}: {}\n",
                o.mutant.line, o.mutant.was, o.mutant.kind, o.mutant.change
            );
            if let Some(reason) = reason {
                out += &format!("    {reason}\n");
            }
        }
    }
    out += &format!(
        "\n{} of {} caught, {} explained: {:.1} %, {}\n",
        survey.caught(),
        survey.outcomes.len(),
        survey.explained(),
        100.0 * survey.share(),
        if survey.holds() { "the bar holds" } else { "BELOW THE BAR" }
    );
    out
}

/// All surveys as a JSON document.
pub fn json(surveys: &[Survey]) -> String {
    let outcome = |o: &Outcome| {
        let m = &o.mutant;
        let (verdict, detail) = match &o.verdict {
            Verdict::Refused(why) => ("refused", value!({ "message": why })),
            Verdict::Found { kind, finding, schedule } => {
                ("found", value!({ "kind": format!("{kind:?}"), "message": finding, "schedule": schedule }))
            }
            Verdict::Output { buffer, schedule } => {
                ("output", value!({ "buffer": buffer, "schedule": schedule }))
            }
            Verdict::Explained(why) => ("explained", value!({ "message": why })),
            Verdict::Survived => ("survived", Value::Null),
        };
        value!({
            "kind": m.kind.name(), "line": m.line, "was": m.was, "change": m.change,
            "verdict": verdict, "detail": detail,
        })
    };
    let surveys: Vec<Value> = (surveys.iter())
        .map(|s| {
            value!({
                "kernel": s.kernel, "schedules": s.schedules, "mutants": s.outcomes.len(), "caught": s.caught(),
                "explained": s.explained(), "share": s.share(), "holds": s.holds(),
                "outcomes": s.outcomes.iter().map(outcome).collect::<Vec<_>>(),
            })
        })
        .collect();
    let mut out = serde_json::to_string_pretty(&Value::Array(surveys)).unwrap_or_default();
    out.push('\n');
    out
}

/// A table of kernels by name, and one of survivors.
pub fn markdown(surveys: &[(String, Survey)]) -> String {
    let mut out = "| kernel | mutants | caught | explained | survived | caught or explained | caught by |\n|---|---|---|---|---|---|---|\n".to_owned();
    for (name, s) in surveys {
        let survived = s.outcomes.len() - s.caught() - s.explained();
        out += &format!(
            "| {name} | {} | {} | {} | {survived} | {:.1} % | {} |\n",
            s.outcomes.len(),
            s.caught(),
            s.explained(),
            100.0 * s.share(),
            means(s)
        );
    }
    out += "\n| kernel | line | kind | instruction | change | explanation |\n|---|---|---|---|---|---|\n";
    for (name, s) in surveys {
        // Explained survivors of one kind and reason are one row.
        let mut rows: BTreeMap<(bool, &str, &str, &str, &str), Vec<u32>> = BTreeMap::new();
        for (o, reason) in survivors(s) {
            let m = &o.mutant;
            let (was, change) = if reason.is_some() { ("", "") } else { (m.was.as_str(), m.change.as_str()) };
            let key = (reason.is_some(), m.kind.name(), was, change, reason.unwrap_or("none"));
            rows.entry(key).or_default().push(m.line);
        }
        for ((_, kind, was, change, reason), lines) in rows {
            let lines: Vec<String> = lines.iter().map(u32::to_string).collect();
            let code = if was.is_empty() { String::new() } else { format!("`{}`", was.replace('|', "\\|")) };
            out += &format!("| {name} | {} | {kind} | {code} | {change} | {reason} |\n", lines.join(", "));
        }
    }
    out
}
