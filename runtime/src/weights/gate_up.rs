//! Gate and up weights of one layer, on the host and on a device.

use silumin_codegen::problem::OperandFormat;

use super::{Weight, WeightError};
use crate::device::Args;
use crate::device::{Buffer, Device};

/// Alignment of the second of two tensors in one allocation: the driver's alignment of allocations, which exceeds
/// every operand's.
const ALIGNMENT: usize = 256;

/// Which half of a stacked `[2N, K]` tensor is the gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Order {
    /// Rows 0..N are the gate: `gate_up_proj` of models in Hugging Face's format (Phi-3 and others), `w13` of vLLM.
    #[default]
    GateFirst,
    /// Rows 0..N are up: `w3_w1` of TensorRT-LLM, FlashInfer.
    UpFirst,
}

/// The weights of a gated MLP's first half: the gate is B1, up is B2, each `[N, K]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GateUp<'a> {
    gate: Weight<'a>,
    up: Weight<'a>,
    input_scale: Option<f32>,
}

impl<'a> GateUp<'a> {
    /// Gate and up of one shape and format. Their tensor scales may differ: each product has its own.
    ///
    /// # Errors
    ///
    /// [`WeightError::Unlike`], [`WeightError::Empty`].
    pub fn new(gate: Weight<'a>, up: Weight<'a>) -> Result<Self, WeightError> {
        let kind = |weight: &Weight<'_>| (weight.rows(), weight.k(), weight.format());
        if kind(&gate) != kind(&up) {
            return Err(WeightError::Unlike { gate: kind(&gate), up: kind(&up) });
        }
        match kind(&gate) {
            (rows, k, _) if rows == 0 || k == 0 => Err(WeightError::Empty { rows, k }),
            _ => Ok(Self { gate, up, input_scale: None }),
        }
    }

    /// Gate and up as the halves of one tensor of 2N rows, without a copy.
    ///
    /// # Errors
    ///
    /// [`WeightError::OddRows`], [`WeightError::Empty`].
    pub fn stacked(both: Weight<'a>, order: Order) -> Result<Self, WeightError> {
        let rows = both.rows();
        if !rows.is_multiple_of(2) {
            return Err(WeightError::OddRows { rows });
        }
        let (first, second) = (both.slice(0..rows / 2)?, both.slice(rows / 2..rows)?);
        match order {
            Order::GateFirst => Self::new(first, second),
            Order::UpFirst => Self::new(second, first),
        }
    }

    /// Sets the scale that activations were calibrated for, to be used as
    /// [`TensorScale::Fixed`](silumin_formats::quantize::TensorScale::Fixed).
    #[must_use]
    pub fn with_input_scale(self, input_scale: Option<f32>) -> Self {
        Self { input_scale, ..self }
    }

    /// The same without scales of rows: read [`Weight::product_scales`] of both before.
    #[must_use]
    pub fn without_row_scales(self) -> Self {
        let [gate, up] = [self.gate, self.up].map(|weight| weight.without_row_scales());
        Self { gate, up, ..self }
    }

    /// The gate's weights.
    #[must_use]
    pub fn gate(&self) -> Weight<'a> {
        self.gate
    }

    /// The up weights.
    #[must_use]
    pub fn up(&self) -> Weight<'a> {
        self.up
    }

    /// N: rows of gate and of up.
    #[must_use]
    pub fn n(&self) -> usize {
        self.gate.rows()
    }

    /// K, elements.
    #[must_use]
    pub fn k(&self) -> usize {
        self.gate.k()
    }

    /// The format of gate and up.
    #[must_use]
    pub fn format(&self) -> OperandFormat {
        self.gate.format()
    }

    /// The scale of the whole activation tensor for which the checkpoint was calibrated; `None` if it has none (only
    /// weights are quantised).
    #[must_use]
    pub fn input_scale(&self) -> Option<f32> {
        self.input_scale
    }

    /// Copies gate and up to a device: codes unchanged, scale factors to the blocked layout, or to f32. It makes two
    /// allocations, or one for formats without scale factors.
    ///
    /// # Errors
    ///
    /// [`WeightError::RowsScaled`] where rows have scales of their own; memory of the device.
    pub fn upload(&self, device: &Device) -> Result<DeviceGateUp, WeightError> {
        if self.gate.row_scales().or(self.up.row_scales()).is_some() {
            return Err(WeightError::RowsScaled);
        }
        let [b1, b2] = upload_both(device, [self.gate.codes(), self.up.codes()])?;
        let scales = match self.format().spec().scales {
            Some(_) => {
                let (gate, up) = (self.gate.blocked_scales()?, self.up.blocked_scales()?);
                let [sfb1, sfb2] = upload_both(device, [&gate, &up])?;
                Some((sfb1, sfb2))
            }
            None => None,
        };
        let (sfb1, sfb2) = scales.unzip();
        Ok(DeviceGateUp {
            b1,
            b2,
            sfb1,
            sfb2,
            gate_scale: self.gate.tensor_scale(),
            up_scale: self.up.tensor_scale(),
            input_scale: self.input_scale,
            n: self.n(),
            k: self.k(),
            format: self.format(),
        })
    }
}

/// Uploads two tensors of one length into one allocation.
fn upload_both(device: &Device, [first, second]: [&[u8]; 2]) -> Result<[Buffer; 2], WeightError> {
    let start = first.len().next_multiple_of(ALIGNMENT);
    let room = device.alloc(start + second.len())?;
    let buffers = [room.slice(0, first.len())?, room.slice(start, second.len())?];
    buffers[0].write(first)?;
    buffers[1].write(second)?;
    Ok(buffers)
}

/// Gate and up weights on a device, as a kernel takes them.
#[derive(Clone, Debug)]
pub struct DeviceGateUp {
    /// Codes of the gate, `[N, K]`.
    pub b1: Buffer,
    /// Codes of up, `[N, K]`.
    pub b2: Buffer,
    /// Scale factors of the gate as a kernel reads them, if the format has them.
    pub sfb1: Option<Buffer>,
    /// Scale factors of up as a kernel reads them, if the format has them.
    pub sfb2: Option<Buffer>,
    /// The scale of the gate's tensor.
    pub gate_scale: f32,
    /// The scale of up's tensor.
    pub up_scale: f32,
    /// The scale for which activations were calibrated.
    pub input_scale: Option<f32>,
    /// N.
    pub n: usize,
    /// K, elements.
    pub k: usize,
    /// The format of the weights.
    pub format: OperandFormat,
}

impl DeviceGateUp {
    /// The arguments of a launch on activations `a`, with their scale factors if they have them, into `c`. The launch
    /// is refused if a weight tensor has a scale other than 1 and the gate has no scalar: see [`Self::scalars`].
    #[must_use]
    pub fn args<'a>(&'a self, a: &'a Buffer, sfa: Option<&'a Buffer>, c: &'a Buffer) -> Args<'a> {
        let args = Args::new(a, &self.b1, &self.b2, c);
        let weight_scales = Some([self.gate_scale, self.up_scale]);
        Args { sfa, sfb1: self.sfb1.as_ref(), sfb2: self.sfb2.as_ref(), weight_scales, ..args }
    }

    /// The scalars `gate_scale` and `up_scale` for the gate `silu(gate_scale * (x @ gate)) * (up_scale * (x @ up))`:
    /// the scale of each weight tensor times that of the activations.
    ///
    /// The gate's scale has to be inside silu, which is not linear, so there are two scalars even if all tensors
    /// share one scale.
    #[must_use]
    pub fn scalars(&self, activation_scale: f32) -> [(&'static str, f32); 2] {
        [("gate_scale", activation_scale * self.gate_scale), ("up_scale", activation_scale * self.up_scale)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use silumin_codegen::arch::Arch;
    use silumin_formats::quantize::{TensorScale, quantize, quantize_to};

    fn numbers(count: usize) -> Vec<f32> {
        (0..count).map(|i| (i as f32 * 0.7).sin()).collect()
    }

    #[test]
    fn halves_are_views_of_the_stacked_tensor() {
        let (n, k) = (72, 64);
        let both = quantize(&numbers(2 * n * k), 2 * n, k, TensorScale::FromMax).unwrap();
        let both = Weight::of(&both).unwrap();
        let gate_first = GateUp::stacked(both, Order::GateFirst).unwrap();
        let up_first = GateUp::stacked(both, Order::UpFirst).unwrap();
        assert_eq!((gate_first.gate(), gate_first.up()), (up_first.up(), up_first.gate()));
        assert_eq!(gate_first.gate().codes().as_ptr(), both.codes().as_ptr());
        assert_eq!(gate_first.up().codes().as_ptr(), both.codes()[n * k / 2..].as_ptr());
        assert_eq!(gate_first.up().scales().as_ptr(), both.scales()[n * k / 16..].as_ptr());
        assert_eq!((gate_first.n(), gate_first.k(), gate_first.format()), (n, k, OperandFormat::Nvfp4));
        let odd = both.slice(0..3).unwrap();
        assert_eq!(GateUp::stacked(odd, Order::GateFirst), Err(WeightError::OddRows { rows: 3 }));
        let none = both.slice(0..0).unwrap();
        assert_eq!(GateUp::stacked(none, Order::GateFirst), Err(WeightError::Empty { rows: 0, k }));
    }

    #[test]
    fn unlike_tensors_are_no_pair() {
        let values = numbers(64 * 64);
        let make =
            |format, rows| quantize_to(format, &values[..rows * 64], rows, 64, TensorScale::One).unwrap();
        let (gate, fewer, mx) =
            (make(OperandFormat::Nvfp4, 64), make(OperandFormat::Nvfp4, 63), make(OperandFormat::Mxfp4, 64));
        for up in [&fewer, &mx] {
            let error =
                GateUp::new(Weight::of(&gate).unwrap(), Weight::of(up).unwrap()).unwrap_err().to_string();
            assert!(error.contains("64 x 64 in nvfp4") && error.contains("one shape"), "{error}");
        }
    }

    #[test]
    fn a_device_has_what_the_host_has_in_every_format() {
        let device = Device::emulated(Arch::Sm100a);
        for (format, n) in OperandFormat::ALL.into_iter().zip([1, 31, 128, 130, 72, 3, 8, 5, 7, 128]) {
            let k = format.spec().k_multiple.max(96) as usize;
            let both = quantize_to(format, &numbers(2 * n * k), 2 * n, k, TensorScale::One).unwrap();
            let pair = GateUp::stacked(Weight::of(&both).unwrap(), Order::UpFirst).unwrap();
            let there = pair.with_input_scale(Some(0.25)).upload(&device).unwrap();
            assert_eq!((there.n, there.k, there.format, there.input_scale), (n, k, format, Some(0.25)));
            assert_eq!(there.b1.download().unwrap(), pair.gate().codes());
            assert_eq!(there.b2.download().unwrap(), pair.up().codes());
            assert!(there.b2.is_aligned(ALIGNMENT));
            for (buffer, weight) in [(&there.sfb1, pair.gate()), (&there.sfb2, pair.up())] {
                let scales = buffer.as_ref().map_or_else(Vec::new, |buffer| buffer.download().unwrap());
                assert_eq!(scales, weight.blocked_scales().unwrap());
                assert_eq!(buffer.is_some(), format.spec().scales.is_some());
            }
        }
    }
}
