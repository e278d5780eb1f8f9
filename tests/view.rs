//! The page of `silumin view`: one file that needs nothing else, with what is known of a kernel in it.

use serde_json::Value;
use silumin_cli::view::{self, page};
use std::path::PathBuf;

fn golden(name: &str) -> PathBuf {
    silumin_testkit::root().join("tests/in").join(format!("{name}.toml"))
}

/// What the page's script reads.
fn data(html: &str) -> Vec<Value> {
    let start = html.split("id=\"data\">").nth(1).unwrap();
    serde_json::from_str(start.split("</script>").next().unwrap()).unwrap()
}

/// No address, no file beside it: it opens offline.
fn stands_alone(html: &str) {
    for reference in ["src=", "href=", "@import", "url(", "import(", "fetch("] {
        assert!(!html.contains(reference), "{reference}");
    }
    let addresses = html.matches("http").count();
    assert_eq!(
        addresses,
        html.matches("http://www.w3.org/2000/svg").count(),
        "an address besides SVG's name"
    );
    assert!(html.starts_with("<!doctype html>") && html.ends_with("</html>\n"));
}

#[test]
fn a_page_has_what_is_known_of_two_kernels() {
    let html = page(&[&golden("ragged"), &golden("hopper_vectors")], true).unwrap();
    stands_alone(&html);
    let kernels = data(&html);
    assert_eq!(kernels.len(), 2);
    for (kernel, engine) in kernels.iter().zip(["tcgen05.mma", "wgmma.mma_async"]) {
        let ptx = kernel["ptx"].as_array().unwrap();
        let text = |line: u64| ptx[line as usize - 1].as_str().unwrap();
        let launch = &kernel["launches"][0];
        let time = &launch["time"]["Ok"];
        assert!(time["time"].as_f64().unwrap() > 1000.0);
        let rows = time["rows"].as_array().unwrap();
        for row in ["TMA", "tensor core", "warp 0"] {
            assert!(rows.iter().any(|name| name.as_str().unwrap().contains(row)), "{row}: {rows:?}");
        }
        // Bars of the tensor core name lines with products, and waits name what ended them.
        let bars = time["bars"].as_array().unwrap();
        let kinds = time["kinds"].as_array().unwrap();
        let of = |name: &str| kinds.iter().position(|kind| kind[0] == name).unwrap() as u64;
        let products = bars.iter().filter(|bar| bar[3] == of("MMAs"));
        let mut count = 0;
        for bar in products {
            assert!(text(bar[4].as_u64().unwrap()).contains(engine), "{bar}");
            count += 1;
        }
        assert!(count > 3, "{count}");
        let ended = bars.iter().filter(|bar| bar[3] == of("waits") && bar[5] != 0).count();
        assert!(ended > 3, "{ended}");
        // Every cost and every machine instruction belongs to a line with an instruction.
        let costs = launch["costs"].as_object().unwrap();
        assert!(costs.len() > 100, "{}", costs.len());
        for line in costs.keys() {
            assert!(text(line.parse().unwrap()).contains(';'), "line {line}");
        }
        let sass = launch["sass"].as_object().expect("the tests' tools are installed");
        assert!(
            sass.len() > 100
                && sass
                    .values()
                    .flat_map(|of| of.as_array().unwrap())
                    .any(|i| { i.as_str().unwrap().contains("MMA") })
        );
        assert_eq!(launch["findings"].as_array().unwrap().len(), 0);
        let rules: Vec<_> =
            kernel["knobs"].as_array().unwrap().iter().map(|knob| knob[2].as_str().unwrap()).collect();
        assert!(rules.iter().any(|rule| rule.starts_with("auto: ")) && !rules.contains(&""), "{rules:?}");
        assert_eq!(kernel["pictures"].as_array().unwrap().len(), 2);
    }
}

#[test]
fn a_launch_file_is_shown_with_its_findings() {
    let file = silumin_testkit::root().join("tests/view/race.toml");
    let html = page(&[&file], true).unwrap();
    stands_alone(&html);
    let kernel = &data(&html)[0];
    let findings = kernel["launches"][0]["findings"].as_array().unwrap();
    let race = findings.iter().find(|finding| finding["kind"] == "RaceShared").expect("a race");
    let ptx = kernel["ptx"].as_array().unwrap();
    let text = ptx[race["line"].as_u64().unwrap() as usize - 1].as_str().unwrap();
    assert!(text.contains("[word]"), "{race}");
    assert_eq!(kernel["knobs"].as_array().unwrap().len(), 0);
    // Not run, it says so instead of claiming that nothing is wrong.
    assert!(data(&page(&[&file], false).unwrap())[0]["launches"][0]["findings"].is_null());
}

#[test]
fn the_verb_writes_a_page_and_refuses_what_it_cannot_show() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let config = golden("ragged");
    let run = |more: &[&str]| {
        let mut arguments = vec!["view", config.to_str().unwrap(), "--out", out.to_str().unwrap()];
        arguments.extend(more);
        view::run(&view::command().try_get_matches_from(arguments).unwrap())
            .map_err(|error| error.to_string())
    };
    let written = run(&["--no-verify", "--beside", "stages=2", "--issue", "table", "--svg"]).unwrap();
    assert_eq!(written.len(), 4, "{written:?}");
    let html = std::fs::read_to_string(&written[0]).unwrap();
    stands_alone(&html);
    let kernels = data(&html);
    assert!(kernels[1]["name"].as_str().unwrap().ends_with("stages=2"));
    assert!(
        kernels[0]["launches"][0]["sass"].is_null()
            && kernels[0]["launches"][0]["issue"] == "a table by opcode"
    );
    for (arguments, said) in [
        (&["--beside", "stages"][..], "`stages` is not KNOB=VALUE"),
        (&["--beside", "depth=2"], "depth"),
        (&["--time", "off"], "a page has a timeline"),
        (&["--time", "b100"], "b100"),
    ] {
        let errors = run(arguments).unwrap_err();
        assert!(errors.contains(said), "{arguments:?}: {errors}");
    }
}
