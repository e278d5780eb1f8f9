//! Runs again the mutants that an earlier run left open, after a change of the emulator, the rules or the sizes.

use super::row::Row;
use super::{KERNELS, MORE, mutants, read, twins};
use silumin_emulator::mutate::{Earlier, Outcome, Survey, SurveyOptions, Verdict, json};
use std::collections::BTreeMap;

/// A mutant's kind, instruction and change, which identify it even if template changes move its line.
type Listed = (String, String, String);

/// The unexplained survivors that rows list, by kernel.
fn listed(rows: &[Row]) -> BTreeMap<String, Vec<Listed>> {
    let mut open: BTreeMap<String, Vec<Listed>> = BTreeMap::new();
    for row in rows {
        for survivor in row.survivors.iter().filter(|survivor| survivor.reason.is_none()) {
            let one = (survivor.kind.clone(), survivor.was.clone(), survivor.change.clone());
            open.entry(row.kernel.clone()).or_default().extend(survivor.lines.iter().map(|_| one.clone()));
        }
    }
    open
}

fn row_of(o: &Outcome) -> Listed {
    let m = &o.mutant;
    (m.kind.name().to_owned(), m.was.clone(), m.change.clone())
}

/// Runs them, and prints what became of each.
pub fn run(wanted: &str, before: &[Row]) -> Result<(), String> {
    let (mut all, mut gone, mut caught, mut explained) = (0, 0, 0, 0);
    for (name, rows) in listed(before).iter().filter(|(name, _)| name.starts_with(wanted)) {
        let Some(&(_, shape)) = KERNELS.iter().chain(MORE).find(|(kernel, _)| kernel == name) else {
            eprintln!("{name}: a sample, {} mutants not run", rows.len());
            continue;
        };
        let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
        let kernel = mutants::write(name, shape, folder.path(), &[])?;
        let others = twins(name, shape, &kernel, folder.path())?;
        let subject = read(&folder.path().join(format!("{}.toml", kernel.name)))?;
        // The others count as caught here, so that they are not run.
        let outcomes = subject.mutants(&[]).into_iter();
        let outcomes =
            outcomes.map(|mutant| Outcome { mutant, verdict: Verdict::Refused("not listed".to_owned()) });
        let (open, known): (Vec<_>, Vec<_>) = outcomes.partition(|o| rows.contains(&row_of(o)));
        let survey = Survey { kernel: subject.kernel().to_owned(), schedules: 0, outcomes: known };
        let mut earlier = Earlier::default();
        earlier.read(&json(&[survey]))?;
        let plan = SurveyOptions { keep: true, ..mutants::plan()? };
        let survey = subject.survey_with(&plan, &others, &earlier).map_err(|e| format!("{name}: {e}"))?;
        let outcomes: Vec<&Outcome> = survey.outcomes.iter().filter(|o| rows.contains(&row_of(o))).collect();
        all += outcomes.len();
        gone += rows.iter().filter(|row| !open.iter().any(|o| row_of(o) == **row)).count();
        for outcome in outcomes {
            let line = outcome.mutant.line;
            let (kind, was, change) = row_of(outcome);
            let word = match &outcome.verdict {
                Verdict::Explained(reason) => {
                    explained += 1;
                    reason.clone()
                }
                verdict => match verdict.means() {
                    Some(means) => {
                        caught += 1;
                        format!("caught: {means}")
                    }
                    None => "none".to_owned(),
                },
            };
            println!("| {name} | {line} | {kind} | `{}` | {change} | {word} |", was.replace('|', "\\|"));
        }
    }
    let left = all - caught - explained;
    println!(
        "\n{all} mutants: {caught} caught, {explained} explained, {left} neither; {gone} that are listed are no more"
    );
    Ok(())
}
