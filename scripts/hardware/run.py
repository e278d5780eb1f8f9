#!/usr/bin/env python3
"""Runs launch files on an NVIDIA GPU and compares what they leave with what the emulator left.

    python3 run.py FOLDER [--out OUT] [--only TEXT] [--seconds N] [--jobs N] [--fuse]

Every folder below FOLDER with a launch.toml is one kernel; its `expected` folder has a NAME.bin for each buffer, or a
NAME.blake2b with the hash of one that was too large to carry (64 hexadecimal digits, BLAKE2b of 32 bytes).
A launch.toml has the same form as for `emulate`. Needs Python 3.11, an NVIDIA driver and nothing else. Each kernel
runs in a process of its own, so that a hang or a fault of one leaves the others alone. Buffers without contents
start as zeros. Writes every buffer to OUT/KERNEL/NAME.bin and the report to OUT/report.txt.

An assembler may fuse a product and a sum that write no rounding (ISA, "Floating Point Instructions"). Which ones it
fuses is its own choice, so they are loaded with `.rn`, which means the same and forbids it; --fuse loads them as they are.

FOLDER/known.txt (emulator/tests/corpus/hardware/h200.txt) says which buffers depend on the order of atomic operations or
hold what only the driver knows, and which kernels a GPU stops: they count as good if they are as it says, and the report says so.

Exit status: 0 all identical, 1 some differ or failed, 2 bad input.
"""

import argparse
import concurrent.futures
import ctypes
import hashlib
import math
import os
import pathlib
import re
import struct
import subprocess
import sys
try:
    import tomllib
except ImportError:  # before Python 3.11; only launch files as TOML need it
    tomllib = None

# CUDA driver API: names of cuda.h in order of their values.
DATA_TYPES = "u8 u16 u32 i32 u64 i64 f16 f32 f64 bf16 f32_ftz tf32 tf32_ftz 16u4_align8b 16u4_align16b 16u6_align16b".split()
DATA_BITS = dict(zip(DATA_TYPES, [8, 16, 32, 32, 64, 64, 16, 32, 64, 16, 32, 32, 32, 4, 4, 6]))
INTERLEAVES = ["none", "16b", "32b"]
SWIZZLES = ["none", "32b", "64b", "128b", "128b_atom_32b", "128b_atom_32b_flip_8b", "128b_atom_64b"]
PROMOTIONS = ["none", "64b", "128b", "256b"]
FILLS = {"none": 0, "zeros": 0, "nan_request_zero_fma": 1}
INTEGERS = {"u8": "<B", "u16": "<H", "u32": "<I", "i32": "<i", "u64": "<Q", "i64": "<q", "f32": "<f", "f64": "<d"}

JIT_INFO_LOG, JIT_INFO_SIZE, JIT_ERROR_LOG, JIT_ERROR_SIZE = 3, 4, 5, 6
ATTRIBUTE_DYNAMIC_SMEM, ATTRIBUTE_NON_PORTABLE_CLUSTER = 8, 14
LAUNCH_ATTRIBUTE_CLUSTER = 4


class Failure(Exception):
    """What is wrong, for people."""


class Driver:
    """The functions of libcuda, each checked."""

    def __init__(self):
        name = os.environ.get("SILUMIN_LIBCUDA", "libcuda.so.1")
        try:
            self.lib = ctypes.CDLL(name)
        except OSError as e:
            raise Failure(f"{name}: {e}; an NVIDIA driver is needed") from e

    def __call__(self, function, *args):
        code = getattr(self.lib, function)(*args)
        if code:
            text = ctypes.c_char_p()
            self.lib.cuGetErrorString(code, ctypes.byref(text))
            raise Failure(f"{function}: error {code}, {(text.value or b'unknown').decode()}")


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute: an id, and a union of 64 bytes at offset 8."""

    _fields_ = [("id", ctypes.c_uint), ("pad", ctypes.c_uint), ("value", ctypes.c_uint * 16)]


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("count", ctypes.c_uint),
    ]


def aligned(size, alignment=64):
    """Bytes of ctypes whose address is a multiple of `alignment`; the second value keeps them alive."""
    raw = ctypes.create_string_buffer(size + alignment)
    at = -ctypes.addressof(raw) % alignment
    return (ctypes.c_char * size).from_buffer(raw, at), raw


def tensor_map(driver, table, addresses):
    """The 128 bytes of cuTensorMapEncodeTiled, or of cuTensorMapEncodeIm2col."""
    dims = table["dims"]
    rank = len(dims)
    strides = table.get("strides")
    if strides is None:
        strides, bits = [], DATA_BITS[table["data_type"]]
        for n in dims[:-1]:
            bits *= n
            strides.append(bits // 8)
    ones = [1] * rank
    array = lambda kind, values: (kind * max(1, len(values)))(*values)
    out, keep = aligned(128)
    head = [
        ctypes.byref(out),
        DATA_TYPES.index(table["data_type"]),
        ctypes.c_uint(rank),
        ctypes.c_void_p(addresses[table["buffer"]] + table.get("offset", 0)),
        array(ctypes.c_uint64, dims),
        array(ctypes.c_uint64, strides),
    ]
    tail = [
        array(ctypes.c_uint32, table.get("element_strides", ones)),
        INTERLEAVES.index(table.get("interleave", "none")),
        SWIZZLES.index(table.get("swizzle", "none")),
        PROMOTIONS.index(table.get("l2_promotion", "none")),
        FILLS[table.get("oob_fill", "none")],
    ]
    if "lower_corner" in table:
        corners = [array(ctypes.c_int, table["lower_corner"]), array(ctypes.c_int, table["upper_corner"])]
        sizes = [ctypes.c_uint(table["channels"]), ctypes.c_uint(table["pixels"])]
        driver("cuTensorMapEncodeIm2col", *head, *corners, *sizes, *tail)
    else:
        driver("cuTensorMapEncodeTiled", *head, array(ctypes.c_uint32, table["box"]), *tail)
    del keep
    return bytes(out)


def value(driver, param, addresses, field=False):
    """The bytes of a parameter, or of a field of a struct."""
    if "pointer" in param:
        offset = param.get("pointer_offset" if field else "offset", 0)
        return struct.pack("<Q", addresses[param["pointer"]] + offset)
    if "null" in param:
        return bytes(8)
    if "hex" in param:
        return bytes.fromhex(param["hex"].replace("_", ""))
    if "tensor_map" in param:
        return tensor_map(driver, param["tensor_map"], addresses)
    if "struct" in param:
        out = bytearray(param["struct"]["size"])
        for f in param["struct"].get("fields", []):
            packed = value(driver, f, addresses, True)
            out[f["offset"] : f["offset"] + len(packed)] = packed
        return bytes(out)
    for name, form in INTEGERS.items():
        if name in param:
            return struct.pack(form, param[name])
    raise Failure(f"a parameter has no value: {param}")


def load(driver, text):
    """A module of PTX text, assembled by the driver; prints what it says.

    A `.version` that the driver does not know yet is lowered to the newest that it knows, which the driver names: compilers
    write the version of their own assembler whatever the kernel uses. A kernel that does use more is refused all the same.
    """
    try:
        return load_as_it_is(driver, text)
    except Failure as e:
        known = re.search(r"Unsupported \.version .*current version is '([0-9.]+)'", str(e))
        if not known:
            raise
        print(f".version lowered to {known[1]}")
        return load_as_it_is(driver, re.sub(rb"\.version\s+[0-9.]+", b".version " + known[1].encode(), text, count=1))


def pinned(text):
    """PTX text whose sums and products of floating-point numbers all write how they round."""
    form = rb"(?<![.\w])(add|sub|mul)((?:\.ftz)?(?:\.sat)?\.(?:f16|f16x2|bf16|bf16x2|f32|f32x2|f64))\b"
    return re.sub(form, rb"\1.rn\2", text)


def load_as_it_is(driver, text):
    """A module of PTX text, assembled by the driver; prints what it says."""
    size = 1 << 16
    info, errors = ctypes.create_string_buffer(size), ctypes.create_string_buffer(size)
    keys = (ctypes.c_int * 4)(JIT_INFO_LOG, JIT_INFO_SIZE, JIT_ERROR_LOG, JIT_ERROR_SIZE)
    pointers = [ctypes.addressof(info), size, ctypes.addressof(errors), size]
    values = (ctypes.c_void_p * 4)(*pointers)
    module = ctypes.c_void_p()
    try:
        driver("cuModuleLoadDataEx", ctypes.byref(module), ctypes.c_char_p(text + b"\0"), 4, keys, values)
    except Failure as e:
        raise Failure(f"{e}\n{errors.value.decode(errors='replace')}") from e
    if info.value:
        print(info.value.decode(errors="replace").strip())
    return module


def launch(folder, out, fuse):
    """Runs one kernel and writes its buffers."""
    if tomllib is None:
        raise Failure("launch files are read by Python 3.11 or later")
    with open(folder / "launch.toml", "rb") as file:
        spec = tomllib.load(file)
    driver = Driver()
    driver("cuInit", 0)
    device, context = ctypes.c_int(), ctypes.c_void_p()
    driver("cuDeviceGet", ctypes.byref(device), 0)
    driver("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    driver("cuCtxSetCurrent", context)
    buffers, addresses = {}, {}
    for name, table in spec.get("buffers", {}).items():
        if "file" in table:
            data = (folder / table["file"]).read_bytes()
        else:
            data = bytes([table.get("fill", 0)]) * table["bytes"]
        pointer = ctypes.c_uint64()
        driver("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(max(1, len(data))))
        driver("cuMemcpyHtoD_v2", pointer, data, ctypes.c_size_t(len(data)))
        buffers[name], addresses[name] = (pointer, len(data)), pointer.value
    text = (folder / spec["ptx"]).read_bytes()
    module = load(driver, text if fuse else pinned(text))
    function = ctypes.c_void_p()
    driver("cuModuleGetFunction", ctypes.byref(function), module, spec["kernel"].encode())
    shared = spec.get("dynamic_smem", 0)
    if shared:
        driver("cuFuncSetAttribute", function, ATTRIBUTE_DYNAMIC_SMEM, ctypes.c_int(shared))
    three = lambda key: (list(spec.get(key, [1])) + [1, 1])[:3]
    cluster = three("cluster")
    attributes = (LaunchAttribute * 1)()
    attributes[0].id = LAUNCH_ATTRIBUTE_CLUSTER
    attributes[0].value[0:3] = cluster
    size = cluster[0] * cluster[1] * cluster[2]
    if size > 8:
        driver("cuFuncSetAttribute", function, ATTRIBUTE_NON_PORTABLE_CLUSTER, ctypes.c_int(1))
    packed = [value(driver, p, addresses) for p in spec.get("params", [])]
    held = [aligned(len(p)) for p in packed]
    for (memory, _), data in zip(held, packed):
        memory[:] = data
    pointers = (ctypes.c_void_p * max(1, len(held)))(*[ctypes.addressof(m) for m, _ in held])
    config = LaunchConfig()
    config.grid[:], config.block[:] = three("grid"), three("block")
    config.shared = shared
    if size > 1:
        config.attributes, config.count = attributes, 1
    driver("cuLaunchKernelEx", ctypes.byref(config), function, pointers, None)
    driver("cuCtxSynchronize")
    out.mkdir(parents=True, exist_ok=True)
    for name, (pointer, length) in buffers.items():
        data = ctypes.create_string_buffer(max(1, length))
        driver("cuMemcpyDtoH_v2", data, pointer, ctypes.c_size_t(length))
        (out / f"{name}.bin").write_bytes(data.raw[:length])


def largest(got, want, form):
    """The largest difference of two lists of numbers of a format; None if one is no number."""
    size = struct.calcsize(form)
    most = 0.0
    for i in range(0, min(len(got), len(want)) // size * size, size):
        if got[i : i + size] != want[i : i + size]:
            a, b = struct.unpack_from("<" + form, got, i)[0], struct.unpack_from("<" + form, want, i)[0]
            if a != a or b != b or abs(a) == float("inf") or abs(b) == float("inf"):
                return None
            most = max(most, abs(a - b))
    return most


def compare(got, want):
    """None if they are the same bytes, else what differs, in words of 4 bytes."""
    if got == want:
        return None
    if len(got) != len(want):
        return f"{len(got)} bytes, should be {len(want)}"
    words = range(0, len(got), 4)
    wrong = [i for i in words if got[i : i + 4] != want[i : i + 4]]
    first = wrong[0]
    text = f"{len(wrong)} of {len(words)} words differ, the first at byte {first}: "
    text += f"{got[first:first + 4].hex()} should be {want[first:first + 4].hex()} (bytes in order)"
    names = {"f": "f32", "e": "f16", "i": "i32"}
    parts = [(names[f], largest(got, want, f)) for f in names]
    parts = [f"{name} {most:g}" for name, most in parts if most is not None]
    return text + (f"; largest difference as {', '.join(parts)}" if parts else "")


def known(root):
    """The rules of known.txt: (kernel, buffer) to the fields after the size."""
    file = root / "known.txt"
    lines = file.read_text().splitlines() if file.exists() else []
    fields = [line.split() for line in lines if line and not line.startswith("#")]
    return {(f[0], f[1]): f[3:] for f in fields if f[3] in ("words", "opaque", "stopped")}


def free(rule, got):
    """Why a buffer may differ, if it differs as the rule says; else None."""
    if rule[:1] == ["opaque"]:
        return "opaque"
    if rule[:1] != ["words"]:
        return None
    words = [struct.unpack_from("<I", got, i)[0] for i in range(0, len(got), 4)]
    units = float(rule[1][1:]) if rule[1].startswith("~") else 0
    want = rule[2:] if units else rule[1:]
    as_float = lambda word: struct.unpack("<f", struct.pack("<I", word))[0]
    ulp = 2.0 ** (math.frexp(max(abs(as_float(w)) for w in words))[1] - 24) if units else 0
    fits = lambda g, w: w == "*" or g == int(w, 16) or abs(as_float(g) - as_float(int(w, 16))) <= units * ulp
    good = len(words) == len(want) and all(fits(g, w) for g, w in zip(words, want))
    return "in another order" if good else None


def report(folder, out, rules):
    """A line for each buffer that differs; whether none does but as the rules say."""
    expected = sorted(p for p in (folder / "expected").glob("*.*") if p.suffix in (".bin", ".blake2b"))
    if not expected:
        return False, "nothing to compare with: there is no expected/NAME.bin"
    lines, notes = [], []
    for file in expected:
        found = out / f"{file.stem}.bin"
        if not found.exists():
            difference = "not written"
        elif file.suffix == ".bin":
            difference = compare(found.read_bytes(), file.read_bytes())
        else:
            hashed = hashlib.blake2b(found.read_bytes(), digest_size=32).hexdigest()
            difference = None if hashed == file.read_text().strip() else f"its hash is {hashed}, another one"
        why = difference and found.exists() and free(rules.get((folder.name, file.stem), []), found.read_bytes())
        if why:
            notes.append(f"{file.stem} {why}")
        elif difference:
            lines.append(f"{file.stem}: {difference}")
    identical = f"identical ({len(expected) - len(notes)} buffers)"
    return not lines, "; ".join(lines + notes if lines else [identical] + notes)


def one(folder, args, rules):
    """Runs one kernel in a process of its own: whether it is as expected, and what to say of it."""
    out = args.out / folder.relative_to(args.folder)
    command = [sys.executable, __file__, str(folder), "--out", str(out), "--one"] + ["--fuse"] * args.fuse
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=args.seconds)
    except subprocess.TimeoutExpired:
        return False, f"FAILED: not done after {args.seconds:g} s"
    said = (done.stdout + done.stderr).strip()
    stopped = any(k == folder.name and rule[0] == "stopped" for (k, _), rule in rules.items())
    if done.returncode:
        return stopped, f"FAILED{', as known' if stopped else ''}: {said}"
    if stopped:
        return False, "it ran, and was to be stopped"
    return report(folder, out, rules)


def families(results):
    """A line for each family: kernels, those all of whose launches are as expected, bytes compared. `results` has folders."""
    found = {}
    for folder, same in results:
        name = re.fullmatch(r"ours-(.+)-(\d+)(\.\d+)?", folder.name)
        if name:
            kernels, compared = found.setdefault(name[1], ({}, []))
            kernels[name[2]] = kernels.get(name[2], True) and same
            compared += [p.stat().st_size for p in (folder / "expected").glob("*.bin")]
    for family, (kernels, compared) in found.items():
        yield f"family {family}: {sum(kernels.values())} of {len(kernels)} kernels identical, {sum(compared)} bytes compared"


def main():
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="kernels, each in a folder of its own")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("hardware-out"), help="where results go")
    parser.add_argument("--only", default="", help="kernels whose name has this text")
    parser.add_argument("--seconds", type=float, default=60, help="a kernel that takes longer is stopped")
    parser.add_argument("--jobs", type=int, default=1, help="kernels at a time")
    parser.add_argument("--fuse", action="store_true", help="let the assembler fuse products and sums")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        try:
            launch(args.folder, args.out, args.fuse)
        except (Failure, OSError, KeyError, ValueError, struct.error) as e:
            print(f"{type(e).__name__}: {e}")
            return 1
        return 0
    found = sorted(p.parent for p in args.folder.rglob("launch.toml"))
    kernels = [k for k in found if args.only in str(k.relative_to(args.folder))]
    if not kernels:
        print(f"{args.folder}: no launch.toml below", file=sys.stderr)
        return 2
    args.out.mkdir(parents=True, exist_ok=True)
    rules = known(args.folder)
    results = []
    with open(args.out / "report.txt", "w") as log, concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:

        def say(text):
            for stream in (sys.stdout, log):
                print(text, file=stream, flush=True)

        for folder, (same, text) in zip(kernels, pool.map(lambda k: one(k, args, rules), kernels)):
            results.append((folder, same))
            say(f"{folder.relative_to(args.folder)}: {text}")
        for line in families(results):
            say(line)
        good = sum(same for _, same in results)
        say(f"{good} of {len(kernels)} kernels identical")
    return 0 if good == len(kernels) else 1


if __name__ == "__main__":
    sys.exit(main())
