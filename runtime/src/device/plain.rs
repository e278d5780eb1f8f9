//! Launches of kernels with plain arguments: addresses and numbers, no tensor maps.

#[cfg(feature = "emulated")]
use silumin_codegen::kernel::Launch;
#[cfg(feature = "emulated")]
use silumin_emulator as emulator;
#[cfg(feature = "emulated")]
use silumin_emulator::{Arg, GlobalMemory};
use thiserror::Error;

#[cfg(feature = "emulated")]
use super::EmulatorStats;
#[cfg(feature = "emulated")]
use super::emulated::{Emulated, Module};
use super::{Buffer, Findings};

/// One argument.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Plain<'a> {
    /// The address of a buffer that the kernel reads, with a name for errors.
    Input(&'static str, &'a Buffer),
    /// The address of a buffer that the kernel writes completely, with a name for errors.
    Output(&'static str, &'a Buffer),
    /// The address of a buffer that the kernel writes in part and does not read, with a name for errors. All of it holds
    /// something before the launch.
    Part(&'static str, &'a Buffer),
    /// A number.
    U32(u32),
    /// A number.
    F32(f32),
}

impl<'a> Plain<'a> {
    /// The buffer, and whether it is written.
    pub(crate) fn buffer(&self) -> Option<(&'a Buffer, bool)> {
        match *self {
            Plain::Input(_, buffer) => Some((buffer, false)),
            Plain::Output(_, buffer) | Plain::Part(_, buffer) => Some((buffer, true)),
            Plain::U32(_) | Plain::F32(_) => None,
        }
    }
}

/// What went wrong.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RunError {
    /// The device refused the launch.
    #[error("{reason}")]
    Refused {
        /// In its words.
        reason: String,
    },
    /// The emulated device found something wrong.
    #[error("{0}")]
    Findings(Box<Findings>),
    /// The kernel changed an input.
    #[error("it wrote to `{name}`, which is an input; please report this")]
    InputWritten {
        /// The input.
        name: &'static str,
    },
    /// The kernel left a part of an output unwritten.
    #[error("it left {bytes} bytes of `{name}` unwritten; please report this")]
    Unwritten {
        /// The output.
        name: &'static str,
        /// How many.
        bytes: u64,
    },
}

#[cfg(feature = "emulated")]
impl Emulated {
    /// Runs the only launch of a kernel to its end; its arguments have been checked.
    pub(crate) fn launch_plain(
        &self,
        module: &Module,
        launch: &Launch,
        args: &[Plain<'_>],
    ) -> Result<EmulatorStats, RunError> {
        let mut memory = GlobalMemory::new();
        let (mut tensors, mut values) = (Vec::new(), Vec::new());
        for argument in args {
            values.push(match *argument {
                Plain::Input(name, buffer) | Plain::Output(name, buffer) | Plain::Part(name, buffer) => {
                    let target = memory.alloc(name, buffer.len() as u64);
                    // Checked to be an emulated device's. What an output holds is nothing that a kernel may read.
                    let host = buffer.emulated_memory();
                    let written = !matches!(argument, Plain::Input(..));
                    let keeps = !matches!(argument, Plain::Output(..));
                    if let (Some((host, offset)), true) = (host, keeps) {
                        host.for_written(offset, buffer.len(), |at, bytes| {
                            memory.write(&target, at as u64, bytes);
                        });
                    }
                    let address = memory.address(&target);
                    if let Some(host) = host {
                        tensors.push((name, host, target, written));
                    }
                    Arg::Pointer(address)
                }
                Plain::U32(value) => Arg::U32(value),
                Plain::F32(value) => Arg::F32(value),
            });
        }
        let options = emulator::Options {
            schedule: self.options.schedule,
            threads: self.options.threads,
            max_findings: self.options.max_findings,
            tracking: self.options.tracking,
            instruction_limit: self.options.instruction_limit,
            time_limit: self.options.time_limit,
            ..emulator::Options::default()
        };
        let run = emulator::Launch {
            grid: launch.grid,
            block: launch.block,
            cluster: launch.cluster,
            dynamic_smem: launch.dynamic_smem,
            args: values,
        };
        let report = module
            .module
            .run(&launch.entry, &run, &memory, &options)
            .map_err(|error| RunError::Refused { reason: error.to_string() })?;
        // A kernel of this crate has no need of what default tracking only warns of.
        let findings: Vec<_> = report.all().cloned().collect();
        if !findings.is_empty() {
            let findings = Findings { findings, stats: report.stats };
            return Err(RunError::Findings(Box::new(findings)));
        }
        for (name, (host, offset), target, written) in &tensors {
            let unwritten = memory.unwritten(target);
            match written {
                true if unwritten > 0 => return Err(RunError::Unwritten { name, bytes: unwritten }),
                false if !host.holds(*offset, &memory.read(target)) => {
                    return Err(RunError::InputWritten { name });
                }
                _ => {}
            }
        }
        for (_, (host, offset), target, _) in tensors.iter().filter(|(.., written)| *written) {
            host.write(*offset, &memory.read(target));
        }
        Ok(report.stats)
    }
}
