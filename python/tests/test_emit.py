import numpy as np
import pytest
import silumin

GATE = "silu(A @ B1) * (A @ B2)"


def bf16(values):
    """The nearest bf16 below in magnitude, as bits."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def wide(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def operands(m, n, k, c):
    rng = np.random.default_rng(7)
    a, b1, b2 = (bf16(rng.standard_normal(shape)) for shape in ((m, k), (n, k), (n, k)))
    d1, d2 = wide(a) @ wide(b1).T, wide(a) @ wide(b2).T
    return {"a": a, "b1": b1, "b2": b2, "c": np.zeros((m, n), c)}, d1, d2


@pytest.mark.parametrize(("arch", "config"), [("sm_90a", "auto"), ("sm_100a", "store = direct, stages = 3"), ("sm_100a", {"cta_group": 2})])
def test_what_is_emitted_computes_what_numpy_computes(arch, config):
    m, n, k = 130, 96, 160
    kernel = silumin.emit(GATE, m, n, k, arch=arch, a="bf16", b="bf16", c="f16", config=config)
    arrays, d1, d2 = operands(m, n, k, np.float16)
    report = silumin.emulate(kernel, arrays=arrays, tracking="strict")
    assert report.ok, str(report)
    # The tolerance of the public benchmark, which the library has for f16.
    np.testing.assert_allclose(arrays["c"].astype(np.float64), d1 / (1 + np.exp(-d1)) * d2, rtol=1e-3, atol=1e-3)
    assert sum(report.stats.mma_macs.values()) >= 2 * m * n * k


@pytest.mark.parametrize("strategy", ["two_pass", "second_fused"])
def test_kernels_of_several_launches_run_one_by_one(strategy):
    m, n, k = 64, 64, 1024
    kernel = silumin.emit(GATE, m, n, k, arch="sm_90a", a="bf16", b="bf16", c="f32", config={"strategy": strategy})
    assert len(kernel.launches) > 1
    arrays, d1, d2 = operands(m, n, k, np.float32)
    report = silumin.emulate(kernel, arrays=arrays)
    assert report.ok, str(report)
    np.testing.assert_allclose(arrays["c"], d1 / (1 + np.exp(-d1)) * d2, rtol=1e-3, atol=1e-2)
    prediction = silumin.predict(kernel, issue="table")
    assert len(prediction.launches) == len(kernel.launches)
    assert abs(sum(p.us for p in prediction.launches) - prediction.us) < 1e-9
    assert prediction.low <= prediction.us <= prediction.high


def test_scalars_vectors_and_a_gemm():
    kernel = silumin.emit("alpha * (A @ B) + bias[n]", 64, 64, 64, arch="sm_90a", a="bf16", b="bf16", c="f32")
    assert kernel.scalars == ["alpha"]
    arrays, d1, _ = operands(64, 64, 64, np.float32)
    bias = np.arange(64, dtype=np.float32)
    given = {"a": arrays["a"], "b1": arrays["b1"], "c": arrays["c"], "bias": bias, "alpha": 2.0}
    assert silumin.emulate(kernel, arrays=given).ok
    np.testing.assert_allclose(arrays["c"], 2 * d1 + bias, rtol=1e-4, atol=1e-3)
    del given["alpha"]
    with pytest.raises(silumin.ArgumentError, match='scalar `alpha` is missing; add {"alpha": 1.0}'):
        silumin.emulate(kernel, arrays=given)


def test_a_kernel_in_four_bits_takes_drawn_inputs():
    kernel = silumin.emit(GATE, 128, 64, 256)
    assert kernel.arch == "sm_100a" and {t.name: t.format for t in kernel.tensors}["a"] == "nvfp4"
    arrays = kernel.inputs(seed=3)
    before = arrays["c"].copy()
    assert silumin.emulate(kernel, arrays=arrays).ok
    assert (arrays["c"] != before).any() and np.isfinite(arrays["c"].view(np.float16)).all()


def test_a_kernel_says_what_it_is(tmp_path):
    kernel = silumin.emit(GATE, 64, 64, 64, name="swiglu")
    assert kernel.entry == "swiglu_n64_k64_m00064" and f".entry {kernel.entry}" in kernel.ptx
    assert "SMEM" in kernel.plan and "floor" in kernel.plan and "tile" in kernel.summary and kernel.name in repr(kernel)
    (launch,) = kernel.launches
    assert launch.shared > 0 and len(launch.args) == len(silumin.entries(kernel.ptx)[0].parameters)
    again = silumin.emit(GATE, 64, 64, 64, name="swiglu", config=kernel.config)
    assert again.ptx == kernel.ptx
    assert kernel.save(tmp_path / "k.ptx").read_text() == kernel.ptx
    path = kernel.save(tmp_path / "folder")
    assert path.suffix == ".toml" and silumin.emulate_file(path).ok
    assert silumin.predict(path, issue="table", range=False).us > 0
    with pytest.raises(silumin.ArgumentError, match="no scalar `beta`"):
        kernel.save(tmp_path / "other", scalars={"beta": 1})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"config": {"tiel": 128}}, r"no knob `tiel` \(did you mean `tile`\?\); the knobs are: strategy"),
        ({"config": {"store": "fast"}}, "`fast` is not a value of `store`"),
        ({"config": {"stages": 99}}, "(?s)stages: 99 .*help: write auto"),
        ({"config": {"stages": 4.5}}, "stages = 4.5"),
        ({"config": "stages 4"}, "`stages 4` is not KNOB = VALUE"),
        ({"config": 4}, "config: an int"),
        ({"a": "bf17"}, "`bf17` is not an operand format"),
        ({"arch": "sm_80"}, "`sm_80` is not a chip"),
        ({"preactivations": "f8"}, "f8"),
        ({"batch": 2, "groups": 2}, "leave one out"),
        ({"k": 33}, "(?s)K = 33 is not a multiple.*help"),
        ({"m": 0}, "M = 0"),
        ({"m": 1.5}, "m = 1.5: it is an int"),
        ({"n": 2**40}, "n = 1099511627776"),
        ({"gate": "silu(A @ B1"}, "gate"),
        ({"gate": "tan(A @ B1) * (A @ B2)"}, "tan"),
        ({"gate": 3}, "gate = 3"),
        ({"name": "no good"}, "no good"),
    ],
)
def test_illegal_kernels(change, says):
    arguments = {"gate": GATE, "m": 64, "n": 64, "k": 64, **change}
    with pytest.raises(silumin.Error, match=says) as caught:
        silumin.emit(**arguments)
    assert isinstance(caught.value, (silumin.ConfigError, silumin.ArgumentError))


def test_wrong_arrays_of_a_kernel():
    kernel = silumin.emit(GATE, 64, 64, 64, arch="sm_90a", a="bf16", b="bf16", c="f32")
    arrays, _, _ = operands(64, 64, 64, np.float32)
    frozen = arrays["c"].copy()
    frozen.flags.writeable = False
    for change, says in [
        ({"a": None}, "`a` is missing: 8192 bytes of bf16"),
        ({"a": arrays["a"].astype(np.float32)}, r"arrays\['a'\]: 16384 bytes, and the kernel takes 8192"),
        ({"a": arrays["a"].view(np.float16)}, r"arrays\['a'\]: float16, and the kernel takes bf16, as bfloat16, uint16"),
        ({"c": frozen}, "read-only"),
        ({"c": [1.0]}, r"arrays\['c'\]: a list"),
        ({"d": arrays["a"]}, "no tensor `d`; it takes: a, b1, b2, c"),
    ]:
        given = {name: value for name, value in {**arrays, **change}.items() if value is not None}
        with pytest.raises(silumin.ArgumentError, match=says):
            silumin.emulate(kernel, arrays=given)
    with pytest.raises(silumin.ArgumentError, match="arrays: a list"):
        silumin.emulate(kernel, arrays=[1])


def test_knobs_have_values_and_help():
    knobs = {knob.name: knob for knob in silumin.knobs()}
    assert "tile" in knobs and knobs["stages"].takes and knobs["store"].help
