//! Formats of C: a format is data, its row in [`OutputFormat::spec`].

use super::{ByteScale, ScaleSpec, UnknownFormat};
use std::fmt;
use std::str::FromStr;

/// How the elements of C are stored. Each is rounded once, from fp32, to nearest even.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OutputFormat {
    /// IEEE binary16; what is too large becomes infinite.
    F16,
    /// bfloat16; what is too large becomes infinite.
    Bf16,
    /// IEEE binary32: the epilogue's own values.
    F32,
    /// e4m3, saturating at 448 (`cvt.rn.satfinite.e4m3x2.f32`).
    E4m3,
    /// NVFP4: e2m1, one ue4m3 scale factor for every 16 along N, and a scale of the whole tensor that
    /// the launch gives: value = e2m1 * ue4m3 * tensor scale. A block's scale factor is the ue4m3
    /// nearest to `amax / 6 / tensor scale`, saturating; its elements are the e2m1 nearest to
    /// `x / (scale factor * tensor scale)`.
    Nvfp4,
    /// MXFP8: e4m3, one ue8m0 scale factor for every 32 along N. A block's scale factor is
    /// 2^(floor(log2(amax)) - 8), or that of the least power of two not below `amax / 448`; its
    /// elements are the e4m3 nearest to `x / scale factor`, saturating (OCP Microscaling Formats
    /// 1.0, section 6.3, has the first; the second never saturates).
    Mxfp8,
}

/// How one element of C is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OutputElement {
    /// IEEE binary32.
    F32,
    /// bfloat16.
    Bf16,
    /// IEEE binary16.
    F16,
    /// e4m3.
    E4m3,
    /// e2m1, two in a byte.
    E2m1,
}

impl OutputElement {
    /// Bits of one element.
    pub const fn bits(self) -> u32 {
        match self {
            OutputElement::F32 => 32,
            OutputElement::Bf16 | OutputElement::F16 => 16,
            OutputElement::E4m3 => 8,
            OutputElement::E2m1 => 4,
        }
    }
}

/// The facts of a format of C that plans and kernels are derived from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputSpec {
    /// The name in the DSL.
    pub name: &'static str,
    /// How an element is encoded.
    pub element: OutputElement,
    /// The scale factors along N; `None` where there are none.
    pub scales: Option<ScaleSpec<ByteScale>>,
    /// Whether the launch gives a scale of the whole tensor.
    pub has_tensor_scale: bool,
}

impl OutputFormat {
    /// All formats.
    pub const ALL: [OutputFormat; 6] = [
        OutputFormat::F16,
        OutputFormat::Bf16,
        OutputFormat::F32,
        OutputFormat::E4m3,
        OutputFormat::Nvfp4,
        OutputFormat::Mxfp8,
    ];

    /// The format's facts.
    pub const fn spec(self) -> &'static OutputSpec {
        use OutputElement as E;
        const PLAIN: OutputSpec =
            OutputSpec { name: "", element: E::F32, scales: None, has_tensor_scale: false };
        const NVFP4: OutputSpec = OutputSpec {
            name: "nvfp4",
            element: E::E2m1,
            scales: Some(ScaleSpec::NVFP4),
            has_tensor_scale: true,
        };
        const MXFP8: OutputSpec =
            OutputSpec { name: "mxfp8", element: E::E4m3, scales: Some(ScaleSpec::MX), ..PLAIN };
        match self {
            OutputFormat::F16 => &const { OutputSpec { name: "f16", element: E::F16, ..PLAIN } },
            OutputFormat::Bf16 => &const { OutputSpec { name: "bf16", element: E::Bf16, ..PLAIN } },
            OutputFormat::F32 => &const { OutputSpec { name: "f32", ..PLAIN } },
            OutputFormat::E4m3 => &const { OutputSpec { name: "e4m3", element: E::E4m3, ..PLAIN } },
            OutputFormat::Nvfp4 => &NVFP4,
            OutputFormat::Mxfp8 => &MXFP8,
        }
    }

    /// The name in the DSL.
    pub const fn name(self) -> &'static str {
        self.spec().name
    }

    /// Bits of one element.
    pub const fn bits(self) -> u32 {
        self.spec().element.bits()
    }

    /// Bytes of one element, or of the two that share one: see [`OutputFormat::bits`].
    pub const fn bytes(self) -> u32 {
        self.bits().div_ceil(8)
    }

    /// The scale factors along N; `None` where there are none.
    pub const fn scales(self) -> Option<ScaleSpec<ByteScale>> {
        self.spec().scales
    }

    /// Whether the launch gives a scale of the whole tensor.
    pub const fn has_tensor_scale(self) -> bool {
        self.spec().has_tensor_scale
    }

    /// What N has to be a multiple of. C in a block-scaled format is the next GEMM's A, with N for its
    /// K: rows of 16 bytes and whole blocks.
    pub const fn n_multiple(self) -> u32 {
        match self.scales() {
            Some(_) => 32,
            None => 1,
        }
    }
}

impl fmt::Display for OutputFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for OutputFormat {
    type Err = UnknownFormat;

    fn from_str(text: &str) -> Result<Self, UnknownFormat> {
        let text = text.trim();
        OutputFormat::ALL.into_iter().find(|format| format.name() == text).ok_or_else(|| UnknownFormat {
            given: text.to_owned(),
            kind: "an output format",
            known: OutputFormat::ALL.map(|format| format.name()).join(", "),
        })
    }
}
