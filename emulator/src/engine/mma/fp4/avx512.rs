//! AVX-512 with VNNI: a block's 16 columns in one register of integers, or two of binary64.

use super::super::exact::{EXPONENT, SIGN, power};
use super::{BLOCK, Block, Row};
use std::arch::x86_64::*;

/// Adds one row of A times the blocks to the accumulators.
#[target_feature(enable = "avx512f,avx512dq,avx512vl,avx512vnni")]
pub(super) fn accumulate(row: &Row, blocks: &[Block], words: &mut [[u32; BLOCK]], plain: bool) {
    for (block, words) in blocks.iter().zip(words) {
        let dots = dots(row, block);
        let (low, high) = words.split_at_mut(8);
        let low_dots = dots.map(|dots| _mm512_cvtepi32_pd(_mm512_castsi512_si256(dots)));
        let high_dots = dots.map(|dots| _mm512_cvtepi32_pd(_mm512_extracti64x4_epi64::<1>(dots)));
        if plain {
            add_plain(row, block, 0, low_dots, low);
            add_plain(row, block, 8, high_dots, high);
        } else {
            add(row, block, 0, low_dots, low);
            add(row, block, 8, high_dots, high);
        }
    }
}

/// Four times the dot products of 16 columns, by run.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn dots(row: &Row, block: &Block) -> [__m512i; 4] {
    std::array::from_fn(|run| {
        // SAFETY: both arrays are 64 bytes long.
        let mut sum = unsafe { _mm512_loadu_si512(block.correction[run].as_ptr().cast()) };
        for quad in 4 * run..4 * run + 4 {
            let a = _mm512_set1_epi32(row.quads[quad] as i32);
            // SAFETY: as above.
            let b = unsafe { _mm512_loadu_si512(block.quads[quad].as_ptr().cast()) };
            sum = _mm512_dpbusd_epi32(sum, a, b);
        }
        sum
    })
}

/// Eight values from `first` on.
#[inline]
#[target_feature(enable = "avx512f")]
fn eight(values: &[f64; BLOCK], first: usize) -> __m512d {
    let values = &values[first..first + 8];
    // SAFETY: there are eight.
    unsafe { _mm512_loadu_pd(values.as_ptr()) }
}

/// The term of one run, exactly.
#[inline]
#[target_feature(enable = "avx512f")]
fn term(row: &Row, block: &Block, first: usize, run: usize, dot: __m512d) -> __m512d {
    let scale = _mm512_mul_pd(_mm512_set1_pd(row.scale[run]), eight(&block.scale[run], first));
    _mm512_mul_pd(dot, scale)
}

/// Adds the dot products of eight columns to the accumulators, rounded as the hardware rounds ([`super::super::exact`]).
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512vl")]
fn add(row: &Row, block: &Block, first: usize, dots: [__m512d; 4], words: &mut [u32]) {
    const TOWARD_ZERO: i32 = _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC;
    let words = &mut words[..8];
    // SAFETY: there are eight words.
    let c = unsafe { _mm512_cvtps_pd(_mm256_loadu_ps(words.as_ptr().cast())) };
    let exponent = _mm512_castsi512_pd(_mm512_set1_epi64(EXPONENT as i64));
    let mut largest = _mm512_max_pd(_mm512_and_pd(c, exponent), _mm512_set1_pd(power(-126)));
    for run in 0..4 {
        let power = eight(&block.power[run], first);
        largest = _mm512_max_pd(largest, _mm512_mul_pd(_mm512_set1_pd(row.power[run]), power));
    }
    let align = _mm512_castsi512_pd(_mm512_sub_epi64(
        _mm512_set1_epi64((2046 + 35) << 52),
        _mm512_castpd_si512(largest),
    ));
    let mut sum = _mm512_roundscale_pd::<TOWARD_ZERO>(_mm512_mul_pd(c, align));
    for (run, dot) in dots.into_iter().enumerate() {
        let term = _mm512_mul_pd(term(row, block, first, run, dot), align);
        sum = _mm512_add_pd(sum, _mm512_roundscale_pd::<TOWARD_ZERO>(term));
    }
    let value = _mm512_mul_pd(sum, _mm512_mul_pd(largest, _mm512_set1_pd(power(-35))));
    let mut result = _mm512_cvt_roundpd_ps::<TOWARD_ZERO>(value);
    // Rounding toward zero stops at the largest finite number, the tensor core does not.
    let magnitude = _mm512_andnot_pd(_mm512_castsi512_pd(_mm512_set1_epi64(SIGN as i64)), value);
    let beyond = _mm512_cmp_pd_mask::<_CMP_GE_OQ>(magnitude, _mm512_set1_pd(power(128)));
    if beyond != 0 {
        result = _mm512_mask_cvt_roundpd_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(
            result, beyond, value,
        );
    }
    store(result, words);
}

/// Eight columns in f32.
#[inline]
#[target_feature(enable = "avx512f,avx512dq,avx512vl")]
fn add_plain(row: &Row, block: &Block, first: usize, dots: [__m512d; 4], words: &mut [u32]) {
    let words = &mut words[..8];
    // SAFETY: there are eight words.
    let mut sum = unsafe { _mm256_loadu_ps(words.as_ptr().cast()) };
    for (run, dot) in dots.into_iter().enumerate() {
        sum = _mm256_add_ps(sum, _mm512_cvtpd_ps(term(row, block, first, run, dot)));
    }
    store(sum, words);
}

/// Stores with zeros positive and NaNs as the tensor core writes them.
#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
fn store(values: __m256, words: &mut [u32]) {
    let words = &mut words[..8];
    let values = _mm256_add_ps(values, _mm256_setzero_ps());
    let nan = _mm256_cmp_ps_mask::<_CMP_UNORD_Q>(values, values);
    let values = _mm256_mask_mov_ps(values, nan, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fff_ffff)));
    // SAFETY: there are eight words.
    unsafe { _mm256_storeu_ps(words.as_mut_ptr().cast(), values) }
}
