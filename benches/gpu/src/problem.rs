//! A problem on the device: several sets of operands, the expected results, and the check of a launch.

use crate::compare::{self, Errors};
use crate::job::Job;
use crate::reference::{self, Products};
use crate::{inputs, raw};
use cudarc::driver::CudaStream;
use silumin_codegen::gate::{Expr, Product};
use silumin_codegen::problem::{Formats, Operation, OutputFormat, Shape};
use silumin_codegen::spec::Spec;
use silumin_runtime::device::{Buffer, Device, Stream};
use silumin_runtime::gemm::{Args, DeviceOperands, LoadedKernel};
use silumin_verify::vectors::GateVectors;
use std::sync::Arc;

/// The peers' script has as many sets of operands as take about this many bytes, at least 2 and at most 16.
const SET_BYTES: f64 = 200e6;

/// A tensor that a kernel writes, and its expected values.
struct Output {
    name: &'static str,
    /// The operands' formats, with the tensor's own format as C's.
    formats: Formats,
    want: Vec<f64>,
    limit: f64,
}

/// See the module.
pub struct Problem {
    /// Where it is.
    pub device: Device,
    /// The stream for launches.
    stream: Stream,
    /// The same, cudarc's.
    pub cuda: Arc<CudaStream>,
    /// Its sizes.
    pub shape: Shape,
    sets: Vec<DeviceOperands>,
    vectors: Vec<(String, Buffer)>,
    scalars: Vec<(String, f32)>,
    /// C first.
    outputs: Vec<Output>,
}

/// Formats any error.
fn words(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Opens a stream for capturing. cudarc's order between streams uses events, which this program does not need: there
/// is one stream for kernels, and copies wait for it.
pub fn open(device: &Device) -> Result<Stream, String> {
    let own = device.stream();
    let cuda = own.cuda().ok_or("the device is no GPU")?;
    // SAFETY: all work on memory is on one stream, or waited for before another one has it.
    unsafe { cuda.context().disable_event_tracking() };
    device.new_stream().map_err(words)
}

impl Problem {
    /// Draws operands, and computes the expected results of `spec`'s gate.
    pub fn new(
        job: &Job,
        device: &Device,
        stream: &Stream,
        shape: Shape,
        spec: &Spec,
    ) -> Result<Self, String> {
        let cuda = stream.cuda().ok_or("the device is no GPU")?.clone();
        let formats = spec.formats;
        let inputs = inputs::draw(shape, formats, &job.inputs, job.seed)?;
        let mut operands = DeviceOperands::upload(device, &inputs).map_err(words)?;
        let products = Products::new(device, &cuda, &inputs, &operands)?;
        let output = |name, c: OutputFormat, expr: &Expr| -> Result<Output, String> {
            let want = products.through(expr, &inputs, &job.scalars)?;
            let formats = Formats { c, ..formats };
            let limit = job.limit.unwrap_or_else(|| compare::limit(&formats, &want));
            Ok(Output { name, formats, want, limit })
        };
        let expr = &spec.gate.expr;
        let mut outputs = vec![output("C", formats.c, expr)?];
        if let Some(kept) = formats.preactivations {
            outputs.push(output("D1", kept.as_output(), &expr.pre_activation(Product::First))?);
            outputs.push(output("D2", kept.as_output(), &expr.pre_activation(Product::Second))?);
        }
        drop(products);
        if spec.operation() == Operation::Gemm {
            (operands.b2, operands.sfb2) = (None, None);
        }
        if formats.c.has_tensor_scale() {
            operands.c_scale = Some(reference::output_scale(&outputs[0].want));
        }
        let drawn = GateVectors::draw(&expr.vectors(), &spec.problem(shape), job.seed);
        let vectors = silumin_runtime::gemm::upload_vectors(&drawn, device).map_err(words)?;
        let bytes: usize = inputs_of(&operands).iter().map(|buffer| buffer.len()).sum();
        let count = if job.check_only { 1 } else { ((SET_BYTES / bytes as f64) as usize + 1).clamp(2, 16) };
        let mut sets = vec![operands];
        while sets.len() < count {
            sets.push(copied(&cuda, &sets[0])?);
        }
        device.stream().synchronize().map_err(words)?;
        cuda.synchronize().map_err(|e| raw::said("cuStreamSynchronize", e))?;
        let scalars = job.scalars.clone();
        let (device, stream) = (device.clone(), stream.clone());
        Ok(Problem { device, stream, cuda, shape, sets, vectors, scalars, outputs })
    }

    /// The stream for launches.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Sets of operands.
    pub fn sets(&self) -> usize {
        self.sets.len()
    }

    /// Launches a kernel on one of the sets.
    pub fn launch(&self, kernel: &LoadedKernel, set: usize) -> Result<(), String> {
        let scalars: Vec<(&str, f32)> =
            self.scalars.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        let vectors: Vec<_> = self.vectors.iter().map(|(name, buffer)| (name.as_str(), buffer)).collect();
        let args = Args { vectors: &vectors, ..self.sets[set].args(&scalars) };
        kernel.launch(&self.stream, &args).map(drop).map_err(words)
    }

    /// Fills the outputs with the poison byte.
    pub fn poison(&self) -> Result<(), String> {
        for buffer in self.sets.iter().flat_map(outputs_of) {
            let address = buffer.cuda_address().unwrap_or(0);
            // SAFETY: the buffer is so long.
            unsafe { raw::fill(&self.cuda, address, compare::POISON, buffer.len())? };
        }
        Ok(())
    }

    /// Waits for the work in the stream.
    pub fn synchronize(&self) -> Result<(), String> {
        self.cuda.synchronize().map_err(|e| raw::said("the launch", e))
    }

    /// Compares everything that a kernel wrote to a set. Returns the worst tensor's name (C, or the first that is
    /// wrong) and its errors.
    pub fn judge(&self, kernel: &LoadedKernel, set: usize) -> Result<(&'static str, Errors), String> {
        let narrow = (narrow_error(kernel), kernel.kernel().problem.operation.products() > 1);
        let mut of_c = None;
        for output in &self.outputs {
            let errors = self.compare(output, narrow, &self.sets[set])?;
            if !errors.pass() {
                return Ok((output.name, errors));
            }
            of_c = of_c.or(Some(errors));
        }
        of_c.map(|errors| ("C", errors)).ok_or_else(|| "a problem has a C".to_owned())
    }

    fn compare(
        &self,
        output: &Output,
        narrow: (f64, bool),
        operands: &DeviceOperands,
    ) -> Result<Errors, String> {
        let Output { formats, want, limit, .. } = output;
        let columns = self.shape.n as usize;
        let plain = |buffer: &Buffer| -> Result<Errors, String> {
            let bytes = buffer.download().map_err(words)?;
            Ok(compare::compare(formats, columns, narrow, *limit, &bytes, None, want))
        };
        match (output.name, &operands.d1, &operands.d2, formats.c.scales()) {
            ("D1", Some(d1), _, _) => plain(d1),
            ("D2", _, Some(d2), _) => plain(d2),
            (_, _, _, None) => plain(&operands.c),
            (_, _, _, Some(_)) => {
                let output = operands.output().map_err(words)?;
                let unwritten = output.scales().iter().filter(|byte| **byte == compare::POISON).count();
                let errors =
                    compare::compare(formats, columns, narrow, *limit, &[], Some(&output.decode()), want);
                Ok(Errors { unwritten: unwritten as u64, ..errors })
            }
        }
    }
}

/// Error bound of a kernel's sums for tensor cores that keep fewer bits of them than f32.
fn narrow_error(kernel: &LoadedKernel) -> f64 {
    let silumin_codegen::kernel::Kernel { problem, arch, .. } = kernel.kernel();
    let Ok(plan) = kernel.dual_gemm().plan(problem.shape, *arch) else { return 0.0 };
    let Some(k) = plan.narrow_sums() else { return 0.0 };
    compare::narrow_error(k.div_ceil(plan.kind.mma_k()))
}

/// Tensors that a kernel reads.
fn inputs_of(operands: &DeviceOperands) -> Vec<&Buffer> {
    let optional = [&operands.b2, &operands.sfa, &operands.sfb1, &operands.sfb2];
    [&operands.a, &operands.b1].into_iter().chain(optional.into_iter().flatten()).collect()
}

/// Tensors that a kernel writes.
fn outputs_of(operands: &DeviceOperands) -> Vec<&Buffer> {
    let optional = [&operands.sfc, &operands.d1, &operands.d2];
    std::iter::once(&operands.c).chain(optional.into_iter().flatten()).collect()
}

/// Copies a set of operands to memory of its own.
fn copied(cuda: &CudaStream, from: &DeviceOperands) -> Result<DeviceOperands, String> {
    let copy = |buffer: &Buffer| -> Result<Buffer, String> {
        let made = buffer.device().alloc(buffer.len()).map_err(words)?;
        buffer.device().stream().synchronize().map_err(words)?;
        let [source, target] = [buffer, &made].map(|buffer| buffer.cuda_address().unwrap_or(0));
        // SAFETY: both buffers are so long.
        unsafe { raw::copy(cuda, target, source, buffer.len())? };
        Ok(made)
    };
    let each = |buffer: &Option<Buffer>| buffer.as_ref().map(copy).transpose();
    let mut made = from.clone();
    (made.a, made.b1, made.b2, made.c) = (copy(&from.a)?, copy(&from.b1)?, each(&from.b2)?, copy(&from.c)?);
    (made.sfa, made.sfb1, made.sfb2) = (each(&from.sfa)?, each(&from.sfb1)?, each(&from.sfb2)?);
    (made.sfc, made.d1, made.d2) = (each(&from.sfc)?, each(&from.d1)?, each(&from.d2)?);
    Ok(made)
}
