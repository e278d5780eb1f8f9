//! Two e2m1 codes in one byte, the storage of every FP4 operand.
//!
//! The element with the EVEN index is in the LOW nibble. Tensor cores read packed FP4 in shared memory in this order;
//! `torch.float4_e2m1fn_x2` stores it, and `cvt.rn.satfinite.e2m1x2.f32 d, hi, lo` writes it for the pair (lo, hi).

use super::e2m1;

/// Packs `even` into the low nibble and `odd` into the high one. The high four bits of both arguments are ignored.
#[must_use]
pub const fn pack(even: u8, odd: u8) -> u8 {
    (even & 0xF) | (odd << 4)
}

/// The codes (even, odd) in `byte`.
#[must_use]
pub const fn unpack(byte: u8) -> (u8, u8) {
    (byte & 0xF, byte >> 4)
}

/// Code of element `index` of packed elements, or `None` past the end.
#[must_use]
pub fn get(packed: &[u8], index: usize) -> Option<u8> {
    let (even, odd) = unpack(*packed.get(index / 2)?);
    Some(if index.is_multiple_of(2) { even } else { odd })
}

/// Values (even, odd) of each of the 256 bytes.
pub const PAIRS: [[f64; 2]; 256] = {
    let mut pairs = [[0.0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        let (even, odd) = unpack(byte as u8);
        pairs[byte] = [e2m1::decode(even) as f64, e2m1::decode(odd) as f64];
        byte += 1;
    }
    pairs
};

#[cfg(test)]
mod tests {
    use super::*;
    use float4::F4E2M1x2;

    #[test]
    fn every_byte_unpacks_as_the_cuda_compatible_pair_does() {
        for byte in 0..=255u8 {
            let (even, odd) = unpack(byte);
            assert_eq!(pack(even, odd), byte);
            let (first, second) = F4E2M1x2::from_bits(byte).to_f32_pair();
            assert_eq!(e2m1::decode(even), first);
            assert_eq!(e2m1::decode(odd), second);
            assert_eq!(PAIRS[usize::from(byte)], [f64::from(first), f64::from(second)]);
        }
    }

    #[test]
    fn the_even_element_is_in_the_low_nibble() {
        assert_eq!(pack(0x1, 0x7), 0x71);
        assert_eq!(get(&[0x71, 0x02], 0), Some(0x1));
        assert_eq!(get(&[0x71, 0x02], 1), Some(0x7));
        assert_eq!(get(&[0x71, 0x02], 2), Some(0x2));
        assert_eq!(get(&[0x71, 0x02], 4), None);
    }
}
