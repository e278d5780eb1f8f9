//! Prints to a reader that may close the pipe early, as in `silumin sweep | head -1`. The program then ends silently,
//! as programs do that SIGPIPE ends. Rust ignores that signal, and the standard `println!` panics.
//!
//! The signal itself stays ignored: it would also end a program whose child, a ptxas or a trial, leaves before it has read all.
//!
//! A program calls [`end_with_reader`] first. Where none has, as in tests, output goes through the standard macros, which tests capture.

use clap::{Arg, ArgAction};
use std::fmt::Arguments;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// The exit status that a shell reports for a program ended by SIGPIPE.
const CLOSED: i32 = 128 + 13;

/// Whether the process ends when its reader is gone.
static ENDS: AtomicBool = AtomicBool::new(false);

/// From now on the process ends, with status 141, once nobody reads its standard output.
pub fn end_with_reader() {
    ENDS.store(true, Ordering::Relaxed);
}

/// Whether text for people goes to standard error, because standard output is for a document.
static DOCUMENT: AtomicBool = AtomicBool::new(false);

/// The flag of verbs that print a JSON document.
#[must_use]
pub fn json_flag() -> Arg {
    Arg::new("json")
        .long("json")
        .action(ArgAction::SetTrue)
        .help("print one JSON document to standard output; what people read goes to standard error")
}

/// From now on what `print!` writes goes to standard error, so that [`document`] has standard output for itself.
pub fn expect_document() {
    DOCUMENT.store(true, Ordering::Relaxed);
}

/// Prints a JSON document to standard output.
///
/// # Errors
/// It cannot be written.
pub fn document(document: &serde_json::Value) -> io::Result<()> {
    writeln!(Out, "{document:#}")
}

/// `std::print!` for programs: see [`print`](mod@crate::print).
#[macro_export]
macro_rules! print {
    ($($text:tt)*) => { $crate::print::print(::std::format_args!($($text)*)) };
}

/// `std::println!` for programs: see [`print`](mod@crate::print).
#[macro_export]
macro_rules! println {
    () => { $crate::print!("\n") };
    ($($text:tt)*) => { $crate::print!("{}\n", ::std::format_args!($($text)*)) };
}

/// What `print!` does.
#[allow(clippy::print_stdout, clippy::print_stderr, reason = "tests capture what goes this way")]
pub fn print(text: Arguments<'_>) {
    if DOCUMENT.load(Ordering::Relaxed) {
        std::eprint!("{text}");
    } else if !ENDS.load(Ordering::Relaxed) {
        std::print!("{text}");
    } else if let Err(error) = Out.write_fmt(text) {
        panic!("printing failed: {error}");
    }
}

/// Whether standard output is a terminal that shows colours, and nobody asked for none (`NO_COLOR`).
fn coloured() -> bool {
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    io::stdout().is_terminal()
        && !set("NO_COLOR")
        && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// `PASS` in green or `FAIL` in red, without colours where the terminal has none.
#[must_use]
pub fn verdict(passed: bool) -> &'static str {
    match (passed, coloured()) {
        (true, false) => "PASS",
        (false, false) => "FAIL",
        (true, true) => "\x1b[1;32mPASS\x1b[0m",
        (false, true) => "\x1b[1;31mFAIL\x1b[0m",
    }
}

/// Standard output; a write to it ends the program if nobody reads any more.
pub struct Out;

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        open(io::stdout().write(bytes))
    }

    fn write_fmt(&mut self, text: Arguments<'_>) -> io::Result<()> {
        open(io::stdout().write_fmt(text))
    }

    fn flush(&mut self) -> io::Result<()> {
        open(io::stdout().flush())
    }
}

/// Ends the program if the write failed because nobody reads any more.
fn open<T>(written: io::Result<T>) -> io::Result<T> {
    match written {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(CLOSED),
        written => written,
    }
}
