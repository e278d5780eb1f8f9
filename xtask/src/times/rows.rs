//! Measured times (`evidence/times/*.toml`), and lines of `evidence/time.jsonl`.

use super::predict::Estimate;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;

/// Kernels measured by one harness on one chip.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Set {
    /// The file's name.
    #[serde(skip)]
    pub name: String,
    /// For people.
    pub title: String,
    /// The chip's file.
    pub chip: String,
    /// SM clock in MHz for the predictions.
    pub clock: f64,
    /// Whether launches follow each other for so long that the power limit sets the clock, and no run recorded it;
    /// `clock` then is the maximum.
    #[serde(default)]
    pub sustained: bool,
    /// Where the clock is from.
    pub clock_source: String,
    /// What the harness measures.
    pub harness: String,
    /// Contents of L2 when a launch starts: `cold` or `warm`.
    pub l2: String,
    /// The gate of our kernels, if it is not `silu(A @ B1) * (A @ B2)`.
    pub gate: Option<String>,
    /// Resolution of the harness: it rounds up to multiples of this many us.
    #[serde(default)]
    pub steps: f64,
    /// Where the times were published or recorded.
    pub source: String,
    /// The times.
    pub row: Vec<Row>,
}

/// One time.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// The kernel's name in the source; for our kernels, the knobs.
    pub kernel: String,
    /// Formats of A, B and C, for our kernels.
    pub formats: Option<String>,
    /// Launch files in order, for other kernels.
    #[serde(default)]
    pub launch: Vec<String>,
    /// M, N, K.
    pub shape: [u32; 3],
    /// Microseconds.
    pub us: Option<f64>,
    /// SM clock in MHz during the run, if it was recorded and differs from the set's.
    pub clock: Option<f64>,
    /// Whether the simulation takes minutes; such rows are predicted again only on request.
    #[serde(default)]
    pub slow: bool,
    /// Measured rate instead of a time: TFLOP/s of 2 M N K.
    pub tflops: Option<f64>,
}

impl Row {
    /// The problem.
    pub fn problem(&self) -> String {
        let shape = self.shape.map(|v| v.to_string()).join(" x ");
        match &self.formats {
            Some(formats) => format!("{shape}, {formats}"),
            None => shape,
        }
    }

    /// Kernel and problem.
    pub fn name(&self) -> String {
        format!("{}, {}", self.kernel, self.problem())
    }

    /// Microseconds.
    pub fn measured(&self) -> f64 {
        let operations = self.shape.iter().map(|v| f64::from(*v)).product::<f64>() * 2.0;
        let by_rate = self.tflops.map(|tflops| operations / tflops / 1e6);
        self.us.or(by_rate).unwrap_or(f64::NAN)
    }
}

/// All sets of a folder, by name.
pub fn sets(folder: &Path) -> Result<Vec<Set>, String> {
    let shown = folder.display();
    let entries = fs::read_dir(folder).map_err(|e| format!("{shown}: {e}"))?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(|e| format!("{shown}: {e}"))?.path();
        if path.extension().is_some_and(|e| e == "toml") {
            files.push(path);
        }
    }
    files.sort();
    files.iter().map(|path| set(path)).collect()
}

fn set(path: &Path) -> Result<Set, String> {
    let at = |text: String| format!("{}: {text}", path.display());
    let text = fs::read_to_string(path).map_err(|e| at(e.to_string()))?;
    let mut set: Set = toml::from_str(&text).map_err(|e| at(e.to_string()))?;
    set.name = path.file_stem().and_then(|n| n.to_str()).unwrap_or_default().to_owned();
    if !["cold", "warm"].contains(&set.l2.as_str()) {
        return Err(at(format!("l2 is `cold` or `warm`, not `{}`", set.l2)));
    }
    for (index, row) in set.row.iter().enumerate() {
        if !(row.measured().is_finite() && row.measured() > 0.0) || row.us.is_some() == row.tflops.is_some() {
            return Err(at(format!("{} has to have a time above 0, as `us` or as `tflops`", row.name())));
        }
        if row.launch.is_empty() == row.formats.is_none() {
            return Err(at(format!("{} has to have either `formats` or `launch`", row.name())));
        }
        if set.row[..index].iter().any(|other| other.name() == row.name()) {
            return Err(at(format!("{} is there twice", row.name())));
        }
    }
    Ok(set)
}

/// A prediction, with the measured time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// The set's name.
    pub set: String,
    /// The kernel.
    pub kernel: String,
    /// Its problem.
    pub problem: String,
    /// The chip.
    pub chip: String,
    /// MHz.
    pub clock: f64,
    /// Microseconds.
    pub measured_us: f64,
    /// What the harness measures.
    pub measures: String,
    /// Where the time is from.
    pub source: String,
    /// Microseconds.
    pub predicted_us: f64,
    /// Predicted with all uncertain numbers of the chip at their fast ends.
    pub low_us: f64,
    /// Predicted with all uncertain numbers at their slow ends.
    pub high_us: f64,
    /// What takes most of the critical path.
    pub bound: String,
    /// Commit of the simulator, with `+` if files had changed.
    pub commit: String,
}

impl Line {
    /// A line for a new prediction.
    pub fn new(set: &Set, row: &Row, got: &Estimate, commit: &str) -> Self {
        let round = |us: f64| (us * 1000.0).round() / 1000.0;
        Line {
            set: set.name.clone(),
            kernel: row.kernel.clone(),
            problem: row.problem(),
            chip: set.chip.clone(),
            clock: got.clock,
            measured_us: round(row.measured()),
            measures: set.harness.clone(),
            source: set.source.clone(),
            predicted_us: round(got.time),
            low_us: round(got.low),
            high_us: round(got.high),
            bound: got.bound.clone(),
            commit: commit.to_owned(),
        }
    }

    /// Whether this line is for that row.
    pub fn same(&self, set: &Set, row: &Row) -> bool {
        self.set == set.name && self.kernel == row.kernel && self.problem == row.problem()
    }

    /// The earlier prediction, with the set's current measured time.
    pub fn measured_anew(&self, set: &Set, row: &Row) -> Self {
        let got = Estimate {
            time: self.predicted_us,
            low: self.low_us,
            high: self.high_us,
            clock: self.clock,
            bound: self.bound.clone(),
        };
        Line::new(set, row, &got, &self.commit)
    }

    /// As a line.
    pub fn json(&self) -> String {
        let mut text = serde_json::to_string(self).unwrap_or_default();
        text.push('\n');
        text
    }
}

/// Reads the lines of a file; empty if there is no file.
pub fn lines(path: &Path) -> Result<Vec<Line>, String> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(format!("{}: {e}", path.display())),
    };
    let read = |(i, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|e| format!("{}:{}: {e}", path.display(), i + 1))
    };
    text.lines().enumerate().map(read).collect()
}

/// Writes lines to a file.
pub fn write(path: &Path, lines: &[Line]) -> Result<(), String> {
    let text: String = lines.iter().map(Line::json).collect();
    fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
}
