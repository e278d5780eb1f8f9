"""Kernels of gated dual GEMMs and GEMMs, emitted for one shape and one chip."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple, Union

import numpy as np

from . import _native
from ._errors import ArgumentError, ConfigError
from ._host import host, kind
from ._launch import Buffer, Launch, Output, TensorMap, integer

# Names of dtypes that hold elements of a format. Bits alone go as unsigned integers.
_DTYPES = {
    "f32": ("float32", "uint32"),
    "f16": ("float16", "uint16"),
    "bf16": ("bfloat16", "uint16", "int16"),
    "e4m3": ("float8_e4m3fn", "uint8", "int8"),
    "e5m2": ("float8_e5m2", "uint8", "int8"),
    "e4m3_1x128": ("float8_e4m3fn", "uint8", "int8"),
    "e4m3_128x128": ("float8_e4m3fn", "uint8", "int8"),
    "mxfp8": ("float8_e4m3fn", "uint8", "int8"),
    "mxfp8_e5m2": ("float8_e5m2", "uint8", "int8"),
    "nvfp4": ("uint8", "int8", "float4_e2m1fn_x2"),
    "nvfp4_repacked": ("uint8", "int8"),
    "mxfp4_repacked": ("uint8", "int8"),
    "mxfp4": ("uint8", "int8", "float4_e2m1fn_x2"),
    "scale factors": ("uint8", "int8", "float8_e4m3fn", "float8_e8m0fnu"),
    "f32 scale factors": ("float32",),
    "u32": ("uint32", "int32"),
}


@dataclass(frozen=True)
class Tensor:
    """A tensor that a kernel takes."""

    name: str
    nbytes: int
    # Name of the format: bf16, nvfp4, "scale factors" and so on.
    format: str
    # Whether the kernel writes it.
    output: bool


@dataclass
class _Request:
    gate: str
    shape: Tuple[int, int, int]
    arch: str
    a: str
    b: str
    c: str
    preactivations: str
    batch: Optional[int]
    groups: Optional[int]
    name: Optional[str]
    knobs: List[Tuple[str, str]]


class Kernel:
    """A kernel, with everything that a launch of it takes."""

    def __init__(self, native: "_native.Emitted") -> None:
        self._native = native
        facts = json.loads(native.facts())
        self._plan: Optional[str] = None
        #: The name: of the entry, or what the entries' names start with.
        self.name: str = facts["name"]
        #: The PTX.
        self.ptx: str = native.ptx
        #: The chip, as in `.target`.
        self.arch: str = facts["arch"]
        #: What it computes.
        self.problem: str = facts["problem"]
        #: The plan in short: the settled knobs, and what they come to.
        self.summary: str = facts["plan"]
        #: Every knob with its settled value, as `emit` takes them.
        self.config: Dict[str, str] = facts["knobs"]
        #: Names of the gate's scalars.
        self.scalars: List[str] = facts["scalars"]
        #: Tensors, then vectors and matrices of the gate.
        self.tensors: List[Tensor] = [Tensor(t["name"], t["bytes"], t["format"], t["output"]) for t in facts["tensors"] + facts["vectors"]]
        #: Launches, in order. Their arguments name tensors.
        self.launches: List[Launch] = [_launch(launch) for launch in facts["launches"]]
        self._workspace: Dict[str, Mapping[str, Any]] = {b["name"]: b for b in facts["workspace"]}
        # The gate's vectors and matrices, whether each is a matrix, and bytes; the format of matrices.
        self._vectors: List[Tuple[str, bool, int]] = [(name, matrix, nbytes) for name, matrix, nbytes in facts["gate_vectors"]]
        self._matrix_format: str = facts["matrix_format"]
        self._offsets: Optional[List[int]] = facts["offsets"]
        parameters = [p for launch in facts["launches"] for p in launch["parameters"]]
        self._scalars: Dict[str, str] = {p["name"]: p["scalar"] for p in parameters if p["kind"] == "scalar"}

    @property
    def entry(self) -> str:
        """Name of the first launch's entry."""
        return self.launches[0].entry or self.name

    @property
    def plan(self) -> str:
        """Why the configuration is legal and what bounds its time: what `silumin explain` prints, without predicted times."""
        if self._plan is None:
            self._plan = self._native.explain().rstrip("\n")
        return self._plan

    def inputs(self, seed: int = 1111) -> Dict[str, np.ndarray]:
        """Seeded operands as bytes, by name, in the layouts that the kernel reads; outputs hold poison."""
        drawn = self._native.inputs(integer(seed, "seed", 0, 2**64 - 1))
        return {name: np.frombuffer(data, np.uint8).copy() for name, data in drawn}

    def save(self, path: Union[str, "os.PathLike[str]"], scalars: Optional[Mapping[str, float]] = None) -> Path:
        """Writes the PTX to `path` if it ends in `.ptx`; else PTX and launch file to the folder `path`, as `silumin emit` does.

        `scalars` are values of the gate's scalars in the launch file; those that are left out are 1. Returns the path of the PTX, or of
        the launch file.
        """
        target = Path(path)
        if target.suffix == ".ptx":
            target.write_text(self.ptx)
            return target
        given = dict(scalars or {})
        unknown = [name for name in given if name not in self.scalars]
        if unknown:
            raise ArgumentError(f"scalars: the gate has no scalar `{unknown[0]}`; it has: {', '.join(self.scalars) or 'none'}")
        return Path(self._native.write(str(target), [(name, float(given.get(name, 1.0))) for name in self.scalars]))

    def _arguments(self, arrays: Any, writes: bool) -> Dict[str, Any]:
        """Every argument by its parameter's name, for all launches."""
        if arrays is not None and not isinstance(arrays, Mapping):
            names = ", ".join(t.name for t in self.tensors)
            raise ArgumentError(f"arrays: {kind(arrays)}; a kernel of silumin.emit takes a dict with: {names}")
        given = dict(arrays or {})
        out: Dict[str, Any] = {}
        for tensor in self.tensors:
            out[tensor.name] = self._tensor(tensor, given, writes)
        for name, buffer in self._workspace.items():
            out[name] = given.pop(name, None)
            if out[name] is None and writes:
                zeros = np.zeros(buffer["bytes"], np.uint8)
                out[name] = zeros if buffer["zeroed"] else Output(zeros)
            elif out[name] is None:
                out[name] = Buffer(buffer["bytes"], 0, name)
        for parameter, scalar in self._scalars.items():
            value = given.pop(parameter, None)
            value = given.pop(scalar, None) if value is None else value
            if value is None and writes and scalar != "c_scale":
                raise ArgumentError(f"arrays: the gate's scalar `{scalar}` is missing; add {{\"{scalar}\": 1.0}}")
            try:
                out[parameter] = np.float32(1.0 if value is None else value)
            except (TypeError, ValueError):
                raise ArgumentError(f"arrays[{scalar!r}] = {value!r}: a scalar of the gate is a number") from None
        if given:
            known = [*(t.name for t in self.tensors), *self._scalars.values()]
            raise ArgumentError(f"arrays: the kernel has no tensor `{next(iter(given))}`; it takes: {', '.join(known)}")
        return out

    def _tensor(self, tensor: Tensor, given: Dict[str, Any], writes: bool) -> Any:
        short = tensor.name.split("_", 1)[-1] if tensor.format == "vector" else tensor.name
        value = given.pop(tensor.name, None)
        if value is None and not any(other.name == short for other in self.tensors):
            value = given.pop(short, None)
        if value is None:
            if writes:
                raise ArgumentError(
                    f"arrays: `{tensor.name}` is missing: {tensor.nbytes} bytes of {tensor.format}"
                    f"{', which the kernel writes' if tensor.output else ''}; Kernel.inputs() draws all of them"
                )
            if tensor.name == "offsets" and self._offsets is not None:
                return np.array(self._offsets, np.uint32)
            return Buffer(tensor.nbytes, None, tensor.name)
        inner = value.array if isinstance(value, Output) else value
        memory = None if isinstance(inner, Buffer) else host(inner, f"arrays[{tensor.name!r}]")
        if memory is None:
            if isinstance(inner, Buffer):
                return value
            raise ArgumentError(f"arrays[{tensor.name!r}]: {kind(inner)}; it is a numpy array or a CPU tensor")
        if memory.nbytes != tensor.nbytes:
            raise ArgumentError(
                f"arrays[{tensor.name!r}]: {memory.nbytes} bytes, and the kernel takes {tensor.nbytes} of {tensor.format} ({self.problem})"
            )
        allowed = _DTYPES.get(tensor.format, ())
        # Bytes as they are go for every format.
        if allowed and memory.dtype not in allowed and memory.dtype != "uint8":
            raise ArgumentError(f"arrays[{tensor.name!r}]: {memory.dtype}, and the kernel takes {tensor.format}, as {', '.join(allowed)}")
        return value

    def __repr__(self) -> str:
        return f"<silumin.Kernel {self.name}: {self.problem} on {self.arch}>"


def _launch(facts: Mapping[str, Any]) -> Launch:
    def argument(p: Mapping[str, Any]) -> Any:
        if p["kind"] == "tensor_map":
            keys = ("box", "dims", "strides", "data_type", "swizzle", "l2_promotion")
            return TensorMap(p["buffer"], **{key: p[key] for key in keys})
        if p["kind"] == "number":
            return np.uint32(p["value"])
        return p["buffer"] if p["kind"] == "pointer" else p["name"]

    sizes = {name: tuple(facts[name]) for name in ("grid", "block", "cluster")}
    return Launch(shared=facts["shared"], entry=facts["entry"], args=[argument(p) for p in facts["parameters"]], **sizes)


def _value(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(str(part) for part in value)}]"
    if isinstance(value, (str, int)):
        return str(value)
    raise ConfigError(f"config: {name} = {value!r}: a value is a str, an int, a bool or a list of ints")


def _split(text: str) -> List[str]:
    """The parts between commas outside of brackets."""
    parts, depth = [""], 0
    for c in text:
        depth += (c in "[(") - (c in "])")
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return [part.strip() for part in parts if part.strip()]


def _knobs(config: Union[str, Mapping[str, Any]]) -> List[Tuple[str, str]]:
    if isinstance(config, Mapping):
        return [(str(name), _value(str(name), value)) for name, value in config.items()]
    if not isinstance(config, str):
        raise ConfigError(f"config: {kind(config)}; it is \"auto\", a dict of knobs, or a str as \"tile = [128, 64, 256], stages = 4\"")
    if config.strip() in ("", "auto"):
        return []
    pairs = [part.split("=", 1) for part in _split(config)]
    wrong = next((pair for pair in pairs if len(pair) != 2), None)
    if wrong is not None:
        raise ConfigError(f"config: `{wrong[0]}` is not KNOB = VALUE; give \"auto\", a dict, or a str as \"tile = [128, 64, 256], stages = 4\"")
    return [(name.strip(), value.strip()) for name, value in pairs]


def emit(
    gate: str,
    m: int,
    n: int,
    k: int,
    *,
    arch: str = "sm_100a",
    a: str = "auto",
    b: str = "auto",
    c: str = "auto",
    preactivations: Optional[str] = None,
    batch: Optional[int] = None,
    groups: Optional[int] = None,
    name: Optional[str] = None,
    config: Union[str, Mapping[str, Any]] = "auto",
) -> Kernel:
    """Emits the kernel of a gated dual GEMM, or of a GEMM, for one shape and one chip. It needs no GPU and no compiler.

    Args:
        gate: the mathematics, such as "silu(A @ B1) * (A @ B2)" or "A @ B".
        m, n, k: rows of A and C, columns of C, and the summed dimension. A is [m, k], B1 and B2 are [n, k], all row-major.
        arch: sm_90a, sm_100a, sm_100f, sm_103a, sm_110a, sm_120a or sm_121a.
        a, b, c: formats of A, of B1 and B2, and of C; "auto" is what the chip is usually fed.
        preactivations: format in which the pre-activations are kept: "f32", "bf16" or "f16".
        batch: matrices of a batch.
        groups: groups that share the rows out, such as experts.
        name: what the kernel's name starts with.
        config: knobs by name, as a dict or as "tile = [128, 64, 256], stages = 4"; those that are left out, and "auto", are chosen.

    Raises:
        ConfigError: all that makes the kernel illegal, with a way out for each.
    """
    for label, text in (("gate", gate), ("arch", arch), ("a", a), ("b", b), ("c", c)):
        if not isinstance(text, str):
            raise ArgumentError(f"{label} = {text!r}: it is a str")
    half = 2**32 - 1
    shape = tuple(integer(size, label, 0, half) for label, size in (("m", m), ("n", n), ("k", k)))
    request = _Request(
        gate=gate,
        shape=shape,  # type: ignore[arg-type]
        arch=arch,
        a=a,
        b=b,
        c=c,
        preactivations="none" if preactivations is None else str(preactivations),
        batch=None if batch is None else integer(batch, "batch", 0, half),
        groups=None if groups is None else integer(groups, "groups", 0, half),
        name=None if name is None else str(name),
        knobs=_knobs(config),
    )
    return Kernel(_native.emit(request))


@dataclass(frozen=True)
class Knob:
    """A knob of `emit`."""

    name: str
    # The values it takes.
    takes: str
    help: str


def knobs() -> List[Knob]:
    """The knobs that `config` of `emit` takes."""
    return [Knob(**knob) for knob in json.loads(_native.knobs())]
