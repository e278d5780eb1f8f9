//! The page "Seven ideas, and what each is worth" says what `evidence/ideas.jsonl` says, and that says what is predicted now.

use silumin_testkit::sample;
use std::collections::BTreeMap;
use std::fs;
use xtask::ideas::{self, IDEAS, Line, SHAPES};

#[test]
fn the_page_has_the_tables_of_the_evidence() {
    let page = fs::read_to_string(silumin_testkit::root().join("book/src/ideas.md")).unwrap();
    let lines = ideas::read().unwrap();
    for idea in &IDEAS {
        let section = page.split("\n## ").find(|section| section.starts_with(idea.name)).unwrap_or_default();
        let table = ideas::table(idea, &lines);
        assert!(!table.contains("not predicted"), "{}: run `cargo xtask ideas`", idea.name);
        assert!(section.contains(&table), "{}: book/src/ideas.md lacks this table:\n{table}", idea.name);
    }
    let steps: usize = IDEAS.iter().map(|idea| idea.steps.len()).sum();
    assert_eq!(lines.len(), steps * SHAPES.len());
}

/// Rows have the steps' knobs, and those are accepted or refused as the rows say.
#[test]
fn what_a_row_says_is_refused_is_refused() {
    let lines = ideas::read().unwrap();
    for (idea, step) in IDEAS.iter().flat_map(|idea| idea.steps.iter().map(move |step| (idea, step))) {
        for shape in SHAPES {
            let of = |line: &&Line| (&*line.idea, &*line.step, line.shape) == (idea.name, step.name, shape);
            let line = lines.iter().find(of).unwrap();
            let named = |knobs: &BTreeMap<String, String>, step: &[(&str, &str)]| {
                knobs.len() == step.len() && step.iter().all(|(knob, value)| knobs[*knob] == *value)
            };
            assert!(named(&line.before, step.before) && named(&line.after, step.after), "{line:?}");
            let accepted = |knobs| ideas::kernel(shape, knobs).unwrap().is_ok();
            assert!(accepted(step.before), "{line:?}");
            assert_eq!(accepted(step.after), line.after_us.is_some(), "{line:?}");
            assert_eq!(line.refused.is_empty(), line.after_us.is_some(), "{line:?}");
        }
    }
}

/// One row, which the commit chooses, is predicted again.
#[test]
fn a_row_is_predicted_again() {
    let small: Vec<Line> =
        ideas::read().unwrap().into_iter().filter(|line| line.shape == [256, 3072, 4096]).collect();
    let line = &small[sample::turn(small.len())];
    let recorded = line.after_us.unwrap_or_else(|| panic!("{line:?}: choose a row that is not refused"));
    let idea = IDEAS.iter().find(|idea| idea.name == line.idea).unwrap();
    let step = idea.steps.iter().find(|step| step.name == line.step).unwrap();
    let now = ideas::time(line.shape, step.after, &line.chip).unwrap().unwrap();
    let change = now / recorded - 1.0;
    assert!(change.abs() < 0.01, "{line:?}: {now:.2} us now; run `cargo xtask ideas`");
}
