//! Rows of `evidence/auto.jsonl`, one for each problem, and the table by formats.

use super::problems::{FORMATS, Problem};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;

/// A kernel and its predicted time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kernel {
    /// Knobs, in the form that `silumin tune` and `emit` read.
    pub knobs: String,
    /// Predicted time in microseconds.
    pub us: f64,
}

/// A knob that `auto` and the search set differently.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    /// The knob.
    pub knob: String,
    /// What `auto` chose.
    pub auto: String,
    /// Its value in the best configuration.
    pub best: String,
    /// The rule by which `auto` chose.
    pub rule: String,
}

/// One problem.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Its sizes.
    pub problem: String,
    /// Its formats.
    pub formats: String,
    /// The chip.
    pub chip: String,
    /// MHz.
    pub clock: f64,
    /// The kernel of `auto`, with its main knobs.
    pub auto: Kernel,
    /// The best kernel of the search, with the knobs that differ from `auto`.
    pub best: Kernel,
    /// Time of `auto` divided by the best time, at least 1.
    pub ratio: f64,
    /// Where they differ, and by which rule.
    pub differences: Vec<Difference>,
    /// `quick` or `full`.
    pub space: String,
    /// Number of kernels predicted.
    pub predicted: usize,
    /// The commit that made the row.
    pub commit: String,
}

impl Line {
    /// Whether the row is for this problem on this chip.
    pub fn is_of(&self, problem: &Problem, chip: &str) -> bool {
        self.problem == problem.name() && self.formats == problem.formats && self.chip == chip
    }

    /// The row as text.
    pub fn text(&self) -> String {
        format!(
            "{:<12} {:<32} {:>9.2} us {:>9.2} best  {:>6.1} %  {}",
            self.formats,
            self.problem,
            self.auto.us,
            self.best.us,
            100.0 * (self.ratio - 1.0),
            self.best.knobs
        )
    }
}

/// Reads the lines of a file; empty if there is no file.
pub fn read(path: &Path) -> Result<Vec<Line>, String> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(format!("{}: {error}", path.display())),
    };
    let line = |(index, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|e| format!("{}, line {}: {e}", path.display(), index + 1))
    };
    text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).map(line).collect()
}

/// Writes lines in a fixed order, independent of which finished first.
pub fn write(path: &Path, lines: &[Line]) -> Result<(), String> {
    let mut sorted: Vec<&Line> = lines.iter().collect();
    let place = |line: &Line| FORMATS.iter().position(|(name, _)| *name == line.formats);
    let sizes = |line: &Line| -> Vec<u32> {
        let words = line.problem.split(|c: char| !c.is_ascii_digit());
        words.filter_map(|word| word.parse().ok()).rev().collect()
    };
    sorted.sort_by_key(|line| (line.chip.clone(), place(line), sizes(line)));
    let mut text = String::new();
    for line in sorted {
        text += &serde_json::to_string(line).map_err(|e| e.to_string())?;
        text.push('\n');
    }
    fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
}

/// The table by tokens, as book/src/auto.md has it.
pub fn by_tokens(lines: &[Line]) -> String {
    let tokens = |line: &Line| line.problem.split(' ').next().and_then(|m| m.parse::<u32>().ok());
    let band = |line: &Line| match tokens(line) {
        _ if line.problem.contains("groups") => "groups of rows",
        Some(..=64) => "up to 64 tokens",
        _ => "more than 64 tokens",
    };
    let mut out =
        "| problems | number | within 3 % | geometric mean | worst |\n|---|---|---|---|---|\n".to_owned();
    for name in ["up to 64 tokens", "more than 64 tokens", "groups of rows"] {
        let of: Vec<f64> = lines.iter().filter(|line| band(line) == name).map(|line| line.ratio).collect();
        let near = of.iter().filter(|ratio| **ratio <= 1.03).count();
        let mean = (of.iter().map(|ratio| ratio.ln()).sum::<f64>() / of.len() as f64).exp();
        let worst = of.iter().fold(1.0, |worst: f64, ratio| worst.max(*ratio));
        out += &format!("| {name} | {} | {near} | {mean:.2} | {worst:.2} |\n", of.len());
    }
    out
}

/// The table by formats.
pub fn summary(lines: &[Line]) -> String {
    let mut out = format!(
        "{:<12} {:>5} {:>13} {:>12} {:>8}  {}\n",
        "formats", "rows", "within 3 %", "mean slower", "worst", "which"
    );
    for (name, _) in FORMATS {
        let of: Vec<&Line> = lines.iter().filter(|line| line.formats == name).collect();
        let Some(worst) = of.iter().max_by(|x, y| x.ratio.total_cmp(&y.ratio)) else { continue };
        let near = of.iter().filter(|line| line.ratio <= 1.03).count();
        let mean = (of.iter().map(|line| line.ratio.ln()).sum::<f64>() / of.len() as f64).exp();
        out += &format!(
            "{name:<12} {:>5} {near:>13} {:>10.1} % {:>6.1} %  {}\n",
            of.len(),
            100.0 * (mean - 1.0),
            100.0 * (worst.ratio - 1.0),
            worst.problem
        );
    }
    out
}
