//! Measures the machine: bandwidth, and the clock at which it runs.

use crate::raw::{self, Raw, Value};
use crate::row::Machine;
use crate::timing::{capture, median};
use cudarc::driver::{CudaStream, sys};
use silumin_runtime::device::{Buffer, Device, Stream};
use std::sync::Arc;

const READ: &str = include_str!("../read.ptx");
/// Bytes read to measure bandwidth; fewer on an emulated device.
const READ_BYTES: usize = 4 << 30;
const READ_THREADS: usize = 512;
const CLOCK: &str = include_str!("../clock.ptx");
/// Duration of a clock measurement in nanoseconds.
const CLOCK_NANOSECONDS: u64 = 100_000;

/// Measures the device's read bandwidth.
pub fn measure(device: &Device, stream: &Stream) -> Result<Machine, String> {
    use sys::CUdevice_attribute as Attribute;
    let cuda = stream.cuda().ok_or("the device is no GPU")?;
    let attribute = |which| raw::device_attribute(cuda, which).unwrap_or(0);
    let sms = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    let l2_bytes = attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
    // An emulated device says nothing of its L2, and is slow.
    let (bytes, ctas) = if l2_bytes == 0 { (1 << 17, 2) } else { (READ_BYTES, sms.max(1) as usize * 4) };
    let turn = ctas * READ_THREADS * 16 * 4;
    let bytes = bytes / turn * turn;
    let source = device.alloc(bytes).map_err(|e| e.to_string())?;
    let sink = device.alloc(16).map_err(|e| e.to_string())?;
    let [from, to] = [&source, &sink].map(|buffer| buffer.cuda_address().unwrap_or(0));
    device.stream().synchronize().map_err(|e| e.to_string())?;
    let kernel = Raw::load(cuda, READ, "read_all")?;
    // SAFETY: the buffer is so long.
    unsafe { raw::fill(cuda, from, 1, bytes)? };
    let captured = capture(stream, 1, 10.0, |_| {
        let mut values = [Value::U64(from), Value::U64(to), Value::U64(bytes as u64 / 16)];
        // SAFETY: these are its parameters; the grid's threads read four vectors in each turn, and the buffer is whole turns.
        unsafe { kernel.launch([ctas as u32, 1], READ_THREADS as u32, &mut values) }
    })?;
    let times: Result<Vec<f64>, _> = (0..21).map(|_| captured.time()).collect();
    let us = median(&times.map_err(|e| e.to_string())?);
    Ok(Machine {
        device: device.to_string(),
        arch: device.arch().to_string(),
        sms,
        l2_bytes,
        read_gbytes: bytes as f64 / us / 1e3,
    })
}

/// Measures the SMs' clock.
pub struct Clock {
    kernel: Raw,
    result: Buffer,
}

impl Clock {
    /// Loads the kernel and buffers for it.
    pub fn new(device: &Device, cuda: &Arc<CudaStream>) -> Result<Self, String> {
        let result = device.alloc(16).map_err(|e| e.to_string())?;
        Ok(Self { kernel: Raw::load(cuda, CLOCK, "clock")?, result })
    }

    /// Clock in MHz right after the work in the stream. Power and temperature set it under load, and it changes more
    /// slowly than a measurement takes.
    pub fn look(&self, cuda: &CudaStream) -> Result<f64, String> {
        let address = self.result.cuda_address().unwrap_or(0);
        let mut values = [Value::U64(address), Value::U64(CLOCK_NANOSECONDS)];
        // SAFETY: these are its parameters; the buffer holds both results.
        unsafe { self.kernel.launch([1, 1], 1, &mut values)? };
        cuda.synchronize().map_err(|e| raw::said("cuStreamSynchronize", e))?;
        let bytes = self.result.download().map_err(|e| e.to_string())?;
        let [cycles, nanoseconds] = bytes.as_chunks::<8>().0 else { return Err("no clock".to_owned()) };
        let nanoseconds = u64::from_le_bytes(*nanoseconds).max(1);
        Ok(u64::from_le_bytes(*cycles) as f64 / nanoseconds as f64 * 1e3)
    }
}
