"""Quantised matrices of the host, and the layout of scale factors."""

from __future__ import annotations

from typing import Any, Optional, Tuple

import numpy as np

from . import _native
from ._errors import ArgumentError
from ._host import is_tensor, kind
from ._tensors import place, torch


def quantize(values: Any, format: str = "nvfp4", scale: Optional[float] = None) -> Tuple[np.ndarray, np.ndarray, float]:
    """Quantises a matrix of numbers on the host.

    Args:
        values: `[rows, K]`, an array of numpy or a CPU tensor of torch, converted to f32.
        format: nvfp4, mxfp4, mxfp8, mxfp8_e5m2, e4m3, e5m2, e4m3_1x128, e4m3_128x128, nvfp4_repacked or mxfp4_repacked. The last two are for kernels
            made for these formats: `gemm` and `dual_gemm` read 4-bit codes as nvfp4 or mxfp4.
        scale: a scale of the whole matrix. Left out, the largest magnitude becomes the largest value of the format.

    Returns:
        Codes as uint8, `[rows, K]` or for FP4 `[rows, K / 2]`; scale factors, empty for formats without: as uint8 in the blocked layout, or for
        e4m3_1x128 `[rows, K / 128]` and for e4m3_128x128 `[ceil(rows / 128), K / 128]` as float32; and the scale of the whole matrix, which
        multiplies every product: give it to the gate as a scalar.
    """
    if is_tensor(values):
        if place(values, "values") is not None:
            raise ArgumentError("values: a tensor on a GPU, and this quantises on the host; give values.cpu()")
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
    wide = format in ("e4m3_1x128", "e4m3_128x128")
    factors = np.frombuffer(scales, np.float32).reshape(-1, array.shape[1] // 128) if wide else np.frombuffer(scales, np.uint8)
    return np.frombuffer(codes, np.uint8).reshape(array.shape[0], -1).copy(), factors.copy(), tensor_scale


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
    module, where = (torch(), {"device": scales.device}) if is_tensor(scales) else (np, {})
    if scales.dtype.itemsize != 1:
        raise ArgumentError(f"scales: {scales.dtype}; an element has one byte")
    rows, columns = -(-shape[0] // 128), -(-shape[1] // 4)
    padded = module.zeros((rows * 128, columns * 4), dtype=module.uint8, **where)
    padded[: shape[0], : shape[1]] = scales.view(module.uint8)
    return padded.reshape(rows, 4, 32, columns, 4).swapaxes(1, 3).reshape(-1)
