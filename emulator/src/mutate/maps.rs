//! Mistakes in the tensor maps of a launch.

use super::{Edit, Kind, Mutant};
use crate::engine::swizzle::SwizzleMode;
use crate::engine::tensor_map::{L2Promotion, TensorMapParams};
use crate::launch::{Arg, Launch};

/// Alignment of a tensor map's address in bytes (CUDA driver API, `CUtensorMap`).
const ALIGNMENT: usize = 64;
const BYTES: usize = 128;

/// Mutants of every tensor map of a launch: arguments of that type, and maps inside of byte arrays that are arguments.
pub(super) fn mutate(launch: &Launch) -> Vec<Mutant> {
    let mut out = Vec::new();
    for (index, arg) in launch.args.iter().enumerate() {
        let bytes: &[u8] = match arg {
            Arg::Bytes(bytes) => bytes,
            Arg::TensorMap(bytes) => bytes,
            _ => continue,
        };
        for offset in (0..=bytes.len().saturating_sub(BYTES)).step_by(ALIGNMENT) {
            let map = bytes.get(offset..offset + BYTES).and_then(|b| <&[u8; BYTES]>::try_from(b).ok());
            if let Some(Ok(map)) = map.map(TensorMapParams::decode) {
                one(&mut out, index, offset, &map);
            }
        }
    }
    out
}

fn one(out: &mut Vec<Mutant>, index: usize, offset: usize, map: &TensorMapParams) {
    let mut add = |kind: Kind, change: String, with: &dyn Fn(&mut TensorMapParams)| {
        let mut new = map.clone();
        with(&mut new);
        if new != *map {
            let bytes = new.encode().ok().map(|b| b.to_vec());
            let was = format!("tensor map in argument {index}, byte {offset}");
            out.push(Mutant { kind, line: 0, was, change, edit: Edit::Argument { index, offset, bytes } });
        }
    };
    let map_kind = Kind::TensorMap;
    for mode in [SwizzleMode::None, SwizzleMode::B32, SwizzleMode::B64, SwizzleMode::B128] {
        add(map_kind, format!("swizzle {:?} to {mode:?}", map.swizzle), &|m| m.swizzle = mode);
    }
    for d in 0..map.rank() {
        let (dim, side) = (map.global_dims[d], map.box_dims[d]);
        add(map_kind, format!("dims[{d}] {dim} to {}", dim.saturating_sub(1)), &|m| {
            m.global_dims[d] = dim.saturating_sub(1)
        });
        add(map_kind, format!("box[{d}] {side} to {}", side / 2), &|m| m.box_dims[d] = side / 2);
        if d > 0 && side > 1 {
            // The driver ignores the first, and a box of one element has none to skip.
            add(map_kind, format!("element_strides[{d}] to 2"), &|m| m.element_strides[d] = 2);
        }
    }
    for d in 0..map.global_strides.len() {
        let stride = map.global_strides[d];
        add(map_kind, format!("strides[{d}] {stride} to {}", stride + 16), &|m| {
            m.global_strides[d] = stride + 16
        });
    }
    add(map_kind, "address 16 bytes on".to_owned(), &|m| m.global_address += 16);
    for promotion in [L2Promotion::None, L2Promotion::B256] {
        add(Kind::Hint, format!("L2 promotion to {promotion:?}"), &|m| m.l2_promotion = promotion);
    }
}
