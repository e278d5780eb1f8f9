//! The gated MLPs of a mixture of experts: each token's experts, weighted and summed.
//!
//! * `mod.rs`: [`Experts`]: load it with the model, call [`Experts::forward`] with what the router chose.
//! * `weights.rs`: [`ExpertsWeights`], the experts of a layer.
//! * `route.rs`: tokens to the rows of their experts, and rows back to tokens.
//! * `memory.rs`: what the kernels hand to one another.
//! * `graph.rs`: [`ExpertsGraph`], a call that is recorded once.

mod graph;
mod memory;
mod route;
mod weights;

pub use graph::ExpertsGraph;
pub use weights::ExpertsWeights;

use silumin_codegen::problem::{Problem, Shape};

use super::parts::Travel;
use super::{Activation, MlpError, MlpWeights, Source, behind_another, reference, spec, travel};
use crate::device::{Args, Buffer, Device, Stream};
use crate::gemm::{DualGemm, LoadedKernel};
use crate::nvtx::range;
use crate::warmup::{Buckets, Kernels, Warmup};
use crate::weights::Weight;
use memory::Memory;
use route::{Router, Tokens};
use weights::Stack;

/// How the experts of a layer are loaded.
#[derive(Clone, Debug)]
pub struct ExpertsOptions {
    /// Numbers of tokens that kernels are made for; a call with fewer uses the next larger one.
    pub buckets: Buckets,
    /// Experts that each token chooses.
    pub top_k: u32,
    /// The activation.
    pub activation: Activation,
    /// The format of x, of the residual and of the result.
    pub source: Source,
    /// The number of the first of these experts. Choices of experts before it and behind the last add nothing, so that
    /// devices may have some of a layer's experts each, and sum their results.
    pub first_expert: u32,
}

impl ExpertsOptions {
    /// SiLU, bf16, experts from 0 on.
    #[must_use]
    pub fn new(buckets: Buckets, top_k: u32) -> Self {
        let (activation, source) = (Activation::Silu, Source::Bf16);
        ExpertsOptions { buckets, top_k, activation, source, first_expert: 0 }
    }

    /// Sets the activation.
    #[must_use]
    pub fn activation(self, activation: Activation) -> Self {
        ExpertsOptions { activation, ..self }
    }

    /// Sets the format of x, of the residual and of the result.
    #[must_use]
    pub fn source(self, source: Source) -> Self {
        ExpertsOptions { source, ..self }
    }

    /// Sets the number of the first expert.
    #[must_use]
    pub fn first_expert(self, first_expert: u32) -> Self {
        ExpertsOptions { first_expert, ..self }
    }
}

/// What a model's router chose for each token.
#[derive(Clone, Copy, Debug)]
pub struct Choices<'a> {
    /// Numbers of experts, i32 `[tokens, top_k]`, row-major. A number that is no expert's, -1 for example, adds nothing.
    pub experts: &'a Buffer,
    /// The weight of each choice, f32 `[tokens, top_k]`.
    pub weights: &'a Buffer,
}

/// The loaded experts of a layer: weights, kernels for all buckets, and memory between the kernels.
///
/// A call is five kernels: one sorts the choices by expert, one gathers x (and quantises it in the cases in which
/// [`Mlp`](super::Mlp) does), two multiply the rows of all experts, one sums. With FP8 weights and no scales of activations a sixth
/// quantises the intermediate activations. The host knows nothing of the choices, so that a CUDA
/// graph serves any. One call at a time: the memory between the kernels is the block's own, or that of all layers that share it.
///
/// ```
/// use silumin_codegen::arch::Arch;
/// use silumin_formats::quantize::{TensorScale, quantize};
/// use silumin_runtime::device::Device;
/// use silumin_runtime::mlp::{Choices, Experts, ExpertsOptions, ExpertsWeights, MlpWeights};
/// use silumin_runtime::warmup::Buckets;
/// use silumin_runtime::weights::{GateUp, Weight};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // Three experts, whose weights are all 1/8.
/// let (hidden, features) = (64, 128);
/// let eighths = |rows: usize, k: usize| quantize(&vec![0.125f32; rows * k], rows, k, TensorScale::FromMax);
/// let (gate, up, down) = (eighths(features, hidden)?, eighths(features, hidden)?, eighths(hidden, features)?);
/// let gate_up = GateUp::new(Weight::of(&gate)?, Weight::of(&up)?)?;
/// let weights = ExpertsWeights::new(vec![MlpWeights::new(gate_up, Weight::of(&down)?)?; 3])?;
///
/// let device = Device::emulated(Arch::Sm100a);
/// let experts = Experts::load(&device, &weights, &ExpertsOptions::new(Buckets::new([4])?, 2))?;
///
/// // Two tokens of ones: the first takes experts 2 and 0, half each, the second a quarter of expert 1 alone.
/// let (tokens, numbers, shares) = (2, [2i32, 0, 1, -1], [0.5f32, 0.5, 0.25, 0.0]);
/// let x = device.upload(&0x3F80u16.to_le_bytes().repeat(tokens as usize * hidden))?;
/// let out = device.alloc(x.len())?;
/// let numbers = device.upload(&numbers.map(i32::to_le_bytes).concat())?;
/// let shares = device.upload(&shares.map(f32::to_le_bytes).concat())?;
/// let choices = Choices { experts: &numbers, weights: &shares };
/// experts.forward(&device.stream(), tokens, &x, &choices, None, &out)?;
///
/// let bytes = out.download()?;
/// let value = |row: usize| {
///     let at = 2 * row * hidden;
///     f32::from_bits(u32::from(u16::from_le_bytes([bytes[at], bytes[at + 1]])) << 16)
/// };
/// assert_eq!([value(0), value(1)], [1056.0, 264.0]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Experts {
    device: Device,
    options: ExpertsOptions,
    hidden: usize,
    features: usize,
    count: u32,
    travel: Travel,
    gate: Stack,
    up: Stack,
    down: Stack,
    up_kernels: Kernels,
    down_kernels: Kernels,
    router: Router,
    memory: Memory,
    /// Scales of the whole tensors: of x, and of the intermediate activations.
    scales: [f32; 2],
    /// Widths, format and gates, in words: layers of one kind share kernels and the memory between them.
    kind: String,
}

impl std::fmt::Debug for Experts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Experts { device, hidden, features, count, .. } = self;
        write!(f, "Experts({count} of {hidden} -> {features} -> {hidden} on {device})")
    }
}

impl Experts {
    /// Uploads the weights, makes and loads the kernels of all buckets, and allocates what [`Experts::forward`] needs.
    ///
    /// # Errors
    ///
    /// [`MlpError::Formats`] where the chip multiplies 16-bit activations neither by the weights' format nor after
    /// quantising them; widths, buckets or choices that have no kernel; [`MlpError::HalfCalibrated`]; [`MlpError::Weights`];
    /// memory of the device.
    pub fn load(
        device: &Device,
        weights: &ExpertsWeights<'_>,
        options: &ExpertsOptions,
    ) -> Result<Self, MlpError> {
        Self::of(device, weights, options, None)
    }

    /// Loads another layer of the same widths, format and number of experts, with the same options. It shares this one's kernels
    /// and the memory between them, so that a model needs both once ([`Experts::shared_bytes`]): launch all layers that share in
    /// one stream, or one after the other.
    ///
    /// # Errors
    ///
    /// As [`Experts::load`]; [`MlpError::UnlikeLayer`] for another width, format or kind of scales.
    pub fn load_layer(&self, weights: &ExpertsWeights<'_>) -> Result<Self, MlpError> {
        Self::of(&self.device, weights, &self.options, Some(self))
    }

    fn of(
        device: &Device,
        weights: &ExpertsWeights<'_>,
        options: &ExpertsOptions,
        beside: Option<&Experts>,
    ) -> Result<Self, MlpError> {
        let (hidden, features, format) = (weights.hidden(), weights.features(), weights.format());
        let (n, k, count) = (features as u32, hidden as u32, weights.count() as u32);
        let sizes = options.buckets.sizes();
        let (most, top_k) = (sizes.last().copied().unwrap_or(1), options.top_k);
        let rows = |tokens: u32| tokens.checked_mul(top_k).filter(|rows| (1..1 << 31).contains(rows));
        let capacity = rows(most).ok_or(MlpError::TopK { top_k, tokens: most })?;
        let (first, limit) = (options.first_expert, 1 << 31);
        if u64::from(first) + u64::from(count) > limit {
            return Err(MlpError::FirstExpert { first, count: weights.count() });
        }
        // The kernels that gather and sum give each thread 16 elements.
        if !hidden.is_multiple_of(16) {
            return Err(MlpError::Hidden { hidden });
        }

        // Scales of whole tensors differ from expert to expert: a vector of each.
        let function = options.activation.function();
        let plain = format!("{function}(x @ gate) * (x @ up)");
        let shape = |rows: u32, n: u32, k: u32| Shape::new(rows, n, k).grouped(count);
        // An expert that no token reached in calibration has no scales, and takes those of the others.
        let mut calibrated = false;
        for (number, expert) in weights.experts().iter().enumerate() {
            calibrated |= expert.calibrated(Some(number))?;
        }
        let travel = travel(&plain, device, format, options.source, calibrated, shape(capacity, n, k))?;
        let x_scale = weights.scale_of(|expert| expert.gate_up.input_scale()).unwrap_or(1.0);
        let middle_scale =
            weights.scale_of(|expert| expert.middle_scale).unwrap_or_else(|| travel.middle_scale());
        let [x_scale, middle_scale] =
            if travel.scales_tensors() { [x_scale, middle_scale] } else { [1.0; 2] };
        // A kernel that rounds its result to e4m3 knows of no scale; the middle is linear in up.
        let up_factor = if travel == Travel::E4m3 { x_scale / middle_scale } else { x_scale };
        // A stack has scales if a product has one other than 1, or if the layer that it shares kernels with has them.
        let needs = |weight: for<'w> fn(&MlpWeights<'w>) -> Weight<'w>, factor: f32, like: Option<&Stack>| {
            let scaled = |expert| weight(expert).product_scales().any(|scale| factor * scale != 1.0);
            like.is_some_and(|stack| stack.tensor_scales.is_some()) || weights.experts().iter().any(scaled)
        };
        let needed = [
            needs(|expert| expert.gate_up.gate(), x_scale, beside.map(|layer| &layer.gate)),
            needs(|expert| expert.gate_up.up(), up_factor, beside.map(|layer| &layer.up)),
            needs(|expert| expert.down, middle_scale, beside.map(|layer| &layer.down)),
        ];
        let by_row = matches!(travel, Travel::E4m3Rows(_));
        let [x, h] = if by_row { ["x_scale[m] * ", "h_scale[m] * "] } else { [""; 2] };
        let scaled = |needed: bool, name: &str, product: String| match needed {
            true => format!("({name}[n] * {product})"),
            false => format!("({product})"),
        };
        let gate_x = scaled(needed[0], "gate_scale", format!("{x}(x @ gate)"));
        let up_x = scaled(needed[1], "up_scale", format!("{x}(x @ up)"));
        let first = format!("{function}({gate_x}) * {up_x}");
        let second = scaled(needed[2], "down_scale", format!("{h}(h @ down)"));
        let [first_formats, second_formats] = travel.formats(format, options.source);
        let warmed = |spec, n: u32, k: u32| -> Result<Kernels, MlpError> {
            let gemm = DualGemm::new(behind_another(spec));
            let shapes: Vec<Shape> =
                sizes.iter().filter_map(|tokens| rows(*tokens)).map(|rows| shape(rows, n, k)).collect();
            Ok(Warmup::of(&gemm).shapes(&shapes).run(device)?)
        };
        let kind = format!("{count} of {hidden} -> {features} -> {hidden} in {format}: {first}, {second}");
        let (up_kernels, down_kernels, router, memory) = match beside {
            Some(layer) if layer.kind == kind => (
                layer.up_kernels.clone(),
                layer.down_kernels.clone(),
                layer.router.scaled(x_scale),
                layer.memory.clone(),
            ),
            Some(layer) => {
                return Err(MlpError::UnlikeLayer { expected: layer.kind.clone(), found: kind });
            }
            None => {
                let up_kernels = warmed(spec(&first, device, first_formats)?, n, k)?;
                let down_kernels = warmed(spec(&second, device, second_formats)?, k, n)?;
                let experts = [options.first_expert, count];
                let router = Router::load(device, options.source, travel, x_scale, [k, top_k], experts)?;
                let problem = |kernels: &Kernels, n, k| -> Result<Problem, MlpError> {
                    Ok(kernels.for_shape(shape(capacity, n, k)).map_err(Box::new)?.kernel().problem)
                };
                let problems = [&problem(&up_kernels, n, k)?, &problem(&down_kernels, k, n)?];
                (up_kernels, down_kernels, router, Memory::new(device, problems, travel)?)
            }
        };
        let (all, read) = (weights.experts().iter(), travel.weights(format));
        let gate = all.clone().map(|expert| expert.gate_up.gate());
        let up = all.clone().map(|expert| expert.gate_up.up());
        let gate = Stack::upload(device, gate, read, x_scale, needed[0])?;
        let up = Stack::upload(device, up, read, up_factor, needed[1])?;
        let down = Stack::upload(device, all.map(|expert| expert.down), read, middle_scale, needed[2])?;
        Ok(Experts {
            device: device.clone(),
            options: options.clone(),
            hidden,
            features,
            count,
            travel,
            gate,
            up,
            down,
            up_kernels,
            down_kernels,
            router,
            memory,
            scales: [x_scale, middle_scale],
            kind,
        })
    }

    /// Bytes of the memory between the kernels, for the largest bucket: layers that were loaded by [`Experts::load_layer`] share
    /// it.
    #[must_use]
    pub fn shared_bytes(&self) -> usize {
        self.memory.clone().buffers().map(|buffer| buffer.len()).sum()
    }

    /// Width of x and of the result.
    #[must_use]
    pub fn hidden(&self) -> usize {
        self.hidden
    }

    /// Width between the projections of an expert.
    #[must_use]
    pub fn features(&self) -> usize {
        self.features
    }

    /// How many experts.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count as usize
    }

    /// Experts that each token chooses.
    #[must_use]
    pub fn top_k(&self) -> u32 {
        self.options.top_k
    }

    /// Whether activations are quantised on their way, to NVFP4 or e4m3.
    #[must_use]
    pub fn quantises(&self) -> bool {
        !matches!(self.travel, Travel::Sixteen(_))
    }

    /// Scales of the whole tensors: of x, and of the intermediate activations. Both are 1 if activations stay in 16 bits, or if
    /// each row has its own scales.
    #[must_use]
    pub fn activation_scales(&self) -> [f32; 2] {
        self.scales
    }

    /// The kernels of gate and up, and of down, for all buckets.
    #[must_use]
    pub fn kernels(&self) -> [&Kernels; 2] {
        [&self.up_kernels, &self.down_kernels]
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// What one expert computes for rows of x `[tokens, hidden]`, in f64 and without weights of choices: with x and the middle
    /// rounded or quantised as the kernels do it.
    ///
    /// # Errors
    ///
    /// [`MlpError::Reference`] where sizes do not fit.
    pub fn reference(&self, expert: &MlpWeights<'_>, x: &[f32]) -> Result<Vec<f64>, MlpError> {
        reference(expert, x, self.travel, self.scales, self.options.activation)
    }

    /// Computes `out = residual + sum over choices of weight * expert(x)` for `tokens` rows of x.
    ///
    /// `x`, `residual` and `out` are `[tokens, hidden]`, row-major in the format of the options; `x` or `residual` may be
    /// `out` itself. Each expert's rows are rounded to that format, then weighted and summed in f32 in the order of the choices. No
    /// device memory is allocated, and on a GPU nothing is waited for, so that a stream that captures a CUDA graph can take
    /// it.
    ///
    /// # Errors
    ///
    /// A number of tokens beyond the buckets; buffers of other lengths or devices, at addresses that are not multiples of 16 bytes
    /// (choices: of 4); a residual that overlaps `out` in part, or weights of choices that overlap it; errors of the device. A
    /// call without tokens does nothing: behind an all-to-all a device may have none.
    pub fn forward(
        &self,
        stream: &Stream,
        tokens: u32,
        x: &Buffer,
        choices: &Choices<'_>,
        residual: Option<&Buffer>,
        out: &Buffer,
    ) -> Result<(), MlpError> {
        if tokens == 0 {
            return Ok(());
        }
        let _range = range(format_args!("Experts, {tokens} tokens"));
        let (kernels, memory) = self.call(tokens, x, choices, residual, out)?;
        let Choices { experts, weights } = *choices;
        let tokens = Tokens { count: tokens, x, experts, weights, residual, out };
        self.router.scatter(stream, &tokens, &memory)?;
        let [up, down] = kernels;
        let row_scales = |name, which: usize| Some((name, &memory.row_scales.as_ref()?[which]));
        let writes_scales = self.travel.output().scales().is_some();
        let given = [("gate_scale", &self.gate.tensor_scales), ("up_scale", &self.up.tensor_scales)];
        let given = given.into_iter().filter_map(|(name, scales)| Some((name, scales.as_ref()?)));
        let scales: Vec<(&str, &Buffer)> = given.chain(row_scales("x_scale", 0)).collect();
        let args = Args {
            sfa: memory.x_scales.as_ref(),
            sfb1: self.gate.scales.as_ref(),
            sfb2: self.up.scales.as_ref(),
            sfc: memory.middle_scales.as_ref().filter(|_| writes_scales),
            c_scale: (self.travel == Travel::Nvfp4).then_some(self.scales[1]),
            offsets: Some(&memory.offsets),
            vectors: &scales,
            ..Args::new(&memory.x, &self.gate.codes, &self.up.codes, &memory.middle)
        };
        up.launch(stream, &args)?;
        let sizes = [tokens.count * self.options.top_k, self.features as u32];
        self.router.requantise(stream, sizes, self.scales[1], &memory)?;
        let scale = self.down.tensor_scales.as_ref().map(|scales| ("down_scale", scales));
        let scales: Vec<(&str, &Buffer)> = scale.into_iter().chain(row_scales("h_scale", 1)).collect();
        let middle = memory.middle_codes.as_ref().unwrap_or(&memory.middle);
        let args = Args {
            sfa: memory.middle_scales.as_ref(),
            sfb1: self.down.scales.as_ref(),
            offsets: Some(&memory.offsets),
            vectors: &scales,
            ..Args::gemm(middle, &self.down.codes, &memory.rows)
        };
        down.launch(stream, &args)?;
        self.router.combine(stream, &tokens, &memory)
    }

    /// Checks the arguments of a call, and returns the kernels and the memory of its bucket.
    fn call(
        &self,
        tokens: u32,
        x: &Buffer,
        choices: &Choices<'_>,
        residual: Option<&Buffer>,
        out: &Buffer,
    ) -> Result<([&LoadedKernel; 2], Memory), MlpError> {
        let sizes = self.options.buckets.sizes();
        let most = sizes.last().copied().unwrap_or(0);
        let bucket = self.options.buckets.size_for(tokens).ok_or(MlpError::Tokens { tokens, most })?;
        let top_k = self.options.top_k;
        let residual = residual.map(|residual| ("residual", residual));
        for (tensor, buffer) in [("x", x), ("out", out)].into_iter().chain(residual) {
            let (found, expected) = (buffer.len(), tokens as usize * 2 * self.hidden);
            if found != expected {
                return Err(MlpError::Length { tensor, found, expected, rows: tokens, hidden: self.hidden });
            }
            self.check_place(tensor, buffer, 16)?;
        }
        for (tensor, buffer) in [("choices.experts", choices.experts), ("choices.weights", choices.weights)] {
            let (found, expected) = (buffer.len(), tokens as usize * top_k as usize * 4);
            if found != expected {
                return Err(MlpError::Choices { tensor, found, expected, tokens, top_k });
            }
            self.check_place(tensor, buffer, 4)?;
        }
        let shape = |n: usize, k: usize| Shape::new(bucket * top_k, n as u32, k as u32).grouped(self.count);
        let up = self.up_kernels.for_shape(shape(self.features, self.hidden)).map_err(Box::new)?;
        let down = self.down_kernels.for_shape(shape(self.hidden, self.features)).map_err(Box::new)?;
        let problems = [up, down].map(|kernel| kernel.kernel().problem);
        let memory = self.memory.of([&problems[0], &problems[1]], tokens * top_k)?;
        Ok(([up, down], memory))
    }

    fn check_place(&self, tensor: &'static str, buffer: &Buffer, bytes: usize) -> Result<(), MlpError> {
        if *buffer.device() != self.device {
            let (found, expected) = (buffer.device().numbered(), self.device.numbered());
            return Err(MlpError::Foreign { tensor, found, expected });
        }
        match buffer.is_aligned(bytes) {
            true => Ok(()),
            false => Err(MlpError::Alignment { tensor, bytes }),
        }
    }
}
