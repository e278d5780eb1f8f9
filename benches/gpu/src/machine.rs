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
/// Places for the marks of SMs, by `%smid`.
const SM_NUMBERS: usize = 256;
/// Bytes of a mark.
const MARK: usize = SM_NUMBERS * 16;
/// CTAs of a mark for each SM, so that every SM gets one.
const CTAS_PER_SM: u32 = 8;

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

/// Reads the SMs' clock before and after pieces of work.
pub struct Clock {
    kernel: Raw,
    ctas: u32,
}

/// Cycles and nanoseconds of each SM, before and after each piece of work.
pub struct Marks<'c> {
    clock: &'c Clock,
    marks: Buffer,
}

impl Clock {
    /// Loads the kernel.
    pub fn new(cuda: &Arc<CudaStream>) -> Result<Self, String> {
        let sms = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        let sms = raw::device_attribute(cuda, sms).unwrap_or(1).unsigned_abs();
        let ctas = sms.clamp(1, SM_NUMBERS as u32) * CTAS_PER_SM;
        Ok(Self { kernel: Raw::load(cuda, CLOCK, "mark")?, ctas })
    }

    /// Allocates marks for `pieces` pieces of work, all zeros.
    ///
    /// # Errors
    /// The driver fails.
    pub fn marks(&self, device: &Device, cuda: &CudaStream, pieces: usize) -> Result<Marks<'_>, String> {
        let bytes = pieces * 2 * MARK;
        let marks = device.alloc(bytes).map_err(|e| e.to_string())?;
        device.stream().synchronize().map_err(|e| e.to_string())?;
        // SAFETY: `marks` has `bytes` bytes.
        unsafe { raw::fill(cuda, marks.cuda_address().unwrap_or(0), 0, bytes)? };
        Ok(Marks { clock: self, marks })
    }
}

impl Marks<'_> {
    /// Enqueues a mark, runs `work`, and enqueues another mark. Does not wait for the marks.
    ///
    /// # Errors
    /// The driver fails, or `work` does.
    pub fn around<T>(&self, piece: usize, work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
        self.mark(2 * piece)?;
        let done = work()?;
        self.mark(2 * piece + 1)?;
        Ok(done)
    }

    fn mark(&self, place: usize) -> Result<(), String> {
        let address = self.marks.cuda_address().unwrap_or(0) + (place * MARK) as u64;
        // SAFETY: this is its parameter; a mark has a place for every SM number.
        unsafe { self.clock.kernel.launch([self.clock.ctas, 1], 32, &mut [Value::U64(address)]) }
    }

    /// Mean clock in MHz of each piece of work: cycles over time, the median of the SMs. Power and temperature set it under load. `None` if
    /// no SM's timer went on, as on an emulated device.
    ///
    /// # Errors
    /// The driver fails.
    pub fn clocks(&self, cuda: &CudaStream) -> Result<Vec<Option<f64>>, String> {
        cuda.synchronize().map_err(|e| raw::said("cuStreamSynchronize", e))?;
        let bytes = self.marks.download().map_err(|e| e.to_string())?;
        let clock = |both: &[u8]| {
            let (before, after) = both.split_at(MARK);
            let clocks: Vec<f64> = numbers(before)
                .zip(numbers(after))
                .filter(|(first, last)| first[1] != 0 && last[1] > first[1])
                .map(|(first, last)| {
                    last[0].wrapping_sub(first[0]) as f64 / (last[1] - first[1]) as f64 * 1e3
                })
                .collect();
            (!clocks.is_empty()).then(|| median(&clocks))
        };
        Ok(bytes.chunks_exact(2 * MARK).map(clock).collect())
    }
}

/// Cycles and nanoseconds of each SM.
fn numbers(mark: &[u8]) -> impl Iterator<Item = [u64; 2]> {
    let pairs = mark.as_chunks::<16>().0.iter();
    pairs.map(|pair| [0, 8].map(|at| u64::from_le_bytes(std::array::from_fn(|byte| pair[at + byte]))))
}
