//! Ranges for Nsight Systems, as a profiler receives them: this program injects itself into NVTX.
//!
//! Layouts and numbers are those of NVTX 3 (`nvtx3/nvtxDetail/nvtxTypes.h`).

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Mutex;
use std::thread::{self, ThreadId};

use silumin_codegen::arch::Arch;
use silumin_codegen::problem::Shape;
use silumin_codegen::spec::Spec;
use silumin_runtime::device::{Args, Device};
use silumin_runtime::gemm::DualGemm;

/// The beginning of a range with its name, or the end of the last that began.
#[derive(Clone, Debug, PartialEq)]
enum Event {
    Push(String),
    Pop,
}

static EVENTS: Mutex<Vec<(ThreadId, Event)>> = Mutex::new(Vec::new());

fn record(event: Event) -> c_int {
    EVENTS.lock().unwrap().push((thread::current().id(), event));
    0
}

extern "C" fn push(name: *const c_char) -> c_int {
    // SAFETY: NVTX passes a text that ends in a zero byte.
    record(Event::Push(unsafe { CStr::from_ptr(name) }.to_str().unwrap().to_owned()))
}

extern "C" fn pop() -> c_int {
    record(Event::Pop)
}

/// `NvtxExportTableCallbacks`.
#[repr(C)]
struct Callbacks {
    size: usize,
    table: extern "C" fn(module: c_uint, table: *mut *const *mut *const c_void, size: *mut c_uint) -> c_int,
}

type ExportTable = extern "C" fn(number: u32) -> *const Callbacks;

/// `NVTX_ETID_CALLBACKS`, `NVTX_CB_MODULE_CORE`, `NVTX_CBID_CORE_RangePushA` and `RangePop`.
const CALLBACKS: u32 = 1;
const CORE: c_uint = 1;
const RANGE_PUSH: usize = 9;
const RANGE_POP: usize = 11;

extern "C" fn inject(exports: ExportTable) -> c_int {
    let (mut table, mut size) = (std::ptr::null(), 0);
    // SAFETY: NVTX exports its table of callbacks for as long as the program runs.
    let callbacks = unsafe { &*exports(CALLBACKS) };
    assert_eq!((callbacks.table)(CORE, &mut table, &mut size), 1);
    assert!(size as usize > RANGE_POP);
    // SAFETY: the table has `size` places of functions, and nothing else writes to them during the injection.
    unsafe {
        **table.add(RANGE_PUSH) = push as *const c_void;
        **table.add(RANGE_POP) = pop as *const c_void;
    }
    1
}

/// NVTX calls this function before its first range, in place of a profiler's library.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "NVTX looks for this name")]
static InitializeInjectionNvtx2_fnptr: extern "C" fn(ExportTable) -> c_int = inject;

/// Events of this thread since `start`.
fn here(start: usize) -> Vec<Event> {
    let me = thread::current().id();
    let events = EVENTS.lock().unwrap();
    events[start..].iter().filter(|(thread, _)| *thread == me).map(|(_, event)| event.clone()).collect()
}

#[test]
fn warm_up_and_launches_are_ranges() {
    let gemm = DualGemm::new(Spec::new("silu(A @ B1) * (A @ B2)".parse().unwrap(), &[Arch::Sm100a]).unwrap());
    let device = Device::emulated(Arch::Sm100a);
    let shape = Shape::new(4, 64, 128);
    let start = EVENTS.lock().unwrap().len();
    let kernels = gemm.warmup(&device, &[shape]).unwrap();
    let warmup = here(start);
    assert_eq!(warmup.first(), Some(&Event::Push("silumin warm-up, 1 kernel".to_owned())), "{warmup:?}");
    assert_eq!(warmup.last(), Some(&Event::Pop));
    let loads = "silumin load 4 x 64 x 128".to_owned();
    assert!(EVENTS.lock().unwrap()[start..].iter().any(|(_, event)| *event == Event::Push(loads.clone())));

    let kernel = kernels.for_problem(4, 64, 128).unwrap();
    let buffer = device.alloc(16).unwrap();
    let start = EVENTS.lock().unwrap().len();
    // A launch that is refused ends its range, too.
    assert!(kernel.launch(&device.stream(), &Args::new(&buffer, &buffer, &buffer, &buffer)).is_err());
    let name = format!("silumin launch {}", kernel.kernel().name);
    assert_eq!(here(start), [Event::Push(name), Event::Pop]);
}
