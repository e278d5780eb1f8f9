//! Scores the predictions of a set.

use super::rows::{Line, Set};
use std::collections::BTreeMap;

/// Scores of a set.
#[derive(Clone, Debug, PartialEq)]
pub struct Score {
    /// Lines.
    pub rows: usize,
    /// Spearman's rank correlation over all lines; `None` for fewer than three.
    pub rank: Option<f64>,
    /// Spearman's rank correlation over the versions of one problem, averaged over problems with at least four.
    pub ladder: Option<f64>,
    /// Mean of the absolute relative errors, beyond the timer's resolution.
    pub mean: f64,
    /// Mean of errors.
    pub bias: f64,
    /// The largest relative error, and its kernel.
    pub worst: (f64, String),
    /// Number of lines whose measured time is within the predicted range.
    pub covered: usize,
}

/// Relative error of a prediction. With a timer that rounds up to steps, any time in the step counts as measured.
pub fn error(line: &Line, steps: f64) -> f64 {
    let (low, high) = (line.measured_us - steps, line.measured_us);
    let beyond = (line.predicted_us - high).max(0.0) + (line.predicted_us - low).min(0.0);
    beyond / line.measured_us
}

/// Ranks from 1; equal values get the mean of their ranks.
fn ranks(values: &[f64]) -> Vec<f64> {
    let less = |v: f64| values.iter().filter(|o| **o < v).count() as f64;
    let equal = |v: f64| values.iter().filter(|o| **o == v).count() as f64;
    values.iter().map(|v| less(*v) + (equal(*v) + 1.0) / 2.0).collect()
}

/// Spearman's rank correlation; `None` for fewer than three values or if all are equal.
pub fn spearman(a: &[f64], b: &[f64]) -> Option<f64> {
    if a.len() != b.len() || a.len() < 3 {
        return None;
    }
    let (a, b) = (ranks(a), ranks(b));
    let mean = (a.len() as f64 + 1.0) / 2.0;
    let sum = |x: &[f64], y: &[f64]| -> f64 { x.iter().zip(y).map(|(x, y)| (x - mean) * (y - mean)).sum() };
    let scale = (sum(&a, &a) * sum(&b, &b)).sqrt();
    (scale > 0.0).then(|| sum(&a, &b) / scale)
}

fn rank(lines: &[&Line]) -> Option<f64> {
    let measured: Vec<f64> = lines.iter().map(|l| l.measured_us).collect();
    let predicted: Vec<f64> = lines.iter().map(|l| l.predicted_us).collect();
    spearman(&measured, &predicted)
}

/// Scores of a set; `None` without lines.
pub fn score(set: &Set, all: &[Line]) -> Option<Score> {
    let lines: Vec<&Line> = all.iter().filter(|l| l.set == set.name).collect();
    let errors: Vec<f64> = lines.iter().map(|l| error(l, set.steps)).collect();
    let count = lines.len() as f64;
    let worst = lines.iter().zip(&errors).max_by(|a, b| a.1.abs().total_cmp(&b.1.abs()))?;
    let mut problems: BTreeMap<&str, Vec<&Line>> = BTreeMap::new();
    for line in &lines {
        problems.entry(&line.problem).or_default().push(line);
    }
    let ladders: Vec<f64> = problems.values().filter(|l| l.len() >= 4).filter_map(|l| rank(l)).collect();
    Some(Score {
        rows: lines.len(),
        rank: rank(&lines),
        ladder: (!ladders.is_empty()).then(|| ladders.iter().sum::<f64>() / ladders.len() as f64),
        mean: errors.iter().map(|e| e.abs()).sum::<f64>() / count,
        bias: errors.iter().sum::<f64>() / count,
        worst: (*worst.1, format!("{}, {}", worst.0.kernel, worst.0.problem)),
        covered: lines
            .iter()
            .filter(|l| l.measured_us >= l.low_us && l.measured_us - set.steps <= l.high_us)
            .count(),
    })
}

/// The scores as one line of text.
pub fn text(set: &Set, all: &[Line]) -> String {
    let Some(score) = score(set, all) else {
        return format!("{:<24} no row of {} is predicted", set.name, set.row.len());
    };
    let number = |v: Option<f64>| v.map_or_else(|| "-".to_owned(), |v| format!("{v:.3}"));
    let steps = if set.steps > 0.0 { format!(" beyond steps of {} us", set.steps) } else { String::new() };
    format!(
        "{:<24} {} of {} rows, {} MHz: rank {}, at one problem {}; error {:.1} %{steps}, mean {:+.1} %, worst {:+.1} % ({}); {} within the range",
        set.name,
        score.rows,
        set.row.len(),
        set.clock,
        number(score.rank),
        number(score.ladder),
        100.0 * score.mean,
        100.0 * score.bias,
        100.0 * score.worst.0,
        score.worst.1,
        score.covered
    )
}
