//! Kernels on a device: operand sets, correctness, times.

use silumin_codegen::problem::Shape;
use silumin_verify::vectors::GateVectors;

use super::TuneError;
use crate::device::{Buffer, Device, DeviceError, Stream};
use crate::gemm::{
    Args, DeviceOperands, DualGemm, Expectation, LoadedKernel, Sample, VerifyError, output_scale,
    upload_vectors,
};
use silumin_verify::check::CheckReport;
use silumin_verify::inputs::{Distribution, DualGemmInputs};

/// Bytes of operands that exceed every L2.
#[cfg(feature = "cuda")]
const SET_BYTES: u64 = 256 << 20;

/// A problem on a device with its operands, on which any number of kernels can run.
pub(super) struct Bench {
    device: Device,
    stream: Stream,
    inputs: DualGemmInputs,
    scalars: Vec<(String, f32)>,
    vectors: Vec<(String, Buffer)>,
    sets: Vec<DeviceOperands>,
    /// Expected results, one for each way in which kernels sum.
    expected: Vec<Expectation>,
    /// Multiply-adds that the reference may take.
    macs: f64,
}

impl Bench {
    /// Draws operands and uploads one set.
    pub fn new(
        device: &Device,
        gemm: &DualGemm,
        shape: Shape,
        scalars: &[(String, f32)],
        seed: u64,
        macs: f64,
    ) -> Result<Self, TuneError> {
        let spec = gemm.spec();
        let (problem, sizes) = (spec.problem(shape), shape.even_sizes());
        let drawn = DualGemmInputs::generate_problem(&problem, Some(&sizes), Distribution::Benchmark, seed);
        let inputs = drawn.map_err(VerifyError::from)?;
        let vectors = upload_vectors(&GateVectors::draw(&spec.gate.expr.vectors(), &problem, seed), device)?;
        let sets = vec![DeviceOperands::upload(device, &inputs)?];
        let stream = device.new_stream()?;
        let (device, scalars) = (device.clone(), scalars.to_vec());
        Ok(Self { device, stream, inputs, scalars, vectors, sets, expected: Vec::new(), macs })
    }

    /// Allocates enough operand sets to exceed L2, as far as memory allows, at most `most`.
    #[cfg(feature = "cuda")]
    pub fn fill(&mut self, most: usize) -> Result<(), TuneError> {
        let bytes = self.inputs.problem().compulsory_bytes().max(1);
        let count = SET_BYTES.div_ceil(bytes).clamp(1, most as u64) as usize;
        while self.sets.len() < count {
            match DeviceOperands::upload(&self.device, &self.inputs) {
                Ok(mut set) => {
                    set.c_scale = self.sets[0].c_scale;
                    self.sets.push(set);
                }
                Err(VerifyError::Device(DeviceError::OutOfMemory { .. })) => break,
                Err(error) => return Err(error.into()),
            }
        }
        // Copies are on the device's own stream.
        Ok(self.device.stream().synchronize()?)
    }

    /// Sets of operands.
    #[cfg(feature = "cuda")]
    pub fn sets(&self) -> usize {
        self.sets.len()
    }

    /// The stream for launches.
    #[cfg(feature = "cuda")]
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Enqueues a launch on one of the sets.
    pub fn launch(&self, kernel: &LoadedKernel, set: usize) -> Result<(), VerifyError> {
        let scalars: Vec<(&str, f32)> =
            self.scalars.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        let vectors: Vec<_> = self.vectors.iter().map(|(name, buffer)| (name.as_str(), buffer)).collect();
        let args = Args { vectors: &vectors, ..self.sets[set].args(&scalars) };
        kernel.launch(&self.stream, &args)?;
        Ok(())
    }

    /// Waits for the stream.
    pub fn wait(&self) -> Result<(), DeviceError> {
        self.stream.synchronize()
    }

    /// The expected results for kernels that sum as this one does.
    fn expectation(&mut self, kernel: &LoadedKernel) -> Result<usize, VerifyError> {
        let narrow = kernel.narrow_sums();
        if let Some(place) = self.expected.iter().position(|known| known.is_for(narrow)) {
            return Ok(place);
        }
        let spec = kernel.dual_gemm().spec();
        let sample = Sample::of(&self.inputs.problem(), self.macs, self.inputs.seed());
        let scalars: Vec<(&str, f32)> =
            self.scalars.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        let expected = Expectation::new(spec, &self.inputs, &scalars, sample, narrow, kernel.kernel().arch)?;
        if self.expected.is_empty() && self.inputs.formats().c.has_tensor_scale() {
            self.sets[0].c_scale = Some(output_scale(expected.c()));
        }
        self.expected.push(expected);
        Ok(self.expected.len() - 1)
    }

    /// Poisons the outputs and launches the kernel once.
    pub fn check(&mut self, kernel: &LoadedKernel) -> Result<CheckReport, VerifyError> {
        let expected = self.expectation(kernel)?;
        self.poison(0)?;
        self.launch(kernel, 0)?;
        self.wait()?;
        self.expected[expected].judge(&self.sets[0])
    }

    /// Compares the outputs in a set with the expected results.
    #[cfg(feature = "cuda")]
    pub fn judge(&mut self, kernel: &LoadedKernel, set: usize) -> Result<CheckReport, VerifyError> {
        let expected = self.expectation(kernel)?;
        self.expected[expected].judge(&self.sets[set])
    }

    /// Poisons the outputs of a set.
    pub fn poison(&self, set: usize) -> Result<(), VerifyError> {
        let set = &self.sets[set];
        set.c.write(&self.inputs.initial_output_bytes())?;
        if let (Some(sfc), Some(scales)) = (&set.sfc, self.inputs.initial_output_scales()?) {
            sfc.write(&scales)?;
        }
        if let Some(bytes) = self.inputs.initial_preactivation_bytes() {
            for kept in [&set.d1, &set.d2].into_iter().flatten() {
                kept.write(&bytes)?;
            }
        }
        Ok(self.device.stream().synchronize()?)
    }
}
