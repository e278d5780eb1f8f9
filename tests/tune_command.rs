//! The tuning command, on the emulated device.

#[path = "../examples/silumin-tune.rs"]
#[allow(dead_code)]
mod silumin_tune;

use clap::Parser;
use silumin_tune::{Flags, execute};
use std::path::Path;

/// What the command prints, or its error.
fn run(file: &Path, arguments: &[&str]) -> Result<String, String> {
    let mut out = Vec::new();
    let line = ["silumin-tune", "--out", file.to_str().unwrap()].into_iter().chain(arguments.iter().copied());
    let flags = Flags::try_parse_from(line).map_err(|error| error.to_string())?;
    execute(&flags, &mut out).map_err(|error| error.to_string())?;
    Ok(String::from_utf8(out).unwrap())
}

#[test]
fn shapes_are_tuned_once_listed_and_merged() {
    let folder = tempfile::tempdir().unwrap();
    let [one, other] = ["one", "other"].map(|name| folder.path().join(name));
    let said = run(&one, &["--shapes", "130x128x512,8x64x256:g2", "--keep", "6"]).unwrap();
    assert!(
        said.contains("130 x 128 x 512, nvfp4 x nvfp4 -> f16: ") && said.contains("right on the emulator"),
        "{said}"
    );
    assert!(said.contains("no time was measured") && said.contains("illegal: "), "{said}");
    assert!(said.contains("| 8 x 64 x 256 in 2 groups of rows | - | - | "), "{said}");
    // The second run goes on behind what is there.
    let again = run(&one, &["--shapes", "130x128x512,1x64x64"]).unwrap();
    assert!(
        again.contains("130 x 128 x 512: there is a result: ") && again.contains("| 1 x 64 x 64 |"),
        "{again}"
    );
    let anew = run(&one, &["--shapes", "130x128x512", "--again", "--keep", "4"]).unwrap();
    assert!(anew.contains("| 130 x 128 x 512 |"), "{anew}");
    let hopper =
        ["--device", "emulated:sm_90a", "--formats", "bf16,nvfp4,bf16", "--shapes", "4x64x256", "--knobs"];
    run(&other, &[&hopper[..], &["stages=2"]].concat()).unwrap();
    let merged = run(&one, &["--merge", other.to_str().unwrap()]).unwrap();
    assert!(
        merged.contains("1 of 1 results are new or better") && merged.contains("4 results, 3 before"),
        "{merged}"
    );
    let listed = run(&one, &["--list"]).unwrap();
    assert!(listed.contains("not used on emulated sm_100a: 4 x 64 x 256, bf16 x nvfp4 -> bf16"), "{listed}");
    assert!(listed.contains("it was found on emulated sm_90a (9.0, 132 SMs)"), "{listed}");
    assert!(listed.contains("4 results, 3 of them for emulated sm_100a"), "{listed}");
}

#[test]
fn a_space_of_one_s_own_is_tried_and_what_is_wrong_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let (file, space) = (folder.path().join("file"), folder.path().join("space"));
    std::fs::write(&space, "stages=1|2 # few\n").unwrap();
    let own = ["--shapes", "40x64x256", "--space", space.to_str().unwrap()];
    assert!(run(&file, &own).unwrap().contains("; of 3 0 illegal"));
    std::fs::write(&space, "stages=1|2 stage=3\n").unwrap();
    for (arguments, text) in [
        (&own[..], "did you mean `stages`"),
        (&["--shapes", "40x64"], "MxNxK"),
        (&["--shapes", "40x64x256:q2"], "MxNxK"),
        (&["--device", "cuda"], "emulated:CHIP"),
        (&["--device", "emulated:sm_1"], "sm_100a"),
        (&["--formats", "bf16"], "A,B,C"),
        (&["--knobs", "stages"], "NAME=VALUE"),
        (&["--shapes", "8x64x40", "--again"], "multiple of 32"),
        (&["--merge", "/nonexistent"], "/nonexistent"),
    ] {
        let error = run(&file, arguments).unwrap_err();
        assert!(error.contains(text), "{arguments:?}: {error}");
    }
    std::fs::write(&file, "not a tuning file").unwrap();
    assert!(run(&file, &["--list"]).unwrap_err().contains("move it away"));
}
