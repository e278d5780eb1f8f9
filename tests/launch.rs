//! Launching through the CUDA back end, here on the emulated driver: what it allocates, in which order streams have buffers,
//! and several devices in one process.

#[path = "common/allocations.rs"]
mod allocations;
#[path = "common/driver.rs"]
mod driver;

use allocations::allocations;
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use driver::{role, run};
use silumin::codegen::problem::Formats;
use silumin::runtime::inputs::DualGemmInputs;
use silumin::{
    Arch, Args, Buckets, Device, DeviceError, DeviceOperands, Distribution, DualGemm, GateVectors,
    LaunchError, LoadedKernel, Shape, Spec, Warmup,
};

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
        run(NAME, "child", &[]);
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
        let vectors = GateVectors::draw(&gemm.spec().gate.expr.vectors(), SHAPE, 1).upload(&device).unwrap();
        let vectors: Vec<_> = vectors.iter().map(|(name, buffer)| (name.as_str(), buffer)).collect();
        let streams = [device.stream(), device.new_stream().unwrap(), device.new_stream().unwrap()];
        let launch = |stream: usize, set: usize| {
            let args = Args { vectors: &vectors, ..sets[set].args(scalars) };
            kernels.for_problem(33, SHAPE.n, SHAPE.k).unwrap().launch(&streams[stream], &args).unwrap();
        };
        for stream in 0..3 {
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
        run(NAME, "child", &[]);
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
        run(NAME, "child", &[]);
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
        run(NAME, "child", &[("SILUMIN_EMULATED_DEVICES", "2")]);
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
