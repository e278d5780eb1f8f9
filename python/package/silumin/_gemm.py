"""Gated dual GEMMs and GEMMs on tensors: on a GPU without a copy, or on the emulated GPU."""

from __future__ import annotations

import re
import threading
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Tuple, Union

import numpy as np

from . import _native
from ._errors import ArgumentError, LaunchError
from ._host import host, is_tensor, kind
from ._kernel import Kernel, _knobs, _Request, emit
from ._run import Schedule, emulate
from ._tensors import View, place, stream_handle, torch, view

# Formats of operands without scale factors by the names of dtypes. numpy has no bf16: arrays of uint16 hold its bits.
_PLAIN = {"bfloat16": "bf16", "uint16": "bf16", "float16": "f16", "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}
# Formats with scale factors: by the elements' dtype, and whether scale factors are powers of two.
_SCALED = {
    ("uint8", False): "nvfp4",
    ("float4_e2m1fn_x2", False): "nvfp4",
    ("uint8", True): "mxfp4",
    ("float4_e2m1fn_x2", True): "mxfp4",
    ("float8_e4m3fn", True): "mxfp8",
    ("float8_e5m2", True): "mxfp8_e5m2",
}
_RESULTS = {"float16": "f16", "bfloat16": "bf16", "uint16": "bf16", "float32": "f32", "float8_e4m3fn": "e4m3"}
# dtypes of results in torch and in numpy.
_TORCH = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "e4m3": "float8_e4m3fn"}
_NUMPY = {"f16": np.float16, "bf16": np.uint16, "f32": np.float32, "e4m3": np.uint8}
_EMULATED = "emulated:"
_NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class _Key:
    """What a kernel is made for."""

    gate: str
    shape: Tuple[int, int, int]
    a: str
    b: str
    c: str
    knobs: Tuple[Tuple[str, str], ...]
    # Number of the GPU, or the emulated chip.
    device: Union[int, str]


_lock = threading.Lock()
_gpus: Dict[int, Any] = {}
_kernels: Dict[_Key, Any] = {}


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
            "silu(alpha * (A @ B1) + bias[n]) * (A @ B2)". Only built-in gates have kernels in a published wheel.
        out: where the result goes, `[M, N]`; a new tensor if it is left out.
        out_dtype: the dtype of a new result: of torch or numpy, or "f16", "bf16", "f32", "e4m3". Left out, it is that of a 16-bit `a`; else
            bf16 in torch and f32 in numpy.
        a_scales, b1_scales, b2_scales: scale factors of block-scaled operands, one byte for 16 elements (NVFP4) or 32 (MX formats), in the
            blocked layout: see `blocked_scales`. Elements of FP4 are two in a byte, as uint8 or float4_e2m1fn_x2, `[rows, K / 2]`. Scale
            factors are uint8 or float8_e4m3fn (NVFP4), or float8_e8m0fnu (MX formats).
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
        LaunchError: the device refuses the launch; on the emulated GPU, what is wrong with the kernel.
    """
    if isinstance(gate, str) and _NAME.fullmatch(gate.strip()):
        gate = f"{gate.strip()}(A @ B1) * (A @ B2)"
    operands = [("a", a, a_scales, "sfa"), ("b1", b1, b1_scales, "sfb1"), ("b2", b2, b2_scales, "sfb2")]
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
    if isinstance(expr, str) and _NAME.fullmatch(expr.strip()):
        expr = f"{expr.strip()}(A @ B)"
    operands = [("a", a, a_scales, "sfa"), ("b", b, b_scales, "sfb1")]
    return _call("expr", expr, operands, out, out_dtype, scalars, vectors, config, stream, device, schedule, tracking)


def quantize(values: Any, format: str = "nvfp4", scale: Optional[float] = None) -> Tuple[np.ndarray, np.ndarray, float]:
    """Quantises a matrix of numbers on the host.

    Args:
        values: `[rows, K]`, an array of numpy or a CPU tensor of torch, converted to f32.
        format: nvfp4, mxfp4, mxfp8, mxfp8_e5m2, e4m3 or e5m2.
        scale: a scale of the whole matrix. Left out, the largest magnitude becomes the largest value of the format.

    Returns:
        Codes as uint8, `[rows, K]` or for FP4 `[rows, K / 2]`; scale factors as uint8 in the blocked layout, empty for formats without; and
        the scale of the whole matrix, which multiplies every product: give it to the gate as a scalar.
    """
    if is_tensor(values):
        values = values.detach().float().numpy()
    try:
        array = np.ascontiguousarray(values, np.float32)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"values: {kind(values)}, which is no matrix of numbers: {error}") from None
    if array.ndim != 2 or array.size == 0:
        raise ArgumentError(f"values: shape {array.shape}; it is a matrix [rows, K]")
    if not isinstance(format, str):
        raise ArgumentError(f"format = {format!r}: it is a str")
    codes, scales, tensor_scale = _native.quantize(format, array.tobytes(), array.shape[0], array.shape[1], scale)
    return np.frombuffer(codes, np.uint8).reshape(array.shape[0], -1).copy(), np.frombuffer(scales, np.uint8).copy(), tensor_scale


def blocked_scales(scales: Any) -> Any:
    """Scale factors from `[rows, K / block]` to the blocked layout that tensor cores read, as one dimension.

    Blocks of 128 rows and 4 columns are padded with zeros. It takes arrays of numpy and tensors of torch with elements of one byte, and
    returns the same kind on the same device, as uint8.
    """
    if not (isinstance(scales, np.ndarray) or is_tensor(scales)):
        raise ArgumentError(f"scales: {kind(scales)}; it is an array of numpy or a tensor of torch")
    shape = tuple(int(size) for size in scales.shape)
    if len(shape) != 2 or 0 in shape:
        raise ArgumentError(f"scales: shape {shape}; it is [rows, K / 16] for NVFP4, or [rows, K / 32] for the MX formats")
    rows, columns = (-(-shape[0] // 128), -(-shape[1] // 4))
    if isinstance(scales, np.ndarray):
        if scales.itemsize != 1:
            raise ArgumentError(f"scales: {scales.dtype}; an element has one byte")
        padded = np.zeros((rows * 128, columns * 4), np.uint8)
        padded[: shape[0], : shape[1]] = scales.view(np.uint8)
        return np.ascontiguousarray(padded.reshape(rows, 4, 32, columns, 4).transpose(0, 3, 2, 1, 4)).reshape(-1)
    module = torch()
    if scales.element_size() != 1:
        raise ArgumentError(f"scales: {scales.dtype}; an element has one byte")
    padded = module.zeros((rows * 128, columns * 4), dtype=module.uint8, device=scales.device)
    padded[: shape[0], : shape[1]] = scales.view(module.uint8)
    return padded.reshape(rows, 4, 32, columns, 4).permute(0, 3, 2, 1, 4).reshape(-1)


def _call(
    label: str,
    gate: Any,
    operands: List[Tuple[str, Any, Any, str]],
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
    given = {name: value for name, value, _, _ in operands}
    given.update({f"{name}_scales": value for name, _, value, _ in operands if value is not None})
    given.update({} if out is None else {"out": out})
    extra = _mapping("vectors", vectors)
    given.update({f"vectors[{name!r}]": value for name, value in extra.items()})
    numbers = [(name, _number(name, value)) for name, value in _mapping("scalars", scalars).items()]
    places = {name: place(value, name) for name, value in given.items()}
    knobs = tuple(_knobs(config))
    if device is not None and device.startswith(_EMULATED):
        on_gpu = next((name for name, number in places.items() if number is not None), None)
        if on_gpu is not None:
            raise ArgumentError(f"{on_gpu}: a tensor on GPU {places[on_gpu]}, and device = {device!r} reads memory of the host; give {on_gpu}.cpu()")
        return _emulated(label, gate, operands, out, out_dtype, numbers, extra, knobs, device[len(_EMULATED) :], schedule, tracking)
    for name, number in places.items():
        if number is None:
            raise ArgumentError(f"{name}: a tensor on the CPU; give {name}.cuda(), or device=\"emulated:sm_90a\" to run on the emulated GPU")
        if number != places["a"]:
            raise ArgumentError(f"{name}: a tensor on GPU {number}, and `a` is on GPU {places['a']}; all are on one")
    number = places["a"]
    assert number is not None
    if device not in (None, "cuda", f"cuda:{number}"):
        raise ArgumentError(f"device = {device!r}: the tensors are on GPU {number}; leave it out, or give \"emulated:sm_90a\"")
    gpu = _gpu(number)
    handle = stream_handle(stream, number)
    seen = {name: view(value, name, gpu, handle) for name, value in given.items()}
    shape, formats, c_format = _problem(operands, seen, out_dtype)
    fresh = out is None
    if fresh:
        out = _new_on_gpu(operands[0][1], shape, c_format, stream)
        seen["out"] = view(out, "out", gpu, handle)
    _check_out(seen, shape, extra)
    kernel = _loaded(_Key(gate, shape, *formats, c_format, knobs, number), gpu)
    _check_vectors(kernel.vectors, kernel.matrix_format, seen)
    places_of = [(role, seen[name].address, seen[name].nbytes) for name, role in _roles(operands, seen)]
    places_of.append(("c", seen["out"].address, seen["out"].nbytes))
    vector_places = [(name, seen[f"vectors[{name!r}]"].address, seen[f"vectors[{name!r}]"].nbytes) for name in extra]
    kernel.launch(handle, places_of, vector_places, numbers)
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
    gpu = _gpus.get(number)
    if gpu is None:
        with _lock:
            gpu = _gpus.get(number)
            if gpu is None:
                gpu = _gpus[number] = _native.open_gpu(number)
    return gpu


def _loaded(key: _Key, gpu: Any) -> Any:
    kernel = _kernels.get(key)
    if kernel is None:
        with _lock:
            kernel = _kernels.get(key)
            if kernel is None:
                request = _Request(
                    gate=key.gate,
                    shape=key.shape,
                    arch=gpu.arch,
                    a=key.a,
                    b=key.b,
                    c=key.c,
                    products="none",
                    batch=None,
                    groups=None,
                    name=None,
                    knobs=list(key.knobs),
                )
                kernel = _kernels[key] = gpu.load(request)
    return kernel


def _roles(operands: List[Tuple[str, Any, Any, str]], seen: Mapping[str, Any]) -> List[Tuple[str, str]]:
    """Names of arguments, and of the kernel's operands that they are."""
    roles = []
    for name, _, _, scales in operands:
        roles.append((name, "b1" if name == "b" else name))
        if f"{name}_scales" in seen:
            roles.append((f"{name}_scales", scales))
    return roles


def _format(name: str, tensor: View, scales: Optional[View]) -> str:
    if scales is None:
        if tensor.dtype in _PLAIN:
            return _PLAIN[tensor.dtype]
        way_out = "convert it to bfloat16 or float16"
        if tensor.dtype in ("uint8", "int8", "float4_e2m1fn_x2"):
            way_out = f"give NVFP4 its scale factors as {name}_scales, and FP8 as float8_e4m3fn, for instance {name}.view(torch.float8_e4m3fn)"
        raise ArgumentError(f"{name}: elements of {tensor.dtype}, which is no operand of a kernel; {way_out}")
    if scales.dtype not in ("uint8", "float8_e4m3fn", "float8_e8m0fnu"):
        raise ArgumentError(f"{name}_scales: elements of {scales.dtype}; scale factors are uint8 or float8_e4m3fn, or float8_e8m0fnu in MX formats")
    found = _SCALED.get((tensor.dtype, scales.dtype == "float8_e8m0fnu"))
    if found is None:
        raise ArgumentError(f"{name}: elements of {tensor.dtype} with scale factors of {scales.dtype}; NVFP4 is uint8 with uint8 or float8_e4m3fn")
    return found


def _matrix(name: str, tensor: View, packed: bool) -> Tuple[int, int]:
    if len(tensor.shape) != 2:
        raise ArgumentError(f"{name}: a tensor of shape {tensor.shape}; it is a matrix of two dimensions: give {name}.reshape(-1, K)")
    rows, columns = tensor.shape
    if rows == 0 or columns == 0:
        raise ArgumentError(f"{name}: a tensor of shape {tensor.shape} has no elements; there is nothing to compute")
    return rows, columns * 2 if packed else columns


def _problem(
    operands: List[Tuple[str, Any, Any, str]], seen: Mapping[str, View], out_dtype: Any
) -> Tuple[Tuple[int, int, int], Tuple[str, str], str]:
    """Shape, formats of A and B, and format of C."""
    formats, sizes = {}, {}
    for name, _, _, _ in operands:
        formats[name] = _format(name, seen[name], seen.get(f"{name}_scales"))
        sizes[name] = _matrix(name, seen[name], formats[name] in ("nvfp4", "mxfp4"))
    first = operands[1][0]
    (m, k), (n, _) = sizes["a"], sizes[first]
    for name in [name for name, _, _, _ in operands[1:]]:
        if sizes[name][1] != k:
            raise ArgumentError(
                f"a is {list(sizes['a'])} and {name} is {list(sizes[name])}: the second sizes, K, are equal; a weight is [N, K], as torch.nn.Linear has it"
            )
        if sizes[name][0] != n:
            raise ArgumentError(f"{first} is {list(sizes[first])} and {name} is {list(sizes[name])}: both have the same shape")
        if formats[name] != formats[first]:
            raise ArgumentError(f"{first} is in {formats[first]} and {name} in {formats[name]}: both have one format")
    return (m, n, k), (formats["a"], formats[first]), _result(seen.get("out"), out_dtype, seen["a"], formats["a"])


def _result(out: Optional[View], out_dtype: Any, a: View, a_format: str) -> str:
    """The format of C."""
    wanted = None if out_dtype is None else _named(out_dtype)
    if out is not None:
        found = _RESULTS.get(out.dtype)
        # FP8 in numpy is bytes.
        if found is None and out.dtype == "uint8" and wanted == "e4m3":
            found = "e4m3"
        if found is None:
            raise ArgumentError(f"out: elements of {out.dtype}; a result is float16, bfloat16, float32 or float8_e4m3fn")
        if wanted not in (None, found):
            raise ArgumentError(f"out: elements of {out.dtype}, and out_dtype is {wanted}; leave one of them out")
        return found
    if wanted is not None:
        return wanted
    if a_format in ("bf16", "f16"):
        return a_format
    return "f32" if isinstance(a.owner, np.ndarray) else "bf16"


def _named(dtype: Any) -> str:
    name = dtype if isinstance(dtype, str) else str(dtype).rsplit(".", 1)[-1]
    if not isinstance(dtype, str):
        try:
            name = np.dtype(dtype).name
        except TypeError:
            pass
    if name in _TORCH:
        return name
    if name in _RESULTS:
        return _RESULTS[name]
    raise ArgumentError(f"out_dtype = {dtype!r}: a result is f16, bf16, f32 or e4m3, or a dtype of torch or numpy for one of them")


def _new_on_gpu(a: Any, shape: Tuple[int, int, int], c_format: str, stream: Any) -> Any:
    module = torch()
    if module is None or not is_tensor(a):
        raise ArgumentError(f"out: it is left out, and only torch makes tensors here; give one of shape [{shape[0]}, {shape[1]}]")
    current: Any = nullcontext()
    if stream is not None:
        handle = stream_handle(stream, place(a, "a") or 0)
        own = stream if isinstance(stream, module.cuda.Stream) else module.cuda.ExternalStream(handle, device=a.device)
        current = module.cuda.stream(own) if handle else current
    with current:
        return module.empty((shape[0], shape[1]), dtype=getattr(module, _TORCH[c_format]), device=a.device)


def _check_out(seen: Mapping[str, View], shape: Tuple[int, int, int], vectors: Mapping[str, Any]) -> None:
    out = seen["out"]
    if out.shape != (shape[0], shape[1]):
        raise ArgumentError(f"out is {list(out.shape)}, and the result is {[shape[0], shape[1]]}")
    if out.read_only:
        raise ArgumentError("out: a tensor that must not be written")
    first, end = out.at()
    for name, tensor in seen.items():
        start, stop = tensor.at()
        in_place = name.startswith("vectors[") and tensor.at() == out.at()
        if name != "out" and start < end and first < stop and not in_place:
            raise ArgumentError(f"out overlaps {name} in memory, and the kernel uses both at the same time; give it memory of its own")


def _check_vectors(known: List[Tuple[str, bool]], matrix_format: str, seen: Mapping[str, View]) -> None:
    for name, is_matrix in known:
        tensor = seen.get(f"vectors[{name!r}]")
        format = matrix_format if is_matrix else "f32"
        if tensor is not None and _RESULTS.get(tensor.dtype) != format:
            what = "matrix" if is_matrix else "vector"
            raise ArgumentError(f"vectors[{name!r}]: elements of {tensor.dtype}; this {what} of the gate is in {format}")


def _emulated(
    label: str,
    gate: str,
    operands: List[Tuple[str, Any, Any, str]],
    out: Any,
    out_dtype: Any,
    scalars: List[Tuple[str, float]],
    vectors: Dict[str, Any],
    knobs: Tuple[Tuple[str, str], ...],
    chip: str,
    schedule: Schedule,
    tracking: str,
) -> Any:
    given = {name: value for name, value, _, _ in operands}
    given.update({f"{name}_scales": scales for name, _, scales, _ in operands if scales is not None})
    given.update({} if out is None else {"out": out})
    given.update({f"vectors[{name!r}]": value for name, value in vectors.items()})
    seen = {name: _of_host(name, value) for name, value in given.items()}
    shape, formats, c_format = _problem(operands, seen, out_dtype)
    if out is None:
        out = _new_on_host(operands[0][1], shape, c_format)
        seen["out"] = _of_host("out", out)
    _check_out(seen, shape, vectors)
    key = _Key(gate, shape, *formats, c_format, knobs, chip)
    kernel: Optional[Kernel] = _kernels.get(key)
    if kernel is None:
        m, n, k = shape
        kernel = emit(gate, m, n, k, arch=chip, a=formats[0], b=formats[1], c=c_format, config=dict(knobs))
        with _lock:
            _kernels[key] = kernel
    _check_vectors(kernel._vectors, kernel._matrix_format, seen)
    arrays: Dict[str, Any] = {role: _bytes(given[name]) for name, role in _roles(operands, seen)}
    arrays.update({name: _bytes(value) for name, value in vectors.items()})
    arrays.update(scalars)
    target = np.zeros(seen["out"].nbytes, np.uint8)
    arrays["c"] = target
    report = emulate(kernel, arrays=arrays, schedule=schedule, tracking=tracking)
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
    return View(memory.shape, memory.dtype, memory.nbytes, None, memory.address, not memory.writable, value)


def _bytes(value: Any) -> np.ndarray:
    memory = host(value, "array")
    assert memory is not None
    return np.frombuffer(memory.read(), np.uint8).copy()


def _new_on_host(a: Any, shape: Tuple[int, int, int], c_format: str) -> Any:
    if is_tensor(a):
        module = torch()
        return module.empty((shape[0], shape[1]), dtype=getattr(module, _TORCH[c_format]))
    return np.zeros((shape[0], shape[1]), _NUMPY[c_format])
