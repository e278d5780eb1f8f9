//! Launch files: every kind of value, every mistake with its place, and texts that nobody would write.

use proptest::prelude::*;
use silumin_emulator::engine::tensor_map::TensorMapParams;
use silumin_emulator::launch_file::{Contents, LaunchFileError};
use silumin_emulator::{
    Arg, DataType, Im2colParams, Interleave, L2Promotion, LaunchFile, OobFill, SwizzleMode,
};
use std::path::Path;
use tempfile::TempDir;

/// A kernel `k` that does nothing with these parameters.
fn ptx(params: &[&str]) -> String {
    format!(
        ".version 8.7\n.target sm_100a\n.address_size 64\n.visible .entry k({})\n{{\n    ret;\n}}\n",
        params.join(", ")
    )
}

/// A folder with `k.ptx`, whose kernel has these parameters, and `a.bin` of 8 bytes.
fn folder(params: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("k.ptx"), ptx(params)).unwrap();
    std::fs::write(folder.path().join("a.bin"), [1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
    folder
}

const HEAD: &str = "ptx = \"k.ptx\"\nkernel = \"k\"\ngrid = [1, 1, 1]\nblock = [32, 1, 1]\n";
const BUFFERS: &str =
    "[buffers.a]\nfile = \"a.bin\"\n[buffers.c]\nbytes = 4096\nfill = 0xA5\n[buffers.u]\nbytes = 64\n";

fn read(params: &[&str], text: &str) -> Result<LaunchFile, LaunchFileError> {
    let folder = folder(params);
    let path = folder.path().join("launch.toml");
    std::fs::write(&path, text).unwrap();
    LaunchFile::read(&path)
}

fn body(params: &[&str], rest: &str) -> Result<LaunchFile, LaunchFileError> {
    read(params, &format!("{HEAD}{BUFFERS}{rest}"))
}

/// The bytes of the only parameter, declared like this.
fn one(declaration: &str, value: &str) -> Vec<u8> {
    match body(&[declaration], &format!("[[params]]\n{value}\n")) {
        Ok(file) => match file.launch.args.as_slice() {
            [Arg::Bytes(bytes)] => bytes.clone(),
            other => panic!("{other:?}"),
        },
        Err(e) => panic!("{e}"),
    }
}

fn addresses(file: &LaunchFile) -> Vec<u64> {
    let (memory, buffers) = file.allocate();
    buffers.iter().map(|b| memory.address(b)).collect()
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().unwrap())
}

#[test]
fn buffers_hold_a_file_a_fill_or_nothing() {
    let file = body(&[], "").unwrap();
    assert_eq!(file.kernel, "k");
    assert_eq!((file.launch.grid, file.launch.block), ([1, 1, 1], [32, 1, 1]));
    assert_eq!((file.launch.cluster, file.launch.dynamic_smem), ([1, 1, 1], 0));
    let names: Vec<&str> = file.buffers.iter().map(|b| b.name.as_str()).collect();
    assert_eq!(names, ["a", "c", "u"]);
    assert_eq!(file.buffers[0].contents, Contents::Bytes(vec![1, 2, 3, 4, 5, 6, 7, 8]));
    assert!(file.buffers[0].source.as_ref().unwrap().ends_with("a.bin"));
    let (memory, buffers) = file.allocate();
    assert_eq!(memory.read(&buffers[0]), [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(memory.read(&buffers[1]), [0xA5; 4096]);
    assert_eq!([0, 1, 2].map(|i| memory.unwritten(&buffers[i])), [0, 0, 64]);
}

#[test]
fn values_of_a_buffer_are_written_as_parameters_are() {
    let values = "[buffers.v]\nvalues = [{ pointer = \"c\", offset = 16 }, { i32 = -1 }, { u16 = 7 }, { pointer = \"v\", offset = 22 }]\n";
    let file = body(&[], values).unwrap();
    let at = addresses(&file);
    let mut want = (at[1] + 16).to_le_bytes().to_vec();
    want.extend([255, 255, 255, 255, 7, 0]);
    want.extend((at[3] + 22).to_le_bytes());
    assert_eq!(file.buffers[3].bytes, 22);
    assert_eq!(file.buffers[3].contents, Contents::Bytes(want.clone()));
    let (memory, buffers) = file.allocate();
    assert_eq!(memory.read(&buffers[3]), want);
    for (rest, says) in [
        ("values = [{ pointer = \"x\" }]", "buffers.v.values[0].pointer: there is no buffer `x`"),
        ("values = [{ pointer = \"v\", offset = 9 }]", "buffers.v.values[0].offset"),
        ("values = [{ u8 = 1 }]\nbytes = 1", "buffers.v.bytes: there are `values` too"),
        ("values = [{ u8 = 256 }]", "buffers.v.values[0].u8"),
        ("values = [{}]", "buffers.v.values[0]: it has no value"),
    ] {
        let e = body(&[], &format!("[buffers.v]\n{rest}\n")).unwrap_err().to_string();
        assert!(e.contains(says), "{rest}: {e}");
    }
}

#[test]
fn a_size_beside_a_file_must_be_its_size() {
    assert!(read(&[], &format!("{HEAD}[buffers.a]\nfile = \"a.bin\"\nbytes = 8\n")).is_ok());
    let e = read(&[], &format!("{HEAD}[buffers.a]\nfile = \"a.bin\"\nbytes = 9\n")).unwrap_err().to_string();
    assert!(e.contains("the file has 8 bytes and `bytes` is 9"), "{e}");
}

#[test]
fn scalars_of_every_kind() {
    assert_eq!(one(".param .u8 p", "u8 = 200"), [200]);
    assert_eq!(one(".param .u16 p", "u16 = 0x1234"), [0x34, 0x12]);
    assert_eq!(one(".param .u32 p", "u32 = 4294967295"), [255; 4]);
    assert_eq!(one(".param .s32 p", "i32 = -2"), (-2i32).to_le_bytes());
    assert_eq!(one(".param .u64 p", "u64 = 9223372036854775807"), i64::MAX.to_le_bytes());
    assert_eq!(one(".param .u64 p", "u64 = 18446744073709551615"), [255; 8]);
    assert_eq!(one(".param .s64 p", "i64 = -9223372036854775808"), i64::MIN.to_le_bytes());
    assert_eq!(one(".param .f32 p", "f32 = 0.1"), 0.1f32.to_le_bytes());
    assert_eq!(one(".param .f32 p", "f32 = 3"), 3f32.to_le_bytes());
    assert_eq!(one(".param .f32 p", "f32 = -inf"), f32::NEG_INFINITY.to_le_bytes());
    assert!(f32::from_le_bytes(one(".param .f32 p", "f32 = nan").try_into().unwrap()).is_nan());
    assert_eq!(one(".param .f64 p", "f64 = 1e300"), 1e300f64.to_le_bytes());
    assert_eq!(one(".param .align 4 .b8 p[4]", "hex = \"00fF_10 20\""), [0, 255, 16, 32]);
}

#[test]
fn pointers_are_addresses_in_the_allocated_memory() {
    let decl = [".param .u64 p", ".param .u64 q", ".param .u64 r"];
    let file = body(
        &decl,
        "[[params]]\npointer = \"c\"\n[[params]]\npointer = \"u\"\noffset = 48\n[[params]]\nnull = true\n",
    )
    .unwrap();
    let at = addresses(&file);
    let expected = [at[1], at[2] + 48, 0].map(|v| Arg::Bytes(v.to_le_bytes().to_vec()));
    assert_eq!(file.launch.args, expected);
}

const MAP: &str = ".param .align 64 .b8 p[128]";

fn decode(bytes: &[u8]) -> TensorMapParams {
    TensorMapParams::decode(bytes.try_into().unwrap()).unwrap()
}

#[test]
fn a_tensor_map_with_every_key() {
    let map = decode(&one(
        MAP,
        "tensor_map = { buffer = \"c\", offset = 32, data_type = \"f16\", dims = [64, 16, 2], strides = [128, 2048], \
         box = [16, 8, 1], element_strides = [1, 2, 1], interleave = \"none\", swizzle = \"32b\", \
         l2_promotion = \"256b\", oob_fill = \"nan_request_zero_fma\" }",
    ));
    assert_eq!(map.data_type, DataType::F16);
    assert_eq!((map.global_dims, map.global_strides), (vec![64, 16, 2], vec![128, 2048]));
    assert_eq!((map.box_dims, map.element_strides), (vec![16, 8, 1], vec![1, 2, 1]));
    assert_eq!((map.interleave, map.swizzle), (Interleave::None, SwizzleMode::B32));
    assert_eq!((map.l2_promotion, map.oob_fill), (L2Promotion::B256, OobFill::NanRequestZeroFma));
    assert_eq!(map.global_address, addresses(&body(&[], "").unwrap())[1] + 32);
}

#[test]
fn a_tensor_map_has_defaults() {
    let map = decode(&one(
        MAP,
        "tensor_map = { buffer = \"c\", data_type = \"f32\", dims = [16, 4, 3], box = [16, 1, 1] }",
    ));
    assert_eq!(map.global_strides, [64, 256]);
    assert_eq!(map.element_strides, [1, 1, 1]);
    assert_eq!(
        (map.swizzle, map.l2_promotion, map.oob_fill),
        (SwizzleMode::None, L2Promotion::None, OobFill::Zeros)
    );
}

#[test]
fn every_name_of_a_type_and_a_swizzle_is_known() {
    let names = "u8 u16 u32 i32 u64 i64 f16 f32 f64 bf16 f32_ftz tf32 tf32_ftz 16u4_align8b 16u4_align16b 16u6_align16b";
    for (code, name) in names.split(' ').enumerate() {
        let inner = if name.starts_with("16u") { 128 } else { 16 };
        let text = format!(
            "tensor_map = {{ buffer = \"c\", data_type = \"{name}\", dims = [{inner}], strides = [], box = [{inner}] }}"
        );
        assert_eq!(decode(&one(MAP, &text)).data_type as usize, code, "{name}");
    }
    let names = "none 32b 64b 128b 128b_atom_32b 128b_atom_32b_flip_8b 128b_atom_64b";
    for (code, name) in names.split(' ').enumerate() {
        let text = format!(
            "tensor_map = {{ buffer = \"c\", data_type = \"u8\", dims = [16], box = [16], swizzle = \"{name}\" }}"
        );
        assert_eq!(decode(&one(MAP, &text)).swizzle.tensor_map_code() as usize, code, "{name}");
    }
}

#[test]
fn a_struct_has_its_fields_where_they_say_and_zeros_elsewhere() {
    let bytes = one(
        ".param .align 64 .b8 p[384]",
        "struct = { size = 384, fields = [ { offset = 0, pointer = \"u\", pointer_offset = 8 }, \
         { offset = 64, tensor_map = { buffer = \"c\", data_type = \"u8\", dims = [64], box = [64] } }, \
         { offset = 200, u32 = 7 }, { offset = 204, i32 = -1 }, { offset = 208, f32 = 1.5 }, { offset = 212, u8 = 9 }, \
         { offset = 213, hex = \"aabb\" }, { offset = 216, f64 = 2.5 }, { offset = 224, null = true }, \
         { offset = 380, u16 = 513 } ] }",
    );
    let at = addresses(&body(&[], "").unwrap());
    let mut expected = vec![0u8; 384];
    expected[..8].copy_from_slice(&(at[2] + 8).to_le_bytes());
    assert_eq!(decode(&bytes[64..192]).global_address, at[1]);
    expected[64..192].copy_from_slice(&bytes[64..192]);
    expected[200] = 7;
    expected[204..208].fill(255);
    expected[208..212].copy_from_slice(&1.5f32.to_le_bytes());
    expected[212..215].copy_from_slice(&[9, 0xaa, 0xbb]);
    expected[216..224].copy_from_slice(&2.5f64.to_le_bytes());
    expected[380..382].copy_from_slice(&[1, 2]);
    assert_eq!(bytes, expected);
    assert_eq!(word(&bytes[224..232]), 0);
}

/// Each mistake: the text behind the head, and what the error must contain.
fn mistake(params: &[&str], rest: &str, wanted: &[&str]) {
    let error = match body(params, rest) {
        Ok(_) => panic!("accepted: {rest}"),
        Err(e) => e.to_string(),
    };
    let place = error.split("launch.toml:").nth(1).unwrap_or_else(|| panic!("no place in: {error}"));
    let mut numbers = place.split(':');
    let mut number = || numbers.next().unwrap().parse::<u32>().unwrap();
    assert!(number() > 0 && number() > 0, "{error}");
    for w in wanted {
        assert!(error.contains(w), "no `{w}` in: {error}");
    }
}

#[test]
fn mistakes_in_parameters_name_key_value_limit_and_a_way_out() {
    let p =
        |rest: &str, wanted: &[&str]| mistake(&[".param .u64 p"], &format!("[[params]]\n{rest}\n"), wanted);
    p("", &["params[0]", "it has no value", "tensor_map"]);
    p("u32 = 1\nf32 = 1.0", &["params[0]", "2 values, u32 and f32"]);
    p("pointer = \"z\"", &["params[0].pointer", "no buffer `z`", "a, c, u", "[buffers.NAME]"]);
    p("pointer = \"u\"\noffset = 65", &["params[0].offset", "65", "from 0 to 64", "`u`"]);
    p("pointer = \"u\"\noffset = -1", &["-1 is out of range"]);
    p("pointer = \"u\"\nnull = true", &["2 values, pointer and null"]);
    p("pointer = \"u\"\npointer_offset = 1", &["params[0].pointer_offset", "called `offset`"]);
    p("null = false", &["params[0].null", "pointer = \"BUFFER\""]);
    p("u64 = 1\noffset = 4", &["params[0].offset", "goes with `pointer`"]);
    p("u8 = 256", &["params[0].u8", "256", "0 to 255"]);
    p("u16 = 65536", &["params[0].u16", "0 to 65535"]);
    p("u32 = -1", &["params[0].u32", "-1", "0 to 4294967295"]);
    p("i32 = 2147483648", &["params[0].i32", "-2147483648 to 2147483647", "hex"]);
    p("u64 = 18446744073709551616", &["u64"]);
    p("i64 = 9223372036854775808", &["params[0].i64", "9223372036854775807"]);
    p("u32 = 1.5", &["invalid type", "1.5"]);
    p("u32 = \"1\"", &["invalid type"]);
    p("f32 = 1e39", &["params[0].f32", "beyond f32", "use f64"]);
    p("hex = \"0\"", &["params[0].hex", "even number"]);
    p("hex = \"0g\"", &["params[0].hex", "'g'"]);
    p("bf16 = 1.0", &["unknown field `bf16`", "hex"]);
    p("u32 = 1", &["params[0]", "has 4 bytes, parameter `p` has 8", "takes: p (8 bytes)"]);
    p(
        "u64 = 1\n[[params]]\nu64 = 1",
        &["2 arguments were given, and the kernel takes 1", "takes: p (8 bytes)", "8, 8"],
    );
    mistake(
        &[".param .u64 p"],
        "",
        &["params", "0 arguments were given, and the kernel takes 1", "have no bytes"],
    );
}

#[test]
fn a_tensor_map_of_columns_of_pixels() {
    let fields =
        "buffer = \"c\", data_type = \"f16\", dims = [8, 4, 4, 2], upper_corner = [0, -1], channels = 8";
    let text = format!("tensor_map = {{ {fields}, lower_corner = [-1, 0], pixels = 4 }}");
    let bytes = <[u8; 128]>::try_from(one(MAP, &text)).unwrap();
    let map = Im2colParams::decode(&bytes).unwrap().unwrap();
    assert_eq!((map.lower, map.upper, map.pixels), (vec![-1, 0], vec![0, -1], 4));
    assert_eq!((map.tensor.global_dims, map.tensor.box_dims[0]), (vec![8, 4, 4, 2], 8));
    assert_eq!(map.tensor.global_strides, [16, 64, 256]);
    let m = |more: &str, wanted: &[&str]| {
        mistake(&[MAP], &format!("[[params]]\ntensor_map = {{ {fields}, {more} }}\n"), wanted);
    };
    m("pixels = 4", &["params[0].tensor_map", "all four"]);
    m("lower_corner = [0, 0], pixels = 4, box = [8, 1, 1, 1]", &["tensor_map.box", "has no box"]);
    m("lower_corner = [0], pixels = 4", &["params[0].tensor_map", "pixelBoxLowerCorner", "2 numbers"]);
    m("lower_corner = [0, 0], pixels = 1025", &["params[0].tensor_map", "pixelsPerColumn is 1025"]);
}

#[test]
fn mistakes_in_tensor_maps_are_those_of_the_driver() {
    let m = |fields: &str, wanted: &[&str]| {
        mistake(&[MAP], &format!("[[params]]\ntensor_map = {{ {fields} }}\n"), wanted);
    };
    m("buffer = \"c\"", &["params[0].tensor_map", "`data_type`, `dims`, `box` missing"]);
    m("data_type = \"u8\", dims = [16], box = [16]", &["`buffer` missing"]);
    let with = |data_type: &str, rest: &str| format!("buffer = \"c\", data_type = \"{data_type}\", {rest}");
    m(&with("s8", "dims = [16], box = [16]"), &["tensor_map.data_type", "`s8`", "16u4_align8b"]);
    m(&with("u8", "dims = [], box = []"), &["tensor_map.dims", "1 to 5 dimensions"]);
    m(&with("u8", "dims = [1, 1, 1, 1, 1, 1], box = [16]"), &["tensor_map.dims", "tensorRank is 6"]);
    m(&with("u8", "dims = [16, 2], strides = [], box = [16, 1]"), &["tensor_map.strides", "takes 1"]);
    m(&with("u8", "dims = [16, 2], strides = [16], box = [16]"), &["tensor_map.box", "takes 2"]);
    m(&with("u8", "dims = [16], box = [16], element_strides = [1, 1]"), &["element_strides", "takes 1"]);
    m(&with("u8", "dims = [0], box = [16]"), &["tensor_map.dims", "globalDim[0] is 0"]);
    m(&with("u8", "dims = [4294967297], box = [16]"), &["1 to 2^32"]);
    m(&with("16u4_align16b", "dims = [64], box = [128]"), &["tensor_map.dims", "multiple of 128"]);
    m(&with("u8", "dims = [20, 2], box = [16, 1]"), &["tensor_map.strides", "20 bytes", "multiple of 16"]);
    m(&with("u8", "dims = [16, 2], strides = [1099511627776], box = [16, 1]"), &["less than 2^40"]);
    m(&with("u8", "dims = [512], box = [512]"), &["tensor_map.box", "1 to 256"]);
    m(&with("u8", "dims = [16], box = [4294967296]"), &["tensor_map.box[0]", "4294967295"]);
    m(&with("u8", "dims = [16], box = [-1]"), &["tensor_map.box[0]", "-1"]);
    m(&with("u8", "dims = [64], box = [24]"), &["tensor_map.box", "multiple of 16 bytes"]);
    m(&with("u8", "dims = [256], box = [256], swizzle = \"128b\""), &["tensor_map.box", "at most 128"]);
    m(&with("u8", "dims = [256], box = [128], swizzle = \"256b\""), &["tensor_map.swizzle", "128b_atom_64b"]);
    m(&with("16u6_align16b", "dims = [128], box = [128], swizzle = \"64b\""), &["tensor_map.swizzle"]);
    m(&with("u8", "dims = [16], box = [16], element_strides = [9]"), &["element_strides", "1 to 8"]);
    m(&with("u8", "dims = [16], box = [16], interleave = \"16b\""), &["interleave", "use None"]);
    m(&with("u8", "dims = [16], box = [16], interleave = \"8b\""), &["interleave", "`8b`", "none, 16b, 32b"]);
    m(&with("u8", "dims = [16], box = [16], l2_promotion = \"1kb\""), &["l2_promotion", "256b"]);
    m(&with("u8", "dims = [16], box = [16], oob_fill = \"ones\""), &["oob_fill", "nan_request_zero_fma"]);
    m(
        &with("u8", "dims = [16], box = [16], oob_fill = \"nan_request_zero_fma\""),
        &["oob_fill", "floating-point"],
    );
    m(&with("u8", "dims = [16], box = [16], offset = 8"), &["tensor_map.offset", "multiple of 16"]);
    m(&with("u8", "dims = [16], box = [16], offset = 5000"), &["tensor_map.offset", "0 to 4096"]);
    m(&with("u8", "dims = [16], box = [16], swizle = \"128b\""), &["unknown field `swizle`", "`swizzle`"]);
}

#[test]
fn mistakes_in_structs_name_the_field() {
    let s = |text: &str, wanted: &[&str]| {
        mistake(&[".param .align 64 .b8 p[256]"], &format!("[[params]]\nstruct = {{ {text} }}\n"), wanted);
    };
    s("fields = []", &["missing field `size`"]);
    s("size = 0", &["params[0].struct.size", "1 to 32764"]);
    s("size = 99999999999", &["params[0].struct.size", "1 to 32764"]);
    s("size = 128", &["has 128 bytes, parameter `p` has 256"]);
    s("size = 256, fields = [ { u32 = 1 } ]", &["struct.fields[0]", "`offset` is missing"]);
    s("size = 256, fields = [ { offset = 253, u32 = 1 } ]", &["fields[0].offset", "253", "0 to 252"]);
    s("size = 4, fields = [ { offset = 0, u64 = 1 } ]", &["fields[0]", "does not fit", "8 bytes"]);
    s(
        "size = 256, fields = [ { offset = 0, u64 = 1 }, { offset = 4, u8 = 1 } ]",
        &["fields[1].offset", "overlap fields[0]"],
    );
    s("size = 256, fields = [ { offset = 0 } ]", &["fields[0]", "it has no value"]);
    s("size = 256, fields = [ { offset = 0, struct = { size = 1 } } ]", &["a struct within a struct"]);
    s("size = 256, fields = [ { offset = 0, u8 = 1, pointer_offset = 1 } ]", &["goes with `pointer`"]);
    s(
        "size = 256, fields = [ { offset = 8, tensor_map = { buffer = \"c\", data_type = \"u8\", dims = [16], box = [16] } } ]",
        &["fields[0].offset", "multiple of 64"],
    );
    s("size = 256, fields = [ { offset = 64, tensor_map = { buffer = \"c\" } } ]", &["missing", "data_type"]);
}

#[test]
fn mistakes_in_buffers_name_the_buffer() {
    let b = |text: &str, wanted: &[&str]| mistake(&[], text, wanted);
    b("[buffers.x]\n", &["buffers.x", "file = \"NAME\""]);
    b("[buffers.x]\nfill = 1\n", &["buffers.x", "bytes = N"]);
    b("[buffers.x]\nbytes = -1\n", &["buffers.x.bytes", "-1"]);
    b("[buffers.x]\nbytes = 4294967296\n", &["buffers.x.bytes", "4294967296", "smaller problem"]);
    b("[buffers.x]\nbytes = 9223372036854775807\n", &["buffers.x.bytes"]);
    b(
        "[buffers.x]\nbytes = 3000000000\n[buffers.y]\nbytes = 3000000000\n",
        &["buffers.y.bytes", "what is left of 4294967296"],
    );
    b("[buffers.x]\nbytes = 16\nfill = 256\n", &["buffers.x.fill", "0 to 255"]);
    b("[buffers.x]\nfile = \"a.bin\"\nfill = 1\n", &["buffers.x.fill", "leave out one"]);
    b("[buffers.x]\nfile = \"none.bin\"\n", &["buffers.x.file", "none.bin", "relative to the launch file"]);
    b("[buffers.x]\nfile = \".\"\n", &["buffers.x.file", "not a plain file"]);
    b("[buffers.x]\nfile = \"/dev/zero\"\n", &["buffers.x.file", "not a plain file"]);
    b("[buffers.\"../x\"]\nbytes = 16\n", &["a buffer's name"]);
    b("[buffers.\"\"]\nbytes = 16\n", &["a buffer's name"]);
    b("[buffers.x]\nsize = 16\n", &["unknown field `size`", "`bytes`"]);
    b("[buffers.a]\nbytes = 16\n", &["duplicate key"]);
}

#[test]
fn mistakes_in_the_launch_name_the_key() {
    let text = |replace: &str, with: &str| {
        let text = HEAD.replacen(replace, with, 1);
        assert_ne!(text, HEAD);
        read(&[], &text).unwrap_err().to_string()
    };
    for (replace, with, wanted) in [
        ("[1, 1, 1]", "[1, 1]", "grid: 2 numbers"),
        ("[1, 1, 1]", "[1, 0, 1]", "grid: 0 is out of range"),
        ("[1, 1, 1]", "[1, 65536, 1]", "at most 65535"),
        ("[1, 1, 1]", "[99999999999, 1, 1]", "grid: 99999999999"),
        ("[32, 1, 1]", "[1025, 1, 1]", "1 to 1024 threads"),
        ("[32, 1, 1]", "[32, 1, 1]\ncluster = [2, 1, 1]", "is not a multiple of it"),
        ("[32, 1, 1]", "[32, 1, 1]\ncluster = [17, 1, 1]", "1 to 16 CTAs"),
        ("[32, 1, 1]", "[32, 1, 1]\ndynamic_smem = 232449", "dynamic_smem: 232449"),
        ("[32, 1, 1]", "[32, 1, 1]\ndynamic_smem = -1", "dynamic_smem: -1"),
        ("[32, 1, 1]", "[32, 1, 1]\nshared = 1", "unknown field `shared`"),
        ("kernel = \"k\"", "kernel = \"j\"", "no kernel `j`; the module has k"),
        ("kernel = \"k\"\n", "", "missing field `kernel`"),
        ("k.ptx", "j.ptx", "ptx: "),
        ("ptx = ", "ptx ", "expected"),
    ] {
        let error = text(replace, with);
        assert!(error.contains(wanted) && error.contains("launch.toml:"), "no `{wanted}` in: {error}");
    }
}

#[test]
fn places_are_lines_and_columns() {
    let error = body(&[".param .u8 p"], "[[params]]\nu8 = 256\n").unwrap_err();
    let LaunchFileError::Value { place, key, .. } = &error else { panic!("{error}") };
    assert_eq!((place.line, place.column, key.as_str()), (13, 6, "params[0].u8"));
    assert_eq!(place.text, "u8 = 256");
}

#[test]
fn all_errors_of_the_ptx_are_listed() {
    let folder = folder(&[]);
    let text =
        ".version 8.7\n.target sm_100a\n.address_size 64\n.entry k()\n{\n  frob.u32 1;\n  ret;\n  blah;\n}\n";
    std::fs::write(folder.path().join("k.ptx"), text).unwrap();
    let error = LaunchFile::parse(&folder.path().join("launch.toml"), HEAD).unwrap_err();
    let LaunchFileError::Ptx(errors) = error else { panic!("{error}") };
    assert_eq!(errors.0.iter().map(|e| e.line).collect::<Vec<_>>(), [6, 8]);
}

#[test]
fn files_that_are_no_launch_files() {
    let folder = folder(&[]);
    let missing = LaunchFile::read(&folder.path().join("none.toml")).unwrap_err().to_string();
    assert!(missing.contains("none.toml"), "{missing}");
    let path = folder.path().join("binary.toml");
    std::fs::write(&path, [b'a', 0xff, 0]).unwrap();
    let binary = LaunchFile::read(&path).unwrap_err().to_string();
    assert!(binary.contains("not UTF-8 from byte 1"), "{binary}");
    assert!(LaunchFile::read(folder.path()).unwrap_err().to_string().contains("not a plain file"));
}

/// A launch file with a bit of everything.
fn everything() -> String {
    format!(
        "{HEAD}cluster = [1, 1, 1]\ndynamic_smem = 1024\n{BUFFERS}\
         [[params]]\npointer = \"a\"\noffset = 4\n[[params]]\nf32 = 1.5\n\
         [[params]]\ntensor_map = {{ buffer = \"c\", data_type = \"u8\", dims = [64, 4], strides = [64], box = [64, 4], swizzle = \"64b\" }}\n\
         [[params]]\nstruct = {{ size = 16, fields = [ {{ offset = 8, u32 = 7 }}, {{ offset = 0, hex = \"0102\" }} ] }}\n"
    )
}

const EVERYTHING: [&str; 4] =
    [".param .u64 a", ".param .f32 b", ".param .align 64 .b8 c[128]", ".param .align 8 .b8 d[16]"];

#[test]
fn the_text_that_is_mutated_below_is_right() {
    let file = read(&EVERYTHING, &everything()).unwrap();
    assert_eq!(file.launch.args.len(), 4);
}

/// Pieces that land in launch files by mistake.
const PIECES: [&str; 16] = [
    "-1",
    "9223372036854775807",
    "170141183460469231731687303715884105727",
    "nan",
    "[]",
    "{}",
    "\"",
    "'''",
    "\n[[params]]\n",
    "\n[buffers]\n",
    "\n[",
    "0x",
    "1e999",
    "true",
    "é\u{0}",
    "struct = ",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = LaunchFile::parse(Path::new("/nonexistent/launch.toml"), &String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn mutated_launch_files_do_not_panic(
        edits in proptest::collection::vec((any::<prop::sample::Index>(), 0usize..12, any::<prop::sample::Index>()), 1..6)
    ) {
        let folder = folder(&EVERYTHING);
        let mut text: Vec<char> = everything().chars().collect();
        for (at, cut, piece) in edits {
            let at = at.index(text.len() + 1);
            let end = (at + cut).min(text.len());
            let piece = PIECES.get(piece.index(PIECES.len() + 4)).copied().unwrap_or("");
            text.splice(at..end, piece.chars());
        }
        let text: String = text.into_iter().collect();
        if let Err(e) = LaunchFile::parse(&folder.path().join("launch.toml"), &text) {
            prop_assert!(!e.to_string().is_empty());
        }
    }

    #[test]
    fn mutated_numbers_are_taken_or_refused_with_a_place(value in any::<i64>(), which in any::<prop::sample::Index>()) {
        let folder = folder(&EVERYTHING);
        let text = everything();
        let numbers: Vec<_> = text
            .match_indices(|c: char| c.is_ascii_digit())
            .filter(|(at, _)| text.as_bytes()[at - 1] == b' ' || text.as_bytes()[at - 1] == b'[')
            .collect();
        let (at, _) = numbers[which.index(numbers.len())];
        let end = at + text[at..].find(|c: char| !c.is_ascii_digit() && c != '.').unwrap();
        let changed = format!("{}{value}{}", &text[..at], &text[end..]);
        if let Err(e) = LaunchFile::parse(&folder.path().join("launch.toml"), &changed) {
            prop_assert!(e.to_string().contains("launch.toml:"), "{}", e);
        }
    }
}
