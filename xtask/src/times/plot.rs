//! Plots predicted against measured times on logarithmic axes.

use super::rows::{Line, Set};
use std::fmt::Write;

/// Left, top, and side of the square of the plot.
const LEFT: f64 = 70.0;
const TOP: f64 = 56.0;
const SIDE: f64 = 560.0;
/// A legend's line.
const STEP: f64 = 20.0;

/// Colours that are distinct with colour blindness (Okabe and Ito), and marks for further sets.
const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];

fn mark(index: usize, x: f64, y: f64) -> String {
    let colour = COLOURS[index % COLOURS.len()];
    let style = format!("fill=\"{colour}\" fill-opacity=\"0.75\"");
    match index / COLOURS.len() {
        0 => format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" {style}/>"),
        1 => format!("<rect x=\"{:.1}\" y=\"{:.1}\" width=\"7\" height=\"7\" {style}/>", x - 3.5, y - 3.5),
        _ => format!("<path d=\"M{x:.1} {:.1}l4.5 8h-9z\" {style}/>", y - 5.0),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The plot of all lines, coloured by set, as SVG.
pub fn svg(sets: &[Set], lines: &[Line]) -> String {
    let times = || lines.iter().flat_map(|l| [l.measured_us, l.predicted_us]);
    let low = times().fold(f64::INFINITY, f64::min).log10();
    let high = times().fold(f64::NEG_INFINITY, f64::max).log10();
    let (low, high) = if low <= high { (low - 0.08, high + 0.08) } else { (0.0, 1.0) };
    let at = |us: f64| (us.log10() - low) / (high - low) * SIDE;
    let x = |us: f64| LEFT + at(us);
    let y = |us: f64| TOP + SIDE - at(us);
    let (right, bottom) = (LEFT + SIDE, TOP + SIDE);
    let width = right + 330.0;
    let height = bottom + 60.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"{LEFT}\" y=\"28\" font-size=\"16\">Predicted and measured times of kernels, microseconds</text>\n\
         <clipPath id=\"plot\"><rect x=\"{LEFT}\" y=\"{TOP}\" width=\"{SIDE}\" height=\"{SIDE}\"/></clipPath>\n"
    );
    let ends = [10f64.powf(low), 10f64.powf(high)];
    // Bands of 25 and of 10 %.
    for (part, fill) in [(0.25, "#f1f1f1"), (0.1, "#e2e2e2")] {
        let corners =
            [(ends[0], 1.0 - part), (ends[1], 1.0 - part), (ends[1], 1.0 + part), (ends[0], 1.0 + part)];
        let points: Vec<String> =
            corners.iter().map(|(us, by)| format!("{:.1},{:.1}", x(*us), y(us * by))).collect();
        let _ = writeln!(
            out,
            "<polygon points=\"{}\" fill=\"{fill}\" clip-path=\"url(#plot)\"/>",
            points.join(" ")
        );
    }
    let _ = writeln!(
        out,
        "<line x1=\"{LEFT}\" y1=\"{bottom}\" x2=\"{right}\" y2=\"{TOP}\" stroke=\"#888\"/>\n\
         <rect x=\"{LEFT}\" y=\"{TOP}\" width=\"{SIDE}\" height=\"{SIDE}\" fill=\"none\" stroke=\"#444\"/>"
    );
    for decade in (low.floor() as i32)..=(high.ceil() as i32) {
        for digit in [1.0, 2.0, 5.0] {
            let us = digit * 10f64.powi(decade);
            if us < ends[0] || us > ends[1] {
                continue;
            }
            let _ = writeln!(
                out,
                "<path d=\"M{0:.1} {bottom}v5M{LEFT} {1:.1}h-5\" stroke=\"#444\"/><text x=\"{0:.1}\" y=\"{2:.1}\" text-anchor=\"middle\">{us}</text><text x=\"{3:.1}\" y=\"{4:.1}\" text-anchor=\"end\">{us}</text>",
                x(us),
                y(us),
                bottom + 19.0,
                LEFT - 8.0,
                y(us) + 4.5
            );
        }
    }
    let middle = LEFT + SIDE / 2.0;
    let _ = writeln!(
        out,
        "<text x=\"{middle}\" y=\"{:.1}\" text-anchor=\"middle\">measured, us</text>\n\
         <text transform=\"translate(18 {:.1}) rotate(-90)\" text-anchor=\"middle\">predicted, us</text>",
        bottom + 44.0,
        TOP + SIDE / 2.0
    );
    let shown: Vec<&Set> = sets.iter().filter(|set| lines.iter().any(|l| l.set == set.name)).collect();
    for (index, set) in shown.iter().enumerate() {
        for line in lines.iter().filter(|l| l.set == set.name) {
            let title = format!(
                "{}, {}: {} us measured, {} predicted ({} to {})",
                line.kernel, line.problem, line.measured_us, line.predicted_us, line.low_us, line.high_us
            );
            let _ = writeln!(
                out,
                "<g><title>{}</title>{}</g>",
                escaped(&title),
                mark(index, x(line.measured_us), y(line.predicted_us))
            );
        }
        let top = TOP + 12.0 + STEP * index as f64;
        let _ = writeln!(
            out,
            "{}<text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            mark(index, right + 20.0, top - 4.5),
            right + 32.0,
            top,
            escaped(&set.title)
        );
    }
    let top = TOP + 24.0 + STEP * shown.len() as f64;
    let _ = writeln!(
        out,
        "<text x=\"{:.1}\" y=\"{top:.1}\" fill=\"#555\">bands: 10 and 25 % off the measured time</text>\n</svg>",
        right + 14.0
    );
    out
}
