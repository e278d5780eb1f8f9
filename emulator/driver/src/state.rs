//! State shared by all handles: chip, memory, modules, and the persistent error.

use crate::graph::Graphs;
use crate::link::Link;
use crate::module::say;
use silumin_emulator::{Buffer, GlobalMemory, Module, Options};
use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// An error of the driver's API (`CUresult`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Code {
    Success = 0,
    InvalidValue = 1,
    OutOfMemory = 2,
    InvalidDevice = 101,
    InvalidImage = 200,
    NoBinaryForGpu = 209,
    InvalidPtx = 218,
    UnsupportedPtxVersion = 222,
    InvalidHandle = 400,
    NotFound = 500,
    LaunchFailed = 719,
    NotSupported = 801,
    StreamCaptureUnsupported = 900,
    StreamCaptureIsolation = 905,
}

impl Code {
    pub const ALL: [Code; 14] = [
        Code::Success,
        Code::InvalidValue,
        Code::OutOfMemory,
        Code::InvalidDevice,
        Code::InvalidImage,
        Code::NoBinaryForGpu,
        Code::InvalidPtx,
        Code::UnsupportedPtxVersion,
        Code::InvalidHandle,
        Code::NotFound,
        Code::LaunchFailed,
        Code::NotSupported,
        Code::StreamCaptureUnsupported,
        Code::StreamCaptureIsolation,
    ];

    pub fn name(self) -> &'static CStr {
        match self {
            Code::Success => c"CUDA_SUCCESS",
            Code::InvalidValue => c"CUDA_ERROR_INVALID_VALUE",
            Code::OutOfMemory => c"CUDA_ERROR_OUT_OF_MEMORY",
            Code::InvalidDevice => c"CUDA_ERROR_INVALID_DEVICE",
            Code::InvalidImage => c"CUDA_ERROR_INVALID_IMAGE",
            Code::NoBinaryForGpu => c"CUDA_ERROR_NO_BINARY_FOR_GPU",
            Code::InvalidPtx => c"CUDA_ERROR_INVALID_PTX",
            Code::UnsupportedPtxVersion => c"CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
            Code::InvalidHandle => c"CUDA_ERROR_INVALID_HANDLE",
            Code::NotFound => c"CUDA_ERROR_NOT_FOUND",
            Code::LaunchFailed => c"CUDA_ERROR_LAUNCH_FAILED",
            Code::NotSupported => c"CUDA_ERROR_NOT_SUPPORTED",
            Code::StreamCaptureUnsupported => c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
            Code::StreamCaptureIsolation => c"CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
        }
    }

    pub fn meaning(self) -> &'static CStr {
        match self {
            Code::Success => c"no error",
            Code::InvalidValue => c"invalid argument",
            Code::OutOfMemory => c"out of memory",
            Code::InvalidDevice => c"invalid device ordinal",
            Code::InvalidImage => c"device kernel image is invalid",
            Code::NoBinaryForGpu => c"no kernel image is available for execution on the device",
            Code::InvalidPtx => c"a PTX JIT compilation failed",
            Code::UnsupportedPtxVersion => c"the provided PTX was compiled with an unsupported toolchain",
            Code::InvalidHandle => c"invalid resource handle",
            Code::NotFound => c"named symbol not found",
            Code::LaunchFailed => c"unspecified launch failure: see the emulator's findings",
            Code::NotSupported => c"operation not supported by the emulated driver",
            Code::StreamCaptureUnsupported => c"operation not permitted when stream is capturing",
            Code::StreamCaptureIsolation => c"dependency created on uncaptured work in another stream",
        }
    }
}

/// Return value of a call.
pub(crate) fn code(code: Code) -> c_int {
    code as c_int
}

/// The number of a device attribute (`CUdevice_attribute`).
#[derive(PartialEq, Eq)]
pub(crate) struct Ordinal(pub c_int);

impl Ordinal {
    pub const MAX_THREADS_PER_BLOCK: Ordinal = Ordinal(1);
    pub const SHARED_MEMORY: Ordinal = Ordinal(8);
    pub const WARP_SIZE: Ordinal = Ordinal(10);
    pub const MULTIPROCESSORS: Ordinal = Ordinal(16);
    pub const MAJOR: Ordinal = Ordinal(75);
    pub const MINOR: Ordinal = Ordinal(76);
    pub const COOPERATIVE_LAUNCH: Ordinal = Ordinal(95);
    pub const SHARED_MEMORY_OPTIN: Ordinal = Ordinal(97);
    pub const MEMORY_POOLS: Ordinal = Ordinal(115);
    pub const CLUSTER_LAUNCH: Ordinal = Ordinal(120);
}

/// A chip that the emulator stands in for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Chip {
    Sm90a,
    Sm100a,
    Sm103a,
    Sm110a,
    Sm120a,
}

impl Chip {
    const ALL: [Chip; 5] = [Chip::Sm90a, Chip::Sm100a, Chip::Sm103a, Chip::Sm110a, Chip::Sm120a];

    pub fn target(self) -> &'static str {
        match self {
            Chip::Sm90a => "sm_90a",
            Chip::Sm100a => "sm_100a",
            Chip::Sm103a => "sm_103a",
            Chip::Sm110a => "sm_110a",
            Chip::Sm120a => "sm_120a",
        }
    }

    pub fn capability(self) -> (c_int, c_int) {
        match self {
            Chip::Sm90a => (9, 0),
            Chip::Sm100a => (10, 0),
            Chip::Sm103a => (10, 3),
            Chip::Sm110a => (11, 0),
            Chip::Sm120a => (12, 0),
        }
    }

    pub fn sms(self) -> c_int {
        match self {
            Chip::Sm90a => 132,
            Chip::Sm100a | Chip::Sm103a => 148,
            Chip::Sm110a => 20,
            Chip::Sm120a => 188,
        }
    }

    /// Largest shared memory of a CTA, in bytes.
    pub fn max_smem(self) -> c_int {
        silumin_emulator::max_smem(self.target()) as c_int
    }

    /// Whether the chip runs PTX for `target`: `sm_90` on it and later ones, `sm_100f` in its family, `sm_100a` on
    /// that chip alone (PTX ISA, `.target`).
    pub fn runs(self, target: &str) -> bool {
        let Some(name) = target.strip_prefix("sm_") else { return false };
        let (major, minor) = self.capability();
        let own = 10 * major + minor;
        let digits = name.trim_end_matches(['a', 'f']);
        let Ok(number) = digits.parse::<c_int>() else { return false };
        match &name[digits.len()..] {
            "a" => number == own,
            "f" => number <= own && number / 10 == own / 10,
            "" => number <= own,
            _ => false,
        }
    }
}

/// A function: a module's kernel.
pub(crate) struct Function {
    pub module: usize,
    pub entry: String,
    /// Bytes of each parameter.
    pub parameters: Vec<u32>,
}

/// A module.
#[derive(Clone)]
pub(crate) struct Loaded {
    pub module: Arc<Module>,
    /// The mishap that launches of its kernels suffer instead of running.
    pub mishap: Option<Mishap>,
}

/// A failure that `SILUMIN_EMULATED_MISHAP` asks for: what a kernel on a GPU may do to its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mishap {
    /// The launch and every later call fail.
    Fail,
    /// It never ends.
    Hang,
    /// The process ends.
    Abort,
}

impl Mishap {
    /// The failure that `KIND:TEXT` requests for a module with this text.
    fn of(variable: &str, ptx: &str) -> Option<Self> {
        let (kind, text) = variable.split_once(':')?;
        let mishap = match kind {
            "fail" => Mishap::Fail,
            "hang" => Mishap::Hang,
            "abort" => Mishap::Abort,
            _ => return None,
        };
        ptx.contains(text).then_some(mishap)
    }
}

/// How graph launches behave, by `SILUMIN_EMULATED_GRAPHS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replays {
    /// They run.
    All,
    /// None is instantiated.
    None,
    /// Graph launches run nothing.
    Idle,
}

/// Memory and modules; used by one call at a time.
pub(crate) struct Contents {
    pub memory: GlobalMemory,
    /// By the first address.
    pub buffers: BTreeMap<u64, Buffer>,
    /// How many there have been.
    pub allocations: u64,
    pub modules: HashMap<usize, Loaded>,
    pub functions: HashMap<usize, Function>,
    pub links: HashMap<usize, Link>,
}

/// Limits of a launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    pub time: Option<Duration>,
    pub instructions: Option<u64>,
    pub memory: Option<u64>,
}

impl Limits {
    /// Limits from environment variables; one that is not a number is reported and ignored.
    fn of(variable: impl Fn(&str) -> String) -> Self {
        fn number<T>(name: &str, text: &str, read: impl Fn(&str) -> Option<T>) -> Option<T> {
            let value = read(text);
            if value.is_none() && !text.is_empty() {
                say(&format!("{name}={text}: this is no positive number, and it is not used"));
            }
            value
        }
        let whole =
            |name: &str| number(name, &variable(name), |text| text.parse().ok().filter(|&n: &u64| n > 0));
        let time = "SILUMIN_EMULATED_TIME_LIMIT";
        let seconds =
            |text: &str| Duration::try_from_secs_f64(text.parse().ok()?).ok().filter(|t| !t.is_zero());
        Limits {
            time: number(time, &variable(time), seconds),
            instructions: whole("SILUMIN_EMULATED_INSTRUCTION_LIMIT"),
            memory: whole("SILUMIN_EMULATED_MEMORY_LIMIT"),
        }
    }

    pub fn options(self) -> Options<'static> {
        let usual = Options::default();
        Options {
            time_limit: self.time,
            instruction_limit: self.instructions.unwrap_or(usual.instruction_limit),
            memory_limit: self.memory,
            ..usual
        }
    }
}

/// The library's state.
pub(crate) struct State {
    pub chip: Chip,
    /// 1000 major + 10 minor.
    pub cuda: c_int,
    pub devices: c_int,
    /// See [`Mishap`].
    mishap: String,
    pub replays: Replays,
    pub limits: Limits,
    contents: Mutex<Contents>,
    graphs: Mutex<Graphs>,
    handles: AtomicUsize,
    failed: AtomicI32,
}

pub(crate) fn state() -> &'static State {
    static STATE: OnceLock<State> = OnceLock::new();
    STATE.get_or_init(|| {
        let variable = |name: &str| std::env::var(name).unwrap_or_default();
        let chip = variable("SILUMIN_EMULATED_CHIP");
        let version = variable("SILUMIN_EMULATED_CUDA");
        let version = version.split_once('.').and_then(|(major, minor)| {
            Some(1000 * major.parse::<c_int>().ok()? + 10 * minor.parse::<c_int>().ok()?)
        });
        State {
            chip: Chip::ALL.into_iter().find(|known| known.target() == chip).unwrap_or(Chip::Sm100a),
            cuda: version.unwrap_or(13_000),
            devices: variable("SILUMIN_EMULATED_DEVICES").parse().unwrap_or(1).max(1),
            mishap: variable("SILUMIN_EMULATED_MISHAP"),
            replays: match variable("SILUMIN_EMULATED_GRAPHS").as_str() {
                "none" => Replays::None,
                "idle" => Replays::Idle,
                _ => Replays::All,
            },
            limits: Limits::of(variable),
            contents: Mutex::new(Contents {
                memory: GlobalMemory::new(),
                buffers: BTreeMap::new(),
                allocations: 0,
                modules: HashMap::new(),
                functions: HashMap::new(),
                links: HashMap::new(),
            }),
            graphs: Mutex::new(Graphs::default()),
            handles: AtomicUsize::new(0x100),
            failed: AtomicI32::new(0),
        }
    })
}

impl State {
    /// The failure that is requested for kernels with this text.
    pub fn mishap(&self, ptx: &str) -> Option<Mishap> {
        self.mishap.split(';').find_map(|variable| Mishap::of(variable, ptx))
    }

    pub fn contents(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn graphs(&self) -> MutexGuard<'_, Graphs> {
        self.graphs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number that no other handle has.
    pub fn number(&self) -> usize {
        self.handles.fetch_add(0x10, Ordering::Relaxed)
    }

    pub fn handle(&self) -> *mut c_void {
        ptr::without_provenance_mut(self.number())
    }

    /// Marks the driver as failed: after a failed launch every call fails.
    pub fn fail(&self) -> Code {
        self.failed.store(1, Ordering::Relaxed);
        Code::LaunchFailed
    }

    pub fn sticky(&self) -> Code {
        if self.failed.load(Ordering::Relaxed) == 0 { Code::Success } else { Code::LaunchFailed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_of_a_cta_is_the_chip_s() {
        // CUDA programming guide, table of compute capabilities: 227 and 99 KiB.
        let bytes = Chip::ALL.map(|chip| (chip.target(), chip.max_smem()));
        let expected = [
            ("sm_90a", 232_448),
            ("sm_100a", 232_448),
            ("sm_103a", 232_448),
            ("sm_110a", 232_448),
            ("sm_120a", 101_376),
        ];
        assert_eq!(bytes, expected);
    }

    #[test]
    fn limits_are_positive_numbers_or_none() {
        let of = |time: &str, count: &str| {
            let value = |name: &str| if name.contains("TIME") { time } else { count }.to_owned();
            Limits::of(value)
        };
        let half = Some(Duration::from_millis(500));
        assert_eq!(of("0.5", "7"), Limits { time: half, instructions: Some(7), memory: Some(7) });
        for (time, count) in [("", ""), ("0", "0"), ("-1", "-1"), ("x", "x"), ("inf", "1e9"), ("NaN", "1.5")]
        {
            assert_eq!(of(time, count), Limits::default());
        }
        assert_eq!(Limits::default().options().instruction_limit, 1_000_000_000);
    }

    #[test]
    fn a_mishap_is_of_the_kernels_that_have_the_text() {
        assert_eq!(Mishap::of("hang:stages = 3,", "// stages = 3, k_order"), Some(Mishap::Hang));
        assert_eq!(Mishap::of("fail:stages = 3,", "// stages = 33, k_order"), None);
        assert_eq!(Mishap::of("abort:x: y", "x: y"), Some(Mishap::Abort));
        assert_eq!(Mishap::of("stages", "stages"), None);
        assert_eq!(Mishap::of("", ""), None);
    }

    #[test]
    fn a_chip_runs_its_own_targets_and_its_family_s() {
        for (chip, target, runs) in [
            (Chip::Sm100a, "sm_100a", true),
            (Chip::Sm100a, "sm_100f", true),
            (Chip::Sm100a, "sm_90", true),
            (Chip::Sm100a, "sm_90a", false),
            (Chip::Sm100a, "sm_103a", false),
            (Chip::Sm103a, "sm_100f", true),
            (Chip::Sm103a, "sm_103f", true),
            (Chip::Sm100a, "sm_103f", false),
            (Chip::Sm103a, "sm_100a", false),
            (Chip::Sm110a, "sm_110a", true),
            (Chip::Sm110a, "sm_100f", false),
            (Chip::Sm120a, "sm_90", true),
            (Chip::Sm120a, "sm_100f", false),
            (Chip::Sm90a, "sm_100", false),
            (Chip::Sm90a, "compute_90", false),
        ] {
            assert_eq!(chip.runs(target), runs, "{} on {}", target, chip.target());
        }
    }
}
