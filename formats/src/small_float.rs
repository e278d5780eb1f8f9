//! Common parts of the FP8 formats.

/// The code of a magnitude in a format with the given mantissa bits and exponent bias: nearest, ties to the even
/// mantissa. The magnitude must be finite and round to at most the format's largest.
pub(super) fn magnitude_code(magnitude: f32, mantissa: u32, bias: u32) -> u32 {
    let power = |exponent: u32| f32::from_bits(exponent << 23);
    if magnitude < power(128 - bias) {
        // Subnormal. One unit in the last place of this sum is the format's smallest value, so that it rounds to
        // a multiple of that, ties to even. A carry beyond the mantissa is the least normal code.
        let shifter = power(151 - bias - mantissa);
        return (magnitude + shifter).to_bits() - shifter.to_bits();
    }
    let (bits, shift) = (magnitude.to_bits(), 23 - mantissa);
    let even = (bits >> shift) & 1;
    ((bits + (1 << (shift - 1)) - 1 + even) >> shift) - ((127 - bias) << mantissa)
}
