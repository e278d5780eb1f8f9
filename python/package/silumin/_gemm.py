"""Gated dual GEMMs and GEMMs on tensors: on a GPU without a copy, or on the emulated GPU."""

from __future__ import annotations

import re
import threading
from contextlib import nullcontext
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple, Union

import numpy as np

from . import _native
from ._errors import ArgumentError, LaunchError
from ._host import host, is_tensor, kind
from ._kernel import _knobs, _Request, emit
from ._problem import NUMPY, TORCH, Made, Operand, check_gate, check_out, problem, right_factors, vector_name
from ._run import Schedule, emulate
from ._tensors import View, place, stream_handle, torch, view

_EMULATED = "emulated:"
_NAME = re.compile(r"\s*[A-Za-z_]\w*\s*")
# Names of a kernel's operands: of A, and of the right factors by the order in which the gate has them.
_ROLES = (("a", "sfa"), ("b1", "sfb1"), ("b2", "sfb2"))


class _Key(NamedTuple):
    """What a kernel is made for."""

    gate: str
    shape: Tuple[int, int, int]
    a: str
    b: str
    c: str
    knobs: Tuple[Tuple[str, str], ...]
    # Number of the GPU, or the emulated chip.
    device: Union[int, str]


class _Call(NamedTuple):
    """A call, checked as far as that goes without a look at tensors."""

    gate: str
    operands: List[Operand]
    out: Any
    out_dtype: Any
    scalars: Dict[str, float]
    vectors: Dict[str, Any]
    knobs: Tuple[Tuple[str, str], ...]
    # All tensors by the names of parameters.
    given: Dict[str, Any]


_lock = threading.Lock()
_gpus: Dict[int, Any] = {}
_kernels: Dict[_Key, Made] = {}


def clear_kernels() -> None:
    """Forgets all kernels that `dual_gemm` and `gemm` have loaded. No CUDA graph that holds one may be launched afterwards."""
    with _lock:
        _kernels.clear()


def dual_gemm(
    a: Any,
    b1: Any,
    b2: Any,
    gate: str = "silu",
    out: Any = None,
    *,
    out_dtype: Any = None,
    a_scales: Any = None,
    b1_scales: Any = None,
    b2_scales: Any = None,
    scalars: Optional[Mapping[str, float]] = None,
    vectors: Optional[Mapping[str, Any]] = None,
    config: Union[str, Mapping[str, Any]] = "auto",
    stream: Any = None,
    device: Optional[str] = None,
    schedule: Schedule = "early",
    tracking: str = "on",
) -> Any:
    """Computes `silu(a @ b1.T) * (a @ b2.T)`, or another gate of two products, in one kernel.

    The kernel is enqueued on a stream and may still run when this returns, as with operations of torch. The first call for a shape,
    formats, gate and device compiles the kernel, which takes up to a second; later calls look it up. Nothing is copied. There is no
    gradient.

    Args:
        a: `[M, K]`, row-major without gaps, at a multiple of 16 bytes.
        b1, b2: `[N, K]`, as `torch.nn.Linear` has its weight.
        gate: the name of an activation, such as "silu", "gelu", "gelu_tanh", "relu" or "sigmoid", or an expression, such as
            "silu(alpha * (A @ B1) + bias[n]) * (A @ B2)". B1 and B2 in it are `b1` and `b2`; with other names, the first product is `b1`'s.
            A published wheel has kernels for the built-in gates, with scaled and shifted products; others need a wheel with LLVM.
        out: where the result goes, `[M, N]`; a new tensor if it is left out.
        out_dtype: the dtype of a new result: of torch or numpy, or "f16", "bf16", "f32", "e4m3". Left out, it is the dtype of a 16-bit `a`; else
            bf16 in torch and f32 in numpy.
        a_scales, b1_scales, b2_scales: scale factors of block-scaled operands, one byte for 16 elements (NVFP4) or 32 (MX formats), in the
            blocked layout: see `blocked_scales`. Elements of FP4 are two in a byte, as uint8 or float4_e2m1fn_x2, `[rows, K / 2]`. Scale
            factors are uint8 or float8_e4m3fn (NVFP4), or float8_e8m0fnu (MX formats). On Hopper float8_e4m3fn may have float32 factors
            as DeepSeek-V3's checkpoints do, row-major: `[M, K / 128]` for `a`, `[ceil(N / 128), K / 128]` for `b1` and `b2`.
        scalars: values of the gate's scalars, by name.
        vectors: tensors of the gate's vectors (f32, M or N elements) and matrices (`[M, N]`, in the result's dtype), by name.
        config: knobs of the kernel: see `emit`.
        stream: a `torch.cuda.Stream`, a stream of CuPy, or the driver's handle. Left out, it is torch's current stream, or without torch the
            default stream.
        device: "emulated:sm_90a" or another chip of `emit` runs the kernel on the CPU, on numpy arrays and CPU tensors. Left out, the
            kernel runs where the tensors are.
        schedule, tracking: of the emulated GPU: see `emulate`.

    Returns:
        `out`, or a new tensor: of torch for tensors of torch, else a numpy array.

    Raises:
        ArgumentError: tensors of wrong shapes, dtypes or devices.
        ConfigError: a gate, formats or knobs without a kernel.
        DeviceError: no driver, no GPU with this number, or a chip without kernels.
        LaunchError: the device refuses the launch; on the emulated GPU, a kernel has findings.
    """
    if isinstance(gate, str) and _NAME.fullmatch(gate):
        gate = f"{gate.strip()}(A @ B1) * (A @ B2)"
    operands = [Operand("a", a, a_scales), Operand("b1", b1, b1_scales), Operand("b2", b2, b2_scales)]
    if isinstance(gate, str):
        names = right_factors(gate)
        if len(names) == 1:
            raise ArgumentError(f"gate = {gate!r} has one product: call gemm(a, b, expr)")
        # A kernel has its operands in the order of the gate.
        if names == ("B2", "B1"):
            operands[1:] = operands[:0:-1]
    return _call("gate", gate, operands, out, out_dtype, scalars, vectors, config, stream, device, schedule, tracking)


def gemm(
    a: Any,
    b: Any,
    expr: str = "A @ B",
    out: Any = None,
    *,
    out_dtype: Any = None,
    a_scales: Any = None,
    b_scales: Any = None,
    scalars: Optional[Mapping[str, float]] = None,
    vectors: Optional[Mapping[str, Any]] = None,
    config: Union[str, Mapping[str, Any]] = "auto",
    stream: Any = None,
    device: Optional[str] = None,
    schedule: Schedule = "early",
    tracking: str = "on",
) -> Any:
    """Computes `a @ b.T` and an elementwise expression over it, such as "alpha * (A @ B) + bias[n] + residual[m, n]", in one kernel.

    `b` is `[N, K]`. `expr` may be the name of an activation. Everything else is as in `dual_gemm`.
    """
    if isinstance(expr, str) and _NAME.fullmatch(expr):
        expr = f"{expr.strip()}(A @ B)"
    if isinstance(expr, str) and len(right_factors(expr)) == 2:
        raise ArgumentError(f"expr = {expr!r} has two products: call dual_gemm(a, b1, b2, gate)")
    operands = [Operand("a", a, a_scales), Operand("b", b, b_scales)]
    return _call("expr", expr, operands, out, out_dtype, scalars, vectors, config, stream, device, schedule, tracking)


def _call(
    label: str,
    gate: Any,
    operands: List[Operand],
    out: Any,
    out_dtype: Any,
    scalars: Optional[Mapping[str, float]],
    vectors: Optional[Mapping[str, Any]],
    config: Any,
    stream: Any,
    device: Optional[str],
    schedule: Schedule,
    tracking: str,
) -> Any:
    if not isinstance(gate, str):
        raise ArgumentError(f"{label}: {kind(gate)}; it is a str, such as \"silu\" or \"silu(A @ B1) * (A @ B2)\"")
    if device is not None and not isinstance(device, str):
        raise ArgumentError(f"device: {kind(device)}; it is a str as \"emulated:sm_90a\", or left out")
    given: Dict[str, Any] = {}
    for operand in operands:
        given[operand.name] = operand.value
        if operand.scales is not None:
            given[operand.scales_name] = operand.scales
    if out is not None:
        given["out"] = out
    extra = _mapping("vectors", vectors)
    for name, value in extra.items():
        given[vector_name(name)] = value
    numbers = {name: _number(name, value) for name, value in _mapping("scalars", scalars).items()}
    call = _Call(gate, operands, out, out_dtype, numbers, extra, tuple(_knobs(config)), given)
    places = {name: place(value, name) for name, value in given.items()}
    if device is not None and device.startswith(_EMULATED):
        on_gpu = next((name for name, number in places.items() if number is not None), None)
        if on_gpu is not None:
            raise ArgumentError(f"{on_gpu}: a tensor on GPU {places[on_gpu]}, and device = {device!r} reads memory of the host; give {on_gpu}.cpu()")
        return _emulated(call, device[len(_EMULATED) :], schedule, tracking)
    number = places["a"]
    for name, other in places.items():
        if other is None or number is None:
            raise ArgumentError(f"{name}: a tensor on the CPU; give {name}.cuda(), or device=\"emulated:sm_90a\" to run on the emulated GPU")
        if other != number:
            raise ArgumentError(f"{name}: a tensor on GPU {other}, and `a` is on GPU {number}; all are on one")
    assert number is not None
    if device not in (None, "cuda", f"cuda:{number}"):
        raise ArgumentError(f"device = {device!r}: the tensors are on GPU {number}; leave it out, or give \"emulated:sm_90a\"")
    return _on_gpu(call, number, stream)


def _on_gpu(call: _Call, number: int, stream: Any) -> Any:
    gpu = _gpus.get(number) or _gpu(number)
    handle = stream_handle(stream, number)
    seen = {name: view(value, name, gpu, handle) for name, value in call.given.items()}
    shape, formats, c_format = problem(call.operands, seen, call.out_dtype)
    out = call.out
    if out is None:
        out = _new_on_gpu(call.given["a"], shape, c_format, stream, handle)
        seen["out"] = view(out, "out", gpu, handle)
    check_out(seen, shape)
    key = _Key(call.gate, shape, *formats, c_format, call.knobs, number)
    made = _kernels.get(key) or _loaded(key, gpu)
    check_gate(made, seen, call.vectors, call.scalars, shape)
    places = [(role, seen[name].address, seen[name].nbytes) for role, name in _roles(call.operands)]
    places.append(("c", seen["out"].address, seen["out"].nbytes))
    vectors = [(name, seen[vector_name(name)].address, seen[vector_name(name)].nbytes) for name in call.vectors]
    made.kernel.launch(handle, places, vectors, list(call.scalars.items()))
    return out


def _mapping(label: str, value: Any) -> Dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ArgumentError(f"{label}: {kind(value)}; it is a dict by name")
    return {str(name): entry for name, entry in value.items()}


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ArgumentError(f"scalars[{name!r}] = {value!r}: a scalar of the gate is a number") from None


def _gpu(number: int) -> Any:
    with _lock:
        if number not in _gpus:
            _gpus[number] = _native.open_gpu(number)
        return _gpus[number]


def _loaded(key: _Key, gpu: Any) -> Made:
    """Makes a kernel. Another thread that wants one waits, so that none is made twice."""
    with _lock:
        if key not in _kernels:
            request = _Request(
                gate=key.gate,
                shape=key.shape,
                arch=gpu.arch,
                a=key.a,
                b=key.b,
                c=key.c,
                preactivations="none",
                batch=None,
                groups=None,
                name=None,
                knobs=list(key.knobs),
            )
            kernel = gpu.load(request)
            _kernels[key] = Made(kernel, kernel.vectors, kernel.scalars, kernel.matrix_format)
        return _kernels[key]


def _roles(operands: List[Operand]) -> List[Tuple[str, str]]:
    """Names of the kernel's operands, and of the arguments that they are."""
    roles = []
    for operand, (role, scales) in zip(operands, _ROLES):
        roles.append((role, operand.name))
        if operand.scales is not None:
            roles.append((scales, operand.scales_name))
    return roles


def _new_on_gpu(a: Any, shape: Tuple[int, int, int], c_format: str, stream: Any, handle: int) -> Any:
    module = torch()
    if module is None or not is_tensor(a):
        raise ArgumentError(f"out: it is left out, and only torch makes tensors here; give one of shape [{shape[0]}, {shape[1]}]")
    # Memory of the stream that the kernel runs on, so that torch uses it again behind the kernel.
    current: Any = nullcontext()
    if stream is not None:
        own = stream if isinstance(stream, module.cuda.Stream) else _torch_stream(module, handle, a.device)
        current = module.cuda.stream(own)
    with current:
        return module.empty(shape[:2], dtype=getattr(module, TORCH[c_format]), device=a.device)


def _torch_stream(module: Any, handle: int, device: Any) -> Any:
    # 0 and 1 are names of the default stream.
    return module.cuda.ExternalStream(handle, device=device) if handle > 1 else module.cuda.default_stream(device)


def _emulated(call: _Call, chip: str, schedule: Schedule, tracking: str) -> Any:
    seen = {name: _of_host(name, value) for name, value in call.given.items()}
    shape, formats, c_format = problem(call.operands, seen, call.out_dtype)
    out = call.out
    if out is None:
        out = _new_on_host(call.given["a"], call.out_dtype, shape, c_format)
        seen["out"] = _of_host("out", out)
    check_out(seen, shape)
    key = _Key(call.gate, shape, *formats, c_format, call.knobs, chip)
    made = _kernels.get(key)
    if made is None:
        m, n, k = shape
        kernel = emit(call.gate, m, n, k, arch=chip, a=formats[0], b=formats[1], c=c_format, config=dict(call.knobs))
        with _lock:
            made = _kernels.setdefault(key, Made(kernel, kernel._vectors, kernel.scalars, kernel._matrix_format))
    check_gate(made, seen, call.vectors, call.scalars, shape)
    arrays: Dict[str, Any] = {role: _bytes(call.given[name]) for role, name in _roles(call.operands)}
    # By the names of parameters, which are no operand's.
    for name, is_matrix, _ in made.vectors:
        arrays[f"{'matrix' if is_matrix else 'vector'}_{name}"] = _bytes(call.vectors[name])
    arrays.update({parameter: call.scalars[name] for parameter, name in made.kernel._scalars.items() if name in call.scalars})
    target = np.zeros(seen["out"].nbytes, np.uint8)
    arrays["c"] = target
    report = emulate(made.kernel, arrays=arrays, schedule=schedule, tracking=tracking)
    if not report.ok:
        raise LaunchError(str(report))
    memory = host(out, "out")
    assert memory is not None
    memory.write(target.tobytes())
    return out


def _of_host(name: str, value: Any) -> View:
    memory = host(value, name)
    if memory is None:
        raise ArgumentError(f"{name}: {kind(value)}; the emulated GPU takes numpy arrays and CPU tensors of torch")
    return View(memory.shape, memory.dtype, memory.nbytes, memory.address, not memory.writable, value)


def _bytes(value: Any) -> np.ndarray:
    memory = host(value, "array")
    assert memory is not None
    return np.frombuffer(memory.read(), np.uint8).copy()


def _new_on_host(a: Any, out_dtype: Any, shape: Tuple[int, int, int], c_format: str) -> Any:
    if is_tensor(a):
        return torch().empty(shape[:2], dtype=getattr(torch(), TORCH[c_format]))
    dtype: Any = NUMPY[c_format]
    # Types of ml_dtypes stay.
    for other in (out_dtype, a.dtype):
        if isinstance(other, (type, np.dtype)) and np.dtype(other).name == TORCH[c_format]:
            dtype = other
    return np.zeros(shape[:2], dtype)
