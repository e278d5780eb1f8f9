//! Kernels on a GPU, on memory and streams of other libraries.
//!
//! Python gives addresses and lengths, which it has checked, and keeps their owners alive during a call.

#![allow(unsafe_code, reason = "addresses, streams and capsules come from other libraries")]

use crate::fault::{Fault, caught, interruptible};
use crate::kernel::{Request, declared, gate_vectors};
use cudarc::driver::result::ctx;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyCapsuleMethods};
use silumin::codegen::plan::Operand;
use silumin::runtime::dlpack::{Abi, Imported, Managed, import};
use silumin::{Args, Buffer, Cache, Device, DualGemm, LoadedKernel, Stream};
use std::mem::ManuallyDrop;

/// A GPU.
#[pyclass(frozen)]
pub struct Gpu {
    device: Device,
}

/// A kernel on a GPU.
#[pyclass(frozen)]
pub struct Loaded {
    /// There until it is dropped.
    kernel: ManuallyDrop<LoadedKernel>,
    device: Device,
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // To unload a kernel changes the thread's current context.
        let _context = SameContext::keep();
        // SAFETY: it is dropped here only, and not used again.
        unsafe { ManuallyDrop::drop(&mut self.kernel) };
    }
}

/// A tensor of another library. Its memory is there as long as this is.
#[pyclass(frozen)]
pub struct Borrowed {
    /// There until it is dropped.
    tensor: Option<Imported>,
    address: u64,
    nbytes: usize,
    shape: Vec<usize>,
    /// Code, bits and lanes.
    dtype: (u8, u8, u16),
    read_only: bool,
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        let _context = SameContext::keep();
        // A deleter may run Python, also while an exception unwinds.
        Python::attach(|py| {
            let raised = PyErr::take(py);
            drop(self.tensor.take());
            if let Some(raised) = raised {
                raised.restore(py);
            }
        });
    }
}

/// An operand or a vector: its name, address and length in bytes.
type Place = (String, u64, usize);

/// Opens a GPU by the driver's number.
#[pyfunction]
pub fn open_gpu(py: Python<'_>, ordinal: usize) -> PyResult<Gpu> {
    // In a thread of its own, since opening changes the thread's current context.
    interruptible(py, |_| {
        let device = Device::cuda(ordinal).map_err(Fault::device)?;
        Ok(Gpu { device: device.with_cache(Cache::open_default()) })
    })
}

/// Leaves the thread's current context as it was, which may be none.
struct SameContext(Option<cudarc::driver::sys::CUcontext>);

impl SameContext {
    /// The driver has been loaded.
    fn keep() -> Self {
        let context = ctx::get_current().map(|context| context.unwrap_or(std::ptr::null_mut()));
        Self(context.ok())
    }
}

impl Drop for SameContext {
    fn drop(&mut self) {
        if let Some(context) = self.0 {
            // SAFETY: the context was current in this thread a moment ago, and its owner is the caller.
            let _ = unsafe { ctx::set_current(context) };
        }
    }
}

/// The stream with a handle of the driver's.
fn stream_of(device: &Device, handle: u64) -> Result<Stream, Fault> {
    let default = device.stream();
    // 0 is the default stream, and so is 1, `CU_STREAM_LEGACY`.
    let (2.., Some(stream)) = (handle, default.cuda()) else { return Ok(default) };
    // SAFETY: the handle names a live stream of the GPU's primary context, by the contract of the callers in Python.
    let borrowed = unsafe { stream.context().wrap_borrowed_stream(handle as usize as *mut _) };
    device.stream_of(borrowed).map_err(Fault::device)
}

#[pymethods]
impl Gpu {
    /// The chip, as in `.target`.
    #[getter]
    fn arch(&self) -> &'static str {
        self.device.arch().target()
    }

    /// The device in words.
    #[getter]
    fn name(&self) -> String {
        self.device.to_string()
    }

    /// Makes a kernel and loads it.
    fn load(&self, py: Python<'_>, request: Request) -> PyResult<Loaded> {
        interruptible(py, |_| {
            let (spec, shape, _) = declared(request)?;
            let kernel = DualGemm::new(spec).load(&self.device, shape).map_err(Fault::config)?;
            Ok(Loaded { kernel: ManuallyDrop::new(kernel), device: self.device.clone() })
        })
    }

    /// Takes the tensor out of a capsule of DLPack, which has been made ready on the stream.
    fn borrow(&self, py: Python<'_>, capsule: &Bound<'_, PyCapsule>, stream: u64) -> PyResult<Borrowed> {
        let names = [
            (c"dltensor_versioned", c"used_dltensor_versioned", Abi::Versioned),
            (c"dltensor", c"used_dltensor", Abi::Unversioned),
        ];
        let known = names
            .iter()
            .find_map(|(name, used, abi)| Some((capsule.pointer_checked(Some(name)).ok()?, used, *abi)));
        caught(py, || {
            let Some((pointer, used, abi)) = known else {
                return Err(Fault::option(
                    "the capsule of __dlpack__ has no tensor: it was used before, or is no capsule of DLPack",
                ));
            };
            // SAFETY: the capsule has the name of a struct that nobody has taken, and the new name says that it is taken. The name is
            // static.
            let managed = unsafe {
                if ffi::PyCapsule_SetName(capsule.as_ptr(), used.as_ptr()) != 0 {
                    return Err(Fault::option("the capsule of __dlpack__ cannot be taken over"));
                }
                Managed::from_address(pointer.as_ptr(), abi)
            };
            let _context = SameContext::keep();
            let stream = stream_of(&self.device, stream)?;
            let tensor = managed.and_then(|managed| import(managed, &stream)).map_err(Fault::option)?;
            Ok(Borrowed {
                address: tensor.buffer.cuda_address().unwrap_or(0),
                nbytes: tensor.buffer.len(),
                shape: tensor.shape.clone(),
                dtype: (tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes),
                read_only: tensor.read_only,
                tensor: Some(tensor),
            })
        })
    }
}

#[pymethods]
impl Borrowed {
    /// The address of the first element.
    #[getter]
    fn address(&self) -> u64 {
        self.address
    }

    /// Bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.nbytes
    }

    /// Sizes, the outer dimension first.
    #[getter]
    fn shape(&self) -> Vec<usize> {
        self.shape.clone()
    }

    /// Code, bits and lanes of the element type.
    #[getter]
    fn dtype(&self) -> (u8, u8, u16) {
        self.dtype
    }

    /// Whether its owner allows no writes.
    #[getter]
    fn read_only(&self) -> bool {
        self.read_only
    }
}

#[pymethods]
impl Loaded {
    /// Names of the gate's scalars.
    #[getter]
    fn scalars(&self) -> Vec<String> {
        self.kernel.kernel().scalars().into_iter().map(str::to_owned).collect()
    }

    /// Names of the gate's vectors and matrices, whether each is a matrix, and bytes.
    #[getter]
    fn vectors(&self) -> Vec<(String, bool, u64)> {
        gate_vectors(self.kernel.kernel())
    }

    /// The format of the gate's matrices.
    #[getter]
    fn matrix_format(&self) -> &'static str {
        self.kernel.kernel().problem.formats.matrix().name()
    }

    /// Enqueues the kernel on a stream. The addresses are of this GPU's memory, and stay valid until the work is done.
    fn launch(
        &self,
        py: Python<'_>,
        stream: u64,
        operands: Vec<Place>,
        vectors: Vec<Place>,
        scalars: Vec<(String, f32)>,
    ) -> PyResult<()> {
        caught(py, || py.detach(|| self.enqueue(stream, &operands, &vectors, &scalars)))
    }
}

impl Loaded {
    fn enqueue(
        &self,
        stream: u64,
        operands: &[Place],
        vectors: &[Place],
        scalars: &[(String, f32)],
    ) -> Result<(), Fault> {
        let _context = SameContext::keep();
        let stream = stream_of(&self.device, stream)?;
        let lend = |address: u64, bytes: usize| {
            // SAFETY: the caller keeps the memory until the work is done, and orders other use of it by the stream.
            unsafe { stream.lend(address, bytes) }.map_err(Fault::device)
        };
        let given = |operand: Operand| {
            let place = operands.iter().find(|(name, ..)| name == operand.name());
            place.map(|(_, address, bytes)| lend(*address, *bytes)).transpose()
        };
        let needed = |operand: Operand| {
            let missing = || Fault::launch(format!("the operand `{operand}` is missing"));
            given(operand)?.ok_or_else(missing)
        };
        let (a, b1, c) = (needed(Operand::A)?, needed(Operand::B1)?, needed(Operand::C)?);
        let (b2, sfa) = (given(Operand::B2)?, given(Operand::Sfa)?);
        let (sfb1, sfb2) = (given(Operand::Sfb1)?, given(Operand::Sfb2)?);
        let vectors: Vec<(&str, Buffer)> = (vectors.iter())
            .map(|(name, address, bytes)| Ok((name.as_str(), lend(*address, *bytes)?)))
            .collect::<Result<_, Fault>>()?;
        let vectors: Vec<(&str, &Buffer)> = vectors.iter().map(|(name, buffer)| (*name, buffer)).collect();
        let scalars: Vec<(&str, f32)> = scalars.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        let args = Args {
            b2: b2.as_ref(),
            sfa: sfa.as_ref(),
            sfb1: sfb1.as_ref(),
            sfb2: sfb2.as_ref(),
            vectors: &vectors,
            scalars: &scalars,
            ..Args::gemm(&a, &b1, &c)
        };
        self.kernel.launch(&stream, &args).map(drop).map_err(Fault::launch)
    }
}
