import signal
import threading
import time

import kernels
import numpy as np
import pytest
import silumin


def scale(**launch):
    return silumin.Launch(**{"grid": 2, "block": 64, **launch})


def test_arrays_are_written_back():
    source = np.arange(100, dtype=np.float32)
    target = np.full(100, -1, np.float32)
    report = silumin.emulate(kernels.SCALE, scale(args=[source, target, 2.5, 100]))
    assert report.ok and not report.warnings and not report.stopped, str(report)
    np.testing.assert_array_equal(target, source * np.float32(2.5))
    assert report.stats.global_read == 400 and report.stats.global_written == 400
    assert report.stats.instructions > 0 and "no finding" in str(report)


def test_arguments_may_be_a_list_a_dict_of_names_or_a_mapping():
    source, expected = np.ones(8, np.float32), np.full(8, 3, np.float32)
    for launch, arrays in [
        (scale(), [source, (t1 := np.zeros(8, np.float32)), 3.0, np.uint32(8)]),
        (scale(args=["x", "y", np.float32(3), 8]), {"x": source, "y": (t2 := np.zeros(8, np.float32))}),
        ({"grid": [1, 1], "block": (32,), "args": [source, (t3 := np.zeros(8, np.float32)), 3, 8]}, None),
    ]:
        if launch == {} or isinstance(launch, dict):
            launch["args"][2] = 3.0
        assert silumin.emulate(kernels.SCALE, launch, arrays).ok
    for target in (t1, t2, t3):
        np.testing.assert_array_equal(target, expected)


def test_values_off_leaves_arrays_as_they_are():
    target = np.zeros(4, np.float32)
    target.flags.writeable = False
    report = silumin.emulate(kernels.SCALE, scale(args=[np.ones(4, np.float32), target, 1.0, 4]), values=False)
    assert report.ok and not target.any()


def test_a_missing_barrier_is_a_race_with_its_line():
    data = np.arange(64, dtype=np.int32)
    ptx = kernels.reverse(barrier=True)
    assert silumin.emulate(ptx, silumin.Launch(1), [data]).ok
    np.testing.assert_array_equal(data, np.arange(64)[::-1])

    ptx = kernels.reverse(barrier=False)
    report = silumin.emulate(ptx, silumin.Launch(1), [data])
    assert not report.ok
    race = next(f for f in report.findings if f.rule == "RaceShared")
    lines = {kernels.line_of(ptx, "st.shared"), kernels.line_of(ptx, "ld.shared")}
    assert race.line in lines and race.text == ptx.splitlines()[race.line - 1].strip()
    assert f"line {race.line}" in str(race) and str(race) in str(report)


def test_races_are_found_in_every_schedule_and_not_without_tracking():
    ptx = kernels.reverse(barrier=False)
    for schedule in ("early", "late", 3, "random 3", "starve 0", "delay 1 7"):
        report = silumin.emulate(ptx, silumin.Launch(1), [np.arange(64, dtype=np.int32)], schedule=schedule)
        assert "RaceShared" in [f.rule for f in report.findings], schedule
    for wrong in ("soon", "early 1", "starve", "random x", 2.5, True, -1):
        with pytest.raises(silumin.ArgumentError, match="schedule"):
            silumin.emulate(ptx, silumin.Launch(1), [np.zeros(64, np.int32)], schedule=wrong)


def test_an_access_out_of_bounds_names_the_array():
    report = silumin.emulate(kernels.SCALE, scale(args=["x", "y", 1.0, 20]), {"x": np.ones(20, np.float32), "y": np.zeros(16, np.float32)})
    assert not report.ok and report.stopped
    assert report.findings[0].rule == "OutOfBounds" and "`y`" in report.findings[0].message
    assert report.findings[0].line == kernels.line_of(kernels.SCALE, "st.global")


def test_outputs_and_buffers_hold_nothing_before():
    out = np.full(8, 9, np.float32)
    report = silumin.emulate(kernels.SCALE, scale(args=[np.ones(8, np.float32), silumin.Output(out), 2.0, 6]))
    assert report.ok and report.unwritten == {"args[1]": 8}
    assert out.tolist() == [2] * 6 + [0] * 2
    report = silumin.emulate(kernels.SCALE, scale(args=[silumin.Buffer(32), out, 2.0, 8]))
    assert report.findings[0].rule == "UninitialisedGlobal"
    assert silumin.emulate(kernels.SCALE, scale(args=[silumin.Buffer(32, fill=0), out, 2.0, 8])).ok
    assert not out.any()


def test_pointers_go_into_arrays_and_one_array_is_one_buffer():
    data = np.arange(8, dtype=np.float32)
    report = silumin.emulate(kernels.SCALE, scale(args=[data, silumin.Pointer(data, 16), 10.0, 4]))
    assert report.ok, str(report)
    assert data.tolist() == [0, 1, 2, 3, 0, 10, 20, 30]
    with pytest.raises(silumin.ArgumentError, match=r"args\[1\].*overlaps that of args\[0\].*Pointer"):
        silumin.emulate(kernels.SCALE, scale(args=[data, data[4:], 10.0, 4]))
    with pytest.raises(silumin.LaunchError, match=r"args\[0\]: offset = 33 is beyond the 32 bytes"):
        silumin.emulate(kernels.SCALE, scale(args=[silumin.Pointer(data, 33), data, 10.0, 4]))


def test_a_tensor_map_is_made_of_an_array():
    source = np.arange(32 * 16, dtype=np.int32).reshape(16, 32)
    target = np.zeros((8, 16), np.int32)
    launch = silumin.Launch(1, args=[silumin.TensorMap(source, box=[16, 8]), target])
    report = silumin.emulate(kernels.BOX, launch)
    assert report.ok, str(report)
    np.testing.assert_array_equal(target, source[4:12, 8:24])
    assert report.stats.tma_read == 512
    for change, says in [
        ({"box": [16, 512]}, "256"),
        ({"box": None}, "box: it is missing"),
        ({"swizzle": "128"}, "`128` is not known; it is one of none, 32b"),
        ({"data_type": "int"}, "`int` is not known; it is one of u8"),
        ({"strides": [12]}, "16"),
        ({"offset": 2049}, "beyond the 2048 bytes"),
        ({"pixels": 4}, "all four"),
    ]:
        arguments = {"box": [16, 8], **change}
        with pytest.raises(silumin.Error, match=says) as caught:
            silumin.emulate(kernels.BOX, silumin.Launch(1, args=[silumin.TensorMap(source, **arguments), target]))
        assert "args[0]" in str(caught.value)


def test_a_struct_is_passed_by_value():
    out = np.zeros(1, np.uint32)
    fields = {0: out, 8: np.uint32(77)}
    assert silumin.emulate(kernels.BY_VALUE, silumin.Launch(1), [silumin.Struct(16, fields)]).ok
    assert out[0] == 77
    for struct, says in [
        (silumin.Struct(16, {0: out, 4: np.uint32(1)}), "overlap"),
        (silumin.Struct(8, {0: out, 8: np.uint32(1)}), "do not fit"),
        (silumin.Struct(16, {0: out, 8: 7}), "np.int32"),
        (silumin.Struct(24, {0: out}), "24 bytes, and the parameter `args` of `by_value` has 16"),
    ]:
        with pytest.raises(silumin.LaunchError, match=says):
            silumin.emulate(kernels.BY_VALUE, silumin.Launch(1), [struct])


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], r"has 4 parameters, and 0 arguments were given; it takes: source \(8 bytes\)"),
        (["x", "x", 1.0], "has 4 parameters, and 3"),
        (["x", "x", 1.0, 4, None], "has 4 parameters, and 5"),
        (["x", "x", 1.0, "x"], r"args\[3\] \(`x`\): 8 bytes, and the parameter `count` of `scale` has 4"),
        (["x", "x", np.float64(1), 4], r"args\[2\]: 8 bytes.*`factor`"),
        (["x", "x", 1.0, 2**32], r"args\[3\]: 4294967296 is not between"),
        (["x", "x", 1e300, 4], r"args\[2\]: 1e300 is beyond f32"),
        (["x", "z", 1.0, 4], r"args\[1\]: there is no array `z` in arrays; there are: x"),
        (["x", [1.0], 1.0, 4], r"args\[1\]: a list; give a numpy array"),
        (["x", object(), 1.0, 4], r"args\[1\]: an object; give a numpy array"),
    ],
)
def test_wrong_arguments(args, says):
    with pytest.raises(silumin.Error, match=says):
        silumin.emulate(kernels.SCALE, scale(args=args), {"x": np.ones(4, np.float32)})


def test_wrong_arrays():
    good = np.ones((4, 4), np.float32)
    frozen = good.copy()
    frozen.flags.writeable = False
    for bad, says in [
        (frozen, "read-only.*copy"),
        (good[:, ::2], "ascontiguousarray"),
        (good.T[:, :2], "ascontiguousarray"),
        (np.array([object()]), "Python objects"),
        (good.astype(">f4"), "big-endian"),
    ]:
        with pytest.raises(silumin.ArgumentError, match=r"args\[0\].*" + says):
            silumin.emulate(kernels.SCALE, scale(args=[bad, good, 1.0, 4]))


@pytest.mark.parametrize(
    ("launch", "says"),
    [
        ({}, "`grid` is missing"),
        ({"grid": 1, "blok": 3}, "no field `blok`; the fields are grid, block"),
        ({"grid": 0, "block": 1}, "grid"),
        ({"grid": 1, "block": 2000}, "block.*1024"),
        ({"grid": 1, "block": 32, "cluster": 2}, "cluster.*not a multiple"),
        ({"grid": 1, "block": 32, "shared": 300_000}, "shared.*232448"),
        ({"grid": 1, "block": 32, "shared": -1}, "shared = -1"),
        ({"grid": 1}, "block: `scale` has no .reqntid"),
        ({"grid": [1, 1, 1, 1], "block": 32}, "one to three sizes"),
        ({"grid": "1", "block": 32}, "grid = '1'"),
        ({"grid": 1, "block": 32, "entry": "scales"}, "no kernel `scales` in kernel.ptx; it has: scale"),
        (7, "give a silumin.Launch"),
        (None, "launch: it is missing"),
    ],
)
def test_wrong_launches(launch, says):
    x = np.ones(4, np.float32)
    with pytest.raises(silumin.Error, match=says):
        silumin.emulate(kernels.SCALE, launch, [x, x, 1.0, 4] if launch is not None else None)


def test_wrong_ptx(tmp_path):
    with pytest.raises(silumin.PtxError, match=r"kernel.ptx:\d+: .*frobnicate"):
        silumin.emulate(kernels.SCALE.replace("mul.f32", "frobnicate.f32"), scale(args=[]))
    with pytest.raises(silumin.PtxError):
        silumin.emulate("\x00 nothing", scale(args=[]))
    with pytest.raises(silumin.PtxError, match="no .entry"):
        silumin.emulate(kernels.HEAD, scale(args=[]))
    file = tmp_path / "k.ptx"
    file.write_text(kernels.SCALE)
    with pytest.raises(silumin.ArgumentError, match="it is a path.*read_text"):
        silumin.emulate(str(file), scale(args=[]))
    with pytest.raises(silumin.ArgumentError, match="ptx: an int"):
        silumin.emulate(7, scale(args=[]))
    wrong = silumin.check(kernels.SCALE.replace("mul.f32", "frobnicate.f32"))
    assert [p.line for p in wrong] == [kernels.line_of(kernels.SCALE, "mul.f32")]
    assert silumin.check(kernels.SCALE) == []


def test_wrong_options():
    x = np.ones(4, np.float32)
    for options, says in [
        ({"tracking": "loud"}, "tracking: `loud` is not known; it is one of off, on, strict"),
        ({"reconvergence": "never"}, "reconvergence"),
        ({"threads": 5000}, "threads = 5000: at most 1024"),
        ({"threads": -1}, "threads = -1"),
        ({"time_limit": 0}, "time_limit = 0"),
        ({"time_limit": float("nan")}, "time_limit"),
        ({"time_limit": "1"}, "time_limit = '1'"),
        ({"instruction_limit": 0}, "instruction_limit"),
        ({"max_findings": 0}, "max_findings"),
        ({"arch": "hopper"}, "arch = 'hopper'"),
    ]:
        with pytest.raises(silumin.ArgumentError, match=says):
            silumin.emulate(kernels.SCALE, scale(args=[x, x, 1.0, 4]), **options)


def test_arch_is_the_chip_that_the_kernel_runs_on():
    x = np.ones(4, np.float32)
    launch = scale(args=[x, x, 1.0, 4], shared=200_000)
    assert silumin.emulate(kernels.SCALE, launch).ok
    with pytest.raises(silumin.LaunchError, match="shared.*sm_120a has at most 101376"):
        silumin.emulate(kernels.SCALE, launch, arch="sm_120a")


def test_limits_end_a_run():
    report = silumin.emulate(kernels.SPIN, silumin.Launch(1, 32), time_limit=0.2)
    assert [f.rule for f in report.findings] == ["TimeLimit"] and report.stopped
    report = silumin.emulate(kernels.SPIN, silumin.Launch(1, 32), instruction_limit=1000)
    assert [f.rule for f in report.findings] == ["InstructionLimit"]


def test_ctrl_c_ends_a_run():
    for run in (
        lambda: silumin.emulate(kernels.SPIN, silumin.Launch(1, 32), time_limit=60, instruction_limit=10**15),
        lambda: silumin.predict(kernels.SPIN, silumin.Launch(1, 32), time_limit=60, instruction_limit=10**15, issue="table"),
    ):
        timer = threading.Timer(0.3, lambda: signal.raise_signal(signal.SIGINT))
        start = time.monotonic()
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            run()
        assert time.monotonic() - start < 30


def test_other_threads_run_beside_an_emulation():
    count, stop = 0, threading.Event()

    def work():
        nonlocal count
        while not stop.is_set():
            count += 1
            time.sleep(0.001)

    thread = threading.Thread(target=work)
    thread.start()
    silumin.emulate(kernels.SPIN, silumin.Launch(1, 32), time_limit=0.5)
    stop.set()
    thread.join()
    assert count > 20


def test_entries_say_what_kernels_take():
    (entry,) = silumin.entries(kernels.reverse(True))
    assert (entry.name, entry.block, entry.cluster) == ("reverse", (64, 1, 1), None)
    assert [(p.name, p.nbytes) for p in entry.parameters] == [("data", 8)]


def test_a_launch_file_runs(tmp_path):
    (tmp_path / "k.ptx").write_text(kernels.SCALE)
    np.arange(8, dtype=np.float32).tofile(tmp_path / "x.bin")
    file = tmp_path / "k.toml"
    file.write_text(
        'ptx = "k.ptx"\nkernel = "scale"\ngrid = [1, 1, 1]\nblock = [32, 1, 1]\n[buffers.x]\nfile = "x.bin"\n'
        '[buffers.y]\nbytes = 32\n[[params]]\npointer = "x"\n[[params]]\npointer = "y"\n[[params]]\nf32 = 2.0\n[[params]]\nu32 = 8\n'
    )
    report = silumin.emulate_file(file)
    assert report.ok
    assert np.frombuffer(report.buffers["y"], np.float32).tolist() == [2.0 * i for i in range(8)]
    file.write_text(file.read_text().replace("u32 = 8", "u33 = 8"))
    with pytest.raises(silumin.LaunchError, match=r"k.toml:\d+:\d+: .*u33"):
        silumin.emulate_file(str(file))
    with pytest.raises(silumin.LaunchError, match="none.toml"):
        silumin.emulate_file(tmp_path / "none.toml")


class Tensor:
    """What a CPU tensor of torch looks like, in bfloat16."""

    def __init__(self, array, device="cpu"):
        self.array, self.dtype, self.shape = array, "torch.bfloat16", array.shape
        self.device = type("device", (), {"type": device})()

    def data_ptr(self):
        return self.array.ctypes.data

    def element_size(self):
        return self.array.itemsize

    def numel(self):
        return self.array.size

    def stride(self):
        return [s // self.array.itemsize for s in self.array.strides]

    def is_contiguous(self):
        return self.array.flags.c_contiguous


def test_cpu_tensors_are_arrays():
    data = np.arange(64, dtype=np.int32)
    assert silumin.emulate(kernels.reverse(True), silumin.Launch(1), [Tensor(data)]).ok
    assert data[0] == 63
    with pytest.raises(silumin.ArgumentError, match=r"a tensor on cuda.*cpu\(\)"):
        silumin.emulate(kernels.reverse(True), silumin.Launch(1), [Tensor(data, "cuda")])
