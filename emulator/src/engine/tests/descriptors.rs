//! Matrix and instruction descriptors, and the swizzles.

use crate::engine::descriptor::{DescriptorError, Major, Packing, SmemDescriptor};
use crate::engine::format::Format;
use crate::engine::idesc::{
    AccumulatorType, CtaGroup, ElementType, IdescError, InstructionDescriptor, MmaKind, ScaleVec,
};
use crate::engine::swizzle::SwizzleMode;
use std::convert::Infallible;

#[test]
fn swizzles_permute_chunks_within_rows_of_128_bytes() {
    // By hand from the tables of the ISA: where the chunks of row 0, 1, 2, ... end up.
    let rows = |mode: SwizzleMode, bytes: u32| -> Vec<Vec<u32>> {
        (0..8)
            .map(|row| {
                (0..128 / bytes).map(|c| (mode.apply(row * 128 + c * bytes) - row * 128) / bytes).collect()
            })
            .collect()
    };
    let b128 = rows(SwizzleMode::B128, 16);
    assert_eq!(b128[0], [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(b128[1], [1, 0, 3, 2, 5, 4, 7, 6]);
    assert_eq!(b128[6], [6, 7, 4, 5, 2, 3, 0, 1]);
    let b64 = rows(SwizzleMode::B64, 16);
    assert_eq!(b64[3], [3, 2, 1, 0, 7, 6, 5, 4]);
    assert_eq!(b64[4], b64[0]);
    let b32 = rows(SwizzleMode::B32, 16);
    assert_eq!(b32[1], [1, 0, 3, 2, 5, 4, 7, 6]);
    assert_eq!(b32[2], b32[0]);
    let atom32 = rows(SwizzleMode::B128Atom32, 32);
    assert_eq!(atom32[1], [1, 0, 3, 2]);
    assert_eq!(atom32[2], [2, 3, 0, 1]);
    assert_eq!(atom32[4], [0, 1, 2, 3]);
    let flip = rows(SwizzleMode::B128Atom32Flip8, 8);
    assert_eq!(flip[0], (0..16).collect::<Vec<_>>());
    assert_eq!(flip[1], [5, 4, 7, 6, 1, 0, 3, 2, 13, 12, 15, 14, 9, 8, 11, 10]);
    let atom64 = rows(SwizzleMode::B128Atom64, 64);
    assert_eq!((&atom64[0][..], &atom64[1][..]), (&[0, 1][..], &[1, 0][..]));
}

#[test]
fn swizzles_keep_atoms_whole_and_lose_nothing() {
    for mode in (0..7).filter_map(SwizzleMode::from_tensor_map_code) {
        let mut seen: Vec<u32> = (0..2048).map(|address| mode.apply(address)).collect();
        let atom = mode.atom().unwrap_or(2048);
        for run in seen.chunks(atom as usize) {
            assert!(run.windows(2).all(|pair| pair[1] == pair[0] + 1), "{mode:?}");
        }
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..2048), "{mode:?}");
    }
}

#[test]
fn descriptor_constants_of_the_field() {
    let decode = |bits| SmemDescriptor::decode_sm100(bits).unwrap();
    let sw128 = decode(0x4000_4040_0001_0000 | 0x1234);
    assert_eq!(
        sw128,
        SmemDescriptor { start: 0x12340, leading: 16, stride: 1024, swizzle: SwizzleMode::B128 }
    );
    assert_eq!(decode(0x8000_4020_0001_0000).swizzle, SwizzleMode::B64);
    assert_eq!(decode(0x8000_4020_0001_0000).stride, 512);
    assert_eq!(decode(0xc000_4010_0001_0000).swizzle, SwizzleMode::B32);
    let scale_factors = decode(0x0000_4008_0000_0000);
    assert_eq!((scale_factors.stride, scale_factors.leading), (128, 0));
    assert_eq!(scale_factors.swizzle, SwizzleMode::None);
    let hopper = |bits| SmemDescriptor::decode_sm90(bits).unwrap();
    assert_eq!(hopper(0x4000_0040_0001_0000).swizzle, SwizzleMode::B128);
    assert_eq!(hopper(0x8000_0020_0001_0000).swizzle, SwizzleMode::B64);
    assert_eq!(hopper(0xc000_0010_0001_0000).swizzle, SwizzleMode::B32);
}

#[test]
fn illegal_descriptors() {
    const GOOD: u64 = 0x4000_4040_0001_0000;
    let error = |bits| SmemDescriptor::decode_sm100(bits).unwrap_err();
    for bit in [14, 15, 30, 31, 53, 57, 60] {
        let descriptor = GOOD | 1 << bit;
        assert_eq!(error(descriptor), DescriptorError::ReservedBits { descriptor, mask: 1 << bit });
    }
    assert!(matches!(error(GOOD & !(1 << 46)), DescriptorError::Version { found: 0, .. }));
    assert!(matches!(error(GOOD | 1 << 48), DescriptorError::Version { found: 5, .. }));
    assert!(matches!(error(GOOD | 1 << 52), DescriptorError::AbsoluteLeadingDimension { .. }));
    assert!(matches!(error(GOOD | 1 << 50), DescriptorError::BaseOffset { found: 2, .. }));
    for found in [3, 5, 7] {
        let descriptor = GOOD & !(7 << 61) | u64::from(found) << 61;
        assert_eq!(error(descriptor), DescriptorError::Swizzle { descriptor, found });
    }
    let hopper = SmemDescriptor::decode_sm90(GOOD);
    assert!(matches!(hopper, Err(DescriptorError::ReservedBits { mask: 0x4000_0000_0000, .. })));
}

#[test]
fn operands_that_do_not_go_with_their_layout() {
    let descriptor = |swizzle| SmemDescriptor { start: 0, leading: 16, stride: 1024, swizzle };
    let gather = |swizzle, major, packing, rows| {
        let read = &mut |_: u32, _: &mut [u8]| Ok::<(), Infallible>(());
        descriptor(swizzle).gather(major, packing, rows, read).is_ok()
    };
    use SwizzleMode::{B128, B128Atom32};
    assert!(gather(B128, Major::K, Packing::Bits32, 8));
    assert!(!gather(B128, Major::Mn, Packing::Bits32, 8));
    assert!(gather(B128Atom32, Major::Mn, Packing::Bits32, 8));
    assert!(!gather(B128Atom32, Major::Mn, Packing::Bits16, 8));
    assert!(!gather(B128Atom32, Major::K, Packing::Bits32, 8));
    for packing in [Packing::Packed4, Packing::Slot4, Packing::Slot6] {
        assert!(gather(B128, Major::K, packing, 32));
        assert!(!gather(B128, Major::Mn, packing, 32));
    }
    // 8 rows do not fill 16 bytes of 8-bit elements.
    assert!(gather(B128, Major::Mn, Packing::Bits8, 16));
    assert!(!gather(B128, Major::Mn, Packing::Bits8, 8));
}

#[test]
fn addresses_keep_18_bits() {
    let swizzle = SwizzleMode::None;
    let d = SmemDescriptor { start: 0x3_fff0, leading: 0x20, stride: 0x10, swizzle };
    assert_eq!(d.k_major_unit(1, 0), 0);
    assert_eq!(d.k_major_unit(0, 1), 0x10);
}

fn decode(
    bits: u32,
    kind: MmaKind,
    vec: Option<ScaleVec>,
    pair: bool,
) -> Result<InstructionDescriptor, IdescError> {
    let group = if pair { CtaGroup::Two } else { CtaGroup::One };
    InstructionDescriptor::decode(bits, kind, vec, group)
}

#[test]
fn plain_instruction_descriptors_of_the_field() {
    use AccumulatorType::{F16, F32, S32};
    let float = ElementType::Float;
    let cases = [
        (0x0840_0490, MmaKind::F16, false, 128, 256, float(Format::Bf16), F32),
        (0x0820_0010, MmaKind::F16, false, 128, 128, float(Format::F16), F32),
        (0x0820_0000, MmaKind::F16, false, 128, 128, float(Format::F16), F16),
        (0x0820_0910, MmaKind::Tf32, false, 128, 128, float(Format::Tf32), F32),
        (0x0840_0010, MmaKind::F8f6f4, false, 128, 256, float(Format::E4m3), F32),
        (0x0820_04a0, MmaKind::I8, false, 128, 128, ElementType::S8, S32),
        (0x1040_0490, MmaKind::F16, true, 256, 256, float(Format::Bf16), F32),
    ];
    for (bits, kind, pair, m, n, element, d) in cases {
        let idesc = decode(bits, kind, None, pair).unwrap();
        assert_eq!((idesc.m, idesc.n, idesc.a, idesc.b, idesc.d), (m, n, element, element, d));
        assert_eq!((idesc.a_major, idesc.b_major), (Major::K, Major::K));
        assert!(!idesc.negate_a && !idesc.negate_b && !idesc.saturate && idesc.scale.is_none());
    }
    let flags = decode(0x0840_0490 | 1 << 13 | 1 << 16, MmaKind::F16, None, false).unwrap();
    assert!(flags.negate_a && !flags.negate_b);
    assert_eq!((flags.a_major, flags.b_major), (Major::K, Major::Mn));
    let flags = decode(0x0840_0490 | 1 << 14 | 1 << 15, MmaKind::F16, None, false).unwrap();
    assert!(!flags.negate_a && flags.negate_b);
    assert_eq!((flags.a_major, flags.b_major), (Major::Mn, Major::K));
    assert!(decode(0x0820_04a8, MmaKind::I8, None, false).unwrap().saturate);
}

#[test]
fn block_scaled_instruction_descriptors_of_the_field() {
    let (x1, x2, x4) = (Some(ScaleVec::X1), Some(ScaleVec::X2), Some(ScaleVec::X4));
    let cases = [
        (0x08a0_0000, MmaKind::Mxf8f6f4, x1, false, 128, 128, Format::E4m3, Format::Ue8m0, (0, 0)),
        (0x68a0_0030, MmaKind::Mxf8f6f4, x1, false, 128, 128, Format::E4m3, Format::Ue8m0, (3, 3)),
        (0x08a0_0480, MmaKind::Mxf4, x2, false, 128, 128, Format::E2m1, Format::Ue8m0, (0, 0)),
        (0x48a0_04a0, MmaKind::Mxf4, x2, false, 128, 128, Format::E2m1, Format::Ue8m0, (2, 2)),
        (0x0820_0480, MmaKind::Mxf4nvf4, x4, false, 128, 128, Format::E2m1, Format::Ue4m3, (0, 0)),
        (0x0840_0480, MmaKind::Mxf4nvf4, x4, false, 128, 256, Format::E2m1, Format::Ue4m3, (0, 0)),
        (0x1040_0480, MmaKind::Mxf4nvf4, x4, true, 256, 256, Format::E2m1, Format::Ue4m3, (0, 0)),
    ];
    for (bits, kind, vec, pair, m, n, element, scale, ids) in cases {
        let idesc = decode(bits, kind, vec, pair).unwrap();
        let factors = idesc.scale.unwrap();
        assert_eq!((idesc.m, idesc.n, idesc.d), (m, n, AccumulatorType::F32));
        assert_eq!((idesc.a, idesc.b), (ElementType::Float(element), ElementType::Float(element)));
        assert_eq!((factors.format, (factors.a_id, factors.b_id)), (scale, ids));
    }
    let one_sided = decode(0x28a0_0000, MmaKind::Mxf8f6f4, x1, false).unwrap().scale.unwrap();
    assert_eq!((one_sided.a_id, one_sided.b_id), (1, 0));
}

#[test]
fn illegal_instruction_descriptors() {
    let (x1, x2, x4) = (Some(ScaleVec::X1), Some(ScaleVec::X2), Some(ScaleVec::X4));
    let nvfp4 = |bits| decode(bits, MmaKind::Mxf4nvf4, x4, false).unwrap_err();
    for bit in [0, 1, 3, 6, 12, 15, 16, 24, 25, 26] {
        let error = nvfp4(0x0820_0480 | 1 << bit);
        assert!(matches!(error, IdescError::ReservedBits { mask, .. } if mask == 1 << bit));
    }
    for bit in [0, 1, 3, 6, 23, 29, 30, 31] {
        let error = decode(0x0840_0490 | 1 << bit, MmaKind::F16, None, false).unwrap_err();
        assert!(matches!(error, IdescError::ReservedBits { mask, .. } if mask == 1 << bit));
    }
    for bit in [13, 14] {
        let error = decode(0x0820_04a0 | 1 << bit, MmaKind::I8, None, false).unwrap_err();
        assert!(matches!(error, IdescError::ReservedBits { .. }));
    }
    assert!(matches!(nvfp4(0x0820_0484), IdescError::Sparse { .. }));
    assert!(matches!(nvfp4(0x8820_0480), IdescError::K96 { .. }));
    // Five is e2m1 where formats mix, and nothing here.
    assert!(matches!(nvfp4(0x0820_0680), IdescError::Type { operand: 'A', code: 5, .. }));
    assert!(matches!(nvfp4(0x0820_0490), IdescError::ScaleId { operand: 'B', id: 1, .. }));
    assert!(matches!(nvfp4(0x4820_0480), IdescError::ScaleId { operand: 'A', id: 2, .. }));
    let two = |bits| decode(bits, MmaKind::Mxf4nvf4, x2, false).unwrap_err();
    assert!(matches!(two(0x28a0_0480), IdescError::ScaleId { operand: 'A', id: 1, .. }));
    assert!(matches!(two(0x0820_0480), IdescError::ScaleType { .. }));
    let mx8 = decode(0x0820_0000, MmaKind::Mxf8f6f4, x1, false).unwrap_err();
    assert!(matches!(mx8, IdescError::ScaleType { .. }));
    for (kind, vec) in [
        (MmaKind::Mxf4, x4),
        (MmaKind::Mxf4, None),
        (MmaKind::Mxf8f6f4, x2),
        (MmaKind::Mxf4nvf4, x1),
        (MmaKind::F16, x1),
    ] {
        assert_eq!(decode(0, kind, vec, false), Err(IdescError::ScaleVec { kind, vec }));
    }
    // bf16 cannot accumulate in f16, tf32 neither.
    let error = decode(0x0840_0480, MmaKind::F16, None, false).unwrap_err();
    assert!(matches!(error, IdescError::Type { operand: 'D', .. }));
    let error = decode(0x0820_0900, MmaKind::Tf32, None, false).unwrap_err();
    assert!(matches!(error, IdescError::Type { operand: 'D', .. }));
    assert!(decode(0x0840_0590, MmaKind::F16, None, false).is_err());
}

#[test]
fn shapes_are_those_of_the_table() {
    let legal = |kind: MmaKind, vec, pair: bool, m: u32, n: u32| {
        let types = match kind {
            MmaKind::Tf32 => 0x910,
            MmaKind::I8 => 0xa0,
            MmaKind::F16 | MmaKind::F8f6f4 => 0x10,
            MmaKind::Mxf8f6f4 => 0x80_0000,
            _ => 0x80_0480,
        };
        decode(types | (n / 8) << 17 | (m / 16) << 24, kind, vec, pair).is_ok()
    };
    let widths = |kind, vec, pair, m| -> Vec<u32> {
        (0..=63).map(|n| 8 * n).filter(|&n| legal(kind, vec, pair, m, n)).collect()
    };
    let steps = |step: u32| -> Vec<u32> { (1..=256 / step).map(|i| i * step).collect() };
    for kind in [MmaKind::F16, MmaKind::Tf32, MmaKind::F8f6f4] {
        assert_eq!(widths(kind, None, false, 64), steps(8));
        assert_eq!(widths(kind, None, false, 128), steps(16));
        assert_eq!(widths(kind, None, true, 128), steps(16));
        assert_eq!(widths(kind, None, true, 256), steps(16));
        assert!(widths(kind, None, false, 256).is_empty());
        assert!(widths(kind, None, false, 32).is_empty());
        assert!(widths(kind, None, true, 64).is_empty());
    }
    let mut i8 = steps(16);
    i8.splice(0..1, [8, 16, 24]);
    assert_eq!(widths(MmaKind::I8, None, false, 64), i8);
    assert_eq!(widths(MmaKind::I8, None, false, 128), i8);
    assert_eq!(widths(MmaKind::I8, None, true, 256), steps(32));
    let scaled =
        [(MmaKind::Mxf8f6f4, ScaleVec::X1), (MmaKind::Mxf4, ScaleVec::X2), (MmaKind::Mxf4nvf4, ScaleVec::X4)];
    for (kind, vec) in scaled {
        assert_eq!(widths(kind, Some(vec), false, 128), steps(8));
        assert_eq!(widths(kind, Some(vec), true, 128), steps(16));
        assert_eq!(widths(kind, Some(vec), true, 256), steps(16));
        assert!(widths(kind, Some(vec), false, 64).is_empty());
        assert!(widths(kind, Some(vec), false, 256).is_empty());
    }
}
