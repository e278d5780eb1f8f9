//! Measures many configurations of one problem on the same operands, with the reference computed once.

use silumin::codegen::config::Schedule;
use silumin::codegen::kernel::Kernel;
use silumin::codegen::plan::Plan;
use silumin::codegen::spec::Spec;
use silumin::runtime::gemm::LaunchReport;
use silumin::runtime::gemm::{
    DeviceOperands, expected, expected_preactivations, output_scale, upload_vectors,
};
use silumin::runtime::predict::{Chip, KernelPrediction, TimeOptions, predict};
use silumin::verify::check::{CheckReport, check_output, check_preactivations};
use silumin::verify::inputs::DualGemmInputs;
use silumin::verify::reference::Reference;
use silumin::verify::toolchain::Ptxas;
use silumin::verify::vectors::GateVectors;
use silumin::{
    Arch, Args, Buffer, Device, DeviceError, Distribution, DualGemm, EmulatorOptions, GroupSizes, Shape,
};
use std::collections::BTreeSet;

/// Predicted time of a kernel on a chip, with groups as even as possible.
pub fn predicted(kernel: &Kernel, chip: &str) -> Result<KernelPrediction, String> {
    let shape = kernel.problem.shape;
    let chip = Chip::named(chip).map_err(|e| e.to_string())?;
    let sizes = shape.groups.by_rows().then(|| GroupSizes::new(shape, &shape.even_sizes()));
    let sizes = sizes.transpose().map_err(|e| e.to_string())?;
    predict(kernel, sizes.as_ref(), &TimeOptions::new(chip)).map_err(|e| e.to_string())
}

/// Operands on an emulated device, and the expected results.
pub struct Bench {
    device: Device,
    shape: Shape,
    operands: DeviceOperands,
    /// The gate's vectors, by name.
    vectors: Vec<(String, Buffer)>,
    /// Contents of the outputs before a launch.
    poison: Vec<(Buffer, Vec<u8>)>,
    reference: Reference,
    /// References of D1 and D2, if the kernel stores them.
    preactivations: Option<Vec<Reference>>,
    scalars: Vec<(String, f32)>,
}

impl Bench {
    /// Draws operands in the formats of `spec` as the public benchmark does, and computes the reference for its gate. Groups of
    /// rows are as even as they can be, which is what plans are modelled for.
    pub fn new(
        spec: &Spec,
        arch: Arch,
        shape: Shape,
        seed: u64,
        scalars: &[(String, f32)],
        threads: usize,
    ) -> Result<Self, String> {
        let formats = spec.formats;
        let (problem, sizes) = (spec.problem(shape), shape.even_sizes());
        let inputs = DualGemmInputs::generate_problem(&problem, Some(&sizes), Distribution::Benchmark, seed);
        let inputs = inputs.map_err(|e| e.to_string())?;
        let device = Device::emulated_with(arch, EmulatorOptions { threads, ..EmulatorOptions::default() });
        let mut operands = DeviceOperands::upload(&device, &inputs).map_err(|e| e.to_string())?;
        let given = borrowed(scalars);
        let reference = expected(spec, &inputs, &given).map_err(|e| e.to_string())?;
        if formats.c.has_tensor_scale() {
            operands.c_scale = Some(output_scale(&reference));
        }
        let preactivations = formats.preactivations.map(|_| expected_preactivations(spec, &inputs, &given));
        let preactivations = preactivations.transpose().map_err(|e| e.to_string())?;
        let vectors = upload_vectors(&GateVectors::draw(&spec.gate.expr.vectors(), &problem, seed), &device);
        let outputs = [Some(&operands.c), operands.sfc.as_ref(), operands.d1.as_ref(), operands.d2.as_ref()];
        let poison = outputs.into_iter().flatten().map(|output| Ok((output.clone(), output.download()?)));
        let poison: Result<_, DeviceError> = poison.collect();
        Ok(Bench {
            device,
            shape,
            vectors: vectors.map_err(|e| e.to_string())?,
            poison: poison.map_err(|e| e.to_string())?,
            operands,
            reference,
            preactivations,
            scalars: scalars.to_vec(),
        })
    }

    /// The problem's sizes.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Runs the kernels of `spec`, and compares every element with the reference.
    pub fn run(&self, spec: &Spec) -> Result<(CheckReport, LaunchReport), String> {
        let kernel = DualGemm::new(spec.clone()).load(&self.device, self.shape).map_err(|e| e.to_string())?;
        for (output, poison) in &self.poison {
            output.write(poison).map_err(|e| e.to_string())?;
        }
        let scalars = borrowed(&self.scalars);
        let vectors: Vec<_> = self.vectors.iter().map(|(name, vector)| (name.as_str(), vector)).collect();
        let args = Args { vectors: &vectors, ..self.operands.args(&scalars) };
        let launch = kernel.launch(&self.device.stream(), &args).map_err(|e| e.to_string())?;
        let got = self.operands.output().map_err(|e| e.to_string())?;
        let mut report = check_output(&got, &self.reference).map_err(|e| e.to_string())?;
        let kept = self.operands.preactivations().map_err(|e| e.to_string())?;
        if let (Some(kept), Some(references)) = (kept, &self.preactivations) {
            report = report
                .with_preactivations(check_preactivations(&kept, references).map_err(|e| e.to_string())?);
        }
        Ok((report, launch))
    }
}

fn borrowed(scalars: &[(String, f32)]) -> Vec<(&str, f32)> {
    scalars.iter().map(|(name, value)| (name.as_str(), *value)).collect()
}

/// The assembler's figures for all entries of a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Assembled {
    /// Registers per thread, the maximum over the entries.
    pub registers: u32,
    /// Bytes of spills and stack, over all entries.
    pub spills: u32,
}

/// Assembles a kernel.
pub fn assemble(ptxas: &Ptxas, kernel: &Kernel) -> Result<Assembled, String> {
    let assembled = ptxas.assemble(&kernel.ptx, kernel.arch).map_err(|e| e.to_string())?;
    Ok(Assembled {
        registers: assembled.entries.iter().map(|entry| entry.registers).max().unwrap_or(0),
        spills: assembled.entries.iter().map(|e| e.spill_stores + e.spill_loads + e.stack_frame).sum(),
    })
}

/// Bytes and MMAs, as counted by the emulator or computed by the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// Bytes read from global memory.
    pub read: u64,
    /// Bytes written to it.
    pub written: u64,
    /// MMAs issued; one of a CTA pair counts once.
    pub mmas: u64,
}

impl Counted {
    /// The emulator's count of a run of `plan`'s kernels.
    pub fn of(plan: &Plan, report: &LaunchReport) -> Option<Counted> {
        let stats = report.emulator.as_ref()?;
        Some(Counted {
            read: stats.global_read + stats.tma_read,
            written: stats.global_written + stats.tma_written,
            mmas: stats.mma_macs.values().sum::<u64>() / plan.mma_macs(),
        })
    }

    /// Whether the counts equal the plan's. With cluster launch control the plan cannot know how many clusters start,
    /// and so how often the row offsets of groups are read.
    pub fn agrees(&self, plan: &Plan) -> bool {
        let modelled = Self::modelled(plan);
        let unread: u64 = match plan.work.schedule {
            Schedule::Dynamic => plan.traffic().iter().map(|traffic| traffic.offsets).sum(),
            _ => 0,
        };
        (modelled.read - unread..=modelled.read).contains(&self.read)
            && (self.written, self.mmas) == (modelled.written, modelled.mmas)
    }

    /// The plan's figures.
    pub fn modelled(plan: &Plan) -> Counted {
        let (read, written) = plan.moved_bytes();
        Counted { read, written, mmas: plan.mmas_issued() }
    }
}

/// Number of entries of a kernel's module that are launched.
pub fn entries(kernel: &Kernel) -> usize {
    kernel.launches.iter().map(|launch| launch.entry.as_str()).collect::<BTreeSet<_>>().len()
}
