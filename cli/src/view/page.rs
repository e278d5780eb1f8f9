//! The page: one HTML file without a reference to any other.

use super::shown::Shown;
use std::error::Error;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The page of one kernel, or of two side by side.
///
/// # Errors
/// The kernels cannot be written as JSON.
pub fn html(kernels: &[Shown]) -> Result<String, Box<dyn Error>> {
    let title = kernels.iter().map(|kernel| kernel.name.as_str()).collect::<Vec<_>>().join(" beside ");
    // In a script element nothing but its own end ends it, and JSON has no use for a bare `<`.
    let data = serde_json::to_string(kernels)?.replace('<', "\\u003c");
    let escaped = title.replace('&', "&amp;").replace('<', "&lt;");
    Ok(format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>{escaped}</title>\n<style>\n{STYLE}</style>\n\
         </head>\n<body>\n<main id=\"kernels\"></main>\n<script type=\"application/json\" id=\"data\">{data}</script>\n<script>\n{SCRIPT}\
         </script>\n</body>\n</html>\n"
    ))
}
