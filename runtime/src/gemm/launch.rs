//! Launches: what a kernel is handed, the checks before it runs, and what it reports.

use std::fmt;
use std::sync::Arc;

use silumin_codegen::gate::Gate;
use silumin_codegen::kernel::{Kernel, Launch, Parameter, WorkspaceBuffer};
use silumin_codegen::plan::{Operand, TensorMapRecipe};
use silumin_codegen::problem::Problem;
use thiserror::Error;

use super::DualGemm;
use crate::device::{Backend, Buffer, Device, DeviceError, Stream, emulated};

/// Alignment of every tensor, in bytes: what tensor maps, bulk copies and vector stores need.
const ALIGNMENT: usize = 16;

/// The tensors and scalars of one launch. Layouts are those of
/// [`problem`](silumin_codegen::problem); lengths are exactly [`Operand::bytes`], so slice a buffer
/// that is longer. B1 and B2 may be two slices of one allocation.
#[derive(Clone, Copy, Debug)]
pub struct Args<'a> {
    /// Codes of A, `[M, K]`.
    pub a: &'a Buffer,
    /// Codes of B1, `[N, K]`.
    pub b1: &'a Buffer,
    /// Codes of B2, `[N, K]`.
    pub b2: &'a Buffer,
    /// Blocked scale factors of A.
    pub sfa: &'a Buffer,
    /// Blocked scale factors of B1.
    pub sfb1: &'a Buffer,
    /// Blocked scale factors of B2.
    pub sfb2: &'a Buffer,
    /// C, `[M, N]`: written whole, never read.
    pub c: &'a Buffer,
    /// A value for each scalar of the gate, by name.
    pub scalars: &'a [(&'a str, f32)],
}

impl<'a> Args<'a> {
    /// The tensor of one role.
    #[must_use]
    pub fn operand(&self, operand: Operand) -> &'a Buffer {
        match operand {
            Operand::A => self.a,
            Operand::B1 => self.b1,
            Operand::B2 => self.b2,
            Operand::Sfa => self.sfa,
            Operand::Sfb1 => self.sfb1,
            Operand::Sfb2 => self.sfb2,
            Operand::C => self.c,
        }
    }
}

/// Why a launch did not happen, or what is wrong with it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// A stream of another device.
    #[error("`{kernel}` is loaded on another device ({device}) than the stream belongs to: load it there")]
    StreamDevice {
        /// The kernel.
        kernel: String,
        /// Where the kernel is.
        device: String,
    },
    /// A tensor on another device.
    #[error("{operand} is on another device ({found}) than the kernel ({device}): upload it there")]
    OperandDevice {
        /// The tensor.
        operand: Operand,
        /// Where the tensor is.
        found: String,
        /// Where the kernel is.
        device: String,
    },
    /// A tensor that is not the problem's.
    #[error("{operand} has {found} bytes, but in the problem {problem} it has {expected}: {}", length_help(*.found as u64, *.expected))]
    Length {
        /// The tensor.
        operand: Operand,
        /// Bytes of the buffer.
        found: usize,
        /// Bytes of the tensor.
        expected: u64,
        /// The problem that the kernel computes.
        problem: Problem,
    },
    /// A tensor at an address that TMA does not take.
    #[error("{operand} starts at an address that is not a multiple of {ALIGNMENT}: slice at one that is")]
    Alignment {
        /// The tensor.
        operand: Operand,
    },
    /// C over an input.
    #[error(
        "c shares memory with {operand}: the kernel still reads that while it writes c, so give c memory of its own"
    )]
    Aliasing {
        /// The input.
        operand: Operand,
    },
    /// A scalar without a value.
    #[error("the gate `{gate}` needs a value for `{name}`: add it to the scalars")]
    MissingScalar {
        /// The gate.
        gate: String,
        /// The scalar.
        name: String,
    },
    /// A value for something else.
    #[error("the gate `{gate}` has no scalar `{name}`; it has: {known}")]
    UnknownScalar {
        /// The gate.
        gate: String,
        /// As given.
        name: String,
        /// Its scalars.
        known: String,
    },
    /// Two values for one scalar.
    #[error("the scalar `{name}` has two values: give one")]
    DuplicateScalar {
        /// The scalar.
        name: String,
    },
    /// The tensor map of an operand can't be encoded.
    #[error("the tensor map of {operand}: {reason}")]
    TensorMap {
        /// The tensor.
        operand: Operand,
        /// The rule that it breaks.
        reason: String,
    },
    /// The device refused the launch.
    #[error("{device} does not launch `{kernel}`: {reason}")]
    Refused {
        /// The device, in words.
        device: String,
        /// The kernel.
        kernel: String,
        /// The device's words.
        reason: String,
    },
    /// The emulated device found something wrong with the kernel.
    #[error("`{kernel}` ran, and {report}")]
    Emulator {
        /// The kernel.
        kernel: String,
        /// What is wrong.
        report: Box<emulated::Findings>,
    },
    /// The kernel changed a tensor that it may only read.
    #[error("`{kernel}` wrote to {operand}, which is an input; please report this")]
    InputWritten {
        /// The kernel.
        kernel: String,
        /// The input.
        operand: Operand,
    },
    /// The kernel left a part of C as it was, which nothing else had written either.
    #[error("`{kernel}` left {bytes} of the {of} bytes of c unwritten; please report this")]
    Unwritten {
        /// The kernel.
        kernel: String,
        /// Bytes that nothing wrote.
        bytes: u64,
        /// Bytes of C.
        of: u64,
    },
    /// The kernel left something in the workspace that the next launch would trip over.
    #[error("`{kernel}` left `{buffer}` of its workspace other than zero; please report this")]
    WorkspaceLeft {
        /// The kernel.
        kernel: String,
        /// The buffer.
        buffer: &'static str,
    },
    /// Memory of the device.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

fn length_help(found: u64, expected: u64) -> &'static str {
    if found > expected {
        "pass a slice of it"
    } else {
        "allocate what Operand::bytes says (scale factors are padded to 128 rows and 4 columns)"
    }
}

/// What is known of a launch when it returns.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct LaunchReport {
    /// What the emulated device did; `None` on a device that does not count.
    pub emulator: Option<emulated::EmulatorStats>,
    /// The same of each launch, in order; empty on a device that does not count.
    pub launches: Vec<emulated::EmulatorStats>,
}

/// A kernel, ready to launch on one device: a cheap handle.
#[derive(Clone)]
pub struct LoadedKernel {
    device: Device,
    gemm: DualGemm,
    kernel: Arc<Kernel>,
    module: Arc<Module>,
}

/// What a device made of a kernel.
pub(super) enum Module {
    Emulated(emulated::Module),
}

/// One argument of a kernel, its tensors by role.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Argument<'a> {
    /// A tensor map.
    TensorMap(&'a TensorMapRecipe),
    /// An address.
    Pointer(Operand),
    /// The address of a buffer of the workspace.
    Workspace(&'a WorkspaceBuffer),
    /// A scalar.
    F32(f32),
}

impl LoadedKernel {
    pub(super) fn new(device: Device, gemm: DualGemm, kernel: Kernel, module: Module) -> Self {
        Self { device, gemm, kernel: Arc::new(kernel), module: Arc::new(module) }
    }

    /// The PTX and its launch facts.
    #[must_use]
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// The dual GEMM it was made of.
    #[must_use]
    pub fn dual_gemm(&self) -> &DualGemm {
        &self.gemm
    }

    /// Where it is loaded.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Checks the arguments and launches. On the emulated device the kernel has run when this
    /// returns.
    ///
    /// # Errors
    ///
    /// Arguments that are not the kernel's, before anything runs; on the emulated device also
    /// [`LaunchError::Emulator`] with everything that is wrong with the run, in which case C is left
    /// as it was.
    pub fn launch(&self, stream: &Stream, args: &Args<'_>) -> Result<LaunchReport, LaunchError> {
        self.check(stream, args)?;
        let launches = self.kernel.launches.iter().map(|launch| Ok((launch, self.arguments(launch, args)?)));
        let launches: Vec<_> = launches.collect::<Result<_, LaunchError>>()?;
        match (&*self.module, self.device.backend()) {
            (Module::Emulated(module), Backend::Emulated(emulator)) => {
                emulator.launch(module, &self.kernel, &launches, args)
            }
        }
    }

    /// Whether the arguments are the kernel's.
    fn check(&self, stream: &Stream, args: &Args<'_>) -> Result<(), LaunchError> {
        if *stream.device() != self.device {
            return Err(LaunchError::StreamDevice {
                kernel: self.kernel.name.clone(),
                device: self.device.to_string(),
            });
        }
        for operand in Operand::ALL {
            self.check_operand(operand, args.operand(operand))?;
            if operand != Operand::C && args.c.overlaps(args.operand(operand)) {
                return Err(LaunchError::Aliasing { operand });
            }
        }
        check_scalars(&self.gemm.spec().gate, args.scalars)
    }

    /// The arguments of one launch, in order.
    fn arguments<'a>(
        &'a self,
        launch: &'a Launch,
        args: &Args<'_>,
    ) -> Result<Vec<Argument<'a>>, LaunchError> {
        let gate = &self.gemm.spec().gate;
        launch
            .parameters
            .iter()
            .map(|parameter| match parameter {
                Parameter::TensorMap(recipe) => Ok(Argument::TensorMap(recipe)),
                Parameter::Pointer(operand) => Ok(Argument::Pointer(*operand)),
                Parameter::Workspace(buffer) => Ok(Argument::Workspace(buffer)),
                Parameter::Scalar(name) => scalar(gate, args.scalars, name).map(Argument::F32),
            })
            .collect()
    }

    fn check_operand(&self, operand: Operand, buffer: &Buffer) -> Result<(), LaunchError> {
        if *buffer.device() != self.device {
            let (found, device) = (buffer.device().to_string(), self.device.to_string());
            return Err(LaunchError::OperandDevice { operand, found, device });
        }
        let problem = self.kernel.problem;
        let expected = operand.bytes(&problem);
        if buffer.len() as u64 != expected {
            return Err(LaunchError::Length { operand, found: buffer.len(), expected, problem });
        }
        if !buffer.is_aligned(ALIGNMENT) {
            return Err(LaunchError::Alignment { operand });
        }
        Ok(())
    }
}

impl fmt::Debug for LoadedKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LoadedKernel({} on {})", self.kernel.name, self.device)
    }
}

/// Every scalar of the gate has one value, and nothing else has.
pub(super) fn check_scalars(gate: &Gate, given: &[(&str, f32)]) -> Result<(), LaunchError> {
    let known = gate.expr.scalars();
    for (position, (name, _)) in given.iter().enumerate() {
        if !known.iter().any(|scalar| scalar == name) {
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Err(LaunchError::UnknownScalar {
                gate: gate.to_string(),
                name: (*name).to_owned(),
                known,
            });
        }
        if given[..position].iter().any(|(earlier, _)| earlier == name) {
            return Err(LaunchError::DuplicateScalar { name: (*name).to_owned() });
        }
    }
    known.iter().try_for_each(|name| scalar(gate, given, name).map(drop))
}

fn scalar(gate: &Gate, given: &[(&str, f32)], name: &str) -> Result<f32, LaunchError> {
    let value = given.iter().find(|(other, _)| *other == name).map(|(_, value)| *value);
    value.ok_or_else(|| LaunchError::MissingScalar { gate: gate.to_string(), name: name.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use silumin_codegen::arch::Arch;
    use silumin_codegen::problem::Shape;
    use silumin_codegen::spec::Spec;

    /// 130 x 1001 x 1056: every tensor of another size than its neighbours', scales padded.
    const SHAPE: Shape = Shape::new(130, 1001, 1056);

    struct Setup {
        device: Device,
        kernel: LoadedKernel,
        buffers: Vec<Buffer>,
    }

    impl Setup {
        fn new(gate: &str) -> Self {
            let device = Device::emulated(Arch::Sm100a);
            let gemm = DualGemm::new(Spec::new(gate.parse().unwrap(), &[Arch::Sm100a]).unwrap());
            let kernel = gemm.load(&device, SHAPE).unwrap();
            let bytes = |operand: Operand| operand.bytes(&kernel.kernel().problem) as usize;
            let buffers = Operand::ALL.map(|operand| device.alloc(bytes(operand)).unwrap()).to_vec();
            Self { device, kernel, buffers }
        }

        fn with(mut self, operand: Operand, buffer: Buffer) -> Self {
            self.buffers[operand as usize] = buffer;
            self
        }

        fn arguments(&self, scalars: &[(&str, f32)]) -> Result<Vec<Argument<'_>>, LaunchError> {
            let [a, b1, b2, sfa, sfb1, sfb2, c] = &self.buffers[..] else { panic!("seven") };
            let args = Args { a, b1, b2, sfa, sfb1, sfb2, c, scalars };
            self.kernel.check(&self.device.stream(), &args)?;
            self.kernel.arguments(&self.kernel.kernel.launches[0], &args)
        }
    }

    const SWIGLU: &str = "silu(A @ B1) * (A @ B2)";
    const SCALED: &str = "silu(alpha * (X @ Wg)) * (alpha * (X @ Wu))";

    #[test]
    fn arguments_follow_the_entry() {
        let setup = Setup::new(SCALED);
        let arguments = setup.arguments(&[("alpha", 0.5)]).unwrap();
        let kinds: Vec<String> = arguments
            .iter()
            .map(|argument| match argument {
                Argument::TensorMap(recipe) => format!("{}_map", recipe.operand),
                Argument::Pointer(operand) => operand.to_string(),
                Argument::Workspace(buffer) => buffer.name.to_owned(),
                Argument::F32(value) => value.to_string(),
            })
            .collect();
        assert_eq!(kinds, ["a_map", "b1_map", "b2_map", "sfa", "sfb1", "sfb2", "c", "0.5"]);
    }

    #[test]
    fn each_tensor_has_exactly_its_length() {
        for operand in Operand::ALL {
            for change in [-1isize, 1] {
                let setup = Setup::new(SWIGLU);
                let right = setup.buffers[operand as usize].len();
                let wrong = setup.device.alloc(right.checked_add_signed(change).unwrap()).unwrap();
                let error = setup.with(operand, wrong).arguments(&[]).unwrap_err();
                let LaunchError::Length { operand: named, expected, .. } = &error else { panic!("{error}") };
                assert_eq!((*named, *expected), (operand, right as u64));
                assert_eq!(error.to_string().contains("slice"), change > 0, "{error}");
            }
        }
    }

    #[test]
    fn tensors_are_on_the_kernels_device_and_aligned() {
        let other = Device::emulated(Arch::Sm100a);
        for operand in Operand::ALL {
            let setup = Setup::new(SWIGLU);
            let len = setup.buffers[operand as usize].len();
            let shifted = setup.device.alloc(len + 16).unwrap();
            let error = setup.with(operand, shifted.slice(8, len).unwrap()).arguments(&[]).unwrap_err();
            assert!(matches!(error, LaunchError::Alignment { operand: named } if named == operand));
            let setup = Setup::new(SWIGLU).with(operand, other.alloc(len).unwrap());
            let error = setup.arguments(&[]).unwrap_err();
            assert!(matches!(error, LaunchError::OperandDevice { operand: named, .. } if named == operand));
        }
        let setup = Setup::new(SWIGLU);
        let [a, b1, b2, sfa, sfb1, sfb2, c] = &setup.buffers[..] else { panic!("seven") };
        let args = Args { a, b1, b2, sfa, sfb1, sfb2, c, scalars: &[] };
        let error = setup.kernel.launch(&other.stream(), &args).unwrap_err();
        assert!(matches!(error, LaunchError::StreamDevice { .. }), "{error}");
    }

    #[test]
    fn c_has_memory_of_its_own_and_inputs_may_share() {
        for operand in Operand::ALL.into_iter().filter(|operand| *operand != Operand::C) {
            let setup = Setup::new(SWIGLU);
            let [input, c] = [operand, Operand::C].map(|operand| setup.buffers[operand as usize].len());
            let both = setup.device.alloc(input.next_multiple_of(16) + c).unwrap();
            let aliased = [
                (operand, both.slice(0, input).unwrap()),
                (Operand::C, both.slice((input - 1) / 16 * 16, c).unwrap()),
            ];
            let apart = both.slice(input.next_multiple_of(16), c).unwrap();
            let setup =
                aliased.into_iter().fold(setup, |setup, (operand, buffer)| setup.with(operand, buffer));
            let error = setup.arguments(&[]).unwrap_err();
            assert!(matches!(error, LaunchError::Aliasing { operand: named } if named == operand), "{error}");
            setup.with(Operand::C, apart).arguments(&[]).unwrap();
        }
        let setup = Setup::new(SWIGLU);
        let b1 = setup.buffers[Operand::B1 as usize].clone();
        setup.with(Operand::B2, b1).arguments(&[]).unwrap();
    }

    #[test]
    fn scalars_are_complete_known_and_single() {
        let setup = Setup::new(SCALED);
        let text = |scalars: &[(&str, f32)]| setup.arguments(scalars).unwrap_err().to_string();
        assert!(text(&[]).contains("needs a value for `alpha`"));
        assert!(text(&[("alpha", 1.0), ("beta", 1.0)]).contains("no scalar `beta`; it has: alpha"));
        assert!(text(&[("alpha", 1.0), ("alpha", 1.0)]).contains("`alpha` has two values"));
        let none = Setup::new(SWIGLU).arguments(&[("alpha", 1.0)]).unwrap_err();
        assert!(none.to_string().contains("it has: none"), "{none}");
    }
}
