//! Pictures of kernels: the committed ones are what the command draws, and every golden kernel can be drawn.

use silumin_cli::view;
use std::fs;
use std::path::Path;

#[test]
fn the_pictures_of_the_book_are_what_the_command_draws() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let pictures = xtask::pictures::of_the_book().unwrap();
    assert_eq!(pictures.len(), 12);
    for (name, svg) in pictures {
        let path = root.join("book/src/pictures").join(&name);
        let drawn = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert!(svg == drawn, "{name} is not drawn from today's plan: run `cargo xtask pictures`");
    }
}

#[test]
fn every_golden_kernel_can_be_drawn() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/in");
    let mut kernels = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let file = entry.unwrap().path();
        let plan = view::plan(&file).unwrap();
        let pictures = view::pictures("kernel", &plan).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
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
