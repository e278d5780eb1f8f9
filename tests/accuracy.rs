//! The guide's table of errors is that of `evidence/accuracy.jsonl`, and the file says what blocks do now.

use std::fs;
use xtask::accuracy::{Block, SIZES, WAYS, read_lines, table};

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
        let pairs = [(small.weights, line.weights), (small.normal, line.normal)];
        for (small, large) in pairs {
            // A weight of bf16 is exact.
            let about = (large / 1.4..=large * 1.4).contains(&small);
            assert!(about, "{}: {small} beside {large}", way.name);
        }
    }
}
