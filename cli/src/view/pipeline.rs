//! The ring of stages over time. A scheme, not a prediction: a load takes four units, the MMAs of a K tile take two.

use super::svg::{FREE, Picture};
use super::title;
use silumin::codegen::plan::Plan;

const LOAD: f64 = 4.0;
const MMA: f64 = 2.0;
const ISSUE: f64 = 0.7;
const LEFT: f64 = 110.0;
const UNIT: f64 = 20.0;
const ROW: f64 = 24.0;
const LOADING: &str = "#f2a541";
const FULL: &str = "#f7d9ad";
const FIRST: &str = "#4f9d69";
const SECOND: &str = "#9fd0a8";
const BOTH: &str = "#76b583";
const GATE: &str = "#7fb3d5";

/// When a K tile is loaded and multiplied.
struct Step {
    issued: f64,
    full: f64,
    /// Start of each piece of its MMAs, and which product it is for: 0 for both.
    mmas: Vec<(f64, f64, u32)>,
    released: f64,
}

/// K tiles that are drawn: twice around the ring, and the tail.
fn drawn(plan: &Plan) -> usize {
    plan.k_loop.tiles.min(plan.stages.saturating_mul(2).max(4)) as usize
}

fn steps(plan: &Plan) -> Vec<Step> {
    let (count, stages) = (drawn(plan), plan.stages as usize);
    let tail = (plan.k_loop.tail_tiles as usize).min(count).min(stages);
    let one_product = plan.smem.b_tiles == 1;
    let mut steps: Vec<Step> = Vec::new();
    let (mut issue, mut math) = (0.0f64, 0.0f64);
    for index in 0..count {
        // On Hopper a stage is released when the next one's MMAs have been issued and its own are done.
        let free = index.checked_sub(stages).map_or(0.0, |before| steps[before].released);
        let issued = issue.max(free);
        issue = issued + ISSUE;
        let full = issued + LOAD;
        let mut step = Step { issued, full, mmas: Vec::new(), released: f64::INFINITY };
        if index < count - tail {
            let start = math.max(full);
            math = start + MMA;
            step.mmas.push((start, MMA, u32::from(one_product)));
            step.released = math;
        }
        steps.push(step);
    }
    // The tail: all of GEMM 1, then all of GEMM 2.
    for product in 1..=2 {
        for step in &mut steps[count - tail..] {
            let start = math.max(step.full);
            math = start + MMA / 2.0;
            step.mmas.push((start, MMA / 2.0, product));
            step.released = math;
        }
    }
    steps
}

/// The pipeline of a plan.
pub fn draw(plan: &Plan) -> String {
    let steps = steps(plan);
    let stages = plan.stages as usize;
    let end = steps.iter().map(|step| step.released).fold(0.0, f64::max);
    let tail = plan.k_loop.tail_tiles > 0;
    let gate = (if tail { MMA / 2.0 } else { 0.0 }).min(end);
    let epilogue = 5.0;
    let width = (LEFT + (end + epilogue + 1.0) * UNIT).max(760.0);
    let mut picture = Picture::new(width, &title(plan, "Pipeline"));
    let note = format!(
        "drawn for {} of {} K tiles; a scheme: loads take {LOAD} units, the MMAs of a K tile {MMA}",
        steps.len(),
        plan.k_loop.tiles
    );
    picture.text(8.0, 36.0, &note);
    let top = 50.0;
    let x = |time: f64| LEFT + time * UNIT;
    for stage in 0..stages {
        let y = top + ROW * stage as f64;
        picture.text(8.0, y + 15.0, &format!("stage {stage}"));
        picture.block([LEFT, y, (end + epilogue) * UNIT, ROW - 6.0], FREE, "empty", "");
    }
    let rows = top + ROW * stages as f64;
    for (index, step) in steps.iter().enumerate() {
        let y = top + ROW * (index % stages) as f64;
        let height = ROW - 6.0;
        let name = format!("K tile {index}");
        picture.block(
            [x(step.issued), y, (step.full - step.issued) * UNIT, height],
            LOADING,
            &format!("{name}: loading"),
            &index.to_string(),
        );
        picture.block(
            [x(step.full), y, (step.released - step.full) * UNIT, height],
            FULL,
            &format!("{name}: full, waits for MMAs or is read"),
            "",
        );
        for &(start, length, product) in &step.mmas {
            let (fill, what) = match product {
                0 => (BOTH, "both products"),
                1 => (FIRST, "product 1"),
                _ => (SECOND, "product 2"),
            };
            picture.block(
                [x(start), y, length * UNIT, height],
                fill,
                &format!("{name}: MMAs of {what}"),
                &index.to_string(),
            );
            // The same on the tensor core's own row.
            picture.block(
                [x(start), rows + 8.0, length * UNIT, height],
                fill,
                &format!("{name}: MMAs of {what}"),
                &index.to_string(),
            );
        }
    }
    picture.text(8.0, rows + 23.0, "tensor core");
    picture.text(8.0, rows + ROW + 23.0, "epilogue");
    let first_done = steps
        .iter()
        .flat_map(|step| &step.mmas)
        .filter(|(_, _, product)| tail && *product == 1)
        .map(|(start, length, _)| start + length)
        .fold(0.0, f64::max);
    if tail && first_done > 0.0 {
        let length = (end - first_done).max(gate);
        picture.block(
            [x(first_done), rows + ROW + 8.0, length * UNIT, ROW - 6.0],
            "#bcd9ea",
            "the gate's part that needs product 1 alone",
            "",
        );
    }
    picture.block(
        [x(end), rows + ROW + 8.0, epilogue * UNIT, ROW - 6.0],
        GATE,
        "gate and stores",
        "gate, stores",
    );
    let mut legend = vec![(LOADING, "loading"), (FULL, "full")];
    let products: Vec<u32> = steps.iter().flat_map(|step| &step.mmas).map(|mma| mma.2).collect();
    for (product, fill, text) in [
        (0, BOTH, "MMAs of both products"),
        (1, FIRST, "MMAs of product 1"),
        (2, SECOND, "MMAs of product 2"),
    ] {
        if products.contains(&product) {
            legend.push((fill, text));
        }
    }
    if tail {
        legend.push(("#bcd9ea", "gate of product 1"));
    }
    legend.extend([(GATE, "gate and stores"), (FREE, "empty")]);
    let (mut left, mut y) = (8.0, rows + 2.0 * ROW + 20.0);
    for (fill, text) in legend {
        let length = 30.0 + 6.6 * text.len() as f64;
        if left + length > width {
            (left, y) = (8.0, y + 20.0);
        }
        picture.block([left, y, 12.0, 12.0], fill, text, "");
        picture.text(left + 17.0, y + 11.0, text);
        left += length;
    }
    picture.finish()
}
