//! Why a kernel's module could not be made or loaded, and what helps.

use thiserror::Error;

/// Why a kernel's module could not be made or loaded.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ModuleError {
    /// The driver is too old for the kernel's PTX version.
    #[error(
        "the kernel is PTX {}.{}, and the driver is for CUDA {}.{}: install one for CUDA {}.{} or newer (branch {branch}), or use a bundle of compiled kernels",
        .ptx.0, .ptx.1, .driver.0, .driver.1, .needed.0, .needed.1
    )]
    OldDriver {
        /// The kernel's PTX ISA version: major, minor.
        ptx: (u32, u32),
        /// The driver's CUDA version.
        driver: (u32, u32),
        /// The first CUDA version whose driver reads the PTX.
        needed: (u32, u32),
        /// That driver's branch.
        branch: u32,
    },
    /// The driver refuses the PTX version, and the required driver is not known.
    #[error(
        "the driver, for CUDA {}.{}, does not read PTX {}.{} ({reason}): install a newer one, or use a bundle of compiled kernels",
        .driver.0, .driver.1, .ptx.0, .ptx.1
    )]
    UnknownPtx {
        /// The kernel's PTX ISA version: major, minor.
        ptx: (u32, u32),
        /// The driver's CUDA version.
        driver: (u32, u32),
        /// The driver's words.
        reason: String,
    },
    /// The kernel is for another chip. A kernel with a chip's own features runs on no other chip, not even of the
    /// same family.
    #[error(
        "the kernel is for {target}, and the device cannot run it ({reason}): make it, or export the bundle, for the device's own chip, Device::arch"
    )]
    WrongTarget {
        /// The kernel's chip.
        target: String,
        /// The driver's words.
        reason: String,
    },
    /// The module lacks the entry.
    #[error(
        "the module has no entry `{entry}` ({reason}): it is another kernel's; compile it again, or export the bundle again"
    )]
    MissingEntry {
        /// The entry.
        entry: String,
        /// The driver's words.
        reason: String,
    },
    /// The driver's library lacks a function.
    #[error("the CUDA driver has no {symbol}: install a newer one, or use a device without a cache")]
    MissingSymbol {
        /// The function.
        symbol: String,
    },
    /// The machine code is of another kernel with this name.
    #[error(
        "`{entry}` of the machine code takes {found} parameters, and the kernel has {expected}: it was compiled from another \
         text; compile it again, or export the bundle again"
    )]
    Parameters {
        /// The entry.
        entry: String,
        /// Number and sizes of the kernel's parameters.
        expected: String,
        /// Number and sizes of the machine code's parameters.
        found: String,
    },
    /// There is not enough memory for the module.
    #[error("{what} ran out of memory: free buffers or unload kernels")]
    OutOfMemory {
        /// The call.
        what: &'static str,
    },
    /// The kernel needs more shared memory than a CTA may have.
    #[error("{bytes} bytes of shared memory for `{entry}`: {reason}")]
    SharedMemory {
        /// The entry.
        entry: String,
        /// Bytes asked for.
        bytes: u32,
        /// The driver's words.
        reason: String,
    },
    /// The compiler refuses the PTX.
    #[error("{reason}\n{log}")]
    Refused {
        /// The error.
        reason: String,
        /// The compiler's log; each message with the lines around the one that it names.
        log: String,
    },
    /// The driver's linker would make slower code than the driver's other compiler.
    #[error(
        "the driver's linker would make slower code: {reason}; load the PTX itself, or compile it with ptxas"
    )]
    Relocatable {
        /// The loss that the kernel would have.
        reason: String,
    },
    /// NVIDIA's assembler failed.
    #[error("{reason}")]
    Assembler {
        /// Its message, and what helps.
        reason: String,
    },
    /// Compiling is off, and the kernel is neither in a bundle nor on disk.
    #[error(
        "`{kernel}` for {target} is not in the cache, and compiling is off: export a bundle where it was warmed up, or \
         allow compiling"
    )]
    NotCached {
        /// The kernel's name.
        kernel: String,
        /// Its chip.
        target: String,
    },
    /// The machine code is damaged and is not given to the driver, which does not check it.
    #[error(
        "the machine code of `{kernel}` is damaged: {reason}; compile it again, or export the bundle again"
    )]
    Image {
        /// The kernel's name.
        kernel: String,
        /// The error.
        reason: String,
    },
    /// The PTX cannot be passed to a compiler.
    #[error("{reason}")]
    Text {
        /// Why not.
        reason: String,
    },
    /// The emulated device refuses the PTX.
    #[error("{reason}")]
    Emulator {
        /// The emulator's words.
        reason: String,
    },
    /// Another driver call failed.
    #[error("{call} failed: {reason}")]
    Driver {
        /// The call.
        call: &'static str,
        /// The driver's words.
        reason: String,
    },
}

/// Lines that are shown before and after the one that a message names.
const AROUND: usize = 2;

/// A compiler's log, with the lines of `text` around each message's line.
pub(crate) fn with_lines(log: &str, text: &str) -> String {
    let mut out = String::new();
    for message in log.lines().filter(|line| !line.trim().is_empty()) {
        if !out.is_empty() {
            out.push('\n');
        }
        out.push_str(message.trim_end());
        let Some(named) = named_line(message).and_then(|number| number.checked_sub(1)) else { continue };
        let first = named.saturating_sub(AROUND);
        let last = named.saturating_add(AROUND);
        if text.lines().nth(named).is_none() {
            continue;
        }
        for (index, line) in text.lines().enumerate().skip(first).take(last - first + 1) {
            let mark = if index == named { '>' } else { ' ' };
            out.push_str(format!("\n  {mark} {:>5} | {line}", index + 1).trim_end());
        }
    }
    out
}

/// The line number in `ptxas application ptx input, line 12; error ...`.
fn named_line(message: &str) -> Option<usize> {
    let (_, rest) = message.split_once("line ")?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_with_the_lines_around_theirs() {
        let message = "ptxas application ptx input, line 2; error   : Unknown symbol 'x'";
        assert_eq!(
            with_lines(&format!("{message}\n\n"), "one\n  two;\n\nfour\nfive"),
            format!("{message}\n        1 | one\n  >     2 |   two;\n        3 |\n        4 | four")
        );
        // Numbers that name no line, and none at all.
        for log in [
            "line 99; x",
            "line 0; x",
            "line 18446744073709551615; x",
            "line 99999999999999999999; x",
            "line",
            "",
        ] {
            assert_eq!(with_lines(log, "one"), log);
        }
    }

    #[test]
    fn errors_say_what_would_do() {
        let error = ModuleError::OldDriver { ptx: (8, 8), driver: (12, 8), needed: (12, 9), branch: 575 };
        let text = error.to_string();
        assert!(text.contains("PTX 8.8") && text.contains("CUDA 12.9 or newer (branch 575)"), "{text}");
        let text = ModuleError::NotCached { kernel: "k".into(), target: "sm_90a".into() }.to_string();
        assert!(text.contains("`k` for sm_90a") && text.contains("export a bundle"), "{text}");
    }
}
