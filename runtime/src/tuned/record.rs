//! A result as a line of a file, and back.
//!
//! ```text
//! {"entry":{"device":{...},"problem":{...},"base":"","knobs":"stages=3","code":"...","result":{...}},"sum":"..."}
//! ```
//!
//! `sum` is blake3 over the bytes of `entry` as they stand there. What is read is what was written, or nothing: any other
//! line is an error of that line alone.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use silumin_codegen::config::Config;
use silumin_codegen::gate::Gate;
use silumin_codegen::problem::{Formats, Groups, PreactivationFormat, Problem, Shape};
use silumin_codegen::spec::{DEFAULT_NAME, Spec};
use thiserror::Error;

use super::{Ranked, Verdict, difference, knobs};
use crate::device::DeviceFacts;
use crate::gemm::KernelError;

/// Key of a tuning result.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TuningKey {
    /// The device and driver.
    pub device: DeviceFacts,
    /// The problem's shape.
    pub shape: Shape,
    /// Names of the formats of A, B and C, and of the kept pre-activations (`none` if not kept).
    pub formats: [String; 4],
    /// The gate, with standard operand names.
    pub gate: String,
    /// Knobs that the user had set, as [`knobs`] reads them.
    pub base: String,
}

impl TuningKey {
    /// The key of a dual GEMM for a shape on a device.
    #[must_use]
    pub fn of(device: DeviceFacts, spec: &Spec, shape: Shape) -> Self {
        let Formats { a, b, c, preactivations } = spec.formats;
        let names = [
            a.to_string(),
            b.to_string(),
            c.to_string(),
            PreactivationFormat::setting_name(preactivations).to_owned(),
        ];
        let base = difference(&spec.config, &Config::default());
        Self { device, shape, formats: names, gate: spec.gate.expr.to_string(), base }
    }

    /// The key without the device.
    pub(super) fn without_device(&self) -> (Shape, &[String; 4], &str, &str) {
        (self.shape, &self.formats, &self.gate, &self.base)
    }
}

/// One result.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TuningEntry {
    /// The key.
    pub key: TuningKey,
    /// The winner's knobs beside the user's; empty if `auto` won.
    pub knobs: String,
    /// Hash of the kernel that the generator made of these knobs. If a later generator makes another kernel of them,
    /// the result is stale.
    pub code: [u8; 32],
    /// How the result was found.
    pub ranked: Ranked,
    /// Number of kernels that were timed or ranked.
    pub tried: u32,
}

/// Why a line is not a result.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The line is cut off or malformed.
    #[error("it is not an entry: {reason}")]
    Syntax {
        /// The parser's message.
        reason: String,
    },
    /// Bytes have changed.
    #[error("its checksum does not match its bytes: they were changed")]
    Checksum,
    /// The checksum is right, but the contents are not valid.
    #[error("its {what} cannot be read: another version of silumin wrote it")]
    Contents {
        /// The part.
        what: &'static str,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<'a> {
    #[serde(borrow)]
    entry: &'a RawValue,
    sum: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    device: DeviceBody,
    problem: ProblemBody,
    base: String,
    knobs: String,
    code: String,
    result: Result,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceBody {
    name: String,
    capability: [u32; 2],
    sms: u32,
    driver: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProblemBody {
    shape: [u32; 3],
    #[serde(default, skip_serializing_if = "Option::is_none")]
    batch: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    groups: Option<u32>,
    a: String,
    b: String,
    c: String,
    #[serde(alias = "products")]
    preactivations: String,
    gate: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, tag = "ranked", rename_all = "snake_case")]
enum Result {
    Predicted {
        us: f64,
        auto_us: f64,
        chip: String,
        tried: u32,
    },
    Measured {
        us: f64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        auto_us: Option<f64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ratio: Option<f64>,
        turns: u32,
        verdict: String,
        tried: u32,
    },
}

/// Chips that times may be predicted for.
pub(super) const CHIPS: [&str; 8] =
    ["b200", "b300", "dgx_spark", "h100", "h200", "jetson_thor", "rtx_5090", "rtx_pro_6000"];

const VERDICTS: [(Verdict, &str); 3] =
    [(Verdict::Clear, "clear"), (Verdict::Tied, "tied"), (Verdict::Open, "open")];

/// The hash of the kernel for the given knobs, independent of the user's name for it.
///
/// # Errors
///
/// [`KernelError`] where they make none.
pub(crate) fn code_of(
    spec: &Spec,
    config: Config,
    shape: Shape,
    arch: silumin_codegen::arch::Arch,
) -> std::result::Result<[u8; 32], KernelError> {
    let spec = Spec { name: DEFAULT_NAME.into(), config, ..spec.clone() };
    Ok(spec.kernel(shape, arch)?.hash)
}

impl TuningEntry {
    /// The line, without its end.
    pub(super) fn encode(&self) -> String {
        let TuningKey { device, shape, formats: [a, b, c, preactivations], gate, base } = self.key.clone();
        let (batch, groups) = match shape.groups {
            Groups::One => (None, None),
            Groups::Batch(count) => (Some(count), None),
            Groups::Rows(count) => (None, Some(count)),
        };
        let problem =
            ProblemBody { shape: [shape.m, shape.n, shape.k], batch, groups, a, b, c, preactivations, gate };
        let DeviceFacts { name, capability, sms, driver } = device;
        let device = DeviceBody { name, capability: [capability.0, capability.1], sms, driver };
        let tried = self.tried;
        let result = match self.ranked {
            Ranked::Predicted { us, auto_us, chip } => {
                Result::Predicted { us, auto_us, chip: chip.to_owned(), tried }
            }
            Ranked::Measured { us, auto_us, ratio, turns, verdict } => {
                let name =
                    VERDICTS.iter().find(|(known, _)| *known == verdict).map_or("open", |(_, name)| name);
                Result::Measured { us, auto_us, ratio, turns: turns as u32, verdict: name.to_owned(), tried }
            }
        };
        let code = self.code.iter().map(|byte| format!("{byte:02x}")).collect();
        let body = Body { device, problem, base, knobs: self.knobs.clone(), code, result };
        // Numbers and texts are all that is in it.
        let entry = serde_json::to_string(&body).unwrap_or_default();
        format!("{{\"entry\":{entry},\"sum\":\"{}\"}}", blake3::hash(entry.as_bytes()).to_hex())
    }

    /// The entry of a line.
    pub(super) fn decode(line: &[u8]) -> std::result::Result<Self, RecordError> {
        let syntax = |error: serde_json::Error| RecordError::Syntax { reason: error.to_string() };
        let Line { entry, sum } = serde_json::from_slice(line).map_err(syntax)?;
        if blake3::hash(entry.get().as_bytes()).to_hex().as_str() != sum {
            return Err(RecordError::Checksum);
        }
        let contents = |what| RecordError::Contents { what };
        let body: Body = serde_json::from_str(entry.get()).map_err(|_| contents("fields"))?;
        let ProblemBody { shape: [m, n, k], batch, groups, a, b, c, preactivations, gate } = body.problem;
        let shape = match (batch, groups) {
            (None, None) => Shape::new(m, n, k),
            (Some(count), None) => Shape::new(m, n, k).batch(count),
            (None, Some(count)) => Shape::new(m, n, k).grouped(count),
            (Some(_), Some(_)) => return Err(contents("problem")),
        };
        let known = a.parse::<silumin_codegen::problem::OperandFormat>().is_ok()
            && b.parse::<silumin_codegen::problem::OperandFormat>().is_ok()
            && c.parse::<silumin_codegen::problem::OutputFormat>().is_ok()
            && PreactivationFormat::parse_setting(&preactivations).is_ok();
        if !known {
            return Err(contents("formats"));
        }
        let base = knobs(&body.base, &Config::default()).map_err(|_| contents("knobs"))?;
        knobs(&body.knobs, &base).map_err(|_| contents("knobs"))?;
        let code = hexadecimal(&body.code).ok_or(contents("code"))?;
        let sound = |number: f64| number.is_finite() && number > 0.0;
        let (ranked, tried) = match body.result {
            Result::Predicted { us, auto_us, chip, tried } => {
                let chip = CHIPS.into_iter().find(|name| *name == chip).ok_or(contents("chip"))?;
                (Ranked::Predicted { us, auto_us, chip }, tried)
            }
            Result::Measured { us, auto_us, ratio, turns, verdict, tried } => {
                let verdict = VERDICTS.iter().find(|(_, name)| *name == verdict).map(|(verdict, _)| *verdict);
                let verdict = verdict.ok_or(contents("verdict"))?;
                (Ranked::Measured { us, auto_us, ratio, turns: turns as usize, verdict }, tried)
            }
        };
        let sound = match ranked {
            Ranked::Predicted { us, auto_us, .. } => sound(us) && sound(auto_us),
            Ranked::Measured { us, auto_us, ratio, .. } => {
                sound(us) && auto_us.is_none_or(sound) && ratio.is_none_or(sound)
            }
        };
        if !sound {
            return Err(contents("result"));
        }
        let DeviceBody { name, capability, sms, driver } = body.device;
        let device = DeviceFacts { name, capability: (capability[0], capability[1]), sms, driver };
        let key = TuningKey { device, shape, formats: [a, b, c, preactivations], gate, base: body.base };
        Ok(Self { key, knobs: body.knobs, code, ranked, tried })
    }

    /// Orders two results for one problem; the greater one is better: measured before predicted, settled before out
    /// of time, more kernels, more turns, lower time, then an arbitrary fixed order.
    pub(super) fn rank(&self) -> (bool, bool, u32, usize, std::cmp::Reverse<u64>, String) {
        let (measured, settled, turns, us) = match self.ranked {
            Ranked::Predicted { us, .. } => (false, false, 0, us),
            Ranked::Measured { us, turns, verdict, .. } => (true, verdict != Verdict::Open, turns, us),
        };
        // Positive numbers are ordered as their bits are.
        (measured, settled, self.tried, turns, std::cmp::Reverse(us.to_bits()), self.encode())
    }

    /// The problem as text.
    #[must_use]
    pub fn problem(&self) -> String {
        let [a, b, c, preactivations] = &self.key.formats;
        let kept = match preactivations.as_str() {
            "none" => String::new(),
            format => format!(" and {format} pre-activations"),
        };
        format!("{}, {a} x {b} -> {c}{kept}, {}", self.key.shape, self.key.gate)
    }

    /// The problem, if this build knows the formats and the gate.
    #[must_use]
    pub fn as_problem(&self) -> Option<Problem> {
        let [a, b, c, preactivations] = &self.key.formats;
        let preactivations = PreactivationFormat::parse_setting(preactivations).ok()?;
        let formats =
            Formats { preactivations, ..Formats::new(a.parse().ok()?, b.parse().ok()?, c.parse().ok()?) };
        let gate: Gate = self.key.gate.parse().ok()?;
        Some(Problem { shape: self.key.shape, formats, operation: gate.expr.operation() })
    }
}

fn hexadecimal(text: &str) -> Option<[u8; 32]> {
    // A key is 64 digits just as well.
    text.parse::<crate::cache::Key>().ok().map(|key| key.0)
}
