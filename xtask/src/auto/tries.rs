//! Knobs beside `auto`, without a search.

use super::board::seconds;
use super::problems::Problem;
use silumin::Arch;
use silumin::codegen::config::Config;
use silumin::runtime::predict::Chip;
use silumin::runtime::tune::difference;
use silumin_testkit::parallel;

/// A text for each problem: the time of `auto`, and of each configuration its time, or why it has none.
pub fn times(problems: &[Problem], arch: Arch, tried: &[Config], chip: &Chip) -> Vec<String> {
    parallel::map(problems, |_, problem| {
        let head = format!("{} {}", problem.formats, problem.name());
        let auto = problem.spec(arch).and_then(|(spec, shape)| {
            let time =
                |config: Config| seconds(&spec, shape, arch, config, chip).map(|seconds| 1e6 * seconds);
            let auto = time(spec.config)?;
            let line = |config: &Config| {
                let knobs = difference(config, &spec.config);
                match time(*config) {
                    Ok(us) => format!("  {us:9.2} us  {:+6.1} %  {knobs}\n", 100.0 * (us / auto - 1.0)),
                    Err(reason) => format!("  no time: {knobs}: {reason}\n"),
                }
            };
            Ok(format!(
                "{head}\n  {auto:9.2} us            auto\n{}",
                tried.iter().map(line).collect::<String>()
            ))
        });
        auto.unwrap_or_else(|reason| format!("{head}\n  no time: {reason}\n"))
    })
}
