"""Memory of the host: numpy arrays and CPU tensors as bytes, and the names of element types."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Dict, Optional, Tuple

import numpy as np

from ._errors import ArgumentError

# Element types of tensor maps by the names of dtypes. Types that numpy does not have are those of ml_dtypes and torch.
DATA_TYPES = {
    "bool": "u8",
    "uint8": "u8",
    "int8": "u8",
    "float8_e4m3fn": "u8",
    "float8_e5m2": "u8",
    "float8_e8m0fnu": "u8",
    "uint16": "u16",
    "int16": "u16",
    "float16": "f16",
    "bfloat16": "bf16",
    "uint32": "u32",
    "int32": "i32",
    "float32": "f32",
    "uint64": "u64",
    "int64": "i64",
    "float64": "f64",
}


@dataclass(frozen=True)
class Host:
    """An array of the host."""

    address: int
    nbytes: int
    shape: Tuple[int, ...]
    # In bytes.
    strides: Tuple[int, ...]
    dtype: str
    itemsize: int
    writable: bool
    # What keeps the memory alive.
    owner: Any

    def read(self) -> bytes:
        return ctypes.string_at(self.address, self.nbytes) if self.nbytes else b""

    def write(self, data: bytes) -> None:
        if self.nbytes:
            ctypes.memmove(self.address, data, self.nbytes)


def kind(value: Any) -> str:
    """The type of a value, for messages."""
    name = f"{type(value).__module__}.{type(value).__qualname__}".replace("builtins.", "")
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


# Answers of `is_tensor` by type, for launches ask for every operand.
_tensor_types: Dict[type, bool] = {}


def is_tensor(value: Any) -> bool:
    """Whether it is a tensor of torch, or one that looks like it."""
    found = _tensor_types.get(type(value))
    if found is None:
        found = all(hasattr(value, name) for name in ("data_ptr", "element_size", "is_contiguous", "numel", "dtype"))
        _tensor_types[type(value)] = found
    return found


def host(value: Any, label: str) -> Optional[Host]:
    """The memory of an array or a CPU tensor; None for anything else."""
    if isinstance(value, np.ndarray):
        return _array(value, label)
    if is_tensor(value):
        return _tensor(value, label)
    return None


def _array(value: np.ndarray, label: str) -> Host:
    if value.dtype.hasobject:
        raise ArgumentError(f"{label}: an array of {value.dtype}, which holds Python objects; give it a numeric dtype with astype")
    if value.dtype.byteorder == ">":
        raise ArgumentError(f"{label}: an array of {value.dtype}, which is big-endian; kernels read little-endian: astype({value.dtype.newbyteorder('<')})")
    if not value.flags.c_contiguous:
        raise ArgumentError(
            f"{label}: an array of shape {value.shape} and strides {value.strides}, which has gaps or another order; "
            "give numpy.ascontiguousarray(array), or the whole array and the kernel its strides"
        )
    return Host(
        address=value.ctypes.data,
        nbytes=value.nbytes,
        shape=tuple(value.shape),
        strides=tuple(value.strides),
        dtype=value.dtype.name,
        itemsize=value.itemsize,
        writable=bool(value.flags.writeable),
        owner=value,
    )


def _tensor(value: Any, label: str) -> Host:
    kind = getattr(getattr(value, "device", None), "type", "cpu")
    if kind != "cpu":
        raise ArgumentError(f"{label}: a tensor on {kind}, and the emulator reads memory of the host; give it tensor.cpu()")
    if not value.is_contiguous():
        raise ArgumentError(f"{label}: a tensor of shape {tuple(value.shape)} that is not contiguous; give it tensor.contiguous()")
    itemsize = int(value.element_size())
    strides = tuple(int(stride) * itemsize for stride in value.stride())
    return Host(
        address=int(value.data_ptr()),
        nbytes=int(value.numel()) * itemsize,
        shape=tuple(int(size) for size in value.shape),
        strides=strides,
        # torch.bfloat16 is bfloat16 everywhere else.
        dtype=str(value.dtype).rsplit(".", 1)[-1],
        itemsize=itemsize,
        writable=True,
        owner=value,
    )
