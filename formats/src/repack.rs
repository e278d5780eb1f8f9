//! Permutes the bits of NVFP4 and MXFP4 elements for `nvfp4_repacked` and `mxfp4_repacked`, and back.
//!
//! [`OperandFormat::repacks`](silumin_codegen::problem::OperandFormat::repacks) has a table of the bits. Bits move only within
//! 16 elements, 8 bytes. So a slice of rows, or of columns in multiples of 16, needs no other slicing than before.

use rayon::prelude::*;

/// Bytes of 16 elements.
const BLOCK: usize = 8;
/// Bytes per task of the thread pool.
const CHUNK: usize = 1 << 16;

/// The lowest bit of both halves of a word.
const HALVES: u32 = 0x0001_0001;
/// Exponent and mantissa of an element in the lowest four bits of each half.
const MAGNITUDES: u32 = 7 * HALVES;
/// Its sign.
const SIGNS: u32 = 8 * HALVES;

/// Permutes packed e2m1 elements in place for the repacked formats. `codes` holds two elements per byte, the even one in the low
/// nibble, in whole groups of 16 elements. Bytes beyond the last whole group of 8 do not change.
pub fn repack(codes: &mut [u8]) {
    each_block(codes, |[first, second]| {
        [0, 16].map(|half| to_word(first >> half & 0xFFFF | second >> half << 16))
    });
}

/// Undoes [`repack`] in place.
pub fn restore(codes: &mut [u8]) {
    each_block(codes, |words| {
        let [low, high] = words.map(from_word);
        [low & 0xFFFF | high << 16, low >> 16 | high & 0xFFFF_0000]
    });
}

fn each_block(codes: &mut [u8], change: impl Fn([u32; 2]) -> [u32; 2] + Sync) {
    codes.par_chunks_mut(CHUNK).for_each(|chunk| {
        for block in chunk.as_chunks_mut::<BLOCK>().0 {
            let word = u64::from_le_bytes(*block);
            let [low, high] = change([word as u32, (word >> 32) as u32]);
            *block = (u64::from(low) | u64::from(high) << 32).to_le_bytes();
        }
    });
}

/// Packs eight elements into a word. Each half of `x` has four of them, one per nibble.
fn to_word(x: u32) -> u32 {
    let [first, second, third, fourth] = [0, 4, 8, 12].map(|shift| x >> shift & (SIGNS | MAGNITUDES));
    // A decoder multiplies these bits instead of shifting them: see `OperandFormat::repacks`.
    let fourth = fourth.rotate_left(16);
    (first & SIGNS) << 12
        | (first & MAGNITUDES) << 6
        | (second & SIGNS) << 9
        | (second & MAGNITUDES) << 3
        | (third & SIGNS) << 6
        | third & MAGNITUDES
        | (fourth & SIGNS) << 10
        | (fourth & (6 * HALVES)) << 9
        | (fourth & HALVES) << 14
}

/// The inverse of [`to_word`].
fn from_word(word: u32) -> u32 {
    let first = word >> 12 & SIGNS | word >> 6 & MAGNITUDES;
    let second = word >> 9 & SIGNS | word >> 3 & MAGNITUDES;
    let third = word >> 6 & SIGNS | word & MAGNITUDES;
    let fourth = word >> 10 & SIGNS | word >> 9 & (6 * HALVES) | word >> 14 & HALVES;
    first | second << 4 | third << 8 | fourth.rotate_left(16) << 12
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fp4x2;

    /// Where the format's documentation has bits `s e1 e0 m` of element `i` of a block.
    fn places(i: usize) -> [usize; 4] {
        let (word, j, upper) = (i % 8 / 4, i % 4, i / 8);
        let half = if j == 3 { 1 - upper } else { upper };
        let places = [[15, 8, 7, 6], [12, 5, 4, 3], [9, 2, 1, 0], [13, 11, 10, 14]][j];
        places.map(|place| 32 * word + 16 * half + place)
    }

    #[test]
    fn each_bit_is_where_the_format_says() {
        for i in 0..16 {
            for (bit, place) in [3, 2, 1, 0].into_iter().zip(places(i)) {
                let mut codes = [0; 8];
                codes[i / 2] = if i % 2 == 0 { fp4x2::pack(1 << bit, 0) } else { fp4x2::pack(0, 1 << bit) };
                let before = codes;
                repack(&mut codes);
                assert_eq!(u64::from_le_bytes(codes), 1 << place, "element {i}, bit {bit}");
                restore(&mut codes);
                assert_eq!(codes, before);
            }
        }
    }

    #[test]
    fn many_blocks_come_back_and_a_part_of_one_stays() {
        let codes: Vec<u8> = (0..3 * CHUNK + 13).map(|i| (i * 151 / 7) as u8).collect();
        let mut changed = codes.clone();
        repack(&mut changed);
        assert_ne!(changed[2 * CHUNK..3 * CHUNK], codes[2 * CHUNK..3 * CHUNK]);
        assert_eq!(changed[3 * CHUNK + 8..], codes[3 * CHUNK + 8..]);
        restore(&mut changed);
        assert_eq!(changed, codes);
    }
}
