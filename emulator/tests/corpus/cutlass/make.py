"""Compiles the cases of gemm.cu with nvcc, and writes NAME.smXX.ptx and NAME.smXX.toml.

Needs nvcc and a C++ compiler on PATH and the Python packages that README.md lists; no GPU:

    python make.py [NAME...]

A host program of the same source makes the kernel's parameters as CUTLASS does, from addresses that are
marks, and prints them; the marks become pointers and tensor maps of the launch file. A case takes minutes.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import cutlass_library

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from launch import Buffer, launch_file, out, strip, tensor_map

SOURCES = Path(cutlass_library.__file__).parent / "source"
FLAGS = ["-std=c++17", "-w", "--expt-relaxed-constexpr", "-I", str(SOURCES / "include"), "-I", str(SOURCES / "tools/util/include")]
TYPES = ["u8", "u16", "u32", "i32", "u64", "i64", "f16", "f32", "f64", "bf16", "f32_ftz", "tf32", "tf32_ftz", "16u4_align8b", "16u4_align16b", "16u6_align16b"]
SWIZZLES = ["none", "32b", "64b", "128b"]
BUFFERS = {1: "a", 2: "b", 3: "c", 4: "sa", 5: "sb", 6: "workspace", 7: "sizes", 8: "pointers_a", 9: "pointers_b", 10: "pointers_c", 11: "strides_a", 12: "strides_b", 13: "strides_c"}

# Number in gemm.cu, chip, M, N, K, bits of an element of A and B, bytes of one of C, elements to a scale.
CASES = {
    "f16_cooperative": (0, "90", 256, 256, 256, 16, 2, 0),
    "bf16_pingpong": (1, "90", 256, 256, 192, 16, 2, 0),
    "e4m3": (2, "90", 128, 256, 256, 8, 4, 0),
    "f16": (3, "100", 256, 256, 256, 16, 2, 0),
    "bf16_pair": (4, "100", 512, 256, 192, 16, 4, 0),
    "nvfp4": (5, "100", 256, 128, 512, 4, 4, 16),
    "nvfp4_pair": (6, "100", 512, 256, 512, 4, 4, 16),
    "mxfp8": (7, "100", 128, 256, 256, 8, 4, 32),
    "stream_k": (8, "100", 384, 64, 320, 16, 2, 0),
}


def fields(data, maps, workspace):
    """Fields of the struct: marks as pointers and maps, and what else is not zero. `workspace` is its size in bytes."""
    found, taken, data = [], bytearray(len(data)), bytearray(data)
    for at in range(0, len(data), 8):
        # What constructors leave alone: addresses of the host's stack, or their upper halves beside alpha.
        if int.from_bytes(data[at + 4 : at + 8], "little") >> 8 in (0x7F, 0x55, 0x56):
            alpha = data[at : at + 4] == bytes.fromhex("0000803f")
            data[at + 4 * alpha : at + 8] = bytes(8 - 4 * alpha)
    for i, text in enumerate(maps):
        for at in range(0, len(data) - 127, 64):
            if data[at : at + 128] == bytes([0xC0 + i]) * 128:
                found.append((at, text))
                taken[at : at + 128] = b"\1" * 128
    for at in range(0, len(data) - 7, 8):
        word = int.from_bytes(data[at : at + 8], "little")
        buffer, inside = BUFFERS.get(word >> 40), word & (1 << 40) - 1
        if not taken[at] and buffer and inside < (workspace if buffer == "workspace" else 1):
            found.append((at, f'pointer = "{buffer}"' + (f", pointer_offset = {inside}" if inside else "")))
            taken[at : at + 8] = b"\1" * 8
    for at in range(0, len(data), 4):
        if not taken[at] and any(data[at : at + 4]):
            found.append((at, f'hex = "{data[at : at + 4].hex()}"'))
    return [f"{{ offset = {at}, {text} }}" for at, text in sorted(found)]


class Values:
    """A buffer of values, written as parameters are."""

    def __init__(self, values):
        self.values = values


def groups_buffers(sizes, bits, size):
    """Operands of all groups one after another, and the tables that say where, how large and how far apart."""
    starts, at = [], [0, 0, 0]
    for m, n, k in sizes:
        starts.append(tuple(at))
        at = [at[0] + m * k * bits // 8, at[1] + n * k * bits // 8, at[2] + m * n * size]
    buffers = dict(a=Buffer(at[0]), b=Buffer(at[1]), c=out(at[2]))
    buffers["sizes"] = Values([f"{{ i32 = {v} }}" for group in sizes for v in group])
    for i, name in enumerate("abc"):
        buffers[f"pointers_{name}"] = Values([f'{{ pointer = "{name}", offset = {start[i]} }}' for start in starts])
        buffers[f"strides_{name}"] = Values([f"{{ i64 = {n if name == 'c' else k} }}" for m, n, k in sizes])
    return buffers


def compiled(name):
    """The PTX of a case, and what its host program prints."""
    number, chip, *rest = CASES[name]
    arguments = [len(rest[0])] if isinstance(rest[0], list) else rest[:3]
    with tempfile.TemporaryDirectory() as folder:
        ptx, host = Path(folder) / "gemm.ptx", Path(folder) / "gemm"
        common = [f"-arch=sm_{chip}a", *FLAGS, f"-DCASE={number}", str(HERE / "gemm.cu")]
        subprocess.run(["nvcc", "-ptx", *common, "-o", str(ptx)], check=True)
        subprocess.run(["nvcc", "-O0", "-DLAYOUT", "-DCUTLASS_ENABLE_DIRECT_CUDA_DRIVER_CALL", *common, "-o", str(host)], check=True)
        text = strip(ptx.read_text())
        printed = subprocess.run([str(host), *map(str, arguments)], check=True, capture_output=True, text=True).stdout
    return text, printed


def write(name, text, printed):
    """The files of a case."""
    _, chip, *rest = CASES[name]
    grouped = isinstance(rest[0], list)
    maps, launch, data = [], {}, b""
    for line in printed.splitlines():
        kind, said = line.split(" ", 1)
        values = dict(re.findall(r"(\w+)=(\S*)", said))
        lists = {key: [int(v) for v in value.split(",")] for key, value in values.items()}
        if kind == "launch":
            launch = lists
        elif kind == "map":
            one = {key: v[0] for key, v in lists.items()}
            # Kernels of groups put the address in.
            buffer = BUFFERS[one["address"] >> 40] if one["address"] else "ababc"[len(maps)]
            assert one["interleave"] == 0 and one["fill"] == 0 and set(lists["steps"]) == {1}
            maps.append(tensor_map(buffer, TYPES[one["type"]], lists["dims"], lists["box"], strides=lists["strides"], swizzle=SWIZZLES[one["swizzle"]]))
        else:
            data = bytes.fromhex(said)
    workspace = launch["workspace"][0]
    if grouped:
        buffers = groups_buffers(*rest)
    else:
        m, n, k, bits, size, block = rest
        buffers = dict(a=Buffer(m * k * bits // 8), b=Buffer(n * k * bits // 8), c=out(m * n * size))
    if workspace:
        # Stream-K counts arrivals from zero.
        buffers["workspace"] = out(workspace) if grouped else Buffer(workspace, 0)
    if not grouped and block:
        buffers |= dict(sa=Buffer(-(-m // 128) * 128 * k // block), sb=Buffer(-(-n // 128) * 128 * k // block))
    struct = f"struct = {{ size = {launch['size'][0]}, fields = [\n    " + ",\n    ".join(fields(data, maps, workspace)) + "\n] }"
    stem = f"{name}.sm{chip}"
    (HERE / f"{stem}.ptx").write_text(text)
    file = launch_file(f"{stem}.ptx", "cutlass_product", launch["grid"], launch["block"], buffers, [struct], cluster=launch["cluster"], smem=launch["smem"][0])
    (HERE / f"{stem}.toml").write_text(file)
    print(f"{stem}: {len(text)} bytes", flush=True)


if __name__ == "__main__":
    for name in sys.argv[1:] or CASES:
        write(name, *compiled(name))
