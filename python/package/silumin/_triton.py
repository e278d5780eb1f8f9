"""Kernels that Triton has compiled: what is wrong with them, and how long they are predicted to take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, List, Optional, Sequence, Tuple

import numpy as np

from ._errors import ArgumentError, LaunchError, PredictionError
from ._host import host, kind
from ._launch import Buffer, Launch, TensorMap, integer, triple
from ._run import Entry, Prediction, Report, Schedule, emulate, entries, predict


@dataclass(frozen=True)
class TritonReport:
    """What is wrong with a kernel of Triton, and how long it is predicted to take."""

    launch: Launch
    # What the run found; None if it was not asked for.
    report: Optional[Report]
    # The predicted time; None if it was not asked for, or if there is none.
    prediction: Optional[Prediction]
    # Why there is no time.
    no_time: str = ""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return self.report is None or self.report.ok

    def __str__(self) -> str:
        parts = [str(part) for part in (self.report, self.prediction) if part is not None]
        if self.no_time:
            parts.append(f"predicted no time: {self.no_time}")
        return "\n\n".join(parts)


def _metadata(compiled: Any, name: str, default: Any) -> Any:
    """A field of the metadata, which is a named tuple, or a dict in old versions."""
    metadata = getattr(compiled, "metadata", None)
    if isinstance(metadata, dict):
        return metadata.get(name, default)
    return getattr(metadata, name, default)


def _ptx(compiled: Any) -> str:
    try:
        ptx: Any = compiled.asm["ptx"]
    except (AttributeError, KeyError, TypeError, IndexError):
        ptx = None
    if isinstance(ptx, bytes):
        ptx = ptx.decode("utf-8", "replace")
    if not isinstance(ptx, str):
        raise ArgumentError(
            f"compiled: {kind(compiled)} without asm[\"ptx\"]; give what triton.compile, kernel.warmup(...) or a launch returns, "
            "compiled for a target of \"cuda\""
        )
    return ptx


def _entry(ptx: str, name: Optional[str]) -> Entry:
    known = entries(ptx)
    if not known:
        raise ArgumentError("compiled: there is no .entry in its PTX")
    found = [entry for entry in known if entry.name == name] or known[:1]
    return found[0]


def _scratch(compiled: Any, kind: str, grid: Tuple[int, int, int], ctas: int) -> Optional[Buffer]:
    """A scratch buffer of the launch; null where the kernel needs none."""
    size = _metadata(compiled, f"{kind}_scratch_size", 0) or 0
    x, y, z = grid
    return Buffer(int(size) * x * y * z * ctas, None, f"{kind}_scratch") if size else None


_SWIZZLES = ("none", "32b", "64b", "128b")


def _is_descriptor(value: Any) -> bool:
    """Whether it is a `TensorDescriptor` of Triton, or one that looks like it."""
    return all(hasattr(value, name) for name in ("base", "shape", "strides", "block_shape"))


def _descriptor(value: Any, label: str, meta: Any) -> List[Any]:
    """What a kernel takes for a descriptor of the host: the tensor map, the shape and the strides."""
    if not meta or meta.get("is_im2col") or meta.get("fp4_padded"):
        raise ArgumentError(
            f"{label}: the kernel's metadata has no tiled tensor map for this descriptor; give what the kernel takes for it, such as a TensorMap"
        )
    memory = host(value.base, label)
    if memory is None:
        raise ArgumentError(f"{label}.base: {kind(value.base)}; it is a numpy array or a CPU tensor")
    shape, strides = ([int(size) for size in sizes] for sizes in (value.shape, value.strides))
    tensor_map = TensorMap(
        value.base,
        box=list(meta["block_size"])[::-1],
        dims=shape[::-1],
        strides=[stride * memory.itemsize for stride in strides[:-1]][::-1],
        data_type="tf32" if getattr(value, "round_f32_to_tf32", False) else None,
        swizzle=_SWIZZLES[int(meta["swizzle"])],
        l2_promotion="128b",
        oob_fill="nan_request_zero_fma" if getattr(value, "padding", "zero") == "nan" else "none",
    )
    return [tensor_map, *(np.int32(size) for size in shape), *(np.int64(stride) for stride in strides)]


def _expanded(compiled: Any, args: Any) -> List[Any]:
    """Arguments with descriptors written out."""
    metas = iter(_metadata(compiled, "tensordesc_meta", None) or ())
    out: List[Any] = []
    for i, arg in enumerate(args):
        out += _descriptor(arg, f"args[{i}]", next(metas, None)) if _is_descriptor(arg) else [arg]
    return out


def triton_launch(compiled: Any, grid: Any, args: Sequence[Any]) -> Launch:
    """The launch of a compiled kernel of Triton, as `emulate` and `predict` take it.

    `grid` counts programs, as Triton's does. The block, the cluster and shared memory come from the metadata and the PTX.
    """
    ptx = _ptx(compiled)
    entry = _entry(ptx, _metadata(compiled, "name", None))
    if callable(grid):
        raise ArgumentError("grid: a function; call it with the kernel's constexprs, and give what it returns")
    programs = triple(grid, "grid")
    ctas = int(_metadata(compiled, "num_ctas", 1) or 1)
    # Triton's clusters lie along x, where CTAs of a program are neighbours.
    cluster = entry.cluster or tuple(_metadata(compiled, "cluster_dims", None) or (ctas, 1, 1))
    warps = integer(_metadata(compiled, "num_warps", 4), "metadata.num_warps", 1, 32)
    given = _expanded(compiled, args)
    parameters = entry.parameters
    missing = len(parameters) - len(given)
    # Triton appends pointers to scratch memory, two of them in its later versions, which kernels take whether they use them or not.
    if 0 < missing <= 2 and all(p.nbytes == 8 for p in parameters[len(given) :]):
        kinds = ("global", "profile")[:missing]
        given += [_scratch(compiled, kind, programs, ctas) for kind in kinds]
    elif missing != 0:
        takes = ", ".join(f"{p.name} ({p.nbytes} bytes)" for p in parameters)
        raise LaunchError(
            f"args: {len(given)} arguments, and `{entry.name}` has {len(parameters)} parameters, of which up to two at the end are scratch "
            f"pointers: {takes}. Leave out constexprs, and what Triton has made one: arguments that are None, and ints that are 1"
        )
    x, y, z = programs
    return Launch(
        grid=(x * ctas, y, z),
        block=entry.block or (32 * warps, 1, 1),
        cluster=cluster,
        shared=integer(_metadata(compiled, "shared", 0) or 0, "metadata.shared", 0, 2**31),
        entry=entry.name,
        args=given,
    )


def triton(
    compiled: Any,
    grid: Any,
    args: Sequence[Any],
    *,
    chip: Optional[str] = None,
    run: bool = True,
    time: bool = True,
    schedule: Schedule = "early",
    tracking: str = "on",
    values: bool = True,
    time_limit: Optional[float] = None,
    **options: Any,
) -> TritonReport:
    """Says what is wrong with a compiled kernel of Triton, and how long it is predicted to take. Triton itself is not imported.

    Args:
        compiled: what `triton.compile`, `kernel.warmup(...)` or a launch returns: it has `asm["ptx"]` and `metadata`.
        grid: programs along x, y and z.
        args: the kernel's arguments in order, without constexprs: numpy arrays, CPU tensors, numbers, and
            `TensorDescriptor`s over arrays or CPU tensors. Scratch pointers that Triton appends are added.
        chip: the chip of the predicted time; left out, it follows from the target.
        run: whether to emulate the kernel. Arrays are then written in place.
        time: whether to predict its time. A kernel that is wrong may have none.
        schedule, tracking, values, time_limit: as for `emulate`.
        options: further options of `predict`, such as `clock`, `warm` or `issue`.
    """
    ptx = _ptx(compiled)
    launch = triton_launch(compiled, grid, args)
    prediction, no_time = None, ""
    # First, while arrays hold what the kernel is launched with: it may branch on them.
    if time:
        try:
            prediction = predict(ptx, launch, chip=chip, time_limit=time_limit, **options)
        except PredictionError as error:
            # What keeps it from ending is for the run to say.
            if not run:
                raise
            no_time = str(error)
    report = None
    if run:
        report = emulate(ptx, launch, schedule=schedule, tracking=tracking, values=values, time_limit=time_limit)
    return TritonReport(launch, report, prediction, no_time)
