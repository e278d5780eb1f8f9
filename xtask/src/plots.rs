//! The README's plots, from what `evidence/` and `tests/hardware` hold: measured beside others, predicted, and bit for bit.

use crate::winner::{KERNELS, Line};
use serde::Deserialize;
use silumin_cli::view::svg::{FILLS, Picture};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

const WIDTH: f64 = 960.0;
const ROW: f64 = 21.0;
/// Published kernels of the same problem on a B200, in `evidence/time.jsonl`.
const PUBLISHED: (&str, &str) = ("b200_nvfp4_dual", "v2");

/// Times of silumin's kernels beside others', from a file of `evidence/beside`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Beside {
    /// The formats, for people.
    pub title: String,
    /// Formats of A, B and C.
    pub formats: String,
    /// GPU and driver.
    pub device: String,
    /// Day of the measurement.
    pub date: String,
    /// Commit of silumin.
    pub commit: String,
    /// The other contenders.
    pub others: Vec<String>,
    /// A row per shape.
    pub row: Vec<BesideRow>,
}

/// Times for one shape.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BesideRow {
    /// M, N and K.
    pub shape: [u32; 3],
    /// Our time in us.
    pub ours: f64,
    /// The others' times in us.
    pub theirs: Vec<f64>,
    /// Medians, turn by turn, of our time over theirs.
    pub ratio: Vec<f64>,
}

impl Beside {
    /// Geometric mean over the shapes, and the largest, of our time over that of the fastest other contender.
    #[must_use]
    pub fn over_the_best(&self) -> (f64, f64) {
        let ratios: Vec<f64> =
            self.row.iter().map(|row| row.ratio.iter().copied().fold(0.0, f64::max)).collect();
        (geometric_mean(&ratios), ratios.iter().copied().fold(0.0, f64::max))
    }
}

fn geometric_mean(values: &[f64]) -> f64 {
    (values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64).exp()
}

fn named(shape: [u32; 3]) -> String {
    format!("{} x {} x {}", shape[0], shape[1], shape[2])
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

fn lines<T: for<'a> Deserialize<'a>>(path: &Path) -> Result<Vec<T>, String> {
    let text = read(path)?;
    let row = |line| serde_json::from_str(line).map_err(|e| format!("{}: {e}", path.display()));
    text.lines().map(row).collect()
}

/// Times beside others: `evidence/beside/NAME.toml`.
///
/// # Errors
/// The file is missing or malformed, or a row has not one time for each contender.
pub fn beside(root: &Path, name: &str) -> Result<Beside, String> {
    let path = root.join("evidence/beside").join(format!("{name}.toml"));
    let set: Beside = toml::from_str(&read(&path)?).map_err(|e| format!("{}: {e}", path.display()))?;
    let count = set.others.len();
    match set.row.iter().find(|row| row.theirs.len() != count || row.ratio.len() != count) {
        Some(row) => Err(format!("{}: {}: not {count} times and ratios", path.display(), named(row.shape))),
        None => Ok(set),
    }
}

/// A legend in a line.
fn legend(picture: &mut Picture, y: f64, entries: &[(&str, &str)]) {
    let mut x = 8.0;
    for (fill, text) in entries {
        picture.dot([x + 6.0, y - 4.0], 5.0, fill, text);
        picture.text(x + 16.0, y, text);
        x += 34.0 + 6.4 * text.len() as f64;
    }
}

/// Others' times over ours, by shape and formats.
fn measured(root: &Path) -> Result<String, String> {
    const LEFT: f64 = 150.0;
    const PANEL: f64 = 258.0;
    const GAP: f64 = 12.0;
    let sets = ["h200_bf16", "h200_e4m3", "h200_nvfp4_weights"].map(|name| beside(root, name));
    let sets = sets.into_iter().collect::<Result<Vec<_>, _>>()?;
    let mut shapes: Vec<[u32; 3]> = sets.iter().flat_map(|set| set.row.iter().map(|r| r.shape)).collect();
    shapes.sort_unstable();
    shapes.dedup();
    let title = format!("Measured on an {}: time of others over silumin's, by M x N x K", sets[0].device);
    let mut picture = Picture::new(WIDTH, &title);
    picture.text(8.0, 36.0, "right of 1: silumin is faster; medians of runs by turns in one process");
    let mut fills: Vec<(&str, &str)> = Vec::new();
    for other in sets.iter().flat_map(|set| &set.others) {
        fills.push((FILLS[fills.len() % FILLS.len()], other));
    }
    let (top, bottom) = (66.0, 66.0 + ROW * shapes.len() as f64);
    let (low, high) = (0.9, 1.9);
    let mut before = 0;
    for (index, set) in sets.iter().enumerate() {
        let left = LEFT + (PANEL + GAP) * index as f64;
        let x = |ratio: f64| left + (ratio - low) / (high - low) * PANEL;
        picture.text(left, top - 8.0, &format!("{}, {}", set.title, set.date));
        picture.block([left, top, PANEL, bottom - top], "#f7f7f7", &set.formats, "");
        for tick in [1.0, 1.2, 1.4, 1.6, 1.8] {
            picture.line([x(tick), top, x(tick), bottom], tick > 1.0);
            picture.centred(x(tick), bottom + 15.0, &format!("{tick:.1}"), false);
        }
        for row in &set.row {
            let at = shapes.iter().position(|shape| *shape == row.shape).unwrap_or(0);
            let y = top + ROW * (at as f64 + 0.5);
            for (other, ratio) in row.ratio.iter().enumerate() {
                let over = 1.0 / ratio;
                if !(low..=high).contains(&over) {
                    return Err(format!(
                        "{}, {}: {over:.2} is outside of the plot",
                        set.title,
                        named(row.shape)
                    ));
                }
                let (fill, name) = fills[before + other];
                let tip = format!("{name}: {} us, silumin {} us", row.theirs[other], row.ours);
                picture.dot([x(over), y], 5.0, fill, &tip);
            }
        }
        before += set.others.len();
    }
    for (index, shape) in shapes.iter().enumerate() {
        picture.right(LEFT - 8.0, top + ROW * (index as f64 + 0.5) + 4.0, &named(*shape));
    }
    let (first, second) = fills.split_at(4);
    legend(&mut picture, bottom + 38.0, first);
    legend(&mut picture, bottom + 58.0, second);
    Ok(picture.finish())
}

#[derive(Deserialize)]
struct Judged {
    set: String,
    kernel: String,
    problem: String,
    measured_us: f64,
    predicted_us: f64,
}

/// Predictions of our kernel by shape, from `evidence/winner.jsonl`.
fn predictions(root: &Path) -> Result<BTreeMap<[u32; 3], Line>, String> {
    let all = lines::<Line>(&root.join("evidence/winner.jsonl"))?;
    Ok(all.into_iter().filter(|line| line.kernel == KERNELS[1]).map(|line| (line.shape, line)).collect())
}

/// The geometric mean of the predicted times on a B200 in us, over the benchmark's shapes.
///
/// # Errors
/// `evidence/winner.jsonl` cannot be read.
pub fn predicted_mean(root: &Path) -> Result<f64, String> {
    let all = predictions(root)?;
    Ok(geometric_mean(&all.values().map(|p| p.us).collect::<Vec<_>>()))
}

/// Predicted times on a B200, beside a published kernel's measured and predicted times.
fn predicted(root: &Path) -> Result<String, String> {
    const LEFT: f64 = 150.0;
    const RIGHT: f64 = 930.0;
    const HIGH: f64 = 24.0;
    let all = predictions(root)?;
    let clock = all.values().next().map_or(0.0, |line| line.clock);
    let judged: Vec<Judged> = lines(&root.join("evidence/time.jsonl"))?;
    let title = format!(
        "Predicted on a B200 at {clock:.0} MHz, NVFP4 to f16: microseconds by M x N x K; not measured"
    );
    let mut picture = Picture::new(WIDTH, &title);
    let note = "bars: with all uncertain numbers of the chip at their fast and slow ends; the published kernel judges the model";
    picture.text(8.0, 36.0, note);
    let (top, row) = (50.0, 30.0);
    let bottom = top + row * all.len() as f64;
    let x = |us: f64| LEFT + us / HIGH * (RIGHT - LEFT);
    picture.block([LEFT, top, RIGHT - LEFT, bottom - top], "#f7f7f7", "microseconds", "");
    for tick in (0..=24).step_by(4).map(f64::from) {
        picture.line([x(tick), top, x(tick), bottom], true);
        picture.centred(x(tick), bottom + 15.0, &format!("{tick:.0}"), false);
    }
    let [ours, theirs, measured] = [FILLS[2], FILLS[4], FILLS[0]];
    for (index, (shape, p)) in all.iter().enumerate() {
        let y = top + row * index as f64;
        picture.right(LEFT - 8.0, y + 19.0, &named(*shape));
        let (low, high) = (p.low_us, p.high_us);
        let tip = format!("silumin: {:.2} us predicted, {low:.2} to {high:.2}", p.us);
        picture.block([x(low), y + 5.0, x(high) - x(low), 7.0], "#cfe3f1", &tip, "");
        picture.dot([x(p.us), y + 8.5], 5.0, ours, &tip);
        let problem = named(*shape);
        let other = judged.iter().find(|row| {
            (row.set.as_str(), row.kernel.as_str()) == PUBLISHED && row.problem.starts_with(&problem)
        });
        let other = other.ok_or_else(|| format!("time.jsonl has no {} for {problem}", PUBLISHED.0))?;
        let tip = format!(
            "{}: {} us measured, {} us predicted",
            PUBLISHED.1, other.measured_us, other.predicted_us
        );
        picture.dot([x(other.predicted_us), y + 21.5], 5.0, theirs, &tip);
        picture.dot([x(other.measured_us), y + 21.5], 5.0, measured, &tip);
    }
    let entries = [
        (ours, "silumin, predicted"),
        (theirs, "a published kernel (gau-nernst, hand-written), predicted"),
        (measured, "the same, measured by its author"),
    ];
    legend(&mut picture, bottom + 38.0, &entries);
    Ok(picture.finish())
}

#[derive(Deserialize)]
struct Compared(ComparedPoint, ComparedLeft);

#[derive(Deserialize)]
struct ComparedPoint {
    name: String,
}

#[derive(Deserialize)]
struct ComparedLeft {
    elements: u64,
}

/// Kernels and elements of C by family, of `tests/hardware/ours.jsonl`.
///
/// # Errors
/// The file cannot be read.
pub fn compared(root: &Path) -> Result<BTreeMap<String, (u32, u64)>, String> {
    let mut families: BTreeMap<String, (u32, u64)> = BTreeMap::new();
    for Compared(point, left) in lines(&root.join("tests/hardware/ours.jsonl"))? {
        let name = point.name.strip_prefix("ours-").and_then(|name| name.rsplit_once('-'));
        let family = name.ok_or_else(|| format!("ours.jsonl: `{}` is not ours-FAMILY-NUMBER", point.name))?.0;
        let entry = families.entry(family.to_owned()).or_default();
        entry.0 += 1;
        entry.1 += left.elements;
    }
    Ok(families)
}

/// Kernels whose results on a GPU and on the emulator are the same bytes, by family.
fn agreement(root: &Path) -> Result<String, String> {
    const COLUMNS: usize = 2;
    const LEFT: f64 = 160.0;
    let families = compared(root)?;
    let (kernels, elements) = families.values().fold((0, 0), |(k, e), of| (k + of.0, e + of.1));
    let title = format!(
        "Bit for bit: {kernels} drawn kernels, {elements} elements of C; every byte they write on a Hopper GPU, they write on the emulator"
    );
    let mut picture = Picture::new(WIDTH, &title);
    picture.text(8.0, 36.0, "a square is a kernel; by what its configuration is drawn from");
    let rows = families.len().div_ceil(COLUMNS);
    for (index, (family, (count, elements))) in families.iter().enumerate() {
        let left = WIDTH / COLUMNS as f64 * (index / rows) as f64;
        let y = 48.0 + ROW * (index % rows) as f64;
        picture.right(left + LEFT - 8.0, y + 13.0, family);
        for kernel in 0..*count {
            let x = left + LEFT + 17.0 * f64::from(kernel);
            picture.block([x, y + 2.0, 13.0, 13.0], FILLS[1], &format!("{family} {kernel}"), "");
        }
        picture.text(left + LEFT + 175.0, y + 13.0, &format!("{elements} elements"));
    }
    Ok(picture.finish())
}

/// File names and texts of all plots.
///
/// # Errors
/// Evidence that is missing, malformed or outside of a plot.
pub fn all(root: &Path) -> Result<Vec<(String, String)>, String> {
    Ok(vec![
        ("measured.svg".into(), measured(root)?),
        ("predicted.svg".into(), predicted(root)?),
        ("agreement.svg".into(), agreement(root)?),
    ])
}
