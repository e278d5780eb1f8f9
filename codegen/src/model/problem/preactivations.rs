//! Formats in which the two pre-activations are kept.

use super::{OutputFormat, UnknownFormat};
use std::fmt;
use std::str::FromStr;

/// How D1 and D2 are stored, where a kernel keeps what its gate reads: for a backward pass, or to look at.
///
/// D1 is the product with B1 as the gate reads it, scaled and shifted: the largest expression in the gate
/// that is affine in that product alone, by scalars, vectors and literals, and D2 that of B2
/// ([`Expr::pre_activation`](crate::gate::Expr::pre_activation)). In
/// `silu(alpha * (A @ B1) + b[n]) * (A @ B2)` D1 is `alpha * (A @ B1) + b[n]` and D2 is `A @ B2`. Each element is
/// rounded once, from fp32, to nearest even.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PreactivationFormat {
    /// IEEE binary32: what the gate computes with.
    F32,
    /// bfloat16; what is too large becomes infinite.
    Bf16,
    /// IEEE binary16; what is too large becomes infinite.
    F16,
}

impl PreactivationFormat {
    /// All formats.
    pub const ALL: [PreactivationFormat; 3] =
        [PreactivationFormat::F32, PreactivationFormat::Bf16, PreactivationFormat::F16];

    /// The format as one of C's, with its name, its bits and its rounding.
    pub const fn as_output(self) -> OutputFormat {
        match self {
            PreactivationFormat::F32 => OutputFormat::F32,
            PreactivationFormat::Bf16 => OutputFormat::Bf16,
            PreactivationFormat::F16 => OutputFormat::F16,
        }
    }

    /// What `preactivations = ...` means: `none`, or a format's name.
    ///
    /// # Errors
    /// Anything else; the error lists what there is.
    pub fn parse_setting(text: &str) -> Result<Option<PreactivationFormat>, UnknownFormat> {
        match text.trim() {
            "none" => Ok(None),
            text => text.parse().map(Some),
        }
    }

    /// What [`PreactivationFormat::parse_setting`] reads.
    pub const fn setting_name(setting: Option<PreactivationFormat>) -> &'static str {
        match setting {
            None => "none",
            Some(format) => format.as_output().name(),
        }
    }
}

impl fmt::Display for PreactivationFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_output().name())
    }
}

impl FromStr for PreactivationFormat {
    type Err = UnknownFormat;

    fn from_str(text: &str) -> Result<Self, UnknownFormat> {
        let text = text.trim();
        PreactivationFormat::ALL.into_iter().find(|format| format.as_output().name() == text).ok_or_else(
            || {
                let known = PreactivationFormat::ALL.map(|format| format.as_output().name()).join(", ");
                UnknownFormat {
                    given: text.to_owned(),
                    kind: "a format of pre-activations",
                    known: format!("none, {known}"),
                }
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_back_and_unknown_ones_list_all() {
        for setting in PreactivationFormat::ALL.map(Some).into_iter().chain([None]) {
            assert_eq!(
                PreactivationFormat::parse_setting(PreactivationFormat::setting_name(setting)),
                Ok(setting)
            );
        }
        let text = PreactivationFormat::parse_setting("nvfp4").unwrap_err().to_string();
        assert_eq!(text, "`nvfp4` is not a format of pre-activations; it is one of: none, f32, bf16, f16");
    }
}
