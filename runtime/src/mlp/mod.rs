//! The gated MLP of a layer: `down(act(gate(x)) * up(x)) + residual`, from weights to one call.
//!
//! * `mod.rs`: [`Mlp`]: load it with the model, call [`Mlp::forward`] for any number of tokens.
//! * `weights.rs`: [`MlpWeights`], the weights of a block on the host.
//! * `parts.rs`: how activations travel between the kernels, by chip and format of the weights.
//! * `shard.rs`: the part of a block's weights that a rank has, where several devices compute one block.
//! * `graph.rs`: [`MlpGraph`], a call that is recorded once and launched with one call of the driver.
//! * `experts/`: [`Experts`], the same block for the experts of a mixture.
//! * `error.rs`: [`MlpError`].
//!
//! On chips whose MMAs multiply NVFP4 (Blackwell), NVFP4 weights meet NVFP4 activations: one kernel quantises x, the second
//! computes gate and up and quantises the intermediate activations in its epilogue, the third computes down and adds
//! the residual. FP8 weights (e4m3) meet FP8 activations in the same way on all chips, if the checkpoint has scales for
//! activations. Otherwise each token gets scales of its own, and one more kernel quantises the middle.
//!
//! FP8 weights with a scale factor for each 128 x 128 elements (DeepSeek-V3, Qwen3-FP8) meet activations with one for each 128 on
//! Hopper. Blackwell's MMAs take scale factors of MXFP8: there these weights are requantised to it when they are loaded
//! ([`Weight::to_mxfp8`]), and the first kernel's epilogue quantises the middle where the chip has tensor memory. MXFP8 weights run on
//! Blackwell, too.
//!
//! Activations stay in 16 bits for NVFP4 and MXFP4 weights on Hopper, and for 16-bit weights on all chips: two kernels. With bf16
//! activations 4-bit weights are repacked when they are loaded ([`Weight::to_repacked`]).
//!
//! Scales of whole tensors, those of the weights and of the activations, are a part of the loaded block: its kernels
//! apply them, and nobody has to pass them on.
//!
//! ```
//! use silumin_codegen::arch::Arch;
//! use silumin_formats::quantize::{TensorScale, quantize};
//! use silumin_runtime::device::Device;
//! use silumin_runtime::mlp::{Mlp, MlpOptions, MlpWeights};
//! use silumin_runtime::warmup::Buckets;
//! use silumin_runtime::weights::{GateUp, Weight};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (hidden, features) = (64, 128);
//! let ones = |rows: usize, k: usize| quantize(&vec![0.125f32; rows * k], rows, k, TensorScale::FromMax);
//! let (gate, up, down) = (ones(features, hidden)?, ones(features, hidden)?, ones(hidden, features)?);
//! let gate_up = GateUp::new(Weight::of(&gate)?, Weight::of(&up)?)?;
//! let weights = MlpWeights::new(gate_up, Weight::of(&down)?)?;
//!
//! let device = Device::emulated(Arch::Sm100a);
//! let options = MlpOptions::new(Buckets::new([4])?);
//! let mlp = Mlp::load(&device, &weights, &options)?;
//!
//! // Three tokens; what is read and written beside x has the rows of the bucket, four.
//! let tokens = 3;
//! let rows = mlp.rows(tokens)?;
//! let bf16 = |value: u16, rows: u32| device.upload(&value.to_le_bytes().repeat(rows as usize * hidden));
//! let (x, residual, out) = (bf16(0x3F80, tokens)?, bf16(0x4000, rows)?, bf16(0, rows)?);
//! mlp.forward(&device.stream(), tokens, &x, Some(&residual), &out)?;
//! // gate and up are 64 * 1 * 0.125 = 8; silu(8) * 8 is 63.98, and 66 in NVFP4, whose scale factors have three bits behind
//! // the first; down is 128 * 66 * 0.125 + 2 = 1058, and 1056 in bf16.
//! let first = f32::from_bits(u32::from(u16::from_le_bytes(out.download()?[..2].try_into()?)) << 16);
//! assert_eq!(first, 1056.0);
//! # Ok(())
//! # }
//! ```

mod call;
mod error;
mod experts;
mod graph;
mod parts;
#[cfg(feature = "emulated")]
mod predict;
mod shard;
mod weights;

pub use error::MlpError;
pub use experts::{Choices, Experts, ExpertsGraph, ExpertsOptions, ExpertsWeights};
pub use graph::MlpGraph;
#[cfg(feature = "emulated")]
pub use predict::{MlpPrediction, MlpStep, PredictedKernel};
pub use shard::MlpShard;
pub use silumin_codegen::prepare::Source;
pub use weights::MlpWeights;

use silumin_codegen::config::{Config, Switch};
use silumin_codegen::gate::Gate;
use silumin_codegen::problem::{Formats, OperandFormat, Shape};
use silumin_codegen::spec::Spec;
use silumin_verify::block::{Weights, gated_mlp};

use crate::communicator::Communicator;
use crate::device::{Args, Buffer, Device, Stream};
use crate::gemm::{DualGemm, LoadedKernel};
use crate::nvtx::range;
use crate::warmup::{Buckets, Kernels, Warmup};
use crate::weights::{DeviceGateUp, Weight};
use parts::{Middle, Quantised, Travel};

/// The function that is applied to the gate projection before it is multiplied by up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `silu(gate) * up`: Llama, Qwen, DeepSeek, Mistral.
    #[default]
    Silu,
    /// `gelu(gate) * up`, with the error function.
    Gelu,
    /// `gelu_tanh(gate) * up`: Gemma.
    GeluTanh,
    /// `relu(gate) * up`.
    Relu,
}

impl Activation {
    /// All of them.
    pub const ALL: [Activation; 4] =
        [Activation::Silu, Activation::Gelu, Activation::GeluTanh, Activation::Relu];

    /// The function in the gate language.
    #[must_use]
    pub const fn function(self) -> &'static str {
        match self {
            Activation::Silu => "silu",
            Activation::Gelu => "gelu",
            Activation::GeluTanh => "gelu_tanh",
            Activation::Relu => "relu",
        }
    }
}

/// How a block is loaded.
#[derive(Clone, Debug)]
pub struct MlpOptions {
    /// Numbers of tokens that kernels are made for; a call with fewer uses the next larger one.
    pub buckets: Buckets,
    /// The activation.
    pub activation: Activation,
    /// The format of x, of the residual and of the result.
    pub source: Source,
    /// Whether a residual is added.
    pub residual: bool,
}

impl MlpOptions {
    /// SiLU, bf16, with a residual.
    #[must_use]
    pub fn new(buckets: Buckets) -> Self {
        MlpOptions { buckets, activation: Activation::Silu, source: Source::Bf16, residual: true }
    }

    /// Sets the activation.
    #[must_use]
    pub fn activation(self, activation: Activation) -> Self {
        MlpOptions { activation, ..self }
    }

    /// Sets the format of x, of the residual and of the result.
    #[must_use]
    pub fn source(self, source: Source) -> Self {
        MlpOptions { source, ..self }
    }

    /// Leaves the residual out: the result is that of the down projection.
    #[must_use]
    pub fn without_residual(self) -> Self {
        MlpOptions { residual: false, ..self }
    }
}

/// A loaded block: weights, kernels for all buckets, and memory between the kernels.
///
/// One call at a time: the memory between the kernels is the block's own, or that of all layers that share it
/// ([`Mlp::load_layer`]). A second stream that runs at the same time needs another [`Mlp::load`].
#[derive(Clone)]
pub struct Mlp {
    device: Device,
    options: MlpOptions,
    hidden: usize,
    features: usize,
    gate_up: DeviceGateUp,
    down: Buffer,
    sfdown: Option<Buffer>,
    up_kernels: Kernels,
    down_kernels: Kernels,
    travel: Travel,
    /// x in the format of the kernels; `None` if activations stay in 16 bits.
    quantised: Option<Quantised>,
    middle: Middle,
    /// The middle in the format of the second kernel, where the first does not write that.
    requantised: Option<Quantised>,
    scalars: [(&'static str, f32); 2],
    down_scalars: [(&'static str, f32); 1],
    /// In place of scalars, where rows of the weights have scales: of gate, up and down.
    vectors: Option<[Buffer; 3]>,
    /// The rank of several that compute the block; `None` if this device computes it alone.
    communicator: Option<Communicator>,
    /// Widths, format and gates, in words: layers of one kind share what is in [`Shared`].
    kind: String,
}

/// What layers have in common: kernels, and the memory between them.
struct Shared {
    quantised: Option<Quantised>,
    middle: Middle,
    requantised: Option<Quantised>,
    up_kernels: Kernels,
    down_kernels: Kernels,
}

impl std::fmt::Debug for Mlp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Mlp { device, hidden, features, gate_up, .. } = self;
        write!(f, "Mlp({hidden} -> {features} -> {hidden} in {} on {device})", gate_up.format)
    }
}

fn spec(gate: &str, device: &Device, formats: Formats) -> Result<Spec, MlpError> {
    let gate: Gate = gate.parse()?;
    let spec = Spec::new(gate, &[device.arch()])?;
    Ok(Spec { formats, ..spec })
}

/// Activations of 16 bits if the chip multiplies them by the weights, else quantised if it multiplies that.
fn travel(
    gate: &str,
    device: &Device,
    weights: OperandFormat,
    source: Source,
    calibrated: bool,
    shape: Shape,
) -> Result<Travel, MlpError> {
    let refused =
        |formats: Formats| Ok::<_, MlpError>(spec(gate, device, formats)?.plan(shape, device.arch()).err());
    let sixteen = Travel::Sixteen(source);
    let ways = [sixteen].into_iter().chain(Travel::quantised(weights, source, calibrated));
    for travel in ways {
        let [first, _] = travel.formats(weights, source);
        if refused(first)?.is_none() {
            return Ok(travel);
        }
    }
    // The reasons name the format that was given, not one that it would be converted to.
    let own = Formats::new(sixteen.operand(), weights, sixteen.output());
    let reasons = refused(own)?.unwrap_or_default();
    Err(MlpError::Formats { weights, arch: device.arch(), reasons })
}

/// The same spec for a kernel whose setup overlaps the end of the kernel before it in the stream.
fn behind_another(spec: Spec) -> Spec {
    Spec { config: Config { pdl: Switch::On, ..spec.config }, ..spec }
}

/// A gated MLP in f64, with weights converted as kernels read them. `scales` are those of whole tensors of activations.
fn reference(
    weights: &MlpWeights<'_>,
    x: &[f32],
    travel: Travel,
    scales: [f32; 2],
    activation: Activation,
) -> Result<Vec<f64>, MlpError> {
    let converted = weights.converted(travel.weights(weights.gate_up.format()))?;
    let converted = converted.as_ref().map(|converted| converted.weights()).transpose()?;
    let (weights, activations) = (converted.as_ref().unwrap_or(weights), travel.activations(scales));
    let gate: Gate = format!("{}(A @ B1) * (A @ B2)", activation.function()).parse()?;
    let gate = gate.expr.evaluator(&[])?;
    let of = |weight: Weight<'_>| -> Result<Weights, MlpError> {
        let row_scales = weight.row_scales().into_iter().flat_map(|scales| scales.values()).collect();
        Ok(Weights { matrix: weight.without_row_scales().to_matrix()?, row_scales })
    };
    let weights = [of(weights.gate_up.gate())?, of(weights.gate_up.up())?, of(weights.down)?];
    Ok(gated_mlp(&weights, x, activations, |gate_x, up| gate.eval(gate_x, up))?)
}

impl Mlp {
    /// Uploads the weights, makes and loads the kernels of all buckets, and allocates what [`Mlp::forward`] needs.
    ///
    /// # Errors
    ///
    /// [`MlpError::Formats`] where the chip multiplies 16-bit activations neither by the weights' format nor after
    /// quantising them; [`MlpError::HalfCalibrated`]; sizes or buckets that have no kernel; memory of the device.
    pub fn load(device: &Device, weights: &MlpWeights<'_>, options: &MlpOptions) -> Result<Self, MlpError> {
        Self::of(device, weights, options, None, None)
    }

    /// Loads a rank's part of a block that several devices compute: its share of gate's and up's columns and of down's rows
    /// ([`MlpWeights::shard`]). `weights` are those of the whole block, on every rank.
    ///
    /// All ranks call [`Mlp::forward`] with the same tokens and residual, each from a thread of its own, and each has the
    /// whole result: partial results, rounded to the format of the options, are summed over the ranks
    /// ([`Communicator::all_reduce`]). The residual is added once, by rank 0.
    ///
    /// # Errors
    ///
    /// As [`Mlp::load`]; [`MlpError::Ranks`] for features that cannot be divided.
    pub fn load_shard(
        communicator: &Communicator,
        weights: &MlpWeights<'_>,
        options: &MlpOptions,
    ) -> Result<Self, MlpError> {
        let shard = weights.shard(communicator.rank(), communicator.ranks())?;
        Self::of(communicator.device(), &shard.weights()?, options, Some(communicator), None)
    }

    /// Loads another layer of the same widths and format, with the same options and rank. It shares this one's kernels and the
    /// memory between them, so that a model needs both once: launch all layers that share in one stream, or one after the
    /// other.
    ///
    /// # Errors
    ///
    /// As [`Mlp::load`]; [`MlpError::UnlikeLayer`] for another width, format or kind of scales.
    pub fn load_layer(&self, weights: &MlpWeights<'_>) -> Result<Self, MlpError> {
        match &self.communicator {
            None => Self::of(&self.device, weights, &self.options, None, Some(self)),
            Some(rank) => {
                let shard = weights.shard(rank.rank(), rank.ranks())?;
                Self::of(&self.device, &shard.weights()?, &self.options, Some(rank), Some(self))
            }
        }
    }

    fn of(
        device: &Device,
        weights: &MlpWeights<'_>,
        options: &MlpOptions,
        communicator: Option<&Communicator>,
        beside: Option<&Mlp>,
    ) -> Result<Self, MlpError> {
        let (hidden, features) = (weights.hidden(), weights.features());
        let most = options.buckets.sizes().last().copied().unwrap_or(1);
        let (n, k) = (features as u32, hidden as u32);
        let format = weights.gate_up.format();
        let function = options.activation.function();
        // Where rows have scales of their own, vectors take the place of the scalars.
        let rows_scaled = weights.row_scales();
        let of = if rows_scaled { "[n]" } else { "" };
        let gate_of =
            |x: &str| format!("{function}(gate_scale{of} * {x}(x @ gate)) * (up_scale{of} * {x}(x @ up))");
        // One rank adds the residual.
        let adds = options.residual && communicator.is_none_or(|rank| rank.rank() == 0);
        let residual = if adds { " + residual[m, n]" } else { "" };
        let (calibrated, shape) = (weights.calibrated(None)?, Shape::new(most, n, k));
        let travel = travel(&gate_of(""), device, format, options.source, calibrated, shape)?;
        let converted = weights.converted(travel.weights(format))?;
        let converted = converted.as_ref().map(|converted| converted.weights()).transpose()?;
        let weights = converted.as_ref().unwrap_or(weights);
        let by_token = matches!(travel, Travel::E4m3Rows(_));
        let [x, h] = if by_token { ["x_scale[m] * ", "h_scale[m] * "] } else { [""; 2] };
        let gate = gate_of(x);
        let down = format!("down_scale{of} * {h}(h @ down){residual}");
        let [first, second] = travel.formats(format, options.source);
        let warmed = |spec: Spec, n: u32, k: u32| -> Result<Kernels, MlpError> {
            let gemm = DualGemm::new(spec);
            Ok(Warmup::of(&gemm).weights(n, k).buckets(options.buckets.clone()).run(device)?)
        };
        let input_scale = weights.gate_up.input_scale();
        let kind = format!("{hidden} -> {features} -> {hidden} in {format}: {gate}, {down}");
        let shared = match beside {
            Some(mlp) if mlp.kind == kind => {
                let middle = mlp.middle.scaled(travel, weights.middle_scale);
                let requantised = mlp.requantised.as_ref();
                Shared {
                    quantised: mlp.quantised.as_ref().map(|quantised| quantised.scaled(input_scale)),
                    requantised: requantised.map(|requantised| requantised.scaled(Some(middle.scale))),
                    middle,
                    up_kernels: mlp.up_kernels.clone(),
                    down_kernels: mlp.down_kernels.clone(),
                }
            }
            Some(mlp) => return Err(MlpError::UnlikeLayer { expected: mlp.kind.clone(), found: kind }),
            None => {
                let source = options.source;
                let quantised = Quantised::new(device, travel, source, most, k, input_scale)?;
                let up = spec(&gate, device, first)?;
                let up = if quantised.is_some() { behind_another(up) } else { up };
                let middle = Middle::new(device, travel, most, n, weights.middle_scale)?;
                Shared {
                    quantised,
                    requantised: match travel.between() {
                        Some(_) => Quantised::new(device, travel, source, most, n, Some(middle.scale))?,
                        None => None,
                    },
                    middle,
                    up_kernels: warmed(up, n, k)?,
                    down_kernels: warmed(behind_another(spec(&down, device, second)?), k, n)?,
                }
            }
        };
        let Shared { quantised, middle, requantised, up_kernels, down_kernels } = shared;
        let gate_up = weights.gate_up.without_row_scales().upload(device)?;
        let x_scale = quantised.as_ref().map_or(1.0, |quantised| quantised.scale);
        let mut scalars = gate_up.scalars(x_scale);
        if travel == Travel::E4m3 {
            // The kernel rounds what it writes to e4m3 and knows of no scale; the middle is linear in up.
            scalars[1].1 /= middle.scale;
        }
        let blocked = weights.down.blocked_scales()?;
        let vectors = match rows_scaled {
            true => {
                let vector = |weight: Weight<'_>, factor: f32| -> Result<Buffer, MlpError> {
                    let scales = weight.product_scales().flat_map(|scale| (factor * scale).to_le_bytes());
                    Ok(device.upload(&scales.collect::<Vec<u8>>())?)
                };
                let (gate, up) = (weights.gate_up.gate(), weights.gate_up.up());
                let up_factor = scalars[1].1 / gate_up.up_scale;
                Some([vector(gate, x_scale)?, vector(up, up_factor)?, vector(weights.down, middle.scale)?])
            }
            false => None,
        };
        Ok(Mlp {
            travel,
            kind,
            vectors,
            hidden,
            features,
            down: device.upload(weights.down.codes())?,
            sfdown: if blocked.is_empty() { None } else { Some(device.upload(&blocked)?) },
            scalars,
            down_scalars: [("down_scale", middle.scale * weights.down.tensor_scale())],
            middle,
            gate_up,
            up_kernels,
            down_kernels,
            quantised,
            requantised,
            device: device.clone(),
            options: options.clone(),
            communicator: communicator.cloned(),
        })
    }

    /// Width of x and of the result.
    #[must_use]
    pub fn hidden(&self) -> usize {
        self.hidden
    }

    /// Width between the projections: of a rank's part, if several devices compute the block.
    #[must_use]
    pub fn features(&self) -> usize {
        self.features
    }

    /// The rank of several that compute the block; `None` if its device computes it alone.
    #[must_use]
    pub fn communicator(&self) -> Option<&Communicator> {
        self.communicator.as_ref()
    }

    /// Whether activations are quantised on their way, to NVFP4 or FP8.
    #[must_use]
    pub fn quantises(&self) -> bool {
        self.quantised.is_some()
    }

    /// Scales of the whole tensors: of x, and of the intermediate activations. Both are 1 if activations stay in 16 bits, or if
    /// tokens or their blocks have scales of their own.
    #[must_use]
    pub fn activation_scales(&self) -> [f32; 2] {
        [self.quantised.as_ref().map_or(1.0, |quantised| quantised.scale), self.middle.scale]
    }

    /// What the block computes for rows of x `[tokens, hidden]`, in f64 and without the residual: with x and the middle rounded or
    /// quantised as the kernels do it. `weights` are those of the whole block, decoded exactly, or requantised to MXFP8 if the kernels
    /// read them so. If each token has
    /// its own scales, a rank passes its own weights ([`MlpWeights::shard`]), because it scales its own part of each token. The result is
    /// then that rank's part of the sum.
    ///
    /// # Errors
    ///
    /// [`MlpError::Reference`] where sizes do not fit.
    pub fn reference(&self, weights: &MlpWeights<'_>, x: &[f32]) -> Result<Vec<f64>, MlpError> {
        reference(weights, x, self.travel, self.activation_scales(), self.options.activation)
    }

    /// The kernels of gate and up, and of down, for all buckets.
    #[must_use]
    pub fn kernels(&self) -> [&Kernels; 2] {
        [&self.up_kernels, &self.down_kernels]
    }

    /// Rows that residual and result have in a call with so many tokens: those of the bucket.
    ///
    /// # Errors
    ///
    /// [`MlpError::Tokens`] for no tokens, and for more than the largest bucket.
    pub fn rows(&self, tokens: u32) -> Result<u32, MlpError> {
        let sizes = self.options.buckets.sizes();
        let most = sizes.last().copied().unwrap_or(0);
        self.options.buckets.size_for(tokens).ok_or(MlpError::Tokens { tokens, most })
    }

    /// Bytes of a row of x, residual and result.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        2 * self.hidden
    }

    /// Computes `out = down(act(gate(x)) * up(x)) + residual` for `tokens` rows of x.
    ///
    /// `x` is `[tokens, hidden]`, or `[rows, hidden]` with the rows of [`Mlp::rows`], of which the last do not matter: Hopper
    /// reads rows that a buffer has faster than rows that it lacks. `residual` and `out` are `[rows, hidden]`. All are
    /// row-major in the format of the options. What `out` holds beyond row `tokens` is meaningless. `residual` may be
    /// `out` itself. No device memory is allocated, and on a GPU nothing is waited for, so that a stream that captures a
    /// CUDA graph can take it.
    ///
    /// # Errors
    ///
    /// A number of tokens beyond the buckets, buffers of other lengths or devices, a residual where there is none or none
    /// where there is one; what the device says.
    pub fn forward(
        &self,
        stream: &Stream,
        tokens: u32,
        x: &Buffer,
        residual: Option<&Buffer>,
        out: &Buffer,
    ) -> Result<(), MlpError> {
        let _range = range(format_args!("Mlp, {tokens} tokens"));
        let rows = self.check(tokens, x, residual, out)?;
        let [up, down] = self.kernels_for(rows)?;
        // What is between the kernels, in this bucket's rows.
        let middle = self.middle.of(rows)?;
        let a = match &self.quantised {
            None => None,
            Some(quantised) => {
                let x = x.slice(0, tokens as usize * self.row_bytes())?;
                Some(quantised.run(stream, &x, tokens, rows)?)
            }
        };
        let (codes, sfa, x_scales) = match &a {
            Some(part) => (&part.codes, part.scales.as_ref(), part.row_scales.as_ref()),
            None => (x, None, None),
        };
        let c_scale = (self.travel == Travel::Nvfp4).then_some(self.middle.scale);
        let args =
            Args { sfc: middle.scales.as_ref(), c_scale, ..self.gate_up.args(codes, sfa, &middle.codes) };
        let mut scales: Vec<(&str, &Buffer)> =
            x_scales.map(|scales| ("x_scale", scales)).into_iter().collect();
        let args = match &self.vectors {
            Some([gate, up, _]) => {
                scales.extend([("gate_scale", gate), ("up_scale", up)]);
                Args { weight_scales: None, ..args }
            }
            None => args.scalars(&self.scalars),
        };
        let args = args.vectors(&scales);
        up.launch(stream, &args.rows(tokens))?;
        // The middle of the tokens with a scale for each, where the first kernel could not quantise it.
        let tokens_of = |buffer: &Buffer| buffer.slice(0, buffer.len() / rows as usize * tokens as usize);
        let h = match &self.requantised {
            Some(requantised) => requantised.run(stream, &tokens_of(&middle.codes)?, tokens, rows)?,
            None => middle,
        };
        let residual = residual.filter(|_| self.adds()).map(|residual| ("residual", residual));
        let scale = self.vectors.as_ref().map(|[.., down]| ("down_scale", down));
        let h_scales = h.row_scales.as_ref().map(|scales| ("h_scale", scales));
        let vectors: Vec<(&str, &Buffer)> = residual.into_iter().chain(scale).chain(h_scales).collect();
        let scalars = if scale.is_some() { &[][..] } else { &self.down_scalars };
        let args = Args::gemm(&h.codes, &self.down, out).scalars(scalars).vectors(&vectors);
        let args = Args { sfa: h.scales.as_ref(), sfb1: self.sfdown.as_ref(), ..args };
        down.launch(stream, &args.rows(tokens))?;
        if let Some(communicator) = &self.communicator {
            let sums = out.slice(0, tokens as usize * self.row_bytes())?;
            communicator.all_reduce(stream, &sums, self.options.source)?;
        }
        Ok(())
    }

    /// Whether this device's kernel adds the residual: with several ranks, rank 0's does.
    fn adds(&self) -> bool {
        self.communicator.as_ref().is_none_or(|rank| rank.rank() == 0)
    }

    /// The kernels of a bucket: of gate and up, and of down.
    fn kernels_for(&self, rows: u32) -> Result<[&LoadedKernel; 2], MlpError> {
        let (n, k) = (self.features as u32, self.hidden as u32);
        let up = self.up_kernels.for_problem(rows, n, k).map_err(Box::new)?;
        Ok([up, self.down_kernels.for_problem(rows, k, n).map_err(Box::new)?])
    }

    /// Checks the arguments of a call, and returns the rows of its bucket.
    fn check(
        &self,
        tokens: u32,
        x: &Buffer,
        residual: Option<&Buffer>,
        out: &Buffer,
    ) -> Result<u32, MlpError> {
        let rows = self.rows(tokens)?;
        if residual.is_some() != self.options.residual {
            return Err(MlpError::Residual { given: residual.is_some() });
        }
        let check = |tensor: &'static str, buffer: &Buffer, rows: u32| {
            let expected = rows as usize * self.row_bytes();
            match buffer.len() == expected {
                true => Ok(()),
                false => {
                    Err(MlpError::Length { tensor, found: buffer.len(), expected, rows, hidden: self.hidden })
                }
            }
        };
        // With the bucket's rows, too.
        check("x", x, if x.len() == rows as usize * self.row_bytes() { rows } else { tokens })?;
        check("out", out, rows)?;
        if let Some(residual) = residual {
            check("residual", residual, rows)?;
        }
        Ok(rows)
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }
}
