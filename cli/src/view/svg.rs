//! A picture in the making: shapes and text with a size that grows as they come.

use std::fmt::Write;

/// Colours, by what they stand for. Each is light enough for black text.
pub const FILLS: [&str; 8] =
    ["#f2a541", "#8fbf6f", "#7fb3d5", "#d9a5c8", "#c9b458", "#9fd3c7", "#e39a86", "#b3b3d9"];
/// What is not used.
pub const FREE: &str = "#ececec";

/// An SVG picture on a white ground.
pub struct Picture {
    width: f64,
    height: f64,
    body: String,
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

impl Picture {
    /// An empty picture of so many pixels across, with a title.
    pub fn new(width: f64, title: &str) -> Self {
        let mut picture = Picture { width, height: 28.0, body: String::new() };
        picture.text(8.0, 18.0, title);
        picture
    }

    fn grow(&mut self, y: f64) {
        self.height = self.height.max(y + 8.0);
    }

    /// Text whose base line starts at `x`, `y`.
    pub fn text(&mut self, x: f64, y: f64, text: &str) {
        self.grow(y);
        let _ = writeln!(self.body, "<text x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escape(text));
    }

    /// Text around `x`; one that `stands_out` has a white rim, so that lines do not cross it.
    pub fn centred(&mut self, x: f64, y: f64, text: &str, stands_out: bool) {
        self.grow(y);
        let halo = if stands_out { " paint-order=\"stroke\" stroke=\"#fff\" stroke-width=\"5\"" } else { "" };
        let _ = writeln!(
            self.body,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\"{halo}>{}</text>",
            escape(text)
        );
    }

    /// A filled box, with what a pointer over it shows, and text inside where that fits.
    pub fn block(&mut self, [x, y, width, height]: [f64; 4], fill: &str, tip: &str, label: &str) {
        self.grow(y + height);
        let _ = writeln!(
            self.body,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{fill}\" stroke=\"#555\" \
             stroke-width=\"0.5\"><title>{}</title></rect>",
            escape(tip)
        );
        if 6.5 * label.chars().count() as f64 + 4.0 <= width {
            self.centred(x + width / 2.0, y + height / 2.0 + 4.0, label, false);
        }
    }

    /// A thin line, dashed where it only guides the eye.
    pub fn line(&mut self, [x1, y1, x2, y2]: [f64; 4], dashed: bool) {
        self.grow(y1.max(y2));
        let dash = if dashed { " stroke-dasharray=\"3 3\"" } else { "" };
        let _ = writeln!(
            self.body,
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"#555\"{dash}/>"
        );
    }

    /// A filled box without a rim, with what a pointer over it shows.
    pub fn bare(&mut self, [x, y, width, height]: [f64; 4], fill: &str, tip: &str) {
        self.grow(y + height);
        let _ = writeln!(
            self.body,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{fill}\"><title>{}</title></rect>",
            escape(tip)
        );
    }

    /// A dot, with what a pointer over it shows.
    pub fn dot(&mut self, [x, y]: [f64; 2], radius: f64, fill: &str, tip: &str) {
        self.grow(y + radius);
        let _ = writeln!(
            self.body,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius:.1}\" fill=\"{fill}\" stroke=\"#333\" \
             stroke-width=\"0.5\"><title>{}</title></circle>",
            escape(tip)
        );
    }

    /// Text that ends at `x`.
    pub fn right(&mut self, x: f64, y: f64, text: &str) {
        self.grow(y);
        let _ = writeln!(
            self.body,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"end\">{}</text>",
            escape(text)
        );
    }

    /// A level arrow.
    pub fn arrow(&mut self, from: f64, to: f64, y: f64) {
        self.line([from, y, to, y], false);
        let back = if to > from { -7.0 } else { 7.0 };
        let _ = writeln!(
            self.body,
            "<path d=\"M{to:.1} {y:.1} l{back:.1} -4 l0 8 z\" fill=\"#333\" stroke=\"none\"/>"
        );
    }

    /// The picture as a file's text.
    pub fn finish(self) -> String {
        let Picture { width, height, body } = self;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{body}</svg>\n"
        )
    }
}
