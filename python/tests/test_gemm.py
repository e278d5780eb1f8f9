"""`dual_gemm` and `gemm` on the emulated GPU, with numpy arrays."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
import silumin

HOPPER, BLACKWELL = "emulated:sm_90a", "emulated:sm_100a"
M, N, K = 20, 32, 128
BIASED = "silu(A @ B1 + bias[n]) * (A @ B2)"


def drawn(*shape, dtype=np.float16, seed=3):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def operands():
    return drawn(M, K), drawn(N, K, seed=4), drawn(N, K, seed=5)


def silu(x):
    return x / (1 + np.exp(-x))


def wide(array):
    return array.astype(np.float64)


def bf16(values):
    """The bits of the bf16 below in magnitude."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.parametrize("device", [HOPPER, BLACKWELL])
def test_arrays_in_and_an_array_out(device):
    a, b1, b2 = operands()
    d1, d2 = wide(a) @ wide(b1).T, wide(a) @ wide(b2).T
    result = silumin.dual_gemm(a, b1, b2, device=device)
    assert result.dtype == np.float16 and result.shape == (M, N)
    np.testing.assert_allclose(wide(result), silu(d1) * d2, rtol=2e-3, atol=2e-2)
    out = np.empty((M, N), np.float32)
    assert silumin.dual_gemm(a, b1, b2, "relu", out, device=device) is out
    np.testing.assert_allclose(out, np.maximum(d1, 0) * d2, rtol=1e-4, atol=1e-2)
    product = silumin.gemm(a, b1, out_dtype="f32", device=device)
    np.testing.assert_allclose(product, d1, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("device", [HOPPER, BLACKWELL, "emulated:sm_120a"])
@pytest.mark.parametrize(
    ("dtype", "asked", "got", "error"),
    [
        (np.float16, None, np.float16, 2e-3),
        (np.float16, "f32", np.float32, 1e-4),
        (ml_dtypes.bfloat16, None, ml_dtypes.bfloat16, 1e-2),
        (ml_dtypes.bfloat16, np.float16, np.float16, 2e-3),
        (ml_dtypes.float8_e4m3fn, None, np.float32, 2e-3),
        (ml_dtypes.float8_e4m3fn, ml_dtypes.bfloat16, ml_dtypes.bfloat16, 1e-2),
        (ml_dtypes.float8_e4m3fn, "bf16", np.uint16, 1e-2),
    ],
)
def test_dtypes_of_operands_and_results(device, dtype, asked, got, error):
    a, b1, b2 = (array.astype(dtype) for array in operands())
    result = silumin.dual_gemm(a, b1, b2, "gelu_tanh", out_dtype=asked, device=device)
    assert result.dtype == got
    values = wide(result.view(ml_dtypes.bfloat16) if got == np.uint16 else result)
    d1, d2 = wide(a) @ wide(b1).T, wide(a) @ wide(b2).T
    exact = 0.5 * d1 * (1 + np.tanh(np.sqrt(2 / np.pi) * (d1 + 0.044715 * d1**3))) * d2
    np.testing.assert_allclose(values, exact, rtol=error, atol=error * np.abs(exact).max())


def blocks(rows, k, seed, tall):
    """Codes in e4m3, float32 factors of each 128 elements or each 128 x 128, and their values."""
    codes = drawn(rows, k, seed=seed).astype(ml_dtypes.float8_e4m3fn)
    factors = np.random.default_rng(seed + 7).uniform(0.5, 2, (-(-rows // 128) if tall else rows, k // 128)).astype(np.float32)
    spread = np.repeat(wide(factors), 128, 1)
    return codes, factors, wide(codes) * (np.repeat(spread, 128, 0)[:rows] if tall else spread)


def test_fp8_with_factors_of_blocks():
    m, n, k = 20, 136, 256
    (a, sa, x), (b1, s1, w1), (b2, s2, w2) = blocks(m, k, 3, False), blocks(n, k, 4, True), blocks(n, k, 5, True)
    result = silumin.dual_gemm(a, b1, b2, a_scales=sa, b1_scales=s1, b2_scales=s2, out_dtype="f32", device=HOPPER)
    exact = silu(x @ w1.T) * (x @ w2.T)
    np.testing.assert_allclose(result, exact, rtol=2e-3, atol=2e-3 * np.abs(exact).max())
    product = silumin.gemm(a, b1, a_scales=sa, b_scales=s1, out_dtype="f32", device=HOPPER)
    np.testing.assert_allclose(product, x @ w1.T, rtol=2e-3, atol=2e-3 * np.abs(x @ w1.T).max())
    codes, factors, scale = silumin.quantize(x, "e4m3_1x128", scale=1.0)
    again = silumin.gemm(codes.view(ml_dtypes.float8_e4m3fn), b1, a_scales=factors, b_scales=s1, out_dtype="f32", device=HOPPER)
    assert scale == 1.0
    np.testing.assert_allclose(again, x @ w1.T, rtol=2e-2, atol=5e-2 * np.abs(x @ w1.T).max())
    for change, words in [
        ({"a_scales": sa[:, :1].copy()}, ["a_scales is [20, 1]", "has [20, 2]"]),
        ({"b_scales": s1[:1]}, ["b_scales is [1, 2]", "has [2, 2]"]),
        ({"a": a.view(np.uint8)}, ["a: elements of uint8", "a.view(ml_dtypes.float8_e4m3fn)"]),
        ({"a": a[:, :136].copy()}, ["K is a multiple of 128", "256"]),
    ]:
        given = {"a": a, "b": b1, "a_scales": sa, "b_scales": s1, "device": HOPPER} | change
        with pytest.raises(silumin.ArgumentError) as error:
            silumin.gemm(**given)
        assert all(word in str(error.value) for word in words), error.value
    with pytest.raises(silumin.ConfigError, match="mxfp8"):
        silumin.gemm(a, b1, a_scales=sa, b_scales=s1, device=BLACKWELL)


@pytest.mark.parametrize(("m", "n", "k"), [(1, 8, 8), (3, 40, 72), (130, 264, 200)])
def test_ragged_shapes(m, n, k):
    a, b1, b2 = drawn(m, k), drawn(n, k, seed=4), drawn(n, k, seed=5)
    d1, d2 = wide(a) @ wide(b1).T, wide(a) @ wide(b2).T
    result = silumin.dual_gemm(a, b1, b2, out_dtype="f32", device=HOPPER)
    np.testing.assert_allclose(result, silu(d1) * d2, rtol=1e-4, atol=1e-2)


def test_a_gate_names_its_operands():
    a, b1, b2 = operands()
    d1, d2 = wide(a) @ wide(b1).T, wide(a) @ wide(b2).T
    for gate, exact in [
        ("silu(A @ B1) * (A @ B2)", silu(d1) * d2),
        ("(A @ B2) * silu(A @ B1)", silu(d1) * d2),
        ("silu(A @ B2) * (A @ B1)", silu(d2) * d1),
        ("silu(x @ gate) * (x @ up)", silu(d1) * d2),
        ("silu( A@B2 ) * (\n  A @ B1)", silu(d2) * d1),
    ]:
        result = silumin.dual_gemm(a, b1, b2, gate, out_dtype="f32", device=HOPPER)
        np.testing.assert_allclose(result, exact, rtol=1e-4, atol=1e-2, err_msg=gate)


def test_bits_of_bf16_scalars_vectors_and_in_place_matrices():
    a, b, _ = (bf16(drawn(*shape, dtype=np.float32, seed=seed)) for seed, shape in enumerate([(M, K), (N, K), (N, K)]))
    numbers = [(bits.astype(np.uint32) << 16).view(np.float32) for bits in (a, b)]
    bias, residual = drawn(N, dtype=np.float32), drawn(M, N, dtype=np.float32)
    out = residual.copy()
    silumin.gemm(
        a, b, "alpha * (A @ B) + bias[n] + r[m, n]", out, scalars={"alpha": 0.5}, vectors={"bias": bias, "r": out}, device=HOPPER
    )
    np.testing.assert_allclose(out, 0.5 * numbers[0] @ numbers[1].T + bias + residual, rtol=1e-4, atol=1e-3)
    assert silumin.gemm(a, b, device=HOPPER).dtype == np.uint16


def test_nvfp4_with_its_scales():
    x, w = drawn(M, K, dtype=np.float32), drawn(N, K, dtype=np.float32, seed=9)
    a, a_scales, a_scale = silumin.quantize(x)
    b, b_scales, b_scale = silumin.quantize(w)
    assert a.shape == (M, K // 2) and a_scales.shape == (128 * 8,)
    result = silumin.gemm(
        a, b, "alpha * (A @ B)", a_scales=a_scales, b_scales=b_scales, scalars={"alpha": a_scale * b_scale}, device=BLACKWELL
    )
    assert result.dtype == np.float32
    exact = wide(x) @ wide(w).T
    error = np.linalg.norm(result - exact) / np.linalg.norm(exact)
    assert error < 0.2, error
    gated = silumin.dual_gemm(
        a,
        b,
        b,
        "silu(alpha * (A @ B1)) * (alpha * (A @ B2))",
        a_scales=a_scales,
        b1_scales=b_scales,
        b2_scales=b_scales,
        scalars={"alpha": a_scale * b_scale},
        device=BLACKWELL,
    )
    np.testing.assert_allclose(gated, silu(wide(result)) * wide(result), rtol=1e-3, atol=1e-2)


def test_scale_factors_go_to_the_blocked_layout():
    values = drawn(130, 96, dtype=np.float32)
    _, scales, _ = silumin.quantize(values, scale=1.0)
    # By the definition: the e4m3 nearest to amax / 6 of each 16 elements; here only its place is looked at.
    largest = np.abs(values).reshape(130, 6, 16).max(axis=2)
    order = np.argsort(largest.ravel())
    flat = np.zeros((130, 6), np.uint8)
    flat.ravel()[order] = np.linspace(1, 120, order.size).astype(np.uint8)
    blocked = silumin.blocked_scales(flat)
    assert blocked.shape == scales.shape == (2 * 2 * 512,)
    # Larger blocks have no smaller scale factor, in the order of the library.
    own = [scales[np.flatnonzero(blocked == value)].mean() for value in range(1, 121)]
    assert all(low <= high + 1 for low, high in zip(own, own[1:]))
    for row, column in [(0, 0), (31, 3), (32, 0), (127, 5), (129, 4)]:
        at = (row // 128 * 2 + column // 4) * 512 + row % 32 * 16 + row % 128 // 32 * 4 + column % 4
        assert blocked[at] == flat[row, column]


def test_a_kernel_is_made_once():
    a, b1, b2 = operands()
    silumin.clear_kernels()
    for _ in range(3):
        silumin.dual_gemm(a, b1, b2, device=HOPPER)
    assert len(silumin._gemm._kernels) == 1
    silumin.dual_gemm(a[:8].copy(), b1, b2, device=HOPPER)
    silumin.dual_gemm(a, b1, b2, device=HOPPER, config={"stages": 2})
    assert len(silumin._gemm._kernels) == 3
    silumin.clear_kernels()
    assert not silumin._gemm._kernels


def test_the_emulated_gpu_takes_seeds_and_finds_what_is_wrong():
    a, b1, b2 = operands()
    results = [silumin.dual_gemm(a, b1, b2, device=HOPPER, schedule=seed, tracking="strict") for seed in (1, 2)]
    np.testing.assert_array_equal(*results)


def test_threads_share_kernels():
    shapes = [(8, 16, 64), (16, 16, 64)]
    silumin.clear_kernels()
    start = threading.Barrier(4, timeout=60)

    def work(seed):
        m, n, k = shapes[seed % 2]
        a, b1, b2 = drawn(m, k, seed=seed), drawn(n, k, seed=seed + 10), drawn(n, k, seed=seed + 20)
        start.wait()
        for _ in range(3):
            result = silumin.dual_gemm(a, b1, b2, "relu", out_dtype="f32", device=HOPPER)
            exact = np.maximum(wide(a) @ wide(b1).T, 0) * (wide(a) @ wide(b2).T)
            np.testing.assert_allclose(result, exact, rtol=1e-4, atol=1e-2)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert len(silumin._gemm._kernels) == 2


def test_findings_are_an_error_and_leave_the_result_alone(monkeypatch):
    class Report:
        ok = False

        def __str__(self):
            return "race in line 7"

    monkeypatch.setattr(silumin._gemm, "emulate", lambda *_, **__: Report())
    out = np.full((M, N), 5, np.float16)
    with pytest.raises(silumin.LaunchError, match="race in line 7"):
        silumin.dual_gemm(*operands(), out=out, device=HOPPER)
    assert (out == 5).all()


class OfHost:
    """A CPU tensor that looks like torch's."""

    requires_grad, device = False, SimpleNamespace(type="cpu", index=None)

    def __init__(self, array, dtype):
        self.array, self.dtype, self.shape = array, f"torch.{dtype}", array.shape
        self.data_ptr, self.numel = lambda: array.ctypes.data, lambda: array.size
        self.element_size, self.is_contiguous = lambda: array.itemsize, lambda: array.flags.c_contiguous
        self.stride = lambda: tuple(stride // array.itemsize for stride in array.strides)


def test_cpu_tensors_like_torch():
    a, b = (array.astype(ml_dtypes.float8_e4m3fn) for array in operands()[:2])
    out = np.zeros((M, N), np.float32)
    given = [OfHost(array.view(np.uint8), "float8_e4m3fn") for array in (a, b)]
    silumin.gemm(*given, out=OfHost(out, "float32"), device=HOPPER)
    np.testing.assert_allclose(out, wide(a) @ wide(b).T, rtol=2e-3, atol=5e-2)
    with pytest.raises(silumin.ArgumentError, match="b: a tensor on the CPU; give b.cuda()|a: a tensor on the CPU"):
        silumin.gemm(*given, out=OfHost(out, "float32"))


class Elsewhere:
    """A tensor of a library that numpy does not know."""

    def __init__(self, device):
        self.device = device

    def __dlpack__(self, stream=None, max_version=None):
        raise BufferError("not today")

    def __dlpack_device__(self):
        return self.device


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"b1": drawn(N, K + 16)}, [f"a is [{M}, {K}]", f"b1 is [{N}, {K + 16}]", "[N, K]"]),
        ({"b2": drawn(N + 8, K)}, [f"b1 is [{N}, {K}]", f"b2 is [{N + 8}, {K}]", "same shape"]),
        ({"a": drawn(K, M).T}, ["a: an array of shape", "ascontiguousarray"]),
        ({"a": drawn(2, M, K)}, ["(2, 20, 128)", "two dimensions", "reshape"]),
        ({"a": drawn(0, K)}, ["no elements"]),
        ({"a": drawn(M, K, dtype=np.float32)}, ["a: elements of float32", "bfloat16 or float16"]),
        ({"a": np.zeros((M, K // 2), np.uint8)}, ["a_scales", "float8_e4m3fn"]),
        ({"b1": bf16(drawn(N, K))}, ["b1 is in bf16 and b2 in f16"]),
        ({"out": np.zeros((N, M), np.float16)}, [f"out is [{N}, {M}]", f"[{M}, {N}]"]),
        ({"out": np.zeros((M, N), np.float64)}, ["out: elements of float64"]),
        ({"out": np.zeros((M, N), np.float16), "out_dtype": "f32"}, ["out_dtype is f32"]),
        ({"out_dtype": "i4"}, ["out_dtype", "bf16"]),
        ({"a": [1, 2]}, ["a: a list", "__dlpack__"]),
        ({"gate": 3}, ["gate: an int"]),
        ({"scalars": [1]}, ["scalars: a list"]),
        ({"scalars": {"alpha": "x"}}, ["scalars['alpha']"]),
        ({"scalars": {"alpha": 1.0}}, ["no scalar `alpha`", "it has: none"]),
        ({"gate": "silu(alpha * (A @ B1)) * (A @ B2)"}, ["scalars: the gate's `alpha` is missing"]),
        ({"gate": BIASED}, ["vectors: the gate's `bias` is missing"]),
        ({"gate": BIASED, "vectors": {"bias": drawn(N)}}, ["vectors['bias']: elements of float16", "in f32"]),
        ({"gate": BIASED, "vectors": {"bias": drawn(N + 1, dtype=np.float32)}}, [f"has {N + 1} elements", f"reads {N}"]),
        ({"gate": BIASED, "vectors": {"bias": drawn(N, dtype=np.float32), "x": drawn(N)}}, ["no vector or matrix `x`", "bias"]),
        ({"gate": "silu(A @ B1)"}, ["one product", "gemm(a, b, expr)"]),
        ({"a": np.zeros((M, K), ">f2")}, ["big-endian"]),
        ({"b1": drawn(2, N, K), "b2": drawn(2, N, K)}, ["b1: a tensor of shape (2, 32, 128)", "two dimensions"]),
        ({"out": np.zeros((2 * M, N), np.float16)[::2]}, ["out: an array of shape"]),
        ({"schedule": "sometimes"}, ["schedule"]),
        ({"tracking": "some"}, ["tracking"]),
        ({"device": 7}, ["device: an int"]),
        ({"device": "cuda"}, ["on the CPU", ".cuda()", "emulated:sm_90a"]),
        ({"device": None}, ["on the CPU", ".cuda()", "emulated:sm_90a"]),
        ({"a": Elsewhere((2, 0))}, ["a: a tensor on GPU 0", "a.cpu()"]),
        ({"a": Elsewhere((13, 0))}, ["managed memory of CUDA"]),
        ({"a": Elsewhere((8, 0))}, ["DLPack's device 8"]),
        ({"a_scales": np.zeros(4, np.uint8)}, ["a: elements of float16 with scale factors"]),
        ({"a_scales": np.zeros(4, np.float64)}, ["a_scales: elements of float64"]),
        ({"a_scales": np.zeros(4, np.float32)}, ["a: elements of float16", "float8_e4m3fn has such factors"]),
    ],
)
def test_wrong_input_is_named(change, words):
    a, b1, b2 = operands()
    given = {"a": a, "b1": b1, "b2": b2, "device": HOPPER, **change}
    with pytest.raises(silumin.ArgumentError) as caught:
        silumin.dual_gemm(**given)
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_what_overlaps_is_refused():
    a, b1, b2 = operands()
    with pytest.raises(silumin.ArgumentError, match="out overlaps a in memory"):
        silumin.dual_gemm(a, b1, b2, out=a.reshape(-1)[: M * N].reshape(M, N), device=HOPPER)
    a.flags.writeable = False
    assert silumin.dual_gemm(a, b1, b2, device=HOPPER).shape == (M, N)
    out = np.zeros((M, N), np.float16)
    out.flags.writeable = False
    with pytest.raises(silumin.ArgumentError, match="must not be written"):
        silumin.dual_gemm(a, b1, b2, out=out, device=HOPPER)


def test_what_has_no_kernel_is_refused():
    a, b1, b2 = operands()
    with pytest.raises(silumin.ConfigError, match="alpha"):
        silumin.gemm(a, b1, "alpha", device=HOPPER)
    with pytest.raises(silumin.ConfigError, match="sm_70"):
        silumin.gemm(a, b1, device="emulated:sm_70")
    with pytest.raises(silumin.ArgumentError, match="two products: call dual_gemm"):
        silumin.gemm(a, b1, "silu(A @ B1) * (A @ B2)", device=HOPPER)
    with pytest.raises(silumin.ArgumentError, match=r"vectors\['r'\] is \[32, 20\], and .* \[20, 32\]"):
        silumin.gemm(a, b1, "A @ B + r[m, n]", vectors={"r": drawn(N, M)}, device=HOPPER)
    with pytest.raises(silumin.ConfigError, match="not built in.*swiglu"):
        silumin.dual_gemm(a, b1, b2, "exp", device=HOPPER)
    with pytest.raises(silumin.ConfigError, match="unknown function `swish`.* silu"):
        silumin.dual_gemm(a, b1, b2, "swish", device=HOPPER)
    with pytest.raises(silumin.ConfigError, match="(?s)B1 \\+ .*\\^"):
        silumin.dual_gemm(a, b1, b2, "silu(A @ B1 + ) * (A @ B2)", device=HOPPER)
    with pytest.raises(silumin.ConfigError, match="(?s)A @ B3.*\\^"):
        silumin.dual_gemm(a, b1, b2, "(A @ B1) * (A @ B2) * (A @ B3)", device=HOPPER)
    with pytest.raises(silumin.ConfigError, match="the gate is empty"):
        silumin.gemm(a, b1, "", device=HOPPER)
    with pytest.raises(silumin.ConfigError, match="stages"):
        silumin.gemm(a, b1, device=HOPPER, config={"stages": 100})
    with pytest.raises(silumin.ConfigError, match="no knob `stagez`.*`stages`"):
        silumin.gemm(a, b1, device=HOPPER, config={"stagez": 2})
    with pytest.raises(silumin.ConfigError, match="KNOB = VALUE"):
        silumin.gemm(a, b1, device=HOPPER, config="stages")
    with pytest.raises(silumin.ConfigError, match="(?s)K = 65 .*pad K"):
        silumin.gemm(drawn(M, 65), drawn(N, 65), device=HOPPER)
    assert not any(key.shape[2] == 65 for key in silumin._gemm._kernels)
    with pytest.raises(silumin.ArgumentError, match="format"):
        silumin.quantize(np.ones((2, 16), np.float32), "fp3")
    with pytest.raises(silumin.ArgumentError, match="multiple of 16"):
        silumin.quantize(np.ones((2, 17), np.float32))
    with pytest.raises(silumin.ArgumentError, match="matrix"):
        silumin.quantize(np.ones(16, np.float32))
    with pytest.raises(silumin.ArgumentError, match="scales"):
        silumin.blocked_scales(np.ones((2, 2), np.float32))
