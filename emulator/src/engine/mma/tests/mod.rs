//! Tests of the tensor core.
//!
//! - [`oracle`]: the sum rule once more, in binary64 fractions instead of integers
//! - [`rows`]: every path against the scalar rule and the oracle, bit for bit
//! - [`rules`]: the sum rule on sums worked out by hand
//! - [`vectors`]: every path against results of MMA-Sim
//! - [`whole`]: whole instructions, which [`setup`] lays out element by element from the ISA's tables

mod oracle;
mod rows;
mod rules;
mod setup;
mod variants;
mod vectors;
mod whole;

/// Reproducible numbers without pattern (SplitMix64).
pub(super) struct Noise(pub u64);

impl Noise {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub fn pick<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len() as u64) as usize]
    }
}
