//! Projections of one layer: gate and up, and down.
//!
//! The type of the tensor `weight` tells the format: BF16 and F16 as they are; F8_E4M3 with a scale of the whole tensor
//! (`weight_scale`, and `input_scale` of the activations, both factors, in both conventions), of each row (`weight_scale`), or of each
//! block of 128 x 128 (`weight_scale_inv` of DeepSeek-V3 and Qwen3-FP8, which is a factor in spite of its name, or `weight_scale`);
//! U8 is NVFP4.
//!
//! For NVFP4 both conventions pack two e2m1 codes a byte, the even one in the low nibble, and keep scale factors as e4m3, one for 16
//! of K, row-major `[N, K / 16]`, not in the order that tensor cores read. They differ in names and in what the scale of the
//! whole tensor is:
//!
//! | | ModelOpt | compressed-tensors |
//! |---|---|---|
//! | codes, U8 `[N, K / 2]` | `weight` | `weight_packed` |
//! | scale factors, F8_E4M3 `[N, K / 16]` | `weight_scale` | `weight_scale` |
//! | scale of the tensor, F32 | `weight_scale_2` = amax / (6 * 448): a factor | `weight_global_scale` = 6 * 448 / amax: a divisor |
//! | of the activations, F32, where they are quantised too | `input_scale`: a factor | `input_global_scale`: a divisor |
//!
//! ModelOpt: `modelopt/torch/quantization/qtensor/nvfp4_tensor.py` of NVIDIA/TensorRT-Model-Optimizer (`quantize` packs,
//! `dequantize` multiplies by both scales, `get_activation_scaling_factor` is amax over the largest value).
//! compressed-tensors: `compressors/quantized_compressors/nvfp4_quantized.py` (`pack_fp4_to_uint8`) and
//! `quantization/utils/helpers.py` (`generate_gparam`: 448 * 6 / amax, one element) of neuralmagic/compressed-tensors; that
//! it is a divisor says `compressed_tensors_w4a4_nvfp4.py` of vllm-project/vllm, which reads it as `1 / value`.

use safetensors::Dtype;
use silumin_codegen::problem::OperandFormat;

use super::super::{GateUp, Order, RowScales, Weight, WeightError};
use super::file::Tensor;
use super::{Checkpoint, CheckpointError, near};

/// A convention for names of tensors and for scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Convention {
    /// NVIDIA's Model Optimizer: `weight`, `weight_scale`, `weight_scale_2`, `input_scale`.
    ModelOpt,
    /// compressed-tensors, which LLM Compressor writes: `weight_packed`, `weight_scale`, `weight_global_scale`,
    /// `input_global_scale`.
    CompressedTensors,
}

impl Convention {
    const ALL: [Self; 2] = [Self::ModelOpt, Self::CompressedTensors];

    /// Name of the tensor of codes.
    fn codes(self) -> &'static str {
        match self {
            Self::ModelOpt => "weight",
            Self::CompressedTensors => "weight_packed",
        }
    }

    /// Name of the scale of the whole tensor.
    fn global(self) -> &'static str {
        match self {
            Self::ModelOpt => "weight_scale_2",
            Self::CompressedTensors => "weight_global_scale",
        }
    }

    /// Name of the scale of the activations.
    fn input(self) -> &'static str {
        match self {
            Self::ModelOpt => "input_scale",
            Self::CompressedTensors => "input_global_scale",
        }
    }

    /// The factor for elements, from the value in the file.
    fn factor(self, value: f32) -> f32 {
        match self {
            Self::ModelOpt => value,
            Self::CompressedTensors => 1.0 / value,
        }
    }
}

/// A model's names for its projections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// The gate's: B1.
    pub gate: String,
    /// The other: B2.
    pub up: String,
    /// The projection back.
    pub down: String,
    /// Name of the fused projection of 2N rows.
    pub fused: String,
    /// Which half of the fused tensor is the gate.
    pub order: Order,
}

impl Default for Names {
    /// `gate_proj` and `up_proj`, or `gate_up_proj` with the gate first, and `down_proj`: Llama, Qwen, Mistral, DeepSeek,
    /// Phi-3 and most others.
    fn default() -> Self {
        Self::new("gate_proj", "up_proj", "down_proj", "gate_up_proj", Order::GateFirst)
    }
}

impl Names {
    /// Names of your own.
    #[must_use]
    pub fn new(gate: &str, up: &str, down: &str, fused: &str, order: Order) -> Self {
        let [gate, up, down, fused] = [gate, up, down, fused].map(str::to_owned);
        Self { gate, up, down, fused, order }
    }

    /// `w1` and `w3`, or `w13`, and `w2`: the experts of Mixtral and similar models.
    #[must_use]
    pub fn mixtral() -> Self {
        Self::new("w1", "w3", "w2", "w13", Order::GateFirst)
    }

    /// Suffixes of tensor names that a layer with such projections has: their codes or elements.
    pub(super) fn suffixes(&self) -> Vec<String> {
        let projections = [&self.gate, &self.fused];
        let suffix = |name| Convention::ALL.map(|convention| format!(".{name}.{}", convention.codes()));
        projections.into_iter().flat_map(suffix).collect()
    }
}

/// One projection of a layer, as the file has it.
struct Projection<'a> {
    /// Codes and scale factors, with a tensor scale of 1.
    weight: Weight<'a>,
    /// Factors of the whole tensor: one, or two for the halves of a fused projection.
    scales: Vec<f32>,
    /// Factor of the activations.
    input_scale: Option<f32>,
    /// Name of the tensor of codes.
    name: String,
    tensor: Tensor<'a>,
}

impl Projection<'_> {
    fn error(&self, reason: WeightError) -> CheckpointError {
        weights(&self.tensor, &self.name, reason)
    }
}

fn weights(tensor: &Tensor<'_>, name: &str, reason: WeightError) -> CheckpointError {
    CheckpointError::Weights { path: tensor.path.to_owned(), tensor: name.to_owned(), reason }
}

impl Checkpoint {
    /// Gate and up of a layer such as `model.layers.0.mlp`: [`Checkpoint::gate_up_named`] with the names of most
    /// models.
    ///
    /// # Errors
    ///
    /// [`CheckpointError`].
    pub fn gate_up(&self, layer: &str) -> Result<GateUp<'_>, CheckpointError> {
        self.gate_up_named(layer, &Names::default())
    }

    /// Gate and up of a layer by a model's own names, from two tensors or a fused one, in either convention. Codes
    /// and scale factors are views of the files; every scale factor is checked.
    ///
    /// If two input scales differ, the larger one is used, with which activations saturate for neither projection.
    /// [`DeviceGateUp::scalars`](super::super::DeviceGateUp::scalars) accounts for whichever scale the activations
    /// are quantised with.
    ///
    /// # Errors
    ///
    /// A tensor that is missing, or has another type or shape than the rest of the layer asks for; scales that are none.
    pub fn gate_up_named(&self, layer: &str, names: &Names) -> Result<GateUp<'_>, CheckpointError> {
        let prefix = |name: &str| if layer.is_empty() { name.to_owned() } else { format!("{layer}.{name}") };
        let [gate, up, fused] = [&names.gate, &names.up, &names.fused].map(|name| prefix(name));
        if self.convention_of(&gate).is_some() {
            return self.separate(&gate, &up);
        }
        if self.convention_of(&fused).is_some() {
            return self.fused(&fused, names.order);
        }
        let tried = [&gate, &fused]
            .map(|name| Convention::ALL.map(|convention| format!("{name}.{}", convention.codes())));
        Err(CheckpointError::NoLayer {
            path: self.path.clone(),
            layer: layer.to_owned(),
            tried: tried.concat(),
            near: near::nearest(layer, self.layers_named(names).iter().map(String::as_str)),
        })
    }

    /// Down of a layer by a model's own names, and the scale that its activations were calibrated for.
    ///
    /// # Errors
    ///
    /// As [`Checkpoint::gate_up_named`].
    pub fn down_named(
        &self,
        layer: &str,
        names: &Names,
    ) -> Result<(Weight<'_>, Option<f32>), CheckpointError> {
        let name = if layer.is_empty() { names.down.clone() } else { format!("{layer}.{}", names.down) };
        let down = self.projection(&name, 1)?;
        let scale = down.scales.first().copied().unwrap_or(1.0);
        let weight = down.weight.with_tensor_scale(scale).map_err(|reason| down.error(reason))?;
        Ok((weight, down.input_scale))
    }

    /// The convention of a layer by a model's own names; `None` if it has no weights.
    #[must_use]
    pub fn convention(&self, layer: &str, names: &Names) -> Option<Convention> {
        let of = |name: &str| self.convention_of(&format!("{layer}.{name}"));
        of(&names.gate).or_else(|| of(&names.fused))
    }

    /// The convention of a projection, by the name of its codes.
    fn convention_of(&self, projection: &str) -> Option<Convention> {
        Convention::ALL
            .into_iter()
            .find(|convention| self.has(&format!("{projection}.{}", convention.codes())))
    }

    fn separate<'a>(&'a self, gate: &str, up: &str) -> Result<GateUp<'a>, CheckpointError> {
        let [gate, up] = [self.projection(gate, 1)?, self.projection(up, 1)?];
        let scaled = |projection: &Projection<'a>| {
            let scale = projection.scales.first().copied().unwrap_or(1.0);
            projection.weight.with_tensor_scale(scale).map_err(|reason| projection.error(reason))
        };
        let input_scale = match (gate.input_scale, up.input_scale) {
            (Some(gate), Some(up)) => Some(gate.max(up)),
            (gate, up) => gate.or(up),
        };
        let pair = GateUp::new(scaled(&gate)?, scaled(&up)?);
        Ok(pair.map_err(|reason| up.error(reason))?.with_input_scale(input_scale))
    }

    fn fused(&self, name: &str, order: Order) -> Result<GateUp<'_>, CheckpointError> {
        let both = self.projection(name, 2)?;
        let error = |reason| both.error(reason);
        let pair = GateUp::stacked(both.weight, order).map_err(error)?;
        // Scales are in the order of the rows.
        let first = both.scales.first().copied().unwrap_or(1.0);
        let second = both.scales.get(1).copied().unwrap_or(first);
        let (gate, up) = match order {
            Order::GateFirst => (first, second),
            Order::UpFirst => (second, first),
        };
        let gate = pair.gate().with_tensor_scale(gate).map_err(error)?;
        let up = pair.up().with_tensor_scale(up).map_err(error)?;
        Ok(GateUp::new(gate, up).map_err(error)?.with_input_scale(both.input_scale))
    }

    /// Tensors of one projection, which holds `parts` matrices one after the other.
    fn projection(&self, projection: &str, parts: usize) -> Result<Projection<'_>, CheckpointError> {
        // Without codes it is their name in the first convention that is missing.
        let convention = self.convention_of(projection).unwrap_or(Convention::ModelOpt);
        let name = format!("{projection}.{}", convention.codes());
        let codes = self.tensor(&name)?;
        match (convention, codes.dtype) {
            (Convention::ModelOpt, Dtype::BF16) => return self.plain(name, codes, OperandFormat::Bf16),
            (Convention::ModelOpt, Dtype::F16) => return self.plain(name, codes, OperandFormat::F16),
            (Convention::ModelOpt, Dtype::F8_E4M3) => return self.e4m3(projection, name, codes, parts),
            _ => {}
        }
        expect_dtype(&codes, &name, Dtype::U8, "U8 (two codes a byte)", hint_of_codes(codes.dtype))?;
        let shape = |expected: String| CheckpointError::Shape {
            path: codes.path.to_owned(),
            tensor: name.clone(),
            found: codes.shape.to_vec(),
            expected,
        };
        let &[rows, bytes] = codes.shape else {
            return Err(shape("[N, K / 2]: one matrix; experts are loaded one by one".to_owned()));
        };
        let k =
            bytes.checked_mul(2).ok_or_else(|| shape("[N, K / 2] with a K that is a number".to_owned()))?;

        let scales_name = format!("{projection}.weight_scale");
        let scales = self.tensor(&scales_name)?;
        let hint = match scales.dtype {
            Dtype::U8 | Dtype::F8_E8M0 => {
                "these look like MXFP4's ue8m0; Weight::new takes them as OperandFormat::Mxfp4"
            }
            _ => "only NVFP4 has codes and scale factors of these names",
        };
        expect_dtype(&scales, &scales_name, Dtype::F8_E4M3, "F8_E4M3", hint)?;
        if *scales.shape != [rows, k / 16] {
            return Err(CheckpointError::Shape {
                path: scales.path.to_owned(),
                tensor: scales_name,
                found: scales.shape.to_vec(),
                expected: format!(
                    "[{rows}, {}]: one for 16 of K = {k}, row-major and without padding, for codes {:?}",
                    k / 16,
                    codes.shape
                ),
            });
        }
        let weight = Weight::new(OperandFormat::Nvfp4, rows, k, codes.data, scales.data, 1.0);
        let weight = weight.map_err(|reason| {
            let of_scales = matches!(reason, WeightError::ScaleFactor { .. });
            weights(&codes, if of_scales { &scales_name } else { &name }, reason)
        })?;

        let global = format!("{projection}.{}", convention.global());
        let scales = self.factors(&global, convention, parts)?;
        let input = format!("{projection}.{}", convention.input());
        let input_scale = match self.has(&input) {
            true => self.factors(&input, convention, parts)?.into_iter().reduce(f32::max),
            false => None,
        };
        Ok(Projection { weight, scales, input_scale, name, tensor: codes })
    }

    /// A projection without scales.
    fn plain<'a>(
        &'a self,
        name: String,
        tensor: Tensor<'a>,
        format: OperandFormat,
    ) -> Result<Projection<'a>, CheckpointError> {
        let &[rows, k] = tensor.shape else {
            return Err(CheckpointError::Shape {
                path: tensor.path.to_owned(),
                tensor: name,
                found: tensor.shape.to_vec(),
                expected: "[N, K]: one matrix; experts are loaded one by one".to_owned(),
            });
        };
        let weight = Weight::new(format, rows, k, tensor.data, &[], 1.0);
        let weight = weight.map_err(|reason| weights(&tensor, &name, reason))?;
        Ok(Projection { weight, scales: vec![1.0], input_scale: None, name, tensor })
    }

    /// A projection in FP8 with scales of whole tensors, of rows, or of blocks.
    fn e4m3<'a>(
        &'a self,
        projection: &str,
        name: String,
        tensor: Tensor<'a>,
        parts: usize,
    ) -> Result<Projection<'a>, CheckpointError> {
        let (scale, blocks, input) = (
            format!("{projection}.weight_scale"),
            format!("{projection}.weight_scale_inv"),
            format!("{projection}.input_scale"),
        );
        if !self.has(&scale) && self.has(&blocks) {
            return self.e4m3_blocks(&blocks, name, tensor);
        }
        if self.has(&scale) && is_of_blocks(self.tensor(&scale)?.shape, tensor.shape) {
            return self.e4m3_blocks(&scale, name, tensor);
        }
        let input_scale = match self.has(&input) {
            true => self.factors(&input, Convention::ModelOpt, parts)?.into_iter().reduce(f32::max),
            false => None,
        };
        let plain = self.plain(name, tensor, OperandFormat::E4m3)?;
        if let Some(row_scales) = self.row_scales(&scale, plain.weight.rows())? {
            let weight = plain.weight.with_row_scales(row_scales);
            let weight = weight.map_err(|reason| weights(&plain.tensor, &scale, reason))?;
            return Ok(Projection { weight, input_scale, ..plain });
        }
        let scales = self.factors(&scale, Convention::ModelOpt, parts)?;
        Ok(Projection { scales, input_scale, ..plain })
    }

    /// A projection in FP8 with a scale factor for each 128 x 128 elements, `[ceil(N / 128), K / 128]`.
    fn e4m3_blocks<'a>(
        &'a self,
        factors: &str,
        name: String,
        tensor: Tensor<'a>,
    ) -> Result<Projection<'a>, CheckpointError> {
        let plain = self.plain(name, tensor, OperandFormat::E4m3)?;
        let (rows, k) = (plain.weight.rows(), plain.weight.k());
        let scales = self.tensor(factors)?;
        if scales.dtype != Dtype::BF16 {
            let hint = "the scale factor of a block is a plain number";
            expect_dtype(&scales, factors, Dtype::F32, "F32 or BF16", hint)?;
        }
        if *scales.shape != [rows.div_ceil(128), k.div_ceil(128)] {
            return Err(CheckpointError::Shape {
                path: scales.path.to_owned(),
                tensor: factors.to_owned(),
                found: scales.shape.to_vec(),
                expected: format!(
                    "[{}, {}]: one for each 128 x 128 block of [{rows}, {k}]. Blocks of other sizes have no kernel; one number, or one for each row, [N, 1], is read, too",
                    rows.div_ceil(128),
                    k.div_ceil(128)
                ),
            });
        }
        let codes = plain.weight.codes();
        let weight = Weight::new(OperandFormat::E4m3Block128, rows, k, codes, scales.data, 1.0);
        let weight = weight.map_err(|reason| {
            let of_factors = matches!(reason, WeightError::BlockScale { .. });
            weights(&plain.tensor, if of_factors { factors } else { &plain.name }, reason)
        })?;
        Ok(Projection { weight, ..plain })
    }

    /// Scales of rows, `[N]` or `[N, 1]`; `None` where the tensor has another shape.
    fn row_scales(&self, name: &str, rows: usize) -> Result<Option<RowScales<'_>>, CheckpointError> {
        let tensor = self.tensor(name)?;
        if !matches!(*tensor.shape, [count] | [count, 1] if count == rows) {
            return Ok(None);
        }
        if tensor.dtype == Dtype::BF16 {
            return Ok(Some(RowScales::bf16(tensor.data)));
        }
        expect_dtype(&tensor, name, Dtype::F32, "F32 or BF16", "the scale of a row is a plain number")?;
        Ok(Some(RowScales::f32(tensor.data)))
    }

    /// Scales of whole tensors as factors: one, or one per part.
    fn factors(&self, name: &str, convention: Convention, parts: usize) -> Result<Vec<f32>, CheckpointError> {
        let tensor = self.tensor(name)?;
        let brain = tensor.dtype == Dtype::BF16;
        if !brain {
            expect_dtype(
                &tensor,
                name,
                Dtype::F32,
                "F32 or BF16",
                "a scale of a whole tensor is a plain number",
            )?;
        }
        let fits = match *tensor.shape {
            [] => true,
            [count] => count == 1 || count == parts,
            _ => false,
        };
        if !fits {
            return Err(CheckpointError::Shape {
                path: tensor.path.to_owned(),
                tensor: name.to_owned(),
                found: tensor.shape.to_vec(),
                expected: match parts {
                    1 => "one number, [] or [1], or in FP8 one for each row, [N, 1]".to_owned(),
                    _ => format!("one number, [] or [1], or one for each part, [{parts}]"),
                },
            });
        }
        let scale = |value: f32| {
            let (factor, divisor) = (convention.factor(value), 1.0 / value);
            match value.is_finite() && value > 0.0 && divisor.is_finite() {
                true => Ok(factor),
                false => {
                    let (path, tensor) = (tensor.path.to_owned(), name.to_owned());
                    Err(CheckpointError::GlobalScale { path, tensor, value })
                }
            }
        };
        match brain {
            true => {
                let values = tensor.data.as_chunks::<2>().0.iter();
                values.map(|bytes| scale(half::bf16::from_le_bytes(*bytes).to_f32())).collect()
            }
            false => {
                tensor.data.as_chunks::<4>().0.iter().map(|bytes| scale(f32::from_le_bytes(*bytes))).collect()
            }
        }
    }
}

/// Whether scales of FP8 weights are those of blocks: a matrix, and not of one column for all rows.
fn is_of_blocks(scales: &[usize], weights: &[usize]) -> bool {
    matches!((scales, weights), (&[count, columns], &[rows, _]) if columns != 1 || count != rows)
}

fn expect_dtype(
    tensor: &Tensor<'_>,
    name: &str,
    wanted: Dtype,
    expected: &'static str,
    hint: &'static str,
) -> Result<(), CheckpointError> {
    if tensor.dtype == wanted {
        return Ok(());
    }
    let (path, found) = (tensor.path.to_owned(), format!("{}", tensor.dtype));
    Err(CheckpointError::Dtype { path, tensor: name.to_owned(), found, expected, hint })
}

/// A guess at the layout of weights whose type is not packed codes.
fn hint_of_codes(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F32 => "this layer is not quantised; formats::quantize makes NVFP4 of such weights",
        Dtype::F8_E5M2 => "weights in e5m2 have no kernels; round them to e4m3 or NVFP4",
        _ => "weights are BF16, F16, F8_E4M3, or NVFP4 in U8",
    }
}
