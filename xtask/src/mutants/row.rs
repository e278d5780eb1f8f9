//! Rows of `evidence/mutants.jsonl`.

use super::Found;
use serde::{Deserialize, Serialize};
use silumin_emulator::mutate::Verdict;
use std::collections::BTreeMap;
use std::path::Path;

/// Mutants of one launch of a golden kernel, and the results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Name of the kernel; for several launches `KERNEL_1` and so on, each run on what the one before left.
    pub kernel: String,
    /// Step between the mutants that were run.
    pub every: usize,
    /// Number of mutants run, with one random seed.
    pub mutants: usize,
    /// Caught.
    pub caught: usize,
    /// Number of mutants not caught but explained.
    pub explained: usize,
    /// Number of mutants caught, by what caught them.
    pub caught_by: BTreeMap<String, usize>,
    /// Mutants that were not caught.
    pub survivors: Vec<Survivor>,
}

/// Mutants that were not caught: explained ones of one kind and reason together, others one by one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Survivor {
    /// Their PTX lines; 0 is a tensor map.
    pub lines: Vec<u32>,
    /// The kind of mistake.
    pub kind: String,
    /// The instruction, if nothing explains the survivor.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub was: String,
    /// The change, if nothing explains the survivor.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub change: String,
    /// Why the mutant is equivalent; `None` counts against the bar.
    pub reason: Option<String>,
}

impl Row {
    pub(super) fn of(found: &Found) -> Row {
        let Found { name, every, survey } = found;
        let mut survivors: BTreeMap<(Option<&str>, &str, &str, &str), Vec<u32>> = BTreeMap::new();
        for outcome in &survey.outcomes {
            let m = &outcome.mutant;
            let key = match &outcome.verdict {
                Verdict::Survived => (None, m.kind.name(), m.was.as_str(), m.change.as_str()),
                Verdict::Explained(reason) => (Some(reason.as_str()), m.kind.name(), "", ""),
                _ => continue,
            };
            survivors.entry(key).or_default().push(m.line);
        }
        let survivors = survivors.into_iter().map(|((reason, kind, was, change), lines)| Survivor {
            lines,
            kind: kind.to_owned(),
            was: was.to_owned(),
            change: change.to_owned(),
            reason: reason.map(str::to_owned),
        });
        Row {
            kernel: name.clone(),
            every: *every,
            mutants: survey.outcomes.len(),
            caught: survey.caught(),
            explained: survey.explained(),
            caught_by: survey.means().iter().map(|(name, count)| (name.to_string(), *count)).collect(),
            survivors: survivors.collect(),
        }
    }
}

/// The lines of a file.
///
/// # Errors
///
/// A file that cannot be read, or a line that is no row.
pub fn read(path: &Path) -> Result<Vec<Row>, String> {
    let text = std::fs::read_to_string(path).map_err(|e| e.to_string())?;
    let rows = text
        .lines()
        .enumerate()
        .map(|(index, line)| serde_json::from_str(line).map_err(|e| format!("line {}: {e}", index + 1)));
    rows.collect()
}
