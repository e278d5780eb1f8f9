//! Launching through the CUDA back end, here on the emulated driver: what it allocates, in which order streams have buffers,
//! and several devices in one process.

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use silumin::codegen::problem::Formats;
use silumin::verify::inputs::DualGemmInputs;
use silumin::verify::vectors::GateVectors;
use silumin::{
    Arch, Args, Buckets, Device, DeviceError, DeviceOperands, Distribution, DualGemm, LaunchError,
    LoadedKernel, Shape, Spec, Warmup,
};
use silumin_testkit::allocations::allocations;
use silumin_testkit::driver::{role, run};

const SHAPE: Shape = Shape::new(40, 64, 512);

fn gemm(gate: &str, knobs: &[(&str, &str)]) -> DualGemm {
    let mut spec = Spec::new(gate.parse().unwrap(), &[Arch::Sm100a]).unwrap();
    for (name, value) in knobs {
        spec.config.set(name, value).unwrap();
    }
    DualGemm::new(spec)
}

const SWIGLU: &str = "silu(A @ B1) * (A @ B2)";

fn operands(device: &Device, shape: Shape, seed: u64) -> DeviceOperands {
    let inputs =
        DualGemmInputs::generate_for(shape, Formats::default(), Distribution::Benchmark, seed).unwrap();
    DeviceOperands::upload(device, &inputs).unwrap()
}

/// What a kernel makes of these operands, on the default stream.
fn result(kernel: &LoadedKernel, operands: &DeviceOperands) -> Vec<u8> {
    kernel.launch(&kernel.device().stream(), &operands.args(&[])).unwrap();
    operands.c.download().unwrap()
}

#[test]
fn a_launch_allocates_nothing_once_its_buffers_are_known() {
    const NAME: &str = "a_launch_allocates_nothing_once_its_buffers_are_known";
    if role().is_none() {
        run(module_path!(), NAME, "child", &[]);
        return;
    }
    let device = Device::cuda(0).unwrap();
    assert_eq!(allocations(|| drop(vec![1u8])), 1, "allocations are counted");
    // Plain, with a workspace, with three launches, with scalars and vectors.
    for (gate, knobs, scalars) in [
        (SWIGLU, &[][..], &[][..]),
        (SWIGLU, &[("schedule", "split_k(2)"), ("cta_group", "1")], &[]),
        (SWIGLU, &[("strategy", "two_pass"), ("store", "tma")], &[]),
        ("silu(alpha * (A @ B1) + b[n]) * (A @ B2)", &[("pdl", "on")], &[("alpha", 0.5f32)]),
    ] {
        let gemm = gemm(gate, knobs);
        let warmup = Warmup::of(&gemm).weights(SHAPE.n, SHAPE.k).buckets(Buckets::new([8, 40]).unwrap());
        let kernels = warmup.run(&device).unwrap();
        let sets = [operands(&device, SHAPE, 1), operands(&device, SHAPE, 2)];
        let vectors = silumin::runtime::gemm::upload_vectors(
            &GateVectors::draw(&gemm.spec().gate.expr.vectors(), &gemm.spec().problem(SHAPE), 1),
            &device,
        )
        .unwrap();
        let vectors: Vec<_> = vectors.iter().map(|(name, buffer)| (name.as_str(), buffer)).collect();
        let streams = [device.stream(), device.new_stream().unwrap(), device.new_stream().unwrap()];
        let launch = |stream: usize, set: usize| {
            let args = Args { vectors: &vectors, ..sets[set].args(scalars) };
            kernels.for_problem(33, SHAPE.n, SHAPE.k).unwrap().launch(&streams[stream], &args).unwrap();
        };
        // The third launch with the same arguments has its graph made, and the first one of a graph looks the driver's function up.
        for stream in [0, 1, 2].repeat(4) {
            (0..2).for_each(|set| launch(stream, set));
        }
        // Streams by turns on the same buffers, too: order costs no allocation.
        let count = allocations(|| {
            for step in 0..12 {
                launch(step % 3, step / 3 % 2);
            }
        });
        assert_eq!(count, 0, "{gate} {knobs:?}");
        // Into a graph as well.
        let cuda = streams[1].cuda().unwrap();
        cuda.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
        let count = allocations(|| (0..2).for_each(|set| launch(1, set)));
        let graph = cuda.end_capture(CUgraphInstantiate_flags(0)).unwrap();
        assert_eq!((count, graph.is_some()), (0, true));
    }
}

#[test]
fn buffers_are_used_in_the_order_of_the_calls() {
    const NAME: &str = "buffers_are_used_in_the_order_of_the_calls";
    if role().is_none() {
        run(module_path!(), NAME, "child", &[]);
        return;
    }
    let device = Device::cuda(0).unwrap();
    let kernel = gemm(SWIGLU, &[]).load(&device, SHAPE).unwrap();
    let sets = [operands(&device, SHAPE, 1), operands(&device, SHAPE, 2)];
    let expected = [result(&kernel, &sets[0]), result(&kernel, &sets[1])];
    assert_ne!(expected[0], expected[1]);
    let streams: Vec<_> = (0..5).map(|_| device.new_stream().unwrap()).collect();
    let c = device.alloc(expected[0].len()).unwrap();
    for step in 0..20 {
        let (set, stream) = (step % 3 % 2, step * 7 % 5);
        if step % 4 == 0 {
            c.write(&vec![0xFF; expected[0].len()]).unwrap();
        }
        for set in [1 - set, set] {
            kernel.launch(&streams[(stream + set) % 5], &Args { c: &c, ..sets[set].args(&[]) }).unwrap();
        }
        assert_eq!(c.download().unwrap(), expected[set], "step {step}");
    }
    // What cudarc has made is taken over with what it knows of it.
    let context = device.stream().cuda().unwrap().context().clone();
    let theirs = context.new_stream().unwrap().clone_htod(&expected[0]).unwrap();
    let adopted = device.adopt(theirs).unwrap();
    assert_eq!(adopted.download().unwrap(), expected[0]);
    kernel.launch(&streams[0], &Args { c: &adopted, ..sets[1].args(&[]) }).unwrap();
    assert_eq!(adopted.download().unwrap(), expected[1]);
}

#[test]
fn streams_come_and_go() {
    const NAME: &str = "streams_come_and_go";
    if role().is_none() {
        run(module_path!(), NAME, "child", &[]);
        return;
    }
    let device = Device::cuda(0).unwrap();
    let kernel = gemm(SWIGLU, &[]).load(&device, SHAPE).unwrap();
    let set = operands(&device, SHAPE, 1);
    let expected = result(&kernel, &set);
    for _ in 0..150 {
        let stream = device.new_stream().unwrap();
        // The same stream of cudarc's is the same stream.
        assert_eq!(device.stream_of(stream.cuda().unwrap().clone()).unwrap(), stream);
        kernel.launch(&stream, &set.args(&[])).unwrap();
    }
    assert_eq!(set.c.download().unwrap(), expected);
    let held: Vec<_> = (0..200).map_while(|_| device.new_stream().ok()).collect();
    assert_eq!(held.len(), 63);
    let error = device.new_stream().unwrap_err();
    assert!(matches!(error, DeviceError::TooManyStreams { limit: 64 }), "{error}");
    drop(held);
    device.new_stream().unwrap();
}

#[test]
fn two_devices_in_one_process_share_nothing() {
    const NAME: &str = "two_devices_in_one_process_share_nothing";
    if role().is_none() {
        run(module_path!(), NAME, "child", &[("SILUMIN_EMULATED_DEVICES", "2")]);
        return;
    }
    let devices = [Device::cuda(0).unwrap(), Device::cuda(1).unwrap()];
    assert_ne!(devices[0], devices[1]);
    assert!(matches!(Device::cuda(2), Err(DeviceError::NoDevice { ordinal: 2, devices: 2 })));
    let gemm = gemm(SWIGLU, &[("schedule", "split_k(2)"), ("cta_group", "1")]);
    let kernels = devices.each_ref().map(|device| gemm.load(device, SHAPE).unwrap());
    let sets = devices.each_ref().map(|device| operands(device, SHAPE, 5));
    let expected = result(&kernels[0], &sets[0]);
    // Threads that go from one device to the other.
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (kernels, devices, expected) = (&kernels, &devices, &expected);
            scope.spawn(move || {
                let own = devices
                    .each_ref()
                    .map(|device| (operands(device, SHAPE, 5), device.new_stream().unwrap()));
                for step in 0..4 {
                    let which = (thread + step) % 2;
                    let (set, stream) = &own[which];
                    kernels[which].launch(stream, &set.args(&[])).unwrap();
                    assert_eq!(set.c.download().unwrap(), *expected);
                }
            });
        }
    });
    let error = kernels[0].launch(&devices[0].stream(), &sets[1].args(&[])).unwrap_err();
    assert!(matches!(error, LaunchError::OperandDevice { .. }), "{error}");
    let error = kernels[0].launch(&devices[1].stream(), &sets[0].args(&[])).unwrap_err();
    assert!(matches!(error, LaunchError::StreamDevice { .. }), "{error}");
    let stream = devices[1].stream().cuda().unwrap().clone();
    assert!(matches!(devices[0].stream_of(stream), Err(DeviceError::Foreign { .. })));
}

/// Kernels of many kinds with fewer rows than they compute: those that are there come out as they do with all of them.
fn fewer_rows(device: &Device) {
    let formats = |text: &str| -> Formats {
        let [a, b, c] = <[&str; 3]>::try_from(text.split(' ').collect::<Vec<_>>()).unwrap();
        Formats { a: a.parse().unwrap(), b: b.parse().unwrap(), c: c.parse().unwrap(), preactivations: None }
    };
    let kinds: &[(&str, &[(&str, &str)])] = match device.arch() {
        Arch::Sm90a => &[
            ("bf16 bf16 bf16", &[]),
            (
                "bf16 bf16 bf16",
                &[("schedule", "persistent"), ("consumers", "ping_pong"), ("tile", "[64, 64, 64]")],
            ),
            ("bf16 bf16 f32", &[("schedule", "split_k(2)"), ("store", "direct")]),
            ("bf16 nvfp4 bf16", &[]),
            ("bf16 nvfp4 bf16", &[("accumulators", "interleaved_rows")]),
            ("e4m3 e4m3 bf16", &[("swap_ab", "off")]),
        ],
        _ => &[
            ("nvfp4 nvfp4 f16", &[]),
            ("nvfp4 nvfp4 f16", &[("swap_ab", "off"), ("store", "tma")]),
            ("bf16 bf16 bf16", &[("strategy", "two_pass")]),
            ("nvfp4 nvfp4 nvfp4", &[("swap_ab", "off"), ("schedule", "persistent")]),
        ],
    };
    for (names, knobs) in kinds {
        let mut spec = Spec::new(SWIGLU.parse().unwrap(), &[device.arch()]).unwrap();
        spec.formats = formats(names);
        for (name, value) in *knobs {
            spec.config.set(name, value).unwrap();
        }
        let kernel = DualGemm::new(spec).load(device, SHAPE).unwrap();
        let inputs = DualGemmInputs::generate_for(
            SHAPE,
            kernel.dual_gemm().spec().formats,
            Distribution::Benchmark,
            3,
        );
        let mut operands = DeviceOperands::upload(device, &inputs.unwrap()).unwrap();
        operands.c_scale = operands.sfc.as_ref().map(|_| 1.0);
        let expected = result(&kernel, &operands);
        let all = operands.a.download().unwrap();
        let [a_row, c_row] = [&operands.a, &operands.c].map(|buffer| buffer.len() / SHAPE.m as usize);
        for rows in [1, 17, SHAPE.m - 1, SHAPE.m] {
            let what = format!("{rows} rows, {names} {knobs:?} on {}", device.arch());
            // As long as its rows: what is read behind them is found.
            let a = device.upload(&all[..rows as usize * a_row]).unwrap();
            operands.c.write(&vec![0xFF; operands.c.len()]).unwrap();
            let args = Args { a: &a, ..operands.args(&[]) }.rows(rows);
            kernel.launch(&device.stream(), &args).unwrap_or_else(|error| panic!("{what}: {error}"));
            let there = rows as usize * c_row;
            assert!(operands.c.download().unwrap()[..there] == expected[..there], "{what}");
            // The same buffer with its maps known, and one row less by the same address.
            if rows > 1 {
                let fewer = a.slice(0, (rows as usize - 1) * a_row).unwrap();
                let args = Args { a: &fewer, ..operands.args(&[]) }.rows(rows - 1);
                kernel.launch(&device.stream(), &args).unwrap();
                let there = there - c_row;
                assert!(operands.c.download().unwrap()[..there] == expected[..there], "one less than {what}");
            }
            let wrong = kernel.launch(&device.stream(), &Args { a: &a, ..operands.args(&[]) }.rows(rows + 1));
            let error = wrong.unwrap_err();
            let named = if rows == SHAPE.m { "1 to M" } else { "bytes" };
            assert!(error.to_string().contains(named), "{error}");
        }
        let error = kernel.launch(&device.stream(), &operands.args(&[]).rows(0)).unwrap_err();
        assert!(matches!(error, LaunchError::Rows { rows: 0, .. }), "{error}");
    }
}

#[test]
fn fewer_rows_come_out_as_they_do_with_the_others() {
    const NAME: &str = "fewer_rows_come_out_as_they_do_with_the_others";
    match role() {
        None => {
            for arch in [Arch::Sm90a, Arch::Sm100a] {
                fewer_rows(&Device::emulated(arch));
                run(module_path!(), NAME, "child", &[("SILUMIN_EMULATED_CHIP", arch.target())]);
            }
        }
        Some(_) => fewer_rows(&Device::cuda(0).unwrap()),
    }
    let device = Device::emulated(Arch::Sm100a);
    let shape = Shape::new(8, 64, 64).batch(2);
    let kernel = gemm(SWIGLU, &[]).load(&device, shape).unwrap();
    let batch = operands(&device, shape, 1);
    let error = kernel.launch(&device.stream(), &batch.args(&[]).rows(4)).unwrap_err();
    assert!(error.to_string().contains("one matrix"), "{error}");
}

#[test]
fn memory_of_others_is_used_where_it_is_and_not_freed() {
    const NAME: &str = "memory_of_others_is_used_where_it_is_and_not_freed";
    if role().is_none() {
        run(module_path!(), NAME, "child", &[]);
        return;
    }
    use cudarc::driver::{DevicePtr, DevicePtrMut};
    let device = Device::cuda(0).unwrap();
    let kernel = gemm(SWIGLU, &[]).load(&device, SHAPE).unwrap();
    let set = operands(&device, SHAPE, 1);
    let expected = result(&kernel, &set);
    let context = device.stream().cuda().unwrap().context().clone();
    // A stream of cudarc's and the one that each thread has of its own, as candle's devices use it.
    for theirs in [context.new_stream().unwrap(), context.per_thread_stream()] {
        let stream = device.stream_of(theirs.clone()).unwrap();
        let a = theirs.clone_htod(&set.a.download().unwrap()).unwrap();
        let mut c = theirs.alloc_zeros::<u8>(expected.len()).unwrap();
        {
            let (from, _reading) = a.device_ptr(&theirs);
            let (to, _writing) = c.device_ptr_mut(&theirs);
            // SAFETY: both slices live longer than the buffers and the work.
            let (a, c) = unsafe {
                (stream.lend(from, set.a.len()).unwrap(), stream.lend(to, expected.len()).unwrap())
            };
            assert_eq!((a.cuda_address(), a.len()), (Some(from), set.a.len()));
            kernel.launch(&stream, &Args { a: &a, c: &c, ..set.args(&[]) }).unwrap();
            assert_eq!(c.download().unwrap(), expected);
        }
        // It is there when our handles are gone.
        assert_eq!(theirs.clone_dtoh(&c).unwrap(), expected);
        assert_eq!(theirs.clone_dtoh(&a).unwrap(), set.a.download().unwrap());
    }
    // SAFETY: nothing is lent.
    assert!(matches!(unsafe { device.stream().lend(0x1000, 0) }, Err(DeviceError::Empty)));
    let emulated = Device::emulated(Arch::Sm100a).stream();
    // SAFETY: nothing is lent.
    assert!(matches!(unsafe { emulated.lend(0x1000, 8) }, Err(DeviceError::Foreign { .. })));
    // Each thread has a workspace of its own for streams under one handle.
    let split = gemm(SWIGLU, &[("schedule", "split_k(2)"), ("cta_group", "1")]).load(&device, SHAPE).unwrap();
    let right = result(&split, &set);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let (device, split, right, context) = (&device, &split, &right, &context);
            scope.spawn(move || {
                let own = operands(device, SHAPE, 1);
                let stream = device.stream_of(context.per_thread_stream()).unwrap();
                for _ in 0..3 {
                    split.launch(&stream, &own.args(&[])).unwrap();
                    assert_eq!(own.c.download().unwrap(), *right);
                }
            });
        }
    });
}
