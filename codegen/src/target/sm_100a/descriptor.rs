//! Descriptors of `tcgen05` instructions.

use crate::problem::{ElementKind, MmaKind};

/// A dense K-major MMA to fp32 (PTX ISA 9.7.16.4.2). Bits 7..=9 and 10..=12 hold the elements' codes, 17..=22
/// N/8, 24..=28 M/16; bits 4..=5 the fp32 of D where there are no scale factors, else bit 23 their type.
pub(super) fn instruction_descriptor(kind: MmaKind, elements: [ElementKind; 2], mma: [u32; 2]) -> u32 {
    let code = |element| match (kind, element) {
        (MmaKind::Mxf4Nvf4 | MmaKind::Mxf4, _) => 1,
        (_, ElementKind::E4m3 | ElementKind::F16) => 0,
        (_, ElementKind::E5m2 | ElementKind::Bf16) => 1,
        (_, ElementKind::E2m1) => 5,
    };
    let kind_bits = match kind {
        MmaKind::Mxf4Nvf4 => 0,
        MmaKind::Mxf4 | MmaKind::Mxf8f6f4 => 1 << 23,
        MmaKind::F8f6f4 | MmaKind::F16 | MmaKind::Decoded => 1 << 4,
    };
    kind_bits | code(elements[0]) << 7 | code(elements[1]) << 10 | (mma[1] >> 3) << 17 | (mma[0] >> 4) << 24
}

/// The same with other scale factors of a block of four: the first one's number is in bits 4..=5 for the
/// column side and 29..=30 for the row side.
pub(super) fn with_scale_id(instruction: u32, id: u32) -> u32 {
    instruction | id << 4 | id << 29
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instruction_descriptors_match_published_ones() {
        use ElementKind::{Bf16, E2m1, E4m3, F16};
        let descriptor = |kind, element, mma| instruction_descriptor(kind, [element, element], mma);
        assert_eq!(descriptor(MmaKind::Mxf4Nvf4, E2m1, [128, 128]), 0x0820_0480);
        assert_eq!(descriptor(MmaKind::Mxf4Nvf4, E2m1, [128, 256]), 0x0840_0480);
        assert_eq!(descriptor(MmaKind::Mxf4Nvf4, E2m1, [256, 256]), 0x1040_0480);
        assert_eq!(descriptor(MmaKind::F16, Bf16, [128, 256]), 0x0840_0490);
        assert_eq!(descriptor(MmaKind::F16, F16, [128, 128]), 0x0820_0010);
        assert_eq!(descriptor(MmaKind::F8f6f4, E4m3, [128, 256]), 0x0840_0010);
        let mxfp8 = descriptor(MmaKind::Mxf8f6f4, E4m3, [128, 128]);
        assert_eq!((mxfp8, with_scale_id(mxfp8, 3)), (0x08A0_0000, 0x68A0_0030));
        let mxfp4 = descriptor(MmaKind::Mxf4, E2m1, [128, 128]);
        assert_eq!((mxfp4, with_scale_id(mxfp4, 2)), (0x08A0_0480, 0x48A0_04A0));
    }
}
