"""The problem that tensors pose: shape and formats, and what a kernel asks of its arguments."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Iterable, List, Mapping, NamedTuple, Optional, Tuple

import numpy as np

from . import _native
from ._errors import ArgumentError
from ._tensors import View

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
TORCH = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "e4m3": "float8_e4m3fn"}
NUMPY = {"f16": np.float16, "bf16": np.uint16, "f32": np.float32, "e4m3": np.uint8}


class Operand(NamedTuple):
    """A factor of a product."""

    # The parameter's name.
    name: str
    value: Any
    scales: Any

    @property
    def scales_name(self) -> str:
        return f"{self.name}_scales"


class Made(NamedTuple):
    """A kernel, and what its gate reads beside products."""

    kernel: Any
    # Name, whether it is a matrix, and bytes.
    vectors: List[Tuple[str, bool, int]]
    scalars: List[str]
    # The format of the gate's matrices.
    matrix_format: str


@lru_cache(maxsize=256)
def right_factors(gate: str) -> Tuple[str, ...]:
    """Names of the right factors of a gate's products, in reading order."""
    return tuple(_native.right_factors(gate))


def vector_name(name: str) -> str:
    """What messages call a vector of the gate."""
    return f"vectors[{name!r}]"

def _as_fp8(name: str) -> str:
    return f"{name}.view(torch.float8_e4m3fn), or {name}.view(ml_dtypes.float8_e4m3fn) in numpy"


def _format(name: str, tensor: View, scales: Optional[View]) -> str:
    if scales is None:
        if tensor.dtype in _PLAIN:
            return _PLAIN[tensor.dtype]
        way_out = "convert it to bfloat16 or float16"
        if tensor.dtype in ("uint8", "int8", "float4_e2m1fn_x2"):
            way_out = f"give NVFP4 its scale factors as {name}_scales, and FP8 as float8_e4m3fn: {_as_fp8(name)}"
        raise ArgumentError(f"{name}: elements of {tensor.dtype}, which is no operand of a kernel; {way_out}")
    if scales.dtype == "float32":
        if tensor.dtype != "float8_e4m3fn":
            way_out = f"; give {_as_fp8(name)}" if tensor.dtype in ("uint8", "int8") else ""
            raise ArgumentError(f"{name}: elements of {tensor.dtype} with scale factors of float32; float8_e4m3fn has such factors{way_out}")
        # Activations have one for each 128 elements, weights one for each 128 x 128.
        return "e4m3_1x128" if name == "a" else "e4m3_128x128"
    if scales.dtype not in ("uint8", "float8_e4m3fn", "float8_e8m0fnu"):
        raise ArgumentError(
            f"{name}_scales: elements of {scales.dtype}; scale factors are uint8 or float8_e4m3fn, float8_e8m0fnu in MX formats, or float32 for float8_e4m3fn"
        )
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


def _check_scales(operand: Operand, rows: int, k: int, format: str, scales: View) -> None:
    if format in ("e4m3_1x128", "e4m3_128x128"):
        wanted = (rows if format == "e4m3_1x128" else -(-rows // 128), -(-k // 128))
        if k % 128:
            raise ArgumentError(f"{operand.name} of [{rows}, {k}] in {format}: K is a multiple of 128; pad it with zeros to {wanted[1] * 128}")
        if scales.shape != wanted:
            raise ArgumentError(f"{operand.scales_name} is {list(scales.shape)}, and {operand.name} of [{rows}, {k}] in {format} has {list(wanted)}")
        return
    block = 16 if format == "nvfp4" else 32
    expected = -(-rows // 128) * 128 * (-(-k // (4 * block)) * 4)
    if scales.nbytes != expected:
        raise ArgumentError(
            f"{operand.scales_name}: {scales.nbytes} bytes, and {operand.name} of [{rows}, {k}] in {format} has {expected} in the blocked layout; "
            f"blocked_scales makes it of [{rows}, {k} / {block}]"
        )


def problem(operands: List[Operand], seen: Mapping[str, View], out_dtype: Any) -> Tuple[Tuple[int, int, int], Tuple[str, str], str]:
    """Shape, formats of A and B, and format of C."""
    formats, sizes = {}, {}
    for operand in operands:
        name, scales = operand.name, seen.get(operand.scales_name)
        formats[name] = format = _format(name, seen[name], scales)
        sizes[name] = rows, k = _matrix(name, seen[name], format in ("nvfp4", "mxfp4"))
        if scales is not None:
            _check_scales(operand, rows, k, format, scales)
    first = operands[1].name
    (m, k), (n, _) = sizes["a"], sizes[first]
    for name, _, _ in operands[1:]:
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
    if name in TORCH:
        return name
    if name in _RESULTS:
        return _RESULTS[name]
    raise ArgumentError(f"out_dtype = {dtype!r}: a result is f16, bf16, f32 or e4m3, or a dtype of torch or numpy for one of them")


def check_out(seen: Mapping[str, View], shape: Tuple[int, int, int]) -> None:
    out = seen["out"]
    if out.shape != (shape[0], shape[1]):
        raise ArgumentError(f"out is {list(out.shape)}, and the result is {[shape[0], shape[1]]}")
    if out.read_only:
        raise ArgumentError("out: a tensor that must not be written")
    first, end = out.at()
    for name, tensor in seen.items():
        start, stop = tensor.at()
        if start < end and first < stop and name != "out" and not (name.startswith("vectors[") and tensor.at() == out.at()):
            raise ArgumentError(f"out overlaps {name} in memory, and the kernel uses both at the same time; give it memory of its own")


def check_gate(made: Made, seen: Mapping[str, View], vectors: Mapping[str, Any], scalars: Mapping[str, float], shape: Tuple[int, int, int]) -> None:
    """Checks scalars, vectors and matrices of the gate by name, type and size."""
    if scalars or made.scalars:
        _same_names("scalars", "scalar", made.scalars, scalars)
    if vectors or made.vectors:
        _same_names("vectors", "vector or matrix", [name for name, _, _ in made.vectors], vectors)
    for name, is_matrix, nbytes in made.vectors:
        tensor = seen[vector_name(name)]
        what, format = ("matrix", made.matrix_format) if is_matrix else ("vector", "f32")
        if _RESULTS.get(tensor.dtype) != format and (tensor.dtype, format) != ("uint8", "e4m3"):
            raise ArgumentError(f"{vector_name(name)}: elements of {tensor.dtype}; this {what} of the gate is in {format}")
        if is_matrix and tensor.shape != shape[:2]:
            raise ArgumentError(f"{vector_name(name)} is {list(tensor.shape)}, and a matrix of the gate has the result's shape, {list(shape[:2])}")
        if tensor.nbytes != nbytes:
            elements = nbytes * tensor.elements // tensor.nbytes
            raise ArgumentError(f"{vector_name(name)} has {tensor.elements} elements, and the gate reads {elements}")


def _same_names(label: str, what: str, known: Iterable[str], given: Mapping[str, Any]) -> None:
    known = list(known)
    missing = next((name for name in known if name not in given), None)
    if missing is not None:
        raise ArgumentError(f"{label}: the gate's `{missing}` is missing; give {label}={{{missing!r}: ...}}")
    unknown = next((name for name in given if name not in known), None)
    if unknown is not None:
        raise ArgumentError(f"{label}: the gate has no {what} `{unknown}`; it has: {', '.join(known) or 'none'}")
