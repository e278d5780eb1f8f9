//! Preparing operands on the device: activations to NVFP4, MXFP8 and e4m3, scale factors to the blocked layout.
//!
//! One module a chip and source format serves every size; it is loaded once, with the model. What comes out is byte for
//! byte what the host makes of the same numbers ([`quantize`](mod@silumin_formats::quantize), [`silumin_formats::layout`]).
//!
//! ```
//! use half::bf16;
//! use silumin_codegen::arch::Arch;
//! use silumin_runtime::device::Device;
//! use silumin_formats::quantize::{TensorScale, quantize};
//! use silumin_runtime::prepare::{Activations, Quantizer, Source};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = Device::emulated(Arch::Sm100a);
//! let quantizer = Quantizer::load(&device, Source::Bf16)?;
//!
//! let values: Vec<bf16> = (0..3 * 64).map(|i| bf16::from_f32((i as f32).sin())).collect();
//! let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
//! let x = device.upload(&bytes)?;
//! let a = quantizer.quantize(&device.stream(), &Activations { x: &x, rows: 3, k: 64, tensor_scale: 0.001 })?;
//!
//! let host = quantize(&values, 3, 64, TensorScale::Fixed(0.001))?;
//! assert_eq!(a.codes.download()?, host.codes());
//! assert_eq!(a.scales.download()?, host.blocked_scales()?);
//! # Ok(())
//! # }
//! ```

mod blocks;
mod call;

pub use blocks::{E4m3BlockQuantizer, E4m3Blocks};

use std::fmt;
use std::sync::Arc;

use silumin_codegen::kernel::Kernel;
use silumin_codegen::prepare::Preparation;
pub use silumin_codegen::prepare::Source;
use silumin_codegen::problem::OperandFormat;
use silumin_codegen::render::RenderError;
use thiserror::Error;

#[cfg(feature = "cuda")]
use crate::device::cuda;
use crate::device::plain::Plain;
pub use crate::device::plain::RunError;
use crate::device::{Backend, Buffer, Device, DeviceError, Stream};
use crate::gemm::{LoadError, Module, load_module};
use call::Role;
pub(crate) use call::{Call, Number, Tensor};
use silumin_formats::layout::{LayoutError, blocked_len};

/// Alignment of addresses in bytes, for vector loads and stores.
const ALIGNMENT: usize = 16;

/// Most CTAs of a launch that may start early. An H200 has 132 SMs. A launch of fewer CTAs saves a microsecond there, and a larger one
/// delays the kernel that still runs (decision 0216).
const EARLY_CTAS: u32 = 128;

/// Whether a launch of `ctas` CTAs starts before the kernel ahead of it in the stream has ended, and waits on the chip.
pub(crate) fn starts_early(kernel: &Kernel, ctas: u32) -> bool {
    ctas <= EARLY_CTAS && kernel.launches.iter().all(|launch| launch.programmatic)
}

/// Why operands could not be prepared.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PrepareError {
    /// The kernel could not be generated.
    #[error(transparent)]
    Kernel(#[from] RenderError),
    /// The device refused the kernel.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// K is not a multiple of the block.
    #[error(
        "K = {k} is not a multiple of 16, the elements that share a scale in nvfp4 or a load in e4m3: pad K with zeros"
    )]
    KNotBlocked {
        /// K.
        k: u32,
    },
    /// K is not a multiple of a format's block.
    #[error(
        "K = {k} is not a multiple of {block}, the elements that share a scale factor in {format}: pad K with zeros"
    )]
    Blocks {
        /// K.
        k: u32,
        /// Elements of a block.
        block: u32,
        /// The format.
        format: OperandFormat,
    },
    /// There are no rows or columns.
    #[error("{rows} x {columns} is empty: there is nothing to launch")]
    Empty {
        /// Rows.
        rows: u32,
        /// Columns.
        columns: u32,
    },
    /// The size exceeds the kernel's counters.
    #[error("{rows} rows of {columns} scale factors, padded, are more than 2^32: split them by rows")]
    TooLarge {
        /// Rows.
        rows: u32,
        /// Scale factors per row.
        columns: u32,
    },
    /// The scale of the tensor is not a positive finite number.
    #[error("the tensor scale is {value}, but it has to be finite and above 0: use 1 for none")]
    TensorScale {
        /// As given.
        value: f32,
    },
    /// A buffer has the wrong size.
    #[error(
        "`{tensor}` has {found} bytes, and {rows} x {columns} takes {expected}: pass exactly {expected}, as a slice of a longer buffer for example"
    )]
    Length {
        /// The tensor.
        tensor: &'static str,
        /// Length of the buffer in bytes.
        found: usize,
        /// Required length in bytes.
        expected: usize,
        /// Rows.
        rows: u32,
        /// Columns: K, or scale factors per row.
        columns: u32,
    },
    /// The address of a buffer has the wrong alignment.
    #[error("the address of `{tensor}` is not a multiple of {ALIGNMENT}: slice at an offset that is")]
    Alignment {
        /// The tensor.
        tensor: &'static str,
    },
    /// A buffer or a stream belongs to another device.
    #[error("`{what}` does not belong to {device}, where the kernel is: use one of that device")]
    Foreign {
        /// What it is.
        what: &'static str,
        /// The kernel's device.
        device: String,
    },
    /// An output overlaps another buffer.
    #[error("`{one}` and `{other}` overlap in memory: give the output memory of its own")]
    Aliasing {
        /// One of them.
        one: &'static str,
        /// The other.
        other: &'static str,
    },
    /// The scale factors have no blocked layout.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The device's memory failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The launch failed.
    #[error("`{kernel}` on {device}: {reason}")]
    Run {
        /// The kernel.
        kernel: String,
        /// Where it is.
        device: String,
        /// What went wrong.
        reason: RunError,
    },
}

/// A loaded kernel.
#[derive(Clone)]
pub(crate) struct Loaded {
    device: Device,
    preparation: Preparation,
    kernel: Arc<Kernel>,
    module: Arc<Module>,
}

impl fmt::Debug for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}", self.preparation, self.device)
    }
}

impl Loaded {
    pub(crate) fn new(device: &Device, preparation: Preparation) -> Result<Self, PrepareError> {
        let kernel = preparation.kernel(device.arch())?;
        let module = Arc::new(load_module(device, &kernel)?);
        Ok(Self { device: device.clone(), preparation, kernel: Arc::new(kernel), module })
    }

    fn foreign(&self, what: &'static str) -> PrepareError {
        PrepareError::Foreign { what, device: self.device.numbered() }
    }

    /// CTAs for the given number of scale factors.
    pub(crate) fn ctas(&self, rows: u32, columns: u32) -> Result<u32, PrepareError> {
        match self.preparation.ctas(rows, columns) {
            Some(0) => Err(PrepareError::Empty { rows, columns }),
            Some(ctas) => Ok(ctas),
            None => Err(PrepareError::TooLarge { rows, columns }),
        }
    }

    /// Launches the kernel; lengths have been checked.
    pub(crate) fn launch(&self, stream: &Stream, ctas: u32, args: &[Plain<'_>]) -> Result<(), PrepareError> {
        if *stream.device() != self.device {
            return Err(self.foreign("stream"));
        }
        let named = |argument: &Plain<'_>| match *argument {
            Plain::Input(name, _) | Plain::Output(name, _) | Plain::Part(name, _) => name,
            _ => "",
        };
        // A thread of this kernel reads what it adds to before it writes there.
        let in_place = matches!(self.preparation, Preparation::Combine(_));
        for (position, output) in args.iter().enumerate() {
            let Some((written, true)) = output.buffer() else { continue };
            let shared = |(other, argument): (usize, &Plain<'_>)| {
                let overlaps = argument.buffer().is_some_and(|(buffer, _)| {
                    let added = in_place && named(argument) == "residual";
                    buffer.overlaps(written) && !(added && buffer.is_same(written))
                });
                (other != position && overlaps).then(|| named(argument))
            };
            if let Some(other) = args.iter().enumerate().find_map(shared) {
                return Err(PrepareError::Aliasing { one: named(output), other });
            }
        }
        let Some(launch) = self.kernel.only_launch() else { return Ok(()) };
        let mut launch = launch.clone();
        launch.grid = [ctas, 1, 1];
        launch.programmatic = starts_early(&self.kernel, ctas);
        let failed = |reason| PrepareError::Run {
            kernel: self.kernel.name.clone(),
            device: self.device.to_string(),
            reason,
        };
        match (&*self.module, self.device.backend()) {
            (Module::Emulated(module), Backend::Emulated(emulator)) => {
                emulator.launch_plain(module, &launch, args).map(drop).map_err(failed)
            }
            #[cfg(feature = "cuda")]
            (Module::Cuda(module), Backend::Cuda(device)) => match stream.lane() {
                Some(lane) => device
                    .launch_plain(module, &launch, args, lane)
                    .map_err(|error| failed(RunError::Refused { reason: cuda::in_words(error) })),
                None => Err(self.foreign("stream")),
            },
            // A kernel is loaded by its device, so that both are of one kind.
            #[cfg(feature = "cuda")]
            _ => Err(self.foreign("stream")),
        }
    }
}

/// Activations on a device, in bf16 or f16.
#[derive(Clone, Copy, Debug)]
pub struct Activations<'a> {
    /// The activations, `[rows, k]`, row-major, in the format that the quantiser was loaded for.
    pub x: &'a Buffer,
    /// Rows.
    pub rows: u32,
    /// Elements per row, a multiple of 16.
    pub k: u32,
    /// The scale of the whole tensor, from calibration; 1 for none.
    pub tensor_scale: f32,
}

/// NVFP4 activations on a device, as a dual GEMM takes them.
#[derive(Clone, Debug)]
pub struct Quantized {
    /// Codes, `[rows, k]`.
    pub codes: Buffer,
    /// Scale factors in the blocked layout.
    pub scales: Buffer,
}

/// Quantises activations to NVFP4 on one device. Cloning it is cheap.
///
/// The rules are those of the host's quantiser, except for NaN and infinity, which are no error: a block with one of
/// them gets a scale factor NaN and elements 0, so every product with it is NaN.
#[derive(Clone, Debug)]
pub struct Quantizer {
    loaded: Loaded,
}

impl Quantizer {
    /// Generates and loads the kernel for activations of one format.
    ///
    /// # Errors
    ///
    /// [`PrepareError::Load`].
    pub fn load(device: &Device, source: Source) -> Result<Self, PrepareError> {
        Ok(Self { loaded: Loaded::new(device, Preparation::Quantize(source))? })
    }

    /// The PTX and its launch facts; its grid is [`Preparation::ctas`].
    #[must_use]
    pub fn kernel(&self) -> &Kernel {
        &self.loaded.kernel
    }

    /// Lengths of codes and of blocked scale factors for `rows` rows, in bytes.
    ///
    /// # Errors
    ///
    /// [`PrepareError::KNotBlocked`], [`PrepareError::Layout`].
    pub fn bytes(rows: u32, k: u32) -> Result<[usize; 2], PrepareError> {
        if !k.is_multiple_of(16) {
            return Err(PrepareError::KNotBlocked { k });
        }
        let (rows, k) = (rows as usize, k as usize);
        Ok([rows * (k / 2), blocked_len(rows, k / 16)?])
    }

    /// Quantises into buffers of the lengths that [`Quantizer::bytes`] gives. It allocates nothing, and on a GPU it
    /// waits for nothing.
    ///
    /// # Errors
    ///
    /// [`PrepareError`]: buffers of other sizes or devices, K that is not a multiple of 16, a tensor scale that is none; what
    /// the device says.
    pub fn launch(
        &self,
        stream: &Stream,
        from: &Activations<'_>,
        codes: &Buffer,
        scales: &Buffer,
    ) -> Result<(), PrepareError> {
        let Activations { x, rows, k, tensor_scale } = *from;
        self.loaded.run(stream, &self.call([rows, k], tensor_scale)?, [x, codes, scales])
    }

    /// A launch for `rows` rows.
    pub(crate) fn call(&self, sizes: [u32; 2], tensor_scale: f32) -> Result<Call<3, 3>, PrepareError> {
        let [rows, k] = sizes;
        let ctas = self.loaded.ctas_of_rows(rows, k, Some(tensor_scale))?;
        let [codes, scales] = Self::bytes(rows, k)?;
        let tensor = |name, role, bytes| Tensor { name, role, bytes, sizes };
        let tensors = [
            tensor("x", Role::Input, 4 * codes),
            tensor("codes", Role::Output, codes),
            tensor("scales", Role::Output, scales),
        ];
        let numbers = [Number::U32(rows), Number::U32(k / 16), Number::F32(tensor_scale)];
        Ok(Call { ctas, tensors, numbers })
    }

    /// Quantises into new buffers.
    ///
    /// # Errors
    ///
    /// As [`Quantizer::launch`], and memory of the device.
    pub fn quantize(&self, stream: &Stream, from: &Activations<'_>) -> Result<Quantized, PrepareError> {
        let [codes, scales] = Self::bytes(from.rows, from.k)?;
        // Before anything is allocated.
        self.loaded.ctas(from.rows, from.k / 16)?;
        let device = &self.loaded.device;
        let to = Quantized { codes: device.alloc(codes)?, scales: device.alloc(scales)? };
        self.launch(stream, from, &to.codes, &to.scales)?;
        Ok(to)
    }
}

/// Quantises activations to e4m3 with a scale of the whole tensor, on one device: a cheap handle.
///
/// An element is the e4m3 nearest to `x / tensor_scale`, saturating at 448; NaN and infinity become NaN.
#[derive(Clone, Debug)]
pub struct E4m3Quantizer {
    loaded: Loaded,
}

impl E4m3Quantizer {
    /// Generates and loads the kernel for activations of one format.
    ///
    /// # Errors
    ///
    /// [`PrepareError::Load`].
    pub fn load(device: &Device, source: Source) -> Result<Self, PrepareError> {
        Ok(Self { loaded: Loaded::new(device, Preparation::QuantizeE4m3(source))? })
    }

    /// The PTX and its launch facts; its grid is [`Preparation::ctas`].
    #[must_use]
    pub fn kernel(&self) -> &Kernel {
        &self.loaded.kernel
    }

    /// Quantises into `codes`, `rows * k` bytes. It allocates nothing, and on a GPU it waits for nothing.
    ///
    /// # Errors
    ///
    /// [`PrepareError`]: buffers of other sizes or devices, K that is not a multiple of 16, a tensor scale that is none; what
    /// the device says.
    pub fn launch(
        &self,
        stream: &Stream,
        from: &Activations<'_>,
        codes: &Buffer,
    ) -> Result<(), PrepareError> {
        let Activations { x, rows, k, tensor_scale } = *from;
        self.loaded.run(stream, &self.call([rows, k], tensor_scale)?, [x, codes])
    }

    /// A launch for `rows` rows.
    pub(crate) fn call(&self, sizes: [u32; 2], tensor_scale: f32) -> Result<Call<2, 2>, PrepareError> {
        let [rows, k] = sizes;
        let ctas = self.loaded.ctas_of_rows(rows, k, Some(tensor_scale))?;
        let bytes = rows as usize * k as usize;
        let tensor = |name, role, bytes| Tensor { name, role, bytes, sizes };
        let tensors = [tensor("x", Role::Input, 2 * bytes), tensor("codes", Role::Output, bytes)];
        let numbers = [Number::U32(rows * (k / 16)), Number::F32(tensor_scale)];
        Ok(Call { ctas, tensors, numbers })
    }
}

/// Quantises activations to e4m3 with a scale for each row, on one device: a cheap handle.
///
/// A row's scale is its largest magnitude over 448, or 1 for a row of zeros or with a number that is not finite; an element is the
/// e4m3 nearest to `x / scale`, and NaN where x is not finite. The gate applies the scales as a vector, `s[m]`.
#[derive(Clone, Debug)]
pub struct E4m3RowQuantizer {
    loaded: Loaded,
}

impl E4m3RowQuantizer {
    /// Generates and loads the kernel for activations of one format.
    ///
    /// # Errors
    ///
    /// [`PrepareError::Load`].
    pub fn load(device: &Device, source: Source) -> Result<Self, PrepareError> {
        Ok(Self { loaded: Loaded::new(device, Preparation::QuantizeE4m3Rows(source))? })
    }

    /// The PTX and its launch facts; its grid is [`Preparation::ctas`].
    #[must_use]
    pub fn kernel(&self) -> &Kernel {
        &self.loaded.kernel
    }

    /// Quantises `x`, `[rows, k]`, into `codes`, `rows * k` bytes, and `scales`, f32 `[rows]`. It allocates nothing, and on a GPU it
    /// waits for nothing.
    ///
    /// # Errors
    ///
    /// [`PrepareError`]: buffers of other sizes or devices, K that is not a multiple of 16; what the device says.
    pub fn launch(
        &self,
        stream: &Stream,
        x: &Buffer,
        sizes: [u32; 2],
        codes: &Buffer,
        scales: &Buffer,
    ) -> Result<(), PrepareError> {
        self.loaded.run(stream, &self.call(sizes)?, [x, codes, scales])
    }

    /// A launch for `rows` rows.
    pub(crate) fn call(&self, sizes: [u32; 2]) -> Result<Call<3, 3>, PrepareError> {
        let [rows, k] = sizes;
        let ctas = self.loaded.ctas_of_rows(rows, k, None)?;
        let bytes = rows as usize * k as usize;
        let tensor = |name, role, bytes, sizes| Tensor { name, role, bytes, sizes };
        let tensors = [
            tensor("x", Role::Input, 2 * bytes, sizes),
            tensor("codes", Role::Output, bytes, sizes),
            tensor("scales", Role::Output, 4 * rows as usize, [rows, 1]),
        ];
        let warps = self.loaded.preparation.row_warps(rows, k / 16);
        let numbers = [Number::U32(rows), Number::U32(k / 16), Number::U32(warps)];
        Ok(Call { ctas, tensors, numbers })
    }
}

/// Scale factors from row-major to blocked order, on one device: a cheap handle. For weights that are on the device already;
/// [`to_blocked`](silumin_formats::layout::to_blocked) does it on the host.
#[derive(Clone, Debug)]
pub struct ScaleBlocker {
    loaded: Loaded,
}

impl ScaleBlocker {
    /// Generates and loads the kernel.
    ///
    /// # Errors
    ///
    /// [`PrepareError::Load`].
    pub fn load(device: &Device) -> Result<Self, PrepareError> {
        Ok(Self { loaded: Loaded::new(device, Preparation::Block)? })
    }

    /// The PTX and its launch facts; its grid is [`Preparation::ctas`].
    #[must_use]
    pub fn kernel(&self) -> &Kernel {
        &self.loaded.kernel
    }

    /// Converts `linear`, `[rows, columns]` scale factors of one byte, into `blocked`, [`blocked_len`] bytes.
    ///
    /// # Errors
    ///
    /// [`PrepareError`].
    pub fn launch(
        &self,
        stream: &Stream,
        linear: &Buffer,
        sizes: [u32; 2],
        blocked: &Buffer,
    ) -> Result<(), PrepareError> {
        let [rows, columns] = sizes;
        let ctas = self.loaded.ctas(rows, columns)?;
        let (all, padded) = (rows as usize * columns as usize, blocked_len(rows as usize, columns as usize)?);
        let tensor = |name, role, bytes| Tensor { name, role, bytes, sizes };
        let tensors = [tensor("linear", Role::Input, all), tensor("blocked", Role::Output, padded)];
        let numbers = [Number::U32(rows), Number::U32(columns)];
        self.loaded.run(stream, &Call { ctas, tensors, numbers }, [linear, blocked])
    }
}
