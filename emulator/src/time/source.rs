//! The source of issue costs: machine code if the tools are available, else the table.

use super::{Chip, SassCosts, SassError, TimeError, issue_costs};
use crate::Module;
use std::fmt;

/// Where the issue costs of a prediction come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IssueSource {
    /// Machine code if `ptxas` and `nvdisasm` are available and accept the module, else the table.
    #[default]
    Auto,
    /// Machine code; it is an error if there is none.
    Sass,
    /// The table, which needs no tool and is the same everywhere.
    Table,
}

/// Issue costs of one module and their source, which `Display` prints in a line.
#[derive(Clone, Debug)]
pub struct FoundCosts {
    /// Machine code, in the form that [`TimeOptions::sass`](super::TimeOptions::sass) takes.
    pub sass: Option<SassCosts>,
    /// Why machine code is missing although it was wanted.
    pub missing: Option<String>,
}

impl IssueSource {
    /// Names for flags.
    pub const NAMES: [(&str, IssueSource); 3] =
        [("auto", IssueSource::Auto), ("sass", IssueSource::Sass), ("table", IssueSource::Table)];

    /// The source with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<IssueSource> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, source)| *source)
    }

    /// Finds issue costs of all kernels of a module with text `ptx`, on a chip. It starts two processes, except with
    /// [`IssueSource::Table`].
    ///
    /// # Errors
    /// With [`IssueSource::Sass`] whatever keeps machine code from being made.
    pub fn find(self, module: &Module, ptx: &str, chip: &Chip) -> Result<FoundCosts, TimeError> {
        if self == IssueSource::Table {
            return Ok(FoundCosts { sass: None, missing: None });
        }
        let target = module.target().iter().find(|target| chip.runs(target));
        let target = target.map_or(module.chip(), String::as_str);
        let assembled = SassCosts::assemble(ptx, target).map_err(TimeError::from).and_then(|sass| {
            // What does not belong to the text is said here, and not by the run.
            module
                .entries()
                .try_for_each(|entry| issue_costs(module, entry, chip, Some(&sass)).map(|_| ()))?;
            Ok(sass)
        });
        match assembled {
            Ok(sass) => Ok(FoundCosts { sass: Some(sass), missing: None }),
            Err(error) if self == IssueSource::Sass => Err(error),
            Err(error) => Ok(FoundCosts { sass: None, missing: Some(reason(&error)) }),
        }
    }
}

/// The error in one line.
fn reason(error: &TimeError) -> String {
    let text = match error {
        TimeError::Sass(SassError::Refused { path, log, .. }) => {
            format!("{} refused it: {log}", path.display())
        }
        TimeError::Sass(SassError::NotFound { name, .. }) => {
            format!("`{name}` was not found; `./scripts/setup.sh` fetches it")
        }
        other => other.to_string(),
    };
    text.lines().next().unwrap_or_default().to_owned()
}

impl FoundCosts {
    /// `sass` or `table`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        if self.sass.is_some() { "sass" } else { "table" }
    }
}

impl fmt::Display for FoundCosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.sass, &self.missing) {
            (Some(_), _) => f.write_str("machine code that ptxas made"),
            (None, None) => f.write_str("a table by opcode"),
            (None, Some(why)) => write!(f, "a table by opcode: {why}"),
        }
    }
}
