//! Tensor maps: every rule on its own, and boxes against an element-by-element model.

use crate::engine::swizzle::SwizzleMode;
use crate::engine::tensor_map::{
    BoxError, Chunk, DataType, ForeignTensorMap, Interleave, L2Promotion, OobFill, TensorMapError,
    TensorMapParams,
};
use proptest::prelude::*;
use std::convert::Infallible;

/// Global memory of the model starts here.
const BASE: u64 = 0x7f00_0000_0000;

fn params(data_type: DataType, dims: &[u64], pitches: &[u64], boxes: &[u32]) -> TensorMapParams {
    TensorMapParams {
        data_type,
        global_address: BASE,
        global_dims: dims.to_vec(),
        global_strides: pitches.to_vec(),
        box_dims: boxes.to_vec(),
        element_strides: vec![1; dims.len()],
        interleave: Interleave::None,
        swizzle: SwizzleMode::None,
        l2_promotion: L2Promotion::B128,
        oob_fill: OobFill::Zeros,
    }
}

fn fp4_tile() -> TensorMapParams {
    let mut map = params(DataType::U4x16Align8B, &[7168, 512], &[3584], &[256, 128]);
    map.swizzle = SwizzleMode::B128;
    map
}

#[test]
fn maps_survive_their_encoding() {
    let mut map = fp4_tile();
    assert_eq!(TensorMapParams::decode(&map.encode().unwrap()), Ok(map.clone()));
    map = params(DataType::Bf16, &[1 << 32, 3, 5, 7, 11], &[1 << 36, 32, 48, 64], &[8, 2, 3, 4, 256]);
    map.element_strides = vec![1, 2, 3, 4, 8];
    map.oob_fill = OobFill::NanRequestZeroFma;
    map.l2_promotion = L2Promotion::B256;
    assert_eq!(TensorMapParams::decode(&map.encode().unwrap()), Ok(map));
}

#[test]
fn foreign_bytes_are_told_apart() {
    let good = fp4_tile().encode().unwrap();
    let foreign = TensorMapParams::decode(&[0x5a; 128]);
    assert_eq!(foreign, Err(ForeignTensorMap::Mark { start: [0x5a; 8] }));
    for byte in 0..128 {
        let mut bytes = good;
        bytes[byte] ^= 0x10;
        assert!(TensorMapParams::decode(&bytes).is_err(), "byte {byte} may change unnoticed");
    }
}

#[test]
fn every_rule_has_its_error() {
    let refuse = |change: &dyn Fn(&mut TensorMapParams), words: &str| {
        let mut map = fp4_tile();
        change(&mut map);
        let error = map.encode().unwrap_err().to_string();
        assert!(error.contains(words), "{error:?} does not contain {words:?}");
    };
    refuse(&|m| m.global_dims.clear(), "tensorRank is 0");
    refuse(&|m| m.global_dims = vec![1; 6], "tensorRank is 6");
    refuse(&|m| m.global_strides = vec![], "globalStrides has 0 entries: a tensor of rank 2 takes 1");
    refuse(&|m| m.box_dims = vec![256], "boxDim has 1 entries");
    refuse(&|m| m.element_strides = vec![1; 3], "elementStrides has 3 entries");
    refuse(&|m| m.interleave = Interleave::B16, "interleave is B16");
    refuse(&|m| m.global_address += 8, "must be a multiple of 16 bytes");
    refuse(&|m| m.global_dims[1] = 0, "globalDim[1] is 0");
    refuse(&|m| m.global_dims[1] = (1 << 32) + 1, "globalDim[1] is 4294967297");
    refuse(&|m| m.global_dims[0] = 7167, "globalDim[0] is 7167: it must be a multiple of 2");
    refuse(&|m| m.global_strides[0] = 3592, "globalStrides[0] is 3592 bytes: it must be a multiple of 16");
    refuse(&|m| m.global_strides[0] = 1 << 40, "must be less than 2^40");
    refuse(&|m| m.box_dims[1] = 257, "boxDim[1] is 257");
    refuse(&|m| m.box_dims[0] = 0, "boxDim[0] is 0");
    refuse(
        &|m| m.box_dims[0] = 48,
        "boxDim[0] is 48 elements of 4 bits: the inner box must be a multiple of 16",
    );
    refuse(
        &|m| m.swizzle = SwizzleMode::B64,
        "boxDim[0] is 128 bytes in shared memory: swizzle B64 allows at most 64",
    );
    refuse(&|m| m.element_strides[1] = 9, "elementStrides[1] is 9");
    refuse(&|m| m.oob_fill = OobFill::NanRequestZeroFma, "oobFill is NaN");
    let padded = |change: &dyn Fn(&mut TensorMapParams), words: &str| {
        refuse(
            &|m| {
                *m = params(DataType::U4x16Align16B, &[256, 64], &[128], &[128, 64]);
                change(m);
            },
            words,
        );
    };
    padded(&|m| m.global_address += 16, "must be a multiple of 32 bytes");
    padded(&|m| m.global_strides[0] = 144, "must be a multiple of 32");
    padded(&|m| m.global_dims[0] = 192, "must be a multiple of 128 elements");
    padded(&|m| m.box_dims[0] = 64, "must be exactly 128");
    padded(&|m| m.swizzle = SwizzleMode::B64, "goes with None, 128B and 128B_ATOM_32B only");
    let mut wide = params(DataType::F32, &[64, 64], &[256], &[64, 1]);
    assert!(wide.validate().is_ok());
    wide.swizzle = SwizzleMode::B128;
    let (bytes, swizzle, span) = (256, SwizzleMode::B128, 128);
    assert_eq!(wide.validate(), Err(TensorMapError::InnerBoxSpan { bytes, swizzle, span }));
}

#[test]
fn transaction_bytes_are_payload() {
    assert_eq!(fp4_tile().transaction_bytes(), 128 * 128);
    let padded = params(DataType::U4x16Align16B, &[256, 64], &[128], &[128, 64]);
    assert_eq!((padded.transaction_bytes(), padded.shared_bytes()), (64 * 64, 128 * 64));
    let six = params(DataType::U6x16Align16B, &[256, 64], &[192], &[128, 64]);
    assert_eq!((six.transaction_bytes(), six.shared_bytes()), (96 * 64, 128 * 64));
    let mut thin = params(DataType::F32, &[64, 64], &[256], &[8, 10]);
    thin.element_strides[1] = 3;
    assert_eq!(thin.transaction_bytes(), 32 * 4);
}

#[test]
fn boxes_that_cannot_be_moved() {
    let map = fp4_tile();
    let sink = &mut |_: Chunk| Ok::<(), Infallible>(());
    assert_eq!(map.load_box(&[0], 0, sink), Err(BoxError::Rank { found: 1, rank: 2 }));
    assert_eq!(map.load_box(&[0, 0], 64, sink), Err(BoxError::SharedAlignment { address: 64 }));
    let odd = map.load_box(&[-3, 0], 0, sink);
    assert!(matches!(odd, Err(BoxError::PackedCoordinate { coordinate: -3, multiple: 2, .. })));
    let halves = params(DataType::F16, &[64, 64], &[128], &[8, 8]);
    let inside = halves.store_box(&[12, 0], 0, sink);
    assert!(matches!(inside, Err(BoxError::PackedCoordinate { coordinate: 12, multiple: 8, .. })));
    assert!(halves.load_box(&[-8, -1], 0, sink).is_ok());
    let negative = map.store_box(&[0, -1], 0, sink);
    assert_eq!(negative, Err(BoxError::NegativeStore { dimension: 1, coordinate: -1 }));
    let padded = params(DataType::U4x16Align16B, &[256, 64], &[128], &[128, 64]);
    assert!(matches!(padded.store_box(&[0, 0], 0, sink), Err(BoxError::LoadOnly { .. })));
    assert!(matches!(
        padded.load_box(&[64, 0], 0, sink),
        Err(BoxError::PackedCoordinate { multiple: 128, .. })
    ));
    assert_eq!(map.load_box(&[0, 0], 0, &mut |_| Err("no")), Err(BoxError::Memory("no")));
}

#[test]
fn chunks_are_as_long_as_the_swizzle_allows() {
    let count = |map: &TensorMapParams| {
        let mut chunks = 0;
        let sink = &mut |_: Chunk| -> Result<(), Infallible> {
            chunks += 1;
            Ok(())
        };
        map.load_box(&[0, 0], 1024, sink).unwrap();
        chunks
    };
    let mut map = fp4_tile();
    assert_eq!(count(&map), 128 * 8);
    map.swizzle = SwizzleMode::B128Atom64;
    assert_eq!(count(&map), 128 * 2);
    map.swizzle = SwizzleMode::None;
    assert_eq!(count(&map), 128);
}

/// Element types of the model, with the bits of an element and its slot in shared memory.
const TYPES: [(DataType, u32); 7] = [
    (DataType::U8, 8),
    (DataType::Bf16, 16),
    (DataType::F32, 32),
    (DataType::F64, 64),
    (DataType::U4x16Align8B, 4),
    (DataType::U4x16Align16B, 4),
    (DataType::U6x16Align16B, 6),
];

const SWIZZLES: [SwizzleMode; 7] = [
    SwizzleMode::None,
    SwizzleMode::B32,
    SwizzleMode::B64,
    SwizzleMode::B128,
    SwizzleMode::B128Atom32,
    SwizzleMode::B128Atom32Flip8,
    SwizzleMode::B128Atom64,
];

fn global_bit(i: u64) -> bool {
    i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61 & 1 == 1
}

/// An element of a box: inside the tensor, with the bit position of its element, or outside.
fn element(map: &TensorMapParams, bits: u64, start: &[i32], index: &[u32]) -> Option<u64> {
    let mut position = 0;
    for d in 0..map.rank() {
        let stride = if d == 0 { 1 } else { map.element_strides[d] };
        let at = i64::from(start[d]) + i64::from(index[d]) * i64::from(stride);
        if at < 0 || at >= map.global_dims[d] as i64 {
            return None;
        }
        position += at as u64 * if d == 0 { bits } else { map.global_strides[d - 1] * 8 };
    }
    Some(position)
}

/// Shared memory after a load, one entry a bit: `None` where nothing was written.
fn model_load(map: &TensorMapParams, bits: u64, start: &[i32], shared: u32) -> Vec<Option<bool>> {
    let mut memory = vec![None; 64 << 13];
    let counts: Vec<u32> = (0..map.rank())
        .map(|d| {
            let stride = if d == 0 { 1 } else { map.element_strides[d] };
            map.box_dims[d].div_ceil(stride)
        })
        .collect();
    let total: u32 = counts.iter().product();
    for number in 0..total {
        let mut rest = number;
        let index: Vec<u32> = counts
            .iter()
            .map(|&count| {
                let at = rest % count;
                rest /= count;
                at
            })
            .collect();
        let source = element(map, bits, start, &index);
        // Dense in shared memory, or 16 elements to 16 bytes.
        let linear = match map.data_type {
            DataType::U4x16Align16B | DataType::U6x16Align16B => {
                u64::from(number / 16) * 128 + u64::from(number % 16) * bits
            }
            _ => u64::from(number) * bits,
        };
        for bit in 0..bits {
            let byte = shared + ((linear + bit) / 8) as u32;
            let at = map.swizzle.apply(byte) as usize * 8 + ((linear + bit) % 8) as usize;
            let value = match source {
                Some(position) => global_bit(position + bit),
                None => map.oob_fill == OobFill::NanRequestZeroFma && 0x7ff7 >> (bit % 16) & 1 == 1,
            };
            assert_eq!(memory[at].replace(value), None);
        }
    }
    memory
}

fn real_load(map: &TensorMapParams, start: &[i32], shared: u32) -> Vec<Option<bool>> {
    let mut memory = vec![None; 64 << 13];
    let mut set = |byte: u32, bit: u32, value: bool| {
        assert_eq!(memory[(byte * 8 + bit) as usize].replace(value), None, "written twice");
    };
    let sink = &mut |chunk: Chunk| -> Result<(), Infallible> {
        match chunk {
            Chunk::Copy { global, shared, length } => {
                for i in 0..length {
                    for bit in 0..8 {
                        let at = (global - BASE + u64::from(i)) * 8 + u64::from(bit);
                        set(shared + i, bit, global_bit(at));
                    }
                }
            }
            Chunk::Fill { shared, length, pattern } => {
                for i in 0..length {
                    for bit in 0..8 {
                        set(shared + i, bit, pattern[i as usize % 8] >> bit & 1 == 1);
                    }
                }
            }
        }
        Ok(())
    };
    map.load_box(start, shared, sink).unwrap();
    memory
}

prop_compose! {
    /// A legal map of rank 1 to 5, a place to put a box, and the bits of an element.
    fn cases()(
        kind in 0..TYPES.len(),
        swizzle in 0..7usize,
        rank in 1..=5usize,
        dims in proptest::collection::vec(1..12u64, 5),
        boxes in proptest::collection::vec(1..4u32, 5),
        strides in proptest::collection::vec(1..4u32, 5),
        starts in proptest::collection::vec(-4i32..12, 5),
        pads in proptest::collection::vec(0..3u64, 5),
        units in 1..9u32,
        inner in 1..300u64,
        nan: bool,
        shared in 0..16u32,
    ) -> (TensorMapParams, u64, Vec<i32>, u32) {
        let (data_type, bits) = TYPES[kind];
        let padded = data_type.is_padded();
        let mut swizzle = SWIZZLES[swizzle];
        if padded && swizzle != SwizzleMode::None {
            swizzle = SwizzleMode::B128;
        }
        // Rows of 16-byte units that the swizzle has room for.
        let units = units.min(swizzle.span().unwrap_or(128) / 16);
        let mut dims = dims[..rank].to_vec();
        let mut boxes = boxes[..rank].to_vec();
        let mut starts = starts[..rank].to_vec();
        dims[0] = inner;
        boxes[0] = units * 128 / bits;
        starts[0] = starts[0] / 2 * (128 / bits as i32);
        if padded {
            (dims[0], boxes[0]) = (128 * (1 + inner % 3), 128);
            starts[0] = starts[0].signum() * 128;
        } else if bits == 4 {
            dims[0] *= 2;
        }
        let grain = if padded { 32 } else { 16 };
        let mut pitch = (dims[0] * u64::from(bits)).div_ceil(8);
        let mut pitches = Vec::new();
        for d in 1..rank {
            pitch = (pitch.div_ceil(grain) + pads[d]) * grain;
            pitches.push(pitch);
            pitch *= dims[d];
        }
        let mut map = params(data_type, &dims, &pitches, &boxes);
        map.element_strides = strides[..rank].to_vec();
        map.swizzle = swizzle;
        if nan && data_type.is_float() {
            map.oob_fill = OobFill::NanRequestZeroFma;
        }
        (map, bits.into(), starts, shared * 128)
    }
}

proptest! {
    #[test]
    fn loads_are_those_of_the_model((map, bits, start, shared) in cases()) {
        let map = TensorMapParams::decode(&map.encode().unwrap()).unwrap();
        prop_assert!(model_load(&map, bits, &start, shared) == real_load(&map, &start, shared));
    }

    #[test]
    fn stores_are_the_inside_of_loads((map, _, start, shared) in cases()) {
        prop_assume!(!map.data_type.is_padded());
        let start: Vec<i32> = start.iter().map(|c| c.abs()).collect();
        let mut loaded = Vec::new();
        let mut stored = Vec::new();
        let load = &mut |chunk| -> Result<(), Infallible> {
            loaded.push(chunk);
            Ok(())
        };
        map.load_box(&start, shared, load).unwrap();
        let store = &mut |chunk| -> Result<(), Infallible> {
            stored.push(chunk);
            Ok(())
        };
        map.store_box(&start, shared, store).unwrap();
        let payload: u32 = loaded
            .iter()
            .map(|chunk| match *chunk {
                Chunk::Copy { length, .. } | Chunk::Fill { length, .. } => length,
            })
            .sum();
        prop_assert_eq!(payload, map.transaction_bytes());
        loaded.retain(|chunk| matches!(chunk, Chunk::Copy { .. }));
        prop_assert_eq!(loaded, stored);
    }
}
