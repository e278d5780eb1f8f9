//! The verbs `completions` and `man`: what shells and `man` know of the program, from its flags.
//!
//! ```text
//! silumin completions bash > ~/.local/share/bash-completion/completions/silumin
//! silumin man --out ~/.local/share/man/man1
//! ```

use crate::print::Out;
use crate::{VERBS, about, program};
use clap::{Arg, ArgMatches, Command, value_parser};
use clap_complete::Shell;
use clap_mangen::Man;
use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// The flags of `completions`.
#[must_use]
pub fn completions_command() -> Command {
    Command::new("completions")
        .about("Prints completions of verbs and flags for a shell")
        .arg(Arg::new("shell").required(true).value_parser(value_parser!(Shell)).help("the shell"))
}

/// Prints the completions; the exit status.
#[must_use]
pub fn completions(matches: &ArgMatches) -> ExitCode {
    let Some(shell) = matches.get_one::<Shell>("shell") else { return ExitCode::from(2) };
    clap_complete::generate(*shell, &mut program("silumin", about(), &VERBS), "silumin", &mut Out);
    ExitCode::SUCCESS
}

/// The flags of `man`.
#[must_use]
pub fn man_command() -> Command {
    Command::new("man").about("Prints the manual page, or writes one of each verb to a folder").arg(
        Arg::new("out")
            .long("out")
            .value_name("DIR")
            .value_parser(value_parser!(PathBuf))
            .help("write silumin.1, silumin-emit.1 and so on to this folder"),
    )
}

/// A manual page: the name of its file, and its text.
pub type Page = (String, Vec<u8>);

/// Manual pages: the program's, and one of each verb.
///
/// # Errors
/// A page cannot be rendered.
pub fn pages() -> Result<Vec<Page>, Box<dyn Error>> {
    let mut all = Vec::new();
    let mut add = |name: String, command: Command| -> Result<(), Box<dyn Error>> {
        let mut page = Vec::new();
        Man::new(command).render(&mut page)?;
        all.push((format!("{name}.1"), page));
        Ok(())
    };
    add("silumin".to_owned(), program("silumin", about(), &VERBS).version(env!("CARGO_PKG_VERSION")))?;
    for verb in &VERBS {
        let command = (verb.command)();
        let name = format!("silumin-{}", command.get_name());
        let shown: &'static str = name.clone().leak();
        add(name, command.name(shown).version(env!("CARGO_PKG_VERSION")))?;
    }
    Ok(all)
}

/// Prints or writes manual pages; the exit status.
#[must_use]
pub fn man(matches: &ArgMatches) -> ExitCode {
    let run = || -> Result<bool, Box<dyn Error>> {
        let pages = pages()?;
        match matches.get_one::<PathBuf>("out") {
            None => Out.write_all(&pages.first().ok_or("there is no page")?.1)?,
            Some(folder) => {
                std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
                for (name, page) in pages {
                    let path = folder.join(name);
                    std::fs::write(&path, page).map_err(|e| format!("{}: {e}", path.display()))?;
                    println!("{}", path.display());
                }
            }
        }
        Ok(true)
    };
    crate::status(run())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shells_and_manuals_know_every_verb_and_its_flags() {
        let mut script = Vec::new();
        clap_complete::generate(
            Shell::Bash,
            &mut program("silumin", about(), &VERBS),
            "silumin",
            &mut script,
        );
        let script = String::from_utf8(script).unwrap();
        let pages = pages().unwrap();
        assert_eq!(pages.len(), 1 + VERBS.len());
        for verb in &VERBS {
            let command = (verb.command)();
            let name = command.get_name();
            let page = pages.iter().find(|(file, _)| *file == format!("silumin-{name}.1")).unwrap();
            let page = String::from_utf8_lossy(&page.1);
            assert!(script.contains(name), "{name}");
            let flags = command.get_arguments().filter(|flag| !flag.is_hide_set());
            for flag in flags.filter_map(|flag| flag.get_long()) {
                assert!(script.contains(&format!("--{flag}")), "{name} --{flag}");
                assert!(page.contains(&flag.replace('-', "\\-")), "{name} --{flag}");
            }
        }
        assert!(String::from_utf8_lossy(&pages[0].1).contains("Exit status"));
    }
}
