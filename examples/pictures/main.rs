//! Pictures of a kernel, drawn from its plan: shared memory, tensor memory, the pipeline of stages, and which warps wait for which.
//!
//! ```text
//! cargo run --example pictures                                    # those of the book, into book/src/pictures
//! cargo run --example pictures -- --config FILE.toml --out DIR    # those of any kernel
//! ```

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for people at a terminal")]

mod draw;

use clap::Parser;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Draw a kernel's plan as SVG: memory, pipeline, waits.
#[derive(Parser)]
struct Options {
    /// A dual GEMM as TOML; left out, the kernels of the book.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The folder for the pictures; left out, that of the book.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::from(2)
        }
    }
}

fn run(options: &Options) -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let out = options.out.clone().unwrap_or_else(|| root.join("book/src/pictures"));
    let pictures = match &options.config {
        None => draw::of_the_book(root)?,
        Some(file) => {
            let name = file.file_stem().map_or("kernel".into(), |stem| stem.to_string_lossy().into_owned());
            draw::pictures(&name, &draw::plan(file)?)?
        }
    };
    std::fs::create_dir_all(&out).map_err(|e| format!("{}: {e}", out.display()))?;
    for (name, svg) in pictures {
        let path = out.join(name);
        std::fs::write(&path, svg).map_err(|e| format!("{}: {e}", path.display()))?;
        println!("{}", path.display());
    }
    Ok(())
}
