"""Compiles the sources of this folder with nvcc, and writes SOURCE.smXX.ptx and KERNEL.smXX.toml.

Needs a C++ compiler, and nvcc of the Python packages that README.md lists; no GPU:

    python make.py [SOURCE...]

Every kernel of LAUNCHES gets a launch file for each chip that its source is compiled for.
"""

import struct
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from launch import Buffer, launch_file, out, pointer, strip, tensor_map

HERE = Path(__file__).parent
BOTH = ("90", "100")


def ints(*names):
    return [pointer(n) for n in names]


def elementwise(n, size, count, inputs=1, outsize=None):
    """A kernel of n threads that makes `count` rows of results."""
    names = ["x", "y"][:inputs]
    buffers = {name: Buffer(n * size) for name in names} | {"out": out(n * count * (outsize or size))}
    return dict(grid=(n // 128,), block=(128,), buffers=buffers, params=ints(*names, "out") + [f"i32 = {n}"])


COEFFICIENTS = struct.pack("<c3xfdhh4x", b"s", 1.75, -0.5, -3, 5).hex()


def product(size, m, n, k, grid, block, out_size=4, **rest):
    """C = A B^T from pointers."""
    return dict(grid=grid, block=block, buffers=dict(a=Buffer(m * k * size), b=Buffer(n * k * size), c=out(m * n * out_size)),
                params=ints("a", "b", "c") + [f"i32 = {n}", f"i32 = {k}"], **rest)


def tma_product(ty, m, n, k, box_a, box_b, **rest):
    """C = A B^T from tensor maps of 16-bit matrices."""
    maps = [tensor_map("a", ty, (k, m), box_a, swizzle="128b"), tensor_map("b", ty, (k, n), box_b, swizzle="128b")]
    return dict(buffers=dict(a=Buffer(m * k * 2), b=Buffer(n * k * 2), c=out(m * n * 4)), params=maps + ["pointer = \"c\"", f"i32 = {n}", f"i32 = {k}"], **rest)


LAUNCHES = {
    "elementwise": {
        "axpy": dict(grid=(3,), block=(128,), buffers=dict(x=Buffer(4 * 3003), y=Buffer(4 * 3003)), params=ints("x", "y") + ["i64 = 3003", f'hex = "{COEFFICIENTS}"']),
        "functions": elementwise(256, 4, 44),
        "intrinsics": elementwise(256, 4, 22),
        "doubles": elementwise(128, 8, 21),
        "integers": elementwise(256, 4, 42, 2),
        "wide": elementwise(256, 8, 27, 2),
        "conversions": elementwise(256, 4, 31),
        "halves": elementwise(256, 4, 20, 2),
        "bfloats": elementwise(256, 4, 20, 2),
    },
    "control": {
        "tables": dict(grid=(2,), block=(96,), buffers=dict(x=Buffer(4 * 180, 0), out=out(8 * 180)), params=ints("x", "out") + ["i32 = 180"]),
        "calls": dict(grid=(2,), block=(64,), buffers=dict(x=Buffer(8 * 120), out=out(16 * 120)), params=ints("x", "out") + ["i32 = 120"]),
        "interpreter": dict(grid=(1,), block=(128,), buffers=dict(code=Buffer(4 * 24, 1), x=Buffer(4 * 100), out=out(4 * 100)), params=ints("code", "x", "out") + ["i32 = 24", "i32 = 100"]),
        "totals": dict(grid=(1,), block=(1,), buffers=dict(out=out(4 * 65)), params=ints("out")),
        "local_sort": dict(grid=(2,), block=(64,), buffers=dict(x=Buffer(2 * 24 * 128), out=out(2 * 24 * 128), moves=out(4 * 128)), params=ints("x", "out", "moves")),
    },
    "reductions": {
        "reduce": dict(grid=(6,), block=(192,), buffers=dict(x=Buffer(4 * 5000), partial=out(48), out=out(8)), params=ints("x", "partial", "out") + ["i32 = 5000"]),
        "warp_votes": elementwise(128, 4, 14),
        "scan": dict(grid=(5,), block=(256,), buffers=dict(x=Buffer(4 * 1200, 1), out=out(4 * 1200), tiles=Buffer(40, 0), ticket=Buffer(4, 0)), params=ints("x", "out", "tiles", "ticket") + ["i32 = 1200"]),
        "transpose": dict(grid=(3, 2), block=(32, 8), buffers=dict(x=Buffer(4 * 50 * 75), out=out(4 * 50 * 75), y=Buffer(2 * 50 * 75), yout=out(2 * 50 * 75)), params=ints("x", "out", "y", "yout") + ["i32 = 50", "i32 = 75"]),
        "histogram": dict(grid=(3,), block=(128,), smem=1024, buffers=dict(x=Buffer(4096), out=Buffer(1024, 0)), params=ints("x", "out") + ["i32 = 4096"]),
        "atomics": dict(grid=(3,), block=(128,), buffers=dict(
            x=Buffer(4 * 384, 1), words=Buffer(44, 0), wide=Buffer(32, 0), floats=Buffer(8, 0), real=Buffer(8, 0), halves=Buffer(8, 0),
            bfloats=Buffer(16, 0), quad=Buffer(16, 0), shorts=Buffer(4, 0), lock=Buffer(4, 0), order=Buffer(28, 0)),
            params=ints("x", "words", "wide", "floats", "real", "halves", "bfloats", "quad", "shorts", "lock", "order")),
        "groups": elementwise(256, 4, 10),
    },
    "asynchronous": {
        "pipelined": dict(grid=(2,), block=(128,), buffers=dict(x=Buffer(4 * 4950), weights=Buffer(20), out=out(1024)), params=ints("x", "weights", "out") + ["i32 = 5", "i32 = 4950"]),
        "producer": dict(grid=(2,), block=(96,), buffers=dict(x=Buffer(4 * 64 * 12, 1), out=out(4 * 128)), params=ints("x", "out") + ["i32 = 6"]),
        "bulk": dict(grid=(3,), block=(128,), buffers=dict(x=Buffer(3072), out=out(3072), total=Buffer(1024, 0)), params=ints("x", "out", "total") + ["i32 = 768"]),
        "stencil": dict(grid=(4, 3), block=(256,), buffers=dict(x=Buffer(4 * 60 * 40), out=out(4 * 60 * 40)),
                        params=[tensor_map("x", "f32", (60, 40), (20, 18)), tensor_map("out", "f32", (60, 40), (16, 16))]),
        "cluster_histogram": dict(grid=(8,), block=(64,), cluster=(4,), smem=128, buffers=dict(x=Buffer(4 * 2000, 0), out=Buffer(512, 0)), params=ints("x", "out") + ["i32 = 2000", "i32 = 128"]),
        "cluster_ring": dict(grid=(2, 4), block=(128,), cluster=(2, 2), buffers=dict(x=Buffer(4096), out=out(4096)), params=ints("x", "out") + ["i32 = 5"]),
        "multicast": dict(grid=(4,), block=(64,), cluster=(2,), buffers=dict(x=Buffer(4096), out=out(8192)), params=[tensor_map("x", "f32", (32, 32), (32, 8)), pointer("out")]),
        "dependent": dict(grid=(2,), block=(64,), buffers=dict(x=Buffer(512), out=out(512)), params=ints("x", "out")),
        "stealing": dict(chips=("100",), grid=(12,), block=(64,), buffers=dict(x=Buffer(3072), out=out(3072), taken=Buffer(4, 0)), params=ints("x", "out", "taken")),
    },
    "matrices": {
        "mma_f16": product(2, 128, 64, 96, (1, 2), (128,)),
        "mma_s8": product(1, 32, 16, 64, (2, 2), (32,)),
        "mma_tf32": product(4, 32, 16, 32, (2, 2), (32,)),
        "mma_f64": product(8, 16, 16, 16, (2, 2), (32,), out_size=8),
        "wgmma_f16": dict(chips=("90",), **tma_product("f16", 256, 128, 320, (64, 128), (64, 64), grid=(2, 2), block=(384,), smem=3 * (16384 + 8192))),
        "wgmma_dequantised": dict(
            chips=("90",), grid=(2,), block=(128,), buffers=dict(a=Buffer(64 * 192), scale=Buffer(256), b=Buffer(192 * 128 * 2), c=out(64 * 128 * 4)),
            params=ints("a", "scale") + [tensor_map("b", "bf16", (128, 192), (64, 64), swizzle="128b"), pointer("c"), "i32 = 128", "i32 = 192"]),
        "tcgen05_f16": dict(chips=("100",), **tma_product("f16", 256, 128, 256, (64, 128), (64, 64), grid=(1, 2), block=(192,), smem=3 * (16384 + 8192))),
        "tcgen05_pair": dict(chips=("100",), **tma_product("bf16", 512, 128, 192, (64, 128), (64, 64), grid=(4, 1), cluster=(2,), block=(192,), smem=2 * (16384 + 8192))),
        "tcgen05_nvfp4": dict(
            chips=("100",), grid=(1, 2), block=(128,), buffers=dict(a=Buffer(256 * 256), b=Buffer(128 * 256), sa=Buffer(256 * 32), sb=Buffer(128 * 32), c=out(256 * 128 * 4)),
            params=[tensor_map("a", "u8", (256, 256), (128, 128), swizzle="128b"), tensor_map("b", "u8", (256, 128), (128, 128), swizzle="128b")]
            + ints("sa", "sb", "c") + ["i32 = 128", "i32 = 512"]),
    },
}


def build(source):
    for chip in BOTH:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "out.ptx"
            command = ["nvcc", "-ptx", f"-arch=sm_{chip}a", "-std=c++17", "-O3", "-diag-suppress", "20054", "-o", str(path), str(HERE / f"{source}.cu")]
            subprocess.run(command, check=True)
            text = strip(path.read_text())
        name = f"{source}.sm{chip}.ptx"
        (HERE / name).write_text(text)
        for kernel, launch in LAUNCHES[source].items():
            launch = dict(launch)
            if chip in launch.pop("chips", BOTH):
                kernel_name = launch.pop("kernel", kernel)
                (HERE / f"{kernel}.sm{chip}.toml").write_text(launch_file(name, kernel_name, **launch))
        print(f"{name}: {len(text)} bytes", flush=True)


if __name__ == "__main__":
    for source in sys.argv[1:] or LAUNCHES:
        build(source)
