//! Launching a kernel: checks of the arguments, and the report.

use std::fmt;
use std::sync::Arc;

use silumin_codegen::gate::{Gate, GateVector};
use silumin_codegen::kernel::{Kernel, Launch, Parameter};
use silumin_codegen::plan::Operand;
use silumin_codegen::problem::{Groups, OutputFormat};

use super::DualGemm;
use super::vectors;
use crate::cache::Cubin;
#[cfg(feature = "cuda")]
use crate::device::cuda;
use crate::device::{Args, Argument, Backend, Buffer, Device, LaunchError, LaunchReport, Stream, emulated};
use crate::nvtx::range;

/// A kernel that is loaded on a device and ready to launch. Cloning it is cheap.
#[derive(Clone)]
pub struct LoadedKernel {
    device: Device,
    gemm: DualGemm,
    kernel: Arc<Kernel>,
    module: Arc<Module>,
    names: Arc<Names>,
}

/// Names of scalars and vectors of the gate, computed once.
struct Names {
    scalars: Vec<String>,
    vectors: Vec<GateVector>,
}

/// The loaded module of a kernel.
pub(crate) enum Module {
    Emulated(emulated::Module),
    #[cfg(feature = "cuda")]
    Cuda(Arc<cuda::Module>),
}

impl LoadedKernel {
    pub(super) fn new(device: Device, gemm: DualGemm, kernel: Kernel, module: Module) -> Self {
        let expr = &gemm.spec().gate.expr;
        let names = Arc::new(Names { scalars: expr.scalars(), vectors: expr.vectors() });
        Self { device, gemm, kernel: Arc::new(kernel), module: Arc::new(module), names }
    }

    /// The PTX and its launch facts.
    #[must_use]
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// The dual GEMM of which this is the kernel for one shape.
    #[must_use]
    pub fn dual_gemm(&self) -> &DualGemm {
        &self.gemm
    }

    /// The device that the kernel is loaded on.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The driver's function handles, one per launch of the kernel, in order; empty on the emulated device. Use them
    /// to query registers and memory. They are valid as long as a handle of the kernel lives.
    #[cfg(feature = "cuda")]
    #[must_use]
    pub fn cuda_functions(&self) -> &[cudarc::driver::sys::CUfunction] {
        match &*self.module {
            Module::Cuda(module) => module.functions(),
            Module::Emulated(_) => &[],
        }
    }

    /// The machine code of the kernel, the compiler's log, and where it came from; `None` without a cache and on the
    /// emulated device.
    #[must_use]
    pub fn cubin(&self) -> Option<&Cubin> {
        match &*self.module {
            Module::Emulated(_) => None,
            #[cfg(feature = "cuda")]
            Module::Cuda(module) => module.cubin(),
        }
    }

    /// Checks the arguments and launches the kernel on `stream`. On the emulated device the kernel has finished when
    /// this returns; on a GPU it is enqueued.
    ///
    /// On a GPU, a launch on known buffers allocates nothing and takes no lock: the module keeps tensor maps by the
    /// buffers' addresses, and each buffer keeps its order with other streams in a few words.
    ///
    /// From the fourth launch with the same arguments on one stream on, this launches a CUDA graph, which takes less
    /// host time: one call for all launches of the kernel, in the same order, with the same result. The third launch
    /// makes the graph and takes longer. Each set of arguments has its own graph; a kernel keeps 256. Kernels
    /// that start while the one before ends (`pdl`) are launched directly: at the edge of a graph they would wait.
    /// [`Device::with_graphs`] switches graphs off.
    ///
    /// If the stream is capturing a CUDA graph, the launch allocates nothing and waits for nothing. A kernel with a
    /// workspace must have run on that stream before. The launcher of the captured graph orders it with other
    /// streams' work on the same buffers.
    ///
    /// # Errors
    ///
    /// Arguments that are not the kernel's, before anything runs; on the emulated device also
    /// [`LaunchError::Emulator`] with everything that is wrong with the run, in which case C is left
    /// as it was.
    pub fn launch(&self, stream: &Stream, args: &Args<'_>) -> Result<LaunchReport, LaunchError> {
        let _range = range(format_args!("launch {}", self.kernel.name));
        self.check(stream, args)?;
        // Where A is whole and the kernel computes all rows, nothing depends on `rows`: launches share maps and graphs.
        let whole = args.a.len() as u64 == Operand::A.bytes(&self.kernel.problem);
        let args = &Args { rows: args.rows.filter(|_| !whole || self.kernel.counts_rows()), ..*args };
        match (&*self.module, self.device.backend()) {
            (Module::Emulated(module), Backend::Emulated(emulator)) => {
                let launches =
                    self.kernel.launches.iter().map(|launch| Ok((launch, self.arguments(launch, args)?)));
                let launches: Vec<_> = launches.collect::<Result<_, LaunchError>>()?;
                emulator.launch(module, &self.kernel, &launches, args)
            }
            #[cfg(feature = "cuda")]
            (Module::Cuda(module), Backend::Cuda(device)) => {
                // The stream is the device's, and so of its kind.
                if let Some(lane) = stream.lane() {
                    device.launch(module, &self.kernel, args, lane, self.device.graphs())?;
                }
                Ok(LaunchReport::default())
            }
            // A kernel is loaded by its device, so that both are of one kind.
            #[cfg(feature = "cuda")]
            _ => Err(LaunchError::StreamDevice {
                kernel: self.kernel.name.clone(),
                device: self.device.numbered(),
                found: stream.device().numbered(),
            }),
        }
    }

    /// Makes what the kernel needs on a stream beside its arguments, so that a capture can take its first launch there.
    #[cfg(feature = "cuda")]
    pub(crate) fn reserve(&self, stream: &Stream) -> Result<(), LaunchError> {
        let (Module::Cuda(module), Some(lane)) = (&*self.module, stream.lane()) else { return Ok(()) };
        cuda::Cuda::reserve(module, &self.kernel, lane).map_err(|error| LaunchError::Refused {
            device: self.device.to_string(),
            kernel: self.kernel.name.clone(),
            reason: cuda::in_words(error),
        })
    }

    /// Checks the arguments against the kernel.
    fn check(&self, stream: &Stream, args: &Args<'_>) -> Result<(), LaunchError> {
        if *stream.device() != self.device {
            return Err(LaunchError::StreamDevice {
                kernel: self.kernel.name.clone(),
                device: self.device.numbered(),
                found: stream.device().numbered(),
            });
        }
        let problem = self.kernel.problem;
        if let Some(rows) = args.rows
            && (rows == 0 || rows > problem.shape.m || problem.shape.groups != Groups::One)
        {
            return Err(LaunchError::Rows { rows, problem });
        }
        for operand in Operand::ALL {
            match (args.operand(operand), operand.present(&problem)) {
                (Some(buffer), true) => self.check_operand(operand, buffer, args)?,
                (None, true) => {
                    let expected = operand.bytes(&problem);
                    return Err(LaunchError::MissingOperand { operand, expected, problem });
                }
                (Some(_), false) => return Err(LaunchError::SuperfluousOperand { operand, problem }),
                (None, false) => {}
            }
        }
        for (output, buffer) in args.given().filter(|(operand, _)| operand.is_output()) {
            let mut others = args.given().filter(|(operand, _)| *operand != output);
            if let Some((operand, _)) = others.find(|(_, other)| buffer.overlaps(other)) {
                return Err(LaunchError::Aliasing { output, operand });
            }
        }
        check_output_scale(problem.formats.c, args.c_scale)?;
        let gate = &self.gemm.spec().gate;
        vectors::check(&gate.expr, &self.names.vectors, &self.kernel.problem, &self.device, args)?;
        check_known_scalars(gate, &self.names.scalars, args.scalars)?;
        match args.weight_scales {
            // The result would be off by the scales' product, without a word.
            Some([gate_scale, up_scale])
                if self.names.scalars.is_empty() && [gate_scale, up_scale] != [1.0; 2] =>
            {
                Err(LaunchError::UnappliedScales { gate: gate.to_string(), gate_scale, up_scale })
            }
            _ => Ok(()),
        }
    }

    /// The arguments of one launch, in order; already checked.
    fn arguments<'a>(
        &'a self,
        launch: &'a Launch,
        args: &Args<'_>,
    ) -> Result<Vec<Argument<'a>>, LaunchError> {
        let c_scale = args.c_scale.unwrap_or(1.0);
        let gate = &self.gemm.spec().gate;
        launch
            .parameters
            .iter()
            .map(|parameter| match parameter {
                Parameter::TensorMap(recipe) => {
                    Ok(Argument::TensorMap(args.in_rows(recipe, &self.kernel.problem)))
                }
                Parameter::Pointer(operand) => Ok(Argument::Pointer(*operand)),
                Parameter::Workspace(buffer) => Ok(Argument::Workspace(buffer)),
                Parameter::Scalar(name) => scalar(gate, args.scalars, name).map(Argument::F32),
                Parameter::Rows => Ok(Argument::U32(args.rows.unwrap_or(self.kernel.problem.shape.m))),
                Parameter::OutputScale => Ok(Argument::F32(c_scale)),
                Parameter::Vector(vector) => Ok(Argument::Vector(&vector.name)),
            })
            .collect()
    }

    fn check_operand(&self, operand: Operand, buffer: &Buffer, args: &Args<'_>) -> Result<(), LaunchError> {
        if *buffer.device() != self.device {
            let (found, device) = (buffer.device().numbered(), self.device.numbered());
            return Err(LaunchError::OperandDevice { operand, found, device });
        }
        let problem = self.kernel.problem;
        let expected = match args.rows {
            // Rows have one length.
            Some(rows) if operand == Operand::A && buffer.len() as u64 != operand.bytes(&problem) => {
                operand.bytes(&problem) / u64::from(problem.shape.m) * u64::from(rows)
            }
            _ => operand.bytes(&problem),
        };
        if buffer.len() as u64 != expected {
            return Err(LaunchError::Length { operand, found: buffer.len(), expected, problem });
        }
        let alignment = operand.alignment(&problem);
        if !buffer.is_aligned(alignment as usize) {
            return Err(LaunchError::Alignment { operand, alignment });
        }
        Ok(())
    }
}

impl fmt::Debug for LoadedKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LoadedKernel({} on {})", self.kernel.name, self.device)
    }
}

/// Checks the scale of the whole C; 1 for formats without one.
fn check_output_scale(format: OutputFormat, given: Option<f32>) -> Result<f32, LaunchError> {
    match (given, format.has_tensor_scale()) {
        (None, false) => Ok(1.0),
        (Some(value), true) if value.is_finite() && value > 0.0 => Ok(value),
        _ => Err(LaunchError::OutputScale { given, format }),
    }
}

/// Checks that every scalar of the gate has one value and that no other value is given.
pub(super) fn check_scalars(gate: &Gate, given: &[(&str, f32)]) -> Result<(), LaunchError> {
    check_known_scalars(gate, &gate.expr.scalars(), given)
}

fn check_known_scalars(gate: &Gate, known: &[String], given: &[(&str, f32)]) -> Result<(), LaunchError> {
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
    use silumin_codegen::problem::{Formats, OperandFormat, PreactivationFormat, Problem, Shape};
    use silumin_codegen::spec::Spec;

    /// 130 x 1001 x 1056: every tensor of another size than its neighbours', scales padded.
    const SHAPE: Shape = Shape::new(130, 1001, 1056);

    struct Setup {
        device: Device,
        kernel: LoadedKernel,
        /// In the order of `Operand::ALL`.
        buffers: Vec<Option<Buffer>>,
        c_scale: Option<f32>,
    }

    impl Setup {
        fn new(gate: &str) -> Self {
            let device = Device::emulated(Arch::Sm100a);
            let gemm = DualGemm::new(Spec::new(gate.parse().unwrap(), &[Arch::Sm100a]).unwrap());
            let kernel = gemm.load(&device, SHAPE).unwrap();
            Self::of(device, kernel)
        }

        /// The launch of a kernel that says it is for other formats: what is checked of arguments does
        /// not depend on its text.
        fn in_formats(formats: Formats) -> Self {
            let mut setup = Self::new(SWIGLU);
            let mut kernel = setup.kernel.kernel().clone();
            kernel.problem = Problem::dual(Shape::new(130, 1024, 1056), formats);
            if formats.c.has_tensor_scale() {
                kernel.launches[0].parameters.push(Parameter::OutputScale);
            }
            setup.kernel.kernel = Arc::new(kernel);
            Self::of(setup.device, setup.kernel)
        }

        fn of(device: Device, kernel: LoadedKernel) -> Self {
            let problem = kernel.kernel().problem;
            let buffer = |operand: Operand| device.alloc(operand.bytes(&problem) as usize).unwrap();
            let buffers = Operand::ALL.map(|operand| operand.present(&problem).then(|| buffer(operand)));
            let c_scale = problem.formats.c.has_tensor_scale().then_some(0.5);
            Self { device: device.clone(), kernel, buffers: buffers.to_vec(), c_scale }
        }

        fn present(&self) -> Vec<Operand> {
            Operand::ALL
                .into_iter()
                .filter(|operand| operand.present(&self.kernel.kernel().problem))
                .collect()
        }

        fn len(&self, operand: Operand) -> usize {
            self.buffers[operand as usize].as_ref().map_or(0, Buffer::len)
        }

        fn with(mut self, operand: Operand, buffer: Buffer) -> Self {
            self.buffers[operand as usize] = Some(buffer);
            self
        }

        fn without(mut self, operand: Operand) -> Self {
            self.buffers[operand as usize] = None;
            self
        }

        fn args<'a>(&'a self, scalars: &'a [(&'a str, f32)]) -> Args<'a> {
            let all: Vec<_> = self.buffers.iter().map(Option::as_ref).collect();
            let [Some(a), Some(b1), Some(b2), sfa, sfb1, sfb2, Some(c), sfc, offsets, d1, d2] = all[..]
            else {
                panic!("operands and C are always there")
            };
            let c_scale = self.c_scale;
            Args {
                a,
                b1,
                b2: Some(b2),
                sfa,
                sfb1,
                sfb2,
                c,
                sfc,
                c_scale,
                offsets,
                d1,
                d2,
                scalars,
                vectors: &[],
                rows: None,
                weight_scales: None,
            }
        }

        fn arguments(&self, scalars: &[(&str, f32)]) -> Result<Vec<Argument<'_>>, LaunchError> {
            let args = self.args(scalars);
            self.kernel.check(&self.device.stream(), &args)?;
            self.kernel.arguments(&self.kernel.kernel.launches[0], &args)
        }
    }

    /// Every tensor there is.
    const BLOCK_SCALED: Formats = Formats {
        preactivations: Some(PreactivationFormat::Bf16),
        ..Formats::new(OperandFormat::Nvfp4, OperandFormat::Nvfp4, OutputFormat::Nvfp4)
    };

    const SWIGLU: &str = "silu(A @ B1) * (A @ B2)";
    const SCALED: &str = "silu(alpha * (X @ Wg)) * (alpha * (X @ Wu))";

    #[test]
    fn maps_of_a_are_kept_by_the_rows_that_it_has() {
        let setup = Setup::new(SWIGLU);
        let a = setup.buffers[0].as_ref().unwrap();
        let short = a.slice(0, a.len() / 130 * 65).unwrap();
        let problem = setup.kernel.kernel().problem;
        let rows_of = |a, rows| Args { rows, ..Args::new(a, a, a, a) }.rows_of_a(&problem);
        assert_eq!(
            [rows_of(a, None), rows_of(a, Some(65)), rows_of(&short, Some(65))],
            [None, None, Some(65)]
        );
    }

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
                Argument::U32(value) => value.to_string(),
                Argument::F32(value) => value.to_string(),
                Argument::Vector(name) => format!("{name}[]"),
            })
            .collect();
        assert_eq!(kinds, ["a_map", "b1_map", "b2_map", "sfa_map", "sfb1_map", "sfb2_map", "c", "0.5"]);
    }

    #[test]
    fn each_tensor_has_exactly_its_length() {
        for (operand, change) in
            Setup::in_formats(BLOCK_SCALED).present().into_iter().flat_map(|o| [(o, -1isize), (o, 1)])
        {
            {
                let setup = Setup::in_formats(BLOCK_SCALED);
                let right = setup.len(operand);
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
        for operand in Setup::in_formats(BLOCK_SCALED).present() {
            let setup = Setup::in_formats(BLOCK_SCALED);
            let len = setup.len(operand);
            let shifted = setup.device.alloc(len + 16).unwrap();
            let error = setup.with(operand, shifted.slice(8, len).unwrap()).arguments(&[]).unwrap_err();
            assert!(matches!(error, LaunchError::Alignment { operand: named, .. } if named == operand));
            let setup = Setup::in_formats(BLOCK_SCALED).with(operand, other.alloc(len).unwrap());
            let error = setup.arguments(&[]).unwrap_err();
            assert!(matches!(error, LaunchError::OperandDevice { operand: named, .. } if named == operand));
        }
        let setup = Setup::new(SWIGLU);
        let error = setup.kernel.launch(&other.stream(), &setup.args(&[])).unwrap_err();
        assert!(matches!(error, LaunchError::StreamDevice { .. }), "{error}");
    }

    #[test]
    fn outputs_have_memory_of_their_own_and_inputs_may_share() {
        for output in [Operand::C, Operand::Sfc, Operand::D1, Operand::D2] {
            let others = Setup::in_formats(BLOCK_SCALED).present();
            for operand in others.into_iter().filter(|operand| *operand != output) {
                let setup = Setup::in_formats(BLOCK_SCALED);
                let [other, own] = [operand, output].map(|operand| setup.len(operand));
                let both = setup.device.alloc(other.next_multiple_of(16) + own).unwrap();
                let apart = both.slice(other.next_multiple_of(16), own).unwrap();
                let setup = setup
                    .with(operand, both.slice(0, other).unwrap())
                    .with(output, both.slice((other - 1) / 16 * 16, own).unwrap());
                let error = setup.arguments(&[]).unwrap_err();
                let LaunchError::Aliasing { output: first, operand: second } = error else {
                    panic!("{error}")
                };
                assert!([first, second] == [output, operand] || [second, first] == [output, operand]);
                setup.with(output, apart).arguments(&[]).unwrap();
            }
        }
        let setup = Setup::new(SWIGLU);
        let b1 = setup.buffers[Operand::B1 as usize].clone().unwrap();
        setup.with(Operand::B2, b1).arguments(&[]).unwrap();
    }

    #[test]
    fn tensors_are_those_of_the_formats() {
        for c in OutputFormat::ALL {
            for (a, preactivations) in [
                (OperandFormat::Nvfp4, None),
                (OperandFormat::Mxfp8, Some(PreactivationFormat::F32)),
                (OperandFormat::Bf16, Some(PreactivationFormat::F16)),
            ] {
                let formats = Formats { preactivations, ..Formats::new(a, a, c) };
                let setup = Setup::in_formats(formats);
                let problem = setup.kernel.kernel().problem;
                setup.arguments(&[]).unwrap();
                let scaled = a.spec().scales.is_some();
                let kept = if preactivations.is_some() { 2 } else { 0 };
                let expected = 4 + if scaled { 3 } else { 0 } + usize::from(c.scales().is_some()) + kept;
                assert_eq!(setup.present().len(), expected);
                use Operand::{D1, D2, Sfa, Sfb1, Sfb2, Sfc};
                for operand in [Sfa, Sfb1, Sfb2, Sfc, D1, D2] {
                    let setup = Setup::in_formats(formats);
                    if operand.present(&problem) {
                        let error = setup.without(operand).arguments(&[]).unwrap_err();
                        assert!(
                            matches!(error, LaunchError::MissingOperand { operand: named, .. } if named == operand)
                        );
                        assert!(error.to_string().starts_with(&format!("`{operand}` is missing")), "{error}");
                    } else {
                        let buffer = setup.device.alloc(512).unwrap();
                        let error = setup.with(operand, buffer).arguments(&[]).unwrap_err();
                        assert!(
                            matches!(error, LaunchError::SuperfluousOperand { operand: named, .. } if named == operand)
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn the_scale_of_c_is_there_where_its_format_has_one() {
        let launch = |c, c_scale| {
            let mut setup = Setup::in_formats(Formats { c, ..Formats::default() });
            setup.c_scale = c_scale;
            let arguments = setup
                .arguments(&[])
                .map(|arguments| arguments.last().copied().map(|last| format!("{last:?}")));
            arguments.map_err(|error| error.to_string())
        };
        assert_eq!(launch(OutputFormat::Nvfp4, Some(0.25)), Ok(Some("F32(0.25)".to_owned())));
        for wrong in [None, Some(0.0), Some(-1.0), Some(f32::NAN), Some(f32::INFINITY)] {
            let error = launch(OutputFormat::Nvfp4, wrong).unwrap_err();
            assert!(error.contains("scale of C") && error.contains("above 0"), "{error}");
        }
        for c in OutputFormat::ALL.into_iter().filter(|c| !c.has_tensor_scale()) {
            assert!(launch(c, None).is_ok());
            assert!(launch(c, Some(1.0)).unwrap_err().contains("leave it out"));
        }
    }

    #[test]
    fn args_are_built_of_what_there_is() {
        let setup = Setup::in_formats(BLOCK_SCALED);
        let args = setup.args(&[("x", 1.0)]);
        let built = Args::new(args.a, args.b1, args.b2.unwrap(), args.c)
            .scales(args.sfa.unwrap(), args.sfb1.unwrap(), args.sfb2.unwrap())
            .output_scales(args.sfc.unwrap())
            .output_scale(0.5)
            .preactivations(args.d1.unwrap(), args.d2.unwrap())
            .scalars(&[("x", 1.0)]);
        assert_eq!(format!("{built:?}"), format!("{args:?}"));
        assert_eq!(args.given().map(|(operand, _)| operand).collect::<Vec<_>>(), setup.present());
        let plain = Args::new(args.a, args.b1, args.b2.unwrap(), args.c);
        let given: Vec<_> = plain.given().map(|(operand, _)| operand).collect();
        assert_eq!(given, [Operand::A, Operand::B1, Operand::B2, Operand::C]);
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
