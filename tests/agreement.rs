//! Kernels of ours against what an H200 made of them, bit for bit: `hardware/ours.jsonl`, a line for each kernel of
//! `cargo xtask agreement` that a GPU has run.
//!
//! The PTX is made anew. Where it is what the GPU ran, the emulator has to leave what the GPU left. Where it has changed since, it
//! still has to, unless the kernel now sums in another order: then nobody knows what a GPU leaves, `SILUMIN_BLESS=1` takes the
//! kernel off the list, and `scripts/hardware/prepare.sh` makes the pack for another run.

use silumin_testkit::agreement::{Left, Point};
use std::collections::BTreeMap;

const FAMILIES: usize = 24;
/// Fewer tell too little.
const LEAST: usize = 96;

#[test]
fn kernels_leave_what_a_gpu_left() {
    let path = silumin_testkit::root().join("tests/hardware/ours.jsonl");
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<(&str, (Point, Left))> =
        text.lines().map(|line| (line, serde_json::from_str(line).unwrap())).collect();
    let folder = tempfile::tempdir().unwrap();
    let judged = silumin_testkit::parallel::map(&lines, |_, (_, (point, want))| {
        let got = point.write(folder.path()).unwrap_or_else(|error| panic!("{}: {error}", point.name));
        (got.buffers == want.buffers, got.ptx == want.ptx)
    });
    let mut kept = String::new();
    let mut families: BTreeMap<&str, usize> = BTreeMap::new();
    let (mut wrong, mut stale) = (Vec::new(), Vec::new());
    for ((line, (point, _)), (same, known)) in lines.iter().zip(judged) {
        match (same, known) {
            (false, true) => wrong.push(point.name.as_str()),
            (false, false) => stale.push(point.name.as_str()),
            (true, _) => {
                kept += line;
                kept += "\n";
                *families.entry(point.name.rsplit_once('-').unwrap().0).or_default() += 1;
            }
        }
    }
    assert!(wrong.is_empty(), "the emulator departs from a GPU in {wrong:?}");
    if std::env::var_os("SILUMIN_BLESS").is_some() {
        std::fs::write(&path, kept).unwrap();
    } else {
        assert!(stale.is_empty(), "no longer what a GPU has run (see the test's head): {stale:?}");
    }
    let count: usize = families.values().sum();
    assert!(families.len() == FAMILIES && count >= LEAST, "{count} kernels are left: {families:?}");
}
