//! Element types of matrices.

use half::{bf16, f16};
use silumin_codegen::problem::{OperandFormat, OutputFormat};
use silumin_formats::e4m3;

/// The element type of a [`Matrix`](super::Matrix). The list of types is closed.
pub trait Element: Copy + Send + Sync + 'static + sealed::Sealed {
    /// The format of C with such elements.
    const OUTPUT: OutputFormat;
    /// The format of A or B with such elements; `None` if kernels have no such operands.
    const OPERAND: Option<OperandFormat>;
}

/// An element with bytes of its own: all types but [`Nvfp4`], of which two share a byte.
pub trait Plain: Element + sealed::Bytes {}

/// An element that values are quantised to, with a scale of the whole matrix: [`E4m3`] and [`Nvfp4`].
pub trait Quantised: Element {
    /// The format of a quantised matrix of the host.
    const FORMAT: OperandFormat;
}

impl Quantised for E4m3 {
    const FORMAT: OperandFormat = OperandFormat::E4m3;
}

impl Quantised for Nvfp4 {
    const FORMAT: OperandFormat = OperandFormat::Nvfp4;
}

/// An element of FP8: sign, four bits of exponent, three of mantissa, up to 448; no infinity (OCP FP8 1.0, `float8_e4m3fn`
/// elsewhere).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct E4m3(
    /// The code.
    pub u8,
);

impl E4m3 {
    /// The nearest code, ties to even; larger magnitudes than 448 become 448.
    #[must_use]
    pub fn from_f32(value: f32) -> Self {
        Self(e4m3::encode(value))
    }

    /// The value.
    #[must_use]
    pub fn to_f32(self) -> f32 {
        e4m3::decode(self.0)
    }
}

/// Elements of NVFP4: e2m1, two in a byte, the even column in the low four bits. Each 16 of a row share a scale factor in e4m3.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Nvfp4;

pub(super) mod sealed {
    /// Keeps the list of types closed.
    pub trait Sealed {}

    /// Elements as little-endian bytes.
    pub trait Bytes: Sized {
        /// Bytes of one element.
        const SIZE: usize;
        /// The bytes of elements.
        fn to_bytes(elements: &[Self]) -> Vec<u8>;
        /// Elements out of whole bytes.
        fn of_bytes(bytes: &[u8]) -> Vec<Self>;
        /// The nearest element; ties go to the even one.
        fn nearest(value: f32) -> Self;
        /// The value, which is exact.
        fn value(self) -> f32;
    }
}

macro_rules! plain {
    ($($element:ty: $size:literal, $output:ident, $operand:expr, $of:expr, $to:expr, $nearest:expr, $value:expr;)*) => {
        $(
            impl sealed::Sealed for $element {}
            impl Plain for $element {}

            impl Element for $element {
                const OUTPUT: OutputFormat = OutputFormat::$output;
                const OPERAND: Option<OperandFormat> = $operand;
            }

            impl sealed::Bytes for $element {
                const SIZE: usize = $size;

                fn to_bytes(elements: &[Self]) -> Vec<u8> {
                    elements.iter().flat_map(|element| $to(*element)).collect()
                }

                fn of_bytes(bytes: &[u8]) -> Vec<Self> {
                    bytes.as_chunks::<$size>().0.iter().map(|bytes| $of(*bytes)).collect()
                }

                fn nearest(value: f32) -> Self {
                    $nearest(value)
                }

                fn value(self) -> f32 {
                    $value(self)
                }
            }
        )*
    };
}

plain! {
    f32: 4, F32, None, f32::from_le_bytes, f32::to_le_bytes, std::convert::identity, std::convert::identity;
    bf16: 2, Bf16, Some(OperandFormat::Bf16), bf16::from_le_bytes, bf16::to_le_bytes, bf16::from_f32, bf16::to_f32;
    f16: 2, F16, Some(OperandFormat::F16), f16::from_le_bytes, f16::to_le_bytes, f16::from_f32, f16::to_f32;
    E4m3: 1, E4m3, Some(OperandFormat::E4m3), |[code]: [u8; 1]| E4m3(code), |element: E4m3| [element.0], E4m3::from_f32, E4m3::to_f32;
}

impl sealed::Sealed for Nvfp4 {}

impl Element for Nvfp4 {
    const OUTPUT: OutputFormat = OutputFormat::Nvfp4;
    const OPERAND: Option<OperandFormat> = Some(OperandFormat::Nvfp4);
}
