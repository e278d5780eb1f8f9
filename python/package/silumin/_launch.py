"""Launches: what is run, with which arguments."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field, fields
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from ._errors import ArgumentError, LaunchError
from ._host import DATA_TYPES, Host, host, is_tensor, kind

Dims = Union[int, Sequence[int]]


@dataclass
class Launch:
    """A launch of a kernel.

    Args:
        grid: CTAs along x, y and z; an int is x alone.
        block: threads of a CTA along x, y and z. Left out, it is the kernel's `.reqntid`.
        cluster: CTAs of a cluster. Left out, it is the kernel's `.reqnctapercluster`, or one CTA.
        shared: dynamic shared memory in bytes.
        entry: name of the kernel. It may be left out where the PTX has one.
        args: one argument per parameter, in order.

    An argument is a numpy array or a CPU tensor (a pointer to its memory), a `Pointer`, a `Buffer`, an `Output`, a `TensorMap`, a
    `Struct`, a numpy scalar (as many bytes as its dtype has), a Python int, float or bool (as many bytes as the parameter has), `bytes`
    (raw), `None` (a null pointer), or a string: the name of one of `arrays`.
    """

    grid: Dims
    block: Optional[Dims] = None
    cluster: Optional[Dims] = None
    shared: int = 0
    entry: Optional[str] = None
    args: Sequence[Any] = ()


@dataclass(frozen=True, eq=False)
class Pointer:
    """A pointer into an array. `offset` is in bytes."""

    array: Any
    offset: int = 0


@dataclass(frozen=True, eq=False)
class Output:
    """An array that holds nothing before the launch: a kernel that reads it before it writes it has a finding.

    After the launch, bytes that the kernel has not written are 0, and `Report.unwritten` says how many there are.
    """

    array: Any


@dataclass(frozen=True, eq=False)
class Buffer:
    """Memory of the device without an array: scratch, or operands whose values do not matter, as for predicted times.

    Args:
        nbytes: size in bytes.
        fill: the byte that it holds; left out, it is undefined, and reading it before writing it is a finding.
    """

    nbytes: int
    fill: Optional[int] = None
    name: Optional[str] = None


@dataclass(frozen=True, eq=False)
class TensorMap:
    """A tensor map: the arguments of `cuTensorMapEncodeTiled`, under the names that launch files have. Inner dimension first.

    Args:
        array: an array, a `Buffer`, an `Output`, or the name of one of `arrays`.
        box: elements that a copy moves, along each dimension.
        dims: elements of the tensor. Left out, the array's shape, reversed.
        strides: bytes between rows, matrices and so on, one less than there are dimensions. Left out, those of the array, or without
            gaps.
        data_type: u8, u16, u32, i32, u64, i64, f16, f32, f64, bf16, f32_ftz, tf32, tf32_ftz, 16u4_align8b, 16u4_align16b or
            16u6_align16b. Left out, the array's dtype. `element` is another name for it.
        swizzle: none, 32b, 64b, 128b, 128b_atom_32b, 128b_atom_32b_flip_8b or 128b_atom_64b.
        interleave: none, 16b or 32b.
        l2_promotion: none, 64b, 128b or 256b.
        oob_fill: none, zeros or nan_request_zero_fma.
        offset: bytes into the array.
        lower_corner, upper_corner, channels, pixels: instead of `box`, the map of `cuTensorMapEncodeIm2col`.
    """

    array: Any
    box: Optional[Sequence[int]] = None
    dims: Optional[Sequence[int]] = None
    strides: Optional[Sequence[int]] = None
    data_type: Optional[str] = None
    swizzle: str = "none"
    interleave: str = "none"
    l2_promotion: str = "none"
    oob_fill: str = "none"
    element_strides: Optional[Sequence[int]] = None
    offset: int = 0
    lower_corner: Optional[Sequence[int]] = None
    upper_corner: Optional[Sequence[int]] = None
    channels: Optional[int] = None
    pixels: Optional[int] = None
    element: Optional[str] = None


@dataclass(frozen=True, eq=False)
class Struct:
    """A struct that is passed by value, as kernels of CUTLASS take it: zeros, with fields at their offsets.

    Args:
        nbytes: size in bytes.
        fields: from the offset in bytes to the value. Numbers are numpy scalars, because a field has no size of its own.
    """

    nbytes: int
    fields: Mapping[int, Any] = field(default_factory=dict)


@dataclass
class RawBuffer:
    name: str
    size: int
    data: Optional[bytes] = None
    fill: Optional[int] = None
    # Where the bytes go after the run.
    home: Optional[Host] = None


@dataclass
class RawMap:
    buffer: int
    offset: int
    data_type: str
    dims: List[int]
    strides: List[int]
    box_dims: List[int]
    element_strides: List[int]
    interleave: str
    swizzle: str
    l2_promotion: str
    oob_fill: str
    lower_corner: List[int]
    upper_corner: List[int]
    channels: int
    pixels: Optional[int]


@dataclass
class RawArg:
    label: str
    offset: int = 0
    raw: Optional[bytes] = None
    integer: Optional[int] = None
    real: Optional[float] = None
    pointer: Optional[Tuple[int, int]] = None
    map: Optional[RawMap] = None
    structure: Optional[Tuple[int, List["RawArg"]]] = None


@dataclass
class RawLaunch:
    name: str
    ptx: str
    entry: Optional[str]
    grid: Tuple[int, int, int]
    block: Optional[Tuple[int, int, int]]
    cluster: Optional[Tuple[int, int, int]]
    shared: int
    args: List[RawArg]
    buffers: List[RawBuffer]
    chip: Optional[str]


def integer(value: Any, label: str, low: int, high: int) -> int:
    """An integer in a range."""
    if isinstance(value, (bool, np.bool_)):
        raise ArgumentError(f"{label} = {value}: it is an int, not a bool")
    try:
        number = operator.index(value)
    except TypeError:
        raise ArgumentError(f"{label} = {value!r}: it is an int, not {kind(value)}") from None
    if not low <= number <= high:
        raise ArgumentError(f"{label} = {number}: it is from {low} to {high}")
    return number


def integers(values: Any, label: str, low: int, high: int) -> List[int]:
    """A list of integers in a range."""
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
        raise ArgumentError(f"{label} = {values!r}: it is a list of ints")
    return [integer(value, f"{label}[{i}]", low, high) for i, value in enumerate(values)]


def triple(value: Any, label: str) -> Tuple[int, int, int]:
    """Up to three sizes; those that are missing are 1."""
    high = 2**32 - 1
    sizes = integers(value, label, 0, high) if hasattr(value, "__iter__") else [integer(value, label, 0, high)]
    if not 1 <= len(sizes) <= 3:
        raise ArgumentError(f"{label} = {value!r}: it has one to three sizes, x, y and z")
    x, y, z = (sizes + [1, 1])[:3]
    return x, y, z


def launch_of(value: Any) -> Launch:
    """A launch from a `Launch` or from a mapping with its fields."""
    if isinstance(value, Launch):
        return value
    names = [f.name for f in fields(Launch)]
    if isinstance(value, Mapping):
        unknown = [str(name) for name in value if name not in names]
        if unknown:
            raise ArgumentError(f"launch: there is no field `{unknown[0]}`; the fields are {', '.join(names)}")
        if "grid" not in value:
            raise ArgumentError("launch: `grid` is missing: the CTAs along x, y and z")
        return Launch(**value)
    raise ArgumentError(f"launch: {kind(value)}; give a silumin.Launch, or a dict with the fields {', '.join(names)}")


class Encoder:
    """Turns arguments into what the native half takes. Arrays that are given twice are one buffer."""

    def __init__(self, arrays: Optional[Mapping[str, Any]], writes: bool) -> None:
        self.arrays = arrays or {}
        # Whether arrays are written after the run.
        self.writes = writes
        self.buffers: List[RawBuffer] = []
        self._known: Dict[Any, int] = {}
        self._hosts: List[Tuple[Host, str, int]] = []

    def args(self, values: Any) -> List[RawArg]:
        if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__") or isinstance(values, np.ndarray):
            raise ArgumentError(f"args: {kind(values)}; it is a list with one argument per parameter")
        if isinstance(values, Mapping):
            raise ArgumentError("args: a dict; it is a list in the order of the parameters; a dict of arrays is `arrays`")
        return [self.arg(value, f"args[{i}]") for i, value in enumerate(values)]

    def arg(self, value: Any, label: str, offset: int = 0) -> RawArg:
        if isinstance(value, str):
            return self.arg(self._named(value, label), f"{label} (`{value}`)", offset)
        raw = RawArg(label, offset)
        if value is None:
            raw.raw = bytes(8)
        elif isinstance(value, TensorMap):
            raw.map = self._map(value, label)
        elif isinstance(value, Struct):
            raw.structure = self._struct(value, label)
        elif isinstance(value, Pointer):
            at = integer(value.offset, f"{label}.offset", 0, 2**63)
            raw.pointer = (self._memory(value.array, label), at)
        elif isinstance(value, (Buffer, Output, np.ndarray)) or is_tensor(value):
            raw.pointer = (self._memory(value, label), 0)
        elif isinstance(value, np.generic):
            if value.dtype.hasobject:
                raise ArgumentError(f"{label}: a scalar of {value.dtype}; give it a numeric dtype")
            raw.raw = np.asarray(value, dtype=value.dtype.newbyteorder("<")).tobytes()
        elif isinstance(value, (bytes, bytearray, memoryview)):
            raw.raw = bytes(value)
        elif isinstance(value, int):
            raw.integer = integer(int(value), label, -(2**64), 2**64)
        elif isinstance(value, float):
            raw.real = value
        else:
            raise ArgumentError(
                f"{label}: {kind(value)}; give a numpy array, a CPU tensor, a number, a numpy scalar, bytes, None, or a Pointer, Buffer, "
                "Output, TensorMap or Struct of silumin"
            )
        return raw

    def _named(self, name: str, label: str) -> Any:
        if name not in self.arrays:
            known = ", ".join(self.arrays) or "none"
            raise ArgumentError(f"{label}: there is no array `{name}` in arrays; there are: {known}")
        value = self.arrays[name]
        if isinstance(value, str):
            raise ArgumentError(f"{label}: arrays[{name!r}] is the name {value!r}; give the array itself")
        return value

    def _memory(self, value: Any, label: str) -> int:
        """The index of a buffer."""
        if isinstance(value, str):
            return self._memory(self._named(value, label), f"{label} (`{value}`)")
        if isinstance(value, Buffer):
            if id(value) not in self._known:
                nbytes = integer(value.nbytes, f"{label}.nbytes", 0, 2**63)
                fill = None if value.fill is None else integer(value.fill, f"{label}.fill", 0, 255)
                self._known[id(value)] = self._add(RawBuffer(value.name or label, nbytes, fill=fill), value)
            return self._known[id(value)]
        undefined = isinstance(value, Output)
        memory = host(value.array if isinstance(value, Output) else value, label)
        if memory is None:
            raise ArgumentError(f"{label}: {kind(value)}; give a numpy array, a CPU tensor, or a Buffer")
        key = (memory.address, memory.nbytes)
        if key in self._known and memory.nbytes:
            return self._known[key]
        for other, name, _ in self._hosts:
            if memory.address < other.address + other.nbytes and other.address < memory.address + memory.nbytes:
                raise ArgumentError(
                    f"{label}: its memory overlaps that of {name} in part, and the two would become different buffers; give the whole "
                    "array to both, one of them as Pointer(array, offset=BYTES)"
                )
        if self.writes and not memory.writable:
            raise ArgumentError(f"{label}: the array is read-only, and what the kernel leaves is written back to it; give array.copy()")
        data = None if undefined else memory.read()
        index = self._add(RawBuffer(_plain(label), memory.nbytes, data=data, home=memory), memory)
        self._known[key] = index
        if memory.nbytes:
            self._hosts.append((memory, label, index))
        return index

    def _add(self, buffer: RawBuffer, owner: Any) -> int:
        # Keys are ids and addresses, so owners must live as long as they.
        self._known[("owner", len(self.buffers))] = owner
        self.buffers.append(buffer)
        return len(self.buffers) - 1

    def _struct(self, value: Struct, label: str) -> Tuple[int, List[RawArg]]:
        size = integer(value.nbytes, f"{label}.nbytes", 1, 2**31)
        if not isinstance(value.fields, Mapping):
            raise ArgumentError(f"{label}.fields: {kind(value.fields)}; it is a dict from offsets in bytes to values")
        out = []
        for at, inner in value.fields.items():
            name = f"{label}.fields[{at}]"
            if isinstance(inner, Struct):
                raise ArgumentError(f"{name}: a struct within a struct; give its fields to the outer one, with their offsets there")
            out.append(self.arg(inner, name, integer(at, name, 0, 2**31)))
        return size, out

    def _map(self, value: TensorMap, label: str) -> RawMap:
        index = self._memory(value.array, label)
        inner = self._named(value.array, label) if isinstance(value.array, str) else value.array
        inner = inner.array if isinstance(inner, Output) else inner
        memory = None if isinstance(inner, Buffer) else host(inner, label)
        word, half = 2**64 - 1, 2**32 - 1
        data_type = value.data_type or value.element
        if data_type is None and memory is not None:
            data_type = DATA_TYPES.get(memory.dtype)
        if data_type is None:
            what = "a Buffer" if memory is None else memory.dtype
            raise ArgumentError(f"{label}.data_type: {what} has no type of a tensor map; give data_type, such as \"bf16\" or \"u8\"")
        if value.dims is not None:
            dims = integers(value.dims, f"{label}.dims", 0, word)
        elif memory is not None:
            dims = list(memory.shape[::-1])
        else:
            raise ArgumentError(f"{label}.dims: a Buffer has no shape; give dims, inner dimension first")
        if value.strides is not None:
            strides = integers(value.strides, f"{label}.strides", 0, word)
        elif value.dims is None and memory is not None:
            strides = list(memory.strides[::-1][1:])
        else:
            bits = _BITS.get(data_type, 8)
            strides, row = [], 1
            for size in dims[:-1]:
                row *= size
                strides.append(row * bits // 8)
        column = [value.lower_corner, value.upper_corner, value.channels, value.pixels]
        im2col = any(part is not None for part in column)
        if im2col and (value.box is not None or any(part is None for part in column)):
            raise ArgumentError(f"{label}: an im2col map has lower_corner, upper_corner, channels and pixels, all four, and no box")
        if not im2col and value.box is None:
            raise ArgumentError(f"{label}.box: it is missing: the elements that a copy moves, inner dimension first")
        steps = value.element_strides
        ints = range(-(2**31), 2**31)
        return RawMap(
            buffer=index,
            offset=integer(value.offset, f"{label}.offset", 0, 2**63),
            data_type=str(data_type),
            dims=dims,
            strides=strides,
            box_dims=[] if im2col else integers(value.box, f"{label}.box", 0, half),
            element_strides=[1] * len(dims) if steps is None else integers(steps, f"{label}.element_strides", 0, half),
            interleave=str(value.interleave),
            swizzle=str(value.swizzle),
            l2_promotion=str(value.l2_promotion),
            oob_fill=str(value.oob_fill),
            lower_corner=integers(value.lower_corner, f"{label}.lower_corner", ints[0], ints[-1]) if im2col else [],
            upper_corner=integers(value.upper_corner, f"{label}.upper_corner", ints[0], ints[-1]) if im2col else [],
            channels=integer(value.channels, f"{label}.channels", 0, half) if im2col else 0,
            pixels=integer(value.pixels, f"{label}.pixels", 0, half) if im2col else None,
        )


# Bits of an element in global memory.
_BITS = {
    "u8": 8, "u16": 16, "u32": 32, "i32": 32, "u64": 64, "i64": 64, "f16": 16, "f32": 32, "f64": 64, "bf16": 16, "f32_ftz": 32,
    "tf32": 32, "tf32_ftz": 32, "16u4_align8b": 4, "16u4_align16b": 4, "16u6_align16b": 6,
}  # fmt: skip


def _plain(label: str) -> str:
    """The name in brackets behind a label, if there is one: arrays of a mapping have better names than args[3]."""
    return label.split("`")[1] if "`" in label else label


def encode(
    name: str, ptx: str, launch: Launch, arrays: Optional[Mapping[str, Any]], chip: Optional[str], writes: bool
) -> RawLaunch:
    """A launch as the native half takes it."""
    encoder = Encoder(arrays, writes)
    args = encoder.args(launch.args)
    if launch.entry is not None and not isinstance(launch.entry, str):
        raise ArgumentError(f"entry: {kind(launch.entry)}; it is the name of a kernel")
    return RawLaunch(
        name=name,
        ptx=ptx,
        entry=launch.entry,
        grid=triple(launch.grid, "grid"),
        block=None if launch.block is None else triple(launch.block, "block"),
        cluster=None if launch.cluster is None else triple(launch.cluster, "cluster"),
        shared=integer(launch.shared, "shared", 0, 2**32 - 1),
        args=args,
        buffers=encoder.buffers,
        chip=chip,
    )


def with_arrays(launch: Launch, arrays: Any) -> Tuple[Launch, Optional[Mapping[str, Any]]]:
    """Arrays are the arguments themselves, or named by them."""
    if arrays is None:
        return launch, None
    if isinstance(arrays, Mapping):
        return launch, arrays
    if isinstance(arrays, (str, bytes, np.ndarray)) or not hasattr(arrays, "__iter__"):
        raise ArgumentError(f"arrays: {kind(arrays)}; it is a list of all arguments, or a dict of those that args name")
    if len(launch.args):
        raise LaunchError("arrays: a list, and the launch has `args` as well; give one of them, or arrays as a dict of names")
    values = {f.name: getattr(launch, f.name) for f in fields(Launch)}
    return Launch(**{**values, "args": list(arrays)}), None
