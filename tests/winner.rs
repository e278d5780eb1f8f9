//! The page about the benchmark's leading kernel has the tables of `evidence/winner.jsonl`, whose rows are of today's kernel.

use silumin_testkit::root;
use std::fs;
use xtask::winner;

#[test]
fn the_page_has_the_tables_of_the_evidence() {
    let lines = winner::read_lines().unwrap();
    let page = fs::read_to_string(root().join("book/src/winner.md")).unwrap();
    for table in winner::tables(&lines) {
        assert!(page.contains(&table), "book/src/winner.md lacks this table:\n{table}");
    }
    // Both kernels on each problem, and ours as it is made today.
    assert_eq!(lines.len(), winner::KERNELS.len() * winner::PROBLEMS.len());
    let of = |line: &&winner::Line| line.kernel == "silumin" && line.shape == winner::PROBLEMS[2].0;
    let (recorded, now) = (lines.iter().find(of).unwrap(), winner::ours(winner::PROBLEMS[2].0, "").unwrap());
    assert_eq!((recorded.us, &recorded.phases), (now.us, &now.phases), "run `cargo xtask winner`");
}
