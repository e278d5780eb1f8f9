#!/usr/bin/env python3
"""Launches kernels from their launch files, through the CUDA driver, with Python alone.

    launch.py KERNEL.toml [--out DIR]      # runs it once and writes what its buffers hold then to DIR/BUFFER.bin

A launch file (`emit --out DIR`, `silumin-bench-gpu --emit DIR`) names the PTX, the grid, the buffers and the parameters. Where a kernel
has several launches (KERNEL.1.toml, KERNEL.2.toml, ...), the first file stands for all. In a program with a context of its own, such as
one that uses PyTorch:

    kernel = launch.Kernel("kernel.toml")
    bound = kernel.bind(a=x.data_ptr(), b1=w1.data_ptr(), b2=w2.data_ptr(), c=out.data_ptr())
    bound.launch(torch.cuda.current_stream().cuda_stream)      # may be captured

Tensor maps are encoded and arguments laid out when bound: a launch is one call of the driver. Addresses are taken as they are: the
tensors have to be as large as the file says, aligned to 16 bytes, and alive. Buffers that are not given to `bind` and that the file gives
a size and no contents, such as a kernel's workspace, are allocated, and zeroed where the file wants that.
"""
import argparse
import ctypes
import os
import pathlib
import re
import sys
import tomllib

DATA_TYPES = {"u8": 0, "u16": 1, "u32": 2, "u64": 4, "f16": 6, "f32": 7, "bf16": 9, "16u4_align16b": 14}
SWIZZLES = {"none": 0, "32b": 1, "64b": 2, "128b": 3}
PROMOTIONS = {"none": 0, "64b": 1, "128b": 2, "256b": 3}
CLUSTER_DIMENSION = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
PROGRAMMATIC = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
JIT_ERROR_LOG, JIT_ERROR_LOG_BYTES = 5, 6
MAP_BYTES = 128
LOG_BYTES = 8192


class Attribute(ctypes.Structure):
    """CUlaunchAttribute, with the one kind of value that is used here."""

    _fields_ = [("id", ctypes.c_uint), ("pad", ctypes.c_char * 4), ("value", ctypes.c_uint * 16)]


class Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("attribute_count", ctypes.c_uint),
    ]


class Driver:
    """The driver's library, with errors as exceptions."""

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")

    def __call__(self, name, *arguments):
        result = getattr(self.library, name)(*arguments)
        if result != 0:
            text = ctypes.c_char_p()
            self.library.cuGetErrorName(result, ctypes.byref(text))
            raise RuntimeError(f"{name}: {text.value.decode() if text.value else result}")

    def primary_context(self):
        """Makes the first GPU's own context the thread's, unless it has one."""
        self("cuInit", 0)
        context = ctypes.c_void_p()
        self("cuCtxGetCurrent", ctypes.byref(context))
        if not context.value:
            self("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self("cuCtxSetCurrent", context)

    def allocate(self, size):
        address = ctypes.c_uint64()
        self("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def write(self, address, data):
        self("cuMemcpyHtoD_v2", ctypes.c_uint64(address), data, ctypes.c_size_t(len(data)))

    def read(self, address, size):
        data = ctypes.create_string_buffer(size)
        self("cuMemcpyDtoH_v2", data, ctypes.c_uint64(address), ctypes.c_size_t(size))
        return data.raw


_driver = None


def driver():
    """The one driver of the process."""
    global _driver
    if _driver is None:
        _driver = Driver()
        _driver.primary_context()
    return _driver


def files_of(path):
    """The launch files of a kernel, in order, from the first."""
    path = pathlib.Path(path)
    if not (numbered := re.fullmatch(r"(.*)\.1\.toml", path.name)):
        return [path]
    files, index = [], 1
    while (file := path.with_name(f"{numbered[1]}.{index}.toml")).exists():
        files.append(file)
        index += 1
    return files


class Kernel:
    """A kernel, compiled by the driver: one module, one or several launches."""

    def __init__(self, path):
        self.files = files_of(path)
        self.launches = [tomllib.loads(file.read_text()) for file in self.files]
        folder, cuda = self.files[0].parent, driver()
        self.modules = {}
        self.functions = []
        for launch in self.launches:
            name = launch["ptx"]
            if name not in self.modules:
                self.modules[name] = load((folder / name).read_text())
            function = ctypes.c_void_p()
            cuda("cuModuleGetFunction", ctypes.byref(function), self.modules[name], launch["kernel"].encode())
            cuda("cuFuncSetAttribute", function, MAX_DYNAMIC_SHARED, launch["dynamic_smem"])
            self.functions.append(function)

    def buffers(self):
        """All buffers of all launches: a size or a file, what they hold. What a launch leaves in a file for the next one
        to find stays in memory here: the first to name a buffer says what it is."""
        buffers = {}
        for launch in self.launches:
            for name, buffer in launch.get("buffers", {}).items():
                buffers.setdefault(name, buffer)
        return buffers

    def own(self, given):
        """Addresses of the buffers that are not given and that nobody gives: the workspace."""
        addresses = {}
        for name, buffer in self.buffers().items():
            size = buffer.get("bytes")
            if name in given or size is None or "fill" in buffer and buffer["fill"] != 0:
                continue
            addresses[name] = driver().allocate(size)
            driver().write(addresses[name], bytes(size))
        return addresses

    def bind(self, **addresses):
        """The kernel with the addresses of its tensors, by the names of the launch file."""
        addresses = {**self.own(addresses), **addresses}
        return Bound([
            Launch(launch, function, addresses) for launch, function in zip(self.launches, self.functions)
        ])


def load(ptx):
    """A module of PTX text; an error has the compiler's log."""
    log = ctypes.create_string_buffer(LOG_BYTES)
    options = (ctypes.c_uint * 2)(JIT_ERROR_LOG, JIT_ERROR_LOG_BYTES)
    values = (ctypes.c_void_p * 2)(ctypes.addressof(log), LOG_BYTES)
    module = ctypes.c_void_p()
    try:
        driver()("cuModuleLoadDataEx", ctypes.byref(module), ptx.encode(), 2, options, values)
    except RuntimeError as error:
        raise RuntimeError(f"{error}\n{log.value.decode(errors='replace')}") from None
    return module


def aligned(size, alignment):
    """Zeroed bytes at a multiple of an alignment: what keeps them alive, and their address."""
    memory = ctypes.create_string_buffer(size + alignment)
    address = ctypes.addressof(memory)
    return memory, address + -address % alignment


class Launch:
    """One launch with all of its arguments in place."""

    def __init__(self, launch, function, addresses):
        self.function = function
        self.keep = []
        places = [self.place(parameter, addresses) for parameter in launch["params"]]
        self.places = (ctypes.c_void_p * len(places))(*places)
        cluster = launch.get("cluster", [1, 1, 1])
        attributes = [(CLUSTER_DIMENSION, cluster)] if cluster != [1, 1, 1] else []
        attributes += [(PROGRAMMATIC, [1])] if launch.get("programmatic") else []
        count = len(attributes)
        self.attributes = (Attribute * 2)(*(Attribute(key, b"", (ctypes.c_uint * 16)(*value)) for key, value in attributes))
        grid, block = ((ctypes.c_uint * 3)(*launch[key]) for key in ("grid", "block"))
        self.config = Config(grid, block, launch["dynamic_smem"], None, self.attributes, count)

    def place(self, parameter, addresses):
        """Where a parameter's value lies."""
        if "tensor_map" in parameter:
            return self.encode(parameter["tensor_map"], addresses)
        if "pointer" in parameter:
            value = ctypes.c_uint64(addresses[parameter["pointer"]] + parameter.get("offset", 0))
        elif "u32" in parameter:
            value = ctypes.c_uint32(parameter["u32"])
        elif "f32" in parameter:
            value = ctypes.c_float(parameter["f32"])
        else:
            raise ValueError(f"a parameter of no kind that is known here: {parameter}")
        self.keep.append(value)
        return ctypes.addressof(value)

    def encode(self, recipe, addresses):
        rank = len(recipe["dims"])
        memory, address = aligned(MAP_BYTES, 64)
        self.keep.append(memory)
        if recipe["interleave"] != "none" or recipe["oob_fill"] != "none":
            raise ValueError(f"interleaved tensors and fills are not known here: {recipe}")
        driver()(
            "cuTensorMapEncodeTiled",
            ctypes.c_void_p(address),
            DATA_TYPES[recipe["data_type"]],
            rank,
            ctypes.c_void_p(addresses[recipe["buffer"]] + recipe["offset"]),
            (ctypes.c_uint64 * rank)(*recipe["dims"]),
            (ctypes.c_uint64 * rank)(*recipe["strides"]),
            (ctypes.c_uint * rank)(*recipe["box"]),
            (ctypes.c_uint * rank)(*recipe["element_strides"]),
            0,
            SWIZZLES[recipe["swizzle"]],
            PROMOTIONS[recipe["l2_promotion"]],
            0,
        )
        return address

    def __call__(self, stream):
        self.config.stream = stream
        driver()("cuLaunchKernelEx", ctypes.byref(self.config), self.function, self.places, None)


class Bound:
    """All launches of a kernel on its tensors."""

    def __init__(self, launches):
        self.launches = launches

    def launch(self, stream=None):
        """Puts them in a stream (its handle, an integer)."""
        for launch in self.launches:
            launch(stream)


def run(path, out):
    """Runs a kernel once on the buffers of its launch file."""
    kernel = Kernel(path)
    folder = kernel.files[0].parent
    addresses, sizes = {}, {}
    for name, buffer in kernel.buffers().items():
        if "file" in buffer:
            data = (folder / buffer["file"]).read_bytes()
        else:
            data = bytes([buffer.get("fill", 0)]) * buffer["bytes"]
        addresses[name], sizes[name] = driver().allocate(len(data)), len(data)
        driver().write(addresses[name], data)
    kernel.bind(**addresses).launch()
    driver()("cuCtxSynchronize")
    if out:
        os.makedirs(out, exist_ok=True)
        for name, address in addresses.items():
            pathlib.Path(out, f"{name}.bin").write_bytes(driver().read(address, sizes[name]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--out", help="folder for what the buffers hold afterwards")
    flags = parser.parse_args()
    run(flags.file, flags.out)
    print(f"{flags.file}: has run")
    return 0


if __name__ == "__main__":
    sys.exit(main())
