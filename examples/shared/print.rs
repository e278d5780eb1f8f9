//! Printing to a reader that may leave before the end, as in `emit --sweep | head -1`: the program ends there without a word, as those do that
//! the signal ends. Rust has it ignored, and the standard `println!` panics.
//!
//! The signal itself stays ignored: it would also end a program whose child, a ptxas or a trial, leaves before it has read all.
//!
//! Declared with `#[macro_use]` before other modules, its macros take the place of the standard ones.

#![allow(dead_code, unused_macros, reason = "each program needs a part")]

use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};

/// What a shell calls the end by that signal.
const CLOSED: i32 = 128 + 13;

/// As the standard one.
macro_rules! print {
    ($($text:tt)*) => {{
        // Tests keep what is printed for those that fail.
        #[cfg(test)]
        std::print!($($text)*);
        #[cfg(not(test))]
        crate::print::print(format_args!($($text)*));
    }};
}

/// As the standard one.
macro_rules! println {
    () => { print!("\n") };
    ($($text:tt)*) => { print!("{}\n", format_args!($($text)*)) };
}

/// What `print!` does.
pub fn print(text: Arguments<'_>) {
    if let Err(error) = Out.write_fmt(text) {
        panic!("printing failed: {error}");
    }
}

/// The standard output.
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

/// Ends the program where nobody reads any more.
fn open<T>(written: io::Result<T>) -> io::Result<T> {
    match written {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(CLOSED),
        written => written,
    }
}
