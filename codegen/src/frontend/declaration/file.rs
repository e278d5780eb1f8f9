//! A dual GEMM as a file: the form that golden tests and `emit --config` share.

use super::Spec;
use crate::arch::{Arch, UnknownArch};
use crate::config::Config;
use crate::gate::{Gate, GateError, GateParseError};
use crate::problem::{Formats, Groups, PreactivationFormat, Shape, UnknownFormat};
use serde::{Deserialize, Serialize};

/// Problem and configuration in one document. In TOML:
///
/// ```toml
/// shape = [256, 4096, 7168]               # M, N, K
/// groups = 8                              # or `batch = 8`; this and all below may be left out
/// arch = "sm_100a"
/// gate = "silu(A @ B1) * (A @ B2)"
/// name = "swiglu"
///
/// [formats]
/// a = "nvfp4"                             # left out, or auto: what the chip is usually fed (`Formats::usual`)
/// b = "nvfp4"
/// c = "f16"
/// preactivations = "none"                 # f32, bf16 or f16: format of the kept D1 and D2
///
/// [config]
/// tile = [128, 128, 256]
/// k_order = "split_tail(2)"
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpecFile {
    /// M, N, K.
    pub shape: [u32; 3],
    /// Matrices of a batch; left out, no batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<u32>,
    /// Groups that share the M rows out; left out, none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<u32>,
    /// The chip, by its target name.
    #[serde(default = "default_arch")]
    pub arch: String,
    /// The gate expression.
    #[serde(default = "default_gate")]
    pub gate: String,
    /// The kernel's name, before its shape; left out, `silumin_dual_gemm` or `silumin_gemm`, as the gate has two products or one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Operand and output formats, by name.
    #[serde(default)]
    pub formats: FormatNames,
    /// The knobs.
    #[serde(default)]
    pub config: Config,
}

/// Format names of a [`SpecFile`]; `auto` leaves one to the chip ([`Formats::usual`]), as all are by default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FormatNames {
    /// Format of A.
    pub a: String,
    /// Format of B1 and B2.
    pub b: String,
    /// Format of C.
    pub c: String,
    /// Format in which D1 and D2 are stored, or `none` to store C alone.
    #[serde(alias = "products")]
    pub preactivations: String,
}

impl Default for FormatNames {
    fn default() -> Self {
        let [a, b, c] = [AUTO; 3].map(str::to_owned);
        FormatNames { a, b, c, preactivations: PreactivationFormat::setting_name(None).to_owned() }
    }
}

/// What leaves a format to the chip.
const AUTO: &str = "auto";

impl FormatNames {
    /// What they name on a chip.
    ///
    /// # Errors
    /// A name that is no format's.
    pub fn on(&self, arch: Arch) -> Result<Formats, UnknownFormat> {
        let FormatNames { a, b, c, preactivations } = self;
        let usual = Formats::usual(arch);
        let preactivations = PreactivationFormat::parse_setting(preactivations)?;
        let operand = |name: &str, usual| if name == AUTO { Ok(usual) } else { name.parse() };
        let c = if c == AUTO { usual.c } else { c.parse()? };
        Ok(Formats { preactivations, ..Formats::new(operand(a, usual.a)?, operand(b, usual.b)?, c) })
    }
}

fn default_arch() -> String {
    Arch::Sm100a.to_string()
}

fn default_gate() -> String {
    crate::gate::BUILTINS[0].source.to_owned()
}

/// Why a [`SpecFile`] describes no kernel.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpecFileError {
    /// A batch of groups.
    #[error("shape: both batch and groups are given, and a problem is one or the other: leave one out")]
    BatchOfGroups,
    /// The chip.
    #[error("arch: {0}")]
    Arch(#[from] UnknownArch),
    /// A format.
    #[error("formats: {0}")]
    Format(#[from] UnknownFormat),
    /// The gate's text.
    #[error("gate: {0}")]
    Gate(#[from] GateParseError),
    /// The gate's code.
    #[error(transparent)]
    Code(#[from] GateError),
}

impl SpecFile {
    /// A file with nothing but a shape.
    pub fn new(shape: Shape) -> Self {
        SpecFile {
            shape: [shape.m, shape.n, shape.k],
            batch: if let Groups::Batch(count) = shape.groups { Some(count) } else { None },
            groups: if let Groups::Rows(count) = shape.groups { Some(count) } else { None },
            arch: default_arch(),
            gate: default_gate(),
            name: None,
            formats: FormatNames::default(),
            config: Config::default(),
        }
    }

    /// The problem's sizes.
    pub fn shape(&self) -> Shape {
        let [m, n, k] = self.shape;
        let shape = Shape::new(m, n, k);
        match (self.batch, self.groups) {
            (_, Some(count)) => shape.grouped(count),
            (Some(count), None) => shape.batch(count),
            (None, None) => shape,
        }
    }

    /// The dual GEMM and the chip that the file describes.
    ///
    /// # Errors
    /// A batch of groups, an unknown chip or format, a gate that does not parse or that this build has no code for.
    pub fn read(&self) -> Result<(Spec, Arch), SpecFileError> {
        if self.batch.is_some() && self.groups.is_some() {
            return Err(SpecFileError::BatchOfGroups);
        }
        let arch: Arch = self.arch.parse()?;
        let gate: Gate = self.gate.parse()?;
        let mut spec = Spec::new(gate, &[arch])?;
        spec.formats = self.formats.on(arch)?;
        if let Some(name) = &self.name {
            spec.name = name.clone().into();
        }
        spec.config = self.config;
        Ok((spec, arch))
    }
}
