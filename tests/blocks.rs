//! The guide's table of a block's predicted times is that of `evidence/blocks.jsonl`, and blocks can be predicted.

use silumin_testkit::root;
use std::fs;
use xtask::blocks::{BLOCKS, WIDTHS, line, read_lines, table};

#[test]
fn the_page_has_the_table_of_the_evidence() {
    let lines = read_lines().unwrap();
    let page = fs::read_to_string(root().join("book/src/guide/mlp.md")).unwrap();
    assert!(page.contains(&table(&lines)), "book/src/guide/mlp.md lacks this table:\n{}", table(&lines));
    let names: Vec<&str> = lines.iter().map(|line| &*line.format).collect();
    assert_eq!(names, BLOCKS.map(|(_, _, name)| name), "run `cargo xtask blocks`");
    assert!(lines.iter().all(|line| line.widths == WIDTHS));
}

/// More tokens take no less time, and the large block of the table takes more than a small one.
#[test]
fn a_small_block_is_predicted() {
    let large = read_lines().unwrap();
    for (index, (arch, format, name)) in BLOCKS.into_iter().enumerate().step_by(3) {
        let small = line(arch, format, name, [256, 384]).unwrap();
        assert_eq!((&small.chip, &small.format), (&large[index].chip, &large[index].format));
        assert!(small.us[0] > 0.0 && small.us[0] <= small.us[3], "{small:?}");
        assert!(small.us.iter().zip(large[index].us).all(|(small, large)| *small < large), "{small:?}");
    }
}
