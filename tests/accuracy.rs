//! The guide's table of errors is that of `evidence/accuracy.jsonl`, and the file says what blocks do now.

use std::fs;
use xtask::accuracy::{Block, Line, SIZES, WAYS, read_lines, table};

#[test]
fn the_page_has_the_table_of_the_evidence() {
    let lines = read_lines().unwrap();
    let page = fs::read_to_string(silumin_testkit::root().join("book/src/guide/mlp.md")).unwrap();
    assert!(page.contains(&table(&lines)), "book/src/guide/mlp.md lacks this table:\n{}", table(&lines));
    let names: Vec<&str> = lines.iter().map(|line| &*line.way).collect();
    assert_eq!(names, WAYS.each_ref().map(|way| way.name), "run `cargo xtask accuracy`");
    assert!(lines.iter().all(|line| line.sizes == SIZES));
}

/// A small block loses about as much as the large one: errors do not depend on sizes.
#[test]
fn a_small_block_loses_what_the_table_says() {
    let block = Block::new([256, 384, 8]);
    for (way, line) in WAYS.iter().zip(read_lines().unwrap()) {
        let small = block.run(way).unwrap();
        let columns = |line: &Line| [line.weights, line.normal, line.outliers];
        // A small block has two larger channels, which carry most of its error.
        let allowed = [1.4, 1.4, 2.0];
        for ((small, large), allowed) in columns(&small).into_iter().zip(columns(&line)).zip(allowed) {
            let about = (large / allowed..=large * allowed).contains(&small);
            assert!(about, "{}: {small} beside {large}", way.name);
        }
    }
}
