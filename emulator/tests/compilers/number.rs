//! Number formats of buffers, from their definitions: nothing in here is the emulator's.

/// An element type of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    F64,
    F32,
    F16,
    Bf16,
    E4m3,
    E5m2,
    S32,
    S8,
}
pub use Type::*;

impl Type {
    pub fn bytes(self) -> usize {
        match self {
            F64 => 8,
            F32 | S32 => 4,
            F16 | Bf16 => 2,
            E4m3 | E5m2 | S8 => 1,
        }
    }

    /// Exponent bits, mantissa bits, and whether the top exponent is for infinities and NaN alone.
    fn layout(self) -> (i32, i32, bool) {
        match self {
            F64 => (11, 52, true),
            F32 => (8, 23, true),
            F16 => (5, 10, true),
            Bf16 => (8, 7, true),
            E4m3 => (4, 3, false),
            E5m2 => (5, 2, true),
            S32 | S8 => (0, 0, false),
        }
    }

    /// The nearest value of the type, ties to even; magnitudes above the largest become it.
    pub fn round(self, x: f64) -> f64 {
        match self {
            F64 => x,
            S32 => x.clamp(f64::from(i32::MIN), f64::from(i32::MAX)).trunc(),
            S8 => x.clamp(-128.0, 127.0).trunc(),
            _ => self.round_by(x, f64::round_ties_even),
        }
    }

    /// Toward zero.
    pub fn truncate(self, x: f64) -> f64 {
        self.round_by(x, f64::trunc)
    }

    /// The multiple of the type's step at `x` that `to_integer` picks: `f64::floor` rounds down.
    pub fn round_by(self, x: f64, to_integer: fn(f64) -> f64) -> f64 {
        if x == 0.0 || !x.is_finite() {
            return x;
        }
        let (e, m, ieee) = self.layout();
        let bias = (1 << (e - 1)) - 1;
        let top = if ieee { bias } else { bias + 1 };
        let exponent = (x.abs().log2().floor() as i32).clamp(1 - bias, top + 1);
        // log2 may be off by one next to a power of two; both grids agree on what is exact.
        let exponent = if 2f64.powi(exponent) > x.abs() { exponent - 1 } else { exponent }.max(1 - bias);
        let unit = 2f64.powi(exponent - m);
        let largest = if ieee { 2.0 - 2f64.powi(-m) } else { 2.0 - 2f64.powi(1 - m) } * 2f64.powi(top);
        (to_integer(x / unit) * unit).clamp(-largest, largest)
    }

    /// Bytes of the nearest value.
    pub fn encode(self, x: f64, out: &mut Vec<u8>) {
        let v = self.round(x);
        match self {
            F64 => out.extend(v.to_le_bytes()),
            F32 => out.extend((v as f32).to_le_bytes()),
            S32 => out.extend((v as i32).to_le_bytes()),
            S8 => out.extend((v as i8).to_le_bytes()),
            _ => {
                let (e, m, _) = self.layout();
                let bias = (1 << (e - 1)) - 1;
                let sign = u32::from(v.is_sign_negative()) << (e + m);
                let a = v.abs();
                let subnormal = 2f64.powi(1 - bias);
                let code = if a < subnormal {
                    (a / 2f64.powi(1 - bias - m)) as u32
                } else {
                    let bits = a.to_bits();
                    let exponent = (bits >> 52) as i32 - 1023;
                    ((exponent + bias) as u32) << m | (bits >> (52 - m) & ((1 << m) - 1)) as u32
                };
                out.extend(&(sign | code).to_le_bytes()[..self.bytes()]);
            }
        }
    }

    /// The value of an element's bytes.
    pub fn decode(self, bytes: &[u8]) -> f64 {
        match self {
            F64 => f64::from_le_bytes(bytes.try_into().unwrap()),
            F32 => f32::from_le_bytes(bytes.try_into().unwrap()).into(),
            S32 => i32::from_le_bytes(bytes.try_into().unwrap()).into(),
            S8 => (bytes[0] as i8).into(),
            _ => {
                let (e, m, ieee) = self.layout();
                let mut word = [0; 4];
                word[..bytes.len()].copy_from_slice(bytes);
                let word = u32::from_le_bytes(word);
                let sign = if word >> (e + m) & 1 == 1 { -1.0 } else { 1.0 };
                let (field, mantissa) = (word >> m & ((1 << e) - 1), word & ((1 << m) - 1));
                let bias = (1 << (e - 1)) - 1;
                if field == (1 << e) - 1 {
                    if ieee {
                        return if mantissa == 0 { sign * f64::INFINITY } else { f64::NAN };
                    }
                    if mantissa == (1 << m) - 1 {
                        return f64::NAN;
                    }
                }
                let fraction = f64::from(mantissa) / f64::from(1 << m);
                sign * match field {
                    0 => fraction * 2f64.powi(1 - bias),
                    f => (1.0 + fraction) * 2f64.powi(f as i32 - bias),
                }
            }
        }
    }

    pub fn encode_all(self, values: &[f64]) -> Vec<u8> {
        let mut out = Vec::with_capacity(values.len() * self.bytes());
        values.iter().for_each(|&v| self.encode(v, &mut out));
        out
    }

    pub fn decode_all(self, bytes: &[u8]) -> Vec<f64> {
        bytes.chunks_exact(self.bytes()).map(|b| self.decode(b)).collect()
    }
}

/// The value of an e2m1 code.
pub fn e2m1(code: u8) -> f64 {
    let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(code & 7)];
    if code & 8 == 0 { magnitude } else { -magnitude }
}

/// A stream of numbers (xorshift64*).
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Uniform between `low` and `high`.
    pub fn real(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform values of a type, as bytes and as what those bytes mean.
    pub fn reals(&mut self, ty: Type, n: usize, low: f64, high: f64) -> (Vec<u8>, Vec<f64>) {
        let values: Vec<f64> = (0..n).map(|_| ty.round(self.real(low, high))).collect();
        (ty.encode_all(&values), values)
    }

    /// Integers of `low..high` as 32-bit words.
    pub fn words(&mut self, n: usize, low: i64, high: i64) -> (Vec<u8>, Vec<i32>) {
        let values: Vec<i32> =
            (0..n).map(|_| (low + (self.next() % (high - low) as u64) as i64) as i32).collect();
        (values.iter().flat_map(|v| v.to_le_bytes()).collect(), values)
    }
}
