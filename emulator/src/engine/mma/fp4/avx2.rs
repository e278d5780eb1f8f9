//! AVX2: eight columns of integers, four of binary64 in a register.

use super::super::exact::{EXCESS, EXPONENT, SIGN, power, to_f32_toward_zero};
use super::{BLOCK, Block, Row};
use std::arch::x86_64::*;

/// Adds one row of A times the blocks to the accumulators.
#[target_feature(enable = "avx2")]
pub(super) fn accumulate(row: &Row, blocks: &[Block], words: &mut [[u32; BLOCK]], plain: bool) {
    for (block, words) in blocks.iter().zip(words) {
        for (half, words) in words.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let dots = dots(row, block, 8 * half);
            let low = dots.map(|dots| _mm256_cvtepi32_pd(_mm256_castsi256_si128(dots)));
            let high = dots.map(|dots| _mm256_cvtepi32_pd(_mm256_extracti128_si256::<1>(dots)));
            for (part, dots) in [low, high].into_iter().enumerate() {
                let first = 8 * half + 4 * part;
                let words = &mut words[4 * part..4 * part + 4];
                if plain {
                    add_plain(row, block, first, dots, words);
                } else {
                    add(row, block, first, dots, words);
                }
            }
        }
    }
}

/// Four times the dot products of eight columns from `first` on, by run.
#[inline]
#[target_feature(enable = "avx2")]
fn dots(row: &Row, block: &Block, first: usize) -> [__m256i; 4] {
    let ones = _mm256_set1_epi16(1);
    std::array::from_fn(|run| {
        // Pairs of products: at most 4 * 2 * 24 * 12 = 2304 in 16 bits.
        let mut pairs = _mm256_setzero_si256();
        for quad in 4 * run..4 * run + 4 {
            let a = _mm256_set1_epi32(row.quads[quad] as i32);
            let b = &block.quads[quad][first..first + 8];
            // SAFETY: there are eight words.
            let b = unsafe { _mm256_loadu_si256(b.as_ptr().cast()) };
            pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(a, b));
        }
        let correction = &block.correction[run][first..first + 8];
        // SAFETY: there are eight words.
        let correction = unsafe { _mm256_loadu_si256(correction.as_ptr().cast()) };
        _mm256_add_epi32(_mm256_madd_epi16(pairs, ones), correction)
    })
}

/// Four values from `first` on.
#[inline]
#[target_feature(enable = "avx2")]
fn four(values: &[f64; BLOCK], first: usize) -> __m256d {
    let values = &values[first..first + 4];
    // SAFETY: there are four.
    unsafe { _mm256_loadu_pd(values.as_ptr()) }
}

/// The term of one run, exactly.
#[inline]
#[target_feature(enable = "avx2")]
fn term(row: &Row, block: &Block, first: usize, run: usize, dot: __m256d) -> __m256d {
    let scale = _mm256_mul_pd(_mm256_set1_pd(row.scale[run]), four(&block.scale[run], first));
    _mm256_mul_pd(dot, scale)
}

/// Four columns by the hardware's rule; see [`super::super::exact`].
#[inline]
#[target_feature(enable = "avx2")]
fn add(row: &Row, block: &Block, first: usize, dots: [__m256d; 4], words: &mut [u32]) {
    const TOWARD_ZERO: i32 = _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC;
    let bits = |bits: u64| _mm256_castsi256_pd(_mm256_set1_epi64x(bits as i64));
    let words = &mut words[..4];
    // SAFETY: there are four words.
    let c = unsafe { _mm256_cvtps_pd(_mm_loadu_ps(words.as_ptr().cast())) };
    let tiny = _mm256_set1_pd(power(-126));
    let mut largest = _mm256_max_pd(_mm256_and_pd(c, bits(EXPONENT)), tiny);
    for run in 0..4 {
        let power = four(&block.power[run], first);
        largest = _mm256_max_pd(largest, _mm256_mul_pd(_mm256_set1_pd(row.power[run]), power));
    }
    let align = _mm256_castsi256_pd(_mm256_sub_epi64(
        _mm256_set1_epi64x((2046 + 35) << 52),
        _mm256_castpd_si256(largest),
    ));
    let mut sum = _mm256_round_pd::<TOWARD_ZERO>(_mm256_mul_pd(c, align));
    for (run, dot) in dots.into_iter().enumerate() {
        let term = _mm256_mul_pd(term(row, block, first, run, dot), align);
        sum = _mm256_add_pd(sum, _mm256_round_pd::<TOWARD_ZERO>(term));
    }
    let value = _mm256_mul_pd(sum, _mm256_mul_pd(largest, _mm256_set1_pd(power(-35))));
    // Cutting the mantissa rounds toward zero, except among the subnormals of f32.
    let magnitude = _mm256_andnot_pd(bits(SIGN), value);
    let subnormal = _mm256_and_pd(
        _mm256_cmp_pd::<_CMP_LT_OQ>(magnitude, tiny),
        _mm256_cmp_pd::<_CMP_GT_OQ>(magnitude, _mm256_setzero_pd()),
    );
    store(_mm256_cvtpd_ps(_mm256_andnot_pd(bits(EXCESS), value)), words);
    if _mm256_movemask_pd(subnormal) != 0 {
        let mut values = [0.0; 4];
        // SAFETY: there is room for four.
        unsafe { _mm256_storeu_pd(values.as_mut_ptr(), value) };
        for (word, value) in words.iter_mut().zip(values) {
            *word = to_f32_toward_zero(value);
        }
    }
}

/// Four columns in f32.
#[inline]
#[target_feature(enable = "avx2")]
fn add_plain(row: &Row, block: &Block, first: usize, dots: [__m256d; 4], words: &mut [u32]) {
    let words = &mut words[..4];
    // SAFETY: there are four words.
    let mut sum = unsafe { _mm_loadu_ps(words.as_ptr().cast()) };
    for (run, dot) in dots.into_iter().enumerate() {
        sum = _mm_add_ps(sum, _mm256_cvtpd_ps(term(row, block, first, run, dot)));
    }
    store(sum, words);
}

/// Stores with zeros positive and NaNs as the tensor core writes them.
#[inline]
#[target_feature(enable = "avx2")]
fn store(values: __m128, words: &mut [u32]) {
    let words = &mut words[..4];
    let values = _mm_add_ps(values, _mm_setzero_ps());
    let nan = _mm_cmpunord_ps(values, values);
    let canonical = _mm_castsi128_ps(_mm_set1_epi32(0x7fff_ffff));
    // SAFETY: there are four words.
    unsafe { _mm_storeu_ps(words.as_mut_ptr().cast(), _mm_blendv_ps(values, canonical, nan)) }
}
