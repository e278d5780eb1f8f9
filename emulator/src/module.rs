//! Parsed PTX modules.

use crate::lower::module::{self, Lowered};
use crate::parse::{LineError, excerpt, parse, shortened};
use crate::program::Program;
use std::fmt;

/// An error in PTX text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// Name of the file, as given to [`Module::parse`].
    pub file: String,
    /// Line, from 1.
    pub line: u32,
    /// The line's text, or the part around the error if it is long.
    pub text: String,
    /// What is wrong.
    pub message: String,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}\n    {}", self.file, self.line, self.message, self.text)
    }
}

/// All errors in a PTX text, in the order of lines.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ParseErrors(pub Vec<ParseError>);

impl fmt::Display for ParseErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, e) in self.0.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            write!(f, "{e}")?;
        }
        Ok(())
    }
}

/// A parameter of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Name in the PTX.
    pub name: String,
    /// Size in bytes.
    pub bytes: u32,
}

/// A PTX module with every instruction decoded and every name resolved.
#[derive(Debug)]
pub struct Module {
    pub(crate) file: String,
    lines: Vec<String>,
    pub(crate) kernels: Vec<(String, Program)>,
    pub(crate) image: Vec<u8>,
    version: Option<(u32, u32)>,
    target: Vec<String>,
    /// The chip that kernels run on; by default the target.
    chip: Option<String>,
}

impl Module {
    /// Parses PTX text and decodes every instruction of every kernel.
    ///
    /// `name` is the file name in errors and findings.
    ///
    /// # Errors
    /// Every syntax error; or, for text without one, every instruction, modifier and operand that
    /// is wrong or not supported. Nothing needs to run for that.
    pub fn parse(name: &str, text: &str) -> Result<Module, ParseErrors> {
        let (ast, syntax) = parse(text);
        let fail = |errors| ParseErrors(located(name, text, errors));
        if !syntax.is_empty() {
            return Err(fail(syntax.into_iter().map(LineError::from).collect()));
        }
        let Lowered { kernels, image } = module::lower(&ast).map_err(fail)?;
        Ok(Module {
            file: name.to_owned(),
            lines: text.lines().map(|l| excerpt(l, 0)).collect(),
            kernels,
            image,
            version: ast.version,
            target: ast.target.iter().map(|&t| t.to_owned()).collect(),
            chip: None,
        })
    }

    /// Everything in PTX text that is malformed or not supported, in the order of lines; empty if [`Module::parse`]
    /// accepts it.
    ///
    /// Unlike [`Module::parse`] it checks instructions even if others are malformed, and device functions that no
    /// kernel calls.
    pub fn problems(name: &str, text: &str) -> Vec<ParseError> {
        let (ast, syntax) = parse(text);
        let mut errors: Vec<LineError> = syntax.into_iter().map(LineError::from).collect();
        errors.extend(module::problems(&ast));
        errors.sort();
        errors.dedup();
        located(name, text, errors)
    }

    /// Names of the kernels, in the order of the text.
    pub fn entries(&self) -> impl Iterator<Item = &str> {
        self.kernels.iter().map(|(n, _)| n.as_str())
    }

    /// Parameters of a kernel, or `None` if there is no such kernel.
    pub fn parameters(&self, entry: &str) -> Option<Vec<Parameter>> {
        let p = self.program(entry)?;
        Some(p.params.iter().map(|p| Parameter { name: p.name.clone(), bytes: p.bytes }).collect())
    }

    /// Threads of a CTA that a kernel requires with `.reqntid`; `None` if it requires none, or if there is no such kernel.
    pub fn required_block(&self, entry: &str) -> Option<[u32; 3]> {
        self.program(entry)?.reqntid
    }

    /// CTAs of a cluster that a kernel requires with `.reqnctapercluster`; `None` if it requires none, or if there is no such
    /// kernel.
    pub fn required_cluster(&self, entry: &str) -> Option<[u32; 3]> {
        self.program(entry)?.reqcluster
    }

    /// `.version` of the text.
    pub fn version(&self) -> Option<(u32, u32)> {
        self.version
    }

    /// `.target` of the text.
    pub fn target(&self) -> &[String] {
        &self.target
    }

    /// The module on a chip other than its target, such as `sm_120a` for PTX of `sm_90`. The chip decides how much
    /// shared memory a CTA may have.
    #[must_use]
    pub fn on_chip(self, chip: &str) -> Module {
        Module { chip: Some(chip.to_owned()), ..self }
    }

    /// The chip that kernels run on: that of [`Module::on_chip`], else the target.
    pub fn chip(&self) -> &str {
        let target = || self.target.iter().find(|t| t.starts_with("sm_"));
        self.chip.as_ref().or_else(target).map_or("an unnamed chip", String::as_str)
    }

    /// File name given to [`Module::parse`].
    pub fn file(&self) -> &str {
        &self.file
    }

    pub(crate) fn program(&self, entry: &str) -> Option<&Program> {
        self.kernels.iter().find(|(n, _)| n == entry).map(|(_, p)| p)
    }

    pub(crate) fn line(&self, line: u32) -> &str {
        (line as usize).checked_sub(1).and_then(|i| self.lines.get(i)).map_or("", String::as_str)
    }
}

/// Adds file name and line text to errors.
fn located(name: &str, text: &str, errors: Vec<LineError>) -> Vec<ParseError> {
    let lines: Vec<&str> = if errors.is_empty() { Vec::new() } else { text.lines().collect() };
    let line_of = |e: &LineError| {
        let line = (e.line as usize).checked_sub(1).and_then(|i| lines.get(i)).copied().unwrap_or("");
        // Lines are parts of the text, so that their addresses say where they start.
        let start = line.as_ptr().addr().saturating_sub(text.as_ptr().addr());
        excerpt(line, e.pos.map_or(0, |pos| pos.saturating_sub(start)))
    };
    let located = |e: LineError| ParseError {
        file: name.to_owned(),
        line: e.line,
        text: line_of(&e),
        message: shortened(e.message),
    };
    errors.into_iter().map(located).collect()
}
