import kernels
import numpy as np
import pytest
import silumin


def args(count=1 << 16):
    return [silumin.Buffer(4 * count), silumin.Buffer(4 * count), 2.0, count]


def launch(count=1 << 16, **more):
    return silumin.Launch(count // 128, 128, args=args(count), **more)


def test_a_predicted_time_has_a_range_and_a_cause():
    p = silumin.predict(kernels.SCALE, launch(), chip="h200", issue="table")
    assert 0 < p.low <= p.us <= p.high
    assert p.bound_by == next(iter(p.breakdown)) and abs(sum(p.breakdown.values()) - p.us) < 1e-6
    assert "H200" in p.chip and p.clock_mhz == 1980 and p.issue == "table"
    assert str(p).startswith("predicted on NVIDIA H200") and "critical path" in str(p)
    assert 0 < p.use["DRAM"] <= 1 if "DRAM" in p.use else p.use


def test_time_follows_size_clock_and_chip():
    time = lambda n, **more: silumin.predict(kernels.SCALE, launch(n), issue="table", range=False, **more)
    small, large = time(1 << 14), time(1 << 20)
    assert large.us > 2 * small.us and small.low == small.us == small.high
    assert "H200" in small.chip
    assert time(1 << 14, clock=1000).us > small.us and time(1 << 14, clock="sustained").us > 0
    assert time(1 << 20, what_if={"dram_rate": "*0.5"}).us > large.us
    assert time(1 << 20, warm=True).us < large.us


def test_arrays_are_read_and_not_written():
    x = np.ones(1024, np.float32)
    x.flags.writeable = False
    y = np.zeros(1024, np.float32)
    p = silumin.predict(kernels.SCALE, silumin.Launch(8, 128), [x, y, 2.0, 1024], issue="table", range=False, values=True)
    assert p.us > 0 and not y.any()


def test_a_kernel_of_emit_needs_no_launch():
    kernel = silumin.emit("silu(A @ B1) * (A @ B2)", 256, 4096, 7168)
    p = silumin.predict(kernel, issue="table", range=False)
    assert 5 < p.us < 100 and "B200" in p.chip
    grouped = silumin.emit("silu(A @ B1) * (A @ B2)", 256, 256, 256, groups=4)
    assert silumin.predict(grouped, issue="table", range=False).us > 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"chip": "a100"}, "a100"),
        ({"chip": "b200"}, "sm_90a"),
        ({"chip": 7}, "chip = 7"),
        ({"clock": "fast"}, "`fast` is not a clock"),
        ({"clock": -3}, "`-3` is not a clock"),
        ({"issue": "guess"}, "issue: `guess` is not known; it is one of auto, sass, table"),
        ({"what_if": {"no_such": 1}}, "what_if: no_such=1"),
        ({"what_if": "dram_rate=*2"}, "it is a dict"),
        ({"instruction_limit": 10}, "raise the limit"),
        ({"memory_limit": 1}, "memory_limit"),
    ],
)
def test_no_time(change, says):
    with pytest.raises(silumin.Error, match=says):
        silumin.predict(kernels.SCALE, launch(), **{"issue": "table", "range": False, **change})


def test_a_kernel_that_is_wrong_has_no_time():
    short = [silumin.Buffer(4), silumin.Buffer(4), 2.0, 128]
    with pytest.raises(silumin.PredictionError, match="OutOfBounds"):
        silumin.predict(kernels.SCALE, silumin.Launch(1, 128), short, issue="table")
