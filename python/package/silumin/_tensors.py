"""Tensors as operands: arrays of the host, tensors of torch, and tensors of any library by DLPack."""

from __future__ import annotations

import sys
from typing import Any, Dict, NamedTuple, Optional, Tuple

import numpy as np

from ._errors import ArgumentError
from ._host import is_tensor, kind

# DLPack's kinds of devices (`dlpack.h`).
_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED = 1, 2, 3, 13
# DLPack's element types: code, bits, lanes.
_DLPACK_TYPES = {
    (1, 8, 1): "uint8",
    (0, 8, 1): "int8",
    (1, 16, 1): "uint16",
    (2, 16, 1): "float16",
    (2, 32, 1): "float32",
    (2, 64, 1): "float64",
    (4, 16, 1): "bfloat16",
    (10, 8, 1): "float8_e4m3fn",
    (12, 8, 1): "float8_e5m2",
    (14, 8, 1): "float8_e8m0fnu",
    (17, 4, 2): "float4_e2m1fn_x2",
}
# What the address of a GPU's tensor is a multiple of, in bytes: kernels read with TMA.
_ALIGNMENT = 16
# Names of dtypes of torch, which are few objects and slow to print.
_names: Dict[Any, str] = {}


class View(NamedTuple):
    """A tensor, as far as a launch looks at it."""

    shape: Tuple[int, ...]
    # The dtype's name, as torch and ml_dtypes have it.
    dtype: str
    nbytes: int
    # Address on a GPU, once it is known.
    address: int
    read_only: bool
    # What keeps the memory alive.
    owner: Any

    @property
    def elements(self) -> int:
        """How many elements it has."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    def at(self) -> Tuple[int, int]:
        """The range of addresses."""
        return self.address, self.address + self.nbytes


def torch() -> Any:
    """The module torch, if somebody has imported it."""
    return sys.modules.get("torch")


def place(value: Any, label: str) -> Optional[int]:
    """The number of the GPU that a tensor is on; None for the host."""
    if isinstance(value, np.ndarray):
        return None
    if is_tensor(value):
        device = getattr(value, "device", None)
        name = getattr(device, "type", "cpu")
        if name == "cuda":
            return int(getattr(device, "index", None) or 0)
        if name == "cpu":
            return None
        raise ArgumentError(f"{label}: a tensor on {name}; kernels run on CUDA devices, and on the host by device=\"emulated:sm_90a\"")
    if not hasattr(value, "__dlpack__") or not hasattr(value, "__dlpack_device__"):
        raise ArgumentError(f"{label}: {kind(value)}; it is a tensor of torch, a numpy array, or anything with __dlpack__ and __dlpack_device__")
    device, number = value.__dlpack_device__()
    if int(device) == _CUDA:
        return int(number)
    if int(device) == _CPU:
        return None
    what = {_CUDA_HOST: "pinned memory of the host", _CUDA_MANAGED: "managed memory of CUDA"}.get(int(device), f"DLPack's device {int(device)}")
    raise ArgumentError(f"{label}: a tensor in {what}; copy it to the memory of a GPU")


def view(value: Any, label: str, gpu: Any, stream: int) -> View:
    """A tensor of a GPU. Tensors of other libraries than torch are made ready on the stream."""
    if is_tensor(value):
        return _torch_view(value, label)
    return _dlpack_view(value, label, gpu, stream)


def _torch_view(value: Any, label: str) -> View:
    module = torch()
    if getattr(value, "requires_grad", False) and module is not None and module.is_grad_enabled():
        raise ArgumentError(
            f"{label}: a tensor that requires a gradient, and kernels compute none; call under torch.inference_mode(), or give {label}.detach()"
        )
    shape = tuple(value.shape)
    if not value.is_contiguous():
        strides = tuple(int(stride) for stride in value.stride())
        raise ArgumentError(
            f"{label}: a tensor of shape {shape} with strides {strides}, which is not contiguous; give {label}.contiguous(), "
            "or leave the transposition of a weight out: it is [N, K]"
        )
    dtype = value.dtype
    name = _names.get(dtype)
    if name is None:
        name = _names[dtype] = str(dtype).rsplit(".", 1)[-1]
    address = value.data_ptr()
    if address % _ALIGNMENT:
        raise ArgumentError(f"{label}: the first element is at {address:#x}, and TMA reads multiples of {_ALIGNMENT}; give {label}.clone()")
    return View(shape, name, value.numel() * value.element_size(), address, False, value)


def _dlpack_view(value: Any, label: str, gpu: Any, stream: int) -> View:
    # In DLPack's words 1 is the default stream; 0 is not allowed.
    ready = stream or 1
    try:
        try:
            capsule = value.__dlpack__(stream=ready, max_version=(1, 1))
        except TypeError:
            # From before DLPack 1.0.
            capsule = value.__dlpack__(stream=ready)
    except (BufferError, RuntimeError, ValueError) as error:
        raise ArgumentError(f"{label}: {kind(value)} that __dlpack__ does not hand out: {error}") from error
    try:
        borrowed = gpu.borrow(capsule, stream)
    except TypeError:
        raise ArgumentError(f"{label}: __dlpack__ returned {kind(capsule)}, which is no capsule") from None
    except ArgumentError as error:
        raise ArgumentError(f"{label}: {error}") from None
    code = tuple(borrowed.dtype)
    name = _DLPACK_TYPES.get(code, f"DLPack's type {code}")
    return View(tuple(borrowed.shape), name, borrowed.nbytes, borrowed.address, borrowed.read_only, borrowed)


def stream_handle(stream: Any, gpu: int) -> int:
    """The driver's handle of a stream: of torch, of CuPy, an int, or torch's current one."""
    if stream is None:
        module = torch()
        # Before its first use of a GPU, torch has no other stream than the default one.
        if module is None or not module.cuda.is_initialized():
            return 0
        return int(module.cuda.current_stream(gpu).cuda_stream)
    owner = getattr(getattr(stream, "device", None), "index", None)
    if hasattr(stream, "cuda_stream") and owner is not None and int(owner) != gpu:
        raise ArgumentError(f"stream: a stream of GPU {owner}, and the tensors are on GPU {gpu}")
    handle = getattr(stream, "cuda_stream", getattr(stream, "ptr", stream))
    if hasattr(stream, "__cuda_stream__"):
        handle = stream.__cuda_stream__()[1]
    if isinstance(handle, bool) or not isinstance(handle, (int, np.integer)) or not 0 <= handle < 2**64:
        raise ArgumentError(f"stream: {kind(stream)}; it is a torch.cuda.Stream, a cupy.cuda.Stream, the driver's handle as an int, or None")
    return int(handle)
