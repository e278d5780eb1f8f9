//! Pictures of kernels: the committed ones are what the command draws, and every golden kernel can be drawn.

use silumin_cli::view;
use std::fs;

#[test]
fn the_pictures_of_the_book_are_what_the_command_draws() {
    let root = &silumin_testkit::root();
    let pictures = xtask::pictures::of_the_book().unwrap();
    assert_eq!(pictures.len(), 15);
    for (name, svg) in pictures {
        let path = root.join("book/src/pictures").join(&name);
        let drawn = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert!(
            svg == drawn,
            "{name} is not drawn from today's plan or evidence: run `cargo xtask pictures`"
        );
    }
}

/// The time that a picture of a timeline says a launch takes, in us.
fn predicted(svg: &str) -> f64 {
    let before = svg.split(" us a launch").next().unwrap();
    before.rsplit(' ').next().unwrap().parse().unwrap()
}

/// The model of time moves by parts of a percent with every number of a chip; the picture is held to what it says.
#[test]
fn the_picture_of_the_readme_shows_what_the_simulator_predicts() {
    let path = silumin_testkit::root().join("book/src/pictures/glance.svg");
    let (committed, today) = (fs::read_to_string(path).unwrap(), xtask::pictures::glance().unwrap());
    let texts = |svg: &str| -> Vec<String> {
        let texts = svg.split("<text ").skip(1).map(|text| text.split(['>', '<']).nth(1).unwrap().to_owned());
        texts.filter(|text| !text.contains(" us")).collect()
    };
    assert_eq!(texts(&committed), texts(&today), "run `cargo xtask pictures`");
    let ratio = predicted(&committed) / predicted(&today);
    assert!((0.95..1.05).contains(&ratio), "{ratio}: run `cargo xtask pictures`");
    for row in
        ["TMA", "tensor core", "warp 8: loads", "warp 9: MMAs", "warp 0: epilogue", "product 1", "stage 6"]
    {
        assert!(today.contains(row), "{row}");
    }
}

#[test]
fn the_readme_quotes_the_evidence() {
    let root = &silumin_testkit::root();
    let readme = fs::read_to_string(root.join("README.md")).unwrap();
    let beside = |name: &str| xtask::plots::beside(root, name).unwrap();
    let (mean, worst) = beside("h200_bf16").over_the_best();
    let fp8 = beside("h200_e4m3").over_the_best().0;
    let weights = beside("h200_nvfp4_weights").over_the_best().0;
    let predicted = xtask::plots::predicted_mean(root).unwrap();
    let kernels: u32 = xtask::plots::compared(root).unwrap().values().map(|family| family.0).sum();
    for quoted in [
        format!("**{mean:.3}: measured on an H200.**"),
        format!("worst is {worst:.3}"),
        format!("In e4m3 it is {fp8:.3} of cuBLAS FP8"),
        format!("with NVFP4 weights {weights:.3} of QuACK"),
        format!("**{predicted:.1} us: predicted on a B200, not measured.**"),
        format!("**{kernels} of {kernels}: bit for bit.**"),
    ] {
        assert!(readme.contains(&quoted), "README.md does not say `{quoted}`");
    }
}

#[test]
fn every_golden_kernel_can_be_drawn() {
    let folder = silumin_testkit::root().join("tests/in");
    let mut kernels = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let file = entry.unwrap().path();
        let plan = view::plan(&file).unwrap();
        let pictures = view::pictures("kernel", &plan);
        let [memory, pipeline, waits] = [0, 1, 2].map(|index| pictures[index].1.as_str());
        for region in &plan.smem.regions {
            assert!(memory.contains(&region.name.to_string()), "{}: {}", file.display(), region.name);
        }
        assert!(pipeline.contains(&format!("stage {}<", plan.stages - 1)), "{}", file.display());
        // Parts of a stage lie inside of it: no box begins behind the map's right edge.
        let boxes = memory.split("<rect x=\"").skip(1);
        let starts = boxes.filter_map(|text| text.split('"').next()?.parse::<f64>().ok());
        assert!(starts.fold(0.0, f64::max) < 952.0, "{}", file.display());
        for barrier in &plan.barriers {
            assert!(waits.contains(&barrier.kind.to_string()), "{}: {}", file.display(), barrier.kind);
        }
        kernels += 1;
    }
    assert!(kernels > 50, "{kernels}");
}
