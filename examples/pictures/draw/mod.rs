//! Pictures of a plan, as SVG.
//!
//! * `mod.rs`: which pictures there are.
//! * `svg.rs`: shapes and text.
//! * `memory.rs`: maps of shared memory and tensor memory.
//! * `pipeline.rs`: the ring of stages over time.
//! * `waits.rs`: which role waits for which, and at which barrier.

mod memory;
mod pipeline;
mod svg;
mod waits;

use silumin::codegen::plan::Plan;
use silumin::codegen::spec::SpecFile;
use std::fs;
use std::path::Path;

/// Kernels that the book draws: the name of their pictures, and their golden configuration.
const BOOK: [(&str, &str); 4] = [
    ("blackwell_pair", "tests/in/default.toml"),
    ("blackwell_overlapped", "tests/in/overlapped.toml"),
    ("hopper", "tests/in/hopper_default.toml"),
    ("hopper_weights", "tests/in/hopper_weights.toml"),
];

/// The plan of a dual GEMM that is written as TOML.
///
/// # Errors
/// The file cannot be read, is not a dual GEMM, or is illegal.
pub fn plan(file: &Path) -> Result<Plan, String> {
    let name = file.display();
    let text = fs::read_to_string(file).map_err(|e| format!("{name}: {e}"))?;
    let file: SpecFile = toml::from_str(&text).map_err(|e| format!("{name}: {e}"))?;
    let (spec, arch) = file.read().map_err(|e| format!("{name}: {e}"))?;
    spec.plan(file.shape(), arch).map_err(|errors| {
        let reasons: Vec<String> = errors.iter().map(ToString::to_string).collect();
        format!("{name}: {}", reasons.join("\n"))
    })
}

/// File names and texts of all pictures of a plan.
///
/// # Errors
/// The plan has a barrier that the picture of waits knows nothing of.
pub fn pictures(name: &str, plan: &Plan) -> Result<Vec<(String, String)>, String> {
    Ok(vec![
        (format!("{name}_memory.svg"), memory::draw(plan)),
        (format!("{name}_pipeline.svg"), pipeline::draw(plan)),
        (format!("{name}_waits.svg"), waits::draw(plan)?),
    ])
}

/// The pictures that `book/src/pictures` holds.
///
/// # Errors
/// As [`plan`] and [`pictures`].
pub fn of_the_book(root: &Path) -> Result<Vec<(String, String)>, String> {
    let mut all = Vec::new();
    for (name, file) in BOOK {
        all.extend(pictures(name, &plan(&root.join(file))?)?);
    }
    Ok(all)
}

/// One line on what a picture shows.
fn title(plan: &Plan, what: &str) -> String {
    let tile = plan.tile;
    format!("{what}: {}, {}, tile {} x {} x {}", plan.problem, plan.arch, tile.m, tile.n, tile.k)
}
