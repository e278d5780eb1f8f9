#!/usr/bin/env python3
"""Asks the driver's linker (cuLinkCreate) for a kernel with `setmaxnreg` in every way that its API has, and says what became of it.

    python3 linker.py KERNEL.ptx [KERNEL.fatbin]        # Python and the driver; nvdisasm on the PATH reads the machine code

A line for each way: what the calls returned, whether the compiler said that it ignores `setmaxnreg` (C7504), registers and spills
by its log, and how many USETMAXREG the machine code has. The control is the module that the driver compiles as it loads the text,
whose machine code it does not hand out: there the log alone tells.
"""
import ctypes
import re
import subprocess
import sys
import tempfile

INFO, INFO_SIZE, ERROR, ERROR_SIZE, VERBOSE = 3, 4, 5, 6, 12
PTX, FATBINARY, OBJECT, LIBRARY = 1, 2, 3, 4
ROOM = 1 << 16

# CUjit_option of the CUDA driver API, those that change code: name, values.
WAYS = [
    ("nothing", {}),
    ("MAX_REGISTERS 168", {0: 168}),
    ("MAX_REGISTERS 255", {0: 255}),
    ("THREADS_PER_BLOCK 384", {1: 384}),
    ("OPTIMIZATION_LEVEL 4", {7: 4}),
    ("TARGET_FROM_CUCONTEXT", {8: 0}),
    ("TARGET 90a (90 + 0x10000)", {9: 90 + 0x10000}),
    ("FAST_COMPILE 1", {16: 1}),
    ("LTO 1", {20: 1}),
    ("OPTIMIZE_UNUSED_DEVICE_VARIABLES 1", {29: 1}),
    ("POSITION_INDEPENDENT_CODE 0", {30: 0}),
    ("POSITION_INDEPENDENT_CODE 1", {30: 1}),
    ("MIN_CTA_PER_SM 1", {31: 1}),
    ("MAX_THREADS_PER_BLOCK 384", {32: 384}),
    ("MIN_CTA_PER_SM 1, MAX_THREADS_PER_BLOCK 384, OVERRIDE_DIRECTIVE_VALUES 1", {31: 1, 32: 384, 33: 1}),
    ("MAX_REGISTERS 168, OVERRIDE_DIRECTIVE_VALUES 1", {0: 168, 33: 1}),
    ("SPLIT_COMPILE 1", {34: 1}),
]


def load():
    for name in ("libcuda.so.1", "libcuda.so"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            pass
    sys.exit("no CUDA driver: neither libcuda.so.1 nor libcuda.so can be loaded")


def options(extra):
    """Numbers, values and the two logs."""
    logs = [ctypes.create_string_buffer(ROOM) for _ in range(2)]
    address = [ctypes.cast(log, ctypes.c_void_p).value for log in logs]
    wanted = {INFO: address[0], INFO_SIZE: ROOM, ERROR: address[1], ERROR_SIZE: ROOM, VERBOSE: 1, **extra}
    names = (ctypes.c_int * len(wanted))(*wanted)
    values = (ctypes.c_void_p * len(wanted))(*wanted.values())
    return len(wanted), names, values, logs


def machine_code(cubin):
    """How many USETMAXREG there are; None without a disassembler."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        try:
            text = subprocess.run(["nvdisasm", "-c", file.name], capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):
            return None
    return text.count("USETMAXREG")


def report(what, result, logs, cubin=None):
    text = "\n".join(log.value.decode(errors="replace") for log in logs)
    found = lambda pattern: ",".join(re.findall(pattern, text)) or "-"
    line = f"{what:75} result {result:3}  C7504 {'yes' if 'C7504' in text else 'no':3}"
    registers, spilled = found(r"Used (\d+) registers"), found(r"(\d+) bytes spill stores")
    line += f"  registers {registers}  spilled {spilled}"
    if cubin is not None:
        line += f"  {len(cubin)} bytes  USETMAXREG {machine_code(cubin)}"
    print(line)
    for log in re.findall(r"^.*(?:error|fatal).*$", text, re.M)[:2]:
        print(f"    {log.strip()[:160]}")


def link(cuda, what, extra, image, kind):
    count, names, values, logs = options(extra)
    state, cubin, size = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t()
    result = cuda.cuLinkCreate_v2(count, names, values, ctypes.byref(state))
    if result == 0:
        result = cuda.cuLinkAddData_v2(
            state, kind, image, ctypes.c_size_t(len(image)), b"kernel", 0, None, None)
    if result == 0:
        result = cuda.cuLinkComplete(state, ctypes.byref(cubin), ctypes.byref(size))
    data = ctypes.string_at(cubin, size.value) if result == 0 else None
    if state:
        cuda.cuLinkDestroy(state)
    report(what, result, logs, data)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    cuda = load()
    device, context, version = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
    assert cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert cuda.cuCtxSetCurrent(context) == 0 and cuda.cuDriverGetVersion(ctypes.byref(version)) == 0
    text = open(sys.argv[1], "rb").read()
    print(f"driver for CUDA {version.value // 1000}.{version.value % 1000 // 10}, {text.count(b'setmaxnreg.')} setmaxnreg in the text")
    count, names, values, logs = options({})
    module = ctypes.c_void_p()
    result = cuda.cuModuleLoadDataEx(ctypes.byref(module), text + b"\0", count, names, values)
    report("cuModuleLoadDataEx (control)", result, logs)
    for what, extra in WAYS:
        # A text of its own each, so that the driver's cache of compiled code answers none.
        link(cuda, f"linked, {what}", extra, text + f"\n// {what}\n".encode() + b"\0", PTX)
    regs = text.replace(b".minnctapersm 1", b".maxnreg 168", 1)
    link(cuda, "linked, .maxnreg 168 in the place of .minnctapersm 1", {}, regs + b"\0", PTX)
    hidden = text.replace(b".visible .entry", b".entry")
    link(cuda, "linked, an entry that is not visible", {}, hidden + b"\0", PTX)
    if len(sys.argv) > 2:
        image = open(sys.argv[2], "rb").read()
        for kind, name in ((FATBINARY, "FATBINARY"), (OBJECT, "OBJECT"), (LIBRARY, "LIBRARY")):
            link(cuda, f"linked as {name}", {}, image, kind)


if __name__ == "__main__":
    main()
