//! The tuning command, on the emulated device and on the emulated driver.

use clap::Parser;
use silumin_cli::tune::{Flags, child, execute};
use silumin_testkit::driver;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

/// What the command starts its children with: this program, of which the test below is to be the child.
fn own() -> std::io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args([
        "--exact",
        &silumin_testkit::test_name(module_path!(), CHILD),
        "--nocapture",
        "--test-threads=1",
        "--",
    ]);
    Ok(command)
}

const CHILD: &str = "a_child_of_the_command";

#[test]
fn a_child_of_the_command() {
    // Behind the second `--` are the command's flags, which the harness takes for names of tests.
    let flags: Vec<String> = std::env::args().skip_while(|argument| argument != "--").collect();
    if flags.len() > 1 {
        // The harness has begun a line.
        writeln!(std::io::stdout()).unwrap();
        child(&Flags::try_parse_from(flags).unwrap());
    }
}

#[test]
fn a_kernel_that_takes_its_process_along_costs_only_itself() {
    const NAME: &str = "a_kernel_that_takes_its_process_along_costs_only_itself";
    if driver::role().is_none() {
        // A context that is lost, a process that ends, one that never ends, one after the other.
        let mishap = "fail:stages = 1,;abort:stages = 3,;hang:stages = 2,";
        driver::run(module_path!(), NAME, "parent", &[("SILUMIN_EMULATED_MISHAP", mishap)]);
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (file, space) = (folder.path().join("file"), folder.path().join("space"));
    std::fs::write(&space, "stages=1|2|3|4\n").unwrap();
    let fixed = ["--device", "cuda:0", "--shapes", "40x64x1024", "--knobs", "cta_group=1 tile=128x64x128"];
    let quick = [
        "--budget",
        "4",
        "--keep",
        "8",
        "--patience",
        "20",
        "--top",
        "9",
        "--space",
        space.to_str().unwrap(),
    ];
    let said = run(&file, &[&fixed[..], &quick[..]].concat()).unwrap();
    let failed = |stages: u32| {
        said.lines().any(|line| line.contains("FAILED: ") && line.ends_with(&format!("  stages={stages}")))
    };
    assert_eq!((1..=4).filter(|stages| failed(*stages)).collect::<Vec<_>>(), [1, 2, 3], "{said}");
    assert!(said.contains("no word for 20 s") && said.contains("SIGABRT"), "{said}");
    // Others were timed, one of them won, and the result is kept.
    assert!(said.contains(" turns") && said.contains("| 40 x 64 x 1024 | "), "{said}");
    let listed = run(&file, &["--device", "cuda:0", "--list"]).unwrap();
    assert!(listed.contains("1 results, 1 of them for"), "{listed}");
    let again = run(&file, &[&fixed[..], &quick[..]].concat()).unwrap();
    assert!(again.contains("there is a result"), "{again}");
}

/// What the command prints, or its error.
fn run(file: &Path, arguments: &[&str]) -> Result<String, String> {
    let mut out = Vec::new();
    let line = ["silumin-tune", "--out", file.to_str().unwrap()].into_iter().chain(arguments.iter().copied());
    let flags = Flags::try_parse_from(line).map_err(|error| error.to_string())?;
    execute(&flags, &own, &mut out).map_err(|error| error.to_string())?;
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
    assert!(
        said.contains("predicted ") && said.contains("; not measured") && said.contains("illegal: "),
        "{said}"
    );
    let row = said.lines().find(|line| line.starts_with("| 8 x 64 x 256 in 2 groups of rows | "));
    assert!(row.is_some_and(|row| row.contains("| predicted |") && !row.contains("| - |")), "{said}");
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
    assert!(run(&file, &own).unwrap().contains("; of 3 kernels 0 illegal"));
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
        (
            &["--shapes", "40x64x256", "--space", "/dev/zero"],
            "a device: name a regular file of at most 1048576 bytes",
        ),
        (&["--shapes", "40x64x256", "--space", "/"], "a directory"),
    ] {
        let error = run(&file, arguments).unwrap_err();
        assert!(error.contains(text), "{arguments:?}: {error}");
    }
    std::fs::write(&file, "not a tuning file").unwrap();
    assert!(run(&file, &["--list"]).unwrap_err().contains("move it away"));
}
