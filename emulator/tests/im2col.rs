//! Tensor copies of im2col mode against a loop over the pixels of a small image.

use crate::common::{launch, parse, run};
use silumin_emulator::{
    Arg, DataType, FindingKind, GlobalMemory, Im2colParams, Interleave, L2Promotion, OobFill, Options,
    Schedule, SwizzleMode, TensorMapParams, Tracking,
};

const DIMS: [usize; 4] = [16, 5, 4, 3];
const PIXELS: usize = 40;
const CHANNELS: usize = 8;

/// A kernel that loads a column at the given coordinates and offsets and stores it to `out`.
fn kernel(coordinates: [i32; 4], offsets: [u16; 2], back: bool) -> String {
    let [c, w, h, n] = coordinates;
    let bytes = PIXELS * CHANNELS * 2;
    let finish = if back {
        "    fence.proxy.async;
    cp.async.bulk.tensor.4d.global.shared::cta.im2col_no_offs.bulk_group [%rd3, {%r1, %r2, %r3, %r4}], [%r6];
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;"
            .to_owned()
    } else {
        format!(
            "    cp.async.bulk.global.shared::cta.bulk_group [%rd2], [%r6], {bytes};
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;"
        )
    };
    format!(
        ".version 8.8\n.target sm_100a\n.address_size 64
.visible .entry k(.param .align 64 .b8 map[128], .param .align 64 .b8 to[128], .param .u64 out) {{
    .reg .pred %p<2>; .reg .b32 %r<16>; .reg .b64 %rd<8>; .reg .b16 %h<4>;
    .shared .align 128 .b8 buf[{bytes}]; .shared .align 8 .b64 bar;
    mov.b64 %rd1, map; cvta.param.u64 %rd1, %rd1;
    mov.b64 %rd3, to; cvta.param.u64 %rd3, %rd3;
    ld.param.u64 %rd2, [out]; cvta.to.global.u64 %rd2, %rd2;
    mov.u32 %r6, buf; mov.u32 %r7, bar;
    mov.b32 %r1, {c}; mov.b32 %r2, {w}; mov.b32 %r3, {h}; mov.b32 %r4, {n};
    mov.b16 %h0, {}; mov.b16 %h1, {};
    mbarrier.init.shared::cta.b64 [%r7], 1;
    fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r7], {bytes};
    cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%r6], [%rd1, {{%r1, %r2, %r3, %r4}}], [%r7], {{%h0, %h1}};
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r7], 0;
    @!%p1 bra WAIT;
{finish}
    ret;\n}}\n",
        offsets[0], offsets[1]
    )
}

fn map(address: u64, lower: [i32; 2], upper: [i32; 2], stride: u32) -> Im2colParams {
    Im2colParams {
        tensor: TensorMapParams {
            data_type: DataType::U16,
            global_address: address,
            global_dims: DIMS.map(|d| d as u64).to_vec(),
            global_strides: vec![32, 32 * 5, 32 * 20],
            box_dims: vec![CHANNELS as u32, 1, 1, 1],
            element_strides: vec![1, stride, stride, 1],
            interleave: Interleave::None,
            swizzle: SwizzleMode::None,
            l2_promotion: L2Promotion::None,
            oob_fill: OobFill::Zeros,
        },
        lower: lower.to_vec(),
        upper: upper.to_vec(),
        pixels: PIXELS as u32,
    }
}

/// The places (w, h, n) of the pixels that a copy takes.
fn pixels(start: [i32; 3], lower: [i32; 2], upper: [i32; 2], stride: i32) -> Vec<[i32; 3]> {
    let [mut w, mut h, mut n] = start;
    (0..PIXELS)
        .map(|_| {
            let here = [w, h, n];
            w += stride;
            if w > DIMS[1] as i32 - 1 + upper[0] {
                (w, h) = (lower[0], h + stride);
                if h > DIMS[2] as i32 - 1 + upper[1] {
                    (h, n) = (lower[1], n + 1);
                }
            }
            here
        })
        .collect()
}

#[test]
fn columns_of_pixels_wrap_within_their_box_and_are_filled_outside_of_the_image() {
    let total: usize = DIMS.iter().product();
    let image: Vec<u8> = (0..total as u16).flat_map(|i| (i + 1).to_le_bytes()).collect();
    let element = |c: usize, [w, h, n]: [i32; 3]| {
        let inside = (0..5).contains(&w) && (0..4).contains(&h) && (0..3).contains(&n);
        if !inside {
            return 0u16;
        }
        (((n as usize * 4 + h as usize) * 5 + w as usize) * 16 + c) as u16 + 1
    };
    // A 3 x 3 filter with padding, one without, and a stride of 2.
    for (lower, upper, stride) in [([-1, -1], [-1, -1], 1), ([0, 0], [-2, -2], 1), ([-1, -1], [0, 0], 2)] {
        for (start, offsets) in [([0, lower[0], lower[1], 0], [0, 0]), ([8, 1, 1, 1], [2, 1])] {
            for schedule in [Schedule::Early, Schedule::Late] {
                let mut memory = GlobalMemory::new();
                let input = memory.alloc_from("in", &image);
                let output = memory.alloc_from("image", &vec![0xee; image.len()]);
                let out = memory.alloc("out", (PIXELS * CHANNELS * 2) as u64);
                let from = map(memory.address(&input), lower, upper, stride);
                let to = map(memory.address(&output), lower, upper, stride);
                let encoded = from.encode().unwrap();
                assert_eq!(Im2colParams::decode(&encoded).unwrap(), Some(from));
                let args = vec![
                    Arg::TensorMap(encoded),
                    Arg::TensorMap(to.encode().unwrap()),
                    Arg::Pointer(memory.address(&out)),
                ];
                let options = Options { schedule, tracking: Tracking::Strict, ..Options::default() };
                let report = run(
                    &parse(&kernel(start, offsets, false)),
                    &launch(1, 1, args.clone()),
                    &memory,
                    &options,
                );
                assert!(report.is_clean(), "{}", report.findings[0]);
                let [c, w, h, n] = start;
                let places = pixels([w, h, n], lower, upper, stride as i32);
                for (i, two) in memory.read(&out).chunks(2).enumerate() {
                    let [w, h, n] = places[i / CHANNELS];
                    let at = [w + i32::from(offsets[0]), h + i32::from(offsets[1]), n];
                    let want = element(c as usize + i % CHANNELS, at);
                    assert_eq!(u16::from_le_bytes([two[0], two[1]]), want, "element {i} of {start:?}");
                }
                // A store without offsets puts what was loaded back, where it is inside.
                if offsets == [0, 0] && lower == [0, 0] {
                    let report =
                        run(&parse(&kernel(start, offsets, true)), &launch(1, 1, args), &memory, &options);
                    assert!(report.is_clean(), "{}", report.findings[0]);
                    let got = memory.read(&output);
                    for (at, c) in places.iter().flat_map(|p| (0..CHANNELS).map(move |c| (*p, c))) {
                        let want = element(c, at);
                        if want > 0 {
                            let i = 2 * (want as usize - 1);
                            assert_eq!(u16::from_le_bytes([got[i], got[i + 1]]), want, "{at:?}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_map_of_the_other_mode_is_refused() {
    let mut memory = GlobalMemory::new();
    let input = memory.alloc_from("in", &[0; 8192]);
    let tiled = map(memory.address(&input), [0, 0], [0, 0], 1).tensor.encode().unwrap();
    let args = vec![Arg::TensorMap(tiled), Arg::TensorMap(tiled), Arg::Pointer(memory.address(&input))];
    let text = kernel([0, 0, 0, 0], [0, 0], false);
    let report = run(&parse(&text), &launch(1, 1, args), &memory, &Options::default());
    assert!(report.findings.iter().any(|f| f.message.contains("is tiled")), "{:#?}", report.findings);
    assert!(map(4096, [0, 0], [0, 200], 1).encode().is_err());
}

#[test]
fn the_wide_modes_decode_and_say_when_they_run_that_they_are_not_modelled() {
    for mode in ["im2col::w", "im2col::w::128"] {
        let text = kernel([0, 0, 0, 0], [0, 0], false).replace("global.im2col.", &format!("global.{mode}."));
        assert!(text.contains(mode));
        let mut memory = GlobalMemory::new();
        let input = memory.alloc_from("in", &[0; 8192]);
        let encoded = map(memory.address(&input), [0, 0], [0, 0], 1).encode().unwrap();
        let pointer = Arg::Pointer(memory.address(&input));
        let args = vec![Arg::TensorMap(encoded), Arg::TensorMap(encoded), pointer];
        let report = run(&parse(&text), &launch(1, 1, args), &memory, &Options::default());
        let found = &report.findings[0];
        assert_eq!(found.kind, FindingKind::Unsupported, "{found}");
        assert!(found.message.contains("im2col::w") && found.text.contains(mode), "{found}");
        // Two offsets, whatever the rank.
        let three = text.replace("{%h0, %h1};", "{%h0, %h1, %h0};");
        let error = silumin_emulator::Module::parse("three.ptx", &three).unwrap_err().to_string();
        assert!(error.contains("takes a vector of 2 offsets"), "{error}");
    }
}
