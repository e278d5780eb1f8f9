//! Errors with their place in the text, and the excerpts that messages show.

use super::cursor::Syntax;

/// Bytes of a line shown in a message.
const MAX_LINE: usize = 240;
/// Limit on a message, in bytes: it contains names from the text, which may have any length.
const MAX_MESSAGE: usize = 2048;

/// An error at a line of the text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LineError {
    /// From 1.
    pub line: u32,
    /// Position in the text in bytes, if known.
    pub pos: Option<usize>,
    /// What is wrong.
    pub message: String,
}

impl LineError {
    /// An error at a line, without a position in it.
    pub fn new(line: u32, message: impl Into<String>) -> Self {
        LineError { line, pos: None, message: message.into() }
    }
}

impl From<Syntax> for LineError {
    fn from(e: Syntax) -> Self {
        LineError { line: e.line, pos: Some(e.pos), message: e.message }
    }
}

/// A line trimmed of white space; of a long line, the part around byte `column`.
pub(crate) fn excerpt(line: &str, column: usize) -> String {
    let line_end = line.trim_end().len();
    let line_start = line_end - line[..line_end].trim_start().len();
    if line_end - line_start <= MAX_LINE {
        return line[line_start..line_end].to_owned();
    }
    let last = line_end - MAX_LINE;
    let first = column.saturating_sub(MAX_LINE / 3).clamp(line_start, last);
    let (from, to) = (boundary(line, first), boundary(line, first + MAX_LINE));
    let left = if from > line_start { "... " } else { "" };
    let right = if to < line_end { " ..." } else { "" };
    format!("{left}{}{right}", &line[from..to])
}

/// Shortens a long message by cutting out its middle.
pub(crate) fn shortened(message: String) -> String {
    if message.len() <= MAX_MESSAGE {
        return message;
    }
    let head = boundary(&message, MAX_MESSAGE / 2);
    let tail = boundary(&message, message.len() - MAX_MESSAGE / 4);
    format!("{} ... ({} bytes left out) ... {}", &message[..head], tail - head, &message[tail..])
}

/// The last character boundary at or before `at`.
fn boundary(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_lines_are_whole_and_long_ones_are_cut_around_the_column() {
        assert_eq!(excerpt("  add.u32 a, b;  ", 7), "add.u32 a, b;");
        assert_eq!(excerpt("", 0), "");
        assert_eq!(excerpt("   ", 2), "");
        let long = format!("  {}HERE{} ", "x".repeat(5000), "y".repeat(5000));
        let cut = excerpt(&long, 5002);
        assert!(cut.contains("HERE") && cut.starts_with("... x") && cut.ends_with("y ..."), "{cut}");
        assert!(cut.len() <= MAX_LINE + 8);
        assert!(excerpt(&long, 0).starts_with("xxx") && excerpt(&long, usize::MAX).ends_with("yyy"));
        let umlauts = "ä".repeat(3000);
        for column in 2900..2910 {
            assert!(excerpt(&umlauts, column).chars().all(|c| "ä. ".contains(c)));
        }
        assert_eq!(shortened("short".to_owned()), "short");
        let cut = shortened("ä".repeat(1 << 20));
        assert!(cut.len() < MAX_MESSAGE && cut.contains("bytes left out"), "{}", cut.len());
    }
}
